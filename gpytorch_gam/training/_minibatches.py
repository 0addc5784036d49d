"""The fit by minibatches: natural gradients for the posterior, Adam beside them for the hyperparameters."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

import gpytorch
from gpytorch.likelihoods import Likelihood

from gpytorch_gam import _checks as checks
from gpytorch_gam.numerics.grad_mode import gradients_on
from gpytorch_gam.warnings import TrainingLoopWarning

from ._cosine_decay import CosineDecay
from ._minibatch_end import End, end_of
from ._minibatch_loop import MinibatchLoop
from ._progress import progress_bar
from ._row_count import number_of_batches
from ._settling import Settling, has_stalled
from .bound_gradients import log_prior_in_nats
from .fit_result import Epoch, Outcome
from .polishing import polish

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

# Rate of Adam at the start, by default, and the largest sensible one: above it hyperparameters change by factors of
# more than e in a step.
_RATE, _LARGEST_RATE = 0.1, 1.0

# Number of steps before the hyperparameters move, by default.
_NUM_HELD_BACK = 12


@dataclass(frozen=True)
class MinibatchOptions:
    """The options of :func:`~gpytorch_gam.fit` that belong to this method; None for a default."""

    num_epochs: int | Literal["auto"] | None = None
    lr: float | None = None
    num_held_back: int | None = None
    patience: int | None = None
    polish_passes: int | None = None
    cuda_graph: bool | None = None

    def given(self) -> list[str]:
        """The names of the options that were given."""
        return [option.name for option in fields(self) if getattr(self, option.name) is not None]

    @property
    def number_of_epochs(self) -> int | None:
        """The number of epochs; None for a fit that ends by itself."""
        return None if self.num_epochs in (None, "auto") else int(self.num_epochs)

    def check(self) -> None:
        """Raise an error for an option that is out of range, and warn of a rate that is much too high."""
        if self.num_epochs not in (None, "auto"):
            checks.integer("num_epochs", self.num_epochs, least=1)
        for name, least in (("patience", 1), ("num_held_back", 0), ("polish_passes", 0)):
            value = getattr(self, name)
            checks.integer(name, least if value is None else value, least=least)
        checks.number("lr", _RATE if self.lr is None else self.lr, above=0)
        checks.flag("cuda_graph", bool(self.cuda_graph) if self.cuda_graph is None else self.cuda_graph)
        if self.lr is not None and self.lr > _LARGEST_RATE:
            warnings.warn(
                f"lr={self.lr:g}: Adam moves the logarithm of a hyperparameter by up to that in each step, too far to "
                "find any: rates from 0.01 to 0.3 are usual",
                TrainingLoopWarning,
                stacklevel=3,
            )


def fit_minibatches(
    model: gpytorch.models.ApproximateGP,
    likelihood: Likelihood,
    batches: Iterable[Any],
    num_data: int,
    options: MinibatchOptions,
    *,
    tolerance: float,
    warm_start: bool,
    callback: Callable[[Epoch], Any] | None,
    progress: bool,
    process_group: ProcessGroup | None,
) -> Outcome:
    """Train as :func:`~gpytorch_gam.fit` describes; generators need ``num_epochs=1``."""
    num_epochs = options.number_of_epochs
    if num_epochs != 1 and iter(batches) is batches:
        raise ValueError(
            "batches can be gone through only once: pass a DataLoader or a list, not a generator, or num_epochs=1"
        )
    lr = _RATE if options.lr is None else options.lr
    num_held_back = options.num_held_back
    if num_held_back is None:
        num_held_back = 0 if warm_start else _default_held_back(batches, num_epochs)
    loop = MinibatchLoop(
        model, likelihood, num_data, lr, num_held_back, warm_start, process_group, bool(options.cuda_graph)
    )
    numbers: Iterable[int] = itertools.count(1) if num_epochs is None else range(1, num_epochs + 1)
    if progress and loop.processes.leads:
        numbers = progress_bar(numbers, "epochs")
    history: list[Epoch] = []
    try:
        batches, seen = _with_first(batches)
        loop.start(seen, warm_start)
        schedule = Settling(loop.coordinates, lr) if num_epochs is None else CosineDecay(num_epochs, lr)
        stopped = _train(loop, batches, numbers, schedule, options.patience, history, callback)
    finally:
        loop.finish()
    with gradients_on():
        end = end_of(loop, batches, tolerance, ends_by_itself=num_epochs is None)
    passes = len(history) + end.passes
    if options.polish_passes:
        polished = polish(model, likelihood, batches, max_passes=options.polish_passes, process_group=process_group)
        end, passes = end._replace(bound=polished[-1]), passes + len(polished)
    if not math.isnan(end.bound):
        history.append(Epoch(len(history) + 1, end.bound, end.bound))
    return Outcome(
        history=history,
        bound=end.bound,
        gradient=end.gradient,
        open=end.open,
        stopped=_joined(stopped, end, tolerance),
        passes=passes,
        evaluations=end.evaluations,
        has_moved=loop.has_moved,
        notable=end.notable,
        open_names=end.open_names,
        remedy=f"{'Go' if num_epochs is None else 'Leave out num_epochs, or go'} on with fit(..., warm_start=True)",
    )


def _train(
    loop: MinibatchLoop,
    batches: Iterable[Any],
    numbers: Iterable[int],
    schedule: CosineDecay | Settling,
    patience: int | None,
    history: list[Epoch],
    callback: Callable[[Epoch], Any] | None,
) -> str:
    """Go through the batches until the schedule ends, and note each epoch in a history; returns why training ended."""
    moving: list[float] = []  # ELBOs of the epochs in which the hyperparameters moved
    for _ in numbers:
        loop.set_rate(schedule.rate)
        before = loop.num_steps
        with gradients_on():
            elbo = loop.run(batches)
        history.append(Epoch.after(history, elbo - log_prior_in_nats(loop.mll.model, loop.mll.likelihood)))
        if loop.processes.leads and _has_diverged(history) and not _has_diverged(history[:-1]):
            _warn_of_divergence(history, loop.lr)
        if callback is not None:
            callback(history[-1])
        if loop.is_moving:
            moving.append(elbo)
        schedule.add(elbo, loop.num_steps - before, loop.is_moving)
        if patience is not None and has_stalled(moving, patience):
            return f"the ELBO has not changed notably for {patience} epochs"
        if schedule.is_over:
            break
    schedule.finish()
    return schedule.reason


def _with_first(batches: Iterable[Any]) -> tuple[Iterable[Any], Iterable[Any]]:
    """The batches, and those of them that can be inspected before training: the first one if they are a generator."""
    if not isinstance(batches, Iterator):
        return batches, batches
    first = list(itertools.islice(batches, 1))
    return itertools.chain(first, batches), first


def _default_held_back(batches: Iterable[Any], num_epochs: int | None) -> int:
    """The default number of steps before the hyperparameters move: 12, but at most a quarter of all steps."""
    number = number_of_batches(batches)
    if num_epochs is None or number is None:
        return _NUM_HELD_BACK
    return min(_NUM_HELD_BACK, num_epochs * number // 4)


def _has_diverged(history: list[Epoch]) -> bool:
    """Whether the ELBO has become much worse than its range at the beginning."""
    return len(history) > 1 and not history[-1].elbo > history[0].elbo - 10.0 * abs(history[0].elbo) - 1000.0


def _joined(stopped: str, end: End, tolerance: float) -> str:
    """Why the epochs and what came after them have ended."""
    if end.stopped is None:
        return stopped
    return end.stopped if end.open <= tolerance else f"{stopped}, and then {end.stopped}"


def _warn_of_divergence(history: Sequence[Epoch], lr: float) -> None:
    warnings.warn(
        f"the ELBO has fallen from {history[0].elbo:.3g} to {history[-1].elbo:.3g} nats: the posterior is far from the "
        f"data. Start from narrower priors or a mean module near them, lower lr={lr:g}, or take larger batches",
        TrainingLoopWarning,
        stacklevel=4,
    )
