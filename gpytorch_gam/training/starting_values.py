"""Starting values of hyperparameters and posterior, in the units of the responses."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import gpytorch
import torch
from gpytorch import Module
from gpytorch.kernels import AdditiveKernel, ConstantKernel, Kernel, LinearKernel, ProductKernel, ScaleKernel
from gpytorch.likelihoods import Likelihood
from gpytorch.means import ConstantMean, LinearMean, Mean, ZeroMean
from gpytorch.variational import CholeskyVariationalDistribution
from torch import Tensor

from gpytorch_gam.components import AdditivePredictor, ComponentGroup
from gpytorch_gam.kernels import ANOVAKernel, CentredKernel, CentredLinearKernel
from gpytorch_gam.likelihoods.null_model import NullModel, Responses, null_model, null_model_of_tasks
from gpytorch_gam.optim.posterior.parameters import StructuredDistribution
from gpytorch_gam.optim.processes import Processes
from gpytorch_gam.optim.rows.likelihood_check import (
    check_named_arguments,
    check_number_of_predictors,
    check_response_values,
    unwrapped,
)
from gpytorch_gam.parameters.initial_values import has_initial_value
from gpytorch_gam.variational import AdditiveVariationalStrategy, BlockLowRankPrecisionVariationalDistribution
from gpytorch_gam.variational.model_check import additive_strategy
from gpytorch_gam.warnings import TrainingLoopWarning

from ._response_sample import sampled_responses

# Largest prior variance of the constant in float32, relative to that of the effects: variances are the prior's minus
# squares.
_WIDEST_IN_SINGLE_PRECISION = 1e4

# Smallest variance of the predictor, relative to the smallest one that GPyTorch allows, to leave its posterior room.
_ROOM_ABOVE_LEAST_VARIANCE = 1e3

# Posterior variance of the constant at the start, as a share of the variance of the predictor.
_SHARE_OF_VARIANCE = 0.01

# Whitened means below this count as untrained: at the start they are noise of a tenth of this size.
_LEARNT_MEAN = 0.01

# Smallest mean, in standard deviations of the predictor, that is warned of: standardising by other rows leaves less.
_NOTABLE_MEAN = 0.25

# The lower bound of GPyTorch on noise, and of this package on noise and scales, meant for responses that vary by one.
_USUAL_BOUND = 1e-4


def start_from_responses(model: gpytorch.models.ApproximateGP, likelihood: Likelihood, batches: Iterable[Any]) -> None:
    r"""
    Set hyperparameters with their initial values to values in the units of the responses, and the predictor to that of
    the model without effects: what :func:`fit` begins with. Call it before a loop of your
    own, once; also where the model has been called before.

    Moments of the responses, seen through the link of the likelihood, give the variance of the predictor. It becomes

    - the prior variance of the terms, 25 times as much for :func:`~gpytorch_gam.terms.factor`;
    - with the square of the null model's predictor added, the prior variance of the
      :func:`~gpytorch_gam.terms.constant`, which leaves it free;
    - the scale of noise, dispersion, shape or cut-points of the likelihood.

    A trainable ``ConstantMean`` that is still zero becomes the null model's predictor, and the bias of a trainable
    ``LinearMean``, which GPyTorch draws at random, moves to where that of the rest is zero. Otherwise the posterior of
    the constant component is put there, if the posterior is still the prior. Moments come from all rows of a list of
    batches, or from the first 20000 rows of a loader. Where all terms have mean zero, nothing holds a mean of the
    responses, which is warned of.

    **What stays.** Hyperparameters with another value than their initial one, because they were set, loaded, trained or
    given to a factory; parameters with ``requires_grad=False`` (except those of a factor, which are made so);
    lengthscales; and everything if the likelihood is not known, such as one of your own.

    **In a loop of your own** standardise the responses all the same: GPyTorch's noise is nearly linear in its raw
    parameter above one, so that an optimiser such as Adam moves a noise of 500 by no more than its rate in a step.
    :func:`fit` moves the logarithm instead.

    :param model: A model whose ``variational_strategy`` is an :class:`~gpytorch_gam.AdditiveVariationalStrategy`.
    :param likelihood: Any likelihood of as many predictors.
    :param batches: Pairs of inputs ``(b, D)`` and responses ``(b)``, or triples with row-wise arguments, as for
        :func:`fit`; ``[(x, y)]`` for data in memory.
    :raises TypeError: If the model is of another kind.
    :raises ValueError: If batches or the number of predictors are not as described.

    Example:
        >>> start_from_responses(model, likelihood, loader)
        >>> adam = torch.optim.Adam([*model.hyperparameters(), *likelihood.parameters()], lr=0.1)
    """
    strategy = additive_strategy(model)
    check_number_of_predictors(strategy, likelihood)
    check_named_arguments(likelihood, batches)
    if isinstance(batches, Iterator):
        raise ValueError("batches can be gone through only once: pass a DataLoader or a list, not a generator")
    null = null_model_of(strategy, likelihood, batches)
    if null is not None:
        start_from_null_model(strategy, likelihood, null)


def null_predictor(
    likelihood: Likelihood, y: Tensor, row_arguments: Mapping[str, Tensor] | None = None
) -> Tensor | None:
    """
    The predictor of the model without effects, ``(P,)`` in float64, roughly.

    :param likelihood: Any likelihood.
    :param y: Responses ``(n,)``.
    :param row_arguments: Further arguments of the likelihood, such as offsets and weights.
    :return: The predictor, or None if the likelihood is not known, or no response is finite.
    """
    responses = Responses(y, row_arguments or {})
    null = null_model(unwrapped(likelihood), responses) if len(responses) else None
    return None if null is None else torch.tensor(null.mean, dtype=torch.float64)


def null_model_of(
    strategy: AdditiveVariationalStrategy,
    likelihood: Likelihood,
    batches: Iterable[Any],
    processes: Processes | None = None,
) -> NullModel | None:
    """The null model of the rows of all processes, mean modules as offsets; None without rows or a known likelihood."""
    sample = sampled_responses(strategy, likelihood, batches, processes or Processes(None))
    for responses in sample:  # values of batches were checked one by one, and on the CPU alone
        check_response_values(likelihood, responses.y)
    if len(sample) > 1:
        return null_model_of_tasks(unwrapped(likelihood), sample)
    return null_model(unwrapped(likelihood), sample[0]) if sample else None


@torch.no_grad()
def start_from_null_model(strategy: AdditiveVariationalStrategy, likelihood: Likelihood, null: NullModel) -> NullModel:
    """Set starting values for a null model; returns its part that is left to the constant components."""
    _warn_of_small_units(strategy, null)
    _start_likelihood(unwrapped(likelihood), null)
    rest = null._replace(mean=_start_means(strategy, null))
    _warn_of_missing_constants(strategy, rest)
    for group in strategy.predictor.groups:
        mean, variance = rest.mean[group.predictor_index], rest.variance[group.predictor_index]
        if _is_constant(group):
            _start_constant(group, mean, variance)
        else:
            _scale_kernel(group.kernel, variance)
    _start_posterior(strategy, rest)
    return rest


def null_mean(strategy: AdditiveVariationalStrategy, null: NullModel) -> Tensor:
    """The whitened mean ``(Q,)``, float64, that gives the null model's predictor: zero but for constant components."""
    predictor = strategy.predictor
    mean = torch.zeros(predictor.num_inducing_total, dtype=torch.float64, device=predictor.device)
    for p, group, place in _constants(predictor):
        mean[place] = null.mean[p] / group.mean_prior_variance().double().mean().sqrt()
    return mean


