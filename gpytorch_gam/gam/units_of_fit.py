"""Responses and row-wise arguments in the units of a fit."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from .families import Family, Units


def units_of(
    family: Family, y: np.ndarray, weights: np.ndarray, arguments: Mapping[str, np.ndarray], has_intercept: bool
) -> Units:
    """
    The units in which responses are fitted.

    :param family: The distribution of the response.
    :param y: The responses.
    :param weights: The weights of the rows.
    :param arguments: Row-wise arguments; responses are seen without the offset of an identity link.
    :param has_intercept: Whether the first predictor has one.
    """
    offset = arguments.get("offset")
    y = y if offset is None or family.link != "identity" else y - offset
    return family.units(y, weights) if has_intercept else family.units_about_zero(y, weights)


def fit_arguments(family: Family, scale: float, arguments: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """
    Row-wise arguments as tensors in the units of the fit.

    :param family: The distribution of the response.
    :param scale: The unit of the responses.
    :param arguments: The arguments; the offset of an identity link is in units of the response.
    """
    found = {name: torch.tensor(value) for name, value in arguments.items()}  # copies: arrays may be read-only
    if "offset" in found and family.link == "identity":
        found["offset"] = found["offset"] / scale
    return found
