"""Formulas mean what they mean in R where they look the same."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from gpytorch_gam.gam import GAMRegressor
from gpytorch_gam.warnings import ColumnKindWarning

NOISE = 0.1


def columns() -> pd.DataFrame:
    """Two numbers away from zero, and a category."""
    random = np.random.default_rng(0)
    return pd.DataFrame({"x": random.uniform(1, 8, 200), "z": random.uniform(2, 9, 200), "g": list("ab") * 100})


def noise() -> np.ndarray:
    return NOISE * np.random.default_rng(1).normal(size=200)


def test_a_linear_effect_by_a_number_is_the_product_of_both() -> None:
    data = columns().assign(y=lambda each: each.x - 2 * each.z + 3 * each.x * each.z + noise())
    gam = GAMRegressor("y ~ x + z + linear(x, by=z)").fit(data)
    np.testing.assert_allclose(gam.predict(data), data.y - noise(), atol=0.1)
    at = pd.DataFrame({"x": [0.0, 1.0, 2.0], "z": [5.0, 0.0, 3.0]})
    product = gam.predict_terms(at)["linear(x, by=z)"]["mean"].to_numpy()
    np.testing.assert_allclose(product, [0.0, 0.0, 18.0], atol=0.1)
    for_each = gam.effect("linear(x, by=z)", at=2.0)["mean"].item()  # unit of z
    assert for_each == pytest.approx(6.0, abs=0.05)


def test_slopes_of_levels_beside_their_levels_are_lines_of_each() -> None:
    data = columns().assign(y=lambda each: np.where(each.g == "a", 4 * each.x, 7 - each.x) + noise())
    gam = GAMRegressor("y ~ g + linear(x, by=g)").fit(data)
    np.testing.assert_allclose(gam.predict(data), data.y - noise(), atol=0.15)


def test_a_product_with_a_column_like_years_is_warned_of() -> None:
    data = columns().assign(x=lambda each: 2000 + each.x, y=lambda each: each.z)
    with pytest.warns(ColumnKindWarning, match="'x' is far from zero .* subtract something from 'x'"):
        GAMRegressor("y ~ x + z + linear(x, by=z)").fit(data)


@pytest.mark.parametrize(
    ("family", "slope"), [("gaussian", 0.54), ("student_t", 0.54), ("gamma", 0.2), ("poisson", 0.3)]
)
def test_without_an_intercept_a_line_goes_through_zero(family: str, slope: float) -> None:
    data, random = columns(), np.random.default_rng(2)
    mean = slope * data.x.to_numpy()
    make = {"gamma": lambda: random.gamma(20.0, np.exp(mean) / 20), "poisson": lambda: random.poisson(np.exp(mean))}
    data["y"] = make.get(family, lambda: mean + 3 * noise())()
    gam = GAMRegressor("y ~ x - 1", family=family).fit(data)
    mean, deviation = gam.predict_link(pd.DataFrame({"x": [0.0, 1.0]}), return_std=True)
    assert mean[0] == deviation[0] == 0
    assert mean[1] == pytest.approx(slope, abs=4 * deviation[1])
    assert 0 < deviation[1] < 0.05 * slope
    assert gam.intercepts().empty


def test_without_an_intercept_slopes_of_levels_go_through_zero() -> None:
    data = columns().assign(y=lambda each: np.where(each.g == "a", 0.5, 2.0) * each.x + noise())
    gam = GAMRegressor("y ~ linear(x, by=g) - 1").fit(data)
    at = pd.DataFrame({"x": [0.0, 1.0, 1.0], "g": ["a", "a", "b"]})
    np.testing.assert_allclose(gam.predict(at), [0.0, 0.5, 2.0], atol=0.02)


def test_a_line_through_zero_has_the_bands_of_least_squares_without_an_intercept() -> None:
    data = pd.DataFrame({"x": np.random.default_rng(0).uniform(5, 6, 200)}).assign(y=3 + noise())
    gam = GAMRegressor("y ~ x - 1").fit(data)
    slope = data.x @ data.y / (data.x @ data.x)
    noise_deviation = np.sqrt(np.mean((data.y - slope * data.x) ** 2))
    mean, deviation = gam.predict_link(pd.DataFrame({"x": [1.0]}), return_std=True)
    assert mean[0] == pytest.approx(slope, rel=1e-3)
    assert deviation[0] == pytest.approx(noise_deviation / np.sqrt(data.x @ data.x), rel=0.05)


@pytest.mark.parametrize(
    ("terms", "family", "match"),
    [
        ("y ~ x + g - 1", "gaussian", r"f\(g\) has sum zero .* leave out '- 1'"),
        ("y ~ x - 1", "gaussian_location_scale", "intercept of log_scale, which family .* needs"),
        ("y ~ 0", "gaussian", "neither a term nor an intercept"),
    ],
)
def test_what_has_no_meaning_without_an_intercept_is_refused(terms: str, family: str, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        GAMRegressor(terms, family=family).fit(columns().assign(y=noise()))
