"""The estimators: generalized additive models of data frames by the conventions of scikit-learn."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from datetime import date, timedelta
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from gpytorch_gam import _checks as checks
from gpytorch_gam.warnings import ColumnKindWarning

from ._inspection import FittedGAM, tails
from .families import Binomial, Family, Ordinal, Softmax, regression_family
from .frames import labels_of
from .prediction import (
    class_probabilities,
    class_probability_quantiles,
    mean_quantiles,
    response_moments,
    response_quantiles,
)
from .streams import in_parts
from .value_checks import lacks_effect

# Responses beyond this, or all of whom are below its inverse, have squares that are no numbers.
_LARGEST = 1e150

_CLASSIFICATION = ("auto", "logit", "probit", "softmax", "ordinal")


class GAMRegressor(RegressorMixin, FittedGAM):
    r"""
    Regression by a Bayesian generalized additive model: numbers whose distribution has a mean, or other parameters,
    that are sums of effects of columns.

    Effects are Gaussian processes whose smoothness is estimated, and predictions come with the uncertainty of all of
    them. Underneath is ``gpytorch_gam``: :attr:`model_` and :attr:`likelihood_` are its model and likelihood.

    :param terms: A list of terms, such as ``[s("age"), f("station"), te("lon", "lat"), re("subject")]``, see
        :mod:`gpytorch_gam.gam`; a formula, ``"y ~ s(age) + te(lon, lat)"``, with which ``fit(data)`` takes the
        response from the data; or ``"auto"``, a term for each column by what it holds, and of dates the periods that
        the data cover twice. With a family of several parameters, one of these for all,
        a list of one for each, or a mapping from their names.
    :param family: The distribution of the response: ``"gaussian"``, ``"student_t"`` (outliers), ``"gamma"`` (positive
        numbers), ``"poisson"``, ``"negative_binomial"``, ``"zero_inflated_poisson"`` (counts), ``"binomial"``
        (successes among ``trials``), ``"quantile"``, or with a predictor of the scale as well
        ``"gaussian_location_scale"``, ``"student_t_location_scale"``, ``"negative_binomial_mean_dispersion"``. Options
        are given by instances, such as ``families.Quantile(0.9)``.
    :param kernel: The smoothness of effects: ``"matern52"``, ``"matern32"``, ``"matern12"`` or ``"rbf"``. ``"auto"``
        begins with ``"matern52"``, and takes ``"rbf"`` or ``"matern32"`` for all terms that name none where that raises
        the bound by more than a nat; fits by bins or minibatches, or of many rows and inducing points, keep the first.
        :meth:`summary` says which it is.
    :param num_inducing: Number of inducing points of smooth effects; default chosen by the fit.
    :param missing: What is done with missing values: ``"error"``; ``"drop"``, which leaves rows that have any out of
        the fit, and predicts them with an effect that is unknown, unless a ``by`` is missing; ``"marginal"``, with
        which they count in the fit, too, which is for few rows with values missing at random, see
        :func:`~gpytorch_gam.gam.s`; or ``"level"``, which makes them a level of categories of their own. Terms may say
        otherwise.
    :param posterior: The family of the posterior, see :class:`~gpytorch_gam.AdditiveGP`; ``"auto"`` takes a full
        covariance while it is small, and then block + low-rank precisions.
    :param hyperparameters: Whether predictions, effects, their bands and draws include that hyperparameters such as
        lengthscales and noise are uncertain (as ``unconditional=TRUE`` in mgcv): ``"integrated"`` over their posterior,
        by models at several values of them, or ``"point"`` estimates, which are faster, and whose bands are too narrow
        on few rows, above all of labels: effects that the data hardly show are estimated as none. ``"auto"``
        integrates, which takes about as long as the fit by rows and up to some times as long by bins, unless that may
        take far longer (with minibatches, more than 100 of them, or a fit by rows whose number times the square of that
        of inducing points is above 1e9), hardly more than one of the models has weight, bands are less than 1% wider
        with it, or the rows are read in parts; :attr:`hyperparameters_` says it.
    :param method: How the fit sees the data, see :func:`~gpytorch_gam.fit`.
    :param tolerance: Nats that may be open at the end of the fit.
    :param device: ``"auto"``, a GPU if there is one; or the name of a device.
    :param progress: Whether to show the progress of the fit.
    :param random_state: Seed of what is random in a fit by minibatches.
    :param interactions: The most interactions of two columns that are added to the terms: those of columns that have
        effects of their own, ``ti(x, z)`` of numbers and ``sz(x, g)`` of a number and a category, which are screened
        after a fit without them; 0 for none. ``"auto"`` looks for them beside terms that are ``"auto"``, too, five at
        most, where the family has one predictor and fits are quick (those of few rows; a line of the summary and a
        warning of ``sobol_indices`` say where they were not looked for), and among the hundred pairs of the columns
        with the most evidence; terms that are given are left alone.
    :param interaction_nats: The evidence for an interaction that is kept, in nats: it has to raise the bound by these,
        and by the logarithm of the number of candidates, of which one is expected. The default is about what the bound
        at estimates of its variance and lengthscales is above its mean over their priors, so that those are kept that
        are more probable than not.
    :ivar model_: The fitted model of the package.
    :ivar likelihood_: Its likelihood.
    :ivar result_: What the fit has found, a :class:`~gpytorch_gam.training.FitResult`; None if it was interrupted. Its
        seconds are those of the whole fit: the search for interactions and the integration over hyperparameters, whose
        own seconds ``hyperparameters_`` tells, too.
    :ivar hyperparameters_: Whether hyperparameters are integrated out or point estimates, and why.
    :ivar terms_: The labels of the terms.
    :ivar bound_: The evidence lower bound of responses in their units, in nats.
    :ivar interactions_: The interactions that were screened, those first that promise most, or None: a data frame of
        the nats that screening ``estimated`` for each by itself beside the effects of single columns, at their
        hyperparameters; the ``nats`` of the best in the last fit that held them, by which the bound falls without one
        (see :func:`~gpytorch_gam.diagnostics.component_evidence`), so that two that stand for each other have few; and
        which are ``kept``. Their ``state`` is ``"kept"``; ``"rejected"``, fitted, without paying; ``"not fitted"``, if
        they promise to pay beside those that are kept, but ``interactions`` allowed no more; or ``"promises too
        little"``.
    :ivar family_: The distribution of the response.
    :ivar n_rows_: Number of rows of the fit, those of weight zero and those left out not counted.
    :ivar n_rows_left_out_: Number of rows that ``missing="drop"`` has left out.
    :ivar n_features_in_: Number of columns.
    :ivar feature_names_in_: Their names, if the data had names.

    Example:
        >>> gam = GAMRegressor("wage ~ s(age) + f(education)").fit(data)
        >>> gam.predict(data), gam.observation_interval(data, level=0.9)
        >>> gam.predict_terms(data)["s(age)"]
    """

    def __init__(
        self,
        terms: Any = "auto",
        *,
        family: Any = "gaussian",
        kernel: str = "auto",
        num_inducing: int | None = None,
        missing: str = "error",
        posterior: str = "auto",
        hyperparameters: str = "auto",
        method: str = "auto",
        tolerance: float = 0.05,
        device: str = "auto",
        progress: bool = False,
        random_state: Any = None,
        interactions: str | int = "auto",
        interaction_nats: float = 2.0,
    ) -> None:
        super().__init__(
            terms,
            family,
            kernel,
            num_inducing,
            missing,
            posterior,
            hyperparameters,
            method,
            tolerance,
            device,
            progress,
            random_state,
            interactions,
            interaction_nats,
        )

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        offset: Any = None,
        exposure: Any = None,
        trials: Any = None,
    ) -> GAMRegressor:
        """
        Fit effects and all that determines them to data.

        Data that do not fit into memory are read in parts, several times: scales and places are then those of a sample,
        ranges and levels those of all rows. Arguments are then the names of columns, as they may be with any table.

        An offset, exposure or number of trials that is given as the name of a column belongs to the model, as
        ``offset()`` in a formula of mgcv: predictions and scores of further rows take that column from X where X has
        it and they are given no other. Without one, predictions are those of an offset of 0, an exposure of 1 and one
        trial, and scores and residuals, which need the responses' own, are refused.

        :param X: A data frame of pandas or polars, a table of pyarrow, or an array ``(n, D)`` with columns x0, x1, ...
            Or, to be read in parts, the path of a Parquet file or of a folder of these, a ``pyarrow.dataset``, a list
            of tables or an iterable of tables that begins anew each time (their order should then not matter, or the
            method not be minibatches), or a large ``numpy.memmap``.
        :param y: The responses ``(n,)``, or the name of their column; None if a formula names it.
        :param sample_weight: Weights of the rows: a weight counts a row that often, so that bands are those of as many
            observations as weights have in sum. Weights that say how precise rows are, as those of mgcv, such as one
            over a known variance, need a mean of one: divide them by their mean, of which a warning tells.
        :param offset: A number for each row that is added to the (first) predictor, or the name of a column.
        :param exposure: A positive number for each row by which the mean of counts is multiplied, or the name of a
            column. It is the same as an offset of its logarithm: give one of them.
        :param trials: Numbers of trials of the binomial family, or the name of a column; default one.
        """
        return self._fit(X, y, sample_weight, {"offset": offset, "exposure": exposure, "trials": trials})

    def _encode_response(self, y: Any) -> tuple[np.ndarray, Family]:
        family = regression_family(self.family)
        values = column_or_1d(y, warn=True)
        if values.dtype.kind not in "biuf":
            values = _numbers_of_objects(values)
        values = values.astype(np.float64)
        _refuse_not_finite(values)
        _refuse_extreme(values)
        return values, family

    def _responses(self, y: Any) -> np.ndarray:
        return self._encode_response(y)[0]

    @in_parts
    def predict(
        self,
        X: Any,
        return_std: bool = False,
        *,
        only: Sequence[str] | str | None = None,
        exclude: Sequence[str] | str | None = None,
        offset: Any = None,
        exposure: Any = None,
        trials: Any = None,
    ) -> Any:
        """
        The mean of new observations; with the quantile family, the quantile. That of counts and successes is for
        ``exposure`` and ``trials``: without them, and unless X has the columns that they were in the fit, it is the
        mean per unit, a rate or a probability.

        A level that ``re`` and ``fs`` have not seen has the prior distribution, and the mean is that over all such
        levels: through a log link it is larger than that of a typical level, which ``exclude=`` has.

        :param X: A table of the columns of the fit.
        :param return_std: Whether to return the standard deviation of new observations as well, noise included.
        :param only: Labels of terms to include besides the intercept; default all.
        :param exclude: Labels of terms to leave out, instead of ``only``, such as random effects. If terms were given,
            X need not have the columns that only these read.
        :param offset: See :meth:`fit`.
        :param exposure: See :meth:`fit`.
        :param trials: See :meth:`fit`.
        :return: Means ``(n,)``; with ``return_std`` a pair.
        """
        kept = self._checked().chosen(only, exclude)
        fitted, _, x, arguments = self._read(X, {"offset": offset, "exposure": exposure, "trials": trials}, kept)
        mean, deviation = response_moments(fitted, x, arguments, kept)
        return (mean, deviation) if checks.flag("return_std", return_std) else mean

    def score(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        offset: Any = None,
        exposure: Any = None,
        trials: Any = None,
    ) -> float:
        """
        The coefficient of determination of predicted means. Rows without one, in which the ``by`` of a term with
        ``missing="drop"`` is missing, are left out.

        :param X: A table of the columns of the fit.
        :param y: The responses, or the name of their column; None if a formula names it.
        :param sample_weight: Weights of the rows, or the name of their column.
        :param offset: See :meth:`fit`.
        :param exposure: See :meth:`fit`.
        :param trials: See :meth:`fit`.
        """
        given = {"y": y, "sample_weight": sample_weight, "offset": offset, "exposure": exposure, "trials": trials}
        X, given, _ = self._without(lacks_effect, X, given)
        y, sample_weight = self._scored(X, given.pop("y"), given.pop("sample_weight"))
        means = self.predict(X, **self._given(X, given))
        return float(r2_score(y, means, sample_weight=sample_weight))

    @in_parts
    def mean_interval(
        self,
        X: Any,
        level: float = 0.95,
        *,
        only: Sequence[str] | str | None = None,
        exclude: Sequence[str] | str | None = None,
        offset: Any = None,
        exposure: Any = None,
        trials: Any = None,
    ) -> np.ndarray:
        """
        Central credible intervals of the mean function, which shrink as data grow: of the mean per unit of exposure or
        for one trial, where :meth:`predict` is.

        :param X: A table of the columns of the fit.
        :param level: Their probability.
        :param only: See :meth:`predict`.
        :param exclude: See :meth:`predict`.
        :param offset: See :meth:`fit`.
        :param exposure: See :meth:`fit`.
        :param trials: See :meth:`fit`.
        :return: Lower and upper ends, ``(n, 2)``.
        """
        kept = self._checked().chosen(only, exclude)
        fitted, _, x, arguments = self._read(X, {"offset": offset, "exposure": exposure, "trials": trials}, kept)
        return mean_quantiles(fitted, x, arguments, kept, tails(level)).T

    def observation_interval(
        self,
        X: Any,
        level: float = 0.95,
        *,
        only: Sequence[str] | str | None = None,
        exclude: Sequence[str] | str | None = None,
        offset: Any = None,
        exposure: Any = None,
        trials: Any = None,
    ) -> np.ndarray:
        """
        Central prediction intervals of new observations: noise and the uncertainty of the mean function together. They
        are those of counts in one unit of exposure, or of one trial, where :meth:`predict` is.

        :param X: A table of the columns of the fit.
        :param level: Their probability.
        :param only: See :meth:`predict`.
        :param exclude: See :meth:`predict`.
        :param offset: See :meth:`fit`.
        :param exposure: See :meth:`fit`.
        :param trials: See :meth:`fit`.
        :return: Lower and upper ends, ``(n, 2)``.
        """
        more = {"only": only, "exclude": exclude, "offset": offset, "exposure": exposure, "trials": trials}
        return self.predict_quantiles(X, tails(level), **more)

    @in_parts
    def predict_quantiles(
        self,
        X: Any,
        probabilities: Sequence[float] | float,
        *,
        only: Sequence[str] | str | None = None,
        exclude: Sequence[str] | str | None = None,
        offset: Any = None,
        exposure: Any = None,
        trials: Any = None,
    ) -> np.ndarray:
        """
        Quantiles of new observations, in one unit of exposure or of one trial where :meth:`predict` is.

        :param X: A table of the columns of the fit.
        :param probabilities: One or several probabilities between 0 and 1.
        :param only: See :meth:`predict`.
        :param exclude: See :meth:`predict`.
        :param offset: See :meth:`fit`.
        :param exposure: See :meth:`fit`.
        :param trials: See :meth:`fit`.
        :return: Quantiles ``(n,)``, or ``(n, K)`` for several.
        """
        kept = self._checked().chosen(only, exclude)
        fitted, _, x, arguments = self._read(X, {"offset": offset, "exposure": exposure, "trials": trials}, kept)
        wanted = np.asarray(probabilities)
        if wanted.ndim > 1 or wanted.dtype.kind not in "iuf":
            raise TypeError(
                f"probabilities must be a number between 0 and 1, or a list of some, got {checks.shown(probabilities)}"
            )
        found = response_quantiles(fitted, x, arguments, kept, np.atleast_1d(wanted).tolist())
        return found[0] if wanted.ndim == 0 else found.T


class GAMClassifier(ClassifierMixin, FittedGAM):
    """
    Classification by a Bayesian generalized additive model: log odds, or a predictor for each of several classes, that
    are sums of effects of columns. Parameters that are not listed are those of :class:`GAMRegressor`.

    :param family: ``"auto"``: a logit link for two classes, one predictor a class for more (``"softmax"``), and
        ``"ordinal"`` for those of an ordered categorical. ``"probit"``, or ``"ordinal"`` for classes in order: that of
        an ordered categorical, otherwise sorted, of which a warning tells if they are text.
    :ivar classes_: The classes.

    Example:
        >>> gam = GAMClassifier().fit(X, y)
        >>> gam.predict_proba(X)
    """

    def __init__(
        self,
        terms: Any = "auto",
        *,
        family: str = "auto",
        kernel: str = "auto",
        num_inducing: int | None = None,
        missing: str = "error",
        posterior: str = "auto",
        hyperparameters: str = "auto",
        method: str = "auto",
        tolerance: float = 0.05,
        device: str = "auto",
        progress: bool = False,
        random_state: Any = None,
        interactions: str | int = "auto",
        interaction_nats: float = 2.0,
    ) -> None:
        super().__init__(
            terms,
            family,
            kernel,
            num_inducing,
            missing,
            posterior,
            hyperparameters,
            method,
            tolerance,
            device,
            progress,
            random_state,
            interactions,
            interaction_nats,
        )

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, *, offset: Any = None) -> GAMClassifier:
        """
        Fit effects and all that determines them to data.

        :param X: See :meth:`GAMRegressor.fit`.
        :param y: The classes of the rows ``(n,)``, or the name of their column; None if a formula names it.
        :param sample_weight: Weights of the rows.
        :param offset: A number for each row that is added to the (first) predictor, or the name of a column, see
            :meth:`GAMRegressor.fit`.
        """
        return self._fit(X, y, sample_weight, {"offset": offset})

    def _encode_response(self, y: Any) -> tuple[np.ndarray, Family]:
        checks.choice("family", self.family, _CLASSIFICATION)
        y = labels_of(y)
        order = _category_order(y)
        values = _array_of_labels(y, warn=True)
        if values.dtype.kind == "f":
            _refuse_not_finite(values)
        elif pd.isna(values).any():
            raise ValueError(
                f"y has missing values in {int(pd.isna(values).sum())} of {len(values)} rows: leave these rows out"
            )
        check_classification_targets(values)
        self.classes_, codes = np.unique(values, return_inverse=True)
        family = self._family_of(len(self.classes_), order is not None)
        if family == "ordinal" and order is None and len(self.classes_) > 2:
            _warn_of_order_of_text(self.classes_)
        if order is not None and family == "ordinal":
            self.classes_ = np.array([each for each in order if each in set(values)], dtype=self.classes_.dtype)
            position = {value: index for index, value in enumerate(self.classes_)}
            codes = np.array([position[value] for value in values])
        if len(self.classes_) < 2:
            raise ValueError(f"y has one class, {self.classes_.tolist()[0]!r}: a classifier needs at least two")
        return codes.astype(np.float64), self._family(family)

    def _responses(self, y: Any) -> np.ndarray:
        values = _array_of_labels(labels_of(y))
        position = {value: index for index, value in enumerate(self.classes_.tolist())}
        unknown = sorted({str(value) for value in values.tolist() if value not in position})
        if unknown:
            raise ValueError(f"y has {unknown}, which are none of the classes {self.classes_.tolist()}")
        return np.array([position[value] for value in values.tolist()], dtype=np.float64)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None, *, offset: Any = None) -> float:
        """
        The share of rows whose class is the most probable one. Rows without a prediction, in which the ``by`` of a term
        with ``missing="drop"`` is missing, are left out.

        :param X: A table of the columns of the fit.
        :param y: The classes, or the name of their column; None if a formula names it.
        :param sample_weight: Weights of the rows, or the name of their column.
        :param offset: See :meth:`fit`.
        """
        given = {"y": y, "sample_weight": sample_weight, "offset": offset}
        X, given, _ = self._without(lacks_effect, X, given)
        y, sample_weight = self._scored(X, given.pop("y"), given.pop("sample_weight"))
        predicted = self.predict(X, **self._given(X, given))
        return float(accuracy_score(y, predicted, sample_weight=sample_weight))

    def _family_of(self, num_classes: int, is_ordered: bool) -> str:
        """The name of the family, where it follows from the classes."""
        if self.family != "auto":
            return self.family
        return "logit" if num_classes <= 2 else "ordinal" if is_ordered else "softmax"

    def _family(self, name: str) -> Family:
        if name == "ordinal":
            return Ordinal(num_classes=len(self.classes_))
        if name == "softmax":
            return Softmax(classes=tuple(str(each) for each in self.classes_))
        if len(self.classes_) > 2:
            raise ValueError(
                f"family {name!r} has two classes, but y has {len(self.classes_)}: take 'softmax' or 'ordinal'"
            )
        return Binomial(link=name)

    @in_parts
    def predict_proba(
        self,
        X: Any,
        *,
        only: Sequence[str] | str | None = None,
        exclude: Sequence[str] | str | None = None,
        offset: Any = None,
    ) -> np.ndarray:
        """
        Probabilities of the classes, averaged over the posterior.

        :param X: A table of the columns of the fit.
        :param only: Labels of terms to include besides the intercept; default all.
        :param exclude: Labels of terms to leave out, instead of ``only``.
        :param offset: See :meth:`fit`.
        :return: Probabilities ``(n, K)`` in the order of ``classes_``.
        """
        kept = self._checked().chosen(only, exclude)
        fitted, _, x, arguments = self._read(X, {"offset": offset}, kept)
        return class_probabilities(fitted, x, arguments, kept)

    def predict_log_proba(self, X: Any, *, offset: Any = None) -> np.ndarray:
        """
        Logarithms of the probabilities of the classes.

        :param X: A table of the columns of the fit.
        :param offset: See :meth:`fit`.
        """
        return np.log(np.maximum(self.predict_proba(X, offset=offset), np.finfo(np.float64).tiny))

    def predict(self, X: Any, *, offset: Any = None) -> np.ndarray:
        """
        The most probable class.

        :param X: A table of the columns of the fit.
        :param offset: See :meth:`fit`.
        """
        most_probable = self.predict_proba(X, offset=offset).argmax(1)
        return self.classes_[most_probable]

    def decision_function(self, X: Any, *, offset: Any = None) -> np.ndarray:
        """
        Log odds of the second of two classes, ``(n,)``; logarithms of the probabilities of several, ``(n, K)``.

        :param X: A table of the columns of the fit.
        :param offset: See :meth:`fit`.
        """
        logs = self.predict_log_proba(X, offset=offset)
        return logs if logs.shape[1] > 2 else logs[:, 1] - logs[:, 0]

    def probability_interval(self, X: Any, level: float = 0.95, *, offset: Any = None) -> np.ndarray:
        """
        Central credible intervals of the probability of the second of two classes, or of each of several.

        :param X: A table of the columns of the fit.
        :param level: Their probability.
        :param offset: See :meth:`fit`.
        :return: Lower and upper ends, ``(n, 2)``; of several classes, in the order of ``classes_``, ``(n, K, 2)``.
        """
        fitted, _, x, arguments = self._read(X, {"offset": offset})
        if fitted.family.name != "binomial":
            ends = class_probability_quantiles(fitted, x, arguments, fitted.parts, tails(level))
            return ends.transpose(2, 1, 0)
        return mean_quantiles(fitted, x, arguments, fitted.parts, tails(level)).T


def _refuse_extreme(values: np.ndarray) -> None:
    """Refuse numbers whose squares are none."""
    most = float(np.abs(values).max(initial=0.0))
    if most > _LARGEST or 0.0 < most < 1 / _LARGEST:
        raise ValueError(
            f"y has absolute values up to {most:.3g}, whose squares {'overflow' if most > 1 else 'are lost'}: "
            f"{'divide' if most > 1 else 'multiply'} it by a constant"
        )


def _refuse_not_finite(values: np.ndarray) -> None:
    is_bad = ~np.isfinite(values)
    if is_bad.any():
        what = "NaN" if np.isnan(values).any() else "infinity"
        raise ValueError(
            f"Input y contains {what} (inf or NaN in {int(is_bad.sum())} of {len(values)} rows): leave these rows out"
        )


def _array_of_labels(y: Any, *, warn: bool = False) -> np.ndarray:
    """Labels as an array; those of pandas in the type that they have, booleans in particular."""
    is_typed = isinstance(y, pd.Series | pd.api.extensions.ExtensionArray)
    found: np.ndarray = column_or_1d(np.asarray(y) if is_typed else y, warn=warn)
    return found


def _numbers_of_objects(values: np.ndarray) -> np.ndarray:
    """Numbers that are held as objects; a TypeError for text, which is never taken for numbers."""
    if any(isinstance(value, str) for value in values.tolist()):
        raise TypeError("y holds text: convert it with pandas.to_numeric, or use GAMClassifier for classes")
    if values.dtype.kind == "c":
        raise ValueError("Complex data not supported in y")
    others = {type(value).__name__ for value in values.tolist() if isinstance(value, date | timedelta)}
    if values.dtype.kind in "mM":  # whose nanoseconds are integers in a list
        others = {values.dtype.name}
    if others:
        raise TypeError(f"y holds {', '.join(sorted(others))}: give numbers, such as a number of days")
    return np.array(
        [np.nan if value is None or value is pd.NA else value for value in values.tolist()], dtype=np.float64
    )


def _warn_of_order_of_text(classes: np.ndarray) -> None:
    """Warn of classes that are taken in the order of the alphabet."""
    if all(isinstance(each, str) for each in classes.tolist()):
        warnings.warn(
            f"y holds text, whose classes family 'ordinal' takes in the order of the alphabet, {classes.tolist()}: "
            "if they have another one, give it by pandas.Categorical(y, categories=[...], ordered=True)",
            ColumnKindWarning,
            stacklevel=2,
        )


def _category_order(y: Any) -> list[Any] | None:
    """The order of an ordered categorical of pandas."""
    dtype = getattr(y, "dtype", None)
    return list(dtype.categories) if isinstance(dtype, pd.CategoricalDtype) and dtype.ordered else None
