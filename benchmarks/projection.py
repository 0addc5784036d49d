"""
Claim: projections without the kernel matrix run near the rate of matrix products, and as accurately as float32 allows.

Measures the forward and the backward pass of the projections H = sum_c W_c' K_c and, where there are block weights, of
the squared norms of V_c' K_c, with gradients of the weights and of the hyperparameters:

- plain: tensor operations on the whole kernel matrix and autograd, where memory allows;
- blockwise: blocks of rows in plain torch;
- triton: Triton kernels on a CUDA device, in every precision of the tensor cores that is asked for.

All in float32, timed in turn. Errors are the largest of any entry relative to the largest entry of its result, against
float64; TFLOP/s count 2 C M n (S + r) operations for a forward pass and twice as many for a backward pass.

    python benchmarks/projection.py [--settings 32,64,65,0,131072 ...] [--device cuda] [--precisions tf32x3 tf32 bf16]
        [--shapes RBF] [--json FILE]
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from _common import add_common_arguments, interleaved_times, prepare, print_table, write_json
from torch import Tensor

from gpytorch_gam.projection.blockwise import BlockwiseProjection, ProjectionBackend, ProjectionInputs, plain_projection
from gpytorch_gam.projection.separable_form import Factor, LocalShape
from gpytorch_gam.projection.triton_projection import TritonProjection, supports

# Numbers of the kernel matrix up to which the plain path, which holds several of this size, is measured.
PLAIN_LIMIT = 5e8
PRECISIONS = ("tf32x3", "tf32", "bf16")
DIFFERENTIATED = ("log_scale", "rate", "left", "right", "offset_z", "offset_x")


class Setting(NamedTuple):
    num_components: int
    num_inducing: int
    num_shared: int
    block_rank: int
    batch: int


DEFAULT_SETTINGS = {
    "cpu": (Setting(16, 32, 65, 0, 8192), Setting(16, 32, 33, 32, 8192)),
    "cuda": (Setting(32, 64, 65, 0, 131_072), Setting(32, 64, 33, 64, 131_072), Setting(32, 64, 65, 0, 8192)),
}
QUICK_SETTINGS = (Setting(3, 8, 5, 0, 200), Setting(3, 8, 5, 8, 200))


class Passes(NamedTuple):
    """A forward pass, and a backward pass after it; each returns what it computes."""

    forward: Callable[[], list[Tensor]]
    backward: Callable[[], list[Tensor]]


def make_factor(shape: LocalShape, setting: Setting, device: torch.device) -> Factor:
    points = (setting.num_components, setting.num_inducing)
    rows = (setting.num_components, setting.batch)
    is_deviation = shape.name.endswith("DEVIATION") or shape is LocalShape.CENTRED_RBF
    is_negative = shape.name.endswith("RBF") or shape.name.startswith("PERIODIC")
    rate = torch.full((setting.num_components, 1), -12.5 if is_negative else 5.0, device=device)
    return Factor(
        shape,
        torch.rand(points, device=device),
        torch.rand(rows, device=device),
        torch.zeros_like(rate),
        rate,
        offset_z=torch.randn(points, device=device) if shape is LocalShape.CENTRED_RBF else None,
        offset_x=torch.randn(rows, device=device) if shape is LocalShape.CENTRED_RBF else None,
        left=torch.randn(*points, 2, device=device) if is_deviation else None,
        right=torch.randn(rows[0], 2, rows[1], device=device) if is_deviation else None,
    )


def make_inputs(setting: Setting, shapes: Sequence[LocalShape], device: torch.device) -> ProjectionInputs:
    """Random weights for kernels with a product of factors, those that are centred with their rank-2 products."""
    points = (setting.num_components, setting.num_inducing)
    return ProjectionInputs(
        tuple(make_factor(shape, setting, device) for shape in shapes),
        torch.randn(*points, setting.num_shared, device=device),
        torch.randn(*points, setting.block_rank, device=device) if setting.block_rank else None,
        None,
    )


def gradients_needed(inputs: ProjectionInputs) -> list[bool]:
    """Those of a training step with fixed inducing points."""
    of_factors = [
        name in DIFFERENTIATED and tensor is not None
        for factor in inputs.factors
        for name, tensor in zip(Factor._fields[1:], factor[1:], strict=True)
    ]
    return [True, inputs.block is not None, False, *of_factors]


def make_seeds(setting: Setting, device: torch.device) -> tuple[Tensor, Tensor]:
    """Gradients of a loss with respect to both projections."""
    return torch.randn(setting.num_shared, setting.batch, device=device), torch.randn(setting.batch, device=device)


def backend_passes(backend: ProjectionBackend, inputs: ProjectionInputs, seeds: tuple[Tensor, Tensor]) -> Passes:
    needed = gradients_needed(inputs)
    grad_squares = None if inputs.block is None else seeds[1]

    def forward() -> list[Tensor]:
        return [tensor for tensor in backend.forward(inputs, True)[:2] if tensor is not None]

    kept = backend.forward(inputs, True)[2]

    def backward() -> list[Tensor]:
        grads = backend.backward(inputs, kept, seeds[0], grad_squares, needed)
        return [grad for grad, is_needed in zip(grads, needed, strict=True) if is_needed and grad is not None]

    return Passes(forward, backward)


def plain_passes(inputs: ProjectionInputs, seeds: tuple[Tensor, Tensor]) -> Passes:
    leaves = [
        tensor.detach().requires_grad_(is_needed) if tensor is not None else None
        for tensor, is_needed in zip(inputs.flat(), gradients_needed(inputs), strict=True)
    ]
    with_graph = ProjectionInputs.from_flat(tuple(factor.shape for factor in inputs.factors), leaves)

    def forward() -> list[Tensor]:
        return [tensor for tensor in plain_projection(with_graph) if tensor is not None]

    outputs = forward()

    def backward() -> list[Tensor]:
        wanted = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]
        return list(torch.autograd.grad(outputs, wanted, seeds[: len(outputs)], retain_graph=True))

    return Passes(forward, backward)


def make_passes(inputs: ProjectionInputs, seeds: tuple[Tensor, Tensor], precisions: Sequence[str]) -> dict[str, Passes]:
    passes = {}
    if inputs.shared.shape[:-1].numel() * inputs.factors[0].x.shape[-1] <= PLAIN_LIMIT:
        passes["plain"] = plain_passes(inputs, seeds)
    passes["blockwise"] = backend_passes(BlockwiseProjection(), inputs, seeds)
    if inputs.shared.is_cuda and supports(inputs):
        for precision in precisions:
            passes[f"triton, {precision}"] = backend_passes(TritonProjection(precision), inputs, seeds)
    return passes


def reference_results(inputs: ProjectionInputs, seeds: tuple[Tensor, Tensor]) -> Passes:
    """Both passes in float64."""
    shapes = tuple(factor.shape for factor in inputs.factors)
    wide = [None if tensor is None else tensor.double() for tensor in inputs.flat()]
    return backend_passes(
        BlockwiseProjection(), ProjectionInputs.from_flat(shapes, wide), (seeds[0].double(), seeds[1].double())
    )


def largest_error(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    pairs = zip(actual, expected, strict=True)
    return max(((a - e).abs().max() / e.abs().max()).item() for a, e in pairs)


def num_operations(setting: Setting) -> dict[str, float]:
    size = math.prod(setting[:2]) * setting.batch
    forward = 2.0 * size * (setting.num_shared + setting.block_rank)
    return {"forward": forward, "backward": 2 * forward}


def measure(
    setting: Setting, shapes: Sequence[LocalShape], precisions: Sequence[str], repeats: int, device: torch.device
) -> list[dict[str, Any]]:
    """Time all paths in a setting; one record a path."""
    inputs, seeds = make_inputs(setting, shapes, device), make_seeds(setting, device)
    passes = make_passes(inputs, seeds, precisions)
    functions = {(name, part): getattr(found, part) for name, found in passes.items() for part in Passes._fields}
    times = interleaved_times(functions, repeats, device)
    reference, operations = reference_results(inputs, seeds), num_operations(setting)
    records = []
    for name, found in passes.items():
        record: dict[str, Any] = {"path": name}
        for part in Passes._fields:
            seconds = statistics.median(times[name, part])
            record[part] = {
                "milliseconds": 1e3 * seconds,
                "tflops": operations[part] / seconds / 1e12,
                "error": largest_error(getattr(found, part)(), getattr(reference, part)()),
            }
        records.append(record)
    return records


def print_setting(setting: Setting, records: Sequence[dict[str, Any]]) -> None:
    components, points, shared, rank, batch = setting
    print(f"\nC={components} M={points} S={shared} r={rank} n={batch}")
    rows = [
        [
            record["path"],
            *(
                text
                for part in Passes._fields
                for text in (
                    f"{record[part]['milliseconds']:.2f}",
                    f"{record[part]['tflops']:.3g}",
                    f"{record[part]['error']:.1e}",
                )
            ),
        ]
        for record in records
    ]
    header = [f"{part} {what}" for part in Passes._fields for what in ("ms", "TFLOP/s", "error")]
    print_table(["path", *header], rows)


def parse_setting(text: str) -> Setting:
    try:
        setting = Setting(*(int(part) for part in text.split(",")))
    except (TypeError, ValueError):
        raise argparse.ArgumentTypeError(f"must be C,M,S,r,n such as 32,64,65,0,131072, got {text!r}") from None
    if min(setting._replace(block_rank=1)) < 1 or setting.block_rank < 0:
        raise argparse.ArgumentTypeError(f"needs positive numbers, and r >= 0, got {text!r}")
    return setting


def parse_shape(text: str) -> LocalShape:
    if text not in LocalShape.__members__:
        raise argparse.ArgumentTypeError(f"must be one of {list(LocalShape.__members__)}, got {text!r}")
    return LocalShape[text]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Time and accuracy of projections without the kernel matrix.")
    add_common_arguments(parser, repeats=7)
    parser.add_argument("--settings", type=parse_setting, nargs="+", metavar="C,M,S,r,n", help="what to run")
    parser.add_argument(
        "--precisions", choices=PRECISIONS, nargs="+", default=PRECISIONS, help="of the Triton kernels (default all)"
    )
    parser.add_argument(
        "--shapes", type=parse_shape, nargs="+", default=[LocalShape.RBF], help="of the factors, one or two"
    )
    arguments = parser.parse_args(argv)
    device, environment = prepare(arguments)
    chosen = arguments.settings or (QUICK_SETTINGS if arguments.quick else DEFAULT_SETTINGS[device.type])
    names = [shape.name for shape in arguments.shapes]
    print(f"projections in float32, kernel {' x '.join(names)}, medians of {arguments.repeats} interleaved rounds")

    results: dict[str, Any] = {
        "environment": environment,
        "repeats": arguments.repeats,
        "shapes": names,
        "settings": [],
    }
    for setting in chosen:
        records = measure(setting, arguments.shapes, arguments.precisions, arguments.repeats, device)
        print_setting(setting, records)
        results["settings"].append({**setting._asdict(), "paths": records})
    write_json(arguments.json, results)


if __name__ == "__main__":
    main()
