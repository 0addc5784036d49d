"""Overdispersed counts of which mean and dispersion each have a predictor."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from gpytorch_gam.distributions.count_probabilities import fall_of_cdf, negative_binomial_cdf
from gpytorch_gam.distributions.expected_cdf import expected_cdf
from gpytorch_gam.distributions.mean_dispersion_negative_binomial import (
    MeanDispersionNegativeBinomial,
    bounded_log_dispersion,
    log_prob_given_rate,
    log_rate,
    negative_binomial_log_prob,
)
from gpytorch_gam.distributions.node_mixture import NodeMixture
from gpytorch_gam.numerics.quadrature import bounded_exp, log_expectation, product_rule

from ._joint_expectation import conditional_nodes, joint_nodes, standard_nodes
from .joint_likelihood import JointLikelihood, drawn_predictors
from .null_model import Counts, NullModel, Responses
from .predictor_likelihood import Values
from .response_checks import refuse_non_counts
from .row_argument import EXPOSURE
from .row_arguments_likelihood import with_offset

# Nodes for expected log-probabilities in each predictor; for probabilities, in the log dispersion and the log mean; and
# for distribution functions likewise, which are smoother and slower to evaluate.
_EXPECTATION_NODES, _DISPERSION_NODES, _MEAN_NODES = 20, 16, 32
_CDF_DISPERSION_NODES, _CDF_MEAN_NODES = 10, 32


class NegativeBinomialMeanDispersionLikelihood(JointLikelihood):
    r"""
    Distributional regression for counts: predictor 0 is the log of the mean, predictor 1 the log of the dispersion,

    .. math::
        E[y \mid \rho] = \mu = E \, e^{\rho_0}, \qquad \operatorname{var}[y \mid \rho] = \mu + e^{\rho_1} \mu^2,

    with the exposure :math:`E` of a row, which is one by default. As :math:`\rho_1 \to -\infty` it is the Poisson
    distribution; log dispersions are held between -30 and 30.

    Expectations under the joint Gaussian of a row are those of a 20 x 20 Gauss-Hermite rule through the Cholesky factor
    of its covariance, accurate to 1e-8 nats for standard deviations up to one and to 1e-5 for two. The predictive
    distribution has mean and variance by that rule, log-probabilities by a rule that follows the count, and samples
    that are drawn through the predictors; so is its distribution function, to 1e-6, by which
    :func:`predictive_quantiles` finds quantiles.

    Row-wise arguments: ``exposure`` multiplies the mean; ``offset`` is added to predictor 0; ``weights`` multiply
    log-probabilities. Each group of the model names the predictor to which it belongs:
    ``ComponentGroup(..., predictor=1)``.
    """

    _own_arguments = (EXPOSURE,)
    _is_double: ClassVar[bool] = True  # terms of the size of the counts cancel

    def _check_responses(self, y: Tensor, values: Values) -> None:
        refuse_non_counts(type(self).__name__, y)

    def _expected_log_prob(self, y: Tensor, mean: Tensor, covariance: Tensor, values: Values) -> Tensor:
        # The dispersion is the outer variable, so that gamma functions are taken at its nodes alone; the log mean,
        # given it, enters linearly and by log(1 + alpha mu).
        mean = _exposed(mean, values)
        outer = conditional_nodes(mean, covariance, _EXPECTATION_NODES)
        inner, inner_log_weights = standard_nodes(1, mean.dtype, mean.device, _EXPECTATION_NODES)
        log_means = outer.mean.unsqueeze(-1) + outer.variance.sqrt().unsqueeze(-1) * inner.squeeze(-1)
        log_rates = log_rate(log_means, outer.second.unsqueeze(-1)) @ inner_log_weights.exp()  # (K, *batch, n)
        given_dispersion = log_prob_given_rate(y, outer.second, log_rates)
        return torch.tensordot(outer.log_weights.exp(), given_dispersion, dims=1) + y * mean[..., 0]

    def _log_marginal(self, y: Tensor, mean: Tensor, covariance: Tensor, values: Values) -> Tensor:
        return _log_probability(y, _exposed(mean, values), covariance)

    def _marginal(self, mean: Tensor, covariance: Tensor, values: Values) -> NodeMixture:
        return _CountMixture(_exposed(mean, values), covariance)

    def _conditional(self, predictors: Tensor, values: Values) -> MeanDispersionNegativeBinomial:
        return MeanDispersionNegativeBinomial(*_exposed(predictors, values).unbind(-1))

    def _null_model(self, responses: Responses) -> NullModel:
        counts = Counts.of(responses)
        # The dispersion starts with half of the spread that a Poisson distribution does not explain.
        log_dispersion = math.log(math.expm1(0.5 * counts.log_spread))
        return NullModel([counts.log_mean, log_dispersion], [0.5 * counts.log_spread, 1.0], {})


class _CountMixture(NodeMixture):
    """The predictive distribution of counts: torch's mixture with exact samples and log-probabilities."""

    def __init__(self, mean: Tensor, covariance: Tensor) -> None:
        self._moments = mean, covariance
        nodes = joint_nodes(mean, covariance)
        super().__init__(nodes.log_weights, MeanDispersionNegativeBinomial, *nodes.values.movedim(0, -2).unbind(-1))

    def expand(self, batch_shape: Any, _instance: Any = None) -> _CountMixture:
        mean, covariance = self._moments
        return _CountMixture(mean.expand(*batch_shape, 2), covariance.expand(*batch_shape, 2, 2))

    def log_prob(self, value: Tensor) -> Tensor:
        mean, covariance = self._moments
        return _log_probability(value.double(), mean.double(), covariance.double()).to(mean.dtype)

    def cdf(self, value: Tensor) -> Tensor:
        mean, covariance = self._moments
        return _distribution_function(value.double().floor(), mean.double(), covariance.double()).to(mean.dtype)

    def cdf_in_rows(self, value: Tensor, rows: Tensor) -> Tensor:
        mean, covariance = (part.double() for part in self._moments)
        mean, covariance = mean.expand(*self.batch_shape, 2), covariance.expand(*self.batch_shape, 2, 2)
        own = mean.reshape(-1, 2)[rows], covariance.reshape(-1, 2, 2)[rows]
        return _distribution_function(value.double().floor(), *own).to(value.dtype)

    @torch.no_grad()
    def sample(self, sample_shape: Any = ()) -> Tensor:
        predictors = drawn_predictors(*self._moments, torch.Size(sample_shape))
        return MeanDispersionNegativeBinomial(*predictors.unbind(-1)).sample()


