"""The model without effects, from moments of the responses, from which training starts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import gpytorch.likelihoods as gpytorch_likelihoods
import torch
from gpytorch.likelihoods import Likelihood
from torch import Tensor

from .row_argument import EXPOSURE, OFFSET, WEIGHTS, RowArgument

# The initial share of noise in the spread of the responses; the effects start with the rest.
NOISE_SHARE = 0.5

# The distance between the quartiles of a normal distribution, in standard deviations.
_NORMAL_QUARTILE_RANGE = 1.3489795

# The limits within which moments determine the variance of a logarithm.
_LEAST_LOG_VARIANCE, _LARGEST_LOG_VARIANCE = 0.05, 4.0

_LARGEST_SHAPE = 1e4


class NullModel(NamedTuple):
    """A rough estimate of the model with constant predictors."""

    mean: list[float]  # the value of each predictor
    variance: list[float]  # a guess of the variance of each predictor between rows
    parameters: dict[str, float | Tensor]  # the likelihood's own, by name, while the predictors have that variance


class Responses:
    """Responses ``(n,)`` and their row-wise arguments, in float64 on the CPU, without rows that are not finite."""

    def __init__(self, y: Tensor, row_arguments: Mapping[str, Tensor]) -> None:
        self.y = y.detach().double().cpu()
        self._row_arguments = {name: value.detach().double().cpu() for name, value in row_arguments.items()}
        self.weights, self.offset = self.argument(WEIGHTS), self.argument(OFFSET)
        if self.offset.dim() > 1:
            self.offset = self.offset[..., 0]  # the first of one offset for each predictor
        is_finite = torch.isfinite(self.y + self.offset + self.weights)
        if not is_finite.all():
            self.y, self.weights, self.offset = self.y[is_finite], self.weights[is_finite], self.offset[is_finite]
            self._row_arguments = {name: value[is_finite] for name, value in self._row_arguments.items()}

    def __len__(self) -> int:
        return len(self.y) if bool(self.weights.any()) else 0

    def argument(self, argument: RowArgument) -> Tensor:
        """A row-wise argument, ``(n,)``, or its default."""
        value = self._row_arguments.get(argument.name)
        return torch.full_like(self.y, argument.default) if value is None else value

    @property
    def without_offset(self) -> Tensor:
        """The responses ``(n,)`` minus the offset, which a predictor with an identity link has to explain."""
        return self.y - self.offset

    def mean(self, values: Tensor) -> float:
        """The weighted mean of ``(n,)``."""
        return ((self.weights * values).sum() / self.weights.sum()).item()

    def variance(self, values: Tensor) -> float:
        """The weighted variance of ``(n,)``; one if that is zero or not defined."""
        return self.mean((values - self.mean(values)).square()) or 1.0

    def require_spread(self, owner: str, parameter: str, values: Tensor) -> None:
        """
        Raise a ValueError if responses that are all the same without their offsets, the ``values`` ``(n,)``, are to
        determine a ``parameter`` of a likelihood of class ``owner``: it and the bound would go to a limit that is not
        finite.
        """
        if len(values) > 1 and bool((values == values[0]).all()):
            raise ValueError(
                f"all {len(values)} responses are {values[0].item():.6g}, so that the {parameter} of {owner} has no "
                "best value: there is nothing to fit (look for an error in the responses)"
            )

    def quantile(self, values: Tensor, probability: float) -> float:
        """The weighted quantile of ``(n,)``."""
        ordered, order = values.sort()
        share = self.weights[order].cumsum(0) / self.weights.sum()
        return ordered[int((share < probability).sum().clamp_max(len(ordered) - 1))].item()

    def robust_variance(self, values: Tensor) -> float:
        """The variance of the normal distribution that has the quartiles of ``(n,)``, for responses with outliers."""
        deviation = (self.quantile(values, 0.75) - self.quantile(values, 0.25)) / _NORMAL_QUARTILE_RANGE
        return deviation**2 or self.variance(values)

    def counts(self, num_classes: int) -> Tensor:
        """The weight of the rows of each class plus half a row, ``(K,)``."""
        classes = self.y.round().long().clamp(0, num_classes - 1)
        return torch.full((num_classes,), 0.5, dtype=torch.float64).index_add_(0, classes, self.weights)


class Counts(NamedTuple):
    """Moments of counts with exposures."""

    log_mean: float  # the log of the mean for an exposure of one
    log_spread: float  # variance of log rates that would explain what a Poisson distribution does not

    @classmethod
    def of(cls, responses: Responses) -> Counts:
        """The moments of rows with offsets and exposures."""
        units = responses.argument(EXPOSURE) * responses.offset.exp()
        total, weight = responses.mean(responses.y), responses.mean(units)
        smallest = 0.5 / len(responses.y)  # used if nothing was counted
        rate = max(total, smallest) / weight
        expected = rate * units
        excess = responses.mean((responses.y - expected).square() - expected) / responses.mean(expected.square())
        return cls(math.log(rate), bounded_log_variance(math.log1p(max(excess, 0.0))))


def bounded_log_variance(value: float) -> float:
    """A variance of logarithms, held within the limits that moments can resolve."""
    return min(max(value, _LEAST_LOG_VARIANCE), _LARGEST_LOG_VARIANCE)


def shape_of_log_variance(value: float) -> float:
    r"""The shape a of a gamma distribution whose logarithm has variance :math:`\psi'(a)`, to a few percent."""
    return min((1.0 + math.sqrt(1.0 + 2.0 * value)) / (2.0 * value), _LARGEST_SHAPE)


def log_odds(share: float, num_rows: int) -> float:
    """The log odds of a share of the rows, which is held away from zero and one."""
    bounded = _bounded_share(share, num_rows)
    return math.log(bounded / (1.0 - bounded))


def probit(share: float, num_rows: int) -> float:
    """The normal quantile of a share of the rows, which is held away from zero and one."""
    return torch.special.ndtri(torch.tensor(_bounded_share(share, num_rows), dtype=torch.float64)).item()


def _bounded_share(share: float, num_rows: int) -> float:
    margin = 0.5 / max(num_rows, 1)
    return min(max(share, margin), 1.0 - margin)


def heavy_tailed(responses: Responses) -> NullModel:
    """The null model of responses with outliers."""
    residuals = responses.without_offset
    variance = responses.robust_variance(residuals)
    return NullModel([responses.quantile(residuals, 0.5)], [variance], {"noise": NOISE_SHARE * variance})


def null_model(likelihood: Likelihood, responses: Responses) -> NullModel | None:
    """
    The null model of a likelihood for at least one row; None if nothing is known. Likelihoods of this package have a
    method for it; some of GPyTorch's are known here, but not their subclasses, which may have another link.
    """
    method = getattr(likelihood, "_null_model", None)
    if method is not None:
        return method(responses)
    known = _KNOWN.get(type(likelihood))
    return None if known is None else known(likelihood, responses)


def gaussian_null_model(likelihood: Likelihood, mean: float, variance: float) -> NullModel | None:
    """The null model of a Gaussian likelihood for responses with these moments; None if nothing is known of it."""
    if type(likelihood) not in (
        gpytorch_likelihoods.GaussianLikelihood,
        gpytorch_likelihoods.FixedNoiseGaussianLikelihood,
    ):
        return None
    variance = variance if variance > 0.0 else 1.0
    has_noise = type(likelihood) is gpytorch_likelihoods.GaussianLikelihood
    return NullModel([mean], [variance], {"noise": NOISE_SHARE * variance} if has_noise else {})


def null_model_of_tasks(likelihood: Likelihood, tasks: Sequence[Responses]) -> NullModel | None:
    """The null model of a likelihood of several responses in a row, one a predictor; None if nothing is known."""
    if type(likelihood) is not gpytorch_likelihoods.MultitaskGaussianLikelihood or len(tasks) != likelihood.num_tasks:
        return None
    models = [_gaussian(likelihood, responses) for responses in tasks]
    variance = [model.variance[0] for model in models]
    noises = NOISE_SHARE * torch.tensor(variance, dtype=torch.float64)
    # The noise that all tasks share is a part of the noise of each.
    shared = 0.5 * noises.min().item()
    parameters: dict[str, float | Tensor] = {"noise": shared} if likelihood.has_global_noise else {}
    if likelihood.has_task_noise and likelihood.rank == 0:
        parameters["task_noises"] = noises - shared if likelihood.has_global_noise else noises
    elif likelihood.has_global_noise:
        parameters["noise"] = noises.mean().item()
    return NullModel([model.mean[0] for model in models], variance, parameters)


def _gaussian(likelihood: Likelihood, responses: Responses) -> NullModel:
    residuals = responses.without_offset
    variance = responses.variance(residuals)
    return NullModel([responses.mean(residuals)], [variance], {"noise": NOISE_SHARE * variance})


def _fixed_noise(likelihood: Likelihood, responses: Responses) -> NullModel:
    return _gaussian(likelihood, responses)._replace(parameters={})


def _heavy_tailed(likelihood: Likelihood, responses: Responses) -> NullModel:
    return heavy_tailed(responses)


def _labels(likelihood: Likelihood, responses: Responses) -> NullModel:
    share = responses.mean((responses.y > 0).double())
    return NullModel([probit(share, len(responses)) - responses.mean(responses.offset)], [1.0], {})


def _counts(likelihood: Likelihood, responses: Responses) -> NullModel | None:
    if getattr(likelihood, "num_failures_param", False):
        return None
    # GPyTorch's link is a softplus, which is the identity for large means and the logarithm for small ones.
    mean = max(responses.mean(responses.y), 0.5 / len(responses))
    slope = -math.expm1(-mean)  # derivative of the mean with respect to the predictor
    spread = max(responses.variance(responses.y) - mean, 0.0) / slope**2
    variance = max(spread, _LEAST_LOG_VARIANCE) if mean > 1 else bounded_log_variance(spread)
    return NullModel([mean + math.log(slope) - responses.mean(responses.offset)], [variance], {})


def _proportions(likelihood: Likelihood, responses: Responses) -> NullModel:
    mean = log_odds(responses.mean(responses.y), len(responses))
    return NullModel([mean - responses.mean(responses.offset)], [1.0], {})


_KNOWN: dict[type[Likelihood], Callable[[Likelihood, Responses], NullModel | None]] = {
    gpytorch_likelihoods.GaussianLikelihood: _gaussian,
    gpytorch_likelihoods.GaussianLikelihoodWithMissingObs: _gaussian,
    gpytorch_likelihoods.FixedNoiseGaussianLikelihood: _fixed_noise,
    gpytorch_likelihoods.StudentTLikelihood: _heavy_tailed,
    gpytorch_likelihoods.LaplaceLikelihood: _heavy_tailed,
    gpytorch_likelihoods.BernoulliLikelihood: _labels,
    gpytorch_likelihoods.PoissonLikelihood: _counts,
    gpytorch_likelihoods.NegativeBinomialLikelihood: _counts,
    gpytorch_likelihoods.BetaLikelihood: _proportions,
}
