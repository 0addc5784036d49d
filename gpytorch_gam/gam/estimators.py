"""The estimators: generalized additive models of data frames by the conventions of scikit-learn."""

from __future__ import annotations

import math
import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils import Tags, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
)

from gpytorch_gam import _checks as checks
from gpytorch_gam._caught_warnings import warnings_at_caller
from gpytorch_gam.diagnostics import LeaveOneOut
from gpytorch_gam.training import FitResult

from . import files, pictures
from .design import Design, Part
from .draws import FunctionDraws, draw_functions
from .effects import grid_of, is_curve, period_in_units
from .families import Binomial, Family, Ordinal, Softmax, regression_family
from .fitted import Fitted
from .fitting import FitOfDesign, Options, fit_arguments, fit_design
from .frames import as_frame, as_rows, drop_columns, refuse_response, take_columns
from .integration import HYPERPARAMETERS
from .interactions import Limits, interactions_of_description
from .prediction import (
    class_probabilities,
    mean_quantiles,
    predictor_moments,
    response_moments,
    response_quantiles,
    term_moments,
    term_table,
)
from .residuals import quantile_residuals, working_residuals
from .response_scale import SCALES, scaled_effect_table
from .scores import Seen, left_out, log_densities
from .specification import columns_of_terms, read_specification
from .stream_fit import Rows, fit_stream, with_weight
from .streams import Stream, in_parts, stream_of
from .summary import Summary, intercept_table, summarise
from .survey import survey
from .terms import KERNELS, MISSING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_CLASSIFICATION = ("auto", "logit", "probit", "softmax", "ordinal")


