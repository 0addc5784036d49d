"""Moments of Gaussian processes in single rows: prior moments, corrected by a posterior and its coupled parts."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Marginals(NamedTuple):
    """Moments of k processes in each of n rows."""

    mean: Tensor  # (*batch, k, n)
    variance: Tensor  # (*batch, k, n), positive
    shared: Tensor  # coupled parts, (*batch, k, R, n)
    sign: int  # sign of the products of coupled parts in covariances, -1 or 1

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
    The posterior variance of each process: the prior variance k, ``(*batch, k, n)``, without the squares that the
    process explains by itself (``own_squares``, of the same shape, None for zero), and plus or minus the squares of its
    coupled part :math:`F^\top \phi` (``shared``, ``(*batch, k, R, n)``),

    .. math::
        \mathrm{var} f = k - \| V^\top \phi \|^2 + s\, \| F^\top \phi \|^2 .
    """
    own = prior_variance if own_squares is None else prior_variance - own_squares
    variance = keep_positive(own + sign * shared.square().sum(-2), prior_variance)
    mean, variance = torch.broadcast_tensors(mean, variance)
    return Marginals(mean, variance, shared, sign)


def keep_positive(variance: Tensor, prior_variance: Tensor) -> Tensor:
    """Hold a variance at the size of rounding errors, which could carry a tiny one below zero."""
    return torch.maximum(variance, torch.finfo(variance.dtype).eps * prior_variance)
