"""What a posterior at any rows of data is computed from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from gpytorch_gam.components.reading import Reading
from gpytorch_gam.effects.component_source import ComponentProjections
from gpytorch_gam.numerics.marginals import Marginals


class PosteriorProjection(ABC):
    """The posterior as numbers of one dtype, which project kernels between it and rows of data on what is known."""

    @abstractmethod
    def marginals(self, reading: Reading) -> Marginals:
        """
        Moments of the P predictors in each row.

        :param reading: The rows.
        """

    @abstractmethod
    def components(self, inputs: Tensor) -> ComponentProjections:
        """
        Projections of all components.

        :param inputs: Of the predictor, ``(*batch, n, D)``.
        """


def sum_by_predictor(parts: Sequence[Tensor], owners: Sequence[int], dim: int) -> Tensor:
    """
    Sums over the groups of each predictor.

    :param parts: One a group, without the dimension of predictors.
    :param owners: The predictor of each group; all P are among them.
    :param dim: Where the dimension of predictors is to stand.
    """
    totals: dict[int, Tensor] = {}
    for part, owner in zip(parts, owners, strict=True):
        totals[owner] = totals[owner] + part if owner in totals else part
    if len(totals) == 1:
        return totals[0].unsqueeze(dim)
    return torch.stack(torch.broadcast_tensors(*(totals[owner] for owner in sorted(totals))), dim)
