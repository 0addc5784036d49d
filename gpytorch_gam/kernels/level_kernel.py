"""The covariance of independent levels of a category."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from gpytorch.kernels import Kernel
from gpytorch.settings import debug
from torch import Tensor

from ._base_kernels import one_column, result_dtype

# Whole numbers up to this one are told apart in float32.
LARGEST_CODE = 2.0**24


class LevelKernel(Kernel):
    r"""
    The kernel of independent and identically distributed levels of a category, which are numbers in one column of the
    input:

    .. math::

        k(a, b) = 1 \text{ if } a = b \text{ else } 0.

    Inside a :class:`~gpytorch.kernels.ScaleKernel` it is a random intercept with a learnt variance; times a kernel of
    another column, one function a level with hyperparameters in common; inside a
    :class:`~gpytorch_gam.kernels.CentredKernel` over all levels, a factor whose effects sum to zero. The levels are any
    numbers. Levels that occur only at prediction are independent of all others and have the prior variance.

    Numbers are compared in single precision, so that .1 is one level in float32 and float64 alike. Whole numbers beyond
    :math:`2^{24}` would run into one another and need new codes (with :class:`gpytorch.settings.debug`, and on the CPU,
    they raise an error). NaN equals nothing: it is a new level in each row, with 1 on the diagonal of the matrix of one
    set of inputs all the same.

    There are no parameters, so the batch shape is always ``()`` and the result has the batch shape and the dtype of the
    inputs. As levels are names, the kernel does not count as stationary.

    :param active_dims: The column of the input that the kernel reads, if the input has several.
    :raises ValueError: When called, if x has more than one column, or contains numbers beyond :math:`2^{24}`.

    Example:
        >>> kernel = ScaleKernel(LevelKernel())
        >>> kernel(torch.tensor([[0.0], [1.0], [0.0]])).to_dense()
        tensor([[0.6931, 0.0000, 0.6931],
                [0.0000, 0.6931, 0.0000],
                [0.6931, 0.0000, 0.6931]], grad_fn=<MulBackward0>)
    """

    is_stationary = False

    def __init__(self, active_dims: tuple[int, ...] | None = None) -> None:
        super().__init__(active_dims=active_dims)

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        """The kernel of inputs ``(*batch, n, d)`` and ``(*batch, m, d)``; see :class:`gpytorch.kernels.Kernel`."""
        column1, column2 = level_column(self, x1, params), level_column(self, x2, params)
        return same_level(column1, column2, diag, x1_is_x2=x2 is x1).to(result_dtype(x1, x2))

    def expand_batch(self, *sizes: Any) -> Kernel:
        """The kernel itself, which has no parameters to expand."""
        return self

    def __getitem__(self, index: Any) -> Kernel:
        """The kernel itself, which has no parameters to index."""
        return self


def level_column(kernel: Kernel, x: Tensor, params: Mapping[str, Any]) -> Tensor:
    """The only column ``(*batch, n)`` of inputs, in float32; more columns, and huge numbers, are a ValueError."""
    column = one_column(kernel, x, params)
    if debug.on() and column.device.type == "cpu" and bool((column.abs() > LARGEST_CODE).any()):
        raise ValueError(
            f"{type(kernel).__name__}: x has the level {column[column.abs() > LARGEST_CODE][0].item():.17g}, but "
            f"levels beyond {LARGEST_CODE:.0f} in magnitude cannot be told apart in float32; number them from 0"
        )
    return column.float()


def same_level(x1: Tensor, x2: Tensor, diag: bool, x1_is_x2: bool) -> Tensor:
    """
    Whether levels ``(*batch, n)`` and ``(*batch, m)`` are the same: ``(*batch, n, m)``, or the diagonal. NaN is equal
    to NaN on the diagonal, and equal to itself where the two are the same rows.
    """
    if diag:
        return (x1 == x2) | (x1.isnan() & x2.isnan())
    same = x1.unsqueeze(-1) == x2.unsqueeze(-2)
    return same | torch.eye(x1.shape[-1], dtype=torch.bool, device=x1.device) if x1_is_x2 else same
