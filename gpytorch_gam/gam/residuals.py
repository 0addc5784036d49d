"""Residuals of a fitted model: standard normal ones for checks, and partial ones for pictures of effects."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import stats
from torch import Tensor
from torch.distributions import Distribution

from .fitted import Fitted
from .prediction import (
    Arguments,
    Predictions,
    first_predictor,
    in_chunks,
    predictor_moments,
    response,
    response_moments,
)

# The largest response whose probabilities are summed up, which takes quadratures; beyond, responses are compared with
# draws.
_MOST_COUNTS, _NUM_DRAWS = 20, 2000

# The size of a multiplier, as a share of the root of its mean square, below which rows have no partial residual.
_LEAST_SHARE = 0.25

# The least distance of a probability from 0 and 1.
_LEAST = 1e-12


class QuantileResiduals(NamedTuple):
    """Randomised quantile residuals ``(n,)``, and the means of the first predictor in the same rows, in its units."""

    residuals: np.ndarray
    predictors: np.ndarray


def quantile_residuals(fitted: Fitted, x: Tensor, y: np.ndarray, arguments: Arguments, seed: int) -> QuantileResiduals:
    """
    Randomised quantile residuals (Dunn and Smyth, 1996), ``(n,)``: normal quantiles of the responses' probabilities
    under the predictive distribution, drawn within the jump of a discrete one. They are standard normal if the model
    holds.

    :param fitted: The fitted model.
    :param x: Inputs ``(n, D)``.
    :param y: Responses in units of the fit, ``(n,)``; numbers of classes.
    :param arguments: Row-wise arguments, in units of the fit.
    :param seed: Seed of what is drawn.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        with_responses = {**arguments, "_y": torch.from_numpy(y)}

        def probabilities(predictions: Predictions, own: dict[str, Tensor]) -> Tensor:
            observed = own.pop("_y")
            mean, _ = first_predictor(fitted, predictions, own)
            lower, upper = _jump(response(fitted, predictions, own), observed)
            return torch.stack([lower + (upper - lower) * torch.rand(lower.shape, dtype=lower.dtype), mean.to(lower)])

        found, means = in_chunks(fitted, x, with_responses, fitted.parts, probabilities)
    residuals = stats.norm.ppf(np.clip(found, _LEAST, 1 - _LEAST))
    return QuantileResiduals(residuals, fitted.scale_of(0) * means + fitted.centre_of(0))


def _jump(distribution: Distribution, y: Tensor) -> tuple[Tensor, Tensor]:
    """The distribution function just below and at the responses."""
    support: Any = distribution.support
    if support is not None and support.is_discrete:
        try:
            return distribution.cdf(y - 1), distribution.cdf(y)
        except NotImplementedError:
            pass
        return _jump_of_counts(distribution, y) if y.max() <= _MOST_COUNTS else _jump_of_draws(distribution, y)
    try:
        probability = distribution.cdf(y)
    except NotImplementedError:
        return _jump_of_draws(distribution, y)
    return probability, probability


def _jump_of_counts(distribution: Distribution, y: Tensor) -> tuple[Tensor, Tensor]:
    below = torch.zeros_like(y)
    for count in range(int(y.max())):
        is_below = count < y
        value = torch.where(is_below, torch.full_like(y, float(count)), y)
        below = below + torch.where(is_below, distribution.log_prob(value).exp(), torch.zeros_like(y))
    return below, below + distribution.log_prob(y).exp()


def _jump_of_draws(distribution: Distribution, y: Tensor) -> tuple[Tensor, Tensor]:
    draws = distribution.sample(torch.Size([_NUM_DRAWS]))
    below, at = ((draws < y).double().sum(0), (draws <= y).double().sum(0))
    return (below + 0.5) / (_NUM_DRAWS + 1), (at + 0.5) / (_NUM_DRAWS + 1)


class PartialResiduals(NamedTuple):
    """
    An effect plus residuals on the scale of its predictor.

    :ivar values: Of the column of the effect in each row.
    :ivar residuals: In each row.
    :ivar label: What they are.
    """

    values: Any
    residuals: np.ndarray
    label: str = "partial residuals"

    def for_each_unit(self, multiplier: np.ndarray, name: str) -> PartialResiduals:
        """
        Those of an effect for each unit of a number that multiplies it, as the effect is shown. Rows in which this is
        small are left out: they say little about the effect, and their noise is divided by it.

        :param multiplier: The number in each row.
        :param name: Of its column.
        """
        size = np.abs(multiplier)
        least = _LEAST_SHARE * math.sqrt(np.nanmean(size**2))
        used = (size > 0) & (size >= least)
        label = f"{self.label} / {name}" + ("" if used.all() else f", rows with |{name}| > {least:.2g}")
        return PartialResiduals(np.asarray(self.values)[used], self.residuals[used] / multiplier[used], label)


def working_residuals(fitted: Fitted, x: Tensor, y: np.ndarray, arguments: Arguments) -> np.ndarray:
    """
    Residuals on the scale of the first predictor, ``(n,)``: differences from the mean divided by its slope in the
    predictor. An effect plus these are partial residuals.

    :param fitted: The fitted model.
    :param x: Inputs ``(n, D)``.
    :param y: Responses.
    :param arguments: Row-wise arguments, in units of the fit.
    """
    if fitted.family.link == "identity":
        return y - predictor_moments(fitted, x, arguments, fitted.parts)[0, 0]
    mean, _ = response_moments(fitted, x, arguments, fitted.parts)
    if fitted.family.link == "log":
        return (y - mean) / mean
    trials = arguments["trials"].numpy() if "trials" in arguments else np.ones(len(y))
    share = np.clip(mean / trials, 1e-6, 1 - 1e-6)
    slope = share * (1 - share) if fitted.family.link == "logit" else stats.norm.pdf(stats.norm.ppf(share))
    return (y / trials - share) / slope
