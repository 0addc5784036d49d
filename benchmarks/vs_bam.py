"""
Claim: on discretised inputs, a million rows are fitted in the time that mgcv's `bam(discrete=TRUE)` takes, with a
smaller error.

Friedman's function of ten uniform columns, five of them inert, seen with Gaussian noise of standard deviation 1 or,
shifted and scaled, through labels with a probit link. Both fit ten univariate effects and the interaction of the first
two columns: `fit` by bins from raw tensors in memory (bins, hyperparameters, posterior), `bam` from a data frame
in memory, both on two threads, ours also on one. `bam` runs with its default bases and with bases as large as ours (16
functions for an effect, 6 x 6 for the interaction). Starting Python and R, imports and files are not timed. Printed:
medians over the repeats, each with a draw of its own, of the seconds on the clock and of the processor's, which count
all threads and tell more where others use the machine; mean error (RMSE) and coverage of 95% bands of the predictor on
fresh inputs. Without R and mgcv ours is shown alone.

    python benchmarks/vs_bam.py [--sizes 100000 1000000] [--responses gaussian labels] [--repeats 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import math
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
from gaussian_closed_form import has_mgcv
from gpytorch.constraints import Interval
from gpytorch.kernels import RBFKernel, ScaleKernel
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from friedman_anova import coverage, friedman

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup
from gpytorch_gam.components import regular_grid
from gpytorch_gam.kernels import ANOVAKernel, Uniform
from gpytorch_gam.numerics.dtypes import default_dtype
from gpytorch_gam.terms import constant
from gpytorch_gam.training import fit

Fit = tuple[
    Tensor, Tensor, tuple[float, float]
]  # mean and standard deviation at fresh inputs, seconds: clock, processor

NUM_COLUMNS, NUM_FRESH, NUM_MAIN, NUM_MARGIN = 10, 10000, 16, 6
RESPONSES = ("gaussian", "labels")

# Labels: of the predictor (f - 14) / 5, so that both are about as frequent.
SHIFT, SCALE = 14.0, 5.0

BAM = """
suppressMessages(library(mgcv))
arguments <- commandArgs(trailingOnly = TRUE)
folder <- arguments[1]; columns <- as.integer(arguments[2]); gaussian_noise <- arguments[3] == "gaussian"
threads <- as.integer(arguments[4]); size <- as.integer(arguments[5]); margin <- as.integer(arguments[6])
read <- function(name, width) {
  path <- file.path(folder, name)
  as.data.frame(matrix(readBin(path, "double", file.size(path) / 8), ncol = width))
}
train <- read("train", columns + 1); fresh <- read("fresh", columns)
names(fresh) <- paste0("x", seq_len(columns)); names(train) <- c(names(fresh), "y")
effects <- paste0("s(", names(fresh), if (size > 0) paste0(", k = ", size) else "", ")", collapse = " + ")
interaction <- paste0("ti(x1, x2", if (size > 0) paste0(", k = c(", margin, ", ", margin, ")") else "", ")")
formula <- as.formula(paste("y ~", effects, "+", interaction))
family <- if (gaussian_noise) gaussian() else binomial(link = "probit")
taken <- system.time(
  fit <- bam(formula, family = family, data = train, discrete = TRUE, nthreads = threads)
)
seconds <- c(taken[["elapsed"]], taken[["user.self"]] + taken[["sys.self"]])
found <- predict(fit, fresh, se.fit = TRUE)
writeBin(c(as.double(found$fit), as.double(found$se.fit), seconds), file.path(folder, "found"))
"""


def draw(response: str, seed: int, num_rows: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inputs and responses, fresh inputs and the predictor there."""
    torch.manual_seed(seed)
    x, fresh = torch.rand(num_rows, NUM_COLUMNS), torch.rand(NUM_FRESH, NUM_COLUMNS)
    if response == "gaussian":
        return x, friedman(x) + torch.randn(num_rows), fresh, friedman(fresh)
    y = torch.bernoulli(torch.special.ndtr((friedman(x) - SHIFT) / SCALE))
    return x, y, fresh, (friedman(fresh) - SHIFT) / SCALE


def make_predictor(scale: float) -> AdditivePredictor:
    """Ten effects and an interaction, of this prior variance each."""

    def rbf(size: int, **kwargs: Any) -> ANOVAKernel:
        kernel = RBFKernel(batch_shape=torch.Size([size]), lengthscale_constraint=Interval(0.05, 5.0))
        kernel.lengthscale = 0.5
        return ANOVAKernel(kernel, Uniform(0.0, 1.0), **kwargs)

    main = ScaleKernel(rbf(NUM_COLUMNS), batch_shape=torch.Size([NUM_COLUMNS]))
    product = ScaleKernel(rbf(1, active_dims=[0]) * rbf(1, active_dims=[1]), batch_shape=torch.Size([1]))
    main.outputscale, product.outputscale = scale, scale
    columns = [[column] for column in range(NUM_COLUMNS)]
    return AdditivePredictor(
        constant(variance=100.0),
        ComponentGroup(main, columns, regular_grid(0.0, 1.0, NUM_MAIN)),
        ComponentGroup(product, [[0, 1]], regular_grid([0.0, 0.0], [1.0, 1.0], NUM_MARGIN)),
    )


