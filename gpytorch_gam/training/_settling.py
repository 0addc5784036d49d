"""The end of a fit by minibatches: falling rates, and hyperparameters at the mean of their last places."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gpytorch_gam.parameters.log_scale import Coordinates

# Adam's rates one after another, relative to the first, and the largest number of epochs at each.
_RATES, _MAX_EPOCHS = (1.0, 0.3, 0.1), (120, 40, 40)

# Number of steps over which the ELBO must not change, and of epochs at least.
_NUM_STEPS, _LEAST_EPOCHS = 60, 2

# Smallest change of the ELBO over some epochs, in nats, for which training continues.
_NOTABLE_NATS = 0.5

# Median of the absolute value of a standard normal variable.
_MEDIAN_OF_NORMAL = 0.6745


class Settling:
    """
    The phases of a fit that ends by itself. At each rate the hyperparameters move until the ELBO only changes by its
    noise: at the first they come near, at lower ones they wander less. At the end they are put to the mean of their
    places in the last phase, in which noise averages out.
    """

    def __init__(self, coordinates: Coordinates, lr: float) -> None:
        self._coordinates, self._lr = coordinates, lr
        self._phase = 0
        self._elbos: list[float] = []  # of the present phase
        self._positions: list[list[Tensor]] = []
        self._has_stalled = True  # whether every phase so far has ended because the ELBO did not change any more

    @property
    def is_over(self) -> bool:
        """Whether the last phase has ended."""
        return self._phase == len(_RATES)

    @property
    def reason(self) -> str:
        """Why the last phase has ended."""
        if self._has_stalled:
            return "the ELBO did not change any more while the hyperparameters' rate fell"
        return f"the ELBO was still changing after {sum(_MAX_EPOCHS)} epochs at most"

    @property
    def rate(self) -> float:
        """Adam's rate for the next epoch."""
        return self._lr * _RATES[min(self._phase, len(_RATES) - 1)]

    def add(self, elbo: float, num_steps: int, is_moving: bool) -> None:
        """Take note of an epoch of ``num_steps`` steps; it counts if the hyperparameters were moving at its end."""
        if not is_moving:
            return
        self._elbos.append(elbo)
        self._positions.append(self._coordinates.read())
        stalls = has_stalled(self._elbos, max(_LEAST_EPOCHS, math.ceil(_NUM_STEPS / max(num_steps, 1))))
        if not stalls and len(self._elbos) < _MAX_EPOCHS[self._phase]:
            return
        self._has_stalled &= stalls
        self._phase += 1
        if not self.is_over:
            self._elbos, self._positions = [], []

    def finish(self) -> None:
        """Put the hyperparameters to the mean of their places in the present phase."""
        if self._positions:
            self._coordinates.write([torch.stack(places).mean(0) for places in zip(*self._positions, strict=True)])


def has_stalled(elbos: Sequence[float], patience: int) -> bool:
    """
    Whether the smoothed ELBO stayed within twice its noise or half a nat over ``patience`` epochs. A fall counts as
    change: too long a step of the hyperparameters makes it fall for a while.
    """
    if len(elbos) <= max(patience, 2):
        return False
    smoothed = [elbos[0]]
    for elbo in elbos[1:]:
        smoothed.append(0.5 * (elbo + smoothed[-1]))
    recent = smoothed[-1 - patience :]
    last = torch.tensor(elbos[-2 * max(patience, 2) :], dtype=torch.float64)
    # Second differences remove a linear trend; those of independent noise have six times its variance.
    noise = last.diff(n=2).abs().median().item() / (_MEDIAN_OF_NORMAL * math.sqrt(6.0))
    return max(recent) - min(recent) <= max(_NOTABLE_NATS, 2.0 * noise)
