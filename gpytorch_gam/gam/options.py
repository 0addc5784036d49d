"""How models are fitted, and on which device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Options:
    """How a model is fitted, see the estimators."""

    method: str
    tolerance: float
    posterior: str
    device: str
    progress: bool
    seed: int
    hyperparameters: str
    chooses_kernel: bool = False


def device_of(device: str) -> torch.device:
    """
    The device with a name.

    :param device: The name; ``"auto"`` for a GPU if there is one.
    """
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)


def on_device(data: Any, device: torch.device) -> Any:
    """
    Rows in memory on a device; batches are there when they are made.

    :param data: The rows.
    :param device: The device.
    """
    if not isinstance(data, tuple):
        return data
    x, y, *rest = data
    return (x.to(device), y.to(device), *({name: value.to(device) for name, value in rows.items()} for rows in rest))
