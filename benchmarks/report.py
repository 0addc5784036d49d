"""
Runs benchmarks and keeps what they find in `results/NAME.json`: their numbers and what they print, with the command,
the date, the commit, the versions, the hardware and the seconds. RESULTS.md, which is a page of the site, and the
README's tables of numbers are written from these files; other pages take theirs when the site is built
(`site_numbers.py`).

    python benchmarks/report.py [NAME ...] [--list] [--write] [--quick]

Without names it runs everything that needs no GPU. A file is replaced when its benchmark is run again; the others stay.
With `--write` nothing is run, and the texts are written from the files that there are.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from _common import processor, write_json
from site_numbers import readme_tables

ROOT = Path(__file__).parents[1]
README = "README.md"
RESULTS = "benchmarks/RESULTS.md"
FILES = "benchmarks/results"
MEASURED = ("gpytorch_gam", "examples", ":(glob)benchmarks/*.py", ":(glob)benchmarks/*.sh")

PACKAGES = ("torch", "gpytorch", "linear_operator", "numpy", "scikit-learn", "pandas")

HEADER = f"""# Results

Written by `python benchmarks/report.py` from the files of `{FILES}`, which hold all numbers. Times
are of the machine that each section names, often a busy one: compare ratios, which come from one process in which all
candidates take turns.
"""

NOT_RUN = "has not been run yet."
NOT_RUN_ON_GPU = "has not been run yet: the code that it measures is tested on a CPU only."


class Section(NamedTuple):
    """
    :ivar title: heading.
    :ivar command: what is run, from the repository's root.
    :ivar needs_gpu: whether it is left out by default.
    :ivar takes_folder: whether it takes a folder for several files of numbers, instead of ``--json FILE``.
    """

    title: str
    command: str
    needs_gpu: bool = False
    takes_folder: bool = False


SECTIONS = {
    "step_time": Section(
        "One training step",
        "python benchmarks/step_time.py --threads 2 --settings 32,64,64,1024 32,64,64,8192 64,16,64,1024 --repeats 15",
    ),
    "projection": Section("The fused projection", "python benchmarks/projection.py --threads 2"),
    "scaling": Section(
        "Growth with components, inducing points, rank and rows",
        "python benchmarks/scaling.py --threads 1 --figure docs/scaling.png",
    ),
    "prediction": Section("Predictions at many rows", "python benchmarks/prediction.py --threads 2"),
    "gam_prediction": Section("Predictions of data frames", "python benchmarks/gam_prediction.py --threads 1"),
    "vs_bam": Section("Against mgcv's bam", "python benchmarks/vs_bam.py"),
    "small_data": Section(
        "Small tables, against mgcv and pyGAM",
        "python benchmarks/small_data.py --folds 0 --figure docs/small_data.png",
    ),
    "small_scores": Section(
        "Held-out scores of small tables", "python benchmarks/small_data.py --sets autompg concrete --repeats 1"
    ),
    "real_data": Section("Data frames and defaults, against peers", "python benchmarks/real_data.py"),
    "null_effects": Section("Tests of effects that are not there", "python benchmarks/null_effects.py"),
    "interactions": Section("Interactions that are not there", "python benchmarks/interactions.py"),
    "calibration": Section(
        "Bands of correlated effects", "python benchmarks/calibration.py --figure docs/calibration.png"
    ),
    "rank": Section("What a rank loses", "python benchmarks/rank.py"),
    "distributional": Section(
        "Mean and spread of real data", "python examples/distributional.py --data ../shared/data"
    ),
    "gam_calibration": Section("Coverage of bands and intervals", "python benchmarks/gam_calibration.py"),
    "starts": Section(
        "Small tables, from random hyperparameters",
        "python benchmarks/small_data.py --starts 10 --sets autompg mcycle breast pima",
    ),
    "gpu": Section("On a GPU", "bash benchmarks/gpu_report.sh", needs_gpu=True, takes_folder=True),
}


def run(section: Section, quick: bool) -> dict[str, Any]:
    """What the command finds, with all that is needed to find it again; its progress is shown."""
    words = [sys.executable if word == "python" else word for word in shlex.split(section.command)]
    started, date = time.perf_counter(), datetime.datetime.now(datetime.timezone.utc)
    with tempfile.TemporaryDirectory() as folder:
        where = [folder] if section.takes_folder else ["--json", str(Path(folder) / "numbers.json")]
        printed = _output([*words, *(["--quick"] if quick else []), *where], section.command)
        numbers = {path.stem: json.loads(path.read_text()) for path in sorted(Path(folder).glob("*.json"))}
    return {
        "command": section.command,
        "date": date.strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _commit(),
        "seconds": round(time.perf_counter() - started, 1),
        "hardware": f"{processor()}, {os.cpu_count()} cores",
        "versions": {"python": platform.python_version(), **{name: metadata.version(name) for name in PACKAGES}},
        "numbers": numbers if section.takes_folder else numbers.get("numbers"),
        "printed": printed,
    }


def _output(words: Sequence[str], command: str) -> list[str]:
    """The lines that a command prints, shown as they come."""
    lines = []
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line.rstrip("\n"))
    if process.returncode != 0:
        raise SystemExit(f"{command} failed with exit status {process.returncode}")
    return lines


def _commit() -> str | None:
    """The commit of the code that is measured, marked if it has changes; None outside of a repository."""
    commit = _git("rev-parse", "--short", "HEAD")
    changes = _git("status", "--porcelain", "--untracked-files=no", "--", *MEASURED)
    return f"{commit}-dirty" if commit and changes else commit


def _git(*words: str) -> str | None:
    """What git prints, or None if it is nothing."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.strip() or None


