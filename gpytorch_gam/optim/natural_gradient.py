"""Natural-gradient steps for posteriors with a structured precision."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import gpytorch
import torch
from gpytorch.mlls import MarginalLogLikelihood, VariationalELBO
from torch import Tensor
from torch.autograd import Variable
from torch.optim.optimizer import register_optimizer_step_pre_hook

from gpytorch_gam import _checks as checks
from gpytorch_gam.likelihoods.expected_gradients import curvature_of
from gpytorch_gam.variational import (
    AdditiveVariationalStrategy,
    BlockLowRankPrecisionVariationalDistribution,
    LowRankPrecisionVariationalDistribution,
)
from gpytorch_gam.variational.forward_recorder import DivergenceRecord, ForwardRecorder, Recorded
from gpytorch_gam.warnings import CurvatureWarning, RankWarning, TrainingLoopWarning

from ._gradient_watch import GradientWatch
from .posterior.kernel_gradient import correct_gradients
from .posterior.parameters import (
    StructuredDistribution,
    family_of,
    holds_all,
    read_posterior,
    validated_strategy,
    write_posterior,
)
from .posterior.posterior import Posterior, effective_dimension, transported
from .posterior.rank import NOTABLE_LOSS, dense_loss, missing_nats, with_enough_columns
from .posterior.step import DENSE_LIMIT, OVERSAMPLING, dense_step, streamed_step
from .processes import Processes, start_from_first, step_together
from .rows.predictors import Segment, positive_part, predictor_segments
from .rows.sums import BatchFeatures, RowSums

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

# Steps between two looks at whether the rank suffices.
_CHECK_EVERY = 5

# Steps after which the step size has fallen to a half: by default, and when natural parameters are averaged.
_HALVING, _AVERAGING_HALVING = 10.0, 3.0

# Steps whose curvature is looked at, and rows that they must have for a verdict.
_NUM_CHECKED, _NUM_ROWS = 5, 50

# Frames from a method that step() calls to the caller of step(): torch wraps it twice.
_USER_LEVEL = 5

# Halvings of a step that does not lower the loss of a closure, by more than this share of it.
_MAX_HALVINGS, _LOSS_SLACK = 6, 1e-6

# Least size of a step that sees all rows, with several predictors: the full steps that one predictor takes are too
# long where log-likelihoods are not concave.
_LEAST_JOINT_STEP = 0.3

# Relative difference of the weight of the divergence from 1 / num_data that is more than rounding.
_WEIGHT_SLACK = 1e-3

# Relative difference of Cholesky factors that is more than rounding, which depends on whether kernels are evaluated
# with gradients, and which a condition number of up to the inverse of the jitter may raise.
_KERNEL_SLACK = 1e-7

# Objectives whose data term is no expected log-likelihood.
_OTHER_OBJECTIVES = (
    gpytorch.mlls.PredictiveLogLikelihood,
    gpytorch.mlls.GammaRobustVariationalELBO,
    gpytorch.mlls.DeepPredictiveLogLikelihood,
)

# Where the schedule starts for a posterior that is worth keeping: at a step size of a tenth.
_WARM_STEP = 90


class _Batch(NamedTuple):
    """This process's rows since the last step, and the scaled gradients of their expected log-likelihood."""

    x: Tensor  # (b, D)
    gradients: Tensor  # g_n, (b, P), float64
    curvatures: Tensor  # lambda_n, (b, P, P), float64, indefinite where the likelihood is not log-concave
    num_rows: int  # of all processes
    divergence_weight: float  # in the average of the losses of all processes
    is_whole_elbo: bool  # whether that is in GPyTorch's proportion to the data's


class _Rows(NamedTuple):
    """Derivatives of this process's loss, as backward passes have left them."""

    x: Tensor  # (b, D)
    gradients: Tensor  # in the means, (b, P), float64
    curvatures: Tensor  # in their covariance, (b, P, P)
    divergence_weight: float  # that in the divergence


class _ParameterGroup(dict[str, Any]):
    """A group of torch's optimisers that tells torch's schedulers where there is no step size for them to multiply."""

    def setdefault(self, key: str, default: Any = None) -> Any:
        if key == "initial_lr" and default is None and key not in self:
            raise ValueError(
                "this NaturalGradient has a schedule of its own, lr=None, and no step size for a scheduler of torch to "
                "multiply: pass lr=..., or leave out the scheduler"
            )
        return super().setdefault(key, default)


