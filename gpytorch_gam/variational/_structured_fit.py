r"""
The structured precisions closest to a dense one, :math:`I + G` with :math:`G` positive semidefinite.

For the low-rank family the optimum is a truncated eigendecomposition. For block + low-rank it is found by the principal
factor iteration of factor analysis: in coordinates in which the diagonal blocks are the identity, B collects what the
off-diagonal blocks share, and the blocks hold the remainder.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gpytorch_gam.operators._capacitance import add_identity

from ._precision_algebra import multiply_blocks, solve_blocks, split_groups

# Beyond two rounds the fit gains little, and a diagonal block can turn indefinite.
_NUM_ROUNDS = 3

# Remainders this far below zero, relative to the block, are rounding.
_ROUNDING = 1e-9


def leading_root(matrix: Tensor, rank: int) -> Tensor:
    r"""
    The factor :math:`B` of given rank for which :math:`BB^\top` is the best positive semidefinite approximation.

    :param matrix: Symmetric, ``(*batch, k, k)``.
    :param rank: Number of columns, at most ``k``.
    :return: ``(*batch, k, rank)``.
    """
    values, vectors = torch.linalg.eigh(matrix)
    return vectors[..., -rank:] * values[..., -rank:].clamp_min(0).sqrt().unsqueeze(-2) if rank else vectors[..., :0]


def inverse_cholesky(precision: Tensor) -> Tensor:
    """
    The lower Cholesky factor of the inverse of a positive definite matrix ``(*batch, k, k)``.

    With rows and columns reversed, the inverse of a lower triangular factor becomes lower triangular again.
    """
    reversed_cholesky = torch.linalg.cholesky(precision.flip(-2, -1))
    eye = torch.eye(precision.shape[-1], dtype=precision.dtype, device=precision.device)
    return torch.linalg.solve_triangular(reversed_cholesky.mT, eye, upper=True).flip(-2, -1)


def truncation_gap(excess: Tensor, rank: int) -> Tensor:
    r"""
    What the low-rank family loses against the optimum: :math:`\tfrac12 \sum_{i > R} (g_i - \log(1 + g_i))` nats,
    over the eigenvalues of :math:`G` that R columns leave out.

    :param excess: :math:`G`, ``(*batch, Q, Q)``.
    :param rank: Number of columns R.
    :return: ``(*batch)``.
    """
    left_out = torch.linalg.eigvalsh(excess)[..., : excess.shape[-1] - rank].clamp_min(0)
    return 0.5 * (left_out - left_out.log1p()).sum(-1)


def diagonal_blocks(matrix: Tensor, shapes: Sequence[tuple[int, int]]) -> list[Tensor]:
    """
    The diagonal blocks of ``(*batch, Q, Q)``.

    :param shapes: ``(count, size)`` of each run of equal blocks.
    :return: For each run ``(*batch, count, size, size)``.
    """
    blocks = []
    for rows, (count, size), start in zip(split_groups(matrix, shapes), shapes, _starts(shapes), strict=True):
        # (*batch, count, size, count, size)
        columns = rows[..., start : start + count * size].unflatten(-1, (count, size))
        blocks.append(columns.diagonal(dim1=-4, dim2=-2).movedim(-1, -3))
    return blocks


def fit_block_low_rank(
    excess: Tensor, shapes: Sequence[tuple[int, int]], rank: int, block_ranks: Sequence[int]
) -> tuple[list[Tensor], Tensor]:
    r"""
    Factors with :math:`\mathrm{blockdiag}(E_c E_c^\top) + BB^\top \approx G`, the diagonal blocks being equal (up to
    ``block_ranks``).

    :param excess: :math:`G`, positive semidefinite, ``(*batch, Q, Q)``.
    :param shapes: ``(count, size)`` of each run of equal blocks.
    :param rank: Columns of B.
    :param block_ranks: Columns of the :math:`E_c` of each run.
    :return: For each run ``(*batch, count, size, r)``, and ``(*batch, Q, rank)``.
    """
    targets = diagonal_blocks(excess, shapes)
    if rank == 0:
        return [leading_root(t, r) for t, r in zip(targets, block_ranks, strict=True)], excess[..., :0]
    choleskys = [torch.linalg.cholesky(add_identity(target)) for target in targets]
    normalised = solve_blocks(choleskys, solve_blocks(choleskys, excess).mT)
    matrix = normalised
    factor, remainders, improving = None, targets, None
    for _ in range(_NUM_ROUNDS):
        shared = leading_root(matrix, rank)
        new_factor = multiply_blocks(choleskys, shared)
        new_remainders = [t - inner for t, inner in zip(targets, _own_blocks(new_factor, shapes), strict=True)]
        if factor is None or improving is None:  # the remainder of the first round is positive by construction
            factor, remainders = new_factor, new_remainders
            improving = torch.ones(excess.shape[:-2], dtype=torch.bool, device=excess.device)
        else:
            improving = improving & _are_positive(new_remainders, targets)
            factor = torch.where(improving[..., None, None], new_factor, factor)
            remainders = [
                torch.where(improving[..., None, None, None], new, old)
                for new, old in zip(new_remainders, remainders, strict=True)
            ]
        # The diagonal blocks of the next round are what the factor of this one explains of them.
        matrix = _replace_diagonal_blocks(normalised, _own_blocks(shared, shapes), shapes)
    assert factor is not None
    return [leading_root(r, k) for r, k in zip(remainders, block_ranks, strict=True)], factor


def _starts(shapes: Sequence[tuple[int, int]]) -> list[int]:
    starts = [0]
    for count, size in shapes:
        starts.append(starts[-1] + count * size)
    return starts[:-1]


def _own_blocks(factor: Tensor, shapes: Sequence[tuple[int, int]]) -> list[Tensor]:
    return [part @ part.mT for part in split_groups(factor, shapes)]


def _replace_diagonal_blocks(matrix: Tensor, blocks: Sequence[Tensor], shapes: Sequence[tuple[int, int]]) -> Tensor:
    replaced = matrix.clone()
    for block, (count, size), start in zip(blocks, shapes, _starts(shapes), strict=True):
        for index in range(count):
            rows = slice(start + index * size, start + (index + 1) * size)
            replaced[..., rows, rows] = block[..., index, :, :]
    return replaced


def _are_positive(remainders: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor:
    """Whether all blocks of a batch element are positive semidefinite up to rounding, ``(*batch)``."""
    verdicts = []
    for remainder, target in zip(remainders, targets, strict=True):
        scale = target.diagonal(dim1=-2, dim2=-1).amax(-1) + 1
        verdicts.append((torch.linalg.eigvalsh(remainder)[..., 0] >= -_ROUNDING * scale).all(-1))
    return torch.stack(verdicts).all(0)
