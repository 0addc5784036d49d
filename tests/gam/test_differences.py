"""Differences of effects between values are those of the joint posterior, and effects are had at any values."""

from __future__ import annotations

import functools

import numpy as np
import pandas as pd
import pytest
import torch

from gpytorch_gam.gam import GAMRegressor, f, s

from .data import effects, fitted, responses, table


def dense_moments(gam: GAMRegressor, label: str, x: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of the effect of a term over rows, by dense algebra for each model of the mixture."""
    found, components = gam._fitted, gam._fitted.part(label).components
    means, squares = [], []
    for model in found.mixture.models:
        strategy = model.variational_strategy
        posterior = strategy.variational_distribution
        excess = posterior.covariance_matrix.double() - torch.eye(len(posterior.mean))
        prior, weights = torch.zeros(len(x), len(x)), []
        for group in strategy.predictor.groups:
            cross = group.cross_covariance(x).double()  # (C, M, n)
            own = torch.tensor([name in components for name in group.names], dtype=torch.float64)
            cholesky = torch.block_diag(*strategy.inducing_cholesky(group).double())
            stacked = (own[:, None, None] * cross).flatten(0, 1)
            weights.append(torch.linalg.solve_triangular(cholesky, stacked, upper=False))
            prior = prior + (own[:, None, None] * group.prior_covariance(x).to_dense().double()).sum(0)
        design = torch.cat(weights).T  # (n, M in all)
        mean = design @ posterior.mean.double()
        means.append(mean)
        squares.append(prior + design @ excess @ design.T + torch.outer(mean, mean))
    share = found.mixture.weights
    mean = sum(weight * each for weight, each in zip(share, means, strict=True))
    covariance = sum(weight * each for weight, each in zip(share, squares, strict=True)) - torch.outer(mean, mean)
    scale = found.scale_of(0)
    return scale * mean.detach().numpy(), scale**2 * covariance.detach().numpy()


@pytest.mark.parametrize(
    ("label", "first", "second"),
    [
        ("s(age)", {"age": 30.0}, {"age": 62.0}),
        ("s(hour, period=24)", {"hour": 8.0}, {"hour": 18.0}),
        ("f(site)", {"site": "Oslo"}, {"site": "Voss"}),
        ("re(subject)", {"subject": "p1"}, {"subject": "new"}),
        ("ti(age, hour)", {"age": 30.0, "hour": 8.0}, {"age": 30.0, "hour": 18.0}),
    ],
)
def test_differences_have_the_moments_of_a_dense_posterior(label: str, first: dict, second: dict) -> None:
    gam = fitted()
    assert len(gam._fitted.mixture) > 1
    rows = pd.concat([table().head(1).assign(**first), table().head(1).assign(**second)])
    mean, covariance = dense_moments(gam, label, gam.model_inputs(rows))
    found = gam.difference(label, first, second, level=0.9)
    assert found.shape == (1, 4)
    expected = np.sqrt(covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1])
    assert found["mean"].item() == pytest.approx(mean[0] - mean[1], abs=1e-7)
    assert found["std"].item() == pytest.approx(expected, rel=1e-5)
    assert found["upper"].item() == pytest.approx(mean[0] - mean[1] + 1.6448536 * expected, rel=1e-5, abs=1e-7)
    if len(first) == 1:
        pd.testing.assert_frame_equal(gam.difference(label, *first.values(), *second.values(), level=0.9), found)


def test_columns_that_are_not_named_take_their_grid() -> None:
    found = fitted().difference("ti(age, hour)", {"age": 30}, {"age": 62}, num=7, simultaneous=True)
    assert found.hour.between(0, 24).all() and len(found) == 7
    assert (found.upper_all > found.upper).all()


@functools.cache
def counts() -> GAMRegressor:
    x = table()
    y = np.random.default_rng(3).poisson(3 * np.exp(effects(x)["hour"]))
    return GAMRegressor([s("hour", period=24, k=6), f("site")], family="poisson", tolerance=0.5).fit(x, y)


def test_ratios_are_those_of_means() -> None:
    gam, rows = counts(), table().head(2).assign(hour=[8, 18], site="Oslo")
    ratio = gam.difference("s(hour, period=24)", 8, 18, scale="ratio")
    assert list(ratio) == ["mean", "lower", "upper"]
    means = gam.predict_link(rows)
    assert ratio["mean"].item() == pytest.approx(np.exp(means[0] - means[1]), rel=1e-6)
    draws = gam.draw_functions(4000, 0).mean(rows)
    np.testing.assert_allclose(
        ratio[["lower", "upper"]], [np.quantile(draws[:, 0] / draws[:, 1], [0.025, 0.975])], 0.02
    )
    with pytest.raises(ValueError, match=r"scale must be 'link' for s.age.: .*draw_functions"):
        fitted().difference("s(age)", 30, 60, scale="ratio")


@pytest.mark.parametrize(
    ("label", "first", "second", "error", "message"),
    [
        ("ti(age, hour)", 8, 18, TypeError, "first must name columns of ti.age, hour., such as {'age': '...', 'hour'"),
        ("ti(age, hour)", {"age": 8}, {"hour": 18}, ValueError, "first names .'age'., but second .'hour'."),
        ("s(age)", {"hour": 8}, {"hour": 18}, ValueError, "first names .'hour'., which are no columns of s.age."),
        ("s(age)", [8, 9], 18, TypeError, "first must be one value, or one of each column"),
        ("s(age)", "a", 18, TypeError, "column 'age'"),
        ("f(site)", "Oslo", "Hamar", ValueError, "column 'site' has .'Hamar'., which the fit has not seen"),
    ],
)
def test_differences_that_cannot_be_meant(label: str, first: object, second: object, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        fitted().difference(label, first, second)


def test_terms_without_curves_by_levels_say_how_values_are_compared() -> None:
    with pytest.raises(ValueError, match=r"no curves by levels to subtract: gam.difference.'s.age.', first, second."):
        fitted().plot_difference("s(age)", 30, 60)


def test_effects_are_had_at_values() -> None:
    gam, x = fitted(), table()
    found = gam.effect("s(hour, period=24)", at=[8, 18], simultaneous=True)
    rows = x.head(2).assign(hour=[8, 18])
    terms = gam.predict_terms(rows)["s(hour, period=24)"]
    np.testing.assert_allclose(found[["mean", "std", "lower", "upper"]], terms, atol=1e-9)
    assert found.hour.tolist() == [8, 18]
    assert gam.effect("f(site)", at="Oslo").site.tolist() == ["Oslo"]
    surface = gam.predict_terms(x.head(3))["ti(age, hour)"]
    for at in (x.head(3), {"age": x.age.head(3), "hour": x.hour.head(3).tolist()}):
        np.testing.assert_allclose(gam.effect("ti(age, hour)", at=at)["mean"], surface["mean"], atol=1e-9)
    slice_ = gam.effect("ti(age, hour)", at={"hour": 8.0}, num=5)
    assert slice_.age.is_monotonic_increasing and (slice_.hour == 8).all() and len(slice_) == 5


def test_effects_by_levels_and_of_dates_are_had_at_values() -> None:
    x = table()
    gam = GAMRegressor([s("age", by="treated", k=4), f("treated"), s("day", k=4)], tolerance=1.0)
    gam.fit(x, responses(x))
    found = gam.effect("s(age, by=treated)", at=[30, 40])
    assert found.treated.tolist() == [False, True, False, True] and found.age.tolist() == [30, 30, 40, 40]
    day = gam.effect("s(day)", at=["2020-03-01", "2021-03-01"])
    np.testing.assert_allclose(
        day["mean"], gam.predict_terms(x.head(2).assign(day=pd.to_datetime(day.day)))["s(day)"]["mean"], atol=1e-9
    )
    assert gam.difference("s(day)", "2020-03-01", pd.Timestamp("2021-03-01"))["mean"].item() == pytest.approx(
        day["mean"][0] - day["mean"][1], abs=1e-9
    )


@pytest.mark.parametrize(
    ("label", "options", "error", "message"),
    [
        ("s(age)", {"num": [8, 18]}, TypeError, "num must be a number of values, got .*: at= takes the values"),
        ("s(age)", {"at": {"hour": [8]}}, ValueError, "at names .'hour'., which are no columns of s.age."),
        ("ti(age, hour)", {"at": [8, 18]}, TypeError, "at must name columns of ti.age, hour., such as at={'age'"),
        ("ti(age, hour)", {"at": {"age": [1], "hour": [2, 3]}}, ValueError, "at has columns of different lengths"),
        ("s(age)", {"at": []}, ValueError, "at has no values of the columns of s.age."),
        ("s(age)", {"at": [np.nan]}, ValueError, "column 'age' has NaN in 1 of 1 rows"),
        ("f(site)", {"at": "Hamar"}, ValueError, "which the fit has not seen"),
    ],
)
def test_values_of_effects_that_cannot_be_meant(label: str, options: dict, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        fitted().effect(label, **options)
