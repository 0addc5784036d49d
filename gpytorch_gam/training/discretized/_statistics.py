r"""
Statistics of a model from tables of its bins.

With features at the bins :math:`\Phi_t = L^{-1} k(Z, \ell)` of all components that read the set of columns t, blocks of
the Gram matrix are :math:`\Phi_s W_{st} \Phi_t^\top` with the table :math:`W_{st}` of summed weights. Their cost does
not depend on the number of rows, and the tables do not depend on the hyperparameters.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gpytorch_gam.components import ComponentGroup
from gpytorch_gam.mlls import GaussianStatistics
from gpytorch_gam.numerics.triangular import solve_in_blocks
from gpytorch_gam.variational import AdditiveVariationalStrategy

from ._data import BinTables, MomentTables
from ._tabulated_gradients import lagrange_weights
from .column_bins import stacked

# Number of knots from which a value is interpolated.
_STENCIL = 6


class BinStatistics:
    """The statistics as a function of the hyperparameters; ``terms`` are each group's indices of sets in the tables."""

    def __init__(self, strategy: AdditiveVariationalStrategy, terms: list[list[int]], tables: BinTables) -> None:
        self._strategy, self._terms, self.tables = strategy, terms, tables
        num_features = [0] * len(tables.places)
        for group, terms_of_group in zip(strategy.predictor.groups, terms, strict=True):
            for term in terms_of_group:
                num_features[term] += group.num_inducing
        # Each table is multiplied first from the side of the set that has fewer features.
        self._order = sorted(range(len(num_features)), key=num_features.__getitem__)
        self._later = [self._order[position + 1 :] for position in range(len(self._order))]
        self._rows = [  # (U_s, sum of the later U_t)
            torch.cat([_between(tables, first, other) for other in later], dim=-1) if later else None
            for first, later in zip(self._order, self._later, strict=True)
        ]

    def __call__(self, constant: Tensor | float = 0.0) -> GaussianStatistics:
        """The statistics, with the constant mean of the predictor subtracted from the residuals."""
        tables = self.tables
        weight, target, square = tables.totals
        features, prior, positions = features_of_sets(self._strategy, self._terms, tables.places)
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

    def _upper_gram(self, features: list[Tensor]) -> Tensor:
        r"""The upper block triangle of :math:`\Phi W \Phi^\top` with the sets in order, ``(Q, Q)``."""
        weighted: list[list[Tensor]] = [[] for _ in features]  # for each set, its products with the sets before it
        for first, later, row in zip(self._order, self._later, self._rows, strict=True):
            phi, own = features[first], self.tables.own[first]
            weighted[first].append(phi * own if own.dim() == 1 else phi @ own)
            if row is not None:
                sizes = [features[other].shape[-1] for other in later]
                for other, part in zip(later, (phi @ row).split(sizes, dim=-1), strict=True):
                    weighted[other].append(part)
        columns = [torch.cat(weighted[term]) @ features[term].mT for term in self._order]
        return torch.cat([torch.nn.functional.pad(c, (0, 0, 0, len(columns[-1]) - len(c))) for c in columns], dim=-1)


def _between(tables: BinTables, first: int, second: int) -> Tensor:
    """The table of two sets in the given order, ``(U_first, U_second)``."""
    return tables.pairs[first, second] if first < second else tables.pairs[second, first].mT


class SetFeatures(NamedTuple):
    """The components at the bins of the sets of columns that they read, in float64, a list entry for each set."""

    features: list[Tensor]  # features of all components that read the set, (M_t, U_t)
    prior: list[Tensor]  # sum of their prior variances, (U_t,)
    positions: list[Tensor]  # positions of the features in the inducing vector, (M_t,)


def features_of_sets(
    strategy: AdditiveVariationalStrategy, terms: list[list[int]], places: Sequence[Tensor]
) -> SetFeatures:
    """Features and prior variances at bins ``(U_t, d_t)``; for ``terms`` see :class:`BinStatistics`."""
    features: list[list[Tensor]] = [[] for _ in places]
    positions: list[list[Tensor]] = [[] for _ in places]
    prior = [bins.new_zeros(len(bins)) for bins in places]
    start = 0
    for group, terms_of_group in zip(strategy.predictor.groups, terms, strict=True):
        bins = stacked([places[term] for term in terms_of_group])
        variances = group.kernel(bins, diag=True).double().expand(bins.shape[:-1])
        for term, phi, variance in zip(terms_of_group, _features(strategy, group, bins), variances, strict=True):
            count = len(places[term])
            features[term].append(phi[:, :count])
            prior[term] = prior[term] + variance[:count]
            positions[term].append(torch.arange(start, start + group.num_inducing, device=bins.device))
            start += group.num_inducing
    return SetFeatures([torch.cat(parts) for parts in features], prior, [torch.cat(parts) for parts in positions])


def _features(strategy: AdditiveVariationalStrategy, group: ComponentGroup, bins: Tensor) -> Tensor:
    """Features ``(C_g, M, U)`` at bins ``(C_g, U, d)`` in float64, from a single evaluation of the kernel."""
    points = group.inducing_points.double()
    if group.block_shape != (group.num_components, group.num_inducing):
        return solve_in_blocks(strategy.inducing_cholesky(group), group.evaluate_kernel(points, bins))
    covariance = group.evaluate_kernel(points, torch.cat([points, bins], dim=-2))
    inducing, cross = covariance.split([group.num_inducing, bins.shape[-2]], dim=-1)
    return torch.linalg.solve_triangular(strategy.inducing_cholesky(group, inducing), cross, upper=False)


@torch.no_grad()
def moment_tables(
    strategy: AdditiveVariationalStrategy,
    terms: list[list[int]],
    places: Sequence[Tensor],
    mean: Tensor,
    covariance: Tensor,
) -> MomentTables:
    """Moments of the predictor under a Gaussian posterior of the whitened inducing variables, as tables of the bins."""
    features, prior, positions = features_of_sets(strategy, terms, places)
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


def interpolated(tables: BinTables, is_rounded: Sequence[bool], num_knots: Sequence[int]) -> BinTables:
    """
    The tables on fewer bins: each bin of a set that ``is_rounded`` is spread over the six knots of a grid around it (in
    each column), with the weights of polynomial interpolation, which preserves sums of functions that are smooth on
    this scale. ``num_knots`` is for sets of one column, two, and so on.
    """
    places = list(tables.places)
    spreads: list[Tensor | None] = []
    for term, rounded in enumerate(is_rounded):
        bins, spread = places[term], None
        number = num_knots[min(bins.shape[-1], len(num_knots)) - 1] if bins.shape[-1] else 1
        if rounded and 4 * number ** bins.shape[-1] <= len(bins):
            places[term], spread = _knots(bins, number)
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


def _knots(bins: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """A grid over the range of bins ``(U, d)``, and the weights ``(K, U)`` that interpolate the bins from it."""
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
