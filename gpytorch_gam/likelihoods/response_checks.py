"""Whether responses are such as a likelihood can have; values are looked at on the CPU and in debug mode alone."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .row_argument import is_looked_at


def check_responses(owner: str, y: Tensor, like: Tensor) -> None:
    """
    Responses must be a tensor of one entry a row, without NaN and infinities.

    :param owner: Name of the likelihood's class.
    :param y: Responses, ``(*batch, n)``.
    :param like: Mean of the predictor, ``(*batch, n)``.
    :raises TypeError: If y is not a tensor.
    :raises ValueError: If shape, device or values do not fit.
    """
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
    Count responses that a likelihood cannot have.

    :param owner: Name of the likelihood's class.
    :param y: Responses.
    :param is_bad: Marks the bad ones among responses.
    :param what: What the bad ones are, for "y has ... in 3 of 10 rows".
    :param remedy: What to do, or what the likelihood takes.
    :raises ValueError: If there is one.
    """
    if not is_looked_at(y):
        return
    values = y.detach()
    bad = is_bad(values.to(torch.uint8) if values.dtype == torch.bool else values)  # booleans cannot be rounded
    if bad.any():
        raise ValueError(f"y has {what} in {int(bad.sum())} of {bad.numel()} rows ({owner}): {remedy}")


def refuse_non_counts(owner: str, y: Tensor) -> None:
    """Responses must be whole numbers and not negative."""
    refuse_rows(
        owner,
        y,
        lambda values: (values < 0) | (values != values.round()),
        "negative or fractional values",
        "it takes counts 0, 1, 2, ...",
    )


def refuse_non_classes(owner: str, y: Tensor, num_classes: int) -> None:
    """Responses must be numbers of classes."""
    refuse_rows(
        owner,
        y,
        lambda values: (values < 0) | (values >= num_classes) | (values != values.round()),
        "values that are no classes",
        f"classes are the integers 0 to {num_classes - 1}",
    )
