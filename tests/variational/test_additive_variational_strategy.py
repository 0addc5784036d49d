"""The strategy with dense and finite-difference oracles: moments, bounds, numerics, and the traps of each."""

from __future__ import annotations

import copy
from unittest.mock import patch

import gpytorch
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.variational import CholeskyVariationalDistribution

from gpytorch_gam import (
    AdditiveGP,
    AdditivePredictor,
    BlockLowRankPrecisionVariationalDistribution,
    ComponentGroup,
    LowRankPrecisionVariationalDistribution,
)
from gpytorch_gam.components import regular_grid
from gpytorch_gam.models.additive_gp import FAMILIES
from tests import reference
from tests.problems import gaussian_bound, mixed_inputs, mixed_model, mixed_predictor


@pytest.mark.projection
@pytest.mark.parametrize("family", FAMILIES)
def test_train_and_eval_mode_have_the_same_moments(family: str) -> None:
    model, x = mixed_model(family).double(), mixed_inputs().double()
    trained, evaluated = model.train()(x), model.eval()(x)
    torch.testing.assert_close(trained.mean, evaluated.mean)
    torch.testing.assert_close(trained.variance, evaluated.variance)
    full = model.train()(x, diag=False)
    torch.testing.assert_close(full.covariance_matrix, evaluated.covariance_matrix)
    assert (evaluated.covariance_matrix - torch.diag(evaluated.variance)).abs().max() > 1e-3


@pytest.mark.parametrize("family", ["low_rank", "block_low_rank", "mean_field"])
@pytest.mark.parametrize("learn", [False, True])
def test_gradients_of_the_elbo(family: str, learn: bool) -> None:
    model = mixed_model(family, rank=2, learn=learn).double()
    x, y = mixed_inputs(6).double(), torch.randn(6).double()
    names = [name for name, _ in model.named_parameters()]
    values = tuple(p.detach().clone().requires_grad_() for p in model.parameters())

    class Objective(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self) -> torch.Tensor:
            return gaussian_bound(self.model, x, y)

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
    predictor = mixed_predictor().double()
    predictor.groups[0].kernel.outputscale = torch.tensor([1e-6, 1e6], dtype=torch.float64)
    q = LowRankPrecisionVariationalDistribution(predictor.num_inducing_total, rank=2).double()
    scaled = reference.Model(predictor, q, jitter=None).variational_strategy
    covariance = predictor.groups[0].inducing_covariance()
    added = scaled.inducing_choleskys()[0] @ scaled.inducing_choleskys()[0].mT - covariance
    expected = 1e-6 * covariance.diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(added.diagonal(dim1=-2, dim2=-1), expected, rtol=1e-3, atol=0)
    with gpytorch.settings.variational_cholesky_jitter(float_value=1e-2, double_value=1e-3):
        assert scaled.jitter_val == 1e-3
        assert mixed_model().variational_strategy.jitter_val == 1e-2
    absolute = reference.Model(predictor, q, jitter=1e-4).variational_strategy
    added = absolute.inducing_choleskys()[0][1] @ absolute.inducing_choleskys()[0][1].mT - covariance[1]
    torch.testing.assert_close(added.diagonal(), torch.full((6,), 1e-4, dtype=torch.float64), rtol=1e-3, atol=0)
    with pytest.raises(ValueError, match="jitter_val must not be negative"):
        reference.Model(predictor, q, jitter=-1.0)


def test_a_constant_costs_no_jitter() -> None:
    model = mixed_model().double()
    constant_group = model.predictor.groups[-1]
    cholesky = model.variational_strategy.inducing_choleskys()[-1]
    torch.testing.assert_close(cholesky.square(), constant_group.inducing_covariance(), rtol=1e-14, atol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_kl_follows_an_optimizer_step_without_a_forward(family: str) -> None:
    model = mixed_model(family)
    x, y = mixed_inputs(), torch.randn(30)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    (-gaussian_bound(model, x, y)).backward()
    before = model.variational_strategy.kl_divergence().item()
    optimizer.step()
    after = model.variational_strategy.kl_divergence().item()
    fresh = mixed_model(family)
    fresh.load_state_dict(model.state_dict())
    assert after != before
    assert after == pytest.approx(fresh.variational_strategy.kl_divergence().item(), rel=1e-6)


@pytest.mark.parametrize("family", ["low_rank", "block_low_rank", "mean_field"])
def test_shared_divergence_is_always_that_of_a_new_computation(family: str) -> None:
    model, x = mixed_model(family).train(), mixed_inputs()
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
    model, x = mixed_model().eval(), mixed_inputs(6)
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


@pytest.mark.parametrize("family", ["low_rank", "block_low_rank", "mean_field"])
def test_hot_path_reads_no_number_from_a_tensor(family: str) -> None:
    model, x, y = mixed_model(family), mixed_inputs(), torch.randn(30)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def forbidden(*_: object) -> None:
        raise AssertionError("Tensor.item() on the hot path waits for the device")

    with patch.object(torch.Tensor, "item", forbidden):
        (-gaussian_bound(model, x, y)).backward()
        optimizer.step()
    assert torch.isfinite(model.variational_strategy.kl_divergence())


def test_numerical_core_compiles() -> None:
    from gpytorch_gam.numerics.precision import precision_covariance_factors

    mean, factor, blocks = torch.randn(6).double(), torch.randn(6, 2).double(), [torch.randn(2, 3, 3).double()]
    compiled = torch.compile(precision_covariance_factors, backend="aot_eager", fullgraph=True)
    expected, logdet = precision_covariance_factors(mean, factor, blocks)
    actual, compiled_logdet = compiled(mean, factor, blocks)
    torch.testing.assert_close(actual.explained_shared, expected.explained_shared)
    torch.testing.assert_close(compiled_logdet, logdet)


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


def test_paper_parameters_round_trip_and_errors() -> None:
    model = mixed_model("low_rank").double()
    strategy = model.variational_strategy
    q = strategy._variational_distribution
    mean, factor = q.variational_mean.clone(), q.precision_factor.clone()
    strategy.set_paper_parameters(*strategy.paper_parameters())
    torch.testing.assert_close(q.variational_mean, mean)
    torch.testing.assert_close(q.precision_factor, factor)
    with pytest.raises(ValueError, match="alpha and factor must have shapes"):
        strategy.set_paper_parameters(mean[:3], factor)
    with pytest.raises(TypeError, match="need a distribution with a low-rank precision"):
        mixed_model("coupled").variational_strategy.paper_parameters()
    with pytest.raises(TypeError, match="a DeltaVariationalDistribution cannot be set from a precision"):
        mixed_model("delta").variational_strategy.set_whitened_posterior(mean, torch.eye(len(mean)).double())
