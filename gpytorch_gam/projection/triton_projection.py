"""Projections by Triton kernels, for float32 on CUDA devices."""

from __future__ import annotations

import functools
import importlib.util
import os
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.torch_version import TorchVersion

from gpytorch_gam import settings
from gpytorch_gam.warnings import ProjectionWarning

from .blockwise import BlockwiseProjection, ProjectionInputs
from .separable_form import FACTOR_TENSORS, Factor, LocalShape

# Tiles of inducing points, rows, and columns of the weights. They are as large as the registers of an H100 allow, for
# four warps: tests/projection/test_triton_projection.py checks it.
_FORWARD_POINTS, _FORWARD_ROWS = 32, 64
_BACKWARD_POINTS, _BACKWARD_ROWS = 64, 32
_LARGEST_TILE = 64
_SMALLEST_TILE = 16
_NUM_WARPS, _NUM_STAGES = 4, 2
# Programs per multiprocessor: enough that few multiprocessors are idle while the last programs end.
_PROGRAMS = 8
# The least number of tiles of rows for a program of the backward pass: its results have to be worth adding up.
_LEAST_ROW_TILES = 2
_SMALLEST_CAPABILITY = (8, 0)
# The oldest Triton whose compiler and interpreter take the kernels; it comes with torch 2.8.
_OLDEST_TRITON = "3.4"

# Largest error of float32 in the small problem by which the kernels are tried on a device.
_LARGEST_ERROR = 1e-4

# The same numbers as in _triton_kernels, which cannot be imported without Triton.
_NUM_COLUMNS, _FACTOR_SUMS, _NUM_SUMS = 4, 6, 13

_SUMS = ("z", "log_scale", "rate", "offset_z", "left")


def is_available() -> bool:
    """
    Whether Triton is installed and recent enough, and there is a CUDA device or Triton interprets its kernels. One that
    is too old is warned of once.
    """
    has_device = torch.cuda.is_available() or _is_interpreted()
    return has_device and importlib.util.find_spec("triton") is not None and _is_recent_enough()


def supports(inputs: ProjectionInputs) -> bool:
    """
    Whether :class:`TritonProjection` can evaluate projections: those in float32, of one or two factors, without batch
    dimensions other than the components, on a CUDA device with tensor cores for float32.
    """
    tensors = [tensor for tensor in inputs.flat() if tensor is not None]
    device = inputs.shared.device
    return (
        inputs.shared.dim() == 3
        and all(tensor.numel() > 0 for tensor in tensors)
        and 1 <= len(inputs.factors) <= 2
        and all(tensor.dtype == torch.float32 and tensor.device == device for tensor in tensors)
        and _supports_device(device)
        and is_available()
    )


@functools.cache
def _is_recent_enough() -> bool:
    import triton

    if TorchVersion(triton.__version__) >= _OLDEST_TRITON:
        return True
    warnings.warn(
        f"Triton {triton.__version__} is installed, but the kernels need {_OLDEST_TRITON}, which comes with torch 2.8; "
        "projections take plain torch",
        ProjectionWarning,
        stacklevel=2,
    )
    return False


def _is_interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


def _supports_device(device: torch.device) -> bool:
    if device.type != "cuda":
        return device.type == "cpu" and _is_interpreted()
    return torch.version.cuda is not None and torch.cuda.get_device_capability(device) >= _SMALLEST_CAPABILITY


