"""Mixtures over the nodes of an expectation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, MixtureSameFamily


class NodeMixture(MixtureSameFamily):
    """
    Torch's mixture of distributions of one family, built from their parameters, so that a sample draws from one
    component a row: torch's own draws from all of them.

    :param log_weights: ``(K,)``, or for each row ``(*batch, n, K)``; the weights sum to one.
    :param build: Makes a distribution from the parameters; pickled with the mixture.
    :param parameters: Parameters of the components, ``(*batch, n, K)`` each.
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

    @torch.no_grad()
    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draws of every row, ``(*sample_shape, *batch, n)``."""
        index = self.mixture_distribution.sample(torch.Size(sample_shape)).unsqueeze(-1)
        shape = index.shape[:-1] + self._parameters[0].shape[-1:]
        return self._build(*(value.expand(shape).gather(-1, index).squeeze(-1) for value in self._parameters)).sample()
