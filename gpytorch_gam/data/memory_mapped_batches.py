"""Batches from NumPy files and other arrays on disk."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from ._shuffle_buffer import Rows
from .streamed_batches import Settings, StreamedBatches, require_finite


class MemoryMappedBatches(StreamedBatches):
    """
    Batches of rows of arrays that do not fit in memory, such as a training loop takes from a ``DataLoader``: they can
    be gone through any number of times. Memory does not depend on the number of rows: it is that of the buffer, of two
    with ``prefetch``. They replace the ``DataLoader`` and cannot be given to one, as they make the batches themselves.

    Shuffling reads the disk in runs. The shard is cut into chunks of ``chunk_rows`` contiguous rows; each epoch goes
    through them in random order, fills the buffer with as many as it holds, and takes batches from a random permutation
    of its rows. A batch is thus a simple random sample of a buffer whose chunks are a random sample of all chunks.
    Where rows are in random order on disk, or all fit in the buffer, batches are as good as after a full shuffle; where
    they are sorted, raise ``buffer_rows`` or lower ``chunk_rows`` until a buffer holds many chunks (64 by default). The
    order follows from the seed, the number of the epoch, the shard, and the sizes of batches, buffer and chunks.

    :param x: Inputs ``(N, D)``: the path of a ``.npy`` file, or anything with shape, dtype and slices of rows
        (``numpy.memmap``, h5py, zarr, a tensor). A path is best: the pages of a ``numpy.memmap`` count as memory of the
        process until the system wants them back.
    :param y: Responses ``(N,)``, alike.
    :param batch_size: Rows of a batch.
    :param shuffle: Each epoch in a new order; otherwise in that of the arrays.
    :param seed: Of the order.
    :param dtype: Of the batches, ``torch.float32`` or ``torch.float64``; default ``torch.get_default_dtype()``.
    :param device: Of the batches; default CPU.
    :param drop_last: Leave out a last batch that is smaller. Which rows that are differs between epochs.
    :param shard: ``(rank, world_size)``, for the processes of distributed training: only the rank-th of world_size
        parts, contiguous and of equal size up to one row, in as many batches as the others. There must be a row for
        each. The objective still gets ``num_data=batches.num_rows``, the rows of all shards.
    :param buffer_rows: Rows of the buffer, rounded up to whole batches; default as many as make 2^22 numbers (16 MiB in
        float32).
    :param chunk_rows: Contiguous rows that are read at a time; default a 64th of the buffer.
    :param prefetch: Fill the next buffer in a thread while this one is used.
    :raises FileNotFoundError: If there is no such file.
    :raises TypeError: If a source is neither a path nor an array.
    :raises ValueError: If shapes or dtypes cannot be used, or an argument is out of range. NaN and infinity are found
        when their chunk is read, and a file that was replaced by one of another layout when an epoch starts.

    Example:
        >>> batches = MemoryMappedBatches("x.npy", "y.npy", batch_size=1024)
        >>> history = fit(model, likelihood, batches)
    """

    def __init__(
        self,
        x: Any,
        y: Any,
        batch_size: int,
        shuffle: bool = True,
        seed: int = 0,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        drop_last: bool = False,
        shard: tuple[int, int] | None = None,
        buffer_rows: int | None = None,
        chunk_rows: int | None = None,
        prefetch: bool = False,
    ) -> None:
        settings = Settings.of(
            batch_size=batch_size,
            shuffle=shuffle,
            seed=seed,
            dtype=dtype,
            device=device,
            shard=shard,
            drop_last=drop_last,
            buffer_rows=buffer_rows,
            chunk_rows=chunk_rows,
            prefetch=prefetch,
        )
        self._x, self._y = _opened("x", x), _opened("y", y)
        x_shape, y_shape = tuple(self._x.shape), tuple(self._y.shape)
        if len(x_shape) != 2 or not x_shape[1]:
            raise ValueError(f"x must have shape (N, D), got {x_shape}")
        if len(y_shape) != 1:
            raise ValueError(f"y must have shape (N,), got {y_shape}")
        if x_shape[0] != y_shape[0]:
            raise ValueError(f"x has {x_shape[0]} rows, but y has {y_shape[0]} entries")
        super().__init__(*x_shape, settings)

    def _require_unchanged(self) -> None:
        for source in (self._x, self._y):
            if isinstance(source, _NumpyFile):
                source.require_unchanged()

    def _pieces(self, start: int, stop: int) -> Sequence[int]:
        return range(start, stop, self._chunk_rows)

    def _read(self, piece: int) -> Iterator[Rows]:
        rows = slice(piece, min(piece + self._chunk_rows, self._shard_range.stop))
        with np.errstate(over="ignore"):  # what becomes infinite is refused
            x = np.asarray(self._x[rows], self._numpy_dtype)
            y = np.asarray(self._y[rows], self._numpy_dtype)
        if not len(x) == len(y) == rows.stop - rows.start:
            raise ValueError("x or y have fewer rows than when they were opened")
        names = [*(f"column {column} of x" for column in range(self._num_columns)), "y"]
        require_finite(x, y, names, f"rows {rows.start} to {rows.stop - 1}")
        yield x, y


class _Layout(NamedTuple):
    """How the numbers of a ``.npy`` file lie in it."""

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
    """
    A ``.npy`` file whose slices are read, not mapped: pages of a mapping count as memory of the process, and the system
    maps far more of them than are touched.

    :param path: Where it is.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._layout = path, _Layout.of(path)
        self.shape, self.dtype = self._layout.shape, self._layout.dtype

    def require_unchanged(self) -> None:
        """
        Compare the layout of the file with that when it was opened.

        :raises FileNotFoundError: If the file is gone.
        :raises ValueError: If the layout is another one.
        """
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
        """So many numbers in the order of the file."""
        offset = self._layout.offset + start * self.dtype.itemsize
        numbers = np.fromfile(self._path, self.dtype, count, offset=offset)
        if len(numbers) < count:
            raise ValueError(f"{self._path} is shorter than when it was opened")
        return numbers


def _opened(name: str, source: Any) -> Any:
    """
    An array of numbers with shape, dtype and slices of rows.

    :param name: Of the argument.
    :param source: A path, or an array already.
    """
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
    except TypeError:  # a dtype of another library
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
