"""Fixed effects of a category."""

from __future__ import annotations

from typing import Literal

from gpytorch_gam.components.component_group import ComponentGroup
from gpytorch_gam.kernels import CentredKernel, LevelKernel

from ._arguments import (
    FACTOR_VARIANCE,
    LevelsLike,
    checked_column,
    checked_variance,
    level_points,
    scaled,
    several_levels,
    single_name,
)


def factor(
    column: int,
    levels: LevelsLike,
    *,
    variance: float | None = None,
    name: str | None = None,
    predictor: int = 0,
    missing: Literal["error", "marginal"] = "error",
) -> ComponentGroup:
    r"""
    The fixed effect of a category, one number for each level with sum zero: a parametric factor of mgcv under sum
    contrasts.

    **Prior.** Independent normal numbers, conditioned on their sum being zero, of variance ``variance`` each. It is
    wide and not trained, so that the levels are hardly drawn towards each other. The inducing variables are the numbers
    of all levels but the last, which is minus the sum of the others: nothing is approximated, and training never moves
    their codes.

    **Identifiability.** The sum over levels is zero in prior and posterior: the level of the response is the
    constant's, and a difference of two levels is a contrast. A value of the column that is none of the levels is an
    error; for levels that are a sample of many take :func:`random_effect`, for ordered ones :func:`ordinal`.

    :param column: Column that the levels stand in.
    :param levels: Two or more: :class:`Levels`, or anything that :meth:`Levels.of` takes.
    :param variance: Prior variance of each level. Default: 25, until a fit multiplies that by the variance of the
        responses, see :func:`~gpytorch_gam.training.start_from_responses`.
    :param name: Name of the component. Default: such as ``x0``.
    :param predictor: Which additive predictor of a multi-parameter likelihood the component belongs to.
    :param missing: What a row with NaN in the column is: an error, or the prior, see :class:`ComponentGroup`.
    :return: A group of one component.
    :raises ValueError: If an argument is not as described.

    Example:
        >>> factor(3, levels=["Bergen", "Oslo"])        # codes 0 and 1 in column 3
        >>> factor(3, levels=Levels.from_values(x[:, 3]))
    """
    column = checked_column("factor", column)
    levels = several_levels("factor", column, levels)
    codes = level_points(levels)
    kernel = CentredKernel(LevelKernel(), codes)
    return ComponentGroup(
        scaled(kernel, 1, checked_variance("factor", variance), FACTOR_VARIANCE, is_fixed=True),
        columns=[[column]],
        inducing_points=codes[:-1].unsqueeze(0),
        names=single_name("factor", name),
        levels={column: levels},
        predictor=predictor,
        missing=missing,
        exact=True,
    )
