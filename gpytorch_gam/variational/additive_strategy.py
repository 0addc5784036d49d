"""The base of strategies for sums of Gaussian processes: calls, checks, predictions and state."""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import gpytorch
import numpy as np
import torch
from gpytorch.distributions import Delta, MultivariateNormal
from gpytorch.variational._variational_distribution import _VariationalDistribution
from linear_operator.operators import DiagLinearOperator, LinearOperator, ZeroLinearOperator
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gpytorch_gam import _checks as checks
from gpytorch_gam import settings
from gpytorch_gam.components import AdditivePredictor
from gpytorch_gam.components.additive_predictor import join_covariances, predictor_distribution
from gpytorch_gam.components.reading import Reading, check_keywords, check_rows, has_own_forward, read_rows
from gpytorch_gam.distributions.marginal_normal import MarginalNormal
from gpytorch_gam.distributions.predictor_distribution import PredictorDistribution, PredictorMoments, independent_rows
from gpytorch_gam.effects.component_posterior import ComponentPosterior
from gpytorch_gam.effects.component_source import ComponentProjections
from gpytorch_gam.effects.component_sums import SumPrediction, columns_of, groups_of, moments_of_sums, passes
from gpytorch_gam.effects.joint_sum import JointSum, checked_pairs
from gpytorch_gam.effects.prediction import Prediction, joined
from gpytorch_gam.effects.weighted_models import WeightedModels, checked_models
from gpytorch_gam.numerics.autocast import without_autocast
from gpytorch_gam.numerics.compiler import without_compiler
from gpytorch_gam.numerics.transforms import is_transformed
from gpytorch_gam.operators.deferred_linear_operator import DeferredLinearOperator
from gpytorch_gam.operators.posterior_covariance import PosteriorCovariance, posterior_covariance
from gpytorch_gam.parameters.structure import STATE_KEY, as_bytes, from_bytes

from ._followed_strategy import _FollowedStrategy
from ._jitter import relative_jitter
from ._kernel_state import KernelState
from ._posterior_projection import PosteriorProjection, sum_by_predictor
from ._precision_variational_distribution import _PrecisionVariationalDistribution

# Number of entries in the features of a chunk of rows (Q a row) in predictions, and smallest number of rows in a chunk.
_PREDICTION_NUMBERS, _LEAST_PREDICTION_ROWS = 2**20, 256
# By how much chunks are larger where moments of the whole predictor alone are asked for, whose features are made in
# smaller blocks.
_TIMES_MORE_ROWS = 8
# The former for sums of a few components, whose work is all in elementwise functions: they stay in the cache.
_NUMBERS_OF_SUMS = 2**19


