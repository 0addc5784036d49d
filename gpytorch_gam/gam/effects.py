"""Effects of terms on grids of their columns, with pointwise and simultaneous bands, for pictures and tables."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from gpytorch_gam._checks import shown
from gpytorch_gam.effects import JointSum

from .columns import CycleEncoding, Encoding, LevelEncoding, NumberEncoding
from .fitted import Fitted
from .frames import frame_of
from .parts import Part
from .prediction import term_moments
from .terms import PERIODS, Factor, Linear, RandomCurves, RandomEffect, Smooth
from .terms import Tensor as TensorTerm
from .time_zones import has_zone
from .value_checks import check_values

_NUM_DRAWS = 4000

#: The column of tables that names a class.
CLASS = "class"

# Columns of tables of effects beside those of their terms.
_OF_TABLES = ("mean", "std", "lower", "upper", "lower_all", "upper_all", CLASS)


def grid_of(fitted: Fitted, part: Part, num: int, fixed: Collection[str] = ()) -> pd.DataFrame:
    """
    Values of the columns of a term: a grid over the range of a number, all levels of a category, and their products.

    :param fitted: The fitted model.
    :param part: The term.
    :param num: Number of values of a number; the square root of it, for each of two.
    :param fixed: Columns to leave out.
    """
    term = part.term
    numbers = [name for name in term.arguments if name not in fixed]
    if isinstance(term, Factor | RandomEffect):
        axes = {term.column: _levels(fitted, term.column)}
    elif isinstance(term, RandomCurves):
        axes = {term.levels: _levels(fitted, term.levels), term.column: _range(fitted, part, term.column, num)}
    elif isinstance(term, TensorTerm):
        each = max(2, round(num**0.5)) if len(numbers) > 1 else num
        axes = {name: _range(fitted, part, name, each) for name in term.names}
        if len(term.names) == 3:
            axes[term.names[2]] = _range(fitted, part, term.names[2], 3)[1:2]
    else:
        axes = {term.arguments[0]: _range(fitted, part, term.arguments[0], num)}
    if term.multiplier is not None and _has_levels(fitted, term.multiplier):
        axes = {term.multiplier: _levels(fitted, term.multiplier), **axes}
    axes = {name: values for name, values in axes.items() if name not in fixed}
    if not axes:
        return pd.DataFrame(index=range(1))
    return pd.MultiIndex.from_product(list(axes.values()), names=list(axes)).to_frame(index=False)


def _has_levels(fitted: Fitted, name: str) -> bool:
    return (name, "levels") in fitted.design.encodings


def _levels(fitted: Fitted, name: str) -> list[Any]:
    encoding: LevelEncoding = fitted.design.encoding(name, "levels")
    return [*encoding.levels, None] if encoding.has_missing_level else list(encoding.levels)


def _range(fitted: Fitted, part: Part, name: str, num: int) -> Any:
    """Equally spaced values of a number or a date over its range, or over a period."""
    found = [encoding for (column, _), encoding in fitted.design.encodings.items() if column == name]
    term = part.term
    if isinstance(term, Smooth) and term.period is not None:
        cycle = next(each for each in found if _is_cycle_of(each, part))
        return cycle.values(np.linspace(0.0, cycle.period, num))
    encoding = next(each for each in found if isinstance(each, NumberEncoding))
    return encoding.values(np.linspace(encoding.low, encoding.high, num))


def _is_cycle_of(encoding: Encoding, part: Part) -> TypeGuard[CycleEncoding]:
    """Whether a column is read so for a term: one may have several periods."""
    return isinstance(encoding, CycleEncoding) and encoding.period == period_in_units(part)


def level_column(fitted: Fitted, part: Part) -> str | None:
    """
    The column whose levels have a curve each, or None.

    :param fitted: The fitted model.
    :param part: The term.
    """
    term = part.term
    if isinstance(term, RandomCurves):
        return term.levels
    return term.multiplier if term.multiplier is not None and _has_levels(fitted, term.multiplier) else None


def may_be_level(fitted: Fitted, part: Part, by: str, value: Any) -> bool:
    """
    Whether a term has an effect of a value of its column of levels.

    :param fitted: The fitted model.
    :param part: The term.
    :param by: The column.
    :param value: The value.
    """
    encoding: LevelEncoding = fitted.design.encoding(by, "levels")
    try:
        (code,) = encoding.encode(pd.Series([value]))
    except (TypeError, ValueError):
        return False
    return type(part.term) is RandomCurves or not code >= len(encoding.labels)


def columns_of(fitted: Fitted, part: Part) -> list[str]:
    """
    The columns in which a term has an effect: all that it reads but a number that multiplies it.

    :param fitted: The fitted model.
    :param part: The term.
    """
    by = level_column(fitted, part)
    return list(dict.fromkeys([*part.term.arguments, *([] if by is None else [by])]))


def values_at(fitted: Fitted, part: Part, at: Any, num: int) -> pd.DataFrame:
    """
    Values of the columns of a term, of which some are given; the others are those of its grid, for each of the rows.

    :param fitted: The fitted model.
    :param part: The term.
    :param at: Values of the first column; or a mapping or table with values of some of the columns, one row each.
    :param num: Number of values of a column that is not given.
    :raises TypeError: If values are of another kind, or of a column that cannot be told.
    :raises ValueError: If the term has no effect of them.
    """
    given = _given_columns(fitted, part, at)
    found = given.merge(grid_of(fitted, part, num, list(given.columns)), how="cross")
    check_values(fitted.design, part.term, found, inputs_of(fitted, part, found).numpy())
    return found


def _given_columns(fitted: Fitted, part: Part, at: Any) -> pd.DataFrame:
    """What is given of the columns of a term as a table with the right kinds of values."""
    names, table = columns_of(fitted, part), frame_of(at)
    if isinstance(at, Mapping):
        unknown = [name for name in at if name not in names]
        if unknown:
            raise ValueError(f"at names {unknown}, which are no columns of {part.label}: {names}")
        sizes = {name: np.size(values) for name, values in at.items() if not _is_single(values)}
        if len(set(sizes.values())) > 1:
            raise ValueError(f"at has columns of different lengths, {sizes}: give one value of each in each row")
        size = next(iter(sizes.values()), 1)
        table = pd.DataFrame({name: [value] * size if _is_single(value) else value for name, value in at.items()})
    elif table is not None:
        table = table[[name for name in names if name in table.columns]].reset_index(drop=True)
    elif isinstance(part.term, TensorTerm):
        raise TypeError(f"at must name columns of {part.label}, such as at={{{names[0]!r}: [...]}}, got {shown(at)}")
    else:
        table = pd.DataFrame({names[0]: [at] if _is_single(at) else list(at)})
    if not len(table.columns) or not len(table):
        raise ValueError(f"at has no values of the columns of {part.label}: {names}")
    return table.assign(**{name: _as_dates(fitted, table[name]) for name in table})


def _is_single(value: Any) -> bool:
    return np.ndim(value) == 0


def _as_dates(fitted: Fitted, values: pd.Series) -> pd.Series:
    """
    Dates that are written as text, or as those of Python, where the column has dates: without a time zone they are in
    that of the column.
    """
    own = [each for (name, _), each in fitted.design.encodings.items() if name == values.name and each.kind == "date"]
    if not own or pd.api.types.is_numeric_dtype(values.dtype):
        return values
    found, zone = pd.to_datetime(values), getattr(own[0], "zone", "")
    return found.dt.tz_localize(zone) if zone and not has_zone(found) else found


def inputs_of(fitted: Fitted, part: Part, values: pd.DataFrame) -> Tensor:
    """
    Inputs of the model ``(n, D)`` with these values of the columns of a term; a numeric multiplier is one, and columns
    of other terms are those of some row of the data.

    :param fitted: The fitted model.
    :param part: The term.
    :param values: The columns of the term.
    """
    x = fitted.reference[:1].expand(len(values), -1).clone()
    for index, ((name, role), encoding) in enumerate(fitted.design.encodings.items()):
        if name in values.columns:
            x[:, index] = torch.from_numpy(encoding.encode(values[name]))
        elif name == part.term.multiplier and role == "multiplier" and isinstance(encoding, NumberEncoding):
            x[:, index] = 1.0 / encoding.scale
    return x


def name_in_tables(column: str) -> str:
    """
    What a column of the data is called in tables of effects: by its name, unless the table has a column of this name.

    :param column: Its name.
    """
    return f"column {column}" if column in _OF_TABLES else column


class EffectGrid(NamedTuple):
    """Values of the columns of a term at which its effect is asked for, and whether with a simultaneous band."""

    part: Part
    values: pd.DataFrame
    simultaneous: bool = False


class _Effect(NamedTuple):
    """Moments of an effect ``(n,)`` in units of the predictor, and the half-width of a band that holds all of it."""

    mean: np.ndarray
    deviation: np.ndarray
    critical: float | None = None


def effect_tables(fitted: Fitted, grids: Sequence[EffectGrid], level: float) -> list[pd.DataFrame]:
    """
    The effects of terms at values of their columns: ``mean``, ``std``, ends of a pointwise band ``lower`` and
    ``upper``, and where it is asked for ``lower_all`` and ``upper_all`` of a simultaneous one, which holds the whole
    function with the same probability. Each model of the mixture is asked once for all of them.

    :param fitted: The fitted model.
    :param grids: The terms, each with the values of its columns.
    :param level: The probability of the bands.
    """
    is_joint = [grid.simultaneous and len(grid.part.components) > 0 for grid in grids]
    joint = iter(_joint_effects(fitted, [grid for grid, own in zip(grids, is_joint, strict=True) if own], level))
    others = iter(_pointwise_effects(fitted, [grid for grid, own in zip(grids, is_joint, strict=True) if not own]))
    found = []
    for grid, own in zip(grids, is_joint, strict=True):
        bands = pd.DataFrame(_bands(next(joint if own else others), level))
        found.append(pd.concat([grid.values.reset_index(drop=True).rename(columns=name_in_tables), bands], axis=1))
    return found


def _pointwise_effects(fitted: Fitted, grids: Sequence[EffectGrid]) -> Iterator[_Effect]:
    """Moments of the effects: rows of all grids are one table, in which each term is read where it varies."""
    if not grids:
        return
    rows = [inputs_of(fitted, grid.part, grid.values) for grid in grids]
    moments = term_moments(fitted, torch.cat(rows), [grid.part for grid in grids])
    start = 0
    for place, (grid, own) in enumerate(zip(grids, rows, strict=True)):
        mean, deviation = (part[place, start : start + len(own)] for part in moments)
        start += len(own)
        yield _Effect(mean, deviation, 0.0 if grid.simultaneous else None)  # a term without components is known


def _joint_effects(fitted: Fitted, grids: Sequence[EffectGrid], level: float) -> Iterator[_Effect]:
    """Moments of the effects, with simultaneous bands."""
    pairs = [(inputs_of(fitted, grid.part, grid.values), grid.part.components) for grid in grids]
    for grid, joint in zip(grids, fitted.joint_sums(pairs) if pairs else [], strict=True):
        yield _effect_of(joint, fitted.scale_of(grid.part.predictor), level, simultaneous=True)


def _effect_of(joint: JointSum, scale: float, level: float, simultaneous: bool) -> _Effect:
    mean, variance = joint.moments()
    deviation = variance.clamp_min(0.0).sqrt()
    critical = _critical_value(joint, mean, deviation, level) if simultaneous else None
    return _Effect(scale * mean.numpy(), scale * deviation.numpy(), critical)


def _critical_value(joint: JointSum, mean: Tensor, deviation: Tensor, level: float) -> float:
    """The quantile of the largest standardised deviation of draws from their mean; the draws are always the same."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        draws = joint.draws(_NUM_DRAWS)
    standardised = torch.where(deviation > 0, (draws - mean).abs() / deviation, 0.0)
    return float(standardised.amax(-1).quantile(level))


