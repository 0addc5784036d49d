"""What the example scripts share: their command line, the look of their figures, and their JSON."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # files only: no display needed
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

BLUE, ORANGE, GREY, INK = "#2166ac", "#d95f02", "#8a8a8a", "#222222"


def argument_parser(docstring: str) -> argparse.ArgumentParser:
    """The options that every example has; add a script's own to the parser."""
    parser = argparse.ArgumentParser(description=docstring, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the figure (default: ./out)")
    parser.add_argument("--json", type=Path, help="also write every printed number to this file")
    parser.add_argument("--quick", action="store_true", help="a few steps only, to see that it runs; numbers are poor")
    return parser


def set_style() -> None:
    """Figures: thin lines, no boxes, small readable type."""
    plt.rcParams.update(
        {
            "figure.constrained_layout.use": True,
            "savefig.dpi": 160,
            "font.size": 9,
            "axes.titlesize": 10,
            "axes.titleweight": "bold",
            "axes.titlelocation": "left",
            "axes.labelcolor": INK,
            "axes.edgecolor": GREY,
            "axes.linewidth": 0.8,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "xtick.color": GREY,
            "ytick.color": GREY,
            "xtick.labelcolor": INK,
            "ytick.labelcolor": INK,
            "legend.frameon": False,
        }
    )


def draw_band(axes: Axes, x: Any, mean: Any, half_width: Any, label: str | None = None, color: str = BLUE) -> None:
    """A curve with its band."""
    axes.fill_between(x, mean - half_width, mean + half_width, color=color, alpha=0.25, linewidth=0)
    axes.plot(x, mean, color=color, linewidth=1.8, label=label)


def draw_zero_line(axes: Axes) -> None:
    """No effect."""
    axes.axhline(0.0, color=GREY, linewidth=0.8, zorder=0)


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure, making its folder, and say where."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    plt.close(figure)
    print(f"\nfigure: {path}")


def write_json(numbers: dict[str, Any], path: Path | None) -> None:
    """Write the numbers of a script, floats rounded to six significant digits; do nothing without a path."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(_rounded(numbers), indent=2) + "\n")
    print(f"numbers: {path}")


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(entry) for entry in value]
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.6g}")
    return value
