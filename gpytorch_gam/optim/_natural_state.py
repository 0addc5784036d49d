"""The state that a natural gradient keeps beside the parameters of the posterior."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor


@dataclass
class NaturalState:
    """The state of a :class:`NaturalGradient`, which a checkpoint holds field by field."""

    step: int = 0  # in the schedule
    largest_batch: int = 0  # rows of all processes
    effective_dimension: Tensor | None = None  # (), after the last step

    # The posterior that was written last. If its mean is still the model's, no other one has been set since.
    mean: Tensor | None = None  # (Q,), in the dtype of the parameter
    choleskys: list[Tensor] | None = None  # factors of the kernels it belongs to, (C_g, M_g, M_g) for each group
    block_factors: list[Tensor] | None = None  # E_c, where the family cannot hold them
    directions: Tensor | None = None  # (Q, k), the columns of B followed by further directions

    num_foreign: int = 0  # number of posteriors that were set from outside
    num_negative: int = 0  # rows seen so far without a positive curvature
    has_curvature: bool = False
    warned_of: tuple[str, ...] = ()

    def forget_posterior(self) -> None:
        """Drop the kept posterior, because another one has been set from outside."""
        self.mean = self.choleskys = self.block_factors = self.directions = None

    def as_dict(self) -> dict[str, Any]:
        """The fields, for a checkpoint."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_dict(cls, values: Any, device: torch.device) -> NaturalState:
        """The inverse of :meth:`as_dict`, on a device; a ValueError for the values of something else."""
        names = {field.name for field in fields(cls)}
        found = set(values) if isinstance(values, Mapping) else set()
        if found != names:
            raise ValueError(
                f"the state is not that of a NaturalGradient, which has {sorted(names)}: it lacks "
                f"{sorted(names - found)} and has {sorted(map(str, found - names))} besides. Load what state_dict() of "
                "a NaturalGradient gave"
            )
        return cls(**{name: _moved(deepcopy(value), device) for name, value in values.items()})


def _moved(value: Any, device: torch.device) -> Any:
    if torch.is_tensor(value):
        return value.to(device)
    return [_moved(item, device) for item in value] if isinstance(value, list) else value
