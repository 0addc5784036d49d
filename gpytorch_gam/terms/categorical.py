"""Terms of categories: fixed, ordered and random effects of levels, and curves that differ between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from gpytorch.constraints import Interval
from torch import Tensor

from gpytorch_gam.components.component_group import ComponentGroup
from gpytorch_gam.components.levels import Levels
from gpytorch_gam.components.names import default_name
from gpytorch_gam.kernels import CentredKernel, LevelKernel, Measure, OrdinalKernel

from ._arguments import (
    INITIAL_LENGTHSCALE,
    LONGEST_LENGTHSCALE,
    Arguments,
    LevelsLike,
    PerColumn,
    centred_on,
    open_levels,
)
from ._placements import GridPlacement, LevelPlacement

# The prior variance of the levels of a factor, relative to the variance of the predictor.
_FACTOR_VARIANCE = 25.0

# The first and the largest number of inducing points that a fit gives each level of a curve.
_CURVE = (10, 160)

# The shortest lengthscale of an ordinal kernel, in steps: neighbours then have a correlation of exp(-5).
_SHORTEST_ORDINAL_LENGTHSCALE = 0.2


def factor(
    column: int,
    levels: LevelsLike,
    *,
    variance: float | None = None,
    name: str | None = None,
    predictor: int = 0,
    missing: Literal["error", "marginal"] = "error",
    batch_shape: Sequence[int] = (),
) -> ComponentGroup:
    r"""
    The fixed effect of a category, one number for each level with sum zero: a parametric factor of mgcv under sum
    contrasts.

    **Prior.** Independent normal numbers, conditioned on their sum being zero, of variance ``variance`` each. The prior
    is wide and not trained, so that the levels are hardly shrunk towards each other. The inducing variables are the
    numbers of all levels but the last, which is minus the sum of the others: nothing is approximated, and training
    never moves their codes.

    **Identifiability.** The sum over levels is zero in prior and posterior: the mean of the response belongs to the
    constant, and a difference of two levels is a contrast. A value of the column that is none of the levels is an
    error. For levels that are a sample of many take :func:`random_effect`, for ordered ones :func:`ordinal`.

    Parameters that are not listed here mean the same in all terms, see :mod:`gpytorch_gam.terms`.

    :param column: The column that holds the levels.
    :param levels: Two or more levels: :class:`Levels`, or anything that :meth:`Levels.of` takes.
    :param variance: Prior variance of each level. Default: 25, which a fit multiplies by the variance of the responses,
        see :func:`~gpytorch_gam.training.start_from_responses`.
    :param name: Name of the component. Default: such as ``x0``.
    :return: A group of one component.

    Example:
        >>> factor(3, levels=["Bergen", "Oslo"])        # codes 0 and 1 in column 3
        >>> factor(3, levels=Levels.from_values(x[:, 3]))
    """
    term = Arguments("factor", variance, predictor, missing, batch_shape, name=name)
    column = term.column(column)
    levels = term.several_levels(column, levels)
    codes = _points(levels)
    return term.group(
        CentredKernel(LevelKernel(), codes),
        [[column]],
        codes[:-1].unsqueeze(0),
        variance=_FACTOR_VARIANCE,
        is_fixed=True,
        levels={column: levels},
        exact=True,
    )


def ordinal(
    column: int,
    levels: LevelsLike,
    *,
    variance: float | None = None,
    name: str | None = None,
    predictor: int = 0,
    missing: Literal["error", "marginal"] = "error",
    batch_shape: Sequence[int] = (),
) -> ComponentGroup:
    r"""
    The effect of ordered levels, such as grades, of which neighbours are alike. mgcv has no such term; a Markov random
    field ``s(g, bs="mrf")`` on a chain of levels comes closest.

    **Prior.** One number a level, an autoregression in the order of the levels with correlation
    :math:`\exp(-|i - j| / \ell)` between the i-th and the j-th, conditioned on sum zero. Variance and lengthscale are
    trained; :math:`\ell` is a quarter of the number of steps at first (and at least one), and stays between .2 steps,
    where levels are practically independent, and ten times the number of steps, where the effect is a random walk. The
    inducing variables are the numbers of all levels but the last, which is minus the sum of the others: nothing is
    approximated, and training never moves their codes.

    **Identifiability.** The sum over levels is zero in prior and posterior: the mean of the response belongs to the
    constant. A value of the column that is none of the levels is an error.

    Parameters that are not listed here mean the same in all terms, see :mod:`gpytorch_gam.terms`.

    :param column: The column that holds the levels.
    :param levels: Two or more levels in their order, whatever their codes: :class:`Levels`, or anything that
        :meth:`Levels.of` takes.
    :param variance: Initial mean prior variance of the levels, which is trained. Default: one, which a fit replaces by
        the variance of the responses, see :func:`~gpytorch_gam.training.start_from_responses`.
    :param name: Name of the component. Default: such as ``x0``.
    :return: A group of one component.

    Example:
        >>> ordinal(2, levels=["low", "medium", "high"])   # codes 0, 1, 2 in column 2
    """
    term = Arguments("ordinal", variance, predictor, missing, batch_shape, name=name)
    column = term.column(column)
    levels = term.several_levels(column, levels)
    codes, steps = _points(levels), len(levels) - 1
    bounds = Interval(_SHORTEST_ORDINAL_LENGTHSCALE, LONGEST_LENGTHSCALE * steps)
    options: dict[str, Any] = {"batch_shape": torch.Size([1]), "lengthscale_constraint": bounds}
    base = OrdinalKernel(codes.squeeze(-1), **options)
    base.lengthscale = max(1.0, INITIAL_LENGTHSCALE * steps)
    points = codes[:-1].unsqueeze(0)
    return term.group(CentredKernel(base, codes), [[column]], points, levels={column: levels}, exact=True)


def random_effect(
    column: int,
    levels: LevelsLike,
    *,
    variance: float | None = None,
    by: int | None = None,
    name: str | None = None,
    predictor: int = 0,
    missing: Literal["error", "marginal"] = "error",
    batch_shape: Sequence[int] = (),
) -> ComponentGroup:
    r"""
    A random effect :math:`f(x) = b_{l(x)}`, one number for each level of a category: ``s(g, bs="re")`` of mgcv, a
    random intercept; with ``by`` a random slope.

    **Prior.** :math:`b_l \sim N(0, \sigma^2)`, independent, with a trained variance. The inducing variables are the
    numbers themselves, so nothing is approximated, and training never moves their codes. A level that is not among
    ``levels`` has the prior: mean zero, variance :math:`\sigma^2`, and one number for all rows with the same code.

    **Identifiability.** The mean of the levels is shared with the constant: only their sum is identified, and the prior
    puts most of it into the constant. Leave the component out of a prediction for a typical level:
    ``model.components(x, names=others)``.

    Parameters that are not listed here mean the same in all terms, see :mod:`gpytorch_gam.terms`.

    :param column: The column that holds the levels.
    :param levels: The levels in the data: :class:`Levels`, or anything that :meth:`Levels.of` takes.
    :param by: The column of a numeric multiplier, whose slope then varies with the level.
    :param name: Name of the component. Default: such as ``x0``.
    :return: A group of one component.

    Example:
        >>> sites = Levels.from_values(site)
        >>> x = torch.stack([time, sites.encode(site)], -1)
        >>> random_effect(1, sites)                     # s(site, bs = "re")
        >>> random_effect(1, sites, by=0)               # s(site, time, bs = "re")
    """
    term = Arguments("random_effect", variance, predictor, missing, batch_shape, name=name)
    column, by = term.column(column), term.by(by)
    levels = open_levels(levels)
    points = _points(levels).unsqueeze(0)
    return term.group(LevelKernel(), [[column]], points, by=by, levels={column: levels}, exact=True)


def factor_smooth(
    column: int,
    by: int,
    levels: LevelsLike,
    x: Tensor | None = None,
    *,
    low: PerColumn | None = None,
    high: PerColumn | None = None,
    num_inducing: int | Literal["auto"] = "auto",
    kernel: Literal["rbf", "matern12", "matern32", "matern52"] = "matern52",
    centred: bool = False,
    measure: Measure | None = None,
    variance: float | None = None,
    name: str | None = None,
    predictor: int = 0,
    missing: Literal["error", "marginal"] = "error",
    batch_shape: Sequence[int] = (),
) -> ComponentGroup:
    r"""
    Random curves :math:`f_{l}(x)`, one for each level of a category, that share their hyperparameters:
    ``s(x, g, bs="fs")`` of mgcv. It is a single component, whose inducing points are all pairs of a grid and the
    levels. A row depends only on those of its own level.

    **Prior.** :math:`f_l \sim GP(0, \sigma^2 k)`, independent, with one variance and one lengthscale for all, whose
    initial values and bounds are those of :func:`smooth`. Training never moves the codes of the levels. A level that is
    not among ``levels`` has the prior: mean zero, variance :math:`\sigma^2`, and one curve for all rows with the same
    code.

    **Identifiability.** The curves contain a random intercept for each level, as those of mgcv. With ``centred=True``
    each has mean zero under the measure, and the intercepts belong to :func:`random_effect`. Beside a common smooth of
    the same column, the mean of the curves is shared with it: only their sum is identified, and the prior puts most of
    it into the common one. For deviations that sum to zero take :func:`interaction`, for levels with hyperparameters of
    their own ``smooth(by=, levels=)``.

    Parameters that are not listed here mean the same in all terms, see :mod:`gpytorch_gam.terms`.

    :param column: The column of the smooth argument.
    :param by: The column that holds the levels.
    :param levels: The levels in the data: :class:`Levels`, or anything that :meth:`Levels.of` takes.
    :param num_inducing: Number of inducing points of each level.
    :param centred: Whether each curve has mean zero under the measure.
    :param measure: The measure for ``centred``. Default: uniform on the range, or its bulk as in :func:`smooth`.
    :param name: Name of the component. Default: such as ``x0|x3``.
    :return: A group of one component.

    Example:
        >>> factor_smooth(0, by=3, levels=subjects, x=x)   # s(time, subject, bs = "fs")
    """
    term = Arguments("factor_smooth", variance, predictor, missing, batch_shape, name=name)
    centred = term.switch("centred", centred, default=False)
    column, by = term.column_and_by(column, by)
    levels = open_levels(levels)
    measure, ranges = term.measure(measure, centred), term.ranges([column], x, low, high)
    sizes = term.sizes(num_inducing, _CURVE[0], ranges.most_points(_CURVE[1]))
    base = term.stationary_kernel(kernel, ranges.width, ranges.bulk_width, active_dims=(0,))
    if centred:
        base = centred_on(base, measure, ranges)
    placement = LevelPlacement(GridPlacement(sizes, ranges[:, None]), _points(levels))
    names = [default_name(f"x{column}|x{by}", predictor)]
    kernel_of_pairs = base * LevelKernel(active_dims=(1,))
    return term.placed(kernel_of_pairs, [[column, by]], placement, num_inducing, names=names, levels={by: levels})


def interaction(
    column: int,
    by: int,
    levels: LevelsLike,
    x: Tensor | None = None,
    *,
    low: PerColumn | None = None,
    high: PerColumn | None = None,
    num_inducing: int | Literal["auto"] = "auto",
    kernel: Literal["rbf", "matern12", "matern32", "matern52"] = "matern52",
    measure: Measure | None = None,
    variance: float | None = None,
    name: str | None = None,
    predictor: int = 0,
    missing: Literal["error", "marginal"] = "error",
    batch_shape: Sequence[int] = (),
) -> ComponentGroup:
    r"""
    The differences of the smooth effect of a column between the levels of a category: curves :math:`f_l(x)` with mean
    zero each and sum zero over levels. In mgcv it is the second term of ``s(x) + s(x, g, bs="sz")``.

    **Prior.** :math:`f \sim GP(0, \sigma^2 k_0(x, x') h_0(l, l'))`, where :math:`k_0` is the centred kernel of
    :func:`smooth` and :math:`h_0` that of :func:`factor`, both of mean variance one. One variance and one lengthscale
    for all levels are trained. Inducing points are all pairs of a grid and the levels but the last, which is minus the
    sum of the others; training never moves the codes.

    **Identifiability.** The interaction is orthogonal to :func:`smooth` of the column, :func:`factor` of the category
    and the constant, so ``smooth + factor + interaction + constant`` is an analysis of variance. A value of the column
    ``by`` that is none of the levels is an error.

    Parameters that are not listed here mean the same in all terms, see :mod:`gpytorch_gam.terms`.

    :param column: The column of the smooth argument.
    :param by: The column that holds the levels.
    :param levels: Two or more levels: :class:`Levels`, or anything that :meth:`Levels.of` takes.
    :param num_inducing: Number of inducing points of each level.
    :param measure: The measure under which each curve has mean zero. Default: uniform on the range, or its bulk as in
        :func:`smooth`.
    :param name: Name of the component. Default: such as ``x0:x3``.
    :return: A group of one component.

    Example:
        >>> AdditivePredictor(
        >>>     smooth(0, x), factor(3, sites), interaction(0, by=3, levels=sites, x=x), constant()
        >>> )
    """
    term = Arguments("interaction", variance, predictor, missing, batch_shape, name=name)
    column, by = term.column_and_by(column, by)
    levels = term.several_levels(by, levels)
    measure, ranges = term.measure(measure, centred=True), term.ranges([column], x, low, high)
    sizes = term.sizes(num_inducing, _CURVE[0], ranges.most_points(_CURVE[1]))
    base = term.stationary_kernel(kernel, ranges.width, ranges.bulk_width, active_dims=(0,))
    codes = _points(levels)
    of_levels = CentredKernel(LevelKernel(), codes, active_dims=(1,))
    placement = LevelPlacement(GridPlacement(sizes, ranges[:, None]), codes[:-1])
    kernel_of_pairs = centred_on(base, measure, ranges) * of_levels
    return term.placed(kernel_of_pairs, [[column, by]], placement, num_inducing, levels={by: levels})


def _points(levels: Levels) -> Tensor:
    """The codes as inducing points, ``(L, 1)`` in the default dtype. Kernels compare levels in single precision."""
    return torch.tensor(levels.codes, dtype=torch.get_default_dtype()).unsqueeze(-1)
