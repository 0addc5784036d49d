"""What a user writes, for a strict type checker: ``mypy --strict tests/typed_user.py``."""

from __future__ import annotations

import torch
from torch import Tensor

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup, NaturalGradient, fit, polish
from gpytorch_gam.components import Levels
from gpytorch_gam.data import RowDataset
from gpytorch_gam.diagnostics import SobolIndices, concurvity, sobol_indices
from gpytorch_gam.distributions import predictive_quantiles
from gpytorch_gam.effects import ComponentPosterior, Prediction
from gpytorch_gam.likelihoods import PoissonLikelihood
from gpytorch_gam.terms import constant, cyclic, random_effect, smooth
from gpytorch_gam.training import Epoch, FitResult


def make_model(x: Tensor, sites: Levels) -> AdditiveGP:
    terms: list[ComponentGroup] = [
        smooth([0, 1], x, names=["a", "b"]),
        cyclic(2, period=24.0),
        random_effect(3, sites),
        constant(),
    ]
    return AdditiveGP(AdditivePredictor(*terms), family="block_low_rank", rank=16)


def report(epoch: Epoch) -> None:
    print(epoch.number, epoch.elbo)


def main() -> None:
    x, y = torch.rand(100, 4), torch.rand(100)
    sites = Levels.from_values(["Bergen", "Oslo"])
    model, likelihood = make_model(x, sites), PoissonLikelihood()
    result: FitResult = fit(model, likelihood, RowDataset(x, y, exposure=y + 1), callback=report)
    bounds: list[float] = polish(model, likelihood, [(x, y)])
    parts: ComponentPosterior = model.components(x, exclude="x3")
    low, high = parts["a"].confidence_region()
    prediction: Prediction = model.predict(x, components=["a"])
    indices: SobolIndices = sobol_indices(model, x)
    quantiles: Tensor = predictive_quantiles(likelihood(prediction.distribution), [0.1, 0.9])
    natural = NaturalGradient(model, num_data=len(y), lr=0.1)
    natural.remove()
    print(result.bound + bounds[-1], low + high, indices.total, quantiles, concurvity(model, x).names)
