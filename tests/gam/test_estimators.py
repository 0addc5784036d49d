"""Estimators fit effects of data frames and predict in units of the response."""

from __future__ import annotations

import functools
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import sklearn
from scipy import stats
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from gpytorch_gam.gam import GAMClassifier, GAMRegressor, f, linear, re, s, te, ti
from gpytorch_gam.gam.families import REGRESSION, Ordinal, Quantile
from gpytorch_gam.warnings import (
    ColumnKindWarning,
    ConstantColumnWarning,
    InducingPointsWarning,
    MissingInputsWarning,
    SampleWeightWarning,
)

from .data import effects, fitted, responses, table


def test_effects_are_found_with_bands_that_hold_them() -> None:
    x = table()
    terms = fitted().predict_terms(x)
    for name, label in (("age", "s(age)"), ("hour", "s(hour, period=24)"), ("site", "f(site)")):
        truth = effects(x)[name]
        found = terms[label]
        shift = (truth - found["mean"]).mean()  # levels belong to the intercept
        inside = (found["lower"] + shift <= truth) & (truth <= found["upper"] + shift)
        assert inside.mean() > 0.85
    assert terms["s(age)"]["mean"].mean() == pytest.approx(0.0, abs=0.01)  # mean zero over the data


def test_terms_and_intercept_add_up_to_the_predictor() -> None:
    x, gam = table(), fitted()
    total = gam.predict_terms(x).xs("mean", axis=1, level="value").sum(axis=1) + gam.intercepts()["mean"]
    np.testing.assert_allclose(total, gam.predict_link(x), atol=1e-9)
    without = gam.predict_terms(x, exclude="re(subject)").xs("mean", axis=1, level="value").sum(axis=1)
    np.testing.assert_allclose(without + gam.intercepts()["mean"], gam.predict(x, exclude=["re(subject)"]), atol=1e-9)
    assert list(gam.predict_terms(x, only="s(age)").columns.levels[0]) == ["s(age)"]


def test_the_variance_of_a_term_is_that_of_the_sum_of_its_components() -> None:
    x, gam = table().head(7), fitted()
    inputs = gam._fitted.design.inputs(x)
    part = gam._fitted.parts[0]
    assert len(part.components) == 2  # a curve and a line
    joint = gam._fitted.components(inputs)[list(part.components)].cross_covariance().detach()
    expected = joint.sum((-2, -1)).sqrt().numpy() * gam._fitted.units.scale
    np.testing.assert_allclose(gam.predict_terms(x)["s(age)"]["std"], expected, rtol=1e-6)


def test_intervals_of_the_mean_and_of_observations_are_those_of_the_normal_predictive_distribution() -> None:
    gam = GAMRegressor([s("age", k=5)], hyperparameters="point").fit(table(), responses(table()))
    x = table().head(9)
    mean, link_std = gam.predict_link(x, return_std=True)
    _, std = gam.predict(x, return_std=True)
    assert (std > link_std).all()
    half = stats.norm.ppf(0.95)
    np.testing.assert_allclose(gam.mean_interval(x, 0.9), np.stack([mean - half * link_std, mean + half * link_std], 1))
    np.testing.assert_allclose(
        gam.observation_interval(x, 0.9), np.stack([mean - half * std, mean + half * std], 1), rtol=1e-6
    )
    np.testing.assert_allclose(gam.predict_quantiles(x, 0.5), mean, rtol=1e-6)


def test_units_of_columns_and_responses_do_not_matter() -> None:
    x, y = table()[["age", "hour"]], responses(table())
    terms = [s("age", k=8), s("hour", k=6)]
    first = GAMRegressor(terms).fit(x, y)
    scaled = pd.DataFrame({"age": 1e6 * x.age + 1e3, "hour": x.hour * 1e-3 - 7})
    second = GAMRegressor(terms).fit(scaled, 1e6 * y + 1e8)
    mean, std = first.predict_link(x, return_std=True)
    other_mean, other_std = second.predict_link(scaled, return_std=True)
    assert np.abs((other_mean - 1e8) / 1e6 - mean).max() < 0.01 * std.min()
    np.testing.assert_allclose(other_std / 1e6, std, rtol=0.01)


