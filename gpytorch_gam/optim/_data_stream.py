"""All rows of the data with their derivatives under a posterior that stands still, read as often as they are needed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from gpytorch.likelihoods import Likelihood
from torch import Tensor

from gpytorch_gam.variational import AdditiveVariationalStrategy
from gpytorch_gam.variational._expected_gradients import expected_gradients
from gpytorch_gam.variational._posterior_covariance import keep_positive
from gpytorch_gam.variational._precision_algebra import CovarianceFactors, split_groups

from ._weighted_features import FeatureChunk, Totals, WeightedFeatures


class OverflowingLikelihoodError(RuntimeError):
    """Derivatives of the expected log-likelihood are not finite under the present posterior."""


class DataStream(WeightedFeatures):
    """
    Derivatives of the expected log-likelihood of all rows under the posterior of the time when it was made. Sums are
    computed once. Memory does not depend on the number of rows.

    :param strategy: With one predictor and no batch shape.
    :param likelihood: Any likelihood of one predictor.
    :param batches: Pairs of inputs ``(b, D)`` and responses ``(b)``, gone through once a reading.
    :param chunk_size: Rows processed at a time.
    """

    def __init__(
        self,
        strategy: AdditiveVariationalStrategy,
        likelihood: Likelihood,
        batches: Iterable[tuple[Tensor, Tensor]],
        chunk_size: int,
    ) -> None:
        self._strategy, self._likelihood = strategy, likelihood
        self._batches, self._chunk_size = batches, chunk_size
        factors = strategy.covariance_factors()
        self._factors = factors._replace(mean=factors.mean.clone())  # not the memory of a parameter
        self._gram: tuple[Tensor, Tensor] | None = None
        self._totals: Totals | None = None
        #: Sum of the expected log-likelihoods in nats, known after a reading.
        self.expected = float("nan")

    def gram(self) -> tuple[Tensor, Tensor]:
        r""":math:`\Phi\Lambda\Phi^\top`, ``(Q, Q)``, and :math:`\Phi g`, ``(Q,)``."""
        if self._gram is None:
            self._gram = super().gram()
        return self._gram

    def totals(self, shapes: Sequence[tuple[int, int]]) -> Totals:
        """
        The diagonal blocks and the projected gradients.

        :param shapes: ``(count, size)`` of each run of equal blocks, always the same.
        """
        if self._totals is None:
            self._totals = super().totals(shapes)
        return self._totals

    def chunks(self) -> Iterator[FeatureChunk]:
        """All rows."""
        expected, is_empty = torch.zeros((), dtype=torch.float64), True
        for batch in self._batches:
            x, y = checked_rows(self._strategy, batch)
            for part_x, part_y in zip(x.split(self._chunk_size), y.split(self._chunk_size), strict=True):
                chunk, value = self._differentiate(part_x, part_y)
                expected, is_empty = expected.to(value) + value, False
                yield chunk
        if is_empty:
            raise ValueError("batches is empty: there is no data to fit, or it can be gone through only once")
        self.expected = expected.item()

    def _differentiate(self, x: Tensor, y: Tensor) -> tuple[FeatureChunk, Tensor]:
        strategy = self._strategy
        features = strategy.features(x).double()
        mean, variance = _moments(strategy, self._factors, x, features)
        try:
            rows = expected_gradients(self._likelihood, y, mean.to(x.dtype), variance.to(x.dtype))
        except ValueError as error:
            missing = ~torch.isfinite(y)
            if missing.any():
                raise ValueError(f"y has NaN or infinity in {int(missing.sum())} of {len(y)} rows") from error
            raise
        bad = ~(torch.isfinite(rows.gradients) & torch.isfinite(rows.curvatures))
        if bad.any():
            raise OverflowingLikelihoodError(
                f"the gradient of the expected log-likelihood is NaN or infinite in {int(bad.sum())} of {len(bad)} "
                "rows: look for such values in the responses, or for an overflow in the likelihood"
            )
        return FeatureChunk(features, rows.gradients, rows.curvatures), rows.expected.sum()


def _moments(
    strategy: AdditiveVariationalStrategy, factors: CovarianceFactors, x: Tensor, features: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean and variance of the predictor ``(n,)`` from the features ``(Q, n)``, which are evaluated already."""
    prior = sum(group.prior_variance(x).double().sum(-2) for group in strategy.predictor.groups)
    assert torch.is_tensor(prior)
    variance = prior
    if factors.block_roots is not None:
        parts = split_groups(features, [(root.shape[-3], root.shape[-2]) for root in factors.block_roots])
        for root, part in zip(factors.block_roots, parts, strict=True):
            variance = variance - (root.mT @ part).square().sum((-3, -2))
    if factors.shared_root is not None:
        variance = variance + factors.shared_sign * (factors.shared_root.mT @ features).square().sum(-2)
    mean = strategy.predictor.prior_means(x).squeeze(-2).double() + factors.mean @ features
    return mean, keep_positive(variance, prior)


def checked_rows(strategy: AdditiveVariationalStrategy, batch: Any) -> tuple[Tensor, Tensor]:
    """
    A pair of inputs ``(b, D)`` and responses ``(b)``.

    :param strategy: That reads the inputs.
    :param batch: What a loader gave.
    :raises ValueError: If it is something else.
    """
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise ValueError(
            f"batches must hold pairs (x, y), got {type(batch).__name__}"
            f"{f' of {len(batch)}' if isinstance(batch, tuple | list) else ''}; pass [(x, y)] for a single one"
        )
    x, y = batch
    strategy.check_inputs(x)
    if x.dim() != 2:
        raise ValueError(f"batches must hold inputs of shape (b, D), got {tuple(x.shape)}")
    if not torch.is_tensor(y) or y.shape != x.shape[:1]:
        shape = tuple(y.shape) if torch.is_tensor(y) else type(y).__name__
        raise ValueError(f"batches must hold responses of shape ({len(x)},) beside {len(x)} rows, got {shape}")
    if y.device != x.device or (y.is_floating_point() and y.dtype != x.dtype):
        raise ValueError(f"y is {y.dtype} on {y.device}, but x is {x.dtype} on {x.device}: pass y.to(x)")
    return x, y
