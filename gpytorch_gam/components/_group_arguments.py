"""Checks of the arguments of a group of components."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from gpytorch.kernels import AdditiveKernel, Kernel, ProductKernel, ScaleKernel
from torch import Tensor

from gpytorch_gam import _checks as checks
from gpytorch_gam.kernels import ANOVAKernel, CentredKernel

from .levels import Levels, listed


def checked_columns(columns: Any) -> list[list[int]]:
    """The columns of each component, of which all components have equally many."""
    wanted = "columns must be a non-empty sequence with one sequence of column indices for each component, such as"
    if isinstance(columns, str) or not isinstance(columns, Iterable):
        raise TypeError(f"{wanted} [[0], [1]], got {checks.shown(columns)}")
    rows = [list(row) if isinstance(row, Sequence) and not isinstance(row, str) else row for row in columns]
    if not all(isinstance(row, list) for row in rows):
        raise TypeError(f"{wanted} [[0], [1]], got {columns!r}")
    if not rows:
        raise ValueError(f"{wanted} [[0], [1]], got {columns!r}")
    if len({len(row) for row in rows}) > 1:
        raise ValueError(
            f"columns name unequal numbers of columns, {rows}: components of one group have the same input dimension; "
            "put components that differ into groups of their own"
        )
    for row in rows:
        for column in row:
            _check_index("columns must hold non-negative integers", column)
    return rows


def checked_by(by: Any, num_components: int) -> list[int | None]:
    """The multiplier column of each component, or None."""
    if by is None or isinstance(by, int):
        by = [by] * num_components
    if isinstance(by, str) or not isinstance(by, Iterable):
        raise TypeError(f"by must be one column index for each component (None for none), got {by!r}")
    by = list(by)
    if len(by) != num_components:
        raise ValueError(f"by names {len(by)} multiplier columns for {num_components} components: {by!r}")
    for column in by:
        if column is not None:
            _check_index("by must hold non-negative column indices or None", column)
    return by


def _check_index(wanted: str, column: Any) -> None:
    is_integer = isinstance(column, int) and not isinstance(column, bool)
    if not is_integer or column < 0:
        raise (ValueError if is_integer else TypeError)(f"{wanted}, got {column!r}")


def checked_levels(levels: Any, columns: list[list[int]], by: list[int | None]) -> dict[int, Levels]:
    """The levels of those columns that are categories; only columns that the components read may have levels."""
    if levels is None:
        return {}
    if not isinstance(levels, Mapping):
        raise TypeError(f"levels must map columns to Levels, got {type(levels).__name__}")
    used = {column for row in columns for column in row} | {column for column in by if column is not None}
    for column, levels_of in levels.items():
        if not isinstance(levels_of, Levels):
            raise TypeError(
                f"levels must map columns to Levels, got {type(levels_of).__name__} for column {column!r}: use "
                "Levels.of"
            )
        if column not in used:
            raise ValueError(f"levels names column {column!r}, but the components read only columns {sorted(used)}")
    return dict(levels)


def checked_by_levels(by_levels: Any, by: list[int | None], levels: dict[int, Levels]) -> tuple[float | None, ...]:
    """The level of its multiplier column to whose rows each component is confined, or None."""
    if by_levels is None:
        return (None,) * len(by)
    if isinstance(by_levels, str) or not isinstance(by_levels, Sequence):
        raise TypeError(f"by_levels must be a sequence with one level (or None) for each component, got {by_levels!r}")
    if len(by_levels) != len(by):
        raise ValueError(f"by_levels names {len(by_levels)} levels for {len(by)} components: {by_levels!r}")
    for level, column in zip(by_levels, by, strict=True):
        if level is None:
            continue
        is_number = isinstance(level, numbers.Real)
        if not is_number or not math.isfinite(level):
            error = ValueError if is_number else TypeError
            raise error(f"by_levels must hold finite numbers or None, got {level!r}")
        if column is None:
            raise ValueError(f"by_levels has level {level!r} for a component without a column: name its column in `by`")
        if column in levels and level not in levels[column].codes:
            raise ValueError(
                f"by_levels has level {level!r}, which is none of the levels {listed(levels[column].codes)} of column "
                f"{column}"
            )
    return tuple(None if level is None else float(level) for level in by_levels)


def checked_names(names: Any, num_components: int) -> tuple[str, ...]:
    """One name for each component."""
    if isinstance(names, str):
        raise TypeError(f"names must be a sequence with one name for each component, got the string {names!r}")
    if not isinstance(names, Iterable) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"names must be a sequence with one string for each component, got {checks.shown(names)}")
    names = tuple(names)
    if len(names) != num_components:
        raise ValueError(f"names has {len(names)} entries for {num_components} components: {list(names)}")
    return names


def checked_inducing_points(label: str, inducing_points: Any, num_components: int, input_dim: int) -> Tensor:
    """Inducing points ``(*batch, C_g, M, d)``, as a copy of the argument."""
    name = f"inducing_points of {label}"
    if isinstance(inducing_points, np.ndarray):
        inducing_points = torch.as_tensor(inducing_points)
    if not torch.is_tensor(inducing_points):
        is_list = isinstance(inducing_points, Sequence) and all(map(torch.is_tensor, inducing_points))
        if not is_list or not len(inducing_points):
            raise TypeError(
                f"{name} must be a tensor (M, d), or one for each component, got {checks.shown(inducing_points)}"
            )
        sizes = [tuple(points.shape) for points in inducing_points]
        if len(set(sizes)) > 1:
            raise ValueError(
                f"{name} have unequal shapes {sizes}: components of one group share one number of inducing points; put "
                "components that differ into groups of their own"
            )
        inducing_points = torch.stack(list(inducing_points))
    if inducing_points.dim() == 2:
        inducing_points = inducing_points.expand(num_components, *inducing_points.shape)
    expected = f"expected (*batch, {num_components}, M, {input_dim})"
    found = f"{name} have shape {tuple(inducing_points.shape)}"
    if inducing_points.dim() < 3 or inducing_points.shape[-3] != num_components:
        raise ValueError(f"{found}, {expected}: {num_components} components")
    if inducing_points.shape[-1] != input_dim:
        raise ValueError(f"{found}, {expected}: each component reads {input_dim} column(s)")
    if inducing_points.shape[-2] == 0:
        raise ValueError(f"{name} are empty, {expected} with M >= 1")
    if not inducing_points.is_floating_point():
        raise TypeError(f"{name} have dtype {inducing_points.dtype}; give a floating point tensor")
    if not torch.isfinite(inducing_points).all():
        raise ValueError(f"{name} contain NaN or infinity")
    return inducing_points.detach().clone()


def check_kernel(label: str, kernel: Any, points: Tensor) -> None:
    """Raise an error if an argument is no kernel of components with these inducing points, ``(*batch, C_g, M, d)``."""
    name, (num_components, _, input_dim) = f"kernel of {label}", points.shape[-3:]
    if not isinstance(kernel, Kernel):
        raise TypeError(
            f"{name} must be a GPyTorch kernel, such as ScaleKernel(RBFKernel()), got {checks.shown(kernel)}"
        )
    for part, num_read in _with_numbers_of_columns(kernel, input_dim):
        if part.ard_num_dims not in (None, num_read):
            raise ValueError(
                f"{name}: {type(part).__name__} has ard_num_dims={part.ard_num_dims}, but reads {num_read} column(s) "
                "of each component"
            )
    probe = points[..., :1, :]
    if kernel.num_outputs_per_input(probe, probe) != 1:
        raise ValueError(f"{name} must have one output for each input, {type(kernel).__name__} has more")
    for module in kernel.modules():
        active_dims = getattr(module, "active_dims", None)
        if active_dims is not None and active_dims.numel() and int(active_dims.max()) >= input_dim:
            raise ValueError(
                f"{name} has active_dims {active_dims.tolist()}, but its components read {input_dim} column(s): "
                "active_dims count the columns named in `columns`, not those of x"
            )
    batch_shape = torch.Size(kernel.batch_shape)
    if len(batch_shape) and batch_shape[-1] not in (1, num_components):
        raise ValueError(
            f"{name} has batch_shape {tuple(batch_shape)}; its last dimension must be the number of components, "
            f"{num_components} (or 1, or batch_shape=() for shared hyperparameters)"
        )
    try:
        torch.broadcast_shapes(batch_shape, points.shape[:-2])
    except RuntimeError as error:
        raise ValueError(
            f"{name} has batch_shape {tuple(batch_shape)}, which does not broadcast with the batch shape "
            f"{tuple(points.shape[:-2])} of inducing_points"
        ) from error


def _with_numbers_of_columns(kernel: Kernel, num_columns: int) -> Iterator[tuple[Kernel, int]]:
    """The kernel and those inside it that get the same columns, each with the number of columns that it reads."""
    if kernel.active_dims is not None:
        num_columns = kernel.active_dims.numel()
    yield kernel, num_columns
    if isinstance(kernel, ScaleKernel | AdditiveKernel | ProductKernel | CentredKernel | ANOVAKernel):
        parts = kernel.kernels if isinstance(kernel, AdditiveKernel | ProductKernel) else [kernel.base_kernel]
        for part in parts:
            yield from _with_numbers_of_columns(part, num_columns)
