"""
The terms of a model of data frames, which name columns: ``s("age")`` is to :func:`gpytorch_gam.terms.smooth` what a
line of a formula is to a matrix. They hold no data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from gpytorch_gam import _checks as checks

KERNELS = ("rbf", "matern12", "matern32", "matern52")
MISSING = ("error", "drop", "marginal", "level")

# The fields of terms that are options of the functions that make them.
_OPTIONS = ("by", "period", "k", "kernel", "linear", "ordered", "missing")

#: The lengths of named periods of dates, in days.
PERIODS = {"day": 1.0, "week": 7.0, "year": 365.2425}


@dataclass(frozen=True, repr=False)
class Term:
    """
    What the terms have in common.

    :ivar missing: What is done with missing values in the columns of the term, see :func:`s`. None: what the estimator
        says.
    """

    #: The name of the function that makes the term, in formulas and labels.
    call: ClassVar[str] = ""

    missing: str | None = None

    @property
    def arguments(self) -> tuple[str, ...]:
        """The columns that are arguments of the effect."""
        raise NotImplementedError

    @property
    def multiplier(self) -> str | None:
        """The column ``by``."""
        return getattr(self, "by", None)

    def roles(self, name: str) -> tuple[str, ...]:
        """
        How an argument of the effect is read: ``"number"``, ``"line"``, ``"multiplier"``, ``"coordinate"``,
        ``"levels"`` or a cycle.

        :param name: The name of its column.
        """
        raise NotImplementedError

    @property
    def columns_of_levels(self) -> tuple[str, ...]:
        """The columns of which each value is a level, also where they hold numbers."""
        return tuple(name for name in self.arguments if "levels" in self.roles(name))

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that the term reads."""
        return self.arguments if self.multiplier is None else (*self.arguments, self.multiplier)

    @property
    def label(self) -> str:
        """The term as it stands in a formula, without the options that do not tell it from others."""
        options = [] if self.multiplier is None else [f"by={self.multiplier}"]
        period = getattr(self, "period", None)
        options += (
            [] if period is None else [f"period={period:.15g}" if isinstance(period, float) else f"period={period}"]
        )
        return f"{self.call}({', '.join([*self.arguments, *options])})"

    def __repr__(self) -> str:
        """The call that makes the term."""
        given = [repr(name) for name in self.arguments]
        given += [
            f"{each.name}={getattr(self, each.name)!r}"
            for each in fields(self)
            if each.name in _OPTIONS and getattr(self, each.name) != each.default
        ]
        return f"{self.call}({', '.join(given)})"

    def _check_missing(self, *, levels: bool) -> None:
        if self.missing is not None:
            checks.choice(f"missing of {self.call}", self.missing, MISSING if levels else MISSING[:3])


@dataclass(frozen=True, repr=False)
class Smooth(Term):
    """A smooth effect of a column, see :func:`s`."""

    call: ClassVar[str] = "s"

    column: str = ""
    by: str | None = None
    period: float | str | None = None
    k: int | None = None
    kernel: str | None = None
    linear: bool = True

    def __post_init__(self) -> None:
        _check_columns(self)
        _check_smoothness(self)
        checks.flag("linear of s", self.linear)
        if isinstance(self.period, str):
            checks.choice("period of s", self.period, PERIODS)
        elif self.period is not None:
            object.__setattr__(self, "period", checks.number("period of s", self.period, above=0))
        self._check_missing(levels=False)

    @property
    def arguments(self) -> tuple[str, ...]:
        """The column."""
        return (self.column,)

    @property
    def has_line(self) -> bool:
        """Whether the effect has a linear part of its own."""
        return self.linear and self.by is None and self.period is None

    @property
    def cycle(self) -> str:
        """How the column of a periodic effect is read."""
        days = PERIODS[self.period] if isinstance(self.period, str) else self.period
        return f"cycle {days:.17g}"

    def roles(self, name: str) -> tuple[str, ...]:
        """See :meth:`Term.roles`."""
        if self.period is not None:
            return (self.cycle,)
        return ("number", "line") if self.has_line else ("number",)


@dataclass(frozen=True, repr=False)
class Linear(Term):
    """A linear effect of a column, see :func:`linear`."""

    call: ClassVar[str] = "linear"

    column: str = ""
    by: str | None = None
    is_through_zero: bool = False  # else it has mean zero over the data

    def __post_init__(self) -> None:
        _check_columns(self)
        self._check_missing(levels=False)

    @property
    def arguments(self) -> tuple[str, ...]:
        """The column."""
        return (self.column,)

    def roles(self, name: str) -> tuple[str, ...]:
        """See :meth:`Term.roles`."""
        return ("multiplier",) if self.is_through_zero else ("line",)


