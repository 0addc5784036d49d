"""The choice of the smoothness of effects: the kernel with the highest bound."""

from __future__ import annotations

import warnings
from dataclasses import replace

from gpytorch_gam.training import FitResult
from gpytorch_gam.training.bound_gradients import log_prior_in_nats
from gpytorch_gam.training.shortfall import notably_short

from .fitted import Fitted
from .starts import Refit, Start
from .work import is_quick

#: The kernel that others are compared with, and that fits which compare none take.
DEFAULT_KERNEL = "matern52"

# A smoother one, and a rougher one. Those that are rougher still are for those who ask for them.
_OTHERS = ("rbf", "matern32")

# Nats by which another kernel must raise the bound and the log prior together, to be taken.
_WORTH = 1.0


def with_best_kernel(fitted: Fitted, result: FitResult, num_rows: int, refit: Refit) -> tuple[Fitted, FitResult]:
    """
    The model with the kernel whose bound is highest, which is that of all terms that name none. The more probable of
    the others comes first, and if it is better, it is taken.

    :param fitted: The model with :data:`DEFAULT_KERNEL`.
    :param result: What its fit has found.
    :param num_rows: The number of rows.
    :param refit: Fits the design with another kernel.
    """
    if result.method != "rows" or not is_quick(fitted.model, num_rows) or not fitted.design.reads_kernel():
        return fitted, result
    least = _value(fitted, result) + _WORTH
    for kernel in reversed(_OTHERS) if _has_grown(fitted) else _OTHERS:
        design = replace(fitted.design, kernel=kernel, parts=[])
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            found, its_result = refit(design, Start.of(fitted), explore=False)
        if _value(found, its_result) > least:
            if _wants_points(found, its_result):
                return refit(design, Start.of(found))
            for each in given:
                warnings.warn(each.message, each.category, stacklevel=2)
            return found, its_result
    return fitted, result


def _has_grown(fitted: Fitted) -> bool:
    """Whether the fit has added inducing points to any effect, as to those that are rough."""
    placed = [(group, group.placement) for group in fitted.model.predictor.groups]
    return any(place is not None and group.num_inducing > place.first_number for group, place in placed)


def _wants_points(fitted: Fitted, result: FitResult) -> bool:
    """Whether an effect would gain notably from more inducing points, and can have them."""
    group_of = fitted.model.predictor.group_of
    return any(group_of(name).more_inducing_points() is not None for name in notably_short(result.shortfalls))


def _value(fitted: Fitted, result: FitResult) -> float:
    """What a fit makes large: the bound and the log prior of the hyperparameters, in nats."""
    return result.bound + log_prior_in_nats(fitted.model, fitted.likelihood)
