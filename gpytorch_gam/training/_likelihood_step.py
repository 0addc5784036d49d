"""The parameters of a likelihood at their optimum for a fixed posterior."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import gpytorch
import torch
from gpytorch.likelihoods import Likelihood, _GaussianLikelihoodBase, _OneDimensionalLikelihood
from torch import Tensor

from gpytorch_gam.likelihoods.predictor_likelihood import PredictorLikelihood
from gpytorch_gam.optim.processes import Processes
from gpytorch_gam.optim.rows.likelihood_check import unwrapped
from gpytorch_gam.optim.rows.stream import Rows
from gpytorch_gam.parameters.log_scale import Coordinates

from ._quasi_newton import ObjectiveError, QuasiNewton
from .bound_gradients import log_prior, sum_over_processes

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

# Likelihoods whose expectations are not random samples, so that a line search makes sense.
_DETERMINISTIC = (PredictorLikelihood, _GaussianLikelihoodBase, _OneDimensionalLikelihood)

# Smallest predicted gain of a step in nats, and largest number of steps.
_GAIN, _MAX_STEPS = 0.1, 40

# Curvature of a row's log-likelihood assumed at the start: small, because rows have little information on tails.
_CURVATURE = 0.02


def fit_likelihood(
    model: gpytorch.models.ApproximateGP,
    likelihood: Likelihood,
    rows: Rows,
    num_data: int,
    process_group: ProcessGroup | None = None,
) -> None:
    """
    Move a likelihood's parameters to the maximum of the expected log-likelihood of some rows (of all processes) under
    the present posterior, plus their priors beside ``num_data`` rows. Kernels are evaluated once, so this is cheap.
    Likelihoods without trainable parameters, or with random expectations, are left as they are.
    """
    parameters = [parameter for parameter in likelihood.parameters() if parameter.requires_grad]
    if not parameters or not is_deterministic(likelihood):
        return
    processes = Processes(process_group)
    num_rows = sum(count for (count,) in processes.gather([len(rows.y)], parameters[0].device))
    with torch.no_grad():
        predictor = model(rows.x)

    def objective() -> Tensor:
        expected = likelihood.expected_log_prob(rows.y, predictor, **rows.row_arguments).double().sum()
        if not processes.is_alone:
            expected = sum_over_processes(processes, expected, parameters)
        return num_data / num_rows * expected + log_prior(likelihood)

    curvatures = [max(_CURVATURE * num_data, 1.0)] * len(parameters)
    ascent = QuasiNewton(parameters, curvatures, Coordinates(parameters, [likelihood]))
    with suppress(ObjectiveError):
        ascent.maximise(objective, _GAIN, _MAX_STEPS)


def is_deterministic(likelihood: Likelihood) -> bool:
    """Whether expectations are no random samples, as far as is known."""
    return isinstance(unwrapped(likelihood), _DETERMINISTIC)
