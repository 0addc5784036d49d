"""Offsets and weights for any likelihood."""

from __future__ import annotations

import inspect
from typing import Any

from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.likelihoods import Likelihood
from torch import Tensor
from torch.distributions import Distribution

from ._joint_likelihood import with_offset
from ._row_arguments import row_vector, weighted


class RowwiseLikelihood(Likelihood):
    """
    One of GPyTorch's likelihoods, or one of your own, with row-wise arguments ``offset`` and ``weights``, given by
    keyword to the objective (``mll(model(x), y, weights=weights)``), the likelihood and its methods.

    - ``offset`` is added to the mean of the predictor before the likelihood sees it. With P predictors, ``(*batch, n)``
      is for the first one, ``(*batch, n, P)`` for each.
    - ``weights``, not negative, multiply the rows' (expected) log-probabilities. With ``num_data`` the number of rows,
      integer weights give the bound of repeated rows in total nats. Predictions do not depend on them.

    All else is the likelihood's: how accurate its expectations are, and what it makes of further arguments, which are
    passed on. (GPyTorch's likelihoods that work by quadrature do not hand them to ``forward`` in ``log_marginal``.)
    Likelihoods of this package have row-wise arguments of their own.

    :param likelihood: Any likelihood whose expected log-probabilities are one a row.
    :ivar likelihood: The same; its parameters are trained with the model's.
    :raises TypeError: If it is not a likelihood, or takes weights already.

    Example:
        >>> likelihood = RowwiseLikelihood(gpytorch.likelihoods.BernoulliLikelihood())
        >>> loss = -gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(y))(model(x), y, weights=weights)
    """

    def __init__(self, likelihood: Likelihood) -> None:
        if not isinstance(likelihood, Likelihood):
            raise TypeError(f"likelihood must be a GPyTorch likelihood, got {type(likelihood).__name__}")
        if "weights" in inspect.signature(likelihood.expected_log_prob).parameters:
            raise TypeError(f"{type(likelihood).__name__} takes offset and weights itself: use it as it is")
        super().__init__(max_plate_nesting=likelihood.max_plate_nesting)
        self.likelihood = likelihood
        self.has_analytic_marginal = likelihood.has_analytic_marginal

    def expected_log_prob(
        self,
        observations: Tensor,
        function_dist: MultivariateNormal,
        *args: Any,
        offset: Tensor | float | None = None,
        weights: Tensor | float | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """
        Weighted expected log-probabilities under the shifted predictor.

        :param observations: Responses, as the likelihood takes them.
        :param function_dist: Of the predictor or predictors.
        :param args: Passed on.
        :param offset: Added to the predictor.
        :param weights: Of the rows.
        :param kwargs: Passed on.
        :return: ``(*batch, n)``.
        :raises TypeError: If offset or weights are not numbers.
        :raises ValueError: If their shapes, devices or values do not fit.
        """
        shifted = _shifted(function_dist, offset)
        value = self.likelihood.expected_log_prob(observations, shifted, *args, **kwargs)
        return _weighted_rows(value, weights)

    def log_marginal(
        self,
        observations: Tensor,
        function_dist: MultivariateNormal,
        *args: Any,
        offset: Tensor | float | None = None,
        weights: Tensor | float | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """
        Weighted log-marginals under the shifted predictor; parameters as for :meth:`expected_log_prob`.

        :param observations: Responses, as the likelihood takes them.
        :param function_dist: Of the predictor or predictors.
        :param args: Passed on.
        :param offset: Added to the predictor.
        :param weights: Of the rows.
        :param kwargs: Passed on.
        :return: ``(*batch, n)``.
        """
        value = self.likelihood.log_marginal(observations, _shifted(function_dist, offset), *args, **kwargs)
        return _weighted_rows(value, weights)

    def marginal(
        self,
        function_dist: MultivariateNormal,
        *args: Any,
        offset: Tensor | float | None = None,
        weights: Tensor | float | None = None,
        **kwargs: Any,
    ) -> Distribution:
        """
        The likelihood's own distribution of responses under the shifted predictor.

        :param function_dist: Of the predictor or predictors.
        :param args: Passed on.
        :param offset: Added to the predictor.
        :param weights: Without effect.
        :param kwargs: Passed on.
        """
        return self.likelihood(_shifted(function_dist, offset), *args, **kwargs)

    def forward(
        self,
        function_samples: Tensor,
        *args: Any,
        offset: Tensor | float | None = None,
        weights: Tensor | float | None = None,
        **kwargs: Any,
    ) -> Distribution:
        """
        The likelihood's own distribution of responses given shifted values of the predictor.

        :param function_samples: Values of the predictor, ``(*sample, *batch, n)``.
        :param args: Passed on.
        :param offset: Added to them, of one value a row.
        :param weights: Without effect.
        :param kwargs: Passed on.
        """
        shift = row_vector("offset", offset, function_samples)
        return self.likelihood(function_samples if shift is None else function_samples + shift, *args, **kwargs)


def _shifted(function_dist: MultivariateNormal, offset: Tensor | float | None) -> MultivariateNormal:
    if offset is None:
        return function_dist
    mean, covariance = function_dist.mean, function_dist.lazy_covariance_matrix
    if isinstance(function_dist, MultitaskMultivariateNormal):
        return MultitaskMultivariateNormal(
            with_offset(mean, offset), covariance, interleaved=function_dist._interleaved
        )
    shift = row_vector("offset", offset, mean)
    assert shift is not None
    return type(function_dist)(mean + shift, covariance)


def _weighted_rows(value: Tensor, weights: Tensor | float | None) -> Tensor:
    return weighted(value, row_vector("weights", weights, value, nonnegative=True))
