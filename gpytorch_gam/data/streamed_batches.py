"""The base class of batches of rows that are read while they are used."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, cycle
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor

from gpytorch_gam import _checks as checks

from ._shuffle_buffer import Rows, filled, interleaved, prefetched

#: Inputs ``(b, D)`` and responses ``(b)``, and where there are any, row-wise arguments of the likelihood by name.
Batch = tuple[Tensor, Tensor] | tuple[Tensor, Tensor, dict[str, Tensor]]

# The default number of entries in a buffer: 16 MiB in float32.
_BUFFER_NUMBERS = 2**22

# The default number of chunks in a buffer. In a default buffer a chunk is some 256 KiB, enough to read at full speed.
_CHUNKS_PER_BUFFER = 64

_NUMPY_DTYPES: dict[torch.dtype, np.dtype] = {torch.float32: np.dtype(np.float32), torch.float64: np.dtype(np.float64)}


class Settings(NamedTuple):
    """The arguments that determine the batches of rows, as the public classes document them."""

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

    @classmethod
    def of(
        cls,
        batch_size: int,
        shuffle: bool,
        seed: int,
        dtype: torch.dtype | None,
        device: torch.device | str | None,
        drop_last: bool,
        shard: tuple[int, int] | None,
        buffer_rows: int | None,
        chunk_rows: int | None,
        prefetch: bool,
    ) -> Settings:
        """The arguments, checked, with defaults in the place of None."""
        return cls(
            batch_size=checks.integer("batch_size", batch_size, least=1),
            shuffle=checks.flag("shuffle", shuffle),
            seed=checks.integer("seed", seed, least=0),
            dtype=_as_dtype(dtype),
            device=_as_device(device),
            drop_last=checks.flag("drop_last", drop_last),
            shard=(0, 1) if shard is None else _as_shard(shard),
            buffer_rows=None if buffer_rows is None else checks.integer("buffer_rows", buffer_rows, least=1),
            chunk_rows=None if chunk_rows is None else checks.integer("chunk_rows", chunk_rows, least=1),
            prefetch=checks.flag("prefetch", prefetch),
        )


def _as_dtype(dtype: torch.dtype | None) -> torch.dtype:
    dtype = torch.get_default_dtype() if dtype is None else dtype
    if dtype not in _NUMPY_DTYPES:
        error = ValueError if isinstance(dtype, torch.dtype) else TypeError
        raise error(f"dtype must be torch.float32 or torch.float64, got {dtype}")
    return dtype


def _as_device(device: torch.device | str | None) -> torch.device:
    try:
        return torch.device("cpu" if device is None else device)
    except (TypeError, RuntimeError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"device must be one of torch's, such as 'cuda', got {device!r}: {error}") from error


def _as_shard(shard: object) -> tuple[int, int]:
    try:
        rank, world_size = as_list("shard", shard)
        rank, world_size = checks.integer("rank", rank), checks.integer("world_size", world_size)
    except (TypeError, ValueError) as error:
        raise type(error)(f"shard must be (rank, world_size), two integers, got {shard!r}") from None
    if not 0 <= rank < world_size:
        raise ValueError(f"shard must be (rank, world_size) with 0 <= rank < world_size, got {shard}")
    return rank, world_size


def as_list(name: str, values: object) -> list[Any]:
    """The elements of anything that has them in an order, but not of a single string; anything else is a TypeError."""
    try:
        if isinstance(values, str | bytes | set | frozenset | Mapping):
            raise TypeError
        iterator = iter(values)  # type: ignore[call-overload]
    except TypeError:
        raise TypeError(f"{name} must be a list, got {values!r}") from None
    return list(iterator)


def as_row_columns(given: object) -> dict[str, Any]:
    """The sources of the row-wise arguments by name; a TypeError unless ``given`` is a mapping or None."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise TypeError(
            'row_columns must map names of row-wise arguments of the likelihood to their columns, as in {"weights": '
            f"...}}, got {checks.shown(given)}"
        )
    return dict(given)


