"""Levels of a categorical column: the numbers in the column, and their labels."""

from __future__ import annotations

import math
import numbers
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from gpytorch_gam import _checks as checks
from gpytorch_gam.kernels.level_kernel import LARGEST_CODE

# The number of levels that a message lists before it breaks off.
_MOST_LISTED = 10


@dataclass(frozen=True)
class Levels:
    """
    The levels of a categorical column. Columns of inputs hold numbers, the codes; labels are for names and messages.

    :param codes: The values in the column: distinct and finite numbers, in any order, which is kept. They may be
        negative or fractions; numbers that float32 cannot tell apart are refused.
    :param labels: One distinct name for each code. Default: the codes, whole numbers without ".0".
    :param allows_unseen: Whether, by default, :meth:`encode` gives new codes to values that are none of the levels,
        instead of an error.
    :raises TypeError: If codes are no numbers, or labels no strings.
    :raises ValueError: If there are no codes, or codes or labels are not as described.

    Example:
        >>> sites = Levels.from_values(["Oslo", "Bergen", "Oslo"])
        >>> sites.labels, sites.codes            # (("Bergen", "Oslo"), (0.0, 1.0))
        >>> sites.encode(["Oslo", "Bergen"])     # tensor([1., 0.], dtype=torch.float64)
    """

    codes: tuple[float, ...]
    labels: tuple[str, ...] = ()
    allows_unseen: bool = False

    def __post_init__(self) -> None:
        codes = tuple(_validated_code(code) for code in self.codes)
        if not codes:
            raise ValueError("codes are empty: levels need at least one")
        _refuse_repeated("codes", codes)
        if isinstance(self.labels, str):
            raise TypeError(f"labels must be a sequence with one string a code, got the string {self.labels!r}")
        labels = tuple(self.labels) or tuple(_text(code) for code in codes)
        if len(labels) != len(codes):
            raise ValueError(f"labels has {len(labels)} entries for {len(codes)} codes: {listed(labels)}")
        if not all(isinstance(label, str) for label in labels):
            raise TypeError(f"labels must be strings, got {listed(labels)}")
        _refuse_repeated("labels", labels)
        if len({np.float32(code) for code in codes}) < len(codes):
            raise ValueError(
                f"codes {listed(codes)} hold numbers that float32 cannot tell apart: give the levels as strings, "
                "which are numbered 0, 1, ..."
            )
        object.__setattr__(self, "codes", codes)
        object.__setattr__(self, "labels", tuple(str(label) for label in labels))

    def __len__(self) -> int:
        return len(self.codes)

    def label(self, code: float) -> str:
        """The label of the level with one of the ``codes``."""
        return self.labels[self.codes.index(code)]

    def describe(self) -> str:
        """The codes as text for a message, with the labels where these differ."""
        pairs = tuple(zip(self.codes, self.labels, strict=True))
        if all(label == _text(code) for code, label in pairs):
            return listed(self.codes)
        return listed(pairs)

    @classmethod
    def of(cls, levels: Levels | int | Sequence[float] | Sequence[str] | Tensor) -> Levels:
        """
        Levels from any of several descriptions.

        :param levels: An instance of this class; the number L of levels, for codes 0 to L - 1; the codes themselves; or
            labels, which get the codes 0, 1, ... . The order is kept.
        :raises ValueError: If a level is repeated or missing, or there are none.
        :raises TypeError: For anything else.
        """
        if isinstance(levels, Levels):
            return levels
        if isinstance(levels, bool):
            raise TypeError(f"levels must be Levels, a number of levels, codes or labels, got {levels!r}")
        if isinstance(levels, numbers.Integral):
            if levels < 1:
                raise ValueError(f"levels must be at least 1 where it is their number, got {levels}")
            return cls(tuple(map(float, range(int(levels)))))
        column = _Column.of(levels, "levels")
        if column.missing.any():
            raise ValueError(f"levels has {int(column.missing.sum())} missing of {len(column.missing)} entries")
        if column.texts is not None:
            return cls(tuple(map(float, range(len(column.texts)))), tuple(column.texts))
        codes = tuple(column.numbers.tolist())
        return cls(codes, tuple(str(bool(code)) for code in codes) if column.is_boolean else ())

    @classmethod
    def from_values(cls, values: Iterable[Any]) -> Levels:
        """
        The distinct values of a column of data, sorted.

        :param values: Strings, numbers or booleans ``(n,)``: a sequence, array, tensor or data frame column. Strings
            get the codes 0, 1, ... in the order of the alphabet; numbers are their own codes.
        :raises ValueError: If there are no values, missing ones (NaN, None), infinite ones, or strings beside numbers.
        :raises TypeError: For values that are neither strings nor numbers.
        """
        column = _Column.of(values, "values")
        if column.missing.any():
            raise ValueError(
                f"values has {int(column.missing.sum())} missing of {len(column.missing)} entries: drop these rows, or "
                "fill them in with a level of their own"
            )
        if not len(column.missing):
            raise ValueError("values is empty: there are no levels to take from it")
        if column.texts is not None:
            labels = tuple(sorted(set(column.texts)))
            return cls(tuple(map(float, range(len(labels)))), labels)
        codes = tuple(np.unique(column.numbers).tolist())
        return cls(codes, tuple(str(bool(code)) for code in codes) if column.is_boolean else ())

    def encode(self, values: Iterable[Any], unseen: Literal["error", "new"] | None = None) -> Tensor:
        """
        The codes of values. Strings are looked up among the labels, numbers (compared in single precision) among the
        codes.

        :param values: Strings, numbers or booleans ``(n,)``; NaN and None stay missing.
        :param unseen: The treatment of values that are none of the levels: "error", or "new" for codes above the
            largest, in order of appearance, the same for equal values of one call. Default: "new" if
            ``allows_unseen``.
        :return: The codes ``(n,)`` in float64, NaN where a value is missing.
        :raises ValueError: For unseen values, unless ``unseen`` is "new", and for numbers that are the code of one
            level and the label of another.
        :raises TypeError: For values that are neither strings nor numbers.
        """
        if unseen is None:
            unseen = "new" if self.allows_unseen else "error"
        checks.choice("unseen", unseen, ("error", "new"))
        column = _Column.of(values, "values")
        found = self._codes_of_texts(column) if column.texts is not None else self._codes_of_numbers(column)
        is_new = np.isnan(found) & ~column.missing
        if is_new.any():
            strangers = column.items(is_new)
            if unseen == "error":
                raise ValueError(
                    f"values has {listed(tuple(dict.fromkeys(strangers)))} in {int(is_new.sum())} of {len(found)} "
                    f"entries, none of the levels {listed(self.labels)}; drop these rows, or pass unseen='new' if the "
                    "component allows unseen levels"
                )
            found[is_new] = self._new_codes(strangers)
        return torch.from_numpy(found)

    def _codes_of_texts(self, column: _Column) -> np.ndarray:
        assert column.texts is not None
        codes = dict(zip(self.labels, self.codes, strict=True))
        return np.array([codes.get(text, math.nan) for text in column.texts], dtype=np.float64)

    def _codes_of_numbers(self, column: _Column) -> np.ndarray:
        # Compared in single precision, as by level kernels: 0.1 is one level in float32 and in float64.
        ordered, values = np.array(sorted(self.codes)), _single(column.numbers)
        position = np.searchsorted(_single(ordered), values).clip(max=len(ordered) - 1)
        is_found = (_single(ordered)[position] == values) & (np.abs(column.numbers) <= LARGEST_CODE)
        by_label = dict(zip(self.labels, self.codes, strict=True))
        for number in np.unique(column.numbers[~column.missing]).tolist():
            other = by_label.get(_text(number), number)
            if _single(other) != _single(number):
                raise ValueError(
                    f"the number {_text(number)} is the label of the level with code {_text(other)}: pass labels as "
                    "strings"
                )
        return np.where(is_found, ordered[position], np.nan)

    def _new_codes(self, strangers: list[Any]) -> list[float]:
        first = math.floor(max(self.codes)) + 1.0
        codes = {value: first + index for index, value in enumerate(dict.fromkeys(strangers))}
        for code in (first, first + len(codes) - 1):
            _validated_code(code)
        return [codes[value] for value in strangers]


