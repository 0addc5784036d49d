"""Every method of every operator against a dense float64 matrix."""

import itertools

import pytest
import torch
from linear_operator.operators import DiagLinearOperator, IdentityLinearOperator, RootLinearOperator

from gpytorch_gam.operators import (
    BlockDiagonalCholeskyLinearOperator,
    LowRankPrecisionLinearOperator,
)

from .operator_cases import ALL_CASES, BLOCK_CASES, LOW_RANK_CASES, SIZE, dense_blocks, make_factors

# Condition numbers stay below 1e5. Float32 inputs are computed in float64 and rounded once.
TOLERANCE = {
    torch.double: {"rtol": 1e-9, "atol": 1e-10},
    torch.float: {"rtol": 3e-6, "atol": 3e-6},
}


# Float32 is a matter of rounding, for every case alike: some of each kind suffice.
CASES_AND_DTYPES = [(case, torch.double) for case in ALL_CASES]
CASES_AND_DTYPES += [(case, torch.float) for case in ALL_CASES if case.batch_shape == (2,)]
every_case = pytest.mark.parametrize("case", ALL_CASES, ids=str)


@pytest.fixture(params=CASES_AND_DTYPES, ids=lambda param: f"{param[0]}-{param[1]}")
def case_and_dtype(request):
    return request.param


@pytest.fixture
def case(case_and_dtype):
    return case_and_dtype[0]


@pytest.fixture
def dtype(case_and_dtype):
    return case_and_dtype[1]


@pytest.fixture
def made(case, dtype):
    return case.make(dtype)


@pytest.fixture
def close(dtype):
    def check(actual, expected):
        assert actual.dtype == dtype
        torch.testing.assert_close(actual.double(), expected, **TOLERANCE[dtype])

    return check


def test_products_and_solves(made, dtype, close):
    operator, dense = made
    inverse = torch.linalg.inv(dense)
    x = torch.randn(*operator.shape[:-1], 3, dtype=dtype)
    left = torch.randn(*operator.batch_shape, 2, SIZE, dtype=dtype)
    close(operator @ x, dense @ x.double())
    close(left @ operator, left.double() @ dense)
    close(operator.solve(x), inverse @ x.double())
    close(operator.solve(x, left), left.double() @ inverse @ x.double())


def test_vectors_and_broadcast_batches(made, dtype, close):
    operator, dense = made
    vector = torch.randn(SIZE, dtype=dtype)
    wide = torch.randn(4, *(1 for _ in operator.batch_shape), SIZE, 2, dtype=dtype)
    close(operator @ vector, dense @ vector.double())
    close(operator.solve(vector), torch.linalg.inv(dense) @ vector.double())
    close(operator @ wide, dense @ wide.double())
    close(operator.solve(wide), torch.linalg.inv(dense) @ wide.double())


def test_dense_diagonal_trace_and_logdet(made, close):
    operator, dense = made
    close(operator.to_dense(), dense)
    close(operator.diagonal(dim1=-2, dim2=-1), dense.diagonal(dim1=-2, dim2=-1))
    close(operator.trace(), dense.diagonal(dim1=-2, dim2=-1).sum(-1))
    close(operator.logdet(), torch.logdet(dense))
    close(torch.logdet(operator), torch.logdet(dense))


def test_inv_quad_logdet_gives_what_is_asked_for(made, dtype, close):
    operator, dense = made
    rhs = torch.randn(*operator.shape[:-1], 3, dtype=dtype)
    terms = (rhs.double() * (torch.linalg.inv(dense) @ rhs.double())).sum(-2)
    for with_rhs, logdet, reduce_inv_quad in itertools.product([True, False], repeat=3):
        inv_quad, log_determinant = operator.inv_quad_logdet(rhs if with_rhs else None, logdet, reduce_inv_quad)
        expected = terms.sum(-1) if reduce_inv_quad else terms
        if with_rhs:
            close(inv_quad, expected)
            close(operator.inv_quad(rhs, reduce_inv_quad), expected)
        else:
            assert inv_quad is None
        if logdet:
            close(log_determinant, torch.logdet(dense))
        else:
            assert log_determinant is None


def test_inv_quad_of_a_vector_is_one_number_a_batch(made, dtype, close):
    operator, dense = made
    vector = torch.randn(SIZE, dtype=dtype)
    expected = ((torch.linalg.inv(dense) @ vector.double()) * vector.double()).sum(-1)
    for reduce_inv_quad in (True, False):
        close(operator.inv_quad(vector, reduce_inv_quad), expected)


