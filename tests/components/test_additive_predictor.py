"""The additive predictor as a prior, and its input checks."""

from __future__ import annotations

import gpytorch
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from gpytorch_gam import AdditivePredictor, ComponentGroup
from gpytorch_gam.components import Levels, regular_grid
from gpytorch_gam.terms import constant


def univariate(columns: list[int], **kwargs: object) -> ComponentGroup:
    size = torch.Size([len(columns)])
    kernel = ScaleKernel(RBFKernel(batch_shape=size), batch_shape=size)
    return ComponentGroup(kernel, [[c] for c in columns], regular_grid(0.0, 1.0, 5), **kwargs)


def bivariate(**kwargs: object) -> ComponentGroup:
    return ComponentGroup(ScaleKernel(RBFKernel(ard_num_dims=2)), [[0, 2]], torch.rand(7, 2), **kwargs)


def make_predictor(mean: object = None) -> AdditivePredictor:
    return AdditivePredictor(univariate([0, 1, 2]), bivariate(), constant(2.0), mean=mean)


def test_sizes_names_and_slices() -> None:
    predictor = make_predictor()
    assert predictor.names == ("x0", "x1", "x2", "x0:x2", "constant")
    assert predictor.num_inducing_per_component == (5, 5, 5, 7, 1)
    assert (predictor.num_components, predictor.num_inducing_total, predictor.num_predictors) == (5, 23, 1)
    assert predictor.inducing_slices["x0:x2"] == slice(15, 22)
    assert predictor.component_indices(["constant", "x1"]) == [4, 1]
    assert predictor.component_indices(None, exclude=["constant", "x1"]) == [0, 2, 3]
    assert predictor.group_of("x0:x2") is predictor.groups[1]
    with pytest.raises(ValueError, match=r"unknown components \['x9'\]"):
        predictor.group_of("x9")


def test_prior_is_the_sum_of_the_components_plus_the_mean() -> None:
    mean = gpytorch.means.ConstantMean()
    mean.constant = torch.tensor(3.0)
    predictor, x = make_predictor(mean), torch.rand(8, 3)
    prior = predictor(x)
    expected = sum(group.prior_covariance(x).to_dense().sum(-3) for group in predictor.groups)
    torch.testing.assert_close(prior.covariance_matrix, expected)
    torch.testing.assert_close(prior.variance, expected.diagonal())
    torch.testing.assert_close(prior.mean, torch.full((8,), 3.0))


def test_prior_has_one_task_for_each_predictor() -> None:
    predictor = AdditivePredictor(univariate([0, 1]), univariate([1], names=["scale"], predictor=1))
    x = torch.rand(6, 2)
    prior = predictor(x)
    assert isinstance(prior, gpytorch.distributions.MultitaskMultivariateNormal)
    assert prior.event_shape == (6, 2)
    first, second = (group.prior_covariance(x).to_dense().sum(-3) for group in predictor.groups)
    torch.testing.assert_close(prior.covariance_matrix, torch.block_diag(first, second))
    torch.testing.assert_close(prior.variance, torch.stack([first.diagonal(), second.diagonal()], -1))


