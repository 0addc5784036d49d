"""Overdispersed counts with a log link."""

from __future__ import annotations

import math

import torch
from gpytorch.constraints import Interval
from gpytorch.priors import Prior
from torch import Tensor

from gpytorch_gam.distributions.count_probabilities import fall_of_cdf, negative_binomial_cdf
from gpytorch_gam.distributions.mean_dispersion_negative_binomial import (
    MeanDispersionNegativeBinomial,
    log_prob_given_rate,
    log_rate,
    negative_binomial_log_prob,
)
from gpytorch_gam.numerics.quadrature import bounded_exp, expectation
from gpytorch_gam.parameters.positive_constraint import positive

from .null_model import Counts, NullModel, Responses
from .one_predictor_likelihood import OnePredictorLikelihood
from .predictor_likelihood import Values, learnt
from .response_checks import refuse_non_counts
from .row_argument import EXPOSURE

# Below this dispersion the distribution is Poisson to all digits, but the gradient of its logarithm would overflow.
_LEAST_DISPERSION = 1e-12


class NegativeBinomialLikelihood(OnePredictorLikelihood):
    r"""
    Counts that vary more than Poisson counts, with a log link:

    .. math::
        \mathbb E y_n = \mu_n = E_n e^{f_n + o_n}, \qquad \mathrm{var}\, y_n = \mu_n + \alpha \mu_n^2,

    with exposures :math:`E_n`, offsets :math:`o_n` and a learnt dispersion :math:`\alpha`. It tends to a Poisson
    likelihood as :math:`\alpha \to 0` (GPyTorch's own has a softplus link, and a variance proportional to the mean). In
    mgcv's ``nb()``, :math:`1 / \alpha` is called theta. The expected log-probability is a quadrature.

    Row-wise arguments: ``offset``, ``weights``, and ``exposure``, which is positive and by default one.

    :param batch_shape: Batch shape of the dispersion.
    :param dispersion_prior: Prior of :math:`\alpha`.
    :param dispersion_constraint: Constraint of :math:`\alpha`; default above 1e-8.
    :ivar dispersion: The dispersion :math:`\alpha`, ``(*batch_shape, 1)``; initially 0.1.

    Example:
        >>> likelihood = NegativeBinomialLikelihood()
        >>> loss = -gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(y))(model(x), y, exposure=exposure)
    """

    _own_arguments = (EXPOSURE,)

    dispersion = learnt("dispersion", r":math:`\alpha`, ``(*batch_shape, 1)``; can be set.")

    def __init__(
        self,
        batch_shape: torch.Size = torch.Size([]),  # noqa: B008
        dispersion_prior: Prior | None = None,
        dispersion_constraint: Interval | None = None,
    ) -> None:
        super().__init__()
        self._learn("dispersion", 0.1, batch_shape, dispersion_constraint or positive(1e-8), dispersion_prior)

    def _log_prob(self, y: Tensor, f: Tensor, values: Values) -> Tensor:
        return negative_binomial_log_prob(y, f + values["exposure"].log(), _log_dispersion(values))

    def _expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor, values: Values) -> Tensor:
        # All but log(1 + alpha mu) is linear in f.
        log_means, log_dispersion = mean + values["exposure"].log(), _log_dispersion(values)
        rule = self._bend_rule(y, mean, variance, values, self._num_nodes)
        log_rates = expectation(lambda f: log_rate(f, log_dispersion), log_means, variance, rule)
        return log_prob_given_rate(y, log_dispersion, log_rates) + y * log_means

    def _bend(self, y: Tensor, values: Values) -> tuple[Tensor, Tensor]:
        # log(1 + alpha E e^f) is singular where its argument is -1
        place = -_log_dispersion(values) - values["exposure"].log()
        return place, torch.full_like(place, math.pi)

    def _conditional(self, f: Tensor, values: Values) -> MeanDispersionNegativeBinomial:
        return MeanDispersionNegativeBinomial(f, _log_dispersion(values), values["exposure"])

    def _marginal_cdf(self, y: Tensor, mean: Tensor, variance: Tensor, values: Values) -> Tensor:
        counts, exposure, dispersion = y.floor(), values["exposure"], _log_dispersion(values).exp()
        fall = fall_of_cdf(counts, exposure, dispersion)
        return self._expected_cdf(_cdf, [counts, exposure, dispersion], fall, mean, variance)

    def _check_responses(self, y: Tensor, values: Values) -> None:
        refuse_non_counts(type(self).__name__, y)

    def _null_model(self, responses: Responses) -> NullModel:
        counts = Counts.of(responses)
        # The dispersion starts with half of the spread that a Poisson distribution does not explain.
        dispersion = math.expm1(0.5 * counts.log_spread)
        return NullModel([counts.log_mean], [0.5 * counts.log_spread], {"dispersion": dispersion})


def _log_dispersion(values: Values) -> Tensor:
    return values["dispersion"].clamp_min(_LEAST_DISPERSION).log()


def _cdf(f: Tensor, counts: Tensor, exposure: Tensor, dispersion: Tensor) -> Tensor:
    return negative_binomial_cdf(counts, exposure * bounded_exp(f), dispersion)
