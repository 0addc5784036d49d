"""The fit by features of all rows: hyperparameters at a maximum of the bound at the optimal posterior."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import gpytorch
import torch
from gpytorch.likelihoods import Likelihood
from torch import Tensor

from gpytorch_gam.likelihoods.null_model import NullModel
from gpytorch_gam.numerics.capacitance import add_identity
from gpytorch_gam.optim.processes import Processes, start_from_first
from gpytorch_gam.optim.rows.likelihood_check import is_gaussian
from gpytorch_gam.optim.rows.predictors import predictor_segments, product_in_rows, sum_over_rows, weighted_gram
from gpytorch_gam.optim.rows.stream import Rows, check_finite_responses, checked_rows, concatenated
from gpytorch_gam.parameters.log_scale import Coordinates
from gpytorch_gam.variational import AdditiveVariationalStrategy

from ._ascent import Ascent
from ._hyperparameters import hyperparameters_of, limits_of
from ._rough_effects import Residuals
from ._row_bound import RowBound
from .bound_gradients import log_prior_in_nats
from .fit_result import Outcome, Recorder
from .polishing import polish_below
from .shortfall import shortfall_at_rows
from .starting_values import null_model_of, start_from_null_model, units_of_means

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
    for part in parts:
        check_finite_responses(part)
    joined = concatenated(parts)
    if len(joined) > 1:
        raise ValueError("the batches must all have the same row-wise arguments: give those of some to each")
    return joined[0]


class _Bounds(NamedTuple):
    """The bound in nats at the best posterior of any precision, and at that of the model's family."""

    of_any: float
    of_family: float


