"""
Claim: on public tables, a data frame and the defaults alone score better than mgcv and pyGAM.

`GAMRegressor().fit(frame, y)` and `GAMClassifier().fit(frame, y)` with nothing else, on frames whose columns have their
natural types, against

- mgcv, `gam(method = "REML")` with `s()` of numbers and factors,
- pyGAM with its grid search,
- EBM (interpret) without interactions, and with `--interactions` as it comes, which takes minutes a fit. It has no
  density of numbers: it gets the normal one with the standard deviation of its residuals in three inner folds, and in
  an inner held-out quarter,
- linear regression, and for labels logistic regression as it comes (that is, with a penalty).

Scores are the mean negative log predictive density of held-out rows in nats: five contiguous folds of
`numpy.random.RandomState(4).permutation(N)`, test inputs clipped to the range of the rows to fit, responses
standardised by these; of labels the log loss. Seconds are those of the processor for a fit to all rows, on one thread.

`--variants` fits with something else in the place of each default, and prints what that changes: positive numbers are
nats a row that the default gains, with the standard error over folds. A difference within it is a tie. Models without
interactions are compared there, but for the gain of these: a search can come to others by chance, and takes time.

What the file of `--json` holds already of peers is taken from there, unless `--refit`; with `--resume` what it holds
of ours, too, so that sets and alternatives can be run one after the other.

    python benchmarks/real_data.py [--data ../shared/data] [--sets autompg ...] [--variants [DEFAULT ...]] [--json FILE]
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _common import describe_environment, script_parser, write_json
from _real_peers import INNER_FOLDS, Variant, fit_ebm, fit_gam, fit_linear, is_labels
from _small_peers import Fits, fit_mgcv, fit_pygam
from _small_sets import DataSet, sets_of
from gaussian_closed_form import has_mgcv

from gpytorch_gam.gam.columns import NumberEncoding
from gpytorch_gam.gam.terms import Factor, RandomEffect, Smooth, Term

NAMES = ("autompg", "concrete", "breast", "pima", "wage")
OURS = "ours"

# Families of the simulated sets of quick runs.
QUICK = ("gaussian", "binomial")


def installed(package: str) -> str | None:
    """The version of a package, or None with a word on it."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        print(f"{package} is not installed: it is left out")
        return None


def installed_peers(interactions: bool) -> dict[str, tuple[str, Callable[[DataSet, int], Fits | None]]]:
    """What can be compared here, with versions; says what is missing."""
    peers: dict[str, tuple[str, Callable[[DataSet, int], Fits | None]]] = {}
    if has_mgcv():
        peers["mgcv"] = ("", lambda data_set, num_folds: fit_mgcv(data_set, 1, num_folds))
    else:
        print("R with mgcv is not installed: it is left out (Debian: r-base-core r-cran-mgcv)")
    version = installed("pygam")
    if version is not None:
        peers["pyGAM"] = (version, lambda data_set, num_folds: fit_pygam(data_set, 1, num_folds))
    version = installed("interpret-core")
    if version is not None:
        peers["EBM"] = (version, partial(fit_ebm, inner=INNER_FOLDS, interactions=0))
        if interactions:
            peers["EBM, interactions"] = (version, fit_ebm)
    peers["linear"] = (importlib.metadata.version("scikit-learn"), fit_linear)
    return peers


# ---------------------------------------------------------------------------------------------------------- variants


def without_lines(terms: list[Term]) -> list[Term]:
    return [replace(term, linear=False) if isinstance(term, Smooth) else term for term in terms]


def with_random_effects(terms: list[Term]) -> list[Term]:
    return [RandomEffect(column=term.column) if isinstance(term, Factor) else term for term in terms]


# Rates of the priors of hyperparameters; without any these are uniform.
RATES = [("gpytorch_gam.gam.priors", name) for name in ("_CURVE_RATE", "_LINE_RATE", "_LENGTHSCALE_RATE")]

LEVEL_VARIANCE = ("gpytorch_gam.gam.priors", "_LEVEL_VARIANCE")


def has_categories(data_set: DataSet) -> bool:
    return bool(data_set.categories)


