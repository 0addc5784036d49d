"""Batches from Parquet files."""

from __future__ import annotations

import importlib
import math
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from ._shuffle_buffer import Rows
from .streamed_batches import Settings, StreamedBatches, as_list, as_row_columns, require_finite

Paths = str | PathLike[str]

# The number of bytes of a column to read ahead; without it a whole column of a row group is read.
_READ_BUFFER = 2**18


class ParquetBatches(StreamedBatches):
    """
    Batches of rows of Parquet files that do not fit in memory. Arguments that are not listed here, and the method of
    shuffling, are those of :class:`MemoryMappedBatches`. Like these, they replace a ``DataLoader`` and cannot be given
    to one. Needs pyarrow: ``pip install gpytorch-gam[parquet]``.

    Here each epoch opens the row groups of all files in random order, eight at a time, and fills the buffer with chunks
    of up to ``chunk_rows`` contiguous rows, each the next one of an open row group chosen at random. Row groups may be
    of any size: memory holds the buffer (two with ``prefetch``) and a chunk of each open row group.

    Numbers of any type are converted, and booleans become 0 and 1. A column of strings, or of a dictionary of strings
    (as pandas writes a categorical of strings), becomes codes 0, 1, ... in the order of its ``categories``. Parquet has
    no other dictionaries: a categorical of numbers is stored as these numbers, which are unchanged unless
    ``categories`` are given for the column. Nulls are missing values, even if a column has nothing else in a file and
    therefore another type there.

    :param paths: A file, a folder with files named ``*.parquet`` at any depth, or several of either; rows are counted
        in the order of the sorted files of a folder.
    :param x_columns: Names of the columns that are the inputs, in this order: a list, an index of pandas, or an array.
    :param y_column: Name of the column that is the response.
    :param batch_size: Number of rows in a batch.
    :param shuffle: Whether each epoch has a new order, or that of the files.
    :param seed: Seed of the order.
    :param row_columns: Row-wise arguments of the likelihood by name, ``{"weights": "w", "offset": "log_hours"}``: for
        each the name of a column of numbers, or a list of k names for an argument of shape ``(b, k)``. Batches are then
        triples ``(x, y, {"weights": ...})``.
    :param categories: For the name of a column, its values in the order of their codes, distinct and of the type of the
        column. For new data, give ``categories=batches.categories``. Columns of other types than strings are coded as
        well, if they are named here. Default for strings: all values that occur, sorted, which takes one reading of the
        column at the start.
    :ivar categories: For each column that is coded, its values.
    :ivar num_rows: Number of rows, in all shards.
    :ivar row_arguments: Names of the row-wise arguments.
    :raises ImportError: If pyarrow is not installed.
    :raises FileNotFoundError: If there is no such file.
    :raises TypeError: If ``categories`` are no mapping from names to lists, or an argument has the wrong type.
    :raises ValueError: If columns are missing, or of a type that is not a number, or of types that do not fit together
        in several files, or an argument is out of range. Missing, NaN and infinite values, and those of no category,
        are found when their chunk is read, and a file that was replaced when an epoch starts.

    Example:
        >>> batches = ParquetBatches("flights/", ["age", "distance", "carrier"], "delay", batch_size=1024)
        >>> history = fit(model, likelihood, batches)
    """

    _num_open = 8

    def __init__(
        self,
        paths: Paths | Iterable[Paths],
        x_columns: Iterable[str],
        y_column: str,
        batch_size: int,
        shuffle: bool = True,
        seed: int = 0,
        *,
        row_columns: Mapping[str, str | Iterable[str]] | None = None,
        categories: Mapping[str, Sequence[Any]] | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        drop_last: bool = False,
        shard: tuple[int, int] | None = None,
        buffer_rows: int | None = None,
        chunk_rows: int | None = None,
        prefetch: bool = False,
    ) -> None:
        settings = Settings.of(
            batch_size, shuffle, seed, dtype, device, drop_last, shard, buffer_rows, chunk_rows, prefetch
        )
        self._inputs = [*_names("x_columns", x_columns), *_names("y_column", [y_column])]
        given = as_row_columns(row_columns)
        arguments = {
            name: [columns] if isinstance(columns, str) else _names(f"row_columns[{name!r}]", columns)
            for name, columns in given.items()
        }
        numbers = list(chain.from_iterable(arguments.values()))
        self._columns = [*self._inputs, *numbers]
        self._files = [_File.opened(path) for path in _found_files(paths)]
        for file in self._files:
            file.require_columns(self._columns)
        self._values = self._all_values({} if categories is None else categories)
        self.categories: dict[str, list[Any]] = {name: values.to_pylist() for name, values in self._values.items()}
        for file in self._files:
            file.require_numbers([*(name for name in self._inputs if name not in self._values), *numbers])
        of_arguments = [() if isinstance(columns, str) else (len(arguments[name]),) for name, columns in given.items()]
        shapes = [(len(self._inputs) - 1,), (), *of_arguments]
        super().__init__(sum(file.metadata.num_rows for file in self._files), shapes, list(arguments), settings)

    def _all_values(self, given: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
        """The categories of inputs and responses, as arrays of the type of their column."""
        if not isinstance(given, Mapping):
            raise TypeError(f"categories must be a mapping from names of columns to lists of values, got {given!r}")
        unknown = [name for name in given if name not in self._inputs]
        if unknown:
            raise ValueError(f"categories are given for {unknown}, which are not among the columns {self._inputs}")
        coded = [
            name
            for name in dict.fromkeys(self._inputs)
            if name in given or any(file.is_categorical(name) for file in self._files)
        ]
        kinds = {name: _common_type(self._files, name) for name in coded}
        return {
            name: _as_values(name, given[name], kind) if name in given else _distinct(self._files, name, kind)
            for name, kind in kinds.items()
        }

    def _require_unchanged(self) -> None:
        for file in self._files:
            file.require_unchanged()

    def _pieces(self, start: int, stop: int) -> Sequence[_RowGroup]:
        groups, first = [], 0
        for file in self._files:
            for number in range(file.metadata.num_row_groups):
                last = first + file.metadata.row_group(number).num_rows
                if max(first, start) < min(last, stop):
                    groups.append(_RowGroup(file, number, max(start - first, 0), min(last, stop) - first))
                first = last
        return groups

    def _read(self, piece: _RowGroup) -> Iterator[Rows]:
        first = 0
        for batch in piece.file.batches(self._columns, self._chunk_rows, [piece.number]):
            start = max(piece.start - first, 0)
            part = batch.slice(start, max(min(piece.stop - first, len(batch)) - start, 0))
            first += len(batch)
            if len(part):
                yield self._converted(part, f"row group {piece.number} of {piece.file.path}")
            if first >= piece.stop:
                return

    def _converted(self, batch: Any, where: str) -> Rows:
        table = np.empty((len(batch), len(self._columns)), self._numpy_dtype)
        with np.errstate(over="ignore"):  # infinity is refused later
            for index, name in enumerate(self._columns):
                column, is_coded = batch.column(name), index < len(self._inputs) and name in self._values
                table[:, index] = _codes(name, column, self._values[name], where) if is_coded else _numbers(column)
        ends = np.cumsum([math.prod(shape) for shape in self._shapes])
        parts = zip(np.split(table, ends[:-1], axis=1), self._shapes, strict=True)
        rows = tuple(part.reshape(len(table), *shape) for part, shape in parts)
        require_finite(rows, self._columns, where)
        return rows


class _File(NamedTuple):
    path: Path
    metadata: Any
    schema: Any
    state: tuple[int, ...]

    @classmethod
    def opened(cls, path: Path) -> _File:
        parquet, state = _pyarrow("parquet"), _state(path)
        try:
            with parquet.ParquetFile(path) as file:
                return cls(path, file.metadata, file.schema_arrow, state)
        except _pyarrow().ArrowInvalid as error:
            raise ValueError(f"{path} is not a Parquet file: {error}") from error

    def require_columns(self, names: Sequence[str]) -> None:
        missing = [name for name in names if name not in self.schema.names]
        if missing:
            raise ValueError(f"{self.path} has no column {missing}; its columns are {self.schema.names}")
        repeated = [name for name in dict.fromkeys(names) if self.schema.names.count(name) > 1]
        if repeated:
            raise ValueError(f"{self.path} has several columns of the same name {repeated}; rename them")

    def require_unchanged(self) -> None:
        if _state(self.path) != self.state:
            raise ValueError(f"{self.path} was changed since it was opened; open the files again")

    def require_numbers(self, names: Sequence[str]) -> None:
        others = {name: str(self.schema.field(name).type) for name in names if not self._is_number(name)}
        if others:
            raise ValueError(f"{self.path} has columns that are not numbers: {others}; convert them, or leave them out")

    def _is_number(self, name: str) -> bool:
        types, kind = _pyarrow().types, self.plain_type(name)
        kinds = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal, types.is_null)
        return any(is_kind(kind) for is_kind in kinds)

    def is_categorical(self, name: str) -> bool:
        types, kind = _pyarrow().types, self.schema.field(name).type
        return any(is_kind(kind) for is_kind in (types.is_dictionary, types.is_string, types.is_large_string))

    def plain_type(self, name: str) -> Any:
        """The type of the values in a column, which may be a dictionary."""
        kind = self.schema.field(name).type
        return kind.value_type if _pyarrow().types.is_dictionary(kind) else kind

    def batches(self, names: Sequence[str], num_rows: int, row_groups: Sequence[int] | None = None) -> Iterator[Any]:
        """Record batches of these columns with at most ``num_rows`` rows, by default of all row groups."""
        parquet, columns = _pyarrow("parquet"), list(dict.fromkeys(names))
        options = {"metadata": self.metadata, "buffer_size": _READ_BUFFER, "pre_buffer": False}
        try:
            with parquet.ParquetFile(self.path, **options) as file:
                yield from file.iter_batches(num_rows, row_groups, columns, use_threads=False)
        except FileNotFoundError:
            raise
        except (OSError, _pyarrow().ArrowException) as error:  # raised by reading alone
            where = "" if row_groups is None else f" in row group {', '.join(map(str, row_groups))}"
            raise ValueError(f"{self.path} cannot be read{where}, columns {columns}: {error}") from error


