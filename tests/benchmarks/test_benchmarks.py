"""The benchmark scripts run, and what they compare is comparable. Times are never asserted."""

import functools
import importlib
import json
import math
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

pytestmark = pytest.mark.usefixtures("quick_fits")

DIRECTORY = Path(__file__).parents[2] / "benchmarks"
MODULES = (
    "_common",
    "step_time",
    "complexity",
    "gaussian_closed_form",
    "calibration",
    "training",
    "rank",
    "polish",
    "prediction",
    "gam_calibration",
    "gam_prediction",
    "null_effects",
    "interactions",
    "projection",
    "epochs",
    "gpu_table",
    "scaling",
    "streaming",
    "vs_bam",
    "friedman_anova",
    "_style",
)


@pytest.fixture
def load(monkeypatch):
    """Import a script by name, as if run from its directory; on one thread and without a trace afterwards."""
    threads = torch.get_num_threads()
    monkeypatch.syspath_prepend(str(DIRECTORY))
    yield importlib.import_module
    for name in MODULES:
        sys.modules.pop(name, None)
    torch.set_num_threads(threads)


@pytest.fixture
def run(load, tmp_path):
    """Run a script in quick mode and read its JSON."""

    def run_script(name, *arguments):
        path = tmp_path / "results.json"
        load(name).main(["--quick", "--threads", "1", "--repeats", "5", "--json", str(path), *arguments])
        return json.loads(path.read_text())

    return run_script


@pytest.fixture
def without_mgcv(load, monkeypatch):
    """Leave mgcv out where it is installed: one test runs it, and R takes seconds to start."""
    for name in ("training", "vs_bam"):
        monkeypatch.setattr(load(name), "has_mgcv", lambda: False)


@pytest.fixture
def in_this_process(load, monkeypatch):
    """Measure here what has a process of its own, which takes longer to start than to work."""
    for name in ("polish", "scaling", "streaming", "gam_prediction"):
        monkeypatch.setattr(load(name), "in_new_process", lambda function, *arguments: function(*arguments))


@pytest.fixture
def point_estimates(monkeypatch):
    """Integrating hyperparameters out takes most of the time of a small fit, and has tests of its own."""
    monkeypatch.setattr("gpytorch_gam.gam.integration._MOST_UNASKED", -1)


@pytest.fixture
def short_searches(monkeypatch):
    """Break off searches for hyperparameters at the end of fits by minibatches, which have tests of their own."""
    for limit in ("_MAX_STEPS", "_MAX_PASSES", "_MAX_ROUNDS"):
        monkeypatch.setattr(f"gpytorch_gam.training._profile_bound.{limit}", 1)


def assert_finite_positive(values):
    assert values
    for value in values:
        assert math.isfinite(value) and value > 0


def assert_describes_environment(results):
    assert set(results["environment"]) == {"date", "torch", "gpytorch", "gpytorch_gam", "threads", "device"}
    assert results["environment"]["threads"] == 1
    assert results["repeats"] == 5


def test_step_time_measures_every_family(run, capsys):
    results = run("step_time")
    assert_describes_environment(results)
    (setting,) = results["settings"]
    names = [record["family"] for record in setting["families"]]
    structured = ["stock mean-field", "low_rank R=4", "block_low_rank R=4", "block_low_rank R=24", "mean_field"]
    assert names == [*structured, "low_rank R=4, plain path", "coupled", "stock joint"]
    for key in ("milliseconds", "ratio", "variational_parameters", "peak_mib"):
        assert_finite_positive([record[key] for record in setting["families"]])
    assert setting["families"][0]["ratio"] == 1.0
    assert all(int(record["calls"]) > 100 for record in setting["families"])
    printed = capsys.readouterr().out
    assert all(name in printed for name in names)


def test_step_time_takes_settings(load, run, monkeypatch):
    def times(functions, repeats, device):
        return {name: [1.0] * repeats for name in functions}

    monkeypatch.setattr(load("step_time"), "interleaved_times", times)
    monkeypatch.setattr(load("step_time"), "describe_calls", lambda step, device: "0")
    monkeypatch.setattr(load("step_time"), "peak_memory", lambda step, device: 0.0)
    results = run("step_time", "--settings", "2,4,2,16", "2,5,3,16")
    assert [[s["num_components"], s["num_inducing"], s["rank"], s["batch"]] for s in results["settings"]] == [
        [2, 4, 2, 16],
        [2, 5, 3, 16],
    ]


