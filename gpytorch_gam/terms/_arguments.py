"""What the factories of terms share: arguments are checked, ranges found, kernels and grids made."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from gpytorch.kernels import Kernel, ScaleKernel
from torch import Tensor

from gpytorch_gam import _checks as checks
from gpytorch_gam.components.component_group import default_names
from gpytorch_gam.components.levels import Levels, listed
from gpytorch_gam.kernels import ANOVAKernel, Measure, Uniform
from gpytorch_gam.kernels.bounded_kernels import BoundedMaternKernel, BoundedRBFKernel, PrintableInterval
from gpytorch_gam.parameters.initial_values import note_initial_value
from gpytorch_gam.parameters.positive_constraint import positive

LevelsLike = Levels | int | Sequence[float] | Sequence[str] | Tensor
PerColumn = float | Sequence[float] | Tensor

_MATERN_SMOOTHNESS = {"matern12": 0.5, "matern32": 1.5, "matern52": 2.5}
KERNELS = ("rbf", *_MATERN_SMOOTHNESS)

# Prior variance of the levels of a factor, where the predictor varies by one.
FACTOR_VARIANCE = 25.0

# In ranges of the input.
INITIAL_LENGTHSCALE = 0.25
SHORTEST_LENGTHSCALE, LONGEST_LENGTHSCALE = 0.01, 10.0

# Largest differences of distribution functions from that of a uniform column. Normal columns have .2 to .3, one with an
# outlier at twenty ranges .95.
_EVEN, _UNEVEN = 0.3, 0.6

# Share of the values beyond each end of the quantiles that tell where the bulk is.
_TAIL = 0.05

# Knots of the distribution function that are kept, and values of a column that are looked at, or twice as many.
_NUM_PLACES, _MOST_VALUES = 2049, 2**16


@dataclass(frozen=True)
class Ranges:
    """
    Where the values of some columns lie, in float64.

    :ivar low: ``(C,)`` or ``(C, d)``.
    :ivar high: of the same shape, above ``low``.
    :ivar bulk_low: the lower end of the part that holds the bulk of the values, of the same shape.
    :ivar bulk_high: the upper end of that part.
    :ivar places: ascending, from the lower end to the upper one, ``(C, K)`` or ``(C, d, K)``: equally spaced, or denser
        where there are more values.
    """

    low: Tensor
    high: Tensor
    bulk_low: Tensor
    bulk_high: Tensor
    places: Tensor

    @classmethod
    def between(cls, low: Tensor, high: Tensor) -> Ranges:
        """
        Ranges of which no more is known than their ends.

        :param low: ``(C,)`` or ``(C, d)``.
        :param high: Of the same shape.
        """
        return cls(low, high, low, high, torch.stack([low, high], -1))

    @classmethod
    def stack(cls, parts: Sequence[Ranges]) -> Ranges:
        """
        Ranges of shape ``(C, d)`` from C ones of shape ``(d,)``.

        :param parts: One for each component.
        """
        return cls(*(torch.stack([getattr(part, field.name) for part in parts]) for field in fields(cls)))

    @property
    def width(self) -> Tensor:
        """Difference of the ends."""
        return self.high - self.low

    @property
    def bulk_width(self) -> Tensor:
        """Difference of the ends of the bulk."""
        return self.bulk_high - self.bulk_low

    def points(self, num: int) -> Tensor:
        """
        Points on each range, both ends included, ``(*shape, num)``.

        :param num: Their number.
        """
        position = torch.linspace(0.0, self.places.shape[-1] - 1, num, dtype=torch.float64)
        before = position.floor().clamp(max=self.places.shape[-1] - 2).long()
        start, end = self.places[..., before], self.places[..., before + 1]
        return start + (end - start) * (position - before)

    def __getitem__(self, index: Any) -> Ranges:
        return Ranges(*(getattr(self, field.name)[index] for field in fields(self)))


class Multipliers(NamedTuple):
    """
    The components that a ``by`` argument makes of some columns.

    :ivar columns: the column of each component, one sequence each.
    :ivar position: which of the given columns that is, ``(C,)``.
    :ivar group_arguments: for :class:`ComponentGroup`.
    """

    columns: list[list[int]]
    position: Tensor
    group_arguments: dict[str, Any]

    @property
    def num_components(self) -> int:
        """Number of components."""
        return len(self.columns)

    def names(self, term: str, predictor: int) -> tuple[str, ...]:
        """
        Names of the components that say the kind of the term, such as ``linear(x0)``.

        :param term: The kind.
        :param predictor: The predictor that the components belong to.
        """
        none = [None] * self.num_components
        by, by_levels = self.group_arguments.get("by"), self.group_arguments.get("by_levels", none)
        levels = self.group_arguments.get("levels", {})
        return default_names(self.columns, [by] * self.num_components, by_levels, levels, predictor, term)


def checked_columns(term: str, columns: int | Sequence[int], argument: str = "columns") -> list[int]:
    """
    Column indices as a list.

    :param term: Name of the factory, for messages.
    :param columns: One column or several.
    :param argument: Name of the argument, for messages.
    :raises ValueError: If there are none, or they are not non-negative integers.
    """
    given = _as_list(columns)
    if not given or not all(_is_index(column) for column in given):
        raise ValueError(f"{argument} of {term} must be a column index (0, 1, ...) or several, got {columns!r}")
    return [int(column) for column in given]


def checked_column(term: str, column: int, argument: str = "column") -> int:
    """
    A column index.

    :param term: Name of the factory, for messages.
    :param column: The index.
    :param argument: Name of the argument, for messages.
    :raises ValueError: If it is not a non-negative integer.
    """
    if not _is_index(column):
        raise ValueError(f"{argument} of {term} must be a column index (0, 1, ...), got {column!r}")
    return int(column)


def checked_column_sets(term: str, columns: Sequence[int] | Sequence[Sequence[int]], least: int) -> list[list[int]]:
    """
    The columns of each of several components, equally many and without repetition.

    :param term: Name of the factory, for messages.
    :param columns: The columns of one component, or one sequence a component.
    :param least: Number of columns that a component has at least.
    :raises ValueError: If they are not.
    """
    given = _as_list(columns)
    are_single = all(_is_index(entry) for entry in given)
    sets = [checked_columns(term, entry) for entry in ([given] if are_single else given)]
    if len({len(entry) for entry in sets}) > 1 or len(sets[0]) < least or any(len(set(s)) < len(s) for s in sets):
        raise ValueError(
            f"columns of {term} must name {least} or more different columns for each component (equally many for all "
            f"of one call), got {columns!r}"
        )
    return sets


def data_columns(term: str, x: Tensor, columns: Sequence[int]) -> Tensor:
    """
    Columns of the training inputs in float64, on the CPU.

    :param term: Name of the factory, for messages.
    :param x: ``(*batch, n, D)``, or ``(n,)`` for a single column.
    :param columns: Which.
    :return: ``(n, C)``, the rows of all batches.
    :raises TypeError: If ``x`` is no tensor or array of numbers.
    :raises ValueError: If ``x`` has no rows or too few columns.
    """
    values = checks.as_numbers(term, "x", x).detach().cpu()
    values = values.unsqueeze(-1) if values.dim() == 1 else values
    if values.dim() < 2 or values.numel() == 0:
        raise ValueError(f"x of {term} must be inputs (n, D) with one row or more, got shape {tuple(values.shape)}")
    if max(columns) >= values.shape[-1]:
        raise ValueError(f"{term} reads column {max(columns)}, but x has {values.shape[-1]} columns")
    return values.flatten(0, -2)[:, list(columns)].double()


def column_ranges(
    term: str, columns: Sequence[int], x: Tensor | None, low: PerColumn | None, high: PerColumn | None
) -> Ranges:
    """
    The ranges of columns: as given, or those of the finite values in ``x``.

    :param term: Name of the factory, for messages.
    :param columns: Which.
    :param x: Training inputs ``(*batch, n, D)``; not needed with both ends.
    :param low: Lower end, or one a column.
    :param high: Upper end, or one a column.
    :return: Of shape ``(C,)``. Where ``x`` has long tails, with the bulk of its values told from these.
    :raises ValueError: If there is nothing to take them from, or a column has no finite values, or only one.
    """
    if x is None and (low is None or high is None):
        raise ValueError(
            f"{term} needs the training inputs x, from which it takes the ranges of columns {list(columns)}, or both "
            "low and high"
        )
    lows, highs = (_per_column(term, name, end, columns) for name, end in (("low", low), ("high", high)))
    values = None if x is None else data_columns(term, x, columns)
    if lows is None or highs is None:
        assert values is not None
        extremes = _extremes(term, columns, values)
        lows, highs = extremes[0] if lows is None else lows, extremes[1] if highs is None else highs
    for column, lower, upper in zip(columns, lows.tolist(), highs.tolist(), strict=True):
        if lower == upper and low is None and high is None:
            raise ValueError(
                f"column {column} of x has the value {lower:g} in all rows: {term} has nothing to learn from it; leave "
                "it out, or give low and high"
            )
        if not lower < upper:
            raise ValueError(f"{term}: low must be below high, got low={lower:g}, high={upper:g} for column {column}")
    if values is None:
        return Ranges.between(lows, highs)
    return Ranges(
        lows, highs, *(torch.stack(parts) for parts in zip(*map(_told_apart, lows, highs, values.mT), strict=True))
    )


def _told_apart(low: Tensor, high: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """
    The ends of the bulk of one column, and places that serve it as well as the range.

    Distinct values that are spread like uniform or normal ones count as bulk all together. The further their
    distribution is from uniform beyond that, the more a place is shifted from an equal share of the range towards an
    equal share of the values, up to halfway, and the ends of the bulk towards where a uniform distribution of the same
    central quantiles would end.
    """
    values = values[torch.isfinite(values)]
    values = values[(values >= low) & (values <= high)]
    kept = torch.cat([_thinned(values), torch.stack([low, high])]).unique()  # sorted
    of_range = (kept - low) / (high - low)
    of_values = torch.linspace(0.0, 1.0, len(kept), dtype=torch.float64)
    distance = (of_range - of_values).abs().max()
    unevenness = ((distance - _EVEN) / (_UNEVEN - _EVEN)).clamp(0.0, 1.0)
    share = torch.lerp(of_range, of_values, 0.5 * unevenness)
    grid = np.linspace(0.0, 1.0, _NUM_PLACES)
    places = torch.from_numpy(np.interp(grid, share.numpy(), kept.numpy()))
    if unevenness == 0:
        places = torch.lerp(low, high, torch.from_numpy(grid))
    lower, upper = torch.quantile(kept, torch.tensor([_TAIL, 1 - _TAIL], dtype=torch.float64))
    beyond = (upper - lower) * _TAIL / (1 - 2 * _TAIL)
    ends = (torch.maximum(lower - beyond, low), torch.minimum(upper + beyond, high))
    return torch.lerp(low, ends[0], unevenness), torch.lerp(high, ends[1], unevenness), places


def _thinned(values: Tensor) -> Tensor:
    return values[:: max(1, len(values) // _MOST_VALUES)]


def per_column(term: str, name: str, value: PerColumn, columns: Sequence[int]) -> Tensor:
    """
    One number a column, in float64.

    :param term: Name of the factory, for messages.
    :param name: Name of the argument, for messages.
    :param value: One number for all, or one a column.
    :param columns: The columns.
    :return: ``(C,)``.
    :raises ValueError: If the number of entries is another, or one is not finite.
    """
    tensor = checks.as_numbers(term, name, value, torch.float64).detach().cpu()
    if tensor.dim() > 1 or (tensor.dim() == 1 and tensor.numel() not in (1, len(columns))):
        raise ValueError(f"{name} of {term} must be one number, or one for each of columns {list(columns)}: {value!r}")
    if not bool(torch.isfinite(tensor).all()):
        raise ValueError(f"{name} of {term} must be finite, got {value!r} for columns {list(columns)}")
    return tensor.expand(len(columns)).clone()


def checked_count(term: str, num: int | Sequence[int], num_columns: int, least: int = 2) -> list[int]:
    """
    Numbers of inducing points along each column.

    :param term: Name of the factory, for messages.
    :param num: One for all columns, or one a column.
    :param num_columns: Number of columns of a component.
    :param least: Smallest number allowed.
    :raises ValueError: If they are not integers of that size, or too few.
    """
    given = list(num) if isinstance(num, Sequence) and not isinstance(num, str) else [num] * num_columns
    if len(given) != num_columns or not all(_is_index(count) and int(count) >= least for count in given):
        raise ValueError(
            f"num_inducing of {term} must be an integer of at least {least}"
            + (f", or {num_columns} of them" if num_columns > 1 else "")
            + f", got {num!r}"
        )
    return [int(count) for count in given]


def is_switched_on(term: str, name: str, value: bool | None, default: bool) -> bool:
    """
    A switch that may be left to the term.

    :param term: Name of the factory, for messages.
    :param name: Of the switch.
    :param value: What was given; None for the default.
    :param default: What the term takes then.
    :raises TypeError: If it is neither True nor False.
    """
    return default if value is None else checks.flag(f"{name} of {term}", value)


def checked_variance(term: str, variance: float | None) -> float | None:
    """
    A prior variance.

    :param term: Name of the factory, for messages.
    :param variance: The number; None if it is left to the responses.
    :raises TypeError: If it is no number.
    :raises ValueError: If it is not positive and finite.
    """
    if variance is None:
        return None
    number = checks.number(f"variance of {term}", variance)
    if not 0 < number < float("inf"):
        raise ValueError(f"variance of {term} must be positive and finite, got {variance!r}")
    return number


def stationary_kernel(
    term: str, kind: str, width: Tensor, bulk_width: Tensor, active_dims: Sequence[int] | None = None
) -> Kernel:
    """
    A stationary kernel with a lengthscale of each component's own: a quarter of the range of the input's bulk at first,
    and bounded by a hundredth of that and ten times the whole range.

    :param term: Name of the factory, for messages.
    :param kind: One of :data:`KERNELS`.
    :param width: Ranges of the input, ``(C,)``.
    :param bulk_width: Those of its bulk, ``(C,)``.
    :param active_dims: Columns of a component that the kernel reads; default all, with one lengthscale.
    :return: A kernel of batch shape ``(C,)``.
    :raises ValueError: If the kind is unknown.
    """
    if kind not in KERNELS:
        raise ValueError(f"kernel of {term} must be one of {list(KERNELS)}, got {kind!r}")
    whole, unit = (part.to(torch.get_default_dtype()).reshape(-1, 1, 1) for part in (width, bulk_width))
    options: dict[str, Any] = {
        "batch_shape": torch.Size([len(width)]),
        "lengthscale_constraint": PrintableInterval(SHORTEST_LENGTHSCALE * unit, LONGEST_LENGTHSCALE * whole),
        "active_dims": None if active_dims is None else tuple(active_dims),
    }
    if kind == "rbf":
        kernel: Kernel = BoundedRBFKernel(**options)
    else:
        kernel = BoundedMaternKernel(nu=_MATERN_SMOOTHNESS[kind], **options)
    kernel.lengthscale = INITIAL_LENGTHSCALE * unit
    return kernel


def centred_on(kernel: Kernel, measure: Measure | None, ranges: Ranges) -> ANOVAKernel:
    """
    A kernel of one column, centred.

    :param kernel: Of batch shape ``(C,)``.
    :param measure: Under which, one for all components or one each; default uniform on the bulk.
    :param ranges: Of the column in each component, ``(C,)``.
    """
    if measure is None:
        measure = Uniform(ranges.bulk_low, ranges.bulk_high)
    elif measure.batch_shape == torch.Size([]):
        measure = measure.expand(ranges.low.shape)
    return ANOVAKernel(kernel, measure)


def scaled(
    kernel: Kernel, num_components: int, variance: float | None, default: float = 1.0, is_fixed: bool = False
) -> ScaleKernel:
    """
    A kernel with an output scale of each component's own.

    :param kernel: Of batch shape ``(C,)``.
    :param num_components: C.
    :param variance: Initial output scale; None if it is left to the responses.
    :param default: Until these are seen.
    :param is_fixed: Whether training leaves it as it is.
    """
    result = ScaleKernel(kernel, batch_shape=torch.Size([num_components]), outputscale_constraint=positive())
    result.outputscale = default if variance is None else variance
    result.raw_outputscale.requires_grad_(not is_fixed)
    if variance is None:
        note_initial_value(result, "raw_outputscale")
    return result


def grid(ranges: Ranges, nums: Sequence[int]) -> Tensor:
    """
    Product grids on boxes.

    :param ranges: Of shape ``(C, d)``.
    :param nums: Number of points along each of the d columns.
    :return: ``(C, M, d)`` in the default dtype, M the product of the numbers.
    :raises ValueError: If points on a range coincide in that dtype.
    """
    axes = [ranges[:, dim].points(num).to(torch.get_default_dtype()) for dim, num in enumerate(nums)]
    for dim, on_axis in enumerate(axes):
        ends = ranges[:, dim]
        stuck = (on_axis.diff() <= 0).any(-1).nonzero().flatten().tolist()
        if stuck:
            raise ValueError(
                f"the range from {ends.low[stuck[0]].item():.17g} to {ends.high[stuck[0]].item():.17g} is too narrow "
                f"beside its distance from zero for {nums[dim]} inducing points in {on_axis.dtype}: subtract something "
                "from the column"
            )
    return torch.stack([torch.cartesian_prod(*rows).reshape(-1, len(nums)) for rows in zip(*axes, strict=True)])


def level_points(levels: Levels) -> Tensor:
    """
    The codes of levels as inducing points.

    :param levels: The levels.
    :return: ``(L, 1)`` in the default dtype. Kernels compare levels in single precision.
    """
    return torch.tensor(levels.codes, dtype=torch.get_default_dtype()).unsqueeze(-1)


def grid_of_levels(points: Tensor, codes: Tensor) -> Tensor:
    """
    The product of points and level codes, level by level.

    :param points: ``(M, 1)``.
    :param codes: ``(L, 1)``.
    :return: ``(1, L M, 2)``.
    """
    return torch.cartesian_prod(codes.squeeze(-1), points.squeeze(-1)).flip(-1).unsqueeze(0)


def open_levels(levels: LevelsLike) -> Levels:
    """
    Levels of a term for which an unseen one is no error.

    :param levels: Anything that :meth:`Levels.of` takes.
    """
    return replace(Levels.of(levels), allows_unseen=True)


def closed_levels(levels: LevelsLike) -> Levels:
    """
    Levels of a term for which any other value is an error.

    :param levels: Anything that :meth:`Levels.of` takes.
    """
    return replace(Levels.of(levels), allows_unseen=False)


def several_levels(term: str, column: int, levels: LevelsLike) -> Levels:
    """
    Levels of a term that sums to zero over them.

    :param term: Name of the factory, for messages.
    :param column: The column that they stand in.
    :param levels: Anything that :meth:`Levels.of` takes.
    :raises ValueError: If there is only one.
    """
    levels = closed_levels(levels)
    if len(levels) < 2:
        raise ValueError(
            f"{term} of column {column} has the single level {listed(levels.labels)}: effects that sum to zero over it "
            "are zero; leave the term out"
        )
    return levels


def different_columns(term: str, column: int, by: int) -> tuple[int, int]:
    """
    The columns of a smooth argument and of a category.

    :param term: Name of the factory, for messages.
    :param column: Of the smooth argument.
    :param by: Of the category.
    :raises ValueError: If they are not indices, or equal.
    """
    column, by = checked_column(term, column), checked_column(term, by, "by")
    if column == by:
        raise ValueError(f"column and by of {term} are both {column}; by is the column of the levels")
    return column, by


def as_names(names: Sequence[str] | str | None) -> Sequence[str] | None:
    """
    Names for :class:`ComponentGroup`.

    :param names: One a component; the name of a single one may stand alone.
    """
    return [names] if isinstance(names, str) else names


def single_name(term: str, name: str | None) -> list[str] | None:
    """
    Names for :class:`ComponentGroup` of a term with one component.

    :param term: Name of the factory, for messages.
    :param name: Of the component.
    :raises TypeError: If it is no string.
    """
    if name is not None and not isinstance(name, str):
        raise TypeError(f"name of {term} must be a string, got {checks.shown(name)}")
    return None if name is None else [name]


def multipliers(term: str, columns: Sequence[int], by: int | None, levels: LevelsLike | None) -> Multipliers:
    """
    What components ``by`` and ``levels`` make of some columns: one a column, or with levels one a column and level.

    :param term: Name of the factory, for messages.
    :param columns: The columns.
    :param by: Column of a numeric multiplier, or with ``levels`` of a category.
    :param levels: Its levels.
    :raises ValueError: If ``levels`` comes without ``by``, or ``by`` is no column index or one of the columns.
    """
    group_arguments: dict[str, Any] = {}
    if by is None:
        if levels is not None:
            raise ValueError(f"{term} has levels but no by: name the column that they stand in, by=...")
        repeats = 1
    elif levels is None:
        by = checked_column(term, by, "by")
        repeats, group_arguments["by"] = 1, by
    else:
        by, levels = checked_column(term, by, "by"), closed_levels(levels)
        if by in columns:
            raise ValueError(f"by of {term} is column {by}, which is among its columns {list(columns)}")
        repeats = len(levels)
        group_arguments = {"by": by, "by_levels": list(levels.codes) * len(columns), "levels": {by: levels}}
    position = torch.arange(len(columns)).repeat_interleave(repeats)
    return Multipliers([[columns[index]] for index in position], position, group_arguments)


def spread(measure: Measure | None, position: Tensor, num_columns: int) -> Measure | None:
    """
    A measure of columns as one of the components made of them.

    :param measure: Of batch shape ``(num_columns,)`` or ``()``.
    :param position: Which of the columns each component reads, ``(C,)``.
    :param num_columns: Number of columns.
    """
    if measure is None or measure.batch_shape != torch.Size([num_columns]):
        return measure
    return measure[position]


def _as_list(value: Any) -> list[Any]:
    """One value, a sequence of them, an array or a tensor as a list; empty for a string."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, Sequence):
        return [] if isinstance(value, str) else list(value)
    return [value]


def _is_index(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and int(value) >= 0


def _per_column(term: str, name: str, value: PerColumn | None, columns: Sequence[int]) -> Tensor | None:
    return None if value is None else per_column(term, name, value, columns)


def _extremes(term: str, columns: Sequence[int], values: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest and the largest finite value of each column."""
    is_finite = torch.isfinite(values)
    for column, is_any in zip(columns, is_finite.any(0).tolist(), strict=True):
        if not is_any:
            raise ValueError(f"column {column} of x has no finite value, from which {term} could take its range")
    infinity = torch.full_like(values, float("inf"))
    low = torch.where(is_finite, values, infinity).amin(0)
    return low, torch.where(is_finite, values, -infinity).amax(0)
