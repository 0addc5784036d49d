"""
Tensor functions for ragged block-diagonal matrices and for vectors of that structure.

A matrix of size ``Q x Q`` is given as a list of tensors, the g-th of shape ``(*batch, C_g, M_g, M_g)``: ``C_g``
consecutive diagonal blocks of size ``M_g``, so that ``Q`` is the sum of ``C_g M_g``. Blocks of equal size are handled
by one batched call, so the Python loops below run over the few groups and never over single blocks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from .triangular import triangular_solve

# Rows of a symmetric product that are computed together: fewer are slow, and more compute what is known by symmetry.
_ROWS_OF_SYMMETRIC = 64


def symmetric_product(left: Tensor, right: Tensor) -> Tensor:
    """
    The product of ``(*batch, Q, n)`` and the transpose of another, of which is known that it is symmetric. Of matrices
    without a graph it takes two thirds of the time: rows of blocks are computed up to the diagonal.
    """
    if left.dim() > 2 or left.requires_grad or right.requires_grad:
        return left @ right.mT
    size = len(left)
    product = left.new_empty(size, size)
    for start in range(0, size, _ROWS_OF_SYMMETRIC):
        stop = min(start + _ROWS_OF_SYMMETRIC, size)
        rows = left[start:stop] @ right[:stop].mT
        product[start:stop, :stop], product[:stop, start:stop] = rows, rows.mT
    return product


def block_shapes(blocks: Sequence[Tensor]) -> list[tuple[int, int]]:
    """``(C_g, M_g)`` of each group, from one ``(*batch, C_g, M_g, k)`` each."""
    return [(block.shape[-3], block.shape[-2]) for block in blocks]


def split_groups(stacked: Tensor, group_shapes: Sequence[tuple[int, int]]) -> list[Tensor]:
    """Cut the rows of ``(*batch, Q, k)`` into one ``(*batch, C_g, M_g, k)`` a group, given ``(C_g, M_g)`` of each."""
    parts = stacked.split([num * size for num, size in group_shapes], dim=-2)
    return [part.unflatten(-2, shape) for part, shape in zip(parts, group_shapes, strict=True)]


def join_groups(parts: Sequence[Tensor]) -> Tensor:
    """The inverse of :func:`split_groups`."""
    return torch.cat([part.flatten(-3, -2) for part in parts], dim=-2)


def solve_blocks(choleskys: Sequence[Tensor], stacked: Tensor, transpose: bool = False) -> Tensor:
    r"""
    :math:`L^{-1} X` (or :math:`L^{-\top} X` if ``transpose``) for X, ``(*batch, Q, k)``, and
    :math:`L = \mathrm{blockdiag}(L_c)`, ``(*batch, C_g, M_g, M_g)`` a group; entries above the diagonal are not read.
    """
    parts = split_groups(stacked, block_shapes(choleskys))
    return join_groups([triangular_solve(chol, part, transpose) for chol, part in zip(choleskys, parts, strict=True)])


def multiply_blocks(blocks: Sequence[Tensor], stacked: Tensor) -> Tensor:
    """The product of a block-diagonal matrix, ``(*batch, C_g, M_g, M_g)`` a group, with ``(*batch, Q, k)``."""
    parts = split_groups(stacked, block_shapes(blocks))
    return join_groups([block @ part for block, part in zip(blocks, parts, strict=True)])


def diagonal_blocks(matrix: Tensor, group_shapes: Sequence[tuple[int, int]]) -> list[Tensor]:
    """The diagonal blocks of ``(*batch, Q, Q)``, ``(*batch, C_g, M_g, M_g)`` a group, given ``(C_g, M_g)`` of each."""
    sizes = [num * size for num, size in group_shapes]
    blocks = []
    for index, (rows, shape) in enumerate(zip(split_groups(matrix, group_shapes), group_shapes, strict=True)):
        own = rows.split(sizes, dim=-1)[index].unflatten(-1, shape)  # (*batch, C, M, C, M)
        blocks.append(own.diagonal(dim1=-4, dim2=-2).movedim(-1, -3))
    return blocks


def assemble(blocks: Sequence[Tensor]) -> Tensor:
    """The dense ``(*batch, Q, Q)`` with blocks ``(*batch, C_g, M_g, M_g)`` on its diagonal and zeros elsewhere."""
    size, start = sum(num * size for num, size in block_shapes(blocks)), 0
    rows = []
    for block in blocks:
        # (*batch, C, M, M) -> (*batch, C, M, C, M), zero where the two component indices differ
        group = torch.diag_embed(block.movedim(-3, -1), dim1=-4, dim2=-2).flatten(-2).flatten(-3, -2)
        stop = start + group.shape[-1]
        rows.append(pad(group, (start, size - stop)))
        start = stop
    return torch.cat(rows, dim=-2)
