"""Posteriors of likelihoods that are not Gaussian, by Gaussian sites that each pass over the rows finds again."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gpytorch_gam.mlls import GaussianOptimum
from gpytorch_gam.variational._expected_gradients import ExpectedGradients, expected_gradients

from ._discretized_data import DiscretizedData, LevelTables
from ._discretized_problem import DiscretizedProblem
from ._level_statistics import LevelStatistics
from ._quasi_newton import ObjectiveError
from ._tabulated_gradients import distinct_responses, tabulated

# Steps end when the next one promises less than this part of the tolerance: there are many directions to be right in.
SHARE_OF_TOLERANCE = 0.3

# Steps of the hyperparameters between two passes over the rows.
_SITE_STEPS = 12

# Nats that the bound may fall by rounding and quadrature, relative to its size.
_ROUNDING = 1e-9

_MAX_HALVINGS = 10


class _Look(NamedTuple):
    """A pass over the rows."""

    bound: float
    sites: LevelTables


class _State(NamedTuple):
    """What a fit has come to."""

    hyperparameters: list[Tensor]
    optimum: GaussianOptimum  # the posterior
    look: _Look  # at it


class SiteFit:
    """The loop: posterior, sites there, and hyperparameters, as they were accepted last."""

    def __init__(self, problem: DiscretizedProblem, data: DiscretizedData) -> None:
        self._problem, self._data = problem, data
        self._responses = distinct_responses(data.responses)
        self._state: _State | None = None

    @property
    def optimum(self) -> GaussianOptimum:
        """The posterior that was accepted last."""
        assert self._state is not None
        return self._state.optimum

    def run(
        self,
        start: GaussianOptimum | None,
        max_passes: int,
        tolerance: float,
        callback: Callable[[float], Any] | None,
    ) -> list[float]:
        """
        Passes until one gains no more than the tolerance.

        :param start: The posterior to begin with; None for a narrow one around the prior's mean.
        :param max_passes: Besides the first look.
        :param tolerance: In nats.
        :param callback: Called with each bound that is accepted.
        :return: These bounds.
        """
        state = self._first_state(start)
        history: list[float] = []
        rate, num_halvings = 1.0, 0
        for _ in range(max_passes):
            optimum = self._proposal(state, rate, tolerance)
            look = None if optimum is None else self._look(optimum)
            gain = -math.inf if look is None else look.bound - state.look.bound
            rounding = _ROUNDING * abs(state.look.bound)
            if optimum is None or look is None or gain < -rounding:
                self._restore(state)
                rate, num_halvings = 0.5 * rate, num_halvings + 1
                if num_halvings > _MAX_HALVINGS or (rate == 0.5 and gain >= -tolerance):
                    break  # it has arrived
                continue
            state = _State(self._hyperparameters(), optimum, look)
            history.append(look.bound)
            if callback is not None:
                callback(look.bound)
            if rate == 1.0 and gain <= tolerance:
                break
            rate, num_halvings = min(1.0, 2.0 * rate), 0
        self._state = state
        return history or [state.look.bound]

    def _first_state(self, start: GaussianOptimum | None) -> _State:
        look = None if start is None else self._look(start)
        if start is None or look is None:
            start = self._problem.narrow_prior(self._data)
            look = self._look(start)
        if look is None:
            raise ValueError(
                f"the gradient of the expected log-likelihood of {type(self._problem.likelihood).__name__} is NaN or "
                "infinite near the prior: look for such values in the responses"
            )
        return _State(self._hyperparameters(), start, look)

    def _proposal(self, state: _State, rate: float, tolerance: float) -> GaussianOptimum | None:
        """
        A part of the way to the posterior of the sites that were seen last. With a full step the hyperparameters move
        as well.

        :return: None if there is no such posterior in the range of numbers.
        """
        sites = state.look.sites
        statistics = LevelStatistics(self._problem.strategy, self._problem.terms, sites)
        try:
            if rate == 1.0:
                self._problem.maximise(sites, statistics, 0, SHARE_OF_TOLERANCE * tolerance, _SITE_STEPS)
            with torch.no_grad():
                optimum = self._problem.optimum(statistics, 0)
        except (torch.linalg.LinAlgError, ObjectiveError):
            return None
        return optimum._replace(
            mean=torch.lerp(state.optimum.mean, optimum.mean, rate),
            precision=torch.lerp(state.optimum.precision, optimum.precision, rate),
        )

    def _hyperparameters(self) -> list[Tensor]:
        return [parameter.detach().clone() for parameter in self._problem.hyperparameters]

    @torch.no_grad()
    def _restore(self, state: _State) -> None:
        for parameter, value in zip(self._problem.hyperparameters, state.hyperparameters, strict=True):
            parameter.copy_(value)

    @torch.no_grad()
    def _look(self, optimum: GaussianOptimum) -> _Look | None:
        """
        The bound and the sites at a posterior, from one pass over the rows.

        :param optimum: The posterior.
        :return: None if there are infinite numbers.
        """
        problem, data = self._problem, self._data
        tables, divergence = problem.moments(data, optimum)
        mean, variance = data.moments(tables)
        mean += problem.constant()
        curvatures, targets = torch.empty_like(mean), torch.empty_like(mean)
        derivatives = self._derivatives(mean, variance)

        def differentiate(rows: slice) -> Tensor:
            fitted, found = mean[rows], derivatives(rows)
            curvatures[rows] = found.curvatures
            targets[rows] = torch.addcmul(found.gradients, found.curvatures, fitted)
            # What does not depend on the hyperparameters, g^2 / lambda, is left out.
            square = (found.curvatures * fitted.square() + 2 * found.gradients * fitted).sum()
            return torch.stack([found.expected.sum(), square])

        expected, squares = torch.stack(data.map_rows(differentiate)).sum(0)
        if not torch.isfinite(targets.sum() + curvatures.sum() + expected):
            return None
        return _Look(expected.item() - divergence, data.tables(curvatures, targets, squares))

    def _derivatives(self, mean: Tensor, variance: Tensor) -> Callable[[slice], ExpectedGradients]:
        """
        Those of the expected log-likelihood, as a function of the rows.

        :param mean: Of the predictor without offset, ``(n,)``.
        :param variance: Of the predictor, ``(n,)``.
        """
        data, likelihood, dtype = self._data, self._problem.likelihood, self._problem.strategy.predictor.dtype
        total = mean if data.offset is None else mean + data.offset
        if self._responses is not None:
            levels, codes = self._responses
            table = tabulated(likelihood, levels, codes, total, variance)
            if table is not None:
                return lambda rows: table(codes[rows], total[rows], variance[rows])
        return lambda rows: expected_gradients(
            likelihood, data.responses[rows], total[rows].to(dtype), variance[rows].to(dtype)
        )
