"""
Claim: a Gaussian fit of data in Parquet files takes the memory of a batch and of its sums, however many rows there are.

`fit` by bins reads N rows of eight columns in float32 with `gpytorch_gam.data.ParquetBatches`: once for the bins,
and once for the sums over the rows, from which it finds hyperparameters and posterior. The files are written by this
script, a part at a time, to a temporary folder. Each size is fitted in a new process on `--threads` threads, two by
default; another process merely reads the files once, in the same batches. Printed: seconds of the fit on the clock and
of the processor, which count all threads and tell more where others use the machine; those of reading once; the peak of
the resident memory that the fit adds to a process in which a small fit was made, and by how much that exceeds the peak
at the smallest size; and the error (RMSE) of the predictor.

    python benchmarks/streaming.py [--rows 1e6 1e7 1e8] [--threads 2] [--folder DIR] [--json FILE]
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _common import describe_environment, print_table, script_parser, write_json
from gpytorch.likelihoods import GaussianLikelihood
from polish import in_new_process, return_freed_memory, usage

from gpytorch_gam import AdditiveGP, AdditivePredictor
from gpytorch_gam.data import ParquetBatches
from gpytorch_gam.terms import constant, smooth
from gpytorch_gam.training import fit

NUM_COLUMNS, NOISE = 8, 0.5
COLUMNS = [f"x{column}" for column in range(NUM_COLUMNS)]

# Rows of a file, of one of its row groups, and of a batch.
FILE_ROWS, GROUP_ROWS, BATCH_ROWS = 2_000_000, 100_000, 100_000

# Largest memory that rows beyond those of the smallest size may add, in MiB.
ALLOWED_MIB = 50


def truth(x: Any) -> Any:
    """Effects of five of the columns, for arrays and tensors."""
    library = np if isinstance(x, np.ndarray) else torch
    waves = library.sin(2 * math.pi * x[:, 0]) + 0.5 * library.cos(math.pi * x[:, 1])
    return waves + 2 * (x[:, 2] - 0.5) ** 2 + x[:, 3] - x[:, 4] ** 3


def write(folder: Path, num_rows: int) -> None:
    """Write uniform columns and noisy responses, a row group at a time."""
    import pyarrow
    from pyarrow import parquet

    rng = np.random.default_rng(0)
    schema = pyarrow.schema([(name, pyarrow.float32()) for name in [*COLUMNS, "y"]])
    for start in range(0, num_rows, FILE_ROWS):
        path = folder / f"{start // FILE_ROWS:04d}.parquet"
        with parquet.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
            for first in range(start, min(start + FILE_ROWS, num_rows), GROUP_ROWS):
                size = min(GROUP_ROWS, num_rows - first)
                x = rng.random((size, NUM_COLUMNS), np.float32)
                y = truth(x) + NOISE * rng.standard_normal(size, np.float32)
                writer.write_table(pyarrow.table([*x.T, y.astype(np.float32)], schema=schema))


def batches_of(folder: Path) -> ParquetBatches:
    return ParquetBatches(
        folder, COLUMNS, "y", BATCH_ROWS, shuffle=False, dtype=torch.float32, buffer_rows=BATCH_ROWS, prefetch=True
    )


def make_model() -> AdditiveGP:
    terms = smooth(list(range(NUM_COLUMNS)), low=0.0, high=1.0, num_inducing=16), constant()
    return AdditiveGP(AdditivePredictor(*terms), rank=32)


def read(folder: Path, threads: int) -> tuple[float, float]:
    """Seconds of reading all batches once, on the clock and of the processor."""
    torch.set_num_threads(threads)
    total = 0.0

    def add_up() -> None:
        nonlocal total
        for _, y in batches_of(folder):
            total += float(y[0])

    used = usage(add_up)
    return used.seconds, used.user_seconds


def fit_files(folder: Path, threads: int) -> dict[str, Any]:
    """Fit the files; memory is that beyond a small fit, which loads what is loaded late."""
    torch.set_num_threads(threads)
    return_freed_memory()
    x = torch.rand(2000, NUM_COLUMNS)
    fit(make_model(), GaussianLikelihood(), [(x, truth(x) + NOISE * torch.randn(2000))], max_bins=32)
    model, likelihood = make_model(), GaussianLikelihood()
    used = usage(lambda: fit(model, likelihood, batches_of(folder), method="bins"))
    fresh = torch.rand(2000, NUM_COLUMNS)
    with torch.no_grad():
        error = (model(fresh).mean - truth(fresh)).square().mean().sqrt().item()
    return {
        "seconds": (used.seconds, used.user_seconds),
        "mib": used.mib,
        "rmse": error,
        "noise": likelihood.noise.sqrt().item(),
    }


def measure(num_rows: int, threads: int, folder: Path | None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=folder) as name:
        write(Path(name), num_rows)
        size = sum(path.stat().st_size for path in Path(name).iterdir()) / 2**20
        found = in_new_process(fit_files, Path(name), threads)
        return {
            "rows": num_rows,
            "file_mib": size,
            "reading_seconds": in_new_process(read, Path(name), threads),
            **found,
        }


def report(results: Sequence[dict[str, Any]]) -> None:
    smallest = results[0]["mib"]
    table = []
    for each in results:
        memory = ["-", "-"] if each["mib"] is None else [f"{each['mib']:.0f}", f"{each['mib'] - smallest:+.0f}"]
        times = [f"{seconds:.1f}" for name in ("seconds", "reading_seconds") for seconds in each[name]]
        table.append([f"{each['rows']:.0e}", f"{each['file_mib']:.0f}", *times, *memory, f"{each['rmse']:.4f}"])
    header = [
        "rows",
        "files, MiB",
        "fit, s",
        "processor, s",
        "reading, s",
        "processor, s",
        "memory, MiB",
        "grown by",
        "RMSE",
    ]
    print_table(header, table)
    if smallest is not None:
        growth = max(each["mib"] for each in results) - smallest
        verdict = "at most" if growth <= ALLOWED_MIB else "MORE than"
        print(f"memory grows by {growth:.0f} MiB, {verdict} the {ALLOWED_MIB} MiB allowed")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--rows", type=_number, nargs="+", default=[10**6, 10**7, 10**8], metavar="N")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where the files are written (default: the temporary folder)")
    given = parser.parse_args(arguments)
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise SystemExit("this needs pyarrow: pip install gpytorch-gam[parquet]") from None
    environment = describe_environment(torch.device("cpu"))
    sizes = [2000, 300000] if given.quick else sorted(given.rows)
    results = [measure(size, given.threads, given.folder) for size in sizes]
    report(results)
    write_json(given.json, {"environment": environment, "processors": os.cpu_count(), "results": results})


def _number(text: str) -> int:
    value = int(float(text))
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return value


if __name__ == "__main__":
    main()
