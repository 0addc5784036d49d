"""
How often the search for interactions keeps one where there is none, finds one where there is, and what it gains.

    python benchmarks/interactions.py [--tables 20] [--first 0] [--scenarios NAME ...] [--nats 2] [--json FILE]

Tables have six numbers that share a factor (correlation .6), half of them with a long tail, and a category that depends
on the factor: 21 pairs. The response is a sum of five different curves and of an effect of the category, in an order of
its own in each table, with a variance of one, and

- ``additive``: noise with a standard deviation of .4, at three numbers of rows;
- ``tails``: the same of Student's t with four degrees of freedom;
- ``labels``: labels with these log odds, doubled;
- ``product``: a product of effects and of noise, which a logarithm would make additive, so that pairs do interact, and
  the noise grows with the mean;
- ``weak`` and ``pair``: an interaction of two of the columns, with 1% and 3% of the variance.

Scores are of 1000 further rows; fits are at point estimates of hyperparameters, which the search ends with, too. Where
no interaction is kept, the model is the one without a search.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from real_data import markdown
from scipy.stats import norm

from gpytorch_gam.gam import GAMClassifier, GAMRegressor

NUM_TEST, NUM_COLUMNS, NOISE = 1000, 6, 0.4

CURVES: tuple[Callable[[np.ndarray], np.ndarray], ...] = (
    lambda u: np.sin(5 * u),
    lambda u: np.exp(2 * u) / 3,
    lambda u: 6 * (u - 0.5) ** 2,
    lambda u: 1.5 / (1 + np.exp(-15 * (u - 0.4))),
    lambda u: 2 * u,
    lambda u: 0 * u,
)


class Scenario(NamedTuple):
    """
    :ivar kind: what is drawn, see above.
    :ivar num_rows: of the fit.
    :ivar share: of the variance that the interaction has.
    """

    kind: str
    num_rows: int
    share: float = 0.0


SCENARIOS = {
    "additive, 200 rows": Scenario("additive", 200),
    "additive, 500 rows": Scenario("additive", 500),
    "additive, 1000 rows": Scenario("additive", 1000),
    "additive, labels, 500 rows": Scenario("labels", 500),
    "additive, long tails, 300 rows": Scenario("tails", 300),
    "product, 300 rows": Scenario("product", 300),
    "interaction of 1%, 300 rows": Scenario("additive", 300, 0.01),
    "interaction of 3%, 300 rows": Scenario("additive", 300, 0.03),
}


class Table(NamedTuple):
    """Rows to fit and then those to be scored on; ``pair`` are the columns that interact, if any do."""

    x: pd.DataFrame
    y: np.ndarray
    num_rows: int
    is_labels: bool
    pair: frozenset[str]


def draw(scenario: Scenario, seed: int) -> Table:
    """A table of a scenario."""
    random = np.random.default_rng(seed)
    order = random.permutation(NUM_COLUMNS)
    count = scenario.num_rows + NUM_TEST
    factor = random.normal(size=(count, 1))
    normal = math.sqrt(0.6) * factor + math.sqrt(0.4) * random.normal(size=(count, NUM_COLUMNS))
    uniform = norm.cdf(normal)
    columns = {f"x{index}": (uniform if index % 2 else np.exp(normal))[:, index] for index in range(NUM_COLUMNS)}
    level = np.digitize(normal[:, 0] + random.normal(size=count), [-0.6, 0.6])
    predictor = sum(curve(uniform[:, column]) for curve, column in zip(CURVES, order, strict=True))
    predictor = _standardised(predictor + 0.5 * (level == 2))
    first, second = order[0], order[4]
    if scenario.share:
        joint = _interaction(uniform[:, first], uniform[:, second])
        predictor = predictor + math.sqrt(scenario.share / (1 - scenario.share)) * joint
    noise = random.normal(size=count)
    if scenario.kind == "labels":
        y = (random.uniform(size=count) < 1 / (1 + np.exp(-2 * predictor))).astype(float)
    elif scenario.kind == "product":
        y = np.exp(0.5 * predictor + 0.5 * NOISE * noise)
    else:
        y = predictor + NOISE * (random.standard_t(4, size=count) / math.sqrt(2) if scenario.kind == "tails" else noise)
    x = pd.DataFrame({**columns, "group": np.array(["a", "b", "c"])[level]})
    pair = frozenset((f"x{first}", f"x{second}")) if scenario.share else frozenset()
    return Table(x, y, scenario.num_rows, scenario.kind == "labels", pair)


def _standardised(values: np.ndarray) -> np.ndarray:
    return (values - values.mean()) / values.std()


def _interaction(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """A product of sines without the part that is a sum of functions of one column."""
    joint = np.sin(3 * (first - 0.5)) * np.sin(3 * (second - 0.5))
    powers = np.column_stack([column**power for column in (first, second) for power in range(6)])
    return _standardised(joint - powers @ np.linalg.lstsq(powers, joint, rcond=None)[0])


def fit_and_score(table: Table, **options: Any) -> tuple[Any, dict[str, float]]:
    """A fitted estimator with some options; its seconds of the processor, and scores of further rows."""
    x, y = table.x[: table.num_rows], table.y[: table.num_rows]
    further, observed = table.x[table.num_rows :], table.y[table.num_rows :]
    kind = GAMClassifier if table.is_labels else GAMRegressor
    started = time.process_time()
    gam = kind(hyperparameters="point", **options).fit(x, y)
    found = {"seconds": time.process_time() - started}
    if table.is_labels:
        chance = gam.predict_proba(further)[:, 1]
        return gam, {**found, "nll": -float(np.log(np.where(observed > 0, chance, 1 - chance)).mean())}
    mean, stddev = gam.predict(further, return_std=True)
    inside = np.abs(observed - mean) < norm.ppf(0.975) * stddev
    nll = -float(norm.logpdf(observed, mean, stddev).mean())
    return gam, {**found, "nll": nll, "coverage": float(inside.mean())}


def measure(scenario: Scenario, seed: int, nats: float | None = None) -> dict[str, Any]:
    """What a search keeps in a table, perhaps with another threshold, and scores with it and without."""
    table = draw(scenario, seed)
    gam, searched = fit_and_score(table, **({} if nats is None else {"interaction_nats": nats}))
    kept = gam.interactions_.index[gam.interactions_.kept].tolist()
    without = fit_and_score(table, interactions=0)[1] if kept else searched
    return {
        "seed": seed,
        "kept": kept,
        "found": any(frozenset(label[3:-1].split(", ")) == table.pair for label in kept),
        "searched": searched,
        "without": without,
    }


def summarised(found: Sequence[dict[str, Any]]) -> dict[str, float]:
    """
    Of the tables of a scenario: shares of those where an interaction is kept, one that is not there, and the one that
    is; nats a row that the search gains, and its standard error; coverage of observation intervals.
    """
    gains = [each["without"]["nll"] - each["searched"]["nll"] for each in found]
    summary = {
        "kept": statistics.mean(bool(each["kept"]) for each in found),
        "false": statistics.mean(len(each["kept"]) > each["found"] for each in found),
        "found": statistics.mean(each["found"] for each in found),
        "gain": statistics.mean(gains),
        "error": statistics.stdev(gains) / math.sqrt(len(gains)),
        "worst": min(gains),
    }
    for name in ("without", "searched"):
        if "coverage" in found[0][name]:
            summary[f"coverage_{name}"] = statistics.mean(each[name]["coverage"] for each in found)
    return summary


def table_of(results: Sequence[dict[str, Any]]) -> str:
    """A line for each scenario."""
    header = ["", "tables", "some kept", "false ones kept", "gain", "coverage without", "coverage"]
    rows = []
    for each in results:
        summary, is_product = each["summary"], SCENARIOS[each["name"]].kind == "product"  # all pairs of which interact
        coverages = (summary.get(f"coverage_{name}") for name in ("without", "searched"))
        rows.append(
            [
                each["name"],
                str(len(each["tables"])),
                f"{summary['kept']:.2f}",
                "" if is_product else f"{summary['false']:.2f}",
                f"{1e3 * summary['gain']:+.1f} ({1e3 * summary['error']:.1f})",
                *("" if coverage is None else f"{coverage:.3f}" for coverage in coverages),
            ]
        )
    return markdown(header, rows)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=20, help="number of tables of each scenario")
    parser.add_argument("--scenarios", nargs="+", choices=SCENARIOS, default=list(SCENARIOS), metavar="NAME")
    parser.add_argument("--first", type=int, default=0, help="seed of the first of these")
    parser.add_argument("--nats", type=float, help="another threshold than the default of the estimators")
    parser.add_argument("--quick", action="store_true", help="two small tables: checks that everything runs")
    parser.add_argument("--json", type=Path, help="file for the results, written after each scenario")
    arguments = parser.parse_args(argv)
    results = []
    for name in arguments.scenarios:
        scenario, seeds = SCENARIOS[name], range(arguments.first, arguments.first + arguments.tables)
        if arguments.quick:
            scenario, seeds = scenario._replace(num_rows=60), range(2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tables = [measure(scenario, seed, arguments.nats) for seed in seeds]
        results.append({"name": name, "summary": summarised(tables), "tables": tables})
        print(f"{name}: {results[-1]['summary']}", flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(results, indent=2))
    print("\nshares of tables; thousandths of a nat a row that the search gains (standard error)\n")
    print(table_of(results))


if __name__ == "__main__":
    main()
