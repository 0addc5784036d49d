"""From terms and a data frame to the components of a model, and from further data frames to its inputs."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from gpytorch_gam import terms as factories
from gpytorch_gam._checks import did_you_mean
from gpytorch_gam.components import AdditivePredictor, ComponentGroup, Levels
from gpytorch_gam.kernels import Empirical
from gpytorch_gam.warnings import ColumnKindWarning, ConstantColumnWarning

from .columns import (
    CycleEncoding,
    Encoding,
    Kind,
    LevelEncoding,
    MultiplierEncoding,
    NumberEncoding,
    are_like_dates,
    kind_of,
    numbers_of,
)
from .priors import register_priors, set_level_variance
from .terms import PERIODS, DeviatingCurves, Factor, Linear, Place, RandomCurves, RandomEffect, Smooth, Term
from .terms import Tensor as TensorTerm

# Atoms of the distribution over which smooth effects have mean zero.
_NUM_ATOMS = 64

# The cycles for which dates have to last so that a period is a term, up to what calendars differ; parts of a
# period, and in how many of these they have to lie; the share of steps from a date to the next that have to be short.
_CYCLES, _PLACES, _FEWEST_PLACES, _OFTEN = 1.98, 20, 5, 0.05

# The ratio of the ranges of coordinates above which they can hardly have the same unit.
_MOST_ELONGATED = 30.0

# The number of inducing points with which fits begin.
_DEFAULT_POINTS = 16

# Levels above which a column of text gets a random effect, and values up to which one of numbers is a line.
MOST_FIXED_LEVELS, _FEW_VALUES = 10, 2

#: The name of the constant in each predictor.
INTERCEPT = "intercept"

# Prior variance of the intercept, in units of the fit.
_INTERCEPT_VARIANCE = 25.0

# A column of the data frame, and how it is read.
Key = tuple[str, str]


@dataclass(frozen=True)
class Part:
    """A term of one predictor and the components that it consists of."""

    label: str  # unique among all terms
    term: Term
    predictor: int
    components: tuple[str, ...]  # none if the term has no effect, its columns being constant


@dataclass
class Design:
    """
    The terms of a model with the encodings of the columns that they read.

    :ivar terms: The terms of each predictor.
    :ivar parameters: The names of the predictors.
    :ivar encodings: How each column is read, in the order of the columns of the inputs.
    :ivar aliases: Further ways of reading that are the same as another.
    :ivar kernel: The kernel of terms that name none.
    :ivar k: The number of inducing points of terms that name none.
    :ivar missing: What is done with missing values in the columns of terms that do not say it.
    :ivar parts: What each term consists of; filled by :meth:`predictor`.
    """

    terms: list[list[Term]]
    parameters: tuple[str, ...]
    kernel: str
    k: int | None
    missing: str
    has_intercepts: tuple[bool, ...]
    encodings: dict[Key, Encoding] = field(default_factory=dict)
    aliases: dict[Key, Key] = field(default_factory=dict)
    parts: list[Part] = field(default_factory=list)

    # ------------------------------------------------------------------ columns

    @property
    def columns(self) -> list[str]:
        """The names of all columns that terms read."""
        return list(dict.fromkeys(name for term in self._all_terms for name in term.columns))

    @property
    def _all_terms(self) -> list[Term]:
        return [term for terms in self.terms for term in terms]

    def learn_columns(self, frame: pd.DataFrame, weights: np.ndarray) -> None:
        """
        Choose how columns are read.

        :param frame: The data of the fit.
        :param weights: The weights of the rows.
        """
        for term in self._all_terms:
            for name, role in self._reads(term, frame):
                key = (name, role)
                if key not in self.encodings and key not in self.aliases:
                    self._learn(key, frame[name], weights, term)

    def extended(self, terms: Sequence[Sequence[Term]], frame: pd.DataFrame, weights: np.ndarray) -> Design:
        """
        A design with further terms, in which columns that are read already stay where they are in the inputs.

        :param terms: The further terms of each predictor.
        :param frame: The data of the fit.
        :param weights: The weights of the rows.
        """
        all_terms = [[*own, *more] for own, more in zip(self.terms, terms, strict=True)]
        found = replace(self, terms=all_terms, encodings=dict(self.encodings), aliases=dict(self.aliases), parts=[])
        found.learn_columns(frame, weights)
        return found

    def _learn(self, key: Key, values: pd.Series, weights: np.ndarray, term: Term) -> None:
        name, role = key
        if role == "levels":
            missing_is_level = any(self._missing_of(t) == "level" for t in self._all_terms if name in t.columns)
            self.encodings[key] = LevelEncoding.of(values, missing_is_level=missing_is_level)
        elif role == "multiplier":
            self.encodings[key] = MultiplierEncoding.of(values)
        elif role.startswith("cycle"):
            self.encodings[key] = CycleEncoding(name, kind_of(values).name, float(role.removeprefix("cycle ")))
        elif role == "coordinate":
            self.encodings[key] = replace(NumberEncoding.of(values, weights, draws_in=False), scale=1.0)
        else:
            encoding = NumberEncoding.of(values, weights, draws_in=role == "number")
            other = self.encodings.get((name, "line" if role == "number" else "number"))
            if other == encoding:
                self.aliases[key] = (name, "line" if role == "number" else "number")
            else:
                self.encodings[key] = encoding

    def _reads(self, term: Term, frame: pd.DataFrame) -> Iterator[Key]:
        """The columns that a term reads, and how; errors if it cannot read them so."""
        if isinstance(term, Smooth) and term.period is not None:
            yield _numeric(frame, term.column, term), f"cycle {_days(term.period):.17g}"
        elif isinstance(term, Place):
            for name in term.names:
                yield _numeric(frame, name, term), "coordinate"
        elif isinstance(term, Smooth | TensorTerm):
            has_lines = term.has_main_effects if isinstance(term, TensorTerm) else _has_line(term)
            for name in term.arguments:
                yield _numeric(frame, name, term), "number"
                if has_lines:
                    yield name, "line"
        elif isinstance(term, Linear):
            yield _numeric(frame, term.column, term), "line"
        elif isinstance(term, RandomCurves):
            yield _numeric(frame, term.column, term), "number"
            yield term.levels, "levels"
        else:
            yield term.arguments[0], "levels"
        if term.multiplier is not None:
            is_number = kind_of(frame[term.multiplier]).is_number
            if isinstance(term, RandomEffect) and not is_number:
                raise TypeError(
                    f"by of {term.label} must be a numeric column, and {term.multiplier!r} is not: re({term.column!r}, "
                    "by=...) is a slope"
                )
            yield term.multiplier, "multiplier" if is_number else "levels"

    def position(self, name: str, role: str) -> int:
        """
        The column of the inputs that holds a column of the data frame.

        :param name: Of the column of the data frame.
        :param role: How it is read.
        """
        key = self.aliases.get((name, role), (name, role))
        return list(self.encodings).index(key)

    def encoding(self, name: str, role: str) -> Any:
        """
        How a column is read.

        :param name: Of the column of the data frame.
        :param role: The way of reading.
        """
        return self.encodings[self.aliases.get((name, role), (name, role))]

    def inputs(self, frame: pd.DataFrame) -> Tensor:
        """
        The rows of a data frame as inputs of the model ``(n, D)``, in float64.

        :param frame: A data frame with the columns that the terms read.
        :raises TypeError: If a column holds something else than when the model was fitted.
        :raises ValueError: If values are missing or infinite, or levels unseen, where a term does not allow it.
        """
        inputs = np.empty((len(frame), len(self.encodings)))
        for index, ((name, _), encoding) in enumerate(self.encodings.items()):
            inputs[:, index] = encoding.encode(frame[name])
        for term in self._all_terms:
            self._check_values(term, frame, inputs)
        return torch.from_numpy(inputs)

    def _check_values(self, term: Term, frame: pd.DataFrame, inputs: np.ndarray) -> None:
        for name, role in self._keys_of(term):
            values = inputs[:, self.position(name, role)]
            infinite = int(np.isinf(values).sum())
            if infinite:
                raise ValueError(f"column {name!r} has infinity (inf) in {infinite} of {len(values)} rows")
            self._refuse_missing(term, name, int(np.isnan(values).sum()), len(values))
            if role == "levels" and isinstance(term, Factor | Smooth | Linear | DeviatingCurves):
                self.encoding(name, role).refuse_unseen(frame[name], term.label)

    def refuse_missing(self, numbers: Mapping[str, int], num_rows: int) -> None:
        """
        Raise a ValueError if values are missing where a term does not allow it.

        :param numbers: How many are missing in each column.
        :param num_rows: The number of rows.
        """
        for term in self._all_terms:
            for name in term.columns:
                self._refuse_missing(term, name, numbers[name], num_rows)

    def _refuse_missing(self, term: Term, name: str, missing: int, num_rows: int) -> None:
        if missing and self._missing_of(term) == "error":
            raise ValueError(
                f"column {name!r} has NaN in {missing} of {num_rows} rows: drop them, fill them in, or give "
                f"missing='marginal' to {term.label} or the estimator, for an effect that is unknown in these rows"
            )

    def _keys_of(self, term: Term) -> list[Key]:
        """The encoded columns of a term."""
        every = [*self.encodings, *self.aliases]
        roles = {name: [role for column, role in every if column == name] for name in term.columns}
        wanted = {
            name: ("levels", "multiplier") if name == term.multiplier else _roles_of_arguments(term, name)
            for name in term.columns
        }
        return [(name, role) for name in term.columns for role in roles[name] if role in wanted[name]]

    def _missing_of(self, term: Term) -> str:
        return self.missing if term.missing is None else term.missing

    def outside(self, frame: pd.DataFrame) -> pd.DataFrame:
        """
        Which values are outside of what the model has seen: beyond the range of a number, or an unseen level.

        :param frame: A data frame.
        """
        found = {}
        for (name, _), encoding in self.encodings.items():
            if isinstance(encoding, NumberEncoding):
                found[name] = encoding.outside(frame[name])
            elif isinstance(encoding, LevelEncoding):
                codes = encoding.encode(frame[name])
                found[name] = codes >= len(encoding.labels)
        return pd.DataFrame(found, index=frame.index)

    # ------------------------------------------------------------------ components

    def predictor(self, x: Tensor) -> AdditivePredictor:
        """
        The components of all terms, with ranges from inputs of the model.

        :param x: The inputs ``(n, D)``.
        """
        self.parts = []
        self._warn_of_units()
        groups: list[ComponentGroup] = []
        with default_dtype(torch.float64):
            for index, terms in enumerate(self.terms):
                if self.has_intercepts[index]:
                    groups.append(self._intercept(index))
                for term in terms:
                    label = self.labelled(term.label, index)
                    made = [] if self._has_no_effect(term, x) else self.groups(term, x, index)
                    groups += made
                    components = tuple(name for group in made for name in group.names)
                    self.parts.append(Part(label, term, index, components))
            self._with_a_component_each(groups)
            return AdditivePredictor(*groups)

    def _warn_of_units(self) -> None:
        """Warn of places whose coordinates can hardly have the same unit."""
        for term in dict.fromkeys(self._all_terms):
            if not isinstance(term, Place):
                continue
            widths = [each.high - each.low for each in (self.encoding(name, "coordinate") for name in term.names)]
            if 0.0 < _MOST_ELONGATED * min(widths) < max(widths):
                warnings.warn(
                    f"{term.label} varies over the same distance in all directions, but the ranges of its columns are "
                    f"{', '.join(f'{width:.3g}' for width in widths)}: if they have units of their own, write "
                    f"te({', '.join(term.names)})",
                    ColumnKindWarning,
                    stacklevel=2,
                )

    def _with_a_component_each(self, groups: list[ComponentGroup]) -> None:
        """A predictor without any component gets a constant."""
        for index in range(len(self.terms)):
            if all(group.predictor_index != index for group in groups):
                groups.append(self._intercept(index))

    def _intercept(self, index: int) -> ComponentGroup:
        """
        The constant of a predictor. Its wide prior is fixed: responses are centred, so that a variance that is trained
        goes to zero, and the uncertainty of the mean level with it.
        """
        group = factories.constant(_INTERCEPT_VARIANCE, name=self.labelled(INTERCEPT, index), predictor=index)
        group.kernel.requires_grad_(False)
        return group

    def labelled(self, label: str, index: int) -> str:
        """
        A label that is unique among predictors.

        :param label: The label in one predictor.
        :param index: The number of the predictor.
        """
        return label if index == 0 and len(self.parameters) < 3 else f"{label}[{self.parameters[index]}]"

    def _has_no_effect(self, term: Term, x: Tensor) -> bool:
        """Whether a column of the term is constant, of which a warning tells."""
        for name, role in self._keys_of(term):
            encoding = self.encoding(name, role)
            values = x[:, self.position(name, role)]
            values = values[values.isfinite()]
            if isinstance(encoding, LevelEncoding):
                is_constant = len(encoding.labels) < 2 and isinstance(term, Factor | DeviatingCurves)
            else:
                is_number = isinstance(encoding, NumberEncoding)
                is_constant = encoding.is_constant if is_number else bool((values == values[:1]).all())
                is_constant = is_constant and role != "multiplier"
            if is_constant:
                warnings.warn(
                    f"column {name!r} has the same value in all rows: {term.label} is zero",
                    ConstantColumnWarning,
                    stacklevel=2,
                )
                return True
        return False

    def groups(self, term: Term, x: Tensor, index: int) -> list[ComponentGroup]:
        """
        The groups of components of a term, in the default dtype.

        :param term: The term, whose columns are learned.
        :param x: The inputs ``(n, D)``.
        :param index: The number of its predictor.
        """
        label = self.labelled(term.label, index)
        options: dict[str, Any] = {"predictor": index}
        if self._missing_of(term) == "marginal":
            options["missing"] = "marginal"
        makers = {
            Smooth: self._smooth,
            Linear: self._linear,
            TensorTerm: self._tensor,
            Place: self._place,
            Factor: self._factor,
            RandomEffect: self._random_effect,
            RandomCurves: self._random_curves,
            DeviatingCurves: self._random_curves,
        }
        made: list[ComponentGroup] = makers[type(term)](term, x, label, options)  # type: ignore[operator]
        for group in made:
            register_priors(group)
        return made

    def _smooth(self, term: Smooth, x: Tensor, label: str, options: dict[str, Any]) -> list[ComponentGroup]:
        multiplier = self._by(term, label)
        if term.period is not None:
            column = self.position(term.column, f"cycle {_days(term.period):.17g}")
            more: dict[str, Any] = {} if term.k is None else {"num_inducing": term.k}
            return [factories.cyclic(column, 1.0, **more, **multiplier, **options)]
        parts = [self._curve(term.column, term, x, multiplier, options)]
        if _has_line(term):
            parts.append(self._line(term.column, x, f"{label}.line", options))
        return parts

    def _curve(
        self, name: str, term: Smooth | TensorTerm, x: Tensor, multiplier: dict[str, Any], options: dict[str, Any]
    ) -> ComponentGroup:
        column = self.position(name, "number")
        by_number = "by" in multiplier and "levels" not in multiplier
        measure = None if by_number else self._measure(x[:, column])
        return factories.smooth(
            column,
            x,
            kernel=self._kernel(term),
            measure=measure,
            **self._points(term, name),
            **multiplier,
            **options,
        )

    def _line(self, name: str, x: Tensor, label: str, options: dict[str, Any]) -> ComponentGroup:
        return factories.linear(self.position(name, "line"), x, names=label, **options)

    def _linear(self, term: Linear, x: Tensor, label: str, options: dict[str, Any]) -> list[ComponentGroup]:
        return [factories.linear(self.position(term.column, "line"), x, **self._by(term, label), **options)]

    def _tensor(self, term: TensorTerm, x: Tensor, label: str, options: dict[str, Any]) -> list[ComponentGroup]:
        columns = [self.position(name, "number") for name in term.names]
        points: dict[str, Any] = {} if (term.k or self.k) is None else {"num_inducing": term.k or min(self.k or 7, 10)}
        joint = factories.tensor(
            columns,
            x,
            kernel=self._kernel(term),
            measure=[self._measure(x[:, column]) for column in columns],
            names=label,
            **points,
            **options,
        )
        if not term.has_main_effects:
            return [joint]
        mains = []
        for name in term.names:
            mains.append(self._curve(name, term, x, {"names": f"{label}.{name}"}, options))
            mains.append(self._line(name, x, f"{label}.{name}.line", options))
        return [*mains, joint]

    def _place(self, term: Place, x: Tensor, label: str, options: dict[str, Any]) -> list[ComponentGroup]:
        columns = [self.position(name, "coordinate") for name in term.names]
        points: dict[str, Any] = {} if (term.k or self.k) is None else {"num_inducing": term.k or self.k}
        parts = [factories.spatial(columns, x, kernel=self._kernel(term), name=label, **points, **options)]
        if term.linear:
            names = [f"{label}.{name}.line" for name in term.names]
            parts.append(factories.linear(columns, x, names=names, **options))
        return parts

    def _factor(self, term: Factor, x: Tensor, label: str, options: dict[str, Any]) -> list[ComponentGroup]:
        encoding = self.encoding(term.column, "levels")
        is_ordered = encoding.is_ordered if term.ordered is None else term.ordered
        make = factories.ordinal if is_ordered else factories.factor
        group = make(self.position(term.column, "levels"), _levels(encoding), name=label, **options)
        if not is_ordered:
            set_level_variance(group)
        return [group]

    def _random_effect(
        self, term: RandomEffect, x: Tensor, label: str, options: dict[str, Any]
    ) -> list[ComponentGroup]:
        by = None if term.by is None else self.position(term.by, "multiplier")
        levels = _levels(self.encoding(term.column, "levels"))
        return [factories.random_effect(self.position(term.column, "levels"), levels, by=by, name=label, **options)]

    def _random_curves(
        self, term: RandomCurves, x: Tensor, label: str, options: dict[str, Any]
    ) -> list[ComponentGroup]:
        column, by = self.position(term.column, "number"), self.position(term.levels, "levels")
        levels = _levels(self.encoding(term.levels, "levels"))
        if (term.k or self.k) is not None:
            options["num_inducing"] = term.k or self.k
        if isinstance(term, DeviatingCurves):
            options["measure"] = self._measure(x[:, column])
        make = factories.interaction if isinstance(term, DeviatingCurves) else factories.factor_smooth
        return [make(column, by, levels, x, kernel=self._kernel(term), name=label, **options)]

    def _by(self, term: Smooth | Linear, label: str) -> dict[str, Any]:
        """The arguments of a factory for the multiplier of a term, and the names of its components."""
        if term.by is None:
            return {"names": label}
        if (term.by, "multiplier") in self.encodings:
            return {"by": self.position(term.by, "multiplier"), "names": label}
        levels = _levels(self.encoding(term.by, "levels"))
        names = [f"{label}={level}" for level in levels.labels]
        return {"by": self.position(term.by, "levels"), "levels": levels, "names": names}

    def _kernel(self, term: Any) -> Any:
        return self.kernel if term.kernel is None else term.kernel

    def _points(self, term: Any, name: str) -> dict[str, Any]:
        """The number of inducing points, where it is given or the column has fewer values than that."""
        num_values = self.encoding(name, "number").num_values
        wanted = self.k if term.k is None or isinstance(term, TensorTerm) else term.k
        if wanted is None:
            return {"num_inducing": max(2, num_values)} if num_values < _DEFAULT_POINTS else {}
        return {"num_inducing": max(2, min(wanted, num_values))}

    def _measure(self, values: Tensor) -> Empirical:
        return Empirical.from_data(values[values.isfinite()], num_atoms=_NUM_ATOMS)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """
    Another default dtype, in which modules are made.

    :param dtype: The dtype.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def automatic_terms(frame: pd.DataFrame) -> list[Term]:
    """
    The terms of each column, by what it holds: a smooth effect of numbers; of dates a trend and periods; effects of
    levels, shrunk if these are many.

    :param frame: The data.
    """
    return [term for name in frame.columns for term in _automatic_terms(frame[name])]


