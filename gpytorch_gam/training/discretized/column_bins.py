"""
Columns of data as indices of a few bins, so that a model has to be evaluated at the bins only.

A column with few distinct values (a factor, an age in years, a rounded measurement) keeps them. Any other is rounded to
equidistant values over its range, as ``bam(discrete=TRUE)`` of mgcv does. Periodic components depend on a column only
through its phase, so for them the phase is rounded.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpytorch_gam.components.additive_predictor import AdditivePredictor
from gpytorch_gam.components.component_group import ComponentGroup
from gpytorch_gam.optim.processes import Processes

from ._coordinates import Coordinate, Phase, coordinates_of, index_of, read
from ._margin import Margin
from .column_ranges import BLOCK_SIZE, DEFAULT_MAX_BINS, ColumnRanges, inputs_of, number_for, validated_max_bins

# Largest number of bins of a component at which rounding errors are computed.
_MAX_CHECKED = 128

# Largest size of the grid of a component's columns; a table of this size marks the combinations that occur.
_MAX_GRID = 2**24


class _Term(NamedTuple):
    """The coordinates that a component reads, and the combinations of their bins that occur."""

    columns: tuple[Coordinate, ...]
    margins: tuple[Margin, ...]
    values: Tensor  # (U, d)
    positions: Tensor | None  # int32, maps the grid of margins to combinations, -1 for none; None if all occur

    def first(self, num_columns: int) -> _Term:
        """The term without its further columns, with values that may repeat."""
        return _Term(self.columns[:num_columns], self.margins[:num_columns], self.values[:, :num_columns], None)


class ColumnBins:
    """
    The bins to which rows are assigned, for each set of columns that a component reads.

    A column that has no more than ``max_bins`` distinct values keeps them, and nothing is lost. Any other gets
    ``max_bins`` equidistant values over its range, and entries are rounded to the nearest. The bins of several columns
    are the combinations of coarser margins that occur in the data. A component with a ``by`` column reads that column
    last. Columns of categories keep all of their values, however many there are. Missing values, where all components
    allow them, have a bin of their own, NaN. For a component that is periodic in a column, with a period that is not
    trained, the column is replaced by its phase, a ``Phase`` in :attr:`terms`. See :meth:`max_error` for the
    effect of rounding.

    Make one with :meth:`from_data` or :meth:`from_batches`, or, for data that are spread over machines, with
    :meth:`from_ranges`.

    Example:
        >>> bins = ColumnBins.from_data(x, predictor)
        >>> codes = bins.index(x)        # one row of integers for each entry of bins.terms
        >>> bins.values((0,))[codes[0]]  # column 0 of x, rounded
    """

    def __init__(self, terms: Sequence[_Term], ranges: dict[Coordinate, tuple[float, float]]) -> None:
        self._terms = {term.columns: term for term in terms}
        self._ranges = ranges

    @classmethod
    def from_data(
        cls,
        x: Tensor,
        terms: AdditivePredictor | Sequence[Sequence[Coordinate]] | None = None,
        *,
        max_bins: int | Sequence[int] = DEFAULT_MAX_BINS,
    ) -> ColumnBins:
        """
        Make bins from data in memory.

        :param x: Inputs ``(n, D)``.
        :param terms: Sets of columns that components read, or a predictor that has them; default each column alone.
        :param max_bins: Largest number of bins of a column alone, of each of two columns that are read together, of
            each of three, and so on; the last number holds for all further ones.
        :raises ValueError: If there are no rows, infinity, NaN in a column that a component without
            ``missing="marginal"`` reads, or combinations of too many columns.
        """
        return cls.from_batches([x], terms, max_bins=max_bins)

    @classmethod
    def from_batches(
        cls,
        batches: Iterable[Tensor | Sequence[Tensor]],
        terms: AdditivePredictor | Sequence[Sequence[Coordinate]] | None = None,
        *,
        max_bins: int | Sequence[int] = DEFAULT_MAX_BINS,
    ) -> ColumnBins:
        """
        Make bins from batches of rows, which are read once, and a second time if components read several columns
        together.

        :param batches: Inputs ``(b, D)``, or tuples that begin with them, such as a ``DataLoader`` gives.
        :param terms: See :meth:`from_data`.
        :param max_bins: See :meth:`from_data`.
        :raises ValueError: See :meth:`from_data`.
        """
        ranges = ColumnRanges.from_batches(batches, terms, max_bins=max_bins)
        margins = ranges.margins()
        return cls._of(ranges, margins, _occurring(batches, ranges.columns, margins))

    @classmethod
    def from_ranges(cls, ranges: ColumnRanges) -> ColumnBins:
        """
        Make bins from the ranges of the columns, without the rows. All combinations of columns that are read together
        count as occurring.

        :param ranges: The ranges of all of the data.
        :raises TypeError: If they are something else.
        :raises ValueError: If there are too many combinations.
        """
        if not isinstance(ranges, ColumnRanges):
            raise TypeError(f"ranges must be ColumnRanges, such as ColumnRanges.from_batches(...), got {ranges!r}")
        margins = ranges.margins()
        sizes = _grid_sizes(ranges.columns, margins)
        every = [
            torch.ones(size, dtype=torch.bool) if len(m) > 1 else None for size, m in zip(sizes, margins, strict=True)
        ]
        return cls._of(ranges, margins, every)

    @classmethod
    def _of(
        cls, ranges: ColumnRanges, margins: Sequence[tuple[Margin, ...]], occurring: Sequence[Tensor | None]
    ) -> ColumnBins:
        terms = zip(ranges.columns, margins, occurring, strict=True)
        return cls(
            [_Term(columns, margin, *_combinations(margin, seen)) for columns, margin, seen in terms], ranges.bounds()
        )

    def state(self) -> dict[str, Any]:
        """The bins as lists of numbers and tensors, for a file."""
        return {
            "terms": [
                {
                    "columns": [_as_plain(column) for column in term.columns],
                    "margins": [list(margin) for margin in term.margins],
                    "values": term.values,
                    "positions": term.positions,
                }
                for term in self._terms.values()
            ],
            "ranges": [[_as_plain(column), *bounds] for column, bounds in self._ranges.items()],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> ColumnBins:
        """
        The bins of a file.

        :param state: What :meth:`state` has returned.
        """
        terms = [
            _Term(
                tuple(_as_coordinate(column) for column in term["columns"]),
                tuple(Margin(*margin) for margin in term["margins"]),
                term["values"],
                term["positions"],
            )
            for term in state["terms"]
        ]
        return cls(terms, {_as_coordinate(column): (low, high) for column, low, high in state["ranges"]})

    def difference(self, other: ColumnBins) -> str | None:
        """
        In words, how other bins differ; None if they are the same.

        :param other: The other bins.
        """
        if self.terms != other.terms:
            return f"for columns {list(self.terms)} and {list(other.terms)}"
        for columns in self.terms:
            one, two = self._term(columns), other._term(columns)
            if len(one.values) != len(two.values):
                return f"{len(one.values)} and {len(two.values)} of columns {columns}"
            if not torch.allclose(one.values.cpu(), two.values.cpu(), rtol=0.0, atol=0.0, equal_nan=True):
                return f"of other values of columns {columns}"
        return None

    @property
    def terms(self) -> tuple[tuple[Coordinate, ...], ...]:
        """The sets of columns, in the order of the rows of :meth:`index`."""
        return tuple(self._terms)

    def positions(self, group: ComponentGroup) -> list[int]:
        """
        The index in :attr:`terms` of the set of columns that each component of a group reads.

        :param group: The group of components.
        :raises ValueError: If there are no bins for a component.
        """
        places = {columns: position for position, columns in enumerate(self._terms)}
        found = []
        for coordinates in coordinates_of(group):
            known = coordinates if coordinates in places else tuple(map(index_of, coordinates))
            found.append(places[self._term(known).columns])
        return found

    @staticmethod
    def coordinates(x: Tensor, columns: Sequence[Coordinate]) -> Tensor:
        """
        The columns, or phases of columns, of ``x`` ``(n, D)`` that a component of :attr:`terms` reads, ``(n, d)``.
        """
        if all(isinstance(column, int) for column in columns):
            return x[:, list(columns)]
        return torch.stack([read(x, column) for column in columns], dim=-1)

    def example(self, num_columns: int) -> Tensor:
        """
        A row of inputs ``(1, D)`` in the bins.

        :param num_columns: The least number D of columns; those without bins are zero.
        """
        values = {
            index_of(column): value.item()
            for term in self._terms.values()
            for column, value in zip(term.columns, term.values[0], strict=True)
        }
        x = torch.zeros(1, max(num_columns, 1, *(column + 1 for column in values)))
        for column, value in values.items():
            x[0, column] = value
        return x

    def _term(self, columns: Sequence[Coordinate]) -> _Term:
        try:
            return self._terms[tuple(columns)]
        except KeyError:
            raise ValueError(f"there are no bins for columns {tuple(columns)}, only for {list(self.terms)}") from None

    def num_bins(self, columns: Sequence[Coordinate]) -> int:
        """The number of bins of one of :attr:`terms`."""
        return len(self._term(columns).values)

    def values(self, columns: Sequence[Coordinate]) -> Tensor:
        """The bins of one of :attr:`terms`, ``(U, d)``."""
        return self._term(columns).values

    def is_exact(self, columns: Sequence[Coordinate]) -> bool:
        """Whether the data lie on the bins of one of :attr:`terms`, so that nothing is rounded."""
        return not any(self.is_rounded(columns))

    def is_rounded(self, columns: Sequence[Coordinate]) -> tuple[bool, ...]:
        """Which columns of one of :attr:`terms` are rounded."""
        return tuple(margin.step > 0 for margin in self._term(columns).margins)

    @torch.no_grad()
    def index(self, x: Tensor) -> list[Tensor]:
        """
        The bin of each row, in the smaller of int16 and int32 that can hold it.

        :param x: Inputs ``(n, D)``.
        :return: The indices ``(n,)`` for each of :attr:`terms`.
        :raises ValueError: For values outside the range, or values that are not among exact bins.
        """
        cache: dict[tuple[Coordinate, int, float], Tensor] = {}
        codes = []
        for term in self._terms.values():
            position = _position_in_grid(x, term.columns, term.margins, cache)
            if term.positions is not None:
                position = term.positions[position]
                if (position < 0).any():
                    raise ValueError(
                        f"{int((position < 0).sum())} of {len(x)} rows have combinations of columns {term.columns} "
                        "that did not occur in the data from which the bins were made"
                    )
            small = len(term.values) <= torch.iinfo(torch.int16).max
            codes.append(position.to(torch.int16) if small else position)
        return codes

    def coarser(self, max_bins: int | Sequence[int]) -> ColumnBins:
        """
        Bins of the same columns with fewer values where these are rounded. Exact ones stay, and all combinations of
        columns count as occurring.

        :param max_bins: The largest numbers of bins, as in :meth:`from_data`.
        """
        numbers = validated_max_bins(max_bins)
        terms = []
        for term in self._terms.values():
            number = number_for(len(term.columns), numbers)
            margins = tuple(
                margin.coarser(*self._ranges[column], number)
                for column, margin in zip(term.columns, term.margins, strict=True)
            )
            is_same = all(new is old for new, old in zip(margins, term.margins, strict=True))
            terms.append(term if is_same else _Term(term.columns, margins, _grid(margins), None))
        return ColumnBins(terms, self._ranges)

    @torch.no_grad()
    def max_error(self, predictor: AdditivePredictor) -> dict[str, float]:
        r"""
        Largest rounding error of each component: the prior standard deviation of :math:`f_c(\mathbf x) - f_c(\ell)`,
        with :math:`\mathbf x` half a step from its bin :math:`\ell` in every rounded column and :math:`\ell` where that
        is largest, relative to the largest prior standard deviation of :math:`f_c` at the bins,

        .. math::
            \sqrt{\max_\ell \big( k_c(\mathbf x, \mathbf x) + k_c(\ell, \ell) - 2 k_c(\mathbf x, \ell) \big)} .

        It is 0 where bins are exact, and is computed at no more than 128 bins of a component. Where rows fill the
        intervals evenly, errors of opposite sign cancel in sums over the data, so fits lose far less, in proportion to
        the square of the step.

        :param predictor: Components whose columns have bins; their multipliers are ignored.
        :return: The error of each component, by name.
        """
        return {name: error for group in predictor.groups for name, error in self._errors(group).items()}

    def _errors(self, group: ComponentGroup) -> dict[str, float]:
        """The errors of all components of a group, computed together."""
        terms = [list(self._terms.values())[position].first(group.input_dim) for position in self.positions(group)]
        if all(not margin.step for term in terms for margin in term.margins):
            return dict.fromkeys(group.names, 0.0)
        bins = stacked([_thinned(term.values[~term.values.isnan().any(-1)]).double() for term in terms])
        halves = bins.new_tensor([[0.5 * margin.step for margin in term.margins] for term in terms]).unsqueeze(-2)
        bounds = bins.new_tensor([[self._ranges[column] for column in term.columns] for term in terms]).unsqueeze(-3)
        # Half a step up from a bin and half a step down from the next are nearly the same, so one direction suffices.
        signs = list(itertools.product((1.0,), *[(1.0, -1.0)] * (bins.shape[-1] - 1)))
        moved = torch.cat([bins + bins.new_tensor(each) * halves for each in signs], dim=-2)
        moved = torch.minimum(torch.maximum(moved, bounds[..., 0]), bounds[..., 1])
        fixed = bins.repeat(1, len(signs), 1)
        pairs = torch.cat([fixed, moved, moved], dim=-2), torch.cat([fixed, moved, fixed], dim=-2)
        prior, there, between = _paired_kernel(group, *pairs).chunk(3, dim=-1)
        largest = (prior + there - 2.0 * between).amax(-1)
        relative = (largest.clamp_min(0.0) / prior.amax(-1)).sqrt()
        return dict(zip(group.names, relative.tolist(), strict=True))

    def __repr__(self) -> str:
        parts = [f"{term}: {self.num_bins(term)}{' exact' if self.is_exact(term) else ''}" for term in self.terms]
        return f"ColumnBins({', '.join(parts)})"


def bins_of_processes(
    batches: Iterable[Any], predictor: AdditivePredictor, max_bins: int | Sequence[int], processes: Processes
) -> ColumnBins:
    """The bins of the rows of all processes, each with batches of its own that can be gone through several times."""
    with processes.sharing_errors("read the ranges of its columns", predictor.device):
        own = ColumnRanges.from_batches(batches, predictor, max_bins=max_bins)
    ranges = functools.reduce(operator.add, processes.gather_objects(own))
    margins = ranges.margins()
    with processes.sharing_errors("read its combinations of columns", predictor.device):
        seen = _occurring(batches, ranges.columns, margins)
    marks = iter(processes.sum([each.double() for each in seen if each is not None]))
    return ColumnBins._of(ranges, margins, [None if each is None else next(marks) > 0 for each in seen])


def stacked(bins: Sequence[Tensor]) -> Tensor:
    """The bins ``(U_t, d)`` of several components for a batched kernel, ``(C, U, d)``; shorter lists repeat a bin."""
    size = max(map(len, bins))
    return torch.stack([torch.cat([each, each[:1].expand(size - len(each), -1)]) for each in bins])


def _thinned(values: Tensor) -> Tensor:
    """Some bins of the whole range; with an odd stride they meet all values of a grid with sides of powers of two."""
    stride = -(-len(values) // _MAX_CHECKED) | 1
    return values[::stride]


def _paired_kernel(group: ComponentGroup, left: Tensor, right: Tensor) -> Tensor:
    """The components' kernels between corresponding rows of ``left`` and ``right``, ``(C_g, U)``."""
    return group.kernel(left, right, diag=True).double().expand(left.shape[:-1])


