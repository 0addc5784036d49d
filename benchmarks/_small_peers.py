"""Fits of a set of `small_data.py` by this package, mgcv and pyGAM, each as its users write them."""

from __future__ import annotations

import statistics
import subprocess
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gpytorch
import numpy as np
import pandas as pd
import torch
from _small_sets import TARGET, DataSet, Split, Term, inputs, make_model, responses
from gpytorch.kernels import PeriodicKernel
from torch import Tensor

from gpytorch_gam.training import fit, start_from_responses

# Ranges of random starts: lengthscales in ranges of their columns, factors of variances, and of noise and the like.
LENGTHSCALES, VARIANCES, OTHERS = (0.05, 2.0), (0.01, 100.0), (0.1, 10.0)

MGCV = """
suppressMessages(library(mgcv))
arguments <- commandArgs(trailingOnly = TRUE)
folder <- arguments[1]; family <- eval(parse(text = arguments[2])); discrete <- arguments[3] == "bam"
repeats <- as.integer(arguments[4]); num_splits <- as.integer(arguments[5])
formula <- lapply(readLines(file.path(folder, "formula")), as.formula)
if (length(formula) == 1) formula <- formula[[1]]
periods <- read.csv(file.path(folder, "periods.csv"))
knots <- lapply(split(periods$period, periods$column), function(period) c(0, period))
levels <- read.csv(file.path(folder, "levels.csv"))
read <- function(name) {
  rows <- read.csv(file.path(folder, name))
  for (i in seq_len(nrow(levels))) {
    column <- levels$column[i]
    rows[[column]] <- factor(rows[[column]], seq_len(levels$number[i]) - 1)
  }
  rows
}
fitted <- function(rows) {
  if (discrete) bam(formula, family = family, data = rows, knots = knots, discrete = TRUE, nthreads = 1)
  else gam(formula, family = family, data = rows, knots = knots, method = "REML")
}
density <- function(fit, rows) {
  y <- rows$target
  link <- predict(fit, rows, se.fit = TRUE)
  mean <- predict(fit, rows, type = "response")
  if (family$family == "gaussian") return(cbind(mean, dnorm(y, mean, sqrt(link$se.fit^2 + fit$sig2), log = TRUE)))
  if (family$family == "gaulss") return(cbind(mean[, 1], dnorm(y, mean[, 1], 1 / mean[, 2], log = TRUE)))
  if (family$family == "poisson") return(cbind(mean, dpois(y, mean, log = TRUE)))
  if (family$family == "binomial") return(cbind(mean, dbinom(y, 1, mean, log = TRUE)))
  cbind(mean, dnbinom(y, size = fit$family$getTheta(TRUE), mu = mean, log = TRUE))
}
whole <- read("whole.csv")
seconds <- t(sapply(seq_len(repeats), function(i) {
  taken <- system.time(fitted(whole))
  c(taken[["elapsed"]], taken[["user.self"]] + taken[["sys.self"]])
}))
write.csv(seconds, file.path(folder, "seconds.csv"), row.names = FALSE)
for (i in seq_len(num_splits)) {
  found <- density(fitted(read(paste0("train", i, ".csv"))), read(paste0("test", i, ".csv")))
  write.csv(found, file.path(folder, paste0("found", i, ".csv")), row.names = FALSE)
}
"""


@dataclass
class Fits:
    """
    What a peer took and found.

    :ivar seconds: on the clock, of each fit to all rows.
    :ivar processor_seconds: of the processor.
    :ivar rmse: root of the mean squared error of held-out rows, a split.
    :ivar nll: mean negative log predictive density of held-out rows in nats, a split.
    :ivar details: of our fit to all rows.
    """

    seconds: list[float] = field(default_factory=list)
    processor_seconds: list[float] = field(default_factory=list)
    rmse: list[float] = field(default_factory=list)
    nll: list[float] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)

    def add_time(self, start: tuple[float, float]) -> None:
        self.seconds.append(time.perf_counter() - start[0])
        self.processor_seconds.append(time.process_time() - start[1])

    def add_scores(self, split: Split, mean: np.ndarray, log_density: np.ndarray) -> None:
        y = split.test[TARGET].to_numpy()
        self.rmse.append(float(np.sqrt(np.mean((y - mean) ** 2))))
        self.nll.append(float(-np.mean(log_density)))

    @property
    def summary(self) -> dict[str, float]:
        found = {"seconds": statistics.median(self.seconds)}
        found["processor_seconds"] = statistics.median(self.processor_seconds)
        if self.nll:
            found |= {"rmse": statistics.mean(self.rmse), "nll": statistics.mean(self.nll)}
        return found


