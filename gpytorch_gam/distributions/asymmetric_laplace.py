"""The asymmetric Laplace distribution."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints


class AsymmetricLaplace(Distribution):
    r"""
    The density :math:`\tau (1 - \tau) / s \cdot \exp(-\rho_\tau(y - f) / s)`, whose :math:`\tau`-quantile
    (``quantile``) is the location f; the scale s broadcasts with it.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {
        "loc": constraints.real,
        "scale": constraints.positive,
    }
    support = constraints.real
    has_rsample = True

    def __init__(self, loc: Tensor, scale: Tensor, quantile: float) -> None:
        self.loc, self.scale = torch.broadcast_tensors(loc, scale)
        self.quantile = quantile
        super().__init__(self.loc.shape, validate_args=False)

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return self.loc + self.scale * (1 / self.quantile - 1 / (1 - self.quantile))

    @property
    def variance(self) -> Tensor:
        """The variance."""
        return self.scale.square() * (1 / self.quantile**2 + 1 / (1 - self.quantile) ** 2)

    def log_prob(self, value: Tensor) -> Tensor:
        """The log-density."""
        residual = value - self.loc
        loss = torch.maximum(self.quantile * residual, (self.quantile - 1) * residual)
        return math.log(self.quantile * (1 - self.quantile)) - self.scale.log() - loss / self.scale

    def cdf(self, value: Tensor) -> Tensor:
        """The distribution function."""
        residual, tau = (value - self.loc) / self.scale, self.quantile
        below = tau * torch.exp((1 - tau) * residual.clamp_max(0.0))
        above = 1 - (1 - tau) * torch.exp(-tau * residual.clamp_min(0.0))
        return torch.where(residual < 0, below, above)

    def rsample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008
        """Samples with gradients, as the difference of two exponential variables."""
        shape = torch.Size(sample_shape) + self.batch_shape
        above, below = (torch.empty(shape).to(self.loc).exponential_() for _ in range(2))
        return self.loc + self.scale * (above / self.quantile - below / (1 - self.quantile))

    def expand(self, batch_shape: Any, _instance: Any = None) -> AsymmetricLaplace:
        """The same distribution with more batch dimensions."""
        return AsymmetricLaplace(self.loc.expand(batch_shape), self.scale.expand(batch_shape), self.quantile)
