"""Warnings of terms that hardly say what is meant: a multiplier without levels, coordinates in different units."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import pandas as pd

from gpytorch_gam.warnings import ColumnKindWarning, MissingLevelsWarning

from .columns import kind_of
from .encoded_terms import EncodedTerms
from .terms import Factor, Linear, Place, RandomCurves, RandomEffect, Smooth, Term

# The ratio of the ranges of coordinates above which they can hardly have the same unit.
_MOST_ELONGATED = 30.0

# The distance of a column from zero, in its ranges, above which its product with another is hardly one.
_MOST_DISTANT = 3.0


def warn_of_multipliers(encoded: EncodedTerms, frame: pd.DataFrame) -> None:
    """
    Warn of terms whose ``by`` has levels that no term has themselves, or is a number that seems to be two levels.

    :param encoded: The terms of the model.
    :param frame: The data of the fit.
    """
    for terms in encoded.terms:
        for term in terms:
            if isinstance(term, Smooth | Linear) and term.by is not None and term.by in frame.columns:
                _warn_of_multiplier(term, terms, frame)


def _warn_of_multiplier(term: Smooth | Linear, terms: Sequence[Term], frame: pd.DataFrame) -> None:
    by = str(term.by)
    others = [other for other in terms if other is not term]
    if kind_of(frame[by]).is_number:
        if frame[by].dropna().isin((0, 1)).all() and not any(
            other.multiplier is None and term.column in other.arguments for other in others
        ):
            warnings.warn(
                f"{term.label} is multiplied by column {by!r}, which holds 0 and 1, and is zero where that is 0. "
                f"For a curve for each of the two make it one of booleans, X[{by!r}].astype(bool)",
                ColumnKindWarning,
                stacklevel=2,
            )
    elif not getattr(term, "is_through_zero", False) and not any(_has_levels_of(other, by, frame) for other in others):
        kind = "curve" if isinstance(term, Smooth) else "line"
        warnings.warn(
            f"{term.label} has a {kind} for each level of {by!r}, each with mean zero, and no term has the levels "
            f"themselves: add f({by})",
            MissingLevelsWarning,
            stacklevel=2,
        )


def warn_of_units(encoded: EncodedTerms) -> None:
    """
    Warn of places whose coordinates can hardly have the same unit, and of products with a column like years, or slopes
    along it.

    :param encoded: The terms of the model, whose columns are learned.
    """
    for term in dict.fromkeys(encoded.all_terms):
        if isinstance(term, Linear) and term.is_through_zero and (term.by, "multiplier") in encoded.encodings:
            _warn_of_far_zero(encoded, term)
        if isinstance(term, RandomEffect) and term.by is not None:
            _warn_of_far_slopes(encoded, term, term.by)
        if not isinstance(term, Place):
            continue
        widths = [each.high - each.low for each in (encoded.encoding(name, "coordinate") for name in term.names)]
        if 0.0 < _MOST_ELONGATED * min(widths) < max(widths):
            warnings.warn(
                f"{term.label} varies over the same distance in all directions, but the ranges of its columns are "
                f"{', '.join(f'{width:.3g}' for width in widths)}: if they have units of their own, write "
                f"te({', '.join(term.names)})",
                ColumnKindWarning,
                stacklevel=2,
            )


def _warn_of_far_zero(encoded: EncodedTerms, term: Linear) -> None:
    """Warn of a product of two columns that is nearly a multiple of one of them."""
    for name in term.columns:
        if _is_far_from_zero(encoded, name):
            warnings.warn(
                f"{term.label} is the product of both columns, but {name!r} is far from zero beside its range, so "
                f"that it is nearly a multiple of the other: subtract something from {name!r}, such as its mean",
                ColumnKindWarning,
                stacklevel=2,
            )


def _warn_of_far_slopes(encoded: EncodedTerms, term: RandomEffect, name: str) -> None:
    """Warn of slopes of levels whose lines meet far from the data."""
    if _is_far_from_zero(encoded, name):
        warnings.warn(
            f"the lines of {term.label} go through zero, from which {name!r} is far beside its range: they are nearly "
            f"levels, and those of re({term.column}) beside them are those at zero. Subtract something from {name!r}, "
            "such as its mean",
            ColumnKindWarning,
            stacklevel=2,
        )


def _is_far_from_zero(encoded: EncodedTerms, name: str) -> bool:
    encoding = encoded.encoding(name, "multiplier")
    return _MOST_DISTANT * (encoding.high - encoding.low) < min(abs(encoding.low), abs(encoding.high))


def _has_levels_of(term: Term, by: str, frame: pd.DataFrame) -> bool:
    """Whether a term has a number for each level of a column, or of one that is finer."""
    if isinstance(term, RandomCurves):
        return term.levels == by
    if not isinstance(term, Factor | RandomEffect) or term.multiplier is not None:
        return False
    pairs = frame[list({term.column, by})].drop_duplicates()
    return term.column == by or len(pairs) == frame[term.column].nunique(dropna=False)
