"""A small part of the grid of `benchmarks/robustness.py`, and that its checks find what they look for."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

DIRECTORY = Path(__file__).parents[2] / "benchmarks"
LIKELIHOODS = ("Gaussian", "Bernoulli", "Poisson", "Poisson, log link", "Student-t")
DATA = ("duplicated columns", "constant column", "repeated rows", "extreme responses")
STEPS = 20


@pytest.fixture
def robustness(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The script, imported as if run from its directory; without a trace afterwards."""
    threads = torch.get_num_threads()
    monkeypatch.syspath_prepend(str(DIRECTORY))
    yield importlib.import_module("robustness")
    for name in ("_common", "robustness"):
        sys.modules.pop(name, None)
    torch.set_num_threads(threads)


def test_the_grid_is_that_of_the_script(robustness: ModuleType) -> None:
    assert (robustness.LIKELIHOODS, robustness.DATA) == (LIKELIHOODS, DATA)
    cases = [robustness.Case("Gaussian", "extreme responses", "mean_field", "float32", seed) for seed in range(20)]
    settings = {(case.learns_hyperparameters, case.is_anova, case.has_outliers) for case in cases}
    assert len(settings) == 8


@pytest.mark.parametrize(
    ("likelihood", "data", "family"),
    [
        (likelihood, data, ("block_low_rank", "mean_field")[row % 2])
        for row, likelihood in enumerate(LIKELIHOODS)
        for column, data in enumerate(DATA)
        if (row + column) % 4 == 1
    ],
)
def test_float32_does_not_diverge_while_hyperparameters_are_learnt(
    robustness: ModuleType, likelihood: str, data: str, family: str
) -> None:
    outcome = robustness.run(robustness.Case(likelihood, data, family, "float32", seed=6), 2 * STEPS)
    assert not outcome.reasons
    assert len(outcome.checkpoints) == 5


@pytest.mark.parametrize(
    ("likelihood", "data"),
    [
        (likelihood, data)
        for row, likelihood in enumerate(LIKELIHOODS)
        for column, data in enumerate(DATA)
        if (row + column) % 4 == 0  # each likelihood once
    ],
)
def test_float64_does_not_diverge_at_fixed_hyperparameters(robustness: ModuleType, likelihood: str, data: str) -> None:
    outcome = robustness.run(robustness.Case(likelihood, data, "block_low_rank", "float64", seed=5), STEPS)
    assert not outcome.reasons
    assert len(outcome.checkpoints) == 3


@pytest.mark.parametrize(
    ("likelihood", "family"),
    [
        ("Gaussian", "low_rank"),
        ("Bernoulli", "mean_field"),
        *((likelihood, "block_low_rank") for likelihood in ("Gaussian", "Bernoulli", "Poisson, log link")),
    ],
)
def test_steps_on_all_rows_do_not_diverge(robustness: ModuleType, likelihood: str, family: str) -> None:
    case = robustness.Case(likelihood, "duplicated columns", family, "float64", seed=1)
    outcome = robustness.run(case, STEPS, batch=robustness.NUM_ROWS)
    assert not outcome.reasons
    assert outcome.checkpoints[-1].elbo >= max(checkpoint.elbo for checkpoint in outcome.checkpoints) - 0.01


@pytest.mark.parametrize(
    ("elbos", "noise", "reason"),
    [
        ([-100.0, -10.0, -15.0], 0.1, None),
        ([-100.0, -10.0, -30.0], 2.0, None),
        ([-100.0, -10.0, -30.0], 0.5, "ELBO -30 at the end, -10 before"),
        ([-100.0, -110.0, -101.0], 0.0, "ELBO -101 at the end, -100 at the start"),
        ([-100.0, float("nan"), -10.0], 0.0, "nan"),
        ([float("-inf"), -20.0, -10.0], 0.0, "-inf"),
    ],
)
def test_a_collapse_is_found(robustness: ModuleType, elbos: list[float], noise: float, reason: str | None) -> None:
    outcome = robustness.Outcome([], [robustness.Checkpoint(elbo, noise) for elbo in elbos])
    robustness.check_checkpoints(outcome, learns_hyperparameters=False)
    assert len(outcome.reasons) == (0 if reason is None else 1)
    assert reason is None or reason in outcome.reasons[0]


def test_parameters_that_are_not_finite_are_found(robustness: ModuleType) -> None:
    case = robustness.Case("Gaussian", "repeated rows", "block_low_rank", "float64", seed=0)
    x, y = robustness.draw(case)
    model = robustness.make_model(case, y)
    model(x)
    outcome = robustness.Outcome([], [])
    robustness.check_model(model, x, outcome)
    assert outcome.reasons == []
    model.variational_strategy._variational_distribution.variational_mean.data[3] = float("nan")
    robustness.check_model(model, x, outcome)
    assert "variational_strategy._variational_distribution.variational_mean is not finite" in outcome.reasons
    assert "a mean of the predictor is not finite" in outcome.reasons


def test_an_error_is_a_failure_with_its_message(robustness: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(robustness, "draw_responses", lambda case, truth: torch.full_like(truth, float("inf")))
    outcome = robustness.run(robustness.Case("Gaussian", "repeated rows", "block_low_rank", "float64", seed=0), 2)
    assert any(reason.startswith("RuntimeError: the gradient of the loss is NaN") for reason in outcome.reasons)


def test_the_script_writes_every_run(
    robustness: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, likelihoods = tmp_path / "results.json", ("Gaussian", "Poisson, log link")
    monkeypatch.setattr(robustness, "LIKELIHOODS", likelihoods)
    robustness.main(["--quick", "--json", str(path)])
    runs = json.loads(path.read_text())["runs"]
    assert len(runs) == len(likelihoods) * 3 * 2
    assert all(len(run["checkpoints"]) == 2 for run in runs)
    assert "0 of 12 runs failed" in capsys.readouterr().out
