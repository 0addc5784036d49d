"""Data without the rows that have no response."""

from __future__ import annotations

import numbers
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpytorch_gam import _checks as checks


class RowsWithResponse(NamedTuple):
    """
    The rows of data that have a response.

    :ivar x: inputs ``(m, D)``.
    :ivar y: responses ``(m,)`` or ``(m, k)``.
    :ivar row_arguments: row-wise arguments of the likelihood, tensors ``(m, ...)``; scalars are unchanged.
    :ivar num_dropped: number of rows that were dropped.
    """

    x: Tensor
    y: Tensor
    row_arguments: dict[str, Any]
    num_dropped: int


def drop_missing(x: Tensor, y: Tensor, **row_arguments: Tensor | float) -> RowsWithResponse:
    """
    Drop the rows whose response is missing, that is NaN in any column of ``y``. Infinity stays, and is an error later
    on; so are missing inputs, unless components are declared ``missing="marginal"``.

    :param x: Inputs ``(n, D)``.
    :param y: Responses ``(n,)``, or several a row ``(n, k)``.
    :param row_arguments: Row-wise arguments of the likelihood, such as ``offset`` or ``weights``: tensors with n rows
        ``(n, ...)``, or scalars.
    :return: The remaining rows, and the number of those that were dropped. If none was, the tensors are the given ones.
    :raises TypeError: If ``x`` or ``y`` is not a tensor, or a row-wise argument neither a tensor nor a number.
    :raises ValueError: If numbers of rows differ, or no row remains.

    Example:
        >>> x, y, row_arguments, num_dropped = drop_missing(x, y, offset=offset)
        >>> mll(model(x), y, **row_arguments)
    """
    if checks.tensor("x", x).dim() != 2:
        raise ValueError(f"x must have shape (n, D), got {tuple(x.shape)}")
    if checks.tensor("y", y).dim() not in (1, 2) or len(y) != len(x):
        raise ValueError(
            f"y must have shape ({len(x)},) or ({len(x)}, k) beside {len(x)} rows of x, got {tuple(y.shape)}"
        )
    for name, argument in row_arguments.items():
        if not torch.is_tensor(argument) and not isinstance(argument, numbers.Real) and argument is not None:
            raise TypeError(f"{name} must be a torch.Tensor or a number, got {type(argument).__name__}")
    by_row = {name: value for name, value in row_arguments.items() if torch.is_tensor(value) and value.dim() > 0}
    for name, value in by_row.items():
        if len(value) != len(x):
            raise ValueError(f"{name} must have {len(x)} rows as x has, or be a scalar, got shape {tuple(value.shape)}")
    is_missing = y.isnan() if y.dim() == 1 else y.isnan().any(-1)
    num_dropped = int(is_missing.sum())
    if num_dropped == len(x):
        found = f"y is missing in {num_dropped} of {len(x)} rows" if len(x) else "x has no rows"
        raise ValueError(f"no row is left: {found}")
    if num_dropped == 0:
        return RowsWithResponse(x, y, dict(row_arguments), 0)
    kept = (~is_missing).nonzero().flatten()
    left = {name: value.index_select(0, kept.to(value.device)) for name, value in by_row.items()}
    return RowsWithResponse(
        x.index_select(0, kept.to(x.device)), y.index_select(0, kept), {**row_arguments, **left}, num_dropped
    )
