"""Terms of continuous columns: smooth and periodic curves, lines, surfaces."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any, Literal

import torch
from gpytorch.kernels import Kernel, PeriodicKernel
from torch import Tensor

from gpytorch_gam.components.component_group import ComponentGroup
from gpytorch_gam.kernels import CentredKernel, CentredLinearKernel, Measure
from gpytorch_gam.parameters.log_interval import LogInterval

from ._arguments import (
    INITIAL_LENGTHSCALE,
    LONGEST_LENGTHSCALE,
    Arguments,
    LevelsLike,
    PerColumn,
    centred_on,
    is_automatic,
)
from ._placements import CANDIDATES, GridPlacement, PeriodPlacement, RowPlacement, doubled
from ._ranges import Ranges

# The shortest lengthscale of a periodic kernel, in periods; less could not be resolved by the centred kernel.
_SHORTEST_PERIODIC_LENGTHSCALE = 0.035

# The most rows over which a spatial effect has mean zero: each costs one evaluation of the kernel for every input.
_MOST_REFERENCE_ROWS = 256

# The first and the largest number of inducing points that a fit gives a smooth or a cyclic effect, a tensor along each
# of its columns, and a spatial effect.
_SMOOTH, _CYCLIC, _TENSOR, _SPATIAL = (16, 256), (12, 192), (7, 20), (64, 512)


def smooth(
    columns: int | Sequence[int],
    x: Tensor | None = None,
    *,
    low: PerColumn | None = None,
    high: PerColumn | None = None,
    num_inducing: int | Literal["auto"] = "auto",
    kernel: Literal["rbf", "matern12", "matern32", "matern52"] = "matern52",
    centred: bool | None = None,
    measure: Measure | None = None,
    by: int | None = None,
    levels: LevelsLike | None = None,
    variance: float | None = None,
    names: Sequence[str] | str | None = None,
    predictor: int = 0,
    missing: Literal["error", "marginal"] = "error",
    learn_inducing_locations: bool = False,
    batch_shape: Sequence[int] = (),
) -> ComponentGroup:
    r"""
    Smooth effects :math:`f_c(x_c)`, one a column: ``s(x)`` of mgcv, and with ``by`` its ``s(x, by=)``.

    **Prior.** :math:`f_c \sim GP(0, \sigma_c^2 k_c)` where each component has a variance and a lengthscale of its own.
    At first the lengthscale is a quarter of the range of the column; training keeps it between a hundredth and ten
    times the range. Inducing points stand halfway between a regular grid on the range and quantiles of the distinct
    values of the column, both ends included. Where there are no more values than points, each has a point, so that
    nothing is approximated.

    **Long tails.** Where a column of ``x`` has outliers or a long tail, the first lengthscale, its lower bound and the
    measure are those of the bulk of its values. One lengthscale serves bulk and tail, and effects that follow the
    logarithm of a column need that as their input.

    **Identifiability.** With ``centred=True`` an effect has mean zero under ``measure``, and the variance is its mean
    prior variance there: the overall mean belongs to the constant. With ``centred=False`` effects and constant share
    one constant, of which only the sum is identified.

    **By a number.** With ``by`` alone the component is :math:`x_{by} f_c(x_c)`, a varying coefficient. By default it is
    not centred, as in mgcv, so it contains the linear effect of the multiplier :math:`x_{by}`. Where that is a term of
    its own, give ``centred=True``.

    **By levels.** With ``by`` and ``levels`` there is a component :math:`1\{x_{by} = l\} f_{cl}(x_c)` for each column
    and level, with hyperparameters of its own. They are centred, each over the range of the column in all rows: the
    levels of the response belong to :func:`factor` or :func:`random_effect`. A value of the column ``by`` that is none
    of the levels is an error. :func:`factor_smooth` has curves with shared hyperparameters, :func:`interaction` those
    that deviate from a common one.

    Parameters that are not listed here mean the same in all terms, see :mod:`gpytorch_gam.terms`.

    :param columns: One column or several, each of which gets a component.
    :param centred: Whether effects have mean zero under the measure. Default: True unless ``by`` is numeric.
    :param measure: The measure for ``centred``, of batch shape ``()`` or one for each column. Default: uniform on the
        range, or its bulk.
    :param names: One name for each component. Default: such as ``x0``, ``x0*x2`` (by a number), ``x0|x3=Oslo`` (by
        levels; in the order of columns, then levels).
    :return: A group of one component a column, or one a column and level.

    Example:
        >>> smooth([0, 1], x)                           # s(x0) + s(x1)
        >>> smooth(0, x, by=2)                          # s(x0, by = x2), x2 numeric
        >>> smooth(0, x, by=3, levels=["Bergen", "Oslo"])  # s(x0, by = x3), x3 a factor with codes 0 and 1
    """
    term = Arguments("smooth", variance, predictor, missing, batch_shape, names=names)
    columns = term.columns(columns)
    parts = term.multipliers(columns, by, levels)
    centred = term.switch("centred", centred, default=by is None or levels is not None)
    measure = term.measure(measure, centred)
    if measure is not None and measure.batch_shape == torch.Size([len(columns)]):
        measure = measure[parts.position]
    ranges = term.ranges(columns, x, low, high)[parts.position]
    base = term.stationary_kernel(kernel, ranges.width, ranges.bulk_width)
    if centred:
        base = centred_on(base, measure, ranges)
    placement = GridPlacement(term.sizes(num_inducing, _SMOOTH[0], ranges.most_points(_SMOOTH[1])), ranges[:, None])
    return term.placed(
        base, parts.columns, placement, num_inducing, learn_inducing_locations=learn_inducing_locations, **parts.options
    )


def cyclic(
    columns: int | Sequence[int],
    period: PerColumn,
    *,
    start: PerColumn = 0.0,
    num_inducing: int | Literal["auto"] = "auto",
    centred: bool | None = None,
    by: int | None = None,
    levels: LevelsLike | None = None,
    variance: float | None = None,
    names: Sequence[str] | str | None = None,
    predictor: int = 0,
    missing: Literal["error", "marginal"] = "error",
    batch_shape: Sequence[int] = (),
) -> ComponentGroup:
    r"""
    Periodic effects :math:`f_c(x_c) = f_c(x_c + p_c)`, one a column, such as the hour of a day: ``s(x, bs="cc")`` of
    mgcv. Value and all derivatives are continuous at the seam, whether or not there are data beside it.

    **Prior.** :math:`f_c \sim GP(0, \sigma_c^2 k_c)` with GPyTorch's :class:`~gpytorch.kernels.PeriodicKernel`,
    :math:`k(x, x') = \exp(-2 \sin^2(\pi (x - x') / p) / \lambda)`, which at short distances is a radial basis function
    of lengthscale :math:`l = p \sqrt\lambda / 2 \pi`. Each component has a variance and a :math:`\lambda` of its own; l
    is a quarter of the period at first, and training keeps it between .035 and ten periods. The period is fixed.
    Inducing points divide one period into equal parts; data may lie in any.

    **Identifiability.** With ``centred=True`` an effect has mean zero over a period, and the variance is its mean prior
    variance: the overall mean belongs to the constant. With ``centred=False`` effects and constant share one constant.

    ``by`` and ``levels`` are those of :func:`smooth`.

    Parameters that are not listed here mean the same in all terms, see :mod:`gpytorch_gam.terms`.

    :param columns: One column or several, each of which gets a component.
    :param period: The period, or one for each column.
    :param start: The start of a period, or one for each column; it determines the places of the inducing points and
        nothing else.
    :param centred: Whether effects have mean zero over a period. Default: True unless ``by`` is numeric.
    :param names: One name for each component. Default: such as ``cyclic(x0)``, ``cyclic(x0)*x2`` or
        ``cyclic(x0)|x3=Oslo``.
    :return: A group of one component a column, or one a column and level.

    Example:
        >>> cyclic(0, period=24.0)                      # s(hour, bs = "cc")
        >>> cyclic([0, 1], period=[24.0, 365.25])       # hour and day of the year
    """
    term = Arguments("cyclic", variance, predictor, missing, batch_shape, names=names)
    columns = term.columns(columns)
    sizes = term.sizes(num_inducing, *_CYCLIC)
    periods, starts = term.per_column("period", period, columns), term.per_column("start", start, columns)
    if not bool((periods > 0).all()):
        raise ValueError(f"period of cyclic must be positive, got {period!r} for columns {columns}")
    parts = term.multipliers(columns, by, levels)
    centred = term.switch("centred", centred, default=by is None or levels is not None)
    ranges = Ranges.between(starts, starts + periods)[parts.position]
    base: Kernel = _periodic_kernel(ranges.width)
    if centred:
        base = centred_on(base, None, ranges)
    placement = PeriodPlacement(sizes, ranges)
    return term.placed(base, parts.columns, placement, num_inducing, names=term.names_of_kind(parts), **parts.options)


def _periodic_kernel(periods: Tensor) -> PeriodicKernel:
    def squared(lengthscale: float) -> float:
        return (2 * math.pi * lengthscale) ** 2

    bounds = LogInterval(squared(_SHORTEST_PERIODIC_LENGTHSCALE), squared(LONGEST_LENGTHSCALE))
    options: dict[str, Any] = {"batch_shape": torch.Size([len(periods)]), "lengthscale_constraint": bounds}
    kernel = PeriodicKernel(**options)
    kernel.lengthscale = squared(INITIAL_LENGTHSCALE)
    kernel.period_length = periods.to(torch.get_default_dtype()).reshape(-1, 1, 1)
    kernel.raw_period_length.requires_grad_(False)
    return kernel


def linear(
    columns: int | Sequence[int],
    x: Tensor | None = None,
    *,
    centre: PerColumn | None = None,
    scale: PerColumn | None = None,
    variance: float | None = None,
    by: int | None = None,
    levels: LevelsLike | None = None,
    names: Sequence[str] | str | None = None,
    predictor: int = 0,
    missing: Literal["error", "marginal"] = "error",
    batch_shape: Sequence[int] = (),
) -> ComponentGroup:
    r"""
    Linear effects :math:`f_c(x_c) = \beta_c (x_c - m_c) / s_c`, one a column: a parametric term of mgcv, with a prior.

    **Prior.** :math:`\beta_c \sim N(0, \sigma_c^2)`, where each component has a trained variance of its own. There is
    one inducing variable a component, so nothing is approximated.

    **Identifiability.** With the mean of the data as centre, an effect has mean zero over them, and the overall mean
    belongs to the constant. A smooth effect of the same column contains a linear one: only the sum is identified, and
    its division depends on the priors. ``by`` and ``levels`` are those of :func:`smooth`: a product of two columns, or
    a slope for each level.

    Parameters that are not listed here mean the same in all terms, see :mod:`gpytorch_gam.terms`.

    :param columns: One column or several, each of which gets a component.
    :param x: Training inputs ``(n, D)``, from whose finite values centre and scale are taken; not kept.
    :param centre: The value at which effects are zero, or one for each column. Default: mean of the column in ``x``; 0
        without ``x``.
    :param scale: The unit of the columns, or one for each. Default: standard deviation of the column in ``x``; 1
        without ``x``.
    :param variance: Initial prior variance of the slopes per unit, which is trained. Default: one, which a fit replaces
        by the variance of the responses, see :func:`~gpytorch_gam.training.start_from_responses`.
    :param names: One name for each component. Default: such as ``linear(x0)``, ``linear(x0)*x2`` or
        ``linear(x0)|x3=Oslo``.
    :return: A group of one component a column, or one a column and level.

    Example:
        >>> linear([0, 1], x)             # x0 + x1
        >>> linear(0, x, by=1)            # x0 * x1 without its main effects
    """
    term = Arguments("linear", variance, predictor, missing, batch_shape, names=names)
    columns = term.columns(columns)
    parts = term.multipliers(columns, by, levels)
    centres, scales = (part[parts.position] for part in _centre_and_scale(term, columns, x, centre, scale))
    dtype = torch.get_default_dtype()
    points = (centres + scales).to(dtype)
    stuck = [columns[i] for i in parts.position[points == centres.to(dtype)].tolist()]
    if stuck:
        raise ValueError(
            f"columns {stuck} vary too little beside their distance from zero for {dtype}: subtract something from them"
        )
    return term.group(
        CentredLinearKernel(centres, scales),
        parts.columns,
        points.reshape(-1, 1, 1),
        names=term.names_of_kind(parts),
        exact=True,
        **parts.options,
    )


def _centre_and_scale(
    term: Arguments, columns: list[int], x: Tensor | None, centre: PerColumn | None, scale: PerColumn | None
) -> tuple[Tensor, Tensor]:
    """Centre and scale of each column, ``(C,)`` in float64."""
    centres = term.per_column("centre", 0.0 if centre is None else centre, columns)
    scales = term.per_column("scale", 1.0 if scale is None else scale, columns)
    if not bool((scales > 0).all()):
        raise ValueError(f"scale of linear must be positive, got {scale!r} for columns {columns}")
    if x is None:
        return centres, scales
    for index, (column, values) in enumerate(zip(columns, term.data(x, columns).mT, strict=True)):
        values = values[torch.isfinite(values)]
        if len(values) == 0 and (centre is None or scale is None):
            raise ValueError(f"column {column} of x has no finite value, from which linear could take centre and scale")
        if centre is None:
            centres[index] = values.mean()
        if scale is None:
            if len(values.unique()) == 1:
                raise ValueError(
                    f"column {column} of x has the value {values[0].item():g} in all rows: linear has nothing to learn "
                    "from it; leave it out, or give a scale"
                )
            scales[index] = values.std(correction=0)
    return centres, scales


def tensor(
    columns: Sequence[int] | Sequence[Sequence[int]],
    x: Tensor | None = None,
    *,
    low: PerColumn | None = None,
    high: PerColumn | None = None,
    num_inducing: int | Sequence[int] | Literal["auto"] = "auto",
    kernel: Literal["rbf", "matern12", "matern32", "matern52"] = "matern52",
    centred: bool = True,
    measure: Measure | Sequence[Measure] | None = None,
    by: int | None = None,
    variance: float | None = None,
    names: Sequence[str] | str | None = None,
    predictor: int = 0,
    missing: Literal["error", "marginal"] = "error",
    learn_inducing_locations: bool = False,
    batch_shape: Sequence[int] = (),
) -> ComponentGroup:
    r"""
    Smooth effects of several columns, each in a unit of its own: ``ti(x, z)`` of mgcv, and with ``centred=False`` its
    ``te(x, z)``.

    **Prior.** :math:`f \sim GP(0, \sigma^2 \prod_j k_j)`, a product of kernels of one column, each with a lengthscale
    of its own, whose initial values and bounds are those of :func:`smooth`. Inducing points are a product grid.

    **Identifiability.** With ``centred=True`` each factor is centred: the integral over each argument is zero, whatever
    the others are, so that the component is an interaction without main effects. These are :func:`smooth` terms, and
    the overall mean belongs to the constant. With ``centred=False`` the component contains the main effects and a
    constant, all of which it would share with terms of their own.

    Parameters that are not listed here mean the same in all terms, see :mod:`gpytorch_gam.terms`.

    :param columns: Two or more columns of one component, such as ``(0, 1)``, or such a tuple for each of several.
    :param low: Lower end of all ranges, or one for each column of a component.
    :param num_inducing: Number of inducing points along every column, or one for each column; a component has as many
        points as their product.
    :param centred: Whether the component is centred in each argument.
    :param measure: The measure for ``centred``, one for all columns of a component or one for each. Default: uniform on
        the ranges, or their bulk as in :func:`smooth`.
    :param by: The column of a numeric multiplier.
    :param names: One name for each component. Default: such as ``x0:x1``.
    :return: A group of one component, or one for each tuple of columns.

    Example:
        >>> tensor((0, 1), x)                     # ti(x0, x1)
        >>> tensor([(0, 1), (0, 2), (1, 2)], x)   # all pairs of three columns
        >>> tensor((0, 1), x, centred=False)      # te(x0, x1)
    """
    term = Arguments("tensor", variance, predictor, missing, batch_shape, names=names)
    centred = term.switch("centred", centred, default=True)
    sets = term.column_sets(columns, least=2)
    dims = range(len(sets[0]))
    by = term.by(by)
    measures = list(measure) if isinstance(measure, Sequence) else [measure] * len(dims)
    measures = [term.measure(one, centred) for one in measures]
    if len(measures) != len(dims):
        raise ValueError(f"measure of tensor must be one for all {len(dims)} columns, or one each, got {len(measures)}")
    ranges = Ranges.stack([term.ranges(one, x, low, high) for one in sets])  # (C, d)
    factors = []
    for dim in dims:
        own = ranges[:, dim]
        factor = term.stationary_kernel(kernel, own.width, own.bulk_width, active_dims=(dim,))
        factors.append(centred_on(factor, measures[dim], own) if centred else factor)
    product = functools.reduce(operator.mul, factors)
    options: dict[str, Any] = {"by": by, "learn_inducing_locations": learn_inducing_locations}
    if not is_automatic(num_inducing):
        return term.group(product, sets, ranges.grid(term.counts(num_inducing, len(dims))), **options)
    sizes = doubled(_TENSOR[0], ranges.most_points(_TENSOR[1]), len(dims))
    return term.placed(product, sets, GridPlacement(sizes, ranges), num_inducing, **options)


def spatial(
    columns: Sequence[int],
    x: Tensor | None = None,
    *,
    low: PerColumn | None = None,
    high: PerColumn | None = None,
    num_inducing: int | Literal["auto"] = "auto",
    kernel: Literal["rbf", "matern12", "matern32", "matern52"] = "matern32",
    centred: bool = True,
    variance: float | None = None,
    name: str | None = None,
    predictor: int = 0,
    missing: Literal["error", "marginal"] = "error",
    learn_inducing_locations: bool = False,
    batch_shape: Sequence[int] = (),
) -> ComponentGroup:
    r"""
    A smooth, isotropic effect of a place: ``s(x, y, bs="gp")`` of mgcv (or its thin plate splines ``s(x, y)``). The
    columns are coordinates in the same unit. Latitude and longitude are not: project them first, or multiply longitudes
    by the cosine of the mean latitude.

    **Prior.** :math:`f \sim GP(0, \sigma^2 k(|\mathbf x - \mathbf x'|))`, with one lengthscale for all columns: a
    quarter of the larger range at first, and between a hundredth and ten times it. Inducing points are centres of
    k-means clusters of the rows; if there are fewer distinct rows, further points between them.

    **Identifiability.** With ``centred=True`` the prior is conditioned on the mean over the rows of ``x`` being zero
    (of 256 equally spaced ones if there are more, and over the box without ``x``), and the variance is its mean prior
    variance there: the overall mean belongs to the constant. Main effects of the columns are contained. With
    ``centred=False`` the effect and the constant share one constant.

    Parameters that are not listed here mean the same in all terms, see :mod:`gpytorch_gam.terms`.

    :param columns: Two or three columns.
    :param x: Training inputs ``(n, D)``; rows with values that are not finite are left out. Not needed with ``low`` and
        ``high``, between which the inducing points are then spread evenly.
    :param low: Lower end of the ranges, or one for each column; allowed only without ``x``.
    :param centred: Whether the effect has mean zero over the rows.
    :param name: Name of the component. Default: such as ``x0:x1``.
    :return: A group of one component.

    Example:
        >>> spatial((0, 1), x)         # s(east, north)
    """
    term = Arguments("spatial", variance, predictor, missing, batch_shape, name=name)
    centred = term.switch("centred", centred, default=True)
    columns = term.columns(columns)
    if len(set(columns)) not in (2, 3) or len(set(columns)) < len(columns):
        raise ValueError(f"columns of spatial must be two different columns, or three, got {columns}")
    sizes = term.sizes(num_inducing, *_SPATIAL)
    if x is None:
        ranges = term.ranges(columns, x, low, high)
        rows = ranges.box(max(_MOST_REFERENCE_ROWS, CANDIDATES * sizes[-1]))
        reference = ranges.box(_MOST_REFERENCE_ROWS)
    else:
        if low is not None or high is not None:
            raise ValueError("spatial takes its ranges from x, or low and high instead of it: leave one of them out")
        rows = _finite_rows(columns, term.data(x, columns)).to(torch.get_default_dtype())
        ranges = term.ranges(range(len(columns)), rows, None, None)
        chosen = torch.linspace(0, len(rows) - 1, min(len(rows), _MOST_REFERENCE_ROWS), dtype=torch.float64)
        reference = rows[chosen.round().long()]
    width, bulk_width = ranges.width.amax().unsqueeze(0), ranges.bulk_width.amax().unsqueeze(0)
    base = term.stationary_kernel(kernel, width, bulk_width)
    if centred:
        base = CentredKernel(base, reference)
    placement = RowPlacement(sizes, rows, ranges)
    return term.placed(base, [columns], placement, num_inducing, learn_inducing_locations=learn_inducing_locations)


def _finite_rows(columns: list[int], rows: Tensor) -> Tensor:
    """The rows without NaN and infinity, ``(n, d)``; each column must have at least two distinct values."""
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
