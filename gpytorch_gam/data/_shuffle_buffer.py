"""Rows in random order from a source that is read in runs of contiguous rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

import numpy as np

#: Inputs ``(n, D)``, responses ``(n)``, and row-wise arguments ``(n, ...)``.
Rows = tuple[np.ndarray, ...]

P = TypeVar("P")
T = TypeVar("T")


def interleaved(
    pieces: Iterable[P], read: Callable[[P], Iterator[Rows]], num_open: int, rng: np.random.Generator
) -> Iterator[Rows]:
    """Chunks of ``num_open`` pieces at a time, opened in their order; each chunk is from a random one of these."""
    waiting = iter(pieces)
    streams = [read(piece) for piece in islice(waiting, num_open)]
    while streams:
        chosen = int(rng.integers(len(streams)))
        chunk = next(streams[chosen], None)
        if chunk is not None:
            yield chunk
            continue
        del streams[chosen]
        streams.extend(read(piece) for piece in islice(waiting, 1))


def filled(chunks: Iterator[Rows], sizes: Iterable[int], storage: Iterator[Rows], order: Callable) -> Iterator[Rows]:
    """
    Buffers of the given ``sizes``, in the arrays that ``storage`` gives, filled with the rows of ``chunks``, which
    continue in the next buffer where they do not fit; too few rows are a ValueError. ``order`` of n is the sequence of
    the places 0, ..., n - 1 in which they are filled.
    """
    rest: Rows | None = None
    for size, buffer in zip(sizes, storage, strict=False):
        places, start = order(size), 0
        while start < size:
            chunk = next(chunks, None) if rest is None else rest
            if chunk is None:
                raise ValueError("the data ended early: they have fewer rows than when they were opened")
            into = places[start : start + len(chunk[0])]
            for part, rows in zip(buffer, chunk, strict=True):
                part[into] = rows[: len(into)]
            rest = None if len(into) == len(chunk[0]) else tuple(rows[len(into) :] for rows in chunk)
            start += len(into)
        yield tuple(part[:size] for part in buffer)


def prefetched(items: Iterator[T]) -> Iterator[T]:
    """
    The items, none of them None, each made by a thread while the one before is in use. Exceptions of the thread are
    raised here. The thread ends with the iterator, also when that is abandoned.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="gpytorch-gam-prefetch") as pool:  # its end waits for the thread
        future = pool.submit(next, items, None)
        while (item := future.result()) is not None:
            future = pool.submit(next, items, None)
            yield item
