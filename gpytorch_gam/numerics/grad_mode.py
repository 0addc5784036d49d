"""Training where the caller has switched gradients off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


@contextmanager
def gradients_on() -> Iterator[None]:
    """Switch gradients on inside of ``torch.no_grad()`` and ``torch.inference_mode()``."""
    with torch.inference_mode(False), torch.enable_grad():
        yield


def trainable(data: Tensor) -> Tensor:
    """Data that backward passes may keep; tensors made in ``torch.inference_mode()`` are copied for that."""
    return data.clone() if data.is_inference() else data


def check_trainable(*modules: torch.nn.Module) -> None:
    """Raise a ValueError for modules that were made in ``torch.inference_mode()``, which cannot be trained."""
    for module in modules:
        if any(parameter.is_inference() for parameter in module.parameters()):
            raise ValueError(
                f"the parameters of {type(module).__name__} were made in torch.inference_mode() and cannot be trained: "
                "make it outside of it, or load its state into one that was"
            )
