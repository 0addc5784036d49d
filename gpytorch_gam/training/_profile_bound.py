"""The evidence lower bound at the optimal posterior, as a function of the hyperparameters alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, NamedTuple

import gpytorch
import torch
from gpytorch.likelihoods import Likelihood
from torch import Tensor

from gpytorch_gam.optim.processes import Processes
from gpytorch_gam.optim.rows.stream import DataStream, OverflowingLikelihoodError, Rows
from gpytorch_gam.parameters.log_scale import Coordinates

from ._convergence import kernel_curvatures
from ._hyperparameters import largest, limits_of, shared_noise
from ._information import Information
from ._model_at_rows import ModelAtRows
from ._quasi_newton import Known, QuasiNewton
from ._site_rows import SiteRows, total_weight
from .bound_gradients import bound_and_gradients, linear_function
from .polishing import DENSE_LIMIT, default_chunk_size, passes_over_rows, polish

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

# Smallest gain of a step of the posterior relative to that of a step of the hyperparameters, and largest numbers of
# both.
_POSTERIOR_SHARE = 0.2
_MAX_STEPS, _MAX_PASSES = 60, 10

# A search ends where the next step is predicted to gain less than this share of the tolerance: where a component can do
# what a mean does, the first steps from one to the other gain next to nothing.
_SHARE_OF_TOLERANCE = 0.2

# Largest number of searches, each of which starts with a fresh estimate of the curvature, and the gain of a search that
# justifies another one.
_MAX_ROUNDS, _ROUND_GAIN = 4, 0.5

# Minus the second derivative of the bound at the start, in a hyperparameter that is neither the kernels' nor the
# likelihood's, and for each row in a parameter of the likelihood, on some of which rows have little information.
_CURVATURE, _LEAST_INFORMATION = 0.2, 0.02


class Maximum(NamedTuple):
    """The result of a search."""

    bound: float  # in nats
    open: float  # nats that a further step is predicted to gain, or gained by the last search if their number ended it
    gradient: float  # largest magnitude of the bound's derivatives in the coordinates
    stopped: str  # why it ended
    evaluations: int


class _Evaluation(NamedTuple):
    parameters: list[Tensor]
    bound: Tensor
    gradients: list[Tensor]


class ProfileBound:
    """
    The bound after :func:`polish`, which starts from the best posterior so far, as a function of the hyperparameters
    ``parameters``, which move in ``coordinates``. At the optimal posterior its gradient is that at a fixed posterior.
    Each process has ``rows`` of its own, which are gone through several times an evaluation, and whose number in all
    processes is ``num_data``.
    """

    def __init__(
        self,
        model: gpytorch.models.ApproximateGP,
        likelihood: Likelihood,
        rows: Iterable[Rows],
        num_data: int,
        parameters: Sequence[Tensor],
        coordinates: Coordinates | None = None,
        process_group: ProcessGroup | None = None,
    ) -> None:
        self._model, self._likelihood, self._rows = model, likelihood, rows
        self._group, self._processes = process_group, Processes(process_group)
        self._parameters = list(parameters)
        self._coordinates = Coordinates(self._parameters, ()) if coordinates is None else coordinates
        self._best: tuple[float, dict[str, Tensor]] | None = None
        self._last: _Evaluation | None = None
        self._num_data, self._posterior_gain = num_data, 0.0
        strategy = model.variational_strategy
        noise = shared_noise(likelihood, strategy.predictor.num_predictors)
        self._information = Information(strategy, self._parameters, self._coordinates, noise, self._processes)

    def maximise(self, tolerance: float, max_steps: int | None = None) -> Maximum:
        """
        Move the hyperparameters, and the posterior with them, until a step is predicted to gain less than ``tolerance``
        nats, by some searches, or by a single one of ``max_steps``; an ObjectiveError if the start is not finite.
        """
        before = deepcopy((self._model.state_dict(), self._likelihood.state_dict()))
        try:
            return self._maximise(tolerance, max_steps)
        except BaseException:  # an interrupted search has left the parameters at some trial
            self._model.load_state_dict(before[0])
            self._likelihood.load_state_dict(before[1])
            raise

    def _maximise(self, tolerance: float, max_steps: int | None) -> Maximum:
        self._posterior_gain, gain = _POSTERIOR_SHARE * tolerance, _SHARE_OF_TOLERANCE * tolerance
        before, bound, still_open = -math.inf, self().item(), 0.0
        limits = limits_of(self._parameters, self._model, self._likelihood)
        ascent = QuasiNewton(self._parameters, self._curvatures(), self._coordinates, limits)
        for _ in range(_MAX_ROUNDS if max_steps is None else 1):
            if bound - before <= _ROUND_GAIN:
                break
            ascent.forget(self.known_curvatures())
            still_open = ascent.maximise(self, gain, _MAX_STEPS if max_steps is None else max_steps)
            if still_open > gain:  # the known curvatures have been raised, so that steps are not too long
                still_open = max(still_open, ascent.promised_afresh())
            before, bound = bound, self().item()
        if max_steps is None and bound - before > _ROUND_GAIN:
            still_open = max(still_open, bound - before)
        return Maximum(bound, still_open, largest(ascent.gradient), ascent.stopped, ascent.evaluations)

    def _curvatures(self) -> list[float]:
        """Curvatures assumed at the start: those of a variance where rows determine one, elsewhere rather too small."""
        strategy = self._model.variational_strategy
        found = dict(kernel_curvatures(strategy))
        for parameter in self._likelihood.parameters():
            found[id(parameter)] = max(_LEAST_INFORMATION * self._num_data, 1.0)
        of_rows = [p for name, p in self._likelihood.named_parameters() if "noise" in name]
        for parameter in (*of_rows, *(p for mean in strategy.predictor.means for p in mean.parameters())):
            found[id(parameter)] = max(0.5 * self._num_data, 1.0)
        return [found.get(id(parameter), _CURVATURE) for parameter in self._parameters]

    def known_curvatures(self) -> Known | None:
        """
        Minus the second derivatives that are known, by the sites of the present posterior: none of models so large that
        these would take longer than a search.
        """
        strategy = self._model.variational_strategy
        if strategy.predictor.num_inducing_total > DENSE_LIMIT:
            return None
        with passes_over_rows(self._model, self._likelihood):
            return self._information(self._site_rows)

    def _site_rows(self) -> Iterator[SiteRows]:
        strategy = self._model.variational_strategy
        stream = DataStream(strategy, self._likelihood, self._rows, default_chunk_size(strategy))
        for rows, chunk in stream.rows_and_chunks():
            weight = total_weight(rows.x, rows.row_arguments)
            at_rows = ModelAtRows(strategy, rows.x)
            yield SiteRows(rows.x, at_rows.features(), chunk.curvatures, weight, at_rows.features)

    def __call__(self) -> Tensor:
        """
        The bound in nats, differentiable once; NaN where it does not exist. It is a linear function with the right
        gradient, so that only a chunk of rows has a graph at a time, and the processes' results can be added up.
        """
        here = [parameter.detach().clone() for parameter in self._parameters]
        if self._last is None or not all(map(torch.equal, self._last.parameters, here)):
            self._last = None  # evaluating moves the posterior
            evaluated = self._evaluate()
            if evaluated is None:
                return sum((parameter.sum() for parameter in self._parameters), torch.zeros(())) * torch.nan
            self._last = _Evaluation(here, *evaluated)
        return linear_function(self._last.bound, self._last.gradients, self._parameters)

    def _evaluate(self) -> tuple[Tensor, list[Tensor]] | None:
        q = self._model.variational_strategy._variational_distribution
        if self._best is not None:
            q.load_state_dict(self._best[1])
        try:
            polish(
                self._model,
                self._likelihood,
                self._rows,
                max_passes=_MAX_PASSES,
                tolerance=self._posterior_gain,
                process_group=self._group,
            )
            bound, gradients = self._differentiate()
        except (OverflowingLikelihoodError, ValueError):
            return None
        if self._best is None or bound.item() >= self._best[0]:
            self._best = bound.item(), deepcopy(q.state_dict())
        return bound, gradients

    def _differentiate(self) -> tuple[Tensor, list[Tensor]]:
        """Value and gradients at the present posterior, over the rows of all processes."""
        bound, gradients = bound_and_gradients(
            self._model, self._likelihood, self._rows, self._num_data, self._parameters
        )
        bound, *totals = self._processes.sum([bound, *gradients])
        return bound, [total.to(parameter) for total, parameter in zip(totals, self._parameters, strict=True)]