def _log_probability(y: Tensor, mean: Tensor, covariance: Tensor) -> Tensor:
    """The logarithm of the expected probability of counts ``(*sample, *batch, n)``, in float64."""
    # The probability of a count is a narrow function of its log mean: nodes are placed where the product with the
    # density of the predictor is large. The conditional nodes of the dispersion account for the covariance.
    shape = torch.broadcast_shapes(y.shape, mean.shape[:-1])
    nodes = conditional_nodes(mean.expand(*shape, 2), covariance.expand(*shape, 2, 2), _DISPERSION_NODES)

    def log_prob(log_means: Tensor) -> Tensor:
        return negative_binomial_log_prob(y, log_means, nodes.second)

    variance = nodes.variance.expand(nodes.mean.shape)
    rule = product_rule(log_prob, nodes.mean, variance, _MEAN_NODES)
    given_dispersion = log_expectation(log_prob, nodes.mean, variance, rule)
    return (given_dispersion.movedim(0, -1) + nodes.log_weights).logsumexp(-1)


def _distribution_function(y: Tensor, mean: Tensor, covariance: Tensor) -> Tensor:
    """The expected probability of no more than the counts ``(*sample, *batch, n)``, in float64."""
    shape = torch.broadcast_shapes(y.shape, mean.shape[:-1])
    nodes = conditional_nodes(mean.expand(*shape, 2), covariance.expand(*shape, 2, 2), _CDF_DISPERSION_NODES)
    dispersion = bounded_log_dispersion(nodes.second).exp()
    fall = fall_of_cdf(y, torch.ones_like(y), dispersion)
    given_dispersion = expected_cdf(_cdf, [y, dispersion], fall, nodes.mean, nodes.variance, _CDF_MEAN_NODES)
    return torch.tensordot(nodes.log_weights.exp(), given_dispersion, dims=1)


def _cdf(log_means: Tensor, counts: Tensor, dispersion: Tensor) -> Tensor:
    return negative_binomial_cdf(counts, bounded_exp(log_means), dispersion)


def _exposed(predictors: Tensor, values: Values) -> Tensor:
    """The predictors, with the logarithm of the exposure added to that of the mean."""
    return with_offset(predictors, values["exposure"].log())
