"""Posteriors for likelihoods that are not Gaussian, by Gaussian sites that each pass over the rows computes anew."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpytorch_gam.likelihoods.expected_gradients import ExpectedGradients
from gpytorch_gam.mlls import GaussianOptimum

from .._component_jumps import best_after_jumps
from .._quasi_newton import ObjectiveError
from ._data import BinTables, DiscretizedData
from ._likelihood_ascent import LikelihoodAscent
from ._problem import DiscretizedProblem
from ._statistics import BinStatistics
from ._tabulated_gradients import WeightedRows, distinct_responses, tabulated

# Stop when the predicted gain of a step is below this fraction of `tolerance`: gains left in many directions add up.
SHARE_OF_TOLERANCE = 0.3

# Number of steps of the hyperparameters between two passes over the rows.
_SITE_STEPS = 12

# Largest fall of the bound, relative to its size, that counts as an error of rounding or quadrature.
_ROUNDING = 1e-9

# Largest fall of the bound, relative to its size, that may come from tables of derivatives.
_NOISE = 1e-5

# Shortest step, as a share of the way to the posterior of the sites, before the fit is given up.
_SMALLEST_RATE = 1e-8

# Hyperparameters start to move once the gain of a pass differs from the sites' prediction by at most this fraction.
_FORETOLD = 0.25

# Factor on the size of a step of the posterior alone that lowers the bound.
_SHORTER = 0.3

# Number of rows from which the model without effects is estimated, and its precision relative to the prior's.
_NULL_ROWS, _NULL_WEIGHT = 500, 100.0


class _Pass(NamedTuple):
    """The results of a pass over the rows."""

    bound: float
    log_prior: float  # of the hyperparameters
    sites: BinTables
    rest: float  # constant to be added to the bound of the sites, so that it equals the bound here

    @property
    def objective(self) -> float:
        """What is maximised."""
        return self.bound + self.log_prior


class _State(NamedTuple):
    """An accepted state of the fit."""

    hyperparameters: list[Tensor]
    optimum: GaussianOptimum  # the posterior
    seen: _Pass  # the pass at this posterior


class _End(NamedTuple):
    """The end of a sequence of passes."""

    state: _State
    history: list[float]  # accepted bounds
    open: float  # predicted gain of a further pass in nats
    gradient: float  # largest derivative of the objective in the coordinates of the hyperparameters; NaN if not known
    stopped: str  # why


class _Proposal(NamedTuple):
    """The posterior of the sites of a state, and hyperparameters that may have moved with it."""

    hyperparameters: list[Tensor]
    optimum: GaussianOptimum
    promised: float  # predicted gain of the objective in nats
    open: float  # predicted gain of a further step of the hyperparameters in nats


class SiteFit:
    """The loop of the fit, and its last accepted state."""

    def __init__(self, problem: DiscretizedProblem, data: DiscretizedData) -> None:
        self._problem, self._data = problem, data
        # Without row-wise arguments, rows with equal responses have equal log-likelihoods, which can be tabulated.
        self._responses = None if data.arguments else distinct_responses(data.responses)
        self._processes = data.processes
        self._likelihood_ascent = LikelihoodAscent(problem.likelihood, data.num_rows, data.num_threads, self._processes)
        self._state: _State | None = None
        #: Predicted gain of a further pass in nats, after :meth:`run`, as all that follows.
        self.open: float
        #: The largest derivative of the objective in the coordinates of the hyperparameters; NaN if it is not known.
        self.gradient: float
        #: Why it ended.
        self.stopped: str
        #: Number of passes over the rows.
        self.passes = 0
        #: Whether any step was accepted.
        self.has_moved = False

    @property
    def evaluations(self) -> int:
        """Number of evaluations of the rows' expected log-likelihood by the likelihood's parameters."""
        return self._likelihood_ascent.evaluations

    @property
    def optimum(self) -> GaussianOptimum:
        """The posterior of the last accepted state."""
        assert self._state is not None
        return self._state.optimum

    def run(
        self,
        start: GaussianOptimum | None,
        max_passes: int,
        tolerance: float,
        callback: Callable[[float], Any] | None,
        jumps: bool = True,
    ) -> list[float]:
        """
        Make passes from the posterior ``start`` (default that of the model without effects) until one gains no more
        than ``tolerance``, and if that ``jumps``, again from other lengthscales and variances of single components for
        as long as these are better; returns the accepted bounds.
        """
        gain = SHARE_OF_TOLERANCE * tolerance
        history: list[float] = []

        def passes(begin: GaussianOptimum | None) -> _End:
            end = self._passes_from(begin, max_passes - self.passes, tolerance, callback, list(history))
            history[:] = end.history
            return end

        def jump_and_pass() -> _End | None:
            jumped = self._jumped(gain) if self.passes < max_passes else None
            return None if jumped is None else passes(jumped)

        end = passes(start)
        best = best_after_jumps(end, jump_and_pass, lambda each: each.state.seen.objective, gain) if jumps else end
        self._state, accepted, self.open, self.gradient, self.stopped = best
        self._set(best.state.hyperparameters)
        self.has_moved = bool(accepted)
        return accepted or [best.state.seen.bound]

    def _jumped(self, least_gain: float) -> GaussianOptimum | None:
        """The posterior of the present sites at other hyperparameters that are better for them; None without any."""
        assert self._state is not None
        found = self._shared(self._own_jump(self._state, least_gain) if self._processes.leads else None, self._state)
        return None if found is None else found.optimum

    def _own_jump(self, state: _State, least_gain: float) -> _Proposal | None:
        problem = self._problem
        statistics = BinStatistics(problem.strategy, problem.terms, state.seen.sites)
        with suppress(torch.linalg.LinAlgError, ObjectiveError):
            before = problem.bound(statistics)
            if not problem.jump(statistics, least_gain):
                problem.maximise_afresh(statistics, least_gain, _SITE_STEPS)
            if problem.bound(statistics) > before + least_gain:
                with torch.no_grad():
                    return _Proposal(self._hyperparameters(), problem.optimum(statistics), 0.0, 0.0)
        self._set(state.hyperparameters)
        return None

    def _passes_from(
        self,
        start: GaussianOptimum | None,
        max_passes: int,
        tolerance: float,
        callback: Callable[[float], Any] | None,
        history: list[float],
    ) -> _End:
        """
        Passes until one gains no more than the tolerance; their bounds go into ``history``. Hyperparameters wait until
        the sites predict the gain of a pass, or nothing is left to gain without them: sites far from the data carry no
        information on hyperparameters.
        """
        state = self._first_state(start)
        self.open, self.gradient, self.stopped = math.inf, math.nan, "max_passes is reached"
        rate, may_move, proposal = 1.0, start is not None, None
        fallen = 0.0  # gain of the last step, if it was taken back
        has_repeated = False  # whether a pass was made only because the one before left something open
        for _ in range(max_passes):
            moves = may_move and rate == 1.0
            proposal = self._proposal(state, moves, tolerance) if proposal is None else proposal
            optimum = None if proposal is None else self._part(state, proposal, rate)
            seen = (
                None if optimum is None else self._pass(optimum, SHARE_OF_TOLERANCE * tolerance if may_move else None)
            )
            gain = -math.inf if seen is None else seen.objective - state.seen.objective
            if optimum is None or seen is None or gain < -_ROUNDING * abs(state.seen.objective):
                self.open = math.inf if proposal is None else max(proposal.promised, proposal.open)
                self._set(state.hyperparameters)
                # A concave bound falls less after a shorter step: one that does not has errors of this size.
                is_noise = -_NOISE * abs(state.seen.objective) <= gain <= fallen < 0.0
                fallen = gain
                if rate < _SMALLEST_RATE or is_noise or (gain >= -tolerance and self.open <= tolerance):
                    self.stopped = "no step raises the bound any more"
                    self._measure(state)
                    break
                rate *= _shortening(gain, 0.0 if proposal is None else proposal.promised * rate)
                continue
            assert proposal is not None
            fallen = 0.0
            state = _State(self._hyperparameters(), optimum, seen)
            history.append(seen.bound)
            if callback is not None:
                callback(seen.bound)
            self.open = max(gain, proposal.open)
            foretold = abs(gain - proposal.promised) <= _FORETOLD * proposal.promised
            is_last = rate == 1.0 and self.open <= tolerance and (moves or not self._problem.hyperparameters)
            may_move = may_move or (rate == 1.0 and (foretold or gain <= tolerance))
            rate, proposal = min(1.0, 2.0 * rate), None
            if is_last:  # unless the sites of this pass say otherwise, for the first time: tables have errors
                achieved = self.open
                self._measure(state)
                self.open = achieved if has_repeated else self.open
                has_repeated = True
                if self.open <= tolerance:
                    self.stopped = "the bound is at a maximum"
                    break
        else:
            self._measure(state)
        self._state = state
        return _End(state, history, self.open, self.gradient, self.stopped)

    @property
    def sites(self) -> BinTables:
        """The sums over the sites of the last accepted state."""
        assert self._state is not None
        return self._state.seen.sites

    @property
    def objective(self) -> float:
        """The bound of the last accepted state, with the priors of the hyperparameters."""
        assert self._state is not None
        return self._state.seen.objective

    def settle(
        self,
        start: GaussianOptimum,
        max_passes: int,
        tolerance: float,
        promise: float,
        sites: BinTables | None = None,
    ) -> GaussianOptimum | None:
        """
        Bring the posterior to its optimum at the present hyperparameters, by passes until the next one promises no more
        than ``promise`` nats, or one gains no more than ``tolerance``; None if the bound is not finite. It starts from
        that of ``sites`` at these hyperparameters, or without them or where it has no bound from ``start``.
        """
        own = None if sites is None else self._of_sites(sites)
        seen = None if own is None else self._pass(own)
        if own is None or seen is None:
            own, seen = start, self._pass(start)
        if seen is None:
            return None
        self._state, rate = _State(self._hyperparameters(), own, seen), 1.0
        for _ in range(max_passes):
            proposal = self._proposal(self._state, False, tolerance)
            if proposal is not None and abs(proposal.promised) <= promise:
                break
            optimum = None if proposal is None else self._part(self._state, proposal, rate)
            seen = None if optimum is None else self._pass(optimum)
            gain = -math.inf if seen is None else seen.bound - self._state.seen.bound
            if optimum is None or seen is None or gain < -_ROUNDING * abs(self._state.seen.bound):
                rate *= _SHORTER
                continue
            self._state = _State(self._state.hyperparameters, optimum, seen)
            if gain <= tolerance * rate:
                break
        return self.optimum

    @torch.no_grad()
    def _of_sites(self, sites: BinTables) -> GaussianOptimum | None:
        """Their posterior at the present hyperparameters; None if it overflows."""
        with suppress(torch.linalg.LinAlgError):
            return self._problem.optimum(BinStatistics(self._problem.strategy, self._problem.terms, sites))
        return None

    def differentiate(self, parameters: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """
        The objective at the posterior of :meth:`settle`, and its gradients in some hyperparameters at that posterior:
        those of the sites' bound, but in the likelihood's parameters those of the rows' expected log-likelihood.
        """
        assert self._state is not None
        problem, data = self._problem, self._data
        statistics = BinStatistics(problem.strategy, problem.terms, self._state.seen.sites)
        with torch.no_grad():
            mean, variance = data.moments(problem.moments(data, self._state.optimum)[0])
            mean += problem.constant()
        own = {id(parameter) for parameter in self._likelihood_ascent.parameters}
        with torch.enable_grad():
            terms = [problem.objective(statistics)]
            if own:
                terms.append(self._likelihood_ascent.objective(self._weighted_rows(mean, variance)))
            found = [torch.autograd.grad(term, parameters, allow_unused=True) for term in terms]
        chosen = [found[-1 if id(parameter) in own else 0][i] for i, parameter in enumerate(parameters)]
        gradients = [torch.zeros_like(p) if g is None else g for g, p in zip(chosen, parameters, strict=True)]
        return mean.new_tensor(self.objective), gradients

    def _first_state(self, start: GaussianOptimum | None) -> _State:
        for posterior in itertools.chain([] if start is None else [start], self._starts()):
            seen = self._pass(posterior)
            if seen is not None:
                return _State(self._hyperparameters(), posterior, seen)
        raise ValueError(
            f"the gradient of the expected log-likelihood of {type(self._problem.likelihood).__name__} is NaN or "
            "infinite for the model without effects: look for such values in the responses, or for some that the "
            "likelihood cannot have"
        )

    @torch.no_grad()
    def _starts(self) -> Iterator[GaussianOptimum]:
        """The posterior of the model without effects, then narrower ones, because exponential links may overflow."""
        problem, some = self._problem, self._data.thinned(_NULL_ROWS)
        prior = problem.prior()
        variances = some.moments(problem.moments(some, prior)[0])[1]
        variance = self._processes.sum([variances.sum()])[0].item() / some.num_all
        narrow = (problem.variance_of_effects() or variance) / _NULL_WEIGHT
        place = self._null_place(some, variance, min(narrow, 1.0))
        posterior = problem.constant_posterior(some, place, 1.0 / narrow)
        yield posterior
        for widest in (1.0, 1e-3):
            variances = self._data.moments(problem.moments(self._data, posterior)[0])[1]
            most = -self._processes.minimum(-variances.amax())
            yield posterior._replace(precision=posterior.precision * (most / widest).clamp_min(1.0))

    def _null_place(self, some: DiscretizedData, variance: float, narrow: float) -> float:
        """
        The most probable predictor if it is the same in some rows, offset aside. ``variance`` is that of its prior,
        ``narrow`` one that makes log-likelihoods smooth.
        """
        likelihood, dtype = self._problem.likelihood, self._problem.strategy.predictor.dtype
        centre, factor = float(self._problem.constant()), self._data.num_all / some.num_all
        variances = torch.full_like(some.responses, narrow, dtype=dtype)
        offset = torch.zeros_like(variances) if some.offset is None else some.offset.to(dtype)

        def slope(place: float) -> float:
            with self._processes.sharing_errors("evaluate its likelihood", variances.device):
                found = some.gradients(likelihood, offset + place, variances, slice(None), dtype)
            total = self._processes.sum([found.gradients.sum().double()])[0].item()
            return factor * total - (place - centre) / variance

        return _zero_of_falling(slope, centre, math.sqrt(variance))

    def _proposal(self, state: _State, moves: bool, tolerance: float) -> _Proposal | None:
        """The posterior of a state's sites, and hyperparameters at their optimum if ``moves``; None if it overflows."""
        return self._shared(self._own_proposal(state, moves, tolerance) if self._processes.leads else None, state)

    def _shared(self, proposal: _Proposal | None, state: _State) -> _Proposal | None:
        """The proposal of the first process, so that all do the same to the last bit; it sets the hyperparameters."""
        if self._processes.is_alone:
            return proposal
        numbers = self._processes.of_first(None if proposal is None else (proposal.promised, proposal.open))
        self._processes.broadcast(self._problem.hyperparameters)
        if numbers is None:
            return None
        optimum = GaussianOptimum(*map(torch.empty_like, state.optimum)) if proposal is None else proposal.optimum
        self._processes.broadcast(optimum)
        return _Proposal(self._hyperparameters(), optimum, *numbers)

    def _own_proposal(self, state: _State, moves: bool, tolerance: float) -> _Proposal | None:
        still_open = 0.0
        statistics = BinStatistics(self._problem.strategy, self._problem.terms, state.seen.sites)
        try:
            if moves:
                still_open = self._problem.maximise(statistics, SHARE_OF_TOLERANCE * tolerance, _SITE_STEPS)
            with torch.no_grad():
                optimum = self._problem.optimum(statistics)
        except (torch.linalg.LinAlgError, ObjectiveError):
            self._set(state.hyperparameters)
            return None
        promised = optimum.bound.item() + state.seen.rest + self._problem.log_prior() - state.seen.objective
        return _Proposal(self._hyperparameters(), optimum, promised, still_open)

    def _measure(self, state: _State) -> None:
        """Find what is open at a state: for the posterior, given the sites, and for the hyperparameters."""
        if self._processes.leads:
            self._measure_alone(state)
        self.open, self.gradient = self._processes.of_first((self.open, self.gradient))

    def _measure_alone(self, state: _State) -> None:
        statistics = BinStatistics(self._problem.strategy, self._problem.terms, state.seen.sites)
        with suppress(torch.linalg.LinAlgError, ObjectiveError):
            found = self._problem.open_at(statistics)
            self.open = max(found.objective + state.seen.rest - state.seen.objective, 0.0) + found.nats
            self.gradient = max(found.gradient, self._likelihood_ascent.gradient)

    def _part(self, state: _State, proposal: _Proposal, rate: float) -> GaussianOptimum:
        """Go a part of the way from a state to a proposal: sets the hyperparameters, and returns the posterior."""
        pairs = zip(state.hyperparameters, proposal.hyperparameters, strict=True)
        self._set([torch.lerp(old, new, rate) for old, new in pairs])
        return proposal.optimum._replace(
            mean=torch.lerp(state.optimum.mean, proposal.optimum.mean, rate),
            precision=torch.lerp(state.optimum.precision, proposal.optimum.precision, rate),
        )

    def _hyperparameters(self) -> list[Tensor]:
        return [parameter.detach().clone() for parameter in self._problem.hyperparameters]

    @torch.no_grad()
    def _set(self, hyperparameters: list[Tensor]) -> None:
        for parameter, value in zip(self._problem.hyperparameters, hyperparameters, strict=True):
            parameter.copy_(value)

    @torch.no_grad()
    def _pass(self, optimum: GaussianOptimum, nats: float | None = None) -> _Pass | None:
        """
        The bound and the sites at a posterior, from one pass over the rows; None if any number is not finite. Before,
        the likelihood's parameters move until a step promises less than ``nats``, unless this is None.
        """
        problem, data = self._problem, self._data
        self.passes += 1
        tables, divergence = problem.moments(data, optimum)
        mean, variance = data.moments(tables)
        mean += problem.constant()
        if nats is not None and self._likelihood_ascent.parameters:
            self._likelihood_ascent.maximise(self._weighted_rows(mean, variance), nats)
        curvatures, targets = torch.empty_like(mean), torch.empty_like(mean)
        derivatives = self._derivatives(mean, variance)

        def differentiate(rows: slice) -> Tensor:
            fitted, found = mean[rows], derivatives(rows)
            curvatures[rows] = found.curvatures
            targets[rows] = torch.addcmul(found.gradients, found.curvatures, fitted)
            # The term g^2 / lambda is left out: it does not depend on the hyperparameters.
            square = (found.curvatures * fitted.square() + 2 * found.gradients * fitted).sum()
            return torch.stack([found.expected.sum(), square, found.curvatures @ variance[rows]])

        with self._processes.sharing_errors("evaluate its likelihood", mean.device):
            expected, squares, excess = torch.stack(data.map_rows(differentiate)).sum(0)
        flaw = 0.0 * (targets.sum() + curvatures.sum())  # NaN if any is not finite
        own = expected.new_tensor(divergence if self._processes.leads else 0.0)  # that of the first process
        expected, excess, flaw, divergence = torch.stack(self._processes.sum([expected, excess, flaw, own])).tolist()
        if not math.isfinite(expected + flaw):
            return None
        rest = expected + 0.5 * excess
        sites = data.tables(curvatures, targets, squares)
        return _Pass(expected - divergence, problem.log_prior(), sites, rest)

    def _derivatives(self, mean: Tensor, variance: Tensor) -> Callable[[slice], ExpectedGradients]:
        """A function from rows to derivatives of the expected log-likelihood, given moments ``(n,)`` without offset."""
        data, likelihood, dtype = self._data, self._problem.likelihood, self._problem.strategy.predictor.dtype
        total = mean if data.offset is None else mean + data.offset
        if self._responses is not None:
            distinct, codes = self._responses
            table = tabulated(likelihood, distinct, codes, total, variance)
            if table is not None:
                return lambda rows: data.weighted(table(codes[rows], total[rows], variance[rows]), rows)
        return lambda rows: data.gradients(likelihood, total[rows], variance[rows], rows, dtype)

    def _weighted_rows(self, mean: Tensor, variance: Tensor) -> WeightedRows:
        """The rows with these moments, without offset; where they can be tabulated, at the knots of the table."""
        data = self._data
        total = mean if data.offset is None else mean + data.offset
        if self._responses is not None:
            distinct, codes = self._responses
            table = tabulated(self._problem.likelihood, distinct, codes, total, variance)
            if table is not None:
                return table.spread(codes, total, variance, data.weights)
        return WeightedRows(data.responses, total, variance, data.weights, data.arguments)


def _shortening(gain: float, promised: float) -> float:
    """The factor to shorten a step by: the top of the parabola through its gain with the predicted initial slope."""
    if not math.isfinite(gain):
        return 0.1
    slope = 2.0 * max(promised, 0.0)
    return min(max(0.5 * slope / (slope - gain), 0.1), 0.5)


def _zero_of_falling(function: Callable[[float], float], start: float, step: float) -> float:
    """
    The zero of a falling function, where NaN and infinity count as beyond it; ``step`` is the first step from
    ``start``.
    """
    from scipy.optimize import brentq  # here, because it takes long to import

    value = function(start)
    if value == 0.0 or not math.isfinite(value):
        return start
    sign = math.copysign(1.0, value)

    def bounded(place: float) -> float:
        found = function(place)
        return found if math.isfinite(found) else -sign * abs(value)

    inner, outer = start, start + sign * step
    while sign * bounded(outer) > 0.0:
        inner, outer = outer, outer + 2.0 * (outer - inner)
    return brentq(bounded, inner, outer, xtol=1e-3 * step, rtol=1e-6)
