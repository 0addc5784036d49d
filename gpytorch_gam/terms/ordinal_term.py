"""Effects of ordered levels."""

from __future__ import annotations

from typing import Any, Literal

import torch
from gpytorch.constraints import Interval

from gpytorch_gam.components.component_group import ComponentGroup
from gpytorch_gam.kernels import CentredKernel, OrdinalKernel

from ._arguments import (
    INITIAL_LENGTHSCALE,
    LONGEST_LENGTHSCALE,
    LevelsLike,
    checked_column,
    checked_variance,
    level_points,
    scaled,
    several_levels,
    single_name,
)

# In steps: there, neighbours have a correlation of exp(-5).
_SHORTEST_LENGTHSCALE = 0.2


def ordinal(
    column: int,
    levels: LevelsLike,
    *,
    variance: float | None = None,
    name: str | None = None,
    predictor: int = 0,
    missing: Literal["error", "marginal"] = "error",
) -> ComponentGroup:
    r"""
    The effect of ordered levels, such as grades: neighbours are alike. mgcv has no such term; a Markov random field
    ``s(g, bs="mrf")`` on a chain of levels comes closest.

    **Prior.** One number a level, an autoregression in the order of the levels with correlation
    :math:`\exp(-|i - j| / \ell)` between the i-th and the j-th, conditioned on sum zero. Variance and lengthscale are
    trained; :math:`\ell` is a quarter of the number of steps at first (and one at least), and stays between .2 steps,
    where levels are as good as independent, and ten times the number of steps, where the effect is a random walk. The
    inducing variables are the numbers of all levels but the last, which is minus the sum of the others: nothing is
    approximated, and training never moves their codes.

    **Identifiability.** The sum over levels is zero in prior and posterior: the level of the response is the
    constant's. A value of the column that is none of the levels is an error.

    :param column: Column that the levels stand in.
    :param levels: Two or more in their order, whatever their codes: :class:`Levels`, or anything that
        :meth:`Levels.of` takes.
    :param variance: Initial mean prior variance of the levels, which is trained. Default: one, until a fit puts that of
        the responses in its place, see :func:`~gpytorch_gam.training.start_from_responses`.
    :param name: Name of the component. Default: such as ``x0``.
    :param predictor: Which additive predictor of a multi-parameter likelihood the component belongs to.
    :param missing: What a row with NaN in the column is: an error, or the prior, see :class:`ComponentGroup`.
    :return: A group of one component.
    :raises ValueError: If an argument is not as described.

    Example:
        >>> ordinal(2, levels=["low", "medium", "high"])   # codes 0, 1, 2 in column 2
    """
    column = checked_column("ordinal", column)
    levels = several_levels("ordinal", column, levels)
    codes = level_points(levels)
    steps = len(levels) - 1
    options: dict[str, Any] = {
        "batch_shape": torch.Size([1]),
        "lengthscale_constraint": Interval(_SHORTEST_LENGTHSCALE, LONGEST_LENGTHSCALE * steps),
    }
    base = OrdinalKernel(codes.squeeze(-1), **options)
    base.lengthscale = max(1.0, INITIAL_LENGTHSCALE * steps)
    kernel = CentredKernel(base, codes)
    return ComponentGroup(
        scaled(kernel, 1, checked_variance("ordinal", variance)),
        columns=[[column]],
        inducing_points=codes[:-1].unsqueeze(0),
        names=single_name("ordinal", name),
        levels={column: levels},
        predictor=predictor,
        missing=missing,
        exact=True,
    )
