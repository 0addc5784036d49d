"""Tables of several kinds as data frames of pandas, by the conventions of scikit-learn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data


def as_frame(estimator: BaseEstimator, X: Any, *, reset: bool, needed: Sequence[str] | None = None) -> pd.DataFrame:
    """
    A table as a data frame, after scikit-learn's checks. Columns of arrays are named x0, x1, ...

    :param estimator: The estimator, which notes number and names of the columns.
    :param X: A data frame of pandas or polars, a table of pyarrow, or an array ``(n, D)``.
    :param reset: Whether this is the data of a fit.
    :param needed: Names of the columns that the model reads. Other columns of a data frame may then be missing, as in
        scikit-learn's ``ColumnTransformer``.
    """
    frame = _frame_of(X)
    if frame is None:
        array = validate_data(
            estimator, X, reset=reset, dtype=None, ensure_all_finite=False, ensure_min_samples=2 if reset else 1
        )
        return pd.DataFrame(array, columns=[f"x{index}" for index in range(array.shape[1])])
    if not reset and needed is not None:
        missing = [name for name in needed if name not in frame.columns]
        if missing:
            raise ValueError(f"X lacks the columns {missing}, which the model reads")
        return frame
    validate_data(estimator, frame, reset=reset, skip_check_array=True)
    frame.columns = frame.columns.map(str)
    if frame.shape[1] == 0 or len(frame) < (2 if reset else 1):
        raise ValueError(
            f"Found {len(frame)} sample(s) and {frame.shape[1]} feature(s) (shape={frame.shape}) while a minimum of "
            f"{2 if reset else 1} and 1 is required by {type(estimator).__name__}."
        )
    repeated = sorted(set(frame.columns[frame.columns.duplicated()]))
    if repeated:
        raise ValueError(f"X has several columns named {repeated}")
    return frame


def _frame_of(X: Any) -> pd.DataFrame | None:
    """A data frame of pandas with the same columns; None for what is no table."""
    if isinstance(X, pd.DataFrame):
        return X.copy(deep=False)
    module = type(X).__module__.partition(".")[0]
    if module == "pyarrow":
        return X.to_pandas()
    if module == "polars":
        X = X.collect() if hasattr(X, "collect") else X
        return pd.DataFrame({name: _values_of_polars(X[name]) for name in X.columns})
    return None


def _values_of_polars(column: Any) -> Any:
    """A column of polars; categories keep their order."""
    categories = getattr(column.dtype, "categories", None)
    if type(column.dtype).__name__ == "Enum" and categories is not None:
        return pd.Categorical(column.to_list(), categories=list(categories), ordered=True)
    if type(column.dtype).__name__ in ("String", "Categorical", "Boolean"):
        return column.to_list()
    return column.to_numpy()


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
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be a number, or one for each row") from error
    if array.ndim == 0:
        array = np.full(num_rows, float(array))
    if array.shape != (num_rows,):
        raise ValueError(f"{name} has shape {array.shape}, but there are {num_rows} rows: one number a row")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} has NaN or infinity in {int((~np.isfinite(array)).sum())} of {num_rows} rows")
    return array
