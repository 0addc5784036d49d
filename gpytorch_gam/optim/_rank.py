"""Whether the columns of B suffice, judged by what a step leaves out."""

from __future__ import annotations

import torch
from torch import Tensor

from gpytorch_gam.variational._precision_algebra import precision_covariance_factors, split_groups

from ._mean_step import Posterior
from ._natural_step import Family, Step
from ._streaming_fit import remainder_roots

# Nats that a fixed rank may lose before its user is warned.
NOTABLE_LOSS = 10.0


def missing_nats(step: Step, family: Family) -> float:
    """
    Nats that the posterior of a step loses for want of columns: for the low-rank family the divergence from the one
    that also has the diagonal blocks, for block + low-rank that from the one with a few more directions.

    :param step: With B of a rank above 0.
    :param family: Of the posterior.
    """
    return (_gain_of_more_directions(step, family) if family.has_blocks else _gain_of_blocks(step)).item()


def with_columns(step: Step, rank: int) -> Posterior:
    """
    The posterior of a step with the first directions as columns of B, the diagonal blocks of the precision kept.

    :param step: With at least ``rank`` directions.
    :param rank: Columns R of B.
    """
    posterior = step.posterior
    assert posterior.directions is not None
    factor = posterior.directions[:, :rank]
    return posterior._replace(factor=factor, block_roots=remainder_roots(step.totals, factor))


def _gain_of_blocks(step: Step) -> Tensor:
    r"""
    The divergence of the posterior of precision :math:`P = I + BB^\top` from the one of precision :math:`P +
    \mathrm{blockdiag}(E_c E_c^\top)`. With :math:`P^{-1} = I - FF^\top` it is :math:`\tfrac12[\sum_c (\|E_c\|^2 -
    \|F_c^\top E_c\|^2) + \log|P| - \log|P + \mathrm{blockdiag}|]`.
    """
    posterior = step.posterior
    nothing = torch.zeros_like(posterior.mean)
    factors, logdet = precision_covariance_factors(nothing, posterior.factor, None)
    _, larger_logdet = precision_covariance_factors(nothing, posterior.factor, posterior.block_roots)
    assert factors.shared_root is not None
    trace = torch.zeros_like(logdet)
    for shared, root in zip(_parts(factors.shared_root, step), posterior.block_roots, strict=True):
        trace = trace + root.square().sum() - (shared.mT @ root).square().sum()
    return 0.5 * (trace + logdet - larger_logdet)


def _parts(stacked: Tensor, step: Step) -> list[Tensor]:
    return split_groups(stacked, [(root.shape[-3], root.shape[-2]) for root in step.posterior.block_roots])


def _gain_of_more_directions(step: Step, family: Family) -> Tensor:
    r"""
    The divergence of the posterior of precision P from the one with all directions, :math:`P + ff^\top -
    \mathrm{blockdiag}(f_c f_c^\top)`. With :math:`P^{-1} = D^{-1} - FF^\top`, of which the first part cancels in the
    trace, it is :math:`\tfrac12[\sum_c \|F_c^\top f_c\|^2 - \|F^\top f\|^2 + \log|P| - \log|P_\text{all}|]`.
    """
    posterior = step.posterior
    assert posterior.directions is not None
    more = posterior.directions[:, family.rank :]
    larger = with_columns(step, posterior.directions.shape[-1])
    nothing = torch.zeros_like(posterior.mean)
    factors, logdet = precision_covariance_factors(nothing, posterior.factor, posterior.block_roots)
    _, larger_logdet = precision_covariance_factors(nothing, larger.factor, larger.block_roots)
    shared = factors.shared_root
    assert shared is not None
    trace = -(shared.mT @ more).square().sum()
    for own, part in zip(_parts(shared, step), _parts(more, step), strict=True):
        trace = trace + (own.mT @ part).square().sum()
    return 0.5 * (trace + logdet - larger_logdet)
