"""Deterministic nodes for expectations under the joint Gaussian of the predictors in a row."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
from scipy.special import roots_hermitenorm
from torch import Tensor

from gpytorch_gam.distributions.predictor_distribution import PredictorMoments
from gpytorch_gam.numerics.quadrature import bounded_exp

# Nodes a dimension of the Gauss-Hermite rules; products whose weight is below the other number are left out.
_HERMITE_NODES, _NEGLIGIBLE_WEIGHT = {1: 32, 2: 20}, 1e-12
# Points of the quasi-Monte Carlo rule, half of them reflections, and points a dimension at least.
_SOBOL_POINTS, _LEAST_POINTS_PER_DIMENSION = 512, 8
_SOBOL_SEED = 20


class WeightedNodes(NamedTuple):
    """
    Predictors at the nodes of a rule.

    :ivar values: ``(K, *batch, n, P)``.
    :ivar log_weights: ``(K,)``; the weights sum to one.
    """

    values: Tensor
    log_weights: Tensor


class ConditionalNodes(NamedTuple):
    """
    The first of two predictors as a Gaussian given the second, which is at the nodes of a rule.

    :ivar second: values of the second predictor, ``(K, *batch, n)``.
    :ivar mean: conditional means of the first, ``(K, *batch, n)``.
    :ivar variance: conditional variance of the first, the same at all nodes, ``(*batch, n)``.
    :ivar log_weights: ``(K,)``; the weights sum to one.
    """

    second: Tensor
    mean: Tensor
    variance: Tensor
    log_weights: Tensor


def joint_nodes(moments: PredictorMoments) -> WeightedNodes:
    """
    Nodes for the expectation of any smooth function of a row's predictors.

    Up to two predictors have a (product) Gauss-Hermite rule. More have 512 points: a scrambled Sobol sequence of
    fixed seed and its reflections, transformed so that the first two moments are exact.

    :param moments: Mean ``(*batch, n, P)`` and covariance ``(*batch, n, P, P)``.
    """
    mean = moments.mean
    nodes, log_weights = standard_nodes(mean.shape[-1], mean.dtype, mean.device)
    steps = row_cholesky(moments.covariance) @ nodes.mT  # (*batch, n, P, K)
    return WeightedNodes(mean + steps.movedim(-1, 0), log_weights)


def conditional_nodes(moments: PredictorMoments, size: int = _HERMITE_NODES[1]) -> ConditionalNodes:
    """
    Nodes in the second of two predictors for expectations that are known given it.

    :param moments: Mean ``(*batch, n, 2)`` and covariance ``(*batch, n, 2, 2)``.
    :param size: Number of nodes.
    """
    root = row_cholesky(moments.covariance.flip(-1, -2))  # the second predictor comes first
    nodes, log_weights = standard_nodes(1, moments.mean.dtype, moments.mean.device, size)
    nodes = nodes.reshape(-1, *[1] * (moments.mean.dim() - 1))
    second = moments.mean[..., 1] + root[..., 0, 0] * nodes
    mean = moments.mean[..., 0] + root[..., 1, 0] * nodes
    return ConditionalNodes(second, mean, root[..., 1, 1].square(), log_weights)


def row_cholesky(covariance: Tensor) -> Tensor:
    """
    Lower Cholesky factors of the covariance in each row that exist for singular covariances as well.

    Pivots below rounding's size (the dtype's epsilon, absolute and relative to the variance) are raised to it, and the
    gradient passes as if they were not: expectations of smooth functions have a finite, nearly exact gradient in a
    variance of zero. Only elementwise operations: nothing waits for a GPU. Cost ``O(n P^3)``.

    :param covariance: ``(*batch, n, P, P)``; the symmetric part counts.
    """
    remainder = 0.5 * (covariance + covariance.mT)
    floors = torch.finfo(covariance.dtype).eps * (1.0 + covariance.diagonal(dim1=-2, dim2=-1).detach().clamp_min(0.0))
    columns = []
    for index in range(covariance.shape[-1]):
        pivot = remainder[..., 0, 0]
        root = (pivot + (floors[..., index] - pivot.detach()).clamp_min(0.0)).sqrt()
        below = remainder[..., 1:, 0] / root.unsqueeze(-1)
        columns.append(torch.nn.functional.pad(torch.cat([root.unsqueeze(-1), below], dim=-1), (index, 0)))
        remainder = remainder[..., 1:, 1:] - below.unsqueeze(-1) * below.unsqueeze(-2)
    return torch.stack(columns, dim=-1)


def positive_exp(exponent: Tensor) -> Tensor:
    """
    The exponential, neither zero nor infinite: a scale from its log.

    :param exponent: Any shape.
    """
    return bounded_exp(exponent).clamp_min(torch.finfo(exponent.dtype).tiny)


@functools.cache
def standard_nodes(
    dimension: int, dtype: torch.dtype, device: torch.device, size: int | None = None
) -> tuple[Tensor, Tensor]:
    """
    Nodes for expectations under a standard normal distribution, kept for the next call.

    :param dimension: Number of variables.
    :param dtype: Of the result; computed in float64.
    :param device: Of the result.
    :param size: Nodes a dimension of a Gauss-Hermite rule; by default 32 in one dimension, 20 in two.
    :return: Nodes ``(K, dimension)`` and log weights ``(K,)``, whose weights sum to one.
    """
    with torch.inference_mode(False), torch.no_grad():  # kept tensors must serve in training as well
        if dimension in _HERMITE_NODES:
            nodes, weights = _hermite_rule(dimension, size or _HERMITE_NODES[dimension])
        else:
            nodes = _sobol_rule(dimension)
            weights = torch.full((len(nodes),), 1.0 / len(nodes), dtype=torch.float64)
        return nodes.to(device, dtype), weights.log().to(device, dtype)


def _hermite_rule(dimension: int, size: int) -> tuple[Tensor, Tensor]:
    points, point_weights = (torch.from_numpy(values) for values in roots_hermitenorm(size))
    grids = torch.meshgrid(*[points] * dimension, indexing="ij")
    nodes = torch.stack(grids, dim=-1).reshape(-1, dimension)
    weights = torch.stack(torch.meshgrid(*[point_weights] * dimension, indexing="ij")).prod(0).flatten()
    weights = weights / weights.sum()
    kept = weights > _NEGLIGIBLE_WEIGHT
    return nodes[kept], weights[kept] / weights[kept].sum()


def _sobol_rule(dimension: int) -> Tensor:
    """Antithetic points with mean zero and unit covariance, ``(K, dimension)``."""
    least = max(_SOBOL_POINTS, _LEAST_POINTS_PER_DIMENSION * dimension)
    count = 2 ** math.ceil(math.log2(least / 2))  # a power of two keeps the sequence balanced
    engine = torch.quasirandom.SobolEngine(dimension, scramble=True, seed=_SOBOL_SEED)
    uniform = engine.draw(count, dtype=torch.float64).clamp(1e-9, 1 - 1e-9)
    half = torch.special.ndtri(uniform)
    points = torch.cat([half, -half])
    root = torch.linalg.cholesky(points.mT @ points / len(points))
    return torch.linalg.solve_triangular(root, points.mT, upper=False).mT
