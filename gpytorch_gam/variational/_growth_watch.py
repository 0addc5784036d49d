"""Detects whether a structured precision that is trained by gradients alone is still growing."""

from __future__ import annotations

import torch
from torch import Tensor

from gpytorch_gam._caught_warnings import warn_user
from gpytorch_gam.numerics.transforms import is_transformed
from gpytorch_gam.warnings import TrainingLoopWarning

# Number of training forwards before there is a verdict, and the first forward whose precision is remembered.
_LEAST_FORWARDS, _FIRST_KEPT = 100, 32

# Growth of the precision over the later half of the training, or a longer part, above which it has not converged. With
# Adam at a rate of .01 it was 1.8 to 2 where training ended some 50 nats short, and 1.5 where it ended 5 nats short.
_NOTABLE_GROWTH = 1.7


class GrowthWatch:
    """
    Warns when a model is used while its precision still grows, judged after 32, 64, 128, ... training forwards. The
    best factors grow like the square root of the number of rows; the steps of an optimiser such as Adam do not.
    """

    def __init__(self) -> None:
        self._num_forwards = 0
        self._sizes: list[Tensor] = []  # after the last two counts that are powers of two
        self._num_judged = 0  # number of forwards at the last verdict
        self._has_warned = False

    def note(self, distribution: torch.nn.Module) -> None:
        """Count a training forward that no natural-gradient optimiser follows, without waiting for the device."""
        self._num_forwards += 1
        count = self._num_forwards
        if count >= _FIRST_KEPT and count & (count - 1) == 0:
            self._sizes = [*self._sizes[-1:], _size(distribution)]

    def warn_if_growing(self, distribution: torch.nn.Module) -> None:
        """
        Warn once if the precision has grown a lot since a quarter to a half of the training. Looks once after each
        training, as that waits for the device, and not inside of transformations, which hide values.
        """
        is_judged = self._has_warned or self._num_judged == self._num_forwards
        if is_judged or self._num_forwards < _LEAST_FORWARDS or is_transformed():
            return
        self._num_judged = self._num_forwards
        growth = (_size(distribution) / self._sizes[0]).item()
        if growth < _NOTABLE_GROWTH:
            return
        self._has_warned = True
        warn_user(
            f"the precision of the posterior has grown {growth:.1f}-fold since the first half of the training of "
            f"{self._num_forwards} steps, so its bands are still too wide: gradients alone take long. Train with "
            "gpytorch_gam.optim.NaturalGradient or fit, call initialize_posterior before the loop, or bring the "
            "posterior to its optimum now by polish(model, likelihood, batches)",
            TrainingLoopWarning,
        )


@torch.no_grad()
def _size(distribution: torch.nn.Module) -> Tensor:
    """The trace of the precision minus the identity, ``()``."""
    parameters = distribution.named_parameters()
    squares = [p.double().square().sum() for name, p in parameters if name != "variational_mean"]
    return torch.stack(squares).sum() if squares else torch.ones(())
