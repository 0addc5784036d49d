"""Operators in every variant, each with its dense matrix computed in float64 straight from the definition."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from linear_operator.operators import IdentityLinearOperator

from gpytorch_gam.operators import (
    BlockDiagonalCholeskyLinearOperator,
    LowRankPrecisionLinearOperator,
)

RAGGED = ((3, 2), (1, 4), (2, 1))  # (count, block size) a group
SIZE = sum(count * size for count, size in RAGGED)


def make_factors(batch_shape=(), groups=RAGGED, dtype=torch.double):
    return tuple(
        (torch.eye(size) + 0.4 * torch.randn(*batch_shape, count, size, size)).tril().to(dtype)
        for count, size in groups
    )


def dense_blocks(factors, inverse=False):
    """Dense ``(*batch, Q, Q)`` in float64, one block at a time."""
    batch_shape = torch.broadcast_shapes(*(factor.shape[:-3] for factor in factors))
    size, start = sum(factor.shape[-3] * factor.shape[-1] for factor in factors), 0
    total = torch.zeros(*batch_shape, size, size, dtype=torch.double)
    for factor in factors:
        for lower in factor.double().unbind(-3):
            stop = start + lower.shape[-1]
            block = lower @ lower.mT
            total[..., start:stop, start:stop] = torch.linalg.inv(block) if inverse else block
            start = stop
    return total


@dataclass(frozen=True)
class Case:
    kind: str  # "blocks", "precision", "inverse"
    base: str  # "identity", "blocks", "inverse blocks"
    rank: int = 0
    batch_shape: tuple[int, ...] = ()

    def __str__(self):
        return "-".join(str(part) for part in (self.kind, self.base, self.rank, list(self.batch_shape)))

    def make(self, dtype=torch.double, seed=0):
        """The operator, and its dense matrix in float64."""
        torch.manual_seed(seed)
        factors = make_factors(self.batch_shape, dtype=dtype)
        inverse = self.base == "inverse blocks"
        if self.base == "identity":
            base = IdentityLinearOperator(SIZE, torch.Size(self.batch_shape), dtype=dtype)
            dense = torch.eye(SIZE, dtype=torch.double).expand(*self.batch_shape, SIZE, SIZE)
        else:
            base = BlockDiagonalCholeskyLinearOperator(*factors, inverse=inverse)
            dense = dense_blocks(factors, inverse)
        if self.kind == "blocks":
            return base, dense
        factor = torch.randn(*self.batch_shape, SIZE, self.rank).to(dtype)
        dense = dense + factor.double() @ factor.double().mT
        if self.kind == "precision":
            return LowRankPrecisionLinearOperator(base, factor), dense
        return LowRankPrecisionLinearOperator(base, factor, inverse=True), torch.linalg.inv(dense)


BLOCK_CASES = [
    Case("blocks", base, batch_shape=batch) for base in ("blocks", "inverse blocks") for batch in ((), (2,), (3, 2))
]
LOW_RANK_CASES = [
    Case(kind, base, rank, batch)
    for kind in ("precision", "inverse")
    for base, rank, batch in (
        ("identity", 3, ()),
        ("identity", 0, ()),
        ("identity", SIZE + 4, (2,)),
        ("blocks", 3, (3, 2)),
        ("blocks", SIZE + 4, ()),
        ("inverse blocks", 3, (2,)),
        ("inverse blocks", 0, ()),
    )
]
ALL_CASES = BLOCK_CASES + LOW_RANK_CASES
