"""The ascent of a bound in the hyperparameters, with jumps of components to where it is higher."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpytorch_gam.parameters.log_scale import Coordinates
from gpytorch_gam.variational import AdditiveVariationalStrategy

from ._component_jumps import ComponentJumps, best_after_jumps
from ._component_scales import places_of_components
from ._component_scan import SumsAtRows
from ._hyperparameters import largest
from ._information import Information
from ._quasi_newton import ObjectiveError, QuasiNewton
from ._row_bound import RowBound

# Largest number of searches, each with a fresh estimate of the curvature, and the tolerance in nats from which on a
# single one is enough.
_MAX_ROUNDS, _ROUGH = 4, 1.0

# Largest number of evaluations of the bound in all searches. Hyperparameters of terms need some dozens to hundreds; the
# weights of a network in front of the terms can be moved for ever.
_MAX_EVALUATIONS = 1000

# Number of steps whose gain is expected of as many further ones, where the bound has not arrived at a maximum.
_NUM_RECENT = 20

# A search ends where the next step is predicted to gain less than this share of the tolerance: gains left in many
# directions add up.
_SHARE_OF_TOLERANCE = 0.2


class Arrival(NamedTuple):
    """The end of an ascent."""

    value: float  # of the objective, in nats
    gradient: float  # largest magnitude of its derivatives in the coordinates
    open: float  # nats that a further step is predicted to gain
    stopped: str


class Ascent:
    """
    The ascent of a bound in ``parameters``, which move in ``coordinates``. ``curvatures`` are those of the start;
    ``variances`` are those of each predictor between rows, if they are known.
    """

    def __init__(
        self,
        objective: RowBound,
        strategy: AdditiveVariationalStrategy,
        parameters: Sequence[Tensor],
        coordinates: Coordinates,
        curvatures: Sequence[float | Tensor],
        limits: Sequence[float],
        variances: Sequence[float] | None = None,
    ) -> None:
        self._objective, self._predictor, self._parameters = objective, strategy.predictor, list(parameters)
        self._newton = QuasiNewton(parameters, curvatures, coordinates, limits)
        noise, processes = objective.noise_parameter, objective.processes
        self._information = Information(strategy, parameters, coordinates, noise, processes)
        self._jumps = ComponentJumps(strategy.predictor, variances)
        self._has_curvatures = False
        self._begin()

    def _begin(self) -> None:
        """Start from the present point, whatever the objective was before."""
        self._best: tuple[float, list[Tensor]] = (-math.inf, self._read())

    @property
    def evaluations(self) -> int:
        """Number of evaluations so far."""
        return self._newton.evaluations

    def run(
        self, tolerance: float, max_steps: int, callback: Callable[[float], Any] | None = None, jumps: bool = True
    ) -> Arrival:
        """
        Climb until a further step is predicted to gain less than a share of ``tolerance`` nats, and if it ``jumps``, so
        is a change of the lengthscales or the variance of one component; or until all evaluations are spent. If this is
        interrupted, :meth:`restore_best` goes to the best point seen. Another run, of an objective that has changed a
        little, begins with the curvatures of this one.
        """
        self._begin()
        gain = _SHARE_OF_TOLERANCE * tolerance

        def jump_and_climb() -> Arrival | None:
            if not (jumps and self._jump(gain)):
                return None
            self._has_curvatures = False
            try:
                return self._climb(tolerance, max_steps, callback)
            except ObjectiveError:  # the sites, by which changes are judged, do not hold far from where they are
                return None

        first = self._climb(tolerance, max_steps, callback)
        arrival = best_after_jumps(first, jump_and_climb, lambda end: end.value, gain)
        self.restore_best()
        return arrival

    def _jump(self, least_gain: float) -> bool:
        """Change single components from the best point; whether that promises to gain more than the least."""
        self.restore_best()
        if self.evaluations >= _MAX_EVALUATIONS:
            return False
        view = self._objective.site_view()
        if view is None:
            return False
        sums = SumsAtRows(view, list(places_of_components(self._predictor).values()), self._objective.processes)
        return self._jumps.jump(sums, self._objective.trial, least_gain)

    def of_small_variance(self) -> tuple[str, ...]:
        """The names of the components whose prior variance is small beside that of their predictor."""
        return self._jumps.of_small_variance()

    def _climb(self, tolerance: float, max_steps: int, callback: Callable[[float], Any] | None) -> Arrival:
        """
        Searches, all but the first with a fresh estimate of the curvature, until one gains hardly anything. Where none
        does, the curvatures of many hyperparameters are not known well enough to say what is open: then at least as
        much as the last steps have gained.
        """
        gain, values, before = _SHARE_OF_TOLERANCE * tolerance, list[float](), -math.inf

        def note(value: float) -> None:
            values.append(value)
            if callback is not None:
                callback(value)

        for number in range(_MAX_ROUNDS):
            if number > 0 or not self._has_curvatures:
                self._newton.forget(self._information(self._objective.site_rows))
            self._has_curvatures = True
            still_open = self._newton.maximise(self._seen, gain, max_steps, note, _MAX_EVALUATIONS)
            value = self._newton.value
            rise, before = value - before, value
            if still_open <= tolerance and (rise <= tolerance or tolerance >= _ROUGH):
                return self._arrival(still_open, "the bound is at a maximum")
            if self.evaluations >= _MAX_EVALUATIONS:
                break
        recent = value - values[-1 - _NUM_RECENT :][0] if values else 0.0
        stopped = self._newton.stopped if still_open > tolerance else f"{number + 1} searches were made"
        return self._arrival(max(still_open, recent), stopped)

    def _arrival(self, still_open: float, stopped: str) -> Arrival:
        return Arrival(self._newton.value, largest(self._newton.gradient), still_open, stopped)

    def _seen(self) -> Tensor:
        """The objective, whose best point is kept."""
        value = self._objective()
        number = value.item()
        if math.isfinite(number) and number > self._best[0]:
            self._best = number, self._read()
        return value

    def _read(self) -> list[Tensor]:
        return [parameter.detach().clone() for parameter in self._parameters]

    def restore_best(self) -> None:
        """Set the parameters to the best point that was evaluated."""
        self._write(self._best[1])

    @torch.no_grad()
    def _write(self, values: Sequence[Tensor]) -> None:
        for parameter, value in zip(self._parameters, values, strict=True):
            parameter.copy_(value)
