"""One-predictor likelihoods in models: bounds of weighted rows, fits of counts, objectives."""

from __future__ import annotations

from collections.abc import Callable

import gpytorch
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import BernoulliLikelihood, GaussianLikelihood, Likelihood
from gpytorch.likelihoods import StudentTLikelihood as UpstreamStudentT

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup
from gpytorch_gam.components import regular_grid
from gpytorch_gam.kernels import ANOVAKernel, Uniform
from gpytorch_gam.likelihoods import (
    BinomialLikelihood,
    GammaLikelihood,
    NegativeBinomialLikelihood,
    OrdinalLikelihood,
    PoissonLikelihood,
    QuantileLikelihood,
    RowwiseLikelihood,
    StudentTLikelihood,
    ZeroInflatedPoissonLikelihood,
)
from gpytorch_gam.optim import NaturalGradient
from gpytorch_gam.terms import constant

LIKELIHOODS: dict[str, Callable[[], Likelihood]] = {
    "poisson": PoissonLikelihood,
    "negative binomial": NegativeBinomialLikelihood,
    "binomial": BinomialLikelihood,
    "gamma": GammaLikelihood,
    "ordinal": lambda: OrdinalLikelihood(4),
    "quantile": lambda: QuantileLikelihood(0.7),
    "student": StudentTLikelihood,
    "zero-inflated": ZeroInflatedPoissonLikelihood,
    "gaussian, rowwise": lambda: RowwiseLikelihood(GaussianLikelihood()),
    "bernoulli, rowwise": lambda: RowwiseLikelihood(BernoulliLikelihood()),
    "student, rowwise": lambda: RowwiseLikelihood(UpstreamStudentT()),
}
each_likelihood = pytest.mark.parametrize("make", LIKELIHOODS.values(), ids=LIKELIHOODS.keys())


def additive_model(num_columns: int = 2, num_inducing: int = 8, with_constant: bool = True) -> AdditiveGP:
    size = torch.Size([num_columns])
    kernel = ScaleKernel(ANOVAKernel(RBFKernel(batch_shape=size), Uniform(0.0, 1.0)), batch_shape=size)
    kernel.base_kernel.base_kernel.lengthscale = 0.3
    columns = [[column] for column in range(num_columns)]
    group = ComponentGroup(kernel, columns=columns, inducing_points=regular_grid(0.0, 1.0, num_inducing))
    groups = (group, constant()) if with_constant else (group,)
    return AdditiveGP(AdditivePredictor(*groups), "block_low_rank", rank=4).double()


def data(likelihood: Likelihood, num_rows: int = 30) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.rand(num_rows, 2, dtype=torch.float64)
    with torch.no_grad():
        return x, likelihood(torch.sin(6 * x[:, 0]) + x[:, 1]).sample().double()


@each_likelihood
def test_integer_weights_equal_repeated_rows(make: Callable[[], Likelihood]) -> None:
    likelihood, model = make().double(), additive_model()
    x, y = data(likelihood)
    weights = torch.arange(30) % 4
    offset = torch.linspace(-0.5, 0.5, 30, dtype=torch.float64)
    repeated = torch.repeat_interleave(torch.arange(30), weights)
    natural = NaturalGradient(model, num_data=30)
    (-gpytorch.mlls.VariationalELBO(likelihood, model, num_data=30)(model(x), y)).backward()
    natural.step()  # a posterior that is not the prior
    natural.remove()
    for objective in (gpytorch.mlls.VariationalELBO, gpytorch.mlls.PredictiveLogLikelihood):
        by_weights = 30 * objective(likelihood, model, num_data=30)(model(x), y, weights=weights, offset=offset)
        number = len(repeated)
        by_rows = number * objective(likelihood, model, num_data=number)(
            model(x[repeated]), y[repeated], offset=offset[repeated]
        )
        parameters = [*model.hyperparameters(), *likelihood.parameters()]
        gradients = [torch.autograd.grad(value, parameters) for value in (by_weights, by_rows)]
        torch.testing.assert_close(by_weights, by_rows, rtol=0.0, atol=1e-6)
        for of_weights, of_rows in zip(*gradients, strict=True):
            torch.testing.assert_close(of_weights, of_rows, rtol=1e-6, atol=1e-6)


