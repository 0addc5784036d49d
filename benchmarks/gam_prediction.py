"""
Claim: an estimator predicts 1.5 million rows with means, standard deviations and the parts of every term in less than
2 GB, the process with all its libraries included, and the parts cost less than the predictor.

13 terms: eight curves, an hour with a period, a category, a surface, an integer and a random effect of 50 levels,
fitted to 2000 rows. Memory is the largest that the process has held (its resident set) after each call, in order.

    python benchmarks/gam_prediction.py [--rows 1500000] [--threads 1] [--json FILE]
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from _common import add_common_arguments, prepare, print_table, write_json

from gpytorch_gam.gam import GAMRegressor, f, re, s, te

NUM_CURVES, NUM_FITTED, QUICK_FITTED = 8, 2000, 200
GIB_IN_KIB = 2**20


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


def measure(call: Callable[[], Any]) -> dict[str, float]:
    """Seconds of this process, and the most memory that it has held, in GiB."""
    start = time.process_time()
    result = call()
    seconds = time.process_time() - start
    del result
    return {"seconds": seconds, "gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / GIB_IN_KIB}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common_arguments(parser, repeats=5)
    parser.add_argument("--rows", type=lambda text: int(float(text)), default=1_500_000)
    arguments = parser.parse_args(argv)
    _, environment = prepare(arguments)
    num_rows = 5000 if arguments.quick else arguments.rows
    gam, rows = make_estimator(QUICK_FITTED if arguments.quick else NUM_FITTED), make_table(num_rows, 2)
    calls = {
        "fit and table": lambda: None,
        "predict_link, means and deviations": lambda: gam.predict_link(rows, return_std=True),
        "predict, means and deviations": lambda: gam.predict(rows, return_std=True),
        "predict_terms, means, deviations and bands": lambda: gam.predict_terms(rows),
    }
    records = [{"call": name, "rows": num_rows, **measure(call)} for name, call in calls.items()]
    print_table(
        ["call", "rows", "processor seconds", "GiB at most so far"],
        [[r["call"], f"{r['rows']:,}", f"{r['seconds']:.1f}", f"{r['gib']:.2f}"] for r in records],
    )
    write_json(arguments.json, {"environment": environment, "calls": records})


if __name__ == "__main__":
    main()
