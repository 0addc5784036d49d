"""
A GPyTorch training loop of your own, with minibatches and a likelihood of your choice: an additive probit classifier.

    python examples/training_loop.py                  # on a GPU: --device cuda

Natural gradients move the posterior, Adam the hyperparameters; nothing else in the loop knows that the model is
additive. The data are simulated, so that the effects found can be held against the true ones: four inputs, uniform
on [0, 1] and strongly correlated, three of which have an effect on

    P(y = 1) = Phi(f_0(x_0) + f_1(x_1) + f_2(x_2)).
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any, NamedTuple

import gpytorch
import matplotlib.pyplot as plt
import torch
from _style import INK, argument_parser, draw_band, draw_zero_line, save_figure, set_style, write_json
from gpytorch.constraints import Interval
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import BernoulliLikelihood
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from gpytorch_gam import (
    AdditivePredictor,
    AdditiveVariationalStrategy,
    BlockLowRankPrecisionVariationalDistribution,
    ComponentGroup,
    LowRankPrecisionVariationalDistribution,
    NaturalGradient,
)
from gpytorch_gam.components import regular_grid
from gpytorch_gam.kernels import ANOVAKernel, Uniform
from gpytorch_gam.terms import constant

NUM_INPUTS = 4
EFFECTS = [f"x{column}" for column in range(NUM_INPUTS)]
FAMILIES = ("low_rank", "block_low_rank")
Z95 = 1.9600


# --------------------------------------------------------------------------------------------------------- the model


class GAM(gpytorch.models.ApproximateGP):
    """An additive Gaussian process: one smooth effect an input, and a constant."""

    def __init__(self, family: str, num_inducing: int = 12) -> None:
        batch = torch.Size([NUM_INPUTS])
        base = RBFKernel(batch_shape=batch, lengthscale_constraint=Interval(0.05, 10.0))
        base.lengthscale = 0.3
        kernel = ScaleKernel(ANOVAKernel(base, Uniform(0.0, 1.0)), batch_shape=batch)
        columns = [[column] for column in range(NUM_INPUTS)]
        grid = regular_grid(0.0, 1.0, num_inducing)
        predictor = AdditivePredictor(ComponentGroup(kernel, columns, grid, names=EFFECTS), constant())
        if family == "low_rank":  # the paper's: needs a rank of about as many directions as the data determine
            q = LowRankPrecisionVariationalDistribution(predictor.num_inducing_total, rank=32)
        else:  # blocks for each component, and a low rank for what couples them
            q = BlockLowRankPrecisionVariationalDistribution(predictor.group_shapes, rank=16)
        super().__init__(AdditiveVariationalStrategy(self, predictor, q))

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return self.variational_strategy.predictor(x)  # the prior; calling the model gives the posterior


# ---------------------------------------------------------------------------------------------------------- the data


def true_effects(x: Tensor) -> Tensor:
    """The effects, each with mean zero under the uniform distribution: ``(n, 4)`` to ``(4, n)``."""
    return torch.stack(
        [
            torch.sin(2 * math.pi * x[:, 0]),
            2.0 * (x[:, 1] - 0.5),
            6.0 * (x[:, 2] - 0.5).square() - 0.5,
            torch.zeros_like(x[:, 3]),
        ]
    )


class Simulated(NamedTuple):
    x: Tensor
    y: Tensor
    probability: Tensor


def simulate(num_rows: int, correlation: float, generator: torch.Generator) -> Simulated:
    """Inputs from a Gaussian copula, all pairs equally correlated."""
    shared = torch.randn(num_rows, 1, generator=generator)
    own = torch.randn(num_rows, NUM_INPUTS, generator=generator)
    x = torch.special.ndtr(math.sqrt(correlation) * shared + math.sqrt(1 - correlation) * own)
    probability = torch.special.ndtr(true_effects(x).sum(0))  # the link of GPyTorch's BernoulliLikelihood
    return Simulated(x, torch.bernoulli(probability, generator=generator), probability)


# ---------------------------------------------------------------------------------------------------------- the loop


def train(model: GAM, likelihood: BernoulliLikelihood, loader: DataLoader, num_epochs: int) -> float:
    """Maximise the evidence lower bound; returns its mean over the last epoch, in nats."""
    num_data = len(loader.dataset)
    device = next(model.parameters()).device
    mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=num_data)
    natural = NaturalGradient(model, num_data=num_data)  # for the posterior
    adam = torch.optim.Adam(model.hyperparameters(), lr=0.1)
    model.train()
    likelihood.train()
    for _ in range(num_epochs):
        total = torch.zeros((), device=device)
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            adam.zero_grad()
            loss = -mll(model(x), y)
            loss.backward()
            natural.step()
            adam.step()
            total += loss.detach() * len(y)
    model.eval()
    likelihood.eval()
    return -total.item()


# ------------------------------------------------------------------------------------------------------- the answers


@torch.no_grad()
def predicted_probability(model: GAM, likelihood: BernoulliLikelihood, x: Tensor) -> Tensor:
    """P(y = 1) with the uncertainty of the effects averaged out, as GPyTorch's likelihood does it."""
    device = next(model.parameters()).device
    return torch.cat([likelihood(model(rows.to(device))).mean.cpu() for rows in x.split(1000)])


