"""The paper's family: low-rank precision."""

from __future__ import annotations

import warnings

import torch
from gpytorch.distributions import MultivariateNormal
from linear_operator.operators import IdentityLinearOperator
from torch import Tensor

from gpytorch_gam.numerics.precision_fit import leading_root, truncation_gap
from gpytorch_gam.operators import LowRankPrecisionLinearOperator
from gpytorch_gam.warnings import RankWarning

from ._precision_variational_distribution import _PrecisionVariationalDistribution

_NOTABLE_LOSS = 10.0  # nats


class LowRankPrecisionVariationalDistribution(_PrecisionVariationalDistribution):
    r"""
    The variational family of Adam, Durrande and John (2018): a Gaussian with a low-rank update of the prior's
    precision,

    .. math::
        q(\mathbf v) = N(\mathbf m, (I + B B^\top)^{-1}), \qquad B \in \mathbb R^{Q \times R},

    over the whitened inducing variables of all components together. The strategy converts between this and the paper's
    coordinates (:meth:`AdditiveVariationalStrategy.set_paper_parameters`, :doc:`/theory/families`).

    It couples the components at the cost of a mean-field approximation, and is exact for a Gaussian likelihood once
    ``rank`` reaches the number of directions that the data determine (the sum over components of their effective
    dimensions). **Below that it is poor**: the directions left over keep the prior's variance, and the fit is worse
    than mean-field. If a large rank is out of reach, use :class:`BlockLowRankPrecisionVariationalDistribution`.

    **Training.** Natural gradients (:class:`~gpytorch_gam.optim.NaturalGradient`, :func:`~gpytorch_gam.fit`). The
    entries of B grow like the root of the number of rows over the standard deviation of the noise, to tens and
    hundreds, while Adam moves an entry by its rate in a step: with rates such as .01, hundreds of steps leave the
    precision far too small and bands too wide. Warning and remedy are those of
    :class:`BlockLowRankPrecisionVariationalDistribution`.

    :param num_inducing_points: Length Q of the inducing vector, ``predictor.num_inducing_total``.
    :param rank: Number of columns R of B, between 1 and Q; None for 64, or Q if it is smaller; or ``"auto"`` for as
        many as ``rank_tolerance`` requires.
        That number is chosen when the posterior is first fitted to data, by ``NaturalGradient``, ``polish``,
        ``initialize_posterior`` or :meth:`AdditiveVariationalStrategy.set_whitened_posterior`; ``NaturalGradient`` adds
        columns later if they do not suffice.
    :param batch_shape: Batch shape of independent models.
    :param mean_init_std: Standard deviation of the noise on the initial mean.
    :param init_scale: Standard deviation of the initial entries of B (the gradient at B = 0 vanishes).
    :param rank_tolerance: Nats that an automatic rank may lose against the optimum; only for ``rank="auto"``. The loss
        is concentrated in a few directions, which keep the prior's variance: a tolerance of a nat widens bands notably.
    :raises ValueError: If the rank is negative, larger than Q or not an integer.
    """

    default_rank, _initial_rank, _default_tolerance = 64, 64, 0.1

    def __init__(
        self,
        num_inducing_points: int,
        rank: int | str | None,
        batch_shape: torch.Size = torch.Size([]),  # noqa: B008 (GPyTorch's own default)
        mean_init_std: float = 1e-3,
        init_scale: float = 1e-2,
        rank_tolerance: float = 0.1,
    ) -> None:
        super().__init__(num_inducing_points, batch_shape, mean_init_std, init_scale)
        self._register_precision_factor(rank, rank_tolerance)

    @property
    def block_factors(self) -> None:
        """None: beside the low-rank term the precision is that of the prior."""
        return None

    def _fit_excess(self, excess: Tensor) -> None:
        # The leading eigenvectors are optimal. A RankWarning is given if they leave the bound notably short.
        lost = truncation_gap(excess, self.rank).max().item()
        if lost >= _NOTABLE_LOSS:
            warnings.warn(
                f"rank {self.rank} leaves the bound {lost:.1f} nats below its optimum at these hyperparameters: raise "
                "the rank, or use BlockLowRankPrecisionVariationalDistribution, which needs a smaller one",
                RankWarning,
                stacklevel=6,  # set_whitened_posterior and fit_precision are wrapped by no_grad
            )
        if self.precision_factor is not None:
            self.precision_factor.copy_(leading_root(excess, self.rank))

    def forward(self) -> MultivariateNormal:
        r"""
        The distribution of the whitened inducing variables.

        :return: A multivariate normal of event size Q whose covariance is a lazy :math:`(I + BB^\top)^{-1}`.
        """
        base = IdentityLinearOperator(self.num_inducing_points, self.batch_shape, dtype=self.dtype, device=self.device)
        if self.precision_factor is None:
            return MultivariateNormal(self.variational_mean, base)
        return MultivariateNormal(
            self.variational_mean, LowRankPrecisionLinearOperator(base, self.precision_factor, inverse=True)
        )
