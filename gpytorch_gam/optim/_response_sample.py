"""Rows from which training starts."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from gpytorch.likelihoods import Likelihood

from gpytorch_gam.data._streamed_batches import StreamedBatches
from gpytorch_gam.likelihoods._null_model import Responses
from gpytorch_gam.variational import AdditiveVariationalStrategy

from ._data_stream import Rows, checked_rows

# Rows of a loader that are enough for moments; of batches in memory all are taken.
_SAMPLE_SIZE = 20000


@torch.no_grad()
def sampled_responses(
    strategy: AdditiveVariationalStrategy, likelihood: Likelihood, batches: Iterable[Any]
) -> Responses | None:
    """
    Responses of a list of batches, or of the first batches of a loader, which is left as it was: its next pass goes
    through the rows in the order of this one.

    The mean of predictor 0, of a mean module or the model's own, is a part of the offset.

    :param strategy: Of the model.
    :param likelihood: Of the data.
    :param batches: As for a fit, not a generator.
    :return: None if there is no row, or there are several responses in one.
    """
    rows: list[Rows] = []
    with _untouched(batches) as source:
        for batch in source:
            rows.append(checked_rows(strategy, likelihood, batch))
            if not isinstance(batches, Sequence) and sum(len(part.y) for part in rows) >= _SAMPLE_SIZE:
                break
    if not rows or rows[0].y.dim() > 1:
        return None
    names = set.intersection(*(set(part.parameters) for part in rows))
    arguments = {name: torch.cat([part.parameters[name] for part in rows]) for name in names}
    means = torch.cat([strategy.read(part.x).means[0] for part in rows])
    offset = arguments.get("offset")
    if offset is None:
        arguments["offset"] = means
    else:
        arguments["offset"] = (offset if offset.dim() == 1 else offset[..., 0]) + means
    responses = Responses(torch.cat([part.y for part in rows]), arguments)
    return responses if len(responses) else None


@contextmanager
def _untouched(batches: Iterable[Any]) -> Iterator[Iterable[Any]]:
    """The batches, whose random numbers go on afterwards from where they are now."""
    sampler = getattr(batches, "sampler", None)
    generators = [getattr(owner, "generator", None) for owner in (batches, sampler)]
    states = [(each, each.get_state()) for each in generators if isinstance(each, torch.Generator)]
    with torch.random.fork_rng(devices=[]):
        try:
            yield copy.copy(batches) if isinstance(batches, StreamedBatches) else batches
        finally:
            for generator, state in states:
                generator.set_state(state)
