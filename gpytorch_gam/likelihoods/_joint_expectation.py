"""Deterministic nodes for expectations under the joint Gaussian of the predictors in a row."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gpytorch_gam.numerics.quadrature import bounded_exp

# Nodes a dimension of the Gauss-Hermite rules, and the weight below which a product of nodes is left out.
_HERMITE_NODES, _NEGLIGIBLE_WEIGHT = {1: 32, 2: 20}, 1e-12
# Points of the quasi-Monte Carlo rule, half of them reflections, and the least number of points a dimension.
_SOBOL_POINTS, _LEAST_POINTS_PER_DIMENSION = 512, 8
_SOBOL_SEED = 20


class WeightedNodes(NamedTuple):
    """The values of the predictors at the nodes of a rule."""

    values: Tensor  # (K, *batch, n, P)
    log_weights: Tensor  # (K,), of weights that sum to one


class ConditionalNodes(NamedTuple):
    """The second of two predictors at the nodes of a rule, and the first as a Gaussian given the second."""

    second: Tensor  # (K, *batch, n)
    mean: Tensor  # mean of the first given the second, (K, *batch, n)
    variance: Tensor  # its variance, the same at all nodes, (*batch, n)
    log_weights: Tensor  # (K,), of weights that sum to one


def joint_nodes(mean: Tensor, covariance: Tensor) -> WeightedNodes:
    """
    Nodes for the expectation of any smooth function of a row's predictors: a (product) Gauss-Hermite rule for up to
    two, otherwise 512 points of a scrambled Sobol sequence and its reflections, whose first two moments are made exact.
    """
    nodes, log_weights = standard_nodes(mean.shape[-1], mean.dtype, mean.device)
    steps = row_cholesky(covariance) @ nodes.mT  # (*batch, n, P, K)
    return WeightedNodes(mean + steps.movedim(-1, 0), log_weights)


def conditional_nodes(mean: Tensor, covariance: Tensor, size: int = _HERMITE_NODES[1]) -> ConditionalNodes:
    """``size`` nodes in the second of two predictors, for expectations that have a closed form given it."""
    root = row_cholesky(covariance.flip(-1, -2))  # the second predictor comes first
    nodes, log_weights = standard_nodes(1, mean.dtype, mean.device, size)
    nodes = nodes.reshape(-1, *[1] * (mean.dim() - 1))
    second = mean[..., 1] + root[..., 0, 0] * nodes
    return ConditionalNodes(second, mean[..., 0] + root[..., 1, 0] * nodes, root[..., 1, 1].square(), log_weights)


def row_cholesky(covariance: Tensor) -> Tensor:
    """
    Lower Cholesky factors of the covariance in each row, also of singular ones, in elementwise operations, for which no
    GPU is waited for; cost ``O(n P^3)``. Pivots below the size of rounding (the epsilon of the dtype, absolute and
    relative to the variance) are raised to it, and the gradient passes as if they were not: expectations of smooth
    functions have a finite, nearly exact gradient at a variance of zero.
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
    """The exponential, kept above zero and below infinity: a scale from its logarithm."""
    return bounded_exp(exponent).clamp_min(torch.finfo(exponent.dtype).tiny)


@functools.cache
def standard_nodes(
    dimension: int, dtype: torch.dtype, device: torch.device, size: int | None = None
) -> tuple[Tensor, Tensor]:
    """
    Nodes ``(K, dimension)`` for expectations under a standard normal distribution, and log weights ``(K,)``, which are
    cached. In one and two dimensions the rule is Gauss-Hermite with ``size`` nodes a dimension.
    """
    with torch.inference_mode(False), torch.no_grad():  # cached tensors must be usable in training, too
        if dimension in _HERMITE_NODES:
            nodes, weights = _hermite_rule(dimension, size or _HERMITE_NODES[dimension])
        else:
            nodes = _sobol_rule(dimension)
            weights = torch.full((len(nodes),), 1.0 / len(nodes), dtype=torch.float64)
        return nodes.to(device, dtype), weights.log().to(device, dtype)


def _hermite_rule(dimension: int, size: int) -> tuple[Tensor, Tensor]:
    points, point_weights = (torch.from_numpy(values) for values in np.polynomial.hermite_e.hermegauss(size))
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
