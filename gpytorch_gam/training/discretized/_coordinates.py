"""The inputs of components: columns, and phases of columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from gpytorch.kernels import AdditiveKernel, CosineKernel, Kernel, PeriodicKernel, ProductKernel, ScaleKernel
from torch import Tensor

from gpytorch_gam.components.component_group import ComponentGroup
from gpytorch_gam.kernels import ANOVAKernel, CentredKernel, LevelKernel, OrdinalKernel


class Phase(NamedTuple):
    """A column modulo a period, which is all that a periodic component depends on."""

    column: int
    period: float


#: An input of a component: a column, or the phase of one.
Coordinate = int | Phase


def index_of(coordinate: Coordinate) -> int:
    """The column of a coordinate."""
    return coordinate if isinstance(coordinate, int) else coordinate.column


def read(x: Tensor, coordinate: Coordinate) -> Tensor:
    """The values of a coordinate in the rows, ``(n,)``."""
    if isinstance(coordinate, int):
        return x[:, coordinate]
    # In float64, because a column of many periods has few digits left for its phase.
    return torch.remainder(x[:, coordinate.column].double(), coordinate.period).to(x.dtype)


def columns_of(terms: Sequence[Sequence[Coordinate]] | None, x: Tensor) -> list[tuple[Coordinate, ...]]:
    """The distinct sets of coordinates, in order of appearance."""
    terms = [[column] for column in range(x.shape[-1])] if terms is None else terms
    found = list(dict.fromkeys(tuple(columns) for columns in terms))
    beyond = [columns for columns in found if any(not 0 <= index_of(column) < x.shape[-1] for column in columns)]
    if beyond:
        raise ValueError(f"terms name columns {beyond}, but x has {x.shape[-1]} columns")
    return found


def optional_columns(groups: Sequence[ComponentGroup]) -> set[int]:
    """The columns whose values may be missing in all components that read them."""
    optional: set[int] = set()
    required: set[int] = set()
    for group in groups:
        (optional if group.missing == "marginal" else required).update(group.columns.flatten().tolist())
        required.update(column for column in group.multiplier_columns if column is not None)
    return optional - required


def category_columns(groups: Sequence[ComponentGroup]) -> set[int]:
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


def coordinates_of(group: ComponentGroup) -> list[tuple[Coordinate, ...]]:
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
