"""
How many cyclists pass in an hour? Overdispersed counts with an exposure, by Poisson and negative binomial GAMs.

    python examples/counts.py                   # simulated, so that what is found can be held against the truth
    python examples/counts.py --data FOLDER     # bicycles.csv and chicago.csv, whichever the folder has

The simulated city counts cyclists in every hour of half a year. Its network grows from two counters to two hundred, so
that a count may be the sum over few counters or many, which is what an exposure is for. The expected count is

    counters * exp(constant + f(hour, on working days or weekends) + weekday + f(temperature)).

The effects of the hour are periodic: on weekends many ride around midnight, and the curve must not break there. Counts
vary more than Poisson counts do, because what moves one counter moves them all. A Poisson model takes that for signal:
its effects chase the noise, and its bands and predictions are far too certain. A negative binomial model learns by how
much the counts vary more.

With --data, bicycles.csv has the counts at five stations of a city in 2019 (columns station_name, date, time, count,
average_temperature), and chicago.csv daily deaths (death, time, tmpd, pm10median). Of the cyclists, what the hours of a
date have in common, such as rain, is a random effect; a new date has its prior. Of the deaths, the air quality is not
known on some days: its effect then has the prior, and the days stay in the data.

Whole days are held out, and no model sees them.
"""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
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
from gpytorch.likelihoods import Likelihood
from gpytorch.means import ConstantMean
from matplotlib.axes import Axes
from torch import Tensor
from torch.distributions import Gamma, NegativeBinomial, Poisson
from torch.utils.data import DataLoader

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup
from gpytorch_gam.components import Levels
from gpytorch_gam.data import RowDataset
from gpytorch_gam.effects import ComponentPosterior
from gpytorch_gam.kernels import Empirical
from gpytorch_gam.likelihoods import NegativeBinomialLikelihood, PoissonLikelihood
from gpytorch_gam.terms import constant, cyclic, factor, random_effect, smooth
from gpytorch_gam.training import fit
from gpytorch_gam.warnings import InducingPointsWarning

LIKELIHOODS = {"poisson": PoissonLikelihood, "negative_binomial": NegativeBinomialLikelihood}
SHOWN = {"poisson": ("Poisson", ORANGE), "negative_binomial": ("negative binomial", BLUE)}
WEEKDAYS = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]
DAY_TYPES = ["working day", "weekend"]
HOUR, WEEKDAY, DAY_TYPE, TEMPERATURE, SEASON, STATION, DATE = range(7)  # columns of hourly inputs
HOURS = [f"hour, {day_type}" for day_type in DAY_TYPES]
DASHED = (0, (4, 2))
Z95 = 1.9600
INTERVAL = 0.8
ROWS_AT_A_TIME = 2000


# ---------------------------------------------------------------------------------------------------------- the data


class Rows(NamedTuple):
    """Inputs ``(n, D)``, counts, exposures, and the day that a row belongs to; of simulated rows also the truth."""

    x: Tensor
    y: Tensor
    exposure: Tensor
    day: Tensor
    log_rate: Tensor | None = None

    def take(self, chosen: Tensor | slice) -> Rows:
        return Rows(*(None if part is None else part[chosen] for part in self))


class Effect(NamedTuple):
    """
    Where an effect is shown: at ``values`` of a column, in rows that are otherwise like ``like``.

    Levels have ``labels``, a periodic column a ``period``, and an effect that some rows have alone the column and the
    value that they have (``only``).
    """

    column: int
    values: Tensor
    like: Tensor
    unit: str = ""
    labels: Sequence[str] | None = None
    period: float | None = None
    only: tuple[int, float] | None = None
    truth: Tensor | None = None

    @property
    def x(self) -> Tensor:
        x = self.like.expand(len(self.values), -1).clone()
        x[:, self.column] = self.values
        if self.only is not None:
            x[:, self.only[0]] = self.only[1]
        return x

    def belongs(self, x: Tensor) -> Tensor:
        """Which rows of the data have the effect."""
        is_known = ~x[:, self.column].isnan()
        return is_known if self.only is None else is_known & (x[:, self.only[0]] == self.only[1])

    def bins(self, values: Tensor, num: int = 24) -> tuple[Tensor, Tensor]:
        """For each row the index of a group of similar values, and the middle of each group."""
        if self.labels is not None:
            return values.long(), self.values
        edges = torch.linspace(self.values[0], self.values[-1], num + 1)
        values = values.contiguous() if self.period is None else values % self.period
        return (torch.bucketize(values, edges) - 1).clamp(0, num - 1), 0.5 * (edges[1:] + edges[:-1])

    def label(self, index: int) -> str:
        if self.labels is not None:
            return self.labels[index]
        value = self.values[index].item()
        return f"{int(value):02d}:{round(value % 1 * 60):02d}" if self.period == 24.0 else f"{value:.4g}"


