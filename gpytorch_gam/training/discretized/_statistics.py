r"""
Statistics of a model from tables of its bins.

With features at the bins :math:`\Phi_t = L^{-1} k(Z, \ell)` of all components that read the set of columns t, blocks of
the Gram matrix are :math:`\Phi_s W_{st} \Phi_t^\top` with the table :math:`W_{st}` of summed weights. Their cost does
not depend on the number of rows, and the tables do not depend on the hyperparameters.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gpytorch_gam.components import ComponentGroup
from gpytorch_gam.components.joined_groups import by_group, joined_groups
from gpytorch_gam.mlls import GaussianStatistics
from gpytorch_gam.numerics.triangular import solve_in_blocks
from gpytorch_gam.variational import AdditiveVariationalStrategy

from ._data import BinTables, MomentTables
from ._tabulated_gradients import lagrange_weights
from .column_bins import stacked

# Number of knots from which a value is interpolated.
_STENCIL = 6

# Largest number of entries of tables that are copied, so that they are multiplied at once.
_LARGEST_JOINED = 2**18

# Largest number of weights with which a set's bins are interpolated from knots.
_LARGEST_SPREAD = 2**24


class GroupBins(NamedTuple):
    """The bins at which a group's components are evaluated; shorter lists of bins repeat one."""

    terms: list[int]  # the set of columns that each component reads
    inputs: Tensor  # of the kernels, (C_g, U, d)
    multiplier: Tensor | None  # (C_g, U), 0 where a column is missing; None for ones


def bins_of_groups(
    strategy: AdditiveVariationalStrategy, terms: list[list[int]], places: Sequence[Tensor]
) -> list[GroupBins]:
    """The bins of each group; ``terms`` are each group's indices of sets, ``places`` the sets' bins ``(U_t, d_t)``."""
    groups = strategy.predictor.groups
    return [
        _bins_of_group(group, terms_of_group, [places[term] for term in terms_of_group])
        for group, terms_of_group in zip(groups, terms, strict=True)
    ]


def _bins_of_group(group: ComponentGroup, terms: list[int], places: list[Tensor]) -> GroupBins:
    inputs = stacked([bins[:, : group.input_dim] for bins in places])
    multiplier = None
    if group.has_multiplier:  # its column is the last one of a set
        columns = zip(places, group.multiplier_columns, strict=True)
        values = [bins.new_ones(len(bins), 1) if by is None else bins[:, -1:] for bins, by in columns]
        multiplier = group.multiplier_of(stacked(values).squeeze(-1))
    is_missing = inputs.isnan().any(-1)
    if not is_missing.any():
        return GroupBins(terms, inputs, multiplier)
    known = torch.ones_like(inputs[..., 0]) if multiplier is None else multiplier
    return GroupBins(terms, group.without_missing(inputs), known.masked_fill(is_missing, 0.0))


