"""The optimal posterior at fixed hyperparameters, from passes over all of the data."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING, Any, NamedTuple

import gpytorch
import torch
from gpytorch.likelihoods import Likelihood
from gpytorch.variational import CholeskyVariationalDistribution
from torch import Tensor

from gpytorch_gam import _checks as checks
from gpytorch_gam.data.whole_epochs import every_row
from gpytorch_gam.numerics.capacitance import add_identity
from gpytorch_gam.optim.posterior.parameters import (
    StructuredDistribution,
    family_of,
    modes_kept,
    read_posterior,
    validated_strategy,
    write_posterior,
)
from gpytorch_gam.optim.posterior.posterior import Posterior
from gpytorch_gam.optim.posterior.rank import with_enough_columns
from gpytorch_gam.optim.posterior.step import Family, exact_step, with_directions
from gpytorch_gam.optim.processes import (
    Processes,
    resistance_of_all,
    start_from_first,
    step_together,
    take_distribution_of_first,
)
from gpytorch_gam.optim.rows.likelihood_check import check_number_of_predictors, is_gaussian, with_noise_by_row
from gpytorch_gam.optim.rows.predictors import positive_part
from gpytorch_gam.optim.rows.stream import DataStream, OverflowingLikelihoodError
from gpytorch_gam.optim.rows.sums import RowSums
from gpytorch_gam.variational import AdditiveVariationalStrategy

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

# Largest number of inducing variables for which a dense matrix is formed, by default.
DENSE_LIMIT = 1024

# Number of halvings after which a step is given up, because only rounding is left.
_MAX_HALVINGS = 20

# Largest fall of the bound, relative to the sizes of its terms, that counts as rounding.
_ROUNDING = 1e-9


def polish(
    model: gpytorch.models.ApproximateGP,
    likelihood: Likelihood,
    batches: Iterable[Any],
    *,
    max_passes: int = 20,
    tolerance: float = 1e-2,
    dense_limit: int = DENSE_LIMIT,
    chunk_size: int | None = None,
    process_group: ProcessGroup | None = None,
) -> list[float]:
    r"""
    Bring the posterior to its optimum at the present hyperparameters, which stay as they are, by natural-gradient steps
    of full size on all of the data. The evidence lower bound never falls: a step that lowers it is halved, unless what
    shorter ones can gain is within the tolerance. If it is interrupted, the posterior is that of the last step that was
    accepted.

    With up to ``dense_limit`` inducing variables in all, a pass reads the data once and sums the dense :math:`Q \times
    Q` precision, :math:`O(NQ^2)`: the mean takes Newton's step, and the precision is fitted to the family (a coupled
    distribution takes it exactly). With a Gaussian likelihood this is the closed form, and one pass suffices. Beyond
    the limit a pass reads the data four times for products with the features alone, so that time and memory grow
    linearly with the number of components, and the factor :math:`B` is improved from where it is: train the model
    before. Memory does not depend on the number of rows.

    Modules keep their train or eval mode. Under ``rank="auto"`` the factor B may become a new parameter: make torch's
    optimisers of it anew.

    :param model: A model whose ``variational_strategy`` is an :class:`AdditiveVariationalStrategy` with no batch
        shape, and a low-rank, block + low-rank, mean-field or (up to ``dense_limit``) Cholesky distribution.
    :param likelihood: Any likelihood of as many predictors.
    :param batches: Pairs of inputs ``(b, D)`` and responses ``(b)``, or triples, as for :func:`fit`, that can be gone
        through several times, each row once: a ``DataLoader``, or a list with one pair. What a loader drops
        (``drop_last``) is read all the same.
    :param max_passes: Largest number of steps.
    :param tolerance: Stop when a step gains, or shorter ones promise, no more than this, in nats.
    :param dense_limit: Largest number of inducing variables for which a dense matrix is formed.
    :param chunk_size: Rows processed at a time; default as many as make features of 16 MiB (1 GiB on a GPU).
    :param process_group: Processes that call this together, each with its own rows, in batches of any number. All start
        from the model and the likelihood of the first process and end with its posterior. A ``DistributedSampler`` will
        do where it neither repeats nor drops rows, so where their number is a multiple of that of the processes;
        otherwise take ``Subset(dataset, range(rank, len(dataset), world_size))``.
    :return: The bound in nats, summed over the data: before the first step, then after each. Priors of hyperparameters
        are left out.
    :raises ValueError: If an argument is out of range or the data cannot be read.
    :raises TypeError: If model or distribution are of another kind.
    :raises NotImplementedError: For batches of models.

    Example:
        >>> fit(model, likelihood, loader)
        >>> history = polish(model, likelihood, loader)  # at the hyperparameters that fit found
    """
    checks.integer("max_passes", max_passes, least=1)
    checks.integer("dense_limit", dense_limit, least=0)
    checks.integer("chunk_size", 1 if chunk_size is None else chunk_size, least=1)
    checks.number("tolerance", tolerance, least=0)
    return polish_below(
        model,
        likelihood,
        batches,
        math.inf,
        max_passes=max_passes,
        tolerance=tolerance,
        dense_limit=dense_limit,
        chunk_size=chunk_size,
        process_group=process_group,
    )


def polish_below(
    model: gpytorch.models.ApproximateGP,
    likelihood: Likelihood,
    batches: Iterable[Any],
    ceiling: float,
    *,
    max_passes: int,
    tolerance: float = 1e-2,
    dense_limit: int = DENSE_LIMIT,
    chunk_size: int | None = None,
    process_group: ProcessGroup | None = None,
) -> list[float]:
    """:func:`polish`, which ends as soon as the bound is within the tolerance of one that no posterior exceeds."""
    strategy = validated_strategy(
        model, (*StructuredDistribution, CholeskyVariationalDistribution), several_predictors=True
    )
    check_number_of_predictors(strategy, likelihood)
    batches, processes = with_noise_by_row(likelihood, every_row(batches)), Processes(process_group)
    with passes_over_rows(model, likelihood):
        start_from_first(processes, strategy, [model, likelihood])
        chunk_size = default_chunk_size(strategy) if chunk_size is None else chunk_size
        return _Polish(strategy, likelihood, batches, dense_limit, chunk_size, processes).run(
            max_passes, tolerance, ceiling
        )


@contextmanager
def passes_over_rows(model: gpytorch.models.ApproximateGP, likelihood: Likelihood) -> Iterator[None]:
    """Model and likelihood as a :class:`.DataStream` reads them, without gradients; their modes are kept."""
    with torch.inference_mode(False), torch.no_grad(), modes_kept(model, likelihood):
        model.eval()  # so that its forward computes what predictions read
        model.variational_strategy.train()
        likelihood.train()
        model.variational_strategy.prepare_training()  # writes the posterior under the present kernels
        yield


def default_chunk_size(strategy: AdditiveVariationalStrategy) -> int:
    """Rows with features of 16 MiB (1 GiB on a GPU): allocators map larger blocks anew each time, which is slow."""
    numbers = 2**27 if strategy.predictor.device.type == "cuda" else 2**21
    return max(1, min(8192, numbers // strategy.predictor.num_inducing_total))


class _Evaluation(NamedTuple):
    """The data's stream, expected log-likelihood and bound under the present posterior."""

    stream: DataStream  # over this process's rows
    expected: float  # sum over all processes' rows of the expected log-likelihoods, in nats
    bound: float