def test_a_formula_takes_the_response_from_the_data() -> None:
    data = table().assign(y=responses(table()))
    by_formula = GAMRegressor("y ~ s(age, k=8) + site").fit(data)
    by_terms = GAMRegressor([s("age", k=8), f("site")]).fit(table(), data.y)
    np.testing.assert_allclose(by_formula.predict(data), by_terms.predict(table()))
    np.testing.assert_allclose(by_formula.predict(data.drop(columns="y")), by_formula.predict(data))
    np.testing.assert_allclose(by_formula.predict(data[["site", "age"]]), by_formula.predict(data))
    with pytest.raises(ValueError, match="y is the column 'z', which X does not have"):
        GAMRegressor("z ~ age").fit(data)


def test_automatic_terms_suit_what_columns_hold() -> None:
    x = table().assign(grade=pd.Categorical(["a"] * 60 + ["b"] * 60, ordered=True), flag=[0, 1] * 60)
    gam = GAMRegressor(num_inducing=4, tolerance=10.0).fit(x, responses(table()))
    assert gam.terms_ == [
        "s(age)",
        "s(hour)",
        "f(site)",
        "f(treated)",
        "re(subject)",
        "s(day)",
        "s(day, period=week)",
        "f(grade)",
        "linear(flag)",
    ]


def test_levels_that_the_fit_has_not_seen() -> None:
    x, gam = table().head(5), fitted()
    x.loc[0, "subject"] = "new"
    known, new = gam.predict(table().head(5), return_std=True), gam.predict(x, return_std=True)
    assert new[0][0] == pytest.approx(gam.predict(x.head(1), exclude="re(subject)")[0])
    assert new[1][0] > known[1][0]
    np.testing.assert_allclose(new[0][1:], known[0][1:])
    x.loc[1, "site"] = "Hamar"
    with pytest.raises(ValueError, match=r"'Hamar'.*which the fit has not seen"):
        gam.predict(x)
    x["site"] = x["site"].replace("Hamar", "Oslo")
    outside = gam.outside_range(x.assign(age=[10.0, 30, 30, 30, 90]))
    assert outside["age"].tolist() == [True, False, False, False, True]
    assert outside["subject"].tolist() == [True, False, False, False, False]


def test_a_constant_column_has_no_effect_and_one_warning() -> None:
    x = pd.DataFrame({"a": np.linspace(0, 1, 30), "b": 3.0})
    with pytest.warns(ConstantColumnWarning, match=r"column 'b'.*s\(b\) is zero") as caught:
        gam = GAMRegressor([s("a", k=4), s("b")]).fit(x, 2.0 * x.a)
    assert len(caught) == 1
    assert (gam.predict_terms(x)["s(b)"] == 0).all(axis=None)
    assert np.isfinite(gam.predict(x.assign(b=4.0))).all()


def test_terms_without_an_effect_have_flat_pictures_and_simultaneous_bands_of_no_width() -> None:
    x = pd.DataFrame({"a": np.linspace(0, 1, 30), "b": 3.0, "g": "one", "h": ["p", "q"] * 15})
    terms = [s("a", k=4), s("b"), s("b", by="h"), f("g"), f("h"), ti("b", "a")]
    with pytest.warns(ConstantColumnWarning):
        gam = GAMRegressor(terms, tolerance=5.0).fit(x, 2.0 * x.a)
    found = [gam.effect(label, simultaneous=True) for label in ("s(b)", "s(b, by=h)", "f(g)")]
    found += [gam.difference("s(b, by=h)", "p", "q", simultaneous=True)]
    for bands in found:
        assert (bands[["mean", "lower", "upper", "lower_all", "upper_all"]] == 0).all(axis=None)
    for axes in (gam.plot_term("s(b)"), gam.plot_term("s(b, by=h)"), gam.plot_difference("s(b, by=h)", "p", "q")):
        assert not np.any(axes.lines[1].get_ydata())
    with pytest.raises(ValueError, match=r"'b' has the same value in all rows, so that ti\(b, a\) has no surface"):
        gam.plot_term("ti(b, a)")
    plt.close("all")