def _automatic_terms(values: pd.Series) -> list[Term]:
    name, kind, num_values = str(values.name), kind_of(values), values.nunique()
    if kind.is_number:
        trend: Term = Linear(column=name) if num_values <= _FEW_VALUES else Smooth(column=name)
        return [trend, *(Smooth(column=name, period=period) for period in _periods_of(values, kind))]
    if kind.name == "text" and are_like_dates(values):
        warnings.warn(
            f"column {name!r} holds text that looks like dates, and each is taken for a level: if they are dates, pass "
            f"pandas.to_datetime(X[{name!r}])",
            ColumnKindWarning,
            stacklevel=2,
        )
    if kind.is_ordered or num_values <= MOST_FIXED_LEVELS:
        return [Factor(column=name)]
    return [RandomEffect(column=name)]


def _periods_of(values: pd.Series, kind: Kind) -> list[str]:
    """
    The periods of a column of dates that the data can tell from a trend: they last for two of them, neighbouring dates
    are often within a fifth, and they occur at five places, such as the working days of a week.
    """
    if kind.name != "date":
        return []
    days = numbers_of(values, kind)
    days = np.unique(days[np.isfinite(days)])
    if len(days) < _FEWEST_PLACES:
        return []
    step = np.quantile(np.diff(days), _OFTEN)
    return [
        name
        for name, period in PERIODS.items()
        if np.ptp(days) + step >= _CYCLES * period
        and step <= period / _FEWEST_PLACES
        and len(np.unique(np.mod(days / period, 1.0) * _PLACES // 1)) >= _FEWEST_PLACES
    ]


def check_columns(terms: Sequence[Iterable[Term]], columns: Iterable[str]) -> None:
    """
    Raise a ValueError if a term reads a column that there is not.

    :param terms: The terms of each predictor.
    :param columns: The names of the columns.
    """
    known = list(map(str, columns))
    for term in (term for each in terms for term in each):
        for name in term.columns:
            if name not in known:
                raise ValueError(
                    f"{term.label} reads column {name!r}, which X does not have{did_you_mean(name, known)}: {known}"
                )


def _has_line(term: Smooth) -> bool:
    return term.linear and term.by is None and term.period is None


def _roles_of_arguments(term: Term, name: str) -> tuple[str, ...]:
    if isinstance(term, Factor | RandomEffect) or (isinstance(term, RandomCurves) and name == term.levels):
        return ("levels",)
    if isinstance(term, Smooth) and term.period is not None:
        return (f"cycle {_days(term.period):.17g}",)
    if isinstance(term, Place):
        return ("coordinate",)
    return ("line",) if isinstance(term, Linear) else ("number",)


def _days(period: float | str) -> float:
    return PERIODS[period] if isinstance(period, str) else period


def _levels(encoding: LevelEncoding) -> Levels:
    return Levels(tuple(map(float, range(len(encoding.labels)))), encoding.labels)


def _numeric(frame: pd.DataFrame, name: str, term: Term) -> str:
    """The name of a column, which must hold numbers or dates."""
    kind = kind_of(frame[name])
    if not kind.is_number:
        held = "categories" if kind.is_category else {"text": "text", "boolean": "booleans"}[kind.name]
        function = "to_datetime" if kind.name == "text" and are_like_dates(frame[name]) else "to_numeric"
        remedy = f"pandas.{function}(X[{name!r}]), or " if kind.name == "text" else ""
        raise TypeError(f"{term.label} needs numbers, but column {name!r} holds {held}: use {remedy}f({name!r})")
    period = getattr(term, "period", None)
    if isinstance(period, str) and kind.name != "date":
        raise TypeError(f"{term.label} needs dates, but column {name!r} holds numbers: give the period as a number")
    return name


def described_encodings(encodings: Mapping[Key, Encoding]) -> list[dict[str, Any]]:
    """
    Encodings as plain values, which JSON can hold.

    :param encodings: The encodings.
    """
    return [
        {"name": name, "role": role, "kind_of_encoding": type(encoding).__name__, **vars(encoding)}
        for (name, role), encoding in encodings.items()
    ]


_ENCODINGS: dict[str, Any] = {
    kind.__name__: kind for kind in (NumberEncoding, MultiplierEncoding, CycleEncoding, LevelEncoding)
}


def encodings_of_description(description: Sequence[Mapping[str, Any]]) -> dict[Key, Encoding]:
    """
    The encodings with a description by :func:`described_encodings`.

    :param description: The plain values.
    """
    found: dict[Key, Encoding] = {}
    for each in description:
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in each.items()
        }
        key = values.pop("name"), values.pop("role")
        found[key] = _ENCODINGS[values.pop("kind_of_encoding")](**values)
    return found
