"""Laplace's approximation, and points that have its moments in the directions that matter."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

# Share of the squared changes for which the chosen directions account.
_SHARE = 0.99


class Laplace(NamedTuple):
    """A normal approximation."""

    root: Tensor  # R with V = R R', (p, p)
    covariance: Tensor  # V, (p, p)
    least_curvature: float  # of the objective without the prior


def laplace(curvature: Tensor, prior_precision: float) -> Laplace:
    """
    The approximation with minus the matrix of second derivatives ``curvature``, ``(p, p)``, to which a normal prior
    adds. Where the objective rises the prior's precision alone counts.
    """
    values, vectors = torch.linalg.eigh(0.5 * (curvature + curvature.mT))
    root = vectors * (values.clamp_min(0.0) + prior_precision).rsqrt()
    return Laplace(root, root @ root.mT, values[0].item())


def leading_directions(root: Tensor, changes: Tensor, most: int) -> Tensor:
    """
    Orthogonal combinations of the columns of a root of the covariance, ``(p, r)``, by which quantities change most:
    ``changes`` are the derivatives of m quantities in each coordinate, ``(p, m)``.
    """
    rotation, sizes, _ = torch.linalg.svd(root.mT @ changes, full_matrices=False)
    squares = sizes.square().cumsum(0)
    number = int((squares < _SHARE * squares[-1]).sum()) + 1
    return root @ rotation[:, : min(number, most)]


def design(number: int) -> Tensor:
    r"""
    Points ``(K, number)`` of plus and minus ones with mean zero and the identity as covariance, exactly: rows of a
    Hadamard matrix without its constant column, whose size K is the least power of two above ``number``.
    """
    from scipy.linalg import hadamard  # here, because it takes long to import

    size = 1 << number.bit_length()
    return torch.from_numpy(hadamard(size, dtype=float))[:, 1 : number + 1]


def most_directions(max_points: int) -> int:
    """The largest number of directions for which :func:`design` has at most ``max_points``."""
    return (1 << (max_points.bit_length() - 1)) - 1
