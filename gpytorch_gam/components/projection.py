r"""
All work that grows with the number of rows: projections :math:`W_c^\top k_c(Z_c, \mathbf x)` of kernel rows.

The weights come from the side of the inducing variables, where they are computed once a step. What is left is a kernel
evaluation and matrix products: no triangular solve against the data, and nothing that grows with :math:`C^2`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .component_group import ComponentGroup


def project_sum(
    group: ComponentGroup, x: Tensor, shared_weights: Tensor, block_weights: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    r"""
    Projections of a group, reduced over its components as the moments of the predictor need them.

    :param group: The components.
    :param x: Inputs ``(*batch, n, D)``.
    :param shared_weights: ``(*batch, C_g, M, S)``, summed over components after projection.
    :param block_weights: ``(*batch, C_g, M, r)``, squared and summed over components and columns; None for none.
    :return: :math:`\sum_c W_c^\top k_c` as ``(*batch, S, n)``, and :math:`\sum_{c, j} (V_c^\top k_c)_j^2` as
        ``(*batch, n)`` or None.
    """
    covariance = group.cross_covariance(x)
    # One matrix product over the stacked inducing points of all components of the group.
    shared = shared_weights.flatten(-3, -2).mT @ covariance.flatten(-3, -2)
    if block_weights is None:
        return shared, None
    return shared, _SumOfSquares.apply(block_weights.mT @ covariance)


class _SumOfSquares(torch.autograd.Function):
    """
    Sum of squares over the components and columns of ``(*batch, C_g, r, n)``.

    The projections are the largest tensor of a step. Autograd's backward of a square and a sum sweeps over it four
    times and keeps temporaries of its size; this one sweeps once.
    """

    @staticmethod
    def forward(ctx: Any, projections: Tensor) -> Tensor:
        ctx.save_for_backward(projections)
        return projections.square().sum((-3, -2))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (projections,) = ctx.saved_tensors
        return projections * (2 * grad)[..., None, None, :]


def project_components(
    group: ComponentGroup, x: Tensor, shared_weights: Tensor, block_weights: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    r"""
    Projections of a group, each component for itself.

    :param group: The components.
    :param x: Inputs ``(*batch, n, D)``.
    :param shared_weights: ``(*batch, C_g, M, S)``.
    :param block_weights: ``(*batch, C_g, M, r)``, or None.
    :return: :math:`W_c^\top k_c` as ``(*batch, C_g, S, n)``, and :math:`V_c^\top k_c` as ``(*batch, C_g, r, n)`` or
        None.
    """
    covariance = group.cross_covariance(x)
    block = None if block_weights is None else block_weights.mT @ covariance
    return shared_weights.mT @ covariance, block


def whitened_weights(cholesky: Tensor, columns: Tensor) -> Tensor:
    r"""
    Weights :math:`L_c^{-\top} G_c`, whose projection is :math:`G_c^\top \phi_c(\mathbf x)` with features
    :math:`\phi_c(\mathbf x) = L_c^{-1} k_c(Z_c, \mathbf x)`.

    :param cholesky: :math:`L_c`, ``(*batch, C_g, M, M)``.
    :param columns: :math:`G_c`, ``(*batch, C_g, M, k)``.
    :return: ``(*batch, C_g, M, k)``.
    """
    return torch.linalg.solve_triangular(cholesky.mT, columns, upper=True)
