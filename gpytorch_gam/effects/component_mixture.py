"""The joint posterior of components under a mixture of models."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gpytorch_gam import _checks as checks
from gpytorch_gam.distributions.predictor_distribution import PredictorMoments
from gpytorch_gam.kernels import Measure

from .component_posterior import ComponentPosterior, ComponentSamples


class ComponentMixture(ComponentPosterior):
    r"""
    The posterior of components if it is uncertain which of several models holds, such as models with other
    hyperparameters. Its interface is that of :class:`ComponentPosterior`. With weights :math:`w_k`, means and
    covariances are those of the mixture (laws of total expectation and covariance),

    .. math::
        \mathbf m = \sum_k w_k \mathbf m_k, \qquad
        \mathrm{cov} = \sum_k w_k \, [\mathrm{cov}_k + (\mathbf m_k - \mathbf m)(\mathbf m_k - \mathbf m)^\top] ,

    and samples draw a model first.

    :param parts: The posteriors of the same components at the same rows under each model.
    :param weights: Their weights ``(K,)``, which sum to one, float64.
    :ivar parts: The posteriors of the same components at the same rows under each model.
    :ivar weights: Their weights ``(K,)``.
    """

    def __init__(self, parts: Sequence[ComponentPosterior], weights: Tensor) -> None:
        first = parts[0]
        self.parts, self.weights = tuple(parts), weights
        self._source, self._reading, self._x = first._source, first._reading, first._x
        self._indices, self._is_single, self.names = first._indices, first._is_single, first.names
        self.mean = self._average([part.mean for part in parts])
        self.variance = self._total([part.mean for part in parts], [part.variance for part in parts], torch.mul)
        self.prior_means = self._average([part.prior_means for part in parts])

    def _average(self, values: Sequence[Tensor]) -> Tensor:
        return _weighted_sum(values, self.weights)

    def _total(
        self, means: Sequence[Tensor], covariances: Sequence[Tensor], outer: Callable[[Tensor, Tensor], Tensor]
    ) -> Tensor:
        """The law of total covariance; ``outer`` multiplies deviations of means into the shape of the covariances."""
        mean = self._average(means)
        between = [outer(each - mean, each - mean) for each in means]
        return self._average([own + more for own, more in zip(covariances, between, strict=True)])

    def _chosen(self, names: str | Sequence[str]) -> ComponentMixture:
        return ComponentMixture([part[names] for part in self.parts], self.weights)

    def cross_covariance(self) -> Tensor:
        """The covariance between the components in each row, ``(*batch, n, C, C)``."""
        return self._total(self._means(), [part.cross_covariance() for part in self.parts], self._outer_in_rows)

    def covariance(self) -> Tensor:
        """The covariance of each component over the rows, ``(*batch, C, n, n)``."""
        return self._total(self._means(), [part.covariance() for part in self.parts], _outer_over_rows)

    def full_cross_covariance(self) -> Tensor:
        """The covariance of every component in every row with every other, ``(*batch, C, n, C, n)``."""
        parts = [part.full_cross_covariance() for part in self.parts]
        return self._total(self._means(), parts, _outer_over_rows if self._is_single else _outer_over_all)

    def _means(self) -> list[Tensor]:
        return [part.mean for part in self.parts]

    def _outer_in_rows(self, left: Tensor, right: Tensor) -> Tensor:
        return left * right if self._is_single else left.mT.unsqueeze(-1) * right.mT.unsqueeze(-2)

    def centred(self, over: Tensor | Measure | None = None) -> ComponentMixture:
        """
        The centred effects, see :meth:`ComponentPosterior.centred`, under the mixture.

        :param over: The reference inputs.
        """
        return ComponentMixture([part.centred(over) for part in self.parts], self.weights)

    def total(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of the sum of the components in each row, see :meth:`ComponentPosterior.total`."""
        means, variances = zip(*(part.total() for part in self.parts), strict=True)
        return self._average(means), self._total(means, variances, torch.mul)

    def predictor_moments(self) -> PredictorMoments:
        """Mean ``(*batch, n, P)`` and covariance ``(*batch, n, P, P)`` of the predictors of these components alone."""
        return mixed_moments([part.predictor_moments() for part in self.parts], self.weights)

    def rsample(self, sample_shape: torch.Size | Sequence[int] = ()) -> ComponentSamples:
        """
        Draw functions from the mixture: for each draw a model, then the components.

        :param sample_shape: Shape of independent draws.
        :return: Draws of the components and of their sum.
        """
        shape = checks.shape("sample_shape", sample_shape)
        chosen = torch.multinomial(self.weights, shape.numel(), replacement=True)
        order = chosen.argsort(stable=True).argsort()
        counts = torch.bincount(chosen, minlength=len(self.parts)).tolist()
        draws = [part.rsample(torch.Size([count])) for part, count in zip(self.parts, counts, strict=True) if count]
        joined = (torch.cat(each)[order.to(each[0].device)] for each in zip(*draws, strict=True))
        return ComponentSamples(*(each.reshape(shape + each.shape[1:]) for each in joined))


def mixed_moments(parts: Sequence[PredictorMoments], weights: Tensor) -> PredictorMoments:
    """The moments of a mixture with weights ``(K,)``."""
    mean = _weighted_sum([part.mean for part in parts], weights)
    within = _weighted_sum([part.covariance for part in parts], weights)
    deviations = [part.mean - mean for part in parts]
    between = _weighted_sum([each.unsqueeze(-1) * each.unsqueeze(-2) for each in deviations], weights)
    return PredictorMoments(mean, within + between)


def mixed_variance(means: Sequence[Tensor], variances: Sequence[Tensor], weights: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of a mixture with weights ``(K,)``."""
    mean = _weighted_sum(means, weights)
    squares = [variance + (each - mean).square() for each, variance in zip(means, variances, strict=True)]
    return mean, _weighted_sum(squares, weights)


def _weighted_sum(values: Sequence[Tensor], weights: Tensor) -> Tensor:
    return torch.stack([weight * value for weight, value in zip(weights.tolist(), values, strict=True)]).sum(0)


def _outer_over_rows(left: Tensor, right: Tensor) -> Tensor:
    return left.unsqueeze(-1) * right.unsqueeze(-2)


def _outer_over_all(left: Tensor, right: Tensor) -> Tensor:
    return left[..., :, :, None, None] * right[..., None, None, :, :]
