"""The strategy inside GPyTorch: likelihoods, objectives, wrappers, modes, state, and the traps of each."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from unittest.mock import patch

import gpytorch
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.variational import CholeskyVariationalDistribution
from linear_operator.operators import DiagLinearOperator

from gpytorch_gam import (
    AdditiveGP,
    AdditivePredictor,
    AdditiveVariationalStrategy,
    BlockLowRankPrecisionVariationalDistribution,
    ComponentGroup,
    LowRankPrecisionVariationalDistribution,
)
from gpytorch_gam.components import regular_grid
from gpytorch_gam.models.additive_gp import FAMILIES
from gpytorch_gam.terms import constant
from tests import reference


def make_predictor(batch: tuple[int, ...] = (), learn: bool = False) -> AdditivePredictor:
    """Ragged and mixed: two smooths of six points, a surface of nine, a varying coefficient, a constant."""

    def kernel(size: int, **kwargs: object) -> ScaleKernel:
        shape = torch.Size([*batch, size])
        return ScaleKernel(RBFKernel(batch_shape=shape, **kwargs), batch_shape=shape)

    def points(grid: torch.Tensor, size: int) -> torch.Tensor:
        return grid.expand(*batch, size, *grid.shape)

    options = {"learn_inducing_locations": learn}
    grid = regular_grid([0.0, 0.0], [1.0, 1.0], 3)
    return AdditivePredictor(
        ComponentGroup(kernel(2), [[0], [1]], points(regular_grid(0.0, 1.0, 6), 2), **options),
        ComponentGroup(kernel(1, ard_num_dims=2), [[0, 1]], points(grid, 1), **options),
        ComponentGroup(kernel(1), [[1]], points(regular_grid(0.0, 1.0, 5), 1), by=2, **options),
        constant(batch_shape=batch),
        mean=gpytorch.means.ConstantMean(batch_shape=torch.Size(batch)),
    )


def make_model(family: str = "block_low_rank", rank: int | None = 4, **kwargs: object) -> AdditiveGP:
    rank = rank if "low_rank" in family else None
    model = AdditiveGP(make_predictor(**kwargs), family, rank)
    randomise(model)
    return model


@torch.no_grad()
def randomise(model: AdditiveGP) -> None:
    """Give the posterior and the mean non-trivial values."""
    strategy = model.variational_strategy
    strategy._initialize_once()
    for name, parameter in strategy._variational_distribution.named_parameters():
        noise = 0.3 * torch.randn_like(parameter)
        parameter.copy_(parameter + noise if name == "chol_variational_covar" else noise + (name[0] == "_") * 0.7)
    model.predictor.means[0].raw_constant.fill_(0.4)


def data(n: int = 30) -> torch.Tensor:
    return torch.rand(n, 3)


def elbo(model: AdditiveGP, x: torch.Tensor, y: torch.Tensor, num_data: int | None = None) -> torch.Tensor:
    likelihood = gpytorch.likelihoods.GaussianLikelihood().to(x.dtype)
    return gpytorch.mlls.VariationalELBO(likelihood, model, num_data or len(y))(model.train()(x), y)


# -------------------- consistency of the moments


@pytest.mark.projection
@pytest.mark.parametrize("family", FAMILIES)
def test_components_add_up_to_the_predictor(family: str) -> None:
    model, x = make_model(family).double().eval(), data(12).double()
    posterior, parts = model(x), model.components(x)
    mean = parts.mean.sum(0) + model.predictor.means[0](x)
    torch.testing.assert_close(mean, posterior.mean, rtol=1e-10, atol=1e-10)
    full = parts.full_cross_covariance()
    torch.testing.assert_close(full.sum((0, 2)), posterior.covariance_matrix, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(parts.cross_covariance().sum((-2, -1)), posterior.variance, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(parts.total()[1], posterior.variance, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(full.diagonal(dim1=0, dim2=2).movedim(-1, 0), parts.covariance(), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(full.diagonal(dim1=1, dim2=3).movedim(-1, 0), parts.cross_covariance())
    torch.testing.assert_close(parts.covariance().diagonal(dim1=-2, dim2=-1), parts.variance)


@pytest.mark.projection
@pytest.mark.parametrize("family", FAMILIES)
def test_train_and_eval_mode_have_the_same_moments(family: str) -> None:
    model, x = make_model(family).double(), data().double()
    trained, evaluated = model.train()(x), model.eval()(x)
    torch.testing.assert_close(trained.mean, evaluated.mean)
    torch.testing.assert_close(trained.variance, evaluated.variance)
    full = model.train()(x, diag=False)
    torch.testing.assert_close(full.covariance_matrix, evaluated.covariance_matrix)
    assert (evaluated.covariance_matrix - torch.diag(evaluated.variance)).abs().max() > 1e-3


@pytest.mark.parametrize("family", ["block_low_rank", "coupled"])
def test_subsets_by_name_keep_their_joint_distribution(family: str) -> None:
    model, x = make_model(family).double().eval(), data(7).double()
    names = ["constant", "x1", "x0:x1"]
    everything, some = model.components(x), model.components(x, names)
    indices = [model.predictor.names.index(name) for name in names]
    assert some.names == tuple(names)
    torch.testing.assert_close(some.mean, everything.mean[indices])
    torch.testing.assert_close(some.full_cross_covariance(), everything.full_cross_covariance()[indices][:, :, indices])
    torch.testing.assert_close(everything[names].cross_covariance(), some.cross_covariance())
    torch.testing.assert_close(some["x1"].stddev, everything.stddev[1])
    lower, upper = some.confidence_region()
    torch.testing.assert_close(upper - lower, 2 * 1.96 * some.stddev)
    with pytest.raises(ValueError, match=r"unknown components \['z'\]"):
        model.components(x, ["z"])
    with pytest.raises(ValueError, match=r"unknown components \['x0'\]; these are"):
        some["x0"]


@pytest.mark.parametrize("family", FAMILIES)
def test_samples_follow_the_joint_posterior(family: str) -> None:
    model, x = make_model(family).double().eval(), data(4).double()
    parts = model.components(x)
    draws = parts.sample(torch.Size([20000]))
    torch.testing.assert_close(draws.components.sum(-2), draws.total)
    flat = draws.components.flatten(-2)
    expected = parts.full_cross_covariance().flatten(0, 1).flatten(-2)
    scale = expected.diagonal().max()
    # Monte-Carlo error of a covariance is about scale * sqrt(2 / 20000) = 1% of the scale; five of those.
    torch.testing.assert_close(flat.mT.cov(), expected, rtol=0, atol=0.05 * scale.item())
    torch.testing.assert_close(flat.mean(0), parts.mean.flatten(), rtol=0, atol=0.05 * scale.sqrt().item())


def test_samples_have_gradients_and_shapes_with_batches() -> None:
    model = make_model(batch=(2,)).eval()
    draws = model.components(torch.rand(3, 1, 5, 3)).rsample(torch.Size([7]))
    assert draws.components.shape == (7, 3, 2, 5, 5)
    assert draws.total.shape == (7, 3, 2, 5)
    draws.total.sum().backward()
    assert model.variational_strategy._variational_distribution.precision_factor.grad.abs().sum() > 0


# -------------------- likelihoods, objectives, wrappers

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
    model, likelihood = make_model(family).double(), make_likelihood().double()
    x, y = data(40).double(), responses(40).double()
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
    losses = train(model, likelihood, mll, data(40), torch.randint(4, (40,)))
    assert all(torch.isfinite(torch.tensor(losses)))


class Wrapped(gpytorch.models.ApproximateGP):
    """A batch of additive GPs inside one of GPyTorch's multitask strategies."""

    def __init__(self, wrap: Callable, family: str, batch: tuple[int, ...]) -> None:
        base = make_model(family, batch=batch).variational_strategy
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

    model, x = Wrapped(wrap, family, (3,)).double().eval(), data(9).double()
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

    model, x = Wrapped(wrap, family, (2,)).double().eval(), data(6).double()
    mean, covariance, kl = dense_posterior(model.variational_strategy.base_variational_strategy, x)
    coefficients = model.variational_strategy.lmc_coefficients
    posterior = model(x)
    torch.testing.assert_close(model.variational_strategy.kl_divergence(), kl.sum(), rtol=1e-8, atol=0)
    torch.testing.assert_close(posterior.mean, mean.mT @ coefficients, rtol=1e-8, atol=1e-8)
    expected = torch.einsum("lab,ls,lt->asbt", covariance, coefficients, coefficients)
    torch.testing.assert_close(posterior.covariance_matrix.reshape(6, 4, 6, 4), expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("family", ["low_rank", "block_low_rank", "mean_field", "coupled"])
def test_independent_models_in_a_batch_equal_single_models(family: str) -> None:
    batched, x = make_model(family, batch=(2,)).double().eval(), data(8).double()
    posterior = batched(x)
    kl = batched.variational_strategy.kl_divergence()
    for index in range(2):
        single = make_model(family).double().eval()
        state, target = batched.state_dict(), single.state_dict()
        for name, value in state.items():
            if value.dim() and not name.endswith("_extra_state"):
                state[name] = value[index].reshape(target[name].shape)
        single.load_state_dict(state)
        torch.testing.assert_close(single(x).mean, posterior.mean[index])
        torch.testing.assert_close(single(x).covariance_matrix, posterior.covariance_matrix[index])
        torch.testing.assert_close(single.variational_strategy.kl_divergence(), kl[index])


# -------------------- numerics


@pytest.mark.parametrize("family", ["low_rank", "block_low_rank", "mean_field"])
@pytest.mark.parametrize("learn", [False, True])
def test_gradients_of_the_elbo(family: str, learn: bool) -> None:
    model = make_model(family, rank=2, learn=learn).double()
    x, y = data(6).double(), torch.randn(6).double()
    names = [name for name, _ in model.named_parameters()]
    values = tuple(p.detach().clone().requires_grad_() for p in model.parameters())

    class Objective(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self) -> torch.Tensor:
            return elbo(self.model, x, y)

    objective = Objective()

    def function(*parameters: torch.Tensor) -> torch.Tensor:
        overrides = {f"model.{name}": p for name, p in zip(names, parameters, strict=True)}
        return torch.func.functional_call(objective, overrides, ())

    assert torch.autograd.gradcheck(function, values, fast_mode=True)


@pytest.mark.parametrize("family", ["low_rank", "block_low_rank", "mean_field", "coupled"])
def test_large_float32_model_is_accurate_and_positive(family: str) -> None:
    size = torch.Size([4])
    kernel = ScaleKernel(RBFKernel(batch_shape=size), batch_shape=size)
    kernel.base_kernel.lengthscale = torch.tensor([0.05, 0.2, 0.5, 2.0]).reshape(4, 1, 1)
    group = ComponentGroup(kernel, [[0], [1], [2], [3]], regular_grid(0.0, 1.0, 64))
    x = torch.rand(5000, 4)
    ranks = {"low_rank": 128, "block_low_rank": 32}
    # The default jitter of float32 in both precisions, so that both compute the same posterior.
    with gpytorch.settings.variational_cholesky_jitter(double_value=1e-4):
        model = informed(AdditiveGP(AdditivePredictor(group), family, ranks.get(family)), x)
        double = copy.deepcopy(model).double().eval()(x.double()).variance
    single = model.float().eval()(x).variance
    trained = model.train()(x).variance
    assert (double < 0.5 * kernel.outputscale.sum()).double().mean() > 0.99  # the data matter
    for variance in (single, trained):
        assert (variance > 0).all()
        assert ((variance.double() - double) / double).abs().max() <= 1e-2


@torch.no_grad()
def informed(model: AdditiveGP, x: torch.Tensor) -> AdditiveGP:
    """A posterior as narrow as 5000 observations with unit noise make it."""
    strategy = model.variational_strategy
    strategy._mark_initialized()
    gram = strategy.double().features(x.double())
    precision = torch.eye(len(gram), dtype=torch.float64) + gram @ gram.mT
    q = strategy.float()._variational_distribution
    if isinstance(q, CholeskyVariationalDistribution):
        strategy.set_whitened_posterior(torch.zeros(len(gram)), precision)
        return model
    excess = precision - torch.eye(len(gram), dtype=torch.float64)
    if isinstance(q, BlockLowRankPrecisionVariationalDistribution):
        (_, size), *_ = q.group_shapes
        blocks = [excess[i : i + size, i : i + size] for i in range(0, len(excess), size)]
        q.block_factors[0].copy_(torch.stack([root(block, size) for block in blocks]))
    if q.precision_factor is not None:
        q.precision_factor.copy_(root(excess, q.rank))
    return model


def root(matrix: torch.Tensor, rank: int) -> torch.Tensor:
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values.clamp_min(0).sqrt())[:, -rank:]


