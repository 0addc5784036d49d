"""Tables of several kinds as data frames of pandas, by the conventions of scikit-learn."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_consistent_length, validate_data

from gpytorch_gam import _checks as checks


def as_frame(estimator: BaseEstimator, X: Any, *, reset: bool, needed: Sequence[str] | None = None) -> pd.DataFrame:
    """
    A table as a data frame, after scikit-learn's checks. Columns of arrays are named x0, x1, ...

    :param estimator: The estimator, which notes number and names of the columns.
    :param X: A data frame of pandas or polars, a table of pyarrow, or an array ``(n, D)``.
    :param reset: Whether this is the data of a fit.
    :param needed: Names of the columns that the model reads. Other columns of a data frame may then be missing, as in
        scikit-learn's ``ColumnTransformer``.
    """
    frame = frame_of(X)
    if frame is None:
        _refuse_what_is_read_in_parts(X)
        array = validate_data(
            estimator, X, reset=reset, dtype=None, ensure_all_finite=False, ensure_min_samples=2 if reset else 1
        )
        names = [f"x{index}" for index in range(array.shape[1])]
        return pd.DataFrame(array, columns=names if reset else getattr(estimator, "feature_names_in_", names))
    if not reset and needed is not None:
        missing = [name for name in needed if name not in frame.columns]
        if missing:
            raise ValueError(f"X lacks the columns {missing}, which the model reads")
        refuse_repeated(frame.columns[frame.columns.isin(needed)])
        _require_rows(estimator, frame, 1)
        return frame
    refuse_repeated(frame.columns)
    validate_data(estimator, frame, reset=reset, skip_check_array=True)
    _require_rows(estimator, frame, 2 if reset else 1)
    return frame


def _require_rows(estimator: BaseEstimator, frame: pd.DataFrame, least: int) -> None:
    if frame.shape[1] == 0 or len(frame) < least:
        raise ValueError(
            f"Found {len(frame)} sample(s) and {frame.shape[1]} feature(s) (shape={frame.shape}) while a minimum of "
            f"{least} and 1 is required by {type(estimator).__name__}."
        )


def _refuse_what_is_read_in_parts(X: Any) -> None:
    if isinstance(X, Mapping) and not hasattr(X, "shape"):
        raise TypeError(f"X is a {type(X).__name__}: take pandas.DataFrame(X)")
    if isinstance(X, str | os.PathLike) or hasattr(X, "get_fragments"):
        raise TypeError(f"X must be a table in memory here, got {checks.shown(X)}: read some of its rows")
    is_list = isinstance(X, list | tuple) and len(X) > 0 and frame_of(X[0]) is not None
    is_array = any(hasattr(X, name) for name in ("__len__", "__array__", "__dataframe__", "__array_interface__"))
    if is_list or (isinstance(X, Iterable) and not is_array):
        kind = f"a {type(X).__name__} of {len(X)} tables" if is_list else f"a {type(X).__name__}"
        raise TypeError(
            f"X must be one table in memory here, got {kind}: call this for each part, or join them with "
            "pandas.concat(X)"
        )


def refuse_repeated(names: pd.Index) -> None:
    """
    Raise a ValueError if columns have the same name.

    :param names: Those of the columns.
    """
    repeated = sorted(set(names[names.duplicated()]))
    if repeated:
        raise ValueError(f"X has several columns named {repeated}")


def take_columns(X: Any, given: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """
    Arguments that have a value for each row, of which some are named columns of the table; and the table, as a data
    frame of pandas if there are such names.

    :param X: The table.
    :param given: The arguments by name.
    :raises TypeError: If X has no names.
    :raises ValueError: If it lacks a column.
    """
    named = {argument: name for argument, name in given.items() if isinstance(name, str)}
    if not named:
        return X, dict(given)
    frame = frame_of(X)
    if frame is None:
        argument, name = next(iter(named.items()))
        raise TypeError(f"{argument} is the name of a column, {name!r}, but X is an array: pass the values")
    for argument, name in named.items():
        if name not in frame.columns:
            known = list(map(str, frame.columns))
            raise ValueError(
                f"{argument} is the column {name!r}, which X does not have{checks.did_you_mean(name, known)}: {known}"
            )
    return frame, {argument: frame[value] if argument in named else value for argument, value in given.items()}


def drop_columns(X: Any, names: Sequence[str]) -> Any:
    """
    A table without some columns, if it has them; anything else as it is.

    :param X: The table.
    :param names: The names of the columns.
    """
    frame = frame_of(X) if names else None
    return X if frame is None else frame.drop(columns=list(names), errors="ignore")


def refuse_response(y: Any, frame: pd.DataFrame, columns: Sequence[str]) -> None:
    """
    Refuse a response that is also a column of which terms make effects.

    :param y: The response; what has no name, as a series of pandas or polars has, cannot be told.
    :param frame: The columns.
    :param columns: Those that terms read.
    :raises ValueError: If the column of this name has its values.
    """
    name = getattr(y, "name", None)
    if isinstance(name, str) and name in columns and np.array_equal(np.asarray(frame[name]), np.asarray(y)):
        raise ValueError(
            f"y is the column {name!r} of X, which would be an effect on itself: pass y={name!r}, which sets it apart, "
            f"or X.drop(columns={name!r})"
        )


def frame_of(X: Any) -> pd.DataFrame | None:
    """
    A data frame of pandas with the same columns, whose names are text; None for what is no table.

    :param X: A data frame of pandas or polars, a table or record batch of pyarrow, a structured array of NumPy, or
        anything else.
    """
    if isinstance(X, pd.DataFrame):
        return _without_arrow_columns(X.set_axis(X.columns.map(str), axis=1))
    if isinstance(X, np.ndarray) and X.dtype.names is not None:
        return pd.DataFrame.from_records(X)
    module = type(X).__module__.partition(".")[0]
    if module == "pyarrow" and hasattr(X, "to_pandas") and hasattr(X, "schema"):
        return _frame_of_arrow(X)
    if module == "polars":
        X = X.collect() if hasattr(X, "collect") else X
        return pd.DataFrame({name: _values_of_polars(X[name]) for name in X.columns})
    return None


def labels_of(values: Any) -> Any:
    """
    A column of polars or pyarrow, or of pandas in a type of pyarrow, as a series of pandas, which knows the order of
    categories; anything else as it is.

    :param values: The labels of rows.
    """
    module = type(values).__module__.partition(".")[0]
    if module == "polars" and hasattr(values, "dtype"):
        return pd.Series(_values_of_polars(values), name=values.name)
    if module == "pyarrow" and hasattr(values, "type"):
        import pyarrow

        return _frame_of_arrow(pyarrow.table({"labels": values}))["labels"]
    return _without_arrow_columns(values.to_frame()).iloc[:, 0] if isinstance(values, pd.Series) else values


def _frame_of_arrow(table: Any) -> pd.DataFrame:
    """A table or record batch of pyarrow, whose dates become dates and whose decimals become numbers."""
    import pyarrow

    if isinstance(table, pyarrow.RecordBatch):
        table = pyarrow.Table.from_batches([table])
    for place, field in enumerate(table.schema):
        if pyarrow.types.is_decimal(field.type):
            table = table.set_column(place, field.name, table.column(place).cast(pyarrow.float64()))
    return table.to_pandas(date_as_object=False)


def _without_arrow_columns(frame: pd.DataFrame) -> pd.DataFrame:
    """A data frame whose columns in types of pyarrow are in those of pandas."""
    for place, dtype in enumerate(frame.dtypes):
        if isinstance(dtype, pd.ArrowDtype):
            import pyarrow

            column = pyarrow.table({"column": frame.iloc[:, place].array.__arrow_array__()})
            frame.isetitem(place, _frame_of_arrow(column)["column"].array)
    return frame


def _values_of_polars(column: Any) -> Any:
    """A column of polars; categories keep their order."""
    categories = getattr(column.dtype, "categories", None)
    if type(column.dtype).__name__ == "Enum" and categories is not None:
        return pd.Categorical(column.to_list(), categories=list(categories), ordered=True)
    if type(column.dtype).__name__ in ("String", "Categorical", "Boolean"):
        return column.to_list()
    if getattr(column.dtype, "time_zone", None) is not None:
        return pd.DatetimeIndex(column.to_numpy()).tz_localize("UTC").tz_convert(column.dtype.time_zone)
    if type(column.dtype).__name__ == "Decimal":
        column = column.cast(float)
    return column.to_numpy()


def some_rows(values: Any, used: np.ndarray) -> Any:
    """
    Those values of rows that are used; a single value, or none, as it is.

    :param values: A table or array, a value for each row, or a single one.
    :param used: Which rows are used ``(n,)``.
    :raises ValueError: If there are not as many values as rows.
    """
    if np.ndim(values) == 0:
        return values
    check_consistent_length(values, used)
    values = labels_of(values)
    return values[used] if isinstance(values, pd.Series | pd.DataFrame) else np.asarray(values)[used]


def as_rows(name: str, value: Any, num_rows: int) -> np.ndarray | None:
    """
    A number for each row in float64.

    :param name: Of the argument.
    :param value: A number, or one for each row; None stays None.
    :param num_rows: The number of rows.
    :raises TypeError: If values are no numbers.
    :raises ValueError: If their number is wrong, or one is not finite.
    """
    if value is None:
        return None
    try:
        given = np.asarray(value)
        if given.dtype.kind not in "biuf" and any(isinstance(each, str) for each in given.ravel()):
            raise TypeError("text is never taken for numbers")
        array = given.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be a number, or one for each row") from error
    if array.ndim == 0:
        array = np.full(num_rows, float(array))
    if array.shape != (num_rows,):
        raise ValueError(f"{name} has shape {array.shape}, but there are {num_rows} rows: one number a row")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} has NaN or infinity in {int((~np.isfinite(array)).sum())} of {num_rows} rows")
    return array
