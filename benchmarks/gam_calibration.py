"""
Claim: what the estimators say of their uncertainty is true, by their public methods and with their defaults.

    python benchmarks/gam_calibration.py [--sections curve integration noise units levels draws mgcv] [--data FOLDER]
        [--json FILE]

- curve: y = sin 6x + N(0, .25^2), 2000 rows. Intervals of new observations and bands of the function hold what they
  should as often as they say, pointwise and as whole curves. A sine is smoother than what a Matern kernel expects, so
  that bands are too wide for it; over curves that are as rough as the kernel says, they have to be right.
- integration: hyperparameters integrated out against point estimates, in tables of 50, 100 and 200 rows with four
  effects: a sine, a random curve, nearly a line, and none at all. Coverage of bands of the effects and of intervals,
  the interval score of the bands, and the log score of further rows; for normal responses and for labels. Wider bands
  hold more: the interval score (Gneiting and Raftery, 2007), which is lower for better bands, tells whether it pays.
- noise: of twenty columns, five have effects. All other terms, interactions that the fit finds included, get next to no
  share of the variance, and the p-values of the summary call few of them effects.
- units: columns and responses in other units, shifted far from zero, give the same fit.
- levels: a random effect of 200 names, of which 50 are unseen when predicting.
- draws: functions drawn from the posterior have its moments, at, between and beyond the data.
- mgcv: its effects on wage, chicago and bicycles lie inside our bands (needs R with mgcv, and the files in --data).

Standard errors are those over the repetitions; a verdict takes the number as it is.
"""

from __future__ import annotations

import math
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from _common import describe_environment, print_table, script_parser, write_json

from gpytorch_gam.gam import GAMClassifier, GAMRegressor, f, fs, re, s, te
from gpytorch_gam.gam.fitted import alone


class Finding(NamedTuple):
    """A number that was found, and the range in which it should be."""

    claim: str
    value: float
    low: float
    high: float
    error: float | None = None  # standard error of the value

    @property
    def holds(self) -> bool:
        return self.low <= self.value <= self.high


class Sizes(NamedTuple):
    """How often things are repeated, and with how many rows."""

    curves: int
    curve_rows: int
    noise_fits: int
    noise_rows: int
    level_fits: int
    num_draws: int
    draw_rows: int
    small_tables: int
    small_rows: tuple[int, ...]


FULL = Sizes(200, 2000, 60, 500, 10, 1000, 1500, 20, (50, 100, 200))
QUICK = Sizes(1, 60, 1, 60, 1, 50, 60, 1, (50,))

Section = Callable[[Sizes, Path], Iterator[Finding]]


def mean_finding(claim: str, values: Sequence[float], low: float, high: float) -> Finding:
    """The mean of independent repetitions, with its standard error."""
    error = float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else None
    return Finding(claim, float(np.mean(values)), low, high, error)


def is_inside(values: np.ndarray, low: Any, high: Any) -> np.ndarray:
    return (np.asarray(low) <= values) & (values <= np.asarray(high))


def interval_score(values: np.ndarray, low: Any, high: Any, level: float) -> np.ndarray:
    """The width of central intervals, plus what values are outside of them over half of their tail probability."""
    low, high = np.asarray(low), np.asarray(high)
    outside = np.maximum(low - values, 0.0) + np.maximum(values - high, 0.0)
    return high - low + 2.0 / (1.0 - level) * outside


# -------------------------------------------------------------------------------------------------------------- a curve


