"""Connects a natural gradient to the training forwards of its model."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from gpytorch.mlls import MarginalLogLikelihood
from torch import Tensor
from torch.autograd import Variable
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from gpytorch_gam.variational.forward_recorder import ForwardRecorder

from ._gradient_watch import GradientWatch

Choleskys = Sequence[Tensor]


class AttachedRecorder(ForwardRecorder):
    """
    Records forwards, except inside the steps of other optimisers. ``follow`` transports the posterior and writes it,
    ``present`` only returns the parameters so transported; ``watched`` are those of :class:`GradientWatch`.
    """

    def __init__(
        self,
        follow: Callable[[Choleskys], None],
        present: Callable[[Choleskys | None], dict[str, Tensor] | None],
        num_data: int,
        watched: Iterable[Tensor],
    ) -> None:
        super().__init__()
        # Methods of the optimiser, held weakly: only its user keeps it alive.
        self._follow, self._present = weakref.WeakMethod(follow), weakref.WeakMethod(present)
        self._num_data = num_data
        self._is_recording: bool | None = None  # None: recorded by default
        self._backward = -1  # torch's number of the backward pass that was entered last
        self._watch = GradientWatch(watched)
        self._objectives: weakref.WeakSet[MarginalLogLikelihood] = weakref.WeakSet()

    @contextmanager
    def recording(self, is_recording: bool) -> Iterator[None]:
        """Switch recording on or off. False has no effect inside True, which covers the optimiser's own closure."""
        before, self._is_recording = self._is_recording, is_recording or self._is_recording is True
        try:
            yield
        finally:
            self._is_recording = before

    def before_forward(self, choleskys: Choleskys) -> None:
        follow = self._follow()
        if follow is not None:
            follow(choleskys)

    def present_parameters(self, choleskys: Choleskys | None = None) -> dict[str, Tensor] | None:
        present = self._present()
        return None if present is None else present(choleskys)

    def after_forward(self, x: Tensor, mean: Tensor, variance: Tensor) -> None:
        if self._is_recording is not False:
            super().after_forward(x, mean, variance)

    def after_divergence(self, divergence: Tensor) -> None:
        if self._is_recording is not False:
            super().after_divergence(divergence)

    def _enter_backward(self) -> None:
        backward = torch._C._current_graph_task_id()
        if self._follow() is None or backward == self._backward:
            return
        self._backward = backward
        self._watch.begin()
        if (self._forwards or self._divergences) and self._watch.begins_anew():
            self.forget_gradients()
        Variable._execution_engine.queue_callback(self._watch.end)

    def _keep(self, period: int, forward: Any, which: int, gradient: Tensor) -> None:
        super()._keep(period, forward, which, gradient)
        # The caller differentiates without stepping. Enough is kept for a step to see that there are too many rows.
        while len(self._forwards) > 1 and self.num_rows > 2 * self._num_data:
            self._forwards.pop(0)

    def _keep_weight(self, period: int, objective: MarginalLogLikelihood | None, gradient: Tensor) -> None:
        if objective is not None and objective not in self._objectives:
            self._objectives.add(objective)
            self._watch.add(objective.parameters())
        super()._keep_weight(period, objective, gradient)


def pause_in_other_steps(recorder: AttachedRecorder, own: weakref.ref[torch.optim.Optimizer]) -> RemovableHandle:
    """Record nothing inside closures of optimisers other than ``own``, until the returned handle is removed."""

    def pause(
        optimizer: torch.optim.Optimizer, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if torch.compiler.is_compiling() or optimizer is own():
            return None
        return tuple(map(paused, arguments)), {name: paused(value) for name, value in named.items()}

    def paused(argument: Any) -> Any:
        if isinstance(argument, torch.optim.Optimizer) or not callable(argument):
            return argument

        def closure(*arguments: Any, **named: Any) -> Any:
            with recorder.recording(False):
                return argument(*arguments, **named)

        return closure

    return register_optimizer_step_pre_hook(pause)