def _bands(effect: _Effect, level: float) -> dict[str, np.ndarray]:
    """Moments and the ends of a pointwise band; of a simultaneous one, too, if its half-width is given."""
    mean, deviation, critical = effect
    half = float(torch.special.ndtri(torch.tensor(0.5 + level / 2, dtype=torch.float64)))
    bands = {"mean": mean, "std": deviation, "lower": mean - half * deviation, "upper": mean + half * deviation}
    if critical is not None:
        wide = max(half, critical) * deviation
        bands |= {"lower_all": mean - wide, "upper_all": mean + wide}
    return bands


def difference_table(
    fitted: Fitted,
    part: Part,
    settings: tuple[Mapping[str, Any], Mapping[str, Any]],
    num: int,
    level: float,
    simultaneous: bool = False,
) -> pd.DataFrame:
    """
    The difference of an effect between two settings of some of its columns, such as two levels, as a table as of
    :func:`effect_tables`: mean and variance are those of the joint posterior, in which hyperparameters are uncertain
    where they are in predictions.

    :param fitted: The fitted model.
    :param part: The term.
    :param settings: Values of the same columns; the effect at the second is subtracted.
    :param num: Number of values of a column that is in neither.
    :param level: The probability of the bands.
    :param simultaneous: Whether to add ``lower_all`` and ``upper_all``, of a band that holds the whole difference.
    """
    first, second = (values_at(fitted, part, setting, num) for setting in settings)
    num, rest = len(first), first.drop(columns=list(settings[0]))
    effect = _Effect(np.zeros(num), np.zeros(num), 0.0 if simultaneous else None)
    if part.components:
        x = inputs_of(fitted, part, pd.concat([first, second], ignore_index=True))
        (joint,) = fitted.joint_sums([(x, part.components)])
        difference = joint.difference(slice(num), slice(num, None))
        effect = _effect_of(difference, fitted.scale_of(part.predictor), level, simultaneous)
    bands = pd.DataFrame(_bands(effect, level))
    return pd.concat([rest.rename(columns=name_in_tables), bands], axis=1)


