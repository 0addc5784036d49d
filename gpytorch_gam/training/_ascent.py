"""The ascent of a bound in the hyperparameters, which returns to terms that were switched off on its way."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import gpytorch
import torch
from gpytorch.constraints import Interval
from gpytorch.kernels import Kernel, ScaleKernel
from linear_operator.utils.errors import NanError, NotPSDError
from torch import Tensor

from gpytorch_gam.components import AdditivePredictor
from gpytorch_gam.parameters.log_scale import Coordinates

from ._quasi_newton import QuasiNewton

# Largest number of searches, each with a fresh estimate of the curvature, and of returns to terms that are off.
_MAX_ROUNDS, _MAX_RETURNS = 4, 3

# A search ends where the next step is predicted to gain less than this share of the tolerance: gains left in many
# directions add up.
_SHARE_OF_TOLERANCE = 0.2

# Largest logit of a parameter in an interval: beyond it gradients vanish, and the parameter could not return.
_LARGEST_LOGIT = 9.0

# A term is off if its variance is below this multiple of the predictor's variance over the number of rows, where the
# data hardly see it, or below this share of the predictor's variance.
_OFF_BY_ROWS, _OFF = 30.0, 1e-2

# The variances, as multiples of the predictor's over the number of rows, at which the bound's derivative is examined
# for terms that are off; and the lengthscales, as multiples of those at the start.
_PROBED_VARIANCES, _PROBED_LENGTHSCALES = (0.3, 3.0), (0.25, 1.0, 4.0)

# Distance of a value from a bound of its constraint, relative to the value, below which it counts as being there.
_NEAR_BOUND = 0.01


class Arrival(NamedTuple):
    """The end of an ascent."""

    value: float  # of the objective, in nats
    gradient: float  # largest magnitude of its derivatives in the coordinates
    open: float  # nats that a further step is predicted to gain
    stopped: str


class Ascent:
    """
    The ascent of an objective in ``parameters``, which move in ``coordinates``. ``curvatures`` are those of the start;
    ``num_rows`` is the number of rows of the data, and ``variances`` are those of each predictor between rows, if they
    are known, by which terms that are off are told.
    """

    def __init__(
        self,
        objective: Callable[[], Tensor],
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
        self._starts = [[part.lengthscale.detach().clone() for part in scale.lengthscales] for scale in self._scales]
        self._best: tuple[float, list[Tensor]] = (-math.inf, self._read())

    @property
    def evaluations(self) -> int:
        """Number of evaluations so far."""
        return self._newton.evaluations

    def run(self, tolerance: float, max_steps: int, callback: Callable[[float], Any] | None = None) -> Arrival:
        """
        Climb until a further step is predicted to gain less than a share of ``tolerance`` nats, also from terms that
        are off. If this is interrupted, :meth:`restore_best` goes to the best point seen.
        """
        arrival = self._climb(tolerance, max_steps, callback)
        for _ in range(_MAX_RETURNS):
            if not self._wake(tolerance):
                break
            before = arrival
            arrival = self._climb(tolerance, max_steps, callback)
            if arrival.value <= before.value + tolerance:
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
        largest = self._newton.gradient.abs().max().item() if len(self._newton.gradient) else 0.0
        is_done = still_open <= tolerance
        return Arrival(before, largest, still_open, "the bound is at a maximum" if is_done else self._newton.stopped)

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

    # ------------------------------------------------------------------ terms that are off

    def _wake(self, tolerance: float) -> bool:
        """
        Give variance to the terms that are off and would raise the bound with some lengthscale; whether there are any.

        With a variance v the bound rises as a v - c v^2 / 2, whose coefficients are those of its derivatives at two
        small variances. The terms are examined all at once, because at these they do not compete.
        """
        self.restore_best()
        off = [index for index, scale in enumerate(self._scales) if self._is_off(scale)]
        if not off:
            return False
        origin = self._read()
        gains, starts = dict.fromkeys(off, tolerance), {}
        for factor in _PROBED_LENGTHSCALES:
            slopes = [self._slopes(off, factor, multiple) for multiple in _PROBED_VARIANCES]
            for index in off:
                first, second = (part.get(index, math.nan) for part in slopes)
                unit = self._unit(self._scales[index])
                fall = (first - second) / ((_PROBED_VARIANCES[1] - _PROBED_VARIANCES[0]) * unit)
                best = first / fall if fall > 0 else math.inf
                best = min(best, self._variance(self._scales[index]) * _OFF + 100 * unit)
                gain = 0.5 * first * best
                if first > 0 and gain > gains[index]:
                    gains[index], starts[index] = gain, (factor, best)
        self._write(origin)
        for index, (factor, variance) in starts.items():
            self._set(index, factor, variance)
        return bool(starts)

    def _slopes(self, off: Sequence[int], factor: float, multiple: float) -> dict[int, float]:
        """Derivatives of the objective in the variances of terms, at multiples of their lengthscale and unit."""
        for index in off:
            self._set(index, factor, multiple * self._unit(self._scales[index]))
        raws = {id(self._scales[index].raw): self._scales[index].raw for index in off}
        try:
            with torch.enable_grad():
                found = torch.autograd.grad(self._objective(), list(raws.values()), allow_unused=True)
        except (torch.linalg.LinAlgError, NotPSDError, NanError):
            return {}
        by_raw = dict(zip(raws, found, strict=True))
        slopes = {}
        for index in off:
            scale, gradient = self._scales[index], by_raw[id(self._scales[index].raw)]
            if gradient is not None:
                slopes[index] = gradient.flatten()[scale.entry].item() / scale.slope()
        return slopes

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
        """Give a term a variance, and lengthscales that are a multiple of those at the start."""
        scale = self._scales[index]
        scale.set(variance)
        for part, start in zip(scale.lengthscales, self._starts[index], strict=True):
            _set_lengthscale(part, scale.entry, factor * start)


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

    def slope(self) -> float:
        """The derivative of the output scale in its raw parameter."""
        with torch.enable_grad():
            raw = self.raw.detach().double().requires_grad_()
            (slope,) = torch.autograd.grad(self.kernel.raw_outputscale_constraint.transform(raw).sum(), raw)
        return slope.flatten()[self.entry].item()


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


@torch.no_grad()
def _set_lengthscale(kernel: Kernel, entry: int, values: Tensor) -> None:
    """Set a component's lengthscale to that of ``values``, or as near as its constraint allows."""
    constraint = kernel.raw_lengthscale_constraint
    lower, upper = (bound.expand_as(values) for bound in (constraint.lower_bound, constraint.upper_bound))
    wanted = torch.minimum(torch.maximum(values, 1.05 * lower), 0.95 * upper)
    kernel.raw_lengthscale[entry] = constraint.inverse_transform(wanted)[entry]


