"""How fast the curvature of a likelihood changes with the predictors."""

from __future__ import annotations

import torch
from gpytorch.likelihoods import Likelihood
from torch import Tensor

from gpytorch_gam.likelihoods.expected_gradients import expected_gradients, joint_expected_gradients
from gpytorch_gam.variational import AdditiveVariationalStrategy

from .stream import Rows

# Smallest share of the curvature that counts as common to both ends of a move.
_LEAST_SHARE = 1e-12


@torch.no_grad()
def curvature_steepness(strategy: AdditiveVariationalStrategy, likelihood: Likelihood, rows: Rows) -> Tensor:
    r"""
    The rate :math:`|\partial \log \lambda / \partial \rho_p|` at which the curvature of rows changes with each
    predictor, ``(P,)``, in float64: 1 under a log link, 0 for a Gaussian likelihood, without knowledge of either.

    The predictor of all rows is moved by its prior standard deviation. With :math:`\lambda_n` before and
    :math:`\lambda_n'` after that, the logarithm has changed by :math:`-\log \sum_n \min(\lambda_n, \lambda_n') / \sum_n
    \max(\lambda_n, \lambda_n')`, so that rows without curvature at either end do not count.
    """
    mean, covariance = strategy.training_moments(rows.x)
    prior = [torch.zeros(len(mean), dtype=torch.float64, device=mean.device) for _ in range(mean.shape[-1])]
    for group in strategy.predictor.groups:
        prior[group.predictor_index] += group.prior_variance(rows.x).double().sum(-2)
    shifts = torch.stack(prior).mean(-1).sqrt()
    here, rates = _curvatures(likelihood, rows, mean, covariance), []
    for p, shift in enumerate(shifts):
        moved = mean.clone()
        moved[:, p] += shift
        there = _curvatures(likelihood, rows, moved, covariance)
        largest = torch.maximum(here, there).sum(0)
        shared = torch.where(largest > 0, torch.minimum(here, there).sum(0) / largest, 1.0)
        rates.append(-shared.clamp_min(_LEAST_SHARE).log().amin() / shift)
    return torch.stack(rates)


def _curvatures(likelihood: Likelihood, rows: Rows, mean: Tensor, covariance: Tensor) -> Tensor:
    """The rows' curvatures in each predictor, ``(n, P)``, at least zero."""
    arguments = rows.row_arguments
    if mean.shape[-1] == 1:
        variance = covariance.flatten(-3)
        return expected_gradients(likelihood, rows.y, mean.squeeze(-1), variance, arguments).curvatures.unsqueeze(-1)
    curvatures = joint_expected_gradients(likelihood, rows.y, mean, covariance, arguments).curvatures
    return curvatures.diagonal(dim1=-2, dim2=-1).clamp_min(0.0)
