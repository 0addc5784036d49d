"""The share of the deviance that effects explain."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from .fitted import Fitted
from .prediction import response_moments


def deviance_explained(
    fitted: Fitted, x: torch.Tensor, y: np.ndarray, weights: np.ndarray, arguments: Mapping[str, torch.Tensor]
) -> float:
    """
    The share by which the effects lower the deviance of a constant, over some rows; NaN for classes and quantiles.

    :param fitted: The fitted model.
    :param x: The inputs of the rows.
    :param y: Their responses.
    :param weights: Their weights.
    :param arguments: Their row-wise arguments, in units of the fit.
    """
    family = fitted.family
    if not family.has_deviance:
        return float("nan")
    mean, _ = response_moments(fitted, x, arguments, fitted.parts)
    units = arguments.get("exposure", arguments.get("trials"))
    size = np.ones(len(y)) if units is None else units.numpy()
    if "offset" in arguments and family.link == "log":
        size = size * arguments["offset"].exp().numpy()
    null = size * (weights @ y) / (weights @ size)
    own, of_null = (float(weights @ family.deviance(y, each, size)) for each in (mean, null))
    return 1.0 - own / of_null if of_null > 0 else 0.0
