"""The prior of an additive predictor, to which a model's ``forward`` may add a mean."""

from __future__ import annotations

import numbers
from typing import Any

import torch
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from linear_operator.operators import LinearOperator
from torch import Tensor


class _WithMeansAdded(MultivariateNormal):
    """A normal distribution to which tensors of means can be added as well as numbers."""

    def _with_mean(self, mean: Tensor) -> MultivariateNormal:
        raise NotImplementedError

    def __add__(self, other: Any) -> MultivariateNormal:
        if not _is_mean(other):
            return super().__add__(other)
        return self._with_mean(shifted(self.mean, other, len(self.event_shape)))

    def __radd__(self, other: Any) -> MultivariateNormal:
        return self + other if _is_mean(other) else super().__radd__(other)

    def __sub__(self, other: Any) -> MultivariateNormal:
        return self + (-other)


class PriorNormal(_WithMeansAdded):
    """The prior of one predictor at n rows, to which a tensor of means can be added as well as a number."""

    def _with_mean(self, mean: Tensor) -> MultivariateNormal:
        return PriorNormal(mean, self.lazy_covariance_matrix)


class MultitaskPriorNormal(_WithMeansAdded, MultitaskMultivariateNormal):
    """The prior of P predictors at n rows, to which a tensor or a number can be added."""

    def __init__(
        self,
        mean: Tensor,
        covariance_matrix: Tensor | LinearOperator,
        validate_args: bool = False,
        interleaved: bool = True,
    ) -> None:
        super().__init__(mean, covariance_matrix, validate_args=validate_args, interleaved=interleaved)

    def _with_mean(self, mean: Tensor) -> MultivariateNormal:
        return MultitaskPriorNormal(mean, self.lazy_covariance_matrix, interleaved=self._interleaved)


def _is_mean(other: Any) -> bool:
    return torch.is_tensor(other) or isinstance(other, numbers.Real)


def shifted(mean: Tensor, shift: Tensor | float, num_event_dims: int) -> Tensor:
    """
    A mean ``(*batch, *event)`` plus a number or a tensor that broadcasts to it. Further rows are a ValueError, as those
    of a column (n, 1) beside n values would be, which torch takes for n batches.
    """
    event = mean.shape[-num_event_dims:]
    own = torch.Size() if not torch.is_tensor(shift) else shift.shape
    fits = len(own) <= num_event_dims or own[-num_event_dims:] == event
    try:
        fits = fits and torch.broadcast_shapes(mean.shape, own)[-num_event_dims:] == event
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(
            f"cannot add a tensor of shape {tuple(own)} to a prior of shape {tuple(mean.shape)}: give it one value a "
            f"row, shape {tuple(event)} (for a column (n, 1), such as a torch.nn.Linear returns: .squeeze(-1))"
        )
    return mean + shift
