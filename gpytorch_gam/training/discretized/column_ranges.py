"""The ranges and distinct values of columns, from which their bins are made."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from gpytorch_gam import _checks as checks
from gpytorch_gam.components.additive_predictor import AdditivePredictor

from ._chunks import CHUNK_SIZE, chunks, in_threads, one_thread
from ._coordinates import (
    Coordinate,
    category_columns,
    columns_of,
    coordinates_of,
    index_of,
    optional_columns,
    read,
)
from ._margin import Margin

#: Largest number of bins of a column that a component reads alone, of each of two columns read together, and of more.
DEFAULT_MAX_BINS = (1000, 100, 25)

#: Number of rows looked at at a time.
BLOCK_SIZE = 16384


class ColumnRanges:
    """
    The range of each column that components read, and its distinct values where these are few: what bins are made from.
    Those of parts of the data add up, for data of which no machine sees all rows.

    Make them with :meth:`from_batches`, add them with ``+`` or ``sum``, and give them to
    :meth:`ColumnBins.from_ranges`.

    :ivar columns: The sets of columns that components read.
    :ivar max_bins: The largest numbers of bins.

    Example:
        >>> ranges = sum(ColumnRanges.from_batches(part, predictor) for part in partitions)   # each anywhere
        >>> bins = ColumnBins.from_ranges(ranges)
    """

    def __init__(
        self,
        columns: Sequence[tuple[Coordinate, ...]],
        max_bins: tuple[int, ...],
        summaries: dict[Coordinate, ColumnSummary],
    ) -> None:
        self.columns, self.max_bins, self._summaries = tuple(columns), max_bins, summaries

    @classmethod
    def from_batches(
        cls,
        batches: Iterable[Tensor | Sequence[Tensor]],
        terms: AdditivePredictor | Sequence[Sequence[Coordinate]] | None = None,
        *,
        max_bins: int | Sequence[int] = DEFAULT_MAX_BINS,
    ) -> ColumnRanges:
        """
        Read batches of rows once.

        :param batches: Inputs ``(b, D)``, or tuples that begin with them, such as a ``DataLoader`` gives.
        :param terms: Sets of columns that components read, or a predictor that has them; default each column alone.
        :param max_bins: Largest number of bins of a column alone, of each of two columns that are read together, of
            each of three, and so on; the last number holds for all further ones.
        :raises ValueError: If there are no rows, infinity, or NaN in a column that a component without
            ``missing="marginal"`` reads.
        """
        numbers = validated_max_bins(max_bins)
        columns: list[tuple[Coordinate, ...]] | None = None
        groups = list(terms.groups) if isinstance(terms, AdditivePredictor) else []
        given = [row for group in groups for row in coordinates_of(group)] if groups else terms
        optional, categories = optional_columns(groups), category_columns(groups)
        summaries: dict[Coordinate, ColumnSummary] = {}
        for batch in batches:
            x = inputs_of(batch)
            if columns is None:
                columns = columns_of(given, x)
                for column in dict.fromkeys(column for term in columns for column in term):
                    most = sys.maxsize if column in categories else max(numbers)
                    summaries[column] = ColumnSummary(most, index_of(column) in optional)
            with one_thread() as num_threads:
                jobs = [functools.partial(_add, summary, x, column) for column, summary in summaries.items()]
                in_threads(jobs, num_threads if len(x) >= CHUNK_SIZE else 1)
        if columns is None:
            raise ValueError("there are no rows to take bins from")
        return cls(columns, numbers, summaries)

    def __add__(self, other: ColumnRanges) -> ColumnRanges:
        """
        The ranges of the rows of both.

        :param other: The ranges of further rows.
        :raises ValueError: If they are of other columns or numbers of bins.
        """
        if not isinstance(other, ColumnRanges):
            return NotImplemented
        if (self.columns, self.max_bins) != (other.columns, other.max_bins):
            raise ValueError(
                f"the ranges are of columns {list(self.columns)} for max_bins={self.max_bins}, and of "
                f"{list(other.columns)} for max_bins={other.max_bins}: make all parts with the same terms and max_bins"
            )
        pairs = {column: (summary, other._summaries[column]) for column, summary in self._summaries.items()}
        return ColumnRanges(
            self.columns, self.max_bins, {column: one.plus(two) for column, (one, two) in pairs.items()}
        )

    def __radd__(self, other: int) -> ColumnRanges:
        """Let Python's ``sum`` begin with zero."""
        return self if other == 0 else NotImplemented

    def margins(self) -> list[tuple[Margin, ...]]:
        """The bins of each column of each set."""
        return [tuple(self._margin(column, len(term)) for column in term) for term in self.columns]

    def _margin(self, column: Coordinate, num_columns: int) -> Margin:
        summary = self._summaries[column]
        is_category = summary.max_distinct == sys.maxsize
        return summary.margin(sys.maxsize if is_category else number_for(num_columns, self.max_bins), index_of(column))

    def bounds(self) -> dict[Coordinate, tuple[float, float]]:
        """The smallest and the largest value of each column."""
        return {column: (summary.low, summary.high) for column, summary in self._summaries.items()}

    def __repr__(self) -> str:
        parts = [f"{column}: [{low:.4g}, {high:.4g}]" for column, (low, high) in self.bounds().items()]
        return f"ColumnRanges({', '.join(parts)})"


