"""Variances of effects of columns and of their interactions, for independent columns."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ._product_rows import ProductRows

# Effects by the columns that they are of: values at all combinations of nodes, (*batch, Q^k).
_Effects = dict[tuple[int, ...], Tensor]


class Variances(NamedTuple):
    """
    Variances over inputs.

    :ivar predictors: Of the predictors ``(*batch, P)``.
    :ivar components: Of the components ``(*batch, C)``.
    :ivar covariances: Covariances of the components with their predictors ``(*batch, C)``.
    :ivar first: Of the effect of each column alone in each predictor, ``(*batch, P, J)``.
    :ivar total: Of all effects that a column takes part in, ``(*batch, P, J)``.
    :ivar sets: The T sets of two and more columns that components read together.
    :ivar interactions: Of the interaction of each of these sets ``(*batch, P, T)``.
    """

    predictors: Tensor
    components: Tensor
    covariances: Tensor
    first: Tensor
    total: Tensor
    sets: tuple[tuple[int, ...], ...]
    interactions: Tensor


def variances_of_effects(
    components: Tensor, rows: ProductRows, reads: Sequence[tuple[int, ...]], owners: Sequence[int]
) -> Variances:
    r"""
    The decomposition of the variance into effects of sets of columns, which are orthogonal if columns are independent
    (Hoeffding, 1948; Sobol, 1993): with means :math:`m_S = \mathrm E(\rho \mid \mathbf x_S)`, the effect of :math:`T`
    is :math:`\sum_{S \subseteq T} (-1)^{|T| - |S|} m_S`. So what components of several columns have in common with
    effects of some of them goes to these.

    :param components: Values of the components in these rows ``(*batch, C, n)``.
    :param rows: The rows.
    :param reads: The columns that each component reads, in order.
    :param owners: The predictor of each component.
    """
    parts = [_Part.of(components[..., index, :], rows, columns) for index, columns in enumerate(reads)]
    number, num_columns = max(owners) + 1, len(rows.weights)
    members = [[part for part, owner in zip(parts, owners, strict=True) if owner == each] for each in range(number)]
    sums = [functools.reduce(_Part.plus, own) for own in members]
    zero = components.new_zeros(components.shape[:-2])
    found = [{each: own.inner(own, rows, each).clamp_min(0.0) for each in own.sets} for own in sums]
    joint = {each for own in sums for each in own.joint if len(each) > 1}
    sets = tuple(sorted(joint, key=lambda each: (len(each), each)))

    def gathered(choices: Iterable[Iterable[tuple[int, ...]]]) -> Tensor:
        """The sums of the variances of some sets each, in each predictor."""
        chosen = [list(each) for each in choices]
        rows_of = [[sum((own[key] for key in each if key in own), zero) for each in chosen] for own in found]
        shape = *zero.shape, number, len(chosen)
        return (
            torch.stack([each for row in rows_of for each in row], -1).reshape(shape)
            if chosen
            else zero.new_empty(shape)
        )

    singles = [(column,) for column in range(num_columns)]
    every = [*singles, *sets]
    return Variances(
        gathered([every]).squeeze(-1),
        torch.stack([part.with_all(part, rows, zero) for part in parts], -1),
        torch.stack([part.with_all(sums[owner], rows, zero) for part, owner in zip(parts, owners, strict=True)], -1),
        gathered([each] for each in singles),
        gathered([each for each in every if column in each] for column in range(num_columns)),
        sets,
        gathered([each] for each in sets),
    )


class _Part(NamedTuple):
    """Effects of a sum of components: of those of one column at its nodes and at fine ones, and of others."""

    single: _Effects
    fine: _Effects
    joint: _Effects

    @classmethod
    def of(cls, values: Tensor, rows: ProductRows, columns: tuple[int, ...]) -> _Part:
        """Those of one component with values ``(*batch, n)``."""
        if not columns:
            return cls({}, {}, {})
        effects = _effects(rows.at_nodes(values, columns), columns, rows.weights)
        if len(columns) > 1:
            return cls({}, {}, effects)
        return cls(effects, _effects(rows.at_fine_nodes(values), columns, rows.fine_weights), {})

    @property
    def sets(self) -> list[tuple[int, ...]]:
        """The sets of columns of which there are effects."""
        return list(dict.fromkeys([*self.single, *self.joint]))

    def plus(self, other: _Part) -> _Part:
        """The sum with others."""
        return _Part(*(_added(*pair) for pair in zip(self, other, strict=True)))

    def inner(self, other: _Part, rows: ProductRows, columns: tuple[int, ...]) -> Tensor:
        """The covariance of the effects of a set of columns, ``(*batch)``: of single ones by their fine nodes."""
        pairs = [(self.joint, other.joint), (self.joint, other.single), (self.single, other.joint)]
        of_joint = sum(_covariance(*pair, columns, rows.weights) for pair in pairs)
        return of_joint + _covariance(self.fine, other.fine, columns, rows.fine_weights)

    def with_all(self, other: _Part, rows: ProductRows, zero: Tensor) -> Tensor:
        """The covariance with all effects of another sum, ``(*batch)``."""
        return sum((self.inner(other, rows, columns) for columns in self.sets), zero)


def _effects(grid: Tensor, columns: tuple[int, ...], weights: Tensor) -> _Effects:
    """The effects of all sets of some columns in values ``(*batch, Q, ..., Q)`` at combinations of their nodes."""
    found: _Effects = {(): grid}
    for place, column in enumerate(columns):
        dim = place - len(columns)
        weight = weights[column].reshape(-1, *[1] * (-1 - dim))
        before, found = found, {}
        for kept, values in before.items():
            mean = (values * weight).sum(dim, keepdim=True)
            found |= {kept: mean, (*kept, column): values - mean}
    return {kept: values.flatten(-len(columns)) for kept, values in found.items() if kept}


def _added(left: _Effects, right: _Effects) -> _Effects:
    both = {columns: left[columns] + right[columns] for columns in left.keys() & right.keys()}
    return {**left, **right, **both}


def _covariance(left: _Effects, right: _Effects, columns: tuple[int, ...], weights: Tensor) -> Tensor:
    """The mean product of two effects of the same columns; zero if one of them is missing."""
    if columns not in left or columns not in right:
        return weights.new_zeros(())
    weight = functools.reduce(torch.kron, [weights[column] for column in columns])
    return (left[columns] * right[columns] * weight).sum(-1)