def units_of_means(strategy: AdditiveVariationalStrategy, null: NullModel) -> dict[int, float]:
    """The predictor's standard deviation, by the ids of the mean modules' parameters that have its unit."""
    return {
        id(parameter): math.sqrt(variance)
        for module, variance in zip(mean_modules(strategy), null.variance, strict=True)
        if isinstance(module, ConstantMean | LinearMean)
        for parameter in module.parameters()
    }


def _warn_of_small_units(strategy: AdditiveVariationalStrategy, null: NullModel) -> None:
    dtype, smallest = strategy.predictor.dtype, min(null.variance)
    least = gpytorch.settings.min_variance.value(dtype)
    if smallest < _ROOM_ABOVE_LEAST_VARIANCE * least:
        warnings.warn(
            f"the responses vary by about {math.sqrt(smallest):.1g}, and GPyTorch rounds variances below {least:.0e} "
            f"up in {dtype}, which bands show: multiply the responses, or use float64",
            TrainingLoopWarning,
            stacklevel=4,
        )


def _warn_of_missing_constants(strategy: AdditiveVariationalStrategy, rest: NullModel) -> None:
    """Warn where no term can hold the mean: effects of mean zero then bend, and take variance, to imitate it."""
    own = {id(parameter) for parameter in strategy.parameters()}
    if any(id(parameter) not in own and parameter.requires_grad for parameter in strategy.model.parameters()):
        return  # the model's own forward may add a trained mean
    for p, (module, mean, variance) in enumerate(zip(strategy.predictor.means, rest.mean, rest.variance, strict=True)):
        groups = [group for group in strategy.predictor.groups if group.predictor_index == p]
        is_trained = any(parameter.requires_grad for parameter in module.parameters())
        is_small = abs(mean) < _NOTABLE_MEAN * math.sqrt(variance)
        if is_small or is_trained or not all(_has_mean_zero(group.kernel) for group in groups):
            continue
        term = "constant()" if len(rest.mean) == 1 else f"constant(predictor={p})"
        warnings.warn(
            f"no term of the predictor can hold the mean of the responses, {mean:.3g} on its scale, where it varies "
            f"by about {math.sqrt(variance):.3g}: add {term} of gpytorch_gam.terms to the terms (or subtract the "
            "mean from Gaussian responses)",
            TrainingLoopWarning,
            stacklevel=4,
        )