class StreamedBatches(ABC):
    """
    Batches of a source of ``num_rows`` rows, read in chunks of contiguous rows into a buffer; it is a ValueError if
    there is no batch. ``shapes`` are those of a row's inputs, ``(D,)``, of its response, and of its row-wise arguments.
    """

    #: The number of rows of all the data, in all shards: ``num_data`` of the objectives.
    num_rows: int
    #: The names of the row-wise arguments of the likelihood in each batch.
    row_arguments: tuple[str, ...]

    # The number of pieces that are read at a time when rows are shuffled.
    _num_open = 1

    def __init__(
        self, num_rows: int, shapes: Sequence[tuple[int, ...]], row_arguments: Sequence[str], settings: Settings
    ) -> None:
        self.num_rows, self.row_arguments = num_rows, tuple(row_arguments)
        self._shapes, self._settings, self._epoch = tuple(shapes), settings, 0
        if not num_rows:
            raise ValueError("the data have no rows")
        if num_rows < settings.shard[1]:  # checked in all shards: those with a row would wait for the others
            raise ValueError(f"the data have {num_rows} rows, too few for the {settings.shard[1]} shards")
        if not len(self):
            raise ValueError(
                f"there is no batch: shard {settings.shard} has {self.num_shard_rows} of {num_rows} rows, and batches "
                f"of {settings.batch_size} are made of them with drop_last={settings.drop_last}"
            )

    @property
    def num_shard_rows(self) -> int:
        """The number of rows of this shard, which differs between shards by one at most."""
        return len(self._shard_range)

    def __len__(self) -> int:
        """The number of batches, which is the same in all shards (unless batches hold one row, and shards differ)."""
        batch_size, (_, world_size) = self._settings.batch_size, self._settings.shard
        if self._settings.drop_last:
            return self.num_rows // world_size // batch_size
        return min(_ceil(_ceil(self.num_rows, world_size), batch_size), self.num_shard_rows)

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next pass (0, 1, ...), which determines its order; later passes count on from there."""
        self._epoch = checks.integer("epoch", epoch, least=0)

    def every_row(self) -> StreamedBatches:
        """The same rows in the order of the files, without dropping any: for passes over all of the data."""
        other = copy.copy(self)
        other._settings = self._settings._replace(shuffle=False, drop_last=False)
        return other

    def __getitem__(self, index: Any) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} makes batches itself and cannot be indexed: use it in place of a DataLoader, as in "
            "fit(model, likelihood, batches), and not inside one"
        )

    def __iter__(self) -> Iterator[Batch]:
        """
        Pairs of inputs ``(b, D)`` and responses ``(b)``, or triples with the row-wise arguments by name; each time in a
        new order if rows are shuffled.
        """
        self._require_unchanged()
        settings = self._settings
        rng = np.random.default_rng((settings.seed, self._epoch, settings.shard[0]))
        self._epoch += 1
        sizes = self._batch_sizes()
        for buffer in prefetched(self._buffers(rng)) if settings.prefetch else self._buffers(rng):
            start, parts = 0, [torch.from_numpy(part) for part in buffer]
            while start < len(parts[0]):
                rows = slice(start, start + next(sizes))
                # Batches are copies, because the buffer is filled again.
                x, y, *others = (part[rows].to(settings.device, copy=True) for part in parts)
                yield (x, y, dict(zip(self.row_arguments, others, strict=True))) if others else (x, y)
                start = rows.stop

    def _batch_sizes(self) -> Iterator[int]:
        """The sizes of full batches and of a rest, which has a row even if only other shards have such a rest."""
        num_left = self._num_used
        for num_after in reversed(range(len(self))):
            size = min(self._settings.batch_size, num_left - num_after)
            num_left -= size
            yield size

    def _buffers(self, rng: np.random.Generator) -> Iterator[Rows]:
        num_full, rest = divmod(self._num_used, self._buffer_rows)
        sizes = [self._buffer_rows] * num_full + [rest] * (rest > 0)
        order = rng.permutation if self._settings.shuffle else np.arange
        return filled(self._chunks(rng), sizes, cycle(self._new_storage(max(sizes))), order)

    @property
    def _num_used(self) -> int:
        """The number of rows in an epoch."""
        return min(len(self) * self._settings.batch_size, self.num_shard_rows)

    def _chunks(self, rng: np.random.Generator) -> Iterator[Rows]:
        shard = self._shard_range
        pieces = self._pieces(shard.start, shard.stop)
        if not self._settings.shuffle:
            return chain.from_iterable(map(self._read, pieces))
        shuffled = (pieces[index] for index in rng.permutation(len(pieces)))
        return interleaved(shuffled, self._read, self._num_open, rng)

    def _new_storage(self, size: int) -> list[Rows]:
        """Memory for a buffer that is in use, and with ``prefetch`` for one that is being filled."""
        return [
            tuple(np.empty((size, *shape), self._numpy_dtype) for shape in self._shapes)
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
        """The number of rows in the buffer, a multiple of the batch size."""
        wanted = self._settings.buffer_rows or _ceil(_BUFFER_NUMBERS, sum(map(math.prod, self._shapes)))
        return self._settings.batch_size * _ceil(wanted, self._settings.batch_size)

    @property
    def _chunk_rows(self) -> int:
        return self._settings.chunk_rows or _ceil(min(self._buffer_rows, self.num_shard_rows), _CHUNKS_PER_BUFFER)

    @abstractmethod
    def _require_unchanged(self) -> None:
        """Raise a ValueError if a file is not as it was opened, because it would be read wrongly."""

    @abstractmethod
    def _pieces(self, start: int, stop: int) -> Sequence[Any]:
        """The pieces in which the rows from ``start`` to ``stop``, counted over all of the data, are read."""

    @abstractmethod
    def _read(self, piece: Any) -> Iterator[Rows]:
        """Chunks of finite rows of a piece in ``_numpy_dtype``, one after the other."""


def _ceil(number: int, divisor: int) -> int:
    return -(-number // divisor)


def require_finite(rows: Rows, names: Sequence[str], where: str) -> None:
    """
    Raise a ValueError if inputs, responses or row-wise arguments, with these ``names`` of columns, hold NaN (which also
    stands for missing values) or infinity; ``where`` describes the rows in the message.
    """
    if all(np.isfinite(part).all() for part in rows):
        return
    counts = chain.from_iterable(np.atleast_1d((~np.isfinite(part)).sum(0)) for part in rows)
    found = ", ".join(f"{name} ({count})" for name, count in zip(names, counts, strict=True) if count)
    raise ValueError(f"missing, NaN or infinite values in {where}: {found}; drop these rows or impute the values")
