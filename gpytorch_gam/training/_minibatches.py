"""The fit by minibatches: natural gradients for the posterior, Adam beside them for the hyperparameters."""

from __future__ import annotations

import importlib
import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

import gpytorch
import torch
from gpytorch.likelihoods import Likelihood
from torch import Tensor

from gpytorch_gam import _checks as checks
from gpytorch_gam.data.whole_epochs import every_row
from gpytorch_gam.numerics.grad_mode import gradients_on
from gpytorch_gam.optim.natural_gradient import NaturalGradient
from gpytorch_gam.optim.posterior.parameters import modes_kept
from gpytorch_gam.optim.posterior.step import DENSE_LIMIT
from gpytorch_gam.optim.processes import Processes, average_gradients, row_weighted, start_from_first
from gpytorch_gam.optim.rows.likelihood_check import is_gaussian
from gpytorch_gam.optim.rows.steepness import curvature_steepness
from gpytorch_gam.optim.rows.stream import Rows, checked_rows, concatenated
from gpytorch_gam.parameters.log_scale import Adam, Coordinates
from gpytorch_gam.variational import AdditiveVariationalStrategy
from gpytorch_gam.warnings import TrainingLoopWarning

from ._convergence import NOTABLE_NATS, MeanGradient, OpenGain, open_gains
from ._graphed_step import GraphedStep
from ._likelihood_step import fit_likelihood
from ._profile_bound import Maximum, ProfileBound
from ._quasi_newton import ObjectiveError
from ._row_count import warn_of_other_rows
from ._settling import Settling, has_stalled
from .fit_result import Epoch, Outcome
from .polishing import polish
from .starting_values import null_model_of, start_from_null_model, units_of_means

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

# Step of the natural gradient's schedule at which a fit starts from the null model: its size is one half.
_FIRST_STEP = 10

# Largest number of hyperparameters that a warning names.
_NUM_NAMED = 3

# Rate of Adam at the start, by default.
_RATE = 0.1

# Largest number of quasi-Newton steps on all rows with which a fit of many ends that ends by itself.
_LAST_STEPS = 10

# Number of steps before the hyperparameters move, by default.
_NUM_HELD_BACK = 12

# Number of rows times inducing variables up to which a fit ends with the hyperparameters at their optimum.
_MAX_FEATURES = 2**20

# Number of first steps that are checked, unless the likelihood is Gaussian.
_NUM_CHECKED = 100

