"""Warnings about training loops that work against the natural gradient. Each is given once, by the first process."""

from __future__ import annotations

import warnings

import torch

from gpytorch_gam.components import AdditivePredictor
from gpytorch_gam.variational import (
    BlockLowRankPrecisionVariationalDistribution,
    LowRankPrecisionVariationalDistribution,
)
from gpytorch_gam.warnings import CurvatureWarning, RankWarning, TrainingLoopWarning

from ._natural_state import NaturalState
from .posterior.rank import NOTABLE_LOSS
from .processes import Processes
from .rows.batch import Batch

# Frames from _warn_once to the caller of step(): a function of this module, step(), and two in which torch wraps it.
_USER_LEVEL = 6

# Number of first steps that are checked (checks wait for the device), and rows needed before curvature is judged.
_NUM_CHECKED, _NUM_ROWS = 5, 50

# Relative difference of the weight of the divergence from 1 / num_data that is more than rounding.
_WEIGHT_SLACK = 1e-3


def _warn_once(state: NaturalState, subject: str, message: str, category: type[Warning] = TrainingLoopWarning) -> None:
    if subject not in state.warned_of:
        state.warned_of += (subject,)
        warnings.warn(message, category, stacklevel=_USER_LEVEL)


def check_averages(
    state: NaturalState,
    distribution: BlockLowRankPrecisionVariationalDistribution | LowRankPrecisionVariationalDistribution,
) -> None:
    """Refuse or warn of averaged copies: each step draws new factors of the precision, whose average means nothing."""
    if distribution._averaged_by is None or distribution._averaged_by() is None:
        return
    if distribution.rank_tolerance is not None and not distribution._rank_is_settled:
        raise ValueError(
            "AveragedModel has a copy of the posterior whose automatic rank is not settled, and whose shapes will "
            "not be those of the model: make it after the first step, or give the posterior a rank"
        )
    _warn_once(
        state,
        "averages",
        "AveragedModel averages the factors of the posterior's precision, which says nothing of the average "
        "posterior when each step factorises anew: use its hyperparameters, and give them their posterior by "
        "polish(averaged.module, ...), or average natural parameters by averaging=True instead",
    )


def warn_of_weight(state: NaturalState, batch: Batch, num_data: int, processes: Processes) -> None:
    """Warn of a weight of the divergence other than 1 / num_data, unless the loss is a multiple of GPyTorch's ELBO."""
    relative = batch.divergence_weight * num_data
    if batch.is_whole_elbo or abs(relative - 1.0) <= _WEIGHT_SLACK or not processes.leads:
        return
    _warn_once(
        state,
        "weight",
        f"the Kullback-Leibler divergence has a weight of {batch.divergence_weight:.3g} in the loss, {relative:.3g} "
        f"times the 1 / num_data of a loss per row (num_data={num_data}). The posterior follows the loss as it is: "
        "that is right if the data term has the same factor; otherwise divide the divergence by the number of "
        "rows of all data where the expected log-likelihood is an average over the rows of the batch",
    )


def warn_of_order(state: NaturalState, have_moved: bool) -> None:
    """Warn if something else has set the posterior, or kernels have moved since the forward (waits for the device)."""
    if state.num_foreign >= 2:
        _warn_once(
            state,
            "order",
            "something else changes the posterior between steps: give other optimisers model.hyperparameters(), "
            "not model.parameters()",
        )
    elif have_moved:
        _warn_once(
            state,
            "order",
            "the kernels have changed since the forward: call natural.step() before that of their optimiser",
        )


def is_checked(state: NaturalState) -> bool:
    """Whether a step is one of the first few, in which checks may wait for the device."""
    return state.step < _NUM_CHECKED


def warn_of_drift(state: NaturalState, predictor: AdditivePredictor, processes: Processes) -> None:
    """Warn if the processes have different kernels."""
    if processes.is_alone or not is_checked(state):
        return
    parameters = predictor.parameters()
    bits = sum(int(parameter.detach().double().view(torch.int64).sum()) for parameter in parameters)
    found = processes.gather([bits % 2**62], predictor.device)
    if found.count(found[0]) != len(found) and processes.leads:
        _warn_once(
            state,
            "drift",
            "the kernels of the processes of process_group differ: average the gradients over the processes, by "
            "DistributedDataParallel or average_gradients, and give all the same optimiser of the hyperparameters",
        )


def warn_of_curvature(state: NaturalState, batch: Batch, processes: Processes) -> None:
    """Warn if no row of the first batches has a curvature of the right sign."""
    if state.step > _NUM_CHECKED or state.has_curvature:
        return
    has_curvature = bool((batch.curvatures.diagonal(dim1=-2, dim2=-1) >= 0).any())
    state.has_curvature = any(each for (each,) in processes.gather([has_curvature], batch.x.device))
    state.num_negative += batch.num_rows
    is_verdict = state.step == _NUM_CHECKED and state.num_negative >= _NUM_ROWS
    if is_verdict and not state.has_curvature and processes.leads:
        _warn_once(
            state,
            "curvature",
            f"the loss falls with the variance of the predictor in each row of the first {_NUM_CHECKED} batches, "
            "so nothing is learnt of it: the data enter the loss as minus the expected log-likelihood, as in "
            "-mll(model(x), y)",
            CurvatureWarning,
        )


def warn_of_rank(state: NaturalState, rank: int, missing_nats: float) -> None:
    """Warn if a fixed rank costs many nats; ``missing_nats`` is 0 in steps that did not check."""
    if missing_nats > NOTABLE_LOSS:
        _warn_once(
            state,
            "rank",
            f"rank {rank} leaves the bound about {missing_nats:.0f} nats or more below its optimum: "
            'raise the rank, or use rank="auto"',
            RankWarning,
        )