# ------------------------------------------------------------------ texts from the files


def read_records(folder: Path) -> dict[str, dict[str, Any]]:
    """What has been found, by the names of the benchmarks."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def results_text(records: Mapping[str, Mapping[str, Any]]) -> str:
    """The text of RESULTS.md: a section a benchmark."""
    blocks = []
    for name, section in SECTIONS.items():
        found = records.get(name)
        unknown = f"`{section.command}` {NOT_RUN_ON_GPU if section.needs_gpu else NOT_RUN}"
        text = unknown if found is None else _section_text(name, found)
        blocks.append(f"## {section.title}\n\n{text}\n")
    return "\n".join([HEADER, *blocks])


def _section_text(name: str, found: Mapping[str, Any]) -> str:
    facts = [found["date"], found["hardware"]]
    facts += [f"{package} {version}" for package, version in found["versions"].items()]
    facts += [f"commit {found['commit']}"] if found["commit"] else []
    facts += [f"{found['seconds']:.0f} s"] if found["seconds"] else []
    printed = "\n".join(found["printed"]).strip()
    return f"`{found['command']}`\n\n{', '.join(facts)}; `{FILES}/{name}.json`.\n\n```text\n{printed}\n```"


def with_table(text: str, table: str) -> str:
    """A text with another table in the place of the one with the same header."""
    header = "".join(f"{line}\n" for line in table.split("\n")[:2])
    before, found, rest = text.partition(header)
    if not found:
        raise SystemExit(f"{README} has no table that begins with\n{header}")
    rows = rest.split("\n")
    length = next(place for place, row in enumerate(rows) if not row.startswith("|"))
    return "\n".join([before + table, *rows[length:]])


def write_texts(root: Path) -> None:
    """Write RESULTS.md and the README's tables from the files."""
    records = read_records(root / FILES)
    (root / RESULTS).write_text(results_text(records))
    text = (root / README).read_text()
    for table in readme_tables(records):
        text = with_table(text, table)
    (root / README).write_text(text)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SECTIONS)}")
    parser.add_argument("--list", action="store_true", help="print the commands and run nothing")
    parser.add_argument("--write", action="store_true", help="run nothing, write the texts from the files")
    parser.add_argument("--quick", action="store_true", help="small sizes: checks that everything runs, keeps nothing")
    parser.add_argument("--root", type=Path, default=ROOT, help="where the files and texts are (default: here)")
    arguments = parser.parse_args(argv)
    unknown = [name for name in arguments.names if name not in SECTIONS]
    if unknown:
        parser.error(f"unknown names {unknown}; there are {list(SECTIONS)}")
    chosen = arguments.names or [name for name, section in SECTIONS.items() if not section.needs_gpu]
    if arguments.list:
        print("\n".join(f"{name}: {SECTIONS[name].command}" for name in chosen))
        return
    for name in [] if arguments.write else chosen:
        found = run(SECTIONS[name], arguments.quick)
        if not arguments.quick:
            (arguments.root / FILES).mkdir(parents=True, exist_ok=True)
            write_json(arguments.root / FILES / f"{name}.json", found)
            write_texts(arguments.root)  # after each, so that a failure later loses nothing
    if arguments.write:
        write_texts(arguments.root)


if __name__ == "__main__":
    main()
