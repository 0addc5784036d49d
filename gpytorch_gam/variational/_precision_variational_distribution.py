"""The base of the variational distributions with a structured precision."""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.variational._variational_distribution import _VariationalDistribution
from torch import Tensor
from torch.optim.swa_utils import AveragedModel

from gpytorch_gam import _checks as checks
from gpytorch_gam.numerics.precision import CovarianceFactors, kl_from_standard_normal, precision_covariance_factors
from gpytorch_gam.numerics.precision_fit import rank_for_tolerance

from ._callers import nearest_caller
from ._growth_watch import GrowthWatch
from ._kept_value import KeptValue

# Largest number of frames between this distribution and the AveragedModel that copies a model around it.
_REACH = 100


class _PrecisionVariationalDistribution(_VariationalDistribution):
    r"""
    A Gaussian over the whitened inducing variables with precision :math:`D + BB^\top`.

    Linear algebra on the parameters runs in float64 whatever their dtype: it is small beside the work on the data, and
    in float32 capacitances lose their positive definiteness when ``B`` is large.
    """

    num_inducing_points: int
    variational_mean: Tensor
    precision_factor: Tensor | None

    # Shapes of the blocks of D; None where D is the identity.
    group_shapes: tuple[tuple[int, int], ...] | None = None

    # The default rank, the automatic rank before data are seen, and the nats that this may lose by default.
    default_rank: int
    _initial_rank: int
    _default_tolerance: float

    def __init__(self, num_inducing_points: int, batch_shape: torch.Size, mean_init_std: float, init_scale: float):
        checks.integer("num_inducing_points", num_inducing_points, least=1)
        checks.number("mean_init_std", mean_init_std, least=0)
        checks.number("init_scale", init_scale, above=0)
        super().__init__(num_inducing_points, batch_shape=torch.Size(batch_shape), mean_init_std=mean_init_std)
        self.init_scale = init_scale
        self._kept_divergence = KeptValue()  # of a training forward, for the objective that asks for it afterwards
        self.forget_training()
        self._averaged_by: weakref.ref[AveragedModel] | None = None  # an AveragedModel with a copy of this
        self.register_parameter(
            "variational_mean", torch.nn.Parameter(torch.zeros(*self.batch_shape, num_inducing_points))
        )

    def __getstate__(self) -> dict[str, Any]:
        """
        The state for copies and pickles. An AveragedModel that makes a copy is remembered, so that optimisers can warn
        of it.
        """
        averaged = nearest_caller(AveragedModel, _REACH)
        if averaged is not None:
            self._averaged_by = weakref.ref(averaged)
        return {**self.__dict__, "_averaged_by": None}

    def with_values(self, values: Mapping[str, Tensor]) -> _PrecisionVariationalDistribution:
        """The same distribution with other parameter values, by name, whose gradients go to the present parameters."""
        other = copy(self)
        # The second term is exactly zero, and connects the gradient.
        moved = {name: values[name] + (each - each.detach()) for name, each in self.named_parameters()}
        other._parameters = {**self._parameters, **moved}
        other._kept_divergence = KeptValue()
        return other

    def forget_training(self) -> None:
        """
        Must be called when parameters are set instead of trained: their growth so far is then no sign of slow training.
        """
        self.growth_watch = GrowthWatch()

    def _register_precision_factor(self, rank: int | str | None, rank_tolerance: float) -> None:
        """
        Register B (not for rank 0) with small random entries: its gradient at B = 0 is exactly zero. The rank is the
        default one if it is None.
        """
        checks.number("rank_tolerance", rank_tolerance, above=0)
        self.rank_tolerance = rank_tolerance if rank == "auto" else None
        self._rank_is_settled = False
        self._has_default_rank = rank is None
        if rank is None or rank == "auto":
            rank = min(self.default_rank if rank is None else self._initial_rank, self.num_inducing_points)
        _validate_rank(rank, self.num_inducing_points)
        assert isinstance(rank, int)
        self.rank = rank
        factor = None
        if rank > 0:
            factor = torch.nn.Parameter(self.init_scale * torch.randn(*self.shape(), rank))
        self.register_parameter("precision_factor", factor)

    @torch.no_grad()
    def resize(self, rank: int) -> None:
        """
        Change the number of columns of B: new ones get small random entries, and those beyond the rank are dropped. The
        parameter is a new object, so optimisers of torch have to be made anew; ``NaturalGradient`` follows.

        :param rank: Number of columns R, at least 1 and at most Q.
        :raises ValueError: If the rank is out of range, or the distribution has no B.
        """
        _validate_rank(rank, self.num_inducing_points)
        if rank == 0 or self.precision_factor is None:
            raise ValueError(f"B can only be resized between ranks above 0, got {self.rank} to {rank}")
        if rank == self.rank:
            return
        self._has_default_rank = False
        factor = self.precision_factor
        more = self.init_scale * torch.randn(*factor.shape[:-1], max(0, rank - self.rank)).to(factor)
        # A graph of the last step may still refer to the old parameter and its shape.
        columns = torch.cat([factor.detach()[..., :rank], more], dim=-1)
        self.precision_factor = torch.nn.Parameter(columns, requires_grad=factor.requires_grad)
        self.rank = rank

    @torch.no_grad()
    def resize_inducing(self, group_shapes: Sequence[tuple[int, int]]) -> None:
        """
        Change the numbers of inducing points. All parameters are new objects with the small random entries of a new
        distribution. The rank stays, or is that of a new distribution if it is the default one.

        :param group_shapes: Number and size ``(C_g, M_g)`` of the equal blocks of each group.
        """
        self.num_inducing_points = sum(count * size for count, size in group_shapes)
        self.forget_training()
        mean = self.variational_mean
        self.variational_mean = torch.nn.Parameter(mean.new_zeros(self.shape()), requires_grad=mean.requires_grad)
        factor = self.precision_factor
        if factor is not None:
            self.rank = min(self.default_rank if self._has_default_rank else self.rank, self.num_inducing_points)
            self.precision_factor = self._new_factor(factor, torch.Size([*self.shape(), self.rank]))

    def _new_factor(self, present: Tensor, shape: torch.Size) -> torch.nn.Parameter:
        """A parameter of another shape in the place of a present one."""
        entries = self.init_scale * torch.randn(shape).to(present)
        return torch.nn.Parameter(entries, requires_grad=present.requires_grad)

    def settle_rank(self, excess: Tensor) -> None:
        """
        Choose an automatic rank for a target precision, given minus the identity, ``(*batch, Q, Q)``. Once chosen, it
        only grows.
        """
        self.resize(self.sufficient_rank(excess, self.rank if self._rank_is_settled else 1))
        self._rank_is_settled = True

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: Any, **kwargs: Any) -> None:
        self.forget_training()
        saved = state_dict.get(prefix + "precision_factor")
        if self.rank_tolerance is not None and saved is not None:
            self.resize(saved.shape[-1])
            self._rank_is_settled = True
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def sufficient_rank(self, excess: Tensor, least: int = 1) -> int:
        r"""
        The smallest rank, from ``least``, that loses at most ``rank_tolerance`` nats against the optimal precision
        :math:`I + G`, given G, ``(*batch, Q, Q)``: in the low-rank family :math:`\tfrac12 \sum_{i > R} (g_i - \log(1 +
        g_i))` over its eigenvalues, in the block family according to fits of a few ranks, each in :math:`O(Q^3)`.
        """
        return rank_for_tolerance(excess, self.group_shapes, self.rank_tolerance or self._default_tolerance, least)

    @property
    @abstractmethod
    def block_factors(self) -> list[Tensor] | None:
        r"""The factors :math:`E_c`, ``(*batch, C_g, M_g, r_g)`` for each group; None where D is the identity."""

    def _factors(self) -> tuple[CovarianceFactors, Tensor]:
        blocks = self.block_factors
        return precision_covariance_factors(
            self.variational_mean.double(),
            None if self.precision_factor is None else self.precision_factor.double(),
            None if blocks is None else [block.double() for block in blocks],
        )

    def covariance_factors(self) -> CovarianceFactors:
        """Mean and factors of the covariance, in float64."""
        factors, logdet = self._factors()
        parameters = tuple(self.parameters())
        if self.training and all(parameter.device.type == "cpu" for parameter in parameters):
            # Both terms of the ELBO need this factorisation, which costs as much as the work on a small batch.
            divergence = kl_from_standard_normal(factors, logdet)
            roots = [*(factors.explained_blocks or ()), factors.explained_shared]
            graph = [divergence, *(root for root in roots if root is not None)]
            self._kept_divergence.keep(divergence, parameters, torch.is_grad_enabled(), graph)
        return factors

    def kl_divergence(self) -> Tensor:
        """
        Kullback-Leibler divergence to the standard normal, the prior of the whitened variables, ``(*batch)``. It is
        that of the present parameters; right after a forward in train mode it shares the factorisation of that forward.
        """
        divergence = self._kept_divergence.get(tuple(self.parameters()), torch.is_grad_enabled())
        self._kept_divergence.forget()
        if divergence is None:
            divergence = kl_from_standard_normal(*self._factors())
        return divergence.to(self.variational_mean.dtype)

    @torch.no_grad()
    def fit_precision(self, precision: Tensor) -> None:
        """Set the factors to a fit of a dense precision ``(*batch, Q, Q)``, float64, at least the identity."""
        self.forget_training()
        identity = torch.eye(precision.shape[-1], dtype=precision.dtype, device=precision.device)
        excess = precision - identity
        if self.rank_tolerance is not None:
            self.settle_rank(excess)
        self._fit_excess(excess)

    @abstractmethod
    def _fit_excess(self, excess: Tensor) -> None:
        """Set the factors to a fit of a precision, given minus the identity, ``(*batch, Q, Q)``."""

    @torch.no_grad()
    def initialize_variational_distribution(self, prior_dist: MultivariateNormal) -> None:
        """Set the mean to the prior's plus noise of ``mean_init_std``, and the factors to noise of ``init_scale``."""
        self.variational_mean.copy_(prior_dist.mean)
        self.variational_mean.add_(torch.randn_like(self.variational_mean), alpha=self.mean_init_std)
        for name, parameter in self.named_parameters():
            if name != "variational_mean":
                parameter.copy_(self.init_scale * torch.randn_like(parameter))


def _validate_rank(rank: int | str, num_inducing_points: int) -> None:
    if isinstance(rank, bool) or not isinstance(rank, int):
        kind = ValueError if isinstance(rank, str) else TypeError
        raise kind(f'rank must be an integer or "auto", got {rank!r}')
    if not 0 <= rank <= num_inducing_points:
        raise ValueError(
            f"rank must lie between 0 and the number of inducing points, {num_inducing_points}, got {rank}"
        )
