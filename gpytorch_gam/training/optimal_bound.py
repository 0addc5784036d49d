"""The bound at the optimal posterior as a function of a model's hyperparameters, for what explores it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, NamedTuple, Protocol

import gpytorch
import torch
from gpytorch.likelihoods import Likelihood
from gpytorch.variational import CholeskyVariationalDistribution
from linear_operator.utils.errors import NanError, NotPSDError
from torch import Tensor

from gpytorch_gam import _checks as checks
from gpytorch_gam.data.whole_epochs import every_row
from gpytorch_gam.mlls import GaussianOptimum
from gpytorch_gam.optim.posterior.parameters import StructuredDistribution, validated_strategy
from gpytorch_gam.optim.processes import Processes
from gpytorch_gam.optim.rows.likelihood_check import check_number_of_predictors, with_noise_by_row
from gpytorch_gam.optim.rows.stream import OverflowingLikelihoodError, checked_rows
from gpytorch_gam.variational import AdditiveVariationalStrategy

from ._choice import choose
from ._data_sources import as_batches
from ._hyperparameters import hyperparameters_of
from ._row_bound import RowBound
from ._row_count import number_of_rows
from ._row_fit import rows_in_memory
from .bound_gradients import bound_and_gradients, linear_function
from .discretized.bin_bound import BinBound
from .discretized.fit_statistics import FitStatistics
from .free_hyperparameters import FreeHyperparameters
from .polishing import polish
from .starting_values import null_model_of, units_of_means

# Largest number of steps of the posterior by passes over rows that are streamed.
_MAX_PASSES = 5

# Multiple of the seconds of bins that rows may take: points were added since the method of the fit was chosen, and its
# bound is the one that has a maximum where the fit ended.
_WORTH_EXACTNESS = 5.0

# Number of rows of the data that stand for all.
_NUM_ROWS = 200


class Evaluation(NamedTuple):
    """The bound at some hyperparameters."""

    value: float  # in nats, priors included; NaN where it does not exist
    gradient: Tensor  # in the coordinates, (k,), float64; empty if it was not asked for
    mean: Tensor  # of the whitened inducing variables at the optimal posterior, (Q,), float64


class _Objective(Protocol):
    """The bound at the optimal posterior for the present hyperparameters."""

    @property
    def posterior(self) -> GaussianOptimum | None:
        """The optimal posterior where it was evaluated last; None if it is the model's."""

    def __call__(self) -> Tensor:
        """The bound in nats, differentiable once; NaN where it does not exist."""


class OptimalBound:
    """
    The evidence lower bound at the optimal posterior, priors of the hyperparameters included, as a function of the
    hyperparameters of a model and its likelihood, which it moves. It is that of all rows, of rounded columns, or of
    rows that are streamed, as :func:`~gpytorch_gam.fit` would choose.

    :param model: A model that :func:`~gpytorch_gam.fit` takes. Its posterior becomes the optimal one.
    :param likelihood: Its likelihood.
    :param data: Data as for :func:`~gpytorch_gam.fit`.
    :param num_data: Number of rows of all the data, where batches do not tell it.
    :raises TypeError: If an argument is of another kind.
    :raises ValueError: If the data cannot be read, or the bound is not finite at the present hyperparameters.
    """

    def __init__(
        self, model: gpytorch.models.ApproximateGP, likelihood: Likelihood, data: Any, num_data: int | None = None
    ) -> None:
        checks.likelihood(likelihood)
        strategy = validated_strategy(model, (*StructuredDistribution, CholeskyVariationalDistribution), True)
        check_number_of_predictors(strategy, likelihood)
        model.train()
        likelihood.train()
        with torch.no_grad():
            strategy._initialize_once()
        batches = data
        if not isinstance(data, FitStatistics):
            batches = with_noise_by_row(likelihood, every_row(as_batches(data)))
        self._strategy: AdditiveVariationalStrategy = strategy
        self._objective = _objective(model, likelihood, batches, num_data)
        if not math.isfinite(self._objective().item()):
            raise ValueError("the bound is not finite at the present hyperparameters")
        self.write_posterior()
        null = None if isinstance(batches, FitStatistics) else null_model_of(strategy, likelihood, batches)
        #: The hyperparameters that move.
        self.free = FreeHyperparameters(model, likelihood, None if null is None else units_of_means(strategy, null))
        #: Some rows of the data, ``(n, D)``.
        self.rows = _some_rows(batches, strategy)

    def evaluate(self, position: Tensor, gradient: bool = True) -> Evaluation:
        """
        The bound where the hyperparameters that move have these coordinates. They stay there.

        :param position: The coordinates, ``(k,)``.
        :param gradient: Whether the gradient is wanted.
        """
        self.free.write(position)
        try:
            with torch.set_grad_enabled(gradient):
                value = self._objective()
                found = self._gradients(value) if gradient else []
        except (torch.linalg.LinAlgError, NotPSDError, NanError, OverflowingLikelihoodError):
            return Evaluation(math.nan, torch.full_like(position, math.nan), self._whitened_mean())
        slopes = self.free.gradient(found) if gradient else position.new_empty(0)
        return Evaluation(value.item(), slopes, self._whitened_mean())

    def _gradients(self, value: Tensor) -> list[Tensor | None]:
        """Those in the parameters; None where there is none."""
        moving = [parameter for parameter in self.free.parameters if parameter.requires_grad]
        found = iter(torch.autograd.grad(value, moving, allow_unused=True))
        return [next(found) if parameter.requires_grad else None for parameter in self.free.parameters]

    @contextmanager
    def pausing(self) -> Iterator[Callable[[Iterable[Tensor]], None]]:
        """
        Give a function for parameters that stay where they are inside, where gradients in them are zero or not: rows
        evaluate nothing for them.
        """
        paused: list[Tensor] = []

        def pause(parameters: Iterable[Tensor]) -> None:
            for parameter in parameters if isinstance(self._objective, RowBound) else ():
                paused.append(parameter.requires_grad_(False))

        try:
            yield pause
        finally:
            for parameter in paused:
                parameter.requires_grad_(True)

    def write_posterior(self) -> None:
        """Set the model's posterior to that of its family nearest to the optimum of the last evaluation."""
        posterior = self._objective.posterior
        if posterior is not None:
            self._strategy.set_whitened_posterior(posterior.mean, posterior.precision)

    @torch.no_grad()
    def _whitened_mean(self) -> Tensor:
        posterior = self._objective.posterior
        return self._strategy.covariance_factors().mean.clone() if posterior is None else posterior.mean


