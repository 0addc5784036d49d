"""
Claim: with correlated inputs, the bands of a coupled posterior cover the truth as often as they say, and those of the
mean-field approximation do not.

Two smooth effects are drawn from their prior, on two inputs in [0, 1] with a Gaussian copula, and observed with noise
in 500 rows. Hyperparameters are those that generated the data, so what differs is the posterior alone: each family is
set to its fit of the optimum in closed form. Printed are the share of rows in which the 95% band of a centred
effect holds its true value, and the standard deviation of the bands relative to the exact Gaussian process (no inducing
points), over all replicates and both effects.

    python benchmarks/calibration.py [--replicates 40] [--figure FILE] [--json FILE]
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gpytorch
import torch
from _common import describe_environment, headless_pyplot, print_table, save_figure, script_parser, write_json
from gpytorch.kernels import RBFKernel, ScaleKernel
from torch import Tensor

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup
from gpytorch_gam.components import regular_grid
from gpytorch_gam.mlls import CollapsedELBO

CORRELATIONS = (0.0, 0.9, 0.99, 0.999)
NUM_ROWS, NUM_INDUCING = 500, 24
LENGTHSCALE, NOISE = 0.2, 0.1
FAMILIES: dict[str, tuple[str, int | str | None]] = {  # label: family, rank
    "block + low-rank, R = 32": ("block_low_rank", 32),
    "low-rank, automatic rank": ("low_rank", "auto"),
    "coupled covariance": ("coupled", None),
    "mean-field": ("mean_field", None),
}


class Data(NamedTuple):
    x: Tensor  # n x 2
    effects: Tensor  # 2 x n
    y: Tensor  # n


def kernel_matrix(x: Tensor) -> Tensor:
    """Covariance of each effect over the rows, ``2 x n x n``."""
    distance = (x.mT.unsqueeze(-1) - x.mT.unsqueeze(-2)) / LENGTHSCALE
    return torch.exp(-0.5 * distance.square())


def draw(correlation: float, seed: int) -> Data:
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(NUM_ROWS, 2, dtype=torch.float64, generator=generator)
    normal[:, 1] = correlation * normal[:, 0] + (1 - correlation**2) ** 0.5 * normal[:, 1]
    x = torch.special.ndtr(normal)
    # The prior's eigendecomposition gives draws at rows as close as the copula makes them.
    values, vectors = torch.linalg.eigh(kernel_matrix(x))
    noise = torch.randn(2, NUM_ROWS, 1, dtype=torch.float64, generator=generator)
    effects = ((vectors * values.clamp_min(0).sqrt().unsqueeze(-2)) @ noise).squeeze(-1)
    y = effects.sum(0) + NOISE**0.5 * torch.randn(NUM_ROWS, dtype=torch.float64, generator=generator)
    return Data(x, effects, y)


def centre(covariance: Tensor) -> Tensor:
    """Covariance of ``f - mean(f)`` over the rows, from that of ``f``, ``(*batch, n, n)``."""
    centred = covariance - covariance.mean(-1, keepdim=True)
    return centred - centred.mean(-2, keepdim=True)


def exact_stddev(x: Tensor) -> Tensor:
    """Posterior standard deviation of the centred effects in the exact Gaussian process, ``2 x n``."""
    prior = kernel_matrix(x)
    total = prior.sum(0) + NOISE * torch.eye(len(x), dtype=x.dtype)
    posterior = prior - prior @ torch.linalg.solve(total, prior)
    return centre(posterior).diagonal(dim1=-2, dim2=-1).sqrt()


def make_models() -> tuple[dict[str, AdditiveGP], gpytorch.likelihoods.GaussianLikelihood]:
    size = torch.Size([2])
    kernel = ScaleKernel(RBFKernel(batch_shape=size), batch_shape=size).double()
    kernel.base_kernel.lengthscale = torch.tensor(LENGTHSCALE, dtype=torch.float64)
    kernel.outputscale = torch.ones(2, dtype=torch.float64)
    group = ComponentGroup(kernel, [[0], [1]], regular_grid(0.0, 1.0, NUM_INDUCING).double())
    predictor = AdditivePredictor(group)
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    likelihood.noise = torch.tensor([NOISE], dtype=torch.float64)
    return {label: AdditiveGP(predictor, *choice).double().eval() for label, choice in FAMILIES.items()}, likelihood


def bands(data: Data) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Label, coverage ``2 x n`` and standard deviation ``2 x n`` of each family's centred effects."""
    models, likelihood = make_models()
    optimum = CollapsedELBO(likelihood, models["coupled covariance"]).optimum(data.x, data.y)
    truth = data.effects - data.effects.mean(-1, keepdim=True)
    for label, model in models.items():
        model.variational_strategy.set_whitened_posterior(optimum.mean, optimum.precision)
        parts = model.components(data.x)
        stddev = centre(parts.covariance()).diagonal(dim1=-2, dim2=-1).clamp_min(0).sqrt()
        error = parts.mean - parts.mean.mean(-1, keepdim=True) - truth
        yield label, error.abs() <= 1.96 * stddev, stddev


