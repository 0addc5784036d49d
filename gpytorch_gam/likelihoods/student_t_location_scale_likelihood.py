"""Responses with heavy tails whose location and scale have a predictor each."""

from __future__ import annotations

import math
from typing import Any

import torch
from gpytorch.constraints import Interval
from gpytorch.priors import Prior
from torch import Tensor
from torch.distributions import Normal, StudentT

from gpytorch_gam.distributions.node_mixture import NodeMixture
from gpytorch_gam.distributions.predictor_distribution import PredictorMoments
from gpytorch_gam.numerics.quadrature import bounded_exp
from gpytorch_gam.parameters.initial_values import forget_initial_value, note_initial_value
from gpytorch_gam.parameters.positive_constraint import positive

from ._joint_expectation import conditional_nodes, positive_exp
from .joint_likelihood import _JointLikelihood
from .null_model import NOISE_SHARE, NullModel, Responses

# Nodes in the log scale, and in the mixing variable of Student's distribution for expectations and for predictions.
_SCALE_NODES, _EXPECTATION_NODES, _PREDICTION_NODES = 20, 32, 40


class StudentTLocationScaleLikelihood(_JointLikelihood):
    r"""
    Distributional regression with Student's distribution: predictor 0 is the location, predictor 1 the log of the
    scale,

    .. math::
        y \mid \rho \sim \rho_0 + e^{\rho_1} \, t_\nu,

    with learnt degrees of freedom :math:`\nu`, as in GPyTorch's :class:`~gpytorch.likelihoods.StudentTLikelihood`.

    Student's distribution is a mixture of Gaussians, and the location is integrated out of it exactly. What is left are
    integrals over the log scale (20 Gauss-Hermite nodes) and over the mixing variable (a trapezoidal rule in its log,
    which converges fast): expected log-probabilities are right to 1e-6 nats for standard deviations of the log scale up
    to a half and 1e-5 up to one, whatever that of the location. The predictive distribution is a mixture of Gaussians,
    with density, ``cdf``, mean and variance; :func:`predictive_quantiles` gives its quantiles.

    Groups of the model say which predictor they belong to: ``ComponentGroup(..., predictor=1)``. A row-wise ``offset``
    is added to the location; ``weights`` multiply log-probabilities.

    :param batch_shape: Batch shape of the degrees of freedom.
    :param deg_free_prior: Their prior.
    :param deg_free_constraint: Their constraint; default above 2, where the variance exists.

    :ivar deg_free: :math:`\nu`, ``(*batch_shape, 1)``; 7 at first.
    """

    raw_deg_free: torch.nn.Parameter
    raw_deg_free_constraint: Interval

    def __init__(
        self,
        batch_shape: torch.Size = torch.Size([]),  # noqa: B008 (GPyTorch's own default)
        deg_free_prior: Prior | None = None,
        deg_free_constraint: Interval | None = None,
    ) -> None:
        super().__init__(num_predictors=2)
        self.register_parameter("raw_deg_free", torch.nn.Parameter(torch.zeros(*batch_shape, 1)))
        self.register_constraint("raw_deg_free", deg_free_constraint or positive(2.0))
        if deg_free_prior is not None:
            self.register_prior("deg_free_prior", deg_free_prior, _deg_free_of, _set_deg_free_of)
        self.deg_free = 7.0
        note_initial_value(self, "raw_deg_free")

    @property
    def deg_free(self) -> Tensor:
        """Degrees of freedom, ``(*batch_shape, 1)``."""
        return self.raw_deg_free_constraint.transform(self.raw_deg_free)

    @deg_free.setter
    def deg_free(self, value: Any) -> None:
        forget_initial_value(self, "raw_deg_free")
        value = torch.as_tensor(value).to(self.raw_deg_free)
        self.initialize(raw_deg_free=self.raw_deg_free_constraint.inverse_transform(value))

    def _expected_log_prob(self, observations: Tensor, moments: PredictorMoments, **row: Tensor) -> Tensor:
        nu = self.deg_free
        nodes = conditional_nodes(moments, _SCALE_NODES)
        precision = bounded_exp(-2 * nodes.second) / nu
        shift = (observations - nodes.mean).square() * precision  # (K, *batch, n)
        logs = expected_log1p_square(shift, nodes.variance * precision)
        tail = torch.tensordot(nodes.log_weights.exp(), logs, dims=1)
        return log_normaliser(nu) - moments.mean[..., 1] - 0.5 * (nu + 1) * tail

    def _log_marginal(self, observations: Tensor, moments: PredictorMoments, **row: Tensor) -> Tensor:
        return self._marginal(moments).log_prob(observations)

    def _marginal(self, moments: PredictorMoments, **row: Tensor) -> NodeMixture:
        nodes = conditional_nodes(moments, _SCALE_NODES)
        log_mixing, mixing_log_weights = mixing_nodes(self.deg_free.expand(moments.mean.shape[:-1]))  # (*batch, n, L)
        squares = bounded_exp(2 * nodes.second.movedim(0, -1).unsqueeze(-1) - log_mixing.unsqueeze(-2))
        scale = (nodes.variance[..., None, None] + squares).sqrt()  # (*batch, n, K, L)
        location = nodes.mean.movedim(0, -1).unsqueeze(-1).expand(scale.shape)
        log_weights = nodes.log_weights.unsqueeze(-1) + mixing_log_weights.unsqueeze(-2)
        # The nodes of the mixing variable leave out what the variance of few degrees of freedom is made of.
        weights = nodes.log_weights.exp()
        between = torch.tensordot(weights, (nodes.mean - moments.mean[..., 0]).square(), dims=1)
        squared_scale = torch.tensordot(weights, bounded_exp(2 * nodes.second), dims=1)
        degrees = self.deg_free - 2
        excess = torch.where(degrees > 0, self.deg_free / degrees, torch.inf)
        variance = nodes.variance + between + excess * squared_scale
        return _StudentMixture(variance, log_weights.flatten(-2), location.flatten(-2), scale.flatten(-2))

    def _parameters_given(self, predictors: Tensor, **row: Tensor) -> tuple[Tensor, ...]:
        location, log_scale = predictors.unbind(-1)
        return self.deg_free, location, positive_exp(log_scale)

    @staticmethod
    def _conditional(*parameters: Tensor) -> StudentT:
        deg_free, location, scale = parameters
        return StudentT(deg_free, location, scale, validate_args=False)

    def _null_model(self, responses: Responses) -> NullModel:
        values = responses.y - responses.offset
        variance = responses.robust_variance(values)
        log_scale = 0.5 * math.log(NOISE_SHARE * variance)
        return NullModel([responses.quantile(values, 0.5), log_scale], [variance, 1.0], {})


