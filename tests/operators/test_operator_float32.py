"""What float32 operators keep: positive variances at badly scaled factors, and the settings that rule the precision."""

from unittest.mock import patch

import linear_operator
import pytest
import torch
from linear_operator.operators import IdentityLinearOperator

from gpytorch_gam.operators import (
    BlockDiagonalCholeskyLinearOperator,
    LowRankPrecisionLinearOperator,
)

from .operator_cases import dense_blocks, make_factors

SIZE = 60


def badly_scaled_factor(rank):
    torch.manual_seed(rank)
    return (torch.randn(SIZE, rank) * torch.logspace(-3, 3, rank)).clamp(-1e3, 1e3)


@pytest.mark.parametrize("rank", [5, SIZE, 2 * SIZE])
def test_variances_stay_positive_and_accurate(rank):
    factor = badly_scaled_factor(rank)
    operator = LowRankPrecisionLinearOperator(IdentityLinearOperator(SIZE), factor, inverse=True)
    dense = torch.linalg.inv(torch.eye(SIZE, dtype=torch.double) + factor.double() @ factor.double().mT)
    assert operator.diagonal().dtype == torch.float
    assert (operator.diagonal() > 0).all()
    # the oracle itself inverts a matrix of condition number about 1e8
    torch.testing.assert_close(operator.diagonal().double(), dense.diagonal(), rtol=1e-5, atol=0)


def test_variances_on_a_nearly_singular_prior_stay_positive():
    points = torch.linspace(0, 1, 20, dtype=torch.double)
    kernel = torch.exp(-0.5 * ((points[:, None] - points) / 0.3).square()) + 1e-6 * torch.eye(20, dtype=torch.double)
    lower = torch.linalg.cholesky(kernel).expand(3, 20, 20)
    factor = badly_scaled_factor(10)
    dense = torch.linalg.inv(dense_blocks((lower.float(),), inverse=True) + factor.double() @ factor.double().mT)
    prior_precision = BlockDiagonalCholeskyLinearOperator(lower.float(), inverse=True)
    operator = LowRankPrecisionLinearOperator(prior_precision, factor, inverse=True)
    assert (operator.diagonal() > 0).all()
    assert (operator.diagonal() <= prior_precision.inverse().diagonal()).all()
    torch.testing.assert_close(operator.diagonal().double(), dense.diagonal(), rtol=1e-3, atol=1e-9)


def test_solving_undoes_multiplying_on_an_ill_conditioned_operator():
    factor = badly_scaled_factor(5)
    precision = LowRankPrecisionLinearOperator(IdentityLinearOperator(SIZE), factor)
    x = torch.randn(SIZE, 2)
    dense = torch.eye(SIZE, dtype=torch.double) + factor.double() @ factor.double().mT
    torch.testing.assert_close(precision.solve(x).double(), torch.linalg.solve(dense, x.double()), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("setting, expected", [(torch.double, torch.double), (torch.float, torch.float)])
def test_the_capacitance_is_factorised_in_the_dtype_that_linear_operator_is_set_to(setting, expected):
    seen, original = [], torch.linalg.cholesky_ex

    def record(matrix, *args, **kwargs):
        seen.append(matrix.dtype)
        return original(matrix, *args, **kwargs)

    operator = LowRankPrecisionLinearOperator(IdentityLinearOperator(SIZE), torch.randn(SIZE, 3), inverse=True)
    operator.logdet()  # what is memoised under one setting must not serve another
    with linear_operator.settings.linalg_dtypes(default=setting), patch("torch.linalg.cholesky_ex", new=record):
        fresh = operator.clone()
        assert fresh.logdet().dtype == torch.float
        torch.testing.assert_close(fresh.logdet(), operator.logdet())
    assert set(seen) == {expected}


def test_a_lower_setting_does_not_lower_a_double_operator():
    operator = LowRankPrecisionLinearOperator(
        IdentityLinearOperator(SIZE, dtype=torch.double), torch.randn(SIZE, 3, dtype=torch.double)
    )
    exact = operator.logdet()
    with linear_operator.settings.linalg_dtypes(default=torch.float):
        torch.testing.assert_close(operator.clone().logdet(), exact, rtol=1e-14, atol=0)


@pytest.mark.parametrize("base", ["identity", "blocks"])
def test_conversions_keep_base_and_factor_together(base):
    factors = make_factors(dtype=torch.float)
    size = 12
    made = IdentityLinearOperator(size) if base == "identity" else BlockDiagonalCholeskyLinearOperator(*factors)
    operator = LowRankPrecisionLinearOperator(made, torch.randn(size, 2), inverse=True)
    for converted in (operator.double(), operator.to(torch.double), operator.to(dtype=torch.double, device="cpu")):
        assert converted.dtype == converted.base.dtype == converted.factor.dtype == torch.double
        torch.testing.assert_close(converted.to_dense().float(), operator.to_dense())
    for moved in (operator.cpu(), operator.to(torch.device("cpu")), operator.double().float()):
        assert moved.dtype == moved.base.dtype == torch.float
        assert moved.device == moved.base.device == torch.device("cpu")
        torch.testing.assert_close(moved.to_dense(), operator.to_dense())
    assert operator.half().dtype == torch.half


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("base", ["identity", "blocks"])
def test_operators_move_to_a_gpu_and_agree_there(base):
    size = 12
    torch.manual_seed(0)
    factors = make_factors(dtype=torch.float)
    made = IdentityLinearOperator(size) if base == "identity" else BlockDiagonalCholeskyLinearOperator(*factors)
    operator = LowRankPrecisionLinearOperator(made, torch.randn(size, 2), inverse=True)
    for moved in (operator.cuda(), operator.to(torch.device("cuda")), operator.cuda().double()):
        assert moved.device.type == moved.base.device.type == "cuda"
        torch.testing.assert_close(moved.to_dense().float().cpu(), operator.to_dense())
        torch.testing.assert_close(moved.logdet().float().cpu(), operator.logdet())
        torch.testing.assert_close(moved.diagonal().float().cpu(), operator.diagonal())
        assert moved.zero_mean_mvn_samples(2).device.type == "cuda"
