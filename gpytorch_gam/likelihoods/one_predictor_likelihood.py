"""The base class of the likelihoods of one predictor, with expectations by quadrature."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from gpytorch.distributions import MultivariateNormal
from torch import Tensor
from torch.distributions import Distribution

from gpytorch_gam.distributions.expected_cdf import expected_cdf
from gpytorch_gam.distributions.predictor_distribution import PredictorMoments
from gpytorch_gam.distributions.response_mixture import ResponseMixture
from gpytorch_gam.numerics.quadrature import (
    NormalRule,
    equispaced_rule,
    expectation,
    focused_rule,
    log_expectation,
    product_rule,
)

from .predictor_likelihood import PredictorLikelihood, Values
from .row_argument import OFFSET


class OnePredictorLikelihood(PredictorLikelihood):
    """
    A likelihood :math:`p(y_n | f_n)` of one predictor with row-wise arguments, see :class:`RowArgumentsLikelihood`.

    Expected log-probabilities are closed forms or quadratures with errors below 1e-6 nats; both are computed in float64
    and rounded to the model's dtype. ``likelihood(model(x))`` is deterministic: it is the distribution of new responses
    in independent rows, with ``mean`` and ``variance`` by quadrature, and exact ``sample`` and ``log_prob``.

    Responses, ``(*batch, n)``, may be of any real dtype. They are checked on the CPU while ``gpytorch.settings.debug``
    is on.
    """

    num_predictors = 1
    _is_double: ClassVar[bool] = True
    #: The number of nodes for expected log-probabilities, and for marginal ones, whose integrand can be sharp.
    _num_nodes: ClassVar[int] = 40
    _num_marginal_nodes: ClassVar[int] = 64
    #: The distribution function of new responses from y, mean, variance and values, where nodes are too few for it.
    _marginal_cdf: Callable[..., Tensor] | None = None

    @abstractmethod
    def _log_prob(self, y: Tensor, f: Tensor, values: Values) -> Tensor:
        """``log p(y | f)`` in float64, elementwise; ``f`` may have more leading dimensions."""

    def _bend(self, y: Tensor, values: Values) -> tuple[Tensor, Tensor]:
        """Place and width of the bend of ``log p(y | f)`` in f, for quadratures, broadcasting to ``(*batch, n)``."""
        raise NotImplementedError

    def _expected_log_prob(self, y: Tensor, mean: Tensor, variance: Tensor, values: Values) -> Tensor:
        rule = self._bend_rule(y, mean, variance, values, self._num_nodes)
        return expectation(lambda f: self._log_prob(y, f, values), mean, variance, rule)

    def _log_marginal(self, y: Tensor, mean: Tensor, variance: Tensor, values: Values) -> Tensor:
        rule = self._marginal_rule(y, mean, variance, values)
        return log_expectation(lambda f: self._log_prob(y, f, values), mean, variance, rule)

    def _marginal_rule(self, y: Tensor, mean: Tensor, variance: Tensor, values: Values) -> NormalRule:
        return product_rule(lambda f: self._log_prob(y, f, values), mean, variance, self._num_marginal_nodes)

    def _marginal(self, mean: Tensor, variance: Tensor, values: Values) -> Distribution:
        rule = equispaced_rule(self._num_nodes, mean)
        return ResponseMixture(mean, variance, self._conditional, values, rule, self._log_marginal, self._marginal_cdf)

    def _expected_cdf(
        self,
        cdf: Callable[..., Tensor],
        arguments: Sequence[Tensor],
        fall: tuple[Tensor, Tensor],
        mean: Tensor,
        variance: Tensor,
    ) -> Tensor:
        """The expectation of a distribution function of f and arguments that falls at some place over some width."""
        return expected_cdf(cdf, arguments, fall, mean, variance, self._num_marginal_nodes)

    def _bend_rule(self, y: Tensor, mean: Tensor, variance: Tensor, values: Values, num_nodes: int) -> NormalRule:
        with torch.no_grad():
            place, width = self._bend(y, values)
            deviation = variance.sqrt()
            centre, width = torch.broadcast_tensors((place - mean) / deviation, width / deviation)
            return focused_rule(centre, width, num_nodes)

    def _moments(self, function_dist: MultivariateNormal) -> PredictorMoments:
        if len(function_dist.event_shape) != 1:
            raise ValueError(
                f"{type(self).__name__} takes one predictor, but the distribution has event shape "
                f"{tuple(function_dist.event_shape)}: take a likelihood of several predictors"
            )
        return PredictorMoments(function_dist.mean, function_dist.variance)

    def _in_rows(self, predictors: Tensor) -> Tensor:
        return predictors

    def _shifted(self, predictors: Tensor, offset: Any) -> Tensor:
        return predictors if offset is None else predictors + OFFSET.read(offset, predictors)
