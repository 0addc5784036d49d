"""Projections from a posterior of inducing variables."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import torch
from gpytorch.settings import trace_mode
from torch import Tensor

from gpytorch_gam.components import AdditivePredictor, ComponentGroup
from gpytorch_gam.components.group_projection import (
    project_components,
    project_sum,
    unknown_variance,
    whitened_weights,
)
from gpytorch_gam.components.joined_groups import JoinedGroup, by_group, joined_groups
from gpytorch_gam.components.reading import Reading
from gpytorch_gam.distributions.predictor_distribution import PredictorMoments
from gpytorch_gam.effects.component_source import ComponentProjections
from gpytorch_gam.effects.component_sums import summed, summed_over_rows
from gpytorch_gam.effects.group_posterior import GroupPosterior
from gpytorch_gam.numerics.blocks import split_groups
from gpytorch_gam.numerics.marginals import Marginals, marginal_moments
from gpytorch_gam.numerics.precision import CovarianceFactors
from gpytorch_gam.numerics.transforms import is_transformed

from ._posterior_projection import PosteriorProjection, sum_by_predictor
from ._predictor_in_blocks import GroupWeights, PredictorInBlocks

# Kernel values in a block of rows, which stay in the cache, and the least number of its rows.
_BLOCK_NUMBERS, _LEAST_BLOCK = 2**18, 64

# Rows for each inducing variable from which on it pays to turn the coupled directions.
_TIMES_MORE_ROWS = 8


class InducingProjection(PosteriorProjection):
    r"""
    The weights :math:`L_c^{-\top} [V_c, F_c, m_c]` of kernels between inducing points and rows. Unless it is
    ``for_training``, the variance of a predictor includes that of components whose columns are missing in a row, for
    which ``unknown`` has the factors of :meth:`ComponentGroup.missing_variance` for each group.
    """

    def __init__(
        self,
        groups: Sequence[ComponentGroup],
        weights: Sequence[GroupWeights],
        unknown: Sequence[Tensor | None],
        sign: int,
        is_for_training: bool = False,
    ) -> None:
        self._groups, self._weights, self._unknown, self._sign = groups, weights, unknown, sign
        self._dtype, self._is_for_training = weights[0].shared.dtype, is_for_training
        self._turned: InducingProjection | None = None

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
            weights.append(GroupWeights(shared, block))
        own: Sequence[Tensor | None] = [None] * len(parts) if blocks is None else blocks
        unknown = [
            None
            if group.missing == "error"
            else unknown_variance(group, root, part, block, factors.shared_sign).to(dtype)
            for group, root, part, block in zip(predictor.groups, choleskys, parts, own, strict=True)
        ]
        return cls(predictor.groups, _weights_by_group(joined, weights), unknown, factors.shared_sign)

    def for_training(self) -> InducingProjection:
        """See :meth:`PosteriorProjection.for_training`."""
        return InducingProjection(self._groups, self._weights, self._unknown, self._sign, is_for_training=True)

    def marginals(self, reading: Reading) -> Marginals:
        """Moments of the P predictors in each row."""
        x, joined = reading.inputs.to(self._dtype), joined_groups(self._groups, within_predictors=True)
        owners = [each.group.predictor_index for each in joined]
        found = [project_sum(each.group, x, *self._weights_of(each)) for each in joined]
        columns = sum_by_predictor([part.shared for part in found], owners, -3)  # (*batch, P, R + 1, n)
        prior_variance = sum_by_predictor([part.prior_variance for part in found], owners, -2)
        prior_variance = self._with_missing(prior_variance, x)
        squares = [part.squares for part in found if part.squares is not None]  # either all groups have them, or none
        own_squares = sum_by_predictor(squares, owners, -2) if squares else None
        mean = reading.means + columns[..., -1, :]
        return marginal_moments(mean, prior_variance, own_squares, columns[..., :-1, :], self._sign)

    def moments(self, reading: Reading) -> PredictorMoments:
        """
        Means and covariances of the P predictors in each row. Without gradients a block of rows is taken through all
        groups at a time: one matrix product for all of them, of kernels that are still in the cache.
        """
        if not self._goes_in_blocks(reading.inputs):
            return super().moments(reading)
        x, dtype = reading.inputs.to(self._dtype), reading.inputs.dtype
        joined = joined_groups(self._groups, within_predictors=True)
        projection = self._turned_for(joined) if len(x) > _TIMES_MORE_ROWS * self._num_inducing else self
        parts = [(each.group.predictor_index, (each.group, projection._weights_of(each))) for each in joined]
        owners = sorted({owner for owner, _ in parts})
        predictors = [PredictorInBlocks([own for other, own in parts if other == owner], x) for owner in owners]
        prior_variance = torch.stack([predictor.prior_variance for predictor in predictors])
        prior_variance = self._with_missing(prior_variance, x)
        found = [self._block(predictors, reading.means, prior_variance, rows) for rows in self._blocks(len(x))]
        means, covariances = zip(*(PredictorMoments.of(part, dtype) for part in found), strict=True)
        return PredictorMoments(torch.cat(means, -2), torch.cat(covariances, -3))

    def _with_missing(self, prior_variance: Tensor, x: Tensor) -> Tensor:
        """Prior variances ``(*batch, P, n)`` of the predictors, with those of components that are unknown in a row."""
        if self._is_for_training or all(factor is None for factor in self._unknown):
            return prior_variance
        owners = sorted({group.predictor_index for group in self._groups})
        totals = list(prior_variance.unbind(-2))
        for group, factor in zip(self._groups, self._unknown, strict=True):
            missing, place = group.missing_variance(x, factor), owners.index(group.predictor_index)
            totals[place] = totals[place] if missing is None else totals[place] + missing.sum(-2)
        return torch.stack(torch.broadcast_tensors(*totals), dim=-2)

    def _block(
        self, predictors: Sequence[PredictorInBlocks], means: Tensor, prior_variance: Tensor, rows: slice
    ) -> Marginals:
        """Moments of some of the rows."""
        squares, own_means, coupled = zip(*(predictor.at(rows) for predictor in predictors), strict=True)
        own = [part for part in squares if part is not None]
        shared = coupled[0].unsqueeze(0) if len(coupled) == 1 else torch.stack(coupled)  # without a copy
        mean = means[..., rows] + torch.stack(own_means)
        return marginal_moments(mean, prior_variance[..., rows], torch.stack(own) if own else None, shared, self._sign)

    def _turned_for(self, joined: Sequence[JoinedGroup]) -> InducingProjection:
        """This, with coupled directions (if there are many) in which the first of ``joined`` have no weight."""
        if self._turned is None:
            starts = [0, *itertools.accumulate(group.num_components for group in self._groups)]
            order = [index for each in joined for place in each.places for index in range(*starts[place : place + 2])]
            weights = _turned(self._weights, self._groups, [order])
            self._turned = InducingProjection(self._groups, weights, self._unknown, self._sign, self._is_for_training)
        return self._turned

    @property
    def _num_inducing(self) -> int:
        return sum(group.num_components * group.num_inducing for group in self._groups)

    def _blocks(self, num_rows: int) -> Iterator[slice]:
        size = max(_LEAST_BLOCK, _BLOCK_NUMBERS // self._num_inducing)
        return (slice(start, min(start + size, num_rows)) for start in range(0, num_rows, size))

    def _goes_in_blocks(self, inputs: Tensor) -> bool:
        is_single = inputs.dim() == 2 and all(
            each.shared.dim() == 3 and group.inducing_points.dim() == 3 and len(group.kernel.batch_shape) <= 1
            for each, group in zip(self._weights, self._groups, strict=True)
        )
        if not is_single or torch.is_grad_enabled() or inputs.device.type != "cpu":
            return False
        return not (trace_mode.on() or is_transformed(inputs) or torch.compiler.is_compiling())

    def components(self, inputs: Tensor) -> ComponentProjections:
        """Projections of all components at inputs ``(*batch, n, D)`` of the predictor."""
        x, joined = inputs.to(self._dtype), joined_groups(self._groups)
        found = [project_components(each.group, x, *self._weights_of(each)) for each in joined]
        shared = by_group(joined, [part.shared for part in found], -3)
        variances = by_group(joined, [part.prior_variance for part in found], -2)
        missing = [group.missing_variance(x, factor) for group, factor in zip(self._groups, self._unknown, strict=True)]
        variances = [own if more is None else own + more for own, more in zip(variances, missing, strict=True)]
        blocks: Sequence[Tensor | None] = [None] * len(shared)
        own = [part.block for part in found if part.block is not None]  # either all groups have them, or none
        if own:
            blocks = by_group(joined, own, -3)
        groups = [
            GroupPosterior(projected[..., -1, :], variance, projected[..., :-1, :], block, factor)
            for projected, variance, block, factor in zip(shared, variances, blocks, self._unknown, strict=True)
        ]
        return ComponentProjections(groups, self._sign)

    def without_others(self, kept: Sequence[int]) -> PosteriorProjection | None:
        """See :meth:`PosteriorProjection.without_others`: for whole groups, of which each predictor has some."""
        starts = [0, *itertools.accumulate(group.num_components for group in self._groups)]
        wanted, places = set(kept), []
        for place, (start, end) in enumerate(itertools.pairwise(starts)):
            own = wanted.intersection(range(start, end))
            if own and len(own) < end - start:
                return None
            places += [place] if own else []
        groups = [self._groups[place] for place in places]
        if {group.predictor_index for group in groups} != {group.predictor_index for group in self._groups}:
            return None
        return self._at_places(places)

    def sums(self, members: Sequence[Sequence[int]]) -> Callable[[Tensor], Marginals]:
        """
        Moments of sums of components, see :meth:`PosteriorProjection.sums`, at the cost of their own groups: the
        squares of a sum's coupled part are those of a triangular factor with as many columns as the sum has variables.
        """
        alone, own = self._with_groups_of(members)
        weights = _turned(alone._weights, alone._groups, own)
        projection = InducingProjection(alone._groups, weights, alone._unknown, self._sign)
        return lambda inputs: summed(projection.components(inputs), own)

    def sum_over_rows(self, members: Sequence[int], inputs: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`PosteriorProjection.sum_over_rows`: at the cost of the groups of these components."""
        alone, (own,) = self._with_groups_of([members])
        return summed_over_rows(alone.components(inputs), alone._groups, own, inputs)

    def _with_groups_of(self, members: Sequence[Sequence[int]]) -> tuple[InducingProjection, list[list[int]]]:
        """The projection of those groups that some components are from, and the numbers of the components in it."""
        starts = [0, *itertools.accumulate(group.num_components for group in self._groups)]
        every = {index for each in members for index in each}
        places = [
            place
            for place, (start, end) in enumerate(itertools.pairwise(starts))
            if not every.isdisjoint(range(start, end))
        ]
        kept = [index for place in places for index in range(starts[place], starts[place + 1])]
        return self._at_places(places), [[kept.index(index) for index in each] for each in members]

    def _at_places(self, places: Sequence[int]) -> InducingProjection:
        """The projection of some of the groups."""
        groups, weights = [self._groups[place] for place in places], [self._weights[place] for place in places]
        return InducingProjection(groups, weights, [self._unknown[place] for place in places], self._sign)

    def _weights_of(self, joined: JoinedGroup) -> GroupWeights:
        shared = joined.joined([weights.shared for weights in self._weights], -3)
        blocks = [weights.block for weights in self._weights if weights.block is not None]
        return GroupWeights(shared, joined.joined(blocks, -3) if blocks else None)


