"""Whether the hyperparameters have arrived where the bound is stationary."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import gpytorch
import torch
from gpytorch.constraints import Interval
from gpytorch.likelihoods import Likelihood
from torch import Tensor

from gpytorch_gam.numerics.blocks import split_groups
from gpytorch_gam.variational import AdditiveVariationalStrategy
from gpytorch_gam.warnings import ConvergenceWarning

# Smallest gain that is warned of, and smallest relative change of a hyperparameter whose gain counts.
_NOTABLE_NATS, _NOTABLE_CHANGE = 2.0, 0.1

# Longest step for which the gradient is taken for a guide, on the logarithmic scale.
_REACH = 1.0

# Least curvature of the bound in the logarithm of a hyperparameter of the kernels.
_LEAST_CURVATURE = 0.5

# Smallest number of steps of an epoch from whose spread something can be learnt.
_LEAST_STEPS = 5

# Relative slope of a parameter's constraint below which the parameter stands at its end.
_FLAT = 1e-6


class MeanGradient:
    """Gradients of the bound, and what the rows tell of its curvature, over the steps of an epoch."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters
        self._sums = {id(p): torch.zeros_like(p, dtype=torch.float64) for p in parameters}
        self._squares = {id(p): torch.zeros_like(p, dtype=torch.float64) for p in parameters}
        self._num_rows = self._num_steps = 0

    @torch.no_grad()
    def add(self, num_rows: int) -> None:
        """Take in the gradients of a step, of minus the bound per row, after ``backward``."""
        self._num_rows, self._num_steps = self._num_rows + num_rows, self._num_steps + 1
        for parameter in self._parameters:
            if parameter.grad is not None:
                self._sums[id(parameter)].add_(parameter.grad, alpha=-num_rows)
                self._squares[id(parameter)].add_(parameter.grad.double().square(), alpha=num_rows)

    def of(self, parameter: Tensor, num_data: int) -> Tensor:
        """The gradient in nats of ``num_data`` rows; zero of a parameter that is not among these."""
        total = self._sums.get(id(parameter))
        if total is None:
            return torch.zeros_like(parameter, dtype=torch.float64)
        return total * (num_data / max(self._num_rows, 1))

    def information(self, parameter: Tensor, num_data: int) -> Tensor | None:
        """
        What all rows say of a parameter, from the variance of its gradient over the batches (Fisher); None if there are
        too few batches, or the parameter is not among these.
        """
        if self._num_steps < _LEAST_STEPS or id(parameter) not in self._sums:
            return None
        mean, square = self._sums[id(parameter)] / self._num_rows, self._squares[id(parameter)] / self._num_rows
        batch_size = self._num_rows / self._num_steps
        return num_data * batch_size * (square - mean.square())


class OpenGain(NamedTuple):
    """Nats by which a step of a hyperparameter would raise the bound."""

    name: str  # of the raw parameter
    nats: float


def open_gains(
    model: gpytorch.models.ApproximateGP, likelihood: Likelihood, gradient: MeanGradient, num_data: int
) -> list[OpenGain]:
    r"""
    What steps of the positive hyperparameters would gain, largest first: in their logarithm :math:`z`, the maximum of
    :math:`g \delta - \tfrac{c}{2} \delta^2` within the constraint and :math:`|\delta| \le 1`, summed over the entries
    with a notable :math:`\delta`.

    The curvature :math:`c` is rather too large than too small, and the gain then too small: for parameters of the
    likelihood the information in the rows, or :math:`N / 2`, what they say of a variance; for those of a kernel half of
    the effective dimension of a component, as in MacKay's (1992) evidence framework.
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


def warn_if_open(nats: float, names: Sequence[str] = ()) -> None:
    """
    Warn, in the name of the caller of the caller, where the bound has notably further to rise: by how many nats, and
    with which hyperparameters most of all.
    """
    if not nats >= _NOTABLE_NATS:
        return
    most = f", most of all with {', '.join(names)}" if names else ""
    warnings.warn(
        f"the fit has not arrived: the bound promises to rise by {nats:.0f} nats or more{most}. Train for more epochs, "
        "or go on with fit(..., warm_start=True)",
        ConvergenceWarning,
        stacklevel=3,
    )


def _constrained(*modules: gpytorch.Module) -> Iterator[tuple[str, Tensor, Interval]]:
    """Trainable parameters that are positive by their constraint."""
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
    """In nats, for each entry, with derivatives in the logarithm."""
    lowest = (constraint.lower_bound.to(value) / value).log().clamp_min(-_REACH)
    highest = (constraint.upper_bound.to(value) / value).log().clamp_max(_REACH)
    step = torch.minimum(torch.maximum(gradient / curvature, lowest), highest)
    gains = (gradient * step - 0.5 * curvature * step.square()).clamp_min(0.0)
    return torch.where(step.abs() >= _NOTABLE_CHANGE, gains, 0.0)


def kernel_curvatures(strategy: AdditiveVariationalStrategy) -> dict[int, float]:
    """
    About what minus the second derivative of the bound in the logarithm of a kernel's parameter is: half of the
    effective dimension of a component, by the ids of the parameters of its group.
    """
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
