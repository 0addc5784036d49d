"""Effects on the scale of the response, and pictures that compare their sizes."""

from __future__ import annotations

import functools

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from scipy.special import ndtr

from gpytorch_gam.gam import GAMClassifier, GAMRegressor, f, re, s, te

from .data import responses, table


@pytest.fixture(autouse=True)
def closed_figures() -> object:
    yield
    plt.close("all")


@functools.cache
def counts() -> GAMRegressor:
    x, random = table(), np.random.default_rng(2)
    data = x.assign(deaths=random.poisson(5 * np.exp(np.sin(x.age / 10))))
    formula = "deaths ~ s(age, k=6) + f(site) + s(day, by=site, k=4)"
    return GAMRegressor(formula, family="poisson", tolerance=0.5, hyperparameters="integrated").fit(data)


@functools.cache
def spread() -> GAMRegressor:
    x = table()
    data = x.assign(y=50 + 10 * responses(x) * np.where(x.treated, 3, 1))
    formulas = ["y ~ s(age, k=5)", "~ f(treated)"]
    return GAMRegressor(formulas, family="gaussian_location_scale", tolerance=0.5).fit(data)


def rows_with(**columns: object) -> pd.DataFrame:
    num = len(next(iter(columns.values())))  # type: ignore[arg-type]
    return table().head(1).loc[[0] * num].assign(**columns)


def test_effects_through_a_link_are_means_with_all_others_zero() -> None:
    gam = counts()
    found = gam.effect("s(age)", num=20, scale="response")
    mean, deviation = gam.predict_link(rows_with(age=found.age.to_numpy()), return_std=True, only="s(age)")
    np.testing.assert_allclose(found["mean"], np.exp(mean), rtol=1e-9)
    np.testing.assert_allclose(found.upper, np.exp(mean + 1.959964 * deviation), rtol=1e-6)
    assert found.columns.tolist() == ["age", "mean", "lower", "upper"]
    wide = gam.effect("s(age)", num=20, scale="response", simultaneous=True)
    assert (wide.lower_all < wide.lower).all()
    assert (wide.upper < wide.upper_all).all()


def test_scales_of_further_predictors_are_in_units_of_the_response() -> None:
    gam = spread()
    mean = gam.effect("s(age)", num=20, scale="response")
    np.testing.assert_allclose(mean["mean"], gam.predict(rows_with(age=mean.age.to_numpy()), only="s(age)"), rtol=1e-9)
    scale = gam.effect("f(treated)[log_scale]", scale="response")
    link = gam.predict_link(rows_with(treated=scale.treated.to_numpy()))[:, 1]
    np.testing.assert_allclose(scale["mean"], np.exp(link), rtol=1e-9)
    ax = gam.plot_term("f(treated)[log_scale]", scale="response")
    assert ax.get_xlabel() == "scale"
    assert gam.plot_term("f(treated)[log_scale]").get_xlabel() == "effect on log scale"


def test_probabilities_are_those_of_the_second_class() -> None:
    x = table()[["age", "site"]]
    y = np.where(responses(table(), noise=1.0) > 0.3, "yes", "no")
    gam = GAMClassifier([s("age", k=5), f("site")], tolerance=0.5).fit(x, y)
    found = gam.effect("f(site)", scale="response")
    assert found[["lower", "mean", "upper"]].to_numpy().min() > 0
    assert found[["lower", "mean", "upper"]].to_numpy().max() < 1
    assert gam.plot_term("f(site)", scale="response").get_xlabel() == "probability of class yes"
    assert gam.plot_term("f(site)").get_xlabel() == "effect on log odds of class yes"
    assert "predictor: log odds of class yes" in str(gam.summary())
    truths = GAMClassifier([f("site")], family="probit", tolerance=0.5).fit(x, y == "yes")
    assert truths.summary().facts["predictor"] == "probit of class True"
    assert "predictor" not in counts().summary().facts


@pytest.mark.parametrize("family", ["softmax", "ordinal"])
def test_probabilities_of_several_classes(family: str) -> None:
    x = table()[["age", "treated"]]
    grade = np.digitize(responses(table(), noise=0.5) + x.treated, [-0.3, 0.8])
    gam = GAMClassifier([s("age", k=5), f("treated")], family=family, tolerance=0.5).fit(x, grade)
    found = gam.effect("s(age)", num=5, scale="response")
    assert found.columns.tolist() == ["age", "class", "mean", "lower", "upper"]
    rows = rows_with(age=found.age[:5].to_numpy())
    means = gam.predict_proba(rows, only="s(age)")
    np.testing.assert_allclose(found["mean"].to_numpy().reshape(3, 5).T, means, atol=1e-9)
    assert (found.lower < found["mean"]).all() and (found["mean"] < found.upper).all()
    ends = gam.probability_interval(x.head(4))
    assert ends.shape == (4, 3, 2)
    figure = gam.plot(scale="response")
    assert [ax.get_title() for ax in figure.axes] == ["s(age)", "f(treated)"]
    assert figure.axes[0].get_ylabel() == figure.axes[1].get_xlabel() == "probability of each class"
    with pytest.raises(ValueError, match="simultaneous must be False for probabilities of several classes"):
        gam.effect("s(age)", scale="response", simultaneous=True)


