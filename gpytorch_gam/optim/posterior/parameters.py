"""Reading and writing the parameters of the structured variational distributions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import gpytorch
import torch
from torch import Tensor

from gpytorch_gam.numerics.grad_mode import check_trainable
from gpytorch_gam.numerics.precision_fit import leading_root
from gpytorch_gam.variational import (
    AdditiveVariationalStrategy,
    BlockLowRankPrecisionVariationalDistribution,
    LowRankPrecisionVariationalDistribution,
)
from gpytorch_gam.variational.model_check import additive_strategy

from .posterior import Posterior
from .step import Family

StructuredDistribution = (BlockLowRankPrecisionVariationalDistribution, LowRankPrecisionVariationalDistribution)


def family_of(
    distribution: BlockLowRankPrecisionVariationalDistribution | LowRankPrecisionVariationalDistribution,
) -> Family:
    """The family of precisions that a distribution can represent."""
    return Family(isinstance(distribution, BlockLowRankPrecisionVariationalDistribution), distribution.rank)


def read_posterior(
    distribution: BlockLowRankPrecisionVariationalDistribution | LowRankPrecisionVariationalDistribution,
    group_shapes: Sequence[tuple[int, int]],
) -> Posterior:
    """The posterior that the parameters describe, without directions beyond B; blocks that the family lacks are 0."""
    mean = _copied(distribution.variational_mean)
    if isinstance(distribution, BlockLowRankPrecisionVariationalDistribution):
        blocks = [_copied(factor) for factor in distribution.block_factors]
    else:
        blocks = [mean.new_zeros(count, size, size) for count, size in group_shapes]
    shared = None if distribution.precision_factor is None else _copied(distribution.precision_factor)
    return Posterior(mean, shared, blocks, None)


def _copied(parameter: Tensor) -> Tensor:
    """A float64 copy, never the parameter's own memory, which steps write to."""
    return parameter.detach().to(torch.float64, copy=True)


def parameter_values(
    distribution: BlockLowRankPrecisionVariationalDistribution | LowRankPrecisionVariationalDistribution,
    posterior: Posterior,
) -> dict[str, Tensor]:
    """The parameters that describe a posterior, by name, without the parts that the family cannot hold."""
    found = {"variational_mean": posterior.mean}
    if posterior.shared_factor is not None and distribution.precision_factor is not None:
        found["precision_factor"] = posterior.shared_factor
    if isinstance(distribution, BlockLowRankPrecisionVariationalDistribution):
        pairs = zip(distribution.block_factors, posterior.block_factors, strict=True)
        for index, (parameter, factor) in enumerate(pairs):
            columns = parameter.shape[-1]
            is_whole = columns == factor.shape[-1]
            found[f"block_factor_{index}"] = factor if is_whole else leading_root(factor @ factor.mT, columns)
    return {name: value.to(distribution.dtype) for name, value in found.items()}


def write_posterior(
    distribution: BlockLowRankPrecisionVariationalDistribution | LowRankPrecisionVariationalDistribution,
    posterior: Posterior,
) -> None:
    """Set the parameters to :func:`parameter_values`. B is resized to the posterior's rank."""
    distribution.forget_training()
    values = parameter_values(distribution, posterior)
    if "precision_factor" in values:
        distribution.resize(values["precision_factor"].shape[-1])
    for name, value in values.items():
        distribution.get_parameter(name).copy_(value)


def holds_all(
    distribution: BlockLowRankPrecisionVariationalDistribution | LowRankPrecisionVariationalDistribution,
) -> bool:
    """Whether the family has blocks without restriction, so that :func:`write_posterior` leaves nothing out."""
    return isinstance(distribution, BlockLowRankPrecisionVariationalDistribution) and all(
        parameter.shape[-1] == parameter.shape[-2] for parameter in distribution.block_factors
    )


def validated_strategy(
    model: gpytorch.models.ApproximateGP, distributions: tuple[type, ...], several_predictors: bool = False
) -> AdditiveVariationalStrategy:
    """
    The strategy of a model; a TypeError unless its distribution is one of ``distributions``, a NotImplementedError for
    batches of models, and for several predictors where they are not allowed.
    """
    strategy = additive_strategy(model)
    q = strategy._variational_distribution
    if not isinstance(q, distributions):
        names = " or a ".join(kind.__name__ for kind in distributions)
        raise TypeError(f"the model needs a {names}, got {type(q).__name__}: train that one with torch's optimisers")
    assert isinstance(strategy, AdditiveVariationalStrategy)  # no other strategy has such a distribution
    if strategy.predictor.num_predictors != 1 and not several_predictors:
        raise NotImplementedError(
            f"model has {strategy.predictor.num_predictors} predictors, and this works for one: use fit or "
            "NaturalGradient, then polish"
        )
    check_trainable(model)
    batch_shape = strategy._variational_distribution.batch_shape or strategy.predictor.batch_shape
    if batch_shape:
        raise NotImplementedError(
            f"model has batch shape {tuple(batch_shape)}: step sizes and line "
            "searches belong to single models; make one model each, or train with torch's optimisers"
        )
    return strategy


@contextmanager
def modes_kept(*modules: torch.nn.Module) -> Iterator[None]:
    """Restore the train or eval mode of each module and submodule at the end."""
    modes = [(part, part.training) for module in modules for part in module.modules()]
    try:
        yield
    finally:
        for part, is_training in modes:
            part.training = is_training
