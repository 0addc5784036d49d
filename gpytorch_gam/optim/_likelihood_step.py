"""Parameters of a likelihood at their optimum for a posterior."""

from __future__ import annotations

from contextlib import suppress

import gpytorch
import torch
from gpytorch.likelihoods import Likelihood, _GaussianLikelihoodBase, _OneDimensionalLikelihood
from torch import Tensor

from gpytorch_gam._log_scale import Coordinates
from gpytorch_gam.likelihoods._joint_likelihood import _JointLikelihood
from gpytorch_gam.likelihoods._one_predictor_likelihood import OnePredictorLikelihood

from ._data_stream import Rows
from ._likelihood_check import unwrapped
from ._quasi_newton import ObjectiveError, QuasiNewton

# Those whose expectations are no random samples, so that a line search makes sense.
_DETERMINISTIC = (OnePredictorLikelihood, _JointLikelihood, _GaussianLikelihoodBase, _OneDimensionalLikelihood)

# Nats that a step promises at least, and the number of steps.
_GAIN, _MAX_STEPS = 0.1, 40

# What a row says of a parameter, as the curvature of its log-likelihood, to begin with: little, as of tails.
_CURVATURE = 0.02


def fit_likelihood(model: gpytorch.models.ApproximateGP, likelihood: Likelihood, rows: Rows, num_data: int) -> None:
    """
    Move the parameters of a likelihood to where the expected log-likelihood of some rows, under the present posterior,
    and their priors are largest. The kernels are not evaluated but once, so this costs little.

    :param model: With a posterior that has seen the data.
    :param likelihood: Of the data; nothing is done where it has no trainable parameters, or draws random numbers.
    :param rows: A batch.
    :param num_data: Number of all rows, beside which the priors count.
    """
    parameters = [parameter for parameter in likelihood.parameters() if parameter.requires_grad]
    if not parameters or not isinstance(unwrapped(likelihood), _DETERMINISTIC):
        return
    with torch.no_grad():
        predictor = model(rows.x)

    def objective() -> Tensor:
        expected = likelihood.expected_log_prob(rows.y, predictor, **rows.parameters).double().sum()
        return num_data / len(rows.y) * expected + _log_prior(likelihood)

    curvatures = [max(_CURVATURE * num_data, 1.0)] * len(parameters)
    ascent = QuasiNewton(parameters, curvatures, Coordinates(parameters, [likelihood]))
    with suppress(ObjectiveError):
        ascent.maximise(objective, _GAIN, _MAX_STEPS)


def _log_prior(likelihood: Likelihood) -> Tensor | float:
    return sum(prior.log_prob(closure(owner)).sum() for _, owner, prior, closure, _ in likelihood.named_priors())
