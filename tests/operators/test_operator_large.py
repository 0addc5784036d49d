"""Above size 800 linear_operator turns to CG and Lanczos; here these raise, and so do large factorisations."""

from unittest.mock import patch

import gpytorch
import pytest
import torch
from gpytorch.distributions import MultivariateNormal
from linear_operator.operators import DenseLinearOperator, IdentityLinearOperator
from torch.utils._python_dispatch import TorchDispatchMode

from gpytorch_gam.operators import (
    BlockDiagonalCholeskyLinearOperator,
    LowRankPrecisionLinearOperator,
)

from .operator_cases import dense_blocks, make_factors

GROUPS = ((32, 15), (7, 50))
SIZE, RANK, LARGEST_BLOCK = 830, 12, 50
CLOSE = {"rtol": 1e-8, "atol": 1e-8}


def refuse(*args, **kwargs):
    raise AssertionError("an iterative or stochastic method was called")


def small_only(function):
    def checked(matrix, *args, **kwargs):
        size = min(matrix.shape[-2:])
        assert size <= max(RANK, LARGEST_BLOCK), f"{function.__name__} was called on a matrix of size {size}"
        return function(matrix, *args, **kwargs)

    return checked


@pytest.fixture
def no_fallback():
    names = ("linear_cg", "minres.minres", "lanczos.lanczos_tridiag", "contour_integral_quad.contour_integral_quad")
    patches = [patch(f"linear_operator.utils.{name}", new=refuse) for name in names]
    for name in ("cholesky_ex", "cholesky", "eigh", "svd", "qr", "inv"):
        patches.append(patch(f"torch.linalg.{name}", new=small_only(getattr(torch.linalg, name))))
    for one in patches:
        one.start()
    yield
    for one in patches:
        one.stop()


def make(kind):
    torch.manual_seed(0)
    factors = tuple(0.1 * f + 0.9 * torch.eye(f.shape[-1], dtype=f.dtype) for f in make_factors(groups=GROUPS))
    low_rank = torch.randn(SIZE, RANK, dtype=torch.double)
    if kind == "blocks":
        return BlockDiagonalCholeskyLinearOperator(*factors), dense_blocks(factors)
    if kind == "inverse blocks":
        return BlockDiagonalCholeskyLinearOperator(*factors, inverse=True), dense_blocks(factors, inverse=True)
    if kind == "inverse on the identity":
        base, dense = IdentityLinearOperator(SIZE, dtype=torch.double), torch.eye(SIZE, dtype=torch.double)
    else:
        base = BlockDiagonalCholeskyLinearOperator(*factors, inverse=True)
        dense = dense_blocks(factors, inverse=True)
    dense = dense + low_rank @ low_rank.mT
    if kind == "precision":
        return LowRankPrecisionLinearOperator(base, low_rank), dense
    return LowRankPrecisionLinearOperator(base, low_rank, inverse=True), torch.linalg.inv(dense)


KINDS = ["blocks", "inverse blocks", "precision", "inverse", "inverse on the identity"]


@pytest.fixture(params=KINDS)
def made(request):
    """The operator, its dense matrix and the inverse of that, made before anything is patched."""
    operator, dense = make(request.param)
    return operator, dense, torch.linalg.inv(dense)


@pytest.fixture
def distributions(made):
    """The same Gaussian with the structured and with the dense covariance."""
    operator, dense, _ = made
    mean = torch.linspace(-1, 1, SIZE, dtype=torch.double)
    dense = (dense + dense.mT) / 2  # torch checks symmetry to a tighter tolerance than inv leaves
    return MultivariateNormal(mean, operator), torch.distributions.MultivariateNormal(mean, dense)


@pytest.fixture
def jittered(distributions):
    """The dense Gaussian with jitter, made before anything is patched."""
    dense = distributions[1]
    eye = torch.eye(SIZE, dtype=torch.double)
    return torch.distributions.MultivariateNormal(dense.mean, dense.covariance_matrix + 0.1 * eye)


@pytest.fixture
def standard_normals():
    mean = torch.zeros(SIZE, dtype=torch.double)
    structured = MultivariateNormal(mean, IdentityLinearOperator(SIZE, dtype=torch.double))
    return structured, torch.distributions.MultivariateNormal(mean, torch.eye(SIZE, dtype=torch.double))


