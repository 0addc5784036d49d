"""Training on tables of discretised inputs, whose cost hardly depends on the number of rows."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import gpytorch
import torch
from gpytorch.likelihoods import Likelihood
from gpytorch.means import ConstantMean, ZeroMean
from gpytorch.variational import CholeskyVariationalDistribution

from gpytorch_gam.data.whole_epochs import every_row
from gpytorch_gam.likelihoods.null_model import NullModel, Responses, null_model
from gpytorch_gam.mlls import GaussianOptimum
from gpytorch_gam.optim.posterior.parameters import StructuredDistribution, validated_strategy
from gpytorch_gam.optim.processes import Processes, start_from_first
from gpytorch_gam.optim.rows.likelihood_check import (
    check_response_values,
    check_row_arguments,
    unwrapped,
    with_noise_by_row,
)
from gpytorch_gam.variational import AdditiveVariationalStrategy
from gpytorch_gam.warnings import DiscretizationWarning

from .._hyperparameters import hyperparameters_of
from .._response_sample import rows_of_all
from ..fit_result import Outcome, Recorder
from ._chunks import one_thread
from ._data import DiscretizedData, check_sizes, rows_for, sampled
from ._problem import DiscretizedProblem, is_closed_form
from ._site_fit import SHARE_OF_TOLERANCE, SiteFit
from ._statistics import BinStatistics
from .column_bins import ColumnBins, bins_of_processes
from .fit_statistics import FitStatistics

# Numbers of bins of a column read alone, of each of two read together, and of each of more. The rounding error is far
# below the posterior's uncertainty, and tables of pairs of them stay in the cache.
MAX_BINS = (256, 64, 16)

# Largest number of steps of the hyperparameters with a Gaussian likelihood, and of passes over the rows with others.
_GAUSSIAN_STEPS, _MAX_PASSES = 200, 50

# With other likelihoods, data of more than four times this size are first fitted to a sample of it, on fewer bins;
# least number of rows of it that a process gives.
_SAMPLE_SIZE, _SAMPLE_BINS, _LEAST_SHARE = 20000, (64, 20, 8), 100

# Largest number of rows from which starting values are computed.
_NUM_MOMENT_ROWS = 100000

# Largest Q, because Q x Q matrices are factorised at each step.
_MAX_INDUCING = 4096

# Largest rounding error of a component, in its prior standard deviations, that is accepted at the start, and the
# largest without a warning at the end; fraction of the largest prior variance below which a component does not matter.
_LARGEST_ERROR, _LARGE_ERROR, _SMALL_VARIANCE = 1.0, 0.5, 1e-3

# What works where bins do not.
_INSTEAD = "use fit with method='rows' or method='minibatches'"

# Number of inducing variables up to which matrices are too small to profit from torch's threads.
_SMALL = 512


def run_bins(
    model: gpytorch.models.ApproximateGP,
    likelihood: Likelihood,
    batches: Iterable[Any] | FitStatistics,
    max_bins: int | Sequence[int] | None,
    bins: ColumnBins | None,
    tolerance: float,
    record: Recorder,
    processes: Processes,
    *,
    jumps: bool = True,
) -> Outcome:
    """
    Fit posterior and hyperparameters of discretised data, and if that ``jumps``, look for other maxima in the end. All
    processes call this, each with rows of its own.

    Hyperparameters that still have their initial values start from the responses. The posterior is found from scratch.
    """
    if bins is not None and not isinstance(bins, ColumnBins):
        raise TypeError(f"bins must be ColumnBins, such as ColumnBins.from_data(x, predictor), got {bins!r}")
    strategy = validated_strategy(
        model, (*StructuredDistribution, CholeskyVariationalDistribution), several_predictors=True
    )
    check_supported(strategy, likelihood)
    statistics: FitStatistics | None = None
    if isinstance(batches, FitStatistics):
        check_statistics(batches, strategy, likelihood, bins)
        statistics, bins = batches, batches.bins
        width = 1 + max(group.max_column for group in strategy.predictor.groups)
        batches = [(bins.example(width).to(strategy.predictor.device, strategy.predictor.dtype),)]
    else:
        batches = with_noise_by_row(likelihood, every_row(batches))
    try:
        with torch.inference_mode(False):
            if bins is None:
                limits = MAX_BINS if max_bins is None else max_bins
                bins = bins_of_processes(batches, strategy.predictor, limits, processes)
            check_sizes(bins)
            check_forward(strategy, batches)
            _refuse_coarse_bins(bins, strategy)
            with torch.no_grad():
                strategy._initialize_once()
            if is_closed_form(likelihood):
                if statistics is None:
                    statistics = _statistics(strategy, likelihood, batches, bins, processes)
                optimum, found = _fit_gaussian(model, likelihood, statistics, tolerance, processes, jumps)
                record(found.bound)
            else:
                data = _read(strategy, likelihood, batches, bins, processes)
                optimum, found = _fit_sites(model, likelihood, batches, bins, data, tolerance, record, jumps)
            strategy.set_whitened_posterior(optimum.mean, optimum.precision)
            start_from_first(processes, strategy, [model, likelihood])
            _warn_of_coarse_bins(bins, strategy)
    finally:
        model.eval()
        likelihood.eval()
    return found._replace(history=record.history)


def check_forward(strategy: AdditiveVariationalStrategy, batches: Iterable[Any]) -> None:
    """Refuse a model whose predictor reads other inputs than x, whose columns are discretised."""
    for x, *_ in batches:
        if not strategy.read(x[:2]).is_plain:
            raise NotImplementedError(
                f"{type(strategy.model).__name__}.forward gives its predictor other inputs than x, or adds a mean, "
                f"which is not discretised: give a constant mean to the AdditivePredictor, or {_INSTEAD}"
            )
        return


def check_supported(strategy: AdditiveVariationalStrategy, likelihood: Likelihood) -> None:
    """Raise a NotImplementedError or a ValueError for models that bins do not serve."""
    predictor = strategy.predictor
    if predictor.num_predictors != 1:
        raise NotImplementedError(
            f"model has {predictor.num_predictors} predictors, and sums over bins are made for one: {_INSTEAD}"
        )
    mean = predictor.means[0]
    if fixed_mean(strategy) is not None and any(parameter.requires_grad for parameter in mean.parameters()):
        raise NotImplementedError(
            f"the mean module, a {type(mean).__name__}, has trainable parameters, and of these only a ConstantMean "
            "can be trained on discretised data: set requires_grad_(False) to keep it as it is"
        )
    if predictor.num_inducing_total > _MAX_INDUCING:
        raise ValueError(
            f"the model has {predictor.num_inducing_total} inducing variables, and this fit factorises dense matrices "
            f"of that size, up to {_MAX_INDUCING}: {_INSTEAD}"
        )


def check_statistics(
    statistics: FitStatistics, strategy: AdditiveVariationalStrategy, likelihood: Likelihood, bins: ColumnBins | None
) -> None:
    """Refuse what sums over the rows cannot serve."""
    if bins is not None:
        raise ValueError("bins are those of the statistics: leave out bins")
    if not is_closed_form(likelihood):
        raise NotImplementedError(
            f"FitStatistics determine a fit with a Gaussian likelihood, and {type(unwrapped(likelihood)).__name__} "
            "needs the rows in each pass: give batches of these in place of their statistics"
        )
    mean = fixed_mean(strategy)
    if mean is not None:
        raise NotImplementedError(
            f"the mean module, a {type(mean).__name__}, is a function of the rows, which FitStatistics do not hold: "
            "give its values as the row-wise argument offset when the statistics are made"
        )
    check_row_arguments(likelihood, statistics.row_arguments)


def _refuse_coarse_bins(bins: ColumnBins, strategy: AdditiveVariationalStrategy) -> None:
    """Refuse bins within which a component varies as much as under its prior."""
    errors = bins.max_error(strategy.predictor)
    blurred = {name: error for name, error in errors.items() if error > _LARGEST_ERROR}
    if blurred:
        raise ValueError(
            f"components {sorted(blurred)} vary within a bin as much as they vary at all: the step between "
            "the bins of their columns is longer than their lengthscales. Raise max_bins, give these columns on "
            "another scale, start with longer lengthscales, fix the period of periodic kernels "
            f"(requires_grad_(False)), whose columns are then taken modulo the period, or {_INSTEAD}"
        )


def _warn_of_coarse_bins(bins: ColumnBins, strategy: AdditiveVariationalStrategy) -> None:
    errors = bins.max_error(strategy.predictor)
    variances = {
        name: variance
        for group in strategy.predictor.groups
        if group.input_dim
        for name, variance in zip(
            group.names, group.mean_prior_variance().expand(len(group.names)).tolist(), strict=True
        )
    }
    blurred = [
        f"{name} ({errors[name]:.2f})"
        for name, variance in variances.items()
        if errors[name] > _LARGE_ERROR and variance > _SMALL_VARIANCE * max(variances.values())
    ]
    if blurred:
        warnings.warn(
            f"components {', '.join(blurred)} vary within the bins to which their columns are rounded, by this part "
            "of their prior standard deviation, and the fit takes that for noise: raise max_bins, or go on with fit",
            DiscretizationWarning,
            stacklevel=4,
        )


def fixed_mean(strategy: AdditiveVariationalStrategy) -> Any:
    """The mean module, unless it is zero or a constant, which can be handled without the rows."""
    mean = strategy.predictor.means[0]
    return None if isinstance(mean, ZeroMean | ConstantMean) else mean


def _constant(strategy: AdditiveVariationalStrategy) -> float:
    """The value of a constant mean module."""
    mean = strategy.predictor.means[0]
    return mean.constant.item() if isinstance(mean, ConstantMean) else 0.0


@torch.no_grad()
def _null_model(
    strategy: AdditiveVariationalStrategy, likelihood: Likelihood, data: DiscretizedData
) -> NullModel | None:
    """The null model of equally spaced rows with the mean module as offset; None if the likelihood is not known."""
    rows = slice(None, None, max(1, data.num_all // _NUM_MOMENT_ROWS))
    y = data.responses[rows]
    offset = _constant(strategy) + (y.new_zeros(len(y)) if data.offset is None else data.offset[rows])
    arguments = {name: value[rows] for name, value in data.arguments.items()}
    if data.weights is not None:
        arguments["weights"] = data.weights[rows]
    arguments, y, offset = rows_of_all(data.processes, arguments, y, offset)
    return null_model(unwrapped(likelihood), Responses(y, {**arguments, "offset": offset}))


@torch.no_grad()
def _statistics(
    strategy: AdditiveVariationalStrategy,
    likelihood: Likelihood,
    batches: Iterable[Any],
    bins: ColumnBins,
    processes: Processes,
) -> FitStatistics:
    """The sums over the rows of all processes, in one pass that keeps none of them."""
    with processes.sharing_errors("read its rows", strategy.predictor.device):
        own = FitStatistics.of_rows(rows_for(likelihood, strategy, batches), bins, fixed_mean(strategy))
    return own.of_all(processes)


@torch.no_grad()
def _read(
    strategy: AdditiveVariationalStrategy,
    likelihood: Likelihood,
    batches: Iterable[Any],
    bins: ColumnBins,
    processes: Processes,
) -> DiscretizedData:
    """The rows of this process as indices of bins."""
    mean, num_threads = fixed_mean(strategy), torch.get_num_threads()
    data = DiscretizedData.from_batches(batches, bins, strategy, likelihood, mean, num_threads, processes)
    with processes.sharing_errors("fit its responses", strategy.predictor.device):
        check_response_values(likelihood, data.responses.cpu())
    return data


def _fit_gaussian(
    model: gpytorch.models.ApproximateGP,
    likelihood: Likelihood,
    sums: FitStatistics,
    tolerance: float,
    processes: Processes,
    jumps: bool,
) -> tuple[GaussianOptimum, Outcome]:
    """The fit from sums over the rows, which is that of the first process."""
    strategy = model.variational_strategy
    with processes.sharing_errors("fit the sums over the rows", strategy.predictor.device):
        own = _fit_sums(model, likelihood, sums, tolerance, jumps) if processes.leads else None
    found = processes.of_first(None if own is None else own[1])
    assert found is not None
    size = strategy.predictor.num_inducing_total
    if own is None:
        empty = torch.empty(size, size + 1, dtype=torch.float64, device=strategy.predictor.device)
        optimum = GaussianOptimum(empty[:, 0].contiguous(), empty[:, 1:].contiguous(), empty[0, 0])
    else:
        optimum = own[0]
    processes.broadcast(optimum)
    processes.broadcast(hyperparameters_of(model, likelihood))
    return optimum, found


def _fit_sums(
    model: gpytorch.models.ApproximateGP, likelihood: Likelihood, sums: FitStatistics, tolerance: float, jumps: bool
) -> tuple[GaussianOptimum, Outcome]:
    """The fit from sums over the rows, by one process."""
    strategy = model.variational_strategy
    with one_thread(strategy.predictor.num_inducing_total <= _SMALL):
        null = sums.null_model(likelihood, _constant(strategy))
        problem = DiscretizedProblem(model, likelihood, sums.bins, sums.total_weight, null)
        statistics = BinStatistics(strategy, problem.terms, sums.tables(strategy.predictor.device))
        try:
            found = problem.ascend(statistics, SHARE_OF_TOLERANCE * tolerance, _GAUSSIAN_STEPS, jumps)
        except BaseException:  # an interrupted fit has the posterior of where it is
            with suppress(Exception), torch.no_grad():
                optimum = problem.optimum(statistics)
                strategy.set_whitened_posterior(optimum.mean, optimum.precision)
            raise
        with torch.no_grad():
            optimum = problem.optimum(statistics)
    return optimum, Outcome(
        history=[],
        bound=optimum.bound.item(),
        gradient=found.gradient,
        open=found.open,
        stopped=found.stopped,
        passes=1,
        evaluations=problem.evaluations,
        of_small_variance=problem.of_small_variance(),
    )


def _fit_sites(
    model: gpytorch.models.ApproximateGP,
    likelihood: Likelihood,
    batches: Iterable[Any],
    bins: ColumnBins,
    data: DiscretizedData,
    tolerance: float,
    record: Recorder,
    jumps: bool,
) -> tuple[GaussianOptimum, Outcome]:
    """The fit by passes over the rows, which are kept as indices of bins."""
    strategy = model.variational_strategy
    with one_thread(strategy.predictor.num_inducing_total <= _SMALL):
        null = _null_model(strategy, likelihood, data)
        problem = DiscretizedProblem(model, likelihood, bins, data.num_rows, null)
        start_from_first(data.processes, strategy, [model, likelihood])
        start = _fit_sample(problem, batches, bins, data) if _suits_a_sample(data) else None
        fit = SiteFit(problem, data)
        accepted = fit.run(start, _MAX_PASSES, tolerance, record, jumps)
    _check_progress(fit, tolerance)
    return fit.optimum, Outcome(
        history=[],
        bound=accepted[-1],
        gradient=fit.gradient,
        open=fit.open,
        stopped=fit.stopped,
        passes=fit.passes,
        evaluations=data.processes.of_first(problem.evaluations + fit.evaluations),
        of_small_variance=problem.of_small_variance(),
    )


def _check_progress(fit: SiteFit, tolerance: float) -> None:
    if not fit.has_moved and fit.open > tolerance:
        raise RuntimeError(
            f"no step from the model without effects raised the bound, though one promised {fit.open:.3g} nats: the "
            "likelihood may not be log-concave, or the responses may be of another scale than its fixed parameters "
            f"suppose; compare these with the responses, or {_INSTEAD}"
        )


def _suits_a_sample(data: DiscretizedData) -> bool:
    """Whether the rows are many, in each process enough for a part of the sample."""
    return data.num_all > 4 * _SAMPLE_SIZE and min(data.counts) * _SAMPLE_SIZE > _LEAST_SHARE * data.num_all


def _fit_sample(
    problem: DiscretizedProblem, batches: Iterable[Any], bins: ColumnBins, data: DiscretizedData
) -> GaussianOptimum:
    """Fit a sample, hyperparameters included, and return its posterior with the precision scaled to all rows."""
    strategy = problem.strategy
    part = sampled(batches, _SAMPLE_SIZE / data.num_all)
    sample = DiscretizedData.from_batches(
        part,
        bins.coarser(_SAMPLE_BINS),
        strategy,
        problem.likelihood,
        fixed_mean(strategy),
        processes=data.processes,
    )
    problem.scale_to(sample.num_rows)
    fit = SiteFit(problem, sample)
    fit.run(None, max_passes=30, tolerance=1.0, callback=None)
    problem.scale_to(data.num_rows)
    identity = torch.eye(len(fit.optimum.mean)).to(fit.optimum.precision)
    return fit.optimum._replace(precision=torch.lerp(identity, fit.optimum.precision, data.num_all / sample.num_all))
