"""
Claim: a fit to a small table is done, says so, and takes no longer than mgcv's.

Eleven sets of 133 to 7040 rows, each with a model that users of mgcv would write: `gam(method = "REML")`, for
Friedman's function `bam(discrete = TRUE)`, pyGAM with its grid search where it has the distribution, and this package
with `fit(model, likelihood, (x, y))`; all terms, options and numbers of functions are the defaults of each, unless the
set asks for more (200 for fourteen years of days) or has too few distinct values. Bases of mgcv are thin plates, above
50 functions cubic splines, which its manual suggests.

All on one thread. Of R only the call that fits is timed; ours includes making the model from raw tensors. Printed:
medians over three fits to all rows, of the seconds that the processor took (on one thread those are the seconds on the
clock of a machine that does nothing else), with the gain that a fit leaves open, in nats; and over five folds the mean
negative log predictive density of held-out rows (`numpy.random.RandomState(4).permutation`, contiguous folds;
continuous responses standardised and test inputs clipped by the rows to fit), for Friedman's function the RMSE of the
predictor over three draws.

`--starts 10` fits each set from random hyperparameters instead: lengthscales log-uniform from .05 to 2 ranges,
variances within a factor of 100 of the starting value, noise, dispersion and the like within a factor of 10. Shown is
how far the bounds lie apart.

`--coverage 24` fits that number of draws of Friedman's function (Gaussian, labels, counts) and of the plants of
`examples/mixed_effects.py`, and prints the share of fresh rows in which 95% bands of the predictor hold the truth,
without and with the uncertainty of the hyperparameters.

The data are public (see `--data`); `--quick` takes simulated sets of 60 rows instead. Without R and mgcv, or pyGAM,
ours is shown alone.

    python benchmarks/small_data.py [--data ../shared/data] [--sets wage autompg ...] [--figure FILE]
    python benchmarks/small_data.py --starts 10
    python benchmarks/small_data.py --coverage 24
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from _common import (
    describe_environment,
    headless_pyplot,
    print_table,
    save_figure,
    script_parser,
    write_json,
)
from _small_coverage import CASES, COVERAGE, covered
from _small_peers import Fits, fit_from_random_starts, fit_mgcv, fit_ours, fit_pygam
from _small_sets import SETS, DataSet, sets_of
from gaussian_closed_form import has_mgcv

from gpytorch_gam.numerics.dtypes import default_dtype

# What a fit may leave open, how far bounds from several starts may lie apart (nats), and the seconds it may take: the
# larger one of a multiple of mgcv's and a second. (Of bam's, without the second.)
MOST_OPEN, MOST_SPREAD = 0.05, 0.1
MOST_OF_GAM, MOST_OF_BAM, SHORT = 1.5, 0.8, 1.0

# Families of the simulated sets of quick runs.
QUICK = ("gaussian", "negative binomial")

OURS, MGCV, PYGAM = "ours", "mgcv", "pyGAM"
COLOURS = {OURS: "#2a6fbb", MGCV: "#d9742b", PYGAM: "#8a8a8a"}


def installed_peers() -> dict[str, Callable[[DataSet, int, int], Fits | None]]:
    """What can be compared here; says what is missing."""
    peers: dict[str, Callable[[DataSet, int, int], Fits | None]] = {OURS: fit_ours}
    if has_mgcv():
        peers[MGCV] = fit_mgcv
    else:
        print("R with mgcv is not installed: it is left out (Debian: r-base-core r-cran-mgcv)")
    if importlib.util.find_spec("pygam") is not None:
        peers[PYGAM] = fit_pygam
    else:
        print("pyGAM is not installed: it is left out (pip install pygam)")
    return peers


def compare(
    data_set: DataSet, repeats: int, num_folds: int, peers: Mapping[str, Callable[[DataSet, int, int], Fits | None]]
) -> dict[str, Any]:
    """All peers on one set."""
    found = {name: fit_set(data_set, repeats, num_folds) for name, fit_set in peers.items()}
    fitted = {name: fits for name, fits in found.items() if fits is not None}
    return {
        "name": data_set.name,
        "num_rows": len(data_set.table),
        "family": data_set.family,
        "peer": "bam" if data_set.is_for_bam else "gam",
        "score": "rmse" if data_set.draws else "nll",
        "fits": {name: vars(fits) for name, fits in fitted.items()},
        "summary": {name: fits.summary for name, fits in fitted.items()},
        "details": fitted[OURS].details,
    }


def ratio(result: dict[str, Any]) -> float:
    """Our seconds to mgcv's, of the processor."""
    other = result["summary"].get(MGCV, {"processor_seconds": math.nan})
    return result["summary"][OURS]["processor_seconds"] / other["processor_seconds"]


