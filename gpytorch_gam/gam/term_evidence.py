"""Whether effects are any, and how much the data say of them."""

from __future__ import annotations

from collections.abc import Sequence
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


def evidence_of(fitted: Fitted, sums: Sequence[Sequence[str]]) -> list[Evidence]:
    """
    Effective degrees of freedom and tail probabilities of sums of components.

    :param fitted: The fitted model.
    :param sums: The names of the components of each.
    """
    mean, covariance = whitened_posterior(fitted.model, fitted.model.predictor.names)
    slices = fitted.model.predictor.inducing_slices
    indices = torch.arange(len(mean))
    found = []
    for names in sums:
        own = torch.cat([indices[slices[name]] for name in names]) if names else indices[:0]
        freedom = degrees_of_freedom(covariance[own][:, own])
        each = Evidence(freedom, 1.0)
        found.append(each._replace(probability=score_test(mean[own], covariance[own][:, own])) if each.is_on else each)
    return found
