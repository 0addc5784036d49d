"""Cholesky factors and triangular solves that do not wait for a GPU in a training step."""

from __future__ import annotations

import torch
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from .transforms import is_vmapped

# From this ratio of columns to rows on, the right-hand sides of a triangular solve are those of rows of data.
_WIDE = 4


def cholesky(matrix: Tensor) -> Tensor:
    """
    The lower Cholesky factor of ``(*batch, k, k)`` that is positive definite but for rounding, as the identity plus a
    square is. On a GPU, and inside of ``torch.vmap``, a matrix without a factor gives NaN instead of an error.
    """
    if matrix.device.type != "cpu" or is_vmapped(matrix):
        return cholesky_or_nan(matrix)
    if _holds_positive_numbers(matrix):
        return matrix.sqrt()  # faster, as LAPACK is called for each matrix
    return torch.linalg.cholesky(matrix)


def safe_cholesky(matrix: Tensor) -> Tensor:
    """
    The lower Cholesky factor of ``(*batch, k, k)``, with as much jitter as it needs. To know that, a GPU must be waited
    for: with gradients on a GPU, as in a training step, nothing is added, and a matrix without a factor gives NaN.
    """
    on_hot_path = matrix.device.type != "cpu" and torch.is_grad_enabled()
    if on_hot_path or is_vmapped(matrix):
        return cholesky_or_nan(matrix)
    if _holds_positive_numbers(matrix):
        return matrix.sqrt()
    return psd_safe_cholesky(matrix)


def _holds_positive_numbers(matrix: Tensor) -> bool:
    """Whether the matrices are ``1 x 1`` and positive. A compiled graph cannot depend on values."""
    return matrix.shape[-1] == 1 and not torch.compiler.is_compiling() and bool((matrix > 0).all())


def cholesky_or_nan(matrix: Tensor) -> Tensor:
    """The lower Cholesky factor of ``(*batch, k, k)``, NaN where there is none."""
    if matrix.shape[-1] == 1:
        return torch.where(matrix > 0, matrix, torch.nan).sqrt()
    factor, info = torch.linalg.cholesky_ex(matrix)
    return factor.masked_fill((info != 0)[..., None, None], torch.nan)


def triangular_solve(lower: Tensor, columns: Tensor, transpose: bool = False) -> Tensor:
    r""":math:`L^{-1} X`, or :math:`L^{-\top} X` if ``transpose``, for L ``(*batch, k, k)`` and X ``(*batch, k, m)``."""
    if lower.shape[-1] == 1:
        return columns / lower  # faster, as LAPACK is called for each matrix
    if columns.shape[-1] > _WIDE * columns.shape[-2] and columns.is_contiguous():
        # In row-major order, which a solve from the left would return in columns: rows are copied by nobody.
        right = lower if transpose else lower.mT
        return torch.linalg.solve_triangular(right, columns.mT, upper=not transpose, left=False).mT
    return torch.linalg.solve_triangular(lower.mT if transpose else lower, columns, upper=transpose)


def solve_in_blocks(cholesky: Tensor, columns: Tensor, transpose: bool = False) -> Tensor:
    """
    :func:`triangular_solve` for columns ``(*batch, C, M, m)`` and block-diagonal matrices given as all their blocks,
    ``(*batch, num_blocks, size, size)``, with C M equal to ``num_blocks`` times ``size``.
    """
    shape = columns.shape[-3:-1]
    if shape == cholesky.shape[-3:-1]:
        return triangular_solve(cholesky, columns, transpose)
    blocks = columns.flatten(-3, -2).unflatten(-2, cholesky.shape[-3:-1])
    return triangular_solve(cholesky, blocks, transpose).flatten(-3, -2).unflatten(-2, shape)