def shortcomings(result: dict[str, Any]) -> list[str]:
    """What a result lacks of the claim."""
    seconds, details = result["summary"][OURS]["processor_seconds"], result["details"]
    found = []
    if result["peer"] == "bam" and ratio(result) > MOST_OF_BAM:
        found.append(f"takes more than {MOST_OF_BAM} x bam")
    if result["peer"] == "gam" and seconds > SHORT and ratio(result) > MOST_OF_GAM:
        found.append(f"takes more than {MOST_OF_GAM} x gam and {SHORT:g} s")
    if not details["converged"] or not details["open"] < MOST_OPEN:
        found.append(f"leaves {details['open']:.2g} nats open ({details['stopped']})")
    return found


def show_comparison(results: list[dict[str, Any]]) -> None:
    """The table, and what falls short."""
    rows = []
    for result in results:
        summary, details = result["summary"], result["details"]
        cells = [result["name"], str(result["num_rows"]), result["peer"]]
        cells += [_number(summary.get(name), "processor_seconds", 2) for name in (OURS, MGCV, PYGAM)]
        cells += [f"{ratio(result):.2f}", details["method"], f"{details['open']:.3f}", str(details["evaluations"])]
        cells += [f"{details['bound']:.2f}"]
        cells += [_number(summary.get(name), result["score"], 4) for name in (OURS, MGCV, PYGAM)]
        rows.append(cells)
    header = ["", "rows", "mgcv's", "s, ours", "mgcv", "pyGAM", "to mgcv", "method", "open, nats", "evaluations"]
    header += ["bound", "score, ours", "mgcv", "pyGAM"]
    print("\nseconds of a fit, and scores: held-out NLL in nats, for bam the RMSE")
    print_table(header, rows)
    num_faster = sum(ratio(result) < 1.0 for result in results)
    print(f"\nfaster than mgcv on {num_faster} of {len(results)} sets")
    for result in results:
        for reason in shortcomings(result):
            print(f"falls short: {result['name']} {reason}")


def _number(summary: dict[str, float] | None, key: str, digits: int) -> str:
    return "-" if summary is None or key not in summary else f"{summary[key]:.{digits}f}"


def draw_comparison(results: list[dict[str, Any]], path: Path) -> None:
    """Seconds of all peers, a line of points for each set."""
    plt = headless_pyplot()
    figure, axes = plt.subplots(figsize=(7.0, 1.2 + 0.33 * len(results)), layout="constrained")
    for name, colour in COLOURS.items():
        found = [(r["summary"][name]["processor_seconds"], i) for i, r in enumerate(results) if name in r["summary"]]
        if found:
            seconds, places = zip(*found, strict=True)
            axes.scatter(seconds, places, s=46 if name == OURS else 30, color=colour, label=name, zorder=3)
    for place, result in enumerate(results):
        values = [summary["processor_seconds"] for summary in result["summary"].values()]
        axes.plot([min(values), max(values)], [place, place], color="#d0d0d0", linewidth=1.5, zorder=1)
    axes.axvline(1.0, color="#b0b0b0", linewidth=0.8, linestyle=(0, (4, 2)), zorder=0)
    axes.set_xscale("log")
    axes.set_yticks(range(len(results)), [f"{result['name']} ({result['num_rows']})" for result in results])
    axes.invert_yaxis()
    axes.set_xlabel("seconds of the processor for a fit, median of three")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    save_figure(figure, path)