class TritonProjection:
    """
    The :class:`ProjectionBackend` of Triton kernels, see :func:`supports`. The kernel matrix is never stored. Matrix
    products are those of tensor cores, by default in the present :class:`gpytorch_gam.settings.tensor_core_precision`;
    everything else is in float32. Results are reproducible from one call to the next.
    """

    def __init__(self, precision: str | None = None) -> None:
        self.precision = settings.tensor_core_precision.value() if precision is None else precision

    def forward(self, inputs: ProjectionInputs, keep: bool) -> tuple[Tensor, Tensor | None, Any]:
        """See :class:`ProjectionBackend`."""
        plan = _Plan(inputs, _FORWARD_POINTS, self.precision)
        num_blocks = _ceil_div(plan.num_rows, _FORWARD_ROWS)
        num_parts = min(plan.num_components, _ceil_div(plan.num_programs, num_blocks))
        per_program = _ceil_div(plan.num_components, num_parts)
        num_parts = _ceil_div(plan.num_components, per_program)

        shared = _weight_parts(
            inputs.shared[..., : plan.num_dotted].mT, plan.padded_shared, plan.padded_points, self.precision
        )
        block, tile_block, num_block_tiles = shared, _SMALLEST_TILE, 0
        if inputs.block is not None:
            tile_block = _tile(inputs.block.shape[-1])
            num_block_tiles = _ceil_div(inputs.block.shape[-1], tile_block)
            block = _weight_parts(inputs.block.mT, num_block_tiles * tile_block, plan.padded_points, self.precision)
        shared_out = inputs.shared.new_empty(num_parts, plan.num_shared, plan.num_rows)
        squares_out = inputs.shared.new_empty(max(1, num_block_tiles), num_parts, plan.num_rows)
        last = plan.last_column()
        arguments, constants = plan.common()
        for index in range(max(1, plan.num_shared_tiles, num_block_tiles)):
            # The argument of a tile that does not exist must still be a valid address.
            at_shared = index * plan.tile_shared if index < plan.num_shared_tiles else 0
            at_block = index * tile_block if index < num_block_tiles else 0
            _launch(
                "forward_kernel",
                (num_blocks, num_parts),
                {
                    "shared_out": shared_out[:, at_shared:],
                    "squares_out": squares_out[index if index < num_block_tiles else 0],
                    "shared_large": shared.large[:, at_shared:],
                    "shared_small": shared.small[:, at_shared:],
                    "last": last,
                    "block_large": block.large[:, at_block:],
                    "block_small": block.small[:, at_block:],
                    **arguments,
                    "num_shared": plan.num_shared,
                    "num_columns": min(plan.tile_shared, plan.num_dotted - at_shared),
                    "components_per_program": per_program,
                },
                {
                    **constants,
                    "HAS_SHARED": index < plan.num_shared_tiles,
                    "HAS_LAST": plan.has_last and index == 0,
                    "HAS_BLOCK": index < num_block_tiles,
                    "PADDED_SHARED": plan.padded_shared,
                    "PADDED_BLOCK": num_block_tiles * tile_block,
                    "TILE_N": _FORWARD_ROWS,
                    "TILE_R": tile_block,
                },
            )
        shared_total = shared_out.squeeze(0) if num_parts == 1 else shared_out.sum(0)
        return shared_total, None if inputs.block is None else squares_out.sum((0, 1)), None

    def backward(
        self,
        inputs: ProjectionInputs,
        kept: Any,
        grad_shared: Tensor,
        grad_squares: Tensor | None,
        needed: Sequence[bool],
    ) -> list[Tensor | None]:
        """See :class:`ProjectionBackend`."""
        plan = _Plan(inputs, _BACKWARD_POINTS, self.precision)
        block = inputs.block if grad_squares is not None else None
        num_programs = plan.num_components * plan.num_tiles
        num_blocks = _ceil_div(plan.num_rows, _BACKWARD_ROWS)
        num_parts = max(1, min(plan.num_programs // num_programs, num_blocks // _LEAST_ROW_TILES))
        per_program = _ceil_div(num_blocks, num_parts)
        num_parts = _ceil_div(num_blocks, per_program)

        outputs = _GradientBuffers(plan, num_parts, needed, has_block=block is not None)
        shared = _weight_parts(
            inputs.shared[..., : plan.num_dotted], plan.padded_points, plan.padded_shared, self.precision
        )
        gram = shared
        if block is not None:
            # A product in double precision, rounded to float32 once.
            wide = block.double()
            gram = _weight_parts((wide @ wide.mT).float(), plan.padded_points, plan.padded_points, self.precision)
        grad_shared = grad_shared.contiguous()
        arguments, constants = plan.common()
        _launch(
            "backward_kernel",
            (num_programs, num_parts),
            {
                **outputs.arguments(),
                "grad_shared": grad_shared,
                "grad_last": grad_shared[-1],
                "grad_squares": grad_shared if grad_squares is None else grad_squares.contiguous(),
                "shared_large": shared.large,
                "shared_small": shared.small,
                "last": plan.last_column(),
                "gram_large": gram.large,
                "gram_small": gram.small,
                **arguments,
                "num_columns": plan.num_dotted,
                "rows_per_program": per_program * _BACKWARD_ROWS,
            },
            {
                **constants,
                **outputs.constants(),
                "HAS_LAST": plan.has_last,
                "HAS_BLOCK": block is not None,
                "NUM_SHARED_TILES": plan.num_shared_tiles,
                "TILE_N": _BACKWARD_ROWS,
            },
        )
        return outputs.gradients(inputs)


class _Plan:
    """Sizes and tiles of projections for a largest tile of inducing points, and the arguments of both kernels."""

    def __init__(self, inputs: ProjectionInputs, largest_tile: int, precision: str) -> None:
        self.inputs = inputs
        self.num_components, self.num_points, self.num_shared = inputs.shared.shape
        self.num_rows = inputs.factors[0].x.shape[-1]
        self.tile_points = _tile(self.num_points, largest_tile)
        self.num_tiles = _ceil_div(self.num_points, self.tile_points)
        self.padded_points = self.num_tiles * self.tile_points
        # The last column of 65 goes by itself where it would take a tile of its own.
        self.num_dotted = self.num_shared - 1
        self.tile_shared = _tile(max(1, self.num_dotted))
        self.num_shared_tiles = _ceil_div(self.num_dotted, self.tile_shared)
        self.padded_shared = self.num_shared_tiles * self.tile_shared
        self.has_last = self.num_dotted == self.padded_shared
        if not self.has_last:
            self.num_dotted = self.num_shared
        self.precision = precision
        self.num_programs = _PROGRAMS * _num_multiprocessors(inputs.shared.device)

    def last_column(self) -> Tensor:
        """The last column of the shared weights, padded."""
        return _padded(self.inputs.shared[..., -1], (self.padded_points,))

    def common(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Arguments and constants of both kernels."""
        factors, multiplier = self.inputs.factors, self.inputs.multiplier
        arguments: dict[str, Any] = {"columns": self._columns(), "scalars": self._scalars()}
        for index in range(2):
            factor = factors[min(index, len(factors) - 1)]
            for name, tensor in (("x", factor.x), ("offset", factor.offset_x), ("right", factor.right)):
                rows = _with_contiguous_rows(factor.x if tensor is None else tensor)
                arguments |= {f"{name}_{index}": rows, f"{name}_stride_{index}": rows.stride(0)}
        rows = _with_contiguous_rows(factors[0].x if multiplier is None else multiplier)
        arguments |= {"multiplier": rows, "multiplier_stride": rows.stride(0)}
        arguments |= {"num_rows": self.num_rows, "num_components": self.num_components}
        constants = {
            "SHAPE_0": int(factors[0].shape),
            "SHAPE_1": int(factors[1].shape) if len(factors) == 2 else -1,
            "PRODUCT_0": factors[0].left is not None,
            "PRODUCT_1": len(factors) == 2 and factors[1].left is not None,
            "HAS_MULTIPLIER": multiplier is not None,
            "NUM_TILES": self.num_tiles,
            "TILE_M": self.tile_points,
            "TILE_S": self.tile_shared,
            "PRECISION": self.precision,
        }
        return arguments, constants

    def _columns(self) -> Tensor:
        """Functions of the inducing points: z, offset and left, ``(factors, 4, C, M)``, padded by zeros."""
        factors, shared = self.inputs.factors, self.inputs.shared
        columns = shared.new_zeros(len(factors), _NUM_COLUMNS, self.num_components, self.padded_points)
        for column, factor in zip(columns[..., : self.num_points], factors, strict=True):
            column[0] = factor.z
            if factor.offset_z is not None:
                column[1] = factor.offset_z
            if factor.left is not None:
                column[2:] = factor.left.movedim(-1, 0)
        return columns

    def _scalars(self) -> Tensor:
        """The logarithm of the scale and the rate of each factor, ``(factors, 2, C)``."""
        pairs = [torch.stack([factor.log_scale, factor.rate]) for factor in self.inputs.factors]
        return torch.stack(pairs).squeeze(-1)


class _GradientBuffers:
    """The results of the backward kernel, of ``num_parts`` programs that share the rows, and their gradients."""

    def __init__(self, plan: _Plan, num_parts: int, needed: Sequence[bool], has_block: bool) -> None:
        self.plan = plan
        shared = plan.inputs.shared
        self.wants_shared, self.wants_block = needed[0], has_block and needed[1]
        self.wants_multiplier = plan.inputs.multiplier is not None and needed[2]
        self.wanted = [
            {
                name: wants and tensor is not None
                for name, wants, tensor in zip(FACTOR_TENSORS, needed[start:], factor[1:], strict=False)
            }
            for start, factor in zip((3, 3 + len(FACTOR_TENSORS)), plan.inputs.factors, strict=False)
        ]
        points = (num_parts, plan.num_components, plan.padded_points)
        # A single tile is written; with several, each is added to memory that is zero at first.
        self.shared = shared.new_empty(0)
        if self.wants_shared:
            self.shared = shared.new_empty(*points, plan.padded_shared)
            if plan.num_shared_tiles > 1:
                self.shared.zero_()
        self.block = shared.new_empty(0)
        if self.wants_block:
            self.block = shared.new_empty(*points, plan.padded_points)
            if plan.num_tiles > 1:
                self.block.zero_()
        self.sums = shared.new_empty(num_parts, _NUM_SUMS, *points[1:])
        rows = (plan.num_tiles, plan.num_components, plan.num_rows)
        self.multiplier = shared.new_empty(rows if self.wants_multiplier else 0)
        self.rows = [
            {
                "x": shared.new_empty(rows if wanted["x"] else 0),
                "offset_x": shared.new_empty(rows if wanted["offset_x"] else 0),
                "right": shared.new_empty((*rows[:2], 2, rows[2]) if wanted["right"] else 0),
            }
            for wanted in self.wanted
        ]

    def arguments(self) -> dict[str, Tensor]:
        """The arguments of the kernel."""
        found = {
            "shared_out": self.shared,
            "block_out": self.block,
            "sums_out": self.sums,
            "multiplier_out": self.multiplier,
        }
        for index in range(2):
            rows = self.rows[min(index, len(self.rows) - 1)]
            found |= {f"{name.removesuffix('_x')}_out_{index}": tensor for name, tensor in rows.items()}
        return found

    def constants(self) -> dict[str, int]:
        """The constants of the kernel, which have a bit for each wanted gradient of a factor."""
        bits = [sum(1 << bit for bit, wants in enumerate(wanted.values()) if wants) for wanted in self.wanted]
        return {
            "WANTED_0": bits[0],
            "WANTED_1": bits[1] if len(bits) == 2 else 0,
            "WANTS_MULTIPLIER": self.wants_multiplier,
            "WANTS_SHARED": self.wants_shared,
            "WANTS_BLOCK": self.wants_block,
        }

    def gradients(self, inputs: ProjectionInputs) -> list[Tensor | None]:
        """The gradients in the order of :meth:`ProjectionInputs.flat`."""
        # (NUM_SUMS, C, M)
        sums = self.sums.sum(0, dtype=torch.float64)[..., : self.plan.num_points]
        grads: list[Tensor | None] = [None, None, None]
        if self.wants_shared:
            grads[0] = self._shared_gradient(sums[-1])
        if self.wants_block and inputs.block is not None:
            size = self.plan.num_points
            products = self.block.sum(0, dtype=torch.float64)[:, :size, :size]
            grads[1] = (products @ inputs.block.double()).float()
        if self.wants_multiplier:
            grads[2] = self.multiplier.sum(0)
        for wanted, rows, own in zip(self.wanted, self.rows, sums[:-1].unflatten(0, (2, _FACTOR_SUMS)), strict=False):
            found = {name: rows[name].sum(0) for name in rows if wanted[name]}
            point_sums = zip(_SUMS, (*own[:4], own[4:].movedim(0, -1)), strict=True)
            for name, tensor in point_sums:
                if wanted[name]:
                    is_scalar = name in ("log_scale", "rate")
                    found[name] = (tensor.sum(-1, keepdim=True) if is_scalar else tensor).float()
            grads.extend(found.get(name) for name in FACTOR_TENSORS)
        return grads

    def _shared_gradient(self, last: Tensor) -> Tensor:
        plan = self.plan
        dotted = self.shared.sum(0, dtype=torch.float64)[:, : plan.num_points, : plan.num_dotted]
        if plan.has_last:
            dotted = torch.cat([dotted, last.unsqueeze(-1)], dim=-1)
        return dotted.float()


class _Parts(NamedTuple):
    """Two numbers for tensor cores whose sum is a weight. The second is not read unless the precision is tf32x3."""

    large: Tensor
    small: Tensor


def _weight_parts(weights: Tensor, num_rows: int, num_columns: int, precision: str) -> _Parts:
    """The parts of weights ``(C, num_rows, num_columns)``, padded by zeros."""
    padded = _padded(weights, (num_rows, num_columns))
    if precision == "bf16":
        large = padded.bfloat16()
        return _Parts(large, large)
    # Round to the nearest number with ten bits of mantissa.
    large = (padded.view(torch.int32) + 4096).bitwise_and_(-8192).view(torch.float32)
    return _Parts(large, padded.sub_(large))


def _padded(tensor: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """A new tensor, with zeros at the end of its last dimensions up to the given sizes."""
    inner = padded = tensor.new_zeros(*tensor.shape[: -len(sizes)], *sizes)
    for dim, size in enumerate(tensor.shape[-len(sizes) :], start=-len(sizes)):
        inner = inner.narrow(dim, 0, size)
    inner.copy_(tensor)
    return padded


def _with_contiguous_rows(tensor: Tensor) -> Tensor:
    """``(C, ..., n)`` with each component contiguous; a component that is repeated by strides stays so."""
    if tensor[0].is_contiguous():
        return tensor
    return tensor[:1].contiguous().expand_as(tensor) if tensor.stride(0) == 0 else tensor.contiguous()


def _tile(size: int, largest: int = _LARGEST_TILE) -> int:
    """The size of tiles for a dimension: the next power of two within limits."""
    return min(largest, max(_SMALLEST_TILE, 1 << (size - 1).bit_length()))


def _ceil_div(size: int, divisor: int) -> int:
    return -(-size // divisor)


@functools.cache
def _num_multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def _launch(name: str, grid: tuple[int, int], arguments: dict[str, Any], constants: dict[str, Any]) -> None:
    """Run a kernel on the device of its arguments."""
    # Imported only here, so that Triton is not needed unless kernels run.
    from . import _triton_kernels

    device = arguments["columns"].device
    with torch.cuda.device(device if device.type == "cuda" else -1):
        kernel = getattr(_triton_kernels, name)
        kernel[grid](**arguments, **constants, num_warps=_NUM_WARPS, num_stages=_NUM_STAGES)


@functools.cache
def works_on(device: torch.device) -> bool:
    """Whether the kernels compile on a CUDA device and agree there with plain torch, tested once by a small problem."""
    try:
        error = _largest_error(device)
        if error < _LARGEST_ERROR:
            return True
        fault = f"are off by {error:.1e} on {device}"
    except Exception as reason:  # Triton, its compiler, the driver and the device raise errors of all kinds
        fault = f"do not run on {device} ({type(reason).__name__}: {reason})"
    warnings.warn(f"Triton kernels {fault}; projections take plain torch", ProjectionWarning, stacklevel=2)
    return False


@torch.no_grad()
def _largest_error(device: torch.device) -> float:
    """The largest error of values and gradients against float64, relative to the largest entry of each."""
    generator = torch.Generator("cpu").manual_seed(0)

    def random(*sizes: int) -> Tensor:
        return torch.rand(*sizes, generator=generator, device="cpu").to(device)

    def rbf(dtype: torch.dtype) -> ProjectionInputs:
        factor = Factor(LocalShape.RBF, *(tensor.to(dtype) for tensor in (z, x, log_scale, rate)))
        return ProjectionInputs((factor,), shared.to(dtype), block.to(dtype), None)

    z, x, log_scale, rate = random(2, 64), random(2, 200), random(2, 1), -5 - random(2, 1)
    shared, block, seed, square_seed = random(2, 64, 65), random(2, 64, 33), random(65, 200), random(200)
    needed = [tensor is not None for tensor in rbf(torch.float32).flat()]
    found = []
    for backend, dtype in ((TritonProjection("tf32x3"), torch.float32), (BlockwiseProjection(), torch.float64)):
        inputs = rbf(dtype)
        *values, kept = backend.forward(inputs, True)
        grads = backend.backward(inputs, kept, seed.to(dtype), square_seed.to(dtype), needed)
        found.append([tensor.double() for tensor in (*values, *grads) if tensor is not None])
    errors = [(actual - exact).abs().amax() / exact.abs().amax() for actual, exact in zip(*found, strict=True)]
    return torch.stack(errors).amax().item()
