"""Effects seen through the inverse link: the mean of the response if all other effects are zero."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import torch

from .design import INTERCEPT, Part
from .effects import effect_table
from .fitted import Fitted

#: The scales on which effects are shown.
SCALES = ("link", "response")

# What an effect adds to, by the link.
_LINKS = {"log": "log mean", "logit": "log odds", "probit": "probit"}

# Columns of tables of effects that are seen through the link.
_SEEN = ("mean", "lower", "upper", "lower_all", "upper_all")


def scaled_effect_table(
    fitted: Fitted, part: Part, values: pd.DataFrame, level: float, simultaneous: bool = False, scale: str = "link"
) -> pd.DataFrame:
    """
    A table as of :func:`~.effects.effect_table`; on the scale of the response, the columns are what the intercept and
    the effect give through the inverse link, the uncertainty of both included.

    :param fitted: The fitted model.
    :param part: The term.
    :param values: The columns of the term.
    :param level: The probability of the bands.
    :param simultaneous: Whether to add the simultaneous band.
    :param scale: ``"link"`` or ``"response"``.
    :raises ValueError: If effects of the family have no scale of the response.
    """
    if scale == "link":
        return effect_table(fitted, part, values, level, simultaneous)
    if fitted.family.name in ("ordinal", "softmax"):
        raise ValueError(
            f"scale must be 'link' with the family {fitted.family.name!r}: probabilities of its classes depend on all "
            "predictors or thresholds together, see predict_proba"
        )
    table = effect_table(fitted, _with_intercept(fitted, part), values, level, simultaneous).drop(columns="std")
    for name in (each for each in _SEEN if each in table):
        table[name] = _seen(fitted, part, table[name])
    return table


def _with_intercept(fitted: Fitted, part: Part) -> Part:
    intercept = fitted.design.labelled(INTERCEPT, part.predictor)
    known = fitted.model.predictor.names
    return replace(part, components=(*(name for name in [intercept] if name in known), *part.components))


def _seen(fitted: Fitted, part: Part, values: pd.Series) -> pd.Series:
    """The parameter of the distribution for values of its predictor without its centre, in units of the response."""
    shifted = values + fitted.centre_of(part.predictor)
    if part.predictor > 0:  # a logarithm
        return np.exp(shifted)
    if fitted.has_identity_link:
        return shifted
    mean = fitted.family.mean(torch.tensor(shifted.to_numpy()), {}, fitted.likelihood)
    return pd.Series(mean.detach().numpy(), index=values.index)


def name_on_scale(fitted: Fitted, part: Part, response: str, scale: str) -> str:
    """
    The label of an axis that shows an effect.

    :param fitted: The fitted model.
    :param part: The term.
    :param response: What the response is called.
    :param scale: ``"link"`` or ``"response"``.
    """
    parameter = fitted.design.parameters[part.predictor]
    if scale == "response":
        if part.predictor > 0:
            return parameter.removeprefix("log_").replace("_", " ")
        of_families = {"binomial": f"probability of {response}", "quantile": f"quantile of {response}"}
        return of_families.get(fitted.family.name, f"mean of {response}")
    if part.predictor == 0 and fitted.has_identity_link:
        return f"effect on {response}"
    if part.predictor == 0 and fitted.family.link in _LINKS:
        return f"effect on {name_of_predictor(fitted, response)}"
    return f"effect on {parameter.replace('_', ' ')}"


def name_of_predictor(fitted: Fitted, response: str) -> str:
    """
    What the first predictor is through its link, which is not the identity: of labels and successes, whose log odds.

    :param fitted: The fitted model.
    :param response: What the response is called.
    """
    name = _LINKS[fitted.family.link]
    return f"{name} of {response}" if fitted.family.name == "binomial" else name
