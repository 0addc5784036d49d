"""The evidence for components, against bounds of models without them."""

from __future__ import annotations

import pytest
import torch
from gpytorch.likelihoods import GaussianLikelihood

from gpytorch_gam import AdditiveGP, AdditivePredictor, fit
from gpytorch_gam.diagnostics import component_evidence
from gpytorch_gam.terms import constant, linear, smooth
from gpytorch_gam.training.optimal_bound import OptimalBound


def test_the_evidence_is_the_difference_of_bounds_at_the_same_hyperparameters() -> None:
    torch.manual_seed(0)
    x = torch.rand(60, 2, dtype=torch.float64)
    y = torch.sin(4 * x[:, 0]) + x[:, 1] + 0.3 * torch.randn(60, dtype=torch.float64)
    groups = [smooth([0, 1], x, num_inducing=30), linear(1, x), constant()]
    likelihood = GaussianLikelihood().double()
    model = AdditiveGP(AdditivePredictor(*groups), family="coupled").double()
    fit(model, likelihood, (x, y), method="rows")

    def bound(*kept: object) -> float:
        part = AdditiveGP(AdditivePredictor(*kept), family="coupled").double()
        objective = OptimalBound(part, likelihood, (x, y))
        return objective.evaluate(objective.free.position, gradient=False).value

    whole = bound(*groups)
    assert component_evidence(model, "linear(x1)") == pytest.approx(whole - bound(groups[0], groups[2]), abs=0.02)
    both = component_evidence(model, ["x0", "x1"])
    assert both == pytest.approx(whole - bound(*groups[1:]), abs=0.02)
    assert component_evidence(model, []) == 0.0


def test_names_must_be_those_of_components() -> None:
    model = AdditiveGP(AdditivePredictor(constant()))
    with pytest.raises(ValueError, match="names must be one of"):
        component_evidence(model, "x0")
    with pytest.raises(TypeError, match="names must be one of"):
        component_evidence(model, [0])  # type: ignore[list-item]