def test_missing_values_are_an_error_or_have_an_unknown_effect() -> None:
    x, y = table()[["age", "site"]], responses(table())
    x.loc[:9, "age"] = np.nan
    x.loc[50:55, "site"] = None
    with pytest.raises(ValueError, match="column 'age' has NaN in 10 of 120 rows"):
        GAMRegressor([s("age"), f("site")]).fit(x, y)
    gam = GAMRegressor([s("age", k=5, missing="marginal"), f("site", missing="level")]).fit(x, y)
    terms = gam.predict_terms(x)
    assert (terms["s(age)"]["mean"][:10] == 0).all()
    assert (terms["s(age)"]["std"][:10] > terms["s(age)"]["std"][10:].max()).all()
    assert terms["f(site)"]["mean"][50:56].nunique() == 1
    x.loc[:12, "age"] = np.nan
    with pytest.warns(MissingInputsWarning, match=r"'age' has NaN in 13 of 120 rows.*missing='drop'"):
        GAMRegressor([s("age", k=5, missing="marginal")], hyperparameters="point", tolerance=1.0).fit(x, y)


def test_rows_without_by_are_left_out_of_what_takes_the_data_of_the_fit() -> None:
    x, y = table()[["age", "site"]], responses(table())
    x.loc[:9, "site"] = None
    terms = [s("age", by="site", k=4), f("site")]
    gam = GAMRegressor(terms, missing="drop", hyperparameters="point", tolerance=1.0).fit(x, y)
    kept, weights = x[10:], np.ones(len(x))
    assert gam.score(x.assign(y=y), "y", weights) == gam.score(kept, y[10:])
    assert gam.leave_one_out(x, y, weights).total == gam.leave_one_out(kept, y[10:]).total
    residuals = gam.quantile_residuals(x, list(y))
    assert np.isnan(residuals[:10]).all()
    np.testing.assert_array_equal(residuals[10:], gam.quantile_residuals(kept, y[10:]))
    assert len(gam.check(x, y).axes[2].lines[0].get_xdata()) > 0
    assert len(gam.plot_term("s(age, by=site)", x, y).lines[1].get_xdata()) == len(kept)
    plt.close("all")
    with pytest.raises(ValueError, match=r"'site' has NaN in 10 of 120 rows.* no effect of a missing by"):
        gam.predict(x)
    with pytest.raises(ValueError, match=r"'site' has NaN .*they have no predictions"):
        GAMRegressor(terms).fit(x, y)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        gam.score(x, y[10:])


def test_rows_with_missing_values_are_left_out_of_the_fit_and_predicted_all_the_same(tmp_path: Path) -> None:
    x, y = table()[["age", "site"]], responses(table())
    x.loc[:39, "age"] = np.nan
    x.loc[50:54, "site"] = None
    terms = [s("age", k=5, missing="drop"), f("site", missing="level")]
    gam = GAMRegressor(terms, hyperparameters="point").fit(x, y)
    complete = GAMRegressor([s("age", k=5), terms[1]], hyperparameters="point").fit(x[40:], y[40:])
    np.testing.assert_allclose(gam.predict(x[40:]), complete.predict(x[40:]))
    assert (gam.predict_terms(x)["s(age)"]["mean"][:40] == 0).all() and np.isfinite(gam.predict(x)).all()
    assert gam.leave_one_out(x, y).log_densities.shape == (80,)
    assert gam.n_rows_ == 80 and gam.summary().facts["left out"] == "40 rows with missing values"
    gam.save(tmp_path / "gam")
    assert GAMRegressor.load(tmp_path / "gam").n_rows_left_out_ == 40
    both = GAMRegressor("~ s(age) + f(site)", missing="drop", num_inducing=5, tolerance=1.0).fit(x, y)
    assert both.n_rows_ == 75 and np.isfinite(both.predict(x)).all()
    with pytest.raises(ValueError, match=r"n_samples=0 .*no missing values \(120 rows have some\)"):
        both.fit(x.assign(site=np.where(x.age > 0, None, x.site)), y)
    with pytest.raises(ValueError, match="missing must not be 'drop' where X is read in parts"):
        GAMRegressor("y ~ s(age)", missing="drop").fit([x.assign(y=y), x.assign(y=y)])


