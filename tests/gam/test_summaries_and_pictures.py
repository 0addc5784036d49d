"""Summaries say what the model holds; pictures show the same numbers."""

from __future__ import annotations

import itertools
import re as re_module
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from scipy import optimize, stats

from gpytorch_gam.gam import GAMClassifier, GAMRegressor, f, fs, linear, re, s, te, ti
from gpytorch_gam.gam.freedom import warnings_of_freedom
from gpytorch_gam.gam.pictures import _against
from gpytorch_gam.gam.summary import _shown_table
from gpytorch_gam.gam.term_concurvity import _named_pairs

from .data import NUM_ROWS, fitted, responses, table


@pytest.fixture(autouse=True)
def closed_figures() -> object:
    yield
    plt.close("all")


def test_effective_degrees_of_freedom_are_those_of_a_dense_posterior() -> None:
    gam = fitted()
    summary = gam.summary()
    covariance = gam.model_.variational_strategy.variational_distribution.covariance_matrix.detach()
    total = len(covariance) - covariance.diagonal().sum()
    intercept = 1 - covariance[0, 0]  # the first component
    assert summary.terms.edf.sum() == pytest.approx((total - intercept).item(), rel=1e-6)


def test_hyperparameters_are_in_units_of_the_data() -> None:
    x, y = table()[["age"]], responses(table())
    first = GAMRegressor([s("age", k=8)]).fit(x, y).summary()
    second = GAMRegressor([s("age", k=8)]).fit(1e3 * x, 1e2 * y + 7).summary()
    assert second.terms.lengthscale.item() == pytest.approx(1e3 * first.terms.lengthscale.item(), rel=0.02)
    assert second.terms.prior_sd.item() == pytest.approx(1e2 * first.terms.prior_sd.item(), rel=0.02)
    assert second.facts["noise sd"] == pytest.approx(1e2 * first.facts["noise sd"], rel=0.02)
    assert first.facts["deviance explained"] == pytest.approx(second.facts["deviance explained"], abs=1e-3)


def test_deviance_explained_of_a_gaussian_is_the_coefficient_of_determination() -> None:
    x = table()
    assert fitted().summary().facts["deviance explained"] == pytest.approx(fitted().score(x, responses(x)))


def test_effects_are_told_from_none() -> None:
    random = np.random.default_rng(0)
    x = pd.DataFrame({"a": random.uniform(size=150), "b": random.uniform(size=150), "g": random.integers(3, size=150)})
    y = np.sin(6 * x.a) + 0.3 * random.normal(size=150)
    terms = GAMRegressor([s("a", k=6), s("b", k=6), f("g")]).fit(x, y).summary().terms
    assert terms.p["s(a)"] < 1e-6
    assert terms.p["s(b)"] > 0.01
    assert terms.p["f(g)"] > 0.01
    assert terms.share["s(a)"] > 0.9
    assert (terms.share_lower <= terms.share).all()
    assert (terms.share <= terms.share_upper).all()


def test_terms_that_can_stand_for_each_other_are_named() -> None:
    random = np.random.default_rng(0)
    a = random.uniform(size=100)
    x = pd.DataFrame({"a": a, "b": a + 0.01 * random.normal(size=100)})
    gam = GAMRegressor([s("a", k=4), s("b", k=4)]).fit(x, np.sin(6 * a) + 0.1 * random.normal(size=100))
    assert any("s(a) and s(b) can stand for each other" in each for each in gam.summary().warnings)


@pytest.mark.parametrize(("slope", "how"), [(-0.5, "cancel in part"), (1.0, "go together")])
def test_shares_that_do_not_add_up_name_the_pair(slope: float, how: str) -> None:
    random = np.random.default_rng(0)
    x = pd.DataFrame(random.normal(size=(150, 3)), columns=["a", "b", "c"])
    x["b"] = 0.8 * x.a + 0.6 * x.b
    y = x.a + slope * x.b + 0.3 * x.c + 0.1 * random.normal(size=150)
    summary = GAMRegressor("~ c + a + b", hyperparameters="point").fit(x, y).summary()
    message = rf"sum to {summary.terms.share.sum():.2f} .* correlated {how}, those of linear\(a\) and linear\(b\) most"
    assert len(summary.warnings) == 1 and re_module.search(message, summary.warnings[0])
    apart = GAMRegressor("~ c + a", hyperparameters="point").fit(x, x.a + x.c).summary()
    assert not apart.warnings


