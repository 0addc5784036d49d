"""Training on tables of discretised inputs, whose cost hardly depends on the number of rows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import gpytorch
import torch
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood, Likelihood
from gpytorch.means import ConstantMean, ZeroMean
from gpytorch.variational import CholeskyVariationalDistribution
from linear_operator.utils.errors import NanError, NotPSDError
from torch import Tensor

from gpytorch_gam.components import ColumnLevels
from gpytorch_gam.data._every_row import every_row
from gpytorch_gam.mlls import GaussianOptimum
from gpytorch_gam.mlls.collapsed_elbo import gaussian_optimum
from gpytorch_gam.variational import AdditiveVariationalStrategy
from gpytorch_gam.variational._expected_gradients import ExpectedGradients, expected_gradients

from ._discretized_data import DiscretizedData, LevelTables, MomentTables, sampled
from ._level_statistics import LevelStatistics, interpolated, moment_tables
from ._likelihood_check import unwrapped
from ._quasi_newton import ObjectiveError, QuasiNewton
from ._structured_posterior import StructuredDistribution, validated_strategy
from ._tabulated_gradients import distinct_responses, tabulated

# Levels of a column read alone, of each of two read together, and of each of more: what rounding to them loses is far
# below what the data leave open, and tables of pairs of them stay in the cache.
_MAX_LEVELS = (256, 64, 16)

# Knots in a column on which hyperparameters do most of their way, see `interpolated`.
_NUM_KNOTS = (32, 16, 8)

# Share of the explained variance that interpolation may add to it out of nothing.
_LARGEST_EXCESS = 1e-4

# Steps of the hyperparameters with a Gaussian likelihood, and between two passes over the rows with any other.
_GAUSSIAN_STEPS, _SITE_STEPS = 200, 12

# Steps end when the next one promises less than this part of the tolerance: there are many directions to be right in.
# They begin with this curvature of the bound in a hyperparameter of the kernels.
_SHARE_OF_TOLERANCE, _CURVATURE = 0.3, 0.2

# Many rows with a Gaussian likelihood begin with the bound of so many rows of the same kind: what it says of the
# kernels is not yet drowned in what it says of the noise.
_FIRST_ROWS = 2000

# With any other likelihood they begin with a sample of this size, on fewer levels; up to four times as many do not.
_SAMPLE_SIZE, _SAMPLE_LEVELS = 20000, (64, 20, 8)

# Largest Q, as Q x Q matrices are factorised at each step, and numbers in all tables together (2 GiB).
_MAX_INDUCING, _MAX_TABLE_ENTRIES = 4096, 2**28

# Q up to which matrices are too small for torch's own threads.
_SMALL = 512

# Nats that the bound may fall by rounding and quadrature, relative to its size.
_ROUNDING = 1e-9

_MAX_HALVINGS = 10


def fit_discretized(
    model: gpytorch.models.ApproximateGP,
    likelihood: Likelihood,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    max_levels: int | Sequence[int] = _MAX_LEVELS,
    levels: ColumnLevels | None = None,
    max_passes: int = 20,
    tolerance: float = 0.1,
    callback: Callable[[float], Any] | None = None,
) -> list[float]:
    r"""
    Train posterior and hyperparameters on inputs that are rounded to a few hundred levels a column (see
    :class:`~gpytorch_gam.components.ColumnLevels`), as ``bam(discrete=TRUE)`` of mgcv does: the fastest way to fit
    many rows. Columns with few distinct values are not rounded, and the fit is then that of the data as they are.
    A level stands for the mean of its rows, so what rounding loses is of second order in the step.

    With the levels :math:`\ell`, features :math:`\Phi_c = L_c^{-1} k_c(Z_c, \ell)` and the weights of the rows summed
    by pairs of levels, :math:`W_{cc'}`, blocks of :math:`\Phi\Lambda\Phi^\top` are :math:`\Phi_c W_{cc'}
    \Phi_{c'}^\top`. So one pass over the rows gives the collapsed bound, and its gradient, as functions of all
    hyperparameters.

    - A Gaussian likelihood takes one pass. A quasi-Newton method finds hyperparameters and noise on the collapsed
      bound, and the posterior is the optimum.
    - With any other log-concave likelihood, a pass replaces each row by the Gaussian site that has the derivatives of
      its expected log-likelihood in mean and variance. The posterior of the sites is closed-form, and the
      hyperparameters move on their collapsed bound, whose gradient is that of the evidence lower bound. This is
      repeated until the bound gains less than ``tolerance``; a step that lowers it is damped. Many rows start from the
      fit to a sample.

    Cost for N rows, C components of U levels and M inducing points: :math:`O(N C^2)` additions a pass, with a constant
    of a few nanoseconds, and :math:`O(C^2 M U^2 + Q^3)` an evaluation of the bound. Memory: a few bytes for each row
    and component, and :math:`C^2 U^2` numbers. The rows are shared among the threads of torch.

    Levels of a rounded column are equidistant: give a column with a long tail on a scale without it, such as that of
    its logarithm.

    Hyperparameters start where they are; the posterior is found from scratch. Those with ``requires_grad=False`` stay.
    Model and likelihood are left in eval mode.

    :param model: A model whose ``variational_strategy`` is an
        :class:`~gpytorch_gam.AdditiveVariationalStrategy` with one predictor, no batch shape, no ``by`` columns, and a
        low-rank, block + low-rank, mean-field or Cholesky distribution. The structured ones take the fit of
        :meth:`~gpytorch_gam.AdditiveVariationalStrategy.set_whitened_posterior`; a mean-field model has the
        hyperparameters of the coupled posterior.
    :param likelihood: A Gaussian likelihood, or any log-concave one of one predictor whose own parameters stay as they
        are.
    :param batches: Pairs of inputs ``(b, D)`` and responses ``(b)`` that can be gone through several times, each row
        once: ``[(x, y)]`` for data in memory, or a ``DataLoader``.
    :param max_levels: Of a column alone, of each of two columns that a component reads together, of each of three, and
        so on.
    :param levels: Ready levels, instead of ``max_levels``.
    :param max_passes: Largest number of passes over all rows.
    :param tolerance: Stop when a pass gains no more than so many nats.
    :param callback: Called with the bound after each pass.
    :return: The evidence lower bound of the discretised data in nats after each pass, at the optimal (coupled)
        posterior of the sites, priors of hyperparameters left out. With a Gaussian likelihood: at the hyperparameters
        of the start and at those found.
    :raises ValueError: If an argument is out of range, the data cannot be read, or the tables would be too large.
    :raises TypeError: If model or distribution are of another kind.
    :raises NotImplementedError: For several predictors, batches of models, multipliers, trainable mean modules other
        than a constant, and trainable parameters of likelihoods that are not Gaussian.

    Example:
        >>> model = AdditiveGP(predictor, family="block_low_rank", rank=32)
        >>> history = fit_discretized(model, likelihood, [(x, y)])
        >>> prediction = likelihood(model(x_new))
    """
    if max_passes < 1:
        raise ValueError(f"max_passes must be at least 1, got {max_passes}")
    if not tolerance >= 0:
        raise ValueError(f"tolerance must not be negative, got {tolerance!r}")
    strategy = validated_strategy(model, (*StructuredDistribution, CholeskyVariationalDistribution))
    _check_supported(strategy, likelihood)
    batches, num_threads = every_row(batches), torch.get_num_threads()
    try:
        with _one_thread(strategy.predictor.num_inducing_total <= _SMALL):
            if levels is None:
                levels = ColumnLevels.from_batches(batches, strategy.predictor, max_levels=max_levels)
            _check_sizes(levels)
            with torch.no_grad():
                strategy._initialize_once()
                data = DiscretizedData.from_batches(batches, levels, strategy, _fixed_mean(strategy), num_threads)
            problem = _Problem(model, likelihood, levels, len(data))
            if isinstance(likelihood, GaussianLikelihood):
                optimum, history = _fit_gaussian(problem, data, tolerance, callback)
            else:
                start = _fit_sample(problem, batches, levels, len(data)) if len(data) > 4 * _SAMPLE_SIZE else None
                fit = _Sites(problem, data)
                history = fit.run(start, max_passes, tolerance, callback)
                optimum = fit.optimum
            strategy.set_whitened_posterior(optimum.mean, optimum.precision)
    finally:
        model.eval()
        likelihood.eval()
    return history


@contextmanager
def _one_thread(is_wanted: bool) -> Iterator[None]:
    """Threads of torch wait for each other where matrices are small. Rows are shared among threads all the same."""
    before = torch.get_num_threads()
    if is_wanted:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _check_supported(strategy: AdditiveVariationalStrategy, likelihood: Likelihood) -> None:
    predictor = strategy.predictor
    multiplied = [name for group in predictor.groups if group.has_multiplier for name in group.names]
    if multiplied:
        raise NotImplementedError(
            f"components {multiplied} have multipliers (`by`), which are not discretised: use fit and polish"
        )
    mean = predictor.means[0]
    if _fixed_mean(strategy) is not None and any(parameter.requires_grad for parameter in mean.parameters()):
        raise NotImplementedError(
            f"the mean module, a {type(mean).__name__}, has trainable parameters, and of these only a ConstantMean "
            "can be trained on discretised data: set requires_grad_(False) to keep it as it is"
        )
    if isinstance(unwrapped(likelihood), FixedNoiseGaussianLikelihood):
        raise NotImplementedError(
            "FixedNoiseGaussianLikelihood has a noise of each row, but fit_discretized takes no row-wise argument: use "
            "fit and polish"
        )
    trainable = [name for name, parameter in likelihood.named_parameters() if parameter.requires_grad]
    if trainable and not isinstance(likelihood, GaussianLikelihood):
        raise NotImplementedError(
            f"{type(likelihood).__name__} has trainable parameters {trainable}, which only a Gaussian likelihood may "
            "have here: set requires_grad_(False) to keep them as they are"
        )
    if predictor.num_inducing_total > _MAX_INDUCING:
        raise ValueError(
            f"the model has {predictor.num_inducing_total} inducing variables, and this fit factorises dense matrices "
            f"of that size, up to {_MAX_INDUCING}: use fit and polish"
        )


def _check_sizes(levels: ColumnLevels) -> None:
    sizes = [levels.num_levels(term) for term in levels.terms]
    total = sum(first * second for first, second in itertools.combinations(sizes, 2))
    if total > _MAX_TABLE_ENTRIES:
        raise ValueError(
            f"the tables of pairs of levels would have {total} entries, more than {_MAX_TABLE_ENTRIES}: lower "
            f"max_levels; the numbers of levels are {dict(zip(levels.terms, sizes, strict=True))}"
        )


def _fixed_mean(strategy: AdditiveVariationalStrategy) -> Any:
    """The mean module, if it is neither zero nor a constant, which need no rows."""
    mean = strategy.predictor.means[0]
    return None if isinstance(mean, ZeroMean | ConstantMean) else mean


class _Problem:
    """What both kinds of fit share: the model as a function of tables, and moves of its hyperparameters."""

    def __init__(
        self, model: gpytorch.models.ApproximateGP, likelihood: Likelihood, levels: ColumnLevels, num_rows: int
    ) -> None:
        self.model, self.likelihood = model, likelihood
        self.strategy: AdditiveVariationalStrategy = model.variational_strategy
        self._is_rounded = [not levels.is_exact(term) for term in levels.terms]
        self.terms = [
            [levels.terms.index(tuple(columns)) for columns in group.columns.tolist()]
            for group in self.strategy.predictor.groups
        ]
        variational = {id(parameter) for parameter in self.strategy._variational_distribution.parameters()}
        unique = {id(p): p for p in (*model.parameters(), *likelihood.parameters()) if p.requires_grad}
        self.hyperparameters = [parameter for key, parameter in unique.items() if key not in variational]
        self._num_rows = num_rows
        self._ascent = QuasiNewton(self.hyperparameters, [self._curvature(p, num_rows) for p in self.hyperparameters])

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

    def optimum(self, statistics: LevelStatistics, num_rows: int) -> GaussianOptimum:
        """The optimal posterior and its bound. Of sites the bound lacks a constant, and ``num_rows`` is 0."""
        return gaussian_optimum(statistics(self.constant())._replace(num_rows=num_rows), self.noise())

    def moments(self, data: DiscretizedData, optimum: GaussianOptimum) -> tuple[MomentTables, float]:
        """
        Moments of the predictor at the levels without mean module, and the divergence from the prior in nats.

        :param data: That have the levels.
        :param optimum: The posterior.
        """
        cholesky = torch.linalg.cholesky(optimum.precision)
        covariance = torch.cholesky_inverse(cholesky)
        excess = covariance.diagonal() - 1.0 + 2.0 * cholesky.diagonal().log() + optimum.mean.square()
        tables = moment_tables(self.strategy, self.terms, data.places, optimum.mean, covariance)
        return tables, 0.5 * excess.sum().item()

    def narrow_prior(self, data: DiscretizedData) -> GaussianOptimum:
        """The prior, so much narrower that variances are no larger than 1: exponential links overflow."""
        size = self.strategy.predictor.num_inducing_total
        identity = torch.eye(size, dtype=torch.float64, device=self.strategy.predictor.device)
        prior = GaussianOptimum(identity[0] * 0.0, identity, identity[0, 0] * math.nan)
        with torch.no_grad():
            variances = data.moments(self.moments(data, prior)[0])[1]
        return prior._replace(precision=identity * variances.amax().clamp_min(1.0))

    def maximise(
        self, tables: LevelTables, statistics: LevelStatistics, num_rows: int, nats: float, steps: int
    ) -> None:
        """
        Move the hyperparameters on the collapsed bound, first on fewer levels.

        :param tables: Of the rows.
        :param statistics: The same tables as statistics.
        :param num_rows: See :meth:`optimum`.
        :param nats: Stop when a step promises less.
        :param steps: Largest number.
        """
        if not self.hyperparameters:
            return
        few = self._on_fewer_levels(tables)
        if few is not None:
            with self._kept_only_if_better(statistics, num_rows):
                self._ascent.maximise(lambda: self._interpolated_objective(few, num_rows), nats, steps)
        self._ascent.maximise(lambda: self._objective(statistics, num_rows), nats, steps)

    def begin(self, tables: LevelTables, statistics: LevelStatistics, num_rows: int, steps: int) -> None:
        """
        Move the hyperparameters as far as a part of the rows would.

        :param tables: Of all rows.
        :param statistics: The same tables as statistics.
        :param num_rows: Of these.
        :param steps: Largest number.
        """
        part = tables.scaled(_FIRST_ROWS / num_rows)
        few = self._on_fewer_levels(part) or LevelStatistics(self.strategy, self.terms, part)
        with self._kept_only_if_better(statistics, num_rows):
            self.scale_to(_FIRST_ROWS)
            try:
                self._ascent.maximise(lambda: self._interpolated_objective(few, _FIRST_ROWS), 0.1, steps)
            finally:
                self.scale_to(num_rows)

    @contextmanager
    def _kept_only_if_better(self, statistics: LevelStatistics, num_rows: int) -> Iterator[None]:
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
    def _bound(self, statistics: LevelStatistics, num_rows: int) -> float:
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

    def _on_fewer_levels(self, tables: LevelTables) -> LevelStatistics | None:
        """None if there is nothing to be gained."""
        coarse = interpolated(tables, self._is_rounded, _NUM_KNOTS)
        is_smaller = any(len(few) < len(many) for few, many in zip(coarse.places, tables.places, strict=True))
        return LevelStatistics(self.strategy, self.terms, coarse) if is_smaller else None

    def _interpolated_objective(self, statistics: LevelStatistics, num_rows: int) -> Tensor:
        """NaN where features vary too fast for the knots: they explain more than there is, and the bound has no end."""
        sums = statistics(self.constant())
        bound = gaussian_optimum(sums._replace(num_rows=num_rows), self.noise()).bound + self._log_prior()
        explained = sums.gram.diagonal(dim1=-2, dim2=-1).sum(-1)
        return torch.where(sums.unexplained < -_LARGEST_EXCESS * explained, torch.full_like(bound, math.nan), bound)

    def _objective(self, statistics: LevelStatistics, num_rows: int) -> Tensor:
        return self.optimum(statistics, num_rows).bound + self._log_prior()

    def _log_prior(self) -> Tensor:
        """Of the hyperparameters."""
        total = torch.zeros((), dtype=torch.float64, device=self.strategy.predictor.device)
        for module in (self.model, self.likelihood):
            for _, owner, prior, closure, _ in module.named_priors():
                total = total + prior.log_prob(closure(owner)).sum()
        return total


def _fit_gaussian(
    problem: _Problem, data: DiscretizedData, tolerance: float, callback: Callable[[float], Any] | None
) -> tuple[GaussianOptimum, list[float]]:
    """Of these data the tables are all there is to know: one pass."""
    residuals = data.responses.double()
    residuals = residuals if data.offset is None else residuals - data.offset
    tables = data.tables(None, residuals, residuals.square().sum())
    statistics = LevelStatistics(problem.strategy, problem.terms, tables)
    with torch.no_grad():
        history = [problem.optimum(statistics, len(data)).bound.item()]
    if len(data) > 4 * _FIRST_ROWS:
        problem.begin(tables, statistics, len(data), _GAUSSIAN_STEPS)
    problem.maximise(tables, statistics, len(data), _SHARE_OF_TOLERANCE * tolerance, _GAUSSIAN_STEPS)
    with torch.no_grad():
        optimum = problem.optimum(statistics, len(data))
    history.append(optimum.bound.item())
    if callback is not None:
        callback(history[-1])
    return optimum, history


def _fit_sample(
    problem: _Problem, batches: Iterable[tuple[Tensor, Tensor]], levels: ColumnLevels, num_rows: int
) -> GaussianOptimum:
    """The posterior of a sample, with the precision of all rows; hyperparameters move with it."""
    strategy = problem.strategy
    sample = DiscretizedData.from_batches(
        sampled(batches, _SAMPLE_SIZE / num_rows), levels.coarser(_SAMPLE_LEVELS), strategy, _fixed_mean(strategy)
    )
    problem.scale_to(len(sample))
    fit = _Sites(problem, sample)
    fit.run(None, max_passes=30, tolerance=1.0, callback=None)
    problem.scale_to(num_rows)
    identity = torch.eye(len(fit.optimum.mean)).to(fit.optimum.precision)
    return fit.optimum._replace(precision=torch.lerp(identity, fit.optimum.precision, num_rows / len(sample)))


class _Look(NamedTuple):
    """A pass over the rows."""

    bound: float
    sites: LevelTables


class _State(NamedTuple):
    """What a fit has come to."""

    hyperparameters: list[Tensor]
    optimum: GaussianOptimum  # the posterior
    look: _Look  # at it


class _Sites:
    """The loop: posterior, sites there, and hyperparameters, as they were accepted last."""

    def __init__(self, problem: _Problem, data: DiscretizedData) -> None:
        self._problem, self._data = problem, data
        self._responses = distinct_responses(data.responses)
        self._state: _State | None = None

    @property
    def optimum(self) -> GaussianOptimum:
        """The posterior that was accepted last."""
        assert self._state is not None
        return self._state.optimum

    def run(
        self,
        start: GaussianOptimum | None,
        max_passes: int,
        tolerance: float,
        callback: Callable[[float], Any] | None,
    ) -> list[float]:
        """
        Passes until one gains no more than the tolerance.

        :param start: The posterior to begin with; None for a narrow one around the prior's mean.
        :param max_passes: Besides the first look.
        :param tolerance: In nats.
        :param callback: Called with each bound that is accepted.
        :return: These bounds.
        """
        state = self._first_state(start)
        history: list[float] = []
        rate, num_halvings = 1.0, 0
        for _ in range(max_passes):
            optimum = self._proposal(state, rate, tolerance)
            look = None if optimum is None else self._look(optimum)
            gain = -math.inf if look is None else look.bound - state.look.bound
            rounding = _ROUNDING * abs(state.look.bound)
            if optimum is None or look is None or gain < -rounding:
                self._restore(state)
                rate, num_halvings = 0.5 * rate, num_halvings + 1
                if num_halvings > _MAX_HALVINGS or (rate == 0.5 and gain >= -tolerance):
                    break  # it has arrived
                continue
            state = _State(self._hyperparameters(), optimum, look)
            history.append(look.bound)
            if callback is not None:
                callback(look.bound)
            if rate == 1.0 and gain <= tolerance:
                break
            rate, num_halvings = min(1.0, 2.0 * rate), 0
        self._state = state
        return history or [state.look.bound]

    def _first_state(self, start: GaussianOptimum | None) -> _State:
        look = None if start is None else self._look(start)
        if start is None or look is None:
            start = self._problem.narrow_prior(self._data)
            look = self._look(start)
        if look is None:
            raise ValueError(
                f"the gradient of the expected log-likelihood of {type(self._problem.likelihood).__name__} is NaN or "
                "infinite near the prior: look for such values in the responses"
            )
        return _State(self._hyperparameters(), start, look)

    def _proposal(self, state: _State, rate: float, tolerance: float) -> GaussianOptimum | None:
        """
        A part of the way to the posterior of the sites that were seen last. With a full step the hyperparameters move
        as well.

        :return: None if there is no such posterior in the range of numbers.
        """
        sites = state.look.sites
        statistics = LevelStatistics(self._problem.strategy, self._problem.terms, sites)
        try:
            if rate == 1.0:
                self._problem.maximise(sites, statistics, 0, _SHARE_OF_TOLERANCE * tolerance, _SITE_STEPS)
            with torch.no_grad():
                optimum = self._problem.optimum(statistics, 0)
        except (torch.linalg.LinAlgError, ObjectiveError):
            return None
        return optimum._replace(
            mean=torch.lerp(state.optimum.mean, optimum.mean, rate),
            precision=torch.lerp(state.optimum.precision, optimum.precision, rate),
        )

    def _hyperparameters(self) -> list[Tensor]:
        return [parameter.detach().clone() for parameter in self._problem.hyperparameters]

    @torch.no_grad()
    def _restore(self, state: _State) -> None:
        for parameter, value in zip(self._problem.hyperparameters, state.hyperparameters, strict=True):
            parameter.copy_(value)

    @torch.no_grad()
    def _look(self, optimum: GaussianOptimum) -> _Look | None:
        """
        The bound and the sites at a posterior, from one pass over the rows.

        :param optimum: The posterior.
        :return: None if there are infinite numbers.
        """
        problem, data = self._problem, self._data
        tables, divergence = problem.moments(data, optimum)
        mean, variance = data.moments(tables)
        mean += problem.constant()
        curvatures, targets = torch.empty_like(mean), torch.empty_like(mean)
        derivatives = self._derivatives(mean, variance)

        def differentiate(rows: slice) -> Tensor:
            fitted, found = mean[rows], derivatives(rows)
            curvatures[rows] = found.curvatures
            targets[rows] = torch.addcmul(found.gradients, found.curvatures, fitted)
            # What does not depend on the hyperparameters, g^2 / lambda, is left out.
            square = (found.curvatures * fitted.square() + 2 * found.gradients * fitted).sum()
            return torch.stack([found.expected.sum(), square])

        expected, squares = torch.stack(data.map_rows(differentiate)).sum(0)
        if not torch.isfinite(targets.sum() + curvatures.sum() + expected):
            return None
        return _Look(expected.item() - divergence, data.tables(curvatures, targets, squares))

    def _derivatives(self, mean: Tensor, variance: Tensor) -> Callable[[slice], ExpectedGradients]:
        """
        Those of the expected log-likelihood, as a function of the rows.

        :param mean: Of the predictor without offset, ``(n,)``.
        :param variance: Of the predictor, ``(n,)``.
        """
        data, likelihood, dtype = self._data, self._problem.likelihood, self._problem.strategy.predictor.dtype
        total = mean if data.offset is None else mean + data.offset
        if self._responses is not None:
            levels, codes = self._responses
            table = tabulated(likelihood, levels, codes, total, variance)
            if table is not None:
                return lambda rows: table(codes[rows], total[rows], variance[rows])
        return lambda rows: expected_gradients(
            likelihood, data.responses[rows], total[rows].to(dtype), variance[rows].to(dtype)
        )
