"""What a training forward computed, for optimisers that need more than gradients of parameters."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class ForwardRecord(NamedTuple):
    """
    Moments of the predictors in each row of one training forward, with their gradients once ``backward`` has run.

    :ivar x: inputs ``(*batch, n, D)``.
    :ivar mean: ``(*batch, n)``, its gradient retained; with several predictors ``(*batch, n, P)``.
    :ivar variance: ``(*batch, n)``, its gradient retained; with several predictors their covariance,
        ``(*batch, n, P, P)``.
    """

    x: Tensor
    mean: Tensor
    variance: Tensor


class ForwardRecorder:
    """
    Collects a :class:`ForwardRecord` for each training forward with gradients, while an optimiser is attached.

    Optimisers derive from it and say what a copy of the model gets: records have a graph and cannot be copied.
    """

    def __init__(self) -> None:
        self.records: list[ForwardRecord] = []

    def prepare(self) -> None:
        """Called before each forward: bring the posterior to the present kernels. Nothing to do in general."""

    def record(self, x: Tensor, mean: Tensor, variance: Tensor) -> None:
        """
        Keep the moments of a forward; nothing is kept where gradients are off.

        :param x: inputs ``(*batch, n, D)``.
        :param mean: ``(*batch, n)``, or ``(*batch, n, P)``.
        :param variance: ``(*batch, n)``, or ``(*batch, n, P, P)``.
        """
        if not (mean.requires_grad and variance.requires_grad):
            return
        mean.retain_grad()
        variance.retain_grad()
        self.records.append(ForwardRecord(x, mean, variance))

    def take(self) -> list[ForwardRecord]:
        """All records since the last call, oldest first."""
        records, self.records = self.records, []
        return records