class _GAM(BaseEstimator):
    """What regression and classification have in common."""

    _fitted: Fitted
    _set_apart: list[str]  # columns of the data that are no features
    _needed: list[str] | None  # columns that the terms read; None if all are features
    result_: FitResult | None
    deviance_explained_: float
    interactions_: pd.DataFrame | None
    n_rows_: int
    _seen: Seen  # the responses of the fit
    family_: Family
    classes_: np.ndarray
    n_features_in_: int
    feature_names_in_: np.ndarray

    def __init__(
        self,
        terms: Any,
        family: Any,
        kernel: str,
        num_inducing: int | None,
        missing: str,
        posterior: str,
        hyperparameters: str,
        method: str,
        tolerance: float,
        device: str,
        progress: bool,
        random_state: Any,
        interactions: Any,
        interaction_nats: float,
    ) -> None:
        self.terms = terms
        self.family = family
        self.kernel = kernel
        self.num_inducing = num_inducing
        self.missing = missing
        self.posterior = posterior
        self.hyperparameters = hyperparameters
        self.method = method
        self.tolerance = tolerance
        self.device = device
        self.progress = progress
        self.random_state = random_state
        self.interactions = interactions
        self.interaction_nats = interaction_nats

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing != "error"
        tags.input_tags.categorical = True
        tags.input_tags.string = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_fitted")

    # ------------------------------------------------------------------ the fit

    @abstractmethod
    def _encode_response(self, y: Any) -> tuple[np.ndarray, Family]:
        """Responses as numbers, and their distribution."""

    def _fit(self, X: Any, y: Any, sample_weight: Any, arguments: Mapping[str, Any]) -> Any:
        self._check_options()
        response = self._response_name()
        given = {"y": response if y is None else y, "sample_weight": sample_weight, **arguments}
        if given["y"] is None:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None (a formula may name it)"
            )
        parts = stream_of(X, given)
        given = given if parts is None else parts[1]
        columns, levels = columns_of_terms(self.terms)
        named = [name for name in given.values() if isinstance(name, str)]
        apart = named if columns is None else [given["y"]]
        self._set_apart = list(dict.fromkeys(name for name in [*apart, response] if isinstance(name, str)))
        stream = None if parts is None else parts[0]
        with warnings_at_caller(depth=2):
            found = self._fit_table(X, given) if stream is None else self._fit_stream(stream, given, columns, levels)
        self._fitted, self.result_, self.deviance_explained_, self.interactions_ = found
        self.family_ = self._fitted.family
        return self

    def _fit_table(self, X: Any, given: Mapping[str, Any]) -> FitOfDesign:
        """The fit to a table in memory and arguments with a value for each row, or the names of its columns."""
        X, given = take_columns(X, given)
        frame = as_frame(self, drop_columns(X, self._set_apart), reset=True)
        response = given.pop("y")
        y, family = self._encode_response(response)
        check_consistent_length(frame, y)
        weights = _check_sample_weight(
            given.pop("sample_weight"), frame.to_numpy(), dtype=np.float64, ensure_non_negative=True
        )
        rows = self._rows(frame, y, weights, family, given)
        self._note_rows(Seen.of(*rows[1:]))
        design = self._design(family, rows.frame)
        refuse_response(response, frame, design.columns)
        return fit_design(design, family, *rows, self._options(), self._limits())

    def _fit_stream(
        self, stream: Stream, given: Mapping[str, Any], columns: list[str] | None, levels: set[str]
    ) -> FitOfDesign:
        """The fit to rows that are read in parts, of whose columns arguments are."""
        if self._limits() is not None:
            raise ValueError(
                f"interactions must be 0 where X is read in parts, got {self.interactions!r}: look for them in a table "
                "of some rows, and give them as terms"
            )
        if self.hyperparameters == "integrated":
            raise ValueError("hyperparameters must be 'auto' or 'point' where X is read in parts, got 'integrated'")
        weights, named = given["sample_weight"], [name for name in given.values() if isinstance(name, str)]
        if weights is not None and not isinstance(weights, str):
            raise TypeError(f"sample_weight must be the name of a column, as X is read in parts, got {weights!r}")
        options, features = self._options(), columns
        columns = None if columns is None else list(dict.fromkeys([*columns, *named]))
        levels = levels | {given["y"]} if isinstance(self, GAMClassifier) else levels
        found = survey((with_weight(frame, weights) for frame in stream.frames(columns)), levels, options.seed)
        _, family = self._encode_response(found.frame[given["y"]])
        arguments = {name: value for name, value in given.items() if name not in ("y", "sample_weight")}

        def reader(frame: pd.DataFrame) -> Rows:
            frame = with_weight(frame, weights)
            own = np.ones(len(frame)) if weights is None else frame[weights].to_numpy(np.float64)
            return self._rows(frame, self._responses(frame[given["y"]]), own, family, take_columns(frame, arguments)[1])

        frame = found.frame.drop(columns=named) if features is None else found.frame[features]
        as_frame(self, frame if stream.array is None else stream.array[:2], reset=True)
        self._note_rows(Seen.joined(Seen.of(*reader(part)[1:]) for part in stream.frames(named)))
        return fit_stream(self._design(family, frame), family, stream, columns, found, reader, options)

    def _rows(
        self, frame: pd.DataFrame, y: np.ndarray, weights: np.ndarray, family: Family, arguments: Mapping[str, Any]
    ) -> Rows:
        """The rows with a positive weight, whose responses the family can have."""
        rows = self._row_arguments(family, arguments, len(frame))
        used = weights > 0
        if not used.all():
            frame, y, weights = frame[used], y[used], weights[used]
            rows = {name: value[used] for name, value in rows.items()}
        family.check(y, rows.get("trials"))
        return Rows(frame, y, weights, rows)

    def _note_rows(self, seen: Seen) -> None:
        if seen.num_rows < 2:
            raise ValueError(f"n_samples={seen.num_rows} with a positive weight, but a fit needs at least 2")
        self.n_rows_, self._seen = seen.num_rows, seen

    def _design(self, family: Family, frame: pd.DataFrame) -> Design:
        """The terms for some data."""
        specification = read_specification(self.terms, family.parameters)
        design = Design(
            specification.terms(frame),
            tuple(family.parameters),
            self.kernel,
            self.num_inducing,
            self.missing,
            specification.has_intercepts if family.name != "ordinal" else (False,),
        )
        self._needed = None if specification.is_automatic else design.columns
        return design

    def _check_options(self) -> None:
        checks.choice("kernel", self.kernel, KERNELS)
        checks.choice("missing", self.missing, MISSING)
        if self.num_inducing is not None:
            checks.integer("num_inducing", self.num_inducing, least=3)
        checks.choice("posterior", self.posterior, ("auto", "coupled", "block_low_rank", "low_rank", "mean_field"))
        checks.choice("hyperparameters", self.hyperparameters, HYPERPARAMETERS)
        checks.choice("method", self.method, ("auto", "rows", "bins", "minibatches"))
        checks.number("tolerance", self.tolerance, above=0)
        checks.flag("progress", self.progress)
        if isinstance(self.interactions, str):
            checks.choice("interactions", self.interactions, ("auto",))
        else:
            checks.integer("interactions", self.interactions, least=0)
        checks.number("interaction_nats", self.interaction_nats, least=0)
        if not isinstance(self.device, str):
            raise TypeError(
                f"device must be 'auto', 'cpu' or the name of another device, got {checks.shown(self.device)}"
            )

    def _limits(self) -> Limits | None:
        """Which interactions are added; None for none."""
        most = None if isinstance(self.interactions, str) else int(self.interactions)
        return None if most == 0 else Limits(most, self.interaction_nats)

    def _options(self) -> Options:
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        return Options(
            self.method, self.tolerance, self.posterior, self.device, self.progress, seed, self.hyperparameters
        )

    def _response_name(self) -> str | None:
        terms = self.terms
        if isinstance(terms, Mapping):
            terms = list(terms.values())
        first = terms[0] if isinstance(terms, list | tuple) and terms else terms
        if not isinstance(first, str) or "~" not in first:
            return None
        return read_specification(first, ("mean",)).response

    def _row_arguments(self, family: Family, arguments: Mapping[str, Any], num_rows: int) -> dict[str, np.ndarray]:
        """The row-wise arguments that are given, which the family must read."""
        found = {}
        for name, value in arguments.items():
            rows = as_rows(name, value, num_rows)
            if rows is None:
                continue
            if name != "offset" and name not in family.arguments:
                raise ValueError(f"family {family.name!r} reads no {name}")
            if name != "offset" and (rows <= 0).any():
                raise ValueError(f"{name} must be positive, but is not in {int((rows <= 0).sum())} of {num_rows} rows")
            found[name] = rows
        return found

    # ------------------------------------------------------------------ what was fitted

    @property
    def model_(self) -> Any:
        """The model of the package, an :class:`~gpytorch_gam.AdditiveGP` in units of the fit."""
        return self._checked().model

    @property
    def likelihood_(self) -> Any:
        """Its likelihood."""
        return self._checked().likelihood

    @property
    def bound_(self) -> float:
        """
        The evidence lower bound in nats, of responses in their units (that of ``result_`` is of scaled ones): the
        larger the better among models of the same responses, see :func:`~gpytorch_gam.gam.compare`.
        """
        fitted = self._checked()
        if self.result_ is None:
            return float("nan")
        return self.result_.bound - self._seen.weight * math.log(fitted.units.scale)

    @property
    def hyperparameters_(self) -> str:
        """Whether hyperparameters are integrated out or point estimates, and why."""
        return self._checked().hyperparameters

    @property
    def terms_(self) -> list[str]:
        """The labels of the terms."""
        return [part.label for part in self._checked().parts]

    def _checked(self) -> Fitted:
        check_is_fitted(self)
        return self._fitted

    def _read(self, X: Any, arguments: Mapping[str, Any]) -> tuple[Fitted, pd.DataFrame, Any, dict[str, Any]]:
        """The fitted model, the data frame, its inputs, and row-wise arguments in units of the fit."""
        fitted = self._checked()
        X, arguments = take_columns(X, arguments)
        frame = self._columns_of(X)
        x = fitted.design.inputs(frame)
        rows = self._row_arguments(fitted.family, arguments, len(frame))
        return fitted, frame, x, fit_arguments(fitted.family, fitted.units.scale, rows)

    def _frame(self, X: Any) -> pd.DataFrame:
        """A table as a data frame of the columns that predictions read."""
        return self._columns_of(take_columns(X, {})[0])

    def _checked_columns(self) -> list[str] | None:
        """The columns that predictions read; None for all."""
        self._checked()
        return self._needed

    def _columns_of(self, X: Any) -> pd.DataFrame:
        """A table without the columns that are no features."""
        X = drop_columns(X, self._set_apart) if self._needed is None else X
        return as_frame(self, X, reset=False, needed=self._needed)

    @in_parts
    def outside_range(self, X: Any) -> pd.DataFrame:
        """
        Which values lie outside of what the fit has seen: beyond the range of a number, or unseen levels. Effects are
        extrapolated there, and their bands tell how uncertain that is under the prior.

        :param X: A table of the columns of the fit.
        :return: A data frame of booleans, with the columns that have a range or levels.
        """
        return self._checked().design.outside(self._columns_of(X))

    def summary(self) -> Summary:
        """The terms one by one and the fit as a whole: a :class:`~gpytorch_gam.gam.summary.Summary`, which prints."""
        return summarise(self._checked(), self.result_, self.n_rows_, self.deviance_explained_, self.bound_)

    def draw_functions(self, num: int = 100, random_state: Any = None) -> FunctionDraws:
        """
        Draw whole functions from the posterior, for the risk of a threshold, the place of a maximum, or contrasts.

        :param num: Their number.
        :param random_state: The seed, or a random state.
        :return: Callables, see :class:`~gpytorch_gam.gam.draws.FunctionDraws`.
        """
        checks.integer("num", num, least=1)
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        return draw_functions(self._checked(), self._frame, num, seed)

    def effect(
        self,
        term: str,
        *,
        num: int = 100,
        level: float = 0.95,
        simultaneous: bool = False,
        scale: str = "link",
    ) -> pd.DataFrame:
        """
        The effect of a term on a grid of its columns: what pictures show.

        :param term: Its label, such as ``"s(age)"``.
        :param num: Number of values of a numeric column.
        :param level: The probability of the bands.
        :param simultaneous: Whether to add the ends ``lower_all`` and ``upper_all`` of a band that holds the whole
            function with that probability.
        :param scale: ``"link"``, the effect on its predictor; or ``"response"``, the mean of the response (the
            probability of the second class; of further predictors such as ``log_scale``, their exponential) if all
            other effects are zero, with the uncertainty of the intercept.
        :return: The columns of the term, ``mean``, ``lower`` and ``upper``, and on the link scale ``std``.
        """
        checks.integer("num", num, least=2)
        checks.choice("scale", scale, SCALES)
        fitted, part = self._part(term)
        level = _tails(level)[1] * 2 - 1
        return scaled_effect_table(fitted, part, grid_of(fitted, part, num), level, simultaneous, scale)

    def _part(self, term: str) -> tuple[Fitted, Part]:
        fitted = self._checked()
        if not isinstance(term, str):
            raise TypeError(f"term must be the label of a term, got {checks.shown(term)}")
        return fitted, fitted.part(term)

    def plot(self, *, level: float = 0.95, scale: str = "link", sharey: bool = True) -> Figure:
        """
        Draw all effects, one panel each: see :meth:`plot_term`.

        :param level: The probability of the bands.
        :param scale: See :meth:`effect`.
        :param sharey: Whether effects on the same predictor are shown in the same range, so that their sizes compare;
            False shows each in its own. Surfaces have a bar of colours each.
        :return: The figure of matplotlib.
        """
        fitted, look = self._checked(), self._look(level, scale)
        return pictures.overview(fitted, look, checks.flag("sharey", sharey))

    def _look(self, level: float, scale: str = "link", simultaneous: bool = True) -> pictures.Look:
        checks.choice("scale", scale, SCALES)
        checks.flag("simultaneous", simultaneous)
        return pictures.Look(_tails(level)[1] * 2 - 1, simultaneous, scale, self._shown_response())

    def _shown_response(self) -> str:
        """What pictures call the response."""
        if self.family_.name == "binomial":
            return f"class {self.classes_[1]}" if hasattr(self, "classes_") else "success"
        return self._response_name() or "the response"

    def plot_term(
        self,
        term: str,
        X: Any = None,
        y: Any = None,
        *,
        ax: Axes | None = None,
        level: float = 0.95,
        simultaneous: bool = True,
        scale: str = "link",
        offset: Any = None,
        exposure: Any = None,
        trials: Any = None,
    ) -> Axes:
        """
        Draw the effect of a term: a curve with a band at each point, and a lighter one that holds the whole curve; a
        surface, blank where there are no data; or the levels of a category.

        :param term: Its label, such as ``"s(age)"``.
        :param X: Rows whose partial residuals are drawn as points, of curves in the first predictor.
        :param y: Their responses, or the name of their column; None if a formula names it.
        :param ax: Axes to draw on; default new ones.
        :param level: The probability of the bands.
        :param simultaneous: Whether to draw the lighter band.
        :param scale: See :meth:`effect`. Partial residuals are on the link scale.
        :param offset: As for the fit, of the rows of X.
        :param exposure: As for the fit, of the rows of X.
        :param trials: As for the fit, of the rows of X.
        """
        fitted, part = self._part(term)
        look, residuals = self._look(level, scale, simultaneous), None
        if X is not None and scale == "response":
            raise ValueError("X is given with scale='response', but partial residuals are on the link scale")
        if X is not None and is_curve(part) and part.predictor == 0:
            residuals = self._partial_residuals(part, X, y, {"offset": offset, "exposure": exposure, "trials": trials})
        return pictures.plot_term(fitted, part, ax, look, residuals)

    def _partial_residuals(self, part: Part, X: Any, y: Any, arguments: Mapping[str, Any]) -> tuple[Any, np.ndarray]:
        """Values of the column of a curve, and the effect there plus residuals."""
        fitted, x, scaled, _, rows = self._observed(X, y, None, arguments)
        (effect,), _ = term_moments(fitted, x, [part])
        values, period = self._read(X, {})[1][part.term.arguments[0]], period_in_units(part)
        values = values if period is None else np.mod(values, period)
        observed = fitted.units.centre + fitted.units.scale * scaled
        return values, effect + working_residuals(fitted, x, observed, rows)

    def plot_difference(
        self, term: str, first: Any, second: Any, *, ax: Axes | None = None, level: float = 0.95
    ) -> Axes:
        """
        Draw the difference of a term's curves between two levels, with a band at each point.

        :param term: The label of a term of curves by levels, such as ``"s(age, by=sex)"``.
        :param first: A level.
        :param second: The level whose curve is subtracted.
        :param ax: Axes to draw on; default new ones.
        :param level: The probability of the band.
        """
        fitted, part = self._part(term)
        by = part.term.columns[-1]
        if len(part.term.columns) != 2 or (by, "levels") not in fitted.design.encodings:
            raise ValueError(f"{term} has no curves by levels")
        known = fitted.design.encoding(by, "levels").levels
        for value in (first, second):
            if value not in known:
                raise ValueError(f"{value!r} is no level of {by!r}; levels are {list(known)}")
        return pictures.plot_difference(fitted, part, by, (first, second), ax, self._look(level))

    def quantile_residuals(
        self,
        X: Any,
        y: Any = None,
        *,
        offset: Any = None,
        exposure: Any = None,
        trials: Any = None,
        random_state: Any = 0,
    ) -> np.ndarray:
        """
        Randomised quantile residuals, which are standard normal if the model holds.

        :param X: A table of the columns of the fit.
        :param y: The responses, or the name of their column; None if a formula names it.
        :param offset: As for the fit.
        :param exposure: As for the fit.
        :param trials: As for the fit.
        :param random_state: Seed of what is drawn for responses that are counts or classes.
        """
        arguments = {"offset": offset, "exposure": exposure, "trials": trials}
        fitted, x, values, _, rows = self._observed(X, y, None, arguments)
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        return quantile_residuals(fitted, x, values, rows, seed)

    def check(self, X: Any, y: Any = None, *, offset: Any = None, exposure: Any = None, trials: Any = None) -> Figure:
        """
        Draw quantile residuals against what they should be, against predictions, and against each column.

        :param X: A table of the columns of the fit.
        :param y: The responses, or the name of their column; None if a formula names it.
        :param offset: As for the fit.
        :param exposure: As for the fit.
        :param trials: As for the fit.
        :return: The figure of matplotlib.
        """
        arguments = {"offset": offset, "exposure": exposure, "trials": trials}
        scores = self.quantile_residuals(X, y, **arguments)
        fitted, frame, x, rows = self._read(X, arguments)
        means = predictor_moments(fitted, x, rows, fitted.parts)[0, 0]
        return pictures.plot_residuals(fitted, scores, means, frame[fitted.design.columns])

    def log_density(
        self, X: Any, y: Any = None, *, offset: Any = None, exposure: Any = None, trials: Any = None
    ) -> Any:
        """
        The log predictive density of each of some rows, of counts and classes the log probability, in nats: the larger
        the better. Rows of the fit are predicted too well: :meth:`leave_one_out` is for them.

        :param X: A table of the columns of the fit.
        :param y: The responses, or the name of their column; None if a formula names it.
        :param offset: As for the fit.
        :param exposure: As for the fit.
        :param trials: As for the fit.
        :return: Numbers ``(n,)``.
        """
        fitted, x, values, _, rows = self._observed(
            X, y, None, {"offset": offset, "exposure": exposure, "trials": trials}
        )
        return log_densities(fitted, x, values, rows)

    def log_score(
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
        The mean of :meth:`log_density` over rows: the log score, the negative of the log loss.

        :param X: A table of the columns of the fit.
        :param y: The responses, or the name of their column; None if a formula names it.
        :param sample_weight: Weights of the rows, or the name of their column.
        :param offset: As for the fit.
        :param exposure: As for the fit.
        :param trials: As for the fit.
        """
        arguments = {"offset": offset, "exposure": exposure, "trials": trials}
        fitted, x, values, weights, rows = self._observed(X, y, sample_weight, arguments)
        return float(np.average(log_densities(fitted, x, values, rows), weights=weights))

    def leave_one_out(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        offset: Any = None,
        exposure: Any = None,
        trials: Any = None,
    ) -> LeaveOneOut:
        """
        The log predictive density of each row of the fit given all others, without refits: see
        :func:`~gpytorch_gam.diagnostics.leave_one_out` for what this is and is not. Rows of weight zero are left out.

        :param X: The data of the fit, which the estimator does not keep.
        :param y: Its responses, or the name of their column; None if a formula names it.
        :param sample_weight: As for the fit.
        :param offset: As for the fit.
        :param exposure: As for the fit.
        :param trials: As for the fit.
        :raises ValueError: If the responses or weights are not those of the fit.
        """
        arguments = {"offset": offset, "exposure": exposure, "trials": trials}
        fitted, x, values, weights, rows = self._observed(X, y, sample_weight, arguments)
        used = weights > 0
        observed = values[used] * fitted.units.scale + fitted.units.centre
        rows = {name: value[used] for name, value in rows.items()}
        unit = fitted.units.scale if fitted.family.link == "identity" else 1.0
        given = {name: value.numpy() * (unit if name == "offset" else 1.0) for name, value in rows.items()}
        seen = Seen.of(observed, weights[used], given)
        if not self._seen.is_like(seen):
            raise ValueError(
                f"X, y and sample_weight ({used.sum()} rows) are not those of the fit ({self.n_rows_} rows): "
                "leave_one_out takes its data; log_density and log_score are for further rows"
            )
        if not self._seen.has_arguments_of(seen):
            raise ValueError(
                "offset, exposure or trials are not those of the fit: pass what fit was given, and nothing if it was "
                "given none"
            )
        return left_out(fitted, x[used], values[used], weights[used], rows)

    def _observed(
        self, X: Any, y: Any, sample_weight: Any, arguments: Mapping[str, Any]
    ) -> tuple[Fitted, Any, np.ndarray, np.ndarray, dict[str, Any]]:
        """The fitted model, inputs, responses in units of the fit, weights and row-wise arguments of some rows."""
        y = self._response_name() if y is None else y
        if y is None:
            raise ValueError("y is None, and no formula names the response: pass the responses, or their column")
        X, given = take_columns(X, {"y": y, "sample_weight": sample_weight})
        fitted, frame, x, rows = self._read(X, arguments)
        values = self._responses(given["y"])
        check_consistent_length(frame, values)
        fitted.family.check(values, rows["trials"].numpy() if "trials" in rows else None)
        weights = as_rows("sample_weight", given["sample_weight"], len(values))
        weights = np.ones(len(values)) if weights is None else weights
        if (weights < 0).any():
            raise ValueError(f"sample_weight must not be negative, but is in {int((weights < 0).sum())} rows")
        if not weights.any():
            raise ValueError(f"sample_weight is zero in all of {len(weights)} rows: at least one must count")
        return fitted, x, (values - fitted.units.centre) / fitted.units.scale, weights, rows

    @abstractmethod
    def _responses(self, y: Any) -> np.ndarray:
        """Responses of further rows as numbers."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """
        Write the fitted estimator to a file of safetensors, which :meth:`load` reads.

        :param path: The name of the file, which is replaced if it exists.
        """
        files.write(path, self, self._checked())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Any:
        """
        A fitted estimator from a file that :meth:`save` has written. A file cannot run code.

        :param path: The name of the file.
        :raises FileError: If the file is damaged, was written by a newer version, or holds another estimator.
        """
        with files.reading(path):
            description, fitted = files.read(path)
            if description["estimator"] != cls.__name__:
                raise files.FileError(f"{os.fspath(path)!r} holds a {description['estimator']}: use its load")
            found = cls(**{name: files.from_plain(value) for name, value in description["parameters"].items()})
            found._fitted, found.family_ = fitted, fitted.family
            found.result_ = files.result_of_description(description["result"])
            found._seen = Seen(**description["seen"])
            found.n_rows_, found.deviance_explained_ = description["n_rows"], description["deviance_explained"]
            found.interactions_ = interactions_of_description(description["interactions"])
            found.n_features_in_ = description["n_features_in"]
            if description["feature_names_in"] is not None:
                found.feature_names_in_ = np.array(description["feature_names_in"], dtype=object)
            found._set_apart, found._needed = description["set_apart"], description["needed"]
            classes = files.classes_of_description(description["classes"])
            if classes is not None:
                found.classes_ = classes
            return found

    @in_parts
    def predict_terms(
        self,
        X: Any,
        *,
        only: Sequence[str] | str | None = None,
        exclude: Sequence[str] | str | None = None,
        level: float = 0.95,
    ) -> pd.DataFrame:
        """
        The effect of each term with a pointwise credible band, on the scale of its predictor. Effects and the intercept
        add up to the predictor.

        Effects are centred: smooth ones, their lines included, and interactions of ``te`` have mean zero over the
        values of each column in the data of the fit, each value counting once for each row (periodic ones over the
        period), and those of ``f`` over its levels, each level counting once. Random effects (``re``, ``fs``) are
        not: they have mean zero a priori. Effects with a numeric ``by`` are multiplied by it and not centred.

        :param X: A table of the columns of the fit.
        :param only: Labels of terms, such as ``["s(age)"]``; default all.
        :param exclude: Labels of terms to leave out, instead of ``only``.
        :param level: The probability of the bands.
        :return: A data frame with two levels of columns: the term, and ``mean``, ``std``, ``lower`` and ``upper``.
        """
        level = checks.number("level", level, above=0, below=1)
        fitted, frame, x, _ = self._read(X, {})
        return term_table(fitted, x, fitted.chosen(only, exclude), level, frame.index)

    def intercepts(self, return_std: bool = False) -> Any:
        """
        The posterior mean of the intercept of each predictor, in its units: the predictor where all effects are zero,
        which is about its mean over the data, as effects are centred (see :meth:`predict_terms`).

        :param return_std: Whether to return posterior standard deviations as well.
        :return: A series by the names of the predictors; with ``return_std`` a pair.
        """
        found = intercept_table(self._checked())
        return (found["mean"], found["std"]) if checks.flag("return_std", return_std) else found["mean"]

    @in_parts
    def predict_link(
        self,
        X: Any,
        *,
        return_std: bool = False,
        only: Sequence[str] | str | None = None,
        exclude: Sequence[str] | str | None = None,
        offset: Any = None,
    ) -> Any:
        """
        The posterior mean of the predictor, on the scale of the link.

        :param X: A table of the columns of the fit.
        :param return_std: Whether to return its posterior standard deviation as well.
        :param only: Labels of terms to include besides the intercept; default all.
        :param exclude: Labels of terms to leave out, instead of ``only``.
        :param offset: A number for each row that is added to the predictor.
        :return: Means ``(n,)``, with several predictors ``(n, P)``; with ``return_std`` a pair.
        """
        fitted, _, x, arguments = self._read(X, {"offset": offset})
        found = predictor_moments(fitted, x, arguments, fitted.chosen(only, exclude))
        mean, deviation = (part[0] if part.shape[0] == 1 else part.T for part in found)
        return (mean, deviation) if checks.flag("return_std", return_std) else mean


class GAMRegressor(RegressorMixin, _GAM):
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
    :param kernel: The smoothness of effects: ``"matern52"``, ``"matern32"``, ``"matern12"`` or ``"rbf"``.
    :param num_inducing: Number of inducing points of smooth effects; default chosen by the fit.
    :param missing: What is done with missing values: ``"error"``; ``"marginal"``, for an effect that is unknown in
        these rows; or ``"level"``, which makes them a level of categories of their own. Terms may say otherwise.
    :param posterior: The family of the posterior, see :class:`~gpytorch_gam.AdditiveGP`; ``"auto"`` takes a full
        covariance while it is small, and then block + low-rank precisions.
    :param hyperparameters: Whether predictions, effects, their bands and draws include that hyperparameters such as
        lengthscales and noise are uncertain (as ``unconditional=TRUE`` in mgcv): ``"integrated"`` over their posterior,
        by models at several values of them, or ``"point"`` estimates. ``"auto"`` integrates unless that takes longer
        than the fit (with minibatches, or more than 100 of them), hardly more than one of the models has weight, or
        the rows are read in parts; :attr:`hyperparameters_` says it.
    :param method: How the fit sees the data, see :func:`~gpytorch_gam.fit`.
    :param tolerance: Nats that may be open at the end of the fit.
    :param device: ``"auto"``, a GPU if there is one; or the name of a device.
    :param progress: Whether to show the progress of the fit.
    :param random_state: Seed of what is random in a fit by minibatches.
    :param interactions: The most interactions of two columns that are added to the terms: those of columns that have
        effects of their own, ``ti(x, z)`` of numbers and ``sz(x, g)`` of a number and a category, which are screened
        after a fit without them. Default 0; ``"auto"`` takes those that pay, five at most.
    :param interaction_nats: The evidence for an interaction that is kept, in nats: it has to raise the bound by these,
        and by the logarithm of the number of candidates, of which one is expected. The default are posterior odds of
        twenty to one.
    :ivar model_: The fitted model of the package.
    :ivar likelihood_: Its likelihood.
    :ivar result_: What the fit has found, a :class:`~gpytorch_gam.training.FitResult`; None if it was interrupted.
    :ivar hyperparameters_: Whether hyperparameters are integrated out or point estimates, and why.
    :ivar terms_: The labels of the terms.
    :ivar bound_: The evidence lower bound of responses in their units, in nats.
    :ivar interactions_: The interactions that were screened, those first that promise most, or None: a data frame of
        the nats that screening ``estimated``, the ``nats`` in a fit (of the best, see
        :func:`~gpytorch_gam.diagnostics.component_evidence`), and which are ``kept``.
    :ivar family_: The distribution of the response.
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
        kernel: str = "matern52",
        num_inducing: int | None = None,
        missing: str = "error",
        posterior: str = "auto",
        hyperparameters: str = "auto",
        method: str = "auto",
        tolerance: float = 0.05,
        device: str = "auto",
        progress: bool = False,
        random_state: Any = None,
        interactions: str | int = 0,
        interaction_nats: float = 3.0,
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

        :param X: A data frame of pandas or polars, a table of pyarrow, or an array ``(n, D)`` with columns x0, x1, ...
            Or, to be read in parts, the path of a Parquet file or of a folder of these, a ``pyarrow.dataset``, a list
            of tables or an iterable of tables that begins anew each time (their order should then not matter, or the
            method not be minibatches), or a large ``numpy.memmap``.
        :param y: The responses ``(n,)``, or the name of their column; None if a formula names it.
        :param sample_weight: Weights of the rows: an integer weight counts a row that often.
        :param offset: A number for each row that is added to the (first) predictor.
        :param exposure: A positive number for each row by which the mean of counts is multiplied.
        :param trials: Numbers of trials of the binomial family; default one.
        """
        return self._fit(X, y, sample_weight, {"offset": offset, "exposure": exposure, "trials": trials})

    def _encode_response(self, y: Any) -> tuple[np.ndarray, Family]:
        family = regression_family(self.family)
        values = column_or_1d(y, warn=True)
        if values.dtype.kind not in "biuf":
            values = _numbers_of_objects(values)
        values = values.astype(np.float64)
        _refuse_not_finite(values)
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
        The mean of new observations; with the quantile family, the quantile.

        :param X: A table of the columns of the fit.
        :param return_std: Whether to return the standard deviation of new observations as well, noise included.
        :param only: Labels of terms to include besides the intercept; default all.
        :param exclude: Labels of terms to leave out, instead of ``only``, such as random effects.
        :param offset: See :meth:`fit`.
        :param exposure: See :meth:`fit`.
        :param trials: See :meth:`fit`.
        :return: Means ``(n,)``; with ``return_std`` a pair.
        """
        fitted, _, x, arguments = self._read(X, {"offset": offset, "exposure": exposure, "trials": trials})
        mean, deviation = response_moments(fitted, x, arguments, fitted.chosen(only, exclude))
        return (mean, deviation) if checks.flag("return_std", return_std) else mean

    def score(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        offset: Any = None,
        exposure: Any = None,
        trials: Any = None,
    ) -> float:
        """
        The coefficient of determination of predicted means.

        :param X: A table of the columns of the fit.
        :param y: The responses.
        :param sample_weight: Weights of the rows.
        :param offset: See :meth:`fit`.
        :param exposure: See :meth:`fit`.
        :param trials: See :meth:`fit`.
        """
        means = self.predict(X, offset=offset, exposure=exposure, trials=trials)
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
        Central credible intervals of the mean function, which shrink as data grow.

        :param X: A table of the columns of the fit.
        :param level: Their probability.
        :param only: See :meth:`predict`.
        :param exclude: See :meth:`predict`.
        :param offset: See :meth:`fit`.
        :param exposure: See :meth:`fit`.
        :param trials: See :meth:`fit`.
        :return: Lower and upper ends, ``(n, 2)``.
        """
        fitted, _, x, arguments = self._read(X, {"offset": offset, "exposure": exposure, "trials": trials})
        return mean_quantiles(fitted, x, arguments, fitted.chosen(only, exclude), _tails(level)).T

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
        Central prediction intervals of new observations: noise and the uncertainty of the mean function together.

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
        return self.predict_quantiles(X, _tails(level), **more)

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
        Quantiles of new observations.

        :param X: A table of the columns of the fit.
        :param probabilities: One or several probabilities between 0 and 1.
        :param only: See :meth:`predict`.
        :param exclude: See :meth:`predict`.
        :param offset: See :meth:`fit`.
        :param exposure: See :meth:`fit`.
        :param trials: See :meth:`fit`.
        :return: Quantiles ``(n,)``, or ``(n, K)`` for several.
        """
        fitted, _, x, arguments = self._read(X, {"offset": offset, "exposure": exposure, "trials": trials})
        wanted = np.atleast_1d(np.asarray(probabilities, dtype=np.float64)).tolist()
        found = response_quantiles(fitted, x, arguments, fitted.chosen(only, exclude), wanted)
        return found[0] if np.ndim(probabilities) == 0 else found.T


class GAMClassifier(ClassifierMixin, _GAM):
    """
    Classification by a Bayesian generalized additive model: log odds, or a predictor for each of several classes, that
    are sums of effects of columns. Parameters that are not listed are those of :class:`GAMRegressor`.

    :param family: ``"auto"``: a logit link for two classes, one predictor a class for more (``"softmax"``).
        ``"probit"``, or ``"ordinal"`` for classes in order: that of an ordered categorical, otherwise sorted.
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
        kernel: str = "matern52",
        num_inducing: int | None = None,
        missing: str = "error",
        posterior: str = "auto",
        hyperparameters: str = "auto",
        method: str = "auto",
        tolerance: float = 0.05,
        device: str = "auto",
        progress: bool = False,
        random_state: Any = None,
        interactions: str | int = 0,
        interaction_nats: float = 3.0,
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
        :param offset: A number for each row that is added to the (first) predictor.
        """
        return self._fit(X, y, sample_weight, {"offset": offset})

    def _encode_response(self, y: Any) -> tuple[np.ndarray, Family]:
        checks.choice("family", self.family, _CLASSIFICATION)
        order = _category_order(y)
        values = column_or_1d(y, warn=True)
        if values.dtype.kind == "f":
            _refuse_not_finite(values)
        elif pd.isna(values).any():
            raise ValueError(
                f"y has missing values in {int(pd.isna(values).sum())} of {len(values)} rows: leave these rows out"
            )
        check_classification_targets(values)
        self.classes_, codes = np.unique(values, return_inverse=True)
        if order is not None and self.family == "ordinal":
            self.classes_ = np.array([each for each in order if each in set(values)], dtype=self.classes_.dtype)
            position = {value: index for index, value in enumerate(self.classes_)}
            codes = np.array([position[value] for value in values])
        if len(self.classes_) < 2:
            raise ValueError(f"y has one class, {self.classes_.tolist()[0]!r}: a classifier needs at least two")
        return codes.astype(np.float64), self._family()

    def _responses(self, y: Any) -> np.ndarray:
        values = column_or_1d(y)
        position = {value: index for index, value in enumerate(self.classes_.tolist())}
        unknown = sorted({str(value) for value in values.tolist() if value not in position})
        if unknown:
            raise ValueError(f"y has {unknown}, which are none of the classes {self.classes_.tolist()}")
        return np.array([position[value] for value in values.tolist()], dtype=np.float64)

    def _family(self) -> Family:
        if self.family == "ordinal":
            return Ordinal(num_classes=len(self.classes_))
        if self.family == "softmax" or (self.family == "auto" and len(self.classes_) > 2):
            return Softmax(classes=tuple(str(each) for each in self.classes_))
        if len(self.classes_) > 2:
            raise ValueError(
                f"family {self.family!r} has two classes, but y has {len(self.classes_)}: take 'softmax' or 'ordinal'"
            )
        return Binomial(link="probit" if self.family == "probit" else "logit")

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
        fitted, _, x, arguments = self._read(X, {"offset": offset})
        return class_probabilities(fitted, x, arguments, fitted.chosen(only, exclude))

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
        Central credible intervals of the probability of the second of two classes.

        :param X: A table of the columns of the fit.
        :param level: Their probability.
        :param offset: See :meth:`fit`.
        :return: Lower and upper ends, ``(n, 2)``.
        """
        fitted, _, x, arguments = self._read(X, {"offset": offset})
        if fitted.family.name != "binomial":
            raise ValueError(f"probability_interval is for two classes, this is the family {fitted.family.name!r}")
        return mean_quantiles(fitted, x, arguments, fitted.parts, _tails(level)).T


def _tails(level: float) -> tuple[float, float]:
    level = checks.number("level", level, above=0, below=1)
    return 0.5 - level / 2, 0.5 + level / 2


def _refuse_not_finite(values: np.ndarray) -> None:
    is_bad = ~np.isfinite(values)
    if is_bad.any():
        what = "NaN" if np.isnan(values).any() else "infinity"
        raise ValueError(
            f"Input y contains {what} (inf or NaN in {int(is_bad.sum())} of {len(values)} rows): leave these rows out"
        )


def _numbers_of_objects(values: np.ndarray) -> np.ndarray:
    """Numbers that are held as objects; a TypeError for text, which is never taken for numbers."""
    if any(isinstance(value, str) for value in values.tolist()):
        raise TypeError("y holds text: convert it with pandas.to_numeric, or use GAMClassifier for classes")
    if values.dtype.kind == "c":
        raise ValueError("Complex data not supported in y")
    others = {type(value).__name__ for value in values.tolist() if isinstance(value, date | timedelta)}
    if others:
        raise TypeError(f"y holds {', '.join(sorted(others))}: give numbers, such as a number of days")
    return np.array(
        [np.nan if value is None or value is pd.NA else value for value in values.tolist()], dtype=np.float64
    )


def _category_order(y: Any) -> list[Any] | None:
    """The order of an ordered categorical of pandas."""
    dtype = getattr(y, "dtype", None)
    return list(dtype.categories) if isinstance(dtype, pd.CategoricalDtype) and dtype.ordered else None
