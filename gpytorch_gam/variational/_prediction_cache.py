"""Weights of projections, kept from one prediction to the next."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor


class PredictionCache:
    """
    Keeps a result for as long as nothing that it depends on has another value.

    Tensors are compared by value, which costs little beside the factorisations that are spared: whatever changes a
    parameter (an optimiser, GPyTorch's setters, which write through ``.data``, a state dict, a conversion, a new
    constraint) is noticed.
    """

    def __init__(self) -> None:
        self._key: Hashable = None
        self._snapshot: list[Tensor] = []
        self._result: Any = None

    def get(self, key: Hashable, tensors: Sequence[Tensor], compute: Callable[[], Any]) -> Any:
        """
        The result for these values.

        :param key: Everything else that the result depends on.
        :param tensors: All tensors that it depends on.
        :param compute: Computes it.
        """
        if self._key != key or not self._is_unchanged(tensors):
            self._result = compute()
            self._key, self._snapshot = key, [tensor.detach().clone() for tensor in tensors]
        return self._result

    def _is_unchanged(self, tensors: Sequence[Tensor]) -> bool:
        return len(tensors) == len(self._snapshot) and all(
            then.dtype == now.dtype and then.device == now.device and torch.equal(then, now)
            for then, now in zip(self._snapshot, tensors, strict=True)
        )

    def __reduce__(self) -> tuple[type[PredictionCache], tuple[()]]:
        return PredictionCache, ()  # copies and pickles start empty
