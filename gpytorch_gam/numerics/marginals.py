"""Moments of Gaussian processes in single rows, from what a posterior takes from the prior and couples."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Marginals(NamedTuple):
    """
    Moments of k processes in each of n rows.

    :ivar mean: ``(*batch, k, n)``.
    :ivar variance: ``(*batch, k, n)``, positive.
    :ivar shared: the coupled parts of the processes, ``(*batch, k, R, n)``.
    :ivar sign: of products of coupled parts in covariances, -1 or 1.
    """

    mean: Tensor
    variance: Tensor
    shared: Tensor
    sign: int

    def covariance_in_rows(self) -> Tensor:
        """Covariance between the processes in each row, ``(*batch, n, k, k)``, with the variances on its diagonal."""
        if self.variance.shape[-2] == 1:
            return self.variance.mT.unsqueeze(-1)
        rows = self.shared.movedim(-1, -3)  # (*batch, n, k, R)
        coupled = self.sign * (rows @ rows.mT)
        return coupled + torch.diag_embed(self.variance.mT - coupled.diagonal(dim1=-2, dim2=-1))


def marginal_moments(
    mean: Tensor, prior_variance: Tensor, own_squares: Tensor | None, shared: Tensor, sign: int
) -> Marginals:
    r"""
    The posterior variance of each process is that of the prior without the squares of what is known of it alone, and
    with those of what couples it to the others,

    .. math::
        \mathrm{var} f = k - \| V^\top \phi \|^2 + s\, \| F^\top \phi \|^2 .

    :param mean: ``(*batch, k, n)``.
    :param prior_variance: :math:`k`, ``(*batch, k, n)``.
    :param own_squares: :math:`\| V^\top \phi \|^2`, ``(*batch, k, n)``, or None for zero.
    :param shared: :math:`F^\top \phi`, ``(*batch, k, R, n)``.
    :param sign: :math:`s`, -1 or 1.
    """
    own = prior_variance if own_squares is None else prior_variance - own_squares
    variance = keep_positive(own + sign * shared.square().sum(-2), prior_variance)
    mean, variance = torch.broadcast_tensors(mean, variance)
    return Marginals(mean, variance, shared, sign)


def keep_positive(variance: Tensor, prior_variance: Tensor) -> Tensor:
    """
    Rounding can carry a variance that is tiny beside the prior's below zero: hold it at the size of rounding.

    :param variance: Posterior variances, any shape.
    :param prior_variance: Prior variances, the same shape.
    """
    return torch.maximum(variance, torch.finfo(variance.dtype).eps * prior_variance)
