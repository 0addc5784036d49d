"""Jumps of single components to better lengthscales and variances, for bounds with several maxima."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

import torch
from linear_operator.utils.errors import NanError, NotPSDError

from gpytorch_gam.components import AdditivePredictor

from ._component_priors import ComponentPriors, ScanPriors
from ._component_scales import (
    Scale,
    places_of_components,
    reference_lengthscale,
    scales_of_components,
    set_lengthscale,
)
from ._component_scan import Change, ComponentScan, ScanSums

# Largest number of jumps to other maxima.
_MAX_JUMPS = 8

# Share of the predictor's variance below which that of a component is small.
_SMALL = 1e-2

# Lengthscales, as multiples of a reference, of which the best is looked for in each component, the number of sweeps
# over the components before the next search, and the least and largest variances relative to the predictor's.
_SCANNED_LENGTHSCALES = tuple(0.1 * 1.5**power for power in range(13))
_MAX_SWEEPS, _LEAST_VARIANCE, _LARGEST_VARIANCE = 8, 1e-6, 1e4

_T = TypeVar("_T")
_S = TypeVar("_S")


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
    those of terms that are off: better by the sum of bound and log prior. ``variances`` are those of each predictor
    between rows, if they are known: the unit of the components' variances.
    """

    def __init__(self, predictor: AdditivePredictor, variances: Sequence[float] | None = None) -> None:
        self._predictor, self._variances = predictor, variances
        self._scales = list(scales_of_components(predictor))
        self._references = [[reference_lengthscale(part) for part in scale.lengthscales] for scale in self._scales]
        self._is_complete = _are_all(predictor, self._scales)
        self._priors = ComponentPriors(self._scales)

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
        found = kept if self._is_complete and kept else self._at_factors(_SCANNED_LENGTHSCALES, units, trial)
        if self._is_complete and kept is not None:
            kept.update(found)
        factors, trials = list(found), list(found.values())
        priors = self._priors_of_trials(factors, units) if self._priors.exist() else None
        values = self._better(sums, present, trials, units, priors, least_gain)
        for index, (number, variance) in values.items():
            variance = min(max(variance, _LEAST_VARIANCE * units[index]), _LARGEST_VARIANCE * units[index])
            if number < 0:
                self._scales[index].set(variance)
            else:
                self._set(index, factors[number], variance)
        return bool(values)

    def _at_factors(
        self, factors: Sequence[float], units: Sequence[float], evaluate: Callable[[], _S]
    ) -> dict[float, _S]:
        """What there is at each multiple of the lengthscales that can be had; the hyperparameters stay."""
        origin = [parameter.detach().clone() for parameter in self._predictor.parameters()]
        found = {}
        try:
            for factor in factors:
                for index, unit in enumerate(units):
                    self._set(index, factor, unit)
                with suppress(torch.linalg.LinAlgError, NotPSDError, NanError):
                    found[factor] = evaluate()
        finally:
            with torch.no_grad():
                for parameter, value in zip(self._predictor.parameters(), origin, strict=True):
                    parameter.copy_(value)
        return found

    def _priors_of_trials(self, factors: Sequence[float], units: Sequence[float]) -> ScanPriors:
        """The log priors at present and in the trials."""
        of_trials = self._at_factors(factors, units, self._priors.of_lengthscales)
        of_lengthscales = torch.stack([self._priors.of_lengthscales(), *of_trials.values()], dim=-1)
        present, unit = of_lengthscales.new_tensor([[scale.value() for scale in self._scales], units])
        return ScanPriors(self._priors, present, unit, _LEAST_VARIANCE * unit, of_lengthscales)

    def _better(
        self,
        sums: ScanSums[_T],
        present: _T,
        trials: Sequence[_T],
        units: Sequence[float],
        priors: ScanPriors | None,
        least_gain: float,
    ) -> dict[int, tuple[int, float]]:
        """The trial, -1 for none, and the variance of each term that changes."""
        places = places_of_components(self._predictor)
        own = {places[scale.name].number: index for index, scale in enumerate(self._scales)}
        log_priors = None if priors is None else lambda place: priors.table(own[place.number])
        scan = ComponentScan(sums, present, trials, [places[scale.name] for scale in self._scales], log_priors)
        values: dict[int, tuple[int, float]] = {}
        for _ in range(_MAX_SWEEPS):
            taken = list(self._sweep(scan, least_gain))
            for change in taken:
                index = own[change.place.number]
                before = values.get(index, (-1, self._scales[index].value()))
                number, variance = before if change.trial < 0 else (change.trial, units[index])
                values[index] = number, change.ratio * variance
            if priors is not None:
                priors.take({own[change.place.number]: change for change in taken})
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

    def of_small_variance(self) -> tuple[str, ...]:
        """The names of the components whose prior variance is small beside that of their predictor."""
        return tuple(scale.name for scale in self._scales if scale.value() < _SMALL * self._variance(scale))

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
