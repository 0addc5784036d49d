"""The joint distribution of several predictors at the rows of the data, and its moments within each row."""

from __future__ import annotations

import numbers
from typing import Any, NamedTuple

import torch
from gpytorch import settings
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from linear_operator import LinearOperator, to_linear_operator
from linear_operator.operators import (
    BlockDiagLinearOperator,
    BlockInterleavedLinearOperator,
    DenseLinearOperator,
    DiagLinearOperator,
    ZeroLinearOperator,
)
from torch import Tensor

from gpytorch_gam.numerics.marginals import Marginals

from .marginal_normal import MarginalNormal


class PredictorMoments(NamedTuple):
    """
    Moments of the predictors in each row.

    :ivar mean: means of the predictors, ``(*batch, n, P)``.
    :ivar covariance: covariance between the predictors of one row, ``(*batch, n, P, P)``.
    """

    mean: Tensor
    covariance: Tensor

    @classmethod
    def of(cls, marginals: Marginals, dtype: torch.dtype) -> PredictorMoments:
        """The moments of P predictors as a tuple of tensors in a given dtype."""
        return cls(marginals.mean.mT.to(dtype), marginals.covariance_in_rows().to(dtype))


class PredictorDistribution(MultitaskMultivariateNormal):
    """
    The joint distribution of P predictors at n rows. It also holds the covariance within each row, which is all that an
    expected log-probability needs, so that the joint covariance need not be evaluated for it.

    Otherwise it is an ordinary :class:`~gpytorch.distributions.MultitaskMultivariateNormal`. Shifts and scalings by a
    number, jitter and expansion keep the covariance within rows; other operations give GPyTorch's class.

    :param mean: Means of the predictors, ``(*batch, n, P)``.
    :param covariance_matrix: Covariance of all predictors at all rows, ``(*batch, n P, n P)``, lazy or dense.
    :param interleaved: Whether the rows of the covariance run over (row, predictor) or, if False, over (predictor,
        row).
    :param row_covariance: The blocks of the covariance that belong to single rows, ``(*batch, n, P, P)``. By default
        they are read from the joint covariance when they are needed, as in distributions that GPyTorch derives from
        this one.
    :raises ValueError: If ``row_covariance`` has another shape.
    """

    def __init__(
        self,
        mean: Tensor,
        covariance_matrix: Tensor | LinearOperator,
        validate_args: bool = False,
        interleaved: bool = True,
        row_covariance: Tensor | None = None,
    ) -> None:
        super().__init__(mean, covariance_matrix, validate_args=validate_args, interleaved=interleaved)
        expected = self._output_shape + self._output_shape[-1:]
        if row_covariance is not None and row_covariance.shape != expected:
            raise ValueError(
                f"row_covariance must be (*batch, n, P, P), here {tuple(expected)}, got {tuple(row_covariance.shape)}"
            )
        self._row_covariance = row_covariance

    @property
    def row_covariance(self) -> Tensor:
        """Covariance of the predictors within each row, ``(*batch, n, P, P)``."""
        if self._row_covariance is None:
            covariance = self.lazy_covariance_matrix
            rows = _row_blocks(covariance, self._interleaved, *self._output_shape[-2:])
            self._row_covariance = rows.expand(self._output_shape + self._output_shape[-1:])
        return self._row_covariance

    @property
    def variance(self) -> Tensor:
        """
        The variances, ``(*batch, n, P)``, held at ``gpytorch.settings.min_variance`` without checking whether one is
        below, for which a GPU would have to be waited for.
        """
        variance = self.row_covariance.diagonal(dim1=-2, dim2=-1)
        return variance.clamp_min(settings.min_variance.value(variance.dtype))

    def to_data_independent_dist(self, jitter_val: float = 1e-4) -> MultivariateNormal:
        """The rows as a batch of independent distributions of P variables, with jitter added to the variances."""
        return MultivariateNormal(self.mean, to_linear_operator(self.row_covariance).add_jitter(jitter_val))

    def expand(self, batch_size: torch.Size) -> PredictorDistribution:
        """The same distribution with a larger batch shape."""
        batch_shape = torch.Size(batch_size)
        covariance = self.lazy_covariance_matrix
        return PredictorDistribution(
            self.mean.expand(*batch_shape, *self.mean.shape[-2:]),
            covariance.expand(*batch_shape, *covariance.shape[-2:]),
            interleaved=self._interleaved,
            row_covariance=self.row_covariance.expand(*batch_shape, *self.row_covariance.shape[-3:]),
        )

    def add_jitter(self, noise: float = 1e-4) -> PredictorDistribution:
        """The distribution with a number added to all variances."""
        identity = torch.eye(self._output_shape[-1], dtype=self.mean.dtype, device=self.mean.device)
        covariance = self.lazy_covariance_matrix.add_jitter(noise)
        rows = self.row_covariance + noise * identity
        return PredictorDistribution(self.mean, covariance, interleaved=self._interleaved, row_covariance=rows)

    def __add__(self, other: Any) -> MultitaskMultivariateNormal:
        if isinstance(other, MultitaskMultivariateNormal):
            if other._interleaved != self._interleaved:
                raise ValueError(
                    "distributions whose covariances run over (row, predictor) and over (predictor, row) cannot be "
                    "added: build both with the same interleaved"
                )
            covariance = self.lazy_covariance_matrix + other.lazy_covariance_matrix
            return MultitaskMultivariateNormal(self.mean + other.mean, covariance, interleaved=self._interleaved)
        if not isinstance(other, numbers.Real):
            raise TypeError(f"can add a number or a MultitaskMultivariateNormal, got {type(other).__name__}")
        return PredictorDistribution(
            self.mean + other,
            self.lazy_covariance_matrix,
            interleaved=self._interleaved,
            row_covariance=self.row_covariance,
        )

    def __mul__(self, other: Any) -> PredictorDistribution:
        if not isinstance(other, numbers.Real):
            raise TypeError(f"can multiply by a number only, got {type(other).__name__}")
        square = float(other) ** 2
        return PredictorDistribution(
            self.mean * other,
            self.lazy_covariance_matrix * square,
            interleaved=self._interleaved,
            row_covariance=self.row_covariance * square,
        )


