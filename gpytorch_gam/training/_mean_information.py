"""The Fisher information of mean modules, as the curvature of a bound to begin with."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from linear_operator.utils.errors import NanError, NotPSDError
from torch import Tensor

from gpytorch_gam.components import AdditivePredictor
from gpytorch_gam.numerics.capacitance import add_identity
from gpytorch_gam.optim.processes import Processes
from gpytorch_gam.optim.rows.predictors import Segment, predictor_segments, sum_over_rows, weighted_gram
from gpytorch_gam.parameters.log_scale import Coordinates

from ._component_scan import SiteView
from ._quasi_newton import Known
from ._row_bound import RowBound

# Step of the differences that give the derivatives of means, which are linear as a rule; and the most parameters of
# means for which these are taken, as a mean may be a network.
_STEP, _MOST = 1e-3, 100


class MeanInformation:
    """
    The Fisher information of the ``parameters`` that are trained ones of mean modules, in their ``coordinates``: minus
    the second derivatives of the bound if means are linear in them. Components that can do what a mean does leave it
    little, far less than the rows alone would give.
    """

    def __init__(
        self, objective: RowBound, predictor: AdditivePredictor, parameters: Sequence[Tensor], coordinates: Coordinates
    ) -> None:
        self._objective, self._predictor = objective, predictor
        self._parameters, self._coordinates = list(parameters), coordinates
        own = {id(each) for each in objective.mean_parameters}
        is_own = [id(parameter) in own for parameter in parameters for _ in range(parameter.numel())]
        self._entries = [entry for entry, is_chosen in enumerate(is_own) if is_chosen]

    @torch.no_grad()
    def __call__(self) -> Known | None:
        """The information at the present hyperparameters; None where there is nothing to know, or the bound is not."""
        if not 0 < len(self._entries) <= _MOST:
            return None
        try:
            view = self._objective.site_view()
            if view is None:
                return None
            segments = predictor_segments(self._predictor)
            curvature = information_of_means(view, self._derivatives(), segments, self._objective.processes)
        except (torch.linalg.LinAlgError, NotPSDError, NanError):
            return None
        return Known(self._entries, curvature) if torch.isfinite(curvature.sum()) else None

    def _derivatives(self) -> Tensor:
        """Those of the means at the rows, ``(k, P, n)``."""
        origin, here = [parameter.clone() for parameter in self._parameters], self._coordinates.read()
        present, moved = self._objective.means(), []
        try:
            for entry in self._entries:
                self._coordinates.write_moved(here, [entry], _STEP)
                moved.append(self._objective.means())
        finally:
            for parameter, value in zip(self._parameters, origin, strict=True):
                parameter.copy_(value)
        return (torch.stack(moved) - present) / _STEP


def information_of_means(
    view: SiteView, derivatives: Tensor, segments: Sequence[Segment], processes: Processes
) -> Tensor:
    r"""
    The Fisher information of means, :math:`d_i^\top \Sigma^{-1} d_j` with their derivatives d at the rows ``(k, P, n)``
    and :math:`\Sigma = \Lambda^{-1} + \Phi^\top \Phi`.
    """
    weighted = torch.einsum("pqn,kqn->kpn", view.curvatures, derivatives)
    gram, projected, total = processes.sum(
        [
            weighted_gram(view.features, view.curvatures, segments),
            sum_over_rows(view.features, weighted.permute(1, 2, 0), segments),
            torch.einsum("ipn,jpn->ij", derivatives, weighted),
        ]
    )
    explained = torch.linalg.solve_triangular(torch.linalg.cholesky(add_identity(gram)), projected, upper=False)
    return total - explained.mT @ explained
