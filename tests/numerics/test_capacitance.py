"""The roots of I + W W' and of its inverse, and what else goes through the capacitance."""

import pytest
import torch

from gpytorch_gam.numerics.capacitance import (
    capacitance_cholesky,
    capacitance_log_determinant,
    explained_factor,
    low_rank_solve,
    root_product,
    root_solve,
)

SIZE = 6
# the largest matrices here have condition numbers of about 1e2, so float64 leaves at least twelve digits
CLOSE = {"rtol": 1e-11, "atol": 1e-12}


@pytest.fixture(params=[(0, ()), (1, ()), (3, (2,)), (6, ()), (11, (2, 3))], ids=str)
def low_rank(request):
    rank, batch_shape = request.param
    torch.manual_seed(rank)
    return torch.randn(*batch_shape, SIZE, rank, dtype=torch.double)


def identity_plus(low_rank):
    return torch.eye(SIZE, dtype=torch.double) + low_rank @ low_rank.mT


def test_root_times_its_transpose_is_the_matrix(low_rank):
    eye, chol = torch.eye(SIZE, dtype=torch.double), capacitance_cholesky(low_rank)
    root, transpose = root_product(low_rank, chol, eye), root_product(low_rank, chol, eye, transpose=True)
    torch.testing.assert_close(root @ root.mT, identity_plus(low_rank), **CLOSE)
    torch.testing.assert_close(transpose, root.mT, **CLOSE)


def test_inverse_root_is_the_one_written_in_the_module(low_rank):
    # I - W L^-T (I + L)^-1 W'
    eye, chol = torch.eye(SIZE, dtype=torch.double), capacitance_cholesky(low_rank)
    small = torch.eye(chol.shape[-1], dtype=torch.double)
    written = eye - low_rank @ torch.linalg.inv(chol).mT @ torch.linalg.inv(small + chol) @ low_rank.mT
    torch.testing.assert_close(root_solve(low_rank, chol, eye, transpose=True), written, **CLOSE)
    torch.testing.assert_close(written @ written.mT, torch.linalg.inv(identity_plus(low_rank)), **CLOSE)


def test_root_solve_undoes_root_product(low_rank):
    chol = capacitance_cholesky(low_rank)
    x = torch.randn(SIZE, 2, dtype=torch.double)
    expected = x.expand(*low_rank.shape[:-2], SIZE, 2)
    for transpose in (False, True):
        there_and_back = root_solve(low_rank, chol, root_product(low_rank, chol, x, transpose), transpose)
        torch.testing.assert_close(there_and_back, expected, **CLOSE)


def test_solve_log_determinant_and_explained_factor(low_rank):
    chol, dense = capacitance_cholesky(low_rank), identity_plus(low_rank)
    eye, inverse = torch.eye(SIZE, dtype=torch.double), torch.linalg.inv(dense)
    explained = explained_factor(low_rank, chol)
    torch.testing.assert_close(low_rank_solve(low_rank, chol, eye), inverse, **CLOSE)
    torch.testing.assert_close(eye - explained @ explained.mT, inverse, **CLOSE)
    torch.testing.assert_close(capacitance_log_determinant(chol), torch.logdet(dense), **CLOSE)