class BinStatistics:
    """The statistics as a function of the hyperparameters; ``terms`` are each group's indices of sets in the tables."""

    def __init__(self, strategy: AdditiveVariationalStrategy, terms: list[list[int]], tables: BinTables) -> None:
        self._strategy, self.tables = strategy, tables
        self._bins = bins_of_groups(strategy, terms, tables.places)
        num_features = [0] * len(tables.places)
        for group, terms_of_group in zip(strategy.predictor.groups, terms, strict=True):
            for term in terms_of_group:
                num_features[term] += group.num_inducing
        # Each table is multiplied first from the side of the set that has fewer features.
        self._order = sorted(range(len(num_features)), key=num_features.__getitem__)
        self._later = [self._order[position + 1 :] for position in range(len(self._order))]
        self._rows = [
            _joined_if_small([between(tables, first, other) for other in later])
            for first, later in zip(self._order, self._later, strict=True)
        ]

    def __call__(self, constant: Tensor | float = 0.0) -> GaussianStatistics:
        """The statistics, with the constant mean of the predictor subtracted from the residuals."""
        tables = self.tables
        weight, target, square = tables.totals
        features, prior, positions, _ = self.features()
        upper = self._upper_gram(features)
        place = torch.cat([positions[term] for term in self._order]).argsort()
        gram = (upper.triu() + upper.triu(1).mT).index_select(0, place).index_select(1, place)
        projected = [features[t] @ (tables.targets[t] - constant * tables.weights[t]) for t in self._order]
        explainable = torch.stack([weights @ each for weights, each in zip(tables.weights, prior, strict=True)]).sum()
        return GaussianStatistics(
            gram=gram,
            projected=torch.cat(projected).index_select(0, place),
            residual_square=square - 2 * constant * target + constant * constant * weight,
            unexplained=explainable - upper.diagonal().sum(),
            num_rows=tables.num_rows,
            log_noise=tables.log_noise,
        )

    def features(self) -> SetFeatures:
        """The components at the bins."""
        return features_of_sets(self._strategy, self._bins, self.tables.places)

    def _upper_gram(self, features: list[Tensor]) -> Tensor:
        r"""The upper block triangle of :math:`\Phi W \Phi^\top` with the sets in order, ``(Q, Q)``."""
        weighted: list[list[Tensor]] = [[] for _ in features]  # for each set, its products with the sets before it
        for first, later, row in zip(self._order, self._later, self._rows, strict=True):
            phi, own = features[first], self.tables.own[first]
            weighted[first].append(phi * own if own.dim() == 1 else phi @ own)
            sizes = [features[other].shape[-1] for other in later]
            products = (phi @ row[0]).split(sizes, dim=-1) if len(row) == 1 else [phi @ table for table in row]
            for other, part in zip(later, products, strict=True):
                weighted[other].append(part)
        columns = [torch.cat(weighted[term]) @ features[term].mT for term in self._order]
        return torch.cat([torch.nn.functional.pad(c, (0, 0, 0, len(columns[-1]) - len(c))) for c in columns], dim=-1)


def _joined_if_small(tables: list[Tensor]) -> list[Tensor]:
    """Tables with the same set of rows side by side, which takes a single product; large ones are not copied."""
    is_small = sum(table.numel() for table in tables) <= _LARGEST_JOINED
    return [torch.cat(tables, dim=-1)] if is_small and tables else tables


def between(tables: BinTables, first: int, second: int) -> Tensor:
    """The table of two sets in the given order, ``(U_first, U_second)``."""
    return tables.pairs[first, second] if first < second else tables.pairs[second, first].mT


class SetFeatures(NamedTuple):
    """The components at the bins of the sets of columns that they read, in float64, a list entry for each set."""

    features: list[Tensor]  # features of all components that read the set, (M_t, U_t)
    prior: list[Tensor]  # sum of their prior variances, (U_t,)
    positions: list[Tensor]  # positions of the features in the inducing vector, (M_t,)
    # The set that each component reads, and its prior variance there, (U_t,), in the order of the inducing vector.
    components: list[tuple[int, Tensor]]


def features_of_sets(
    strategy: AdditiveVariationalStrategy, bins_of_groups: Sequence[GroupBins], places: Sequence[Tensor]
) -> SetFeatures:
    """Features and prior variances at the bins ``(U_t, d_t)`` of the sets."""
    features: list[list[Tensor]] = [[] for _ in places]
    positions: list[list[Tensor]] = [[] for _ in places]
    prior = [bins.new_zeros(len(bins)) for bins in places]
    joined = joined_groups(strategy.predictor.groups)
    found = [
        _evaluated(strategy, each.group, _joined_bins([bins_of_groups[place] for place in each.places]))
        for each in joined
    ]
    phis_of_groups = by_group(joined, [phi for phi, _ in found], -3)
    variances_of_groups = by_group(joined, [variances for _, variances in found], -2)
    components: list[tuple[int, Tensor]] = []
    start = 0
    for bins, phis, variances in zip(bins_of_groups, phis_of_groups, variances_of_groups, strict=True):
        for term, phi, variance in zip(bins.terms, phis, variances, strict=True):
            count = len(places[term])
            features[term].append(phi[:, :count])
            prior[term] = prior[term] + variance[:count]
            components.append((term, variance[:count]))
            positions[term].append(torch.arange(start, start + len(phi), device=phi.device))
            start += len(phi)
    by_set = [torch.cat(parts) for parts in features]
    return SetFeatures(by_set, prior, [torch.cat(parts) for parts in positions], components)