def _objective(
    model: gpytorch.models.ApproximateGP, likelihood: Likelihood, batches: Any, num_data: int | None
) -> _Objective:
    """The bound by the method that a fit would choose."""
    if isinstance(batches, FitStatistics):
        return BinBound(model, likelihood, batches)
    num_rows = _number_of_rows(model.variational_strategy, batches, num_data)
    method = choose(model, likelihood, batches, num_rows, _WORTH_EXACTNESS).method
    if method == "rows":
        rows = rows_in_memory(model.variational_strategy, likelihood, batches)
        return RowBound(model, likelihood, rows, Processes(None))
    if method == "bins":
        return BinBound(model, likelihood, batches)
    return _StreamedBound(model, likelihood, batches, num_rows)


def _number_of_rows(strategy: AdditiveVariationalStrategy, batches: Iterable[Any], num_data: int | None) -> int:
    try:
        return number_of_rows(batches, num_data, Processes(None))
    except ValueError:
        if num_data is not None:
            raise
    return sum(len(checked_rows(strategy, None, batch).y) for batch in batches)


class _StreamedBound:
    """The bound after :func:`polish`, from rows that are streamed, each time from the posterior of the start."""

    posterior = None

    def __init__(
        self,
        model: gpytorch.models.ApproximateGP,
        likelihood: Likelihood,
        batches: Iterable[Any],
        num_rows: int,
    ) -> None:
        self._model, self._likelihood, self._batches, self._num_rows = model, likelihood, batches, num_rows
        self._distribution = model.variational_strategy._variational_distribution
        self._start: dict[str, Tensor] | None = None
        self._parameters = hyperparameters_of(model, likelihood)

    def __call__(self) -> Tensor:
        if self._start is not None:
            self._distribution.load_state_dict(self._start)
        polish(self._model, self._likelihood, self._batches, max_passes=_MAX_PASSES)
        if self._start is None:
            self._start = deepcopy(self._distribution.state_dict())
        rows = (checked_rows(self._model.variational_strategy, self._likelihood, batch) for batch in self._batches)
        found = bound_and_gradients(self._model, self._likelihood, rows, self._num_rows, self._parameters)
        return linear_function(*found, self._parameters)


def _some_rows(batches: Any, strategy: AdditiveVariationalStrategy) -> Tensor:
    """Equally spaced rows of the first batch; of sums over rows, one in their bins."""
    if isinstance(batches, FitStatistics):
        width = 1 + max(group.max_column for group in strategy.predictor.groups)
        return batches.bins.example(width).to(strategy.predictor.device, strategy.predictor.dtype)
    x = next(iter(batches))[0]
    return x[torch.linspace(0, len(x) - 1, min(len(x), _NUM_ROWS), device=x.device).round().long()]
