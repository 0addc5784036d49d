"""Terms of independent levels, which are blocks of their own in prior and posterior, against dense matrices."""

from __future__ import annotations

import gpytorch
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup
from gpytorch_gam.kernels import LevelKernel
from gpytorch_gam.models.additive_gp import FAMILIES
from gpytorch_gam.optim import NaturalGradient
from gpytorch_gam.settings import fused_projection
from gpytorch_gam.terms import constant, factor_smooth, random_effect, smooth, tensor
from gpytorch_gam.training import polish
from gpytorch_gam.variational import AdditiveVariationalStrategy, BlockLowRankPrecisionVariationalDistribution
from tests.problems import fit_by_bins

pytestmark = pytest.mark.projection

LEVELS = [7.0, -2.0, 0.5, 3.0, 11.0, 4.0]  # in no order
NOISE = 0.3


def predictor() -> AdditivePredictor:
    size = torch.Size([2])
    two = ScaleKernel(LevelKernel(), batch_shape=size)
    two.outputscale = torch.tensor([0.5, 2.0])
    codes = torch.tensor([LEVELS[:4], LEVELS[2:]]).unsqueeze(-1)
    return AdditivePredictor(
        smooth(0, low=0.0, high=1.0, num_inducing=6),
        random_effect(1, LEVELS, variance=0.7, missing="marginal"),
        random_effect(1, LEVELS, variance=0.4, by=0),
        ComponentGroup(two, [[1], [1]], codes, names=["first", "second"]),
        factor_smooth(0, 1, LEVELS[:5], low=0.0, high=1.0, num_inducing=3, centred=True),
        constant(),
    )