@dataclass(frozen=True, repr=False)
class Tensor(Term):
    """A smooth effect of two or three columns, see :func:`te` and :func:`ti`."""

    has_main_effects: bool = True
    names: tuple[str, ...] = ()
    k: int | None = None
    kernel: str | None = None

    def __post_init__(self) -> None:
        names = tuple(self.names)
        if len(set(names)) < len(names) or len(names) not in (2, 3):
            raise ValueError(f"{self.call} takes two or three different columns, got {list(names)}")
        object.__setattr__(self, "names", names)
        _check_columns(self)
        _check_smoothness(self)
        self._check_missing(levels=False)

    @property
    def call(self) -> str:  # type: ignore[override]
        """``te`` or ``ti``."""
        return "te" if self.has_main_effects else "ti"

    @property
    def arguments(self) -> tuple[str, ...]:
        """The columns."""
        return self.names

    def roles(self, name: str) -> tuple[str, ...]:
        """See :meth:`Term.roles`."""
        return ("number", "line") if self.has_main_effects else ("number",)


@dataclass(frozen=True, repr=False)
class Place(Tensor):
    """A smooth effect of a place, the same in all directions, see :func:`s`."""

    call: ClassVar[str] = "s"

    linear: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.flag("linear of s", self.linear)

    def roles(self, name: str) -> tuple[str, ...]:
        """See :meth:`Term.roles`."""
        return ("coordinate",)


@dataclass(frozen=True, repr=False)
class Factor(Term):
    """The effect of a category, see :func:`f`."""

    call: ClassVar[str] = "f"

    column: str = ""
    ordered: bool | None = None

    def __post_init__(self) -> None:
        _check_columns(self)
        if self.ordered is not None:
            checks.flag("ordered of f", self.ordered)
        self._check_missing(levels=True)

    @property
    def arguments(self) -> tuple[str, ...]:
        """The column."""
        return (self.column,)

    def roles(self, name: str) -> tuple[str, ...]:
        """See :meth:`Term.roles`."""
        return ("levels",)


@dataclass(frozen=True, repr=False)
class RandomEffect(Term):
    """A random effect of a category, see :func:`re`."""

    call: ClassVar[str] = "re"

    column: str = ""
    by: str | None = None

    def __post_init__(self) -> None:
        _check_columns(self)
        self._check_missing(levels=True)

    @property
    def arguments(self) -> tuple[str, ...]:
        """The column."""
        return (self.column,)

    def roles(self, name: str) -> tuple[str, ...]:
        """See :meth:`Term.roles`."""
        return ("levels",)


@dataclass(frozen=True, repr=False)
class RandomCurves(Term):
    """A curve for each level of a category, see :func:`fs`."""

    call: ClassVar[str] = "fs"

    column: str = ""
    levels: str = ""
    k: int | None = None
    kernel: str | None = None

    def __post_init__(self) -> None:
        _check_columns(self)
        _check_smoothness(self)
        if self.column == self.levels:
            raise ValueError(f"{self.call} takes a column and another one of levels, got {self.column!r} twice")
        self._check_missing(levels=False)

    @property
    def arguments(self) -> tuple[str, ...]:
        """The column, and that of the levels."""
        return (self.column, self.levels)

    def roles(self, name: str) -> tuple[str, ...]:
        """See :meth:`Term.roles`."""
        return ("levels",) if name == self.levels else ("number",)


@dataclass(frozen=True, repr=False)
class DeviatingCurves(RandomCurves):
    """The differences of a column's curves between levels, see :func:`sz`."""

    call: ClassVar[str] = "sz"