def test_effects_that_leave_nothing_to_the_noise_are_warned_of() -> None:
    assert not warnings_of_freedom(70.0, 100)
    assert "38 degrees of freedom for 40 rows" in warnings_of_freedom(38.0, 40)[0]


def test_lengthscales_of_dates_are_printed_with_their_units() -> None:
    x = table()[["age", "day"]]
    y = np.sin(x.day.dt.day_of_year / 60) + 0.1 * np.random.default_rng(0).normal(size=NUM_ROWS)
    summary = GAMRegressor([s("day"), s("age", k=5)], hyperparameters="point").fit(x, y).summary()
    length = summary.terms.lengthscale["s(day)"]
    assert 20 < length < 400 and f"  {length:.3g} days  " in str(summary)
    assert summary.in_days == ("s(day)",)


def test_summaries_show_each_level_and_each_part_of_a_term_in_units_of_the_data() -> None:
    random = np.random.default_rng(0)
    x = pd.DataFrame({"x": random.uniform(0, 10, 300), "g": random.choice(["a", "b", "c"], 300)})
    x["day"] = pd.Timestamp("2020-01-01") + pd.to_timedelta(40 * x.x, unit="D")
    y = np.where(x.g == "a", np.sin(3 * x.x), np.where(x.g == "b", np.sin(x.x), 0.0)) + 0.1 * random.normal(size=300)
    options = {"hyperparameters": "point", "tolerance": 1.0}
    by_number = GAMRegressor("s(x, by=g) + f(g)", **options).fit(x, y).summary()
    curves = by_number.components.loc["s(x, by=g)"]
    assert curves.index.tolist() == ["a", "b", "c"]
    assert curves.edf.sum() == pytest.approx(by_number.terms.edf["s(x, by=g)"])
    assert curves.p["a"] < 1e-6 and curves.p["b"] < 1e-6 and curves.p["c"] > 0.01 and curves.lengthscale.isna()["c"]
    assert by_number.terms.lengthscale["s(x, by=g)"] == f"{curves.lengthscale.a:.3g} to {curves.lengthscale.b:.3g}"
    assert curves.lengthscale.b > 2 * curves.lengthscale.a and "levels of s(x, by=g)\n" in str(by_number)
    by_date = GAMRegressor("s(day, by=g) + f(g)", **options).fit(x, y).summary()
    in_days = by_date.components.loc["s(day, by=g)"].lengthscale
    np.testing.assert_allclose(in_days[["a", "b"]].astype(float), 40 * curves.lengthscale[["a", "b"]], rtol=0.05)
    assert by_date.terms.lengthscale["s(day, by=g)"] == f"{in_days.a:.3g} days to {in_days.b:.3g} days"


def test_parts_of_te_have_lengthscales_of_their_own() -> None:
    random = np.random.default_rng(1)
    x = pd.DataFrame(random.uniform(0, 10, (100, 2)), columns=["x", "z"])
    y = np.sin(x.x) * (1 + x.z / 10)
    gam = GAMRegressor("te(x, z)", hyperparameters="point", tolerance=10.0, num_inducing=8).fit(x, y)
    summary = gam.summary()
    parts = summary.components.loc["te(x, z)"]
    assert parts.index.tolist() == ["x", "x.line", "z", "z.line", "interaction"]
    joint = gam.model_.predictor.group_of("te(x, z)").kernel
    own = [kernel.lengthscale.item() for kernel in joint.modules() if getattr(kernel, "has_lengthscale", False)]
    scales = [gam._fitted.design.encoding(name, "number").scale for name in ("x", "z")]
    shown = ", ".join(f"{length * scale:.3g}" for length, scale in zip(own, scales, strict=True))
    assert summary.terms.lengthscale["te(x, z)"] == parts.lengthscale["interaction"] == shown
    assert isinstance(parts.lengthscale["x"], float)


