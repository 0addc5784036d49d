"""Fits that add inducing points where these pay."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from gpytorch_gam.components import ComponentGroup
from gpytorch_gam.variational import AdditiveVariationalStrategy

from ._rough_effects import RoughEffect
from .fit_result import Outcome, joined

# Nats that more points must promise a group to be added, and the part of them that a fit with more points must have
# gained for a further step.
WORTH, _KEPT_PROMISE = 1.0, 0.25

# Tolerance in nats of fits that only tell where points are missing.
_LOOSE = 1.0

# Largest number of inducing points of all components together, because the work of a fit grows with its third power:
# in general, and where some have more than _FEW times their first number. Tables of many columns rarely gain from
# these: concrete, with eight columns, takes 3.6 times as long for 16 nats, and leaves no room for interactions.
MOST_INDUCING, _MOST_WITH_MANY = 1024, 640
_FEW = 4


def grow(
    strategy: AdditiveVariationalStrategy,
    run: Callable[[float, bool], Outcome],
    shortfalls: Callable[[Outcome], Mapping[str, float]],
    tolerance: float,
    most_inducing: Callable[[], int] = lambda: MOST_INDUCING,
    rough_effects: Callable[[], Sequence[RoughEffect]] = lambda: (),
    *,
    keeps_posterior: bool = True,
) -> tuple[Outcome, dict[str, float]]:
    """
    Fit, and while groups whose number of inducing points is left to the fit would gain more than ``WORTH`` from others,
    double these and fit again: loosely at first, and to the tolerance once there are points enough. Before that, groups
    with effects that are too rough for their points to be seen get the points that these need.

    :param strategy: The strategy of the model.
    :param run: Fits the model from its present hyperparameters to a tolerance in nats, and if asked to, looks for other
        maxima in the end. That takes long with many points: loose fits that go on from another one leave it out.
    :param shortfalls: Nats that more points would bring to each component, by name, see :func:`.inducing_shortfall`.
    :param tolerance: The tolerance of the last fit in nats.
    :param most_inducing: Largest number of inducing points of all components together.
    :param rough_effects: Finds such effects where a fit has ended.
    :param keeps_posterior: Whether a fit starts from the posterior of the one before.
    :return: The outcome of all fits, and the last shortfalls.
    """
    growth = _Growth(strategy, run, shortfalls, most_inducing, keeps_posterior)
    loose, can_grow = max(tolerance, _LOOSE), _can_grow(strategy)
    if can_grow:
        growth.fit_while_points_pay(loose, always_jumps=loose == tolerance)
        if _begin_rough_effects(strategy, rough_effects(), most_inducing(), keeps_posterior):
            growth.pays = True
            growth.fit_while_points_pay(loose, always_jumps=loose == tolerance)
    if loose > tolerance or not can_grow:
        growth.fit_while_points_pay(tolerance, always_jumps=True)
    return joined(growth.outcomes), growth.found


class _Growth:
    """Fits between which inducing points are added, see :func:`grow`."""

    def __init__(
        self,
        strategy: AdditiveVariationalStrategy,
        run: Callable[[float, bool], Outcome],
        shortfalls: Callable[[Outcome], Mapping[str, float]],
        most_inducing: Callable[[], int],
        keeps_posterior: bool,
    ) -> None:
        self._strategy, self._run, self._shortfalls = strategy, run, shortfalls
        self._most_inducing, self._keeps_posterior = most_inducing, keeps_posterior
        self.outcomes: list[Outcome] = []
        self.found: dict[str, float] = {}  # the last shortfalls
        self.pays = True  # whether points have gained a part of what they promised

    def fit_while_points_pay(self, tolerance: float, *, always_jumps: bool) -> None:
        """Fit, at first with a look for other maxima, and again with more points where these promise to pay."""
        before, promised, jumps = -math.inf, 0.0, True
        while True:
            outcome = self._run(tolerance, jumps)
            self.outcomes.append(outcome)
            self.found = dict(self._shortfalls(outcome))
            self.pays = self.pays and outcome.bound - before >= min(WORTH, _KEPT_PROMISE * promised)
            needy = _needy(self._strategy, self.found, self._most_inducing()) if self.pays else []
            if not needy:
                return
            self._strategy.add_inducing_points([name for group in needy for name in group.names], self._keeps_posterior)
            before, promised = outcome.bound, sum(_need(group, self.found) for group in needy)
            jumps = always_jumps


def _can_grow(strategy: AdditiveVariationalStrategy) -> bool:
    return any(group.more_inducing_points() is not None for group in strategy.predictor.groups)


def _begin_rough_effects(
    strategy: AdditiveVariationalStrategy, effects: Sequence[RoughEffect], most: int, keeps_posterior: bool
) -> bool:
    """Give components the points that their rough effects need, those that gain most first; whether any got them."""
    begun = False
    for effect in sorted(effects, key=lambda effect: -effect.gain):
        group = strategy.predictor.group_of(effect.name)
        more = group.num_components * max(effect.num_inducing - group.num_inducing, 0)
        if strategy.predictor.num_inducing_total + more > most:
            continue
        while group.num_inducing < effect.num_inducing:
            strategy.add_inducing_points(group.names, keeps_posterior)
        effect.start(group)
        begun = True
    return begun


def _needy(strategy: AdditiveVariationalStrategy, found: Mapping[str, float], most: int) -> list[ComponentGroup]:
    """The groups that more points are promised to pay, the neediest first, as far as all points are not too many."""
    total, needy = strategy.predictor.num_inducing_total, []
    for group in sorted(strategy.predictor.groups, key=lambda group: -_need(group, found)):
        points = group.more_inducing_points() if _need(group, found) > WORTH else None
        if points is None:
            continue
        more = group.num_components * (points.shape[-2] - group.num_inducing)
        if total + more <= (min(most, _MOST_WITH_MANY) if _are_many(group, points.shape[-2]) else most):
            total += more
            needy.append(group)
    return needy


def _are_many(group: ComponentGroup, num_inducing: int) -> bool:
    """Whether a number of inducing points is far larger than that which the term began with."""
    placement = group.placement
    return placement is not None and num_inducing > _FEW * placement.first_number


def _need(group: ComponentGroup, found: Mapping[str, float]) -> float:
    return sum(found.get(name, 0.0) for name in group.names)
