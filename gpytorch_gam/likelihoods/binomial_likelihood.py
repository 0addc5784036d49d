"""Numbers of successes among trials."""

from __future__ import annotations

import math
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.distributions import Binomial

from gpytorch_gam import _checks as checks
from gpytorch_gam.distributions.count_probabilities import binomial_cdf
from gpytorch_gam.numerics.quadrature import expectation

from ._settings_in_state import SettingsInState
from .null_model import NullModel, Responses, log_odds, probit
from .one_predictor_likelihood import OnePredictorLikelihood
from .predictor_likelihood import Values
from .response_checks import refuse_non_counts, refuse_rows
from .row_argument import TRIALS

# Widths of the bends of log sigmoid, which is singular at a distance of pi from zero, and of the logarithm of the
# normal distribution function, which is so at 1.9 +- 2.8i.
_BEND_WIDTHS = {"logit": 3.0, "probit": 2.0}


class BinomialLikelihood(SettingsInState, OnePredictorLikelihood):
    r"""
    Numbers of successes :math:`y_n` among :math:`T_n` trials,

    .. math::
        y_n | f_n \sim \mathrm{Binomial}\big(T_n, g^{-1}(f_n + o_n)\big),

    with a logit or probit link g. For proportions, give their counts and ``trials``. With one trial and a probit link
    this is GPyTorch's ``BernoulliLikelihood``. The expected log-probability is a quadrature.

    Row-wise arguments: ``offset``, ``weights``, and ``trials``, which are positive whole numbers and by default one.

    :param link: The link function, ``"logit"`` or ``"probit"``.
    :raises ValueError: If ``link`` is something else.

    Example:
        >>> likelihood = BinomialLikelihood()
        >>> mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(y))
        >>> loss = -mll(model(x), successes, trials=trials)
    """

    _settings: ClassVar[tuple[str, ...]] = ("link",)
    _own_arguments = (TRIALS,)

    def __init__(self, link: Literal["logit", "probit"] = "logit") -> None:
        checks.choice("link", link, _BEND_WIDTHS)
        super().__init__()
        self.link = link

    def _log_prob(self, y: Tensor, f: Tensor, values: Values) -> Tensor:
        trials = values["trials"]
        success, failure = self._log_probabilities(f)
        return y * success + (trials - y) * failure + _log_choices(y, trials)

    def _expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor, values: Values) -> Tensor:
        if self.link != "logit":
            return super()._expected_log_prob(y, mean, variance, values)
        # log sigmoid(f) = f - softplus(f), of which the first term is linear
        rule = self._bend_rule(y, mean, variance, values, self._num_nodes)
        softplus = expectation(partial(torch.nn.functional.softplus, threshold=40.0), mean, variance, rule)
        return y * mean - values["trials"] * softplus + _log_choices(y, values["trials"])

    def _bend(self, y: Tensor, values: Values) -> tuple[Tensor, Tensor]:
        place = torch.zeros_like(y)
        return place, torch.full_like(place, _BEND_WIDTHS[self.link])

    def _conditional(self, f: Tensor, values: Values) -> Binomial:
        success, failure = self._log_probabilities(f)
        logits, trials = torch.broadcast_tensors(success - failure, values["trials"])
        return Binomial(trials, logits=logits, validate_args=False)

    def _marginal_cdf(self, y: Tensor, mean: Tensor, variance: Tensor, values: Values) -> Tensor:
        counts, trials = y.floor(), values["trials"]
        share = (counts.clamp_min(0.0).minimum(trials) + 0.5) / (trials + 1)
        if self.link == "logit":
            place, slope = share.logit(), share * (1 - share)
        else:
            place = torch.special.ndtri(share)
            slope = torch.exp(-0.5 * place.square()) / math.sqrt(2 * math.pi)
        width = (share * (1 - share) / (trials + 1)).sqrt() / slope
        return self._expected_cdf(self._cdf, [counts, trials], (place, width), mean, variance)

    def _cdf(self, f: Tensor, counts: Tensor, trials: Tensor) -> Tensor:
        return binomial_cdf(counts, trials, self._log_probabilities(f)[1].exp())

    def _log_probabilities(self, f: Tensor) -> tuple[Tensor, Tensor]:
        of = torch.nn.functional.logsigmoid if self.link == "logit" else torch.special.log_ndtr
        return of(f), of(-f)

    def _check_responses(self, y: Tensor, values: Values) -> None:
        owner, trials = type(self).__name__, values["trials"]
        remedy = "pass trials=, the number of trials of each row (one if it is left out)"
        refuse_non_counts(owner, y)
        refuse_rows(owner, y, lambda counts: counts > trials, "more successes than trials", remedy)
        refuse_rows(owner, trials, lambda counts: counts != counts.round(), "fractional trials", "take whole numbers")

    def _null_model(self, responses: Responses) -> NullModel:
        trials = responses.argument(TRIALS)
        share = responses.mean(responses.y) / responses.mean(trials)
        link = log_odds if self.link == "logit" else probit
        return NullModel([link(share, len(responses)) - responses.mean(responses.offset)], [1.0], {})


def _log_choices(successes: Tensor, trials: Tensor) -> Tensor:
    """The logarithm of the number of orders of successes and failures."""
    return torch.lgamma(trials + 1) - torch.lgamma(successes + 1) - torch.lgamma(trials - successes + 1)