@pytest.mark.parametrize("setting", ["2,4,2", "2,4,two,16", "2,4,9,16", "0,4,1,16"])
def test_step_time_rejects_malformed_settings(load, setting, capsys):
    with pytest.raises(SystemExit):
        load("step_time").main(["--settings", setting])
    assert setting in capsys.readouterr().err


def test_step_time_skips_dense_families_that_take_too_long(load, run, monkeypatch):
    step_time = load("step_time")
    assert step_time.make_dense_models(step_time.Setting(32, 64, 64, 8192), torch.device("cpu")) == {}
    monkeypatch.setattr(step_time, "DENSE_LIMIT", 0.0)
    monkeypatch.setattr(step_time, "describe_calls", lambda step, device: "0")
    monkeypatch.setattr(step_time, "peak_memory", lambda step, device: 0.0)
    (setting,) = run("step_time")["settings"]
    assert not {"coupled", "stock joint"} & {record["family"] for record in setting["families"]}


def test_targets_are_checked_against_the_ratios(load):
    step_time = load("step_time")
    names = [target.family for target in step_time.TARGETS]
    records = [{"family": names[0], "ratio": 0.5}, {"family": names[1], "ratio": 1.3}]
    assert [target["holds"] for target in step_time.check_targets(records)] == [True, False]


def test_complexity_fits_every_family_and_quantity(run):
    results = run("complexity")
    assert_describes_environment(results)
    complexity = sys.modules["complexity"]
    assert [(r["family"], r["quantity"]) for r in results["records"]] == [
        (family, quantity) for family in complexity.FAMILIES for quantity in complexity.QUANTITIES
    ]
    for record in results["records"]:
        assert set(record["fitted"]) == {"N", "C", "M"}
        assert all(math.isfinite(exponent) for exponent in record["fitted"].values())
        assert record["our_count"]["formula"]
    for sweep in results["sweeps"]:
        for family in sweep["families"]:
            assert_finite_positive(sweep["seconds"][family])
            assert_finite_positive(sweep["parameters"][family])


def test_complexity_sweeps_cover_every_exponent(load):
    complexity = load("complexity")
    for sweeps in (complexity.DEFAULT_SWEEPS, complexity.QUICK_SWEEPS):
        covered = {(sweep.quantity, sweep.variable, family) for sweep in sweeps for family in sweep.families}
        wanted = [("KL", "C"), ("KL", "M"), ("marginals", "N"), ("marginals", "C"), ("marginals", "M")]
        assert covered == {(*pair, family) for pair in wanted for family in complexity.FAMILIES}


def test_fitted_exponent_is_the_slope_over_the_largest_sizes(load):
    sizes = [1, 2, 4, 8, 16]
    values = [1000.0, 900.0, *(3.0 * size**2.5 for size in sizes[2:])]
    assert load("complexity").fitted_exponent(sizes, values) == pytest.approx(2.5)


def test_storage_is_the_number_of_parameters(load):
    complexity, common = load("complexity"), load("_common")
    c, m, r = 6, 8, complexity.RANK
    expected = {
        "mean-field": c * (m + m**2),
        "coupled covariance": c * m + (c * m) ** 2,
        "coupled precision": c * m + c * m * r,
        "block + low-rank": c * m + c * m * r + c * m**2,
    }
    counted = {name: common.num_variational_parameters(build(c, m)) for name, build in complexity.FAMILIES.items()}
    assert counted == expected


def test_all_models_share_the_prior_of_the_predictor(load):
    """With q at the prior, every model predicts mean 0 and variance 1 (up to the jitter of each)."""
    step_time = load("step_time")
    setting = step_time.Setting(3, 8, 4, 64)
    models = {**step_time.make_structured_models(setting), **step_time.make_dense_models(setting, torch.device("cpu"))}
    x, _ = load("_common").make_data(3, 64, torch.device("cpu"))
    for model in models.values():
        model.train()
        model(x)  # initialises q near the prior
        q = model.variational_strategy._variational_distribution
        with torch.no_grad():
            for name, parameter in q.named_parameters():
                if name != "chol_variational_covar":
                    parameter.zero_()
            output = model(x)
        torch.testing.assert_close(output.mean, torch.zeros(64))
        # GPyTorch's strategy adds a jitter of 1e-4 to each of the C prior variances.
        torch.testing.assert_close(output.variance, torch.ones(64), rtol=0.0, atol=1e-3)


