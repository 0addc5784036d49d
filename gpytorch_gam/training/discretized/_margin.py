"""The bins of a single column."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Margin(NamedTuple):
    """The bins of one column."""

    values: Tensor  # ascending, then NaN if entries may be missing, (u,)
    step: float  # distance of the values; 0 if they are the column's distinct values, and nothing is rounded
    has_missing: bool = False

    def codes(self, column: Tensor, name: str) -> Tensor:
        """The index of each entry's bin, ``(n,)`` in int32. Entries that no bin holds raise a ValueError."""
        if self.has_missing:
            is_missing = column.isnan()
            known = self.without_missing()
            codes = known.codes(torch.where(is_missing, known.values[0], column), name)
            return codes.masked_fill_(is_missing, len(known.values))
        if not self.step:
            codes = torch.searchsorted(self.values, column.contiguous(), out_int32=True).clamp_(
                max=len(self.values) - 1
            )
            self._refuse(self.values[codes] != column, column, f"are not among the {len(self.values)} bins of {name}")
            return codes
        low, high = self.values[0].item(), self.values[-1].item()
        smallest, largest = torch.aminmax(column)
        if not (smallest >= low and largest <= high):
            self._refuse(~((column >= low) & (column <= high)), column, f"are outside the range of {name}")
        scaled = (column - low).mul_(1.0 / self.step).add_(0.5)  # the nearest bin: truncated after adding a half
        return scaled.to(torch.int32).clamp_(max=len(self.values) - 1)

    @classmethod
    def regular(cls, low: float, high: float, number: int, like: Tensor) -> Margin:
        """``number`` equidistant bins, in the dtype of ``like``."""
        if number < 2:
            raise ValueError(f"max_bins must be at least 2 for columns that are rounded, got {number}")
        # Computed in float64, so that the ends are exactly those of the range in any dtype.
        values = torch.linspace(low, high, number, dtype=torch.float64, device=like.device).to(like.dtype)
        values[0], values[-1] = low, high
        return cls(values, (high - low) / (number - 1))

    def coarser(self, low: float, high: float, number: int) -> Margin:
        """At most ``number`` bins over a range; distinct values and the bin of missing entries stay."""
        is_fine = self.step > 0 and len(self.values) - self.has_missing > number
        return Margin.regular(low, high, number, self.values).with_missing(self.has_missing) if is_fine else self

    def without_missing(self) -> Margin:
        """The bins of the entries that are not missing."""
        return Margin(self.values[: len(self.values) - self.has_missing], self.step)

    def with_missing(self, has_missing: bool) -> Margin:
        if not has_missing:
            return self
        return Margin(torch.cat([self.values, self.values.new_full((1,), math.nan)]), self.step, has_missing=True)

    def _refuse(self, bad: Tensor, column: Tensor, what: str) -> None:
        if bad.any():
            raise ValueError(
                f"{int(bad.sum())} of {len(column)} entries (the first: {column[bad][0].item()!r}) {what}, "
                f"[{self.values[0].item()!r}, {self.values[-1].item()!r}]: make bins from all of the data"
            )
