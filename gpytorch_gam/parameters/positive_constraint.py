"""The constraint of this package's own positive hyperparameters."""

from __future__ import annotations

import torch
from gpytorch.constraints import GreaterThan


def positive(lower_bound: float = 0.0) -> GreaterThan:
    """
    A constraint ``value > lower_bound`` under which a parameter is learnt by its logarithm, so equally quickly in all
    units of the responses. GPyTorch's own constraint takes a softplus, which is linear for large values: a step of Adam
    by 0.1 would change a variance of a million by 0.1.
    """
    return GreaterThan(lower_bound, transform=torch.exp, inv_transform=torch.log)
