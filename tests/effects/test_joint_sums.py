"""Sums of components as functions: moments over rows against dense algebra, and draws."""

from __future__ import annotations

import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from torch import Tensor

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup, terms
from gpytorch_gam.components import regular_grid
from gpytorch_gam.effects import JointSum, WeightedModels
from gpytorch_gam.models.additive_gp import FAMILIES

from .test_component_sums import strategy_of_rows
from .test_prediction import make_model

PAIR, WEIGHTS = ["x0", "x0:x1"], torch.tensor([0.3, 0.7]).double()


def dense_covariance(model: AdditiveGP, x: Tensor, names: list[str]) -> Tensor:
    """From the covariance of every component in every row with every other."""
    return model.components(x)[names].full_cross_covariance().sum((-4, -2)).detach()


@pytest.mark.parametrize("family", FAMILIES)
def test_moments_are_those_of_the_joint_posterior(family: str) -> None:
    model, x = make_model(family), torch.rand(12, 3).double()
    pair, own = model.joint_sums([(x, PAIR), (x[:5], "x1*x2")])
    torch.testing.assert_close(pair.covariances[0], dense_covariance(model, x, PAIR))
    torch.testing.assert_close(own.covariances[0], dense_covariance(model, x[:5], ["x1*x2"]))
    expected = model.predict_sums(x, {"pair": PAIR})
    for found, other in zip(pair.moments(), (expected.mean[0], expected.variance[0]), strict=True):
        torch.testing.assert_close(found, other)


def test_rows_with_missing_columns_and_batches() -> None:
    kernel = ScaleKernel(RBFKernel(batch_shape=torch.Size([1])), batch_shape=torch.Size([1]))
    group = ComponentGroup(kernel, [[0]], regular_grid(0.0, 1.0, 5), missing="marginal")
    model, x = (
        AdditiveGP(AdditivePredictor(group, terms.constant()), "coupled").double().eval(),
        torch.rand(6, 1).double(),
    )
    x[:2] = torch.nan
    (found,) = model.joint_sums([(x, ["x0", "constant"])])
    torch.testing.assert_close(found.covariances[0], dense_covariance(model, x, ["x0", "constant"]))
    assert found.covariances[0][0, 0] > found.covariances[0][0, 1]
    batch = make_model(batch_shape=(2,))
    x = torch.rand(2, 6, 3).double()
    (found,) = batch.joint_sums([(x, PAIR)])
    torch.testing.assert_close(found.covariances[0], dense_covariance(batch, x, PAIR))
    assert found.draws(5).shape == (5, 2, 6)


def test_posteriors_of_the_rows_themselves() -> None:
    x = torch.rand(20, 3).double()
    strategy = strategy_of_rows(x)
    (found,) = strategy.joint_sums([(x[:9], ["x0", "constant"])])
    expected = strategy.components(x[:9])[["x0", "constant"]].full_cross_covariance().sum((-4, -2))
    torch.testing.assert_close(found.covariances[0], expected.detach())


def mixture() -> tuple[JointSum, Tensor]:
    """A sum under two models, of which a third has no weight, and its covariance over the rows."""
    models, x = [make_model(), make_model(), make_model()], torch.rand(8, 3).double()
    weights = torch.cat([WEIGHTS, torch.zeros(1).double()])
    (found,) = models[0].joint_sums([(x, PAIR)], hyperparameters=WeightedModels(models, weights))
    both = WeightedModels(models[:2], WEIGHTS)
    return found, models[0].components(x, PAIR, hyperparameters=both).full_cross_covariance().sum((-4, -2)).detach()


def test_a_mixture_has_the_moments_of_total_covariance() -> None:
    found, covariance = mixture()
    assert found.weights.tolist() == WEIGHTS.tolist()
    torch.testing.assert_close(found.moments()[1], covariance.diagonal())
    mean, variance = found.difference(slice(4), slice(4, None)).moments()
    torch.testing.assert_close(mean, found.moments()[0][:4] - found.moments()[0][4:])
    contrast = torch.cat([torch.eye(4), -torch.eye(4)], 1).double()
    torch.testing.assert_close(variance, (contrast @ covariance @ contrast.mT).diagonal())


def test_draws_have_the_moments_of_the_mixture() -> None:
    found, covariance = mixture()
    torch.manual_seed(0)
    draws, (mean, variance) = found.draws(40000), found.moments()
    assert ((draws.mean(0) - mean) / variance.sqrt()).abs().max() < 5 / 40000**0.5
    scale = variance.sqrt().unsqueeze(-1) * variance.sqrt()
    assert ((draws.mT.cov() - covariance) / scale).abs().max() < 0.03  # of 40000 draws
    assert found.draws(1).shape == (1, 8)  # of one of the two models


def test_functions_without_rounding_room_are_drawn() -> None:
    x = torch.linspace(0, 1, 300).double()
    smooth = torch.exp(-0.5 * (x.unsqueeze(-1) - x).square()) * 1e-12  # of rank about ten
    noisy = smooth + 1e-24 * torch.randn(300, 300).double()
    known = torch.cat([torch.zeros(1), torch.ones(299)]).double()  # the first value is known
    joint = JointSum.of(torch.zeros(300).double(), known.unsqueeze(-1) * noisy * known)
    draws = joint.draws(2000)
    assert draws[:, 0].abs().max() == 0
    torch.testing.assert_close(draws[:, 1:].std(0), torch.full((299,), 1e-6).double(), rtol=0.1, atol=0.0)
    same = joint.difference(slice(150), slice(150)).draws(10)
    assert same.abs().max() == 0