def test_deviations_of_random_slopes_are_for_each_unit_of_their_column() -> None:
    random = np.random.default_rng(2)
    x = pd.DataFrame({"day": random.uniform(0, 100, 600), "subject": np.repeat(range(30), 20)})
    slopes = random.normal(0, 0.3, 30)
    y = slopes[x.subject] * x.day + random.normal(size=600)
    options = {"hyperparameters": "point", "tolerance": 1.0}
    deviations = [
        GAMRegressor("re(subject, by=day)", **options).fit(x.assign(day=unit * x.day), y).summary().random_effects
        for unit in (1.0, 24.0)
    ]
    assert deviations[0].sd.iloc[0] == pytest.approx(slopes.std(), rel=0.15)
    assert deviations[0].sd.iloc[0] == pytest.approx(24 * deviations[1].sd.iloc[0], rel=0.01)


def test_ordered_levels_have_a_trained_deviation_and_a_distance() -> None:
    random = np.random.default_rng(3)
    grade = pd.Categorical.from_codes(random.integers(0, 8, 300), list("abcdefgh"), ordered=True)
    x = pd.DataFrame({"grade": grade, "other": random.choice(["p", "q"], 300)})
    y = np.sin(grade.codes / 3) + 0.1 * random.normal(size=300)
    terms = GAMRegressor("f(grade) + f(other)", hyperparameters="point", tolerance=1.0).fit(x, y).summary().terms
    assert 0.1 < terms.prior_sd["f(grade)"] < 1.0 and 1.0 < terms.lengthscale["f(grade)"] < 80.0
    assert terms.loc["f(other)", ["prior_sd", "lengthscale"]].isna().all()


def test_effects_on_grids_hold_what_predictions_say() -> None:
    gam = fitted()
    table_ = gam.effect("s(age)", num=30, simultaneous=True)
    x = table().head(1).loc[[0] * 30].assign(age=table_.age.to_numpy())
    terms = gam.predict_terms(x)["s(age)"]
    for name in ("mean", "std", "lower", "upper"):
        np.testing.assert_allclose(table_[name], terms[name], atol=1e-9)
    half, wide = table_.upper - table_["mean"], table_.upper_all - table_["mean"]
    assert (wide / half).between(1.1, 2.0).all()
    assert (wide / half).nunique() <= 30
    assert gam.effect("f(site)").site.tolist() == ["Bergen", "Oslo", "Voss"]


def test_simultaneous_bands_hold_whole_draws_with_their_probability() -> None:
    gam = fitted()
    band = gam.effect("s(age)", num=40, level=0.8, simultaneous=True)
    x = table().head(1).loc[[0] * 40].assign(age=band.age.to_numpy())
    draws = gam.draw_functions(1000, 5).terms(x)["s(age)"]
    inside = ((draws > band.lower_all.to_numpy()) & (draws < band.upper_all.to_numpy())).all(1).mean()
    assert inside == pytest.approx(0.8, abs=0.05)


def test_differences_of_curves_take_their_covariance_into_account() -> None:
    x = table()
    gam = GAMRegressor([s("age", by="treated", k=5), f("treated")]).fit(x, responses(x))
    ax = gam.plot_difference("s(age, by=treated)", True, False)
    (line,) = [each for each in ax.lines if len(each.get_xdata()) == 150]
    truth = gam.effect("s(age, by=treated)", num=150)
    expected = truth[truth.treated].set_index("age")["mean"] - truth[~truth.treated].set_index("age")["mean"]
    np.testing.assert_allclose(line.get_ydata(), expected, atol=1e-9)
    with pytest.raises(ValueError, match="is no level"):
        gam.plot_difference("s(age, by=treated)", True, "no")