class NaturalGradient(torch.optim.Optimizer):
    r"""
    Streaming natural gradients for the whitened mean and the structured precision of an additive model, in the manner
    of GPyTorch's :class:`~gpytorch.optim.NGD`: beside an ordinary optimiser for the hyperparameters.

    With :math:`s = N / b` for a batch of b rows, and :math:`g_n, \lambda_n` the scaled derivatives of a row's expected
    log-likelihood, :math:`s\, \partial E_n / \partial \mathrm{mean}_n` and
    :math:`\max(0, -2 s\, \partial E_n / \partial \mathrm{var}_n)`, a natural-gradient step of size r moves the
    precision to (Khan and Lin, 2017; Adam et al., 2021)

    .. math::
        I + G, \qquad G = (1 - r) \big(\mathrm{blockdiag}(E_c E_c^\top) + BB^\top\big)
        + r \sum_n \lambda_n \phi_n \phi_n^\top ,

    which has to be brought back to the family (as in SLANG, Mishkin et al., 2018, for a diagonal and a low-rank part).
    The new :math:`B` is the best factor of rank R in coordinates in which :math:`I + (1 - r)\,
    \mathrm{blockdiag}(E_c E_c^\top)` is the identity, found by a subspace iteration that starts at the last one, and
    the new blocks :math:`E_c E_c^\top` are what it leaves of the diagonal blocks of G; a Nyström form makes them
    positive semidefinite by construction. So the diagonal blocks of the precision are always those of G. In the
    paper's family, which has no blocks, and under a ``block_rank``, the optimiser keeps what the family cannot hold in
    its state: for later steps, and to precondition the mean's. The mean moves along

    .. math::
        d = P^{-1} (\Phi g - m), \qquad m \leftarrow m + r \alpha d, \qquad
        \alpha = \min\Big(1, \frac{d^\top (\Phi g - m)}{d^\top d + \sum_n \lambda_n (\phi_n^\top d)^2}\Big) ,

    :math:`\alpha` being the maximiser of the batch's quadratic model along d. It keeps the mean from diverging where
    components overlap more than R columns can express (where it also converges slowly: R = 0 under strongly
    correlated inputs). Nor does the predictor move by more than three prior standard deviations in any row in a step:
    far from the optimum, curvatures do not say where it is. Steps with a closure are checked against its loss as well.

    **Moving kernels.** What the data say is a factor in the inducing variables :math:`u = Lv` themselves. Before each
    forward, when the hyperparameters have changed since the last step, the optimiser keeps that factor and not the
    whitened parameters (the dual parametrisation of Adam et al., 2021): otherwise a change of an output scale by one
    percent alone would put the mean several nats off.

    **Gradients of hyperparameters.** ``step`` also turns the ``grad`` of the kernels' parameters from that at a fixed
    posterior of the whitened variables to that at a fixed posterior of the inducing variables. At the optimal posterior
    both have the same expectation, but the second hardly depends on the batch. So take the step of the
    hyperparameters' optimiser, and clip gradients, after this one. ``variance_reduction=False`` leaves the gradients
    alone.

    **Step size.** At a constant step r the noise of the batches costs :math:`\tfrac{r}{4} (N/b - 1) d_{\text{eff}}`
    nats (effective dimension :math:`d_{\text{eff}} = \mathrm{tr}(I - P^{-1})`; sampling without replacement). By
    default :math:`r = 1 / (1 + t / 10)` in step t = 0, 1, ..., but not below the step at which that cost is
    ``tolerance``, so that it goes on following the hyperparameters. When a step sees all rows, r is 1: the optimum of
    a Gaussian likelihood is then reached in one step, up to the family. ``lr`` fixes the step size instead, also for
    torch's schedulers, which multiply it. ``averaging`` lets :math:`r = 1 / (1 + t / 3)` fall without end: the natural
    parameters are then an average over those of all batches, with weights that grow like :math:`t^2`, and the noise
    dies out. It is for hyperparameters that stand still (or end with :func:`polish`, which has no noise at all).

    **Rank.** ``rank="auto"`` is settled in the first step and raised when columns are missing. A fixed rank that costs
    more than ten nats is warned of once.

    **Several predictors.** Then :math:`g_n` is a vector and :math:`\lambda_n` a :math:`P \times P` matrix,
    :math:`-2 s\, \partial E_n / \partial \mathrm{cov}_n`, and the features of a component act on its predictor alone.
    Likelihoods with a scale are not jointly log-concave: in single rows this matrix is indefinite. Steps on minibatches
    keep its diagonal and shrink its correlations as far as need be; steps of size 1 with a dense matrix, as those of
    :func:`polish`, take it as it is, because its sum over all rows is positive definite where the data say something.
    After the first step, those that see all rows have a size of at least .3 and not of 1, which would be too long.

    **Several processes.** With a ``process_group``, processes train one model together, each with its own rows of every
    step, and with the same result as one process with all of these rows. The loss is the average of the processes'
    losses, which is what ``DistributedDataParallel`` and :func:`average_gradients` differentiate; where processes have
    unequal numbers of rows, :func:`row_weighted` makes that average the loss of all rows. ``num_data`` counts the rows
    of all processes. The first process takes the steps, from sums to which all contribute, and the others receive its
    posterior, bit by bit. So every process has to make the optimiser, after which all have the parameters and buffers
    of the first one's model, and to take each step, for which it needs rows (``DistributedSampler`` sees to that). An
    error in the rows of one is an error in all. The first process alone warns. The messages of a step hold
    :math:`O(Q (R + M))` numbers each, whatever the number of rows. ``DistributedDataParallel`` wraps one module that
    holds model and likelihood and returns the loss, as in ``examples/distributed_svi.py``: GPyTorch's objectives pass
    by the wrapper of a likelihood that is wrapped by itself. An automatic rank needs ``find_unused_parameters=True``.

    Cost of a step beside that of the ELBO and its gradients: evaluating the features of the batch once (Q numbers a
    row; if the batch is larger than ``chunk_size`` four times), and :math:`O(Q (b + R)(R + M))`, all in float64. Linear
    in the number of components. A step with r = 1 forms a dense :math:`Q \times Q` matrix while Q is at most 512, and
    evaluates the features of a batch above ``chunk_size`` up to fifteen times beyond that.

    Use it with :class:`~gpytorch.mlls.VariationalELBO` in a training forward with gradients, the loss being minus the
    objective. Prefer batches of one size (``drop_last=True``). It reads the gradients at the predictor and at the
    divergence, and not those of its own parameters, so clipping these does not reach it. What the data say is weighed
    against the divergence: a loss that is a multiple of minus the ELBO, by a sum over the rows or a loss scaler, has
    the same steps; ``beta`` tempers the posterior; a loss of your own is followed as it is, and one whose divergence
    does not have the weight 1 / N is warned of. Objectives without an expected log-likelihood, such as
    :class:`~gpytorch.mlls.PredictiveLogLikelihood`, are refused.

    The batch of a step is what was differentiated since the last one, or what its closure evaluates. Several forward
    and backward passes before a step count as one batch, as their gradients add up; divide each loss by their number
    for the other optimiser. As for gradients, ``zero_grad`` before another backward pass (of this optimiser or of the
    hyperparameters') forgets what was differentiated. Evaluations of other optimisers' closures do not count. A
    checkpoint needs the states of model *and* optimiser: the latter knows the kernels that the posterior belongs to. It
    cannot be copied or pickled itself.

    While it is attached, the strategy records each training forward with gradients until the next step; detach it by
    :meth:`detach`. Copies and pickles of the model are not attached.

    :param model: A model whose ``variational_strategy`` is an :class:`AdditiveVariationalStrategy` with no batch
        shape, and a :class:`BlockLowRankPrecisionVariationalDistribution` or
        :class:`LowRankPrecisionVariationalDistribution`.
    :param num_data: Number N of rows of all the data (not of batches), as given to the ELBO.
    :param lr: A fixed step size in (0, 1], which torch's schedulers need; default the schedule above.
    :param tolerance: Nats that the noise of minibatches may cost in the long run; without effect under ``lr``.
    :param chunk_size: Rows whose features exist at a time.
    :param warm_start: Start from the present posterior, one that was loaded or set in closed form: the schedule begins
        at a tenth. Otherwise the first step forgets it.
    :param averaging: Average natural parameters instead of holding the step size up; excludes ``lr``.
    :param variance_reduction: Take the noise of minibatches out of the gradients of the kernels' parameters.
    :param process_group: The processes that train this model together, such as ``torch.distributed.group.WORLD``;
        default this process alone, also where others train models of their own.
    :raises ValueError: If an argument is out of range, parameters of the posterior do not require gradients, another
        optimiser is attached to the model, or the processes differ in ``num_data`` or in the shape of the posterior.
    :raises TypeError: If model, distribution or ``process_group`` are of another kind.
    :raises NotImplementedError: For batches of models.

    Example:
        >>> mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(y))
        >>> natural = NaturalGradient(model, num_data=len(y))
        >>> adam = torch.optim.Adam([*model.hyperparameters(), *likelihood.parameters()], lr=0.03)
        >>> for x_batch, y_batch in loader:
        >>>     adam.zero_grad()
        >>>     loss = -mll(model(x_batch), y_batch)
        >>>     loss.backward()
        >>>     natural.step()
        >>>     adam.step()
    """

    _strategy: AdditiveVariationalStrategy
    _distribution: BlockLowRankPrecisionVariationalDistribution | LowRankPrecisionVariationalDistribution
    _num_data: int
    _chunk_size: int
    _processes: Processes
    _segments: tuple[Segment, ...]
    _recorder: _AttachedRecorder
    _stop_pausing: Callable[[], Any]

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
        attached = strategy._recorder
        if isinstance(attached, _AttachedRecorder) and attached.owner() is not None:
            raise ValueError("model has a NaturalGradient attached: call its detach() before attaching another")
        self._strategy, self._distribution = strategy, strategy._variational_distribution
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
        if warm_start:
            self._start_from_present_posterior()
        self._segments = predictor_segments(strategy.predictor)
        self._recorder = strategy._recorder = _AttachedRecorder(self)
        self._stop_pausing = _pause_in_other_steps(self)

    @torch.no_grad()
    def _start_from_present_posterior(self) -> None:
        factors = self._distribution.covariance_factors()
        self._memory["step"] = _WARM_STEP
        self._memory["effective_dimension"] = effective_dimension(factors)

    def detach(self) -> None:
        """
        Stop recording the forwards of the model, and leave it with the posterior for its present kernels. The optimiser
        cannot step after that.
        """
        if self._strategy._recorder is self._recorder:
            self._follow_kernels()
            self._strategy._recorder = None
        self._stop_pausing()
        self._recorder.take()

    @property
    def _memory(self) -> dict[str, Any]:
        """The state, kept with the mean: torch knows state by parameter."""
        return self.state[self._distribution.variational_mean]

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
        if self._strategy._recorder is not self._recorder:
            raise RuntimeError("this NaturalGradient is detached from its model: make a new one")
        self._require_free_posterior()
        self._require_no_average_of_factors()
        result: Any = None
        if closure is not None:
            before = self._recorder.take()  # of other losses: the closure is the batch
            result = self._evaluate(closure)
            if not self._recorder.num_forwards:  # wrappers of optimisers pass closures that do nothing
                self._recorder.put(before)
                closure = None
        batch = self._take_batch()
        self._warn_if_weight_is_unexplained(batch)
        with torch.set_grad_enabled(self.param_groups[0]["variance_reduction"]):
            choleskys = self._strategy.inducing_choleskys()
        self._warn_if_out_of_order(choleskys)
        self._warn_if_processes_differ()
        if closure is None:
            features = self._features(batch, choleskys)
            self._correct_gradients(batch, features, choleskys)
            self._update(batch, features, choleskys)
        else:
            self._update_if_the_loss_falls(batch, closure, self._loss_of_all(result), choleskys)
        self._warn_if_curvature_is_negative(batch)
        self._warn_if_rank_is_small()
        return result

    def _require_free_posterior(self) -> None:
        fixed = [name for name, each in self._distribution.named_parameters() if not each.requires_grad]
        if fixed:
            raise ValueError(
                f"NaturalGradient moves the whole posterior, but {', '.join(fixed)} of the variational distribution "
                "do not require gradients: call requires_grad_(True) on them, or take no natural-gradient steps while "
                "the posterior is to stay as it is"
            )

    def _require_no_average_of_factors(self) -> None:
        """Factors of a precision are drawn anew in each step: their average is not that of the precisions."""
        q, memory = self._distribution, self._memory
        if q._averaged_by is None or q._averaged_by() is None:
            return
        if q.rank_tolerance is not None and not q._rank_is_settled:
            raise ValueError(
                "AveragedModel has a copy of the posterior whose automatic rank is not settled, and whose shapes will "
                "not be those of the model: make it after the first step, or give the posterior a rank"
            )
        if not memory.get("has_warned_of_averages"):
            memory["has_warned_of_averages"] = True
            warnings.warn(
                "AveragedModel averages the factors of the posterior's precision, which says nothing of the average "
                "posterior when each step factorises anew: use its hyperparameters, and give them their posterior by "
                "polish(averaged.module, ...), or average natural parameters by averaging=True instead",
                TrainingLoopWarning,
                stacklevel=_USER_LEVEL,
            )

    def _evaluate(self, closure: Callable[[], Any]) -> Any:
        with torch.enable_grad(), self._recorder.recording():
            return closure()

    def _take_batch(self) -> _Batch:
        """The rows of all forwards since the last step. An error of one process is one of all: none waits for ever."""
        rows, error, recorded = None, None, self._recorder.take()
        try:
            self._check_objectives(recorded.divergences)
            rows = _joined(recorded)
        except (RuntimeError, NotImplementedError, ValueError, TypeError) as caught:
            error = caught
        state = [-1 if rows is None else len(rows.x), self._memory.get("step", 0)]
        counts, steps = zip(*self._processes.gather(state, self._distribution.device), strict=True)
        if error is not None:
            raise error
        assert rows is not None
        if min(counts) < 0:
            raise RuntimeError(
                f"process {counts.index(min(counts))} of process_group has no gradients for this step: see its error"
            )
        if len(set(steps)) > 1:
            raise RuntimeError(
                f"the processes of process_group have taken {list(steps)} steps: load a state in all of them, and step "
                "in all as often"
            )
        if min(counts) == 0 and not self._processes.is_alone:
            raise RuntimeError(f"the processes of process_group have {list(counts)} rows in this step: each needs some")
        self._check_number_of_rows(sum(counts))
        weight = self._weight_of_all(rows.divergence_weight)
        # Of the bound with the divergence as it is, summed over all rows.
        scale = 1.0 / (self._processes.size * weight)
        gradients, curvatures = -scale * rows.gradients, curvature_of(rows.curvatures, 2 * scale)
        is_whole = all(_is_whole_elbo(record.objective) for record in recorded.divergences)
        return _Batch(rows.x, gradients, curvatures, sum(counts), weight, is_whole)

    def _check_objectives(self, divergences: Sequence[DivergenceRecord]) -> None:
        for objective in {record.objective for record in divergences}:
            if isinstance(objective, _OTHER_OBJECTIVES):
                raise TypeError(
                    f"NaturalGradient maximises bounds with an expected log-likelihood, such as VariationalELBO, and "
                    f"{type(objective).__name__} has none: train model.variational_parameters() with an optimiser of "
                    "torch.optim for it, after detach()"
                )
            num_data = getattr(objective, "num_data", self._num_data)
            if float(num_data) != self._num_data:
                raise ValueError(
                    f"the objective has num_data={num_data} and NaturalGradient num_data={self._num_data}: give both "
                    "the number of rows of all data (beta of the objective is there to weigh the divergence)"
                )

    def _check_number_of_rows(self, num_rows: int) -> None:
        padding = self._processes.size - 1  # a DistributedSampler repeats rows to give all processes as many
        if num_rows > self._num_data + padding:
            raise ValueError(
                f"{num_rows} rows since the last step are more than num_data={self._num_data}, the number of rows of "
                "all data (not of batches): pass num_data=len(y), and step at least once in a pass over the data"
            )

    def _weight_of_all(self, weight: float) -> float:
        """The weight of the divergence in the average of the losses of all processes."""
        if not self._processes.is_alone:
            own = torch.tensor(weight, dtype=torch.float64, device=self._distribution.device)
            weight = self._processes.sum([own])[0].item() / self._processes.size
        if weight == 0.0:
            raise RuntimeError(
                "the Kullback-Leibler divergence was not differentiated, and its weight in the loss is what the data "
                "are weighed against: use gpytorch.mlls.VariationalELBO, or model.variational_strategy.kl_divergence() "
                "/ num_data in a loss per row of your own, and differentiate in model.variational_parameters(), too"
            )
        return weight

    def _warn_if_weight_is_unexplained(self, batch: _Batch) -> None:
        """A loss that is minus the ELBO times any number needs no words; one that was put together elsewhere might."""
        weight = batch.divergence_weight
        relative = weight * self._num_data
        if batch.is_whole_elbo or abs(relative - 1.0) <= _WEIGHT_SLACK:
            return
        if self._processes.leads and not self._memory.get("has_warned_of_weight"):
            self._memory["has_warned_of_weight"] = True
            warnings.warn(
                f"the Kullback-Leibler divergence has a weight of {weight:.3g} in the loss, {relative:.3g} times the "
                f"1 / num_data of a loss per row (num_data={self._num_data}). The posterior follows the loss as it is: "
                "that is right if the data term has the same factor; otherwise divide the divergence by the number of "
                "rows of all data where the expected log-likelihood is an average over the rows of the batch",
                TrainingLoopWarning,
                stacklevel=_USER_LEVEL,
            )

    def _loss_of_all(self, loss: Any) -> float:
        own = torch.as_tensor(loss, dtype=torch.float64, device=self._distribution.device)
        return self._processes.sum([own])[0].item() / self._processes.size

    def _step_size(self, num_rows: int) -> Tensor:
        """The step size r, a float64 scalar on the model's device."""
        group, memory = self.param_groups[0], self._memory
        like = torch.zeros((), dtype=torch.float64, device=self._distribution.device)
        if group["lr"] is not None and not 0 <= group["lr"] <= 1:
            raise ValueError(f"lr must lie in [0, 1], got {group['lr']!r} in the parameter group")
        if group["lr"] is not None or self._forgets(num_rows):
            return like + (1.0 if group["lr"] is None else group["lr"])
        halving = _AVERAGING_HALVING if group["averaging"] else _HALVING
        scheduled = 1.0 / (1.0 + memory.get("step", 0) / halving)
        # A batch that is small beside the others, such as an epoch's last, is noisier and moves less.
        memory["largest_batch"] = max(memory.get("largest_batch", 0), num_rows)
        scheduled *= num_rows / memory["largest_batch"]
        if group["averaging"]:
            return like + scheduled
        # The step r at which noise costs r / 4 (N / b - 1) effdim = tolerance.
        unseen = max(0, self._num_data - num_rows)
        floor = 4.0 * group["tolerance"] * num_rows / (unseen * memory["effective_dimension"])
        if self._has_several_predictors:
            floor = floor.clamp(max=_LEAST_JOINT_STEP)
        return floor.clamp(scheduled, 1.0)

    def _forgets(self, num_rows: int) -> bool:
        """Whether the step size is 1, so that nothing of the posterior before the step remains."""
        lr = self.param_groups[0]["lr"]
        if lr is not None:
            return lr == 1
        sees_all = num_rows >= self._num_data and not self._has_several_predictors
        return sees_all or "step" not in self._memory

    @property
    def _has_several_predictors(self) -> bool:
        return self._strategy.predictor.num_predictors > 1

    def _update_if_the_loss_falls(
        self, batch: _Batch, closure: Callable[[], Any], loss: float, choleskys: list[Tensor]
    ) -> None:
        q, features = self._distribution, self._features(batch, choleskys)
        before, memory = deepcopy(q.state_dict()), dict(self._memory)
        for attempt in range(_MAX_HALVINGS):
            self._update(batch, features, choleskys, scale=0.5**attempt)
            after = self._loss_of_all(self._evaluate(closure))
            again = self._take_batch()
            if after <= loss + _LOSS_SLACK * abs(loss):
                break
            self._restore(before, memory)
        else:
            self._evaluate(closure)
            again = self._take_batch()
        self._correct_gradients(again, self._features(again, choleskys), choleskys)

    def _restore(self, parameters: dict[str, Tensor], memory: dict[str, Any]) -> None:
        self._distribution.load_state_dict(parameters)
        self._memory.clear()
        self._memory.update(memory)

    def _features(self, batch: _Batch, choleskys: list[Tensor]) -> BatchFeatures:
        rows = batch.x, batch.gradients, batch.curvatures
        features = partial(self._strategy.predictor.features, choleskys=choleskys)
        return BatchFeatures(features, *rows, self._chunk_size, self._segments)

    def _correct_gradients(self, batch: _Batch, features: BatchFeatures, choleskys: list[Tensor]) -> None:
        """Of the hyperparameters, at the posterior of the forward."""
        if not self.param_groups[0]["variance_reduction"]:
            return
        chunks = batch.gradients.split(self._chunk_size), batch.curvatures.split(self._chunk_size)
        rows = (chunk.features for chunk in features.chunks())
        correct_gradients(self._strategy, choleskys, rows, *chunks, batch.divergence_weight, self._processes)

    def _update(self, batch: _Batch, features: BatchFeatures, by_group: list[Tensor], scale: float = 1.0) -> None:
        memory = self._memory
        num_rows = batch.num_rows
        rate, forgets = scale * self._step_size(num_rows), scale == 1 and self._forgets(num_rows)
        choleskys = [cholesky.detach() for cholesky in by_group]
        old = self._posterior(choleskys)
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
        memory["step"] = memory.get("step", 0) + 1

    def _follow_first_process(self) -> None:
        """Learn what it knows of the step that it has taken, beside the posterior."""
        if self._processes.is_alone:
            return
        q, memory = self._distribution, self._memory
        if not self._processes.leads:
            memory["effective_dimension"] = torch.zeros((), dtype=torch.float64, device=q.device)
        self._processes.broadcast([memory["effective_dimension"]])
        ((is_settled,), *_) = self._processes.gather([q._rank_is_settled], q.device)
        q._rank_is_settled = bool(is_settled)

    def _natural_step(self, old: Posterior, features: RowSums, num_rows: int, rate: Tensor, forgets: bool) -> Posterior:
        if forgets and len(old.mean) <= DENSE_LIMIT:
            return self._dense_step(old, features)
        q, memory = self._distribution, self._memory
        step = streamed_step(old, features, rate, family_of(q), forgets)
        memory["effective_dimension"] = effective_dimension(step.factors)
        if q.rank == 0 or not self._looks_at_the_rank():
            return step.posterior
        noise = self._noise_of_directions(num_rows)
        if q.rank_tolerance is not None:
            return with_enough_columns(step, family_of(q), q.rank_tolerance + noise)
        memory["missing_nats"] = missing_nats(step, family_of(q)) - noise
        return step.posterior

    def _noise_of_directions(self, num_rows: int) -> float:
        r"""
        Nats that the directions beyond B seem to gain when there is nothing: in coordinates in which the precision is
        the identity, the largest eigenvalues of a batch are off by about :math:`2\sqrt{d/b}`, and each gains a quarter
        of its square.
        """
        if not family_of(self._distribution).has_blocks:
            return 0.0
        dimension = self._memory["effective_dimension"].item()
        return OVERSAMPLING * dimension / num_rows * (1 - min(1.0, num_rows / self._num_data))

    def _dense_step(self, old: Posterior, features: RowSums) -> Posterior:
        q, memory = self._distribution, self._memory
        is_first = memory.get("step", 0) == 0
        gram, projected = features.gram()
        if self._has_several_predictors:
            gram = positive_part(gram)
        if q.rank_tolerance is not None and (is_first or self._looks_at_the_rank()):
            q.settle_rank(gram)
        step = dense_step(old, features, gram, projected, family_of(q), is_first)
        memory["effective_dimension"] = effective_dimension(step.factors)
        if q.rank and q.rank_tolerance is None and self._looks_at_the_rank():
            memory["missing_nats"] = dense_loss(gram, step.posterior, family_of(q)).item()
        return step.posterior

    def _looks_at_the_rank(self) -> bool:
        """Now and then, because it waits for the device."""
        return (self._memory.get("step", 0) + 1) % _CHECK_EVERY == 0

    def _warn_if_out_of_order(self, choleskys: list[Tensor]) -> None:
        """Looks at the first few steps only, because it waits for the device."""
        memory = self._memory
        if not self._processes.leads or memory.get("has_warned_of_order") or memory.get("step", 0) >= _NUM_CHECKED:
            return
        reason = None
        if memory.get("num_foreign", 0) >= 2:
            reason = (
                "something else changes the posterior between steps: give other optimisers model.hyperparameters(), "
                "not model.parameters()"
            )
        elif self._kernels_have_moved(choleskys):
            reason = "the kernels have changed since the forward: call natural.step() before that of their optimiser"
        if reason is not None:
            memory["has_warned_of_order"] = True
            warnings.warn(reason, TrainingLoopWarning, stacklevel=_USER_LEVEL)

    def _warn_if_processes_differ(self) -> None:
        """Looks at the first few steps only, because it waits for the device."""
        memory = self._memory
        if self._processes.is_alone or memory.get("step", 0) >= _NUM_CHECKED:
            return
        parameters = self._strategy.predictor.parameters()
        bits = sum(int(parameter.detach().double().view(torch.int64).sum()) for parameter in parameters)
        found = self._processes.gather([bits % 2**62], self._distribution.device)
        if found.count(found[0]) == len(found) or not self._processes.leads or memory.get("has_warned_of_drift"):
            return
        memory["has_warned_of_drift"] = True
        warnings.warn(
            "the kernels of the processes of process_group differ: average the gradients over the processes, by "
            "DistributedDataParallel or average_gradients, and give all the same optimiser of the hyperparameters",
            TrainingLoopWarning,
            stacklevel=_USER_LEVEL,
        )

    @torch.no_grad()
    def _kernels_have_moved(self, choleskys: list[Tensor]) -> bool:
        at_forward = self._memory.get("choleskys")
        if at_forward is None:
            return False
        return not _agree(at_forward, choleskys)

    def _warn_if_curvature_is_negative(self, batch: _Batch) -> None:
        """Looks at the first few batches only, because it waits for the device."""
        memory = self._memory
        if memory.get("step", 0) > _NUM_CHECKED or memory.get("has_curvature"):
            return
        has_curvature = bool((batch.curvatures.diagonal(dim1=-2, dim2=-1) >= 0).any())
        memory["has_curvature"] = any(each for (each,) in self._processes.gather([has_curvature], batch.x.device))
        memory["num_negative"] = memory.get("num_negative", 0) + batch.num_rows
        if memory["has_curvature"] or not self._processes.leads:
            return
        if memory.get("step", 0) == _NUM_CHECKED and memory["num_negative"] >= _NUM_ROWS:
            warnings.warn(
                f"the loss falls with the variance of the predictor in each row of the first {_NUM_CHECKED} batches, "
                "so nothing is learnt of it: the data enter the loss as minus the expected log-likelihood, as in "
                "-mll(model(x), y)",
                CurvatureWarning,
                stacklevel=_USER_LEVEL,
            )

    def _warn_if_rank_is_small(self) -> None:
        missing = self._memory.pop("missing_nats", 0.0)
        if missing > NOTABLE_LOSS and not self._memory.get("has_warned"):
            self._memory["has_warned"] = True
            warnings.warn(
                f"rank {self._distribution.rank} leaves the bound about {missing:.0f} nats or more below its optimum: "
                'raise the rank, or use rank="auto"',
                RankWarning,
                stacklevel=_USER_LEVEL,
            )

    @torch.no_grad()
    def _follow_kernels(self) -> None:
        """Where the kernels have moved since the last step or forward, carry the posterior along."""
        choleskys = self._strategy.inducing_choleskys()
        before = self._memory.setdefault("choleskys", choleskys)
        # Comparing waits for the device; in training the kernels move all the time.
        on_hot_path = self._strategy.training and choleskys[0].is_cuda
        if not on_hot_path and _agree(before, choleskys):
            return
        posterior = self._posterior(choleskys)
        before = self._memory.get("choleskys")  # none if somebody else has set the posterior
        if before is not None:
            self._store(transported(posterior, before, choleskys), choleskys)

    def _posterior(self, choleskys: list[Tensor]) -> Posterior:
        """The present posterior, with what the distribution itself cannot hold."""
        q, memory = self._distribution, self._memory
        written = memory.get("written_mean")
        if written is not None and not torch.equal(written, q.variational_mean):
            # Loaded or set by somebody else: it belongs to the present kernels, and what was kept to the old posterior.
            for name in ("choleskys", "block_factors", "directions"):
                memory.pop(name, None)
            memory["num_foreign"] = memory.get("num_foreign", 0) + 1
        directions = memory.get("directions")
        if directions is not None and directions.shape[-1] < min(q.rank + 1, q.num_inducing_points):
            memory.pop("directions")  # B was given more columns
        posterior = read_posterior(q, [(cholesky.shape[-3], cholesky.shape[-1]) for cholesky in choleskys])
        kept = {name: memory[name] for name in ("block_factors", "directions") if memory.get(name) is not None}
        return posterior._replace(**kept)

    def _store(self, posterior: Posterior, choleskys: list[Tensor]) -> None:
        q, memory = self._distribution, self._memory
        write_posterior(q, posterior)
        self.param_groups[0]["params"] = list(q.parameters())  # B may be a new one
        memory["choleskys"] = choleskys
        memory["written_mean"] = q.variational_mean.detach().clone()
        memory["directions"] = posterior.directions
        memory["block_factors"] = None if holds_all(q) else posterior.block_factors

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """
        Restore a state exactly (torch's own method would round it to the dtype of the parameters).

        :param state_dict: From :meth:`state_dict` of an optimiser of an equal model.
        """
        super().load_state_dict(state_dict)
        self.param_groups = [_ParameterGroup(group) for group in self.param_groups]
        device = self._distribution.device
        for memory in state_dict["state"].values():
            self._memory.update({name: _moved(deepcopy(value), device) for name, value in memory.items()})

    def __getstate__(self) -> NoReturn:
        raise TypeError(
            "a NaturalGradient belongs to its model and cannot be copied or pickled: make one for the other model, and "
            "load the state with load_state_dict(...)"
        )