@pytest.mark.parametrize("missing", ["drop", "marginal"])
def test_a_missing_by_has_no_effect_and_is_named(missing: str) -> None:
    x, y = table()[["age", "hour", "site"]], responses(table())
    by_level, by_number = s("age", by="site", k=4, missing=missing), s("age", by="hour", k=4, missing=missing)
    gam = GAMRegressor([by_level, f("site", missing=missing), by_number], tolerance=5.0).fit(x, y)
    for name in ("site", "hour"):
        with pytest.raises(ValueError, match=rf"'{name}' has NaN in 1 of 1 rows, and s\(age, by={name}.* a missing by"):
            gam.predict(x.head(1).assign(**{name: [None]}))
    assert np.isfinite(gam.predict(x.head(1).assign(age=np.nan))).all()


def test_weights_that_are_precisions_are_told_from_numbers_of_rows() -> None:
    x, random = table()[["age"]], np.random.default_rng(0)
    weights = random.choice([0.2, 1.0, 10.0], len(x))
    y = effects(table())["age"] + random.normal(size=len(x)) / np.sqrt(weights)
    gam = GAMRegressor([linear("age")], hyperparameters="point")
    with pytest.warns(SampleWeightWarning, match=r"sum of .* over 120 rows, .* divide them by their mean"):
        too_narrow = gam.fit(x, y, sample_weight=weights).predict_link(x, return_std=True)[1]
    relative = weights / weights.mean()
    right = gam.fit(x, y, sample_weight=relative).predict_link(x, return_std=True)[1]  # no warning
    line = np.column_stack([np.ones(len(x)), x.age])
    normal = (line * relative[:, None]).T @ line
    residuals = y - line @ np.linalg.solve(normal, line.T @ (relative * y))
    expected = np.sqrt(np.einsum("ij,jk,ik->i", line, np.linalg.inv(normal), line) * (relative @ residuals**2) / len(x))
    np.testing.assert_allclose(right, expected, rtol=0.1)
    assert (right / too_narrow).mean() == pytest.approx(np.sqrt(weights.mean()), rel=0.1)
    gam.fit(x, y, sample_weight=np.round(weights + 1))  # no warning


def test_text_is_never_a_number() -> None:
    x, y = pd.DataFrame({"a": ["1", "2", "3"] * 10}), np.arange(30.0)
    with pytest.raises(TypeError, match=r"column 'a' holds text: use pandas\.to_numeric"):
        GAMRegressor([s("a")]).fit(x, y)
    with pytest.raises(TypeError, match="y holds text"):
        GAMRegressor([f("a")]).fit(x, y.astype(str))


@functools.cache
def from_pandas() -> np.ndarray:
    x = table()[["age", "hour"]]
    return GAMRegressor(num_inducing=4, tolerance=1.0).fit(x, responses(table())).predict(x)


@pytest.mark.parametrize("kind", ["numpy", "polars", "pyarrow"])
def test_other_tables(kind: str) -> None:
    x, y = table()[["age", "hour"]], responses(table())
    if kind == "numpy":
        other = x.to_numpy()
    elif kind == "polars":
        polars = pytest.importorskip("polars")
        other = polars.DataFrame({name: x[name].to_numpy() for name in x})
    else:
        other = pytest.importorskip("pyarrow").Table.from_pandas(x)
    found = GAMRegressor(num_inducing=4, tolerance=1.0).fit(other, y).predict(other)
    np.testing.assert_allclose(found, from_pandas())


FAMILY_DATA = {
    "gamma": lambda mean, random: random.gamma(3.0, np.exp(mean) / 3.0),
    "poisson": lambda mean, random: random.poisson(np.exp(mean)),
    "negative_binomial": lambda mean, random: random.negative_binomial(2, 1 / (1 + np.exp(mean) / 2)),
    "zero_inflated_poisson": lambda mean, random: random.poisson(np.exp(mean)) * (random.random(len(mean)) > 0.3),
    "binomial": lambda mean, random: (random.random(len(mean)) < 1 / (1 + np.exp(-mean))).astype(int),
    "negative_binomial_mean_dispersion": lambda mean, random: random.poisson(np.exp(mean)),
}


