"""What models made of terms find: against closed forms, simulated truths, and the constraints that terms keep."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.mlls import VariationalELBO
from torch import Tensor

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup
from gpytorch_gam.components import Levels
from gpytorch_gam.effects import ComponentPosterior
from gpytorch_gam.mlls import CollapsedELBO
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
    tensor,
)

SITES = Levels((-2.0, 0.5, 9.0), ("Bergen", "Oslo", "Bodo"))


def fitted(
    x: Tensor, y: Tensor, *groups: ComponentGroup, noise: float = 0.09, num_steps: int = 30
) -> tuple[AdditiveGP, GaussianLikelihood]:
    """The optimal posterior in float64, hyperparameters by steps of L-BFGS on the collapsed bound."""
    model = AdditiveGP(AdditivePredictor(*groups), "coupled").double()
    likelihood = GaussianLikelihood().double()
    likelihood.noise = noise
    objective = CollapsedELBO(likelihood, model)
    parameters = [p for p in (*model.predictor.parameters(), *likelihood.parameters()) if p.requires_grad]
    if num_steps:
        optimizer = torch.optim.LBFGS(parameters, max_iter=num_steps, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            optimizer.zero_grad()
            value = -objective(x, y)
            value.backward()
            return value

        optimizer.step(loss)  # type: ignore[arg-type]
    optimum = objective.optimum(x, y)
    model.variational_strategy.set_whitened_posterior(optimum.mean, optimum.precision)
    return model.eval(), likelihood.eval()


def components(model: AdditiveGP, *columns: Tensor | float, names: list[str] | str | None = None) -> ComponentPosterior:
    """The posterior at rows given by columns, numbers standing for columns of the same."""
    size = max(len(column) for column in columns if torch.is_tensor(column))
    full = [c if torch.is_tensor(c) else torch.full((size,), float(c)) for c in columns]
    with torch.no_grad():
        return model.components(torch.stack([c.double() for c in full], -1), names)


def codes(levels: Levels) -> Tensor:
    return torch.tensor(levels.codes, dtype=torch.float64)


def gauss_legendre(low: float, high: float, num: int = 64) -> tuple[Tensor, Tensor]:
    """Nodes, and weights of the mean over the interval."""
    nodes, weights = np.polynomial.legendre.leggauss(num)
    return torch.as_tensor(low + (high - low) * (nodes + 1) / 2), torch.as_tensor(weights / 2)


# ---------------------------------------------------------------- random effects


def grouped_data() -> tuple[Tensor, Tensor, Tensor]:
    """50 groups of 1 to 200 rows with negative and fractional codes; rows in no order; the true effects."""
    sizes = torch.logspace(0, math.log10(200), 50).round().long()
    effects = 0.8 * torch.randn(50, dtype=torch.float64)
    group = torch.repeat_interleave(torch.arange(50), sizes)[torch.randperm(int(sizes.sum()))]
    level_codes = torch.arange(50, dtype=torch.float64) * 1.5 - 20
    y = 0.5 + effects[group] + 0.6 * torch.randn(len(group), dtype=torch.float64)
    return level_codes[group].unsqueeze(-1), y, effects


def test_random_effects_are_the_best_linear_predictions_at_known_variances() -> None:
    x, y, _ = grouped_data()
    levels = Levels.from_values(x[:, 0])
    model, likelihood = fitted(x, y, random_effect(0, levels, variance=0.64), constant(4.0), noise=0.36, num_steps=0)
    one_hot = (x == codes(levels)).double()
    covariance = 0.64 * one_hot @ one_hot.mT + 4.0 + 0.36 * torch.eye(len(y), dtype=torch.float64)
    blup = 0.64 * one_hot.mT @ torch.linalg.solve(covariance, y)
    parts = components(model, codes(levels), names="x0")
    torch.testing.assert_close(parts.mean, blup, rtol=1e-6, atol=1e-6)  # variances were given in float32
    error = 0.64 * torch.eye(50) - 0.64**2 * one_hot.mT @ torch.linalg.solve(covariance, one_hot)
    torch.testing.assert_close(parts.covariance(), error, rtol=1e-6, atol=1e-6)
    bound = CollapsedELBO(likelihood, model)(x, y) * len(y)
    exact = torch.distributions.MultivariateNormal(torch.zeros(len(y), dtype=torch.float64), covariance).log_prob(y)
    assert bound.item() == pytest.approx(exact.item(), rel=1e-6)  # nothing is approximated


def test_random_effects_learn_their_variance_and_shrink_small_groups() -> None:
    x, y, effects = grouped_data()
    levels = Levels.from_values(x[:, 0])
    model, likelihood = fitted(x, y, random_effect(0, levels), constant())
    variance = model.predictor.groups[0].kernel.outputscale.item()
    # Standard errors: sqrt(2 / 50) = 20% of the variance of levels, sqrt(2 / 2000) = 3% of the noise variance
    assert variance == pytest.approx(effects.var().item(), rel=0.25)
    assert likelihood.noise.item() == pytest.approx(0.36, rel=0.1)
    means = torch.stack([y[x[:, 0] == code].mean() for code in levels.codes]) - model(x).mean.new_tensor(0.5)
    found = components(model, codes(levels), names="x0").mean
    assert (found[0] / means[0]).abs() < 0.85 and found[-1] / means[-1] > 0.9


def test_an_unseen_level_of_a_random_effect_has_the_prior() -> None:
    x, y, _ = grouped_data()
    model, _ = fitted(x, y, random_effect(0, Levels.from_values(x[:, 0])), constant(), num_steps=5)
    variance = model.predictor.groups[0].kernel.outputscale.item()
    rows = torch.tensor([1000.0, 1000.0, 1001.0, -20.0])  # one unseen level twice, another, and one of the data
    parts = components(model, rows, names="x0")
    assert parts.mean[:3].tolist() == [0.0, 0.0, 0.0] and parts.mean[3] != 0
    assert parts.variance[:3].tolist() == pytest.approx([variance] * 3, rel=1e-12)
    expected = variance * torch.tensor([[1, 1, 0], [1, 1, 0], [0, 0, 1]], dtype=torch.float64)
    torch.testing.assert_close(parts.covariance()[:3, :3], expected, rtol=1e-12, atol=1e-12)
    with torch.no_grad():
        drawn = parts.sample(torch.Size([20000])).components
        whole = model(rows.double().unsqueeze(-1)).covariance_matrix
    torch.testing.assert_close(drawn[:, 0], drawn[:, 1], rtol=0, atol=2e-3 * variance)  # jitter of draws: 1e-4 each
    # Sampling error of a variance: 1% here
    torch.testing.assert_close(drawn.mT.cov()[:3, :3], expected, rtol=0.05, atol=0.05 * variance)
    assert (whole[0, 0] - whole[0, 2]).item() == pytest.approx(variance, rel=1e-6)  # the constant is common to all


def test_a_random_effect_can_be_left_out_of_a_prediction() -> None:
    x, y, _ = grouped_data()
    model, _ = fitted(x, y, random_effect(0, Levels.from_values(x[:, 0])), constant(), num_steps=5)
    rows = torch.tensor([-20.0, 40.0, 1000.0])
    mean, variance = components(model, rows, names=["constant"]).total()
    everything = components(model, rows)
    torch.testing.assert_close(mean, everything["constant"].mean)
    torch.testing.assert_close(variance, everything["constant"].variance)
    assert mean.unique().numel() == 1 and abs(mean[0].item() - 0.5) < 0.3
    torch.testing.assert_close(everything.mean.sum(0), model(rows.double().unsqueeze(-1)).mean)


def test_random_slopes_follow_their_groups() -> None:
    level = torch.arange(200) % 4
    time = torch.rand(200, dtype=torch.float64) * 2 - 1
    slopes = torch.tensor([-2.0, 1.0, 0.0, 3.0], dtype=torch.float64)
    y = slopes[level] * time + 0.1 * torch.randn(200, dtype=torch.float64)
    x = torch.stack([time, level.double()], -1)
    model, _ = fitted(x, y, random_effect(1, 4, by=0), constant(), noise=0.01, num_steps=10)
    found = components(model, torch.ones(4), torch.arange(4.0), names="x1*x0").mean
    torch.testing.assert_close(found, slopes, rtol=0, atol=0.1)  # standard error of a slope: .025


# ---------------------------------------------------------------- smooths by levels and numbers


def by_level_data() -> tuple[Tensor, Tensor]:
    x = torch.stack([torch.rand(300, dtype=torch.float64) * 6 - 3, codes(SITES)[torch.arange(300) % 3]], -1)
    sign = torch.where(x[:, 1] == -2.0, 1.0, torch.where(x[:, 1] == 0.5, -1.0, 0.0))
    return x, sign * x[:, 0].sin() + 0.3 * torch.randn(300, dtype=torch.float64)


def test_by_level_smooths_find_their_curves_and_the_null_curve_covers_zero() -> None:
    x, y = by_level_data()
    model, _ = fitted(x, y, smooth(0, x, by=1, levels=SITES), constant())
    grid = torch.linspace(-3, 3, 101, dtype=torch.float64)
    for name, code, truth in (
        ("x0|x1=Bergen", -2.0, grid.sin()),
        ("x0|x1=Oslo", 0.5, -grid.sin()),
        ("x0|x1=Bodo", 9.0, torch.zeros_like(grid)),
    ):
        parts = components(model, grid, code)
        effect = parts[name]
        assert (effect.mean - truth).square().mean().sqrt() < 0.15
        others = [other for other in parts.names if other.startswith("x0") and other != name]
        assert parts[others].mean.abs().amax() == 0 and parts[others].variance.abs().amax() == 0
    lower, upper = effect.confidence_region()
    assert ((lower <= 0) & (upper >= 0)).double().mean() >= 0.95


@pytest.mark.parametrize("with_common", [False, True])
def test_band_of_a_difference_of_levels_is_that_of_joint_samples(with_common: bool) -> None:
    x, y = by_level_data()
    common = [smooth(0, x, num_inducing=8)] if with_common else []
    groups = [smooth(0, x, by=1, levels=SITES, num_inducing=8), *common, constant()]
    model, _ = fitted(x, y, *groups, num_steps=10 if with_common else 20)
    grid = torch.linspace(-3, 3, 15, dtype=torch.float64)
    num = len(grid)
    at = torch.cat([torch.full((num,), -2.0), torch.full((num,), 0.5)])
    # Bergen is zero in the rows of Oslo, so the two are taken from different rows.
    parts = components(model, grid.repeat(2), at)[["x0|x1=Bergen", "x0|x1=Oslo"]]
    with torch.no_grad():
        full = parts.full_cross_covariance()
        first, second = full[0, :num, 0, :num], full[1, num:, 1, num:]
        separate = (first + second).diagonal()
        variance = separate - 2 * full[0, :num, 1, num:].diagonal()
        drawn = parts.sample(torch.Size([20000])).components
    difference = drawn[:, 0, :num] - drawn[:, 1, num:]
    # A variance of 20000 draws has a standard error of 1%, a mean one of .7% of the standard deviation.
    torch.testing.assert_close(difference.var(0), variance, rtol=0.05, atol=1e-6)
    error = (difference.mean(0) - (parts.mean[0, :num] - parts.mean[1, num:])) / variance.sqrt()
    assert error.abs().amax() < 0.035
    if with_common:  # both curves trade off with the common one, and are right about their difference
        assert (variance / separate).amin() < 0.8


def test_smooth_by_a_number_is_a_varying_coefficient() -> None:
    x = torch.rand(200, 2, dtype=torch.float64) * 2 - 1
    y = (1 + x[:, 0].square()) * x[:, 1] + 0.05 * torch.randn(200, dtype=torch.float64)
    model, _ = fitted(x, y, smooth(0, x, by=1), constant(), noise=0.0025, num_steps=20)
    grid = torch.linspace(-1, 1, 21)
    found = components(model, grid, 1.0, names="x0*x1").mean
    torch.testing.assert_close(found, (1 + grid.square()).double(), rtol=0, atol=0.06)


# ---------------------------------------------------------------- cyclic, linear


@pytest.mark.parametrize("start", [0.0, -5.0])
def test_cyclic_effects_close_at_a_seam_without_data(start: float) -> None:
    hour = torch.rand(200, dtype=torch.float64) * 22
    y = torch.sin(2 * math.pi * (hour - 3) / 24) + 0.5 * torch.cos(4 * math.pi * hour / 24)
    y = y + 0.1 * torch.randn(200, dtype=torch.float64)
    model, _ = fitted(hour.unsqueeze(-1), y, cyclic(0, 24.0, start=start), constant(), noise=0.01, num_steps=20)
    ends = torch.tensor([[0.0], [24.0]], dtype=torch.float64, requires_grad=True)
    mean = model.components(ends, "cyclic(x0)").mean
    (slope,) = torch.autograd.grad(mean.sum(), ends)
    step = 1e-4
    around = torch.tensor([-step, step, 24 - step, 24 + step], dtype=torch.float64)
    values = components(model, around, names="cyclic(x0)").mean
    differences = (values[1::2] - values[::2]) / (2 * step)
    assert abs(mean[0] - mean[1]).item() < 1e-5
    for slopes in (slope[:, 0], differences):
        assert abs(slopes[0] - slopes[1]).item() < 1e-5
        assert slopes[0].item() == pytest.approx(math.pi / 12 * math.cos(math.pi / 4), abs=0.05)
    nodes = torch.arange(0, 24, 0.25)
    average = components(model, nodes, names="cyclic(x0)").mean.mean()
    assert average.abs() < 1e-6  # trapezia are exact for smooth periodic functions


def test_a_period_that_float32_rounds_closes_as_well() -> None:
    model = AdditiveGP(AdditivePredictor(cyclic(0, 2 * math.pi), constant()), "coupled").double()
    x = torch.rand(50, 1, dtype=torch.float64) * 5
    optimum = CollapsedELBO(GaussianLikelihood().double(), model).optimum(x, x[:, 0].sin())
    model.variational_strategy.set_whitened_posterior(optimum.mean, optimum.precision)
    values = components(model, torch.tensor([0.0, 2 * math.pi], dtype=torch.float64), names="cyclic(x0)").mean
    assert abs(values[0] - values[1]).item() < 1e-5


def test_linear_effects_are_ridge_regression() -> None:
    x = torch.randn(40, 2, dtype=torch.float64) * torch.tensor([1.0, 30.0]) + torch.tensor([0.0, 500.0])
    y = 0.7 * x[:, 0] - 0.02 * x[:, 1] + 0.3 * torch.randn(40, dtype=torch.float64)
    model, _ = fitted(x, y, linear([0, 1], x, variance=2.0), constant(3.0), noise=0.09, num_steps=0)
    design = torch.cat([(x - x.mean(0)) / x.std(0, correction=0), torch.ones(40, 1)], -1)
    prior = torch.tensor([2.0, 2.0, 3.0], dtype=torch.float64)
    precision = design.mT @ design / 0.09 + torch.diag(1 / prior)
    coefficients = torch.linalg.solve(precision, design.mT @ y / 0.09)
    with torch.no_grad():
        parts = model.components(x)
    torch.testing.assert_close(parts.mean, (design * coefficients).mT, rtol=1e-5, atol=1e-6)  # given in float32
    expected = (design.square() * torch.linalg.inv(precision).diagonal()).mT
    torch.testing.assert_close(parts.variance, expected, rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------- categories


def category_data() -> tuple[Tensor, Tensor]:
    x = torch.stack([torch.rand(90, dtype=torch.float64), codes(SITES)[torch.arange(90) % 3]], -1)
    effect = torch.tensor([1.0, -2.0, 0.4], dtype=torch.float64)[torch.arange(90) % 3]
    return x, effect * (1 + x[:, 0]) + 0.1 * torch.randn(90, dtype=torch.float64)


@pytest.mark.parametrize("term", [factor, ordinal])
def test_effects_of_a_category_sum_to_zero_in_mean_and_draws(term: Callable[..., ComponentGroup]) -> None:
    x, y = category_data()
    model, _ = fitted(x, y, term(1, SITES), constant(10.0), noise=0.1, num_steps=3)
    parts = components(model, 0.0, codes(SITES), names="x1")
    assert parts.mean.abs().amax() > 1 and parts.mean.sum().abs() < 1e-8
    assert parts.covariance().sum(-1).abs().amax() < 1e-8
    with torch.no_grad():
        drawn = parts.sample(torch.Size([100])).components
    assert drawn.std(0).amin() > 1e-3 and drawn.sum(-1).abs().amax() < 1e-8


def test_a_factor_hardly_shrinks_differences_of_levels() -> None:
    x, y = category_data()
    model, _ = fitted(x, y, factor(1, SITES), constant(), noise=0.1, num_steps=20)
    found = components(model, 0.0, codes(SITES), names="x1").mean
    means = torch.stack([y[x[:, 1] == code].mean() for code in SITES.codes])
    torch.testing.assert_close(found, means - means.mean(), rtol=1e-3, atol=1e-3)
    assert model.predictor.groups[0].kernel.outputscale.item() == pytest.approx(25.0)


def test_ordinal_effects_are_those_of_a_dense_prior_and_smooth_over_a_level_with_few_rows() -> None:
    level = torch.cat([torch.arange(8).repeat(10), torch.tensor([8]), torch.arange(9, 13).repeat(10)])
    truth = torch.linspace(-1, 1, 13, dtype=torch.float64)
    y = truth[level] + 0.3 * torch.randn(len(level), dtype=torch.float64)
    x = level.double().unsqueeze(-1)
    model, _ = fitted(x, y, ordinal(0, 13, variance=0.5), constant(), noise=0.09, num_steps=0)
    steps = torch.arange(13, dtype=torch.float64)
    base = torch.exp(-(steps.unsqueeze(-1) - steps).abs() / 3.0)
    centred = base - base.mean(0) * base.mean(1, keepdim=True) / base.mean()
    prior = 0.5 * centred / centred.diagonal().mean()
    one_hot = torch.nn.functional.one_hot(level, 13).double()
    covariance = one_hot @ prior @ one_hot.mT + 1.0 + 0.09 * torch.eye(len(y), dtype=torch.float64)
    expected = prior @ one_hot.mT @ torch.linalg.solve(covariance, y)
    found = components(model, steps, names="x0").mean
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)  # hyperparameters were given in float32
    independent, _ = fitted(x, y, factor(0, 13), constant(), noise=0.09, num_steps=0)
    rough = components(independent, steps, names="x0").mean
    assert (found - truth).square().mean() < (rough - truth).square().mean()


def test_factor_smooth_is_the_dense_posterior_of_independent_curves() -> None:
    x, y = category_data()
    model, _ = fitted(
        x,
        y,
        factor_smooth(0, 1, SITES, low=0.0, high=1.0, num_inducing=8, kernel="rbf"),
        constant(),
        noise=0.1,
        num_steps=0,
    )

    def prior(a: Tensor, b: Tensor) -> Tensor:
        curve = torch.exp(-0.5 * ((a[:, :1] - b[:, :1].mT) / 0.25) ** 2)
        return curve * (a[:, 1:] == b[:, 1:].mT)

    covariance = prior(x, x) + 1.0 + 0.1 * torch.eye(len(y), dtype=torch.float64)
    grid = torch.cartesian_prod(torch.linspace(0, 1, 5, dtype=torch.float64), codes(SITES))
    expected = prior(grid, x) @ torch.linalg.solve(covariance, y)
    with torch.no_grad():
        found = model.components(grid, "x0|x1").mean
    torch.testing.assert_close(found, expected, rtol=0, atol=5e-3)  # eight inducing points at lengthscale 1/4


def test_an_interaction_integrates_to_zero_over_its_argument_and_sums_to_zero_over_levels() -> None:
    x, y = category_data()
    groups = [smooth(0, x, num_inducing=8), factor(1, SITES), interaction(0, 1, SITES, x, num_inducing=8), constant()]
    model, _ = fitted(x, y, *groups, noise=0.01, num_steps=10)
    low, high = x[:, 0].min().item(), x[:, 0].max().item()
    nodes, weights = gauss_legendre(low, high)
    rows = torch.cartesian_prod(nodes, codes(SITES))
    group = model.predictor.groups[2]
    with torch.no_grad():
        values = [
            group.cross_covariance(rows)[0],
            group.prior_covariance(rows).to_dense()[0],
            model.components(rows, "x0:x1").mean,
        ]
    for value in values:
        by_level = value.unflatten(-1, (len(nodes), 3))
        assert by_level.abs().amax() > 0.05
        assert by_level.sum(-1).abs().amax() < 1e-6
        assert (by_level * weights.unsqueeze(-1)).sum(-2).abs().amax() < 1e-6
    # The truth: effect * (x - 1/2) less its mean over levels
    effect = torch.tensor([1.0, -2.0, 0.4], dtype=torch.float64)
    truth = (nodes - (low + high) / 2).unsqueeze(-1) * (effect - effect.mean())
    torch.testing.assert_close(values[2].unflatten(-1, (len(nodes), 3)), truth, rtol=0, atol=0.1)


def test_strings_become_levels_of_a_column() -> None:
    site = np.array(["Oslo", "Bergen", "Oslo", "Bodo"] * 10)
    levels = Levels.from_values(site)
    x = levels.encode(site).unsqueeze(-1)
    y = torch.tensor([1.0, -1.0, 1.0, 0.0], dtype=torch.float64).repeat(10)
    model, _ = fitted(x, y, factor(0, levels), constant(), noise=0.01, num_steps=0)
    rows = levels.encode(["Bergen", "Bodo", "Oslo"]).unsqueeze(-1)
    with torch.no_grad():
        found = model.components(rows, "x0").mean
    torch.testing.assert_close(found, torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64), rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    ("group", "name"),
    [
        (factor(1, SITES, name="site"), "site"),
        (ordinal(1, SITES, name="site"), "site"),
        (interaction(0, 1, SITES, low=0.0, high=1.0), "x0:x1"),
        (smooth(0, low=0.0, high=1.0, by=1, levels=SITES), "x0|x1="),
        (linear(0, by=1, levels=SITES), "linear(x0)|x1="),
        (cyclic(0, 1.0, by=1, levels=SITES), "cyclic(x0)|x1="),
    ],
)
def test_unseen_levels_of_fixed_terms_are_errors_that_name_column_and_level(group: ComponentGroup, name: str) -> None:
    model = AdditiveGP(AdditivePredictor(group, constant()), "mean_field").double().eval()
    x, _ = category_data()
    assert model(x).mean.shape == (90,)
    x[:5, 1] = 7.0
    for call in (model, model.components, model.predict, lambda rows: model(rows, prior=True)):
        with pytest.raises(ValueError, match=r"level 7 in .* of column 1") as error:
            call(x)
        assert name in str(error.value) and "Bergen" in str(error.value)


def test_an_unseen_level_of_a_factor_smooth_is_a_new_curve_of_the_prior() -> None:
    x, y = category_data()
    model, _ = fitted(x, y, factor_smooth(0, 1, SITES, x, num_inducing=6, kernel="rbf"), constant(), num_steps=3)
    parts = components(model, torch.tensor([0.1, 0.2, 0.2]), torch.tensor([7.0, 7.0, 8.0]), names="x0|x1")
    kernel = model.predictor.groups[0].kernel
    variance, lengthscale = kernel.outputscale.item(), kernel.base_kernel.kernels[0].lengthscale.item()
    assert parts.mean.tolist() == [0.0, 0.0, 0.0]
    near = math.exp(-0.5 * (0.1 / lengthscale) ** 2)
    expected = variance * torch.tensor([[1, near, 0], [near, 1, 0], [0, 0, 1]], dtype=torch.float64)
    torch.testing.assert_close(parts.covariance(), expected, rtol=1e-5, atol=1e-5)  # .1 and .2 are float32


def test_training_leaves_the_points_of_categories_bitwise_as_they_are() -> None:
    x, y = category_data()
    x, y = x[:12].float(), y[:12].float()
    levels = {"levels": SITES, "low": 0.0, "high": 1.0, "num_inducing": 2}
    predictor = AdditivePredictor(
        random_effect(1, SITES, name="random"),
        factor(1, SITES, name="factor"),
        ordinal(1, SITES, name="ordinal"),
        factor_smooth(0, 1, **levels),  # type: ignore[arg-type]
        interaction(0, 1, **levels),  # type: ignore[arg-type]
        smooth(0, by=1, **levels),  # type: ignore[arg-type]
    )
    model, likelihood = AdditiveGP(predictor, "mean_field"), GaussianLikelihood()
    before = {name: buffer.clone() for name, buffer in model.predictor.named_buffers()}
    hyperparameters = {name: p.detach().clone() for name, p in model.predictor.named_parameters()}
    mll = VariationalELBO(likelihood, model, num_data=len(y))
    optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=0.01)
    for step in range(1000):
        if step % 20 == 0:  # a gradient takes a hundred times as long as a step
            optimizer.zero_grad()
            (-mll(model(x), y)).backward()
        optimizer.step()
    assert sum(name.endswith(("inducing_points", "points", "levels")) for name in before) >= 6 + 4
    for name, buffer in model.predictor.named_buffers():
        torch.testing.assert_close(buffer, before[name], rtol=0, atol=0, equal_nan=True, msg=name)
    for name, parameter in model.predictor.named_parameters():
        assert torch.equal(parameter, hyperparameters[name]) == (not parameter.requires_grad), name


# ---------------------------------------------------------------- several columns


@pytest.mark.parametrize("kernel", ["rbf", "matern52"])
def test_a_pure_interaction_integrates_to_zero_in_each_argument(kernel: str) -> None:
    x = torch.rand(120, 2, dtype=torch.float64) * torch.tensor([1.0, 10.0])
    y = torch.sin(6 * x[:, 0]) * (x[:, 1] - 5) / 3 + x[:, 0] + 0.1 * torch.randn(120, dtype=torch.float64)
    group = tensor((0, 1), low=[0, 0], high=[1, 10], num_inducing=5, kernel=kernel)  # type: ignore[arg-type]
    main = smooth([0, 1], low=[0, 0], high=[1, 10], num_inducing=6, kernel=kernel)  # type: ignore[arg-type]
    model, _ = fitted(x, y, group, main, constant(), noise=0.01, num_steps=8)
    first, weights = gauss_legendre(0, 1, 200)
    second = 10 * first
    other = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    tolerance = 1e-6 if kernel == "rbf" else 5e-6  # quadrature of a kernel with a kink in a derivative, 200 nodes
    for rows in (torch.cartesian_prod(10 * other, first).flip(-1), torch.cartesian_prod(other, second)):
        with torch.no_grad():
            for value in (group.cross_covariance(rows)[0], model.components(rows, "x0:x1").mean):
                lines = value.unflatten(-1, (3, 200))
                assert lines.abs().amax() > 0.05
                assert (lines * weights).sum(-1).abs().amax() < tolerance


def test_a_full_tensor_smooth_contains_main_effects_and_a_pure_one_does_not() -> None:
    x = torch.rand(150, 2, dtype=torch.float64)
    truth = torch.sin(5 * x[:, 0]) + x[:, 1].square()
    y = truth + 0.05 * torch.randn(150, dtype=torch.float64)
    errors = {}
    for pure in (True, False):
        group = tensor((0, 1), low=0.0, high=1.0, num_inducing=6, centred=pure)
        model, _ = fitted(x, y, group, constant(), noise=0.0025, num_steps=8)
        with torch.no_grad():
            errors[pure] = (model(x).mean - truth).square().mean().sqrt().item()
    assert errors[False] < 0.05 and errors[True] > 0.2


@pytest.mark.parametrize("kernel", ["matern32", "rbf"])
def test_a_spatial_effect_has_mean_zero_over_the_rows_and_finds_a_bump(kernel: str) -> None:
    x = torch.rand(250, 2, dtype=torch.float64) * 4
    bump = 2 * torch.exp(-(x - 2).square().sum(-1))
    y = 1 + bump + 0.2 * torch.randn(250, dtype=torch.float64)
    group = spatial((0, 1), x, num_inducing=40, kernel=kernel)  # type: ignore[arg-type]
    model, _ = fitted(x, y, group, constant(), noise=0.04, num_steps=12)
    reference = group.kernel.base_kernel.points
    with torch.no_grad():
        assert reference.shape == (250, 2)
        assert group.cross_covariance(reference).mean(-1).abs().amax() < 1e-8
        parts = model.components(reference, "x0:x1")
        assert parts.mean.mean().abs() < 1e-8 and parts.covariance().mean((-2, -1)).abs().item() < 1e-8
        assert (parts.mean - (bump - bump.mean())).square().mean().sqrt() < 0.12
        assert group.prior_variance(reference).mean().item() == pytest.approx(group.kernel.outputscale.item(), rel=1e-8)


@pytest.mark.parametrize("tail", ["outlier", "outliers on both sides", "log-normal"])
def test_a_long_tail_of_a_column_costs_its_bulk_nothing(tail: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x, noise = torch.rand(300, 1, generator=generator).double(), torch.randn(300, generator=generator).double()
    truth = torch.sin(6 * x[:, 0])
    if tail == "log-normal":
        x = torch.exp(1.5 * torch.special.ndtri(x.clamp(1e-6, 1 - 1e-6)))
    else:
        x[0] = 20.0
        x[1] = x[1] if tail == "outlier" else -50.0
    model, likelihood = fitted(x, truth + 0.2 * noise, smooth(0, x, kernel="rbf"), constant(), noise=0.5)
    prediction = model.predict(x)
    error = (prediction.mean - truth)[2:]
    # mgcv: .037 with the outlier; .350 (thin plates) and .076 (knots at quantiles) for a log-normal column
    assert error.square().mean().sqrt() < (0.114 if tail == "log-normal" else 0.055)
    assert likelihood.noise.sqrt().item() == pytest.approx(0.2, rel=0.3 if tail == "log-normal" else 0.1)
    covered = (error.abs() < 1.96 * prediction.variance[2:].sqrt()).double().mean()
    assert covered > (0.6 if tail == "log-normal" else 0.9)
    assert tail == "log-normal" or components(model, x[2:, 0], names="x0").stddev.max() < 0.2
