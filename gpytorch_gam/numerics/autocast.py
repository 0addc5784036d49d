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
    kind = device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return nullcontext()