def test_jitter_is_relative_to_the_prior_variance_and_absolute_if_given() -> None:
    predictor = make_predictor().double()
    predictor.groups[0].kernel.outputscale = torch.tensor([1e-6, 1e6], dtype=torch.float64)
    q = LowRankPrecisionVariationalDistribution(predictor.num_inducing_total, rank=2).double()
    scaled = reference.Model(predictor, q, jitter=None).variational_strategy
    covariance = predictor.groups[0].inducing_covariance()
    added = scaled.inducing_choleskys()[0] @ scaled.inducing_choleskys()[0].mT - covariance
    expected = 1e-6 * covariance.diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(added.diagonal(dim1=-2, dim2=-1), expected, rtol=1e-3, atol=0)
    with gpytorch.settings.variational_cholesky_jitter(float_value=1e-2, double_value=1e-3):
        assert scaled.jitter_val == 1e-3
        assert make_model().variational_strategy.jitter_val == 1e-2
    absolute = reference.Model(predictor, q, jitter=1e-4).variational_strategy
    added = absolute.inducing_choleskys()[0][1] @ absolute.inducing_choleskys()[0][1].mT - covariance[1]
    torch.testing.assert_close(added.diagonal(), torch.full((6,), 1e-4, dtype=torch.float64), rtol=1e-3, atol=0)
    with pytest.raises(ValueError, match="jitter_val must not be negative"):
        reference.Model(predictor, q, jitter=-1.0)


