"""Random effects: one independent number a level."""

from __future__ import annotations

from typing import Literal

from gpytorch_gam.components.component_group import ComponentGroup
from gpytorch_gam.kernels import LevelKernel

from ._arguments import LevelsLike, checked_column, checked_variance, level_points, open_levels, scaled, single_name


def random_effect(
    column: int,
    levels: LevelsLike,
    *,
    variance: float | None = None,
    by: int | None = None,
    name: str | None = None,
    predictor: int = 0,
    missing: Literal["error", "marginal"] = "error",
) -> ComponentGroup:
    r"""A random effect :math:`f(x) = b_{l(x)}`, one number for each level of a category: ``s(g, bs="re")`` of mgcv, a
    random intercept; with ``by`` a random slope.

    **Prior.** :math:`b_l \sim N(0, \sigma^2)`, independent, with a trained variance. The inducing variables are the
    numbers themselves, so nothing is approximated, and training never moves their codes. A level that is not among
    ``levels`` has the prior: mean zero, variance :math:`\sigma^2`, and one number for all rows with the same code.

    **Identifiability.** The mean of the levels is shared with the constant; the prior decides, and draws it towards the
    constant. Leave the component out of a prediction for a typical level: ``model.components(x, names=others)``.

    :param column: Column that the levels stand in.
    :param levels: Those in the data: :class:`Levels`, or anything that :meth:`Levels.of` takes.
    :param variance: Initial variance of the levels, which is trained. Default: one, until a fit puts that of the
        responses in its place, see :func:`~gpytorch_gam.training.start_from_responses`.
    :param by: Column of a numeric multiplier, whose slope then varies with the level.
    :param name: Name of the component. Default: such as ``x0``.
    :param predictor: Which additive predictor of a multi-parameter likelihood the component belongs to.
    :param missing: What a row with NaN in a column is: an error, or the prior, see :class:`ComponentGroup`.
    :return: A group of one component.
    :raises ValueError: If an argument is not as described.

    Example:
        >>> sites = Levels.from_values(site)
        >>> x = torch.stack([time, sites.encode(site)], -1)
        >>> random_effect(1, sites)                     # s(site, bs = "re")
        >>> random_effect(1, sites, by=0)               # s(site, time, bs = "re")
    """
    column = checked_column("random_effect", column)
    by = None if by is None else checked_column("random_effect", by, "by")
    levels = open_levels(levels)
    return ComponentGroup(
        scaled(LevelKernel(), 1, checked_variance("random_effect", variance)),
        columns=[[column]],
        inducing_points=level_points(levels).unsqueeze(0),
        names=single_name("random_effect", name),
        by=by,
        levels={column: levels},
        predictor=predictor,
        missing=missing,
        exact=True,
    )