def test_root_helpers_describe_one_exact_root(made, dtype, close):
    operator, dense = made
    eye = torch.eye(SIZE, dtype=dtype)
    root = operator.root_matmul(eye)
    inverse_root = torch.linalg.inv(root.double())
    close((root.double() @ root.double().mT).to(dtype), dense)
    close(operator.root_transpose_matmul(eye), root.double().mT)
    # float32 roots were rounded before this inversion
    if dtype == torch.double:
        close(operator.root_solve(eye), inverse_root)
        close(operator.root_transpose_solve(eye), inverse_root.mT)


def test_root_decompositions(made, close):
    operator, dense = made
    decomposition, inverse_decomposition = operator.root_decomposition(), operator.root_inv_decomposition()
    assert isinstance(decomposition, RootLinearOperator) and isinstance(inverse_decomposition, RootLinearOperator)
    close(decomposition.to_dense(), dense)
    close(inverse_decomposition.to_dense(), torch.linalg.inv(dense))
    # linear_operator's cat_rows and add_low_rank take the second root to be the first's inverse transpose
    product = decomposition.root.to_dense().mT @ inverse_decomposition.root.to_dense()
    close(product, torch.eye(SIZE, dtype=torch.double).expand(product.shape))


def test_solving_with_the_root_operator(made, dtype, close):
    operator, _ = made
    root = operator.root_decomposition().root
    x = torch.randn(*operator.shape[:-1], 2, dtype=dtype)
    close(root.solve(root @ x), x.double())
    close(root.mT.solve(root.mT @ x), x.double())
    close(root.inverse() @ (root @ x), x.double())
    close(root.solve(x, left_tensor=x.mT), x.double().mT @ torch.linalg.solve(root.to_dense().double(), x.double()))


@every_case
def test_explicit_root_methods_are_still_upstreams(case):
    operator, dense = case.make()
    close = TOLERANCE[torch.double]
    torch.testing.assert_close(operator.root_decomposition(method="symeig").to_dense(), dense, **close)
    inverse = operator.root_inv_decomposition(method="cholesky")
    torch.testing.assert_close(inverse.to_dense(), torch.linalg.inv(dense), **close)


def test_inverse_is_an_involution(made, close):
    operator, dense = made
    close(operator.inverse().to_dense(), torch.linalg.inv(dense))
    assert type(operator.inverse().inverse()) is type(operator)
    close(operator.inverse().inverse().to_dense(), dense)
    close(torch.inverse(operator).to_dense(), torch.linalg.inv(dense))


def test_cholesky_is_the_unique_lower_factor(made, close):
    operator, dense = made
    close(operator.cholesky().to_dense(), torch.linalg.cholesky(dense))
    close(operator.cholesky(upper=True).to_dense(), torch.linalg.cholesky(dense).mT)


@pytest.mark.parametrize("inverse", [False, True])
def test_cholesky_has_a_positive_diagonal_where_the_factors_have_not(inverse):
    factors = tuple(-factor for factor in make_factors())
    operator = BlockDiagonalCholeskyLinearOperator(*factors, inverse=inverse)
    expected = torch.linalg.cholesky(dense_blocks(factors, inverse))
    torch.testing.assert_close(operator.cholesky().to_dense(), expected)
    torch.testing.assert_close(operator.logdet(), torch.logdet(dense_blocks(factors, inverse)))


@pytest.mark.parametrize("index", [2, slice(1, 6), slice(None, None, 3), torch.tensor([0, 7, 3])], ids=str)
def test_rows_and_columns(made, close, index):
    operator, dense = made
    for key in ((..., index, slice(None)), (..., slice(None), index), (..., index, slice(0, 5))):
        result = operator[key]
        close(result if torch.is_tensor(result) else result.to_dense(), dense[key])


def test_single_elements(made, close):
    operator, dense = made
    rows, columns = torch.tensor([0, 1, 8, 8]), torch.tensor([1, 1, 0, 8])
    close(operator[..., rows, columns], dense[..., rows, columns])


