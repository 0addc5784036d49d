"""Pictures of effects and of what a fit leaves, for matplotlib. Functions take axes and return them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.dates import ConciseDateFormatter
from matplotlib.figure import Figure
from scipy import stats
from scipy.spatial import cKDTree

from .design import Part
from .effects import difference_table, effect_table, grid_of, is_curve, values_in_data
from .fitted import Fitted
from .terms import Factor, RandomEffect
from .terms import Tensor as TensorTerm

_LINE, _REST = "#1f5a9d", "#8a8a8a"
_NUM_CURVE, _NUM_SURFACE = 150, 1600

# Levels up to which curves have bands and names, and effects of levels have names.
_MOST_CURVES, _MOST_NAMES = 6, 25

# The distance from the data, as a share of the ranges, beyond which a surface is left blank.
_FAR = 0.1


def plot_term(
    fitted: Fitted,
    part: Part,
    ax: Axes | None = None,
    *,
    level: float = 0.95,
    simultaneous: bool = True,
    residuals: tuple[Any, np.ndarray] | None = None,
) -> Axes:
    """
    Draw the effect of a term.

    :param fitted: The fitted model.
    :param part: The term.
    :param ax: Axes to draw on; default new ones.
    :param level: The probability of the bands.
    :param simultaneous: Whether to draw a lighter band that holds the whole curve.
    :param residuals: Values of the column and the partial residuals there, to draw as points.
    """
    ax = plt.subplots(figsize=(5, 3.6), layout="constrained")[1] if ax is None else ax
    if isinstance(part.term, TensorTerm):
        _surface(fitted, part, ax)
    elif isinstance(part.term, Factor | RandomEffect):
        _levels(fitted, part, ax, level)
    elif is_curve(part):
        _curves(fitted, part, ax, level, simultaneous, residuals)
    ax.set_title(part.label, fontsize=10)
    return ax


def _curves(
    fitted: Fitted,
    part: Part,
    ax: Axes,
    level: float,
    simultaneous: bool,
    residuals: tuple[Any, np.ndarray] | None,
) -> None:
    column = part.term.arguments[0]
    by = [name for name in grid_of(fitted, part, 2).columns if name != column]
    grid = grid_of(fitted, part, _NUM_CURVE)
    ax.axhline(0.0, color=_REST, linewidth=0.8, linestyle=":")
    if residuals is not None:
        ax.plot(*residuals, ".", color=_REST, markersize=2, alpha=0.6, zorder=1, label="partial residuals")
    if not by:
        _curve(ax, column, effect_table(fitted, part, grid, level, simultaneous), _LINE, level)
        ax.legend(fontsize=7, frameon=False)
    else:
        _curves_of_levels(fitted, part, ax, grid, column, by[0], level)
    _rug(ax, values_in_data(fitted, part, column))
    if pd.api.types.is_datetime64_any_dtype(grid[column].dtype):
        ax.xaxis.set_major_formatter(ConciseDateFormatter(ax.xaxis.get_major_locator()))
    ax.set_xlabel(column)
    ax.set_ylabel(_effect_name(fitted, part))


def _curve(ax: Axes, column: str, table: pd.DataFrame, colour: Any, level: float) -> None:
    if "lower_all" in table:
        label = f"{level:.0%} of whole curves"
        ax.fill_between(
            table[column], table.lower_all, table.upper_all, color=colour, alpha=0.12, linewidth=0, label=label
        )
    label = f"{level:.0%} at each point"
    ax.fill_between(table[column], table.lower, table.upper, color=colour, alpha=0.3, linewidth=0, label=label)
    ax.plot(table[column], table["mean"], color=colour, linewidth=1.6)


def _curves_of_levels(
    fitted: Fitted, part: Part, ax: Axes, grid: pd.DataFrame, column: str, by: str, level: float
) -> None:
    table = effect_table(fitted, part, grid, level)
    levels = list(dict.fromkeys(grid[by]))
    colours = plt.get_cmap("tab10" if len(levels) <= 10 else "viridis")
    for index, value in enumerate(levels):
        own = table[table[by] == value]
        colour = colours(index if len(levels) <= 10 else index / len(levels))
        ax.plot(own[column], own["mean"], color=colour, linewidth=1.4, label=str(value))
        if len(levels) <= _MOST_CURVES:
            ax.fill_between(own[column], own.lower, own.upper, color=colour, alpha=0.15, linewidth=0)
    if len(levels) <= 10:
        ax.legend(fontsize=7, frameon=False, title=by, title_fontsize=7)


def _levels(fitted: Fitted, part: Part, ax: Axes, level: float) -> None:
    table = effect_table(fitted, part, grid_of(fitted, part, 2), level)
    column = part.term.arguments[0]
    table["label"] = ["missing" if pd.isna(value) else str(value) for value in table[column]]
    if isinstance(part.term, RandomEffect):
        table = table.sort_values("mean", ignore_index=True)
    place = np.arange(len(table))
    errors = np.stack([table["mean"] - table.lower, table.upper - table["mean"]])
    ax.axvline(0.0, color=_REST, linewidth=0.8, linestyle=":")
    ax.errorbar(table["mean"], place, xerr=errors, fmt="o", color=_LINE, markersize=4, linewidth=1.2)
    if len(table) <= _MOST_NAMES:
        ax.set_yticks(place, table.label, fontsize=7)
    else:
        ax.set_yticks([])
        ax.set_ylabel(f"{len(table)} levels of {column}, in order")
    ax.set_xlabel(_effect_name(fitted, part))


def _surface(fitted: Fitted, part: Part, ax: Axes) -> None:
    names = part.term.arguments[:2]
    grid = grid_of(fitted, part, _NUM_SURFACE)
    table = effect_table(fitted, part, grid, 0.95)
    first, second = (np.unique(table[name]) for name in names)
    shape = len(first), len(second)
    mean = np.ma.masked_where(_is_far(fitted, part, table).reshape(shape), table["mean"].to_numpy().reshape(shape))
    most = float(np.abs(mean).max()) or 1.0
    levels = np.linspace(-most, most, 17)
    filled = ax.contourf(first, second, mean.T, levels=levels, cmap="RdBu_r")
    if np.ptp(mean) > 0:
        ax.contour(first, second, mean.T, levels=levels[::2], colors="black", linewidths=0.4)
    ax.figure.colorbar(filled, ax=ax, label=_effect_name(fitted, part), format="%.2g")
    ax.plot(*(values_in_data(fitted, part, name) for name in names), ".", color="black", markersize=1.5, alpha=0.35)
    ax.set_xlabel(names[0])
    ax.set_ylabel(names[1])


def _is_far(fitted: Fitted, part: Part, table: pd.DataFrame) -> np.ndarray:
    """Which points of a surface are far from all data."""
    scaled, data = [], []
    for name in part.term.arguments[:2]:
        values = pd.Series(values_in_data(fitted, part, name)).to_numpy(dtype=np.float64)
        low, width = np.nanmin(values), np.nanmax(values) - np.nanmin(values)
        scaled.append((table[name].to_numpy(dtype=np.float64) - low) / width)
        data.append((values - low) / width)
    points = np.stack(data, 1)
    distance, _ = cKDTree(points[np.isfinite(points).all(1)]).query(np.stack(scaled, 1))
    return distance > _FAR


def _rug(ax: Axes, values: Any) -> None:
    ax.plot(
        values, np.zeros(len(values)), "|", color="black", markersize=5, alpha=0.25, transform=ax.get_xaxis_transform()
    )


def _effect_name(fitted: Fitted, part: Part) -> str:
    names = fitted.design.parameters
    if fitted.has_identity_link and part.predictor == 0:
        return "effect on the response"
    what = fitted.family.link if part.predictor == 0 and fitted.family.link != "identity" else names[part.predictor]
    return f"effect on the {what}" + ("" if what in names else " scale")


def plot_difference(
    fitted: Fitted, part: Part, by: str, pair: Sequence[Any], ax: Axes | None = None, *, level: float = 0.95
) -> Axes:
    """
    Draw the difference of the curves of two levels.

    :param fitted: The fitted model.
    :param part: The term.
    :param by: The column of the levels.
    :param pair: The two levels; the curve of the second is subtracted.
    :param ax: Axes to draw on; default new ones.
    :param level: The probability of the band.
    """
    ax = plt.subplots(figsize=(5, 3.6), layout="constrained")[1] if ax is None else ax
    column = part.term.arguments[0]
    grid = grid_of(fitted, part, _NUM_CURVE)
    values = grid[column][grid[by] == grid[by].iloc[0]]
    table = difference_table(fitted, part, {column: values.to_numpy()}, pair, by, level)
    ax.axhline(0.0, color=_REST, linewidth=0.8, linestyle=":")
    _curve(ax, column, table, _LINE, level)
    _rug(ax, values_in_data(fitted, part, column))
    ax.set_xlabel(column)
    ax.set_ylabel(f"{pair[0]} - {pair[1]}")
    ax.set_title(f"{part.label}: difference", fontsize=10)
    return ax


def overview(fitted: Fitted, level: float = 0.95) -> Figure:
    """
    Draw all terms, one panel each.

    :param fitted: The fitted model.
    :param level: The probability of the bands.
    """
    parts = [part for part in fitted.parts if part.components]
    figure, axes = panels(max(len(parts), 1))
    for part, ax in zip(parts, axes, strict=False):
        plot_term(fitted, part, ax, level=level)
    return figure


def panels(num: int) -> tuple[Figure, list[Axes]]:
    """
    A figure with panels.

    :param num: How many.
    """
    columns = min(3, num)
    rows = math.ceil(num / columns)
    figure, axes = plt.subplots(rows, columns, figsize=(4.2 * columns, 3.2 * rows), layout="constrained", squeeze=False)
    for ax in axes.flat[num:]:
        ax.remove()
    return figure, list(axes.flat[:num])


def plot_residuals(fitted: Fitted, scores: np.ndarray, predictors: np.ndarray, columns: pd.DataFrame) -> Figure:
    """
    Draw residuals that are standard normal if the model holds: against normal quantiles, their histogram, against
    the first predictor, and against each column.

    :param fitted: The fitted model.
    :param scores: The residuals ``(n,)``.
    :param predictors: Means of the first predictor, on the scale of its link, ``(n,)``.
    :param columns: The columns.
    """
    figure, axes = panels(3 + columns.shape[1])
    _quantiles_of(axes[0], scores)
    axes[1].hist(stats.norm.cdf(scores), bins=20, range=(0, 1), density=True, color=_LINE, alpha=0.6)
    axes[1].axhline(1.0, color=_REST, linestyle=":")
    axes[1].set_xlabel("probability integral transform")
    link = fitted.family.link
    name = (
        "predicted mean"
        if fitted.has_identity_link
        else "predictor" + (f", {link} scale" if link != "identity" else "")
    )
    _against(axes[2], predictors, scores, name)
    for ax, name in zip(axes[3:], columns, strict=True):
        _against(ax, columns[name], scores, str(name))
    return figure


def _quantiles_of(ax: Axes, scores: np.ndarray) -> None:
    num = len(scores)
    ranks = np.arange(1, num + 1)
    expected = stats.norm.ppf((ranks - 0.5) / num)
    low, high = (stats.norm.ppf(stats.beta.ppf(p, ranks, num + 1 - ranks)) for p in (0.025, 0.975))
    ax.fill_between(expected, low, high, color=_REST, alpha=0.25, linewidth=0, label="95% if the model holds")
    ax.plot(expected, np.sort(scores), ".", color=_LINE, markersize=3)
    ax.axline((0, 0), slope=1, color=_REST, linewidth=0.8)
    ax.set_xlabel("normal quantile")
    ax.set_ylabel("quantile residual")
    ax.legend(fontsize=7, frameon=False)


def _against(ax: Axes, values: Any, scores: np.ndarray, name: str) -> None:
    values = pd.Series(values)
    ax.axhline(0.0, color=_REST, linewidth=0.8, linestyle=":")
    if pd.api.types.is_numeric_dtype(values.dtype) and not pd.api.types.is_bool_dtype(values.dtype):
        ax.plot(values, scores, ".", color=_LINE, markersize=2, alpha=0.4)
        _running_mean(ax, values.to_numpy(dtype=np.float64), scores)
    elif pd.api.types.is_datetime64_any_dtype(values.dtype):
        ax.plot(values, scores, ".", color=_LINE, markersize=2, alpha=0.4)
    else:
        levels = values.astype(str)
        names = sorted(levels.unique())[:_MOST_NAMES]
        ax.boxplot([scores[levels == each] for each in names], tick_labels=names, showfliers=False)
        ax.tick_params(axis="x", labelrotation=45, labelsize=7)
    ax.set_xlabel(name)
    ax.set_ylabel("quantile residual")


def _running_mean(ax: Axes, values: np.ndarray, scores: np.ndarray, num_bins: int = 12) -> None:
    """Means over bins of equally many rows, with two standard errors."""
    order = np.argsort(values)
    order = order[np.isfinite(values[order])]
    bins = [part for part in np.array_split(order, num_bins) if len(part) > 1]
    centres = [values[part].mean() for part in bins]
    means = [scores[part].mean() for part in bins]
    errors = [2 * scores[part].std() / math.sqrt(len(part)) for part in bins]
    ax.errorbar(centres, means, yerr=errors, fmt="o-", color="#b3261e", markersize=3, linewidth=1)