class Study(NamedTuple):
    """A data set, its terms, and what to show."""

    title: str
    train: Rows
    test: Rows
    terms: Callable[[], list[ComponentGroup]]
    effects: dict[str, Effect]
    notes: list[str]
    num_steps: int  # of training
    batch_size: int = 1000
    true_dispersion: float | None = None


def hold_out_days(rows: Rows, share: float = 0.2, seed: int = 0) -> tuple[Rows, Rows]:
    """Whole days, because the hours of a day have more in common than the model knows."""
    days = rows.day.unique()
    order = torch.randperm(len(days), generator=torch.Generator().manual_seed(seed))
    is_test = torch.isin(rows.day, days[order[: round(share * len(days))]])
    return rows.take(~is_test), rows.take(is_test)


def hourly_terms(x: Tensor) -> list[ComponentGroup]:
    """Those that simulated and real cyclists share. Each effect has mean zero, the constant has the level."""
    return [
        cyclic(HOUR, period=24.0, by=DAY_TYPE, levels=DAY_TYPES, num_inducing=24, names=HOURS),
        factor(WEEKDAY, WEEKDAYS, name="weekday", variance=1.0),
        smooth(TEMPERATURE, x, names="temperature", missing="marginal"),
        constant(),
    ]


def hourly_effects(x: Tensor) -> dict[str, Effect]:
    like = x[~x.isnan().any(-1)][0]
    day = torch.linspace(0.0, 24.0, 97)
    return {
        **{
            name: Effect(HOUR, day, like, "hour of the day", period=24.0, only=(DAY_TYPE, float(code)))
            for code, name in enumerate(HOURS)
        },
        "weekday": Effect(WEEKDAY, torch.arange(7.0), like, labels=WEEKDAYS),
        "temperature": Effect(TEMPERATURE, grid(x[:, TEMPERATURE]), like, "degrees Celsius"),
    }


def grid(column: Tensor, num: int = 151) -> Tensor:
    column = column[~column.isnan()]
    return torch.linspace(column.min().item(), column.max().item(), num)


# ------------------------------------------------------------------------------------------------- a simulated city


def bump(hour: Tensor, centre: float, width: float) -> Tensor:
    """A periodic peak of height one; width in hours."""
    return torch.exp((torch.cos(2 * math.pi * (hour - centre) / 24) - 1) * (24 / (2 * math.pi * width)) ** 2)


def true_hour(hour: Tensor, is_weekend: bool) -> Tensor:
    def curve(h: Tensor) -> Tensor:
        if is_weekend:
            return 1.8 * bump(h, 14.0, 4.0) + 1.5 * bump(h, 0.0, 2.0) - 0.8 * bump(h, 5.0, 2.0)
        return 2.4 * bump(h, 7.5, 1.5) + 2.2 * bump(h, 16.5, 2.0) + 1.0 * bump(h, 12.0, 4.0) - 0.8 * bump(h, 3.0, 2.5)

    return curve(hour) - curve(torch.arange(240) / 10).mean()  # mean zero over the day


def true_weekday() -> Tensor:
    effect = torch.tensor([0.02, 0.1, 0.12, 0.08, 0.0, -0.25, -0.45])
    return effect - effect.mean()


def true_temperature(temperature: Tensor, low: float, high: float) -> Tensor:
    def curve(t: Tensor) -> Tensor:
        return 1.4 * torch.exp(-0.5 * ((t - 19.0) / 11.0).square())

    return curve(temperature) - curve(torch.linspace(low, high, 1001)).mean()  # mean zero over the range


