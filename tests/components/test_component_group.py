"""Groups of components: shapes, columns, multipliers, names and errors."""

from __future__ import annotations

import gpytorch
import pytest
import torch
from gpytorch.kernels import LinearKernel, MaternKernel, PeriodicKernel, RBFKernel, RQKernel, ScaleKernel

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup
from gpytorch_gam.components import Levels, regular_grid
from gpytorch_gam.kernels import CentredKernel, LevelKernel
from gpytorch_gam.settings import fused_projection
from gpytorch_gam.terms import constant, factor


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
    r"missing of component group .* must be one of \['error', 'marginal'\], got 'drop'": {"missing": "drop"},
    "by_levels names 1 levels for 2 components": {"by": 2, "by_levels": [1.0]},
    "by_levels must be a sequence": {"by": 2, "by_levels": 1.0},
    "by_levels must hold finite numbers or None, got nan": {"by": 2, "by_levels": [1.0, float("nan")]},
    "by_levels must hold finite numbers or None, got 'a'": {"by": 2, "by_levels": [1.0, "a"]},
    "level 1.0 for a component without a column": {"by": [2, None], "by_levels": [None, 1.0]},
    r"level 5.0, which is none of the levels \[0, 1\] of column 2": {
        "by": 2,
        "by_levels": [0.0, 5.0],
        "levels": {2: Levels.of(2)},
    },
    "levels must map columns to Levels, got list": {"levels": [Levels.of(2)]},
    "levels must map columns to Levels, got int for column 0": {"levels": {0: 3}},
    r"levels names column 4, but the components read only columns \[0, 1\]": {"levels": {4: Levels.of(2)}},
    "is exact, so its inducing points": {"exact": True, "learn_inducing_locations": True},
    "must be a GPyTorch kernel, .* got 'rbf'": {"kernel": "rbf"},
    "must be a GPyTorch kernel, .* the class RBFKernel": {"kernel": RBFKernel},
    "must be a tensor .M, d., or one for each component, got 16": {"inducing_points": 16},
    "RBFKernel has ard_num_dims=3, but reads 1 column": {"kernel": ScaleKernel(RBFKernel(ard_num_dims=3))},
    "MaternKernel has ard_num_dims=2, but reads 1 column": {
        "kernel": RBFKernel() * MaternKernel(ard_num_dims=2, active_dims=[0])
    },
    "predictor of component group .* must be an integer, got 1.5": {"predictor": 1.5},
    "exact must be True or False, got 'no'": {"exact": "no"},
}


@pytest.mark.parametrize("message", BAD_GROUPS)
def test_errors_name_what_is_wrong(message: str) -> None:
    arguments = {"kernel": rbf(2), "columns": [[0], [1]], "inducing_points": torch.rand(2, 4, 1)}
    with pytest.raises((TypeError, ValueError), match=message):
        ComponentGroup(**{**arguments, **BAD_GROUPS[message]})


def test_constant_rejects_a_variance_that_is_not_positive() -> None:
    with pytest.raises(ValueError, match="variance of constant must be positive and finite, got 0"):
        constant(variance=0)


def test_inducing_points_move_with_the_module() -> None:
    group = ComponentGroup(rbf(1), columns=[[0]], inducing_points=regular_grid(0.0, 1.0, 4), by=1).double()
    assert group.inducing_points.dtype == torch.float64
    assert group.columns.dtype == torch.long
    assert isinstance(group, gpytorch.Module)


def test_components_of_levels_are_those_of_an_indicator_kernel() -> None:
    x = torch.cat([torch.randn(8, 2), torch.tensor([0.0, 1.0, -4.0, 1.0, 0.0, 7.0, -4.0, 1.0])[:, None]], dim=-1)
    x, codes = x.double(), [0.0, 1.0, -4.0]
    points = regular_grid(-1.0, 1.0, 4)
    plain = ComponentGroup(rbf(3), columns=[[0], [0], [1]], inducing_points=points).double()
    group = ComponentGroup(plain.kernel, [[0], [0], [1]], points, by=2, by_levels=codes).double()
    indicator = torch.stack([x[:, 2] == code for code in codes]).double()
    assert torch.equal(group.multiplier(x), indicator)
    assert group.has_multiplier
    expected = plain.prior_covariance(x).to_dense() * indicator[:, :, None] * indicator[:, None, :]
    torch.testing.assert_close(group.prior_covariance(x).to_dense(), expected)
    torch.testing.assert_close(group.prior_variance(x), plain.prior_variance(x) * indicator)
    for fused in ("blockwise", "off"):
        with fused_projection(fused):
            model = AdditiveGP(AdditivePredictor(group, constant(0.5)), "coupled").double()
            distribution = model.variational_strategy.variational_distribution
            features = model.variational_strategy.features(x)
            training = model.train()(x)
        torch.testing.assert_close(training.mean, features.mT @ distribution.mean)
        covariance = features.mT @ distribution.covariance_matrix @ features
        prior = expected.sum(0) + 0.5 - features.mT @ features
        torch.testing.assert_close(training.variance, (prior + covariance).diagonal(), rtol=1e-6, atol=1e-6)
    assert torch.equal(features[:12, 5], torch.zeros(12).double())  # 7 is no level of these


