"""Where the values of columns lie, and points that serve them."""

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

# Share of the values beyond each end of the quantiles that tell where the bulk is.
_TAIL = 0.05

# Knots of the distribution function that are kept, and values of a column that are looked at, or twice as many.
_NUM_PLACES, _MOST_VALUES = 2049, 2**16


@dataclass(frozen=True)
class Ranges:
    """
    Where the values of some columns lie, in float64.

    :ivar low: ``(C,)`` or ``(C, d)``.
    :ivar high: of the same shape, above ``low``.
    :ivar bulk_low: the lower end of the part that holds the bulk of the values, of the same shape.
    :ivar bulk_high: the upper end of that part.
    :ivar places: ascending, from the lower end to the upper one, ``(C, K)`` or ``(C, d, K)``: equally spaced, or denser
        where there are more values.
    """

    low: Tensor
    high: Tensor
    bulk_low: Tensor
    bulk_high: Tensor
    places: Tensor

    @classmethod
    def between(cls, low: Tensor, high: Tensor) -> Ranges:
        """Ranges of which no more is known than their ends."""
        return cls(low, high, low, high, torch.stack([low, high], -1))

    @classmethod
    def of_values(cls, low: Tensor, high: Tensor, values: Tensor) -> Ranges:
        """Ranges with these ends ``(C,)``, where ``values`` ``(n, C)`` with long tails are told from their bulk."""
        parts = zip(*map(_told_apart, low, high, values.mT), strict=True)
        return cls(low, high, *(torch.stack(part) for part in parts))

    @classmethod
    def stack(cls, parts: Sequence[Ranges]) -> Ranges:
        """Ranges of shape ``(C, d)`` from C ones of shape ``(d,)``."""
        return cls(*(torch.stack([getattr(part, field.name) for part in parts]) for field in fields(cls)))

    @property
    def width(self) -> Tensor:
        """Difference of the ends."""
        return self.high - self.low

    @property
    def bulk_width(self) -> Tensor:
        """Difference of the ends of the bulk."""
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
        Product grids on the boxes of ranges ``(C, d)``.

        :param nums: Number of points along each of the d columns.
        :return: ``(C, M, d)`` in the default dtype, M the product of the numbers.
        :raises ValueError: If points on a range coincide in that dtype.
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
    The ends of the bulk of one column, and places that serve it as well as the range.

    Distinct values that are spread like uniform or normal ones count as bulk all together. The further their
    distribution is from uniform beyond that, the more a place is shifted from an equal share of the range towards an
    equal share of the values, up to halfway, and the ends of the bulk towards where a uniform distribution of the same
    central quantiles would end.
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