def listed(values: Sequence[Any]) -> str:
    """Values as text for a message, in brackets; long lists are cut off."""
    shown = [_shown(value) for value in values[:_MOST_LISTED]]
    more = f", ... ({len(values)} in all)" if len(values) > _MOST_LISTED else ""
    return f"[{', '.join(shown)}{more}]"


@dataclass
class _Column:
    """A column of data, as numbers or as texts."""

    missing: np.ndarray  # (n,), whether an entry is NaN or None
    numbers: np.ndarray  # (n,) in float64; empty if there are texts
    texts: list[str] | None  # n strings, arbitrary where missing; None if the column holds numbers
    is_boolean: bool  # whether all entries are booleans

    @classmethod
    def of(cls, values: Any, name: str) -> _Column:
        if isinstance(values, str | bytes) or not isinstance(values, Iterable):
            raise TypeError(f"{name} must be a sequence of strings or numbers, got {values!r}")
        if torch.is_tensor(values):
            values = values.detach().cpu()
            is_single = values.dtype not in (torch.float16, torch.bfloat16)  # which NumPy may lack
            values = (values if is_single or not values.is_floating_point() else values.float()).numpy()
        elif not hasattr(values, "__array__"):
            values = list(values)
            entries = np.empty(len(values), dtype=object)  # asarray would turn numbers beside strings into strings
            entries[:] = values
            values = entries
        array = np.asarray(values)
        if array.ndim != 1:
            raise ValueError(f"{name} must have one dimension, got shape {array.shape}")
        if array.dtype.kind in "biuf":
            if array.dtype.kind == "f" and array.dtype.itemsize < 8:  # gives 0.1 instead of 0.10000000149011612
                array = np.array([float(str(entry)) for entry in array])
            numbers_ = array.astype(np.float64)
            return cls(np.isnan(numbers_), numbers_, None, array.dtype.kind == "b")
        if array.dtype.kind not in "OU":
            raise TypeError(f"{name} must hold strings or numbers, got dtype {array.dtype}")
        return cls._of_objects(array.tolist(), name)

    @classmethod
    def _of_objects(cls, entries: list[Any], name: str) -> _Column:
        missing = np.array([_is_missing(entry) for entry in entries], dtype=bool)
        present = [entry for entry, is_missing in zip(entries, missing, strict=True) if not is_missing]
        is_text = {isinstance(entry, str) for entry in present}
        if len(is_text) > 1:
            raise ValueError(f"{name} has numbers beside strings: make all of them strings")
        if is_text == {True}:
            return cls(missing, np.empty(0), [str(entry) for entry in entries], False)
        strange = next((entry for entry in present if not isinstance(entry, numbers.Real | np.bool_)), None)
        if strange is not None:
            raise TypeError(f"{name} must hold strings or numbers, got {strange!r} of type {type(strange).__name__}")
        found = np.full(len(entries), np.nan)
        found[~missing] = [float(entry) for entry in present]
        return cls(missing, found, None, bool(present) and all(isinstance(e, bool | np.bool_) for e in present))

    def items(self, chosen: np.ndarray) -> list[Any]:
        """The entries at which ``chosen`` is true."""
        if self.texts is None:
            return self.numbers[chosen].tolist()
        return [self.texts[index] for index in np.flatnonzero(chosen)]