# Largest sensible rate of Adam: above it hyperparameters change by factors of more than e in a step.
_LARGEST_RATE = 1.0


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
    warm_start: bool,
    callback: Callable[[Epoch], Any] | None,
    progress: bool,
    process_group: ProcessGroup | None,
) -> Outcome:
    """Train as :func:`~gpytorch_gam.fit` describes; generators need ``num_epochs=1``."""
    num_epochs = None if options.num_epochs in (None, "auto") else int(options.num_epochs)
    lr = _RATE if options.lr is None else options.lr
    if num_epochs != 1 and iter(batches) is batches:
        raise ValueError(
            "batches can be gone through only once: pass a DataLoader or a list, not a generator, or num_epochs=1"
        )
    num_held_back = options.num_held_back
    if num_held_back is None:
        num_held_back = 0 if warm_start else _default_held_back(batches, num_epochs)
    loop = _Loop(model, likelihood, num_data, lr, num_held_back, warm_start, process_group, bool(options.cuda_graph))
    epochs: Iterable[int] = itertools.count(1) if num_epochs is None else range(1, num_epochs + 1)
    if progress and loop.processes.leads:
        epochs = _progress_bar(epochs)
    history: list[Epoch] = []
    stopped = f"{num_epochs} epochs were taken"
    try:
        batches, seen = _with_first(batches)
        loop.start(seen, warm_start)
        settling = Settling(loop.coordinates, lr)
        for number in epochs:
            if num_epochs is None:
                loop.use_rate(settling.rate)
            else:
                loop.set_rate(number - 1, num_epochs)
            before = loop.num_steps
            with gradients_on():
                elbo = loop.run(batches)
            history.append(Epoch.after(history, elbo))
            if loop.processes.leads and _has_diverged(history) and not _has_diverged(history[:-1]):
                warnings.warn(
                    f"the ELBO has fallen from {history[0].elbo:.3g} to {elbo:.3g} nats: the posterior is far from the "
                    f"data. Start from narrower priors or a mean module near them, lower lr={lr:g}, or take larger "
                    "batches",
                    TrainingLoopWarning,
                    stacklevel=3,
                )
            if callback is not None:
                callback(history[-1])
            moving = [epoch.elbo for epoch in history[loop.num_still_epochs :]]
            if options.patience is not None and has_stalled(moving, options.patience):
                stopped = f"the ELBO has not changed notably for {options.patience} epochs"
                break
            if num_epochs is None and (loop.has_moved or loop.adam is None):
                settling.add(elbo, loop.num_steps - before)
                if settling.is_over:
                    stopped = settling.reason
                    settling.hold_at_mean()
                    break
    finally:
        loop.finish()
    with gradients_on():
        maximum = loop.converge(batches)
        if maximum is None and num_epochs is None:
            maximum = loop.arrive(batches)
    if maximum is not None and num_epochs is None:
        is_done = maximum.open <= tolerance
        stopped = "the bound of all rows is at a maximum" if is_done else f"{stopped}, and the last steps were taken"
    bound = None if maximum is None else maximum.bound
    if options.polish_passes:
        bound = polish(model, likelihood, batches, max_passes=options.polish_passes, process_group=process_group)[-1]
    if bound is not None:
        history.append(Epoch(len(history) + 1, bound, bound))
    gains: list[OpenGain] = []
    if loop.has_moved and maximum is None:
        with gradients_on():
            gains = open_gains(model, likelihood, loop.gradient, num_data)
    return Outcome(
        history=history,
        bound=math.nan if bound is None else bound,
        gradient=math.nan if maximum is None else maximum.gradient,
        open=sum(gain.nats for gain in gains) if maximum is None else maximum.open,
        stopped=stopped,
        passes=len(history),
        evaluations=0 if maximum is None else maximum.evaluations,
        has_moved=loop.has_moved,
        notable=NOTABLE_NATS,
        open_names=[gain.name for gain in gains[:_NUM_NAMED]],
        remedy="Leave out num_epochs, or go on with fit(..., warm_start=True)",
    )


