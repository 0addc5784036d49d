"""Columns become numbers by what they hold; nothing is taken for something else."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from gpytorch_gam.gam.columns import LevelEncoding, NumberEncoding, kind_of


def column(values: object, **options: object) -> pd.Series:
    return pd.Series(values, name="c", **options)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (column([1, 2]), "number"),
        (column([1, None], dtype="Int64"), "number"),
        (column(["1", "2"]), "text"),
        (column([True, False]), "boolean"),
        (column([1.5, True], dtype=object), None),
        (column([1, "a"], dtype=object), None),
        (column(pd.Categorical([2, 1])), "number"),
        (column(pd.to_datetime(["2020-01-01", None])), "date"),
        (column([{"a": 1}], dtype=object), None),
    ],
)
def test_kinds_of_columns(values: pd.Series, kind: str | None) -> None:
    if kind is None:
        with pytest.raises(TypeError):
            kind_of(values)
    else:
        assert kind_of(values).name == kind


@pytest.mark.parametrize("change", [(1e6, 1e3), (1e-3, 0.0), (86400.0, 1.6e9)])
def test_numbers_in_other_units_are_encoded_alike(change: tuple[float, float]) -> None:
    scale, shift = change
    values = np.random.default_rng(0).gamma(2.0, size=500)
    first, second = (NumberEncoding.of(column(each)) for each in (values, scale * values + shift))
    np.testing.assert_allclose(
        first.encode(column(values)), second.encode(column(scale * values + shift)), rtol=1e-6, atol=1e-6
    )


def test_long_tails_are_drawn_in_and_others_are_not() -> None:
    random = np.random.default_rng(0)
    assert not NumberEncoding.of(column(random.normal(size=1000))).is_drawn_in
    assert not NumberEncoding.of(column(random.uniform(size=1000))).is_drawn_in
    tail = NumberEncoding.of(column(np.exp(3 * random.normal(size=1000))))
    assert tail.is_drawn_in
    assert np.abs(tail.encode(column([tail.high]))).max() < 12


def test_weights_count_rows_in_the_encoding() -> None:
    values, weights = np.array([0.0, 1.0, 2.0, 5.0, 9.0]), np.array([1, 4, 2, 1, 3])
    weighted = NumberEncoding.of(column(values), weights.astype(float))
    repeated = NumberEncoding.of(column(np.repeat(values, weights)))
    assert (weighted.centre, weighted.scale) == pytest.approx((repeated.centre, repeated.scale))


def test_levels_keep_the_order_of_categories_and_sort_others() -> None:
    ordered = pd.Categorical(["low", "high", "low"], categories=["low", "middle", "high"], ordered=True)
    assert LevelEncoding.of(column(ordered)).levels == ("low", "high")
    assert LevelEncoding.of(column(ordered)).is_ordered
    assert LevelEncoding.of(column(["b", "a"])).levels == ("a", "b")
    assert LevelEncoding.of(column([10, 9])).labels == ("9", "10")


def test_unseen_levels_get_codes_of_their_own_and_missing_ones_none() -> None:
    encoding = LevelEncoding.of(column(["a", "b"]))
    codes = encoding.encode(column(["b", "new", None, "other", "new"]))
    np.testing.assert_array_equal(codes, [1, 2, np.nan, 3, 2])
    with_level = LevelEncoding.of(column(["a", None]), missing_is_level=True)
    np.testing.assert_array_equal(with_level.encode(column(["a", None])), [0, 1])
    assert with_level.labels == ("a", "missing")


def test_a_column_must_hold_what_it_held_in_the_fit() -> None:
    levels, numbers = LevelEncoding.of(column(["1", "2"])), NumberEncoding.of(column([1.0, 2.0]))
    with pytest.raises(TypeError, match="held text when the model was fitted, but now holds numbers"):
        levels.encode(column([1, 2]))
    with pytest.raises(TypeError, match="held numbers when the model was fitted, but now holds text"):
        numbers.encode(column(["1", "2"]))


def test_dates_are_days_in_any_resolution_and_time_zone() -> None:
    times = pd.date_range("2021-03-01", periods=40, freq="7h")
    encoding = NumberEncoding.of(column(times))
    expected = encoding.encode(column(times))
    np.testing.assert_allclose(encoding.encode(column(times.as_unit("s"))), expected)
    np.testing.assert_allclose(encoding.encode(column(times.tz_localize("UTC").tz_convert("Asia/Tokyo"))), expected)
    assert encoding.scale < 40  # days


def test_zero_stays_zero_in_a_column_that_multiplies_and_its_range_is_known() -> None:
    values, weights = column([0.0, 3.0, 4.0]), np.array([1.0, 1.0, 2.0])
    found = NumberEncoding.about_zero(values, weights)
    np.testing.assert_allclose(found.encode(values), np.array([0, 3, 4]) / np.sqrt((9 + 2 * 16) / 4))
    np.testing.assert_array_equal(found.outside(column([-1.0, 2.0, 1e6])), [True, False, True])


def test_levels_that_are_numbers_have_all_of_their_digits() -> None:
    encoding = LevelEncoding.of(column([1234567, 1234568, 2**53 + 1, 2**53]))
    assert encoding.labels == ("1234567", "1234568", str(2**53), str(2**53 + 1))
    assert encoding.names(column([7654321, 7654322]))[4:] == ("7654321", "7654322")
    np.testing.assert_array_equal(LevelEncoding.of(column([2.0, 0.1, 1e-7])).encode(column([2, 0.1, 1e-7])), [2, 1, 0])
    assert LevelEncoding.of(column(["missing", None]), missing_is_level=True).labels == ("missing", "missing value")
