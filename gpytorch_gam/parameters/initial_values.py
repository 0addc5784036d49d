"""Hyperparameters whose value nobody has chosen."""

from __future__ import annotations

import torch
from gpytorch import Module
from gpytorch.constraints import Interval

from .log_scale import is_softplus


def note_initial_value(module: Module, name: str) -> None:
    """Note that a raw parameter of a module has a value which stands in for one that fits the data."""
    noted = module.__dict__.setdefault("_initial_values", {})
    parameter = getattr(module, name)
    noted[name] = parameter.detach().double().cpu().clone(), parameter.requires_grad


def forget_initial_value(module: Module, name: str) -> None:
    """Note that somebody has chosen the value of a raw parameter of a module."""
    module.__dict__.get("_initial_values", {}).pop(name, None)


def has_initial_value(module: Module, name: str) -> bool:
    """
    Whether a raw parameter of a module has a value which nobody has chosen: one that was noted, or the raw zero that
    GPyTorch's modules start from. Loaded and trained values are none, as they are others; nor are parameters that were
    fixed or released since.
    """
    raw = getattr(module, name)
    noted = module.__dict__.get("_initial_values", {}).get(name)
    if noted is not None:
        value, requires_grad = noted
        is_same = torch.isclose(raw.detach().double().cpu(), value, rtol=1e-6, atol=1e-6).all()
        return raw.requires_grad == requires_grad and bool(is_same)
    constraint = getattr(module, f"{name}_constraint", None)
    starts_from_zero = isinstance(constraint, Interval) and constraint.initial_value is None and is_softplus(constraint)
    return starts_from_zero and raw.requires_grad and not bool(raw.any())
