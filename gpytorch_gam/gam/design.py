"""From terms and a data frame to the components of a model, and from further data frames to its inputs."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from gpytorch_gam import terms as factories
from gpytorch_gam._checks import did_you_mean
from gpytorch_gam.components import AdditivePredictor, ComponentGroup
from gpytorch_gam.warnings import (
    ColumnKindWarning,
    ConstantColumnWarning,
    MissingInputsWarning,
    MissingLevelsWarning,
)

from .columns import (
    CycleEncoding,
    LevelEncoding,
    NumberEncoding,
    are_like_dates,
    has_zone,
    kind_of,
)
from .encoded_terms import EncodedTerms, Key
from .term_groups import TermGroups
from .terms import DeviatingCurves, Factor, Linear, Place, RandomCurves, RandomEffect, Smooth, Term

# The ratio of the ranges of coordinates above which they can hardly have the same unit.
_MOST_ELONGATED = 30.0

# The distance of a column from zero, in its ranges, above which its product with another is hardly one.
_MOST_DISTANT = 3.0

#: The name of the constant in each predictor.
INTERCEPT = "intercept"

# Prior variance of the intercept, in units of the fit.
_INTERCEPT_VARIANCE = 25.0

# The share of rows with an unknown effect above which the noise that they add matters.
_MOST_MISSING = 0.1

# Inputs beyond this overflow in the variances of products of lines.
_FARTHEST = 1e50


@dataclass(frozen=True)
class Part:
    """A term of one predictor and the components that it consists of."""

    label: str  # unique among all terms
    term: Term
    predictor: int
    components: tuple[str, ...]  # none if the term has no effect, its columns being constant


def columns_of_parts(parts: Iterable[Part]) -> set[str]:
    """
    The columns that some terms read.

    :param parts: The terms.
    """
    return {name for part in parts for name in part.term.columns}


@dataclass
class Design(EncodedTerms):
    """
    The terms of a model, which choose how the columns that they read are encoded, and make inputs and components.

    :ivar parts: What each term consists of; filled by :meth:`predictor`.
    """

    parts: list[Part] = field(default_factory=list)

    def learn_columns(self, frame: pd.DataFrame, weights: np.ndarray) -> None:
        """
        Choose how columns are read.

        :param frame: The data of the fit.
        :param weights: The weights of the rows.
        """
        for term in self.all_terms:
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
            missing_is_level = any(self.missing_of(t) == "level" for t in self.all_terms if name in t.columns)
            self.encodings[key] = LevelEncoding.of(values, missing_is_level=missing_is_level)
        elif role == "multiplier":
            self.encodings[key] = NumberEncoding.about_zero(values, weights)
        elif role.startswith("cycle"):
            period = float(role.removeprefix("cycle "))
            self.encodings[key] = CycleEncoding(name, kind_of(values).name, period, has_zone(values))
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
        for name in term.arguments:
            for role in term.roles(name):
                if role != "levels":
                    _refuse_other_than_numbers(frame, name, term)
                yield name, role
        if term.multiplier is not None:
            is_number = kind_of(frame[term.multiplier]).is_number
            if isinstance(term, RandomEffect) and not is_number:
                raise TypeError(
                    f"by of {term.label} must be a numeric column, and {term.multiplier!r} is not: re({term.column!r}, "
                    "by=...) is a slope"
                )
            yield term.multiplier, "multiplier" if is_number else "levels"

    def inputs(self, frame: pd.DataFrame, names: Collection[str] | None = None) -> Tensor:
        """
        The rows of a data frame as inputs of the model ``(n, D)``, in float64.

        :param frame: A data frame with the columns that the terms read.
        :param names: The columns that are read, those of terms that are left out being zeros; None for all.
        :raises TypeError: If a column holds something else than when the model was fitted.
        :raises ValueError: If values are missing or infinite, or levels unseen, where a term does not allow it.
        """
        names = self.columns if names is None else names
        inputs = np.zeros((len(frame), len(self.encodings)))
        for index, ((name, _), encoding) in enumerate(self.encodings.items()):
            if name in names:
                encoding.refuse_other_zone(frame[name])
                inputs[:, index] = encoding.encode(frame[name])
        for term in self.all_terms:
            if set(term.columns) <= set(names):
                self.check_values(term, frame, inputs)
        return torch.from_numpy(inputs)

    def check_values(self, term: Term, frame: pd.DataFrame, inputs: np.ndarray) -> None:
        """
        Refuse values of the columns of a term of which it has no effect.

        :param term: The term.
        :param frame: A data frame with its columns.
        :param inputs: The rows as inputs of the model ``(n, D)``.
        :raises ValueError: If values are missing or infinite, or levels unseen, where the term does not allow it.
        """
        for name, role in self._keys_of(term):
            values = inputs[:, self.position(name, role)]
            infinite = int(np.isinf(values).sum())
            if infinite:
                raise ValueError(f"column {name!r} has infinity (inf) in {infinite} of {len(values)} rows")
            far = int((np.abs(values) > _FARTHEST).sum())
            if far:
                raise ValueError(
                    f"column {name!r} is more than {_FARTHEST:g} of its standard deviations away from the data of the "
                    f"fit in {far} of {len(values)} rows, where effects cannot be computed: correct these values"
                )
            missing = int(np.isnan(values).sum())
            self._refuse_missing(term, name, missing, len(values))
            if missing and self.missing_of(term) == "level":
                _refuse_missing_without_level(term, name, role, missing, len(values))
            if role == "levels" and isinstance(term, Factor | Smooth | Linear | DeviatingCurves):
                self.encoding(name, role).refuse_unseen(frame[name], term.label, _term_of_other_levels(term))

    def refuse_missing(self, numbers: Mapping[str, int], num_rows: int) -> None:
        """
        Raise a ValueError if values are missing where a term does not allow it.

        :param numbers: How many are missing in each column.
        :param num_rows: The number of rows.
        """
        for term in self.all_terms:
            for name in term.columns:
                self._refuse_missing(term, name, numbers[name], num_rows)

    def warn_of_missing(self, numbers: Mapping[str, int], num_rows: int) -> None:
        """
        Warn where effects are unknown in so many rows of a fit that what they do there, which it takes for noise,
        matters.

        :param numbers: How many values are missing in each column.
        :param num_rows: The number of rows.
        """
        for term in self.all_terms:
            for name in term.columns:
                if self.missing_of(term) == "marginal" and numbers[name] > _MOST_MISSING * num_rows:
                    warnings.warn(
                        f"column {name!r} has NaN in {numbers[name]} of {num_rows} rows, where the fit takes what "
                        f"{term.label} does for noise. With that many, noise and bands are too wide, and with a link "
                        "that is not linear the intercept is biased: fit to the rows that are complete, "
                        f"X.dropna(subset=[{name!r}]), and predict the others all the same",
                        MissingInputsWarning,
                        stacklevel=2,
                    )

    def _refuse_missing(self, term: Term, name: str, missing: int, num_rows: int) -> None:
        if missing and self.missing_of(term) == "error":
            raise ValueError(
                f"column {name!r} has NaN in {missing} of {num_rows} rows: drop them, fill them in, or if they are few "
                f"and missing at random, give missing='marginal' to {term.label} or the estimator: then the effect is "
                "unknown in these rows, and counts as noise in the fit"
            )

    def _keys_of(self, term: Term) -> list[Key]:
        """The encoded columns of a term."""
        every = [*self.encodings, *self.aliases]
        roles = {name: [role for column, role in every if column == name] for name in term.columns}
        wanted = {
            name: ("levels", "multiplier") if name == term.multiplier else term.roles(name) for name in term.columns
        }
        return [(name, role) for name in term.columns for role in roles[name] if role in wanted[name]]

    def outside(self, frame: pd.DataFrame) -> pd.DataFrame:
        """
        Which values are outside of what the model has seen: beyond the range of a number, or an unseen level.

        :param frame: A data frame.
        """
        found = {}
        for (name, _), encoding in self.encodings.items():
            encoding.refuse_other_zone(frame[name])
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
        groups_of_terms = TermGroups(self, x)
        with default_dtype(torch.float64):
            for index, terms in enumerate(self.terms):
                if self.has_intercepts[index]:
                    groups.append(self._intercept(index))
                for term in terms:
                    label = self.labelled(term.label, index)
                    made = [] if self._has_no_effect(term, x) else groups_of_terms.of(term, label, index)
                    groups += made
                    components = tuple(name for group in made for name in group.names)
                    self.parts.append(Part(label, term, index, components))
            self._with_a_component_each(groups)
            return AdditivePredictor(*groups)

    def warn_of_multipliers(self, frame: pd.DataFrame) -> None:
        """
        Warn of terms whose ``by`` has levels that no term has themselves, or is a number that seems to be two levels.

        :param frame: The data of the fit.
        """
        for terms in self.terms:
            for term in terms:
                if isinstance(term, Smooth | Linear) and term.by is not None and term.by in frame.columns:
                    self._warn_of_multiplier(term, terms, frame)

    @staticmethod
    def _warn_of_multiplier(term: Smooth | Linear, terms: Sequence[Term], frame: pd.DataFrame) -> None:
        by = str(term.by)
        others = [other for other in terms if other is not term]
        if kind_of(frame[by]).is_number:
            if frame[by].dropna().isin((0, 1)).all() and not any(
                other.multiplier is None and term.column in other.arguments for other in others
            ):
                warnings.warn(
                    f"{term.label} is multiplied by column {by!r}, which holds 0 and 1, and is zero where that is 0. "
                    f"For a curve for each of the two make it one of booleans, X[{by!r}].astype(bool)",
                    ColumnKindWarning,
                    stacklevel=2,
                )
        elif isinstance(term, Smooth) and not any(_has_levels_of(other, by, frame) for other in others):
            warnings.warn(
                f"{term.label} has a curve for each level of {by!r}, each with mean zero, and no term has the levels "
                f"themselves: add f({by})",
                MissingLevelsWarning,
                stacklevel=2,
            )

    def _warn_of_units(self) -> None:
        """Warn of places whose coordinates can hardly have the same unit, and of products with a column like years."""
        for term in dict.fromkeys(self.all_terms):
            if isinstance(term, Linear) and term.is_through_zero and (term.by, "multiplier") in self.encodings:
                self._warn_of_far_zero(term)
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

    def _warn_of_far_zero(self, term: Linear) -> None:
        """Warn of a product of two columns that is nearly a multiple of one of them."""
        for name in term.columns:
            encoding = self.encoding(name, "multiplier")
            if _MOST_DISTANT * (encoding.high - encoding.low) < min(abs(encoding.low), abs(encoding.high)):
                warnings.warn(
                    f"{term.label} is the product of both columns, but {name!r} is far from zero beside its range, so "
                    f"that it is nearly a multiple of the other: subtract something from {name!r}, such as its mean",
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


def _has_levels_of(term: Term, by: str, frame: pd.DataFrame) -> bool:
    """Whether a term has a number for each level of a column, or of one that is finer."""
    if isinstance(term, RandomCurves):
        return term.levels == by
    if not isinstance(term, Factor | RandomEffect) or term.multiplier is not None:
        return False
    pairs = frame[list({term.column, by})].drop_duplicates()
    return term.column == by or len(pairs) == frame[term.column].nunique(dropna=False)


def _term_of_other_levels(term: Term) -> str:
    """The term that is alike and has an effect of levels that the fit has not seen."""
    if isinstance(term, DeviatingCurves):
        return f"fs({term.column}, {term.levels})"
    if isinstance(term, Smooth):
        return f"fs({term.column}, {term.by})"
    return f"re({term.by}, by={term.column})" if isinstance(term, Linear) else f"re({term.arguments[0]})"


def _refuse_missing_without_level(term: Term, name: str, role: str, missing: int, num_rows: int) -> None:
    """Raise a ValueError where missing values are no level of a column."""
    where = f"column {name!r} has NaN in {missing} of {num_rows} rows, and {term.label}"
    if role == "levels":
        raise ValueError(
            f"{where} has missing='level', but no value was missing in the fit, so that there is no such level: fill "
            "them in, or give the term missing='marginal' and fit anew"
        )
    raise ValueError(
        f"{where} needs numbers, which missing='level' does not concern: drop these rows, fill them in, or if they are "
        "few and missing at random, give the term missing='marginal'"
    )


def _refuse_other_than_numbers(frame: pd.DataFrame, name: str, term: Term) -> None:
    """Raise a TypeError if a column holds neither numbers nor dates."""
    kind = kind_of(frame[name])
    if not kind.is_number:
        held = "categories" if kind.is_category else {"text": "text", "boolean": "booleans"}[kind.name]
        function = "to_datetime" if kind.name == "text" and are_like_dates(frame[name]) else "to_numeric"
        remedy = f"pandas.{function}(X[{name!r}]), or " if kind.name == "text" else ""
        raise TypeError(f"{term.label} needs numbers, but column {name!r} holds {held}: use {remedy}f({name!r})")
    period = getattr(term, "period", None)
    if isinstance(period, str) and kind.name != "date":
        raise TypeError(f"{term.label} needs dates, but column {name!r} holds numbers: give the period as a number")
