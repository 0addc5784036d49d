"""The sizes of natural-gradient steps."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

# Number of steps after which the step size has halved, by default and when natural parameters are averaged.
_HALVING, _AVERAGING_HALVING = 10.0, 3.0

# Least size of a step that sees all rows, with several predictors: the full steps that one predictor takes are too
# long where log-likelihoods are not concave.
_LEAST_JOINT_STEP = 0.3


class StepSchedule(NamedTuple):
    """The step size as a function of the steps taken and rows seen."""

    lr: float | None  # a fixed size
    averaging: bool
    tolerance: float  # nats that the noise of batches may cost
    num_data: int
    has_several_predictors: bool

    def forgets(self, step: int, num_rows: int) -> bool:
        """Whether the step size is 1, so that nothing of the old posterior remains."""
        if self.lr is not None:
            return self.lr == 1
        return step == 0 or (num_rows >= self.num_data and not self.has_several_predictors)

    def size(self, step: int, num_rows: int, largest_batch: int, effective_dimension: Tensor | None) -> Tensor | float:
        """
        The step size r after ``step`` steps. Unless it is fixed, it is a float64 scalar on the device of the effective
        dimension.
        """
        if self.lr is not None and not 0 <= self.lr <= 1:
            raise ValueError(f"lr must lie in [0, 1], got {self.lr!r} in the parameter group")
        if self.lr is not None or self.forgets(step, num_rows):
            return 1.0 if self.lr is None else self.lr
        scheduled = 1.0 / (1.0 + step / (_AVERAGING_HALVING if self.averaging else _HALVING))
        # A batch that is small beside the others, such as an epoch's last, is noisier and moves less.
        scheduled *= num_rows / largest_batch
        if self.averaging:
            return scheduled
        # The step size r at which noise costs r / 4 (N / b - 1) effdim = tolerance.
        assert effective_dimension is not None
        unseen = max(0, self.num_data - num_rows)
        floor = 4.0 * self.tolerance * num_rows / (unseen * effective_dimension)
        if self.has_several_predictors:
            floor = floor.clamp(max=_LEAST_JOINT_STEP)
        return floor.clamp(scheduled, 1.0)
