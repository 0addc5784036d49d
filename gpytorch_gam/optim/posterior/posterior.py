r"""Steps of the mean of a Gaussian with precision :math:`P = I + \mathrm{blockdiag}(E_c E_c^\top) + BB^\top`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpytorch_gam.numerics.blocks import join_groups, multiply_blocks, split_groups
from gpytorch_gam.numerics.precision import CovarianceFactors, apply_block_inverse, precision_covariance_factors
from gpytorch_gam.numerics.triangular import triangular_solve

from ..rows.sums import Resistance


class Posterior(NamedTuple):
    """A Gaussian over the whitened inducing variables, in float64."""

    mean: Tensor  # m, (Q,)
    shared_factor: Tensor | None  # B, (Q, R); None for rank 0
    block_factors: list[Tensor]  # E_c, (count, size, r) for each group
    directions: Tensor | None  # columns that span more than B does, (Q, k); None for rank 0, and where none are known

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """``(C_g, M_g)`` of each group."""
        return [(root.shape[-3], root.shape[-2]) for root in self.block_factors]


def transported(posterior: Posterior, before: Sequence[Tensor], after: Sequence[Tensor]) -> Posterior:
    r"""
    The posterior under a new prior, given the Cholesky factors ``(C_g, M_g, M_g)`` of both priors for each group.

    The posterior is the prior times a Gaussian factor in the inducing variables :math:`u = Lv` (the sites: dual
    parameters of Khan and Lin, 2017, and Adam et al., 2021), which does not depend on the kernels. With :math:`T =
    L_\text{new}^\top L_\text{old}^{-\top}` it becomes :math:`TB`, :math:`TE` and a linear term :math:`TPm`, so the mean
    becomes :math:`(I + T (P - I) T^\top)^{-1} T P m`. In the paper's coordinates :math:`B_u` stays as it is.
    """
    # L_new' L_old^-T, upper triangular
    maps = [triangular_solve(old, new).mT for old, new in zip(before, after, strict=True)]
    factor = None if posterior.shared_factor is None else multiply_blocks(maps, posterior.shared_factor)
    directions = None if posterior.directions is None else multiply_blocks(maps, posterior.directions)
    roots = [matrix @ root for matrix, root in zip(maps, posterior.block_factors, strict=True)]

    linear = _precision_times(posterior.mean, posterior.shared_factor, posterior.block_factors)
    linear = multiply_blocks(maps, linear.unsqueeze(-1)).squeeze(-1)
    factors, _ = precision_covariance_factors(linear, factor, roots)
    mean = precision_solve(factors)
    # Where the data determine a variable a million times better than the prior, as they do a free constant, the
    # subtractions in the solution cost as many digits. One step of iterative refinement restores them.
    rest = linear - _precision_times(mean, factor, roots)
    return Posterior(mean + precision_solve(factors._replace(mean=rest)), factor, roots, directions)


def selected(is_first: Tensor, first: Posterior, second: Posterior) -> Posterior:
    """One of two posteriors of the same shapes, chosen without waiting for the device."""

    def choose(one: Tensor | None, other: Tensor | None) -> Any:
        return None if one is None or other is None else torch.where(is_first, one, other)

    pairs = zip(first.block_factors, second.block_factors, strict=True)
    return Posterior(
        choose(first.mean, second.mean),
        choose(first.shared_factor, second.shared_factor),
        [choose(*pair) for pair in pairs],
        choose(first.directions, second.directions),
    )


def _precision_times(vector: Tensor, factor: Tensor | None, block_factors: list[Tensor]) -> Tensor:
    """:math:`P a`, ``(Q,)``."""
    column = vector.unsqueeze(-1)
    parts = split_groups(column, [(root.shape[-3], root.shape[-2]) for root in block_factors])
    product = column + join_groups([root @ (root.mT @ part) for root, part in zip(block_factors, parts, strict=True)])
    return (product if factor is None else product + factor @ (factor.mT @ column)).squeeze(-1)


def precision_solve(factors: CovarianceFactors) -> Tensor:
    r""":math:`P^{-1} a = a - VV^\top a - FF^\top a`, ``(Q,)``, from factors that hold a in place of the mean."""
    assert factors.explained_blocks is not None
    solution = apply_block_inverse(factors.explained_blocks, factors.mean.unsqueeze(-1)).squeeze(-1)
    if factors.explained_shared is None:
        return solution
    return solution - factors.explained_shared @ (factors.explained_shared.mT @ factors.mean)


def effective_dimension(factors: CovarianceFactors) -> Tensor:
    r"""The trace :math:`\mathrm{tr}(I - P^{-1}) = \|V\|_F^2 + \|F\|_F^2`, ``()``: directions that data determine."""
    roots = [
        *(factors.explained_blocks or ()),
        *(() if factors.explained_shared is None else (factors.explained_shared,)),
    ]
    return torch.stack([factors.mean.new_zeros(()), *(root.square().sum() for root in roots)]).sum()


def step_length(gradient: Tensor, direction: Tensor, resistance: Resistance) -> Tensor:
    """
    The share of a direction to go, in [0, 1]: to the maximum of the rows' quadratic model, but not far in any row,
    because the curvature says little about the distance to the optimum (under a log link it is off by the factor of the
    counts).
    """
    tiny = torch.finfo(torch.float64).tiny
    curvature = direction.square().sum() + resistance.curvature
    length = ((gradient @ direction) / curvature.clamp_min(tiny)).clamp(0.0, 1.0)
    return torch.minimum(length, resistance.reach)