class _Polish:
    """The loop of :func:`polish`, with the last accepted posterior."""

    def __init__(
        self,
        strategy: AdditiveVariationalStrategy,
        likelihood: Likelihood,
        batches: Iterable[Any],
        dense_limit: int,
        chunk_size: int,
        processes: Processes,
    ) -> None:
        self._strategy, self._likelihood, self._processes = strategy, likelihood, processes
        self._batches, self._chunk_size = batches, chunk_size
        is_dense = strategy.predictor.num_inducing_total <= dense_limit
        self._accepted = deepcopy(strategy._variational_distribution.state_dict())
        self._steps: _Steps = _DenseSteps(strategy, processes) if is_dense else _StreamedSteps(strategy, processes)
        # The Gaussian optimum does not depend on the start of the step.
        self._is_closed_form = is_dense and is_gaussian(likelihood)

    def run(self, max_passes: int, tolerance: float, ceiling: float) -> list[float]:
        try:
            return self._run(max_passes, tolerance, ceiling)
        except BaseException:  # after an interruption, the last accepted posterior is restored
            self._restore()
            raise

    def _restore(self) -> None:
        self._strategy._variational_distribution.load_state_dict(self._accepted)

    def _run(self, max_passes: int, tolerance: float, ceiling: float) -> list[float]:
        present = self._evaluate()
        if not math.isfinite(present.bound):
            raise ValueError(
                f"the bound of {type(self._likelihood).__name__} is {present.bound} at the present posterior"
            )
        history = [present.bound]
        for _ in range(max_passes):
            if history[-1] >= ceiling - tolerance:
                break
            moved = self._move(present, tolerance)
            if moved is None:
                break
            present, rate = moved
            history.append(present.bound)
            if self._is_closed_form or history[-1] - history[-2] <= tolerance * rate:
                break
        return history

    def _evaluate(self) -> _Evaluation:
        stream = DataStream(self._strategy, self._likelihood, self._batches, self._chunk_size)
        self._read(stream)
        divergence = self._strategy.kl_divergence().double()
        expected = self._processes.sum([divergence.new_tensor(stream.expected)])[0]
        terms = torch.stack([expected, expected - divergence])
        self._processes.broadcast([terms])  # so that all processes take the same decisions
        return _Evaluation(stream, *terms.tolist())

    def _read(self, stream: DataStream) -> None:
        """Read the sums over this process's rows. An error in one process is raised in all."""
        error: Exception | None = None
        try:
            self._steps.read(stream)
        except Exception as caught:
            error = caught
        outcome = 0 if error is None else 1 if isinstance(error, OverflowingLikelihoodError) else 2
        outcomes = [each for (each,) in self._processes.gather([outcome], self._strategy.predictor.device)]
        if error is not None and outcome == max(outcomes):
            raise error
        if max(outcomes):
            kind = OverflowingLikelihoodError if max(outcomes) == 1 else RuntimeError
            raise kind(f"process {outcomes.index(max(outcomes))} of process_group cannot read its rows: see its error")

    def _move(self, before: _Evaluation, tolerance: float) -> tuple[_Evaluation, float] | None:
        """
        Take a step, halved until the bound does not fall: the evaluation after it and its size, or None. Along a step
        the bound is concave near its optimum: where a step loses no more than the tolerance and its half does not gain,
        shorter ones cannot gain more than the tolerance. In the closed form the whole step alone says so.
        """
        lowest = before.bound - _ROUNDING * (abs(before.expected) + abs(before.bound))
        rate, is_idle = 1.0, False
        for _ in range(_MAX_HALVINGS):
            proposal = self._steps.propose(before.stream, rate)
            self._steps.write(proposal)
            # The fit to the family depends on rounding.
            take_distribution_of_first(self._processes, self._strategy._variational_distribution)
            after = self._evaluate_unless_it_overflows()
            if after is not None and after.bound >= lowest:
                self._steps.state = proposal
                self._accepted = deepcopy(self._strategy._variational_distribution.state_dict())
                return after, rate
            was_idle, is_idle = is_idle, after is not None and before.bound - after.bound <= tolerance
            if was_idle or (is_idle and self._is_closed_form):
                break
            rate /= 2
        self._restore()
        return None

    def _evaluate_unless_it_overflows(self) -> _Evaluation | None:
        try:
            return self._evaluate()
        except OverflowingLikelihoodError:
            return None


