"""The fit of a model: :func:`fit`."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Literal

import gpytorch
import torch
from gpytorch.likelihoods import Likelihood
from gpytorch.variational import CholeskyVariationalDistribution

from gpytorch_gam import _checks as checks
from gpytorch_gam._caught_warnings import warnings_at_caller
from gpytorch_gam.optim.posterior.parameters import StructuredDistribution, validated_strategy
from gpytorch_gam.optim.processes import Processes
from gpytorch_gam.optim.rows.likelihood_check import check_number_of_predictors, with_noise_by_row
from gpytorch_gam.optim.rows.stream import num_rows_of
from gpytorch_gam.variational import AdditiveVariationalStrategy
from gpytorch_gam.warnings import ConvergenceWarning

from ._choice import METHODS, Choice, choose, why_not_bins, why_not_minibatches, why_not_rows
from ._constant_inputs import warn_of_constant_inputs
from ._data_sources import as_batches
from ._hyperparameters import at_bounds
from ._method_runs import MethodRuns, RunOptions
from ._minibatches import MinibatchOptions
from ._overfitting import warn_of_overfitting
from ._progress import steps_shown
from ._rough_effects import warn_of_dependence
from ._row_count import number_of_rows
from .discretized.fit_statistics import FitStatistics
from .fit_result import Epoch, FitResult, Outcome, Recorder
from .free_hyperparameters import NO_EFFECT, effect_sizes
from .shortfall import notably_short, warn_of_shortfall

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from .discretized.column_bins import ColumnBins


def fit(
    model: gpytorch.models.ApproximateGP,
    likelihood: Likelihood,
    data: Any,
    num_data: int | None = None,
    *,
    method: str = "auto",
    tolerance: float = 0.05,
    warm_start: bool = False,
    explore: bool = True,
    num_epochs: int | Literal["auto"] | None = None,
    lr: float | None = None,
    num_held_back: int | None = None,
    patience: int | None = None,
    polish_passes: int | None = None,
    cuda_graph: bool | None = None,
    max_bins: int | Sequence[int] | None = None,
    bins: ColumnBins | None = None,
    callback: Callable[[Epoch], Any] | None = None,
    progress: bool = False,
    process_group: ProcessGroup | None = None,
) -> FitResult:
    r"""
    Fit posterior and hyperparameters to data, by the method that suits their size, and say whether the fit is done.

    **Methods.** All maximise the evidence lower bound (plus the log density of the hyperparameters' priors).

    - ``"rows"``, for data whose features fit into memory: a quasi-Newton method on the bound at the optimal posterior
      as a function of all hyperparameters. With a Gaussian likelihood that posterior is a closed form; otherwise some
      passes lead to it from the last one. Nothing is approximated. Each evaluation costs :math:`O(NQ^2 + Q^3)` for N
      rows and Q inducing variables.
    - ``"bins"``, for many rows: the same on inputs that are rounded to a few hundred bins a column, with a cost that
      hardly depends on the number of rows, see :class:`~gpytorch_gam.training.discretized.ColumnBins`.
    - ``"minibatches"``, for any size: natural gradients for the posterior
      (:class:`~gpytorch_gam.optim.NaturalGradient`) and Adam for the hyperparameters, at a rate that falls each time
      the ELBO no longer changes by more than its noise, and at last with the hyperparameters at the mean of their
      places; then a quasi-Newton ascent on all rows, whose first evaluation shows what is open. It is short for data
      of more than a million rows times inducing variables, which are read anew each time, so that memory does not grow
      with their number. With a number of epochs, the rate decays along a cosine, and only small data have the ascent.
      Weights of a network in ``forward`` (what belongs to no kernel, mean or likelihood, and has no constraint) take
      0.3 of the rate, and if they are more than twenty, they stay where they are in the ascent.

    ``"auto"`` takes rows where they are predicted to need no more than some seconds, or than one and a half times those
    of bins, or where bins would blur components of many inducing points; then bins, then minibatches, as far as each
    can be used with the model. Models with a network of more than twenty weights in ``forward`` take minibatches: rows
    would move the weights, too, for a thousand evaluations, as far as the bound rises. An option that belongs to one
    method chooses that. ``result.method`` and ``result.reason`` say which it was and why. Rows and bins give the
    hyperparameters of the optimal posterior of any precision, and then the posterior of the model's family that is
    nearest to it.

    **The end.** The result holds the bound, its gradient in the hyperparameters, and the nats that are predicted to be
    still open. A fit that leaves more than ``tolerance``, or two nats after a given number of epochs or where they can
    only be estimated, gives a :class:`~gpytorch_gam.warnings.ConvergenceWarning`. Terms that rows and bins have
    switched off on their way are looked at again before they end. Rows evaluate the bound a thousand times at most: a
    model whose ``forward`` has a network in front of its terms has hardly ever arrived by then, and the result says by
    how much the bound was still rising. The bound does not integrate over the weights of a network: with more than one
    for ten rows there is an :class:`~gpytorch_gam.warnings.OverfittingWarning`, as the fit may be best for no other
    rows than these.

    **Inducing points.** With rows, and bins in one process, terms whose ``num_inducing`` is ``"auto"`` get twice as
    many points, and the model is fitted again from where it is, while that promises the components of a term more than
    a nat, up to sixteen times the first number (eight times with several columns), 1,024 in all (640 if any component
    has more than four times its first number), and features that fit into memory. Where ``"auto"`` has begun with bins,
    and they would be too coarse for so many, it goes on with rows.
    Components that would still gain from more are named by an
    :class:`~gpytorch_gam.warnings.InducingPointsWarning`, see :func:`~gpytorch_gam.training.inducing_shortfall`.
    That is local: an effect that varies faster than the first points can follow looks like noise to them. So before the
    last fit, residuals of neighbours along the column of each curve, or in the columns of components of two and three,
    are multiplied, at several distances. Where the sum is over four standard deviations of that of independent ones,
    whatever their variances, and a further component with more points at short lengthscales would add more than five
    nats, the component gets those points and that lengthscale to start from. Where residuals are alike by six standard
    deviations and five nats when all is done, there is the same warning: of effects that no allowed lengthscale can
    follow, or of rows that are not independent. Bins and minibatches look at 20,000 rows, and
    :class:`~gpytorch_gam.training.FitStatistics` have none to look at.

    Hyperparameters with their initial values start from the responses, see
    :func:`~gpytorch_gam.training.start_from_responses`. Model and likelihood are left in eval mode, also when the fit
    is interrupted, which leaves the best state so far.

    :param model: A model whose ``variational_strategy`` is an :class:`~gpytorch_gam.AdditiveVariationalStrategy`
        without batch shape, with a low-rank, block + low-rank, mean-field or (not for minibatches) Cholesky
        distribution.
    :param likelihood: Any likelihood of as many predictors as the model has.
    :param data: ``(x, y)`` with inputs ``(n, D)`` and responses ``(n)``; or ``(x, y, arguments)``, where the last maps
        names to row-wise arguments of the likelihood, such as ``{"exposure": e, "weights": w}``; a dataset, such as a
        :class:`~gpytorch_gam.data.RowDataset`; or batches of these: a ``DataLoader``, a list of them, or batches from
        files. Responses are ``(n, T)`` for ``MultitaskGaussianLikelihood`` and models of T predictors. With a Gaussian
        likelihood also sums over the rows, :class:`~gpytorch_gam.training.FitStatistics`.
    :param num_data: Number of rows of all the data, where batches do not tell it; minibatches need it.
    :param method: ``"auto"``, ``"rows"``, ``"bins"`` or ``"minibatches"``.
    :param tolerance: Nats that may be open at the end.
    :param warm_start: Go on from the present posterior and hyperparameters, as after another fit.
    :param explore: Look for other maxima of the bound and add inducing points (rows and bins), and look at the
        residuals. ``False`` only climbs from where the hyperparameters are, as suits one more fit of a model to data,
        priors or a kernel that have changed a little.
    :param num_epochs: Number of passes over minibatches. Default ``"auto"``: until the bound has arrived.
    :param lr: Adam's rate at the start, with minibatches; weights of a network take 0.3 times this. Default 0.1.
    :param num_held_back: Number of minibatches before the hyperparameters move: while the posterior is near the prior,
        all of the data look like noise to them. Default 12, but no more than a quarter of all, and none under
        ``warm_start``. If it is the number of all, the hyperparameters stay.
    :param patience: Stop minibatches when the smoothed ELBO has not changed by more than its noise and half a nat for
        this number of epochs in which the hyperparameters moved; default never.
    :param polish_passes: Largest number of passes of :func:`~gpytorch_gam.training.polish` after minibatches.
    :param cuda_graph: Record a step with a minibatch once as a CUDA graph and replay it, for a model on a GPU whose
        batches are so small that the processor is what takes the time.
    :param max_bins: Largest number of bins of a column alone, of each of two columns that a component reads together,
        of each of three, and so on. Default 256, 64 and 16.
    :param bins: Bins made before, used instead of ``max_bins``.
    :param callback: Called with an :class:`Epoch` after each pass over minibatches, or each step of the
        hyperparameters.
    :param progress: Print which method was chosen, and show a progress bar of epochs, or of steps of the
        hyperparameters with the bound after each, which needs tqdm.
    :param process_group: Processes that call this together, each with its own rows. All start from the model and the
        likelihood of the first process, and end with the same. Minibatches need as many batches in each: a
        ``DataLoader`` with a ``DistributedSampler``, whose ``set_epoch`` a callback may call.
    :return: What was found.
    :raises TypeError: If an argument is of another kind.
    :raises ValueError: If an argument is out of range, belongs to another method than the given one, or the data cannot
        be read.
    :raises NotImplementedError: If the given method cannot be used with the model; the message says what can.
    :raises ImportError: If a progress bar is wanted and tqdm is not installed.

    Example:
        >>> result = fit(model, likelihood, (x, y))
        >>> print(result)
    """
    started = time.perf_counter()
    # A compiled module shares its parameters with the one that was compiled.
    model, likelihood = (getattr(module, "_orig_mod", module) for module in (model, likelihood))
    checks.likelihood(likelihood)
    strategy = validated_strategy(model, (*StructuredDistribution, CholeskyVariationalDistribution), True)
    check_number_of_predictors(strategy, likelihood)
    options = MinibatchOptions(num_epochs, lr, num_held_back, patience, polish_passes, cuda_graph)
    checks.choice("method", method, METHODS)
    checks.number("tolerance", tolerance, above=0)
    checks.function("callback", callback)
    for name, value in (("warm_start", warm_start), ("explore", explore), ("progress", progress)):
        checks.flag(name, value)
    processes = Processes(process_group)
    bin_options = [name for name, value in (("max_bins", max_bins), ("bins", bins)) if value is not None]
    method, given = _method_of_options(method, options.given(), bin_options)
    batches: Any
    with warnings_at_caller() as messages, ExitStack() as stack:
        options.check()
        if isinstance(data, FitStatistics):
            batches, num_rows = data, data.num_rows
            choice = _chosen_for_sums(method, processes)
        else:
            batches = with_noise_by_row(likelihood, as_batches(data))
            num_rows = _number_of_rows(batches, num_data, processes, method, strategy.predictor.device)
            choice = _chosen(method, given, model, likelihood, batches, num_rows, processes)
        if progress and processes.leads:
            print(f"fit by {choice.method}: {choice.reason}")
        shows_steps = progress and processes.leads and choice.method != "minibatches"
        record = Recorder(stack.enter_context(steps_shown(callback, shows_steps)))
        wanted = RunOptions(tolerance, warm_start, explore, max_bins, bins, options, callback, progress)
        runs = MethodRuns(
            model,
            likelihood,
            batches,
            num_rows,
            choice,
            wanted,
            record,
            processes,
            is_automatic=method == "auto",
            are_minibatches=isinstance(data, list) or data is batches,
        )
        outcome, shortfalls = runs.finish()
        dependent = runs.dependent_residuals() if outcome.has_moved else {}
        constant = runs.constant_inputs()
        if processes.leads and outcome.has_moved:
            warn_of_shortfall(shortfalls, likelihood)
            warn_of_dependence({name: dependent[name] for name in dependent.keys() - set(notably_short(shortfalls))})
            warn_of_overfitting(model, num_rows)
            _warn_if_open(outcome, tolerance)
        if processes.leads:
            warn_of_constant_inputs(constant)
    has_arrived = outcome.open <= tolerance and not constant
    strategy.has_arrived = None if math.isnan(outcome.open) else has_arrived
    return FitResult(
        method=runs.choice.method,
        reason=runs.choice.reason,
        bound=outcome.bound,
        history=outcome.history,
        gradient=outcome.gradient,
        open=outcome.open,
        converged=has_arrived,
        stopped=outcome.stopped,
        passes=outcome.passes,
        evaluations=outcome.evaluations,
        seconds=time.perf_counter() - started,
        shortfalls=shortfalls,
        at_bounds=at_bounds(model, likelihood),
        switched_off=_switched_off(strategy, outcome),
        family_gap=outcome.family_gap,
        messages=tuple(messages),
    )


def method_of_fit(
    model: gpytorch.models.ApproximateGP, likelihood: Likelihood, data: Any, num_data: int | None = None
) -> str:
    """
    The method that :func:`fit` takes under ``method="auto"``: ``"rows"``, ``"bins"`` or ``"minibatches"``.

    :param model: The model.
    :param likelihood: Its likelihood.
    :param data: The data.
    :param num_data: Number of rows of all the data, where batches do not tell it.
    """
    batches = with_noise_by_row(likelihood, as_batches(data))
    processes = Processes(None)
    num_rows = _number_of_rows(batches, num_data, processes, "auto", model.variational_strategy.predictor.device)
    return choose(model, likelihood, batches, num_rows).method


def _method_of_options(method: str, minibatches: list[str], bins: list[str]) -> tuple[str, list[str]]:
    """The method to which the given options belong, and these; a ValueError if they belong to different ones."""
    owners = {"minibatches": minibatches, "bins": bins}
    for owner, names in owners.items():
        if names and method not in ("auto", owner):
            raise ValueError(f"{', '.join(names)} belongs to method={owner!r}, but method is {method!r}")
    if minibatches and bins:
        raise ValueError(f"{minibatches[0]} belongs to method='minibatches', and {bins[0]} to method='bins'")
    found = next((owner for owner, names in owners.items() if names), method)
    return found, minibatches or bins


def _number_of_rows(
    batches: Iterable[Any], num_data: int | None, processes: Processes, method: str, device: torch.device
) -> int:
    try:
        return number_of_rows(batches, num_data, processes)
    except ValueError:
        if num_data is not None or method == "minibatches" or iter(batches) is batches:
            raise
    with processes.sharing_errors("count its rows", device):
        own = sum(num_rows_of(batch) for batch in batches)
    return sum(count for (count,) in processes.gather([own], device))


def _chosen(
    method: str,
    given: list[str],
    model: gpytorch.models.ApproximateGP,
    likelihood: Likelihood,
    batches: Iterable[Any],
    num_rows: int,
    processes: Processes,
) -> Choice:
    """The method; a NotImplementedError if it was given and cannot be used."""
    if method == "auto":
        return choose(model, likelihood, batches, num_rows)
    obstacles = {
        "rows": lambda: why_not_rows(model, likelihood, batches, num_rows),
        "bins": lambda: why_not_bins(model, likelihood, batches),
        "minibatches": lambda: why_not_minibatches(model.variational_strategy),
    }
    obstacle = obstacles[method]()
    if obstacle is not None:
        others = [other for other, why in obstacles.items() if other != method and why() is None]
        remedy = f"use method={others[0]!r}" if others else "no other method can be used, either"
        raise NotImplementedError(f"method={method!r} cannot be used: {obstacle}; {remedy}")
    return Choice(method, f"{', '.join(given)} belongs to it" if given else "it was asked for")


def _chosen_for_sums(method: str, processes: Processes) -> Choice:
    """The method for sums over the rows, which are those of bins; a ValueError if another was given."""
    if method not in ("auto", "bins"):
        raise ValueError(f"method={method!r} needs the rows, but data is FitStatistics: leave out method")
    if not processes.is_alone:
        raise ValueError("data is FitStatistics, which one process fits: add those of all, and leave out process_group")
    return Choice("bins", "the data are sums over bins")


def _switched_off(strategy: AdditiveVariationalStrategy, outcome: Outcome) -> tuple[str, ...]:
    """The components of small variance of which the data say nothing."""
    if not outcome.of_small_variance:
        return ()
    sizes = effect_sizes(strategy)
    return tuple(name for name in outcome.of_small_variance if sizes[name] < NO_EFFECT)


def _warn_if_open(outcome: Outcome, tolerance: float) -> None:
    """Warn of notable nats that are left."""
    rounding = 1e-9 * abs(outcome.bound) if math.isfinite(outcome.bound) else 0.0
    if outcome.open <= max(outcome.notable or tolerance, rounding):
        return
    most = f", most of all with {', '.join(outcome.open_names)}" if outcome.open_names else ""
    warnings.warn(
        f"the fit has not arrived: the bound promises to rise by {outcome.open:.3g} nats or more{most} (it ended "
        f"because {outcome.stopped}). {outcome.remedy}",
        ConvergenceWarning,
        stacklevel=3,
    )
