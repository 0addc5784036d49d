"""The posterior under other inducing points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gpytorch_gam.components import ComponentGroup
from gpytorch_gam.numerics.blocks import assemble, join_groups, split_groups
from gpytorch_gam.numerics.precision import CovarianceFactors
from gpytorch_gam.numerics.triangular import triangular_solve


class CarriedPosterior(NamedTuple):
    """The mean of whitened inducing variables, and their covariance, which is dense."""

    mean: Tensor  # (Q,)
    covariance: Tensor  # (Q, Q)


def cross_blocks(group: ComponentGroup, points: Tensor) -> Tensor:
    """
    The kernel between other points ``(C_g, M', d)`` and the present ones of a group, in the blocks of its levels,
    ``(num_blocks, size', size)``.
    """
    num_blocks, size = group.block_shape
    num_levels = num_blocks // group.num_components
    firsts = points[..., : points.shape[-2] // num_levels, :].double()  # the same for every level
    block = group.evaluate_kernel(firsts, group.inducing_points[..., :size, :].double())
    return block.repeat_interleave(num_levels, dim=-3)


def carried_over(
    factors: CovarianceFactors, crosses: Sequence[Tensor], before: Sequence[Tensor], after: Sequence[Tensor]
) -> CarriedPosterior:
    r"""
    The posterior of new inducing variables if the present ones, of covariance :math:`I - E`, were all that the data
    have to say about them: with :math:`A_c = L'^{-1}_c k_c(Z'_c, Z_c) L_c^{-\top}` it is :math:`N(A m, I - A E
    A^\top)`. The Cholesky factors are those ``before`` and ``after``, and ``crosses`` the kernels between both.
    """
    maps = [
        triangular_solve(old, triangular_solve(new, cross).mT).mT
        for new, cross, old in zip(after, crosses, before, strict=True)
    ]
    mean = _mapped(maps, factors.mean.unsqueeze(-1)).squeeze(-1)
    covariance = torch.eye(len(mean), dtype=mean.dtype, device=mean.device)
    if factors.explained_blocks is not None:
        roots = [move @ block for move, block in zip(maps, factors.explained_blocks, strict=True)]
        covariance = covariance - assemble([root @ root.mT for root in roots])
    if factors.explained_shared is not None:
        shared = _mapped(maps, factors.explained_shared)
        covariance = covariance + factors.shared_sign * (shared @ shared.mT)
    return CarriedPosterior(mean, covariance)


def _mapped(maps: Sequence[Tensor], stacked: Tensor) -> Tensor:
    """The product of block-diagonal ``(num_blocks, size', size)`` a group with ``(Q, k)``."""
    parts = split_groups(stacked, [(move.shape[-3], move.shape[-1]) for move in maps])
    return join_groups([move @ part for move, part in zip(maps, parts, strict=True)])
