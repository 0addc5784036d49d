"""Moments of the predictor and of its components at many rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from gpytorch.distributions import MultivariateNormal
from torch import Tensor

from gpytorch_gam.distributions.predictor_distribution import PredictorMoments, independent_rows

if TYPE_CHECKING:
    from .component_posterior import ComponentPosterior


@dataclass(frozen=True)
class Prediction:
    """
    Posterior moments in each row, made by :meth:`AdditiveVariationalStrategy.predict`.

    :ivar mean: of the predictor, its mean module included, ``(*batch, n)``; with P > 1 predictors ``(*batch, n, P)``.
    :ivar covariance: between the predictors of a row, ``(*batch, n, P, P)``; None for one predictor.
    :ivar variance: of the predictor, shaped like the mean.
    :ivar names: of the components.
    :ivar component_mean: ``(*batch, C, n)``; None if they were not asked for.
    :ivar component_variance: ``(*batch, C, n)``; None if they were not asked for.
    """

    mean: Tensor
    variance: Tensor
    covariance: Tensor | None
    names: tuple[str, ...]
    component_mean: Tensor | None
    component_variance: Tensor | None

    @classmethod
    def from_moments(
        cls, mean: Tensor, covariance: Tensor, names: Sequence[str], parts: ComponentPosterior | None
    ) -> Prediction:
        """
        A prediction from what the strategy computes.

        :param mean: ``(*batch, n, P)``.
        :param covariance: ``(*batch, n, P, P)``.
        :param names: of the components to be given.
        :param parts: the posterior of all components, or None if there are none to be given.
        """
        chosen = None if parts is None else parts[names]
        variance: Tensor = covariance.diagonal(dim1=-2, dim2=-1)
        is_single = mean.shape[-1] == 1
        return cls(
            mean.squeeze(-1) if is_single else mean,
            variance.squeeze(-1) if is_single else variance,
            None if is_single else covariance,
            tuple(names),
            None if chosen is None else chosen.mean,
            None if chosen is None else chosen.variance,
        )

    def to(self, device: torch.device) -> Prediction:
        """
        The prediction on another device.

        :param device: Where.
        """
        moved: dict[str, Any] = {name: value.to(device) for name, value in vars(self).items() if torch.is_tensor(value)}
        return replace(self, **moved)

    @property
    def _row_dims(self) -> dict[str, int]:
        """The dimension of the rows of every tensor there is."""
        moments_dim = -1 if self.covariance is None else -2
        dims = {
            "mean": moments_dim,
            "variance": moments_dim,
            "covariance": -3,
            "component_mean": -1,
            "component_variance": -1,
        }
        return {name: dim for name, dim in dims.items() if getattr(self, name) is not None}

    @property
    def stddev(self) -> Tensor:
        """Standard deviations of the predictor, shaped like the mean."""
        return self.variance.sqrt()

    @property
    def distribution(self) -> MultivariateNormal:
        """The predictor with independent rows, which a likelihood takes: ``likelihood(prediction.distribution)``."""
        if self.covariance is not None:
            return independent_rows(PredictorMoments(self.mean, self.covariance))
        return independent_rows(PredictorMoments(self.mean.unsqueeze(-1), self.variance[..., None, None]))

    def component(self, name: str) -> tuple[Tensor, Tensor]:
        """
        Mean and variance of one component, ``(*batch, n)`` each.

        :param name: Its name.
        :raises ValueError: If it is not among :attr:`names`.
        """
        if self.component_mean is None or self.component_variance is None or name not in self.names:
            raise ValueError(f"there is no component {name!r} in this prediction; it has {list(self.names)}")
        index = self.names.index(name)
        return self.component_mean[..., index, :], self.component_variance[..., index, :]


def joined(parts: Iterable[Prediction], num_rows: int) -> Prediction:
    """
    The prediction for the rows of all parts, in order. One part exists beside it at a time.

    :param parts: At least one.
    :param num_rows: Of all parts together.
    """
    whole: Prediction | None = None
    start = 0
    for part in parts:
        whole = _like(part, num_rows) if whole is None else whole
        size = part.mean.shape[part._row_dims["mean"]]
        for name, dim in part._row_dims.items():
            getattr(whole, name).narrow(dim, start, size).copy_(getattr(part, name))
        start += size
    assert whole is not None
    return whole


def _like(part: Prediction, num_rows: int) -> Prediction:
    """Memory for a prediction for so many rows."""
    empty: dict[str, Any] = {}
    for name, dim in part._row_dims.items():
        value = getattr(part, name)
        shape = list(value.shape)
        shape[dim] = num_rows
        empty[name] = value.new_empty(shape)
    return replace(part, **empty)
