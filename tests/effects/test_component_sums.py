"""Moments of sums of components at many rows."""

from __future__ import annotations

import pytest
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.models import ApproximateGP
from torch import Tensor

from gpytorch_gam import AdditiveGP
from gpytorch_gam.effects import WeightedModels, component_sums
from gpytorch_gam.models.additive_gp import FAMILIES
from gpytorch_gam.variational import FullAdditiveVariationalStrategy, additive_strategy

from ..problems import mixed_inputs, mixed_model
from .test_prediction import make_model

SUMS = {"pair": ["x0", "x0:x1"], "own": "x1*x2", "all": ["x0", "x1*x2", "x0:x1", "constant"]}


def dense_sum(model: AdditiveGP, x: Tensor, names: list[str] | str) -> tuple[Tensor, Tensor]:
    """From the dense covariance of whitened variables, component by component."""
    strategy = model.variational_strategy
    choleskys = strategy.inducing_choleskys()
    q = strategy.variational_distribution
    covariance = q.covariance_matrix.double() if hasattr(q, "covariance_matrix") else torch.zeros(1).double()
    features, prior, owners = [], torch.zeros(len(x)).double(), []
    for group, cholesky in zip(model.predictor.groups, choleskys, strict=True):
        own = group.features(x, cholesky)  # (C, M, n)
        for index, name in enumerate(group.names):
            is_chosen = name in ([names] if isinstance(names, str) else names)
            features.append(own[index] * is_chosen)
            owners.append(name)
            prior = prior + group.prior_variance(x)[index] * is_chosen
    stacked = torch.cat(features)  # (Q, n)
    variance = prior - stacked.square().sum(0) + torch.einsum("qn,qp,pn->n", stacked, covariance, stacked)
    return stacked.mT @ q.mean.double(), variance


@pytest.mark.parametrize("family", [each for each in FAMILIES if each != "delta"])
def test_sums_have_the_moments_of_dense_algebra(family: str) -> None:
    model, x = make_model(family), torch.rand(40, 3).double()
    found = model.predict_sums(x, SUMS)
    assert found.names == ("pair", "own", "all")
    for index, names in enumerate(SUMS.values()):
        mean, variance = dense_sum(model, x, names)
        torch.testing.assert_close(found.mean[index], mean)
        torch.testing.assert_close(found.variance[index], variance)
    torch.testing.assert_close(found.stddev.square(), found.variance)


@pytest.mark.parametrize("family", ["delta", "coupled"])
def test_sums_are_totals_of_the_joint_posterior(family: str) -> None:
    model, x = mixed_model(family, None).eval(), mixed_inputs(50)
    names = list(model.predictor.names)
    sums = {"first": names[:2], "last": names[-1:], "whole": names}
    found, parts = model.predict_sums(x, sums), model.components(x)
    for index, chosen in enumerate(sums.values()):
        mean, variance = parts[chosen].total()
        torch.testing.assert_close(found.mean[index], mean)
        torch.testing.assert_close(found.variance[index], variance)


def test_rows_with_equal_values_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = make_model(), torch.randint(4, (300, 3)).double() / 3
    expected = [model.components(x)[names].total() for names in (["x0"], ["x0", "x0:x1"])]
    asked = []
    projections = component_sums.summed

    def counted(found: component_sums.ComponentProjections, members: list[list[int]]) -> object:
        asked.append(found.groups[0].mean.shape[-1])
        return projections(found, members)

    monkeypatch.setattr("gpytorch_gam.variational._inducing_projection.summed", counted)
    found = model.predict_sums(x, {"one": "x0", "two": ["x0", "x0:x1"]})
    assert asked == [4, 16]
    for index, (mean, variance) in enumerate(expected):
        torch.testing.assert_close(found.mean[index], mean)
        torch.testing.assert_close(found.variance[index], variance)


def test_chunks_batches_and_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = make_model(batch_shape=(2,)), torch.rand(2, 600, 3).double()
    expected = model.predict_sums(x, SUMS)
    monkeypatch.setattr(additive_strategy, "_NUMBERS_OF_SUMS", 1)
    found = model.predict_sums(x, SUMS)
    assert found.mean.shape == (2, 3, 600)
    torch.testing.assert_close(found.mean, expected.mean)
    torch.testing.assert_close(found.variance, expected.variance)
    single = model.float().predict_sums(x.float(), SUMS)
    assert single.mean.dtype == torch.float32
    torch.testing.assert_close(single.variance.double(), expected.variance, rtol=1e-4, atol=1e-5)


def strategy_of_rows(x: Tensor) -> FullAdditiveVariationalStrategy:
    """A posterior over the effects at the rows themselves."""

    class Full(ApproximateGP):
        def __init__(self) -> None:
            super().__init__(FullAdditiveVariationalStrategy(self, make_model().predictor, x))

        def forward(self, x: Tensor) -> MultivariateNormal:
            return self.variational_strategy.predictor(x)

    return Full().double().eval().variational_strategy


def test_posteriors_of_the_rows_themselves() -> None:
    x = torch.rand(20, 3).double()
    strategy = strategy_of_rows(x)
    mean, variance = strategy.components(x[:9])[["x0", "constant"]].total()
    found = strategy.predict_sums(x[:9], {"two": ["x0", "constant"]})
    torch.testing.assert_close(found.mean[0], mean)
    torch.testing.assert_close(found.variance[0], variance)


def test_sums_of_a_mixture_of_models() -> None:
    first, second, x = make_model(), make_model(), torch.rand(20, 3).double()
    mixture = WeightedModels([first, second], torch.tensor([0.3, 0.7]).double())
    mean, variance = first.components(x, hyperparameters=mixture)[SUMS["pair"]].total()
    found = first.predict_sums(x, SUMS, hyperparameters=mixture)
    torch.testing.assert_close(found.mean[0], mean)
    torch.testing.assert_close(found.variance[0], variance)


def test_a_model_without_weight_adds_nothing() -> None:
    first, second, x = make_model(), make_model(), torch.rand(5, 3).double()
    mixture = WeightedModels([first, second], torch.tensor([0.0, 1.0]).double())
    found, expected = mixture.predict_sums(x, SUMS), second.predict_sums(x, SUMS)
    torch.testing.assert_close(found.mean, expected.mean)
    torch.testing.assert_close(found.variance, expected.variance)


def test_what_sums_cannot_be() -> None:
    model, x = make_model(), torch.rand(4, 3).double()
    with pytest.raises(ValueError, match=r"sums\['a'\].*unknown components \['x9'\]"):
        model.predict_sums(x, {"a": ["x9"]})
    with pytest.raises(TypeError, match="sums must be a mapping"):
        model.predict_sums(x, ["x0"])  # type: ignore[arg-type]