class _RowGroup(NamedTuple):
    file: _File
    number: int
    start: int  # the first of its rows to read
    stop: int


def _state(path: Path) -> tuple[int, ...]:
    """The properties that differ between a file and one that has replaced it."""
    stat = path.stat()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _names(argument: str, names: Iterable[str]) -> list[str]:
    """The names of columns as a list, from any ordered container."""
    try:
        found = as_list(argument, names)
    except TypeError as error:
        raise TypeError(f"{argument} must be a list of names, got {names!r}") from error
    if not found:
        raise ValueError(f"{argument} must be a list of names, got an empty one")
    others = [name for name in found if not isinstance(name, str)]
    if others:
        raise TypeError(f"{argument}: names of columns must be strings, got {others}")
    return list(map(str, found))  # strings of NumPy would be printed differently


def _found_files(paths: Paths | Iterable[Paths]) -> list[Path]:
    found: list[Path] = []
    for path in map(Path, [paths] if isinstance(paths, str | PathLike) else paths):
        if not path.exists():
            raise FileNotFoundError(f"there is no file or folder {path}")
        found += sorted(filter(Path.is_file, path.rglob("*.parquet"))) if path.is_dir() else [path]
    if not found:
        raise FileNotFoundError(f"there is no file *.parquet in {paths}")
    return found


