"""Rows that differ in some columns."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

# Number of rows in which a column is looked at first, and the share of different values among them from which on it is
# taken to have too many.
_NUM_SEEN, _LARGEST_SHARE = 4096, 0.97


def distinct_rows(x: Tensor, columns: Sequence[int]) -> tuple[Tensor, Tensor] | None:
    """
    Rows of ``x``, ``(n, D)``, one for each combination of values in some columns, and for each row the place of its own
    among these. None if they are more than half of all rows, or seem to be.
    """
    most, code, count = len(x) // 2, None, 1
    if any(_seem_distinct(x[:, column]) for column in columns):
        return None
    for column in columns:
        code, count = _with_values(code, x[:, column])
        if count > most:
            return None
    if code is None:
        code = x.new_zeros(len(x), dtype=torch.long)
    place = code.new_empty(count)
    place[code] = torch.arange(len(x), device=x.device)
    return place, code


def _seem_distinct(values: Tensor) -> bool:
    """Whether nearly all of some of the values differ, so that there is no need to sort all."""
    step = len(values) // _NUM_SEEN
    return step > 1 and len(values[::step].unique()) > _LARGEST_SHARE * len(values[::step])


def _with_values(code: Tensor | None, values: Tensor) -> tuple[Tensor, int]:
    """Numbers 0, 1, ... of the combinations of a code, if there is one, and values, and how many they are."""
    levels, own = values.unique(return_inverse=True)
    if code is None:
        return own, len(levels)
    combinations, joint = (code * len(levels) + own).unique(return_inverse=True)
    return joint, len(combinations)
