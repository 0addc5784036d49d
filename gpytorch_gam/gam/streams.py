"""Tables that do not fit into memory: a stream of parts that can be read again and again."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from gpytorch_gam import _checks as checks

from .frames import frame_of, refuse_repeated
from .row_arguments import columns_of_rows

# Rows that are read at a time, and rows of arrays in files from which on they are read in parts.
_ROWS_AT_A_TIME, _MANY_ROWS = 2**15, 2**18

# Arguments of predictions with a value for each row.
_BY_ROW = ("offset", "exposure", "trials")

#: A part of the rows: called with names of columns, or None for all, it gives tables one after the other.
Piece = Callable[[Sequence[str] | None], Iterator[Any]]

# A method whose first argument is X.
Method = TypeVar("Method", bound=Callable[..., Any])


@dataclass(frozen=True)
class Stream:
    """
    Rows of a table that are read in parts.

    :ivar pieces: The parts, in their order; each can be read by itself.
    :ivar array: The array whose rows these are, if its columns have no names of their own.
    """

    pieces: tuple[Piece, ...]
    array: np.ndarray | None = None

    def frames(self, columns: Sequence[str] | None = None) -> Iterator[pd.DataFrame]:
        """
        All rows, some thousand at a time.

        :param columns: Names of the columns to read; default all.
        """
        for piece in self.pieces:
            yield from read(piece, columns)

    def names(self) -> list[str]:
        """The names of all columns."""
        return list(next(self.frames(), pd.DataFrame()).columns)


def read(piece: Piece, columns: Sequence[str] | None) -> Iterator[pd.DataFrame]:
    """
    The rows of a part, some thousand at a time.

    :param piece: The part.
    :param columns: Names of the columns to read; None for all.
    :raises TypeError: If the part holds something else than tables.
    :raises ValueError: If columns are missing, or repeated.
    """
    for table in piece(columns):
        frame = frame_of(table)
        if frame is None:
            raise TypeError(f"X gives tables one after the other, got {checks.shown(table)} among them")
        refuse_repeated(frame.columns)
        missing = [name for name in columns or () if name not in frame.columns]
        if missing:
            raise ValueError(f"X lacks the columns {missing}: it has {list(frame.columns)}")
        if columns is not None:
            frame = frame[list(columns)]
        for start in range(0, len(frame), _ROWS_AT_A_TIME):
            yield frame.iloc[start : start + _ROWS_AT_A_TIME].reset_index(drop=True)


def stream_of(X: Any, given: Mapping[str, Any]) -> tuple[Stream, dict[str, Any]] | None:
    """
    What is read in parts as a stream, with the arguments that belong to its rows as names of columns; None for what is
    read whole.

    :param X: The path of a Parquet file or a folder of these, a dataset of pyarrow, an iterable of tables that can be
        gone through again, or a large array of numbers in a file (``numpy.memmap``), whose ``given`` may be arrays.
    :param given: Arguments that have a value for each row, by name.
    :raises TypeError: If X can be gone through only once, or an argument is neither the name of a column nor a number.
    """
    if _is_large_array(X):
        return _stream_of_array(X, given)
    pieces = _pieces_of(X)
    if pieces is None:
        return None
    for name, value in given.items():
        if not (value is None or isinstance(value, str) or np.ndim(value) == 0):
            raise TypeError(
                f"{name} must be the name of a column, as X is read in parts, got {checks.shown(value)}: make it a "
                "column of X"
            )
    return Stream(pieces), dict(given)


def _is_large_array(X: Any) -> bool:
    """Whether something is an array of numbers in a file that should not be in memory as a whole."""
    return isinstance(X, np.memmap) and X.ndim == 2 and len(X) >= _MANY_ROWS and X.dtype.kind in "biuf"


def _pieces_of(X: Any) -> tuple[Piece, ...] | None:
    if isinstance(X, str | os.PathLike):
        return _pieces_of_dataset(_opened(X))
    if hasattr(X, "get_fragments") and hasattr(X, "to_batches"):
        return _pieces_of_dataset(X)
    if isinstance(X, list | tuple):
        is_of_tables = bool(X) and frame_of(X[0]) is not None
        return tuple(functools.partial(_table, table) for table in X) if is_of_tables else None
    if frame_of(X) is not None or not _is_iterable_of_unknown(X):
        return None
    if iter(X) is X:
        raise TypeError(
            f"X is a {type(X).__name__}, which can be gone through only once, and a fit reads its rows several times: "
            "give a list, or an object whose __iter__ begins anew"
        )
    return (lambda columns: iter(X),)


def _is_iterable_of_unknown(X: Any) -> bool:
    """Whether something that can be gone through is neither an array nor a container that scikit-learn reads."""
    is_array = any(hasattr(X, name) for name in ("shape", "__array__", "__dataframe__", "__array_interface__"))
    return isinstance(X, Iterable) and not is_array and not isinstance(X, Mapping | set | frozenset | bytes | range)


def _table(table: Any, columns: Sequence[str] | None) -> Iterator[Any]:
    yield table


def _opened(path: str | os.PathLike[str]) -> Any:
    """The dataset of a Parquet file, or of all files in a folder."""
    import pyarrow
    from pyarrow import dataset

    if not Path(path).exists():
        raise FileNotFoundError(f"X is a path, and there is no file or folder {os.fspath(path)!r}")
    try:
        return dataset.dataset(path, format="parquet", partitioning="hive")
    except pyarrow.ArrowInvalid as error:
        raise ValueError(
            f"{os.fspath(path)!r} is no Parquet file; of other formats give the dataset, such as "
            f"pyarrow.dataset.dataset({os.fspath(path)!r}, format='csv'): {error}"
        ) from error


def _pieces_of_dataset(dataset: Any) -> tuple[Piece, ...]:
    """A part for each group of rows, or one of all where a dataset was filtered and cannot be taken apart."""
    try:
        fragments = list(dataset.get_fragments())
    except ValueError:
        return (functools.partial(_batches, dataset, None),)
    groups = [
        group
        for fragment in fragments
        for group in (fragment.split_by_row_group() if hasattr(fragment, "split_by_row_group") else [fragment])
    ]
    return tuple(functools.partial(_batches, group, dataset.schema) for group in groups)


def _batches(source: Any, schema: Any, columns: Sequence[str] | None) -> Iterator[Any]:
    """The rows of a dataset or of a part of it, read no further ahead than they are used."""
    options: dict[str, Any] = {} if schema is None else {"schema": schema}
    known = source.schema if schema is None else schema
    missing = [name for name in columns or () if name not in known.names]
    if missing:
        raise ValueError(f"X lacks the columns {missing}: it has {list(known.names)}")
    yield from source.to_batches(
        columns=None if columns is None else list(dict.fromkeys(columns)),
        batch_size=_ROWS_AT_A_TIME,
        batch_readahead=1,
        fragment_readahead=1,
        use_threads=False,
        **options,
    )


def _stream_of_array(X: np.ndarray, given: Mapping[str, Any]) -> tuple[Stream, dict[str, Any]]:
    """A stream of an array whose columns are named x0, x1, ..., and of its arguments as further columns."""
    names = [f"x{index}" for index in range(X.shape[1])]
    arrays = {name: value for name, value in given.items() if np.ndim(value) > 0}
    for name, value in arrays.items():
        if len(value) != len(X):
            raise ValueError(f"X has {len(X)} rows, but {name} has {len(value)}")

    def rows(start: int, columns: Sequence[str] | None) -> Iterator[pd.DataFrame]:
        stop = start + _ROWS_AT_A_TIME
        more = {name: _values(value)[start:stop] for name, value in arrays.items()}
        yield pd.DataFrame(np.array(X[start:stop]), columns=names).assign(**more)

    pieces = tuple(functools.partial(rows, start) for start in range(0, len(X), _ROWS_AT_A_TIME))
    return Stream(pieces, X), {name: name if name in arrays else value for name, value in given.items()}


def _values(rows: Any) -> Any:
    """Values without an index, which need not be that of the rows; those of one column are flat."""
    values = getattr(rows, "array", rows)
    values = values if hasattr(values, "dtype") else np.asarray(values)
    return values[:, 0] if getattr(values, "ndim", 1) == 2 and values.shape[1] == 1 else values


def in_parts(method: Method) -> Method:
    """
    A method of predictions that also takes rows that are read in parts, and joins what it finds for each.

    :param method: The method, whose first argument is X.
    """

    @functools.wraps(method)
    def predict(self: Any, X: Any, *arguments: Any, **options: Any) -> Any:
        by_row = {name: options[name] for name in _BY_ROW if options.get(name) is not None}
        left_open = {name: column for name, column in self._checked_arguments().items() if name not in by_row}
        needed = functools.partial(self._checked_columns, options.get("only"), options.get("exclude"))
        parts = _parts_of(X, by_row, needed, left_open)
        if parts is None:
            return method(self, X, *arguments, **options)
        return _joined([method(self, part, *arguments, **{**options, **own}) for part, own in parts])

    return predict  # type: ignore[return-value]


def _parts_of(
    X: Any, by_row: dict[str, Any], needed: Callable[[], list[str] | None], left_open: Mapping[str, str | None]
) -> Iterable[tuple[Any, dict[str, Any]]] | None:
    """The rows in parts with what belongs to them; None if they are in memory."""
    if _is_large_array(X):
        starts = range(0, len(X), _ROWS_AT_A_TIME)
        return ((_slice(X, start), {name: _slice(each, start) for name, each in by_row.items()}) for start in starts)
    found = stream_of(X, by_row)
    if found is None:
        return None
    columns = needed()
    if columns is not None:
        named = [name for name in by_row.values() if isinstance(name, str)]
        own = columns_of_rows(left_open, found[0].names()) if any(left_open.values()) else []
        columns = list(dict.fromkeys([*columns, *named, *own]))
    return ((frame, by_row) for frame in found[0].frames(columns))


def _slice(rows: Any, start: int) -> Any:
    return rows if np.ndim(rows) == 0 else np.asarray(rows)[start : start + _ROWS_AT_A_TIME]


def _joined(parts: list[Any]) -> Any:
    if not parts:
        raise ValueError("X has no rows")
    if isinstance(parts[0], tuple):
        return tuple(np.concatenate(each) for each in zip(*parts, strict=True))
    if isinstance(parts[0], pd.DataFrame):
        return pd.concat(parts, ignore_index=True)
    return np.concatenate(parts)
