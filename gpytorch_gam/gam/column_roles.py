"""How terms read the columns of a data frame, and which columns they cannot read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pandas as pd

from gpytorch_gam._checks import did_you_mean

from .columns import are_like_dates, kind_of
from .encoded_terms import Key
from .terms import RandomEffect, Term


def check_columns(terms: Sequence[Iterable[Term]], columns: Iterable[str]) -> None:
    """
    Raise a ValueError if a term reads a column that there is not.

    :param terms: The terms of each predictor.
    :param columns: The names of the columns.
    """
    known = list(map(str, columns))
    for term in (term for each in terms for term in each):
        for name in term.columns:
            if name not in known:
                raise ValueError(
                    f"{term.label} reads column {name!r}, which X does not have{did_you_mean(name, known)}: {known}"
                )


def columns_and_roles(term: Term, frame: pd.DataFrame) -> Iterator[Key]:
    """
    The columns that a term reads, and how.

    :param term: The term.
    :param frame: The data of the fit.
    :raises TypeError: If it cannot read them so.
    """
    for name in term.arguments:
        for role in term.roles(name):
            if role != "levels":
                _refuse_other_than_numbers(frame, name, term)
            yield name, role
    if term.multiplier is not None:
        is_number = kind_of(frame[term.multiplier]).is_number
        if isinstance(term, RandomEffect) and not is_number:
            raise TypeError(
                f"by of {term.label} must be a numeric column, and {term.multiplier!r} is not: re({term.column!r}, "
                "by=...) is a slope"
            )
        yield term.multiplier, "multiplier" if is_number else "levels"


def _refuse_other_than_numbers(frame: pd.DataFrame, name: str, term: Term) -> None:
    """Raise a TypeError if a column holds neither numbers nor dates."""
    kind = kind_of(frame[name])
    if not kind.is_number:
        held = "categories" if kind.is_category else {"text": "text", "boolean": "booleans"}[kind.name]
        function = "to_datetime" if kind.name == "text" and are_like_dates(frame[name]) else "to_numeric"
        remedy = f"pandas.{function}(X[{name!r}]), or " if kind.name == "text" else ""
        raise TypeError(f"{term.label} needs numbers, but column {name!r} holds {held}: use {remedy}f({name!r})")
    period = getattr(term, "period", None)
    if isinstance(period, str) and kind.name != "date":
        raise TypeError(f"{term.label} needs dates, but column {name!r} holds numbers: give the period as a number")
