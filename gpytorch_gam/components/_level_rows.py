r"""
Lookups in the place of matrices, for components of independent levels, of which a row sees only one.

The kernel is that of levels, or its product with kernels of other columns, and the inducing points are all pairs of a
level and a place in these columns. Their covariance is block-diagonal, with one and the same block for each level, and
a row has a covariance with the block of its level alone.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from gpytorch_gam.kernels import LevelKernel
from gpytorch_gam.kernels.evaluation import factors


class LevelBlocks(NamedTuple):
    """Inducing points that are all pairs of levels and places, level by level."""

    column: int  # the column of a component that holds the levels
    num_levels: int  # L, for each component
    num_places: int  # m, at each level

    def codes(self, points: Tensor) -> Tensor:
        """The levels ``(*batch, C_g, L)`` of inducing points ``(*batch, C_g, M, d)``, in single precision."""
        return points.detach()[..., :: self.num_places, self.column].float()

    def at_first_level(self, inputs: Tensor, points: Tensor) -> Tensor:
        """Inputs ``(*batch, C_g, n, d)`` whose levels are replaced by the first level of the inducing points."""
        level = points.detach()[..., :1, :].to(inputs.dtype)
        is_level = torch.arange(inputs.shape[-1], device=inputs.device) == self.column
        return torch.where(is_level, level, inputs)


class LevelRows(NamedTuple):
    """The level of each row among the inducing points, and the covariance with the inducing variables of that level."""

    level: Tensor  # (*batch, C_g, n); any number where the level has no inducing points
    covariance: Tensor  # (*batch, C_g, m, n); 0 where the level has no inducing points

    def project(self, weights: Tensor) -> Tensor:
        """The projections ``(*batch, C_g, n, k)`` of the rows on weights ``(*batch, C_g, M, k)``."""
        size = self.covariance.shape[-2]
        if size == 1:
            return _rows_at(weights, self.level) * self.covariance.mT
        blocks = weights.unflatten(-2, (-1, size)).flatten(-2)  # (*batch, C_g, L, m k)
        own = _rows_at(blocks, self.level).unflatten(-1, (size, -1))
        return (self.covariance.mT.unsqueeze(-2) @ own).squeeze(-2)

    def matrix(self, num_levels: int) -> Tensor:
        """The covariances with all inducing variables, ``(*batch, C_g, M, n)``."""
        values = self.covariance.unsqueeze(-3)  # (*batch, C_g, 1, m, n)
        empty = values.new_zeros(*values.shape[:-3], num_levels, *values.shape[-2:])
        place = self.level[..., None, None, :].expand_as(values)
        return empty.scatter(-3, place, values).flatten(-3, -2)


def _rows_at(table: Tensor, place: Tensor) -> Tensor:
    """The rows ``(*batch, n, k)`` of tables ``(*batch, L, k)`` at places ``(*batch, n)``."""
    batch = torch.broadcast_shapes(table.shape[:-2], place.shape[:-1])
    tables = table.expand(*batch, *table.shape[-2:]).reshape(-1, table.shape[-1])
    first = torch.arange(batch.numel(), device=place.device).reshape(*batch, 1) * table.shape[-2]
    chosen = (first + place).flatten()
    return tables.index_select(0, chosen).unflatten(0, (*batch, place.shape[-1]))


def level_blocks(kernel: Kernel, points: Tensor) -> LevelBlocks | None:
    """The structure of inducing points ``(*batch, C_g, M, d)`` whose levels are independent; None for others."""
    column = _level_column(kernel, points.shape[-1])
    if column is None:
        return None
    levels = points[..., column].float()
    num_levels = len(levels.flatten(0, -2)[0].unique())
    if levels.shape[-1] % num_levels:
        return None
    blocks = LevelBlocks(column, num_levels, levels.shape[-1] // num_levels)
    if not bool((blocks.codes(points).sort(-1).values.diff() != 0).all()):
        return None
    first = points[..., : blocks.num_places, :].unsqueeze(-3)
    grouped = points.unflatten(-2, (num_levels, blocks.num_places))
    expected = blocks.at_first_level(grouped, points.unsqueeze(-3))
    is_product = bool((expected == first).all())
    is_by_level = bool((grouped[..., column] == grouped[..., :1, column]).all())
    return blocks if is_product and is_by_level else None


def _level_column(kernel: Kernel, num_columns: int) -> int | None:
    """The column of the levels, if the kernel only compares them; otherwise None."""
    found = factors(kernel, num_columns)
    of_levels = [columns[0] for factor, columns in found if type(factor) is LevelKernel and len(columns) == 1]
    if len(of_levels) != 1:
        return None
    others = [columns for factor, columns in found if type(factor) is not LevelKernel]
    return None if any(of_levels[0] in columns for columns in others) else of_levels[0]


def find_levels(column: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
    """Positions of values ``(*batch, C_g, n)`` among distinct codes ``(*batch, C_g, L)``, and which were found."""
    batch = torch.broadcast_shapes(column.shape[:-1], codes.shape[:-1])
    ordered, order = (part.expand(*batch, -1).contiguous() for part in codes.sort(-1))
    column = column.expand(*batch, -1).contiguous()
    position = torch.searchsorted(ordered, column).clamp_max(codes.shape[-1] - 1)
    return order.gather(-1, position), ordered.gather(-1, position) == column
