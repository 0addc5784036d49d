"""A model as a function of tables of its bins, and moves of its hyperparameters on the collapsed bound."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import gpytorch
import torch
from gpytorch.constraints import Interval
from gpytorch.likelihoods import GaussianLikelihood, Likelihood
from gpytorch.means import ConstantMean
from linear_operator.utils.errors import NanError, NotPSDError
from torch import Tensor

from gpytorch_gam.likelihoods.null_model import NullModel
from gpytorch_gam.mlls import GaussianOptimum
from gpytorch_gam.mlls.collapsed_elbo import gaussian_optimum
from gpytorch_gam.parameters.log_scale import Coordinates
from gpytorch_gam.variational import AdditiveVariationalStrategy

from .._quasi_newton import ObjectiveError, QuasiNewton
from ..starting_values import start_from_null_model, units_of_means
from ._data import BinTables, DiscretizedData, MomentTables
from ._statistics import BinStatistics, interpolated, moment_tables
from .column_bins import ColumnBins

# Knots in a column on which hyperparameters do most of their way, see `interpolated`.
_NUM_KNOTS = (32, 16, 8)

# Share of the explained variance that interpolation may add to it out of nothing.
_LARGEST_EXCESS = 1e-4

# The quasi-Newton method begins with this curvature of the bound in a hyperparameter of the kernels.
_CURVATURE = 1.0

# Precision of rows, relative to one that leaves them freedom, at which the prior does not move them.
_EXACT = 1e6

# Parameters of an interval are logits, which end so far out: beyond, gradients vanish and there is no way back.
_LARGEST_LOGIT = 9.0

# Many rows with a Gaussian likelihood begin with the bound of so many rows of the same kind: what it says of the
# kernels is not yet drowned in what it says of the noise.
FIRST_ROWS = 2000


class DiscretizedProblem:
    """
    What both kinds of fit share: the model as a function of tables, and moves of its hyperparameters.

    :param model: Its hyperparameters go to their starting values.
    :param likelihood: Of the data; so do its parameters.
    :param bins: Of the columns.
    :param num_rows: Of the data.
    :param null: Of the data, which says where to start; None to start from the present values.
    """

    def __init__(
        self,
        model: gpytorch.models.ApproximateGP,
        likelihood: Likelihood,
        bins: ColumnBins,
        num_rows: int,
        null: NullModel | None = None,
    ) -> None:
        self.model, self.likelihood = model, likelihood
        self.strategy: AdditiveVariationalStrategy = model.variational_strategy
        self._is_rounded = [not bins.is_exact(term) for term in bins.terms]
        self.terms = [bins.positions(group) for group in self.strategy.predictor.groups]
        variational = {id(parameter) for parameter in self.strategy._variational_distribution.parameters()}
        unique = {id(p): p for p in (*model.parameters(), *likelihood.parameters()) if p.requires_grad}
        self.hyperparameters = [parameter for key, parameter in unique.items() if key not in variational]
        self._num_rows = num_rows
        if null is not None:
            start_from_null_model(self.strategy, likelihood, null)
        units = {} if null is None else units_of_means(self.strategy, null)
        self._ascent = QuasiNewton(
            self.hyperparameters,
            [self._curvature(p, num_rows) for p in self.hyperparameters],
            Coordinates(self.hyperparameters, (model, likelihood), units),
            [_LARGEST_LOGIT if id(p) in _in_intervals(model, likelihood) else math.inf for p in self.hyperparameters],
        )

    def _curvature(self, parameter: Tensor, num_rows: int) -> float:
        """About what minus the second derivative of the bound is: noise and mean are known from each row."""
        of_rows = (*self.likelihood.parameters(), *self.strategy.predictor.means[0].parameters())
        return max(0.5 * num_rows, 1.0) if any(parameter is other for other in of_rows) else _CURVATURE

    def constant(self) -> Tensor | float:
        """The constant mean, differentiable."""
        mean = self.strategy.predictor.means[0]
        return mean.constant.double().squeeze() if isinstance(mean, ConstantMean) else 0.0

    def noise(self) -> Tensor:
        """Variance of the noise; of sites, whose weights say it all, 1."""
        if isinstance(self.likelihood, GaussianLikelihood):
            return self.likelihood.noise.double().squeeze(-1)
        return torch.ones((), dtype=torch.float64, device=self.strategy.predictor.device)

    def optimum(self, statistics: BinStatistics, num_rows: int) -> GaussianOptimum:
        """The optimal posterior and its bound. Of sites the bound lacks a constant, and ``num_rows`` is 0."""
        return gaussian_optimum(statistics(self.constant())._replace(num_rows=num_rows), self.noise())

    def moments(self, data: DiscretizedData, optimum: GaussianOptimum) -> tuple[MomentTables, float]:
        """
        Moments of the predictor at the bins without mean module, and the divergence from the prior in nats.

        :param data: That have the bins.
        :param optimum: The posterior.
        """
        cholesky = torch.linalg.cholesky(optimum.precision)
        covariance = torch.cholesky_inverse(cholesky)
        excess = covariance.diagonal() - 1.0 + 2.0 * cholesky.diagonal().log() + optimum.mean.square()
        tables = moment_tables(self.strategy, self.terms, data.places, optimum.mean, covariance)
        return tables, 0.5 * excess.sum().item()

    def prior(self) -> GaussianOptimum:
        """The prior as a posterior."""
        size = self.strategy.predictor.num_inducing_total
        identity = torch.eye(size, dtype=torch.float64, device=self.strategy.predictor.device)
        return GaussianOptimum(identity[0] * 0.0, identity, identity[0, 0] * math.nan)

    def variance_of_effects(self) -> float | None:
        """Prior variance of the predictor without constants; None if there is nothing else."""
        groups = [group for group in self.strategy.predictor.groups if group.input_dim]
        variances = [group.mean_prior_variance().expand(group.num_components).sum().item() for group in groups]
        return sum(variances) if variances else None

    def constant_posterior(self, data: DiscretizedData, place: float, precision: float) -> GaussianOptimum:
        """
        The posterior of rows that all have the same predictor: it is there with its mean, whatever the precision.

        :param data: The rows.
        :param place: Their predictor, offset left out.
        :param precision: Of all rows together.
        """
        weights = torch.full((len(data),), precision / len(data), dtype=torch.float64, device=data.responses.device)
        targets = place * weights
        tables = data.tables(weights, targets, place * targets.sum())
        loose, tight = (
            self.optimum(BinStatistics(self.strategy, self.terms, tables.scaled(factor)), 0) for factor in (1.0, _EXACT)
        )
        return loose._replace(mean=tight.mean)

    def maximise(self, tables: BinTables, statistics: BinStatistics, num_rows: int, nats: float, steps: int) -> float:
        """
        Move the hyperparameters on the collapsed bound, first on fewer bins.

        :param tables: Of the rows.
        :param statistics: The same tables as statistics.
        :param num_rows: See :meth:`optimum`.
        :param nats: Stop when a step promises less.
        :param steps: Largest number.
        :return: What a further step promises.
        """
        if not self.hyperparameters:
            return 0.0
        few = self._on_fewer_bins(tables)
        if few is not None:
            with self._kept_only_if_better(statistics, num_rows):
                self._ascent.maximise(lambda: self._interpolated_objective(few, num_rows), nats, steps)
        return self._ascent.maximise(lambda: self._objective(statistics, num_rows), nats, steps)

    def begin(self, tables: BinTables, statistics: BinStatistics, num_rows: int, steps: int) -> None:
        """
        Move the hyperparameters as far as a part of the rows would.

        :param tables: Of all rows.
        :param statistics: The same tables as statistics.
        :param num_rows: Of these.
        :param steps: Largest number.
        """
        part = tables.scaled(FIRST_ROWS / num_rows)
        few = self._on_fewer_bins(part) or BinStatistics(self.strategy, self.terms, part)
        with self._kept_only_if_better(statistics, num_rows):
            self.scale_to(FIRST_ROWS)
            try:
                self._ascent.maximise(lambda: self._interpolated_objective(few, FIRST_ROWS), 0.1, steps)
            finally:
                self.scale_to(num_rows)

    @contextmanager
    def _kept_only_if_better(self, statistics: BinStatistics, num_rows: int) -> Iterator[None]:
        """Moves on a stand-in for the bound are taken back where they lower the bound itself."""
        before, values = self._bound(statistics, num_rows), [p.detach().clone() for p in self.hyperparameters]
        with suppress(ObjectiveError):  # nothing stands in for the bound where it starts
            yield
        if not self._bound(statistics, num_rows) > before:
            with torch.no_grad():
                for parameter, value in zip(self.hyperparameters, values, strict=True):
                    parameter.copy_(value)
            self._ascent.forget()

    @torch.no_grad()
    def _bound(self, statistics: BinStatistics, num_rows: int) -> float:
        """Minus infinity where it cannot be computed."""
        try:
            value = self._objective(statistics, num_rows).item()
        except (torch.linalg.LinAlgError, NotPSDError, NanError):
            return -math.inf
        return value if math.isfinite(value) else -math.inf

    def scale_to(self, num_rows: int) -> None:
        """Tell of the number of rows that the next moves are about."""
        before, self._num_rows = self._num_rows, num_rows
        self._ascent.rescale([self._curvature(p, num_rows) / self._curvature(p, before) for p in self.hyperparameters])

    def _on_fewer_bins(self, tables: BinTables) -> BinStatistics | None:
        """None if there is nothing to be gained."""
        coarse = interpolated(tables, self._is_rounded, _NUM_KNOTS)
        is_smaller = any(len(few) < len(many) for few, many in zip(coarse.places, tables.places, strict=True))
        return BinStatistics(self.strategy, self.terms, coarse) if is_smaller else None

    def _interpolated_objective(self, statistics: BinStatistics, num_rows: int) -> Tensor:
        """NaN where features vary too fast for the knots: they explain more than there is, and the bound has no end."""
        sums = statistics(self.constant())
        bound = gaussian_optimum(sums._replace(num_rows=num_rows), self.noise()).bound + self._log_prior()
        explained = sums.gram.diagonal(dim1=-2, dim2=-1).sum(-1)
        return torch.where(sums.unexplained < -_LARGEST_EXCESS * explained, torch.full_like(bound, math.nan), bound)

    def _objective(self, statistics: BinStatistics, num_rows: int) -> Tensor:
        return self.optimum(statistics, num_rows).bound + self._log_prior()

    def _log_prior(self) -> Tensor:
        """Of the hyperparameters."""
        total = torch.zeros((), dtype=torch.float64, device=self.strategy.predictor.device)
        for module in (self.model, self.likelihood):
            for _, owner, prior, closure, _ in module.named_priors():
                total = total + prior.log_prob(closure(owner)).sum()
        return total


def _in_intervals(*modules: gpytorch.Module) -> set[int]:
    """The ``id`` of each parameter that is the logit of a value between two bounds."""
    return {
        id(parameter)
        for module in modules
        for _, parameter, constraint in module.named_parameters_and_constraints()
        if type(constraint) is Interval and constraint.enforced
    }
