"""The evidence lower bound of all rows as a function of hyperparameters, without a graph of all rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import gpytorch
import torch
from gpytorch.likelihoods import Likelihood
from torch import Tensor

from gpytorch_gam.numerics.grad_mode import gradients_on
from gpytorch_gam.optim.processes import Processes
from gpytorch_gam.optim.rows.stream import Rows

# Number of rows whose graph exists at a time.
_CHUNK = 8192


def bound_and_gradients(
    model: gpytorch.models.ApproximateGP,
    likelihood: Likelihood,
    batches: Iterable[Rows],
    num_data: int,
    parameters: Sequence[Tensor],
) -> tuple[Tensor, list[Tensor]]:
    """
    The bound in nats at the present posterior, priors included, and its gradients, in float64, from the rows of this
    process; ``num_data`` counts those of all. Model and likelihood are left in train mode.
    """
    mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=num_data).train()
    bound = torch.zeros((), dtype=torch.float64, device=parameters[0].device)
    totals = [torch.zeros_like(parameter, dtype=torch.float64) for parameter in parameters]
    for batch in batches:
        for rows in batch.split(_CHUNK):
            with gradients_on():
                value = len(rows.y) * mll(model(rows.x), rows.y, **rows.row_arguments)  # the divergence adds up to one
                found = torch.autograd.grad(value, parameters, allow_unused=True)
            bound += value.detach()
            totals = [total if new is None else total + new for total, new in zip(totals, found, strict=True)]
    return bound, totals


def linear_function(value: Tensor, gradients: Iterable[Tensor], parameters: Iterable[Tensor]) -> Tensor:
    """The linear function with this value and gradients at the present parameters: a sum whose graph was not kept."""
    moves = [(g * (p - p.detach())).sum().double() for g, p in zip(gradients, parameters, strict=True)]
    return value + torch.stack(moves).sum()


def sum_over_processes(processes: Processes, own: Tensor, parameters: Sequence[Tensor]) -> Tensor:
    """The sum of the processes' numbers ``()``, a function of the parameters that can be differentiated once."""
    found = torch.autograd.grad(own, parameters, allow_unused=True)
    gradients = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]
    total, *gradients = processes.sum([own.detach(), *gradients])
    return linear_function(total, gradients, parameters)


@torch.no_grad()
def log_prior_in_nats(*modules: gpytorch.Module) -> float:
    """The logarithm of the prior density as a number."""
    return float(log_prior(*modules))


def log_prior(*modules: gpytorch.Module) -> Tensor | float:
    """The logarithm of the prior density of the modules' hyperparameters."""
    priors = [each for module in modules for each in module.named_priors()]
    return sum(prior.log_prob(closure(owner)).double().sum() for _, owner, prior, closure, _ in priors)
