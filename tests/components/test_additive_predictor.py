"""The additive predictor as a prior, and its input checks."""

from __future__ import annotations

import gpytorch
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from gpytorch_gam import AdditivePredictor, ComponentGroup
from gpytorch_gam.components import constant, regular_grid


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
    assert predictor.num_inducing == (5, 5, 5, 7, 1)
    assert (predictor.num_components, predictor.num_inducing_total, predictor.num_predictors) == (5, 23, 1)
    assert predictor.inducing_slices["x0:x2"] == slice(15, 22)
    assert predictor.component_indices(["constant", "x1"]) == [4, 1]


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
    with pytest.raises(ValueError, match="takes ComponentGroups, got RBFKernel"):
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
    r"NaN or infinity in 2 of 5 rows, in columns \[0, 1\]": torch.tensor(
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
    with pytest.raises(ValueError, match=r"in 1 of 5 rows, in columns \[1\]"):
        used_as_multiplier(x)


def test_groups_of_different_dtype_are_named_when_used() -> None:
    predictor = AdditivePredictor(univariate([0]), constant())
    predictor.groups[1].double()
    with pytest.raises(ValueError, match="differ in dtype or device"):
        predictor(torch.rand(5, 1))
    assert predictor.double()(torch.rand(5, 1).double()).mean.dtype == torch.float64
