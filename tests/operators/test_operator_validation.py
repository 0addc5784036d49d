"""Wrong arguments are refused in words that name them."""

import pytest
import torch
from linear_operator.operators import DenseLinearOperator, IdentityLinearOperator

from gpytorch_gam.operators import (
    BlockDiagonalCholeskyLinearOperator,
    LowRankPrecisionLinearOperator,
)


@pytest.mark.parametrize(
    "factors, message",
    [
        ((), "at least one factor"),
        ((torch.eye(2).unsqueeze(0), torch.eye(3)), r"factor 1 has shape \(3, 3\).*unsqueeze\(0\)"),
        ((torch.zeros(1, 2, 3),), r"factor 0 has shape \(1, 2, 3\)"),
        ((torch.ones(1, 2, 2), torch.ones(1, 2, 2, dtype=torch.double)), "float32 on cpu, torch.float64 on cpu"),
        ((torch.ones(1, 2, 2), torch.ones(1, 2, 2, device="meta")), "torch.float32 on meta"),
        ((torch.ones(2, 1, 2, 2), torch.ones(3, 1, 2, 2)), r"batch shapes of its factors: \(2,\), \(3,\)"),
    ],
)
def test_block_diagonal_refuses(factors, message):
    with pytest.raises(ValueError, match=message):
        BlockDiagonalCholeskyLinearOperator(*factors)


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize(
    "base, factor, message",
    [
        (IdentityLinearOperator(5), torch.ones(4, 2), r"base has shape \(5, 5\) and factor has shape \(4, 2\)"),
        (IdentityLinearOperator(5), torch.ones(5), r"got shape \(5,\)"),
        (IdentityLinearOperator(5), torch.ones(5, 2, dtype=torch.double), "torch.float32 and torch.float64"),
        (
            BlockDiagonalCholeskyLinearOperator(torch.ones(1, 5, 5)),
            torch.ones(5, 2, device="meta"),
            "one device, but got cpu and meta",
        ),
        (IdentityLinearOperator(5, torch.Size([2])), torch.ones(3, 5, 1), "cannot broadcast batch shapes"),
    ],
)
def test_low_rank_operators_refuse(inverse, base, factor, message):
    with pytest.raises(ValueError, match=f"LowRankPrecisionLinearOperator.*{message}"):
        LowRankPrecisionLinearOperator(base, factor, inverse=inverse)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: BlockDiagonalCholeskyLinearOperator(DenseLinearOperator(torch.eye(2))), "factor 0 is a Dense"),
        (lambda: BlockDiagonalCholeskyLinearOperator(torch.ones(1, 2, 2, dtype=torch.long)), "factor 0 has dtype"),
        (lambda: LowRankPrecisionLinearOperator(DenseLinearOperator(torch.eye(5)), torch.ones(5, 2)), "got a Dense"),
        (lambda: LowRankPrecisionLinearOperator(torch.eye(5), torch.ones(5, 2)), "but got a Tensor"),
        (
            lambda: LowRankPrecisionLinearOperator(IdentityLinearOperator(5), DenseLinearOperator(torch.ones(5, 2))),
            "got a DenseLinearOperator",
        ),
    ],
)
def test_wrong_types_are_refused(make, message):
    with pytest.raises(TypeError, match=message):
        make()


def test_an_identity_follows_the_factor_where_it_says_nothing():
    operator = LowRankPrecisionLinearOperator(IdentityLinearOperator(5, dtype=None), torch.ones(5, 2).double())
    assert operator.base.dtype == torch.double


@pytest.mark.parametrize("call", ["matmul", "solve", "inv_quad", "root_matmul"])
def test_right_hand_sides_of_the_wrong_size_are_refused(call):
    operator = LowRankPrecisionLinearOperator(IdentityLinearOperator(5), torch.ones(5, 2))
    with pytest.raises(RuntimeError, match=r"\[4, 1\]|4"):
        getattr(operator, call)(torch.ones(4, 1))
