"""An interval whose parameter is learnt on a logarithmic scale."""

from __future__ import annotations

import torch
from gpytorch.constraints import Interval
from torch import Tensor


class LogInterval(Interval):
    """
    A constraint ``lower_bound < value < upper_bound`` between positive bounds, in which the raw parameter is the logit
    of the logarithm's place between those of the bounds. In GPyTorch's interval it is the logit of the value's own
    place: where the bounds differ by orders of magnitude, values near the lower one are then out of reach.

    :param lower_bound: The lower bound, positive.
    :param upper_bound: The upper bound.
    """

    def __init__(self, lower_bound: float | Tensor, upper_bound: float | Tensor) -> None:
        super().__init__(lower_bound, upper_bound)

    def transform(self, tensor: Tensor) -> Tensor:
        """The value of a raw parameter."""
        return self.lower_bound * ((self.upper_bound / self.lower_bound).log() * torch.sigmoid(tensor)).exp()

    def inverse_transform(self, transformed_tensor: Tensor) -> Tensor:
        """The raw parameter of a value."""
        place = (transformed_tensor / self.lower_bound).log() / (self.upper_bound / self.lower_bound).log()
        return torch.logit(place)

    def intersect(self, other: Interval) -> LogInterval:
        """The interval of the values in both."""
        if not isinstance(other, LogInterval):
            raise TypeError(f"a LogInterval can be intersected with another one only, got {other!r}")
        return LogInterval(
            torch.maximum(self.lower_bound, other.lower_bound), torch.minimum(self.upper_bound, other.upper_bound)
        )
