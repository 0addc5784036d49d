from __future__ import annotations

import torch
from linear_operator.operators import DenseLinearOperator, LinearOperator
from linear_operator.utils.getitem import IndexType


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
