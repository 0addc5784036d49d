"""Distribution functions of counts, which torch's distributions lack."""

from __future__ import annotations

import torch
from torch import Tensor

# From this size 1 / dispersion on, the negative binomial distribution is taken to be Poisson.
_LARGEST_SIZE = 1e8


def poisson_cdf(counts: Tensor, rate: Tensor) -> Tensor:
    """
    The probability of no more than some count, which may be -1, in float64.

    :param counts: The counts.
    :param rate: The means.
    """
    probability = torch.special.gammaincc(counts.clamp_min(0.0) + 1, rate)
    return torch.where(counts < 0, torch.zeros_like(probability), probability)


@torch.no_grad()
def negative_binomial_cdf(counts: Tensor, mean: Tensor, dispersion: Tensor) -> Tensor:
    r"""
    The same for mean :math:`\mu` and variance :math:`\mu + \alpha \mu^2`, without gradients.

    :param counts: The counts.
    :param mean: The means.
    :param dispersion: The dispersions :math:`\alpha`, positive.
    """
    from scipy.special import betainc  # here, because it takes long to import

    counts, mean, dispersion = torch.broadcast_tensors(counts, mean, dispersion)
    size = (1 / dispersion).clamp_max(_LARGEST_SIZE)
    arguments = (size, counts.clamp_min(0.0) + 1, 1 / (1 + mean / size))
    probability = torch.from_numpy(betainc(*(part.cpu().numpy() for part in arguments))).to(mean)
    probability = torch.where(counts < 0, torch.zeros_like(probability), probability)
    return torch.where(dispersion * _LARGEST_SIZE < 1, poisson_cdf(counts, mean), probability)


@torch.no_grad()
def binomial_cdf(counts: Tensor, trials: Tensor, failure: Tensor) -> Tensor:
    """
    The same for successes among trials, without gradients.

    :param counts: The counts.
    :param trials: The numbers of trials.
    :param failure: The probabilities of a failure, of which small ones keep their digits.
    """
    from scipy.special import betainc  # here, because it takes long to import

    counts, trials, failure = torch.broadcast_tensors(counts, trials, failure)
    is_inside = (counts >= 0) & (counts < trials)
    inside = torch.where(is_inside, counts, torch.zeros_like(counts))
    arguments = ((trials - inside).clamp_min(1.0), inside + 1, failure)
    probability = torch.from_numpy(betainc(*(part.cpu().numpy() for part in arguments))).to(failure)
    return torch.where(is_inside, probability, (counts >= trials).to(failure))


def fall_of_cdf(counts: Tensor, exposure: Tensor, spread: Tensor) -> tuple[Tensor, Tensor]:
    """
    Where the probability of no more than some count falls from 1 to 0 as the logarithm of the mean grows, and over
    which width.

    :param counts: The counts.
    :param exposure: By what means are multiplied.
    :param spread: The variance of counts of a large mean, relative to the square of that.
    """
    counts = counts.clamp_min(0.0)
    return ((counts + 0.5) / exposure).log(), (1 / (counts + 1) + spread).sqrt()
