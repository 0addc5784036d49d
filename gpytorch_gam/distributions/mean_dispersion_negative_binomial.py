"""The negative binomial distribution, given the logarithms of its mean and dispersion."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import NegativeBinomial

from gpytorch_gam.numerics.quadrature import bounded_exp

# Log dispersions below these bounds give a Poisson distribution; above them the distribution is degenerate.
_LOG_DISPERSION_BOUND = 30.0
# From this size 1 / dispersion on, Stirling's series is exact to 1e-12.
_LEAST_STIRLING_SIZE = 10.0


def negative_binomial_log_prob(counts: Tensor, log_mean: Tensor, log_dispersion: Tensor) -> Tensor:
    r"""
    Log-probability of counts y with mean :math:`\mu` and variance :math:`\mu + \alpha\mu^2`, given :math:`\log\mu` and
    :math:`\log\alpha`, which is held between -30 and 30. Near the Poisson limit, where
    :math:`\log\Gamma(y + 1/\alpha) - \log\Gamma(1/\alpha)` cancels, the difference is taken by Stirling's series.
    """
    return log_prob_given_rate(counts, log_dispersion, log_rate(log_mean, log_dispersion)) + counts * log_mean


def log_rate(log_mean: Tensor, log_dispersion: Tensor) -> Tensor:
    r""":math:`\log(1 + \alpha\mu)` from :math:`\log\mu` and :math:`\log\alpha`, which is held between -30 and 30."""
    return torch.nn.functional.softplus(log_mean + bounded_log_dispersion(log_dispersion), threshold=40.0)


def log_prob_given_rate(counts: Tensor, log_dispersion: Tensor, log_rates: Tensor) -> Tensor:
    r"""
    The log-probability without its term :math:`y \log\mu`, which is linear in :math:`\log(1 + \alpha\mu)`:
    ``log_rates`` may be that or its expectation. :math:`\log\alpha` is held between -30 and 30.
    """
    bounded = bounded_log_dispersion(log_dispersion)
    size = (-bounded).exp()
    return _log_rising_factorial(counts, size, bounded) - torch.lgamma(counts + 1) - (counts + size) * log_rates


def bounded_log_dispersion(log_dispersion: Tensor) -> Tensor:
    r""":math:`\log\alpha`, held between -30 and 30."""
    return log_dispersion.clamp(-_LOG_DISPERSION_BOUND, _LOG_DISPERSION_BOUND)


def _log_rising_factorial(counts: Tensor, size: Tensor, log_dispersion: Tensor) -> Tensor:
    r""":math:`\log\Gamma(y + r) - \log\Gamma(r) - y \log r`, which vanishes as the size r grows."""
    is_large = size >= _LEAST_STIRLING_SIZE
    large, small = size.clamp_min(_LEAST_STIRLING_SIZE), size.clamp_max(_LEAST_STIRLING_SIZE)
    upper = counts + large
    series = (upper - 0.5) * torch.log1p(counts / large) - counts + _stirling_tail(upper) - _stirling_tail(large)
    direct = torch.lgamma(counts + small) - torch.lgamma(small) + counts * log_dispersion
    return torch.where(is_large, series, direct)


def _stirling_tail(z: Tensor) -> Tensor:
    r"""The remainder of Stirling's formula for :math:`\log\Gamma(z)`, for z of at least 10."""
    inverse = 1 / z
    square = inverse.square()
    return inverse * (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square / 1680)))


class MeanDispersionNegativeBinomial(NegativeBinomial):
    r"""
    Torch's negative binomial distribution with mean :math:`\mu = E e^f` and variance :math:`\mu + \alpha\mu^2`, given
    the log rate f, :math:`\log\alpha` (held between -30 and 30) and the exposure E, to which the mean is exactly
    proportional. Unlike torch's, its log-probability is accurate close to the Poisson limit, too.
    """

    def __init__(self, log_rate: Tensor, log_dispersion: Tensor, exposure: Tensor | None = None) -> None:
        exposure = torch.ones_like(log_rate) if exposure is None else exposure
        parts = torch.broadcast_tensors(log_rate, bounded_log_dispersion(log_dispersion), exposure)
        self.log_rate, self.log_dispersion, self.exposure = parts
        self.log_mean = self.log_rate + self.exposure.log()
        super().__init__((-self.log_dispersion).exp(), logits=self.log_mean + self.log_dispersion, validate_args=False)

    def expand(self, batch_shape: Any, _instance: Any = None) -> MeanDispersionNegativeBinomial:
        """The same distribution with a larger batch shape."""
        parts = (self.log_rate, self.log_dispersion, self.exposure)
        return MeanDispersionNegativeBinomial(*(part.expand(batch_shape) for part in parts))

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.exposure * bounded_exp(self.log_rate)

    @property
    def variance(self) -> Tensor:
        """The variance."""
        return self.mean + self.log_dispersion.exp() * self.mean.square()

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-probability of counts."""
        return negative_binomial_log_prob(value, self.log_mean, self.log_dispersion)
