"""Positive definite operators with an exact root, and the operator that is that root."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from linear_operator import settings
from linear_operator.operators import (
    AddedDiagLinearOperator,
    DenseLinearOperator,
    DiagLinearOperator,
    LinearOperator,
    RootLinearOperator,
)
from linear_operator.utils.broadcasting import _matmul_broadcast_shape
from linear_operator.utils.getitem import IndexType, _is_noop_index
from linear_operator.utils.memoize import cached
from torch import Tensor


class _PlainLinearOperator(LinearOperator):
    """A square operator without lazy kernels, whose rows, columns and elements are read without expanding it."""

    def matmul(self, other: Tensor | LinearOperator) -> Tensor | LinearOperator:
        r""":math:`\mathbf A \mathbf X` for ``(*batch, Q, k)`` or ``(Q)``; lazily if ``other`` is an operator."""
        return super().matmul(other) if isinstance(other, LinearOperator) else self._matmul(other)

    def evaluate_kernel(self) -> LinearOperator:
        """The operator itself: it holds no lazy kernel, and a copy would have to be factorised again."""
        return self

    def _get_indices(self, row_index: Tensor, col_index: Tensor, *batch_indices: Tensor) -> Tensor:
        # Upstream's default expands the operator to one copy, hence one capacitance, for every wanted element.
        return self.to_dense()[(*batch_indices, row_index, col_index)]

    def _getitem(self, row_index: IndexType, col_index: IndexType, *batch_indices: IndexType) -> LinearOperator:
        if _is_noop_index(row_index) and _is_noop_index(col_index):
            return super()._getitem(row_index, col_index, *batch_indices)
        # Upstream's default interpolates with sparse matrices, for which it evaluates the whole operator. A product
        # with the chosen rows or columns, whichever are fewer, is enough.
        batch = super()._getitem(slice(None), slice(None), *batch_indices)
        identity = torch.eye(batch.shape[-1], dtype=batch.dtype, device=batch.device)
        rows, columns = identity[:, row_index], identity[:, col_index]
        if rows.shape[-1] <= columns.shape[-1]:
            return DenseLinearOperator(batch._t_matmul(rows).mT[..., col_index])
        return DenseLinearOperator(batch._matmul(columns)[..., row_index, :])


class PositiveDefiniteLinearOperator(_PlainLinearOperator):
    r"""
    The base class of this package's operators: symmetric positive definite, with an exact and cheap root.

    A subclass describes its matrix :math:`\mathbf A = \mathbf T \mathbf T^\top` by the abstract methods below, all in
    one dtype; this class turns them into the interface of :class:`~linear_operator.LinearOperator`:

    - nothing switches to conjugate gradients, Lanczos or a stochastic log-determinant at any size;
    - everything is computed in the larger of the operator's dtype and
      ``linear_operator.settings._linalg_dtype_cholesky`` (double by default) and cast back, so that float32 variances
      do not cancel to zero. Wrap the call in ``linear_operator.settings.linalg_dtypes(default=torch.float)`` to stay in
      float32;
    - every result is a plain differentiable expression in the operator's tensors.

    The factorisation is memoised in the operator, so make a new one after changing its tensors in place.

    Methods without a structured form (``cholesky``, ``eigh``, ``svd``, ``sqrt_inv_matmul``, sums with operators other
    than a positive diagonal) are upstream's.
    """

    ####
    # The matrix, described in one dtype: x is (*batch, Q, k) and has the operator's dtype.
    ####
    @abstractmethod
    def _exact_product(self, x: Tensor) -> Tensor:
        r""":math:`\mathbf A \mathbf x`, of shape ``(*batch, Q, k)``."""

    @abstractmethod
    def _exact_solve(self, x: Tensor) -> Tensor:
        r""":math:`\mathbf A^{-1} \mathbf x`, of shape ``(*batch, Q, k)``."""

    @abstractmethod
    def _exact_root_product(self, x: Tensor, transpose: bool = False) -> Tensor:
        r""":math:`\mathbf T \mathbf x` or :math:`\mathbf T^\top \mathbf x`, of shape ``(*batch, Q, k)``."""

    @abstractmethod
    def _exact_root_solve(self, x: Tensor, transpose: bool = False) -> Tensor:
        r""":math:`\mathbf T^{-1} \mathbf x` or :math:`\mathbf T^{-\top} \mathbf x`, of shape ``(*batch, Q, k)``."""

    @abstractmethod
    def _exact_logdet(self) -> Tensor:
        r""":math:`\log |\mathbf A|`, of shape ``(*batch)``."""

    @abstractmethod
    def _exact_diagonal(self) -> Tensor:
        r"""The diagonal of :math:`\mathbf A`, of shape ``(*batch, Q)``."""

    @abstractmethod
    def _exact_dense(self) -> Tensor:
        r""":math:`\mathbf A`, of shape ``(*batch, Q, Q)``."""

    @abstractmethod
    def _scaled(self, constant: Tensor) -> PositiveDefiniteLinearOperator:
        r""":math:`c \mathbf A` for positive ``constant`` of shape ``(*batch)`` or ``()``."""

    @abstractmethod
    def _plus_diagonal(self, diagonal: Tensor) -> PositiveDefiniteLinearOperator:
        r""":math:`\mathbf A` with a positive ``diagonal`` of shape ``(*batch, Q)`` added to it."""

    @abstractmethod
    def inverse(self) -> PositiveDefiniteLinearOperator:
        r""":math:`\mathbf A^{-1}` as an operator, with root :math:`\mathbf T^{-\top}`; nothing is computed."""

    def _exact_inv_quad(self, x: Tensor) -> Tensor:
        # x' A^-1 x = || T^-1 x ||^2, which cannot turn negative and loses half the digits that x' (A^-1 x) would
        return self._exact_root_solve(x).square().sum(-2)

    ####
    # The dtype in which to compute
    ####
    def _promoted(self) -> PositiveDefiniteLinearOperator:
        dtype = torch.promote_types(self.dtype, settings._linalg_dtype_cholesky.value())
        return self if dtype == self.dtype else self._converted(dtype, self._tracks_gradients())

    @cached
    def _converted(self, dtype: torch.dtype, tracks_gradients: bool) -> PositiveDefiniteLinearOperator:
        return self.to(dtype)

    def _tracks_gradients(self) -> bool:
        # The key of all memoised values: one that was cached under no_grad must not serve a call that needs its graph.
        return torch.is_grad_enabled() and self.requires_grad

    def _apply(self, name: str, x: Tensor, **kwargs: bool) -> Tensor:
        """Run the exact method ``name`` on a vector or matrix, in the promoted dtype."""
        _matmul_broadcast_shape(self.shape, x.shape)
        operator = self._promoted()
        columns = (x.unsqueeze(-1) if x.ndim == 1 else x).to(operator.dtype)
        result = getattr(operator, name)(columns, **kwargs).to(torch.promote_types(self.dtype, x.dtype))
        return result.squeeze(-1) if x.ndim == 1 else result

    ####
    # The root
    ####
    def root_matmul(self, x: Tensor) -> Tensor:
        r"""
        :math:`\mathbf T \mathbf x` for the exact root :math:`\mathbf T`, :math:`\mathbf T \mathbf T^\top = \mathbf A`.

        :param x: A matrix ``(*batch, Q, k)`` or a vector ``(Q)``.
        :return: A tensor of the same shape, broadcast against the operator's batch.
        """
        return self._apply("_exact_root_product", x)

    def root_transpose_matmul(self, x: Tensor) -> Tensor:
        r""":math:`\mathbf T^\top \mathbf x`; shapes as in :meth:`root_matmul`."""
        return self._apply("_exact_root_product", x, transpose=True)

    def root_solve(self, x: Tensor) -> Tensor:
        r""":math:`\mathbf T^{-1} \mathbf x`; shapes as in :meth:`root_matmul`."""
        return self._apply("_exact_root_solve", x)

    def root_transpose_solve(self, x: Tensor) -> Tensor:
        r""":math:`\mathbf T^{-\top} \mathbf x`; shapes as in :meth:`root_matmul`."""
        return self._apply("_exact_root_solve", x, transpose=True)

    def root_decomposition(self, method: str | None = None) -> LinearOperator:
        """The exact root, which costs as much to apply as :meth:`root_matmul`; with a ``method``, upstream's."""
        if method is not None:
            return super().root_decomposition(method=method)
        return RootLinearOperator(ExactRootLinearOperator(self))

    def root_inv_decomposition(
        self,
        initial_vectors: Tensor | None = None,
        test_vectors: Tensor | None = None,
        method: str | None = None,
    ) -> LinearOperator:
        r"""The exact root :math:`\mathbf T^{-\top}` of the inverse; with a ``method``, upstream's."""
        if method is not None:
            return super().root_inv_decomposition(initial_vectors, test_vectors, method=method)
        return self.inverse().root_decomposition()

    def zero_mean_mvn_samples(self, num_samples: int) -> Tensor:
        r"""Samples :math:`\mathbf T \epsilon` of :math:`N(0, \mathbf A)`, ``(num_samples, *batch, Q)``."""
        base_samples = torch.randn(*self.shape[:-1], num_samples, dtype=self.dtype, device=self.device)
        return self.root_matmul(base_samples).movedim(-1, 0).contiguous()

    ####
    # Linear algebra
    ####
    def solve(self, right_tensor: Tensor, left_tensor: Tensor | None = None) -> Tensor:
        r""":math:`\mathbf A^{-1} \mathbf X`, or :math:`\mathbf Y \mathbf A^{-1} \mathbf X`, without iteration."""
        result = self._apply("_exact_solve", right_tensor)
        return result if left_tensor is None else left_tensor @ result

    def inv_quad(self, inv_quad_rhs: Tensor, reduce_inv_quad: bool = True) -> Tensor:
        r"""
        :math:`\mathbf x^\top \mathbf A^{-1} \mathbf x`, never negative, for each column of ``(*batch, Q, k)``, or for
        ``(Q)``: ``(*batch, k)``, or ``(*batch)`` for a vector and if the columns are summed (``reduce_inv_quad``).
        """
        _matmul_broadcast_shape(self.shape, inv_quad_rhs.shape)
        operator = self._promoted()
        is_vector = inv_quad_rhs.ndim == 1
        columns = (inv_quad_rhs.unsqueeze(-1) if is_vector else inv_quad_rhs).to(operator.dtype)
        terms = operator._exact_inv_quad(columns)
        reduced = terms.sum(-1) if reduce_inv_quad or is_vector else terms
        return reduced.to(torch.promote_types(self.dtype, inv_quad_rhs.dtype))

    def logdet(self) -> Tensor:
        r""":math:`\log |\mathbf A|`, exactly; shape ``(*batch)``."""
        return self._promoted()._exact_logdet().to(self.dtype)

    def inv_quad_logdet(
        self,
        inv_quad_rhs: Tensor | None = None,
        logdet: bool | None = False,
        reduce_inv_quad: bool | None = True,
    ) -> tuple[Tensor | None, Tensor | None]:
        """:meth:`inv_quad` and :meth:`logdet`, or None in the place of one that was not asked for."""
        inv_quad_term = None if inv_quad_rhs is None else self.inv_quad(inv_quad_rhs, bool(reduce_inv_quad))
        return inv_quad_term, self.logdet() if logdet else None

    def trace(self) -> Tensor:
        """The sum of the diagonal; shape ``(*batch)``."""
        return self._promoted()._exact_diagonal().sum(-1).to(self.dtype)

    def to_dense(self) -> Tensor:
        """The matrix, ``(*batch, Q, Q)``."""
        return self._promoted()._exact_dense().to(self.dtype)

    def diagonalization(self, method: str | None = None) -> tuple[Tensor, LinearOperator | None]:
        """Eigenvalues and eigenvectors; dense and exact unless ``method`` is ``"lanczos"``, whatever the size."""
        return super().diagonalization(method=method or "symeig")

    def add_diagonal(self, diag: Tensor) -> LinearOperator:
        """The sum with ``(*batch, Q)``, ``(*batch, 1)`` or ``()`` on the diagonal; in this class if positive."""
        total = super().add_diagonal(diag)  # which checks the shape
        return self + total._diag_tensor if isinstance(total, AddedDiagLinearOperator) else total

    def __add__(self, other: Tensor | LinearOperator | float) -> LinearOperator | Tensor:
        if isinstance(other, DiagLinearOperator) and bool((other._diagonal() > 0).all()):
            operator = self._promoted()
            return operator._plus_diagonal(other._diagonal().to(operator.dtype)).to(self.dtype)
        return super().__add__(other)

    ####
    # LinearOperator's inner interface
    ####
    def _matmul(self, rhs: Tensor) -> Tensor:
        return self._apply("_exact_product", rhs)

    def _t_matmul(self, rhs: Tensor) -> Tensor:
        return self._matmul(rhs)

    def _solve(
        self,
        rhs: Tensor,
        preconditioner: Callable[[Tensor], Tensor] | None = None,
        num_tridiag: int | None = 0,
    ) -> Tensor | tuple[Tensor, Tensor]:
        if num_tridiag:
            return super()._solve(rhs, preconditioner, num_tridiag=num_tridiag)
        return self.solve(rhs)

    def _diagonal(self) -> Tensor:
        return self._promoted()._exact_diagonal().to(self.dtype)

    def _transpose_nonbatch(self) -> PositiveDefiniteLinearOperator:
        return self

    def _root_decomposition(self) -> LinearOperator:
        return self.root_decomposition().root

    def _root_inv_decomposition(
        self, initial_vectors: Tensor | None = None, test_vectors: Tensor | None = None
    ) -> LinearOperator:
        return self.root_inv_decomposition().root

    def _mul_constant(self, other: float | Tensor) -> LinearOperator:
        constant = torch.as_tensor(other, dtype=self.dtype, device=self.device)
        if bool((constant > 0).all()):
            return self._scaled(constant)
        return super()._mul_constant(constant)

    def __getstate__(self) -> dict[str, Any]:
        # Memoised values may hold a graph, which can be neither copied nor pickled.
        return {name: value for name, value in self.__dict__.items() if name != "_memoize_cache"}


class ExactRootLinearOperator(_PlainLinearOperator):
    r"""
    The exact root :math:`\mathbf T` of an operator, :math:`\mathbf T \mathbf T^\top = \mathbf A`, or its transpose, as
    ``operator.root_decomposition().root`` gives it: square, neither symmetric nor triangular, formed only by
    :meth:`to_dense`.
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

    def solve(self, right_tensor: Tensor, left_tensor: Tensor | None = None) -> Tensor:
        r""":math:`\mathbf T^{-1} \mathbf X`, or :math:`\mathbf Y \mathbf T^{-1} \mathbf X`."""
        solve = self.operator.root_transpose_solve if self.is_transpose else self.operator.root_solve
        result = solve(right_tensor)
        return result if left_tensor is None else left_tensor @ result

    def inverse(self) -> ExactRootLinearOperator:
        r""":math:`\mathbf T^{-1}`, the transposed root of the inverse operator."""
        return ExactRootLinearOperator(self.operator.inverse(), transpose=not self.is_transpose)

    def to_dense(self) -> Tensor:
        """The matrix, ``(*batch, Q, Q)``."""
        return self._matmul(torch.eye(self.shape[-1], dtype=self.dtype, device=self.device))
