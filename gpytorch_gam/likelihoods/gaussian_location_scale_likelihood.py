"""Gaussian responses of which mean and standard deviation each have a predictor."""

from __future__ import annotations

import math
from functools import partial

from torch import Tensor
from torch.distributions import Normal

from gpytorch_gam.distributions.node_mixture import NodeMixture
from gpytorch_gam.numerics.quadrature import bounded_exp, mean_of_exp

from ._joint_expectation import conditional_nodes, positive_exp
from .joint_likelihood import JointLikelihood
from .null_model import NOISE_SHARE, NullModel, Responses
from .predictor_likelihood import Values


class GaussianLocationScaleLikelihood(JointLikelihood):
    r"""
    Distributional regression with a Gaussian: predictor 0 is the mean, predictor 1 the log of the standard deviation,

    .. math::
        y \mid \rho \sim N\big(\rho_0, \; e^{2\rho_1}\big).

    Under the joint Gaussian of a row, with means :math:`m` and covariance :math:`V`, the expected log-probability is

    .. math::
        -\tfrac12 \log 2\pi - m_1 - \tfrac12 e^{-2m_1 + 2V_{11}} \big[ (y - m_0 + 2V_{01})^2 + V_{00} \big].

    The predictive distribution is Gaussian given :math:`\rho_1`, so it is a mixture over 32 Gauss-Hermite nodes of that
    one variable (:class:`~torch.distributions.MixtureSameFamily`, with density, ``cdf``, mean and variance);
    :func:`predictive_quantiles` gives its quantiles. Exponentials that would overflow are continued linearly.

    Each group of the model names the predictor to which it belongs: ``ComponentGroup(..., predictor=1)``. A row-wise
    ``offset`` is added to the mean; ``weights`` multiply log-probabilities.

    Example:
        >>> predictor = AdditivePredictor(mean_effects, constant(), scale_effects, constant(predictor=1))
        >>> model = AdditiveGP(predictor, family="block_low_rank", rank=16)
        >>> likelihood = GaussianLocationScaleLikelihood()
        >>> mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(y))
    """

    def _expected_log_prob(self, y: Tensor, mean: Tensor, covariance: Tensor, values: Values) -> Tensor:
        location, log_scale = mean.unbind(-1)
        across = covariance[..., 0, 1] + covariance[..., 1, 0]  # twice the covariance
        precision = mean_of_exp(-2 * log_scale, 4 * covariance[..., 1, 1])
        square = (y - location + across).square() + covariance[..., 0, 0]
        return -0.5 * math.log(2 * math.pi) - log_scale - 0.5 * precision * square

    def _log_marginal(self, y: Tensor, mean: Tensor, covariance: Tensor, values: Values) -> Tensor:
        return self._marginal(mean, covariance, values).log_prob(y)

    def _marginal(self, mean: Tensor, covariance: Tensor, values: Values) -> NodeMixture:
        nodes = conditional_nodes(mean, covariance)
        location, scale = nodes.mean, (nodes.variance + bounded_exp(2 * nodes.second)).sqrt()
        normal = partial(Normal, validate_args=False)
        return NodeMixture(nodes.log_weights, normal, location.movedim(0, -1), scale.movedim(0, -1))

    def _conditional(self, predictors: Tensor, values: Values) -> Normal:
        location, log_scale = predictors.unbind(-1)
        return Normal(location, positive_exp(log_scale), validate_args=False)

    def _null_model(self, responses: Responses) -> NullModel:
        residuals = responses.without_offset
        responses.require_spread(type(self).__name__, "scale", residuals)
        variance = responses.variance(residuals)
        return NullModel([responses.mean(residuals), 0.5 * math.log(NOISE_SHARE * variance)], [variance, 1.0], {})
