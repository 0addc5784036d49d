"""Projections from a posterior of inducing variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gpytorch_gam.components import AdditivePredictor
from gpytorch_gam.components.group_projection import project_components, project_sum, whitened_weights
from gpytorch_gam.components.joined_groups import JoinedGroup, by_group, joined_groups
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
        parts, blocks = split_groups(columns, predictor.group_shapes), factors.explained_blocks
        joined, weights = joined_groups(predictor.groups, within_predictors=True), []
        for each in joined:
            cholesky = each.joined(choleskys, -3)
            shared = whitened_weights(cholesky, each.joined(parts, -3)).to(dtype)
            block = None if blocks is None else whitened_weights(cholesky, each.joined(blocks, -3)).to(dtype)
            weights.append(_GroupWeights(shared, block))
        return cls(predictor, _weights_by_group(joined, weights), factors.shared_sign)

    def marginals(self, reading: Reading) -> Marginals:
        """Moments of the P predictors in each row."""
        x, joined = reading.inputs.to(self._dtype), joined_groups(self._predictor.groups, within_predictors=True)
        owners = [each.group.predictor_index for each in joined]
        found = [project_sum(each.group, x, *self._weights_of(each)) for each in joined]
        columns = sum_by_predictor([part.shared for part in found], owners, -3)  # (*batch, P, R + 1, n)
        prior_variance = sum_by_predictor([part.prior_variance for part in found], owners, -2)
        squares = [part.squares for part in found if part.squares is not None]  # either all groups have them, or none
        own_squares = sum_by_predictor(squares, owners, -2) if squares else None
        mean = reading.means + columns[..., -1, :]
        return marginal_moments(mean, prior_variance, own_squares, columns[..., :-1, :], self._sign)

    def components(self, inputs: Tensor) -> ComponentProjections:
        """Projections of all components at inputs ``(*batch, n, D)`` of the predictor."""
        x, joined = inputs.to(self._dtype), joined_groups(self._predictor.groups)
        found = [project_components(each.group, x, *self._weights_of(each)) for each in joined]
        shared = by_group(joined, [part.shared for part in found], -3)
        variances = by_group(joined, [part.prior_variance for part in found], -2)
        blocks: Sequence[Tensor | None] = [None] * len(shared)
        own = [part.block for part in found if part.block is not None]  # either all groups have them, or none
        if own:
            blocks = by_group(joined, own, -3)
        groups = [
            GroupPosterior(projected[..., -1, :], variance, projected[..., :-1, :], block)
            for projected, variance, block in zip(shared, variances, blocks, strict=True)
        ]
        return ComponentProjections(groups, self._sign)

    def _weights_of(self, joined: JoinedGroup) -> _GroupWeights:
        shared = joined.joined([weights.shared for weights in self._weights], -3)
        blocks = [weights.block for weights in self._weights if weights.block is not None]
        return _GroupWeights(shared, joined.joined(blocks, -3) if blocks else None)


def _weights_by_group(joined: Sequence[JoinedGroup], weights: Sequence[_GroupWeights]) -> list[_GroupWeights]:
    shared = by_group(joined, [part.shared for part in weights], -3)
    own = [part.block for part in weights if part.block is not None]
    blocks: Sequence[Tensor | None] = by_group(joined, own, -3) if own else [None] * len(shared)
    return [_GroupWeights(*pair) for pair in zip(shared, blocks, strict=True)]
