"""Batches from Parquet files."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from ._shuffle_buffer import Rows
from ._streamed_batches import Settings, StreamedBatches, require_finite

Paths = str | PathLike[str]

# Bytes of a column that are read ahead: otherwise a whole column of a row group is.
_READ_BUFFER = 2**18


class ParquetBatches(StreamedBatches):
    """
    Batches of rows of Parquet files that do not fit in memory. Arguments that are not listed here, and the idea of
    shuffling, are those of :class:`MemoryMappedBatches`. Needs pyarrow: ``pip install gpytorch-gam[parquet]``.

    Here each epoch opens the row groups of all files in random order, eight at a time, and fills the buffer with chunks
    of up to ``chunk_rows`` contiguous rows, each the next one of an open row group chosen at random. Row groups may be
    of any size: what is in memory is the buffer (two with ``prefetch``) and a chunk of each open row group.

    Numbers of any type are converted, and booleans become 0 and 1. A column of strings or of a dictionary (as pandas
    writes a categorical) becomes numbers 0, 1, ... in the order of its ``categories``.

    :param paths: A file, a folder with files named ``*.parquet`` at any depth, or several of either; rows are counted
        in the order of the sorted files of a folder.
    :param x_columns: Names of the columns that are the inputs, in this order.
    :param y_column: Name of the column that is the response.
    :param batch_size: Rows of a batch.
    :param shuffle: Each epoch in a new order; otherwise in that of the files.
    :param seed: Of the order.
    :param categories: For columns of strings or dictionaries the values in the order of their numbers, as for new
        data: ``categories=batches.categories``. Default: all values that occur, sorted; they are looked up in one
        reading of the column at the start.
    :ivar categories: For each such column its values.
    :raises ImportError: If pyarrow is not installed.
    :raises FileNotFoundError: If there is no such file.
    :raises ValueError: If columns are missing or of a type that is not a number, or an argument is out of range.
        Missing, NaN and infinite values, and those of no category, are found when their chunk is read.

    Example:
        >>> batches = ParquetBatches("flights/", ["age", "distance", "carrier"], "delay", batch_size=1024)
        >>> history = fit(model, likelihood, batches)
    """

    _num_open = 8

    def __init__(
        self,
        paths: Paths | Iterable[Paths],
        x_columns: Sequence[str],
        y_column: str,
        batch_size: int,
        shuffle: bool = True,
        seed: int = 0,
        *,
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
            dtype,
            device,
            shard,
            batch_size=batch_size,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
            buffer_rows=buffer_rows,
            chunk_rows=chunk_rows,
            prefetch=prefetch,
        )
        if isinstance(x_columns, str) or not x_columns:
            raise ValueError(f"x_columns must be a list of names, got {x_columns!r}")
        self._columns = [*x_columns, y_column]
        self._files = [_File.opened(path) for path in _found_files(paths)]
        for file in self._files:
            file.require_columns(self._columns)
        self.categories = self._all_categories({} if categories is None else categories)
        for file in self._files:
            file.require_numbers([name for name in self._columns if name not in self.categories])
        super().__init__(sum(file.metadata.num_rows for file in self._files), len(x_columns), settings)

    def _all_categories(self, given: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
        unknown = [name for name in given if name not in self._columns]
        if unknown:
            raise ValueError(f"categories are given for {unknown}, which are not among the columns {self._columns}")
        coded = [
            name
            for name in dict.fromkeys(self._columns)
            if name in given or any(file.is_categorical(name) for file in self._files)
        ]
        return {name: list(given[name]) if name in given else _distinct(self._files, name) for name in coded}

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
        rows = np.empty((len(batch), len(self._columns)), self._numpy_dtype)
        with np.errstate(over="ignore"):  # what becomes infinite is refused
            for index, name in enumerate(self._columns):
                column = batch.column(name)
                is_coded = name in self.categories
                rows[:, index] = _codes(name, column, self.categories[name], where) if is_coded else _numbers(column)
        x, y = rows[:, :-1], rows[:, -1]
        require_finite(x, y, self._columns, where)
        return x, y


class _File(NamedTuple):
    path: Path
    metadata: Any
    schema: Any

    @classmethod
    def opened(cls, path: Path) -> _File:
        parquet = _pyarrow("parquet")
        try:
            with parquet.ParquetFile(path) as file:
                return cls(path, file.metadata, file.schema_arrow)
        except _pyarrow().ArrowInvalid as error:
            raise ValueError(f"{path} is not a Parquet file: {error}") from error

    def require_columns(self, names: Sequence[str]) -> None:
        missing = [name for name in names if name not in self.schema.names]
        if missing:
            raise ValueError(f"{self.path} has no column {missing}; its columns are {self.schema.names}")

    def require_numbers(self, names: Sequence[str]) -> None:
        others = {name: str(self.schema.field(name).type) for name in names if not self._is_number(name)}
        if others:
            raise ValueError(f"{self.path} has columns that are not numbers: {others}; convert them, or leave them out")

    def _is_number(self, name: str) -> bool:
        types, kind = _pyarrow().types, self.schema.field(name).type
        return any(
            is_kind(kind) for is_kind in (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal)
        )

    def is_categorical(self, name: str) -> bool:
        types, kind = _pyarrow().types, self.schema.field(name).type
        return any(is_kind(kind) for is_kind in (types.is_dictionary, types.is_string, types.is_large_string))

    def batches(self, names: Sequence[str], num_rows: int, row_groups: Sequence[int] | None = None) -> Iterator[Any]:
        """
        Record batches, one after the other.

        :param names: Columns to read.
        :param num_rows: Of a batch, at most.
        :param row_groups: Default all.
        """
        parquet = _pyarrow("parquet")
        with parquet.ParquetFile(self.path, metadata=self.metadata, buffer_size=_READ_BUFFER, pre_buffer=False) as file:
            yield from file.iter_batches(num_rows, row_groups, list(dict.fromkeys(names)), use_threads=False)


class _RowGroup(NamedTuple):
    file: _File
    number: int
    start: int  # its first row that is wanted
    stop: int


def _found_files(paths: Paths | Iterable[Paths]) -> list[Path]:
    found: list[Path] = []
    for path in map(Path, [paths] if isinstance(paths, str | PathLike) else paths):
        if not path.exists():
            raise FileNotFoundError(f"there is no file or folder {path}")
        found += sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
    if not found:
        raise FileNotFoundError(f"there is no file *.parquet in {paths}")
    return found


def _distinct(files: Sequence[_File], name: str) -> list[Any]:
    values: set[Any] = set()
    for file in files:
        for batch in file.batches([name], 2**16):
            values.update(_plain(batch.column(name)).unique().to_pylist())
    return sorted(values - {None})


def _plain(column: Any) -> Any:
    """The values, of a dictionary, too."""
    return column.dictionary_decode() if _pyarrow().types.is_dictionary(column.type) else column


def _codes(name: str, column: Any, categories: Sequence[Any], where: str) -> np.ndarray:
    """Positions among the categories; NaN for what is missing."""
    values = _plain(column)
    codes = _pyarrow("compute").index_in(values, value_set=_pyarrow().array(categories, values.type))
    if codes.null_count > values.null_count:
        unknown = set(values.unique().to_pylist()) - {None, *categories}
        shown = ", ".join(sorted(map(repr, unknown))[:5])
        raise ValueError(
            f"column {name} has values in {where} that are none of its categories: {shown}"
            f"{', ...' if len(unknown) > 5 else ''}"
        )
    return codes.to_numpy(zero_copy_only=False)


def _numbers(column: Any) -> np.ndarray:
    """As floats; NaN for what is missing."""
    pyarrow = _pyarrow()
    if not pyarrow.types.is_floating(column.type):
        column = column.cast(pyarrow.float64(), safe=False)
    return column.to_numpy(zero_copy_only=False)


def _pyarrow(module: str | None = None) -> Any:
    try:
        return importlib.import_module("pyarrow" if module is None else f"pyarrow.{module}")
    except ImportError as error:
        raise ImportError("ParquetBatches needs pyarrow: pip install gpytorch-gam[parquet]") from error
