"""What the low-rank precision operator and its inverse share: their two arguments."""

from __future__ import annotations

import torch
from linear_operator.operators import IdentityLinearOperator, LinearOperator
from torch import Tensor

from ._positive_definite_linear_operator import PositiveDefiniteLinearOperator
from .block_diagonal_cholesky_linear_operator import BlockDiagonalCholeskyLinearOperator


class LowRankOperator(PositiveDefiniteLinearOperator):
    """
    An operator described by the base and the factor of the precision ``base + factor factor'``.

    :param base: ``(*batch, Q, Q)``.
    :param factor: ``(*batch, Q, R)``.
    """

    def __init__(self, base: IdentityLinearOperator | BlockDiagonalCholeskyLinearOperator, factor: Tensor) -> None:
        super().__init__(base, factor)
        self._args = align(base, factor)

    def _check_args(
        self, base: IdentityLinearOperator | BlockDiagonalCholeskyLinearOperator, factor: Tensor
    ) -> str | None:
        return describe_mismatch(type(self).__name__, base, factor)

    @property
    def base(self) -> IdentityLinearOperator | BlockDiagonalCholeskyLinearOperator:
        r""":math:`\mathbf D`, the base of the precision, ``(*batch, Q, Q)``."""
        return self._args[0]

    @property
    def factor(self) -> Tensor:
        r""":math:`\mathbf B`, ``(*batch, Q, R)``."""
        return self._args[1]


def describe_mismatch(name: str, base: LinearOperator, factor: Tensor) -> str | None:
    """Why ``base`` and ``factor`` cannot form ``base + factor factor'``; ``None`` if they can.

    :param name: Name of the operator, for the message.
    :param base: ``(*batch, Q, Q)``.
    :param factor: ``(*batch, Q, R)``.
    """
    if not isinstance(base, IdentityLinearOperator | BlockDiagonalCholeskyLinearOperator):
        return (
            f"{name} needs an IdentityLinearOperator or a BlockDiagonalCholeskyLinearOperator as base, "
            f"but got a {type(base).__name__}."
        )
    if not torch.is_tensor(factor) or factor.ndim < 2:
        found = f"shape {tuple(factor.shape)}" if torch.is_tensor(factor) else f"a {type(factor).__name__}"
        return f"{name} needs a tensor of shape (*batch, Q, R) as factor, but got {found}."
    shapes = f"base has shape {tuple(base.shape)} and factor has shape {tuple(factor.shape)}"
    if base.shape[-1] != factor.shape[-2]:
        return f"{name} needs a factor with as many rows as base has, but {shapes}."
    if base.dtype is not None and base.dtype != factor.dtype:
        return f"{name} needs base and factor in one dtype, but got {base.dtype} and {factor.dtype}."
    # an identity holds no data; align() takes it to the factor's device
    if isinstance(base, BlockDiagonalCholeskyLinearOperator) and base.device != factor.device:
        return f"{name} needs base and factor on one device, but got {base.device} and {factor.device}."
    try:
        torch.broadcast_shapes(base.batch_shape, factor.shape[:-2])
    except RuntimeError:
        return f"{name} cannot broadcast batch shapes: {shapes}."
    return None


def align(base: LinearOperator, factor: Tensor) -> tuple[LinearOperator, Tensor]:
    """``base`` and ``factor`` with a common batch shape; an identity also takes the factor's dtype and device."""
    batch_shape = torch.broadcast_shapes(base.batch_shape, factor.shape[:-2])
    if factor.shape[:-2] != batch_shape:
        factor = factor.expand(*batch_shape, *factor.shape[-2:])
    if isinstance(base, IdentityLinearOperator):
        # upstream's IdentityLinearOperator.to(device) forgets its dtype and .to(dtype) its device
        base = IdentityLinearOperator(base.shape[-1], batch_shape, dtype=factor.dtype, device=factor.device)
    elif base.batch_shape != batch_shape:
        base = base._expand_batch(batch_shape)
    return base, factor


def scale(base: LinearOperator, factor: Tensor, constant: Tensor) -> tuple[LinearOperator, Tensor]:
    """Base and factor of ``c (base + factor factor')``, for positive ``c`` of shape ``(*batch)`` or ``()``."""
    if isinstance(base, IdentityLinearOperator):
        ones = torch.ones(*base.shape[:-1], 1, 1, dtype=factor.dtype, device=factor.device)
        base = BlockDiagonalCholeskyLinearOperator(ones)
    return base._scaled(constant), factor * constant.sqrt()[..., None, None]


def base_root_product(base: LinearOperator, x: Tensor, transpose: bool = False) -> Tensor:
    """``T x`` or ``T' x`` for the root ``T`` of the base, the identity's being the identity."""
    return x if isinstance(base, IdentityLinearOperator) else base._exact_root_product(x, transpose=transpose)


def base_root_solve(base: LinearOperator, x: Tensor, transpose: bool = False) -> Tensor:
    """``T^-1 x`` or ``T^-T x`` for the root ``T`` of the base, the identity's being the identity."""
    return x if isinstance(base, IdentityLinearOperator) else base._exact_root_solve(x, transpose=transpose)