def fit_ours(response: str, threads: int, x: Tensor, y: Tensor, fresh: Tensor) -> Fit:
    """Everything from raw tensors to a model that predicts."""
    torch.set_num_threads(threads)
    start = time.perf_counter(), time.process_time()
    is_gaussian = response == "gaussian"
    model = AdditiveGP(make_predictor(4.0 if is_gaussian else 0.5))
    likelihood: Any = (
        gpytorch.likelihoods.GaussianLikelihood if is_gaussian else gpytorch.likelihoods.BernoulliLikelihood
    )()
    fit(model, likelihood, (x, y), method="bins")
    seconds = time.perf_counter() - start[0], time.process_time() - start[1]
    with torch.no_grad():
        moments = model.variational_strategy.predictor_moments(fresh)
    return moments.mean.squeeze(-1), moments.covariance.flatten().sqrt(), seconds


def fit_bam(response: str, threads: int, size: int, x: Tensor, y: Tensor, fresh: Tensor) -> Fit:
    """The same by mgcv; ``size`` is that of the bases, 0 for the defaults."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        torch.column_stack([x, y]).T.contiguous().numpy().tofile(root / "train")
        fresh.T.contiguous().numpy().tofile(root / "fresh")
        (root / "bam.R").write_text(BAM)
        options = [folder, NUM_COLUMNS, response, threads, size, NUM_MARGIN]
        subprocess.run(["Rscript", str(root / "bam.R"), *map(str, options)], check=True)
        found = torch.from_numpy(np.fromfile(root / "found"))
    return found[: len(fresh)], found[len(fresh) : -2], (found[-2].item(), found[-1].item())


def make_peers(threads: int, with_bam: bool) -> dict[str, Callable[..., Fit]]:
    """What is compared; each takes the kind of response, inputs, responses and fresh inputs."""

    def ours(count: int) -> Callable[..., Fit]:
        return lambda response, *data: fit_ours(response, count, *data)

    def bam(size: int) -> Callable[..., Fit]:
        return lambda response, *data: fit_bam(response, threads, size, *data)

    peers = {f"fit by bins, {count} thread(s)": ours(count) for count in dict.fromkeys([threads, 1])}
    if with_bam:
        peers |= {"bam, default bases": bam(0), "bam, bases as large": bam(NUM_MAIN)}
    return peers


def compare(response: str, num_rows: int, threads: int, repeats: int, with_bam: bool) -> dict[str, Any]:
    """Fits of some draws by all peers."""
    peers = make_peers(threads, with_bam)
    fits: dict[str, list[dict[str, float]]] = {name: [] for name in peers}
    for seed in range(repeats):
        x, y, fresh, truth = draw(response, seed, num_rows)
        for name, peer in peers.items():
            mean, stddev, seconds = peer(response, x, y, fresh)
            rmse = (mean - truth).square().mean().sqrt().item()
            scores = {"rmse": rmse, "coverage": coverage(mean, stddev, truth)}
            fits[name].append({"seconds": seconds[0], "processor_seconds": seconds[1], **scores})
    summary = {
        name: {
            "seconds": statistics.median(fit["seconds"] for fit in found),
            "processor_seconds": statistics.median(fit["processor_seconds"] for fit in found),
            "rmse": statistics.mean(fit["rmse"] for fit in found),
            "coverage": statistics.mean(fit["coverage"] for fit in found),
        }
        for name, found in fits.items()
    }
    return {"response": response, "num_rows": num_rows, "fits": fits, "summary": summary}


def show(result: dict[str, Any]) -> None:
    """The table of one comparison, with ratios to the default ``bam``."""
    keys = ("seconds", "processor_seconds", "rmse")
    reference = result["summary"].get("bam, default bases", dict.fromkeys(keys, math.nan))
    rows = []
    for name, found in result["summary"].items():
        cells = []
        for key, digits in zip(keys, (2, 2, 4), strict=True):
            cells += [f"{found[key]:.{digits}f}", f"{found[key] / reference[key]:.2f}"]
        rows.append([name, *cells, f"{found['coverage']:.3f}"])
    print(f"\n{result['response']}, {result['num_rows']} rows")
    header = ["", "s", "to bam", "processor s", "to bam", "RMSE", "to bam", "coverage of 95% bands"]
    print_table(header, rows)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100_000, 1_000_000], help="numbers of rows")
    parser.add_argument("--responses", choices=RESPONSES, nargs="+", default=list(RESPONSES))
    parser.add_argument("--repeats", type=int, default=3, help="draws of each (default: 3)")
    parser.add_argument("--threads", type=int, default=2, help="of both (default: 2)")
    options = parser.parse_args(arguments)
    if options.quick:
        options.sizes, options.repeats = [3000], 1
    return options


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    options = parse(arguments)
    torch.set_num_threads(options.threads)
    environment = describe_environment(torch.device("cpu"))
    with_bam = has_mgcv()
    if not with_bam:
        print("R with mgcv is not installed: bam is left out (Debian: r-base-core r-cran-mgcv)")
    results = []
    with default_dtype(torch.float64):
        for response in options.responses:
            for size in options.sizes:
                results.append(compare(response, size, options.threads, options.repeats, with_bam))
                show(results[-1])
    found = {"environment": environment, "results": results}
    write_json(options.json, found)
    return found


if __name__ == "__main__":
    main()
