"""The posterior of one group of components."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class GroupPosterior(NamedTuple):
    """Projections of one group of components at n rows."""

    mean: Tensor  # (*batch, C_g, n)
    prior_variance: Tensor  # (*batch, C_g, n)
    shared: Tensor  # coupled directions, (*batch, C_g, R, n)
    block: Tensor | None  # directions of each component's own, (*batch, C_g, r, n)
    unknown: Tensor | None = None  # factor of ComponentGroup.missing_variance, (*batch, C_g); None for ones

    @property
    def own_squares(self) -> Tensor:
        """The sum of squares of each component's own directions, ``(*batch, C_g, n)``."""
        return torch.zeros_like(self.prior_variance) if self.block is None else self.block.square().sum(-2)

    def stacked(self, rows: slice = slice(None)) -> Tensor:
        """Stack mean, coupled and own directions of each component, ``(*batch, C_g, 1 + R + r, n)``, in some rows."""
        parts = [self.mean.unsqueeze(-2), self.shared, *([] if self.block is None else [self.block])]
        batch = torch.broadcast_shapes(*(part.shape[:-2] for part in parts))
        return torch.cat([part[..., rows].expand(*batch, -1, -1) for part in parts], dim=-2)
