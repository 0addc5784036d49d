"""Interactions are found where there are some, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gpytorch_gam.diagnostics import component_evidence
from gpytorch_gam.gam import GAMClassifier, GAMRegressor, f, s, sz, te
from gpytorch_gam.gam.design import Part
from gpytorch_gam.gam.interactions import Limits, candidate_terms


def friedman(num_rows: int = 150) -> tuple[pd.DataFrame, np.ndarray]:
    """Friedman's first function, of whose columns the first two interact and the last does nothing."""
    random = np.random.default_rng(0)
    x = random.uniform(size=(num_rows, 6))
    mean = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    return pd.DataFrame(x[:, :6], columns=[f"x{index}" for index in range(6)]), mean + random.normal(size=num_rows)


def test_friedmans_function_has_one_interaction(tmp_path: Path) -> None:
    x, y = friedman()
    gam = GAMRegressor(interactions="auto", num_inducing=6, tolerance=0.5).fit(x, y)
    found = gam.interactions_
    assert found.index[found.kept].tolist() == ["ti(x0, x1)"]
    assert len(found) == 15 and found.estimated.is_monotonic_decreasing
    assert found.nats["ti(x0, x1)"] == pytest.approx(component_evidence(gam.model_, "ti(x0, x1)"))
    assert found.nats.isna().sum() == 14
    assert found.nats["ti(x0, x1)"] > Limits(None, 3.0).nats(15)
    assert "ti(x0, x1)" in gam.terms_ and "ti(x0, x1)" in gam.summary().terms.index
    additive = GAMRegressor(num_inducing=6, tolerance=0.5).fit(x, y)
    assert additive.interactions_ is None
    assert gam.result_.bound > additive.result_.bound + 5
    gam.save(tmp_path / "gam")
    loaded = GAMRegressor.load(tmp_path / "gam")
    pd.testing.assert_frame_equal(loaded.interactions_, found)
    np.testing.assert_allclose(loaded.predict(x), gam.predict(x), rtol=1e-9)


def test_many_candidates_need_more_evidence() -> None:
    assert Limits(None, 3.0).nats(20) == pytest.approx(np.log(20) + 3.0)
    assert Limits(None, 3.0).nats(0) == 3.0


def test_columns_of_noise_have_none() -> None:
    random = np.random.default_rng(1)
    x = pd.DataFrame(random.normal(size=(100, 8)), columns=[f"x{index}" for index in range(8)])
    y = np.sin(2 * x.x0) + x.x1 + random.normal(size=len(x))
    gam = GAMRegressor(interactions="auto", num_inducing=4, tolerance=1.0).fit(x, y)
    assert len(gam.interactions_) == 28
    assert not gam.interactions_.kept.any()
    assert len(gam.terms_) == 8


def test_a_curve_that_differs_between_levels_is_found() -> None:
    random = np.random.default_rng(2)
    x = pd.DataFrame({"age": random.uniform(20, 80, 200), "sex": random.choice(["f", "m"], 200)})
    slope = np.where(x.sex == "f", 0.08, -0.08)
    chance = 1 / (1 + np.exp(-slope * (x.age - 50)))
    gam = GAMClassifier(interactions="auto", num_inducing=6, tolerance=0.5).fit(x, random.uniform(size=200) < chance)
    assert gam.terms_ == ["s(age)", "f(sex)", "sz(age, sex)"]
    curves = gam.effect("sz(age, sex)", num=9).pivot(index="age", columns="sex", values="mean")
    np.testing.assert_allclose(curves.f + curves.m, 0.0, atol=1e-9)
    assert curves.f.iloc[-1] > 0 > curves.f.iloc[0]
    with pytest.raises(ValueError, match="which the fit has not seen"):
        gam.predict(pd.DataFrame({"age": [30.0], "sex": ["x"]}))


def test_given_terms_get_interactions_when_asked() -> None:
    x, y = friedman(100)
    terms = [s("x0", k=6), s("x1", k=6), s("x3", k=6)]
    assert GAMRegressor(terms, tolerance=0.5).fit(x, y).interactions_ is None
    gam = GAMRegressor(terms, tolerance=0.5, num_inducing=5, interactions=1, interaction_nats=0.5).fit(x, y)
    assert gam.terms_[3:] == ["ti(x0, x1)"]


def part(term: object, components: tuple[str, ...] = ("a",)) -> Part:
    return Part("", term, 0, components)  # type: ignore[arg-type]


def test_candidates_are_pairs_of_effects_that_are_not_joint_yet() -> None:
    parts = [part(s("a")), part(s("b", missing="marginal")), part(te("c", "d")), part(f("g")), part(s("h", period=24))]
    parts += [part(s("constant"), ()), part(s("e", by="g")), part(sz("a", "g"))]
    found = {term.label: term.missing for term in candidate_terms(parts)}
    assert found == {
        "ti(a, b)": "marginal",
        "ti(a, c)": None,
        "ti(a, d)": None,
        "ti(b, c)": "marginal",
        "ti(b, d)": "marginal",
        "sz(b, g)": "marginal",
        "sz(c, g)": None,
        "sz(d, g)": None,
    }


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"interactions": "all"}, ValueError, "interactions must be one of"),
        ({"interactions": -1}, ValueError, "interactions must not be negative"),
        ({"interactions": 1.5}, TypeError, "interactions must be"),
        ({"interaction_nats": -1.0}, ValueError, "interaction_nats must"),
    ],
)
def test_options_are_checked(options: dict, error: type, message: str) -> None:
    x, y = friedman(20)
    with pytest.raises(error, match=message):
        GAMRegressor(**options).fit(x, y)
