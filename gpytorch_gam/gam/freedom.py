"""Degrees of freedom of effects beside the number of distinct rows."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from torch import Tensor

from gpytorch_gam.diagnostics.evidence_of_components import whitened_posterior
from gpytorch_gam.warnings import OverfittingWarning, SampleWeightWarning

from .fitted import Fitted

#: Effective degrees of freedom below which nothing is left of a term.
NO_FREEDOM = 0.01

# Degrees of freedom of all effects for each row, beyond which noise is hardly told from them.
_MOST_FREEDOM = 0.75

# The degrees of freedom, as a share of the distinct rows, and the weight of all rows, as a multiple of their number,
# from which on repeats are taken for what fits interpolate; and the most rows that are looked at.
_MUCH_FREEDOM, _MUCH_WEIGHT, _MOST_ROWS = 0.5, 1.1, 20000

# Means of fractional weights that are about one: bands are wrong by less than a tenth.
_LEAST_MEAN, _LARGEST_MEAN = 0.83, 1.2


def degrees_of_freedom(covariance: Tensor) -> float:
    """
    The effective degrees of freedom of an effect: by how much the data narrow its posterior.

    :param covariance: The posterior covariance ``(K, K)`` of its whitened inducing variables.
    """
    return max(float(len(covariance) - covariance.trace()), 0.0)


def warn_of_precisions(weights: np.ndarray) -> None:
    """
    Warn of weights that do not count rows, and whose mean is not one, so that bands are those of more or fewer rows.

    :param weights: The weights of the rows, positive.
    """
    if np.all(weights == np.round(weights)) or _LEAST_MEAN <= weights.mean() <= _LARGEST_MEAN:
        return
    warnings.warn(
        f"sample_weight has a sum of {weights.sum():.6g} over {len(weights)} rows, and bands are those of as many "
        "observations: a weight counts a row that often. Weights that say how precise rows are, such as one over a "
        "variance, need a mean of one: divide them by their mean",
        SampleWeightWarning,
        stacklevel=2,
    )


@torch.no_grad()
def warn_of_repeats(fitted: Fitted, x: Tensor, y: np.ndarray, weights: np.ndarray) -> None:
    """
    Warn where effects have followed rows that count several times: repeats and weights above one say that there is
    hardly any noise.

    :param fitted: The fitted model.
    :param x: The inputs of the rows of the fit, ``(n, D)``.
    :param y: Their responses, ``(n,)``.
    :param weights: Their weights, ``(n,)``.
    """
    if len(y) > _MOST_ROWS:
        return
    distinct = len(np.unique(np.column_stack([x.cpu().numpy(), y]), axis=0))
    if weights.sum() <= _MUCH_WEIGHT * distinct:
        return
    freedom = sum(degrees_of_freedom(whitened_posterior(fitted.model, part.components)[1]) for part in fitted.parts)
    if freedom > _MUCH_FREEDOM * distinct:
        warnings.warn(
            f"effects have {freedom:.0f} degrees of freedom for {distinct} distinct rows, which count as "
            f"{weights.sum():.6g}: repeated rows, and weights above one, are taken for as many independent "
            "observations, so that effects go through them and bands are far too narrow. Give weights whose sum is the "
            "number of distinct rows, and resample groups or residuals instead of rows",
            OverfittingWarning,
            stacklevel=2,
        )


def warnings_of_freedom(freedom: float, num_rows: int) -> list[str]:
    """
    A sentence if effects leave hardly anything of the rows to the noise.

    :param freedom: The degrees of freedom of all effects.
    :param num_rows: The number of rows.
    """
    if freedom <= _MOST_FREEDOM * num_rows:
        return []
    return [
        f"effects have {freedom:.0f} degrees of freedom for {num_rows} rows, so that they take noise for effects: "
        "bands are too narrow and p too small; give fewer terms, or more rows"
    ]
