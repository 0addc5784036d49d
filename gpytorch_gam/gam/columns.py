"""
The columns of a data frame as columns of numbers: how each was read when the model was made, and is read again.

Numbers are centred and scaled by robust measures of the data, dates become days, levels codes. Text is never taken for
a number, nor a number for a level, unless a term says so. An encoding holds plain values alone.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from pandas.api import types

from gpytorch_gam.components.levels import listed

from .time_zones import has_zone, zone_of

# The distance between the quartiles of a normal distribution, in standard deviations.
_NORMAL_QUARTILE_RANGE = 1.3489795

# Robust standard deviations beyond which a tail is long: normal columns of a billion rows stay below.
_LONG_TAIL = 8.0

# Distinct values above which their number does not matter.
_MOST_COUNTED = 100

# Text that is a date, perhaps with a time.
_DATE = r"\s*(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{4})([ T]\d{1,2}:\d{2}.*)?\s*"

_EPOCH = pd.Timestamp("1970-01-01")

_NANOSECONDS_A_DAY = 86_400_000_000_000


class Kind(NamedTuple):
    """What the values of a column are."""

    name: str  # "number", "date", "text", "boolean"
    is_category: bool = False
    is_ordered: bool = False

    @property
    def is_number(self) -> bool:
        """Whether a smooth can have the column as its argument."""
        return self.name in ("number", "date") and not self.is_category


def kind_of(values: pd.Series) -> Kind:
    """
    What a column holds.

    :param values: The column.
    :raises TypeError: If it holds something else, or numbers beside text.
    """
    if isinstance(values.dtype, pd.CategoricalDtype):
        of_categories = kind_of(pd.Series(values.cat.categories, name=values.name))
        return Kind(of_categories.name, True, bool(values.cat.ordered))
    if types.is_bool_dtype(values.dtype):
        return Kind("boolean")
    if types.is_complex_dtype(values.dtype):
        raise ValueError(f"Complex data not supported: column {values.name!r} has dtype {values.dtype}")
    if types.is_numeric_dtype(values.dtype):
        return Kind("number")
    if types.is_datetime64_any_dtype(values.dtype):
        return Kind("date")
    if isinstance(values.dtype, pd.StringDtype):
        return Kind("text" if values.notna().any() else "number")
    if types.is_object_dtype(values.dtype) or types.is_string_dtype(values.dtype):
        return Kind(_kind_of_objects(values))
    remedy = f": take X[{values.name!r}].dt.total_seconds()" if types.is_timedelta64_dtype(values.dtype) else ""
    raise TypeError(
        f"column {values.name!r} has dtype {values.dtype}; columns hold numbers, booleans, text, categories or dates"
        f"{remedy}"
    )


def _kind_of_objects(values: pd.Series) -> str:
    present = values[values.notna()].unique() if _are_hashable(values) else list(values)
    found = {_kind_of_value(value, values.name) for value in present}
    if len(found) > 1:
        raise TypeError(f"column {values.name!r} has {' beside '.join(sorted(found))}: make all of its values one kind")
    return found.pop() if found else "number"


def _are_hashable(values: pd.Series) -> bool:
    return all(getattr(value, "__hash__", None) is not None for value in values)


def _kind_of_value(value: Any, name: Any) -> str:
    if isinstance(value, str):
        return "text"
    if isinstance(value, bool | np.bool_):
        return "boolean"
    if isinstance(value, numbers.Real):
        return "number"
    remedy = f": take pandas.to_datetime(X[{name!r}])" if isinstance(value, date) else ""
    raise TypeError(
        f"argument must be a string or a number, but column {name!r} holds a {type(value).__name__}{remedy}"
    )


def are_like_dates(values: pd.Series) -> bool:
    """
    Whether the first texts of a column are dates such as 2024-02-29, or 29/2/2024 with a time.

    :param values: A column of text.
    """
    some = values.dropna().head(20).astype(str)
    return bool(len(some)) and bool(some.str.fullmatch(_DATE).all())


def numbers_of(values: pd.Series, kind: Kind, clock: str = "UTC") -> np.ndarray:
    """
    A numeric column, or dates as days since 1970, in float64 with NaN where a value is missing.

    :param values: The column.
    :param kind: What it holds.
    :param clock: The time zone by whose clock the days of dates with a time zone are counted.
    """
    if kind.name == "date":
        moments = pd.DatetimeIndex(values)
        local = moments if moments.tz is None else moments.tz_convert(clock or "UTC").tz_localize(None)
        days = local.as_unit("ns").asi8 / _NANOSECONDS_A_DAY
        return np.where(local.isna(), np.nan, days)
    return values.to_numpy(dtype=np.float64, na_value=np.nan)


def _moments(days: np.ndarray, unit: str = "ms") -> pd.DatetimeIndex:
    """Days since 1970 as moments, in whole units: float64 holds about a microsecond."""
    return (_EPOCH + pd.to_timedelta(days, unit="D")).round(unit)


def _unit_of(days: np.ndarray) -> str:
    """The longest unit in which all moments come back: those of nanoseconds do, as far as float64 holds them."""
    kind = Kind("date")
    own = (unit for unit in ("ms", "us") if np.array_equal(numbers_of(pd.Series(_moments(days, unit)), kind), days))
    return next(own, "ns")


@dataclass(frozen=True)
class Encoding:
    """How a column is read; ``encode`` gives numbers, NaN where a value is missing."""

    column: str
    kind: str  # of its values, see :class:`Kind`

    def _refuse_other_kind(self, values: pd.Series) -> Kind:
        found = kind_of(values)
        is_empty = values.isna().all()
        if found.name != self.kind and not is_empty:
            raise TypeError(
                f"column {self.column!r} held {_PLURALS[self.kind]} when the model was fitted, but now holds "
                f"{_PLURALS[found.name]}"
            )
        return found

    def refuse_other_zone(self, values: pd.Series) -> None:
        """
        Raise a TypeError if dates have a time zone and had none when the model was fitted, or the reverse.

        :param values: The column.
        """
        had, has = bool(getattr(self, "zone", "")), has_zone(values)
        if had != has and types.is_datetime64_any_dtype(values.dtype) and values.notna().any():
            remedy = ".dt.tz_localize(...) with their zone" if had else ".dt.tz_convert(...).dt.tz_localize(None)"
            then, now = ("with", "without") if had else ("without", "with")
            raise TypeError(
                f"column {self.column!r} held dates {then} a time zone when the model was fitted, but now holds dates "
                f"{now} one: take X[{self.column!r}]{remedy}"
            )

    def encode(self, values: pd.Series) -> np.ndarray:
        """
        The column as numbers.

        :param values: The column.
        :raises TypeError: If it holds another kind of values than when the model was fitted.
        """
        raise NotImplementedError


_PLURALS = {"number": "numbers", "date": "dates", "text": "text", "boolean": "booleans"}


@dataclass(frozen=True)
class NumberEncoding(Encoding):
    """
    A numeric column, centred and scaled. A long tail is drawn in by the inverse hyperbolic sine, which is linear where
    most of the values are and logarithmic beyond.
    """

    centre: float
    scale: float
    low: float  # the range of the data
    high: float
    num_values: int  # how many distinct ones there are, up to a hundred
    is_drawn_in: bool = False
    zone: str = ""  # of dates
    unit: str = "ms"  # in which dates are whole: "ms", "us" or "ns"

    @classmethod
    def of(cls, values: pd.Series, weights: np.ndarray | None = None, *, draws_in: bool = True) -> NumberEncoding:
        """
        The encoding of a column of data.

        :param values: The column.
        :param weights: Weights of its rows.
        :param draws_in: Whether long tails are drawn in.
        """
        present, weights = _present(values, weights)
        found = cls._of_range(values, present, *_robust_scale(present, weights))
        furthest = max(found.high - found.centre, found.centre - found.low) / found.scale
        return replace(found, is_drawn_in=draws_in and furthest > _LONG_TAIL)

    @classmethod
    def about_zero(cls, values: pd.Series, weights: np.ndarray | None = None) -> NumberEncoding:
        """
        The encoding of a column whose zero stays zero, as of one that multiplies an effect: scaled by the root of the
        mean square, and not centred.

        :param values: The column.
        :param weights: Weights of its rows.
        """
        present, weights = _present(values, weights)
        size = float(np.abs(present).max()) or 1.0
        share = math.sqrt(float(np.average((present / size) ** 2, weights=weights)))
        return cls._of_range(values, present, 0.0, size * share or 1.0)

    @classmethod
    def _of_range(cls, values: pd.Series, present: np.ndarray, centre: float, scale: float) -> NumberEncoding:
        low, high = float(present.min()), float(present.max())
        num_values = min(len(np.unique(present)), _MOST_COUNTED)
        kind = kind_of(values).name
        unit = _unit_of(present) if kind == "date" else "ms"
        return cls(str(values.name), kind, centre, scale, low, high, num_values, zone=zone_of(values), unit=unit)

    @property
    def is_constant(self) -> bool:
        """Whether all values are the same, or differ by rounding alone, of dates that of days since 1970."""
        rounding = 1e-15 if self.kind == "date" else 1e-12
        return self.high - self.low <= rounding * max(abs(self.low), abs(self.high))

    def encode(self, values: pd.Series) -> np.ndarray:
        """See :meth:`Encoding.encode`."""
        return self.transform(numbers_of(values, self._refuse_other_kind(values)))

    def transform(self, numbers: np.ndarray) -> np.ndarray:
        """
        Numbers in units of the data in those of the model.

        :param numbers: The numbers.
        """
        scaled = (numbers - self.centre) / self.scale
        return np.arcsinh(scaled) if self.is_drawn_in else scaled

    def values(self, numbers: np.ndarray) -> Any:
        """
        Numbers in units of the data, and days since 1970, as values of the column: dates are in its time zone.

        :param numbers: The numbers.
        """
        if self.kind != "date":
            return numbers
        moments = _moments(numbers, self.unit)
        return moments.tz_localize("UTC").tz_convert(self.zone) if self.zone else moments

    def outside(self, values: pd.Series) -> np.ndarray:
        """
        Which values are outside of the range of the data.

        :param values: The column.
        """
        numbers = numbers_of(values, self._refuse_other_kind(values))
        return (numbers < self.low) | (numbers > self.high)


def _present(values: pd.Series, weights: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """The finite numbers of a column, and the weights of their rows."""
    found = numbers_of(values, kind_of(values))
    is_present = np.isfinite(found)
    if not is_present.any():
        raise ValueError(f"column {values.name!r} has no finite value: leave it out")
    return found[is_present], np.ones(int(is_present.sum())) if weights is None else weights[is_present]


def _robust_scale(values: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """Median, and the standard deviation of the normal distribution with the quartiles of the values."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    share = np.cumsum(weights[order]) / weights.sum()
    lower, centre, upper = (
        float(ordered[min(int(np.searchsorted(share, p - 1e-12)), len(ordered) - 1)]) for p in (0.25, 0.5, 0.75)
    )
    scale = (upper - lower) / _NORMAL_QUARTILE_RANGE
    if scale == 0.0:
        deviation = np.average((values - centre) ** 2, weights=weights)
        scale = math.sqrt(deviation) or 1.0
    return centre, scale


