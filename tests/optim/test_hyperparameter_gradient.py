"""Gradients of hyperparameters at a fixed posterior of the inducing variables: oracle, expectation, noise."""

from __future__ import annotations

import gpytorch
import pytest
import torch
from gpytorch.kernels import RBFKernel
from gpytorch.likelihoods import BernoulliLikelihood, Likelihood
from linear_operator.operators import DiagLinearOperator

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup
from gpytorch_gam.components import regular_grid
from gpytorch_gam.likelihoods import PoissonLikelihood
from gpytorch_gam.mlls import CollapsedELBO
from gpytorch_gam.optim import NaturalGradient
from gpytorch_gam.training import polish
from tests.problems import (
    backward,
    corrected_gradients,
    effect,
    elbo,
    gaussian_likelihood,
    gaussian_problem,
    make_model,
    predictor_gradients,
)

pytestmark = pytest.mark.projection


def fixed_posterior_bound(
    model: AdditiveGP, likelihood: Likelihood, x: torch.Tensor, y: torch.Tensor, scale: float
) -> torch.Tensor:
    """The bound with q(u) held fixed while the kernels may vary: all dense, with u = L0 v and v' = L^-1 u."""
    strategy = model.variational_strategy
    posterior = strategy.variational_distribution
    mean, covariance = posterior.mean.detach(), posterior.covariance_matrix.detach()
    blocks = [block for cholesky in strategy.inducing_choleskys() for block in cholesky]
    root = torch.block_diag(*blocks)
    change = torch.linalg.solve_triangular(root, root.detach(), upper=False)
    mean, covariance = change @ mean, change @ covariance @ change.mT
    features = strategy.features(x)
    prior = sum(group.prior_variance(x).sum(-2) for group in model.predictor.groups)
    variance = prior - features.square().sum(0) + (features * (covariance @ features)).sum(0)
    output = gpytorch.distributions.MultivariateNormal(mean @ features, DiagLinearOperator(variance))
    divergence = 0.5 * (mean @ mean + covariance.trace() - len(mean) - torch.logdet(covariance))
    return scale * likelihood.expected_log_prob(y, output).sum() - divergence


@pytest.mark.parametrize("kind", ["gaussian", "labels", "counts"])
@pytest.mark.parametrize(("family", "rank"), [("block_low_rank", 4), ("low_rank", 6), ("mean_field", None)])
def test_gradients_are_those_at_a_fixed_posterior_of_the_inducing_variables(
    family: str, rank: int | None, kind: str
) -> None:
    x, y = gaussian_problem(200)
    likelihood = gaussian_likelihood()
    if kind == "labels":
        y, likelihood = (y > 0).double(), BernoulliLikelihood().double()
    elif kind == "counts":
        y, likelihood = torch.poisson(effect(x).exp()), PoissonLikelihood()
    model = make_model(family, rank)
    model.predictor.groups[0].kernel.base_kernel.lengthscale = 0.3
    q = model.variational_strategy._variational_distribution
    model(x[:1])
    with torch.no_grad():  # any posterior, not only the optimal one
        for parameter in q.parameters():
            parameter.copy_(0.5 * torch.randn_like(parameter))
    found = corrected_gradients(model, likelihood, x[:50], y[:50], 200)
    parameters = [p for p in model.predictor.parameters() if p.requires_grad]
    bound = fixed_posterior_bound(model, likelihood, x[:50], y[:50], 4.0)
    expected = torch.autograd.grad(-bound / 200, parameters, allow_unused=True)
    expected = torch.cat([g.flatten() for g in expected if g is not None])
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)


