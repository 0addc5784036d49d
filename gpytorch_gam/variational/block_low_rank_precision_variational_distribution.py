"""Block-diagonal plus low-rank precision."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from gpytorch.distributions import MultivariateNormal
from torch import Tensor

from gpytorch_gam import _checks as checks
from gpytorch_gam.numerics.capacitance import add_identity
from gpytorch_gam.numerics.precision_fit import fit_block_low_rank
from gpytorch_gam.numerics.triangular import cholesky
from gpytorch_gam.operators import BlockDiagonalCholeskyLinearOperator, LowRankPrecisionLinearOperator

from ._precision_variational_distribution import _PrecisionVariationalDistribution


class BlockLowRankPrecisionVariationalDistribution(_PrecisionVariationalDistribution):
    r"""
    A Gaussian whose precision is block-diagonal plus low-rank:

    .. math::
        q(\mathbf v) = N(\mathbf m, (D + B B^\top)^{-1}), \qquad
        D = I + \mathrm{blockdiag}(E_1 E_1^\top, \dots, E_C E_C^\top),

    over the whitened inducing variables of all components. The blocks hold the data's information on each component (on
    each level, where these are independent and no row has two of them), B that on several components at once. With
    ``rank=0`` it is the mean-field approximation (no coupling, no B registered); with all :math:`E_c = 0` it is the
    family of the paper (:class:`LowRankPrecisionVariationalDistribution`), which needs a far larger rank for the same
    accuracy.
    :math:`D \ge I` costs nothing for log-concave likelihoods, whose optimal blocks are never wider than the prior.

    **Training.** Natural gradients (:class:`~gpytorch_gam.optim.NaturalGradient`, :func:`~gpytorch_gam.fit`). The
    entries of B and of the :math:`E_c` grow like the root of the number of rows over the standard deviation of the
    noise, to tens and hundreds, while Adam moves an entry by its rate in a step: with rates such as .01, hundreds of
    steps leave the precision far too small and bands too wide (600 rows, 50 epochs of batches of 50 by Adam at .01: 54
    nats below the optimum at the same hyperparameters). A :class:`~gpytorch_gam.warnings.TrainingLoopWarning` says so
    when the model is used after a hundred such steps or more. If Adam has to train it, see the guide,
    :doc:`/guide/training`.

    :param group_shapes: Number and size ``(C_g, M_g)`` of the equal blocks of each group: ``predictor.group_shapes``.
    :param rank: Number of columns R of B, between 0 and the sum of the block sizes; None for 32, or that sum if it is
        smaller; or ``"auto"`` as in the low-rank family. 16 to 64 suffice in most additive models; the need grows
        slowly with the number of components.
    :param block_rank: Largest number of columns of each :math:`E_c`; default the size of the block (no restriction).
    :param batch_shape: Batch shape of independent models.
    :param mean_init_std: Standard deviation of the noise on the initial mean.
    :param init_scale: Standard deviation of the initial entries of B and of the :math:`E_c`.
    :param rank_tolerance: Nats that an automatic rank may lose against the optimum; only for ``rank="auto"``.
    :raises TypeError: If shapes or ranks are no integers.
    :raises ValueError: If they are out of range.
    """

    default_rank, _initial_rank, _default_tolerance = 32, 16, 1.0
    group_shapes: tuple[tuple[int, int], ...]

    def __init__(
        self,
        group_shapes: Sequence[tuple[int, int]],
        rank: int | str | None,
        block_rank: int | None = None,
        batch_shape: torch.Size = torch.Size([]),  # noqa: B008 (GPyTorch's own default)
        mean_init_std: float = 1e-3,
        init_scale: float = 1e-2,
        rank_tolerance: float = 1.0,
    ) -> None:
        group_shapes = _validated_shapes(group_shapes)
        if block_rank is not None:
            checks.integer("block_rank", block_rank, least=1)
        super().__init__(sum(count * size for count, size in group_shapes), batch_shape, mean_init_std, init_scale)
        self.group_shapes, self._block_rank = group_shapes, block_rank
        # Registered on the distribution itself, because GPyTorch counts parameters of submodules as hyperparameters.
        for index, (count, size) in enumerate(group_shapes):
            factor = init_scale * torch.randn(*self.batch_shape, count, size, self._block_columns(size))
            self.register_parameter(f"block_factor_{index}", torch.nn.Parameter(factor))
        self._register_precision_factor(rank, rank_tolerance)

    def _block_columns(self, size: int) -> int:
        """The number of columns of the factor of a block."""
        return size if self._block_rank is None else min(self._block_rank, size)

    @torch.no_grad()
    def resize_inducing(self, group_shapes: Sequence[tuple[int, int]]) -> None:
        """
        Change the numbers of inducing points. All parameters are new objects with the small random entries of a new
        distribution. The rank stays, or is that of a new distribution if it is the default one.

        :param group_shapes: Number and size ``(C_g, M_g)`` of the equal blocks of each group.
        """
        super().resize_inducing(group_shapes)
        self.group_shapes = _validated_shapes(group_shapes)
        for index, (present, (count, size)) in enumerate(zip(self.block_factors, group_shapes, strict=True)):
            shape = torch.Size([*self.batch_shape, count, size, self._block_columns(size)])
            setattr(self, f"block_factor_{index}", self._new_factor(present, shape))

    @property
    def block_factors(self) -> list[Tensor]:
        """The factors :math:`E_c`, ``(*batch, C_g, M_g, r_g)`` for each group."""
        return [getattr(self, f"block_factor_{index}") for index in range(len(self.group_shapes))]

    def _fit_excess(self, excess: Tensor) -> None:
        # Reproduces the diagonal blocks (unless block_rank restricts them), so it is never worse than mean-field.
        block_ranks = [factor.shape[-1] for factor in self.block_factors]
        blocks, shared = fit_block_low_rank(excess, self.group_shapes, self.rank, block_ranks)
        for factor, block in zip(self.block_factors, blocks, strict=True):
            factor.copy_(block)
        if self.precision_factor is not None:
            self.precision_factor.copy_(shared)

    def forward(self) -> MultivariateNormal:
        r"""
        The distribution of the whitened inducing variables.

        :return: A multivariate normal of event size Q whose covariance is a lazy :math:`(D + BB^\top)^{-1}`.
        """
        choleskys = [
            cholesky(add_identity(factor.double() @ factor.double().mT)).to(self.dtype) for factor in self.block_factors
        ]
        blocks = BlockDiagonalCholeskyLinearOperator(*choleskys)
        if self.precision_factor is None:
            return MultivariateNormal(self.variational_mean, blocks.inverse())
        return MultivariateNormal(
            self.variational_mean, LowRankPrecisionLinearOperator(blocks, self.precision_factor, inverse=True)
        )


def _validated_shapes(group_shapes: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    if not isinstance(group_shapes, Sequence) or isinstance(group_shapes, str):
        raise TypeError(f"group_shapes must be pairs (number of blocks, size), got {checks.shown(group_shapes)}")
    for shape in group_shapes:
        if not isinstance(shape, Sequence) or isinstance(shape, str) or len(shape) != 2:
            raise TypeError(
                f"group_shapes must be pairs (number of blocks, size), such as predictor.group_shapes, got "
                f"{checks.shown(shape)} among them"
            )
    if not group_shapes:
        raise ValueError("group_shapes must hold one pair (number of blocks, size) or more, got none")
    count, size = ("number of blocks in group_shapes", "size of blocks in group_shapes")
    return tuple((checks.integer(count, c, least=1), checks.integer(size, s, least=1)) for c, s in group_shapes)
