"""
Every example runs once, with the options that it has, and writes its numbers and its figure.

Scripts run in this process, since importing torch takes longer than some of them, but for the one that needs several.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import math
import os
import runpy
import subprocess
import sys
import warnings
from pathlib import Path
from typing import NamedTuple

import matplotlib.image
import matplotlib.pyplot as plt
import pandas as pd
import pytest
import torch

from gpytorch_gam.warnings import ConvergenceWarning

# Runs of one example by several tests stay in one process.
pytestmark = pytest.mark.xdist_group("examples")

ROOT = Path(__file__).resolve().parents[2]
FAMILY_KEYS = {
    "real_data": {"elbo", "nats_below_optimum", "rmse", "negative_log_density", "coverage_90", "noise_stddev"},
    "training_loop": {"elbo", "accuracy", "negative_log_density", "reload_difference"},
    "counts": {"elbo", "negative_log_density", "residual_variance", "coverage_80", "zeros", "log_rate"},
}
EXPECTED = {
    "real_data": {
        "families": ["block_low_rank", "mean_field"],
        "baseline": "linear_regression",
        "rows": {"train": 314, "test": 78, "dropped": 14},
        "effects": ["displacement", "horsepower", "weight", "acceleration", "year", "cylinders", "origin"],
    },
    "training_loop": {
        "families": ["low_rank", "block_low_rank"],
        "baseline": "true_probability",
        "rows": {"train": 1000, "test": 2000},
        "effects": ["x0", "x1", "x2", "x3"],
    },
    "counts": {
        "families": ["poisson", "negative_binomial"],
        "baseline": "truth",
        "rows": {"train": 816, "test": 192},
        "effects": ["hour, working day", "hour, weekend", "weekday", "temperature"],
    },
}


class Run(NamedTuple):
    name: str
    folder: Path
    printed: str

    @property
    def numbers(self):
        return json.loads((self.folder / "numbers.json").read_text())


def run_script(name, folder, *options, fails=False, steps=20):
    """What ``python examples/NAME.py --quick --json numbers.json`` prints in a folder, with warnings as errors."""
    stops = pytest.raises(SystemExit) if fails else contextlib.nullcontext()
    printed, threads, dtype = io.StringIO(), torch.get_num_threads(), torch.get_default_dtype()
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(), contextlib.redirect_stdout(printed):
        patch.chdir(folder)
        patch.syspath_prepend(ROOT / "examples")
        patch.setattr(sys, "argv", [f"{name}.py", "--quick", "--json", "numbers.json", *options])
        # Searches for the best hyperparameters are broken off, which is said: they have tests of their own.
        for limit in ("_MAX_STEPS", "_MAX_PASSES", "_MAX_ROUNDS"):
            patch.setattr(f"gpytorch_gam.training._profile_bound.{limit}", 1)
        patch.setattr("gpytorch_gam.training._component_jumps._MAX_JUMPS", 0)
        patch.setattr("gpytorch_gam.gam.smoothness._OTHERS", ())
        # Arranging the parts of figures takes as long as drawing them.
        patch.setattr("matplotlib.layout_engine.ConstrainedLayoutEngine.execute", lambda engine, figure: None)
        patch.setattr("gpytorch_gam.training._ascent._MAX_ROUNDS", 1)
        patch.setattr("gpytorch_gam.training._row_fit._MAX_STEPS", steps)
        patch.setattr("gpytorch_gam.gam.integration._MOST_UNASKED", -1)
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch, GPyTorch and pandas
        try:
            with stops as stop, matplotlib.rc_context():
                runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
        finally:
            plt.close("all")
            sys.modules.pop("_style", None)
            torch.set_num_threads(threads)
            torch.set_default_dtype(dtype)
    return f"{printed.getvalue()}{stop.value}" if fails else printed.getvalue()


def write_curves(folder):
    """Two data sets of 60 rows for the distributional example."""
    rows = [f"{1 + row / 4},{row % 7}" for row in range(60)]
    (folder / "head_circumference.csv").write_text("\n".join(["age,head", *rows]))
    (folder / "mcycle.csv").write_text("\n".join(["times,accel", *rows, "3.0,"]))  # one response is missing
    return "--data", "."


def write_tables(folder):
    """Three data sets of 60 rows for the example of data frames."""
    rows = range(60)
    words = pd.Series(["a", "b", "c"] * 20)
    wage = {"wage": [row % 11 for row in rows], "age": rows, "year": [2000 + row % 5 for row in rows]}
    pd.DataFrame({**wage, "education": words, "jobclass": words[::-1].to_list(), "maritl": ["m", "n"] * 30}).to_csv(
        folder / "wage.csv", index=False
    )
    columns = {name: [(row * factor) % 17 for row in rows] for factor, name in enumerate(["tmpd", "o3median"], 2)}
    chicago = {"death": [row % 7 for row in rows], "time": rows, **columns, "pm10median": [row % 13 for row in rows]}
    pd.DataFrame(chicago).to_csv(folder / "chicago.csv", index=False)
    days = pd.date_range("2019-01-01", periods=60).strftime("%Y-%m-%d")
    hours = [f"{row % 24:02}:00:00" for row in rows]
    bicycles = {
        "date": days,
        "time": hours,
        "count": [row % 5 for row in rows],
        "average_temperature": [row % 9 for row in rows],
        "station_name": words,
    }
    pd.DataFrame(bicycles).to_csv(folder / "bicycles.csv", index=False)
    return "--data", "."


OPTIONS = {"distributional": write_curves, "gam_quickstart": write_tables}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Run an example, once each, in a folder of its own."""

    @functools.cache
    def run_once(name):
        folder = tmp_path_factory.mktemp(name)
        options = OPTIONS[name](folder) if name in OPTIONS else ()
        return Run(name, folder, run_script(name, folder, *options))

    return run_once


