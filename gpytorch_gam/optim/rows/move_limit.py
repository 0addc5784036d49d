"""How far a step may move the predictors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gpytorch_gam.numerics.blocks import block_shapes, split_groups

# Largest change of the logarithm of the curvature that a step may bring.
_LARGEST_CHANGE = 2.0


class MoveLimit(NamedTuple):
    """
    A limit on steps, so that the curvatures that they were computed from stay valid: at the rows of a batch, and at the
    inducing points, because other rows may lie there.
    """

    steepness: Tensor  # change of the logarithm of the curvature for a unit of each predictor, (P,)
    choleskys: Sequence[Tensor]  # of the inducing covariances, (C_g, M_g, M_g) for each group
    owners: Sequence[int]  # the predictor of each group

    def usage_in_rows(self, change: Tensor) -> Tensor:
        """The largest share of the allowed change that the predictors' changes ``(P, n)`` take, ``()``."""
        return (change.abs().amax(-1) * self.steepness).amax() / _LARGEST_CHANGE

    def usage_at_points(self, direction: Tensor) -> Tensor:
        """The same for the components' changes at their inducing points along a direction ``(Q,)``."""
        parts = split_groups(direction.unsqueeze(-1), block_shapes(self.choleskys))
        usages = [
            (factor @ part).abs().amax() * self.steepness[owner]
            for factor, part, owner in zip(self.choleskys, parts, self.owners, strict=True)
        ]
        return torch.stack(usages).amax() / _LARGEST_CHANGE
