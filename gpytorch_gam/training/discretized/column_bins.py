"""
Columns of data as indices of a few bins, so that a model has to be evaluated at the bins only.

A column with few distinct values (a factor, an age in years, a rounded measurement) keeps them. Any other is rounded to
equidistant values over its range, as ``bam(discrete=TRUE)`` of mgcv does. Periodic components depend on a column only
through its phase, so for them the phase is rounded.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from gpytorch.kernels import AdditiveKernel, CosineKernel, Kernel, PeriodicKernel, ProductKernel, ScaleKernel
from torch import Tensor

from gpytorch_gam import _checks as checks
from gpytorch_gam.components.additive_predictor import AdditivePredictor
from gpytorch_gam.components.component_group import ComponentGroup
from gpytorch_gam.kernels import ANOVAKernel, CentredKernel, LevelKernel, OrdinalKernel

# Largest number of bins of a column that a component reads alone, of each of two columns read together, and of more.
DEFAULT_MAX_BINS = (1000, 100, 25)

# Number of rows searched for new values at a time.
_BLOCK_SIZE = 16384

# Largest number of bins of a component at which rounding errors are computed.
_MAX_CHECKED = 128

# Largest size of the grid of a component's columns; a table of this size marks the combinations that occur.
_MAX_GRID = 2**24


class Phase(NamedTuple):
    """A column modulo a period, which is all that a periodic component depends on."""

    column: int
    period: float


#: An input of a component: a column, or the phase of one.
Coordinate = int | Phase


class Margin(NamedTuple):
    """The bins of one column."""

    values: Tensor  # ascending, then NaN if entries may be missing, (u,)
    step: float  # distance of the values; 0 if they are the column's distinct values, and nothing is rounded
    has_missing: bool = False

    def codes(self, column: Tensor, name: str) -> Tensor:
        """The index of each entry's bin, ``(n,)`` in int32. Entries that no bin holds raise a ValueError."""
        if self.has_missing:
            is_missing = column.isnan()
            known = self.without_missing()
            codes = known.codes(torch.where(is_missing, known.values[0], column), name)
            return codes.masked_fill_(is_missing, len(known.values))
        if not self.step:
            codes = torch.searchsorted(self.values, column.contiguous(), out_int32=True).clamp_(
                max=len(self.values) - 1
            )
            self._refuse(self.values[codes] != column, column, f"are not among the {len(self.values)} bins of {name}")
            return codes
        low, high = self.values[0].item(), self.values[-1].item()
        smallest, largest = torch.aminmax(column)
        if not (smallest >= low and largest <= high):
            self._refuse(~((column >= low) & (column <= high)), column, f"are outside the range of {name}")
        scaled = (column - low).mul_(1.0 / self.step).add_(0.5)  # the nearest bin: truncated after adding a half
        return scaled.to(torch.int32).clamp_(max=len(self.values) - 1)

    @classmethod
    def regular(cls, low: float, high: float, number: int, like: Tensor) -> Margin:
        """``number`` equidistant bins, in the dtype of ``like``."""
        if number < 2:
            raise ValueError(f"max_bins must be at least 2 for columns that are rounded, got {number}")
        # Computed in float64, so that the ends are exactly those of the range in any dtype.
        values = torch.linspace(low, high, number, dtype=torch.float64, device=like.device).to(like.dtype)
        values[0], values[-1] = low, high
        return cls(values, (high - low) / (number - 1))

    def coarser(self, low: float, high: float, number: int) -> Margin:
        """At most ``number`` bins over a range; distinct values and the bin of missing entries stay."""
        is_fine = self.step > 0 and len(self.values) - self.has_missing > number
        return Margin.regular(low, high, number, self.values)._with_missing(self.has_missing) if is_fine else self

    def without_missing(self) -> Margin:
        """The bins of the entries that are not missing."""
        return Margin(self.values[: len(self.values) - self.has_missing], self.step)

    def _with_missing(self, has_missing: bool) -> Margin:
        if not has_missing:
            return self
        return Margin(torch.cat([self.values, self.values.new_full((1,), math.nan)]), self.step, has_missing=True)

    def _refuse(self, bad: Tensor, column: Tensor, what: str) -> None:
        if bad.any():
            raise ValueError(
                f"{int(bad.sum())} of {len(column)} entries (the first: {column[bad][0].item()!r}) {what}, "
                f"[{self.values[0].item()!r}, {self.values[-1].item()!r}]: make bins from all of the data"
            )


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
    trained, the column is replaced by its phase, a :class:`Phase` in :attr:`terms`. See :meth:`max_error` for the
    effect of rounding.

    Make one with :meth:`from_data` or :meth:`from_batches`.

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
        numbers = _validated_max_bins(max_bins)
        columns: list[tuple[Coordinate, ...]] | None = None
        groups = list(terms.groups) if isinstance(terms, AdditivePredictor) else []
        given = [row for group in groups for row in _coordinates_of(group)] if groups else terms
        optional, categories = _optional_columns(groups), _category_columns(groups)
        summaries: dict[Coordinate, _ColumnSummary] = {}
        for batch in batches:
            x = _inputs_of(batch)
            columns = _columns_of(given, x) if columns is None else columns
            for column in dict.fromkeys(column for term in columns for column in term):
                most = sys.maxsize if column in categories else max(numbers)
                summary = summaries.setdefault(column, _ColumnSummary(most, _index(column) in optional))
                summary.add(_read(x, column), _index(column))
        if columns is None:
            raise ValueError("there are no rows to take bins from")
        margins = [
            tuple(
                summaries[column].margin(
                    sys.maxsize if column in categories else _number_for(len(term), numbers), _index(column)
                )
                for column in term
            )
            for term in columns
        ]
        occurring = _occurring(batches, columns, margins)
        ranges = {column: (summary.low, summary.high) for column, summary in summaries.items()}
        made = [
            _Term(term, margin, *_combinations(margin, seen))
            for term, margin, seen in zip(columns, margins, occurring, strict=True)
        ]
        return cls(made, ranges)

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
        for coordinates in _coordinates_of(group):
            known = coordinates if coordinates in places else tuple(map(_index, coordinates))
            found.append(places[self._term(known).columns])
        return found

    @staticmethod
    def coordinates(x: Tensor, columns: Sequence[Coordinate]) -> Tensor:
        """
        The columns, or phases of columns, of ``x`` ``(n, D)`` that a component of :attr:`terms` reads, ``(n, d)``.
        """
        if all(isinstance(column, int) for column in columns):
            return x[:, list(columns)]
        return torch.stack([_read(x, column) for column in columns], dim=-1)

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
        numbers = _validated_max_bins(max_bins)
        terms = []
        for term in self._terms.values():
            number = _number_for(len(term.columns), numbers)
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


