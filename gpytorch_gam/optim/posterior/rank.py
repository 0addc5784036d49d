"""Whether B has enough columns, judged by the directions that a step leaves out."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gpytorch_gam.numerics.blocks import diagonal_blocks, split_groups
from gpytorch_gam.numerics.capacitance import add_identity
from gpytorch_gam.numerics.matrix_free_fit import positive_remainder_factors
from gpytorch_gam.numerics.precision import precision_covariance_factors
from gpytorch_gam.numerics.precision_fit import relative_divergence

from .posterior import Posterior
from .step import Family, Step, with_more_directions

# Lower bound on the step size by which directions beyond B are rescaled; smaller steps carry too little signal.
_SMALLEST_RATE = 1e-3

# Nats that a fixed rank may lose before its user is warned.
NOTABLE_LOSS = 10.0


def missing_nats(step: Step, family: Family) -> float:
    """
    Nats that a step loses for want of columns of B (of a rank above 0): the divergence from the posterior with the
    diagonal blocks as well (low-rank family), or with a few more directions (block + low-rank).
    """
    return (_gain_of_more_directions(step, family) if family.has_blocks else _gain_of_blocks(step)).item()


def dense_loss(gram: Tensor, posterior: Posterior, family: Family) -> Tensor:
    """Divergence ``()`` of a posterior from precision I + G, means aside; blocks count if the family holds them."""
    blocks = [factor * family.has_blocks for factor in posterior.block_factors]
    targets = diagonal_blocks(gram, posterior.shapes)
    divergence = relative_divergence(gram.matmul, targets, posterior.shared_factor, blocks)
    return divergence - 0.5 * torch.linalg.slogdet(add_identity(gram)).logabsdet


def with_enough_columns(step: Step, family: Family, tolerance: float) -> Posterior:
    """
    The posterior of a step, with more columns of B if it loses more than ``tolerance`` nats. The low-rank family takes
    as many as independent components would need, which is enough; block + low-rank adds the next few directions.
    """
    posterior = step.posterior
    if posterior.directions is None or missing_nats(step, family) <= tolerance:
        return posterior
    if family.has_blocks:
        return _with_columns(step, posterior.directions.shape[-1])
    wanted = family.rank + _needed_columns(posterior.block_factors, tolerance)
    return _with_columns(step, min(wanted, len(posterior.mean)))


def _needed_columns(block_factors: Sequence[Tensor], tolerance: float) -> int:
    """The number of largest eigenvalues of the blocks to remove until the others cost at most the tolerance."""
    values = torch.cat([torch.linalg.svdvals(root).square().flatten() for root in block_factors])
    lost = (0.5 * (values - values.log1p())).sort().values.cumsum(-1)
    return int((lost > tolerance).sum())


def _with_columns(step: Step, rank: int) -> Posterior:
    """The posterior with the first ``rank`` directions, or small random ones, as B, and the same diagonal blocks."""
    posterior = step.posterior
    assert posterior.directions is not None and posterior.shared_factor is not None
    kept = posterior.shared_factor.shape[-1]
    # The size to which the next directions would grow as columns of B.
    more = posterior.directions[:, kept:] / step.rate.clamp_min(_SMALLEST_RATE).sqrt()
    directions = torch.cat([posterior.shared_factor, more], dim=-1)
    # Random columns explain no part of the blocks yet.
    roots = positive_remainder_factors(step.totals, directions[:, :rank])
    while directions.shape[-1] < rank:
        directions = with_more_directions(directions)
    return Posterior(posterior.mean, directions[:, :rank], roots, directions)


def _gain_of_blocks(step: Step) -> Tensor:
    r"""
    The divergence of precision :math:`P = I + BB^\top` from :math:`P + \mathrm{blockdiag}(E_c E_c^\top)`. With
    :math:`P^{-1} = I - FF^\top` it is :math:`\tfrac12[\sum_c (\|E_c\|^2 - \|F_c^\top E_c\|^2) + \log|P| - \log|P +
    \mathrm{blockdiag}|]`.
    """
    posterior = step.posterior
    nothing = torch.zeros_like(posterior.mean)
    factors, logdet = precision_covariance_factors(nothing, posterior.shared_factor, None)
    _, larger_logdet = precision_covariance_factors(nothing, posterior.shared_factor, posterior.block_factors)
    assert factors.explained_shared is not None
    trace = torch.zeros_like(logdet)
    for shared, root in zip(_parts(factors.explained_shared, step), posterior.block_factors, strict=True):
        trace = trace + root.square().sum() - (shared.mT @ root).square().sum()
    return 0.5 * (trace + logdet - larger_logdet)


def _parts(stacked: Tensor, step: Step) -> list[Tensor]:
    return split_groups(stacked, step.posterior.shapes)


def _gain_of_more_directions(step: Step, family: Family) -> Tensor:
    r"""
    The divergence of precision P from :math:`P + ff^\top - \mathrm{blockdiag}(f_c f_c^\top)`. With :math:`P^{-1} =
    D^{-1} - FF^\top`, whose first part cancels in the trace, it is :math:`\tfrac12[\sum_c \|F_c^\top f_c\|^2 - \|F^\top
    f\|^2 + \log|P| - \log|P_\text{all}|]`.
    """
    posterior = step.posterior
    assert posterior.directions is not None
    larger = _with_columns(step, posterior.directions.shape[-1])
    nothing = torch.zeros_like(posterior.mean)
    factors, logdet = precision_covariance_factors(nothing, posterior.shared_factor, posterior.block_factors)
    _, larger_logdet = precision_covariance_factors(nothing, larger.shared_factor, larger.block_factors)
    shared = factors.explained_shared
    assert shared is not None and larger.shared_factor is not None
    more = larger.shared_factor[:, family.rank :]
    trace = -(shared.mT @ more).square().sum()
    for own, part in zip(_parts(shared, step), _parts(more, step), strict=True):
        trace = trace + (own.mT @ part).square().sum()
    return 0.5 * (trace + logdet - larger_logdet)
