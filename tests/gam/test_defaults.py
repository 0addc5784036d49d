"""
Estimators as most users meet them, with every default: automatic terms, the search for interactions, jumps to better
maxima and integration over hyperparameters. Truths are known, and warnings are errors.

Neighbours are in a band or out of it together, so that the share of rows in 95% bands of a data set is .87 to 1 in the
first five seeds, and errors differ by a half; bounds leave room for that.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from gpytorch_gam.gam import GAMClassifier, GAMRegressor


@pytest.fixture(autouse=True)
def quick_fits() -> None:
    """Here estimators fit as they do for users, unlike in other modules."""


def share_inside(values: np.ndarray, intervals: np.ndarray) -> float:
    return ((intervals[:, 0] <= values) & (values <= intervals[:, 1])).mean()


def test_numbers_of_which_one_does_nothing() -> None:
    random = np.random.default_rng(0)
    x = pd.DataFrame(random.random((500, 3)), columns=["wave", "line", "nothing"])
    truth = np.sin(6 * x.wave) + 2 * x.line
    y = truth + 0.3 * random.normal(size=500)
    gam = GAMRegressor().fit(x[:200], y[:200])
    assert gam.result_.converged and gam.hyperparameters_.startswith("integrated over")
    assert gam.terms_ == ["s(wave)", "s(line)", "s(nothing)"]  # and no interactions
    new, true_mean = x[200:], truth[200:]
    assert np.sqrt(((gam.predict(new) - true_mean) ** 2).mean()) < 0.1  # of noise .3 with 200 rows
    assert share_inside(true_mean, gam.mean_interval(new)) > 0.85
    assert abs(share_inside(y[200:], gam.observation_interval(new, 0.8)) - 0.8) < 3 * np.sqrt(0.16 / 300) + 0.01
    terms = gam.summary().terms
    assert (terms.p[:2] < 1e-6).all() and terms.p.iloc[2] > 0.01 and terms.share.iloc[2] < 0.01


def test_labels() -> None:
    random = np.random.default_rng(1)
    x = pd.DataFrame(random.random((300, 2)), columns=["wave", "line"])
    truth = 1 / (1 + np.exp(-3 * np.sin(6 * x.wave) - 2 * (x.line - 0.5)))
    labels = np.where(random.random(300) < truth, "yes", "no")
    gam = GAMClassifier().fit(x, labels)
    assert gam.result_.converged and gam.terms_ == ["s(wave)", "s(line)"]
    found = gam.predict_proba(x)[:, 1]
    assert np.abs(found - truth).mean() < 0.06
    assert share_inside(truth, gam.probability_interval(x)) > 0.85
    assert gam.score(x, labels) > np.maximum(truth, 1 - truth).mean() - 0.05  # that of the true probabilities


def test_counts_with_exposure() -> None:
    random = np.random.default_rng(2)
    x = pd.DataFrame({"hour": random.uniform(0, 24, 250), "town": random.choice(["Bergen", "Oslo", "Voss"], 250)})
    exposure = random.uniform(0.5, 20, 250)
    rate = np.exp(np.sin(x.hour / 4) + x.town.map({"Bergen": -0.5, "Oslo": 0.5, "Voss": 0.0}))
    gam = GAMRegressor(family="poisson").fit(x, random.poisson(exposure * rate), exposure=exposure)
    assert gam.result_.converged and gam.terms_ == ["s(hour)", "f(town)"]
    assert np.abs(gam.predict(x, exposure=1.0) / rate - 1).mean() < 0.08
    assert share_inside(rate, gam.mean_interval(x, exposure=1.0)) > 0.85
    new = random.poisson(exposure * rate)
    assert share_inside(new, gam.observation_interval(x, 0.8, exposure=exposure)) > 0.8 - 3 * np.sqrt(0.16 / 250)


def test_categories_and_missing_values() -> None:
    random = np.random.default_rng(3)
    x = pd.DataFrame(
        {
            "age": random.uniform(20, 80, 300),
            "grade": pd.Categorical(random.choice(["low", "mid", "high"], 300), ["low", "mid", "high"], ordered=True),
            "town": random.choice(["Bergen", "Oslo", "Voss"], 300),
        }
    )
    effects = {
        "s(age)": np.sin((x.age - 20) / 10),
        "f(grade)": x.grade.map({"low": -1.0, "mid": 0.2, "high": 0.8}).astype(float),
        "f(town)": x.town.map({"Bergen": 0.4, "Oslo": -0.4, "Voss": 0.0}),
    }
    y = sum(effects.values()) + 0.2 * random.normal(size=300)
    is_missing = random.random(300) < 0.1
    x.loc[is_missing, "age"] = np.nan
    x.loc[::20, "town"] = None
    gam = GAMRegressor(missing="marginal").fit(x, y)
    assert gam.result_.converged and gam.terms_ == list(effects)
    terms, is_known = gam.predict_terms(x), ~is_missing & x.town.notna()
    for name, effect in effects.items():
        part = terms[name][is_known]
        shift = (part["mean"] - effect[is_known]).mean()  # levels belong to the intercept
        assert np.sqrt(((part["mean"] - effect[is_known] - shift) ** 2).mean()) < 0.1, name
    wide, narrow = (np.diff(gam.mean_interval(x[rows]), axis=1).mean() for rows in (is_missing, is_known))
    assert wide > 3 * narrow
    assert share_inside(sum(effects.values()), gam.mean_interval(x)) > 0.85
