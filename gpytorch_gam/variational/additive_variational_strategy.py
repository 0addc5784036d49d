"""The variational strategy for a sum of Gaussian processes."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, NamedTuple

import gpytorch
import numpy as np
import torch
from gpytorch.distributions import Delta, MultivariateNormal
from gpytorch.variational import CholeskyVariationalDistribution
from gpytorch.variational._variational_distribution import _VariationalDistribution
from gpytorch.variational._variational_strategy import _VariationalStrategy
from linear_operator.operators import (
    DenseLinearOperator,
    DiagLinearOperator,
    LinearOperator,
    ZeroLinearOperator,
)
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from torch.utils.hooks import RemovableHandle

from gpytorch_gam import _checks as checks
from gpytorch_gam import settings
from gpytorch_gam.components import AdditivePredictor, ComponentGroup
from gpytorch_gam.components.additive_predictor import join_covariances, predictor_distribution
from gpytorch_gam.components.group_projection import project_components, project_sum, whitened_weights
from gpytorch_gam.components.levels import listed
from gpytorch_gam.components.reading import Reading, check_keywords, check_rows, has_own_forward, read_rows
from gpytorch_gam.distributions.marginal_normal import MarginalNormal
from gpytorch_gam.distributions.predictor_distribution import PredictorDistribution, PredictorMoments, independent_rows
from gpytorch_gam.effects.component_posterior import ComponentPosterior, draw_given_inducing
from gpytorch_gam.effects.component_source import ComponentProjections, GroupPosterior
from gpytorch_gam.effects.prediction import Prediction, joined
from gpytorch_gam.numerics.autocast import without_autocast
from gpytorch_gam.numerics.blocks import split_groups
from gpytorch_gam.numerics.precision import CovarianceFactors
from gpytorch_gam.numerics.precision_fit import inverse_cholesky
from gpytorch_gam.numerics.transforms import is_transformed
from gpytorch_gam.operators import BlockDiagonalCholeskyLinearOperator, LowRankPrecisionLinearOperator
from gpytorch_gam.operators.deferred_linear_operator import DeferredLinearOperator
from gpytorch_gam.operators.posterior_covariance import (
    PosteriorCovariance,
    covariance_in_rows,
    keep_positive,
    posterior_covariance,
)
from gpytorch_gam.parameters.structure import STATE_KEY, as_bytes, from_bytes

from ._jitter import relative_jitter
from ._kernel_state import KernelState
from ._precision_variational_distribution import _PrecisionVariationalDistribution
from ._prediction_cache import PredictionCache
from .block_low_rank_precision_variational_distribution import BlockLowRankPrecisionVariationalDistribution
from .forward_recorder import ForwardRecorder
from .low_rank_precision_variational_distribution import LowRankPrecisionVariationalDistribution

# Numbers of the features of a chunk of rows, Q a row, in predictions, and rows at least.
_PREDICTION_NUMBERS, _LEAST_PREDICTION_ROWS = 2**20, 256


class _GroupWeights(NamedTuple):
    shared: Tensor  # (*batch, C_g, M, R + 1): columns of F, then the mean
    block: Tensor | None  # (*batch, C_g, M, r)


class _Projection(NamedTuple):
    weights: list[_GroupWeights]  # one a group
    sign: int  # of the squares of the shared projections


class AdditiveVariationalStrategy(_VariationalStrategy):
    r"""
    Sparse variational inference for a sum of Gaussian processes with one joint Gaussian posterior over the inducing
    variables of **all** components (`Adam, Durrande and John, 2018`_).

    With whitened inducing variables :math:`\mathbf v = L^{-1}\mathbf u`, features
    :math:`\phi_c(\mathbf x) = L_c^{-1} k_c(Z_c, \mathbf x)` and :math:`q(\mathbf v) = N(\mathbf m, S)`,

    .. math::
        \rho(\mathbf x) \sim N\Big(\mu(\mathbf x) + \sum_c \phi_c^\top \mathbf m_c, \;
        \sum_c k_c(\mathbf x, \mathbf x) + \phi^\top (S - I) \phi\Big).

    The covariance :math:`S = I - VV^\top - FF^\top` enters through its factors only, so every variance is the prior's
    minus squares. Marginals cost :math:`O(N C M (R + r) + N R^2)`, linear in the number of components like mean-field.

    It is an ordinary GPyTorch strategy: it works with :class:`~gpytorch.mlls.VariationalELBO`, every likelihood,
    model batch shapes, and inside the multitask wrappers. In train mode calls return variances only (unless
    ``diag=False``), in eval mode the full covariance, lazily.

    The jitter is relative to the mean prior variance of each component's inducing variables; an explicit ``jitter_val``
    is absolute. It leaves a share of about its size of each component's prior variance that no amount of data removes:
    too little to see up to a hundred thousand rows or so. It is ``gpytorch.settings.variational_cholesky_jitter`` of
    float64 (1e-6) for models in float32 as well, because the factorisation that it serves is in float64: GPyTorch's
    1e-4 would widen the bands of 20000 rows by a half. A ``float_value`` other than that 1e-4 is honoured.
    The value is fixed when the posterior is initialised and travels with the state dict, as an absolute one does,
    because the whitened variables depend on it: converting a trained model to another dtype does not change its fit.

    Training computes what grows with the rows in the dtype of the model, whose rounding errors average out over them;
    the variances of results, small differences of large numbers, are computed in float64 and given in that dtype.

    :param model: The model that owns the strategy. Its ``forward`` returns the prior: that of the predictor at the rows
        of its inputs, or at what the model makes of these, with a mean added or not, such as
        ``self.mean_module(x) + self.variational_strategy.predictor(self.network(x))``. The posterior is that of the
        same inputs and the same mean, and gradients reach both. A mean belongs to the predictor and to no component.
    :param predictor: The components and their prior. Registered here: ``strategy.predictor``.
    :param variational_distribution: Any distribution over ``predictor.num_inducing_total`` whitened variables:
        :class:`LowRankPrecisionVariationalDistribution`, :class:`BlockLowRankPrecisionVariationalDistribution`, or
        GPyTorch's own. The Cholesky distribution is the coupled covariance of Adam (2017): exact, but
        :math:`O(NQ^2)`. GPyTorch's ``MeanFieldVariationalDistribution`` (a diagonal covariance) costs as much here.
    :param jitter_val: Absolute jitter on the covariance of each component's inducing variables.
    :raises ValueError: If the distribution's size or blocks do not match the predictor.

    Example:
        >>> class GAM(gpytorch.models.ApproximateGP):
        >>>     def __init__(self, predictor):
        >>>         q = LowRankPrecisionVariationalDistribution(predictor.num_inducing_total, rank=64)
        >>>         super().__init__(AdditiveVariationalStrategy(self, predictor, q))
        >>>     def forward(self, x):
        >>>         return self.variational_strategy.predictor(x)

    .. _Adam, Durrande and John, 2018:
        https://arxiv.org/abs/1812.11106
    """

    variational_params_initialized: Tensor
    whitening_jitter: Tensor
    predictor: AdditivePredictor

    # What the parameters of the posterior describe.
    _posterior_kind = "inducing variables"

    # Whether the posterior depends on nothing but the variational distribution and the inducing variables' covariance.
    _may_keep_projections = True

    def __init__(
        self,
        model: gpytorch.models.ApproximateGP,
        predictor: AdditivePredictor,
        variational_distribution: _VariationalDistribution,
        jitter_val: float | None = None,
    ) -> None:
        gpytorch.Module.__init__(self)  # upstream's constructor wants a single tensor of inducing points
        object.__setattr__(self, "model", model)
        self._check_distribution(predictor, variational_distribution)
        if jitter_val is not None:
            checks.number("jitter_val", jitter_val, least=0)
        self._jitter_val = jitter_val
        # The whitened posterior means something only together with the jitter it was initialised with.
        self.register_buffer("whitening_jitter", torch.tensor(float("nan"), dtype=torch.float64))
        self._whitening_jitter: float | None = None  # mirrors the buffer, as the flag below does
        self.predictor = predictor
        self._variational_distribution = variational_distribution
        self.register_buffer("variational_params_initialized", torch.tensor(0))
        self._prediction_cache = PredictionCache()
        self._held_projection: Any = None  # during a prediction in chunks
        self._training_hooks: OrderedDict[int, ForwardRecorder] = (
            OrderedDict()
        )  # of at most one optimiser, under the id of its handle
        self._initialized = False  # mirrors the buffer: reading that one waits for the device

    def _check_distribution(self, predictor: AdditivePredictor, q: _VariationalDistribution) -> None:
        _validate_distribution(predictor, q)

    # ------------------------------------------------------------------ optimisers that follow the kernels

    def register_training_hooks(self, hooks: ForwardRecorder) -> RemovableHandle:
        """
        Let an optimiser take part in training forwards, until the handle's ``remove()``. Copies and pickles of the
        model are without it.

        :param hooks: Called around each forward in train mode with gradients.
        :raises ValueError: If an optimiser takes part already.
        """
        if self._training_hooks:
            raise ValueError("model has a NaturalGradient attached: call its remove() before attaching another")
        handle = RemovableHandle(self._training_hooks)
        self._training_hooks[handle.id] = hooks
        return handle

    @property
    def training_hooks(self) -> ForwardRecorder | None:
        """The hooks that are registered, None if there are none."""
        return next(iter(self._training_hooks.values()), None)

    @contextmanager
    def replaced_training_hooks(self, hooks: ForwardRecorder) -> Iterator[None]:
        """
        Call other hooks for a while.

        :param hooks: In place of those that are registered.
        """
        before, self._training_hooks = self._training_hooks, OrderedDict({0: hooks})
        try:
            yield
        finally:
            self._training_hooks = before

    def prepare_training(self) -> None:
        """
        What a training forward does before it reads the posterior: initialise it, and let an optimiser that follows the
        kernels write it.
        """
        self._initialize_once()
        if self.training_hooks is not None:
            with torch.enable_grad():  # kernels evaluate to the same bits as in the forward
                choleskys = self.inducing_choleskys()
            self.training_hooks.before_forward(choleskys)

    def _present_distribution(self, choleskys: Sequence[Tensor] | None = None) -> Any:
        """The posterior under the present kernels, along with which an optimiser carries it. Nothing is written."""
        values = self._present_parameters(choleskys)
        q = self._variational_distribution
        return q if values is None else q.with_values(values)

    def _present_parameters(self, choleskys: Sequence[Tensor] | None = None) -> dict[str, Tensor] | None:
        hooks = self.training_hooks
        return None if hooks is None or self._is_traced() else hooks.present_parameters(choleskys)

    @property
    def _is_learning(self) -> bool:
        """Whether forwards are those of a training step, for which the posterior is written."""
        return self.training and torch.is_grad_enabled()

    def state_dict(self, *args: Any, prefix: str = "", **kwargs: Any) -> dict[str, Any]:
        """
        The state, with the posterior under the present kernels.

        :param prefix: Of the names.
        """
        state = super().state_dict(*args, prefix=prefix, **kwargs)
        for name, value in (self._present_parameters() or {}).items():
            state[f"{prefix}_variational_distribution.{name}"] = value
        return state

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles, which have the posterior under the present kernels."""
        modules, values = dict(self._modules), self._present_parameters()
        if values is not None:
            copied = modules["_variational_distribution"] = deepcopy(self._variational_distribution)
            with torch.no_grad():
                for name, value in values.items():
                    copied.get_parameter(name).copy_(value)
        return {**self.__dict__, "_modules": modules, "_training_hooks": OrderedDict()}

    def get_extra_state(self) -> Tensor:
        """What the numbers of the posterior mean something together with."""
        return as_bytes({"posterior": self._posterior_kind, "jitter_val": self._jitter_val})

    def set_extra_state(self, state: Any) -> None:
        """
        Take over the absolute jitter of a state; its kind was compared before anything was loaded.

        :param state: From :meth:`get_extra_state`.
        """
        self._jitter_val = from_bytes(state)["jitter_val"]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        self._check_state(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)
        self._initialized = bool(self.variational_params_initialized)
        self._read_whitening_jitter()

    def _check_state(self, state_dict: dict[str, Any], prefix: str) -> None:
        saved = state_dict.get(f"{prefix}{STATE_KEY}")
        kind = self._posterior_kind if saved is None else from_bytes(saved)["posterior"]
        if kind != self._posterior_kind:
            raise ValueError(
                f"the state is that of a posterior over {kind}, but {type(self).__name__} has one over "
                f"{self._posterior_kind}: load it into the strategy that it was trained with"
            )
        self.predictor.check_state(state_dict, f"{prefix}predictor.")

    def _read_whitening_jitter(self) -> None:
        stored = float(self.whitening_jitter)
        self._whitening_jitter = None if math.isnan(stored) else stored

    # ------------------------------------------------------------------ the prior of the inducing variables

    @property
    def inducing_points(self) -> Tensor:
        """Inducing points of the first group; ``predictor.groups`` has those of all groups."""
        return self.predictor.groups[0].inducing_points

    @property
    def jitter_val(self) -> float:
        """
        The jitter: absolute if it was given, otherwise relative to each component's mean variance.

        The relative one is ``gpytorch.settings.variational_cholesky_jitter`` at the time the posterior was initialised:
        another jitter would change what the whitened variables stand for.
        """
        if self._jitter_val is not None:
            return self._jitter_val
        if self._whitening_jitter is not None:
            return self._whitening_jitter
        return relative_jitter(self.predictor.dtype)

    @jitter_val.setter
    def jitter_val(self, jitter_val: float | None) -> None:
        self._jitter_val = jitter_val

    @property
    def prior_distribution(self) -> MultivariateNormal:
        """Standard normal: the prior of the whitened inducing variables of all components."""
        zeros = torch.zeros(
            self._variational_distribution.shape(),
            dtype=self._variational_distribution.dtype,
            device=self._variational_distribution.device,
        )
        return MultivariateNormal(zeros, DiagLinearOperator(torch.ones_like(zeros)))

    @property
    def variational_distribution(self) -> MultivariateNormal | Delta:
        """The distribution of the whitened inducing variables, from the present parameters (never cached)."""
        return self._present_distribution()()

    def inducing_choleskys(self) -> list[Tensor]:
        """
        Cholesky factors of the covariance of each component's inducing variables, in float64, jitter included.

        :return: For each group ``(*batch, C_g, M, M)``.
        """
        return [self.inducing_cholesky(group) for group in self.predictor.groups]

    def inducing_cholesky(self, group: ComponentGroup, covariance: Tensor | None = None) -> Tensor:
        """
        That of one group.

        :param group: Of the predictor.
        :param covariance: Of its inducing variables without jitter, in float64, if it is known already.
        :return: ``(*batch, C_g, M, M)``.
        """
        return group.inducing_cholesky(self.jitter_val, self._jitter_val is None, covariance)

    # ------------------------------------------------------------------ the posterior of the inducing variables

    def covariance_factors(self) -> CovarianceFactors:
        """The variational distribution as mean and factors of its covariance, in float64."""
        return self._factors_of(self._present_distribution())

    def _factors_of(self, q: Any) -> CovarianceFactors:
        if isinstance(q, _PrecisionVariationalDistribution):
            return q.covariance_factors()
        distribution = q()
        mean = distribution.mean.double()
        # S = I - I I' + T T': the same form with all of the prior taken away and a root added.
        prior = tuple(
            torch.eye(size, dtype=mean.dtype, device=mean.device).expand(count, size, size)
            for count, size in self.predictor.group_shapes
        )
        root = None
        if not isinstance(distribution, Delta):
            root = distribution.lazy_covariance_matrix.cholesky().to_dense().double()
        return CovarianceFactors(mean, prior, root, shared_sign=1)

    def kl_divergence(self) -> Tensor:
        """
        Kullback-Leibler divergence from the variational distribution to the prior, over all components at once.

        :return: ``(*batch)``.
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
        Posterior :math:`q(\mathbf u)` of the inducing variables in function space, :math:`\mathbf u = L\mathbf v`.

        For the paper's family the covariance is a lazy :math:`(K^{-1} + B_u B_u^\top)^{-1}`, otherwise it is dense.

        :return: A multivariate normal of event size Q.
        """
        choleskys = self.inducing_choleskys()
        prior = BlockDiagonalCholeskyLinearOperator(*choleskys)
        q = self._present_distribution(choleskys)
        distribution = q()
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

        :return: :math:`\boldsymbol\alpha`, ``(*batch, Q)``, and :math:`B_u`, ``(*batch, Q, R)``.
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

        :param alpha: :math:`\boldsymbol\alpha`, ``(*batch, Q)``.
        :param factor: :math:`B_u`, ``(*batch, Q, R)``.
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
        Set the distribution to a Gaussian of its family close to one given by mean and precision, such as that of
        :meth:`CollapsedELBO.optimum`.

        A coupled (Cholesky) distribution takes any precision exactly. The structured ones keep the mean and take a
        fit of :math:`I + BB^\top` or :math:`I + \mathrm{blockdiag}(E_c E_c^\top) + BB^\top`. Cost :math:`O(Q^3)`.

        :param mean: Mean of the whitened inducing variables, ``(*batch, Q)``.
        :param precision: Their precision, ``(*batch, Q, Q)``; for the structured families at least the identity, as it
            is for log-concave likelihoods.
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

    def _projection(self) -> Any:
        """
        What the posterior at any rows is computed from, beside kernels. Results are computed in float64, because their
        variances are small differences of large numbers; in training, the rounding errors of many rows cancel.
        """
        if self._held_projection is not None:
            return self._held_projection
        return self._projection_in(self.predictor.dtype if self.training else torch.float64)

    @staticmethod
    def _is_traced() -> bool:
        """Whether values must not be looked at, because the operations are to serve others."""
        return gpytorch.settings.trace_mode.on() or is_transformed()

    def _projection_in(self, dtype: torch.dtype) -> Any:
        """Weights of all groups. Predictions without gradients find those of the last one, if nothing has changed."""
        is_followed = self.training_hooks is not None  # by an optimiser, whose state counts as well
        if not self._may_keep_projections or torch.is_grad_enabled() or self._is_traced() or is_followed:
            return self._compute_projection(self.inducing_choleskys(), dtype)
        covariances = [group.inducing_covariance(torch.float64) for group in self.predictor.groups]
        q = self._variational_distribution
        return self._prediction_cache.get(
            (dtype, self.jitter_val, self._jitter_val is None),
            [*covariances, *q.parameters(), *q.buffers()],
            lambda: self._compute_projection(
                [self.inducing_cholesky(*pair) for pair in zip(self.predictor.groups, covariances, strict=True)], dtype
            ),
        )

    def _training_projection(self) -> Any:
        """That of a training forward: an optimiser that follows the kernels may write the posterior first."""
        hooks = self.training_hooks
        if hooks is None or not torch.is_grad_enabled():
            return self._projection()
        choleskys = self.inducing_choleskys()
        hooks.before_forward(choleskys)
        factors = self._factors_of(self._variational_distribution)
        return self._compute_projection(choleskys, self.predictor.dtype, factors)

    def _compute_projection(
        self, choleskys: list[Tensor], dtype: torch.dtype, factors: CovarianceFactors | None = None
    ) -> _Projection:
        r""":math:`L_c^{-\top} [V_c, F_c, m_c]` of each group: float64 solves, handed over in the dtype of the data."""
        if factors is None:
            is_followed = self.training_hooks is not None
            factors = (
                self._factors_of(self._present_distribution(choleskys)) if is_followed else self.covariance_factors()
            )
        columns = factors.mean.unsqueeze(-1)
        if factors.explained_shared is not None:
            columns = torch.cat([factors.explained_shared, columns], dim=-1)
        parts = split_groups(columns, self.predictor.group_shapes)
        roots = factors.explained_blocks or (None,) * len(parts)
        weights = []
        for cholesky, part, root in zip(choleskys, parts, roots, strict=True):
            block = None if root is None else whitened_weights(cholesky, root).to(dtype)
            weights.append(_GroupWeights(whitened_weights(cholesky, part).to(dtype), block))
        return _Projection(weights, factors.shared_sign)

    @without_autocast
    def features(self, x: Tensor) -> Tensor:
        r"""
        Features :math:`\phi_c(\mathbf x) = L_c^{-1} k_c(Z_c, \mathbf x)` of all components, stacked.

        They hold Q numbers a row: training and prediction do without them.

        :param x: Inputs ``(*batch, n, D)``.
        :return: ``(*batch, Q, n)``.
        """
        return self.predictor.features(self.read(x).inputs, self.inducing_choleskys())

    @without_autocast
    def predictor_moments(self, x: Tensor) -> PredictorMoments:
        """
        Posterior mean and covariance of the predictors in each row.

        :param x: Inputs ``(*batch, n, D)``.
        :return: Mean ``(*batch, n, P)`` and covariance between predictors ``(*batch, n, P, P)``.
        """
        return self._moments(self.read(x))

    def _moments(self, reading: Reading, projection: Any = None) -> PredictorMoments:
        """In the dtype of the rows."""
        mean, variance, shared, sign = self._marginals(reading, projection)
        single, dtype = self.predictor.num_predictors == 1, reading.inputs.dtype
        covariance = variance.mT.unsqueeze(-1) if single else covariance_in_rows(variance, shared, sign)
        return PredictorMoments(mean.mT.to(dtype), covariance.to(dtype))

    def _moments_in_chunks(self, reading: Reading, projection: Any, kernels: KernelState) -> PredictorMoments:
        """
        Those of many rows, a chunk at a time. With gradients, chunks are evaluated again in the backward pass and not
        kept.
        """
        size = self._rows_at_a_time(reading.inputs)
        if reading.inputs.shape[-2] <= size or self.training or is_transformed():
            return self._moments(reading, projection)

        def again(chunk: Reading) -> PredictorMoments:
            with settings.fused_projection("off"):  # which keeps what a checkpoint would not
                return kernels.run_again(lambda: self._moments(chunk, projection))

        if torch.is_grad_enabled():
            parts = [checkpoint(again, chunk, use_reentrant=False) for chunk in reading.split(size)]
        else:
            parts = [self._moments(chunk, projection) for chunk in reading.split(size)]
        means, covariances = zip(*parts, strict=True)
        return PredictorMoments(torch.cat(means, dim=-2), torch.cat(covariances, dim=-3))

    def _marginals(self, reading: Reading, projection: Any = None) -> tuple[Tensor, Tensor, Tensor, int]:
        """
        Mean and variance ``(*batch, P, n)``, shared projections ``(*batch, P, R, n)`` and their sign; in the precision
        of the projection.
        """
        weights, sign = self._projection() if projection is None else projection
        x = reading.inputs.to(weights[0].shared.dtype)
        shared: list[Any] = [0] * self.predictor.num_predictors
        prior: list[Any] = [0] * self.predictor.num_predictors
        removed: list[Any] = [0] * self.predictor.num_predictors
        for group, weight in zip(self.predictor.groups, weights, strict=True):
            projection = project_sum(group, x, weight.shared, weight.block)
            shared[group.predictor_index] = shared[group.predictor_index] + projection.shared
            prior[group.predictor_index] = prior[group.predictor_index] + projection.prior_variance
            if projection.squares is not None:
                removed[group.predictor_index] = removed[group.predictor_index] + projection.squares
        columns = torch.stack(torch.broadcast_tensors(*shared), dim=-3)  # (*batch, P, R + 1, n)
        coupled = columns[..., :-1, :]
        mean = reading.means + columns[..., -1, :]
        prior_variance = _stack_predictors(prior, mean)
        variance = prior_variance - _stack_predictors(removed, mean) + sign * coupled.square().sum(-2)
        return mean, keep_positive(variance, prior_variance), coupled, sign

    @without_autocast
    def forward(self, x: Tensor, diag: bool = True, **kwargs: Any) -> MultivariateNormal:
        """
        Posterior of the predictor at the rows of ``x``.

        :param x: Inputs ``(*batch, n, D)``.
        :param diag: In train mode, return variances only (with several predictors: their covariance in each row). In
            eval mode the full covariance is always available, lazily.
        :param kwargs: Further arguments of the model's ``forward``.
        :return: A multivariate normal over n rows; with P > 1 predictors a multitask one over n x P.
        :raises TypeError: If the model's ``forward`` does not know an argument.
        """
        reading = self._prepared(x, kwargs)
        if gpytorch.settings.skip_posterior_variances.on():
            return self._mean_only(reading)
        if self.training and diag:
            return self._marginal_distribution(reading)
        return self._joint_distribution(reading)

    def _mean_only(self, reading: Reading) -> MultivariateNormal:
        means = self._moments_in_chunks(reading, self._projection(), KernelState(self.predictor)).mean.mT
        size = means.shape[-2] * means.shape[-1]
        zero = ZeroLinearOperator(*means.shape[:-2], size, size, dtype=means.dtype, device=means.device)
        return self._predictor_distribution(means, zero)

    def _predictor_distribution(self, means: Tensor, covariance: LinearOperator) -> MultivariateNormal:
        """From means ``(*batch, P, n)`` and a covariance whose rows run over (predictor, row of x)."""
        if gpytorch.settings.trace_mode.on():  # a dense distribution factorises its covariance at once
            is_posterior = isinstance(covariance, PosteriorCovariance)
            covariance = covariance.with_rounding_jitter() if is_posterior else covariance.to_dense()
        return predictor_distribution(means, covariance)

    def _marginal_distribution(self, reading: Reading) -> MultivariateNormal:
        projection = self._training_projection()
        if self.predictor.num_predictors == 1:
            mean, variance, *_ = self._marginals(reading, projection)
            mean, variance = mean.squeeze(-2), variance.squeeze(-2)
            self._record(reading, mean, variance)
            return MarginalNormal(mean, DiagLinearOperator(variance))
        moments = self._moments(reading, projection)
        self._record(reading, *moments)
        return independent_rows(moments)

    def _record(self, reading: Reading, mean: Tensor, variance: Tensor) -> None:
        """Tell an attached optimiser, to which the inputs of the predictor are constants."""
        if self.training_hooks is not None:
            self.training_hooks.after_forward(reading.inputs.detach(), mean, variance)
        elif mean.requires_grad and isinstance(self._variational_distribution, _PrecisionVariationalDistribution):
            self._variational_distribution.growth_watch.note(self._variational_distribution)

    def _joint_distribution(self, reading: Reading) -> MultivariateNormal:
        """
        Mean and variances, and the covariance when it is asked for. It is that of the kernels and the posterior of now,
        whatever becomes of the model.
        """
        projection, kernels = self._projection(), KernelState(self.predictor)
        moments = self._moments_in_chunks(reading, projection, kernels)
        means, variances = moments.mean.mT, moments.covariance.diagonal(dim1=-2, dim2=-1).mT.flatten(-2)
        if gpytorch.settings.trace_mode.on():
            return self._predictor_distribution(means, self._joint_covariance(reading.inputs, projection))
        inputs, num_predictors, batch_shape = reading.inputs, means.shape[-2], variances.shape[:-1]

        def build(chosen: range) -> LinearOperator:
            rows = slice(chosen.start, chosen.stop, chosen.step)
            some = inputs[..., rows, :] if num_predictors == 1 else inputs
            covariance = kernels.run(lambda: self._joint_covariance(some, projection))
            covariance = covariance.expand(*batch_shape, *covariance.shape[-2:])
            return covariance if covariance.shape[-1] == len(chosen) else covariance[..., rows, rows]

        covariance = DeferredLinearOperator(variances, build, is_diagonal=True)
        if num_predictors == 1:
            return MarginalNormal(means.squeeze(-2), covariance)
        joint = self._predictor_distribution(means, covariance)
        return PredictorDistribution(
            joint.mean, joint.lazy_covariance_matrix, interleaved=False, row_covariance=moments.covariance
        )

    @without_autocast
    def _joint_covariance(self, x: Tensor, projection: Any) -> PosteriorCovariance:
        """Prior covariance minus the squares of projections, over the rows of all predictors."""
        weights, sign = projection
        num_predictors, n, inputs = self.predictor.num_predictors, x.shape[-2], x.to(weights[0].shared.dtype)
        shared: list[Any] = [0] * num_predictors
        removed = []  # rows over (predictor, row of x)
        for group, weight in zip(self.predictor.groups, weights, strict=True):
            projected, block, _ = project_components(group, inputs, weight.shared[..., :-1], weight.block)
            shared[group.predictor_index] = shared[group.predictor_index] + projected.sum(-3)
            if block is not None:
                before, after = group.predictor_index, num_predictors - 1 - group.predictor_index
                removed.append(torch.nn.functional.pad(block.flatten(-3, -2), (before * n, after * n)).to(x.dtype))
        columns = torch.stack(torch.broadcast_tensors(*shared), dim=-3)  # (*batch, P, R, n)
        coupled = columns.movedim(-3, -2).flatten(-2, -1).to(x.dtype)  # (*batch, R, P n)
        prior = join_covariances(self.predictor.prior_covariances(x)).evaluate_kernel()
        return posterior_covariance(prior, removed, coupled, sign)

    @without_autocast
    def components(
        self,
        x: Tensor,
        names: Sequence[str] | str | None = None,
        exclude: Sequence[str] | str | None = None,
        **kwargs: Any,
    ) -> ComponentPosterior:
        """
        Joint posterior of the components at the rows of ``x``. A mean that the model's ``forward`` adds belongs to the
        predictor, and to none of them.

        :param x: Inputs ``(*batch, n, D)``.
        :param names: Which components; default all.
        :param exclude: Components to leave out, instead of ``names``.
        :param kwargs: Further arguments of the model's ``forward``.
        :return: Means, variances, covariances and samples of the components, see :class:`ComponentPosterior`.
        :raises ValueError: If a name is unknown, or none is left.
        :raises TypeError: If the model's ``forward`` does not know an argument.
        """
        check_keywords(self.model, kwargs)
        indices = self.predictor.component_indices(names, exclude)
        return ComponentPosterior(self, self._prepared(x, kwargs), indices)

    def component_projections(self, inputs: Tensor) -> ComponentProjections:
        """
        Projections of all components, of which :class:`ComponentPosterior` makes moments.

        :param inputs: Of the predictor, :attr:`Reading.inputs`, ``(*batch, n, D)``.
        """
        weights, sign = self._projection()
        rows = inputs.to(weights[0].shared.dtype)
        groups = []
        for group, weight in zip(self.predictor.groups, weights, strict=True):
            projected, block, prior_variance = project_components(group, rows, weight.shared, weight.block)
            groups.append(GroupPosterior(projected[..., -1, :], prior_variance, projected[..., :-1, :], block))
        return ComponentProjections(groups, sign)

    def draw_components(self, inputs: Tensor, batch_shape: torch.Size, sample_shape: torch.Size) -> list[Tensor]:
        """
        Joint draws of all components: first the inducing variables, then each component given its own.

        :param inputs: Of the predictor, ``(*batch, n, D)``.
        :param batch_shape: Of the posterior of the components there.
        :param sample_shape: Shape of independent draws.
        :return: For each group ``(*sample_shape, *batch, C_g, n)``.
        """
        whitened = self.variational_distribution.rsample(sample_shape)
        # One draw of the inducing variables serves every batch of x: line its batch dimensions up with those of x.
        own_batch = whitened.shape[len(sample_shape) : -1]
        missing = (1,) * (len(batch_shape) - len(own_batch))
        whitened = whitened.reshape(*sample_shape, *missing, *own_batch, whitened.shape[-1])
        columns = split_groups(whitened.double().unsqueeze(-1), self.predictor.group_shapes)
        return [
            draw_given_inducing(group, inputs, cholesky, values)
            for group, cholesky, values in zip(self.predictor.groups, self.inducing_choleskys(), columns, strict=True)
        ]

    @torch.no_grad()
    def predict(
        self,
        x: Tensor,
        components: Sequence[str] | str | bool = True,
        chunk_size: int | None = None,
        exclude: Sequence[str] | str | None = None,
        **kwargs: Any,
    ) -> Prediction:
        """
        Means and variances of the predictor and of its components at any number of rows: memory beside that of the
        result does not depend on it. Without gradients, in train and eval mode alike.

        :param x: Inputs ``(*batch, n, D)``, on any device; results are on that of ``x``.
        :param components: Which components' moments to give: True for all, False for none, or names. They double the
            time or so.
        :param chunk_size: Rows whose projections exist at a time; by default so many that these take a few megabytes.
        :param exclude: Components that the predictor is to be without, such as random effects.
        :param kwargs: Further arguments of the model's ``forward`` that are no tensors: it runs on each chunk.
        :raises ValueError: If a name is unknown, or ``chunk_size`` not positive.
        :raises TypeError: If the model's ``forward`` does not know an argument, or one is a tensor.
        """
        check_keywords(self.model, kwargs)
        tensors = sorted(name for name, value in kwargs.items() if torch.is_tensor(value))
        if tensors:
            raise TypeError(
                f"predict goes through the rows in chunks and cannot cut {tensors} with them: make them columns of x, "
                "which forward may read, or call model(x, ...)"
            )
        kept = self.predictor.component_indices(None, exclude)
        if isinstance(components, bool | np.bool_):
            indices = kept if components else []
        else:
            indices = self.predictor.component_indices(components)
        if chunk_size is not None:
            checks.integer("chunk_size", chunk_size, least=1)
        if not torch.is_tensor(x) or x.dim() < 2 or x.shape[-2] == 0:
            self.read(x)  # raises
        chunks = x.split(chunk_size or self._rows_at_a_time(x), dim=-2)
        with self._projection_held():
            return joined((self._predict_rows(rows, indices, kept, kwargs) for rows in chunks), x.shape[-2])

    def _rows_at_a_time(self, x: Tensor) -> int:
        batch_shape = torch.broadcast_shapes(
            x.shape[:-2], self.predictor.batch_shape, self._variational_distribution.batch_shape
        )
        per_row = batch_shape.numel() * self.predictor.num_inducing_total
        return max(_LEAST_PREDICTION_ROWS, _PREDICTION_NUMBERS // max(1, per_row))

    @contextmanager
    def _projection_held(self) -> Iterator[None]:
        """The weights are computed, or found to be unchanged, once for all chunks."""
        self._prepare()
        self._held_projection = self._projection_in(torch.float64)
        try:
            yield
        finally:
            self._held_projection = None

    @without_autocast
    def _predict_rows(self, x: Tensor, indices: list[int], kept: list[int], keywords: Mapping[str, Any]) -> Prediction:
        reading, all_names = self._prepared(x.to(self.predictor.device), keywords), self.predictor.names
        names = [all_names[index] for index in indices]
        if not indices and len(kept) == len(all_names):
            return Prediction.from_moments(*self._moments(reading), names, None).to(x.device)
        parts = ComponentPosterior(self, reading, list(range(len(all_names))))
        moments = parts[[all_names[index] for index in kept]].predictor_moments()
        return Prediction.from_moments(*moments, names, parts if names else None).to(x.device)

    # ------------------------------------------------------------------ calls

    def __call__(self, x: Tensor, prior: bool = False, diag: bool = True, **kwargs: Any) -> MultivariateNormal:
        """
        Posterior (or, with ``prior=True``, prior) of the predictor at the rows of ``x``.

        :param x: Inputs ``(*batch, n, D)``.
        :param prior: Return the prior of the sum of the components: what the model's ``forward`` returns.
        :param diag: See :meth:`forward`.
        :param kwargs: Further arguments of the model's ``forward``.
        :raises ValueError: For inputs that the components cannot read, and for a ``forward`` that does anything else
            than give inputs to the predictor and add a mean to its prior.
        :raises TypeError: If ``forward`` does not know an argument. Those of the likelihood, such as offsets, belong to
            the objective: ``mll(model(x), y, offset=...)``.
        """
        if not prior:
            return gpytorch.Module.__call__(self, x, diag=diag, **kwargs)
        check_keywords(self.model, kwargs)
        return self.model.forward(x, **kwargs)

    @without_autocast
    def read(self, x: Tensor, **kwargs: Any) -> Reading:
        """
        What the model's ``forward`` makes of the rows of ``x``: the inputs that it gives the predictor, and the mean of
        the prior that it returns. Everything that is computed at rows of data goes through here.

        ``forward`` is run, unless it is that of :class:`~gpytorch_gam.AdditiveGP`, which is the predictor alone.

        :param x: Inputs of the model, ``(*batch, n, D)``.
        :param kwargs: Further arguments of ``forward``.
        :raises ValueError: If the predictor cannot read its inputs, or ``forward`` does anything else.
        :raises TypeError: If ``forward`` does not know an argument.
        """
        self._check_own_kind()
        batch_shape = self._variational_distribution.batch_shape
        if has_own_forward(self.model):
            batch_shape = torch.broadcast_shapes(batch_shape, self.predictor.batch_shape)
        return read_rows(self.model, self.predictor, x, batch_shape, self._looks_at_values(x), kwargs)

    def _prepared(self, x: Tensor, keywords: Mapping[str, Any]) -> Reading:
        """The rows, read, of a model that is ready for them."""
        reading = self.read(x, **keywords)
        self._prepare()
        return reading

    def _prepare(self) -> None:
        self._initialize_once()
        if not self.training and isinstance(self._variational_distribution, _PrecisionVariationalDistribution):
            self._variational_distribution.growth_watch.warn_if_growing(self._variational_distribution)

    def check_inputs(self, x: Tensor) -> None:
        """
        Raise a clear error for inputs that the model cannot read, see :meth:`AdditivePredictor.check_inputs`. Where the
        model's ``forward`` gives the predictor others than ``x``, that is known when it runs: see :meth:`read`.

        :param x: Inputs ``(*batch, n, D)``.
        """
        self._check_own_kind()
        if has_own_forward(self.model):
            check_rows(x)
        else:
            self.predictor.check_inputs(x, check_finite=self._looks_at_values(x))

    def _check_own_kind(self) -> None:
        q, predictor = self._variational_distribution, self.predictor
        if q.dtype != predictor.dtype or q.device != predictor.device:
            raise ValueError(
                f"variational_distribution is {q.dtype} on {q.device}, but the inducing points are "
                f"{predictor.dtype} on {predictor.device}: convert the whole model with model.to(...)"
            )

    def _looks_at_values(self, x: Tensor) -> bool:
        """Looking for NaN waits for the device, which a training loop on a GPU cannot afford at each step."""
        on_hot_path = self.training and torch.is_tensor(x) and x.device.type != "cpu"
        return gpytorch.settings.debug.on() and not on_hot_path

    def _initialize_once(self) -> None:
        if self._initialized:
            return
        # The buffers count as well: they may have been filled by hand, or put in place by torch.func.functional_call.
        self._read_whitening_jitter()
        if self.variational_params_initialized:
            self._initialized = True
        else:
            self._check_prior()
            self._variational_distribution.initialize_variational_distribution(self.prior_distribution)
            self._mark_initialized()

    @torch.no_grad()
    def _check_prior(self) -> None:
        """Raise an error if a covariance has no Cholesky factor: training steps on a GPU do not wait for that."""
        self.inducing_choleskys()

    def _mark_initialized(self) -> None:
        self._whitening_jitter = self.jitter_val if self._jitter_val is None else None
        if self._whitening_jitter is not None:
            self.whitening_jitter.fill_(self._whitening_jitter)
        self.variational_params_initialized.fill_(1)
        self._initialized = True


def _stack_predictors(values: list[Any], like: Tensor) -> Tensor:
    """Stack one ``(*batch, n)`` a predictor (or the number 0 for none) to ``(*batch, P, n)``."""
    zero = like.new_zeros(like.shape[:-2] + like.shape[-1:])
    return torch.stack([zero + value for value in values], dim=-2)


def _validate_distribution(predictor: AdditivePredictor, q: _VariationalDistribution) -> None:
    if not isinstance(predictor, AdditivePredictor):
        raise ValueError(f"predictor must be an AdditivePredictor, got {type(predictor).__name__}")
    if not isinstance(q, _VariationalDistribution):
        raise ValueError(f"variational_distribution must be a variational distribution, got {type(q).__name__}")
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
