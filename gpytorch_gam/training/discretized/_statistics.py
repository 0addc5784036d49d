r"""
Statistics of a model from tables of its bins.

With features at the bins :math:`\Phi_c = L_c^{-1} k_c(Z_c, \ell)`, blocks of the Gram matrix are :math:`\Phi_c
W_{cc'} \Phi_{c'}^\top` with the table :math:`W_{cc'}` of summed weights: the number of rows is gone, and the
hyperparameters are free to move.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gpytorch_gam.components import AdditivePredictor, ComponentGroup
from gpytorch_gam.mlls import GaussianStatistics
from gpytorch_gam.numerics.triangular import solve_in_blocks
from gpytorch_gam.variational import AdditiveVariationalStrategy

from ._data import BinTables, MomentTables
from ._tabulated_gradients import lagrange_weights

# Knots from which a place between them is interpolated.
_STENCIL = 6


class _GroupTables(NamedTuple):
    """Tables of the components of a group, padded to one number of bins."""

    places: Tensor  # (C_g, U_g, d)
    own: Tensor  # (C_g, U_g), or (C_g, U_g, U_g)
    weights: Tensor  # (C_g, U_g)
    targets: Tensor  # (C_g, U_g)


class _Block(NamedTuple):
    """Pairs of components of two groups (or of one) and their tables."""

    groups: tuple[int, int]
    first: Tensor  # (P,), positions in the first group
    second: Tensor  # (P,), positions in the second
    table: Tensor  # (P, U_g, U_g')


class BinStatistics:
    """
    Statistics as a differentiable function of the hyperparameters.

    :param strategy: With one predictor and no batch shape.
    :param terms: The set of columns that each component reads, as its position in the tables; for each group.
    :param tables: Of all sets.
    """

    def __init__(self, strategy: AdditiveVariationalStrategy, terms: list[list[int]], tables: BinTables) -> None:
        self._strategy, self._tables = strategy, tables
        self._groups = [_group_tables(terms_of_group, tables) for terms_of_group in terms]
        self._blocks = list(_blocks(terms, tables))

    def __call__(self, constant: Tensor | float = 0.0) -> GaussianStatistics:
        """
        The statistics.

        :param constant: Mean of the predictor, subtracted from the residuals.
        """
        predictor = self._strategy.predictor
        features, unexplained = [], torch.zeros_like(self._tables.totals[0])
        for group, tables in zip(predictor.groups, self._groups, strict=True):
            features.append(bin_features(self._strategy, group, tables.places))
            unexplained = unexplained + (tables.weights * prior_variances(group, tables.places)).sum()
        gram, trace = self._gram(features, predictor)
        projected = [
            torch.einsum("cmu,cu->cm", phi, tables.targets - constant * tables.weights).flatten()
            for phi, tables in zip(features, self._groups, strict=True)
        ]
        weight, target, square = self._tables.totals
        return GaussianStatistics(
            gram=gram,
            projected=torch.cat(projected),
            residual_square=square - 2 * constant * target + constant * constant * weight,
            unexplained=unexplained - trace,
            num_rows=0,
        )

    def _gram(self, features: list[Tensor], predictor: AdditivePredictor) -> tuple[Tensor, Tensor]:
        r""":math:`\Phi W \Phi^\top`, ``(Q, Q)``, and its trace."""
        shapes = [(group.num_components, group.num_inducing) for group in predictor.groups]
        rows = [[features[0].new_zeros(*shape, *other) for other in shapes] for shape in shapes]
        trace = features[0].new_zeros(())
        for index, (phi, tables) in enumerate(zip(features, self._groups, strict=True)):
            weighted = phi * tables.own.unsqueeze(-2) if tables.own.dim() == 2 else phi @ tables.own
            blocks = weighted @ phi.mT
            trace = trace + blocks.diagonal(dim1=-2, dim2=-1).sum()
            every = torch.arange(len(blocks), device=blocks.device)
            rows[index][index] = rows[index][index].movedim(1, 2).index_put((every, every), blocks).movedim(2, 1)
        for (left, right), first, second, table in self._blocks:
            blocks = _cross_blocks(features[left][first], table, features[right][second])
            part = rows[left][right].movedim(1, 2).index_put((first, second), blocks)
            if left == right:
                part = part.index_put((second, first), blocks.mT)
            rows[left][right] = part.movedim(2, 1)
        for left in range(len(shapes)):
            for right in range(left):
                rows[left][right] = rows[right][left].movedim((2, 3), (0, 1))
        flat = [torch.cat([part.flatten(2, 3).flatten(0, 1) for part in row], dim=-1) for row in rows]
        return torch.cat(flat, dim=-2), trace


def _cross_blocks(left: Tensor, table: Tensor, right: Tensor) -> Tensor:
    """Products with the tables between, ``(P, M, M')``, from the side that is cheaper."""
    if left.shape[-2] <= right.shape[-2]:
        return (left @ table) @ right.mT
    return left @ (table @ right.mT)


def bin_features(strategy: AdditiveVariationalStrategy, group: ComponentGroup, places: Tensor) -> Tensor:
    """
    Features at the bins, in float64, from a single evaluation of the kernel.

    :param strategy: That knows the jitter.
    :param group: Of its components.
    :param places: ``(C_g, U, d)``, in float64.
    :return: ``(C_g, M, U)``.
    """
    if group.block_shape != (group.num_components, group.num_inducing):
        covariance = group.evaluate_kernel(group.inducing_points.double(), places)
        return solve_in_blocks(strategy.inducing_cholesky(group), covariance)
    points = group.inducing_points.double()
    covariance = group.evaluate_kernel(points, torch.cat([points, places], dim=-2))
    inducing, cross = covariance.split([group.num_inducing, places.shape[-2]], dim=-1)
    return torch.linalg.solve_triangular(strategy.inducing_cholesky(group, inducing), cross, upper=False)


def prior_variances(group: ComponentGroup, places: Tensor) -> Tensor:
    """
    Prior variances at the bins, ``(C_g, U)``, in float64.

    :param group: The components.
    :param places: ``(C_g, U, d)``, in float64.
    """
    return group.kernel(places, diag=True).double().expand(places.shape[:-1])


def _group_tables(terms: Sequence[int], tables: BinTables) -> _GroupTables:
    size = max(len(tables.places[term]) for term in terms)
    own = [tables.own[term] for term in terms]
    if len({table.dim() for table in own}) > 1:
        own = [torch.diag(table) if table.dim() == 1 else table for table in own]
    # Padding repeats a bin, without weight.
    places = [
        torch.cat([bins, bins[:1].expand(size - len(bins), -1)]) for bins in (tables.places[term] for term in terms)
    ]
    return _GroupTables(
        torch.stack(places),
        torch.stack([_padded(table, *[size] * table.dim()) for table in own]),
        torch.stack([_padded(tables.weights[term], size) for term in terms]),
        torch.stack([_padded(tables.targets[term], size) for term in terms]),
    )


def _padded(table: Tensor, *sizes: int) -> Tensor:
    missing = [size - length for size, length in zip(sizes, table.shape, strict=True)]
    return torch.nn.functional.pad(table, [number for gap in reversed(missing) for number in (0, gap)])


def _blocks(terms: list[list[int]], tables: BinTables) -> Iterator[_Block]:
    """All pairs of components, by pairs of groups."""
    sizes = [max(len(tables.places[term]) for term in terms_of_group) for terms_of_group in terms]
    for left, right in itertools.combinations_with_replacement(range(len(terms)), 2):
        numbers = range(len(terms[left])), range(len(terms[right]))
        pairs = list(itertools.combinations(numbers[0], 2) if left == right else itertools.product(*numbers))
        if pairs:
            first, second = torch.tensor(pairs, device=tables.totals.device).unbind(-1)
            stacked = [
                _padded(_table(tables, terms[left][i], terms[right][j]), sizes[left], sizes[right]) for i, j in pairs
            ]
            yield _Block((left, right), first, second, torch.stack(stacked))


def _table(tables: BinTables, left: int, right: int) -> Tensor:
    if left == right:
        own = tables.own[left]
        return torch.diag(own) if own.dim() == 1 else own
    return tables.pairs[left, right] if left < right else tables.pairs[right, left].mT


@torch.no_grad()
def moment_tables(
    strategy: AdditiveVariationalStrategy,
    terms: list[list[int]],
    places: Sequence[Tensor],
    mean: Tensor,
    covariance: Tensor,
) -> MomentTables:
    """
    Moments of the predictor under a Gaussian posterior, as tables of the bins.

    :param strategy: With one predictor and no batch shape.
    :param terms: See :class:`BinStatistics`.
    :param places: Bins of each set of columns, in float64.
    :param mean: Of the whitened inducing variables, ``(Q,)``.
    :param covariance: Of these, ``(Q, Q)``.
    """
    features: list[list[Tensor]] = [[] for _ in places]
    prior = [bins.new_zeros(len(bins)) for bins in places]
    positions: list[list[Tensor]] = [[] for _ in places]
    start = 0
    for group, terms_of_group in zip(strategy.predictor.groups, terms, strict=True):
        size = max(len(places[term]) for term in terms_of_group)
        padded = torch.stack(
            [torch.cat([places[t], places[t][:1].expand(size - len(places[t]), -1)]) for t in terms_of_group]
        )
        variances, phi = prior_variances(group, padded), bin_features(strategy, group, padded)
        for component, term in enumerate(terms_of_group):
            count = len(places[term])
            features[term].append(phi[component, :, :count])
            prior[term] = prior[term] + variances[component, :count]
            positions[term].append(torch.arange(start, start + group.num_inducing, device=mean.device))
            start += group.num_inducing
    stacked = [torch.cat(parts) for parts in features]
    where = [torch.cat(parts) for parts in positions]
    means = [mean[index] @ phi for index, phi in zip(where, stacked, strict=True)]
    by_bin = [
        variance - phi.square().sum(0) + (phi * (covariance[index][:, index] @ phi)).sum(0)
        for variance, phi, index in zip(prior, stacked, where, strict=True)
    ]
    pairs: dict[tuple[int, int], Tensor] = {}
    for s in range(len(places)):
        for t in range(s + 1, len(places)):
            table = 2 * stacked[s].mT @ covariance[where[s]][:, where[t]] @ stacked[t]
            if min(table.shape) > 1:
                pairs[s, t] = table
            elif len(table) == 1:
                by_bin[t] = by_bin[t] + table[0]
            else:
                by_bin[s] = by_bin[s] + table[:, 0]
    return MomentTables(means, by_bin, pairs)


def interpolated(tables: BinTables, is_rounded: Sequence[bool], num_knots: Sequence[int]) -> BinTables:
    """
    Tables on fewer bins: each bin spreads over the six knots of a regular grid around it (in each column) with the
    weights of polynomial interpolation. Sums of functions as smooth as that stay as they are.

    :param tables: On many bins.
    :param is_rounded: Whether the bins of a set of columns are a grid; any other stays.
    :param num_knots: In a column, for sets of one column, two, and so on; the last number holds for all further ones.
    """
    places = list(tables.places)
    maps: list[Tensor | None] = []
    for term, rounded in enumerate(is_rounded):
        bins = places[term]
        number = num_knots[min(bins.shape[-1], len(num_knots)) - 1] if bins.shape[-1] else 1
        if not rounded or 4 * number ** bins.shape[-1] > len(bins):
            maps.append(None)
            continue
        places[term], spread_of_term = _knots(bins, number)
        maps.append(spread_of_term)
    own = [
        table if spread is None else (spread * table) @ spread.mT
        for table, spread in zip(tables.own, maps, strict=True)
    ]
    pairs = {(s, t): _mapped(_mapped(table, maps[s]).mT, maps[t]).mT for (s, t), table in tables.pairs.items()}
    weights = [_mapped(values, spread) for values, spread in zip(tables.weights, maps, strict=True)]
    targets = [_mapped(values, spread) for values, spread in zip(tables.targets, maps, strict=True)]
    return BinTables(places, own, pairs, weights, targets, tables.totals)


def _mapped(values: Tensor, spread: Tensor | None) -> Tensor:
    """Values of bins on knots; None where these are the same."""
    return values if spread is None else spread @ values


def _knots(bins: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """A regular grid over the range of bins ``(U, d)``, and the weights ``(K, U)`` of their interpolation from it."""
    low, high = bins.amin(0), bins.amax(0)
    steps = (high - low) / (number - 1)
    weights = bins.new_ones(1, len(bins))
    for column in range(bins.shape[-1]):
        part = _interpolation_weights((bins[:, column] - low[column]) / steps[column], number)
        weights = (weights.unsqueeze(1) * part).flatten(0, 1)
    axes = [low[column] + steps[column] * torch.arange(number).to(bins) for column in range(bins.shape[-1])]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).flatten(0, -2), weights


def _interpolation_weights(position: Tensor, number: int) -> Tensor:
    """Weights ``(number, U)`` of local interpolation from the knots 0, 1, ... at positions ``(U,)``."""
    first = (position.floor() - (_STENCIL // 2 - 1)).clamp(0, number - _STENCIL)
    nodes = torch.arange(_STENCIL, dtype=position.dtype, device=position.device)
    values = lagrange_weights(position - first, nodes)
    return position.new_zeros(number, len(position)).scatter_(0, (first + nodes.unsqueeze(-1)).long(), values)
