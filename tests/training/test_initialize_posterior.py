"""A posterior that has seen a batch: better at once, and in the long run of Adam alone."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from gpytorch_gam import AdditiveGP
from gpytorch_gam.optim import NaturalGradient
from gpytorch_gam.training import initialize_posterior
from tests.problems import (
    backward,
    elbo,
    gaussian_likelihood,
    gaussian_problem,
    make_model,
    moderate_problem,
)

families = pytest.mark.parametrize(
    ("family", "rank"),
    [("block_low_rank", 6), ("block_low_rank", "auto"), ("low_rank", 20), ("low_rank", "auto"), ("mean_field", None)],
)


def train_by_adam(model: AdditiveGP, likelihood: object, x: torch.Tensor, y: torch.Tensor, steps: int) -> float:
    adam = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=0.05, betas=(0.9, 0.95))
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        rows = torch.randint(len(x), (200,), generator=generator)
        adam.zero_grad()
        backward(model, likelihood, x[rows], y[rows], len(x))
        adam.step()
    return elbo(model, likelihood, x, y)


@families
def test_the_start_is_far_better_and_adam_gets_further(family: str, rank: int | str | None) -> None:
    x, y = gaussian_problem(1000)
    starts, ends = [], []
    for initialises in (False, True):
        model, likelihood = make_model(family, rank), gaussian_likelihood()
        model(x[:1])
        if initialises:
            initialize_posterior(model, likelihood, x[:300], y[:300], num_data=1000)
        starts.append(elbo(model, likelihood, x, y))
        ends.append(train_by_adam(model, likelihood, x, y, 25))
    assert starts[1] > starts[0] + 30000  # -38000 near the prior; the optimum is near -285
    assert starts[1] > ends[0] + 300  # what Adam does in 25 steps is done
    assert ends[1] > starts[1]


@pytest.mark.parametrize("kind", ["labels", "counts", "student"])
def test_other_likelihoods(kind: str) -> None:
    x, y, likelihood = moderate_problem(kind)
    model = make_model("block_low_rank", "auto")
    model(x[:1])
    before = elbo(model, likelihood, x, y)
    initialize_posterior(model, likelihood, x, y)
    assert elbo(model, likelihood, x, y) > before + 100


@pytest.mark.parametrize("fails", [False, True])
def test_hyperparameters_gradients_and_modes_stay(fails: bool) -> None:
    x, y = gaussian_problem()
    model, likelihood = make_model("block_low_rank", 6), gaussian_likelihood()
    backward(model, likelihood, x, y, len(y))
    model.eval()
    model.predictor.groups[0].kernel.train()

    def state() -> list[object]:
        named = [*model.named_parameters(), *likelihood.named_parameters()]
        return [
            {name: p.detach().clone() for name, p in named if fails or "_variational_distribution" not in name},
            {name: (p.requires_grad, p.grad.clone()) for name, p in named},
            {name: module.training for name, module in [*model.named_modules(), *likelihood.named_modules()]},
        ]

    before, mean = state(), model.variational_strategy._variational_distribution.variational_mean.detach().clone()
    if fails:
        y[3] = float("nan")
        with pytest.raises(RuntimeError, match="NaN or infinite in 1 of 400 rows"):
            initialize_posterior(model, likelihood, x, y)
    else:
        with torch.no_grad():  # gradients are switched on where they are needed
            initialize_posterior(model, likelihood, x, y)
        assert not torch.equal(mean, model.variational_strategy._variational_distribution.variational_mean)
    torch.testing.assert_close(state(), before, rtol=0, atol=0)
    assert model.variational_strategy.training_hooks is None


def test_a_resized_factor_has_no_gradient() -> None:
    x, y = gaussian_problem()
    model, likelihood = make_model("low_rank", "auto"), gaussian_likelihood()
    backward(model, likelihood, x, y, len(y))
    distribution = model.variational_strategy._variational_distribution
    before = distribution.rank
    initialize_posterior(model, likelihood, x, y)
    assert distribution.rank < before
    assert distribution.precision_factor.grad is None


def test_frozen_hyperparameters_are_no_obstacle() -> None:
    x, y = gaussian_problem()
    model, likelihood = make_model("block_low_rank", 6), gaussian_likelihood()
    for parameter in (*model.hyperparameters(), *likelihood.parameters()):
        parameter.requires_grad_(False)
    before = elbo(model, likelihood, x, y)
    initialize_posterior(model, likelihood, x, y)
    assert elbo(model, likelihood, x, y) > before + 1000


def test_an_attached_optimiser_is_an_error_that_changes_nothing() -> None:
    x, y = gaussian_problem()
    model, likelihood = make_model("block_low_rank", 6), gaussian_likelihood()
    model(x[:1])
    natural = NaturalGradient(model, num_data=len(y))
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match="call its remove"):
        initialize_posterior(model, likelihood, x, y)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    natural.step(lambda: backward(model, likelihood, x, y, len(y)))
    assert math.isfinite(elbo(model, likelihood, x, y))