def test_intervals_of_ordered_classes_are_those_of_the_latent_predictor() -> None:
    """The probability of the lowest class is a decreasing function of the latent predictor, so quantiles map."""
    x = table()[["age"]]
    grade = np.digitize(responses(table(), noise=0.5), [-0.3, 0.8])
    gam = GAMClassifier([s("age", k=5)], family="ordinal", tolerance=0.5, hyperparameters="point").fit(x, grade)
    mean, deviation = gam.predict_link(x, return_std=True)
    cut = gam.likelihood_.cutpoints[0].item()
    expected = ndtr(cut - mean[:, None] + 1.959964 * deviation[:, None] * np.array([-1, 1]))
    np.testing.assert_allclose(gam.probability_interval(x)[:, 0], expected, atol=0.003)  # by 2048 draws


def test_surfaces_of_several_classes_are_tables() -> None:
    x = table()[["age", "hour"]]
    gam = GAMClassifier([te("age", "hour", k=3)], tolerance=1.0, hyperparameters="point").fit(x, table().site)
    assert len(gam.effect("te(age, hour)", num=9, scale="response")) == 27
    with pytest.raises(ValueError, match=r"scale must be 'link' for te.age, hour..Bergen. in pictures of the family"):
        gam.plot(scale="response")


def test_effects_on_one_predictor_are_drawn_in_one_range() -> None:
    gam = counts()
    figure = gam.plot()
    age, site, day = figure.axes
    assert age.get_ylim() == day.get_ylim() == site.get_xlim()
    assert age.get_ylabel() == site.get_xlabel() == "effect on log mean"
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["95% band of the whole curve", "95% band at each point"]
    assert age.get_legend() is None
    assert day.get_legend().get_title().get_text() == "site, 95% bands at each point"
    free = gam.plot(sharey=False).axes
    assert free[0].get_ylim() != free[2].get_ylim()
    assert gam.plot(scale="response").axes[0].get_ylabel() == "mean of deaths"
    first, second = spread().plot().axes
    assert first.get_ylim() != second.get_xlim()


def test_levels_stand_in_their_order_and_long_names_are_cut_in_the_middle() -> None:
    x = table()[["age"]].assign(g=[f"a place with a long name {number % 3}" for number in range(len(table()))])
    gam = GAMRegressor([f("g"), re("g")], tolerance=0.5).fit(x, responses(table()))
    for label in gam.terms_:
        ax = gam.plot_term(label)
        names = [text.get_text() for text in ax.get_yticklabels()]
        assert ax.get_ylim()[0] > ax.get_ylim()[1]  # from top to bottom
        assert all(len(name) <= 22 and name.startswith("a place") for name in names)
        assert len(set(names)) == 3
    assert [name[-1] for name in (text.get_text() for text in gam.plot_term("f(g)").get_yticklabels())] == list("012")


def test_surfaces_are_blank_without_data_and_have_labelled_contours() -> None:
    x = table()[["age"]].assign(z=table().age + np.random.default_rng(0).normal(size=len(table())))
    gam = GAMRegressor([te("age", "z", k=3)], tolerance=0.5).fit(x, responses(table()))
    ax = gam.plot_term(gam.terms_[0])
    drawn = np.concatenate([path.vertices for each in ax.collections for path in each.get_paths()])
    corner = (drawn[:, 0] < 35) & (drawn[:, 1] > 65)
    assert not corner.any()
    assert any(text.get_text() for text in ax.texts)


def test_partial_residuals_see_the_response_that_the_formula_names_and_the_exposure() -> None:
    x, random = table(), np.random.default_rng(2)
    data = x.assign(hours=random.uniform(1, 9, len(x)))
    data["deaths"] = random.poisson(data.hours * np.exp(np.sin(x.age / 10)))
    gam = GAMRegressor("deaths ~ s(age, k=6)", family="poisson", tolerance=0.5).fit(data, exposure="hours")
    (points,) = (
        line
        for line in gam.plot_term("s(age)", data, exposure="hours").lines
        if line.get_label() == "partial residuals"
    )
    mean = gam.predict(data, exposure="hours")
    expected = gam.predict_terms(data)["s(age)"]["mean"] + data.deaths / mean - 1
    np.testing.assert_allclose(points.get_ydata(), expected, atol=1e-9)
    named = gam.quantile_residuals(data, exposure="hours")
    np.testing.assert_array_equal(named, gam.quantile_residuals(data, data.deaths, exposure=data.hours))
    assert gam.check(data, exposure="hours").axes[-1].get_xlabel() == "age"


def test_what_pictures_cannot_show_is_refused() -> None:
    gam, x = counts(), table()
    with pytest.raises(ValueError, match="scale must be one of"):
        gam.plot(scale="log")
    with pytest.raises(TypeError, match="sharey must be"):
        gam.plot(sharey="all")
    with pytest.raises(ValueError, match="partial residuals are on the link scale"):
        gam.plot_term("s(age)", x, np.ones(len(x)), scale="response")
