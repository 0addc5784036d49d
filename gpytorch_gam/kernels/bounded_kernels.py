"""Kernels in whose batch each component has its own bounds of the lengthscale."""

from __future__ import annotations

from typing import Any

import torch
from gpytorch.constraints import Interval
from gpytorch.kernels import MaternKernel, RBFKernel

from ._batched_kernel import BatchedKernel


class _BoundedLengthscale(BatchedKernel):
    """A kernel of one lengthscale with bounds ``(*batch, 1, 1)``, which are expanded and indexed with it."""

    batched_tensors = (("raw_lengthscale", 2),)

    def _with_batch(self, batch_shape: torch.Size, index: tuple[Any, ...]) -> Any:
        new_kernel, bounds = super()._with_batch(batch_shape, index), self.raw_lengthscale_constraint
        lower, upper = (end.expand(*batch_shape, 1, 1)[index] for end in (bounds.lower_bound, bounds.upper_bound))
        new_bounds = new_kernel.raw_lengthscale_constraint
        new_bounds.lower_bound, new_bounds.upper_bound = lower, upper
        return new_kernel


class BoundedRBFKernel(_BoundedLengthscale, RBFKernel):
    """GPyTorch's RBF kernel with separate bounds for each component."""


class BoundedMaternKernel(_BoundedLengthscale, MaternKernel):
    """GPyTorch's Matern kernel with separate bounds for each component."""


class PrintableInterval(Interval):
    """GPyTorch's interval, whose ends can also be printed if there are several."""

    def __repr__(self) -> str:
        lower, upper = ([float(f"{end:.3e}") for end in bound.flatten().tolist()] for bound in self)
        return f"Interval({lower}, {upper})"


# GPyTorch's own classes and those above, but no subclass of a user, which may compute something else.
RBF_KERNELS = (RBFKernel, BoundedRBFKernel)
MATERN_KERNELS = (MaternKernel, BoundedMaternKernel)
