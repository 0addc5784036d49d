"""A small part of the grid of `benchmarks/fit_robustness.py`, and that its checks find what they look for."""

from __future__ import annotations

import importlib
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

DIRECTORY = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def grid(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The script, imported as if run from its directory; without a trace afterwards."""
    threads = torch.get_num_threads()
    monkeypatch.syspath_prepend(str(DIRECTORY))
    yield importlib.import_module("fit_robustness")
    for name in ("_common", "fit_robustness"):
        sys.modules.pop(name, None)
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("likelihood", "trouble", "method"),
    [
        ("Gaussian", "responses + 1e4", "rows"),
        ("Gaussian", "exact responses", "bins"),
        ("Gaussian location-scale", "constant responses", "rows"),
        ("gamma", "wide prior", "rows"),
        ("binomial, logit", "near separation", "bins"),
        ("ordinal", "five rows", "rows"),
        ("Poisson", "wide prior", "bins"),
        ("Poisson", "five rows", "minibatches"),
    ],
)
def test_fits_arrive_or_say_that_they_do_not(
    grid: ModuleType, likelihood: str, trouble: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpytorch_gam.training._settling._NUM_STEPS", 8)
    monkeypatch.setattr("gpytorch_gam.training._settling._MAX_EPOCHS", (20, 10, 10))
    outcome = grid.run(grid.make_problem(likelihood, trouble), method)
    assert outcome.kind != grid.FAILED, outcome.reason
    assert outcome.kind == grid.REFUSED or math.isfinite(outcome.bound)


def test_every_trouble_has_responses_of_its_likelihoods(grid: ModuleType) -> None:
    for trouble, likelihoods in grid.TROUBLES.items():
        for likelihood in likelihoods:
            torch.manual_seed(0)
            x = grid.draw_inputs(trouble)
            y = grid.draw_responses(likelihood, trouble, grid.effect(x))
            assert y.shape == (len(x),)
            assert torch.isfinite(y).all()


def test_a_lower_maximum_is_found(grid: ModuleType) -> None:
    outcomes = {
        "rows": grid.Outcome(grid.CONVERGED, "", -100.0, 0.01, 1.0),
        "bins": grid.Outcome(grid.CONVERGED, "", -101.5, 0.01, 1.0),
        "minibatches": grid.Outcome(grid.WARNED, "steps ran out", -110.0, 9.0, 1.0),
    }
    kinds = [outcome.kind for outcome in grid.compared(outcomes, -math.inf).values()]
    assert kinds == [grid.CONVERGED, grid.FAILED, grid.WARNED]
    assert [each.kind for each in grid.compared(outcomes, -98.5).values()] == [grid.FAILED, grid.FAILED, grid.WARNED]


def test_a_bound_that_is_not_the_models_is_found(grid: ModuleType) -> None:
    problem = grid.make_problem("Gaussian", "five rows")
    result = grid.fit(problem.model, problem.likelihood, (problem.x, problem.y), method="rows")
    assert not list(grid.misstatements(problem, result))
    with torch.no_grad():
        problem.likelihood.noise = 10.0 * problem.likelihood.noise
    assert any("is said to be" in text for text in grid.misstatements(problem, result))


def test_numbers_that_are_not_finite_are_found(grid: ModuleType) -> None:
    problem = grid.make_problem("Gaussian", "five rows")
    problem.model.eval()
    with torch.no_grad():
        problem.likelihood.noise_covar.raw_noise.fill_(math.nan)
    assert list(grid.wrong_numbers(problem)) == ["noise_covar.raw_noise is not finite"]


def test_the_script_prints_a_line_a_case(grid: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "numbers.json"
    grid.main(["--quick", "--troubles", "five rows", "constant column", "--json", str(path)])
    printed = capsys.readouterr().out
    assert "Gaussian | five rows | rows | converged | bound" in printed
    assert "Gaussian | constant column | terms | refused | bound nan" in printed
    assert [fit["kind"] for fit in json.loads(path.read_text())["fits"]] == [grid.CONVERGED, grid.REFUSED]
