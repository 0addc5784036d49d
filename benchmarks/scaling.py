"""
Claim: time and memory of a training step grow about linearly with the number of components; over a file of any size the
time of an epoch grows linearly with its rows and memory does not grow.

Float32, inducing points fixed, in two sections:

- step: one step of training (natural gradients for the posterior, Adam for the hyperparameters, one batch of 1024 rows)
  while one of C components, M inducing points each and rank R grows, for block + low-rank and low-rank precision.
  Times are medians of rounds in which all sizes of a sweep take turns. Memory is that of model, optimisers and three
  steps. Exponents are least-squares slopes of the logarithms, over all sizes and over those from a size on where fixed
  costs count less.
- epoch: one epoch of `gpytorch_gam.fit`, C = 8, M = 16, block + low-rank, R = 16, batches of 1024 rows from files
  of 10^4 to 10^7 rows in a temporary folder, read by `gpytorch_gam.data.MemoryMappedBatches` through a buffer of 65536
  rows. Each size in a new process; memory is what model, data and training add to it after imports and a short training
  run in memory, which loads what is loaded late.

Memory on a CPU is the growth of the resident set to its peak (`VmHWM` of Linux, which can be reset; `ru_maxrss` cannot,
and starts from that of the parent process), freed memory given back at once. On a GPU it is torch's peak of allocated
memory. `--sizes` are the numbers of rows.

    python benchmarks/scaling.py [--threads 1] [--sections step epoch] [--sizes 1e4 1e5] [--figure FILE] [--json FILE]
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import math
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gpytorch
import numpy as np
import torch
from _common import (
    add_common_arguments,
    additive_gp,
    headless_pyplot,
    interleaved_times,
    make_data,
    prepare,
    print_table,
    save_figure,
    write_json,
)
from gpytorch.likelihoods import GaussianLikelihood
from polish import MIB, in_new_process, return_freed_memory, shown, usage

from gpytorch_gam.data import MemoryMappedBatches
from gpytorch_gam.optim import NaturalGradient
from gpytorch_gam.training import fit
from gpytorch_gam.warnings import RankWarning

SECTIONS = ("step", "epoch")
FAMILIES = {"block + low-rank": "block_low_rank", "low-rank": "low_rank"}
NOISE = 0.1  # standard deviation, that of make_data
NUM_HELD_BACK = 12  # steps of fit before the hyperparameters move: its default


class Shape(NamedTuple):
    """Of a model and its batch; the rank of each family."""

    C: int
    M: int
    R: dict[str, int]
    batch: int


class Sweep(NamedTuple):
    """Sizes of one of C, M and R, the others fixed; exponents are fitted to all, and to those from ``fitted_from``."""

    variable: str
    sizes: tuple[int, ...]
    fitted_from: int
    fixed: Shape

    def shape(self, size: int) -> Shape:
        return self.fixed._replace(**{self.variable: dict.fromkeys(FAMILIES, size) if self.variable == "R" else size})


class EpochShape(NamedTuple):
    num_components: int
    num_inducing: int
    rank: int
    batch: int
    buffer_rows: int


RANKS = {"block + low-rank": 32, "low-rank": 64}
DEFAULT_SWEEPS = (
    Sweep("C", (10, 20, 50, 100, 200, 500), 50, Shape(0, 20, RANKS, 1024)),
    Sweep("M", (10, 20, 40, 80, 160), 40, Shape(20, 0, RANKS, 1024)),
    Sweep("R", (8, 16, 32, 64, 128, 256), 64, Shape(50, 20, {}, 1024)),
)
QUICK_SWEEPS = tuple(
    Sweep(variable, (4, 8), 4, Shape(4, 4, dict.fromkeys(FAMILIES, 4), 64)) for variable in ("C", "M", "R")
)
DEFAULT_ROWS, QUICK_ROWS = (10**4, 10**5, 10**6, 10**7), (500, 1000)
DEFAULT_EPOCH, QUICK_EPOCH = EpochShape(8, 16, 16, 1024, 2**16), EpochShape(3, 6, 4, 100, 200)


def make_step(shape: Shape, family: str, device: torch.device) -> Callable[[], None]:
    """Model, likelihood and optimisers with one batch; a call is a step of training."""
    model = additive_gp(shape.C, shape.M, FAMILIES[family], shape.R[family]).to(device).train()
    likelihood = GaussianLikelihood().to(device)
    x, y = make_data(shape.C, shape.batch, device)
    mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=100 * shape.batch)
    natural = NaturalGradient(model, num_data=100 * shape.batch)
    adam = torch.optim.Adam([*model.hyperparameters(), *likelihood.parameters()], lr=0.01)

    def step() -> None:
        adam.zero_grad()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RankWarning)  # ranks are chosen here to see what they cost
            loss = -mll(model(x), y)
            loss.backward()
            natural.step()
        adam.step()

    return step


def step_memory(sweep: Sweep, device: torch.device) -> dict[str, list[float | None]]:
    """MiB of model, optimisers and three steps, for each family. Runs in a process of its own."""
    torch.set_num_threads(1)
    return_freed_memory()

    def run(shape: Shape, family: str) -> None:
        step = make_step(shape, family, device)
        for _ in range(3):
            step()

    for family in FAMILIES:  # what is loaded late
        run(Shape(2, 3, dict.fromkeys(FAMILIES, 2), 8), family)
    return {
        family: [peak_mib(functools.partial(run, sweep.shape(size), family), device) for size in sweep.sizes]
        for family in FAMILIES
    }


def peak_mib(action: Callable[[], object], device: torch.device) -> float | None:
    """By how much memory grows during the action; None where the system does not say."""
    if device.type != "cuda":
        return_small_blocks()
        return usage(action).mib
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    action()
    return (torch.cuda.max_memory_allocated(device) - before) / MIB


def return_small_blocks() -> None:
    """Have the C library of Linux give back the free blocks that :func:`return_freed_memory` leaves to it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def run_sweep(sweep: Sweep, repeats: int, device: torch.device) -> dict[str, Any]:
    """Median times and memory of the families at every size, and their exponents."""
    steps = {
        (family, size): make_step(sweep.shape(size), family, device) for family in FAMILIES for size in sweep.sizes
    }
    times = interleaved_times(steps, repeats, device)
    memory = in_new_process(step_memory, sweep, device)
    families = {}
    for family in FAMILIES:
        found = {
            "seconds": [statistics.median(times[family, size]) for size in sweep.sizes],
            "mib": memory[family],
        }
        exponents = {
            key: {
                "all": log_slope(sweep.sizes, values),
                "large": log_slope(sweep.sizes, values, sweep.fitted_from),
            }
            for key, values in found.items()
        }
        families[family] = {**found, "exponents": exponents}
    return {**sweep._asdict(), "fixed": sweep.fixed._asdict(), "families": families}


