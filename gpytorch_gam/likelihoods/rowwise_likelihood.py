"""Offsets and weights for any likelihood."""

from __future__ import annotations

from typing import Any

from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.likelihoods import Likelihood, _OneDimensionalLikelihood
from torch import Tensor
from torch.distributions import Distribution

from gpytorch_gam import _checks as checks

from .row_argument import OFFSET
from .row_arguments import RowArguments, takes_positional_arguments
from .row_arguments_likelihood import RowArgumentsLikelihood, with_offset


class RowwiseLikelihood(RowArgumentsLikelihood):
    """
    One of GPyTorch's likelihoods, or one of your own, with row-wise arguments ``offset``, which is added to the mean of
    the predictor before the likelihood sees it, and ``weights``, which multiply the rows' (expected) log-probabilities;
    see :class:`~gpytorch_gam.likelihoods.row_arguments_likelihood.RowArgumentsLikelihood`.

    The likelihood itself determines the accuracy of expectations. Further arguments are passed on if it reads them:
    ``noise`` for GPyTorch's Gaussian ones, and whatever your own methods name. Others are an error, as are misspelt
    ones. Likelihoods of this package have row-wise arguments of their own.

    :param likelihood: Any likelihood whose expected log-probabilities are one a row.
    :ivar likelihood: The same likelihood; its parameters are trained together with those of the model.
    :raises TypeError: If ``likelihood`` is not a likelihood, or takes weights already.

    Example:
        >>> likelihood = RowwiseLikelihood(gpytorch.likelihoods.BernoulliLikelihood())
        >>> loss = -gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(y))(model(x), y, weights=weights)
    """

    def __init__(self, likelihood: Likelihood) -> None:
        checks.likelihood(likelihood)
        read = RowArguments.read_by(likelihood)
        if "weights" in read.names:
            raise TypeError(f"{read.owner} takes offset and weights itself: use it as it is")
        super().__init__(max_plate_nesting=likelihood.max_plate_nesting)
        self.likelihood = likelihood
        self.has_analytic_marginal = likelihood.has_analytic_marginal
        names = dict.fromkeys(("offset", "weights", *read.names))
        self._read = RowArguments(f"{type(self).__name__} of {read.owner}", tuple(names), read.are_all)
        self._takes_positions = takes_positional_arguments(likelihood)

    @property
    def readable_arguments(self) -> RowArguments:
        """The row-wise arguments that the likelihood reads, offset and weights first."""
        return self._read

    def _expected(self, y: Tensor, function_dist: MultivariateNormal, offset: Any, *args: Any, **rows: Any) -> Tensor:
        return self.likelihood.expected_log_prob(y, _shifted(function_dist, offset), *args, **rows)

    def _log_expected(
        self, y: Tensor, function_dist: MultivariateNormal, offset: Any, *args: Any, **rows: Any
    ) -> Tensor:
        inner, function_dist = self.likelihood, _shifted(function_dist, offset)
        if type(inner).log_marginal is not _OneDimensionalLikelihood.log_marginal or not (args or rows):
            return inner.log_marginal(y, function_dist, *args, **rows)
        # GPyTorch's own does not hand further arguments to `forward`.
        return inner.quadrature(lambda f: inner(f, *args, **rows).log_prob(y).exp(), function_dist).log()

    def _predictive(
        self, function_dist: MultivariateNormal, offset: Any, weights: Any, *args: Any, **rows: Any
    ) -> Distribution:
        return self.likelihood(_shifted(function_dist, offset), *args, **rows)

    def _given(self, predictors: Tensor, offset: Any, weights: Any, *args: Any, **rows: Any) -> Distribution:
        shifted = predictors if offset is None else predictors + OFFSET.read(offset, predictors)
        return self.likelihood(shifted, *args, **rows)


def _shifted(function_dist: MultivariateNormal, offset: Tensor | float | None) -> MultivariateNormal:
    """The distribution with a shifted mean."""
    if offset is None:
        return function_dist
    mean, covariance = function_dist.mean, function_dist.lazy_covariance_matrix
    if isinstance(function_dist, MultitaskMultivariateNormal):
        return MultitaskMultivariateNormal(
            with_offset(mean, offset), covariance, interleaved=function_dist._interleaved
        )
    return type(function_dist)(mean + OFFSET.read(offset, mean), covariance)
