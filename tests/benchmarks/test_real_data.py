"""`benchmarks/real_data.py` runs, and what it compares is comparable. Times are never asserted."""

from __future__ import annotations

import importlib
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import norm

pytestmark = pytest.mark.usefixtures("quick_fits")

DIRECTORY = Path(__file__).parents[2] / "benchmarks"
MODULES = ("_common", "_real_peers", "_small_peers", "_small_sets", "real_data", "vs_bam", "gaussian_closed_form")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The script, imported as if run from its directory; without a trace afterwards."""
    threads = torch.get_num_threads()
    monkeypatch.syspath_prepend(str(DIRECTORY))
    yield importlib.import_module("real_data")
    for name in MODULES:
        sys.modules.pop(name, None)
    torch.set_num_threads(threads)


def test_simulated_sets_are_compared(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "results.json"
    some = {default: variants for default, variants in script.VARIANTS.items() if default in ("link", "interactions")}
    monkeypatch.setattr(script, "VARIANTS", some)
    # Other packages may be installed in any version.
    monkeypatch.setattr(script, "has_mgcv", lambda: False)
    monkeypatch.setattr(script, "installed", lambda package: None)
    fit, plain = script.fit_gam, script.Variant("point estimates")

    def fit_quickly(data_set: Any, num_folds: int, variant: Any = plain) -> Any:
        quick = {"hyperparameters": "point", "kernel": "matern52", "num_inducing": 4, "tolerance": 20.0}
        return fit(data_set, num_folds, replace(variant, options={**variant.options, **quick}))

    monkeypatch.setattr(script, "fit_gam", fit_quickly)
    found = script.main(["--quick", "--variants", "--json", str(path)])
    results = json.loads(path.read_text())["results"]
    assert [result["family"] for result in results] == list(script.QUICK)
    for result in results:
        for fits in result["fits"].values():
            assert fits["processor_seconds"][0] > 0 and all(map(math.isfinite, fits["nll"]))
    assert "probit" not in found["results"][0]["variants"]["link"]
    variants = results[1]["variants"]
    assert script.gain(variants["link"]["probit"], variants["interactions"]["none"])[0] != 0.0
    assert "| link: probit |" in capsys.readouterr().out


def test_runs_go_on_where_others_ended(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, calls = tmp_path / "results.json", []
    scores = {None: [0.5, 0.6], "none": [0.6, 0.8], "probit": [0.7, 1.0]}

    def fit(data_set: Any, num_folds: int, variant: Any = None) -> Any:
        name = None if variant is None else variant.name
        assert variant is None or variant.options["interactions"] == 0
        calls.append((data_set.name, name))
        return sys.modules["_small_peers"].Fits([1.0], [1.0], nll=scores[name])

    monkeypatch.setattr(script, "fit_gam", fit)
    monkeypatch.setattr(script, "installed_peers", lambda interactions: {})
    script.main(["--quick", "--json", str(path)])
    script.main(["--quick", "--json", str(path), "--resume", "--variants", "link"])
    first, second = "simulated, gaussian", "simulated, binomial"
    assert calls == [(first, None), (second, None), (first, "none"), (second, "none"), (second, "probit")]
    shown = capsys.readouterr().out
    assert "| interactions: none | +150.0 (50.0) | +150.0 (50.0) |" in shown
    assert "| link: probit |  | +150.0 (50.0) |" in shown
    script.main(["--quick", "--json", str(path)])
    assert calls[5:] == [(first, None), (second, None)]
    assert not any(result["variants"] for result in json.loads(path.read_text())["results"])


def test_peers_are_not_fitted_again(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    sets, fits = sys.modules["_small_sets"], sys.modules["_small_peers"].Fits
    calls = []

    def fit(data_set: Any, num_folds: int) -> Any:
        calls.append(data_set.name)
        return fits([1.0], [1.0], nll=[0.5, 0.6])

    monkeypatch.setattr(script, "fit_gam", lambda data_set, num_folds: fits([1.0], [1.0], nll=[0.4, 0.5]))
    data_set = sets.simulated("gaussian")
    first = script.compare(data_set, 2, {"peer": ("1.0", fit)}, {})["fits"]
    again = script.compare(data_set, 2, {"peer": ("1.0", fit)}, first)["fits"]
    assert len(calls) == 1 and again["peer"]["nll"] == first["peer"]["nll"]
    script.compare(data_set, 2, {"peer": ("1.1", fit)}, first)
    assert len(calls) == 2


def test_scores_are_those_of_the_densities(script: ModuleType) -> None:
    peers, sets = sys.modules["_real_peers"], sys.modules["_small_sets"]
    data_set = sets.simulated("gaussian")
    always = peers.Predicted(np.full(30, 0.1), np.full(30, 1.2))
    fits = peers.scored(data_set, 2, lambda frames: None, lambda fitted, frames: always)
    for split, nll in zip(data_set.splits(2), fits.nll, strict=True):
        assert nll == pytest.approx(-norm.logpdf(split.test["target"], 0.1, 1.2).mean())
    labels = peers.log_density(np.array([0.0, 1.0]), peers.Predicted(np.array([0.2, 0.3])))
    np.testing.assert_allclose(labels, np.log([0.8, 0.3]))


def test_frames_have_the_types_of_the_files(script: ModuleType) -> None:
    sets = sys.modules["_small_sets"]
    table = pd.DataFrame({"size": [1.0, 2.0, 4.0], "kind": ["b", "a", "b"], "wheels": [4.0, 2.0, 2.0], "y": 1.0})
    categories = ["kind", "wheels"]
    values = sets.values_of(table, categories)
    data_set = sets.DataSet("cars", "gaussian", [], sets.coded(table, "y", categories), categories=values)
    found = data_set.decoded(data_set.table)
    assert found["kind"].tolist() == ["b", "a", "b"] and not isinstance(found["kind"].dtype, pd.CategoricalDtype)
    assert found["wheels"].tolist() == [4.0, 2.0, 2.0] and isinstance(found["wheels"].dtype, pd.CategoricalDtype)
    assert "target" not in found


def test_constants_of_the_package_return(script: ModuleType) -> None:
    columns = importlib.import_module("gpytorch_gam.gam.columns")
    before = columns._LONG_TAIL
    (variant,) = script.VARIANTS["tails"]
    data_set = sys.modules["_small_sets"].simulated("gaussian")
    assert not variant.applies(data_set)
    data_set.table.loc[0, "a"] = 1e3
    assert variant.applies(data_set)
    with variant.active():
        assert math.isinf(columns._LONG_TAIL)
    assert before == columns._LONG_TAIL


def test_differences_within_a_standard_error_are_ties(script: ModuleType) -> None:
    results = [
        {"fits": {script.OURS: {"nll": [0.5, 0.6]}, "peer": {"nll": nll}}}
        for nll in ([0.7, 0.9], [0.4, 0.71], [0.4, 0.5])
    ]
    assert script.victories(results) == ["better than peer on 1 of 3 sets, a tie on 1"]