@dataclass(frozen=True)
class CycleEncoding(Encoding):
    """The position of a number or a date within a period, from 0 to 1."""

    period: float
    zone: str = ""  # of dates, by whose clock they are

    def encode(self, values: pd.Series) -> np.ndarray:
        """See :meth:`Encoding.encode`."""
        return np.mod(numbers_of(values, self._refuse_other_kind(values), self.zone) / self.period, 1.0)

    def values(self, numbers: np.ndarray) -> Any:
        """
        Numbers from zero to the period as values of the column, dates being those of 1970.

        :param numbers: The numbers.
        """
        if self.kind != "date":
            return numbers
        local = _moments(numbers)
        return local.tz_localize(self.zone, ambiguous=False, nonexistent="shift_forward") if self.zone else local

    def within_period(self, values: pd.Series) -> Any:
        """
        Values of the column, moved into the first period.

        :param values: The column.
        """
        return self.values(self.period * self.encode(values))


@dataclass(frozen=True)
class LevelEncoding(Encoding):
    """A column of levels, whose codes are 0, 1, ... in order."""

    levels: tuple[Any, ...]
    is_ordered: bool = False
    has_missing_level: bool = False

    @classmethod
    def of(cls, values: pd.Series, *, missing_is_level: bool = False) -> LevelEncoding:
        """
        The encoding of a column of data: categories in their order if they occur, other values sorted.

        :param values: The column.
        :param missing_is_level: Whether missing values are a level of their own, the last.
        """
        kind = kind_of(values)
        present = values[values.notna()].unique()
        if kind.is_category:
            occurring = set(present)
            levels = [value for value in values.cat.categories if value in occurring]
        else:
            levels = sorted(present)
        has_missing = missing_is_level and bool(values.isna().any())
        if not levels and not has_missing:
            raise ValueError(f"column {values.name!r} has no value: leave it out")
        plain = tuple(_plain(level, kind.name) for level in levels)
        return cls(str(values.name), kind.name, plain, kind.is_ordered, has_missing)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the levels."""
        named = tuple(map(str, self.levels))
        missing = "missing" if "missing" not in named else "missing value"
        return (*named, missing) if self.has_missing_level else named

    def encode(self, values: pd.Series) -> np.ndarray:
        """See :meth:`Encoding.encode`; values that are none of the levels get codes above, in order of appearance."""
        self._refuse_other_kind(values)
        places, present = pd.factorize(values)  # in order of appearance, -1 where a value is missing
        plain = pd.Index([_plain(value, self.kind) for value in present], dtype=object)
        found = pd.Index(self.levels, dtype=object).get_indexer(plain).astype(np.float64)
        is_new = found < 0
        found[is_new] = len(self.labels) + pd.factorize(plain[is_new])[0]
        codes = np.append(found, np.nan)[places]
        if self.has_missing_level:
            codes[places < 0] = len(self.levels)
        return codes

    def names(self, values: pd.Series) -> tuple[str, ...]:
        """
        The names of the levels and, behind them, of other values in the order of the codes of :meth:`encode`.

        :param values: The column.
        """
        others = dict.fromkeys(_plain(value, self.kind) for value in self.unseen(values))
        return (*self.labels, *map(str, others))

    def unseen(self, values: pd.Series) -> Sequence[Any]:
        """
        The values that are none of the levels.

        :param values: The column.
        """
        present = values[values.notna()].unique()
        known = set(self.levels)
        return [value for value in present if _plain(value, self.kind) not in known]

    def refuse_unseen(self, values: pd.Series, label: str, remedy: str) -> None:
        """
        Raise a ValueError if there are values that are none of the levels.

        :param values: The column.
        :param label: The term that has an effect of the known levels only.
        :param remedy: The term that has one of others, too.
        """
        unseen = self.unseen(values)
        if unseen:
            raise ValueError(
                f"column {self.column!r} has {listed(tuple(map(str, unseen)))}, which the fit has not seen: "
                f"{label} has no effect of them. Levels are {listed(self.labels)}; {remedy} allows others"
            )


def _plain(level: Any, kind: str) -> Any:
    """
    A level as a plain value of Python, equal for equal levels of all dtypes: an integer if it is whole, of which all
    digits count.
    """
    if kind == "number":
        return int(level) if isinstance(level, numbers.Integral) or float(level).is_integer() else float(level)
    if kind == "boolean":
        return bool(level)
    return str(level)
