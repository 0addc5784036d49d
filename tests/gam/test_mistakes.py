"""What a user would naturally write, and what is said where it cannot be meant."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from gpytorch_gam.gam import GAMClassifier, GAMRegressor, f, linear
from gpytorch_gam.gam.families import Quantile
from gpytorch_gam.warnings import OverfittingWarning

X = pd.DataFrame({"a": np.linspace(-1, 1, 40), "g": list("uv") * 20})
Y = X.a.to_numpy() + np.tile([0.0, 1.0], 20)


def gam(terms: str = "~ a + f(g)") -> GAMRegressor:
    return GAMRegressor(terms, tolerance=1.0)


def test_structured_arrays_are_tables() -> None:
    found = gam().fit(X.to_records(index=False), Y)
    np.testing.assert_allclose(found.predict(X), gam().fit(X, Y).predict(X))


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_arrays_are_read_by_position_after_a_fit_to_names() -> None:
    found = gam("~ a").fit(X[["a"]], Y)
    np.testing.assert_allclose(found.predict(X[["a"]].to_numpy()), found.predict(X))


@pytest.mark.parametrize("name", ["my col", "a[1]", "größe", "a.b", "a-b", "1st", "intercept"])
def test_names_in_backticks(name: str) -> None:
    renamed = X.rename(columns={"a": name})
    for terms in (f"~ `{name}`", f"~ linear(`{name}`)"):
        assert gam(terms).fit(renamed, Y).terms_ == [f"linear({name})"]


def test_columns_whose_names_are_numbers_are_those_of_their_digits() -> None:
    numbered = X.set_axis([0, 1], axis=1)
    for terms in ("~ `0` + f(`1`)", [linear("0"), f("1")]):
        found = GAMRegressor(terms, tolerance=1.0).fit(numbered, Y)
        np.testing.assert_allclose(found.predict(numbered), gam().fit(X, Y).predict(X))
    with pytest.raises(ValueError, match="several columns named"):
        found.fit(X.set_axis([0, "0"], axis=1), Y)
    with pytest.raises(ValueError, match=r"`1` by itself counts as the intercept: write linear\(`1`\)"):
        gam("~ `0` + `1`").fit(numbered, Y)


@pytest.mark.parametrize(
    ("data", "response", "error", "message"),
    [
        (X.rename(columns={"g": "a"}), Y, ValueError, r"several columns named \['a'\]"),
        (dict(X), Y, TypeError, r"X is a dict: take pandas.DataFrame\(X\)"),
        (X.assign(a=np.nan), Y, ValueError, "column 'a' has (no finite value: leave it out|NaN in 40 of 40)"),
        (X.assign(a=[1, "x"] * 20), Y, TypeError, "column 'a' has number beside text"),
        (X, pd.date_range("2020", periods=40), TypeError, r"y holds datetime64\[.s\]: give numbers"),
        (X, np.arange(40).astype("timedelta64[ns]"), TypeError, r"y holds timedelta64\[ns\]: give numbers"),
        (X, list(pd.date_range("2020", periods=40)), TypeError, "y holds Timestamp: give numbers"),
        (X, Y.astype(str), TypeError, "y holds text: convert it with pandas.to_numeric"),
        (X, Y * 1e200, ValueError, r"up to 2e\+200, whose squares overflow: divide it by a constant"),
        (X, Y * 1e-200, ValueError, "up to 2e-200, whose squares are lost: multiply it by a constant"),
    ],
)
def test_data_that_cannot_be_meant(data: Any, response: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        gam().fit(data, response)


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ("~ s(my col)", "stand in backticks"),
        ("~ s(1st)", "stand in backticks"),
        ("~ s(class)", "words of Python"),
        ('~ s(a, bs="cc")', r"there is no bs: periodic effects are s\(x, period=24\)"),
    ],
)
def test_formulas_that_cannot_be_read(terms: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gam(terms).fit(X, Y)


def test_names_of_other_packages_and_single_classes() -> None:
    with pytest.raises(ValueError, match="'nb' is called 'negative_binomial' here"):
        GAMRegressor("~ a", family="nb").fit(X, Y)
    with pytest.raises(ValueError, match="y has one class, 1: a classifier"):
        GAMClassifier("~ a").fit(X, np.ones(40, int))


@pytest.mark.parametrize("method", ["log_density", "log_score", "leave_one_out", "quantile_residuals", "sobol_indices"])
@pytest.mark.parametrize("tables", [[X, X], (each for each in [X])])
def test_tables_in_parts_where_one_is_read(method: str, tables: Any) -> None:
    found = gam().fit(X, Y)
    responses = () if method == "sobol_indices" else (Y,)
    with pytest.raises(TypeError, match=r"X must be one table in memory here, got a \w+.*pandas.concat\(X\)"):
        getattr(found, method)(tables, *responses)


def test_scores_take_the_names_of_columns() -> None:
    data = X.assign(y=Y, label=np.where(Y > 0, "up", "down"), w=np.arange(40.0))
    found, labels = GAMRegressor("y ~ a", tolerance=1.0).fit(data), GAMClassifier("label ~ a", tolerance=1.0).fit(data)
    assert found.score(data) == found.score(data, "y") == found.score(data, Y)
    assert found.score(data, "y", "w") == found.score(data, Y, data.w)
    assert labels.score(data) == labels.score(data, data.label) == (labels.predict(data) == data.label).mean()
    with pytest.raises(ValueError, match="y is None, and no formula names"):
        gam().fit(X, Y).score(X)


def test_no_rows_to_predict() -> None:
    with pytest.raises(ValueError, match=r"Found 0 sample\(s\)"):
        gam().fit(X, Y).predict(X[:0])


def test_levels_that_the_fit_has_not_seen() -> None:
    names = [f"l{index}" for index in range(200)]
    seen = pd.DataFrame({"g": names[:150] * 2})
    y = np.random.default_rng(0).normal(size=300) + np.tile(np.random.default_rng(1).normal(size=150), 2)
    every = pd.DataFrame({"g": names})
    found = gam("~ re(g)").fit(seen, y)
    mean, deviation = found.predict_link(every, return_std=True)
    np.testing.assert_allclose(mean[150:], mean[150])  # unknown ones have the mean of all
    assert (deviation[150:] > deviation[:150].max()).all()
    assert found.outside_range(every).g.sum() == 50
    with pytest.raises(ValueError, match=r"\(50 in all\)\], which the fit has not seen.*re\(g\) allows others"):
        gam("~ f(g)").fit(seen, y).predict(every)


def test_a_dot_in_a_formula_says_what_stands_for_it() -> None:
    x = pd.DataFrame({"a": [1.0, 2.0, 3.0], "y": [1.0, 2.0, 3.0]})
    with pytest.raises(ValueError, match="terms='auto' for a term of each"):
        GAMRegressor("y ~ .").fit(x)
    with pytest.raises(ValueError, match=r"NaN in 1 of 3 rows.*leave these rows out"):
        GAMRegressor("y ~ a").fit(x.assign(y=[1.0, np.nan, 2.0]))


def test_a_response_among_the_effects_is_refused() -> None:
    x = pd.DataFrame({"a": np.arange(20.0), "y": np.sin(np.arange(20.0))}, index=np.arange(20) // 2)
    for terms in ("auto", "~ s(a) + y"):
        with pytest.raises(ValueError, match=r"y is the column 'y' of X.*pass y='y'"):
            GAMRegressor(terms, hyperparameters="point").fit(x, x.y)
    label = x.assign(y=np.where(x.y > 0, "up", "down"))
    with pytest.raises(ValueError, match="would be an effect on itself"):
        GAMClassifier(hyperparameters="point").fit(label, label.y)
    same_name = GAMRegressor("~ a", hyperparameters="point").fit(x.drop(columns="y"), x.y)
    assert same_name.terms_ == ["linear(a)"]


def test_predictions_that_cannot_be_meant() -> None:
    found = gam().fit(X, Y)
    twice = pd.concat([X, X[["a"]]], axis=1)
    for call, error, message in (
        (lambda: found.predict(twice), ValueError, r"several columns named \['a'\]"),
        (
            lambda: found.predict(X.assign(a=1e60), return_std=True),
            ValueError,
            "'a' is more than 1e.50 of its standard",
        ),
        (lambda: found.predict(X, offset=["1"] * 40), TypeError, "offset must be a number, or one for each row"),
        (lambda: found.predict(X, only=5), TypeError, "only must be a list of labels of terms, got 5"),
        (lambda: found.predict_quantiles(X, [[0.1, 0.9]]), TypeError, "probabilities must be a number between 0 and 1"),
        (lambda: found.predict_quantiles(X, "a"), TypeError, "probabilities must be a number between 0 and 1"),
    ):
        with pytest.raises(error, match=message):
            call()
    mean, deviation = found.predict(X.assign(a=1e49), return_std=True)
    assert np.isfinite(mean).all() and np.isfinite(deviation).all()
    assert found.predict(X.assign(other=1.0)[["other", "g", "a"]], offset=pd.array([0] * 40, dtype="Int64")).shape == (
        40,
    )


def test_quantiles_with_hardly_a_row_beyond_them_are_warned_of() -> None:
    with pytest.warns(OverfittingWarning, match="only about 1.5 of 150 rows are beyond the 0.99 quantile"):
        Quantile(0.99).warn_of_few_rows(150)
    Quantile(0.95).warn_of_few_rows(150)


def ordered_labels(library: str, labels: np.ndarray, order: list[str]) -> Any:
    if library == "polars":
        polars = pytest.importorskip("polars")
        return polars.Series(labels.tolist(), dtype=polars.Enum(order))
    pyarrow = pytest.importorskip("pyarrow")
    codes = pyarrow.array([order.index(each) for each in labels])
    found = pyarrow.DictionaryArray.from_arrays(codes, pyarrow.array(order), ordered=True)
    return pd.Series(found, dtype=pd.ArrowDtype(found.type)) if library == "pandas" else found


@pytest.mark.parametrize("library", ["polars", "pyarrow", "pandas"])
def test_labels_keep_the_order_of_categories_of_other_libraries(library: str) -> None:
    order = ["low", "middle", "high"]
    labels = np.repeat(order, [14, 13, 13])
    found = GAMClassifier("~ a", family="ordinal", tolerance=1.0).fit(X, ordered_labels(library, labels, order))
    assert found.classes_.tolist() == order
    assert found.score(X, ordered_labels(library, labels, order)) > 0.9


@pytest.mark.parametrize("dtype", ["bool", "boolean", "bool[pyarrow]", "category"])
def test_booleans_remain_booleans_as_labels(dtype: str) -> None:
    if "pyarrow" in dtype:
        pytest.importorskip("pyarrow")
    labels = pd.Series([True, False] * 20).astype(dtype)
    found = GAMClassifier("~ f(g)", tolerance=1.0).fit(X, labels)
    assert found.classes_.dtype == bool
    assert (found.predict(X) == np.array([True, False] * 20)).all()
    assert found.score(X, labels) == 1.0


def test_missing_values_that_are_no_level_name_their_column() -> None:
    found = GAMRegressor("~ a + f(g)", missing="level", tolerance=1.0).fit(X, Y)
    with pytest.raises(ValueError, match=r"column 'g' has NaN in 1 of 40 rows, and f\(g\) .* no value was missing in"):
        found.predict(X.assign(g=[None, *X.g[1:]]))
    with pytest.raises(ValueError, match=r"column 'a' has NaN in 1 of 40 rows, and linear\(a\) needs numbers"):
        found.fit(X.assign(a=[np.nan, *X.a[1:]]), Y)


def test_counts_may_all_be_zero() -> None:
    found = GAMRegressor("~ a", family="poisson", tolerance=1.0).fit(X, np.zeros(40))
    assert found.deviance_explained_ == 0
    assert found.predict(X).max() < 0.1