class _Steps(ABC):
    """A way to move the posterior; subclasses hold it as a dense matrix or as factors."""

    state: Any  # posterior of the last accepted step

    @abstractmethod
    def read(self, stream: DataStream) -> None:
        """Read the sums that a step needs; the stream keeps them."""

    @abstractmethod
    def propose(self, stream: DataStream, rate: float) -> Any:
        """The posterior after a step of size ``rate`` from ``state``, to which the stream belongs."""

    @abstractmethod
    def write(self, state: Any) -> None:
        """Set the variational distribution to a state."""


class _DensePosterior(NamedTuple):
    mean: Tensor  # m, (Q,)
    excess: Tensor  # P - I, (Q, Q)


class _DenseSteps(_Steps):
    def __init__(self, strategy: AdditiveVariationalStrategy, processes: Processes) -> None:
        self._strategy, self._processes = strategy, processes
        distribution = strategy.variational_distribution
        covariance = distribution.lazy_covariance_matrix.to_dense().double()
        excess = torch.linalg.inv(covariance)
        excess.diagonal().sub_(1.0)
        self.state = _DensePosterior(distribution.mean.to(torch.float64, copy=True), excess)

    def read(self, stream: DataStream) -> None:
        stream.gram()

    def propose(self, stream: DataStream, rate: float) -> _DensePosterior:
        gram, projected = self._processes.sum(stream.gram())
        excess = torch.lerp(self.state.excess, gram, rate)
        if self._strategy.predictor.num_predictors > 1:
            excess = positive_part(excess)
        gradient = (projected - self.state.mean).unsqueeze(-1)
        direction = torch.cholesky_solve(gradient, torch.linalg.cholesky(add_identity(excess))).squeeze(-1)
        if rate < 1:  # Newton's step was too long: so far away, the curvatures say little
            reach = resistance_of_all(self._processes, stream, direction).reach
            direction = torch.clamp(reach, max=1.0) * direction
        return _DensePosterior(self.state.mean + rate * direction, excess)

    def write(self, state: _DensePosterior) -> None:
        self._strategy.set_whitened_posterior(state.mean, add_identity(state.excess))


class _StreamedSteps(_Steps):
    def __init__(self, strategy: AdditiveVariationalStrategy, processes: Processes) -> None:
        q = strategy._variational_distribution
        if not isinstance(q, StructuredDistribution):
            raise TypeError(
                f"a {type(q).__name__} of {q.num_inducing_points} inducing variables needs a dense matrix: raise "
                "dense_limit, or use BlockLowRankPrecisionVariationalDistribution"
            )
        self._distribution, self._processes = q, processes
        self.state = with_directions(read_posterior(q, strategy.predictor.group_shapes))

    def read(self, stream: DataStream) -> None:
        stream.totals(self.state.shapes)

    def propose(self, stream: DataStream, rate: float) -> Posterior:
        size = torch.as_tensor(rate).to(self.state.mean)
        return step_together(self._processes, stream, self.state, lambda sums: self._posterior_after(sums, size))

    def _posterior_after(self, sums: RowSums, size: Tensor) -> Posterior:
        step, tolerance = exact_step(self.state, sums, size, self._family()), self._distribution.rank_tolerance
        return step.posterior if tolerance is None else with_enough_columns(step, self._family(), tolerance)

    def _family(self) -> Family:
        is_block = family_of(self._distribution).has_blocks
        return Family(is_block, 0 if self.state.shared_factor is None else self.state.shared_factor.shape[-1])

    def write(self, state: Posterior) -> None:
        write_posterior(self._distribution, state)
