"""The constraint of this package's own positive hyperparameters."""

from __future__ import annotations

import torch
from gpytorch.constraints import GreaterThan


def positive(lower_bound: float = 0.0) -> GreaterThan:
    """
    A constraint under which a parameter is learnt by its logarithm, so that it is as quickly learnt in one unit of the
    responses as in another. GPyTorch's own take a softplus, which is linear for large values: there a step of Adam by
    0.1 changes a variance of a million by 0.1.

    :param lower_bound: The parameter lies above it.
    """
    return GreaterThan(lower_bound, transform=torch.exp, inv_transform=torch.log)