class _Loop:
    """The objective, both optimisers and the state of a training loop."""

    def __init__(
        self,
        model: gpytorch.models.ApproximateGP,
        likelihood: gpytorch.likelihoods.Likelihood,
        num_data: int,
        lr: float,
        num_held_back: int,
        warm_start: bool,
        process_group: ProcessGroup | None,
        cuda_graph: bool,
    ) -> None:
        self.mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=num_data)
        if cuda_graph and process_group is not None:
            raise ValueError("cuda_graph=True is for one process: leave out process_group, or the graph")
        self.evaluate = GraphedStep(self.mll) if cuda_graph else self._evaluate
        self.natural = NaturalGradient(model, num_data=num_data, warm_start=warm_start, process_group=process_group)
        self.process_group, self.processes = process_group, Processes(process_group)
        self.hyperparameters = [p for p in (*model.hyperparameters(), *likelihood.parameters()) if p.requires_grad]
        # None for a model whose hyperparameters are all fixed, which trains its posterior alone.
        self.adam: Adam | None = None
        self.coordinates = Coordinates(self.hyperparameters, [model, likelihood])
        self.lr = lr
        self.num_held_back = num_held_back
        self.num_steps = 0
        self.num_still_epochs = 0  # epochs in which no hyperparameter moved
        self.has_counted = False
        self.limits_moves = False
        self.gradient = MeanGradient(self.hyperparameters)

    def start(self, batches: Iterable[Any], keeps_values: bool) -> None:
        """Set the starting values, unless present ones are kept, and find the units in which hyperparameters move."""
        model, likelihood = self.mll.model, self.mll.likelihood
        strategy = model.variational_strategy
        null = null_model_of(strategy, likelihood, batches, self.processes)
        if null is not None and not keeps_values:
            start_from_null_model(strategy, likelihood, null)
        start_from_first(self.processes, strategy, [model, likelihood])
        if null is not None and not keeps_values and not is_gaussian(likelihood):
            # That of the null model is narrow, and widens by a factor a step as the data allow. Under a log link, rows
            # that a first batch does not have would be seen under the prior otherwise.
            self.natural.begin_at(_FIRST_STEP)
        if self.hyperparameters:
            units = {} if null is None else units_of_means(strategy, null)
            self.coordinates = Coordinates(self.hyperparameters, [model, likelihood], units)
            self.adam = Adam(self.hyperparameters, self.coordinates, self.lr)

    @property
    def has_moved(self) -> bool:
        """Whether the hyperparameters have taken a step."""
        return self.adam is not None and self.num_steps > self.num_held_back

    def set_rate(self, num_done: int, num_epochs: int) -> None:
        """Lower Adam's rate along a cosine that begins when the hyperparameters are released."""
        share = (num_done - self.num_still_epochs) / max(num_epochs - self.num_still_epochs, 1)
        self.use_rate(0.5 * self.lr * (1.0 + math.cos(math.pi * share)))

    def use_rate(self, rate: float) -> None:
        """Set Adam's rate."""
        if self.adam is not None:
            self.adam.param_groups[0]["lr"] = rate

    def run(self, batches: Iterable[Any]) -> float:
        """One pass over the data; returns the mean of the batches' ELBOs, weighted by their rows, in nats."""
        self._check_lengths(batches)
        self.mll.train()
        self.gradient = MeanGradient(self.hyperparameters)
        self.limits_moves = not is_gaussian(self.mll.likelihood)
        device = self.mll.model.variational_strategy.predictor.device
        total, num_rows, largest = torch.zeros((), dtype=torch.float64, device=device), 0, 0
        for batch in batches:
            rows = self._checked(batch)
            total, num_rows = total + len(rows.y) * self._step(rows).to(total), num_rows + len(rows.y)
            largest = max(largest, len(rows.y))
        if not num_rows:
            raise ValueError(
                "batches is empty: there is no data to fit (a loader with drop_last gives nothing if its batches are "
                "larger than the data)"
            )
        sums = self.processes.sum([total, total.new_tensor([num_rows, largest])])
        num_rows, largest = map(int, sums[1].tolist())
        if self.processes.leads and not self.has_counted:
            warn_of_other_rows(batches, num_rows, self.mll.num_data, tolerance=largest)
        self.has_counted = True
        self.num_still_epochs += not self.has_moved
        return sums[0].item() / num_rows * self.mll.num_data

    def _checked(self, batch: Any) -> Rows:
        rows = checked_rows(self.mll.model.variational_strategy, self.mll.likelihood, batch)
        if len(rows.y) > self.mll.num_data:
            raise ValueError(
                f"num_data is {self.mll.num_data}, but a batch has {len(rows.y)} rows: num_data is the number of rows "
                "of all the data, not that of the batches"
            )
        return rows

    def _check_lengths(self, batches: Iterable[Any]) -> None:
        if isinstance(batches, Sized):
            device = self.mll.model.variational_strategy.predictor.device
            self.processes.require_equal({"numbers of batches": len(batches)}, device)

    def _limit_moves(self, rows: Rows) -> None:
        """Let the natural gradient know how fast the likelihood's curvature changes, once an epoch."""
        steepness = curvature_steepness(self.mll.model.variational_strategy, self.mll.likelihood, rows)
        self.processes.broadcast([steepness])
        self.natural.steepness, self.limits_moves = steepness, False

    def _step(self, rows: Rows) -> Tensor:
        if self.limits_moves:
            self._limit_moves(rows)
        if self.adam is not None and self.num_steps == self.num_held_back > 0:
            self._release_likelihood(rows)
        if self._is_checked(rows):
            loss = self.natural.step(lambda: self.evaluate(rows))
        else:
            loss = self.evaluate(rows)
            self.natural.step()
        if self.adam is not None and self.num_steps >= self.num_held_back:
            self.gradient.add(len(rows.y))
            self.adam.step()
        self.num_steps += 1
        return -loss

    def _release_likelihood(self, rows: Rows) -> None:
        """Fit the likelihood's parameters before Adam moves them: near the prior, noise and shape were unknown."""
        fit_likelihood(self.mll.model, self.mll.likelihood, rows, self.mll.num_data, self.process_group)

    def _is_checked(self, rows: Rows) -> bool:
        """
        Whether a step is checked against the loss of its rows: with all rows its size does not fall, and far from the
        optimum curvatures can be off by the factor of an exponential.
        """
        if is_gaussian(self.mll.likelihood):
            return False  # its curvatures are the same everywhere
        return self.num_steps < _NUM_CHECKED or len(rows.y) >= self.mll.num_data

    def _evaluate(self, rows: Rows) -> Tensor:
        """Minus the ELBO per row; its gradients are left in the parameters."""
        if self.adam is not None:
            self.adam.zero_grad()
        loss = -self.mll(self.mll.model(rows.x), rows.y, **rows.row_arguments)
        if loss.dim():
            raise ValueError(
                f"the objective has shape {tuple(loss.shape)} and is no number: {type(self.mll.likelihood).__name__} "
                f"must give one expected log-probability a row for responses of shape {tuple(rows.y.shape)}"
            )
        row_weighted(loss, len(rows.y), self.process_group).backward()
        average_gradients(self.hyperparameters, self.process_group)
        return loss.detach()

    def finish(self) -> None:
        self.natural.remove()
        self.mll.eval()

    def converge(self, batches: Iterable[Any]) -> Maximum | None:
        """Bring small data's hyperparameters to a stationary point; None for large data or passes of other rows."""
        model, likelihood = self.mll.model, self.mll.likelihood
        strategy = model.variational_strategy
        num_inducing = strategy.predictor.num_inducing_total
        is_small = num_inducing <= DENSE_LIMIT and self.mll.num_data * num_inducing <= _MAX_FEATURES
        if not (self.has_moved and is_small):
            return None
        try:
            parts = list(every_row(batches))
        except ValueError:  # each pass draws other rows
            return None
        rows = concatenated([checked_rows(strategy, likelihood, batch) for batch in parts])
        return self._maximised(rows) if self._count(rows) == self.mll.num_data else None

    def _count(self, rows: Iterable[Rows]) -> int:
        """The number of rows in all processes."""
        own, device = sum(len(part.y) for part in rows), self.mll.model.variational_strategy.predictor.device
        return sum(count for (count,) in self.processes.gather([own], device))

    def arrive(self, batches: Iterable[Any]) -> Maximum | None:
        """
        Bring posterior and hyperparameters of large data to a maximum, or as near to it as some steps lead, by passes
        over the batches. None for passes of other rows, and where nothing may move.
        """
        try:
            passes = _Passes(self.mll.model.variational_strategy, self.mll.likelihood, every_row(batches))
        except ValueError:  # each pass draws other rows
            return None
        return self._maximised(passes, _LAST_STEPS) if self.has_moved else None

    def _maximised(self, rows: Iterable[Rows], max_steps: int | None = None) -> Maximum | None:
        model, likelihood = self.mll.model, self.mll.likelihood
        profile = ProfileBound(
            model, likelihood, rows, self.mll.num_data, self.hyperparameters, self.coordinates, self.process_group
        )
        with modes_kept(model, likelihood), suppress(ObjectiveError):
            return profile.maximise(max_steps)
        return None


