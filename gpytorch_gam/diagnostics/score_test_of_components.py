"""A test of whether components have any effect."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

# Weights below this part of the largest do not matter; values this near to the mean, relative to it, are interpolated.
_NEGLIGIBLE, _NEAR_THE_MEAN = 1e-10, 1e-3


@torch.no_grad()
def score_test(mean: Tensor, covariance: Tensor) -> float:
    r"""
    The tail probability of the score test of whether the variance of an effect is zero.

    The statistic is the derivative of the marginal likelihood in the variance at zero (:doc:`/theory/diagnostics`), and
    does not depend on the variance that was estimated.

    With a Gaussian likelihood it is exact given the other hyperparameters and enough inducing points, with others
    approximate. It is no Bayesian quantity: for that see :func:`component_evidence`.

    :param mean: The posterior mean ``(K,)`` of the effect's whitened inducing variables, such as of
        ``whitened_posterior(model, names)``.
    :param covariance: Their covariance ``(K, K)``.
    :return: The probability of the statistic or more without an effect.
    """
    if not len(mean):
        return 1.0
    cholesky = torch.linalg.cholesky(covariance.double())
    linear = torch.cholesky_solve(mean.double().unsqueeze(-1), cholesky)
    excess = torch.cholesky_inverse(cholesky) - torch.eye(len(mean), dtype=torch.float64, device=mean.device)
    weights = torch.linalg.eigvalsh(excess).clamp_min(0.0).cpu().numpy()
    return weighted_chi_squared_tail(linear.square().sum().item(), weights)


def weighted_chi_squared_tail(value: float, weights: np.ndarray) -> float:
    """
    The probability that a weighted sum of independent chi-squared variables of one degree of freedom exceeds a value,
    by the saddlepoint approximation of Kuonen (1999), whose relative error is small in the tail, too.

    :param value: The value.
    :param weights: The weights, positive or zero.
    """
    weights = weights[weights > _NEGLIGIBLE * weights.max(initial=0.0)]
    if not len(weights) or value <= 0:
        return 1.0
    weights, value = weights / weights.max(), value / weights.max()
    mean = weights.sum()
    if abs(value - mean) > _NEAR_THE_MEAN * mean:
        return _saddlepoint_tail(value, weights)
    # The formula is 0 / 0 at the mean, and smooth around it.
    around = [_saddlepoint_tail(mean * (1 + sign * _NEAR_THE_MEAN), weights) for sign in (-1.0, 1.0)]
    return float(np.mean(around))


def _saddlepoint_tail(value: float, weights: np.ndarray) -> float:
    """The approximation away from the mean, for a largest weight of one."""
    from scipy.optimize import brentq  # takes as long to import as all of this package

    # Between the places for variables that all had the largest weight and that had none but one of them.
    bracket = -0.5 * len(weights) / value, 0.5 - 0.5 / value * (1 - 1e-9)
    t = brentq(lambda t: (weights / (1 - 2 * t * weights)).sum() - value, *bracket, xtol=1e-14)
    cumulant = -0.5 * np.log1p(-2 * t * weights).sum()
    curvature = 2 * np.square(weights / (1 - 2 * t * weights)).sum()
    w = math.copysign(math.sqrt(2 * (t * value - cumulant)), t)
    return 0.5 * math.erfc((w + math.log(t * math.sqrt(curvature) / w) / w) / math.sqrt(2))
