"""A structured covariance matrix: the inverse of a base plus a low-rank term."""

from __future__ import annotations

import torch
from linear_operator.operators import IdentityLinearOperator
from torch import Tensor

from ._low_rank import LowRankOperator, base_root_product
from .block_diagonal_cholesky_linear_operator import BlockDiagonalCholeskyLinearOperator
from .low_rank_precision_linear_operator import LowRankPrecisionLinearOperator


class LowRankPrecisionInverseLinearOperator(LowRankOperator):
    r"""Inverse of a base plus a low-rank term, :math:`\mathbf S = (\mathbf D + \mathbf B \mathbf B^\top)^{-1}`.

    The covariance of the structured variational posteriors of an additive model (Adam, Durrande & John 2018, section
    4). With :math:`\mathbf D = \mathbf T_D \mathbf T_D^\top`, :math:`\mathbf W = \mathbf T_D^{-1} \mathbf B` and the
    :math:`R \times R` capacitance
    :math:`\mathbf A = \mathbf I + \mathbf W^\top \mathbf W = \mathbf L_A \mathbf L_A^\top`:

    .. math::

        \mathbf S &= \mathbf D^{-1} - \mathbf G \mathbf G^\top, \qquad
        \mathbf G = \mathbf T_D^{-\top} \mathbf W \mathbf L_A^{-\top} \\
        \log |\mathbf S| &= - \log |\mathbf D| - \log |\mathbf A| \\
        \mathbf S &= \mathbf T \mathbf T^\top, \qquad
        \mathbf T = \mathbf T_D^{-\top} \left(
            \mathbf I - \mathbf W \mathbf L_A^{-\top} (\mathbf I + \mathbf L_A)^{-1} \mathbf W^\top \right)

    Variances are the base's minus squares, and :math:`\mathbf S` is never formed except by :meth:`to_dense`. Costs
    and what is not structured are as in :class:`LowRankPrecisionLinearOperator`, of which this is the inverse.

    :param base: :math:`\mathbf D`, ``(*batch, Q, Q)``: an :class:`~linear_operator.operators.IdentityLinearOperator`
        or a :class:`BlockDiagonalCholeskyLinearOperator`. It is the base of the *precision*: for a prior covariance
        :math:`\mathbf K` with factors ``L`` it is ``BlockDiagonalCholeskyLinearOperator(L, inverse=True)``.
    :param factor: :math:`\mathbf B`, ``(*batch, Q, R)``; ``R = 0`` leaves the base, and ``R > Q`` is allowed.
    :raises ValueError: If the base is of another class, or sizes, batch shapes, dtypes or devices do not agree.

    Example:
        >>> prior_precision = BlockDiagonalCholeskyLinearOperator(L, inverse=True)           # Q x Q
        >>> covariance = LowRankPrecisionInverseLinearOperator(prior_precision, B)           # B is Q x R
        >>> MultivariateNormal(mean, covariance).rsample()                                   # O(Q R + Q M)
    """

    def __init__(self, base: IdentityLinearOperator | BlockDiagonalCholeskyLinearOperator, factor: Tensor) -> None:
        super().__init__(base, factor)
        self._precision = LowRankPrecisionLinearOperator(*self._args)

    def inverse(self) -> LowRankPrecisionLinearOperator:
        """The precision as an operator on the same tensors; nothing is computed."""
        return self._precision

    def _size(self) -> torch.Size:
        return self.base.shape

    def _expand_batch(self, batch_shape: torch.Size | list[int]) -> LowRankPrecisionInverseLinearOperator:
        return self._precision._expand_batch(batch_shape).inverse()

    def _scaled(self, constant: Tensor) -> LowRankPrecisionInverseLinearOperator:
        return self._precision._scaled(constant.reciprocal()).inverse()

    def _exact_product(self, x: Tensor) -> Tensor:
        return self._precision._exact_solve(x)

    def _exact_solve(self, x: Tensor) -> Tensor:
        return self._precision._exact_product(x)

    def _exact_root_product(self, x: Tensor, transpose: bool = False) -> Tensor:
        # the root of the inverse is the inverse transposed root
        return self._precision._exact_root_solve(x, transpose=not transpose)

    def _exact_root_solve(self, x: Tensor, transpose: bool = False) -> Tensor:
        return self._precision._exact_root_product(x, transpose=not transpose)

    def _exact_inv_quad(self, x: Tensor) -> Tensor:
        # x' P x = || T_D' x ||^2 + || B' x ||^2 needs no capacitance
        base_term = base_root_product(self.base, x, transpose=True).square().sum(-2)
        return base_term + (self.factor.mT @ x).square().sum(-2)

    def _exact_logdet(self) -> Tensor:
        return -self._precision._exact_logdet()

    def _exact_diagonal(self) -> Tensor:
        return self.base.inverse()._diagonal() - self._precision._explained().square().sum(-1)

    def _exact_dense(self) -> Tensor:
        explained = self._precision._explained()
        return self.base.inverse().to_dense() - explained @ explained.mT
