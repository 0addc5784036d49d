"""
Claim: an estimator predicts 1.5 million rows with means, standard deviations and the parts of every term in less than
2 GB, the process with all its libraries included, and the parts cost less than the predictor.

13 terms: eight curves, an hour with a period, a category, a surface, an integer and a random effect of 50 levels,
fitted to 2000 rows, with hyperparameters integrated out. Each call has a process of its own, which loads the estimator
from a file and makes the table. Memory is the largest resident set of this process, and by how much the call has raised
it; its result is part of that.

    python benchmarks/gam_prediction.py [--rows 1500000] [--threads 1] [--json FILE]
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from _common import add_common_arguments, prepare, print_table, write_json
from polish import in_new_process

from gpytorch_gam.gam import GAMRegressor, f, re, s, te

NUM_CURVES, NUM_FITTED, QUICK_FITTED = 8, 2000, 200
GIB_IN_KIB = 2**20
CALLS = {
    "predict_link": {"return_std": True},
    "predict": {"return_std": True},
    "predict_terms": {},
    "observation_interval": {},
}
MOST_ROWS = {"observation_interval": 100_000}  # whose quantiles are found by iteration


def make_table(num_rows: int, seed: int) -> pd.DataFrame:
    """Columns of several kinds."""
    random = np.random.default_rng(seed)
    curves = {f"x{index}": random.normal(size=num_rows) for index in range(NUM_CURVES)}
    return pd.DataFrame(
        {
            **curves,
            "hour": random.integers(24, size=num_rows),
            "site": np.array(["a", "b", "c", "d"])[random.integers(4, size=num_rows)],
            "lon": random.random(num_rows),
            "lat": random.random(num_rows),
            "age": random.integers(18, 80, size=num_rows),
            "subject": random.integers(50, size=num_rows).astype(str),
        }
    )


def make_estimator(num_rows: int) -> GAMRegressor:
    """Fitted to some rows."""
    table = make_table(num_rows, 0)
    y = np.sin(table.x0) + np.cos(2 * np.pi * table.hour / 24) + table.lon * table.lat
    y += 0.3 * np.random.default_rng(1).normal(size=len(table))
    curves = [s(f"x{index}", k=12) for index in range(NUM_CURVES)]
    return GAMRegressor([*curves, s("hour", period=24), f("site"), te("lon", "lat", k=5), s("age"), re("subject")]).fit(
        table, y
    )


def measure(path: Path, call: str, num_rows: int, num_threads: int) -> dict[str, Any]:
    """What a call for a table takes."""
    torch.set_num_threads(num_threads)
    gam, rows = GAMRegressor.load(path), make_table(num_rows, 2)
    before, clock, processor = _peak(), time.perf_counter(), time.process_time()
    result = getattr(gam, call)(rows, **CALLS[call])
    found = {
        "call": call,
        "rows": num_rows,
        "seconds": time.perf_counter() - clock,
        "processor_seconds": time.process_time() - processor,
        "gib_before": before,
        "gib": _peak(),
        "gib_of_result": _num_bytes(result) / 2**30,
    }
    return found


def _peak() -> float:
    """The most memory that the process has held, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / GIB_IN_KIB


def _num_bytes(result: Any) -> int:
    return sum(each.nbytes for each in result) if isinstance(result, tuple) else np.asarray(result).nbytes


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common_arguments(parser, repeats=5)
    parser.add_argument("--rows", type=lambda text: int(float(text)), default=1_500_000)
    arguments = parser.parse_args(argv)
    _, environment = prepare(arguments)
    num_rows = 5000 if arguments.quick else arguments.rows
    gam = make_estimator(QUICK_FITTED if arguments.quick else NUM_FITTED)
    num_models = len(gam._fitted.mixture)
    print(f"{len(gam.terms_)} terms, hyperparameters {gam.hyperparameters_}")
    with tempfile.TemporaryDirectory() as folder:
        gam.save(path := Path(folder) / "gam")
        records = [
            in_new_process(measure, path, call, min(num_rows, MOST_ROWS.get(call, num_rows)), torch.get_num_threads())
            for call in CALLS
        ]
    print_table(
        ["call", "rows", "seconds", "processor seconds", "GiB before", "GiB at most", "of which result"],
        [
            [
                record["call"],
                f"{record['rows']:,}",
                *(f"{record[name]:.1f}" for name in ("seconds", "processor_seconds")),
                *(f"{record[name]:.2f}" for name in ("gib_before", "gib", "gib_of_result")),
            ]
            for record in records
        ],
    )
    write_json(
        arguments.json,
        {
            "environment": environment,
            "num_terms": len(gam.terms_),
            "num_models": num_models,
            "num_rows": num_rows,
            "calls": {record["call"]: record for record in records},
        },
    )


if __name__ == "__main__":
    main()