def test_bands_of_differences_hold_draws_at_each_point_and_whole_ones_with_their_probability() -> None:
    x = table()
    gam = GAMRegressor([s("age", by="treated", k=5), f("treated")]).fit(x, responses(x))
    label = "s(age, by=treated)"
    band = gam.difference(label, True, False, num=40, level=0.8, simultaneous=True)
    functions = gam.draw_functions(1500, 5)
    rows = x.head(1).loc[[0] * 40].assign(age=band.age.to_numpy())
    first, second = (functions.terms(rows.assign(treated=value))[label] for value in (True, False))
    draws = first - second
    pointwise = ((draws > band.lower.to_numpy()) & (draws < band.upper.to_numpy())).mean()
    whole = ((draws > band.lower_all.to_numpy()) & (draws < band.upper_all.to_numpy())).all(1).mean()
    assert pointwise == pytest.approx(0.8, abs=0.04)
    assert whole == pytest.approx(0.8, abs=0.05)
    ax = gam.plot_difference(label, True, False)
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["95% band of the whole curve", "95% band at each point"]
    narrow = gam.plot_difference(label, True, False, simultaneous=False)
    assert [text.get_text() for text in narrow.get_legend().get_texts()] == labels[1:]


def test_every_kind_of_term_has_a_picture() -> None:
    x = table()
    terms = [s("hour", period=24, k=5), s("day", k=5), f("site"), re("subject"), fs("age", "treated", k=4)]
    terms.append(te("age", "hour", k=3))
    gam = GAMRegressor(terms, tolerance=0.5, hyperparameters="point").fit(x, responses(x))
    figure = gam.plot()
    assert [ax.get_title() for ax in figure.axes if ax.get_title()] == gam.terms_
    ax = gam.plot_term("s(day)", x, responses(x))
    assert ax.get_xlabel() == "day"
    points = next(
        line for line in ax.lines if len(line.get_xdata()) == NUM_ROWS and line.get_label() == "partial residuals"
    )
    effect = gam.predict_terms(x)["s(day)"]["mean"]
    np.testing.assert_allclose(points.get_ydata(), effect + responses(x) - gam.predict(x), atol=1e-9)


def test_panels_are_those_of_some_terms_and_long_numbers_do_not_touch() -> None:
    random = np.random.default_rng(0)
    x = pd.DataFrame(
        {"flow": random.uniform(63070, 115600, 60), "b": random.uniform(size=60), "c": random.uniform(size=60)}
    )
    terms = [s("flow", k=5), s("b", k=5), s("c", k=5), ti("flow", "b", k=3)]
    gam = GAMRegressor(terms, tolerance=1.0, hyperparameters="point").fit(x, x.flow / 1e4 + random.normal(size=60))
    figure = gam.plot(exclude="ti(flow, b)")
    assert [ax.get_title() for ax in figure.axes] == ["s(flow)", "s(b)", "s(c)"]
    assert [ax.get_title() for ax in gam.plot(only=["s(c)"]).axes] == ["s(c)"]
    figure.canvas.draw()
    for ax in figure.axes:
        boxes = [label.get_window_extent() for label in ax.get_xticklabels()]
        width = max(box.width for box in boxes)
        assert min(right.x0 - left.x1 for left, right in itertools.pairwise(boxes)) > 0.3 * width
    with pytest.raises(ValueError, match="only and exclude are both given"):
        gam.plot(only="s(b)", exclude="s(c)")


@pytest.mark.parametrize("family", ["gaussian", "poisson", "gamma", "binomial"])
def test_quantile_residuals_are_standard_normal_if_the_model_holds(family: str) -> None:
    x, random = table(), np.random.default_rng(1)
    mean = np.sin(x.age / 10)
    draw = {
        "gaussian": lambda: mean + random.normal(size=len(x)),
        "poisson": lambda: random.poisson(3 * np.exp(mean)),
        "gamma": lambda: random.gamma(4, np.exp(mean)),
        "binomial": lambda: random.random(len(x)) < 1 / (1 + np.exp(-mean)),
    }[family]
    y = draw().astype(float)
    gam = GAMRegressor([s("age", k=6)], family=family, tolerance=0.5).fit(x, y)
    assert stats.kstest(gam.quantile_residuals(x, y), "norm").pvalue > 0.01
    assert stats.kstest(
        gam.quantile_residuals(x, np.roll(y, 7) + (3.0 if family != "binomial" else 0)), "norm"
    ).pvalue < (0.05 if family != "binomial" else 1.1)


