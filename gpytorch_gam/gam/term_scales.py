"""Hyperparameters of terms in units of the data: how large their effects are a priori, and how fast they change."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gpytorch.kernels import Kernel, PeriodicKernel

from gpytorch_gam.components import ComponentGroup

from .fitted import Fitted
from .parts import Part
from .summary import shown_days
from .terms import PERIODS, Factor, Place, RandomCurves, Smooth
from .terms import Tensor as TensorTerm


def scales_of_terms(fitted: Fitted) -> dict[str, list[Any]]:
    """
    The columns ``prior_sd`` and ``lengthscale`` of a summary.

    :param fitted: The fitted model.
    """
    deviations: list[float] = []
    lengthscales: list[Any] = []
    for part in fitted.parts:
        if not part.components or isinstance(part.term, Factor):
            deviations.append(math.nan if part.components else 0.0)
            lengthscales.append(None)
            continue
        groups = [(fitted.model.predictor.group_of(name), name) for name in part.components]
        variances = [prior_variance(group, name) for group, name in groups]
        deviations.append(fitted.scale_of(part.predictor) * math.sqrt(sum(variances) / _num_parts(part)))
        lengthscales.append(_lengthscale(fitted, part, groups))
    return {"prior_sd": deviations, "lengthscale": lengthscales}


def _num_parts(part: Part) -> int:
    """Components of a by-term stand for different rows."""
    names = [name for name in part.components if name.startswith(f"{part.label}=")]
    return len(names) or 1


def prior_variance(group: ComponentGroup, name: str) -> float:
    """
    The prior variance of a component, over the distribution of its inputs.

    :param group: Its group.
    :param name: Its name.
    """
    return group.mean_prior_variance().expand(group.num_components)[group.names.index(name)].item()


def _lengthscale(fitted: Fitted, part: Part, groups: Sequence[tuple[ComponentGroup, str]]) -> Any:
    """The lengthscale of a term of one smooth component, in units of its column; that of dates in days."""
    if not isinstance(part.term, Smooth | RandomCurves | TensorTerm):
        return None
    own = groups if isinstance(part.term, TensorTerm) else [groups[0]]
    found = []
    for group, name in own:
        for kernel in _smooth_kernels(group.kernel):
            value = kernel.lengthscale.detach().flatten()[group.names.index(name)].item()
            if isinstance(kernel, PeriodicKernel):
                found.append(math.sqrt(value) / (2 * math.pi) * _period(part.term))
            else:
                found.append(value)
    if isinstance(part.term, Place):
        return found[0]
    if isinstance(part.term, TensorTerm):
        units = [fitted.design.encoding(name, "number") for name in part.term.names]
        last = found[-len(units) :]
        values = [value * unit.scale for value, unit in zip(last, units, strict=True)]
        return ", ".join(
            shown_days(value) if unit.kind == "date" else f"{value:.3g}"
            for value, unit in zip(values, units, strict=True)
        )
    if isinstance(part.term, Smooth) and part.term.period is not None:
        return found[0]
    return found[0] * fitted.design.encoding(part.term.column, "number").scale


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


def _smooth_kernels(kernel: Kernel) -> list[Kernel]:
    return [each for each in kernel.modules() if getattr(each, "has_lengthscale", False)]


def _period(term: Any) -> float:
    return PERIODS[term.period] if isinstance(term.period, str) else float(term.period)
