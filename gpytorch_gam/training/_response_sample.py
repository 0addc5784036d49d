"""A sample of the responses, from which training starts."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from gpytorch.likelihoods import Likelihood
from torch import Tensor

from gpytorch_gam.data.streamed_batches import StreamedBatches
from gpytorch_gam.likelihoods.null_model import Responses
from gpytorch_gam.optim.processes import Processes
from gpytorch_gam.optim.rows.stream import Rows, check_finite_responses, checked_rows
from gpytorch_gam.variational import AdditiveVariationalStrategy

# Number of rows of a loader that suffices for moments; batches in memory are used whole.
_SAMPLE_SIZE = 20000


@torch.no_grad()
def sampled_responses(
    strategy: AdditiveVariationalStrategy, likelihood: Likelihood, batches: Iterable[Any], processes: Processes
) -> list[Responses]:
    """
    The responses, one entry for each response in a row, of a list of batches or of the first batches of a loader, whose
    random state is restored. Predictors' means are added to the offsets. Processes get the rows of all.
    """
    rows: list[Rows] = []
    with _untouched(batches) as source:
        for batch in source:
            rows.append(checked_rows(strategy, likelihood, batch))
            check_finite_responses(rows[-1])
            if not isinstance(batches, Sequence) and sum(len(part.y) for part in rows) >= _SAMPLE_SIZE:
                break
    if not rows:
        return []
    names = set.intersection(*(set(part.row_arguments) for part in rows))
    arguments = {name: torch.cat([part.row_arguments[name] for part in rows]) for name in names}
    y = torch.cat([part.y for part in rows])
    means = torch.cat([strategy.read(part.x).means.mT for part in rows])  # (n, P)
    arguments, y, means = rows_of_all(processes, arguments, y, means)
    columns = [y] if y.dim() == 1 else list(y.unbind(-1))
    found = [_shifted(column, arguments, mean) for column, mean in zip(columns, means.unbind(-1), strict=False)]
    return [responses for responses in found if len(responses)]


def rows_of_all(
    processes: Processes, arguments: dict[str, Tensor], y: Tensor, means: Tensor
) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """The rows of all processes, in the order of their ranks."""
    if processes.is_alone:
        return arguments, y, means
    counts = [count for (count,) in processes.gather([len(y)], means.device)]
    start = sum(counts[: processes.rank])
    own = [y, means, *(arguments[name] for name in sorted(arguments))]
    tables = [torch.zeros(sum(counts), *part.shape[1:], dtype=torch.float64, device=means.device) for part in own]
    for table, part in zip(tables, own, strict=True):
        table[start : start + len(y)] = part
    y, means, *values = processes.sum(tables)
    return dict(zip(sorted(arguments), values, strict=True)), y, means


def _shifted(y: Tensor, arguments: Mapping[str, Tensor], mean: Tensor) -> Responses:
    """The responses with the mean ``(n, P)`` added to their offset."""
    offset = arguments.get("offset", mean.new_zeros(()))
    shifts = mean + (offset[..., 0] if offset.dim() > 1 else offset)  # (n, P)
    return Responses(y, {**arguments, "offset": shifts})


@contextmanager
def _untouched(batches: Iterable[Any]) -> Iterator[Iterable[Any]]:
    """The batches; on leaving, their random generators are restored, so that the next pass has the same order."""
    sampler = getattr(batches, "sampler", None)
    generators = [getattr(owner, "generator", None) for owner in (batches, sampler)]
    states = [(each, each.get_state()) for each in generators if isinstance(each, torch.Generator)]
    with torch.random.fork_rng(devices=[]):
        try:
            yield copy.copy(batches) if isinstance(batches, StreamedBatches) else batches
        finally:
            for generator, state in states:
                generator.set_state(state)
