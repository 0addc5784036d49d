r"""Sums :math:`\sum_n \lambda_n \phi_n \phi_n^\top` over the rows of a batch, without a :math:`Q \times Q` matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from gpytorch_gam.variational._precision_algebra import split_groups


class WeightedFeatures:
    r"""
    The features :math:`\phi_n` of a batch with a weight :math:`\lambda_n \ge 0` for each row, in float64.

    At most ``chunk_size`` columns of features exist at a time. A batch no larger than that is evaluated once; of a
    larger one every sum evaluates the features anew.

    :param features: Maps inputs ``(n, D)`` to features ``(Q, n)``.
    :param x: Inputs ``(b, D)``.
    :param weights: :math:`\lambda`, ``(b,)``, float64.
    :param chunk_size: Rows processed at a time.
    """

    def __init__(self, features: Callable[[Tensor], Tensor], x: Tensor, weights: Tensor, chunk_size: int) -> None:
        self._features = features
        self._x = x.split(chunk_size)
        self._weights = weights.split(chunk_size)
        self._chunk_size = chunk_size
        self._kept = features(x).double() if len(self._x) == 1 else None

    def _chunks(self) -> Iterator[Tensor]:
        if self._kept is not None:
            yield self._kept
        else:
            yield from (self._features(x).double() for x in self._x)

    def totals(
        self, shapes: Sequence[tuple[int, int]], gradients: Tensor, displacement: Tensor
    ) -> tuple[list[Tensor], Tensor]:
        r"""
        The diagonal blocks of :math:`\Phi \Lambda \Phi^\top`, and the gradient :math:`\Phi g` at another mean,
        :math:`g_n + \lambda_n \phi_n^\top \delta` in each row, in one pass. Cost :math:`O(b \sum_c M_c^2)`.

        :param shapes: ``(count, size)`` of each run of equal blocks.
        :param gradients: :math:`g`, ``(b,)``, at a mean m.
        :param displacement: :math:`\delta`, ``(Q,)``: the gradient is wanted at :math:`m - \delta`.
        :return: For each run ``(count, size, size)``, and the gradient ``(Q,)``.
        """
        blocks: list[Tensor] | None = None
        projected = torch.zeros_like(displacement)
        chunks = zip(self._chunks(), self._weights, gradients.split(self._chunk_size), strict=True)
        for features, weights, gradient in chunks:
            new = [(part * weights) @ part.mT for part in split_groups(features, shapes)]
            blocks = new if blocks is None else [old + block for old, block in zip(blocks, new, strict=True)]
            projected = projected + features @ (gradient + weights * (displacement @ features))
        assert blocks is not None  # split returns at least one chunk
        return blocks, projected

    def apply(self, columns: Tensor) -> Tensor:
        r"""
        :math:`\Phi \Lambda \Phi^\top X`. Cost :math:`O(b Q k)`.

        :param columns: :math:`X`, ``(Q, k)``.
        :return: ``(Q, k)``.
        """
        total = torch.zeros_like(columns)
        for features, weights in zip(self._chunks(), self._weights, strict=True):
            total = total + features @ (weights.unsqueeze(-1) * (features.mT @ columns))
        return total

    def project(self, direction: Tensor) -> tuple[Tensor, Tensor]:
        r"""
        :math:`\Phi^\top d` and the prior variances :math:`\phi_n^\top \phi_n` that the features explain.

        :param direction: :math:`d`, ``(Q,)``.
        :return: ``(b,)`` and ``(b,)``.
        """
        pairs = [(direction @ features, features.square().sum(-2)) for features in self._chunks()]
        return torch.cat([projection for projection, _ in pairs]), torch.cat([square for _, square in pairs])
