"""Fits of a set of `real_data.py` from its data frame: by this package's estimators, EBM, and linear models."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pandas as pd
from _small_peers import Fits, now
from _small_sets import TARGET, DataSet, Split
from scipy.stats import norm
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import BaseCrossValidator, BaseShuffleSplit, KFold, ShuffleSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from gpytorch_gam.gam import GAMClassifier, GAMRegressor
from gpytorch_gam.gam.automatic_terms import automatic_terms
from gpytorch_gam.gam.terms import Term

# Inner splits of the rows to fit, by whose residuals the noise of a peer without a density is estimated; one for those
# that take minutes.
INNER_FOLDS, INNER_QUARTER = KFold(3, shuffle=True, random_state=0), ShuffleSplit(1, test_size=0.25, random_state=0)

InnerSplits = BaseCrossValidator | BaseShuffleSplit


class Frames(NamedTuple):
    """Rows to fit and rows to be scored on, as data frames with their responses."""

    train: pd.DataFrame
    y: np.ndarray
    test: pd.DataFrame

    @classmethod
    def of(cls, data_set: DataSet, split: Split) -> Frames:
        train, test = (data_set.decoded(part) for part in split)
        return cls(train, split.train[TARGET].to_numpy(), test)


class Predicted(NamedTuple):
    """Means, or probabilities of the label 1, and standard deviations where there is a density."""

    mean: np.ndarray
    stddev: np.ndarray | None = None


def scored(
    data_set: DataSet, num_folds: int, fit: Callable[[Frames], Any], predict: Callable[[Any, Frames], Predicted]
) -> Fits:
    """A timed fit to all rows, and the scores of held-out rows of fits to the others."""
    fits = Fits()
    whole = data_set.whole()
    start = now()
    fit(Frames.of(data_set, Split(whole, whole)))
    fits.add_time(start)
    for split in data_set.splits(num_folds):
        frames = Frames.of(data_set, split)
        found = predict(fit(frames), frames)
        fits.add_scores(split, found.mean, log_density(split.test[TARGET].to_numpy(), found))
    return fits


def log_density(y: np.ndarray, found: Predicted) -> np.ndarray:
    """Of numbers that are normal, or of labels."""
    if found.stddev is not None:
        return norm.logpdf(y, found.mean, found.stddev)
    return np.log(np.where(y > 0, found.mean, 1.0 - found.mean).clip(1e-15))


def is_labels(data_set: DataSet) -> bool:
    """Whether responses are 0 and 1."""
    return data_set.family == "binomial"


# -------------------------------------------------------------------------------------------------------------- ours


def identity(terms: list[Term]) -> list[Term]:
    return terms


@dataclass(frozen=True)
class Variant:
    """
    The defaults of the estimators, or something else in one place.

    :ivar name: what is different.
    :ivar options: arguments of the estimator.
    :ivar change: made to the terms that the estimator chooses by itself, if any.
    :ivar constants: attributes of the package, ``(module, name)``, that take another value.
    :ivar applies: whether it makes a difference on a set.
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    change: Callable[[list[Term]], list[Term]] | None = None
    constants: dict[tuple[str, str], Any] = field(default_factory=dict)
    applies: Callable[[DataSet], bool] = lambda data_set: True

    @contextmanager
    def active(self) -> Iterator[None]:
        """Constants have their other values inside the block."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            patches = [mock.patch(f"{module}.{name}", value) for (module, name), value in self.constants.items()]
            for patch in patches:
                patch.start()
            try:
                yield
            finally:
                for patch in patches:
                    patch.stop()


DEFAULTS = Variant("defaults")


def fit_gam(data_set: DataSet, num_folds: int, variant: Variant = DEFAULTS) -> Fits:
    """By the estimators, with a data frame and responses."""

    def fit(frames: Frames) -> Any:
        kind = GAMClassifier if is_labels(data_set) else GAMRegressor
        terms: Any = "auto" if variant.change is None else variant.change(automatic_terms(frames.train))
        return kind(terms, **variant.options).fit(frames.train, frames.y)

    def predict(gam: Any, frames: Frames) -> Predicted:
        if is_labels(data_set):
            return Predicted(gam.predict_proba(frames.test)[:, 1])
        return Predicted(*gam.predict(frames.test, return_std=True))

    with variant.active():
        return scored(data_set, num_folds, fit, predict)


# --------------------------------------------------------------------------------------------------- models of others


def fit_sklearn(data_set: DataSet, num_folds: int, model: Any, inner: InnerSplits | None = None) -> Fits:
    """
    By an estimator of scikit-learn's conventions. Numbers are normal around its predictions, with the standard
    deviation of the residuals in inner splits; without these, of the fit itself with its degrees of freedom.
    """

    def fit(frames: Frames) -> tuple[Any, float]:
        found = clone(model).fit(frames.train, frames.y)
        if is_labels(data_set):
            return found, 0.0
        if inner is not None:
            return found, float(np.sqrt(np.mean(_residuals(model, frames, inner) ** 2)))
        residuals = frames.y - found.predict(frames.train)
        num_free = len(frames.y) - 1 - int(found[-1].rank_)
        return found, float(np.sqrt(np.sum(residuals**2) / num_free))

    def predict(fitted: tuple[Any, float], frames: Frames) -> Predicted:
        found, noise = fitted
        if is_labels(data_set):
            return Predicted(found.predict_proba(frames.test)[:, 1])
        return Predicted(found.predict(frames.test), np.full(len(frames.test), noise))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return scored(data_set, num_folds, fit, predict)


def _residuals(model: Any, frames: Frames, inner: InnerSplits) -> np.ndarray:
    """Of held-out rows of inner splits."""
    found = []
    for kept, held_out in inner.split(frames.train):
        fitted = clone(model).fit(frames.train.iloc[kept], frames.y[kept])
        found.append(frames.y[held_out] - fitted.predict(frames.train.iloc[held_out]))
    return np.concatenate(found)


def fit_ebm(data_set: DataSet, num_folds: int, inner: InnerSplits = INNER_QUARTER, **options: Any) -> Fits:
    """By the explainable boosting machine of interpret, which has no density of numbers."""
    from interpret.glassbox import ExplainableBoostingClassifier, ExplainableBoostingRegressor

    kind = ExplainableBoostingClassifier if is_labels(data_set) else ExplainableBoostingRegressor
    return fit_sklearn(data_set, num_folds, kind(n_jobs=1, **options), inner)


def fit_linear(data_set: DataSet, num_folds: int) -> Fits:
    """By linear regression, or logistic regression with scikit-learn's penalty, of columns in standard units."""
    names = list(data_set.categories)
    columns = make_column_transformer(
        (OneHotEncoder(drop="first"), names),
        (StandardScaler(), [name for name in data_set.columns if name not in names]),
    )
    last = LogisticRegression(max_iter=1000) if is_labels(data_set) else LinearRegression()
    return fit_sklearn(data_set, num_folds, make_pipeline(columns, last))