class _StudentMixture(NodeMixture):
    """The predictive distribution, with its variance, infinite where there are two degrees of freedom or fewer."""

    def __init__(self, variance: Tensor, log_weights: Tensor, location: Tensor, scale: Tensor) -> None:
        self._variance = variance
        super().__init__(log_weights, _normal, location, scale)

    @property
    def variance(self) -> Tensor:
        return self._variance

    def expand(self, batch_shape: Any, _instance: Any = None) -> _StudentMixture:
        parts = (value.expand(*batch_shape, value.shape[-1]) for value in (self._log_weights, *self._parameters))
        return _StudentMixture(self._variance.expand(batch_shape), *parts)


def _normal(location: Tensor, scale: Tensor) -> Normal:
    return Normal(location, scale, validate_args=False)


def log_normaliser(deg_free: Tensor) -> Tensor:
    """
    Log of the density of Student's standard distribution at zero.

    :param deg_free: Any shape.
    """
    return torch.lgamma(0.5 * (deg_free + 1)) - torch.lgamma(0.5 * deg_free) - 0.5 * (math.pi * deg_free).log()


def expected_log1p_square(shift: Tensor, variance: Tensor) -> Tensor:
    r"""
    :math:`E \log(1 + x^2)` of a Gaussian :math:`x`, to about 1e-6 whatever its moments.

    With :math:`\log(1 + q) = \int_0^\infty (1 - e^{-\lambda q}) e^{-\lambda} d\lambda / \lambda` the Gaussian
    expectation is inside an integral. Its difference to :math:`\log(1 + \bar q)`, :math:`\bar q = E x^2`, has an
    integrand that vanishes to second order at zero; in :math:`\log\lambda` the trapezoidal rule takes it.

    :param shift: Square of the mean of :math:`x`, any shape.
    :param variance: Its variance, a shape that broadcasts.
    """
    expected = shift + variance
    low = -torch.log1p(expected.detach()) - 10.0
    high = 3.6  # e^-36 is left beyond it
    steps = torch.arange(_EXPECTATION_NODES, dtype=expected.dtype, device=expected.device)
    width = (high - low) / (_EXPECTATION_NODES - 1)
    lam = (low.unsqueeze(-1) + width.unsqueeze(-1) * steps).exp()
    spread = 1 + 2 * lam * variance.unsqueeze(-1)
    laplace = spread.rsqrt() * (-lam * shift.unsqueeze(-1) / spread).exp()  # E exp(-lambda x^2)
    difference = ((-lam * expected.unsqueeze(-1)).exp() - laplace) * (-lam).exp()
    return torch.log1p(expected) + width * difference.sum(-1)


def mixing_nodes(deg_free: Tensor) -> tuple[Tensor, Tensor]:
    r"""
    Nodes of the precision :math:`\lambda \sim \mathrm{Gamma}(\nu / 2, \nu / 2)` of which Student's distribution is a
    mixture: a trapezoidal rule in :math:`\log\lambda` over the range where the density is above e^-24 of its largest.

    :param deg_free: :math:`\nu`, any shape.
    :return: Logs of the nodes and of their weights, which sum to one, ``(*shape, L)`` each.
    """
    depth = (48.0 / deg_free).detach()
    reach = depth + (2 * depth).sqrt()
    low, high = -reach, torch.log1p(reach)
    steps = torch.linspace(0.0, 1.0, _PREDICTION_NODES, dtype=deg_free.dtype, device=deg_free.device)
    log_mixing = low.unsqueeze(-1) + (high - low).unsqueeze(-1) * steps
    log_density = 0.5 * deg_free.unsqueeze(-1) * (log_mixing - torch.expm1(log_mixing))
    return log_mixing, log_density.log_softmax(-1)


def _deg_free_of(likelihood: StudentTLocationScaleLikelihood) -> Tensor:
    return likelihood.deg_free


def _set_deg_free_of(likelihood: StudentTLocationScaleLikelihood, value: Any) -> None:
    likelihood.deg_free = value
