"""The expected log-likelihood of each row, and its derivatives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import gpytorch
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import Likelihood
from linear_operator.operators import DiagLinearOperator
from torch import Tensor

from gpytorch_gam.distributions.predictor_distribution import PredictorMoments, independent_rows


class ExpectedGradients(NamedTuple):
    r"""
    Expected log-likelihoods :math:`E_n` of rows under their marginals, and derivatives, in float64. The curvatures are
    :math:`\lambda_n = \max(0, -2\, \partial E_n / \partial \mathrm{variance}_n)` for one predictor, but for several
    :math:`-2\, \partial E_n / \partial \mathrm{covariance}_n` without the maximum.
    """

    expected: Tensor  # E_n in nats, (*batch, n)
    gradients: Tensor  # with respect to the means, (*batch, n), or (n, P) for P predictors
    curvatures: Tensor  # (*batch, n), or (n, P, P) for P predictors


def expected_gradients(
    likelihood: Likelihood,
    y: Tensor,
    mean: Tensor,
    variance: Tensor,
    row_arguments: Mapping[str, Tensor] | None = None,
    clamped: bool = True,
) -> ExpectedGradients:
    """
    Derivatives of the expected log-likelihood with respect to mean and variance ``(*batch, n)`` of a predictor, where
    variances are at least ``gpytorch.settings.min_variance``. Negative curvatures become zero if ``clamped``.
    """
    # Raised before it is a variable: the distribution would do so afterwards, and curvatures of these rows be zero.
    variance = variance.detach().clamp_min(gpytorch.settings.min_variance.value(variance.dtype))
    with torch.enable_grad():
        mean, variance = mean.detach().requires_grad_(), variance.requires_grad_()
        rows = MultivariateNormal(mean, DiagLinearOperator(variance))
        expected = likelihood.expected_log_prob(y, rows, **(row_arguments or {}))
        _check_one_a_row(likelihood, expected, mean.dim())
        by_mean, by_variance = torch.autograd.grad(expected.sum(), (mean, variance))
    curvatures = -2 * by_variance.double()
    curvatures = curvatures.clamp_min(0.0) if clamped else curvatures
    return ExpectedGradients(expected.detach().double(), by_mean.double(), curvatures)


def joint_expected_gradients(
    likelihood: Likelihood,
    y: Tensor,
    mean: Tensor,
    covariance: Tensor,
    row_arguments: Mapping[str, Tensor] | None = None,
) -> ExpectedGradients:
    """Derivatives of the expected log-likelihood with respect to mean ``(n, P)`` and covariances ``(n, P, P)``."""
    with torch.enable_grad():
        mean, covariance = mean.detach().requires_grad_(), covariance.detach().requires_grad_()
        joint = independent_rows(PredictorMoments(mean, covariance))
        expected = likelihood.expected_log_prob(y, joint, **(row_arguments or {}))
        _check_one_a_row(likelihood, expected, mean.dim() - 1)
        by_mean, by_covariance = torch.autograd.grad(expected.sum(), (mean, covariance))
    return ExpectedGradients(expected.detach().double(), by_mean.double(), curvature_of(by_covariance, scale=-2.0))


def _check_one_a_row(likelihood: Likelihood, expected: Tensor, num_dims: int) -> None:
    """Raise an error if a user's own likelihood has broadcast responses of another shape against the rows."""
    if expected.dim() != num_dims:
        raise ValueError(
            f"the expected log-probabilities of {type(likelihood).__name__} have shape {tuple(expected.shape)}, but "
            "there must be one for each row: look at the shape of its responses"
        )


def curvature_of(gradient: Tensor, scale: float) -> Tensor:
    """``scale`` times a gradient ``(n, P, P)`` in covariances, in float64, made symmetric: it may fill one triangle."""
    doubled = gradient.double()
    return 0.5 * scale * (doubled + doubled.mT)
