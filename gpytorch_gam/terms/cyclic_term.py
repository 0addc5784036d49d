"""Periodic effects of one column."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from gpytorch.constraints import Interval
from gpytorch.kernels import Kernel, PeriodicKernel
from torch import Tensor

from gpytorch_gam.components.component_group import ComponentGroup

from ._arguments import (
    INITIAL_LENGTHSCALE,
    LONGEST_LENGTHSCALE,
    LevelsLike,
    PerColumn,
    Ranges,
    as_names,
    centred_on,
    checked_columns,
    checked_count,
    checked_variance,
    grid,
    is_switched_on,
    multipliers,
    per_column,
    scaled,
)

# In periods. Shorter ones would be beyond the quadrature of the centred kernel.
_SHORTEST_LENGTHSCALE = 0.035


def cyclic(
    columns: int | Sequence[int],
    period: PerColumn,
    *,
    start: PerColumn = 0.0,
    num_inducing: int = 12,
    centred: bool | None = None,
    by: int | None = None,
    levels: LevelsLike | None = None,
    variance: float | None = None,
    names: Sequence[str] | str | None = None,
    predictor: int = 0,
    missing: Literal["error", "marginal"] = "error",
) -> ComponentGroup:
    r"""
    Periodic effects :math:`f_c(x_c) = f_c(x_c + p_c)`, one a column, such as the hour of a day: ``s(x, bs="cc")`` of
    mgcv. Value and all derivatives are continuous at the seam, whether or not there are data beside it.

    **Prior.** :math:`f_c \sim GP(0, \sigma_c^2 k_c)` with GPyTorch's :class:`~gpytorch.kernels.PeriodicKernel`,
    :math:`k(x, x') = \exp(-2 \sin^2(\pi (x - x') / p) / \lambda)`, which at short distances is a radial basis function
    of lengthscale :math:`l = p \sqrt\lambda / 2 \pi`. Variance and :math:`\lambda` are each component's own; l is a
    quarter of the period at first, and training keeps it between .035 and ten periods. The period is fixed. Inducing
    points divide one period into equal parts; data may lie in any.

    **Identifiability.** With ``centred=True`` an effect has mean zero over a period, and the variance is its mean prior
    variance: the level is the constant's. With ``centred=False`` effects and constant share one constant.

    ``by`` and ``levels`` are those of :func:`smooth`.

    :param columns: One column or several, one component each.
    :param period: The period, or one a column.
    :param start: Where a period starts, or one a column; says where the inducing points are and nothing else.
    :param num_inducing: Number of inducing points of each component.
    :param centred: Whether effects have mean zero over a period. Default: unless ``by`` is numeric.
    :param by: Column of a multiplier, or with ``levels`` of a category.
    :param levels: Its levels: :class:`Levels`, or anything that :meth:`Levels.of` takes.
    :param variance: Initial prior variance, which is trained. Default: one, until a fit puts that of the responses in
        its place, see :func:`~gpytorch_gam.training.start_from_responses`.
    :param names: One name a component. Default: such as ``cyclic(x0)``, ``cyclic(x0)*x2`` or
        ``cyclic(x0)|x3=Oslo``.
    :param predictor: Which additive predictor of a multi-parameter likelihood the components belong to.
    :param missing: What a row with NaN in a column is: an error, or the prior, see :class:`ComponentGroup`.
    :return: A group of one component a column, or one a column and level.
    :raises ValueError: If an argument is not as described.

    Example:
        >>> cyclic(0, period=24.0)                      # s(hour, bs = "cc")
        >>> cyclic([0, 1], period=[24.0, 365.25])       # hour and day of the year
    """
    columns = checked_columns("cyclic", columns)
    (num,) = checked_count("cyclic", num_inducing, 1)
    periods, starts = per_column("cyclic", "period", period, columns), per_column("cyclic", "start", start, columns)
    if not bool((periods > 0).all()):
        raise ValueError(f"period of cyclic must be positive, got {period!r} for columns {columns}")
    parts = multipliers("cyclic", columns, by, levels)
    centred = is_switched_on("cyclic", "centred", centred, default=by is None or levels is not None)
    ranges = Ranges.between(starts, starts + periods)[parts.position]
    base: Kernel = _periodic_kernel(ranges.width)
    if centred:
        base = centred_on(base, None, ranges)
    without_end = Ranges.between(ranges.low, ranges.high - ranges.width / num)
    return ComponentGroup(
        scaled(base, parts.num_components, checked_variance("cyclic", variance)),
        columns=parts.columns,
        inducing_points=grid(without_end[:, None], [num]),
        names=parts.names("cyclic", predictor) if names is None else as_names(names),
        predictor=predictor,
        missing=missing,
        **parts.group_arguments,
    )


def _periodic_kernel(periods: Tensor) -> PeriodicKernel:
    def squared(lengthscale: float) -> float:
        return (2 * math.pi * lengthscale) ** 2

    options: dict[str, Any] = {
        "batch_shape": torch.Size([len(periods)]),
        "lengthscale_constraint": Interval(squared(_SHORTEST_LENGTHSCALE), squared(LONGEST_LENGTHSCALE)),
    }
    kernel = PeriodicKernel(**options)
    kernel.lengthscale = squared(INITIAL_LENGTHSCALE)
    kernel.period_length = periods.to(torch.get_default_dtype()).reshape(-1, 1, 1)
    kernel.raw_period_length.requires_grad_(False)
    return kernel
