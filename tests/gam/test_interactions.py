"""Interactions are found where there are some, and nowhere else."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest

from gpytorch_gam.diagnostics import component_evidence
from gpytorch_gam.gam import GAMClassifier, GAMRegressor, f, s, sz, te
from gpytorch_gam.gam.interactions import Limits, candidate_terms
from gpytorch_gam.gam.parts import Part
from gpytorch_gam.warnings import ConvergenceWarning, InducingPointsWarning, MissingInteractionsWarning


def friedman(num_rows: int = 150) -> tuple[pd.DataFrame, np.ndarray]:
    """Friedman's first function, of whose columns the first two interact and the last does nothing."""
    random = np.random.default_rng(0)
    x = random.uniform(size=(num_rows, 6))
    mean = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    return pd.DataFrame(x[:, :6], columns=[f"x{index}" for index in range(6)]), mean + random.normal(size=num_rows)


def test_friedmans_function_has_one_interaction(tmp_path: Path) -> None:
    x, y = friedman()
    gam = GAMRegressor(num_inducing=6, tolerance=0.5).fit(x, y)
    found = gam.interactions_
    assert found.index[found.kept].tolist() == ["ti(x0, x1)"]
    assert len(found) == 15 and found.estimated.is_monotonic_decreasing
    assert found.nats["ti(x0, x1)"] == pytest.approx(component_evidence(gam.model_, "ti(x0, x1)"))
    assert found.nats[found.estimated < Limits(None, 2.0).estimated_nats(15)].isna().all()
    assert found.nats["ti(x0, x1)"] > Limits(None, 2.0).nats(15)
    assert "ti(x0, x1)" in gam.terms_ and "ti(x0, x1)" in gam.summary().terms.index
    additive = GAMRegressor(num_inducing=6, tolerance=0.5, interactions=0).fit(x, y)
    assert additive.interactions_ is None
    assert gam.result_.bound > additive.result_.bound + Limits(None, 2.0).nats(15)
    gam.save(tmp_path / "gam")
    loaded = GAMRegressor.load(tmp_path / "gam")
    pd.testing.assert_frame_equal(loaded.interactions_, found)
    np.testing.assert_allclose(loaded.predict(x), gam.predict(x), rtol=1e-9)


def test_many_candidates_need_more_evidence() -> None:
    assert Limits(None, 3.0).nats(20) == pytest.approx(np.log(20) + 3.0)
    assert Limits(None, 3.0).nats(0) == 3.0
    assert Limits(None, 3.0).estimated_nats(20) == 3.0
    assert Limits(None, 3.0).estimated_nats(100) == pytest.approx(np.log(100))


def test_columns_of_noise_have_none() -> None:
    random = np.random.default_rng(1)
    x = pd.DataFrame(random.normal(size=(100, 8)), columns=[f"x{index}" for index in range(8)])
    y = np.sin(2 * x.x0) + x.x1 + random.normal(size=len(x))
    gam = GAMRegressor(num_inducing=4, tolerance=1.0).fit(x, y)
    assert len(gam.interactions_) == 28
    assert not gam.interactions_.kept.any() and not (gam.interactions_.state == "not fitted").any()
    assert len(gam.terms_) == 8


def test_a_curve_that_differs_between_levels_is_found() -> None:
    random = np.random.default_rng(2)
    x = pd.DataFrame({"age": random.uniform(20, 80, 200), "sex": random.choice(["f", "m"], 200)})
    slope = np.where(x.sex == "f", 0.08, -0.08)
    chance = 1 / (1 + np.exp(-slope * (x.age - 50)))
    gam = GAMClassifier(num_inducing=6, tolerance=0.5).fit(x, random.uniform(size=200) < chance)
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


