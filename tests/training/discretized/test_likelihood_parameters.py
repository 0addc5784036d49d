"""Discretised fits of likelihoods with parameters of their own."""

from __future__ import annotations

import gpytorch
import pytest
import torch
from gpytorch.likelihoods import GaussianLikelihood, Likelihood, StudentTLikelihood
from gpytorch.priors import NormalPrior
from linear_operator.operators import DiagLinearOperator
from torch import Tensor

from gpytorch_gam import AdditiveGP, AdditivePredictor
from gpytorch_gam.likelihoods import (
    GammaLikelihood,
    NegativeBinomialLikelihood,
    OrdinalLikelihood,
    RowwiseLikelihood,
)
from gpytorch_gam.parameters.log_scale import Coordinates
from gpytorch_gam.terms import constant, smooth
from gpytorch_gam.training import fit
from gpytorch_gam.training.discretized import _chunks, discretized_fit
from gpytorch_gam.training.discretized._likelihood_ascent import LikelihoodAscent
from gpytorch_gam.training.discretized._tabulated_gradients import WeightedRows, distinct_responses, tabulated
from tests.problems import fit_by_bins


def make_inputs(num_rows: int) -> Tensor:
    torch.manual_seed(0)
    return (20 * torch.rand(num_rows, 2, dtype=torch.float64)).round() / 20


def respond(kind: str, f: Tensor) -> tuple[Tensor, Likelihood]:
    gamma, t = torch.distributions.Gamma(f.new_tensor(3.0), 3.0), torch.distributions.StudentT(f.new_tensor(4.0))
    if kind == "counts":
        return torch.poisson(gamma.sample(f.shape) * (f + 1).exp()), NegativeBinomialLikelihood().double()
    if kind == "heavy tails":
        return f + 0.2 * t.sample(f.shape), StudentTLikelihood().double()
    if kind == "positive":
        return gamma.sample(f.shape) * f.exp(), GammaLikelihood().double()
    noisy = f + torch.randn_like(f)
    return torch.bucketize(noisy, f.new_tensor([-1.0, 0.0, 1.0])).to(f), OrdinalLikelihood(4).double()


def truth(x: Tensor) -> Tensor:
    return torch.sin(6 * x[:, 0]) + x[:, 1] - 0.5


def make_model(x: Tensor) -> AdditiveGP:
    return AdditiveGP(AdditivePredictor(smooth([0, 1], x), constant()), "coupled").double()


@pytest.mark.parametrize("kind", ["counts", "heavy tails", "positive", "ordered"])
def test_the_end_is_stationary_in_all_hyperparameters(kind: str) -> None:
    x = make_inputs(400)
    y, likelihood = respond(kind, truth(x))
    before = [parameter.detach().clone() for parameter in likelihood.parameters()]
    model, weights = make_model(x), torch.full((400,), 1.5, dtype=torch.float64)
    wrapped = RowwiseLikelihood(likelihood) if kind == "heavy tails" else likelihood
    history = fit_by_bins(model, wrapped, [(x, y, {"weights": weights})], tolerance=1e-5)
    assert any(not torch.equal(old, new) for old, new in zip(before, likelihood.parameters(), strict=True))
    bound = 400 * gpytorch.mlls.VariationalELBO(wrapped, model.train(), num_data=400)(model(x), y, weights=weights)
    assert bound.item() == pytest.approx(history[-1], rel=1e-9)
    parameters = [*model.hyperparameters(), *likelihood.parameters()]
    parameters = [parameter for parameter in parameters if parameter.requires_grad]
    gradients = Coordinates(parameters, [model, likelihood]).gradients(list(torch.autograd.grad(bound, parameters)))
    # In nats per unit of a logarithm; with a curvature of about one, a gradient of .2 leaves .02 nats.
    assert max(gradient.abs().max().item() for gradient in gradients) < (0.05 if kind != "heavy tails" else 0.2)


