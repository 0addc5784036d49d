"""Fits that add inducing points where these pay."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gpytorch_gam.components import ComponentGroup
from gpytorch_gam.variational import AdditiveVariationalStrategy

# Nats that more points must promise a group to be added, and the part of them that a fit with more points must have
# gained for a further step.
WORTH, _KEPT_PROMISE = 1.0, 0.25

# Largest number of inducing points of all components together, because the work of a fit grows with its third power.
_MOST_INDUCING = 1024


def grow(
    strategy: AdditiveVariationalStrategy,
    fit: Callable[[], float],
    shortfalls: Callable[[], Mapping[str, float]],
    *,
    keeps_posterior: bool = True,
) -> dict[str, float]:
    """
    Fit, and while groups whose number of inducing points is left to the fit would gain more than ``WORTH`` from others,
    double these and fit again.

    :param strategy: The strategy of the model.
    :param fit: Fits the model from its present hyperparameters, and returns the bound in nats.
    :param shortfalls: Nats that more points would bring to each component, by name, see :func:`.inducing_shortfall`.
    :param keeps_posterior: Whether a fit starts from the posterior of the one before.
    :return: The last of these.
    """
    bound, found = fit(), shortfalls()
    needy = _needy(strategy, found)
    while needy:
        strategy.add_inducing_points([name for group in needy for name in group.names], keeps_posterior)
        before, bound, promised = bound, fit(), sum(_need(group, found) for group in needy)
        found = shortfalls()
        needy = _needy(strategy, found) if bound - before >= min(WORTH, _KEPT_PROMISE * promised) else []
    return dict(found)


def _needy(strategy: AdditiveVariationalStrategy, found: Mapping[str, float]) -> list[ComponentGroup]:
    """The groups that more points are promised to pay, the neediest first, as far as all points are not too many."""
    total, needy = strategy.predictor.num_inducing_total, []
    for group in sorted(strategy.predictor.groups, key=lambda group: -_need(group, found)):
        points = group.more_inducing_points() if _need(group, found) > WORTH else None
        if points is None:
            continue
        more = group.num_components * (points.shape[-2] - group.num_inducing)
        if total + more <= _MOST_INDUCING:
            total += more
            needy.append(group)
    return needy


def _need(group: ComponentGroup, found: Mapping[str, float]) -> float:
    return sum(found.get(name, 0.0) for name in group.names)