def simulate(num_days: int, num_steps: int, dispersion: float = 0.4, seed: int = 0) -> Study:
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)  # torch.distributions take no generator
    day = torch.arange(num_days).repeat_interleave(24)
    hour = torch.arange(24.0).repeat(num_days) + 0.5
    weekday = (day % 7).double()
    is_weekend = weekday >= 5
    season, daily = -torch.cos(2 * math.pi * (day - 15) / 365), torch.sin(2 * math.pi * (hour - 9) / 24)
    temperature = 9 + 11 * season + 3 * daily + 3 * torch.randn(num_days, generator=generator)[day]
    low, high = temperature.min().item(), temperature.max().item()
    reporting = 0.6 + 0.4 * torch.rand(len(day), generator=generator)  # some counters fail
    counters = (2.0 * 100.0 ** (day / num_days) * reporting).round().clamp_min(1.0)
    log_rate = 1.0 + torch.where(is_weekend, true_hour(hour, True), true_hour(hour, False))
    log_rate = log_rate + true_weekday()[weekday.long()] + true_temperature(temperature, low, high)
    expected = counters * log_rate.exp()
    y = Poisson(expected * Gamma(1 / dispersion, torch.tensor(1 / dispersion)).sample((len(day),))).sample()
    x = torch.stack([hour, weekday, is_weekend.double(), temperature], dim=-1)
    train, test = hold_out_days(Rows(x, y, counters, day, log_rate))
    effects = hourly_effects(x)
    truths = {name: true_hour(effects[name].values, name == HOURS[1]) for name in HOURS}
    truths |= {"weekday": true_weekday()}
    truths |= {"temperature": true_temperature(effects["temperature"].values, low, high)}
    return Study(
        "simulated cyclists",
        train,
        test,
        lambda: hourly_terms(x),
        {name: effect._replace(truth=truths[name]) for name, effect in effects.items()},
        [f"simulated: the counts of {counters.min():.0f} to {counters.max():.0f} counters in each of {len(y)} hours"],
        num_steps=num_steps,
        true_dispersion=dispersion,
    )


# --------------------------------------------------------------------------------------------------------- real counts


def read_table(folder: Path, name: str, columns: list[str]) -> pd.DataFrame:
    table = pd.read_csv(folder / name)
    lacking = [column for column in columns if column not in table]
    if lacking:
        sys.exit(f"{folder / name} has no columns {lacking}; it has {list(table)}")
    return table