def _numbers(value):
    """All numbers in nested dictionaries and lists."""
    if isinstance(value, dict):
        return [number for entry in value.values() for number in _numbers(entry)]
    if isinstance(value, list):
        return [number for entry in value for number in _numbers(entry)]
    return [value] if isinstance(value, int | float) else []


@pytest.mark.parametrize("name", EXPECTED)
def test_example_writes_finite_numbers_for_every_family_and_effect(run, name):
    numbers, expected = run(name).numbers, EXPECTED[name]
    assert set(numbers) == {"rows", expected["baseline"], *expected["families"]}
    assert numbers["rows"] == expected["rows"]
    for family in expected["families"]:
        assert numbers[family].keys() >= FAMILY_KEYS[name]
        assert list(numbers[family]["effects"]) == expected["effects"]
    assert all(math.isfinite(number) for number in _numbers(numbers))


@pytest.mark.parametrize("name", EXPECTED)
def test_example_draws_a_figure_with_something_on_it(run, name):
    image = matplotlib.image.imread(run(name).folder / "out" / f"{name}.png")
    height, width = image.shape[:2]
    assert height >= 300 and width >= 1000
    inked = (image[..., :3].min(-1) < 0.95).mean()
    assert 0.02 < inked < 0.6  # an empty page has 0, an inverted one nearly 1


@pytest.mark.parametrize("name", EXPECTED)
def test_example_prints_what_it_found(run, name):
    printed = run(name).printed
    for word in [*EXPECTED[name]["effects"], "ELBO", f"{name}.png"]:
        assert word in printed


def test_distributed_example_in_one_process(run):
    numbers = run("distributed_svi").numbers
    assert numbers["rows"] == {"train": 1200, "test": 2000}
    assert (numbers["processes"], numbers["epochs_before"]) == (1, 0)
    assert numbers["rmse"] < 0.2
    assert all(math.isfinite(number) for number in _numbers(numbers))


