"""The ranges of the values of columns, and inducing points for them."""

from __future__ import annotations

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


@dataclass(frozen=True)
class Ranges:
    """The ranges of the values of some columns, in float64."""

    low: Tensor  # (C,) or (C, d)
    high: Tensor  # the same shape, above low
    bulk_low: Tensor  # the ends of the part that holds the bulk of the values
    bulk_high: Tensor
    places: Tensor  # (C, K) or (C, d, K), ascending from low to high: equally spaced, or denser where values are

    @classmethod
    def between(cls, low: Tensor, high: Tensor) -> Ranges:
        """Ranges of which only the ends are known."""
        return cls(low, high, low, high, torch.stack([low, high], -1))

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

    def points(self, num: int) -> Tensor:
        """``num`` points on each range, both ends included, ``(*shape, num)``."""
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


def _told_apart(low: Tensor, high: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """
    The ends of the bulk of one column, and places that serve it as well as the range. Distinct values whose spread is
    like that of uniform or normal ones count entirely as bulk. The further their distribution is from uniform beyond
    that, the more each place is shifted from an equal share of the range towards an equal share of the values, up to
    halfway, and the ends of the bulk towards those of a uniform distribution with the same central quantiles.
    """
    values = values[torch.isfinite(values)]
    values = values[(values >= low) & (values <= high)]
    few = values[:: max(1, len(values) // _MOST_VALUES)]
    kept = torch.cat([few, torch.stack([low, high])]).unique()  # sorted
    of_range = (kept - low) / (high - low)
    of_values = torch.linspace(0.0, 1.0, len(kept), dtype=torch.float64)
    distance = (of_range - of_values).abs().max()
    unevenness = ((distance - _EVEN) / (_UNEVEN - _EVEN)).clamp(0.0, 1.0)
    share = torch.lerp(of_range, of_values, 0.5 * unevenness)
    grid = np.linspace(0.0, 1.0, _NUM_PLACES)
    places = torch.from_numpy(np.interp(grid, share.numpy(), kept.numpy()))
    if unevenness == 0:
        places = torch.lerp(low, high, torch.from_numpy(grid))
    lower, upper = torch.quantile(kept, torch.tensor([_TAIL, 1 - _TAIL], dtype=torch.float64))
    beyond = (upper - lower) * _TAIL / (1 - 2 * _TAIL)
    ends = (torch.maximum(lower - beyond, low), torch.minimum(upper + beyond, high))
    return torch.lerp(low, ends[0], unevenness), torch.lerp(high, ends[1], unevenness), places
