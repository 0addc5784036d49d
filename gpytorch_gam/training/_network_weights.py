"""Weights of networks in front of the terms, which are no hyperparameters of a Gaussian process."""

from __future__ import annotations

import gpytorch
from torch.nn import Parameter

# Numbers of weights up to which they are those of a projection or a warping of columns, whose optimum is soon found.
_A_FEW = 20


def network_weights(model: gpytorch.models.ApproximateGP) -> list[Parameter]:
    """
    The trained parameters that belong neither to the posterior and the terms nor to any kernel or mean module, and that
    have no constraint.

    :param model: A model, whose ``forward`` may have a network.
    """
    owners = (module for module in model.modules() if isinstance(module, gpytorch.means.Mean | gpytorch.kernels.Kernel))
    known = {id(parameter) for owner in (model.variational_strategy, *owners) for parameter in owner.parameters()}
    constrained = {id(raw) for _, raw, rule in model.named_parameters_and_constraints() if rule is not None}
    return [p for p in model.hyperparameters() if p.requires_grad and id(p) not in known | constrained]


def has_network(model: gpytorch.models.ApproximateGP) -> bool:
    """
    Whether there are so many weights that fits treat them as those of a network.

    :param model: A model.
    """
    return sum(weight.numel() for weight in network_weights(model)) > _A_FEW