def data(n: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    codes = torch.tensor([*LEVELS, 99.0])  # the last one is none of them
    x = torch.stack([torch.rand(n), codes[torch.arange(n) % len(codes)]], dim=-1).double()
    return x, torch.sin(6 * x[:, 0]) + 0.1 * x[:, 1] + NOISE * torch.randn(n).double()


def make_model(family: str, **options: int) -> AdditiveGP:
    model = AdditiveGP(predictor(), family, **options).double()
    for name, parameter in model.named_parameters():
        if "_variational_distribution" in name:
            parameter.data.add_(0.3 * torch.rand_like(parameter))
    model.variational_strategy._mark_initialized()
    return model


def likelihood() -> GaussianLikelihood:
    likelihood = GaussianLikelihood().double()
    likelihood.noise = NOISE**2
    return likelihood


def test_independent_levels_are_blocks() -> None:
    terms = predictor()
    assert terms.group_shapes == ((1, 6), (6, 1), (6, 1), (8, 1), (5, 3), (1, 1))
    assert terms.num_inducing_per_component == (6, 6, 6, 4, 4, 15, 1)
    assert terms.num_inducing_total == sum(count * size for count, size in terms.group_shapes) == 42


def test_levels_that_depend_on_each_other_are_not() -> None:
    surface = tensor((0, 1), low=0.0, high=1.0, num_inducing=2)
    double = ComponentGroup(LevelKernel(), [[0]], torch.tensor([[1.0], [1.0], [2.0]]))
    crossed = ComponentGroup(  # the other factor reads the column of the levels
        LevelKernel(active_dims=(1,)) * RBFKernel(),
        [[0, 1]],
        torch.cartesian_prod(torch.arange(2.0), torch.arange(2.0)),
    )
    ragged = ComponentGroup(
        LevelKernel(active_dims=(1,)) * RBFKernel(active_dims=(0,)),
        [[0, 1]],
        torch.tensor([[0.0, 1.0], [0.5, 1.0], [0.0, 2.0], [0.7, 2.0]]),
    )
    for group in (surface, double, crossed, ragged):
        assert group.block_shape == (1, group.num_inducing)
        assert group.level_rows(torch.rand(3, 2)) is None


def test_lookups_are_the_kernel_matrix() -> None:
    x, _ = data()
    x[3, 1] = torch.nan
    for group in predictor().double().groups:
        rows = group.level_rows(x)
        if rows is None:
            assert group.names in (("x0",), ("constant",))
            continue
        covariance = group.evaluate_kernel(group.inducing_points, group.select(x))
        multiplier = group.multiplier(x)
        expected = covariance if multiplier is None else covariance * multiplier.unsqueeze(-2)
        found = rows.matrix(group.block_shape[0] // group.num_components)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
        assert torch.equal(group.cross_covariance(x), found)
        blocks = group.inducing_covariance().split(group.block_shape[0] // group.num_components)
        dense = torch.stack([torch.block_diag(*part) for part in blocks])
        torch.testing.assert_close(dense, group.evaluate_kernel(group.inducing_points), rtol=1e-12, atol=1e-14)
        assert (rows.covariance == 0).any() and (rows.covariance != 0).any()


def test_batches_of_levels_have_places_of_their_own() -> None:
    codes = torch.tensor([[[[1.0], [2.0]]], [[[2.0], [5.0]]]])  # 2 x 1 x 2 x 1
    kernel = ScaleKernel(LevelKernel(), batch_shape=torch.Size([2, 1]))
    group = ComponentGroup(kernel, [[0]], codes)
    for x in (torch.tensor([[5.0], [1.0], [2.0]]), torch.rand(3, 1, 4, 1).mul(6).round()):
        expected = group.kernel(group.inducing_points, group.select(x)).to_dense()
        torch.testing.assert_close(group.cross_covariance(x), expected)
    assert group.inducing_covariance().shape == (2, 2, 1, 1)


@pytest.mark.parametrize("family", FAMILIES)
def test_lookups_agree_with_the_plain_path(family: str) -> None:
    model, (x, y) = make_model(family), data()
    results = []
    for setting in ("auto", "off"):
        with fused_projection(setting):
            output = model.train()(x)
            loss = -gpytorch.mlls.VariationalELBO(likelihood(), model, len(x))(output, y)
            gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
            prediction, parts = model.predict(x), model.components(x)
        found = [output.mean, output.variance, loss, *(each for each in gradients if each is not None)]
        found += [prediction.mean, prediction.variance, prediction.component_mean, prediction.component_variance]
        found += [parts.covariance(), parts.cross_covariance(), parts.full_cross_covariance()]
        results.append(found)
    for looked_up, plain in zip(*results, strict=True):
        torch.testing.assert_close(looked_up, plain, rtol=1e-9, atol=1e-10)


def dense_cross_covariance(model: AdditiveGP, x: torch.Tensor) -> torch.Tensor:
    """Of the inducing variables with the components, from the kernels alone: ``(Q, n)``."""
    parts = []
    for group in model.predictor.groups:
        covariance = group.evaluate_kernel(group.inducing_points, group.select(x))
        multiplier = group.multiplier(x)
        parts.append((covariance if multiplier is None else covariance * multiplier.unsqueeze(-2)).flatten(0, 1))
    return torch.cat(parts)


def dense_covariance(model: AdditiveGP) -> torch.Tensor:
    blocks = []
    for group in model.predictor.groups:
        covariance = group.evaluate_kernel(group.inducing_points)
        jitter = 0.0 if group.exact else 1e-6 * covariance.diagonal(dim1=-2, dim2=-1).mean(-1)
        blocks.extend(covariance + torch.as_tensor(jitter)[..., None, None] * torch.eye(covariance.shape[-1]))
    return torch.block_diag(*blocks)


@pytest.mark.parametrize("family", ["block_low_rank", "low_rank", "coupled"])
@torch.no_grad()
def test_polish_finds_the_exact_posterior(family: str) -> None:
    rank = {"block_low_rank": 36, "low_rank": 42}.get(family)
    model, (x, y) = make_model(family, **({} if rank is None else {"rank": rank})), data()
    polish(model, likelihood(), [(x, y)])
    cross, covariance = dense_cross_covariance(model, x), dense_covariance(model)
    precision = torch.linalg.inv(covariance) + torch.linalg.solve(covariance, cross) @ torch.linalg.solve(
        covariance, cross
    ).mT / (NOISE**2)
    mean = torch.linalg.solve(precision, torch.linalg.solve(covariance, cross) @ y) / NOISE**2
    features = torch.linalg.solve(covariance, cross)
    prior = sum(group.prior_variance(x).sum(-2) for group in model.predictor.groups)
    removed = (features * cross).sum(0) - (features * torch.linalg.solve(precision, features)).sum(0)
    found = model.eval().predict(x)
    torch.testing.assert_close(found.mean, features.mT @ mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.variance, prior - removed, rtol=2e-3, atol=1e-5)


def test_blocks_of_levels_lose_nothing_against_blocks_of_components() -> None:
    # A random effect alone: what the data say of its levels is diagonal.
    x, y = data()
    x, y = x[x[:, 1] != 99.0], y[x[:, 1] != 99.0]
    model = AdditiveGP(AdditivePredictor(random_effect(1, LEVELS)), "mean_field").double()
    history = polish(model, likelihood(), [(x, y)])
    covariance = (x[:, 1, None] == x[:, 1]).double() + NOISE**2 * torch.eye(len(y))
    exact = gpytorch.distributions.MultivariateNormal(torch.zeros_like(y), covariance)
    assert history[-1] == pytest.approx(exact.log_prob(y).item(), abs=1e-6)


def test_natural_gradients_find_the_same_posterior() -> None:
    x, y = data()
    x, y = x[x[:, 1] != 99.0], y[x[:, 1] != 99.0]
    stepped, polished = make_model("block_low_rank", rank=36), make_model("block_low_rank", rank=36)
    natural = NaturalGradient(stepped, num_data=len(y))
    mll = gpytorch.mlls.VariationalELBO(likelihood(), stepped.train(), num_data=len(y))
    for _ in range(2):
        (-mll(stepped(x), y)).backward()
        natural.step()
    natural.remove()
    polish(polished, likelihood(), [(x, y)])
    torch.testing.assert_close(stepped.predict(x).variance, polished.predict(x).variance, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(stepped.predict(x).mean, polished.predict(x).mean, rtol=1e-3, atol=1e-4)


def test_a_discretised_fit_has_the_bound_of_its_posterior() -> None:
    x, y = data()
    x, y = x[x[:, 1] != 99.0], y[x[:, 1] != 99.0]
    model = AdditiveGP(AdditivePredictor(smooth(0, low=0.0, high=1.0), random_effect(1, LEVELS), constant())).double()
    history = fit_by_bins(model, fitted := likelihood(), [(x, y)])
    assert polish(model, fitted, [(x, y)])[-1] == pytest.approx(history[-1], abs=1e-2)


def test_draws_have_the_posterior_covariance() -> None:
    model = AdditiveGP(AdditivePredictor(random_effect(1, LEVELS), constant()), "block_low_rank", rank=3).double()
    x, y = data(14)
    polish(model, likelihood(), [(x, y)])
    parts = model.eval().components(x)
    drawn = parts.sample(torch.Size([20000])).components.flatten(1)
    expected = parts.full_cross_covariance().flatten(2).flatten(0, 1)
    torch.testing.assert_close(torch.cov(drawn.mT), expected, rtol=0.1, atol=0.02)


def test_blocks_of_components_are_refused_where_levels_are_independent() -> None:
    terms = predictor()
    with pytest.raises(ValueError, match=r"one a level.*use predictor\.group_shapes"):
        AdditiveVariationalStrategy(
            None,
            terms,
            BlockLowRankPrecisionVariationalDistribution(
                [(1, size) for size in terms.num_inducing_per_component], rank=2
            ),
        )
