r"""
Gradients in the kernels' hyperparameters at a fixed posterior of the inducing variables, instead of a fixed posterior
of the whitened ones.

When the posterior has whitened parameters, the evidence lower bound is differentiated at a fixed :math:`q(\mathbf v)`,
:math:`\mathbf u = L\mathbf v`: a change of the kernel moves :math:`q(\mathbf u)` and the predictions with it, and the
noise of a minibatch's residuals enters the gradient in full. At a fixed :math:`q(\mathbf u)` the predictions hardly
depend on the kernel, and the gradient is mostly that of the divergence from the prior, which has no noise. At the
optimal posterior both have the same expectation, since the bound is stationary in :math:`q`: the difference is a
control variate. With :math:`\mathbf v = L^{-1}\mathbf u` it is

.. math::
    \Big\langle \frac{\partial \mathcal L}{\partial m}, \mathrm dm \Big\rangle
    + \Big\langle \frac{\partial \mathcal L}{\partial S}, \mathrm dS \Big\rangle
    = - \big\langle W, L^{-1} \mathrm dL \big\rangle, \qquad
    W = (\Phi g - m) m^\top + (I - S) - \Phi\Lambda\Phi^\top S ,

of which only the diagonal blocks are needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from gpytorch_gam.components import AdditivePredictor
from gpytorch_gam.numerics.blocks import split_groups
from gpytorch_gam.numerics.precision import CovarianceFactors
from gpytorch_gam.numerics.triangular import triangular_solve

from ..processes import Processes
from ..rows.predictors import Segment, predictor_segments, product_in_rows, scale_features, sum_over_rows
from ..rows.sums import Totals


def correct_gradients(
    predictor: AdditivePredictor,
    factors: CovarianceFactors,
    choleskys: Sequence[Tensor],
    features: Iterable[Tensor],
    gradients: Sequence[Tensor],
    curvatures: Sequence[Tensor],
    divergence_weight: float,
    processes: Processes,
    totals: Totals | None = None,
) -> None:
    r"""
    Turn the gradients of ``loss = -divergence_weight * ELBO`` into those at a fixed :math:`q(\mathbf u)`.

    ``factors`` and ``choleskys`` (with the kernels' graph) are those of the forward. ``features`` are :math:`\Phi` in
    float64 chunks ``(Q, n)``; :math:`g`, ``(n, P)``, and the curvatures :math:`-2\, \partial E_n / \partial
    \mathrm{covariance}_n`, ``(n, P, P)`` and possibly indefinite, are scaled to all data. ``totals`` are the sums of
    these if they are known. All processes get the sum over theirs.
    """
    parameters = [parameter for parameter in predictor.parameters() if parameter.requires_grad]
    if not parameters:
        return
    with torch.no_grad():
        weights = _weights(predictor, factors, features, gradients, curvatures, 1.0 / processes.size, totals)
    with torch.enable_grad():
        surrogate = torch.zeros_like(choleskys[0][..., 0, 0].sum())
        for cholesky, weight in zip(choleskys, weights, strict=True):
            if cholesky.requires_grad:
                relative = triangular_solve(cholesky.detach(), cholesky)
                surrogate = surrogate + (weight * relative).sum() * divergence_weight
        if not surrogate.requires_grad:
            return
        found = torch.autograd.grad(surrogate, parameters, allow_unused=True)
    corrected = [(each, gradient) for each, gradient in zip(parameters, found, strict=True) if gradient is not None]
    of_all = processes.sum([gradient for _, gradient in corrected])
    for (parameter, _), total in zip(corrected, of_all, strict=True):
        parameter.grad = total if parameter.grad is None else parameter.grad + total


def _weights(
    predictor: AdditivePredictor,
    factors: CovarianceFactors,
    features: Iterable[Tensor],
    gradients: Sequence[Tensor],
    curvatures: Sequence[Tensor],
    share: float,
    totals: Totals | None,
) -> list[Tensor]:
    """The diagonal blocks of W, ``(C_g, M_g, M_g)`` for each group. Terms without rows are multiplied by ``share``."""
    shapes, segments = predictor.group_shapes, predictor_segments(predictor)
    projected = torch.zeros_like(factors.mean) if totals is None else totals.projected
    products = [factors.mean.new_zeros(count, size, size) for count, size in shapes]
    if totals is not None:
        products = _without_explained(factors, totals.blocks)
    for chunk, gradient, curvature in zip(features, gradients, curvatures, strict=True):
        if totals is None:
            projected = projected + sum_over_rows(chunk, gradient.mT.unsqueeze(-1), segments).squeeze(-1)
            own = _without_explained(factors, _own_blocks(chunk, curvature, shapes, segments))
            products = [product + block for product, block in zip(products, own, strict=True)]
        if factors.explained_shared is not None:
            removed = _shared_blocks(factors.explained_shared, chunk, curvature, shapes, segments)
            products = [product - block for product, block in zip(products, removed, strict=True)]
    outer = [
        left @ right.mT
        for left, right in zip(
            split_groups((projected - share * factors.mean).unsqueeze(-1), shapes),
            split_groups(factors.mean.unsqueeze(-1), shapes),
            strict=True,
        )
    ]
    return [
        first + share * explained - product
        for first, explained, product in zip(outer, _explained_blocks(factors, shapes), products, strict=True)
    ]


def _own_blocks(
    features: Tensor, curvatures: Tensor, shapes: Sequence[tuple[int, int]], segments: Sequence[Segment]
) -> list[Tensor]:
    r"""The diagonal blocks of :math:`G = \sum_n \Phi_n \Lambda_n \Phi_n^\top`."""
    diagonal = curvatures.diagonal(dim1=-2, dim2=-1).mT
    weighted = split_groups(scale_features(features, diagonal, segments), shapes)
    return [left @ right.mT for left, right in zip(weighted, split_groups(features, shapes), strict=True)]


def _without_explained(factors: CovarianceFactors, blocks: Sequence[Tensor]) -> list[Tensor]:
    r"""The diagonal blocks of :math:`G (I - VV^\top)`, from those of G."""
    if factors.explained_blocks is None:
        return list(blocks)
    return [block - (block @ root) @ root.mT for block, root in zip(blocks, factors.explained_blocks, strict=True)]


def _shared_blocks(
    shared: Tensor,
    features: Tensor,
    curvatures: Tensor,
    shapes: Sequence[tuple[int, int]],
    segments: Sequence[Segment],
) -> list[Tensor]:
    r"""The diagonal blocks of :math:`G F F^\top`, the only part of GS that needs more than the diagonal blocks of G."""
    seen = product_in_rows(features, shared, curvatures.shape[-1], segments)  # (P, n, R)
    smoothed = sum_over_rows(features, torch.einsum("npq,qnr->pnr", curvatures, seen), segments)
    parts = zip(split_groups(smoothed, shapes), split_groups(shared, shapes), strict=True)
    return [left @ right.mT for left, right in parts]


def _explained_blocks(factors: CovarianceFactors, shapes: Sequence[tuple[int, int]]) -> list[Tensor]:
    r"""The diagonal blocks of :math:`I - S = VV^\top + FF^\top`."""
    blocks = [factors.mean.new_zeros(count, size, size) for count, size in shapes]
    if factors.explained_blocks is not None:
        blocks = [root @ root.mT for root in factors.explained_blocks]
    if factors.explained_shared is not None:
        parts = split_groups(factors.explained_shared, shapes)
        blocks = [block + part @ part.mT for block, part in zip(blocks, parts, strict=True)]
    return blocks
