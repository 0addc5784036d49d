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
