"""The ranges of the values of columns, and inducing points for them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

# Largest differences of distribution functions from that of a uniform column. Normal columns have .2 to .3, one with an
# outlier at twenty ranges .95.
_EVEN, _UNEVEN = 0.3, 0.6

# The share of the values beyond each of the two quantiles that determine the bulk.
_TAIL = 0.05

# The number of knots of the distribution function, and of values of a column that are read (up to twice as many).
_NUM_PLACES, _MOST_VALUES = 2049, 2**16

# Points stand this far from equal shares of the range towards equal shares of the distinct values.
_TOWARDS_VALUES = 0.5

# Largest number of distinct values of a column, ends of the range included, that are kept one by one.
MOST_DISTINCT = 128


@dataclass(frozen=True)
class Ranges:
    """The ranges of the values of some columns, in float64."""

    low: Tensor  # (C,) or (C, d)
    high: Tensor  # the same shape, above low
    bulk_low: Tensor  # the ends of the part that holds the bulk of the values
    bulk_high: Tensor
    places: Tensor  # (C, K) or (C, d, K), ascending from low to high: equally spaced, or denser where values are
    distinct: Tensor  # (C, D) or (C, d, D), ascending: all values; NaN after the last, or if there are more

    @classmethod
    def between(cls, low: Tensor, high: Tensor) -> Ranges:
        """Ranges of which only the ends are known."""
        unknown = low.new_full((*low.shape, MOST_DISTINCT), math.nan)
        return cls(low, high, low, high, torch.stack([low, high], -1), unknown)

    @classmethod
    def of_values(cls, low: Tensor, high: Tensor, values: Tensor) -> Ranges:
        """Ranges with these ends ``(C,)``; where ``values``, ``(n, C)``, have a long tail, their bulk is found."""
        parts = zip(*map(_told_apart, low, high, values.mT), strict=True)
        return cls(low, high, *(torch.stack(part) for part in parts))

    @classmethod
    def stack(cls, parts: Sequence[Ranges]) -> Ranges:
        """Ranges of shape ``(C, d)`` from C of shape ``(d,)``."""
        return cls(*(torch.stack([getattr(part, field.name) for part in parts]) for field in fields(cls)))

    @property
    def width(self) -> Tensor:
        """The difference of the ends."""
        return self.high - self.low

    @property
    def bulk_width(self) -> Tensor:
        """The difference of the ends of the bulk."""
        return self.bulk_high - self.bulk_low

    def __getitem__(self, index: Any) -> Ranges:
        return Ranges(*(getattr(self, field.name)[index] for field in fields(self)))

    def num_distinct(self) -> Tensor:
        """The numbers of distinct values, ``(*shape)``; 0 where they are not known, or more than are kept."""
        return (~self.distinct.isnan()).sum(-1)

    def most_points(self, limit: int) -> int:
        """The largest number of points on a range that may help: that of its distinct values, or the limit."""
        counts = self.num_distinct()
        return limit if bool((counts == 0).any()) else min(limit, int(counts.max()))

    def points(self, num: int) -> Tensor:
        """
        ``num`` points on each range, both ends included, ``(*shape, num)``, ascending. A column with fewer distinct
        values has a point at each of them, and the others between.
        """
        spread, counts = self._spread_points(num), self.num_distinct()
        points = [
            _halved(values[:count], num) if 0 < count <= num else others
            for values, count, others in zip(
                self.distinct.flatten(0, -2), counts.flatten().tolist(), spread.flatten(0, -2), strict=True
            )
        ]
        return torch.stack(points).view_as(spread)

    def box(self, least: int) -> Tensor:
        """A product grid of ``least`` points or a few more on the box of ranges ``(d,)``, ``(m, d)``."""
        num_columns = len(self.low)
        return self[None].grid([math.ceil(least ** (1 / num_columns) - 1e-9)] * num_columns)[0]

    def _spread_points(self, num: int) -> Tensor:
        position = torch.linspace(0.0, self.places.shape[-1] - 1, num, dtype=torch.float64)
        before = position.floor().clamp(max=self.places.shape[-1] - 2).long()
        start, end = self.places[..., before], self.places[..., before + 1]
        return start + (end - start) * (position - before)

    def grid(self, nums: Sequence[int]) -> Tensor:
        """
        Product grids ``(C, M, d)`` on the boxes of ranges ``(C, d)``, in the default dtype, with ``nums`` points along
        each of the d columns, M being their product. Points on a range that coincide in that dtype are a ValueError.
        """
        axes = [self[:, dim].points(num).to(torch.get_default_dtype()) for dim, num in enumerate(nums)]
        for dim, on_axis in enumerate(axes):
            stuck = (on_axis.diff() <= 0).any(-1).nonzero().flatten().tolist()
            if stuck:
                low, high = (end[stuck[0], dim].item() for end in (self.low, self.high))
                raise ValueError(
                    f"the range from {low:.17g} to {high:.17g} is too narrow beside its distance from zero for "
                    f"{nums[dim]} inducing points in {on_axis.dtype}: subtract something from the column"
                )
        return torch.stack([torch.cartesian_prod(*rows).reshape(-1, len(nums)) for rows in zip(*axes, strict=True)])


def _halved(points: Tensor, num: int) -> Tensor:
    """Ascending points ``(k,)``, and further ones in the middle of the widest gaps, ``(num,)``."""
    while len(points) < num:
        gap = points.diff().argmax()
        points = torch.cat([points[: gap + 1], points[gap : gap + 2].mean(-1, keepdim=True), points[gap + 1 :]])
    return points


def _told_apart(low: Tensor, high: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """
    The ends of the bulk of one column, places that serve it as well as the range, and its distinct values. Each place
    is shifted from an equal share of the range halfway towards an equal share of the distinct values. Values whose
    spread is like that of uniform or normal ones count entirely as bulk. The further their distribution is from uniform
    beyond that, the more the ends of the bulk are shifted towards those of a uniform distribution with the same central
    quantiles.
    """
    values = values[torch.isfinite(values)]
    values = values[(values >= low) & (values <= high)]
    few = values[:: max(1, len(values) // _MOST_VALUES)]
    kept = torch.cat([few, torch.stack([low, high])]).unique()  # sorted
    of_range = (kept - low) / (high - low)
    of_values = torch.linspace(0.0, 1.0, len(kept), dtype=torch.float64)
    share = torch.lerp(of_range, of_values, _TOWARDS_VALUES)
    places = torch.from_numpy(np.interp(np.linspace(0.0, 1.0, _NUM_PLACES), share.numpy(), kept.numpy()))
    unevenness = (((of_range - of_values).abs().max() - _EVEN) / (_UNEVEN - _EVEN)).clamp(0.0, 1.0)
    lower, upper = torch.quantile(kept, torch.tensor([_TAIL, 1 - _TAIL], dtype=torch.float64))
    beyond = (upper - lower) * _TAIL / (1 - 2 * _TAIL)
    ends = (torch.maximum(lower - beyond, low), torch.minimum(upper + beyond, high))
    return torch.lerp(low, ends[0], unevenness), torch.lerp(high, ends[1], unevenness), places, _distinct(kept)


def _distinct(kept: Tensor) -> Tensor:
    """The values that differ in the default dtype, ``(MOST_DISTINCT,)``; NaN after the last, or if they are more."""
    found = kept.to(torch.get_default_dtype()).unique().to(kept)
    padded = kept.new_full((MOST_DISTINCT,), math.nan)
    if 1 < len(found) <= MOST_DISTINCT:
        padded[: len(found)] = found
    return padded
