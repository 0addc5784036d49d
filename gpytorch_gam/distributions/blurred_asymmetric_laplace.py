"""The asymmetric Laplace distribution with a normally distributed location."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .asymmetric_laplace import AsymmetricLaplace


class BlurredAsymmetricLaplace(AsymmetricLaplace):
    """
    The sum of a normal variable, of mean ``loc`` and variance ``location_variance``, and an :class:`AsymmetricLaplace`
    variable around zero. Shapes broadcast to that of ``loc``.
    """

    def __init__(self, loc: Tensor, location_variance: Tensor, scale: Tensor, quantile: float) -> None:
        loc, self.location_variance, scale = torch.broadcast_tensors(loc, location_variance, scale)
        super().__init__(loc, scale, quantile)

    @property
    def variance(self) -> Tensor:
        """The variance."""
        return super().variance + self.location_variance

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-density."""
        y, mean, variance, scale = (part.double() for part in (value, self.loc, self.location_variance, self.scale))
        return blurred_log_prob(y, mean, variance, scale, self.quantile).to(self.loc.dtype)

    def cdf(self, value: Tensor) -> Tensor:
        """The distribution function."""
        y, mean, variance, scale = (part.double() for part in (value, self.loc, self.location_variance, self.scale))
        above, below = _sides(y, mean, variance, scale, self.quantile)
        is_below = torch.special.ndtr((y - mean) / variance.sqrt())
        # the asymmetric Laplace distribution function, its three parts integrated over the location
        result = is_below + self.quantile * below.exp() - (1 - self.quantile) * above.exp()
        return result.clamp(0.0, 1.0).to(self.loc.dtype)

    def rsample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008
        """Samples with gradients."""
        sample = super().rsample(sample_shape)
        return sample + self.location_variance.sqrt() * torch.randn_like(sample)

    def expand(self, batch_shape: Any, _instance: Any = None) -> BlurredAsymmetricLaplace:
        """The same distribution with more batch dimensions."""
        loc, variance, scale = (part.expand(batch_shape) for part in (self.loc, self.location_variance, self.scale))
        return BlurredAsymmetricLaplace(loc, variance, scale, self.quantile)


def blurred_log_prob(y: Tensor, mean: Tensor, variance: Tensor, scale: Tensor, quantile: float) -> Tensor:
    r"""
    :math:`\log \int \mathrm{AL}(y; f, s, \tau) \mathcal N(f; m, v) df` in float64, one integral on each side of y.
    """
    above, below = _sides(y, mean, variance, scale, quantile)
    return math.log(quantile * (1 - quantile)) - scale.log() + torch.logaddexp(above, below)


def _sides(y: Tensor, mean: Tensor, variance: Tensor, scale: Tensor, quantile: float) -> tuple[Tensor, Tensor]:
    """Logarithms of the integrals of the exponentials over locations below and above y."""
    deviation = variance.sqrt()
    above = _one_side((y - mean) / deviation, quantile * deviation / scale)
    return above, _one_side((mean - y) / deviation, (1 - quantile) * deviation / scale)


def _one_side(distance: Tensor, rate: Tensor) -> Tensor:
    r""":math:`\log \int_0^\infty e^{-b u} \varphi(u - a)\, du = b^2 / 2 - a b + \log\Phi(a - b)`."""
    return 0.5 * rate.square() - distance * rate + torch.special.log_ndtr(distance - rate)