def test_distributed_example_survives_the_death_of_a_process_and_finds_the_same(run, tmp_path):
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # or gloo may look for dead workers
    torchrun = [sys.executable, "-m", "tests.examples.forked_workers"]
    command = [*torchrun, str(ROOT / "examples" / "distributed_svi.py"), "--quick", "--json", "numbers.json"]
    result = subprocess.run(
        [*command, "--die-at-epoch", "2"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("a worker dies") == 1
    assert result.stdout.count("rows a second") == 1  # the first process alone prints
    together = json.loads((tmp_path / "numbers.json").read_text())
    alone = run("distributed_svi").numbers
    assert (together["processes"], together["epochs_before"]) == (2, 1)
    for name in ("elbo", "rmse", "noise_stddev"):
        assert together[name] == pytest.approx(alone[name], rel=1e-5)  # numbers are written with six digits


def test_bounds_of_the_real_data_example_stay_below_the_collapsed_bound(run):
    numbers = run("real_data").numbers
    # The ELBO belongs to the start of the last step, the optimum to its end: one small step of Adam lies between.
    assert all(numbers[family]["nats_below_optimum"] > -1.0 for family in ("block_low_rank", "mean_field"))


@pytest.mark.parametrize("name", ["distributional", "mixed_effects", "friedman_anova"])
def test_example_of_terms_and_likelihoods_writes_numbers_and_a_figure(run, name):
    result = run(name)
    assert all(math.isfinite(number) for number in _numbers(result.numbers))
    image = matplotlib.image.imread(result.folder / "out" / f"{name}.png")
    assert 0.02 < (image[..., :3].min(-1) < 0.95).mean() < 0.6
    assert f"{name}.png" in result.printed


def test_location_scale_model_is_calibrated_where_constant_noise_is_not(run):
    numbers = run("distributional").numbers["simulated"]
    assert numbers["rows"] == 600
    assert numbers["gain"]["mean"] > 0.3  # .41 at the truth
    # Ten times less data than it takes for errors of three points; constant noise is off by twenty.
    assert max(abs(share - 0.8) for share in numbers["location_scale"]["coverage_by_decile"]) < 0.15
    assert max(abs(share - 0.8) for share in numbers["constant_noise"]["coverage_by_decile"]) > 0.15
    assert set(numbers["effects"]) == {"mean", "log_sd"}
    assert all(effect["rmse"] < 0.2 for effect in numbers["effects"].values())  # amplitudes are 1


def test_distributional_example_reads_real_data(run):
    result = run("distributional")
    for name in ("head circumference", "motorcycle"):
        assert result.numbers[name]["rows"] == result.numbers[name]["held_out_rows"] == 60
        assert name in result.printed


def test_distributional_example_says_which_file_is_missing(tmp_path):
    write_curves(tmp_path)
    (tmp_path / "mcycle.csv").unlink()
    assert "there is no file mcycle.csv" in run_script("distributional", tmp_path, "--data", ".", fails=True)


def test_mixed_effects_example_shrinks_small_groups_and_knows_new_ones(run):
    numbers = run("mixed_effects").numbers
    assert numbers["rows"] == {"plants": 30, "fewest": 1, "most": 60, "all": 449}
    small = numbers["known_plants"]["1 to 3 rows"]
    assert small["intercepts"] < small["mean_residuals"]
    for scores in numbers["known_plants"].values():
        assert scores["model"] < min(scores["common_curve"], scores["shifted_curve"])
    for deviation in numbers["deviations"].values():
        assert deviation["low"] < deviation["true"] < deviation["high"]
    assert numbers["new_plant"]["distance_from_common_curve"] < 1e-9
    assert 0.9 < numbers["new_plant"]["coverage_95"] < 0.99


def test_reloaded_model_of_the_training_loop_predicts_the_same(run):
    numbers = run("training_loop").numbers
    assert numbers["low_rank"]["reload_difference"] == numbers["block_low_rank"]["reload_difference"] == 0.0


def test_negative_binomial_model_of_the_counts_is_calibrated_where_the_poisson_model_is_not(run):
    numbers = run("counts").numbers
    poisson, found, truth = (numbers[name] for name in ("poisson", "negative_binomial", "truth"))
    assert poisson["coverage_80"] < 0.6 < found["coverage_80"] < 0.9
    assert found["residual_variance"] < 2 < 10 < poisson["residual_variance"]
    # 192 rows do not tell a good fit from the truth.
    assert abs(found["negative_log_density"] - truth["negative_log_density"]) < 0.1
    assert poisson["negative_log_density"] > truth["negative_log_density"] + 2
    assert found["log_rate"]["coverage_95"] > 0.7 > poisson["log_rate"]["coverage_95"]
    assert found["effects"]["hour, working day"]["rmse"] < 0.25  # of an effect from -1.7 to 1.7


def test_counts_example_reads_real_data_and_says_which_files_are_missing(tmp_path):
    said = run_script("counts", tmp_path, "--data", ".", fails=True)
    assert all(part in said for part in ("nothing to fit", "bicycles.csv is not there", "chicago.csv is not there"))

    # A station without a thermometer, and days of which it lists 16 hours: the other eight are zeros.
    lines = ["station_name,date,time,count,average_temperature"]
    for day in range(60):
        date = f"2019-{3 + day // 28:02d}-{1 + day % 28:02d}"
        lines += [f"A,{date},{h:02d}:00:00-{h + 1:02d}:00:00,{1 + (h * day) % 9},{day % 11}" for h in range(24)]
        lines += [f"B,{date},{h:02d}:00:00-{h + 1:02d}:00:00,{1 + (h + day) % 5},0.0" for h in range(6, 22)]
    (tmp_path / "bicycles.csv").write_text("\n".join(lines))
    # The air quality of every eighth day is missing, of every second that --quick takes.
    days = [
        f"{95 + day * 7 % 40},{'' if day % 8 == 0 else day % 13 - 6},{day - 100}.5,{day % 50}" for day in range(200)
    ]
    (tmp_path / "chicago.csv").write_text("\n".join(["death,pm10median,time,tmpd", *days]))
    printed = run_script("counts", tmp_path, "--data", ".", "--out", "figures", steps=3)
    assert "2400 counts listed; 480 hours without one" in printed and "missing in 0 rows" in printed
    assert "keeps 25 of 50 days" in printed
    numbers = json.loads((tmp_path / "numbers.json").read_text())
    assert numbers["bicycles"]["rows"] == {"train": 5 * 48, "test": 48}
    assert numbers["chicago"]["rows"] == {"train": 40, "test": 10}
    assert all(math.isfinite(number) for number in _numbers(numbers))
    for name in ("counts_bicycles.png", "counts_chicago.png"):
        assert (tmp_path / "figures" / name).stat().st_size > 10000


def test_dask_example_finds_the_fit_of_one_process_though_a_worker_dies(tmp_path):
    pytest.importorskip("pyarrow")
    pytest.importorskip("distributed")
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    command = [sys.executable, str(ROOT / "examples" / "dask_statistics.py"), "--quick", "--json", "numbers.json"]
    result = subprocess.run(
        [*command, "--kill"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr
    numbers = json.loads((tmp_path / "numbers.json").read_text())
    assert (numbers["rows"], numbers["deaths"]) == (6000, 1)
    assert numbers["relative_difference"] < 1e-9
    assert numbers["rmse"] < 0.1


def test_dask_example_says_that_it_needs_dask(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "dask.distributed", None)
    assert 'pip install "dask[distributed]"' in run_script("dask_statistics", tmp_path, fails=True)


def test_data_frames_become_models_and_pictures(run, tmp_path):
    found = run("gam_quickstart")
    assert set(found.numbers) == {"wage", "chicago", "bicycles"}
    assert all(math.isfinite(number) for number in _numbers(found.numbers))
    assert all((found.folder / "out" / f"gam_{name}.png").exists() for name in found.numbers)
    assert "lacks wage.csv, chicago.csv, bicycles.csv" in run_script("gam_quickstart", tmp_path, fails=True)
