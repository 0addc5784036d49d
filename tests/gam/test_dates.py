"""Dates get a trend and the periods that the data can tell from it; text never becomes a date."""

from __future__ import annotations

import io
import struct
import zoneinfo
from datetime import date, time, timedelta, timezone, tzinfo
from decimal import Decimal
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from dateutil import tz

from gpytorch_gam.gam import GAMRegressor, s, te
from gpytorch_gam.gam.automatic_terms import automatic_terms
from gpytorch_gam.gam.columns import NumberEncoding
from gpytorch_gam.gam.frames import frame_of
from gpytorch_gam.gam.time_zones import zone_of
from gpytorch_gam.warnings import ColumnKindWarning

TREND, DAY, WEEK, YEAR = "s(d)", "s(d, period=day)", "s(d, period=week)", "s(d, period=year)"


def labels(values: Any) -> list[str]:
    return [term.label for term in automatic_terms(pd.DataFrame({"d": values}))]


@pytest.mark.parametrize(
    ("start", "number", "step", "expected"),
    [
        ("2020-01-01", 800, "D", [TREND, WEEK, YEAR]),
        ("2020-01-01", 500, "h", [TREND, DAY, WEEK]),
        ("2020-01-01", 60, "MS", [TREND, YEAR]),
        ("1950-01-01", 60, "YS", [TREND]),
        ("2020-01-01", 60, "B", [TREND, WEEK]),  # working days
        ("2000-01-01", 60, "QS", [TREND]),
        ("2020-01-01", 140, "10min", [TREND]),  # less than a day
        ("2020-01-01", 13, "D", [TREND]),  # less than two weeks
        ("2021-01-01", 24, "MS", [TREND, YEAR]),
        ("2020-01-01", 2, "D", ["linear(d)"]),
    ],
)
def test_periods_that_the_data_cover(start: str, number: int, step: str, expected: list[str]) -> None:
    dates = pd.date_range(start, periods=number, freq=step)
    assert labels(dates) == expected
    assert labels(dates.tz_localize("Europe/Oslo")) == expected
    assert labels(dates.to_numpy().astype("datetime64[s]")) == expected


def test_moments_at_random_have_every_period() -> None:
    days = np.sort(np.random.default_rng(0).uniform(0, 1000, 1000))
    assert labels(pd.Timestamp("2020-01-01") + pd.to_timedelta(days, unit="D")) == [TREND, DAY, WEEK, YEAR]


def test_automatic_terms_find_the_week() -> None:
    days = pd.date_range("2021-01-01", periods=280, freq="D")
    week = np.where(days.day_of_week >= 5, 1.0, -0.4)
    y = week + 0.002 * np.arange(280) + 0.2 * np.random.default_rng(0).normal(size=280)
    gam = GAMRegressor(num_inducing=8, tolerance=0.5).fit(pd.DataFrame({"d": days}), y)
    assert gam.terms_ == [TREND, WEEK]
    found = gam.predict_terms(pd.DataFrame({"d": days}))
    assert np.corrcoef(found[WEEK]["mean"], week)[0, 1] > 0.98
    assert np.corrcoef(found[TREND]["mean"], np.arange(280))[0, 1] > 0.98


@pytest.mark.parametrize("unit", ["s", "ns"])
def test_pictures_of_dates_show_each_period_and_surfaces_where_there_are_data(unit: str) -> None:
    random = np.random.default_rng(0)
    x = pd.DataFrame({"d": pd.date_range("2020-01-01", periods=150, freq="5D").as_unit(unit), "z": random.random(150)})
    y = 3 * np.sin(2 * np.pi * x.d.dt.day_of_year / 365.25) + x.z + 0.1 * random.normal(size=150)
    terms = [s("d", period="week", k=4), s("d", period="year", k=8), te("z", "d", k=4)]
    gam = GAMRegressor(terms, tolerance=5.0).fit(x, y)
    assert (gam.effect(WEEK).d - pd.Timestamp("1970-01-01")).max() == pd.Timedelta(days=7)
    assert (gam.effect(YEAR).d - pd.Timestamp("1970-01-01")).max() == pd.Timedelta(days=365.2425)
    surface = gam.plot_term("te(z, d)")
    assert any(len(path.vertices) for path in surface.collections[0].get_paths())
    against_dates = gam.check(x, y).axes[3]
    assert against_dates.containers, "means over bins of dates"
    plt.close("all")