def test_additive_kernels_of_the_joint_model_agree(load):
    common = load("_common")
    x = torch.rand(7, 3)
    batched, summed = (common.additive_column_kernel(3, batched) for batched in (True, False))
    torch.testing.assert_close(batched(x, x[:4]).to_dense(), summed(x, x[:4]).to_dense())
    torch.testing.assert_close(batched(x, diag=True), summed(x, diag=True))


def test_interleaved_times_call_every_function_once_a_round_after_a_warm_up(load):
    calls = []
    functions = {name: lambda name=name: calls.append(name) for name in "ab"}
    times = load("_common").interleaved_times(functions, 3, torch.device("cpu"))
    assert "".join(calls) == "ab" + "ab" + "ba" + "ab"
    assert {name: len(values) for name, values in times.items()} == {"a": 3, "b": 3}


def test_fewer_than_five_repeats_are_refused(load, capsys):
    with pytest.raises(SystemExit):
        load("step_time").main(["--quick", "--repeats", "4"])
    assert "at least 5" in capsys.readouterr().err


def test_gaussian_closed_form_finds_the_function(load, tmp_path, monkeypatch):
    path, script = tmp_path / "results.json", load("gaussian_closed_form")
    quick = functools.partial(script.HyperparameterUncertainty, max_models=2)
    monkeypatch.setattr(script, "HyperparameterUncertainty", quick)
    monkeypatch.setattr(script, "NUM_FRESH", 200)
    script.main(["--quick", "--json", str(path)])
    result = json.loads(path.read_text())
    assert torch.get_default_dtype() == torch.float32
    (fit,) = result["fits"]["collapsed bound"]
    assert fit["rmse"] < 0.5  # of a function with standard deviation 4.9, from 600 rows with unit noise
    assert 0.5 < fit["coverage"] <= 1.0
    assert math.isfinite(fit["bound"])


def test_calibration_shows_what_mean_field_loses(load, tmp_path):
    figure, path = tmp_path / "calibration.png", tmp_path / "results.json"
    load("calibration").main(["--quick", "--figure", str(figure), "--json", str(path)])
    results = json.loads(path.read_text())["results"]
    assert figure.stat().st_size > 10_000
    for correlation, found in results.items():
        assert found["block + low-rank, R = 32"]["stddev_ratio"] == pytest.approx(1.0, abs=0.02), correlation
    assert results["0.99"]["mean-field"]["stddev_ratio"] < 0.5
    assert results["0.99"]["mean-field"]["coverage"] < results["0.99"]["coupled covariance"]["coverage"]


@pytest.mark.filterwarnings("ignore:the bound is higher near")  # after a few steps
@pytest.mark.usefixtures("without_mgcv")
def test_training_compares_optimisers(load, tmp_path, monkeypatch):
    figure, path, script = tmp_path / "training.png", tmp_path / "results.json", load("training")
    peer = load("gaussian_closed_form")
    quick = functools.partial(peer.HyperparameterUncertainty, max_models=2)
    monkeypatch.setattr(peer, "HyperparameterUncertainty", quick)
    maximise = peer.maximise
    monkeypatch.setattr(peer, "maximise", lambda *arguments, iterations: maximise(*arguments, iterations=5))

    def score(model, likelihood, x, y, fresh):  # the peer's has the hyperparameters' uncertainty
        with torch.no_grad():
            return peer.score(*peer.marginals(model, fresh), fresh)

    monkeypatch.setattr(script, "score_with_uncertainty", score)
    script.main(["--quick", "--settings", "correlated", "--figure", str(figure), "--json", str(path)])
    assert figure.stat().st_size > 10_000
    results = json.loads(path.read_text())["results"]
    assert list(results) == ["correlated"]
    for result in results.values():
        assert result["peers"]["L-BFGS on the collapsed bound"]
        for runs in result["training"].values():
            for found in runs.values():
                assert len(found["steps"]) == len(found["gap"]) == 5
                assert min(found["gap"]) > -1e-6  # the bound is an upper one
                assert_finite_positive(found["seconds"])
                assert all(ending["gap_after_polish"] > -1e-6 for ending in found["endings"])
        for runs in (result["training"]["block + low-rank, R = 32"], result["training"]["mean-field"]):
            assert runs["natural gradients"]["gap"][-1] < runs["Adam, betas (.9, .999)"]["gap"][-1]


