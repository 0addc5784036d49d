"""A result that is kept for as long as a new computation could give nothing else."""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor


class KeptValue:
    """
    Keeps a result beside the values of all tensors that it depends on. Whatever changes one (an optimiser, GPyTorch's
    setters, which write through ``.data``, a state dict, a conversion, a new constraint) is noticed. Comparing costs
    little beside the factorisations that are spared, and waits for a device other than the CPU.

    A result with a graph is given for the same tensors with the same gradient flags only, and until a backward pass has
    been through the graph. Copies and pickles start empty.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Drop the result."""
        self._value: Any = None
        self._key: Hashable = None
        self._has_graph, self._then = False, list[_Snapshot]()

    def keep(
        self, value: Any, tensors: Sequence[Tensor], key: Hashable = None, graph: Iterable[Tensor] | None = None
    ) -> None:
        """
        Keep a result in place of the one before. It depends on the tensors and the key; ``graph`` are the tensors
        through which a backward pass enters the graph of a result that has one.
        """
        self._value, self._key, self._has_graph = value, key, graph is not None
        self._then = [_Snapshot(weakref.ref(each), each.requires_grad, each.detach().clone()) for each in tensors]
        owner = weakref.ref(self)

        def forget(_: Tensor) -> None:
            kept = owner()
            if kept is not None:
                kept.forget()

        for tensor in graph or ():
            if tensor.requires_grad:
                tensor.register_hook(forget)

    def get(self, tensors: Sequence[Tensor], key: Hashable = None) -> Any:
        """The result, None if a new computation could give another."""
        if self._value is None or self._key != key or len(tensors) != len(self._then):
            return None
        pairs = zip(self._then, tensors, strict=True)
        return self._value if all(then.describes(now, self._has_graph) for then, now in pairs) else None

    def __reduce__(self) -> tuple[type[KeptValue], tuple[()]]:
        return KeptValue, ()


class _Snapshot(NamedTuple):
    reference: weakref.ref[Tensor]
    requires_grad: bool
    value: Tensor

    def describes(self, tensor: Tensor, is_same: bool) -> bool:
        """Whether a tensor has the same value, or is the same as well."""
        if is_same and (self.reference() is not tensor or self.requires_grad != tensor.requires_grad):
            return False
        has_same_kind = self.value.dtype == tensor.dtype and self.value.device == tensor.device
        return has_same_kind and torch.equal(self.value, tensor)
