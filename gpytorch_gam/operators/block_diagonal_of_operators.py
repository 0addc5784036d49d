"""Block-diagonal matrices of blocks of equal size, each an operator of its own kind."""

from __future__ import annotations

import torch
from linear_operator.operators import LinearOperator
from torch import Tensor


class BlockDiagonalOfOperators(LinearOperator):
    """
    The joint covariance of a priori independent predictors, from P operators ``(*batch, n, n)``. Rows run over
    (predictor, row of x). (Upstream's block-diagonal operator takes one operator with a batch dimension of blocks; here
    they differ.)
    """

    def __init__(self, *blocks: LinearOperator) -> None:
        super().__init__(*blocks)
        self.blocks = blocks

    def _size(self) -> torch.Size:
        *batch, rows, _ = self.blocks[0].shape
        return torch.Size([*batch, len(self.blocks) * rows, len(self.blocks) * rows])

    def _transpose_nonbatch(self) -> BlockDiagonalOfOperators:
        return self  # covariances are symmetric

    def _matmul(self, rhs: Tensor) -> Tensor:
        columns = rhs.unsqueeze(-1) if rhs.dim() == 1 else rhs
        parts = columns.chunk(len(self.blocks), dim=-2)
        result = torch.cat([block.matmul(part) for block, part in zip(self.blocks, parts, strict=True)], dim=-2)
        return result.squeeze(-1) if rhs.dim() == 1 else result

    def _diagonal(self) -> Tensor:
        return torch.cat([block.diagonal(dim1=-2, dim2=-1) for block in self.blocks], dim=-1)

    def _expand_batch(self, batch_shape: torch.Size | list[int]) -> BlockDiagonalOfOperators:
        return type(self)(*(block.expand(*batch_shape, *block.shape[-2:]) for block in self.blocks))

    def to_dense(self) -> Tensor:
        """The dense matrix, ``(*batch, P n, P n)``."""
        dense = torch.stack([block.to_dense() for block in self.blocks], dim=-3)  # (*batch, P, n, n)
        return torch.diag_embed(dense.movedim(-3, -1), dim1=-4, dim2=-2).flatten(-4, -3).flatten(-2, -1)
