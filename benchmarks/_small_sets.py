"""The sets of `small_data.py`: their tables, and one specification of terms from which every peer's model is made."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import gpytorch
import numpy as np
import pandas as pd
import torch
from gpytorch.likelihoods import Likelihood
from torch import Tensor
from vs_bam import draw as draw_friedman

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup
from gpytorch_gam.likelihoods import (
    BinomialLikelihood,
    GaussianLocationScaleLikelihood,
    NegativeBinomialLikelihood,
    PoissonLikelihood,
)
from gpytorch_gam.terms import constant, cyclic, factor, smooth, tensor

TARGET = "target"

# Rows of a fold are those of a contiguous part of this permutation (../shared/data/README.md).
PERMUTATION_SEED = 4


class Term(NamedTuple):
    """
    A term of an additive predictor.

    :ivar kind: ``smooth``, ``cyclic``, ``factor``, or ``tensor``: the pure interaction of two columns.
    :ivar columns: names in the table.
    :ivar size: number of basis functions or inducing points; None for the default of each package.
    :ivar period: of a cyclic term.
    """

    kind: str
    columns: tuple[str, ...]
    size: int | None = None
    period: float = 0.0


def smooths(*names: str, size: int | None = None) -> list[Term]:
    return [Term("smooth", (name,), size) for name in names]


def factors(*names: str) -> list[Term]:
    return [Term("factor", (name,)) for name in names]


class Family(NamedTuple):
    """How packages call a distribution of responses; None where there is none."""

    likelihood: Callable[[], Likelihood]
    mgcv: str
    pygam: str | None
    is_continuous: bool = False


FAMILIES = {
    "gaussian": Family(gpytorch.likelihoods.GaussianLikelihood, "gaussian()", "LinearGAM", True),
    "location-scale": Family(GaussianLocationScaleLikelihood, "gaulss()", None, True),
    "poisson": Family(PoissonLikelihood, "poisson()", "PoissonGAM"),
    "negative binomial": Family(NegativeBinomialLikelihood, "nb()", None),
    "binomial": Family(BinomialLikelihood, "binomial()", "LogisticGAM"),
}


class Split(NamedTuple):
    """Rows to fit, and rows to be scored on."""

    train: pd.DataFrame
    test: pd.DataFrame


@dataclass(frozen=True)
class DataSet:
    """
    A table and a model of it.

    :ivar terms: of the first predictor.
    :ivar family: a key of ``FAMILIES``.
    :ivar table: all rows: numeric columns, categories as codes from 0, and the response.
    :ivar scale_terms: of the second predictor of a location-scale family.
    :ivar is_for_bam: whether mgcv's ``bam(discrete = TRUE)`` is the peer instead of ``gam(method = "REML")``.
    :ivar draws: simulated splits, whose test responses have no noise, in the place of folds.
    :ivar categories: what the codes of columns stand for.
    """

    name: str
    family: str
    terms: list[Term]
    table: pd.DataFrame
    scale_terms: list[Term] = field(default_factory=list)
    is_for_bam: bool = False
    draws: list[Split] = field(default_factory=list)
    categories: dict[str, list[Any]] = field(default_factory=dict)

    @property
    def distribution(self) -> Family:
        return FAMILIES[self.family]

    @property
    def columns(self) -> list[str]:
        return [column for column in self.table if column != TARGET]

    def num_levels(self, column: str) -> int:
        return int(self.table[column].max()) + 1

    def splits(self, num_folds: int) -> Iterator[Split]:
        """Folds; continuous responses are standardised, and inputs clipped, by the rows to fit."""
        if self.draws:
            yield from self.draws[:num_folds]
            return
        order = np.random.RandomState(PERMUTATION_SEED).permutation(len(self.table))
        for fold in np.array_split(order, num_folds) if num_folds else []:
            rest = np.setdiff1d(order, fold)
            yield self._prepared(self.table.iloc[rest], self.table.iloc[fold])

    def decoded(self, table: pd.DataFrame) -> pd.DataFrame:
        """The columns of a table as they were in the file: text as text, numbers that are names as categories."""
        found = table[self.columns].copy()
        for name, values in self.categories.items():
            decoded = pd.Categorical.from_codes(table[name].astype(int), values)
            found[name] = decoded if isinstance(values[0], float) else np.asarray(decoded)
        return found

    def whole(self) -> pd.DataFrame:
        """All rows, prepared as those to fit of a fold are."""
        return self.table if self.draws else self._prepared(self.table, self.table).train

    def _prepared(self, train: pd.DataFrame, test: pd.DataFrame) -> Split:
        test = test.clip(train.min(), train.max(), axis=1).assign(**{TARGET: test[TARGET]})
        if not self.distribution.is_continuous:
            return Split(train, test)
        centre, scale = train[TARGET].mean(), train[TARGET].std(ddof=0)
        return Split(*(part.assign(**{TARGET: (part[TARGET] - centre) / scale}) for part in (train, test)))


# ------------------------------------------------------------------------------------------------------- the model


def inputs(data_set: DataSet, table: pd.DataFrame) -> Tensor:
    return torch.tensor(table[data_set.columns].to_numpy(float), dtype=torch.get_default_dtype())


def responses(table: pd.DataFrame) -> Tensor:
    return torch.tensor(table[TARGET].to_numpy(float), dtype=torch.get_default_dtype())


def make_model(data_set: DataSet, x: Tensor) -> tuple[AdditiveGP, Likelihood]:
    """Our model with the defaults of every term."""
    groups = [*make_terms(data_set, data_set.terms, x, 0), constant()]
    if data_set.scale_terms:
        groups += [*make_terms(data_set, data_set.scale_terms, x, 1), constant(predictor=1)]
    return AdditiveGP(AdditivePredictor(*groups)), data_set.distribution.likelihood()


def make_terms(data_set: DataSet, terms: Sequence[Term], x: Tensor, predictor: int) -> list[ComponentGroup]:
    """The groups of one predictor; smooths of equal size that follow each other are one group."""
    groups: list[ComponentGroup] = []
    for (kind, size, period), members in itertools.groupby(terms, lambda term: (term.kind, term.size, term.period)):
        parts = list(members)
        for part in [parts] if kind == "smooth" else [[term] for term in parts]:
            columns = [data_set.columns.index(name) for term in part for name in term.columns]
            names = ["".join(term.columns) + (" of scale" if predictor else "") for term in part]
            options = {} if size is None else {"num_inducing": size}
            if kind == "factor":
                levels = data_set.num_levels(part[0].columns[0])
                groups.append(factor(columns[0], levels, name=names[0], predictor=predictor))
            elif kind == "cyclic":
                groups.append(cyclic(columns, period, names=names, predictor=predictor, **options))
            elif kind == "tensor":
                groups.append(tensor(columns, x, names=names, predictor=predictor, **options))
            else:
                groups.append(smooth(columns, x, names=names, predictor=predictor, **options))
    return groups


# ------------------------------------------------------------------------------------------------------- the tables


def read(folder: Path, name: str, columns: Sequence[str]) -> pd.DataFrame:
    path = folder / f"{name}.csv"
    if not path.exists():
        sys.exit(f"there is no file {path}: pass the folder that holds it, --data FOLDER, or choose other --sets")
    table = pd.read_csv(path)
    missing = [column for column in columns if column not in table]
    if missing:
        sys.exit(f"{path} has no columns {missing}, only {list(table)}")
    return table[list(columns)].dropna().reset_index(drop=True)


def values_of(table: pd.DataFrame, categories: Sequence[str]) -> dict[str, list[Any]]:
    """What the codes of categories stand for."""
    return {name: pd.Categorical(table[name]).categories.tolist() for name in categories}


def coded(table: pd.DataFrame, target: str, categories: Sequence[str] = ()) -> pd.DataFrame:
    """Categories as codes from 0, in the order of their names, and the response under the name that all sets use."""
    codes = {name: pd.Categorical(table[name]).codes.astype(float) for name in categories}
    return table.assign(**codes).rename(columns={target: TARGET}).astype(float)


def wage(folder: Path) -> DataSet:
    categories = ["maritl", "race", "education", "jobclass", "health", "health_ins"]
    table = read(folder, "wage", ["year", "age", *categories, "wage"])
    terms = [*smooths("year", size=5), *smooths("age"), *factors(*categories)]
    values = values_of(table, categories)
    return DataSet("wage", "gaussian", terms, coded(table, "wage", categories), categories=values)


def autompg(folder: Path) -> DataSet:
    numbers, categories = ["displacement", "horsepower", "weight", "acceleration", "year"], ["cylinders", "origin"]
    table = read(folder, "autompg", [*numbers, *categories, "mpg"])
    terms, values = [*smooths(*numbers), *factors(*categories)], values_of(table, categories)
    return DataSet("autompg", "gaussian", terms, coded(table, "mpg", categories), categories=values)


def concrete(folder: Path) -> DataSet:
    numbers = ["cement", "slag", "fly_ash", "water", "superplasticizer", "coarse", "fine", "age"]
    table = coded(read(folder, "concrete", [*numbers, "strength"]), "strength")
    return DataSet("concrete", "gaussian", smooths(*numbers), table)


def mcycle(folder: Path) -> DataSet:
    table = coded(read(folder, "mcycle", ["times", "accel"]), "accel")
    terms = smooths("times", size=20)
    return DataSet("mcycle", "location-scale", terms, table, scale_terms=smooths("times"))


def head_circumference(folder: Path) -> DataSet:
    table = coded(read(folder, "head_circumference", ["age", "head"]), "head")
    table = table.assign(age=np.log(table["age"]))
    terms = smooths("age", size=20)
    return DataSet("head circumference", "location-scale", terms, table, scale_terms=smooths("age"))


def chicago(folder: Path, family: str) -> DataSet:
    others = ["pm10median", "o3median", "tmpd"]
    table = coded(read(folder, "chicago", ["time", *others, "death"]), "death")
    terms = [*smooths("time", size=200), *smooths(*others)]
    return DataSet(f"chicago, {family}", family, terms, table)


def bicycles(folder: Path) -> DataSet:
    """The station in whose table the most hours have a temperature that was measured there."""
    table = read(folder, "bicycles", ["station_name", "date", "time", "average_temperature", "count"])
    table = table[table["station_name"] == "Sørmarka"]
    hour = table["time"].str[:2].astype(float) + 0.5  # "04:00:00-05:00:00" is the hour from four to five
    weekday = pd.to_datetime(table["date"]).dt.day_of_week.astype(float)
    temperature = table["average_temperature"]
    table = pd.DataFrame({"hour": hour, "temperature": temperature, "weekday": weekday, TARGET: table["count"]})
    terms = [Term("cyclic", ("hour",), 20, period=24.0), *smooths("temperature"), *factors("weekday")]
    return DataSet("bicycles", "negative binomial", terms, table.astype(float).reset_index(drop=True))


def labels(folder: Path, name: str, num_columns: int) -> DataSet:
    """Columns of at most ten values get as many functions less one: thin plates need more values than functions."""
    columns = [f"x{index}" for index in range(num_columns)]
    table = coded(read(folder, name, [*columns, "y"]), "y")
    table = table.assign(**{TARGET: (table[TARGET] > 0).astype(float)})
    terms = [Term("smooth", (name,), 9 if table[name].nunique() <= 10 else None) for name in columns]
    return DataSet(name, "binomial", terms, table)


def friedman(num_rows: int = 5000, num_draws: int = 3) -> DataSet:
    """Ten columns of which five are inert, and the interaction of the first two."""
    draws = []
    for seed in range(num_draws):
        x, y, fresh, truth = draw_friedman("gaussian", seed, num_rows)
        names = [f"x{index}" for index in range(x.shape[-1])]
        tables = (pd.DataFrame(part.double().numpy(), columns=names) for part in (x, fresh))
        targets = (y, truth)
        draws.append(Split(*(t.assign(**{TARGET: v.double()}) for t, v in zip(tables, targets, strict=True))))
    terms = [*smooths(*names), Term("tensor", ("x0", "x1"))]
    return DataSet("Friedman", "gaussian", terms, draws[0].train, is_for_bam=True, draws=draws)


def simulated(family: str, num_rows: int = 60) -> DataSet:
    """Two columns and three categories, for checks that the script runs."""
    generator = np.random.RandomState(0)
    a, b, group = generator.rand(num_rows), generator.rand(num_rows), generator.randint(0, 3, num_rows).astype(float)
    predictor = np.sin(6.0 * a) + 0.3 * group
    draws: dict[str, Callable[[], np.ndarray]] = {
        "gaussian": lambda: predictor + 0.3 * generator.randn(num_rows),
        "location-scale": lambda: predictor + 0.3 * np.exp(b) * generator.randn(num_rows),
        "poisson": lambda: generator.poisson(np.exp(predictor)).astype(float),
        "negative binomial": lambda: generator.poisson(np.exp(predictor) * generator.gamma(2.0, 0.5, num_rows)),
        "binomial": lambda: (predictor + generator.logistic(size=num_rows) > 0).astype(float),
    }
    table = pd.DataFrame({"a": a, "b": b, "group": group, TARGET: draws[family]()}).astype(float)
    terms = [*smooths("a", "b"), *factors("group")]
    scale_terms = smooths("b") if family == "location-scale" else []
    categories = {"group": ["north", "south", "west"]}
    return DataSet(f"simulated, {family}", family, terms, table, scale_terms=scale_terms, categories=categories)


SETS: dict[str, Callable[[Path], DataSet]] = {
    "wage": wage,
    "autompg": autompg,
    "concrete": concrete,
    "mcycle": mcycle,
    "head": head_circumference,
    "chicago-poisson": lambda folder: chicago(folder, "poisson"),
    "chicago-nb": lambda folder: chicago(folder, "negative binomial"),
    "bicycles": bicycles,
    "breast": lambda folder: labels(folder, "breast", 9),
    "pima": lambda folder: labels(folder, "pima", 8),
    "friedman": lambda folder: friedman(),
}


def sets_of(options: argparse.Namespace, quick: Sequence[str]) -> Iterator[DataSet]:
    """
    The sets that were asked for, each read when it is its turn.

    :param options: Those of the command line: ``quick``, ``sets`` and ``data``.
    :param quick: Families of the simulated sets of quick runs.
    """
    if options.quick:
        yield from map(simulated, quick)
    else:
        yield from (SETS[name](options.data) for name in options.sets)