def test_a_constant_costs_no_jitter() -> None:
    model = make_model().double()
    constant_group = model.predictor.groups[-1]
    cholesky = model.variational_strategy.inducing_choleskys()[-1]
    torch.testing.assert_close(cholesky.square(), constant_group.inducing_covariance(), rtol=1e-14, atol=0)


# -------------------- traps


@pytest.mark.parametrize("family", FAMILIES)
def test_kl_follows_an_optimizer_step_without_a_forward(family: str) -> None:
    model = make_model(family)
    x, y = data(), torch.randn(30)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    (-elbo(model, x, y)).backward()
    before = model.variational_strategy.kl_divergence().item()
    optimizer.step()
    after = model.variational_strategy.kl_divergence().item()
    fresh = make_model(family)
    fresh.load_state_dict(model.state_dict())
    assert after != before
    assert after == pytest.approx(fresh.variational_strategy.kl_divergence().item(), rel=1e-6)


@pytest.mark.parametrize("family", ["low_rank", "block_low_rank", "mean_field"])
def test_shared_divergence_is_always_that_of_a_new_computation(family: str) -> None:
    model, x = make_model(family).train(), data()
    strategy = model.variational_strategy
    parameters = list(strategy._variational_distribution.parameters())

    def reference() -> torch.Tensor:
        return copy.deepcopy(strategy._variational_distribution).kl_divergence()

    def gradients(divergence: torch.Tensor) -> list[torch.Tensor]:
        return torch.autograd.grad(divergence, parameters)

    expected = [g.clone() for g in gradients(strategy.kl_divergence())]
    # The marginals' own backward pass frees the graph that the divergence would share.
    model(x).variance.sum().backward()
    torch.testing.assert_close(gradients(strategy.kl_divergence()), expected)
    # The same divergence twice after one forward.
    model(x)
    torch.testing.assert_close(gradients(strategy.kl_divergence()), expected)
    torch.testing.assert_close(gradients(strategy.kl_divergence()), expected)
    # In-place edits that leave no trace in tensor versions.
    model(x)
    parameters[-1].data.mul_(2.0)
    torch.testing.assert_close(strategy.kl_divergence(), reference(), rtol=0, atol=0)
    # A forward without gradients, then a divergence with them.
    with torch.no_grad():
        model(x)
    assert strategy.kl_divergence().requires_grad
    # Parameters frozen and thawed in between.
    parameters[0].requires_grad_(False)
    model(x)
    parameters[0].requires_grad_(True)
    assert gradients(strategy.kl_divergence())[0].abs().sum() > 0
    # Another dtype.
    model(x)
    model.double()
    assert strategy.kl_divergence().dtype == torch.float64
    torch.testing.assert_close(strategy.kl_divergence(), reference(), rtol=0, atol=0)


