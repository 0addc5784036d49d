"""The rows of a step, collected from backward passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import gpytorch
import torch
from gpytorch.mlls import MarginalLogLikelihood, VariationalELBO
from torch import Tensor

from gpytorch_gam.likelihoods.expected_gradients import curvature_of
from gpytorch_gam.variational.forward_recorder import DivergenceRecord, Recorded

from ..processes import Processes

# Objectives with a data term that is no expected log-likelihood.
_OTHER_OBJECTIVES = (
    gpytorch.mlls.PredictiveLogLikelihood,
    gpytorch.mlls.GammaRobustVariationalELBO,
    gpytorch.mlls.DeepPredictiveLogLikelihood,
)


class Batch(NamedTuple):
    """This process's rows since the last step, and derivatives of their expected log-likelihood, scaled to all data."""

    x: Tensor  # (b, D)
    gradients: Tensor  # g_n, (b, P), float64
    curvatures: Tensor  # lambda_n, (b, P, P), float64, indefinite where the likelihood is not log-concave
    num_rows: int  # of all processes
    divergence_weight: float  # in the average of the losses of all processes
    is_whole_elbo: bool  # whether its proportion to the weight of the data is that of GPyTorch


def batch_of(recorded: Recorded, num_data: int, step: int, processes: Processes, device: torch.device) -> Batch:
    """
    The rows of all forwards since the last step. Errors of one process (RuntimeError for missing or infinite gradients,
    ValueError for wrong numbers of rows, TypeError for other objectives) are raised in all, so that none waits for
    ever.
    """
    loss, error = None, None
    try:
        _check_objectives(recorded.divergences, num_data)
        loss = _derivatives_of_loss(recorded)
    except (RuntimeError, NotImplementedError, ValueError, TypeError) as caught:
        error = caught
    state = [-1 if loss is None else len(loss[0]), step]
    counts, steps = zip(*processes.gather(state, device), strict=True)
    if error is not None:
        raise error
    assert loss is not None
    _check_counts(counts, steps, num_data, processes)
    x, gradients, curvatures, weight = loss
    weight = _weight_of_all(weight, processes, device)
    # Turns derivatives of the loss into those of the bound summed over all rows, with a divergence of weight 1.
    scale = 1.0 / (processes.size * weight)
    is_whole = all(_is_whole_elbo(record.objective) for record in recorded.divergences)
    return Batch(x, -scale * gradients, curvature_of(curvatures, 2 * scale), sum(counts), weight, is_whole)


def _check_objectives(divergences: Sequence[DivergenceRecord], own_num_data: int) -> None:
    for objective in {record.objective for record in divergences}:
        if isinstance(objective, _OTHER_OBJECTIVES):
            raise TypeError(
                f"NaturalGradient maximises bounds with an expected log-likelihood, such as VariationalELBO, and "
                f"{type(objective).__name__} has none: train model.variational_parameters() with an optimiser of "
                "torch.optim for it, after remove()"
            )
        num_data = getattr(objective, "num_data", own_num_data)
        if float(num_data) != own_num_data:
            raise ValueError(
                f"the objective has num_data={num_data} and NaturalGradient num_data={own_num_data}: give both "
                "the number of rows of all data (beta of the objective is there to weigh the divergence)"
            )


def _derivatives_of_loss(recorded: Recorded) -> tuple[Tensor, Tensor, Tensor, float]:
    """
    Rows ``x`` that a backward pass has been through, derivatives of the loss in their means, ``(b, P)``, and
    covariances, ``(b, P, P)``, and that in the divergence. Other forwards are not part of the loss.
    """
    if not recorded.num_forwards:
        raise RuntimeError(
            "nothing was recorded since the last step: call the model in train mode, with gradients enabled and "
            "diag=True, before natural.step(), or pass it a closure (what a closure of another optimiser evaluates "
            "does not count)"
        )
    records = recorded.records
    if not records:
        raise RuntimeError("no gradients reached the model's output: call loss.backward() before natural.step()")
    for record in records:
        if record.x.dim() != 2:
            raise NotImplementedError(
                f"NaturalGradient takes inputs (n, D), got shape {tuple(record.x.shape)}: flatten the batch dimensions"
            )
    gradients = torch.cat([record.mean_gradient for record in records]).double()
    curvatures = torch.cat([record.variance_gradient for record in records])
    if gradients.dim() == 1:
        gradients, curvatures = gradients[:, None], curvatures[:, None, None]
    not_finite = ~(torch.isfinite(gradients).all(-1) & torch.isfinite(curvatures).flatten(1).all(-1))
    weights = [record.weight.double() for record in recorded.divergences]
    weight = torch.stack(weights).sum() if weights else gradients.new_zeros(())
    num_not_finite, divergence_weight = torch.stack([not_finite.sum().to(weight), weight]).tolist()
    if num_not_finite:
        raise RuntimeError(
            f"the gradient of the loss is NaN or infinite in {num_not_finite:.0f} of {len(gradients)} rows: look for "
            "such values in the data, or for an overflow in the likelihood"
        )
    if not divergence_weight >= 0:
        raise ValueError(
            f"the loss falls with the Kullback-Leibler divergence (by {-divergence_weight:.3g} a nat): pass the "
            "gradients of loss = -mll(model(x), y), with the minus sign, and leave maximize=False in optimisers"
        )
    return torch.cat([record.x for record in records]), gradients, curvatures, divergence_weight


def _check_counts(counts: Sequence[int], steps: Sequence[int], num_data: int, processes: Processes) -> None:
    if min(counts) < 0:
        raise RuntimeError(
            f"process {counts.index(min(counts))} of process_group has no gradients for this step: see its error"
        )
    if len(set(steps)) > 1:
        raise RuntimeError(
            f"the processes of process_group have taken {list(steps)} steps: load a state in all of them, and step "
            "in all as often"
        )
    if min(counts) == 0 and not processes.is_alone:
        raise RuntimeError(f"the processes of process_group have {list(counts)} rows in this step: each needs some")
    padding = processes.size - 1  # a DistributedSampler repeats rows to give all processes as many
    if sum(counts) > num_data + padding:
        raise ValueError(
            f"{sum(counts)} rows since the last step are more than num_data={num_data}, the number of rows of "
            "all data (not of batches): pass num_data=len(y), and step at least once in a pass over the data"
        )


def _weight_of_all(weight: float, processes: Processes, device: torch.device) -> float:
    """The weight of the divergence in the average of the losses of all processes."""
    if not processes.is_alone:
        own = torch.tensor(weight, dtype=torch.float64, device=device)
        weight = processes.sum([own])[0].item() / processes.size
    if weight == 0.0:
        raise RuntimeError(
            "the Kullback-Leibler divergence was not differentiated, and its weight in the loss is what the data "
            "are weighed against: use gpytorch.mlls.VariationalELBO, or model.variational_strategy.kl_divergence() "
            "/ num_data in a loss per row of your own, and differentiate in model.variational_parameters(), too"
        )
    return weight


def _is_whole_elbo(objective: MarginalLogLikelihood | None) -> bool:
    """Whether the divergence has the weight, relative to the data, that GPyTorch gives it."""
    return (
        isinstance(objective, VariationalELBO)
        and objective.combine_terms
        and type(objective).forward is VariationalELBO.forward
    )