def _index(coordinate: Coordinate) -> int:
    """The column of a coordinate."""
    return coordinate if isinstance(coordinate, int) else coordinate.column


def _read(x: Tensor, coordinate: Coordinate) -> Tensor:
    """The values of a coordinate in the rows, ``(n,)``."""
    if isinstance(coordinate, int):
        return x[:, coordinate]
    # In float64, because a column of many periods has few digits left for its phase.
    return torch.remainder(x[:, coordinate.column].double(), coordinate.period).to(x.dtype)


class _ColumnSummary:
    """The range of a column, and its distinct values while there are at most ``max_distinct``."""

    def __init__(self, max_distinct: int, allows_missing: bool) -> None:
        self._max_distinct, self._allows_missing = max_distinct, allows_missing
        self._distinct: Tensor | None = None
        self._has_few, self._has_missing = True, False
        self._like: Tensor | None = None
        self.low, self.high = float("inf"), float("-inf")

    def add(self, values: Tensor, name: int) -> None:
        smallest, largest = (bound.item() for bound in torch.aminmax(values))
        if self._allows_missing and math.isnan(smallest):
            self._has_missing = True
            values = values[~values.isnan()]
            if not len(values):
                return
            smallest, largest = (bound.item() for bound in torch.aminmax(values))
        if not (smallest > float("-inf") and largest < float("inf")):
            count = int((~torch.isfinite(values)).sum())
            remedy = "" if self._allows_missing else ', or give the components that read it missing="marginal"'
            raise ValueError(
                f"column {name} of x has NaN or infinity in {count} of {len(values)} rows: drop or impute these rows"
                + remedy
            )
        self.low, self.high, self._like = min(self.low, smallest), max(self.high, largest), values[:1]
        for block in values.split(_BLOCK_SIZE):
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
        self._has_few = len(self._distinct) <= self._max_distinct

    def margin(self, max_bins: int, name: int) -> Margin:
        if self._distinct is None or self._like is None:
            raise ValueError(f"column {name} of x is missing in all rows: leave out the components that read it")
        if self._has_few and len(self._distinct) <= max_bins:
            return Margin(self._distinct, 0.0)._with_missing(self._has_missing)
        return Margin.regular(self.low, self.high, max_bins, self._like)._with_missing(self._has_missing)


