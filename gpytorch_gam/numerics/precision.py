r"""
Tensor functions for the structured precision :math:`P = D + BB^\top`, :math:`D = I + \mathrm{blockdiag}(E_c E_c^\top)`.

The covariance is never formed, and :math:`P^{-1} - I` is never obtained by subtraction. It is written as

.. math::
    P^{-1} = I - \mathrm{blockdiag}(V_c V_c^\top) - F F^\top

with :math:`V_c = E_c \,\mathrm{chol}(I + E_c^\top E_c)^{-\top}`, so that :math:`D^{-1} = I - VV^\top`, and
:math:`F = D^{-1} B L_A^{-\top}`, where :math:`L_A L_A^\top = A = I + B^\top D^{-1} B` is the capacitance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .blocks import block_shapes, join_groups, split_groups
from .capacitance import add_identity, capacitance_log_determinant, explained_factor
from .triangular import cholesky


class CovarianceFactors(NamedTuple):
    r"""
    A whitened Gaussian :math:`N(m, I - \mathrm{blockdiag}(V_c V_c^\top) + s F F^\top)`, the one form in which the
    strategy reads every variational distribution.
    """

    mean: Tensor  # m, (*batch, Q)
    explained_blocks: tuple[Tensor, ...] | None  # V_c, (*batch, C_g, M_g, r_g) for each group
    explained_shared: Tensor | None  # F, (*batch, Q, R)
    shared_sign: int  # s, -1 or 1


def explained_block(block_factor: Tensor) -> tuple[Tensor, Tensor]:
    r""":math:`V_c = E_c \mathrm{chol}(I + E_c^\top E_c)^{-\top}` and :math:`\log|I + E_c E_c^\top|`."""
    root = cholesky(add_identity(block_factor.mT @ block_factor))
    return explained_factor(block_factor, root), capacitance_log_determinant(root)


def apply_block_inverse(explained_blocks: Sequence[Tensor], factor: Tensor) -> Tensor:
    r""":math:`D^{-1} B = B - V V^\top B` for B, ``(*batch, Q, R)``, and the :math:`V_c` of each group."""
    parts = split_groups(factor, block_shapes(explained_blocks))
    return join_groups([part - root @ (root.mT @ part) for root, part in zip(explained_blocks, parts, strict=True)])


def precision_covariance_factors(
    mean: Tensor, shared_factor: Tensor | None, block_factors: Sequence[Tensor] | None
) -> tuple[CovarianceFactors, Tensor]:
    r"""
    Covariance factors of :math:`N(m, (D + BB^\top)^{-1})` and :math:`\log|D + BB^\top|`, ``(*batch)``, from m,
    ``(*batch, Q)``, B, ``(*batch, Q, R)`` (None for zero), and :math:`E_c`, ``(*batch, C_g, M_g, r_g)`` a group (None
    for :math:`D = I`). Cost :math:`O(QR^2 + Q r R)` and :math:`O(\sum_c M_c r_c^2)`.
    """
    logdet = mean.new_zeros(mean.shape[:-1])
    explained_blocks = None
    if block_factors is not None:
        pairs = [explained_block(block_factor) for block_factor in block_factors]
        explained_blocks = tuple(root for root, _ in pairs)
        logdet = logdet + torch.stack([block_logdet.sum(-1) for _, block_logdet in pairs]).sum(0)
    explained_shared = None
    if shared_factor is not None:
        solved = shared_factor if explained_blocks is None else apply_block_inverse(explained_blocks, shared_factor)
        root = cholesky(add_identity(shared_factor.mT @ solved))  # A = I + B' D^-1 B
        explained_shared = explained_factor(solved, root)  # F = D^-1 B L_A^-T
        logdet = logdet + capacitance_log_determinant(root)
    return CovarianceFactors(mean, explained_blocks, explained_shared, shared_sign=-1), logdet


def kl_from_standard_normal(factors: CovarianceFactors, logdet_precision: Tensor) -> Tensor:
    r"""
    :math:`\mathrm{KL}(N(m, P^{-1}) \,\|\, N(0, I)) = \tfrac12 [m^\top m - \|V\|_F^2 - \|F\|_F^2 + \log|P|]`,
    ``(*batch)``, for ``shared_sign`` -1. (The paper's equation (2) has the sign of the last term reversed.)
    """
    trace = factors.mean.square().sum(-1)
    for root in factors.explained_blocks or ():
        trace = trace - root.square().sum((-3, -2, -1))
    if factors.explained_shared is not None:
        trace = trace - factors.explained_shared.square().sum((-2, -1))
    return 0.5 * (trace + logdet_precision)
