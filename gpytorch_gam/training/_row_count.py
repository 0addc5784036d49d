"""The number of rows of all the data, and a check that a pass over the batches agrees with it."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence, Sized
from typing import Any, NamedTuple

import torch
from torch.utils.data import RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler
from torch.utils.data.distributed import DistributedSampler

from gpytorch_gam import _checks as checks
from gpytorch_gam.optim.processes import Processes
from gpytorch_gam.warnings import TrainingLoopWarning

# Samplers that may draw any number of rows an epoch.
_DRAWING = (RandomSampler, WeightedRandomSampler)


def number_of_batches(batches: Iterable[Any]) -> int | None:
    """The number of batches, or None where it takes reading them."""
    try:
        return len(batches)  # type: ignore[arg-type]
    except TypeError:  # also of the loader of a dataset without a length
        return None


class _RowCount(NamedTuple):
    """Bounds on the number of rows, known before they are read."""

    most: int  # rows of the data from which the batches are drawn
    least: int  # the same without rows that are dropped with the last batch
    is_share: bool  # whether other processes may have further rows


def number_of_rows(batches: Iterable[Any], num_data: int | None, processes: Processes) -> int:
    """The number of rows of all data: ``num_data`` after a check, or the count; a ValueError if unknown or wrong."""
    count = _counted(batches)
    if count is not None and count.is_share and not processes.is_alone:
        count = None  # whether the others have the same rows is not known
    if num_data is None:
        if count is None:
            raise ValueError(
                "num_data is not given, and batches does not say how many rows all the data have: pass num_data=..."
            )
        return count.most
    num_data = checks.integer("num_data", num_data, least=1)
    if count is not None and count.most > 0 and not count.least <= num_data <= count.most:
        raise ValueError(
            f"num_data is {num_data}, but batches are of {count.most} rows: the posterior would be that of another "
            "number of rows. Pass num_data=len(dataset), or leave it out"
        )
    return num_data


def _counted(batches: Iterable[Any]) -> _RowCount | None:
    """The count of rows, or None where it would take reading them."""
    num_rows = getattr(batches, "num_rows", None)
    if isinstance(num_rows, int):  # batches from files know all shards
        return _RowCount(num_rows, num_rows, is_share=False)
    if isinstance(batches, list | tuple):
        return _counted_in_memory(batches)
    dataset = getattr(batches, "dataset", None)
    if not isinstance(dataset, Sized):
        return None
    return _counted_by_sampler(batches, len(dataset))


def _counted_in_memory(batches: Sequence[Any]) -> _RowCount | None:
    """The count of rows, or None where the batches are malformed, which reading them will report."""
    if not all(isinstance(batch, list | tuple) and len(batch) > 1 and torch.is_tensor(batch[1]) for batch in batches):
        return None
    total = sum(len(batch[1]) if batch[1].dim() else 1 for batch in batches)
    return _RowCount(total, total, is_share=True)


def _counted_by_sampler(loader: Any, num_rows: int) -> _RowCount:
    sampler = getattr(loader, "sampler", None)
    if isinstance(sampler, DistributedSampler):
        return _RowCount(num_rows, min(num_rows, sampler.total_size), is_share=False)
    if isinstance(sampler, SubsetRandomSampler):
        num_rows = len(sampler)
    if not isinstance(sampler, (SequentialSampler, SubsetRandomSampler, *_DRAWING)) or loader.batch_size is None:
        return _RowCount(num_rows, 0, is_share=True)  # a custom sampler, which may draw from a part of the rows
    least = min(num_rows, len(sampler))
    return _RowCount(num_rows, least - (least % loader.batch_size if loader.drop_last else 0), is_share=True)


def warn_of_other_rows(batches: Iterable[Any], num_seen: int, num_data: int, tolerance: int) -> None:
    """Warn if a pass gave clearly more or fewer rows, up to ``tolerance``, unless a sampler draws them from all."""
    draws = isinstance(getattr(batches, "sampler", None), _DRAWING)
    if draws or abs(num_seen - num_data) < tolerance:
        return
    warnings.warn(
        f"the first epoch gave {num_seen} rows, but num_data is {num_data}: the posterior is that of {num_data} rows "
        f"like these. Unless each epoch is another part of the data, pass num_data={num_seen}",
        TrainingLoopWarning,
        stacklevel=4,
    )