def _validated_max_bins(max_bins: int | Sequence[int]) -> tuple[int, ...]:
    if isinstance(max_bins, str) or not isinstance(max_bins, Sequence):
        max_bins = (checks.integer("max_bins", max_bins),)
    numbers = tuple(checks.integer("max_bins", number) for number in max_bins)
    if not numbers or any(not isinstance(number, int) or number < 1 for number in numbers):
        raise ValueError(f"max_bins must hold positive integers, got {max_bins!r}")
    return numbers


def _number_for(num_columns: int, numbers: tuple[int, ...]) -> int:
    return numbers[min(max(num_columns, 1), len(numbers)) - 1]


def _inputs_of(batch: Tensor | Sequence[Tensor]) -> Tensor:
    x = batch if torch.is_tensor(batch) else batch[0]
    if not torch.is_tensor(x) or x.dim() != 2 or not x.is_floating_point():
        raise ValueError(
            "bins are made from x or batches, floating point tensors of shape (n, D) or tuples that begin with one, "
            f"got {checks.shown(x)}"
        )
    if not len(x):
        raise ValueError(f"x is empty, shape {tuple(x.shape)}: it needs at least one row")
    return x.detach()


def _columns_of(terms: Sequence[Sequence[Coordinate]] | None, x: Tensor) -> list[tuple[Coordinate, ...]]:
    """The distinct sets of coordinates, in order of appearance."""
    terms = [[column] for column in range(x.shape[-1])] if terms is None else terms
    found = list(dict.fromkeys(tuple(columns) for columns in terms))
    beyond = [columns for columns in found if any(not 0 <= _index(column) < x.shape[-1] for column in columns)]
    if beyond:
        raise ValueError(f"terms name columns {beyond}, but x has {x.shape[-1]} columns")
    return found


def _optional_columns(groups: Sequence[ComponentGroup]) -> set[int]:
    """The columns whose values may be missing in all components that read them."""
    optional: set[int] = set()
    required: set[int] = set()
    for group in groups:
        (optional if group.missing == "marginal" else required).update(group.columns.flatten().tolist())
        required.update(column for column in group.multiplier_columns if column is not None)
    return optional - required


def _category_columns(groups: Sequence[ComponentGroup]) -> set[int]:
    """The columns of categories, which are not rounded: between the levels there is nothing."""
    found: set[int] = set()
    for group in groups:
        found.update(group.levels)
        indicated = zip(group.multiplier_columns, group.multiplier_levels, strict=True)
        found.update(column for column, level in indicated if column is not None and level is not None)
        for position in _category_positions(group):
            found.update(group.columns[:, position].tolist())
    return found


