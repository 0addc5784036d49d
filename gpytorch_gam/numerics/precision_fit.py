r"""
The structured precisions closest to a dense one, :math:`I + G` with :math:`G` positive semidefinite.

For the low-rank family the optimum is a truncated eigendecomposition. For block + low-rank, the Gaussian of precision
:math:`D + BB^\top` with the least divergence to one of precision :math:`P = I + G` is the maximum likelihood factor
analysis of P, with blocks in the place of unique variances:

- given :math:`D = LL^\top`, the best B consists of the leading eigenvectors of :math:`L^{-1} P L^{-\top} - I`, scaled
  by the roots of their eigenvalues and multiplied by L;
- at the optimum the diagonal blocks of :math:`D + BB^\top` are those of P.

The two are iterated from the mean-field fit, in which D holds the diagonal blocks of P (Lawley, 1940). The blocks
shrink and the divergence falls with every round, to a local optimum as in all factor analysis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .blocks import assemble, diagonal_blocks, multiply_blocks, solve_blocks, split_groups
from .capacitance import add_identity
from .precision import precision_covariance_factors
from .triangular import cholesky

# The largest number of rounds of a fit, and the gain in nats below which no further round is worthwhile.
_NUM_ROUNDS, _WORTHWHILE = 50, 5e-3

# Rounds beyond the first when a fit starts from that of a similar precision.
_NUM_WARM_ROUNDS = 2

# Candidates for an automatic rank grow by half of the last, rounded to multiples of 4.
_SMALLEST_RANK, _GROWTH = 4, 1.5


def leading_root(matrix: Tensor, rank: int) -> Tensor:
    r"""The best ``(*batch, k, rank)`` factor B of a symmetric matrix: :math:`BB^\top` is positive semidefinite."""
    if matrix.shape[-1] == 1:
        return matrix.clamp_min(0).sqrt()[..., :rank]  # faster, as LAPACK is called for each matrix
    values, vectors = torch.linalg.eigh(matrix)
    return vectors[..., -rank:] * values[..., -rank:].clamp_min(0).sqrt().unsqueeze(-2) if rank else vectors[..., :0]


def inverse_cholesky(precision: Tensor) -> Tensor:
    """The lower Cholesky factor of the inverse of ``(*batch, k, k)``, by reversing rows and columns twice."""
    reversed_cholesky = torch.linalg.cholesky(precision.flip(-2, -1))
    eye = torch.eye(precision.shape[-1], dtype=precision.dtype, device=precision.device)
    return torch.linalg.solve_triangular(reversed_cholesky.mT, eye, upper=True).flip(-2, -1)


def truncation_gap(excess: Tensor, rank: int) -> Tensor:
    r"""
    The divergence of the low-rank family from the optimum: :math:`\tfrac12 \sum_{i > R} (g_i - \log(1 + g_i))` nats,
    ``(*batch)``, over the eigenvalues of :math:`G`, ``(*batch, Q, Q)``, that R columns leave out.
    """
    left_out = torch.linalg.eigvalsh(excess)[..., : excess.shape[-1] - rank].clamp_min(0)
    return 0.5 * (left_out - left_out.log1p()).sum(-1)


def fit_block_low_rank(
    excess: Tensor,
    shapes: Sequence[tuple[int, int]],
    rank: int,
    block_ranks: Sequence[int],
    start: Sequence[Tensor] | None = None,
) -> tuple[list[Tensor], Tensor]:
    r"""
    Factors :math:`E_c`, ``(*batch, count, size, r)`` a group, and B, ``(*batch, Q, rank)``, with
    :math:`\mathrm{blockdiag}(E_c E_c^\top) + BB^\top \approx G`, the diagonal blocks being equal (up to the
    ``block_ranks`` r), for a positive semidefinite G, ``(*batch, Q, Q)``, and groups of ``(count, size)``. The
    divergence is never above that of the mean-field fit. Cost :math:`O(Q^3)` a round: many rounds from the mean-field
    fit, or a few from ``start``, the :math:`D - I` of the fit of a similar precision, ``(*batch, count, size, size)`` a
    group.
    """
    targets = diagonal_blocks(excess, shapes)
    best = _Fit.of(excess, targets, torch.zeros_like(excess[..., :rank]), targets)
    if rank and start is not None:
        first = _round(excess, shapes, targets, start, rank)
        best = best.better(_iterated(excess, shapes, targets, first, rank, _NUM_WARM_ROUNDS))
    elif rank:
        best = _iterated(excess, shapes, targets, best, rank, _NUM_ROUNDS)
        # The leading eigenvectors of G alone, which are exact where B can hold all of it.
        nothing = [torch.zeros_like(target) for target in targets]
        best = best.better(_round(excess, shapes, targets, nothing, rank))
    return [leading_root(block, r) for block, r in zip(best.blocks, block_ranks, strict=True)], best.factor


class _Fit(NamedTuple):
    """Factor B, blocks D - I and relative divergence of a fit, each with leading batch dimensions."""

    factor: Tensor
    blocks: list[Tensor]
    divergence: Tensor

    @classmethod
    def of(cls, excess: Tensor, targets: Sequence[Tensor], factor: Tensor, blocks: list[Tensor]) -> _Fit:
        """The fit with this factor and these blocks to G, whose diagonal blocks are the targets."""
        roots = [leading_root(block, block.shape[-1]) for block in blocks]
        return cls(factor, blocks, relative_divergence(excess.matmul, targets, factor, roots))

    def better(self, other: _Fit, where: Tensor | bool = True) -> _Fit:
        """In each element of a batch the fit with the smaller divergence, ``other`` only if ``where`` is true there."""
        wins = (other.divergence < self.divergence) & where
        return _Fit(
            torch.where(wins[..., None, None], other.factor, self.factor),
            [torch.where(wins[..., None, None, None], *pair) for pair in zip(other.blocks, self.blocks, strict=True)],
            torch.where(wins, other.divergence, self.divergence),
        )


def _iterated(
    excess: Tensor,
    shapes: Sequence[tuple[int, int]],
    targets: list[Tensor],
    start: _Fit,
    rank: int,
    num_rounds: int,
) -> _Fit:
    # Over-relaxation of the blocks saves rounds but ends at worse optima, with blocks that have shrunk to nothing.
    fit, active = start, torch.ones_like(start.divergence, dtype=torch.bool)
    for _ in range(num_rounds):
        new = fit.better(_round(excess, shapes, targets, fit.blocks, rank), where=active)
        active = active & (fit.divergence - new.divergence > _WORTHWHILE)
        fit = new
        if not active.any():
            break
    return fit


def _round(
    excess: Tensor, shapes: Sequence[tuple[int, int]], targets: Sequence[Tensor], blocks: Sequence[Tensor], rank: int
) -> _Fit:
    """The best factor for given blocks, and the blocks that it leaves."""
    choleskys = [cholesky(add_identity(block)) for block in blocks]
    unexplained = excess - assemble(blocks)
    shared = leading_root(solve_blocks(choleskys, solve_blocks(choleskys, unexplained).mT), rank)
    factor = multiply_blocks(choleskys, shared)
    own = [part @ part.mT for part in split_groups(factor, shapes)]
    new_blocks = [_positive_part(target - inner) for target, inner in zip(targets, own, strict=True)]
    return _Fit.of(excess, targets, factor, new_blocks)


def relative_divergence(
    apply: Callable[[Tensor], Tensor],
    targets: Sequence[Tensor],
    factor: Tensor | None,
    block_factors: Sequence[Tensor],
) -> Tensor:
    r"""
    :math:`\mathrm{KL}\big(N(0, (D + BB^\top)^{-1}) \,\|\, N(0, (I + G)^{-1})\big) + \tfrac12 \log|I + G|` in nats,
    ``(*batch)``, for the product :math:`GX` (``apply``), the diagonal blocks of G, ``(*batch, count, size, size)`` a
    group, B, ``(*batch, Q, R)``, and :math:`E_c`, ``(*batch, count, size, r)`` a group.
    """
    diagonal = torch.cat([target.diagonal(dim1=-2, dim2=-1).flatten(-2) for target in targets], dim=-1)
    factors, logdet = precision_covariance_factors(diagonal, factor, block_factors)
    # tr((I + G) S) - Q with S = I - V V' - F F'
    trace = diagonal.sum(-1)
    for root, target in zip(factors.explained_blocks or (), targets, strict=True):
        trace = trace - root.square().sum((-3, -2, -1)) - (root * (target @ root)).sum((-3, -2, -1))
    if factors.explained_shared is not None:
        shared = factors.explained_shared
        trace = trace - shared.square().sum((-2, -1)) - (shared * apply(shared)).sum((-2, -1))
    return 0.5 * (trace + logdet)


def rank_for_tolerance(
    excess: Tensor, shapes: Sequence[tuple[int, int]] | None, tolerance: float, least: int = 1
) -> int:
    """
    The smallest candidate rank, no less than ``least``, that loses at most ``tolerance`` nats against the optimum, for
    G, ``(*batch, Q, Q)``, and the ``(count, size)`` of each group of blocks (None for the low-rank family).
    """
    size = excess.shape[-1]
    if shapes is None:
        values = torch.linalg.eigvalsh(excess).clamp_min(0)
        lost = 0.5 * (values - values.log1p()).cumsum(-1)  # losses by leaving out the smallest eigenvalues
        return max(least, size - int((lost <= tolerance).sum(-1).min()))
    optimum = 0.5 * torch.linalg.slogdet(add_identity(excess)).logabsdet
    targets = diagonal_blocks(excess, shapes)
    fit = _Fit.of(excess, targets, excess[..., :0], targets)
    candidates = candidate_ranks(size)
    for rank in candidates if least <= candidates[0] else [least, *(rank for rank in candidates if rank > least)]:
        # Blocks only shrink as the rank grows, so each fit starts from the last.
        start = fit._replace(factor=torch.zeros_like(excess[..., :rank]))
        fit = _iterated(excess, shapes, targets, start, rank, _NUM_ROUNDS)
        if (fit.divergence - optimum <= tolerance).all():
            return rank
    return size


def candidate_ranks(size: int) -> list[int]:
    """The ranks that are tried, ascending up to ``size``."""
    ranks = [min(_SMALLEST_RANK, size)]
    while ranks[-1] < size:
        ranks.append(min(size, 4 * round(ranks[-1] * _GROWTH / 4 + 0.25)))
    return ranks


def _positive_part(block: Tensor) -> Tensor:
    """The matrices without the negative eigenvalues that rounding leaves."""
    root = leading_root(block, block.shape[-1])
    return root @ root.mT
