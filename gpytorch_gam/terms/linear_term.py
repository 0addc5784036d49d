"""Linear effects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from gpytorch_gam.components.component_group import ComponentGroup
from gpytorch_gam.kernels import CentredLinearKernel

from ._arguments import (
    LevelsLike,
    PerColumn,
    as_names,
    checked_columns,
    checked_variance,
    data_columns,
    multipliers,
    per_column,
    scaled,
)


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
) -> ComponentGroup:
    r"""
    Linear effects :math:`f_c(x_c) = \beta_c (x_c - m_c) / s_c`, one a column: a parametric term of mgcv, with a prior.

    **Prior.** :math:`\beta_c \sim N(0, \sigma_c^2)`, with a trained variance of each component's own. There is one
    inducing variable a component, so nothing is approximated.

    **Identifiability.** With the mean of the data as centre, an effect has mean zero over them, and the level is the
    constant's. A smooth effect of the same column contains a linear one: only the sum is identified, and which part has
    it depends on the priors. ``by`` and ``levels`` are those of :func:`smooth`: a product of two columns, or a slope
    for each level.

    :param columns: One column or several, one component each.
    :param x: Training inputs ``(n, D)``, from whose finite values centre and scale are taken; not kept.
    :param centre: Where effects are zero, or one a column. Default: mean of the column in ``x``; 0 without ``x``.
    :param scale: Unit of the columns, or one a column. Default: standard deviation of the column in ``x``; 1 without
        ``x``.
    :param variance: Initial prior variance of the slopes per unit, which is trained. Default: one, until a fit puts
        that of the responses in its place, see :func:`~gpytorch_gam.training.start_from_responses`.
    :param by: Column of a multiplier, or with ``levels`` of a category.
    :param levels: Its levels: :class:`Levels`, or anything that :meth:`Levels.of` takes.
    :param names: One name a component. Default: such as ``linear(x0)``, ``linear(x0)*x2`` or
        ``linear(x0)|x3=Oslo``.
    :param predictor: Which additive predictor of a multi-parameter likelihood the components belong to.
    :param missing: What a row with NaN in a column is: an error, or the prior, see :class:`ComponentGroup`.
    :return: A group of one component a column, or one a column and level.
    :raises ValueError: If an argument is not as described, or a column has no spread.

    Example:
        >>> linear([0, 1], x)             # x0 + x1
        >>> linear(0, x, by=1)            # x0 * x1 without its main effects
    """
    columns = checked_columns("linear", columns)
    parts = multipliers("linear", columns, by, levels)
    centres, scales = _centre_and_scale(columns, x, centre, scale)
    dtype = torch.get_default_dtype()
    centres, scales = centres[parts.position], scales[parts.position]
    points = (centres + scales).to(dtype)
    stuck = [columns[i] for i in parts.position[points == centres.to(dtype)].tolist()]
    if stuck:
        raise ValueError(
            f"columns {stuck} vary too little beside their distance from zero for {dtype}: subtract something from them"
        )
    return ComponentGroup(
        scaled(CentredLinearKernel(centres, scales), parts.num_components, checked_variance("linear", variance)),
        columns=parts.columns,
        inducing_points=points.reshape(-1, 1, 1),
        names=parts.names("linear", predictor) if names is None else as_names(names),
        predictor=predictor,
        missing=missing,
        exact=True,
        **parts.group_arguments,
    )


def _centre_and_scale(
    columns: list[int], x: Tensor | None, centre: PerColumn | None, scale: PerColumn | None
) -> tuple[Tensor, Tensor]:
    """One each a column, ``(C,)`` in float64."""
    centres = per_column("linear", "centre", 0.0 if centre is None else centre, columns)
    scales = per_column("linear", "scale", 1.0 if scale is None else scale, columns)
    if not bool((scales > 0).all()):
        raise ValueError(f"scale of linear must be positive, got {scale!r} for columns {columns}")
    if x is None:
        return centres, scales
    for index, (column, values) in enumerate(zip(columns, data_columns("linear", x, columns).mT, strict=True)):
        values = values[torch.isfinite(values)]
        if len(values) == 0 and (centre is None or scale is None):
            raise ValueError(f"column {column} of x has no finite value, from which linear could take centre and scale")
        if centre is None:
            centres[index] = values.mean()
        if scale is None:
            spread = (values - values.mean()).square().mean().sqrt()
            if len(values.unique()) == 1:
                raise ValueError(
                    f"column {column} of x has the value {values[0].item():g} in all rows: linear has nothing to learn "
                    "from it; leave it out, or give a scale"
                )
            scales[index] = spread
    return centres, scales
