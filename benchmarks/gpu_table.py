"""The figures that ``gpu_report.sh`` left in a folder, in one table beside their targets."""

from __future__ import annotations

import argparse
import json
import xml.etree.ElementTree
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from _common import print_table


class Row(NamedTuple):
    what: str
    target: str
    figure: str
    holds: str


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args(argv).folder
    rows = [*test_rows(folder), *step_rows(folder), *epoch_rows(folder)]
    print_table(["what", "target", "figure", "holds"], [list(row) for row in rows])


def test_rows(folder: Path) -> list[Row]:
    path = folder / "tests.xml"
    if not path.exists():
        return [Row("device tests", "all pass", "not run", "-")]
    counts = xml.etree.ElementTree.parse(path).getroot().find("testsuite").attrib  # type: ignore[union-attr]
    failed = int(counts["failures"]) + int(counts["errors"])
    ran = int(counts["tests"]) - int(counts["skipped"])
    return [Row("device tests", "all pass", f"{ran - failed} of {ran}", verdict(failed == 0 and ran > 0))]


def step_rows(folder: Path) -> list[Row]:
    plain, fast = families(folder / "step.json"), families(folder / "step_tf32.json")
    low_rank, block = plain.get("low_rank R=64", {}), plain.get("block_low_rank R=32", {})
    return [
        compared("low-rank R=64, step", low_rank.get("milliseconds"), 4.0, "{:.2f} ms", at_most),
        compared("low-rank R=64, peak memory", low_rank.get("peak_mib"), 512.0, "{:.0f} MiB", at_most),
        compared("stock mean-field by low-rank R=64", inverse(low_rank.get("ratio")), 12.0, "{:.1f} x", at_least),
        compared(
            "low-rank R=64, step, TF32", fast.get("low_rank R=64", {}).get("milliseconds"), 2.5, "{:.2f} ms", at_most
        ),
        compared(
            "block R=32 by low-rank R=64",
            quotient(block.get("milliseconds"), low_rank.get("milliseconds")),
            1.5,
            "{:.2f} x",
            at_most,
        ),
    ]


def epoch_rows(folder: Path) -> list[Row]:
    found = load(folder / "epochs.json")
    rows = f"{found['rows']:,} rows" if found else "10^7 rows"
    return [compared(f"ten epochs, {rows}", found.get("seconds"), 60.0, "{:.1f} s", at_most)]


def families(path: Path) -> dict[str, dict[str, Any]]:
    """Records of the one setting of a run of ``step_time.py``, by family."""
    settings = load(path).get("settings", [])
    return {record["family"]: record for record in settings[0]["families"]} if settings else {}


def load(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def at_most(value: float, target: float) -> bool:
    return value <= target


def at_least(value: float, target: float) -> bool:
    return value >= target


def compared(what: str, value: float | None, target: float, style: str, test: Callable[[float, float], bool]) -> Row:
    sign = "<=" if test is at_most else ">="
    goal = f"{sign} {style.format(target)}"
    if value is None:
        return Row(what, goal, "not measured", "-")
    return Row(what, goal, style.format(value), verdict(test(value, target)))


def verdict(holds: bool) -> str:
    return "yes" if holds else "NO"


def inverse(value: float | None) -> float | None:
    return None if value is None else 1 / value


def quotient(value: float | None, other: float | None) -> float | None:
    return None if value is None or other is None else value / other


if __name__ == "__main__":
    main()