def test_multipliers_and_levels_mix_in_a_group() -> None:
    x = torch.tensor([[0.3, 2.5, 1.0], [0.1, -1.0, 0.0]])
    group = ComponentGroup(
        rbf(3), [[0], [0], [0]], regular_grid(0.0, 1.0, 3), by=[2, 1, None], by_levels=[1.0, None, None]
    )
    assert torch.equal(group.multiplier(x), torch.tensor([[1.0, 0.0], [2.5, -1.0], [1.0, 1.0]]))
    assert group.names == ("x0|x2=1", "x0*x1", "x0")


def test_names_of_levels_are_their_labels() -> None:
    cities = Levels.from_values(["Oslo", "Bergen"])
    group = ComponentGroup(
        rbf(2), [[0], [0]], regular_grid(0.0, 1.0, 3), by=1, by_levels=cities.codes, levels={1: cities}, predictor=1
    )
    assert group.names == ("x0|x1=Bergen.1", "x0|x1=Oslo.1")
    assert group.names_reading(1) == list(group.names)
    assert group.names_reading(2) == []


def test_levels_that_are_fractions_survive_conversions() -> None:
    group = ComponentGroup(rbf(1), [[0]], regular_grid(0.0, 1.0, 3), by=1, by_levels=[0.1])
    single, double = torch.tensor([[0.5, 0.1]]), torch.tensor([[0.5, 0.1]], dtype=torch.float64)
    assert group.multiplier(single).item() == 1
    for converted in (group.double(), group.float().double()):
        assert converted.multiplier(double).item() == 1
        assert converted.multiplier(single.double()).item() == 1


