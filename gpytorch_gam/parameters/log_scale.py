"""Coordinates in which optimisers move hyperparameters, so that steps mean the same in all units of the responses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from gpytorch import Module
from gpytorch.constraints import GreaterThan, Interval
from torch import Tensor

# For raw values below this, softplus(r) is exp(r) to all digits of float64, and its logarithm is r.
_LINEAR = -36.0


def is_softplus(constraint: Interval) -> bool:
    """Whether a parameter is a softplus plus a lower bound, as GPyTorch's positive ones are."""
    return isinstance(constraint, GreaterThan) and isinstance(constraint._transform, torch.nn.Softplus)


def log_softplus(raw: Tensor) -> Tensor:
    """The logarithm of softplus."""
    return torch.where(raw < _LINEAR, raw, torch.nn.functional.softplus(raw.clamp_min(_LINEAR), threshold=40.0).log())


def inverse_log_softplus(logarithm: Tensor) -> Tensor:
    """The inverse of :func:`log_softplus`."""
    value = logarithm.clamp_min(_LINEAR).exp()
    return torch.where(logarithm < _LINEAR, logarithm, value + (-torch.expm1(-value)).log())


def slope_of_log_softplus(raw: Tensor) -> Tensor:
    """The derivative of :func:`log_softplus`."""
    return (torch.nn.functional.logsigmoid(raw) - log_softplus(raw)).exp()


class _Coordinate(NamedTuple):
    """One parameter as an optimiser sees it: by its logarithm if it is a softplus, otherwise in a unit."""

    parameter: Tensor
    is_softplus: bool
    unit: float

    @property
    def is_changed(self) -> bool:
        return self.is_softplus or self.unit != 1.0

    def of(self, raw: Tensor) -> Tensor:
        return log_softplus(raw) if self.is_softplus else raw / self.unit

    def raw(self, position: Tensor) -> Tensor:
        return inverse_log_softplus(position) if self.is_softplus else position * self.unit

    def gradient(self, raw: Tensor, gradient: Tensor) -> Tensor:
        return gradient / slope_of_log_softplus(raw) if self.is_softplus else gradient * self.unit


class Coordinates:
    """
    Coordinates of parameters in which an optimiser's steps mean the same in all units of the responses: the logarithms
    of what GPyTorch makes positive by a softplus (linear for large values), parameters in ``units`` (``id`` to unit, by
    default 1; for the predictor's mean the unit of the predictor), and all others as they are. ``modules`` own them.
    """

    def __init__(
        self, parameters: Sequence[Tensor], modules: Iterable[Module], units: Mapping[int, float] | None = None
    ) -> None:
        positive = {
            id(parameter)
            for module in modules
            for _, parameter, constraint in module.named_parameters_and_constraints()
            if constraint is not None and is_softplus(constraint)
        }
        units = units or {}
        self._all = [_Coordinate(p, id(p) in positive, units.get(id(p), 1.0)) for p in parameters]

    def changed(self) -> list[_Coordinate]:
        """The coordinates that differ from the parameters themselves."""
        return [coordinate for coordinate in self._all if coordinate.is_changed]

    def read(self) -> list[Tensor]:
        """The positions of all parameters, detached."""
        return [coordinate.of(coordinate.parameter.detach()) for coordinate in self._all]

    @torch.no_grad()
    def write(self, positions: Sequence[Tensor]) -> None:
        """Move all parameters to these positions, which may have any floating dtype."""
        for coordinate, position in zip(self._all, positions, strict=True):
            coordinate.parameter.copy_(coordinate.raw(position))

    def write_moved(self, positions: Sequence[Tensor], entries: Sequence[int], step: float) -> None:
        """Move all parameters to these positions, and some of their entries, counted over all, by a step from there."""
        flat = torch.cat([position.flatten() for position in positions])
        flat[list(entries)] += step
        parts = flat.split([position.numel() for position in positions])
        self.write([part.view_as(position) for part, position in zip(parts, positions, strict=True)])

    def gradients(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Gradients with respect to the positions, from those with respect to the raw parameters."""
        return [c.gradient(c.parameter.detach(), g) for c, g in zip(self._all, gradients, strict=True)]


class Adam(torch.optim.Adam):
    """
    torch's Adam, taking its steps in the given coordinates instead of the raw parameters. Each of the ``parameters``
    has its rate as a multiple of ``lr`` in ``shares``, by id, or else that rate.
    """

    def __init__(
        self, parameters: Sequence[Tensor], coordinates: Coordinates, lr: float, shares: Mapping[int, float]
    ) -> None:
        own = [(shares.get(id(parameter), 1.0), parameter) for parameter in parameters]
        found = sorted({share for share, _ in own})
        groups = [{"params": [p for each, p in own if each == share], "share": share} for share in found]
        super().__init__(groups, lr=lr)
        self._changed = coordinates.changed()
        self.set_rate(lr)

    def set_rate(self, lr: float) -> None:
        """Set the rate of parameters without a share of their own, and with it those of all."""
        for group in self.param_groups:
            group["lr"] = lr * group["share"]

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step; see :meth:`torch.optim.Optimizer.step`."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        moved = [(c, c.parameter.grad) for c in self._changed if c.parameter.grad is not None]
        for coordinate, gradient in moved:
            raw = coordinate.parameter
            raw.grad = coordinate.gradient(raw, gradient)
            raw.copy_(coordinate.of(raw))
        super().step()
        for coordinate, gradient in moved:
            raw = coordinate.parameter
            raw.copy_(coordinate.raw(raw))
            raw.grad = gradient
        return loss
