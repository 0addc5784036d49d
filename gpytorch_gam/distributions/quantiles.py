"""Quantiles of predictive distributions, including those without a quantile function."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from gpytorch.distributions import MultivariateNormal
from torch import Tensor
from torch.distributions import Distribution, MixtureSameFamily, Normal, constraints

from gpytorch_gam import _checks as checks

from .weighted_mixture import WeightedMixture

# Number of halvings of a bracket; more would change nothing in float64.
_BISECTIONS, _DOUBLINGS = 60, 200
# Probabilities of counts are summed up to this count, with limits on their number in all and at a time.
_MOST_COUNTS, _MOST_PROBABILITIES, _PROBABILITIES_AT_A_TIME = 8192, 2**24, 2**21
_SEED = 0


@torch.no_grad()
def predictive_quantiles(
    distribution: Distribution, probabilities: Sequence[float] | Tensor | float, num_samples: int = 10000
) -> Tensor:
    """
    Quantiles of every row of a predictive distribution, such as ``likelihood(model(x))``, without gradients.

    - Those of a distribution with a ``cdf``, mixtures included, and of a multivariate normal (row by row) are found by
      bisection, to rounding.
    - For a distribution of counts or classes the quantile is the least value whose cumulated probability is no less
      than the one asked for: by bisection if there is a ``cdf``, otherwise probabilities are summed up. Where that
      takes too long (counts above 8192, fewer with many rows), samples are drawn instead, as below.
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
    if _is_count(distribution) and _has_count_cdf(distribution, start):
        result = _bisect_counts(distribution, flat, start)
    elif _is_count(distribution):
        result = _count_quantiles(distribution, flat, start, num_samples)
    elif _has_cdf(distribution, start):
        result = _bisect(distribution, flat, start)
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
        _cdf(distribution, start)
    except NotImplementedError:
        return False
    return True


def _cdf(distribution: Distribution, values: Tensor) -> Tensor:
    """The cumulative distribution function on the whole line: torch's refuses values outside of the support."""
    lower, upper = _bounds(distribution, values)
    inside = values.clamp(min=torch.nextafter(lower, upper), max=torch.nextafter(upper, lower))
    probability = distribution.cdf(inside)
    return torch.where(values <= lower, 0.0, torch.where(values >= upper, 1.0, probability))


def _bisect(distribution: Distribution, wanted: Tensor, start: Tensor) -> Tensor:
    centre = start.expand(torch.broadcast_shapes(wanted.shape, start.shape))
    width = torch.ones_like(centre)
    low, high = centre - width, centre + width
    for _ in range(_DOUBLINGS):
        is_above, is_below = _cdf(distribution, low) > wanted, _cdf(distribution, high) < wanted
        if not bool((is_above | is_below).any()):
            break
        width = 2 * width
        low, high = torch.where(is_above, centre - width, low), torch.where(is_below, centre + width, high)
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        is_below = _cdf(distribution, middle) < wanted
        low, high = torch.where(is_below, middle, low), torch.where(is_below, high, middle)
    return 0.5 * (low + high)


def _has_count_cdf(distribution: Distribution, start: Tensor) -> bool:
    try:
        distribution.cdf(torch.zeros_like(start))
    except NotImplementedError:
        return False
    return True


def _bisect_counts(distribution: Distribution, wanted: Tensor, start: Tensor) -> Tensor:
    """The least counts whose cumulated probability is no less than the one asked for."""
    # Rounding must not make a probability that is just reached appear as missed.
    wanted = wanted - (1e-12 if start.dtype == torch.float64 else 1e-6)
    shape = torch.broadcast_shapes(wanted.shape, start.shape)
    low, width = start.new_full(shape, -1.0), start.floor().clamp_min(1.0).expand(shape)
    high = width
    for _ in range(_DOUBLINGS):
        is_below = distribution.cdf(high) < wanted
        if not bool(is_below.any()):
            break
        low, high = torch.where(is_below, high, low), torch.where(is_below, 2 * high, high)
    for _ in range(_DOUBLINGS):
        is_open = high - low > 1
        if not bool(is_open.any()):
            break
        middle = ((low + high) / 2).floor()
        is_below = distribution.cdf(middle) < wanted
        low, high = torch.where(is_open & is_below, middle, low), torch.where(is_open & ~is_below, middle, high)
    return high


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