def has_long_tails(data_set: DataSet) -> bool:
    """Whether a column is drawn in."""
    frame = data_set.decoded(data_set.whole())
    numbers = [name for name in data_set.columns if name not in data_set.categories]
    return any(NumberEncoding.of(frame[name]).is_drawn_in for name in numbers)


INTERACTIONS, ADDITIVE = "interactions", Variant("none", {"interactions": 0})

# What stands in the place of each default.
VARIANTS = {
    INTERACTIONS: [ADDITIVE],
    "hyperparameters": [Variant("point estimates", {"hyperparameters": "point"})],
    "kernel": [Variant(name, {"kernel": name}) for name in ("matern52", "matern32", "rbf")],
    "line": [Variant("none beside smooths", change=without_lines)],
    "link": [Variant("probit", {"family": "probit"}, applies=is_labels)],
    "priors": [Variant("none of variances and lengthscales", constants=dict.fromkeys(RATES, 1e-9))],
    "categories": [
        Variant("wide prior of levels", constants={LEVEL_VARIANCE: 25.0}, applies=has_categories),
        Variant("re(), estimated variance", change=with_random_effects, applies=has_categories),
    ],
    "posterior": [Variant("block low rank", {"posterior": "block_low_rank"})],
    "tails": [
        Variant(
            "long ones not drawn in",
            constants={("gpytorch_gam.gam.columns", "_LONG_TAIL"): math.inf},
            applies=has_long_tails,
        )
    ],
}


def gain(fits: Mapping[str, Any], reference: Mapping[str, Any]) -> tuple[float, float]:
    """Nats a row by which the reference is better, mean and standard error over folds."""
    differences = [own - other for own, other in zip(fits["nll"], reference["nll"], strict=True)]
    return statistics.mean(differences), statistics.stdev(differences) / math.sqrt(len(differences))


