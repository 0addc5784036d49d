"""The fit to rows that are read in parts, in memory that does not grow with their number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from gpytorch_gam.data.streamed_batches import Settings, StreamedBatches

from .data_fit import fit_to_data
from .design import Design
from .deviance import deviance_explained
from .families import Family, Units
from .fitting import FitOfDesign
from .frames import as_rows
from .options import Options, device_of
from .streams import Piece, Stream, read
from .survey import Survey
from .units_of_fit import fit_arguments, units_of
from .value_checks import refuse_drop, refuse_missing, warn_of_missing

# Rows of a minibatch, and of a batch where all rows are read in their order.
_BATCH_SIZE, _ROWS_OF_PASSES = 1000, 2**16


class Rows(NamedTuple):
    """Rows of data with a positive weight, in units of the data."""

    frame: pd.DataFrame
    y: np.ndarray
    weights: np.ndarray
    arguments: dict[str, np.ndarray]  # row-wise, of the likelihood

    def some(self, chosen: np.ndarray) -> Rows:
        """
        Some of the rows.

        :param chosen: Which, booleans ``(n,)``.
        """
        if chosen.all():
            return self
        arguments = {name: value[chosen] for name, value in self.arguments.items()}
        return Rows(self.frame[chosen], self.y[chosen], self.weights[chosen], arguments)


# From a part of the rows with all of their columns.
Reader = Callable[[pd.DataFrame], Rows]


def with_weight(frame: pd.DataFrame, column: str | None) -> pd.DataFrame:
    """
    The rows with a positive weight.

    :param frame: Some rows.
    :param column: Name of the column of weights; None if all are one.
    :raises TypeError: If weights are no numbers.
    :raises ValueError: If one is negative, or not finite.
    """
    weights = None if column is None else as_rows("sample_weight", frame[column], len(frame))
    if weights is None:
        return frame
    if (weights < 0).any():
        raise ValueError(f"sample_weight must not be negative, but is in {int((weights < 0).sum())} rows")
    return frame[weights > 0].reset_index(drop=True)


def fit_stream(
    design: Design,
    family: Family,
    stream: Stream,
    columns: list[str] | None,
    found: Survey,
    reader: Reader,
    options: Options,
) -> FitOfDesign:
    """
    Fit the terms of a design to rows that are read in parts. Places and scales are those of a sample, ranges and levels
    those of all rows.

    :param design: Terms, whose encodings are chosen here.
    :param family: The distribution of the response.
    :param stream: The rows.
    :param columns: Names of the columns to read; None for all.
    :param found: What a first look at the rows has found.
    :param reader: Takes columns apart.
    :param options: How.
    """
    some = reader(found.sample)
    refuse_drop(design)
    refuse_missing(design, found.missing, found.num_rows)
    warn_of_missing(design, found.missing, found.num_rows)
    design.learn_columns(found.frame, found.weights(np.ones(len(found.sample))))
    units = units_of(family, some.y, some.weights, some.arguments, design.has_intercepts[0])
    batches = EncodedBatches(design, family, units, stream, columns, found.num_rows, reader, some, options)
    fitted, result = fit_to_data(design, family, units, design.inputs(found.spread), batches, options)
    fitted = replace(fitted, hyperparameters="point estimates: the rows are read in parts")
    arguments = fit_arguments(family, units.scale, some.arguments)
    explained = deviance_explained(fitted, design.inputs(some.frame), some.y, some.weights, arguments)
    return FitOfDesign(fitted, result, explained, None)


class EncodedBatches(StreamedBatches):
    """Batches of a stream in units of the fit, in random order for minibatches: parts are read several at a time."""

    _num_open = 8

    def __init__(
        self,
        design: Design,
        family: Family,
        units: Units,
        stream: Stream,
        columns: list[str] | None,
        num_rows: int,
        reader: Reader,
        example: Rows,
        options: Options,
    ) -> None:
        self._design, self._family, self._units = design, family, units
        self._stream, self._columns, self._reader = stream, columns, reader
        self._has_weights = bool((example.weights != 1.0).any())
        names = [*example.arguments, *(["weights"] if self._has_weights else [])]
        device = device_of(options.device)
        settings = Settings.of(_BATCH_SIZE, True, options.seed, torch.float64, device, False, None, None, None, False)
        shapes: list[tuple[int, ...]] = [(len(design.encodings),), (), *[()] * len(names)]
        super().__init__(num_rows, shapes, names, settings)

    def every_row(self) -> StreamedBatches:
        """The same rows in their order, in larger batches."""
        other = super().every_row()
        other._settings = other._settings._replace(batch_size=_ROWS_OF_PASSES, buffer_rows=_ROWS_OF_PASSES)
        return other

    def _require_unchanged(self) -> None:
        """Parts that are not what they were are found when they are read."""

    def _pieces(self, start: int, stop: int) -> tuple[Piece, ...]:
        return self._stream.pieces

    def _read(self, piece: Piece) -> Iterator[tuple[np.ndarray, ...]]:
        for frame in read(piece, self._columns):
            rows = self._reader(frame)
            if not len(rows.y):
                continue
            arguments: dict[str, Any] = fit_arguments(self._family, self._units.scale, rows.arguments)
            if self._has_weights:
                arguments["weights"] = torch.from_numpy(rows.weights)
            responses = (rows.y - self._units.centre) / self._units.scale
            inputs = self._design.inputs(rows.frame).numpy()
            yield (inputs, responses, *(arguments[name].numpy() for name in self.row_arguments))
