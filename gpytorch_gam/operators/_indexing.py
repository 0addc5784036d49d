"""Indexing of structured operators."""

from __future__ import annotations

import torch
from linear_operator.operators import DenseLinearOperator, LinearOperator
from linear_operator.utils.getitem import IndexType, _is_noop_index
from torch import Tensor


class PlainlyIndexed(LinearOperator):
    """A square operator whose rows, columns and elements are read without expanding it."""

    def _get_indices(self, row_index: Tensor, col_index: Tensor, *batch_indices: Tensor) -> Tensor:
        # Upstream's default expands the operator to one copy, hence one capacitance, for every element asked for.
        return self.to_dense()[(*batch_indices, row_index, col_index)]

    def _getitem(self, row_index: IndexType, col_index: IndexType, *batch_indices: IndexType) -> LinearOperator:
        if _is_noop_index(row_index) and _is_noop_index(col_index):
            return super()._getitem(row_index, col_index, *batch_indices)
        batch = super()._getitem(slice(None), slice(None), *batch_indices)
        return submatrix(batch, row_index, col_index)


def submatrix(operator: LinearOperator, row_index: IndexType, col_index: IndexType) -> DenseLinearOperator:
    """The rows and columns asked for, at the cost of a product with as many columns as there are of the fewer.

    Upstream's default interpolates with sparse matrices and evaluates the whole operator to do so.

    :param operator: ``(*batch, Q, Q)``.
    :param row_index: A slice or a vector of indices.
    :param col_index: A slice or a vector of indices.
    """
    identity = torch.eye(operator.shape[-1], dtype=operator.dtype, device=operator.device)
    rows, columns = identity[:, row_index], identity[:, col_index]
    if rows.shape[-1] <= columns.shape[-1]:
        return DenseLinearOperator(operator._t_matmul(rows).mT[..., col_index])
    return DenseLinearOperator(operator._matmul(columns)[..., row_index, :])
