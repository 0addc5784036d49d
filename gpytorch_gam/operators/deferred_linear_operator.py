"""A symmetric matrix that is formed only when its entries are needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from linear_operator.operators import DenseLinearOperator, LinearOperator, RootLinearOperator
from linear_operator.operators.linear_operator_representation_tree import LinearOperatorRepresentationTree
from linear_operator.utils.memoize import cached
from torch import Tensor

from gpytorch_gam.numerics.autocast import full_precision, is_mixed


class DeferredLinearOperator(LinearOperator):
    """
    A covariance over many rows of which, as a rule, only the diagonal is ever read: ``rows``, ``(*batch, n)``, if
    ``is_diagonal``, else any tensor of its shape, dtype and device. ``build`` makes the covariance of the rows in a
    range, ``(*batch, k, k)``, whenever it is needed; ``selection`` is the range of this matrix, by default all. What is
    computed from its parts, such as differences of matrices, is not touched by automatic mixed precision.
    """

    def __init__(
        self,
        rows: Tensor,
        build: Callable[[range], LinearOperator],
        selection: range | None = None,
        is_diagonal: bool = False,
    ) -> None:
        selection = range(rows.shape[-1]) if selection is None else selection
        super().__init__(rows, build=build, selection=selection, is_diagonal=is_diagonal)
        self._rows, self._build, self._selection, self._is_diagonal = rows, build, selection, is_diagonal

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle or a copy holds the covariance in formed state: the function that forms it cannot be pickled."""
        return _itself, (self.evaluate(),)

    def evaluate(self) -> LinearOperator:
        """Form the covariance; under automatic mixed precision all at once, as products with its parts would use it."""
        if not is_mixed(self.device):
            return self._build(self._selection)
        with full_precision(self.device):
            return DenseLinearOperator(self._build(self._selection).to_dense())

    def zero_mean_mvn_samples(self, num_samples: int) -> Tensor:
        """Draws from the normal distribution of this covariance and mean zero, ``(num_samples, *batch, n)``."""
        with full_precision(self.device):
            return self.evaluate().zero_mean_mvn_samples(num_samples)

    def root_decomposition(self, method: str | None = None) -> LinearOperator:
        """A root of the covariance, as upstream; its product with base samples is in full precision, too."""
        with full_precision(self.device):
            root = self.evaluate().root_decomposition(method=method).root
        return RootLinearOperator(_FullPrecisionRoot(root.to_dense()) if is_mixed(self.device) else root)

    def _mapped(self, rows: Tensor, function: Callable[[LinearOperator], LinearOperator]) -> DeferredLinearOperator:
        """The same rows with the diagonal already mapped, and a function that maps the covariance once it is formed."""
        build = self._build
        return type(self)(rows, lambda chosen: function(build(chosen)), self._selection, self._is_diagonal)

    def _size(self) -> torch.Size:
        return self._rows.shape + self._rows.shape[-1:]

    def _transpose_nonbatch(self) -> DeferredLinearOperator:
        return self  # the matrix is symmetric

    def _matmul(self, rhs: Tensor) -> Tensor:
        with full_precision(self.device):
            return self.evaluate()._matmul(rhs.to(self.dtype))

    def _diagonal(self) -> Tensor:
        return self._rows if self._is_diagonal else self.evaluate()._diagonal()

    @cached(name="cholesky")
    def _cholesky(self, upper: bool = False) -> LinearOperator:
        with full_precision(self.device):
            return self.evaluate()._cholesky(upper=upper)

    def to_dense(self) -> Tensor:
        """The dense matrix, ``(*batch, n, n)``."""
        with full_precision(self.device):
            return self.evaluate().to_dense()

    def representation(self) -> tuple[Tensor, ...]:
        """The representation of the formed covariance, which is what autograd sees."""
        return self.evaluate().representation()

    def representation_tree(self) -> LinearOperatorRepresentationTree:
        """The representation tree of the formed covariance."""
        return self.evaluate().representation_tree()

    def _getitem(self, row_index: Any, col_index: Any, *batch_indices: Any) -> LinearOperator:
        same_rows = isinstance(row_index, slice) and row_index == col_index
        if not same_rows or any(torch.is_tensor(index) for index in batch_indices):
            return self.evaluate()._getitem(row_index, col_index, *batch_indices)
        rows, chosen, build = self._rows[..., row_index], self._selection[row_index], self._build
        if not batch_indices or all(index == slice(None) for index in batch_indices):
            return type(self)(rows, build, chosen, self._is_diagonal)
        everything = slice(None)
        return type(self)(
            rows[tuple(batch_indices)],
            lambda selection: build(selection)._getitem(everything, everything, *batch_indices),
            chosen,
            self._is_diagonal,
        )

    def _get_indices(self, row_index: Any, col_index: Any, *batch_indices: Any) -> Tensor:
        return self.evaluate()._get_indices(row_index, col_index, *batch_indices)

    def _expand_batch(self, batch_shape: torch.Size | list[int]) -> DeferredLinearOperator:
        rows = self._rows.expand(*batch_shape, self._rows.shape[-1])
        return self._mapped(rows, lambda matrix: matrix.expand(*batch_shape, *matrix.shape[-2:]))

    def _permute_batch(self, *dims: int) -> DeferredLinearOperator:
        return self._mapped(self._rows.permute(*dims, len(dims)), lambda matrix: matrix._permute_batch(*dims))

    def _unsqueeze_batch(self, dim: int) -> DeferredLinearOperator:
        return self._mapped(self._rows.unsqueeze(dim), lambda matrix: matrix._unsqueeze_batch(dim))

    def repeat(self, *sizes: Any) -> LinearOperator:
        """Repeat the batch dimensions, as :meth:`torch.Tensor.repeat` does; sizes for rows and columns must be 1."""
        return self.evaluate().repeat(*sizes)

    def detach(self) -> DeferredLinearOperator:
        """The same matrix without gradients."""
        return self._mapped(self._rows.detach(), lambda matrix: matrix.detach())

    def to(self, *args: Any, **kwargs: Any) -> DeferredLinearOperator:
        """The same matrix on another device or in another dtype; arguments are those of :meth:`torch.Tensor.to`."""
        return self._mapped(self._rows.to(*args, **kwargs), lambda matrix: matrix.to(*args, **kwargs))

    def type(self, dtype: torch.dtype) -> DeferredLinearOperator:
        """The same matrix in another dtype."""
        return self._mapped(self._rows.to(dtype), lambda matrix: matrix.type(dtype))

    def cpu(self) -> DeferredLinearOperator:
        """The same matrix on the CPU."""
        return self.to("cpu")

    def cuda(self, device_id: int | None = None) -> DeferredLinearOperator:
        """The same matrix on the current GPU, or on the one with a given number."""
        return self.to(torch.device("cuda", device_id) if device_id is not None else "cuda")


class _FullPrecisionRoot(DenseLinearOperator):
    """A matrix whose products are not touched by automatic mixed precision."""

    def _matmul(self, rhs: Tensor) -> Tensor:
        with full_precision(self.device):
            return super()._matmul(rhs.to(self.dtype))

    def matmul(self, other: Any) -> Any:
        with full_precision(self.device):
            return super().matmul(other.to(self.dtype) if torch.is_tensor(other) else other)


def _itself(matrix: LinearOperator) -> LinearOperator:
    return matrix
