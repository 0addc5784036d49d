"""Processes beside that of the tests: one that has run nothing before, or two of a group."""

from __future__ import annotations

import multiprocessing
import pickle
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from gpytorch_gam.warnings import RankWarning

# Time that one waits for the other, beyond which it raises an error.
_TIMEOUT = timedelta(minutes=2)

Together = Callable[..., list[Any]]
Group = Any  # of processes; None for one process with all rows
Data = tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]


def _join(rank: int, store: str) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    warnings.simplefilter("ignore", RankWarning)
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=_TIMEOUT)


def _call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> bytes:
    # By value: as an object, a tensor would be sent as memory that the processes share.
    return pickle.dumps(function(*arguments, distributed.group.WORLD))


def _context() -> Any:
    """How processes start: where that is possible, as copies of one that has imported what takes longer than tests."""
    is_possible = "forkserver" in multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if is_possible else "spawn")
    context.set_forkserver_preload(["torch._dynamo", "gpytorch_gam.training"])
    return context


def in_new_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """
    What a function of a module, which is sent by its name, returns in a process of its own. Tests that call it have the
    mark ``xdist_group("distributed")``, so that only one process of the suite imports things for copies.
    """
    with ProcessPoolExecutor(1, _context()) as pool:
        return pool.submit(function, *arguments).result()


@contextmanager
def two_processes(folder: Path) -> Iterator[Together]:
    """
    ``together(function, *arguments)`` calls ``function(*arguments, group)`` in both processes and returns what each
    found. The function is one of a module, as it is sent by its name.
    """
    context, store = _context(), str(folder / "store")
    with ExitStack() as stack:
        pools = [
            stack.enter_context(ProcessPoolExecutor(1, context, initializer=_join, initargs=(rank, store)))
            for rank in range(2)
        ]

        def together(function: Callable[..., Any], *arguments: Any) -> list[Any]:
            calls = [pool.submit(_call, function, arguments) for pool in pools]
            return [pickle.loads(call.result()) for call in calls]

        yield together


def share(data: Data, counts: tuple[int, int], group: Group) -> Data:
    """The rows of a process, of which the first has the first ones."""
    if group is None:
        return data
    rows = torch.arange(sum(counts)).split(counts)[distributed.get_rank(group)]
    x, y, arguments = data
    return x[rows], y[rows], {name: value[rows] for name, value in arguments.items()}
