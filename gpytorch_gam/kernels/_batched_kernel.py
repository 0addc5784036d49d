"""Kernels with tensors of batch dimensions that GPyTorch's methods would neither expand nor index."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from gpytorch.kernels import Kernel

from .batch_shapes import index_kernel


class BatchedKernel(Kernel):
    """
    A kernel whose tensors and base kernel are expanded and indexed together. Its parameters and buffers with batch
    dimensions are named in :attr:`batched_tensors`, each with the number of its other dimensions.
    """

    batched_tensors: tuple[tuple[str, int], ...] = ()

    @property
    def batch_shape(self) -> torch.Size:
        """The common batch shape of all parts."""
        parts = self._part_shapes()
        return torch.broadcast_shapes(self._batch_shape, *parts) if parts else self._batch_shape

    @batch_shape.setter
    def batch_shape(self, value: torch.Size) -> None:
        self._batch_shape = value

    def _part_shapes(self) -> tuple[torch.Size, ...]:
        """The batch shapes of the parts, without the batch shape that was given to the constructor."""
        return ()

    def expand_batch(self, *sizes: Any) -> Kernel:
        """A copy of the kernel with a larger batch shape; see :meth:`gpytorch.kernels.Kernel.expand_batch`."""
        batch_shape = torch.Size(sizes[0] if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes)
        return self if batch_shape == self.batch_shape else self._with_batch(batch_shape, ())

    def __getitem__(self, index: Any) -> Kernel:
        """A copy of the kernel with its batch dimensions indexed; see :meth:`gpytorch.kernels.Kernel.__getitem__`."""
        batch_shape = self.batch_shape
        return self._with_batch(batch_shape, _batch_index(index, len(batch_shape))) if batch_shape else self

    def _with_batch(self, batch_shape: torch.Size, index: tuple[Any, ...]) -> Any:
        """A copy, expanded to a batch shape and then indexed."""
        new_kernel = deepcopy(self)
        for name, num_event_dims in self.batched_tensors:
            tensor, own = getattr(self, name).detach(), getattr(new_kernel, name)
            changed = tensor.expand(*batch_shape, *tensor.shape[tensor.dim() - num_event_dims :])[index]
            if isinstance(own, torch.nn.Parameter):
                own.data = changed
            else:
                setattr(new_kernel, name, changed)
        if hasattr(self, "base_kernel"):
            new_kernel.base_kernel = index_kernel(self.base_kernel, batch_shape, index)
        new_kernel.batch_shape = torch.empty(()).expand(batch_shape)[index].shape
        return new_kernel


def _batch_index(index: Any, num_batch_dims: int) -> tuple[Any, ...]:
    """The same index into batch dimensions for tensors with further dimensions behind them."""
    index = tuple(index) if isinstance(index, tuple | list) else (index,)
    is_ellipsis = [part is Ellipsis for part in index]
    if not any(is_ellipsis):
        return index
    position = is_ellipsis.index(True)
    skipped = [slice(None)] * (num_batch_dims - len(index) + 1)
    return (*index[:position], *skipped, *index[position + 1 :])
