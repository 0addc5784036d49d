"""The ascent of a bound in the hyperparameters, with jumps of components to where it is higher."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from gpytorch.kernels import Kernel, ScaleKernel
from linear_operator.utils.errors import NanError, NotPSDError
from torch import Tensor

from gpytorch_gam.components import AdditivePredictor
from gpytorch_gam.parameters.log_scale import Coordinates

from ._component_scan import ComponentScan, Place, Trial
from ._hyperparameters import largest
from ._quasi_newton import QuasiNewton
from ._row_bound import RowBound

# Largest number of searches, each with a fresh estimate of the curvature, and of jumps to other maxima.
_MAX_ROUNDS, _MAX_JUMPS = 4, 8

# A search ends where the next step is predicted to gain less than this share of the tolerance: gains left in many
# directions add up.
_SHARE_OF_TOLERANCE = 0.2

# A term is off if its variance is below this multiple of the predictor's variance over the number of rows, where the
# data hardly see it, or below this share of the predictor's variance.
_OFF_BY_ROWS, _OFF = 30.0, 1e-2

# Lengthscales, as multiples of a reference, of which the best is looked for in each component, the number of changes of
# components that are made before the next search, and the least variance relative to the predictor's. The reference is
# this multiple of the smallest lengthscale allowed, which makes it the first one of the terms, or that at the start.
_SCANNED_LENGTHSCALES, _ABOVE_SMALLEST = tuple(0.1 * 1.5**power for power in range(13)), 25.0
_MAX_CHANGES, _LEAST_VARIANCE = 50, 1e-6


class Arrival(NamedTuple):
    """The end of an ascent."""

    value: float  # of the objective, in nats
    gradient: float  # largest magnitude of its derivatives in the coordinates
    open: float  # nats that a further step is predicted to gain
    stopped: str


class Ascent:
    """
    The ascent of a bound in ``parameters``, which move in ``coordinates``. ``curvatures`` are those of the start;
    ``num_rows`` is the number of rows of the data, and ``variances`` are those of each predictor between rows, if they
    are known, by which terms that are off are told.
    """

    def __init__(
        self,
        objective: RowBound,
        predictor: AdditivePredictor,
        parameters: Sequence[Tensor],
        coordinates: Coordinates,
        curvatures: Sequence[float | Tensor],
        limits: Sequence[float],
        num_rows: float,
        variances: Sequence[float] | None = None,
    ) -> None:
        self._objective, self._predictor, self._parameters = objective, predictor, list(parameters)
        self._num_rows, self._variances = num_rows, variances
        self._newton = QuasiNewton(parameters, curvatures, coordinates, limits)
        self._scales = list(scales_of_components(predictor))
        self._references = [[_reference(part) for part in scale.lengthscales] for scale in self._scales]
        self._best: tuple[float, list[Tensor]] = (-math.inf, self._read())

    @property
    def evaluations(self) -> int:
        """Number of evaluations so far."""
        return self._newton.evaluations

    def run(self, tolerance: float, max_steps: int, callback: Callable[[float], Any] | None = None) -> Arrival:
        """
        Climb until a further step is predicted to gain less than a share of ``tolerance`` nats, and so is a change of
        the lengthscales or the variance of one component. If this is interrupted, :meth:`restore_best` goes to the best
        point seen.
        """
        arrival = self._climb(tolerance, max_steps, callback)
        for _ in range(_MAX_JUMPS):
            if not self._jump(_SHARE_OF_TOLERANCE * tolerance):
                break
            before = arrival
            arrival = self._climb(tolerance, max_steps, callback)
            if arrival.value <= before.value + _SHARE_OF_TOLERANCE * tolerance:
                if arrival.value < before.value:
                    self.restore_best()
                    arrival = before
                break
        return arrival

    def _climb(self, tolerance: float, max_steps: int, callback: Callable[[float], Any] | None) -> Arrival:
        """Searches, each with a fresh estimate of the curvature, until one gains no more than the tolerance."""
        gain, before, still_open = _SHARE_OF_TOLERANCE * tolerance, -math.inf, math.inf
        for _ in range(_MAX_ROUNDS):
            self._newton.forget()
            still_open = self._newton.maximise(self._seen, gain, max_steps, callback)
            value = self._newton.value
            rise, before = value - before, value
            if rise <= tolerance and still_open <= tolerance:
                break
        stopped = "the bound is at a maximum" if still_open <= tolerance else self._newton.stopped
        return Arrival(before, largest(self._newton.gradient), still_open, stopped)

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

    # ------------------------------------------------------------------ other maxima

    def _jump(self, least_gain: float) -> bool:
        """
        Set lengthscales and variances of components to better ones that are not uphill from here, such as those of
        terms that are off; whether there are any.
        """
        self.restore_best()
        view = self._objective.site_view()
        if view is None or not self._scales:
            return False
        origin, units = self._read(), [self._variance(scale) for scale in self._scales]
        found: dict[float, Trial] = {}
        for factor in _SCANNED_LENGTHSCALES:
            for index, unit in enumerate(units):
                self._set(index, factor, unit)
            with suppress(torch.linalg.LinAlgError, NotPSDError, NanError):  # this lengthscale cannot be had
                found[factor] = self._objective.trial()
        self._write(origin)
        factors, trials = list(found), list(found.values())
        places = places_of_components(self._predictor)
        free = [places[scale.name] for scale in self._scales]
        scan = ComponentScan(view, list(places.values()), trials, free, self._objective.processes)
        own = {places[scale.name].number: index for index, scale in enumerate(self._scales)}
        values: dict[int, tuple[int, float]] = {}
        for _ in range(_MAX_CHANGES):
            change = scan.best()
            if change is None or change.gain <= least_gain:
                break
            scan.take(change)
            index = own[change.place.number]
            before = values.get(index, (-1, self._scales[index].value()))
            trial, value = before if change.trial < 0 else (change.trial, units[index])
            values[index] = trial, change.ratio * value
        for index, (trial, value) in values.items():
            value = max(value, _LEAST_VARIANCE * units[index])
            if trial < 0:
                self._scales[index].set(value)
            else:
                self._set(index, factors[trial], value)
        return bool(values)

    def _variance(self, scale: Scale) -> float:
        """The variance of the predictor that a component belongs to."""
        return 1.0 if self._variances is None else self._variances[scale.predictor]

    def _unit(self, scale: Scale) -> float:
        return self._variance(scale) / self._num_rows

    def _is_off(self, scale: Scale) -> bool:
        return scale.value() < min(_OFF_BY_ROWS * self._unit(scale), _OFF * self._variance(scale))

    def switched_off(self) -> tuple[str, ...]:
        """The names of the components that are off."""
        return tuple(scale.name for scale in self._scales if self._is_off(scale))

    def _set(self, index: int, factor: float, variance: float) -> None:
        """Give a term a variance, and lengthscales that are a multiple of their references."""
        scale = self._scales[index]
        scale.set(variance)
        for part, reference in zip(scale.lengthscales, self._references[index], strict=True):
            _set_lengthscale(part, scale.entry, factor * reference)


class Scale(NamedTuple):
    """The trained output scale of a component, with kernels below it that have trained lengthscales."""

    name: str
    predictor: int
    kernel: ScaleKernel
    entry: int  # in its raw output scale
    lengthscales: list[Kernel]

    @property
    def raw(self) -> Tensor:
        return self.kernel.raw_outputscale

    def value(self) -> float:
        return self.kernel.outputscale.detach().flatten()[self.entry].item()

    @torch.no_grad()
    def set(self, value: float) -> None:
        constraint, raw = self.kernel.raw_outputscale_constraint, self.raw
        floor = constraint.lower_bound.max().item()
        number = torch.as_tensor(max(value, 1.001 * floor), dtype=torch.float64)
        raw.view(-1)[self.entry] = constraint.inverse_transform(number)


def places_of_components(predictor: AdditivePredictor) -> dict[str, Place]:
    """The places of all components by name, in the order of the inducing vector."""
    names = [(name, group.predictor_index) for group in predictor.groups for name in group.names]
    return {name: Place(predictor.inducing_slices[name], owner, i) for i, (name, owner) in enumerate(names)}


def scales_of_components(predictor: AdditivePredictor) -> Iterator[Scale]:
    """The trained output scales, one a component, of kernels of the form that the terms have."""
    for group in predictor.groups:
        kernel = group.kernel
        if not isinstance(kernel, ScaleKernel) or not kernel.raw_outputscale.requires_grad or not group.input_dim:
            continue
        if kernel.raw_outputscale.numel() != group.num_components:
            continue
        parts = [part for part in kernel.base_kernel.modules() if _has_own_lengthscale(part, group.num_components)]
        for entry, name in enumerate(group.names):
            yield Scale(name, group.predictor_index, kernel, entry, parts)


def _has_own_lengthscale(kernel: torch.nn.Module, number: int) -> bool:
    raw = getattr(kernel, "raw_lengthscale", None)
    return raw is not None and raw.requires_grad and raw.dim() > 0 and len(raw) == number


def _reference(kernel: Kernel) -> Tensor:
    """The lengthscale from which others are counted."""
    lower = kernel.raw_lengthscale_constraint.lower_bound.expand_as(kernel.lengthscale)
    return torch.where(lower > 0, _ABOVE_SMALLEST * lower, kernel.lengthscale.detach())


@torch.no_grad()
def _set_lengthscale(kernel: Kernel, entry: int, values: Tensor) -> None:
    """Set a component's lengthscale to that of ``values``, or as near as its constraint allows."""
    constraint = kernel.raw_lengthscale_constraint
    lower, upper = (bound.expand_as(values) for bound in (constraint.lower_bound, constraint.upper_bound))
    wanted = torch.minimum(torch.maximum(values, 1.05 * lower), 0.95 * upper)
    kernel.raw_lengthscale[entry] = constraint.inverse_transform(wanted)[entry]
