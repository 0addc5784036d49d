"""One smooth curve a level, with shared hyperparameters."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from gpytorch_gam.components.component_group import ComponentGroup, default_name
from gpytorch_gam.kernels import LevelKernel, Measure

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
    is_switched_on,
    level_points,
    open_levels,
    scaled,
    single_name,
    stationary_kernel,
)


def factor_smooth(
    column: int,
    by: int,
    levels: LevelsLike,
    x: Tensor | None = None,
    *,
    low: PerColumn | None = None,
    high: PerColumn | None = None,
    num_inducing: int = 10,
    kernel: Literal["rbf", "matern12", "matern32", "matern52"] = "rbf",
    centred: bool = False,
    measure: Measure | None = None,
    variance: float | None = None,
    name: str | None = None,
    predictor: int = 0,
    missing: Literal["error", "marginal"] = "error",
) -> ComponentGroup:
    r"""
    Random curves :math:`f_{l}(x)`, one for each level of a category, that share their hyperparameters: ``s(x, g,
    bs="fs")`` of mgcv. It is a single component, whose inducing points are all pairs of a grid and the levels. A row
    has to do with those of its level alone.

    **Prior.** :math:`f_l \sim GP(0, \sigma^2 k)`, independent, with one variance and one lengthscale for all, initial
    values and bounds as those of :func:`smooth`. The codes of the levels are never moved by training. A level that is
    not among ``levels`` has the prior: mean zero, variance :math:`\sigma^2`, and one curve for all rows with the same
    code.

    **Identifiability.** The curves contain a random intercept for each level, as those of mgcv. With ``centred=True``
    each has mean zero under the measure, and the intercepts belong to :func:`random_effect`. Beside a common smooth of
    the same column, the mean of the curves is shared with it: the prior decides, and draws it towards the common one.
    For deviations that sum to zero take :func:`interaction`, for levels with hyperparameters of their own ``smooth(by=,
    levels=)``.

    :param column: Column of the smooth argument.
    :param by: Column that the levels stand in.
    :param levels: Those in the data: :class:`Levels`, or anything that :meth:`Levels.of` takes.
    :param x: Training inputs ``(n, D)``, from whose finite values the range is taken; not kept. Not needed with ``low``
        and ``high``.
    :param low: Lower end of the range.
    :param high: Upper end of the range.
    :param num_inducing: Number of inducing points of each level.
    :param kernel: Radial basis function, or Matern of smoothness 1/2, 3/2 or 5/2.
    :param centred: Whether each curve has mean zero under the measure.
    :param measure: For ``centred``. Default: uniform on the range, or its bulk as in :func:`smooth`.
    :param variance: Initial prior variance, which is trained. Default: one, until a fit puts that of the responses in
        its place, see :func:`~gpytorch_gam.training.start_from_responses`.
    :param name: Name of the component. Default: such as ``x0|x3``.
    :param predictor: Which additive predictor of a multi-parameter likelihood the component belongs to.
    :param missing: What a row with NaN in a column is: an error, or the prior, see :class:`ComponentGroup`.
    :return: A group of one component.
    :raises ValueError: If an argument is not as described, or the column has no range.

    Example:
        >>> factor_smooth(0, by=3, levels=subjects, x=x)   # s(time, subject, bs = "fs")
    """
    centred = is_switched_on("factor_smooth", "centred", centred, default=False)
    column, by = different_columns("factor_smooth", column, by)
    levels = open_levels(levels)
    (num,) = checked_count("factor_smooth", num_inducing, 1)
    if measure is not None and not centred:
        raise ValueError("factor_smooth has a measure, but is not centred under it: give centred=True as well")
    ranges = column_ranges("factor_smooth", [column], x, low, high)
    base = stationary_kernel("factor_smooth", kernel, ranges.width, ranges.bulk_width, active_dims=[0])
    if centred:
        base = centred_on(base, measure, ranges)
    codes = level_points(levels)
    product = base * LevelKernel(active_dims=(1,))
    return ComponentGroup(
        scaled(product, 1, checked_variance("factor_smooth", variance)),
        columns=[[column, by]],
        inducing_points=grid_of_levels(grid(ranges[:, None], [num])[0], codes),
        names=[default_name(f"x{column}|x{by}", predictor)] if name is None else single_name("factor_smooth", name),
        levels={by: levels},
        predictor=predictor,
        missing=missing,
    )
