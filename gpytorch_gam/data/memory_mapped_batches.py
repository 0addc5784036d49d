"""Batches from NumPy files and other arrays on disk."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from ._shuffle_buffer import Rows
from .streamed_batches import Settings, StreamedBatches, as_row_columns, require_finite


class MemoryMappedBatches(StreamedBatches):
    """
    Batches of rows of arrays that do not fit in memory, as a training loop takes them from a ``DataLoader``: they can
    be iterated over any number of times. Memory does not depend on the number of rows: it is that of the buffer, or of
    two with ``prefetch``. They replace the ``DataLoader`` and cannot be given to one, as they make the batches
    themselves.

    Shuffling reads the disk in runs. The shard is cut into chunks of ``chunk_rows`` contiguous rows; each epoch reads
    them in random order, fills the buffer with as many as it holds, and takes batches from a random permutation of its
    rows. A batch is thus a simple random sample of a buffer whose chunks are a random sample of all chunks. Where rows
    are in random order on disk, or all fit in the buffer, batches are as good as after a full shuffle; where they are
    sorted, raise ``buffer_rows`` or lower ``chunk_rows`` until a buffer holds many chunks (64 by default). The order
    follows from the seed, the number of the epoch, the shard, and the sizes of batches, buffer and chunks.

    :param x: Inputs ``(N, D)``: the path of a ``.npy`` file, or anything with shape, dtype and slices of rows
        (``numpy.memmap``, h5py, zarr, a tensor). A path is best: the pages of a ``numpy.memmap`` count as memory of the
        process until the system wants them back.
    :param y: Responses ``(N,)``, given as ``x`` is.
    :param batch_size: Number of rows in a batch.
    :param shuffle: Whether each epoch has a new order, or that of the arrays.
    :param seed: Seed of the order.
    :param row_columns: Row-wise arguments of the likelihood by name, ``{"weights": ..., "offset": ...}``: for each an
        array ``(N,)`` or ``(N, k)``, given as ``x`` is. Batches are then triples ``(x, y, {"weights": ...})``, as those
        of a ``DataLoader`` of a :class:`RowDataset` are.
    :param dtype: Dtype of the batches, ``torch.float32`` or ``torch.float64``; default ``torch.get_default_dtype()``.
    :param device: Device of the batches; default CPU.
    :param drop_last: Whether to leave out a last batch that is smaller; its rows differ between epochs.
    :param shard: ``(rank, world_size)``, for the processes of distributed training: read only the rank-th of world_size
        parts, which are contiguous, of equal size up to one row, and in equally many batches. There must be a row for
        each part. The objective still gets ``num_data=batches.num_rows``, the rows of all shards.
    :param buffer_rows: Number of rows in the buffer, rounded up to whole batches; default as many as make 2^22 numbers
        (16 MiB in float32).
    :param chunk_rows: Number of contiguous rows that are read at a time; default a 64th of the buffer.
    :param prefetch: Whether to fill the next buffer in a thread while this one is used.
    :ivar num_rows: Number N of rows, in all shards.
    :ivar row_arguments: Names of the row-wise arguments.
    :raises FileNotFoundError: If there is no such file.
    :raises TypeError: If a source is neither a path nor an array, or an argument has the wrong type.
    :raises ValueError: If shapes or dtypes cannot be used, or an argument is out of range. NaN and infinity are found
        when their chunk is read, and a file that was replaced by one of another layout when an epoch starts.

    Example:
        >>> batches = MemoryMappedBatches("x.npy", "y.npy", batch_size=1024, row_columns={"exposure": "hours.npy"})
        >>> history = fit(model, PoissonLikelihood(), batches)
    """

    def __init__(
        self,
        x: Any,
        y: Any,
        batch_size: int,
        shuffle: bool = True,
        seed: int = 0,
        *,
        row_columns: Mapping[str, Any] | None = None,
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
        named = {"x": x, "y": y, **{_place(name): source for name, source in as_row_columns(row_columns).items()}}
        self._sources = {name: _opened(name, source) for name, source in named.items()}
        shapes = {name: tuple(source.shape) for name, source in self._sources.items()}
        num_rows = _checked_number_of_rows(shapes)
        super().__init__(num_rows, [shape[1:] for shape in shapes.values()], list(row_columns or {}), settings)
        self._names = [
            column
            for name, shape in shapes.items()
            for column in ([name] if len(shape) == 1 else [f"column {index} of {name}" for index in range(shape[1])])
        ]

    def _require_unchanged(self) -> None:
        for source in self._sources.values():
            if isinstance(source, _NumpyFile):
                source.require_unchanged()

    def _pieces(self, start: int, stop: int) -> Sequence[int]:
        return range(start, stop, self._chunk_rows)

    def _read(self, piece: int) -> Iterator[Rows]:
        rows = slice(piece, min(piece + self._chunk_rows, self._shard_range.stop))
        with np.errstate(over="ignore"):  # infinity is refused later
            parts = tuple(np.asarray(source[rows], self._numpy_dtype) for source in self._sources.values())
        for name, part in zip(self._sources, parts, strict=True):
            if len(part) != rows.stop - rows.start:
                raise ValueError(f"{name} has fewer rows than when it was opened")
        require_finite(parts, self._names, f"rows {rows.start} to {rows.stop - 1}")
        yield parts


def _place(name: str) -> str:
    return f"row_columns[{name!r}]"


def _checked_number_of_rows(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """The number of rows N, after a check that the shapes of x, y and the row-wise arguments fit together."""
    (_, x), (_, y), *others = shapes.items()
    if len(x) != 2 or not x[1]:
        raise ValueError(f"x must have shape (N, D), got {x}")
    if len(y) != 1:
        raise ValueError(f"y must have shape (N,), got {y}")
    for name, shape in others:
        if len(shape) not in (1, 2):
            raise ValueError(f"{name} must have shape (N,) or (N, k), got {shape}")
    for name, shape in shapes.items():
        if shape[0] != x[0]:
            raise ValueError(f"x has {x[0]} rows, but {name} has {shape[0]} entries")
    return x[0]


class _Layout(NamedTuple):
    """The layout of the numbers in a ``.npy`` file."""

    shape: tuple[int, ...]
    dtype: np.dtype
    is_by_rows: bool
    offset: int

    @classmethod
    def of(cls, path: Path) -> _Layout:
        mapped = np.lib.format.open_memmap(path, mode="r")
        return cls(mapped.shape, mapped.dtype, mapped.flags.c_contiguous, mapped.offset)

    def __str__(self) -> str:
        return f"shape {self.shape}, dtype {self.dtype.str} and order {'C' if self.is_by_rows else 'F'}"


class _NumpyFile:
    """A ``.npy`` file whose slices are read, not mapped: too many mapped pages would count as memory of the process."""

    def __init__(self, path: Path) -> None:
        self._path, self._layout = path, _Layout.of(path)
        self.shape, self.dtype = self._layout.shape, self._layout.dtype

    def require_unchanged(self) -> None:
        """Raise an error unless the layout of the file is the one that it had when it was opened."""
        try:
            layout = _Layout.of(self._path)
        except ValueError as error:
            raise ValueError(f"{self._path} was changed since it was opened, and cannot be mapped: {error}") from error
        if layout != self._layout:
            raise ValueError(
                f"{self._path} was changed since it was opened: it had {self._layout}, now it has {layout}"
            )

    def __getitem__(self, rows: slice) -> np.ndarray:
        size = rows.stop - rows.start
        if self._layout.is_by_rows:
            width = math.prod(self.shape[1:])
            return self._read(rows.start * width, size * width).reshape(size, *self.shape[1:])
        starts = range(rows.start, math.prod(self.shape), self.shape[0])
        return np.stack([self._read(start, size) for start in starts], axis=-1)

    def _read(self, start: int, count: int) -> np.ndarray:
        """``count`` numbers from ``start`` on, in the order of the file."""
        offset = self._layout.offset + start * self.dtype.itemsize
        numbers = np.fromfile(self._path, self.dtype, count, offset=offset)
        if len(numbers) < count:
            raise ValueError(f"{self._path} is shorter than when it was opened")
        return numbers


def _opened(name: str, source: Any) -> Any:
    """The source as an array of numbers with shape, dtype and slices of rows."""
    if isinstance(source, str | PathLike):
        source = _opened_file(name, Path(source))
    elif torch.is_tensor(source):
        source = _array_of(name, source)
    if not all(hasattr(source, attribute) for attribute in ("shape", "dtype", "__getitem__")):
        raise TypeError(
            f"{name} must be the path of a .npy file or an array with shape, dtype and slices, got "
            f"{type(source).__name__}"
        )
    if not _is_number(source.dtype):
        raise ValueError(f"{name} must hold numbers, got dtype {source.dtype}: convert it to a float dtype")
    return source


def _is_number(dtype: Any) -> bool:
    try:
        return np.dtype(dtype).kind in "biuf"
    except TypeError:  # for a dtype of another library
        return False


def _array_of(name: str, tensor: torch.Tensor) -> np.ndarray:
    try:
        return tensor.detach().cpu().numpy()
    except (TypeError, RuntimeError) as error:
        raise ValueError(
            f"{name} is a tensor of dtype {tensor.dtype} and layout {tensor.layout}, which NumPy lacks: convert it to "
            "a dense one of torch.float32"
        ) from error


def _opened_file(name: str, path: Path) -> _NumpyFile:
    if not path.is_file():
        raise FileNotFoundError(f"{name}: there is no file {path}")
    try:
        return _NumpyFile(path)
    except ValueError as error:
        raise ValueError(
            f"{name}: {path} cannot be mapped: {error}; save an array of numbers with numpy.save"
        ) from error
