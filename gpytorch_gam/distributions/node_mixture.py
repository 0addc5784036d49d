"""Mixtures over the nodes of a quadrature rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, MixtureSameFamily


class NodeMixture(MixtureSameFamily):
    """
    Torch's mixture of one family, but samples draw from one component a row instead of all. ``build``, which is pickled
    with the mixture, makes the components from ``parameters``, ``(*batch, n, K)`` each; ``log_weights``, ``(K,)`` or
    ``(*batch, n, K)``, are those of weights that sum to one.
    """

    def __init__(self, log_weights: Tensor, build: Callable[..., Distribution], *parameters: Tensor) -> None:
        self._log_weights, self._build = log_weights, build
        self._parameters = torch.broadcast_tensors(*parameters)
        logits = log_weights.expand(self._parameters[0].shape)
        weights = Categorical(logits=logits, validate_args=False)
        super().__init__(weights, build(*self._parameters), validate_args=False)

    def expand(self, batch_shape: Any, _instance: Any = None) -> NodeMixture:
        """The same mixture with a larger batch shape."""
        parameters = [value.expand(*batch_shape, value.shape[-1]) for value in self._parameters]
        return NodeMixture(self._log_weights, self._build, *parameters)

    #: Whether :meth:`cdf_in_rows` is known.
    has_rows = True

    def cdf_in_rows(self, value: Tensor, rows: Tensor) -> Tensor:
        """The distribution function at values ``(m,)`` in some of all rows, ``(m,)``."""
        shape = self._parameters[0].shape
        *parameters, log_weights = (
            part.expand(shape).reshape(-1, shape[-1])[rows] for part in (*self._parameters, self._log_weights)
        )
        return (log_weights.exp() * self._build(*parameters).cdf(value.unsqueeze(-1))).sum(-1)

    @torch.no_grad()
    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draws for every row, ``(*sample_shape, *batch, n)``."""
        index = self.mixture_distribution.sample(torch.Size(sample_shape)).unsqueeze(-1)
        shape = index.shape[:-1] + self._parameters[0].shape[-1:]
        return self._build(*(value.expand(shape).gather(-1, index).squeeze(-1) for value in self._parameters)).sample()
