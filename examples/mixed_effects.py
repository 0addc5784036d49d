"""
Thirty plants, some measured once and some sixty times: a common curve, random intercepts and random curves.

    python examples/mixed_effects.py

The data are simulated, so that what is found can be held against the truth: heights in cm over twelve weeks,

    height = constant + f(week) + intercept of the plant + curve of the plant(week) + noise.

Intercepts are independent normal numbers. The curves are independent, too, share their hyperparameters, and have mean
zero over the weeks, so that they are told apart from the intercepts. With their variances learnt from all plants, each
plant takes from the others what its own measurements do not say: a plant with one measurement is drawn towards the
common curve, one with sixty goes its own way. The model answers three questions: how tall is this plant, how tall is
one of which nothing has been measured, and how tall are plants on the whole (the random effects left out)?

The likelihood is Gaussian, so hyperparameters are found by L-BFGS on the collapsed bound, and the posterior has a
closed form. Thirty plants are few: the scores are those of ten simulated experiments, and the figure shows the first.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
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
from gpytorch.likelihoods import GaussianLikelihood
from matplotlib.axes import Axes
from torch import Tensor

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup
from gpytorch_gam.components import Levels
from gpytorch_gam.diagnostics import HyperparameterUncertainty
from gpytorch_gam.mlls import CollapsedELBO
from gpytorch_gam.terms import constant, factor_smooth, random_effect, smooth

NUM_PLANTS, NUM_WEEKS = 30, 12.0
MOST_ROWS = 60
WEEK, PLANT = range(2)  # columns of the inputs
INTERCEPT_SD, CURVE_SDS, NOISE_SD = 5.0, (3.5, 2.0, 1.0), 3.0  # in cm
RANDOM = {"plant": "intercepts of plants", "week|plant": "curves of plants"}
GROUPS = ((1, 3), (4, 15), (16, MOST_ROWS))  # numbers of rows of plants that are scored together
SHOWN_COUNTS = (1, 3, 6, 15, 30, 60)  # numbers of rows of the plants in the figure
Z95 = 1.9600
DASHED, DOTTED = (0, (4, 2)), (0, (1, 1.2))


# ---------------------------------------------------------------------------------------------------------- the data


def common_curve(week: Tensor) -> Tensor:
    return 20 + 50 * torch.sigmoid((week - 6) / 1.5)


class Plants(NamedTuple):
    """
    What makes plants differ.

    :ivar intercepts: ``(L,)``.
    :ivar weights: of the cosines that their curves consist of, ``(L, K)``.
    """

    intercepts: Tensor
    weights: Tensor

    @classmethod
    def draw(cls, num: int, generator: torch.Generator) -> Plants:
        sds = torch.tensor(CURVE_SDS)
        return cls(
            INTERCEPT_SD * torch.randn(num, generator=generator),
            sds * torch.randn(num, len(sds), generator=generator),
        )

    def curves(self, week: Tensor) -> Tensor:
        """Deviations from the common curve beyond the intercepts, with mean zero over the weeks, ``(L, n)``."""
        orders = torch.arange(1, self.weights.shape[-1] + 1).unsqueeze(-1)
        return self.weights @ (math.sqrt(2) * torch.cos(math.pi * orders * week / NUM_WEEKS))

    def heights(self, week: Tensor) -> Tensor:
        """True heights without noise, ``(L, n)``."""
        return common_curve(week) + self.intercepts.unsqueeze(-1) + self.curves(week)


class Measurements(NamedTuple):
    """
    Rows of the data.

    :ivar week: ``(n,)``.
    :ivar plant: which plant a row belongs to, ``(n,)``.
    :ivar height: ``(n,)``.
    """

    week: Tensor
    plant: Tensor
    height: Tensor

    @property
    def counts(self) -> Tensor:
        """Number of rows of each plant."""
        return torch.bincount(self.plant, minlength=NUM_PLANTS)


def measure(plants: Plants, generator: torch.Generator) -> Measurements:
    """From one row a plant to sixty. Some plants are not measured to the end."""
    counts = torch.logspace(0, math.log10(MOST_ROWS), NUM_PLANTS).round().long()
    plant = torch.arange(NUM_PLANTS).repeat_interleave(counts)
    last_week = NUM_WEEKS * (1 - 0.6 * torch.rand(NUM_PLANTS, generator=generator) ** 2)
    week = last_week[plant] * torch.rand(len(plant), generator=generator)
    heights = torch.stack([plants.heights(week)[index, row] for row, index in enumerate(plant.tolist())])
    return Measurements(week, plant, heights + NOISE_SD * torch.randn(len(plant), generator=generator))


# --------------------------------------------------------------------------------------------------------- the model


class Estimate(NamedTuple):
    """Posterior means and standard deviations in cm."""

    mean: Tensor
    stddev: Tensor

    def covers(self, truth: Tensor) -> Tensor:
        """Where the truth is in the 95% band."""
        return ((truth - self.mean).abs() <= Z95 * self.stddev).double()


class Fitted(NamedTuple):
    """A trained model of standardised heights."""

    model: AdditiveGP
    likelihood: GaussianLikelihood
    rows: tuple[Tensor, Tensor]  # inputs and responses that it was trained on
    levels: Levels
    centre: Tensor
    scale: Tensor
    seconds: float

    def inputs(self, week: Tensor, names: Sequence[str]) -> Tensor:
        """A row for each plant and week, plant by plant. A name that is none of the levels is a new plant."""
        codes = self.levels.encode(names, unseen="new")
        return torch.cartesian_prod(codes, week).flip(-1)

    def heights(self, week: Tensor, names: Sequence[str], exclude: Sequence[str] | None = None) -> Estimate:
        """Heights without noise by all components, or without some of them, one row a plant."""
        prediction = self.model.predict(self.inputs(week, names), components=False, exclude=exclude)
        mean, stddev = (part.reshape(len(names), len(week)) for part in (prediction.mean, prediction.stddev))
        return Estimate(self.centre + self.scale * mean, self.scale * stddev)

    def common_curve(self, week: Tensor) -> Estimate:
        """Heights without the random effects: what all plants share, one row."""
        return self.heights(week, self.levels.labels[:1], exclude=list(RANDOM))

    @torch.no_grad()
    def intercepts(self) -> Estimate:
        """Of the plants that the model knows."""
        part = self.model.components(self.inputs(torch.zeros(1), self.levels.labels), "plant")
        return Estimate(self.scale * part.mean, self.scale * part.stddev)

    @torch.no_grad()
    def deviations(self) -> dict[str, float]:
        """Standard deviations of the random effects and of the noise in cm."""
        groups = [group for group in self.model.predictor.groups if group.names[0] in RANDOM]
        variances = {group.names[0]: group.kernel.outputscale for group in groups}
        variances["noise"] = self.likelihood.noise
        return {name: (self.scale * variance.sqrt()).item() for name, variance in variances.items()}

    def intervals(self) -> dict[str, tuple[float, float]]:
        """Their 95% intervals, by Laplace's approximation."""
        variances = HyperparameterUncertainty(self.model, self.likelihood, self.rows).intervals()
        parameter = "model.variational_strategy.predictor.groups.{}.kernel.raw_outputscale[0]"
        names = {group.names[0]: parameter.format(i) for i, group in enumerate(self.model.predictor.groups)}
        names["noise"] = "likelihood.noise_covar.raw_noise[0]"
        scale = self.scale.item()
        found = {name: variances[names[name]] for name in self.deviations()}
        return {name: (scale * math.sqrt(low), scale * math.sqrt(high)) for name, (low, high) in found.items()}