@pytest.mark.parametrize("family", REGRESSION)
def test_every_family_predicts_what_it_is_fitted_to(family: str) -> None:
    x, random = table(), np.random.default_rng(3)
    mean = effects(x)["age"]
    y = FAMILY_DATA.get(family, lambda mean, random: 1e3 * (mean + 0.3 * random.normal(size=len(mean))))(mean, random)
    gam = GAMRegressor([s("age", k=6)], family=family, tolerance=0.5).fit(x, y)
    assert np.corrcoef(gam.predict(x), mean)[0, 1] > 0.6
    assert gam.predict(x).mean() == pytest.approx(y.mean(), rel=0.25, abs=150 if y.std() > 100 else 0.25)
    lower, upper = gam.observation_interval(x, 0.9).T
    assert 0.8 < ((lower <= y) & (y <= upper)).mean() <= 1.0
    low, high = gam.mean_interval(x).T
    assert (low < high).all()


def test_parameters_have_terms_of_their_own() -> None:
    x, random = table(), np.random.default_rng(7)
    y = random.normal(size=len(x)) * np.exp((x.age - 50) / 20)
    gam = GAMRegressor(
        {"mean": [linear("hour")], "log_scale": "~ s(age, k=5)"}, family="gaussian_location_scale", tolerance=0.5
    ).fit(x, y)
    assert gam.terms_ == ["linear(hour)", "s(age)[log_scale]"]
    width = np.diff(gam.observation_interval(x, 0.8), axis=1)[:, 0]
    assert np.corrcoef(np.log(width), x.age)[0, 1] > 0.9
    with pytest.raises(ValueError, match="'mean', 'log_scale'"):
        GAMRegressor({"mean": "auto"}, family="gaussian_location_scale").fit(x, y)


def test_columns_of_terms_that_are_left_out_are_not_needed() -> None:
    gam = GAMRegressor([s("age", k=5), f("site"), re("subject")], tolerance=1.0).fit(table(), responses(table()))
    x = table().head(9)
    without = x.drop(columns=["subject", "site"])
    for options in ({"exclude": ["re(subject)", "f(site)"]}, {"only": "s(age)"}):
        for method in ("predict", "mean_interval", "observation_interval", "predict_link", "predict_terms"):
            expected = np.asarray(getattr(gam, method)(x, **options))
            np.testing.assert_array_equal(getattr(gam, method)(without, **options), expected)
            parts = getattr(gam, method)([without[:4], without[4:]], **options)
            np.testing.assert_allclose(parts, expected, atol=1e-12)
    np.testing.assert_array_equal(
        gam.predict(x.assign(site="Hamar"), exclude="f(site)"), gam.predict(x, exclude="f(site)")
    )
    with pytest.raises(ValueError, match=r"X lacks the columns .'site'."):
        gam.predict(without, exclude="re(subject)")


def test_offset_exposure_and_trials() -> None:
    x, random = table(), np.random.default_rng(7)
    exposure = random.uniform(0.5, 20, len(x))
    counts = random.poisson(exposure * np.exp(effects(x)["age"]))
    gam = GAMRegressor([s("age", k=6)], family="poisson").fit(x, counts, exposure=pd.Series(exposure))  # read-only
    np.testing.assert_allclose(gam.predict(x, exposure=2.0), 2 * gam.predict(x))
    by_offset = GAMRegressor([s("age", k=6)], family="poisson").fit(x, counts, offset=np.log(exposure))
    np.testing.assert_allclose(by_offset.predict(x), gam.predict(x), rtol=1e-3)
    trials = random.integers(1, 9, len(x))
    successes = random.binomial(trials, 0.7)
    share = GAMRegressor([s("age", k=4)], family="binomial").fit(x, successes, trials=trials)
    assert share.predict(x).mean() == pytest.approx(successes.sum() / trials.sum(), abs=0.05)
    with pytest.raises(ValueError, match="more successes than trials"):
        GAMRegressor([s("age")], family="binomial").fit(x, successes)
    with pytest.raises(ValueError, match=r"family 'gaussian' reads no exposure: .* such as poisson"):
        GAMRegressor([s("age")]).fit(x, counts, exposure=exposure)


def test_an_offset_of_an_identity_link_is_in_units_of_the_response() -> None:
    x, y = table(), 1e3 * responses(table())
    shift = 500.0 * x.hour.to_numpy()
    plain = GAMRegressor([s("age", k=6)]).fit(x, y)
    shifted = GAMRegressor([s("age", k=6)]).fit(x, y + shift, offset=shift)
    np.testing.assert_allclose(shifted.predict(x, offset=shift) - shift, plain.predict(x), atol=1.0)


