"""The prior variance of a component where its inputs are not known."""

from __future__ import annotations

import functools
import operator

from gpytorch.kernels import CosineKernel, Kernel, PeriodicKernel, ProductKernel, RQKernel, ScaleKernel
from torch import Tensor

from gpytorch_gam.kernels import ANOVAKernel, CentredKernel, LevelKernel, OrdinalKernel
from gpytorch_gam.kernels.bounded_kernels import MATERN_KERNELS, RBF_KERNELS
from gpytorch_gam.kernels.evaluation import evaluate, factors
from gpytorch_gam.projection.separable_form import separable_form

# Kernels whose diagonal is one.
_CORRELATIONS = (*RBF_KERNELS, *MATERN_KERNELS, PeriodicKernel, RQKernel, CosineKernel, LevelKernel, OrdinalKernel)


def is_product_of_scales(kernel: Kernel, num_columns: int) -> bool:
    """
    Whether the mean of a kernel's diagonal is known to be the product of its output scales. It is if, apart from these,
    the kernel is a product of correlation functions and normalised centred kernels, no two of these on one column.
    """
    centred: list[int] = []
    for factor, columns in factors(kernel, num_columns):
        if type(factor) in (ANOVAKernel, CentredKernel):
            centred.extend(columns)
        elif type(factor) not in _CORRELATIONS:
            return False
        if not getattr(factor, "normalize", True):
            return False
    return len(set(centred)) == len(centred)


def product_of_scales(kernel: Kernel) -> Tensor | float:
    """The product of all output scales of a kernel for which :func:`is_product_of_scales` holds; 1.0 without any."""
    if type(kernel) is ScaleKernel:
        return kernel.outputscale * product_of_scales(kernel.base_kernel)
    if type(kernel) is ProductKernel:
        return functools.reduce(operator.mul, map(product_of_scales, kernel.kernels))
    return 1.0


def mean_diagonal(kernel: Kernel, points: Tensor) -> Tensor:
    """The mean of a kernel's diagonal over points ``(*batch, C, M, d)``, of shape ``(*batch, C)``."""
    if points.device.type != "cpu":
        # GPyTorch's kernels compare their inputs, which waits for the device.
        form = separable_form(kernel, points, points)
        if form is not None:
            return form.variance.mean(-1)
    return evaluate(kernel, points, diag=True).mean(-1)
