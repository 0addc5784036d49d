"""Nodes, weights and series for the integrals under measures."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor


def constant(values: tuple[Any, ...], device: torch.device) -> Tensor:
    """
    Numbers, or tuples of them, as a float64 tensor that must not be changed. A copy to a GPU makes the processor wait,
    and cannot be recorded in a CUDA graph, so each table is copied once.
    """
    if device.type == "cpu" or torch.compiler.is_compiling():
        return torch.tensor(values, dtype=torch.float64, device=device)
    return _kept_constant(values, device)


@functools.lru_cache(maxsize=256)
def _kept_constant(values: tuple[Any, ...], device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # otherwise the tensor could not be used in training later
        return torch.tensor(values, dtype=torch.float64, device=device)


def gauss_legendre(num_nodes: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Gauss-Legendre nodes and weights on (0, 1), float64."""
    nodes, weights = constant(_gauss_legendre_table(num_nodes), device)
    return nodes, weights


def _gauss_legendre_table(num_nodes: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    # Two functions, because the compiler looks through the cache, and cannot trace NumPy's.
    return _cached_gauss_legendre_table(num_nodes)


# What `torch.compiler.assume_constant_result` does. As a decorator it imports the compiler, which takes a second.
_gauss_legendre_table._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.lru_cache(maxsize=16)
def _cached_gauss_legendre_table(num_nodes: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    nodes, weights = np.polynomial.legendre.leggauss(num_nodes)
    return tuple(((nodes + 1) / 2).tolist()), tuple((weights / 2).tolist())


def panels(edges: tuple[Tensor, ...], num_nodes: int) -> tuple[Tensor, Tensor]:
    """
    Gauss-Legendre nodes, ``num_nodes`` an interval, and weights, each ``(*shape, (len(edges) - 1) * num_nodes)``, for
    the integral over adjacent intervals with the ascending end points ``edges``, each ``(*shape)`` in float64.
    """
    nodes, weights = gauss_legendre(num_nodes, edges[0].device)
    starts = torch.stack(torch.broadcast_tensors(*edges[:-1]), -1).unsqueeze(-1)  # (*shape, intervals, 1)
    widths = torch.stack(torch.broadcast_tensors(*edges[1:]), -1).unsqueeze(-1) - starts
    return (starts + widths * nodes).flatten(-2), (widths * weights).flatten(-2)


def power_series(x: Tensor, coefficients: Tensor) -> Tensor:
    """The sum over k = 1, ..., K of c_k x^k at ``x``, ``(*batch, n)``, with coefficients ``(*batch, K)``."""
    return (integer_powers(x, coefficients.shape[-1]) @ coefficients.unsqueeze(-1)).squeeze(-1)


def integer_powers(x: Tensor, count: int) -> Tensor:
    """
    The powers x, x^2, ..., x^count of ``x``, ``(*shape)``: ``(*shape, count)``, by products alone. Doubling the number
    of powers takes few operations on short vectors, and no elementwise ``pow`` on long ones.
    """
    powers = x.unsqueeze(-1)
    while powers.shape[-1] < count:
        missing = count - powers.shape[-1]
        powers = torch.cat([powers, powers[..., :missing] * powers[..., -1:]], -1)
    return powers