def test_priors_of_likelihoods_count() -> None:
    x = make_inputs(300)
    y, likelihood = respond("positive", truth(x))
    likelihood.register_prior("shape_prior", NormalPrior(9.0, 1e-2), "shape")
    fit_by_bins(make_model(x), likelihood, [(x, y)])
    assert likelihood.shape.item() == pytest.approx(9.0, abs=0.05)


def test_many_rows_begin_with_the_parameters_of_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    x = make_inputs(3000)
    y, _ = respond("counts", truth(x))
    bounds: list[float] = []
    for size in (20000, 400):
        monkeypatch.setattr(discretized_fit, "_SAMPLE_SIZE", size)
        likelihood = NegativeBinomialLikelihood().double()
        bounds.append(fit_by_bins(make_model(x), likelihood, [(x, y)], tolerance=0.01)[-1])
    assert bounds[0] == pytest.approx(bounds[1], abs=0.2)  # the model has two maxima 0.13 nats apart


def gradients_of_rows(
    likelihood: Likelihood, y: Tensor, mean: Tensor, variance: Tensor, weights: Tensor
) -> list[Tensor]:
    predictors = gpytorch.distributions.MultivariateNormal(mean, DiagLinearOperator(variance))
    expected = weights @ likelihood.expected_log_prob(y, predictors)
    return list(torch.autograd.grad(expected, list(likelihood.parameters())))


def test_moves_at_fixed_moments_reach_the_maximum_over_chunks_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_chunks, "CHUNK_SIZE", 3000)
    y, likelihood = respond("heavy tails", truth(make_inputs(8000)))
    rows = WeightedRows(y, torch.zeros(8000).double(), 0.01 * torch.rand(8000).double(), torch.ones(8000).double())
    LikelihoodAscent(likelihood, 8000).maximise(rows, 1e-6)
    for gradient in gradients_of_rows(likelihood, *rows[:4]):
        assert gradient.abs().max() < 0.6  # of 8000 rows


def test_tabulated_rows_have_the_same_maximum() -> None:
    f = truth(make_inputs(30000))
    y, likelihood = respond("ordered", f)
    distinct, codes = distinct_responses(y)
    mean, variance, weights = 0.8 * f, 0.01 + 0.01 * torch.rand(30000).double(), 0.5 + torch.rand(30000).double()
    table = tabulated(likelihood, distinct, codes, mean, variance)
    assert table is not None
    knots = table.spread(codes, mean, variance, weights)
    assert len(knots.mean) < 7000 and knots.weights.sum().item() == pytest.approx(weights.sum().item())
    LikelihoodAscent(likelihood, 30000).maximise(knots, 1e-6)
    for gradient in gradients_of_rows(likelihood, y, mean, variance, weights):
        assert gradient.abs().max() < 3.0


@pytest.mark.parametrize("kind", ["counts", "gaussian"])
def test_the_end_of_a_fit_is_measured(kind: str) -> None:
    x = make_inputs(400)
    y, likelihood = (truth(x), GaussianLikelihood().double()) if kind == "gaussian" else respond(kind, truth(x))
    y = y + 0.3 * torch.randn(400).double() if kind == "gaussian" else y
    model = make_model(x)
    found = fit(model, likelihood, [(x, y)], method="bins", tolerance=0.01)
    assert found.converged and found.open <= 0.01 and found.bound == found.history[-1].elbo
    if kind == "gaussian":
        assert found.passes == len(found.history)  # one each time
    else:
        assert found.passes > len(found.history)
    assert found.evaluations > 5 and "maximum" in found.stopped
    bound = 400 * gpytorch.mlls.VariationalELBO(likelihood, model.train(), num_data=400)(model(x), y)
    parameters = [p for p in (*model.hyperparameters(), *likelihood.parameters()) if p.requires_grad]
    gradients = Coordinates(parameters, [model, likelihood]).gradients(list(torch.autograd.grad(bound, parameters)))

    largest = max(gradient.abs().max().item() for gradient in gradients)
    assert found.gradient == pytest.approx(largest, rel=0.05, abs=1e-3)
