"""Counts with a log link."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Poisson

from gpytorch_gam.distributions.count_probabilities import fall_of_cdf, poisson_cdf
from gpytorch_gam.numerics.quadrature import bounded_exp, mean_of_exp

from .null_model import Counts, NullModel, Responses
from .one_predictor_likelihood import OnePredictorLikelihood
from .predictor_likelihood import Values
from .response_checks import refuse_non_counts
from .row_argument import EXPOSURE


class PoissonLikelihood(OnePredictorLikelihood):
    r"""
    Counts at a rate that is the exponential of the predictor (GPyTorch's own has a softplus there):

    .. math::
        y_n | f_n \sim \mathrm{Poisson}(E_n e^{f_n + o_n}),

    with exposures :math:`E_n` and offsets :math:`o_n`. The expected log-probability for
    :math:`f_n \sim \mathcal N(m_n, v_n)` is a closed form,

    .. math::
        y_n (m_n + o_n + \log E_n) - E_n e^{m_n + o_n + v_n / 2} - \log y_n! .

    Components of the model do not depend on the exposure: it multiplies the rate, and so the predicted mean, exactly.
    The exponential is continued by its tangent above an exponent of 32, and :math:`e^{v/2}` above a variance of 16, so
    that training can start from anywhere.

    Row-wise arguments: ``offset``, ``weights``, and ``exposure``, which is positive and by default one.

    Example:
        >>> likelihood = PoissonLikelihood()
        >>> mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(y))
        >>> loss = -mll(model(x), y, exposure=exposure)
        >>> likelihood(model(x_new), exposure=2.0).mean
    """

    _own_arguments = (EXPOSURE,)

    def _log_prob(self, y: Tensor, f: Tensor, values: Values) -> Tensor:
        return poisson_log_prob(y, f, bounded_exp(f), values["exposure"])

    def _expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor, values: Values) -> Tensor:
        return poisson_log_prob(y, mean, mean_of_exp(mean, variance), values["exposure"])

    def _conditional(self, f: Tensor, values: Values) -> Poisson:
        return Poisson(values["exposure"] * bounded_exp(f), validate_args=False)

    def _marginal_cdf(self, y: Tensor, mean: Tensor, variance: Tensor, values: Values) -> Tensor:
        counts, exposure = y.floor(), values["exposure"]
        fall = fall_of_cdf(counts, exposure, torch.zeros_like(mean))
        return self._expected_cdf(_cdf, [counts, exposure], fall, mean, variance)

    def _check_responses(self, y: Tensor, values: Values) -> None:
        refuse_non_counts(type(self).__name__, y)

    def _null_model(self, responses: Responses) -> NullModel:
        counts = Counts.of(responses)
        return NullModel([counts.log_mean], [counts.log_spread], {})


def poisson_log_prob(y: Tensor, log_rate: Tensor, rate: Tensor, exposure: Tensor) -> Tensor:
    r""":math:`y (a + \log E) - E b - \log y!` for the log rate a and the rate b, or their expectations."""
    return y * (log_rate + exposure.log()) - exposure * rate - torch.lgamma(y + 1)


def _cdf(f: Tensor, counts: Tensor, exposure: Tensor) -> Tensor:
    return poisson_cdf(counts, exposure * bounded_exp(f))