def spread(data_set: DataSet, num_starts: int) -> dict[str, Any]:
    """Bounds from random starts."""
    fits = fit_from_random_starts(data_set, num_starts)
    bounds = [fit["bound"] for fit in fits]
    return {
        "name": data_set.name,
        "starts": fits,
        "best": max(bounds),
        "spread": max(bounds) - min(bounds),
        "largest_open": max(fit["open"] for fit in fits),
        "num_converged": sum(fit["converged"] for fit in fits),
        "seconds": statistics.median(fit["processor_seconds"] for fit in fits),
    }


def show_spread(results: list[dict[str, Any]]) -> None:
    rows = [
        [
            result["name"],
            f"{result['best']:.3f}",
            f"{result['spread']:.3f}",
            f"{result['num_converged']} of {len(result['starts'])}",
            f"{result['largest_open']:.3f}",
            f"{result['seconds']:.2f}",
        ]
        for result in results
    ]
    print("\nfits from random hyperparameters")
    print_table(["", "largest bound", "spread, nats", "converged", "largest open, nats", "s"], rows)
    far = [result["name"] for result in results if not result["spread"] <= MOST_SPREAD]
    print(f"\nbounds within {MOST_SPREAD} nats: {'all sets' if not far else f'not {far}'}")


def show_coverage(results: list[dict[str, Any]]) -> None:
    rows = [
        [
            result["name"],
            str(result["num_draws"]),
            f"{result['plain']:.3f}",
            f"{result['with_uncertainty']:.3f}",
            f"{result['fit_seconds']:.2f}",
            f"{result['uncertainty_seconds']:.2f}",
        ]
        for result in results
    ]
    print("\ncoverage of 95% bands of the predictor, hyperparameters learnt")
    print_table(["", "draws", "as known", "as uncertain", "s of a fit", "s of the uncertainty"], rows)
    outside = [r["name"] for r in results if not COVERAGE[0] <= r["with_uncertainty"] <= COVERAGE[1]]
    print(f"\nbetween {COVERAGE[0]} and {COVERAGE[1]}: {'all' if not outside else f'not {outside}'}")


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the tables")
    parser.add_argument("--sets", choices=SETS, nargs="+", default=list(SETS), metavar="SET", help=", ".join(SETS))
    parser.add_argument("--repeats", type=int, default=3, help="timed fits to all rows (default: 3)")
    parser.add_argument("--folds", type=int, default=5, help="for scores (default: 5, none: 0)")
    parser.add_argument("--starts", type=int, help="fit from this number of random starts instead of comparing")
    parser.add_argument("--coverage", type=int, help="coverage over this number of draws instead of comparing")
    parser.add_argument("--cases", choices=CASES, nargs="+", default=list(CASES), help="of --coverage")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="draw the seconds")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    options = parse(arguments)
    torch.set_num_threads(1)
    found: dict[str, Any] = {"environment": describe_environment(torch.device("cpu"))}
    with default_dtype(torch.float64):
        if options.coverage:
            found["coverage"] = [covered(name, options.coverage, options.quick) for name in options.cases]
            show_coverage(found["coverage"])
        elif options.starts:
            found["spread"] = [spread(data_set, options.starts) for data_set in sets_of(options, QUICK)]
            show_spread(found["spread"])
        else:
            repeats, folds = (1, 2) if options.quick else (options.repeats, options.folds)
            peers = installed_peers()
            found["results"] = [compare(data_set, repeats, folds, peers) for data_set in sets_of(options, QUICK)]
            show_comparison(found["results"])
            if options.figure is not None:
                draw_comparison(found["results"], options.figure)
    write_json(options.json, found)
    return found


if __name__ == "__main__":
    main()
