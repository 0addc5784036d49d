"""Evaluation of GPyTorch's kernels to plain tensors, and the factors of products of kernels."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from gpytorch.kernels import Kernel, ProductKernel, ScaleKernel
from gpytorch.settings import lazily_evaluate_kernels
from linear_operator import to_dense
from torch import Tensor


def evaluate(kernel: Kernel, x1: Tensor, x2: Tensor | None = None, diag: bool = False) -> Tensor:
    """
    The kernel matrix ``(*batch, n, m)`` of inputs ``(*batch, n, d)`` and ``(*batch, m, d)`` (by default the first ones)
    in their dtype, whatever that of the hyperparameters; or with ``diag``, for n = m, its diagonal ``(*batch, n)``.
    """
    if diag:
        # GPyTorch takes a batch of diagonals for a matrix where there are as many as rows, unless the inputs have all
        # of the batch dimensions.
        shapes = [x.shape[:-2] for x in (x1, x2) if x is not None]
        batch_shape = torch.broadcast_shapes(kernel.batch_shape, *shapes)
        x1 = x1.expand(*batch_shape, *x1.shape[-2:])
        x2 = None if x2 is None else x2.expand(*batch_shape, *x2.shape[-2:])
    try:
        return _dense(kernel, x1, x2, diag).to(x1.dtype)
    except RuntimeError:
        # Most kernels promote their hyperparameters to the dtype of the inputs; those with matrix products inside
        # (random features, neural networks) do not, and are called with promoted hyperparameters.
        plain = _PlainKernel(kernel)
        tensors = dict(itertools.chain(plain.named_parameters(), plain.named_buffers()))
        others = {name: t for name, t in tensors.items() if t.is_floating_point() and t.dtype != x1.dtype}
        if not others:
            raise
        converted = {name: tensor.to(x1.dtype) for name, tensor in others.items()}
        return torch.func.functional_call(plain, converted, (x1, x2, diag))


def _dense(kernel: Kernel, x1: Tensor, x2: Tensor | None, diag: bool) -> Tensor:
    """
    What a call of the kernel returns, as a plain tensor. GPyTorch's lazy matrix is left out: it reads the batch shapes
    of all kernels inside several times, which takes a fifth of the time of a small matrix.
    """
    with lazily_evaluate_kernels(False):
        matrix = to_dense(kernel(x1, x2, diag=diag))
    if not diag:
        left, right = x1.shape, (x1 if x2 is None else x2).shape
        batch_shape = torch.broadcast_shapes(kernel.batch_shape, left[:-2], right[:-2])
        expected = torch.Size((*batch_shape, left[-2], right[-2]))
        if matrix.shape != expected:
            raise RuntimeError(
                f"{type(kernel).__name__} must give a matrix of shape {tuple(expected)} for inputs of shapes "
                f"{tuple(left)} and {tuple(right)}, got {tuple(matrix.shape)}"
            )
    return matrix


class _PlainKernel(torch.nn.Module):
    """A kernel whose call returns a plain matrix, with the hyperparameters of that call."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.kernel = kernel

    def forward(self, x1: Tensor, x2: Tensor | None, diag: bool) -> Tensor:
        """The matrix, or the diagonal."""
        return _dense(self.kernel, x1, x2, diag)


def factors(kernel: Kernel, num_columns: int) -> list[tuple[Kernel, list[int]]]:
    """The factors of a product of kernels, or the kernel itself, without scales, and the columns that each reads."""
    return list(_factors(kernel, list(range(num_columns))))


def _factors(kernel: Kernel, columns: list[int]) -> Iterator[tuple[Kernel, list[int]]]:
    if kernel.active_dims is not None:
        columns = [columns[index] for index in kernel.active_dims.tolist()]
    while type(kernel) is ScaleKernel:  # it has taken over the active_dims of its base kernel
        kernel = kernel.base_kernel
    if type(kernel) is ProductKernel:
        for factor in kernel.kernels:
            yield from _factors(factor, columns)
    else:
        yield kernel, columns
