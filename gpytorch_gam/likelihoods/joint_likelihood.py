"""What likelihoods of several predictors have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import gpytorch
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import Likelihood
from torch import Tensor
from torch.distributions import Distribution

from gpytorch_gam.distributions.predictor_distribution import PredictorMoments, row_moments

from ._joint_expectation import row_cholesky
from .row_arguments import RowArguments, check_responses, refuse_positional, row_vector, weighted


class _JointLikelihood(Likelihood):
    """
    A likelihood whose distribution in each row has P predictors for its parameters.

    Expectations are taken under the **joint** Gaussian of a row's predictors, in train and eval mode alike. (GPyTorch's
    generic ones sample from independent marginals in train mode; called on this class they sample jointly.) What a
    subclass defines comes first below; arguments are read and checked here.

    :param num_predictors: Number P of predictors.
    """

    # Row-wise arguments, beside offset and weights, that a subclass reads: positive numbers.
    _positive_row_arguments: tuple[str, ...] = ()

    def __init__(self, num_predictors: int) -> None:
        super().__init__()
        self._num_predictors = num_predictors

    @property
    def num_predictors(self) -> int:
        """Number P of predictors."""
        return self._num_predictors

    @property
    def row_arguments(self) -> tuple[str, ...]:
        """Names of the row-wise arguments."""
        return ("offset", "weights", *self._positive_row_arguments)

    # ------------------------------------------------------------------ what a subclass says

    @abstractmethod
    def _parameters_given(self, predictors: Tensor, **row: Tensor) -> tuple[Tensor, ...]:
        """
        Parameters of the distribution given the predictors, as :meth:`_conditional` takes them.

        :param predictors: ``(..., n, P)``.
        """

    @staticmethod
    @abstractmethod
    def _conditional(*parameters: Tensor) -> Distribution:
        """The distribution from its parameters, with batch shape ``(..., n)``."""

    @abstractmethod
    def _expected_log_prob(self, observations: Tensor, moments: PredictorMoments, **row: Tensor) -> Tensor:
        """Expected log-probabilities ``(*batch, n)`` of responses ``(*batch, n)`` in the dtype of the moments."""

    @abstractmethod
    def _log_marginal(self, observations: Tensor, moments: PredictorMoments, **row: Tensor) -> Tensor:
        """Logs of expected probabilities, ``(*batch, n)``."""

    @abstractmethod
    def _marginal(self, moments: PredictorMoments, **row: Tensor) -> Distribution:
        """The predictive distribution, with batch shape ``(*batch, n)``."""

    def _check_values(self, observations: Tensor) -> None:
        """Raise an error for responses that the likelihood cannot have; see ``refuse_rows``."""

    # ------------------------------------------------------------------ what GPyTorch calls

    def expected_log_prob(
        self,
        observations: Tensor,
        function_dist: MultivariateNormal,
        *args: Any,
        offset: Tensor | float | None = None,
        weights: Tensor | float | None = None,
        **row: Any,
    ) -> Tensor:
        """
        Expected log-probability of each row under the joint Gaussian of its predictors.

        :param observations: ``(*batch, n)``.
        :param function_dist: Of P predictors at n rows.
        :param offset: Added to the first predictor, ``(*batch, n)``, or to each, ``(*batch, n, P)``.
        :param weights: Multiply the result, ``(*batch, n)``; not negative.
        :param row: Further row-wise arguments that the class names.
        :return: ``(*batch, n)``.
        :raises ValueError: If shapes do not fit, the number of predictors is another, or a value is not allowed.
        :raises TypeError: For a row-wise argument that the likelihood does not read, or that has no name.
        """
        refuse_positional(type(self).__name__, args)
        return self._weighted_rows(self._expected_log_prob, observations, function_dist, offset, weights, row)

    def log_marginal(
        self,
        observations: Tensor,
        function_dist: MultivariateNormal,
        *args: Any,
        offset: Tensor | float | None = None,
        weights: Tensor | float | None = None,
        **row: Any,
    ) -> Tensor:
        """
        Log of the expected probability of each row; parameters and errors are those of :meth:`expected_log_prob`.

        :param observations: ``(*batch, n)``.
        :param function_dist: Of P predictors at n rows.
        :param offset: Added to the first predictor, ``(*batch, n)``, or to each, ``(*batch, n, P)``.
        :param weights: Multiply the result, ``(*batch, n)``; not negative.
        :param row: Further row-wise arguments that the class names.
        :return: ``(*batch, n)``.
        """
        refuse_positional(type(self).__name__, args)
        return self._weighted_rows(self._log_marginal, observations, function_dist, offset, weights, row)

    def marginal(
        self,
        function_dist: MultivariateNormal,
        *args: Any,
        offset: Tensor | float | None = None,
        weights: Tensor | float | None = None,
        **row: Any,
    ) -> Distribution:
        """
        The predictive distribution of each row.

        :param function_dist: Of P predictors at n rows.
        :param offset: As in :meth:`expected_log_prob`.
        :param weights: Not used.
        :param row: Further row-wise arguments that the class names.
        :return: A distribution with batch shape ``(*batch, n)``.
        """
        refuse_positional(type(self).__name__, args)
        moments = self._moments(function_dist)
        row = self._read_row(row, moments.mean)
        return self._marginal(moments._replace(mean=with_offset(moments.mean, offset)), **row)

    def forward(
        self,
        function_samples: Tensor,
        *args: Any,
        offset: Tensor | float | None = None,
        weights: Tensor | float | None = None,
        **row: Any,
    ) -> Distribution:
        """
        The distribution of each row given its predictors.

        :param function_samples: ``(..., n, P)``.
        :param offset: As in :meth:`expected_log_prob`.
        :param weights: Not used.
        :param row: Further row-wise arguments that the class names.
        :return: A distribution with batch shape ``(..., n)``.
        """
        refuse_positional(type(self).__name__, args)
        self._check_num_predictors(function_samples.shape[-1])
        predictors = with_offset(function_samples, offset)
        return self._conditional(*self._parameters_given(predictors, **self._read_row(row, predictors)))

    def _draw_likelihood_samples(
        self, function_dist: MultivariateNormal, *args: Any, sample_shape: torch.Size | None = None, **kwargs: Any
    ) -> Distribution:
        """GPyTorch's sampling, which serves its generic methods, from the joint Gaussian of each row."""
        if sample_shape is None:
            sample_shape = torch.Size([gpytorch.settings.num_likelihood_samples.value()])
        mean, covariance = row_moments(function_dist)
        root = row_cholesky(covariance)
        noise = torch.randn(*sample_shape, *mean.shape, dtype=mean.dtype, device=mean.device)
        return self.forward(mean + (root @ noise.unsqueeze(-1)).squeeze(-1), *args, **kwargs)

    # ------------------------------------------------------------------ reading of arguments

    def _weighted_rows(
        self,
        function: Callable[..., Tensor],
        observations: Tensor,
        function_dist: MultivariateNormal,
        offset: Tensor | float | None,
        weights: Tensor | float | None,
        row: dict[str, Any],
    ) -> Tensor:
        """A function of the observations, the moments of their rows and row-wise arguments, times the weights."""
        moments = self._moments(function_dist, observations)
        weights = row_vector("weights", weights, moments.mean[..., 0], nonnegative=True)
        moments, row = moments._replace(mean=with_offset(moments.mean, offset)), self._read_row(row, moments.mean)
        return weighted(function(observations.to(moments.mean.dtype), moments, **row), weights)

    def _moments(self, function_dist: MultivariateNormal, observations: Tensor | None = None) -> PredictorMoments:
        """Moments of every row that has an observation: batch shapes are broadcast."""
        mean, covariance = row_moments(function_dist)
        self._check_num_predictors(mean.shape[-1])
        if observations is None:
            return PredictorMoments(mean, covariance)
        check_responses(type(self).__name__, observations, mean[..., 0])
        self._check_values(observations)
        shape = torch.broadcast_shapes(observations.shape, mean.shape[:-1])
        return PredictorMoments(mean.expand(*shape, -1), covariance.expand(*shape, -1, -1))

    def _read_row(self, row: dict[str, Any], predictors: Tensor) -> dict[str, Tensor]:
        rows = predictors[..., 0]
        RowArguments(self.row_arguments).refuse_others(type(self).__name__, row)
        values = {name: row_vector(name, value, rows, positive=True) for name, value in row.items()}
        return {name: value for name, value in values.items() if value is not None}

    def _check_num_predictors(self, given: int) -> None:
        if given != self.num_predictors:
            raise ValueError(
                f"{type(self).__name__} reads {self.num_predictors} predictors in each row, but got {given}: give the "
                f"model's component groups predictor=0 to predictor={self.num_predictors - 1}"
            )


def with_offset(predictors: Tensor, offset: Tensor | float | None) -> Tensor:
    """
    Add an offset to the first predictor, or to each.

    :param predictors: ``(*batch, n, P)``.
    :param offset: ``(*batch, n)`` for the first predictor or ``(*batch, n, P)``, which is meant whenever the last two
        dimensions are these; None for none.
    """
    if offset is None:
        return predictors
    if torch.is_tensor(offset) and offset.dim() > 1 and offset.shape[-2:] == predictors.shape[-2:]:
        each = row_vector("offset", offset, predictors)
        assert each is not None
        return predictors + each
    first = row_vector("offset", offset, predictors[..., 0])
    assert first is not None
    unit = predictors.new_zeros(predictors.shape[-1])
    unit[0] = 1.0
    return predictors + first.unsqueeze(-1) * unit