def _weights_by_group(joined: Sequence[JoinedGroup], weights: Sequence[GroupWeights]) -> list[GroupWeights]:
    shared = by_group(joined, [part.shared for part in weights], -3)
    own = [part.block for part in weights if part.block is not None]
    blocks: Sequence[Tensor | None] = by_group(joined, own, -3) if own else [None] * len(shared)
    return [GroupWeights(*pair) for pair in zip(shared, blocks, strict=True)]


def _turned(
    weights: Sequence[GroupWeights], groups: Sequence[ComponentGroup], members: Sequence[Sequence[int]]
) -> list[GroupWeights]:
    """
    The weights with the coupled directions of each sum turned and cut to as many as its components have inducing
    variables, which keeps the squares of the sum. Those of components in none of the sums are zero.
    """
    sizes = [group.num_inducing for group in groups for _ in range(group.num_components)]
    batch = torch.broadcast_shapes(*(each.shared.shape[:-3] for each in weights))
    columns = [each.shared.expand(*batch, *each.shared.shape[-3:]).flatten(-3, -2) for each in weights]
    every = torch.cat(columns, dim=-2).split(sizes, dim=-2)  # one for each component, (*batch, M, R + 1)
    num_directions = every[0].shape[-1] - 1
    width = min(num_directions, max(sum(sizes[index] for index in each) for each in members))
    found = [part.new_zeros(*part.shape[:-1], width + 1) for part in every]
    for each in members:
        stacked = torch.cat([every[index] for index in each], dim=-2)
        coupled = stacked[..., :-1]
        if coupled.shape[-1] >= coupled.shape[-2]:
            coupled = torch.linalg.qr(coupled.mT, mode="r").R.mT
        turned = torch.nn.functional.pad(coupled, (0, width - coupled.shape[-1]))
        turned = torch.cat([turned, stacked[..., -1:]], dim=-1)
        for index, part in zip(each, turned.split([sizes[index] for index in each], dim=-2), strict=True):
            found[index] = part
    by_place = torch.cat(found, dim=-2).split([part.shape[-2] for part in columns], dim=-2)
    return [
        GroupWeights(part.unflatten(-2, each.shared.shape[-3:-1]), each.block)
        for part, each in zip(by_place, weights, strict=True)
    ]
