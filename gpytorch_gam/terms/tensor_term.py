"""Smooth interactions of two and more columns."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from gpytorch_gam import _checks as checks
from gpytorch_gam.components.component_group import ComponentGroup
from gpytorch_gam.kernels import Measure

from ._arguments import (
    PerColumn,
    Ranges,
    as_names,
    centred_on,
    checked_column,
    checked_column_sets,
    checked_count,
    checked_variance,
    column_ranges,
    grid,
    is_switched_on,
    scaled,
    stationary_kernel,
)


def tensor(
    columns: Sequence[int] | Sequence[Sequence[int]],
    x: Tensor | None = None,
    *,
    low: PerColumn | None = None,
    high: PerColumn | None = None,
    num_inducing: int | Sequence[int] = 7,
    kernel: Literal["rbf", "matern12", "matern32", "matern52"] = "rbf",
    centred: bool = True,
    measure: Measure | Sequence[Measure] | None = None,
    by: int | None = None,
    variance: float | None = None,
    names: Sequence[str] | str | None = None,
    predictor: int = 0,
    missing: Literal["error", "marginal"] = "error",
    learn_inducing_locations: bool = False,
) -> ComponentGroup:
    r"""
    Smooth effects of several columns in units of their own: ``ti(x, z)`` of mgcv, and with ``centred=False`` its
    ``te(x, z)``.

    **Prior.** :math:`f \sim GP(0, \sigma^2 \prod_j k_j)`, a product of kernels of one column, each with a lengthscale
    of its own, initial values and bounds as those of :func:`smooth`. Inducing points are a product grid.

    **Identifiability.** With ``centred=True`` each factor is centred: the integral over each argument is zero, whatever
    the others are, so that the component is an interaction without main effects. These are :func:`smooth` terms, and
    the level is the constant's. With ``centred=False`` the component contains the main effects and a constant, all of
    which it would share with terms of their own.

    :param columns: Two or more columns of one component, such as ``(0, 1)``, or such a tuple for each of several.
    :param x: Training inputs ``(n, D)``, from whose finite values ranges are taken; not kept. Not needed with ``low``
        and ``high``.
    :param low: Lower end of all ranges, or one a column of a component.
    :param high: Upper end of all ranges, or one a column of a component.
    :param num_inducing: Number of inducing points along each column, or one a column: their product is that of the
        component.
    :param kernel: Radial basis function, or Matern of smoothness 1/2, 3/2 or 5/2.
    :param centred: Whether the component is centred in each argument.
    :param measure: For ``centred``, one for all columns of a component, or one a column. Default: uniform on the
        ranges, or their bulk as in :func:`smooth`.
    :param by: Column of a numeric multiplier.
    :param variance: Initial prior variance, which is trained. Default: one, until a fit puts that of the responses in
        its place, see :func:`~gpytorch_gam.training.start_from_responses`.
    :param names: One name a component. Default: such as ``x0:x1``.
    :param predictor: Which additive predictor of a multi-parameter likelihood the components belong to.
    :param missing: What a row with NaN in a column is: an error, or the prior, see :class:`ComponentGroup`.
    :param learn_inducing_locations: Whether the inducing points are trained.
    :return: A group of one component, or one for each tuple of columns.
    :raises ValueError: If an argument is not as described, or a column has no range.

    Example:
        >>> tensor((0, 1), x)                     # ti(x0, x1)
        >>> tensor([(0, 1), (0, 2), (1, 2)], x)   # all pairs of three columns
        >>> tensor((0, 1), x, centred=False)      # te(x0, x1)
    """
    centred = is_switched_on("tensor", "centred", centred, default=True)
    sets = checked_column_sets("tensor", columns, least=2)
    dims = range(len(sets[0]))
    by = None if by is None else checked_column("tensor", by, "by")
    nums = checked_count("tensor", num_inducing, len(dims))
    measures = _one_a_column(measure, len(dims), centred)
    parts = [column_ranges("tensor", one, x, low, high) for one in sets]
    ranges = Ranges.stack(parts)  # (C, d)
    factors = []
    for dim in dims:
        own = ranges[:, dim]
        factor = stationary_kernel("tensor", kernel, own.width, own.bulk_width, active_dims=[dim])
        factors.append(centred_on(factor, measures[dim], own) if centred else factor)
    return ComponentGroup(
        scaled(functools.reduce(operator.mul, factors), len(sets), checked_variance("tensor", variance)),
        columns=sets,
        inducing_points=grid(ranges, nums),
        names=as_names(names),
        by=by,
        predictor=predictor,
        missing=missing,
        learn_inducing_locations=learn_inducing_locations,
    )


def _one_a_column(measure: Measure | Sequence[Measure] | None, num_columns: int, centred: bool) -> list[Measure | None]:
    if measure is None:
        return [None] * num_columns
    measures = [measure] * num_columns if isinstance(measure, Measure) else measure
    if not isinstance(measures, Sequence) or not all(isinstance(one, Measure) for one in measures):
        raise TypeError(
            f"measure of tensor must be a Measure, such as Uniform(0, 1), or one a column, got {checks.shown(measure)}"
        )
    if not centred:
        raise ValueError("tensor has a measure, but is not centred under it: give centred=True as well, or no measure")
    if len(measures) != num_columns:
        raise ValueError(
            f"measure of tensor must be one for all {num_columns} columns, or one each, got {len(measures)}"
        )
    return list(measures)