def now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


# -------------------------------------------------------------------------------------------------------------- ours


def fit_ours(data_set: DataSet, repeats: int, num_folds: int) -> Fits:
    """From raw tensors to a model that predicts: terms, starting values, hyperparameters, posterior."""
    fits = Fits()
    whole = data_set.whole()
    x, y = inputs(data_set, whole), responses(whole)
    for _ in range(repeats):
        start = now()
        model, likelihood = make_model(data_set, x)
        result = fit(model, likelihood, (x, y))
        fits.add_time(start)
    fits.details = details_of(result)
    for split in data_set.splits(num_folds):
        x = inputs(data_set, split.train)
        model, likelihood = make_model(data_set, x)
        fit(model, likelihood, (x, responses(split.train)))
        with torch.no_grad():
            found = model(inputs(data_set, split.test))
            log_density = likelihood.log_marginal(responses(split.test), found)
            mean = likelihood(found).mean
        fits.add_scores(split, mean.numpy(), log_density.numpy())
    return fits


def fit_from_random_starts(data_set: DataSet, num_starts: int) -> list[dict[str, Any]]:
    """Our fits to all rows from random hyperparameters: seconds, and what each says about itself."""
    whole = data_set.whole()
    x, y = inputs(data_set, whole), responses(whole)
    found = []
    for seed in range(num_starts):
        model, likelihood = make_model(data_set, x)
        start_from_responses(model, likelihood, [(x, y)])
        randomise([model, likelihood], np.random.RandomState(seed))
        start = time.process_time()
        result = fit(model, likelihood, (x, y))
        found.append({"processor_seconds": time.process_time() - start, **details_of(result)})
    return found


@torch.no_grad()
def randomise(modules: Sequence[gpytorch.Module], generator: np.random.RandomState) -> None:
    """Move every trainable hyperparameter that has a constraint to a random value."""
    for module in modules:
        for name, raw, constraint in module.named_parameters_and_constraints():
            if constraint is None or not raw.requires_grad:
                continue
            owner, _, own_name = name.rpartition(".")
            value = constraint.transform(raw)
            if own_name == "raw_lengthscale":
                # Bounds of lengthscales end at ten ranges. Those of periodic kernels are squares.
                power = 2.0 if isinstance(module.get_submodule(owner), PeriodicKernel) else 1.0
                value = constraint.upper_bound * (_draw(generator, raw, LENGTHSCALES) / 10.0) ** power
            elif own_name in ("raw_outputscale", "raw_variance", "raw_constant"):
                value = value * _draw(generator, raw, VARIANCES)
            else:
                value = value * _draw(generator, raw, OTHERS)
            raw.copy_(constraint.inverse_transform(value.clamp(constraint.lower_bound, constraint.upper_bound)))


def _draw(generator: np.random.RandomState, like: Tensor, ends: tuple[float, float]) -> Tensor:
    low, high = np.log(ends)
    return torch.from_numpy(np.exp(generator.uniform(low, high, tuple(like.shape)))).to(like)


def details_of(result: Any) -> dict[str, Any]:
    """What a fit says about itself."""
    names = (
        "method",
        "bound",
        "open",
        "gradient",
        "converged",
        "stopped",
        "evaluations",
        "passes",
        "at_bounds",
        "switched_off",
    )
    return {name: getattr(result, name) for name in (*names, "messages")}


# -------------------------------------------------------------------------------------------------------------- mgcv


def formula(terms: list[Term], target: str) -> str:
    """A formula of mgcv."""
    return f"{target} ~ {' + '.join(map(_term_of_mgcv, terms))}"


