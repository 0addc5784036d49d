"""The kernels of a predictor as they were at one time, for results that are computed later."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor
from torch.func import functional_call

from gpytorch_gam.components import AdditivePredictor
from gpytorch_gam.numerics.transforms import is_vmapped

_Result = TypeVar("_Result")


class _Call(torch.nn.Module):
    """A function of a module's parameters, in the form that :func:`torch.func.functional_call` needs."""

    def __init__(self, groups: torch.nn.Module, function: Callable[[], object]) -> None:
        super().__init__()
        self.groups, self.function = groups, function

    def forward(self) -> object:
        return self.function()


class KernelState:
    """Remembers the values of all components' parameters and buffers, and with gradients on, the tensors themselves."""

    def __init__(self, predictor: AdditivePredictor) -> None:
        self._groups: torch.nn.Module = predictor.groups  # type: ignore[assignment]
        present = self._present()
        self._values = {name: tensor.detach().clone() for name, tensor in present.items()}
        self._with_graph = present if torch.is_grad_enabled() else None

    def _present(self) -> dict[str, Tensor]:
        return {**dict(self._groups.named_parameters()), **dict(self._groups.named_buffers())}

    def run(self, function: Callable[[], _Result]) -> _Result:
        """
        Run a function with the kernels as they were, without gradients if they were changed in place since. Its result
        must not evaluate kernels later.
        """
        if self._with_graph is not None and self._is_unchanged(self._with_graph):
            return self._run_with(self._with_graph, function)
        with torch.no_grad():
            return self._run_with(self._values, function)

    def run_again(self, function: Callable[[], _Result]) -> _Result:
        """Run a function again for a backward pass; a RuntimeError if kernels were changed in place since."""
        if self._with_graph is None or not self._is_unchanged(self._with_graph):
            raise RuntimeError(
                "the kernels have changed since this prediction was made, and its gradient needs them as they were: "
                "call backward before changing the model"
            )
        return self._run_with(self._with_graph, function)

    def _is_unchanged(self, tensors: dict[str, Tensor]) -> bool:
        return all(_has_value(tensor, self._values[name]) for name, tensor in tensors.items())

    def _run_with(self, tensors: dict[str, Tensor], function: Callable[[], _Result]) -> _Result:
        present = self._present()
        if present.keys() == tensors.keys() and all(tensors[name] is tensor for name, tensor in present.items()):
            return function()
        return functional_call(_Call(self._groups, function), {f"groups.{name}": tensors[name] for name in tensors})


def _has_value(tensor: Tensor, value: Tensor) -> bool:
    """Whether a tensor has this value bit by bit, NaN equal to NaN. In ``torch.vmap`` nothing changes parameters."""
    if is_vmapped(tensor):
        return True
    return torch.equal(tensor, value) or bool(((tensor == value) | ((tensor != tensor) & (value != value))).all())
