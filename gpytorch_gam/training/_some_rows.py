"""Some of the rows of data, which stand for all of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import torch
from gpytorch.likelihoods import Likelihood
from torch import Tensor

from gpytorch_gam.optim.rows.stream import Rows, check_finite_responses, checked_rows
from gpytorch_gam.variational import AdditiveVariationalStrategy

# Number of batches from which rows are taken.
_NUM_BATCHES = 8


def rows_of_first_batches(
    strategy: AdditiveVariationalStrategy, likelihood: Likelihood, batches: Iterable[Any], most: int
) -> list[Rows]:
    """
    Equally spaced rows of each of the first batches, ``most`` of all together. Batches are thinned one by one, so that
    a single one of a large file is in memory.
    """
    parts = [
        thinned(checked_rows(strategy, likelihood, part), most) for part in itertools.islice(batches, _NUM_BATCHES)
    ]
    if not parts:
        raise ValueError("data has no batch")
    for part in parts:
        check_finite_responses(part)
    return [thinned(part, most // len(parts)) for part in parts]


def thinned(rows: Rows, most: int) -> Rows:
    """At most ``most`` equally spaced rows."""
    chosen = equally_spaced(len(rows.y), most, rows.y.device)
    return Rows(rows.x[chosen], rows.y[chosen], {name: value[chosen] for name, value in rows.row_arguments.items()})


def equally_spaced(size: int, most: int, device: torch.device) -> Tensor:
    """The numbers of at most ``most`` of ``size`` rows."""
    return torch.linspace(0, size - 1, min(size, most), dtype=torch.float64, device=device).round().long()
