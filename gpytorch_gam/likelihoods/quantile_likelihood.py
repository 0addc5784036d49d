"""The likelihood for a conditional quantile."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import ClassVar

import torch
from gpytorch.constraints import Interval
from gpytorch.priors import Prior
from torch import Tensor

from gpytorch_gam import _checks as checks
from gpytorch_gam.distributions.asymmetric_laplace import AsymmetricLaplace
from gpytorch_gam.distributions.blurred_asymmetric_laplace import BlurredAsymmetricLaplace, blurred_log_prob
from gpytorch_gam.parameters.positive_constraint import positive

from ._settings_in_state import SettingsInState
from .null_model import NOISE_SHARE, NullModel, Responses
from .one_predictor_likelihood import OnePredictorLikelihood
from .predictor_likelihood import Values, learnt


class QuantileLikelihood(SettingsInState, OnePredictorLikelihood):
    r"""
    The predictor as the :math:`\tau`-quantile of the response, by an asymmetric Laplace density of learnt scale s:

    .. math::
        \log p(y_n | f_n) = \log \frac{\tau (1 - \tau)}{s} - \frac{1}{s} \rho_\tau(y_n - f_n), \qquad
        \rho_\tau(u) = u (\tau - 1_{u < 0}).

    Its maximum in f is the sample quantile, whatever the distribution of the responses. The expected loss for
    :math:`f_n \sim \mathcal N(m_n, v_n)` is a closed form, the normal loss integral: with
    :math:`z = (m_n - y_n) / \sqrt{v_n}`

    .. math::
        \mathbb E \rho_\tau = \tau (y_n - m_n) + \sqrt{v_n}\, \varphi(z) + (m_n - y_n) \Phi(z) .

    The density is a working likelihood, not a model of the responses, and ``likelihood(model(x))`` is the distribution
    of responses only as far as they have this density. The result of interest is ``model(x).mean``. As a likelihood it
    says too much about extreme quantiles: the variance of the predictor is about :math:`s / (n f)` where responses have
    the density f at the quantile, and that of a sample quantile :math:`\tau (1 - \tau) / (n f^2)`, for normal
    responses 1.6 times as large at :math:`\tau = .5`, 4.5 times at .95 and 14 times at .99. Bands are then too narrow,
    and curves too rough. A ``power`` below one makes expected log-probabilities smaller, and with them what a row
    tells: a power likelihood, or generalised posterior (`Bissiri et al., 2016
    <https://doi.org/10.1111/rssb.12158>`_). That of :meth:`normal_power` makes both variances the same for normal
    responses. With other responses bands have no guaranteed coverage; check them.

    Row-wise arguments: ``offset`` and ``weights``.

    :param quantile: The probability :math:`\tau`, between zero and one.
    :param batch_shape: Batch shape of the scale.
    :param scale_prior: Prior of the scale s.
    :param scale_constraint: Constraint of the scale s; default above 1e-4.
    :param power: The power of the likelihood, positive: the expected log-probabilities are multiplied by it.
    :ivar scale: The scale s, ``(*batch_shape, 1)``; initially 0.3.
    :raises ValueError: If ``quantile`` is outside of (0, 1), or ``power`` is not positive.

    Example:
        >>> likelihood = QuantileLikelihood(0.9)
        >>> loss = -gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(y))(model(x), y)
    """

    _settings: ClassVar[tuple[str, ...]] = ("quantile", "power")

    scale = learnt("scale", "The scale s, ``(*batch_shape, 1)``; can be set.")

    def __init__(
        self,
        quantile: float = 0.5,
        batch_shape: torch.Size = torch.Size([]),  # noqa: B008
        scale_prior: Prior | None = None,
        scale_constraint: Interval | None = None,
        power: float = 1.0,
    ) -> None:
        quantile = checks.number("quantile", quantile, above=0, below=1)
        power = checks.number("power", power, above=0)
        super().__init__()
        self.quantile, self.power = quantile, power
        self._learn("scale", 0.3, batch_shape, scale_constraint or positive(1e-4), scale_prior)

    def _log_prob(self, y: Tensor, f: Tensor, values: Values) -> Tensor:
        return AsymmetricLaplace(f, values["scale"], self.quantile).log_prob(y)

    def _expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor, values: Values) -> Tensor:
        deviation, above = variance.sqrt(), mean - y
        z = above / deviation
        density = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
        loss = deviation * density + above * (torch.special.ndtr(z) - self.quantile)
        log_factor = math.log(self.quantile * (1 - self.quantile)) - values["scale"].log()
        return self.power * (log_factor - loss / values["scale"])

    def _log_marginal(self, y: Tensor, mean: Tensor, variance: Tensor, values: Values) -> Tensor:
        return blurred_log_prob(y, mean, variance, values["scale"], self.quantile)

    def _marginal(self, mean: Tensor, variance: Tensor, values: Values) -> BlurredAsymmetricLaplace:
        return BlurredAsymmetricLaplace(mean, variance, values["scale"], self.quantile)

    def _conditional(self, f: Tensor, values: Values) -> AsymmetricLaplace:
        return AsymmetricLaplace(f, values["scale"], self.quantile)

    def _null_model(self, responses: Responses) -> NullModel:
        values = responses.without_offset
        quantile = responses.quantile(values, self.quantile)
        above = values - quantile
        loss = responses.mean(above * (self.quantile - (above < 0).double())) or 1.0
        scale = math.sqrt(NOISE_SHARE) * loss  # the maximum-likelihood estimate is the mean loss
        return NullModel([quantile], [responses.robust_variance(values)], {"scale": scale})

    @staticmethod
    def normal_power(quantile: float) -> float:
        r"""
        The power :math:`\varphi(z_\tau)^2 / (\tau (1 - \tau))` of a likelihood with which, for normal responses around
        the quantile, the variance of the predictor is that of a sample quantile: with their density
        :math:`f = \varphi(z_\tau) / \sigma` and the scale :math:`s = \sigma \varphi(z_\tau)` that fits them, the ratio
        of :math:`s / f` and :math:`\tau (1 - \tau) / f^2`.

        :param quantile: The probability :math:`\tau`, between zero and one.
        """
        density = math.exp(-0.5 * NormalDist().inv_cdf(quantile) ** 2) / math.sqrt(2 * math.pi)
        return density**2 / (quantile * (1 - quantile))
