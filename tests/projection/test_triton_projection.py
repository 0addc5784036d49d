"""The Triton backend without a GPU: its results in Triton's interpreter, and what the compiler makes of it."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch.torch_version import TorchVersion

from gpytorch_gam import settings
from gpytorch_gam.projection import triton_projection
from gpytorch_gam.projection.blockwise import ProjectionInputs
from gpytorch_gam.projection.separable_form import Factor, LocalShape
from gpytorch_gam.projection.triton_projection import TritonProjection, is_available, supports
from gpytorch_gam.warnings import ProjectionWarning


def has_triton() -> bool:
    if importlib.util.find_spec("triton") is None:
        return False
    import triton

    return TorchVersion(triton.__version__) >= triton_projection._OLDEST_TRITON


needs_triton = pytest.mark.skipif(not has_triton(), reason="Triton is not installed, or too old")

# Of a block on an H100, in bytes.
LARGEST_SHARED_MEMORY = 227 * 1024
POINTER_TYPES = {torch.float32: "*fp32", torch.bfloat16: "*bf16"}


def test_the_package_does_without_triton() -> None:
    script = (
        "import sys; sys.modules['triton'] = None\n"
        "import gpytorch_gam\n"
        "from gpytorch_gam.projection.triton_projection import is_available\n"
        "assert not is_available()\n"
        "assert not any(name.endswith('_triton_kernels') for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_inputs_on_the_cpu_are_not_supported_without_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert not supports(make_inputs((LocalShape.RBF,), 2, 8, 3, 0, 20))


def test_it_is_not_available_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert not is_available()


def test_a_triton_that_is_too_old_is_not_used_and_warned_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    is_recent_enough = functools.cache(triton_projection._is_recent_enough.__wrapped__)
    monkeypatch.setattr(triton_projection, "_is_recent_enough", is_recent_enough)
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(__version__="3.2.0"))
    inputs = make_inputs((LocalShape.RBF,), 2, 8, 3, 0, 20)
    assert not supports(inputs._replace(shared=inputs.shared.double()))  # of which nothing needs to be said
    with pytest.warns(ProjectionWarning, match=r"Triton 3\.2\.0 is installed, but the kernels need 3\.4") as caught:
        assert not is_available() and not supports(inputs)
    assert len(caught) == 1
    is_recent_enough.cache_clear()
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(__version__="3.10.0+git1"))
    assert is_available() and supports(inputs)


def test_kernels_that_fail_or_err_on_a_device_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_error(device: torch.device) -> float:
        raise RuntimeError("no compiler")

    works_on, device = triton_projection.works_on.__wrapped__, torch.device("cpu")
    for error, message in ((lambda device: 0.1, "off by 1.0e-01"), (lambda device: float("nan"), "off by nan")):
        monkeypatch.setattr(triton_projection, "_largest_error", error)
        with pytest.warns(ProjectionWarning, match=message):
            assert not works_on(device)
    monkeypatch.setattr(triton_projection, "_largest_error", raise_error)
    with pytest.warns(ProjectionWarning, match="RuntimeError: no compiler"):
        assert not works_on(device)


@needs_triton
def test_results_in_the_interpreter() -> None:
    path = Path(__file__).with_name("interpreted_triton_projection.py")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


def make_inputs(
    shapes: tuple[LocalShape, ...], num_components: int, num_points: int, num_shared: int, rank: int, num_rows: int
) -> ProjectionInputs:
    """Zeros with the given sizes: RBF kernels without products, others with them."""
    points, rows = (num_components, num_points), (num_components, num_rows)

    def factor(shape: LocalShape) -> Factor:
        scalar = torch.zeros(num_components, 1)
        plain = Factor(shape, torch.zeros(points), torch.zeros(rows), scalar, scalar)
        if shape is LocalShape.RBF:
            return plain
        if shape is LocalShape.CENTRED_RBF:
            plain = plain._replace(offset_z=torch.zeros(points), offset_x=torch.zeros(rows))
        return plain._replace(left=torch.zeros(*points, 2), right=torch.zeros(num_components, 2, num_rows))

    return ProjectionInputs(
        tuple(map(factor, shapes)),
        torch.zeros(*points, num_shared),
        torch.zeros(*points, rank) if rank else None,
        None,
    )


class Compiled(NamedTuple):
    shared_memory: int
    assembly: str


def compile_offline(name: str, arguments: dict[str, Any], constants: dict[str, Any], capability: int) -> Compiled:
    """As a launch with these arguments would on a device of a compute capability."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from gpytorch_gam.projection import _triton_kernels

    kernel = getattr(_triton_kernels, name)
    constants, signature, attributes = dict(constants), {}, {}
    for index, argument in enumerate(kernel.arg_names):
        value = arguments.get(argument)
        if torch.is_tensor(value):
            signature[argument] = POINTER_TYPES[value.dtype]
        elif value is None or value == 1:
            signature[argument] = "constexpr"
            constants.setdefault(argument, value)
        else:
            signature[argument] = "i32"
        if torch.is_tensor(value) or (value is not None and value % 16 == 0):
            attributes[(index,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    options = {"num_warps": triton_projection._NUM_WARPS, "num_stages": triton_projection._NUM_STAGES}
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    return Compiled(compiled.metadata.shared, compiled.asm["ptx"])


def spilled_bytes(assembly: str, directory: Path) -> int:
    """What ptxas reports to be stored for want of registers, for Hopper."""
    from triton.backends.nvidia.compiler import get_ptxas

    path = directory / "kernel.ptx"
    path.write_text(assembly)
    arguments = [90] if inspect.signature(get_ptxas).parameters else []  # since Triton 3.6 there are two
    command = [get_ptxas(*arguments).path, "-v", "-arch=sm_90a", path, "-o", path.with_suffix(".cubin")]
    report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    found = re.search(r"(\d+) bytes spill stores", report)
    assert found is not None
    return int(found.group(1))


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Compile what a forward and a backward pass would run."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # Triton 3.9 warns where it is not set
    monkeypatch.setattr(triton_projection, "_num_multiprocessors", lambda device: 132)

    def compile_passes(inputs: ProjectionInputs, precision: str, capability: int = 90) -> dict[str, Compiled]:
        launches: dict[str, Any] = {}
        monkeypatch.setattr(
            triton_projection,
            "_launch",
            lambda name, grid, arguments, constants: launches.setdefault(name, (arguments, constants)),
        )
        needed = [tensor is not None for tensor in inputs.flat()]
        num_shared, num_rows = inputs.shared.shape[-1], inputs.factors[0].x.shape[-1]
        # Inducing points and data are usually fixed.
        needed[3:5] = [False, False]
        with settings.tensor_core_precision(precision):
            backend = TritonProjection()
            backend.forward(inputs, True)
            grad_squares = None if inputs.block is None else torch.zeros(num_rows)
            backend.backward(inputs, None, torch.zeros(num_shared, num_rows), grad_squares, needed)
        return {name: compile_offline(name, *launch, capability) for name, launch in launches.items()}

    return compile_passes


# Shapes, C, M, S, r, and the spilled bytes of the backward pass in tf32x3 at most: some for the longer kernels.
CONFIGURATIONS = {
    "low rank": ((LocalShape.RBF,), 32, 64, 65, 0, 0),
    "block": ((LocalShape.RBF,), 32, 64, 33, 64, 64),
    "centred": ((LocalShape.CENTRED_RBF,), 32, 64, 65, 0, 400),
    "Matern deviation": ((LocalShape.MATERN52_DEVIATION,), 32, 64, 65, 0, 400),
    "interactions": ((LocalShape.CENTRED_RBF, LocalShape.CENTRED_RBF), 28, 64, 33, 64, 1600),
    "mean field": ((LocalShape.RBF,), 32, 64, 1, 64, 64),
    "several tiles": ((LocalShape.RBF,), 3, 130, 130, 130, 400),
}


@needs_triton
@pytest.mark.parametrize(
    ("name", "precision"),
    [*((name, "tf32x3") for name in CONFIGURATIONS), ("low rank", "tf32"), ("block", "bf16")],
)
def test_kernels_compile_for_the_tensor_cores_of_hopper(
    name: str, precision: str, compiled: Any, tmp_path: Path
) -> None:
    *sizes, most_spilled = CONFIGURATIONS[name]
    found = compiled(make_inputs(*sizes, num_rows=131_072), precision)
    assert set(found) == {"forward_kernel", "backward_kernel"}
    for kernel in found.values():
        assert kernel.shared_memory <= LARGEST_SHARED_MEMORY
        assert "wgmma.mma_async" in kernel.assembly
        assert "mma.sync" not in kernel.assembly
    assert spilled_bytes(found["forward_kernel"].assembly, tmp_path) == 0
    assert spilled_bytes(found["backward_kernel"].assembly, tmp_path) <= most_spilled


@needs_triton
@pytest.mark.parametrize("capability", [80, 100, 120])
def test_kernels_compile_for_other_devices(capability: int, compiled: Any) -> None:
    found = compiled(make_inputs((LocalShape.RBF,), 32, 64, 33, 64, num_rows=131_072), "tf32x3", capability)
    # That of consumer cards.
    assert all(kernel.shared_memory <= 99 * 1024 for kernel in found.values())