def test_batch_indexing_permuting_and_expanding(made, close):
    operator, dense = made
    close(operator.expand(4, *operator.shape).to_dense(), dense.expand(4, *dense.shape))
    close(operator.unsqueeze(0).to_dense(), dense.unsqueeze(0))
    assert type(operator.expand(4, *operator.shape)) is type(operator)
    if operator.batch_shape:
        close(operator[-1].to_dense(), dense[-1])
        close(operator[..., 0:1, :, :].to_dense(), dense[..., 0:1, :, :])
        assert type(operator[0]) is type(operator)
    if len(operator.batch_shape) == 2:
        close(operator.permute(1, 0, -2, -1).to_dense(), dense.transpose(0, 1))


def test_scaling_stays_in_the_class_for_positive_constants_only(made, close):
    operator, dense = made
    constant = torch.tensor(0.3, dtype=operator.dtype)
    assert type(operator * 2.5) is type(operator)
    close((operator * 2.5).to_dense(), 2.5 * dense)
    close((operator * constant).to_dense(), constant.double() * dense)
    close((operator / 4).to_dense(), dense / 4)
    close((operator * -2.0).to_dense(), -2.0 * dense)
    close((operator * 0.0).to_dense(), 0.0 * dense)


def test_scaling_by_one_constant_a_batch(case, dtype, close):
    operator, dense = case.make(dtype)
    constants = torch.rand(*operator.batch_shape, 1, 1, dtype=dtype) + 0.5
    close((operator * constants).to_dense(), constants.double() * dense)


def test_sums_with_other_operators(made, close):
    operator, dense = made
    eye = torch.eye(SIZE, dtype=torch.double)
    close((operator + operator).to_dense(), 2 * dense)
    close((operator - operator.inverse()).to_dense(), dense - torch.linalg.inv(dense))
    close((operator + operator.to_dense()).to_dense(), 2 * dense)
    close(operator.add_jitter(-0.001).to_dense(), dense - 0.001 * eye)


def test_a_positive_diagonal_keeps_the_structure(made, dtype, close):
    operator, dense = made
    diagonal = torch.rand(4, *operator.shape[:-1], dtype=dtype)
    eye = torch.eye(SIZE, dtype=torch.double)
    for total, added in (
        (operator.add_jitter(0.1), 0.1 * eye),
        (operator.add_jitter(1e-7), 1e-7 * eye),
        (operator.add_jitter(1e5) / 1e5, (dense + 1e5 * eye) / 1e5 - dense),
        (operator.add_diagonal(diagonal[0]), torch.diag_embed(diagonal[0].double())),
        (operator + DiagLinearOperator(diagonal), torch.diag_embed(diagonal.double())),
        (operator + IdentityLinearOperator(SIZE, operator.batch_shape, dtype=dtype), eye),
    ):
        assert type(total) is type(operator)
        close(total.to_dense(), dense + added)
        close(total.logdet(), torch.logdet(dense + added))


@every_case
def test_a_diagonal_of_the_wrong_size_is_refused(case):
    with pytest.raises(RuntimeError, match="invalid diagonal"):
        case.make()[0].add_diagonal(torch.ones(SIZE + 1, dtype=torch.double))


def test_jitter_on_a_nearly_certain_posterior_loses_no_digits():
    torch.manual_seed(0)
    factor = 1e4 * torch.randn(SIZE, SIZE, dtype=torch.double)  # variances of 1e-8 beside the prior's of 1
    operator = LowRankPrecisionLinearOperator(IdentityLinearOperator(SIZE, dtype=torch.double), factor, inverse=True)
    jittered = operator.add_jitter(1e-9)
    eigenvalues, vectors = torch.linalg.eigh(factor @ factor.mT)
    inverse_eigenvalues = 1 / (1 / (1 + eigenvalues) + 1e-9)
    expected = vectors @ torch.diag(inverse_eigenvalues) @ vectors.mT
    torch.testing.assert_close(jittered.inverse().to_dense(), expected, rtol=1e-6, atol=0.1)
    torch.testing.assert_close(jittered.logdet(), -inverse_eigenvalues.log().sum())


@pytest.mark.parametrize("case", [case for case in LOW_RANK_CASES if case.kind == "precision"], ids=str)
@pytest.mark.parametrize("dtype", [torch.double, torch.float])
def test_adding_a_low_rank_term_keeps_the_structure(case, dtype, close):
    operator, dense = case.make(dtype)
    columns = torch.randn(4, *operator.shape[:-1], 2, dtype=dtype)
    for total in (operator.add_low_rank(columns), operator + RootLinearOperator(columns)):
        assert isinstance(total, LowRankPrecisionLinearOperator) and not total.is_inverse
        close(total.to_dense(), dense + columns.double() @ columns.double().mT)


