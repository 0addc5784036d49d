"""Counts with more zeros than a Poisson distribution has."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from gpytorch.constraints import Interval
from gpytorch.priors import Prior
from torch import Tensor

from gpytorch_gam.distributions.count_probabilities import fall_of_cdf, poisson_cdf
from gpytorch_gam.distributions.zero_inflated_poisson import ZeroInflatedPoisson
from gpytorch_gam.numerics.quadrature import NormalRule, bounded_exp, expectation, mean_of_exp, product_rule

from .null_model import Counts, NullModel, Responses
from .one_predictor_likelihood import OnePredictorLikelihood
from .poisson_likelihood import poisson_log_prob
from .predictor_likelihood import Values, learnt
from .response_checks import refuse_non_counts
from .row_argument import EXPOSURE


class ZeroInflatedPoissonLikelihood(OnePredictorLikelihood):
    r"""
    Counts that are zero with a learnt probability :math:`\pi` of their own, and Poisson with a log link otherwise:

    .. math::
        p(y_n | f_n) = \pi\, 1_{y_n = 0} + (1 - \pi)\, \mathrm{Poisson}(y_n; E_n e^{f_n + o_n}),

    with exposures :math:`E_n` and offsets :math:`o_n`. The expected log-probability is a closed form for positive
    counts and a quadrature for zeros, where the probability is not log-concave in the predictor. If :math:`\pi` tends
    to its lower bound, a :class:`PoissonLikelihood` is sufficient.

    Row-wise arguments: ``offset``, ``weights``, and ``exposure``, which is positive and by default one.

    :param batch_shape: Batch shape of the inflation.
    :param inflation_prior: Prior of :math:`\pi`.
    :param inflation_constraint: Constraint of :math:`\pi`; default between 1e-6 and 1 - 1e-6.
    :ivar inflation: The probability :math:`\pi`, ``(*batch_shape, 1)``; initially 0.1.

    Example:
        >>> likelihood = ZeroInflatedPoissonLikelihood()
        >>> loss = -gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(y))(model(x), y, exposure=exposure)
    """

    _own_arguments = (EXPOSURE,)
    _num_nodes: ClassVar[int] = 64

    inflation = learnt("inflation", r"The probability :math:`\pi`, ``(*batch_shape, 1)``; can be set.")

    def __init__(
        self,
        batch_shape: torch.Size = torch.Size([]),  # noqa: B008
        inflation_prior: Prior | None = None,
        inflation_constraint: Interval | None = None,
    ) -> None:
        super().__init__()
        constraint = inflation_constraint or Interval(1e-6, 1 - 1e-6)
        self._learn("inflation", 0.1, batch_shape, constraint, inflation_prior)

    def _log_prob(self, y: Tensor, f: Tensor, values: Values) -> Tensor:
        rate, exposure, inflation = bounded_exp(f), values["exposure"], values["inflation"]
        positive = torch.log1p(-inflation) + poisson_log_prob(y, f, rate, exposure)
        return torch.where(y == 0, _zero_log_prob(exposure * rate, inflation), positive)

    def _expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor, values: Values) -> Tensor:
        exposure, inflation = values["exposure"], values["inflation"]
        rate = mean_of_exp(mean, variance)
        positive = torch.log1p(-inflation) + poisson_log_prob(y, mean, rate, exposure)
        rule = self._bend_rule(y, mean, variance, values, self._num_nodes)
        zero = expectation(lambda f: _zero_log_prob(exposure * bounded_exp(f), inflation), mean, variance, rule)
        return torch.where(y == 0, zero, positive)

    def _marginal_rule(self, y: Tensor, mean: Tensor, variance: Tensor, values: Values) -> NormalRule:
        # With a zero the density is not log-concave, but smooth at the width of its bend.
        zero = self._bend_rule(y, mean, variance, values, self._num_marginal_nodes)
        positive = product_rule(
            lambda f: poisson_log_prob(y, f, bounded_exp(f), values["exposure"]),
            mean,
            variance,
            self._num_marginal_nodes,
        )
        return NormalRule(*(torch.where(y == 0, *parts) for parts in zip(zero, positive, strict=True)))

    def _bend(self, y: Tensor, values: Values) -> tuple[Tensor, Tensor]:
        # pi + (1 - pi) exp(-mu) = 0 for mu = log((1 - pi) / pi) +- i pi
        log_odds = -torch.logit(values["inflation"])
        place = 0.5 * torch.log(log_odds.square() + math.pi**2) - values["exposure"].log()
        return place, torch.atan2(torch.full_like(log_odds, math.pi), log_odds)

    def _conditional(self, f: Tensor, values: Values) -> ZeroInflatedPoisson:
        return ZeroInflatedPoisson(values["exposure"] * bounded_exp(f), values["inflation"])

    def _marginal_cdf(self, y: Tensor, mean: Tensor, variance: Tensor, values: Values) -> Tensor:
        counts, exposure, inflation = y.floor(), values["exposure"], values["inflation"]
        fall = fall_of_cdf(counts, exposure, torch.zeros_like(mean))
        positive = self._expected_cdf(_positive_cdf, [counts, exposure], fall, mean, variance)
        return torch.where(counts < 0, positive, inflation + (1 - inflation) * positive)

    def _check_responses(self, y: Tensor, values: Values) -> None:
        refuse_non_counts(type(self).__name__, y)

    def _null_model(self, responses: Responses) -> NullModel:
        counts = Counts.of(responses)
        zeros = responses.mean((responses.y == 0).double())
        # The inflation starts with half of the zeros that a Poisson distribution does not explain.
        unexplained = max(zeros - math.exp(-responses.mean(responses.y)), 0.0)
        inflation = max(0.5 * unexplained, 0.01)
        return NullModel([counts.log_mean - math.log1p(-inflation)], [counts.log_spread], {"inflation": inflation})


def _zero_log_prob(rate: Tensor, inflation: Tensor) -> Tensor:
    return torch.logaddexp(inflation.log(), torch.log1p(-inflation) - rate)


def _positive_cdf(f: Tensor, counts: Tensor, exposure: Tensor) -> Tensor:
    return poisson_cdf(counts, exposure * bounded_exp(f))