def test_rank_decides(load, tmp_path):
    path = tmp_path / "results.json"
    load("rank").main(["--quick", "--json", str(path)])
    (result,) = json.loads(path.read_text())["results"]
    for gaps in result["gaps"].values():
        values = list(gaps.values())
        assert values == sorted(values, reverse=True)  # a larger rank never loses more
        assert values[-1] > -1e-6
    assert result["gaps"]["block_low_rank"]["0"] < result["gaps"]["low_rank"]["0"]


def test_polishing_brings_every_family_closer(load, tmp_path, monkeypatch):
    path, script = tmp_path / "results.json", load("polish")
    monkeypatch.setattr(script, "CORRELATIONS", {"correlated": script.CORRELATIONS["correlated"]})
    monkeypatch.setattr(script, "check_goals", lambda results: [])  # of both
    script.main(["--quick", "--sections", "factors", "labels", "--json", str(path)])
    results = json.loads(path.read_text())["results"]
    for found in results["factors"].values():
        for way in ("streamed", "dense"):
            assert -1e-6 < found[way]["gap"] < found["trained_gap"]
    assert results["factors"]["block + low-rank, R = 32"]["streamed"]["gap"] < 0.1
    assert results["factors"]["mean-field"]["dense"]["gap"] > 1.0
    for setting, found in results["labels"].items():
        assert abs(found["difference_to_tied"]) < 1e-4, setting
        for gaps in found["gaps"].values():
            for way in ("streamed", "dense"):
                assert -1e-4 < gaps[way] <= gaps["trained"]  # 1e-4: the optimum is iterated, too
        assert found["gaps"]["block + low-rank, R = 16"]["dense"] < 1.0


def test_another_process_is_another_one(load):
    assert load("polish").in_new_process(os.getpid) != os.getpid()


@pytest.mark.usefixtures("in_this_process")
def test_polishing_measures_time(load, tmp_path, monkeypatch):
    path, script = tmp_path / "results.json", load("polish")
    monkeypatch.setattr(script, "QUICK", script.QUICK._replace(components=(5,)))
    script.main(["--quick", "--sections", "components", "--json", str(path)])
    (record,) = json.loads(path.read_text())["results"]["components"]["records"]
    assert record["passes"] == 2
    assert record["readings"] == 9  # four a pass, and the bound at the end
    assert_finite_positive([record["seconds"]])


@pytest.mark.usefixtures("in_this_process")
def test_polishing_measures_memory(load, tmp_path):
    path = tmp_path / "results.json"
    load("polish").main(["--quick", "--sections", "memory", "--json", str(path)])
    results = json.loads(path.read_text())["results"]
    assert {(record["method"], record["num_rows"]) for record in results["memory"]} == {
        (method, rows)
        for method in ("optimum_of_batches", "polish, dense", "polish, streamed")
        for rows in (1000, 2000)
    }
    assert_finite_positive([record["seconds"] for record in results["memory"]])


def test_growth_exponent_leaves_the_intercept_out(load):
    sizes = [25, 50, 100, 200]
    assert load("polish").growth_exponent(sizes, [7.0 + 0.3 * size**1.3 for size in sizes]) == pytest.approx(1.3)


@pytest.mark.filterwarnings("ignore:what these components leave")  # of waves, with four points for each
@pytest.mark.filterwarnings("ignore::gpytorch_gam.warnings.ConvergenceWarning")
@pytest.mark.usefixtures("in_this_process", "short_searches")
def test_scaling_measures_steps_and_epochs_over_files(load, run, tmp_path, monkeypatch):
    figure = tmp_path / "scaling.png"
    script = load("scaling")
    monkeypatch.setattr(script, "QUICK_SWEEPS", script.QUICK_SWEEPS[::2])
    results = run("scaling", "--sizes", "2e2", "400", "--figure", str(figure))
    assert_describes_environment(results)
    assert figure.stat().st_size > 10_000
    assert [sweep["variable"] for sweep in results["sweeps"]] == ["C", "R"]
    for sweep in results["sweeps"]:
        for found in sweep["families"].values():
            assert_finite_positive(found["seconds"])
            assert len(found["mib"]) == len(sweep["sizes"])
            assert all(math.isfinite(exponent) for exponent in found["exponents"]["seconds"].values())
    records = results["epochs"]["records"]
    assert [record["num_rows"] for record in records] == [200, 400]
    for record in records:
        assert_finite_positive([record["seconds"], record["rows_per_second"], record["noise"]])
    assert results["epochs"]["memory_ratio"] is None  # of sizes that were not asked for