class _AttachedRecorder(ForwardRecorder):
    """
    Records while its optimiser is alive, except in the steps of other optimisers: what they evaluate is their own
    affair. Copies, which go with copies of the model, belong to none and stay idle.
    """

    def __init__(self, owner: NaturalGradient | None) -> None:
        super().__init__()
        self.owner = _nobody if owner is None else weakref.ref(owner)
        self._is_paused, self._is_recording = False, False
        self._backward = -1  # torch's number of the backward pass that was entered last
        self._watch = GradientWatch(() if owner is None else _watched(owner._strategy))
        self._objectives: weakref.WeakSet[MarginalLogLikelihood] = weakref.WeakSet()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Forwards inside are not recorded, unless they are in :meth:`recording`."""
        before, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = before

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Forwards inside are recorded, also those of a closure that came by way of another optimiser."""
        before, self._is_recording = self._is_recording, True
        try:
            yield
        finally:
            self._is_recording = before

    @property
    def _is_on(self) -> bool:
        return self.owner() is not None and (self._is_recording or not self._is_paused)

    def prepare(self) -> None:
        """Carry the posterior along with the kernels."""
        owner = self.owner()
        if owner is not None:
            owner._follow_kernels()

    def record(self, x: Tensor, mean: Tensor, variance: Tensor) -> None:
        if self._is_on:
            super().record(x, mean, variance)

    def record_divergence(self, divergence: Tensor) -> None:
        if self._is_on:
            super().record_divergence(divergence)

    def _enter_backward(self) -> None:
        owner, backward = self.owner(), torch._C._current_graph_task_id()
        if owner is None or backward == self._backward:
            return
        self._backward = backward
        self._watch.begin()
        if (self._forwards or self._divergences) and self._watch.begins_anew():
            self.forget_gradients()
        Variable._execution_engine.queue_callback(self._watch.end)

    def _keep(self, period: int, forward: Any, which: int, gradient: Tensor) -> None:
        super()._keep(period, forward, which, gradient)
        # Somebody differentiates without ever stepping. Enough is kept for a step to see that there are too many rows.
        owner = self.owner()
        while owner is not None and len(self._forwards) > 1 and self.num_rows > 2 * owner._num_data:
            self._forwards.pop(0)

    def _keep_weight(self, period: int, objective: MarginalLogLikelihood | None, gradient: Tensor) -> None:
        if objective is not None and objective not in self._objectives:
            self._objectives.add(objective)
            self._watch.add(objective.parameters())
        super()._keep_weight(period, objective, gradient)

    def __reduce__(self) -> tuple[Any, ...]:
        return _AttachedRecorder, (None,)


