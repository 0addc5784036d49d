"""
The illustration of the paper: an ANOVA decomposition of a function of six inputs, learnt from 5000 noisy observations.

    python examples/friedman_anova.py

The function is `10 sin(pi x1 x2) + 20 (x3 - 0.5)^2 + 10 x4 + 5 x5` on the unit cube (`x6` is not used), observed with
unit noise (Friedman, 1991). The model is a constant, six univariate effects and the interaction of x1 and x2, with
ANOVA kernels, so that each effect has mean zero and the interaction is orthogonal to both main effects. Every
hyperparameter is learnt by maximising the ELBO on minibatches: with natural gradients for the posterior, or with Adam
for all of it in the case of the coupled covariance. One table compares the variational families; the figure shows the
effects found by block + low-rank precision beside the analytic ones.
"""

from __future__ import annotations

import math
import time
import warnings
from dataclasses import dataclass

import gpytorch
import matplotlib.pyplot as plt
import torch
from _style import BLUE, GREY, INK, argument_parser, save_figure, set_style, write_json
from gpytorch.constraints import Interval
from gpytorch.kernels import RBFKernel, ScaleKernel
from matplotlib.figure import Figure, SubFigure
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup, training
from gpytorch_gam.components import regular_grid
from gpytorch_gam.kernels import ANOVAKernel
from gpytorch_gam.kernels.measures import Uniform
from gpytorch_gam.mlls import CollapsedELBO
from gpytorch_gam.terms import constant
from gpytorch_gam.warnings import RankWarning

EFFECTS = ("x1", "x2", "x3", "x4", "x5", "x6")
INTERACTION = "x1:x2"
FAMILIES = (
    ("mean-field", "mean_field", None),
    ("coupled covariance", "coupled", None),
    ("low-rank precision, R=16", "low_rank", 16),
    ("low-rank precision, R=32", "low_rank", 32),
    ("low-rank, automatic rank", "low_rank", "auto"),
    ("block + low-rank, R=16", "block_low_rank", 16),
    ("block + low-rank, R=32", "block_low_rank", 32),
)
SHOWN = "block + low-rank, R=32"
WAITING_EPOCHS = 3


# -------------------------------------------------------------------------------------------------- the function


def friedman(x: Tensor) -> Tensor:
    return 10 * torch.sin(math.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]


def sine_marginal(x: Tensor) -> Tensor:
    """The mean of 10 sin(pi x x') over x' in [0, 1]: 10 (1 - cos(pi x)) / (pi x)."""
    angle = math.pi * x
    return 10 * (angle / 2) * torch.sinc(x / 2) ** 2


def sine_mean() -> float:
    """The mean of 10 sin(pi x x') over the unit square, by quadrature (the integrand is smooth)."""
    nodes = (torch.arange(20000, dtype=torch.float64) + 0.5) / 20000
    return sine_marginal(nodes).mean().item()


def analytic_effects(x: Tensor) -> dict[str, Tensor]:
    """The ANOVA decomposition under independent uniform inputs, at the rows of x."""
    mean = sine_mean()
    first, second = sine_marginal(x[:, 0]), sine_marginal(x[:, 1])
    return {
        "x1": first - mean,
        "x2": second - mean,
        "x3": 20 * (x[:, 2] - 0.5) ** 2 - 20 / 12,
        "x4": 10 * (x[:, 3] - 0.5),
        "x5": 5 * (x[:, 4] - 0.5),
        "x6": torch.zeros_like(x[:, 5]),
        INTERACTION: 10 * torch.sin(math.pi * x[:, 0] * x[:, 1]) - first - second + mean,
    }


# ----------------------------------------------------------------------------------------------------- the model


def make_predictor() -> AdditivePredictor:
    def rbf(size: int, **kwargs: object) -> ANOVAKernel:
        # The bound keeps near-linear effects from running to infinite lengthscales.
        kernel = RBFKernel(batch_shape=torch.Size([size]), lengthscale_constraint=Interval(0.05, 5.0))
        kernel.lengthscale = 0.5
        return ANOVAKernel(kernel, Uniform(0.0, 1.0), **kwargs)

    main = ScaleKernel(rbf(6), batch_shape=torch.Size([6]))
    product = ScaleKernel(rbf(1, active_dims=[0]) * rbf(1, active_dims=[1]), batch_shape=torch.Size([1]))
    main.outputscale, product.outputscale = 4.0, 4.0
    return AdditivePredictor(
        constant(variance=100.0),
        ComponentGroup(main, [[0], [1], [2], [3], [4], [5]], regular_grid(0.0, 1.0, 16), names=EFFECTS),
        ComponentGroup(product, [[0, 1]], regular_grid([0.0, 0.0], [1.0, 1.0], 4), names=[INTERACTION]),
    )


@dataclass
class Fit:
    label: str
    model: AdditiveGP
    likelihood: gpytorch.likelihoods.GaussianLikelihood
    seconds: float


