"""Fits to rows in which columns are missing, against fits to complete rows and the truth."""

from __future__ import annotations

import gpytorch
import pytest
import torch
from gpytorch.likelihoods import Likelihood
from torch import Tensor

from gpytorch_gam import AdditiveGP, AdditivePredictor, fit, polish
from gpytorch_gam.likelihoods import PoissonLikelihood
from gpytorch_gam.mlls import CollapsedELBO
from gpytorch_gam.terms import constant, smooth

NAN, NUM_ROWS = float("nan"), 600


def effects(x: Tensor) -> tuple[Tensor, Tensor]:
    """A sine of the first column and a parabola of the second, with mean zero on the unit interval."""
    return torch.sin(2 * torch.pi * x[:, 0]), x[:, 1].square() - 1 / 3


def draw(family: str) -> tuple[Likelihood, Tensor, Tensor, Tensor]:
    """A likelihood, complete inputs, responses and a uniform number for each row, by which its column is missing."""
    generator = torch.Generator().manual_seed(2)
    x = torch.rand(NUM_ROWS, 2, generator=generator, dtype=torch.float64)
    predictor = sum(effects(x)) + 1.0
    missing_if_below = torch.rand(NUM_ROWS, generator=generator)
    if family == "poisson":
        return PoissonLikelihood(), x, torch.poisson(predictor.exp(), generator=generator), missing_if_below
    noise = 0.3 * torch.randn(NUM_ROWS, generator=generator, dtype=torch.float64)
    return gpytorch.likelihoods.GaussianLikelihood(), x, predictor + noise, missing_if_below


def make_model() -> AdditiveGP:
    ends = {"low": 0.0, "high": 1.0, "num_inducing": 10}
    predictor = AdditivePredictor(smooth(0, missing="marginal", **ends), smooth(1, **ends), constant())
    return AdditiveGP(predictor, rank=20).double()


def inside(mean: Tensor, variance: Tensor, truth: Tensor) -> float:
    """The share of values in 95% intervals."""
    return ((mean - truth).abs() <= 1.96 * variance.sqrt()).double().mean().item()


@pytest.mark.parametrize("share", [0.03, 0.3])
@pytest.mark.parametrize("family", ["gaussian", "poisson"])
def test_effects_and_their_variance_are_those_of_complete_rows(family: str, share: float) -> None:
    likelihood, x, y, missing_if_below = draw(family)
    holes, models = x.clone(), []
    holes[missing_if_below < share, 0] = NAN
    complete = missing_if_below >= share
    for rows, responses in ((holes, y), (x[complete], y[complete])):
        model, _ = make_model(), likelihood
        fit(model, draw(family)[0].double(), (rows, responses), method="rows")
        models.append(model)
    scales = [model.predictor.groups[0].kernel.outputscale.sqrt() for model in models]
    # Variance and lengthscale are known together better than each.
    torch.testing.assert_close(*scales, rtol=0.2, atol=0)
    grid = torch.linspace(0.0, 1.0, 201, dtype=torch.float64)[:, None].expand(-1, 2)
    with torch.no_grad():
        found = models[0].components(grid, "x0")
        assert inside(found.mean, found.variance, effects(grid)[0]) > 0.85  # of a curve with few independent values
        # The intervals of rows that miss the column hold the truth, and are as wide as the effect is large.
        unknown = x.clone()
        unknown[:, 0] = NAN
        prediction = models[0].predict(unknown)
        deviation = models[0].components(unknown[:1], "x0").stddev.item()
    assert deviation == pytest.approx(effects(x)[0].std().item(), rel=0.2)  # over ten points, not the rows
    assert inside(prediction.mean, prediction.variance, sum(effects(x)) + 1.0) > 0.93


def test_all_methods_and_bounds_agree() -> None:
    _, x, y, missing_if_below = draw("gaussian")
    x = (x * 50).round() / 50  # bins lose nothing
    x[missing_if_below < 0.2, 0] = NAN
    bounds, predictions, gradients = [], [], []
    for method in ("rows", "bins", "minibatches"):
        torch.manual_seed(0)
        model, likelihood = make_model(), gpytorch.likelihoods.GaussianLikelihood().double()
        parameters = [*model.hyperparameters(), *likelihood.parameters()]
        for parameter in parameters:
            parameter.requires_grad_(False)
        if method == "minibatches":
            fit(model, likelihood, (x, y), method=method, num_epochs=2)
            bounds.append(polish(model, likelihood, [(x, y)])[-1])
        else:
            bounds.append(fit(model, likelihood, (x, y), method=method, tolerance=1e-3).bound)
        prediction = model.predict(x[:50])
        predictions.append(torch.stack([prediction.mean, prediction.stddev]))
        for parameter in parameters:
            parameter.requires_grad_()
        by_hand = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=NUM_ROWS).train()
        loss = NUM_ROWS * by_hand(model(x), y)
        bounds.append(loss.item())
        # At the optimal posterior it has the gradients of the collapsed bound.
        gradients.append(torch.stack([g.sum() for g in torch.autograd.grad(loss, parameters)]))
    collapsed = NUM_ROWS * CollapsedELBO(likelihood, model)(x, y)
    gradients.append(torch.stack([g.sum() for g in torch.autograd.grad(collapsed, parameters)]))
    bounds.append(collapsed.item())
    assert bounds == pytest.approx([bounds[0]] * 7, abs=0.05)
    for other in predictions[1:]:
        torch.testing.assert_close(other, predictions[0], rtol=1e-2, atol=1e-2)
    for other in gradients[1:]:
        torch.testing.assert_close(other, gradients[0], rtol=1e-2, atol=0.2)
