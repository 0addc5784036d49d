r"""Sums :math:`\sum_n \Phi_n \Lambda_n \Phi_n^\top` over rows of data, without a :math:`Q \times Q` matrix."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gpytorch_gam.numerics.blocks import split_groups

from .move_limit import MoveLimit
from .predictors import (
    ONE_PREDICTOR,
    Segment,
    product_in_rows,
    scale_features,
    semidefinite_rows,
    sum_over_rows,
    weighted_gram,
)

# A step moves the mean by at most this many prior standard deviations of the predictor in a row.
LONGEST_MOVE = 3.0

# Keeps quotients finite where numerator and denominator may both be zero.
_SMALL = 1e-150

# Number of features whose products are in memory at a time, and the least number of rows to which they belong.
_BLOCK_NUMBERS, _LEAST_ROWS = 2**18, 64


class FeatureChunk(NamedTuple):
    """The features and derivatives of n rows, in float64."""

    features: Tensor  # phi_n, (Q, n)
    gradients: Tensor  # g_n, derivatives of the expected log-likelihood in the means of the predictors, (P, n)
    curvatures: Tensor  # Lambda_n, minus twice those in their covariance, (P, P, n), semidefinite in each row
    raw_curvatures: Tensor  # as they were: with several predictors only their sum over the rows is definite

    @classmethod
    def of_rows(cls, features: Tensor, gradients: Tensor, curvatures: Tensor) -> FeatureChunk:
        """Make a chunk from features ``(Q, n)`` and derivatives ``(n, P)`` and ``(n, P, P)``."""
        raw = curvatures.movedim(0, -1)
        semidefinite = semidefinite_rows(raw)
        return cls(features, gradients.mT, semidefinite, semidefinite if len(raw) == 1 else raw)


class Totals(NamedTuple):
    """Sums over all rows."""

    blocks: list[Tensor]  # diagonal blocks of Phi Lambda Phi', (count, size, size) for each group
    projected: Tensor  # Phi g, (Q,)


def _blocks_of_rows(values: Tensor, size: int | None = None) -> tuple[Tensor, ...]:
    """Values ``(k, n)`` beside features ``(size, n)``, by default these themselves, in blocks that fit into caches."""
    return values.split(max(_LEAST_ROWS, _BLOCK_NUMBERS // (size or len(values))), dim=-1)


class RowSums(ABC):
    """The sums over rows that a step needs."""

    @abstractmethod
    def totals(self, shapes: Sequence[tuple[int, int]]) -> Totals:
        """The diagonal blocks, for groups of ``(count, size)``, and the projected gradients."""

    @abstractmethod
    def gram(self) -> tuple[Tensor, Tensor]:
        r"""All of :math:`\Phi\Lambda\Phi^\top`, ``(Q, Q)``, and :math:`\Phi g`, ``(Q,)``."""

    @abstractmethod
    def apply(self, columns: Tensor) -> Tensor:
        r""":math:`\Phi \Lambda \Phi^\top X`, ``(Q, k)`` like X."""

    @abstractmethod
    def resistance(self, direction: Tensor) -> Resistance:
        """Curvature of the rows' quadratic model along a direction ``(Q,)``, and the longest step allowed along it."""


