"""The part of a strategy in which optimisers that follow the kernels take part."""

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
    """A strategy with hooks of an optimiser in training forwards, and its state under the present kernels."""

    # The hooks of at most one optimiser, under the id of its handle.
    _training_hooks: OrderedDict[int, ForwardRecorder]

    def register_training_hooks(self, hooks: ForwardRecorder) -> RemovableHandle:
        """
        Let an optimiser take part in training forwards, until the handle's ``remove()``. Copies and pickles of the
        model are without it.

        :param hooks: The hooks to call around each forward in train mode with gradients.
        :return: A handle that ends this.
        :raises ValueError: If an optimiser takes part already.
        """
        if self._training_hooks:
            raise ValueError("model has a NaturalGradient attached: call its remove() before attaching another")
        handle = RemovableHandle(self._training_hooks)
        self._training_hooks[handle.id] = hooks
        return handle

    @property
    def training_hooks(self) -> ForwardRecorder | None:
        """The registered hooks, or None."""
        return next(iter(self._training_hooks.values()), None)

    @contextmanager
    def replaced_training_hooks(self, hooks: ForwardRecorder) -> Iterator[None]:
        """Call these hooks inside the block instead of the registered ones."""
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
        """Whether a forward belongs to a training step, for which the posterior is written."""
        return self.training and torch.is_grad_enabled()

    def state_dict(self, *args: Any, prefix: str = "", **kwargs: Any) -> dict[str, Any]:
        """The state, with the posterior under the present kernels."""
        state = super().state_dict(*args, prefix=prefix, **kwargs)
        for name, value in (self._present_parameters() or {}).items():
            state[f"{prefix}_variational_distribution.{name}"] = value
        return state

    def __getstate__(self) -> dict[str, Any]:
        """The state for copies and pickles, with the posterior under the present kernels."""
        modules, values = dict(self._modules), self._present_parameters()
        if values is not None:
            copied = modules["_variational_distribution"] = deepcopy(self._variational_distribution)
            with torch.no_grad():
                for name, value in values.items():
                    copied.get_parameter(name).copy_(value)
        return {**self.__dict__, "_modules": modules, "_training_hooks": OrderedDict()}

    @staticmethod
    def _is_traced() -> bool:
        """Whether operations are being traced for other inputs, so that values must not be read."""
        return gpytorch.settings.trace_mode.on() or is_transformed()
