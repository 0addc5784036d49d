"""The variational strategy for a sum of Gaussian processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gpytorch
import torch
from gpytorch.distributions import Delta, MultivariateNormal
from gpytorch.variational import CholeskyVariationalDistribution
from gpytorch.variational._variational_distribution import _VariationalDistribution
from linear_operator.operators import DenseLinearOperator, ZeroLinearOperator
from torch import Tensor

from gpytorch_gam import _checks as checks
from gpytorch_gam.components import AdditivePredictor, ComponentGroup
from gpytorch_gam.components.additive_predictor import PredictorRows
from gpytorch_gam.components.component_group import GroupRows
from gpytorch_gam.components.group_projection import whitened_weights
from gpytorch_gam.components.joined_groups import by_group, joined_groups
from gpytorch_gam.components.levels import listed
from gpytorch_gam.effects.drawing import draw_given_inducing
from gpytorch_gam.numerics.autocast import without_autocast
from gpytorch_gam.numerics.blocks import split_groups
from gpytorch_gam.numerics.compiler import without_compiler
from gpytorch_gam.numerics.precision import CovarianceFactors
from gpytorch_gam.numerics.precision_fit import inverse_cholesky
from gpytorch_gam.numerics.triangular import safe_cholesky
from gpytorch_gam.operators import BlockDiagonalCholeskyLinearOperator, LowRankPrecisionLinearOperator

from ._inducing_projection import InducingProjection
from ._kept_value import KeptValue
from ._precision_variational_distribution import _PrecisionVariationalDistribution
from ._resizing import carried_over, cross_blocks
from .additive_strategy import AdditiveStrategy
from .block_low_rank_precision_variational_distribution import BlockLowRankPrecisionVariationalDistribution
from .low_rank_precision_variational_distribution import LowRankPrecisionVariationalDistribution


class AdditiveVariationalStrategy(AdditiveStrategy):
    r"""
    Sparse variational inference for a sum of Gaussian processes with one joint Gaussian posterior over the inducing
    variables of **all** components (Adam, Durrande and John, `2018 <https://arxiv.org/abs/1812.11106>`__).

    The variational distribution is one over whitened inducing variables, and the covariance enters through its factors
    only, so that every variance is the prior's minus squares (:doc:`/theory/model`). Marginals cost
    :math:`O(N C M (R + r) + N R^2)`, linear in the number of components like mean-field.

    It is an ordinary GPyTorch strategy: it works with :class:`~gpytorch.mlls.VariationalELBO`, every likelihood,
    model batch shapes, and inside the multitask wrappers. In train mode calls return variances only (unless
    ``diag=False``), in eval mode the full covariance, lazily.

    The jitter is relative to the mean prior variance of each component's inducing variables; an explicit ``jitter_val``
    is absolute. A share of each component's prior variance of about its size remains whatever the data, too little to
    notice up to some hundred thousand rows. The value is that of ``gpytorch.settings.variational_cholesky_jitter`` for
    float64 (1e-6), in float32 models too, because the covariances are factorised in float64: GPyTorch's 1e-4 for
    float32 would widen the bands of 20000 rows by a half. A ``float_value`` other than that default is honoured. The
    jitter is fixed when the posterior is initialised and is saved in the state dict, because the whitened variables
    depend on it: converting a trained model to another dtype does not change its fit.

    In training, the work on the rows is done in the dtype of the model, where rounding errors average out. The
    variances of results are small differences of large numbers; they are computed in float64 and returned in the
    model's dtype.

    :param model: The model that owns the strategy. Its ``forward`` returns the prior of the predictor at the rows of
        its inputs, or at transformed inputs, and may add a mean, as in ``self.mean_module(x) +
        self.variational_strategy.predictor(self.network(x))``. The posterior has the same inputs and mean, and
        gradients reach both. The mean belongs to the predictor and to no component.
    :param predictor: The components and their prior, registered as ``strategy.predictor``.
    :param variational_distribution: Any distribution over ``predictor.num_inducing_total`` whitened variables:
        :class:`LowRankPrecisionVariationalDistribution`, :class:`BlockLowRankPrecisionVariationalDistribution`, or
        GPyTorch's own. The Cholesky distribution is the coupled covariance of Adam (2017): exact, but
        :math:`O(NQ^2)`. GPyTorch's ``MeanFieldVariationalDistribution`` (a diagonal covariance) costs as much here.
    :param jitter_val: Absolute jitter on the covariance of each component's inducing variables.
    :raises TypeError: If predictor or distribution are of another kind.
    :raises ValueError: If the distribution's size or blocks do not match the predictor.

    Example:
        >>> class GAM(gpytorch.models.ApproximateGP):
        >>>     def __init__(self, predictor):
        >>>         q = LowRankPrecisionVariationalDistribution(predictor.num_inducing_total, rank=64)
        >>>         super().__init__(AdditiveVariationalStrategy(self, predictor, q))
        >>>     def forward(self, x):
        >>>         return self.variational_strategy.predictor(x)
    """

    _posterior_kind = "inducing variables"

    def __init__(
        self,
        model: gpytorch.models.ApproximateGP,
        predictor: AdditivePredictor,
        variational_distribution: _VariationalDistribution,
        jitter_val: float | None = None,
    ) -> None:
        _validate_distribution(predictor, variational_distribution)
        super().__init__(model, predictor, variational_distribution, jitter_val)
        self._kept_projection = KeptValue()  # kept from one prediction to the next

    def _initialize(self) -> None:
        # Raises an error if a covariance has no Cholesky factor, which training steps on a GPU do not check.
        with torch.no_grad():
            self.inducing_choleskys()
        super()._initialize()

    def prepare_training(self) -> None:
        """
        Initialise the posterior, and let an optimiser that follows the kernels write it. A training forward calls this
        before it reads the posterior.
        """
        self._initialize_once()
        if self.training_hooks is not None:
            with torch.enable_grad():  # so that kernels evaluate to the same bits as in the forward
                choleskys = self.inducing_choleskys()
            self.training_hooks.before_forward(choleskys)

    def _present_distribution(self, choleskys: Sequence[Tensor] | None = None) -> Any:
        """The posterior under the present kernels, to which an attached optimiser transports it. Nothing is written."""
        values = self._present_parameters(choleskys)
        q = self._variational_distribution
        return q if values is None else q.with_values(values)

    @property
    def inducing_points(self) -> Tensor:
        """The inducing points of the first group; ``predictor.groups`` holds those of all groups."""
        return self.predictor.groups[0].inducing_points

    @property
    def _num_whitened(self) -> int:
        return self.predictor.num_inducing_total

    @property
    def variational_distribution(self) -> MultivariateNormal | Delta:
        """The distribution of the whitened inducing variables, from the present parameters (never cached)."""
        return self._present_distribution()()

    def inducing_choleskys(self) -> list[Tensor]:
        """
        Cholesky factors ``(*batch, C_g, M, M)`` of each group's inducing covariances, in float64, jitter included.
        """
        return self.predictor.inducing_choleskys(self.jitter_val, self._jitter_is_relative)

    def at_rows(self, inputs: Tensor) -> PredictorRows:
        """
        Cholesky factors of the inducing covariances, features and prior variances at inputs ``(*batch, n, D)`` of the
        predictor, in fewer operations than it takes to compute one after the other.
        """
        return self.predictor.at_rows(inputs, self.jitter_val, self._jitter_is_relative)

    def groups_at_rows(self, places: Sequence[int], inputs: Tensor) -> list[GroupRows]:
        """Some of the predictor's groups, by number, at its inputs ``(*batch, n, D)``: see :meth:`at_rows`."""
        return self.predictor.groups_at_rows(places, inputs, self.jitter_val, self._jitter_is_relative)

    def inducing_cholesky(self, group: ComponentGroup, covariance: Tensor | None = None) -> Tensor:
        """
        The Cholesky factors ``(*batch, C_g, M, M)`` of one group, given its float64 covariance without jitter if it is
        known.
        """
        return group.inducing_cholesky(self.jitter_val, self._jitter_is_relative, covariance)

    # ------------------------------------------------------------------ the posterior of the inducing variables

    def covariance_factors(self) -> CovarianceFactors:
        """The variational distribution as mean and factors of its covariance, in float64."""
        return self._factors_of(self._present_distribution())

    def _factors_of(self, q: Any) -> CovarianceFactors:
        if isinstance(q, _PrecisionVariationalDistribution):
            return q.covariance_factors()
        distribution = q()
        mean = distribution.mean.double()
        # S = I - I I' + T T': the same form, with all of the prior subtracted and a root added.
        prior = tuple(
            torch.eye(size, dtype=mean.dtype, device=mean.device).expand(count, size, size)
            for count, size in self.predictor.group_shapes
        )
        root = None
        if not isinstance(distribution, Delta):
            root = distribution.lazy_covariance_matrix.cholesky().to_dense().double()
        return CovarianceFactors(mean, prior, root, shared_sign=1)

    @without_compiler
    def kl_divergence(self) -> Tensor:
        """
        Kullback-Leibler divergence from the variational distribution to the prior, over all components at once,
        ``(*batch)``.
        """
        if not isinstance(self._variational_distribution, _PrecisionVariationalDistribution):
            return super().kl_divergence()
        if not self._is_learning:
            return self._present_distribution().kl_divergence()
        divergence = self._variational_distribution.kl_divergence()
        if self.training_hooks is not None:
            self.training_hooks.after_divergence(divergence)
        return divergence

    def inducing_posterior(self) -> MultivariateNormal:
        r"""
        The posterior :math:`q(\mathbf u)` of the inducing variables in function space, :math:`\mathbf u = L\mathbf v`,
        of event size Q. For the paper's family the covariance is a lazy :math:`(K^{-1} + B_u B_u^\top)^{-1}`, otherwise
        it is dense.
        """
        choleskys = self.inducing_choleskys()
        prior = BlockDiagonalCholeskyLinearOperator(*choleskys)
        q, distribution = self._variational_distribution, self.variational_distribution
        dtype = distribution.mean.dtype
        mean = prior.root_matmul(distribution.mean.double().unsqueeze(-1)).squeeze(-1).to(dtype)
        if isinstance(q, LowRankPrecisionVariationalDistribution) and q.precision_factor is not None:
            base = BlockDiagonalCholeskyLinearOperator(*(chol.to(dtype) for chol in choleskys), inverse=True)
            covariance = LowRankPrecisionLinearOperator(base, self.paper_parameters()[1], inverse=True)
            return MultivariateNormal(mean, covariance)
        if isinstance(distribution, Delta):
            return MultivariateNormal(
                mean, ZeroLinearOperator(*mean.shape, mean.shape[-1], dtype=dtype, device=mean.device)
            )
        whitened = distribution.lazy_covariance_matrix.to_dense().double()
        dense = prior.root_matmul(prior.root_matmul(whitened).mT).to(dtype)
        return MultivariateNormal(mean, DenseLinearOperator(dense))

    def paper_parameters(self) -> tuple[Tensor, Tensor]:
        r"""
        The parameters in the paper's coordinates: mean :math:`K\boldsymbol\alpha`, precision
        :math:`K^{-1} + B_u B_u^\top` (plus :math:`L^{-\top} \mathrm{blockdiag}(E_c E_c^\top) L^{-1}` in the block
        family).

        :return: The vector :math:`\boldsymbol\alpha`, ``(*batch, Q)``, and the factor :math:`B_u`, ``(*batch, Q, R)``.
        :raises TypeError: If the distribution has no low-rank precision.
        """
        q = self._structured(self._present_distribution())
        stacked = torch.cat([q.variational_mean.unsqueeze(-1), q.precision_factor], dim=-1).double()
        unwhitened = self._map_groups(whitened_weights, stacked).to(q.variational_mean.dtype)
        return unwhitened[..., 0], unwhitened[..., 1:]

    @torch.no_grad()
    def set_paper_parameters(self, alpha: Tensor, factor: Tensor) -> None:
        r"""
        Set the distribution from the paper's coordinates: :math:`\mathbf m = L^\top\boldsymbol\alpha`,
        :math:`B = L^\top B_u`.

        The conversion uses the present kernel hyperparameters; changing them later keeps the whitened parameters.

        :param alpha: The vector :math:`\boldsymbol\alpha`, ``(*batch, Q)``.
        :param factor: The factor :math:`B_u`, ``(*batch, Q, R)``.
        :raises TypeError: If the distribution has no low-rank precision.
        :raises ValueError: If shapes differ from the distribution's.
        """
        q = self._structured(self._variational_distribution)
        if alpha.shape != q.variational_mean.shape or factor.shape != q.precision_factor.shape:
            raise ValueError(
                f"alpha and factor must have shapes {tuple(q.variational_mean.shape)} and "
                f"{tuple(q.precision_factor.shape)}, got {tuple(alpha.shape)} and {tuple(factor.shape)}"
            )
        stacked = torch.cat([alpha.unsqueeze(-1), factor], dim=-1).double()
        whitened = self._map_groups(lambda cholesky, columns: cholesky.mT @ columns, stacked)
        q.variational_mean.copy_(whitened[..., 0])
        q.precision_factor.copy_(whitened[..., 1:])
        self._mark_initialized()

    @torch.no_grad()
    def set_whitened_posterior(self, mean: Tensor, precision: Tensor) -> None:
        r"""
        Set the distribution to the Gaussian of its family that fits a given mean and precision, such as those of
        :meth:`CollapsedELBO.optimum`.

        A coupled (Cholesky) distribution takes any precision exactly. The structured ones keep the mean and take a
        fit of :math:`I + BB^\top` or :math:`I + \mathrm{blockdiag}(E_c E_c^\top) + BB^\top`. Cost :math:`O(Q^3)`.

        :param mean: The mean of the whitened inducing variables, ``(*batch, Q)``.
        :param precision: Their precision, ``(*batch, Q, Q)``. The structured families need at least the identity, which
            log-concave likelihoods give.
        :raises TypeError: If the distribution is of another kind.
        """
        q = self._variational_distribution
        if isinstance(q, _PrecisionVariationalDistribution):
            q.fit_precision(precision.double())
        elif isinstance(q, CholeskyVariationalDistribution):
            q.chol_variational_covar.copy_(inverse_cholesky(precision.double()))
        else:
            raise TypeError(
                f"a {type(q).__name__} cannot be set from a precision: use LowRankPrecisionVariationalDistribution, "
                "BlockLowRankPrecisionVariationalDistribution or CholeskyVariationalDistribution"
            )
        q.variational_mean.copy_(mean)
        self._mark_initialized()

    def add_inducing_points(
        self, names: Sequence[str] | str | None = None, keep_posterior: bool = True
    ) -> tuple[str, ...]:
        """
        Give components whose number of inducing points is left to a fit (``num_inducing="auto"``) the next larger
        number, about twice as many; and with them the other components of their groups. Parameters of the posterior,
        and inducing points that are learnt, are new objects, so optimisers of torch have to be made anew.

        :param names: Names of components; default all.
        :param keep_posterior: Carry a posterior with a structured precision, or a Cholesky one, over to the new
            inducing variables, which costs :math:`O(Q^3)`. Any other is initialised anew.
        :return: The names of the components that have more points now: not those whose number is fixed or the largest.
        :raises ValueError: If a name is unknown, or an optimiser is attached.
        """
        wanted = {self.predictor.names[index] for index in self.predictor.component_indices(names)}
        if self.training_hooks is not None:
            raise ValueError("model has a NaturalGradient attached: call its remove() before adding inducing points")
        found = [
            group.more_inducing_points() if wanted.intersection(group.names) else None
            for group in self.predictor.groups
        ]
        if any(points is not None for points in found):
            self._move_to_points(found, checks.flag("keep_posterior", keep_posterior))
        pairs = zip(self.predictor.groups, found, strict=True)
        return tuple(name for group, points in pairs if points is not None for name in group.names)

    @torch.no_grad()
    def _move_to_points(self, points: Sequence[Tensor | None], keep_posterior: bool) -> None:
        """Replace the inducing points of some groups, and carry the posterior over."""
        q, groups = self._variational_distribution, self.predictor.groups
        has_one = bool(self.variational_params_initialized) and not (q.batch_shape or self.predictor.batch_shape)
        if not (
            keep_posterior
            and has_one
            and isinstance(q, _PrecisionVariationalDistribution | CholeskyVariationalDistribution)
        ):
            self._replace_points(points)
            self._restart()
            return
        factors, before = self.covariance_factors(), self.inducing_choleskys()
        pairs = list(zip(groups, points, strict=True))
        crosses = [cross_blocks(group, group.inducing_points if new is None else new) for group, new in pairs]
        self._replace_points(points)
        carried = carried_over(factors, crosses, before, self.inducing_choleskys())
        root = safe_cholesky(carried.covariance)
        self.set_whitened_posterior(carried.mean, torch.cholesky_inverse(root))

    def _replace_points(self, points: Sequence[Tensor | None]) -> None:
        for group, new in zip(self.predictor.groups, points, strict=True):
            if new is not None:
                group.replace_inducing_points(new)
        self._resize_posterior()

    def _restart(self) -> None:
        """Initialise the posterior at the next use."""
        self.variational_params_initialized.fill_(0)
        self._initialized = False

    def _resize_posterior(self) -> None:
        q, predictor = self._variational_distribution, self.predictor
        shapes = q.group_shapes if isinstance(q, BlockLowRankPrecisionVariationalDistribution) else None
        if q.num_inducing_points == predictor.num_inducing_total and shapes in (None, predictor.group_shapes):
            return
        if isinstance(q, _PrecisionVariationalDistribution):
            q.resize_inducing(predictor.group_shapes)
        else:
            other = type(q)(predictor.num_inducing_total, batch_shape=q.batch_shape, mean_init_std=q.mean_init_std)
            self._variational_distribution = other.to(q.dtype).to(q.device)

    @staticmethod
    def _structured(q: Any) -> Any:
        if not isinstance(q, _PrecisionVariationalDistribution) or q.precision_factor is None:
            raise TypeError(
                f"the paper's coordinates need a distribution with a low-rank precision, this is a {type(q).__name__}"
                " without one"
            )
        return q

    def _map_groups(self, function: Any, stacked: Tensor) -> Tensor:
        """Apply ``function(L_c, part)`` to the parts of ``(*batch, Q, k)`` that belong to each group."""
        parts = split_groups(stacked, self.predictor.group_shapes)
        mapped = [function(chol, part) for chol, part in zip(self.inducing_choleskys(), parts, strict=True)]
        batch = torch.broadcast_shapes(*(part.shape[:-3] for part in mapped))
        return torch.cat([part.flatten(-3, -2).expand(*batch, -1, part.shape[-1]) for part in mapped], dim=-2)

    # ------------------------------------------------------------------ the posterior at the data

    def _projection_in(self, dtype: torch.dtype) -> InducingProjection:
        """The projection in some dtype. Predictions without gradients reuse the last one if nothing has changed."""
        is_followed = self.training_hooks is not None  # then the optimiser's state matters, too
        if torch.is_grad_enabled() or self._is_traced() or is_followed:
            return self._new_projection(self.inducing_choleskys(), dtype)
        joined = joined_groups(self.predictor.groups)
        covariances = [each.group.inducing_covariance(torch.float64) for each in joined]
        q, key = self._variational_distribution, (dtype, self.jitter_val, self._jitter_is_relative)
        read = [*covariances, *q.parameters(), *q.buffers()]
        projection = self._kept_projection.get(read, key)
        if projection is None:
            pairs = zip(joined, covariances, strict=True)
            choleskys = [self.inducing_cholesky(each.group, covariance) for each, covariance in pairs]
            projection = self._new_projection(by_group(joined, choleskys, -3), dtype)
            self._kept_projection.keep(projection, read, key)
        return projection

    def _new_projection(self, choleskys: list[Tensor], dtype: torch.dtype) -> InducingProjection:
        factors = self._factors_of(self._present_distribution(choleskys))
        return InducingProjection.of(self.predictor, factors, choleskys, dtype)

    def _training_projection(self) -> InducingProjection:
        """The projection for a training forward, before which an optimiser may write the posterior."""
        if self.training_hooks is None or not torch.is_grad_enabled():
            return self._projection_in(self.predictor.dtype)
        choleskys = self.inducing_choleskys()
        self.training_hooks.before_forward(choleskys)
        factors = self._factors_of(self._variational_distribution)
        return InducingProjection.of(self.predictor, factors, choleskys, self.predictor.dtype)

    @without_autocast
    def features(self, x: Tensor) -> Tensor:
        r"""
        Features :math:`\phi_c(\mathbf x) = L_c^{-1} k_c(Z_c, \mathbf x)` of all components, stacked. They hold Q
        numbers a row; training and prediction do not need them.

        :param x: Inputs ``(*batch, n, D)``.
        :return: The features ``(*batch, Q, n)``.
        """
        return self.predictor.features(self.read(x).inputs, self.inducing_choleskys())

    def draw_components(
        self,
        inputs: Tensor,
        batch_shape: torch.Size,
        sample_shape: torch.Size,
        places: Sequence[int] | None = None,
    ) -> list[Tensor]:
        """Joint draws of all components: first the inducing variables, then each component given its own."""
        whitened = self.variational_distribution.rsample(sample_shape)
        # One draw of the inducing variables serves every batch of x, so their batch dimensions are aligned.
        own_batch = whitened.shape[len(sample_shape) : -1]
        missing = (1,) * (len(batch_shape) - len(own_batch))
        whitened = whitened.reshape(*sample_shape, *missing, *own_batch, whitened.shape[-1])
        columns = split_groups(whitened.double().unsqueeze(-1), self.predictor.group_shapes)
        groups = self.predictor.groups
        return [
            draw_given_inducing(groups[place], inputs, self.inducing_cholesky(groups[place]), columns[place])
            for place in (range(len(groups)) if places is None else places)
        ]


