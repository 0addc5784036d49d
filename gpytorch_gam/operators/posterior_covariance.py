"""The predictive covariance as prior minus squares, factorised safely."""

from __future__ import annotations

import torch
from linear_operator.operators import (
    LinearOperator,
    MatmulLinearOperator,
    SumLinearOperator,
    TriangularLinearOperator,
)
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from gpytorch_gam.numerics.marginals import keep_positive


class PosteriorCovariance(SumLinearOperator):
    r"""
    :math:`K - G^\top G \pm T^\top T` over n rows, lazily. Rounding can make it slightly indefinite: variances and
    products are computed as they are, but a Cholesky factor, as sampling needs it, is that of the matrix with the size
    of its rounding errors added to the diagonal.
    """

    def with_rounding_jitter(self) -> Tensor:
        """The dense matrix with the size of its rounding errors added to the diagonal, ``(*batch, n, n)``."""
        dense = self.to_dense()
        prior_scale = self.linear_ops[0].diagonal(dim1=-1, dim2=-2).mean(-1)
        jitter = torch.finfo(dense.dtype).eps * dense.shape[-1] * prior_scale
        identity = torch.eye(dense.shape[-1], dtype=dense.dtype, device=dense.device)
        return dense + jitter[..., None, None] * identity

    def _cholesky(self, upper: bool = False) -> TriangularLinearOperator:
        return TriangularLinearOperator(psd_safe_cholesky(self.with_rounding_jitter(), upper=upper), upper=upper)

    def _diagonal(self) -> Tensor:
        prior = self.linear_ops[0].diagonal(dim1=-1, dim2=-2)
        return keep_positive(super()._diagonal(), prior)


def posterior_covariance(
    prior: LinearOperator, removed: list[Tensor], coupled: Tensor, sign: int
) -> PosteriorCovariance:
    r"""
    :math:`K - \sum G^\top G + s T^\top T` for a prior K, ``(*batch, n, n)``, factors G (``removed``),
    ``(*batch, k, n)``, and T (``coupled``), ``(*batch, R, n)``, and a sign s of -1 or 1.
    """
    updates = [MatmulLinearOperator(-rows.mT, rows) for rows in removed]
    if coupled.shape[-2] > 0:
        updates.append(MatmulLinearOperator(sign * coupled.mT, coupled))
    return PosteriorCovariance(prior, *updates)
