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
