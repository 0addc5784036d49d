"""Rows with independent columns, at which means over some columns are sums over others."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

# The nodes of each column where components read up to so many: a prime number, whose power is the number of rows.
_NODES = {1: 1, 2: 31, 3: 11, 4: 7}

# The most columns of a component, and the nodes of columns that components read alone: with and without others.
MOST_COLUMNS = max(_NODES)
_FINE, _FINE_ALONE = 512, 1024

# The deviation of values, in ranges of them, that is rounding.
_ALIKE = 1e-12


class Column(NamedTuple):
    """
    A column, or several that go together.

    :ivar places: Their places in the inputs.
    :ivar is_number: Whether functions of it are smooth, and have values between those in the data.
    """

    places: tuple[int, ...]
    is_number: bool


class ProductRows(NamedTuple):
    """
    Rows at which the J columns are independent. The first Q^t of them are an orthogonal array: any columns that a
    component reads together take all combinations of their Q nodes. The last N have a finer grid of each single column.

    :ivar rows: The inputs ``(n, D)``.
    :ivar weights: The weights of the nodes of each column ``(J, Q)``, which sum to one.
    :ivar fine_weights: The weights of the fine nodes of each column ``(J, N)``.
    :ivar nodes: The number of the node that each column has in the rows of the array, ``(J, Q^t)``.
    """

    rows: Tensor
    weights: Tensor
    fine_weights: Tensor
    nodes: np.ndarray

    def at_nodes(self, values: Tensor, columns: Sequence[int]) -> Tensor:
        """
        Values ``(..., Q, ..., Q)`` at all combinations of the nodes of some columns.

        :param values: Values of a function of these columns in all rows ``(..., n)``.
        :param columns: The columns.
        """
        size = self.weights.shape[-1]
        combination = np.ravel_multi_index(tuple(self.nodes[list(columns)]), (size,) * len(columns))
        first = torch.from_numpy(np.unique(combination, return_index=True)[1]).to(values.device)
        return values[..., first].unflatten(-1, (size,) * len(columns))

    def at_fine_nodes(self, values: Tensor) -> Tensor:
        """
        Values ``(..., N)`` at the fine nodes of single columns.

        :param values: Values of a function of one column in all rows ``(..., n)``.
        """
        return values[..., -self.fine_weights.shape[-1] :]


def product_rows(x: Tensor, columns: Sequence[Column], together: Collection[frozenset[int]]) -> ProductRows:
    """
    Rows in which each column has its own distribution in rows of the data, whatever the others have. Nodes of numbers
    are those of a Gauss rule for the values in the data, and of others these values.

    :param x: The data ``(n, D)``.
    :param columns: The columns that are independent of each other.
    :param together: The sets of columns that components read, of at most :data:`MOST_COLUMNS` each.
    """
    strength = max(map(len, together), default=1)
    colours = _colours(len(columns), together)
    size = _prime_from(max(_NODES[max(strength, 1)], max(colours, default=0)) if strength > 1 else 1)
    array = _orthogonal_array(size, max(strength, 1))
    nodes = np.stack([array[colour] for colour in colours]) if colours else np.zeros((0, 1), dtype=int)
    num_fine = _FINE if strength > 1 else _FINE_ALONE
    rows = x[:1].repeat(nodes.shape[1] + num_fine, 1)
    weights, fine_weights = [], []
    for column, own in zip(columns, nodes, strict=True):
        places, weight = _nodes_of(x[:, column.places], column.is_number, size)
        fine, fine_weight = _distinct(x[:, column.places], num_fine)
        rows[:, column.places] = torch.cat([places[torch.from_numpy(own).to(x.device)], fine])
        weights.append(weight)
        fine_weights.append(fine_weight)
    empty = x.new_zeros(0, 1, dtype=torch.float64)
    return ProductRows(
        rows,
        torch.stack(weights) if weights else empty,
        torch.stack(fine_weights) if weights else empty.expand(0, num_fine),
        nodes,
    )


def _nodes_of(values: Tensor, is_number: bool, size: int) -> tuple[Tensor, Tensor]:
    """Nodes ``(size, d)`` and weights ``(size,)`` of a distribution, given by its values ``(n, d)``."""
    if not is_number or size == 1 or len(values.unique(dim=0)) <= size:
        return _distinct(values, size)
    nodes, weights = _gauss(values.flatten().double().cpu().numpy(), size)
    return torch.from_numpy(nodes).to(values).unsqueeze(-1), torch.from_numpy(weights).to(values.device)


def _distinct(values: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """
    All different values and their frequencies, with weights of zero in the rest; or if they are more, those in the
    middle of equal parts of the values in order.
    """
    different, counts = values.unique(dim=0, return_counts=True)
    if len(different) > size:
        order = values[values[:, 0].argsort()]
        middle = ((torch.arange(size, device=values.device).double() + 0.5) * len(values) / size).long()
        return order[middle], middle.new_full((size,), 1.0 / size, dtype=torch.float64)
    weights = counts.new_zeros(size, dtype=torch.float64)
    weights[: len(different)] = counts.double() / len(values)
    return torch.cat([different, different[-1:].expand(size - len(different), -1)]), weights


def _gauss(values: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """
    Nodes and weights with the moments of values up to the order 2 size - 1: eigenvalues of the tridiagonal matrix of
    the recurrence of their orthogonal polynomials (Golub and Welsch, 1969), by Lanczos' method.
    """
    different, counts = np.unique(values, return_counts=True)
    centre, scale = np.average(different, weights=counts), np.ptp(different)
    points = (different - centre) / scale
    basis = np.zeros((size, len(points)))
    basis[0] = np.sqrt(counts / counts.sum())
    matrix = np.zeros((size, size))
    for order in range(size):
        image = points * basis[order]
        matrix[order, order] = basis[order] @ image
        for _ in range(2):  # again, against the loss of orthogonality
            image -= basis[: order + 1].T @ (basis[: order + 1] @ image)
        length = np.linalg.norm(image)
        if length < _ALIKE:  # there are no more values that rounding can tell apart
            break
        if order + 1 < size:
            matrix[order, order + 1] = matrix[order + 1, order] = length
            basis[order + 1] = image / length
    found = order + 1
    eigenvalues, vectors = np.linalg.eigh(matrix[:found, :found])
    weights = vectors[0] ** 2
    rest = size - found
    return centre + scale * np.pad(eigenvalues, (0, rest), mode="edge"), np.pad(weights / weights.sum(), (0, rest))


def _orthogonal_array(size: int, strength: int) -> np.ndarray:
    """
    Columns ``(size + 1, size^strength)`` of which any ``strength`` have each combination of numbers once: polynomials
    over the field of a prime number of elements at each of these, and their first coefficient (Bush, 1952).
    """
    coefficients = np.array(list(itertools.product(range(size), repeat=strength))).T  # (strength, rows)
    powers = np.array([[pow(element, order, size) for order in range(strength)] for element in range(size)])
    return np.concatenate([powers @ coefficients % size, coefficients[-1:]])


def _colours(number: int, together: Collection[frozenset[int]]) -> list[int]:
    """A number for each column, other ones for those that components read together, and as small as can be."""
    found: list[int] = []
    for column in range(number):
        others = set().union(*(each for each in together if column in each))
        taken = {found[other] for other in others if other < column}
        found.append(next(colour for colour in itertools.count() if colour not in taken))
    return found


def _prime_from(number: int) -> int:
    """The smallest prime number from here on; 1 for 1."""
    return next(
        each for each in itertools.count(number) if all(each % other for other in range(2, math.isqrt(each) + 1))
    )
