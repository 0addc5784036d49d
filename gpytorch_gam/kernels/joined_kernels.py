"""
Kernels of equal structure as one batched kernel.

Evaluating a kernel takes up to a thousand operations, whose number does not depend on how many components share them:
ten kernels of one component each cost ten times as much as one of ten components, while the rows are few.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import torch
from gpytorch.constraints import GreaterThan, Interval, LessThan, Positive
from gpytorch.kernels import ConstantKernel, Kernel, PeriodicKernel, ProductKernel, ScaleKernel
from gpytorch.priors import Prior
from torch import Tensor

from gpytorch_gam.parameters.log_interval import LogInterval

from .anova_kernel import ANOVAKernel
from .bounded_kernels import MATERN_KERNELS, RBF_KERNELS, PrintableInterval
from .centred_linear_kernel import CentredLinearKernel
from .measures import Empirical, Measure, Normal, Uniform

_Module = TypeVar("_Module", bound=torch.nn.Module)

# The modules that are joined, but no subclass of a user, and their settings that are no tensors.
_SETTINGS: dict[type, tuple[str, ...]] = {
    **dict.fromkeys(RBF_KERNELS, ()),
    **dict.fromkeys(MATERN_KERNELS, ("nu",)),
    ANOVAKernel: ("normalize", "num_quadrature_nodes"),
    **dict.fromkeys((PeriodicKernel, CentredLinearKernel, ConstantKernel, ScaleKernel, ProductKernel), ()),
    torch.nn.ModuleList: (),
    **dict.fromkeys((Uniform, Normal, Empirical), ()),
    **dict.fromkeys((Interval, PrintableInterval, LogInterval, GreaterThan, LessThan, Positive), ()),
}

# The number of dimensions of the modules' tensors that are not those of a batch. Bounds have those of their parameter.
_EVENT_DIMS = {
    "raw_lengthscale": 2,
    "raw_period_length": 2,
    "raw_constant": 1,
    "raw_outputscale": 0,
    "centre": 0,
    "scale": 0,
}


def structure_of(kernel: Kernel) -> Hashable | None:
    """
    What kernels must have in common to be joined: everything but the numbers in their tensors, and their batch shapes
    of at most one dimension. None for a kernel with parts that are not known.
    """
    found: list[Any] = []
    return tuple(found) if _describe(kernel, found, None) else None


def _describe(module: torch.nn.Module, found: list[Any], num_event_dims: int | None) -> bool:
    """Append the structure of a module; False if it is not known. Bounds get the dimensions of their parameter."""
    kind, values = type(module), module.__dict__
    settings = _SETTINGS.get(kind)
    if settings is None or "forward" in values:
        return False
    found.append(kind)
    found.extend(values[name] for name in settings)
    for name, tensor in _tensors(module):
        dims = _event_dims(module, name, num_event_dims)
        if name == "active_dims" and tensor.device.type == "cpu":
            found.append(tuple(tensor.tolist()))
        elif dims is None or tensor.dim() > dims + 1:
            return False
        else:
            found.append((name, tensor.dtype, tensor.device, tensor.shape[max(0, tensor.dim() - dims) :]))
    if isinstance(module, Interval):
        found.append(_transform(module))
        return True
    return all(_describe(child, found, dims) for _, child, dims in _children(module))


def _tensors(module: torch.nn.Module) -> list[tuple[str, Tensor]]:
    both = (*module._parameters.items(), *module._buffers.items())
    return [(name, tensor) for name, tensor in both if tensor is not None]


def _event_dims(module: torch.nn.Module, name: str, of_parameter: int | None) -> int | None:
    if isinstance(module, Measure):
        return module.num_event_dims
    return of_parameter if isinstance(module, Interval) else _EVENT_DIMS.get(name)


def _children(module: torch.nn.Module) -> list[tuple[str, torch.nn.Module, int | None]]:
    """The modules that an evaluation reads, each with its name and, for bounds, the dimensions of their parameter."""
    return [
        (name, child, _EVENT_DIMS.get(name.removesuffix("_constraint")) if isinstance(child, Interval) else None)
        for name, child in module._modules.items()
        if child is not None and not isinstance(child, Prior)
    ]


def _transform(constraint: Interval) -> Hashable:
    """The transform of a constraint. That of GPyTorch's default is a module, of which each copy of a model has one."""
    transform: Callable[[Tensor], Tensor] = constraint._transform
    if type(transform) is torch.nn.Softplus:
        return torch.nn.Softplus, transform.beta, transform.threshold
    return transform


def joined(kernels: Sequence[Kernel], counts: Sequence[int]) -> Kernel:
    """
    One kernel for the components of several, in their order. It holds no parameters of its own: gradients go to theirs.

    :param kernels: Kernels with the same :func:`structure_of`, not None.
    :param counts: The number of components of each, to which its batch shape broadcasts.
    :return: A kernel of batch shape ``(sum(counts),)``, for use before any of the kernels is changed.
    """
    return _joined(kernels, counts, None)


def _joined(modules: Sequence[_Module], counts: Sequence[int], num_event_dims: int | None) -> _Module:
    first = modules[0]
    copied = type(first).__new__(type(first))
    values: dict[str, Any] = copied.__dict__
    values.update(first.__dict__)
    values["_parameters"], values["_buffers"] = dict(first._parameters), dict(first._buffers)
    for kind in ("_parameters", "_buffers"):
        for name, tensor in first.__dict__[kind].items():
            dims = _event_dims(first, name, num_event_dims)
            if tensor is not None and dims is not None:  # all but active_dims
                parts = [module.__dict__[kind][name] for module in modules]
                values[kind][name] = _joined_tensor(parts, counts, dims)
    if isinstance(first, Interval):
        return copied
    values["_modules"] = {
        name: _joined([module._modules[name] for module in modules], counts, dims)  # type: ignore[type-var]
        for name, _, dims in _children(first)
    }
    if isinstance(first, Kernel):
        values["_batch_shape"] = torch.Size([sum(counts)])
    return copied


def _joined_tensor(parts: Sequence[Tensor], counts: Sequence[int], num_event_dims: int) -> Tensor:
    """Tensors with at most one batch dimension, joined along it."""
    expanded = []
    for part, count in zip(parts, counts, strict=True):
        if part.dim() <= num_event_dims or len(part) != count:
            shape = part.shape[max(0, part.dim() - num_event_dims) :]
            # Bounds that are numbers have fewer dimensions than their parameter.
            part = part.expand(count, *(1,) * (num_event_dims - len(shape)), *shape)
        expanded.append(part)
    return torch.cat(expanded)
