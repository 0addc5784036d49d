"""Averaged natural parameters, and losses of the wrong sign."""

from __future__ import annotations

import warnings

import gpytorch
import pytest
import torch
from gpytorch.likelihoods import BernoulliLikelihood, Likelihood, StudentTLikelihood

from gpytorch_gam.likelihoods import PoissonLikelihood
from gpytorch_gam.optim import NaturalGradient
from gpytorch_gam.warnings import CurvatureWarning
from tests.problems import (
    effect,
    elbo,
    gaussian_likelihood,
    gaussian_problem,
    make_inputs,
    make_model,
    set_to_optimum,
    train,
)


@pytest.mark.parametrize(("family", "rank"), [("block_low_rank", 6), ("low_rank", 20)])
def test_averaging_comes_closer_than_the_default(family: str, rank: int | None) -> None:
    x, y = gaussian_problem(500)
    likelihood, gaps = gaussian_likelihood(), []
    best = make_model(family, rank)
    set_to_optimum(best, likelihood, x, y)
    for averaging in (False, True):
        model = make_model(family, rank)
        train(model, likelihood, x, y, steps=30, batch_size=20, averaging=averaging)
        gaps.append(elbo(best, likelihood, x, y) - elbo(model, likelihood, x, y))
    assert gaps[0] > 1.0
    assert gaps[1] < 0.5 * gaps[0]


def test_the_step_size_falls_without_end() -> None:
    model = make_model("block_low_rank", 6)
    natural = NaturalGradient(model, num_data=1000, averaging=True)
    natural._own.step, natural._own.effective_dimension = 3_000_000, torch.tensor(10.0)
    assert natural._step_size(100).item() == pytest.approx(1e-6, rel=1e-3)
    assert natural._step_size(50).item() == pytest.approx(0.5e-6, rel=1e-3)
    assert natural._step_size(1000).item() == 1.0


def test_averaging_takes_no_lr() -> None:
    with pytest.raises(ValueError, match=r"takes no lr, got lr=0\.1"):
        NaturalGradient(make_model("block_low_rank", 6), num_data=10, averaging=True, lr=0.1)


# ------------------------------------------------------------------------------------------------ losses of wrong sign


def curvature_warnings(
    likelihood: Likelihood, x: torch.Tensor, y: torch.Tensor, sign: int, batch_size: int
) -> list[warnings.WarningMessage]:
    model = make_model("block_low_rank", 6)
    natural = NaturalGradient(model, num_data=len(x))
    mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(x), combine_terms=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for rows in torch.randperm(len(x))[: 8 * batch_size].split(batch_size):
            model.zero_grad()
            expected, divergence, _ = mll(model(x[rows]), y[rows])
            (sign * expected + divergence).backward()
            natural.step()
    return [warning for warning in caught if warning.category is CurvatureWarning]


def likelihoods() -> dict[str, tuple[Likelihood, torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    x = make_inputs(400)
    signal = effect(x)
    student = StudentTLikelihood().double()
    student.noise, student.deg_free = 0.04, 4.0
    tails = torch.distributions.StudentT(4.0).sample((400,)).to(x)
    return {
        "gaussian": (gaussian_likelihood(), x, signal + 0.3 * torch.randn(400).to(x)),
        "bernoulli": (BernoulliLikelihood(), x, (signal > 0).to(x)),
        "poisson": (gpytorch.likelihoods.PoissonLikelihood(), x, torch.poisson((signal + 1).exp())),
        "log poisson": (PoissonLikelihood(), x, torch.poisson((signal + 1).exp())),
        "student": (student, x, signal + 0.2 * tails),
    }


@pytest.mark.parametrize("name", ["gaussian", "bernoulli", "poisson", "log poisson"])
def test_a_data_term_without_its_minus_sign_is_warned_of_once(name: str) -> None:
    caught = curvature_warnings(*likelihoods()[name], sign=1, batch_size=20)
    assert len(caught) == 1
    assert "as minus the expected log-likelihood" in str(caught[0].message)


@pytest.mark.parametrize("name", ["gaussian", "bernoulli", "poisson", "log poisson", "student"])
def test_the_right_sign_is_not_warned_of(name: str) -> None:
    assert curvature_warnings(*likelihoods()[name], sign=-1, batch_size=1) == []


@pytest.mark.parametrize("batch_size", [1, 5])
def test_small_batches_of_outliers_are_not_taken_for_a_wrong_sign(batch_size: int) -> None:
    torch.manual_seed(0)
    x = make_inputs(400)
    likelihood = StudentTLikelihood().double()
    likelihood.noise, likelihood.deg_free = 0.01, 3.0
    y = effect(x) + 0.1 * torch.distributions.StudentT(1.0).sample((400,)).to(x)
    assert curvature_warnings(likelihood, x, y, sign=-1, batch_size=batch_size) == []
