"""
Distributions of the response: the likelihoods of the package by name, what responses they take, the units in which they
are fitted, and the functions that lead from predictors to means.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from gpytorch.constraints import GreaterThan
from gpytorch.likelihoods import GaussianLikelihood, Likelihood
from scipy.special import xlogy
from torch import Tensor

from gpytorch_gam import _checks as checks
from gpytorch_gam.likelihoods import (
    BinomialLikelihood,
    GammaLikelihood,
    GaussianLocationScaleLikelihood,
    NegativeBinomialLikelihood,
    NegativeBinomialMeanDispersionLikelihood,
    OrdinalLikelihood,
    PoissonLikelihood,
    QuantileLikelihood,
    RowwiseLikelihood,
    SoftmaxLikelihood,
    StudentTLikelihood,
    StudentTLocationScaleLikelihood,
    ZeroInflatedPoissonLikelihood,
)
from gpytorch_gam.parameters.positive_constraint import positive
from gpytorch_gam.warnings import OverfittingWarning

from .priors import with_noise_prior

# The lower bound of the variance of noise, in units of the variance of the responses: in float64 there is room for the
# errors of simulators, of which emulators are made.
_LEAST_NOISE = 1e-8

# The number of rows beyond a quantile below which it is hardly determined.
_FEW = 5


class Units(NamedTuple):
    """The units in which responses are fitted: ``(y - centre) / scale``."""

    centre: float = 0.0
    scale: float = 1.0


@dataclass(frozen=True)
class Family:
    """
    A distribution of the response. The methods that a subclass defines come first.

    :cvar name: Its name, which the estimators take.
    :cvar parameters: The names of the parameters that have a predictor; the first determines the mean.
    :cvar link: How the first predictor is linked to the mean: ``"identity"``, ``"log"``, ``"logit"`` or ``"probit"``.
    :cvar arguments: Row-wise arguments beside weights and offset.
    :cvar has_deviance: Whether :meth:`deviance` means anything.
    :cvar only_differences: Whether the same number added to all predictors changes nothing.
    """

    name: ClassVar[str] = ""
    parameters: ClassVar[tuple[str, ...]] = ("mean",)
    link: ClassVar[str] = "identity"
    arguments: ClassVar[tuple[str, ...]] = ()
    has_deviance: ClassVar[bool] = True
    only_differences: ClassVar[bool] = False

    def likelihood(self) -> Likelihood:
        """A new likelihood."""
        raise NotImplementedError

    def units(self, y: np.ndarray, weights: np.ndarray) -> Units:
        """
        The units in which responses are fitted; by default their own.

        :param y: The responses.
        :param weights: The weights of the rows.
        """
        return Units()

    def units_about_zero(self, y: np.ndarray, weights: np.ndarray) -> Units:
        """
        The units in which responses are fitted if the first predictor has no intercept, which could undo a shift of it;
        by default their own.

        :param y: The responses.
        :param weights: The weights of the rows.
        """
        return Units()

    def check(self, y: np.ndarray, trials: np.ndarray | None) -> None:
        """
        Refuse responses that the family cannot have; by default every number is allowed.

        :param y: The responses, which are finite.
        :param trials: The numbers of trials, or None for one.
        """

    def mean(self, predictor: Tensor, arguments: dict[str, Tensor], likelihood: Likelihood) -> Tensor:
        """
        The mean of the response for values of the first predictor, offset included, in units of the fit.

        :param predictor: The values.
        :param arguments: Row-wise arguments by name, which broadcast to them.
        :param likelihood: The fitted likelihood.
        """
        return predictor

    def warn_of_few_rows(self, num_rows: int) -> None:
        """
        Warn where rows are too few for what is asked of them; by default they never are.

        :param num_rows: The number of rows.
        """

    def deviance(self, y: np.ndarray, mean: np.ndarray, size: np.ndarray) -> np.ndarray:
        """
        The deviance of each row; by default the squared error.

        :param y: The responses.
        :param mean: Their predicted means.
        :param size: The exposure or the number of trials of each.
        """
        return (y - mean) ** 2


class _Standardised(Family):
    """A family of real numbers, which are fitted in units of their mean and standard deviation."""

    def units(self, y: np.ndarray, weights: np.ndarray) -> Units:
        centre = float(np.average(y, weights=weights))
        deviation = math.sqrt(np.average((y - centre) ** 2, weights=weights))
        return Units(centre, deviation if deviation > 1e-12 * abs(centre) else 1.0)

    def units_about_zero(self, y: np.ndarray, weights: np.ndarray) -> Units:
        return Units(0.0, math.sqrt(np.average(y**2, weights=weights)) or 1.0)


@dataclass(frozen=True)
class Gaussian(_Standardised):
    """Normal responses with a constant variance."""

    name: ClassVar[str] = "gaussian"

    def likelihood(self) -> Likelihood:
        """See :meth:`Family.likelihood`."""
        return RowwiseLikelihood(with_noise_prior(GaussianLikelihood(noise_constraint=GreaterThan(_LEAST_NOISE))))


@dataclass(frozen=True)
class StudentT(_Standardised):
    """Responses with outliers."""

    name: ClassVar[str] = "student_t"

    def likelihood(self) -> Likelihood:
        """See :meth:`Family.likelihood`."""
        return with_noise_prior(StudentTLikelihood(noise_constraint=positive(_LEAST_NOISE)))

    def units(self, y: np.ndarray, weights: np.ndarray) -> Units:
        """See :meth:`Family.units`; median and quartiles, which outliers do not move."""
        lower, centre, upper = np.quantile(y, [0.25, 0.5, 0.75])
        return Units(float(centre), float(upper - lower) / 1.349) if upper > lower else super().units(y, weights)


@dataclass(frozen=True)
class Quantile(_Standardised):
    """
    A quantile of the response, whatever its distribution. The power of its likelihood makes bands right for normal
    responses around it (:meth:`.QuantileLikelihood.normal_power`); those of others are rough.
    Few rows are beyond an extreme quantile, and fewer than five are warned of: :class:`GaussianLocationScale`
    and :class:`StudentTLocationScale` take all rows for all quantiles.

    :param probability: Which one, such as .5 for the median.
    """

    name: ClassVar[str] = "quantile"
    parameters: ClassVar[tuple[str, ...]] = ("quantile",)
    has_deviance: ClassVar[bool] = False

    probability: float = 0.5

    def __post_init__(self) -> None:
        checks.number("probability", self.probability, above=0, below=1)

    def likelihood(self) -> Likelihood:
        """See :meth:`Family.likelihood`."""
        return QuantileLikelihood(self.probability, power=QuantileLikelihood.normal_power(self.probability))

    def warn_of_few_rows(self, num_rows: int) -> None:
        """See :meth:`Family.warn_of_few_rows`; hardly any response may be beyond the quantile."""
        beyond = num_rows * min(self.probability, 1 - self.probability)
        if beyond < _FEW:
            warnings.warn(
                f"only about {beyond:.2g} of {num_rows} rows are beyond the {self.probability:g} quantile: its "
                "estimate and bands are rough at best. family='gaussian_location_scale' and 'student_t_location_scale' "
                "fit the whole distribution, of which predict_quantiles has any quantile",
                OverfittingWarning,
                stacklevel=2,
            )


@dataclass(frozen=True)
class GaussianLocationScale(_Standardised):
    """Normal responses of which mean and log standard deviation each have a predictor."""

    name: ClassVar[str] = "gaussian_location_scale"
    parameters: ClassVar[tuple[str, ...]] = ("mean", "log_scale")

    def likelihood(self) -> Likelihood:
        """See :meth:`Family.likelihood`."""
        return GaussianLocationScaleLikelihood()


@dataclass(frozen=True)
class StudentTLocationScale(_Standardised):
    """Responses with heavy tails of which location and log scale each have a predictor."""

    name: ClassVar[str] = "student_t_location_scale"
    parameters: ClassVar[tuple[str, ...]] = ("mean", "log_scale")

    def likelihood(self) -> Likelihood:
        """See :meth:`Family.likelihood`."""
        return StudentTLocationScaleLikelihood()


class _LogLink(Family):
    """A family whose mean is the exponential of the predictor, times the exposure."""

    def mean(self, predictor: Tensor, arguments: dict[str, Tensor], likelihood: Likelihood) -> Tensor:
        return predictor.exp() * arguments.get("exposure", torch.ones_like(predictor))


@dataclass(frozen=True)
class Gamma(_LogLink):
    """Positive responses whose standard deviation is proportional to their mean."""

    name: ClassVar[str] = "gamma"
    link: ClassVar[str] = "log"

    def likelihood(self) -> Likelihood:
        """See :meth:`Family.likelihood`."""
        return GammaLikelihood()

    def units(self, y: np.ndarray, weights: np.ndarray) -> Units:
        """See :meth:`Family.units`; units of the mean."""
        return Units(0.0, float(np.average(y, weights=weights)))

    def check(self, y: np.ndarray, trials: np.ndarray | None) -> None:
        """See :meth:`Family.check`."""
        _refuse(y <= 0, self.name, "values that are not positive", "it takes positive numbers")

    def deviance(self, y: np.ndarray, mean: np.ndarray, size: np.ndarray) -> np.ndarray:
        """See :meth:`Family.deviance`."""
        return 2 * ((y - mean) / mean - np.log(y / mean))


class _Counts(_LogLink):
    """A family of counts."""

    arguments: ClassVar[tuple[str, ...]] = ("exposure",)

    def check(self, y: np.ndarray, trials: np.ndarray | None) -> None:
        _refuse_non_counts(y, self.name)

    def deviance(self, y: np.ndarray, mean: np.ndarray, size: np.ndarray) -> np.ndarray:
        """See :meth:`Family.deviance`; that of a Poisson distribution."""
        return 2 * (xlogy(y, y / np.where(y > 0, mean, 1.0)) - (y - mean))


@dataclass(frozen=True)
class Poisson(_Counts):
    """Counts."""

    name: ClassVar[str] = "poisson"
    link: ClassVar[str] = "log"

    def likelihood(self) -> Likelihood:
        """See :meth:`Family.likelihood`."""
        return PoissonLikelihood()


@dataclass(frozen=True)
class NegativeBinomial(_Counts):
    """Counts that vary more than Poisson counts."""

    name: ClassVar[str] = "negative_binomial"
    link: ClassVar[str] = "log"

    def likelihood(self) -> Likelihood:
        """See :meth:`Family.likelihood`."""
        return NegativeBinomialLikelihood()


@dataclass(frozen=True)
class NegativeBinomialMeanDispersion(_Counts):
    """Counts of which mean and dispersion each have a predictor."""

    name: ClassVar[str] = "negative_binomial_mean_dispersion"
    parameters: ClassVar[tuple[str, ...]] = ("mean", "log_dispersion")
    link: ClassVar[str] = "log"

    def likelihood(self) -> Likelihood:
        """See :meth:`Family.likelihood`."""
        return NegativeBinomialMeanDispersionLikelihood()


@dataclass(frozen=True)
class ZeroInflatedPoisson(_Counts):
    """Counts with more zeros than Poisson counts have."""

    name: ClassVar[str] = "zero_inflated_poisson"
    link: ClassVar[str] = "log"

    def likelihood(self) -> Likelihood:
        """See :meth:`Family.likelihood`."""
        return ZeroInflatedPoissonLikelihood()

    def mean(self, predictor: Tensor, arguments: dict[str, Tensor], likelihood: Likelihood) -> Tensor:
        """See :meth:`Family.mean`."""
        return super().mean(predictor, arguments, likelihood) * (1 - likelihood.inflation.double())


@dataclass(frozen=True)
class Binomial(Family):
    """
    Numbers of successes among ``trials``.

    :param link: ``"logit"`` or ``"probit"``.
    """

    name: ClassVar[str] = "binomial"
    arguments: ClassVar[tuple[str, ...]] = ("trials",)
    link: str = "logit"  # type: ignore[misc]

    def __post_init__(self) -> None:
        checks.choice("link", self.link, ("logit", "probit"))

    def likelihood(self) -> Likelihood:
        """See :meth:`Family.likelihood`."""
        return BinomialLikelihood(self.link)  # type: ignore[arg-type]

    def check(self, y: np.ndarray, trials: np.ndarray | None) -> None:
        """See :meth:`Family.check`."""
        remedy = "it takes counts 0, 1, 2, ... of successes: multiply proportions by the trials, and pass trials=..."
        _refuse((y < 0) | (y != np.round(y)), self.name, "negative or fractional values", remedy)
        _refuse(y > (1 if trials is None else trials), self.name, "more successes than trials", "pass trials=...")

    def mean(self, predictor: Tensor, arguments: dict[str, Tensor], likelihood: Likelihood) -> Tensor:
        """See :meth:`Family.mean`."""
        share = predictor.sigmoid() if self.link == "logit" else torch.special.ndtr(predictor)
        return share * arguments.get("trials", torch.ones_like(share))

    def deviance(self, y: np.ndarray, mean: np.ndarray, size: np.ndarray) -> np.ndarray:
        """See :meth:`Family.deviance`."""
        mean = np.clip(mean, 1e-12 * size, (1 - 1e-12) * size)
        return 2 * (xlogy(y, y / mean) + xlogy(size - y, (size - y) / (size - mean)))


@dataclass(frozen=True)
class Ordinal(Family):
    """
    Ordered classes 0, 1, ...

    :param num_classes: Their number.
    """

    name: ClassVar[str] = "ordinal"
    parameters: ClassVar[tuple[str, ...]] = ("latent",)
    has_deviance: ClassVar[bool] = False

    num_classes: int = 2

    def likelihood(self) -> Likelihood:
        """See :meth:`Family.likelihood`."""
        return OrdinalLikelihood(self.num_classes)


@dataclass(frozen=True)
class Softmax(Family):
    """
    Classes 0, 1, ... with a predictor each.

    :param classes: Their names.
    """

    name: ClassVar[str] = "softmax"
    has_deviance: ClassVar[bool] = False
    only_differences: ClassVar[bool] = True

    classes: tuple[str, ...] = ("0", "1")

    @property
    def parameters(self) -> tuple[str, ...]:  # type: ignore[override]
        """The classes."""
        return self.classes

    def likelihood(self) -> Likelihood:
        """See :meth:`Family.likelihood`."""
        return SoftmaxLikelihood(len(self.classes))


_KINDS: dict[str, type[Family]] = {
    kind.name: kind
    for kind in (
        Gaussian,
        StudentT,
        Quantile,
        GaussianLocationScale,
        StudentTLocationScale,
        Gamma,
        Poisson,
        NegativeBinomial,
        NegativeBinomialMeanDispersion,
        ZeroInflatedPoisson,
        Binomial,
        Ordinal,
        Softmax,
    )
}

# What other packages call some of them.
_OTHER_NAMES = {
    "normal": "gaussian",
    "nb": "negative_binomial",
    "negbin": "negative_binomial",
    "scat": "student_t",
    "ziP": "zero_inflated_poisson",
    "gaulss": "gaussian_location_scale",
    "Gamma": "gamma",
}

#: The names of the families of numbers.
REGRESSION = tuple(name for name in _KINDS if name not in ("ordinal", "softmax"))


def regression_family(family: Any) -> Family:
    """
    The family with a name, or the given one.

    :param family: A name among :data:`REGRESSION`, or an instance such as ``Quantile(0.9)``.
    :raises TypeError: If it is something else.
    :raises ValueError: If it is another name.
    """
    if isinstance(family, Family) and family.name in REGRESSION:
        return family
    if isinstance(family, str) and family in _OTHER_NAMES:
        raise ValueError(f"family {family!r} is called {_OTHER_NAMES[family]!r} here")
    return _KINDS[checks.choice("family", family, REGRESSION)]()


def described_family(family: Family) -> dict[str, Any]:
    """
    A family as plain values, which JSON can hold.

    :param family: The family.
    """
    return {"name": family.name, **{each.name: getattr(family, each.name) for each in fields(family)}}


def family_of_description(description: dict[str, Any]) -> Family:
    """
    The family with a description by :func:`described_family`.

    :param description: The plain values.
    """
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in description.items()
    }
    return _KINDS[values.pop("name")](**values)


def _refuse_non_counts(y: np.ndarray, name: str) -> None:
    _refuse((y < 0) | (y != np.round(y)), name, "negative or fractional values", "it takes counts 0, 1, 2, ...")


def _refuse(is_bad: np.ndarray, name: str, what: str, remedy: str) -> None:
    if is_bad.any():
        raise ValueError(f"y has {what} in {int(is_bad.sum())} of {len(is_bad)} rows (family {name!r}): {remedy}")
