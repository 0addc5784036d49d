"""Hyperparameters whose value no user, fit or saved state has chosen."""

from __future__ import annotations

import torch
from gpytorch import Module
from gpytorch.constraints import Interval

from .log_scale import is_softplus


def note_initial_value(module: Module, name: str) -> None:
    """Note that the value of a raw parameter is a placeholder, which a fit may replace by one that suits the data."""
    noted = module.__dict__.setdefault("_initial_values", {})
    parameter = getattr(module, name)
    noted[name] = parameter.detach().double().cpu().clone(), parameter.requires_grad


def forget_initial_value(module: Module, name: str) -> None:
    """Note that the value of a raw parameter has been chosen."""
    module.__dict__.get("_initial_values", {}).pop(name, None)


def has_initial_value(module: Module, name: str) -> bool:
    """
    Whether the value of a raw parameter has not been chosen: it is the noted one, or the raw zero that GPyTorch's
    modules start from. Parameters that were loaded, trained, fixed or released since count as chosen.
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
