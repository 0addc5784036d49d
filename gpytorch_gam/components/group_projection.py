r"""
Projections :math:`W_c^\top k_c(Z_c, \mathbf x)` of kernel rows: all the work that grows with the number of rows.

The weights depend on the inducing variables alone and are computed once a step. For the rows there remain a kernel
evaluation and matrix products: no triangular solve against the data, and nothing that grows with :math:`C^2`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpytorch_gam import settings
from gpytorch_gam.numerics.transforms import is_transformed
from gpytorch_gam.numerics.triangular import triangular_solve
from gpytorch_gam.projection import triton_projection
from gpytorch_gam.projection.blockwise import (
    BlockwiseProjection,
    ProjectionBackend,
    ProjectionInputs,
    fused_projection,
    kernel_values,
)
from gpytorch_gam.projection.separable_form import separable_form

from .component_group import ComponentGroup


class SummedProjection(NamedTuple):
    """Projections of a group, reduced over its components as the moments of the predictor need them."""

    shared: Tensor  # sum over c of W_c' k_c, (*batch, S, n)
    squares: Tensor | None  # sum over c and j of (V_c' k_c)_j^2, (*batch, n); None without block weights
    prior_variance: Tensor  # sum over c of k_c(x, x), (*batch, n), see ComponentGroup.observed_variance


class ComponentProjection(NamedTuple):
    """Projections of a group, separately for each component."""

    shared: Tensor  # W_c' k_c, (*batch, C_g, S, n)
    block: Tensor | None  # V_c' k_c in the directions of all blocks, (*batch, C_g, r, n); None without block weights
    prior_variance: Tensor  # k_c(x, x), (*batch, C_g, n), see ComponentGroup.observed_variance


def whitened_weights(cholesky: Tensor, columns: Tensor) -> Tensor:
    r"""
    Weights :math:`L_c^{-\top} G_c`, ``(*batch, num_blocks, size, k)`` as :math:`G_c`, whose projection is
    :math:`G_c^\top \phi_c(\mathbf x)` with features :math:`\phi_c(\mathbf x) = L_c^{-1} k_c(Z_c, \mathbf x)`.
    """
    return triangular_solve(cholesky, columns, transpose=True)


def project_sum(
    group: ComponentGroup, x: Tensor, shared_weights: Tensor, block_weights: Tensor | None
) -> SummedProjection:
    """
    Projections of a group at ``x``, ``(*batch, n, D)``, summed over components, see
    :class:`~gpytorch_gam.settings.fused_projection`: those on the shared weights, ``(*batch, num_blocks, size, S)``, as
    they are, those on the directions that each block has for itself, ``(*batch, num_blocks, size, r)``, as squares.
    """
    squares = None
    if settings.fused_projection.value() != "off":
        rows = group.level_rows(x)
        if rows is not None:
            shared = rows.project(by_component(group, shared_weights)).sum(-3).mT
            if block_weights is not None:
                squares = rows.project(by_component(group, block_weights)).square().sum((-3, -1))
            return SummedProjection(shared, squares, group.observed_variance(x).sum(-2))
        fused = _fused_inputs(group, x, shared_weights, block_weights)
        if fused is not None:
            inputs, variance = fused
            return SummedProjection(*fused_projection(inputs, _backend_for(inputs)), variance)
    covariance = group.cross_covariance(x)
    # One matrix product over the stacked inducing points of all components of the group.
    shared = shared_weights.flatten(-3, -2).mT @ covariance.flatten(-3, -2)
    if block_weights is not None:
        squares = _sum_of_squares(own_directions(block_weights, covariance))
    return SummedProjection(shared, squares, group.observed_variance(x).sum(-2))


def project_components(
    group: ComponentGroup, x: Tensor, shared_weights: Tensor, block_weights: Tensor | None
) -> ComponentProjection:
    """Projections of a group, separately for each component. Arguments are those of :func:`project_sum`."""
    covariance, prior_variance = _covariance_and_variance(group, x)
    block = None if block_weights is None else own_directions(block_weights, covariance)
    return ComponentProjection(by_component(group, shared_weights).mT @ covariance, block, prior_variance)


def _fused_inputs(
    group: ComponentGroup, x: Tensor, shared_weights: Tensor, block_weights: Tensor | None
) -> tuple[ProjectionInputs, Tensor] | None:
    """The inputs of the fused projection, and the prior variance ``(*batch, n)``; None for the plain path."""
    form = None
    if not is_transformed():
        form = separable_form(group.kernel, group.inducing_points.to(x.dtype), group.select(x))
    if form is None:
        return None
    batch_shape = form.variance.shape[:-1]  # includes the components
    weights = [None if part is None else _with_batch(part, batch_shape) for part in (shared_weights, block_weights)]
    if weights[0] is None or (weights[1] is None) != (block_weights is None):
        return None  # several posteriors share a kernel, which the plain path evaluates only once
    multiplier, variance = group.multiplier(x), form.variance
    if multiplier is not None:
        multiplier = multiplier.expand(*batch_shape, multiplier.shape[-1])
        variance = variance * multiplier.square()
    return ProjectionInputs(form.factors, weights[0], weights[1], multiplier), variance.sum(-2)


def _with_batch(weights: Tensor, batch_shape: torch.Size) -> Tensor | None:
    """The weights with these batch dimensions; None if they have more of their own."""
    if torch.broadcast_shapes(weights.shape[:-2], batch_shape) != batch_shape:
        return None
    return weights.expand(*batch_shape, *weights.shape[-2:])


def _backend_for(inputs: ProjectionInputs) -> ProjectionBackend:
    choice = settings.fused_projection.value()
    if choice == "blockwise" or not triton_projection.supports(inputs):
        return BlockwiseProjection()
    device = inputs.shared.device
    is_chosen = choice == "triton" or (device.type == "cuda" and triton_projection.works_on(device))
    return triton_projection.TritonProjection() if is_chosen else BlockwiseProjection()


def _covariance_and_variance(group: ComponentGroup, x: Tensor) -> tuple[Tensor, Tensor]:
    """The kernel between inducing points and data, ``(*batch, C_g, M, n)``, and at the data, ``(*batch, C_g, n)``."""
    form = None
    # With gradients, the kernels' own functions keep less for the backward pass.
    if not torch.is_grad_enabled() and settings.fused_projection.value() != "off":
        form = separable_form(group.kernel, group.inducing_points.to(x.dtype), group.select(x))
    if form is None:
        return group.cross_covariance(x), group.observed_variance(x)
    covariance, variance, multiplier = kernel_values(form.factors), form.variance, group.multiplier(x)
    if multiplier is not None:
        covariance, variance = covariance * multiplier.unsqueeze(-2), variance * multiplier.square()
    return covariance, variance


def unknown_variance(
    group: ComponentGroup,
    cholesky: Tensor,  # L_c, (*batch, num_blocks, size, size)
    columns: Tensor,  # coupled directions, then the mean, of the whitened variables, (*batch, num_blocks, size, R + 1)
    block: Tensor | None,  # directions of each block's own, (*batch, num_blocks, size, r)
    sign: int,
) -> Tensor:  # (*batch, C_g)
    r"""
    The posterior mean of :math:`f_c^2` over the inducing points, relative to its prior mean: the factor of
    :meth:`ComponentGroup.missing_variance` in predictions. In float64.
    """
    squares = squares_at_points(group, cholesky, columns)
    prior = squares_at_points(group, cholesky).sum(-1)
    total = prior + sign * squares[..., :-1].sum(-1) + squares[..., -1]
    if block is not None:
        total = total - squares_at_points(group, cholesky, block).sum(-1)
    return total.clamp_min(0.0) / prior


def squares_at_points(group: ComponentGroup, cholesky: Tensor, columns: Tensor | None = None) -> Tensor:
    r"""
    Sums over the inducing points of squares of the values :math:`L_c G_c` of whitened variables, ``(*batch, C_g, k)``,
    for the columns of :math:`G_c`, ``(*batch, num_blocks, size, k)``; default the identity.
    """
    values = cholesky if columns is None else cholesky @ columns
    return by_component(group, values).square().sum(-2)


def by_component(group: ComponentGroup, weights: Tensor) -> Tensor:
    """Weights ``(*batch, C_g, M, k)`` from those of the blocks, ``(*batch, num_blocks, size, k)``."""
    return weights.flatten(-3, -2).unflatten(-2, (group.num_components, group.num_inducing))


def own_directions(
    block_weights: Tensor,  # (*batch, num_blocks, size, r)
    covariance: Tensor,  # (*batch, C_g, M, n)
) -> Tensor:  # (*batch, C_g, num_blocks / C_g * r, n)
    """Projections ``(*batch, C_g, r, n)`` on the directions of all blocks of each component."""
    num_blocks, size = block_weights.shape[-3:-1]
    num_components, num_inducing = covariance.shape[-3:-1]
    if size == num_inducing:
        return block_weights.mT @ covariance
    parts = block_weights.mT @ covariance.flatten(-3, -2).unflatten(-2, (num_blocks, size))
    return parts.flatten(-3, -2).unflatten(-2, (num_components, -1))


def _sum_of_squares(projections: Tensor) -> Tensor:
    """The sum of squares over the components and columns of ``(*batch, C_g, r, n)``."""
    return projections.square().sum((-3, -2)) if is_transformed(projections) else _SumOfSquares.apply(projections)


class _SumOfSquares(torch.autograd.Function):
    """
    The sum of squares with a backward pass of its own, which sweeps once over the projections, the largest tensor of a
    step. That of autograd would sweep four times, keeping temporaries of their size.
    """

    @staticmethod
    def forward(ctx: Any, projections: Tensor) -> Tensor:
        ctx.save_for_backward(projections)
        return projections.square().sum((-3, -2))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (projections,) = ctx.saved_tensors
        return projections * (2 * grad)[..., None, None, :]
