"""Responses with outliers."""

from __future__ import annotations

import math

import torch
from gpytorch.constraints import Interval
from gpytorch.priors import Prior
from torch import Tensor
from torch.distributions import StudentT

from gpytorch_gam.numerics.student_t import blurred_student_t_log_density, expected_log1p_square
from gpytorch_gam.parameters.positive_constraint import positive

from .null_model import NullModel, Responses, heavy_tailed
from .one_predictor_likelihood import OnePredictorLikelihood
from .predictor_likelihood import Values, learnt

# The width, in scales, within which nodes for the distribution function have to lie densely, as its singularities are
# at a distance of the root of the degrees of freedom.
_CDF_WIDTH = 0.5


class StudentTLikelihood(OnePredictorLikelihood):
    r"""
    Responses with Student-t noise, for data with outliers:

    .. math::
        y_n = f_n + o_n + \sigma \varepsilon_n, \qquad \varepsilon_n \sim t_\nu ,

    with learnt :math:`\sigma^2` (``noise``) and degrees of freedom :math:`\nu`. Parameters are named as in GPyTorch's
    likelihood, whose 20 Gauss-Hermite nodes leave errors of up to .2 nats a row where the variance of the predictor
    exceeds the noise (variance 1, noise .01, :math:`\nu = 3`), as it does early in training, and whose predictions are
    random samples. Here expected and marginal log-probabilities have errors below 1e-6 nats up to a variance of the
    predictor that is 1e10 times the noise, in all residuals. The density is not log-concave.

    Row-wise arguments: ``offset`` and ``weights``.

    :param batch_shape: Batch shape of the parameters.
    :param deg_free_prior: Prior of :math:`\nu`.
    :param deg_free_constraint: Constraint of :math:`\nu`; default above 2, where the variance exists.
    :param noise_prior: Prior of :math:`\sigma^2`.
    :param noise_constraint: Constraint of :math:`\sigma^2`; default above 1e-4.
    :ivar deg_free: The degrees of freedom :math:`\nu`, ``(*batch_shape, 1)``; initially 7.
    :ivar noise: The squared scale :math:`\sigma^2`, ``(*batch_shape, 1)``; initially 0.5. The variance of the responses
        is :math:`\sigma^2 \nu / (\nu - 2)`.

    Example:
        >>> likelihood = StudentTLikelihood()
        >>> loss = -gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(y))(model(x), y)
    """

    deg_free = learnt("deg_free", r":math:`\nu`, ``(*batch_shape, 1)``; can be set.")
    noise = learnt("noise", r":math:`\sigma^2`, ``(*batch_shape, 1)``; can be set.")

    def __init__(
        self,
        batch_shape: torch.Size = torch.Size([]),  # noqa: B008
        deg_free_prior: Prior | None = None,
        deg_free_constraint: Interval | None = None,
        noise_prior: Prior | None = None,
        noise_constraint: Interval | None = None,
    ) -> None:
        super().__init__()
        self._learn("deg_free", 7.0, batch_shape, deg_free_constraint or positive(2.0), deg_free_prior)
        self._learn("noise", 0.5, batch_shape, noise_constraint or positive(1e-4), noise_prior)

    def _log_prob(self, y: Tensor, f: Tensor, values: Values) -> Tensor:
        degrees, noise = values["deg_free"], values["noise"]
        constant = log_normaliser(degrees) - 0.5 * noise.log()
        return constant - 0.5 * (degrees + 1) * torch.log1p((y - f).square() / (degrees * noise))

    def _expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor, values: Values) -> Tensor:
        degrees, noise = values["deg_free"], values["noise"]
        tail = expected_log1p_square((y - mean).square() / (degrees * noise), variance / (degrees * noise))
        return log_normaliser(degrees) - 0.5 * noise.log() - 0.5 * (degrees + 1) * tail

    def _log_marginal(self, y: Tensor, mean: Tensor, variance: Tensor, values: Values) -> Tensor:
        return blurred_student_t_log_density(y - mean, variance, values["deg_free"], values["noise"])

    def _marginal_cdf(self, y: Tensor, mean: Tensor, variance: Tensor, values: Values) -> Tensor:
        scale = values["noise"].sqrt()
        return self._expected_cdf(_cdf, [y, values["deg_free"], scale], (y, _CDF_WIDTH * scale), mean, variance)

    def _conditional(self, f: Tensor, values: Values) -> StudentT:
        degrees, f, scale = torch.broadcast_tensors(values["deg_free"], f, values["noise"].sqrt())
        return StudentT(degrees, f, scale, validate_args=False)

    def _null_model(self, responses: Responses) -> NullModel:
        return heavy_tailed(responses)


def log_normaliser(deg_free: Tensor) -> Tensor:
    """The logarithm of the density of Student's standard distribution at zero."""
    return torch.lgamma(0.5 * (deg_free + 1)) - torch.lgamma(0.5 * deg_free) - 0.5 * (math.pi * deg_free).log()


@torch.no_grad()
def _cdf(f: Tensor, y: Tensor, deg_free: Tensor, scale: Tensor) -> Tensor:
    """The distribution function given f, without gradients."""
    from scipy.special import stdtr  # here, because it takes long to import

    degrees, distance = torch.broadcast_tensors(deg_free, (y - f) / scale)
    return torch.from_numpy(stdtr(degrees.cpu().numpy(), distance.cpu().numpy())).to(distance)
