"""Methods whose arithmetic automatic mixed precision must not touch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def without_autocast(method: Callable[..., Any]) -> Callable[..., Any]:
    """Make a method compute in the dtype of its first argument: half precision ruins variances and differences."""

    @functools.wraps(method)
    def wrapped(self: Any, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_tensor(x):
            return method(self, x, *args, **kwargs)  # which refuses it
        device = x.device.type
        if not (torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)):
            return method(self, x, *args, **kwargs)
        with torch.autocast(device, enabled=False):
            return method(self, x, *args, **kwargs)

    return wrapped
