"""A structured precision matrix: a base plus a low-rank term."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from linear_operator.operators import LinearOperator, to_dense
from linear_operator.utils.memoize import cached
from torch import Tensor

from gpytorch_gam.numerics.capacitance import (
    capacitance_cholesky,
    capacitance_log_determinant,
    explained_factor,
    low_rank_solve,
    root_product,
    root_solve,
)

from ._low_rank import LowRankOperator, base_root_product, base_root_solve, scale

if TYPE_CHECKING:
    from .low_rank_precision_inverse_linear_operator import LowRankPrecisionInverseLinearOperator


class LowRankPrecisionLinearOperator(LowRankOperator):
    r"""A base plus a low-rank term, :math:`\mathbf P = \mathbf D + \mathbf B \mathbf B^\top`.

    The precision of the structured variational posteriors of an additive model. In the coordinates of Adam, Durrande
    & John (2018, section 4) the base is :math:`\mathbf K^{-1}`, i.e. ``BlockDiagonalCholeskyLinearOperator(L,
    inverse=True)``; in whitened coordinates it is the identity, or a block-diagonal :math:`\mathbf D`.

    With :math:`\mathbf D = \mathbf T_D \mathbf T_D^\top` and :math:`\mathbf W = \mathbf T_D^{-1} \mathbf B`,
    everything goes through the :math:`R \times R` capacitance
    :math:`\mathbf A = \mathbf I + \mathbf W^\top \mathbf W = \mathbf L_A \mathbf L_A^\top`:

    .. math::

        \log |\mathbf P| &= \log |\mathbf D| + \log |\mathbf A| \\
        \mathbf P^{-1} &= \mathbf T_D^{-\top} (\mathbf I - \mathbf W \mathbf A^{-1} \mathbf W^\top) \mathbf T_D^{-1} \\
        \mathbf P &= \mathbf T \mathbf T^\top, \qquad
        \mathbf T = \mathbf T_D \left( \mathbf I + \mathbf W (\mathbf I + \mathbf L_A)^{-1} \mathbf W^\top \right)

    Forming the capacitance costs :math:`O(Q R^2 + R^3)` once an operator; products, solves and samples cost
    :math:`O(Q R)` a column on top of the base's. No :math:`Q \times Q` matrix is factorised, except by ``cholesky``
    and ``eigh``. Sums with other operators (``add_jitter`` included) and a multiple by a negative number leave this
    class, and above ``linear_operator.settings.max_cholesky_size`` upstream treats those iteratively;
    :meth:`add_low_rank` and positive multiples stay exact.

    :param base: :math:`\mathbf D`, ``(*batch, Q, Q)``: an :class:`~linear_operator.operators.IdentityLinearOperator`
        or a :class:`BlockDiagonalCholeskyLinearOperator`.
    :param factor: :math:`\mathbf B`, ``(*batch, Q, R)``; ``R = 0`` leaves the base, and ``R > Q`` is allowed.
    :raises ValueError: If the base is of another class, or sizes, batch shapes, dtypes or devices do not agree.

    Example:
        >>> base = IdentityLinearOperator(100, dtype=torch.double)
        >>> precision = LowRankPrecisionLinearOperator(base, torch.randn(100, 8, dtype=torch.double))
        >>> q = MultivariateNormal(torch.zeros(100, dtype=torch.double), precision.inverse())
    """

    def inverse(self) -> LowRankPrecisionInverseLinearOperator:
        """The inverse as an operator on the same tensors; nothing is computed."""
        from .low_rank_precision_inverse_linear_operator import LowRankPrecisionInverseLinearOperator

        return LowRankPrecisionInverseLinearOperator(self.base, self.factor)

    def add_low_rank(
        self,
        low_rank_mat: Tensor | LinearOperator,
        root_decomp_method: str | None = None,
        root_inv_decomp_method: str | None = None,
        generate_roots: bool | None = True,
        **root_decomp_kwargs: object,
    ) -> LowRankPrecisionLinearOperator:
        r""":math:`\mathbf P + \mathbf C \mathbf C^\top`, by appending the columns of :math:`\mathbf C` to the factor.

        :param low_rank_mat: :math:`\mathbf C`, ``(*batch, Q, R')``.
        :param root_decomp_method: Not used, nor are the arguments that follow: the sum has an exact root of its own.
        """
        columns = to_dense(low_rank_mat)
        batch_shape = torch.broadcast_shapes(self.batch_shape, columns.shape[:-2])
        parts = [part.expand(*batch_shape, *part.shape[-2:]) for part in (self.factor, columns)]
        return LowRankPrecisionLinearOperator(self.base, torch.cat(parts, dim=-1))

    def _size(self) -> torch.Size:
        return self.base.shape

    def _expand_batch(self, batch_shape: torch.Size | list[int]) -> LowRankPrecisionLinearOperator:
        factor = self.factor.expand(*batch_shape, *self.factor.shape[-2:])
        return LowRankPrecisionLinearOperator(self.base._expand_batch(batch_shape), factor)

    def _scaled(self, constant: Tensor) -> LowRankPrecisionLinearOperator:
        return LowRankPrecisionLinearOperator(*scale(self.base, self.factor, constant))

    def _whitened(self) -> tuple[Tensor, Tensor]:
        """``W = T_D^-1 B`` and the Cholesky factor of its capacitance."""
        return self._whitened_memo(self._tracks_gradients())

    @cached
    def _whitened_memo(self, tracks_gradients: bool) -> tuple[Tensor, Tensor]:
        whitened = base_root_solve(self.base, self.factor)
        return whitened, capacitance_cholesky(whitened)

    def _exact_product(self, x: Tensor) -> Tensor:
        return self.base.matmul(x) + self.factor @ (self.factor.mT @ x)

    def _exact_solve(self, x: Tensor) -> Tensor:
        inner = low_rank_solve(*self._whitened(), base_root_solve(self.base, x))
        return base_root_solve(self.base, inner, transpose=True)

    def _exact_root_product(self, x: Tensor, transpose: bool = False) -> Tensor:
        # T = T_D F, with F F' = I + W W'
        if transpose:
            return root_product(*self._whitened(), base_root_product(self.base, x, transpose=True), transpose=True)
        return base_root_product(self.base, root_product(*self._whitened(), x))

    def _exact_root_solve(self, x: Tensor, transpose: bool = False) -> Tensor:
        # T^-1 = F^-1 T_D^-1
        if transpose:
            return base_root_solve(self.base, root_solve(*self._whitened(), x, transpose=True), transpose=True)
        return root_solve(*self._whitened(), base_root_solve(self.base, x))

    def _exact_logdet(self) -> Tensor:
        return self.base.logdet() + capacitance_log_determinant(self._whitened()[1])

    def _exact_diagonal(self) -> Tensor:
        return self.base._diagonal() + self.factor.square().sum(-1)

    def _exact_dense(self) -> Tensor:
        return self.base.to_dense() + self.factor @ self.factor.mT

    def _explained(self) -> Tensor:
        """``G = T_D^-T W L_A^-T``, of shape ``(*batch, Q, R)``: ``P^-1 = D^-1 - G G'``."""
        return base_root_solve(self.base, explained_factor(*self._whitened()), transpose=True)