def fit(label: str, family: str, rank: int | str | None, x: Tensor, y: Tensor, epochs: int, batch_size: int) -> Fit:
    torch.manual_seed(0)
    model, likelihood = AdditiveGP(make_predictor(), family, rank), gpytorch.likelihoods.GaussianLikelihood()
    likelihood.noise = 4.0
    loader = DataLoader(TensorDataset(x, y), batch_size=batch_size, shuffle=True)
    start = time.perf_counter()
    if family == "coupled":
        train_with_adam(model, likelihood, loader, 2 * epochs)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RankWarning)  # the table shows what a small rank costs
            training.fit(model, likelihood, loader, num_epochs=epochs)
    return Fit(label, model, likelihood, time.perf_counter() - start)


def train_with_adam(
    model: AdditiveGP, likelihood: gpytorch.likelihoods.GaussianLikelihood, loader: DataLoader, epochs: int
) -> None:
    """The plain loop of GPyTorch, for a posterior that natural gradients do not know."""
    mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(loader.dataset))
    hyperparameters = [*model.hyperparameters(), *likelihood.parameters()]
    # A short memory for squared gradients: those of the first steps are huge. The hyperparameters wait until the
    # posterior has left the prior, because until then all of the data look like noise.
    optimizer = torch.optim.Adam(
        [
            {"params": list(model.variational_parameters()), "lr": 0.2},
            {"params": hyperparameters, "lr": 0.03},
        ],
        betas=(0.9, 0.95),
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * len(loader), eta_min=1e-4)
    model.train()
    likelihood.train()
    for epoch in range(epochs):
        for parameter in hyperparameters:
            parameter.requires_grad_(epoch >= WAITING_EPOCHS)
        for x_batch, y_batch in loader:
            optimizer.zero_grad()
            loss = -mll(model(x_batch), y_batch)
            loss.backward()
            optimizer.step()
            schedule.step()
    model.eval()
    likelihood.eval()


# ------------------------------------------------------------------------------------------------- what it found


def optimum_at_same_hyperparameters(found: Fit, x: Tensor, y: Tensor) -> tuple[AdditiveGP, float]:
    """The exact posterior over the inducing variables with the kernels and noise found, and its bound."""
    optimum = CollapsedELBO(found.likelihood, found.model).optimum(x, y)
    exact = AdditiveGP(found.model.predictor, "coupled")
    exact.variational_strategy.set_whitened_posterior(optimum.mean, optimum.precision)
    return exact.eval(), optimum.bound.item()


@torch.no_grad()
def elbo(found: Fit, x: Tensor, y: Tensor) -> float:
    mll = gpytorch.mlls.VariationalELBO(found.likelihood, found.model, num_data=len(y))
    found.model.train()
    value = mll(found.model(x), y).item() * len(y)
    found.model.eval()
    return value


@torch.no_grad()
def summarise(found: Fit, x: Tensor, y: Tensor, x_test: Tensor) -> dict[str, object]:
    exact, bound = optimum_at_same_hyperparameters(found, x, y)
    attained = elbo(found, x, y)
    truth, effects = friedman(x_test), analytic_effects(x_test)
    parts = found.model.components(x_test, [*EFFECTS, INTERACTION])
    errors = {name: parts[name].mean - effects[name] for name in effects}
    variances = parts.mean.var(dim=-1)
    mean, stddev = marginals(found.model, x_test)
    return {
        "family": found.label,
        "elbo": attained,
        "collapsed_bound": bound,
        "gap": bound - attained,
        "rmse": (mean - truth).square().mean().sqrt().item(),
        "rmse_effects": {name: error.square().mean().sqrt().item() for name, error in errors.items()},
        "coverage": coverage(mean, stddev, truth),
        "coverage_of_exact_posterior": coverage(*marginals(exact, x_test), truth),
        "coverage_effects": mean_coverage(found.model, x_test, effects),
        "share_of_variance_x6": (variances[EFFECTS.index("x6")] / variances.sum()).item(),
        "noise": found.likelihood.noise.sqrt().item(),
        "seconds": found.seconds,
    }


def marginals(model: AdditiveGP, x: Tensor) -> tuple[Tensor, Tensor]:
    moments = model.variational_strategy.predictor_moments(x)
    return moments.mean[:, 0], moments.covariance[:, 0, 0].sqrt()


def coverage(mean: Tensor, stddev: Tensor, truth: Tensor) -> float:
    return ((mean - truth).abs() <= 1.96 * stddev).double().mean().item()


def mean_coverage(model: AdditiveGP, x: Tensor, effects: dict[str, Tensor]) -> float:
    parts = model.components(x, list(effects))
    return coverage(parts.mean, parts.stddev, torch.stack(list(effects.values())))


def print_table(rows: list[dict]) -> None:
    print(
        f"{'family':<26}{'ELBO':>10}{'bound':>10}{'gap':>8}{'RMSE':>8}{'effects':>9}"
        f"{'cover':>7}{'exact':>7}{'noise':>7}{'sec':>6}"
    )
    for row in rows:
        worst = max(row["rmse_effects"].values())
        print(
            f"{row['family']:<26}{row['elbo']:>10.1f}{row['collapsed_bound']:>10.1f}{row['gap']:>8.1f}{row['rmse']:>8.4f}"
            f"{worst:>9.4f}{row['coverage']:>7.3f}{row['coverage_of_exact_posterior']:>7.3f}{row['noise']:>7.3f}"
            f"{row['seconds']:>6.0f}"
        )
    print(
        "ELBO and bound in nats (bound: the exact collapsed bound at the hyperparameters learnt); RMSE of rho,\n"
        "and of the worst effect, on fresh inputs; coverage of 95% bands of rho, by this posterior and by the exact\n"
        "one at the same hyperparameters; standard deviation of the noise; seconds of training."
    )


