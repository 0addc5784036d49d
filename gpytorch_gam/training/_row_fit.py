"""The fit by features of all rows: hyperparameters at a maximum of the bound at the optimal posterior."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import gpytorch
from gpytorch.likelihoods import Likelihood
from torch import Tensor

from gpytorch_gam.likelihoods.null_model import NullModel
from gpytorch_gam.optim.processes import Processes
from gpytorch_gam.optim.rows.stream import Rows, checked_rows, concatenated
from gpytorch_gam.parameters.log_scale import Coordinates
from gpytorch_gam.variational import AdditiveVariationalStrategy

from ._ascent import Arrival, Ascent
from ._hyperparameters import hyperparameters_of, limits_of
from ._row_bound import RowBound
from .fit_result import Epoch, Outcome, recorder
from .polishing import polish
from .starting_values import units_of_means

# Minus the second derivative of the bound that is assumed at the start: in a kernel's hyperparameter, and for each row
# in a parameter that rows determine by themselves, and in another of the likelihood.
_CURVATURE, _INFORMATION, _LEAST_INFORMATION = 1.0, 0.5, 0.02

# Largest number of steps of a search.
_MAX_STEPS = 200


def rows_in_memory(strategy: AdditiveVariationalStrategy, likelihood: Likelihood, batches: Iterable[Any]) -> Rows:
    """All rows of the batches, which must have the same row-wise arguments."""
    parts = [checked_rows(strategy, likelihood, batch) for batch in batches]
    if not parts:
        raise ValueError("batches is empty: there is no data to fit")
    joined = concatenated(parts)
    if len(joined) > 1:
        raise ValueError("the batches must all have the same row-wise arguments: give those of some to each")
    return joined[0]


class RowFit:
    """The fit of a model to rows in memory, each process to its own."""

    def __init__(
        self,
        model: gpytorch.models.ApproximateGP,
        likelihood: Likelihood,
        rows: Rows,
        processes: Processes,
        null: NullModel | None,
    ) -> None:
        self._model, self._likelihood, self._rows, self._processes = model, likelihood, rows, processes
        self._strategy: AdditiveVariationalStrategy = model.variational_strategy
        self._num_rows = sum(count for (count,) in processes.gather([len(rows.y)], self._strategy.predictor.device))
        self._bound = RowBound(model, likelihood, rows, processes)
        parameters = hyperparameters_of(model, likelihood)
        units = {} if null is None else units_of_means(self._strategy, null)
        self._ascent = Ascent(
            self._bound,
            self._strategy.predictor,
            parameters,
            Coordinates(parameters, [model, likelihood], units),
            self._curvatures(parameters),
            limits_of(parameters, model, likelihood),
            self._num_rows,
            None if null is None else null.variance,
        )

    def run(self, tolerance: float, callback: Callable[[Epoch], Any] | None) -> Outcome:
        """
        Move hyperparameters and posterior to the maximum of the bound. After an interruption they are at the best point
        so far.
        """
        history: list[Epoch] = []
        try:
            arrival = self._ascent.run(tolerance, _MAX_STEPS, recorder(history, callback))
        except BaseException:
            with suppress(ValueError, RuntimeError):
                self._ascent.restore_best()
                self._write_posterior()
            raise
        return self._outcome(arrival, history, self._write_posterior())

    def switched_off(self) -> tuple[str, ...]:
        """The names of the components whose variance went to zero."""
        return self._ascent.switched_off()

    def _outcome(self, arrival: Arrival, history: list[Epoch], bound: float) -> Outcome:
        return Outcome(
            history=history,
            bound=bound,
            gradient=arrival.gradient,
            open=arrival.open,
            stopped=arrival.stopped,
            passes=self._bound.passes,
            evaluations=self._ascent.evaluations,
        )

    def _write_posterior(self) -> float:
        """Set the posterior to that of the model's family nearest to the optimum; returns its bound in nats."""
        optimum = self._bound.optimum()
        self._strategy.set_whitened_posterior(optimum.mean, optimum.precision)
        history = polish(self._model, self._likelihood, [self._rows], max_passes=2, process_group=self._processes.group)
        return history[-1]

    def _curvatures(self, parameters: Sequence[Tensor]) -> list[float]:
        strategy, found = self._strategy, {}
        for name, parameter in self._likelihood.named_parameters():
            information = _INFORMATION if "noise" in name else _LEAST_INFORMATION
            found[id(parameter)] = max(information * self._num_rows, 1.0)
        for parameter in (p for mean in strategy.predictor.means for p in mean.parameters()):
            found[id(parameter)] = max(_INFORMATION * self._num_rows, 1.0)
        return [found.get(id(parameter), _CURVATURE) for parameter in parameters]
