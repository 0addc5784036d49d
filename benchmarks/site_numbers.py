"""
The measured numbers of the README and of the site: text by name, from the files of `results/`.

A page of the site says `{{ name }}`, and `docs/conf.py` puts the text of that name in its place when the site is
built. The README's tables are written by `report.py --write`.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from interactions import table_of
from real_data import additive, gain, markdown, score_table, seconds_table, variant_table

Records = Mapping[str, Mapping[str, Any]]


def site_numbers(records: Records) -> dict[str, str]:
    """Text by name, for the pages of the site."""
    return {
        "coverage_of_families": coverage_table(records, COVERAGES),
        **_ranks(records["rank"]["numbers"]["results"]),
        **_false_alarms(records["null_effects"]["numbers"]),
        "searches_for_interactions": table_of(records["interactions"]["numbers"]),
        **_real_data(records["real_data"]["numbers"]["results"]),
        **_spreads(records["distributional"]["numbers"]),
        **_predictions(records["gam_prediction"]),
    }


# ------------------------------------------------------------------------------------------------- tables of the README


COVERAGES = {  # in the table: in the file
    "block + low-rank, R = 32": "block + low-rank, R = 32",
    "low-rank, automatic rank": "low-rank, automatic rank",
    "coupled covariance": "coupled covariance",
    "mean-field": "mean-field",
}

BY_BINS, BAM = "fit by bins, 2 thread(s)", "bam, default bases"
PEERS = (  # in the table, response and peer in the file
    ("Gaussian: ours, by bins", "gaussian", BY_BINS),
    ("`bam`, default bases", "gaussian", BAM),
    ("labels (probit): ours, by bins", "labels", BY_BINS),
    ("`bam`, default bases", "labels", BAM),
)


def readme_tables(records: Records) -> Iterable[str]:
    """The tables of the README whose benchmarks have been run."""
    if "calibration" in records:
        yield coverage_table(records, ["block + low-rank, R = 32", "mean-field"])
    if "vs_bam" in records:
        yield bam_table(records["vs_bam"]["numbers"])


def coverage_table(records: Records, families: Iterable[str]) -> str:
    """How often bands of families hold effects, by the correlation of the inputs."""
    found = records["calibration"]["numbers"]["results"]
    header = ["correlation of the inputs", *(_short(float(correlation)) for correlation in found)]
    rows = [[family, *(_rounded(each[family]["coverage"], 3) for each in found.values())] for family in families]
    return markdown(header, rows)


def bam_table(numbers: Mapping[str, Any], num_rows: int = 1_000_000) -> str:
    """Seconds and scores beside those of mgcv's ``bam``."""
    summaries = {each["response"]: each["summary"] for each in numbers["results"] if each["num_rows"] == num_rows}
    rows = []
    for label, response, peer in PEERS:
        found = summaries[response][peer]
        scores = [_rounded(found["rmse"], 4), _rounded(found["coverage"], 3)]
        rows.append([label, f"{found['seconds']:.1f}", *scores])
    return markdown(["", "seconds", "RMSE of the predictor", "coverage of 95% bands"], rows)


# -------------------------------------------------------------------------------------------------- numbers of the site


def _ranks(results: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """What the families lose by rank, of the largest problem."""
    largest = results[-1]
    ranks = list(largest["gaps"]["low_rank"])
    rows = [
        ["block + low-rank (of rank 0: mean-field)", *map(_nats, largest["gaps"]["block_low_rank"].values())],
        ["low-rank (of rank 0: the prior)", *map(_nats, largest["gaps"]["low_rank"].values())],
    ]
    return {
        "ranks": markdown(["rank", *ranks], rows),
        "ranks_components": str(largest["num_components"]),
        "ranks_factors": str(largest["num_factors"]),
        "ranks_rows": str(largest["num_rows"]),
        "ranks_inducing": str(largest["num_components"] * largest["num_inducing"]),
    }


def _false_alarms(results: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    rates = {each["response"]: _rounded(each["null"][1], 3) for each in results}  # at the 5% level
    return {"false_alarms_normal": rates["Gaussian"], "false_alarms_labels": rates["labels"]}


def _real_data(results: list[dict[str, Any]]) -> dict[str, str]:
    """The tables of ``real_data.py``, and what the text says of them."""
    found = {"scores": score_table(results), "seconds": seconds_table(results), "variants": variant_table(results)}
    for peer in ("mgcv", "pyGAM", "EBM", "linear"):
        found[f"better_than_{peer}"] = _better_than(peer, results)
    for result in results:
        without = additive(result)
        if without is not None:
            gained, error = gain(without, result["fits"]["ours"])
            found[f"interactions_gain_{result['name']}"] = f"{gained:.3f} ({error:.3f})"
            found[f"additive_score_{result['name']}"] = f"{statistics.mean(without['nll']):.3f}"
            found[f"additive_seconds_{result['name']}"] = f"{without['processor_seconds'][0]:.1f}"
        found[f"seconds_{result['name']}"] = f"{result['fits']['ours']['processor_seconds'][0]:.1f}"
    return {f"real_data_{name}": text for name, text in found.items()}


def _better_than(peer: str, results: list[dict[str, Any]]) -> str:
    """The sets on which the defaults score better by more than a ten-thousandth of a nat, in words."""
    gains = {result["name"]: gain(result["fits"][peer], result["fits"]["ours"])[0] for result in results}
    better = [name for name, nats in gains.items() if nats > 1e-4]
    alike = [name for name, nats in gains.items() if abs(nats) <= 1e-4]
    words = f"better on {_list(better)}" if better else "better on none"
    return f"{words} and alike on {_list(alike)}" if alike else words


def _list(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def _spreads(numbers: Mapping[str, Any]) -> dict[str, str]:
    """Scores of models of mean and spread, and of the mean alone."""
    found = {}
    for data, short in (("head circumference", "heads"), ("motorcycle", "motorcycle")):
        for model in ("location_scale", "constant_noise"):
            found[f"{short}_{model}"] = f"{numbers[data][model]['negative_log_density']:.3f}"
    return found


def _predictions(record: Mapping[str, Any]) -> dict[str, str]:
    """What predictions of a large table take, by the names of the calls."""
    numbers = record["numbers"]
    rows = [
        [
            f"`{name}`",
            f"{each['rows']:,}",
            f"{each['processor_seconds']:.0f}",
            *(f"{each[key]:.2f}" for key in ("gib_before", "gib", "gib_of_result")),
        ]
        for name, each in numbers["calls"].items()
    ]
    header = ["call", "rows", "processor seconds", "GiB before", "GiB at most", "of which the result"]
    return {
        "predictions": markdown(header, rows),
        "predictions_terms": str(numbers["num_terms"]),
        "predictions_models": str(numbers["num_models"]),
    }


def _rounded(value: float, digits: int) -> str:
    return f"{value:.{digits}f}".removeprefix("0") if 0 <= value < 1 else f"{value:.{digits}f}"


def _short(value: float) -> str:
    return f"{value:g}".removeprefix("0") or "0"


def _nats(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"
