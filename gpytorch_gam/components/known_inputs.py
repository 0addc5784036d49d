"""What a predictor knows of the inputs that it was trained with, to tell others from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor

from gpytorch_gam._caught_warnings import warn_user
from gpytorch_gam.warnings import InputRangeWarning

# How far beyond its range, in widths of it, a column is far outside.
_FAR = 2.0

_ANY_INPUTS: ContextVar[bool] = ContextVar("any_inputs", default=False)


@contextmanager
def any_inputs() -> Iterator[None]:
    """Do not compare inputs with those of the training: they have further columns, or an estimator has made them."""
    token = _ANY_INPUTS.set(True)
    try:
        yield
    finally:
        _ANY_INPUTS.reset(token)


def are_any_inputs() -> bool:
    """Whether :func:`any_inputs` surrounds this."""
    return _ANY_INPUTS.get()


@dataclass
class KnownInputs:
    """
    The inputs that a model was trained with.

    :ivar num_columns: The number D of columns.
    :ivar names: What the columns are called; empty if that is not known.
    :ivar low: The smallest value of each column ``(D,)``; None if that is not known.
    :ivar high: The largest value of each column ``(D,)``.
    :ivar remedy: How such inputs are made.
    """

    num_columns: int
    names: Sequence[str] = ()
    low: Tensor | None = None
    high: Tensor | None = None
    remedy: str = ""
    _has_warned: bool = False

    def check(self, x: Tensor, looks_at_values: bool) -> None:
        """
        Raise a ValueError for another number of columns; warn once of values far outside of the ranges.

        :param x: Inputs ``(*batch, n, D)``.
        :param looks_at_values: Whether to compare values as well, which waits for the device.
        """
        if are_any_inputs():
            return
        if x.shape[-1] != self.num_columns:
            names = f" ({', '.join(self.names)})" if self.names else ""
            raise ValueError(
                f"x has {x.shape[-1]} columns, but the model was trained with {self.num_columns}{names}: "
                f"{self.remedy or 'pass the same columns'}"
            )
        if looks_at_values and self.low is not None and not self._has_warned:
            self._warn_of_range(x)

    def _warn_of_range(self, x: Tensor) -> None:
        """Warn if most rows have a value far outside of the range of a column."""
        assert self.low is not None and self.high is not None
        low, high = self.low.to(x), self.high.to(x)
        reach = _FAR * (high - low)
        is_far = ((x < low - reach) | (x > high + reach)) & (reach > 0)
        num_far, num_rows = int(is_far.any(-1).sum()), x.shape[:-1].numel()
        if 2 * num_far <= num_rows:
            return
        self._has_warned = True
        column = int(is_far.flatten(0, -2).sum(0).argmax())
        values = x[..., column]
        name = self.names[column] if self.names else f"column {column}"
        warn_user(
            f"x lies far outside of what the model was trained with in {num_far} of {num_rows} rows: {name} runs from "
            f"{values.nan_to_num(torch.inf).amin():.4g} to {values.nan_to_num(-torch.inf).amax():.4g}, but from "
            f"{low[column]:.4g} to {high[column]:.4g} there{f': {self.remedy}' if self.remedy else ''}",
            InputRangeWarning,
        )
