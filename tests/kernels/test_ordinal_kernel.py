import copy
import math
import pickle

import pytest
import torch
from gpytorch.constraints import Interval, Positive
from gpytorch.kernels import ScaleKernel
from gpytorch.priors import GammaPrior

from gpytorch_gam.kernels import ANOVAKernel, LevelKernel, OrdinalKernel, Uniform

LEVELS = [4.0, -1.0, 0.1, 2.0, 16777216.0]  # in this order


def column(values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype).unsqueeze(-1)


def with_lengthscale(kernel, lengthscale):
    """An identity in place of the softplus, so that the lengthscale is the number given."""
    kernel.register_constraint("raw_lengthscale", Positive(transform=lambda x: x, inv_transform=lambda x: x))
    return kernel.initialize(raw_lengthscale=lengthscale)


def expected_correlation(a, b, lengthscale):
    if a in LEVELS and b in LEVELS:
        return math.exp(-abs(LEVELS.index(a) - LEVELS.index(b)) / lengthscale)
    return float(a == b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_correlations_fall_with_the_distance_in_the_order(dtype):
    kernel = with_lengthscale(OrdinalKernel(LEVELS).to(dtype), 2.5)
    rows, columns = [*LEVELS, 7.0, 2.0], [0.1, 7.0, 3.0, 4.0]
    covariance = kernel(column(rows, dtype), column(columns, dtype)).to_dense()
    assert covariance.dtype == dtype
    expected = torch.tensor([[expected_correlation(a, b, 2.5) for b in columns] for a in rows], dtype=torch.float64)
    tolerance = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(covariance.double(), expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(
        kernel(column(rows[:4], dtype), column(columns, dtype), diag=True), covariance[:4].diagonal()
    )


def test_unknown_levels_are_independent_of_all_others():
    x = column([4.0, 5.0, 5.0, -7.0, torch.nan, torch.nan])
    covariance = OrdinalKernel(LEVELS)(x).to_dense()
    expected = torch.eye(6, dtype=x.dtype)
    expected[1, 2] = expected[2, 1] = 1.0
    assert torch.equal(covariance, expected)
    assert torch.equal(OrdinalKernel(LEVELS)(x, diag=True), torch.ones(6, dtype=x.dtype))


def test_a_fraction_is_one_level_in_both_precisions():
    single, double = column([0.1], torch.float32), column([0.1])
    for levels in ([0.1, 1.0], torch.tensor([0.1, 1.0])):
        kernel = with_lengthscale(OrdinalKernel(levels), 1.0)
        for x in (single, single.double(), double):
            assert kernel(x, column([1.0])).to_dense().item() == pytest.approx(math.exp(-1), rel=1e-7)


@pytest.mark.parametrize("lengthscale", [0.0, 1e-30, 0.3, 1.0, 30.0])
def test_the_matrix_is_positive_definite_and_its_condition_number_bounded(lengthscale):
    levels = torch.arange(20.0, dtype=torch.float64)
    kernel = with_lengthscale(OrdinalKernel(levels).double(), lengthscale)
    eigenvalues = torch.linalg.eigvalsh(kernel(levels.unsqueeze(-1)).to_dense())
    rho = math.exp(-1 / lengthscale) if lengthscale else 0.0
    assert eigenvalues.min() > 0
    assert eigenvalues.max() / eigenvalues.min() <= ((1 + rho) / (1 - rho)) ** 2 * (1 + 1e-9)


def test_neighbours_alone_are_dependent_given_all_others():
    levels = torch.arange(6.0, dtype=torch.float64)
    precision = torch.linalg.inv(OrdinalKernel(levels).double()(levels.unsqueeze(-1)).to_dense())
    # The kernel matrix is well conditioned, so its inverse has zeros to rounding.
    torch.testing.assert_close(precision.tril(-2), torch.zeros_like(precision), rtol=0, atol=1e-13)
    assert (precision.diagonal(1) < -0.1).all()


def test_at_a_short_lengthscale_levels_are_independent():
    x = column([4.0, 2.0, 4.0, -1.0])
    kernel = with_lengthscale(OrdinalKernel(LEVELS), 1e-4)
    assert torch.equal(kernel(x).to_dense(), LevelKernel()(x).to_dense())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("lengthscale", [0.0, 1e-30, 1.0, 1e6])
def test_the_gradient_is_finite(lengthscale, dtype):
    kernel = with_lengthscale(OrdinalKernel(LEVELS).to(dtype), lengthscale)
    x = column([4.0, 2.0, 4.0, 7.0, -1.0], dtype)
    covariance = kernel(x).to_dense()
    assert torch.isfinite(covariance).all()
    covariance.sum().backward()
    assert torch.isfinite(kernel.raw_lengthscale.grad).all()


@pytest.mark.parametrize("diag", [False, True])
def test_the_gradient_in_the_lengthscale(diag):
    x, y = column([4.0, 2.0, 7.0, -1.0]), column([2.0, 2.0, 7.0, 4.0])
    kernel = with_lengthscale(OrdinalKernel(LEVELS, batch_shape=torch.Size([2])), 1.0)

    def covariance(lengthscale):
        return torch.func.functional_call(kernel, {"raw_lengthscale": lengthscale}, (x, y, diag))

    # GPyTorch's own call evaluates later, without the replaced parameter.
    kernel.__class__ = type("EagerKernel", (OrdinalKernel,), {"__call__": OrdinalKernel.forward})
    lengthscale = torch.tensor([[[0.7]], [[3.0]]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(covariance, lengthscale)


def test_batches_of_lengthscales():
    kernel = with_lengthscale(OrdinalKernel(LEVELS, batch_shape=torch.Size([3, 2]), active_dims=(1,)), 1.0)
    kernel.initialize(raw_lengthscale=torch.arange(1.0, 7.0).reshape(3, 2, 1, 1))
    x = torch.cat([torch.zeros(4, 1), column([4.0, 2.0, 9.0, -1.0], torch.float32)], -1)
    covariance = kernel(x).to_dense()
    assert covariance.shape == (3, 2, 4, 4)
    assert covariance[2, 0, 0, 1].item() == pytest.approx(math.exp(-3 / 5), rel=1e-6)
    for index in [(2, 0), (slice(None), 1), 1, (torch.tensor([0, 2]), torch.tensor([1, 1]))]:
        torch.testing.assert_close(kernel[index](x).to_dense(), covariance[index], rtol=0, atol=0)
    torch.testing.assert_close(kernel[..., 1](x).to_dense(), covariance[:, 1], rtol=0, atol=0)
    torch.testing.assert_close(kernel(x)[2, 0].to_dense(), covariance[2, 0])
    torch.testing.assert_close(
        kernel[0, 0].expand_batch(2)(x).to_dense(), covariance[0, 0].expand(2, 4, 4), rtol=0, atol=0
    )
    inputs = x.expand(3, 2, 4, 2)
    torch.testing.assert_close(kernel(inputs, diag=True), torch.ones(3, 2, 4))


def test_priors_and_constraints_are_those_of_gpytorch():
    kernel = OrdinalKernel(LEVELS, lengthscale_prior=GammaPrior(2.0, 1.0), lengthscale_constraint=Interval(0.1, 10.0))
    kernel.lengthscale = 3.0
    assert kernel.lengthscale.item() == pytest.approx(3.0)
    assert [name for name, *_ in kernel.named_priors()] == ["lengthscale_prior"]


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        ([1.0], "two or more numbers in their order, got shape"),
        ([], "two or more numbers in their order, got shape"),
        ([[1.0, 2.0]], "two or more numbers in their order, got shape"),
        ([1.0, 2.0, 1.0], "distinct in single precision"),
        ([1.0, 1.0 + 1e-12], "distinct in single precision"),
        ([1.0, 16777217.0], "at most 16777216 in magnitude"),
        ([1.0, torch.nan], "levels must be finite"),
    ],
)
def test_levels_that_are_no_order_are_an_error(levels, message):
    with pytest.raises(ValueError, match=message):
        OrdinalKernel(levels)


def test_other_arguments_that_do_not_fit_are_errors():
    with pytest.raises(ValueError, match="ard_num_dims=2"):
        OrdinalKernel(LEVELS, ard_num_dims=2)
    with pytest.raises(ValueError, match="kernel of one column, but x has 2"):
        OrdinalKernel(LEVELS)(torch.zeros(3, 2)).to_dense()
    with pytest.raises(ValueError, match="must be stationary, but OrdinalKernel is not"):
        ANOVAKernel(OrdinalKernel(LEVELS), Uniform(0.0, 1.0))


@pytest.mark.parametrize("size", [0, 1])
def test_few_rows(size):
    x = torch.full((size, 1), 4.0)
    assert torch.equal(OrdinalKernel(LEVELS)(x).to_dense(), torch.ones(size, size))


def test_the_order_travels_with_copies_pickles_and_states():
    kernel = ScaleKernel(OrdinalKernel(LEVELS))
    kernel.base_kernel.lengthscale = 2.0
    x = column([4.0, 2.0, 7.0, -1.0], torch.float32)
    expected = kernel(x).to_dense()
    other = ScaleKernel(OrdinalKernel(sorted(LEVELS)))
    assert not torch.equal(other(x).to_dense(), expected)
    other.load_state_dict(kernel.state_dict())
    for same in (other, copy.deepcopy(kernel), pickle.loads(pickle.dumps(kernel))):
        assert torch.equal(same(x).to_dense(), expected)


def test_a_device_is_not_waited_for():
    # Tensors without values cannot be asked for any.
    kernel = OrdinalKernel(LEVELS).to("meta")
    assert kernel(torch.zeros(4, 1, device="meta")).to_dense().shape == (4, 4)