def test_at_the_optimum_they_are_those_of_the_collapsed_bound_with_little_noise() -> None:
    x, y = gaussian_problem(1000)
    model, likelihood = make_model("block_low_rank", 20), gaussian_likelihood()
    polish(model, likelihood, [(x, y)])
    parameters = [p for p in model.predictor.parameters() if p.requires_grad]
    exact = torch.autograd.grad(-CollapsedELBO(likelihood, model)(x, y), parameters)
    exact = torch.cat([gradient.flatten() for gradient in exact])
    model.train()
    batches = list(zip(x.split(100), y.split(100), strict=True))
    with_control = torch.stack([corrected_gradients(model, likelihood, *rows, 1000) for rows in batches])
    without = torch.stack(
        [corrected_gradients(model, likelihood, *rows, 1000, variance_reduction=False) for rows in batches]
    )
    torch.testing.assert_close(with_control.mean(0), exact, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(without.mean(0), exact, rtol=1e-6, atol=1e-8)
    assert (with_control.std(0) < 0.2 * without.std(0)).all()


def test_large_batches_in_chunks_and_accumulated_halves_have_the_same_gradients() -> None:
    x, y = gaussian_problem(100)
    model, likelihood = make_model("block_low_rank", 4), gaussian_likelihood()
    model(x[:1])
    whole = corrected_gradients(model, likelihood, x, y, 100)
    torch.testing.assert_close(corrected_gradients(model, likelihood, x, y, 100, chunk_size=13), whole)
    natural = NaturalGradient(model, num_data=100, lr=0.5)
    mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=100)
    model.zero_grad()
    for rows in (slice(None, 50), slice(50, None)):
        (-mll(model(x[rows]), y[rows]) / 2).backward()
    natural.step()
    torch.testing.assert_close(predictor_gradients(model), whole)


def test_only_what_is_learnt_gets_a_gradient_inducing_points_included() -> None:
    x, y = gaussian_problem(50)
    kernel = RBFKernel(batch_shape=torch.Size([1]))
    points = regular_grid(0.0, 1.0, 6)
    predictor = AdditivePredictor(
        ComponentGroup(kernel, [[0]], points, names=["moving"], learn_inducing_locations=True),
        ComponentGroup(RBFKernel(batch_shape=torch.Size([1])), [[1]], points, names=["fixed"]),
    )
    model, likelihood = AdditiveGP(predictor, "block_low_rank", 3).double().train(), gaussian_likelihood()
    fixed = predictor.groups[1].kernel.raw_lengthscale.requires_grad_(False)
    model(x[:1])
    corrected_gradients(model, likelihood, x, y, 50)
    bound = fixed_posterior_bound(model, likelihood, x, y, 1.0)
    moving = predictor.groups[0].inducing_points
    (expected,) = torch.autograd.grad(-bound / 50, [moving])
    torch.testing.assert_close(moving.grad, expected, rtol=1e-6, atol=1e-8)
    assert fixed.grad is None


def test_the_posterior_follows_the_kernels_before_a_forward() -> None:
    x, y = gaussian_problem(300)
    model, likelihood = make_model("block_low_rank", 20), gaussian_likelihood()
    natural = NaturalGradient(model, num_data=300)
    backward(model, likelihood, x, y, 300)
    natural.step()  # the optimum
    kernel = model.predictor.groups[0].kernel
    kernel.outputscale = 2.0 * kernel.outputscale.detach()
    model.eval()
    followed = model(x[:5])
    again = model(x[:5])
    assert torch.equal(followed.mean, again.mean)
    parts = model.components(x[:5]).mean
    natural.remove()
    polish(model, likelihood, [(x, y)])
    best = model(x[:5])
    # Sites know the noise and the data, not the prior: a Gaussian likelihood keeps its optimum.
    torch.testing.assert_close(followed.mean, best.mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(followed.variance, best.variance, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(parts, model.components(x[:5]).mean, rtol=1e-6, atol=1e-6)


def test_minibatches_reach_the_hyperparameters_of_all_rows() -> None:
    x, y = gaussian_problem(2000)
    model, likelihood = make_model("block_low_rank", 8), gaussian_likelihood(1.0)
    parameters = [*model.hyperparameters(), *likelihood.parameters()]
    natural, adam = NaturalGradient(model, num_data=2000), torch.optim.Adam(parameters, lr=0.1)
    steps = 160
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps)
    for step in range(steps):
        adam.zero_grad()
        rows = torch.arange(step * 100, (step + 1) * 100) % 2000
        backward(model, likelihood, x[rows], y[rows], 2000)
        natural.step()
        if step >= 12:
            adam.step()
            schedule.step()
    collapsed = CollapsedELBO(likelihood, model)
    reached = collapsed.optimum(x, y).bound.item()
    assert -1e-6 <= reached - elbo(model, likelihood, x, y) < 3.0  # the posterior has followed
    assert likelihood.noise.item() == pytest.approx(0.09, rel=0.2)
    lbfgs = torch.optim.LBFGS(parameters, max_iter=60, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        lbfgs.zero_grad()
        loss = -collapsed(x, y)
        loss.backward()
        return loss

    lbfgs.step(closure)
    assert collapsed.optimum(x, y).bound.item() - reached < 2.0
