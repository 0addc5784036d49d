"""Saving the settings of a likelihood that no parameter holds."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from gpytorch_gam.parameters.structure import as_bytes, from_bytes


class SettingsInState(torch.nn.Module):
    """A likelihood that refuses the state of one with other settings, for which its numbers mean something else."""

    #: The names of the attributes that are the settings.
    _settings: ClassVar[tuple[str, ...]] = ()

    def get_extra_state(self) -> Tensor:
        """The settings, as bytes."""
        return as_bytes({name: getattr(self, name) for name in self._settings})

    def set_extra_state(self, state: Any) -> None:
        """Raise a ValueError if the settings in a state differ from those of the likelihood."""
        for name, value in from_bytes(state).items():
            if value != getattr(self, name):
                raise ValueError(
                    f"the state is that of a {type(self).__name__} with {name}={value!r}, but this one has "
                    f"{name}={getattr(self, name)!r}: make it as it was trained"
                )
