r"""
Natural-gradient steps for posteriors with a structured precision.

With :math:`g_n` and :math:`\lambda_n` the scaled derivatives of a row's expected log-likelihood in mean and variance
(times -2), a step of size r moves the precision to (Khan and Lin, 2017; Adam et al., 2021)

.. math::
    I + G, \qquad G = (1 - r) \big(\mathrm{blockdiag}(E_c E_c^\top) + BB^\top\big)
    + r \sum_n \lambda_n \phi_n \phi_n^\top ,

which is brought back to the family, and the mean along :math:`d = P^{-1} (\Phi g - m)`, as far as the batch's quadratic
model and the rows allow. What the data say is kept when the kernels move, and the gradients of the kernels' parameters
are those at a fixed posterior of the inducing variables. The page "Natural gradients" of the documentation derives all
of this, with the sizes of steps, several predictors, costs and several processes: ``docs/theory/natural_gradients.md``.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import gpytorch
import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from gpytorch_gam import _checks as checks
from gpytorch_gam.variational import (
    AdditiveVariationalStrategy,
    BlockLowRankPrecisionVariationalDistribution,
    LowRankPrecisionVariationalDistribution,
)

from ._attached_recorder import AttachedRecorder, pause_in_other_steps
from ._loop_warnings import (
    check_averages,
    is_checked,
    warn_of_curvature,
    warn_of_drift,
    warn_of_order,
    warn_of_rank,
    warn_of_weight,
)
from ._natural_state import NaturalState
from ._step_schedule import StepSchedule
from .posterior.kernel_gradient import correct_gradients
from .posterior.parameters import (
    StructuredDistribution,
    family_of,
    holds_all,
    parameter_values,
    read_posterior,
    validated_strategy,
    write_posterior,
)
from .posterior.posterior import Posterior, effective_dimension, selected, transported
from .posterior.rank import dense_loss, missing_nats, with_enough_columns
from .posterior.step import DENSE_LIMIT, OVERSAMPLING, dense_step, streamed_step, with_directions
from .processes import Processes, start_from_first, step_together
from .rows.batch import Batch, batch_of
from .rows.move_limit import MoveLimit
from .rows.predictors import positive_part, predictor_segments
from .rows.sums import BatchFeatures, RowSums

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

# Number of steps between two checks of whether the rank suffices.
_CHECK_EVERY = 5

# A step that raises the loss of a closure is halved up to six times; a smaller relative increase counts as rounding.
_MAX_HALVINGS, _LOSS_SLACK = 6, 1e-6

# Relative difference of Cholesky factors that is more than rounding, which depends on whether kernels are evaluated
# with gradients, and which a condition number of up to the inverse of the jitter may raise.
_KERNEL_SLACK = 1e-7

# Step of the schedule at which a warm start begins: the step size is a tenth there.
_WARM_STEP = 90


class _ParameterGroup(dict[str, Any]):
    """Refuses torch's schedulers under ``lr=None``, where there is no step size for them to multiply."""

    def setdefault(self, key: str, default: Any = None) -> Any:
        if key == "initial_lr" and default is None and key not in self:
            raise ValueError(
                "this NaturalGradient has a schedule of its own, lr=None, and no step size for a scheduler of torch to "
                "multiply: pass lr=..., or leave out the scheduler"
            )
        return super().setdefault(key, default)


