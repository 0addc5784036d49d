"""Derivatives of the expected log-likelihood of each row."""

from __future__ import annotations

from typing import NamedTuple

import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import Likelihood
from linear_operator.operators import DiagLinearOperator
from torch import Tensor


class ExpectedGradients(NamedTuple):
    r"""
    Expected log-likelihoods :math:`E_n` of rows under their marginals, and derivatives, in float64.

    :ivar expected: :math:`E_n` in nats, ``(*batch, n)``.
    :ivar gradients: :math:`g_n = \partial E_n / \partial \mathrm{mean}_n`, ``(*batch, n)``.
    :ivar curvatures: :math:`\lambda_n = \max(0, -2\, \partial E_n / \partial \mathrm{variance}_n)`, ``(*batch, n)``.
    """

    expected: Tensor
    gradients: Tensor
    curvatures: Tensor


def expected_gradients(likelihood: Likelihood, y: Tensor, mean: Tensor, variance: Tensor) -> ExpectedGradients:
    """
    Differentiate the expected log-likelihood in the marginals of the predictor.

    :param likelihood: Any likelihood of one predictor.
    :param y: Responses, ``(*batch, n)``.
    :param mean: Of the predictor, ``(*batch, n)``.
    :param variance: Of the predictor, ``(*batch, n)``.
    """
    with torch.enable_grad():
        mean, variance = mean.detach().requires_grad_(), variance.detach().requires_grad_()
        expected = likelihood.expected_log_prob(y, MultivariateNormal(mean, DiagLinearOperator(variance)))
        by_mean, by_variance = torch.autograd.grad(expected.sum(), (mean, variance))
    return ExpectedGradients(expected.detach().double(), by_mean.double(), (-2 * by_variance.double()).clamp_min(0.0))
