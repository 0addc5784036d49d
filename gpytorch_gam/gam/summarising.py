"""The summary of a fitted model, put together from its parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch

from gpytorch_gam.training import FitResult

from .component_table import component_table
from .fitted import Fitted
from .freedom import warnings_of_freedom
from .parameter_tables import intercept_table, likelihood_table, random_effect_table
from .response_scale import name_of_predictor
from .summary import Summary
from .term_concurvity import warnings_of_concurvity
from .term_evidence import Evidence, evidence_of_components, evidence_of_terms
from .term_scales import is_in_days, lengthscale, prior_deviation
from .term_shares import effects_at_estimates, shares_of_terms, warnings_of_overlap


def summarise(
    fitted: Fitted,
    result: FitResult | None,
    num_rows: int,
    deviance_explained: float,
    bound: float,
    response: str,
) -> Summary:
    """
    Summarise a fitted model.

    :param fitted: The fitted model.
    :param result: What the fit has found; None if it was interrupted.
    :param num_rows: The number of rows of the fit.
    :param deviance_explained: The share of the deviance that is explained.
    :param bound: The evidence lower bound of responses in their units.
    :param response: What the response is called.
    """
    with torch.no_grad():
        rows = fitted.complete_rows()
        evidence, of_components = evidence_of_terms(fitted), evidence_of_components(fitted)
        effects = effects_at_estimates(fitted, rows, [each.freedom for each in evidence])
        shares = shares_of_terms(fitted, rows, effects)
        components = component_table(fitted, of_components)
        terms = _term_table(fitted, evidence, of_components, shares)
        messages = () if result is None else result.messages
        warnings = (
            *messages,
            *warnings_of_freedom(float(terms["edf"].sum()), num_rows),
            *warnings_of_concurvity(fitted, rows),
            *warnings_of_overlap(fitted, effects, shares["share"]),
        )
        intercepts, random, likelihood = (
            intercept_table(fitted),
            random_effect_table(fitted),
            likelihood_table(fitted, result),
        )
    facts = _facts(fitted, likelihood, result, num_rows, deviance_explained, bound, response)
    in_days = tuple(part.label for part in fitted.parts if is_in_days(fitted, part))
    with_levels = tuple(part.label for part in fitted.parts if len(part.levels) > 1)
    return Summary(terms, components, intercepts, random, likelihood, facts, warnings, in_days, with_levels)


def _term_table(
    fitted: Fitted,
    evidence: Sequence[Evidence],
    of_components: Mapping[str, Evidence],
    shares: Mapping[str, np.ndarray],
) -> pd.DataFrame:
    on = [[name for name in each.leading_components if of_components[name].is_on] for each in fitted.parts]
    columns: dict[str, Any] = {
        "edf": [each.freedom for each in evidence],
        "prior_sd": [prior_deviation(fitted, part, part.components) for part in fitted.parts],
        "lengthscale": [lengthscale(fitted, part, own) for part, own in zip(fitted.parts, on, strict=True)],
        **shares,
        "p": [each.probability for each in evidence],
    }
    return pd.DataFrame(columns, index=pd.Index([part.label for part in fitted.parts], name="term"))


def _facts(
    fitted: Fitted,
    likelihood: pd.DataFrame,
    result: FitResult | None,
    num_rows: int,
    deviance_explained: float,
    bound: float,
    response: str,
) -> dict[str, Any]:
    facts: dict[str, Any] = {"family": fitted.family.name, "link": fitted.family.link}
    if fitted.family.name == "binomial":
        facts["predictor"] = name_of_predictor(fitted, response)
    facts["rows"] = num_rows
    facts |= likelihood["estimate"].to_dict()
    if fitted.design.reads_kernel():
        facts["kernel"] = fitted.design.kernel
    facts["hyperparameters"] = fitted.hyperparameters
    facts["deviance explained"] = deviance_explained
    if result is None:
        return {**facts, "converged": "no, interrupted"}
    converged = "yes" if result.converged else f"NO: {result.stopped}"
    return {
        **facts,
        "bound": bound,
        "nats open": result.open,
        "converged": converged,
        "method": result.method,
        "seconds": result.seconds,
    }
