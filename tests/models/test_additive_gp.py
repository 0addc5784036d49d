"""Calls of an additive GP under the settings of GPyTorch and torch, and errors of models and inputs."""

from __future__ import annotations

import gpytorch
import pytest
import torch
from gpytorch.kernels import RBFKernel

from gpytorch_gam import (
    AdditiveGP,
    AdditivePredictor,
    AdditiveVariationalStrategy,
    BlockLowRankPrecisionVariationalDistribution,
    ComponentGroup,
    LowRankPrecisionVariationalDistribution,
)
from gpytorch_gam.components import regular_grid
from gpytorch_gam.terms import constant
from tests.problems import gaussian_bound, mixed_inputs, mixed_model, mixed_predictor


def test_levels_of_an_exact_component_never_move() -> None:
    levels = ComponentGroup(gpytorch.kernels.LinearKernel(), [[0, 1, 2]], torch.eye(3), names=["level"], exact=True)
    model = AdditiveGP(AdditivePredictor(levels, constant()), "block_low_rank", 2)
    x = torch.nn.functional.one_hot(torch.arange(30) % 3).float()
    y = x @ torch.tensor([0.0, 1.0, 2.0])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(50):
        optimizer.zero_grad()
        (-gaussian_bound(model, x, y)).backward()
        optimizer.step()
    assert torch.equal(levels.inducing_points[0], torch.eye(3))
    assert (model.eval()(x).mean - y).abs().max() < 0.3


def test_fixed_inducing_points_never_move() -> None:
    model, x, y = mixed_model(), mixed_inputs(), torch.randn(30)
    before = [group.inducing_points.clone() for group in model.predictor.groups]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        (-gaussian_bound(model, x, y)).backward()
        optimizer.step()
    assert all(torch.equal(a, g.inducing_points) for a, g in zip(before, model.predictor.groups, strict=True))
    learnt = dict(mixed_model(learn=True).named_parameters())
    assert sum("inducing_points" in name for name in learnt) == 3  # the constant has none to move


def test_settings_are_honoured() -> None:
    model, x = mixed_model().eval(), mixed_inputs(5)
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


def test_bounds_have_variances_whatever_predictions_skip() -> None:
    model, likelihood, x = mixed_model(), gpytorch.likelihoods.GaussianLikelihood(), mixed_inputs()
    mll = gpytorch.mlls.VariationalELBO(likelihood, model.train(), num_data=len(x))
    expected = mll(model(x), torch.zeros(len(x)))
    with gpytorch.settings.skip_posterior_variances():
        torch.testing.assert_close(mll(model(x), torch.zeros(len(x))), expected)


def test_fantasy_models_are_refused_with_the_remedy() -> None:
    model, x = mixed_model().eval(), mixed_inputs(5)
    with pytest.raises(NotImplementedError, match="polish"):
        model.get_fantasy_model(x, torch.zeros(5))


def test_prior_mode_gives_the_prior_of_the_sum() -> None:
    model, x = mixed_model().eval(), mixed_inputs(5)
    prior = model(x, prior=True)
    torch.testing.assert_close(prior.covariance_matrix, model.predictor(x).covariance_matrix)
    torch.testing.assert_close(prior.mean, torch.full((5,), 0.4))


def test_autocast_does_not_touch_the_posterior() -> None:
    model, x = mixed_model(), mixed_inputs()
    expected = model.train()(x).variance
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(model(x).variance, expected, rtol=0, atol=0)


def test_autocast_does_not_touch_a_covariance_that_is_formed_later() -> None:
    model, x = mixed_model().eval(), mixed_inputs()
    expected = model(x).covariance_matrix
    with torch.autocast("cpu", dtype=torch.bfloat16):
        posterior = model(x)
        torch.testing.assert_close(posterior.covariance_matrix, expected, rtol=0, atol=0)
        root = posterior.lazy_covariance_matrix.root_decomposition().root.to_dense()
    torch.testing.assert_close(root @ root.mT, expected, rtol=1e-4, atol=1e-4)


def test_autocast_does_not_touch_draws() -> None:
    model, x = mixed_model().eval(), mixed_inputs()
    base_samples = torch.randn(3, len(x))
    for given in (None, base_samples):
        draws = []
        for is_mixed in (False, True):
            torch.manual_seed(0)
            posterior = model(x)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_mixed):
                draws.append(posterior.rsample(torch.Size([3]), base_samples=given))
                draws.append(model(x).rsample(torch.Size([3]), base_samples=given))
        torch.testing.assert_close(draws[2], draws[0], rtol=0, atol=1e-6)
        torch.testing.assert_close(draws[3], draws[1], rtol=0, atol=1e-6)


def test_trace_mode_works_on_many_rows() -> None:
    model, x = mixed_model().eval(), mixed_inputs(60)
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
    model, x = AdditiveGP(predictor, family), mixed_inputs(6)
    gaussian_bound(model, x, torch.randn(6)).backward()
    assert all(torch.isfinite(p.grad).all() for p in model.predictor.parameters())
    assert torch.isfinite(model.eval().components(x).sample().total).all()


def test_unusable_dtypes_and_kernels_are_named() -> None:
    model = mixed_model()
    with pytest.raises(ValueError, match=r"the model is in torch\.float16; use float32 or float64"):
        model.half()(mixed_inputs(4).half())
    model = mixed_model()
    model.predictor.groups[0].kernel.double()
    with pytest.raises(ValueError, match=r"kernel of components \['x0', 'x1'\] is torch\.float64"):
        model(mixed_inputs(4))
    with pytest.raises(ValueError, match="must have one output for each input"):
        ComponentGroup(gpytorch.kernels.RBFKernelGrad(), [[0]], regular_grid(0.0, 1.0, 4))
    with pytest.raises(ValueError, match=r"active_dims \[2\], but its components read 1 column"):
        ComponentGroup(RBFKernel(active_dims=[2]), [[2]], regular_grid(0.0, 1.0, 4))


def test_construction_errors() -> None:
    predictor = mixed_predictor()
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
    model = mixed_model()
    with pytest.raises(ValueError, match="name column 2, but x has 2 columns"):
        model(torch.rand(5, 2))
    with pytest.raises(ValueError, match="x is empty"):
        model(torch.rand(0, 3))
    with pytest.raises(ValueError, match=r"x has dtype torch\.int64"):
        model(torch.ones(5, 3, dtype=torch.long))
    model.variational_strategy._variational_distribution.double()
    with pytest.raises(ValueError, match=r"convert the whole model with model\.to"):
        model(mixed_inputs())


def test_call_errors_of_the_ready_model() -> None:
    model, x = mixed_model().eval(), mixed_inputs(4)
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
