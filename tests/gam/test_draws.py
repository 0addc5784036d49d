"""Functions drawn from the posterior are functions, have its moments, and are the sums of their parts."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest
import torch

from gpytorch_gam.gam import GAMRegressor, fs, re, s

from .data import fitted, responses, table


def largest_errors(values: np.ndarray, mean: np.ndarray, std: np.ndarray) -> tuple[float, float]:
    """The largest deviations of means and standard deviations over draws ``(S, n)``, in their standard errors."""
    num, own = len(values), values - values.mean(0)
    kurtosis = (own**4).mean(0) / (own**2).mean(0) ** 2  # draws under uncertain hyperparameters are not normal
    in_mean = (values.mean(0) - mean) / (std / np.sqrt(num))
    in_std = np.log(values.std(0) / std) / np.sqrt((kurtosis - 1) / (4 * num))
    return np.abs(in_mean).max(), np.abs(in_std).max()


# Four standard errors: of a hundred normal numbers, one is beyond with probability .006.
MOST = 4.0


def test_draws_have_the_moments_of_predictions() -> None:
    gam = fitted()
    away = table().head(12).assign(age=np.linspace(-100, 200, 12), subject="new")
    x = pd.concat([table().head(30), away])
    values = gam.draw_functions(4000, random_state=0)(x)
    assert max(largest_errors(values, *gam.predict_link(x, return_std=True))) < MOST


def test_parts_of_draws_add_up_and_have_the_moments_of_terms() -> None:
    x, gam = pd.concat([table().head(20), table().head(5).assign(age=np.linspace(0, 120, 5))]), fitted()
    draws = gam.draw_functions(4000, random_state=0)
    parts = draws.terms(x)
    np.testing.assert_allclose(sum(parts.values()) + draws.intercept()[:, None], draws(x), atol=1e-10)
    terms = gam.predict_terms(x)
    for label, values in parts.items():
        assert max(largest_errors(values, *(terms[label][name].to_numpy() for name in ("mean", "std")))) < MOST


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


@pytest.mark.parametrize("kernel", ["matern12", "matern32", "rbf"])
def test_draws_are_as_rough_as_the_kernel_between_inducing_points(kernel: str) -> None:
    x = pd.DataFrame({"a": np.linspace(0, 1, 60)})
    y = np.sin(6 * x.a) + 0.3 * np.random.default_rng(0).normal(size=60)
    gam = GAMRegressor([s("a", k=5, kernel=kernel)], hyperparameters="point").fit(x, y)
    grid = pd.DataFrame({"a": np.linspace(-2, 3, 40)})
    values = gam.draw_functions(4000, 0)(grid)
    assert max(largest_errors(values, *gam.predict_link(grid, return_std=True))) < MOST
    near = pd.DataFrame({"a": np.linspace(0.3, 0.5, 8)})
    posterior = gam.model_.components(gam._fitted.design.inputs(near))
    covariance = posterior.full_cross_covariance().detach().numpy().sum((0, 2)) * gam._fitted.scale_of(0) ** 2
    differences = np.diff(gam.draw_functions(4000, 0)(near))
    expected = np.diag(covariance)[1:] + np.diag(covariance)[:-1] - 2 * np.diag(covariance, 1)
    assert np.abs(np.log(differences.var(0) / expected)).max() < MOST * np.sqrt(2 / 4000) + 0.02  # of the waves


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


def test_curves_of_levels_are_drawn_those_of_new_ones_by_their_names() -> None:
    x = table()[["age", "site"]]
    gam = GAMRegressor([fs("age", "site", k=5)], hyperparameters="point").fit(x, responses(table()))
    rows = pd.concat([x.head(10), x.head(5).assign(site="Hamar"), x.head(5).assign(site="Bodo")])
    draws = gam.draw_functions(4000, 0)
    values = draws(rows)
    assert max(largest_errors(values, *gam.predict_link(rows, return_std=True))) < MOST
    correlation = np.corrcoef(draws.terms(rows)["fs(age, site)"][:, 10:].T)
    assert correlation[:5, 5:].max() < MOST / np.sqrt(4000)  # levels are independent
    same = gam.model_.predictor.groups[1].kernel(torch.from_numpy(gam._fitted.design.inputs(rows[10:15]).numpy()))
    expected = same.to_dense()[0].detach().numpy()
    np.testing.assert_allclose(correlation[:5, :5], expected / expected[0, 0], atol=MOST / np.sqrt(4000))
    np.testing.assert_allclose(draws(rows[::-1]), values[:, ::-1], atol=1e-9)


def test_draws_go_through_pickle_and_threads() -> None:
    x, draws = table().head(9), fitted().draw_functions(6, 0)
    expected = draws(x)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(draws))(x), expected)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(draws, [x] * 8):
            np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(draws[np.int64(2)](x), expected[2])


def test_slopes_of_new_levels_are_multiplied() -> None:
    x = table()[["age", "subject"]]
    gam = GAMRegressor([re("subject", by="age")], hyperparameters="point").fit(x, responses(table()))
    rows = x.head(4).assign(subject="new", age=[0.0, 1.0, 2.0, 4.0])
    values = gam.draw_functions(4000, 0).terms(rows)["re(subject, by=age)"]
    np.testing.assert_allclose(values, values[:, 1:2] * rows.age.to_numpy(), atol=1e-12)
    assert values[:, 0].max() == 0.0 and values[:, 1].std() > 0.0


def test_draws_of_the_effect_of_a_place() -> None:
    x = pd.DataFrame(np.random.default_rng(0).random((80, 2)), columns=["east", "north"])
    y = np.sin(4 * x.east) * x.north + 0.1 * np.random.default_rng(1).normal(size=80)
    gam = GAMRegressor([s("east", "north", k=12)], hyperparameters="point").fit(x, y)
    rows = 1.6 * x.head(30) - 0.3
    values = gam.draw_functions(4000, 0)(rows)
    assert max(largest_errors(values, *gam.predict_link(rows, return_std=True))) < MOST
