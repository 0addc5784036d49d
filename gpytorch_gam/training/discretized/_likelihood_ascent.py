"""The parameters of a likelihood that is not Gaussian, at fixed moments of the predictors in the rows."""

from __future__ import annotations

import math
from contextlib import suppress

import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import Likelihood
from linear_operator.operators import DiagLinearOperator
from torch import Tensor

from gpytorch_gam.parameters.log_scale import Coordinates

from .._quasi_newton import ObjectiveError, QuasiNewton
from ..bound_gradients import linear_function, log_prior
from ._data import DiscretizedData
from ._problem import largest

# Minus the second derivative of a row's log-likelihood that is assumed at the start: small, because rows have little
# information on tails.
_CURVATURE = 0.02

# Largest number of steps between two passes.
_MAX_STEPS = 30


class LikelihoodAscent:
    """
    Moves of a likelihood's parameters to the maximum of the expected log-likelihood, their priors included. The
    posterior stays, so that the kernels are not needed. ``limits`` bound the parameters' magnitudes.
    """

    def __init__(self, likelihood: Likelihood, data: DiscretizedData, limits: dict[int, float]) -> None:
        self._likelihood, self._data = likelihood, data
        self.parameters = [parameter for parameter in likelihood.parameters() if parameter.requires_grad]
        self._ascent = QuasiNewton(
            self.parameters,
            [max(_CURVATURE * data.num_rows, 1.0)] * len(self.parameters),
            Coordinates(self.parameters, [likelihood]),
            [limits.get(id(parameter), math.inf) for parameter in self.parameters],
        )

    @property
    def evaluations(self) -> int:
        """Number of evaluations so far."""
        return self._ascent.evaluations

    @property
    def gradient(self) -> float:
        """The largest derivative where the last move ended."""
        return largest(self._ascent.gradient)

    def maximise(self, mean: Tensor, variance: Tensor, nats: float) -> None:
        """Move until a step promises less than ``nats``, at moments ``(n,)`` of the predictor with its offset."""
        if self.parameters:
            with suppress(ObjectiveError):
                self._ascent.maximise(lambda: self._objective(mean, variance), nats, _MAX_STEPS)

    def _objective(self, mean: Tensor, variance: Tensor) -> Tensor:
        """The expected log-likelihood, differentiable once: a chunk of rows has a graph at a time."""
        dtype = self.parameters[0].dtype

        def differentiate(rows: slice) -> tuple[Tensor, ...]:
            with torch.enable_grad():
                predictors = MultivariateNormal(mean[rows].to(dtype), DiagLinearOperator(variance[rows].to(dtype)))
                arguments = {name: value[rows] for name, value in self._data.arguments.items()}
                expected = self._likelihood.expected_log_prob(self._data.responses[rows], predictors, **arguments)
                total = self._data.sum_weighted(expected.double(), rows)
                found = torch.autograd.grad(total, self.parameters, allow_unused=True)
            pairs = zip(found, self.parameters, strict=True)
            return total.detach(), *(torch.zeros_like(p) if g is None else g for g, p in pairs)

        total, *gradients = (
            torch.stack(parts).sum(0) for parts in zip(*self._data.map_rows(differentiate), strict=True)
        )
        return linear_function(total, gradients, self.parameters) + log_prior(self._likelihood)
