"""Rows in chunks that stay in the cache, and jobs in threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch

#: Number of rows processed at a time: few enough to stay in the cache, and for torch not to use several threads.
CHUNK_SIZE = 32000


def chunks(num_rows: int) -> Iterator[slice]:
    """The rows 0, ..., num_rows - 1 in chunks."""
    for start in range(0, num_rows, CHUNK_SIZE):
        yield slice(start, min(start + CHUNK_SIZE, num_rows))


def in_threads(jobs: Sequence[Callable[[], Any]], num_threads: int) -> list[Any]:
    """The results of independent jobs, in order; each job runs in a single thread."""
    if min(num_threads, len(jobs)) <= 1:
        return [job() for job in jobs]
    with ThreadPoolExecutor(num_threads) as pool:
        return list(pool.map(lambda job: job(), jobs))


@contextmanager
def one_thread(is_wanted: bool = True) -> Iterator[int]:
    """
    Use one thread of torch, in the whole process, and give the number before: for small matrices, and for rows that
    are shared by :func:`in_threads`, further threads mostly wait.
    """
    before = torch.get_num_threads()
    if is_wanted:
        torch.set_num_threads(1)
    try:
        yield before
    finally:
        torch.set_num_threads(before)
