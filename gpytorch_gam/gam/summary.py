"""What a fitted model says of itself: the terms one by one, and the fit as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from .terms import PERIODS

# Days from which lengthscales are shown in years.
_LONG = 1000.0

#: What the root of the parameter "noise" is: that of Student's t is no standard deviation.
NOISE_NAMES = {"gaussian": "noise sd", "student_t": "scale"}

# What noise at the lower end of its range means.
_NO_NOISE = (
    " (at its lower bound: effects reach all responses, as of runs of a simulator without noise; bands hold what is "
    "unknown of the effects alone)"
)


@dataclass(frozen=True)
class Summary:
    r"""
    A summary; printed, it is a table.

    Columns of ``terms``, in data units:

    - ``edf``: effective degrees of freedom, the number of directions of the effect that the data determine:
      :math:`\mathrm{tr}(I - S)` for the posterior covariance S of its whitened variables.
    - ``prior_sd``: the standard deviation of the whole effect under its prior, as the fit has chosen it, over the rows
      of the data, and with a numeric ``by`` where that has its root mean square. That of the levels of ``f`` is fixed
      and left out, unless they are ordered.
    - ``lengthscale``: the distance over which the curve of an effect changes, in units of its column, printed days or
      years of dates, and levels of an ordered ``f``. Of a column with a long tail it is that where most values are; of
      a periodic effect that is longer than the period, the effect is a sine wave. Of ``te`` and ``ti`` it is that of
      the interaction along each column; of curves by levels the smallest to the largest, as each level has its own
      (those of ``fs`` and ``sz`` have one together). It is missing where there is no curve, or the fit has switched it
      off and left a line.
    - ``share``: the variance of the effect over the data as a share of that of the predictor. It is the posterior
      median at the estimates of the hyperparameters, where ``edf`` and ``p`` are taken, too: a term that the fit has
      switched off has 0. Draws of the effect are taken whole, so that its own uncertainty counts as variance. Shares of
      correlated effects need not add up to one. First-order indices of ``sobol_indices`` are those of columns, over all
      combinations of their values, with uncertain hyperparameters.
    - ``share_lower``, ``share_upper``: its 95% interval, in which hyperparameters are uncertain where they are in
      predictions, extended to the ``share`` if that is outside.
    - ``p``: a tail probability for the question whether there is any effect: that of the score test of a variance of
      zero, see :func:`~gpytorch_gam.diagnostics.score_test`. It is given the other hyperparameters, and says nothing of
      the size of an effect, which ``share`` does. A term that the fit has switched off has 1. Predictors of several
      classes are known by their differences alone: there, ``p`` is for an effect of the term in any of them.

    The line of curves by levels, ``s(x, by=g)``, has the sum of ``edf`` over the levels, the root of the mean of their
    prior variances, and ``p`` for any effect in any level: a difference between levels is what
    :func:`~gpytorch_gam.gam.compare` and ``plot_difference`` are for.

    Deviances of different families are on different scales, and so is the share that is explained: compare families by
    their bounds.

    :ivar terms: One row a term.
    :ivar components: ``edf``, ``prior_sd``, ``lengthscale`` and ``p`` of each component of the terms that have several:
        the curves of levels, which are printed, too; the ``line`` of a smooth effect and its ``curve``, by which it
        deviates from the line; and the effects of the columns of ``te`` and their ``interaction``.
    :ivar intercepts: Posterior ``mean`` and standard deviation ``std`` of the intercept of each predictor that has one.
    :ivar random_effects: The standard deviation ``sd`` of each random effect (``re``, ``fs``, ``sz``), in units of the
        predictor (of slopes, ``re(g, by=x)``, for each unit of ``x``), and of the noise, with the ends ``lower`` and
        ``upper`` of 95% intervals from the curvature of the bound in their logarithms. Ends are missing where
        hyperparameters count as known (``hyperparameters="point"``), or the fit has switched the effect off.
    :ivar likelihood: The parameters of the distribution of the response that have no predictor, in units of the
        response: ``estimate`` and the ends ``lower`` and ``upper`` of 95% intervals, as for random effects. They are
        the ``noise sd`` of normal responses; ``scale`` and degrees of freedom ``deg_free`` of Student's t; the
        ``shape`` of the gamma distribution, one over the squared coefficient of variation; the ``dispersion`` a of
        negative binomial counts, whose variance is :math:`\mu + a \mu^2` (mgcv's ``theta`` is 1 / a): far from 0,
        counts vary more than Poisson counts; and the ``inflation``, the probability of an additional zero. ``at_bound``
        says which ended at a bound of their constraint: noise at its lower bound is that of a simulator without any.
    :ivar facts: The fit as a whole.
    :ivar warnings: What to look at.
    :ivar in_days: The terms of dates, whose lengthscales are in days.
    :ivar with_levels: The terms that have a curve for each level.
    """

    terms: pd.DataFrame
    components: pd.DataFrame
    intercepts: pd.DataFrame
    random_effects: pd.DataFrame
    likelihood: pd.DataFrame
    facts: dict[str, Any]
    warnings: tuple[str, ...]
    in_days: tuple[str, ...] = ()
    with_levels: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The facts, the tables and the warnings."""
        lines = [f"{name}: {_shown(value)}{self._shown_interval(name)}" for name, value in self.facts.items()]
        for name, row in self.intercepts.iterrows():
            of = f" of {name}" if len(self.intercepts) > 1 or str(name).startswith("log_") else ""
            lines.append(f"intercept{of}: {_shown(row['mean'])} (standard error {row['std']:.3g})")
        if len(self.terms):
            lines += ["", _shown_table(self._with_units(self.terms))]
        for label in self.with_levels:
            curves = self._with_units(self.components.loc[[label]]).loc[label]
            lines += ["", f"levels of {label}", _shown_table(curves)]
        if len(self.random_effects):
            lines += ["", _shown_table(self.random_effects)]
        return "\n".join([*lines, *(f"warning: {each}" for each in self.warnings)])

    def __repr__(self) -> str:
        return str(self)

    def _shown_interval(self, name: str) -> str:
        """The interval of a parameter of the likelihood, where there is one, or that noise is at its lower bound."""
        if name not in self.likelihood.index:
            return ""
        row = self.likelihood.loc[name]
        if row["at_bound"] and name == NOISE_NAMES["gaussian"]:
            return _NO_NOISE
        return "" if row.isna().any() else f" (95% interval {row['lower']:.3g} to {row['upper']:.3g})"

    def _with_units(self, table: pd.DataFrame) -> pd.DataFrame:
        """A table of terms, or of their components, with the units of times."""
        scales = [
            shown_days(value) if label in self.in_days and isinstance(value, float) and value == value else value
            for label, value in zip(table.index.get_level_values("term"), table["lengthscale"], strict=True)
        ]
        return table.assign(lengthscale=pd.Series(scales, table.index, dtype=object))


def shown_days(days: float) -> str:
    """
    A length of time with its unit.

    :param days: The time in days.
    """
    return f"{days / PERIODS['year']:.3g} years" if days >= _LONG else f"{days:.3g} days"


def _shown(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.2f}" if abs(value) >= 1000 else f"{value:.4g}"  # differences of bounds count, not their size


def _shown_table(table: pd.DataFrame) -> str:
    shown = pd.DataFrame(
        {name: [_SHOWN.get(name, _shown_cell)(value) for value in table[name]] for name in table},
        index=list(table.index),
    )
    with pd.option_context("display.width", 200, "display.max_columns", 20):
        return shown.to_string()


def _shown_cell(value: Any) -> str:
    if value is None or value != value:  # NaN
        return ""
    return value if isinstance(value, str) else f"{value:.3g}"


def _shown_size(value: float) -> str:
    return "<1e-4" if 0 < value < 1e-4 else _shown_cell(value)


def _shown_probability(value: float) -> str:
    return "<1e-6" if value < 1e-6 else f"{value:.3g}"


# How the cells of some columns are shown.
_SHOWN = {
    "p": _shown_probability,
    **dict.fromkeys(("edf", "share", "share_lower", "share_upper"), _shown_size),
}