class ColumnSummary:
    """The range of a column, and its distinct values while there are at most ``max_distinct``."""

    def __init__(self, max_distinct: int, allows_missing: bool) -> None:
        self.max_distinct, self._allows_missing = max_distinct, allows_missing
        self._distinct: Tensor | None = None
        self._has_few, self._has_missing = True, False
        self.low, self.high = float("inf"), float("-inf")

    def add(self, values: Tensor, name: int) -> None:
        """Add rows ``(n,)`` of the column with this index."""
        smallest, largest = _bounds(values)
        if self._allows_missing and math.isnan(smallest):
            self._has_missing = True
            values = values[~values.isnan()]
            if not len(values):
                return
            smallest, largest = _bounds(values)
        if not (smallest > float("-inf") and largest < float("inf")):
            count = int((~torch.isfinite(values)).sum())
            remedy = "" if self._allows_missing else ', or give the components that read it missing="marginal"'
            raise ValueError(
                f"column {name} of x has NaN or infinity in {count} of {len(values)} rows: drop or impute these rows"
                + remedy
            )
        self.low, self.high = min(self.low, smallest), max(self.high, largest)
        for block in values.split(BLOCK_SIZE):
            if not self._has_few:
                return
            self._add_distinct(block.contiguous())

    def _add_distinct(self, values: Tensor) -> None:
        if self._distinct is not None:
            nearest = torch.searchsorted(self._distinct, values).clamp_(max=len(self._distinct) - 1)
            values = torch.cat([self._distinct, values[self._distinct[nearest] != values]])
            if len(values) == len(self._distinct):
                return
        self._distinct = values.unique()
        self._has_few = len(self._distinct) <= self.max_distinct

    def plus(self, other: ColumnSummary) -> ColumnSummary:
        """The summary of the rows of both."""
        total = ColumnSummary(self.max_distinct, self._allows_missing)
        total.low, total.high = min(self.low, other.low), max(self.high, other.high)
        total._has_missing = self._has_missing or other._has_missing
        total._has_few = self._has_few and other._has_few
        known = [part._distinct for part in (self, other) if part._distinct is not None]
        if known and total._has_few:
            total._add_distinct(torch.cat(known))
        elif known:
            total._distinct = known[0]
        return total

    def margin(self, max_bins: int, name: int) -> Margin:
        """The bins of the column with this index."""
        if self._distinct is None:
            raise ValueError(f"column {name} of x is missing in all rows: leave out the components that read it")
        if self._has_few and len(self._distinct) <= max_bins:
            return Margin(self._distinct, 0.0).with_missing(self._has_missing)
        return Margin.regular(self.low, self.high, max_bins, self._distinct).with_missing(self._has_missing)


def _add(summary: ColumnSummary, x: Tensor, column: Coordinate) -> None:
    summary.add(read(x, column), index_of(column))


def _bounds(values: Tensor) -> tuple[float, float]:
    """The smallest and the largest of ``(n,)``, NaN if there is one."""
    low, high = zip(*(torch.aminmax(values[rows]) for rows in chunks(len(values))), strict=True)
    return torch.stack(low).amin().item(), torch.stack(high).amax().item()


def validated_max_bins(max_bins: int | Sequence[int]) -> tuple[int, ...]:
    """The numbers as a tuple, all of them positive."""
    if isinstance(max_bins, str) or not isinstance(max_bins, Sequence):
        max_bins = (checks.integer("max_bins", max_bins),)
    numbers = tuple(checks.integer("max_bins", number) for number in max_bins)
    if not numbers or any(not isinstance(number, int) or number < 1 for number in numbers):
        raise ValueError(f"max_bins must hold positive integers, got {max_bins!r}")
    return numbers


def number_for(num_columns: int, numbers: tuple[int, ...]) -> int:
    """The largest number of bins of each of some columns that are read together."""
    return numbers[min(max(num_columns, 1), len(numbers)) - 1]


def inputs_of(batch: Tensor | Sequence[Tensor]) -> Tensor:
    """The inputs ``(b, D)`` of a batch, with at least one row."""
    x = batch if torch.is_tensor(batch) else batch[0]
    if not torch.is_tensor(x) or x.dim() != 2 or not x.is_floating_point():
        raise ValueError(
            "bins are made from x or batches, floating point tensors of shape (n, D) or tuples that begin with one, "
            f"got {checks.shown(x)}"
        )
    if not len(x):
        raise ValueError(f"x is empty, shape {tuple(x.shape)}: it needs at least one row")
    return x.detach()
