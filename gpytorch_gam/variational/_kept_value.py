"""A cache for a result, which is used only while a new computation would give the same."""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor


class KeptValue:
    """
    Keeps a result beside the values of all tensors that it depends on, so that any change of these is noticed
    (optimisers, GPyTorch's setters, which write through ``.data``, state dicts, conversions). Comparing costs little
    beside the factorisations that it saves, and waits for a device other than the CPU.

    A result with a graph is returned only for the same tensors with the same gradient flags, and until a backward pass
    has gone through the graph. Copies and pickles start empty.
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
        """Keep a result that depends on tensors and key; backward passes enter its graph, if any, at ``graph``."""
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
        """The result, or None if a new computation could give a different one."""
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
        """Whether a tensor has the same value, or if ``is_same``, is the same object with the same flag as well."""
        if is_same and (self.reference() is not tensor or self.requires_grad != tensor.requires_grad):
            return False
        has_same_kind = self.value.dtype == tensor.dtype and self.value.device == tensor.device
        return has_same_kind and torch.equal(self.value, tensor)
