"""The runs of a fit by its method, which may become another one while inducing points are added."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gpytorch
from gpytorch.likelihoods import Likelihood

from gpytorch_gam.components.reading import has_own_forward
from gpytorch_gam.data.whole_epochs import every_row
from gpytorch_gam.optim.processes import Processes
from gpytorch_gam.variational import AdditiveVariationalStrategy

from ._choice import Choice, choose, most_inducing
from ._constant_inputs import constant_inputs
from ._data_sources import as_minibatches
from ._growing import grow
from ._minibatches import MinibatchOptions, fit_minibatches
from ._rough_effects import Residuals, RoughEffect, dependent_residuals, residuals_of_batches, rough_effects
from ._row_fit import RowFit
from .discretized.bin_shortfall import shortfall_at_bins
from .discretized.discretized_fit import run_bins
from .discretized.fit_statistics import FitStatistics
from .fit_result import Epoch, Outcome, Recorder
from .shortfall import shortfall_of_batches

if TYPE_CHECKING:
    from .discretized.column_bins import ColumnBins


@dataclass(frozen=True)
class RunOptions:
    """What a fit was asked for, see :func:`~gpytorch_gam.fit`."""

    tolerance: float
    warm_start: bool
    explore: bool
    max_bins: int | Sequence[int] | None
    bins: ColumnBins | None
    minibatches: MinibatchOptions
    callback: Callable[[Epoch], Any] | None
    progress: bool


class MethodRuns:
    """
    The runs of a fit by a choice of method. One that was chosen automatically is looked at again when there are more
    inducing points: bins may now be too coarse for them. ``are_minibatches`` says that the data are batches of the
    user's own.
    """

    def __init__(
        self,
        model: gpytorch.models.ApproximateGP,
        likelihood: Likelihood,
        batches: Any,
        num_rows: int,
        choice: Choice,
        options: RunOptions,
        record: Recorder,
        processes: Processes,
        *,
        is_automatic: bool,
        are_minibatches: bool,
    ) -> None:
        self._model, self._likelihood, self._batches, self._num_rows = model, likelihood, batches, num_rows
        self._strategy: AdditiveVariationalStrategy = model.variational_strategy
        #: The method, and why it is the one.
        self.choice = choice
        self._options, self._record, self._processes = options, record, processes
        self._is_automatic, self._are_minibatches = is_automatic, are_minibatches
        self._by_rows: RowFit | None = None
        self._num_inducing = self._strategy.predictor.num_inducing_total

    def finish(self) -> tuple[Outcome, dict[str, float]]:
        """All runs; what came out, and the nats that more inducing points would bring to each component."""
        try:
            outcome, found = self._grown() if self._can_grow() else self._alone()
            return outcome if self._by_rows is None else self._by_rows.finished(outcome), found
        except BaseException:
            if self._record.history:
                self._strategy.has_arrived = False
            if self._by_rows is not None:
                self._by_rows.leave()
            raise

    def _can_grow(self) -> bool:
        """Whether inducing points may be added."""
        if not self._options.explore or self.choice.method == "minibatches":
            return False
        return self.choice.method == "rows" or self._processes.is_alone

    def _alone(self) -> tuple[Outcome, dict[str, float]]:
        """One run, with the inducing points that there are."""
        outcome = self._run(self._options.tolerance, self._options.explore)
        return outcome, self._shortfalls(outcome)

    def _grown(self) -> tuple[Outcome, dict[str, float]]:
        """Runs between which inducing points are added."""
        return grow(
            self._strategy,
            self._run,
            self._shortfalls,
            self._options.tolerance,
            self._most_inducing,
            self._rough_effects,
            # Rows start from the sites of their last posterior; bins that are interrupted leave theirs.
            keeps_posterior=self.choice.method == "bins",
        )

    def _most_inducing(self) -> int:
        return most_inducing(self.choice.method, self._num_rows)

    def _run(self, tolerance: float, jumps: bool) -> Outcome:
        has_started = self._has_chosen_again()
        options = self._options
        if self.choice.method == "rows":
            if self._by_rows is None:
                self._by_rows = RowFit.of_batches(
                    self._model,
                    self._likelihood,
                    every_row(self._batches),
                    self._processes,
                    options.warm_start or has_started,
                )
            return self._by_rows.run(tolerance, self._record, jumps)
        if self.choice.method == "bins":
            return run_bins(
                self._model,
                self._likelihood,
                self._batches,
                options.max_bins,
                options.bins,
                tolerance,
                self._record,
                self._processes,
                jumps=jumps,
            )
        return fit_minibatches(
            self._model,
            self._likelihood,
            as_minibatches(self._batches, is_chosen=self._are_minibatches),
            self._num_rows,
            options.minibatches,
            tolerance=tolerance,
            warm_start=options.warm_start,
            callback=options.callback,
            progress=options.progress,
            process_group=self._processes.group,
        )

    def _has_chosen_again(self) -> bool:
        """Take rows in the place of bins if those suit the points that were added; whether this happened now."""
        number = self._strategy.predictor.num_inducing_total
        if number == self._num_inducing or not self._is_automatic or self.choice.method != "bins":
            return False
        self._num_inducing = number
        again = choose(self._model, self._likelihood, self._batches, self._num_rows)
        if again.method in ("rows", "bins"):
            self.choice = again
        return again.method == "rows"

    def _shortfalls(self, outcome: Outcome) -> dict[str, float]:
        if self._by_rows is not None:
            return self._by_rows.shortfalls()
        if not (self._processes.leads and outcome.has_moved):
            return {}
        if isinstance(self._batches, FitStatistics):
            tables = self._batches.tables(self._strategy.predictor.device)
            return shortfall_at_bins(self._strategy, self._likelihood, tables, self._batches.bins)
        if iter(self._batches) is self._batches:
            return {}
        seen = self._batches if self.choice.method == "minibatches" else every_row(self._batches)
        return shortfall_of_batches(self._strategy, self._likelihood, seen, self._num_rows)

    def _residuals(self) -> Residuals | None:
        """What the last run has left of the data, as far as the rows can be read again."""
        if self._by_rows is not None:
            return self._by_rows.residuals()
        if isinstance(self._batches, FitStatistics) or iter(self._batches) is self._batches:
            return None
        try:
            rows = every_row(self._batches)
        except ValueError:  # rows that are drawn again and again are like themselves
            return None
        return residuals_of_batches(self._strategy, self._likelihood, rows)

    def _rough_effects(self) -> list[RoughEffect]:
        """The components whose effects are too rough to be seen with their inducing points."""
        residuals = self._residuals()
        return [] if residuals is None else rough_effects(self._strategy.predictor, residuals, self._processes)

    def constant_inputs(self) -> list[str]:
        """The components to which a ``forward`` of the user's own gives almost the same inputs in all rows."""
        residuals = self._residuals() if has_own_forward(self._model) else None
        return [] if residuals is None else constant_inputs(self._strategy.predictor, residuals.x)

    def dependent_residuals(self) -> dict[str, float]:
        """Where the end of the fit leaves residuals that are alike along a column, see :func:`.dependent_residuals`."""
        residuals = self._residuals() if self._options.explore else None
        return {} if residuals is None else dependent_residuals(self._strategy.predictor, residuals, self._processes)
