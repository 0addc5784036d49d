"""Moments at many rows, in chunks and with cached weights."""

from __future__ import annotations

import copy

import gpytorch
import pytest
import torch
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup
from gpytorch_gam.components import regular_grid
from gpytorch_gam.kernels import ANOVAKernel, Uniform
from gpytorch_gam.models.additive_gp import FAMILIES
from gpytorch_gam.optim import NaturalGradient
from gpytorch_gam.settings import fused_projection
from gpytorch_gam.terms import constant
from gpytorch_gam.variational import (
    AdditiveVariationalStrategy,
    TiedAdditiveVariationalStrategy,
    additive_strategy,
)


def make_model(family: str = "block_low_rank", batch_shape: tuple[int, ...] = ()) -> AdditiveGP:
    size = torch.Size([*batch_shape, 2])
    smooth = ScaleKernel(ANOVAKernel(RBFKernel(batch_shape=size), Uniform(0.0, 1.0)), batch_shape=size)
    pair = ScaleKernel(RBFKernel() * MaternKernel(1.5))
    model = AdditiveGP(
        AdditivePredictor(
            ComponentGroup(smooth, [[0], [1]], regular_grid(0.0, 1.0, 6), by=[None, 2]),
            ComponentGroup(pair, [[0, 1]], regular_grid([0.0, 0.0], [1.0, 1.0], 3)),
            constant(),
            mean=gpytorch.means.ConstantMean(),
        ),
        family,
        3 if "low_rank" in family else None,
        batch_shape=torch.Size(batch_shape),
    ).double()
    for parameter in model.parameters():
        parameter.data.add_(0.3 * torch.rand_like(parameter))
    model.variational_strategy._mark_initialized()
    return model.eval()


@pytest.mark.parametrize(("chunk_size", "fused"), [(None, "off"), (1, "auto"), (7, "auto"), (7, "off")])
@pytest.mark.parametrize("family", FAMILIES)
def test_chunks_have_the_moments_of_a_call(family: str, chunk_size: int | None, fused: str) -> None:
    model, x = make_model(family), torch.rand(20, 3).double()
    with fused_projection(fused):
        prediction = model.predict(x, chunk_size=chunk_size)
        bare = model.predict(x, components=False, chunk_size=chunk_size)
    expected, parts = model(x), model.components(x)
    for moments in (prediction, bare):
        torch.testing.assert_close(moments.mean, expected.mean)
        torch.testing.assert_close(moments.variance, expected.variance)
        torch.testing.assert_close(moments.distribution.variance, expected.variance)
    assert prediction.names == parts.names
    torch.testing.assert_close(prediction.component_mean, parts.mean)
    torch.testing.assert_close(prediction.component_variance, parts.variance)
    torch.testing.assert_close(prediction.component("x1*x2"), (parts.mean[1], parts.variance[1]))
    torch.testing.assert_close(prediction.component(["x1*x2"]), (parts.mean[1:2], parts.variance[1:2]))
    assert bare.component_mean is None and bare.names == ()
    assert not prediction.mean.requires_grad


def test_batches_and_chosen_components() -> None:
    model, x = make_model(batch_shape=(2,)), torch.rand(2, 9, 3).double()
    prediction, parts = model.predict(x, ["constant", "x0"], chunk_size=4), model.components(x)
    assert prediction.names == ("constant", "x0")
    assert prediction.mean.shape == (2, 9) and prediction.component_mean.shape == (2, 2, 9)
    torch.testing.assert_close(prediction.component_variance, parts[["constant", "x0"]].variance)


def test_several_predictors() -> None:
    groups = [
        ComponentGroup(ScaleKernel(RBFKernel()), [[0]], regular_grid(0.0, 1.0, 5), predictor=p, names=[f"f{p}"])
        for p in range(2)
    ]
    model = AdditiveGP(AdditivePredictor(*groups), rank=3).double().eval()
    x = torch.rand(8, 1).double()
    prediction, moments = model.predict(x, chunk_size=3), model.variational_strategy.predictor_moments(x)
    torch.testing.assert_close(prediction.mean, moments.mean)
    torch.testing.assert_close(prediction.covariance, moments.covariance)
    assert prediction.component_mean.shape == (2, 8)
    torch.testing.assert_close(prediction.distribution.covariance_matrix, torch.block_diag(*moments.covariance))


@pytest.mark.parametrize("family", FAMILIES)
def test_components_can_be_left_out(family: str) -> None:
    model, x = make_model(family), torch.rand(9, 3).double()
    kept = ["x0", "x1*x2"]
    prediction = model.predict(x, chunk_size=4, exclude=["x0:x1", "constant"])
    mean, variance = model.components(x, kept).total()
    torch.testing.assert_close(prediction.mean, mean + model.predictor.prior_means(x).squeeze(-2))
    torch.testing.assert_close(prediction.variance, variance)
    assert prediction.names == tuple(kept)
    bare = model.predict(x, components=False, exclude=["x0:x1", "constant"])
    torch.testing.assert_close(bare.variance, variance)
    parts = model.components(x, exclude=["x0:x1", "constant"])
    assert parts.names == tuple(kept)
    torch.testing.assert_close(parts.distribution.mean, prediction.mean)
    torch.testing.assert_close(parts.distribution.variance, prediction.variance)
    torch.testing.assert_close(model.components(x).distribution.variance, model(x).variance)
    for arguments, message in (
        ({"exclude": "x9"}, "unknown components"),
        ({"names": "x0", "exclude": "x1*x2"}, "not both"),
        ({"exclude": list(model.predictor.names)}, "exclude leaves none"),
    ):
        with pytest.raises(ValueError, match=message):
            model.components(x, **arguments)


