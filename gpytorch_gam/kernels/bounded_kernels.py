"""Kernels whose lengthscale has bounds of each component's own."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from gpytorch.constraints import Interval
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel
from torch import Tensor

from .batch_shapes import batch_index, batch_sizes


class _BoundedLengthscale(Kernel):
    """
    A kernel of one lengthscale in an interval whose ends have the kernel's batch shape, ``(*batch, 1, 1)``.

    GPyTorch indexes and expands the parameters of a kernel, but not the bounds of their constraints.
    """

    def expand_batch(self, *sizes: Any) -> Kernel:
        """A copy of the kernel with a larger batch shape; see :meth:`gpytorch.kernels.Kernel.expand_batch`.

        :param sizes: The new batch shape, to which the present one must broadcast.
        """
        batch_shape = batch_sizes(sizes)
        if batch_shape == self.batch_shape:
            return self
        return self._with_batch(batch_shape, ())

    def __getitem__(self, index: Any) -> Kernel:
        """A copy of the kernel with its batch dimensions indexed; see :meth:`gpytorch.kernels.Kernel.__getitem__`.

        :param index: An index, or a tuple of them, into the batch dimensions.
        """
        return self._with_batch(self.batch_shape, batch_index(index, len(self.batch_shape)))

    def _with_batch(self, batch_shape: torch.Size, index: tuple[Any, ...]) -> Kernel:
        def changed(tensor: Tensor) -> Tensor:
            return tensor.detach().expand(*batch_shape, 1, 1)[index]

        new_kernel, bounds = deepcopy(self), self.raw_lengthscale_constraint
        new_kernel.raw_lengthscale.data = changed(self.raw_lengthscale)
        new_bounds = new_kernel.raw_lengthscale_constraint
        new_bounds.lower_bound, new_bounds.upper_bound = changed(bounds.lower_bound), changed(bounds.upper_bound)
        new_kernel.batch_shape = new_kernel.raw_lengthscale.shape[:-2]
        return new_kernel


class BoundedRBFKernel(_BoundedLengthscale, RBFKernel):
    """GPyTorch's RBF kernel with bounds of each component's own."""


class BoundedMaternKernel(_BoundedLengthscale, MaternKernel):
    """GPyTorch's Matern kernel with bounds of each component's own."""


class PrintableInterval(Interval):
    """GPyTorch's interval, which prints its ends where there are several, too."""

    def __repr__(self) -> str:
        lower, upper = ([float(f"{end:.3e}") for end in bound.flatten().tolist()] for bound in self)
        return f"Interval({lower}, {upper})"


# Whatever the bounds: GPyTorch's own class or the one above, but none of a user's, which may compute something else.
RBF_KERNELS = (RBFKernel, BoundedRBFKernel)
MATERN_KERNELS = (MaternKernel, BoundedMaternKernel)
