"""Mixtures of distributions of any kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution


class WeightedMixture(Distribution):
    """
    The mixture of distributions of one number in each of the same rows, ``(*batch, n)``, such as those of a response
    under several models.

    :param parts: The distributions.
    :param weights: Their weights ``(K,)``, which sum to one.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}

    def __init__(self, parts: Sequence[Distribution], weights: Tensor) -> None:
        #: The distributions.
        self.parts = list(parts)
        self._weights = weights
        super().__init__(parts[0].batch_shape, validate_args=False)

    @property
    def support(self) -> Any:
        """The support of the parts."""
        return self.parts[0].support

    def _stacked(self, values: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Values of all parts, ``(K, ...)``, and weights that broadcast to them."""
        stacked = torch.stack(list(values))
        return stacked, self._weights.to(stacked).view(-1, *[1] * (stacked.dim() - 1))

    @property
    def mean(self) -> Tensor:
        """The means, ``(*batch, n)``."""
        means, weights = self._stacked([part.mean for part in self.parts])
        return (weights * means).sum(0)

    @property
    def variance(self) -> Tensor:
        """The variances, ``(*batch, n)``."""
        means, weights = self._stacked([part.mean for part in self.parts])
        variances = torch.stack([part.variance for part in self.parts])
        return (weights * (variances + (means - self.mean).square())).sum(0)

    @property
    def probs(self) -> Tensor:
        """The probabilities of successes ``(*batch, n)``, or of classes ``(*batch, n, K)``, if the parts have them."""
        parts: list[Any] = self.parts
        found, weights = self._stacked([part.probs for part in parts])
        return (weights * found).sum(0)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probabilities or log-densities."""
        found, weights = self._stacked([part.log_prob(value) for part in self.parts])
        return torch.logsumexp(found + weights.log(), 0)

    def cdf(self, value: Tensor) -> Tensor:
        """The distribution function."""
        found, weights = self._stacked([part.cdf(value) for part in self.parts])
        return (weights * found).sum(0)

    @property
    def has_rows(self) -> bool:
        """Whether the parts know :meth:`cdf_in_rows`."""
        return all(getattr(part, "has_rows", False) for part in self.parts)

    def cdf_in_rows(self, value: Tensor, rows: Tensor) -> Tensor:
        """The distribution function at values ``(m,)`` in some of all rows, ``(m,)``, if all parts have such."""
        parts: list[Any] = self.parts
        found, weights = self._stacked([part.cdf_in_rows(value, rows) for part in parts])
        return (weights * found).sum(0)

    @torch.no_grad()
    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draws ``(*sample_shape, *batch, n)``, for each row from a part of its own."""
        draws = torch.stack([part.sample(torch.Size(sample_shape)) for part in self.parts])
        index = torch.multinomial(self._weights, draws[0].numel(), replacement=True).to(draws.device)
        return draws.gather(0, index.view_as(draws[:1])).squeeze(0)

    def expand(self, batch_shape: Any, _instance: Any = None) -> WeightedMixture:
        """The same mixture with a larger batch shape."""
        return WeightedMixture([part.expand(batch_shape) for part in self.parts], self._weights)
