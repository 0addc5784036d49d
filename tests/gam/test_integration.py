"""What estimators say is that of the mixture of models over which hyperparameters are integrated, all of it alike."""

from __future__ import annotations

import copy
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import optimize, stats

from gpytorch_gam.gam import GAMClassifier, GAMRegressor, f, s
from gpytorch_gam.gam import re as random_effect
from gpytorch_gam.gam.fitted import Fitted, alone
from gpytorch_gam.gam.integration import _widening

from .data import TERMS, fitted, responses, table


@pytest.fixture(autouse=True)
def quick_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here estimators integrate as they do for users, unlike in other modules. Other kernels are not looked for."""
    monkeypatch.setattr("gpytorch_gam.gam.smoothness._OTHERS", ())


def members(gam: GAMRegressor, x: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Weights ``(K, 1)``, and each model's means and variances of the predictor ``(K, n)`` and noise ``(K, 1)``."""
    inner: Fitted = gam._fitted
    inputs, units = inner.design.inputs(x), inner.units
    with torch.no_grad():
        parts = [model(inputs) for model in inner.mixture.models]
        noises = [each.likelihood.noise.item() for each in inner.mixture.likelihoods]
    means = np.stack([units.centre + units.scale * part.mean.numpy() for part in parts])
    variances = np.stack([units.scale**2 * part.variance.numpy() for part in parts])
    return inner.mixture.weights.numpy()[:, None], means, variances, units.scale**2 * np.array(noises)[:, None]


def test_predictions_have_the_moments_and_quantiles_of_the_mixture() -> None:
    x, gam = table().head(7), fitted()
    assert gam.hyperparameters_.startswith("integrated over") and len(gam._fitted.mixture.weights) > 1
    assert gam.summary().facts["hyperparameters"] == gam.hyperparameters_
    weights, means, variances, noises = members(gam, x)
    mean = (weights * means).sum(0)
    variance = (weights * (variances + (means - mean) ** 2)).sum(0)
    found, std = gam.predict(x, return_std=True)
    np.testing.assert_allclose(found, mean, rtol=1e-6)
    np.testing.assert_allclose(std**2, variance + (weights * noises).sum(), rtol=1e-6)
    link, link_std = gam.predict_link(x, return_std=True)
    np.testing.assert_allclose(link, mean, rtol=1e-6)
    np.testing.assert_allclose(link_std**2, variance, rtol=1e-6)
    lower, upper = gam.mean_interval(x, 0.9).T
    np.testing.assert_allclose(upper - lower, 2 * stats.norm.ppf(0.95) * link_std)
    low, high = gam.observation_interval(x, 0.8).T
    for row in range(len(x)):
        normals = stats.norm(means[:, row], np.sqrt(variances[:, row] + noises[:, 0]))
        for end, level in ((low[row], 0.1), (high[row], 0.9)):
            expected = optimize.brentq(lambda y, n=normals, p=level: weights[:, 0] @ n.cdf(y) - p, mean[row] - 5, 10)
            assert end == pytest.approx(expected, abs=1e-8)


def test_effects_and_their_bands_are_wider_and_the_same_everywhere() -> None:
    x, gam = table().head(40), fitted()
    point = GAMRegressor(TERMS, hyperparameters="point").fit(table(), responses(table()))
    assert point.hyperparameters_ == "point estimates: as asked for"
    label = "s(age)"
    effects, known = (each.predict_terms(x)[label] for each in (gam, point))
    assert 1.0 < (effects["std"] / known["std"]).mean() < 1.5
    assert np.abs(effects["mean"] - known["mean"]).max() < known["std"].max()
    grid = gam.effect(label, num=5, simultaneous=True)
    again = gam.predict_terms(x.iloc[[0] * 5].assign(age=grid.age.to_numpy()))[label]
    np.testing.assert_allclose(grid[["mean", "std"]], again[["mean", "std"]], atol=1e-9)
    assert (grid.upper_all > grid.upper).all()
    draws = gam.draw_functions(4000, 0).terms(x)[label]
    assert np.abs(np.log(draws.std(0) / effects["std"])).max() < 4 / np.sqrt(8000)


def test_an_effect_that_is_switched_off_has_a_band() -> None:
    random = np.random.default_rng(1)
    x = pd.DataFrame(random.random((50, 2)), columns=["a", "b"])
    labels = random.random(50) < 1 / (1 + np.exp(-3 * (x.a - 0.5)))
    gam, point = (GAMClassifier([s("a"), s("b")], hyperparameters=how).fit(x, labels) for how in ("auto", "point"))
    assert {"s(b)", "s(b).line"} <= {*point.result_.switched_off} and point.effect("s(b)")["std"].max() < 0.01
    assert gam.effect("s(b)")["std"].min() > 0.1
    pd.testing.assert_series_equal(gam.summary().terms.p, point.summary().terms.p)  # those of the estimates


