"""The hyperparameters of a fit, the limits of their coordinates, and those that end at a bound."""

from __future__ import annotations

import math
from collections.abc import Sequence

import gpytorch
import torch
from gpytorch.constraints import Interval
from gpytorch.likelihoods import GaussianLikelihood, Likelihood
from torch import Tensor

from gpytorch_gam.optim.rows.likelihood_check import unwrapped

# Largest logit of a parameter in an interval: beyond it gradients vanish, and the parameter could not return.
_LARGEST_LOGIT = 9.0

# Distance of a value from a bound of its constraint, relative to the value, below which it counts as being there.
_NEAR_BOUND = 0.01


def hyperparameters_of(model: gpytorch.models.ApproximateGP, likelihood: Likelihood) -> list[torch.nn.Parameter]:
    """All trainable parameters of model and likelihood but those of the posterior."""
    variational = {id(p) for p in model.variational_strategy._variational_distribution.parameters()}
    unique = {id(p): p for p in (*model.parameters(), *likelihood.parameters()) if p.requires_grad}
    return [parameter for key, parameter in unique.items() if key not in variational]


def shared_noise(likelihood: Likelihood, num_predictors: int) -> Tensor | None:
    """The raw noise variance that all rows share with a Gaussian likelihood of one predictor, None for others."""
    inner = unwrapped(likelihood)
    return inner.noise_covar.raw_noise if isinstance(inner, GaussianLikelihood) and num_predictors == 1 else None


def limits_of(parameters: Sequence[Tensor], *modules: gpytorch.Module) -> list[float]:
    """The largest magnitude of each parameter in its coordinate: logits must not run to infinity."""
    logits = {
        id(parameter)
        for module in modules
        for _, parameter, constraint in module.named_parameters_and_constraints()
        if isinstance(constraint, Interval) and constraint.enforced and _is_bounded(constraint)
    }
    return [_LARGEST_LOGIT if id(parameter) in logits else math.inf for parameter in parameters]


def largest(gradient: Tensor) -> float:
    """The largest magnitude of an entry; 0 if there is none."""
    return gradient.abs().max().item() if len(gradient) else 0.0


def _is_bounded(constraint: Interval) -> bool:
    return bool(torch.isfinite(constraint.lower_bound).all() and torch.isfinite(constraint.upper_bound).all())


def at_bounds(model: gpytorch.models.ApproximateGP, likelihood: gpytorch.Module) -> tuple[str, ...]:
    """The hyperparameters at a bound of their constraint, in the words of the terms."""
    found = []
    for group in model.variational_strategy.predictor.groups:
        for path, raw, constraint in group.named_parameters_and_constraints():
            names = group.names if raw.numel() == group.num_components else ["+".join(group.names)] * raw.numel()
            leaf = path.rpartition(".")[2].removeprefix("raw_")
            found += [f"{names[entry[0]]}.{leaf}" for entry in entries_at_bounds(raw, constraint)]
    for path, raw, constraint in likelihood.named_parameters_and_constraints():
        leaf = path.rpartition(".")[2].removeprefix("raw_")
        found += [f"likelihood.{leaf}" for _ in entries_at_bounds(raw, constraint)]
    return tuple(dict.fromkeys(found))


@torch.no_grad()
def entries_at_bounds(raw: Tensor, constraint: Interval | None) -> list[list[int]]:
    """The indices of a parameter's entries whose values are at a bound of the constraint."""
    if constraint is None or not raw.requires_grad or raw.dim() == 0:
        return []
    value = constraint.transform(raw.double())
    lower, upper = constraint.lower_bound.to(value), constraint.upper_bound.to(value)
    margin = _NEAR_BOUND * value.abs()
    is_there = ((lower > 0) & (value - lower < margin)) | (torch.isfinite(upper) & (upper - value < margin))
    return is_there.nonzero().tolist()