# ---------------------------------------------------------------------------------------------------- the figure


@torch.no_grad()
def draw(found: Fit, x: Tensor, y: Tensor) -> Figure:
    set_style()
    figure = plt.figure(figsize=(12, 5.4), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=[1.65, 1])
    draw_main_effects(left, found.model, x, y)
    draw_interaction(right, found.model)
    return figure


def draw_main_effects(figure: SubFigure, model: AdditiveGP, x: Tensor, y: Tensor) -> None:
    grid = torch.linspace(0, 1, 200)
    rows = grid[:, None].expand(-1, 6)
    truth, on_grid = analytic_effects(rows), model.components(rows)
    residual = y - model(x).mean
    at_data = model.components(x)
    for index, (axis, name) in enumerate(
        zip(figure.subplots(2, 3, sharex=True, sharey=True).flat, EFFECTS, strict=True)
    ):
        lower, upper = on_grid[name].confidence_region()
        projected = at_data[name].mean + residual
        axis.scatter(x[::5, index], projected[::5], s=2, color=GREY, alpha=0.5, linewidths=0, rasterized=True)
        axis.fill_between(grid, lower, upper, color=BLUE, alpha=0.3, linewidth=0)
        axis.plot(grid, on_grid[name].mean, color=BLUE, linewidth=1.5)
        axis.plot(grid, truth[name], color=INK, linewidth=1, linestyle="--")
        axis.set_title(f"$f_{index + 1}(x_{index + 1})$", fontsize=11)
        axis.set_ylim(-9, 9)
    figure.supxlabel("input", fontsize=10)
    figure.supylabel("effect", fontsize=10)
    handles = [
        plt.Line2D([], [], color=GREY, alpha=0.5, marker=".", linestyle="", label="projected observations"),
        plt.Line2D([], [], color=BLUE, label="estimate with 95% band"),
        plt.Line2D([], [], color=INK, linestyle="--", label="analytic effect"),
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=3, frameon=False, fontsize=10)


def draw_interaction(figure: SubFigure, model: AdditiveGP) -> None:
    side = 60
    rows = torch.full((side * side, 6), 0.5)
    rows[:, :2] = regular_grid([0.0, 0.0], [1.0, 1.0], side)
    surfaces = {
        "estimate": model.components(rows, INTERACTION).mean,
        "analytic": analytic_effects(rows)[INTERACTION],
    }
    limit = max(surface.abs().max().item() for surface in surfaces.values())
    axes = figure.subplots(2, 1, sharex=True, sharey=True)
    for axis, (title, surface) in zip(axes, surfaces.items(), strict=True):
        image = axis.imshow(
            surface.reshape(side, side).T, origin="lower", extent=(0, 1, 0, 1), cmap="RdBu_r", vmin=-limit, vmax=limit
        )
        axis.set_title(f"$f_{{12}}(x_1, x_2)$, {title}", fontsize=11, fontweight="normal")
        axis.set_ylabel("$x_2$")
    axes[-1].set_xlabel("$x_1$")
    figure.colorbar(image, ax=axes, shrink=0.7)


# ---------------------------------------------------------------------------------------------------------- main


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--seed", type=int, default=1, help="seed of the data")
    arguments = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)  # matrices of this size gain nothing from more

    torch.manual_seed(arguments.seed)
    num_rows, epochs, batch_size = (600, 5, 200) if arguments.quick else (5000, 40, 500)
    x, x_test = torch.rand(num_rows, 6), torch.rand(2000, 6)
    y = friedman(x) + torch.randn(num_rows)
    families = [f for f in FAMILIES if f[0] in ("mean-field", SHOWN)] if arguments.quick else FAMILIES

    fits = [fit(*family, x, y, epochs, batch_size) for family in families]
    rows = [summarise(found, x, y, x_test) for found in fits]
    print_table(rows)
    shown = next(row for row in rows if row["family"] == SHOWN)
    print(f"\nRMSE of each effect ({SHOWN}):")
    print("  ".join(f"{name} {error:.3f}" for name, error in shown["rmse_effects"].items()))
    print(f"coverage of the 95% bands of the effects: {shown['coverage_effects']:.3f}")
    print(f"share of the variance that the effect of x6 takes: {shown['share_of_variance_x6']:.2e}")
    found = next(found for found in fits if found.label == SHOWN)
    save_figure(draw(found, x, y), arguments.out / "friedman_anova.png")
    write_json({"rows": rows, "num_rows": num_rows, "epochs": epochs, "seed": arguments.seed}, arguments.json)


if __name__ == "__main__":
    main()