def test_streaming_fits_files(load, in_this_process, tmp_path, capsys):
    pytest.importorskip("pyarrow")
    path = tmp_path / "streaming.json"
    load("streaming").main(["--quick", "--threads", "1", "--folder", str(tmp_path), "--json", str(path)])
    results = json.loads(path.read_text())["results"]
    assert [each["rows"] for each in results] == [2000, 300000]
    assert results[1]["rmse"] < results[0]["rmse"] < 0.3
    assert all(each["noise"] == pytest.approx(0.5, abs=0.05) for each in results)
    assert "reading, s" in capsys.readouterr().out


def test_scaling_writes_the_data_that_it_says(load, tmp_path):
    scaling = load("scaling")
    x, y = (np.load(path) for path in scaling.write_rows(tmp_path, 2**17 + 1000, 3))
    assert x.shape == (2**17 + 1000, 3)
    assert x.dtype == y.dtype == np.float32
    for part in (x[: 2**17], x[2**17 :]):
        assert part.mean() == pytest.approx(0.5, abs=0.03)
    residual = y - np.sin(4 * x + np.linspace(0, 3, 3)).mean(-1)
    assert residual.std() == pytest.approx(0.1, rel=0.01)


def test_slopes_are_those_of_the_sizes_from_a_start(load):
    slope = load("scaling").log_slope
    sizes = [1, 2, 4, 8]
    values = [9.0, *(3.0 * size**1.5 for size in sizes[1:])]
    assert slope(sizes, values, 2) == pytest.approx(1.5)
    assert slope(sizes, values) != pytest.approx(1.5)
    assert slope(sizes, [None, *values[1:]]) is None
    assert slope(sizes, values, 8) is None


@pytest.mark.parametrize("size", ["none", "0", "inf", "nan"])
def test_scaling_rejects_sizes_that_are_no_numbers_of_rows(load, size, capsys):
    with pytest.raises(SystemExit):
        load("scaling").main(["--sizes", size])
    assert "must be a number of rows" in capsys.readouterr().err


def test_projection_compares_paths(run, capsys):
    results = run("projection", "--shapes", "RBF", "CENTRED_RBF")
    assert_describes_environment(results)
    assert results["shapes"] == ["RBF", "CENTRED_RBF"]
    assert [setting["block_rank"] for setting in results["settings"]] == [0, 8]
    for setting in results["settings"]:
        assert [record["path"] for record in setting["paths"]] == ["plain", "blockwise"]
        for record in setting["paths"]:
            for part in ("forward", "backward"):
                assert_finite_positive(record[part].values())
                assert record[part]["error"] < 1e-4
    assert "blockwise" in capsys.readouterr().out


@pytest.mark.parametrize("setting", ["2,4,2,0", "2,4,2,-1,16", "0,4,1,0,16"])
def test_projection_rejects_malformed_settings(load, setting, capsys):
    with pytest.raises(SystemExit):
        load("projection").main([f"--settings={setting}"])
    assert setting in capsys.readouterr().err


def test_prediction_measures_every_call(run):
    results = run("prediction")
    calls = results["calls"]
    names = ["predict", "predict, no components", "components", "call, 1 predictor", "call, 2 predictors"]
    assert [record["call"] for record in calls] == 2 * names
    for record in calls:
        assert_finite_positive([record["seconds"], record["rows_per_second"], record["mib"]])


@pytest.mark.usefixtures("point_estimates")
@pytest.mark.usefixtures("in_this_process")
def test_gam_prediction_measures_every_call(load, run, monkeypatch):
    monkeypatch.setattr(load("gam_prediction"), "NUM_CURVES", 1)
    calls = run("gam_prediction")["calls"]
    assert set(calls) == set(load("gam_prediction").CALLS)
    for record in calls.values():
        assert record["rows"] == 5000
        assert_finite_positive([record["seconds"], record["processor_seconds"], record["gib"], record["gib_of_result"]])


@pytest.mark.usefixtures("point_estimates")
def test_gam_calibration_compares_with_targets(load, tmp_path, capsys):
    path, sections, script = tmp_path / "results.json", ["curve", "levels", "mgcv"], load("gam_calibration")
    assert script.interval_score(np.array([0.5, 1.25, -0.25]), 0.0, 1.0, 0.9) == pytest.approx([1.0, 6.0, 6.0])
    script.main(
        ["--quick", "--sections", *sections, "--data", str(tmp_path), "--json", str(path)]  # which has no tables
    )
    findings = json.loads(path.read_text())["findings"]
    assert [len(findings[section]) for section in sections] == [10, 3, 0]
    for each in findings["curve"] + findings["levels"]:
        assert each["holds"] == (each["low"] <= each["value"] <= each["high"]) and 0 <= each["value"] <= 1
    assert "mgcv: there is no" in capsys.readouterr().out


