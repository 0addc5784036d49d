"""A test of whether components have any effect."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

# Weights below this part of the largest do not matter; values this near to the mean, relative to it, are interpolated.
_NEGLIGIBLE, _NEAR_THE_MEAN = 1e-10, 1e-3

# Values beyond these, in units of the largest weight, have a probability of one or zero to all digits.
_SMALLEST, _LARGEST = 1e-100, 1e100


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
    eigenvalues, eigenvectors = torch.linalg.eigh(covariance.double())
    eigenvalues = eigenvalues.clamp_min(torch.finfo(torch.float64).eps)  # that of the prior is one
    linear = (eigenvectors.mT @ mean.double()) / eigenvalues
    weights = (1.0 / eigenvalues - 1.0).clamp_min(0.0).cpu().numpy()
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
    largest = float(weights.max())
    weights, value = weights / largest, min(max(float(value) / largest, _SMALLEST), _LARGEST)
    mean = weights.sum()
    if abs(value - mean) > _NEAR_THE_MEAN * mean:
        return _saddlepoint_tail(value, weights)
    # The formula is 0 / 0 at the mean, and smooth around it.
    around = [_saddlepoint_tail(mean * (1 + sign * _NEAR_THE_MEAN), weights) for sign in (-1.0, 1.0)]
    return float(np.mean(around))


def _saddlepoint_tail(value: float, weights: np.ndarray) -> float:
    """The approximation away from the mean, for a largest weight of one."""
    from scipy.optimize import brentq  # takes as long to import as all of this package

    # In s = 1 - 2 t the equation is sum_i 1 / (1 / w_i - 1 + s) = value. Its root is above that for the largest weight
    # alone, 1 / value, and below that for as many of it as there are weights.
    others = 1.0 / weights - 1.0
    first = -math.log(value)
    bracket = first - 1e-6, first + math.log(len(weights)) + 1e-6
    s = math.exp(brentq(lambda u: math.log((1.0 / (others + math.exp(u))).sum()) - math.log(value), *bracket))
    t = 0.5 * (1.0 - s)
    factors = np.log(weights * (others + s)) if s < 0.5 else np.log1p((s - 1.0) * weights)  # of 1 - 2 t w_i
    cumulant = -0.5 * factors.sum()
    deviation = math.sqrt(2.0 * np.square(t / (others + s)).sum())  # t times the root of the cumulants' curvature
    w = math.copysign(math.sqrt(2.0 * (t * value - cumulant)), t)
    return 0.5 * math.erfc((w + math.log(deviation / abs(w)) / w) / math.sqrt(2.0))