def additive(result: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The fits of a set without interactions, if there are any."""
    found: Mapping[str, Any] | None = result.get("variants", {}).get(INTERACTIONS, {}).get(ADDITIVE.name)
    return found


# -------------------------------------------------------------------------------------------------------- comparisons


def compare(
    data_set: DataSet,
    num_folds: int,
    peers: Mapping[str, tuple[str, Callable[[DataSet, int], Fits | None]]],
    known: Mapping[str, Any],
) -> dict[str, Any]:
    """
    All peers and our fits on one set; what is known of ours, and of peers by the same versions and folds, is not found
    again.
    """
    fits: dict[str, Any] = {OURS: known[OURS] if OURS in known else vars(fit_gam(data_set, num_folds))}
    for name, (version, fit) in peers.items():
        before = known.get(name, {})
        if before.get("version") == version and len(before["nll"]) == num_folds:
            fits[name] = before
        elif (found := fit(data_set, num_folds)) is not None:
            fits[name] = {**vars(found), "version": version}
    return {"name": data_set.name, "num_rows": len(data_set.table), "family": data_set.family, "fits": fits}


def read_known(path: Path | None) -> dict[str, Any]:
    """What earlier runs have found, in a file of this script or of `report.py`."""
    if path is None or not path.exists():
        return {"results": [], "peers": {}}
    found: dict[str, Any] = json.loads(path.read_text())
    return found.get("numbers", found)


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """A table of markdown, the first column to the left and the others to the right."""
    every = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in every)


def peers_of(results: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for result in results for name in result["fits"]))


def score_table(results: list[dict[str, Any]]) -> str:
    """The scores of all peers."""
    names = peers_of(results)
    rows = [
        [f"{result['name']} ({result['num_rows']})", *(_cell(_score(result["fits"].get(name)), 4) for name in names)]
        for result in results
    ]
    return markdown(["", *names], rows)


def seconds_table(results: list[dict[str, Any]]) -> str:
    """The seconds of all peers."""
    names = peers_of(results)
    rows = [[result["name"], *(_cell(_seconds(result["fits"].get(name)), 2) for name in names)] for result in results]
    return markdown(["", *names], rows)


def variant_table(results: list[dict[str, Any]]) -> str:
    """What each default gains, a column for each set."""
    rows = []
    for default, variants in VARIANTS.items():
        for variant in variants:
            cells = []
            for result in results:
                fits = result.get("variants", {}).get(default, {}).get(variant.name)
                own = result["fits"][OURS] if default == INTERACTIONS else additive(result)
                mean, error = (math.nan, math.nan) if fits is None or own is None else gain(fits, own)
                cells.append("" if math.isnan(mean) else f"{1e3 * mean:+.1f} ({1e3 * error:.1f})")
            if any(cells):
                rows.append([f"{default}: {variant.name}", *cells])
    return markdown(["", *(result["name"] for result in results)], rows)


def victories(results: list[dict[str, Any]]) -> list[str]:
    """On how many sets each peer scores worse, and on how many it does so or not within a standard error."""
    found = []
    for name in peers_of(results)[1:]:
        gains = [gain(each["fits"][name], each["fits"][OURS]) for each in results if name in each["fits"]]
        better = sum(mean > error for mean, error in gains)
        ties = sum(abs(mean) <= error for mean, error in gains)
        also = f", a tie on {ties}" if ties else ""
        found.append(f"better than {name} on {better} of {len(gains)} sets{also}")
    return found


def show(results: list[dict[str, Any]]) -> None:
    """All tables, and what falls short."""
    print("\nheld-out negative log predictive density; of labels log loss\n")
    print(score_table(results))
    print("\nseconds of the processor for a fit to all rows\n")
    print(seconds_table(results))
    print("", *victories(results), sep="\n")
    if any("variants" in result for result in results):
        print("\nthousandths of a nat a row that defaults gain over what might stand in their place (standard error)\n")
        print(variant_table(results))


def _score(fits: Mapping[str, Any] | None) -> float:
    return math.nan if fits is None else statistics.mean(fits["nll"])


def _seconds(fits: Mapping[str, Any] | None) -> float:
    return math.nan if fits is None else fits["processor_seconds"][0]


def _cell(value: float, digits: int) -> str:
    return "" if math.isnan(value) else f"{value:.{digits}f}"


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the tables")
    parser.add_argument("--sets", choices=NAMES, nargs="+", default=list(NAMES), metavar="SET", help=", ".join(NAMES))
    parser.add_argument("--folds", type=int, default=5, help="default: 5")
    parser.add_argument(
        "--variants", choices=VARIANTS, nargs="*", metavar="DEFAULT", help="also what each default gains, or some"
    )
    parser.add_argument("--interactions", action="store_true", help="also EBM with interactions")
    parser.add_argument("--refit", action="store_true", help="fit peers again that the file of --json holds")
    parser.add_argument("--resume", action="store_true", help="take also our fits from the file of --json")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    options = parse(arguments)
    torch.set_num_threads(1)
    found = read_known(options.json)
    found["environment"] = describe_environment(torch.device("cpu"))
    if options.refit:
        found["peers"] = {}
    known = {result["name"]: result for result in found["results"]} if options.resume else {}
    folds, peers = 2 if options.quick else options.folds, installed_peers(options.interactions)
    if options.quick:
        peers = {name: peer for name, peer in peers.items() if not name.startswith("EBM")}
    for data_set in sets_of(options, QUICK):
        own = known.get(data_set.name, {"fits": {}, "variants": {}})
        of_peers = found["peers"].setdefault(data_set.name, {})
        ours = {OURS: own["fits"][OURS]} if own["fits"] else {}
        result = compare(data_set, folds, peers, {**of_peers, **ours})
        of_peers |= {name: fits for name, fits in result["fits"].items() if name != OURS}
        result["variants"] = own["variants"]
        found["results"] = [*(each for each in found["results"] if each["name"] != data_set.name), result]
        found["results"].sort(key=lambda each: NAMES.index(each["name"]) if each["name"] in NAMES else len(NAMES))
        write_json(options.json, found)
        chosen = [] if options.variants is None else [INTERACTIONS, *(options.variants or VARIANTS)]
        for default in dict.fromkeys(chosen):
            for variant in VARIANTS[default]:
                fits = result["variants"].setdefault(default, {})
                if variant.name not in fits and variant.applies(data_set):
                    alone = replace(variant, options={**ADDITIVE.options, **variant.options})
                    fits[variant.name] = vars(fit_gam(data_set, folds, alone))
                    write_json(options.json, found)
    show(found["results"])
    return found


if __name__ == "__main__":
    main()
