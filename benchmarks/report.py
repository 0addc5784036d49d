"""
Runs benchmarks and keeps what they print in RESULTS.md, one section a benchmark, so that every number there has the
command, the date, the versions and the hardware with it.

    python benchmarks/report.py [NAME ...] [--list] [--quick]

Without names it runs everything that needs no GPU. A section is replaced when its benchmark is run again; the others
stay.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
RESULTS = HERE / "RESULTS.md"

HEADER = """# Results

Printed by the scripts in this folder and put here by `python benchmarks/report.py`. Times are of the machine that each
section names, often a busy one: compare ratios, which come from one process in which all candidates take turns.
"""

NOT_RUN = "Has not been run yet: the code that it measures is tested on a CPU only."


class Section(NamedTuple):
    """
    :ivar title: heading.
    :ivar command: what is run, from the repository's root.
    :ivar needs_gpu: whether it is left out by default.
    """

    title: str
    command: str
    needs_gpu: bool = False


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
    "gam_prediction": Section("Predictions of data frames", "python benchmarks/gam_prediction.py"),
    "vs_bam": Section("Against mgcv's bam", "python benchmarks/vs_bam.py"),
    "small_data": Section(
        "Small tables, against mgcv and pyGAM",
        "python benchmarks/small_data.py --folds 0 --figure docs/small_data.png",
    ),
    "small_scores": Section(
        "Held-out scores of small tables", "python benchmarks/small_data.py --sets autompg concrete --repeats 1"
    ),
    "real_data": Section("Data frames and defaults, against peers", "python benchmarks/real_data.py"),
    "starts": Section(
        "Small tables, from random hyperparameters",
        "python benchmarks/small_data.py --starts 10 --sets autompg mcycle breast pima",
    ),
    "gpu": Section("On a GPU", "bash benchmarks/gpu_report.sh", needs_gpu=True),
}


def run(section: Section, extra: Sequence[str]) -> str:
    """What the command prints; its progress is shown as well."""
    words = [sys.executable if word == "python" else word for word in shlex.split(section.command)]
    lines = []
    with subprocess.Popen([*words, *extra], cwd=HERE.parent, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    if process.returncode != 0:
        raise SystemExit(f"{section.command} failed with exit status {process.returncode}")
    return "".join(lines)


def read_sections(path: Path) -> dict[str, str]:
    """Texts by title of a file written before."""
    if not path.exists():
        return {}
    parts = path.read_text().split("\n## ")[1:]
    return {title: text.strip() for title, _, text in (part.partition("\n") for part in parts)}


def write_sections(path: Path, texts: dict[str, str]) -> None:
    blocks = [
        f"## {section.title}\n\n{texts.get(section.title, f'`{section.command}`: {NOT_RUN}')}\n"
        for section in SECTIONS.values()
    ]
    path.write_text("\n".join([HEADER, *blocks]))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SECTIONS)}")
    parser.add_argument("--list", action="store_true", help="print the commands and run nothing")
    parser.add_argument("--quick", action="store_true", help="small sizes: checks that everything runs")
    parser.add_argument("--results", type=Path, default=RESULTS, help="file to write")
    arguments = parser.parse_args(argv)
    unknown = [name for name in arguments.names if name not in SECTIONS]
    if unknown:
        parser.error(f"unknown names {unknown}; there are {list(SECTIONS)}")
    chosen = arguments.names or [name for name, section in SECTIONS.items() if not section.needs_gpu]
    if arguments.list:
        print("\n".join(f"{name}: {SECTIONS[name].command}" for name in chosen))
        return
    texts = read_sections(arguments.results)
    for name in chosen:
        section, extra = SECTIONS[name], ["--quick"] if arguments.quick else []
        printed = run(section, extra)
        texts[section.title] = f"`{section.command}`\n\n```text\n{printed.strip()}\n```"
        write_sections(arguments.results, texts)  # after each, so that a failure later loses nothing
    print(f"wrote {arguments.results}")


if __name__ == "__main__":
    main()
