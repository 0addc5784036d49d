"""Smooth effects of a place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from gpytorch_gam.components.component_group import ComponentGroup
from gpytorch_gam.components.inducing_points import kmeans_points
from gpytorch_gam.kernels import CentredKernel

from ._arguments import (
    PerColumn,
    Ranges,
    checked_columns,
    checked_count,
    checked_variance,
    column_ranges,
    data_columns,
    grid,
    is_switched_on,
    scaled,
    single_name,
    stationary_kernel,
)

# Rows over which the effect has mean zero: an evaluation of the kernel costs as much for each.
_MOST_REFERENCE_ROWS = 256

# Places among which an inducing point is chosen where there are too few rows.
_CANDIDATES = 4


def spatial(
    columns: Sequence[int],
    x: Tensor | None = None,
    *,
    low: PerColumn | None = None,
    high: PerColumn | None = None,
    num_inducing: int = 64,
    kernel: Literal["rbf", "matern12", "matern32", "matern52"] = "matern32",
    centred: bool = True,
    variance: float | None = None,
    name: str | None = None,
    predictor: int = 0,
    missing: Literal["error", "marginal"] = "error",
    learn_inducing_locations: bool = False,
) -> ComponentGroup:
    r"""
    A smooth effect of a place, the same in all directions: ``s(x, y, bs="gp")`` of mgcv (or its thin plates ``s(x,
    y)``). The columns are coordinates in the same unit. Latitude and longitude are not: project them first, or multiply
    longitudes by the cosine of the mean latitude.

    **Prior.** :math:`f \sim GP(0, \sigma^2 k(|\mathbf x - \mathbf x'|))`, with one lengthscale for all columns: a
    quarter of the larger range at first, and between a hundredth and ten times it. Inducing points are centres of
    k-means clusters of the rows; where there are fewer different rows, others between them.

    **Identifiability.** With ``centred=True`` the prior is conditioned on the mean over the rows of ``x`` being zero
    (256 equally spaced ones of more; without ``x`` over the box), and the variance is its mean prior variance there:
    the level is the constant's. Main effects of the columns are contained. With ``centred=False`` the effect and the
    constant share one constant.

    :param columns: Two columns, or three.
    :param x: Training inputs ``(n, D)``; rows with values that are not finite are left out. Not needed with ``low`` and
        ``high``, between which the inducing points are then spread evenly.
    :param low: Lower end of the ranges, or one a column. Only without ``x``.
    :param high: Upper end of the ranges, or one a column. Only without ``x``.
    :param num_inducing: Number of inducing points.
    :param kernel: Radial basis function, or Matern of smoothness 1/2, 3/2 or 5/2.
    :param centred: Whether the effect has mean zero over the rows.
    :param variance: Initial prior variance, which is trained. Default: one, until a fit puts that of the responses in
        its place, see :func:`~gpytorch_gam.training.start_from_responses`.
    :param name: Name of the component. Default: such as ``x0:x1``.
    :param predictor: Which additive predictor of a multi-parameter likelihood the component belongs to.
    :param missing: What a row with NaN in a column is: an error, or the prior, see :class:`ComponentGroup`.
    :param learn_inducing_locations: Whether the inducing points are trained.
    :return: A group of one component.
    :raises ValueError: If an argument is not as described, a column is constant, or no row is finite.

    Example:
        >>> spatial((0, 1), x)         # s(east, north)
    """
    centred = is_switched_on("spatial", "centred", centred, default=True)
    columns = checked_columns("spatial", columns)
    if len(set(columns)) not in (2, 3) or len(set(columns)) < len(columns):
        raise ValueError(f"columns of spatial must be two different columns, or three, got {columns}")
    (num,) = checked_count("spatial", num_inducing, 1)
    if x is None:
        ranges = column_ranges("spatial", columns, x, low, high)
        rows = _box(ranges, max(_MOST_REFERENCE_ROWS, _CANDIDATES * num))
        reference = _box(ranges, _MOST_REFERENCE_ROWS)
    else:
        if low is not None or high is not None:
            raise ValueError("spatial takes its ranges from x, or low and high instead of it: leave one of them out")
        rows = _finite_rows(columns, data_columns("spatial", x, columns)).to(torch.get_default_dtype())
        ranges = column_ranges("spatial", list(range(len(columns))), rows, None, None)
        reference = rows[
            torch.linspace(0, len(rows) - 1, min(len(rows), _MOST_REFERENCE_ROWS), dtype=torch.float64).round().long()
        ]
    width, bulk_width = ranges.width.amax().unsqueeze(0), ranges.bulk_width.amax().unsqueeze(0)
    base: Kernel = stationary_kernel("spatial", kernel, width, bulk_width)
    if centred:
        base = CentredKernel(base, reference)
    points = kmeans_points(rows, num)
    if len(points) < num:
        points = _filled_up(points, _box(ranges, _CANDIDATES * num), num)
    return ComponentGroup(
        scaled(base, 1, checked_variance("spatial", variance)),
        columns=[columns],
        inducing_points=points.unsqueeze(0),
        names=single_name("spatial", name),
        predictor=predictor,
        missing=missing,
        learn_inducing_locations=learn_inducing_locations,
    )


def _box(ranges: Ranges, least: int) -> Tensor:
    """A grid of ``least`` points or a few more, ``(m, d)``."""
    num_columns = len(ranges.low)
    return grid(ranges[None], [math.ceil(least ** (1 / num_columns) - 1e-9)] * num_columns)[0]


def _filled_up(points: Tensor, candidates: Tensor, num: int) -> Tensor:
    """The points, and those candidates that are furthest from all before them: ``num`` in all."""
    distance = torch.cdist(candidates, points).amin(-1)
    while len(points) < num:
        new = candidates[distance.argmax()].unsqueeze(0)
        points = torch.cat([points, new])
        distance = torch.minimum(distance, torch.cdist(candidates, new).squeeze(-1))
    return points


def _finite_rows(columns: list[int], rows: Tensor) -> Tensor:
    """Rows without NaN and infinity, ``(n, d)``, of which each column has two values or more."""
    rows = rows[torch.isfinite(rows).all(-1)]
    if len(rows) == 0:
        raise ValueError(f"x has no row in which all of columns {columns} are finite, which spatial needs")
    for column, values in zip(columns, rows.mT, strict=True):
        if bool((values == values[0]).all()):
            raise ValueError(
                f"column {column} of x has the value {values[0].item():g} in all rows: spatial needs coordinates that "
                "vary; use smooth for the others"
            )
    return rows
