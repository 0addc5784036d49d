"""Kernels between any rows, for posteriors without inducing variables."""

from __future__ import annotations

import torch
from torch import Tensor

from gpytorch_gam.components import ComponentGroup
from gpytorch_gam.effects.drawing import multiply_draws, sampling_root
from gpytorch_gam.numerics.triangular import solve_in_blocks


def component_covariance(group: ComponentGroup, left: Tensor, right: Tensor | None = None) -> Tensor:
    """
    Prior covariance of a group's components between any rows, ``by`` multipliers included, ``(*batch, C_g, n, m)`` in
    the dtype of ``left``. Exact groups are evaluated through their inducing variables.
    """
    if group.exact:
        cholesky = group.inducing_cholesky(0.0)
        features = features_in_dtype_of(group, left, cholesky)
        return features.mT @ (features if right is None else features_in_dtype_of(group, right, cholesky))
    covariance = group.evaluate_kernel(group.select(left), None if right is None else group.select(right))
    covariance = scale_by_multipliers(group, covariance, left, dim=-2)
    return scale_by_multipliers(group, covariance, left if right is None else right, dim=-1)


def sample_prior(group: ComponentGroup, x: Tensor, sample_shape: torch.Size) -> Tensor:
    """Draws of the components of a group from their prior, ``(*sample_shape, *batch, C_g, n)``, float64."""
    if group.exact and not group.undetermined_rows(x, group.inducing_cholesky(0.0)).any():
        root = features_in_dtype_of(group, x, group.inducing_cholesky(0.0)).mT
        multiplier = None  # the features contain it
    else:
        prior = group.evaluate_kernel(group.select(x))
        root = sampling_root(prior, prior)
        multiplier = group.multiplier(x)
    batch = torch.broadcast_shapes(x.shape[:-2], root.shape[:-3])
    noise = torch.randn(*sample_shape, *batch, *root.shape[-3:-2], root.shape[-1], dtype=x.dtype, device=x.device)
    values = multiply_draws(root, noise)
    return values if multiplier is None else values * multiplier


def scale_by_multipliers(group: ComponentGroup, covariance: Tensor, x: Tensor, dim: int) -> Tensor:
    """Multiply a covariance ``(*batch, C_g, k, n)`` by the ``by`` columns of the rows of x along ``dim``, -1 or -2."""
    multiplier = group.multiplier(x)
    return covariance if multiplier is None else covariance * multiplier.unsqueeze(-1 if dim == -2 else -2)


def features_in_dtype_of(group: ComponentGroup, x: Tensor, cholesky: Tensor) -> Tensor:
    r"""Features :math:`L_c^{-1} k_c(Z_c, \mathbf x)`, ``(*batch, C_g, M, n)``, with multipliers, in the dtype of x."""
    covariance = group.evaluate_kernel(group.inducing_points.to(x.dtype), group.select(x))
    covariance = scale_by_multipliers(group, covariance, x, dim=-1)
    return solve_in_blocks(cholesky.to(x.dtype), covariance)
