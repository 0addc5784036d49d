"""Sums of components as functions: their values at several rows jointly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gpytorch_gam import _checks as checks

from .component_mixture import mixed_variance
from .drawing import allotted, multiply_draws

# Jitter on correlations of a function that is drawn.
_JITTER = 1e-6


@dataclass(frozen=True)
class JointSum:
    r"""
    The joint posterior of a sum of components at n rows, made by :meth:`AdditiveVariationalStrategy.joint_sums`: a
    mixture of K normal distributions, one of each model (a single one if hyperparameters count as known), in float64.

    :ivar weights: Weights of the models, which sum to one, ``(K,)``.
    :ivar means: Means under each model, ``(K, *batch, n)``.
    :ivar covariances: Covariances over the rows under each model, ``(K, *batch, n, n)``.
    """

    weights: Tensor
    means: Tensor
    covariances: Tensor

    @classmethod
    def of(cls, mean: Tensor, covariance: Tensor) -> JointSum:
        """
        A sum under one model.

        :param mean: Its mean ``(*batch, n)``.
        :param covariance: Its covariance over the rows, ``(*batch, n, n)``.
        """
        return cls(mean.new_ones(1), mean.unsqueeze(0), covariance.unsqueeze(0))

    @classmethod
    def mixed(cls, parts: Sequence[JointSum], weights: Tensor) -> JointSum:
        """
        The same sum under several models.

        :param parts: The sum under each of them.
        :param weights: Their weights.
        """
        shares = torch.cat([weight * part.weights for weight, part in zip(weights, parts, strict=True)])
        means, covariances = torch.cat([part.means for part in parts]), torch.cat([part.covariances for part in parts])
        return cls(shares, means, covariances)

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance in each row, by the laws of total expectation and variance, ``(*batch, n)`` each."""
        return mixed_variance(list(self.means), list(self.covariances.diagonal(dim1=-2, dim2=-1)), self.weights)

    def difference(self, first: slice, second: slice) -> JointSum:
        """
        The function at some of the rows minus that at as many others.

        :param first: The rows.
        :param second: Those that are subtracted.
        """
        left, right = self.covariances[..., first, :], self.covariances[..., second, :]
        covariances = left[..., first] - left[..., second] - right[..., first] + right[..., second]
        return JointSum(self.weights, self.means[..., first] - self.means[..., second], covariances)

    def draws(self, num: int) -> Tensor:
        """
        Functions drawn from the models, as many of each as its weight says, ``(num, *batch, n)``: of one model after
        the other.

        :param num: Their number.
        """
        normal = torch.randn(num, *self.means.shape[1:], dtype=self.means.dtype, device=self.means.device)
        parts = zip(self.means, self.covariances, normal.split(allotted(self.weights, num)), strict=True)
        return torch.cat([mean + multiply_draws(_root(covariance), own) for mean, covariance, own in parts])


def checked_pairs(pairs: Any) -> Sequence[tuple[Tensor, Sequence[str] | str]]:
    """The argument ``pairs`` of ``joint_sums``: rows and names of components; a TypeError if it is something else."""
    if not isinstance(pairs, list | tuple) or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        raise TypeError(
            f"pairs must be a list of pairs of rows and names, such as [(x, ['x0', 'x0.line'])], got "
            f"{checks.shown(pairs)}"
        )
    return pairs


def _root(covariance: Tensor) -> Tensor:
    """
    A root R of a covariance R R' ``(*batch, n, n)`` whose correlations may be indefinite by rounding, as those of
    smooth functions at many rows are.
    """
    deviations = covariance.diagonal(dim1=-2, dim2=-1).clamp_min(0.0).sqrt()
    scales = deviations.unsqueeze(-1) * deviations.unsqueeze(-2)
    correlations = torch.where(scales > 0, covariance / scales, 0.0).clamp(-1.0, 1.0)
    correlations.diagonal(dim1=-2, dim2=-1).fill_(1.0 + _JITTER)
    root, info = torch.linalg.cholesky_ex(correlations)
    if (info != 0).any():
        values, vectors = torch.linalg.eigh(correlations)
        root = vectors * values.clamp_min(0.0).sqrt().unsqueeze(-2)
    return deviations.unsqueeze(-1) * root
