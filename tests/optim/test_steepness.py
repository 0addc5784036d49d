"""How fast the curvature of a likelihood changes, and how far a step may go for it."""

from __future__ import annotations

import gpytorch
import pytest
import torch
from gpytorch.likelihoods import BernoulliLikelihood, GaussianLikelihood

from gpytorch_gam import AdditiveGP, AdditivePredictor
from gpytorch_gam import likelihoods as ours
from gpytorch_gam.optim import NaturalGradient
from gpytorch_gam.optim.rows.move_limit import MoveLimit
from gpytorch_gam.optim.rows.steepness import curvature_steepness
from gpytorch_gam.optim.rows.stream import Rows
from gpytorch_gam.terms import constant, smooth
from tests.problems import backward


def make_model(x: torch.Tensor, num_predictors: int = 1) -> AdditiveGP:
    groups = [
        part
        for p in range(num_predictors)
        for part in (smooth([0, 1], x, num_inducing=5, variance=4.0, predictor=p), constant(predictor=p))
    ]
    return AdditiveGP(AdditivePredictor(*groups), rank=4).double()


def steepness(likelihood: gpytorch.likelihoods.Likelihood, y: torch.Tensor, num_predictors: int = 1) -> list[float]:
    torch.manual_seed(0)
    x = torch.rand(len(y), 2).double()
    strategy = make_model(x, num_predictors).variational_strategy
    return curvature_steepness(strategy, likelihood.double(), Rows(x, y.double(), {})).tolist()


def test_the_steepness_is_that_of_the_link() -> None:
    counts = torch.arange(60) % 7
    assert steepness(ours.PoissonLikelihood(), counts) == pytest.approx([1.0])
    assert steepness(GaussianLikelihood(), counts) == pytest.approx([0.0], abs=1e-9)
    assert 0.1 < steepness(BernoulliLikelihood(), counts % 2)[0] < 1.5
    # The curvature in the location is exp(-2 log scale).
    assert steepness(ours.GaussianLocationScaleLikelihood(), counts, 2)[1] == pytest.approx(2.0)


def test_the_steepness_of_scaled_responses_is_scaled() -> None:
    y = torch.randn(60, generator=torch.Generator().manual_seed(1))
    found = [curvature_steepness_of_t(y, scale) * scale for scale in (1.0, 100.0)]
    assert found[1] == pytest.approx(found[0], rel=1e-6)


def curvature_steepness_of_t(y: torch.Tensor, scale: float) -> float:
    torch.manual_seed(0)
    x = torch.rand(len(y), 2).double()
    groups = smooth([0, 1], x, num_inducing=5, variance=4.0 * scale**2), constant(variance=scale**2)
    model, likelihood = AdditiveGP(AdditivePredictor(*groups), rank=4).double(), ours.StudentTLikelihood().double()
    likelihood.initialize(noise=0.1 * scale**2)
    return curvature_steepness(model.variational_strategy, likelihood, Rows(x, scale * y.double(), {})).item()


def test_a_limit_is_that_of_the_components_at_their_inducing_points_and_of_the_rows() -> None:
    torch.manual_seed(0)
    x = torch.rand(30, 2).double()
    strategy = make_model(x, 2).variational_strategy
    choleskys = [factor.detach() for factor in strategy.inducing_choleskys()]
    rates = torch.tensor([0.5, 3.0]).double()
    limit = MoveLimit(rates, choleskys, [group.predictor_index for group in strategy.predictor.groups])
    direction = torch.randn(strategy.predictor.num_inducing_total).double()
    dense = torch.block_diag(*(block for factor in choleskys for block in factor))
    owner = torch.tensor([0] * 11 + [1] * 11)
    torch.testing.assert_close(limit.usage_at_points(direction), ((dense @ direction).abs() * rates[owner]).max() / 2)
    change = torch.randn(2, 30).double()
    torch.testing.assert_close(limit.usage_in_rows(change), (change.abs() * rates[:, None]).max() / 2)


def test_a_step_moves_no_predictor_further_than_its_limit() -> None:
    torch.manual_seed(0)
    x = torch.rand(200, 2).double()
    y, likelihood = torch.poisson((9 + torch.sin(6 * x[:, 0])).exp()), ours.PoissonLikelihood()
    model = make_model(x)
    natural = NaturalGradient(model, num_data=len(y))
    natural.steepness = torch.ones(1).double()
    for _ in range(4):
        before = model(x).mean.detach()
        backward(model, likelihood, x, y, len(y))
        natural.step()
        change = (model(x).mean.detach() - before).abs().max().item()
        assert 1.0 < change <= 2.0 + 1e-6  # the mean of the counts is nine units away