def log_slope(sizes: Sequence[int], values: Sequence[float | None], start: int = 0) -> float | None:
    """
    Least-squares slope of log(value) against log(size).

    :param sizes: Of at least two.
    :param values: None, or not positive, where they were not measured: then there is no slope.
    :param start: Smallest size that counts.
    """
    pairs = [(size, value) for size, value in zip(sizes, values, strict=True) if size >= start]
    if len(pairs) < 2 or any(value is None or value <= 0 for _, value in pairs):
        return None
    logs = [(math.log(size), math.log(value)) for size, value in pairs if value is not None]
    return statistics.linear_regression(*zip(*logs, strict=True)).slope


def print_sweep(sweep: dict[str, Any]) -> None:
    variable, fixed = sweep["variable"], sweep["fixed"]
    parts = [f"{name}={fixed[name]}" for name in ("C", "M") if name != variable]
    ranks = [f"{family} R={rank}" for family, rank in fixed["R"].items()]  # none if they vary
    print("\none step", *parts, *ranks, f"b={fixed['batch']}", sep=", ")
    header = ["family", "", *(f"{variable}={size}" for size in sweep["sizes"])]
    rows = []
    for family, found in sweep["families"].items():
        for key, unit, factor in (("seconds", "ms", 1e3), ("mib", "MiB", 1.0)):
            cells = [shown(None if value is None else factor * value, ".1f") for value in found[key]]
            exponents = [shown(found["exponents"][key][name], ".2f") for name in ("all", "large")]
            rows.append([family, unit, *cells, *exponents])
    print_table([*header, "exponent", f"from {variable}={sweep['fitted_from']}"], rows)