def test_nobody_waits_for_interactions_unasked() -> None:
    x, y = friedman(100)
    x, quick = x[["x0", "x1"]], {"num_inducing": 4, "tolerance": 1.0, "hyperparameters": "point"}
    by_bins = GAMRegressor(method="bins", **quick).fit(x, y)
    assert by_bins.interactions_ is None and by_bins.summary().facts["interactions"].startswith("not looked for, as")
    with pytest.warns(MissingInteractionsWarning, match="were not looked for, as the fit is by bins") as given:
        by_bins.sobol_indices()
    assert given[0].filename == __file__
    assert GAMRegressor(family="gaussian_location_scale", **quick).fit(x, y).interactions_ is None
    assert len(GAMRegressor({"mean": "auto"}, **quick).fit(x, y).interactions_) == 1


def test_of_many_pairs_those_of_the_strongest_effects_are_screened(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = friedman(100)
    monkeypatch.setattr("gpytorch_gam.gam.interactions._MOST_UNASKED", 3)
    gam = GAMRegressor(num_inducing=4, tolerance=1.0, hyperparameters="point").fit(x[["x5", "x0", "x1", "x3"]], y)
    assert set(gam.interactions_.index) == {"ti(x0, x1)", "ti(x0, x3)", "ti(x1, x3)"}


def test_an_interrupted_search_leaves_the_model_without(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = friedman(100)
    monkeypatch.setattr("gpytorch_gam.gam.interactions.component_gains", Mock(side_effect=KeyboardInterrupt))
    x, gam = x[["x0", "x1"]], GAMRegressor(num_inducing=4, tolerance=1.0, hyperparameters="point")
    with pytest.warns(ConvergenceWarning, match="search for interactions was interrupted") as caught:
        gam.fit(x, y)
    assert {each.filename for each in caught} == {__file__}
    assert gam.interactions_ is None and gam.result_ is not None
    assert gam.score(x, y) > 0.2


def two_products(weak: float) -> tuple[pd.DataFrame, np.ndarray]:
    """A strong interaction and a weak one, with little noise."""
    random = np.random.default_rng(0)
    x = pd.DataFrame(random.uniform(-1, 1, (100, 4)), columns=list("abcd"))
    y = x.a + x.b + x.c + x.d + 3 * x.a * x.b + weak * x.c * x.d + 0.1 * random.normal(size=len(x))
    return x, y


def test_an_interaction_that_hides_behind_a_stronger_one_is_found() -> None:
    x, y = two_products(0.4)
    gam = GAMRegressor(num_inducing=4, tolerance=0.5, hyperparameters="point").fit(x, y)
    found = gam.interactions_
    assert set(found.index[found.kept]) == {"ti(a, b)", "ti(c, d)"}
    assert found.estimated["ti(c, d)"] < Limits(None, 2.0).estimated_nats(6)
    assert "interactions" not in gam.summary().facts


def test_points_that_are_missing_are_said_of_the_last_fit_alone() -> None:
    x, y = two_products(1.0)
    gam = GAMRegressor(kernel="matern52", num_inducing=6, tolerance=0.5, hyperparameters="point", interactions=1)
    with pytest.warns(InducingPointsWarning) as given:
        gam.fit(x, y + 3 * np.sin(12 * x.a))
    assert gam.interactions_.kept.any()
    assert [str(each.message) for each in given] == list(gam.result_.messages)


def test_what_the_limit_leaves_out_is_said(tmp_path: Path) -> None:
    x, y = two_products(1.0)
    gam = GAMRegressor(num_inducing=4, tolerance=0.5, hyperparameters="point", interactions=1).fit(x, y)
    assert gam.interactions_.state.to_dict().items() >= {"ti(a, b)": "kept", "ti(c, d)": "not fitted"}.items()
    note = "limited to 1, and one more promises to pay (ti(c, d)): until interactions=2"
    assert gam.summary().facts["interactions"].startswith(note)
    gam.save(tmp_path / "gam")
    with pytest.warns(MissingInteractionsWarning, match="leave out interactions: limited to 1"):
        GAMRegressor.load(tmp_path / "gam").sobol_indices(x, independent=True)


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
