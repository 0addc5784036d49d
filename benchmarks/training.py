"""
Claim: with natural gradients the posterior stays within a nat or two of its optimum while the hyperparameters are
learnt; Adam gets there late, and with its default memory not at all.

Friedman's function, 5000 rows in batches of 500, the model of `examples/friedman_anova.py`. Each run learns all
hyperparameters with Adam and the posterior with one of: natural gradients, Adam with a short memory for squared
gradients, Adam with its default. Printed after several numbers of steps: the gap in nats between the ELBO and the exact
collapsed bound at the hyperparameters learnt so far, that bound, and seconds of training.

    python benchmarks/training.py [--steps 400] [--seeds 1] [--figure FILE] [--json FILE]
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gpytorch
import torch
from _common import (
    default_dtype,
    describe_environment,
    headless_pyplot,
    print_table,
    save_figure,
    script_parser,
    write_json,
)
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from friedman_anova import friedman, make_predictor

from gpytorch_gam import AdditiveGP
from gpytorch_gam.mlls import CollapsedELBO
from gpytorch_gam.optim import NaturalGradient

NUM_ROWS, BATCH, HELD_BACK = 5000, 500, 12
FAMILIES = {
    "block + low-rank, R = 32": ("block_low_rank", 32),
    "low-rank, R = 64": ("low_rank", 64),
    "mean-field": ("mean_field", None),
}
OPTIMISERS = ("natural gradients", "Adam, betas (.9, .95)", "Adam, betas (.9, .999)")


class Checkpoint(NamedTuple):
    step: int
    elbo: float
    bound: float
    seconds: float


class Run:
    """A model in training, with one optimiser for the posterior and Adam for the hyperparameters."""

    def __init__(self, family: str, rank: int | None, optimiser: str, x: Tensor, y: Tensor, steps: int) -> None:
        torch.manual_seed(0)
        self.x, self.y = x, y
        self.model, self.likelihood = (
            AdditiveGP(make_predictor(), family, rank),
            gpytorch.likelihoods.GaussianLikelihood(),
        )
        self.likelihood.noise = 4.0
        self.mll = gpytorch.mlls.VariationalELBO(self.likelihood, self.model, num_data=len(y))
        self.hyperparameters = [*self.model.hyperparameters(), *self.likelihood.parameters()]
        hyper = torch.optim.Adam(self.hyperparameters, lr=0.03)
        self.optimisers: list[torch.optim.Optimizer]
        if optimiser == "natural gradients":
            self.optimisers = [NaturalGradient(self.model, num_data=len(y)), hyper]
            decaying = [hyper]
        else:
            betas = (0.9, 0.95 if ".95" in optimiser else 0.999)
            posterior = torch.optim.Adam(list(self.model.variational_parameters()), lr=0.2, betas=betas)
            self.optimisers = decaying = [posterior, hyper]
        self.schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(o, steps, eta_min=1e-4) for o in decaying]

    def step(self, rows: Tensor, is_held_back: bool) -> None:
        for parameter in self.hyperparameters:
            parameter.requires_grad_(not is_held_back)
        for optimiser in self.optimisers:
            optimiser.zero_grad()
        loss = -self.mll(self.model.train()(self.x[rows]), self.y[rows])
        loss.backward()
        for optimiser in self.optimisers:
            optimiser.step()
        for schedule in self.schedules:
            schedule.step()

    @torch.no_grad()
    def checkpoint(self, step: int, seconds: float) -> Checkpoint:
        elbo = self.mll(self.model.train()(self.x), self.y).item() * len(self.y)
        bound = CollapsedELBO(self.likelihood, self.model).optimum(self.x, self.y).bound.item()
        return Checkpoint(step, elbo, bound, seconds)


def batches(num_rows: int, batch: int) -> Iterator[Tensor]:
    """Rows of each batch, without end; each epoch in a new order."""
    generator = torch.Generator().manual_seed(0)
    while True:
        yield from torch.randperm(num_rows, generator=generator).split(batch)


def train(run: Run, steps: int, at: set[int], batch: int) -> list[Checkpoint]:
    checkpoints, seconds, rows = [], 0.0, batches(len(run.y), batch)
    for step in range(1, steps + 1):
        start = time.perf_counter()
        run.step(next(rows), is_held_back=step <= HELD_BACK)
        seconds += time.perf_counter() - start
        if step in at:
            checkpoints.append(run.checkpoint(step, seconds))
    return checkpoints


def draw(seed: int, num_rows: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(seed)
    x = torch.rand(num_rows, 6)
    return x, friedman(x) + torch.randn(num_rows)


def average(found: list[list[Checkpoint]], quantity: Callable[[Checkpoint], float]) -> list[float]:
    return [statistics.mean(quantity(c) for c in at_step) for at_step in zip(*found, strict=True)]


def draw_figure(results: dict[str, dict[str, dict[str, list[float]]]], path: Path) -> None:
    plt = headless_pyplot()

    figure, panels = plt.subplots(1, len(results), figsize=(3.4 * len(results), 3.2), sharey=True, layout="constrained")
    colors = dict(zip(OPTIMISERS, ("#2166ac", "#1b7837", "#d95f02"), strict=True))
    for axes, (family, runs) in zip(panels, results.items(), strict=True):
        for optimiser, found in runs.items():
            axes.loglog(
                found["steps"], found["gap"], marker="o", markersize=4, color=colors[optimiser], label=optimiser
            )
        axes.set_title(family, fontsize=10)
        axes.set_xticks(found["steps"], [f"{step:.0f}" for step in found["steps"]])
        axes.minorticks_off()
        axes.set_xlabel("steps")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("nats below the optimum")
    panels[0].legend(frameon=False, fontsize=8)
    save_figure(figure, path)


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = script_parser(__doc__)
    parser.add_argument("--steps", type=int, default=400, help="steps of training (default: 400)")
    parser.add_argument("--seeds", type=int, default=1, help="draws of the data to average over (default: 1)")
    parser.add_argument("--figure", type=Path, help="draw the gap against steps into this file")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    environment = describe_environment(torch.device("cpu"))
    num_rows, batch, steps = (300, 100, 20) if options.quick else (NUM_ROWS, BATCH, options.steps)
    at = sorted({max(1, round(steps * share)) for share in (0.05, 0.125, 0.25, 0.5, 1.0)})
    results: dict[str, dict[str, dict[str, list[float]]]] = {}
    with default_dtype(torch.float64):
        data = [draw(seed, num_rows) for seed in range(1 if options.quick else options.seeds)]
        for label, (family, rank) in FAMILIES.items():
            results[label] = {}
            for optimiser in OPTIMISERS:
                found = [train(Run(family, rank, optimiser, x, y, steps), steps, set(at), batch) for x, y in data]
                results[label][optimiser] = {
                    "steps": [float(step) for step in at],
                    "gap": average(found, lambda c: c.bound - c.elbo),
                    "bound": average(found, lambda c: c.bound),
                    "seconds": average(found, lambda c: c.seconds),
                }
    for label, runs in results.items():
        rows = [
            [name, *(f"{gap:.1f}" for gap in r["gap"]), f"{r['bound'][-1]:.1f}", f"{r['seconds'][-1]:.0f}"]
            for name, r in runs.items()
        ]
        print()
        print_table([f"{label}: gap after steps", *map(str, at), "bound", "s"], rows)
    if options.figure:
        draw_figure(results, options.figure)
    result = {"environment": environment, "results": results}
    write_json(options.json, result)
    return result


if __name__ == "__main__":
    main()
