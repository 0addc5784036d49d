"""The pages of the site: their code runs, and every room has its page."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

import gpytorch_gam

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(DOCS.rglob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_code_is_run_when_the_site_is_built(page: Path) -> None:
    """Blocks of Python are cells, and pages with cells say so at their top."""
    text = page.read_text()
    assert "```python" not in text
    assert ("```{code-cell}" in text) == text.startswith("---\nfile_format: mystnb\n")


def test_every_room_has_a_page() -> None:
    rooms = {name for name in gpytorch_gam.__all__ if name.islower() and name not in ("fit", "polish")}
    assert {page.stem for page in (DOCS / "reference").glob("*.md")} == rooms


def test_every_example_is_in_the_gallery() -> None:
    examples = {path.stem for path in (DOCS.parent / "examples").glob("[!_]*.py")}
    assert {page.stem for page in (DOCS / "gallery").glob("*.md")} == examples


@pytest.mark.parametrize("page", sorted((DOCS / "theory").glob("*.md")), ids=lambda page: page.stem)
def test_functions_that_compute_formulas_exist(page: Path) -> None:
    """Files are named as `room/file.py`, or with a function or class as `room/file.py: name`."""
    named = re.findall(r"`([a-z_]+/[a-z_/]+\.py)(?:: ([A-Za-z_.]+))?`", page.read_text())
    assert named
    for path, name in named:
        source = (DOCS.parent / "gpytorch_gam" / path).read_text()
        for part in name.split(".") if name else []:
            assert re.search(rf"\b(def|class) {part}\b", source), f"{path}: {name}"


# Decimals of the prose that nothing measures: settings, limits that tests check, and how the data of a page were made.
GIVEN = {
    "guide/effects.md": {"1.96", ".314", ".442", ".244", ".558", ".001"},
    "guide/likelihoods.md": {".95"},
    "guide/training.md": {"0.05", "0.1", "0.01", "0.03"},
    "installation.md": {"3.10", "2.8", "3.4"},
    "theory/anova_kernels.md": {".01"},
    "theory/diagnostics.md": {"6.5"},
    "theory/natural_gradients.md": {".3"},
    "theory/quadratures.md": {"0.4", ".7"},
    "theory/families.md": {"4.1"},
}


def prose(page: Path) -> str:
    """The text of a page without code and formulas."""
    text = re.sub(r"^---\n.*?\n---\n", "", page.read_text(), flags=re.DOTALL)
    for hidden in (r"```.*?```", r"\$\$.*?\$\$", r"\$[^$]*\$", r"`[^`]*`", r"\]\([^)]*\)", r"arXiv:[\d.]+"):
        text = re.sub(hidden, " ", text, flags=re.DOTALL)
    return text


@pytest.fixture(scope="module")
def site_numbers() -> dict[str, str]:
    """The names that pages may use."""
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DOCS.parent / "benchmarks"))
        report, numbers = importlib.import_module("report"), importlib.import_module("site_numbers")
        found = numbers.site_numbers(report.read_records(DOCS.parent / report.FILES))
    for name in set(sys.modules) - before:
        if "benchmarks" in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
    return found


def test_pages_name_numbers_of_files(site_numbers: dict[str, str]) -> None:
    named = {name for page in PAGES for name in re.findall(r"{{ (\w+) }}", page.read_text())}
    assert named and not named - set(site_numbers)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_measured_numbers_are_inserted(page: Path) -> None:
    """Decimals of the prose come from files of results, but for those that nothing measures."""
    written = set(re.findall(r"(?<![\w.])\d*\.\d+(?![\w.])", prose(page)))
    assert written <= GIVEN.get(str(page.relative_to(DOCS)), set())
