"""Inducing points that are added to a model, and states of models that got some."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from gpytorch.likelihoods import GaussianLikelihood
from torch import Tensor

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup
from gpytorch_gam.components import Levels
from gpytorch_gam.optim import NaturalGradient
from gpytorch_gam.terms import constant, cyclic, factor, factor_smooth, interaction, linear, smooth, spatial, tensor
from tests.problems import fit_by_bins

SITES = Levels.of(["Bergen", "Oslo", "Voss"])
RANGE = {"low": 0.0, "high": 1.0}

AUTOMATIC = {
    "smooth": lambda: smooth([0, 1], **RANGE),
    "smooth by a number": lambda: smooth([0, 1], by=2, **RANGE),
    "smooth by levels": lambda: smooth(0, by=3, levels=SITES, **RANGE),
    "smooth, learnt locations": lambda: smooth([0, 1], learn_inducing_locations=True, **RANGE),
    "cyclic": lambda: cyclic(0, period=1.0),
    "tensor": lambda: tensor((0, 1), **RANGE),
    "spatial": lambda: spatial((0, 1), **RANGE),
    "factor smooth": lambda: factor_smooth(0, 3, SITES, **RANGE),
    "interaction": lambda: interaction(0, 3, SITES, **RANGE),
}


def inputs(n: int = 200) -> Tensor:
    x = torch.rand(n, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return torch.cat([x[:, :3], (torch.arange(n) % 3).double()[:, None]], -1)


def model_of(*groups: ComponentGroup, **options: object) -> AdditiveGP:
    return AdditiveGP(AdditivePredictor(*groups, constant()), **options).double().eval()


def responses(x: Tensor) -> Tensor:
    noise = 0.1 * torch.randn(len(x), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return torch.sin(6 * x[:, 0]) + x[:, 2] * x[:, 1] + 0.3 * x[:, 3] + noise


def with_posterior(model: AdditiveGP) -> AdditiveGP:
    """With the posterior of some responses at the hyperparameters of the start."""
    likelihood = GaussianLikelihood().double()
    likelihood.noise = 0.25
    for parameter in (*model.hyperparameters(), *likelihood.parameters()):
        parameter.requires_grad_(False)
    x = inputs()
    fit_by_bins(model, likelihood, [(x, responses(x))], max_bins=512)
    return model


@pytest.mark.filterwarnings("ignore::gpytorch_gam.warnings.InducingPointsWarning")
@pytest.mark.parametrize("term", AUTOMATIC)
def test_predictions_hardly_change_when_points_are_added(term: str) -> None:
    model, x = model_of(AUTOMATIC[term](), family="coupled"), inputs(50)
    group = model.predictor.groups[0]
    first, names = group.num_inducing, group.names
    like_a_number = AUTOMATIC[term]().inducing_points.double()
    torch.testing.assert_close(group.inducing_points.detach(), like_a_number)
    points = group.placement
    group.placement = None  # the fit keeps the first number
    with_posterior(model)
    group.placement = points
    with torch.no_grad():
        before = model(x)
    assert model.variational_strategy.add_inducing_points(names[0]) == names
    assert 1.5 * first <= group.num_inducing <= 2.5 * first
    assert (
        model.variational_strategy._variational_distribution.num_inducing_points
        == group.num_components * (group.num_inducing) + 1
    )
    with torch.no_grad():
        after = model(x)
    # Between old points, surfaces of this lengthscale are known to some percent of their variation.
    torch.testing.assert_close(after.mean, before.mean, atol=0.1 if term in ("tensor", "spatial") else 2e-3, rtol=0)
    torch.testing.assert_close(after.stddev, before.stddev, atol=0.1 if term in ("tensor", "spatial") else 5e-3, rtol=0)


def test_the_posterior_is_carried_over_as_dense_algebra_does() -> None:
    model = model_of(smooth(0, kernel="matern32", **RANGE), family="coupled")
    points, model.predictor.groups[0].placement = model.predictor.groups[0].placement, None
    with_posterior(model)
    group, strategy = model.predictor.groups[0], model.variational_strategy
    group.placement = points
    q, old = strategy.inducing_posterior(), group.inducing_points.clone()
    strategy.add_inducing_points()
    with torch.no_grad():
        cross = group.evaluate_kernel(group.inducing_points, old)[0]
        prior = group.evaluate_kernel(old)[0]
        jittered = prior + strategy.jitter_val * prior.diagonal().mean() * torch.eye(16)
        weights = torch.linalg.solve(jittered, cross.mT)
        mean = weights.mT @ q.mean[:16]
        own = strategy.inducing_posterior()
        covariance = (
            group.inducing_covariance(torch.float64)[0] - weights.mT @ (prior - q.covariance_matrix[:16, :16]) @ weights
        )
    torch.testing.assert_close(own.mean[:-1], mean, atol=1e-6, rtol=0)
    torch.testing.assert_close(own.covariance_matrix[:-1, :-1], covariance, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", ["block_low_rank", "low_rank", "mean_field", "coupled", "delta"])
@pytest.mark.parametrize("term", AUTOMATIC)
def test_a_state_with_more_points_is_loaded_copied_and_pickled(term: str, family: str) -> None:
    if family != "block_low_rank" and term not in ("smooth", "factor smooth"):
        pytest.skip("one family suffices for the others")
    model, x = model_of(AUTOMATIC[term](), family=family), inputs(20)
    with torch.no_grad():
        model(x)
        for _ in range(1 if term in ("tensor", "spatial") else 2):
            model.variational_strategy.add_inducing_points()
        model(x)
        for parameter in model.variational_parameters():
            parameter.add_(0.1 * torch.rand_like(parameter))
        buffer = io.BytesIO()
        torch.save(model.state_dict(), buffer)
        buffer.seek(0)
        loaded = model_of(AUTOMATIC[term](), family=family)
        loaded.load_state_dict(torch.load(buffer, weights_only=True))
        for other in (loaded, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert other.predictor.groups[0].num_inducing == model.predictor.groups[0].num_inducing
            assert torch.equal(other(x).mean, model(x).mean)
            if family != "delta":
                assert torch.equal(other(x).variance, model(x).variance)
        assert bool(loaded.variational_strategy.add_inducing_points()) == bool(
            model.variational_strategy.add_inducing_points()
        )


def test_a_fixed_number_is_not_that_of_a_state_with_more() -> None:
    model = model_of(smooth(0, **RANGE))
    model.variational_strategy.add_inducing_points()
    with pytest.raises(ValueError, match="num_inducing: 32 in the state, 16 here"):
        model_of(smooth(0, num_inducing=16, **RANGE)).load_state_dict(model.state_dict())
    with pytest.raises(ValueError, match="num_inducing: 32 in the state, 16 here"):
        smooth(0, **RANGE).double().load_state_dict(model.predictor.groups[0].state_dict())


def test_only_automatic_numbers_below_the_largest_change() -> None:
    x = torch.cat([inputs(), torch.arange(200)[:, None].remainder(5).double()], -1)
    groups = [
        smooth(0, num_inducing=8, names="fixed", **RANGE),
        smooth(4, x),  # five distinct values
        linear(0, x),
        factor(3, SITES),
        smooth(1, names="free", **RANGE),
    ]
    model = model_of(*groups)
    strategy = model.variational_strategy
    sizes = [group.num_inducing for group in groups]
    assert strategy.add_inducing_points(["fixed", "x4", "linear(x0)", "x3"]) == ()
    assert [group.num_inducing for group in groups] == sizes
    for number in (32, 64, 128, 256):
        assert strategy.add_inducing_points() == ("free",) and groups[-1].num_inducing == number
    assert strategy.add_inducing_points() == ()
    assert model.predictor.group_shapes == strategy._variational_distribution.group_shapes


def test_learnt_locations_stay_among_more() -> None:
    model = model_of(smooth([0, 1], learn_inducing_locations=True, **RANGE))
    group = model.predictor.groups[0]
    with torch.no_grad():
        group.inducing_points.add_(0.003)
    before = group.inducing_points.detach().clone()
    model.variational_strategy.add_inducing_points()
    assert isinstance(group.inducing_points, torch.nn.Parameter) and group.num_inducing == 32
    torch.testing.assert_close(group.inducing_points[:, :16].detach(), before)
    assert group.inducing_points[0, :, 0].unique().numel() == 32


def test_a_chosen_rank_stays_and_the_default_one_follows_the_size() -> None:
    for options, before, after in (({"rank": 5}, 5, 5), ({}, 17, 32), ({"family": "low_rank"}, 17, 33)):
        model = model_of(smooth(0, **RANGE), **options)
        q = model.variational_strategy._variational_distribution
        assert q.rank == q.precision_factor.shape[-1] == before
        model.variational_strategy.add_inducing_points()
        assert q.rank == q.precision_factor.shape[-1] == after


def test_models_with_an_attached_optimiser_are_refused() -> None:
    model = model_of(smooth(0, **RANGE))
    attached = NaturalGradient(model, num_data=10)
    with pytest.raises(ValueError, match=r"NaturalGradient attached: call its remove\(\)"):
        model.variational_strategy.add_inducing_points()
    attached.remove()
    assert model.variational_strategy.add_inducing_points() == ("x0",)