def curve(sizes: Sizes, folder: Path) -> Iterator[Finding]:
    """One curve in many samples; then one sample of each of many curves, over which Bayesian bands are right."""
    yield from coverage("sin 6x", lambda random: lambda x: np.sin(6.0 * x), sizes.curves, sizes.curve_rows)
    yield from coverage("random curves", random_curve, sizes.curves, sizes.curve_rows // 4)


def random_curve(random: np.random.Generator) -> Callable[[Any], np.ndarray]:
    """A function with the spectrum of a Matern kernel of smoothness 5/2 and lengthscale .3."""
    frequencies, phases = random.standard_t(5, 300) / 0.3, random.uniform(0, 2 * np.pi, 300)
    return lambda x: np.cos(np.multiply.outer(np.asarray(x), frequencies) + phases).sum(-1) * math.sqrt(2 / 300)


def coverage(
    name: str, draw: Callable[[np.random.Generator], Callable[[Any], np.ndarray]], repeats: int, num_rows: int
) -> Iterator[Finding]:
    """How often intervals hold what they should."""
    targets = {
        "80% intervals hold new observations": (0.78, 0.82),
        "95% intervals hold new observations": (0.94, 0.96),
        "95% intervals hold the function, pointwise": (0.93, 0.97),
        "95% bands hold the effect, pointwise": (0.93, 0.97),
        "95% simultaneous bands hold the whole effect": (0.93, 0.97),
    }
    held = [[float(np.mean(each)) for each in _held(draw, seed, num_rows)] for seed in range(repeats)]
    for (claim, (low, high)), values in zip(targets.items(), zip(*held, strict=True), strict=True):
        yield mean_finding(f"{name}, {claim}", values, low, high)


def _held(
    draw: Callable[[np.random.Generator], Callable[[Any], np.ndarray]], seed: int, num_rows: int
) -> Iterator[np.ndarray | bool]:
    """What the intervals of one fit hold, in the order of the targets."""
    random = np.random.default_rng(seed)
    truth = draw(random)
    table, fresh = (pd.DataFrame({"x": random.random(num_rows)}) for _ in range(2))
    y, y_fresh = (truth(each.x) + 0.25 * random.standard_normal(num_rows) for each in (table, fresh))
    gam = GAMRegressor([s("x")]).fit(table, y)
    for level in (0.8, 0.95):
        yield is_inside(y_fresh, *gam.observation_interval(fresh, level).T)
    grid = gam.effect("s(x)", simultaneous=True)
    yield is_inside(truth(grid.x), *gam.mean_interval(grid[["x"]]).T)
    effect = truth(grid.x) - truth(table.x).mean()
    yield is_inside(effect, grid.lower, grid.upper)
    yield bool(is_inside(effect, grid.lower_all, grid.upper_all).all())


# ------------------------------------------------------------------------------------ hyperparameters integrated or not


def integration(sizes: Sizes, folder: Path) -> Iterator[Finding]:
    """What integration gains over the same fit with point estimates."""
    for estimator, response in ((GAMRegressor, "numbers"), (GAMClassifier, "labels")):
        for num_rows in sizes.small_rows:
            pairs = [_small_table(estimator, seed, num_rows) for seed in range(sizes.small_tables)]
            yield from _gains(f"{num_rows} {response}", pairs)


def _gains(name: str, pairs: Sequence[tuple[Measures, Measures]]) -> Iterator[Finding]:
    """What holds with hyperparameters integrated out, and how much better that is than point estimates."""
    for claim in pairs[0][0]:
        ours, points = (np.array([each[claim] for each in side]) for side in zip(*pairs, strict=True))
        if claim == "log score":
            yield mean_finding(f"{name}, log score gained, thousandths of a nat", 1000 * (ours - points), 0.0, 100.0)
        elif claim == "interval score":
            yield mean_finding(
                f"{name}, interval score of 95% bands: less than at point estimates", points - ours, 0.0, 10.0
            )
        else:
            level = float(claim.partition("%")[0]) / 100
            yield mean_finding(f"{name}, {claim}", ours, level - 0.03, level + 0.03)
            yield mean_finding(f"{name}, {claim}: more than at point estimates", ours - points, 0.0, 1.0)


Measures = dict[str, float]


def _small_table(estimator: type, seed: int, num_rows: int) -> tuple[Measures, Measures]:
    """What the bands and intervals of one fit hold, with its hyperparameters integrated out and at their estimates."""
    random = np.random.default_rng(seed)
    effects, is_labels = _small_truth(random), estimator is GAMClassifier
    table, fresh = (pd.DataFrame({name: random.random(size) for name in effects}) for size in (num_rows, 500))
    predictors = [sum(effect(rows[name]) for name, effect in effects.items()) for rows in (table, fresh)]
    y, y_fresh = (_responses(random, each, is_labels) for each in predictors)
    gam = estimator([s(name) for name in effects]).fit(table, y)
    mean = 1 / (1 + np.exp(-predictors[1])) if is_labels else predictors[1]
    return tuple(_measures(each, effects, table, fresh, mean, y_fresh) for each in (gam, _at_estimates(gam)))


def _measures(
    gam: Any, effects: Effects, table: pd.DataFrame, fresh: pd.DataFrame, mean: np.ndarray, y_fresh: np.ndarray
) -> Measures:
    found, is_labels = {}, isinstance(gam, GAMClassifier)
    for level in (0.9, 0.95):
        grids = {name: gam.effect(f"s({name})", num=30, level=level) for name in effects}
        truths = {name: effects[name](grid[name]) - effects[name](table[name]).mean() for name, grid in grids.items()}
        inside = [is_inside(truths[name], grid.lower, grid.upper) for name, grid in grids.items()]
        interval = (gam.probability_interval if is_labels else gam.mean_interval)(fresh, level)
        found[f"{level:.0%} bands hold the effects"] = float(np.mean(inside))
        found[f"{level:.0%} intervals hold the mean"] = float(is_inside(mean, *interval.T).mean())
        if not is_labels:
            interval = gam.observation_interval(fresh, level)
            found[f"{level:.0%} intervals hold new observations"] = float(is_inside(y_fresh, *interval.T).mean())
    scores = [interval_score(truths[name], grid.lower, grid.upper, 0.95) for name, grid in grids.items()]
    return {**found, "interval score": float(np.mean(scores)), "log score": gam.log_score(fresh, y_fresh)}


Effects = dict[str, Callable[[Any], np.ndarray]]


def _small_truth(random: np.random.Generator) -> Effects:
    drawn, bend = random_curve(random), random.normal(0.0, 0.3)
    return {
        "sine": lambda x: np.sin(6.0 * np.asarray(x)),
        "drawn": drawn,
        "line": lambda x: np.asarray(x) + bend * np.asarray(x) ** 2,
        "none": lambda x: np.zeros(len(x)),
    }


def _responses(random: np.random.Generator, predictor: Any, is_labels: bool) -> np.ndarray:
    if is_labels:
        return random.random(len(predictor)) < 1 / (1 + np.exp(-np.asarray(predictor)))
    return np.asarray(predictor) + 0.5 * random.standard_normal(len(predictor))


def _at_estimates(gam: Any) -> Any:
    """The same fit, whose hyperparameters are taken as known."""
    fitted, point = gam._fitted, copy(gam)
    point._fitted = replace(fitted, mixture=alone(fitted.model, fitted.likelihood))
    return point


# -------------------------------------------------------------------------------------------------------- noise columns


def noise(sizes: Sizes, folder: Path) -> Iterator[Finding]:
    useful, names = 5, [f"x{index}" for index in range(20)]
    labels = [f"s({name})" for name in names]
    shares, alarms, power = [], [], []
    for seed in range(sizes.noise_fits):
        random = np.random.default_rng(seed)
        table = pd.DataFrame(random.random((sizes.noise_rows, len(names))), columns=names)
        a, b, c, d, e = (table[name] for name in names[:useful])
        y = np.sin(6 * a) + 6 * (b - 0.5) ** 2 + np.exp(c) + 2 * (d - 0.5).abs() + e
        y = y + 0.5 * random.standard_normal(len(table))
        terms = GAMRegressor().fit(table, y).summary().terms
        true, others = terms.loc[labels[:useful]], terms.drop(index=labels[:useful])
        shares.append(others.share.sum())
        alarms.append((others.p <= 0.05).mean())
        power.append((true.p <= 0.05).mean())
    yield mean_finding("share of the variance of fifteen noise columns", shares, 0.0, 0.01)
    yield mean_finding("false alarms at the 5% level", alarms, 0.0, 0.08)
    yield mean_finding("five effects that are found at the 5% level", power, 0.99, 1.0)


# ---------------------------------------------------------------------------------------------------------- other units


def units(sizes: Sizes, folder: Path) -> Iterator[Finding]:
    random = np.random.default_rng(0)
    x, z = random.random((2, sizes.noise_rows))
    y = np.sin(6 * x) + z + 0.25 * random.standard_normal(len(x))
    start, years = 1.7e9, 3.0e7
    others: dict[str, tuple[Callable[[np.ndarray], np.ndarray], Callable[[np.ndarray], np.ndarray]]] = {
        "x times 1e6": (lambda v: 1e6 * v, lambda v: v),
        "x times 1e-3": (lambda v: 1e-3 * v, lambda v: v),
        "x is 1e6 + 1e3 x": (lambda v: 1e6 + 1e3 * v, lambda v: v),
        "x in unix seconds": (lambda v: start + years * v, lambda v: v),
        "y times 1e6, plus 1e7": (lambda v: v, lambda v: 1e6 * v + 1e7),
        "x and y times 1e6 and shifted": (lambda v: 1e6 * v - 4e6, lambda v: 1e6 * v + 1e7),
    }
    same = _standardised(x, z, y, lambda v: v, lambda v: v)
    for name, (of_x, of_y) in others.items():
        other = _standardised(x, z, y, of_x, of_y)
        difference = (other[0] - same[0]).abs() / same[1], (other[1] / same[1] - 1.0).abs()
        largest = float(max(each.to_numpy().max() for each in difference))
        yield Finding(f"{name}: largest difference in standard deviations", largest, 0.0, 0.01)


def _standardised(
    x: np.ndarray,
    z: np.ndarray,
    y: np.ndarray,
    of_x: Callable[[np.ndarray], np.ndarray],
    of_y: Callable[[np.ndarray], np.ndarray],
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Means and standard deviations of the effects in the rows, in units of the standard deviation of y."""
    table = pd.DataFrame({"x": of_x(x), "z": z})
    response = of_y(y)
    found = GAMRegressor([s("x"), s("z")]).fit(table, response).predict_terms(table) / response.std()
    return found.xs("mean", axis=1, level=1), found.xs("std", axis=1, level=1)


# --------------------------------------------------------------------------------------------------------------- levels


def levels(sizes: Sizes, folder: Path) -> Iterator[Finding]:
    names = np.array([f"site {number}" for number in range(200)])
    seen, unseen, finite = [], [], []
    for seed in range(sizes.level_fits):
        random = np.random.default_rng(seed)
        level = random.permutation(np.repeat(np.arange(200), 5))
        effect = 0.5 * random.standard_normal(200)
        table = pd.DataFrame({"x": random.random(len(level)), "site": names[level]})
        y = np.sin(6 * table.x) + effect[level] + 0.25 * random.standard_normal(len(level))
        is_fitted = level < 150
        gam = GAMRegressor([s("x"), re("site")]).fit(table[is_fitted], y[is_fitted])
        one = pd.DataFrame({"x": random.random(200), "site": names})
        intervals = gam.mean_interval(one)
        inside = is_inside(np.sin(6 * one.x) + effect, *intervals.T)
        seen.append(inside[:150].mean())
        unseen.append(inside[150:].mean())
        finite.append(float(np.isfinite(intervals).all()))
    yield mean_finding("95% intervals hold the means of 150 levels of the fit", seen, 0.93, 0.97)
    yield mean_finding("95% intervals hold the means of 50 unseen levels", unseen, 0.93, 0.97)
    yield mean_finding("intervals are finite", finite, 1.0, 1.0)


# ---------------------------------------------------------------------------------------------------------------- draws


def draws(sizes: Sizes, folder: Path) -> Iterator[Finding]:
    """Of all kinds of terms: at some rows of the data, far outside of it, and at levels that the fit has not seen."""
    random = np.random.default_rng(0)
    num_rows = sizes.draw_rows
    table = pd.DataFrame(
        {
            "a": random.random(num_rows),
            "hour": 24 * random.random(num_rows),
            "lon": random.random(num_rows),
            "lat": random.random(num_rows),
            "t": random.random(num_rows),
            "group": np.array(["a", "b", "c"])[random.integers(3, size=num_rows)],
            "site": random.integers(20, size=num_rows).astype(str),
        }
    )
    y = (
        np.sin(6 * table.a)
        + np.cos(table.hour / 4)
        + table.lon * table.lat
        + np.sin(3 * table.t) * (table.group == "a")
    )
    y += 0.3 * random.standard_normal(num_rows)
    terms = [s("a"), s("hour", period=24), te("lon", "lat", k=5), fs("t", "site", k=5), f("group")]
    gam = GAMRegressor([*terms, re("group", by="a")]).fit(table, y)
    outside = table.head(20).assign(a=np.linspace(-2, 3, 20), lon=np.linspace(-1, 2, 20), t=np.linspace(-1, 2, 20))
    rows = pd.concat([table.head(40), outside, table.head(20).assign(site="new")], ignore_index=True)
    functions = gam.draw_functions(sizes.num_draws, random_state=0)
    parts, total = functions.terms(rows), functions(rows)
    gap = float(np.abs(sum(parts.values()) + functions.intercept()[:, None] - total).max())
    found = {"the function": (total, *gam.predict_link(rows, return_std=True))}
    moments = gam.predict_terms(rows)
    found |= {label: (values, *(moments[label][name] for name in ("mean", "std"))) for label, values in parts.items()}
    for label, (values, mean, std) in found.items():
        varies = np.asarray(std) > 1e-6  # what is zero for certain has no standard error
        own, width = (values - values.mean(0))[:, varies], np.asarray(std)[varies]
        kurtosis = (own**4).mean(0) / (own**2).mean(0) ** 2  # not 3, as hyperparameters are uncertain
        in_mean = np.abs(values.mean(0) - mean)[varies] / width * math.sqrt(len(values))
        in_std = np.abs(np.log(own.std(0) / width)) / np.sqrt((kurtosis - 1) / (4 * len(values)))
        within = float(np.mean(np.concatenate([in_mean, in_std]) <= 3.0))
        yield Finding(f"moments within 3 standard errors: {label}", within, 0.98, 1.0)
    yield Finding("largest difference between the sum of the parts and the function", gap, 0.0, 1e-6)


# ----------------------------------------------------------------------------------------------------------------- mgcv

MGCV = """
suppressMessages(library(mgcv))
folder <- commandArgs(trailingOnly = TRUE)[1]
told <- readLines(file.path(folder, "told"))
rows <- read.csv(file.path(folder, "rows.csv"), stringsAsFactors = TRUE)
fit <- gam(as.formula(told[1]), eval(parse(text = told[2])), rows, knots = eval(parse(text = told[3])), method = "REML")
for (name in told[-(1:3)]) {
  grid <- read.csv(file.path(folder, paste0(name, ".csv")))
  new <- rows[rep(1, nrow(grid)), ]
  new[[name]] <- grid[[name]]
  found <- predict(fit, new, type = "terms", terms = paste0("s(", name, ")"), se.fit = TRUE)
  write.csv(data.frame(mean = c(found$fit), std = c(found$se.fit)), file.path(folder, paste0(name, ".csv")))
}
"""

# The widths of two bands are alike if neither is wider than the other by more than this factor.
MOST_UNLIKE = 1.5


class Model(NamedTuple):
    """A table, and one model of it in two languages."""

    rows: pd.DataFrame
    ours: str
    theirs: str
    family: str = "gaussian"
    their_family: str = "gaussian()"
    curves: tuple[str, ...] = ()
    periods: tuple[str, ...] = ()  # of the curves, those with a period: the two centre these differently
    knots: str = "NULL"


def wage(folder: Path) -> Model:
    categories = "education + jobclass + maritl"
    rows = pd.read_csv(folder / "wage.csv")[["wage", "age", "year", "education", "jobclass", "maritl"]]
    ours = "wage ~ s(age) + s(year) + f(education) + f(jobclass) + f(maritl)"
    return Model(rows, ours, f"wage ~ s(age) + s(year, k = 5) + {categories}", curves=("age", "year"))


def chicago(folder: Path) -> Model:
    names = ["death", "time", "tmpd", "o3median", "pm10median"]
    rows = pd.read_csv(folder / "chicago.csv")[names].dropna()
    others = "s(tmpd) + s(o3median) + s(pm10median)"
    ours, theirs = f"death ~ s(time, k=60) + {others}", f'death ~ s(time, k = 60, bs = "cr") + {others}'
    return Model(rows, ours, theirs, "negative_binomial", "nb()", tuple(names[1:]))


def bicycles(folder: Path) -> Model:
    table = pd.read_csv(folder / "bicycles.csv", nrows=5000).dropna()
    dates = pd.to_datetime(table.date)
    hour, weekday = table.time.str[:2].astype(float), dates.dt.day_name()
    day = (dates - dates.min()).dt.days.astype(float)
    rows = pd.DataFrame(
        {
            "count": table["count"],
            "hour": hour,
            "weekday": weekday,
            "day": day,
            "temperature": table.average_temperature,
        }
    )
    ours = "count ~ s(hour, period=24) + f(weekday) + s(day) + s(temperature)"
    theirs = 'count ~ s(hour, bs = "cc", k = 20) + weekday + s(day, k = 40) + s(temperature)'
    curves, knots = ("hour", "day", "temperature"), "list(hour = c(0, 24))"
    return Model(rows, ours, theirs, "negative_binomial", "nb()", curves, ("hour",), knots)


def mgcv(sizes: Sizes, folder: Path) -> Iterator[Finding]:
    models = {"wage": wage, "chicago": chicago, "bicycles": bicycles}
    if shutil.which("Rscript") is None:
        print("mgcv: there is no Rscript")
        return
    for name, read in models.items():
        if not (folder / f"{name}.csv").exists():
            print(f"mgcv: there is no file {folder / name}.csv: say where it is with --data")
            continue
        model = read(folder)
        gam = GAMRegressor(model.ours, family=model.family).fit(model.rows)
        effects = {curve: gam.effect(_label(gam, curve)) for curve in model.curves}
        theirs = effects_of_mgcv(model, effects)
        inside, like = [], []
        for curve, own in effects.items():
            other = theirs[curve]
            shift = (own["mean"] - other["mean"]).mean() if curve in model.periods else 0.0
            inside.append(is_inside(other["mean"] + shift, own.lower, own.upper))
            like.append(np.abs(np.log(other["std"] / own["std"])) <= math.log(MOST_UNLIKE))
            print(f"mgcv, {name}, {curve}: {like[-1].mean():.2f} of bands alike, {inside[-1].mean():.2f} of all inside")
        share = float(np.concatenate(inside)[np.concatenate(like)].mean())
        yield Finding(f"{name}: mgcv's effects inside bands, where these are alike", share, 0.9, 1.0)


def _label(gam: GAMRegressor, curve: str) -> str:
    """The label of the smooth term of a column."""
    return next(label for label in gam.terms_ if label.startswith(f"s({curve}"))


def effects_of_mgcv(model: Model, grids: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Means and standard deviations of the curves of the same model in mgcv on grids of their columns."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        told = [model.theirs, model.their_family, model.knots, *grids]
        (folder / "told").write_text("\n".join(told) + "\n")
        (folder / "fit.R").write_text(MGCV)
        model.rows.to_csv(folder / "rows.csv", index=False)
        for curve, grid in grids.items():
            grid[[curve]].to_csv(folder / f"{curve}.csv", index=False)
        subprocess.run(["Rscript", str(folder / "fit.R"), name], check=True)
        return {curve: pd.read_csv(folder / f"{curve}.csv") for curve in grids}


# -------------------------------------------------------------------------------------------------------------- script

SECTIONS: dict[str, Section] = {
    "curve": curve,
    "integration": integration,
    "noise": noise,
    "units": units,
    "levels": levels,
    "draws": draws,
    "mgcv": mgcv,
}


def main(argv: Sequence[str] | None = None) -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--sections", nargs="+", choices=list(SECTIONS), default=list(SECTIONS))
    parser.add_argument(
        "--data", type=Path, default=Path("../shared/data"), help="folder with the files of mgcv's part"
    )
    arguments = parser.parse_args(argv)
    environment = describe_environment(torch.device("cpu"))
    sizes = QUICK if arguments.quick else FULL
    findings = {name: list(SECTIONS[name](sizes, arguments.data)) for name in arguments.sections}
    print_table(
        ["what", "found", "s.e.", "target", "holds"],
        [
            [
                f"{name}: {each.claim}",
                f"{each.value:.3g}",
                "" if each.error is None else f"{each.error:.2g}",
                f"{each.low:g} to {each.high:g}",
                "yes" if each.holds else "no",
            ]
            for name, found in findings.items()
            for each in found
        ],
    )
    records = {name: [{**each._asdict(), "holds": each.holds} for each in found] for name, found in findings.items()}
    write_json(arguments.json, {"environment": environment, "sizes": sizes._asdict(), "findings": records})


if __name__ == "__main__":
    main()
