"""Whether effects are any, and how much the data say of them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import torch

from gpytorch_gam.diagnostics import score_test
from gpytorch_gam.diagnostics.evidence_of_components import whitened_posterior

from .fitted import Fitted
from .freedom import NO_FREEDOM, degrees_of_freedom


class Evidence(NamedTuple):
    """What the data say of an effect."""

    freedom: float  # effective degrees of freedom
    probability: float  # of the score test of no effect

    @property
    def is_on(self) -> bool:
        """Whether anything is left of the effect."""
        return self.freedom >= NO_FREEDOM


def evidence_of_terms(fitted: Fitted) -> list[Evidence]:
    """
    What the data say of each term.

    :param fitted: The fitted model.
    """
    sums = [part.components for part in fitted.parts]
    return _evidence_of(fitted, sums, [part.term.label for part in fitted.parts])


def evidence_of_components(fitted: Fitted) -> dict[str, Evidence]:
    """
    What the data say of each component of the terms, by its name.

    :param fitted: The fitted model.
    """
    found = {name: (part.term.label, part.component(name)) for part in fitted.parts for name in part.components}
    return dict(zip(found, _evidence_of(fitted, [[name] for name in found], list(found.values())), strict=True))


def _evidence_of(fitted: Fitted, sums: Sequence[Sequence[str]], effects: Sequence[Hashable]) -> list[Evidence]:
    """
    Effective degrees of freedom and tail probabilities of sums of components. The predictors of several classes are
    known by their differences alone, so that any of them could do without an effect that the others have: there, the
    probability is that of the same effect in all classes together.
    """
    mean, covariance = whitened_posterior(fitted.model, fitted.model.predictor.names)
    slices, indices = fitted.model.predictor.inducing_slices, torch.arange(len(mean))

    def evidence(names: Sequence[str]) -> Evidence:
        own = torch.cat([indices[slices[name]] for name in names]) if names else indices[:0]
        found = Evidence(degrees_of_freedom(covariance[own][:, own]), 1.0)
        return found._replace(probability=score_test(mean[own], covariance[own][:, own])) if found.is_on else found

    every = [evidence(names) for names in sums]
    if not fitted.family.only_differences:
        return every
    together: dict[Hashable, list[str]] = {}
    for effect, names in zip(effects, sums, strict=True):
        together.setdefault(effect, []).extend(names)
    joint = {effect: evidence(names).probability for effect, names in together.items()}
    return [each._replace(probability=joint[effect]) for each, effect in zip(every, effects, strict=True)]
