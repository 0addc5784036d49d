"""Projections from a posterior of inducing variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gpytorch_gam.components import AdditivePredictor
from gpytorch_gam.components.group_projection import project_components, project_sum, whitened_weights
from gpytorch_gam.components.reading import Reading
from gpytorch_gam.effects.component_source import ComponentProjections
from gpytorch_gam.effects.group_posterior import GroupPosterior
from gpytorch_gam.numerics.blocks import split_groups
from gpytorch_gam.numerics.marginals import Marginals, marginal_moments
from gpytorch_gam.numerics.precision import CovarianceFactors

from ._posterior_projection import PosteriorProjection, sum_by_predictor


class _GroupWeights(NamedTuple):
    shared: Tensor  # (*batch, C_g, M, R + 1): columns of F, then the mean
    block: Tensor | None  # (*batch, C_g, M, r)


class InducingProjection(PosteriorProjection):
    r"""The weights :math:`L_c^{-\top} [V_c, F_c, m_c]` of kernels between inducing points and rows."""

    def __init__(self, predictor: AdditivePredictor, weights: Sequence[_GroupWeights], sign: int) -> None:
        self._predictor, self._weights, self._sign = predictor, weights, sign
        self._dtype = weights[0].shared.dtype

    @classmethod
    def of(
        cls,
        predictor: AdditivePredictor,
        factors: CovarianceFactors,
        choleskys: Sequence[Tensor],
        dtype: torch.dtype,
    ) -> InducingProjection:
        """The weights of a posterior of whitened variables: solved in float64, stored in the dtype of the data."""
        columns = factors.mean.unsqueeze(-1)
        if factors.explained_shared is not None:
            columns = torch.cat([factors.explained_shared, columns], dim=-1)
        parts = split_groups(columns, predictor.group_shapes)
        weights = []
        for cholesky, part, own in zip(choleskys, parts, factors.explained_blocks or (None,) * len(parts), strict=True):
            block = None if own is None else whitened_weights(cholesky, own).to(dtype)
            weights.append(_GroupWeights(whitened_weights(cholesky, part).to(dtype), block))
        return cls(predictor, weights, factors.shared_sign)

    def marginals(self, reading: Reading) -> Marginals:
        """Moments of the P predictors in each row."""
        x, groups = reading.inputs.to(self._dtype), self._predictor.groups
        owners = [group.predictor_index for group in groups]
        found = [project_sum(group, x, *weights) for group, weights in zip(groups, self._weights, strict=True)]
        columns = sum_by_predictor([part.shared for part in found], owners, -3)  # (*batch, P, R + 1, n)
        prior_variance = sum_by_predictor([part.prior_variance for part in found], owners, -2)
        squares = [part.squares for part in found if part.squares is not None]  # either all groups have them, or none
        own_squares = sum_by_predictor(squares, owners, -2) if squares else None
        mean = reading.means + columns[..., -1, :]
        return marginal_moments(mean, prior_variance, own_squares, columns[..., :-1, :], self._sign)

    def components(self, inputs: Tensor) -> ComponentProjections:
        """Projections of all components at inputs ``(*batch, n, D)`` of the predictor."""
        x, groups = inputs.to(self._dtype), []
        for group, weights in zip(self._predictor.groups, self._weights, strict=True):
            projected, block, prior_variance = project_components(group, x, *weights)
            groups.append(GroupPosterior(projected[..., -1, :], prior_variance, projected[..., :-1, :], block))
        return ComponentProjections(groups, self._sign)
