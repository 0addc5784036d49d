"""
Claim: ten epochs of natural gradients with hyperparameters over 10^7 rows of 8 columns take less than a minute on a
GPU.

Block + low-rank precision, C = 8 components of M = 32 inducing points, R = 32, a Gaussian likelihood; rows in the
memory of the device, a new order each epoch, large batches. Prints seconds, rows a second, and the error of the
predictor against the truth on fresh inputs.

    python benchmarks/epochs.py [--device cuda] [--num-rows 1e7] [--batch 131072] [--epochs 10] [--json FILE]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence

import torch
from _common import add_common_arguments, additive_gp, make_truth, prepare, print_table, write_json
from gpytorch.likelihoods import GaussianLikelihood
from torch import Tensor

from gpytorch_gam.training import fit

NUM_COMPONENTS, NUM_INDUCING, RANK, NOISE = 8, 32, 32, 0.5


class ShuffledRows:
    """Batches of rows that lie on a device, in another order each time they are gone through."""

    def __init__(self, x: Tensor, y: Tensor, batch_size: int) -> None:
        self.x, self.y, self.batch_size = x, y, batch_size

    def __len__(self) -> int:
        return len(self.y) // self.batch_size

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self.y), device=self.x.device)
        for rows in order.split(self.batch_size)[: len(self)]:
            yield self.x[rows], self.y[rows]


def run(num_rows: int, batch_size: int, num_epochs: int, device: torch.device) -> dict[str, float]:
    generator = torch.Generator(device).manual_seed(0)
    x = torch.rand(num_rows, NUM_COMPONENTS, generator=generator, device=device)
    y = make_truth(x) + NOISE * torch.randn(num_rows, generator=generator, device=device)
    model = additive_gp(NUM_COMPONENTS, NUM_INDUCING, "block_low_rank", RANK).to(device)
    likelihood = GaussianLikelihood().to(device)
    batches = ShuffledRows(x, y, min(batch_size, num_rows))
    graphed = device.type == "cuda"
    fit(model, likelihood, batches, num_rows, num_epochs=1, num_held_back=num_rows, cuda_graph=graphed)  # compiles
    start = time.perf_counter()
    history = fit(model, likelihood, batches, num_rows, num_epochs=num_epochs, cuda_graph=graphed).history
    seconds = time.perf_counter() - start  # the last epoch's ELBO was read back
    fresh = torch.rand(100_000, NUM_COMPONENTS, generator=generator, device=device)
    error = (model.predict(fresh, components=False).mean - make_truth(fresh)).square().mean().sqrt().item()
    return {
        "rows": num_rows,
        "seconds": seconds,
        "rows_per_second": num_epochs * num_rows / seconds,
        "elbo": history[-1].elbo,
        "rmse": error,
        "noise": likelihood.noise.sqrt().item(),
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common_arguments(parser, repeats=5)
    parser.add_argument("--num-rows", type=lambda text: int(float(text)), default=10_000_000)
    parser.add_argument("--batch", type=int, default=131_072)
    parser.add_argument("--epochs", type=int, default=10)
    arguments = parser.parse_args(argv)
    if arguments.quick:
        arguments.num_rows, arguments.batch, arguments.epochs = 2000, 500, 2
    device, environment = prepare(arguments)
    found = run(arguments.num_rows, arguments.batch, arguments.epochs, device)
    print(f"{arguments.epochs} epochs, C={NUM_COMPONENTS} M={NUM_INDUCING} R={RANK}, batches of {arguments.batch}")
    print_table(
        ["rows", "seconds", "rows / s", "ELBO", "RMSE", f"noise (truth {NOISE})"],
        [
            [
                f"{found['rows']:,}",
                f"{found['seconds']:.1f}",
                f"{found['rows_per_second']:,.0f}",
                f"{found['elbo']:.0f}",
                f"{found['rmse']:.4f}",
                f"{found['noise']:.3f}",
            ]
        ],
    )
    write_json(arguments.json, {"environment": environment, **found})


if __name__ == "__main__":
    main()
