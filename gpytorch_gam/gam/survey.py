"""A first look at all rows of a stream: a sample, the range and the levels of each column, and what is missing."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from .columns import Kind, kind_of, numbers_of

# The size of the sample: quantiles of columns are those of the data within a hundredth of their spread.
SAMPLE_SIZE = 20000

# Distinct values of a numeric column up to which each is kept: no more matter.
_MOST_COUNTED = 100

# The weight of a row that is kept for its rare values, which must not count as often as the rows of the sample.
_WITNESS_WEIGHT = 1e-15


@dataclass(frozen=True)
class Survey:
    """
    What a pass over the rows has found.

    :ivar sample: A random sample of the rows, in their order; all of them if they are few.
    :ivar extremes: Rows with the smallest and the largest value of each column.
    :ivar witnesses: For each level, and for missing values, a row that has it.
    :ivar num_rows: The number of rows.
    :ivar missing: The number of missing values in each column.
    """

    sample: pd.DataFrame
    extremes: pd.DataFrame
    witnesses: pd.DataFrame
    num_rows: int
    missing: dict[str, int]

    @property
    def frame(self) -> pd.DataFrame:
        """All of these rows."""
        return pd.concat([self.sample, self.extremes, self.witnesses], ignore_index=True)

    @property
    def spread(self) -> pd.DataFrame:
        """The sample, and the rows that complete its ranges."""
        return pd.concat([self.sample, self.extremes], ignore_index=True)

    def weights(self, of_sample: np.ndarray) -> np.ndarray:
        """
        The weights of the rows of :attr:`frame` in the distribution of the columns.

        :param of_sample: Those of the sample.
        """
        num_others = len(self.extremes) + len(self.witnesses)
        return np.concatenate([of_sample, np.full(num_others, _WITNESS_WEIGHT)])


def survey(frames: Iterable[pd.DataFrame], levels: Collection[str], seed: int, size: int = SAMPLE_SIZE) -> Survey:
    """
    Look at all rows once.

    :param frames: The rows, in parts with the same columns.
    :param levels: Numeric columns of which every value is a level.
    :param seed: Of the sample.
    :param size: Of the sample.
    :raises TypeError: If a column holds other things in some rows than in others.
    :raises ValueError: If there are no rows, or parts have other columns.
    """
    sample, columns, extremes, witnesses = _Sample(size, seed), _Columns(levels), _Extremes(), []
    for frame in frames:
        if not len(frame):
            continue
        kinds = columns.kinds_of(frame)
        sample.add(frame)
        extremes.add(frame, kinds)
        witnesses.append(frame.iloc[columns.places_of_new_values(frame, kinds)])
    if not sample.num_rows:
        raise ValueError("X has no rows")
    found = sample.rows
    is_all = len(found) == sample.num_rows
    return Survey(
        found,
        found[:0] if is_all else extremes.rows(found),
        found[:0] if is_all else pd.concat(witnesses, ignore_index=True),
        sample.num_rows,
        columns.missing,
    )


class _Sample:
    """A random sample without replacement of rows that come one part after the other."""

    def __init__(self, size: int, seed: int) -> None:
        self._size, self._random = size, np.random.default_rng(seed)
        self._keys = np.empty(0)
        self._parts: list[pd.DataFrame] = []
        self.num_rows = 0

    def add(self, frame: pd.DataFrame) -> None:
        """Each row has a random key, and the smallest keys stay, in the order of their rows."""
        keys = self._random.random(len(frame))
        largest = self._keys.max() if len(self._keys) >= self._size else np.inf
        is_candidate = keys < largest
        self.num_rows += len(frame)
        if not is_candidate.any():
            return
        keys = np.concatenate([self._keys, keys[is_candidate]])
        rows = pd.concat([*self._parts, frame[is_candidate]], ignore_index=True)
        if len(keys) > self._size:
            kept = np.sort(np.argpartition(keys, self._size - 1)[: self._size])
            keys, rows = keys[kept], rows.iloc[kept]
        self._keys, self._parts = keys, [rows]

    @property
    def rows(self) -> pd.DataFrame:
        return self._parts[0].reset_index(drop=True)


class _Columns:
    """The kinds of the columns, and the values that have been seen."""

    def __init__(self, levels: Collection[str]) -> None:
        self._levels = set(levels)
        self._dtypes: dict[str, Any] = {}
        self._kinds: dict[str, Kind] = {}
        self._seen: dict[str, set[Any]] = {}
        self.missing: dict[str, int] = {}

    def kinds_of(self, frame: pd.DataFrame) -> dict[str, Kind]:
        """What the columns of a part hold, which is what they held in the others."""
        if self.missing and set(frame.columns) != set(self.missing):
            differ = sorted(set(frame.columns) ^ set(self.missing))
            raise ValueError(f"the tables of X have other columns than the first: {differ} are not in all of them")
        return {str(name): self._kind_of(frame[name]) for name in frame.columns}

    def _kind_of(self, values: pd.Series) -> Kind:
        name, kind = str(values.name), kind_of(values)
        num_missing = int(values.isna().sum())
        self.missing[name] = self.missing.get(name, 0) + num_missing
        if num_missing == len(values):
            return self._kinds.get(name, kind)
        known, dtype = self._kinds.setdefault(name, kind), self._dtypes.setdefault(name, values.dtype)
        if known.name != kind.name:
            raise TypeError(f"column {name!r} holds {known.name} in some tables of X and {kind.name} in others")
        if (known.is_ordered or kind.is_ordered) and values.dtype != dtype:
            raise ValueError(
                f"column {name!r} is an ordered category with other categories in some tables of X than in others: "
                "give all of them the same pandas.CategoricalDtype"
            )
        return known

    def places_of_new_values(self, frame: pd.DataFrame, kinds: dict[str, Kind]) -> np.ndarray:
        """Rows in which a level, or one of few numbers, occurs for the first time, or a missing value."""
        found: set[int] = set()
        for name in frame.columns:
            seen = self._seen.setdefault(str(name), set())
            if kinds[str(name)].is_number and str(name) not in self._levels and len(seen) > _MOST_COUNTED:
                continue
            places = np.flatnonzero(~frame[name].duplicated())
            distinct = frame[name].iloc[places]
            values = [None if missing else value for value, missing in zip(distinct, distinct.isna(), strict=True)]
            found.update(place for place, value in zip(places.tolist(), values, strict=True) if value not in seen)
            seen.update(values)
        return np.array(sorted(found), dtype=int)


class _Extremes:
    """The rows with the smallest and the largest value of each numeric column."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, float], tuple[float, pd.DataFrame]] = {}

    def add(self, frame: pd.DataFrame, kinds: dict[str, Kind]) -> None:
        for name, kind in kinds.items():
            if kind.is_number:
                numbers = numbers_of(frame[name], kind)
                for sign in (-1.0, 1.0):
                    self._keep((name, sign), frame, sign * numbers)

    def _keep(self, key: tuple[str, float], frame: pd.DataFrame, numbers: np.ndarray) -> None:
        numbers = np.where(np.isfinite(numbers), numbers, -np.inf)
        place = int(numbers.argmax())
        if numbers[place] > (self._rows[key][0] if key in self._rows else -np.inf):
            self._rows[key] = float(numbers[place]), frame.iloc[[place]]

    def rows(self, like: pd.DataFrame) -> pd.DataFrame:
        return pd.concat([like[:0], *(rows for _, rows in self._rows.values())], ignore_index=True)