def test_the_guard_catches_what_upstream_does_by_default(no_fallback):
    dense = DenseLinearOperator(2.0 * torch.eye(SIZE, dtype=torch.double))
    x = torch.ones(SIZE, 1, dtype=torch.double)
    for call in (dense.logdet, dense.root_decomposition, dense.cholesky, lambda: dense.solve(x)):
        with pytest.raises(AssertionError, match="was called"):
            call()


def test_linear_algebra_is_exact(made, no_fallback):
    operator, dense, inverse = made
    x = torch.randn(SIZE, 2, dtype=torch.double)
    torch.testing.assert_close(operator @ x, dense @ x, **CLOSE)
    torch.testing.assert_close(operator.solve(x), inverse @ x, **CLOSE)
    torch.testing.assert_close(operator.logdet(), dense.slogdet().logabsdet, **CLOSE)
    torch.testing.assert_close(operator.diagonal(), dense.diagonal(), **CLOSE)
    inv_quad, logdet = operator.inv_quad_logdet(x, logdet=True, reduce_inv_quad=False)
    torch.testing.assert_close(inv_quad, (x * (inverse @ x)).sum(-2), **CLOSE)
    torch.testing.assert_close(logdet, dense.slogdet().logabsdet, **CLOSE)
    root, inverse_root = operator.root_decomposition(), operator.root_inv_decomposition()
    torch.testing.assert_close(root @ x, dense @ x, **CLOSE)
    torch.testing.assert_close(inverse_root @ x, inverse @ x, **CLOSE)
    torch.testing.assert_close(operator[..., 3, :], dense[3], **CLOSE)


def test_settings_cannot_switch_iterations_on(made, no_fallback):
    operator, dense, inverse = made
    x = torch.randn(SIZE, 2, dtype=torch.double)
    with gpytorch.settings.max_cholesky_size(0), gpytorch.settings.ciq_samples(True):
        torch.testing.assert_close(operator.solve(x), inverse @ x, **CLOSE)
        torch.testing.assert_close(operator.logdet(), dense.slogdet().logabsdet, **CLOSE)
        assert operator.zero_mean_mvn_samples(1).shape == (1, SIZE)


def test_log_prob_is_exact(distributions, no_fallback):
    structured, dense = distributions
    value = torch.randn(3, SIZE, dtype=torch.double)
    torch.testing.assert_close(structured.log_prob(value), dense.log_prob(value), **CLOSE)
    torch.testing.assert_close(structured.log_prob(value[0]), dense.log_prob(value[0]), **CLOSE)


def test_kl_divergence_is_exact_in_both_directions(distributions, standard_normals, no_fallback):
    (q, dense_q), (p, dense_p) = distributions, standard_normals
    kl = torch.distributions.kl_divergence
    torch.testing.assert_close(kl(q, p), kl(dense_q, dense_p), **CLOSE)
    torch.testing.assert_close(kl(p, q), kl(dense_p, dense_q), **CLOSE)


def test_scaled_distribution_stays_exact(distributions, no_fallback):
    structured, dense = distributions
    value = torch.randn(SIZE, dtype=torch.double)
    expected = dense.log_prob(value / 2) - SIZE * torch.tensor(2.0, dtype=torch.double).log()
    # (2 y) has density p(y) / 2^Q
    torch.testing.assert_close((structured * 2.0).log_prob(value), expected, **CLOSE)


def test_jitter_stays_exact(distributions, jittered, no_fallback):
    value = torch.randn(SIZE, dtype=torch.double)
    torch.testing.assert_close(distributions[0].add_jitter(0.1).log_prob(value), jittered.log_prob(value), **CLOSE)


class LargestTensor(TorchDispatchMode):
    """Number of elements of the largest tensor that any operation returned."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else (result,):
            if torch.is_tensor(value):
                self.numel = max(self.numel, value.numel())
        return result


def test_sampling_never_forms_a_matrix_of_size_q_squared(made, no_fallback):
    operator, _, _ = made
    with LargestTensor() as largest:
        sample = operator.zero_mean_mvn_samples(1)
        MultivariateNormal(torch.zeros(SIZE, dtype=torch.double), operator).rsample()
        operator.diagonal()
        operator.logdet()
    assert sample.shape == (1, SIZE)
    assert largest.numel <= SIZE * max(RANK, LARGEST_BLOCK)


def test_sampling_and_its_gradient(made, no_fallback):
    operator, _, _ = made
    operator = operator.detach().requires_grad_(True)
    operator.zero_mean_mvn_samples(3).square().sum().backward()
    assert all(torch.isfinite(tensor.grad).all() for tensor in operator.representation())