def read_bicycles(folder: Path, is_quick: bool) -> Study:
    table = read_table(folder, "bicycles.csv", ["station_name", "date", "time", "count", "average_temperature"])
    num_listed = len(table)
    table["hour"] = table["time"].str[:2].astype(int)  # "04:00:00-05:00:00" is the hour from four to five
    table = table.set_index(["station_name", "date", "hour"])[["count", "average_temperature"]]
    # The file lists hours with cyclists alone. On days of which a station lists half, the others are zeros.
    listed = table.groupby(["station_name", "date"]).size()
    days = listed.index[listed >= 12]
    every_hour = [(station, date, hour) for station, date in days for hour in range(24)]
    table = table.reindex(pd.MultiIndex.from_tuples(every_hour, names=table.index.names))
    is_added = table["count"].isna()
    # A station without a thermometer says 0 in all rows. The others are near: the mean of those that listed the hour.
    has_thermometer = table.groupby("station_name")["average_temperature"].transform("std") > 0
    celsius = table["average_temperature"].where(has_thermometer).groupby(["date", "hour"]).transform("mean")
    table = table.assign(celsius=celsius, y=table["count"].fillna(0.0)).reset_index()
    date = pd.to_datetime(table["date"])
    stations = Levels.from_values(table["station_name"])
    weekday = torch.tensor(date.dt.day_of_week.to_numpy(float))
    day = torch.tensor(date.dt.day_of_year.to_numpy(float))
    x = torch.stack(
        [
            torch.tensor(table["hour"].to_numpy(float)) + 0.5,
            weekday,
            (weekday >= 5).double(),
            torch.tensor(table["celsius"].to_numpy(float)),
            day,
            stations.encode(table["station_name"]),
            day,
        ],
        dim=-1,
    )
    rows = Rows(x, torch.tensor(table["y"].to_numpy(float)), torch.ones(len(x)), day)
    if is_quick:
        rows = rows.take(day % 8 == 0)
    train, test = hold_out_days(rows)
    like = train.x[~train.x.isnan().any(-1)][0]
    effects = hourly_effects(rows.x)
    effects["day of the year"] = Effect(SEASON, torch.linspace(0.0, 365.0, 147), like, "day", period=365.0)
    effects["station"] = Effect(STATION, torch.arange(float(len(stations))), like, labels=stations.labels)

    def terms() -> list[ComponentGroup]:
        return [
            *hourly_terms(rows.x),
            cyclic(SEASON, period=365.0, names="day of the year"),
            factor(STATION, stations, name="station", variance=1.0),
            # What the hours of a date share: rain, holidays. A date that is held out is a new level, with the prior.
            random_effect(DATE, Levels.from_values(train.x[:, DATE]), variance=0.1, name="date"),
        ]

    notes = [
        f"bicycles.csv: {num_listed} counts listed; {int(is_added.sum())} hours without one, on days with others, are "
        "taken as zeros",
        f"temperature: mean of the stations that have it; missing in {int(rows.x[:, TEMPERATURE].isnan().sum())} rows",
    ]
    num_steps = 4 if is_quick else 36
    return Study("cyclists at five stations", train, test, terms, effects, notes, num_steps, batch_size=4000)


def read_chicago(folder: Path, is_quick: bool) -> Study:
    table = read_table(folder, "chicago.csv", ["death", "time", "tmpd", "pm10median"])
    year = 1987.0 + (table["time"] - table["time"].min()) / 365.25
    columns = [year, 5 / 9 * (table["tmpd"] - 32), table["pm10median"]]
    x = torch.tensor(pd.concat(columns, axis=1).to_numpy(float))
    y = torch.tensor(table["death"].to_numpy(float))
    rows = Rows(x, y, torch.ones(len(y)), torch.arange(len(y)))
    rows = rows.take(slice(None, None, 4)) if is_quick else rows
    train, test = hold_out_days(rows)
    num_missing = int(rows.x[:, 2].isnan().sum())
    complete = rows.x[~rows.x.isnan().any(-1)]

    def terms() -> list[ComponentGroup]:
        particles = Empirical.from_data(complete[:, 2])
        return [
            smooth(0, rows.x, num_inducing=30, names="trend"),
            cyclic(0, period=1.0, names="season"),
            smooth(1, rows.x, names="temperature"),
            smooth(2, rows.x, measure=particles, missing="marginal", names="particles"),
            constant(),
        ]

    like = complete[0]
    effects = {
        "trend": Effect(0, grid(rows.x[:, 0]), like, "year"),
        "season": Effect(0, torch.linspace(0.0, 1.0, 151), like, "share of the year", period=1.0),
        "temperature": Effect(1, grid(rows.x[:, 1]), like, "degrees Celsius"),
        "particles": Effect(2, grid(rows.x[:, 2]), like, "PM10 (median of monitors, centred)"),
    }
    notes = [
        f"chicago.csv: deaths on {len(y)} days",
        f'missing="marginal" keeps {num_missing} of {len(rows.y)} days, on which the air quality is not known',
    ]
    return Study("deaths in Chicago", train, test, terms, effects, notes, 4 if is_quick else 125)


READERS = {"bicycles": read_bicycles, "chicago": read_chicago}


# ------------------------------------------------------------------------------------------------------------- the fit


class Fit(NamedTuple):
    """A trained model, and what it says about held-out rows."""

    model: AdditiveGP
    likelihood: Likelihood
    elbo: float
    seconds: float