def write_rows(folder: Path, num_rows: int, num_components: int) -> tuple[Path, Path]:
    """Files of uniform inputs and a noisy sum of sines, as :func:`make_data` has them, written in parts."""
    paths = folder / f"x{num_rows}.npy", folder / f"y{num_rows}.npy"
    x = np.lib.format.open_memmap(paths[0], "w+", np.float32, (num_rows, num_components))
    y = np.lib.format.open_memmap(paths[1], "w+", np.float32, (num_rows,))
    rng = np.random.default_rng(0)
    phases = np.linspace(0.0, 3.0, num_components, dtype=np.float32)
    for start in range(0, num_rows, 2**17):
        part = x[start : start + 2**17]
        rng.random(out=part, dtype=np.float32)
        noise = rng.standard_normal(len(part), dtype=np.float32)
        y[start : start + 2**17] = np.sin(4.0 * part + phases).mean(-1) + NOISE * noise
    return paths


def run_epoch(shape: EpochShape, paths: tuple[Path, Path], threads: int, device: torch.device) -> dict[str, Any]:
    """Time and memory of an epoch. Runs in a process of its own."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    return_freed_memory()
    train_epoch(shape, [make_data(shape.num_components, shape.batch, device)] * (NUM_HELD_BACK + 2), device)
    found: dict[str, Any] = {}

    def run() -> None:
        batches = MemoryMappedBatches(
            *paths, shape.batch, dtype=torch.float32, device=device, buffer_rows=shape.buffer_rows
        )
        start = time.perf_counter()
        noise = train_epoch(shape, batches, device)
        found.update(num_rows=batches.num_rows, seconds=time.perf_counter() - start, noise=noise)

    found["mib"] = peak_mib(run, device)
    return {**found, "rows_per_second": found["num_rows"] / found["seconds"]}


def train_epoch(shape: EpochShape, batches: Any, device: torch.device) -> float:
    """:return: The standard deviation of the noise that was found."""
    model = additive_gp(shape.num_components, shape.num_inducing, "block_low_rank", shape.rank).to(device)
    likelihood = GaussianLikelihood().to(device)
    num_data = getattr(batches, "num_rows", len(batches) * shape.batch)
    # Variances of a million rows are below the smallest that GPyTorch takes in float32 by default, 1e-6.
    with warnings.catch_warnings(), gpytorch.settings.min_variance(float_value=1e-10):
        warnings.simplefilter("ignore", RankWarning)
        fit(model, likelihood, batches, num_data=num_data, num_epochs=1, num_held_back=NUM_HELD_BACK)
    return likelihood.noise.sqrt().item()


def measure_epochs(shape: EpochShape, sizes: Sequence[int], device: torch.device) -> dict[str, Any]:
    records = []
    for num_rows in sizes:
        with tempfile.TemporaryDirectory() as folder:
            paths = write_rows(Path(folder), num_rows, shape.num_components)
            records.append(in_new_process(run_epoch, shape, paths, torch.get_num_threads(), device))
            records[-1]["file_mib"] = sum(path.stat().st_size for path in paths) / MIB
    memory = {record["num_rows"]: record["mib"] for record in records}
    small, large = memory.get(10**5), memory.get(10**6)
    return {
        **shape._asdict(),
        "records": records,
        "time_exponent": log_slope(sizes, [record["seconds"] for record in records]),
        "memory_exponent": log_slope(sizes, [record["mib"] for record in records]),
        "memory_ratio": large / small if small and large else None,
    }


def print_epochs(found: dict[str, Any]) -> None:
    print(
        f"\none epoch from files, C={found['num_components']}, M={found['num_inducing']}, block + low-rank "
        f"R={found['rank']}, b={found['batch']}, buffer of {found['buffer_rows']} rows"
    )
    rows = [
        [
            f"{record['num_rows']:,}",
            f"{record['file_mib']:.1f}",
            f"{record['seconds']:.2f}",
            f"{record['rows_per_second']:,.0f}",
            shown(record["mib"], ".1f"),
            f"{record['noise']:.4f}",
        ]
        for record in found["records"]
    ]
    print_table(["rows", "MiB of files", "seconds", "rows / s", "peak MiB added", f"noise ({NOISE})"], rows)
    print(
        f"exponent in N of time {shown(found['time_exponent'], '.2f')}, of memory "
        f"{shown(found['memory_exponent'], '.2f')}; memory at 10^6 rows over that at 10^5: "
        f"{shown(found['memory_ratio'], '.2f')}"
    )


def draw_figure(results: dict[str, Any], path: Path) -> None:
    """Time of a step against C with the fitted slopes, and memory of an epoch against N."""
    plt = headless_pyplot()
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.2), layout="constrained")
    for sweep in results.get("sweeps", []):
        if sweep["variable"] == "C":
            _draw_step_times(left, sweep)
    if "epochs" in results:
        _draw_memory(right, results["epochs"]["records"])
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    save_figure(figure, path)


def _draw_step_times(axes: Any, sweep: dict[str, Any]) -> None:
    sizes = [size for size in sweep["sizes"] if size >= sweep["fitted_from"]]
    # From the back to the front with shrinking markers: the families are close to each other.
    for (family, found), (color, size) in zip(sweep["families"].items(), (("#2166ac", 7), ("#d95f02", 4)), strict=True):
        times = [1e3 * seconds for seconds in found["seconds"]]
        slope = found["exponents"]["seconds"]["large"]
        fitted = zip(sizes, times[-len(sizes) :], strict=True)
        height = math.exp(statistics.fmean(math.log(value) - slope * math.log(size) for size, value in fitted))
        axes.plot(sizes, [height * size**slope for size in sizes], color=color, linewidth=1.2)
        label = f"{family}, R = {sweep['fixed']['R'][family]}: $C^{{{slope:.2f}}}$"
        axes.plot(sweep["sizes"], times, "o", color=color, markersize=size, label=label)
    axes.set(xscale="log", yscale="log", xlabel="components C", ylabel="ms for a training step")
    axes.set_xticks(sweep["sizes"], [str(size) for size in sweep["sizes"]])
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=8, loc="upper left")


def _draw_memory(axes: Any, records: Sequence[dict[str, Any]]) -> None:
    known = [record for record in records if record["mib"] is not None]
    sizes = [record["num_rows"] for record in known]
    axes.plot(sizes, [record["file_mib"] for record in known], "o--", color="#8a8a8a", markersize=5, label="the files")
    axes.plot(sizes, [record["mib"] for record in known], "o-", color="#2166ac", markersize=5, label="added to memory")
    axes.set(xscale="log", yscale="log", xlabel="rows N", ylabel="MiB for an epoch")
    axes.legend(frameon=False, fontsize=8, loc="upper left")


def parse_size(text: str) -> int:
    try:
        size = int(float(text))
    except (ValueError, OverflowError):
        size = 0
    if size < 1:
        raise argparse.ArgumentTypeError(f"must be a number of rows such as 1e6, got {text!r}")
    return size


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description="Growth of time and memory of training with C, M, R and the rows of a file."
    )
    add_common_arguments(parser, repeats=5)
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=SECTIONS, help="what to measure")
    parser.add_argument("--sizes", type=parse_size, nargs="+", metavar="N", help="numbers of rows of the files")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="draw times and memory into this file")
    arguments = parser.parse_args(argv)
    device, environment = prepare(arguments)
    print(f"float32, medians of {arguments.repeats} interleaved rounds, epochs once")

    results: dict[str, Any] = {"environment": environment, "repeats": arguments.repeats}
    if "step" in arguments.sections:
        results["sweeps"] = []
        for sweep in QUICK_SWEEPS if arguments.quick else DEFAULT_SWEEPS:
            results["sweeps"].append(run_sweep(sweep, arguments.repeats, device))
            print_sweep(results["sweeps"][-1])
    if "epoch" in arguments.sections:
        sizes = arguments.sizes or (QUICK_ROWS if arguments.quick else DEFAULT_ROWS)
        results["epochs"] = measure_epochs(QUICK_EPOCH if arguments.quick else DEFAULT_EPOCH, sizes, device)
        print_epochs(results["epochs"])
    if arguments.figure:
        draw_figure(results, arguments.figure)
    write_json(arguments.json, results)


if __name__ == "__main__":
    main()