def independent_rows(moments: PredictorMoments) -> MultivariateNormal:
    """The distribution of n independent rows with these moments; a multitask one over n x P for several predictors."""
    mean, covariance = moments
    if mean.shape[-1] == 1:
        return MarginalNormal(mean.squeeze(-1), DiagLinearOperator(covariance.flatten(-3)))
    rows = BlockDiagLinearOperator(DenseLinearOperator(covariance), block_dim=-3)
    return MultitaskMultivariateNormal(mean, rows, interleaved=True)


def row_moments(distribution: MultivariateNormal) -> PredictorMoments:
    """
    Mean and covariance of the predictors within each row.

    This costs nothing for a :class:`PredictorDistribution`, for distributions of independent rows (block-diagonal
    covariance, rows as blocks) and of independent predictors; otherwise the joint covariance is evaluated,
    ``O((n P)^2)`` numbers.

    :param distribution: A distribution of P predictors at n rows; a normal that is not multitask has P = 1.
    :raises TypeError: If the distribution is not a multivariate normal.
    """
    if isinstance(distribution, PredictorDistribution):
        return PredictorMoments(distribution.mean, distribution.row_covariance)
    if not isinstance(distribution, MultivariateNormal):
        raise TypeError(
            "the predictors' distribution must be a gpytorch MultitaskMultivariateNormal, got "
            f"{type(distribution).__name__}"
        )
    covariance = distribution.lazy_covariance_matrix
    if not isinstance(distribution, MultitaskMultivariateNormal):
        mean = distribution.mean.unsqueeze(-1)
        variance = covariance.diagonal(dim1=-2, dim2=-1)
        return PredictorMoments(mean, variance.expand(mean.shape[:-1])[..., None, None])
    mean = distribution.mean
    rows = _row_blocks(covariance, distribution._interleaved, *mean.shape[-2:])
    return PredictorMoments(mean, rows.expand(*mean.shape, mean.shape[-1]))


def _row_blocks(covariance: LinearOperator, interleaved: bool, num_rows: int, num_predictors: int) -> Tensor:
    """The blocks ``(*batch, n, P, P)`` of a joint covariance that belong to single rows."""
    # Depending on the order, the blocks of a block-diagonal covariance are rows or predictors.
    coupled_rows, independent = (
        (BlockDiagLinearOperator, BlockInterleavedLinearOperator)
        if interleaved
        else (BlockInterleavedLinearOperator, BlockDiagLinearOperator)
    )
    if isinstance(covariance, coupled_rows) and covariance.base_linear_op.shape[-3:-1] == (num_rows, num_predictors):
        return covariance.base_linear_op.to_dense()
    is_independent = isinstance(covariance, independent) and covariance.base_linear_op.shape[-3] == num_predictors
    if is_independent or isinstance(covariance, DiagLinearOperator | ZeroLinearOperator):
        variance = covariance.diagonal(dim1=-2, dim2=-1)
        batch_shape = variance.shape[:-1]
        if interleaved:
            return torch.diag_embed(variance.reshape(*batch_shape, num_rows, num_predictors))
        return torch.diag_embed(variance.reshape(*batch_shape, num_predictors, num_rows).mT)
    dense = covariance.to_dense()
    batch_shape = dense.shape[:-2]
    if interleaved:
        blocks = dense.reshape(*batch_shape, num_rows, num_predictors, num_rows, num_predictors)
        return blocks.diagonal(dim1=-4, dim2=-2).movedim(-1, -3)
    blocks = dense.reshape(*batch_shape, num_predictors, num_rows, num_predictors, num_rows)
    return blocks.diagonal(dim1=-3, dim2=-1).movedim(-1, -3)
