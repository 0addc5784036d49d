"""Offsets, exposures and trials of further rows: which the fit had, and what is done if none are given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from .frames import frame_of

# Values that are the same as no argument.
_NONE = {"offset": 0.0, "exposure": 1.0, "trials": 1.0}


def named_arguments(given: Mapping[str, Any]) -> dict[str, str | None]:
    """
    The arguments that a fit was given, and the names of the columns that they were; None for values.

    :param given: The arguments by name; None, and a number that changes nothing, are none.
    """
    return {
        name: value if isinstance(value, str) else None
        for name, value in given.items()
        if value is not None and not (np.ndim(value) == 0 and value == _NONE[name])
    }


def with_columns_of_fit(
    X: Any, given: Mapping[str, Any], of_fit: Mapping[str, str | None]
) -> tuple[Any, Mapping[str, Any]]:
    """
    Arguments in which those that are not given are the columns that they were in the fit, if a table has these.

    :param X: The table.
    :param given: The arguments by name, None for those that are not given.
    :param of_fit: Those of the fit.
    :return: The table, as a data frame of pandas if there are such columns, and the arguments.
    """
    wanted = {name: column for name, column in of_fit.items() if column is not None and _is_open(given, name)}
    frame = frame_of(X) if wanted else None
    if frame is None:
        return X, given
    return frame, {**given, **{name: column for name, column in wanted.items() if column in frame.columns}}


def _is_open(given: Mapping[str, Any], name: str) -> bool:
    return name in given and given[name] is None


def refuse_not_given(given: Mapping[str, Any], of_fit: Mapping[str, str | None]) -> None:
    """
    Refuse responses without the arguments that the fit had, as they would be compared with what they are not.

    :param given: The arguments by name.
    :param of_fit: Those of the fit.
    :raises ValueError: If one is missing.
    """
    for name, column in of_fit.items():
        if _is_open(given, name):
            had, remedy = (name, "...") if column is None else (f"{name}={column!r}", repr(column))
            raise ValueError(
                f"the fit had {had}, and these rows have none, so that their responses would be compared with those of "
                f"{name} {_NONE[name]:g}: pass {name}={remedy} ({name}={_NONE[name]:g} if that is meant)"
            )


def refuse_counted_twice(rows: Mapping[str, np.ndarray]) -> None:
    """
    Refuse an offset that is the logarithm of the exposure, which counts it once more.

    :param rows: The arguments by name, one number a row.
    :raises ValueError: If it is.
    """
    if "offset" not in rows or "exposure" not in rows:
        return
    logarithm = np.log(rows["exposure"])
    if logarithm.any() and np.allclose(rows["offset"], logarithm, rtol=1e-6, atol=1e-9):
        raise ValueError(
            "offset is the logarithm of exposure, by which the mean would be multiplied twice: leave one of them out"
        )


def columns_of_rows(of_fit: Mapping[str, str | None], columns: Iterable[str]) -> list[str]:
    """
    The columns of a table that were row-wise arguments of the fit.

    :param of_fit: Those of the fit.
    :param columns: The names of the columns of the table.
    """
    known = set(columns)
    return [name for name in of_fit.values() if name is not None and name in known]