def test_no_cache_survives_changes_of_batch_dtype_or_hyperparameters() -> None:
    model, x = make_model().eval(), data(6)
    first = model(x).covariance_matrix
    assert model(torch.rand(4, 6, 3)).covariance_matrix.shape == (4, 6, 6)
    torch.testing.assert_close(model(x).covariance_matrix, first)
    doubled = model.double()(x.double())
    assert doubled.covariance_matrix.dtype == torch.float64
    torch.testing.assert_close(doubled.covariance_matrix.float(), first, rtol=1e-3, atol=1e-4)
    model.float().predictor.groups[0].kernel.outputscale = 9.0
    changed = model(x).variance
    assert (changed > first.diagonal() + 0.1).all()
    model.predictor.groups[0].kernel.raw_outputscale.data.fill_(-20.0)
    assert (model(x).variance < changed).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_deepcopy_and_pickle_after_a_forward_with_gradients(family: str) -> None:
    model, x, y = make_model(family), data(), torch.randn(30)
    (-elbo(model, x, y)).backward()
    model.eval()
    expected = model(x)
    for duplicate in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert duplicate.variational_strategy.model is duplicate
        torch.testing.assert_close(duplicate(x).mean, expected.mean)
        torch.testing.assert_close(duplicate(x).variance, expected.variance)