def train(study: Study, name: str) -> Fit:
    """Learn a model with one of the likelihoods: dispersion, variances and lengthscales with the effects."""
    torch.manual_seed(0)
    start = time.perf_counter()
    x, y, exposure, *_ = study.train
    mean = ConstantMean()  # without it training starts from one event an hour, for some counts far from where it ends
    mean.initialize(constant=(y.sum() / exposure.sum()).log()).requires_grad_(False)
    model, likelihood = AdditiveGP(AdditivePredictor(*study.terms(), mean=mean), rank=64), LIKELIHOODS[name]()
    loader = DataLoader(RowDataset(x, y, exposure=exposure), study.batch_size, shuffle=True)
    num_epochs = math.ceil(study.num_steps / len(loader))
    # A fast rate for few steps: variances of log rates end far from the one that they start from.
    with warnings.catch_warnings():
        # Where counts vary more than Poisson ones do, effects would bend after the noise, and ask for more points.
        warnings.simplefilter("ignore", InducingPointsWarning)
        history = fit(model, likelihood, loader, num_epochs=num_epochs, lr=0.3, polish_passes=3).history
    return Fit(model, likelihood, history[-1].elbo, time.perf_counter() - start)


# ----------------------------------------------------------------------------------------------------------- the checks


class Check(NamedTuple):
    """Predictions for rows that the model has not seen, ``(n)`` each."""

    log_density: Tensor
    expected: Tensor
    squared_residual: Tensor  # over the variance that the model says
    is_covered: Tensor  # by the 80% predictive interval
    zero: Tensor  # probability of no count
    rank: Tensor  # of the count in its predictive distribution, uniform on [0, 1] if that is right


@torch.no_grad()
def check(fitted: Fit, rows: Rows) -> Check:
    parts = []
    for start in range(0, len(rows.y), ROWS_AT_A_TIME):
        part = rows.take(slice(start, start + ROWS_AT_A_TIME))
        predictor = fitted.model.predict(part.x, components=False).distribution
        counts = fitted.likelihood(predictor, exposure=part.exposure)  # the distribution of new counts
        draws = counts.sample(torch.Size([1000]))
        # predictive_quantiles in gpytorch_gam.likelihoods has exact ones; with draws at hand these do.
        low, high = draws.quantile(torch.tensor([0.5 - INTERVAL / 2, 0.5 + INTERVAL / 2]), 0, interpolation="lower")
        ties = torch.rand(len(part.y)) * (draws == part.y).double().mean(0)  # counts have atoms: a random share of them
        parts.append(
            Check(
                counts.log_prob(part.y),
                counts.mean,
                (part.y - counts.mean).square() / counts.variance,
                (low <= part.y) & (part.y <= high),
                counts.log_prob(torch.zeros_like(part.y)).exp(),
                (draws < part.y).double().mean(0) + ties,
            )
        )
    return Check(*(torch.cat(values) for values in zip(*parts, strict=True)))


def summary(checked: Check) -> dict[str, float]:
    return {
        "negative_log_density": -checked.log_density.mean().item(),
        "residual_variance": checked.squared_residual.mean().item(),
        "coverage_80": checked.is_covered.double().mean().item(),
        "zeros": checked.zero.mean().item(),
    }


def score_of_truth(study: Study) -> dict[str, float]:
    """The distribution that the held-out counts were drawn from."""
    assert study.test.log_rate is not None and study.true_dispersion is not None
    mean = study.test.exposure * study.test.log_rate.exp()
    logits = (study.true_dispersion * mean).log()
    distribution = NegativeBinomial(total_count=torch.tensor(1 / study.true_dispersion), logits=logits)
    return {
        "negative_log_density": -distribution.log_prob(study.test.y).mean().item(),
        "residual_variance": ((study.test.y - mean).square() / distribution.variance).mean().item(),
    }


@torch.no_grad()
def describe_rate(fitted: Fit, rows: Rows) -> dict[str, float]:
    """The log rate found in the held-out rows against the true one."""
    prediction = fitted.model.predict(rows.x, components=False)
    error = prediction.mean - rows.log_rate
    return {
        "rmse": error.square().mean().sqrt().item(),
        "coverage_95": (error.abs() <= Z95 * prediction.stddev).double().mean().item(),
    }


