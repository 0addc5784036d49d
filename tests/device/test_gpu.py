"""Every family trained for ten steps on a GPU and on the CPU, from one start. Skipped where there is no GPU."""

from __future__ import annotations

import copy

import gpytorch
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup
from gpytorch_gam.components import constant, regular_grid
from gpytorch_gam.kernels import ANOVAKernel
from gpytorch_gam.kernels.measures import Uniform
from gpytorch_gam.models.additive_gp import FAMILIES
from gpytorch_gam.optim import NaturalGradient, polish

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
