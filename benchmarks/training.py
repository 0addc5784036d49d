"""
Claim: with natural gradients the posterior stays within a nat of its optimum while the hyperparameters are learnt, and
these reach, on minibatches, what L-BFGS finds on all of the data at once. Adam alone gets there late or not at all.

Two settings, 5000 rows in batches of 500: Friedman's function of independent inputs with the ANOVA kernels of
`examples/friedman_anova.py`, and the same function of inputs with a Gaussian copula of correlation .9, with plain RBF
kernels. Each run learns all hyperparameters with Adam (rate .1, decaying) and the posterior with one of: natural
gradients, Adam with a short memory for squared gradients, Adam with its default. Printed after several numbers of
steps: the gap in nats between the ELBO and the exact collapsed bound at the hyperparameters learnt so far. Printed
for the end: the gap after `polish`, how far the collapsed bound falls short of that at L-BFGS's hyperparameters, and
RMSE and coverage of 95% bands on fresh inputs (given the hyperparameters, and with their uncertainty), with those of
L-BFGS and (where R with mgcv is installed) of `bam` on the same draws. Natural gradients are averaged over draws,
Adam alone runs on the first.

    python benchmarks/training.py [--steps 400] [--seeds 8] [--settings ...] [--figure FILE] [--json FILE]
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
    describe_environment,
    headless_pyplot,
    print_table,
    save_figure,
    script_parser,
    write_json,
)
from gaussian_closed_form import fit_bam, fit_collapsed, has_mgcv, score_with_uncertainty
from gpytorch.kernels import RBFKernel, ScaleKernel
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from friedman_anova import friedman
from friedman_anova import make_predictor as make_anova_predictor

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup
from gpytorch_gam.components import regular_grid
from gpytorch_gam.mlls import CollapsedELBO
from gpytorch_gam.numerics.dtypes import default_dtype
from gpytorch_gam.optim import NaturalGradient
from gpytorch_gam.terms import constant
from gpytorch_gam.training import polish

NUM_ROWS, NUM_FRESH, BATCH, HELD_BACK, RATE = 5000, 2000, 500, 12, 0.1
CORRELATION = 0.9
FAMILIES = {
    "block + low-rank, R = 32": ("block_low_rank", 32),
    "low-rank, automatic rank": ("low_rank", "auto"),
    "mean-field": ("mean_field", None),
}
NATURAL = "natural gradients"
OPTIMISERS = (NATURAL, "Adam, betas (.9, .95)", "Adam, betas (.9, .999)")


class Data(NamedTuple):
    x: Tensor
    y: Tensor
    fresh: Tensor


def make_plain_predictor() -> AdditivePredictor:
    """Six effects and the interaction of the first two, none of them centred, and a constant."""
    main = ScaleKernel(RBFKernel(batch_shape=torch.Size([6])), batch_shape=torch.Size([6]))
    product = ScaleKernel(RBFKernel(ard_num_dims=2, batch_shape=torch.Size([1])), batch_shape=torch.Size([1]))
    for kernel in (main, product):
        kernel.base_kernel.lengthscale, kernel.outputscale = 0.5, 4.0
    return AdditivePredictor(
        constant(variance=100.0),
        ComponentGroup(main, [[column] for column in range(6)], regular_grid(0.0, 1.0, 16)),
        ComponentGroup(product, [[0, 1]], regular_grid([0.0, 0.0], [1.0, 1.0], 4)),
    )


def draw_inputs(correlation: float, num_rows: int) -> Tensor:
    """Uniform each, with a Gaussian copula of equal correlations."""
    shared, own = torch.randn(num_rows, 1), torch.randn(num_rows, 6)
    return torch.special.ndtr(correlation**0.5 * shared + (1 - correlation) ** 0.5 * own)


class Setting(NamedTuple):
    make_predictor: Callable[[], AdditivePredictor]
    correlation: float


SETTINGS = {
    "friedman": Setting(make_anova_predictor, 0.0),
    "correlated": Setting(make_plain_predictor, CORRELATION),
}


def draw(setting: Setting, seed: int, num_rows: int) -> Data:
    torch.manual_seed(seed)
    x, fresh = draw_inputs(setting.correlation, num_rows), draw_inputs(setting.correlation, NUM_FRESH)
    return Data(x, friedman(x) + torch.randn(num_rows), fresh)


class Checkpoint(NamedTuple):
    step: int
    elbo: float
    bound: float
    seconds: float


class Run:
    """A model in training, with one optimiser for the posterior and Adam for the hyperparameters."""

    def __init__(
        self, setting: Setting, family: str, rank: int | str | None, optimiser: str, data: Data, steps: int
    ) -> None:
        torch.manual_seed(0)
        self.data, self.x, self.y = data, data.x, data.y
        self.model = AdditiveGP(setting.make_predictor(), family, rank)
        self.likelihood = gpytorch.likelihoods.GaussianLikelihood()
        self.likelihood.noise = 4.0
        self.mll = gpytorch.mlls.VariationalELBO(self.likelihood, self.model, num_data=len(self.y))
        self.hyperparameters = [*self.model.hyperparameters(), *self.likelihood.parameters()]
        hyper = torch.optim.Adam(self.hyperparameters, lr=RATE)
        self.optimisers: list[torch.optim.Optimizer]
        if optimiser == NATURAL:
            self.optimisers = [NaturalGradient(self.model, num_data=len(self.y)), hyper]
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
        return Checkpoint(step, elbo, self.bound(), seconds)

    def bound(self) -> float:
        return CollapsedELBO(self.likelihood, self.model).optimum(self.x, self.y).bound.item()

    def ending(self) -> dict[str, float]:
        """What the trained model is worth, before and after a polish."""
        found = score_with_uncertainty(self.model.eval(), self.likelihood, self.x, self.y, self.data.fresh)
        rank = getattr(self.model.variational_strategy._variational_distribution, "rank", 0)
        polished = polish(self.model, self.likelihood, [(self.x, self.y)], max_passes=3)[-1]
        return {**found, "rank": float(rank), "gap_after_polish": self.bound() - polished, "bound": self.bound()}


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


def average(found: list[list[Checkpoint]], quantity: Callable[[Checkpoint], float]) -> list[float]:
    return [statistics.mean(quantity(c) for c in at_step) for at_step in zip(*found, strict=True)]


def measure_training(setting: Setting, draws: list[Data], steps: int, batch: int) -> dict[str, Any]:
    """Each family with each optimiser."""
    at = sorted({max(1, round(steps * share)) for share in (0.05, 0.125, 0.25, 0.5, 1.0)})
    results: dict[str, Any] = {}
    for label, (family, rank) in FAMILIES.items():
        results[label] = {}
        for optimiser in OPTIMISERS:
            if optimiser != NATURAL and rank == "auto":
                continue  # nothing chooses the rank
            found, endings = [], []
            for data in draws if optimiser == NATURAL else draws[:1]:
                run = Run(setting, family, rank, optimiser, data, steps)
                found.append(train(run, steps, set(at), batch))
                endings.append(run.ending())
            results[label][optimiser] = {
                "steps": [float(step) for step in at],
                "gap": average(found, lambda c: c.bound - c.elbo),
                "elbo": average(found, lambda c: c.elbo),
                "seconds": average(found, lambda c: c.seconds),
                "endings": endings,
            }
    return results


def measure_peers(name: str, draws: list[Data]) -> dict[str, list[dict[str, float]]]:
    """L-BFGS on the collapsed bound, and bam where it is installed, on the same draws."""
    make = SETTINGS[name].make_predictor
    peers = {"L-BFGS on the collapsed bound": [fit_collapsed(*data, make_predictor=make) for data in draws]}
    if has_mgcv():
        peers["mgcv bam"] = [fit_bam(*data) for data in draws]
    return peers


def draw_figure(results: dict[str, Any], path: Path) -> None:
    plt = headless_pyplot()

    figure, panels = plt.subplots(1, len(results), figsize=(3.4 * len(results), 3.2), sharey=True, layout="constrained")
    colors = dict(zip(OPTIMISERS, ("#2166ac", "#1b7837", "#d95f02"), strict=True))
    for axes, (family, runs) in zip(panels, results.items(), strict=True):
        for optimiser, found in runs.items():
            # On a logarithmic axis, a hundredth of a nat stands for all that is less.
            gaps = [max(gap, 0.01) for gap in found["gap"]]
            axes.loglog(found["steps"], gaps, marker="o", markersize=4, color=colors[optimiser], label=optimiser)
        axes.set_title(family, fontsize=10)
        axes.set_xticks(found["steps"], [f"{step:.0f}" for step in found["steps"]])
        axes.minorticks_off()
        axes.set_xlabel("steps")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("nats below the optimum")
    panels[0].legend(frameon=False, fontsize=8)
    save_figure(figure, path)


def print_training(name: str, results: dict[str, Any], peers: dict[str, list[dict[str, float]]]) -> None:
    best = [fit["bound"] for fit in peers["L-BFGS on the collapsed bound"]]
    for label, runs in results.items():
        rows = []
        for optimiser, found in runs.items():
            endings = found["endings"]
            polished = statistics.mean(ending["gap_after_polish"] for ending in endings)
            short = statistics.mean(b - ending["bound"] for b, ending in zip(best, endings, strict=False))
            seconds = f"{found['seconds'][-1]:.0f}"
            rows.append([optimiser, *(f"{g:.2f}" for g in found["gap"]), f"{polished:.2f}", f"{short:.1f}", seconds])
        steps = [f"{step:.0f}" for step in found["steps"]]
        print()
        print_table([f"{name}, {label}: gap after steps", *steps, "polished", "bound short of L-BFGS", "s"], rows)
    rows = [[f"{label}, {NATURAL}", *_scores(runs[NATURAL]["endings"])] for label, runs in results.items()] + [
        [peer, *_scores(fits)] for peer, fits in peers.items()
    ]
    print()
    print_table([f"{name}: means over draws", "RMSE", "coverage", "with hyperparameters uncertain"], rows)


def _scores(fits: list[dict[str, float]]) -> list[str]:
    rmse = statistics.mean(fit["rmse"] for fit in fits)
    covered = statistics.mean(fit["coverage"] for fit in fits)
    wider = statistics.mean(fit.get("wider_coverage", float("nan")) for fit in fits)
    return [f"{rmse:.4f}", f"{covered:.3f}", f"{wider:.3f}"]


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = script_parser(__doc__)
    parser.add_argument("--steps", type=int, default=400, help="steps of training (default: 400)")
    parser.add_argument("--seeds", type=int, default=8, help="draws of the data (default: 8)")
    parser.add_argument("--settings", nargs="+", choices=list(SETTINGS), default=list(SETTINGS), help="default: both")
    parser.add_argument("--figure", type=Path, help="draw the gap against steps into this file")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    environment = describe_environment(torch.device("cpu"))
    num_rows, batch, steps, seeds = NUM_ROWS, BATCH, options.steps, options.seeds
    if options.quick:
        num_rows, batch, steps, seeds = 300, 100, 20, 1
    results: dict[str, Any] = {}
    with default_dtype(torch.float64):
        for name in options.settings:
            draws = [draw(SETTINGS[name], seed, num_rows) for seed in range(seeds)]
            training, peers = measure_training(SETTINGS[name], draws, steps, batch), measure_peers(name, draws)
            results[name] = {"training": training, "peers": peers}
            print_training(name, training, peers)
    if options.figure:
        draw_figure(results[options.settings[0]]["training"], options.figure)
    result = {"environment": environment, "results": results}
    write_json(options.json, result)
    return result


if __name__ == "__main__":
    main()
