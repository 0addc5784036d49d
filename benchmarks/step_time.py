"""
Claim: a training step of the coupled posteriors costs about as much as a step of the mean-field approximation.

Measures ONE step (forward, ``VariationalELBO``, backward; kernel hyperparameters and noise require gradients; no
optimiser step) of every family of this package against

- stock mean-field: GPyTorch's batched ``VariationalStrategy`` with ``CholeskyVariationalDistribution``, one sparse GP a
  component, means, variances and KL summed (the reference of the ratios);
- stock joint: GPyTorch's sparse GP with Q = C M inducing points in the joint input space, on the sum of the same
  kernels.

All have the same scaled RBF kernels (lengthscale 0.2), the same data and a ``GaussianLikelihood``, in float32. Inducing
points are fixed in all of them (``learn_inducing_locations=False``): a regular grid on [0, 1] for each component, and
for stock joint a design whose columns are permutations of a regular grid. Steps are timed in turn; times are medians,
ratios medians of the ratio within a round. The dense families (coupled, stock joint) run where b Q^2 + Q^3 is below
2e10, in rounds of their own with the reference, so that the memory they move does not slow down the others. "Plain
path" is the low-rank family with ``settings.fused_projection("off")``.

Beside the times: tensor operators a step (on a GPU kernels launched, and times that the processor waits for it), peak
memory of a step, and the floating point operations of its products with the kernel matrix, as a share of what a large
matrix product in float32 reaches on the same machine.

    python benchmarks/step_time.py [--settings 32,64,64,1024 ...] [--threads 1] [--device cuda] [--precision tf32]
        [--json FILE]
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from _common import (
    StockJoint,
    StockMeanField,
    add_common_arguments,
    additive_gp,
    gpu_calls,
    interleaved_times,
    make_data,
    matmul_rate,
    median_ratio,
    num_operators,
    num_variational_parameters,
    peak_memory,
    prepare,
    print_table,
    write_json,
)
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.mlls import VariationalELBO
from gpytorch.models import ApproximateGP
from torch import Tensor

from gpytorch_gam import AdditiveGP
from gpytorch_gam.settings import fused_projection, tensor_core_precision

NUM_DATA = 1_000_000
DENSE_LIMIT = 2e10
BLOCK_RANK = 32
REFERENCE = "stock mean-field"


class Setting(NamedTuple):
    num_components: int
    num_inducing: int
    rank: int
    batch: int


class Target(NamedTuple):
    family: str
    ratio: float


DEFAULT_SETTINGS = (
    Setting(8, 32, 64, 1024),
    Setting(16, 32, 64, 1024),
    Setting(32, 64, 64, 1024),
    Setting(32, 64, 64, 8192),
    Setting(64, 16, 64, 1024),
)
QUICK_SETTINGS = (Setting(3, 8, 4, 64),)
TARGET_SETTING = Setting(32, 64, 64, 1024)
TARGETS = (Target("low_rank R=64", 0.6), Target("block_low_rank R=32", 1.0))
PLAIN = "low_rank R={rank}, plain path"


def make_structured_models(setting: Setting) -> dict[str, ApproximateGP]:
    """The reference and the families whose step is linear in the number of components, by their names in the table."""
    num_components, num_inducing, rank, _ = setting
    models: dict[str, ApproximateGP] = {REFERENCE: StockMeanField(num_components, num_inducing)}
    models[f"low_rank R={rank}"] = additive_gp(num_components, num_inducing, "low_rank", rank)
    for block_rank in sorted({min(BLOCK_RANK, num_components * num_inducing), rank}):
        model = additive_gp(num_components, num_inducing, "block_low_rank", block_rank)
        models[f"block_low_rank R={block_rank}"] = model
    models["mean_field"] = additive_gp(num_components, num_inducing, "mean_field")
    models[PLAIN.format(rank=rank)] = additive_gp(num_components, num_inducing, "low_rank", rank)
    return models


def make_dense_models(setting: Setting, device: torch.device) -> dict[str, ApproximateGP]:
    """The reference and the families with a dense matrix over all inducing points, if they take a tolerable time."""
    num_components, num_inducing, _, batch = setting
    total = num_components * num_inducing
    if batch * total**2 + total**3 > DENSE_LIMIT:
        return {}
    return {
        REFERENCE: StockMeanField(num_components, num_inducing),
        "coupled": additive_gp(num_components, num_inducing, "coupled"),
        "stock joint": StockJoint(num_components, num_inducing, batched=device.type == "cuda"),
    }


def make_step(model: ApproximateGP, x: Tensor, y: Tensor, projection: str = "auto") -> Callable[[], None]:
    """One step of gradient descent without the descent."""
    likelihood = GaussianLikelihood()
    modules = torch.nn.ModuleList([model, likelihood]).to(x.device)
    modules.train()
    elbo = VariationalELBO(likelihood, model, num_data=NUM_DATA)

    def step() -> None:
        modules.zero_grad(set_to_none=True)
        with fused_projection(projection):
            loss = -elbo(model(x), y)
        loss.backward()

    return step


class Measured(NamedTuple):
    """A record of one model, and the step that it is of."""

    record: dict[str, Any]
    step: Callable[[], None]


def measure(setting: Setting, repeats: int, device: torch.device) -> list[Measured]:
    """Time all models of a setting."""
    measured = measure_models(make_structured_models(setting), setting, repeats, device)
    dense = make_dense_models(setting, device)
    if dense:
        measured += measure_models(dense, setting, repeats, device)[1:]  # without the reference, which is in both
    return measured


def measure_models(
    models: dict[str, ApproximateGP], setting: Setting, repeats: int, device: torch.device
) -> list[Measured]:
    x, y = make_data(setting.num_components, setting.batch, device)
    plain = PLAIN.format(rank=setting.rank)
    steps = {name: make_step(model, x, y, "off" if name == plain else "auto") for name, model in models.items()}
    times = interleaved_times(steps, repeats, device)
    rate = matmul_rate(device)
    return [
        Measured(
            {
                "family": name,
                "milliseconds": 1e3 * statistics.median(times[name]),
                "ratio": median_ratio(times[name], times[REFERENCE]),
                "variational_parameters": num_variational_parameters(model),
                "share_of_matmul_rate": share_of_rate(model, setting, statistics.median(times[name]), rate),
            },
            steps[name],
        )
        for name, model in models.items()
    ]


def described(measured: Measured, device: torch.device) -> dict[str, Any]:
    """The record with what a profiler finds, which slows down everything after it in the same process."""
    step = measured.step
    return {**measured.record, "calls": describe_calls(step, device), "peak_mib": peak_memory(step, device)}


def describe_calls(step: Callable[[], None], device: torch.device) -> str:
    if device.type != "cuda":
        return f"{num_operators(step)}"
    launches, waits = gpu_calls(step)
    return f"{launches}, {waits} waits"


def share_of_rate(model: ApproximateGP, setting: Setting, seconds: float, rate: float) -> float | None:
    """Floating point operations of the products with the kernel matrix, one forward and two backward, by the roof."""
    if not isinstance(model, AdditiveGP):
        return None
    factors = model.variational_strategy.covariance_factors()
    columns = 1 if factors.explained_shared is None else 1 + factors.explained_shared.shape[-1]
    operations = 6 * columns
    if factors.explained_blocks is not None:
        operations += 6 * factors.explained_blocks[0].shape[-1]
    return operations * setting.num_components * setting.num_inducing * setting.batch / seconds / rate


def print_setting(setting: Setting, records: Sequence[dict[str, Any]]) -> None:
    print(f"\nC={setting.num_components} M={setting.num_inducing} R={setting.rank} b={setting.batch}")
    rows = [
        [
            record["family"],
            f"{record['milliseconds']:.1f}",
            f"{record['ratio']:.2f}",
            f"{record['variational_parameters']:,}",
            record["calls"],
            f"{record['peak_mib']:.0f}",
            "-" if record["share_of_matmul_rate"] is None else f"{record['share_of_matmul_rate']:.2f}",
        ]
        for record in records
    ]
    header = ["family", "ms / step", "x stock", "parameters of q", "operators", "peak MiB", "of matmul rate"]
    print_table(header, rows)


def check_targets(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Compare the ratios of the target setting with the targets."""
    ratios = {record["family"]: record["ratio"] for record in records}
    return [
        {"family": family, "target": limit, "ratio": ratios[family], "holds": ratios[family] <= limit}
        for family, limit in TARGETS
    ]