def test_checks_are_drawn_for_classes_as_well() -> None:
    x = table()[["age", "site"]]
    y = np.where(np.random.default_rng(0).random(len(x)) < 0.5, "a", "b")
    figure = GAMClassifier(num_inducing=4, tolerance=0.5).fit(x, y).check(x, y)
    assert [ax.get_xlabel() for ax in figure.axes][-3:] == ["predictor, logit scale", "age", "site"]


@pytest.mark.parametrize("num_levels", [20, 60])
def test_residuals_of_many_levels_are_means_in_order_and_far_ones_are_named(num_levels: int) -> None:
    values = pd.Series([f"g{index:02d}" for index in range(num_levels)] * 10)
    scores = 0.5 * np.random.default_rng(0).normal(size=len(values)) + 2.0 * (values == "g07")
    ax = plt.subplots()[1]
    _against(ax, values, scores.to_numpy(), "g")
    assert ax.get_xlabel() == f"{num_levels} levels of g, in order"
    names = [text.get_text() for text in ax.get_xticklabels()]
    assert names[-1:] == (["g07"] if num_levels == 20 else []) and len(names) in (0, num_levels)
    assert [text.get_text() for text in ax.texts] == ([] if names else ["far from zero:\ng07"])


def test_random_numbers_of_the_session_are_left_alone() -> None:
    state = torch.get_rng_state()
    fitted().summary()
    fitted().draw_functions(2, 0)
    fitted().effect("s(age)", simultaneous=True)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_intercept_has_the_standard_error_of_a_mean() -> None:
    random = np.random.default_rng(0)
    x = pd.DataFrame({"a": random.uniform(size=200)})
    y = 40 + 10 * x.a + 3 * random.normal(size=200)
    gam = GAMRegressor([linear("a")]).fit(x, y)
    intercepts = gam.summary().intercepts
    noise = gam.summary().facts["noise sd"]
    assert intercepts.loc["mean", "mean"] == pytest.approx(y.mean(), abs=0.02)
    assert intercepts.loc["mean", "std"] == pytest.approx(noise / np.sqrt(200), rel=0.02)
    mean, deviation = gam.intercepts(return_std=True)
    assert (mean["mean"], deviation["mean"]) == tuple(intercepts.loc["mean"])
    assert f"intercept: {mean['mean']:.4g} (standard error {deviation['mean']:.3g})" in str(gam.summary())
    # The mean function is that uncertain in the middle, too.
    low, high = gam.mean_interval(pd.DataFrame({"a": [x.a.mean()]}))[0]
    assert (high - low) / 3.92 == pytest.approx(noise / np.sqrt(200), rel=0.03)


def test_random_effects_have_the_intervals_of_a_profile() -> None:
    """Against a balanced random intercept, whose mean squares have scaled chi-squared distributions."""
    random = np.random.default_rng(0)
    x = pd.DataFrame({"g": np.repeat([f"g{number:02d}" for number in range(20)], 15)})
    y = 2 * random.normal(size=20).repeat(15) + random.normal(size=300)
    gam = GAMRegressor([re("g")], hyperparameters="integrated").fit(x, y)
    found = gam.summary().random_effects
    means = y.reshape(20, 15).mean(1)
    variance = means.var() - y.reshape(20, 15).var(1, ddof=1).mean() / 15
    assert found.index.tolist() == ["re(g)", "noise"]
    assert found.sd["re(g)"] == pytest.approx(np.sqrt(variance), rel=0.05)
    assert np.log(found.upper["re(g)"] / found.lower["re(g)"]) / 3.92 == pytest.approx(1 / np.sqrt(2 * 20), rel=0.15)
    assert np.log(found.upper["noise"] / found.lower["noise"]) / 3.92 == pytest.approx(1 / np.sqrt(2 * 280), rel=0.1)
    assert "re(g)" in str(gam.summary()).splitlines()[-2]
    point = GAMRegressor([re("g")], hyperparameters="point").fit(x, y).summary().random_effects
    assert point.lower.isna().all()


