"""
Claim: with a Gaussian likelihood, training on the collapsed bound recovers Friedman's function with a smaller error
than mgcv's `bam`, and calibrated bands once the hyperparameters' uncertainty is counted. Time, where `bam` is ahead, is
printed beside it.

On each of several draws of 5000 rows, all hyperparameters of the model of `examples/friedman_anova.py` are found by
L-BFGS on the collapsed bound, first on 600 rows, then on all; the posterior is the closed-form optimum. Where R with
mgcv is installed, `bam(discrete=TRUE)` with default smooths and `ti(x1, x2)` fits the same draws. Printed for both:
root mean squared error of the function on 2000 fresh inputs, coverage of its 95% bands there (given the
hyperparameters, and for the collapsed bound also with their uncertainty), seconds on one thread (without that of the
uncertainty).

    python benchmarks/gaussian_closed_form.py [--seeds 24] [--json FILE]
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpytorch
import numpy as np
import torch
from _common import describe_environment, print_table, script_parser, write_json
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from friedman_anova import coverage, friedman, make_predictor, marginals

from gpytorch_gam import AdditiveGP, AdditivePredictor
from gpytorch_gam.diagnostics import HyperparameterUncertainty
from gpytorch_gam.mlls import CollapsedELBO
from gpytorch_gam.numerics.dtypes import default_dtype

NUM_ROWS, NUM_FRESH, SUBSET = 5000, 2000, 600

BAM = """
suppressMessages(library(mgcv))
folder <- commandArgs(trailingOnly = TRUE)[1]
train <- read.csv(file.path(folder, "train.csv"))
fresh <- read.csv(file.path(folder, "fresh.csv"))
formula <- y ~ s(x1) + s(x2) + s(x3) + s(x4) + s(x5) + s(x6) + ti(x1, x2)
seconds <- system.time(fit <- bam(formula, data = train, discrete = TRUE, nthreads = 1))[["elapsed"]]
found <- predict(fit, fresh, se.fit = TRUE)
result <- data.frame(mean = found$fit, sd = found$se.fit, seconds = seconds)
write.csv(result, file.path(folder, "found.csv"), row.names = FALSE)
"""


def draw(seed: int, num_rows: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(seed)
    x, fresh = torch.rand(num_rows, 6), torch.rand(NUM_FRESH, 6)
    return x, friedman(x) + torch.randn(num_rows), fresh


def maximise(objective: CollapsedELBO, parameters: list[Tensor], x: Tensor, y: Tensor, iterations: int) -> None:
    optimizer = torch.optim.LBFGS(
        parameters, max_iter=iterations, history_size=20, line_search_fn="strong_wolfe", tolerance_change=1e-7
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = -objective(x, y)
        loss.backward()
        return loss

    optimizer.step(closure)


def fit_collapsed(
    x: Tensor, y: Tensor, fresh: Tensor, make_predictor: Callable[[], AdditivePredictor] = make_predictor
) -> dict[str, float]:
    model, likelihood = AdditiveGP(make_predictor(), "coupled"), gpytorch.likelihoods.GaussianLikelihood()
    likelihood.noise = 4.0
    objective = CollapsedELBO(likelihood, model)
    parameters = [*model.hyperparameters(), *likelihood.parameters()]
    start = time.perf_counter()
    maximise(objective, parameters, x[:SUBSET], y[:SUBSET], iterations=60)
    maximise(objective, parameters, x, y, iterations=20)
    optimum = objective.optimum(x, y)
    seconds = time.perf_counter() - start
    model.variational_strategy.set_whitened_posterior(optimum.mean, optimum.precision)
    found = score_with_uncertainty(model.eval(), likelihood, x, y, fresh)
    return {**found, "seconds": seconds, "bound": optimum.bound.item()}


def score_with_uncertainty(
    model: AdditiveGP, likelihood: gpytorch.likelihoods.GaussianLikelihood, x: Tensor, y: Tensor, fresh: Tensor
) -> dict[str, float]:
    """RMSE and coverage, with bands that take the hyperparameters for known and with wider ones that do not."""
    with torch.no_grad():
        mean, stddev = marginals(model, fresh)
    uncertainty = HyperparameterUncertainty(model, likelihood, (x, y))
    wider = model.predict(fresh, components=False, hyperparameters=uncertainty)
    return {**score(mean, stddev, fresh), "wider_coverage": coverage(wider.mean, wider.stddev, friedman(fresh))}


def fit_bam(x: Tensor, y: Tensor, fresh: Tensor) -> dict[str, float]:
    names = ",".join(f"x{index + 1}" for index in range(6))
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        np.savetxt(root / "train.csv", torch.column_stack([x, y]), delimiter=",", header=names + ",y", comments="")
        np.savetxt(root / "fresh.csv", fresh, delimiter=",", header=names, comments="")
        (root / "bam.R").write_text(BAM)
        subprocess.run(["Rscript", str(root / "bam.R"), folder], check=True)
        found = torch.from_numpy(np.loadtxt(root / "found.csv", delimiter=",", skiprows=1))
    mean, stddev, seconds = found.unbind(-1)
    return {**score(mean, stddev, fresh), "seconds": seconds[0].item()}


def score(mean: Tensor, stddev: Tensor, fresh: Tensor) -> dict[str, float]:
    truth = friedman(fresh)
    return {"rmse": (mean - truth).square().mean().sqrt().item(), "coverage": coverage(mean, stddev, truth)}


def has_mgcv() -> bool:
    if shutil.which("Rscript") is None:
        return False
    return subprocess.run(["Rscript", "-e", "library(mgcv)"], capture_output=True).returncode == 0


def summarise(fits: list[dict[str, float]]) -> dict[str, float]:
    return {
        "rmse": statistics.mean(fit["rmse"] for fit in fits),
        "coverage": statistics.mean(fit["coverage"] for fit in fits),
        "wider_coverage": statistics.mean(fit.get("wider_coverage", float("nan")) for fit in fits),
        "seconds": statistics.median(fit["seconds"] for fit in fits),
    }


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = script_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=24, help="number of draws (default: 24)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    environment = describe_environment(torch.device("cpu"))
    peers = {"collapsed bound": fit_collapsed}
    if has_mgcv():
        peers["mgcv bam"] = fit_bam
    else:
        print("R with mgcv is not installed: bam is left out (Debian: r-base-core r-cran-mgcv)")
    fits: dict[str, list[dict[str, float]]] = {name: [] for name in peers}
    with default_dtype(torch.float64):
        for seed in range(1 if options.quick else options.seeds):
            drawn = draw(seed, 600 if options.quick else NUM_ROWS)
            for name, fit in peers.items():
                fits[name].append(fit(*drawn))
    means = {name: summarise(found) for name, found in fits.items()}
    rows = [
        [name, f"{m['rmse']:.4f}", f"{m['coverage']:.3f}", f"{m['wider_coverage']:.3f}", f"{m['seconds']:.2f}"]
        for name, m in means.items()
    ]
    print_table(["means over draws", "RMSE", "coverage", "with hyperparameters uncertain", "s (median)"], rows)
    result: dict[str, Any] = {"environment": environment, "fits": fits, "means": means}
    if "mgcv bam" in means:
        result["rmse_ratio"] = means["collapsed bound"]["rmse"] / means["mgcv bam"]["rmse"]
        result["time_ratio"] = means["collapsed bound"]["seconds"] / means["mgcv bam"]["seconds"]
        print(f"against bam: RMSE {result['rmse_ratio']:.2f} x, time {result['time_ratio']:.1f} x")
    write_json(options.json, result)
    return result


if __name__ == "__main__":
    main()