def parse_setting(text: str) -> Setting:
    try:
        setting = Setting(*(int(part) for part in text.split(",")))
    except (TypeError, ValueError):
        raise argparse.ArgumentTypeError(f"must be C,M,R,b such as 32,64,64,1024, got {text!r}") from None
    if min(setting) < 1 or setting.rank > setting.num_components * setting.num_inducing:
        raise argparse.ArgumentTypeError(f"needs positive numbers and R <= C M, got {text!r}")
    return setting


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Time of one training step against stock GPyTorch.")
    add_common_arguments(parser, repeats=7)
    parser.add_argument(
        "--precision", choices=tensor_core_precision._choices, default="tf32x3", help="of the products on tensor cores"
    )
    parser.add_argument("--settings", type=parse_setting, nargs="+", metavar="C,M,R,b", help="what to run")
    arguments = parser.parse_args(argv)
    device, environment = prepare(arguments)
    settings = arguments.settings or (QUICK_SETTINGS if arguments.quick else DEFAULT_SETTINGS)
    print(
        f"one ELBO + backward step, float32, fixed inducing points, medians of {arguments.repeats} interleaved rounds"
    )

    results: dict[str, Any] = {"environment": environment, "repeats": arguments.repeats, "settings": [], "targets": []}
    with tensor_core_precision(arguments.precision):
        timed = [measure(setting, arguments.repeats, device) for setting in settings]
        found = [[described(measured, device) for measured in of_setting] for of_setting in timed]
    for setting, records in zip(settings, found, strict=True):
        print_setting(setting, records)
        results["settings"].append({**setting._asdict(), "families": records})
        if setting == TARGET_SETTING:
            results["targets"] = check_targets(records)
    for target in results["targets"]:
        verdict = "holds" if target["holds"] else "DOES NOT HOLD"
        print(
            f"\ntarget: {target['family']} <= {target['target']} x stock mean-field: {target['ratio']:.2f}, {verdict}"
        )
    write_json(arguments.json, results)


if __name__ == "__main__":
    main()
