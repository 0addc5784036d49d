"""A model as a function of tables of its bins, and moves of its hyperparameters on the collapsed bound."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import gpytorch
import torch
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood, Likelihood
from gpytorch.means import ConstantMean
from linear_operator.utils.errors import NanError, NotPSDError
from torch import Tensor

from gpytorch_gam.likelihoods.null_model import NullModel
from gpytorch_gam.mlls import GaussianOptimum, GaussianStatistics
from gpytorch_gam.mlls.collapsed_elbo import gaussian_optimum
from gpytorch_gam.optim.rows.likelihood_check import unwrapped
from gpytorch_gam.parameters.log_scale import Coordinates
from gpytorch_gam.variational import AdditiveVariationalStrategy

from .._component_jumps import ComponentJumps, best_after_jumps
from .._component_scales import scales_of_components
from .._hyperparameters import hyperparameters_of, largest, limits_of
from .._quasi_newton import ObjectiveError, QuasiNewton
from ..bound_gradients import log_prior
from ..starting_values import start_from_null_model, units_of_means
from ._data import DiscretizedData, MomentTables
from ._statistics import BinStatistics, SetFeatures, interpolated, moment_tables
from ._sums_at_bins import SumsAtBins
from .column_bins import ColumnBins

# Knots per column of the coarse grid on which the hyperparameters are optimised first, see `interpolated`: of sets of
# one column, of two, and of more.
_NUM_KNOTS = (32, 16, 8)

# Largest interpolation error, relative to the explained variance; beyond it the coarse bound is rejected.
_LARGEST_EXCESS = 1e-4

# Minus the second derivative of the bound in a kernel's hyperparameter that the quasi-Newton method assumes at first.
_CURVATURE = 1.0

# Factor on the precision of rows for which the posterior mean is practically not shrunk towards the prior mean.
_EXACT = 1e6

# Fits of many rows with a Gaussian likelihood begin with the bound of this many equivalent rows, where the information
# on the kernels is not yet drowned in that on the noise. They end where a step promises less than the second number.
_FIRST_ROWS, _FIRST_NATS = 2000, 2.0

# Largest number of hyperparameters of other kernels than the terms' whose curvatures are measured.
_MOST_MEASURED = 50

# Gain that curvatures as at the start promise where a search has ended, relative to what would be another step's, above
# which there is another search with them.
_AFRESH = 4.0


class Open(NamedTuple):
    """The bound at some hyperparameters, and what a step of them can gain."""

    objective: float  # in nats, priors included
    nats: float  # predicted gain
    gradient: float  # largest derivative in the coordinates


class _TooFewBinsError(Exception):
    """Features vary too fast for the knots: they explain more than there is."""


class Maximum(NamedTuple):
    """Where a search for the best hyperparameters has ended."""

    objective: float  # in nats, priors included
    open: float  # predicted gain of a further step in nats
    gradient: float  # largest derivative in the coordinates
    stopped: str  # why
    hyperparameters: list[Tensor]


class DiscretizedProblem:
    """
    The model as a function of tables, and moves of its hyperparameters, which start from the null model if there is
    one.
    """

    def __init__(
        self,
        model: gpytorch.models.ApproximateGP,
        likelihood: Likelihood,
        bins: ColumnBins,
        num_rows: float,
        null: NullModel | None = None,
    ) -> None:
        self.model, self.likelihood = model, likelihood
        self.strategy: AdditiveVariationalStrategy = model.variational_strategy
        self._is_rounded = [bins.is_rounded(term) for term in bins.terms]
        self.terms = [bins.positions(group) for group in self.strategy.predictor.groups]
        self.hyperparameters = hyperparameters_of(model, likelihood)
        self._num_rows = num_rows
        self._last: tuple[BinStatistics, list[Tensor], float] | None = None
        self._fewer: tuple[BinStatistics, BinStatistics | None] | None = None
        self._trials: tuple[list[Tensor], dict[float, SetFeatures]] | None = None  # at some bins
        if null is not None:
            start_from_null_model(self.strategy, likelihood, null)
        self._jumps = ComponentJumps(self.strategy.predictor, None if null is None else null.variance)
        units = {} if null is None else units_of_means(self.strategy, null)
        # The bound of sites does not depend on the likelihood.
        elsewhere = set() if self.is_closed_form else {id(parameter) for parameter in likelihood.parameters()}
        self._moved = [parameter for parameter in self.hyperparameters if id(parameter) not in elsewhere]
        self._ascent = QuasiNewton(
            self._moved,
            [self._curvature(p, num_rows) for p in self._moved],
            Coordinates(self._moved, (model, likelihood), units),
            limits_of(self._moved, model, likelihood),
        )
        self._unusual = self._unusual_entries()

    def _unusual_entries(self) -> list[int]:
        """The entries of what moves that belong to kernels, but are no variances or lengthscales as the terms have."""
        scales = list(scales_of_components(self.strategy.predictor))
        usual = {id(scale.raw) for scale in scales}
        usual |= {id(kernel.raw_lengthscale) for scale in scales for kernel in scale.lengthscales}
        groups = [group for group in self.strategy.predictor.groups if group.input_dim]
        own = {id(parameter) for group in groups for parameter in group.parameters()} - usual
        entries = [id(parameter) in own for parameter in self._moved for _ in range(parameter.numel())]
        found = [entry for entry, is_chosen in enumerate(entries) if is_chosen]
        return found if len(found) <= _MOST_MEASURED else []

    @property
    def is_closed_form(self) -> bool:
        """Whether the optimal posterior needs no sites."""
        return is_closed_form(self.likelihood)

    def _curvature(self, parameter: Tensor, num_rows: float) -> float:
        """A rough minus second derivative of the bound: each row has information on noise and mean."""
        of_rows = (*self.likelihood.parameters(), *self.strategy.predictor.means[0].parameters())
        return max(0.5 * num_rows, 1.0) if any(parameter is other for other in of_rows) else _CURVATURE

    def constant(self) -> Tensor | float:
        """The constant mean, with its graph."""
        mean = self.strategy.predictor.means[0]
        return mean.constant.double().squeeze() if isinstance(mean, ConstantMean) else 0.0

    def optimum(self, statistics: BinStatistics) -> GaussianOptimum:
        """The optimal posterior and its bound; for sites the bound lacks a constant."""
        return self._optimum(statistics(self.constant()))

    def _optimum(self, sums: GaussianStatistics) -> GaussianOptimum:
        noise = self._shared_noise(sums.log_noise)
        return gaussian_optimum(sums, torch.ones_like(sums.residual_square) if noise is None else noise)

    def _shared_noise(self, log_noise: Tensor | None) -> Tensor | None:
        """The noise variance of all rows; None where the weights are the precisions."""
        inner = unwrapped(self.likelihood)
        return inner.noise.double().squeeze(-1) if isinstance(inner, GaussianLikelihood) and log_noise is None else None

    def moments(self, data: DiscretizedData, optimum: GaussianOptimum) -> tuple[MomentTables, float]:
        """Moments of the predictor at the bins, without the mean module, and the divergence from the prior in nats."""
        cholesky = torch.linalg.cholesky(optimum.precision)
        covariance = torch.cholesky_inverse(cholesky)
        excess = covariance.diagonal() - 1.0 + 2.0 * cholesky.diagonal().log() + optimum.mean.square()
        tables = moment_tables(self.strategy, self.terms, data.places, optimum.mean, covariance)
        return tables, 0.5 * excess.sum().item()

    def prior(self) -> GaussianOptimum:
        """The prior, in the form of a posterior without a bound."""
        size = self.strategy.predictor.num_inducing_total
        identity = torch.eye(size, dtype=torch.float64, device=self.strategy.predictor.device)
        return GaussianOptimum(identity[0] * 0.0, identity, identity[0, 0] * math.nan)

    def variance_of_effects(self) -> float | None:
        """Prior variance of the predictor without constant components; None if there are no others."""
        groups = [group for group in self.strategy.predictor.groups if group.input_dim]
        variances = [group.mean_prior_variance().expand(group.num_components).sum().item() for group in groups]
        return sum(variances) if variances else None

    def constant_posterior(self, data: DiscretizedData, place: float, precision: float) -> GaussianOptimum:
        """
        The posterior of rows that all have the predictor ``place``, of ``precision`` in total, with a mean that is not
        shrunk.
        """
        weights = torch.full((len(data),), precision / data.num_all, dtype=torch.float64, device=data.responses.device)
        targets = place * weights
        tables = data.tables(weights, targets, place * targets.sum())
        loose, tight = (
            self.optimum(BinStatistics(self.strategy, self.terms, tables.scaled(factor))) for factor in (1.0, _EXACT)
        )
        return loose._replace(mean=tight.mean)

    @property
    def evaluations(self) -> int:
        """Number of evaluations of the bound and its gradient so far."""
        return self._ascent.evaluations

    @property
    def gradient(self) -> float:
        """The largest derivative in the coordinates where the last search ended."""
        return largest(self._ascent.gradient)

    @property
    def stopped(self) -> str:
        """Why the last search ended."""
        return self._ascent.stopped

    def open_at(self, statistics: BinStatistics) -> Open:
        """What can be gained from where the hyperparameters are; an ObjectiveError if the bound is not finite there."""
        nats = self._ascent.maximise(lambda: self.objective(statistics), math.inf, 0)
        return Open(self._ascent.value, nats, self.gradient)

    def ascend(self, statistics: BinStatistics, nats: float, steps: int, jumps: bool = True) -> Maximum:
        """
        :meth:`maximise` from the beginning, and if that ``jumps``, again from better lengthscales and variances of
        single components, or without such with curvatures that are measured or as at the start, for as long as that is
        better.
        """

        def end(still_open: float) -> Maximum:
            return Maximum(self._bound(statistics), still_open, self.gradient, self.stopped, self._values())

        def jump_and_climb() -> Maximum | None:
            if jumps and self.jump(statistics, nats):
                return end(self.maximise(statistics, nats, steps))
            measured = self._maximise_measured(statistics, nats, steps)
            if measured is not None or not jumps:
                return None if measured is None else end(measured)
            afresh = self.maximise_afresh(statistics, nats, steps)
            return None if afresh is None else end(afresh)

        first = end(self.maximise(statistics, nats, steps, begins=jumps))
        best = best_after_jumps(first, jump_and_climb, lambda found: found.objective, nats)
        if self._bound(statistics) != best.objective:
            self._return_to(best.hyperparameters)
        return best

    def jump(self, statistics: BinStatistics, least_gain: float) -> bool:
        """
        Set lengthscales and variances of single components to others from which the bound is higher, by more than
        ``least_gain`` for each; whether there are any.
        """
        few = self.on_fewer_bins(statistics)
        try:
            has_jumped = self._jump(statistics if few is None else few, least_gain)
        except _TooFewBinsError:
            has_jumped = self._jump(statistics, least_gain)
        if has_jumped:
            self._ascent.forget()
        return has_jumped

    @torch.no_grad()
    def _jump(self, statistics: BinStatistics, least_gain: float) -> bool:
        noise = self._shared_noise(statistics.tables.log_noise)
        sums = SumsAtBins(statistics.tables, float(self.constant()), 1.0 if noise is None else noise.item())

        def trial() -> SetFeatures:
            features = statistics.features()
            if sums.excess(features) > _LARGEST_EXCESS:
                raise _TooFewBinsError
            return features

        places = statistics.tables.places
        if self._trials is None or not _are_equal(self._trials[0], places):
            self._trials = places, {}
        return self._jumps.jump(sums, trial, least_gain, self._trials[1])

    def maximise_afresh(self, statistics: BinStatistics, nats: float, steps: int) -> float | None:
        """
        :meth:`maximise` on all bins with curvatures as at the start, whatever those of the last moves were; None if
        these promise little.
        """
        if self._ascent.promised_afresh() <= _AFRESH * nats:
            return None
        self._ascent.forget()
        return self._maximise_fully(statistics, nats, steps)

    def _maximise_measured(self, statistics: BinStatistics, nats: float, steps: int) -> float | None:
        """
        :meth:`maximise` on all bins with the curvatures measured in hyperparameters of which the search knows little:
        those of kernels that are not like the terms', some of which hardly matter by themselves. None if it gains
        nothing.
        """
        if not self._unusual:
            return None
        before = self._ascent.value
        known = self._ascent.measured(lambda: self.objective(statistics), self._unusual)
        if known is None:
            return None
        self._ascent.forget(known)
        still_open = self._maximise_fully(statistics, nats, steps)
        return still_open if self._ascent.value > before + nats else None

    def of_small_variance(self) -> tuple[str, ...]:
        """The names of the components whose prior variance is small beside that of the predictor."""
        return self._jumps.of_small_variance()

    def maximise(self, statistics: BinStatistics, nats: float, steps: int, begins: bool = False) -> float:
        """
        Move the hyperparameters on the collapsed bound, first on fewer bins, until a step promises less than ``nats``;
        returns the gain that is predicted for a further step. If it ``begins``, the bound of a part of many rows comes
        before.
        """
        if not self._moved:
            return 0.0
        few = self.on_fewer_bins(statistics)
        if few is not None or begins:
            before, values = self._bound(statistics), self._values()
            with suppress(ObjectiveError):  # an approximation is not finite at its start, or the bound at its end
                if begins:
                    self._begin(few or statistics, nats, steps)
                if few is not None:
                    self._ascent.maximise(self.interpolated_objective(few), nats, steps)
                still_open = self._maximise_fully(statistics, nats, steps)
                if not self._ascent.value < before:
                    return still_open
            self._return_to(values)
        return self._maximise_fully(statistics, nats, steps)

    def _maximise_fully(self, statistics: BinStatistics, nats: float, steps: int) -> float:
        still_open = self._ascent.maximise(lambda: self.objective(statistics), nats, steps)
        self._last = statistics, self._values(), self._ascent.value
        return still_open

    def _begin(self, statistics: BinStatistics, nats: float, steps: int) -> None:
        """
        Move the noise, then lengthscales and variances of single components, and if rows are many, all hyperparameters
        on the bound of a part of them.
        """
        self._move_noise(statistics, steps)
        with suppress(_TooFewBinsError):
            self._jump(statistics, nats)
        num_rows = statistics.tables.num_rows
        if num_rows <= 4 * _FIRST_ROWS:
            return
        part = BinStatistics(self.strategy, self.terms, statistics.tables.scaled(_FIRST_ROWS / num_rows))
        self.scale_to(_FIRST_ROWS)
        try:
            self._ascent.maximise(self.interpolated_objective(part), _FIRST_NATS, steps)
        finally:
            self.scale_to(num_rows)

    def _move_noise(self, statistics: BinStatistics, steps: int) -> None:
        """Move the likelihood's parameters alone, for which the kernels are evaluated once."""
        own = [parameter for parameter in self._moved if any(parameter is p for p in self.likelihood.parameters())]
        with torch.no_grad():
            sums = statistics(self.constant())
        if not own or sums.log_noise is not None:  # the rows' own noises take the place of the likelihood's
            return
        ascent = QuasiNewton(
            own,
            [self._curvature(parameter, self._num_rows) for parameter in own],
            Coordinates(own, [self.likelihood]),
            limits_of(own, self.likelihood),
        )
        ascent.maximise(lambda: self._optimum(sums).bound + log_prior(self.likelihood), _FIRST_NATS, steps)

    def _values(self) -> list[Tensor]:
        return [parameter.detach().clone() for parameter in self._moved]

    @torch.no_grad()
    def _return_to(self, values: list[Tensor]) -> None:
        for parameter, value in zip(self._moved, values, strict=True):
            parameter.copy_(value)
        self._ascent.forget()

    @torch.no_grad()
    def _bound(self, statistics: BinStatistics) -> float:
        """The bound, or minus infinity where it cannot be computed; the last one is remembered."""
        values = self._values()
        if self._last is None or self._last[0] is not statistics or not all(map(torch.equal, values, self._last[1])):
            try:
                value = self.objective(statistics).item()
            except (torch.linalg.LinAlgError, NotPSDError, NanError):
                value = -math.inf
            self._last = statistics, values, value if math.isfinite(value) else -math.inf
        return self._last[2]

    def bound(self, statistics: BinStatistics) -> float:
        """The bound without the priors of hyperparameters, or minus infinity where it cannot be computed."""
        return self._bound(statistics) - self.log_prior()

    def scale_to(self, num_rows: float) -> None:
        """Rescale the curvatures assumed in the next moves to this number of rows."""
        before, self._num_rows = self._num_rows, num_rows
        self._ascent.rescale([self._curvature(p, num_rows) / self._curvature(p, before) for p in self._moved])

    def on_fewer_bins(self, statistics: BinStatistics) -> BinStatistics | None:
        """The statistics interpolated on coarser bins, or None if no bins become fewer; they are remembered."""
        if self._fewer is None or self._fewer[0] is not statistics:
            self._fewer = statistics, self._interpolated(statistics)
        return self._fewer[1]

    def _interpolated(self, statistics: BinStatistics) -> BinStatistics | None:
        tables = statistics.tables
        coarse = interpolated(tables, self._is_rounded, _NUM_KNOTS)
        is_smaller = any(len(few) < len(many) for few, many in zip(coarse.places, tables.places, strict=True))
        return BinStatistics(self.strategy, self.terms, coarse) if is_smaller else None

    def interpolated_objective(self, statistics: BinStatistics) -> Callable[[], Tensor]:
        """The bound; NaN where features vary too fast for the knots: they explain too much, and it has no limit."""

        def objective() -> Tensor:
            return self.interpolated_optimum(statistics).bound + log_prior(self.model, self.likelihood)

        return objective

    def interpolated_optimum(self, statistics: BinStatistics) -> GaussianOptimum:
        """The optimal posterior, whose bound is NaN where features vary too fast for the knots."""
        sums = statistics(self.constant())
        optimum, explained = self._optimum(sums), sums.gram.diagonal(dim1=-2, dim2=-1).sum(-1)
        is_false = sums.unexplained < -_LARGEST_EXCESS * explained
        return optimum._replace(bound=torch.where(is_false, torch.full_like(optimum.bound, math.nan), optimum.bound))

    @torch.no_grad()
    def log_prior(self) -> float:
        """The logarithm of the prior density of the hyperparameters."""
        return float(log_prior(self.model, self.likelihood))

    def objective(self, statistics: BinStatistics) -> Tensor:
        """The bound and the priors of the hyperparameters, differentiable in these."""
        return self.optimum(statistics).bound + log_prior(self.model, self.likelihood)


def _are_equal(some: list[Tensor], others: list[Tensor]) -> bool:
    return len(some) == len(others) and all(map(torch.equal, some, others))


def is_closed_form(likelihood: Likelihood) -> bool:
    """Whether the likelihood is Gaussian, so that sums over the rows determine the optimal posterior."""
    return isinstance(unwrapped(likelihood), GaussianLikelihood | FixedNoiseGaussianLikelihood)
