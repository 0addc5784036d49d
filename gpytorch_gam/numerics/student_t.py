"""Expectations of Student-t densities and of their logarithms under normal distributions."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

# Nodes of the trapezoidal rule, and of the grid on which maxima are found.
_NUM_NODES, _GRID = 128, 128

# Steps of Newton's method from there, and halvings by which the ends of the integrand are found.
_NUM_STEPS, _NUM_HALVINGS = 8, 14

# Nats below the maximum where the integrand is cut off.
_DEPTH = 24.0


def blurred_student_t_log_density(residual: Tensor, variance: Tensor, deg_free: Tensor, noise: Tensor) -> Tensor:
    r"""
    The logarithm of the density of a Student-t variable plus a normal one, with errors below 1e-7, in float64; all
    arguments broadcast.

    With the precision :math:`\lambda = e^u \sim \mathrm{Gamma}(\nu / 2, \nu / 2)` of which Student's distribution is a
    mixture, it is a single integral,

    .. math::
        p(r) = \int N(r; 0, v + \sigma^2 e^{-u}) \, p(u) \, du,

    of an integrand that is analytic for :math:`|\mathrm{Im}\, u| < \pi / 2`, whatever the ratio of both scales. It has
    one maximum or two (the normal variable explains r, or the heavy tail does), where minus the second derivative of
    its logarithm is at most :math:`(\nu + 1) / 2 + 1 / 8`. So the trapezoidal rule around the maxima needs the same
    number of nodes everywhere.

    :param residual: The distance r from the mean.
    :param variance: The variance v of the normal variable, not negative.
    :param deg_free: The degrees of freedom of Student's distribution, positive.
    :param noise: Its squared scale.
    """
    square, variance, deg_free, noise = torch.broadcast_tensors(residual.square(), variance, deg_free, noise)
    with torch.no_grad():
        nodes, steps = _nodes(square / noise, variance / noise, deg_free)
    half = 0.5 * deg_free
    normaliser = half * half.log() - half - torch.lgamma(half) - 0.5 * math.log(2 * math.pi) - 0.5 * noise.log()
    return normaliser + (_log_integrand(nodes, square / noise, variance / noise, deg_free) + steps.log()).logsumexp(0)


def _log_integrand(u: Tensor, square: Tensor, variance: Tensor, deg_free: Tensor) -> Tensor:
    """Its logarithm up to constants, for unit noise."""
    spread = variance + (-u).exp()
    return 0.5 * (deg_free * (u - u.expm1()) - spread.log() - square / spread)


def _nodes(square: Tensor, variance: Tensor, deg_free: Tensor) -> tuple[Tensor, Tensor]:
    """
    Nodes and their distances, ``(K, *shape)`` each: half of them around each of two maxima, evenly, or all in a row
    where the integrand is not negligible between them.
    """

    def value(u: Tensor) -> Tensor:
        return _log_integrand(u, square, variance, deg_free)

    low, high = -(square / deg_free).log1p(), (1 / deg_free).log1p()  # all stationary points are between these
    left, valley, right = _stationary_points(low, high, square, variance, deg_free)
    floor = torch.maximum(value(left), value(right)) - _DEPTH
    # Beyond these points it falls at least like e^(a (u - e^u)) with a = nu / 2.
    depth = 2 * _DEPTH / deg_free
    below = depth + (2 * depth).sqrt()
    start, end = _crossing(value, floor, low - below, left), _crossing(value, floor, high + below.log1p(), right)
    middle, gap = 0.5 * (start + end), (end - start) / (_NUM_NODES - 1)
    is_apart = value(valley) < floor
    first_end = torch.where(is_apart, _crossing(value, floor, valley, left), middle - 0.5 * gap)
    second_start = torch.where(is_apart, _crossing(value, floor, valley, right), middle + 0.5 * gap)
    places = torch.linspace(0.0, 1.0, _NUM_NODES // 2, dtype=square.dtype, device=square.device)
    places = places.view(-1, *(1,) * square.dim())
    parts = [(start, first_end), (second_start, end)]
    nodes = torch.cat([first + (last - first) * places for first, last in parts])
    steps = torch.cat(
        [((last - first) / (len(places) - 1)).expand(len(places), *square.shape) for first, last in parts]
    )
    return nodes, steps


def _crossing(value: Callable[[Tensor], Tensor], floor: Tensor, outside: Tensor, inside: Tensor) -> Tensor:
    """A place just outside of where a function falls below a floor, monotonically, from inside to outside."""
    for _ in range(_NUM_HALVINGS):
        middle = 0.5 * (outside + inside)
        is_outside = value(middle) < floor
        outside, inside = torch.where(is_outside, middle, outside), torch.where(is_outside, inside, middle)
    return outside


def _stationary_points(
    low: Tensor, high: Tensor, square: Tensor, variance: Tensor, deg_free: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The first maximum of the integrand, the lowest point behind it, and the last maximum: often all are one."""
    step = (high - low) / (_GRID - 3)
    places = torch.arange(-1, _GRID - 1, dtype=square.dtype, device=square.device).view(-1, *(1,) * square.dim())
    values = _log_integrand(low + step * places, square, variance, deg_free)
    is_highest = (values[1:-1] >= values[:-2]) & (values[1:-1] >= values[2:])
    first, last = is_highest.int().argmax(0), _GRID - 3 - is_highest.flip(0).int().argmax(0)
    is_between = (places >= first) & (places <= last)
    lowest = torch.where(is_between, values, math.inf).argmin(0) - 1
    left, right = (_climbed(low + step * place, step, square, variance, deg_free) for place in (first, last))
    return left, torch.minimum(torch.maximum(low + step * lowest, left), right), right