def test_parameters_of_likelihoods_have_the_intervals_of_maximum_likelihood() -> None:
    random = np.random.default_rng(0)
    x = pd.DataFrame({"a": random.uniform(size=400)})
    y = random.negative_binomial(3, 3 / (3 + np.exp(1 + x.a)))

    def loss(line: np.ndarray, log_dispersion: float) -> float:
        size = np.exp(-log_dispersion)
        return -stats.nbinom.logpmf(y, size, size / (size + np.exp(line[0] + line[1] * x.a))).sum()

    def profile(log_dispersion: float) -> float:
        return optimize.minimize(loss, np.array([1.0, 1.0]), (log_dispersion,)).fun

    best = optimize.minimize_scalar(profile, bounds=(-3.0, 1.0), method="bounded").x
    curvature = (profile(best + 0.1) + profile(best - 0.1) - 2 * profile(best)) / 0.1**2
    gam = GAMRegressor("~ linear(a)", family="negative_binomial", hyperparameters="integrated").fit(x, y)
    found = gam.summary().likelihood.loc["dispersion"]
    assert found.estimate == pytest.approx(np.exp(best), rel=0.05)
    assert np.log(found.upper / found.lower) / 3.92 == pytest.approx(curvature**-0.5, rel=0.1)
    shown = f"dispersion: {found.estimate:.4g} (95% interval {found.lower:.3g} to {found.upper:.3g})"
    assert shown in str(gam.summary()).splitlines()


def test_noise_at_its_lower_bound_is_said_to_be_that_of_a_simulator() -> None:
    x = pd.DataFrame({"a": np.linspace(0, 1, 40)})
    summary = GAMRegressor([s("a")], kernel="rbf", hyperparameters="point").fit(x, np.sin(3 * x.a)).summary()
    assert summary.likelihood.at_bound.to_dict() == {"noise sd": True}
    line = next(each for each in str(summary).splitlines() if each.startswith("noise sd"))
    assert "(at its lower bound: " in line and "simulator without noise" in line


def test_parameters_of_likelihoods_are_in_units_of_the_response() -> None:
    random = np.random.default_rng(0)
    x = pd.DataFrame({"a": random.uniform(size=200)})
    y = x.a + 0.3 * random.standard_t(4, size=200)
    one, many = (
        GAMRegressor("~ linear(a)", family="student_t", hyperparameters="integrated").fit(x, unit * y).summary()
        for unit in (1.0, 1000.0)
    )
    assert not many.likelihood.at_bound.any()
    first, second = (each.likelihood[["estimate", "lower", "upper"]] for each in (one, many))
    np.testing.assert_allclose(second.loc["scale"], 1000 * first.loc["scale"], rtol=0.02)
    np.testing.assert_allclose(second.loc["deg_free"], first.loc["deg_free"], rtol=0.02)
    assert one.likelihood.loc["scale"].lower < one.facts["scale"] < one.likelihood.loc["scale"].upper


def test_summaries_of_files_say_the_same(tmp_path: Path) -> None:
    fitted().save(tmp_path / "gam")
    assert str(GAMRegressor.load(tmp_path / "gam").summary()) == str(fitted().summary())


def test_tests_of_several_classes_are_of_a_term_in_all_of_them() -> None:
    random = np.random.default_rng(0)
    x = pd.DataFrame({"sex": random.choice(["f", "m"], 600), "other": random.choice(["p", "q"], 600)})
    grade = np.digitize(0.5 * (x.sex == "m") + random.logistic(size=600), [-0.7, 1.2])
    gam = GAMClassifier("~ sex + other", tolerance=1.0, hyperparameters="point").fit(x, grade)
    p = gam.summary().terms.p
    for name in x:
        own = p[[f"f({name})[{each}]" for each in range(3)]]
        expected = stats.chi2_contingency(pd.crosstab(x[name], grade), correction=False).pvalue
        assert own.nunique() == 1 and np.log(own.iloc[0]) == pytest.approx(np.log(expected), rel=0.3, abs=0.3)


