"""
The Triton backend against the one in plain torch, in float64, for all kinds of inputs and sizes.

Run by test_triton_projection.py in a process of its own, in which Triton interprets its kernels on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from triton.runtime import interpreter

from gpytorch_gam.projection import _triton_kernels, triton_projection
from gpytorch_gam.projection.blockwise import BlockwiseProjection, ProjectionInputs, fused_projection
from gpytorch_gam.projection.separable_form import Factor, LocalShape
from gpytorch_gam.projection.triton_projection import TritonProjection, is_available, supports
from tests.projection.projection_cases import assert_agrees, converted, make_factor, make_inputs


@pytest.fixture(autouse=True)
def loops_with_scalar_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter makes bounds of loops of arrays with one entry, which NumPy 2.4 no longer takes as such."""
    patch = interpreter._patch_lang_tensor

    def patch_also_index(tensor, scope) -> None:
        patch(tensor, scope)
        tensor.__index__ = lambda self: self.handle.data.item()

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patch_also_index)


def test_it_is_available() -> None:
    assert is_available()


def test_constants_are_those_of_the_rest_of_the_package() -> None:
    assert all(getattr(_triton_kernels, shape.name).value == shape for shape in LocalShape)
    for bit, name in enumerate(Factor._fields[1:]):
        assert getattr(_triton_kernels, f"WANTS_{name.upper()}").value == 1 << bit
    for name in ("NUM_COLUMNS", "FACTOR_SUMS", "NUM_SUMS"):
        assert getattr(_triton_kernels, name).value == getattr(triton_projection, f"_{name}")


@pytest.mark.parametrize("has_product", [False, True])
@pytest.mark.parametrize("shape", LocalShape)
def test_every_shape(shape: LocalShape, has_product: bool) -> None:
    assert_agrees(make_inputs((shape,), products=(has_product,), has_multiplier=has_product))


@pytest.mark.parametrize("second", LocalShape)
def test_products_of_two_shapes(second: LocalShape) -> None:
    first = LocalShape((second + 3) % len(LocalShape))
    assert_agrees(make_inputs((first, second), products=(True, second % 2 == 0), has_multiplier=second % 3 == 0))


@pytest.mark.parametrize(
    ("num_points", "has_block"),
    [(1, False), (5, True), (16, False), (64, True), (70, False), (70, True), (130, True)],
)
def test_numbers_of_inducing_points(num_points: int, has_block: bool) -> None:
    block_rank = min(num_points, 70) if has_block else 0
    shapes = (LocalShape.RBF, LocalShape.CENTRED_RBF)
    assert_agrees(make_inputs(shapes, num_points=num_points, block_rank=block_rank, has_multiplier=True))


@pytest.mark.parametrize("num_shared", [1, 2, 33, 65, 130])
def test_numbers_of_shared_weights(num_shared: int) -> None:
    assert_agrees(make_inputs(num_shared=num_shared, block_rank=0))


@pytest.mark.parametrize("block_rank", [1, 16, 64, 70])
def test_ranks_of_block_weights(block_rank: int) -> None:
    assert_agrees(make_inputs(num_shared=1, block_rank=block_rank))


@pytest.mark.parametrize(("num_rows", "num_components"), [(1, 1), (1, 3), (17, 3), (100, 1), (300, 3)])
def test_numbers_of_rows_and_components(num_rows: int, num_components: int) -> None:
    assert_agrees(make_inputs(num_rows=num_rows, num_components=num_components, has_multiplier=True))


def test_programs_share_rows_and_components(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_projection, "_num_multiprocessors", lambda device: 2)
    shapes = (LocalShape.MATERN32, LocalShape.PERIODIC_DEVIATION)
    assert_agrees(make_inputs(shapes, products=(True, True), num_rows=330, num_points=70))


def test_repeated_components() -> None:
    inputs = make_inputs((LocalShape.CENTRED_RBF,), products=(True,), num_components=3, has_multiplier=True)
    repeated = [None if t is None else t[:1].expand_as(t) for t in inputs.flat()]
    assert_agrees(ProjectionInputs.from_flat((LocalShape.CENTRED_RBF,), repeated))


