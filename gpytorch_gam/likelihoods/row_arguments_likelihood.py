"""The base class of likelihoods with row-wise arguments: GPyTorch's methods, with offsets and weights."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import Likelihood
from torch import Tensor
from torch.distributions import Distribution

from .row_argument import OFFSET, WEIGHTS
from .row_arguments import RowArguments


class RowArgumentsLikelihood(Likelihood, ABC):
    """
    A likelihood with row-wise arguments, given by keyword to the objective (``mll(model(x), y, weights=weights)``), the
    likelihood and its methods. Each is a number or a tensor that broadcasts to ``(*batch, n)``.

    - ``offset`` is added to the predictor. With P predictors, one of shape ``(*batch, n)`` is added to the first, one
      of shape ``(*batch, n, P)`` to each.
    - ``weights``, not negative, multiply the rows' (expected) log-probabilities. With ``num_data`` the number of rows,
      integer weights give the bound of repeated rows in total nats. Predictions do not depend on them.
    - Further arguments are listed in the documentation of each class.

    :ivar row_arguments: The names of the row-wise arguments.
    """

    _takes_positions = False

    @property
    @abstractmethod
    def readable_arguments(self) -> RowArguments:
        """The row-wise arguments that the likelihood reads."""

    @property
    def row_arguments(self) -> tuple[str, ...]:
        """The names of the row-wise arguments."""
        return self.readable_arguments.names

    def expected_log_prob(
        self,
        observations: Tensor,
        function_dist: MultivariateNormal,
        *args: Any,
        offset: Tensor | float | None = None,
        weights: Tensor | float | None = None,
        **row_arguments: Any,
    ) -> Tensor:
        r"""
        The weighted :math:`\mathbb E_{q(\rho_n)} \log p(y_n | \rho_n)` of each row.

        :param observations: Responses ``(*batch, n)``.
        :param function_dist: Distribution of the predictor or predictors; only its marginals in the rows matter.
        :param args: Further arguments by position, for likelihoods that read them, such as some inside of a
            :class:`RowwiseLikelihood`.
        :param offset: A number for each row that is added to the predictor.
        :param weights: A nonnegative number for each row, by which the result is multiplied.
        :param row_arguments: Further row-wise arguments.
        :return: One number for each row, ``(*batch, n)``.
        :raises TypeError: If a row-wise argument is unknown, has no name, or is not a number.
        :raises ValueError: If shapes, devices, values or the number of predictors do not fit.
        """
        self._check_arguments(args, row_arguments)
        return _weighted(self._expected(observations, function_dist, offset, *args, **row_arguments), weights)

    def log_marginal(
        self,
        observations: Tensor,
        function_dist: MultivariateNormal,
        *args: Any,
        offset: Tensor | float | None = None,
        weights: Tensor | float | None = None,
        **row_arguments: Any,
    ) -> Tensor:
        r"""
        The weighted :math:`\log \mathbb E_{q(\rho_n)} p(y_n | \rho_n)` of each row, ``(*batch, n)``. Parameters and
        errors are those of :meth:`expected_log_prob`.
        """
        self._check_arguments(args, row_arguments)
        return _weighted(self._log_expected(observations, function_dist, offset, *args, **row_arguments), weights)

    def marginal(
        self,
        function_dist: MultivariateNormal,
        *args: Any,
        offset: Tensor | float | None = None,
        weights: Tensor | float | None = None,
        **row_arguments: Any,
    ) -> Distribution:
        """
        The distribution of new responses in independent rows, of batch shape ``(*batch, n)``. Parameters are those of
        :meth:`expected_log_prob`; weights have no effect.
        """
        self._check_arguments(args, row_arguments)
        return self._predictive(function_dist, offset, weights, *args, **row_arguments)

    def forward(
        self,
        function_samples: Tensor,
        *args: Any,
        offset: Tensor | float | None = None,
        weights: Tensor | float | None = None,
        **row_arguments: Any,
    ) -> Distribution:
        """
        The distribution of responses, of batch shape ``(*sample, *batch, n)``, given values of the predictor,
        ``(*sample, *batch, n)``, or of P predictors, ``(*sample, *batch, n, P)``. Other parameters are those of
        :meth:`expected_log_prob`; weights have no effect.
        """
        self._check_arguments(args, row_arguments)
        return self._given(function_samples, offset, weights, *args, **row_arguments)

    @abstractmethod
    def _expected(self, y: Tensor, function_dist: MultivariateNormal, offset: Any, *args: Any, **rows: Any) -> Tensor:
        """The expected log-probabilities ``(*batch, n)``, without weights."""

    @abstractmethod
    def _log_expected(
        self, y: Tensor, function_dist: MultivariateNormal, offset: Any, *args: Any, **rows: Any
    ) -> Tensor:
        """The logarithms of the expected probabilities ``(*batch, n)``, without weights."""

    @abstractmethod
    def _predictive(
        self, function_dist: MultivariateNormal, offset: Any, weights: Any, *args: Any, **rows: Any
    ) -> Distribution:
        """The distribution of new responses, of batch shape ``(*batch, n)``."""

    @abstractmethod
    def _given(self, predictors: Tensor, offset: Any, weights: Any, *args: Any, **rows: Any) -> Distribution:
        """The distribution of responses given the predictors."""

    def _check_arguments(self, args: Sequence[Any], names: Iterable[str]) -> None:
        read = self.readable_arguments
        if args and not self._takes_positions:
            raise TypeError(
                f"{read.owner} reads no further argument by position, but got {len(args)}: pass row-wise arguments by "
                "name, such as weights=..., and no inputs"
            )
        read.refuse_others(names)


def with_offset(predictors: Tensor, offset: Tensor | float | None) -> Tensor:
    """
    Add an offset to each of several predictors ``(*batch, n, P)`` if its last two dimensions are ``(n, P)``, and
    otherwise, broadcast to ``(*batch, n)``, to the first of them.
    """
    if offset is None:
        return predictors
    if torch.is_tensor(offset) and offset.dim() > 1 and offset.shape[-2:] == predictors.shape[-2:]:
        return predictors + OFFSET.read(offset, predictors)
    first = OFFSET.read(offset, predictors[..., 0]).unsqueeze(-1)
    unit = predictors.new_zeros(predictors.shape[-1])
    unit[0] = 1.0
    return predictors + first * unit


def _weighted(value: Tensor, weights: Tensor | float | None) -> Tensor:
    return value if weights is None else value * WEIGHTS.read(weights, value)
