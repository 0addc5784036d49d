"""Groups of equal shape that are evaluated together."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from torch import Tensor

from gpytorch_gam import AdditiveGP, AdditivePredictor
from gpytorch_gam.components import ComponentGroup
from gpytorch_gam.components.joined_groups import by_group, joined_groups
from gpytorch_gam.kernels import Normal
from gpytorch_gam.terms import constant, cyclic, linear, random_effect, smooth, spatial, tensor

JITTER = 1e-6


class OwnKernel(RBFKernel):
    """A user's kernel, which computes something else."""

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: object) -> Tensor:
        return 2.0 * super().forward(x1, x2, diag=diag, **params)


def rows(n: int = 30, dtype: torch.dtype = torch.float64) -> Tensor:
    x = torch.rand(n, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[:, 5] = torch.arange(n) % 3
    return x.to(dtype)


def terms(x: Tensor) -> list[ComponentGroup]:
    """Terms of each kind, some of which can be joined, in an order in which these are not neighbours."""
    own = ComponentGroup(ScaleKernel(OwnKernel()), [[1]], torch.rand(4, 1, dtype=x.dtype), names=["own"])
    return [
        smooth(0, x, num_inducing=5),
        linear(0, x),
        smooth(1, x, num_inducing=5, variance=0.3),
        constant(),
        smooth([2, 3], x, num_inducing=5),
        smooth(4, x, num_inducing=7),
        linear([1, 2], x),
        smooth(3, x, num_inducing=5, kernel="matern32", names="rough"),
        smooth(4, x, num_inducing=5, kernel="matern32", names="rougher"),
        smooth(0, x, num_inducing=5, by=1, names="varying"),
        smooth(1, x, num_inducing=5, by=2, names="varying too"),
        smooth(2, x, num_inducing=5, measure=Normal(0.5, 0.3), names="normal"),
        tensor([0, 1], x, num_inducing=3),
        tensor([2, 3], x, num_inducing=3),
        cyclic(0, period=1.0, num_inducing=4),
        cyclic(1, period=0.5, num_inducing=4),
        random_effect(5, levels=3),
        spatial([0, 1], x, num_inducing=5, name="map"),
        own,
    ]


def moved(predictor: AdditivePredictor) -> AdditivePredictor:
    """The predictor with hyperparameters in float64 that all differ."""
    predictor = predictor.double()
    generator = torch.Generator().manual_seed(1)
    for parameter in predictor.parameters():
        parameter.data += 0.2 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
    return predictor


def alone(predictor: AdditivePredictor, x: Tensor) -> tuple[list[Tensor], Tensor, Tensor]:
    """Choleskys, features and variances in training from one group at a time."""
    choleskys = [group.inducing_cholesky(JITTER, relative=True) for group in predictor.groups]
    features = [
        group.features(x, cholesky).flatten(-3, -2) for group, cholesky in zip(predictor.groups, choleskys, strict=True)
    ]
    variance = sum(group.observed_variance(x).sum(-2) for group in predictor.groups)
    assert torch.is_tensor(variance)
    return choleskys, torch.cat(features), variance.unsqueeze(0)


def together(predictor: AdditivePredictor, x: Tensor) -> tuple[list[Tensor], Tensor, Tensor]:
    choleskys, features, variances = predictor.at_rows(x, JITTER, relative=True)
    return choleskys, features, variances


def one_by_one(predictor: AdditivePredictor, x: Tensor) -> tuple[list[Tensor], Tensor, Tensor]:
    choleskys = predictor.inducing_choleskys(JITTER, relative=True)
    return choleskys, predictor.features(x, choleskys), predictor.observed_variances(x)


def gradients(predictor: AdditivePredictor, evaluated: tuple[list[Tensor], Tensor, Tensor]) -> list[Tensor]:
    choleskys, features, variances = evaluated
    generator = torch.Generator().manual_seed(2)
    total = torch.zeros(())
    for part in (*choleskys, features, variances):
        total = total + (part * torch.randn(part.shape, generator=generator, dtype=part.dtype)).sum()
    parameters = [parameter for parameter in predictor.parameters() if parameter.requires_grad]
    return list(torch.autograd.grad(total, parameters))


def test_groups_are_joined_by_kind_and_shape_of_their_kernels() -> None:
    predictor = AdditivePredictor(*terms(rows()))
    names = [each.group.names for each in joined_groups(predictor.groups)]
    assert names[:3] == [("x0", "x1", "x2", "x3"), ("linear(x0)", "linear(x1)", "linear(x2)"), ("constant",)]
    assert ("rough", "rougher") in names and ("varying", "varying too") in names
    assert ("cyclic(x0)", "cyclic(x1)") in names and ("x0:x1", "x2:x3") in names
    assert [each for each in names if "own" in each or "x4" in each or "normal" in each] == [
        ("x4",),
        ("normal",),
        ("own",),
    ]


@pytest.mark.parametrize("evaluate", [together, one_by_one])
def test_choleskys_features_and_variances_are_those_of_single_groups_with_the_same_gradients(
    evaluate: Callable[[AdditivePredictor, Tensor], tuple[list[Tensor], Tensor, Tensor]],
) -> None:
    x = rows()
    predictor = moved(AdditivePredictor(*terms(x)))
    expected, found = alone(predictor, x), evaluate(predictor, x)
    for one, other in zip((*expected[0], *expected[1:]), (*found[0], *found[1:]), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-8, atol=1e-8)  # rounding over the jitter of a covariance
    for one, other in zip(gradients(predictor, expected), gradients(predictor, found), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-6, atol=1e-7)


def test_missing_values_and_learnt_points_are_those_of_single_groups() -> None:
    x = rows()
    x[3, 0] = x[4, 1] = torch.nan
    predictor = AdditivePredictor(
        smooth(0, x, low=0.0, high=1.0, num_inducing=5, missing="marginal", learn_inducing_locations=True),
        smooth(1, x, low=0.0, high=1.0, num_inducing=5, missing="marginal", learn_inducing_locations=True),
    )
    assert len(joined_groups(moved(predictor).groups)) == 1
    expected, found = alone(predictor, x), together(predictor, x)
    for one, other in zip((*expected[0], *expected[1:]), (*found[0], *found[1:]), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-8, atol=1e-8)
    for one, other in zip(gradients(predictor, expected), gradients(predictor, found), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-6, atol=1e-7)


def test_changes_in_place_and_new_kernels_count_at_once() -> None:
    x = rows()
    predictor = AdditivePredictor(smooth(0, x, num_inducing=5), smooth(1, x, num_inducing=5)).double()
    before = together(predictor, x)[1]
    predictor.groups[1].kernel.base_kernel.base_kernel.lengthscale = 0.7
    after = together(predictor, x)[1]
    torch.testing.assert_close(after[:5], before[:5])
    torch.testing.assert_close(after, alone(predictor, x)[1], rtol=1e-8, atol=1e-8)
    predictor.groups[0].kernel = ScaleKernel(RBFKernel()).double()
    assert len(joined_groups(predictor.groups)) == 2
    torch.testing.assert_close(together(predictor, x)[1], alone(predictor, x)[1], rtol=1e-8, atol=1e-8)


def test_several_predictors_get_their_own_variances() -> None:
    x = rows()
    predictor = AdditivePredictor(
        smooth(0, x, num_inducing=5), smooth(0, x, num_inducing=5, predictor=1), smooth(1, x, num_inducing=5)
    )
    groups = predictor.groups
    expected = [
        (groups[0].prior_variance(x) + groups[2].prior_variance(x)).squeeze(0),
        groups[1].prior_variance(x).squeeze(0),
    ]
    torch.testing.assert_close(predictor.observed_variances(x), torch.stack(expected))
    torch.testing.assert_close(together(predictor, x)[2], torch.stack(expected))
    assert [each.places for each in joined_groups(groups)] == [(0, 1, 2)]
    assert [each.places for each in joined_groups(groups, within_predictors=True)] == [(0, 2), (1,)]


def test_values_are_returned_in_the_order_of_the_groups() -> None:
    x = rows()
    groups = [smooth(0, x, num_inducing=5), constant(), smooth([1, 2], x, num_inducing=5)]
    joined = joined_groups(groups)
    values = [each.group.prior_variance(x) for each in joined]
    for group, found in zip(groups, by_group(joined, values, -2), strict=True):
        torch.testing.assert_close(found, group.prior_variance(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_posteriors_do_not_depend_on_how_terms_are_grouped(dtype: torch.dtype) -> None:
    x = rows(dtype=dtype)
    apart = AdditiveGP(AdditivePredictor(*(smooth(i, x, num_inducing=5) for i in range(4))).to(dtype), rank=3).to(dtype)
    whole = AdditiveGP(AdditivePredictor(smooth([0, 1, 2, 3], x, num_inducing=5)).to(dtype), rank=3).to(dtype)
    q, of_all = (model.variational_strategy._variational_distribution for model in (apart, whole))
    apart(x), whole(x)  # initialise
    with torch.no_grad():
        of_all.variational_mean.copy_(q.variational_mean)
        of_all.precision_factor.copy_(q.precision_factor)
        of_all.block_factor_0.copy_(torch.cat(q.block_factors))
    tolerance = {"rtol": 1e-8, "atol": 1e-8} if dtype is torch.float64 else {"rtol": 1e-4, "atol": 1e-5}
    for train in (True, False):
        found, expected = apart.train(train)(x), whole.train(train)(x)
        torch.testing.assert_close(found.mean, expected.mean, **tolerance)
        torch.testing.assert_close(found.variance, expected.variance, **tolerance)
    parts, of_whole = (model.variational_strategy.components(x) for model in (apart.eval(), whole.eval()))
    torch.testing.assert_close(parts.mean, of_whole.mean, **tolerance)
    torch.testing.assert_close(parts.variance, of_whole.variance, **tolerance)


def test_copies_pickles_and_states_are_those_of_the_groups() -> None:
    x = rows()
    model = AdditiveGP(AdditivePredictor(smooth(0, x, num_inducing=5), smooth(1, x, num_inducing=5)), rank=2).double()
    names = set(model.state_dict())
    (model(x).mean.sum() + model.variational_strategy.kl_divergence()).backward()
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(other(x).mean, model(x).mean)
    assert set(model.state_dict()) == names
