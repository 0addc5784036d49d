"""
How often the p-values of summaries speak of an effect where there is none, and where there is a weak one.

    python benchmarks/null_effects.py [--fits 60] [--rows 300]

Each fit has one strong effect, one weak effect and five columns without any, which are correlated with the strong one's
column (.5). The response is Gaussian, or labels.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gpytorch_gam.gam import GAMClassifier, GAMRegressor

STRONG, WEAK, NULL = "strong", "weak", [f"null{number}" for number in range(5)]
LEVELS = (0.01, 0.05, 0.1)


def draw(num_rows: int, labels: bool, seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    random = np.random.default_rng(seed)
    shared = random.standard_normal(num_rows)
    columns = {name: 0.7 * shared + 0.7 * random.standard_normal(num_rows) for name in (STRONG, *NULL)}
    columns[WEAK] = random.uniform(-1, 1, num_rows)
    effect = np.sin(2 * columns[STRONG]) + (0.5 if labels else 0.2) * np.sin(3 * columns[WEAK])
    if labels:
        return pd.DataFrame(columns), (random.random(num_rows) < 1 / (1 + np.exp(-2 * effect))).astype(int)
    return pd.DataFrame(columns), effect + 0.5 * random.standard_normal(num_rows)


def measure(num_rows: int, labels: bool, num_fits: int) -> dict[str, Any]:
    kind = GAMClassifier if labels else GAMRegressor
    null, weak, share = [], [], []
    for seed in range(num_fits):
        x, y = draw(num_rows, labels, seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            terms = kind(num_inducing=12).fit(x, y).summary().terms
        null.append(terms.loc[[f"s({name})" for name in NULL], "p"].to_numpy())
        weak.append(terms.loc[f"s({WEAK})", "p"])
        share.append(terms.loc[[f"s({name})" for name in NULL], "share"].sum())
    return {
        "response": "labels" if labels else "Gaussian",
        "null": [float(np.mean(np.concatenate(null) <= level)) for level in LEVELS],
        "weak": [float(np.mean(np.asarray(weak) <= level)) for level in LEVELS],
        "share": float(np.mean(share)),
    }


def report(results: Sequence[dict[str, Any]]) -> str:
    lines = ["| response | effect | p <= .01 | p <= .05 | p <= .1 |", "|---|---|---:|---:|---:|"]
    for each in results:
        for effect in ("null", "weak"):
            rates = " | ".join(f"{rate:.3f}" for rate in each[effect])
            lines.append(f"| {each['response']} | {effect} | {rates} |")
    lines += [f"share of the variance of all null effects, {each['response']}: {each['share']:.4f}" for each in results]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fits", type=int, default=60, help="number of fits of each response")
    parser.add_argument("--rows", type=int, default=300)
    parser.add_argument("--quick", action="store_true", help="two fits: checks that everything runs")
    parser.add_argument("--json", type=Path, help="file for the results")
    arguments = parser.parse_args(argv)
    num_fits = 2 if arguments.quick else arguments.fits
    results = [measure(arguments.rows, labels, num_fits) for labels in (False, True)]
    print(f"{num_fits} fits of {arguments.rows} rows, {len(NULL)} columns without effect")
    print(report(results))
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
