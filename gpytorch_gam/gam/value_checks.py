"""Values of columns of which terms have no effect: missing, infinite, too far away, and unseen levels."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import numpy as np
import pandas as pd

from gpytorch_gam.warnings import MissingInputsWarning

from .encoded_terms import EncodedTerms
from .terms import DeviatingCurves, Factor, Linear, Smooth, Term

# The share of rows with an unknown effect above which the noise that they add matters.
_MOST_MISSING = 0.1

# Inputs beyond this overflow in the variances of products of lines.
_FARTHEST = 1e50


def check_values(encoded: EncodedTerms, term: Term, frame: pd.DataFrame, inputs: np.ndarray) -> None:
    """
    Refuse values of the columns of a term of which it has no effect.

    :param encoded: The terms of the model.
    :param term: One of them.
    :param frame: A data frame with its columns.
    :param inputs: The rows as inputs of the model ``(n, D)``.
    :raises ValueError: If values are missing or infinite, or levels unseen, where the term does not allow it.
    """
    for name, role in encoded.keys_of(term):
        values = inputs[:, encoded.position(name, role)]
        infinite = int(np.isinf(values).sum())
        if infinite:
            raise ValueError(f"column {name!r} has infinity (inf) in {infinite} of {len(values)} rows")
        far = int((np.abs(values) > _FARTHEST).sum())
        if far:
            raise ValueError(
                f"column {name!r} is more than {_FARTHEST:g} of its standard deviations away from the data of the "
                f"fit in {far} of {len(values)} rows, where effects cannot be computed: correct these values"
            )
        missing = int(np.isnan(values).sum())
        _refuse_missing(encoded, term, name, missing, len(values))
        if missing and name == term.multiplier and encoded.missing_of(term) != "level":
            raise ValueError(
                f"column {name!r} has NaN in {missing} of {len(values)} rows, and {term.label} has no effect of a "
                "missing by: leave these rows out, or fill them in"
            )
        if missing and encoded.missing_of(term) == "level":
            _refuse_missing_without_level(term, name, role, missing, len(values))
        if role == "levels" and isinstance(term, Factor | Smooth | Linear | DeviatingCurves):
            encoded.encoding(name, role).refuse_unseen(frame[name], term.label, _term_of_other_levels(term))


def refuse_missing(encoded: EncodedTerms, numbers: Mapping[str, int], num_rows: int) -> None:
    """
    Raise a ValueError if values are missing where a term does not allow it.

    :param encoded: The terms of the model.
    :param numbers: How many are missing in each column.
    :param num_rows: The number of rows.
    """
    for term in encoded.all_terms:
        for name in term.columns:
            _refuse_missing(encoded, term, name, numbers[name], num_rows)


def is_dropped(encoded: EncodedTerms, frame: pd.DataFrame) -> np.ndarray:
    """
    Which rows are left out of a fit, as values are missing.

    :param encoded: The terms of the model.
    :param frame: The rows.
    """
    return np.asarray(frame[encoded.columns_that_drop()].isna().any(axis=1), dtype=bool)


def lacks_effect(encoded: EncodedTerms, frame: pd.DataFrame) -> np.ndarray:
    """
    Which of the rows that are left out of a fit have no prediction either, as the ``by`` of a term is missing.

    :param encoded: The terms of the model.
    :param frame: The rows.
    """
    terms = [term for term in encoded.all_terms if encoded.missing_of(term) == "drop"]
    multipliers = list(dict.fromkeys(term.multiplier for term in terms if term.multiplier is not None))
    return np.asarray(frame[multipliers].isna().any(axis=1), dtype=bool)


def refuse_drop(encoded: EncodedTerms) -> None:
    """
    Raise a ValueError if rows are to be left out of a fit whose rows are counted before they are read.

    :param encoded: The terms of the model.
    """
    if encoded.columns_that_drop():
        raise ValueError(
            "missing must not be 'drop' where X is read in parts: leave these rows out of its tables, and give "
            "'marginal', with which rows with missing values are predicted"
        )


def warn_of_missing(encoded: EncodedTerms, numbers: Mapping[str, int], num_rows: int) -> None:
    """
    Warn where effects are unknown in so many rows of a fit that what they do there, which it takes for noise,
    matters.

    :param encoded: The terms of the model.
    :param numbers: How many values are missing in each column.
    :param num_rows: The number of rows.
    """
    for term in encoded.all_terms:
        for name in term.columns:
            if encoded.missing_of(term) == "marginal" and numbers[name] > _MOST_MISSING * num_rows:
                warnings.warn(
                    f"column {name!r} has NaN in {numbers[name]} of {num_rows} rows, where the fit takes what "
                    f"{term.label} does for noise. With that many, noise and bands are too wide, and with a link "
                    "that is not linear the intercept is biased: missing='drop' fits to the other rows, and predicts "
                    "these all the same",
                    MissingInputsWarning,
                    stacklevel=2,
                )


def _refuse_missing(encoded: EncodedTerms, term: Term, name: str, missing: int, num_rows: int) -> None:
    if missing and encoded.missing_of(term) == "error" and name == term.multiplier:
        raise ValueError(
            f"column {name!r} has NaN in {missing} of {num_rows} rows: fill them in, or give missing='drop' to "
            f"{term.label} or the estimator, which leaves these rows out of the fit; they have no predictions"
        )
    if missing and encoded.missing_of(term) == "error":
        raise ValueError(
            f"column {name!r} has NaN in {missing} of {num_rows} rows: fill them in, or if they are missing at random, "
            f"give missing='drop' to {term.label} or the estimator, which leaves these rows out of the fit and "
            "predicts them with an unknown effect, or if they are few 'marginal': then other terms learn from them"
        )


def _term_of_other_levels(term: Term) -> str:
    """The term that is alike and has an effect of levels that the fit has not seen."""
    if isinstance(term, DeviatingCurves):
        return f"fs({term.column}, {term.levels})"
    if isinstance(term, Smooth):
        return f"fs({term.column}, {term.by})"
    return f"re({term.by}, by={term.column})" if isinstance(term, Linear) else f"re({term.arguments[0]})"


def _refuse_missing_without_level(term: Term, name: str, role: str, missing: int, num_rows: int) -> None:
    """Raise a ValueError where missing values are no level of a column."""
    where = f"column {name!r} has NaN in {missing} of {num_rows} rows, and {term.label}"
    if role == "levels":
        raise ValueError(
            f"{where} has missing='level', but no value was missing in the fit, so that there is no such level: fill "
            "them in, or give the term missing='marginal' and fit anew"
        )
    raise ValueError(
        f"{where} needs numbers, which missing='level' does not concern: fill them in, or give the term "
        "missing='drop', which leaves these rows out of the fit, or if they are few and missing at random, 'marginal'"
    )