def _is_missing(entry: Any) -> bool:
    # The missing values of pandas are recognised by their names, as this package does not depend on pandas.
    if entry is None or type(entry).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(entry, float | np.floating) and math.isnan(entry)


def _validated_code(code: Any) -> float:
    if not isinstance(code, numbers.Real | np.bool_):
        raise TypeError(f"codes must be numbers, got {code!r}; use Levels.of for labels")
    value = float(code) + 0.0  # -0.0 becomes 0.0
    if not math.isfinite(value):
        raise ValueError(f"codes must be finite, got {value}")
    if abs(value) > LARGEST_CODE:
        raise ValueError(
            f"the code {_text(value)} is beyond 2**24, where float32 cannot tell whole numbers apart: give the levels "
            "as strings, which are numbered 0, 1, ..."
        )
    return value


def _single(values: Any) -> np.ndarray:
    """Numbers in single precision; those beyond its range become infinite."""
    with np.errstate(over="ignore"):
        return np.asarray(values, dtype=np.float64).astype(np.float32)


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return f"{_text(value[0])} ({value[1]!r})"
    return _text(value) if isinstance(value, float) else repr(value)


def _text(number: float) -> str:
    return str(int(number)) if math.isfinite(number) and number == int(number) else str(number)


def _refuse_repeated(name: str, values: Sequence[Any]) -> None:
    repeated = tuple(value for value, count in Counter(values).items() if count > 1)
    if repeated:
        raise ValueError(
            f"{name} must be distinct, got {listed(repeated)} more than once; for the levels of a column of data take "
            "Levels.from_values(column)"
        )
