"""Intercepts, deviations of random effects and parameters of the likelihood, in units of the data."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import torch

from gpytorch_gam.training import FitResult

from .fitted import Fitted
from .parts import INTERCEPT
from .summary import NOISE_NAMES
from .term_scales import prior_variance
from .terms import RandomCurves, RandomEffect


@torch.no_grad()
def intercept_table(fitted: Fitted) -> pd.DataFrame:
    """
    Posterior ``mean`` and standard deviation ``std`` of the intercept of each predictor that has one, in its units.

    :param fitted: The fitted model.
    """
    labels = [fitted.design.labelled(INTERCEPT, index) for index in range(len(fitted.design.parameters))]
    known = {label: [label] for label in labels if label in fitted.model.predictor.names}
    moments = fitted.sums(fitted.reference[:1], known) if known else None
    found = {}
    for index, (name, label) in enumerate(zip(fitted.design.parameters, labels, strict=True)):
        if moments is None or label not in known:
            continue
        mean, deviation = (part[moments.names.index(label)].item() for part in (moments.mean, moments.stddev))
        scale = fitted.scale_of(index)
        found[name] = {"mean": scale * mean + fitted.centre_of(index), "std": scale * deviation}
    return pd.DataFrame.from_dict(found, orient="index", columns=["mean", "std"])


def likelihood_table(fitted: Fitted, result: FitResult | None) -> pd.DataFrame:
    """
    Noise and the like, in units of the response, with intervals, and which are at a bound.

    :param fitted: The fitted model.
    :param result: What the fit has found; None if it was interrupted.
    """
    bounds = () if result is None else result.at_bounds
    likelihood = getattr(fitted.likelihood, "likelihood", fitted.likelihood)
    names = {name.rpartition("raw_")[2]: name for name, _ in fitted.likelihood.named_parameters()}
    found = {}
    for name, power in (("noise", 2), ("scale", 1), ("deg_free", 0), ("shape", 0), ("dispersion", 0), ("inflation", 0)):
        value = getattr(likelihood, name, None)
        if torch.is_tensor(value):
            ends = fitted.intervals.get(f"likelihood.{names.get(name)}[0]", (math.nan, math.nan))
            row = np.array([value.item(), *ends]) * fitted.units.scale**power
            shown = NOISE_NAMES[fitted.family.name] if name == "noise" else name
            found[shown] = [*(row**0.5 if name == "noise" else row), f"likelihood.{name}" in bounds]
    return pd.DataFrame.from_dict(found, orient="index", columns=["estimate", "lower", "upper", "at_bound"])


def random_effect_table(fitted: Fitted) -> pd.DataFrame:
    """
    The standard deviations of random effects (of slopes for each unit of the column) and of the noise, with intervals.

    :param fitted: The fitted model.
    """
    groups = list(fitted.model.predictor.groups)
    found = {}
    for part in fitted.parts:
        if isinstance(part.term, RandomEffect | RandomCurves) and part.components:
            group = fitted.model.predictor.group_of(part.components[0])
            entry = group.names.index(part.components[0])
            name = f"model.variational_strategy.predictor.groups.{groups.index(group)}.kernel.raw_outputscale[{entry}]"
            variance, scale = prior_variance(group, part.components[0]), fitted.scale_of(part.predictor)
            by = part.term.multiplier
            unit = 1.0 if by is None else fitted.design.encoding(by, "multiplier").scale
            found[part.label] = _deviation(fitted, name, variance, scale / unit)
    noise = _noise(fitted)
    if found and noise is not None:
        found["noise"] = _deviation(fitted, *noise, fitted.units.scale)
    return pd.DataFrame.from_dict(found, orient="index", columns=["sd", "lower", "upper"])


def _noise(fitted: Fitted) -> tuple[str, float] | None:
    """Name and value of the noise variance of a normal response, in units of the fit; None for other families."""
    for name, _ in fitted.likelihood.named_parameters():
        if name.endswith("raw_noise"):
            return f"likelihood.{name}[0]", getattr(fitted.likelihood, "likelihood", fitted.likelihood).noise.item()
    return None


def _deviation(fitted: Fitted, name: str, variance: float, scale: float) -> tuple[float, float, float]:
    """A standard deviation and the ends of its interval, from those of the variance."""
    ends = fitted.intervals.get(name, (math.nan, math.nan))
    return scale * math.sqrt(variance), scale * math.sqrt(ends[0]), scale * math.sqrt(ends[1])
