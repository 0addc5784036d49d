"""Gains of components that a model lacks, against bounds of models that have them."""

from __future__ import annotations

import pytest
import torch
from gpytorch.likelihoods import GaussianLikelihood, Likelihood
from torch import Tensor

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup, fit
from gpytorch_gam.likelihoods import GaussianLocationScaleLikelihood, PoissonLikelihood
from gpytorch_gam.terms import constant, interaction, linear, smooth, tensor
from gpytorch_gam.training import component_gains
from gpytorch_gam.training.optimal_bound import OptimalBound

pytestmark = pytest.mark.usefixtures("double_precision")

NUM_ROWS = 150


def inputs(num_columns: int = 3) -> Tensor:
    return torch.rand(NUM_ROWS, num_columns, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def noise(size: float) -> Tensor:
    return size * torch.randn(NUM_ROWS, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def mains(x: Tensor) -> list[ComponentGroup]:
    return [smooth([0, 1, 2], x, num_inducing=7), constant()]


def pairs(x: Tensor) -> ComponentGroup:
    return tensor([(0, 1), (0, 2), (1, 2)], x, num_inducing=4)


def fitted(groups: list[ComponentGroup], likelihood: Likelihood, x: Tensor, y: Tensor) -> AdditiveGP:
    model = AdditiveGP(AdditivePredictor(*groups), family="coupled")
    fit(model, likelihood, (x, y), method="rows")
    return model


def dense_bound(groups: list[ComponentGroup], noise_variance: float, x: Tensor, y: Tensor, jitter: float) -> float:
    """The collapsed bound of a Gaussian likelihood: log N(y; 0, K_low + noise), less the price of what is left out."""
    low_rank, prior = torch.zeros(len(x), len(x)), torch.zeros(len(x))
    for group in groups:
        inner, cross = group.inducing_covariance(), group.cross_covariance(x)
        inner = inner + 0.0 if group.exact else inner + jitter * torch.eye(inner.shape[-1])
        low_rank = low_rank + (cross.mT @ torch.linalg.solve(inner, cross)).sum(0)
        prior = prior + group.prior_variance(x).sum(0)
    distribution = torch.distributions.MultivariateNormal(
        torch.zeros(len(x)), low_rank + noise_variance * torch.eye(len(x))
    )
    unexplained = (prior - low_rank.diagonal()).sum() / noise_variance
    return (distribution.log_prob(y) - 0.5 * unexplained).item()


def optimal_bound(model: AdditiveGP, likelihood: Likelihood, x: Tensor, y: Tensor) -> float:
    bound = OptimalBound(model, likelihood, (x, y))
    return bound.evaluate(bound.free.position, gradient=False).value


def test_a_gain_with_a_gaussian_likelihood_is_that_of_the_dense_bound() -> None:
    x = inputs()
    y = torch.sin(5 * x[:, 0]) + 3 * (x[:, 0] - 0.5) * (x[:, 1] - 0.5) + noise(0.2)
    groups, likelihood = mains(x), GaussianLikelihood()
    model, candidates = fitted(groups, likelihood, x, y), pairs(x)
    gains = component_gains(model, likelihood, (x, y), [candidates])
    assert max(gains, key=gains.__getitem__) == "x0:x1"
    alone = tensor((0, 1), x, num_inducing=4)
    alone.kernel.outputscale = candidates.kernel.outputscale[0]
    for part, source in zip(alone.kernel.modules(), candidates.kernel.modules(), strict=True):
        if hasattr(part, "raw_lengthscale"):
            part.lengthscale = source.lengthscale[:1]
    jitter = model.variational_strategy.jitter_val
    with torch.no_grad():
        value = likelihood.noise.item()
        dense = [dense_bound(part, value, x, y, jitter) for part in ([*groups, alone], groups)]
    assert gains["x0:x1"] == pytest.approx(dense[0] - dense[1], rel=1e-3)


def test_a_gain_with_another_likelihood_is_near_that_of_the_bound() -> None:
    x = inputs()
    rate = torch.exp(1 + torch.sin(5 * x[:, 0]) + 4 * (x[:, 0] - 0.5) * (x[:, 1] - 0.5))
    y = torch.poisson(rate, generator=torch.Generator().manual_seed(2))
    likelihood, candidate = PoissonLikelihood(), pairs(x)
    model = fitted(mains(x), likelihood, x, y)
    gains = component_gains(model, likelihood, (x, y), [candidate])
    assert max(gains, key=gains.__getitem__) == "x0:x1"
    with torch.no_grad():  # the others are off
        candidate.kernel.outputscale = candidate.kernel.outputscale * torch.tensor([1.0, 1e-9, 1e-9])
    extended = AdditiveGP(AdditivePredictor(*model.predictor.groups, candidate), family="coupled")
    bounds = [optimal_bound(each, likelihood, x, y) for each in (extended, model)]
    assert gains["x0:x1"] == pytest.approx(bounds[0] - bounds[1], rel=0.15)


def test_components_of_any_predictor_and_kind_are_compared() -> None:
    x = inputs()
    x[:, 2] = (x[:, 2] > 0.5).double()
    y = torch.sin(6 * x[:, 0]) * (2 * x[:, 2] - 1) + noise(0.5) * torch.exp(x[:, 1])
    groups = [
        smooth([0, 1], x, num_inducing=7),
        constant(),
        linear(1, x, predictor=1),
        constant(name="log sd", predictor=1),
    ]
    likelihood = GaussianLocationScaleLikelihood()
    model = fitted(groups, likelihood, x, y)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = component_gains(
        model,
        likelihood,
        (x, y),
        [interaction(0, 2, 2, x, name="mean"), interaction(0, 2, 2, x, name="scale", predictor=1)],
    )
    assert found["mean"] > 15 and 0 <= found["scale"] < 5
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_what_cannot_be_a_candidate_is_refused() -> None:
    x = inputs()
    groups, likelihood = mains(x), GaussianLikelihood()
    model = AdditiveGP(AdditivePredictor(*groups), family="coupled")
    data = (x, noise(1.0))
    with pytest.raises(TypeError, match="groups must hold groups of components"):
        component_gains(model, likelihood, data, ["x0:x1"])  # type: ignore[list-item]
    with pytest.raises(ValueError, match=r"belong to predictor 1, but the model has 1"):
        component_gains(model, likelihood, data, [smooth(0, x, predictor=1)])
    with pytest.raises(ValueError, match="no trained variance"):
        component_gains(model, likelihood, data, [constant()])
