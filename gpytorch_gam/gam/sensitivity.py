"""Sobol indices of the columns of a data frame."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from gpytorch_gam.components.known_inputs import any_inputs
from gpytorch_gam.diagnostics import sobol_indices
from gpytorch_gam.warnings import DependentColumnsWarning

from .fitted import KERNELS, Fitted

# The rows over which variances are taken, at most: a matrix of as many is factorised for each component.
_NUM_ROWS = 1024

# The names of the indices in the table.
_INDICES = {"first": "first_order", "total": "total"}


def sobol_table(
    fitted: Fitted, x: Tensor | None, predictor: int, is_independent: bool, num: int, level: float, seed: int
) -> pd.DataFrame:
    """
    First-order and total indices of the columns of the data frame, in the variance of a predictor.

    :param fitted: The fitted model.
    :param x: Inputs ``(n, D)``, whose rows are the distribution meant; None for those of the fit.
    :param predictor: The number of the predictor.
    :param is_independent: Whether the values of each column are put into rows of their own choice.
    :param num: The number of draws from the posterior.
    :param level: The probability of the intervals.
    :param seed: Of draws and rows.
    :raises ValueError: If the family has no such indices, or there are too few rows without missing values.
    """
    if fitted.family.name == "softmax":
        raise ValueError(
            "sobol_indices are shares in the variance of a predictor, and those of the family 'softmax' mean something "
            "in comparison alone: fit one class against the others, GAMClassifier(...).fit(X, y == label)"
        )
    names = [name for name, _ in fitted.design.encodings]
    x = _complete_rows(fitted.reference if x is None else x)
    rows = _independent_rows(x, names, seed) if is_independent else _drawn_rows(x, seed)
    mixture = fitted.mixture if len(fitted.mixture) > 1 else None
    with KERNELS, any_inputs(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        found = sobol_indices(
            fitted.model,
            rows.to(fitted.model.predictor.device),
            num,
            probability=level,
            hyperparameters=mixture,
            column_names=names,
        )
    _warn_of_dependence(found.signs_of_dependence[predictor], is_independent)
    values = {
        f"{name}{end}": getattr(found, f"{field}{end}")
        for name, field in _INDICES.items()
        for end in ("", "_lower", "_upper")
    }
    several = len(fitted.design.parameters) > 1
    table = pd.DataFrame({name: (value[predictor] if several else value).cpu() for name, value in values.items()})
    table.index = pd.Index(found.column_names, name="column")
    return table.reindex(fitted.design.columns, fill_value=0.0)  # of constant columns


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


def _independent_rows(x: Tensor, names: Sequence[str], seed: int) -> Tensor:
    """Quasi-random rows with independent columns of the same distributions; inputs of one name go together."""
    different = list(dict.fromkeys(names))
    ranks = torch.quasirandom.SobolEngine(len(different), scramble=True, seed=seed).draw(_NUM_ROWS, dtype=x.dtype)
    found = x.new_empty(_NUM_ROWS, x.shape[1])
    for name, rank in zip(different, ranks.unbind(-1), strict=True):
        own = [place for place, each in enumerate(names) if each == name]
        order = x[:, own[0]].argsort()
        found[:, own] = x[order[(rank * len(x)).long()]][:, own]
    return found


def _warn_of_dependence(signs: str, is_independent: bool) -> None:
    if not signs:
        return
    why = (
        "terms are not orthogonal even where columns are independent"
        if is_independent
        else "columns depend on each other in these rows, or terms are not orthogonal; with independent=True each "
        "column takes its values by itself"
    )
    warnings.warn(f"these are no shares of the variance: {signs}, as {why}", DependentColumnsWarning, stacklevel=2)
