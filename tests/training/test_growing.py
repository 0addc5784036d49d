"""Fits that choose numbers of inducing points."""

from __future__ import annotations

import copy
import functools
import warnings
from typing import Any

import pytest
import torch
from gpytorch.likelihoods import GaussianLikelihood
from torch import Tensor

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup, fit
from gpytorch_gam.likelihoods import GaussianLocationScaleLikelihood, PoissonLikelihood
from gpytorch_gam.terms import constant, factor, smooth
from gpytorch_gam.training import FitResult
from gpytorch_gam.training._growing import grow
from gpytorch_gam.training.fit_result import Outcome
from gpytorch_gam.warnings import DiscretizationWarning, InducingPointsWarning

METHODS = ("auto", "rows")
RANGE = {"low": 0.0, "high": 1.0}

# The fits that several tests read stay in one process.
pytestmark = pytest.mark.xdist_group("growing")


def data(n: int = 400) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, a response that is a line in the first column, and one with five waves in the second."""
    x = torch.rand(n, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    noise = 0.2 * torch.randn(n, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return x, 2 * x[:, 0] + noise, torch.sin(30 * x[:, 1] ** 2) + 2 * x[:, 0] + noise


def model_of(*groups: ComponentGroup) -> AdditiveGP:
    return AdditiveGP(AdditivePredictor(*groups, constant())).double()


@functools.cache
def _fitted_to_waves(method: str) -> tuple[AdditiveGP, GaussianLikelihood, FitResult]:
    x, _, waves = data()
    model, likelihood = model_of(smooth(0, **RANGE), smooth(1, **RANGE)), GaussianLikelihood().double()
    return model, likelihood, fit(model, likelihood, (x, waves), method=method)


def fitted_to_waves(method: str) -> tuple[AdditiveGP, GaussianLikelihood, FitResult]:
    """Two columns whose numbers of points were free."""
    return copy.deepcopy(_fitted_to_waves(method))


@pytest.mark.parametrize("method", ["rows", "bins"])
def test_points_are_added_to_waves_and_not_to_a_line(method: str) -> None:
    x, line, waves = data()
    model, _, result = fitted_to_waves(method)
    assert model.predictor.group_of("x1").num_inducing > 16 == model.predictor.group_of("x0").num_inducing
    assert result.converged and max(result.shortfalls.values()) < 5.0
    fixed = model_of(smooth(0, num_inducing=16, **RANGE), smooth(1, num_inducing=16, **RANGE))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InducingPointsWarning)
        few = fit(fixed, GaussianLikelihood().double(), (x, waves), method=method)
    assert [epoch.number for epoch in result.history] == list(range(1, len(result.history) + 1))
    assert result.bound > few.bound + 20.0 and result.evaluations > 0
    straight = model_of(smooth(0, **RANGE), smooth(1, **RANGE))
    fit(straight, GaussianLikelihood().double(), (x, line), method=method)
    assert [group.num_inducing for group in straight.predictor.groups] == [16, 16, 1]


@pytest.mark.parametrize("method", ["rows", "bins"])
def test_a_fit_that_explores_nothing_only_climbs(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, _, waves = data()
    model, likelihood, whole = fitted_to_waves(method)
    points = [group.num_inducing for group in model.predictor.groups]
    likelihood.noise *= 1.5

    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("was looked for")

    for place in ("_component_jumps.ComponentJumps.jump", "_method_runs.rough_effects", "_method_runs.grow"):
        monkeypatch.setattr(f"gpytorch_gam.training.{place}", refused)
    again = fit(model, likelihood, (x, waves), method=method, warm_start=True, explore=False)
    assert again.bound == pytest.approx(whole.bound, abs=0.1) and again.converged
    assert [group.num_inducing for group in model.predictor.groups] == points
    fewer = model_of(smooth(0, **RANGE), smooth(1, **RANGE))
    with pytest.warns(InducingPointsWarning):  # said, but not mended
        fit(fewer, GaussianLikelihood().double(), (x, waves), method=method, explore=False)
    assert [group.num_inducing for group in fewer.predictor.groups] == [16, 16, 1]


def test_an_automatic_fit_leaves_bins_that_are_too_coarse_for_more_points(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_PATIENCE", "_FIXED", "_PER_ENTRY"):  # rows seem slow
        monkeypatch.setattr(f"gpytorch_gam.training._choice.{name}", 0.0)
    x = torch.linspace(0.0, 1.0, 300, dtype=torch.float64).unsqueeze(-1)
    noise = 0.1 * torch.randn(300, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = torch.sin(120 * x[:, 0] ** 2) + noise
    models = [(model_of(smooth(0, **RANGE)), GaussianLikelihood().double()) for _ in METHODS]
    pairs = zip(models, METHODS, strict=True)
    found = [fit(*model, (x, y), method=method, tolerance=1.0) for model, method in pairs]
    assert [result.method for result in found] == ["rows", "rows"]
    assert "bins would blur" in found[0].reason
    assert found[0].bound == pytest.approx(found[1].bound, abs=0.1)


def test_bins_that_are_too_coarse_say_so_where_rows_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.linspace(0.0, 1.0, 300, dtype=torch.float64).unsqueeze(-1)
    y = torch.sin(120 * x[:, 0] ** 2) + 0.1 * torch.randn(300, generator=torch.Generator().manual_seed(1)).double()
    monkeypatch.setattr("gpytorch_gam.training._choice._MAX_FEATURES", 300)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DiscretizationWarning)
        found = fit(model_of(smooth(0, **RANGE)), GaussianLikelihood().double(), (x, y), tolerance=1.0)
    assert found.method == "bins" and found.reason.endswith("coarse for components of so many inducing points")


def test_points_are_as_many_as_their_features_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    x, _, waves = data()
    monkeypatch.setattr("gpytorch_gam.training._choice._MAX_FEATURES", 20 * len(x))
    model = model_of(smooth(1, **RANGE))
    with pytest.warns(InducingPointsWarning):
        fit(model, GaussianLikelihood().double(), (x, waves), method="rows")
    assert model.predictor.groups[0].num_inducing == 16


def test_a_fit_ends_where_one_with_as_many_points_from_the_start_ends() -> None:
    x, _, waves = data(200)
    found = []
    model = model_of(smooth(1, **RANGE))
    for _ in range(2):
        found.append(fit(model, GaussianLikelihood().double(), (x, waves), method="rows").bound)
        number = model.predictor.groups[0].num_inducing
        model = model_of(smooth(1, num_inducing=number, **RANGE))
    assert number > 16
    assert found[0] == pytest.approx(found[1], abs=0.1)  # twice the tolerance of a fit


def test_counts_by_level_and_learnt_locations_grow() -> None:
    x, _, waves = data(300)
    x = torch.cat([x, (torch.arange(300) % 2).double()[:, None]], -1)
    counts = torch.poisson((1.0 + waves * x[:, 2]).exp(), generator=torch.Generator().manual_seed(2))
    by_level = smooth(1, by=2, levels=2, **RANGE)
    learnt = smooth(0, learn_inducing_locations=True, **RANGE)
    model, likelihood = model_of(by_level, learnt, factor(2, 2)), PoissonLikelihood().double()
    fit(model, likelihood, (x, counts), method="rows")
    assert by_level.num_inducing > 16 == learnt.num_inducing
    assert model.predictor.group_of("x2").num_inducing == 1


def test_terms_of_several_predictors_grow_apart() -> None:
    x, _, waves = data(300)
    groups = [smooth(1, predictor=index, **RANGE) for index in (0, 1)]
    model = model_of(*groups, constant(predictor=1))
    fit(model, GaussianLocationScaleLikelihood().double(), (x, waves), method="rows")
    assert groups[0].num_inducing > 16 == groups[1].num_inducing


def outcome(bound: float) -> Outcome:
    return Outcome(history=[], bound=bound, gradient=0.0, open=0.0, stopped="", passes=1, evaluations=2)


def grown(gains: list[float], shortfalls: list[dict[str, float]], *groups: ComponentGroup) -> list[int]:
    """The numbers of points after fits with these gains and shortfalls."""
    model, left = model_of(*groups), iter(shortfalls)
    bounds = iter(torch.tensor([0.0, *gains]).cumsum(0).tolist())
    strategy = model.variational_strategy
    grow(strategy, lambda *_: outcome(next(bounds)), lambda _: next(left), tolerance=1.0)
    assert next(left, None) is None and next(bounds, None) is None
    return [group.num_inducing for group in groups]


@pytest.mark.parametrize(
    ("gains", "shortfalls", "expected"),
    [
        ([], [{"x0": 0.9, "x1": 0.0}], [16, 16]),
        ([], [{}], [16, 16]),
        ([3.0], [{"x0": 1.1, "x1": 0.9}, {"x0": 0.2, "x1": 0.9}], [32, 16]),
        ([0.1], [{"x0": 9.0, "x1": 0.9}, {"x0": 9.0, "x1": 0.9}], [32, 16]),  # the promise was not kept
        ([9.0] * 4, [{"x0": 9.0, "x1": 0.0}] * 5, [256, 16]),  # the largest number
    ],
)
def test_growth_stops(gains: list[float], shortfalls: list[dict[str, float]], expected: list[int]) -> None:
    assert grown(gains, shortfalls, smooth(0, **RANGE), smooth(1, **RANGE)) == expected


def test_fits_are_loose_until_there_are_points_enough() -> None:
    model, tolerances, looked = model_of(smooth(0, **RANGE)), [], []
    left = iter([{"x0": 5.0}, {}, {"x0": 3.0}, {}])  # the last fit finds that it needs some, too

    def run(tolerance: float, looks: bool) -> Outcome:
        tolerances.append(tolerance)
        looked.append(looks)
        return outcome(9.0 * len(tolerances))

    found, shortfalls = grow(model.variational_strategy, run, lambda _: next(left), tolerance=0.05)
    assert tolerances == [1.0, 1.0, 0.05, 0.05] and shortfalls == {}
    assert looked == [True, False, True, True]  # whether there are other maxima
    assert model.predictor.groups[0].num_inducing == 64
    assert (found.bound, found.passes, found.evaluations) == (36.0, 4, 8)
    tolerances.clear()
    fixed = model_of(smooth(0, num_inducing=64, **RANGE))
    grow(fixed.variational_strategy, run, lambda _: {}, tolerance=0.05)
    assert tolerances == [0.05]


def test_components_of_a_group_grow_by_what_they_need_together() -> None:
    together = [{"x0": 0.6, "x1": 0.6}, {"x0": 0.1, "x1": 0.1}]
    assert grown([1.0], together, smooth([0, 1], **RANGE)) == [32]


def test_all_points_together_have_a_limit() -> None:
    groups: list[Any] = [smooth(list(range(24)), **RANGE), smooth(24, **RANGE)]
    need = {f"x{column}": 5.0 for column in range(25)}
    assert grown([500.0, 5.0], [need] * 3, *groups) == [32, 64]


def test_many_points_of_one_component_are_for_small_models() -> None:
    need = {f"x{column}": 5.0 for column in range(8)}
    assert grown([500.0, 500.0], [need] * 3, smooth(list(range(8)), **RANGE)) == [64]
    assert grown([500.0, 500.0, 500.0], [need] * 4, smooth(list(range(4)), **RANGE)) == [128]


def test_minibatches_keep_the_first_number() -> None:
    x, _, waves = data(200)
    model = model_of(smooth(1, **RANGE))
    with pytest.warns(InducingPointsWarning):
        fit(model, GaussianLikelihood().double(), [(x, waves)], num_epochs=10)
    assert model.predictor.groups[0].num_inducing == 16
