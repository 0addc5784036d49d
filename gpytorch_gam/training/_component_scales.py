"""The trained variances of components, with their lengthscales, and where components are among all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from gpytorch.kernels import Kernel, ScaleKernel
from torch import Tensor

from gpytorch_gam.components import AdditivePredictor, ComponentGroup

from ._component_scan import Place

# The reference of lengthscales is this multiple of the smallest one allowed, which makes it the first one of the terms,
# or that at the start.
_ABOVE_SMALLEST = 25.0


class Scale(NamedTuple):
    """The trained output scale of a component, with kernels below it that have trained lengthscales."""

    name: str
    predictor: int
    kernel: ScaleKernel
    entry: int  # in its raw output scale
    lengthscales: list[Kernel]

    @property
    def raw(self) -> Tensor:
        return self.kernel.raw_outputscale

    def value(self) -> float:
        return self.kernel.outputscale.detach().flatten()[self.entry].item()

    @torch.no_grad()
    def set(self, value: float) -> None:
        constraint, raw = self.kernel.raw_outputscale_constraint, self.raw
        floor = constraint.lower_bound.max().item()
        number = torch.as_tensor(max(value, 1.001 * floor), dtype=torch.float64)
        raw.view(-1)[self.entry] = constraint.inverse_transform(number)


def places_of_components(predictor: AdditivePredictor) -> dict[str, Place]:
    """The places of all components by name, in the order of the inducing vector."""
    names = [(name, group.predictor_index) for group in predictor.groups for name in group.names]
    return {name: Place(predictor.inducing_slices[name], owner, i) for i, (name, owner) in enumerate(names)}


def scales_of_components(predictor: AdditivePredictor) -> Iterator[Scale]:
    """The trained output scales, one a component, of kernels of the form that the terms have."""
    for group in predictor.groups:
        yield from scales_of_group(group)


def scales_of_group(group: ComponentGroup) -> Iterator[Scale]:
    """Those of one group."""
    kernel = group.kernel
    if not isinstance(kernel, ScaleKernel) or not kernel.raw_outputscale.requires_grad or not group.input_dim:
        return
    if kernel.raw_outputscale.numel() != group.num_components:
        return
    parts = [part for part in kernel.base_kernel.modules() if _has_own_lengthscale(part, group.num_components)]
    for entry, name in enumerate(group.names):
        yield Scale(name, group.predictor_index, kernel, entry, parts)


def _has_own_lengthscale(kernel: torch.nn.Module, number: int) -> bool:
    raw = getattr(kernel, "raw_lengthscale", None)
    return raw is not None and raw.requires_grad and raw.dim() > 0 and len(raw) == number


def reference_lengthscale(kernel: Kernel) -> Tensor:
    """The lengthscale from which others are counted."""
    lower = kernel.raw_lengthscale_constraint.lower_bound.expand_as(kernel.lengthscale)
    return torch.where(lower > 0, _ABOVE_SMALLEST * lower, kernel.lengthscale.detach())


@torch.no_grad()
def set_lengthscale(kernel: Kernel, entry: int, values: Tensor) -> None:
    """Set a component's lengthscale to that of ``values``, or as near as its constraint allows."""
    constraint = kernel.raw_lengthscale_constraint
    lower, upper = (bound.expand_as(values) for bound in (constraint.lower_bound, constraint.upper_bound))
    wanted = torch.minimum(torch.maximum(values, 1.05 * lower), 0.95 * upper)
    kernel.raw_lengthscale[entry] = constraint.inverse_transform(wanted)[entry]