@torch.no_grad()
def describe_effect(fitted: Fit, name: str, effect: Effect) -> dict[str, Any]:
    """Where an effect is lowest and highest, the ratio of the two rates, and if known how far it is from the truth."""
    part = fitted.model.components(effect.x, name)
    mean, stddev = part.mean, part.stddev
    found = {
        "lowest_at": effect.label(int(mean.argmin())),
        "highest_at": effect.label(int(mean.argmax())),
        "ratio": (mean.max() - mean.min()).exp().item(),
        "band_width": 2 * Z95 * stddev.mean().item(),
    }
    if effect.truth is None:
        return found
    error = (mean - effect.truth).abs()
    covered = (error <= Z95 * stddev).double().mean().item()
    return found | {"rmse": error.square().mean().sqrt().item(), "coverage_95": covered}


def analyse(study: Study, fits: dict[str, Fit], checks: dict[str, Check]) -> dict[str, Any]:
    results: dict[str, Any] = {"rows": {"train": len(study.train.y), "test": len(study.test.y)}}
    if study.test.log_rate is not None:
        results["truth"] = score_of_truth(study)
    for name, fitted in fits.items():
        numbers = {"elbo": fitted.elbo, **summary(checks[name]), "seconds": fitted.seconds}
        if isinstance(fitted.likelihood, NegativeBinomialLikelihood):
            numbers["dispersion"] = fitted.likelihood.dispersion.item()
        if study.test.log_rate is not None:
            numbers["log_rate"] = describe_rate(fitted, study.test)
        effects = {key: describe_effect(fitted, key, effect) for key, effect in study.effects.items()}
        results[name] = numbers | {"effects": effects}
    return results


# ---------------------------------------------------------------------------------------------------------- the figure


def set_factor_axis(axes: Axes) -> None:
    """Effects on the log rate are factors of the rate: ticks at round ones."""
    low, high = axes.get_ylim()
    candidates = [[2.0**power for power in range(-20, 21, step)] for step in (4, 2, 1)]
    candidates += [[share * step for share in range(1, 400)] for step in (0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005)]
    for factors in candidates:
        shown = [factor for factor in factors if low <= math.log(factor) <= high]
        if len(shown) >= 4:
            break
    axes.set_yticks([math.log(factor) for factor in shown], [f"{factor:.4g}" for factor in shown])
    axes.set_ylim(low, high)


@torch.no_grad()
def draw_observed(axes: Axes, fitted: Fit, name: str, effect: Effect, rows: Rows) -> None:
    """Counts of similar rows against what the other effects say of them."""
    rows = rows.take(effect.belongs(rows.x))
    prediction = fitted.model.predict(rows.x, name)
    expected = fitted.likelihood(prediction.distribution, exposure=rows.exposure).mean
    index, shown = effect.bins(rows.x[:, effect.column])
    sums = torch.zeros(4, len(shown)).index_add_(
        1, index, torch.stack([rows.y, expected, prediction.component(name)[0], torch.ones_like(rows.y)])
    )
    y, expected, mean, num = sums[:, (sums[0] > 0) & (sums[1] > 20)]
    shown = shown[(sums[0] > 0) & (sums[1] > 20)]
    axes.scatter(shown, mean / num + (y / expected).log(), s=10, color=GREY, alpha=0.8, linewidth=0, zorder=3)


@torch.no_grad()
def draw_effect(axes: Axes, fits: dict[str, Fit], name: str, effect: Effect, rows: Rows) -> None:
    parts = {key: fitted.model.components(effect.x, name) for key, fitted in fits.items()}
    draw_zero_line(axes)
    draw_observed(axes, fits["negative_binomial"], name, effect, rows)
    if effect.labels is None:
        draw_curves(axes, parts, effect)
    else:
        draw_levels(axes, parts, effect)
    axes.set(title=name, xlabel=effect.unit)
    set_factor_axis(axes)