def _as_plain(coordinate: Coordinate) -> int | list[float]:
    return coordinate if isinstance(coordinate, int) else list(coordinate)


def _as_coordinate(plain: int | list[Any]) -> Coordinate:
    return plain if isinstance(plain, int) else Phase(*plain)


def _grid_sizes(columns: Sequence[tuple[Coordinate, ...]], margins: Sequence[tuple[Margin, ...]]) -> list[int]:
    """The number of combinations of the margins' values for each set of columns; a ValueError if there are too many."""
    sizes = [torch.Size([len(margin.values) for margin in margins_of]).numel() for margins_of in margins]
    for names, size in zip(columns, sizes, strict=True):
        if size > _MAX_GRID:
            raise ValueError(f"columns {names} have {size} combinations of bins: lower max_bins for {len(names)}")
    return sizes


def _occurring(
    batches: Iterable[Tensor | Sequence[Tensor]],
    columns: Sequence[tuple[Coordinate, ...]],
    margins: Sequence[tuple[Margin, ...]],
) -> list[Tensor | None]:
    """For each set of several columns, which positions in the grid of its margins occur; None for single columns."""
    grids = _grid_sizes(columns, margins)
    seen = {
        index: torch.zeros(grids[index], dtype=torch.bool, device=margins[index][0].values.device)
        for index, names in enumerate(columns)
        if len(names) > 1
    }
    if seen:
        for batch in batches:
            for rows in inputs_of(batch).split(BLOCK_SIZE):
                for index, marks in seen.items():
                    if not marks.all():
                        marks[_position_in_grid(rows, columns[index], margins[index], {})] = True
        if not all(marks.any() for marks in seen.values()):
            raise ValueError("batches can be gone through only once: pass a DataLoader or a list, not a generator")
    return [seen.get(index) for index in range(len(columns))]


