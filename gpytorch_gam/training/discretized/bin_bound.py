"""The evidence lower bound at the optimal posterior of discretised data, as a function of the hyperparameters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import gpytorch
import torch
from gpytorch.likelihoods import Likelihood
from torch import Tensor

from gpytorch_gam.mlls import GaussianOptimum
from gpytorch_gam.variational import AdditiveVariationalStrategy

from ..bound_gradients import linear_function, log_prior
from ._data import BinTables, DiscretizedData, rows_for
from ._problem import DiscretizedProblem, is_closed_form
from ._site_fit import SiteFit
from ._statistics import BinStatistics
from .column_bins import ColumnBins
from .discretized_fit import MAX_BINS, check_forward, check_statistics, fixed_mean
from .fit_statistics import FitStatistics

# Gain of a pass, in nats, below which the posterior counts as optimal, that which a pass may promise if it is left out,
# of whose root differences of gradients are, and the largest number of passes.
_GAIN, _PROMISE, _MAX_PASSES = 1e-4, 1e-7, 20


class BinBound:
    """
    The bound at the optimal posterior of any precision, priors of the hyperparameters included. With a Gaussian
    likelihood it is a closed form of the sums over bins; otherwise passes over the rows lead to the posterior from that
    of the first evaluation, which starts from the model's.
    """

    def __init__(
        self, model: gpytorch.models.ApproximateGP, likelihood: Likelihood, data: Iterable[Any] | FitStatistics
    ) -> None:
        self._model, self._likelihood = model, likelihood
        self._sites: _SiteBound | None = None
        self._statistics: BinStatistics | None = None
        self._few: BinStatistics | None = None  # the same interpolated on fewer bins
        strategy: AdditiveVariationalStrategy = model.variational_strategy
        if isinstance(data, FitStatistics):
            check_statistics(data, strategy, likelihood, None)
            self._take(data)
        else:
            check_forward(strategy, data)
            bins = ColumnBins.from_batches(data, strategy.predictor, max_bins=MAX_BINS)
            mean, num_threads = fixed_mean(strategy), torch.get_num_threads()
            if is_closed_form(likelihood):
                self._take(FitStatistics.of_rows(rows_for(likelihood, strategy, data), bins, mean))
            else:
                rows = DiscretizedData.from_batches(data, bins, strategy, likelihood, mean, num_threads)
                self._problem = DiscretizedProblem(model, likelihood, bins, rows.num_rows)
                self._sites = _SiteBound(self._problem, rows)
        #: The optimal posterior where the bound was evaluated last.
        self.posterior: GaussianOptimum | None = None

    def _take(self, sums: FitStatistics) -> None:
        strategy = self._model.variational_strategy
        self._problem = DiscretizedProblem(self._model, self._likelihood, sums.bins, sums.total_weight)
        self._statistics = BinStatistics(strategy, self._problem.terms, sums.tables(strategy.predictor.device))
        self._few = self._problem.on_fewer_bins(self._statistics)

    def __call__(self) -> Tensor:
        """The bound in nats, differentiable once in the hyperparameters; NaN where it does not exist."""
        if self._statistics is not None:
            optimum = self._gaussian_optimum(self._statistics)
            self.posterior = GaussianOptimum(*(part.detach() for part in optimum))
            return optimum.bound + log_prior(self._model, self._likelihood)
        assert self._sites is not None
        value, self.posterior = self._sites()
        return value

    def _gaussian_optimum(self, statistics: BinStatistics) -> GaussianOptimum:
        if self._few is not None:  # nearly always as good, and several times as fast
            optimum = self._problem.interpolated_optimum(self._few)
            if torch.isfinite(optimum.bound):
                return optimum
        return self._problem.optimum(statistics)


class _SiteBound:
    """The same for likelihoods that are not Gaussian, with the posterior."""

    def __init__(self, problem: DiscretizedProblem, rows: DiscretizedData) -> None:
        self._problem, self._fit = problem, SiteFit(problem, rows)
        self._origin = _posterior_of(problem.strategy)
        self._sites: BinTables | None = None  # there, after the first evaluation

    def __call__(self) -> tuple[Tensor, GaussianOptimum | None]:
        parameters = self._problem.hyperparameters
        with torch.no_grad():
            posterior = self._fit.settle(self._origin, _MAX_PASSES, _GAIN, _PROMISE, self._sites)
        if posterior is None:
            return parameters[0].sum() * torch.nan, None
        if self._sites is None:
            self._origin, self._sites = posterior, self._fit.sites
        if not torch.is_grad_enabled():
            return posterior.mean.new_tensor(self._fit.objective), posterior
        value, gradients = self._fit.differentiate(parameters)
        return linear_function(value, gradients, parameters), posterior


def _posterior_of(strategy: AdditiveVariationalStrategy) -> GaussianOptimum:
    """The model's posterior as a dense one."""
    distribution = strategy.variational_distribution
    precision = torch.linalg.inv(distribution.lazy_covariance_matrix.to_dense().detach().double())
    mean = distribution.mean.detach().double()
    return GaussianOptimum(mean, precision, torch.full_like(mean[0], torch.nan))
