"""Ragged block-diagonal matrices from the Cholesky factors of their blocks."""

from __future__ import annotations

import torch
from linear_operator.operators import TriangularLinearOperator
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from gpytorch_gam.numerics.blocks import assemble, block_shapes, multiply_blocks, solve_blocks, split_groups

from ._positive_definite_linear_operator import PositiveDefiniteLinearOperator


class BlockDiagonalCholeskyLinearOperator(PositiveDefiniteLinearOperator):
    r"""
    A positive definite block-diagonal matrix, or its inverse, from the Cholesky factors of its blocks.

    .. math::

        \mathbf K = \mathrm{blockdiag}_{c = 1, \ldots, C} \, \mathbf L_c \mathbf L_c^\top
        \qquad \text{or, with } \texttt{inverse=True}, \qquad
        \mathbf K^{-1} = \mathrm{blockdiag}_{c = 1, \ldots, C} \, \mathbf L_c^{-\top} \mathbf L_c^{-1}

    Blocks may differ in size: each positional argument holds consecutive blocks of one size, and the arguments follow
    one another along the diagonal. This is the prior over the inducing variables of an additive model (Adam, Durrande &
    John 2018, section 4), one block a component. The exact root (see :meth:`root_matmul`) is
    :math:`\mathbf T = \mathrm{blockdiag}(\mathbf L_c)`, and :math:`\mathrm{blockdiag}(\mathbf L_c^{-\top})` for the
    inverse, whose blocks are never formed except by :meth:`to_dense`.

    With C blocks of size M, products, solves and samples cost :math:`O(C M^2)` a column, ``logdet`` :math:`O(C M)`, the
    diagonal :math:`O(C M^2)`, or :math:`O(C M^3)` for the inverse. ``cholesky()`` returns a dense :math:`Q \times Q`
    factor, computed block by block. A positive diagonal that is added (``add_jitter`` included) stays in the blocks, at
    :math:`O(C M^3)`; with a low-rank term the sum is a :class:`LowRankPrecisionLinearOperator`.

    :param factors: Lower-triangular factors, each ``(*batch, C_g, M_g, M_g)``; batch shapes are broadcast. Entries
        above the diagonal are not read.
    :param inverse: Whether the operator is :math:`\mathbf K^{-1}` instead of :math:`\mathbf K`.
    :raises TypeError: If a factor is not a tensor of floating-point numbers.
    :raises ValueError: If there is no factor, if one is not a stack of square matrices, or if dtypes, devices or batch
        shapes do not agree.

    Example:
        >>> L_main = torch.linalg.cholesky(K_main)                     # 6 x 16 x 16
        >>> L_pair = torch.linalg.cholesky(K_pair)                     # 1 x 25 x 25
        >>> K = BlockDiagonalCholeskyLinearOperator(L_main, L_pair)    # 121 x 121
        >>> K.inverse() @ torch.randn(121, 3)                          # two triangular solves a group
    """

    def __init__(self, *factors: Tensor, inverse: bool = False) -> None:
        super().__init__(*factors, inverse=inverse)
        batch_shape = torch.broadcast_shapes(*(factor.shape[:-3] for factor in factors))
        self._args = tuple(_expand_factor(factor, batch_shape) for factor in factors)
        self.is_inverse = inverse

    def _check_args(self, *factors: Tensor, inverse: bool = False) -> str | None:
        name = type(self).__name__
        if not factors:
            return f"{name} needs at least one factor of shape (*batch, C, M, M)"
        for position, factor in enumerate(factors):
            if not torch.is_tensor(factor):
                raise TypeError(f"{name} takes tensors as factors, but factor {position} is a {type(factor).__name__}")
            if factor.ndim < 3 or factor.shape[-1] != factor.shape[-2]:
                return (
                    f"{name} takes factors of shape (*batch, C, M, M), but factor {position} has shape "
                    f"{tuple(factor.shape)}. A single M x M block is factor.unsqueeze(0)."
                )
            if not factor.is_floating_point():
                raise TypeError(f"{name} takes floating-point factors, but factor {position} has dtype {factor.dtype}")
        if len({(factor.dtype, factor.device) for factor in factors}) > 1:
            found = ", ".join(f"{factor.dtype} on {factor.device}" for factor in factors)
            return f"{name} needs all factors in one dtype and on one device, but got {found}"
        try:
            torch.broadcast_shapes(*(factor.shape[:-3] for factor in factors))
        except RuntimeError:
            found = ", ".join(str(tuple(factor.shape[:-3])) for factor in factors)
            return f"{name} cannot broadcast the batch shapes of its factors: {found}"
        return None

    @property
    def factors(self) -> tuple[Tensor, ...]:
        """The Cholesky factors, each ``(*batch, C_g, M_g, M_g)``."""
        return self._args

    def inverse(self) -> BlockDiagonalCholeskyLinearOperator:
        """The inverse: the same factors with the flag flipped; nothing is computed."""
        return BlockDiagonalCholeskyLinearOperator(*self.factors, inverse=not self.is_inverse)

    def _size(self) -> torch.Size:
        size = sum(num * size for num, size in block_shapes(self.factors))
        return torch.Size([*self.factors[0].shape[:-3], size, size])

    def _expand_batch(self, batch_shape: torch.Size | list[int]) -> BlockDiagonalCholeskyLinearOperator:
        factors = (factor.expand(*batch_shape, *factor.shape[-3:]) for factor in self.factors)
        return BlockDiagonalCholeskyLinearOperator(*factors, inverse=self.is_inverse)

    def _scaled(self, constant: Tensor) -> BlockDiagonalCholeskyLinearOperator:
        scale = constant.rsqrt() if self.is_inverse else constant.sqrt()
        factors = (factor * scale[..., None, None, None] for factor in self.factors)
        return BlockDiagonalCholeskyLinearOperator(*factors, inverse=self.is_inverse)

    def _plus_diagonal(self, diagonal: Tensor) -> BlockDiagonalCholeskyLinearOperator:
        parts = split_groups(diagonal.unsqueeze(-1), block_shapes(self.factors))
        blocks = zip(self._root_blocks(), parts, strict=True)
        sums = (root @ root.mT + torch.diag_embed(part.squeeze(-1)) for root, part in blocks)
        return BlockDiagonalCholeskyLinearOperator(*(psd_safe_cholesky(total) for total in sums))

    def _exact_root_product(self, x: Tensor, transpose: bool = False) -> Tensor:
        # T = L, or T = L^-T
        return solve_blocks(self.factors, x, not transpose) if self.is_inverse else self._multiply_factors(x, transpose)

    def _exact_root_solve(self, x: Tensor, transpose: bool = False) -> Tensor:
        # T^-1 = L^-1, or T^-1 = L'
        return self._multiply_factors(x, not transpose) if self.is_inverse else solve_blocks(self.factors, x, transpose)

    def _exact_product(self, x: Tensor) -> Tensor:
        return self._exact_root_product(self._exact_root_product(x, transpose=True))

    def _exact_solve(self, x: Tensor) -> Tensor:
        return self._exact_root_solve(self._exact_root_solve(x), transpose=True)

    def _exact_logdet(self) -> Tensor:
        # log |L L'| = 2 sum_i log |L_ii|
        terms = [factor.diagonal(dim1=-2, dim2=-1).abs().log().sum((-2, -1)) for factor in self.factors]
        log_determinant = 2.0 * torch.stack(terms).sum(0)
        return -log_determinant if self.is_inverse else log_determinant

    def _multiply_factors(self, x: Tensor, transpose: bool) -> Tensor:
        """``L x`` or ``L' x``."""
        return multiply_blocks([factor.tril().mT if transpose else factor.tril() for factor in self.factors], x)

    def _root_blocks(self) -> list[Tensor]:
        """The blocks of T, each ``(*batch, C_g, M_g, M_g)``."""
        if not self.is_inverse:
            return [factor.tril() for factor in self.factors]
        identities = (torch.eye(factor.shape[-1], dtype=factor.dtype, device=factor.device) for factor in self.factors)
        pairs = zip(self.factors, identities, strict=True)
        return [torch.linalg.solve_triangular(factor, eye, upper=False).mT for factor, eye in pairs]

    def _exact_diagonal(self) -> Tensor:
        # (T T')_ii = sum_j T_ij^2
        return torch.cat([block.square().sum(-1).flatten(-2) for block in self._root_blocks()], dim=-1)

    def _exact_dense(self) -> Tensor:
        return assemble([block @ block.mT for block in self._root_blocks()])

    def _cholesky(self, upper: bool | None = False) -> TriangularLinearOperator:
        blocks = self._promoted()._root_blocks()
        if self.is_inverse:
            # K^-1 = L^-T L^-1 and L^-1 = U R give K^-1 = R' R
            blocks = [torch.linalg.qr(block.mT, mode="r").R.mT for block in blocks]
        # a factor is unique up to the signs of its columns, and Cholesky's has a positive diagonal
        blocks = [block * block.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2) for block in blocks]
        lower = assemble(blocks).to(self.dtype)
        return TriangularLinearOperator(lower.mT if upper else lower, upper=bool(upper))


def _expand_factor(factor: Tensor, batch_shape: torch.Size) -> Tensor:
    # expanding where there is nothing to expand would turn leaf tensors into views
    return factor if factor.shape[:-3] == batch_shape else factor.expand(*batch_shape, *factor.shape[-3:])
