"""
What decides how far a car goes on a gallon? A Bayesian GAM on real data, trained with plain GPyTorch.

    python examples/real_data.py

The data are the `cars` of the package vega_datasets (392 complete rows, 1970 to 1982; nothing is downloaded):

    mpg = constant + f(displacement) + f(horsepower) + f(weight) + f(acceleration) + f(year)
          + cylinders + origin + noise

Five smooth effects and two factors. Heavy cars have large engines, so the data leave open how much is due to which: a
posterior that couples the components says so in its bands, a mean-field posterior cannot. Both are fitted here.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import torch
from _style import (
    BLUE,
    GREY,
    INK,
    ORANGE,
    argument_parser,
    draw_band,
    draw_zero_line,
    save_figure,
    set_style,
    write_json,
)
from gpytorch.constraints import Interval
from gpytorch.kernels import LinearKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from torch import Tensor
from vega_datasets import data as vega_data

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup
from gpytorch_gam.components import regular_grid
from gpytorch_gam.kernels import ANOVAKernel, Empirical
from gpytorch_gam.mlls import CollapsedELBO
from gpytorch_gam.terms import constant
from gpytorch_gam.training import fit

SMOOTHS = {  # name of the component: column of the table, unit
    "displacement": ("Displacement", "cubic inches"),
    "horsepower": ("Horsepower", "hp"),
    "weight": ("Weight_in_lbs", "lb"),
    "acceleration": ("Acceleration", "s to 60 mph"),
    "year": ("Year", "model year"),  # this copy of the data has the cars of 1981 under 1982
}
FACTORS = {"cylinders": "Cylinders", "origin": "Origin"}
EFFECTS = [*SMOOTHS, *FACTORS]
FAMILIES = {"block_low_rank": "coupled", "mean_field": "mean-field"}
Z90, Z95 = 1.6449, 1.9600


# ---------------------------------------------------------------------------------------------------------- the data


class Cars(NamedTuple):
    """Inputs: smooth columns scaled to [0, 1] on the training rows, then one indicator column for each factor level."""

    x_train: Tensor
    x_test: Tensor
    mpg_train: Tensor
    mpg_test: Tensor
    low: Tensor  # range of the smooth columns on the training rows
    high: Tensor
    levels: dict[str, list[str]]
    num_dropped: int

    @property
    def centre(self) -> Tensor:
        return self.mpg_train.mean()

    @property
    def scale(self) -> Tensor:
        return self.mpg_train.std()

    @property
    def y_train(self) -> Tensor:
        """Response as the model sees it: mean 0, standard deviation 1."""
        return (self.mpg_train - self.centre) / self.scale

    def columns(self, factor: str) -> list[int]:
        """Columns of a factor's indicators."""
        start = len(SMOOTHS)
        for name, levels in self.levels.items():
            if name == factor:
                return list(range(start, start + len(levels)))
            start += len(levels)
        raise KeyError(factor)


def load_cars(test_share: float = 0.2, seed: int = 0) -> Cars:
    complete = vega_data.cars()
    num_rows = len(complete)
    complete = complete.dropna()
    table = complete.assign(Year=complete["Year"].dt.year)
    smooth = torch.stack([torch.tensor(table[column].to_numpy(float)) for column, _ in SMOOTHS.values()], dim=-1)
    mpg = torch.tensor(table["Miles_per_Gallon"].to_numpy(float))
    levels = {name: sorted(table[column].unique()) for name, column in FACTORS.items()}
    indicators = [
        torch.tensor([[float(value == level) for level in levels[name]] for value in table[column]])
        for name, column in FACTORS.items()
    ]
    order = torch.randperm(len(table), generator=torch.Generator().manual_seed(seed))
    num_test = round(test_share * len(table))
    test, train = order[:num_test], order[num_test:]
    low, high = smooth[train].amin(0), smooth[train].amax(0)
    x = torch.cat([(smooth - low) / (high - low), *indicators], dim=-1)
    return Cars(
        x_train=x[train],
        x_test=x[test],
        mpg_train=mpg[train],
        mpg_test=mpg[test],
        low=low,
        high=high,
        levels={name: [str(level) for level in values] for name, values in levels.items()},
        num_dropped=num_rows - len(table),
    )


# --------------------------------------------------------------------------------------------------------- the model


def smooth_effects(x_train: Tensor, num_inducing: int = 12) -> ComponentGroup:
    """All smooth effects as one batched kernel. Under the data's own distribution each has mean zero."""
    batch = torch.Size([len(SMOOTHS)])
    base = RBFKernel(batch_shape=batch, lengthscale_constraint=Interval(0.1, 10.0))
    base.lengthscale = 0.5
    measure = Empirical.from_data(x_train[:, : len(SMOOTHS)].mT, num_atoms=32)
    kernel = ScaleKernel(ANOVAKernel(base, measure), batch_shape=batch)
    kernel.outputscale = 0.2
    return ComponentGroup(
        kernel,
        columns=[[column] for column in range(len(SMOOTHS))],
        inducing_points=regular_grid(0.0, 1.0, num_inducing),
        names=list(SMOOTHS),
    )


