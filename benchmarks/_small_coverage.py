"""The coverage of bands in `small_data.py`, with and without the uncertainty of the hyperparameters."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gpytorch
import torch
from _small_sets import FAMILIES
from gpytorch.likelihoods import Likelihood
from torch import Tensor
from vs_bam import SCALE, SHIFT, draw

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import mixed_effects
from friedman_anova import coverage
from friedman_anova import friedman as friedman_function

from gpytorch_gam import AdditiveGP, AdditivePredictor
from gpytorch_gam.diagnostics import HyperparameterUncertainty
from gpytorch_gam.terms import constant, smooth, tensor
from gpytorch_gam.training import fit

# Where coverage should lie.
COVERAGE = (0.93, 0.97)

# Dispersion of the counts: their variance is mu + this times mu^2.
DISPERSION = 0.3


class Fitted(NamedTuple):
    """A model, its data, rows at which the predictor is known, and the seconds of the fit."""

    model: AdditiveGP
    likelihood: Likelihood
    rows: tuple[Tensor, Tensor]
    fresh: Tensor
    truth: Tensor
    seconds: float


def friedman(family: str, num_rows: int, seed: int) -> Fitted:
    """Ten smooths and an interaction; labels have a probit link, counts a logarithm, both of (f - 14) / 5."""
    x, y, fresh, truth = draw("gaussian" if family == "gaussian" else "labels", seed, num_rows)
    likelihood = FAMILIES[family].likelihood() if family != "labels" else gpytorch.likelihoods.BernoulliLikelihood()
    if family == "negative binomial":
        rate = torch.exp((friedman_function(x) - SHIFT) / SCALE)
        shape = torch.tensor(1.0 / DISPERSION)
        y = torch.poisson(rate * torch.distributions.Gamma(shape, shape).sample(rate.shape))
    model = AdditiveGP(AdditivePredictor(smooth(list(range(x.shape[-1])), x), tensor((0, 1), x), constant()))
    return fitted(model, likelihood, (x, y), fresh[:2000], truth[:2000])


def fitted(
    model: AdditiveGP, likelihood: Likelihood, rows: tuple[Tensor, Tensor], fresh: Tensor, truth: Tensor
) -> Fitted:
    start = time.process_time()
    fit(model, likelihood, rows)
    return Fitted(model, likelihood, rows, fresh, truth, time.process_time() - start)


def plants(num_rows: int, seed: int) -> Fitted:
    """The heights of all plants over the weeks, in units of the standardised responses."""
    experiment = mixed_effects.run_experiment(seed, num_steps=100)
    found, weeks = experiment.found, mixed_effects.grid(31)
    truth = (experiment.plants.heights(weeks).flatten() - found.centre) / found.scale
    fresh = found.inputs(weeks, found.levels.labels)
    return Fitted(found.model, found.likelihood, found.rows, fresh, truth, found.seconds)


CASES: dict[str, Callable[[int, int], Fitted]] = {
    "friedman-500": lambda rows, seed: friedman("gaussian", rows or 500, seed),
    "friedman-5000": lambda rows, seed: friedman("gaussian", rows or 5000, seed),
    "labels-2000": lambda rows, seed: friedman("labels", rows or 2000, seed),
    "counts-2000": lambda rows, seed: friedman("negative binomial", rows or 2000, seed),
    "mixed-effects": plants,
}


@torch.no_grad()
def covered(name: str, num_draws: int, quick: bool) -> dict[str, Any]:
    """Mean coverage over the draws, and median seconds of the processor."""
    found: dict[str, list[float]] = {"plain": [], "with_uncertainty": [], "fit": [], "uncertainty": []}
    for seed in range(num_draws):
        case = CASES[name](150 if quick else 0, seed)
        posterior = case.model(case.fresh)
        start = time.process_time()
        uncertainty = HyperparameterUncertainty(case.model, case.likelihood, case.rows)
        found["uncertainty"].append(time.process_time() - start)
        wider = case.model.predict(case.fresh, components=False, hyperparameters=uncertainty)
        found["fit"].append(case.seconds)
        found["plain"].append(coverage(posterior.mean, posterior.variance.sqrt(), case.truth))
        found["with_uncertainty"].append(coverage(wider.mean, wider.stddev, case.truth))
    return {
        "name": name,
        "num_draws": num_draws,
        "plain": statistics.mean(found["plain"]),
        "with_uncertainty": statistics.mean(found["with_uncertainty"]),
        "fit_seconds": statistics.median(found["fit"]),
        "uncertainty_seconds": statistics.median(found["uncertainty"]),
        "draws": found,
    }
