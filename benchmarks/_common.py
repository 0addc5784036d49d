"""What the benchmarks share: data, the models that are compared, interleaved timing, and output."""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gpytorch
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import AdditiveKernel, Kernel, RBFKernel, ScaleKernel
from gpytorch.means import ZeroMean
from gpytorch.models import ApproximateGP
from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy
from linear_operator.operators import DiagLinearOperator
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup, __version__
from gpytorch_gam.components import regular_grid

LENGTHSCALE = 0.2


def make_data(num_components: int, batch: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """
    Uniform inputs and a noisy sum of sines.

    :return: ``(batch, C)`` and ``(batch,)``.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(batch, num_components, generator=generator)
    y = make_truth(x) + 0.1 * torch.randn(batch, generator=generator)
    return x.to(device), y.to(device)


def make_truth(x: Tensor) -> Tensor:
    """The sum of sines at the rows of ``(n, C)``."""
    return (4.0 * x + torch.linspace(0.0, 3.0, x.shape[-1], device=x.device)).sin().mean(-1)


def make_kernel(num_components: int) -> ScaleKernel:
    """The kernel that all models share: one scaled RBF for each component, prior variance of the sum 1."""
    batch_shape = torch.Size([num_components])
    kernel = ScaleKernel(RBFKernel(batch_shape=batch_shape), batch_shape=batch_shape)
    kernel.base_kernel.lengthscale = LENGTHSCALE
    # At unit variance of the sum, float32 kernel matrices of all models are positive definite at the first attempt.
    kernel.outputscale = 1.0 / num_components
    return kernel


def additive_gp(num_components: int, num_inducing: int, family: str, rank: int | None = None) -> AdditiveGP:
    """A model of this package with fixed inducing points."""
    group = ComponentGroup(
        make_kernel(num_components),
        columns=[[column] for column in range(num_components)],
        inducing_points=regular_grid(0.0, 1.0, num_inducing),
        learn_inducing_locations=False,
    )
    return AdditiveGP(AdditivePredictor(group), family=family, rank=rank)


class _SummedVariationalStrategy(VariationalStrategy):
    def kl_divergence(self) -> Tensor:
        return super().kl_divergence().sum(-1)


class StockMeanField(ApproximateGP):
    """Mean-field with GPyTorch's own parts: a batch of C sparse GPs, each on its own column, summed at the end."""

    def __init__(self, num_components: int, num_inducing: int) -> None:
        batch_shape = torch.Size([num_components])
        inducing_points = regular_grid(0.0, 1.0, num_inducing).expand(num_components, -1, -1)
        q = CholeskyVariationalDistribution(num_inducing, batch_shape=batch_shape)
        super().__init__(_SummedVariationalStrategy(self, inducing_points, q, learn_inducing_locations=False))
        self.mean_module = ZeroMean(batch_shape)
        self.covar_module = make_kernel(num_components)

    def forward(self, x: Tensor) -> MultivariateNormal:
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))

    def __call__(self, x: Tensor, prior: bool = False, **kwargs: Any) -> MultivariateNormal:
        parts = super().__call__(x.mT.unsqueeze(-1), prior=prior, **kwargs)  # batch of C
        return MultivariateNormal(parts.mean.sum(-2), DiagLinearOperator(parts.variance.sum(-2)))


def additive_column_kernel(num_components: int, batched: bool) -> Kernel:
    """
    The sum over the columns of one scaled RBF for each, on the joint inputs.

    :param batched: Evaluate all columns as one batched kernel, meant for a GPU; otherwise one after the other by
        GPyTorch's ``AdditiveKernel``, which is about twice as fast on a CPU.
    """
    if batched:
        return _BatchedColumnKernel(num_components)
    kernels = [ScaleKernel(RBFKernel(active_dims=[column])) for column in range(num_components)]
    for kernel in kernels:
        kernel.base_kernel.lengthscale = LENGTHSCALE
        kernel.outputscale = 1.0 / num_components
    return AdditiveKernel(*kernels)


class _BatchedColumnKernel(Kernel):
    def __init__(self, num_components: int) -> None:
        super().__init__()
        self.columns = make_kernel(num_components)

    @property
    def batch_shape(self) -> torch.Size:
        return torch.Size([])  # the batch dimension of the columns is summed

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        parts = self.columns(x1.mT.unsqueeze(-1), x2.mT.unsqueeze(-1), diag=diag, **params)
        return parts.sum(-2) if diag else parts.to_dense().sum(-3)


class StockJoint(ApproximateGP):
    """
    GPyTorch's plain sparse GP with Q = C M inducing points in the joint input space, on an additive kernel.

    Every column of the inducing points is a permutation of a regular grid of Q points.

    :param batched: See :func:`additive_column_kernel`.
    """

    def __init__(self, num_components: int, num_inducing: int, batched: bool) -> None:
        total = num_components * num_inducing
        generator = torch.Generator().manual_seed(1)
        orders = [torch.randperm(total, generator=generator) for _ in range(num_components)]
        inducing_points = regular_grid(0.0, 1.0, total).squeeze(-1)[torch.stack(orders, dim=-1)]
        q = CholeskyVariationalDistribution(total)
        super().__init__(VariationalStrategy(self, inducing_points, q, learn_inducing_locations=False))
        self.mean_module = ZeroMean()
        self.covar_module = additive_column_kernel(num_components, batched)

    def forward(self, x: Tensor) -> MultivariateNormal:
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))


