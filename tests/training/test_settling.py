"""Fits by minibatches end by themselves."""

from __future__ import annotations

import math
from typing import Any
from unittest import mock

import pytest
import torch
from gpytorch.likelihoods import GaussianLikelihood
from torch import distributed
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from gpytorch_gam import AdditiveGP, AdditivePredictor
from gpytorch_gam.mlls import CollapsedELBO
from gpytorch_gam.parameters.log_scale import Coordinates
from gpytorch_gam.terms import constant, smooth
from gpytorch_gam.training import FitResult, _minibatch_end, _settling, fit, polish
from gpytorch_gam.training._cosine_decay import CosineDecay
from gpytorch_gam.training._settling import Settling
from gpytorch_gam.warnings import ConvergenceWarning
from tests.two_processes import Together


def make_settling(lr: float = 0.1) -> tuple[Settling, torch.nn.Parameter]:
    parameter = torch.nn.Parameter(torch.zeros(2).double())
    return Settling(Coordinates([parameter], []), lr), parameter


def test_rates_fall_when_the_bound_does_not_change() -> None:
    settling, _ = make_settling()
    rates = []
    for _ in range(9):
        rates.append(settling.rate)
        settling.add(-100.0, num_steps=60, is_moving=True)
    assert rates == pytest.approx([0.1] * 3 + [0.03] * 3 + [0.01] * 3)
    assert settling.is_over
    assert "did not change any more" in settling.reason


def test_epochs_of_few_steps_have_to_be_more() -> None:
    settling, _ = make_settling()
    for _ in range(6):
        settling.add(-100.0, num_steps=10, is_moving=True)
        assert settling.rate == pytest.approx(0.1)
    settling.add(-100.0, num_steps=10, is_moving=True)
    assert settling.rate == pytest.approx(0.03)


def test_a_bound_that_never_settles_ends_at_the_limit_and_says_so() -> None:
    settling, _ = make_settling()
    count = 0
    while not settling.is_over:
        count += 1
        settling.add(100.0 * count, num_steps=60, is_moving=True)
    assert count == 200
    assert "still changing" in settling.reason


def test_epochs_with_hyperparameters_that_are_held_back_do_not_count() -> None:
    settling, parameter = make_settling()
    for _ in range(20):
        settling.add(-100.0, num_steps=60, is_moving=False)
    assert settling.rate == pytest.approx(0.1)
    with torch.no_grad():
        parameter.fill_(3.0)
    settling.finish()
    assert parameter.tolist() == [3.0, 3.0]


def test_a_cosine_begins_when_hyperparameters_are_released() -> None:
    schedule, rates = CosineDecay(6, lr=0.1), []
    while not schedule.is_over:
        rates.append(schedule.rate)
        schedule.add(-100.0, num_steps=3, is_moving=len(rates) > 2)
    expected = [0.1, 0.1, *(0.05 * (1.0 + math.cos(math.pi * share)) for share in (0.0, 0.25, 0.5, 0.75))]
    assert rates == pytest.approx(expected)
    assert schedule.reason == "6 epochs were taken"


def test_hyperparameters_end_at_the_mean_of_the_last_phase() -> None:
    settling, parameter = make_settling()
    for number in range(9):
        with torch.no_grad():
            parameter.copy_(torch.tensor([float(number), -1.0]))
        settling.add(0.0, num_steps=60, is_moving=True)
    settling.finish()
    assert parameter.tolist() == [7.0, -1.0]  # of 6, 7 and 8


def make_rows() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    x = torch.rand(400, 1).double()
    return x, torch.sin(6 * x[:, 0]) + 0.3 * torch.randn(400).double()


def make_model(x: torch.Tensor) -> tuple[AdditiveGP, GaussianLikelihood]:
    predictor = AdditivePredictor(smooth(0, x, num_inducing=7, kernel="rbf"), constant())
    return AdditiveGP(predictor, rank=8).double(), GaussianLikelihood().double()