def _category_positions(group: ComponentGroup) -> set[int]:
    """The positions among a component's columns that hold categories for the kernel."""
    leaves = _leaves(group.kernel, list(range(group.input_dim)))
    return {position for leaf, read in leaves if isinstance(leaf, LevelKernel | OrdinalKernel) for position in read}


def _leaves(kernel: Kernel, positions: list[int]) -> Iterator[tuple[Kernel, list[int]]]:
    """The kernels of which a kernel is composed, with the positions of the component's columns that each reads."""
    if kernel.active_dims is not None:
        positions = [positions[index] for index in kernel.active_dims.tolist()]
    while isinstance(kernel, ScaleKernel | ANOVAKernel):  # these have taken over the active_dims of the base kernel
        kernel = kernel.base_kernel
    if isinstance(kernel, CentredKernel):
        yield from _leaves(kernel.base_kernel, positions)
    elif isinstance(kernel, ProductKernel | AdditiveKernel):
        for part in kernel.kernels:
            yield from _leaves(part, positions)
    else:
        yield kernel, positions


def _coordinates_of(group: ComponentGroup) -> list[tuple[Coordinate, ...]]:
    """The coordinates that each component of a group reads, that of its ``by`` column last."""
    by_column = [_periods(group, position) for position in range(group.input_dim)]
    found = []
    for index, (columns, by) in enumerate(zip(group.columns.tolist(), group.multiplier_columns, strict=True)):
        periods = [periods[index] for periods in by_column]
        read = tuple(c if period is None else Phase(c, period) for c, period in zip(columns, periods, strict=True))
        found.append(read if by is None else (*read, by))
    return found


def _periods(group: ComponentGroup, position: int) -> list[float] | list[None]:
    """The period of each component in one of its columns; None where it has none or the period is trained."""
    none = [None] * group.num_components
    found: list[float] | None = None
    for leaf, read in _leaves(group.kernel, list(range(group.input_dim))):
        if position not in read:
            continue
        periods = _periods_of_leaf(leaf, read.index(position), len(read), group.num_components)
        if periods is None or found not in (None, periods):
            return none
        found = periods
    return none if found is None else found


def _periods_of_leaf(kernel: Kernel, index: int, num_columns: int, num_components: int) -> list[float] | None:
    """The fixed period of a kernel in one of the columns that it reads, for each component; None if there is none."""
    if isinstance(kernel, PeriodicKernel):
        factor = 1.0
    elif isinstance(kernel, CosineKernel) and num_columns == 1:
        factor = 2.0  # the kernel changes its sign after GPyTorch's `period_length`
    else:
        return None
    if kernel.raw_period_length.requires_grad:
        return None
    periods = factor * kernel.period_length.detach().double().squeeze(-2)  # (*batch, 1 or columns)
    return periods.expand(num_components, num_columns)[:, index].tolist()


def _occurring(
    batches: Iterable[Tensor | Sequence[Tensor]],
    columns: list[tuple[Coordinate, ...]],
    margins: list[tuple[Margin, ...]],
) -> list[Tensor | None]:
    """For each set of several columns, which positions in the grid of its margins occur; None for single columns."""
    grids = [torch.Size([len(margin.values) for margin in margins_of]).numel() for margins_of in margins]
    for names, size in zip(columns, grids, strict=True):
        if size > _MAX_GRID:
            raise ValueError(f"columns {names} have {size} combinations of bins: lower max_bins for {len(names)}")
    seen = {
        index: torch.zeros(grids[index], dtype=torch.bool, device=margins[index][0].values.device)
        for index, names in enumerate(columns)
        if len(names) > 1
    }
    if seen:
        for batch in batches:
            for rows in _inputs_of(batch).split(_BLOCK_SIZE):
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
            cache[key] = margin.codes(_read(x, column), f"column {_index(column)}")
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