def _validate_distribution(predictor: AdditivePredictor, q: _VariationalDistribution) -> None:
    if not isinstance(predictor, AdditivePredictor):
        raise TypeError(f"predictor must be an AdditivePredictor, got {checks.shown(predictor)}")
    if not isinstance(q, _VariationalDistribution):
        raise TypeError(f"variational_distribution must be a variational distribution, got {checks.shown(q)}")
    total = predictor.num_inducing_total
    if q.num_inducing_points != total:
        raise ValueError(
            f"variational_distribution has size {q.num_inducing_points}, but the predictor has {total} inducing "
            "points: use predictor.num_inducing_total"
        )
    try:
        torch.broadcast_shapes(q.batch_shape, predictor.batch_shape)
    except RuntimeError as error:
        raise ValueError(
            f"variational_distribution has batch_shape {tuple(q.batch_shape)}, which does not broadcast with the "
            f"predictor's, {tuple(predictor.batch_shape)}"
        ) from error
    if isinstance(q, BlockLowRankPrecisionVariationalDistribution) and q.group_shapes != predictor.group_shapes:
        raise ValueError(
            f"variational_distribution has group_shapes {listed(q.group_shapes)}, but the prior covariance of the "
            f"groups has blocks {listed(predictor.group_shapes)} (one a component; where levels are independent, "
            "as in a random effect, one a level): use predictor.group_shapes"
        )