def _climbed(u: Tensor, radius: Tensor, square: Tensor, variance: Tensor, deg_free: Tensor) -> Tensor:
    """The maximum within a radius of a place, by Newton's method."""
    low, high = u - radius, u + radius
    for _ in range(_NUM_STEPS):
        growth, inverse = u.exp(), (-u).exp()
        spread = variance + inverse
        share = inverse / spread
        pull = square * share / spread
        slope = 0.5 * (deg_free * (1 - growth) + share - pull)
        curvature = 0.5 * (deg_free * growth + share * (1 - share) + pull * (2 * share - 1))
        u = torch.minimum(torch.maximum(u + slope / curvature.clamp_min(0.05 * deg_free), low), high)
    return u


def expected_log1p_square(shift: Tensor, variance: Tensor, num_nodes: int = 72) -> Tensor:
    r"""
    :math:`E \log(1 + x^2)` of a Gaussian :math:`x`, given the square of its mean and its variance. 72 nodes leave
    errors of 1e-9 for standard deviations up to a thousand and of 1e-6 up to a million, 48 of 1e-6 up to a hundred.
    With
    :math:`\log(1 + q) = \int_0^\infty (1 - e^{-\lambda q}) e^{-\lambda} d\lambda / \lambda` the Gaussian expectation is
    inside an integral. Its difference to :math:`\log(1 + \bar q)`, :math:`\bar q = E x^2`, has an integrand that
    vanishes to second order at zero, which the trapezoidal rule in :math:`\log\lambda` integrates accurately.
    """
    expected = shift + variance
    low = -torch.log1p(expected.detach()) - 12.0
    high = 3.6  # the integrand beyond is below e^-36
    steps = torch.arange(num_nodes, dtype=expected.dtype, device=expected.device)
    width = (high - low) / (num_nodes - 1)
    lam = (low.unsqueeze(-1) + width.unsqueeze(-1) * steps).exp()
    spread = 1 + 2 * lam * variance.unsqueeze(-1)
    laplace = spread.rsqrt() * (-lam * shift.unsqueeze(-1) / spread).exp()  # E exp(-lambda x^2)
    difference = ((-lam * expected.unsqueeze(-1)).exp() - laplace) * (-lam).exp()
    return torch.log1p(expected) + width * difference.sum(-1)
