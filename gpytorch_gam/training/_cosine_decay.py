"""Rates of Adam over a number of epochs that is given."""

from __future__ import annotations

import math


class CosineDecay:
    """Rates that fall along a cosine over ``num_epochs``, from when the hyperparameters begin to move."""

    def __init__(self, num_epochs: int, lr: float) -> None:
        self._num_epochs, self._lr = num_epochs, lr
        self._num_done = self._num_still = 0

    @property
    def is_over(self) -> bool:
        """Whether there is no further epoch."""
        return self._num_done == self._num_epochs

    @property
    def reason(self) -> str:
        """Why training ends."""
        return f"{self._num_done} epochs were taken"

    @property
    def rate(self) -> float:
        """Adam's rate for the next epoch."""
        share = (self._num_done - self._num_still) / (self._num_epochs - self._num_still)
        return 0.5 * self._lr * (1.0 + math.cos(math.pi * share))

    def add(self, elbo: float, num_steps: int, is_moving: bool) -> None:
        """Take note of an epoch, at whose end the hyperparameters were moving or still held back."""
        self._num_done += 1
        self._num_still += not is_moving

    def finish(self) -> None:
        """Nothing is left to do: the last rates are small."""