def values_in_data(fitted: Fitted, part: Part, name: str) -> Any:
    """
    Values of a numeric column in some rows of the data of the fit, for a rug.

    :param fitted: The fitted model.
    :param part: The term, whose period they are taken into.
    :param name: The column.
    """
    for index, ((column, _), encoding) in enumerate(fitted.design.encodings.items()):
        if column != name:
            continue
        x = fitted.reference[:, index].numpy()
        if isinstance(encoding, NumberEncoding) and getattr(part.term, "period", None) is None:
            return encoding.values(encoding.centre + encoding.scale * (np.sinh(x) if encoding.is_drawn_in else x))
        if _is_cycle_of(encoding, part):
            return encoding.values(x * encoding.period)
    raise ValueError(f"{part.label} has no numeric column {name!r}")


def is_curve(part: Part) -> bool:
    """
    Whether a term is a curve over one column, for all rows or for each level of a category.

    :param part: The term.
    """
    return isinstance(part.term, Smooth | Linear | RandomCurves)


def period_in_units(part: Part) -> float | None:
    """
    The period of a term in units of its column, or None.

    :param part: The term.
    """
    period = getattr(part.term, "period", None)
    return PERIODS[period] if isinstance(period, str) else period


def within_period(fitted: Fitted, part: Part, values: pd.Series) -> Any:
    """
    Values of the column of a curve as pictures show them, those of a periodic effect within its first period, and dates
    in the time zone of the fit.

    :param fitted: The fitted model.
    :param part: The term.
    :param values: The column.
    """
    own = [each for (name, _), each in fitted.design.encodings.items() if name == part.term.arguments[0]]
    for cycle in own:
        if _is_cycle_of(cycle, part):
            return cycle.within_period(values)
    zone = getattr(own[0], "zone", "")
    return values.dt.tz_convert(zone) if zone and has_zone(values) else values
