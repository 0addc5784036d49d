import copy
import pickle

import gpytorch
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from gpytorch_gam.kernels import ANOVAKernel, LevelKernel, Uniform

CODES = [0.0, -3.0, 0.5, 0.0, 0.5, 16777216.0, 7.0]


def column(values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype).unsqueeze(-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_levels_are_equal_or_independent(dtype):
    other = [7.0, 0.5, 16777215.0]
    covariance = LevelKernel()(column(CODES, dtype), column(other, dtype)).to_dense()
    assert covariance.dtype == dtype
    assert covariance.tolist() == [[float(a == b) for b in other] for a in CODES]
    assert LevelKernel()(column(CODES, dtype)).to_dense().tolist() == [[float(a == b) for b in CODES] for a in CODES]


def test_the_diagonal_is_that_of_the_matrix():
    x, y = column([1.0, 2.0, 2.0]), column([1.0, 1.0, 2.0])
    kernel = LevelKernel()
    assert kernel(x, diag=True).tolist() == [1.0, 1.0, 1.0]
    assert kernel(x, y, diag=True).tolist() == kernel(x, y).to_dense().diagonal().tolist() == [1.0, 0.0, 1.0]


def test_a_fraction_is_one_level_in_both_precisions():
    single, double = column([0.1, 0.2], torch.float32), column([0.1, 0.2])
    assert single[0].double() != double[0]
    for x in (single, single.double()):
        covariance = LevelKernel()(x, double).to_dense()
        assert covariance.dtype == torch.float64
        assert torch.equal(covariance, torch.eye(2, dtype=torch.float64))


def test_integer_levels_give_a_floating_point_matrix():
    covariance = LevelKernel()(column([3, 4, 3], torch.int64)).to_dense()
    assert covariance.dtype == torch.get_default_dtype()
    assert covariance.tolist() == [[1.0, 0.0, 1.0], [0.0, 1.0, 0.0], [1.0, 0.0, 1.0]]


def test_nan_equals_nothing_but_has_the_variance_of_a_level():
    x = column([torch.nan, 1.0, torch.nan])
    kernel = LevelKernel()
    assert torch.equal(kernel(x).to_dense(), torch.eye(3, dtype=x.dtype))
    assert kernel(x, x.clone()).to_dense().tolist() == [[0.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]]
    assert kernel(x, diag=True).tolist() == [1.0, 1.0, 1.0]
    inputs = torch.cat([torch.zeros_like(x), x], -1)
    product = RBFKernel(active_dims=[0]) * LevelKernel(active_dims=[1])
    assert product(inputs, diag=True).tolist() == [1.0, 1.0, 1.0]


def test_batches_of_inputs_and_of_scales():
    x = torch.randint(3, (2, 5, 1), generator=torch.Generator().manual_seed(0)).double()
    kernel = ScaleKernel(LevelKernel(), batch_shape=torch.Size([4, 1])).double()
    kernel.outputscale = torch.tensor([[1.0], [2.0], [3.0], [4.0]])
    covariance = kernel(x).to_dense()
    assert covariance.shape == (4, 2, 5, 5)
    expected = (x == x.mT).double() * torch.tensor([1.0, 2.0, 3.0, 4.0]).reshape(4, 1, 1, 1)
    torch.testing.assert_close(covariance, expected, rtol=1e-6, atol=0)  # the outputscale is set in float32
    torch.testing.assert_close(kernel[2, 0](x[1]).to_dense(), covariance[2, 1])
    torch.testing.assert_close(kernel(x)[2, 1].to_dense(), covariance[2, 1])


def test_the_gradient_of_a_scale_counts_equal_pairs():
    kernel = ScaleKernel(LevelKernel())
    kernel.register_constraint(
        "raw_outputscale", gpytorch.constraints.Positive(transform=lambda x: x, inv_transform=lambda x: x)
    )
    kernel(column([1.0, 2.0, 1.0], torch.float32)).to_dense().sum().backward()
    assert kernel.raw_outputscale.grad.item() == 5.0


@pytest.mark.parametrize("size", [0, 1])
def test_few_rows(size):
    x = torch.zeros(size, 1)
    assert torch.equal(LevelKernel()(x).to_dense(), torch.ones(size, size))
    assert torch.equal(LevelKernel()(x, diag=True), torch.ones(size))


@pytest.mark.parametrize("num_columns", [0, 2])
def test_other_than_one_column_is_an_error(num_columns):
    with pytest.raises(ValueError, match=rf"kernel of one column, but x has {num_columns}; choose one by active_dims"):
        LevelKernel()(torch.zeros(3, num_columns)).to_dense()


def test_levels_that_float32_runs_together_are_an_error():
    x = column([1.0, 16777217.0])
    with pytest.raises(ValueError, match="x has the level 16777217, but levels beyond 16777216"):
        LevelKernel()(x).to_dense()
    with gpytorch.settings.debug(False):
        assert torch.equal(LevelKernel()(x).to_dense(), torch.eye(2, dtype=x.dtype))


def test_last_dim_is_batch_is_refused():
    with pytest.warns(DeprecationWarning), pytest.raises(NotImplementedError, match="LevelKernel has no last_dim"):
        LevelKernel()(torch.zeros(3, 1), last_dim_is_batch=True).to_dense()


def test_levels_are_no_distances():
    assert not LevelKernel().is_stationary
    with pytest.raises(ValueError, match=r"must be stationary, but LevelKernel is not; .* or CentredKernel"):
        ANOVAKernel(LevelKernel(), Uniform(0.0, 1.0))


def test_copies_and_pickles():
    kernel = LevelKernel(active_dims=(1,))
    x = torch.tensor([[0.0, 1.0], [1.0, 1.0], [0.0, 2.0]])
    expected = kernel(x).to_dense()
    assert expected.tolist() == [[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    for other in (copy.deepcopy(kernel), pickle.loads(pickle.dumps(kernel)), kernel.expand_batch(3)):
        assert torch.equal(other(x).to_dense(), expected)


def test_a_device_is_not_waited_for():
    # Tensors without values cannot be asked for any.
    assert LevelKernel()(torch.zeros(4, 1, device="meta")).to_dense().shape == (4, 4)