def test_lines_and_curves_of_one_term_are_not_compared() -> None:
    random = np.random.default_rng(0)
    x = pd.DataFrame({"a": random.random(200), "g": random.choice(["p", "q"], 200)})
    x["b"] = x.a + 0.01 * random.random(200)
    y = np.sin(5 * x.a) + 2 * x.a + x.b + 0.1 * random.normal(size=200)
    gam = GAMRegressor("s(a, k=5) + s(b, k=5) + f(g)", tolerance=5.0, hyperparameters="point").fit(x, y)
    found = gam.concurvity()
    assert set(found.names) == {"intercept", "s(a)", "s(b)", "f(g)"}
    place = {name: index for index, name in enumerate(found.names)}
    assert found.pairwise_estimate[place["s(a)"], place["s(b)"]] > 0.9
    assert found.estimate[place["f(g)"]] < 0.2
    (message,) = [each for each in gam.summary().warnings if "stand for" in each]
    assert message.startswith("s(a) and s(b) can stand for each other")
    torch.testing.assert_close(gam.concurvity(x).estimate, found.estimate)


def test_pairs_of_one_term_are_named_together() -> None:
    pairs = {("a", "b"): 0.9, ("a", "c"): 1.0, ("d", "e"): 0.85}
    assert _named_pairs(pairs) == [
        "a and each of b, c can stand for each other in these data (concurvity 0.90 to 1.00): read their sum",
        "d and e can stand for each other in these data (concurvity 0.85): read their sum",
    ]


def test_tiny_shares_are_shown_as_such() -> None:
    shown = _shown_table(pd.DataFrame({"edf": [3e-8, 0.0], "share": [0.25, 2e-11], "prior_sd": [3e-5, 1.0]}))
    assert shown.split()[3:] == ["0", "<1e-4", "0.25", "3e-05", "1", "0", "<1e-4", "1"]


def test_partial_residuals_lie_around_what_is_shown() -> None:
    random = np.random.default_rng(0)
    data = pd.DataFrame({"x": random.uniform(0, 6, 200), "z": random.normal(size=200)})
    data["day"] = pd.Timestamp("2020-01-01") + pd.to_timedelta(random.integers(0, 900, 200), unit="D")
    data["y"] = 3 * np.sin(data.x) * data.z + 0.1 * random.normal(size=200)
    gam = GAMRegressor("y ~ s(x, by=z) + s(day, period='year')").fit(data)
    points = next(each for each in gam.plot_term("s(x, by=z)", data).lines if str(each.get_label())[0] == "p")
    used = data.z.abs() >= 0.25 * np.sqrt((data.z**2).mean())
    assert points.get_label() == "partial residuals / z, rows with |z| > 0.26"
    np.testing.assert_array_equal(points.get_xdata(), data.x[used])
    assert np.abs((points.get_ydata() - 3 * np.sin(data.x[used])) * data.z[used]).max() < 0.5
    dates = gam.plot_term("s(day, period=year)", data).lines[1].get_xdata()
    assert np.ptp(dates) <= np.timedelta64(366, "D")


def test_columns_may_have_the_names_of_columns_of_tables() -> None:
    names = {"age": "mean", "hour": "std", "site": "lower", "treated": "label"}
    x, y = table(), responses(table())
    terms = [te("mean", "std", k=3), f("lower"), s("upper", by="lower", k=4), f("label")]
    other = [te("age", "hour", k=3), f("site"), s("dose", by="site", k=4), f("treated")]
    x["dose"] = np.linspace(0, 1, len(x))
    gam = GAMRegressor(terms, tolerance=20.0).fit(x.rename(columns={**names, "dose": "upper"}), y)
    plain = GAMRegressor(other, tolerance=20.0).fit(x, y)
    for term, same in zip(gam.terms_, plain.terms_, strict=True):
        for scale in ("link", "response"):
            found, expected = gam.effect(term, scale=scale), plain.effect(same, scale=scale)
            assert found.columns.is_unique
            pd.testing.assert_frame_equal(found.set_axis(expected.columns, axis=1), expected)
        lines = [ax.plot_term(name).lines[-1].get_xydata() for ax, name in ((gam, term), (plain, same))]
        np.testing.assert_array_equal(*lines)
    assert "column mean" in gam.effect("te(mean, std)")
    assert next(iter(gam.difference("s(upper, by=lower)", "Oslo", "Voss"))) == "column upper"
    gam.plot_difference("s(upper, by=lower)", "Oslo", "Voss")
    gam.plot()
