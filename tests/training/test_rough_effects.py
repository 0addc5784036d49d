"""Effects that are too rough to be seen with the first inducing points of a term."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from gpytorch.likelihoods import GaussianLikelihood
from torch import Tensor

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup, fit
from gpytorch_gam.likelihoods import PoissonLikelihood
from gpytorch_gam.optim.processes import Processes
from gpytorch_gam.terms import constant, cyclic, smooth, tensor
from gpytorch_gam.training._component_scales import scales_of_group
from gpytorch_gam.training._rough_effects import Residuals, _Columns, _gains_at, rough_effects
from gpytorch_gam.warnings import InducingPointsWarning

RANGE = {"low": 0.0, "high": 1.0}


def data(speed: float, n: int = 800) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, the wave in the first column, and noise that is as large."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(n, 2, generator=generator, dtype=torch.float64)
    return x, torch.sin(speed * x[:, 0]), torch.randn(n, generator=generator, dtype=torch.float64)


def model_of(*groups: ComponentGroup) -> AdditiveGP:
    return AdditiveGP(AdditivePredictor(*groups, constant())).double()


@pytest.mark.parametrize("method", ["rows", "bins"])
def test_waves_that_the_first_points_miss_are_found(method: str) -> None:
    x, wave, noise = data(80.0, 300)
    model = model_of(smooth(0, **RANGE))
    few = model_of(smooth(0, num_inducing=16, **RANGE))
    y = wave + 0.5 * noise + 4.0 * (x[:, 0] - 0.5).square()
    found = fit(model, GaussianLikelihood().double(), (x, y), method=method, tolerance=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InducingPointsWarning)
        missed = fit(few, GaussianLikelihood().double(), (x, y), method=method, tolerance=1.0)
    assert model.predictor.groups[0].num_inducing >= 32
    assert found.bound > missed.bound + 50.0
    with torch.no_grad():
        effect = model.variational_strategy.predictor_moments(x).mean.squeeze(-1)
    truth = wave + 4.0 * (x[:, 0] - 0.5).square()
    assert torch.corrcoef(torch.stack([effect, truth]))[0, 1] > 0.95


def test_waves_of_counts_and_of_periodic_effects_are_found() -> None:
    x, wave, _ = data(40 * math.pi)
    y = torch.poisson((0.5 + wave).exp(), generator=torch.Generator().manual_seed(2))
    model = model_of(cyclic(0, period=1.0), smooth(1, **RANGE))
    fit(model, PoissonLikelihood().double(), (x, y))
    first, second, _ = model.predictor.groups
    assert first.num_inducing > 12 and second.num_inducing == 16


@pytest.mark.parametrize("number", ["auto", 16])
def test_waves_that_no_point_can_follow_give_a_warning(number: Any) -> None:
    x, wave, noise = data(2000.0, 2000)
    model = model_of(smooth([0, 1], num_inducing=number, **RANGE))
    with pytest.warns(InducingPointsWarning, match=r"alike in neighbouring places of their columns: 'x0'\. "):
        fit(model, GaussianLikelihood().double(), (x, wave + 0.5 * noise))


def residuals(gradients: Tensor, x: Tensor) -> Residuals:
    return Residuals(x, gradients.unsqueeze(0), torch.ones(1, len(x), dtype=torch.float64))


def test_waves_in_two_columns_are_found_in_what_is_left() -> None:
    x, wave, noise = data(25.0, 2000)
    predictor = model_of(smooth([0, 1], **RANGE), tensor((0, 1), low=0.0, high=1.0)).predictor
    (found,) = rough_effects(predictor, residuals(2.0 * wave * torch.sin(25.0 * x[:, 1]) + noise, x))
    assert found.name == "x0:x1" and found.num_inducing > 49 and found.gain > 50.0


def test_independent_residuals_of_unequal_variance_ask_for_no_points() -> None:
    alarms = 0
    for seed in range(50):
        generator = torch.Generator().manual_seed(seed)
        x = torch.rand(300, 5, generator=generator, dtype=torch.float64) ** 2
        noise = torch.randn(300, generator=generator, dtype=torch.float64) * torch.exp(2 * x[:, 0])
        noise = noise / noise.std()
        alarms += bool(rough_effects(model_of(smooth(range(5), **RANGE)).predictor, residuals(noise, x)))
    assert alarms == 0


def test_dependence_is_that_of_all_pairs_of_rows() -> None:
    x, wave, noise = data(200.0, 50)
    group = smooth(0, x, by=1).double()
    found = _Columns.of(group, residuals(wave + noise, x)).dependence(Processes(None))
    points = group.inducing_points[0, :, 0]
    place = (x[:, 0] - points.min()) / (points.max() - points.min())
    gradients, curvatures = x[:, 1] * (wave + noise), x[:, 1].square()
    for number, score, nats in zip((16, 64), found.scores[:, 0], found.nats[:, 0], strict=False):
        cell = (place * number).long().clamp_max(number - 1)
        distance = (cell - cell[:, None]).abs()
        weight = torch.where(distance == 0, 1.0, torch.where(distance == 1, 0.5, 0.0)).double().fill_diagonal_(0.0)
        pairs = weight * gradients * gradients[:, None]
        assert torch.allclose(score, pairs.sum() / (2.0 * pairs.square().sum()).sqrt())
        in_cell = torch.zeros(number, dtype=torch.float64).index_add_(0, cell, curvatures)[cell]
        assert torch.allclose(nats, 0.5 * (pairs * (distance == 0) / in_cell).sum())


def test_gains_are_those_of_the_dense_bound() -> None:
    x, wave, noise = data(60.0, 300)
    group = smooth(0, num_inducing=24, variance=1.0, **RANGE).double()
    group.kernel.base_kernel.base_kernel.lengthscale = 0.03
    scales, left = list(scales_of_group(group)), residuals(wave + noise, x)
    sums = _Columns.of(group, left).sums_at_places(Processes(None))
    ((gain, ratio),) = _gains_at(group, scales, sums)
    with torch.no_grad():
        at_places = sums.places[0].expand(-1, 2)
        rows = group.at_rows(at_places, 1e-8, True)
    weights, features = sums.curvatures[0], rows.features[0]
    identity = torch.eye(len(features), dtype=torch.float64)
    projected = ratio**0.5 * features @ sums.gradients[0]
    precision = identity + ratio * (features * weights) @ features.mT
    missing = ratio * (weights * (rows.prior_variance[0] - features.square().sum(0))).sum()
    dense = 0.5 * (projected @ torch.linalg.solve(precision, projected) - precision.logdet() - missing)
    assert gain == pytest.approx(dense.item(), abs=1e-6) and gain > 5.0
