"""Sobol indices as text."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import torch
from torch import Tensor

from gpytorch_gam.components import AdditivePredictor, ComponentGroup
from gpytorch_gam.components.names import default_names

# Decimals that are printed at least and at most, and indices that have no say in their number.
_FEWEST, _MOST, _SMALL = 4, 6, 0.005

# By how much sums of indices may miss what they would be with independent columns: moments over a thousand random rows.
_ROUNDING = 0.05

# A column in the name of a component for which its user gave none, and the kind before it.
_COLUMN, _KIND = re.compile(r"\bx(\d+)\b"), re.compile(r"(\w+)\(")

# Mean and ends of the interval of one index.
Interval = tuple[Tensor, Tensor, Tensor]


def names_of_columns(predictor: AdditivePredictor, reads: Sequence[set[int]]) -> dict[int, str]:
    """
    The names of the columns that components read: those that the predictor knows from its training; or that of the
    first component that reads the column alone, if its user chose one; otherwise, and with several predictors, x0, x1,
    ...

    :param predictor: The components.
    :param reads: The columns that each of them reads.
    """
    read = sorted(set().union(*reads))
    if predictor.known_inputs is not None and predictor.known_inputs.names:
        return {column: predictor.known_inputs.names[column] for column in read}
    found = {column: f"x{column}" for column in read}
    for name, own, is_default in reversed(
        list(zip(predictor.names, reads, _have_default_names(predictor), strict=True))
    ):
        if predictor.num_predictors == 1 and len(own) == 1 and not is_default:
            found[next(iter(own))] = name
    return found


def shown_names(predictor: AdditivePredictor, columns: dict[int, str]) -> list[str]:
    """
    The names of components, those that their user did not choose with the names of columns in place of x0, x1, ...

    :param predictor: The components.
    :param columns: The names of columns.
    """
    pairs = zip(predictor.names, _have_default_names(predictor), strict=True)
    return [_shown_name(name, columns) if is_default else name for name, is_default in pairs]


def _have_default_names(predictor: AdditivePredictor) -> list[bool]:
    """Whether each component has the name that it gets from its columns if its user gives none."""
    named = ((group, place, name) for group in predictor.groups for place, name in enumerate(group.names))
    return [name == _default_name(group, place, name) for group, place, name in named]


def _default_name(group: ComponentGroup, place: int, name: str) -> str:
    kind = _KIND.match(name)
    return default_names(
        [group.columns[place].tolist()],
        [group.multiplier_columns[place]],
        [group.multiplier_levels[place]],
        group.levels,
        group.predictor_index,
        kind[1] if kind else None,
    )[0]


def _shown_name(name: str, columns: dict[int, str]) -> str:
    before, equals, level = name.partition("=")
    return _COLUMN.sub(lambda found: columns.get(int(found[1]), found[0]), before) + equals + level


def table_lines(head: str, names: Sequence[str], indices: dict[str, Interval], probability: float) -> list[str]:
    """
    A table with a line for each name.

    :param head: What the names are of.
    :param names: The names.
    :param indices: Means and intervals ``(K,)`` by the names of the indices.
    :param probability: That of the intervals.
    """
    width = max(len(name) for name in (*names, head))
    values = torch.stack([torch.stack(each, -1) for each in indices.values()], -2)  # (K, indices, 3)
    decimals = _decimals(values)
    size = decimals + 3  # with a sign
    interval = f"{f'{probability:.0%} interval':>{2 * size + 2}}"
    heads = [f"{kind:>{max(size, len(kind))}}  {interval}" for kind in indices]
    lines = ["  ".join([f"{head:<{width}}", *heads])]
    rounded = torch.round(values.double(), decimals=decimals) + 0.0  # no -0.0000
    for name, row in zip(names, rounded.tolist(), strict=True):
        cells = [
            "  ".join([f"{mean:{max(size, len(kind))}.{decimals}f}", *(f"{end:{size}.{decimals}f}" for end in ends)])
            for kind, (mean, *ends) in zip(indices, row, strict=True)
        ]
        lines.append("  ".join([f"{name:<{width}}", *cells]))
    return lines


def _decimals(values: Tensor) -> int:
    """Four decimals, or as many as show two digits of the width of the narrowest interval."""
    widths = (values[..., 2] - values[..., 1])[values[..., 0] > _SMALL]
    widths = widths[widths > 0]
    if not len(widths):
        return _FEWEST
    return min(max(_FEWEST, 1 + math.ceil(-math.log10(widths.min().item()))), _MOST)


def signs_of_dependence(names: Sequence[str], first_order: Tensor, total: Tensor) -> str:
    """
    What shows that the indices of one predictor are no shares of its variance; empty if nothing does.

    :param names: The names of the columns.
    :param first_order: Their first-order indices ``(J,)``.
    :param total: Their total indices ``(J,)``.
    """
    if not len(names) or not total.any():
        return ""
    found = []
    if first_order.sum() > 1 + _ROUNDING:
        found.append(f"first-order indices sum to {first_order.sum():.2f}")
    if total.sum() < 1 - _ROUNDING:
        found.append(f"total indices sum to {total.sum():.2f}")
    below = [name for name, one, all_ in zip(names, first_order, total, strict=True) if all_ < one - _ROUNDING]
    if below:
        found.append(f"total indices are below first-order ones of {', '.join(below)}")
    return " and ".join(found)
