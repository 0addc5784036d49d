"""Gradients in float64 by finite differences, and what memoised values do to them."""

import copy
import pickle

import pytest
import torch
from linear_operator.operators import IdentityLinearOperator

from gpytorch_gam.operators import (
    BlockDiagonalCholeskyLinearOperator,
    LowRankPrecisionLinearOperator,
)

from .operator_cases import make_factors

GROUPS = ((2, 2), (1, 3))
SIZE = 7


def seeded_sample(operator):
    torch.manual_seed(5)
    return operator.zero_mean_mvn_samples(2)


def right_hand_side(operator):
    generator = torch.Generator().manual_seed(4)
    return torch.randn(*operator.shape[:-1], 2, dtype=torch.double, generator=generator)


METHODS = {
    "matmul": lambda operator: operator @ right_hand_side(operator),
    "solve": lambda operator: operator.solve(right_hand_side(operator)),
    "logdet": lambda operator: operator.logdet(),
    "diagonal": lambda operator: operator.diagonal(),
    "trace": lambda operator: operator.trace(),
    "dense": lambda operator: operator.to_dense(),
    "sample": seeded_sample,
    "inv_quad_logdet": lambda operator: operator.inv_quad_logdet(right_hand_side(operator), logdet=True),
    "root_decomposition": lambda operator: operator.root_decomposition() @ right_hand_side(operator),
    "root_inv_decomposition": lambda operator: operator.root_inv_decomposition() @ right_hand_side(operator),
    "rows": lambda operator: operator[..., 1:3, :].to_dense(),
    "jitter": lambda operator: operator.add_jitter(0.3) @ right_hand_side(operator),
}
KINDS = {
    "blocks": lambda factors, low_rank: BlockDiagonalCholeskyLinearOperator(*factors),
    "inverse blocks": lambda factors, low_rank: BlockDiagonalCholeskyLinearOperator(*factors, inverse=True),
    "precision": lambda factors, low_rank: LowRankPrecisionLinearOperator(
        BlockDiagonalCholeskyLinearOperator(*factors, inverse=True), low_rank
    ),
    "inverse": lambda factors, low_rank: LowRankPrecisionLinearOperator(
        BlockDiagonalCholeskyLinearOperator(*factors), low_rank, inverse=True
    ),
    "inverse on the identity": lambda factors, low_rank: LowRankPrecisionLinearOperator(
        IdentityLinearOperator(SIZE, dtype=low_rank.dtype), low_rank, inverse=True
    ),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_match_finite_differences(kind, method):
    torch.manual_seed(0)
    # rank 2: R < Q - 1 repeats eigenvalues, where gradients through eigh would be NaN
    inputs = [*make_factors(groups=GROUPS), torch.randn(SIZE, 2, dtype=torch.double)]
    inputs = [tensor.requires_grad_() for tensor in inputs]

    def evaluate(*tensors):
        return METHODS[method](KINDS[kind](tensors[:-1], tensors[-1]))

    assert torch.autograd.gradcheck(evaluate, inputs, fast_mode=True)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_through_float32_operators_arrive_in_float32(kind):
    torch.manual_seed(0)
    factors, low_rank = make_factors(groups=GROUPS), torch.randn(SIZE, 2, dtype=torch.double)
    grads = {}
    for dtype in (torch.double, torch.float):
        inputs = [tensor.detach().to(dtype).requires_grad_() for tensor in (*factors, low_rank)]
        operator = KINDS[kind](inputs[:-1], inputs[-1])
        total = (
            operator.solve(right_hand_side(operator).to(dtype)).sum() + operator.logdet() + operator.diagonal().sum()
        )
        grads[dtype] = torch.autograd.grad(total, inputs, allow_unused=True)
    for exact, found in zip(grads[torch.double], grads[torch.float], strict=True):
        assert (exact is None) == (found is None)
        if exact is not None:
            assert found.dtype == torch.float
            torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-5)


def test_gradient_with_rank_zero_is_the_bases():
    torch.manual_seed(0)
    factors = [factor.requires_grad_() for factor in make_factors(groups=GROUPS)]
    low_rank = torch.zeros(SIZE, 0, dtype=torch.double, requires_grad=True)
    operator = LowRankPrecisionLinearOperator(BlockDiagonalCholeskyLinearOperator(*factors), low_rank, inverse=True)
    base = BlockDiagonalCholeskyLinearOperator(*factors, inverse=True)
    found = torch.autograd.grad(operator.logdet() + operator.trace() + seeded_sample(operator).sum(), factors)
    expected = torch.autograd.grad(base.logdet() + base.trace() + seeded_sample(base).sum(), factors)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("dtype", [torch.double, torch.float], ids=["double", "float"])
def test_a_call_without_gradients_does_not_cut_the_graph_of_later_ones(dtype):
    torch.manual_seed(0)
    low_rank = torch.randn(SIZE, 2, dtype=dtype, requires_grad=True)
    operator = LowRankPrecisionLinearOperator(IdentityLinearOperator(SIZE, dtype=dtype), low_rank, inverse=True)
    with torch.no_grad():
        operator.logdet()
        operator.zero_mean_mvn_samples(1)
    with torch.inference_mode():
        operator.diagonal()
    operator.logdet().backward()
    assert low_rank.grad is not None and low_rank.grad.abs().sum() > 0


def test_requiring_gradients_after_a_first_use_gives_gradients():
    torch.manual_seed(0)
    operator = LowRankPrecisionLinearOperator(IdentityLinearOperator(SIZE), torch.randn(SIZE, 2))
    operator.logdet()
    operator.requires_grad_(True)
    operator.logdet().backward()
    assert operator.factor.grad.abs().sum() > 0


@pytest.mark.parametrize("kind", KINDS)
def test_copies_and_pickles_after_a_use_with_gradients(kind):
    torch.manual_seed(0)
    inputs = [tensor.float().requires_grad_() for tensor in make_factors(groups=GROUPS)]
    low_rank = torch.randn(SIZE, 2, requires_grad=True)
    operator = KINDS[kind](inputs, low_rank)
    operator.logdet().backward()
    expected = operator.to_dense()
    for twin in (copy.deepcopy(operator), pickle.loads(pickle.dumps(operator))):
        assert type(twin) is type(operator) and twin.requires_grad
        torch.testing.assert_close(twin.to_dense(), expected)
    assert not operator.detach().requires_grad
    torch.testing.assert_close(operator.detach().to_dense(), expected.detach())
