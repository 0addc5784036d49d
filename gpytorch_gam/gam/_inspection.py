"""What can be asked of any fitted estimator: its effects, summaries, pictures, residuals and scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from sklearn.utils import check_random_state

from gpytorch_gam import _checks as checks
from gpytorch_gam._caught_warnings import warnings_at_caller
from gpytorch_gam.diagnostics import Concurvity, LeaveOneOut

from . import pictures
from ._estimator import GAMEstimator
from .columns import kind_of, numbers_of
from .draws import FunctionDraws, draw_functions
from .effects import (
    EffectGrid,
    columns_of,
    difference_table,
    grid_of,
    is_curve,
    level_column,
    may_be_level,
    values_at,
    within_period,
)
from .interactions import candidate_terms
from .missing_interactions import assumed_additive, left_out_by_limit
from .parameter_tables import intercept_table
from .parts import Part
from .prediction import predictor_moments, term_moments, term_table
from .residuals import PartialResiduals, QuantileResiduals, quantile_residuals, working_residuals
from .response_scale import (
    SCALES,
    class_table,
    exponential_table,
    has_several_classes,
    refuse_no_ratio,
    scaled_effect_tables,
)
from .scores import Seen, left_out, log_densities
from .sensitivity import Choices, sobol_table, warn_of_extrapolation
from .streams import in_parts
from .summarising import summarise
from .summary import Summary
from .term_concurvity import concurvity_of_terms
from .value_checks import is_dropped, lacks_effect

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class FittedGAM(GAMEstimator):
    """Predictors and effects, summaries, pictures, residuals and scores, whatever the response is."""

    # ------------------------------------------------------------------ predictions of the predictor

    @in_parts
    def outside_range(self, X: Any) -> pd.DataFrame:
        """
        Which values lie outside of what the fit has seen: beyond the range of a number, or unseen levels. Effects are
        extrapolated there, and their bands tell how uncertain that is under the prior.

        :param X: A table of the columns of the fit.
        :return: A data frame of booleans, with the columns that have a range or levels.
        """
        return self._checked().design.outside(self._columns_of(X))

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
        kept = self._checked().chosen(only, exclude)
        fitted, frame, x, _ = self._read(X, {}, kept)
        return term_table(fitted, x, kept, level, frame.index)

    def intercepts(self, return_std: bool = False) -> Any:
        """
        The posterior mean of the intercept of each predictor that has one, in its units: the predictor where all
        effects are zero, which is about its mean over the data, as effects are centred (see :meth:`predict_terms`).

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
        The posterior mean of the predictor, on the scale of the link: of the log mean per unit, if there is an
        exposure, which is no part of it.

        :param X: A table of the columns of the fit.
        :param return_std: Whether to return its posterior standard deviation as well.
        :param only: Labels of terms to include besides the intercept; default all.
        :param exclude: Labels of terms to leave out, instead of ``only``.
        :param offset: A number for each row that is added to the predictor; default the column that it was in the fit,
            if X has this.
        :return: Means ``(n,)``, with several predictors ``(n, P)``; with ``return_std`` a pair.
        """
        kept = self._checked().chosen(only, exclude)
        fitted, _, x, arguments = self._read(X, {"offset": offset}, kept)
        found = predictor_moments(fitted, x, arguments, kept)
        mean, deviation = (part[0] if part.shape[0] == 1 else part.T for part in found)
        return (mean, deviation) if checks.flag("return_std", return_std) else mean

    # ------------------------------------------------------------------ summaries and effects

    def summary(self) -> Summary:
        """The terms one by one and the fit as a whole: a :class:`~gpytorch_gam.gam.summary.Summary`, which prints."""
        fitted, response = self._checked(), self._shown_response()
        found = summarise(fitted, self.result_, self.n_rows_, self.deviance_explained_, self.bound_, response)
        note = self._why_no_interactions() or self._interactions_beyond_limit()
        more = {"interactions": note} if note else {}
        if self.n_rows_left_out_:
            more["left out"] = f"{self.n_rows_left_out_} rows with missing values"
        return replace(found, facts={**found.facts, **more})

    def _interactions_beyond_limit(self) -> str:
        """What to know of interactions for which the search had no place; empty if there are none."""
        return "" if self.interactions_ is None else left_out_by_limit(self.interactions_)

    def _why_no_interactions(self) -> str:
        """Why interactions were not looked for although terms are automatic; empty if they were, or need not be."""
        fitted = self._checked()
        is_wanted = self.interactions == "auto" and self._limits(fitted.family) is not None
        if not is_wanted or self.interactions_ is not None or self.result_ is None or not candidate_terms(fitted.parts):
            return ""
        return (
            f"not looked for, as the fit is by {self.result_.method}: give interactions=5, or fit to some of the rows"
        )

    def effect(
        self,
        term: str,
        *,
        num: int = 100,
        at: Any = None,
        level: float = 0.95,
        simultaneous: bool = False,
        scale: str = "link",
    ) -> pd.DataFrame:
        """
        The effect of a term on a grid of its columns, as pictures show it, or at values that are given.

        :param term: Its label, such as ``"s(age)"``.
        :param num: Number of values of a numeric column, from the smallest in the data to the largest, or over the
            period.
        :param at: Values instead: a number, date or level, or several, of the column of the term (of curves by levels
            for each level); or a mapping from the names of columns, ``{"lon": [5.3, 10.7], "lat": [60.4, 59.9]}``, or
            a table with them, one row of the result each. Columns of the term that it does not name take their grid.
        :param level: The probability of the bands.
        :param simultaneous: Whether to add the ends ``lower_all`` and ``upper_all`` of a band that holds the whole
            function with that probability.
        :param scale: ``"link"``, the effect on its predictor; or ``"response"``, the mean of the response (the
            probability of the second class; of further predictors such as ``log_scale``, their exponential) if all
            other effects are zero, with the uncertainty of the intercept. Of more than two classes, the probability of
            each, for which the term counts in the predictors of all classes.
        :return: The columns of the term, ``mean``, ``lower`` and ``upper``, on the link scale ``std``, and for
            probabilities of several classes ``class``. A column of the term that has one of these names itself is
            called such as ``column mean``.
        """
        _check_num(num)
        checks.choice("scale", scale, SCALES)
        fitted, part = self._part(term)
        level = tails(level)[1] * 2 - 1
        grid = grid_of(fitted, part, num) if at is None else values_at(fitted, part, at, num)
        if scale == "response" and has_several_classes(fitted):
            if checks.flag("simultaneous", simultaneous):
                raise ValueError("simultaneous must be False for probabilities of several classes: bands are pointwise")
            return class_table(fitted, part, grid, level, self._classes())
        (table,) = scaled_effect_tables(fitted, [EffectGrid(part, grid, simultaneous)], level, scale)
        return table

    def difference(
        self,
        term: str,
        first: Any,
        second: Any,
        *,
        num: int = 100,
        level: float = 0.95,
        simultaneous: bool = False,
        scale: str = "link",
    ) -> pd.DataFrame:
        """
        By how much the effect of a term differs between two values of a column, such as 8 and 18 h: the effect at the
        first minus that at the second, with bands that know how the two are correlated. Of the posterior, mean and
        variance are exact, the uncertainty of hyperparameters included where predictions have it.

        The difference of curves by levels, ``s(x, by=g)``, leaves out that of the levels themselves, ``f(g)``: a ratio
        of the curves alone is no ratio of means. For the differences of predictions, of several terms together or of
        their mean over some rows, :meth:`draw_functions` has draws.

        :param term: Its label, such as ``"s(hour)"``.
        :param first: A value of its column: a number, date or level; of curves by levels such as ``"s(age, by=sex)"``,
            a level. Or a mapping from names of columns, ``{"lon": 5.3, "lat": 60.4}``.
        :param second: What is subtracted: a value of the same column or columns.
        :param num: Number of values of a numeric column that is not named, such as that of curves by levels.
        :param level: The probability of the bands.
        :param simultaneous: Whether to add the ends ``lower_all`` and ``upper_all`` of a band that holds the
            differences at all values of further columns with that probability.
        :param scale: ``"link"``, the difference of effects on the predictor, or ``"ratio"``, its exponential: by what
            the mean of a family with a log link is multiplied (or odds, with a logit link, or the scale).
        :return: The columns of the term that are not named, ``mean``, ``lower``, ``upper`` and, on the link scale,
            ``std``; one row if all columns are named. ``mean`` of a ratio is its median.
        :raises ValueError: If the two name different columns, or a ratio has no meaning.

        Example:
            >>> gam.difference("s(hour)", 8, 18, scale="ratio")
            >>> gam.difference("s(age, by=sex)", "f", "m", simultaneous=True)
        """
        _check_num(num)
        checks.choice("scale", scale, ("link", "ratio"))
        fitted, part = self._part(term)
        if scale == "ratio":
            refuse_no_ratio(fitted, part)
        settings = self._setting(part, "first", first), self._setting(part, "second", second)
        if set(settings[0]) != set(settings[1]):
            raise ValueError(f"first names {list(settings[0])}, but second {list(settings[1])}: name the same columns")
        level, simultaneous = tails(level)[1] * 2 - 1, checks.flag("simultaneous", simultaneous)
        found = difference_table(fitted, part, settings, num, level, simultaneous)
        return found if scale == "link" else exponential_table(found)

    def _setting(self, part: Part, argument: str, value: Any) -> Mapping[str, Any]:
        """The columns of a term that a value stands for."""
        names, by = columns_of(self._fitted, part), level_column(self._fitted, part)
        if not isinstance(value, Mapping) and by is None and len(names) > 1:
            example = dict.fromkeys(names, "...")
            raise TypeError(f"{argument} must name columns of {part.label}, such as {example}, got {value!r}")
        found = dict(value) if isinstance(value, Mapping) else {names[0] if by is None else by: value}
        unknown = [name for name in found if name not in names]
        if unknown:
            raise ValueError(f"{argument} names {unknown}, which are no columns of {part.label}: {names}")
        if not found or any(np.ndim(each) > 0 for each in found.values()):
            raise TypeError(f"{argument} must be one value, or one of each column, got {checks.shown(value)}")
        if by is not None and not isinstance(value, Mapping) and not may_be_level(self._fitted, part, by, value):
            column = next(name for name in names if name != by)
            raise ValueError(
                f"{argument} must be a level of {by!r}, or name the columns of {part.label}, such as "
                f"{{{by!r}: ..., {column!r}: {value!r}}}, got {value!r}"
            )
        return found

    def draw_functions(self, num: int = 100, random_state: Any = None) -> FunctionDraws:
        """
        Draw whole functions from the posterior, for the risk of a threshold, the place of a maximum, or contrasts.

        :param num: Their number.
        :param random_state: The seed, or a random state.
        :return: Callables, see :class:`~gpytorch_gam.gam.draws.FunctionDraws`.
        """
        checks.integer("num", num, least=1)
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        return draw_functions(self._checked(), self._read, num, seed)

    def sobol_indices(
        self,
        X: Any = None,
        *,
        parameter: str | None = None,
        independent: bool | None = None,
        second_order: bool = False,
        num: int = 200,
        level: float = 0.95,
        random_state: Any = 0,
    ) -> pd.DataFrame:
        """
        First-order and total Sobol indices of the columns: the shares in the variance of a predictor, on the scale of
        the link and without offsets, of its mean given the column, and of all that the column takes part in.

        Rows of X are the distribution of the columns, and count alike. For independent columns it is that of each
        column in these rows, in combinations that X need not have. Where you know the distribution of the inputs, give
        it: rows of a Sobol sequence that is mapped to it, such as 2,048. Those of a sample, such as the fit, have
        moments with an error that intervals leave out. If columns depend on each other, variances are those over the
        rows as they are, of which a :class:`~gpytorch_gam.warnings.DependentColumnsWarning` tells: then these are no
        Sobol indices, but ``first`` is the share of the terms that read the column alone, ``total`` that of all terms
        that read it, either can exceed one, and the table calls its rows ``dependent column``. See
        :func:`~gpytorch_gam.diagnostics.sobol_indices`.

        The ``share`` of a summary is another number: that of a term over the rows of the fit as they are, with
        hyperparameters at their estimates.

        A model without interactions has total indices that equal those of first order. Where none were looked for, and
        noise is left that could hide some, a :class:`~gpytorch_gam.warnings.MissingInteractionsWarning` says so.

        :param X: A table of the columns of the fit; rows with missing values are left out, and unless
            ``independent=True`` 2,048 rows are drawn if it has more. None takes rows of the fit, of which the estimator
            keeps about a thousand. Where more than a twentieth of them lies outside of what the fit has seen, an
            :class:`~gpytorch_gam.warnings.InputRangeWarning` says so.
        :param parameter: The name of the predictor; default the first.
        :param independent: Whether each column takes its values by itself. None: unless the rows show that columns
            depend on each other, or terms do not allow it.
        :param second_order: Whether to return the indices of interactions instead, of those columns that terms read
            together; others have none.
        :param num: Number of draws from the posterior, those of hyperparameters included if they are integrated out.
        :param level: The probability of the intervals.
        :param random_state: The seed of draws and of rows, or a random state.
        :return: A data frame with a row for each column that terms read: posterior means ``first`` (order) and
            ``total``, each followed by the ends ``_lower`` and ``_upper`` of its interval. With ``second_order`` a row
            for each interaction, with ``index`` and its interval.
        :raises ValueError: For the softmax family, whose predictors have no meaning one by one; with ``second_order``,
            if columns do not count as independent.
        """
        checks.integer("num", num, least=2)
        if independent is not None:
            checks.flag("independent", independent)
        checks.flag("second_order", second_order)
        level = checks.number("level", level, above=0, below=1)
        fitted = self._checked()
        parameters = fitted.design.parameters
        predictor = 0 if parameter is None else parameters.index(checks.choice("parameter", parameter, parameters))
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        frame = None if X is None else self._frame(X)
        x = None if frame is None else fitted.design.inputs(frame)
        with warnings_at_caller():
            if frame is not None:
                warn_of_extrapolation(fitted, frame)
            choices = Choices(predictor, independent, second_order, num, level, seed)
            return sobol_table(fitted, x, choices, self._missing_interactions(predictor))

    def _missing_interactions(self, predictor: int) -> str:
        """What to know of indices where nobody has looked for interactions; empty if there is nothing."""
        why_not = self._why_no_interactions()
        if why_not:
            return f"these indices are of effects of single columns alone: interactions were {why_not}"
        if self.interactions_ is not None:
            beyond = self._interactions_beyond_limit()
            return f"indices leave out interactions: {beyond}" if beyond else ""
        return assumed_additive(self._checked(), predictor, self.deviance_explained_)

    # ------------------------------------------------------------------ pictures

    def plot(
        self,
        *,
        only: Sequence[str] | str | None = None,
        exclude: Sequence[str] | str | None = None,
        level: float = 0.95,
        scale: str = "link",
        sharey: bool = True,
    ) -> Figure:
        """
        Draw all effects, or some, one panel each: see :meth:`plot_term`.

        :param only: Labels of terms, such as ``["s(age)"]``; default all.
        :param exclude: Labels of terms to leave out, instead of ``only``, such as interactions.
        :param level: The probability of the bands.
        :param scale: See :meth:`effect`.
        :param sharey: Whether effects on the same predictor are shown in the same range, so that their sizes compare;
            False shows each in its own. Surfaces have a bar of colours each.
        :return: The figure of matplotlib.
        """
        fitted, look = self._checked(), self._look(level, scale)
        return pictures.overview(fitted, fitted.chosen(only, exclude), look, checks.flag("sharey", sharey))

    def _look(self, level: float, scale: str = "link", simultaneous: bool = True) -> pictures.Look:
        checks.choice("scale", scale, SCALES)
        checks.flag("simultaneous", simultaneous)
        level = tails(level)[1] * 2 - 1
        return pictures.Look(level, simultaneous, scale, self._shown_response(), self._classes())

    def _classes(self) -> tuple[Any, ...]:
        """The classes, if the response has any."""
        return tuple(self.classes_.tolist()) if hasattr(self, "classes_") else ()

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
        :param X: Rows whose partial residuals are drawn as points, of curves in the first predictor. Those of a curve
            by a number are divided by it, and left out in rows where it is small.
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

    def _partial_residuals(self, part: Part, X: Any, y: Any, arguments: Mapping[str, Any]) -> PartialResiduals:
        """Values of the column of a curve, and the effect there plus residuals, as the curve is shown."""
        X, given, _ = self._without(lacks_effect, X, {"y": y, **arguments})
        fitted, x, scaled, _, rows = self._observed(X, given.pop("y"), None, given)
        (effect,), _ = term_moments(fitted, x, [part])
        frame, by = self._read(X, {})[1], part.term.multiplier
        values = within_period(fitted, part, frame[part.term.arguments[0]])
        observed = fitted.units.centre + fitted.units.scale * scaled
        found = PartialResiduals(values, effect + working_residuals(fitted, x, observed, rows))
        if by is None or level_column(fitted, part) is not None:
            return found
        return found.for_each_unit(numbers_of(frame[by], kind_of(frame[by])), by)

    def plot_difference(
        self,
        term: str,
        first: Any,
        second: Any,
        *,
        ax: Axes | None = None,
        level: float = 0.95,
        simultaneous: bool = True,
    ) -> Axes:
        """
        Draw the difference of a term's curves between two levels: with a band at each point, and a lighter one that
        holds the whole difference.

        :param term: The label of a term of curves by levels, such as ``"s(age, by=sex)"``.
        :param first: A level.
        :param second: The level whose curve is subtracted.
        :param ax: Axes to draw on; default new ones.
        :param level: The probability of the bands.
        :param simultaneous: Whether to draw the lighter band.
        """
        fitted, part = self._part(term)
        by = level_column(fitted, part)
        if by is None or not is_curve(part):
            raise ValueError(
                f"{term} has no curves by levels to subtract: gam.difference({term!r}, first, second) compares the "
                "effect at two values of its columns"
            )
        known = fitted.design.encoding(by, "levels").levels
        for value in (first, second):
            if value not in known:
                raise ValueError(f"{value!r} is no level of {by!r}; levels are {list(known)}")
        return pictures.plot_difference(fitted, part, (first, second), ax, self._look(level, simultaneous=simultaneous))

    # ------------------------------------------------------------------ residuals and scores

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
        Randomised quantile residuals, which are standard normal if the model holds; NaN in rows that a fit with
        ``missing="drop"`` leaves out and that have no prediction, as the ``by`` of a term is missing.

        :param X: A table of the columns of the fit.
        :param y: The responses, or the name of their column; None if a formula names it.
        :param offset: As for the fit.
        :param exposure: As for the fit.
        :param trials: As for the fit.
        :param random_state: Seed of what is drawn for responses that are counts or classes.
        """
        arguments = {"offset": offset, "exposure": exposure, "trials": trials}
        X, given, used = self._without(lacks_effect, X, {"y": y, **arguments})
        found = self._quantile_residuals(X, given.pop("y"), given, random_state).residuals
        if used is None:
            return found
        residuals = np.full(len(used), np.nan)
        residuals[used] = found
        return residuals

    def _quantile_residuals(
        self, X: Any, y: Any, arguments: Mapping[str, Any], random_state: Any = 0
    ) -> QuantileResiduals:
        fitted, x, values, _, rows = self._observed(X, y, None, arguments)
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        return quantile_residuals(fitted, x, values, rows, seed)

    def check(self, X: Any, y: Any = None, *, offset: Any = None, exposure: Any = None, trials: Any = None) -> Figure:
        """
        Draw quantile residuals against what they should be, against predictions, and against each column. Rows without
        a prediction, in which the ``by`` of a term with ``missing="drop"`` is missing, are left out.

        :param X: A table of the columns of the fit.
        :param y: The responses, or the name of their column; None if a formula names it.
        :param offset: As for the fit.
        :param exposure: As for the fit.
        :param trials: As for the fit.
        :return: The figure of matplotlib.
        """
        arguments = {"offset": offset, "exposure": exposure, "trials": trials}
        X, given, _ = self._without(lacks_effect, X, {"y": y, **arguments})
        found, fitted = self._quantile_residuals(X, given.pop("y"), given), self._checked()
        return pictures.plot_residuals(fitted, *found, self._frame(X)[fitted.design.columns])

    def concurvity(self, X: Any = None) -> Concurvity:
        """
        How well terms can replace each other: the share of a term that functions of the others can reproduce at some
        rows, see :func:`~gpytorch_gam.diagnostics.concurvity`. A term counts as one: its line and its curve, its
        levels, and what ``te`` consists of are not compared with each other.

        :param X: A table of the columns of the fit, whose rows are complete; default some rows of its data, of which
            those with missing values are left out.
        """
        fitted = self._checked()
        return concurvity_of_terms(fitted, fitted.complete_rows() if X is None else self.model_inputs(X))

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
        :func:`~gpytorch_gam.diagnostics.leave_one_out` for what this is and is not. Rows of weight zero, and those
        that ``missing="drop"`` leaves out of the fit, are left out.

        :param X: The data of the fit, which the estimator does not keep.
        :param y: Its responses, or the name of their column; None if a formula names it.
        :param sample_weight: As for the fit.
        :param offset: As for the fit.
        :param exposure: As for the fit.
        :param trials: As for the fit.
        :raises ValueError: If the responses or weights are not those of the fit.
        """
        arguments = {"offset": offset, "exposure": exposure, "trials": trials}
        X, given, _ = self._without(is_dropped, X, {"y": y, "sample_weight": sample_weight, **arguments})
        fitted, x, values, weights, rows = self._observed(X, given.pop("y"), given.pop("sample_weight"), given)
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


def _check_num(num: Any) -> None:
    if np.ndim(num) > 0:
        raise TypeError(f"num must be a number of values, got {checks.shown(num)}: at= takes the values themselves")
    checks.integer("num", num, least=2)


def tails(level: float) -> tuple[float, float]:
    """The probabilities that end an interval which holds this much in its middle."""
    level = checks.number("level", level, above=0, below=1)
    return 0.5 - level / 2, 0.5 + level / 2
