"""Whether the uncertainty of hyperparameters is part of what an estimator says, and the models that stand for it."""

from __future__ import annotations

import time
import warnings
from dataclasses import replace
from typing import Any

from gpytorch_gam.diagnostics import HyperparameterUncertainty, ModelMixture
from gpytorch_gam.training import FitResult
from gpytorch_gam.training.free_hyperparameters import FreeHyperparameters
from gpytorch_gam.warnings import ConvergenceWarning

from .fitted import Fitted

#: How an estimator treats its hyperparameters.
HYPERPARAMETERS = ("auto", "integrated", "point")

# Fewer models than this with notable weight, or than this share of them where they are few, do not stand for a
# distribution: it is too far from normal for its points.
_LEAST_EFFECTIVE, _LEAST_SHARE = 2.0, 0.75

# Hyperparameters for which derivatives of the bound are taken unasked: each takes as long as a step of the fit.
_MOST_UNASKED = 100


def integrated(fitted: Fitted, data: Any, num_data: int, result: FitResult | None, wanted: str) -> Fitted:
    """
    A fitted model with the uncertainty of its hyperparameters, or with the reason against it.

    :param fitted: The model at the estimates.
    :param data: The data of the fit, where the model is.
    :param num_data: Its number of rows.
    :param result: What the fit has found; None if it was interrupted.
    :param wanted: One of :data:`HYPERPARAMETERS`; ``"auto"`` leaves it out where it takes longer than the fit, or where
        hardly more than one of the models has weight.
    """
    against = _reason_against(fitted, result, wanted)
    if against is not None:
        return replace(fitted, hyperparameters=f"point estimates: {against}")
    started = time.perf_counter()
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        try:
            found = HyperparameterUncertainty(fitted.model, fitted.likelihood, data, num_data)
        except ValueError as error:
            return replace(fitted, hyperparameters=f"point estimates: {error}")
        except KeyboardInterrupt:
            return replace(fitted, hyperparameters="point estimates: their uncertainty was interrupted")
    fitted = replace(fitted, intervals=found.intervals())
    took = f"in {time.perf_counter() - started:.1f} s"
    note = f"integrated over {len(found)} models {took}"
    if any(issubclass(each.category, ConvergenceWarning) for each in given):
        note += ", at some of which the bound is higher than at the estimates"
    effective = 1.0 / found.weights.square().sum().item()
    if wanted == "auto" and len(found) > 1 and effective < min(_LEAST_EFFECTIVE, _LEAST_SHARE * len(found)):
        return replace(
            fitted, hyperparameters=f"point estimates: of {len(found)} models, {effective:.1f} have weight ({took})"
        )
    mixture = ModelMixture(found.models, found.likelihoods, found.weights)
    return replace(fitted, mixture=mixture, hyperparameters=note)


def _reason_against(fitted: Fitted, result: FitResult | None, wanted: str) -> str | None:
    if wanted == "point":
        return "as asked for"
    if result is None:
        return "the fit was interrupted"
    if wanted == "integrated":
        return None
    if result.method == "minibatches":
        return "their uncertainty takes passes over all data after a fit by minibatches"
    number = len(FreeHyperparameters(fitted.model, fitted.likelihood).names)
    if number > _MOST_UNASKED:
        return f"{number} hyperparameters, and the uncertainty of each takes a step of the fit"
    return None
