"""Inputs of projections of every kind, and the comparison of the Triton backend with the one in plain torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gpytorch_gam import settings
from gpytorch_gam.projection.blockwise import BlockwiseProjection, ProjectionBackend, ProjectionInputs
from gpytorch_gam.projection.separable_form import Factor, LocalShape
from gpytorch_gam.projection.triton_projection import TritonProjection, supports

# Of the largest entry of a result.
TOLERANCES = {"tf32x3": 1e-5, "tf32": 5e-3, "bf16": 5e-2}
NEGATIVE_RATES = (LocalShape.RBF, LocalShape.CENTRED_RBF, LocalShape.PERIODIC, LocalShape.PERIODIC_DEVIATION)


def make_factor(shape: LocalShape, sizes: tuple[int, int, int], has_product: bool) -> Factor:
    num_components, num_points, num_rows = sizes
    points, rows = (num_components, num_points), (num_components, num_rows)
    rate = 0.5 + torch.rand(num_components, 1)
    return Factor(
        shape,
        3 * torch.rand(points),
        3 * torch.rand(rows),
        0.3 * torch.randn(num_components, 1),
        -rate if shape in NEGATIVE_RATES else rate,
        offset_z=torch.randn(points) if shape is LocalShape.CENTRED_RBF else None,
        offset_x=torch.randn(rows) if shape is LocalShape.CENTRED_RBF else None,
        left=torch.randn(*points, 2) if has_product else None,
        right=torch.randn(num_components, 2, num_rows) if has_product else None,
    )


def make_inputs(
    shapes: tuple[LocalShape, ...] = (LocalShape.RBF,),
    *,
    products: tuple[bool, ...] = (False, False),
    num_components: int = 2,
    num_points: int = 20,
    num_shared: int = 17,
    block_rank: int = 5,
    num_rows: int = 45,
    has_multiplier: bool = False,
) -> ProjectionInputs:
    """:param block_rank: 0 for no block weights."""
    sizes = (num_components, num_points, num_rows)
    return ProjectionInputs(
        tuple(make_factor(shape, sizes, product) for shape, product in zip(shapes, products, strict=False)),
        torch.randn(num_components, num_points, num_shared),
        torch.randn(num_components, num_points, block_rank) if block_rank else None,
        torch.randn(num_components, num_rows) if has_multiplier else None,
    )


def converted(inputs: ProjectionInputs, to: torch.dtype | torch.device | str) -> ProjectionInputs:
    shapes = tuple(factor.shape for factor in inputs.factors)
    return ProjectionInputs.from_flat(shapes, [None if t is None else t.to(to) for t in inputs.flat()])


def evaluate(
    backend: ProjectionBackend, inputs: ProjectionInputs, seeds: tuple[Tensor, Tensor], needed: Sequence[bool]
) -> list[Tensor]:
    """Both projections and all gradients; those that are not there left out."""
    dtype = inputs.shared.dtype
    shared, squares, kept = backend.forward(inputs, True)
    grad_squares = None if squares is None else seeds[1].to(dtype)
    grads = backend.backward(inputs, kept, seeds[0].to(dtype), grad_squares, needed)
    wanted = [grad for grad, is_needed in zip(grads, needed, strict=True) if is_needed]
    return [shared, *([] if squares is None else [squares]), *wanted]


def assert_agrees(inputs: ProjectionInputs, needed: list[bool] | None = None, precision: str = "tf32x3") -> None:
    """Both projections and their gradients, by default all of them."""
    assert supports(inputs)
    if needed is None:
        needed = [tensor is not None for tensor in inputs.flat()]
    num_shared, num_rows = inputs.shared.shape[-1], inputs.factors[0].x.shape[-1]
    device = inputs.shared.device
    seeds = torch.randn(num_shared, num_rows, device=device), torch.randn(num_rows, device=device)
    with settings.tensor_core_precision(precision):
        actual = evaluate(TritonProjection(), inputs, seeds, needed)
    expected = evaluate(BlockwiseProjection(), converted(inputs, torch.float64), seeds, needed)
    assert len(actual) == len(expected)
    for found, reference in zip(actual, expected, strict=True):
        assert found.dtype == torch.float32
        assert found.shape == reference.shape
        scale = reference.abs().max().clamp_min(1e-30)
        assert (found - reference).abs().max() / scale < TOLERANCES[precision]
