"""The places of inducing points of terms whose number is left to a fit."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gpytorch_gam.components.inducing_points import filled_up, kmeans_points
from gpytorch_gam.components.point_placement import PointPlacement

from ._ranges import Ranges

# Largest number of rows that are kept for k-means, and the number of places among which a point is chosen where there
# are too few rows.
_MOST_ROWS, CANDIDATES = 2048, 4


def doubled(first: int, most: int, num_columns: int = 1) -> list[int]:
    """Numbers along a column, from the first up to ``most``, each with about twice as many points in all columns."""
    sizes = [first]
    while sizes[-1] < most:
        sizes.append(min(round(first * 2 ** (len(sizes) / num_columns)), most))
    return sizes


class GridPlacement(PointPlacement):
    """Product grids on the boxes of ranges ``(C, d)``, with equally many points along every column."""

    def __init__(self, sizes: Sequence[int], ranges: Ranges) -> None:
        super().__init__(sizes)
        self.ranges = ranges

    def points(self, size: int) -> Tensor:
        """The grids, ``(C, size^d, d)``."""
        return self.ranges.grid([size] * self.ranges.low.shape[-1])


class PeriodPlacement(PointPlacement):
    """Equal parts of periods, which are ranges ``(C,)``."""

    def __init__(self, sizes: Sequence[int], periods: Ranges) -> None:
        super().__init__(sizes)
        self.periods = periods

    def points(self, size: int) -> Tensor:
        """The beginnings of the parts, ``(C, size, 1)``."""
        low, width = self.periods.low, self.periods.width
        return Ranges.between(low, low + width - width / size)[:, None].grid([size])


class LevelPlacement(PointPlacement):
    """All pairs of the grid of one column and codes of levels ``(L, 1)``, level by level."""

    def __init__(self, grids: GridPlacement, codes: Tensor) -> None:
        super().__init__(grids.sizes)
        self.grids, self.codes = grids, codes

    def points(self, size: int) -> Tensor:
        """The pairs, ``(1, L size, 2)``."""
        (grid,) = self.grids.points(size)
        return torch.cartesian_prod(self.codes.squeeze(-1), grid.squeeze(-1).to(self.codes)).flip(-1).unsqueeze(0)


class RowPlacement(PointPlacement):
    """Centres of k-means clusters of rows ``(n, d)``, and places between them if there are too few distinct rows."""

    def __init__(self, sizes: Sequence[int], rows: Tensor, ranges: Ranges) -> None:
        super().__init__(sizes)
        chosen = torch.linspace(0, len(rows) - 1, min(len(rows), _MOST_ROWS), dtype=torch.float64)
        self.rows, self.ranges = rows[chosen.round().long()], ranges

    def points(self, size: int) -> Tensor:
        """The centres, ``(1, size, d)``."""
        points = kmeans_points(self.rows, size)
        if len(points) < size:
            points = filled_up(points, self.ranges.box(CANDIDATES * size).to(points), size)
        return points.unsqueeze(0)
