"""Checks that a likelihood can have the responses; values are read only on the CPU and in debug mode."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .row_argument import is_looked_at


def check_responses(owner: str, y: Tensor, like: Tensor) -> None:
    """Raise an error unless y is a tensor with the shape of ``like``, ``(*batch, n)``, without NaN and infinity."""
    if not torch.is_tensor(y):
        raise TypeError(f"the responses of {owner} must be a tensor, got {type(y).__name__}")
    if y.device != like.device:
        raise ValueError(f"y is on {y.device}, but the predictor on {like.device}: pass y.to(x.device)")
    fits = y.dim() > 0 and y.shape[-1] == like.shape[-1]
    if fits:
        try:
            torch.broadcast_shapes(y.shape, like.shape)
        except RuntimeError:
            fits = False
    if not fits:
        raise ValueError(f"y has shape {tuple(y.shape)}, but the predictor has {tuple(like.shape)}: one response a row")
    if y.is_floating_point():
        refuse_rows(owner, y, torch.isnan, "NaN", "drop such rows with gpytorch_gam.data.drop_missing")
        refuse_rows(owner, y, torch.isinf, "infinity", "look for an overflow in the data")


def refuse_rows(owner: str, y: Tensor, is_bad: Callable[[Tensor], Tensor], what: str, remedy: str) -> None:
    """
    Raise a ValueError that counts responses which a likelihood of class ``owner`` cannot have, those where ``is_bad``
    of the responses is true, as in "y has ``what`` in 3 of 10 rows: ``remedy``".
    """
    if not is_looked_at(y):
        return
    values = y.detach()
    bad = is_bad(values.to(torch.uint8) if values.dtype == torch.bool else values)  # booleans cannot be rounded
    if bad.any():
        raise ValueError(f"y has {what} in {int(bad.sum())} of {bad.numel()} rows ({owner}): {remedy}")


def refuse_non_counts(owner: str, y: Tensor) -> None:
    """Responses must be nonnegative whole numbers."""
    refuse_rows(
        owner,
        y,
        lambda values: (values < 0) | (values != values.round()),
        "negative or fractional values",
        "it takes counts 0, 1, 2, ...",
    )


def refuse_non_classes(owner: str, y: Tensor, num_classes: int) -> None:
    """Responses must be numbers of classes, from 0 to ``num_classes - 1``."""
    refuse_rows(
        owner,
        y,
        lambda values: (values < 0) | (values >= num_classes) | (values != values.round()),
        "values that are no classes",
        f"classes are the integers 0 to {num_classes - 1}",
    )
