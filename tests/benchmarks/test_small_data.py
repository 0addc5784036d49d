"""`benchmarks/small_data.py` runs, and what it compares is comparable. Times are never asserted."""

from __future__ import annotations

import importlib
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from gpytorch.likelihoods import GaussianLikelihood

from gpytorch_gam import AdditiveGP, AdditivePredictor
from gpytorch_gam.terms import constant, smooth

pytestmark = pytest.mark.usefixtures("quick_fits")

DIRECTORY = Path(__file__).parents[2] / "benchmarks"
MODULES = ("_common", "_small_coverage", "_small_peers", "_small_sets", "small_data", "vs_bam", "gaussian_closed_form")
EXAMPLES = ("friedman_anova", "mixed_effects", "_style")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The script, imported as if run from its directory; without a trace afterwards."""
    threads = torch.get_num_threads()
    monkeypatch.syspath_prepend(str(DIRECTORY))
    yield importlib.import_module("small_data")
    for name in (*MODULES, *EXAMPLES):
        sys.modules.pop(name, None)
    torch.set_num_threads(threads)


def test_peers_are_compared_on_simulated_sets(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, figure = tmp_path / "results.json", tmp_path / "seconds.png"
    # Other packages may be installed in any version.
    monkeypatch.setattr(script, "installed_peers", lambda: {script.OURS: script.fit_ours})
    script.main(["--quick", "--json", str(path), "--figure", str(figure)])
    results = json.loads(path.read_text())["results"]
    assert [result["family"] for result in results] == list(script.QUICK)
    for result in results:
        assert result["details"]["converged"] and result["details"]["open"] < script.MOST_OPEN
        for summary in result["summary"].values():
            assert summary["seconds"] > 0 and math.isfinite(summary["nll"])
    assert "faster than mgcv on" in capsys.readouterr().out
    assert figure.stat().st_size > 10_000 and torch.get_default_dtype() == torch.float32


def test_fits_start_from_random_hyperparameters(script: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    script.main(["--quick", "--starts", "2", "--json", str(path)])
    for result in json.loads(path.read_text())["spread"]:
        assert len(result["starts"]) == 2 and result["num_converged"] == 2
        assert result["spread"] >= 0 and math.isfinite(result["best"])


def test_random_starts_are_within_their_ranges(script: ModuleType) -> None:
    sets, peers = sys.modules["_small_sets"], sys.modules["_small_peers"]
    data_set = sets.simulated("gaussian")
    x = sets.inputs(data_set, data_set.table)
    model, likelihood = sets.make_model(data_set, x)
    peers.randomise([model, likelihood], np.random.RandomState(0))
    smooths = model.predictor.groups[0].kernel
    width = x[:, :2].amax(0) - x[:, :2].amin(0)
    lengthscales = smooths.base_kernel.base_kernel.lengthscale.flatten() / width
    assert bool(((lengthscales > 0.049) & (lengthscales < 2.01)).all())
    assert bool(((smooths.outputscale > 0.01) & (smooths.outputscale < 100.0)).all())
    assert smooths.outputscale[0] != smooths.outputscale[1]
    assert likelihood.noise.item() != pytest.approx(math.log(2.0), rel=1e-3)


def test_coverage_is_measured_with_and_without_uncertainty(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, coverage = tmp_path / "results.json", sys.modules["_small_coverage"]

    def sine(num_rows: int, seed: int) -> Any:
        generator = torch.Generator().manual_seed(seed)
        x = torch.rand(40, 1, generator=generator)
        truth = torch.sin(6 * x[:, 0])
        y = truth + 0.3 * torch.randn(40, generator=generator)
        model = AdditiveGP(AdditivePredictor(smooth(0, x), constant()))
        return coverage.fitted(model, GaussianLikelihood(), (x, y), x, truth)

    monkeypatch.setitem(coverage.CASES, "friedman-500", sine)
    script.main(["--quick", "--coverage", "2", "--cases", "friedman-500", "--json", str(path)])
    (result,) = json.loads(path.read_text())["coverage"]
    assert result["num_draws"] == 2 and 0.5 < result["plain"] <= result["with_uncertainty"] <= 1.0


def test_formulas_are_those_that_users_of_mgcv_write(script: ModuleType) -> None:
    sets, peers = sys.modules["_small_sets"], sys.modules["_small_peers"]
    terms = [
        *sets.smooths("a"),
        *sets.smooths("t", size=200),
        sets.Term("cyclic", ("hour",), 20, 24.0),
        *sets.factors("g"),
        sets.Term("tensor", ("a", "b")),
    ]
    expected = 'y ~ s(a) + s(t, bs = "cr", k = 200) + s(hour, bs = "cc", k = 20) + g + ti(a, b)'
    assert peers.formula(terms, "y") == expected


def test_a_folder_without_tables_is_named(script: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="there is no file"):
        script.main(["--data", str(tmp_path), "--sets", "wage"])
