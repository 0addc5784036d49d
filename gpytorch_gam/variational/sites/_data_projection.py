"""Projections from a posterior of the rows of the training data."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from gpytorch_gam.components import AdditivePredictor
from gpytorch_gam.components.reading import Reading
from gpytorch_gam.effects.component_source import ComponentProjections
from gpytorch_gam.effects.component_sums import summed_over_rows
from gpytorch_gam.effects.group_posterior import GroupPosterior
from gpytorch_gam.numerics.marginals import Marginals, marginal_moments

from .._posterior_projection import PosteriorProjection, sum_by_predictor
from .data_kernels import component_covariance


class DataProjection(PosteriorProjection):
    """Weights of kernels between training data and rows, the same for all components of one predictor."""

    def __init__(self, predictor: AdditivePredictor, weights: Tensor, data: Tensor) -> None:
        # Weights (*batch, N, N + 1) belong to the coupled directions, then to the mean; data are (*batch, N, D).
        self._predictor, self._weights, self._data = predictor, weights.unsqueeze(-3), data

    def marginals(self, reading: Reading) -> Marginals:
        """Moments of the P predictors in each row."""
        x, groups = reading.inputs.to(self._weights.dtype), self._predictor.groups
        owners = [0] * len(groups)
        covariances = [component_covariance(group, self._data, x).sum(-3) for group in groups]
        projected = self._weights.mT @ sum_by_predictor(covariances, owners, -3)  # (*batch, 1, N + 1, n)
        prior_variance = sum_by_predictor([group.prior_variance(x).sum(-2) for group in groups], owners, -2)
        mean = reading.means + projected[..., -1, :]
        return marginal_moments(mean, prior_variance, None, projected[..., :-1, :], -1)

    def components(self, inputs: Tensor) -> ComponentProjections:
        """Projections of all components at inputs ``(*batch, n, D)`` of the predictor."""
        x, groups = inputs.to(self._weights.dtype), []
        for group in self._predictor.groups:
            projected = self._weights.mT @ component_covariance(group, self._data, x)  # (*batch, C_g, N + 1, n)
            groups.append(GroupPosterior(projected[..., -1, :], group.prior_variance(x), projected[..., :-1, :], None))
        return ComponentProjections(groups, -1)

    def sum_over_rows(self, members: Sequence[int], inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean ``(*batch, n)`` and covariance over the rows ``(*batch, n, n)`` of the sum of some components."""
        return summed_over_rows(self.components(inputs), self._predictor.groups, members, inputs)
