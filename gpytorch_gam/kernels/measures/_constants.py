"""Tables of numbers, copied to a device once."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor


def constant(values: tuple[Any, ...], device: torch.device) -> Tensor:
    """
    Numbers as a float64 tensor, not to be changed.

    A copy to a GPU makes the processor wait, and cannot be recorded in a CUDA graph: each table is copied once.

    :param values: Numbers, or tuples of them.
    :param device: Where.
    """
    if device.type == "cpu" or torch.compiler.is_compiling():
        return torch.tensor(values, dtype=torch.float64, device=device)
    return _kept_constant(values, device)


@functools.lru_cache(maxsize=256)
def _kept_constant(values: tuple[Any, ...], device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # or else it could not serve in training later
        return torch.tensor(values, dtype=torch.float64, device=device)
