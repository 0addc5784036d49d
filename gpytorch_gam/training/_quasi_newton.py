"""A quasi-Newton ascent that keeps its curvature estimate from one objective to the next similar one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from linear_operator.utils.errors import NanError, NotPSDError
from torch import Tensor

from gpytorch_gam.parameters.log_scale import Coordinates

# Largest change of a coordinate in a step, and in the first step, when the curvature is not known yet.
_LONGEST, _FIRST = 2.0, 0.5

# Largest change of a coordinate by itself where curvatures are known, and what is added to these, also in proportion.
_LONGEST_KNOWN, _RIDGE = 0.8, 1e-3

# Smallest gain of a step relative to the gain that the slope predicts, and how often a step is shortened at most.
_SUFFICIENT, _MAX_SHORTENINGS = 1e-4, 12

# A step is doubled while the slope at its end is more than this fraction of the slope at its start, and no coordinate
# changes by more than the second number.
_STILL_STEEP, _LONGEST_STRETCH = 0.7, 4.0

# Curvature along a step, relative to the expected one, below which all curvatures are scaled down, and the smallest
# factor of a single scaling.
_FALLEN, _LARGEST_FALL = 0.9, 0.1

# Curvature along a step, relative to its length, below which it counts as rounding and is ignored.
_SMALL_CURVATURE = 1e-10

# Step of the differences of gradients that measure curvatures.
_DIFFERENCE = 1e-3


class Known(NamedTuple):
    """Minus the second derivatives of an objective in some of its coordinates."""

    coordinates: list[int]
    curvature: Tensor  # positive semidefinite, (k, k)


class ObjectiveError(ValueError):
    """The objective is not finite at the start of the ascent."""


class _Point(NamedTuple):
    position: Tensor  # (k,)
    value: float
    gradient: Tensor  # (k,)


class QuasiNewton:
    """
    BFGS with a dense matrix and a line search, in float64, for some dozens of parameters, which move in place.

    The matrix is kept from one call of :meth:`maximise` to the next: where the objective changes little, a few
    evaluations are enough. SciPy's BFGS does not handle points without a finite objective, limits, falling curvature,
    or gains in nats. For each parameter, ``curvatures`` are assumed at the start and ``limits`` bound the magnitude,
    both in its coordinate.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        curvatures: Sequence[float | Tensor],
        coordinates: Coordinates | None = None,
        limits: Sequence[float] | None = None,
    ) -> None:
        self._parameters = list(parameters)
        self._coordinates = Coordinates(self._parameters, ()) if coordinates is None else coordinates
        self._start = torch.diag(self._spread(curvatures).reciprocal())
        self._limits = self._spread([math.inf] * len(self._parameters) if limits is None else limits)
        self._inverse = self._start  # inverse of minus the matrix of second derivatives
        self._has_learnt = False
        self._known: Known | None = None
        #: Number of evaluations so far.
        self.evaluations = 0
        #: The gradient where the last search ended, in coordinates, ``(k,)``.
        self.gradient = torch.zeros(len(self._start), dtype=torch.float64)
        #: The objective there.
        self.value = math.nan
        #: Why it ended.
        self.stopped = "there is nothing to move"

    def _spread(self, numbers: Sequence[float | Tensor]) -> Tensor:
        """Each parameter's number, or one for each of its entries, ``(k,)``."""
        parts = [
            torch.as_tensor(number, dtype=torch.float64, device=parameter.device).expand(parameter.shape).flatten()
            for parameter, number in zip(self._parameters, numbers, strict=True)
        ]
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.float64)

    def rescale(self, factors: Sequence[float]) -> None:
        """Rescale the curvatures for an objective whose second derivatives differ by a known factor per parameter."""
        scales = self._spread(factors).rsqrt()
        self._start = scales.unsqueeze(-1) * self._start * scales
        self._inverse = scales.unsqueeze(-1) * self._inverse * scales

    def forget(self, known: Known | None = None) -> None:
        """Return to the curvatures assumed at the start, except for those that are ``known`` where the next one is."""
        self._inverse, self._has_learnt, self._known = self._start, False, known

    def maximise(
        self,
        objective: Callable[[], Tensor],
        gain: float,
        max_steps: int,
        callback: Callable[[float], Any] | None = None,
        max_evaluations: float = math.inf,
    ) -> float:
        """
        Move uphill until the next step is predicted to gain less than ``gain``, or as many evaluations as allowed have
        been made since the beginning. Returns that prediction, which is
        larger if steps ran out or none led uphill any more. An ObjectiveError is raised if the objective is not finite
        at the start. ``callback`` is called with the objective after each step.
        """
        if not self._parameters:
            self.value = objective().item()
            return 0.0
        point = self._evaluate(objective, self._read())
        if point is None:
            raise ObjectiveError("the bound is not finite at the hyperparameters of the start")
        self._take_known(point)
        self.stopped = f"{max_steps} steps were taken"
        for _ in range(max_steps):
            direction = self._direction(point)
            slope = (direction @ point.gradient).item()
            if 0.5 * slope <= gain:
                self.stopped = "the bound is at a maximum"
                break
            if self.evaluations >= max_evaluations:
                self.stopped = f"{max_evaluations} evaluations of the bound were made"
                break
            new = self._search(objective, point, direction, slope)
            if new is None:
                if not self._has_learnt:
                    self.stopped = "no step raises the bound any more, though its derivatives are not zero"
                    break
                self.forget()
                continue
            self._learn(point, new)
            point = new
            if callback is not None:
                callback(point.value)
        self._write(point.position)
        self.gradient, self.value = point.gradient, point.value
        return 0.5 * (self._direction(point) @ point.gradient).item()

    def _take_known(self, point: _Point) -> None:
        """
        Begin with the curvatures that are known, raised where a step along a single coordinate would be too long, or
        where the objective is flat.
        """
        if self._known is None:
            return
        matrix = self._start.diagonal().reciprocal().diag()
        chosen = torch.tensor(self._known.coordinates, device=matrix.device)
        matrix[chosen.unsqueeze(-1), chosen] = self._known.curvature
        diagonal = matrix.diagonal()
        diagonal += (point.gradient.abs() / _LONGEST_KNOWN - diagonal).clamp_min(0.0) + _RIDGE * (1.0 + diagonal)
        self._inverse, self._known, self._has_learnt = torch.linalg.inv(matrix), None, True

    def measured(self, objective: Callable[[], Tensor], entries: Sequence[int]) -> Known | None:
        """
        The curvatures as they have been learnt, with those in some entries of the coordinates measured here, by
        differences of gradients; None if the objective is not finite. Falling curvatures count by their magnitude.
        """
        point = self._evaluate(objective, self._read())
        matrix, info = torch.linalg.inv_ex(self._inverse)
        if point is None or info.any():
            return None
        for entry in entries:
            step = math.copysign(_DIFFERENCE, -point.position[entry].item())  # away from limits
            moved = point.position.clone()
            moved[entry] += step
            new = self._evaluate(objective, moved)
            self._write(point.position)
            if new is None:
                return None
            matrix[entry] = matrix[:, entry] = (point.gradient - new.gradient) / step
        values, vectors = torch.linalg.eigh(matrix)
        return Known(list(range(len(matrix))), (vectors * values.abs()) @ vectors.mT)

    def promised_afresh(self) -> float:
        """The gain that the curvatures assumed at the start predict for a step from where the last search ended."""
        if not self._parameters:
            return 0.0
        direction = self._start @ self.gradient
        direction = torch.where(self._is_held(self._read(), self.gradient), 0.0, direction)
        return 0.5 * (direction @ self.gradient).item()

    def _is_held(self, position: Tensor, gradient: Tensor) -> Tensor:
        """Which coordinates are at a limit and rise beyond it: they stay there."""
        return (position.abs() >= self._limits) & (position * gradient > 0)

    def _direction(self, point: _Point) -> Tensor:
        free = (~self._is_held(point.position, point.gradient)).double()
        direction = free * (self._inverse @ (free * point.gradient))
        if not self._has_learnt:
            return direction.clamp(-_FIRST, _FIRST)
        return direction * (_LONGEST / direction.abs().max().clamp_min(_LONGEST))

    def _search(self, objective: Callable[[], Tensor], point: _Point, direction: Tensor, slope: float) -> _Point | None:
        size = 1.0
        for _ in range(_MAX_SHORTENINGS):
            new = self._evaluate(objective, point.position + size * direction)
            if new is not None and new.value >= point.value + _SUFFICIENT * size * slope:
                return self._stretched(objective, point, direction, slope, new) if size == 1.0 else new
            # The maximum of the parabola through both values with the slope at the start.
            fall = math.inf if new is None else point.value + size * slope - new.value
            size *= min(max(0.5 * size * slope / fall, 0.1), 0.5)
        return None

    def _stretched(
        self, objective: Callable[[], Tensor], point: _Point, direction: Tensor, slope: float, best: _Point
    ) -> _Point:
        """The end of a step after doubling it for as long as the objective keeps rising as steeply."""
        size, longest = 1.0, _LONGEST_STRETCH / direction.abs().max().item()
        while 2.0 * size <= longest and (best.gradient @ direction).item() > _STILL_STEEP * slope:
            size *= 2.0
            new = self._evaluate(objective, point.position + size * direction)
            if new is None or new.value <= best.value:
                break
            best = new
        return best

    def _learn(self, point: _Point, new: _Point) -> None:
        """The BFGS update from the change of the gradient along a step."""
        step, change = new.position - point.position, point.gradient - new.gradient
        curvature = step @ change
        if curvature <= _SMALL_CURVATURE * step.norm() * change.norm():
            return
        if self._has_learnt:
            self._loosen(point.gradient, step, curvature.item())
        mapped = self._inverse @ change
        outer = torch.outer(step, mapped)
        spread = (1.0 + (change @ mapped) / curvature) * torch.outer(step, step)
        self._inverse = self._inverse + (spread - outer - outer.mT) / curvature
        self._has_learnt = True

    def _loosen(self, gradient: Tensor, step: Tensor, curvature: float) -> None:
        """
        Scale all curvatures down where one is smaller than expected: the bound falls exponentially far from the
        optimum, and large curvatures estimated there would keep later steps too short.
        """
        full = self._inverse @ gradient
        expected = (step.norm() / full.norm() * (step @ gradient)).item()
        if 0.0 < curvature < _FALLEN * expected:
            self._inverse = self._inverse / max(curvature / expected, _LARGEST_FALL)

    def _evaluate(self, objective: Callable[[], Tensor], position: Tensor) -> _Point | None:
        """The objective and its gradient at a position, or None where they are not finite."""
        position = torch.minimum(torch.maximum(position, -self._limits), self._limits)
        self._write(position)
        self.evaluations += 1
        try:
            with torch.enable_grad():
                value = objective()
                gradients = torch.autograd.grad(value, self._parameters, allow_unused=True)
        except (torch.linalg.LinAlgError, NotPSDError, NanError):
            return None
        parts = [
            torch.zeros_like(parameter) if gradient is None else gradient.detach()
            for gradient, parameter in zip(gradients, self._parameters, strict=True)
        ]
        gradient = _joined(self._coordinates.gradients([part.detach() for part in parts]))
        number = value.item()
        return _Point(position, number, gradient) if math.isfinite(number + gradient.sum().item()) else None

    def _read(self) -> Tensor:
        return _joined(self._coordinates.read())

    def _write(self, position: Tensor) -> None:
        parts = position.split([parameter.numel() for parameter in self._parameters])
        self._coordinates.write(
            [part.view_as(parameter) for part, parameter in zip(parts, self._parameters, strict=True)]
        )


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat([part.flatten().double() for part in parts])
