"""Comparison of fitted models of the same responses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from sklearn.utils.validation import check_is_fitted

from gpytorch_gam import _checks as checks
from gpytorch_gam.diagnostics.cross_validation import HIGH_LEVERAGE, error_of_sum

from .frames import frame_of, take_columns
from .row_arguments import columns_of_rows
from .scores import log_densities

if TYPE_CHECKING:
    from .estimators import GAMClassifier, GAMRegressor

# Difference of expected log predictive densities, in nats, below which models predict alike, whatever its error
# (Sivula, Magnusson, Matamoros and Vehtari, 2020).
_NO_DIFFERENCE = 4.0


@dataclass(frozen=True)
class Comparison:
    """
    Fitted models of the same responses, the best first; printed, it is a table.

    Columns of ``table``, in nats, of which larger values are better:

    - ``elpd``: the sum of the log predictive densities (of discrete responses log probabilities) of the rows, and
      ``elpd_se`` its standard error. Rows of the fit are left out one at a time, see
      :func:`~gpytorch_gam.diagnostics.leave_one_out`.
    - ``elpd_diff``: the difference from the best model, and ``diff_se`` its standard error, from the differences in the
      rows. Less than four nats, or than two standard errors, say little.
    - ``num_parameters``: the effective number of parameters, by how much ``elpd`` is larger if rows are not left out.
    - ``unreliable``: the number of rows that determine their own prediction for the most part (leverage above .7).
    - ``bound``, ``bound_diff``: the evidence lower bound of responses in their units, and the difference from the
      largest. Bounds hold what the data say of all effects together, priors of effects included. They are those of the
      fits to their own rows, also where rows that were held back are scored.

    :ivar table: One row a model. Without data, it has the bounds alone.
    :ivar facts: What was compared.
    :ivar warnings: What to look at.
    """

    table: pd.DataFrame
    facts: dict[str, Any]
    warnings: tuple[str, ...]

    def __str__(self) -> str:
        """The facts, the table and the warnings."""
        facts = [f"{name}: {value}" for name, value in self.facts.items()]
        with pd.option_context("display.width", 200, "display.max_columns", 20):
            table = self.table.rename_axis(None).to_string(float_format=lambda value: f"{value:.2f}", na_rep="")
        return "\n".join([*facts, "", table, *(f"warning: {each}" for each in self.warnings)])

    def __repr__(self) -> str:
        return str(self)


def compare(
    *gams: GAMRegressor | GAMClassifier,
    X: Any = None,
    y: Any = None,
    sample_weight: Any = None,
    offset: Any = None,
    exposure: Any = None,
    trials: Any = None,
    held_out: bool = False,
    names: Sequence[str] | None = None,
) -> Comparison:
    """
    Compare fitted models of the same responses: by their bounds, and by how well they predict rows, with the standard
    errors of differences.

    Bounds are evidence lower bounds at the estimates of the hyperparameters. As log marginal likelihoods they compare
    models of the same rows and the same responses alone, whose families, terms and kernels may differ: models of other
    rows, or of a transformed response, are refused.

    Estimators do not keep their data. With those of the fit, each row is predicted from all others
    (:func:`~gpytorch_gam.diagnostics.leave_one_out`, without refits); with ``held_out=True`` rows that were held back
    are scored. Rows that belong together, as those of a subject or of adjacent hours, predict each other: hold back
    whole groups or times of them if new ones are to be predicted.

    :param gams: Two or more fitted estimators.
    :param X: The data of the fits, with the columns of all; None compares bounds alone. With ``held_out``, other rows.
    :param y: Their responses, or the name of their column; None if the formula of a model names it.
    :param sample_weight: Their weights, or the name of their column.
    :param offset: See :meth:`GAMRegressor.fit`. Of what is not given, each model takes the column that it was fitted
        with.
    :param exposure: See :meth:`GAMRegressor.fit`.
    :param trials: See :meth:`GAMRegressor.fit`.
    :param held_out: Whether the rows were held back from all fits.
    :param names: Names of the models; default ``model 1`` and so on.
    :raises TypeError: If an argument is of another kind.
    :raises ValueError: If the models are of different responses, or the data are not theirs.

    Example:
        >>> compare(linear, smooth, X=cars, names=["linear", "smooth"])
    """
    labels = _labels(gams, names)
    checks.flag("held_out", held_out)
    _check_responses(gams, labels, X is not None)
    bounds = np.array([gam.bound_ for gam in gams])
    by_bound = {"bound": bounds, "bound_diff": bounds - np.nanmax(bounds, initial=-np.inf)}
    facts = {label: f"{gam.family_.name}, {' + '.join(gam.terms_)}" for label, gam in zip(labels, gams, strict=True)}
    rows = {"sample_weight": sample_weight, "offset": offset, "exposure": exposure, "trials": trials}
    if X is None:
        given = [name for name, value in {"y": y, **rows}.items() if value is not None]
        if given or held_out:
            raise ValueError(f"{', '.join(given) or 'held_out=True'} is given without X")
        table = pd.DataFrame(by_bound, index=pd.Index(labels, name="model"))
        return Comparison(_sorted(table, "bound"), {**facts, "compared by": "the evidence lower bound"}, ())
    y = next((gam._response_name() for gam in gams if gam._response_name() is not None), None) if y is None else y
    scored = [_held_out(gam, X, y, rows) if held_out else _left_out(gam, X, y, rows) for gam in gams]
    what = "rows that were held back" if held_out else "rows of the fit, each left out"
    facts |= {"compared by": f"the log predictive density of {len(scored[0].weights)} {what}"}
    table = pd.DataFrame({**_scores_table(scored), **by_bound}, index=pd.Index(labels, name="model"))
    return Comparison(_sorted(table, "elpd"), facts, _warnings(table))


class _Scores(NamedTuple):
    """How well a model predicts rows."""

    densities: np.ndarray  # log predictive densities, (n,)
    weights: np.ndarray  # (n,)
    num_parameters: float  # NaN for rows that were held back
    unreliable: int | None  # None for these


def _held_out(gam: Any, X: Any, y: Any, rows: Mapping[str, Any]) -> _Scores:
    X, given = _of_model(gam, X, {"y": y, **rows})
    fitted, x, values, weights, read = gam._observed(X, given.pop("y"), given.pop("sample_weight"), given)
    used = weights > 0
    read = {name: value[used] for name, value in read.items()}
    return _Scores(log_densities(fitted, x[used], values[used], read), weights[used], math.nan, None)


def _left_out(gam: Any, X: Any, y: Any, rows: Mapping[str, Any]) -> _Scores:
    X, given = _of_model(gam, X, {"y": y, **rows})
    found = gam.leave_one_out(X, **given)
    densities, weights = (each.cpu().numpy() for each in (found.log_densities, found.weights))
    return _Scores(densities, weights, found.num_parameters, found.num_unreliable)


def _of_model(gam: Any, X: Any, given: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """A data frame that models share without the columns that this one takes for none of its own, and its rows."""
    names = getattr(gam, "feature_names_in_", None)
    if frame_of(X) is None or names is None or gam._checked_columns() is not None:
        return X, dict(given)
    frame, found = take_columns(frame_of(X), given)
    own = [*names, *columns_of_rows(gam._checked_arguments(), frame.columns)]
    return frame.loc[:, frame.columns.isin(own)], found


def _scores_table(scored: Sequence[_Scores]) -> dict[str, Any]:
    weights = scored[0].weights
    totals = np.array([weights @ each.densities for each in scored])
    best = scored[int(np.argmax(totals))]
    return {
        "elpd": totals,
        "elpd_se": [_error(each.densities, weights) for each in scored],
        "elpd_diff": totals - totals.max(),
        "diff_se": [_error(each.densities - best.densities, weights) for each in scored],
        "num_parameters": [each.num_parameters for each in scored],
        "unreliable": [each.unreliable for each in scored],
    }


def _error(values: np.ndarray, weights: np.ndarray) -> float:
    return error_of_sum(torch.from_numpy(values), torch.from_numpy(weights))


def _sorted(table: pd.DataFrame, by: str) -> pd.DataFrame:
    empty = [name for name in table if table[name].isna().all()]
    return table.sort_values(by, ascending=False).drop(columns=empty)


def _warnings(table: pd.DataFrame) -> tuple[str, ...]:
    found = [
        f"{label}: {row.unreliable:.0f} rows have leverages above {HIGH_LEVERAGE}: their densities are not reliable"
        for label, row in table.iterrows()
        if row.unreliable
    ]
    ordered = table.sort_values("elpd", ascending=False)
    second = ordered.iloc[1]
    if -second.elpd_diff < max(_NO_DIFFERENCE, 2 * second.diff_se):
        found.append(f"{ordered.index[0]} and {ordered.index[1]} predict alike, as far as these rows can tell")
    return tuple(found)


def _labels(gams: Sequence[Any], names: Sequence[str] | None) -> list[str]:
    for gam in gams:
        if not hasattr(gam, "leave_one_out"):
            raise TypeError(f"compare takes fitted estimators one by one, got {checks.shown(gam)}: pass data as X=...")
        check_is_fitted(gam)
    if len(gams) < 2:
        raise ValueError(f"compare takes two or more fitted estimators, got {len(gams)}")
    if names is None:
        return [f"model {number}" for number in range(1, len(gams) + 1)]
    labels = [names] if isinstance(names, str) else list(names)
    if len(labels) != len(gams) or len(set(labels)) < len(labels) or not all(isinstance(each, str) for each in labels):
        raise ValueError(f"names must be {len(gams)} different strings, one for each model, got {names!r}")
    return labels


def _shown(classes: Sequence[Any]) -> str:
    return "[" + ", ".join(map(str, classes)) + "]"


def _check_responses(gams: Sequence[Any], labels: Sequence[str], has_data: bool) -> None:
    first = gams[0]
    for label, gam in zip(labels[1:], gams[1:], strict=True):
        classes = [list(getattr(each, "classes_", ())) for each in (first, gam)]
        if classes[0] != classes[1] and set(classes[0]) == set(classes[1]):
            if not has_data:
                raise ValueError(
                    f"{labels[0]} and {label} have their classes in other orders, {_shown(classes[0])} and "
                    f"{_shown(classes[1])}, so that without X it cannot be told whether their responses are the same: "
                    "pass X and y"
                )
            # Whether responses are those of the fits is seen later.
            is_like = first._seen.has_as_many_rows(gam._seen)
        else:
            is_like = classes[0] == classes[1] and first._seen.is_like(gam._seen)
        if not is_like:
            raise ValueError(
                f"{labels[0]} and {label} are fits to different responses or rows ({first.n_rows_} and {gam.n_rows_}), "
                "whose probabilities do not compare: fit both to the same ones (for a transformed response, such as a "
                "logarithm, take a family with that link)"
            )
