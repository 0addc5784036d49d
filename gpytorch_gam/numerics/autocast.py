"""Methods whose arithmetic automatic mixed precision must not touch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor


def without_autocast(method: Callable[..., Any]) -> Callable[..., Any]:
    """Make a method compute in the dtype of its first argument: half precision ruins variances and differences."""

    @functools.wraps(method)
    def wrapped(self: Any, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_tensor(x):
            return method(self, x, *args, **kwargs)  # which refuses it
        with full_precision(x.device):
            return method(self, x, *args, **kwargs)

    return wrapped


def full_precision(device: torch.device) -> AbstractContextManager[Any]:
    """
    A context in which automatic mixed precision is off.

    :param device: Where the arithmetic is done.
    """
    return torch.autocast(device.type, enabled=False) if is_mixed(device) else nullcontext()


def is_mixed(device: torch.device) -> bool:
    """
    Whether automatic mixed precision is on.

    :param device: Where the arithmetic is done.
    """
    return torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)
