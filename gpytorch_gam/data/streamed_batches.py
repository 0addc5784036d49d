"""Batches of rows that are read while they are used: what all sources have in common."""

from __future__ import annotations

import copy
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, cycle
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from gpytorch_gam import _checks as checks

from ._shuffle_buffer import Rows, filled, interleaved, prefetched

# Numbers in a buffer by default: 16 MiB in float32.
_BUFFER_NUMBERS = 2**22

# Chunks that make a buffer by default. With a default buffer a chunk is some 256 KiB, enough to be read at full speed.
_CHUNKS_PER_BUFFER = 64

_NUMPY_DTYPES: dict[torch.dtype, np.dtype] = {
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """
    How to go through the data. Documented at the public classes.

    :raises ValueError: If one of them is out of range.
    """

    batch_size: int
    shuffle: bool
    seed: int
    dtype: torch.dtype
    device: torch.device
    drop_last: bool
    shard: tuple[int, int]
    buffer_rows: int | None
    chunk_rows: int | None
    prefetch: bool

    def __post_init__(self) -> None:
        for name in ("shuffle", "drop_last", "prefetch"):
            checks.flag(name, getattr(self, name))
        if self.dtype not in _NUMPY_DTYPES:
            raise ValueError(f"dtype must be torch.float32 or torch.float64, got {self.dtype}")
        rank, world_size = self.shard
        if not 0 <= rank < world_size:
            raise ValueError(f"shard must be (rank, world_size) with 0 <= rank < world_size, got {self.shard}")

    @classmethod
    def of(
        cls,
        *,
        batch_size: int,
        seed: int,
        dtype: torch.dtype | None,
        device: torch.device | str | None,
        shard: tuple[int, int] | None,
        buffer_rows: int | None,
        chunk_rows: int | None,
        **others: Any,
    ) -> Settings:
        """With Python's integers, and with defaults for what is None."""
        return cls(
            batch_size=checks.integer("batch_size", batch_size, least=1),
            seed=checks.integer("seed", seed, least=0),
            dtype=torch.get_default_dtype() if dtype is None else dtype,
            device=_as_device(device),
            shard=(0, 1) if shard is None else _as_shard(shard),
            buffer_rows=None if buffer_rows is None else checks.integer("buffer_rows", buffer_rows, least=1),
            chunk_rows=None if chunk_rows is None else checks.integer("chunk_rows", chunk_rows, least=1),
            **others,
        )


def _as_device(device: torch.device | str | None) -> torch.device:
    try:
        return torch.device("cpu" if device is None else device)
    except (TypeError, RuntimeError) as error:
        raise ValueError(f"device must be one of torch's, such as 'cuda', got {device!r}: {error}") from error


def _as_shard(shard: object) -> tuple[int, int]:
    try:
        rank, world_size = as_list("shard", shard)
        return checks.integer("rank", rank), checks.integer("world_size", world_size)
    except (TypeError, ValueError):
        raise ValueError(f"shard must be (rank, world_size), two integers, got {shard!r}") from None


def as_list(name: str, values: object) -> list[Any]:
    """
    The elements of anything that has them in an order.

    :param name: Of the argument.
    :param values: A sequence, an array or an iterator.
    :raises TypeError: If it is something else: a single string, too.
    """
    try:
        if isinstance(values, str | bytes | set | frozenset | Mapping):
            raise TypeError
        iterator = iter(values)  # type: ignore[call-overload]
    except TypeError:
        raise TypeError(f"{name} must be a list, got {values!r}") from None
    return list(iterator)


class StreamedBatches(ABC):
    """
    Batches of a source of rows, read in chunks of contiguous rows into a buffer.

    :param num_rows: Of all the data.
    :param num_columns: Of the inputs.
    :param settings: How to go through them.
    :raises ValueError: If there is no batch.
    """

    #: Rows of all the data, in all shards: ``num_data`` of the objectives.
    num_rows: int

    # Pieces that are read at a time when rows are shuffled.
    _num_open = 1

    def __init__(self, num_rows: int, num_columns: int, settings: Settings) -> None:
        self.num_rows = num_rows
        self._num_columns = num_columns
        self._settings = settings
        self._epoch = 0
        if not num_rows:
            raise ValueError("the data have no rows")
        if num_rows < settings.shard[1]:  # in all shards, also in those with a row: they would wait for the others
            raise ValueError(f"the data have {num_rows} rows, too few for the {settings.shard[1]} shards")
        if not len(self):
            raise ValueError(
                f"there is no batch: shard {settings.shard} has {self.num_shard_rows} of {num_rows} rows, and batches "
                f"of {settings.batch_size} are made of them with drop_last={settings.drop_last}"
            )

    @property
    def num_shard_rows(self) -> int:
        """Rows of this shard; those of two shards differ by one at most."""
        return len(self._shard_range)

    def __len__(self) -> int:
        """The number of batches, the same in all shards (unless batches hold one row, and shards differ)."""
        batch_size, (_, world_size) = self._settings.batch_size, self._settings.shard
        if self._settings.drop_last:
            return self.num_rows // world_size // batch_size
        return min(_ceil(_ceil(self.num_rows, world_size), batch_size), self.num_shard_rows)

    def set_epoch(self, epoch: int) -> None:
        """
        The number of the next pass, from which its order follows; those after it count on from there.

        :param epoch: 0, 1, ...
        """
        self._epoch = checks.integer("epoch", epoch, least=0)

    def every_row(self) -> StreamedBatches:
        """The same rows in the order of the files, none dropped: for passes over all of the data."""
        other = copy.copy(self)
        other._settings = dataclasses.replace(self._settings, shuffle=False, drop_last=False)
        return other

    def __getitem__(self, index: Any) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} makes batches itself and cannot be indexed: use it in place of a DataLoader, as in "
            "fit(model, likelihood, batches), and not inside one"
        )

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Pairs of inputs ``(b, D)`` and responses ``(b)``, in a new order each time if rows are shuffled."""
        self._require_unchanged()
        settings = self._settings
        rng = np.random.default_rng((settings.seed, self._epoch, settings.shard[0]))
        self._epoch += 1
        sizes = self._batch_sizes()
        for buffer in prefetched(self._buffers(rng)) if settings.prefetch else self._buffers(rng):
            x, y = (torch.from_numpy(part) for part in buffer)
            start = 0
            while start < len(y):
                rows = slice(start, start + next(sizes))
                # Copies: the buffer is filled again.
                yield x[rows].to(settings.device, copy=True), y[rows].to(settings.device, copy=True)
                start = rows.stop

    def _batch_sizes(self) -> Iterator[int]:
        """Full batches and a rest, which has a row even where only other shards have one more than full batches."""
        num_left = self._num_used
        for num_after in reversed(range(len(self))):
            size = min(self._settings.batch_size, num_left - num_after)
            num_left -= size
            yield size

    def _buffers(self, rng: np.random.Generator) -> Iterator[Rows]:
        num_full, rest = divmod(self._num_used, self._buffer_rows)
        sizes = [self._buffer_rows] * num_full + [rest] * (rest > 0)
        return filled(self._chunks(rng), sizes, cycle(self._new_storage(max(sizes))), self._order(rng))

    @property
    def _num_used(self) -> int:
        """Rows of an epoch."""
        return min(len(self) * self._settings.batch_size, self.num_shard_rows)

    def _chunks(self, rng: np.random.Generator) -> Iterator[Rows]:
        shard = self._shard_range
        pieces = self._pieces(shard.start, shard.stop)
        if not self._settings.shuffle:
            return chain.from_iterable(map(self._read, pieces))
        shuffled = (pieces[index] for index in rng.permutation(len(pieces)))
        return interleaved(shuffled, self._read, self._num_open, rng)

    def _order(self, rng: np.random.Generator) -> Callable[[int], np.ndarray]:
        return rng.permutation if self._settings.shuffle else np.arange

    def _new_storage(self, size: int) -> list[Rows]:
        """A buffer that is in use, and with ``prefetch`` one that is filled."""
        dtype = self._numpy_dtype
        return [
            (np.empty((size, self._num_columns), dtype), np.empty(size, dtype))
            for _ in range(2 if self._settings.prefetch else 1)
        ]

    @property
    def _numpy_dtype(self) -> np.dtype:
        return _NUMPY_DTYPES[self._settings.dtype]

    @property
    def _shard_range(self) -> range:
        rank, world_size = self._settings.shard
        return range(self.num_rows * rank // world_size, self.num_rows * (rank + 1) // world_size)

    @property
    def _buffer_rows(self) -> int:
        """A multiple of the batch size."""
        wanted = self._settings.buffer_rows or _ceil(_BUFFER_NUMBERS, self._num_columns + 1)
        return self._settings.batch_size * _ceil(wanted, self._settings.batch_size)

    @property
    def _chunk_rows(self) -> int:
        return self._settings.chunk_rows or _ceil(min(self._buffer_rows, self.num_shard_rows), _CHUNKS_PER_BUFFER)

    @abstractmethod
    def _require_unchanged(self) -> None:
        """
        Called when an epoch starts.

        :raises ValueError: If a file is no longer as it was opened, so that it would be read wrongly.
        """

    @abstractmethod
    def _pieces(self, start: int, stop: int) -> Sequence[Any]:
        """
        The parts in which these rows are read.

        :param start: First row, counted over all of the data.
        :param stop: The row after the last.
        """

    @abstractmethod
    def _read(self, piece: Any) -> Iterator[Rows]:
        """Chunks of finite rows in ``_numpy_dtype``, one after the other."""


def _ceil(number: int, divisor: int) -> int:
    return -(-number // divisor)


def require_finite(x: np.ndarray, y: np.ndarray, names: Sequence[str], where: str) -> None:
    """
    Refuse rows that no model can use.

    :param x: Inputs ``(n, D)``.
    :param y: Responses ``(n)``.
    :param names: Of the columns of ``x``, then of ``y``.
    :param where: Which rows they are.
    :raises ValueError: If a value is NaN (which stands for a missing one, too) or infinite.
    """
    if np.isfinite(x).all() and np.isfinite(y).all():
        return
    counts = [*(~np.isfinite(x)).sum(0), (~np.isfinite(y)).sum()]
    found = ", ".join(f"{name} ({count})" for name, count in zip(names, counts, strict=True) if count)
    raise ValueError(f"missing, NaN or infinite values in {where}: {found}; drop these rows or impute the values")
