"""Batch dimensions of kernels, and states of modules whose buffers depend on the data."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import torch
from gpytorch.kernels import Kernel


def index_kernel(kernel: Kernel, batch_shape: torch.Size, index: tuple[Any, ...] = ()) -> Kernel:
    """
    A copy of a kernel, expanded to a batch shape and then indexed (without an ellipsis). GPyTorch's ``expand_batch``
    and ``__getitem__`` treat ``active_dims`` as having batch dimensions, and do not expand parts of sums and products.
    """
    if type(kernel).expand_batch is not Kernel.expand_batch:
        new_kernel = kernel.expand_batch(batch_shape)
        return new_kernel[index] if index else new_kernel
    new_kernel = deepcopy(kernel)
    num_batch_dims = len(kernel.batch_shape)
    for name, tensor in itertools.chain(
        kernel.named_parameters(recurse=False), kernel.named_buffers(recurse=False, remove_duplicate=False)
    ):
        if name != "active_dims":
            expanded = tensor.detach().expand(*batch_shape, *tensor.shape[num_batch_dims:])
            getattr(new_kernel, name).data = expanded[index]
    for owner, name, part in _children(new_kernel):
        owner._modules[name] = index_kernel(part, batch_shape, index)
    new_kernel.batch_shape = torch.empty(()).expand(batch_shape)[index].shape
    return new_kernel


def expanded(kernel: Kernel, batch_shape: torch.Size) -> Kernel:
    """A copy of a kernel with a larger batch shape, each entry with hyperparameters of its own."""
    new_kernel = index_kernel(kernel, batch_shape)
    for tensor in (*new_kernel.parameters(), *new_kernel.buffers()):
        tensor.data = tensor.data.contiguous()  # expanded tensors share their memory, and cannot be trained or loaded
    return new_kernel


def resize_for_state(module: torch.nn.Module, dims: dict[str, int], state_dict: dict[str, Any], prefix: str) -> None:
    """
    Resize the buffers of a module to the number of points in a state, which may depend on the data. ``dims`` has, for
    each buffer, the dimension that counts the points; names in the state begin with ``prefix``.
    """
    for name, dim in dims.items():
        buffer, saved = getattr(module, name), state_dict.get(prefix + name)
        if saved is not None and saved.dim() == buffer.dim():
            shape = list(buffer.shape)
            shape[dim] = saved.shape[dim]
            setattr(module, name, buffer.new_zeros(shape) if buffer.shape != torch.Size(shape) else buffer)


def _children(kernel: Kernel) -> Iterator[tuple[torch.nn.Module, str, Kernel]]:
    """The kernels directly inside of another, as attributes or in a list, each with its owner and name there."""
    for owner in [kernel, *(child for child in kernel.children() if isinstance(child, torch.nn.ModuleList))]:
        for name, part in list(owner.named_children()):
            if isinstance(part, Kernel):
                yield owner, name, part
