"""Posteriors in the form from which moments at any rows are computed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gpytorch_gam.components.reading import Reading
from gpytorch_gam.distributions.predictor_distribution import PredictorMoments
from gpytorch_gam.effects.component_source import ComponentProjections
from gpytorch_gam.effects.component_sums import summed
from gpytorch_gam.numerics.marginals import Marginals


class PosteriorProjection(ABC):
    """A posterior as weights of kernels: between the points or data that carry it, and rows."""

    @abstractmethod
    def marginals(self, reading: Reading) -> Marginals:
        """Moments of the P predictors in each row."""

    def moments(self, reading: Reading) -> PredictorMoments:
        """Means of the P predictors in each row, and the covariance between them."""
        return PredictorMoments.of(self.marginals(reading), reading.inputs.dtype)

    @abstractmethod
    def components(self, inputs: Tensor) -> ComponentProjections:
        """Projections of all components at inputs ``(*batch, n, D)`` of the predictor."""

    def for_training(self) -> PosteriorProjection:
        """
        The same where components that are unknown in a row, for want of a column, are at their mean of zero, see
        :class:`~gpytorch_gam.components.ComponentGroup`.
        """
        return self

    def without_others(self, kept: Sequence[int]) -> PosteriorProjection | None:
        """The posterior of some components, by number, as if there were no others; None if it has no such form."""
        return None

    def sums(self, members: Sequence[Sequence[int]]) -> Callable[[Tensor], Marginals]:
        """
        A function from inputs of the predictor to moments ``(*batch, K, n)`` of K sums, of each of which ``members``
        has the numbers of the components. No component is in two of them.
        """
        return lambda inputs: summed(self.components(inputs), members)

    @abstractmethod
    def sum_over_rows(self, members: Sequence[int], inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean ``(*batch, n)`` and covariance over the rows ``(*batch, n, n)`` of the sum of some components."""


def sum_by_predictor(parts: Sequence[Tensor], owners: Sequence[int], dim: int) -> Tensor:
    """Sum the groups' parts over the groups of each of P predictors; ``dim`` of the result has size P."""
    totals: dict[int, Tensor] = {}
    for part, owner in zip(parts, owners, strict=True):
        totals[owner] = totals[owner] + part if owner in totals else part
    if len(totals) == 1:
        return totals[0].unsqueeze(dim)
    return torch.stack(torch.broadcast_tensors(*(totals[owner] for owner in sorted(totals))), dim)
