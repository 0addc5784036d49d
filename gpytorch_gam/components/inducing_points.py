"""Choices of inducing points: grids, quantiles of the data, k-means."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gpytorch_gam import _checks as checks

Bounds = float | Sequence[float] | Tensor | np.ndarray


def regular_grid(low: Bounds, high: Bounds, num: int | Sequence[int]) -> Tensor:
    """
    Regularly spaced points on an interval, or the product grid on a box.

    :param low: Lower end, or one for each dimension.
    :param high: Upper end, or one for each dimension.
    :param num: Number of points along each dimension (one integer, or one for each dimension).
    :return: Points ``(M, d)``, where ``M`` is the product of the numbers.
    """
    lows, highs = (
        checks.as_numbers("regular_grid", name, end, torch.float64).reshape(-1).tolist()
        for name, end in (("low", low), ("high", high))
    )
    given = num if isinstance(num, Sequence) and not isinstance(num, str) else [num] * len(lows)
    nums = [checks.integer("num", count, least=1) for count in given]
    if not len(lows) == len(highs) == len(nums):
        raise ValueError(f"low, high and num must have one entry a dimension, got {low!r}, {high!r} and {num!r}")
    for lower, upper in zip(lows, highs, strict=True):
        if not (math.isfinite(lower) and math.isfinite(upper) and lower < upper):
            raise ValueError(f"low must be below high and both finite, got low={low!r} and high={high!r}")
    axes = [torch.linspace(lower, upper, count) for lower, upper, count in zip(lows, highs, nums, strict=True)]
    return torch.cartesian_prod(*axes).reshape(-1, len(axes))


def quantile_points(values: Tensor, num: int) -> Tensor:
    """
    Equally spaced quantiles of one column, minimum and maximum included, each value once.

    A column with fewer distinct values than ``num`` gives all its distinct values: inducing points that are then exact
    on the data.

    :param values: The column, ``(n,)`` or ``(n, 1)``.
    :param num: Largest number of points.
    :return: Points ``(M, 1)`` with ``M <= num``, ascending.
    """
    column = _validated_data(values, num)
    if column.shape[-1] != 1:
        raise ValueError(f"values must be one column, got shape {tuple(values.shape)}; use kmeans_points for more")
    distinct = column.flatten().unique()  # sorted
    if len(distinct) > num:
        ordered = column.flatten().sort().values
        positions = torch.linspace(0, len(ordered) - 1, num, dtype=torch.float64, device=ordered.device)
        distinct = ordered[positions.round().long()].unique()
    return distinct.unsqueeze(-1)


def kmeans_points(values: Tensor, num: int, seed: int = 0) -> Tensor:
    """
    Centres of k-means clusters of the data, for components of two and more columns.

    Columns are brought to unit standard deviation for the clustering. Data with fewer distinct rows than ``num`` give
    all their distinct rows.

    :param values: The data, ``(n, d)``.
    :param num: Largest number of points.
    :param seed: Seed of the starting centres (k-means++).
    :return: Points ``(M, d)`` with ``M <= num``.
    """
    from scipy.cluster.vq import kmeans2  # here, because it doubles the time of an import of this package

    rows = _validated_data(values, num)
    distinct = rows.unique(dim=0)
    if len(distinct) <= num:
        return distinct
    checks.integer("seed", seed, least=0)
    centred = rows.double() - distinct.double().mean(dim=0)
    spread = centred.std(dim=0)
    scale = torch.where(spread > 0, spread, torch.ones_like(spread))
    scaled = (centred / scale).cpu().numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a cluster that ran empty is dropped below
        centres, labels = kmeans2(scaled, num, iter=50, minit="++", seed=seed)
    centres = torch.as_tensor(centres[sorted(set(labels.tolist()))], device=rows.device)
    return (centres * scale + distinct.double().mean(dim=0)).to(rows.dtype).unique(dim=0)


def filled_up(points: Tensor, candidates: Tensor, num: int) -> Tensor:
    """
    The points ``(m, d)``, and those candidates that are furthest from all points before them, ``(num, d)`` in total.

    :param points: One point or more.
    :param candidates: Places for further points, ``(k, d)``.
    :param num: Number of points.
    """
    distance = torch.cdist(candidates, points).amin(-1)
    while len(points) < num:
        new = candidates[distance.argmax()].unsqueeze(0)
        points = torch.cat([points, new])
        distance = torch.minimum(distance, torch.cdist(candidates, new).squeeze(-1))
    return points


def _validated_data(values: Tensor, num: int) -> Tensor:
    values = checks.as_numbers("inducing points", "values", values)
    checks.integer("num", num, least=1)
    if values.dim() == 1:
        values = values.unsqueeze(-1)
    if values.dim() != 2 or values.shape[0] == 0:
        raise ValueError(f"values must be a non-empty tensor (n, d), got shape {tuple(values.shape)}")
    if not values.is_floating_point():
        values = values.to(torch.get_default_dtype())
    finite = torch.isfinite(values).all(dim=-1)
    if not finite.all():
        raise ValueError(f"values contain NaN or infinity in {int((~finite).sum())} of {len(values)} rows; drop them")
    return values.detach()