@each_likelihood
def test_natural_gradients_raise_the_bound(make: Callable[[], Likelihood]) -> None:
    likelihood, model = make().double(), additive_model()
    x, y = data(likelihood, 60)
    mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=60)
    natural = NaturalGradient(model, num_data=60)
    bounds = []
    for _ in range(12):
        loss = -mll(model(x), y, weights=2.0)
        loss.backward()
        natural.step()
        bounds.append(-loss.item())
    assert all(torch.isfinite(parameter.grad).all() for parameter in likelihood.parameters())
    assert bounds[-1] > bounds[0]
    assert abs(bounds[-1] - bounds[-2]) < 1e-2  # nats a row: it has settled


@each_likelihood
def test_predictive_log_likelihood_trains(make: Callable[[], Likelihood]) -> None:
    likelihood, model = make().double(), additive_model()
    x, y = data(likelihood)
    mll = gpytorch.mlls.PredictiveLogLikelihood(likelihood, model, num_data=30)
    adam = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=0.05)
    losses = []
    for _ in range(6):
        adam.zero_grad()
        loss = -mll(model(x), y)
        loss.backward()
        adam.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def fitted_counts(likelihood: Likelihood, x: torch.Tensor, y: torch.Tensor, exposure: torch.Tensor) -> AdditiveGP:
    model = additive_model(num_columns=1, num_inducing=12)
    mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(y))
    natural = NaturalGradient(model, num_data=len(y))
    adam = torch.optim.Adam([*model.hyperparameters(), *likelihood.parameters()], lr=0.1)
    for _ in range(60):
        rows = torch.randperm(len(y))[:500]
        adam.zero_grad()
        loss = -mll(model(x[rows]), y[rows], exposure=exposure[rows])
        loss.backward()
        natural.step()
        adam.step()
    natural.remove()
    return model.eval()


@pytest.mark.parametrize(
    ("make", "dispersion"), [(PoissonLikelihood, None), (NegativeBinomialLikelihood, 0.3)], ids=["poisson", "negative"]
)
def test_counts_with_exposures_from_one_to_a_thousand(make: type, dispersion: float | None) -> None:
    x, grid = torch.rand(2000, 1, dtype=torch.float64), torch.linspace(0.0, 1.0, 201, dtype=torch.float64).unsqueeze(-1)
    exposure = 1000 ** torch.rand(2000, dtype=torch.float64)

    def log_rate(inputs: torch.Tensor) -> torch.Tensor:
        return 0.3 + torch.sin(2 * torch.pi * inputs[:, 0])

    truth = PoissonLikelihood() if dispersion is None else NegativeBinomialLikelihood().double()
    if dispersion is not None:
        truth.dispersion = dispersion
    with torch.no_grad():
        y = truth(log_rate(x), exposure=exposure).sample()
    likelihood = make().double()
    model = fitted_counts(likelihood, x, y, exposure)
    with torch.no_grad():
        predictor = model(grid)
        error = (predictor.mean - log_rate(grid)).square().mean().sqrt()
        once, twice = (likelihood(predictor, exposure=factor * 17.3).mean for factor in (1.0, 2.0))
        parts = model.components(grid)
        effect_error = (parts["x0"].mean - torch.sin(2 * torch.pi * grid[:, 0])).square().mean().sqrt()
    assert error < 0.06
    assert torch.equal(twice, 2 * once)
    # Components do not see the exposure: the effect is that of a unit of it, and so is the level.
    assert effect_error < 0.06
    assert (parts["constant"].mean - 0.3).abs().max() < 0.06
    if dispersion is not None:
        assert abs(likelihood.dispersion.item() - dispersion) < 0.05  # four standard errors
