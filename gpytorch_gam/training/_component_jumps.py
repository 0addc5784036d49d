"""Jumps of single components to better lengthscales and variances, for bounds with several maxima."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeVar

import torch
from gpytorch.kernels import Kernel, ScaleKernel
from linear_operator.utils.errors import NanError, NotPSDError
from torch import Tensor

from gpytorch_gam.components import AdditivePredictor, ComponentGroup

from ._component_scan import Change, ComponentScan, Place, ScanSums

# Largest number of jumps to other maxima.
_MAX_JUMPS = 8

# A term is off if its variance is below this multiple of the predictor's variance over the number of rows, where the
# data hardly see it, or below this share of the predictor's variance.
_OFF_BY_ROWS, _OFF = 30.0, 1e-2

# Lengthscales, as multiples of a reference, of which the best is looked for in each component, the number of sweeps
# over the components before the next search, and the least variance relative to the predictor's. The reference is
# this multiple of the smallest lengthscale allowed, which makes it the first one of the terms, or that at the start.
_SCANNED_LENGTHSCALES, _ABOVE_SMALLEST = tuple(0.1 * 1.5**power for power in range(13)), 25.0
_MAX_SWEEPS, _LEAST_VARIANCE = 8, 1e-6

_T = TypeVar("_T")


def best_after_jumps(
    end: _T, jump_and_climb: Callable[[], _T | None], value: Callable[[_T], float], least_gain: float
) -> _T:
    """The best end of a climb, and of those after jumps, for as long as each gains more than the least of them."""
    for _ in range(_MAX_JUMPS):
        after = jump_and_climb()
        if after is None:
            break
        if not value(after) > value(end) + least_gain:
            return after if value(after) >= value(end) else end
        end = after
    return end


class ComponentJumps:
    """
    Changes of components' lengthscales and variances to better ones that are not uphill from where they are, such as
    those of terms that are off. ``num_rows`` is the number of rows of the data, and ``variances`` are those of each
    predictor between rows, if they are known, by which terms that are off are told.
    """

    def __init__(self, predictor: AdditivePredictor, num_rows: float, variances: Sequence[float] | None = None) -> None:
        self._predictor, self._num_rows, self._variances = predictor, num_rows, variances
        self._scales = list(scales_of_components(predictor))
        self._references = [[reference_lengthscale(part) for part in scale.lengthscales] for scale in self._scales]
        self._is_complete = _are_all(predictor, self._scales)

    def jump(
        self, sums: ScanSums[_T], trial: Callable[[], _T], least_gain: float, kept: dict[float, _T] | None = None
    ) -> bool:
        """
        Make the changes that gain more than ``least_gain`` nats, one after the other; whether there are any. ``trial``
        evaluates the components at the hyperparameters that they have; ``kept`` takes its values, for the next call
        with the same inputs.
        """
        if not self._scales:
            return False
        present, units = trial(), [self._variance(scale) for scale in self._scales]
        found = self._trials(trial, units, kept if self._is_complete and kept is not None else {})
        factors, trials = list(found), list(found.values())
        values = self._better(sums, present, trials, units, least_gain)
        for index, (number, variance) in values.items():
            variance = max(variance, _LEAST_VARIANCE * units[index])
            if number < 0:
                self._scales[index].set(variance)
            else:
                self._set(index, factors[number], variance)
        return bool(values)

    def _trials(self, trial: Callable[[], _T], units: Sequence[float], found: dict[float, _T]) -> dict[float, _T]:
        """The components at each lengthscale, unless they have been found before; the hyperparameters stay."""
        origin = [parameter.detach().clone() for parameter in self._predictor.parameters()]
        try:
            for factor in _SCANNED_LENGTHSCALES if not found else ():
                for index, unit in enumerate(units):
                    self._set(index, factor, unit)
                with suppress(torch.linalg.LinAlgError, NotPSDError, NanError):  # this lengthscale cannot be had
                    found[factor] = trial()
        finally:
            with torch.no_grad():
                for parameter, value in zip(self._predictor.parameters(), origin, strict=True):
                    parameter.copy_(value)
        return found

    def _better(
        self, sums: ScanSums[_T], present: _T, trials: Sequence[_T], units: Sequence[float], least_gain: float
    ) -> dict[int, tuple[int, float]]:
        """The trial, -1 for none, and the variance of each term that changes."""
        places = places_of_components(self._predictor)
        scan = ComponentScan(sums, present, trials, [places[scale.name] for scale in self._scales])
        own = {places[scale.name].number: index for index, scale in enumerate(self._scales)}
        values: dict[int, tuple[int, float]] = {}
        for _ in range(_MAX_SWEEPS):
            taken = list(self._sweep(scan, least_gain))
            for change in taken:
                index = own[change.place.number]
                before = values.get(index, (-1, self._scales[index].value()))
                number, variance = before if change.trial < 0 else (change.trial, units[index])
                values[index] = number, change.ratio * variance
            if not taken:
                break
        return values

    def _sweep(self, scan: ComponentScan[_T], least_gain: float) -> Iterator[Change]:
        """Take the best change of each component beside those taken before, if it gains more than the least."""
        for position, first in enumerate(scan.best()):
            if first.gain <= least_gain:
                break
            change = scan.best_of(first.place) if position else first
            if change is not None and change.gain > least_gain:
                scan.take(change)
                yield change

    def _variance(self, scale: Scale) -> float:
        """The variance of the predictor that a component belongs to."""
        return 1.0 if self._variances is None else self._variances[scale.predictor]

    def _is_off(self, scale: Scale) -> bool:
        variance = self._variance(scale)
        return scale.value() < min(_OFF_BY_ROWS * variance / self._num_rows, _OFF * variance)

    def switched_off(self) -> tuple[str, ...]:
        """The names of the components that are off."""
        return tuple(scale.name for scale in self._scales if self._is_off(scale))

    def _set(self, index: int, factor: float, variance: float) -> None:
        """Give a term a variance, and lengthscales that are a multiple of their references."""
        scale = self._scales[index]
        scale.set(variance)
        for part, reference in zip(scale.lengthscales, self._references[index], strict=True):
            set_lengthscale(part, scale.entry, factor * reference)


def _are_all(predictor: AdditivePredictor, scales: Sequence[Scale]) -> bool:
    """Whether components with scales have no other trained parameters than these and their lengthscales."""
    known = {id(scale.raw) for scale in scales}
    known.update(id(part.raw_lengthscale) for scale in scales for part in scale.lengthscales)
    names = {scale.name for scale in scales}
    groups = [group for group in predictor.groups if names.intersection(group.names)]
    return all(id(p) in known for group in groups for p in group.parameters() if p.requires_grad)


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
        yield from scales_of_group(group)


def scales_of_group(group: ComponentGroup) -> Iterator[Scale]:
    """Those of one group."""
    kernel = group.kernel
    if not isinstance(kernel, ScaleKernel) or not kernel.raw_outputscale.requires_grad or not group.input_dim:
        return
    if kernel.raw_outputscale.numel() != group.num_components:
        return
    parts = [part for part in kernel.base_kernel.modules() if _has_own_lengthscale(part, group.num_components)]
    for entry, name in enumerate(group.names):
        yield Scale(name, group.predictor_index, kernel, entry, parts)


def _has_own_lengthscale(kernel: torch.nn.Module, number: int) -> bool:
    raw = getattr(kernel, "raw_lengthscale", None)
    return raw is not None and raw.requires_grad and raw.dim() > 0 and len(raw) == number


def reference_lengthscale(kernel: Kernel) -> Tensor:
    """The lengthscale from which others are counted."""
    lower = kernel.raw_lengthscale_constraint.lower_bound.expand_as(kernel.lengthscale)
    return torch.where(lower > 0, _ABOVE_SMALLEST * lower, kernel.lengthscale.detach())


@torch.no_grad()
def set_lengthscale(kernel: Kernel, entry: int, values: Tensor) -> None:
    """Set a component's lengthscale to that of ``values``, or as near as its constraint allows."""
    constraint = kernel.raw_lengthscale_constraint
    lower, upper = (bound.expand_as(values) for bound in (constraint.lower_bound, constraint.upper_bound))
    wanted = torch.minimum(torch.maximum(values, 1.05 * lower), 0.95 * upper)
    kernel.raw_lengthscale[entry] = constraint.inverse_transform(wanted)[entry]