def factor_effect(name: str, columns: list[int]) -> ComponentGroup:
    """An independent effect for each level. With one inducing point a level nothing is approximated."""
    kernel = LinearKernel()  # on indicators: the variance if the levels agree, otherwise zero
    kernel.variance = 0.1
    return ComponentGroup(kernel, [columns], inducing_points=torch.eye(len(columns)), names=[name], exact=True)


def build_model(cars: Cars, family: str) -> AdditiveGP:
    factors = [factor_effect(name, cars.columns(name)) for name in FACTORS]
    predictor = AdditivePredictor(smooth_effects(cars.x_train), *factors, constant())
    return AdditiveGP(predictor, family=family)


def train(model: AdditiveGP, likelihood: GaussianLikelihood, x: Tensor, y: Tensor, num_steps: int) -> float:
    """Learn all hyperparameters, with the best posterior for them; returns the evidence lower bound in nats."""
    # One batch holds all rows. The polish brings the posterior to its optimum at the hyperparameters found.
    history = fit(model, likelihood, [(x, y)], num_data=len(y), num_epochs=num_steps, polish_passes=5).history
    return history[-1].elbo


# ------------------------------------------------------------------------------------------------------- the answers


def score(mean: Tensor, stddev: Tensor, truth: Tensor) -> dict[str, float]:
    """Quality of predictions in mpg."""
    error = truth - mean
    return {
        "rmse": error.square().mean().sqrt().item(),
        "negative_log_density": -torch.distributions.Normal(mean, stddev).log_prob(truth).mean().item(),
        "coverage_90": (error.abs() <= Z90 * stddev).double().mean().item(),
    }