class WeightedFeatures(RowSums):
    """Sums over the rows of chunks; subclasses yield the chunks as often as they are asked to."""

    segments: Sequence[Segment] = ONE_PREDICTOR  # the predictors that the inducing variables belong to
    move_limit: MoveLimit | None = None  # None where nothing is known of the likelihood, or its curvature is constant

    @abstractmethod
    def chunks(self) -> Iterator[FeatureChunk]:
        """Yield all rows, in at least one chunk."""

    def totals(self, shapes: Sequence[tuple[int, int]]) -> Totals:
        r"""The diagonal blocks and the projected gradients, in one pass. Cost :math:`O(N \sum_c M_c^2)`."""
        blocks: list[Tensor] | None = None
        projected: Tensor | None = None
        for chunk in self.chunks():
            diagonal = chunk.curvatures.diagonal(dim1=0, dim2=1).mT
            for features, weights in zip(
                _blocks_of_rows(chunk.features), _blocks_of_rows(diagonal, len(chunk.features)), strict=True
            ):
                weighted = split_groups(scale_features(features, weights, self.segments), shapes)
                new = [left @ right.mT for left, right in zip(weighted, split_groups(features, shapes), strict=True)]
                blocks = new if blocks is None else [old.add_(own) for old, own in zip(blocks, new, strict=True)]
            own_projected = self._projected(chunk)
            projected = own_projected if projected is None else projected + own_projected
        assert blocks is not None and projected is not None
        return Totals(blocks, projected)

    def _projected(self, chunk: FeatureChunk) -> Tensor:
        return sum_over_rows(chunk.features, chunk.gradients.unsqueeze(-1), self.segments).squeeze(-1)

    def gram(self) -> tuple[Tensor, Tensor]:
        """The dense sums, in :math:`O(N Q^2)`. With several predictors the first may be slightly indefinite."""
        total: tuple[Tensor, Tensor] | None = None
        for chunk in self.chunks():
            gram = weighted_gram(chunk.features, chunk.raw_curvatures, self.segments)
            projected = self._projected(chunk)
            total = (gram, projected) if total is None else (total[0] + gram, total[1] + projected)
        assert total is not None
        return total

    def apply(self, columns: Tensor) -> Tensor:
        r""":math:`\Phi \Lambda \Phi^\top X`, ``(Q, k)`` like X. Cost :math:`O(N Q k)`."""
        total = torch.zeros_like(columns)
        for features, _, curvatures, _ in self.chunks():
            seen = product_in_rows(features, columns, len(curvatures), self.segments)
            weighted = (curvatures.unsqueeze(-1) * seen.unsqueeze(0)).sum(1)
            total = total + sum_over_rows(features, weighted, self.segments)
        return total

    def resistance(self, direction: Tensor) -> Resistance:
        """Curvature of the rows' quadratic model along a direction ``(Q,)``, and the longest step allowed along it."""
        curvature, largest = direction.new_zeros(()), direction.new_zeros(())
        for features, _, curvatures, _ in self.chunks():
            change = product_in_rows(features, direction.unsqueeze(-1), len(curvatures), self.segments).squeeze(-1)
            curvature = curvature + (curvatures * change.unsqueeze(0) * change.unsqueeze(1)).sum()
            prior_stddev = self._prior_variances(features, len(curvatures)).sqrt()
            # It is 0 far from all inducing points, where nothing moves.
            largest = torch.maximum(largest, (change.abs() / prior_stddev.clamp_min(_SMALL)).amax() / LONGEST_MOVE)
            if self.move_limit is not None:
                largest = torch.maximum(largest, self.move_limit.usage_in_rows(change))
        if self.move_limit is not None:
            largest = torch.maximum(largest, self.move_limit.usage_at_points(direction))
        return Resistance(curvature, 1.0 / largest)

    def _prior_variances(self, features: Tensor, num_predictors: int) -> Tensor:
        """The variances that the features explain of the predictors in each row, ``(P, n)``."""
        ones = features.new_ones(len(features), 1)
        parts = [
            product_in_rows(part.square(), ones, num_predictors, self.segments) for part in _blocks_of_rows(features)
        ]
        return torch.cat(parts, dim=1).squeeze(-1)


class Resistance(NamedTuple):
    """Curvature of the rows' quadratic model along a direction, and the longest step allowed along it."""

    curvature: Tensor  # d' Phi Lambda Phi' d, ()
    reach: Tensor  # the step that moves a predictor as far as it may where it moves most, ()


class BatchFeatures(WeightedFeatures):
    """Rows of one batch, ``chunk_size`` rows of features at a time; a larger batch is evaluated anew for each sum."""

    def __init__(
        self,
        features: Callable[[Tensor], Tensor],
        x: Tensor,
        gradients: Tensor,
        curvatures: Tensor,
        chunk_size: int,
        segments: Sequence[Segment] = ONE_PREDICTOR,
        move_limit: MoveLimit | None = None,
    ) -> None:
        self._features, self.segments, self.move_limit = features, segments, move_limit
        self._rows = list(
            zip(x.split(chunk_size), gradients.split(chunk_size), curvatures.split(chunk_size), strict=True)
        )
        self._kept = [self._chunk(*self._rows[0])] if len(self._rows) == 1 else None
        self._totals: Totals | None = None

    def totals(self, shapes: Sequence[tuple[int, int]]) -> Totals:
        """The diagonal blocks, for groups of ``(count, size)`` that must not change, and the projected gradients."""
        if self._totals is None:
            self._totals = super().totals(shapes)
        return self._totals

    @property
    def are_taken_as_they_are(self) -> bool:
        """
        Whether the curvatures of the rows are known to be those that were given, with none of them negative. A device
        other than the CPU is not waited for.
        """
        curvatures = [part for _, _, part in self._rows]
        is_known = curvatures[0].device.type == "cpu" and curvatures[0].shape[-1] == 1
        return is_known and all(bool((part >= 0).all()) for part in curvatures)

    def _chunk(self, x: Tensor, gradients: Tensor, curvatures: Tensor) -> FeatureChunk:
        return FeatureChunk.of_rows(self._features(x).double(), gradients, curvatures)

    def chunks(self) -> Iterator[FeatureChunk]:
        """Yield all rows."""
        if self._kept is not None:
            yield from self._kept
        else:
            yield from (self._chunk(*rows) for rows in self._rows)
