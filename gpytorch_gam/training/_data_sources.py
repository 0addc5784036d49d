"""The forms in which a fit takes its data, as batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from numbers import Number
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from gpytorch_gam import _checks as checks
from gpytorch_gam.data import RowDataset
from gpytorch_gam.data.streamed_batches import StreamedBatches

# Rows of a minibatch where the caller has not chosen.
_BATCH_SIZE = 1000


class ShuffledRows:
    """Minibatches of rows in memory, in another order in each pass: tensors as in ``(x, y)`` or ``(x, y, dict)``."""

    def __init__(self, data: tuple[Any, ...]) -> None:
        self.data = data
        self.num_rows = len(data[1])

    def __len__(self) -> int:
        return -(-self.num_rows // _BATCH_SIZE)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        x, y, *rest = self.data
        for rows in torch.randperm(self.num_rows, device=x.device).split(_BATCH_SIZE):
            arguments = [{name: value[rows] for name, value in each.items()} for each in rest]
            yield (x[rows], y[rows], *arguments)


def as_batches(data: Any) -> Iterable[Any]:
    """
    The batches of data as :func:`~gpytorch_gam.fit` takes them: tensors and datasets in memory are one batch of all
    rows, other datasets get a shuffled loader, and batches are what they are. Anything else is a TypeError.
    """
    if torch.is_tensor(data):
        raise TypeError("data is a tensor: pass inputs and responses together, fit(model, likelihood, (x, y))")
    if isinstance(data, RowDataset):
        return [(data.x, data.y, data.row_arguments)]
    if isinstance(data, TensorDataset) and len(data.tensors) == 2:
        return [data.tensors]
    if isinstance(data, Dataset) and not isinstance(data, StreamedBatches | IterableDataset):
        return DataLoader(data, batch_size=_BATCH_SIZE, shuffle=True)
    if isinstance(data, tuple | list) and len(data) and _are_inputs(data[0]):
        return [_checked_rows(data)]
    checks.batches(data)
    return data


def _are_inputs(first: Any) -> bool:
    """Whether the first entry of data is inputs, in any form, and no batch."""
    if isinstance(first, tuple | list):
        return len(first) > 0 and (isinstance(first[0], Number) or _are_inputs_of_rows(first[0]))
    return torch.is_tensor(first) or hasattr(first, "shape")


def _are_inputs_of_rows(row: Any) -> bool:
    return isinstance(row, tuple | list) and len(row) > 0 and isinstance(row[0], Number)


def _checked_rows(data: Any) -> tuple[Any, ...]:
    if len(data) in (2, 3):
        checks.tensor("x", data[0])
        checks.tensor("y", data[1])
    else:
        raise TypeError(
            "data must be (x, y) or (x, y, dict of row-wise arguments), a dataset, or batches of these, got a "
            f"{type(data).__name__} of {', '.join(map(checks.shown, data))}"
        )
    return tuple(data)


def as_minibatches(batches: Iterable[Any], is_chosen: bool) -> Iterable[Any]:
    """The batches, or shuffled minibatches of their rows where their size was not chosen by the caller."""
    if is_chosen or not isinstance(batches, list) or len(batches) != 1 or not _is_large(batches[0][1]):
        return batches
    return ShuffledRows(batches[0])


def _is_large(y: Tensor) -> bool:
    return y.dim() > 0 and len(y) > 2 * _BATCH_SIZE
