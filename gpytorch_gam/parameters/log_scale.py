"""Coordinates in which optimisers move hyperparameters, whatever the units of the responses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from gpytorch import Module
from gpytorch.constraints import GreaterThan, Interval
from torch import Tensor

# Below it softplus(r) is exp(r) to all digits of float64, and its logarithm r.
_LINEAR = -36.0


def is_softplus(constraint: Interval) -> bool:
    """Whether a parameter is the softplus of its raw form above a lower bound, as GPyTorch's positive ones are."""
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
    """How one parameter is seen by an optimiser."""

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
    Coordinates of hyperparameters in which steps have the same meaning in all units of the responses: the logarithms of
    what GPyTorch makes positive by a softplus, which is linear for large values, parameters of the predictor's mean in
    units of the predictor, and all others as they are.

    :param parameters: The parameters that an optimiser moves.
    :param modules: The modules that own them.
    :param units: A unit for the ``id`` of a parameter; default 1.
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
        """Those of the parameters that are not seen as they are."""
        return [coordinate for coordinate in self._all if coordinate.is_changed]

    def read(self) -> list[Tensor]:
        """Positions of all parameters, detached."""
        return [coordinate.of(coordinate.parameter.detach()) for coordinate in self._all]

    @torch.no_grad()
    def write(self, positions: Sequence[Tensor]) -> None:
        """Move all parameters to positions in any floating dtype."""
        for coordinate, position in zip(self._all, positions, strict=True):
            coordinate.parameter.copy_(coordinate.raw(position))

    def gradients(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Gradients in the positions, from those in the raw parameters at their present values."""
        return [c.gradient(c.parameter.detach(), g) for c, g in zip(self._all, gradients, strict=True)]


class Adam(torch.optim.Adam):
    """torch's Adam, moving in other coordinates than those of its parameters."""

    def __init__(self, parameters: Sequence[Tensor], coordinates: Coordinates, lr: float) -> None:
        super().__init__(parameters, lr=lr)
        self._changed = coordinates.changed()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """A step, as of any optimiser of torch."""
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