def _common_type(files: Sequence[_File], name: str) -> Any:
    """A type that can hold the values of a column in all files."""
    pyarrow = _pyarrow()
    first, common = files[0], pyarrow.null()
    for file in files:
        kind = file.plain_type(name)
        if pyarrow.types.is_null(common):
            first = file
        schemas = [pyarrow.schema([(name, each)]) for each in (common, kind)]
        try:
            common = pyarrow.unify_schemas(schemas, promote_options="permissive").field(name).type
        except (pyarrow.ArrowTypeError, pyarrow.ArrowInvalid) as error:
            raise ValueError(
                f"column {name} has type {first.plain_type(name)} in {first.path}, but {kind} in {file.path}; convert "
                "it to the same type in all files"
            ) from error
    return common


def _as_values(name: str, given: Any, kind: Any) -> Any:
    """Categories as an array of the type of their column; a column without values has the type null, and may be any."""
    pyarrow, compute = _pyarrow(), _pyarrow("compute")
    listed = as_list(f"categories of column {name}", given)
    start = f"categories of column {name} (type {kind})"
    try:
        values = pyarrow.array(listed, None if pyarrow.types.is_null(kind) else kind)
        codes = compute.index_in(values, value_set=values)
    except (pyarrow.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{start} cannot be used: {reprlib.repr(listed)}: {error}") from error
    if compute.is_null(values, nan_is_null=True).to_pylist().count(True):
        raise ValueError(f"{start} must not be missing or NaN: {reprlib.repr(listed)}")
    changed = [f"{old!r} to {new!r}" for old, new in zip(listed, values.to_pylist(), strict=True) if _differ(old, new)]
    if changed:
        raise ValueError(f"{start} are changed by conversion to that type: {', '.join(changed[:5])}")
    if codes.to_pylist() != list(range(len(listed))):
        raise ValueError(f"{start} must be distinct, got {reprlib.repr(listed)}")
    return values


def _differ(old: Any, new: Any) -> bool:
    """Whether a conversion has done more than round to another floating-point format."""
    return bool(not math.isfinite(new) if isinstance(new, float) else old != new)


def _distinct(files: Sequence[_File], name: str, kind: Any) -> Any:
    found: set[Any] = set()
    for file in files:
        for batch in file.batches([name], 2**16):
            found.update(_plain(batch.column(name), kind).unique().to_pylist())
    return _pyarrow().array(sorted(found - {None}), kind)


def _plain(column: Any, kind: Any) -> Any:
    """The values of a column, which may be a dictionary, converted to a type."""
    return (column.dictionary_decode() if _pyarrow().types.is_dictionary(column.type) else column).cast(kind)


def _codes(name: str, column: Any, categories: Any, where: str) -> np.ndarray:
    """Positions among the categories; NaN for missing values."""
    try:
        values = _plain(column, categories.type)
    except _pyarrow().ArrowInvalid as error:
        raise ValueError(f"column {name} cannot be converted to {categories.type} in {where}: {error}") from error
    codes = _pyarrow("compute").index_in(values, value_set=categories)
    if codes.null_count > values.null_count:
        unknown = set(values.unique().to_pylist()) - {None, *categories.to_pylist()}
        shown = ", ".join(sorted(map(repr, unknown))[:5])
        raise ValueError(
            f"column {name} has values in {where} that are none of its categories: {shown}"
            f"{', ...' if len(unknown) > 5 else ''}"
        )
    return codes.to_numpy(zero_copy_only=False)


def _numbers(column: Any) -> np.ndarray:
    """The numbers as floats; NaN for missing values."""
    pyarrow = _pyarrow()
    if not pyarrow.types.is_floating(column.type):
        column = column.cast(pyarrow.float64(), safe=False)
    return column.to_numpy(zero_copy_only=False)


def _pyarrow(module: str | None = None) -> Any:
    try:
        return importlib.import_module("pyarrow" if module is None else f"pyarrow.{module}")
    except ImportError as error:
        raise ImportError("ParquetBatches needs pyarrow: pip install gpytorch-gam[parquet]") from error