def test_components_of_several_predictors_make_joint_distributions() -> None:
    groups = [
        ComponentGroup(ScaleKernel(RBFKernel()), [[c]], regular_grid(0.0, 1.0, 4), predictor=p, names=[f"f{p}{c}"])
        for p in range(2)
        for c in range(2)
    ]
    model = AdditiveGP(AdditivePredictor(*groups), rank=3).double().eval()
    model(torch.rand(1, 2).double())
    for parameter in model.variational_parameters():
        parameter.data.add_(0.5 * torch.rand_like(parameter))
    x = torch.rand(5, 2).double()
    parts = model.components(x, exclude="f01")
    cross = parts.cross_covariance()  # n x 3 x 3
    owner = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]).double()
    moments = parts.predictor_moments()
    torch.testing.assert_close(moments.covariance, owner.mT @ cross @ owner)
    torch.testing.assert_close(moments.mean, parts.mean.mT @ owner)
    torch.testing.assert_close(parts.distribution.covariance_matrix, torch.block_diag(*moments.covariance))
    torch.testing.assert_close(model.predict(x, exclude="f01").covariance, moments.covariance)


def test_other_strategies_predict() -> None:
    x = torch.rand(12, 2).double()
    predictor = AdditivePredictor(
        ComponentGroup(ScaleKernel(RBFKernel()), [[0], [1]], regular_grid(0.0, 1.0, 5)), constant()
    ).double()

    class Tied(gpytorch.models.ApproximateGP):
        def __init__(self) -> None:
            super().__init__(TiedAdditiveVariationalStrategy(self, predictor, x))

    model = Tied().double().eval()
    prediction, parts = model.variational_strategy.predict(x, chunk_size=5), model.variational_strategy.components(x)
    torch.testing.assert_close(prediction.component_variance, parts.variance)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"chunk_size": 0}, "chunk_size must be at least 1"),
        ({"chunk_size": 2.5}, "chunk_size must be an integer"),
        ({"components": "x7"}, "unknown components"),
        ({"x": torch.rand(0, 3).double()}, "x is empty"),
        ({"x": [1.0]}, "x must be a torch.Tensor"),
        ({"x": torch.rand(4, 3)}, "x has dtype torch.float32"),
    ],
)
def test_bad_arguments(arguments: dict, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        make_model().predict(**{"x": torch.rand(4, 3).double(), **arguments})


def test_unknown_component_of_a_prediction() -> None:
    with pytest.raises(ValueError, match="no component 'x9'"):
        make_model().predict(torch.rand(4, 3).double()).component("x9")


def changed(strategy: AdditiveVariationalStrategy, how: str) -> None:
    kernel, q = strategy.predictor.groups[0].kernel, strategy._variational_distribution
    if how == "setter":
        kernel.outputscale = torch.tensor([0.3, 2.0])
    elif how == "in place":
        with torch.no_grad():
            kernel.base_kernel.base_kernel.raw_lengthscale += 0.5
    elif how == "constraint":  # another value of the same raw parameter
        kernel.raw_outputscale_constraint = GreaterThan(0.7)
    elif how == "mean of q":
        q.variational_mean.data[3] += 1.0
    elif how == "measure":
        kernel.base_kernel.measure = Uniform(-1.0, 2.0)
    elif how == "jitter":
        strategy.jitter_val = 0.1
    elif how == "inducing points":
        strategy.predictor.groups[1].inducing_points.mul_(0.9)
    else:
        state = strategy.state_dict()
        strategy.load_state_dict({name: 1.1 * v if v.is_floating_point() else v for name, v in state.items()})


@pytest.mark.parametrize(
    "how", ["setter", "in place", "constraint", "mean of q", "measure", "jitter", "inducing points", "state dict"]
)
def test_cached_weights_follow_every_change(how: str) -> None:
    model, x = make_model(), torch.rand(6, 3).double()
    strategy = model.variational_strategy
    with torch.no_grad():
        before = model(x).mean
        assert torch.equal(model(x).mean, before)
        changed(strategy, how)
        after = model(x)
        strategy._kept_projection.forget()
        fresh = model(x)
    assert not torch.allclose(after.mean, before)
    assert torch.equal(after.mean, fresh.mean) and torch.equal(after.variance, fresh.variance)


def test_weights_are_computed_once_for_all_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    model, calls = make_model(), []
    compute = AdditiveVariationalStrategy._new_projection
    monkeypatch.setattr(
        AdditiveVariationalStrategy, "_new_projection", lambda *arguments: calls.append(1) or compute(*arguments)
    )
    model.predict(torch.rand(20, 3).double(), chunk_size=2)
    assert len(calls) == 1
    copy.deepcopy(model).predict(torch.rand(2, 3).double())
    assert len(calls) == 2  # copies start without a cache
    model.float()
    assert model.predict(torch.rand(2, 3)).mean.dtype == torch.float32
    assert len(calls) == 3


def test_calls_after_a_prediction_see_a_posterior_that_has_changed() -> None:
    model, x = make_model(), torch.rand(6, 3).double()
    before = model.predict(x).mean
    with torch.no_grad():
        model.variational_strategy._variational_distribution.variational_mean.add_(1.0)
        after = model(x).mean
    assert not torch.allclose(after, before)
    torch.testing.assert_close(after, model.predict(x).mean)


def test_predictions_follow_an_attached_optimiser() -> None:
    model, x = make_model(), torch.rand(30, 3).double()
    y, likelihood = x[:, 0], gpytorch.likelihoods.GaussianLikelihood().double()
    mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=30)
    natural = NaturalGradient(model, num_data=30)
    model.train()
    before = model.predict(x).mean
    (-mll(model(x), y)).backward()
    natural.step()
    after = model.predict(x).mean
    assert model.training
    assert (after - y).square().mean() < (before - y).square().mean()
    model.variational_strategy.predictor.groups[0].kernel.outputscale = 0.2
    moved = model.predict(x)
    natural.remove()
    torch.testing.assert_close(moved.mean, model.predict(x).mean)


