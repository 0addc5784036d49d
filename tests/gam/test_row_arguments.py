"""Offsets, exposures and trials that a fit had are not forgotten when its responses are scored."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gpytorch_gam.gam import GAMClassifier, GAMRegressor, compare


@functools.cache
def data() -> pd.DataFrame:
    random = np.random.default_rng(0)
    x = pd.DataFrame({"a": random.uniform(-1, 1, 150), "minutes": random.uniform(10, 60, 150)})
    x["n"] = random.integers(2, 9, len(x))
    return x.assign(
        count=random.poisson(x.minutes * np.exp(x.a - 2)), hits=random.binomial(x.n, 1 / (1 + np.exp(-x.a)))
    )


@functools.cache
def by_name() -> GAMRegressor:
    return GAMRegressor("count ~ linear(a)", family="poisson", tolerance=0.5).fit(data(), exposure="minutes")


@functools.cache
def by_values() -> GAMRegressor:
    return GAMRegressor("count ~ linear(a)", family="poisson", tolerance=0.5).fit(data(), exposure=data().minutes)


SCORED = ["score", "log_density", "log_score", "leave_one_out", "quantile_residuals", "check"]


@pytest.mark.parametrize("method", SCORED)
def test_responses_are_not_scored_without_the_exposure_of_the_fit(method: str) -> None:
    with pytest.raises(ValueError, match=r"the fit had exposure, and these rows have none.*pass exposure=\.\.\."):
        getattr(by_values(), method)(data())
    with pytest.raises(ValueError, match="the fit had exposure='minutes', and these rows have none"):
        getattr(by_name(), method)(data().drop(columns="minutes"))
    taken, given = (getattr(by_name(), method)(data(), **each) for each in ({}, {"exposure": data().minutes}))
    if isinstance(taken, float | np.ndarray):
        np.testing.assert_array_equal(taken, given)


def test_what_is_meant_can_be_said() -> None:
    assert by_values().log_score(data(), exposure=1) < by_values().log_score(data(), exposure="minutes") - 1
    with pytest.raises(ValueError, match="the fit had exposure"):
        compare(by_values(), by_name(), X=data())
    with pytest.raises(ValueError, match="the fit had exposure"):
        by_values().plot_term("linear(a)", data())
    neutral = GAMRegressor("count ~ linear(a)", family="poisson", tolerance=0.5).fit(data(), exposure=1, offset=0)
    assert neutral.score(data()) == neutral.score(data(), exposure=1.0)


def test_models_are_compared_with_the_columns_that_each_was_fitted_with() -> None:
    x = data()[["a", "minutes", "count"]]
    every = GAMRegressor(family="poisson", tolerance=0.5, interactions=0).fit(x, "count", exposure="minutes")
    assert every.terms_ == ["s(a)"]
    found = compare(by_name(), every, X=x, y="count").table
    assert found.elpd_diff.abs().max() < 10


def test_predictions_take_the_column_of_the_fit_and_are_per_unit_without_it(tmp_path: Path) -> None:
    gam, x = by_name(), data()
    per_unit = gam.predict(x[["a"]])
    np.testing.assert_allclose(gam.predict(x), x.minutes * per_unit)
    np.testing.assert_allclose(gam.predict(x, exposure=1), per_unit)
    np.testing.assert_allclose(by_values().predict(x), per_unit, rtol=1e-6)
    np.testing.assert_allclose(gam.mean_interval(x), x.minutes.to_numpy()[:, None] * gam.mean_interval(x[["a"]]))
    np.testing.assert_allclose(gam.predict([x[:50], x[50:]]), gam.predict(x))
    np.testing.assert_allclose(gam.predict([x[:50][["a"]], x[50:][["a"]]]), per_unit)
    draws = gam.draw_functions(3, 0)
    np.testing.assert_allclose(draws.mean(x), x.minutes.to_numpy() * np.exp(draws(x)))
    np.testing.assert_allclose(draws[1].mean(x, exposure=2.0), 2 * np.exp(draws[1](x)))
    gam.save(tmp_path / "gam")
    np.testing.assert_array_equal(GAMRegressor.load(tmp_path / "gam").predict(x), gam.predict(x))


def test_trials_and_offsets_are_remembered_too() -> None:
    x = data()
    share = GAMRegressor("hits ~ linear(a)", family="binomial", tolerance=0.5).fit(x, trials="n")
    np.testing.assert_allclose(share.predict(x), x.n * share.predict(x, trials=1))
    with pytest.raises(ValueError, match="the fit had trials='n'"):
        share.check(x.drop(columns="n"))
    labels = GAMClassifier("label ~ linear(a)", tolerance=0.5)
    labels.fit(x.assign(label=x["count"] > 4), offset=np.log(x.minutes))
    with pytest.raises(ValueError, match=r"the fit had offset.*\(offset=0 if that is meant\)"):
        labels.score(x.assign(label=x["count"] > 4))
    shifted = GAMRegressor("a ~ linear(n)", tolerance=0.5).fit(x, offset="minutes")
    plain = x.assign(minutes=0.0)
    np.testing.assert_allclose(shifted.predict(x), shifted.predict(plain) + x.minutes, atol=1e-9)
    draws = shifted.draw_functions(2, 0)
    np.testing.assert_allclose(draws(x), draws(plain) + x.minutes.to_numpy(), atol=1e-9)


def test_an_exposure_is_not_counted_twice() -> None:
    x = data()
    twice = {"exposure": "minutes", "offset": np.log(x.minutes)}
    with pytest.raises(ValueError, match="offset is the logarithm of exposure"):
        GAMRegressor("count ~ linear(a)", family="poisson").fit(x, **twice)
    with pytest.raises(ValueError, match="offset is the logarithm of exposure"):
        by_name().predict(x, offset=np.log(x.minutes))


def test_intervals_of_rows_that_are_alike_are_those_of_each_row() -> None:
    rows = data().iloc[[4, 7, 4, 4, 7]]
    minutes = np.array([10.0, 10.0, 10.0, 600.0, 10.0])
    found = by_name().observation_interval(rows, exposure=minutes)
    each = [by_name().observation_interval(rows.iloc[[k]], exposure=minutes[[k]])[0] for k in range(5)]
    np.testing.assert_array_equal(found, each)
    assert (found[0] == found[2]).all() and (found[3] > found[0]).all()
