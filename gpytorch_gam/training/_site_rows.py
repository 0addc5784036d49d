"""Rows of data with Gaussian factors in the place of their likelihood."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from gpytorch_gam.likelihoods.row_argument import WEIGHTS


class SiteRows(NamedTuple):
    """
    Some rows, in float64.

    :ivar x: inputs, ``(n, D)``.
    :ivar features: Phi, ``(Q, n)``.
    :ivar curvatures: Lambda of the factors, positive semidefinite, ``(P, P, n)``.
    :ivar total_weight: the sum of their weights, which are as a rule one, ``()``.
    :ivar evaluate: gives Phi at the hyperparameters as they are when it is called.
    """

    x: Tensor
    features: Tensor
    curvatures: Tensor
    total_weight: Tensor
    evaluate: Callable[[], Tensor]


def total_weight(x: Tensor, row_arguments: Mapping[str, Tensor]) -> Tensor:
    """The sum of the weights of rows, ``()``, from their inputs ``(n, D)`` and row-wise arguments."""
    weights = row_arguments.get(WEIGHTS.name)
    return torch.tensor(len(x), dtype=torch.float64, device=x.device) if weights is None else weights.double().sum()
