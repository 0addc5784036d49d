"""
Intervals hold what they should as often as they say, and units do not matter: small forms of
``benchmarks/gam_calibration.py``. Bounds are three standard errors of what is counted, wider where that was a few fits.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from gpytorch_gam.gam import GAMRegressor, re, s


@pytest.fixture(autouse=True)
def quick_fits() -> None:
    """Here estimators fit as they do for users, unlike in other modules."""


def _inside(values: np.ndarray, intervals: np.ndarray) -> np.ndarray:
    return (intervals[:, 0] <= values) & (values <= intervals[:, 1])


def test_intervals_of_observations_and_bands_of_functions_hold_what_they_say() -> None:
    new, function, whole = {0.8: [], 0.95: []}, [], []
    for seed in range(4):
        random = np.random.default_rng(seed)
        x, fresh = (pd.DataFrame({"x": random.random(300)}) for _ in range(2))
        y, y_fresh = (np.sin(6 * each.x) + 0.25 * random.standard_normal(300) for each in (x, fresh))
        gam = GAMRegressor([s("x", k=8)], hyperparameters="point").fit(x, y)
        for level, found in new.items():
            found.append(_inside(y_fresh, gam.observation_interval(fresh, level)).mean())
        effect = gam.effect("s(x)", num=30, simultaneous=True)
        truth = np.sin(6 * effect.x) - np.sin(6 * x.x).mean()
        function.append(_inside(truth, effect[["lower", "upper"]].to_numpy()).mean())
        whole.append(_inside(truth, effect[["lower_all", "upper_all"]].to_numpy()).all())
    assert abs(np.mean(new[0.8]) - 0.8) < 3 * np.sqrt(0.16 / 1200) + 0.01  # that of the noise estimates
    assert abs(np.mean(new[0.95]) - 0.95) < 3 * np.sqrt(0.0475 / 1200) + 0.01
    assert np.mean(function) > 0.85 and sum(whole) >= 3  # a sine is smoother than the kernel: bands are wide


def test_columns_without_effects_get_no_share_and_effective_ones_are_found() -> None:
    random = np.random.default_rng(0)
    x = pd.DataFrame(random.random((200, 6)), columns=[f"x{index}" for index in range(6)])
    y = np.sin(6 * x.x0) + 6 * (x.x1 - 0.5) ** 2 + 0.5 * random.standard_normal(200)
    gam = GAMRegressor(num_inducing=8, hyperparameters="integrated", interactions=0).fit(x, y)
    terms = gam.summary().terms
    assert (terms.p.iloc[:2] < 1e-3).all()
    assert terms.share.iloc[2:].sum() < 0.01 and (terms.p.iloc[2:] <= 0.05).sum() <= 1
    switched_off = terms[terms.edf < 0.01]  # where hyperparameters are uncertain, it has a size
    assert len(switched_off) and (switched_off[["share", "share_lower"]] == 0).all(axis=None)
    assert (switched_off.share_upper > 1e-3).all()


_UNITS = {
    "millions": (lambda x: 1e6 * x, lambda y: 1e6 * y + 1e7),
    "thousandths": (lambda x: 1e-3 * x, lambda y: 1e-3 * y),
    "shifted": (lambda x: 1e6 + 1e3 * x, lambda y: y - 1e4),
    "unix seconds": (lambda x: 1.7e9 + 3e7 * x, lambda y: y),
}


def test_other_units_give_the_same_standardised_fit() -> None:
    random = np.random.default_rng(0)
    x = random.random(100)
    y = np.sin(6 * x) + 0.25 * random.standard_normal(100)
    mean, std = _standardised(x, y)
    for name, (of_x, of_y) in _UNITS.items():
        other_mean, other_std = _standardised(of_x(x), of_y(y))
        assert np.abs((other_mean - mean) / std).max() < 0.01, name
        assert np.abs(other_std / std - 1).max() < 0.01, name


def _standardised(x: np.ndarray, y: np.ndarray) -> tuple[pd.Series, pd.Series]:
    table = pd.DataFrame({"x": x})
    gam = GAMRegressor([s("x", k=8)], hyperparameters="point").fit(table, y)
    effects = gam.predict_terms(table)["s(x)"] / y.std()
    return effects["mean"], effects["std"]


def test_unseen_levels_have_the_spread_of_those_that_were_seen() -> None:
    names = np.array([f"site {number}" for number in range(80)])
    held = []
    for seed in range(3):
        random = np.random.default_rng(seed)
        level = np.repeat(np.arange(80), 4)
        effect = 0.5 * random.standard_normal(80)
        table = pd.DataFrame({"site": names[level]})
        y = effect[level] + 0.25 * random.standard_normal(len(level))
        gam = GAMRegressor([re("site")], hyperparameters="point").fit(table[level < 60], y[level < 60])
        intervals = gam.mean_interval(pd.DataFrame({"site": names}))
        assert np.isfinite(intervals).all()
        width = np.diff(intervals, axis=1)[:, 0]
        assert 2 * 1.96 * 0.5 * 0.7 < width[60:].min() <= width[60:].max() < 2 * 1.96 * 0.5 * 1.4
        assert width[:60].max() < 0.6 * width[60:].min()  # four rows tell most of a level
        held.append(_inside(effect, intervals)[60:])
    assert np.mean(held) > 0.95 - 3 * np.sqrt(0.0475 / 60)


@pytest.mark.parametrize("family", ["zero_inflated_poisson", "negative_binomial_mean_dispersion", "binomial"])
def test_residuals_of_counts_reach_far_into_the_tails(family: str) -> None:
    random = np.random.default_rng(0)
    x = pd.DataFrame({"x": random.random(150)})
    y = random.poisson(30.0, 150).astype(float)
    y[0] = 100.0  # impossible under a Poisson distribution
    more = {"trials": np.full(150, 200.0)} if family == "binomial" else {}
    terms = [[s("x", k=5)], [s("x", k=5)]] if family == "negative_binomial_mean_dispersion" else [s("x", k=5)]
    gam = GAMRegressor(terms, family=family, kernel="matern52", hyperparameters="point").fit(x, y, **more)
    scores = gam.quantile_residuals(x, y, **more)
    assert scores[0] > 4.0 and np.isfinite(scores).all()
    assert abs(scores[1:].mean()) < 0.4 and 0.7 < scores[1:].std() < 1.3
    low, high = gam.observation_interval(x, **more).T
    assert ((low <= y) & (y <= high)).mean() > 0.9
    assert (low == low.round()).all() and (high == high.round()).all()
