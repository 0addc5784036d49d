"""Checks of the numbers with which kernels and measures are made."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gpytorch_gam import _checks as checks


def as_parameter(owner: str, name: str, value: Any) -> Tensor:
    """An argument as a floating-point tensor of finite numbers without a gradient; messages name its owner."""
    try:
        tensor = torch.as_tensor(value, dtype=None if torch.is_tensor(value) else torch.float64).detach().clone()
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{owner}: {name} must hold numbers, got {checks.shown(value)}") from error
    if not tensor.is_floating_point():
        tensor = tensor.double()
    if not bool(torch.isfinite(tensor).all()):
        raise ValueError(f"{owner}: {name} must be finite, got {value}")
    return tensor


def broadcast_parameters(owner: str, **tensors: Tensor) -> list[Tensor]:
    """Arguments, given by name, broadcast to one shape; messages name their owner."""
    try:
        return [tensor.contiguous() for tensor in torch.broadcast_tensors(*tensors.values())]
    except RuntimeError:
        shapes = ", ".join(f"{name} has shape {tuple(tensor.shape)}" for name, tensor in tensors.items())
        raise ValueError(
            f"{owner}: {shapes}, which do not broadcast; give one value a component, or one for all"
        ) from None


def checked_weights(owner: str, weights: Any, values: Tensor, what: str) -> Tensor:
    """Nonnegative weights of values, both ``(*batch, m)``; messages name their owner and ``what`` is weighted."""
    weights = as_parameter(owner, "weights", weights).to(values.device)
    if weights.dim() == 0 or weights.shape[-1] != values.shape[-1]:
        raise ValueError(
            f"{owner}: weights must have one value for each of the {values.shape[-1]} {what}, got shape "
            f"{tuple(weights.shape)}"
        )
    if not bool((weights >= 0).all()):
        raise ValueError(f"{owner}: weights must not be negative, got {weights.min().item():g}")
    try:
        torch.broadcast_shapes(weights.shape, values.shape)
    except RuntimeError:
        raise ValueError(
            f"{owner}: weights have batch shape {tuple(weights.shape[:-1])}, which does not broadcast with that of "
            f"{what}, {tuple(values.shape[:-1])}"
        ) from None
    return weights