def effects(levels: Levels) -> list[ComponentGroup]:
    return [
        constant(),
        smooth(WEEK, low=0.0, high=NUM_WEEKS, names="week"),
        random_effect(PLANT, levels, variance=0.2, name="plant"),
        # centred=True: each curve has mean zero over the weeks, and its level is the random intercept
        factor_smooth(WEEK, PLANT, levels, low=0.0, high=NUM_WEEKS, num_inducing=8, centred=True, name="week|plant"),
    ]


def train(data: Measurements, levels: Levels, num_steps: int) -> Fitted:
    """Learn all hyperparameters, the variances among them, with the best posterior for them."""
    torch.manual_seed(0)
    start = time.perf_counter()
    centre, scale = data.height.mean(), data.height.std()
    x = torch.stack([data.week, levels.encode([levels.labels[index] for index in data.plant])], dim=-1)
    y = (data.height - centre) / scale
    model, likelihood = AdditiveGP(AdditivePredictor(*effects(levels)), family="coupled"), GaussianLikelihood()
    likelihood.noise = 0.1
    maximise(CollapsedELBO(likelihood, model), x, y, num_steps)
    return Fitted(model.eval(), likelihood.eval(), (x, y), levels, centre, scale, time.perf_counter() - start)


def maximise(objective: CollapsedELBO, x: Tensor, y: Tensor, num_steps: int) -> None:
    """Maximum (approximate) marginal likelihood by L-BFGS; then the posterior at the hyperparameters found."""
    parameters = [*objective.model.hyperparameters(), *objective.likelihood.parameters()]
    optimizer = torch.optim.LBFGS(parameters, max_iter=num_steps, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = -objective(x, y)
        loss.backward()
        return loss

    optimizer.step(closure)
    optimum = objective.optimum(x, y)
    objective.model.variational_strategy.set_whitened_posterior(optimum.mean, optimum.precision)


# ------------------------------------------------------------------------------------------------------- the answers


def grid(num: int = 121) -> Tensor:
    return torch.linspace(0.0, NUM_WEEKS, num)


def rms(errors: Tensor) -> float:
    return errors.square().mean().sqrt().item()


def mean_residuals(found: Fitted, data: Measurements) -> Tensor:
    """What the intercepts would be without shrinkage: how far a plant's rows are from the common curve, on average."""
    common = found.common_curve(data.week).mean[0]
    residuals = torch.zeros(NUM_PLANTS).index_add(0, data.plant, data.height - common)
    return residuals / data.counts


class Experiment(NamedTuple):
    """Plants, what was measured of them, and what the model made of it."""

    plants: Plants
    data: Measurements
    found: Fitted


def run_experiment(seed: int, num_steps: int) -> Experiment:
    generator = torch.Generator().manual_seed(seed)
    plants = Plants.draw(NUM_PLANTS, generator)
    data = measure(plants, generator)
    levels = Levels.from_values([f"plant {index + 1:02d}" for index in range(NUM_PLANTS)])
    return Experiment(plants, data, train(data, levels, num_steps))


def compare_deviations(experiments: list[Experiment]) -> dict[str, dict[str, float]]:
    """Standard deviations: those of the simulation, and those found in all experiments and in the first."""
    true = {"plant": INTERCEPT_SD, "week|plant": math.hypot(*CURVE_SDS), "noise": NOISE_SD}
    found = [experiment.found.deviations() for experiment in experiments]
    intervals = experiments[0].found.intervals()
    return {
        name: {
            "true": value,
            "found_mean": sum(values[name] for values in found) / len(found),
            "found_first": found[0][name],
            "low": intervals[name][0],
            "high": intervals[name][1],
        }
        for name, value in true.items()
    }


def score_plants(experiments: list[Experiment]) -> dict[str, dict[str, float]]:
    """Heights over all weeks and intercepts of plants with few, some and many rows, against the truth."""
    errors: dict[str, list[Tensor]] = {}  # of each experiment, plants first
    for plants, data, found in experiments:
        truth, heights, intercepts = (
            plants.heights(grid()),
            found.heights(grid(), found.levels.labels),
            found.intercepts(),
        )
        common, raw = found.common_curve(grid()).mean, mean_residuals(found, data)
        for name, values in (
            ("common_curve", common - truth),
            ("shifted_curve", common + raw.unsqueeze(-1) - truth),
            ("model", heights.mean - truth),
            ("coverage_95", heights.covers(truth)),
            ("mean_residuals", raw - plants.intercepts),
            ("intercepts", intercepts.mean - plants.intercepts),
            ("intercepts_coverage_95", intercepts.covers(plants.intercepts)),
        ):
            errors.setdefault(name, []).append(values)
    counts = torch.cat([experiment.data.counts for experiment in experiments])
    scores = {}
    for fewest, most in GROUPS:
        chosen = (counts >= fewest) & (counts <= most)
        parts = {name: torch.cat(values)[chosen] for name, values in errors.items()}
        scores[f"{fewest} to {most} rows"] = {
            name: values.mean().item() if "coverage" in name else rms(values) for name, values in parts.items()
        }
    return scores


def score_common_curve(experiments: list[Experiment]) -> dict[str, float]:
    truth = common_curve(grid())
    curves = [found.common_curve(grid()) for _, _, found in experiments]
    return {
        "rmse": rms(torch.cat([curve.mean - truth for curve in curves])),
        "mean_stddev": torch.cat([curve.stddev for curve in curves]).mean().item(),
        "coverage_95": torch.cat([curve.covers(truth) for curve in curves]).mean().item(),
    }


def score_new_plants(experiments: list[Experiment], num: int = 1000) -> dict[str, float]:
    """Predictions for a plant of which nothing has been measured, against many such plants."""
    name, generator = ["a new plant"], torch.Generator().manual_seed(1000)
    heights = Plants.draw(num, generator).heights(grid())
    new = [found.heights(grid(), name) for _, _, found in experiments]
    common = [found.common_curve(grid()) for _, _, found in experiments]
    return {
        "distance_from_common_curve": max(
            (a.mean - b.mean).abs().max().item() for a, b in zip(new, common, strict=True)
        ),
        "mean_stddev": torch.cat([curve.stddev for curve in new]).mean().item(),
        "true_stddev": heights.std(0).mean().item(),
        "coverage_95": torch.stack([curve.covers(heights).mean() for curve in new]).mean().item(),
    }


# -------------------------------------------------------------------------------------------------------- the figure


def draw_plant(axes: Axes, found: Fitted, plants: Plants, data: Measurements, index: int) -> None:
    own = data.plant == index
    weeks, common = grid(), found.common_curve(grid())
    heights = found.heights(weeks, [found.levels.labels[index]])
    axes.plot(weeks, common.mean[0], color=ORANGE, linewidth=1.2, linestyle=DASHED)
    draw_band(axes, weeks, heights.mean[0], Z95 * heights.stddev[0])
    axes.plot(weeks, plants.heights(weeks)[index], color=INK, linewidth=1.2, linestyle=DOTTED)
    axes.scatter(data.week[own], data.height[own], s=9, color=INK, alpha=0.6, linewidth=0, zorder=3)
    num = int(own.sum())
    axes.set_title(f"a plant with {num} measurement{'s' if num > 1 else ''}")


def draw_all(axes: Axes, found: Fitted, data: Measurements) -> None:
    weeks, name = grid(), ["a new plant"]
    new, common = found.heights(weeks, name), found.common_curve(weeks)
    axes.scatter(data.week, data.height, s=4, color=GREY, alpha=0.5, linewidth=0)
    draw_band(axes, weeks, new.mean[0], Z95 * new.stddev[0])
    draw_band(axes, weeks, common.mean[0], Z95 * common.stddev[0], color=ORANGE)
    axes.plot(weeks, common_curve(weeks), color=INK, linewidth=1.2, linestyle=DOTTED)
    axes.set_title("common curve, and a new plant")


def draw_intercepts(axes: Axes, found: Fitted, plants: Plants, data: Measurements) -> None:
    position, intercepts, raw = torch.arange(NUM_PLANTS), found.intercepts(), mean_residuals(found, data)
    draw_zero_line(axes)
    axes.vlines(position, raw, intercepts.mean, color=ORANGE, linewidth=0.8, alpha=0.6)
    axes.scatter(position, raw, s=16, marker="s", facecolor="white", edgecolor=ORANGE, linewidth=1.0, zorder=3)
    axes.errorbar(position, intercepts.mean, Z95 * intercepts.stddev, color=BLUE, fmt="o", markersize=4, linewidth=1.2)
    axes.scatter(position, plants.intercepts, s=26, marker="_", color=INK, linewidth=1.4, zorder=4)
    shown = position[::4]
    axes.set_xticks(shown, data.counts[shown].tolist())
    axes.set(title="intercepts in cm (black: truth)", xlabel="measurements of the plant")


def draw(experiment: Experiment, path: Path) -> None:
    set_style()
    plants, data, found = experiment
    figure, panels = plt.subplots(2, 4, figsize=(13.0, 6.2), width_ratios=[1, 1, 1, 1.5])
    small = panels[:, :3].ravel()
    for axes, count in zip(small, SHOWN_COUNTS, strict=True):
        draw_plant(axes, found, plants, data, data.counts.tolist().index(count))
    draw_all(panels[0, 3], found, data)
    draw_intercepts(panels[1, 3], found, plants, data)
    for axes in (*small[1:], panels[0, 3]):
        axes.sharey(small[0])
    for axes in (*small, panels[0, 3]):
        axes.set_xticks(range(0, round(NUM_WEEKS) + 1, 3))
    for axes in (*panels[1, :3], panels[0, 3]):
        axes.set_xlabel("week")
    for axes in panels[:, 0]:
        axes.set_ylabel("height in cm")
    line = plt.Line2D
    figure.legend(
        handles=[
            line([], [], color=BLUE, linewidth=1.8, label="plant: estimate, 95% band"),
            line([], [], color=ORANGE, linewidth=1.2, linestyle=DASHED, label="common curve"),
            line([], [], color=ORANGE, marker="s", markerfacecolor="white", linewidth=0, label="without shrinkage"),
            line([], [], color=INK, linewidth=1.2, linestyle=DOTTED, label="truth"),
        ],
        loc="outside upper center",
        ncols=4,
    )
    save_figure(figure, path)


# ---------------------------------------------------------------------------------------------------------- the script


def print_results(results: dict[str, Any]) -> None:
    rows = results["rows"]
    print("simulated heights in cm: {plants} plants with {fewest} to {most} rows, {all} in all".format(**rows))
    print(f"means over {results['experiments']} experiments, {results['seconds']:.1f} s for each model")

    print(f"\n{'standard deviation of':<24}{'true':>8}{'found':>8}{'first':>8}   its 95% interval")
    for name, r in results["deviations"].items():
        interval = f"{r['low']:.2f} to {r['high']:.2f}"
        numbers = "".join(f"{r[key]:>8.2f}" for key in ("true", "found_mean", "found_first"))
        print(f"{RANDOM.get(name, name):<24}{numbers}   {interval}")

    print(f"\n{'RMSE, plants with':<24}" + "".join(f"{name:>14}" for name in results["known_plants"]))
    for key, label in (
        ("common_curve", "heights: common curve"),
        ("shifted_curve", "  + mean residual"),
        ("model", "  model"),
        ("coverage_95", "  its 95% cover"),
        ("mean_residuals", "intercepts: residual"),
        ("intercepts", "  model, shrunk"),
        ("intercepts_coverage_95", "  its 95% cover"),
    ):
        print(f"{label:<24}" + "".join(f"{r[key]:>14.2f}" for r in results["known_plants"].values()))

    r = results["common_curve"]
    print("\ncommon curve (random effects left out)")
    print(f"RMSE {r['rmse']:.2f}, its standard deviation {r['mean_stddev']:.2f}, 95% cover {r['coverage_95']:.2f}")
    r = results["new_plant"]
    print(
        f"a plant that is not in the data: its mean is the common curve (within {r['distance_from_common_curve']:.0e})"
    )
    print(
        f"standard deviation {r['mean_stddev']:.2f} (true {r['true_stddev']:.2f}), 95% cover of 1000 such plants "
        f"{r['coverage_95']:.2f}"
    )


def main() -> None:
    arguments = argument_parser(__doc__).parse_args()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)  # matrices of this size gain nothing from more
    num_experiments, num_steps = (2, 8) if arguments.quick else (10, 60)
    experiments = [run_experiment(seed, num_steps) for seed in range(num_experiments)]
    counts = experiments[0].data.counts.tolist()  # the same in all
    results = {
        "rows": {"plants": NUM_PLANTS, "fewest": min(counts), "most": max(counts), "all": sum(counts)},
        "experiments": num_experiments,
        "seconds": sum(experiment.found.seconds for experiment in experiments) / num_experiments,
        "deviations": compare_deviations(experiments),
        "known_plants": score_plants(experiments),
        "common_curve": score_common_curve(experiments),
        "new_plant": score_new_plants(experiments),
    }
    print_results(results)
    draw(experiments[0], arguments.out / "mixed_effects.png")
    write_json(results, arguments.json)


if __name__ == "__main__":
    main()
