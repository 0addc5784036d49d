"""Hyperparameters of terms in units of the data: how large their effects are a priori, and how fast they change."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from gpytorch.kernels import Kernel, PeriodicKernel

from gpytorch_gam.components import ComponentGroup

from .fitted import Fitted
from .parts import Part
from .summary import shown_days
from .terms import PERIODS, Factor, Place, RandomCurves, Smooth
from .terms import Tensor as TensorTerm


def prior_deviation(fitted: Fitted, part: Part, names: Collection[str]) -> float:
    """
    The standard deviation of an effect under its prior, over the rows of the data, in units of its predictor; NaN if it
    is fixed. Components of levels stand for different rows, and count alike.

    :param fitted: The fitted model.
    :param part: The term.
    :param names: Some of its components.
    """
    groups = [(fitted.model.predictor.group_of(name), name) for name in names]
    if isinstance(part.term, Factor) and not any(group.kernel.raw_outputscale.requires_grad for group, _ in groups):
        return math.nan if names else 0.0
    variance = sum(prior_variance(group, name) for group, name in groups)
    return fitted.scale_of(part.predictor) * math.sqrt(variance / max(1, len(part.levels.keys() & set(names))))


def prior_variance(group: ComponentGroup, name: str) -> float:
    """
    The prior variance of a component, over the distribution of its inputs.

    :param group: Its group.
    :param name: Its name.
    """
    return group.mean_prior_variance().expand(group.num_components)[group.names.index(name)].item()


def lengthscale(fitted: Fitted, part: Part, names: Collection[str]) -> Any:
    """
    The distance over which an effect changes, in units of its columns, and days of dates: a number, or text of several,
    one for each column of an interaction, or the range of those of levels. None if nothing of it is curved.

    :param fitted: The fitted model.
    :param part: The term.
    :param names: A component of the term, or those of its levels, that the fit has not switched off.
    """
    found = [each for each in (_lengthscales(fitted, part, name) for name in names) if each]
    if not found:
        return None
    if part.levels:
        return _shown_range(fitted, part, [value for ((value, _),) in found])
    (own,) = found
    is_text = len(own) > 1 or (isinstance(part.term, TensorTerm) and own[0][1])
    return ", ".join(_shown(*each) for each in own) if is_text else own[0][0]


def _shown(value: float, is_date: bool) -> str:
    return shown_days(value) if is_date else f"{value:.3g}"


def _shown_range(fitted: Fitted, part: Part, values: list[float]) -> float | str:
    """A number if there is one, or hardly more, and else the smallest and the largest."""
    low, high = (_shown(value, is_in_days(fitted, part)) for value in (min(values), max(values)))
    return values[0] if low == high else f"{low} to {high}"


def _lengthscales(fitted: Fitted, part: Part, name: str) -> list[tuple[float, bool]]:
    """The lengthscales of a component along its columns, in their units, and whether these are dates."""
    group = fitted.model.predictor.group_of(name)
    kernels = [each for each in group.kernel.modules() if getattr(each, "has_lengthscale", False)]
    values = [_of_component(kernel, group.names.index(name)) for kernel in kernels]
    if not values:
        return []
    term = part.term
    if isinstance(term, Smooth) and term.period is not None:
        return [(values[0] * _period(term), is_in_days(fitted, part))]
    if isinstance(term, Place | Factor):
        return [(values[0], False)]
    columns = term.names if isinstance(term, TensorTerm) else term.arguments[:1]
    columns = columns if len(values) == len(columns) else (part.component(name),)  # the effect of one column of te
    units = [fitted.design.encoding(column, "number") for column in columns]
    return [(value * unit.scale, unit.kind == "date") for value, unit in zip(values, units, strict=True)]


def _of_component(kernel: Kernel, index: int) -> float:
    """The lengthscale of a component of a group, that of a periodic kernel in periods."""
    value: float = kernel.lengthscale.detach().flatten()[index].item()
    return math.sqrt(value) / (2 * math.pi) if isinstance(kernel, PeriodicKernel) else value


def _period(term: Smooth) -> float:
    return PERIODS[term.period] if isinstance(term.period, str) else float(term.period or math.nan)


def is_in_days(fitted: Fitted, part: Part) -> bool:
    """
    Whether the argument of a smooth effect is a date.

    :param fitted: The fitted model.
    :param part: The term.
    """
    if not isinstance(part.term, Smooth | RandomCurves):
        return False
    kinds = (encoding.kind for (name, _), encoding in fitted.design.encodings.items() if name == part.term.column)
    return "date" in kinds
