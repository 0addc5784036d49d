"""What an estimator was told about the terms of each predictor, in any of the forms in which it may be told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from gpytorch_gam import _checks as checks

from .automatic_terms import automatic_terms
from .column_roles import check_columns
from .columns import kind_of
from .families import Family, GaussianLocationScale, StudentTLocationScale
from .formula import Formula, FormulaError, parse, place_of
from .terms import Factor, Linear, Term, check_terms


@dataclass(frozen=True)
class Specification:
    """
    The terms of each predictor, some of which depend on the data.

    :ivar of_predictors: A formula, terms, or ``"auto"`` for each predictor.
    :ivar response: The name of the response in a formula, or None.
    """

    of_predictors: tuple[Formula | list[Term] | str, ...]
    response: str | None

    @property
    def is_automatic(self) -> bool:
        """Whether the columns of the data determine the terms."""
        return any(isinstance(each, str) for each in self.of_predictors)

    @property
    def has_intercepts(self) -> tuple[bool, ...]:
        """Whether each predictor has an intercept."""
        return tuple(each.has_intercept if isinstance(each, Formula) else True for each in self.of_predictors)

    def terms(self, frame: pd.DataFrame) -> list[list[Term]]:
        """
        The terms of each predictor.

        :param frame: The data of the fit.
        """
        found = [self._terms_of(each, frame) for each in self.of_predictors]
        check_columns(found, frame.columns)
        return [
            [_with_zero(term, frame, has_intercept) for term in terms]
            for terms, has_intercept in zip(found, self.has_intercepts, strict=True)
        ]

    def refuse_no_intercept(self, family: Family) -> None:
        """
        Raise a ValueError if a scale has no intercept, in whose place would be that of the responses.

        :param family: The distribution of the response.
        """
        if not isinstance(family, GaussianLocationScale | StudentTLocationScale):
            return
        for has_intercept, name in list(zip(self.has_intercepts, family.parameters, strict=True))[1:]:
            if not has_intercept:
                raise ValueError(
                    f"'- 1' leaves out the intercept of {name}, which family {family.name!r} needs: give each of "
                    f"{list(family.parameters)} a formula of its own, and that of {name} without '- 1'"
                )

    @staticmethod
    def _terms_of(each: Formula | list[Term] | str, frame: pd.DataFrame) -> list[Term]:
        if isinstance(each, Formula):
            terms = check_terms(each.terms(frame))
            if not each.has_intercept:
                _refuse_levels_without_intercept(each, terms)
            return terms
        return automatic_terms(frame) if isinstance(each, str) else each


def _with_zero(term: Term, frame: pd.DataFrame, has_intercept: bool) -> Term:
    """The term; a multiple of the product of two columns is zero where these are, and so are lines by themselves."""
    if not isinstance(term, Linear):
        return term
    is_product = term.by is not None and kind_of(frame[term.by]).is_number
    return replace(term, is_through_zero=is_product or not has_intercept)


def _refuse_levels_without_intercept(formula: Formula, terms: Sequence[Term]) -> None:
    for term in terms:
        if isinstance(term, Factor):
            raise FormulaError(
                f"{term.label} has sum zero over levels, and without an intercept their mean has no place: leave out "
                "'- 1', and add the intercept to the effect of a level for its mean",
                formula.text,
                *place_of(formula.text, term.column),
            )


def read_specification(terms: Any, parameters: Sequence[str]) -> Specification:
    """
    Read what an estimator was told about its terms.

    :param terms: ``"auto"``, a formula, or a list of terms, for all predictors; or a list of one of these for each
        predictor, or a mapping from the predictors' names to them.
    :param parameters: The names of the predictors.
    :raises TypeError: If it is something else.
    :raises ValueError: If it does not fit the predictors.
    """
    if isinstance(terms, Mapping):
        unknown = [name for name in terms if name not in parameters]
        missing = [name for name in parameters if name not in terms]
        if unknown or missing:
            raise ValueError(f"terms must name the parameters {list(parameters)}, got {list(terms)}")
        given = [terms[name] for name in parameters]
    elif isinstance(terms, list | tuple) and terms and not any(isinstance(each, Term) for each in terms):
        given = list(terms)
        if len(given) != len(parameters):
            raise ValueError(
                f"terms has {len(given)} formulas or lists, but the family has the parameters {list(parameters)}: give "
                "one each, or one for all"
            )
    else:
        given = [terms] * len(parameters)
    read = tuple(_read(each) for each in given)
    responses = {each.response for each in read if isinstance(each, Formula) and each.response is not None}
    if len(responses) > 1:
        raise ValueError(f"formulas name several responses: {sorted(responses)}")
    return Specification(read, responses.pop() if responses else None)


def columns_of_terms(terms: Any) -> tuple[list[str] | None, set[str]]:
    """
    The columns that terms read, None if the data determine them, and which of them are read as levels.

    :param terms: What an estimator was told, see :func:`read_specification`.
    """
    if isinstance(terms, Mapping):
        terms = list(terms.values())
    parts = [
        part
        for each in (terms if isinstance(terms, list | tuple) else [terms])
        for part in _parts(_read(each) if isinstance(each, str) else each)
    ]
    levels = {name for part in parts if isinstance(part, Term) for name in part.columns_of_levels}
    if "auto" in parts:
        return None, levels
    names = [name for part in parts for name in ([part] if isinstance(part, str) else part.columns)]
    return list(dict.fromkeys(names)), levels


def _parts(each: Any) -> Sequence[Term | str]:
    """Terms, and names of columns; ``"auto"`` stands for itself."""
    if isinstance(each, Formula):
        return each.parts
    return [each] if isinstance(each, str) else check_terms(each)


def _read(each: Any) -> Formula | list[Term] | str:
    if isinstance(each, str):
        if each == "auto":
            return each
        if each.strip().isidentifier():
            raise ValueError(
                f"terms must be 'auto', a formula such as 'y ~ s(age)', or a list of terms, got {each!r}: of a column "
                f"of this name, write s({each!r}), linear({each!r}) or f({each!r})"
            )
        return parse(each)
    if isinstance(each, Mapping):
        raise TypeError(f"terms must be 'auto', a formula or a list of terms, got {checks.shown(each)}")
    return check_terms(each)
