"""Offsets and weights for any likelihood."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.likelihoods import Likelihood, _OneDimensionalLikelihood
from torch import Tensor
from torch.distributions import Distribution

from gpytorch_gam import _checks as checks

from .joint_likelihood import with_offset
from .row_arguments import refuse_positional, row_arguments, row_vector, takes_positional_arguments, weighted


class RowwiseLikelihood(Likelihood):
    """
    One of GPyTorch's likelihoods, or one of your own, with row-wise arguments ``offset`` and ``weights``, given by
    keyword to the objective (``mll(model(x), y, weights=weights)``), the likelihood and its methods.

    - ``offset`` is added to the mean of the predictor before the likelihood sees it. With P predictors, ``(*batch, n)``
      is for the first one, ``(*batch, n, P)`` for each.
    - ``weights``, not negative, multiply the rows' (expected) log-probabilities. With ``num_data`` the number of rows,
      integer weights give the bound of repeated rows in total nats. Predictions do not depend on them.

    All else is the likelihood's: how accurate its expectations are, and what it makes of further arguments, which are
    passed on if it reads them: ``noise`` by GPyTorch's Gaussian ones, and whatever the methods of your own name. Others
    are an error, as are misspelt ones. Likelihoods of this package have row-wise arguments of their own.

    :param likelihood: Any likelihood whose expected log-probabilities are one a row.
    :ivar likelihood: The same; its parameters are trained with the model's.
    :raises TypeError: If it is not a likelihood, or takes weights already.

    Example:
        >>> likelihood = RowwiseLikelihood(gpytorch.likelihoods.BernoulliLikelihood())
        >>> loss = -gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(y))(model(x), y, weights=weights)
    """

    def __init__(self, likelihood: Likelihood) -> None:
        checks.likelihood(likelihood)
        read = row_arguments(likelihood)
        if "weights" in read.names:
            raise TypeError(f"{type(likelihood).__name__} takes offset and weights itself: use it as it is")
        super().__init__(max_plate_nesting=likelihood.max_plate_nesting)
        self.likelihood = likelihood
        self.has_analytic_marginal = likelihood.has_analytic_marginal
        self._read, self._reads_positions = read.and_also("offset", "weights"), takes_positional_arguments(likelihood)

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
        :raises TypeError: If offset or weights are not numbers, or another argument is not read by the likelihood.
        :raises ValueError: If their shapes, devices or values do not fit.
        """
        self._check(args, kwargs)
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
        self._check(args, kwargs)
        value = self._log_marginal(observations, _shifted(function_dist, offset), *args, **kwargs)
        return _weighted_rows(value, weights)

    def _log_marginal(
        self, observations: Tensor, function_dist: MultivariateNormal, *args: Any, **kwargs: Any
    ) -> Tensor:
        inner = self.likelihood
        if type(inner).log_marginal is not _OneDimensionalLikelihood.log_marginal or not (args or kwargs):
            return inner.log_marginal(observations, function_dist, *args, **kwargs)
        # GPyTorch's own does not hand further arguments to `forward`.
        return inner.quadrature(lambda f: inner(f, *args, **kwargs).log_prob(observations).exp(), function_dist).log()

    def _check(self, args: Sequence[Any], names: Iterable[str]) -> None:
        name = f"{type(self).__name__} of {type(self.likelihood).__name__}"
        if not self._reads_positions:
            refuse_positional(name, args)
        self._read.refuse_others(name, names)

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
        self._check(args, kwargs)
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
        self._check(args, kwargs)
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