def random_effect(num_levels: int, variance: float) -> ComponentGroup:
    kernel = ScaleKernel(LevelKernel())
    kernel.outputscale = variance
    return ComponentGroup(kernel, [[0]], torch.arange(float(num_levels))[:, None], exact=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("family", ["block_low_rank", "low_rank", "coupled"])
def test_an_unseen_level_of_an_exact_group_has_the_prior(family: str, dtype: torch.dtype) -> None:
    smooth = ComponentGroup(rbf(1), [[1]], regular_grid(0.0, 1.0, 4))
    model = AdditiveGP(AdditivePredictor(random_effect(3, 1.7), smooth), family).to(dtype)
    model.variational_strategy._initialize_once()
    with torch.no_grad():
        for parameter in model.variational_parameters():
            parameter.add_(0.4 * torch.randn_like(parameter))
    codes = torch.tensor([0.0, 9.0, 2.0, -5.0, 9.0, 0.0])
    x = torch.stack([codes, torch.rand(6)], dim=-1).to(dtype)
    new, variance = [1, 3, 4], torch.tensor(1.7, dtype=dtype)
    expected = torch.tensor([[1.7, 0.0, 1.7], [0.0, 1.7, 0.0], [1.7, 0.0, 1.7]], dtype=dtype)
    tolerance = {"rtol": 1e-5, "atol": 1e-5}
    for mode in (model.train(), model.eval()):
        effect = mode.components(x)["x0"]
        torch.testing.assert_close(effect.mean[new], torch.zeros(3, dtype=dtype), **tolerance)
        torch.testing.assert_close(effect.variance[new], variance.expand(3), **tolerance)
        torch.testing.assert_close(effect.covariance()[new][:, new], expected, **tolerance)
        assert (effect.covariance()[[0, 2, 5]][:, new].abs() < 1e-6).all()
        assert (effect.variance[[0, 2, 5]] < 5.0).all()
        rest = mode.components(x)["x1"].variance
        cross = mode.components(x).cross_covariance()
        assert (cross[new, 0, 1].abs() < 1e-6).all()
        torch.testing.assert_close(mode(x).variance[new], (variance + rest)[new], **tolerance)
    joint = model(x)
    smooth_covariance = model.components(x)["x1"].covariance()
    torch.testing.assert_close(
        joint.covariance_matrix[new][:, new], expected + smooth_covariance[new][:, new], **tolerance
    )
    torch.testing.assert_close(joint.variance, joint.covariance_matrix.diagonal(), **tolerance)
    draws = model.components(x).sample(torch.Size([4000])).components[:, 0]
    assert torch.equal(draws[:, 0], draws[:, 5])  # known levels have no residual
    assert (draws[:, 1] - draws[:, 4]).abs().max() < 2e-3  # the jitter of draws, 1e-4 of a standard deviation
    assert abs(draws[:, 1].var() / 1.7 - 1) < 0.12  # standard error .022
    assert abs(torch.corrcoef(draws[:, [1, 3]].mT)[0, 1]) < 0.08  # standard error .016
    seen = torch.cov(draws[:, [0, 2]].mT)
    torch.testing.assert_close(seen, effect.covariance()[[0, 2]][:, [0, 2]], rtol=0.15, atol=0.15)


def test_known_levels_keep_the_small_root_of_their_covariance() -> None:
    group = random_effect(3, 1.7)
    known = torch.tensor([[0.0], [2.0], [0.0], [1.0], [2.0]])
    covariance = group.prior_covariance(known)
    assert covariance.root.shape == (1, 5, 3)  # and not 5 x 5
    torch.testing.assert_close(covariance.to_dense(), group.kernel(known).to_dense()[None])
    unknown = known + 0.5
    torch.testing.assert_close(group.prior_covariance(unknown).to_dense(), group.kernel(unknown).to_dense()[None])
    torch.testing.assert_close(group.prior_covariance(unknown).diagonal(), group.prior_variance(unknown))


def test_levels_beyond_a_centred_factor_are_not_determined_by_it() -> None:
    levels = torch.arange(4.0)
    kernel = ScaleKernel(CentredKernel(LevelKernel(), levels))
    group = ComponentGroup(kernel, [[0]], levels[:3, None], exact=True).double()
    x = torch.tensor([[3.0], [0.0], [1.0]], dtype=torch.float64)  # 3 is minus the sum of the others
    cholesky = group.inducing_cholesky(0.0)
    assert not group.undetermined_rows(x, cholesky).any()
    assert group.undetermined_rows(x + 10, cholesky).all()
    torch.testing.assert_close(group.prior_covariance(x).to_dense()[0], kernel(x).to_dense())
    torch.testing.assert_close(group.prior_covariance(x + 10).to_dense()[0], kernel(x + 10).to_dense())


def test_several_draws_of_batched_models_with_unseen_levels() -> None:
    size = torch.Size([2, 1])
    kernel = ScaleKernel(LevelKernel(), batch_shape=size)
    kernel.outputscale = torch.tensor([[1.0], [4.0]])
    group = ComponentGroup(kernel, [[0]], torch.arange(3.0)[:, None].expand(2, 1, 3, 1), exact=True)
    model = AdditiveGP(AdditivePredictor(group)).eval()
    x = torch.tensor([[0.0], [8.0], [8.0]])
    draws = model.components(x).sample(torch.Size([3000])).components  # 3000 x 2 x 1 x 3
    assert draws.shape == (3000, 2, 1, 3)
    torch.testing.assert_close(draws[..., 0, 1].var(0), torch.tensor([1.0, 4.0]), rtol=0.15, atol=0)
    torch.testing.assert_close(model(x).variance[:, 1], torch.tensor([1.0, 4.0]))


def test_a_state_with_other_levels_is_refused() -> None:
    trained, other = factor(0, [-1.0, 0.0, 1.0]), factor(0, [5.0, 6.0, 7.0])
    with pytest.raises(ValueError, match=r"levels: .*\[-1.0.* in the state, .*\[5.0.* here"):
        other.load_state_dict(trained.state_dict())
    assert other.inducing_points.flatten().tolist() == [5.0, 6.0]
    factor(0, [-1.0, 0.0, 1.0]).load_state_dict(trained.state_dict())


def test_gradients_of_torch_func_reach_through_a_model() -> None:
    group = ComponentGroup(ScaleKernel(RQKernel()), [[0]], torch.linspace(0, 1, 4).reshape(4, 1))
    model = AdditiveGP(AdditivePredictor(group), rank=2).double().train()
    x = torch.rand(3, 5, 1).double()
    model(x)  # initialises the posterior
    found = torch.func.grad(lambda rows: model(rows).variance.sum())(x)
    rows = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(model(rows).variance.sum(), rows)
    torch.testing.assert_close(found, expected)
