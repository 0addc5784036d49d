"""Pictures of effects and of what a fit leaves, for matplotlib. Functions take axes and return them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, MultipleLocator
from scipy import stats
from scipy.spatial import cKDTree

from .effects import (
    CLASS,
    EffectGrid,
    columns_of,
    difference_table,
    grid_of,
    is_curve,
    name_in_tables,
    period_in_units,
    values_in_data,
)
from .fitted import Fitted
from .parts import Part
from .residuals import PartialResiduals
from .response_scale import class_table, has_several_classes, name_on_scale, scaled_effect_tables
from .terms import Factor, RandomEffect
from .terms import Tensor as TensorTerm

_LINE, _REST = "#1f5a9d", "#8a8a8a"
# Numbers of values of a smooth curve, of one with very many inducing points, and of a surface.
_NUM_CURVE, _MOST_CURVE, _NUM_SURFACE = 150, 600, 1600

# Intervals between the ticks of a column, at most, so that numbers of six digits do not touch, and round steps.
_NUM_TICKS, _STEPS = 5, (1, 2, 2.5, 5, 10)

# The most ticks of an axis of dates, whose labels are short.
_NUM_DATES = 8

# Sizes of the text of legends and of the names of levels, beside axes of matplotlib's 10.
_SMALL = 8

# Levels up to which curves have bands and names, residuals boxes, and effects of levels names.
_MOST_CURVES, _MOST_COLOURS, _MOST_BOXES, _MOST_NAMES = 6, 10, 12, 25

# Levels whose residuals are far from zero that are named.
_MOST_FAR = 4

# Room above and below levels, as a share of their number, so that the frame cuts no symbol.
_ROOM = 0.02

# Characters of the name of a level.
_LONGEST_NAME = 22

# The distance from the data, as a share of the ranges, beyond which a surface is left blank.
_FAR = 0.1


@dataclass(frozen=True)
class Look:
    """
    How effects are shown.

    :ivar level: The probability of the bands.
    :ivar simultaneous: Whether curves get a lighter band that holds the whole curve.
    :ivar scale: ``"link"``, effects; or ``"response"``, the mean of the response with all other effects zero.
    :ivar response: What the response is called.
    :ivar classes: The names of classes.
    """

    level: float = 0.95
    simultaneous: bool = True
    scale: str = "link"
    response: str = "the response"
    classes: tuple[Any, ...] = ()

    def shows_classes_of(self, fitted: Fitted) -> bool:
        """
        Whether probabilities of several classes are shown.

        :param fitted: The fitted model.
        """
        return self.scale == "response" and has_several_classes(fitted)


def plot_term(
    fitted: Fitted,
    part: Part,
    ax: Axes | None = None,
    look: Look | None = None,
    residuals: PartialResiduals | None = None,
) -> Axes:
    """
    Draw the effect of a term.

    :param fitted: The fitted model.
    :param part: The term.
    :param ax: Axes to draw on; default new ones.
    :param look: How.
    :param residuals: Partial residuals, to draw as points.
    :raises ValueError: If it is a surface over a column that has the same value in all rows.
    """
    look = Look() if look is None else look
    ax = _new_axes() if ax is None else ax
    (shown,) = _shown_effects(fitted, [part], look)
    _draw(fitted, shown, ax, look, residuals)
    if is_curve(part):
        _legend(ax)
    return ax


class _Shown(NamedTuple):
    """The effect of a term on a grid of its columns, as it is drawn."""

    part: Part
    grid: pd.DataFrame
    table: pd.DataFrame


def _shown_effects(fitted: Fitted, parts: Sequence[Part], look: Look) -> list[_Shown]:
    """What is drawn of terms: probabilities of classes of each, or the effects of all at once."""
    grids = [_grid(fitted, part, look) for part in parts]
    if look.shows_classes_of(fitted):
        tables = [_table_of_classes(fitted, grid, look) for grid in grids]
    else:
        tables = scaled_effect_tables(fitted, grids, look.level, look.scale)
    return [_Shown(grid.part, grid.values, table) for grid, table in zip(grids, tables, strict=True)]


def _grid(fitted: Fitted, part: Part, look: Look) -> EffectGrid:
    """Where the effect of a term is drawn, and whether with a band of the whole curve: if it is a single one."""
    if isinstance(part.term, TensorTerm):
        return EffectGrid(part, grid_of(fitted, part, _NUM_SURFACE))
    if isinstance(part.term, Factor | RandomEffect):
        return EffectGrid(part, grid_of(fitted, part, 2))
    grid = grid_of(fitted, part, _num_values(fitted, part))
    return EffectGrid(part, grid, look.simultaneous and len(grid.columns) == 1)


def _table_of_classes(fitted: Fitted, grid: EffectGrid, look: Look) -> pd.DataFrame:
    """Probabilities of classes, of a single curve or of levels."""
    if isinstance(grid.part.term, TensorTerm) or len(grid.values.columns) > 1:
        scaled_effect_tables(fitted, [grid], look.level, look.scale)  # says why there are none
    return class_table(fitted, grid.part, grid.values, look.level, look.classes)


def _new_axes() -> Axes:
    return plt.subplots(figsize=(5, 3.6), layout="constrained")[1]


def _draw(fitted: Fitted, shown: _Shown, ax: Axes, look: Look, residuals: PartialResiduals | None = None) -> None:
    """Draw a term, without a legend of its bands."""
    part = shown.part
    if isinstance(part.term, TensorTerm):
        _surface(fitted, shown, ax, look)
    elif isinstance(part.term, Factor | RandomEffect):
        _levels(fitted, shown, ax, look)
    elif is_curve(part):
        _curves(fitted, shown, ax, look, residuals)
    ax.set_title(part.term.label if look.shows_classes_of(fitted) else part.label, fontsize=10)


def _legend(ax: Axes) -> None:
    if ax.get_legend() is None and ax.get_legend_handles_labels()[0]:
        ax.legend(fontsize=_SMALL, frameon=False)


def _baseline(ax: Axes, look: Look, draw: Any) -> None:
    """A line where there is no effect."""
    if look.scale == "link":
        draw(0.0, color=_REST, linewidth=0.8, linestyle=":")


def _curves(fitted: Fitted, shown: _Shown, ax: Axes, look: Look, residuals: PartialResiduals | None) -> None:
    part, grid, table = shown
    column = part.term.arguments[0]
    name, by = name_in_tables(column), [each for each in grid.columns if each != column]
    _baseline(ax, look, ax.axhline)
    if residuals is not None:
        style: Mapping[str, Any] = {"color": _REST, "markersize": 2, "alpha": 0.6, "zorder": 1}
        ax.plot(residuals.values, residuals.residuals, ".", label=residuals.label, **style)
    if CLASS in table.columns:
        _several_curves(ax, table, (name, CLASS), look)
    elif by:
        _several_curves(ax, table, (name, name_in_tables(by[0])), look)
    else:
        _curve(ax, name, table, look.level)
    _rug(ax, values_in_data(fitted, part, column))
    _ticks(ax.xaxis, grid[column])
    _period(ax, period_in_units(part))
    ax.set_xlabel(column)
    ax.set_ylabel(_effect_name(fitted, part, look))


def _num_values(fitted: Fitted, part: Part) -> int:
    """The number of values at which a curve is drawn: at least two for each of its inducing points."""
    groups = [group for group in fitted.model.predictor.groups if not set(part.components).isdisjoint(group.names)]
    return min(max([_NUM_CURVE, *(2 * group.num_inducing for group in groups)]), _MOST_CURVE)


def _period(ax: Axes, period: float | None) -> None:
    """Ticks at sixths of a period, such as hours, if these are whole."""
    if period is not None and period % 6 == 0:
        ax.xaxis.set_major_locator(MultipleLocator(period / 6))


def _ticks(axis: Axis, values: pd.Series) -> None:
    """Ticks of a horizontal axis whose labels do not touch."""
    if not pd.api.types.is_datetime64_any_dtype(values.dtype):
        axis.set_major_locator(MaxNLocator(_NUM_TICKS, steps=_STEPS))
    _dates(axis, values)


def _dates(axis: Axis, values: pd.Series) -> None:
    """Short labels of dates that do not touch, by the clock of their time zone."""
    if pd.api.types.is_datetime64_any_dtype(values.dtype):
        zone = getattr(values.dtype, "tz", None)
        axis.set_major_locator(AutoDateLocator(tz=zone, minticks=3, maxticks=_NUM_DATES))
        axis.set_major_formatter(ConciseDateFormatter(axis.get_major_locator(), tz=zone))


def _numbers(values: Any) -> np.ndarray:
    """Numbers as they are, and dates in days, whatever the unit that pandas holds them in."""
    values = pd.Series(values)
    is_date = pd.api.types.is_datetime64_any_dtype(values.dtype)
    return np.asarray(date2num(values) if is_date else values, dtype=np.float64)


def _effect_name(fitted: Fitted, part: Part, look: Look) -> str:
    name = name_on_scale(fitted, part, look.response, look.scale)
    by = part.term.multiplier
    return f"{name} for each unit of {by}" if by is not None and (by, "levels") not in fitted.design.encodings else name


def _curve(ax: Axes, column: str, table: pd.DataFrame, level: float) -> None:
    if "lower_all" in table:
        ax.fill_between(
            table[column], table.lower_all, table.upper_all, label=f"{level:.0%} band of the whole curve", **_WIDE
        )
    ax.fill_between(table[column], table.lower, table.upper, label=f"{level:.0%} band at each point", **_NARROW)
    ax.plot(table[column], table["mean"], color=_LINE, linewidth=1.6)


# The band of whole curves is lighter, and has an edge that sets it apart in grey, too.
_WIDE: Mapping[str, Any] = {"facecolor": "#dbe6f4", "edgecolor": "#7fa3cf", "linewidth": 0.6, "linestyle": "--"}
_NARROW: Mapping[str, Any] = {"facecolor": "#9dbbe0", "linewidth": 0}


def _several_curves(ax: Axes, table: pd.DataFrame, columns: tuple[str, str], look: Look) -> None:
    """The curves of levels, or of classes, each in its colour."""
    column, by = columns
    levels = list(dict.fromkeys(table[by]))
    is_named = len(levels) <= _MOST_COLOURS
    colours = plt.get_cmap("tab10" if is_named else "viridis")
    for index, value in enumerate(levels):
        own = table[table[by] == value]
        colour = colours(index if is_named else index / len(levels))
        ax.plot(own[column], own["mean"], color=colour, linewidth=1.4, label=_short(value) if is_named else None)
        if len(levels) <= _MOST_CURVES:
            ax.fill_between(own[column], own.lower, own.upper, color=colour, alpha=0.15, linewidth=0)
    if is_named:
        title = f"{by}, {look.level:.0%} bands at each point" if len(levels) <= _MOST_CURVES else by
        ax.legend(fontsize=_SMALL, frameon=False, title=title, title_fontsize=_SMALL, alignment="left")
    else:
        behind = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.0}
        note = f"{len(levels)} levels of {by}"
        ax.text(0.02, 0.97, note, transform=ax.transAxes, va="top", fontsize=_SMALL, bbox=behind)


def _short(value: Any) -> str:
    """The name of a level; of a long one beginning and end."""
    name, half = "missing" if pd.isna(value) else str(value), _LONGEST_NAME // 2
    return name if len(name) <= _LONGEST_NAME else f"{name[:half]}...{name[-half + 3 :]}"


def _levels(fitted: Fitted, shown: _Shown, ax: Axes, look: Look) -> None:
    """Levels from top to bottom in their order; those of random effects by their size."""
    if look.shows_classes_of(fitted):
        _classes_of_levels(fitted, shown, ax, look)
        return
    part, _, table = shown
    column = part.term.arguments[0]
    table = table.assign(label=table[name_in_tables(column)].map(_short))
    if isinstance(part.term, RandomEffect):
        table = table.sort_values("mean", ascending=False, ignore_index=True)
    place = np.arange(len(table))
    errors = np.stack([table["mean"] - table.lower, table.upper - table["mean"]])
    _baseline(ax, look, ax.axvline)
    is_named = len(table) <= _MOST_NAMES
    ax.errorbar(table["mean"], place, xerr=errors, fmt="o", color=_LINE, markersize=4 if is_named else 2, linewidth=1.2)
    _room_for(ax, len(table))
    if is_named:
        ax.set_yticks(place, table.label, fontsize=_SMALL)
    else:
        ax.set_yticks([])
        ax.set_ylabel(f"{len(table)} levels of {column}, in order")
    ax.set_xlabel(_effect_name(fitted, part, look))


def _room_for(ax: Axes, num: int) -> None:
    """Let an axis show this many levels from top to bottom."""
    room = 0.5 + _ROOM * num
    ax.set_ylim(num - 1 + room, -room)


def _classes_of_levels(fitted: Fitted, shown: _Shown, ax: Axes, look: Look) -> None:
    """Probabilities of classes, in their colours, for levels from top to bottom in their order."""
    part, grid, table = shown
    column = part.term.arguments[0]
    colours = plt.get_cmap("tab10")
    for index, name in enumerate(look.classes):
        own = table[table[CLASS] == name]
        place = np.arange(len(own)) + 0.5 * ((index + 0.5) / len(look.classes) - 0.5)
        errors = np.stack([own["mean"] - own.lower, own.upper - own["mean"]])
        ax.errorbar(
            own["mean"], place, xerr=errors, fmt="o", color=colours(index % 10), markersize=4, label=_short(name)
        )
    _room_for(ax, len(grid))
    ax.set_yticks(np.arange(len(grid)), grid[column].map(_short), fontsize=_SMALL)
    ax.set_xlabel(_effect_name(fitted, part, look))
    ax.legend(fontsize=_SMALL, frameon=False, title=CLASS, title_fontsize=_SMALL, alignment="left")


def _surface(fitted: Fitted, shown: _Shown, ax: Axes, look: Look) -> None:
    part, grid, table = shown
    names = part.term.arguments[:2]
    first, second = (grid[name].unique() for name in names)
    shape = len(first), len(second)
    for name, number in zip(names, shape, strict=True):
        if number == 1:
            raise ValueError(
                f"column {name!r} has the same value in all rows, so that {part.label} has no surface to draw: it is "
                "zero"
            )
    mean = np.ma.masked_where(_is_far(fitted, part, grid).reshape(shape), table["mean"].to_numpy().reshape(shape))
    levels, colours = _contours(mean, look)
    filled = ax.contourf(first, second, mean.T, levels=levels, cmap=colours)
    if np.ptp(mean) > 0:
        lines = ax.contour(first, second, mean.T, levels=levels[::2], colors="black", linewidths=0.4)
        ax.clabel(lines, fontsize=_SMALL - 1, fmt="%.3g")
    bar = ax.figure.colorbar(filled, ax=ax, label=_effect_name(fitted, part, look), format="%.3g", ticks=levels[::2])
    bar.ax.tick_params(labelsize=_SMALL)
    ax.plot(*(values_in_data(fitted, part, name) for name in names), ".", color="black", markersize=1.5, alpha=0.35)
    ax.set_xlabel(names[0])
    ax.set_ylabel(names[1])
    _ticks(ax.xaxis, grid[names[0]])
    _dates(ax.yaxis, grid[names[1]])


def _contours(mean: np.ma.MaskedArray, look: Look) -> tuple[np.ndarray, str]:
    """Round levels and a map of colours; those of effects have white at zero."""
    if look.scale == "response":
        return np.asarray(MaxNLocator(14).tick_values(float(mean.min()), float(mean.max()) + 1e-12)), "viridis"
    most = float(np.abs(mean).max()) or 1.0
    return np.asarray(MaxNLocator(14, symmetric=True).tick_values(-most, most)), "RdBu_r"


def _is_far(fitted: Fitted, part: Part, table: pd.DataFrame) -> np.ndarray:
    """Which points of a surface are far from all data."""
    scaled, data = [], []
    for name in part.term.arguments[:2]:
        values = _numbers(values_in_data(fitted, part, name))
        low, width = np.nanmin(values), np.nanmax(values) - np.nanmin(values)
        scaled.append((_numbers(table[name]) - low) / width)
        data.append((values - low) / width)
    points = np.stack(data, 1)
    distance, _ = cKDTree(points[np.isfinite(points).all(1)]).query(np.stack(scaled, 1))
    return distance > _FAR


def _rug(ax: Axes, values: Any) -> None:
    """A mark for each value in the data."""
    values = pd.unique(pd.Series(values).dropna())
    style: dict[str, Any] = {"color": "black", "markersize": 5, "markeredgewidth": 0.6}
    ax.plot(values, np.zeros(len(values)), "|", alpha=0.4, transform=ax.get_xaxis_transform(), **style)


def plot_difference(
    fitted: Fitted, part: Part, pair: tuple[Any, Any], ax: Axes | None = None, look: Look | None = None
) -> Axes:
    """
    Draw the difference of the curves of two levels, with bands as those of curves.

    :param fitted: The fitted model.
    :param part: The term, of curves by levels.
    :param pair: The two levels; the curve of the second is subtracted.
    :param ax: Axes to draw on; default new ones.
    :param look: How; differences are on the scale of the predictor.
    """
    look = Look() if look is None else look
    ax = _new_axes() if ax is None else ax
    column, by = columns_of(fitted, part)
    num = _num_values(fitted, part)
    table = difference_table(fitted, part, ({by: pair[0]}, {by: pair[1]}), num, look.level, look.simultaneous)
    _baseline(ax, look, ax.axhline)
    _curve(ax, name_in_tables(column), table, look.level)
    _rug(ax, values_in_data(fitted, part, column))
    _dates(ax.xaxis, table[name_in_tables(column)])
    ax.set_xlabel(column)
    ax.set_ylabel(name_on_scale(fitted, part, look.response, "link").replace("effect", "difference of effects"))
    ax.set_title(f"{part.label}: {_short(pair[0])} - {_short(pair[1])}", fontsize=10)
    _legend(ax)
    return ax


def overview(fitted: Fitted, terms: Sequence[Part], look: Look | None = None, sharey: bool = True) -> Figure:
    """
    Draw terms, one panel each.

    :param fitted: The fitted model.
    :param terms: The terms; those without an effect get no panel.
    :param look: How.
    :param sharey: Whether panels of the same predictor show effects in the same range.
    """
    look = Look() if look is None else look
    parts = [part for part in terms if part.components]
    if look.shows_classes_of(fitted):  # a term counts in the predictors of all classes
        parts = list({part.term.label: part for part in reversed(parts)}.values())[::-1]
    figure, axes = panels(max(len(parts), 1))
    for shown, ax in zip(_shown_effects(fitted, parts, look), axes, strict=False):
        _draw(fitted, shown, ax, look)
    if sharey:
        for predictor in range(len(fitted.design.parameters)):
            _share([pair for pair in zip(parts, axes, strict=False) if pair[0].predictor == predictor])
    _legend_of_bands(figure, axes)
    return figure


def _share(panels_of_terms: Sequence[tuple[Part, Axes]]) -> None:
    """Give the axes of effects the same range; surfaces have a colour bar instead."""
    ends: dict[str, tuple[tuple[float, float], Callable[..., Any]]] = {}
    for part, ax in panels_of_terms:
        if isinstance(part.term, Factor | RandomEffect):
            ends[part.label] = ax.get_xlim(), ax.set_xlim
        elif is_curve(part):
            ends[part.label] = ax.get_ylim(), ax.set_ylim
    if ends:
        low, high = min(found[0] for found, _ in ends.values()), max(found[1] for found, _ in ends.values())
        for _, change in ends.values():
            change(low, high)


def _legend_of_bands(figure: Figure, axes: Sequence[Axes]) -> None:
    """One legend for the bands of all curves."""
    found: dict[Any, Any] = {}
    for ax in axes:
        if ax.get_legend() is None:
            handles, labels = ax.get_legend_handles_labels()
            found |= dict(zip(labels, handles, strict=True))
    if found:
        place: Any = "outside lower center"
        figure.legend(found.values(), found.keys(), loc=place, ncols=len(found), fontsize=_SMALL, frameon=False)


def panels(num: int) -> tuple[Figure, list[Axes]]:
    """
    A figure with panels.

    :param num: How many.
    """
    columns = 2 if num == 4 else min(3, num)
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
    _histogram_of(axes[1], stats.norm.cdf(scores))
    link = fitted.family.link
    name = "predictor" + (f", {link} scale" if link != "identity" else "")
    _against(axes[2], predictors, scores, "predicted mean" if fitted.has_identity_link else name)
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
    _legend(ax)


def _histogram_of(ax: Axes, probabilities: np.ndarray, num_bins: int = 20) -> None:
    """A histogram of what is uniform if the model holds, and the range in which 95% of its bars should end."""
    half = 1.96 * math.sqrt((num_bins - 1) / len(probabilities))
    ax.axhspan(max(1 - half, 0), 1 + half, color=_REST, alpha=0.25, linewidth=0)
    ax.hist(probabilities, bins=num_bins, range=(0, 1), density=True, color=_LINE, alpha=0.6)
    ax.axhline(1.0, color=_REST, linestyle=":")
    ax.set_xlabel("probability integral transform")
    ax.set_ylabel("density")


def _against(ax: Axes, values: Any, scores: np.ndarray, name: str) -> None:
    values = pd.Series(values)
    ax.axhline(0.0, color=_REST, linewidth=0.8, linestyle=":")
    is_number = pd.api.types.is_numeric_dtype(values.dtype) and not pd.api.types.is_bool_dtype(values.dtype)
    if is_number or pd.api.types.is_datetime64_any_dtype(values.dtype):
        ax.plot(values, scores, ".", color=_LINE, markersize=2, alpha=0.4)
        _running_mean(ax, _numbers(values), scores)
        _dates(ax.xaxis, values)
    elif (number := values.nunique()) > _MOST_BOXES:
        _means_of_levels(ax, values, scores)
        ax.set_xlabel(f"{number} levels of {name}, in order")
        ax.set_ylabel("mean quantile residual")
        return
    else:
        _boxes(ax, values, scores)
    ax.set_xlabel(name)
    ax.set_ylabel("quantile residual")


def _boxes(ax: Axes, values: pd.Series, scores: np.ndarray) -> None:
    """A box for each level, in the order of a categorical."""
    levels = values.astype("category").cat.categories
    boxes = [scores[(values == level).to_numpy()] for level in levels]
    style: dict[str, Any] = {"showfliers": False, "medianprops": {"color": "#b3261e"}}
    ax.boxplot(boxes, tick_labels=[_short(level) for level in levels], **style)
    plt.setp(ax.get_xticklabels(), rotation=30, ha="right", rotation_mode="anchor", fontsize=_SMALL)


def _means_of_levels(ax: Axes, values: pd.Series, scores: np.ndarray) -> None:
    """
    Means of many levels in their order, with two standard errors if the model holds. Where names of all find no place,
    those are named whose mean is further from zero than chance brings any of so many in 19 of 20 pictures.
    """
    found = pd.Series(scores).groupby(values.to_numpy()).agg(["mean", "size"]).sort_values("mean")
    errors, place = 1 / np.sqrt(found["size"].to_numpy()), np.arange(len(found))
    ax.errorbar(place, found["mean"], yerr=2 * errors, fmt="o", color="#b3261e", markersize=3, linewidth=1)
    if len(found) <= _MOST_NAMES:
        ax.set_xticks(place, [_short(level) for level in found.index], rotation=90, fontsize=_SMALL)
        return
    ax.set_xticks([])
    far = found[np.abs(found["mean"]) > stats.norm.isf(0.025 / len(found)) * errors]
    if len(far):
        worst = far["mean"].abs().nlargest(_MOST_FAR).index
        more = f" and {len(far) - len(worst)} more" if len(far) > len(worst) else ""
        note = "far from zero:\n" + "\n".join(map(_short, worst)) + more
        ax.text(0.02, 0.97, note, transform=ax.transAxes, va="top", fontsize=_SMALL)


def _running_mean(ax: Axes, values: np.ndarray, scores: np.ndarray, num_bins: int = 12) -> None:
    """Means over bins of equally many rows, or over the distinct values if these are few, with two standard errors."""
    order = np.argsort(values)
    order = order[np.isfinite(values[order])]
    distinct, first = np.unique(values[order], return_index=True)
    parts = np.split(order, first[1:]) if len(distinct) <= num_bins else np.array_split(order, num_bins)
    bins = [part for part in parts if len(part) > 1]
    centres = [values[part].mean() for part in bins]
    means = [scores[part].mean() for part in bins]
    errors = [2 * scores[part].std() / math.sqrt(len(part)) for part in bins]
    ax.errorbar(centres, means, yerr=errors, fmt="o-", color="#b3261e", markersize=3, linewidth=1)