def _has_mean_zero(kernel: Kernel) -> bool:
    """Whether functions with this kernel are centred over their range, levels or data."""
    if isinstance(kernel, ScaleKernel):
        return _has_mean_zero(kernel.base_kernel)
    if isinstance(kernel, AdditiveKernel):
        return all(_has_mean_zero(part) for part in kernel.kernels)
    if isinstance(kernel, ProductKernel):
        return any(_has_mean_zero(part) for part in kernel.kernels)
    if isinstance(kernel, CentredLinearKernel):
        return bool(kernel.centre.all())  # a line through the origin has the mean of its column
    return isinstance(kernel, ANOVAKernel | CentredKernel)


def _start_likelihood(likelihood: Likelihood, null: NullModel) -> None:
    owner = getattr(likelihood, "noise_covar", likelihood)
    for name, value in null.parameters.items():
        raw_names = owner._raw_names(name) if hasattr(owner, "_raw_names") else (f"raw_{name}",)
        if all(has_initial_value(owner, raw_name) for raw_name in raw_names):
            if name in ("noise", "scale", "task_noises"):
                _lower_usual_bound(owner, raw_names[0], torch.as_tensor(value, device="cpu").min().item())
            _set_within_bounds(owner, name, value)


def _lower_usual_bound(owner: Module, raw_name: str, value: float) -> None:
    """Lower a bound meant for responses that vary by one, if it would keep others from their noise."""
    bound = getattr(owner, f"{raw_name}_constraint").lower_bound
    if bool((bound - _USUAL_BOUND).abs().max() < 1e-3 * _USUAL_BOUND):
        bound.fill_(min(_USUAL_BOUND, _USUAL_BOUND * value))


def _set_within_bounds(owner: Module, name: str, value: float | Tensor) -> None:
    """Set a parameter, unless its constraint has no room for the value."""
    constraint = getattr(owner, f"raw_{name}_constraint", None)
    like = next(owner.parameters())
    tensor = torch.as_tensor(value, dtype=like.dtype, device=like.device)
    if constraint is not None and not bool(
        ((constraint.lower_bound < tensor) & (tensor < constraint.upper_bound)).all()
    ):
        return
    setattr(owner, name, tensor)


def mean_modules(strategy: AdditiveVariationalStrategy) -> list[Module]:
    """The mean module of each predictor; for a missing one, that which GPyTorch's models add in ``forward``."""
    modules: list[Module] = list(strategy.predictor.means)
    own = getattr(strategy.model, "mean_module", None)
    if len(modules) == 1 and isinstance(modules[0], ZeroMean) and isinstance(own, Mean):
        return [own]
    return modules


def _start_means(strategy: AdditiveVariationalStrategy, null: NullModel) -> list[float]:
    """Set the constants of mean modules to the null model; returns the rest for each predictor."""
    rest = list(null.mean)
    for p, module in enumerate(mean_modules(strategy)):
        if isinstance(module, ConstantMean) and module.raw_constant.requires_grad and not module.raw_constant.any():
            module.initialize(constant=null.mean[p])
        elif isinstance(module, LinearMean) and module.bias is not None and module.bias.requires_grad:
            module.bias.add_(null.mean[p])
        else:
            continue
        rest[p] = 0.0
    return rest


def _is_constant(group: ComponentGroup) -> bool:
    return group.input_dim == 0 and not group.has_multiplier


def _constants(predictor: AdditivePredictor) -> list[tuple[int, ComponentGroup, slice]]:
    """The first constant component of each predictor: predictor index, group, and place in the inducing vector."""
    found: dict[int, tuple[int, ComponentGroup, slice]] = {}
    for group in predictor.groups:
        if _is_constant(group):
            place = predictor.inducing_slices[group.names[0]]
            found.setdefault(group.predictor_index, (group.predictor_index, group, place))
    return list(found.values())


def _start_constant(group: ComponentGroup, mean: float, variance: float) -> None:
    kernel = group.kernel
    if not isinstance(kernel, ConstantKernel) or not has_initial_value(kernel, "raw_constant"):
        return
    wanted = mean**2 + variance
    if group.inducing_points.dtype == torch.float32 and wanted > _WIDEST_IN_SINGLE_PRECISION * variance:
        wanted = _WIDEST_IN_SINGLE_PRECISION * variance
        warnings.warn(
            f"the predictor of the mean response, {mean:.3g}, is far from zero beside its standard deviation, about "
            f"{math.sqrt(variance):.3g}, for float32: subtract something from the responses, give the predictor a "
            "ConstantMean, or use float64",
            TrainingLoopWarning,
            stacklevel=4,
        )
    kernel.constant = torch.full_like(kernel.constant, wanted)