def draw_curves(axes: Axes, parts: dict[str, ComponentPosterior], effect: Effect) -> None:
    found = parts["negative_binomial"]
    draw_band(axes, effect.values, found.mean, Z95 * found.stddev)
    if effect.truth is not None:
        axes.plot(effect.values, effect.truth, color=INK, linewidth=1.2, linestyle=DASHED)
    if effect.period == 24.0:
        axes.set_xticks(range(0, 25, 6))
    axes.margins(y=0.15)
    limits = axes.get_ylim()  # beyond the data, the other model's curve may be anywhere
    for end in parts["poisson"].confidence_region(Z95):
        axes.plot(effect.values, end, color=ORANGE, linewidth=0.8)
    axes.set_ylim(limits)


def draw_levels(axes: Axes, parts: dict[str, ComponentPosterior], effect: Effect) -> None:
    assert effect.labels is not None
    for (key, (_, color)), shift in zip(SHOWN.items(), (0.12, -0.12), strict=True):
        mean, half_width = parts[key].mean, Z95 * parts[key].stddev
        axes.errorbar(effect.values + shift, mean, half_width, color=color, fmt="o", markersize=3, linewidth=1.4)
    if effect.truth is not None:
        axes.hlines(effect.truth, effect.values - 0.35, effect.values + 0.35, color=INK, linewidth=1.2)
    are_long = max(map(len, effect.labels)) > 4
    axes.set_xticks(effect.values, effect.labels, **({"rotation": 25, "ha": "right"} if are_long else {}))


def draw_calibration(axes: Axes, checks: dict[str, Check]) -> None:
    """How many held-out counts the central intervals of each probability hold."""
    nominal = torch.linspace(0.0, 1.0, 101)
    axes.plot(nominal, nominal, color=GREY, linewidth=0.8, zorder=0)
    for name, (label, color) in SHOWN.items():
        distance = 2 * (checks[name].rank - 0.5).abs()
        covered = torch.searchsorted(distance.sort().values, nominal, right=True) / len(distance)
        axes.plot(nominal, covered, color=color, linewidth=1.8, label=label)
    axes.set(title="held-out calibration", xlabel="probability of the interval", xlim=(0, 1), ylim=(0, 1.01))
    axes.set_ylabel("share of counts inside")


def draw_coverage_by_size(axes: Axes, checks: dict[str, Check]) -> None:
    """The 80% intervals, for small and for large counts."""
    expected = checks["negative_binomial"].expected
    groups = expected.argsort().tensor_split(10)
    middles = [expected[group].log().mean().exp().item() for group in groups]
    axes.axhline(INTERVAL, color=GREY, linewidth=0.8, zorder=0)
    for name, (_, color) in SHOWN.items():
        covered = [checks[name].is_covered[group].double().mean().item() for group in groups]
        axes.plot(middles, covered, color=color, linewidth=1.4, marker="o", markersize=3)
    axes.set(title="held-out 80% intervals", xlabel="expected count", ylim=(0, 1.01))
    axes.set_ylabel("share of counts inside")
    if middles[-1] > 5 * middles[0]:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")


def draw(study: Study, fits: dict[str, Fit], checks: dict[str, Check], path: Path) -> None:
    set_style()
    plt.rcParams["savefig.dpi"] = 140
    num_columns = math.ceil((len(study.effects) + 2) / 2)
    figure, panels = plt.subplots(2, num_columns, figsize=(3.0 * num_columns, 5.2))
    panels = list(panels.flat)
    for index, (axes, (name, effect)) in enumerate(zip(panels, study.effects.items(), strict=False)):
        draw_effect(axes, fits, name, effect, study.train)
        axes.set_ylabel("factor of the rate" if index % num_columns == 0 else "")
    draw_coverage_by_size(panels[-2], checks)
    draw_calibration(panels[-1], checks)
    for axes in panels[len(study.effects) : -2]:
        axes.set_axis_off()
    handles = [
        plt.Line2D([], [], color=BLUE, linewidth=1.8, label="negative binomial, 95% band"),
        plt.Line2D([], [], color=ORANGE, linewidth=0.8, label="Poisson, ends of its 95% band"),
        plt.Line2D([], [], color=GREY, marker="o", markersize=3, linewidth=0, label="counts without the other effects"),
    ]
    if study.test.log_rate is not None:
        handles.append(plt.Line2D([], [], color=INK, linewidth=1.2, linestyle=DASHED, label="truth"))
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles))
    save_figure(figure, path)