class AdditiveStrategy(_FollowedStrategy):
    """
    The base of strategies with a joint posterior of all components of an additive predictor. Subclasses define the
    posterior: its projections, its divergence from the prior, and draws from it.

    :param model: The model that owns the strategy.
    :param predictor: The components and their prior.
    :param variational_distribution: The parameters of the posterior.
    :param jitter_val: Absolute jitter; default one relative to the prior variance of each component.
    """

    variational_params_initialized: Tensor
    predictor: AdditivePredictor

    # Describes in a state what the parameters of the posterior mean.
    _posterior_kind: str

    def __init__(
        self,
        model: gpytorch.models.ApproximateGP,
        predictor: AdditivePredictor,
        variational_distribution: _VariationalDistribution,
        jitter_val: float | None = None,
    ) -> None:
        gpytorch.Module.__init__(self)  # upstream's constructor wants a single tensor of inducing points
        object.__setattr__(self, "model", model)
        self.jitter_val = jitter_val
        self.predictor = predictor
        self._variational_distribution = variational_distribution
        self.register_buffer("variational_params_initialized", torch.tensor(0))
        self._training_hooks = OrderedDict()
        self._initialized = False  # mirrors the buffer, whose value cannot be read without waiting for the device
        #: Whether the last :func:`~gpytorch_gam.fit` had converged; None if that is not known.
        self.has_arrived: bool | None = None

    def get_extra_state(self) -> Tensor:
        """The kind of the posterior and the jitter, without which the numbers of the state have no meaning."""
        jitter = {"jitter_val": self._jitter, "jitter_is_relative": self._jitter_is_relative}
        return as_bytes({"posterior": self._posterior_kind, **jitter})

    def set_extra_state(self, state: Any) -> None:
        """Take over the jitter of a state; its kind was compared before anything was loaded."""
        saved = from_bytes(state)
        self._jitter, self._jitter_is_relative = saved["jitter_val"], saved["jitter_is_relative"]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        self._check_state(state_dict, prefix)
        self._resize_for(state_dict, f"{prefix}predictor.groups.")
        super()._load_from_state_dict(state_dict, prefix, *args)
        self._initialized = bool(self.variational_params_initialized)
        self.has_arrived = None

    def _check_state(self, state_dict: dict[str, Any], prefix: str) -> None:
        saved = state_dict.get(f"{prefix}{STATE_KEY}")
        kind = self._posterior_kind if saved is None else from_bytes(saved)["posterior"]
        if kind != self._posterior_kind:
            raise ValueError(
                f"the state is that of a posterior over {kind}, but {type(self).__name__} has one over "
                f"{self._posterior_kind}: load it into the strategy that it was trained with"
            )
        self.predictor.check_state(state_dict, f"{prefix}predictor.", any_number=True)

    def _resize_for(self, state_dict: Mapping[str, Any], prefix: str) -> None:
        """Take over the numbers of inducing points that a fit has chosen for the groups of a state."""
        for index, group in enumerate(self.predictor.groups):
            points = state_dict.get(f"{prefix}{index}.inducing_points")
            if group.placement is not None and points is not None and points.shape[-2] != group.num_inducing:
                group.replace_inducing_points(points)
        self._resize_posterior()

    def _resize_posterior(self) -> None:
        """Give the posterior the size that belongs to the inducing points, where it has one."""

    @property
    def jitter_val(self) -> float:
        """
        The jitter: absolute if it was given, otherwise relative to each component's mean variance.

        The relative one is ``gpytorch.settings.variational_cholesky_jitter`` at the time the posterior was initialised:
        another jitter would change the meaning of the whitened variables.
        """
        return relative_jitter(self.predictor.dtype) if self._jitter is None else self._jitter

    @jitter_val.setter
    def jitter_val(self, jitter_val: float | None) -> None:
        if jitter_val is not None:
            checks.number("jitter_val", jitter_val, least=0)
        self._jitter, self._jitter_is_relative = jitter_val, jitter_val is None

    # ------------------------------------------------------------------ the posterior

    @property
    @abstractmethod
    def inducing_points(self) -> Tensor:
        """The inducing points of the first group, or the points that replace them."""

    @property
    @abstractmethod
    def variational_distribution(self) -> MultivariateNormal | Delta:
        """The distribution of whitened variables, from the present parameters (never cached)."""

    @property
    def prior_distribution(self) -> MultivariateNormal:
        """Standard normal: the prior of the whitened variables."""
        q = self._variational_distribution
        zeros = torch.zeros(*q.batch_shape, self._num_whitened, dtype=q.dtype, device=q.device)
        return MultivariateNormal(zeros, DiagLinearOperator(torch.ones_like(zeros)))

    @property
    @abstractmethod
    def _num_whitened(self) -> int:
        """The number of whitened variables."""

    @abstractmethod
    def _projection_in(self, dtype: torch.dtype) -> PosteriorProjection:
        """The projection of the posterior, in some dtype."""

    @abstractmethod
    def draw_components(
        self,
        inputs: Tensor,
        batch_shape: torch.Size,
        sample_shape: torch.Size,
        places: Sequence[int] | None = None,
    ) -> list[Tensor]:
        """
        Joint draws of all components, ``(*sample_shape, *batch, C_g, n)`` for each group; or of those of the groups at
        some places, at their cost.
        """

    def _projection(self) -> PosteriorProjection:
        """
        The projection for a result: in float64, as variances are small differences of large numbers, except in
        training, where the rounding errors of many rows average out.
        """
        return self._projection_in(self.predictor.dtype if self.training else torch.float64)

    def _training_projection(self) -> PosteriorProjection:
        """The projection for a training forward."""
        return self._projection()

    def component_projections(self, inputs: Tensor) -> ComponentProjections:
        """Projections of all components, from which :class:`ComponentPosterior` computes moments."""
        return self._projection().components(inputs)

    @without_autocast
    def predictor_moments(self, x: Tensor) -> PredictorMoments:
        """
        Posterior mean ``(*batch, n, P)`` and covariance ``(*batch, n, P, P)`` of the predictors in each row.

        :param x: Inputs ``(*batch, n, D)``.
        """
        return self._moments(self.read(x), self._projection())

    @without_autocast
    def training_moments(self, x: Tensor) -> PredictorMoments:
        """
        The moments under which the bound takes its expectations: :meth:`predictor_moments` with effects that are
        unknown in a row, for want of a column, at their mean of zero.

        :param x: Inputs ``(*batch, n, D)``.
        """
        return self._moments(self.read(x), self._projection().for_training())

    def _moments(self, reading: Reading, projection: PosteriorProjection) -> PredictorMoments:
        return projection.moments(reading)

    def _moments_in_chunks(
        self, reading: Reading, projection: PosteriorProjection, kernels: KernelState
    ) -> PredictorMoments:
        """The moments of many rows in chunks, which with gradients are recomputed in the backward pass and not kept."""
        size = self._rows_at_a_time(self._batch_shape_at(reading.inputs))
        if reading.inputs.shape[-2] <= size or self.training or is_transformed():
            return self._moments(reading, projection)

        def again(chunk: Reading) -> PredictorMoments:
            with settings.fused_projection("off"):  # the fused one keeps what a checkpoint drops
                return kernels.run_again(lambda: self._moments(chunk, projection))

        if torch.is_grad_enabled():
            parts = [checkpoint(again, chunk, use_reentrant=False) for chunk in reading.split(size)]
        else:
            parts = [self._moments(chunk, projection) for chunk in reading.split(size)]
        means, covariances = zip(*parts, strict=True)
        return PredictorMoments(torch.cat(means, dim=-2), torch.cat(covariances, dim=-3))

    @without_autocast
    def forward(self, x: Tensor, diag: bool = True, **kwargs: Any) -> MultivariateNormal:
        """
        The posterior of the predictor at the rows of ``x``.

        :param x: Inputs ``(*batch, n, D)``.
        :param diag: In train mode, return variances only (with several predictors: their covariance in each row). In
            eval mode the full covariance is always available, lazily.
        :param kwargs: Further arguments of the model's ``forward``.
        :return: A multivariate normal over n rows; with P > 1 predictors a multitask one over n x P.
        :raises TypeError: If the model's ``forward`` does not know an argument.
        """
        reading = self._prepared(x, kwargs)
        if gpytorch.settings.skip_posterior_variances.on() and not self.training:  # a bound needs them
            return self._mean_only(reading)
        if self.training and diag:
            return self._marginal_distribution(reading)
        return self._joint_distribution(reading)

    def get_fantasy_model(
        self, inputs: Tensor, targets: Tensor, mean_module: Any = None, covar_module: Any = None
    ) -> NoReturn:
        """
        Not available: GPyTorch's fantasy models are exact GPs conditioned on the posterior at inducing points.

        :param inputs: Further inputs.
        :param targets: Their responses.
        :param mean_module: Ignored.
        :param covar_module: Ignored.
        :raises NotImplementedError: Always; the message says what can be done instead.
        """
        raise NotImplementedError(
            f"{type(self).__name__} makes no fantasy models: to condition on more rows, copy the model (copy.deepcopy) "
            "and call gpytorch_gam.training.polish(model, likelihood, [(x, y)]) with all rows at the same "
            "hyperparameters, or fit(..., warm_start=True)"
        )

    def _mean_only(self, reading: Reading) -> MultivariateNormal:
        means = self._moments_in_chunks(reading, self._projection(), KernelState(self.predictor)).mean.mT
        size = means.shape[-2] * means.shape[-1]
        zero = ZeroLinearOperator(*means.shape[:-2], size, size, dtype=means.dtype, device=means.device)
        return self._predictor_distribution(means, zero)

    def _predictor_distribution(self, means: Tensor, covariance: LinearOperator) -> MultivariateNormal:
        """The distribution with means ``(*batch, P, n)`` and a covariance whose rows run over (predictor, row of x)."""
        if gpytorch.settings.trace_mode.on():  # a dense distribution would factorise its covariance at once
            is_posterior = isinstance(covariance, PosteriorCovariance)
            covariance = covariance.with_rounding_jitter() if is_posterior else covariance.to_dense()
        return predictor_distribution(means, covariance)

    def _marginal_distribution(self, reading: Reading) -> MultivariateNormal:
        projection = self._training_projection().for_training()
        if self.predictor.num_predictors == 1:
            marginals = projection.marginals(reading)
            mean, variance = marginals.mean.squeeze(-2), marginals.variance.squeeze(-2)
            self._record(reading, mean, variance)
            return MarginalNormal(mean, DiagLinearOperator(variance))
        moments = self._moments(reading, projection)
        self._record(reading, *moments)
        return independent_rows(moments)

    def _record(self, reading: Reading, mean: Tensor, variance: Tensor) -> None:
        """Pass a forward to an attached optimiser, for which the inputs of the predictor are constants."""
        self.has_arrived = None
        if self.training_hooks is not None:
            self.training_hooks.after_forward(reading.inputs.detach(), mean, variance)
        elif mean.requires_grad and isinstance(self._variational_distribution, _PrecisionVariationalDistribution):
            self._variational_distribution.growth_watch.note(self._variational_distribution)

    def _joint_distribution(self, reading: Reading) -> MultivariateNormal:
        """Mean and variances now, and the covariance when asked for, under the kernels and the posterior of now."""
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
        return PredictorDistribution(moments.mean, covariance, interleaved=False, row_covariance=moments.covariance)

    @without_autocast
    def _joint_covariance(self, x: Tensor, projection: PosteriorProjection) -> PosteriorCovariance:
        """The prior covariance minus the squares of projections, over the rows of all predictors."""
        groups, sign = projection.components(x)
        n, last = x.shape[-2], self.predictor.num_predictors - 1
        owners = [group.predictor_index for group in self.predictor.groups]
        columns = sum_by_predictor([group.shared.sum(-3) for group in groups], owners, -3)  # (*batch, P, R, n)
        coupled = columns.movedim(-3, -2).flatten(-2, -1).to(x.dtype)  # (*batch, R, P n)
        removed = [  # rows over (predictor, row of x)
            torch.nn.functional.pad(group.block.flatten(-3, -2), (owner * n, (last - owner) * n)).to(x.dtype)
            for group, owner in zip(groups, owners, strict=True)
            if group.block is not None
        ]
        factors = [group.unknown for group in groups]
        prior = join_covariances(self.predictor.prior_covariances(x, factors)).evaluate_kernel()
        return posterior_covariance(prior, removed, coupled, sign)

    # ------------------------------------------------------------------ components and predictions

    @without_autocast
    def components(
        self,
        x: Tensor,
        names: Sequence[str] | str | None = None,
        exclude: Sequence[str] | str | None = None,
        hyperparameters: WeightedModels | None = None,
        **kwargs: Any,
    ) -> ComponentPosterior:
        """
        The joint posterior of the components at the rows of ``x``. A mean that the model's ``forward`` adds belongs to
        the predictor and to no component.

        :param x: Inputs ``(*batch, n, D)``.
        :param names: A list of components; default all. A single name gives results without the components' dimension,
            as indexing by it does.
        :param exclude: Components to leave out, instead of ``names``.
        :param hyperparameters: A :class:`~gpytorch_gam.diagnostics.HyperparameterUncertainty` of this model, whose
            uncertainty the result then includes; by default they are taken as known.
        :param kwargs: Further arguments of the model's ``forward``.
        :return: Means, variances, covariances and samples of the components, see :class:`ComponentPosterior`.
        :raises ValueError: If a name is unknown, or none is left.
        :raises TypeError: If the model's ``forward`` does not know an argument.
        """
        check_keywords(self.model, kwargs)
        self.predictor.component_indices(names, exclude)  # reports wrong names before any work
        if hyperparameters is not None:
            return checked_models(hyperparameters, self.predictor).components(x, names, exclude, **kwargs)
        return ComponentPosterior(self, self._prepared(x, kwargs), names, exclude)

    @torch.no_grad()
    def predict(
        self,
        x: Tensor,
        components: Sequence[str] | str | bool = True,
        chunk_size: int | None = None,
        exclude: Sequence[str] | str | None = None,
        hyperparameters: WeightedModels | None = None,
        **kwargs: Any,
    ) -> Prediction:
        """
        Means and variances of the predictor and of its components at any number of rows; beside the result, memory does
        not depend on it. Works without gradients, in train and eval mode alike.

        :param x: Inputs ``(*batch, n, D)``, on any device; results are on the device of ``x``.
        :param components: Components whose moments to return: True for all, False for none, or names. They about double
            the time.
        :param chunk_size: Number of rows whose projections are in memory at a time; by default they take a few
            megabytes.
        :param exclude: Components to leave out of the predictor, such as random effects.
        :param hyperparameters: A :class:`~gpytorch_gam.diagnostics.HyperparameterUncertainty` of this model, whose
            uncertainty the moments then include, at the cost of a prediction for each of its points.
        :param kwargs: Further arguments of the model's ``forward`` that are no tensors, because it runs on each chunk.
        :return: The moments, see :class:`Prediction`.
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
        kept = [self.predictor.names[index] for index in self.predictor.component_indices(None, exclude)]
        if isinstance(components, bool | np.bool_):
            names = kept if components else []
        else:
            names = [self.predictor.names[index] for index in self.predictor.component_indices(components)]
        if chunk_size is not None:
            checks.integer("chunk_size", chunk_size, least=1)
        if not torch.is_tensor(x) or x.dim() < 2 or x.shape[-2] == 0:
            self.read(x)  # raises
        if hyperparameters is not None:
            models = checked_models(hyperparameters, self.predictor)
            return models.predict(x, components, chunk_size, exclude, **kwargs)
        self._prepare()
        projection = self._projection_in(torch.float64)  # once for all chunks
        whole = None if names else self._without_others(projection, kept)
        size = self._rows_at_a_time(self._batch_shape_at(x)) * (1 if whole is None else _TIMES_MORE_ROWS)
        chunks = x.split(chunk_size or size, dim=-2)
        if whole is not None:
            return joined((self._predict_whole(rows, whole, kwargs) for rows in chunks), x.shape[-2])
        return joined((self._predict_rows(rows, names, kept, projection, kwargs) for rows in chunks), x.shape[-2])

    def _without_others(self, projection: PosteriorProjection, kept: Sequence[str]) -> PosteriorProjection | None:
        if len(kept) == self.predictor.num_components:
            return projection
        return projection.without_others(self.predictor.component_indices(kept))

    def _batch_shape_at(self, x: Tensor) -> torch.Size:
        """The batch shape of the predictor at rows."""
        return torch.broadcast_shapes(
            x.shape[:-2], self.predictor.batch_shape, self._variational_distribution.batch_shape
        )

    def _rows_at_a_time(self, batch_shape: torch.Size, members: Sequence[Sequence[int]] | None = None) -> int:
        """Rows whose features take a few megabytes: those of the groups of some components, or of all."""
        if members is None:
            numbers, num_inducing = _PREDICTION_NUMBERS, self.predictor.num_inducing_total
        else:
            numbers, groups = _NUMBERS_OF_SUMS, groups_of(self.predictor, members)
            num_inducing = sum(group.num_components * group.num_inducing for group in groups)
        return max(_LEAST_PREDICTION_ROWS, numbers // max(1, batch_shape.numel() * num_inducing))

    @without_autocast
    def _predict_whole(self, x: Tensor, projection: PosteriorProjection, keywords: Mapping[str, Any]) -> Prediction:
        """Moments of the predictors of all components that a projection has."""
        reading = self.read(x.to(self.predictor.device), **keywords)
        return Prediction(self._moments(reading, projection)).to(x.device)

    @without_autocast
    def _predict_rows(
        self,
        x: Tensor,
        names: Sequence[str],
        kept: Sequence[str],
        projection: PosteriorProjection,
        keywords: Mapping[str, Any],
    ) -> Prediction:
        reading = self.read(x.to(self.predictor.device), **keywords)
        parts = ComponentPosterior(self, reading, projections=projection.components(reading.inputs))
        moments = parts[kept].predictor_moments()
        if not names:
            return Prediction(moments).to(x.device)
        chosen = parts[names]
        return Prediction(moments, chosen.names, chosen.mean, chosen.variance).to(x.device)

    @torch.no_grad()
    def predict_sums(
        self,
        x: Tensor,
        sums: Mapping[str, Sequence[str] | str],
        hyperparameters: WeightedModels | None = None,
        **kwargs: Any,
    ) -> SumPrediction:
        """
        Means and variances of sums of components at any number of rows, such as that of the line and the curve of one
        column. It costs what the components of the sums cost by themselves, less than the predictor; where their
        columns have few values, each combination of these is computed once. Beside the result, memory does not depend
        on the number of rows, apart from copies of single columns.

        :param x: Inputs ``(*batch, n, D)``, on any device; results are on the device of ``x``.
        :param sums: For the name of each sum its components.
        :param hyperparameters: A :class:`~gpytorch_gam.diagnostics.HyperparameterUncertainty` of this model, whose
            uncertainty the moments then include.
        :param kwargs: Further arguments of the model's ``forward``.
        :return: The moments, see :class:`~gpytorch_gam.effects.SumPrediction`.
        :raises ValueError: If a component is unknown, or a sum has none.
        :raises TypeError: If ``sums`` is no mapping, or the model's ``forward`` does not know an argument.

        Example:
            >>> model.predict_sums(x, {"age": ["age", "age.line"], "all": model.predictor.names}).mean  # (2, n)
        """
        check_keywords(self.model, kwargs)
        members = self._members(sums)
        if hyperparameters is not None:
            return checked_models(hyperparameters, self.predictor).predict_sums(x, sums, **kwargs)
        moved = x.to(self.predictor.device) if torch.is_tensor(x) else x
        inputs = self._prepared(moved, kwargs).inputs
        projection = self._projection_in(torch.float64)
        batch_shape = self._batch_shape_at(inputs)
        mean, variance = x.new_empty(2, *batch_shape, len(members), x.shape[-2])
        for places in passes(self.predictor, members):
            own = [members[place] for place in places]
            size = self._rows_at_a_time(batch_shape, own)
            found = moments_of_sums(projection.sums(own), inputs, columns_of(self.predictor, own), size)
            mean[..., places, :], variance[..., places, :] = (part.to(x) for part in found)
        return SumPrediction(tuple(sums), mean, variance)

    @torch.no_grad()
    @without_autocast
    def joint_sums(
        self,
        pairs: Sequence[tuple[Tensor, Sequence[str] | str]],
        hyperparameters: WeightedModels | None = None,
        **kwargs: Any,
    ) -> list[JointSum]:
        """
        Sums of components as functions: means, covariances over rows, and draws, for bands that hold whole functions.
        It costs what the components of each sum cost by themselves, and :math:`O(n^3)` for draws; it is meant for grids
        of up to about a thousand rows.

        :param pairs: For each sum its rows, inputs ``(*batch, n, D)``, and the names of its components.
        :param hyperparameters: A :class:`~gpytorch_gam.diagnostics.HyperparameterUncertainty` of this model, whose
            uncertainty the result then includes.
        :param kwargs: Further arguments of the model's ``forward``.
        :return: The sums, see :class:`~gpytorch_gam.effects.JointSum`.
        :raises ValueError: If a component is unknown, or a sum has none.
        :raises TypeError: If these are no pairs, or the model's ``forward`` does not know an argument.

        Example:
            >>> (found,) = model.joint_sums([(grid, ["age", "age.line"])])
            >>> mean, variance = found.moments()  # (n,) each
            >>> found.draws(1000)                 # 1000 x n
        """
        check_keywords(self.model, kwargs)
        members = [self._indices_of(f"pairs[{place}]", names) for place, (_, names) in enumerate(checked_pairs(pairs))]
        if hyperparameters is not None:
            return checked_models(hyperparameters, self.predictor).joint_sums(pairs, **kwargs)
        moved = [x.to(self.predictor.device) if torch.is_tensor(x) else x for x, _ in pairs]
        inputs = [self._prepared(x, kwargs).inputs for x in moved]
        projection = self._projection_in(torch.float64)  # once for all sums
        found = [projection.sum_over_rows(own, rows) for own, rows in zip(members, inputs, strict=True)]
        return [JointSum.of(*(part.to(x.device) for part in own)) for own, (x, _) in zip(found, pairs, strict=True)]

    def _members(self, sums: Mapping[str, Sequence[str] | str]) -> list[list[int]]:
        """The numbers of the components of each sum, after checks."""
        if not isinstance(sums, Mapping) or not sums:
            raise TypeError(
                f"sums must be a mapping from names to components, such as {{'s(x)': ['x0', 'x0.line']}}, got "
                f"{checks.shown(sums)}"
            )
        return [self._indices_of(f"sums[{name!r}]", components) for name, components in sums.items()]

    def _indices_of(self, argument: str, components: Sequence[str] | str) -> list[int]:
        try:
            if components is None:
                raise TypeError("names is None")
            return self.predictor.component_indices(components)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{argument} is not made of components: {error}") from error

    # ------------------------------------------------------------------ calls

    @without_compiler
    def __call__(self, x: Tensor, prior: bool = False, diag: bool = True, **kwargs: Any) -> MultivariateNormal:
        """
        The posterior (or, with ``prior=True``, the prior that the model's ``forward`` returns) of the predictor at the
        rows of ``x``, see :meth:`forward`.

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
        Run the model's ``forward`` (unless it is that of :class:`~gpytorch_gam.AdditiveGP`) to find the inputs that it
        gives the predictor and the prior mean that it returns. Everything that is computed at rows of data goes through
        here.

        :param x: Inputs of the model, ``(*batch, n, D)``.
        :raises ValueError: If the predictor cannot read its inputs, or ``forward`` does anything else.
        :raises TypeError: If ``forward`` does not know an argument.
        """
        self._check_own_kind()
        batch_shape = self._variational_distribution.batch_shape
        if has_own_forward(self.model):
            batch_shape = torch.broadcast_shapes(batch_shape, self.predictor.batch_shape)
        reading = read_rows(self.model, self.predictor, x, batch_shape, self._looks_at_values(x), kwargs)
        if self.training and torch.is_grad_enabled():
            self.predictor.remember_inputs(reading.inputs)
        return reading

    def _prepared(self, x: Tensor, keywords: Mapping[str, Any]) -> Reading:
        """Read the rows and prepare the model for a computation at them."""
        reading = self.read(x, **keywords)
        self._prepare()
        return reading

    def _prepare(self) -> None:
        self._initialize_once()
        if not self.training and isinstance(self._variational_distribution, _PrecisionVariationalDistribution):
            self._variational_distribution.growth_watch.warn_if_growing(self._variational_distribution)

    def check_inputs(self, x: Tensor) -> None:
        """
        Raise a clear error for inputs ``(*batch, n, D)`` that the model cannot read, see
        :meth:`AdditivePredictor.check_inputs`. Inputs that a ``forward`` gives the predictor instead of ``x`` are
        checked when it runs, see :meth:`read`.
        """
        self._check_own_kind()
        if has_own_forward(self.model):
            check_rows(x)
        else:
            self.predictor.check_inputs(x, check_finite=self._looks_at_values(x))

    def remember_inputs(self, x: Tensor) -> None:
        """
        Take the number of columns of data for that of the training, unless one is known, or a ``forward`` gives other
        inputs to the predictor.

        :param x: Inputs ``(*batch, n, D)`` of the training.
        """
        if not has_own_forward(self.model):
            self.predictor.remember_inputs(x)

    def _check_own_kind(self) -> None:
        q, predictor = self._variational_distribution, self.predictor
        if q.dtype != predictor.dtype or q.device != predictor.device:
            raise ValueError(
                f"variational_distribution is {q.dtype} on {q.device}, but the inducing points are "
                f"{predictor.dtype} on {predictor.device}: convert the whole model with model.to(...)"
            )

    def _looks_at_values(self, x: Tensor) -> bool:
        """Whether to look for NaN: that waits for the device, too long for each step of a training loop on a GPU."""
        on_hot_path = self.training and torch.is_tensor(x) and x.device.type != "cpu"
        return gpytorch.settings.debug.on() and not on_hot_path

    def _initialize_once(self) -> None:
        if self._initialized:
            return
        # The buffer counts as well: it may have been filled by hand, or replaced by torch.func.functional_call.
        if not self.variational_params_initialized:
            self._initialize()
            self._mark_initialized()
        self._initialized = True

    def _initialize(self) -> None:
        self._variational_distribution.initialize_variational_distribution(self.prior_distribution)

    def _mark_initialized(self) -> None:
        self._fix_jitter(self.jitter_val)
        self.variational_params_initialized.fill_(1)
        self._initialized = True

    def _fix_jitter(self, jitter_val: float) -> None:
        """Store the jitter, without which the whitened variables initialised with it have no meaning."""
        self._jitter = jitter_val