def test_text_that_looks_like_dates() -> None:
    text = pd.date_range("2020-01-01", periods=40).strftime("%Y-%m-%d")
    with pytest.warns(ColumnKindWarning, match=r"'d' holds text that looks like dates.*pandas.to_datetime\(X\['d'\]\)"):
        assert labels(text) == ["re(d)"]
    assert labels([f"{index}-a" for index in range(40)]) == ["re(d)"]
    with pytest.raises(TypeError, match=r"s\(d\) needs numbers.*pandas.to_datetime\(X\['d'\]\), or f\('d'\)"):
        GAMRegressor("~ s(d)").fit(pd.DataFrame({"d": text}), np.arange(40))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (timedelta(1), r"timedelta.*X\['d'\].dt.total_seconds\(\)"),
        (date(2020, 1, 1), r"holds a date: take pandas.to_datetime\(X\['d'\]\)"),
        (time(3), "holds a time"),
    ],
)
def test_what_is_no_date_of_pandas_says_what_to_do(value: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        labels([value] * 3)


def test_dates_and_decimals_of_other_libraries() -> None:
    pyarrow, polars = pytest.importorskip("pyarrow"), pytest.importorskip("polars")
    days = [date(2020, 1, 1) + timedelta(index) for index in range(40)]
    for table in (
        pyarrow.table({"d": days}),
        pyarrow.table({"d": days}).to_batches()[0],
        pd.DataFrame({"d": pd.array(days, dtype=pd.ArrowDtype(pyarrow.date32()))}),
        polars.DataFrame({"d": days}),
        polars.DataFrame({"d": days}).select(polars.col("d").cast(polars.Datetime("us", "UTC"))),
    ):
        assert labels(frame_of(table)["d"]) == [TREND, WEEK]
    amounts = [Decimal("1.5"), Decimal("2.5"), Decimal("4.25")]
    for table in (pyarrow.table({"d": amounts}), polars.DataFrame({"d": amounts})):
        assert frame_of(table)["d"].tolist() == [1.5, 2.5, 4.25]


def test_warnings_point_at_the_line_of_the_fit() -> None:
    x = pd.DataFrame({"a": np.arange(20.0), "d": pd.date_range("2020-01-01", periods=20).strftime("%Y-%m-%d")})
    with pytest.warns(ColumnKindWarning) as caught:
        GAMRegressor(num_inducing=4, tolerance=5.0).fit(x, np.arange(20.0))
    assert caught[0].filename == __file__


def test_periods_tables_and_pictures_go_by_the_clock_of_the_time_zone(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    hours = np.sort(random.choice(8760, 400, replace=False))  # of a year, with summer time
    zoned = pd.date_range("2021-01-01", periods=8760, freq="h", tz="Europe/Oslo")[hours]
    x, y = pd.DataFrame({"d": zoned}), np.sin(2 * np.pi * zoned.hour / 24) + 1e-4 * hours
    gam = GAMRegressor([s("d", k=4), s("d", period="day", k=8)], tolerance=1.0).fit(
        x, y + 0.01 * random.normal(size=400)
    )
    gam.save(tmp_path / "zoned.gam")
    for each in (gam, GAMRegressor.load(tmp_path / "zoned.gam")):
        trend, day = each.effect(TREND, num=3).d, each.effect(DAY, num=25)
        assert str(trend.dt.tz) == str(day.d.dt.tz) == "Europe/Oslo"
        assert trend.iloc[0] == zoned[0] and trend.iloc[-1] == zoned[-1]
        np.testing.assert_array_equal(day.d.dt.hour, [*range(24), 0])
        np.testing.assert_allclose(day["mean"], np.sin(2 * np.pi * np.arange(25) / 24), atol=0.02)
    noon = gam.effect(DAY, at=["2021-07-01 12:00"])
    assert noon.d.iloc[0] == pd.Timestamp("2021-07-01 10:00", tz="UTC") and abs(noon["mean"].iloc[0]) < 0.02
    np.testing.assert_allclose(gam.predict(x.assign(d=x.d.dt.tz_convert("Asia/Tokyo"))), gam.predict(x))
    shown = gam._partial_residuals(gam._part(DAY)[1], x.assign(d=x.d.dt.tz_convert("Asia/Tokyo")), y, {}).values
    np.testing.assert_array_equal(shown.hour, zoned.hour)
    axes = gam.plot_term(DAY, x, y)
    axes.figure.canvas.draw()
    assert [label.get_text() for label in axes.get_xticklabels()][1] == "04:00"
    plt.close("all")


# A file of a time zone that is two hours ahead since 1970.
_ZONE_FILE = b"TZif" + bytes(16) + struct.pack(">6llblbblbb", 0, 0, 0, 1, 2, 4, 0, 1, 0, 0, 0, 7200, 0, 0) + b"ABC\0"
_SUMMER = timezone(timedelta(hours=2), "CEST")


@pytest.mark.parametrize(
    ("zone", "name"),
    [
        (zoneinfo.ZoneInfo("Europe/Oslo"), "Europe/Oslo"),
        (tz.gettz("America/New_York"), "America/New_York"),
        (tz.tzutc(), "UTC"),
        (_SUMMER, "UTC+02:00"),
        (timezone(timedelta(hours=2), "EST"), "UTC+02:00"),  # a name of another zone
        (tz.tzoffset("X", -12600), "UTC-03:30"),
    ],
)
def test_time_zones_have_names_with_the_same_clock(zone: tzinfo, name: str) -> None:
    values = pd.Series(pd.date_range("2021-01-01", periods=12, freq="MS", tz="UTC")).dt.tz_convert(zone)
    assert zone_of(values) == name
    again = values.dt.tz_convert(name)
    assert (again.dt.tz_localize(None) == values.dt.tz_localize(None)).all()


def test_time_zones_without_a_name_are_refused_by_fits_alone() -> None:
    x = pd.DataFrame({"d": pd.date_range("2021-01-01", periods=40, freq="h", tz="UTC")})
    unnamed = x.assign(d=x.d.dt.tz_convert(tz.tzfile(io.BytesIO(_ZONE_FILE), filename="a clock")))
    for terms in ("auto", [s("d", period="day", k=4)]):
        with pytest.raises(ValueError, match=r"column 'd' has dates in the time zone tzfile.*X\['d'\].dt.tz_convert"):
            GAMRegressor(terms).fit(unnamed, np.arange(40.0))
    summer = x.assign(d=x.d.dt.tz_convert(_SUMMER))
    gam = GAMRegressor([s("d", period="day", k=4)], tolerance=5.0).fit(summer, np.arange(40.0) % 24)
    np.testing.assert_array_equal(gam.effect(DAY, num=25).d.dt.tz_convert(_SUMMER).dt.hour, [*range(24), 0])
    np.testing.assert_allclose(gam.predict(unnamed), gam.predict(summer))


@pytest.mark.parametrize("step", ["13us", "7013us", "1234567ns", "1h"])
def test_grids_of_dates_end_where_the_data_do(step: str) -> None:
    dates = pd.Series(pd.date_range("2021-07-01 10:00:00.000123", periods=47, freq=step), name="d")
    encoding = NumberEncoding.of(dates)
    grid = encoding.values(np.linspace(encoding.low, encoding.high, 100))
    assert len(set(grid)) == 100 and not encoding.is_constant
    assert not encoding.outside(pd.Series(grid)).any()
    if "ns" not in step:
        assert grid[0] == dates.iloc[0] and grid[-1] == dates.iloc[-1]


def test_dates_with_and_without_a_time_zone_are_not_mixed() -> None:
    polars = pytest.importorskip("polars")
    naive = pd.DataFrame({"d": pd.date_range("2020-01-01", periods=40, freq="D")})
    zoned = naive.assign(d=naive.d.dt.tz_localize("UTC").dt.tz_convert("Europe/Oslo"))
    of_naive, of_zoned = (GAMRegressor([s("d")], tolerance=5.0).fit(x, np.arange(40.0)) for x in (naive, zoned))
    expected = of_naive.predict(naive)
    for x in (zoned, naive.assign(d=naive.d.dt.tz_localize("UTC")), polars.DataFrame({"d": zoned.d})):
        np.testing.assert_allclose(of_zoned.predict(x), expected)
        with pytest.raises(TypeError, match=r"without a time zone when .*X\['d'\].dt.tz_convert"):
            of_naive.predict(x)
    for method in ("predict", "outside_range"):
        with pytest.raises(TypeError, match=r"with a time zone when .*X\['d'\].dt.tz_localize"):
            getattr(of_zoned, method)(naive)
    of_zoned.plot_term("s(d)", zoned, np.arange(40.0))
    assert len(of_zoned.effect("s(d)", at=zoned.d[:3])) == 3
