"""Reports keep what benchmarks find in files, and the texts say what the files hold."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MODULES = (
    "report",
    "site_numbers",
    "real_data",
    "interactions",
    "_common",
    "_real_peers",
    "_small_peers",
    "_small_sets",
    "vs_bam",
    "gaussian_closed_form",
)

HEADER = "|  | seconds | RMSE of the predictor | coverage of 95% bands |\n| --- | ---: | ---: | ---: |"

SCRIPT = """
import json, sys
from pathlib import Path
if "--json" in sys.argv:
    Path(sys.argv[-1]).write_text(json.dumps({"found": 3}))
elif "--quick" not in sys.argv:
    (Path(sys.argv[-1]) / "one.json").write_text("[1]")
    (Path(sys.argv[-1]) / "two.json").write_text("[2]")
print("first")
print("second")
"""


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield importlib.import_module("report")
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.fixture
def sections(report: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Two benchmarks, and a README with the table of another."""
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "README.md").write_text(f"before\n\n{HEADER}\n| old | 1 | 2 | 3 |\n\nafter\n")
    command = f"python {tmp_path / 'script.py'}"
    sections = {
        "one": report.Section("First", command),
        "two": report.Section("Second", command, needs_gpu=True, takes_folder=True),
    }
    monkeypatch.setattr(report, "SECTIONS", sections)
    return sections


def test_numbers_are_kept_with_what_they_were_found_by(report: Any, sections: dict[str, Any], tmp_path: Path) -> None:
    report.main(["--root", str(tmp_path)])
    found = json.loads((tmp_path / "benchmarks/results/one.json").read_text())
    assert found["numbers"] == {"found": 3} and found["printed"] == ["first", "second"]
    assert found["command"] == sections["one"].command and found["seconds"] >= 0
    assert {"python", "torch", "gpytorch"} <= set(found["versions"]) and "cores" in found["hardware"]
    text = (tmp_path / "benchmarks/RESULTS.md").read_text()
    assert "first\nsecond" in text and found["date"] in text and "tested on a CPU only" in text
    assert "old" in (tmp_path / "README.md").read_text()  # of a benchmark that has not been run
    report.main(["two", "--root", str(tmp_path)])
    found = json.loads((tmp_path / "benchmarks/results/two.json").read_text())
    assert found["numbers"] == {"one": [1], "two": [2]}
    assert (tmp_path / "benchmarks/RESULTS.md").read_text().count("first\nsecond") == 2


def test_short_runs_keep_nothing_and_failures_end(report: Any, sections: dict[str, Any], tmp_path: Path) -> None:
    report.main(["one", "--quick", "--root", str(tmp_path)])
    assert not (tmp_path / "benchmarks/results").exists()
    with pytest.raises(SystemExit):
        report.main(["three"])
    sections["one"] = report.Section("First", "python -c 1/0")
    with pytest.raises(SystemExit, match="failed with exit status 1"):
        report.main(["one", "--root", str(tmp_path)])


def test_the_readme_gets_a_new_table(report: Any, sections: dict[str, Any], tmp_path: Path) -> None:
    fits = {"seconds": 1.26, "rmse": 0.01234, "coverage": 0.9456}
    summary = dict.fromkeys(["fit by bins, 2 thread(s)", "bam, default bases"], fits)
    results = [{"response": response, "num_rows": 10**6, "summary": summary} for response in ("gaussian", "labels")]
    record = {
        "command": "x", "date": "d", "commit": "c", "seconds": 2.0, "hardware": "h", "versions": {},
        "numbers": {"results": results}, "printed": [],
    }  # fmt: skip
    (tmp_path / "benchmarks/results").mkdir()
    (tmp_path / "benchmarks/results/vs_bam.json").write_text(json.dumps(record))
    report.main(["--write", "--root", str(tmp_path)])
    lines = (tmp_path / "README.md").read_text().splitlines()
    assert lines[4] == "| Gaussian: ours, by bins | 1.3 | .0123 | .946 |"
    assert (lines[0], lines[-1], len(lines)) == ("before", "after", 10)


def test_the_texts_say_what_the_files_hold(report: Any) -> None:
    """After `python benchmarks/report.py --write`, which this is the test of."""
    records = report.read_records(ROOT / report.FILES)
    assert (ROOT / report.RESULTS).read_text() == report.results_text(records)
    readme = (ROOT / report.README).read_text()
    tables = list(report.readme_tables(records))
    assert len(tables) == 2
    for table in tables:
        assert readme == report.with_table(readme, table)
