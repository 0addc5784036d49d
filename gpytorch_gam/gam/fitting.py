"""The fit of an estimator's model: inputs, likelihood and posterior from a data frame, and the package's own fit."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import gpytorch
import numpy as np
import pandas as pd
import torch
from gpytorch.likelihoods import Likelihood
from gpytorch.variational import CholeskyVariationalDistribution
from scipy.special import xlogy

from gpytorch_gam.components import AdditivePredictor
from gpytorch_gam.models import AdditiveGP
from gpytorch_gam.numerics.dtypes import default_dtype
from gpytorch_gam.training import FitResult, fit
from gpytorch_gam.training.fitting import method_of_fit
from gpytorch_gam.warnings import ConvergenceWarning, InducingPointsWarning

from .design import Design
from .families import Family, Quantile, Units
from .fitted import Fitted, alone, reference_rows
from .freedom import warn_of_repeats
from .integration import integrated
from .interactions import Limits, search
from .prediction import response_moments
from .smoothness import with_best_kernel
from .starts import Start

# Inducing variables up to which the posterior has a full covariance at the start, and with interactions after growth:
# larger ones cannot be polished with dense matrices.
_MOST_COUPLED, _MOST_COUPLED_LATER = 500, 1024

# The share of the prior variance that is left where data determine everything: bands of millions of rows are narrow.
JITTER = 1e-8

# The variance of noise, in units of the variance of the responses, below which it hides nothing that can be seen.
_NOTABLE_NOISE = 1e-4

# The most rows by which the deviance that is explained is estimated.
_ROWS_OF_DEVIANCE = 20000


@dataclass(frozen=True)
class Options:
    """How a model is fitted, see the estimators."""

    method: str
    tolerance: float
    posterior: str
    device: str
    progress: bool
    seed: int
    hyperparameters: str
    chooses_kernel: bool = False


class FitOfDesign(NamedTuple):
    """A fitted model and how well it does."""

    fitted: Fitted
    result: FitResult | None  # None if the fit was interrupted; its seconds are those of all that was done
    deviance_explained: float
    screened: pd.DataFrame | None  # the interactions that were looked for


def fit_design(
    design: Design,
    family: Family,
    frame: pd.DataFrame,
    y: np.ndarray,
    weights: np.ndarray,
    arguments: Mapping[str, np.ndarray],
    options: Options,
    limits: Limits | None = None,
) -> FitOfDesign:
    """
    Fit the terms of a design to data, and the interactions that raise the bound.

    :param design: Terms, whose encodings are chosen here.
    :param family: The distribution of the response.
    :param frame: The columns.
    :param y: The responses, ``(n,)``.
    :param weights: Weights of the rows, positive.
    :param arguments: Row-wise arguments of the likelihood, ``(n,)`` each; the offset in units of the response.
    :param options: How.
    :param limits: Which interactions are added; None for none.
    """
    started = time.perf_counter()
    if isinstance(family, Quantile):
        family.warn_of_few_rows(len(y))
    design.learn_columns(frame, weights)
    x = design.inputs(frame)
    units = units_of(family, y, weights, arguments, design.has_intercepts[0])
    rows = fit_arguments(family, units.scale, arguments)
    if not np.all(weights == 1.0):
        rows["weights"] = torch.tensor(weights)
    responses = torch.from_numpy((y - units.centre) / units.scale)
    more = (responses, rows) if rows else (responses,)

    def refit(other: Design, start: Start, tolerance: float = 0.0, explore: bool = True) -> tuple[Fitted, FitResult]:
        inputs, own = other.inputs(frame), replace(options, tolerance=max(options.tolerance, tolerance))
        found = _prepared(other, family, units, inputs, (inputs, *more), own, start)
        return found, _climb(found, (inputs, *more), own, is_warm=True, explore=explore)

    screened = None
    with _shortfalls_of_last_fit() as messages:
        fitted, result = fit_to_data(design, family, units, x, (x, *more), options)
        if result is not None and options.chooses_kernel:
            with _said_if_interrupted("the comparison of kernels was interrupted: the model has the first one"):
                fitted, result = with_best_kernel(fitted, result, len(y), refit)
        if (
            result is not None
            and limits is not None
            and (not limits.is_unasked or _is_quick(fitted, result, len(y), options))
        ):
            with _said_if_interrupted("the search for interactions was interrupted: the model is fitted without any"):
                fitted, result, screened = search(fitted, result, (x, *more), frame, weights, limits, refit)
            x = fitted.design.inputs(frame)
        if result is not None and _has_notable_noise(fitted):
            messages += result.messages
    warn_of_repeats(fitted, x, y, weights)
    on = on_device((x, *more), fitted.model.predictor.device)
    fitted = integrated(fitted, on, len(y), result, options.hyperparameters)
    result = None if result is None else replace(result, seconds=time.perf_counter() - started)
    some = np.linspace(0, len(y) - 1, min(len(y), _ROWS_OF_DEVIANCE)).round().astype(int)
    own = {name: value[some] for name, value in rows.items() if name != "weights"}
    explained = deviance_explained(fitted, x[some], y[some], weights[some], own)
    return FitOfDesign(fitted, result, explained, screened)


def _is_quick(fitted: Fitted, result: FitResult, num_rows: int, options: Options) -> bool:
    """Whether fits with interactions take so little that these are looked for unasked."""
    return result.method == "rows" or (options.method == "auto" and fitted.is_quick(num_rows))


def _has_notable_noise(fitted: Fitted) -> bool:
    """
    Whether noise can hide what effects smooth away: with that of a simulator, more inducing points promise many nats
    for changes that are smaller than anyone can see, of which the summary alone speaks.
    """
    noise = getattr(getattr(fitted.likelihood, "likelihood", None), "noise", None)
    return fitted.family.name != "gaussian" or noise is None or noise.item() > _NOTABLE_NOISE


@contextmanager
def _shortfalls_of_last_fit() -> Iterator[list[str]]:
    """Give the warnings from inside, but of too few inducing points only those that the list holds at the end."""
    messages: list[str] = []
    caught: list[warnings.WarningMessage] = []
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield messages
    finally:
        for each in caught:
            if not issubclass(each.category, InducingPointsWarning) or str(each.message) in messages:
                warnings.warn(each.message, each.category, stacklevel=2)  # collected by the caller


@contextmanager
def _said_if_interrupted(message: str) -> Iterator[None]:
    """Give a warning in the place of an interruption."""
    try:
        yield
    except KeyboardInterrupt:
        warnings.warn(message, ConvergenceWarning, stacklevel=3)


def units_of(
    family: Family, y: np.ndarray, weights: np.ndarray, arguments: Mapping[str, np.ndarray], has_intercept: bool
) -> Units:
    """
    The units in which responses are fitted.

    :param family: The distribution of the response.
    :param y: The responses.
    :param weights: The weights of the rows.
    :param arguments: Row-wise arguments; responses are seen without the offset of an identity link.
    :param has_intercept: Whether the first predictor has one.
    """
    offset = arguments.get("offset")
    y = y if offset is None or family.link != "identity" else y - offset
    return family.units(y, weights) if has_intercept else family.units_about_zero(y, weights)


def fit_to_data(
    design: Design, family: Family, units: Units, x: torch.Tensor, data: Any, options: Options
) -> tuple[Fitted, FitResult | None]:
    """
    Fit the terms of a design, whose columns are learned, to rows in units of the fit.

    :param design: Terms and encodings.
    :param family: The distribution of the response.
    :param units: The units of the responses.
    :param x: Inputs with the range of all rows, from which places are taken and summaries are made.
    :param data: The rows, as :func:`~gpytorch_gam.fit` takes them.
    :param options: How.
    :return: The fitted model, and the result of the fit; None if that was interrupted.
    """
    fitted = _prepared(design, family, units, x, data, options)
    try:
        return fitted, _climb(fitted, data, options)
    except KeyboardInterrupt:
        fitted.model.eval()
        fitted.likelihood.eval()
        warnings.warn(
            "the fit was interrupted: the model is the best so far, and its bands are not those of a finished fit",
            ConvergenceWarning,
            stacklevel=2,
        )
        return fitted, None


def _prepared(
    design: Design,
    family: Family,
    units: Units,
    x: torch.Tensor,
    data: Any,
    options: Options,
    start: Start | None = None,
) -> Fitted:
    """A model that is yet to be fitted, on its device, with the hyperparameters of ``start`` or new ones."""
    device = device_of(options.device)
    with _as_in_fits(options):
        model, likelihood = make(design, family, x, options, start)
        if options.posterior == "auto" and options.method == "auto" and _needs_minibatches(model, likelihood, data):
            model, likelihood = make(design, family, x, replace(options, posterior="block_low_rank"), start)
        model.to(device)
        likelihood.to(device)
    mixture, note = alone(model, likelihood), "point estimates"
    return Fitted(model, likelihood, design, family, units, reference_rows(x), mixture, note)


def _climb(fitted: Fitted, data: Any, options: Options, *, is_warm: bool = False, explore: bool = True) -> FitResult:
    """Fit a model in place; a KeyboardInterrupt leaves it at the best so far."""
    with _as_in_fits(options):
        return fit(
            fitted.model,
            fitted.likelihood,
            on_device(data, device_of(options.device)),
            method=options.method,
            tolerance=options.tolerance,
            warm_start=is_warm,
            explore=explore,
            progress=options.progress,
        )


@contextmanager
def _as_in_fits(options: Options) -> Iterator[None]:
    """The random numbers and the jitter of fits, with those of the caller afterwards."""
    with torch.random.fork_rng(devices=[]), gpytorch.settings.variational_cholesky_jitter(double_value=JITTER):
        torch.manual_seed(options.seed)
        yield


def _needs_minibatches(model: AdditiveGP, likelihood: Likelihood, data: Any) -> bool:
    """Whether the posterior is one that minibatches cannot train, although neither rows nor bins serve."""
    is_coupled = isinstance(model.variational_strategy._variational_distribution, CholeskyVariationalDistribution)
    return is_coupled and method_of_fit(model, likelihood, data) == "minibatches"


def on_device(data: Any, device: torch.device) -> Any:
    """
    Rows in memory on a device; batches are there when they are made.

    :param data: The rows.
    :param device: The device.
    """
    if not isinstance(data, tuple):
        return data
    x, y, *rest = data
    return (x.to(device), y.to(device), *({name: value.to(device) for name, value in rows.items()} for rows in rest))


def fit_arguments(family: Family, scale: float, arguments: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """
    Row-wise arguments as tensors in the units of the fit.

    :param family: The distribution of the response.
    :param scale: The unit of the responses.
    :param arguments: The arguments; the offset of an identity link is in units of the response.
    """
    found = {name: torch.tensor(value) for name, value in arguments.items()}  # copies: arrays may be read-only
    if "offset" in found and family.link == "identity":
        found["offset"] = found["offset"] / scale
    return found


def make(
    design: Design, family: Family, x: torch.Tensor, options: Options, start: Start | None = None
) -> tuple[AdditiveGP, Likelihood]:
    """
    A new model and likelihood in float64.

    :param design: Terms and encodings.
    :param family: The distribution of the response.
    :param x: Inputs, from which ranges are taken.
    :param options: How the model will be fitted.
    :param start: Hyperparameters to take.
    """
    with default_dtype(torch.float64):
        predictor, likelihood = design.predictor(x), family.likelihood()
        if start is not None:
            start.copy_to(predictor, likelihood)
        return _model(predictor, options, _MOST_COUPLED if start is None else _MOST_COUPLED_LATER), likelihood


def _model(predictor: AdditivePredictor, options: Options, most_coupled: int) -> AdditiveGP:
    if options.posterior != "auto":
        rank = "auto" if options.posterior in ("block_low_rank", "low_rank") else None
        return AdditiveGP(predictor, family=options.posterior, rank=rank)
    if predictor.num_inducing_total <= most_coupled and options.method != "minibatches":
        return AdditiveGP(predictor, family="coupled")
    return AdditiveGP(predictor, family="block_low_rank", rank="auto")


def device_of(device: str) -> torch.device:
    """
    The device with a name.

    :param device: The name; ``"auto"`` for a GPU if there is one.
    """
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)


def deviance_explained(
    fitted: Fitted, x: torch.Tensor, y: np.ndarray, weights: np.ndarray, arguments: Mapping[str, torch.Tensor]
) -> float:
    """
    The share by which the effects lower the deviance of a constant, over some rows; NaN for classes in order.

    :param fitted: The fitted model.
    :param x: The inputs of the rows.
    :param y: Their responses.
    :param weights: Their weights.
    :param arguments: Their row-wise arguments, in units of the fit.
    """
    family = fitted.family
    if family.name in ("ordinal", "softmax", "quantile"):
        return float("nan")
    mean, _ = response_moments(fitted, x, arguments, fitted.parts)
    units = arguments.get("exposure", arguments.get("trials"))
    size = np.ones(len(y)) if units is None else units.numpy()
    if "offset" in arguments and family.link == "log":
        size = size * arguments["offset"].exp().numpy()
    null = size * (weights @ y) / (weights @ size)
    if family.name == "binomial":
        trials = np.ones(len(y)) if units is None else units.numpy()
        own, of_null = (_binomial_deviance(y, each, trials) for each in (mean, null))
    else:
        own, of_null = family.deviance(y, mean), family.deviance(y, null)
    total = float(weights @ of_null)
    return 1.0 - float(weights @ own) / total if total > 0 else 0.0


def _binomial_deviance(y: np.ndarray, mean: np.ndarray, trials: np.ndarray) -> np.ndarray:
    mean = np.clip(mean, 1e-12 * trials, (1 - 1e-12) * trials)
    return 2 * (xlogy(y, y / mean) + xlogy(trials - y, (trials - y) / (trials - mean)))
