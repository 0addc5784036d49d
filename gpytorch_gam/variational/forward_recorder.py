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
    """
    The rows of one training forward, and derivatives of the loss in the moments of the predictors at these rows.

    :ivar x: Inputs ``(*batch, n, D)``.
    :ivar mean_gradient: The derivative in the means, ``(*batch, n)``; with several predictors ``(*batch, n, P)``.
    :ivar variance_gradient: The derivative in the variances, ``(*batch, n)``; with several predictors in their
        covariances, ``(*batch, n, P, P)``.
    """

    x: Tensor
    mean_gradient: Tensor
    variance_gradient: Tensor


class DivergenceRecord(NamedTuple):
    """
    The weight of the Kullback-Leibler divergence in a loss.

    :ivar weight: The derivative of the loss in the divergence, a scalar: 1 / N for minus the ELBO per row.
    :ivar objective: The objective of GPyTorch that asked for the divergence, or None.
    """

    weight: Tensor
    objective: gpytorch.mlls.MarginalLogLikelihood | None


class Recorded(NamedTuple):
    """
    The forwards and backward passes since the last step.

    :ivar num_forwards: The number of training forwards with gradients, differentiated or not.
    :ivar records: The forwards that a backward pass has gone through.
    :ivar divergences: The divergences that a backward pass has gone through.
    """

    num_forwards: int
    records: list[ForwardRecord]
    divergences: list[DivergenceRecord]


class ForwardRecorder:
    """
    The hooks of an optimiser that needs the gradients at the outputs of training forwards.
    :meth:`AdditiveVariationalStrategy.register_training_hooks` takes one; optimisers derive from it.

    Nothing of a forward is kept here before a backward pass has gone through it: until then only hooks in its graph
    hold the rows.

    :ivar num_forwards: The number of training forwards with gradients since the last :meth:`take`.
    """

    def __init__(self) -> None:
        self._period = 0  # number of the present period between two steps; a forward counts in its own
        self.num_forwards = 0
        self._forwards: list[_Forward] = []
        self._divergences: list[DivergenceRecord] = []

    def before_forward(self, choleskys: Sequence[Tensor]) -> None:
        """
        Called in each training forward before the posterior is read. Here, and in steps, optimisers may write it.

        :param choleskys: Cholesky factors of the inducing variables' covariance, for each group of components.
        """

    def present_parameters(self, choleskys: Sequence[Tensor] | None = None) -> dict[str, Tensor] | None:
        """
        The parameters of the posterior under the present kernels, for everything that reads it; nothing is written.

        :param choleskys: As in :meth:`before_forward`, if they are known already.
        :return: The parameters by name, or None if they are as stored, as without an optimiser that follows kernels.
        """
        return None

    def after_forward(self, x: Tensor, mean: Tensor, variance: Tensor) -> None:
        """
        Register for the gradients of a training forward; nothing is recorded where gradients are off.

        :param x: Inputs ``(*batch, n, D)``.
        :param mean: The means ``(*batch, n)``, or ``(*batch, n, P)``.
        :param variance: The variances ``(*batch, n)``, or the covariances ``(*batch, n, P, P)``.
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
        """
        Return and forget everything since the last call. Later backward passes through earlier forwards do not count.
        """
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