@pytest.mark.parametrize("case", LOW_RANK_CASES, ids=str)
def test_low_rank_operators_are_each_others_inverse(case):
    operator, _ = case.make()
    assert operator.inverse().is_inverse is not operator.is_inverse
    assert operator.inverse().factor is operator.factor


@pytest.mark.parametrize("case", BLOCK_CASES, ids=str)
def test_inverse_of_blocks_flips_the_flag_on_the_same_factors(case):
    operator, _ = case.make()
    assert operator.inverse().is_inverse is not operator.is_inverse
    assert all(a is b for a, b in zip(operator.inverse().factors, operator.factors, strict=True))


def test_entries_above_the_diagonal_are_not_read():
    torch.manual_seed(0)
    clean = make_factors()
    dirty = tuple(factor + torch.full_like(factor, torch.nan).triu(1) for factor in clean)
    for inverse in (False, True):
        operator = BlockDiagonalCholeskyLinearOperator(*dirty, inverse=inverse)
        x = torch.randn(SIZE, 2, dtype=torch.double)
        expected = dense_blocks(clean, inverse)
        torch.testing.assert_close(operator @ x, expected @ x)
        torch.testing.assert_close(operator.solve(x), torch.linalg.solve(expected, x))
        torch.testing.assert_close(operator.to_dense(), expected)
        torch.testing.assert_close(operator.diagonal(), expected.diagonal())
        torch.testing.assert_close(operator.cholesky().to_dense(), torch.linalg.cholesky(expected))


def test_batch_shapes_of_the_arguments_are_broadcast():
    torch.manual_seed(0)
    shared, own = make_factors(groups=((2, 2),))[0], make_factors((3, 1), groups=((1, 3),))[0]
    base = BlockDiagonalCholeskyLinearOperator(shared, own)
    assert base.shape == (3, 1, 7, 7)
    factor = torch.randn(2, 7, 2, dtype=torch.double)
    operator = LowRankPrecisionLinearOperator(base, factor)
    expected = dense_blocks((shared, own)) + factor @ factor.mT
    assert operator.shape == (3, 2, 7, 7)
    torch.testing.assert_close(operator.to_dense(), expected)
    torch.testing.assert_close(operator.inverse().to_dense(), torch.linalg.inv(expected))
    on_identity = LowRankPrecisionLinearOperator(IdentityLinearOperator(7, dtype=torch.double), factor, inverse=True)
    assert on_identity.shape == (2, 7, 7)


def test_rank_zero_is_the_base():
    torch.manual_seed(0)
    base = BlockDiagonalCholeskyLinearOperator(*make_factors(), inverse=True)
    operator = LowRankPrecisionLinearOperator(base, torch.zeros(SIZE, 0, dtype=torch.double), inverse=True)
    x = torch.randn(SIZE, 2, dtype=torch.double)
    torch.testing.assert_close(operator @ x, base.solve(x))
    torch.testing.assert_close(operator.logdet(), -base.logdet())
    torch.manual_seed(3)
    sample = operator.zero_mean_mvn_samples(2)
    torch.manual_seed(3)
    torch.testing.assert_close(sample, base.inverse().zero_mean_mvn_samples(2))


@every_case
def test_samples_have_the_right_moments_and_follow_the_seed(case):
    operator, dense = case.make()
    torch.manual_seed(1)
    samples = operator.zero_mean_mvn_samples(20000)
    assert samples.shape == (20000, *operator.shape[:-1])
    covariance = torch.einsum("n...i,n...j->...ij", samples, samples) / samples.shape[0]
    # the standard error of an empirical (co)variance is sqrt((s_ij^2 + s_ii s_jj) / n); five of them
    variances = dense.diagonal(dim1=-2, dim2=-1)
    error = ((dense.square() + variances.unsqueeze(-1) * variances.unsqueeze(-2)) / samples.shape[0]).sqrt()
    assert ((covariance - dense).abs() < 5 * error).all()
    assert (samples.mean(0).abs() < 5 * (variances / samples.shape[0]).sqrt()).all()
    torch.manual_seed(1)
    torch.testing.assert_close(operator.zero_mean_mvn_samples(20000), samples, rtol=0, atol=0)