def _joined_bins(bins: Sequence[GroupBins]) -> GroupBins:
    """The bins of several groups as those of one."""
    if len(bins) == 1:
        return bins[0]
    ones = [torch.ones_like(each.inputs[..., 0]) for each in bins]
    return GroupBins(
        [term for each in bins for term in each.terms],
        _side_by_side([each.inputs for each in bins]),
        _filled([each.multiplier for each in bins], ones),
    )


def _filled(values: Sequence[Tensor | None], fills: Sequence[Tensor]) -> Tensor | None:
    """Values of several groups with other ones for None, or None if there are no values."""
    if all(each is None for each in values):
        return None
    return _side_by_side([fill if each is None else each for each, fill in zip(values, fills, strict=True)])


def _side_by_side(values: Sequence[Tensor]) -> Tensor:
    """Values at the bins of several groups, ``(C_g, U, ...)`` each, as those of one; shorter lists repeat a bin."""
    size = max(each.shape[1] for each in values)
    parts = [torch.cat([each, each[:, :1].expand(-1, size - each.shape[1], *each.shape[2:])], dim=1) for each in values]
    return torch.cat(parts)


def _evaluated(strategy: AdditiveVariationalStrategy, group: ComponentGroup, bins: GroupBins) -> tuple[Tensor, Tensor]:
    """Features ``(C_g, M, U)`` and prior variances ``(C_g, U)`` in float64, from one evaluation of the kernel."""
    points = group.inducing_points.double()
    if group.block_shape != (group.num_components, group.num_inducing):
        cross, variances = group.evaluate_with_variance(points, bins.inputs)
        features = solve_in_blocks(strategy.inducing_cholesky(group), _multiplied(cross, bins))
    else:
        covariance, variances = group.evaluate_with_variance(points, torch.cat([points, bins.inputs], dim=-2))
        inducing, cross = covariance.split([group.num_inducing, bins.inputs.shape[-2]], dim=-1)
        cholesky = strategy.inducing_cholesky(group, inducing)
        features = torch.linalg.solve_triangular(cholesky, _multiplied(cross, bins), upper=False)
        variances = variances[:, group.num_inducing :]
    if bins.multiplier is not None:
        variances = variances * bins.multiplier.square()
    return features, variances


def _multiplied(cross: Tensor, bins: GroupBins) -> Tensor:
    return cross if bins.multiplier is None else cross * bins.multiplier.unsqueeze(-2)


@torch.no_grad()
def moment_tables(
    strategy: AdditiveVariationalStrategy,
    terms: list[list[int]],
    places: Sequence[Tensor],
    mean: Tensor,
    covariance: Tensor,
) -> MomentTables:
    """Moments of the predictor under a Gaussian posterior of the whitened inducing variables, as tables of the bins."""
    features, prior, positions, _ = features_of_sets(strategy, bins_of_groups(strategy, terms, places), places)
    means = [mean[index] @ phi for index, phi in zip(positions, features, strict=True)]
    by_bin = [
        variance - phi.square().sum(0) + (phi * (covariance[index][:, index] @ phi)).sum(0)
        for variance, phi, index in zip(prior, features, positions, strict=True)
    ]
    pairs: dict[tuple[int, int], Tensor] = {}
    for s, t in itertools.combinations(range(len(places)), 2):
        table = 2 * features[s].mT @ covariance[positions[s]][:, positions[t]] @ features[t]
        if min(table.shape) > 1:
            pairs[s, t] = table
        elif len(table) == 1:
            by_bin[t] = by_bin[t] + table[0]
        else:
            by_bin[s] = by_bin[s] + table[:, 0]
    return MomentTables(means, by_bin, pairs)


