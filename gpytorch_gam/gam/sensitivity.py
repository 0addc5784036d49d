"""Sobol indices of the columns of a data frame."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from gpytorch_gam.components.known_inputs import any_inputs
from gpytorch_gam.diagnostics import SobolIndices, sobol_indices
from gpytorch_gam.warnings import DependentColumnsWarning, InputRangeWarning, MissingInteractionsWarning

from .fitted import KERNELS, Fitted

# The rows over which variances are taken as they are, at most: a matrix of as many is factorised for each component.
_NUM_ROWS = 2048

# The share of rows outside of what the fit has seen that needs no word: the ends of a distribution of which the rows of
# the fit are a sample.
_MOST_OUTSIDE = 0.05

# The names of the indices in the table.
_INDICES, _ENDS = {"first": "first_order", "total": "total"}, ("", "_lower", "_upper")


class Choices(NamedTuple):
    """
    Which indices.

    :ivar predictor: The number of the predictor.
    :ivar independent: Whether each column takes its values by itself; None if the rows do not show that they depend.
    :ivar second_order: Whether those of interactions are asked for, in place of those of columns.
    :ivar num: The number of draws from the posterior.
    :ivar level: The probability of the intervals.
    :ivar seed: Of draws and rows.
    """

    predictor: int
    independent: bool | None
    second_order: bool
    num: int
    level: float
    seed: int


def sobol_table(fitted: Fitted, x: Tensor | None, choices: Choices, missing: str = "") -> pd.DataFrame:
    """
    First-order and total indices of the columns of the data frame, or those of interactions, in the variance of a
    predictor.

    :param fitted: The fitted model.
    :param x: Inputs ``(n, D)``, whose rows are the distribution meant; None for those of the fit.
    :param choices: Which indices.
    :param missing: What to warn of where interactions may be missing from indices of independent columns.
    :raises ValueError: If the family has no such indices, columns do not count as independent but have to, or there are
        too few rows without missing values.
    """
    if fitted.family.name == "softmax":
        raise ValueError(
            "sobol_indices are shares in the variance of a predictor, and those of the family 'softmax' mean something "
            "in comparison alone: fit one class against the others, GAMClassifier(...).fit(X, y == label)"
        )
    found = _indices(fitted, _complete_rows(fitted.reference if x is None else x), choices)
    if missing and found.independent:
        warnings.warn(missing, MissingInteractionsWarning, stacklevel=2)
    if choices.second_order:
        if not found.independent:
            raise ValueError(f"second_order=True needs independent columns, but {found.caveat}: give independent=True")
        return _table(found, {"index": "interaction"}, found.interactions, "interaction", choices)
    _warn_of_dependence(found, choices.predictor)
    table = _table(found, _INDICES, found.column_names, "column" if found.independent else "dependent column", choices)
    return table.reindex(fitted.design.columns, fill_value=0.0)  # of constant columns


def warn_of_extrapolation(fitted: Fitted, frame: pd.DataFrame) -> None:
    """
    Warn where many rows lie outside of what the fit has seen.

    :param fitted: The fitted model.
    :param frame: The columns of these rows.
    """
    shares = fitted.design.outside(frame).mean()
    notable = shares[shares > _MOST_OUTSIDE]
    if len(notable):
        listing = ", ".join(f"{name} in {share:.0%}" for name, share in notable.items())
        warnings.warn(
            f"rows of X lie outside of what the fit has seen ({listing} of the rows), where effects are extrapolated "
            "and bring the prior's variance into the indices: fit to runs that cover the distribution of the inputs",
            InputRangeWarning,
            stacklevel=2,
        )


def _indices(fitted: Fitted, x: Tensor, choices: Choices) -> SobolIndices:
    rows = x if choices.independent else _drawn_rows(x, choices.seed)
    mixture = fitted.mixture if len(fitted.mixture) > 1 else None
    with KERNELS, any_inputs():
        return sobol_indices(
            fitted.model,
            rows.to(fitted.model.predictor.device),
            choices.num,
            probability=choices.level,
            hyperparameters=mixture,
            column_names=[name for name, _ in fitted.design.encodings],
            independent=choices.independent,
            seed=choices.seed,
        )


def _table(
    found: SobolIndices, fields: dict[str, str], names: Sequence[str], index: str, choices: Choices
) -> pd.DataFrame:
    """Indices of a predictor and their intervals by names."""
    values = {f"{name}{end}": getattr(found, f"{field}{end}") for name, field in fields.items() for end in _ENDS}
    is_single = found.total.dim() == 1
    table = pd.DataFrame(
        {name: (each if is_single else each[choices.predictor]).cpu() for name, each in values.items()}
    )
    table.index = pd.Index(names, name=index)
    return table


def _complete_rows(x: Tensor) -> Tensor:
    """Rows without missing values."""
    missing = x.isnan().any(-1)
    if len(x) - int(missing.sum()) < 2:
        raise ValueError(
            f"X has {len(x) - int(missing.sum())} rows without missing values ({int(missing.sum())} have some), but a "
            "variance over the rows needs at least two: fill them in"
        )
    return x[~missing]


def _drawn_rows(x: Tensor, seed: int) -> Tensor:
    """At most so many of the rows."""
    chosen = np.random.default_rng(seed).permutation(len(x))[:_NUM_ROWS]
    return x[torch.from_numpy(chosen)]


def _warn_of_dependence(found: SobolIndices, predictor: int) -> None:
    signs = found.signs_of_dependence[predictor]
    if not signs or found.independent:
        return
    warnings.warn(
        f"these are no shares of the variance: {signs}. First is that of the terms that read a column alone; with "
        "independent=True each column takes its values by itself",
        DependentColumnsWarning,
        stacklevel=2,
    )