@pytest.mark.usefixtures("point_estimates")
def test_null_effects_counts_rejections(load, tmp_path, monkeypatch):
    script = load("null_effects")
    monkeypatch.setattr(script, "NULL", ["null0", "null1"])
    for kind in ("GAMRegressor", "GAMClassifier"):
        quick = functools.partial(getattr(script, kind), kernel="matern52", tolerance=10.0)
        monkeypatch.setattr(script, kind, quick)
    script.main(["--quick", "--rows", "80", "--json", str(tmp_path / "results.json")])
    results = json.loads((tmp_path / "results.json").read_text())
    assert [each["response"] for each in results] == ["Gaussian", "labels"]
    for each in results:
        assert each["null"] == sorted(each["null"]) and all(0 <= rate <= 1 for rate in each["null"] + each["weak"])


def test_searches_for_interactions_are_counted(load, tmp_path, capsys, monkeypatch):
    script, name = load("interactions"), "interaction of 3%, 300 rows"
    monkeypatch.setattr(script, "GAMRegressor", functools.partial(script.GAMRegressor, num_inducing=3, tolerance=20.0))
    script.main(["--quick", "--scenarios", name, "--json", str(tmp_path / "results.json")])
    ((result, tables),) = ((each, each["tables"]) for each in json.loads((tmp_path / "results.json").read_text()))
    assert result["name"] == name and [table["seed"] for table in tables] == [0, 1]
    assert all((table["searched"] == table["without"]) == (not table["kept"]) for table in tables)
    assert f"| {name} | 2 |" in capsys.readouterr().out
    found = script.summarised([{**tables[0], "kept": ["ti(x0, x1)", "ti(x0, x2)"], "found": True}, tables[1]])
    assert found["false"] >= 0.5 and found["found"] >= 0.5


@pytest.mark.filterwarnings("ignore::gpytorch_gam.warnings.ConvergenceWarning")
@pytest.mark.usefixtures("short_searches")
def test_epochs_learn_the_noise(run):
    results = run("epochs", "--num-rows", "4000")
    assert results["rows"] == 2000  # quick sizes win
    assert_finite_positive([results["seconds"], results["rmse"], results["noise"]])


def test_the_gpu_table_has_a_line_for_every_target(load, tmp_path, capsys):
    table = load("gpu_table")
    table.main([str(tmp_path)])
    assert capsys.readouterr().out.count("not measured") == 6
    families = [
        {"family": "low_rank R=64", "milliseconds": 3.0, "ratio": 0.05, "peak_mib": 600.0},
        {"family": "block_low_rank R=32", "milliseconds": 4.0, "ratio": 0.07, "peak_mib": 700.0},
    ]
    (tmp_path / "step.json").write_text(json.dumps({"settings": [{"families": families}]}))
    (tmp_path / "epochs.json").write_text(json.dumps({"rows": 10_000_000, "seconds": 50.0}))
    (tmp_path / "tests.xml").write_text(
        '<testsuites><testsuite tests="5" failures="1" errors="0" skipped="2"/></testsuites>'
    )
    table.main([str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines[2:]] == ["NO", "yes", "NO", "yes", "-", "yes", "yes"]


@pytest.mark.usefixtures("without_mgcv")
def test_discretised_fits_are_compared_with_bam(load, tmp_path, monkeypatch):
    path, script = tmp_path / "results.json", load("vs_bam")
    monkeypatch.setattr(script, "NUM_COLUMNS", 5)  # without the inert ones
    monkeypatch.setattr(script, "NUM_FRESH", 500)
    script.main(["--quick", "--threads", "1", "--json", str(path)])
    results = json.loads(path.read_text())["results"]
    assert [result["response"] for result in results] == ["gaussian", "labels"]
    for result in results:
        for name, found in result["summary"].items():
            assert found["rmse"] < 0.3, name  # of a predictor with standard deviation 4.9 or 1, from 3000 rows
            assert 0.7 < found["coverage"] <= 1.0, name
        assert_finite_positive([found["seconds"] for found in result["summary"].values()])
    assert torch.get_default_dtype() == torch.float32
