"""A dataset of rows with row-wise arguments of the likelihood."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.data import Dataset


class RowDataset(Dataset[tuple[Tensor, Tensor, dict[str, Tensor]]]):
    """
    A dataset of inputs, responses, and row-wise arguments of the likelihood: offsets, weights, exposures, numbers of
    trials. A ``DataLoader`` makes triples ``(x, y, {"exposure": ...})`` of them, which all of ``gpytorch_gam.training``
    takes.

    :param x: Inputs ``(n, D)``.
    :param y: Responses ``(n)``.
    :param row_arguments: The row-wise arguments by name, tensors with n rows.
    :ivar row_arguments: The same by name.
    :raises TypeError: If an argument is not a tensor with rows.
    :raises ValueError: If the numbers of rows differ.

    Example:
        >>> loader = DataLoader(RowDataset(x, counts, exposure=hours), batch_size=500, shuffle=True)
        >>> fit(model, PoissonLikelihood(), loader)
    """

    def __init__(self, x: Tensor, y: Tensor, **row_arguments: Tensor) -> None:
        for name, value in {"x": x, "y": y, **row_arguments}.items():
            if not torch.is_tensor(value) or value.dim() == 0:
                raise TypeError(f"{name} must be a tensor with one row for each row of the data, got {value!r}")
            if len(value) != len(x):
                raise ValueError(f"{name} has {len(value)} rows, but x has {len(x)}")
        self.x, self.y, self.row_arguments = x, y, row_arguments

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        return self.x[index], self.y[index], {name: value[index] for name, value in self.row_arguments.items()}
