"""The fit of an estimator's model: inputs, likelihood and posterior from a data frame, and the package's own fit."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from gpytorch_gam.training import FitResult
from gpytorch_gam.warnings import ConvergenceWarning, InducingPointsWarning

from .data_fit import climb, fit_to_data, prepared
from .design import Design
from .deviance import deviance_explained
from .families import Family
from .fitted import Fitted
from .freedom import warn_of_repeats
from .integration import integrated
from .interactions import Limits, search
from .options import Options, on_device
from .smoothness import with_best_kernel
from .starts import Start
from .units_of_fit import fit_arguments, units_of
from .work import is_quick

# The variance of noise, in units of the variance of the responses, below which it hides nothing that can be seen.
_NOTABLE_NOISE = 1e-4

# The most rows by which the deviance that is explained is estimated.
_ROWS_OF_DEVIANCE = 20000


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
        found = prepared(other, family, units, inputs, (inputs, *more), own, start)
        return found, climb(found, (inputs, *more), own, is_warm=True, explore=explore)

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
    return result.method == "rows" or (options.method == "auto" and is_quick(fitted.model, num_rows))


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
