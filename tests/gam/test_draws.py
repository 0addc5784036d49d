"""Functions drawn from the posterior are functions, have its moments, and are the sums of their parts."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from gpytorch_gam.gam import GAMRegressor, fs, s

from .data import fitted, responses, table


def test_draws_have_the_moments_of_predictions() -> None:
    gam = fitted()
    x = pd.concat([table().head(30), table().head(1).assign(subject="new")])
    mean, std = gam.predict_link(x, return_std=True)
    values = gam.draw_functions(1000, random_state=1)(x)
    assert np.abs((values.mean(0) - mean) / std).max() < 3.5 / np.sqrt(1000)  # the largest of 31 standard errors
    assert np.abs(np.log(values.std(0) / std)).max() < 3.5 / np.sqrt(2000)


def test_parts_of_draws_add_up_and_have_the_moments_of_terms() -> None:
    x, gam = table().head(20), fitted()
    draws = gam.draw_functions(800, random_state=1)
    parts = draws.terms(x)
    np.testing.assert_allclose(sum(parts.values()) + draws.intercept()[:, None], draws(x), atol=1e-10)
    terms = gam.predict_terms(x)
    for label, values in parts.items():  # the interaction is off: its prior between the points of a surface is missing
        if label == "ti(age, hour)":
            continue
        assert np.abs(np.log(values.std(0) / terms[label]["std"])).max() < 4 / np.sqrt(1600)


def test_a_draw_has_the_same_value_in_the_same_row_of_any_table() -> None:
    x, draws = table().assign(subject=lambda t: t.subject.replace("p1", "new")), fitted().draw_functions(5, 3)
    whole = draws(x)
    np.testing.assert_allclose(draws(x.sample(frac=1.0, random_state=0).head(9)), whole[:, _first(x)], atol=1e-9)
    np.testing.assert_allclose(draws[2](x), whole[2], atol=1e-9)
    np.testing.assert_allclose(draws[1:3](x), whole[1:3], atol=1e-9)
    np.testing.assert_allclose(fitted().draw_functions(5, 3)(x), whole, atol=1e-9)
    with pytest.raises(IndexError, match="5 functions"):
        draws[5]


def _first(x: pd.DataFrame) -> list[int]:
    return x.sample(frac=1.0, random_state=0).head(9).index.tolist()


def test_draws_are_as_rough_as_the_kernel_between_inducing_points() -> None:
    x = pd.DataFrame({"a": np.linspace(0, 1, 60)})
    y = np.sin(6 * x.a) + 0.3 * np.random.default_rng(0).normal(size=60)
    gam = GAMRegressor([s("a", k=5, kernel="matern12")]).fit(x, y)
    grid = pd.DataFrame({"a": np.linspace(0.02, 0.98, 40)})
    _, std = gam.predict_link(grid, return_std=True)
    values = gam.draw_functions(1000, 0)(grid)
    assert np.abs(np.log(values.std(0) / std)).max() < 0.1  # that of five inducing points alone is off by far more


def test_means_of_draws_are_seen_through_the_link() -> None:
    x = table()[["age"]]
    gam = GAMRegressor([s("age", k=5)], family="poisson").fit(x, np.random.default_rng(0).poisson(3.0, len(x)))
    draws = gam.draw_functions(3, 0)
    np.testing.assert_allclose(draws.mean(x), np.exp(draws(x)))


def test_functions_have_no_value_where_columns_are_missing() -> None:
    x = table()[["age"]]
    x.loc[3, "age"] = np.nan
    gam = GAMRegressor([s("age", k=5, missing="marginal")]).fit(x, responses(table()))
    with pytest.raises(ValueError, match="no value in 1 of 120 rows"):
        gam.draw_functions(2, 0)(x)


def test_curves_of_levels_are_drawn() -> None:
    x = table()[["age", "site"]]
    gam = GAMRegressor([fs("age", "site", k=5)]).fit(x, responses(table()))
    _, std = gam.predict_link(x.head(10), return_std=True)
    values = gam.draw_functions(1000, 0)(x.head(10))
    assert np.abs(np.log(values.std(0) / std)).max() < 4 / np.sqrt(2000)
    with pytest.raises(ValueError, match="no curves for levels"):
        gam.draw_functions(2, 0)(x.head(3).assign(site="Hamar"))