def test_probabilities_of_classes_are_those_of_the_mixture() -> None:
    x = table()[["age", "site"]].head(60)
    y = np.where(x.age < 45, "low", np.where(x.site == "Oslo", "mid", "high"))
    gam = GAMClassifier([s("age", k=5), f("site")], hyperparameters="integrated").fit(x, y)
    inner: Fitted = gam._fitted
    assert len(inner.mixture) > 1
    mixture, inputs = inner.mixture, inner.design.inputs(x.head(5))
    with torch.no_grad():
        pairs = zip(mixture.models, mixture.likelihoods, strict=True)
        each = torch.stack([likelihood(model(inputs)).probs for model, likelihood in pairs])
    expected = torch.einsum("k,knc->nc", mixture.weights, each)
    np.testing.assert_allclose(gam.predict_proba(x.head(5)), expected, atol=0.02)  # their quadratures draw


def test_minibatches_leave_point_estimates_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpytorch_gam.training._settling._NUM_STEPS", 8)
    x = table()[["age"]]
    gam = GAMRegressor([s("age", k=5)], method="minibatches", tolerance=1.0).fit(x, responses(table()))
    assert "minibatches" in gam.hyperparameters_ and len(gam._fitted.mixture) == 1
    assert gam.summary().facts["hyperparameters"] == gam.hyperparameters_


def test_without_any_uncertain_hyperparameter_the_estimates_remain() -> None:
    x = pd.DataFrame({"a": np.zeros(20)})
    with pytest.warns(UserWarning, match="the same value"):
        gam = GAMRegressor([s("a")], hyperparameters="integrated").fit(x, np.arange(20.0))
    assert gam.predict(x.head(2)) == pytest.approx([9.5, 9.5], abs=0.1)


def test_other_choices_are_refused() -> None:
    with pytest.raises(ValueError, match="hyperparameters must be"):
        GAMRegressor(hyperparameters="bayes").fit(table()[["age"]], responses(table()))


def test_points_of_which_one_has_all_the_weight_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpytorch_gam.gam.integration._LEAST_EFFECTIVE", 1000.0)
    monkeypatch.setattr("gpytorch_gam.gam.integration._LEAST_SHARE", 1000.0)
    x = table()
    assert re.match(
        r"point estimates: of \d+ models, \d\.\d have weight \(in \d+\.\d s\)",
        GAMRegressor([s("age", k=5)]).fit(x, responses(x)).hyperparameters_,
    )
    asked = GAMRegressor([s("age", k=5)], hyperparameters="integrated").fit(x, responses(x))
    assert asked.hyperparameters_.startswith("integrated over")


def test_the_two_points_of_a_single_hyperparameter_are_enough() -> None:
    x = table()[["subject"]]
    labels = np.random.default_rng(0).random(len(x)) < 0.2 + 0.6 * (x.subject > "p5")
    assert (
        GAMClassifier([random_effect("subject")])
        .fit(x, labels)
        .hyperparameters_.startswith("integrated over 2 models in ")
    )


def test_integration_that_hardly_widens_bands_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpytorch_gam.gam.integration._LEAST_WIDENING", 10.0)
    x = table()
    found = GAMRegressor([s("age", k=5)], tolerance=0.5).fit(x, responses(x))
    assert re.fullmatch(r"point estimates: integrated over, bands are \d+\.\d% wider \(.* s\)", found.hyperparameters_)
    assert len(found._fitted.mixture) == 1


def test_widening_is_that_of_predictors_and_effects() -> None:
    gam, x = fitted(), table()
    inner: Fitted = gam._fitted
    point = copy.copy(gam)
    point._fitted = replace(inner, mixture=alone(inner.model, inner.likelihood))
    squares = []
    for each in (gam, point):
        effects = each.predict_terms(x).xs("std", axis=1, level=1).to_numpy()
        squares.append((effects**2).sum() + (each.predict_link(x, return_std=True)[1] ** 2).sum())
    assert _widening(inner, inner.mixture) == pytest.approx(np.sqrt(squares[0] / squares[1]) - 1, rel=1e-6)


def test_integration_is_left_out_unasked_where_a_pass_over_the_rows_is_dear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpytorch_gam.gam.integration.MOST_OF_INTEGRATED_FITS", 1000)
    gam = GAMRegressor([s("age", k=4)], tolerance=1.0).fit(table(), responses(table()))
    assert gam.hyperparameters_.startswith("point estimates: 120 rows of 6 features, and the uncertainty of each")
    gam.set_params(hyperparameters="integrated").fit(table(), responses(table()))
    assert gam.hyperparameters_.startswith("integrated over")
