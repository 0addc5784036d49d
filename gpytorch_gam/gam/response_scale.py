"""Effects seen through the inverse link: the mean of the response if all other effects are zero."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch

from .effects import CLASS, EffectGrid, effect_tables, inputs_of, name_in_tables
from .fitted import Fitted
from .parts import INTERCEPT, Part
from .prediction import class_probabilities, class_probability_quantiles

#: The scales on which effects are shown.
SCALES = ("link", "response")

# What an effect adds to, by the link.
_LINKS = {"log": "log mean", "logit": "log odds", "probit": "probit"}

# Columns of tables of effects that are seen through the link.
_SEEN = ("mean", "lower", "upper", "lower_all", "upper_all")


def scaled_effect_tables(
    fitted: Fitted, grids: Sequence[EffectGrid], level: float, scale: str = "link"
) -> list[pd.DataFrame]:
    """
    Tables as of :func:`~.effects.effect_tables`; on the scale of the response, the columns are what the intercept and
    the effect give through the inverse link, the uncertainty of both included.

    :param fitted: The fitted model.
    :param grids: The terms, each with the values of its columns.
    :param level: The probability of the bands.
    :param scale: ``"link"`` or ``"response"``.
    :raises ValueError: If effects of the family have no scale of the response.
    """
    if scale == "link":
        return effect_tables(fitted, grids, level)
    if has_several_classes(fitted):
        raise ValueError(
            f"scale must be 'link' for {grids[0].part.label} in pictures of the family {fitted.family.name!r}, which "
            "has several classes: gam.effect(term, scale='response') has their probabilities as a table"
        )
    with_intercept = [grid._replace(part=_with_intercept(fitted, grid.part)) for grid in grids]
    tables = [table.drop(columns="std") for table in effect_tables(fitted, with_intercept, level)]
    for grid, table in zip(grids, tables, strict=True):
        for name in (each for each in _SEEN if each in table):
            table[name] = _seen(fitted, grid.part, table[name])
    return tables


def refuse_no_ratio(fitted: Fitted, part: Part) -> None:
    """
    Refuse ratios where the exponential of a difference of effects is none.

    :param fitted: The fitted model.
    :param part: The term.
    :raises ValueError: If the predictor is neither a logarithm nor log odds.
    """
    is_logarithm = part.predictor > 0 or fitted.family.link in ("log", "logit")
    if not is_logarithm or has_several_classes(fitted):
        raise ValueError(
            f"scale must be 'link' for {part.label}: with the family {fitted.family.name!r} and link "
            f"{fitted.family.link!r} effects are no logarithms; gam.draw_functions().mean(X) has means for ratios"
        )


def exponential_table(table: pd.DataFrame) -> pd.DataFrame:
    """
    A table of differences of logarithms as one of ratios.

    :param table: As of :func:`~.effects.difference_table`.
    """
    seen = {name: np.exp(table[name]) for name in _SEEN if name in table}
    return table.drop(columns="std").assign(**seen)


def class_table(fitted: Fitted, part: Part, values: pd.DataFrame, level: float, classes: Sequence[Any]) -> pd.DataFrame:
    """
    Probabilities of several classes at values of the columns of a term, with pointwise bands, if all other effects are
    zero. The term counts in the predictors of all classes.

    :param fitted: The fitted model.
    :param part: The term, in one of the predictors.
    :param values: The columns of the term.
    :param level: The probability of the bands.
    :param classes: The names of the classes.
    :return: The columns of the term, ``class``, ``mean``, ``lower`` and ``upper``: one class after the other.
    """
    kept = [each for each in fitted.parts if each.term.label == part.term.label]
    x = inputs_of(fitted, part, values)
    mean = class_probabilities(fitted, x, {}, kept).T  # (K, n)
    lower, upper = class_probability_quantiles(fitted, x, {}, kept, (0.5 - level / 2, 0.5 + level / 2))
    named = values.reset_index(drop=True).rename(columns=name_in_tables)
    tables = [
        named.assign(**{CLASS: name, "mean": mean[k], "lower": lower[k], "upper": upper[k]})
        for k, name in enumerate(classes)
    ]
    return pd.concat(tables, ignore_index=True)


def has_several_classes(fitted: Fitted) -> bool:
    """
    Whether responses are classes whose probabilities depend on several predictors or thresholds together.

    :param fitted: The fitted model.
    """
    return fitted.family.name in ("ordinal", "softmax")


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
        if has_several_classes(fitted):
            return "probability of each class"
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
