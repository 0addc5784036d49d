"""Arguments of the factories of terms, checked under the name of the term and made into a group."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from gpytorch.kernels import Kernel, ScaleKernel
from torch import Tensor

from gpytorch_gam import _checks as checks
from gpytorch_gam.components.component_group import ComponentGroup
from gpytorch_gam.components.levels import Levels, listed
from gpytorch_gam.components.names import default_names
from gpytorch_gam.components.point_placement import PointPlacement
from gpytorch_gam.kernels import ANOVAKernel, Measure, Uniform
from gpytorch_gam.kernels.batch_shapes import expanded
from gpytorch_gam.kernels.bounded_kernels import BoundedMaternKernel, BoundedRBFKernel, PrintableInterval
from gpytorch_gam.parameters.initial_values import note_initial_value
from gpytorch_gam.parameters.positive_constraint import positive

from ._placements import doubled
from ._ranges import Ranges

LevelsLike = Levels | int | Sequence[float] | Sequence[str] | Tensor
PerColumn = float | Sequence[float] | Tensor

_MATERN_SMOOTHNESS = {"matern12": 0.5, "matern32": 1.5, "matern52": 2.5}

# Lengthscales as multiples of the range of the input.
INITIAL_LENGTHSCALE = 0.25
SHORTEST_LENGTHSCALE, LONGEST_LENGTHSCALE = 0.01, 10.0


class Multipliers(NamedTuple):
    """The components that ``by`` and ``levels`` make of some columns: one a column, or one a column and level."""

    columns: list[list[int]]  # the column of each component, as a sequence of one
    position: Tensor  # the position of that column among the given ones, (C,)
    options: dict[str, Any]  # arguments for ComponentGroup


class Arguments:
    """The arguments of a call of a term, see :mod:`gpytorch_gam.terms`; messages contain its name."""

    def __init__(
        self,
        term: str,
        variance: float | None,
        predictor: int,
        missing: Any,
        batch_shape: Sequence[int],
        *,
        names: Sequence[str] | str | None = None,
        name: str | None = None,
    ) -> None:
        self.term, self.predictor, self.missing = term, predictor, missing
        if name is not None and not isinstance(name, str):
            raise TypeError(f"name of {term} must be a string, got {checks.shown(name)}")
        names = names if name is None else name
        self.names = [names] if isinstance(names, str) else names
        self.batch_shape = checks.shape(f"batch_shape of {term}", batch_shape)
        self.variance = None if variance is None else checks.number(f"variance of {term}", variance)
        if self.variance is not None and not 0 < self.variance < float("inf"):
            raise ValueError(f"variance of {term} must be positive and finite, got {variance!r}")

    def group(
        self,
        kernel: Kernel,
        columns: list[list[int]],
        inducing_points: Tensor,
        *,
        names: Sequence[str] | None = None,
        variance: float = 1.0,
        is_fixed: bool = False,
        **options: Any,
    ) -> ComponentGroup:
        """
        The components, each with an output scale of its own, from a kernel of batch shape ``(C,)`` or ``()`` and points
        ``(C, M, d)``. ``names`` are defaults unlike those of :class:`ComponentGroup`; ``variance`` is the output scale
        until it is chosen, or for good if ``is_fixed``.
        """
        with_components = torch.Size([*self.batch_shape, len(columns)])
        if self.batch_shape:
            kernel = expanded(kernel, with_components)
        scaled = ScaleKernel(kernel, batch_shape=with_components, outputscale_constraint=positive())
        scaled.outputscale = variance if self.variance is None else self.variance
        scaled.raw_outputscale.requires_grad_(not is_fixed)
        if self.variance is None:
            note_initial_value(scaled, "raw_outputscale")
        return ComponentGroup(
            scaled,
            columns=columns,
            inducing_points=inducing_points.expand(*self.batch_shape, *inducing_points.shape),
            names=names if self.names is None else self.names,
            predictor=self.predictor,
            missing=self.missing,
            **options,
        )

    def placed(
        self, kernel: Kernel, columns: list[list[int]], placement: PointPlacement, num_inducing: Any, **options: Any
    ) -> ComponentGroup:
        """The components with the first number of inducing points, which a fit may change if it is automatic."""
        points = placement.points(placement.sizes[0])
        kept = placement if is_automatic(num_inducing) else None
        return self.group(kernel, columns, points, placement=kept, **options)

    def columns(self, columns: Any) -> list[int]:
        """One column index or several, as a list."""
        given = _as_list(columns)
        for column in given:
            self._check_index("columns", column, columns, " or several")
        if not given:
            raise ValueError(f"columns of {self.term} must be a column index (0, 1, ...) or several, got {columns!r}")
        return [int(column) for column in given]

    def column(self, column: Any, argument: str = "column") -> int:
        """A column index."""
        self._check_index(argument, column, column)
        return int(column)

    def by(self, by: int | None) -> int | None:
        """The column of a numeric multiplier, or None."""
        return None if by is None else self.column(by, "by")

    def _check_index(self, argument: str, column: Any, given: Any, more: str = "") -> None:
        if _is_integer(column) and column >= 0:
            return
        error = ValueError if _is_integer(column) else TypeError
        raise error(f"{argument} of {self.term} must be a column index (0, 1, ...){more}, got {given!r}")

    def column_and_by(self, column: int, by: int) -> tuple[int, int]:
        """The columns of a smooth argument and of a category, which must differ."""
        column, by = self.column(column), self.column(by, "by")
        if column == by:
            raise ValueError(f"column and by of {self.term} are both {column}; by is the column of the levels")
        return column, by

    def column_sets(self, columns: Any, least: int) -> list[list[int]]:
        """The columns of each of several components: equally many, at least ``least``, and without repetition."""
        given = _as_list(columns)
        sets = [self.columns(entry) for entry in ([given] if all(map(_is_integer, given)) else given)]
        if len({len(entry) for entry in sets}) > 1 or len(sets[0]) < least or any(len(set(s)) < len(s) for s in sets):
            raise ValueError(
                f"columns of {self.term} must name {least} or more different columns for each component (equally many "
                f"for all of one call), got {columns!r}"
            )
        return sets

    def counts(self, num: Any, num_columns: int = 1) -> list[int]:
        """The numbers of inducing points along each column of a component, at least two each."""
        given = list(num) if isinstance(num, Sequence) and not isinstance(num, str) else [num] * num_columns
        are_integers = all(map(_is_integer, given))
        if len(given) != num_columns or not are_integers or min(given) < 2:
            several = f", or {num_columns} of them" if num_columns > 1 else ""
            raise (ValueError if are_integers else TypeError)(
                f'num_inducing of {self.term} must be an integer of at least 2{several}, or "auto", got {num!r}'
            )
        return [int(count) for count in given]

    def sizes(self, num: Any, first: int, most: int, num_columns: int = 1) -> list[int]:
        """
        The numbers of inducing points along a column that a fit may choose, from ``first`` to ``most``; only the given
        one unless it is automatic.
        """
        return doubled(first, most, num_columns) if is_automatic(num) else self.counts(num)

    def switch(self, argument: str, value: bool | None, default: bool) -> bool:
        """True or False; None for the default."""
        return default if value is None else checks.flag(f"{argument} of {self.term}", value)

    def measure(self, measure: Any, centred: bool) -> Measure | None:
        """The measure under which effects are centred; other effects have none."""
        if measure is None:
            return None
        if not isinstance(measure, Measure):
            raise TypeError(
                f"measure of {self.term} must be a Measure, such as Uniform(0, 1), got {checks.shown(measure)}"
            )
        if not centred:
            raise ValueError(
                f"{self.term} has a measure, but is not centred under it: give centred=True as well, or no measure"
            )
        return measure

    def several_levels(self, column: int, levels: LevelsLike) -> Levels:
        """The levels, at least two, of a column over which a term sums to zero."""
        levels = closed_levels(levels)
        if len(levels) < 2:
            raise ValueError(
                f"{self.term} of column {column} has the single level {listed(levels.labels)}: effects that sum to "
                "zero over it are zero; leave the term out"
            )
        return levels

    def multipliers(self, columns: Sequence[int], by: int | None, levels: LevelsLike | None) -> Multipliers:
        """The components that ``by`` and ``levels`` make of some columns."""
        options: dict[str, Any] = {}
        repeats = 1
        if levels is not None and by is None:
            raise ValueError(f"{self.term} has levels but no by: name the column that they stand in, by=...")
        if by is not None:
            options["by"] = by = self.column(by, "by")
        if levels is not None and by is not None:
            levels = closed_levels(levels)
            if by in columns:
                raise ValueError(f"by of {self.term} is column {by}, which is among its columns {list(columns)}")
            repeats = len(levels)
            options |= {"by_levels": list(levels.codes) * len(columns), "levels": {by: levels}}
        position = torch.arange(len(columns)).repeat_interleave(repeats)
        return Multipliers([[columns[index]] for index in position], position, options)

    def names_of_kind(self, parts: Multipliers) -> tuple[str, ...]:
        """Names of components that contain the kind of the term, such as ``linear(x0)``."""
        none = [None] * len(parts.columns)
        by, by_levels = parts.options.get("by"), parts.options.get("by_levels", none)
        levels = parts.options.get("levels", {})
        return default_names(parts.columns, [by] * len(none), by_levels, levels, self.predictor, self.term)

    def per_column(self, argument: str, value: PerColumn, columns: Sequence[int]) -> Tensor:
        """One finite number a column, ``(C,)`` in float64, from a single number or one for each."""
        tensor = checks.as_numbers(self.term, argument, value, torch.float64).detach().cpu()
        name = f"{argument} of {self.term}"
        if tensor.dim() > 1 or (tensor.dim() == 1 and tensor.numel() not in (1, len(columns))):
            raise ValueError(f"{name} must be one number, or one for each of columns {list(columns)}: {value!r}")
        if not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"{name} must be finite, got {value!r} for columns {list(columns)}")
        return tensor.expand(len(columns)).clone()

    def data(self, x: Any, columns: Sequence[int]) -> Tensor:
        """Columns ``(n, C)`` of the training inputs, with the rows of all batches, in float64 on the CPU."""
        values = checks.as_numbers(self.term, "x", x).detach().cpu()
        values = values.unsqueeze(-1) if values.dim() == 1 else values
        if values.dim() < 2 or values.numel() == 0:
            raise ValueError(
                f"x of {self.term} must be inputs (n, D) with one row or more, got shape {tuple(values.shape)}"
            )
        if max(columns) >= values.shape[-1]:
            raise ValueError(f"{self.term} reads column {max(columns)}, but x has {values.shape[-1]} columns")
        return values.flatten(0, -2)[:, list(columns)].double()

    def ranges(self, columns: Sequence[int], x: Any, low: PerColumn | None, high: PerColumn | None) -> Ranges:
        """The ranges ``(C,)`` of columns, which are given or those of the finite values in ``x``."""
        if x is None and (low is None or high is None):
            raise ValueError(
                f"{self.term} needs the training inputs x, from which it takes the ranges of columns {list(columns)}, "
                "or both low and high"
            )
        ends = [
            None if end is None else self.per_column(name, end, columns) for name, end in (("low", low), ("high", high))
        ]
        values = None if x is None else self.data(x, columns)
        if values is not None and (low is None or high is None):
            extremes = self._extremes(columns, values)
            ends = [extreme if end is None else end for end, extreme in zip(ends, extremes, strict=True)]
        lows, highs = (end for end in ends if end is not None)
        for column, lower, upper in zip(columns, lows.tolist(), highs.tolist(), strict=True):
            if lower == upper and low is None and high is None:
                raise ValueError(
                    f"column {column} of x has the value {lower:g} in all rows: {self.term} has nothing to learn from "
                    "it; leave it out, or give low and high"
                )
            if not lower < upper:
                raise ValueError(
                    f"{self.term}: low must be below high, got low={lower:g}, high={upper:g} for column {column}"
                )
        return Ranges.between(lows, highs) if values is None else Ranges.of_values(lows, highs, values)

    def _extremes(self, columns: Sequence[int], values: Tensor) -> tuple[Tensor, Tensor]:
        """The smallest and the largest finite value of each column."""
        is_finite = torch.isfinite(values)
        for column, is_any in zip(columns, is_finite.any(0).tolist(), strict=True):
            if not is_any:
                raise ValueError(
                    f"column {column} of x has no finite value, from which {self.term} could take its range"
                )
        infinity = torch.full_like(values, float("inf"))
        low = torch.where(is_finite, values, infinity).amin(0)
        return low, torch.where(is_finite, values, -infinity).amax(0)

    def stationary_kernel(
        self, kind: str, width: Tensor, bulk_width: Tensor, active_dims: tuple[int, ...] | None = None
    ) -> Kernel:
        """
        A stationary kernel of batch shape ``(C,)``. Lengthscales start at a quarter of the range of the input's bulk,
        and lie between a hundredth of that range and ten times the whole range (``width``).
        """
        checks.choice(f"kernel of {self.term}", kind, ("rbf", *_MATERN_SMOOTHNESS))
        whole, unit = (part.to(torch.get_default_dtype()).reshape(-1, 1, 1) for part in (width, bulk_width))
        options: dict[str, Any] = {
            "batch_shape": torch.Size([len(width)]),
            "lengthscale_constraint": PrintableInterval(SHORTEST_LENGTHSCALE * unit, LONGEST_LENGTHSCALE * whole),
            "active_dims": active_dims,
        }
        kernel: Kernel = (
            BoundedRBFKernel(**options)
            if kind == "rbf"
            else BoundedMaternKernel(nu=_MATERN_SMOOTHNESS[kind], **options)
        )
        kernel.lengthscale = INITIAL_LENGTHSCALE * unit
        return kernel


def centred_on(kernel: Kernel, measure: Measure | None, ranges: Ranges) -> ANOVAKernel:
    """A kernel of one column, centred under one measure or one for each component, by default uniform on the bulk."""
    if measure is None:
        measure = Uniform(ranges.bulk_low, ranges.bulk_high)
    elif measure.batch_shape == torch.Size([]):
        measure = measure.expand(ranges.low.shape)
    return ANOVAKernel(kernel, measure)


def open_levels(levels: LevelsLike) -> Levels:
    """The levels of a term for which an unseen level is no error."""
    return replace(Levels.of(levels), allows_unseen=True)


def closed_levels(levels: LevelsLike) -> Levels:
    """The levels of a term for which any other value is an error."""
    return replace(Levels.of(levels), allows_unseen=False)


def _as_list(value: Any) -> list[Any]:
    """One value, a sequence of them, an array or a tensor as a list."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]


def is_automatic(num_inducing: Any) -> bool:
    """Whether a number of inducing points is left to a fit."""
    return isinstance(num_inducing, str) and num_inducing == "auto"


def _is_integer(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)