def _term_of_mgcv(term: Term) -> str:
    size = "" if term.size is None else f", k = {term.size}"
    name = ", ".join(term.columns)
    if term.kind == "factor":
        return name
    if term.kind == "tensor":
        return f"ti({name}{size})"
    if term.kind == "cyclic":
        return f's({name}, bs = "cc"{size})'
    # Thin plates need an eigendecomposition, for which large bases are too slow: the manual suggests cubic splines.
    basis = ', bs = "cr"' if term.size is not None and term.size > 50 else ""
    return f"s({name}{basis}{size})"


def fit_mgcv(data_set: DataSet, repeats: int, num_folds: int) -> Fits:
    """By ``gam`` or ``bam``; of R only the call that fits is timed."""
    splits = list(data_set.splits(num_folds))
    formulas = [formula(data_set.terms, TARGET)]
    if data_set.scale_terms:
        formulas.append(formula(data_set.scale_terms, ""))
    terms = [*data_set.terms, *data_set.scale_terms]
    levels = [(t.columns[0], data_set.num_levels(t.columns[0])) for t in terms if t.kind == "factor"]
    periods = [(t.columns[0], t.period) for t in terms if t.kind == "cyclic"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "formula").write_text("\n".join(formulas) + "\n")
        pd.DataFrame(levels, columns=["column", "number"]).to_csv(folder / "levels.csv", index=False)
        pd.DataFrame(periods, columns=["column", "period"]).to_csv(folder / "periods.csv", index=False)
        data_set.whole().to_csv(folder / "whole.csv", index=False)
        for i, split in enumerate(splits, start=1):
            split.train.to_csv(folder / f"train{i}.csv", index=False)
            split.test.to_csv(folder / f"test{i}.csv", index=False)
        (folder / "fit.R").write_text(MGCV)
        kind = "bam" if data_set.is_for_bam else "gam"
        options = [name, data_set.distribution.mgcv, kind, str(repeats), str(len(splits))]
        subprocess.run(["Rscript", str(folder / "fit.R"), *options], check=True)
        seconds = pd.read_csv(folder / "seconds.csv").to_numpy()
        fits = Fits(seconds[:, 0].tolist(), seconds[:, 1].tolist())
        for i, split in enumerate(splits, start=1):
            fits.add_scores(split, *pd.read_csv(folder / f"found{i}.csv").to_numpy().T)
    return fits


# ------------------------------------------------------------------------------------------------------------- pyGAM


def fit_pygam(data_set: DataSet, repeats: int, num_folds: int) -> Fits | None:
    """With the penalty that its grid search over one for all terms finds; None where it has no such distribution."""
    name = data_set.distribution.pygam
    if name is None:
        return None
    fits = Fits()
    whole = data_set.whole()
    for _ in range(repeats):
        start = now()
        _fit_pygam(data_set, name, whole)
        fits.add_time(start)
    for split in data_set.splits(num_folds):
        found = _fit_pygam(data_set, name, split.train)
        x, y = split.test[data_set.columns].to_numpy(float), split.test[TARGET].to_numpy()
        mean = found.predict_mu(x)
        if name == "LinearGAM":
            low, high = found.prediction_intervals(x, quantiles=[0.158655254, 0.841344746]).T
            log_density = -0.5 * ((y - mean) / (0.5 * (high - low))) ** 2 - np.log(
                0.5 * (high - low) * np.sqrt(2 * np.pi)
            )
        else:
            log_density = found.distribution.log_pdf(y, mean)
        fits.add_scores(split, mean, log_density)
    return fits


def _fit_pygam(data_set: DataSet, name: str, table: pd.DataFrame) -> Any:
    import pygam

    terms = [_term_of_pygam(data_set, term) for term in data_set.terms]
    gam = getattr(pygam, name)(sum(terms[1:], terms[0]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return gam.gridsearch(table[data_set.columns].to_numpy(float), table[TARGET].to_numpy(), progress=False)


def _term_of_pygam(data_set: DataSet, term: Term) -> Any:
    import pygam

    columns = [data_set.columns.index(column) for column in term.columns]
    size = {} if term.size is None else {"n_splines": max(term.size, 5)}
    if term.kind == "factor":
        return pygam.f(*columns)
    if term.kind == "tensor":
        return pygam.te(*columns, n_splines=5)
    if term.kind == "cyclic":
        return pygam.s(*columns, basis="cp", edge_knots=[0.0, term.period], **size)
    return pygam.s(*columns, **size)
