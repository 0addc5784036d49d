"""linear_operator's own test case on every operator, and on the root that they hand out."""

import unittest

import pytest
import torch
from linear_operator.operators import IdentityLinearOperator
from linear_operator.test.linear_operator_test_case import LinearOperatorTestCase, RectangularLinearOperatorTestCase

from gpytorch_gam import operators
from gpytorch_gam.operators import (
    BlockDiagonalCholeskyLinearOperator,
    LowRankPrecisionLinearOperator,
)
from gpytorch_gam.operators._positive_definite_linear_operator import ExactRootLinearOperator

SIZE = 7


def ragged_factors(*batch_shape):
    """Factors of two blocks of size 2 and one of size 3."""
    return tuple(
        torch.eye(size) + 0.3 * torch.randn(*batch_shape, count, size, size).tril() for count, size in ((2, 2), (1, 3))
    )


def low_rank_factor(*batch_shape, rank):
    return 0.6 * torch.randn(*batch_shape, SIZE, rank)


def dense_blocks(operator):
    """Oracle: the matrix of a BlockDiagonalCholeskyLinearOperator, block after block, without its code."""
    size, start = operator.shape[-1], 0
    total = torch.zeros(*operator.batch_shape, size, size, dtype=operator.dtype)
    for factor in operator.factors:
        for index in range(factor.shape[-3]):
            lower = factor[..., index, :, :].tril()
            block = lower @ lower.mT
            if operator.is_inverse:
                block = torch.linalg.inv(block)
            stop = start + block.shape[-1]
            total = total + torch.nn.functional.pad(block, (start, size - stop, start, size - stop))
            start = stop
    return total


def dense_precision(operator):
    base = operator.base
    if isinstance(base, IdentityLinearOperator):
        dense = torch.eye(base.shape[-1], dtype=operator.dtype).expand(base.shape)
    else:
        dense = dense_blocks(base)
    return dense + operator.factor @ operator.factor.mT


class ExactTestCase(LinearOperatorTestCase):
    """Nothing may fall back to an iterative method, whatever linear_operator's size limits say."""

    seed = 0
    operator_class: type
    should_test_sample = True
    should_call_cg = False
    should_call_lanczos = False
    should_call_lanczos_diagonalization = False


class BlockDiagonalCase(ExactTestCase):
    operator_class = BlockDiagonalCholeskyLinearOperator
    batch_shape: tuple = ()
    inverse = False

    def create_linear_op(self):
        return BlockDiagonalCholeskyLinearOperator(*ragged_factors(*self.batch_shape), inverse=self.inverse)

    def evaluate_linear_op(self, linear_op):
        return dense_blocks(linear_op)


class TestBlockDiagonal(BlockDiagonalCase, unittest.TestCase):
    pass


class TestBlockDiagonalInverse(BlockDiagonalCase, unittest.TestCase):
    inverse = True


class TestBlockDiagonalBatch(BlockDiagonalCase, unittest.TestCase):
    batch_shape = (2,)


class TestBlockDiagonalInverseMultiBatch(BlockDiagonalCase, unittest.TestCase):
    batch_shape = (3, 2)
    inverse = True


class TestSingleBlock(BlockDiagonalCase, unittest.TestCase):
    def create_linear_op(self):
        return BlockDiagonalCholeskyLinearOperator(ragged_factors()[1])


class LowRankCase(ExactTestCase):
    operator_class = LowRankPrecisionLinearOperator
    inverse = False
    batch_shape: tuple = ()
    # With R < Q - 1 on an identity eigenvalues repeat, and the gradients that the kit asks of eigh do not exist.
    rank = SIZE
    base = "identity"

    def make_base(self):
        if self.base == "identity":
            return IdentityLinearOperator(SIZE, torch.Size(self.batch_shape))
        return BlockDiagonalCholeskyLinearOperator(
            *ragged_factors(*self.batch_shape), inverse=self.base == "inverse blocks"
        )

    def create_linear_op(self):
        factor = low_rank_factor(*self.batch_shape, rank=self.rank)
        return LowRankPrecisionLinearOperator(self.make_base(), factor, inverse=self.inverse)


class PrecisionCase(LowRankCase):
    def evaluate_linear_op(self, linear_op):
        return dense_precision(linear_op)


class TestPrecision(PrecisionCase, unittest.TestCase):
    pass


class TestPrecisionMultiBatch(PrecisionCase, unittest.TestCase):
    batch_shape = (3, 2)


class TestPrecisionOnBlocks(PrecisionCase, unittest.TestCase):
    base = "blocks"
    rank = 2


class TestPrecisionOnInverseBlocksBatch(PrecisionCase, unittest.TestCase):
    batch_shape = (2,)
    base = "inverse blocks"
    rank = 9


class TestPrecisionOnBlocksRankZero(PrecisionCase, unittest.TestCase):
    base = "blocks"
    rank = 0


class PrecisionInverseCase(LowRankCase):
    inverse = True

    def evaluate_linear_op(self, linear_op):
        return torch.linalg.inv(dense_precision(linear_op))


class TestPrecisionInverse(PrecisionInverseCase, unittest.TestCase):
    pass


class TestPrecisionInverseMultiBatch(PrecisionInverseCase, unittest.TestCase):
    batch_shape = (3, 2)


class TestPrecisionInverseOnBlocks(PrecisionInverseCase, unittest.TestCase):
    base = "blocks"
    rank = 9


class TestPrecisionInverseOnInverseBlocksBatch(PrecisionInverseCase, unittest.TestCase):
    batch_shape = (2,)
    base = "inverse blocks"
    rank = 2


class ExactRootCase(RectangularLinearOperatorTestCase):
    seed = 0
    batch_shape: tuple = ()
    transpose = False

    def create_linear_op(self):
        base = BlockDiagonalCholeskyLinearOperator(*ragged_factors(*self.batch_shape))
        operator = LowRankPrecisionLinearOperator(base, low_rank_factor(*self.batch_shape, rank=2), inverse=True)
        return ExactRootLinearOperator(operator, transpose=self.transpose)

    def evaluate_linear_op(self, linear_op):
        # T = L^-T (I - W L_A^-T (I + L_A)^-1 W'), W = L^-1 B
        factor = linear_op.operator.factor
        lower = torch.linalg.cholesky(dense_blocks(linear_op.operator.base))
        whitened = torch.linalg.inv(lower) @ factor
        identity = torch.eye(factor.shape[-1], dtype=factor.dtype)
        capacitance_root = torch.linalg.cholesky(identity + whitened.mT @ whitened)
        middle = torch.linalg.inv(capacitance_root).mT @ torch.linalg.inv(identity + capacitance_root)
        inner = torch.eye(SIZE, dtype=factor.dtype) - whitened @ middle @ whitened.mT
        root = torch.linalg.inv(lower).mT @ inner
        return root.mT if linear_op.is_transpose else root


class TestExactRoot(ExactRootCase, unittest.TestCase):
    pass


class TestExactRootTransposeBatch(ExactRootCase, unittest.TestCase):
    batch_shape = (2,)
    transpose = True


@pytest.mark.parametrize("name", operators.__all__)
def test_every_public_operator_has_a_conformance_class(name):
    public_class = getattr(operators, name)
    covered = [
        case
        for case in globals().values()
        if isinstance(case, type)
        and issubclass(case, ExactTestCase)
        and issubclass(case, unittest.TestCase)
        and case.operator_class is public_class
    ]
    assert covered, f"tests/conformance/test_operators.py has no test case whose operator_class is {name}"
