"""The constraint of this package's own positive hyperparameters."""

from __future__ import annotations

import torch
from gpytorch.constraints import GreaterThan


def positive(lower_bound: float = 0.0) -> GreaterThan:
    """
    A constraint ``value > lower_bound`` by which a parameter is learnt as a logarithm, equally quickly in all units of
    the responses. GPyTorch's softplus is linear for large values: a step of Adam by 0.1 would change a variance of 1e6
    by 0.1.
    """
    return GreaterThan(lower_bound, transform=torch.exp, inv_transform=torch.log)
