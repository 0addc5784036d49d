"""Every family trained for ten steps on a GPU and on the CPU, from one start. Skipped where there is no GPU."""

from __future__ import annotations

import copy
import importlib.util

import gpytorch
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup, settings
from gpytorch_gam.components import regular_grid
from gpytorch_gam.kernels import ANOVAKernel
from gpytorch_gam.kernels.measures import Uniform
from gpytorch_gam.likelihoods import GaussianLocationScaleLikelihood, PoissonLikelihood, RowwiseLikelihood
from gpytorch_gam.models.additive_gp import FAMILIES
from gpytorch_gam.optim import NaturalGradient
from gpytorch_gam.projection.blockwise import BlockwiseProjection
from gpytorch_gam.projection.separable_form import Factor, LocalShape
from gpytorch_gam.projection.triton_projection import TritonProjection
from gpytorch_gam.terms import (
    constant,
    cyclic,
    factor,
    factor_smooth,
    interaction,
    linear,
    ordinal,
    random_effect,
    smooth,
    spatial,
)
from gpytorch_gam.training import fit, polish
from tests.projection.projection_cases import assert_agrees, converted, evaluate, make_inputs

pytestmark = pytest.mark.gpu


def make_model(family: str) -> AdditiveGP:
    size = torch.Size([4])
    plain = ScaleKernel(RBFKernel(batch_shape=size), batch_shape=size)
    anova = ScaleKernel(ANOVAKernel(RBFKernel(batch_shape=size), Uniform(0.0, 1.0)), batch_shape=size)
    columns, grid = [[0], [1], [2], [3]], regular_grid(0.0, 1.0, 12)
    predictor = AdditivePredictor(
        ComponentGroup(plain, columns, grid, learn_inducing_locations=True),
        ComponentGroup(anova, columns, grid, names=["a0", "a1", "a2", "a3"], by=[None, None, 1, None]),
        constant(),
        mean=gpytorch.means.ConstantMean(),
    )
    return AdditiveGP(predictor, family, 6 if "low_rank" in family else None)


def train(model: AdditiveGP, x: torch.Tensor, y: torch.Tensor, steps: int = 10) -> list[float]:
    likelihood = gpytorch.likelihoods.GaussianLikelihood().to(x)
    mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(y))
    optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=0.01)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = -mll(model.train()(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).cpu().tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("family", FAMILIES)
def test_training_on_the_gpu_equals_training_on_the_cpu(family: str, dtype: torch.dtype) -> None:
    model, x = make_model(family).to(dtype), torch.rand(500, 4, dtype=dtype)
    y = torch.sin(6 * x[:, 0]) + x[:, 1] ** 2 + 0.1 * torch.randn(500, dtype=dtype)
    model.variational_strategy._initialize_once()
    on_gpu = copy.deepcopy(model).cuda()
    expected, actual = train(model, x, y), train(on_gpu, x.cuda(), y.cuda())
    tolerance = 1e-3 if dtype == torch.float32 else 1e-8
    assert actual == pytest.approx(expected, rel=tolerance)
    model.eval(), on_gpu.eval()
    with torch.no_grad():
        cpu, gpu = model(x[:50]), on_gpu(x[:50].cuda())
        torch.testing.assert_close(gpu.mean.cpu(), cpu.mean, rtol=10 * tolerance, atol=10 * tolerance)
        torch.testing.assert_close(gpu.variance.cpu(), cpu.variance, rtol=10 * tolerance, atol=10 * tolerance)
        parts = on_gpu.components(x[:50].cuda())
        assert parts.cross_covariance().device.type == "cuda"
        if family != "delta":
            assert torch.isfinite(parts.sample(torch.Size([3])).total).all()
        with pytest.raises(ValueError, match="x is on cpu, but the model is on cuda"):
            on_gpu(x)


@pytest.mark.parametrize("family", ["low_rank", "block_low_rank", "mean_field"])
def test_natural_gradients_on_the_gpu_equal_those_on_the_cpu(family: str) -> None:
    def train_naturally(model: AdditiveGP, x: torch.Tensor, y: torch.Tensor) -> list[float]:
        likelihood = gpytorch.likelihoods.GaussianLikelihood().to(x)
        mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(y))
        # All rows in each step: the random start of the subspace iteration is forgotten at once.
        natural = NaturalGradient(model, num_data=len(y))
        losses = []
        for _ in range(3):
            loss = -mll(model.train()(x), y)
            loss.backward()
            natural.step()
            losses.append(loss.detach())
        return torch.stack(losses).cpu().tolist()

    model, x = make_model(family).double(), torch.rand(300, 4).double()
    y = torch.sin(6 * x[:, 0]) + 0.1 * torch.randn(300).double()
    model.variational_strategy._initialize_once()
    on_gpu = copy.deepcopy(model).cuda()
    expected, actual = train_naturally(model, x, y), train_naturally(on_gpu, x.cuda(), y.cuda())
    assert actual == pytest.approx(expected, rel=1e-3)


