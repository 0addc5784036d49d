"""Curves by levels: what is said of a model without the levels, of labels in another order and of levels unseen."""

from __future__ import annotations

import functools
import warnings

import numpy as np
import pandas as pd
import pytest

from gpytorch_gam.gam import GAMRegressor, f, fs, linear, re, s, sz
from gpytorch_gam.gam.terms import Term
from gpytorch_gam.warnings import ColumnKindWarning, MissingLevelsWarning


@functools.cache
def data() -> pd.DataFrame:
    random = np.random.default_rng(0)
    day = random.integers(0, 5, 60)
    hour = random.uniform(0, 24, 60)
    table = pd.DataFrame({"hour": hour, "day": day.astype(str), "workday": day < 3, "dummy": (day < 3).astype(int)})
    return table.assign(n=np.where(day < 3, 1.0, 0.5) * np.sin(hour / 4) + 0.1 * random.normal(size=60))


@functools.cache
def curves() -> GAMRegressor:
    return GAMRegressor("n ~ s(hour, period=24, by=workday, k=6) + f(workday)", tolerance=1.0).fit(data())


def warned(*terms: Term) -> list[type[Warning]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        GAMRegressor(list(terms), tolerance=20.0, num_inducing=4, hyperparameters="point").fit(data(), "n")
    return [each.category for each in caught if issubclass(each.category, ColumnKindWarning | MissingLevelsWarning)]


def test_levels_that_no_term_has_are_missed() -> None:
    with pytest.warns(MissingLevelsWarning, match=r"for each level of 'workday'.*add f\(workday\)"):
        GAMRegressor("n ~ s(hour, by=workday)", tolerance=20.0, num_inducing=4).fit(data())
    for more in (f("workday"), re("workday"), fs("hour", "workday"), sz("hour", "workday"), f("day")):
        assert warned(s("hour", by="workday"), more) == []
    assert warned(s("hour", by="workday"), re("workday", by="dummy")) == [MissingLevelsWarning]
    with pytest.warns(ColumnKindWarning, match=r"lines of re\(day, by=year\) .*'year' is far.*re\(day\)"):
        GAMRegressor([re("day", by="year")], tolerance=20.0).fit(data().assign(year=2000 + data().hour), "n")
    assert warned(linear("hour", by="workday")) == [MissingLevelsWarning]
    assert warned(linear("hour", by="workday"), f("workday")) == []


def test_numbers_that_seem_to_be_two_levels_are_told() -> None:
    with pytest.warns(ColumnKindWarning, match=r"zero where that is 0.*X\['dummy'\].astype\(bool\)"):
        GAMRegressor("n ~ s(hour, by=dummy)", tolerance=20.0, num_inducing=4).fit(data())
    assert warned(s("hour"), s("hour", by="dummy")) == []
    assert warned(linear("hour"), linear("hour", by="dummy")) == []


@pytest.mark.parametrize(
    "label",
    ["s(hour, period=24, by=workday)", "s(hour,by=workday,period=24.0)", "s('hour', k=6, period=24, by=workday)"],
)
def test_labels_in_any_order(label: str) -> None:
    effect = curves().effect(label, at={"workday": True, "hour": 8})
    pd.testing.assert_frame_equal(
        effect, curves().effect("s(hour, by=workday, period=24)", at={"workday": True, "hour": 8})
    )
    np.testing.assert_array_equal(curves().predict(data(), exclude=label), curves().predict(data(), only="workday"))


@pytest.mark.parametrize("label", ["s(hour)", "hour", "s(hour, by=workday)"])
def test_short_labels_are_told_the_term(label: str) -> None:
    with pytest.raises(ValueError, match=r"no term \(did you mean s\(hour, by=workday, period=24\)\?\)"):
        curves().effect(label)


def test_a_value_that_is_no_level_is_told_how_to_name_columns() -> None:
    with pytest.raises(
        ValueError, match=r"first must be a level of 'workday'.*\{'workday': \.\.\., 'hour': 8\}, got 8"
    ):
        curves().difference("s(hour, by=workday, period=24)", 8, 17)


def test_unseen_levels_are_told_the_term_that_has_them() -> None:
    gam = GAMRegressor([s("hour", by="day"), f("day")], tolerance=20.0, num_inducing=4).fit(data(), "n")
    with pytest.raises(ValueError, match=r"s\(hour, by=day\) has no effect of them.*fs\(hour, day\) allows others"):
        gam.predict(data().assign(day="9"), exclude="f(day)")