def _nobody() -> None:
    return None


def _watched(strategy: AdditiveVariationalStrategy) -> list[Tensor]:
    """Parameters whose gradients tell whether a backward pass adds to those before; the factors are large."""
    return [strategy._variational_distribution.variational_mean, *strategy.model.hyperparameters()]


def _pause_in_other_steps(natural: NaturalGradient) -> Callable[[], Any]:
    """
    Let nothing be recorded of the closures of other optimisers, while a natural gradient is attached.

    :return: Ends that; so does the end of the optimiser.
    """
    owner, recorder = weakref.ref(natural), natural._recorder

    def pause(
        optimizer: torch.optim.Optimizer, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if torch.compiler.is_compiling() or optimizer is owner():
            return None
        return tuple(map(paused, arguments)), {name: paused(value) for name, value in named.items()}

    def paused(argument: Any) -> Any:
        if isinstance(argument, torch.optim.Optimizer) or not callable(argument):
            return argument

        def closure(*arguments: Any, **named: Any) -> Any:
            with recorder.paused():
                return argument(*arguments, **named)

        return closure

    handle = register_optimizer_step_pre_hook(pause)
    return weakref.finalize(natural, handle.remove)


def _is_whole_elbo(objective: MarginalLogLikelihood | None) -> bool:
    """Whether the weight of the divergence is what GPyTorch has given it, in proportion to that of the data."""
    return (
        isinstance(objective, VariationalELBO)
        and objective.combine_terms
        and type(objective).forward is VariationalELBO.forward
    )


def _agree(old: Sequence[Tensor], new: Sequence[Tensor]) -> bool:
    """Whether Cholesky factors ``(..., M, M)`` are those of the same kernels."""
    return all(
        bool(((a - b).abs().amax((-2, -1)) <= _KERNEL_SLACK * b.abs().amax((-2, -1))).all())
        for a, b in zip(old, new, strict=True)
    )


def _joined(recorded: Recorded) -> _Rows:
    """
    All rows that a backward pass has been through. Forwards without one are not part of the loss.

    :param recorded: By one process.
    """
    if not recorded.num_forwards:
        raise RuntimeError(
            "nothing was recorded since the last step: call the model in train mode, with gradients enabled and "
            "diag=True, before natural.step(), or pass it a closure (what a closure of another optimiser evaluates "
            "does not count)"
        )
    records = recorded.records
    if not records:
        raise RuntimeError("no gradients reached the model's output: call loss.backward() before natural.step()")
    for record in records:
        if record.x.dim() != 2:
            raise NotImplementedError(
                f"NaturalGradient takes inputs (n, D), got shape {tuple(record.x.shape)}: flatten the batch dimensions"
            )
    gradients = torch.cat([record.mean_gradient for record in records]).double()
    curvatures = torch.cat([record.variance_gradient for record in records])
    if gradients.dim() == 1:
        gradients, curvatures = gradients[:, None], curvatures[:, None, None]
    not_finite = ~(torch.isfinite(gradients).all(-1) & torch.isfinite(curvatures).flatten(1).all(-1))
    weights = [record.weight.double() for record in recorded.divergences]
    weight = torch.stack(weights).sum() if weights else gradients.new_zeros(())
    num_not_finite, divergence_weight = torch.stack([not_finite.sum().to(weight), weight]).tolist()
    if num_not_finite:
        raise RuntimeError(
            f"the gradient of the loss is NaN or infinite in {num_not_finite:.0f} of {len(gradients)} rows: look for "
            "such values in the data, or for an overflow in the likelihood"
        )
    if not divergence_weight >= 0:
        raise ValueError(
            f"the loss falls with the Kullback-Leibler divergence (by {-divergence_weight:.3g} a nat): pass the "
            "gradients of loss = -mll(model(x), y), with the minus sign, and leave maximize=False in optimisers"
        )
    return _Rows(torch.cat([record.x for record in records]), gradients, curvatures, divergence_weight)


def _moved(value: Any, device: torch.device) -> Any:
    if torch.is_tensor(value):
        return value.to(device)
    return [_moved(item, device) for item in value] if isinstance(value, list) else value
