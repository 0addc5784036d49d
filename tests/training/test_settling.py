"""Fits by minibatches end by themselves."""

from __future__ import annotations

import pytest
import torch
from gpytorch.likelihoods import GaussianLikelihood
from torch.utils.data import DataLoader, TensorDataset

from gpytorch_gam import AdditiveGP, AdditivePredictor
from gpytorch_gam.parameters.log_scale import Coordinates
from gpytorch_gam.terms import constant, smooth
from gpytorch_gam.training import FitResult, _minibatches, fit
from gpytorch_gam.training._settling import Settling
from gpytorch_gam.warnings import ConvergenceWarning


def make_settling(lr: float = 0.1) -> tuple[Settling, torch.nn.Parameter]:
    parameter = torch.nn.Parameter(torch.zeros(2).double())
    return Settling(Coordinates([parameter], []), lr), parameter


def test_rates_fall_when_the_bound_does_not_change() -> None:
    settling, _ = make_settling()
    rates = []
    for _ in range(9):
        rates.append(settling.rate)
        settling.add(-100.0, num_steps=60)
    assert rates == pytest.approx([0.1] * 3 + [0.03] * 3 + [0.01] * 3)
    assert settling.is_over
    assert "did not change any more" in settling.reason


def test_epochs_of_few_steps_have_to_be_more() -> None:
    settling, _ = make_settling()
    for _ in range(6):
        settling.add(-100.0, num_steps=10)
        assert settling.rate == pytest.approx(0.1)
    settling.add(-100.0, num_steps=10)
    assert settling.rate == pytest.approx(0.03)


def test_a_bound_that_never_settles_ends_at_the_limit_and_says_so() -> None:
    settling, _ = make_settling()
    count = 0
    while not settling.is_over:
        count += 1
        settling.add(100.0 * count, num_steps=60)
    assert count == 200
    assert "still changing" in settling.reason


def test_hyperparameters_end_at_the_mean_of_the_last_phase() -> None:
    settling, parameter = make_settling()
    for number in range(9):
        with torch.no_grad():
            parameter.copy_(torch.tensor([float(number), -1.0]))
        settling.add(0.0, num_steps=60)
    settling.hold_at_mean()
    assert parameter.tolist() == [7.0, -1.0]  # of 6, 7 and 8


def fitted(**options: object) -> FitResult:
    torch.manual_seed(0)
    x = torch.rand(400, 1).double()
    y = torch.sin(6 * x[:, 0]) + 0.3 * torch.randn(400).double()
    model = AdditiveGP(AdditivePredictor(smooth(0, x, num_inducing=7), constant()), rank=8).double()
    loader = DataLoader(TensorDataset(x, y), batch_size=100, shuffle=True)
    return fit(model, GaussianLikelihood().double(), loader, **options)


def test_a_fit_of_many_rows_arrives_by_passes_over_its_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_minibatches, "_MAX_FEATURES", 0)  # whatever the data, they count as large
    monkeypatch.setattr("gpytorch_gam.training._settling._NUM_STEPS", 16)
    exact, result = fitted(method="rows"), fitted(num_epochs="auto")
    assert result.method == "minibatches"
    assert result.converged
    assert result.bound == pytest.approx(exact.bound, abs=0.1)
    assert result.evaluations > 0
    assert result.gradient < 5.0
    assert result.passes == len(result.history)
    assert result.history[-1].elbo == result.bound


def test_steps_that_run_out_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_minibatches, "_MAX_FEATURES", 0)
    monkeypatch.setattr(_minibatches, "_LAST_STEPS", 0)
    monkeypatch.setattr("gpytorch_gam.training._settling._MAX_EPOCHS", (1, 1, 1))
    with pytest.warns(ConvergenceWarning, match="has not arrived"):
        result = fitted(method="minibatches", num_held_back=1, lr=0.001)
    assert not result.converged
    assert result.open > 2.0
    assert "still changing" in result.stopped
