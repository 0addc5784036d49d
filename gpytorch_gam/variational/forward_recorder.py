"""Records what backward passes bring to training forwards, for optimisers that need more than parameters' gradients."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import gpytorch
from torch import Tensor

from ._callers import nearest_caller

# Largest number of frames to an objective, past those of a recorder, a strategy and their base classes.
_REACH = 5


class ForwardRecord(NamedTuple):
    """Rows of one training forward, and derivatives of the loss in the predictors' moments."""

    x: Tensor  # (*batch, n, D)
    mean_gradient: Tensor  # (*batch, n); with several predictors (*batch, n, P)
    variance_gradient: Tensor  # (*batch, n); with several predictors in the covariance, (*batch, n, P, P)


class DivergenceRecord(NamedTuple):
    """The weight of the Kullback-Leibler divergence in a loss."""

    weight: Tensor  # derivative of the loss in the divergence, (): 1 / N for minus the ELBO per row
    objective: gpytorch.mlls.MarginalLogLikelihood | None  # GPyTorch's objective that asked for it, or None


class Recorded(NamedTuple):
    """What was recorded since the last step."""

    num_forwards: int  # training forwards with gradients, differentiated or not
    records: list[ForwardRecord]  # those that a backward pass has gone through
    divergences: list[DivergenceRecord]  # those that a backward pass has gone through


class ForwardRecorder:
    """
    The hooks of an optimiser that needs the gradients at the outputs of training forwards; optimisers derive from it.
    Nothing of a forward is kept here before a backward pass: until then only hooks in its graph hold the rows.
    ``num_forwards`` counts training forwards with gradients since the last :meth:`take`.
    """

    def __init__(self) -> None:
        self._period = 0  # number of the present period between two steps; a forward counts in its own
        self.num_forwards = 0
        self._forwards: list[_Forward] = []
        self._divergences: list[DivergenceRecord] = []

    def before_forward(self, choleskys: Sequence[Tensor]) -> None:
        """Called in training forwards before the posterior is read; here, and in steps, optimisers may write it."""

    def present_parameters(self, choleskys: Sequence[Tensor] | None = None) -> dict[str, Tensor] | None:
        """
        The posterior's parameters under the present kernels, by name, for everything that reads it, without writing;
        None if they are as stored. ``choleskys`` are the inducing covariances' factors if known.
        """
        return None

    def after_forward(self, x: Tensor, mean: Tensor, variance: Tensor) -> None:
        """
        Register for the gradients of a training forward with moments ``(*batch, n)``, or ``(*batch, n, P)`` and
        ``(*batch, n, P, P)``; nothing is recorded where gradients are off.
        """
        if not (mean.requires_grad and variance.requires_grad):
            return
        self.num_forwards += 1
        forward = _Forward(x.detach())
        mean.register_hook(partial(self._keep, self._period, forward, 0))
        variance.register_hook(partial(self._keep, self._period, forward, 1))

    def after_divergence(self, divergence: Tensor) -> None:
        """Register for the weight that a loss gives to the divergence, ``()``, from the prior."""
        if divergence.requires_grad:
            objective = nearest_caller(gpytorch.mlls.MarginalLogLikelihood, _REACH)
            divergence.register_hook(partial(self._keep_weight, self._period, objective))

    def take(self) -> Recorded:
        """Return and forget all since the last call; later backward passes through older forwards do not count."""
        complete = [forward.record() for forward in self._forwards if forward.is_complete]
        recorded = Recorded(self.num_forwards, complete, self._divergences)
        self._period += 1
        self.num_forwards = 0
        self.forget_gradients()
        return recorded

    def put(self, recorded: Recorded) -> None:
        """Replace what was collected by what :meth:`take` returned."""
        self.num_forwards = recorded.num_forwards
        self._forwards = [_Forward(x, [mean, variance]) for x, mean, variance in recorded.records]
        self._divergences = list(recorded.divergences)

    def forget_gradients(self) -> None:
        """Drop what backward passes have brought."""
        for forward in self._forwards:
            forward.gradients = [None, None]
        self._forwards, self._divergences = [], []

    @property
    def num_rows(self) -> int:
        """Number of rows that a backward pass has gone through."""
        return sum(forward.num_rows for forward in self._forwards)

    def _enter_backward(self) -> None:
        """Called whenever a backward pass reaches something recorded."""

    def _keep(self, period: int, forward: _Forward, which: int, gradient: Tensor) -> None:
        self._enter_backward()
        if period != self._period:
            return
        if not any(each is forward for each in self._forwards):
            self._forwards.append(forward)
        forward.add(which, gradient.detach())

    def _keep_weight(
        self, period: int, objective: gpytorch.mlls.MarginalLogLikelihood | None, gradient: Tensor
    ) -> None:
        self._enter_backward()
        if period == self._period:
            self._divergences.append(DivergenceRecord(gradient.detach(), objective))


class _Forward:
    """Rows of a forward, and the sums of the gradients that backward passes have brought to its mean and variance."""

    def __init__(self, x: Tensor, gradients: list[Tensor | None] | None = None) -> None:
        self.x = x
        self.gradients: list[Tensor | None] = [None, None] if gradients is None else gradients

    def add(self, which: int, gradient: Tensor) -> None:
        before = self.gradients[which]
        self.gradients[which] = gradient if before is None else before + gradient

    @property
    def is_complete(self) -> bool:
        return all(gradient is not None for gradient in self.gradients)

    @property
    def num_rows(self) -> int:
        return self.x.shape[:-1].numel() if self.is_complete else 0

    def record(self) -> ForwardRecord:
        mean, variance = self.gradients
        assert mean is not None and variance is not None
        return ForwardRecord(self.x, mean, variance)
