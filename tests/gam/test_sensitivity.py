"""Sobol indices of the columns of data frames."""

from __future__ import annotations

import functools

import numpy as np
import pandas as pd
import pytest
from scipy.stats import qmc

from gpytorch_gam.diagnostics import sobol_indices
from gpytorch_gam.gam import GAMClassifier, GAMRegressor, f, s, ti
from gpytorch_gam.warnings import DependentColumnsWarning, InputRangeWarning, MissingInteractionsWarning
from tests.gam import data

NUM_ROWS = 300


def fitted_table() -> pd.DataFrame:
    x = pd.DataFrame(np.random.default_rng(0).uniform(-1, 1, (NUM_ROWS, 2)), columns=["wind", "heat"])
    return x.assign(site=list("uvw") * (NUM_ROWS // 3))


@functools.cache
def fitted() -> GAMRegressor:
    """A regression that tests read and do not change."""
    x, random = fitted_table(), np.random.default_rng(1)
    level = x.site.map({"u": -1.0, "v": 0.0, "w": 1.0})
    y = 10 * (x.wind + 2 * x.wind * x.heat + level) + 0.3 * random.standard_normal(NUM_ROWS)
    terms = [s("wind"), s("heat"), ti("wind", "heat"), f("site")]
    return GAMRegressor(terms, hyperparameters="point").fit(x, y)


def test_indices_of_columns_of_a_frame() -> None:
    """Variances over the cube: 1/3 of wind, 2/3 of the levels, 4/9 of the interaction."""
    gam = fitted()
    found = gam.sobol_indices(independent=True)
    assert found.index.name == "column" and list(found.index) == ["wind", "heat", "site"]
    total = 1 / 3 + 2 / 3 + 4 / 9
    expected = {"wind": (1 / 3, 7 / 9), "heat": (0.0, 4 / 9), "site": (2 / 3, 2 / 3)}
    for name, (first, every) in expected.items():
        assert found.first[name] == pytest.approx(first / total, abs=0.05)  # moments of the data
        assert found.total[name] == pytest.approx(every / total, abs=0.05)  # moments of the data
    for kind in ("first", "total"):
        assert (found[f"{kind}_lower"] <= found[kind]).all() and (found[kind] <= found[f"{kind}_upper"]).all()
    assert found["first"].sum() + (found.total - found["first"]).iloc[0] == pytest.approx(1.0, abs=0.01)
    pd.testing.assert_frame_equal(found, gam.sobol_indices(independent=True))  # the seed is fixed


def test_indices_are_those_of_draws_at_the_same_rows() -> None:
    """Those of functions drawn by another way, hyperparameters being uncertain in both."""
    gam, x = data.fitted(), data.table()
    assert len(gam._fitted.mixture) > 1
    drawn = gam.draw_functions(2000, random_state=0)
    terms, total = drawn.terms(x), drawn(x).var(-1)
    with pytest.warns(DependentColumnsWarning):  # by chance, with so few rows
        found = gam.sobol_indices(x, num=2000, independent=False)
    sums = {"site": terms["f(site)"], "subject": terms["re(subject)"], "age": terms["s(age)"]}
    for name, values in sums.items():
        share = values.var(-1) / total
        assert found.first[name] == pytest.approx(share.mean(), abs=0.02)
        assert found.first_upper[name] == pytest.approx(np.quantile(share, 0.975), abs=0.05)
    both = sum(terms[name] for name in ("s(age)", "ti(age, hour)")).var(-1) / total
    assert found.total["age"] == pytest.approx(both.mean(), abs=0.02)


def test_interactions_have_indices_and_other_rows_than_those_of_the_fit_their_own_shares() -> None:
    """Rows in another range, where terms of two columns are not orthogonal to those of one: values of quadrature."""
    gam = fitted()
    random = np.random.default_rng(1)
    rows = pd.DataFrame(
        {"wind": random.uniform(0, 1, 40), "heat": random.uniform(-1, 0.5, 40), "site": list("uv") * 20}
    )
    product = rows[["wind"]].merge(rows[["heat"]], how="cross").merge(rows[["site"]].drop_duplicates(), how="cross")
    values = gam.predict(product).reshape(40, 40, 2)
    found, pairs = (
        gam.sobol_indices(rows, independent=True),
        gam.sobol_indices(rows, independent=True, second_order=True),
    )
    for place, name in enumerate(found.index):
        others = tuple(each for each in range(3) if each != place)
        assert found["first"][name] == pytest.approx(values.mean(others).var() / values.var(), abs=0.01)
        assert found.total[name] == pytest.approx(values.var(place).mean() / values.var(), abs=0.01)
    assert list(pairs.index) == ["wind:heat"]
    assert found["first"].sum() + pairs["index"].sum() == pytest.approx(1.0)


def test_the_model_of_an_estimator_names_columns_as_the_frame_does() -> None:
    """Names that are those of other columns by default."""
    random = np.random.default_rng(0)
    x = pd.DataFrame(random.uniform(-1, 1, (60, 2)), columns=["x1", "x2"])
    gam = GAMRegressor([s("x1"), s("x2")], hyperparameters="point").fit(x, x.x1 + x.x2**2)
    for names in (None, ["x1", "x2"]):
        found = sobol_indices(gam.model_, gam.model_inputs(x), num_samples=5, column_names=names)
        assert found.column_names == ("x1", "x2")
        assert found.shown_names == ("intercept", "s(x1)", "s(x1).line", "s(x2)", "s(x2).line")


def test_a_distribution_beyond_the_rows_of_the_fit_is_warned_of() -> None:
    gam, x = fitted(), fitted_table()
    wider = x.assign(wind=1.3 * x.wind)  # beyond in 0.3 / 1.3 of the rows
    with pytest.warns(InputRangeWarning, match=r"\(wind in 2\d% of the rows\)") as given:
        gam.sobol_indices(wider, num=2, independent=True)
    assert given[0].filename == __file__
    gam.sobol_indices(x.assign(wind=1.02 * x.wind), num=2, independent=True)  # ends of a sample


def test_dependence_is_warned_of() -> None:
    random = np.random.default_rng(0)
    x = pd.DataFrame(random.uniform(-1, 1, (NUM_ROWS, 2)), columns=["wind", "heat"])
    x["heat"] += 2 * x.wind
    y = 2 * x.wind + x.heat + 0.1 * random.standard_normal(NUM_ROWS)
    gam = GAMRegressor("~ wind + heat", hyperparameters="point").fit(x, y)
    with pytest.warns(DependentColumnsWarning, match=r"no shares .*wind and heat depend .*independent=True") as given:
        found = gam.sobol_indices()
    assert given[0].filename == __file__
    assert found.index.name == "dependent column"
    with pytest.raises(ValueError, match="second_order=True needs independent"):
        gam.sobol_indices(second_order=True)
    assert gam.sobol_indices(x, independent=True).total.sum() == pytest.approx(1.0, abs=0.01)


def test_predictors_missing_values_and_what_has_no_indices() -> None:
    random = np.random.default_rng(1)
    x = pd.DataFrame({"a": random.uniform(-1, 1, 200), "b": random.uniform(-1, 1, 200), "same": 1.0})
    y = np.sin(3 * x.a) + np.exp(x.b - 1) * random.standard_normal(200)
    gam = GAMRegressor(
        [[s("a")], [s("b")]], family="gaussian_location_scale", missing="marginal", hyperparameters="point"
    ).fit(x, y)
    assert gam.sobol_indices().loc["a", "total"] == pytest.approx(1.0)
    assert gam.sobol_indices(parameter="log_scale").loc["b", "total"] == pytest.approx(1.0)
    assert gam.sobol_indices(x.assign(a=x.a.where(x.a > 0))).loc["a", "total"] == pytest.approx(1.0)
    with pytest.raises(ValueError, match=r"X has 0 rows without missing values \(200 have some\)"):
        gam.sobol_indices(x.assign(a=np.nan))
    with pytest.raises(ValueError, match="parameter must be one of"):
        gam.sobol_indices(parameter="scale")
    labels = np.digitize(y, [-0.5, 0.5])
    with pytest.raises(ValueError, match="fit one class against the others"):
        GAMClassifier([s("a")], hyperparameters="point").fit(x, labels).sobol_indices()


def test_totals_of_given_effects_of_single_columns_are_said_to_be_an_assumption() -> None:
    """Of Ishigami's function, whose third column acts through its interaction with the first alone."""
    low, high = -np.pi, np.pi
    x = pd.DataFrame(qmc.scale(qmc.Sobol(3, seed=0).random(128), low, high), columns=["x1", "x2", "x3"])
    y = (1 + 0.1 * x.x3**4) * np.sin(x.x1) + 7 * np.sin(x.x2) ** 2
    quick = {"hyperparameters": "point", "tolerance": 1.0, "num_inducing": 6}
    terms = [s("x1"), s("x2"), s("x3")]
    gam = GAMRegressor(terms, **quick).fit(x, y)
    with pytest.warns(MissingInteractionsWarning, match=r"by assumption, .* noise \(0\.\d+ of the variance") as given:
        gam.sobol_indices(x)
    assert given[0].filename == __file__
    for quiet in (  # a joint effect, a search, and nothing that is left to explain
        GAMRegressor([*terms, ti("x1", "x3", k=4)], **quick).fit(x, y),
        GAMRegressor(terms, interactions=1, **quick).fit(x, y),
        GAMRegressor(terms, **quick).fit(x, x.x1 + x.x2 + x.x3),
    ):
        assert len(quiet.sobol_indices(x)) == 3