class _Passes(Iterable[Rows]):
    """Batches as checked rows, gone through anew each time."""

    def __init__(self, strategy: AdditiveVariationalStrategy, likelihood: Likelihood, batches: Iterable[Any]) -> None:
        self._strategy, self._likelihood, self._batches = strategy, likelihood, batches

    def __iter__(self) -> Iterator[Rows]:
        return (checked_rows(self._strategy, self._likelihood, batch) for batch in self._batches)


def _with_first(batches: Iterable[Any]) -> tuple[Iterable[Any], Iterable[Any]]:
    """The batches, and those of them that can be inspected before training: the first one if they are a generator."""
    if not isinstance(batches, Iterator):
        return batches, batches
    first = list(itertools.islice(batches, 1))
    return itertools.chain(first, batches), first


def _default_held_back(batches: Iterable[Any], num_epochs: int | None) -> int:
    """The default number of steps before the hyperparameters move: 12, but at most a quarter of all steps."""
    if num_epochs is None or not isinstance(batches, Sized):
        return _NUM_HELD_BACK
    return min(_NUM_HELD_BACK, num_epochs * len(batches) // 4)


def _has_diverged(history: list[Epoch]) -> bool:
    """Whether the ELBO has become much worse than its range at the beginning."""
    return len(history) > 1 and not history[-1].elbo > history[0].elbo - 10.0 * abs(history[0].elbo) - 1000.0


def _progress_bar(epochs: Iterable[int]) -> Any:
    try:
        tqdm = importlib.import_module("tqdm").tqdm
    except ImportError as error:
        raise ImportError("progress=True needs tqdm: pip install tqdm") from error
    return tqdm(epochs, desc="epochs")
