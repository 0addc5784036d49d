"""The zero-inflated Poisson distribution."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints


class ZeroInflatedPoisson(Distribution):
    """A count that is zero with probability ``inflation``, otherwise Poisson with ``rate``; shapes broadcast."""

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {
        "rate": constraints.nonnegative,
        "inflation": constraints.unit_interval,
    }
    support = constraints.nonnegative_integer

    def __init__(self, rate: Tensor, inflation: Tensor) -> None:
        self.rate, self.inflation = torch.broadcast_tensors(rate, inflation)
        super().__init__(self.rate.shape, validate_args=False)

    @property
    def mean(self) -> Tensor:
        """The mean."""
        return (1 - self.inflation) * self.rate

    @property
    def variance(self) -> Tensor:
        """The variance."""
        return self.mean * (1 + self.inflation * self.rate)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probabilities."""
        not_inflated = torch.log1p(-self.inflation)
        zero = torch.logaddexp(self.inflation.log(), not_inflated - self.rate)
        positive = not_inflated + torch.xlogy(value, self.rate) - self.rate - torch.lgamma(value + 1)
        return torch.where(value == 0, zero, positive)

    @torch.no_grad()
    def sample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008
        """Samples of counts."""
        shape = torch.Size(sample_shape) + self.batch_shape
        rate, inflation = self.rate.expand(shape), self.inflation.expand(shape)
        return torch.poisson(rate) * (torch.rand_like(rate) >= inflation)

    def expand(self, batch_shape: Any, _instance: Any = None) -> ZeroInflatedPoisson:
        """The same distribution with more batch dimensions."""
        return ZeroInflatedPoisson(self.rate.expand(batch_shape), self.inflation.expand(batch_shape))
