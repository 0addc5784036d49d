"""Responses with heavy tails of which location and scale each have a predictor."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from gpytorch.constraints import Interval
from gpytorch.priors import Prior
from torch import Tensor
from torch.distributions import Normal, StudentT

from gpytorch_gam.distributions.node_mixture import NodeMixture
from gpytorch_gam.numerics.quadrature import bounded_exp
from gpytorch_gam.numerics.student_t import expected_log1p_square
from gpytorch_gam.parameters.positive_constraint import positive

from ._joint_expectation import conditional_nodes, positive_exp
from .joint_likelihood import JointLikelihood
from .null_model import NOISE_SHARE, NullModel, Responses
from .predictor_likelihood import Values, learnt
from .student_t_likelihood import log_normaliser

# Nodes in the log scale, and in the mixing variable of Student's distribution for expectations and for predictions.
_SCALE_NODES, _EXPECTATION_NODES, _PREDICTION_NODES = 20, 48, 40


class StudentTLocationScaleLikelihood(JointLikelihood):
    r"""
    Distributional regression with Student's distribution: predictor 0 is the location, predictor 1 the log of the
    scale,

    .. math::
        y \mid \rho \sim \rho_0 + e^{\rho_1} \, t_\nu,

    with learnt degrees of freedom :math:`\nu`, as in GPyTorch's :class:`~gpytorch.likelihoods.StudentTLikelihood`.

    Student's distribution is a mixture of Gaussians, and the location is integrated out of it exactly. There remain
    integrals over the log scale (20 Gauss-Hermite nodes) and over the mixing variable (a trapezoidal rule in its log,
    which converges fast): expected log-probabilities are accurate to 1e-6 nats for standard deviations of the log scale
    up to a half, and to 1e-5 up to one, while that of the location is up to a hundred scales. The predictive
    distribution is a mixture of Gaussians, with density, ``cdf``, mean and variance; :func:`predictive_quantiles` gives
    its quantiles.

    Each group of the model names the predictor to which it belongs: ``ComponentGroup(..., predictor=1)``. A row-wise
    ``offset`` is added to the location; ``weights`` multiply log-probabilities.

    :param batch_shape: Batch shape of the degrees of freedom.
    :param deg_free_prior: Prior of the degrees of freedom.
    :param deg_free_constraint: Constraint of the degrees of freedom; default above 2, where the variance exists.

    :ivar deg_free: The degrees of freedom :math:`\nu`, ``(*batch_shape, 1)``; initially 7.
    """

    raw_deg_free: torch.nn.Parameter
    raw_deg_free_constraint: Interval

    deg_free = learnt("deg_free", r"Degrees of freedom :math:`\nu`, ``(*batch_shape, 1)``; can be set.")

    def __init__(
        self,
        batch_shape: torch.Size = torch.Size([]),  # noqa: B008 (GPyTorch's own default)
        deg_free_prior: Prior | None = None,
        deg_free_constraint: Interval | None = None,
    ) -> None:
        super().__init__()
        self._learn("deg_free", 7.0, batch_shape, deg_free_constraint or positive(2.0), deg_free_prior)

    def _expected_log_prob(self, y: Tensor, mean: Tensor, covariance: Tensor, values: Values) -> Tensor:
        nu = values["deg_free"]
        nodes = conditional_nodes(mean, covariance, _SCALE_NODES)
        precision = bounded_exp(-2 * nodes.second) / nu
        shift = (y - nodes.mean).square() * precision  # (K, *batch, n)
        logs = expected_log1p_square(shift, nodes.variance * precision, _EXPECTATION_NODES)
        tail = torch.tensordot(nodes.log_weights.exp(), logs, dims=1)
        return log_normaliser(nu) - mean[..., 1] - 0.5 * (nu + 1) * tail

    def _log_marginal(self, y: Tensor, mean: Tensor, covariance: Tensor, values: Values) -> Tensor:
        return self._marginal(mean, covariance, values).log_prob(y)

    def _marginal(self, mean: Tensor, covariance: Tensor, values: Values) -> NodeMixture:
        nu = values["deg_free"]
        nodes = conditional_nodes(mean, covariance, _SCALE_NODES)
        log_mixing, mixing_log_weights = mixing_nodes(nu.expand(mean.shape[:-1]))  # (*batch, n, L)
        squares = bounded_exp(2 * nodes.second.movedim(0, -1).unsqueeze(-1) - log_mixing.unsqueeze(-2))
        scale = (nodes.variance[..., None, None] + squares).sqrt()  # (*batch, n, K, L)
        location = nodes.mean.movedim(0, -1).unsqueeze(-1).expand(scale.shape)
        log_weights = nodes.log_weights.unsqueeze(-1) + mixing_log_weights.unsqueeze(-2)
        # The nodes of the mixing variable leave out extremes, which dominate the variance for few degrees of freedom.
        weights = nodes.log_weights.exp()
        between = torch.tensordot(weights, (nodes.mean - mean[..., 0]).square(), dims=1)
        squared_scale = torch.tensordot(weights, bounded_exp(2 * nodes.second), dims=1)
        excess = torch.where(nu > 2, nu / (nu - 2), torch.inf)
        variance = nodes.variance + between + excess * squared_scale
        return _StudentMixture(variance, log_weights.flatten(-2), location.flatten(-2), scale.flatten(-2))

    def _conditional(self, predictors: Tensor, values: Values) -> StudentT:
        location, log_scale = predictors.unbind(-1)
        return StudentT(values["deg_free"], location, positive_exp(log_scale), validate_args=False)

    def _null_model(self, responses: Responses) -> NullModel:
        residuals = responses.without_offset
        responses.require_spread(type(self).__name__, "scale", residuals)
        variance = responses.robust_variance(residuals)
        log_scale = 0.5 * math.log(NOISE_SHARE * variance)
        return NullModel([responses.quantile(residuals, 0.5), log_scale], [variance, 1.0], {})


class _StudentMixture(NodeMixture):
    """The predictive distribution, with its exact variance, which is infinite for two degrees of freedom or fewer."""

    def __init__(self, variance: Tensor, log_weights: Tensor, location: Tensor, scale: Tensor) -> None:
        self._variance = variance
        super().__init__(log_weights, partial(Normal, validate_args=False), location, scale)

    @property
    def variance(self) -> Tensor:
        return self._variance

    def expand(self, batch_shape: Any, _instance: Any = None) -> _StudentMixture:
        parts = (value.expand(*batch_shape, value.shape[-1]) for value in (self._log_weights, *self._parameters))
        return _StudentMixture(self._variance.expand(batch_shape), *parts)


def mixing_nodes(deg_free: Tensor) -> tuple[Tensor, Tensor]:
    r"""
    Logarithms of nodes, and of their weights, which sum to one, ``(*shape, L)`` each, for the precision
    :math:`\lambda \sim \mathrm{Gamma}(\nu / 2, \nu / 2)` of which Student's distribution is a mixture: a trapezoidal
    rule in :math:`\log\lambda` over the range where the density is above e^-24 of its maximum.
    """
    depth = (48.0 / deg_free).detach()
    reach = depth + (2 * depth).sqrt()
    low, high = -reach, torch.log1p(reach)
    steps = torch.linspace(0.0, 1.0, _PREDICTION_NODES, dtype=deg_free.dtype, device=deg_free.device)
    log_mixing = low.unsqueeze(-1) + (high - low).unsqueeze(-1) * steps
    log_density = 0.5 * deg_free.unsqueeze(-1) * (log_mixing - torch.expm1(log_mixing))
    return log_mixing, log_density.log_softmax(-1)