def test_the_quantile_family_predicts_its_quantile() -> None:
    x, y = table(), responses(table(), noise=1.0)
    gam = GAMRegressor([s("age", k=4)], family=Quantile(0.9), tolerance=0.5).fit(x, y)
    assert (y < gam.predict(x)).mean() == pytest.approx(0.9, abs=0.06)


def test_classes_two_several_and_in_order() -> None:
    x, random = table(), np.random.default_rng(7)
    latent = 2 * effects(x)["age"] + random.logistic(size=len(x))
    two = GAMClassifier([s("age", k=5)]).fit(x, np.where(latent > 0, "yes", "no"))
    assert two.classes_.tolist() == ["no", "yes"]
    assert np.corrcoef(two.predict_proba(x)[:, 1], effects(x)["age"])[0, 1] > 0.9
    assert ((two.decision_function(x) > 0) == (two.predict(x) == "yes")).all()
    low, high = two.probability_interval(x).T
    assert ((low < two.predict_proba(x)[:, 1]) & (two.predict_proba(x)[:, 1] < high)).all()
    grade = pd.Categorical.from_codes(np.digitize(latent, [-1, 1]), ["low", "mid", "high"], ordered=True)
    ordinal = GAMClassifier([s("age", k=5)], family="ordinal").fit(x, pd.Series(grade))
    assert ordinal.classes_.tolist() == ["low", "mid", "high"]
    assert isinstance(GAMClassifier([s("age", k=4)], tolerance=5.0).fit(x, grade).family_, Ordinal)
    with pytest.warns(ColumnKindWarning, match=r"order of the alphabet, \['high', 'low', 'mid'\]"):
        GAMClassifier([s("age", k=4)], family="ordinal", tolerance=5.0).fit(x, np.asarray(grade))
    several = GAMClassifier([s("age", k=4)], tolerance=0.5).fit(x, grade.codes)
    for gam in (ordinal, several):
        np.testing.assert_allclose(gam.predict_proba(x).sum(1), 1.0)
        assert gam.score(x, gam.predict(x)) == 1.0
    assert several.terms_ == ["s(age)[0]", "s(age)[1]", "s(age)[2]"]
    with pytest.raises(ValueError, match="one class"):
        GAMClassifier().fit(x[["age"]], np.zeros(len(x), dtype=int))


def test_terms_by_levels_and_by_numbers_surfaces_and_dates() -> None:
    x = table().assign(dose=np.linspace(-1, 1, 120))
    y = x.dose * np.sin(x.age / 10) + np.where(x.treated, x.hour / 10, 0.0)
    terms = [s("age", by="dose", k=6), s("hour", by="treated", k=4), f("treated"), s("day", period="year", k=5)]
    gam = GAMRegressor([*terms, te("dose", "day", k=4)]).fit(x, y)
    assert gam.score(x, y) > 0.97
    assert (gam.predict_terms(x.assign(dose=0.0))["s(age, by=dose)"]["mean"] == 0).all()


def test_scikit_learn_clones_searches_and_pipes() -> None:
    x, y = table()[["age", "hour"]], responses(table())
    gam = GAMRegressor([s("age")], family=Quantile(0.3), num_inducing=4)
    assert clone(gam).get_params() == gam.get_params()
    gam = GAMRegressor(num_inducing=4, tolerance=5.0)
    search = GridSearchCV(gam, {"kernel": ["rbf", "matern12"]}, cv=2).fit(x, y)
    assert search.best_params_["kernel"] in ("rbf", "matern12")
    assert make_pipeline(FunctionTransformer(), gam).fit(x, y).score(x, y) > 0.5


def test_weights_count_rows() -> None:
    x, y = table()[["age"]], responses(table())
    weights = np.random.default_rng(0).integers(0, 3, len(x))
    weighted = GAMRegressor([s("age", k=6)], tolerance=1e-4).fit(x, y, sample_weight=weights)
    repeated = GAMRegressor([s("age", k=6)], tolerance=1e-4).fit(
        x.loc[np.repeat(x.index, weights)].reset_index(drop=True), np.repeat(y, weights)
    )
    np.testing.assert_allclose(weighted.predict(x), repeated.predict(x), atol=0.02)


