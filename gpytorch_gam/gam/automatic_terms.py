"""The terms of the columns of a data frame, by what they hold."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd

from gpytorch_gam.warnings import ColumnKindWarning

from .columns import Kind, are_like_dates, kind_of, numbers_of
from .terms import PERIODS, Factor, Linear, RandomEffect, Smooth, Term
from .time_zones import zone_of

# The cycles for which dates have to last so that a period is a term, up to what calendars differ; parts of a
# period, and in how many of these they have to lie; the share of steps from a date to the next that have to be short.
_CYCLES, _PLACES, _FEWEST_PLACES, _OFTEN = 1.98, 20, 5, 0.05

# Levels above which a column of text gets a random effect, and values up to which one of numbers is a line.
_MOST_FIXED_LEVELS, _FEW_VALUES = 10, 2


def automatic_terms(frame: pd.DataFrame) -> list[Term]:
    """
    The terms of each column, by what it holds: a smooth effect of numbers; of dates a trend and periods; effects of
    levels, shrunk if these are many.

    :param frame: The data.
    """
    return [term for name in frame.columns for term in _automatic_terms(frame[name])]


def _automatic_terms(values: pd.Series) -> list[Term]:
    name, kind, num_values = str(values.name), kind_of(values), values.nunique()
    if kind.is_number:
        trend: Term = Linear(column=name) if num_values <= _FEW_VALUES else Smooth(column=name)
        return [trend, *(Smooth(column=name, period=period) for period in _periods_of(values, kind))]
    if kind.name == "text" and are_like_dates(values):
        warnings.warn(
            f"column {name!r} holds text that looks like dates, and each is taken for a level: if they are dates, pass "
            f"pandas.to_datetime(X[{name!r}])",
            ColumnKindWarning,
            stacklevel=2,
        )
    if kind.is_ordered or num_values <= _MOST_FIXED_LEVELS:
        return [Factor(column=name)]
    return [RandomEffect(column=name)]


def _periods_of(values: pd.Series, kind: Kind) -> list[str]:
    """
    The periods of a column of dates that the data can tell from a trend: they last for two of them, neighbouring dates
    are often within a fifth, and they occur at five places, such as the working days of a week.
    """
    if kind.name != "date":
        return []
    days = numbers_of(values, kind, zone_of(values))
    days = np.unique(days[np.isfinite(days)])
    if len(days) < _FEWEST_PLACES:
        return []
    step = np.quantile(np.diff(days), _OFTEN)
    return [
        name
        for name, period in PERIODS.items()
        if np.ptp(days) + step >= _CYCLES * period
        and step <= period / _FEWEST_PLACES
        and len(np.unique(np.mod(days / period, 1.0) * _PLACES // 1)) >= _FEWEST_PLACES
    ]
