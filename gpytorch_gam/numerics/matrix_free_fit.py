r"""
Fits of the structured precision to :math:`I + G`, of which only products :math:`GX` and the diagonal blocks are known.

The Gaussian of precision :math:`D + BB^\top` with the least divergence to one of precision P is the maximum likelihood
factor analysis of P: given :math:`D = LL^\top`, the best B consists of the leading eigenvectors of
:math:`L^{-1} P L^{-\top}`, multiplied by L. So B is sought in coordinates in which D is the identity. There the
directions that only coupling explains stand out, and a precision that already has the form is reproduced exactly. (In
coordinates in which the diagonal blocks of P are the identity neither is true, and the fits of successive minibatches
drift away.)

A round brings :math:`G = \mathrm{blockdiag}(O_c) + S`, with :math:`O_c` and S positive semidefinite, back to the
family: B from S, the new blocks from what B leaves of the diagonal blocks of G. With :math:`BB^\top \le S` the new
blocks are at least :math:`O_c`, hence positive semidefinite.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .blocks import block_shapes, multiply_blocks, solve_blocks, split_groups
from .capacitance import add_identity
from .precision_fit import leading_root, relative_divergence
from .triangular import cholesky, triangular_solve

Apply = Callable[[Tensor], Tensor]

# Relative size of the shifts by which Cholesky factors of semidefinite matrices survive rounding.
_SHIFT = 2e-14
_NUM_SHIFTS = 5

# Weights of G in the rounds of a fit from scratch: large ones forget the coordinates of the first, small ones settle.
_WEIGHTS = (0.5, 0.5, 0.4, 0.3, 0.2)


class StreamingFit(NamedTuple):
    r"""Factors with :math:`\mathrm{blockdiag}(E_c E_c^\top) + BB^\top \approx G`, the diagonal blocks being equal."""

    directions: Tensor | None  # (Q, k), k >= R: B, then the directions that come next; None for rank 0
    block_factors: list[Tensor]  # E_c, (count, size, size) for each group, lower triangular


def fit_round(
    apply: Apply,
    own: Sequence[Tensor] | None,
    totals: Sequence[Tensor],
    start: Tensor,
    rank: int,
    num_iterations: int,
) -> StreamingFit:
    r"""
    One round, which brings :math:`G = \mathrm{blockdiag}(O_c) + S` back to the family with a B of ``rank`` columns.
    ``apply`` maps X, ``(Q, k)``, to :math:`SX`, ``num_iterations`` times (at least once) in a subspace iteration from
    ``start``, ``(Q, k)`` of full column rank. ``own`` are the positive semidefinite :math:`O_c`,
    ``(count, size, size)`` a group: B is sought in coordinates in which :math:`I + O_c` is the identity, or in the
    given ones if ``own`` is None. ``totals`` are the diagonal blocks of G, or larger ones. Cost
    :math:`O(\sum_c M_c^3 + Qk^2)` and the products.
    """
    if own is None:
        directions, shift = leading_factor(apply, start, num_iterations)
    else:
        choleskys = [cholesky(add_identity(block) + _rounding(block)) for block in own]
        directions, shift = leading_factor(
            lambda columns: solve_blocks(choleskys, apply(solve_blocks(choleskys, columns, transpose=True))),
            solve_blocks(choleskys, start),
            num_iterations,
        )
        directions = multiply_blocks(choleskys, directions)
    # Rounding may carry the remainder below zero by up to the shift, in the coordinates of the iteration.
    base = [torch.zeros_like(total) for total in totals] if own is None else own
    padded = [total + 2 * shift * add_identity(block) for total, block in zip(totals, base, strict=True)]
    return StreamingFit(directions, remainder_factors(padded, directions[:, :rank]))


def factor_analysis_round(
    apply: Apply, own: Sequence[Tensor], totals: Sequence[Tensor], start: Tensor, rank: int, num_iterations: int
) -> StreamingFit:
    r"""
    One round of the factor analysis of :math:`I + G`, see :mod:`gpytorch_gam.numerics.precision_fit`: with
    :math:`I + O_c = L_c L_c^\top` for the present blocks, B consists of the leading eigenvectors of
    :math:`L^{-1} (G - \mathrm{blockdiag}(O_c)) L^{-\top}`, and the new blocks are what B leaves. The matrix is
    indefinite, so the eigenvectors are those of its compression to the subspace (Rayleigh-Ritz), which therefore has to
    be a good one. Arguments are those of :func:`fit_round`, except that ``apply`` is the product with
    :math:`G - \mathrm{blockdiag}(O_c)`.
    """
    choleskys = [cholesky(add_identity(block) + _rounding(block)) for block in own]
    product = solve_blocks(choleskys, start)
    for _ in range(num_iterations):
        basis = torch.linalg.qr(product).Q
        product = solve_blocks(choleskys, apply(solve_blocks(choleskys, basis, transpose=True)))
    core = basis.mT @ product
    values, vectors = torch.linalg.eigh(0.5 * (core + core.mT))
    # The next directions keep their size, or a small one if they explain nothing: a subspace iteration needs them all.
    sizes = values.flip(-1).clamp_min(1e-6 * (1 + values[-1].clamp_min(0))).sqrt()
    directions = multiply_blocks(choleskys, basis @ vectors.flip(-1) * sizes)
    return StreamingFit(directions, positive_remainder_factors(totals, directions[:, :rank]))


def fit_from_scratch(
    apply: Apply, totals: Sequence[Tensor], start: Tensor, rank: int, num_iterations: int
) -> StreamingFit:
    """
    Fit G without a starting fit: one round in coordinates in which the blocks of :math:`I + G` are the identity, then
    rounds that each mix the last fit with G and keep the diagonal blocks of G. Never worse than the mean-field fit,
    :math:`B = 0`. Arguments are those of :func:`fit_round`, with G in the place of S.
    """
    fit = fit_round(apply, totals, totals, start, rank, num_iterations)
    for weight in _WEIGHTS:
        assert fit.directions is not None
        mixed = mixed_product(apply, fit.directions[:, :rank], weight)
        own = [(1 - weight) * (root @ root.mT) for root in fit.block_factors]
        fit = fit_round(mixed, own, totals, fit.directions, rank, num_iterations)
    return _unless_worse_than_blocks(fit, apply, totals, rank)


def _unless_worse_than_blocks(fit: StreamingFit, apply: Apply, totals: Sequence[Tensor], rank: int) -> StreamingFit:
    """
    The fit, or the mean-field one where that has the smaller divergence (weak coupling that a small rank cannot hold):
    B is then scaled to nearly nothing, so that it still serves as the start of the next fit.
    """
    assert fit.directions is not None
    factor = fit.directions[:, :rank]
    mean_field = sum(0.5 * torch.linalg.slogdet(add_identity(total)).logabsdet.sum() for total in totals)
    worse = relative_divergence(apply, totals, factor, fit.block_factors) > mean_field
    alone = remainder_factors(totals, None)
    directions = torch.where(worse, 1e-6 * fit.directions, fit.directions)
    roots = [torch.where(worse, block, root) for block, root in zip(alone, fit.block_factors, strict=True)]
    return StreamingFit(directions, roots)


def mixed_product(apply: Apply, factor: Tensor, weight: Tensor | float) -> Apply:
    r"""The product with :math:`(1 - w) BB^\top + w H`, given that with H (``apply``) and B, ``(Q, R)`` (``factor``)."""
    return lambda columns: (1 - weight) * (factor @ (factor.mT @ columns)) + weight * apply(columns)


def leading_factor(apply: Apply, start: Tensor, num_iterations: int) -> tuple[Tensor, Tensor]:
    r"""
    Columns :math:`F`, ``(Q, k)``, leading directions first, with :math:`FF^\top \approx N` and :math:`N - FF^\top`
    positive semidefinite (also for some of the columns), and a bound on how far rounding may carry its eigenvalues
    below zero. Subspace iteration with ``num_iterations`` (at least one) products :math:`NX` (``apply``) from
    ``start``, ``(Q, k)`` of full column rank, finished in Nyström form: with orthonormal :math:`X` and :math:`Y = NX`,
    :math:`N - Y (X^\top Y)^{-1} Y^\top` is a Schur complement, hence positive semidefinite however poor the subspace
    is.
    """
    product = start
    for _ in range(num_iterations):
        basis = torch.linalg.qr(product).Q
        product = apply(basis)
    core = basis.mT @ product
    # Nyström approximation of N + shift I: exact on the subspace, stable where N is singular (Tropp et al., 2017).
    root, shift = shifted_cholesky(0.5 * (core + core.mT), _SHIFT * (1 + core.diagonal().sum()))
    columns = torch.linalg.solve_triangular(root.mT, product + shift * basis, upper=True, left=False)
    # A rotation changes nothing, and losing columns keeps the remainder semidefinite.
    return columns @ torch.linalg.eigh(columns.mT @ columns).eigenvectors.flip(-1), shift


def remainder_factors(totals: Sequence[Tensor], factor: Tensor | None) -> list[Tensor]:
    r"""
    Lower triangular roots :math:`E_c E_c^\top = T_c - B_c B_c^\top` of what B, ``(Q, R)``, leaves of the diagonal
    blocks :math:`T_c`, ``(count, size, size)`` a group, computed in coordinates in which :math:`I + T_c` is the
    identity, so that rounding errors are relative to that.
    """
    remainders = list(totals)
    if factor is not None:
        parts = split_groups(factor, block_shapes(totals))
        remainders = [total - part @ part.mT for total, part in zip(totals, parts, strict=True)]
    roots = []
    for total, remainder in zip(totals, remainders, strict=True):
        scale = cholesky(add_identity(total) + _rounding(total))
        normalised = triangular_solve(scale, triangular_solve(scale, remainder).mT)
        roots.append(scale @ shifted_cholesky(normalised, total.new_tensor(_SHIFT))[0])
    return roots


def positive_remainder_factors(totals: Sequence[Tensor], factor: Tensor) -> list[Tensor]:
    r"""Roots of the positive parts of :math:`T_c - B_c B_c^\top`; B may explain more than the blocks hold."""
    parts = split_groups(factor, block_shapes(totals))
    return [leading_root(total - part @ part.mT, total.shape[-1]) for total, part in zip(totals, parts, strict=True)]


def shifted_cholesky(matrix: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """
    Cholesky factor of a positive semidefinite matrix, ``(*batch, k, k)``, plus the first of ``shift``, ``100 * shift``,
    ... times the identity that makes it positive definite (rounding errors depend on more than the matrix), and that
    shift. A matrix that is not finite, or indefinite by more than rounding, raises ``torch.linalg.LinAlgError``.
    """
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    for _ in range(_NUM_SHIFTS - 1):
        root, failed = torch.linalg.cholesky_ex(matrix + shift * eye)
        if not failed.any():
            return root, shift
        shift = 100 * shift
    return torch.linalg.cholesky(matrix + shift * eye), shift


def _rounding(block: Tensor) -> Tensor:
    """A multiple of the identity of the size of the rounding errors of a product, ``(count, size, size)``."""
    size = block.diagonal(dim1=-2, dim2=-1).amax(-1, keepdim=True)
    return torch.diag_embed((1e-15 * size * block.shape[-1]).expand(block.shape[:-1]))