def score(probability: Tensor, y: Tensor) -> dict[str, float]:
    return {
        "accuracy": ((probability > 0.5) == y.bool()).double().mean().item(),
        "negative_log_density": torch.nn.functional.binary_cross_entropy(probability, y).item(),
    }


@torch.no_grad()
def score_effects(model: GAM, x: Tensor) -> dict[str, dict[str, float]]:
    """Effects at the rows of x against the true ones, on the scale of the predictor."""
    device = next(model.parameters()).device
    parts = model.variational_strategy.components(x.to(device), EFFECTS)
    error, stddev = parts.mean.cpu() - true_effects(x), parts.stddev.cpu()
    rmse = error.square().mean(-1).sqrt().tolist()
    covered = (error.abs() <= Z95 * stddev).double().mean(-1).tolist()
    return {name: {"rmse": r, "coverage_95": c} for name, r, c in zip(EFFECTS, rmse, covered, strict=True)}


def reload_difference(model: GAM, family: str, likelihood: BernoulliLikelihood, x: Tensor, path: Path) -> float:
    """Save the model, load it into a new one, and return the largest difference of their predictions."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), path)
    device = next(model.parameters()).device
    fresh = GAM(family).to(device).eval()
    fresh.load_state_dict(torch.load(path, map_location=device, weights_only=True))
    before, after = (predicted_probability(either, likelihood, x) for either in (model, fresh))
    return (before - after).abs().max().item()


@torch.no_grad()
def draw(model: GAM, path: Path) -> None:
    set_style()
    figure, panels = plt.subplots(1, NUM_INPUTS, figsize=(11.0, 2.9), sharey=True)
    grid = torch.linspace(0.0, 1.0, 200)
    x = grid.unsqueeze(-1).expand(-1, NUM_INPUTS)
    parts = model.variational_strategy.components(x.to(next(model.parameters()).device), EFFECTS)
    for axes, name, mean, stddev, truth in zip(
        panels, EFFECTS, parts.mean.cpu(), parts.stddev.cpu(), true_effects(x), strict=True
    ):
        draw_zero_line(axes)
        draw_band(axes, grid, mean, Z95 * stddev, label="posterior mean, 95% band")
        axes.plot(grid, truth, color=INK, linewidth=1.2, linestyle=(0, (4, 2)), label="truth")
        axes.set(title=f"effect of {name}", xlabel=name, xlim=(0, 1))
    panels[0].set_ylabel("effect on the probit scale")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    save_figure(figure, path)


# ---------------------------------------------------------------------------------------------------------- the script


def print_results(results: dict[str, Any]) -> None:
    print(f"\n{'':<24}{'ELBO':>10}{'accuracy':>10}{'NLPD':>8}{'s':>7}")
    for family in FAMILIES:
        r = results[family]
        print(
            f"{family:<24}{r['elbo']:>10.1f}{r['accuracy']:>10.3f}{r['negative_log_density']:>8.4f}{r['seconds']:>7.1f}"
        )
    r = results["true_probability"]
    print(f"{'the true probabilities':<24}{'':>10}{r['accuracy']:>10.3f}{r['negative_log_density']:>8.4f}")
    print("ELBO: mean over the last epoch, in nats; NLPD: mean negative log probability of the held-out labels")

    print(f"\n{'effects on the held-out rows':<30}" + "".join(f"{name:>8}" for name in EFFECTS))
    for key, label in (("rmse", "RMSE"), ("coverage_95", "95% cover")):
        for family in FAMILIES:
            values = "".join(f"{results[family]['effects'][name][key]:>8.3f}" for name in EFFECTS)
            print(f"{family + ', ' + label:<30}{values}")

    print("\nlargest change of a prediction by saving and loading")
    for family in FAMILIES:
        print(f"{family:<24}{results[family]['reload_difference']:>10g}")


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # matrices of this size gain nothing from more
    num_rows, num_epochs = (1000, 3) if arguments.quick else (8000, 10)
    generator = torch.Generator().manual_seed(0)
    data = simulate(num_rows, correlation=0.8, generator=generator)
    held_out = simulate(2000, correlation=0.8, generator=generator)
    print(f"simulated data: {num_rows} rows for training in batches of 256, {len(held_out.y)} held out")

    results: dict[str, Any] = {
        "rows": {"train": num_rows, "test": len(held_out.y)},
        "true_probability": score(held_out.probability, held_out.y),
    }
    for family in FAMILIES:
        torch.manual_seed(0)
        model, likelihood = GAM(family).to(arguments.device), BernoulliLikelihood().to(arguments.device)
        loader = DataLoader(TensorDataset(data.x, data.y), batch_size=256, shuffle=True)
        start = time.perf_counter()
        elbo = train(model, likelihood, loader, num_epochs)
        seconds = time.perf_counter() - start
        checkpoint = arguments.out / f"training_loop_{family}.pt"
        results[family] = {
            "elbo": elbo,
            **score(predicted_probability(model, likelihood, held_out.x), held_out.y),
            "effects": score_effects(model, held_out.x),
            "reload_difference": reload_difference(model, family, likelihood, held_out.x, checkpoint),
            "seconds": seconds,
        }

    print_results(results)
    draw(model, arguments.out / "training_loop.png")
    write_json(results, arguments.json)


if __name__ == "__main__":
    main()