def test_an_interrupted_fit_leaves_a_usable_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gpytorch_gam.gam.data_fit.fit", interrupted)
    x, y = table()[["age"]], responses(table())
    with pytest.warns(UserWarning, match="the fit was interrupted"):
        gam = GAMRegressor(num_inducing=4).fit(x, y)
    assert gam.result_ is None
    assert np.isfinite(gam.predict(x)).all()


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"terms": "age"}, ValueError, "must be 'auto', a formula"),
        ({"terms": [s("size")]}, ValueError, "column 'size', which X does not have"),
        ({"family": "weibull"}, ValueError, "family must be one of"),
        ({"kernel": "matern"}, ValueError, "kernel must be one of"),
        ({"num_inducing": 1.5}, TypeError, "num_inducing must be an integer"),
        ({"missing": "ignore"}, ValueError, "missing must be one of"),
        ({"method": "sgd"}, ValueError, "method must be one of"),
        ({"tolerance": 0}, ValueError, "tolerance must be"),
    ],
)
def test_options_that_are_wrong_are_named(options: dict, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        GAMRegressor(**options).fit(table()[["age"]], responses(table()))


def test_many_levels_of_which_some_are_new() -> None:
    random = np.random.default_rng(0)
    names = np.array([f"level {index}" for index in range(200)])
    x = pd.DataFrame({"g": names[random.integers(150, size=600)]})
    effect = dict(zip(names, random.normal(size=200), strict=True))
    y = x.g.map(effect) + 0.3 * random.normal(size=600)
    gam = GAMRegressor([re("g")]).fit(x, y)
    mean, std = gam.predict_link(pd.DataFrame({"g": names}), return_std=True)
    assert np.corrcoef(mean[:150], [effect[name] for name in names[:150]])[0, 1] > 0.9
    assert np.ptp(mean[150:]) < 1e-9
    assert std[150:].min() > 2 * np.median(std[:150])


def test_exposures_are_routed_through_cross_validation() -> None:
    x, random = table()[["age"]], np.random.default_rng(7)
    exposure = random.uniform(0.5, 20, len(x))
    counts = random.poisson(exposure * np.exp(effects(x.assign(hour=0.0, site="Oslo"))["age"]))
    with sklearn.config_context(enable_metadata_routing=True):
        gam = GAMRegressor([s("age", k=5)], family="poisson", tolerance=0.5)
        gam = gam.set_fit_request(exposure=True).set_score_request(exposure=True)
        routed = cross_validate(gam, x, counts, cv=2, params={"exposure": exposure}, error_score="raise")
        alone = cross_validate(gam, x, counts, cv=2, error_score="raise")
    assert routed["test_score"].min() > alone["test_score"].max() + 0.1


@pytest.mark.parametrize("family", ["poisson", "negative_binomial"])
def test_quantile_residuals_of_counts_reach_far_into_the_tails(family: str) -> None:
    random = np.random.default_rng(0)
    x = pd.DataFrame({"a": random.random(200)})
    counts = random.poisson(np.exp(4 + x.a))
    gam = GAMRegressor([s("a", k=5)], family=family).fit(x, counts)
    assert 0.85 < gam.quantile_residuals(x, counts).std() < 1.15
    far = gam.quantile_residuals(x.head(2), np.array([0, 300]))
    assert far[0] < -4.5 and far[1] > 4.5


def test_simulators_without_noise_are_not_told_to_add_inducing_points() -> None:
    x = np.random.default_rng(0).uniform(0, 6, 80)
    table = pd.DataFrame({"x": x, "y": np.sin(x) + 0.3 * np.sin(5 * x)})
    options = {"hyperparameters": "point", "kernel": "matern32"}
    gam = GAMRegressor("y ~ s(x, k=20)", **options).fit(table)
    assert "more inducing points" in str(gam.summary())
    noise = 0.2 * np.random.default_rng(1).normal(size=80)
    with pytest.warns(InducingPointsWarning, match="more inducing points"):
        GAMRegressor("y ~ s(x, k=5)", **options).fit(table.assign(y=table.y + noise))