def _position_in_grid(
    x: Tensor,
    columns: tuple[Coordinate, ...],
    margins: tuple[Margin, ...],
    cache: dict[tuple[Coordinate, int, float], Tensor],
) -> Tensor:
    """The position of each row in the grid of the margins of some columns, in int32."""
    position = torch.zeros(len(x), dtype=torch.int32, device=x.device)
    for column, margin in zip(columns, margins, strict=True):
        key = (column, len(margin.values), margin.step)
        if key not in cache:
            cache[key] = margin.codes(read(x, column), f"column {index_of(column)}")
        position = position * len(margin.values) + cache[key]
    return position


def _combinations(margins: tuple[Margin, ...], seen: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The values ``(U, d)`` of the combinations that occur, and the map from the grid to them, None if all occur."""
    if not margins:
        return torch.zeros(1, 0), None
    if seen is None:
        return margins[0].values.unsqueeze(-1), None
    grid = _grid(margins)
    if seen.all():
        return grid, None
    positions = torch.full((len(grid),), -1, dtype=torch.int32, device=grid.device)
    positions[seen] = torch.arange(int(seen.sum()), dtype=torch.int32, device=grid.device)
    return grid[seen], positions


def _grid(margins: tuple[Margin, ...]) -> Tensor:
    """All combinations of the margins' values, ``(U, d)``, the last column varying fastest."""
    axes = torch.meshgrid(*(margin.values for margin in margins), indexing="ij")
    return torch.stack(axes, dim=-1).flatten(0, -2)
