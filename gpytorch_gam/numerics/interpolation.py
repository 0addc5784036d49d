"""Smooth functions of one variable at many points, by interpolation in a table."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from gpytorch.settings import trace_mode
from torch import Tensor

from .transforms import is_transformed

# The width of a cell in scales of the function, and the number of nodes in it.
_CELL_WIDTH, _NUM_NODES = 0.25, 10

# A value at a node costs some times as much as one by interpolation.
_LEAST_POINTS_OF_NODE = 4


def by_table(function: Callable[[Tensor], Sequence[Tensor]], x: Tensor, scale: Tensor) -> Sequence[Tensor]:
    r"""
    Values at many points of functions as smooth as :math:`e^{-x^2 / 2 s^2}` with scale s. The range of the points is
    cut into cells, in each of which polynomials interpolate the functions at K = 10 Chebyshev nodes. For a mixture of
    such Gaussians, whatever their places, the error is at most

    .. math::
        \frac{1.09\,h^K}{2^{K - 1} \sqrt{K!}} = 10^{-15}

    where h = 1 / 8 scale is half of the width of a cell: the remainder of the interpolation with Cramer's bound of
    Hermite functions. A table would know nothing of gradients, and does not pay for few points or those that are spread
    over many scales: the functions are then called with the points themselves.

    :param function: From points ``(*batch, m)`` to the values of functions, ``(*batch, m)`` each.
    :param x: The points ``(*batch, n)``, float64.
    :param scale: The scales ``(*batch, 1)``.
    """
    num_cells = _number_of_cells(x, scale)
    if num_cells is None:
        return function(x)
    low = x.amin(-1, keepdim=True)
    width = (x.amax(-1, keepdim=True) - low).clamp_min(torch.finfo(x.dtype).tiny) / num_cells
    nodes, to_series, to_powers = (torch.from_numpy(part) for part in _chebyshev_rule())
    middles = torch.arange(num_cells, dtype=x.dtype).unsqueeze(-1) + 0.5
    values = function(low + width * (middles + 0.5 * nodes).flatten())
    place = (x - low).div_(width)
    cell = place.long().clamp_(max=num_cells - 1)
    place.sub_(cell).sub_(0.5).mul_(2)  # in the cell, from -1 to 1
    starts = num_cells * torch.arange(math.prod(x.shape[:-1])).view(*x.shape[:-1], 1)
    cell = cell.add_(starts).flatten()
    tables = (to_powers @ (to_series @ part.reshape(-1, _NUM_NODES).mT) for part in values)
    return [_polynomials(table, cell, place) for table in tables]


def _number_of_cells(x: Tensor, scale: Tensor) -> int | None:
    """The number of cells of a table; None for no table."""
    if torch.is_grad_enabled() or x.device.type != "cpu" or x.numel() == 0:
        return None
    if trace_mode.on() or is_transformed(x, scale) or torch.compiler.is_compiling():
        return None
    spread = float(((x.amax(-1, keepdim=True) - x.amin(-1, keepdim=True)) / scale).amax())
    most = x.shape[-1] // (_NUM_NODES * _LEAST_POINTS_OF_NODE)
    return max(1, math.ceil(spread / _CELL_WIDTH)) if spread <= _CELL_WIDTH * most else None  # None for NaN


def _polynomials(coefficients: Tensor, cell: Tensor, place: Tensor) -> Tensor:
    """Values at ``place``, ``(*batch, n)``, of polynomials with coefficients ``(K, cells)``, by number ``(N,)``."""
    value = place
    for power, own in enumerate(coefficients.flip(0).unbind()):
        chosen = own.index_select(0, cell).view(place.shape)
        value = chosen if power == 0 else chosen.addcmul_(value, place)
    return value


@functools.cache
def _chebyshev_rule() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """
    Nodes ``(K,)`` in (-1, 1), and matrices ``(K, K)`` from values there to coefficients of Chebyshev's polynomials, and
    from these to those of powers. One after the other they are accurate, as the higher coefficients are small.
    """
    angles = (np.arange(_NUM_NODES) + 0.5) * np.pi / _NUM_NODES
    to_series = np.cos(np.outer(np.arange(_NUM_NODES), angles)) * 2 / _NUM_NODES
    to_series[0] /= 2
    to_powers = np.zeros((_NUM_NODES, _NUM_NODES))
    for degree in range(_NUM_NODES):
        to_powers[: degree + 1, degree] = np.polynomial.chebyshev.cheb2poly([0.0] * degree + [1.0])
    return np.cos(angles), to_series, to_powers