def s(
    *columns: str,
    by: str | None = None,
    period: float | str | None = None,
    k: int | None = None,
    kernel: str | None = None,
    linear: bool = True,
    missing: str | None = None,
) -> Smooth | Place:
    """
    A smooth effect of a numeric column or of a date: ``s(age)`` of mgcv. It is the sum of a line and a smooth function
    with mean zero over the data, which are shown and summarised as one effect.

    Of two or three columns it is the effect of a place, ``s(east, north)`` of mgcv: the sum of a plane and a smooth
    function that varies over the same distance in all directions, and contains the effects of its columns. As in mgcv
    the columns are not rescaled, and have to be coordinates in the same unit, such as kilometres; multiply longitudes
    by the cosine of the mean latitude. Columns with units of their own belong in :func:`te`.

    :param columns: The name of the column, or of two or three coordinates.
    :param by: A numeric column that multiplies the effect (a varying coefficient), or one of categories, each of which
        gets an effect of its own. As in mgcv the effects of categories leave out their levels: add ``f(by)``. Not of a
        place.
    :param period: The period of a periodic effect, in units of the column; of a date ``"day"``, ``"week"``, ``"year"``
        or a number of days. Not of a place.
    :param k: Number of inducing points. Default: chosen by the fit.
    :param kernel: ``"matern52"``, ``"matern32"``, ``"matern12"`` or ``"rbf"``. Default: that of the estimator.
    :param linear: Whether the effect has a linear part of its own, whose slope the smooth part need not bend to. It has
        none if it is periodic or has a ``by``.
    :param missing: What is done with missing values: ``"error"``; or ``"drop"``, which leaves these rows out of the
        fit, as mgcv does, and predicts them with an effect that is unknown, with mean zero and its variance over the
        data; where ``by`` is missing there is no effect, and predicting is an error. With ``"marginal"`` they count in
        the fit, too, which takes the effect for zero there, so that what it does in these rows counts as noise: that is
        for few of the rows. Both are for values that are missing at random, in a column that others do not tell;
        otherwise fill values in. Default: what the estimator says.

    Example:
        >>> [s("age"), s("hour", period=24), s("dose", by="sex"), s("east", "north")]
    """
    if not columns:
        raise TypeError("s takes names of columns, got none")
    if len(columns) == 1:
        return Smooth(missing, columns[0], by, period, k, kernel, linear)
    for name, value in (("by", by), ("period", period)):
        if value is not None:
            raise ValueError(f"s of several columns takes no {name}: ti, te and s of one column are for other effects")
    return Place(missing, True, columns, k, kernel, linear)


def linear(column: str, *, by: str | None = None, missing: str | None = None) -> Linear:
    """
    A linear effect of a numeric column.

    :param column: The name of the column.
    :param by: A numeric column by which it is multiplied: the effect is a multiple of the product of the two, zero
        where either is. Of a column that is far from zero beside its range, such as years, subtract something first.
        Or a column of categories, each of which gets a slope of its own: as the curves of ``s(column, by=by)``, their
        lines meet at the mean of the column, and leave out the levels: add ``f(by)``.
    :param missing: See :func:`s`.
    """
    return Linear(missing, column, by)


def te(*columns: str, k: int | None = None, kernel: str | None = None, missing: str | None = None) -> Tensor:
    """
    A smooth effect of two or three numeric columns with units of their own: ``te(lon, lat)`` of mgcv. It is the sum of
    the columns' effects, as those of :func:`s`, and of their interaction, each with a variance of its own.

    :param columns: The names of the columns.
    :param k: Number of inducing points along each column. Default: chosen by the fit.
    :param kernel: See :func:`s`.
    :param missing: See :func:`s`.
    """
    return Tensor(missing, True, columns, k, kernel)


def ti(*columns: str, k: int | None = None, kernel: str | None = None, missing: str | None = None) -> Tensor:
    """
    The interaction of two or three numeric columns without their own effects, to which it is orthogonal: ``ti`` of
    mgcv.

    :param columns: The names of the columns.
    :param k: Number of inducing points along each column. Default: chosen by the fit.
    :param kernel: See :func:`s`.
    :param missing: See :func:`s`.
    """
    return Tensor(missing, False, columns, k, kernel)


def f(column: str, *, ordered: bool | None = None, missing: str | None = None) -> Factor:
    """
    The effect of a category: one number for each level, with sum zero. Their prior standard deviation is half of that
    of the predictor: levels with few rows are drawn a little to the others. A level that was not in the data of the fit
    is an error when predicting.

    :param column: The name of a column of text, booleans, categories, or of numbers that are names.
    :param ordered: Whether neighbouring levels are alike. Default: whether the column is an ordered categorical.
    :param missing: ``"error"``, ``"drop"``, ``"marginal"`` (see :func:`s`), or ``"level"``: missing values are a level
        of their own. Default: what the estimator says.
    """
    return Factor(missing, column, ordered)


def re(column: str, *, by: str | None = None, missing: str | None = None) -> RandomEffect:
    """
    A random effect: one number for each level of a category, which are shrunk towards zero by a variance that is
    estimated; ``s(subject, bs="re")`` of mgcv. A level that was not in the data of the fit has the prior distribution.

    :param column: The name of the column of levels.
    :param by: A numeric column, whose slope then varies with the level: lines go through zero, so that levels of
        ``re(column)`` beside them are those at zero. Subtract something from the column, such as its mean, if it has no
        zero of its own.
    :param missing: See :func:`f`.
    """
    return RandomEffect(missing, column, by)


