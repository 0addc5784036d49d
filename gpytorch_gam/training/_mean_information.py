"""The Fisher information of mean modules, as the curvature of a bound to begin with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gpytorch_gam.numerics.capacitance import add_identity
from gpytorch_gam.optim.rows.predictors import Segment, predictor_segments, sum_over_rows, weighted_gram
from gpytorch_gam.parameters.log_scale import Coordinates
from gpytorch_gam.variational import AdditiveVariationalStrategy

from ._quasi_newton import Known
from ._site_rows import SiteRows
from .starting_values import mean_modules

# Step of the differences that give the derivatives of means, which are linear as a rule, as a power of the rounding
# error; and the most parameters of means for which these are taken, as a mean may be a network.
_STEP, _MOST = 0.2, 100


class MeanInformation:
    """
    The Fisher information of the ``parameters`` that are trained ones of mean modules, in their ``coordinates``: minus
    the second derivatives of the bound if means are linear in them. Components that can do what a mean does leave it
    little, far less than the rows alone would give.
    """

    def __init__(
        self, strategy: AdditiveVariationalStrategy, parameters: Sequence[Tensor], coordinates: Coordinates
    ) -> None:
        self._strategy, self._coordinates = strategy, coordinates
        own = {id(parameter) for module in mean_modules(strategy) for parameter in module.parameters()}
        is_own = [id(parameter) in own for parameter in parameters for _ in range(parameter.numel())]
        self._entries = [entry for entry, is_chosen in enumerate(is_own) if is_chosen]

    @property
    def is_wanted(self) -> bool:
        """Whether there is something to know, and not too much."""
        return 0 < len(self._entries) <= _MOST

    def sums(self, rows: SiteRows) -> MeanSums:
        """Sums over some rows, which add up. Hyperparameters are left where they were moved to."""
        segments = predictor_segments(self._strategy.predictor)
        return sums_of_means(rows.features, rows.curvatures, self._derivatives(rows.x), segments)

    def of_sums(self, sums: Sequence[Tensor]) -> Known:
        """The information of all rows, from the sums over them."""
        return Known(self._entries, information_of_means(MeanSums(*sums)))

    def _derivatives(self, x: Tensor) -> Tensor:
        """Those of the means at rows, ``(k, P, n)``."""
        here, present, moved = self._coordinates.read(), self._means(x), []
        step = torch.finfo(x.dtype).eps ** _STEP
        for entry in self._entries:
            self._coordinates.write_moved(here, [entry], step)
            moved.append(self._means(x))
        return (torch.stack(moved) - present) / step

    def _means(self, x: Tensor) -> Tensor:
        """The prior means of the predictors at rows, ``(P, n)``."""
        return self._strategy.read(x).means.double()


class MeanSums(NamedTuple):
    """Sums over rows with the derivatives d of means."""

    gram: Tensor  # Phi Lambda Phi', (Q, Q)
    projected: Tensor  # Phi Lambda d, (Q, k)
    total: Tensor  # d' Lambda d, (k, k)


def sums_of_means(features: Tensor, curvatures: Tensor, derivatives: Tensor, segments: Sequence[Segment]) -> MeanSums:
    """Those over rows of features ``(Q, n)``, curvatures ``(P, P, n)`` and derivatives ``(k, P, n)``."""
    weighted = torch.einsum("pqn,kqn->kpn", curvatures, derivatives)
    return MeanSums(
        weighted_gram(features, curvatures, segments),
        sum_over_rows(features, weighted.permute(1, 2, 0), segments),
        torch.einsum("ipn,jpn->ij", derivatives, weighted),
    )


def information_of_means(sums: MeanSums) -> Tensor:
    r"""
    The Fisher information of means, :math:`d_i^\top \Sigma^{-1} d_j` with their derivatives d at the rows and
    :math:`\Sigma = \Lambda^{-1} + \Phi^\top \Phi`.
    """
    cholesky = torch.linalg.cholesky(add_identity(sums.gram))
    explained = torch.linalg.solve_triangular(cholesky, sums.projected, upper=False)
    return sums.total - explained.mT @ explained
