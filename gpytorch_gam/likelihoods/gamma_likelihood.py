"""Positive responses with a log link."""

from __future__ import annotations

import math

import torch
from gpytorch.constraints import Interval
from gpytorch.priors import Prior
from torch import Tensor
from torch.distributions import Gamma

from gpytorch_gam.numerics.quadrature import mean_of_exp
from gpytorch_gam.parameters.positive_constraint import positive

from .null_model import NOISE_SHARE, NullModel, Responses, bounded_log_variance, shape_of_log_variance
from .one_predictor_likelihood import OnePredictorLikelihood
from .predictor_likelihood import Values, learnt
from .response_checks import refuse_rows

# Log means of conditional distributions are held within this bound, beyond which float32 overflows.
_LARGEST_LOG_MEAN = 80.0


class GammaLikelihood(OnePredictorLikelihood):
    r"""
    Positive responses whose standard deviation is proportional to their mean:

    .. math::
        y_n | f_n \sim \mathrm{Gamma}(a, a / \mu_n), \qquad \mathbb E y_n = \mu_n = e^{f_n + o_n}, \quad
        \mathrm{var}\, y_n = \mu_n^2 / a,

    with a learnt shape a. The expected log-probability for :math:`f_n \sim \mathcal N(m_n, v_n)` is a closed form: with
    :math:`r_n = \log y_n - m_n - o_n` it is

    .. math::
        a \log a - \log\Gamma(a) - \log y_n + a \big(r_n - e^{r_n + v_n / 2}\big) .

    Above an exponent of 32 the exponential is continued by its tangent, so that gradients stay finite wherever training
    starts.

    Row-wise arguments: ``offset`` and ``weights``.

    :param batch_shape: Batch shape of the shape parameter.
    :param shape_prior: Prior of the shape a.
    :param shape_constraint: Constraint of the shape a; default positive.
    :ivar shape: The shape a, ``(*batch_shape, 1)``; initially one.

    Example:
        >>> likelihood = GammaLikelihood()
        >>> loss = -gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(y))(model(x), y, weights=weights)
    """

    shape = learnt("shape", "The shape a, ``(*batch_shape, 1)``; can be set.")

    def __init__(
        self,
        batch_shape: torch.Size = torch.Size([]),  # noqa: B008
        shape_prior: Prior | None = None,
        shape_constraint: Interval | None = None,
    ) -> None:
        super().__init__()
        self._learn("shape", 1.0, batch_shape, shape_constraint or positive(), shape_prior)

    def _log_prob(self, y: Tensor, f: Tensor, values: Values) -> Tensor:
        return _gamma_log_prob(y, f, torch.zeros_like(f), values["shape"])

    def _expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor, values: Values) -> Tensor:
        return _gamma_log_prob(y, mean, variance, values["shape"])

    def _marginal_cdf(self, y: Tensor, mean: Tensor, variance: Tensor, values: Values) -> Tensor:
        # As a function of f, the distribution function is a step at log y, as wide as the spread of the log response.
        y, shape = y.clamp_min(torch.finfo(y.dtype).tiny), values["shape"]
        return self._expected_cdf(_cdf, [y, shape], (y.log(), shape.rsqrt()), mean, variance)

    def _conditional(self, f: Tensor, values: Values) -> Gamma:
        shape, log_mean = torch.broadcast_tensors(values["shape"], f.clamp(-_LARGEST_LOG_MEAN, _LARGEST_LOG_MEAN))
        return Gamma(shape, shape * (-log_mean).exp(), validate_args=False)

    def _check_responses(self, y: Tensor, values: Values) -> None:
        owner = type(self).__name__
        refuse_rows(owner, y, lambda values: values <= 0, "zero or negative values", "they must be positive")

    def _null_model(self, responses: Responses) -> NullModel:
        positive_y = responses.y.clamp_min(torch.finfo(torch.float64).tiny)
        logs = positive_y.log() - responses.offset
        responses.require_spread(type(self).__name__, "shape", logs.exp())
        largest = logs.max().item()  # relative to this nothing overflows
        variance = responses.variance(logs)
        shape = shape_of_log_variance(NOISE_SHARE * variance)
        effects = bounded_log_variance((1.0 - NOISE_SHARE) * variance)
        return NullModel([largest + math.log(responses.mean((logs - largest).exp()))], [effects], {"shape": shape})


def _gamma_log_prob(y: Tensor, mean: Tensor, variance: Tensor, shape: Tensor) -> Tensor:
    # Computed on the scale of y / mean, so that neither the units of y nor an extreme predictor overflow.
    log_y = y.log()
    ratio = log_y - mean
    constant = shape * shape.log() - torch.lgamma(shape)
    return constant - log_y + shape * (ratio - mean_of_exp(ratio, variance))


def _cdf(f: Tensor, y: Tensor, shape: Tensor) -> Tensor:
    return torch.special.gammainc(shape.expand(f.shape), shape * (y.log() - f).exp())