def fs(
    column: str, levels: str, *, k: int | None = None, kernel: str | None = None, missing: str | None = None
) -> RandomCurves:
    """
    A random curve for each level of a category, with a common variance and smoothness; ``s(x, g, bs="fs")`` of mgcv. A
    level that was not in the data of the fit has the prior distribution.

    :param column: The name of the numeric column.
    :param levels: The name of the column of levels.
    :param k: Number of inducing points of each level. Default: chosen by the fit.
    :param kernel: See :func:`s`.
    :param missing: See :func:`s`.
    """
    return RandomCurves(missing, column, levels, k, kernel)


def sz(
    column: str, levels: str, *, k: int | None = None, kernel: str | None = None, missing: str | None = None
) -> DeviatingCurves:
    """
    The interaction of a numeric column and a category without their own effects, to which it is orthogonal: curves with
    mean zero and sum zero over levels; ``s(x, g, bs="sz")`` of mgcv. With ``s(x)`` and ``f(g)`` it is an analysis of
    variance. A level that was not in the data of the fit is an error when predicting.

    :param column: The name of the numeric column.
    :param levels: The name of the column of levels.
    :param k: Number of inducing points of each level. Default: chosen by the fit.
    :param kernel: See :func:`s`.
    :param missing: See :func:`s`.
    """
    return DeviatingCurves(missing, column, levels, k, kernel)


#: The functions that make terms, by their names in formulas.
FUNCTIONS: dict[str, Callable[..., Term]] = {each.__name__: each for each in (s, linear, te, ti, f, re, fs, sz)}

_KINDS = {
    kind.__name__: kind for kind in (Smooth, Linear, Tensor, Place, Factor, RandomEffect, RandomCurves, DeviatingCurves)
}


def described(term: Term) -> dict[str, Any]:
    """
    A term as plain values, which JSON can hold.

    :param term: The term.
    """
    return {"kind": type(term).__name__, **{each.name: getattr(term, each.name) for each in fields(term)}}


def from_description(description: dict[str, Any]) -> Term:
    """
    The term with a description by :func:`described`.

    :param description: The plain values.
    """
    values = dict(description)
    return _KINDS[values.pop("kind")](**values)


def check_terms(terms: Any) -> list[Term]:
    """
    A list of terms with different labels, of which none contains another.

    :param terms: What was given.
    :raises TypeError: If it is something else.
    :raises ValueError: If a term occurs twice, or main effects do.
    """
    if isinstance(terms, Term):
        terms = [terms]
    if not isinstance(terms, list | tuple):
        raise TypeError(f"terms must be 'auto', a formula or a list of terms, got {checks.shown(terms)}")
    for term in terms:
        if not isinstance(term, Term):
            raise TypeError(
                f"terms must hold terms, such as s('age') or f('station'), got {checks.shown(term)}"
                + (f": write s({term!r}) or f({term!r})" if isinstance(term, str) else "")
            )
    labels = [term.label for term in terms]
    repeated = sorted({label for label in labels if labels.count(label) > 1})
    if repeated:
        raise ValueError(f"terms has {', '.join(repeated)} more than once")
    _refuse_repeated_effects(terms)
    return list(terms)


def _refuse_repeated_effects(terms: list[Term] | tuple[Term, ...]) -> None:
    """Refuse main effects that two terms have, of which only the sum would be identified."""
    owners: dict[str, str] = {}
    for term in terms:
        has_main = (
            isinstance(term, Smooth | Linear) and term.multiplier is None and getattr(term, "period", None) is None
        )
        if not has_main and not (isinstance(term, Tensor) and term.has_main_effects):
            continue
        for column in term.arguments:
            if column in owners:
                raise ValueError(
                    f"terms has the effect of {column!r} twice, in {owners[column]} and {term.label}: s has a linear "
                    "part, and s and te of several columns their effects; ti is the interaction alone"
                )
            owners[column] = term.label


def _check_columns(term: Term) -> None:
    for column in term.columns:
        if not isinstance(column, str):
            raise TypeError(
                f"{term.call} takes names of columns, got {checks.shown(column)}; those of arrays are named x0, x1, ..."
            )
        if not column:
            raise ValueError(f"{term.call} takes names of columns, got an empty one")
    if term.multiplier in term.arguments:
        raise ValueError(f"by of {term.call} is {term.multiplier!r}, which is its column already")


def _check_smoothness(term: Any) -> None:
    if term.k is not None:
        checks.integer(f"k of {term.call}", term.k, least=3)
    if term.kernel is not None:
        checks.choice(f"kernel of {term.call}", term.kernel, KERNELS)
