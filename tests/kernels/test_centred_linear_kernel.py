import copy
import pickle

import pytest
import torch
from gpytorch.kernels import ScaleKernel

from gpytorch_gam.kernels import CentredLinearKernel


def data(num_rows=30, dtype=torch.float64):
    return 5.0 + 2.0 * torch.randn(num_rows, 1, generator=torch.Generator().manual_seed(0), dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_is_the_product_of_scaled_offsets(dtype):
    x, y = data(6, dtype), data(4, dtype) + 1.0
    kernel = CentredLinearKernel(4.3, 1.7)
    covariance = kernel(x, y).to_dense()
    assert covariance.dtype == dtype
    expected = (x.double() - 4.3) @ (y.double() - 4.3).mT / 1.7**2
    torch.testing.assert_close(covariance.double(), expected, rtol=4 * torch.finfo(dtype).eps, atol=0)
    torch.testing.assert_close(kernel(x[:4], y, diag=True), covariance[:4].diagonal(), rtol=0, atol=0)
    assert (kernel(x, diag=True) >= 0).all()


def test_mean_and_standard_deviation_make_a_component_of_variance_one_that_sums_to_zero():
    x = data()
    covariance = CentredLinearKernel(x.mean(), x.std(correction=0))(x).to_dense()
    assert covariance.diagonal().mean().item() == pytest.approx(1.0, rel=1e-12)
    assert covariance.sum(-1).abs().max() < 1e-12


def test_a_centre_far_from_zero_costs_no_precision():
    x = torch.tensor([[16777217.0], [16777219.0]], dtype=torch.float64)
    kernel = CentredLinearKernel(16777218.0, 1.0)
    assert kernel(x).to_dense().tolist() == [[1.0, -1.0], [-1.0, 1.0]]
    single = torch.tensor([[16777216.0], [16777220.0]])  # the centre is between two numbers of float32
    assert CentredLinearKernel(16777217.0, 1.0)(single).to_dense().tolist() == [[1.0, -3.0], [-3.0, 9.0]]


def test_one_centre_and_scale_a_component():
    centre, scale = torch.tensor([0.0, 1.0, 5.0]), torch.tensor([1.0, 2.0, 0.5])
    kernel = ScaleKernel(CentredLinearKernel(centre, scale, active_dims=(1,)), batch_shape=torch.Size([3]))
    assert kernel.base_kernel.batch_shape == (3,)
    x = torch.cat([torch.zeros(5, 1), data(5, torch.float32)], -1)
    covariance = kernel(x).to_dense()
    assert covariance.shape == (3, 5, 5)
    torch.testing.assert_close(kernel(x.expand(3, 5, 2), diag=True), covariance.diagonal(dim1=-2, dim2=-1))
    base = kernel.base_kernel(x).to_dense()
    for index in [0, -1, slice(1, 3), torch.tensor([2, 0])]:
        torch.testing.assert_close(kernel.base_kernel[index](x).to_dense(), base[index], rtol=0, atol=0)
    torch.testing.assert_close(kernel.base_kernel[..., 2](x).to_dense(), base[2], rtol=0, atol=0)
    torch.testing.assert_close(kernel.base_kernel(x)[1].to_dense(), base[1])
    expanded = kernel.base_kernel.expand_batch(2, 3)
    torch.testing.assert_close(expanded(x).to_dense(), base.expand(2, 3, 5, 5), rtol=0, atol=0)


def test_shapes_of_centre_and_scale_broadcast():
    kernel = CentredLinearKernel(torch.zeros(2, 1), torch.ones(3))
    assert kernel.batch_shape == (2, 3)
    assert kernel(torch.ones(4, 1)).shape == (2, 3, 4, 4)


def test_the_gradient_in_the_inputs():
    kernel = CentredLinearKernel(0.3, 2.0)
    x, y = data(3).requires_grad_(), data(2).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: kernel(a, b).to_dense(), (x, y))
    assert torch.autograd.gradcheck(lambda a: kernel(a).to_dense(), x)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 0.0), "scale must be above zero, got 0.0; a column that is constant"),
        ((0.0, [1.0, -1.0]), "scale must be above zero"),
        ((0.0, torch.inf), "scale must be finite"),
        ((torch.nan, 1.0), "centre must be finite"),
        (([0.0, 1.0], [1.0, 1.0, 1.0]), "CentredLinearKernel"),
    ],
)
def test_arguments_that_make_no_line_are_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        CentredLinearKernel(*arguments)


def test_more_columns_are_an_error():
    with pytest.raises(ValueError, match="kernel of one column, but x has 2"):
        CentredLinearKernel(0.0, 1.0)(torch.zeros(3, 2)).to_dense()


@pytest.mark.parametrize("size", [0, 1])
def test_few_rows(size):
    x = torch.ones(size, 1)
    assert torch.equal(CentredLinearKernel(0.0, 1.0)(x).to_dense(), torch.ones(size, size))


def test_centre_and_scale_travel_with_copies_pickles_and_states():
    kernel, x = CentredLinearKernel([0.1, 0.2], 3.0), data(4, torch.float32)
    assert not list(kernel.parameters())
    expected = kernel(x).to_dense()
    other = CentredLinearKernel([0.0, 0.0], 1.0)
    other.load_state_dict(kernel.state_dict())
    for same in (other, copy.deepcopy(kernel), pickle.loads(pickle.dumps(kernel))):
        assert torch.equal(same(x).to_dense(), expected)


def test_a_device_is_not_waited_for():
    # Tensors without values cannot be asked for any.
    kernel = CentredLinearKernel(0.0, 1.0).to("meta")
    assert kernel(torch.zeros(4, 1, device="meta")).to_dense().shape == (4, 4)
