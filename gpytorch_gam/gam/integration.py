"""Whether the uncertainty of hyperparameters is part of what an estimator says, and the models that stand for it."""

from __future__ import annotations

import math
import time
import warnings
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from gpytorch.likelihoods import Likelihood

from gpytorch_gam.diagnostics import HyperparameterUncertainty, ModelMixture
from gpytorch_gam.models import AdditiveGP
from gpytorch_gam.training import FitResult, fit
from gpytorch_gam.training.free_hyperparameters import FreeHyperparameters
from gpytorch_gam.warnings import ConvergenceWarning

from .fitted import Fitted
from .priors import has_curves, take_logarithms
from .work import MOST_OF_INTEGRATED_FITS, work_of_step

#: How an estimator treats its hyperparameters.
HYPERPARAMETERS = ("auto", "integrated", "point")

# Fewer models than this with notable weight, or than this share of them where they are few, do not stand for a
# distribution: it is too far from normal for its points.
_LEAST_EFFECTIVE, _LEAST_SHARE = 2.0, 0.75

# A widening of bands that is not worth several models in each prediction: at a level of 95%, bands that are wider by
# this hold .002 more.
_LEAST_WIDENING = 0.01

# Nats within which the maximum around which is integrated is found: weights of the models make up for the rest.
_TOLERANCE = 0.5

# Hyperparameters for which derivatives of the bound are taken unasked: each takes as long as a step of the fit.
_MOST_UNASKED = 100


def integrated(fitted: Fitted, data: Any, num_data: int, result: FitResult | None, wanted: str) -> Fitted:
    """
    A fitted model with the uncertainty of its hyperparameters, or with the reason against it.

    :param fitted: The model at the estimates.
    :param data: The data of the fit, where the model is.
    :param num_data: Its number of rows.
    :param result: What the fit has found; None if it was interrupted.
    :param wanted: One of :data:`HYPERPARAMETERS`; ``"auto"`` leaves it out where it may take longer than the fit (after
        minibatches, for many hyperparameters, or where each step over the rows is dear), where hardly more than one of
        the models has weight, or where bands are hardly wider with it.
    """
    against = _reason_against(fitted, num_data, result, wanted)
    if against is not None:
        return replace(fitted, hyperparameters=f"point estimates: {against}")
    started = time.perf_counter()
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        try:
            found = HyperparameterUncertainty(*_at_logarithms(fitted, data, num_data, result), data, num_data)
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
    wider = _widening(fitted, mixture) if wanted == "auto" else 1.0
    if wider < _LEAST_WIDENING:
        return replace(
            fitted, hyperparameters=f"point estimates: integrated over, bands are {wider:.1%} wider ({took})"
        )
    return replace(fitted, mixture=mixture, hyperparameters=note)


def _at_logarithms(fitted: Fitted, data: Any, num_data: int, result: FitResult | None) -> tuple[AdditiveGP, Likelihood]:
    """
    A copy at the maximum over the logarithms of its hyperparameters, around which these are integrated out: there,
    effects which the data hardly see have a size. Minibatches would not find it in the time that it is worth, so that
    these keep the model itself.
    """
    if result is None or result.method == "minibatches":
        return fitted.model, fitted.likelihood
    model, likelihood = deepcopy(fitted.model), deepcopy(fitted.likelihood)
    take_logarithms(model)
    for group in model.predictor.groups:
        group.placement = None  # has the inducing points that it needs
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        method, explore = result.method, _is_on_plateau(model, result)
        fit(model, likelihood, data, num_data, method=method, tolerance=_TOLERANCE, warm_start=True, explore=explore)
    return model, likelihood


def _is_on_plateau(model: AdditiveGP, result: FitResult) -> bool:
    """
    Whether the estimates switch off effects whose priors are other ones now: no step leads away from there, so that the
    fit has to look for other maxima.
    """
    off = set(result.switched_off)
    return any(off.intersection(group.names) for group in model.predictor.groups if has_curves(group))


@torch.no_grad()
def _widening(fitted: Fitted, mixture: ModelMixture) -> float:
    """By how much predictors and effects vary more, in root mean squares over rows of the fit."""
    sums = {part.label: part.components for part in fitted.parts if part.components}
    if not sums:
        return math.inf
    variances = [
        source.predict_sums(fitted.reference, sums).stddev.square().sum()
        + source.predict(fitted.reference, components=False).stddev.square().sum()
        for source in (mixture, fitted.model)
    ]
    return math.sqrt(variances[0].item() / variances[1].item()) - 1.0


def _reason_against(fitted: Fitted, num_data: int, result: FitResult | None, wanted: str) -> str | None:
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
    if result.method == "rows" and work_of_step(fitted.model, num_data) > MOST_OF_INTEGRATED_FITS:
        points = fitted.model.predictor.num_inducing_total
        return (
            f"{num_data} rows of {points} features, and the uncertainty of each hyperparameter takes a pass over them"
        )
    return None