class RowFit:
    """
    The fit of a model to rows in memory, each process to its own. It can be run again after inducing points were added,
    and goes on from where it was; the posterior is written at the end.
    """

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
        self._null = null
        self._bound = RowBound(model, likelihood, rows, processes)
        self._parameters: Sequence[Tensor] | None = None  # that the ascent moves, once there is one

    @classmethod
    def of_batches(
        cls,
        model: gpytorch.models.ApproximateGP,
        likelihood: Likelihood,
        batches: Iterable[Any],
        processes: Processes,
        warm_start: bool,
    ) -> RowFit:
        """The fit to the rows of batches, with hyperparameters that start from the responses unless it is warm."""
        strategy = model.variational_strategy
        with torch.inference_mode(False), torch.no_grad():
            with processes.sharing_errors("read its rows", strategy.predictor.device):
                rows = rows_in_memory(strategy, likelihood, batches)
            strategy._initialize_once()
            null = null_model_of(strategy, likelihood, [rows], processes)
            if null is not None and not warm_start:
                start_from_null_model(strategy, likelihood, null)
            start_from_first(processes, strategy, [model, likelihood])
        return cls(model, likelihood, rows, processes, null)

    def run(self, tolerance: float, record: Recorder, jumps: bool = True) -> Outcome:
        """
        Move the hyperparameters to the maximum of the bound, and from there, if that ``jumps``, to another one that is
        higher. After an interruption they are at the best point so far. The posterior is written by :meth:`finished`,
        because another run may follow.
        """
        with self._training():
            self._read_model()
            passes, evaluations = self._bound.passes, self._ascent.evaluations
            try:
                arrival = self._ascent.run(
                    tolerance, _MAX_STEPS, lambda value: record(value - self._log_prior()), jumps
                )
            except BaseException:
                self._ascent.restore_best()
                raise
            return Outcome(
                history=record.history,
                bound=arrival.value - self._log_prior(),
                gradient=arrival.gradient,
                open=arrival.open,
                stopped=arrival.stopped,
                passes=self._bound.passes - passes,
                evaluations=self._ascent.evaluations - evaluations,
                of_small_variance=self._ascent.of_small_variance(),
            )

    def finished(self, outcome: Outcome) -> Outcome:
        """Set the posterior to that of the model's family nearest to the optimum; the outcome with bound and gap."""
        with self._training():
            optimum = self._write_posterior()
            return outcome._replace(bound=optimum.of_family, family_gap=max(optimum.of_any - optimum.of_family, 0.0))

    def leave(self) -> None:
        """Set the posterior as far as that is possible after an interruption."""
        with suppress(Exception), self._training():  # the one that interrupts may come again
            self._bound.read_components()
            self._write_posterior()

    def shortfalls(self) -> dict[str, float]:
        """The gain from more inducing points for each component, in nats, see :func:`.inducing_shortfall`."""
        with torch.inference_mode(False):
            view = self._bound.site_view()
            if view is None:
                return {}
            found = shortfall_at_rows(self._strategy, self._rows.x, view.curvatures.diagonal(dim1=0, dim2=1))
            # Sums over all rows, so that all processes take the same decisions.
            total = self._processes.sum([found])[0].tolist()
            return dict(zip(self._strategy.predictor.names, total, strict=True))

    def residuals(self) -> Residuals | None:
        """What is left of the rows at the optimal posterior; None if there is none."""
        with torch.inference_mode(False), torch.no_grad():
            view, predictor = self._bound.site_view(), self._strategy.predictor
            if view is None:
                return None
            segments = predictor_segments(predictor)
            gram = weighted_gram(view.features, view.curvatures, segments)
            projected = sum_over_rows(view.features, view.targets.unsqueeze(-1), segments)
            gram, projected = self._processes.sum([gram, projected])
            mean = torch.cholesky_solve(projected, torch.linalg.cholesky(add_identity(gram)))
            predicted = product_in_rows(view.features, mean, predictor.num_predictors, segments).squeeze(-1)
            gradients = view.targets - (view.curvatures * predicted.unsqueeze(0)).sum(1)
            x = self._strategy.read(self._rows.x).inputs.double()
            return Residuals(x, gradients, view.curvatures.diagonal(dim1=0, dim2=1).mT)

    @contextmanager
    def _training(self) -> Iterator[None]:
        """Model and likelihood in train mode, and in eval mode afterwards."""
        self._model.train()
        self._likelihood.train()
        try:
            with torch.inference_mode(False):
                yield
        finally:
            self._model.eval()
            self._likelihood.eval()

    def _log_prior(self) -> float:
        return log_prior_in_nats(self._model, self._likelihood)

    def _read_model(self) -> None:
        """Take inducing points as they are now; where they are learnt, they are other parameters."""
        self._bound.read_components()
        parameters = hyperparameters_of(self._model, self._likelihood)
        known = self._parameters
        if known is not None and [id(each) for each in known] == [id(each) for each in parameters]:
            return
        self._parameters = parameters
        units = {} if self._null is None else units_of_means(self._strategy, self._null)
        self._ascent = Ascent(
            self._bound,
            self._strategy,
            parameters,
            Coordinates(parameters, [self._model, self._likelihood], units),
            self._curvatures(parameters),
            limits_of(parameters, self._model, self._likelihood),
            None if self._null is None else self._null.variance,
        )

    def _write_posterior(self) -> _Bounds:
        """Set the posterior to that of the model's family nearest to the optimum."""
        optimum = self._bound.optimum()
        self._strategy.set_whitened_posterior(optimum.mean, optimum.precision)
        history = polish_below(
            self._model,
            self._likelihood,
            [self._rows],
            optimum.bound.item(),
            # With a Gaussian likelihood, the closed form was it.
            max_passes=0 if is_gaussian(self._likelihood) else 2,
            process_group=self._processes.group,
        )
        return _Bounds(optimum.bound.item(), history[-1])

    def _curvatures(self, parameters: Sequence[Tensor]) -> list[float]:
        strategy, found = self._strategy, {}
        for name, parameter in self._likelihood.named_parameters():
            information = _INFORMATION if "noise" in name else _LEAST_INFORMATION
            found[id(parameter)] = max(information * self._num_rows, 1.0)
        for parameter in (p for mean in strategy.predictor.means for p in mean.parameters()):
            found[id(parameter)] = max(_INFORMATION * self._num_rows, 1.0)
        return [found.get(id(parameter), _CURVATURE) for parameter in parameters]