class NaturalGradient(torch.optim.Optimizer):
    """
    Streaming natural gradients for the whitened mean and the structured precision of an additive model, in the manner
    of GPyTorch's :class:`~gpytorch.optim.NGD`: beside an ordinary optimiser for the hyperparameters, whose step, and
    any clipping of gradients, comes after that of this one. The mathematics is in
    :doc:`/theory/natural_gradients`.

    The loss is minus a :class:`~gpytorch.mlls.VariationalELBO`, or a multiple of it, of training forwards with
    gradients (``beta`` tempers the posterior; a loss of your own is followed as it is, and one whose divergence does
    not have the weight 1 / N is warned of). The batch of a step is what was differentiated since the last one, or what
    its closure evaluates. Backward passes before a step add up as gradients do; ``zero_grad`` of this optimiser or of
    the hyperparameters' forgets them, and closures of other optimisers do not count. Gradients are read at the
    predictor and at the divergence, so clipping those of the posterior's parameters has no effect. Prefer batches of
    one size.

    A checkpoint holds the states of model *and* optimiser, at any point of the loop. While it is attached, it takes
    part in training forwards, until :meth:`remove` or the end of a ``with`` block; it cannot be copied or pickled, and
    copies of the model are without it. ``rank="auto"`` is settled in the first step and raised when columns are
    missing; a fixed rank that costs more than ten nats is warned of.

    With a ``process_group``, each process makes the optimiser, after which all have the model of the first one, and
    takes each step with rows of its own, with the same result as one process with all rows. The loss is the average of
    the processes' losses: see :func:`~gpytorch_gam.optim.processes.average_gradients` and
    :func:`~gpytorch_gam.optim.processes.row_weighted`. ``DistributedDataParallel`` wraps one module that holds model
    and likelihood and returns the loss, as in ``examples/distributed_svi.py``; an automatic rank needs its
    ``find_unused_parameters=True``.

    :ivar steepness: How fast the curvature of the likelihood changes with each predictor, ``(P,)``, where it is known
        (:func:`~gpytorch_gam.training.fit` measures it). Steps are then so short that the curvature changes by a factor
        of at most :math:`e^2`, at the rows of the batch and at the inducing points. Default None.
    :param model: A model whose ``variational_strategy`` is an :class:`AdditiveVariationalStrategy` with no batch
        shape, and a block + low-rank or low-rank precision.
    :param num_data: Number N of rows of all the data (not of batches), of all processes, as given to the ELBO.
    :param lr: A fixed step size in (0, 1], which torch's schedulers need; default a schedule.
    :param tolerance: Nats that the noise of minibatches may cost in the long run; without effect under ``lr``.
    :param chunk_size: Rows whose features exist at a time.
    :param warm_start: Start from the present posterior, one that was loaded or set in closed form: the schedule begins
        at a tenth. Otherwise the first step forgets it.
    :param averaging: Average natural parameters instead of holding the step size up, for hyperparameters that stand
        still; excludes ``lr``.
    :param variance_reduction: Take the noise of minibatches out of the gradients of the kernels' parameters.
    :param process_group: Processes that train this model together; default this one alone.
    :raises ValueError: If an argument is out of range, parameters of the posterior do not require gradients, another
        optimiser is attached to the model, or the processes differ in ``num_data`` or in the shape of the posterior.
    :raises TypeError: If model, distribution or ``process_group`` are of another kind.
    :raises NotImplementedError: For batches of models.

    Example:
        >>> with NaturalGradient(model, num_data=len(y)) as natural:
        >>>     for x_batch, y_batch in loader:
        >>>         adam.zero_grad()
        >>>         (-mll(model(x_batch), y_batch)).backward()
        >>>         natural.step()
        >>>         adam.step()
    """

    def __init__(
        self,
        model: gpytorch.models.ApproximateGP,
        num_data: int,
        lr: float | None = None,
        tolerance: float = 1.0,
        chunk_size: int = 8192,
        warm_start: bool = False,
        averaging: bool = False,
        variance_reduction: bool = True,
        process_group: ProcessGroup | None = None,
    ) -> None:
        strategy = validated_strategy(model, StructuredDistribution, several_predictors=True)
        checks.integer("num_data", num_data, least=1)
        checks.number("lr", 1 if lr is None else lr, above=0, most=1)
        checks.number("tolerance", tolerance, above=0)
        for name, value in (
            ("warm_start", warm_start),
            ("averaging", averaging),
            ("variance_reduction", variance_reduction),
        ):
            checks.flag(name, value)
        if averaging and lr is not None:
            raise ValueError(f"averaging=True is a schedule of the step size and takes no lr, got lr={lr!r}")
        checks.integer("chunk_size", chunk_size, least=1)
        self._strategy: AdditiveVariationalStrategy = strategy
        self._distribution: BlockLowRankPrecisionVariationalDistribution | LowRankPrecisionVariationalDistribution = (
            strategy._variational_distribution
        )
        self._require_free_posterior()
        self._num_data, self._chunk_size = int(num_data), chunk_size
        self._processes = Processes(process_group)
        self._processes.require_equal({"num_data": self._num_data}, self._distribution.device)
        start_from_first(self._processes, strategy, [model])
        super().__init__(
            list(self._distribution.parameters()),
            {"lr": lr, "tolerance": tolerance, "averaging": averaging, "variance_reduction": variance_reduction},
        )
        self.param_groups = [_ParameterGroup(group) for group in self.param_groups]
        self.steepness: Tensor | None = None
        self._own = NaturalState()
        if warm_start:
            self.begin_at(_WARM_STEP)
        self._missing_nats = 0.0  # nonzero only in steps that check the rank
        self._segments = predictor_segments(strategy.predictor)
        watched = [self._distribution.variational_mean, *model.hyperparameters()]  # the factors are large
        recorder = AttachedRecorder(self._follow_kernels, self._present_parameters, self._num_data, watched)
        handles = strategy.register_training_hooks(recorder), pause_in_other_steps(recorder, weakref.ref(self))
        self._recorder, self._release = recorder, weakref.finalize(self, _remove_all, handles)

    @torch.no_grad()
    def begin_at(self, step: int) -> None:
        """
        Begin with the present posterior, of which the first step then keeps a part.

        :param step: The step t > 0 of the schedule, see :doc:`/theory/natural_gradients`: 90 for a posterior
            that has seen all data, 10 for a rough guess.
        """
        checks.integer("step", step, least=1)
        dimension = effective_dimension(self._distribution.covariance_factors())
        self._own = NaturalState(step=step, effective_dimension=dimension)

    def __enter__(self) -> NaturalGradient:
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()

    def remove(self) -> None:
        """
        Take no further part in the forwards of the model, and leave it with the posterior under its present kernels.
        The optimiser cannot step after that.
        """
        try:
            if self._is_attached:
                self._strategy.prepare_training()
        finally:
            self._release()
            self._recorder.take()

    @property
    def _is_attached(self) -> bool:
        return self._strategy.training_hooks is self._recorder

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """
        Move mean and precision by the batch of all forwards since the last step.

        :param closure: Zeroes gradients, evaluates the model, calls ``backward`` and returns the loss. It is evaluated
            again after the step: one that does not lower the loss of its own batch is halved, a few times, and at last
            left out. Gradients of hyperparameters are then those at the new posterior.
        :return: What the closure returned at first.
        :raises RuntimeError: If the model was not called in train mode with gradients since the last step, ``backward``
            has not run or not reached the divergence, a gradient is not finite in any process, or the new precision
            cannot be factorised. The parameters are then as before, also with the following errors.
        :raises ValueError: If there are more rows than ``num_data``, the objective has another ``num_data``, the loss
            has the wrong sign, or parameters of the posterior do not require gradients.
        :raises TypeError: If the objective is no bound with an expected log-likelihood.
        :raises NotImplementedError: If the inputs had a batch shape.
        """
        if torch.is_inference_mode_enabled():
            raise RuntimeError("step() needs gradients, which torch.inference_mode() rules out: call it outside")
        if not self._is_attached:
            raise RuntimeError("this NaturalGradient was removed from its model: make a new one")
        self._require_free_posterior()
        check_averages(self._own, self._distribution)
        result: Any = None
        if closure is not None:
            before = self._recorder.take()  # what other losses left: the closure alone is the batch
            result = self._evaluate(closure)
            if not self._recorder.num_forwards:  # wrappers of optimisers pass closures that do nothing
                self._recorder.put(before)
                closure = None
        batch = self._take_batch()
        warn_of_weight(self._own, batch, self._num_data, self._processes)
        with torch.set_grad_enabled(self.param_groups[0]["variance_reduction"]):
            choleskys = self._strategy.inducing_choleskys()
        if is_checked(self._own) and self._processes.leads:
            warn_of_order(self._own, self._have_moved(choleskys))
        warn_of_drift(self._own, self._strategy.predictor, self._processes)
        if closure is None:
            features = self._features(batch, choleskys)
            self._correct_gradients(batch, features, choleskys)
            self._update(batch, features, choleskys)
        else:
            self._update_if_the_loss_falls(batch, closure, self._loss_of_all(result), choleskys)
        warn_of_curvature(self._own, batch, self._processes)
        warn_of_rank(self._own, self._distribution.rank, self._missing_nats)
        return result

    def _require_free_posterior(self) -> None:
        fixed = [name for name, each in self._distribution.named_parameters() if not each.requires_grad]
        if fixed:
            raise ValueError(
                f"NaturalGradient moves the whole posterior, but {', '.join(fixed)} of the variational distribution "
                "do not require gradients: call requires_grad_(True) on them, or take no natural-gradient steps while "
                "the posterior is to stay as it is"
            )

    def _evaluate(self, closure: Callable[[], Any]) -> Any:
        with torch.enable_grad(), self._recorder.recording(True):
            return closure()

    def _take_batch(self) -> Batch:
        recorded, device = self._recorder.take(), self._distribution.device
        return batch_of(recorded, self._num_data, self._own.step, self._processes, device)

    def _loss_of_all(self, loss: Any) -> float:
        own = torch.as_tensor(loss, dtype=torch.float64, device=self._distribution.device)
        return self._processes.sum([own])[0].item() / self._processes.size

    # ------------------------------------------------------------------ a step

    @property
    def _schedule(self) -> StepSchedule:
        group = self.param_groups[0]
        return StepSchedule(
            group["lr"], group["averaging"], group["tolerance"], self._num_data, self._has_several_predictors
        )

    def _step_size(self, num_rows: int) -> Tensor:
        """The size of a step on ``num_rows`` rows, a float64 scalar on the model's device."""
        own, schedule = self._own, self._schedule
        if schedule.lr is None and not schedule.forgets(own.step, num_rows):
            own.largest_batch = max(own.largest_batch, num_rows)
        size = schedule.size(own.step, num_rows, own.largest_batch, own.effective_dimension)
        return torch.as_tensor(size, dtype=torch.float64, device=self._distribution.device)

    @property
    def _has_several_predictors(self) -> bool:
        return self._strategy.predictor.num_predictors > 1

    def _update_if_the_loss_falls(
        self, batch: Batch, closure: Callable[[], Any], loss: float, choleskys: list[Tensor]
    ) -> None:
        q, features = self._distribution, self._features(batch, choleskys)
        before, own = deepcopy(q.state_dict()), replace(self._own)
        for attempt in range(_MAX_HALVINGS):
            self._update(batch, features, choleskys, scale=0.5**attempt)
            after = self._loss_of_all(self._evaluate(closure))
            again = self._take_batch()
            if after <= loss + _LOSS_SLACK * abs(loss):
                break
            q.load_state_dict(before)
            self._own = replace(own)
        else:
            self._evaluate(closure)
            again = self._take_batch()
        self._correct_gradients(again, self._features(again, choleskys), choleskys)

    def _features(self, batch: Batch, choleskys: list[Tensor]) -> BatchFeatures:
        rows = batch.x, batch.gradients, batch.curvatures
        features = partial(self._strategy.predictor.features, choleskys=choleskys)
        return BatchFeatures(features, *rows, self._chunk_size, self._segments, self._move_limit(choleskys))

    def _move_limit(self, choleskys: Sequence[Tensor]) -> MoveLimit | None:
        if self.steepness is None:
            return None
        owners = [group.predictor_index for group in self._strategy.predictor.groups]
        return MoveLimit(self.steepness, [factor.detach().double() for factor in choleskys], owners)

    def _correct_gradients(self, batch: Batch, features: BatchFeatures, choleskys: list[Tensor]) -> None:
        """Correct the hyperparameters' gradients, which were computed at the posterior of the forward."""
        if not self.param_groups[0]["variance_reduction"]:
            return
        chunks = batch.gradients.split(self._chunk_size), batch.curvatures.split(self._chunk_size)
        rows = (chunk.features for chunk in features.chunks())
        factors = self._distribution.covariance_factors()
        predictor, weight = self._strategy.predictor, batch.divergence_weight
        totals = features.totals(predictor.group_shapes) if features.are_taken_as_they_are else None
        correct_gradients(predictor, factors, choleskys, rows, *chunks, weight, self._processes, totals)

    def _update(self, batch: Batch, features: BatchFeatures, choleskys: list[Tensor], scale: float = 1.0) -> None:
        self._forget_foreign_posterior()
        num_rows, forgets = batch.num_rows, scale == 1 and self._schedule.forgets(self._own.step, batch.num_rows)
        rate, old = scale * self._step_size(num_rows), with_directions(self._posterior())
        self._missing_nats = 0.0
        try:
            posterior = step_together(
                self._processes, features, old, lambda sums: self._natural_step(old, sums, num_rows, rate, forgets)
            )
        except torch.linalg.LinAlgError as error:
            raise RuntimeError(
                "the likelihood's curvature is out of all proportion at this posterior, which is far from the data: "
                f"start from narrower priors, or a mean module near them, and bring it back with polish ({error})"
            ) from error
        self._follow_first_process()
        self._store(posterior, choleskys)
        self._own.step += 1

    def _follow_first_process(self) -> None:
        """Take over the state that the first process reached by its step; the posterior is sent separately."""
        if self._processes.is_alone:
            return
        q, own = self._distribution, self._own
        if own.effective_dimension is None or not self._processes.leads:
            own.effective_dimension = torch.zeros((), dtype=torch.float64, device=q.device)
        self._processes.broadcast([own.effective_dimension])
        ((is_settled,), *_) = self._processes.gather([q._rank_is_settled], q.device)
        q._rank_is_settled = bool(is_settled)

    def _natural_step(self, old: Posterior, features: RowSums, num_rows: int, rate: Tensor, forgets: bool) -> Posterior:
        if forgets and len(old.mean) <= DENSE_LIMIT:
            return self._dense_step(old, features)
        q = self._distribution
        step = streamed_step(old, features, rate, family_of(q), forgets)
        dimension = self._own.effective_dimension = effective_dimension(step.factors)
        if q.rank == 0 or not self._looks_at_the_rank():
            return step.posterior
        # Directions beyond B seem to gain when there is nothing: in coordinates in which the precision is the identity,
        # the largest eigenvalues of a batch are off by about 2 sqrt(d / b), and each gains a quarter of its square.
        noise = OVERSAMPLING * dimension.item() / num_rows * (1 - min(1.0, num_rows / self._num_data))
        noise *= family_of(q).has_blocks
        if q.rank_tolerance is not None:
            return with_enough_columns(step, family_of(q), q.rank_tolerance + noise)
        self._missing_nats = missing_nats(step, family_of(q)) - noise
        return step.posterior

    def _dense_step(self, old: Posterior, features: RowSums) -> Posterior:
        q, is_first = self._distribution, self._own.step == 0
        gram, projected = features.gram()
        if self._has_several_predictors:
            gram = positive_part(gram)
        if q.rank_tolerance is not None and (is_first or self._looks_at_the_rank()):
            q.settle_rank(gram)
        step = dense_step(old, features, gram, projected, family_of(q), is_first)
        self._own.effective_dimension = effective_dimension(step.factors)
        if q.rank and q.rank_tolerance is None and self._looks_at_the_rank():
            self._missing_nats = dense_loss(gram, step.posterior, family_of(q)).item()
        return step.posterior

    def _looks_at_the_rank(self) -> bool:
        """Whether this step checks the rank: only some do, because the check waits for the device."""
        return (self._own.step + 1) % _CHECK_EVERY == 0

    # ------------------------------------------------------------------ the posterior under moving kernels

    def _posterior(self) -> Posterior:
        """The posterior that the parameters describe, with the parts in the state that the distribution cannot hold."""
        q, own = self._distribution, self._own
        posterior = read_posterior(q, self._strategy.predictor.group_shapes)
        if self._is_foreign():
            return posterior
        blocks = posterior.block_factors if own.block_factors is None else own.block_factors
        # Unless B was given more columns.
        is_wide = own.directions is not None and own.directions.shape[-1] >= min(q.rank + 1, q.num_inducing_points)
        return posterior._replace(block_factors=blocks, directions=own.directions if is_wide else None)

    def _is_foreign(self) -> bool:
        """Whether the posterior was loaded or set from outside; then it belongs to the present kernels."""
        written, mean = self._own.mean, self._distribution.variational_mean
        return written is not None and not torch.equal(written.to(mean), mean)

    def _forget_foreign_posterior(self) -> None:
        if self._is_foreign():
            self._own.forget_posterior()
            self._own.num_foreign += 1

    def _have_moved(self, choleskys: Sequence[Tensor]) -> bool:
        """Whether the kernels differ from those that the posterior belongs to."""
        before = self._own.choleskys
        return before is not None and not bool(_agree(before, choleskys))

    @torch.no_grad()
    def _follow_kernels(self, choleskys: Sequence[Tensor]) -> None:
        """Transport the posterior to the present kernels if they have moved since the last step or training forward."""
        self._forget_foreign_posterior()
        choleskys = [cholesky.detach() for cholesky in choleskys]
        before = self._own.choleskys
        if before is None:
            self._own.choleskys = choleskys
        elif choleskys[0].is_cuda and self._strategy.training:  # comparing values would wait for the device
            are_same, posterior = _agree(before, choleskys), self._posterior()
            posterior = selected(are_same, posterior, transported(posterior, before, choleskys))
            pairs = zip(before, choleskys, strict=True)
            self._store(posterior, [torch.where(are_same, old, new) for old, new in pairs])
        elif self._have_moved(choleskys):
            self._store(transported(self._posterior(), before, choleskys), choleskys)

    def _present(self, choleskys: Sequence[Tensor] | None = None) -> tuple[Posterior, Sequence[Tensor]] | None:
        """The posterior under the present kernels, and their factors; None if they have not moved. Writes nothing."""
        if self._own.choleskys is None or self._is_foreign():
            return None
        if choleskys is None:
            with torch.enable_grad():  # so that kernels evaluate to the same bits as in forwards
                choleskys = self._strategy.inducing_choleskys()
        choleskys = [cholesky.detach() for cholesky in choleskys]
        if not self._have_moved(choleskys):
            return None
        return transported(self._posterior(), self._own.choleskys, choleskys), choleskys

    @torch.no_grad()
    def _present_parameters(self, choleskys: Sequence[Tensor] | None = None) -> dict[str, Tensor] | None:
        present = self._present(choleskys)
        return None if present is None else parameter_values(self._distribution, present[0])

    def _store(self, posterior: Posterior, choleskys: Sequence[Tensor]) -> None:
        write_posterior(self._distribution, posterior)
        self.param_groups[0]["params"] = list(self._distribution.parameters())  # B may have been replaced
        self._own = self._state_with(posterior, choleskys, self._distribution.variational_mean)

    def _state_with(self, posterior: Posterior, choleskys: Sequence[Tensor], mean: Tensor) -> NaturalState:
        return replace(
            self._own,
            mean=mean.detach().clone(),
            choleskys=[cholesky.detach() for cholesky in choleskys],
            directions=posterior.directions,
            block_factors=None if holds_all(self._distribution) else posterior.block_factors,
        )

    # ------------------------------------------------------------------ checkpoints

    @torch.no_grad()
    def state_dict(self) -> dict[str, Any]:
        """The state under the present kernels, which goes with a ``model.state_dict()`` taken at the same time."""
        own, present = self._own, self._present()
        if present is not None:
            mean = parameter_values(self._distribution, present[0])["variational_mean"]
            own = self._state_with(*present, mean)
        return {**super().state_dict(), "state": {0: own.as_dict()}}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """
        Restore a state exactly.

        :param state_dict: The result of :meth:`state_dict` of an optimiser of an equal model.
        :raises ValueError: If it is the state of another optimiser.
        """
        own = NaturalState.from_dict(state_dict["state"].get(0), self._distribution.device)
        super().load_state_dict({**state_dict, "state": {}})
        self.param_groups = [_ParameterGroup(group) for group in self.param_groups]
        self._own = own

    def __getstate__(self) -> NoReturn:
        raise TypeError(
            "a NaturalGradient belongs to its model and cannot be copied or pickled: make one for the other model, and "
            "load the state with load_state_dict(...)"
        )


def _remove_all(handles: Sequence[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()


def _agree(old: Sequence[Tensor], new: Sequence[Tensor]) -> Tensor:
    """Whether Cholesky factors ``(..., M, M)`` are equal up to rounding, so that the kernels are the same, ``()``."""
    differences = [
        ((a - b).abs().amax((-2, -1)) <= _KERNEL_SLACK * b.abs().amax((-2, -1))).all()
        for a, b in zip(old, new, strict=True)
    ]
    return torch.stack(differences).all()
