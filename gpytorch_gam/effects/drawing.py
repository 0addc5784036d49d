"""Draws of components from a posterior or from their prior."""

from __future__ import annotations

import torch
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from gpytorch_gam.components import ComponentGroup
from gpytorch_gam.components.group_projection import squares_at_points
from gpytorch_gam.numerics.capacitance import add_identity
from gpytorch_gam.numerics.triangular import solve_in_blocks

# Jitter on the covariance of a draw, relative to the prior variance.
_RELATIVE_JITTER = 1e-8


def allotted(weights: Tensor, num: int) -> list[int]:
    """How many of some draws come from each of several models, by their weights ``(K,)``."""
    ends = (weights.cumsum(0) * num).round().long()
    return ends.diff(prepend=ends.new_zeros(1)).tolist()


def draw_given_inducing(group: ComponentGroup, x: Tensor, cholesky: Tensor, whitened: Tensor) -> Tensor:
    r"""
    Draw :math:`f_c \mid \mathbf v_c \sim N(\phi_c^\top \mathbf v_c, k_c - \phi_c^\top \phi_c)` in float64,
    ``(*sample_shape, *batch, C_g, n)``, from :math:`\mathbf v_c`, ``(*sample_shape, *batch, num_blocks, size, 1)``.
    """
    inputs = group.select(x).double()
    covariance = group.evaluate_kernel(group.inducing_points.double(), inputs)
    features = solve_in_blocks(cholesky, covariance)
    own = whitened.flatten(-3).unflatten(-1, (group.num_components, group.num_inducing))
    mean, multiplier = multiply_draws(features.mT, own), group.multiplier(x)
    is_free = group.undetermined_rows(x, cholesky) if group.exact else None
    if is_free is None or is_free.any():
        prior = group.evaluate_kernel(inputs)
        root = sampling_root(prior - features.mT @ features, prior)
        if is_free is not None:
            root = root * is_free.unsqueeze(-1)
        mean = mean + multiply_draws(root, torch.randn(mean.shape, dtype=mean.dtype, device=mean.device))
    mean = mean if multiplier is None else mean * multiplier
    missing = _missing_variance(group, x, cholesky, whitened)
    if missing is None:
        return mean
    # Kept above zero for the gradient of the root, which is masked where no variance is missing.
    own_scale = missing.clamp_min(torch.finfo(missing.dtype).tiny).sqrt() * (missing > 0)
    return mean + own_scale * torch.randn_like(mean)


def _missing_variance(group: ComponentGroup, x: Tensor, cholesky: Tensor, whitened: Tensor) -> Tensor | None:
    """See :meth:`ComponentGroup.missing_variance`, with the factors of each draw; None if no values may be missing."""
    if group.missing == "error":
        return None
    squares = squares_at_points(group, cholesky, whitened).squeeze(-1)
    return group.missing_variance(x, squares / squares_at_points(group, cholesky).sum(-1))


def sampling_root(covariance: Tensor, prior: Tensor) -> Tensor:
    """A Cholesky factor of a covariance ``(*batch, n, n)`` with a jitter relative to the prior variance."""
    scale = prior.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None].clamp_min(torch.finfo(prior.dtype).tiny)
    return psd_safe_cholesky(add_identity(covariance / (_RELATIVE_JITTER * scale))) * (_RELATIVE_JITTER * scale).sqrt()


def multiply_draws(matrix: Tensor, draws: Tensor) -> Tensor:
    """Multiply each draw ``(*sample_shape, *batch, m)`` by a matrix ``(*batch, k, m)``, which is not copied for it."""
    num_leading = draws.dim() - matrix.dim() + 1
    if num_leading <= 0:
        return (matrix @ draws.unsqueeze(-1)).squeeze(-1)
    columns = draws.flatten(0, num_leading - 1).movedim(0, -1)
    return (matrix @ columns).movedim(-1, 0).unflatten(0, draws.shape[:num_leading])
