"""Smooth effects of one column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from gpytorch_gam import _checks as checks
from gpytorch_gam.components.component_group import ComponentGroup
from gpytorch_gam.kernels import Measure

from ._arguments import (
    LevelsLike,
    PerColumn,
    as_names,
    centred_on,
    checked_columns,
    checked_count,
    checked_variance,
    column_ranges,
    grid,
    is_switched_on,
    multipliers,
    scaled,
    spread,
    stationary_kernel,
)


def smooth(
    columns: int | Sequence[int],
    x: Tensor | None = None,
    *,
    low: PerColumn | None = None,
    high: PerColumn | None = None,
    num_inducing: int = 16,
    kernel: Literal["rbf", "matern12", "matern32", "matern52"] = "rbf",
    centred: bool | None = None,
    measure: Measure | None = None,
    by: int | None = None,
    levels: LevelsLike | None = None,
    variance: float | None = None,
    names: Sequence[str] | str | None = None,
    predictor: int = 0,
    missing: Literal["error", "marginal"] = "error",
    learn_inducing_locations: bool = False,
) -> ComponentGroup:
    r"""
    Smooth effects :math:`f_c(x_c)`, one a column: ``s(x)`` of mgcv, and with ``by`` its ``s(x, by=)``.

    **Prior.** :math:`f_c \sim GP(0, \sigma_c^2 k_c)` with variance and lengthscale of each component's own. At first
    the lengthscale is a quarter of the range of the column; training keeps it between a hundredth and ten times the
    range. Inducing points are a regular grid on the range.

    **Long tails.** Where a column of ``x`` has outliers or a long tail, the first lengthscale, its lower bound and the
    measure are those of the bulk of its values, and the inducing points stand halfway between a regular grid and
    quantiles of its distinct values, both ends included. One lengthscale serves bulk and tail, and effects that follow
    the logarithm of a column need that as their input.

    **Identifiability.** With ``centred=True`` an effect has mean zero under ``measure``, and the variance is its mean
    prior variance there: the level is the constant's. With ``centred=False`` effects and constant share one constant,
    of which only the sum is identified.

    **By a number.** With ``by`` alone the component is :math:`x_{by} f_c(x_c)`, a varying coefficient. By default it is
    not centred, as in mgcv, so it contains the linear effect of the multiplier :math:`x_{by}`. Where that is a term of
    its own, give ``centred=True``.

    **By levels.** With ``by`` and ``levels`` there is a component :math:`1\{x_{by} = l\} f_{cl}(x_c)` for each column
    and level, with hyperparameters of its own. They are centred, each over the range of the column in all rows: the
    levels of the response belong to :func:`factor` or :func:`random_effect`. A value of the column ``by`` that is none
    of the levels is an error. :func:`factor_smooth` has curves with shared hyperparameters, :func:`interaction` those
    that deviate from a common one.

    :param columns: One column or several, one component each.
    :param x: Training inputs ``(n, D)``, from whose finite values ranges are taken; not kept. Not needed with ``low``
        and ``high``.
    :param low: Lower end of the range, or one a column.
    :param high: Upper end of the range, or one a column.
    :param num_inducing: Number of inducing points of each component.
    :param kernel: Radial basis function, or Matern of smoothness 1/2, 3/2 or 5/2.
    :param centred: Whether effects have mean zero under the measure. Default: unless ``by`` is numeric.
    :param measure: For ``centred``, of batch shape ``()`` or one a column. Default: uniform on the range, or its bulk.
    :param by: Column of a multiplier, or with ``levels`` of a category.
    :param levels: Its levels: :class:`Levels`, or anything that :meth:`Levels.of` takes.
    :param variance: Initial prior variance, which is trained. Default: one, until a fit puts that of the responses in
        its place, see :func:`~gpytorch_gam.training.start_from_responses`.
    :param names: One name a component. Default: such as ``x0``, ``x0*x2`` (by a number), ``x0|x3=Oslo`` (by levels; in
        the order of columns, then levels).
    :param predictor: Which additive predictor of a multi-parameter likelihood the components belong to.
    :param missing: What a row with NaN in a column is: an error, or the prior, see :class:`ComponentGroup`.
    :param learn_inducing_locations: Whether the inducing points are trained.
    :return: A group of one component a column, or one a column and level.
    :raises ValueError: If an argument is not as described, or a column has no range.

    Example:
        >>> smooth([0, 1], x)                           # s(x0) + s(x1)
        >>> smooth(0, x, by=2)                          # s(x0, by = x2), x2 numeric
        >>> smooth(0, x, by=3, levels=["Bergen", "Oslo"])  # s(x0, by = x3), x3 a factor with codes 0 and 1
    """
    columns = checked_columns("smooth", columns)
    (num,) = checked_count("smooth", num_inducing, 1)
    parts = multipliers("smooth", columns, by, levels)
    centred = is_switched_on("smooth", "centred", centred, default=by is None or levels is not None)
    if measure is not None and not isinstance(measure, Measure):
        raise TypeError(f"measure of smooth must be a Measure, such as Uniform(0, 1), got {checks.shown(measure)}")
    if measure is not None and not centred:
        raise ValueError("smooth has a measure, but is not centred under it: give centred=True as well, or no measure")
    ranges = column_ranges("smooth", columns, x, low, high)[parts.position]
    base = stationary_kernel("smooth", kernel, ranges.width, ranges.bulk_width)
    if centred:
        base = centred_on(base, spread(measure, parts.position, len(columns)), ranges)
    return ComponentGroup(
        scaled(base, parts.num_components, checked_variance("smooth", variance)),
        columns=parts.columns,
        inducing_points=grid(ranges[:, None], [num]),
        names=as_names(names),
        predictor=predictor,
        missing=missing,
        learn_inducing_locations=learn_inducing_locations,
        **parts.group_arguments,
    )