# ---------------------------------------------------------------------------------------------------------- the script


def print_scores(study: Study, results: dict[str, Any]) -> None:
    columns = f"{'ELBO':>12}{'NLPD':>9}{'residual':>10}{'80% cover':>11}{'zeros':>8}{'dispersion':>12}{'s':>7}"
    print(f"\n{'held-out days':<20}{columns}")
    for name, (label, _) in SHOWN.items():
        r = results[name]
        dispersion = f"{r['dispersion']:.4f}" if "dispersion" in r else ""
        print(
            f"{label:<20}{r['elbo']:>12.1f}{r['negative_log_density']:>9.3f}{r['residual_variance']:>10.2f}"
            f"{r['coverage_80']:>11.3f}{r['zeros']:>8.4f}{dispersion:>12}{r['seconds']:>7.1f}"
        )
    zeros = (study.test.y == 0).double().mean().item()
    if "truth" in results:
        r = results["truth"]
        print(
            f"{'the true rate':<20}{'':>12}{r['negative_log_density']:>9.3f}{r['residual_variance']:>10.2f}{'':>19}"
            f"{study.true_dispersion:>12.4f}"
        )
    print(f"{'the counts':<62}{zeros:>8.4f}")
    print("ELBO in nats; NLPD: mean negative log probability of a count; residual: mean of (count - expected)^2 over")
    print("its predicted variance; 80% cover: share of counts in their 80% predictive intervals; zeros: their share")


def print_effects(results: dict[str, Any], has_truth: bool) -> None:
    print(f"\n{'effect on the rate':<20}{'lowest at':>16}{'highest at':>16}{'ratio':>8}   width of the 95% band")
    for name, r in results["negative_binomial"]["effects"].items():
        poisson = results["poisson"]["effects"][name]
        print(
            f"{name:<20}{r['lowest_at']:>16}{r['highest_at']:>16}{r['ratio']:>8.2f}"
            f"   {r['band_width']:.3f}, Poisson {poisson['band_width']:.3f}"
        )
    if not has_truth:
        return
    print(f"\n{'against the truth':<20}{'RMSE':>8}{'95% cover':>11}   Poisson:{'RMSE':>8}{'95% cover':>11}")
    effects = {name: [results[key]["effects"][name] for key in LIKELIHOODS] for name in results["poisson"]["effects"]}
    for name, (poisson, found) in {"log rate": [results[key]["log_rate"] for key in LIKELIHOODS], **effects}.items():
        print(
            f"{name:<20}{found['rmse']:>8.3f}{found['coverage_95']:>11.3f}"
            f"{poisson['rmse']:>19.3f}{poisson['coverage_95']:>11.3f}"
        )


def report(study: Study, path: Path) -> dict[str, Any]:
    print(f"\n{study.title}: {len(study.train.y)} rows for training, {len(study.test.y)} held out")
    for note in study.notes:
        print(note)
    fits = {name: train(study, name) for name in LIKELIHOODS}
    checks = {name: check(fitted, study.test) for name, fitted in fits.items()}
    results = analyse(study, fits, checks)
    print_scores(study, results)
    print_effects(results, has_truth=study.test.log_rate is not None)
    draw(study, fits, checks, path)
    return results


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--data", type=Path, help="folder with bicycles.csv, chicago.csv or both (default: simulate)")
    arguments = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)  # matrices of this size gain nothing from more
    if arguments.data is None:
        study = simulate(42, num_steps=12) if arguments.quick else simulate(182, num_steps=100)
        write_json(report(study, arguments.out / "counts.png"), arguments.json)
        return
    found = {name: read for name, read in READERS.items() if (arguments.data / f"{name}.csv").is_file()}
    for name in READERS:
        if name not in found:
            print(f"{arguments.data / name}.csv is not there: no {name}")
    if not found:
        sys.exit("nothing to fit; leave out --data for simulated counts")
    results = {}
    for name, read in found.items():
        study = read(arguments.data, arguments.quick)
        results[name] = report(study, arguments.out / f"counts_{name}.png")
    write_json(results, arguments.json)


if __name__ == "__main__":
    main()
