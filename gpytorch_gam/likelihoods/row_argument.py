"""A row-wise argument: a number for each row that a likelihood reads by name."""

from __future__ import annotations

import math
import numbers
from typing import NamedTuple

import gpytorch
import torch
from torch import Tensor


class RowArgument(NamedTuple):
    """The name of a row-wise keyword argument, its default, and whether its values must be above or not below zero."""

    name: str
    default: float
    is_positive: bool = False  # whether values must be above zero
    is_nonnegative: bool = False  # whether values must not be below zero

    def read(self, value: Tensor | float | None, like: Tensor) -> Tensor:
        """
        The argument (a number, or numbers that broadcast to ``(*batch, n)``; None for the default) as a tensor of the
        shape in which it was given, in the dtype of ``like``, ``(*batch, n)``, on whose device it must be. A wrong type
        is a TypeError; a wrong shape, device or value a ValueError. Values are checked only on the CPU and in debug
        mode.
        """
        name, value = self.name, self.default if value is None else value
        if not torch.is_tensor(value):
            return like.new_full((), self._checked_number(value))
        if value.dtype == torch.bool or value.is_complex():
            raise TypeError(
                f"{name} must hold floating-point numbers or integers, got {value.dtype}: pass {name}.float()"
            )
        if value.device != like.device:
            raise ValueError(
                f"{name} is on {value.device}, but the predictor on {like.device}: pass {name}.to(x.device)"
            )
        if not _broadcasts(value, like):
            raise ValueError(
                f"{name} has shape {tuple(value.shape)}, but the predictor has {tuple(like.shape)}: pass one value a "
                "row, or one for all"
            )
        converted = value.to(like.dtype)
        if is_looked_at(converted):
            bad = self._is_bad(converted.detach())
            if bad.any():
                raise ValueError(
                    f"{name} must be {self._range}, but is not in {int(bad.sum())} of {bad.numel()} entries, the first "
                    f"of them {value.detach()[bad][0].item()}"
                )
        return converted

    def _checked_number(self, value: float) -> float:
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise TypeError(f"{self.name} must be a number or a tensor of one number a row, got {type(value).__name__}")
        number = float(value)
        if not math.isfinite(number) or (self.is_positive and number <= 0) or (self.is_nonnegative and number < 0):
            raise ValueError(f"{self.name} must be {self._range}, got {number}")
        return number

    def _is_bad(self, values: Tensor) -> Tensor:
        bad = ~torch.isfinite(values)
        if self.is_positive:
            return bad | (values <= 0)
        return bad | (values < 0) if self.is_nonnegative else bad

    @property
    def _range(self) -> str:
        sign = " and positive" if self.is_positive else " and not negative" if self.is_nonnegative else ""
        return f"finite{sign}"


OFFSET = RowArgument("offset", 0.0)
WEIGHTS = RowArgument("weights", 1.0, is_nonnegative=True)
EXPOSURE = RowArgument("exposure", 1.0, is_positive=True)
TRIALS = RowArgument("trials", 1.0, is_positive=True)


def is_looked_at(value: Tensor) -> bool:
    """Whether the values of a tensor are checked: on the CPU, where nothing has to be waited for, and in debug mode."""
    return value.device.type == "cpu" and gpytorch.settings.debug.on()


def _broadcasts(value: Tensor, like: Tensor) -> bool:
    try:
        return torch.broadcast_shapes(value.shape, like.shape) == like.shape
    except RuntimeError:
        return False
