"""
Tensor functions for the identity plus a low-rank term, ``I + W W'`` with ``W`` of shape ``(*batch, Q, R)``.

Everything goes through the capacitance ``A = I + W' W`` of size ``R x R`` and its Cholesky factor ``A = L L'``. With

.. math::

    \\mathbf F = \\mathbf I + \\mathbf W (\\mathbf I + \\mathbf L)^{-1} \\mathbf W^\\top ,
    \\qquad
    \\mathbf F^{-\\top} = \\mathbf I - \\mathbf W \\mathbf L^{-\\top} (\\mathbf I + \\mathbf L)^{-1} \\mathbf W^\\top ,

one has ``F F' = I + W W'`` and ``F^-T F^-1 = (I + W W')^-1``: insert ``W' W = L L' - I``. ``I + L`` is lower triangular
with a diagonal of at least two, so these roots need no eigendecomposition (whose gradient does not exist where
eigenvalues repeat, and here ``Q - R`` of them always do).

All functions broadcast over leading dimensions, are differentiable and allow ``R = 0`` and ``R > Q``. The cost is
``O(Q R^2 + R^3)`` for :func:`capacitance_cholesky` and ``O(Q R k + R^2 k)`` for a product with ``k`` columns.
"""

from __future__ import annotations

import torch
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor


def capacitance_cholesky(low_rank: Tensor) -> Tensor:
    """The lower Cholesky factor ``L``, ``(*batch, R, R)``, of ``A = I + W' W``; its diagonal is at least one."""
    return psd_safe_cholesky(add_identity(low_rank.mT @ low_rank))


def capacitance_log_determinant(capacitance_root: Tensor) -> Tensor:
    """``log |A| = log |I + W W'|``, ``(*batch)``, from ``L``."""
    return 2.0 * capacitance_root.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def explained_factor(low_rank: Tensor, capacitance_root: Tensor) -> Tensor:
    """``H = W L^-T``, ``(*batch, Q, R)``, whose square the inverse subtracts: ``(I + W W')^-1 = I - H H'``."""
    if capacitance_root.shape[-1] == 1:
        return low_rank / capacitance_root
    return torch.linalg.solve_triangular(capacitance_root.mT, low_rank, upper=True, left=False)


def low_rank_solve(low_rank: Tensor, capacitance_root: Tensor, x: Tensor) -> Tensor:
    """``(I + W W')^-1 x = x - W A^-1 W' x`` (Woodbury), for ``x`` of shape ``(*batch, Q, k)``."""
    return x - low_rank @ torch.cholesky_solve(low_rank.mT @ x, capacitance_root)


def root_product(low_rank: Tensor, capacitance_root: Tensor, x: Tensor, transpose: bool = False) -> Tensor:
    """``F x``, or ``F' x`` if ``transpose``, for ``x`` of shape ``(*batch, Q, k)``; ``F F' = I + W W'``."""
    shifted = add_identity(capacitance_root)
    # F x = x + W (I + L)^-1 W' x,   F' x = x + W (I + L)^-T W' x
    inner = _triangular_solve(shifted, low_rank.mT @ x, transpose)
    return x + low_rank @ inner


def root_solve(low_rank: Tensor, capacitance_root: Tensor, x: Tensor, transpose: bool = False) -> Tensor:
    """``F^-1 x``, or ``F^-T x`` if ``transpose``, for ``x`` of shape ``(*batch, Q, k)``."""
    shifted = add_identity(capacitance_root)
    inner = low_rank.mT @ x
    if transpose:
        # F^-T x = x - W L^-T (I + L)^-1 W' x
        inner = _triangular_solve(capacitance_root, _triangular_solve(shifted, inner), transpose=True)
    else:
        # F^-1 x = x - W (I + L)^-T L^-1 W' x
        inner = _triangular_solve(shifted, _triangular_solve(capacitance_root, inner), transpose=True)
    return x - low_rank @ inner


def add_identity(matrix: Tensor) -> Tensor:
    """``I + matrix``, for ``(*batch, k, k)``."""
    return matrix + torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)


def _triangular_solve(lower: Tensor, x: Tensor, transpose: bool = False) -> Tensor:
    return torch.linalg.solve_triangular(lower.mT if transpose else lower, x, upper=transpose)