def fitted(**options: object) -> FitResult:
    x, y = make_rows()
    loader = DataLoader(TensorDataset(x, y), batch_size=100, shuffle=True)
    return fit(*make_model(x), loader, **options)


def test_a_fit_of_many_rows_arrives_by_passes_over_its_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_minibatch_end, "_MAX_FEATURES", 0)  # whatever the data, they count as large
    monkeypatch.setattr(_settling, "_NUM_STEPS", 8)
    exact, result = fitted(method="rows"), fitted(num_epochs="auto")
    assert result.method == "minibatches"
    assert result.converged
    assert result.bound == pytest.approx(exact.bound, abs=0.1)
    assert result.evaluations > 0
    assert result.gradient < 5.0
    assert result.passes > len(result.history) + result.evaluations  # each of which takes several
    assert result.history[-1].elbo == result.bound


def test_steps_that_run_out_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_minibatch_end, "_MAX_FEATURES", 0)
    monkeypatch.setattr(_minibatch_end, "_LAST_STEPS", 0)
    monkeypatch.setattr(_settling, "_MAX_EPOCHS", (1, 1, 1))
    with pytest.warns(ConvergenceWarning, match="has not arrived"):
        result = fitted(method="minibatches", num_held_back=1, lr=0.001)
    assert not result.converged
    assert result.open > 1.0
    assert "still changing" in result.stopped and "0 steps were taken" in result.stopped


def test_passes_of_other_rows_end_with_an_estimate_of_what_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_settling, "_NUM_STEPS", 8)
    x, y = make_rows()
    model, likelihood = make_model(x)
    sampler = RandomSampler(y, replacement=True)
    result = fit(model, likelihood, DataLoader(TensorDataset(x, y), 100, sampler=sampler))
    assert result.method == "minibatches"
    assert math.isnan(result.bound) and math.isnan(result.gradient)
    assert result.evaluations == 0
    assert result.passes == len(result.history)
    assert result.open < 2.0
    exact = make_model(x)
    assert polish(model, likelihood, [(x, y)])[-1] == pytest.approx(fit(*exact, (x, y)).bound, abs=5.0)


def test_a_posterior_alone_ends_at_its_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_minibatch_end, "_MAX_FEATURES", 0)
    monkeypatch.setattr(_settling, "_NUM_STEPS", 8)
    x, y = make_rows()
    model, likelihood = make_model(x)
    for parameter in (*model.hyperparameters(), *likelihood.parameters()):
        parameter.requires_grad_(False)
    result = fit(model, likelihood, [(x[::2], y[::2]), (x[1::2], y[1::2])], method="minibatches")
    assert result.converged and result.open == 0.0 and result.gradient == 0.0
    assert result.bound == pytest.approx(CollapsedELBO(likelihood, model).optimum(x, y).bound.item(), abs=1e-6)


def arrived(group: Any) -> tuple[FitResult, dict[str, torch.Tensor]]:
    """A fit of data that count as large, each process to its share of each batch."""
    x, y = make_rows()
    model, likelihood = make_model(x)
    parts = torch.arange(len(y)).split(100)
    if group is not None:
        parts = tuple(rows.split((30, 70))[distributed.get_rank(group)] for rows in parts)
    batches = [(x[rows], y[rows]) for rows in parts]
    with mock.patch.object(_minibatch_end, "_MAX_FEATURES", 0), mock.patch.object(_settling, "_NUM_STEPS", 8):
        result = fit(model, likelihood, batches, 400, num_epochs="auto", process_group=group)
    return result, {**model.state_dict(), **likelihood.state_dict()}


@pytest.mark.xdist_group("distributed")
def test_processes_arrive_together(together: Together) -> None:
    alone, _ = arrived(None)
    (one, state), (other, same) = together(arrived)
    assert (one.bound, one.open, one.stopped, one.passes) == (other.bound, other.open, other.stopped, other.passes)
    assert all(torch.equal(state[name], same[name]) for name in state)
    assert one.converged
    # Where searches within a tolerance of .05 nats end depends on rounding.
    assert one.bound == pytest.approx(alone.bound, abs=0.1)
