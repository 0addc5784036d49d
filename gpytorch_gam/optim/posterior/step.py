"""A natural-gradient step of a structured posterior, given the derivatives of some rows or of all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gpytorch_gam.numerics.blocks import diagonal_blocks, multiply_blocks, split_groups
from gpytorch_gam.numerics.capacitance import add_identity
from gpytorch_gam.numerics.matrix_free_fit import (
    StreamingFit,
    factor_analysis_round,
    fit_from_scratch,
    fit_round,
    mixed_product,
    remainder_factors,
)
from gpytorch_gam.numerics.precision import CovarianceFactors, precision_covariance_factors
from gpytorch_gam.numerics.precision_fit import fit_block_low_rank, leading_root

from ..rows.sums import RowSums
from .posterior import Posterior, precision_solve, step_length

# Up to this many inducing variables, a step that forgets the old posterior is taken with a dense Q x Q matrix: that
# is exact, and no slower than the products with the features that do without it.
DENSE_LIMIT = 512

# Columns of the subspace iteration beyond R: they speed up its convergence and cost little.
OVERSAMPLING = 8

# Products with the target precision in a round. The paper's family has one round, at first from random directions.
_ITERATIONS, _FIRST_ITERATIONS = 2, 6


class Family(NamedTuple):
    """The precisions that a variational distribution can represent."""

    has_blocks: bool  # whether D is more than the identity
    rank: int  # columns R of B


class Step(NamedTuple):
    """A new posterior and the quantities it was computed from."""

    posterior: Posterior
    # Factors of its precision, with the blocks that the family cannot hold; in the place of the mean is the gradient.
    factors: CovarianceFactors
    totals: list[Tensor]  # diagonal blocks of the precision beyond the identity, for each group
    rate: Tensor  # size of the step, (): directions beyond B hold only this share of the rows' curvature


def dense_step(
    old: Posterior, features: RowSums, gram: Tensor, projected: Tensor, family: Family, is_first: bool
) -> Step:
    r"""
    A step of size 1: the fit of :math:`I + \Phi\Lambda\Phi^\top` to the family (from scratch if ``is_first``), and
    Newton's step of the mean, from the dense matrix ``(Q, Q)`` and :math:`\Phi g`, ``(Q,)``.
    """
    shapes = old.shapes
    totals = diagonal_blocks(gram, shapes)
    start = None if is_first else [root @ root.mT for root in old.block_factors]
    fit = _dense_fit(gram, totals, shapes, family, start)
    gradient = projected - old.mean
    factors, _ = precision_covariance_factors(gradient, _factor(fit, family), fit.block_factors)
    direction = torch.cholesky_solve(gradient.unsqueeze(-1), torch.linalg.cholesky(add_identity(gram))).squeeze(-1)
    mean = old.mean + step_length(gradient, direction, features.resistance(direction)) * direction
    return Step(
        Posterior(mean, _factor(fit, family), fit.block_factors, fit.directions), factors, totals, gram.new_ones(())
    )


def streamed_step(old: Posterior, features: RowSums, rate: Tensor, family: Family, forgets: bool = False) -> Step:
    """A step of size r, ``()`` (1 if it forgets the old precision), in time linear in the number of components."""
    new_blocks, projected = features.totals(old.shapes)
    if forgets:
        totals, fit = new_blocks, _fit_forgetting(old, features, new_blocks, family)
    else:
        totals, fit = _fit_mixing(old, features, new_blocks, rate, family)
    return _with_streamed_mean(old, features, rate, family, fit, totals, projected)


def exact_step(old: Posterior, features: RowSums, rate: Tensor, family: Family) -> Step:
    """
    A step of size r, ``()``, for derivatives without noise, in linear time: removes the blocks' part before it seeks B,
    so that steps of size 1 lead to the best fit of the family. The old B and blocks should be decent starts.
    """
    new_blocks, projected = features.totals(old.shapes)
    own, totals = _mixed_blocks(old, new_blocks, rate)
    if old.shared_factor is None or old.directions is None:
        fit = StreamingFit(None, remainder_factors(totals, None))
        return _with_streamed_mean(old, features, rate, family, fit, totals, projected)
    apply = mixed_product(features.apply, old.shared_factor, rate)
    if family.has_blocks:
        scaled = [rate * block for block in own]
        fit = factor_analysis_round(
            lambda columns: apply(columns) - multiply_blocks(scaled, columns),
            own,
            totals,
            old.directions,
            family.rank,
            _ITERATIONS,
        )
    else:
        fit = fit_round(apply, None, totals, old.directions, family.rank, _ITERATIONS)
    return _with_streamed_mean(old, features, rate, family, fit, totals, projected)


def _with_streamed_mean(
    old: Posterior,
    features: RowSums,
    rate: Tensor,
    family: Family,
    fit: StreamingFit,
    totals: list[Tensor],
    projected: Tensor,
) -> Step:
    gradient = projected - old.mean
    factors, _ = precision_covariance_factors(gradient, _factor(fit, family), fit.block_factors)
    direction = precision_solve(factors)
    mean = old.mean + rate * step_length(gradient, direction, features.resistance(direction)) * direction
    return Step(Posterior(mean, _factor(fit, family), fit.block_factors, fit.directions), factors, totals, rate)


def _mixed_blocks(old: Posterior, new_blocks: list[Tensor], rate: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    r"""The old :math:`E_c E_c^\top`, and the diagonal blocks of the mixture of the old precision and the new one."""
    own = [root @ root.mT for root in old.block_factors]
    before = own
    if old.shared_factor is not None:
        parts = split_groups(old.shared_factor, old.shapes)
        before = [block + part @ part.mT for block, part in zip(own, parts, strict=True)]
    return own, [torch.lerp(block, new, rate) for block, new in zip(before, new_blocks, strict=True)]


def _factor(fit: StreamingFit, family: Family) -> Tensor | None:
    return None if fit.directions is None else fit.directions[:, : family.rank]


def _dense_fit(
    gram: Tensor,
    totals: list[Tensor],
    shapes: Sequence[tuple[int, int]],
    family: Family,
    start: Sequence[Tensor] | None,
) -> StreamingFit:
    if family.rank == 0:
        return StreamingFit(None, remainder_factors(totals, None))
    if not family.has_blocks:
        directions = leading_root(gram, min(family.rank + OVERSAMPLING, len(gram))).flip(-1)
        return StreamingFit(directions, remainder_factors(totals, directions[:, : family.rank]))
    roots, factor = fit_block_low_rank(gram, shapes, family.rank, [size for _, size in shapes], start)
    return StreamingFit(with_more_directions(factor), roots)


def with_more_directions(factor: Tensor) -> Tensor:
    """The factor ``(Q, R)`` with some small random columns, to start a subspace iteration."""
    size, rank = factor.shape
    more = torch.randn(size, min(OVERSAMPLING, size - rank), dtype=factor.dtype, device=factor.device)
    return torch.cat([factor, 1e-3 * more * factor.square().mean().sqrt().clamp_min(1.0)], dim=-1)


def with_directions(posterior: Posterior) -> Posterior:
    """The posterior, with random directions beyond B if it has none."""
    if posterior.directions is not None or posterior.shared_factor is None:
        return posterior
    return posterior._replace(directions=with_more_directions(posterior.shared_factor))


def _fit_forgetting(old: Posterior, features: RowSums, totals: list[Tensor], family: Family) -> StreamingFit:
    if old.directions is None:
        return StreamingFit(None, remainder_factors(totals, None))
    if family.has_blocks:
        return fit_from_scratch(features.apply, totals, old.directions, family.rank, _ITERATIONS)
    return fit_round(features.apply, None, totals, old.directions, family.rank, _FIRST_ITERATIONS)


def _fit_mixing(
    old: Posterior, features: RowSums, new_blocks: list[Tensor], rate: Tensor, family: Family
) -> tuple[list[Tensor], StreamingFit]:
    own, totals = _mixed_blocks(old, new_blocks, rate)
    if old.shared_factor is None or old.directions is None:
        return totals, StreamingFit(None, remainder_factors(totals, None))
    apply = mixed_product(features.apply, old.shared_factor, rate)
    base = [(1 - rate) * block for block in own] if family.has_blocks else None
    return totals, fit_round(apply, base, totals, old.directions, family.rank, _ITERATIONS)
