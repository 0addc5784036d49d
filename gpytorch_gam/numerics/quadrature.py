"""
Expectations of one-dimensional functions under normal distributions.

Log-probabilities are smooth on the real line, but many have a bend whose singularity lies close to it: that of a
zero-inflated count at a distance of 0.4. Gauss-Hermite rules converge slowly there (for a variance of four, 20 nodes
leave errors of up to .02 nats). The trapezoidal rule after the substitution :math:`x = c + w \\sinh u`, which moves
singularities at :math:`c \\pm iw` to a distance of :math:`\\pi / 2`, leaves less than 1e-7 with 40 nodes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

# Range of the nodes in standard deviations; the normal mass beyond is 2e-19.
REACH = 9.0

# Above this exponent the exponential is continued linearly: float32 values, gradients and their squares stay finite.
LARGEST_EXPONENT = 32.0

# Above this half variance the mean of an exponential is continued linearly.
LARGEST_HALF_VARIANCE = 8.0

# The search for the mode of a product: iterations, longest step, step of differences.
_NUM_STEPS, _LONGEST_STEP, _DIFFERENCE = 20, 2.0, 1e-3


class NormalRule(NamedTuple):
    """Nodes and weights for expectations under the standard normal distribution."""

    nodes: Tensor  # (K, *shape), float64
    log_weights: Tensor  # (K, *shape)


@torch.no_grad()
def equispaced_rule(num_nodes: int, like: Tensor) -> NormalRule:
    """``num_nodes`` equally spaced nodes on the device of ``like``, for functions that are smooth everywhere."""
    nodes = torch.linspace(-REACH, REACH, num_nodes, dtype=torch.float64, device=like.device)
    return NormalRule(nodes, _log_density(nodes) + math.log(2 * REACH / (num_nodes - 1)))


@torch.no_grad()
def hermite_rule(num_nodes: int, like: Tensor) -> NormalRule:
    """The Gauss-Hermite rule on the device of ``like``, for functions that hardly bend within a standard deviation."""
    return NormalRule(*(torch.from_numpy(part).to(like.device) for part in _hermite_nodes(num_nodes)))


@functools.cache
def _hermite_nodes(num_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    nodes, weights = np.polynomial.hermite_e.hermegauss(num_nodes)
    return nodes, np.log(weights / weights.sum())


@torch.no_grad()
def focused_rule(centre: Tensor, width: Tensor, num_nodes: int) -> NormalRule:
    """
    Nodes that are dense around a centre, ``(*shape)`` in standard deviations from the mean, over a width, ``(*shape)``,
    and cover the normal distribution and the surroundings of the centre.
    """
    # A bend far out has no mass, and must not draw the nodes away from where the mass is.
    centre = centre.clamp(-30.0, 30.0)
    width = torch.maximum(width, 0.0025 * centre.abs() ** 3).clamp(1e-6, 1e4)
    return _sinh_rule(centre, width, torch.full_like(centre, REACH), num_nodes)


def _sinh_rule(centre: Tensor, width: Tensor, reach: Tensor, num_nodes: int) -> NormalRule:
    first, last = ((end - centre) / width for end in (-reach, reach))
    first, last = first.asinh(), last.asinh()
    step = (last - first) / (num_nodes - 1)
    places = torch.arange(num_nodes, dtype=centre.dtype, device=centre.device)
    u = first + step * places.view(-1, *(1,) * centre.dim())
    # From one exponential, and in place: this takes as long as evaluating the function whose expectation is wanted.
    growing = u.exp()
    falling = growing.reciprocal()
    nodes = (growing - falling).mul_(0.5 * width).add_(centre)
    log_slope = growing.add_(falling).log_().add_((0.5 * step * width).log())  # of the nodes in u, by a step of u
    return NormalRule(nodes, log_slope.add_(_log_density(nodes)))


def expectation(function: Callable[[Tensor], Tensor], mean: Tensor, variance: Tensor, rule: NormalRule) -> Tensor:
    """The expectation ``(*batch, n)`` of an elementwise function under normals of float64 moments ``(*batch, n)``."""
    nodes, log_weights = aligned(rule, mean.dim())
    return (log_weights.exp() * function(mean + variance.sqrt() * nodes)).sum(0)


def log_expectation(
    log_density: Callable[[Tensor], Tensor], mean: Tensor, variance: Tensor, rule: NormalRule
) -> Tensor:
    """The logarithm of the expectation of a density, given its logarithm; arguments as in :func:`expectation`."""
    nodes, log_weights = aligned(rule, mean.dim())
    return (log_weights + log_density(mean + variance.sqrt() * nodes)).logsumexp(0)


@torch.no_grad()
def product_rule(log_density: Callable[[Tensor], Tensor], mean: Tensor, variance: Tensor, num_nodes: int) -> NormalRule:
    """
    Nodes for the expectation of a log-concave density, however sharp: dense around the mode of its product with the
    normal density, which Newton's method finds by differences. Arguments as in :func:`expectation`.
    """
    steps = _DIFFERENCE * torch.arange(-1, 2, dtype=mean.dtype, device=mean.device).view(-1, *(1,) * mean.dim())
    mode = mean
    for _ in range(_NUM_STEPS):
        low, middle, high = log_density(mode + steps)
        curvature = ((2 * middle - low - high) / _DIFFERENCE**2).clamp_min(0.0) + 1 / variance
        gradient = (high - low) / (2 * _DIFFERENCE) - (mode - mean) / variance
        mode = mode + (gradient / curvature).clamp(-_LONGEST_STEP, _LONGEST_STEP)
    deviation = variance.sqrt()
    centre, width = (mode - mean) / deviation, (1 / (curvature.sqrt() * deviation)).clamp_min(1e-6)
    return _sinh_rule(
        centre, width, torch.maximum(torch.full_like(centre, REACH), centre.abs() + REACH * width), num_nodes
    )


def aligned(rule: NormalRule, num_dims: int) -> NormalRule:
    """A rule ``(K,)`` or ``(K, *shape)``, viewed to broadcast with ``num_dims`` dimensions after the first."""
    missing = num_dims + 1 - rule.nodes.dim()
    return NormalRule(*(part.view(len(part), *(1,) * missing, *part.shape[1:]) for part in rule))


def bounded_exp(exponent: Tensor) -> Tensor:
    """The exponential function, continued by its tangent above :data:`LARGEST_EXPONENT`."""
    bounded = exponent.clamp_max(LARGEST_EXPONENT)
    return bounded.exp() * (1 + (exponent - bounded))


def mean_of_exp(mean: Tensor, variance: Tensor) -> Tensor:
    r"""
    :math:`\mathrm E e^f = e^{m + v / 2}` of a normal f, continued linearly in v above 16, so that fits can start from
    wide priors. (Fitted log rates have no standard deviation above 4, a factor of 3000 between mean and median of the
    rate.)
    """
    half = 0.5 * variance
    bounded = half.clamp_max(LARGEST_HALF_VARIANCE)
    return bounded_exp(mean + bounded) * (1 + (half - bounded))


def _log_density(x: Tensor) -> Tensor:
    return -0.5 * (x.square() + math.log(2 * math.pi))
