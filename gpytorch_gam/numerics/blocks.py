"""Tensor functions for ragged block-diagonal matrices given by lower-triangular blocks.

A matrix of size ``Q x Q`` is given as a list of tensors, the g-th of shape ``(*batch, C_g, M_g, M_g)``: ``C_g``
consecutive diagonal blocks of size ``M_g``, so that ``Q`` is the sum of ``C_g M_g``. Blocks of equal size are handled
by one batched call, so the Python loops below run over the few groups and never over single blocks. Entries above a
block's diagonal are never read.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from .triangular import triangular_solve


def total_size(factors: Sequence[Tensor]) -> int:
    """Size ``Q`` of the matrix."""
    return sum(factor.shape[-3] * factor.shape[-1] for factor in factors)


def split_rows(x: Tensor, factors: Sequence[Tensor]) -> list[Tensor]:
    """Cut the rows of ``(*batch, Q, k)`` into one ``(*batch, C_g, M_g, k)`` a group."""
    parts = x.split([factor.shape[-3] * factor.shape[-1] for factor in factors], dim=-2)
    return [part.unflatten(-2, factor.shape[-3:-1]) for part, factor in zip(parts, factors, strict=True)]


def join_rows(parts: Sequence[Tensor]) -> Tensor:
    """Inverse of :func:`split_rows`."""
    return torch.cat([part.flatten(-3, -2) for part in parts], dim=-2)


def block_product(factors: Sequence[Tensor], x: Tensor, transpose: bool = False) -> Tensor:
    """``L x``, or ``L' x`` if ``transpose``, for ``x`` of shape ``(*batch, Q, k)``; ``O(C M^2 k)``."""
    lower = [factor.tril() for factor in factors]
    parts = split_rows(x, factors)
    return join_rows([(L.mT if transpose else L) @ part for L, part in zip(lower, parts, strict=True)])


def block_solve(factors: Sequence[Tensor], x: Tensor, transpose: bool = False) -> Tensor:
    """``L^-1 x``, or ``L^-T x`` if ``transpose``, for ``x`` of shape ``(*batch, Q, k)``; ``O(C M^2 k)``."""
    return join_rows(
        [
            triangular_solve(factor, part, transpose)
            for factor, part in zip(factors, split_rows(x, factors), strict=True)
        ]
    )


def block_inverses(factors: Sequence[Tensor]) -> list[Tensor]:
    """``L^-1``, block by block: tensors ``(*batch, C_g, M_g, M_g)``; ``O(C M^3)``."""
    return [
        torch.linalg.solve_triangular(
            factor, torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device), upper=False
        )
        for factor in factors
    ]


def block_log_determinant(factors: Sequence[Tensor]) -> Tensor:
    """``log |L L'|``, of shape ``(*batch)``."""
    # log |L L'| = 2 sum_i log |L_ii|
    terms = [factor.diagonal(dim1=-2, dim2=-1).abs().log().sum((-2, -1)) for factor in factors]
    return 2.0 * torch.stack(terms).sum(0)


def assemble(blocks: Sequence[Tensor]) -> Tensor:
    """Dense ``(*batch, Q, Q)`` matrix with the given blocks on its diagonal and zeros elsewhere."""
    size, start = total_size(blocks), 0
    rows = []
    for block in blocks:
        # (*batch, C, M, M) -> (*batch, C, M, C, M), zero where the two component indices differ
        group = torch.diag_embed(block.movedim(-3, -1), dim1=-4, dim2=-2).flatten(-2).flatten(-3, -2)
        stop = start + group.shape[-1]
        rows.append(pad(group, (start, size - stop)))
        start = stop
    return torch.cat(rows, dim=-2)