def interpolated(tables: BinTables, is_rounded: Sequence[Sequence[bool]], num_knots: Sequence[int]) -> BinTables:
    """
    The tables on fewer bins: each bin of a set is spread, in each column that ``is_rounded``, over the six knots of a
    grid around it, with the weights of polynomial interpolation, which preserves sums of functions that are smooth on
    this scale. ``num_knots`` is for sets of one column, two, and so on.
    """
    places = list(tables.places)
    spreads: list[Tensor | None] = []
    for term, rounded in enumerate(is_rounded):
        spread = None
        if any(rounded):
            number = num_knots[min(len(rounded), len(num_knots)) - 1]
            axes = [_axis(column, each, number) for column, each in zip(places[term].mT, rounded, strict=True)]
            size = math.prod(len(nodes) for nodes, _ in axes)
            if 4 * size <= len(places[term]) and size * len(places[term]) <= _LARGEST_SPREAD:
                places[term], spread = _grid_of(axes)
        spreads.append(spread)
    own = [
        table if spread is None else (spread * table) @ spread.mT
        for table, spread in zip(tables.own, spreads, strict=True)
    ]
    pairs = {(s, t): _spread(_spread(table, spreads[s]).mT, spreads[t]).mT for (s, t), table in tables.pairs.items()}
    weights = [_spread(values, spread) for values, spread in zip(tables.weights, spreads, strict=True)]
    targets = [_spread(values, spread) for values, spread in zip(tables.targets, spreads, strict=True)]
    return tables._replace(places=places, own=own, pairs=pairs, weights=weights, targets=targets)


def _spread(values: Tensor, spread: Tensor | None) -> Tensor:
    """Turn sums at bins into sums at knots; ``spread`` is None where these are the same."""
    return values if spread is None else spread @ values


def _axis(column: Tensor, is_rounded: bool, number: int) -> tuple[Tensor, Tensor]:
    """
    Nodes ``(k,)`` for the bins of a column ``(U,)`` and the weights ``(k, U)`` that interpolate the bins from them:
    knots over the range where the column is rounded, elsewhere its values. Missing values have a node of their own.
    """
    is_missing = column.isnan()
    known = column[~is_missing]
    if is_rounded:
        low, high = known.min(), known.max()
        step = (high - low) / (number - 1)
        nodes = low + step * torch.arange(number).to(column)
        position = torch.where(is_missing, torch.zeros_like(column), (column - low) / step)
        weights = _interpolation_weights(position, number) * ~is_missing
    else:
        nodes = known.unique()
        weights = (column == nodes.unsqueeze(-1)).to(column)
    if not is_missing.any():
        return nodes, weights
    return torch.cat([nodes, nodes.new_full((1,), math.nan)]), torch.cat([weights, is_missing.to(column)[None]])


def _grid_of(axes: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """All combinations of the nodes of several columns, ``(K, d)``, and the weights ``(K, U)`` of the bins there."""
    nodes, weights = zip(*axes, strict=True)
    grid = torch.stack(torch.meshgrid(*nodes, indexing="ij"), dim=-1).flatten(0, -2)
    total = weights[0]
    for part in weights[1:]:
        total = (total.unsqueeze(1) * part).flatten(0, 1)
    return grid, total


def _interpolation_weights(position: Tensor, number: int) -> Tensor:
    """Weights ``(number, U)`` of local interpolation from the knots 0, 1, ... at positions ``(U,)``."""
    first = (position.floor() - (_STENCIL // 2 - 1)).clamp(0, number - _STENCIL)
    nodes = torch.arange(_STENCIL, dtype=position.dtype, device=position.device)
    values = lagrange_weights(position - first, nodes)
    return position.new_zeros(number, len(position)).scatter_(0, (first + nodes.unsqueeze(-1)).long(), values)