@torch.no_grad()
def predict(model: AdditiveGP, likelihood: GaussianLikelihood, cars: Cars, x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of new observations, in mpg."""
    prediction = likelihood(model(x))
    return cars.centre + cars.scale * prediction.mean, cars.scale * prediction.stddev


def linear_regression(cars: Cars) -> dict[str, float]:
    """Ordinary least squares on the same columns, for comparison."""
    weights = torch.linalg.lstsq(cars.x_train, cars.mpg_train.unsqueeze(-1), driver="gelsd").solution.squeeze(-1)
    residual = cars.mpg_train - cars.x_train @ weights
    num_weights = torch.linalg.matrix_rank(cars.x_train)
    stddev = (residual.square().sum() / (len(residual) - num_weights)).sqrt()
    return score(cars.x_test @ weights, stddev.expand(len(cars.mpg_test)), cars.mpg_test)


class Effects(NamedTuple):
    """Effects at the training rows, in mpg and each with mean zero over these rows."""

    mean: Tensor  # C x n
    covariance: Tensor  # C x n x C x n


@torch.no_grad()
def effects_at_data(model: AdditiveGP, cars: Cars) -> Effects:
    """Centre the effects, with the covariance that they then have: factor levels share a constant with one another."""
    parts = model.components(cars.x_train, EFFECTS)
    mean, covariance = parts.mean, parts.full_cross_covariance()
    covariance = covariance - covariance.mean(1, keepdim=True)
    covariance = covariance - covariance.mean(3, keepdim=True)
    return Effects(cars.scale * (mean - mean.mean(-1, keepdim=True)), cars.scale**2 * covariance)


def describe_effects(effects: Effects) -> dict[str, dict[str, float]]:
    variance = effects.mean.square().mean(-1)
    share = variance / variance.sum()
    stddev = effects.covariance.diagonal(dim1=0, dim2=2).diagonal(dim1=0, dim2=1).sqrt()  # C x n
    return {
        name: {"share": share[c].item(), "stddev": variance[c].sqrt().item(), "band_width": width}
        for c, (name, width) in enumerate(zip(EFFECTS, (2 * Z95 * stddev).mean(-1).tolist(), strict=True))
    }


def posterior_correlations(effects: Effects) -> Tensor:
    """C x C: covariance of two effects in a row, averaged over rows and scaled to [-1, 1]."""
    average = effects.covariance.diagonal(dim1=1, dim2=3).mean(-1)
    stddev = average.diagonal().sqrt()
    return average / (stddev.unsqueeze(-1) * stddev)


def largest_correlations(correlations: Tensor, num: int = 4) -> list[dict[str, Any]]:
    rows, columns = torch.tril_indices(len(EFFECTS), len(EFFECTS), offset=-1)
    values = correlations[rows, columns]
    return [
        {"effects": [EFFECTS[columns[i]], EFFECTS[rows[i]]], "correlation": values[i].item()}
        for i in values.abs().argsort(descending=True)[:num]
    ]


def analyse(model: AdditiveGP, likelihood: GaussianLikelihood, cars: Cars, elbo: float) -> dict[str, Any]:
    best = CollapsedELBO(likelihood, model).optimum(cars.x_train, cars.y_train).bound.item()
    effects = effects_at_data(model, cars)
    mean, stddev = predict(model, likelihood, cars, cars.x_test)
    return {
        "elbo": elbo,
        "nats_below_optimum": best - elbo,
        **score(mean, stddev, cars.mpg_test),
        "noise_stddev": (cars.scale * likelihood.noise.sqrt()).item(),
        "effects": describe_effects(effects),
        "correlations": largest_correlations(posterior_correlations(effects)),
    }


# -------------------------------------------------------------------------------------------------------- the figure


@torch.no_grad()
def draw_smooth(axes: Axes, models: dict[str, AdditiveGP], cars: Cars, index: int) -> None:
    name, (_, unit) = list(SMOOTHS.items())[index]
    grid = torch.linspace(0.0, 1.0, 200)
    x = torch.zeros(len(grid), cars.x_train.shape[-1])
    x[:, index] = grid
    shown = cars.low[index] + (cars.high[index] - cars.low[index]) * grid
    coupled = models["block_low_rank"].components(x, name)
    draw_band(axes, shown, cars.scale * coupled.mean, Z95 * cars.scale * coupled.stddev, label="coupled, 95% band")
    for end in models["mean_field"].components(x, name).confidence_region():
        axes.plot(shown, cars.scale * end, color=ORANGE, linewidth=1.0, linestyle=(0, (4, 2)))
    axes.set(title=name, xlabel=unit)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))


@torch.no_grad()
def draw_factor(axes: Axes, models: dict[str, AdditiveGP], cars: Cars, name: str) -> None:
    columns = cars.columns(name)
    frequencies = cars.x_train[:, columns].mean(0)
    x = torch.zeros(len(columns), cars.x_train.shape[-1])
    x[:, columns] = torch.eye(len(columns))
    contrast = torch.eye(len(columns)) - frequencies  # f(level) - mean of f over the data
    for family, color, shift, marker in (("block_low_rank", BLUE, -0.09, "o"), ("mean_field", ORANGE, 0.09, "none")):
        part = models[family].components(x, name)
        mean = cars.scale * contrast @ part.mean
        stddev = cars.scale * (contrast @ part.covariance() @ contrast.mT).diagonal().sqrt()
        positions = torch.arange(len(columns)) + shift
        axes.errorbar(positions, mean, Z95 * stddev, color=color, fmt=marker, markersize=4, linewidth=1.4)
    counts = cars.x_train[:, columns].sum(0).int().tolist()
    labels = [f"{level}\n({count})" for level, count in zip(cars.levels[name], counts, strict=True)]
    axes.set_xticks(range(len(columns)), labels)
    axes.set(title=name, xlabel="level (cars in the training data)", xlim=(-0.6, len(columns) - 0.4))


def draw_partial_residuals(axes: Axes, cars: Cars, effect: Tensor, residual: Tensor, name: str) -> None:
    if name in SMOOTHS:
        index = list(SMOOTHS).index(name)
        shown = cars.low[index] + (cars.high[index] - cars.low[index]) * cars.x_train[:, index]
    else:
        jitter = torch.rand(len(effect), generator=torch.Generator().manual_seed(0)) - 0.5
        shown = cars.x_train[:, cars.columns(name)].argmax(-1) + 0.5 * jitter
    axes.scatter(shown, effect + residual, s=5, color=GREY, alpha=0.3, linewidth=0, zorder=0.5)


def draw_correlations(axes: Axes, correlations: Tensor) -> None:
    num = len(EFFECTS)
    shown = correlations[1:, :-1].masked_fill(torch.ones(num - 1, num - 1).triu(1).bool(), float("nan"))
    axes.imshow(shown, cmap="RdBu_r", vmin=-1, vmax=1, aspect="auto")
    for row, column in torch.tril_indices(num - 1, num - 1).mT.tolist():
        value = shown[row, column].item()
        color = "white" if abs(value) > 0.6 else INK
        axes.text(column, row, f"{value:.2f}".replace("-", "\u2212"), ha="center", va="center", fontsize=7, color=color)
        if column == row:  # the name of a row stands where its cells end
            axes.text(column + 0.6, row, EFFECTS[row + 1], va="center", color=INK)
    axes.set_xticks(range(num - 1), EFFECTS[:-1], rotation=90)
    axes.set_yticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_title("posterior correlation")


def draw(models: dict[str, AdditiveGP], likelihood: GaussianLikelihood, cars: Cars, path: Path) -> None:
    set_style()
    figure, panels = plt.subplots(2, 4, figsize=(12.0, 6.2))
    effects = effects_at_data(models["block_low_rank"], cars)
    residual = cars.mpg_train - predict(models["block_low_rank"], likelihood, cars, cars.x_train)[0]
    panels = list(panels.flat)
    for index, (axes, name) in enumerate(zip(panels[:-1], EFFECTS, strict=True)):
        draw_zero_line(axes)
        draw_partial_residuals(axes, cars, effects.mean[index], residual, name)
        if name in SMOOTHS:
            draw_smooth(axes, models, cars, index)
        else:
            draw_factor(axes, models, cars, name)
        axes.sharey(panels[0])
        is_leftmost = index % 4 == 0
        axes.tick_params(labelleft=is_leftmost)
        axes.set_ylabel("effect on miles per gallon" if is_leftmost else "")
    draw_correlations(panels[-1], posterior_correlations(effects))
    figure.legend(
        handles=[
            plt.Line2D([], [], color=BLUE, linewidth=1.8, label="coupled posterior with 95% band"),
            plt.Line2D([], [], color=ORANGE, linewidth=1.0, linestyle=(0, (4, 2)), label="mean-field 95% band"),
            plt.Line2D([], [], color=GREY, marker="o", markersize=3, linewidth=0, label="partial residuals"),
        ],
        loc="outside upper center",
        ncols=3,
    )
    save_figure(figure, path)


# ---------------------------------------------------------------------------------------------------------- the script


def print_scores(results: dict[str, Any]) -> None:
    print(f"\n{'':<18}{'ELBO':>9}{'below optimum':>15}{'RMSE':>8}{'NLPD':>8}{'90% cover':>11}{'noise sd':>10}{'s':>7}")
    for family, name in FAMILIES.items():
        r = results[family]
        print(
            f"{name:<18}{r['elbo']:>9.2f}{r['nats_below_optimum']:>15.2f}{r['rmse']:>8.3f}"
            f"{r['negative_log_density']:>8.3f}{r['coverage_90']:>11.3f}{r['noise_stddev']:>10.3f}{r['seconds']:>7.1f}"
        )
    r = results["linear_regression"]
    print(
        f"{'linear regression':<18}{'':>24}{r['rmse']:>8.3f}{r['negative_log_density']:>8.3f}{r['coverage_90']:>11.3f}"
    )
    print("ELBO in nats, on standardised mpg; below optimum: below the best posterior with the same hyperparameters")
    print("RMSE and noise in mpg; NLPD: mean negative log predictive density of mpg")


def print_effects(results: dict[str, Any]) -> None:
    print(f"\n{'effect':<14}{'share':>7}{'sd (mpg)':>10}   mean width of the 95% band (mpg): coupled, mean-field")
    for name in EFFECTS:
        r, mean_field = results["block_low_rank"]["effects"][name], results["mean_field"]["effects"][name]
        print(
            f"{name:<14}{r['share']:>7.1%}{r['stddev']:>10.2f}{r['band_width']:>15.2f}{mean_field['band_width']:>9.2f}"
        )
    print("\nlargest posterior correlations between effects (what the data cannot tell apart)")
    for entry in results["block_low_rank"]["correlations"]:
        first, second = entry["effects"]
        print(f"{first + ' and ' + second:<32}{entry['correlation']:>6.2f}")


def main() -> None:
    arguments = argument_parser(__doc__).parse_args()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)  # matrices of this size gain nothing from more
    cars = load_cars()
    num_rows = {"train": len(cars.mpg_train), "test": len(cars.mpg_test), "dropped": cars.num_dropped}
    print("cars: {train} for training, {test} held out; {dropped} with missing values dropped".format(**num_rows))

    results: dict[str, Any] = {"rows": num_rows, "linear_regression": linear_regression(cars)}
    models, likelihoods = {}, {}
    for family in FAMILIES:
        torch.manual_seed(0)
        models[family] = build_model(cars, family)
        likelihoods[family] = GaussianLikelihood()
        likelihoods[family].noise = 0.1
        start = time.perf_counter()
        num_steps = 30 if arguments.quick else 150
        elbo = train(models[family], likelihoods[family], cars.x_train, cars.y_train, num_steps)
        seconds = time.perf_counter() - start
        results[family] = {**analyse(models[family], likelihoods[family], cars, elbo), "seconds": seconds}

    print_scores(results)
    print_effects(results)
    draw(models, likelihoods["block_low_rank"], cars, arguments.out / "real_data.png")
    write_json(results, arguments.json)


if __name__ == "__main__":
    main()
