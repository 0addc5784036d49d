r"""Sums :math:`\sum_n \lambda_n \phi_n \phi_n^\top` over rows of data, without a :math:`Q \times Q` matrix."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gpytorch_gam.variational._precision_algebra import split_groups

# Keeps quotients of numbers finite that may both be zero.
_SMALL = 1e-150


class FeatureChunk(NamedTuple):
    r"""
    Some rows, in float64.

    :ivar features: :math:`\phi_n`, ``(Q, n)``.
    :ivar gradients: :math:`g_n`, derivatives of the expected log-likelihood in the mean of the predictor, ``(n,)``.
    :ivar curvatures: :math:`\lambda_n \ge 0`, minus twice those in its variance, ``(n,)``.
    """

    features: Tensor
    gradients: Tensor
    curvatures: Tensor


class Totals(NamedTuple):
    r"""
    Sums over all rows.

    :ivar blocks: diagonal blocks of :math:`\Phi\Lambda\Phi^\top`, ``(count, size, size)`` for each run of equal blocks.
    :ivar projected: :math:`\Phi g`, ``(Q,)``.
    """

    blocks: list[Tensor]
    projected: Tensor


class RowSums(ABC):
    """The sums over rows that a step needs."""

    @abstractmethod
    def totals(self, shapes: Sequence[tuple[int, int]]) -> Totals:
        r"""
        The diagonal blocks and the projected gradients.

        :param shapes: ``(count, size)`` of each run of equal blocks.
        """

    @abstractmethod
    def gram(self) -> tuple[Tensor, Tensor]:
        r"""All of :math:`\Phi\Lambda\Phi^\top`, ``(Q, Q)``, and :math:`\Phi g`, ``(Q,)``."""

    @abstractmethod
    def apply(self, columns: Tensor) -> Tensor:
        r"""
        :math:`\Phi \Lambda \Phi^\top X`.

        :param columns: :math:`X`, ``(Q, k)``.
        :return: ``(Q, k)``.
        """

    @abstractmethod
    def resistance(self, direction: Tensor) -> Resistance:
        r"""
        What the rows say against a step of the mean along a direction.

        :param direction: :math:`d`, ``(Q,)``.
        """


class WeightedFeatures(RowSums):
    """Sums over the rows of chunks, which a subclass yields as often as it is asked to."""

    @abstractmethod
    def chunks(self) -> Iterator[FeatureChunk]:
        """All rows, at least one chunk."""

    def totals(self, shapes: Sequence[tuple[int, int]]) -> Totals:
        r"""
        The diagonal blocks and the projected gradients, in one pass. Cost :math:`O(N \sum_c M_c^2)`.

        :param shapes: ``(count, size)`` of each run of equal blocks.
        """
        total: Totals | None = None
        for features, gradients, curvatures in self.chunks():
            blocks = [(part * curvatures) @ part.mT for part in split_groups(features, shapes)]
            projected = features @ gradients
            if total is not None:
                blocks = [old + new for old, new in zip(total.blocks, blocks, strict=True)]
                projected = total.projected + projected
            total = Totals(blocks, projected)
        assert total is not None
        return total

    def gram(self) -> tuple[Tensor, Tensor]:
        r"""
        All of :math:`\Phi\Lambda\Phi^\top`, ``(Q, Q)``, and :math:`\Phi g`, ``(Q,)``. Cost :math:`O(N Q^2)`.
        """
        total: tuple[Tensor, Tensor] | None = None
        for features, gradients, curvatures in self.chunks():
            gram, projected = (features * curvatures) @ features.mT, features @ gradients
            total = (gram, projected) if total is None else (total[0] + gram, total[1] + projected)
        assert total is not None
        return total

    def apply(self, columns: Tensor) -> Tensor:
        r"""
        :math:`\Phi \Lambda \Phi^\top X`. Cost :math:`O(N Q k)`.

        :param columns: :math:`X`, ``(Q, k)``.
        :return: ``(Q, k)``.
        """
        total = torch.zeros_like(columns)
        for features, _, curvatures in self.chunks():
            total = total + features @ (curvatures.unsqueeze(-1) * (features.mT @ columns))
        return total

    def resistance(self, direction: Tensor) -> Resistance:
        r"""
        What the rows say against a step of the mean along a direction.

        :param direction: :math:`d`, ``(Q,)``.
        """
        curvature, largest = direction.new_zeros(()), direction.new_zeros(())
        for features, _, curvatures in self.chunks():
            change = direction @ features
            curvature = curvature + (curvatures * change.square()).sum()
            prior_stddev = features.square().sum(-2).sqrt()  # 0 far from all inducing points, where nothing moves
            largest = torch.maximum(largest, (change.abs() / prior_stddev.clamp_min(_SMALL)).amax())
        return Resistance(curvature, 1.0 / largest)


class Resistance(NamedTuple):
    r"""
    :ivar curvature: :math:`\sum_n \lambda_n (\phi_n^\top d)^2`, ``()``.
    :ivar reach: the step along d that moves the predictor by one prior standard deviation in the row that it moves
        most, ``()``.
    """

    curvature: Tensor
    reach: Tensor


class BatchFeatures(WeightedFeatures):
    r"""
    The rows of one batch.

    At most ``chunk_size`` columns of features exist at a time. A batch no larger than that is evaluated once; of a
    larger one every sum evaluates the features anew.

    :param features: Maps inputs ``(n, D)`` to features ``(Q, n)``.
    :param x: Inputs ``(b, D)``.
    :param gradients: :math:`g`, ``(b,)``, float64.
    :param curvatures: :math:`\lambda`, ``(b,)``, float64.
    :param chunk_size: Rows processed at a time.
    """

    def __init__(
        self,
        features: Callable[[Tensor], Tensor],
        x: Tensor,
        gradients: Tensor,
        curvatures: Tensor,
        chunk_size: int,
    ) -> None:
        self._features = features
        self._rows = list(
            zip(x.split(chunk_size), gradients.split(chunk_size), curvatures.split(chunk_size), strict=True)
        )
        self._kept = [self._chunk(*self._rows[0])] if len(self._rows) == 1 else None

    def _chunk(self, x: Tensor, gradients: Tensor, curvatures: Tensor) -> FeatureChunk:
        return FeatureChunk(self._features(x).double(), gradients, curvatures)

    def chunks(self) -> Iterator[FeatureChunk]:
        """All rows."""
        if self._kept is not None:
            yield from self._kept
        else:
            yield from (self._chunk(*rows) for rows in self._rows)