@torch.no_grad()
def measure(correlation: float, replicates: int) -> dict[str, dict[str, float]]:
    covered: dict[str, list[Tensor]] = {label: [] for label in FAMILIES}
    ratios: dict[str, list[Tensor]] = {label: [] for label in FAMILIES}
    for seed in range(replicates):
        data = draw(correlation, seed)
        exact = exact_stddev(data.x)
        for label, is_covered, stddev in bands(data):
            covered[label].append(is_covered.double().mean())
            ratios[label].append((stddev / exact).mean())
    return {
        label: {
            "coverage": torch.stack(covered[label]).mean().item(),
            "stddev_ratio": torch.stack(ratios[label]).mean().item(),
        }
        for label in FAMILIES
    }


def draw_figure(results: dict[str, dict[str, dict[str, float]]], path: Path) -> None:
    plt = headless_pyplot()

    figure, axes = plt.subplots(figsize=(5.6, 3.2), layout="constrained")
    # From the back to the front with shrinking markers: the coupled families lie on top of each other.
    styles = {
        "coupled covariance": ("#b0b0b0", 12),
        "low-rank, automatic rank": ("#1b7837", 8.5),
        "block + low-rank, R = 32": ("#2166ac", 5),
        "mean-field": ("#d95f02", 5),
    }
    for label, (color, size) in styles.items():
        heights = [results[str(correlation)][label]["coverage"] for correlation in CORRELATIONS]
        axes.plot(range(len(CORRELATIONS)), heights, marker="o", color=color, markersize=size, label=label)
    axes.axhline(0.95, color="#222222", linewidth=0.8, linestyle=":")
    axes.text(2.3, 0.935, "nominal", va="top", fontsize=8)
    axes.set_xticks(range(len(CORRELATIONS)), [str(correlation) for correlation in CORRELATIONS])
    axes.set(xlabel="correlation of the two inputs", ylabel="coverage of 95% bands", ylim=(0, 1.05))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="lower left")
    save_figure(figure, path)


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = script_parser(__doc__)
    parser.add_argument("--replicates", type=int, default=40, help="draws for each correlation (default: 40)")
    parser.add_argument("--figure", type=Path, help="draw coverage against correlation into this file")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    environment = describe_environment(torch.device("cpu"))
    replicates = 1 if options.quick else options.replicates
    results = {str(correlation): measure(correlation, replicates) for correlation in CORRELATIONS}
    for quantity, title in (("coverage", "coverage of 95% bands"), ("stddev_ratio", "sd relative to exact GP")):
        rows = [[label, *(f"{found[label][quantity]:.3f}" for found in results.values())] for label in FAMILIES]
        print()
        print_table([f"{title}; correlation", *results], rows)
    if options.figure:
        draw_figure(results, options.figure)
    result = {"environment": environment, "replicates": replicates, "results": results}
    write_json(options.json, result)
    return result


if __name__ == "__main__":
    main()
