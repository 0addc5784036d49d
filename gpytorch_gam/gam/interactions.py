"""The search for interactions: pairs of columns are screened, the best are fitted, and those that pay are kept."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from gpytorch_gam.components import ComponentGroup
from gpytorch_gam.diagnostics import component_evidence
from gpytorch_gam.numerics.dtypes import default_dtype
from gpytorch_gam.training import FitResult, component_gains

from .fitted import Fitted
from .parts import Part
from .starts import Refit, Start
from .term_groups import TermGroups
from .terms import DeviatingCurves, Factor, Linear, Smooth, Term
from .terms import Tensor as TensorTerm

# The most interactions that are fitted together, and the number of inducing points along each of their columns.
_MOST, _POINTS = 5, 6

# The most pairs of columns that are screened unasked, at some thousandths of a second each on few rows.
_MOST_UNASKED = 100

# The state of candidates that promise to pay beside those that are kept.
NOT_FITTED = "not fitted"

# Tolerance in nats of fits that tell which interactions pay.
_LOOSE = 1.0


class Limits(NamedTuple):
    """
    Which interactions are kept.

    :ivar most: Their largest number; None for as many as pay.
    :ivar least_nats: The logarithm of the posterior odds that each must have at the estimates of its hyperparameters,
        if one of all candidates is expected.
    :ivar is_unasked: Whether nobody has asked for interactions, so that they are left out where they would take long:
        of many pairs, those of the columns with the most evidence are screened.
    """

    most: int | None
    least_nats: float
    is_unasked: bool = False

    def nats(self, num_candidates: int) -> float:
        """
        The nats by which an interaction must raise the bound: its prior odds are one to the number of candidates.

        :param num_candidates: The number of candidates.
        """
        return self.least_nats + math.log(max(num_candidates, 1))

    def estimated_nats(self, num_candidates: int) -> float:
        """
        The nats that screening must promise before an interaction is fitted: fits find more, but hardly ever twice as
        much where it is that little.

        :param num_candidates: The number of candidates.
        """
        return max(self.least_nats, math.log(max(num_candidates, 1)))


class Search(NamedTuple):
    """
    What a search has found.

    :ivar fitted: The model with the interactions that are kept.
    :ivar result: What its fit has found.
    :ivar screened: The candidates, see :attr:`GAMRegressor.interactions_`.
    """

    fitted: Fitted
    result: FitResult
    screened: pd.DataFrame


class _Candidate(NamedTuple):
    term: Term
    predictor: int
    label: str
    groups: list[ComponentGroup]
    nats: float  # that it promises


def search(
    fitted: Fitted,
    result: FitResult,
    data: tuple[Any, ...],
    frame: pd.DataFrame,
    weights: np.ndarray,
    limits: Limits,
    refit: Refit,
) -> Search:
    """
    Add the interactions to a model of main effects that raise its bound by more than some nats. Candidates can stand
    for each other, and other hyperparameters make room for them, so that the weakest is left out, and the others fitted
    again, until each of them pays, and all of them together: in loose fits at first, and in the last one, which goes on
    from these. Then the others are screened again, beside those that are kept, which may stand for them, or leave less
    noise in which they hide: as long as some promise to pay and more are allowed, these are added in the same way.

    :param fitted: The model of main effects.
    :param result: What its fit has found.
    :param data: Inputs, responses and perhaps row-wise arguments, in units of the fit.
    :param frame: The columns.
    :param weights: The weights of the rows.
    :param limits: Which interactions are kept.
    :param refit: Fits another design.
    """
    most_screened = _MOST_UNASKED if limits.is_unasked else None
    candidates = _screened(fitted, data, frame, weights, most_screened)
    most = _MOST if limits.most is None else limits.most
    least, least_promised = limits.nats(len(candidates)), limits.estimated_nats(len(candidates))
    is_loose = True
    chosen = [each for each in candidates if each.nats > least_promised][:most]
    tried: dict[str, float] = {}
    start = _start_with(fitted, chosen)
    while chosen:
        terms = [
            [each.term for each in chosen if each.predictor == index] for index in range(len(fitted.design.parameters))
        ]
        found, its_result = refit(fitted.design.extended(terms, frame, weights), start, _LOOSE if is_loose else 0.0)
        tried |= _evidence(found, [each.label for each in chosen])
        weakest = min(tried[each.label] for each in chosen)
        all_pay = weakest > least and its_result.bound - result.bound > least * len(chosen)
        if all_pay and not is_loose:
            left = [each for each in _screened(found, data, frame, weights, most_screened) if each.label not in tried]
            promising = [each for each in left if each.nats > least_promised]
            added = promising[: most - len(chosen)]
            if not added:
                return Search(found, its_result, _table(candidates, tried, chosen, promising))
            chosen, start, is_loose = [*chosen, *added], _start_with(found, added), True
            continue
        is_loose = not all_pay
        start = Start.of(found)
        chosen = [each for each in chosen if all_pay or tried[each.label] > max(weakest, 0.0)]
    return Search(fitted, result, _table(candidates, tried, []))


def _start_with(fitted: Fitted, candidates: Sequence[_Candidate]) -> Start:
    """The hyperparameters of a fit, and those of candidates as screening has left them."""
    groups = [group for each in candidates for group in each.groups]
    return Start([*fitted.model.predictor.groups, *groups], fitted.likelihood)


def _screened(
    fitted: Fitted, data: tuple[Any, ...], frame: pd.DataFrame, weights: np.ndarray, most: int | None
) -> list[_Candidate]:
    """The candidates of all predictors, at most some of each, those first that promise most."""
    parts = [
        [part for part in fitted.parts if part.predictor == index] for index in range(len(fitted.design.parameters))
    ]
    terms = [candidate_terms(own) for own in parts]
    if most is not None:
        terms = [_leading(fitted, *each, most) for each in zip(parts, terms, strict=True)]
    design = fitted.design.extended(terms, frame, weights)
    x = design.inputs(frame)
    device = data[0].device
    with default_dtype(torch.float64):
        groups_of_terms = TermGroups(design, x)
        groups = {
            (index, term): [
                group.to(device) for group in groups_of_terms.of(term, design.labelled(term.label, index), index)
            ]
            for index, own in enumerate(terms)
            for term in own
        }
    every = [group for own in groups.values() for group in own]
    gains = component_gains(fitted.model, fitted.likelihood, (x.to(device), *data[1:]), every) if every else {}
    found = [
        _Candidate(
            term,
            index,
            design.labelled(term.label, index),
            own,
            sum(gains[name] for each in own for name in each.names),
        )
        for (index, term), own in groups.items()
    ]
    return sorted(found, key=lambda each: -each.nats)


def candidate_terms(parts: Sequence[Part]) -> list[Term]:
    """
    The interactions of all pairs of columns that have effects of their own, and no joint one.

    :param parts: The terms of a predictor.
    """
    numbers: dict[str, str | None] = {}
    factors: dict[str, str | None] = {}
    joint: set[frozenset[str]] = set()
    for part in parts:
        term = part.term
        joint |= {frozenset(pair) for pair in itertools.combinations(term.columns, 2)}
        if not part.components or term.multiplier is not None or getattr(term, "period", None) is not None:
            continue
        if isinstance(term, Smooth | Linear) or (isinstance(term, TensorTerm) and term.has_main_effects):
            numbers |= dict.fromkeys(term.arguments, term.missing)
        elif isinstance(term, Factor) and term.missing != "level":
            factors[term.column] = term.missing
    pairs: list[Term] = [
        TensorTerm(numbers[first] or numbers[second], False, (first, second), _POINTS)
        for first, second in itertools.combinations(numbers, 2)
    ]
    pairs += [
        DeviatingCurves(numbers[first] or factors[second], first, second, _POINTS)
        for first, second in itertools.product(numbers, factors)
    ]
    return [term for term in pairs if frozenset(term.columns) not in joint]


def _leading(fitted: Fitted, parts: Sequence[Part], terms: list[Term], most: int) -> list[Term]:
    """At most some terms: those of the columns whose own effects have the most evidence."""
    if len(terms) <= most:
        return terms
    evidence: dict[str, float] = {}
    for part in parts:
        for column in part.term.columns if part.components else ():
            nats = component_evidence(fitted.model, part.components)
            evidence[column] = max(nats, evidence.get(column, nats))
    return sorted(terms, key=lambda term: -min(evidence[column] for column in term.columns))[:most]


def _evidence(fitted: Fitted, labels: Sequence[str]) -> dict[str, float]:
    """The nats of terms in a fit."""
    components = {part.label: part.components for part in fitted.parts}
    return {label: component_evidence(fitted.model, components[label]) for label in labels}


def _table(
    candidates: Sequence[_Candidate],
    tried: dict[str, float],
    kept: Sequence[_Candidate],
    promising: Sequence[_Candidate] = (),
) -> pd.DataFrame:
    """The candidates and what became of them; some promise to pay beside those that are kept, but were not fitted."""
    promising_labels = {each.label for each in promising}
    kept_labels = {each.label for each in kept}
    labels = [each.label for each in candidates]
    states = [
        "kept"
        if label in kept_labels
        else "rejected"
        if label in tried
        else NOT_FITTED
        if label in promising_labels
        else "promises too little"
        for label in labels
    ]
    return pd.DataFrame(
        {
            "estimated": [each.nats for each in candidates],
            "nats": [tried.get(label, float("nan")) for label in labels],
            "kept": [label in kept_labels for label in labels],
            "state": states,
        },
        index=pd.Index(labels, name="interaction"),
    )


def described_interactions(screened: pd.DataFrame | None) -> dict[str, list[Any]] | None:
    """
    Candidates as plain values, which JSON can hold.

    :param screened: The table of candidates, or None.
    """
    if screened is None:
        return None
    found: dict[str, list[Any]] = screened.reset_index().to_dict("list")
    return {**found, "nats": [None if value != value else value for value in found["nats"]]}


def interactions_of_description(description: dict[str, list[Any]] | None) -> pd.DataFrame | None:
    """
    The candidates with a description by :func:`described_interactions`.

    :param description: The plain values, or None.
    """
    if description is None:
        return None
    return pd.DataFrame(description).astype({"estimated": float, "nats": float, "kept": bool}).set_index("interaction")
