"""The strategy inside GPyTorch: training loops, objectives, multitask strategies, batches of models."""

from __future__ import annotations

from collections.abc import Callable

import gpytorch
import pytest
import torch
from linear_operator.operators import DiagLinearOperator

from gpytorch_gam import (
    AdditiveGP,
    AdditiveVariationalStrategy,
)
from tests.problems import gaussian_bound, mixed_inputs, mixed_model

LIKELIHOODS = {
    "gaussian": (gpytorch.likelihoods.GaussianLikelihood, lambda n: torch.randn(n)),
    "bernoulli": (gpytorch.likelihoods.BernoulliLikelihood, lambda n: (torch.rand(n) > 0.5).float()),
    "student_t": (gpytorch.likelihoods.StudentTLikelihood, lambda n: torch.randn(n)),
    "beta": (gpytorch.likelihoods.BetaLikelihood, lambda n: torch.rand(n) * 0.8 + 0.1),
    "laplace": (gpytorch.likelihoods.LaplaceLikelihood, lambda n: torch.randn(n)),
}


def train(
    model: AdditiveGP, likelihood: object, mll: Callable, x: torch.Tensor, y: torch.Tensor, steps: int = 5
) -> list[float]:
    """The loop of GPyTorch's own examples."""
    losses = []
    optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=0.01)
    model.train()
    likelihood.train()
    for _ in range(steps):
        optimizer.zero_grad()
        loss = -mll(likelihood, model, num_data=len(y))(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    likelihood.eval()
    with torch.no_grad():
        predicted = likelihood(model(x))
    moments = predicted.probs if hasattr(predicted, "probs") else predicted.mean
    assert torch.isfinite(moments).all()
    return losses


def dense_objective(
    model: AdditiveGP, likelihood: object, mll: Callable, x: torch.Tensor, y: torch.Tensor
) -> torch.Tensor:
    mean, covariance, kl = dense_posterior(model.variational_strategy, x)
    output = gpytorch.distributions.MultivariateNormal(mean, DiagLinearOperator(covariance.diagonal()))
    is_bound = mll is gpytorch.mlls.VariationalELBO
    terms = (likelihood.expected_log_prob if is_bound else likelihood.log_marginal)(y, output)
    return terms.mean() - kl / len(y)


ELBO, PREDICTIVE = gpytorch.mlls.VariationalELBO, gpytorch.mlls.PredictiveLogLikelihood


@pytest.mark.parametrize(
    ("name", "family", "mll"),
    [
        *(("gaussian", family, ELBO) for family in ("low_rank", "block_low_rank", "mean_field", "coupled")),
        *((name, "block_low_rank", ELBO) for name in LIKELIHOODS if name != "gaussian"),
        ("gaussian", "low_rank", PREDICTIVE),
        ("bernoulli", "block_low_rank", PREDICTIVE),
    ],
)
def test_stock_training_loop(name: str, family: str, mll: Callable) -> None:
    make_likelihood, responses = LIKELIHOODS[name]
    model, likelihood = mixed_model(family).double(), make_likelihood().double()
    x, y = mixed_inputs(40).double(), responses(40).double()
    with torch.no_grad():
        start = -dense_objective(model, likelihood, mll, x, y).item()
    losses = train(model, likelihood, mll, x, y)
    assert losses[0] == pytest.approx(start, rel=1e-6)
    assert losses[-1] < losses[0]
    with torch.no_grad():
        end = -dense_objective(model, likelihood, mll, x, y).item()
    assert end < losses[-1]


@pytest.mark.parametrize("mll", [gpytorch.mlls.VariationalELBO, gpytorch.mlls.PredictiveLogLikelihood])
@pytest.mark.parametrize("family", ["low_rank", "block_low_rank", "mean_field"])
def test_softmax_over_a_batch_of_predictors(family: str, mll: Callable) -> None:
    model = Wrapped(
        lambda base: gpytorch.variational.IndependentMultitaskVariationalStrategy(base, num_tasks=3), family, (3,)
    )
    likelihood = gpytorch.likelihoods.SoftmaxLikelihood(num_features=3, num_classes=4)
    losses = train(model, likelihood, mll, mixed_inputs(40), torch.randint(4, (40,)))
    assert all(torch.isfinite(torch.tensor(losses)))


class Wrapped(gpytorch.models.ApproximateGP):
    """A batch of additive GPs inside one of GPyTorch's multitask strategies."""

    def __init__(self, wrap: Callable, family: str, batch: tuple[int, ...]) -> None:
        base = mixed_model(family, batch=batch).variational_strategy
        super().__init__(wrap(base))
        object.__setattr__(base, "model", self)

    def forward(self, x: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
        return self.variational_strategy.base_variational_strategy.predictor(x)


def dense_posterior(base: AdditiveVariationalStrategy, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Mean, covariance and KL of the predictor, or of each in a batch, from dense matrices alone."""
    q = base._variational_distribution()
    m, s = q.mean, q.covariance_matrix
    identity = torch.eye(m.shape[-1], dtype=m.dtype)
    kl = 0.5 * (m.square().sum(-1) + (s - identity).diagonal(dim1=-2, dim2=-1).sum(-1) - torch.logdet(s))
    phi = base.features(x)
    prior = base.predictor(x)
    covariance = prior.covariance_matrix + phi.mT @ (s - identity) @ phi
    return prior.mean + (phi.mT @ m.unsqueeze(-1)).squeeze(-1), covariance, kl


@pytest.mark.parametrize("family", ["low_rank", "block_low_rank", "mean_field", "coupled"])
def test_independent_multitask_wrapper_equals_the_dense_reference(family: str) -> None:
    def wrap(base: AdditiveVariationalStrategy) -> object:
        return gpytorch.variational.IndependentMultitaskVariationalStrategy(base, num_tasks=3)

    model, x = Wrapped(wrap, family, (3,)).double().eval(), mixed_inputs(9).double()
    mean, covariance, kl = dense_posterior(model.variational_strategy.base_variational_strategy, x)
    posterior = model(x)
    torch.testing.assert_close(model.variational_strategy.kl_divergence(), kl.sum(), rtol=1e-8, atol=0)
    torch.testing.assert_close(posterior.mean, mean.mT, rtol=1e-8, atol=1e-8)
    blocks = posterior.covariance_matrix.reshape(9, 3, 9, 3).diagonal(dim1=1, dim2=3).movedim(-1, 0)
    torch.testing.assert_close(blocks, covariance, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("family", ["low_rank", "block_low_rank", "mean_field", "coupled"])
def test_lmc_wrapper_equals_the_dense_reference(family: str) -> None:
    def wrap(base: AdditiveVariationalStrategy) -> object:
        return gpytorch.variational.LMCVariationalStrategy(
            base, num_tasks=4, num_latents=2, latent_dim=-1, jitter_val=0
        )

    model, x = Wrapped(wrap, family, (2,)).double().eval(), mixed_inputs(6).double()
    mean, covariance, kl = dense_posterior(model.variational_strategy.base_variational_strategy, x)
    coefficients = model.variational_strategy.lmc_coefficients
    posterior = model(x)
    torch.testing.assert_close(model.variational_strategy.kl_divergence(), kl.sum(), rtol=1e-8, atol=0)
    torch.testing.assert_close(posterior.mean, mean.mT @ coefficients, rtol=1e-8, atol=1e-8)
    expected = torch.einsum("lab,ls,lt->asbt", covariance, coefficients, coefficients)
    torch.testing.assert_close(posterior.covariance_matrix.reshape(6, 4, 6, 4), expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("family", ["low_rank", "block_low_rank", "mean_field", "coupled"])
def test_independent_models_in_a_batch_equal_single_models(family: str) -> None:
    batched, x = mixed_model(family, batch=(2,)).double().eval(), mixed_inputs(8).double()
    posterior = batched(x)
    kl = batched.variational_strategy.kl_divergence()
    for index in range(2):
        single = mixed_model(family).double().eval()
        state, target = batched.state_dict(), single.state_dict()
        for name, value in state.items():
            if value.dim() and not name.endswith("_extra_state"):
                state[name] = value[index].reshape(target[name].shape)
        single.load_state_dict(state)
        torch.testing.assert_close(single(x).mean, posterior.mean[index])
        torch.testing.assert_close(single(x).covariance_matrix, posterior.covariance_matrix[index])
        torch.testing.assert_close(single.variational_strategy.kl_divergence(), kl[index])


def test_kl_is_counted_once_under_minibatching() -> None:
    model, x, y = mixed_model(), mixed_inputs(40), torch.randn(40)
    whole = gaussian_bound(model, x, y)
    parts = [gaussian_bound(model, x[i : i + 10], y[i : i + 10], num_data=40) for i in range(0, 40, 10)]
    torch.testing.assert_close(torch.stack(parts).mean(), whole)


def test_kl_is_counted_once_under_data_parallelism() -> None:
    # Data parallel training averages the gradients of workers, each of which sees its share of the batch.
    model, x, y = mixed_model().double(), mixed_inputs(40).double(), torch.randn(40).double()

    def gradients(rows: slice) -> list[torch.Tensor]:
        return torch.autograd.grad(gaussian_bound(model, x[rows], y[rows], num_data=400), list(model.parameters()))

    whole = gradients(slice(0, 40))
    workers = zip(gradients(slice(0, 20)), gradients(slice(20, 40)), strict=True)
    for expected, (first, second) in zip(whole, workers, strict=True):
        torch.testing.assert_close((first + second) / 2, expected, rtol=1e-10, atol=1e-12)
