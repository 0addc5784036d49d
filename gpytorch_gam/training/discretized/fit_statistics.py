"""Sums over rows that determine a fit with a Gaussian likelihood, which can be computed in parts and added."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from os import PathLike
from typing import Any

import torch
from gpytorch.likelihoods import Likelihood
from torch import Tensor

from gpytorch_gam import _checks as checks
from gpytorch_gam.likelihoods.null_model import NullModel, gaussian_null_model
from gpytorch_gam.likelihoods.row_argument import OFFSET, WEIGHTS
from gpytorch_gam.mlls.collapsed_elbo import RowPrecisions
from gpytorch_gam.optim.processes import Processes
from gpytorch_gam.optim.rows.likelihood_check import unwrapped
from gpytorch_gam.optim.rows.stream import Rows, checked_rows

from ._chunks import one_thread
from ._coordinates import Coordinate
from ._data import BinTables, TableSums, check_sizes
from ._indexed_rows import Centres, IndexedRows, RowReader
from .column_bins import ColumnBins

_ARGUMENTS = ("offset", "weights", "noise")

# What a file says that it is.
_FORMAT = "gpytorch_gam.FitStatistics 1"


class FitStatistics:
    r"""
    All that a fit with a Gaussian likelihood has to know of its data: sums over the rows at each bin and pair of bins.
    Their size does not depend on the number of rows, and those of parts of the data add up, so that any engine that
    maps a function over partitions can compute them.

    For residuals :math:`r_n` (responses minus offsets) and relative precisions :math:`\lambda_n` (weights over noises,
    each one where it is not given) they are the sums of :math:`\lambda_n` and :math:`\lambda_n r_n` at each bin and of
    :math:`\lambda_n` at each pair of bins, those of :math:`\lambda_n r_n^2` and :math:`w_n \log \sigma_n^2`, the mean
    of the rows' inputs in each rounded bin, and the moments of the residuals from which hyperparameters start.

    With any other likelihood, sums like these depend on the posterior, so that each pass needs the rows: give these to
    the fit, with a ``process_group`` if they are spread over machines.

    Bins must be the same for all parts. Where no machine sees all rows, make them from the parts' ranges, see
    :class:`ColumnRanges`.

    Make them with :meth:`from_batches`, add them with ``+`` or ``sum``, and give them to the fit in place of the data.

    :ivar bins: The bins.
    :ivar num_rows: The number of rows.
    :ivar row_arguments: The names of the row-wise arguments that the rows had.

    Example:
        >>> parts = [FitStatistics.from_batches(part, bins) for part in partitions]   # anywhere
        >>> result = fit(model, likelihood, sum(parts))
    """

    def __init__(self, bins: ColumnBins, row_arguments: Iterable[str], device: torch.device) -> None:
        self.bins, self.row_arguments = bins, tuple(sorted(row_arguments))
        self._sums = TableSums([bins.num_bins(term) for term in bins.terms], device)
        self._centres = {term: Centres(bins.values(term)) for term in bins.terms if not bins.is_exact(term)}
        # Numbers of rows; sums of w, w r, w r^2, and w log sigma^2.
        self._numbers = torch.zeros(5, dtype=torch.float64, device=device)

    @classmethod
    @torch.no_grad()
    def from_batches(cls, batches: Iterable[Any], bins: ColumnBins) -> FitStatistics:
        """
        The sums over some rows, which are read once and shared among the threads of torch. Memory is that of a batch,
        or of some ten megabytes if batches are small, and of the sums.

        :param batches: Pairs of inputs ``(b, D)`` and responses ``(b)``, such as ``[(x, y)]``, a ``DataLoader`` without
            ``drop_last``, or a generator. Or triples, whose third entry maps ``offset``, ``weights`` and ``noise`` to a
            number for each row.
        :param bins: The bins, made from all of the data.
        :raises TypeError: If an argument is of the wrong kind, or there is a row-wise argument of another name.
        :raises ValueError: If there are no rows, or they cannot be read, or are not in the bins.
        """
        checks.batches(batches)
        if not isinstance(bins, ColumnBins):
            raise TypeError(f"bins must be ColumnBins, such as ColumnBins.from_data(x, predictor), got {bins!r}")
        check_sizes(bins)
        return cls.of_rows(_checked(batches), bins)

    @classmethod
    def of_rows(
        cls, rows: Iterable[Rows], bins: ColumnBins, mean: Callable[[Tensor], Tensor] | None = None
    ) -> FitStatistics:
        """
        The sums over checked rows.

        :param rows: Batches of rows.
        :param bins: The bins.
        :param mean: A fixed part of the predictor, as a function of inputs ``(n, D)``.
        :raises ValueError: If there are no rows, or they are not in the bins.
        """
        found: FitStatistics | None = None
        num_threads = torch.get_num_threads()
        reader = RowReader(bins, (OFFSET, WEIGHTS), mean, num_threads)
        for block in reader.blocks(rows):
            if found is None:
                found = cls(bins, {*block.taken, *block.arguments}, block.responses.device)
            with one_thread():
                found._add(block, num_threads)
        if found is None:
            raise ValueError("batches is empty: there is no data to fit, or it can be gone through only once")
        found._centres = reader.centres
        return found

    def _add(self, block: IndexedRows, num_threads: int) -> None:
        residuals = block.responses.double()
        if "offset" in block.taken:
            residuals = residuals - block.taken["offset"]
        weights = block.taken.get("weights")
        precisions, num_rows, log_noise = RowPrecisions.of_rows(residuals, weights, block.arguments.get("noise"))
        targets = residuals if precisions is None else precisions * residuals
        self._sums.add(block.codes, precisions, targets, targets @ residuals, num_threads)
        weighted = residuals if weights is None else weights * residuals
        numbers = (
            len(residuals),
            num_rows,
            weighted.sum(),
            weighted @ residuals,
            0.0 if log_noise is None else log_noise,
        )
        self._numbers += torch.stack([torch.as_tensor(number).to(self._numbers) for number in numbers])

    def of_all(self, processes: Processes) -> FitStatistics:
        """
        The sums over the rows of all processes, in each of them.

        :param processes: Those that call this together, with the same bins.
        :raises ValueError: If row-wise arguments differ.
        """
        if processes.is_alone:
            return self
        names = processes.gather_objects(self.row_arguments)
        if len(set(names)) > 1:
            raise ValueError(f"the processes have rows with row-wise arguments {names}: give those of some to all")
        found = FitStatistics(self.bins, self.row_arguments, self._numbers.device)
        for total, own in zip(found.sums(), processes.sum(self.sums()), strict=True):
            total.copy_(own)
        return found

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return int(self._numbers[0].item())

    @property
    def total_weight(self) -> float:
        """The sum of the weights, or without weights the number of rows."""
        return self._numbers[1].item()

    def tables(self, device: torch.device) -> BinTables:
        """
        The tables of the fit; bins of several columns without rows are left out.

        :param device: The device of the tables.
        """
        places = [self._place(term) for term in self.bins.terms]
        log_noise = self._numbers[4] if "noise" in self.row_arguments else None
        tables = self._sums.tables(places)._replace(num_rows=self.total_weight, log_noise=log_noise)
        return tables.to(device).without_empty_combinations()

    def _place(self, term: tuple[Coordinate, ...]) -> Tensor:
        place = self._centres[term].mean() if term in self._centres else self.bins.values(term)
        return place.to(self._numbers)

    def null_model(self, likelihood: Likelihood, constant: float) -> NullModel | None:
        """
        The null model of the rows; None if the likelihood is not known.

        :param likelihood: A Gaussian likelihood.
        :param constant: A fixed part of the predictor.
        """
        _, weight, total, squares, _ = self._numbers.tolist()
        if not weight:
            return None
        mean = total / weight
        return gaussian_null_model(unwrapped(likelihood), mean - constant, squares / weight - mean**2)

    def __add__(self, other: FitStatistics) -> FitStatistics:
        """
        The statistics of the rows of both.

        :param other: Statistics of further rows, for the same bins.
        :raises ValueError: If bins or row-wise arguments differ.
        """
        if not isinstance(other, FitStatistics):
            return NotImplemented
        difference = self.bins.difference(other.bins)
        if difference is not None:
            raise ValueError(
                f"the statistics are of different bins, {difference}: make all parts with the same bins, from all of "
                "the data, see ColumnRanges"
            )
        if self.row_arguments != other.row_arguments:
            raise ValueError(
                f"the statistics are of rows with row-wise arguments {list(self.row_arguments)} and "
                f"{list(other.row_arguments)}: give those of some rows to all"
            )
        found = FitStatistics(self.bins, self.row_arguments, self._numbers.device)
        for total, one, two in zip(found.sums(), self.sums(), other.sums(), strict=True):
            total.copy_(one + two.to(one.device))
        return found

    def __radd__(self, other: int) -> FitStatistics:
        """Let Python's ``sum`` begin with zero."""
        return self if other == 0 else NotImplemented

    def sums(self) -> list[Tensor]:
        """All sums, which may be changed in place; their order and shapes follow from the bins."""
        centres = [part for each in self._centres.values() for part in (each.sums, each.counts)]
        return [*self._sums.parts(), *centres, self._numbers]

    def save(self, path: str | PathLike[str]) -> None:
        """
        Write the statistics, bins included, to a file, which holds numbers alone.

        :param path: The file.
        """
        contents = {
            "format": _FORMAT,
            "bins": self.bins.state(),
            "row_arguments": list(self.row_arguments),
            "sums": [part.cpu() for part in self.sums()],
        }
        torch.save(contents, path)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> FitStatistics:
        """
        Read statistics from a file; no code in it is run.

        :param path: A file that :meth:`save` has written.
        :raises ValueError: If it holds something else.
        """
        contents = torch.load(path, weights_only=True, map_location="cpu")
        if not isinstance(contents, dict) or contents.get("format") != _FORMAT:
            raise ValueError(f"{path} holds no {_FORMAT}: write it with FitStatistics.save")
        found = cls(ColumnBins.from_state(contents["bins"]), contents["row_arguments"], torch.device("cpu"))
        for total, part in zip(found.sums(), contents["sums"], strict=True):
            total.copy_(part)
        return found

    def __repr__(self) -> str:
        arguments = f", row_arguments={list(self.row_arguments)}" if self.row_arguments else ""
        return f"FitStatistics(num_rows={self.num_rows}, bins={self.bins!r}{arguments})"


def _checked(batches: Iterable[Any]) -> Iterator[Rows]:
    """The rows, once their shapes and the names of their arguments are known to be right."""
    for batch in batches:
        rows = checked_rows(None, None, batch)
        others = [name for name in rows.row_arguments if name not in _ARGUMENTS]
        if others:
            raise TypeError(f"row-wise arguments of statistics are {', '.join(_ARGUMENTS)}, got {others}")
        yield rows
