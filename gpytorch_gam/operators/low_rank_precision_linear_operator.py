"""A structured precision matrix, a base plus a low-rank term, or the covariance that is its inverse."""

from __future__ import annotations

from typing import TypeAlias

import torch
from linear_operator.operators import IdentityLinearOperator, LinearOperator, to_dense
from linear_operator.utils.cholesky import psd_safe_cholesky
from linear_operator.utils.memoize import cached
from torch import Tensor

from gpytorch_gam.numerics.capacitance import (
    add_identity,
    capacitance_cholesky,
    capacitance_log_determinant,
    explained_factor,
    low_rank_solve,
    root_product,
    root_solve,
)

from ._positive_definite_linear_operator import PositiveDefiniteLinearOperator
from .block_diagonal_cholesky_linear_operator import BlockDiagonalCholeskyLinearOperator

Base: TypeAlias = IdentityLinearOperator | BlockDiagonalCholeskyLinearOperator


class LowRankPrecisionLinearOperator(PositiveDefiniteLinearOperator):
    r"""
    A base plus a low-rank term, :math:`\mathbf P = \mathbf D + \mathbf B \mathbf B^\top`, or, with ``inverse=True``,
    the inverse :math:`\mathbf S = (\mathbf D + \mathbf B \mathbf B^\top)^{-1}`.

    These are precision and covariance of the structured variational posteriors of an additive model (Adam, Durrande &
    John 2018, section 4). In the coordinates of that paper the base is :math:`\mathbf K^{-1}`, i.e.
    ``BlockDiagonalCholeskyLinearOperator(L, inverse=True)`` with the factors ``L`` of a prior covariance; in whitened
    coordinates it is the identity, or a block-diagonal :math:`\mathbf D`.

    Everything goes through an :math:`R \times R` matrix, the capacitance, and roots come without eigendecompositions
    (:doc:`/theory/families`).

    Variances are those of the base minus squares. Forming the capacitance costs :math:`O(Q R^2 + R^3)` once an
    operator; products, solves and samples cost :math:`O(Q R)` a column on top of the base's. No :math:`Q \times Q`
    matrix is factorised, except by ``cholesky`` and ``eigh``, or formed, except by :meth:`to_dense`.

    Positive multiples and a positive diagonal that is added (``add_jitter`` included) stay in this class, and so does
    :meth:`add_low_rank` of a precision. Sums with other operators and negative multiples leave it, and above
    ``linear_operator.settings.max_cholesky_size`` upstream treats those iteratively.

    :param base: :math:`\mathbf D`, ``(*batch, Q, Q)``: an :class:`~linear_operator.operators.IdentityLinearOperator` or
        a :class:`BlockDiagonalCholeskyLinearOperator`. It is the base of the *precision*, also of the inverse.
    :param factor: :math:`\mathbf B`, ``(*batch, Q, R)``; ``R = 0`` leaves the base, and ``R > Q`` is allowed.
    :param inverse: Whether the operator is :math:`\mathbf S` instead of :math:`\mathbf P`.
    :raises TypeError: If the base is of another class or the factor no tensor.
    :raises ValueError: If sizes, batch shapes, dtypes or devices do not agree.

    Example:
        >>> prior_precision = BlockDiagonalCholeskyLinearOperator(L, inverse=True)           # Q x Q
        >>> covariance = LowRankPrecisionLinearOperator(prior_precision, B, inverse=True)    # B is Q x R
        >>> MultivariateNormal(mean, covariance).rsample()                                   # O(Q R + Q M)
    """

    def __init__(self, base: Base, factor: Tensor, inverse: bool = False) -> None:
        super().__init__(base, factor, inverse=inverse)
        self._args = _align(base, factor)
        self.is_inverse = inverse

    def _check_args(self, base: Base, factor: Tensor, inverse: bool = False) -> str | None:
        name = type(self).__name__
        if not isinstance(base, Base):
            raise TypeError(
                f"{name} needs an IdentityLinearOperator or a BlockDiagonalCholeskyLinearOperator as base, "
                f"but got a {type(base).__name__}"
            )
        if not torch.is_tensor(factor):
            raise TypeError(f"{name} needs a tensor as factor, but got a {type(factor).__name__}")
        if factor.ndim < 2:
            return f"{name} needs a factor of shape (*batch, Q, R), but got shape {tuple(factor.shape)}"
        shapes = f"base has shape {tuple(base.shape)} and factor has shape {tuple(factor.shape)}"
        if base.shape[-1] != factor.shape[-2]:
            return f"{name} needs a factor with as many rows as base has, but {shapes}"
        if base.dtype is not None and base.dtype != factor.dtype:
            return f"{name} needs base and factor in one dtype, but got {base.dtype} and {factor.dtype}"
        # an identity holds no data and is taken to the factor's device
        if isinstance(base, BlockDiagonalCholeskyLinearOperator) and base.device != factor.device:
            return f"{name} needs base and factor on one device, but got {base.device} and {factor.device}"
        try:
            torch.broadcast_shapes(base.batch_shape, factor.shape[:-2])
        except RuntimeError:
            return f"{name} cannot broadcast batch shapes: {shapes}"
        return None

    @property
    def base(self) -> Base:
        r""":math:`\mathbf D`, the base of the precision, ``(*batch, Q, Q)``."""
        return self._args[0]

    @property
    def factor(self) -> Tensor:
        r""":math:`\mathbf B`, ``(*batch, Q, R)``."""
        return self._args[1]

    def inverse(self) -> LowRankPrecisionLinearOperator:
        """The inverse: the same tensors with the flag flipped; nothing is computed."""
        return LowRankPrecisionLinearOperator(self.base, self.factor, inverse=not self.is_inverse)

    def add_low_rank(
        self,
        low_rank_mat: Tensor | LinearOperator,
        root_decomp_method: str | None = None,
        root_inv_decomp_method: str | None = None,
        generate_roots: bool | None = True,
        **root_decomp_kwargs: object,
    ) -> LinearOperator:
        r"""
        The sum :math:`\mathbf P + \mathbf C \mathbf C^\top` with :math:`\mathbf C`, ``(*batch, Q, R')``, by appending
        its columns to the factor. For an inverse the sum, and all arguments but the first, are upstream's.
        """
        if self.is_inverse:
            methods = (root_decomp_method, root_inv_decomp_method, generate_roots)
            return super().add_low_rank(low_rank_mat, *methods, **root_decomp_kwargs)
        columns = to_dense(low_rank_mat)
        batch_shape = torch.broadcast_shapes(self.batch_shape, columns.shape[:-2])
        parts = [part.expand(*batch_shape, *part.shape[-2:]) for part in (self.factor, columns)]
        return LowRankPrecisionLinearOperator(self.base, torch.cat(parts, dim=-1))

    def _size(self) -> torch.Size:
        return self.base.shape

    def _expand_batch(self, batch_shape: torch.Size | list[int]) -> LowRankPrecisionLinearOperator:
        factor = self.factor.expand(*batch_shape, *self.factor.shape[-2:])
        return LowRankPrecisionLinearOperator(self.base._expand_batch(batch_shape), factor, inverse=self.is_inverse)

    def _scaled(self, constant: Tensor) -> LowRankPrecisionLinearOperator:
        # c P = c D + c B B', and c S = (P / c)^-1
        scale = constant.reciprocal() if self.is_inverse else constant
        factor = self.factor * scale.sqrt()[..., None, None]
        return LowRankPrecisionLinearOperator(self._blocks()._scaled(scale), factor, inverse=self.is_inverse)

    def _plus_diagonal(self, diagonal: Tensor) -> LowRankPrecisionLinearOperator:
        if not self.is_inverse:
            return LowRankPrecisionLinearOperator(self._blocks()._plus_diagonal(diagonal), self.factor)
        # S + d = M - G G' with M = D^-1 + d. Woodbury gives (S + d)^-1 = M^-1 + V E^-1 V', without a difference,
        # where V = M^-1 D^-1 B and E = I + V' d B.
        base = self._blocks()
        variance = base.inverse()._plus_diagonal(diagonal)
        explained = variance._exact_solve(base._exact_solve(self.factor))
        root = psd_safe_cholesky(add_identity(explained.mT @ (diagonal.unsqueeze(-1) * self.factor)))
        return LowRankPrecisionLinearOperator(variance.inverse(), explained_factor(explained, root), inverse=True)

    def _exact_product(self, x: Tensor) -> Tensor:
        return self._covariance_product(x) if self.is_inverse else self._precision_product(x)

    def _exact_solve(self, x: Tensor) -> Tensor:
        return self._precision_product(x) if self.is_inverse else self._covariance_product(x)

    def _exact_root_product(self, x: Tensor, transpose: bool = False) -> Tensor:
        # the root of the inverse is the inverse transposed root
        return self._solve_root(x, not transpose) if self.is_inverse else self._multiply_root(x, transpose)

    def _exact_root_solve(self, x: Tensor, transpose: bool = False) -> Tensor:
        return self._multiply_root(x, not transpose) if self.is_inverse else self._solve_root(x, transpose)

    def _exact_inv_quad(self, x: Tensor) -> Tensor:
        if not self.is_inverse:
            return super()._exact_inv_quad(x)
        # x' P x = || T_D' x ||^2 + || B' x ||^2 needs no capacitance
        return self._multiply_base_root(x, transpose=True).square().sum(-2) + (self.factor.mT @ x).square().sum(-2)

    def _exact_logdet(self) -> Tensor:
        log_determinant = self.base.logdet() + capacitance_log_determinant(self._whitened()[1])
        return -log_determinant if self.is_inverse else log_determinant

    def _exact_diagonal(self) -> Tensor:
        if self.is_inverse:
            return self.base.inverse()._diagonal() - self._explained().square().sum(-1)
        return self.base._diagonal() + self.factor.square().sum(-1)

    def _exact_dense(self) -> Tensor:
        if self.is_inverse:
            explained = self._explained()
            return self.base.inverse().to_dense() - explained @ explained.mT
        return self.base.to_dense() + self.factor @ self.factor.mT

    ####
    # Both matrices, whichever of them the operator is
    ####
    def _precision_product(self, x: Tensor) -> Tensor:
        """``P x``."""
        return self.base.matmul(x) + self.factor @ (self.factor.mT @ x)

    def _covariance_product(self, x: Tensor) -> Tensor:
        """``S x``."""
        return self._solve_base_root(low_rank_solve(*self._whitened(), self._solve_base_root(x)), transpose=True)

    def _multiply_root(self, x: Tensor, transpose: bool = False) -> Tensor:
        """``T x`` or ``T' x`` for the root ``T = T_D F`` of ``P``, where ``F F' = I + W W'``."""
        if transpose:
            return root_product(*self._whitened(), self._multiply_base_root(x, transpose=True), transpose=True)
        return self._multiply_base_root(root_product(*self._whitened(), x))

    def _solve_root(self, x: Tensor, transpose: bool = False) -> Tensor:
        """``T^-1 x = F^-1 T_D^-1 x`` or ``T^-T x``."""
        if transpose:
            return self._solve_base_root(root_solve(*self._whitened(), x, transpose=True), transpose=True)
        return root_solve(*self._whitened(), self._solve_base_root(x))

    def _explained(self) -> Tensor:
        """``G = T_D^-T W L_A^-T``, ``(*batch, Q, R)``: ``S = D^-1 - G G'``."""
        return self._solve_base_root(explained_factor(*self._whitened()), transpose=True)

    def _whitened(self) -> tuple[Tensor, Tensor]:
        """``W = T_D^-1 B`` and the Cholesky factor of its capacitance."""
        return self._whitened_memo(self._tracks_gradients())

    @cached
    def _whitened_memo(self, tracks_gradients: bool) -> tuple[Tensor, Tensor]:
        whitened = self._solve_base_root(self.factor)
        return whitened, capacitance_cholesky(whitened)

    ####
    # The base, whose root is the identity for an identity
    ####
    def _multiply_base_root(self, x: Tensor, transpose: bool = False) -> Tensor:
        """``T_D x`` or ``T_D' x``."""
        is_identity = isinstance(self.base, IdentityLinearOperator)
        return x if is_identity else self.base._exact_root_product(x, transpose=transpose)

    def _solve_base_root(self, x: Tensor, transpose: bool = False) -> Tensor:
        """``T_D^-1 x`` or ``T_D^-T x``."""
        is_identity = isinstance(self.base, IdentityLinearOperator)
        return x if is_identity else self.base._exact_root_solve(x, transpose=transpose)

    def _blocks(self) -> BlockDiagonalCholeskyLinearOperator:
        """The base as a block-diagonal operator; an identity has blocks of size one."""
        if not isinstance(self.base, IdentityLinearOperator):
            return self.base
        ones = torch.ones(*self.base.shape[:-1], 1, 1, dtype=self.factor.dtype, device=self.factor.device)
        return BlockDiagonalCholeskyLinearOperator(ones)


def _align(base: Base, factor: Tensor) -> tuple[Base, Tensor]:
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
