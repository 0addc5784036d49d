"""The pages of the site: their code runs, and every room has its page."""

from __future__ import annotations

import re
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
