"""Overdispersed counts whose mean and dispersion have a predictor each."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from gpytorch_gam.distributions.mean_dispersion_negative_binomial import (
    MeanDispersionNegativeBinomial,
    log_prob_given_rate,
    log_rate,
    negative_binomial_log_prob,
)
from gpytorch_gam.distributions.node_mixture import NodeMixture
from gpytorch_gam.distributions.predictor_distribution import PredictorMoments
from gpytorch_gam.numerics.quadrature import log_expectation, product_rule

from ._joint_expectation import conditional_nodes, joint_nodes, row_cholesky, standard_nodes
from .joint_likelihood import _JointLikelihood
from .null_model import Counts, NullModel, Responses
from .row_arguments import refuse_rows

# Nodes a predictor of expected log-probabilities; of probabilities, in the log dispersion and in the log mean given it.
_EXPECTATION_NODES, _DISPERSION_NODES, _MEAN_NODES = 20, 16, 32


class NegativeBinomialMeanDispersionLikelihood(_JointLikelihood):
    r"""
    Distributional regression for counts: predictor 0 is the log of the mean, predictor 1 the log of the dispersion,

    .. math::
        E[y \mid \rho] = \mu = E \, e^{\rho_0}, \qquad \operatorname{var}[y \mid \rho] = \mu + e^{\rho_1} \mu^2,

    with the exposure :math:`E` of a row, one by default. As :math:`\rho_1 \to -\infty` it is the Poisson distribution;
    log dispersions are held between -30 and 30.

    Expectations under the joint Gaussian of a row are those of a 20 x 20 Gauss-Hermite rule through the Cholesky factor
    of its covariance, right to 1e-8 nats for standard deviations up to one, 1e-5 for two. The predictive distribution
    has mean and variance by that rule, log-probabilities by one that follows the count, and samples drawn through the
    predictors; :func:`predictive_quantiles` gives its quantiles.

    Row-wise arguments: ``exposure`` multiplies the mean; ``offset`` is added to predictor 0; ``weights`` multiply
    log-probabilities. Groups of the model say which predictor they belong to: ``ComponentGroup(..., predictor=1)``.
    """

    _positive_row_arguments = ("exposure",)

    def __init__(self) -> None:
        super().__init__(num_predictors=2)

    def _check_values(self, observations: Tensor) -> None:
        refuse_rows(
            type(self).__name__,
            observations,
            lambda y: (y < 0) | (y != y.round()) if y.is_floating_point() else y < 0,
            "values that are no counts",
            "counts are 0, 1, 2, ...",
        )

    def _expected_log_prob(
        self, observations: Tensor, moments: PredictorMoments, exposure: Tensor | None = None, **row: Tensor
    ) -> Tensor:
        # The dispersion is the outer variable, so that gamma functions are taken at its nodes alone; the log mean,
        # given it, enters linearly and by log(1 + alpha mu). In float64: terms of the size of the counts cancel.
        dtype, counts = moments.mean.dtype, observations.double()
        moments = PredictorMoments(moments.mean.double(), moments.covariance.double())
        shifted = _with_exposure_in_mean(moments, None if exposure is None else exposure.double())
        outer = conditional_nodes(shifted, _EXPECTATION_NODES)
        inner, inner_log_weights = standard_nodes(1, outer.mean.dtype, outer.mean.device, _EXPECTATION_NODES)
        log_means = outer.mean.unsqueeze(-1) + outer.variance.sqrt().unsqueeze(-1) * inner.squeeze(-1)
        log_rates = log_rate(log_means, outer.second.unsqueeze(-1)) @ inner_log_weights.exp()  # (K, *batch, n)
        given_dispersion = log_prob_given_rate(counts, outer.second, log_rates)
        expected = torch.tensordot(outer.log_weights.exp(), given_dispersion, dims=1)
        return (expected + counts * shifted.mean[..., 0]).to(dtype)

    def _log_marginal(
        self, observations: Tensor, moments: PredictorMoments, exposure: Tensor | None = None, **row: Tensor
    ) -> Tensor:
        # The probability of a count is a narrow function of its log mean: nodes go where the product with the
        # predictor's density is. The conditional nodes of the dispersion carry the covariance.
        mean, covariance = _with_exposure_in_mean(moments, exposure)
        shape = torch.broadcast_shapes(observations.shape, mean.shape[:-1])
        counts = observations.double()
        nodes = conditional_nodes(
            PredictorMoments(mean.double().expand(*shape, 2), covariance.double().expand(*shape, 2, 2)),
            _DISPERSION_NODES,
        )

        def log_prob(log_means: Tensor) -> Tensor:
            return negative_binomial_log_prob(counts, log_means, nodes.second)

        variance = nodes.variance.expand(nodes.mean.shape)
        rule = product_rule(log_prob, nodes.mean, variance, _MEAN_NODES)
        given_dispersion = log_expectation(log_prob, nodes.mean, variance, rule)
        return (given_dispersion.movedim(0, -1) + nodes.log_weights).logsumexp(-1).to(mean.dtype)

    def _marginal(self, moments: PredictorMoments, exposure: Tensor | None = None, **row: Tensor) -> NodeMixture:
        return _CountMixture(self, _with_exposure_in_mean(moments, exposure))

    def _parameters_given(
        self, predictors: Tensor, exposure: Tensor | None = None, **row: Tensor
    ) -> tuple[Tensor, ...]:
        log_mean, log_dispersion = predictors.unbind(-1)
        return with_exposure(log_mean, exposure), log_dispersion

    @staticmethod
    def _conditional(*parameters: Tensor) -> MeanDispersionNegativeBinomial:
        return MeanDispersionNegativeBinomial(*parameters)

    def _null_model(self, responses: Responses) -> NullModel:
        counts = Counts.of(responses)
        # One half of what a Poisson distribution leaves is the dispersion's.
        log_dispersion = math.log(math.expm1(0.5 * counts.log_spread))
        return NullModel([counts.log_mean, log_dispersion], [0.5 * counts.log_spread, 1.0], {})


def _with_exposure_in_mean(moments: PredictorMoments, exposure: Tensor | None) -> PredictorMoments:
    log_mean, log_dispersion = moments.mean.unbind(-1)
    return moments._replace(mean=torch.stack([with_exposure(log_mean, exposure), log_dispersion], dim=-1))


class _CountMixture(NodeMixture):
    """
    The predictive distribution of counts: torch's mixture for mean and variance, exact samples, and log-probabilities
    that do not see the nodes.
    """

    def __init__(self, likelihood: NegativeBinomialMeanDispersionLikelihood, moments: PredictorMoments) -> None:
        self._likelihood, self._moments = likelihood, moments
        nodes = joint_nodes(moments)
        log_mean, log_dispersion = nodes.values.movedim(0, -2).unbind(-1)
        super().__init__(nodes.log_weights, MeanDispersionNegativeBinomial, log_mean, log_dispersion)

    def expand(self, batch_shape: Any, _instance: Any = None) -> _CountMixture:
        mean, covariance = self._moments
        moments = PredictorMoments(mean.expand(*batch_shape, 2), covariance.expand(*batch_shape, 2, 2))
        return _CountMixture(self._likelihood, moments)

    def log_prob(self, value: Tensor) -> Tensor:
        return self._likelihood._log_marginal(value, self._moments)

    @torch.no_grad()
    def sample(self, sample_shape: Any = ()) -> Tensor:
        mean, covariance = self._moments
        noise = torch.randn(*sample_shape, *mean.shape, dtype=mean.dtype, device=mean.device)
        predictors = mean + (row_cholesky(covariance) @ noise.unsqueeze(-1)).squeeze(-1)
        return MeanDispersionNegativeBinomial(*predictors.unbind(-1)).sample()


def with_exposure(log_mean: Tensor, exposure: Tensor | None) -> Tensor:
    """
    The log of the mean times the exposure.

    :param log_mean: Any shape.
    :param exposure: Positive, a shape that broadcasts; None for one.
    """
    return log_mean if exposure is None else log_mean + exposure.log()