def test_an_optimiser_counts_in_what_is_kept_between_predictions() -> None:
    model, x = make_model(), torch.rand(30, 3).double()
    kernel = model.predictor.groups[0].kernel
    scale = kernel.outputscale.detach().clone()
    kernel.outputscale = 0.2
    before = model.predict(x).mean
    kernel.outputscale = scale
    with NaturalGradient(model, num_data=30):
        model.train()(x)  # the posterior belongs to these kernels
        kernel.outputscale = 0.2
        after = model.predict(x).mean
    assert not torch.allclose(after, before)
    torch.testing.assert_close(after, model.predict(x).mean)


def test_a_tied_posterior_follows_its_inputs_and_kernels() -> None:
    x = torch.rand(12, 2).double()
    group = ComponentGroup(ScaleKernel(RBFKernel()), [[0], [1]], torch.full((1, 1), 0.5))
    predictor = AdditivePredictor(group).double()

    class Tied(gpytorch.models.ApproximateGP):
        def __init__(self) -> None:
            super().__init__(TiedAdditiveVariationalStrategy(self, predictor, x))

    model = Tied().double().eval()
    strategy = model.variational_strategy
    for parameter in strategy._variational_distribution.parameters():
        parameter.data.add_(torch.rand_like(parameter))
    for change in (
        lambda: None,
        lambda: strategy.inputs.mul_(0.5),
        lambda: setattr(group.kernel.base_kernel, "lengthscale", 0.3),
    ):
        change()
        torch.testing.assert_close(strategy.predict(x).mean, model(x).mean.detach())


def test_chunks_of_many_inducing_points_are_not_tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(additive_strategy, "_PREDICTION_NUMBERS", 10)
    assert make_model().variational_strategy._rows_at_a_time(torch.Size()) == 256


def test_autocast_does_not_reach_mean_modules() -> None:
    group = ComponentGroup(ScaleKernel(RBFKernel()), [[0]], regular_grid(0.0, 1.0, 4))
    model = AdditiveGP(AdditivePredictor(group, mean=gpytorch.means.LinearMean(3)), rank=2).eval()
    x = torch.rand(5, 3)
    expected = model.predict(x).mean
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(model.predict(x).mean, expected)


def test_one_name_gives_one_function_and_a_list_several() -> None:
    model, x = make_model("block_low_rank"), torch.rand(5, 3).double()
    for parts in (model.components(x), model.components(x).centred()):
        one, some = parts["x0"], parts[["x0"]]
        assert one.names == some.names == ("x0",)
        for name, shape in (("mean", (5,)), ("variance", (5,)), ("stddev", (5,))):
            assert getattr(one, name).shape == shape and torch.equal(getattr(some, name)[0], getattr(one, name))
        assert torch.equal(one.covariance(), some.covariance()[0])
        assert torch.equal(one.cross_covariance(), some.cross_covariance()[:, 0, 0])
        assert torch.equal(one.full_cross_covariance(), some.full_cross_covariance()[0, :, 0])
        assert one.confidence_region()[0].shape == (5,) and one.total()[0].shape == (5,)
        assert one.sample(torch.Size([2])).components.shape == (2, 5)
        assert some.sample(torch.Size([2])).components.shape == (2, 1, 5)
    torch.testing.assert_close(model.components(x, "x0").mean, model.components(x)["x0"].mean)
    assert model.components(x, ["x0"]).mean.shape == (1, 5)
