"""The optimal posterior at fixed hyperparameters, from passes over all of the data."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from copy import deepcopy
from typing import Any, NamedTuple

import gpytorch
import torch
from gpytorch.likelihoods import GaussianLikelihood, Likelihood
from gpytorch.variational import CholeskyVariationalDistribution
from torch import Tensor

from gpytorch_gam.operators._capacitance import add_identity
from gpytorch_gam.variational import AdditiveVariationalStrategy

from ._data_stream import DataStream, OverflowingLikelihoodError, every_row
from ._mean_step import REACH, Posterior
from ._natural_step import Family, exact_step
from ._rank import widened
from ._structured_posterior import (
    StructuredDistribution,
    family_of,
    modes_kept,
    read_posterior,
    validated_strategy,
    write_posterior,
)

# A step is halved so often before it is given up: what is left is rounding.
_MAX_HALVINGS = 20

# Nats that the bound may fall by rounding, relative to the sizes of its terms.
_ROUNDING = 1e-9


def polish(
    model: gpytorch.models.ApproximateGP,
    likelihood: Likelihood,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    max_passes: int = 20,
    tolerance: float = 1e-2,
    dense_limit: int = 1024,
    chunk_size: int | None = None,
) -> list[float]:
    r"""
    Bring the posterior to its optimum at the present hyperparameters, which stay as they are, by natural-gradient steps
    of full size on all of the data. The evidence lower bound never falls: a step that lowers it is halved. If it is
    interrupted, the posterior is that of the last step that was accepted.

    With up to ``dense_limit`` inducing variables in all, a pass reads the data once and sums the dense :math:`Q \times
    Q` precision, :math:`O(NQ^2)`: the mean takes Newton's step, and the precision is fitted to the family (a coupled
    distribution takes it exactly). With a Gaussian likelihood this is the closed form, and one pass suffices. Beyond
    the limit a pass reads the data four times for products with the features alone, so that time and memory grow
    linearly with the number of components, and the factor :math:`B` is improved from where it is: train the model
    before. Memory does not depend on the number of rows.

    Modules keep their train or eval mode. Under ``rank="auto"`` the factor B may become a new parameter: make torch's
    optimisers of it anew.

    :param model: A model whose ``variational_strategy`` is an :class:`AdditiveVariationalStrategy` with one predictor,
        no batch shape, and a low-rank, block + low-rank, mean-field or (up to ``dense_limit``) Cholesky distribution.
    :param likelihood: Any likelihood of one predictor.
    :param batches: Pairs of inputs ``(b, D)`` and responses ``(b)`` that can be gone through several times, each row
        once: a ``DataLoader``, or a list with one pair. What a loader drops (``drop_last``) is read all the same.
    :param max_passes: Largest number of steps.
    :param tolerance: Stop when a step gains no more than so many nats.
    :param dense_limit: Largest number of inducing variables for which a dense matrix is formed.
    :param chunk_size: Rows processed at a time; default as many as make features of 16 MiB (1 GiB on a GPU).
    :return: The bound in nats, summed over the data: before the first step, then after each. Priors of hyperparameters
        are left out.
    :raises ValueError: If an argument is out of range or the data cannot be read.
    :raises TypeError: If model or distribution are of another kind.
    :raises NotImplementedError: For batches of models and for several predictors.

    Example:
        >>> fit(model, likelihood, loader)
        >>> history = polish(model, likelihood, loader)  # at the hyperparameters that fit found
    """
    for name, value in (("max_passes", max_passes), ("chunk_size", 1 if chunk_size is None else chunk_size)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if not tolerance >= 0:
        raise ValueError(f"tolerance must not be negative, got {tolerance!r}")
    strategy = validated_strategy(model, (*StructuredDistribution, CholeskyVariationalDistribution))
    batches = every_row(batches)
    with torch.no_grad(), modes_kept(model, likelihood):
        model.train()
        likelihood.train()
        strategy._initialize_once()
        chunk_size = _default_chunk_size(strategy) if chunk_size is None else chunk_size
        return _Polish(strategy, likelihood, batches, dense_limit, chunk_size).run(max_passes, tolerance)


def _default_chunk_size(strategy: AdditiveVariationalStrategy) -> int:
    """Larger blocks of memory are mapped anew each time by common allocators, which takes longer than the work."""
    numbers = 2**27 if strategy.predictor.device.type == "cuda" else 2**21
    return max(1, min(8192, numbers // strategy.predictor.num_inducing_total))


class _Polish:
    """The loop, and the last accepted posterior."""

    def __init__(
        self,
        strategy: AdditiveVariationalStrategy,
        likelihood: Likelihood,
        batches: Iterable[tuple[Tensor, Tensor]],
        dense_limit: int,
        chunk_size: int,
    ) -> None:
        self._strategy, self._likelihood = strategy, likelihood
        self._batches, self._chunk_size = batches, chunk_size
        is_dense = strategy.predictor.num_inducing_total <= dense_limit
        self._accepted = deepcopy(strategy._variational_distribution.state_dict())
        self._steps: _Steps = _DenseSteps(strategy) if is_dense else _StreamedSteps(strategy)
        # The Gaussian optimum does not depend on where the step starts.
        self._is_closed_form = is_dense and isinstance(likelihood, GaussianLikelihood)

    def run(self, max_passes: int, tolerance: float) -> list[float]:
        try:
            return self._run(max_passes, tolerance)
        except BaseException:  # an interrupted pass leaves the last accepted posterior
            self._restore()
            raise

    def _restore(self) -> None:
        self._strategy._variational_distribution.load_state_dict(self._accepted)

    def _run(self, max_passes: int, tolerance: float) -> list[float]:
        stream, bound = self._look()
        if not math.isfinite(bound):
            raise ValueError(f"the bound of {type(self._likelihood).__name__} is {bound} at the present posterior")
        history = [bound]
        for _ in range(max_passes):
            moved = self._move(stream, history[-1])
            if moved is None:
                break
            stream, bound, rate = moved
            history.append(bound)
            if self._is_closed_form or bound - history[-2] <= tolerance * rate:
                break
        return history

    def _look(self) -> tuple[DataStream, float]:
        """Derivatives of all rows under the present posterior, and the bound."""
        stream = DataStream(self._strategy, self._likelihood, self._batches, self._chunk_size)
        self._steps.read(stream)
        return stream, stream.expected - self._strategy.kl_divergence().double().item()

    def _move(self, stream: DataStream, bound: float) -> tuple[DataStream, float, float] | None:
        """
        One step, halved until the bound does not fall.

        :return: Derivatives and bound after the step, and its size; None if there is no such step.
        """
        rate = 1.0
        for _ in range(_MAX_HALVINGS):
            proposal = self._steps.propose(stream, rate)
            self._steps.write(proposal)
            try:
                after, new_bound = self._look()
            except OverflowingLikelihoodError:
                new_bound = float("nan")
            if new_bound >= bound - _ROUNDING * (abs(stream.expected) + abs(bound)):
                self._steps.state = proposal
                self._accepted = deepcopy(self._strategy._variational_distribution.state_dict())
                return after, new_bound, rate
            rate /= 2
        self._restore()
        return None


class _Steps(ABC):
    """
    How the posterior moves.

    :ivar state: the last accepted posterior.
    """

    state: Any

    @abstractmethod
    def read(self, stream: DataStream) -> None:
        """Read the sums that a step needs; the stream keeps them."""

    @abstractmethod
    def propose(self, stream: DataStream, rate: float) -> Any:
        """The posterior after a step of this size from ``state``, to which the stream belongs."""

    @abstractmethod
    def write(self, state: Any) -> None:
        """Set the variational distribution."""


class _DensePosterior(NamedTuple):
    mean: Tensor  # m, (Q,)
    excess: Tensor  # P - I, (Q, Q)


class _DenseSteps(_Steps):
    def __init__(self, strategy: AdditiveVariationalStrategy) -> None:
        self._strategy = strategy
        distribution = strategy.variational_distribution
        covariance = distribution.lazy_covariance_matrix.to_dense().double()
        excess = torch.linalg.inv(covariance)
        excess.diagonal().sub_(1.0)
        self.state = _DensePosterior(distribution.mean.to(torch.float64, copy=True), excess)

    def read(self, stream: DataStream) -> None:
        stream.gram()

    def propose(self, stream: DataStream, rate: float) -> _DensePosterior:
        gram, projected = stream.gram()
        excess = torch.lerp(self.state.excess, gram, rate)
        gradient = (projected - self.state.mean).unsqueeze(-1)
        direction = torch.cholesky_solve(gradient, torch.linalg.cholesky(add_identity(excess))).squeeze(-1)
        if rate < 1:  # Newton's step was too long: curvatures are no guide so far away
            direction = torch.clamp(REACH * stream.resistance(direction).reach, max=1.0) * direction
        return _DensePosterior(self.state.mean + rate * direction, excess)

    def write(self, state: _DensePosterior) -> None:
        self._strategy.set_whitened_posterior(state.mean, add_identity(state.excess))


class _StreamedSteps(_Steps):
    def __init__(self, strategy: AdditiveVariationalStrategy) -> None:
        q = strategy._variational_distribution
        if not isinstance(q, StructuredDistribution):
            raise TypeError(
                f"a {type(q).__name__} of {q.num_inducing_points} inducing variables needs a dense matrix: raise "
                "dense_limit, or use BlockLowRankPrecisionVariationalDistribution"
            )
        self._distribution = q
        self.state = read_posterior(q, strategy.predictor.group_shapes)

    def read(self, stream: DataStream) -> None:
        stream.totals(self.state.shapes)

    def propose(self, stream: DataStream, rate: float) -> Posterior:
        size = torch.as_tensor(rate).to(self.state.mean)
        step, tolerance = exact_step(self.state, stream, size, self._family()), self._distribution.rank_tolerance
        return step.posterior if tolerance is None else widened(step, self._family(), tolerance)

    def _family(self) -> Family:
        is_block = family_of(self._distribution).has_blocks
        return Family(is_block, 0 if self.state.factor is None else self.state.factor.shape[-1])

    def write(self, state: Posterior) -> None:
        write_posterior(self._distribution, state)
