"""One computation of the factorised posterior for both terms of the ELBO."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


class SharedDivergence:
    """
    Hands the KL divergence of a training forward to the objective that asks for it right afterwards.

    Both terms of the ELBO need the same factorisations, which for the block family cost as much as the work on a small
    batch. The divergence is handed over only while a new computation could give nothing else: on the CPU (where looking
    costs nothing), for the same parameters with bitwise unchanged values (optimisers and GPyTorch's setters write in
    place, with and without leaving a trace in tensor versions), with the same gradient flags, and until a backward pass
    has been through the shared graph.
    """

    def __init__(self) -> None:
        self._divergence: Tensor | None = None
        self._snapshot: tuple[_Snapshot, ...] = ()
        self._grad_enabled = False

    def offer(self, divergence: Tensor, shared: Iterable[Tensor], parameters: Sequence[Tensor]) -> None:
        """
        Keep a divergence for the next :meth:`take`.

        :param divergence: ``(*batch)``, with its graph.
        :param shared: The tensors whose graph it shares with the marginals.
        :param parameters: All parameters that it depends on.
        """
        self.forget()
        if any(parameter.device.type != "cpu" for parameter in parameters):
            return
        self._divergence, self._grad_enabled = divergence, torch.is_grad_enabled()
        self._snapshot = tuple(_Snapshot(parameter) for parameter in parameters)
        reference = weakref.ref(self)

        def forget(_: Tensor) -> None:
            owner = reference()
            if owner is not None:
                owner.forget()

        for tensor in (divergence, *shared):
            if tensor.requires_grad:
                tensor.register_hook(forget)

    def take(self, parameters: Sequence[Tensor]) -> Tensor | None:
        """
        The divergence on offer, or None if a new computation could give anything else. It is handed over once.

        :param parameters: All parameters that it depends on.
        """
        divergence, snapshot = self._divergence, self._snapshot
        self.forget()
        if divergence is None or self._grad_enabled != torch.is_grad_enabled():
            return None
        same = len(parameters) == len(snapshot) and all(
            then.describes(parameter) for then, parameter in zip(snapshot, parameters, strict=True)
        )
        return divergence if same else None

    def forget(self) -> None:
        """Drop the divergence on offer."""
        self._divergence, self._snapshot = None, ()

    def __reduce__(self) -> tuple[type[SharedDivergence], tuple[()]]:
        # Copies and pickles of the owner start without a divergence: a tensor with a graph allows neither.
        return SharedDivergence, ()


class _Snapshot:
    """Identity, gradient flag and value of a parameter."""

    def __init__(self, parameter: Tensor) -> None:
        self.reference = weakref.ref(parameter)
        self.requires_grad = parameter.requires_grad
        self.value = parameter.detach().clone()

    def describes(self, parameter: Tensor) -> bool:
        is_same = self.reference() is parameter and self.requires_grad == parameter.requires_grad
        return is_same and self.value.dtype == parameter.dtype and torch.equal(self.value, parameter)