def _scale_kernel(kernel: Kernel, factor: float) -> bool:
    """Multiply a kernel's variances that have their initial values by a factor; whether it has a variance at all."""
    if isinstance(kernel, AdditiveKernel):
        return sum(_scale_kernel(part, factor) for part in kernel.kernels) > 0  # every summand is scaled
    if isinstance(kernel, ProductKernel):
        return any(_scale_kernel(part, factor) for part in kernel.kernels)  # a product scales its first factor that can
    for kind, name in ((ScaleKernel, "outputscale"), (LinearKernel, "variance"), (ConstantKernel, "constant")):
        if isinstance(kernel, kind):
            if has_initial_value(kernel, f"raw_{name}"):
                _set_within_bounds(kernel, name, factor * getattr(kernel, name))
            return True
    return False


def _start_posterior(strategy: AdditiveVariationalStrategy, null: NullModel) -> None:
    """Set the posterior to the null model, if it is untrained."""
    q = strategy._variational_distribution
    is_known = isinstance(q, (*StructuredDistribution, CholeskyVariationalDistribution)) and not q.batch_shape
    has_learnt = strategy.variational_params_initialized and bool(q.variational_mean.abs().max() > _LEARNT_MEAN)
    if not is_known or has_learnt:
        return
    strategy._initialize_once()
    q.variational_mean.copy_(null_mean(strategy, null))
    choleskys = [factor.double() for factor in strategy.inducing_choleskys()]
    _set_precision(q, _excess_at_the_start(strategy.predictor, null, choleskys), choleskys)


def _excess_at_the_start(predictor: AdditivePredictor, null: NullModel, choleskys: Sequence[Tensor]) -> list[float]:
    """
    By how much the precision of the whitened variables exceeds the prior's at the start, for each group: so that the
    predictor varies no more than in the null model. Under a log link, expectations under a wide prior are those of
    rates that are far too large, from which steps lead astray.
    """
    widest = [factor.square().sum(-1).max().item() for factor in choleskys]  # of the variances at inducing points
    total = [0.0] * predictor.num_predictors
    for group, variance in zip(predictor.groups, widest, strict=True):
        total[group.predictor_index] += 0.0 if _is_constant(group) else group.num_components * variance
    excess = []
    for group, variance in zip(predictor.groups, widest, strict=True):
        p = group.predictor_index
        ratio = variance / _SHARE_OF_VARIANCE if _is_constant(group) else total[p]
        excess.append(max(ratio / null.variance[p] - 1.0, 0.0))
    return excess


def _set_precision(distribution: Any, excess: Sequence[float], choleskys: Sequence[Tensor]) -> None:
    """Make the precision of each group's whitened variables one plus ``excess``, as far as the family can."""
    if isinstance(distribution, BlockLowRankPrecisionVariationalDistribution):
        for factor, value in zip(distribution.block_factors, excess, strict=True):
            factor.copy_(math.sqrt(value) * torch.eye(*factor.shape[-2:], dtype=factor.dtype, device=factor.device))
        return
    by_variable = [
        choleskys[0].new_full((factor[..., 0].numel(),), value) for factor, value in zip(choleskys, excess, strict=True)
    ]
    if isinstance(distribution, CholeskyVariationalDistribution):
        distribution.chol_variational_covar.copy_(torch.diag((1.0 + torch.cat(by_variable)).rsqrt()))
    elif distribution.precision_factor is not None:
        distribution.precision_factor.copy_(_widest_directions(choleskys, excess, distribution.rank))


def _widest_directions(choleskys: Sequence[Tensor], excess: Sequence[float], rank: int) -> Tensor:
    """The columns ``(Q, R)`` of the precision ``excess`` in the directions that vary most at the inducing points."""
    found = [torch.linalg.eigh(factor.mT @ factor) for factor in choleskys]
    variances = [value * each.eigenvalues.flatten() for each, value in zip(found, excess, strict=True)]
    chosen = torch.zeros_like(torch.cat(variances), dtype=torch.bool)
    chosen[torch.cat(variances).topk(rank).indices] = True
    parts = []
    for each, value, which in zip(found, excess, chosen.split([len(part) for part in variances]), strict=True):
        component, direction = which.view(each.eigenvalues.shape).nonzero(as_tuple=True)
        columns = each.eigenvalues.new_zeros(*each.eigenvalues.shape, len(component))
        columns[component, :, torch.arange(len(component))] = (
            math.sqrt(value) * each.eigenvectors[component, :, direction]
        )
        parts.append(columns.flatten(0, 1))
    return torch.block_diag(*parts)
