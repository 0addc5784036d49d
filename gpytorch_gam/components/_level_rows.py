"""Components whose inducing variables are independent levels, of which a row sees one: lookups, not matrices."""

from __future__ import annotations

from typing import NamedTuple

import torch
from gpytorch.kernels import Kernel, ScaleKernel
from torch import Tensor

from gpytorch_gam.kernels import LevelKernel


class LevelRows(NamedTuple):
    """
    Where rows find their levels among the inducing points.

    :ivar place: of the level of each row, ``(*batch, C_g, n)``; any where it is none of them.
    :ivar covariance: of the component in each row with that inducing variable, ``(*batch, C_g, n)``; 0 where there is
        none.
    """

    place: Tensor
    covariance: Tensor

    def take(self, weights: Tensor) -> Tensor:
        """
        Weights of the levels of the rows, times the covariances.

        :param weights: ``(*batch, C_g, M, k)``.
        :return: ``(*batch, C_g, n, k)``.
        """
        return torch.take_along_dim(weights, self.place.unsqueeze(-1), dim=-2) * self.covariance.unsqueeze(-1)

    def matrix(self, num_levels: int) -> Tensor:
        """
        The covariances as a matrix with one number in each column, ``(*batch, C_g, M, n)``.

        :param num_levels: M.
        """
        values = self.covariance.unsqueeze(-2)
        empty = values.new_zeros(*values.shape[:-2], num_levels, values.shape[-1])
        return empty.scatter(-2, self.place.expand_as(self.covariance).unsqueeze(-2), values)


def has_independent_levels(kernel: Kernel, points: Tensor) -> bool:
    """
    Whether points are independent under a kernel, so that their covariance is diagonal.

    :param kernel: Of components.
    :param points: ``(*batch, C_g, M, d)``.
    """
    while type(kernel) is ScaleKernel:
        kernel = kernel.base_kernel
    if type(kernel) is not LevelKernel or points.shape[-1] != 1:
        return False
    ordered = points.detach().float().squeeze(-1).sort(-1).values
    return bool((ordered.diff() != 0).all())


def find_levels(column: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
    """
    Places of values among codes, compared in single precision.

    :param column: Values ``(*batch, C_g, n)``, float32.
    :param codes: Distinct codes ``(*batch, C_g, M)``, float32.
    :return: ``(*batch, C_g, n)``, and whether the value is there.
    """
    batch = torch.broadcast_shapes(column.shape[:-1], codes.shape[:-1])
    ordered, order = (part.expand(*batch, -1).contiguous() for part in codes.sort(-1))
    column = column.expand(*batch, -1).contiguous()
    position = torch.searchsorted(ordered, column).clamp_max(codes.shape[-1] - 1)
    return order.gather(-1, position), ordered.gather(-1, position) == column
