"""
Claim: means and variances of the predictor and of all components at 10^6 rows take memory for the result alone.

Block + low-rank precision, C = 8 components of M = 32 inducing points, R = 32, float32. `predict` with all components
and with none, and the joint posterior of the components, `components`, in one call, which keeps the projections of all
rows (up to 10^5 rows). Calls of the model read means and variances, with one predictor and with two of the same
components. Memory is the peak of tensors a call takes, less the result.

    python benchmarks/prediction.py [--sizes 1e4 1e5 1e6] [--threads 1] [--device cuda] [--json FILE]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from _common import (
    add_common_arguments,
    additive_gp,
    make_data,
    make_kernel,
    peak_memory,
    prepare,
    print_table,
    write_json,
)
from gpytorch.likelihoods import GaussianLikelihood
from torch import Tensor

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup
from gpytorch_gam.components import regular_grid
from gpytorch_gam.effects import Prediction
from gpytorch_gam.training import initialize_posterior

NUM_COMPONENTS, NUM_INDUCING, RANK = 8, 32, 32
LARGEST_JOINT = 100_000
MIB = 2**20


def make_model(device: torch.device) -> AdditiveGP:
    x, y = make_data(NUM_COMPONENTS, 2000, device)
    model = additive_gp(NUM_COMPONENTS, NUM_INDUCING, "block_low_rank", RANK).to(device)
    initialize_posterior(model, GaussianLikelihood().to(device), x, y, num_data=len(y))
    return model.eval()


def make_pair(device: torch.device) -> AdditiveGP:
    """Two predictors of C components each."""
    groups = [
        ComponentGroup(
            make_kernel(NUM_COMPONENTS),
            columns=[[column] for column in range(NUM_COMPONENTS)],
            inducing_points=regular_grid(0.0, 1.0, NUM_INDUCING),
            names=[f"f{predictor}{column}" for column in range(NUM_COMPONENTS)],
            predictor=predictor,
        )
        for predictor in range(2)
    ]
    return AdditiveGP(AdditivePredictor(*groups), rank=RANK).to(device).eval()


@torch.no_grad()
def moments(model: AdditiveGP, x: Tensor) -> tuple[Tensor, Tensor]:
    distribution = model(x)
    return distribution.mean, distribution.variance


def result_mib(result: Any) -> float:
    if not isinstance(result, Prediction):
        return 0.0
    tensors = [*result.moments, result.component_mean, result.component_variance]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor is not None) / MIB


def measure(call: Callable[[], Any], num_rows: int, device: torch.device) -> dict[str, float]:
    start = time.perf_counter()
    result = call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    seconds = time.perf_counter() - start
    size = result_mib(result)
    del result
    return {
        "rows": num_rows,
        "seconds": seconds,
        "rows_per_second": num_rows / seconds,
        "result_mib": size,
        "mib": peak_memory(call, device) - size,
    }


def calls(model: AdditiveGP, pair: AdditiveGP, x: Tensor) -> dict[str, Callable[[], Any]]:
    found: dict[str, Callable[[], Any]] = {
        "predict": lambda: model.predict(x),
        "predict, no components": lambda: model.predict(x, components=False),
    }
    if len(x) <= LARGEST_JOINT:
        found["components"] = torch.no_grad()(lambda: model.components(x).variance)
        found["call, 1 predictor"], found["call, 2 predictors"] = lambda: moments(model, x), lambda: moments(pair, x)
    return found


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common_arguments(parser, repeats=5)
    parser.add_argument(
        "--sizes", type=lambda text: int(float(text)), nargs="+", default=[10_000, 100_000, 1_000_000], metavar="N"
    )
    arguments = parser.parse_args(argv)
    sizes = [500, 2000] if arguments.quick else arguments.sizes
    device, environment = prepare(arguments)
    model, pair = make_model(device), make_pair(device)
    generator = torch.Generator().manual_seed(1)
    records = []
    for size in sizes:
        x = torch.rand(size, NUM_COMPONENTS, generator=generator).to(device)
        model.predict(x[:500]), moments(pair, x[:500])  # warm up
        records += [{"call": name, **measure(call, size, device)} for name, call in calls(model, pair, x).items()]
    print(f"C={NUM_COMPONENTS} M={NUM_INDUCING} R={RANK}, float32")
    print_table(
        ["call", "rows", "seconds", "rows / s", "MiB of the result", "MiB beside it"],
        [
            [
                record["call"],
                f"{record['rows']:,}",
                f"{record['seconds']:.2f}",
                f"{record['rows_per_second']:,.0f}",
                f"{record['result_mib']:.1f}",
                f"{record['mib']:.1f}",
            ]
            for record in records
        ],
    )
    write_json(arguments.json, {"environment": environment, "calls": records})


if __name__ == "__main__":
    main()
