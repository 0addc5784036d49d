"""What the README shows runs, and what it refers to exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def run(code: str) -> dict:
    torch.manual_seed(0)
    namespace: dict = {}
    exec(compile(code, "README.md", "exec"), namespace)
    return namespace


def numbers(table: str) -> dict[str, list[float]]:
    """The rows of a printed data frame."""
    rows = (line.split() for line in table.splitlines() if re.search(r"\d$", line))
    return {label: [float(word) for word in words] for label, *words in rows}


@pytest.mark.filterwarnings("ignore::DeprecationWarning:vega_datasets")
def test_data_frame_becomes_effects(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace = run(BLOCKS[0])
    labels = list(namespace["gam"].terms_)
    printed, shown = numbers(capsys.readouterr().out), numbers(re.findall(r"```text\n(.*?)```", README, re.DOTALL)[0])
    assert list(printed) == list(shown) == labels
    for label in labels:  # to what hyperparameters differ between machines
        assert printed[label] == pytest.approx(shown[label], rel=0.02, abs=0.003)
    assert (tmp_path / "cars.png").exists()
    assert list(namespace["parts"].columns.get_level_values(0).unique()) == labels


def test_second_python_block_fits_its_data(capsys: pytest.CaptureFixture[str]) -> None:
    namespace = run(BLOCKS[1])
    assert "('x0', 'x1', 'x2', 'constant')" in capsys.readouterr().out
    with torch.no_grad():
        error = namespace["model"](namespace["x"]).mean - (
            torch.sin(6 * namespace["x"][:, 0]) + namespace["x"][:, 1] ** 2
        )
    assert error.square().mean().sqrt() < 0.1  # half of the noise: it was fitted


@pytest.mark.parametrize("code", BLOCKS[2:], ids=[f"block {index}" for index in range(2, len(BLOCKS))])
@pytest.mark.filterwarnings("ignore::gpytorch_gam.warnings.ConvergenceWarning")
def test_other_python_blocks_run(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With few epochs, and a search for hyperparameters that is broken off."""
    for limit in ("_MAX_STEPS", "_MAX_PASSES", "_MAX_ROUNDS"):
        monkeypatch.setattr(f"gpytorch_gam.training._profile_bound.{limit}", 1)
    run(re.sub(r"num_epochs=\d+", "num_epochs=2", code))


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
