"""The parameters of a likelihood that is not Gaussian, at fixed moments of the predictors in the rows."""

from __future__ import annotations

import functools
from contextlib import suppress

import torch
from gpytorch.likelihoods import Likelihood
from linear_operator.operators import DiagLinearOperator
from torch import Tensor

from gpytorch_gam.distributions.marginal_normal import MarginalNormal
from gpytorch_gam.optim.processes import Processes
from gpytorch_gam.parameters.log_scale import Coordinates

from .._hyperparameters import largest, limits_of
from .._quasi_newton import ObjectiveError, QuasiNewton
from ..bound_gradients import linear_function, log_prior
from ._chunks import chunks, in_threads
from ._tabulated_gradients import WeightedRows

# Minus the second derivative of a row's log-likelihood that is assumed at the start: small, because rows have little
# information on tails.
_CURVATURE = 0.02

# Largest number of steps between two passes.
_MAX_STEPS = 30


class LikelihoodAscent:
    """
    Moves of a likelihood's parameters to the maximum of the expected log-likelihood, their priors included. The
    posterior stays, so that the kernels are not needed. All ``processes`` move them together, each with its rows.
    """

    def __init__(
        self, likelihood: Likelihood, num_rows: float, num_threads: int = 1, processes: Processes | None = None
    ) -> None:
        self._likelihood, self._num_threads = likelihood, num_threads
        self._processes = Processes(None) if processes is None else processes
        self.parameters = [parameter for parameter in likelihood.parameters() if parameter.requires_grad]
        self._ascent = QuasiNewton(
            self.parameters,
            [max(_CURVATURE * num_rows, 1.0)] * len(self.parameters),
            Coordinates(self.parameters, [likelihood]),
            limits_of(self.parameters, likelihood),
        )

    @property
    def evaluations(self) -> int:
        """Number of evaluations so far."""
        return self._ascent.evaluations

    @property
    def gradient(self) -> float:
        """The largest derivative where the last move ended."""
        return largest(self._ascent.gradient)

    def maximise(self, rows: WeightedRows, nats: float) -> None:
        """Move until a step promises less than ``nats``, at moments of the predictor with its offset."""
        with suppress(ObjectiveError):
            self._ascent.maximise(lambda: self.objective(rows), nats, _MAX_STEPS)

    def objective(self, rows: WeightedRows) -> Tensor:
        """The expected log-likelihood, differentiable once: a chunk of rows has a graph at a time."""
        jobs = [functools.partial(self._differentiate, rows.chunk(part)) for part in chunks(len(rows.mean))]
        with self._processes.sharing_errors("evaluate its likelihood", rows.mean.device):
            found = zip(*in_threads(jobs, self._num_threads), strict=True)
        total, *gradients = self._processes.sum([torch.stack(parts).sum(0) for parts in found])
        return linear_function(total, gradients, self.parameters) + log_prior(self._likelihood)

    def _differentiate(self, rows: WeightedRows) -> tuple[Tensor, ...]:
        dtype = self.parameters[0].dtype
        with torch.enable_grad():
            predictors = MarginalNormal(rows.mean.to(dtype), DiagLinearOperator(rows.variance.to(dtype)))
            expected = self._likelihood.expected_log_prob(rows.responses, predictors, **rows.arguments).double()
            total = expected.sum() if rows.weights is None else rows.weights @ expected
            found = torch.autograd.grad(total, self.parameters, allow_unused=True)
        pairs = zip(found, self.parameters, strict=True)
        return total.detach(), *(torch.zeros_like(p) if g is None else g for g, p in pairs)
