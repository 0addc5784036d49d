"""
How large is the noise, and where? Distributional regression: mean and standard deviation are additive, each in its way.

    python examples/distributional.py                 # simulated, so that the effects can be held against the truth
    python examples/distributional.py --data FOLDER   # also head_circumference.csv and mcycle.csv, from the folder

A Gaussian location-scale model has two predictors with components of their own, and one posterior for all of them:

    y = m(x) + s(x) eps,    m = constant + f(x),    log s = constant + g(x),    eps standard normal.

The simulated responses are sin(x) + exp(cos(x)) eps, x uniform on [-pi, pi]. A model with constant noise finds nearly
the same mean. But its intervals are too wide where there is little noise, and too narrow where there is much: 80% of
new observations should be in the 80% interval everywhere, not on average.

With --data, two real sets are predicted by cross-validation: the head circumference of 7040 boys (columns head and age,
of which the model sees the logarithm), and the acceleration of a motorcyclist's head in a crash test (accel, times).
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import gpytorch
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
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
from matplotlib.axes import Axes
from torch import Tensor
from torch.distributions import Normal

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup
from gpytorch_gam.distributions import predictive_quantiles
from gpytorch_gam.likelihoods import GaussianLocationScaleLikelihood
from gpytorch_gam.terms import constant, smooth
from gpytorch_gam.training import fit

MODELS = {"location_scale": "location-scale", "constant_noise": "constant noise"}
MEAN, LOG_SD = "mean", "log_sd"  # names of the effects, of predictors 0 and 1
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
INTERVAL = (0.1, 0.9)
COVERAGE = INTERVAL[1] - INTERVAL[0]
NUM_BINS = 10
Z95 = 1.9600
DASHED, DOTTED = (0, (4, 2)), (0, (1, 1.2))


# ---------------------------------------------------------------------------------------------------------- the data


class DataSet(NamedTuple):
    """Inputs ``(n,)``, on a linear scale or a log one, and responses ``(n,)``."""

    name: str
    x: Tensor
    y: Tensor
    x_label: str
    y_label: str
    x_scale: str = "linear"

    def rows(self, chosen: Tensor) -> DataSet:
        return self._replace(x=self.x[chosen], y=self.y[chosen])

    def inputs(self, x: Tensor) -> Tensor:
        """Inputs as models see them, ``(n, 1)``."""
        return (x.log() if self.x_scale == "log" else x).unsqueeze(-1)

    def grid(self, num: int = 200) -> Tensor:
        """Equidistant as models see it."""
        grid = torch.linspace(*self.inputs(self.x).aminmax(), num)
        return grid.exp() if self.x_scale == "log" else grid


def true_mean(x: Tensor) -> Tensor:
    return torch.sin(x)


def true_log_sd(x: Tensor) -> Tensor:
    return torch.cos(x)


def simulate(num_rows: int, generator: torch.Generator) -> DataSet:
    x = math.pi * (2 * torch.rand(num_rows, generator=generator) - 1)
    y = true_mean(x) + true_log_sd(x).exp() * torch.randn(num_rows, generator=generator)
    return DataSet("simulated", x, y, "x", "y")


def load(folder: Path) -> list[DataSet]:
    """The real data; says which file is missing."""
    head, crash = (
        read_table(folder / name, columns)
        for name, columns in (("head_circumference.csv", ("age", "head")), ("mcycle.csv", ("times", "accel")))
    )
    return [
        DataSet("head circumference", *head, "age in years", "cm", x_scale="log"),
        DataSet("motorcycle", *crash, "ms after the impact", "g"),
    ]


def read_table(path: Path, columns: tuple[str, str]) -> tuple[Tensor, Tensor]:
    if not path.exists():
        sys.exit(f"there is no file {path}: pass the folder that holds it, --data FOLDER, or leave out --data")
    table = pd.read_csv(path)
    missing = [name for name in columns if name not in table]
    if missing:
        sys.exit(f"{path} has no columns {missing}, only {list(table)}")
    table = table.dropna(subset=list(columns))
    x, y = (torch.tensor(table[name].to_numpy(float)) for name in columns)
    return x, y


# --------------------------------------------------------------------------------------------------------- the model


class Fitted(NamedTuple):
    """A trained model of responses that are standardised by their training rows, as are the ends of its range."""

    model: AdditiveGP
    likelihood: gpytorch.likelihoods.Likelihood
    data: DataSet
    seconds: float

    @property
    def centre(self) -> Tensor:
        return self.data.y.mean()

    @property
    def scale(self) -> Tensor:
        return self.data.y.std()

    def inputs(self, x: Tensor) -> Tensor:
        """Inputs as the model sees them, no farther out than in training."""
        return self.data.inputs(x.clamp(self.data.x.min(), self.data.x.max()))

    def predictors(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        """The posterior of the predictors, row by row."""
        return self.model.predict(self.inputs(x), components=False).distribution

    def log_density(self, x: Tensor, y: Tensor) -> Tensor:
        """Of new observations."""
        standardised = (y - self.centre) / self.scale
        return self.likelihood.log_marginal(standardised, self.predictors(x)) - self.scale.log()

    def quantiles(self, x: Tensor, probabilities: tuple[float, ...]) -> Tensor:
        """Of new observations, one row a probability."""
        return self.centre + self.scale * predictive_quantiles(self.likelihood(self.predictors(x)), probabilities)


def effects(x: Tensor, name: str, predictor: int) -> list[ComponentGroup]:
    """A smooth effect, which has mean zero over the range of x, and a constant."""
    return [smooth(0, x, names=name, predictor=predictor), constant(predictor=predictor)]


def build(kind: str, x: Tensor) -> tuple[AdditiveGP, gpytorch.likelihoods.Likelihood]:
    groups = effects(x, MEAN, predictor=0)
    if kind == "constant_noise":
        return AdditiveGP(AdditivePredictor(*groups)), gpytorch.likelihoods.GaussianLikelihood()
    groups += effects(x, LOG_SD, predictor=1)
    return AdditiveGP(AdditivePredictor(*groups)), GaussianLocationScaleLikelihood()


def train(kind: str, data: DataSet) -> Fitted:
    """Learn all hyperparameters, with the best posterior for them."""
    start = time.perf_counter()
    x = data.inputs(data.x)
    model, likelihood = build(kind, x)
    fit(model, likelihood, (x, (data.y - data.y.mean()) / data.y.std()))
    return Fitted(model, likelihood, data, time.perf_counter() - start)


# ------------------------------------------------------------------------------------------------------- the answers


class HeldOut(NamedTuple):
    """What models say of rows that they have not seen: log densities, and whether a row is in the interval."""

    x: Tensor
    log_density: dict[str, Tensor]
    is_inside: dict[str, Tensor]


@torch.no_grad()
def hold_against(fits: dict[str, Fitted], data: DataSet) -> HeldOut:
    log_density = {kind: found.log_density(data.x, data.y) for kind, found in fits.items()}
    ends = {kind: found.quantiles(data.x, INTERVAL) for kind, found in fits.items()}
    is_inside = {kind: ((low <= data.y) & (data.y <= high)).double() for kind, (low, high) in ends.items()}
    return HeldOut(data.x, log_density, is_inside)


def cross_validate(data: DataSet, num_folds: int) -> HeldOut:
    """Each row is predicted by models of the other folds."""
    order = torch.from_numpy(np.random.RandomState(4).permutation(len(data.y)))
    parts = []
    for fold in order.tensor_split(num_folds):
        others = torch.ones(len(order), dtype=torch.bool).index_fill(0, fold, False)
        fits = {kind: train(kind, data.rows(others)) for kind in MODELS}
        parts.append(hold_against(fits, data.rows(fold)))
    return HeldOut(
        torch.cat([part.x for part in parts]),
        {kind: torch.cat([part.log_density[kind] for part in parts]) for kind in MODELS},
        {kind: torch.cat([part.is_inside[kind] for part in parts]) for kind in MODELS},
    )


def coverage_by_decile(x: Tensor, is_inside: Tensor) -> Tensor:
    """The share of rows in the interval, for groups of equal size from the lowest to the highest x."""
    return torch.stack([rows.mean() for rows in is_inside[x.argsort()].tensor_split(NUM_BINS)])


def summarise(held_out: HeldOut) -> dict[str, Any]:
    results: dict[str, Any] = {"held_out_rows": len(held_out.x)}
    for kind in MODELS:
        results[kind] = {
            "negative_log_density": -held_out.log_density[kind].mean().item(),
            "coverage": held_out.is_inside[kind].mean().item(),
            "coverage_by_decile": coverage_by_decile(held_out.x, held_out.is_inside[kind]).tolist(),
        }
    gain = held_out.log_density["location_scale"] - held_out.log_density["constant_noise"]
    results["gain"] = {"mean": gain.mean().item(), "standard_error": (gain.std() / math.sqrt(len(gain))).item()}
    return results


class Curves(NamedTuple):
    """An effect on a grid, in units of the response for the mean."""

    x: Tensor
    mean: Tensor
    stddev: Tensor


@torch.no_grad()
def effect_on_grid(found: Fitted, name: str) -> Curves:
    """On a grid on which the effect has mean zero."""
    grid = found.data.grid()
    part = found.model.components(found.inputs(grid), name)
    unit = found.scale if name == MEAN else 1.0
    return Curves(grid, unit * part.mean, unit * part.stddev)


def true_effect(curves: Curves, name: str) -> Tensor:
    values = true_mean(curves.x) if name == MEAN else true_log_sd(curves.x)
    return values - values.mean()


def compare_with_truth(found: Fitted) -> dict[str, dict[str, float]]:
    scores = {}
    for name in (MEAN, LOG_SD):
        curves = effect_on_grid(found, name)
        error = curves.mean - true_effect(curves, name)
        scores[name] = {
            "rmse": error.square().mean().sqrt().item(),
            "coverage_95": (error.abs() <= Z95 * curves.stddev).double().mean().item(),
            "mean_stddev": curves.stddev.mean().item(),
        }
    return scores


def true_density(data: DataSet) -> float:
    """The least mean negative log density that a model can hope for."""
    return -Normal(true_mean(data.x), true_log_sd(data.x).exp()).log_prob(data.y).mean().item()


# -------------------------------------------------------------------------------------------------------- the figure


class Story(NamedTuple):
    """What there is to draw of one set of data."""

    data: DataSet
    fits: dict[str, Fitted]
    held_out: HeldOut


@torch.no_grad()
def draw_quantiles(axes: Axes, story: Story) -> None:
    data, found = story.data, story.fits["location_scale"]
    shown = torch.randperm(len(data.x), generator=torch.Generator().manual_seed(0))[:1500]
    size = 3 if len(shown) > 500 else 9
    axes.scatter(data.x[shown], data.y[shown], s=size, color=GREY, alpha=0.4, linewidth=0, rasterized=True)
    grid = data.grid()
    low, first, median, third, high = found.quantiles(grid, QUANTILES)
    for lower, upper, alpha in ((low, high, 0.2), (first, third, 0.35)):
        axes.fill_between(grid, lower, upper, color=BLUE, alpha=alpha, linewidth=0)
    axes.plot(grid, median, color=BLUE, linewidth=1.8)
    for quantile in story.fits["constant_noise"].quantiles(grid, (QUANTILES[0], QUANTILES[-1])):
        axes.plot(grid, quantile, color=ORANGE, linewidth=1.0, linestyle=DASHED)
    axes.set(xlabel=data.x_label, ylabel=data.y_label, title=f"{data.name}, {len(data.y)} rows", xscale=data.x_scale)


def draw_effect(axes: Axes, story: Story, name: str) -> None:
    curves = effect_on_grid(story.fits["location_scale"], name)
    draw_zero_line(axes)
    draw_band(axes, curves.x, curves.mean, Z95 * curves.stddev)
    if name == MEAN:
        other = effect_on_grid(story.fits["constant_noise"], name)
        for side in (-1, 1):
            end = other.mean + side * Z95 * other.stddev
            axes.plot(other.x, end, color=ORANGE, linewidth=1.0, linestyle=DASHED)
    if story.data.name == "simulated":
        axes.plot(curves.x, true_effect(curves, name), color=INK, linewidth=1.2, linestyle=DOTTED)
    unit = f", {story.data.y_label}" if story.data.name != "simulated" else ""
    titles = {MEAN: f"effect on the mean{unit}", LOG_SD: "effect on the log sd"}
    axes.set(xlabel=story.data.x_label, title=titles[name], xscale=story.data.x_scale)


def draw_coverage(axes: Axes, story: Story) -> None:
    axes.axhline(COVERAGE, color=GREY, linewidth=0.8, zorder=0)
    chance = Z95 * math.sqrt(COVERAGE * (1 - COVERAGE) * NUM_BINS / len(story.held_out.x))
    axes.axhspan(COVERAGE - chance, COVERAGE + chance, color=GREY, alpha=0.2, linewidth=0, zorder=0)
    deciles = torch.arange(1, NUM_BINS + 1)
    for kind, color, marker in (("constant_noise", ORANGE, "s"), ("location_scale", BLUE, "o")):
        values = coverage_by_decile(story.held_out.x, story.held_out.is_inside[kind])
        axes.plot(deciles, values, color=color, marker=marker, markersize=4, linewidth=1.0)
    axes.set(xlabel="decile of x, held-out rows", title="share in the 80% interval", ylim=(0.35, 1.02), xticks=deciles)


def draw(stories: list[Story], path: Path) -> None:
    set_style()
    figure, panels = plt.subplots(len(stories), 4, figsize=(13.0, 0.5 + 2.9 * len(stories)), squeeze=False)
    for row, story in zip(panels, stories, strict=True):
        draw_quantiles(row[0], story)
        draw_effect(row[1], story, MEAN)
        draw_effect(row[2], story, LOG_SD)
        draw_coverage(row[3], story)
    line = plt.Line2D
    figure.legend(
        handles=[
            line([], [], color=BLUE, linewidth=1.8, label="location-scale: median, central 50, 90%; effects, 95% band"),
            line([], [], color=ORANGE, linewidth=1.0, linestyle=DASHED, label="constant noise: central 90%; 95% band"),
            line([], [], color=INK, linewidth=1.2, linestyle=DOTTED, label="truth"),
            plt.Rectangle((0, 0), 1, 1, color=GREY, alpha=0.2, linewidth=0, label="80%, and how far chance goes"),
        ],
        loc="outside upper center",
        ncols=4,
    )
    save_figure(figure, path)


# ---------------------------------------------------------------------------------------------------------- the script


def print_results(data: DataSet, results: dict[str, Any]) -> None:
    how = "fresh rows" if "truth" in results else f"rows, {results['folds']}-fold cross-validation"
    print(f"\n{data.name}: {results['rows']} rows; {results['held_out_rows']} held out ({how})")
    print(f"{'':<18}{'NLPD':>8}{'80% cover':>11}   in each decile of x, %")
    for kind, label in MODELS.items():
        r = results[kind]
        deciles = "".join(f"{100 * share:>5.0f}" for share in r["coverage_by_decile"])
        print(f"{label:<18}{r['negative_log_density']:>8.4f}{r['coverage']:>11.3f}   {deciles}")
    if "truth" in results:
        print(f"{'the truth':<18}{results['truth']['negative_log_density']:>8.4f}")
    gain = results["gain"]
    print(f"location-scale gains {gain['mean']:.4f} nats a row (standard error {gain['standard_error']:.4f})")
    for name, score in results.get("effects", {}).items():
        print(
            f"effect on {name}: RMSE {score['rmse']:.3f} (its standard deviation: {score['mean_stddev']:.3f}), "
            f"95% band holds {score['coverage_95']:.0%} of the truth"
        )


def study_simulated(num_rows: int) -> tuple[Story, dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    data, fresh = simulate(num_rows, generator), simulate(10000, generator)
    fits = {kind: train(kind, data) for kind in MODELS}
    held_out = hold_against(fits, fresh)
    results = {
        "rows": num_rows,
        **summarise(held_out),
        "truth": {"negative_log_density": true_density(fresh)},
        "effects": compare_with_truth(fits["location_scale"]),
        "seconds": {kind: found.seconds for kind, found in fits.items()},
    }
    return Story(data, fits, held_out), results


def study_real(data: DataSet, num_folds: int) -> tuple[Story, dict[str, Any]]:
    held_out = cross_validate(data, num_folds)
    fits = {kind: train(kind, data) for kind in MODELS}
    results = {"rows": len(data.y), "folds": num_folds, **summarise(held_out)}
    return Story(data, fits, held_out), results


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--data", type=Path, help="folder with head_circumference.csv and mcycle.csv")
    arguments = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)  # matrices of this size gain nothing from more
    real = [] if arguments.data is None else load(arguments.data)

    if arguments.quick:
        studies = [study_simulated(600)] + [study_real(data, 2) for data in real]
    else:
        studies = [study_simulated(2000)] + [study_real(data, 5) for data in real]
    print("NLPD: mean negative log predictive density of held-out rows, in nats; the simulated data are sin(x) +")
    print("exp(cos(x)) eps, x uniform on [-pi, pi]")
    for story, results in studies:
        print_results(story.data, results)
    draw([story for story, _ in studies], arguments.out / "distributional.png")
    write_json({story.data.name: results for story, results in studies}, arguments.json)


if __name__ == "__main__":
    main()
