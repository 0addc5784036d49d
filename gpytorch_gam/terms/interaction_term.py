"""Interactions of a smooth effect and a category."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from gpytorch_gam.components.component_group import ComponentGroup
from gpytorch_gam.kernels import CentredKernel, LevelKernel, Measure

from ._arguments import (
    LevelsLike,
    PerColumn,
    centred_on,
    checked_count,
    checked_variance,
    column_ranges,
    different_columns,
    grid,
    grid_of_levels,
    level_points,
    scaled,
    several_levels,
    single_name,
    stationary_kernel,
)


def interaction(
    column: int,
    by: int,
    levels: LevelsLike,
    x: Tensor | None = None,
    *,
    low: PerColumn | None = None,
    high: PerColumn | None = None,
    num_inducing: int = 10,
    kernel: Literal["rbf", "matern12", "matern32", "matern52"] = "rbf",
    measure: Measure | None = None,
    variance: float | None = None,
    name: str | None = None,
    predictor: int = 0,
    missing: Literal["error", "marginal"] = "error",
) -> ComponentGroup:
    r"""
    How the smooth effect of a column differs between the levels of a category: curves :math:`f_l(x)` with mean zero
    each and sum zero over levels. In mgcv it is what ``s(x) + s(x, g, bs="sz")`` adds to the first.

    **Prior.** :math:`f \sim GP(0, \sigma^2 k_0(x, x') h_0(l, l'))`, where :math:`k_0` is the centred kernel of
    :func:`smooth` and :math:`h_0` that of :func:`factor`, both of mean variance one. One variance and one lengthscale
    for all levels are trained. Inducing points are all pairs of a grid and the levels but the last, which is minus the
    sum of the others; training never moves the codes.

    **Identifiability.** It is orthogonal to :func:`smooth` of the column, :func:`factor` of the category and the
    constant, so ``smooth + factor + interaction + constant`` is an analysis of variance. A value of the column ``by``
    that is none of the levels is an error.

    :param column: Column of the smooth argument.
    :param by: Column that the levels stand in.
    :param levels: Two or more: :class:`Levels`, or anything that :meth:`Levels.of` takes.
    :param x: Training inputs ``(n, D)``, from whose finite values the range is taken; not kept. Not needed with ``low``
        and ``high``.
    :param low: Lower end of the range.
    :param high: Upper end of the range.
    :param num_inducing: Number of inducing points of each level.
    :param kernel: Radial basis function, or Matern of smoothness 1/2, 3/2 or 5/2.
    :param measure: Under which each curve has mean zero. Default: uniform on the range, or its bulk as in
        :func:`smooth`.
    :param variance: Initial prior variance, which is trained. Default: one, until a fit puts that of the responses in
        its place, see :func:`~gpytorch_gam.training.start_from_responses`.
    :param name: Name of the component. Default: such as ``x0:x3``.
    :param predictor: Which additive predictor of a multi-parameter likelihood the component belongs to.
    :param missing: What a row with NaN in a column is: an error, or the prior, see :class:`ComponentGroup`.
    :return: A group of one component.
    :raises ValueError: If an argument is not as described, or the column has no range.

    Example:
        >>> AdditivePredictor(
        >>>     smooth(0, x), factor(3, sites), interaction(0, by=3, levels=sites, x=x), constant()
        >>> )
    """
    column, by = different_columns("interaction", column, by)
    levels = several_levels("interaction", by, levels)
    (num,) = checked_count("interaction", num_inducing, 1)
    ranges = column_ranges("interaction", [column], x, low, high)
    base = stationary_kernel("interaction", kernel, ranges.width, ranges.bulk_width, active_dims=[0])
    codes = level_points(levels)
    of_levels = CentredKernel(LevelKernel(), codes, active_dims=(1,))
    return ComponentGroup(
        scaled(centred_on(base, measure, ranges) * of_levels, 1, checked_variance("interaction", variance)),
        columns=[[column, by]],
        inducing_points=grid_of_levels(grid(ranges[:, None], [num])[0], codes[:-1]),
        names=single_name("interaction", name),
        levels={by: levels},
        predictor=predictor,
        missing=missing,
    )
