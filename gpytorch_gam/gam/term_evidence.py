"""Whether terms have any effect, and how much the data say of it."""

from __future__ import annotations

from gpytorch_gam.diagnostics import score_test
from gpytorch_gam.diagnostics.evidence_of_components import whitened_posterior

from .fitted import Fitted
from .freedom import NO_FREEDOM, degrees_of_freedom


def evidence_of_terms(fitted: Fitted) -> dict[str, list[float]]:
    """
    Effective degrees of freedom and tail probabilities of all terms.

    :param fitted: The fitted model.
    """
    found = [whitened_posterior(fitted.model, part.components) for part in fitted.parts]
    freedoms = [degrees_of_freedom(covariance) for _, covariance in found]
    probabilities = [
        score_test(mean, covariance) if freedom >= NO_FREEDOM else 1.0
        for (mean, covariance), freedom in zip(found, freedoms, strict=True)
    ]
    return {"edf": freedoms, "p": probabilities}
