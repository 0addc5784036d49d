"""Moments of the predictor and of its components at many rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from gpytorch.distributions import MultivariateNormal
from torch import Tensor

from gpytorch_gam.distributions.predictor_distribution import PredictorMoments, independent_rows


@dataclass(frozen=True)
class Prediction:
    """
    Posterior moments in each row, made by :meth:`AdditiveVariationalStrategy.predict`.

    :ivar moments: The moments of the P predictors, their mean modules included.
    :ivar names: The names of the C requested components.
    :ivar component_mean: The components' means, ``(*batch, C, n)``; None if none were requested.
    :ivar component_variance: The components' variances, ``(*batch, C, n)``; None if none were requested.
    """

    moments: PredictorMoments
    names: tuple[str, ...] = ()
    component_mean: Tensor | None = None
    component_variance: Tensor | None = None

    @property
    def mean(self) -> Tensor:
        """Means of the predictor, ``(*batch, n)``; with P > 1 predictors ``(*batch, n, P)``."""
        return self._given(self.moments.mean)

    @property
    def variance(self) -> Tensor:
        """Variances of the predictor, shaped like the mean."""
        return self._given(self.moments.covariance.diagonal(dim1=-2, dim2=-1))

    @property
    def covariance(self) -> Tensor | None:
        """Covariance between the predictors of a row, ``(*batch, n, P, P)``; None for one predictor."""
        return None if self._is_single else self.moments.covariance

    @property
    def stddev(self) -> Tensor:
        """Standard deviations of the predictor, shaped like the mean."""
        return self.variance.sqrt()

    @property
    def _is_single(self) -> bool:
        return self.moments.mean.shape[-1] == 1

    def _given(self, values: Tensor) -> Tensor:
        """Values ``(*batch, n, P)``; a single predictor's dimension is dropped."""
        return values.squeeze(-1) if self._is_single else values

    @property
    def distribution(self) -> MultivariateNormal:
        """The predictor with independent rows, which a likelihood takes: ``likelihood(prediction.distribution)``."""
        return independent_rows(self.moments)

    def component(self, names: str | Sequence[str]) -> tuple[Tensor, Tensor]:
        """
        Mean and variance of one component by its name, ``(*batch, n)`` each, or of several in a list, ``(*batch, K,
        n)``.

        :param names: One name, or several.
        :raises ValueError: If a name is not among ``names``.
        """
        unknown = [name for name in ([names] if isinstance(names, str) else names) if name not in self.names]
        if unknown or self.component_mean is None or self.component_variance is None:
            raise ValueError(
                f"there is no component {', '.join(map(repr, unknown))} in this prediction; it has {list(self.names)}"
            )
        index = self.names.index(names) if isinstance(names, str) else [self.names.index(name) for name in names]
        return self.component_mean[..., index, :], self.component_variance[..., index, :]

    def to(self, device: torch.device) -> Prediction:
        """
        The prediction on another device.

        :param device: The device to move to.
        """
        return self._with_tensors([tensor.to(device) for tensor, _ in self._tensors])

    def at(self, rows: slice) -> Prediction:
        """
        The same for some of the rows.

        :param rows: The rows.
        """
        length = rows.stop - rows.start
        return self._with_tensors([tensor.narrow(dim, rows.start, length) for tensor, dim in self._tensors])

    @property
    def _tensors(self) -> list[tuple[Tensor, int]]:
        """All tensors that are not None, each with the dimension of its rows."""
        mean, covariance = self.moments
        dims = [(mean, -2), (covariance, -3), (self.component_mean, -1), (self.component_variance, -1)]
        return [(tensor, dim) for tensor, dim in dims if tensor is not None]

    def _with_tensors(self, tensors: Sequence[Tensor]) -> Prediction:
        mean, covariance, *components = tensors
        return Prediction(PredictorMoments(mean, covariance), self.names, *components)


def joined(parts: Iterable[Prediction], num_rows: int) -> Prediction:
    """The prediction for the rows of all parts, ``num_rows`` in all; one part is in memory beside it at a time."""
    whole: Prediction | None = None
    start = 0
    for part in parts:
        if whole is None:
            whole = part._with_tensors([_like(tensor, dim, num_rows) for tensor, dim in part._tensors])
        size = part.moments.mean.shape[-2]
        for (target, dim), (tensor, _) in zip(whole._tensors, part._tensors, strict=True):
            target.narrow(dim, start, size).copy_(tensor)
        start += size
    assert whole is not None
    return whole


def _like(tensor: Tensor, dim: int, size: int) -> Tensor:
    """Uninitialised memory for a tensor like this with another size of one dimension."""
    shape = list(tensor.shape)
    shape[dim] = size
    return tensor.new_empty(shape)
