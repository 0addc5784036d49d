"""The end of a fit by minibatches: the bound of all rows, and what is open."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from gpytorch_gam.data.whole_epochs import every_row
from gpytorch_gam.optim.posterior.parameters import modes_kept
from gpytorch_gam.optim.posterior.step import DENSE_LIMIT
from gpytorch_gam.optim.rows.stream import Rows, checked_rows, concatenated

from ._convergence import NOTABLE_NATS, open_gains
from ._likelihood_step import is_deterministic
from ._minibatch_loop import MinibatchLoop
from ._profile_bound import ProfileBound
from ._quasi_newton import ObjectiveError
from .bound_gradients import log_prior_in_nats
from .polishing import polish

# Number of rows times inducing variables up to which a fit ends with the hyperparameters at their optimum, whatever the
# number of epochs.
_MAX_FEATURES = 2**20

# Largest number of quasi-Newton steps on more rows with which a fit ends that ends by itself.
_LAST_STEPS = 20

# What the end of a fit depends on.
_GIVEN_NETWORK = ", given the weights of the network"

# Largest number of hyperparameters that a warning names.
_NUM_NAMED = 3


class End(NamedTuple):
    """What is known of the bound where a fit has ended; for the entries see :class:`Outcome`."""

    bound: float
    gradient: float
    open: float
    stopped: str | None = None  # None if the epochs were the end
    passes: int = 0
    evaluations: int = 0
    notable: float = NOTABLE_NATS
    open_names: Sequence[str] = ()


def end_of(loop: MinibatchLoop, batches: Iterable[Any], tolerance: float, ends_by_itself: bool) -> End:
    """
    Bring small data, and any data of a fit that ``ends_by_itself``, to a maximum of the bound of all rows, or as near
    to it as some steps lead. For other data, and where that bound cannot be computed, what is open is estimated. The
    weights of a network stay: the bound does not integrate over them, so that its maximum in them predicts badly.
    """
    is_small = _is_small(loop)
    rows = _all_rows(loop, batches, is_small) if is_small or ends_by_itself else None
    if rows is None or not (loop.has_moved or (ends_by_itself and not loop.hyperparameters)):
        return _estimate(loop)
    model, likelihood, counted = loop.mll.model, loop.mll.likelihood, _CountedPasses(rows)
    moving, condition = loop.own_hyperparameters, loop.has_network * _GIVEN_NETWORK
    if not moving:
        bound = polish(model, likelihood, counted, process_group=loop.process_group)[-1]
        return End(bound, gradient=0.0, open=0.0, passes=counted.number)
    profile = ProfileBound(
        model, likelihood, counted, loop.mll.num_data, moving, loop.coordinates_of(moving), loop.process_group
    )
    try:
        with modes_kept(model, likelihood):
            found = profile.maximise(tolerance, None if is_small else _LAST_STEPS)
    except ObjectiveError:
        return _estimate(loop)
    return End(
        found.bound - log_prior_in_nats(model, likelihood),
        found.gradient,
        found.open,
        found.stopped + condition if ends_by_itself else None,
        counted.number,
        found.evaluations,
        tolerance if ends_by_itself else NOTABLE_NATS,
    )


class _CountedPasses(Iterable[Rows]):
    """Rows, and the number of times that they were gone through."""

    def __init__(self, rows: Iterable[Rows]) -> None:
        self._rows, self.number = rows, 0

    def __iter__(self) -> Iterator[Rows]:
        self.number += 1
        return iter(self._rows)


class _CheckedRows(Iterable[Rows]):
    """The rows of batches, read anew each time."""

    def __init__(self, loop: MinibatchLoop, batches: Iterable[Any]) -> None:
        self._strategy, self._likelihood = loop.mll.model.variational_strategy, loop.mll.likelihood
        self._batches = batches

    def __iter__(self) -> Iterator[Rows]:
        return (checked_rows(self._strategy, self._likelihood, batch) for batch in self._batches)


def _is_small(loop: MinibatchLoop) -> bool:
    num_inducing = loop.mll.model.variational_strategy.predictor.num_inducing_total
    return num_inducing <= DENSE_LIMIT and loop.mll.num_data * num_inducing <= _MAX_FEATURES


def _all_rows(loop: MinibatchLoop, batches: Iterable[Any], in_memory: bool) -> Iterable[Rows] | None:
    """All rows, which are the same each time; None if that cannot be had, or expectations are random."""
    if not is_deterministic(loop.mll.likelihood):
        return None
    try:
        rows = _CheckedRows(loop, every_row(batches))
    except ValueError:  # each pass draws other rows
        return None
    if not in_memory:
        return rows
    joined = concatenated(list(rows))
    device = loop.mll.model.variational_strategy.predictor.device
    own = sum(len(part.y) for part in joined)
    is_whole = sum(count for (count,) in loop.processes.gather([own], device)) == loop.mll.num_data
    return joined if is_whole else None


def _estimate(loop: MinibatchLoop) -> End:
    """What is open by the gradients of the last epoch."""
    if not loop.has_moved:
        return End(math.nan, math.nan, open=math.nan if loop.hyperparameters else 0.0)
    gains = open_gains(loop.mll.model, loop.mll.likelihood, loop.gradient, loop.mll.num_data)
    names = [gain.name for gain in gains[:_NUM_NAMED]]
    return End(math.nan, math.nan, sum(gain.nats for gain in gains), open_names=names)
