"""Linear operators of structured Gaussian posteriors: ragged block-diagonal matrices, alone or plus a low-rank term."""

from .block_diagonal_cholesky_linear_operator import BlockDiagonalCholeskyLinearOperator
from .low_rank_precision_linear_operator import LowRankPrecisionLinearOperator

__all__ = [
    "BlockDiagonalCholeskyLinearOperator",
    "LowRankPrecisionLinearOperator",
]