def make_terms(predictor: int = 0) -> tuple[ComponentGroup, ...]:
    x, levels = torch.rand(50, 2), {"levels": 3, "predictor": predictor}
    ends = {"low": 0.0, "high": 1.0, "predictor": predictor}
    return (
        smooth(0, **ends, missing="marginal"),
        smooth(0, **ends, by=2, levels=3),
        cyclic(1, period=1.0, predictor=predictor),
        linear(1, centre=0.5, scale=0.3, names=f"line{predictor}", predictor=predictor),
        spatial((0, 1), x, num_inducing=9, predictor=predictor),
        random_effect(2, **levels, name=f"random{predictor}"),
        factor(2, **levels, name=f"fixed{predictor}"),
        ordinal(2, **levels, name=f"ordered{predictor}"),
        factor_smooth(0, 2, num_inducing=4, low=0.0, high=1.0, **levels, name=f"curves{predictor}"),
        interaction(0, 2, num_inducing=4, low=0.0, high=1.0, **levels),
        constant(predictor=predictor),
    )


@pytest.mark.parametrize("num_predictors", [1, 2])
def test_terms_and_likelihoods_on_the_gpu_equal_those_on_the_cpu(num_predictors: int) -> None:
    torch.manual_seed(0)
    groups = [group for index in range(num_predictors) for group in make_terms(index)]
    model = AdditiveGP(AdditivePredictor(*groups), rank=6).double()
    likelihood = PoissonLikelihood() if num_predictors == 1 else GaussianLocationScaleLikelihood()
    x = torch.cat([torch.rand(200, 2), torch.randint(0, 3, (200, 1))], dim=-1).double()
    x[:20, 0] = float("nan") if num_predictors == 1 else 0.5
    y = torch.poisson(torch.ones(200).double())
    if num_predictors == 1:  # only the first smooth takes missing values
        model = AdditiveGP(AdditivePredictor(groups[0], *groups[2:4], *groups[5:8], groups[-1]), rank=6).double()
    weights = torch.rand(200).double()
    model.variational_strategy._initialize_once()
    on_gpu, likelihood_on_gpu = copy.deepcopy(model).cuda(), copy.deepcopy(likelihood).cuda()
    expected = polish(model, likelihood, [(x, y, {"weights": weights})], max_passes=5)
    actual = polish(on_gpu, likelihood_on_gpu, [(x.cuda(), y.cuda(), {"weights": weights.cuda()})], max_passes=5)
    assert actual == pytest.approx(expected, rel=1e-4)
    cpu, gpu = model.predict(x), on_gpu.predict(x.cuda())
    torch.testing.assert_close(gpu.mean.cpu(), cpu.mean, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(gpu.component_variance.cpu(), cpu.component_variance, rtol=1e-3, atol=1e-3)
    with pytest.raises(ValueError, match="is none of its levels"):
        on_gpu.predict(x.cuda().index_fill(1, torch.tensor([2], device="cuda"), 7.0))


@pytest.mark.parametrize("dense_limit", [0, 1024])
@pytest.mark.parametrize("family", ["low_rank", "block_low_rank", "mean_field"])
def test_polishing_on_the_gpu_reaches_the_bound_of_the_cpu(family: str, dense_limit: int) -> None:
    model, x = make_model(family).double(), torch.rand(300, 4).double()
    y = (torch.sin(6 * x[:, 0]) + 0.1 * torch.randn(300).double() > 0).double()
    likelihood = gpytorch.likelihoods.BernoulliLikelihood()
    model.variational_strategy._initialize_once()
    on_gpu = copy.deepcopy(model).cuda()
    expected = polish(model, likelihood, [(x, y)], dense_limit=dense_limit)[-1]
    actual = polish(on_gpu, likelihood, [(x.cuda(), y.cuda())], dense_limit=dense_limit)[-1]
    assert actual == pytest.approx(expected, abs=0.5)


@pytest.mark.parametrize("family", ["low_rank", "block_low_rank", "mean_field"])
def test_a_training_step_copies_nothing_back_through_item(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = make_model(family).cuda(), torch.rand(100, 4).cuda()

    def forbidden(*_: object) -> None:
        raise AssertionError("Tensor.item() waits for the device")

    mll = gpytorch.mlls.VariationalELBO(gpytorch.likelihoods.GaussianLikelihood().cuda(), model, num_data=100)
    monkeypatch.setattr(torch.Tensor, "item", forbidden)
    (-mll(model.train()(x), x[:, 0])).backward()


needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


@needs_triton
@pytest.mark.parametrize("has_product", [False, True])
@pytest.mark.parametrize("shape", LocalShape)
def test_triton_agrees_with_double_precision(shape: LocalShape, has_product: bool) -> None:
    inputs = make_inputs((shape,), products=(has_product,), num_points=64, num_rows=3000, has_multiplier=has_product)
    assert_agrees(converted(inputs, "cuda"))


@needs_triton
@pytest.mark.parametrize("second", LocalShape)
def test_triton_agrees_for_two_factors(second: LocalShape) -> None:
    first = LocalShape((second + 3) % len(LocalShape))
    inputs = make_inputs((first, second), products=(True, second % 2 == 0), num_points=64, num_rows=2000)
    assert_agrees(converted(inputs, "cuda"))


# C, M, S, r, n.
SIZES = [
    (1, 1, 1, 1, 1),
    (1, 5, 2, 5, 17),
    (3, 16, 17, 16, 100),
    (3, 20, 33, 20, 1000),
    (32, 32, 33, 32, 5000),
    (32, 64, 65, 0, 20_000),
    (32, 64, 33, 64, 20_001),
    (7, 70, 66, 70, 3000),
    (5, 130, 130, 130, 3001),
    (200, 16, 65, 16, 1024),
    (2, 300, 1, 300, 500),
]


@needs_triton
@pytest.mark.parametrize("sizes", SIZES)
def test_triton_agrees_for_all_sizes(sizes: tuple[int, ...]) -> None:
    num_components, num_points, num_shared, block_rank, num_rows = sizes
    for shape in (LocalShape.RBF, LocalShape.CENTRED_RBF):
        inputs = make_inputs(
            (shape,),
            products=(shape is not LocalShape.RBF,),
            num_components=num_components,
            num_points=num_points,
            num_shared=num_shared,
            block_rank=block_rank,
            num_rows=num_rows,
        )
        assert_agrees(converted(inputs, "cuda"))


@needs_triton
@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_triton_in_lower_precision(precision: str) -> None:
    for num_shared, block_rank in ((65, 0), (33, 64)):
        inputs = make_inputs(num_points=64, num_shared=num_shared, block_rank=block_rank, num_rows=5000)
        assert_agrees(converted(inputs, "cuda"), precision=precision)


@needs_triton
def test_triton_repeats_its_results() -> None:
    inputs = converted(make_inputs(num_points=130, num_shared=130, block_rank=70, num_rows=20_000), "cuda")
    seeds = torch.randn(130, 20_000, device="cuda"), torch.randn(20_000, device="cuda")
    needed = [tensor is not None for tensor in inputs.flat()]
    first, second = (evaluate(TritonProjection(), inputs, seeds, needed) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@needs_triton
def test_triton_does_not_store_the_kernel_matrix() -> None:
    num_shared, num_rows = 65, 131_072
    inputs = converted(
        make_inputs(num_components=32, num_points=64, num_shared=num_shared, block_rank=0, num_rows=num_rows), "cuda"
    )
    seeds = torch.randn(num_shared, num_rows, device="cuda"), torch.randn(num_rows, device="cuda")
    needed = [
        name in ("shared", "log_scale", "rate") for name in ("shared", "block", "multiplier", *Factor._fields[1:])
    ]
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    evaluate(TritonProjection(), inputs, seeds, needed)
    assert torch.cuda.max_memory_allocated() - before < 2**29  # the kernel matrix has 2^30 bytes


@needs_triton
def test_triton_addresses_more_than_32_bits_reach() -> None:
    num_shared, num_rows = 130, 2**24 + 2**20  # 2.3e9 numbers
    if torch.cuda.mem_get_info()[0] < 24 * 2**30:
        pytest.skip("needs 24 GiB")
    inputs = make_inputs(num_components=1, num_points=16, num_shared=num_shared, block_rank=0, num_rows=1)
    inputs = converted(inputs, "cuda")
    x = 3 * torch.rand(1, num_rows, device="cuda")
    large = inputs._replace(factors=(inputs.factors[0]._replace(x=x),))
    small = inputs._replace(factors=(inputs.factors[0]._replace(x=x[:, -100:]),))
    actual = TritonProjection().forward(large, False)[0]
    expected = BlockwiseProjection().forward(converted(small, torch.float64), False)[0]
    torch.testing.assert_close(actual[:, -100:].double(), expected, rtol=0.0, atol=1e-5 * expected.abs().max().item())
    seed = torch.zeros_like(actual)
    seed[:, -100:] = torch.randn(num_shared, 100, device="cuda")
    del actual
    needed = [True, *[False] * (len(inputs.flat()) - 1)]
    grad = TritonProjection().backward(large, None, seed, None, needed)[0]
    _, _, kept = BlockwiseProjection().forward(small, True)
    reference = BlockwiseProjection().backward(small, kept, seed[:, -100:], None, needed)[0]
    assert grad is not None and reference is not None
    torch.testing.assert_close(grad, reference, rtol=0.0, atol=1e-4 * reference.abs().max().item())


@needs_triton
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two devices")
def test_triton_runs_on_the_device_of_its_inputs() -> None:
    assert_agrees(converted(make_inputs(), "cuda:1"))


@needs_triton
@pytest.mark.parametrize("family", ["low_rank", "block_low_rank", "mean_field"])
def test_training_with_triton_equals_training_without(family: str) -> None:
    model, x = make_model(family).cuda(), torch.rand(2000, 4, device="cuda")
    y = torch.sin(6 * x[:, 0]) + x[:, 1] ** 2 + 0.1 * torch.randn(2000, device="cuda")
    model.variational_strategy._initialize_once()
    losses = []
    for path in ("off", "triton"):
        with settings.fused_projection(path):
            losses.append(train(copy.deepcopy(model), x, y))
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def test_recorded_steps_train_like_eager_ones() -> None:
    torch.manual_seed(0)
    x = torch.rand(1000, 4, device="cuda")
    y = torch.sin(6 * x[:, 0]) + 0.1 * torch.randn(1000, device="cuda")
    weights = 0.5 + torch.rand(1000, device="cuda")
    parts = torch.arange(1000, device="cuda").split(300)
    batches = [(x[rows], y[rows], {"weights": weights[rows]}) for rows in parts]
    model = make_model("block_low_rank").cuda()
    model.variational_strategy._initialize_once()
    found = []
    for cuda_graph in (False, True):
        torch.manual_seed(1)
        likelihood = RowwiseLikelihood(gpytorch.likelihoods.GaussianLikelihood()).cuda()
        history = fit(copy.deepcopy(model), likelihood, batches, 1000, num_epochs=6, cuda_graph=cuda_graph).history
        found.append([epoch.elbo for epoch in history])
    assert found[1] == pytest.approx(found[0], rel=1e-2)


def test_a_step_waits_for_nothing() -> None:
    model = make_model("block_low_rank").cuda().train()
    mll = gpytorch.mlls.VariationalELBO(gpytorch.likelihoods.GaussianLikelihood().cuda(), model, num_data=100)
    x = torch.rand(100, 4, device="cuda")
    (-mll(model(x), x[:, 0])).backward()
    torch.cuda.synchronize()
    with gpytorch.settings.debug(False):
        torch.cuda.set_sync_debug_mode("error")
        try:
            (-mll(model(x), x[:, 0])).backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_predictions_of_inputs_on_the_cpu() -> None:
    model, x = make_model("low_rank").cuda().eval(), torch.rand(50, 4)
    prediction, on_gpu = model.predict(x, chunk_size=20), model.predict(x.cuda())
    assert prediction.mean.device.type == "cpu" and on_gpu.mean.device.type == "cuda"
    torch.testing.assert_close(prediction.mean, on_gpu.mean.cpu())
    torch.testing.assert_close(prediction.component_variance, on_gpu.component_variance.cpu())