def test_transposed_inputs() -> None:
    inputs = make_inputs((LocalShape.CENTRED_RBF,), products=(True,), has_multiplier=True)
    transposed = [None if t is None else t.mT.contiguous().mT for t in inputs.flat()]
    assert_agrees(ProjectionInputs.from_flat((LocalShape.CENTRED_RBF,), transposed))


def single_needs() -> Iterator[list[bool]]:
    inputs = make_inputs((LocalShape.CENTRED_RBF, LocalShape.MATERN52), products=(True, True), has_multiplier=True)
    exist = [tensor is not None for tensor in inputs.flat()]
    for index in range(len(exist)):
        if exist[index]:
            yield [other == index for other in range(len(exist))]


@pytest.mark.parametrize("needed", list(single_needs()))
def test_each_gradient_alone(needed: list[bool]) -> None:
    shapes = (LocalShape.CENTRED_RBF, LocalShape.MATERN52)
    assert_agrees(make_inputs(shapes, products=(True, True), has_multiplier=True), needed)


def test_lower_precision() -> None:
    """Operands are rounded as on a GPU. The interpreter knows no bfloat16."""
    assert_agrees(make_inputs(num_points=40, num_shared=33, block_rank=40), precision="tf32")


DEVIATIONS = [shape for shape in LocalShape if shape.name.endswith("DEVIATION")]


# At long distances, the sine has no digits left beside multiples of its period.
@pytest.mark.parametrize(("shape", "scale"), [(s, scale) for s in DEVIATIONS for scale in (1e-3, 1.0)])
def test_deviations_keep_their_digits(shape: LocalShape, scale: float) -> None:
    """Each entry for itself: the kernel matrix of unit weights."""
    num_points, num_rows = 8, 40
    factor = make_factor(shape, (1, num_points, num_rows), has_product=False)
    factor = factor._replace(z=scale * factor.z, x=scale * factor.x)
    inputs = ProjectionInputs((factor,), torch.eye(num_points).unsqueeze(0), None, None)
    actual = TritonProjection().forward(inputs, False)[0]
    expected = BlockwiseProjection().forward(converted(inputs, torch.float64), False)[0]
    difference = (factor.z.unsqueeze(-1) - factor.x.unsqueeze(-2)).squeeze(0).double()
    exact = (factor.z.double().unsqueeze(-1) - factor.x.double().unsqueeze(-2)).squeeze(0)
    # What float32 loses in the difference of the inputs is not theirs.
    is_exact = (difference - exact).abs() <= 1e-7 * exact.abs()
    assert is_exact.sum() > 50
    assert ((actual - expected).abs() / expected.abs())[is_exact].max() < 3e-6


def test_gradients_flow_through_autograd() -> None:
    inputs = make_inputs((LocalShape.CENTRED_RBF,), products=(True,))
    leaves = [tensor.requires_grad_() for tensor in inputs.flat() if tensor is not None]
    grads = []
    for backend in (TritonProjection(), BlockwiseProjection()):
        shared, squares = fused_projection(inputs, backend)
        assert squares is not None
        # The gradient of a sum repeats one number, without storing it more than once.
        grads.append(torch.autograd.grad(shared.sum() + squares.sum(), leaves))
    for actual, expected in zip(*grads, strict=True):
        assert (actual - expected).abs().max() < 1e-5 * expected.abs().max()


def test_what_it_does_not_support() -> None:
    inputs = make_inputs()
    assert not supports(converted(inputs, torch.float64))
    assert not supports(inputs._replace(factors=inputs.factors * 3))
    batched = ProjectionInputs.from_flat((LocalShape.RBF,), [None if t is None else t[None] for t in inputs.flat()])
    assert not supports(batched)
    assert not supports(make_inputs(num_rows=0))


def test_the_trial_on_a_device_passes_here() -> None:
    assert triton_projection._largest_error(torch.device("cpu")) < 1e-5
    assert triton_projection.works_on.__wrapped__(torch.device("cpu"))
