"""Distribution functions of responses whose predictor is normal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from gpytorch_gam.numerics.quadrature import NormalRule, expectation, focused_rule, hermite_rule

# Numbers of Gauss-Hermite nodes that leave errors below 3e-9 up to a standard deviation of the predictor, relative to
# the width over which the distribution function falls: for counts of 0 to 1000 without and with dispersion, and for
# gamma responses of shapes .3 to 2000.
_LARGEST_RATIOS, _NUM_NODES = (0.2, 0.3, 0.5, 0.7), (6, 8, 16, 24)

# Singularities of the links lie at a distance of pi, however wide the fall.
_LARGEST_WIDTH = 1.0


def expected_cdf(
    cdf: Callable[..., Tensor],
    arguments: Sequence[Tensor],
    fall: tuple[Tensor, Tensor],
    mean: Tensor,
    variance: Tensor,
    num_nodes: int,
) -> Tensor:
    """
    The expectation of a distribution function ``cdf(f, *arguments)`` at some value under normal predictors, in float64.
    Rows in which the predictor is certain, compared with the response, take few nodes.

    :param cdf: The function of the predictor, elementwise with one more leading dimension of it.
    :param arguments: What else it depends on; these and all below broadcast.
    :param fall: Where in f it falls from 1 to 0, and over which width.
    :param mean: Means of the predictors.
    :param variance: Their variances.
    :param num_nodes: The number of nodes where the predictor is uncertain.
    """
    place, width, mean, variance, *arguments = torch.broadcast_tensors(*fall, mean, variance, *arguments)
    ratio = variance.detach().sqrt() / width.detach().clamp_max(_LARGEST_WIDTH)
    kinds = torch.bucketize(ratio, ratio.new_tensor(_LARGEST_RATIOS))
    result = torch.empty_like(mean)
    for kind in kinds.unique().tolist():
        own = kinds == kind
        of_rows = mean[own], variance[own]
        rule = (
            hermite_rule(_NUM_NODES[kind], mean)
            if kind < len(_NUM_NODES) and _NUM_NODES[kind] < num_nodes
            else _rule_around(place[own], width[own], *of_rows, num_nodes)
        )
        result[own] = expectation(partial(_called, cdf, [part[own] for part in arguments]), *of_rows, rule)
    return result.clamp(0.0, 1.0)


def _called(cdf: Callable[..., Tensor], arguments: Sequence[Tensor], predictors: Tensor) -> Tensor:
    return cdf(predictors, *arguments)


@torch.no_grad()
def _rule_around(place: Tensor, width: Tensor, mean: Tensor, variance: Tensor, num_nodes: int) -> NormalRule:
    deviation = variance.sqrt()
    return focused_rule((place - mean) / deviation, width / deviation, num_nodes)
