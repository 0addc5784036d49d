"""Groups of components: shapes, columns, multipliers, names and errors."""

from __future__ import annotations

import gpytorch
import pytest
import torch
from gpytorch.kernels import LinearKernel, MaternKernel, PeriodicKernel, RBFKernel, RQKernel, ScaleKernel

from gpytorch_gam import ComponentGroup
from gpytorch_gam.components import constant, regular_grid


def rbf(size: int) -> ScaleKernel:
    kernel = ScaleKernel(RBFKernel(batch_shape=torch.Size([size])), batch_shape=torch.Size([size]))
    kernel.base_kernel.lengthscale = torch.rand(size, 1, 1) + 0.5
    kernel.outputscale = torch.rand(size) + 0.5
    return kernel


def dense_covariance(group: ComponentGroup, index: int, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """One component's RBF covariance, written out."""
    base = group.kernel.base_kernel.lengthscale[index, 0, 0]
    squared = (left[:, None, :] - right[None, :, :]).square().sum(-1)
    return group.kernel.outputscale[index] * torch.exp(-0.5 * squared / base**2)


def test_components_read_their_own_columns() -> None:
    x, points = torch.randn(7, 4), torch.randn(3, 5, 2)
    group = ComponentGroup(rbf(3), columns=[[0, 1], [1, 3], [3, 0]], inducing_points=points)
    cross = group.cross_covariance(x)
    assert cross.shape == (3, 5, 7)
    for index, columns in enumerate([[0, 1], [1, 3], [3, 0]]):
        expected = dense_covariance(group, index, points[index], x[:, columns])
        torch.testing.assert_close(cross[index], expected)
        torch.testing.assert_close(
            group.prior_covariance(x).to_dense()[index].diagonal(), group.prior_variance(x)[index]
        )


def test_multiplier_scales_cross_and_prior_covariance() -> None:
    x = torch.randn(6, 3)
    points = regular_grid(-1.0, 1.0, 4)
    plain = ComponentGroup(rbf(2), columns=[[0], [1]], inducing_points=points)
    group = ComponentGroup(plain.kernel, columns=[[0], [1]], inducing_points=points, by=[None, 2])
    assert group.names == ("x0", "x1*x2")
    scale = torch.stack([torch.ones(6), x[:, 2]])
    torch.testing.assert_close(group.cross_covariance(x), plain.cross_covariance(x) * scale[:, None, :])
    torch.testing.assert_close(group.prior_variance(x), plain.prior_variance(x) * scale**2)
    expected = plain.prior_covariance(x).to_dense() * scale[:, :, None] * scale[:, None, :]
    torch.testing.assert_close(group.prior_covariance(x).to_dense(), expected)
    torch.testing.assert_close(group.prior_covariance(x).diagonal(), group.prior_variance(x))
    everywhere = ComponentGroup(plain.kernel, columns=[[0], [1]], inducing_points=points, by=2)
    assert everywhere.names == ("x0*x2", "x1*x2")


def test_shared_hyperparameters_broadcast_over_components() -> None:
    group = ComponentGroup(ScaleKernel(RBFKernel()), columns=[[0], [1], [2]], inducing_points=regular_grid(0.0, 1.0, 4))
    assert group.cross_covariance(torch.rand(5, 3)).shape == (3, 4, 5)
    assert group.prior_variance(torch.rand(5, 3)).shape == (3, 5)
    assert group.batch_shape == torch.Size([])


def test_batch_shapes_of_models_and_inputs_broadcast() -> None:
    size = torch.Size([2, 3])
    kernel = ScaleKernel(RBFKernel(batch_shape=size), batch_shape=size)
    group = ComponentGroup(kernel, columns=[[0], [1], [2]], inducing_points=torch.rand(2, 3, 4, 1))
    assert group.batch_shape == torch.Size([2])
    assert group.cross_covariance(torch.rand(5, 1, 6, 3)).shape == (5, 2, 3, 4, 6)
    assert group.prior_variance(torch.rand(5, 1, 6, 3)).shape == (5, 2, 3, 6)


@pytest.mark.parametrize("learn", [True, False])
def test_inducing_points_are_parameters_only_on_request(learn: bool) -> None:
    points = regular_grid(0.0, 1.0, 4)
    group = ComponentGroup(rbf(1), columns=[[0]], inducing_points=points, learn_inducing_locations=learn)
    assert ("inducing_points" in dict(group.named_parameters())) == learn
    assert "inducing_points" in group.state_dict()
    points.zero_()  # the user's tensor is not shared
    assert group.inducing_points.abs().sum() > 0


def test_constant_component_has_one_exact_inducing_variable() -> None:
    group = constant(variance=4.0, name="level")
    assert (group.num_components, group.num_inducing, group.input_dim) == (1, 1, 0)
    assert group.names == ("level",)
    assert group.exact
    assert torch.equal(group.cross_covariance(torch.rand(5, 3)), torch.full((1, 1, 5), 4.0))
    assert torch.equal(group.inducing_covariance(torch.float64), torch.full((1, 1, 1), 4.0, dtype=torch.float64))


@pytest.mark.parametrize("kernel", [RBFKernel, MaternKernel, RQKernel, PeriodicKernel, LinearKernel])
def test_inducing_covariance_is_float64_for_float32_parameters(kernel: type) -> None:
    size = torch.Size([2])
    group = ComponentGroup(
        ScaleKernel(kernel(batch_shape=size), batch_shape=size), [[0], [1]], regular_grid(0.1, 1.0, 4)
    )
    single, double = group.inducing_covariance(), group.inducing_covariance(torch.float64)
    assert (single.dtype, double.dtype) == (torch.float32, torch.float64)
    torch.testing.assert_close(group.double().inducing_covariance(), double)


BAD_GROUPS = {
    "unequal numbers of columns": {"columns": [[0], [1, 2]]},
    "non-negative integers, got -1": {"columns": [[0], [-1]]},
    "non-negative integers, got 1.5": {"columns": [[0], [1.5]]},
    "columns must be a non-empty sequence": {"columns": []},
    "one sequence of column indices": {"columns": [0, 1]},
    r"shape \(3, 4, 1\), expected \(\*batch, 2, M, 1\)": {"inducing_points": torch.rand(3, 4, 1)},
    "each component reads 1 column": {"inducing_points": torch.rand(2, 4, 2)},
    "are empty": {"inducing_points": torch.rand(2, 0, 1)},
    "floating point": {"inducing_points": torch.ones(2, 4, 1, dtype=torch.long)},
    "NaN or infinity": {"inducing_points": torch.full((2, 4, 1), float("nan"))},
    r"unequal shapes \[\(4, 1\), \(3, 1\)\]": {"inducing_points": [torch.rand(4, 1), torch.rand(3, 1)]},
    r"batch_shape \(3,\)": {"kernel": rbf(3)},
    "names has 1 entries for 2 components": {"names": ["a"]},
    "got the string 'ab'": {"names": "ab"},
    "by names 1 multiplier columns for 2": {"by": [0]},
    "by must hold non-negative": {"by": [0, -2]},
    "predictor of component group": {"predictor": -1},
    "is exact, so its inducing points": {"exact": True, "learn_inducing_locations": True},
}


@pytest.mark.parametrize("message", BAD_GROUPS)
def test_errors_name_what_is_wrong(message: str) -> None:
    arguments = {"kernel": rbf(2), "columns": [[0], [1]], "inducing_points": torch.rand(2, 4, 1)}
    with pytest.raises(ValueError, match=message):
        ComponentGroup(**{**arguments, **BAD_GROUPS[message]})


def test_constant_rejects_a_variance_that_is_not_positive() -> None:
    with pytest.raises(ValueError, match="variance of the constant component must be positive, got 0"):
        constant(variance=0)


def test_inducing_points_move_with_the_module() -> None:
    group = ComponentGroup(rbf(1), columns=[[0]], inducing_points=regular_grid(0.0, 1.0, 4), by=1).double()
    assert group.inducing_points.dtype == torch.float64
    assert group.columns.dtype == torch.long
    assert isinstance(group, gpytorch.Module)
