"""Moments of a block of rows of all groups at a time, against dense algebra."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gpytorch_gam import AdditiveGP, AdditivePredictor
from gpytorch_gam.components import Levels, kernel_in_blocks
from gpytorch_gam.kernels import Empirical
from gpytorch_gam.terms import constant, cyclic, factor, factor_smooth, linear, random_effect, smooth, tensor
from gpytorch_gam.variational import _inducing_projection, _predictor_in_blocks
from tests.problems import unknown_factors

pytestmark = pytest.mark.projection

NUM_ROWS, NUM_LEVELS = 53, 7


def make_inputs() -> Tensor:
    """Two numbers with holes, one with few values, and levels; with ties."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(NUM_ROWS, 5, dtype=torch.float64, generator=generator)
    x[:, 2] = torch.randint(6, (NUM_ROWS,), generator=generator) / 6
    x[:, 3] = torch.randint(NUM_LEVELS, (NUM_ROWS,), generator=generator)
    x[[3, 20], 0] = torch.nan
    x[[20, 40], 1] = torch.nan
    x[30:33] = x[5]
    return x


def make_model(family: str, num_predictors: int, curves: bool = True) -> AdditiveGP:
    span = {"low": 0.0, "high": 1.0}
    levels = Levels(range(NUM_LEVELS))
    atoms = torch.linspace(0, 1, 9, dtype=torch.float64).square()
    groups = [
        smooth([0, 1], **span, kernel="matern32", num_inducing=5, measure=Empirical(atoms), missing="marginal"),
        tensor([0, 2], **span, num_inducing=3, missing="marginal"),
        smooth(4, **span, kernel="matern52", num_inducing=5, by=3, levels=levels, measure=Empirical(atoms)),
        smooth(2, **span, num_inducing=4, by=4, names=["varying"]),
        cyclic(2, period=1.0, num_inducing=5),
        linear(2, names=["line"]),
        factor(3, levels),
        constant(),
    ]
    own = [random_effect(3, levels, name="re"), factor_smooth(4, 3, levels, **span, num_inducing=3)]
    second = [smooth(0, **span, num_inducing=4, predictor=1, missing="marginal", names=["second"])]
    second += [random_effect(3, levels, predictor=1, name="re2")]
    chosen = (groups if curves else []) + own + (second if num_predictors > 1 else [])
    model = AdditiveGP(AdditivePredictor(*chosen), family, 4 if "low_rank" in family else None).double()
    model.variational_strategy._initialize_once()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.variational_strategy._variational_distribution.named_parameters():
            noise = 0.3 * torch.randn(parameter.shape, dtype=parameter.dtype, generator=generator)
            parameter.copy_(parameter + noise if name == "chol_variational_covar" else noise + (name[0] == "_") * 0.7)
    return model.eval()


@torch.no_grad()
def dense_moments(model: AdditiveGP, x: Tensor) -> tuple[Tensor, Tensor]:
    """Means and covariances of the predictors in each row, from features and the dense covariance of their weights."""
    strategy, predictor = model.variational_strategy, model.predictor
    features, posterior = strategy.features(x), strategy.variational_distribution
    excess = posterior.covariance_matrix.double() - torch.eye(len(features), dtype=torch.float64)
    sizes = [group.num_components * group.num_inducing for group in predictor.groups]
    owners = torch.tensor([group.predictor_index for group in predictor.groups])
    owner = owners.repeat_interleave(torch.tensor(sizes))
    factors = torch.stack(unknown_factors(model)).split([group.block_shape[0] for group in predictor.groups])
    prior = [group.observed_variance(x).sum(0) for group in predictor.groups]
    for place, group in enumerate(predictor.groups):
        if group.missing == "marginal":
            prior[place] = prior[place] + group.missing_variance(x, factors[place]).sum(0)
    own = [features * (owner == index).unsqueeze(-1) for index in range(predictor.num_predictors)]
    mean = torch.stack([part.mT @ posterior.mean.double() for part in own], -1)
    rows = torch.stack(own, -2)  # (Q, P, n)
    covariance = torch.einsum("apn,ab,bqn->npq", rows, excess, rows)
    variances = [sum(part for part, place in zip(prior, owners, strict=True) if place == p) for p in owners.unique()]
    return mean, covariance + torch.diag_embed(torch.stack(variances, -1))


@pytest.mark.parametrize(("most_dense", "times_more_rows"), [(2, 8), (2, 0), (128, 0)])
@pytest.mark.parametrize("num_predictors", [1, 2])
@pytest.mark.parametrize("family", ["coupled", "block_low_rank", "low_rank"])
def test_moments_in_blocks_are_those_of_dense_algebra(
    family: str, num_predictors: int, most_dense: int, times_more_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_in_blocks, "_MOST_DENSE_LEVELS", most_dense)
    monkeypatch.setattr(_inducing_projection, "_BLOCK_NUMBERS", 1)
    monkeypatch.setattr(_inducing_projection, "_LEAST_BLOCK", 11)
    monkeypatch.setattr(_inducing_projection, "_TIMES_MORE_ROWS", times_more_rows)
    monkeypatch.setattr(_predictor_in_blocks, "_LEAST_COLUMNS", 2)
    model, x = make_model(family, num_predictors), make_inputs()
    mean, covariance = dense_moments(model, x)
    moments = model.predict(x, components=False).moments
    torch.testing.assert_close(moments.mean, mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(moments.covariance, covariance, rtol=1e-8, atol=1e-8)


def test_a_predictor_of_levels_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_in_blocks, "_MOST_DENSE_LEVELS", 2)
    model, x = make_model("coupled", 1, curves=False), make_inputs()
    mean, covariance = dense_moments(model, x)
    moments = model.predict(x, components=False).moments
    torch.testing.assert_close(moments.mean, mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(moments.covariance, covariance, rtol=1e-8, atol=1e-8)