@pytest.mark.parametrize("family", FAMILIES)
def test_state_dict_restores_predictions_and_is_not_initialised_again(family: str) -> None:
    model, x = make_model(family).eval(), data()
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    fresh = AdditiveGP(make_predictor(), family, 4 if "low_rank" in family else None).eval()
    fresh.load_state_dict(torch.load(buffer))
    torch.testing.assert_close(fresh(x).mean, model(x).mean, rtol=0, atol=0)
    torch.testing.assert_close(fresh(x).variance, model(x).variance, rtol=0, atol=0)
    # A model that was never called saves that, too: the posterior is initialised at its first call.
    untouched = AdditiveGP(make_predictor(), family, 4 if "low_rank" in family else None)
    fresh.load_state_dict(untouched.state_dict())
    fresh(x)
    assert fresh.variational_strategy.variational_params_initialized == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_conversion_to_another_dtype_keeps_the_fit(family: str) -> None:
    # The jitter of the dtype the model was initialised in goes with it: whitened variables depend on it.
    model, x = make_model(family).eval(), data()
    expected = model(x)
    converted = copy.deepcopy(model).double()
    loaded = AdditiveGP(make_predictor(), family, 4 if "low_rank" in family else None).double().eval()
    loaded.load_state_dict(model.state_dict())
    for double in (converted, loaded):
        assert double.variational_strategy.jitter_val == model.variational_strategy.jitter_val == 1e-6
        torch.testing.assert_close(double(x.double()).mean.float(), expected.mean, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(double(x.double()).variance.float(), expected.variance, rtol=1e-2, atol=1e-4)


def test_a_posterior_set_by_hand_is_not_initialised_again() -> None:
    model, x = AdditiveGP(make_predictor(), "block_low_rank", 4), data(5)
    with torch.no_grad():
        for parameter in model.variational_parameters():
            parameter.fill_(0.1)
    model.variational_strategy.variational_params_initialized.fill_(1)  # GPyTorch's own way to say so
    model(x)
    assert all((parameter == 0.1).all() for parameter in model.variational_parameters())


def test_functional_call_leaves_the_parameters_alone() -> None:
    trained, x = make_model().eval(), data(5)
    expected, state = trained(x).mean, {name: value.clone() for name, value in trained.state_dict().items()}
    fresh = AdditiveGP(make_predictor(), "block_low_rank", 4).eval()
    torch.testing.assert_close(torch.func.functional_call(fresh, state, (x,)).mean, expected)
    assert all(torch.equal(state[name], value) for name, value in trained.state_dict().items())


def test_kl_is_counted_once_under_minibatching() -> None:
    model, x, y = make_model(), data(40), torch.randn(40)
    whole = elbo(model, x, y)
    parts = [elbo(model, x[i : i + 10], y[i : i + 10], num_data=40) for i in range(0, 40, 10)]
    torch.testing.assert_close(torch.stack(parts).mean(), whole)


def test_kl_is_counted_once_under_data_parallelism() -> None:
    # Data parallel training averages the gradients of workers, each of which sees its share of the batch.
    model, x, y = make_model().double(), data(40).double(), torch.randn(40).double()

    def gradients(rows: slice) -> list[torch.Tensor]:
        return torch.autograd.grad(elbo(model, x[rows], y[rows], num_data=400), list(model.parameters()))

    whole = gradients(slice(0, 40))
    workers = zip(gradients(slice(0, 20)), gradients(slice(20, 40)), strict=True)
    for expected, (first, second) in zip(whole, workers, strict=True):
        torch.testing.assert_close((first + second) / 2, expected, rtol=1e-10, atol=1e-12)


def test_levels_of_an_exact_component_never_move() -> None:
    levels = ComponentGroup(gpytorch.kernels.LinearKernel(), [[0, 1, 2]], torch.eye(3), names=["level"], exact=True)
    model = AdditiveGP(AdditivePredictor(levels, constant()), "block_low_rank", 2)
    x = torch.nn.functional.one_hot(torch.arange(30) % 3).float()
    y = x @ torch.tensor([0.0, 1.0, 2.0])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(50):
        optimizer.zero_grad()
        (-elbo(model, x, y)).backward()
        optimizer.step()
    assert torch.equal(levels.inducing_points[0], torch.eye(3))
    assert (model.eval()(x).mean - y).abs().max() < 0.3


@pytest.mark.parametrize("family", ["low_rank", "block_low_rank", "mean_field"])
def test_hot_path_reads_no_number_from_a_tensor(family: str) -> None:
    model, x, y = make_model(family), data(), torch.randn(30)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def forbidden(*_: object) -> None:
        raise AssertionError("Tensor.item() on the hot path waits for the device")

    with patch.object(torch.Tensor, "item", forbidden):
        (-elbo(model, x, y)).backward()
        optimizer.step()
    assert torch.isfinite(model.variational_strategy.kl_divergence())


@pytest.mark.parametrize("family", FAMILIES)
def test_variational_parameters_are_those_of_the_distribution(family: str) -> None:
    model = make_model(family)
    own = {id(p) for p in model.variational_strategy._variational_distribution.parameters()}
    assert {id(p) for p in model.variational_parameters()} == own
    assert {id(p) for p in model.hyperparameters()} == {id(p) for p in model.predictor.parameters()}


def test_fixed_inducing_points_never_move() -> None:
    model, x, y = make_model(), data(), torch.randn(30)
    before = [group.inducing_points.clone() for group in model.predictor.groups]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        (-elbo(model, x, y)).backward()
        optimizer.step()
    assert all(torch.equal(a, g.inducing_points) for a, g in zip(before, model.predictor.groups, strict=True))
    learnt = dict(make_model(learn=True).named_parameters())
    assert sum("inducing_points" in name for name in learnt) == 3  # the constant has none to move


def test_numerical_core_compiles() -> None:
    from gpytorch_gam.numerics.precision import precision_covariance_factors

    mean, factor, blocks = torch.randn(6).double(), torch.randn(6, 2).double(), [torch.randn(2, 3, 3).double()]
    compiled = torch.compile(precision_covariance_factors, backend="aot_eager", fullgraph=True)
    expected, logdet = precision_covariance_factors(mean, factor, blocks)
    actual, compiled_logdet = compiled(mean, factor, blocks)
    torch.testing.assert_close(actual.explained_shared, expected.explained_shared)
    torch.testing.assert_close(compiled_logdet, logdet)


def test_settings_are_honoured() -> None:
    model, x = make_model().eval(), data(5)
    with gpytorch.settings.skip_posterior_variances():
        skipped = model(x)
    assert torch.equal(skipped.lazy_covariance_matrix.to_dense(), torch.zeros(5, 5))
    torch.testing.assert_close(skipped.mean, model(x).mean)
    with gpytorch.settings.trace_mode(), torch.no_grad():
        traced = model(x)
        assert not traced.islazy
        torch.testing.assert_close(traced.covariance_matrix, model(x).covariance_matrix)
    bad = x.clone()
    bad[0, 0] = float("nan")
    with gpytorch.settings.debug(False):
        assert torch.isnan(model(bad).mean[0])
    with pytest.raises(ValueError, match="NaN or infinity in 1 of 5 rows"):
        model(bad)


def test_prior_mode_gives_the_prior_of_the_sum() -> None:
    model, x = make_model().eval(), data(5)
    prior = model(x, prior=True)
    torch.testing.assert_close(prior.covariance_matrix, model.predictor(x).covariance_matrix)
    torch.testing.assert_close(prior.mean, torch.full((5,), 0.4))


def test_two_predictors_with_batches_match_each_other_in_both_modes() -> None:
    def group(columns: list[list[int]], names: list[str], predictor: int) -> ComponentGroup:
        return ComponentGroup(
            ScaleKernel(RBFKernel()), columns, regular_grid(0.0, 1.0, 4), names=names, predictor=predictor
        )

    predictor = AdditivePredictor(group([[0], [1]], ["a", "b"], 0), group([[1]], ["c"], 1))
    model = AdditiveGP(predictor, "block_low_rank", 3).double()
    with torch.no_grad():
        for parameter in model.variational_parameters():
            parameter.copy_(torch.randn_like(parameter))
    model.variational_strategy._mark_initialized()
    x = torch.rand(2, 5, 2).double()
    trained, evaluated = model.train()(x), model.eval()(x)
    moments = model.variational_strategy.predictor_moments(x)
    assert trained.event_shape == evaluated.event_shape == (5, 2)
    torch.testing.assert_close(trained.mean, evaluated.mean)
    torch.testing.assert_close(trained.variance, evaluated.variance)
    full = evaluated.covariance_matrix.reshape(2, 2, 5, 2, 5)  # (predictor, row) twice: not interleaved
    rows = full.diagonal(dim1=-3, dim2=-1).movedim(-1, 1)
    torch.testing.assert_close(moments.covariance, rows)
    assert moments.covariance[..., 0, 1].abs().max() > 1e-3
    torch.testing.assert_close(model.components(x).sample().total.shape, torch.Size([2, 2, 5]))


@pytest.mark.parametrize("scale", [1e-12, 1e-4, 1.0, 1e12])
def test_samples_do_not_depend_on_the_units_of_the_response(scale: float) -> None:
    kernel = ScaleKernel(RBFKernel()).double()
    group = ComponentGroup(kernel, [[0]], regular_grid(0.0, 1.0, 8).double())
    model = AdditiveGP(AdditivePredictor(group), "mean_field").double().eval()
    kernel.outputscale = torch.tensor(scale, dtype=torch.float64)
    parts = model.components(torch.linspace(0, 1, 30).double().unsqueeze(-1))
    draws = parts.sample(torch.Size([4000])).components
    torch.testing.assert_close(draws.var(0), parts.variance, rtol=0.2, atol=1e-6 * scale)


def test_autocast_does_not_touch_the_posterior() -> None:
    model, x = make_model(), data()
    expected = model.train()(x).variance
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(model(x).variance, expected, rtol=0, atol=0)


def test_trace_mode_works_on_many_rows() -> None:
    model, x = make_model().eval(), data(60)
    with gpytorch.settings.trace_mode(), torch.no_grad():
        traced = model(x)
    torch.testing.assert_close(traced.covariance_matrix, model(x).covariance_matrix, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("family", ["block_low_rank", "coupled"])
def test_kernels_that_do_not_promote_their_hyperparameters(family: str) -> None:
    class Deep(gpytorch.kernels.RBFKernel):
        def __init__(self) -> None:
            super().__init__()
            self.network = torch.nn.Linear(1, 3)

        def forward(self, x1: torch.Tensor, x2: torch.Tensor, **params: object) -> torch.Tensor:
            return super().forward(self.network(x1), self.network(x2), **params)

    predictor = AdditivePredictor(ComponentGroup(Deep(), [[0]], regular_grid(0.0, 1.0, 4)))
    model, x = AdditiveGP(predictor, family), data(6)
    elbo(model, x, torch.randn(6)).backward()
    assert all(torch.isfinite(p.grad).all() for p in model.predictor.parameters())
    assert torch.isfinite(model.eval().components(x).sample().total).all()


def test_standard_deviations_have_gradients_where_a_multiplier_is_zero() -> None:
    model, x = make_model().eval(), data(4)
    x[0, 2] = 0.0
    model.components(x).stddev.sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_repeated_names_are_an_error() -> None:
    model, x = make_model().eval(), data(4)
    with pytest.raises(ValueError, match=r"components \['x0'\] are named more than once"):
        model.components(x, ["x0", "x0"])
    with pytest.raises(ValueError, match=r"components \['x0'\] are named more than once"):
        model.components(x)[["x0", "x0"]]


def test_unusable_dtypes_and_kernels_are_named() -> None:
    model = make_model()
    with pytest.raises(ValueError, match=r"the model is in torch\.float16; use float32 or float64"):
        model.half()(data(4).half())
    model = make_model()
    model.predictor.groups[0].kernel.double()
    with pytest.raises(ValueError, match=r"kernel of components \['x0', 'x1'\] is torch\.float64"):
        model(data(4))
    with pytest.raises(ValueError, match="must have one output for each input"):
        ComponentGroup(gpytorch.kernels.RBFKernelGrad(), [[0]], regular_grid(0.0, 1.0, 4))
    with pytest.raises(ValueError, match=r"active_dims \[2\], but its components read 1 column"):
        ComponentGroup(RBFKernel(active_dims=[2]), [[2]], regular_grid(0.0, 1.0, 4))


# -------------------- errors


def test_construction_errors() -> None:
    predictor = make_predictor()
    total = predictor.num_inducing_total
    for rank in (-1, total + 1):
        with pytest.raises(
            ValueError, match=f"rank must lie between 0 and the number of inducing points, {total}, got"
        ):
            LowRankPrecisionVariationalDistribution(total, rank=rank)
    with pytest.raises(TypeError, match=r"rank must be an integer or \"auto\", got 2\.5"):
        LowRankPrecisionVariationalDistribution(total, rank=2.5)
    with pytest.raises(ValueError, match=f"has size 3, but the predictor has {total}"):
        AdditiveVariationalStrategy(None, predictor, LowRankPrecisionVariationalDistribution(3, rank=1))
    blocks = BlockLowRankPrecisionVariationalDistribution([(1, total - 1), (1, 1)], rank=1)
    with pytest.raises(ValueError, match=r"use predictor\.group_shapes"):
        AdditiveVariationalStrategy(None, predictor, blocks)
    with pytest.raises(TypeError, match="must be an AdditivePredictor, got 'x'"):
        AdditiveVariationalStrategy(None, "x", blocks)
    with pytest.raises(ValueError, match="group_shapes must hold one pair"):
        BlockLowRankPrecisionVariationalDistribution([], rank=0)
    with pytest.raises(ValueError, match="block_rank must be at least 1"):
        BlockLowRankPrecisionVariationalDistribution([(1, 3)], rank=0, block_rank=0)
    with pytest.raises(ValueError, match="family must be one of"):
        AdditiveGP(predictor, "diagonal")
    with pytest.raises(ValueError, match="'mean_field' has no rank"):
        AdditiveGP(predictor, "mean_field", rank=3)


def test_input_errors_come_before_any_work() -> None:
    model = make_model()
    with pytest.raises(ValueError, match="name column 2, but x has 2 columns"):
        model(torch.rand(5, 2))
    with pytest.raises(ValueError, match="x is empty"):
        model(torch.rand(0, 3))
    with pytest.raises(ValueError, match=r"x has dtype torch\.int64"):
        model(torch.ones(5, 3, dtype=torch.long))
    model.variational_strategy._variational_distribution.double()
    with pytest.raises(ValueError, match=r"convert the whole model with model\.to"):
        model(data())


def test_call_errors_of_the_ready_model() -> None:
    model, x = make_model().eval(), data(4)
    with pytest.raises(TypeError, match=r"inputs must be a torch\.Tensor, got ndarray: pass torch\.as_tensor"):
        model(x.numpy())
    with pytest.raises(TypeError, match="must be an AdditivePredictor, got ComponentGroup"):
        AdditiveGP(model.predictor.groups[0])
    for wrong in ("x", [1.0, 2.0], x.numpy(), None):
        for call in (model.components, model.predict):
            with pytest.raises(TypeError, match=f"x must be a torch.Tensor, got {type(wrong).__name__}"):
                call(wrong)
    parts = model.components(x)
    with pytest.raises(TypeError, match="components are chosen by name, got 0"):
        parts[0]
    with pytest.raises(ValueError, match="names is empty"):
        model.components(x, [])
    with pytest.raises(TypeError, match=r"sample_shape must be a torch\.Size, or a sequence of integers, got 5"):
        parts.sample(5)


def test_paper_parameters_round_trip_and_errors() -> None:
    model = make_model("low_rank").double()
    strategy = model.variational_strategy
    q = strategy._variational_distribution
    mean, factor = q.variational_mean.clone(), q.precision_factor.clone()
    strategy.set_paper_parameters(*strategy.paper_parameters())
    torch.testing.assert_close(q.variational_mean, mean)
    torch.testing.assert_close(q.precision_factor, factor)
    with pytest.raises(ValueError, match="alpha and factor must have shapes"):
        strategy.set_paper_parameters(mean[:3], factor)
    with pytest.raises(TypeError, match="need a distribution with a low-rank precision"):
        make_model("coupled").variational_strategy.paper_parameters()
    with pytest.raises(TypeError, match="a DeltaVariationalDistribution cannot be set from a precision"):
        make_model("delta").variational_strategy.set_whitened_posterior(mean, torch.eye(len(mean)).double())
