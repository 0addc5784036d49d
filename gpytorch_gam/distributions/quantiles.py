"""Quantiles of predictive distributions, including those without a quantile function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from gpytorch.distributions import MultivariateNormal
from torch import Tensor
from torch.distributions import Distribution, MixtureSameFamily, Normal, constraints

from gpytorch_gam import _checks as checks

from .weighted_mixture import WeightedMixture

# The most steps of the searches for a bracket and for a root, none of which comes near them.
_MOST_WIDENINGS, _MOST_STEPS = 64, 200

# The first bracket in standard deviations, by how much it grows, and by how much a search for a count goes on at most.
_FIRST_WIDTH, _GROWTH, _LARGEST_GROWTH = 0.1, 4.0, 8.0

# Part of a standard deviation from which on rounding of a quantile is that of numbers of this size.
_CLOSE_TO_ZERO = 1e-4

# Steps of a search for a count after which every other one halves the bracket.
_FREE_STEPS = 6

# Probabilities of counts are summed up to this count, with limits on their number in all and at a time.
_MOST_COUNTS, _MOST_PROBABILITIES, _PROBABILITIES_AT_A_TIME = 8192, 2**24, 2**21
_SEED = 0


@torch.no_grad()
def predictive_quantiles(
    distribution: Distribution, probabilities: Sequence[float] | Tensor | float, num_samples: int = 10000
) -> Tensor:
    """
    Quantiles of every row of a predictive distribution, such as ``likelihood(model(x))``, without gradients.

    - Those of a distribution with a ``cdf``, mixtures included, are found to rounding by Chandrupatla's method; those
      of a normal and, row by row, of a multivariate normal have a closed form.
    - For a distribution of counts or classes the quantile is the least value whose cumulated probability is no less
      than the one asked for: by a search of secants if there is a ``cdf``, otherwise probabilities are summed up. Where
      that takes too long (counts above 8192, fewer with many rows), samples are drawn instead, as below.
    - For any other they are the quantiles of ``num_samples`` draws with a fixed seed, which leaves the global random
      numbers alone.

    Predictive distributions that are themselves a stack of draws, as GPyTorch's generic ones are, give quantiles of
    each draw: turn them into a mixture first.

    :param distribution: A distribution of one number in each row, with batch shape ``(*batch, n)``.
    :param probabilities: One or several probabilities, strictly between 0 and 1.
    :param num_samples: The number of draws, where they are needed.
    :return: The quantiles, ``(*probabilities.shape, *batch, n)``.
    :raises ValueError: If a probability is not between 0 and 1, or the distribution is not one of single numbers.

    Example:
        >>> low, high = predictive_quantiles(likelihood(model(x)), [0.1, 0.9])
    """
    if not isinstance(distribution, Distribution):
        raise TypeError(f"distribution must be one, such as likelihood(model(x)), got {checks.shown(distribution)}")
    checks.integer("num_samples", num_samples, least=1)
    if isinstance(distribution, MultivariateNormal):
        distribution = Normal(distribution.mean, distribution.stddev, validate_args=False)
    if distribution.event_shape:
        raise ValueError(
            f"distribution must have one number in each row, got events of shape {tuple(distribution.event_shape)}"
        )
    try:
        wanted = torch.as_tensor(probabilities, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"probabilities must be numbers between 0 and 1, got {checks.shown(probabilities)}") from error
    if not wanted.numel() or not bool(((wanted > 0) & (wanted < 1)).all()):
        raise ValueError(f"probabilities must be between 0 and 1, got {wanted.tolist()}")
    start = _anchor(distribution)
    flat = wanted.flatten().to(start.device, start.dtype)
    flat = flat.reshape(-1, *[1] * start.dim())
    if isinstance(distribution, Normal):
        result = distribution.icdf(flat)
    elif _is_count(distribution) and _has_count_cdf(distribution, start):
        result = _search_counts(distribution, flat, start)
    elif _is_count(distribution):
        result = _count_quantiles(distribution, flat, start, num_samples)
    elif _has_cdf(distribution, start):
        result = _search(distribution, flat, start)
    else:
        result = _sample_quantiles(distribution, flat, num_samples)
    return result.reshape(*wanted.shape, *distribution.batch_shape)


def _anchor(distribution: Distribution) -> Tensor:
    """A starting point in each row, also where the mean does not exist."""
    try:
        mean = distribution.mean
    except NotImplementedError:
        mean = torch.zeros(())
    return torch.where(mean.isfinite(), mean, torch.zeros_like(mean)).expand(distribution.batch_shape)


def _is_count(distribution: Distribution) -> bool:
    support = distribution.support
    return support is not None and support.is_discrete


def _has_cdf(distribution: Distribution, start: Tensor) -> bool:
    try:
        lower, upper = _bounds(distribution, start)
        distribution.cdf(start.clamp(min=torch.nextafter(lower, upper), max=torch.nextafter(upper, lower)))
    except NotImplementedError:
        return False
    return True


def _spread(distribution: Distribution, start: Tensor) -> Tensor:
    """The standard deviation in each row; one where there is none."""
    try:
        spread = distribution.variance.sqrt().expand(start.shape)
    except NotImplementedError:
        return torch.ones_like(start)
    return torch.where(spread.isfinite() & (spread > 0), spread, torch.ones_like(spread))


def _cdf_where(distribution: Distribution, values: Tensor, is_open: Tensor) -> Tensor:
    """The distribution function at values ``(K, *batch, n)``; where a search is over it may be anything."""
    own: Any = distribution
    if not getattr(distribution, "has_rows", False):
        return own.cdf(values)
    count = distribution.batch_shape.numel()
    rows = torch.arange(count, device=values.device).reshape(distribution.batch_shape).expand(values.shape)
    found = torch.zeros_like(values)
    found[is_open] = own.cdf_in_rows(values[is_open], rows[is_open])
    return found


def _normal_score(probabilities: Tensor) -> Tensor:
    """The normal quantiles of probabilities, finite also at 0 and 1: of most distributions nearly linear."""
    limits = torch.finfo(probabilities.dtype)
    return torch.special.ndtri(probabilities.clamp(limits.tiny, 1.0 - limits.eps / 2))


def _search(distribution: Distribution, wanted: Tensor, start: Tensor) -> Tensor:
    """
    Quantiles of a continuous distribution by Chandrupatla's method, in all rows that are open at once; of positive
    values by that of their logarithms.
    """
    lower, upper = _bounds(distribution, start)
    least, most = torch.nextafter(lower, upper), torch.nextafter(upper, lower)
    target, centre, spread = _normal_score(wanted), start, _spread(distribution, start)
    is_positive = bool((lower == 0).all() & (upper == torch.inf).all())
    if is_positive:
        has_mean = start > 0
        spread = torch.where(has_mean, (spread / start).square().log1p().sqrt(), 1.0)
        centre = torch.where(has_mean, start.log() - 0.5 * spread.square(), 0.0)

    def excess(places: Tensor, is_open: Tensor) -> Tensor:
        values = places.exp() if is_positive else places
        # torch's distribution functions refuse values outside of the support
        probability = _cdf_where(distribution, values.clamp(min=least, max=most), is_open)
        probability = torch.where(values <= lower, 0.0, torch.where(values >= upper, 1.0, probability))
        return _normal_score(probability) - target

    guess = centre + spread * target
    first, of_first, second, of_second = _bracket(excess, guess, _FIRST_WIDTH * spread.expand(guess.shape))
    # Chandrupatla, Advances in Engineering Software 28 (1997): ``first`` is the latest point, ``third`` the one before
    fraction, eps = torch.full_like(first, 0.5), torch.finfo(first.dtype).eps
    is_open = torch.ones_like(first, dtype=torch.bool)
    for _ in range(_MOST_STEPS):
        point = first + fraction * (second - first)
        of_point = excess(point, is_open)
        is_same = torch.sign(of_point) == torch.sign(of_first)
        third, of_third = torch.where(is_same, first, second), torch.where(is_same, of_first, of_second)
        second = torch.where(is_open & ~is_same, first, second)
        of_second = torch.where(is_open & ~is_same, of_first, of_second)
        first, of_first = torch.where(is_open, point, first), torch.where(is_open, of_point, of_first)
        smallest = 2 * eps * (first.abs() + _CLOSE_TO_ZERO * spread) / (second - first).abs()
        is_open = is_open & (smallest <= 0.5) & (of_first != 0)
        if not bool(is_open.any()):
            break
        fraction = _next_fraction((first, second, third), (of_first, of_second, of_third))
        fraction = torch.minimum(torch.maximum(fraction, smallest), 1 - smallest)
    found = torch.where(of_first.abs() <= of_second.abs(), first, second)
    return found.exp() if is_positive else found


def _bracket(
    excess: Callable[[Tensor, Tensor], Tensor], guess: Tensor, width: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Two points in each row around a root of an increasing function, each followed by its value there."""
    is_open = torch.ones_like(guess, dtype=torch.bool)
    low, high = guess - width, guess + width
    of_low, of_high = excess(low, is_open), excess(high, is_open)
    for _ in range(_MOST_WIDENINGS):
        is_above, is_below = of_low > 0, of_high < 0
        if not bool((is_above | is_below).any()):
            break
        width = _GROWTH * width
        further = torch.where(is_above, low - width, high + width)
        of_further = excess(further, is_above | is_below)
        low, high = (
            torch.where(is_above, further, torch.where(is_below, high, low)),
            torch.where(is_above, low, torch.where(is_below, further, high)),
        )
        of_low, of_high = (
            torch.where(is_above, of_further, torch.where(is_below, of_high, of_low)),
            torch.where(is_above, of_low, torch.where(is_below, of_further, of_high)),
        )
    return low, of_low, high, of_high