class _OperatorCount(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return function(*args, **(kwargs or {}))


def num_operators(step: Callable[[], object]) -> int:
    """Tensor operators that a step dispatches, forward and backward: on a GPU most of them launch a kernel."""
    with _OperatorCount() as counter:
        step()
    return counter.count


class GPUCalls(NamedTuple):
    """What the processor asks of the GPU in a step."""

    launches: int
    waits: int


def gpu_calls(step: Callable[[], object]) -> GPUCalls:
    """Kernels launched, and times that the processor waits for the GPU, in a step; by the profiler."""
    step()
    torch.cuda.synchronize()
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    ) as p:
        step()
        # Outside of the step, so not to be counted: the profiler itself synchronises at its end.
    names = [event.name for event in p.events()]
    copies_back = sum("Memcpy DtoH" in name for name in names)
    waits = sum(name == "cudaStreamSynchronize" for name in names)
    return GPUCalls(
        sum(name.startswith(("cudaLaunchKernel", "cuLaunchKernel")) for name in names), max(copies_back, waits)
    )


def peak_memory(step: Callable[[], object], device: torch.device) -> float:
    """Memory of tensors that a step takes on top of what there was, in MiB."""
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        step()
        return (torch.cuda.max_memory_allocated(device) - before) / 2**20
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    held = peak = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak / 2**20


def matmul_rate(device: torch.device, dtype: torch.dtype = torch.float32) -> float:
    """Floating point operations a second of a large matrix product, the roof of what a step can reach."""
    size = 8192 if device.type == "cuda" else 1536
    left, right = torch.rand(2, size, size, dtype=dtype, device=device)
    times = interleaved_times({"product": lambda: left @ right}, 5, device)["product"]
    return 2 * size**3 / min(times)


def num_variational_parameters(model: ApproximateGP) -> int:
    """Numbers stored for q (of a triangular matrix, all entries)."""
    return sum(parameter.numel() for parameter in model.variational_strategy._variational_distribution.parameters())


def interleaved_times(
    functions: Mapping[Any, Callable[[], object]], repeats: int, device: torch.device
) -> dict[Any, list[float]]:
    """
    Time functions in turn (A B C, B C A, ...), so that slow drifts of the machine and what one function leaves in the
    caches meet all of them alike.

    :return: For each function its times in seconds, one a round, after a first call that does not count.
    """
    for function in functions.values():  # warm up
        function()
    times: dict[Any, list[float]] = {key: [] for key in functions}
    keys = list(functions)
    for turn in range(repeats):
        first = turn % len(keys)
        for key in keys[first:] + keys[:first]:
            _synchronise(device)
            start = time.perf_counter()
            functions[key]()
            _synchronise(device)
            times[key].append(time.perf_counter() - start)
    return times


def median_ratio(times: Sequence[float], reference: Sequence[float]) -> float:
    """Median over the rounds of the ratio within a round."""
    return statistics.median(time / other for time, other in zip(times, reference, strict=True))


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def script_parser(docstring: str | None) -> argparse.ArgumentParser:
    """Options that every script has which does not compare times."""
    parser = argparse.ArgumentParser(description=docstring, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every number to this file")
    parser.add_argument("--quick", action="store_true", help="small sizes: checks that the script runs")
    return parser


def headless_pyplot() -> Any:
    """Matplotlib's pyplot, imported where a figure is wanted: most runs do without."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def save_figure(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160)
    headless_pyplot().close(figure)
    print(f"figure: {path}")


def add_common_arguments(parser: argparse.ArgumentParser, repeats: int) -> None:
    parser.add_argument("--threads", type=int, help="threads of torch (default: torch's own choice)")
    parser.add_argument(
        "--repeats", type=_at_least_five, default=repeats, help=f"timed rounds, >= 5 (default {repeats})"
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes: checks that the script runs, times mean nothing"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results here")


def _at_least_five(text: str) -> int:
    repeats = int(text)
    if repeats < 5:
        raise argparse.ArgumentTypeError(f"must be at least 5, got {repeats}")
    return repeats


def prepare(arguments: argparse.Namespace) -> tuple[torch.device, dict[str, Any]]:
    """
    Set threads and seed, and print the header.

    :return: The device and a description of the environment.
    """
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    device = torch.device(arguments.device)
    return device, describe_environment(device)


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Date, versions, threads and device, printed and returned."""
    environment = {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "torch": torch.__version__,
        "gpytorch": gpytorch.__version__,
        "gpytorch_gam": __version__,
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else processor(),
    }
    print(", ".join(f"{key} {value}" for key, value in environment.items()))
    return environment


def processor() -> str:
    """The name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print with the first column to the left and the others to the right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    for row in [header, ["-" * width for width in widths], *rows]:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join([row[0].ljust(widths[0]), *cells[1:]]).rstrip())


def write_json(path: Path | None, results: Mapping[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps(results, indent=2) + "\n")
