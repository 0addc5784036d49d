"""How optimisers that follow the kernels take part in a strategy."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import gpytorch
import torch
from gpytorch.variational._variational_strategy import _VariationalStrategy
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from gpytorch_gam.numerics.transforms import is_transformed

from .forward_recorder import ForwardRecorder


class _FollowedStrategy(_VariationalStrategy):
    """A strategy whose training forwards call hooks, and whose state has the posterior under the present kernels."""

    # Of at most one optimiser, under the id of its handle.
    _training_hooks: OrderedDict[int, ForwardRecorder]

    def register_training_hooks(self, hooks: ForwardRecorder) -> RemovableHandle:
        """
        Let an optimiser take part in training forwards, until the handle's ``remove()``. Copies and pickles of the
        model are without it.

        :param hooks: Called around each forward in train mode with gradients.
        :raises ValueError: If an optimiser takes part already.
        """
        if self._training_hooks:
            raise ValueError("model has a NaturalGradient attached: call its remove() before attaching another")
        handle = RemovableHandle(self._training_hooks)
        self._training_hooks[handle.id] = hooks
        return handle

    @property
    def training_hooks(self) -> ForwardRecorder | None:
        """The hooks that are registered, None if there are none."""
        return next(iter(self._training_hooks.values()), None)

    @contextmanager
    def replaced_training_hooks(self, hooks: ForwardRecorder) -> Iterator[None]:
        """
        Call other hooks for a while.

        :param hooks: In place of those that are registered.
        """
        before, self._training_hooks = self._training_hooks, OrderedDict({0: hooks})
        try:
            yield
        finally:
            self._training_hooks = before

    def _present_parameters(self, choleskys: Sequence[Tensor] | None = None) -> dict[str, Tensor] | None:
        hooks = self.training_hooks
        return None if hooks is None or self._is_traced() else hooks.present_parameters(choleskys)

    @property
    def _is_learning(self) -> bool:
        """Whether forwards are those of a training step, for which the posterior is written."""
        return self.training and torch.is_grad_enabled()

    def state_dict(self, *args: Any, prefix: str = "", **kwargs: Any) -> dict[str, Any]:
        """
        The state, with the posterior under the present kernels.

        :param prefix: Stands before the name of each entry.
        """
        state = super().state_dict(*args, prefix=prefix, **kwargs)
        for name, value in (self._present_parameters() or {}).items():
            state[f"{prefix}_variational_distribution.{name}"] = value
        return state

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles, which have the posterior under the present kernels."""
        modules, values = dict(self._modules), self._present_parameters()
        if values is not None:
            copied = modules["_variational_distribution"] = deepcopy(self._variational_distribution)
            with torch.no_grad():
                for name, value in values.items():
                    copied.get_parameter(name).copy_(value)
        return {**self.__dict__, "_modules": modules, "_training_hooks": OrderedDict()}

    @staticmethod
    def _is_traced() -> bool:
        """Whether values must not be looked at, because the operations are to serve others."""
        return gpytorch.settings.trace_mode.on() or is_transformed()
