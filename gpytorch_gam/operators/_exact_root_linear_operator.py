from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from linear_operator.operators import LinearOperator
from torch import Tensor

from ._indexing import PlainlyIndexed

if TYPE_CHECKING:
    from ._positive_definite_linear_operator import PositiveDefiniteLinearOperator


class ExactRootLinearOperator(PlainlyIndexed):
    r"""The exact root :math:`\mathbf T` of an operator of this package, :math:`\mathbf T \mathbf T^\top = \mathbf A`.

    What ``operator.root_decomposition().root`` gives. Square, neither symmetric nor triangular, and never formed unless
    :meth:`to_dense` is called.

    :param operator: The operator :math:`\mathbf A`, ``(*batch, Q, Q)``.
    :param transpose: Whether this is :math:`\mathbf T^\top`.
    """

    def __init__(self, operator: PositiveDefiniteLinearOperator, transpose: bool = False) -> None:
        super().__init__(operator, transpose=transpose)
        self.operator = operator
        self.is_transpose = transpose

    def _size(self) -> torch.Size:
        return self.operator.shape

    def _transpose_nonbatch(self) -> ExactRootLinearOperator:
        return ExactRootLinearOperator(self.operator, transpose=not self.is_transpose)

    def _expand_batch(self, batch_shape: torch.Size | list[int]) -> ExactRootLinearOperator:
        return ExactRootLinearOperator(self.operator._expand_batch(batch_shape), transpose=self.is_transpose)

    def _matmul(self, rhs: Tensor) -> Tensor:
        return self.operator.root_transpose_matmul(rhs) if self.is_transpose else self.operator.root_matmul(rhs)

    def _t_matmul(self, rhs: Tensor) -> Tensor:
        return self._transpose_nonbatch()._matmul(rhs)

    def _diagonal(self) -> Tensor:
        return self.to_dense().diagonal(dim1=-2, dim2=-1)

    def matmul(self, other: Tensor | LinearOperator) -> Tensor | LinearOperator:
        r""":math:`\mathbf T \mathbf X`.

        :param other: ``(*batch, Q, k)`` or ``(Q)``; a :class:`~linear_operator.LinearOperator` gives a lazy product.
        """
        return super().matmul(other) if isinstance(other, LinearOperator) else self._matmul(other)

    def solve(self, right_tensor: Tensor, left_tensor: Tensor | None = None) -> Tensor:
        r""":math:`\mathbf T^{-1} \mathbf X`, or :math:`\mathbf Y \mathbf T^{-1} \mathbf X`.

        :param right_tensor: :math:`\mathbf X`, ``(*batch, Q, k)`` or ``(Q)``.
        :param left_tensor: :math:`\mathbf Y`, ``(*batch, l, Q)``.
        """
        solve = self.operator.root_transpose_solve if self.is_transpose else self.operator.root_solve
        result = solve(right_tensor)
        return result if left_tensor is None else left_tensor @ result

    def inverse(self) -> ExactRootLinearOperator:
        r""":math:`\mathbf T^{-1}`, the transposed root of the inverse operator."""
        return ExactRootLinearOperator(self.operator.inverse(), transpose=not self.is_transpose)

    def to_dense(self) -> Tensor:
        """The matrix, ``(*batch, Q, Q)``."""
        return self._matmul(torch.eye(self.shape[-1], dtype=self.dtype, device=self.device))

    def evaluate_kernel(self) -> ExactRootLinearOperator:
        """The operator itself: it holds no lazy kernel, and a copy would factorise again."""
        return self