def _next_fraction(points: tuple[Tensor, Tensor, Tensor], values: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Where to go on between the first two points: by inverse quadratic interpolation where it is safe, or halfway."""
    (x1, x2, x3), (f1, f2, f3) = points, values
    place, height = (x1 - x2) / (x3 - x2), (f1 - f2) / (f3 - f2)
    is_safe = (1 - (1 - place).sqrt() < height) & (height < place.sqrt())
    interpolated = f1 / (f1 - f2) * f3 / (f3 - f2) - (x3 - x1) / (x2 - x1) * f1 / (f3 - f1) * f2 / (f2 - f3)
    return torch.where(is_safe & interpolated.isfinite(), interpolated, torch.full_like(interpolated, 0.5))


def _has_count_cdf(distribution: Distribution, start: Tensor) -> bool:
    try:
        distribution.cdf(torch.zeros_like(start))
    except NotImplementedError:
        return False
    return True


def _search_counts(distribution: Distribution, wanted: Tensor, start: Tensor) -> Tensor:
    """
    The least counts whose cumulated probability is no less than the one asked for, in all rows that are open at once,
    by secants of the normal score over the cube root of the count, nearly a line by Wilson and Hilferty (1931).
    """
    # Rounding must not make a probability that is just reached appear as missed.
    wanted = wanted - (1e-12 if start.dtype == torch.float64 else 1e-6)
    shape = torch.broadcast_shapes(wanted.shape, start.shape)
    target = _normal_score(wanted)
    mean = start.clamp_min(1e-6)
    size = (mean / _spread(distribution, start)).square().clamp(1e-3, 1e12)
    root, slope = _cube_root(mean), 3 * size.sqrt() / _cube_root(mean)
    place = root * (1 - 1 / (9 * size)) + target / slope
    slope, previous = slope.expand(shape), None
    low, high = start.new_full(shape, -1.0), start.new_full(shape, torch.inf)
    for step in range(_MOST_STEPS):
        # Counts beyond the digits of the dtype have neighbours that are further away.
        is_open = (high - low > 1) & (torch.nextafter(low, high) < high)
        if not bool(is_open.any()):
            break
        further = (place.clamp_min(0.0) ** 3 - 0.5).ceil().minimum(_LARGEST_GROWTH * (low + 2))
        if step >= _FREE_STEPS and step % 2 == 0:
            further = torch.where(high.isfinite(), ((low + high) / 2).floor(), _LARGEST_GROWTH * (low + 2))
        count = torch.maximum(torch.minimum(further, high - 1), low + 1)
        probability = _cdf_where(distribution, count, is_open)
        is_below = probability < wanted
        low, high = torch.where(is_open & is_below, count, low), torch.where(is_open & ~is_below, count, high)
        point, score = _cube_root(count + 0.5), _normal_score(probability)
        if previous is not None:
            secant = (score - previous[1]) / (point - previous[0])
            slope = torch.where(secant.isfinite() & (secant > 0), secant, slope)
        previous, place = (point, score), point + (target - score) / slope
    return high


def _cube_root(values: Tensor) -> Tensor:
    return values.clamp_min(0.0).pow(1 / 3)


def _count_quantiles(distribution: Distribution, wanted: Tensor, like: Tensor, num_samples: int) -> Tensor:
    """The number of counts whose cumulated probability is below the one asked for: 0, 1, ... up to the quantile."""
    a_count = max(1, like.numel() * _num_components(distribution))  # number of probabilities for one more count
    block = min(256, max(1, _PROBABILITIES_AT_A_TIME // a_count))
    most = min(_MOST_COUNTS, _MOST_PROBABILITIES // a_count)
    _, upper = _bounds(distribution, like)
    shape = torch.broadcast_shapes(wanted.shape, like.shape)
    total = like.new_zeros(like.shape, dtype=torch.float64)
    result = like.new_zeros(shape)
    # Rounding in the sum must not make a probability that is just reached appear as missed.
    targets = wanted.double() - 1e-12 if like.dtype == torch.float64 else wanted.double() - 1e-6
    is_below = torch.ones(shape, dtype=torch.bool, device=like.device)
    for first in range(0, most, block):
        counts = torch.arange(first, first + block, dtype=like.dtype, device=like.device)
        counts = counts.reshape(-1, *[1] * like.dim())
        probabilities = distribution.log_prob(torch.minimum(counts, upper)).double().exp()
        sums = total + torch.where(counts <= upper, probabilities, 0.0).cumsum(0)  # (block, *batch, n)
        total = sums[-1]
        is_below_at = (sums.unsqueeze(1) < targets) & (counts < upper).unsqueeze(1)  # (block, wanted, *batch, n)
        result = result + is_below_at.sum(0)
        is_below = is_below_at[-1]
        if not bool(is_below.any()):
            return result
    return torch.where(is_below, _sample_quantiles(distribution, wanted, num_samples).to(result.dtype), result)


def _num_components(distribution: Distribution) -> int:
    if isinstance(distribution, WeightedMixture):
        return sum(map(_num_components, distribution.parts))
    return distribution._num_component if isinstance(distribution, MixtureSameFamily) else 1


def _bounds(distribution: Distribution, like: Tensor) -> tuple[Tensor, Tensor]:
    """The least and the largest possible value in each row, infinite if there is none, in the shape of ``like``."""
    while isinstance(distribution, WeightedMixture):  # whose parts all have the same support
        distribution = distribution.parts[0]
    support = distribution.support
    if isinstance(support, constraints._Boolean):
        return torch.zeros_like(like), torch.ones_like(like)
    is_mixture = isinstance(distribution, MixtureSameFamily)
    if isinstance(distribution, MixtureSameFamily):
        support = distribution.component_distribution.support
    bounds = []
    for name, default in (("lower_bound", -torch.inf), ("upper_bound", torch.inf)):
        bound = torch.as_tensor(getattr(support, name, default), dtype=like.dtype, device=like.device)
        bound = bound[..., 0] if is_mixture and bound.dim() else bound  # all components have the same support
        bounds.append(bound.expand(like.shape))
    return bounds[0], bounds[1]


def _sample_quantiles(distribution: Distribution, wanted: Tensor, num_samples: int) -> Tensor:
    devices = [torch.cuda.current_device()] if wanted.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(_SEED)
        draws = distribution.sample(torch.Size([num_samples])).sort(dim=0).values
    ranks = (wanted.flatten() * num_samples).long().clamp_max(num_samples - 1)
    return draws[ranks].to(wanted.dtype)