def test_predictor_is_the_body_of_an_exact_gp() -> None:
    x, x_new = torch.rand(40, 3).double(), torch.rand(9, 3).double()
    y = torch.sin(4 * x[:, 0]) + x[:, 1]

    class Exact(gpytorch.models.ExactGP):
        def __init__(self) -> None:
            super().__init__(x, y, gpytorch.likelihoods.GaussianLikelihood())
            self.predictor = make_predictor()

        def forward(self, inputs: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
            return self.predictor(inputs)

    model = Exact().double()
    mll = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    mll(model.train()(x), y).backward()
    assert all(p.grad is not None for p in model.predictor.parameters())
    with torch.no_grad():
        posterior = model.eval()(x_new)
        full = model.predictor(torch.cat([x, x_new])).covariance_matrix
        noisy = full[:40, :40] + model.likelihood.noise * torch.eye(40)
        expected = full[40:, :40] @ torch.linalg.solve(noisy, y)
        torch.testing.assert_close(posterior.mean, expected, rtol=1e-6, atol=1e-8)
        covariance = full[40:, 40:] - full[40:, :40] @ torch.linalg.solve(noisy, full[:40, 40:])
        torch.testing.assert_close(posterior.covariance_matrix, covariance, rtol=1e-5, atol=1e-7)


def test_batches_of_inputs_and_of_indexed_priors() -> None:
    predictor, x = make_predictor(), torch.rand(4, 6, 3)
    prior = predictor(x)
    assert prior.batch_shape == (4,)
    torch.testing.assert_close(prior[2].covariance_matrix, predictor(x[2]).covariance_matrix)


def test_construction_errors() -> None:
    with pytest.raises(ValueError, match=r"unique, got \['x0'\] more than once"):
        AdditivePredictor(univariate([0]), univariate([0]))
    with pytest.raises(ValueError, match=r"without gaps, the groups name \[0, 2\]"):
        AdditivePredictor(univariate([0]), univariate([1], predictor=2))
    with pytest.raises(ValueError, match="at least one ComponentGroup"):
        AdditivePredictor()
    with pytest.raises(TypeError, match=r"takes component groups, such as .* got RBFKernel"):
        AdditivePredictor(RBFKernel())
    with pytest.raises(ValueError, match="mean has 3 entries for 1 predictors"):
        AdditivePredictor(univariate([0]), mean=[None, None, None])
    with pytest.raises(ValueError, match=r"unknown components \['z'\]; the components are \['x0'\]"):
        AdditivePredictor(univariate([0])).component_indices(["z"])


BAD_INPUTS = {
    r"name column 2, but x has 2 columns": torch.rand(5, 2),
    "x has dtype torch.int64": torch.ones(5, 3, dtype=torch.long),
    "x has dtype torch.float64, but the inducing points have torch.float32": torch.rand(5, 3, dtype=torch.float64),
    r"x is empty, shape \(0, 3\)": torch.rand(0, 3),
    r"x must have shape \(\*batch, n, D\)": torch.rand(5),
    r"NaN or infinity in 2 of 5 rows: column 0 \(1 row\), column 1 \(1 row\)": torch.tensor(
        [[0.0, 1.0, 1.0], [float("nan"), 1.0, 1.0], [0.0, float("inf"), 1.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0]]
    ),
    "x is on meta": torch.rand(5, 3, device="meta"),
}


@pytest.mark.parametrize("message", BAD_INPUTS)
def test_bad_inputs_are_named(message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_predictor()(BAD_INPUTS[message])


def test_only_columns_in_use_must_be_finite() -> None:
    predictor = AdditivePredictor(univariate([0]))
    x = torch.rand(5, 2)
    x[1, 1] = float("nan")
    assert torch.isfinite(predictor(x).variance).all()
    used_as_multiplier = AdditivePredictor(univariate([0], by=1))
    with pytest.raises(ValueError, match=r"in 1 of 5 rows: column 1 \(1 row\); drop or impute them$"):
        used_as_multiplier(x)


def test_groups_of_different_dtype_are_named_when_used() -> None:
    predictor = AdditivePredictor(univariate([0]), constant())
    predictor.groups[1].double()
    with pytest.raises(ValueError, match="differ in dtype or device"):
        predictor(torch.rand(5, 1))
    assert predictor.double()(torch.rand(5, 1).double()).mean.dtype == torch.float64


def test_default_names_tell_predictors_apart() -> None:
    predictor = AdditivePredictor(
        univariate([0, 1]),
        constant(),
        univariate([0], predictor=1),
        univariate([1], by=0, predictor=1),
        constant(predictor=1),
        constant(predictor=2, name="shape"),
    )
    assert predictor.names == ("x0", "x1", "constant", "x0.1", "x1*x0.1", "constant.1", "shape")
    assert predictor.names_of(0) == ("x0", "x1", "constant")
    assert predictor.names_of(1) == ("x0.1", "x1*x0.1", "constant.1")
    assert predictor.names_of(2) == ("shape",)
    for wrong in (3, -1):
        with pytest.raises(ValueError, match="predictor must be an integer from 0 to 2, got"):
            predictor.names_of(wrong)
    with pytest.raises(TypeError, match=r"predictor must be an integer, got .x0"):
        predictor.names_of("x0")


def with_levels(codes: object, **kwargs: object) -> ComponentGroup:
    return univariate([3], levels={3: codes if isinstance(codes, Levels) else Levels.of(codes)}, **kwargs)


def column_three(*values: float) -> torch.Tensor:
    return torch.cat([torch.rand(len(values), 3), torch.tensor(values)[:, None]], dim=-1)


UNSEEN = {
    r"x has level 7 in 2 rows of column 3 \(component 'site'\), which is none of its levels \[0, 1, 2\]; ": (
        lambda: [with_levels(3, names=["site"])],
        column_three(0.0, 7.0, 7.0, 2.0),
    ),
    r"x has levels \[-1, 0\.5\] in 3 rows of column 3 \(component 'site'\), which are none of its levels \[0, 1\]": (
        lambda: [with_levels(2, names=["site"])],
        column_three(0.5, -1.0, 1.0, 0.5),
    ),
    r"level 2 in 1 row of column 3 .*, which is none of its levels \[0 \('Bergen'\), 1 \('Oslo'\)\]": (
        lambda: [with_levels(["Bergen", "Oslo"], names=["site"])],
        column_three(0.0, 2.0),
    ),
    r"level 5 in 1 row of column 3 \(components 'x3', 'x0\|x3=1', 'x1\|x3=1'\)": (
        lambda: [
            with_levels(2),
            univariate([0, 1], by=3, by_levels=[1.0, 1.0], levels={3: Levels.of(2)}),
        ],
        column_three(0.0, 5.0),
    ),
    r"column 3 \(component 'a'\), .*; and level 1 in 1 row of column 0 \(component 'b'\)": (
        lambda: [with_levels(1, names=["a"]), univariate([0], levels={0: Levels((-2.0,))}, names=["b"])],
        torch.tensor([[-2.0, 0.0, 0.0, 1.0], [1.0, 0.0, 0.0, 0.0]]),
    ),
}


@pytest.mark.parametrize("message", UNSEEN)
def test_unseen_levels_are_named(message: str) -> None:
    make, x = UNSEEN[message]
    predictor = AdditivePredictor(*make())
    with pytest.raises(ValueError, match=message):
        predictor(x)
    with pytest.raises(ValueError, match=message):
        predictor.double()(x.double().unsqueeze(0))


def test_levels_are_compared_as_stored_numbers() -> None:
    predictor = AdditivePredictor(univariate([0], levels={0: Levels((0.1, -3.0, 2.0**24))}))
    x = torch.tensor([[0.1], [-3.0], [2.0**24]])
    predictor.check_inputs(x)
    predictor.double().check_inputs(x.double())  # .1 as float32 has it
    predictor.check_inputs(torch.tensor([[0.1]], dtype=torch.float64))
    predictor.check_inputs(torch.full((3, 1), 5.0, dtype=torch.float64), check_finite=False)


def test_a_missing_level_is_missing_and_not_unseen() -> None:
    x = column_three(0.0, float("nan"))
    with pytest.raises(ValueError, match=r"NaN or infinity in 1 of 2 rows: column 3 \(1 row\).*missing=\"marginal\""):
        AdditivePredictor(with_levels(2)).check_inputs(x)
    AdditivePredictor(with_levels(2, missing="marginal")).check_inputs(x)
