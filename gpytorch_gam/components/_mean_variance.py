"""The prior variance of a component where its inputs are not known."""

from __future__ import annotations

import functools

import torch
from gpytorch.kernels import (
    CosineKernel,
    Kernel,
    PeriodicKernel,
    ProductKernel,
    RQKernel,
    ScaleKernel,
)
from torch import Tensor

from gpytorch_gam.kernels import ANOVAKernel, CentredKernel, LevelKernel, OrdinalKernel
from gpytorch_gam.kernels.bounded_kernels import MATERN_KERNELS, RBF_KERNELS
from gpytorch_gam.projection.separable_form import separable_form

# Kernels whose diagonal is one.
_CORRELATIONS = (
    *RBF_KERNELS,
    *MATERN_KERNELS,
    PeriodicKernel,
    RQKernel,
    CosineKernel,
    LevelKernel,
    OrdinalKernel,
)


def is_product_of_scales(kernel: Kernel, num_columns: int) -> bool:
    """
    Whether the mean of a kernel's diagonal is known to be the product of its output scales: whether apart from these it
    is a product of correlation functions and of normalised centred kernels, no two of these on one column.

    :param kernel: Of a component.
    :param num_columns: That the component reads.
    """
    centred: list[int] = []
    is_known = _take_apart(kernel, list(range(num_columns)), centred)
    return is_known and len(set(centred)) == len(centred)


def _take_apart(kernel: Kernel, columns: list[int], centred: list[int]) -> bool:
    if kernel.active_dims is not None:
        columns = [columns[index] for index in kernel.active_dims.tolist()]
    while type(kernel) is ScaleKernel:  # has taken over the active_dims of its base kernel
        kernel = kernel.base_kernel
    if type(kernel) is ProductKernel:
        return all(_take_apart(factor, columns, centred) for factor in kernel.kernels)
    if type(kernel) in (ANOVAKernel, CentredKernel):
        centred.extend(columns)
        return kernel.normalize
    return type(kernel) in _CORRELATIONS


def product_of_scales(kernel: Kernel) -> Tensor | float:
    """
    The product of all output scales of a kernel for which :func:`is_product_of_scales` holds.

    :param kernel: With batch shape ``(*batch, C)``.
    :return: ``(*batch, C)``, or a shape that broadcasts to it; 1.0 if there are none.
    """
    if type(kernel) is ScaleKernel:
        return kernel.outputscale * product_of_scales(kernel.base_kernel)
    if type(kernel) is ProductKernel:
        return functools.reduce(lambda left, right: left * right, map(product_of_scales, kernel.kernels))
    return 1.0


def mean_diagonal(kernel: Kernel, points: Tensor) -> Tensor:
    """
    Mean of a kernel's diagonal over points.

    :param kernel: With batch shape ``(*batch, C)``, or one that broadcasts to it.
    :param points: ``(*batch, C, M, d)``.
    :return: ``(*batch, C)``.
    """
    if points.device.type != "cpu":
        # GPyTorch's kernels compare their inputs, which waits for the device.
        form = separable_form(kernel, points, points)
        if form is not None:
            return form.variance.mean(-1)
    batch_shape = torch.broadcast_shapes(kernel.batch_shape, points.shape[:-2])
    return kernel(points.expand(*batch_shape, *points.shape[-2:]), diag=True).mean(-1)