def limits_of(parameters: Sequence[Tensor], *modules: gpytorch.Module) -> list[float]:
    """The largest magnitude of each parameter in its coordinate: logits must not run to infinity."""
    logits = {
        id(parameter)
        for module in modules
        for _, parameter, constraint in module.named_parameters_and_constraints()
        if type(constraint) is Interval and constraint.enforced
    }
    return [_LARGEST_LOGIT if id(parameter) in logits else math.inf for parameter in parameters]


def at_bounds(model: gpytorch.models.ApproximateGP, likelihood: gpytorch.Module) -> tuple[str, ...]:
    """The hyperparameters at a bound of their constraint, in the words of the terms."""
    found = []
    for group in model.variational_strategy.predictor.groups:
        for path, raw, constraint in group.named_parameters_and_constraints():
            names = group.names if len(raw) == group.num_components else ["+".join(group.names)] * raw.numel()
            leaf = path.rpartition(".")[2].removeprefix("raw_")
            found += [f"{names[entry[0]]}.{leaf}" for entry in _entries_at_bounds(raw, constraint)]
    for path, raw, constraint in likelihood.named_parameters_and_constraints():
        leaf = path.rpartition(".")[2].removeprefix("raw_")
        found += [f"likelihood.{leaf}" for _ in _entries_at_bounds(raw, constraint)]
    return tuple(dict.fromkeys(found))


@torch.no_grad()
def _entries_at_bounds(raw: Tensor, constraint: Interval | None) -> list[list[int]]:
    if constraint is None or not raw.requires_grad or raw.dim() == 0:
        return []
    value = constraint.transform(raw.double())
    lower, upper = constraint.lower_bound.to(value), constraint.upper_bound.to(value)
    margin = _NEAR_BOUND * value.abs()
    is_there = ((lower > 0) & (value - lower < margin)) | (torch.isfinite(upper) & (upper - value < margin))
    return is_there.nonzero().tolist()
