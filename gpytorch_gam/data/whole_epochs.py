"""Passes over all of the data with loaders that leave rows out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.utils.data import DataLoader, RandomSampler, WeightedRandomSampler
from torch.utils.data.distributed import DistributedSampler

from gpytorch_gam import _checks as checks

from .streamed_batches import StreamedBatches


def every_row(batches: Iterable[Any]) -> Iterable[Any]:
    """
    The batches of a loader, with the rows that it drops from its last one. No batches are a TypeError; a generator, and
    a sampler that repeats or leaves out rows, are a ValueError.
    """
    checks.batches(batches)
    if iter(batches) is batches:
        raise ValueError("batches can be gone through only once: pass a DataLoader or a list, not a generator")
    sampler = getattr(batches, "sampler", None)
    if isinstance(sampler, DistributedSampler):
        num_rows = len(sampler.dataset)  # type: ignore[arg-type]
        if sampler.total_size != num_rows:
            raise ValueError(
                f"the DistributedSampler of batches gives {sampler.total_size} rows for {num_rows}, and each row has "
                "to come once: take Subset(dataset, range(rank, len(dataset), world_size)) in each process"
            )
    if _draws_rows(sampler):
        raise ValueError(
            f"the {type(sampler).__name__} of batches draws rows at random, and each row has to come once: pass "
            "a DataLoader of the same dataset without it"
        )
    if isinstance(batches, StreamedBatches):
        return batches.every_row()
    if not isinstance(batches, DataLoader) or not batches.drop_last:
        return batches
    return DataLoader(
        batches.dataset,
        batches.batch_size,
        sampler=batches.sampler,
        num_workers=batches.num_workers,
        collate_fn=batches.collate_fn,
        pin_memory=batches.pin_memory,
    )


def _draws_rows(sampler: Any) -> bool:
    """Whether each pass over a sampler gives other rows."""
    if isinstance(sampler, RandomSampler):
        return sampler.replacement or len(sampler) != len(sampler.data_source)
    return isinstance(sampler, WeightedRandomSampler)
