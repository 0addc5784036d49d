"""Checks whether the hyperparameters have reached a stationary point of the bound."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import gpytorch
import torch
from gpytorch.constraints import Interval
from gpytorch.likelihoods import Likelihood
from torch import Tensor

from gpytorch_gam.numerics.blocks import split_groups
from gpytorch_gam.variational import AdditiveVariationalStrategy

# Smallest gain of minibatches that is warned of, and smallest change of a hyperparameter on the log scale whose
# gain counts.
NOTABLE_NATS, _NOTABLE_CHANGE = 2.0, 0.1

# Longest step, on the logarithmic scale, over which the gradient is extrapolated.
_REACH = 1.0

# Lower bound on the curvature of the bound in the logarithm of a hyperparameter.
_LEAST_CURVATURE = 0.5

# Smallest number of steps of an epoch for which the spread of their gradients is informative.
_LEAST_STEPS = 5

# Relative slope of a parameter's constraint below which the parameter is at the constraint's end.
_FLAT = 1e-6


class MeanGradient:
    """The mean and the spread of the bound's gradients over the steps of an epoch."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters
        self._sums = {id(p): torch.zeros_like(p, dtype=torch.float64) for p in parameters}
        self._squares = {id(p): torch.zeros_like(p, dtype=torch.float64) for p in parameters}
        self._num_rows = self._num_steps = 0

    @torch.no_grad()
    def add(self, num_rows: int) -> None:
        """Add the gradients of a step, of minus the bound per row, after ``backward``."""
        self._num_rows, self._num_steps = self._num_rows + num_rows, self._num_steps + 1
        for parameter in self._parameters:
            if parameter.grad is not None:
                self._sums[id(parameter)].add_(parameter.grad, alpha=-num_rows)
                self._squares[id(parameter)].add_(parameter.grad.double().square(), alpha=num_rows)

    def of(self, parameter: Tensor, num_data: int) -> Tensor:
        """The gradient in nats of ``num_data`` rows; zero for a parameter that was not given."""
        total = self._sums.get(id(parameter))
        if total is None:
            return torch.zeros_like(parameter, dtype=torch.float64)
        return total * (num_data / max(self._num_rows, 1))

    def information(self, parameter: Tensor, num_data: int) -> Tensor | None:
        """Fisher information of all rows, from the gradients' variance; None for few batches, unknown parameters."""
        if self._num_steps < _LEAST_STEPS or id(parameter) not in self._sums:
            return None
        mean, square = self._sums[id(parameter)] / self._num_rows, self._squares[id(parameter)] / self._num_rows
        batch_size = self._num_rows / self._num_steps
        return num_data * batch_size * (square - mean.square())


class OpenGain(NamedTuple):
    """Nats by which a step of a hyperparameter would raise the bound."""

    name: str  # name of the raw parameter
    nats: float


def open_gains(
    model: gpytorch.models.ApproximateGP, likelihood: Likelihood, gradient: MeanGradient, num_data: int
) -> list[OpenGain]:
    r"""
    Gains of steps of the positive hyperparameters, largest first: in their logarithm :math:`z`, the maximum of :math:`g
    \delta - \tfrac{c}{2} \delta^2` within the constraint and :math:`|\delta| \le 1`, summed over entries with a notable
    :math:`\delta`.

    The curvature :math:`c` is rather too large than too small: for a likelihood's parameters the information in the
    rows, or :math:`N / 2` as for a variance; for a kernel's, half a component's effective dimension, as in MacKay
    (1992).
    """
    kernels, gains = kernel_curvatures(model.variational_strategy), []
    for name, parameter, constraint in _constrained(model, likelihood):
        slope, value = _slope_of_log(parameter, constraint)
        information = None if id(parameter) in kernels else gradient.information(parameter, num_data)
        if information is None:
            curvature = torch.full_like(value, kernels.get(id(parameter), 0.5 * num_data))
        else:
            curvature = information / slope.square()
        by_log = gradient.of(parameter, num_data) / slope
        is_free = slope.abs() > _FLAT
        gain = _gains(by_log, curvature.clamp_min(_LEAST_CURVATURE), value, constraint)[is_free].sum().item()
        gains.append(OpenGain(name, gain))
    return sorted(gains, key=lambda gain: -gain.nats)


def _constrained(*modules: gpytorch.Module) -> Iterator[tuple[str, Tensor, Interval]]:
    """Trainable parameters with a positive constraint, by name."""
    for module in modules:
        for name, parameter, constraint in module.named_parameters_and_constraints():
            if parameter.requires_grad and constraint is not None and bool((constraint.lower_bound >= 0).all()):
                yield name, parameter, constraint


def _slope_of_log(parameter: Tensor, constraint: Interval) -> tuple[Tensor, Tensor]:
    """Derivative of the logarithm of the constrained value, and that value."""
    with torch.enable_grad():
        raw = parameter.detach().double().requires_grad_()
        value = constraint.transform(raw)
        (slope,) = torch.autograd.grad(value.log().sum(), raw)
    return slope, value.detach()


def _gains(gradient: Tensor, curvature: Tensor, value: Tensor, constraint: Interval) -> Tensor:
    """The gain in nats of each entry; gradient and curvature are those in the logarithm."""
    lowest = (constraint.lower_bound.to(value) / value).log().clamp_min(-_REACH)
    highest = (constraint.upper_bound.to(value) / value).log().clamp_max(_REACH)
    step = torch.minimum(torch.maximum(gradient / curvature, lowest), highest)
    gains = (gradient * step - 0.5 * curvature * step.square()).clamp_min(0.0)
    return torch.where(step.abs() >= _NOTABLE_CHANGE, gains, 0.0)


def kernel_curvatures(strategy: AdditiveVariationalStrategy) -> dict[int, float]:
    """Rough curvatures of the bound in log kernel parameters, by id: half of a component's effective dimension."""
    shapes = strategy.predictor.group_shapes
    factors = strategy.covariance_factors()
    dimensions = [0.0] * len(shapes)
    if factors.explained_blocks is not None:
        dimensions = [root.square().sum().item() for root in factors.explained_blocks]
    if factors.explained_shared is not None:
        parts = split_groups(factors.explained_shared, shapes)
        sign = -factors.shared_sign
        dimensions = [d + sign * part.square().sum().item() for d, part in zip(dimensions, parts, strict=True)]
    return {
        id(parameter): max(0.5 * dimension / count, _LEAST_CURVATURE)
        for group, dimension, (count, _) in zip(strategy.predictor.groups, dimensions, shapes, strict=True)
        for parameter in group.parameters()
    }
