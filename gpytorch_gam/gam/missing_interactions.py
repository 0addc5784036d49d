"""What indices of sensitivity leave out where a model has no interactions."""

from __future__ import annotations

import pandas as pd

from .fitted import Fitted
from .interactions import NOT_FITTED, candidate_terms

# The share of the deviance that is left to the noise, below which it cannot hold interactions that count.
_LEAST_NOISE = 0.01


def assumed_additive(fitted: Fitted, predictor: int, deviance_explained: float) -> str:
    """
    What to know of total indices in a model without interactions for which nobody has looked for any; empty if columns
    have joint effects, cannot have any, or nothing is left for these to explain.

    :param fitted: The fitted model, after no search.
    :param predictor: The number of the predictor.
    :param deviance_explained: The share of the deviance that is explained.
    """
    parts = [part for part in fitted.parts if part.predictor == predictor]
    has_joint = any(len(part.term.columns) > 1 for part in parts if part.components)
    if has_joint or not candidate_terms(parts) or 1 - deviance_explained < _LEAST_NOISE:
        return ""
    size = f" ({1 - deviance_explained:.2g} of the variance)" if fitted.family.name == "gaussian" else ""
    return (
        "total indices are those of first order by assumption, as the model has no interactions and none were looked "
        f"for: what these would explain is in the noise{size}, and all indices are shares of the rest. Leave the terms "
        "to the estimator, give interactions=5, or add ti() or te() of pairs of columns"
    )


def left_out_by_limit(screened: pd.DataFrame) -> str:
    """
    What to know of candidates that promise to pay, for which the limit left no place; empty if there are none.

    :param screened: The candidates of a search, see :attr:`GAMRegressor.interactions_`.
    """
    left = screened.index[screened.state == NOT_FITTED]
    if not len(left):
        return ""
    most = int(screened.kept.sum())
    promise = f"{len(left)} more promise to pay" if len(left) > 1 else "one more promises to pay"
    return (
        f"limited to {most}, and {promise} ({', '.join(left[:3])}{', ...' if len(left) > 3 else ''}): until "
        f"interactions={most + len(left)} fits them, too, noise and the other effects hold what they explain"
    )
