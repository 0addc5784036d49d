"""Derivatives of the expected log-likelihoods of many rows with few distinct responses, by interpolation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch
from gpytorch.likelihoods import Likelihood
from torch import Tensor

from gpytorch_gam.likelihoods.expected_gradients import ExpectedGradients, expected_gradients

from .column_bins import ColumnBins

# Numbers of knots over the means and the variances, from coarse to fine.
_GRIDS = ((512, 3), (1024, 4), (2048, 6))

# Largest relative root-mean-square errors of values, gradients and curvatures. Some likelihoods are not smoother than
# this themselves: GPyTorch's normal distribution function is made of three pieces.
_ERRORS = (1e-4, 1e-4, 1e-2)

# Largest number of distinct responses, and number of rows on which a table is checked: equally spaced ones, and as many
# again with the largest variances.
_MAX_RESPONSES, _CHECKED_ROWS = 64, 500

# Number of knots from which a mean is interpolated.
_STENCIL = 4


class TabulatedGradients:
    """Expected log-likelihoods of K responses, interpolated from knots over ranges ``(2,)`` of mean and variance."""

    def __init__(
        self, likelihood: Likelihood, responses: Tensor, means: Tensor, variances: Tensor, grid: tuple[int, int]
    ) -> None:
        self._num_means = grid[0]
        self._low, self._step = means[0], (means[1] - means[0]).clamp_min(1e-6) / (grid[0] - 1)
        self._middle, self._half = variances.mean(), 0.5 * (variances[1] - variances[0]).clamp_min(1e-9 * variances[1])
        self._nodes = torch.linspace(-1.0, 1.0, grid[1]).to(means)
        knots = self._low + self._step * torch.arange(grid[0]).to(means)
        shape = (len(responses), *grid)
        found = expected_gradients(
            likelihood,
            responses[:, None, None].expand(shape),
            knots[:, None].expand(shape).to(responses),
            (self._middle + self._half * self._nodes).expand(shape).to(responses),
        )
        # Each function has a row of its own in the table, so that all loops run along the rows of the data.
        self._table = torch.stack(found).movedim(-1, 1).reshape(3 * grid[1], -1).contiguous()  # (3 variances, K means)
        self._responses, self._means, self._variances = responses, knots, self._middle + self._half * self._nodes

    def __call__(self, codes: Tensor, mean: Tensor, variance: Tensor) -> ExpectedGradients:
        """The derivatives of rows, given the indices of their responses, means and variances, each ``(n,)``."""
        rows, by_mean, by_variance = self._places(codes, mean, variance)
        values = torch.zeros(len(self._table), len(mean)).to(mean)
        for offset, weights in enumerate(by_mean):
            places = rows + offset
            for total, entries in zip(values, self._table, strict=True):
                total.addcmul_(entries.index_select(0, places), weights)
        expected, gradients, curvatures = (values.view(3, -1, len(mean)) * by_variance).sum(1)
        return ExpectedGradients(expected, gradients, curvatures.clamp_min(0.0))

    def _places(self, codes: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rows' first knots ``(n,)`` in int32, and weights of the knots over mean ``(stencil, n)`` and variance."""
        position = (mean - self._low) / self._step
        first = (position.floor() - (_STENCIL // 2 - 1)).clamp(0, self._num_means - _STENCIL)
        by_mean = lagrange_weights(position - first, torch.arange(_STENCIL).to(mean))
        by_variance = lagrange_weights((variance - self._middle) / self._half, self._nodes)
        return codes.int() * self._num_means + first.int(), by_mean, by_variance

    def spread(self, codes: Tensor, mean: Tensor, variance: Tensor, weights: Tensor | None) -> WeightedRows:
        """The rows of :meth:`__call__`, with weights of their own, as weighted rows at the knots."""
        places, by_mean, by_variance = self._places(codes, mean, variance)
        by_mean = by_mean if weights is None else weights * by_mean
        totals = mean.new_zeros(len(self._nodes), len(self._responses) * self._num_means)
        for total, factors in zip(totals, by_variance, strict=True):
            for offset, part in enumerate(by_mean):
                total.index_add_(0, places + offset, factors * part)
        grid = totals.view(len(self._nodes), len(self._responses), self._num_means)
        which, response, knot = grid.nonzero(as_tuple=True)
        return WeightedRows(
            self._responses[response],
            self._means[knot],
            self._variances[which],
            grid[which, response, knot],
        )


class WeightedRows(NamedTuple):
    """Responses with moments of their predictor, each ``(n,)``, that count as many times as their weights say."""

    responses: Tensor
    mean: Tensor
    variance: Tensor
    weights: Tensor | None
    arguments: Mapping[str, Tensor] = MappingProxyType({})

    def chunk(self, rows: slice) -> WeightedRows:
        """Some of the rows."""
        weights = None if self.weights is None else self.weights[rows]
        arguments = {name: value[rows] for name, value in self.arguments.items()}
        return WeightedRows(self.responses[rows], self.mean[rows], self.variance[rows], weights, arguments)


def tabulated(
    likelihood: Likelihood, distinct: Tensor, codes: Tensor, mean: Tensor, variance: Tensor
) -> TabulatedGradients | None:
    """
    A table for rows ``(n,)`` with these moments, or None if none is accurate enough and worth its cost. ``codes`` are
    the rows' indices of the ``distinct`` responses ``(K,)``.
    """
    if len(mean) < 4 * _CHECKED_ROWS:
        return None
    means, variances = (torch.stack(torch.aminmax(values)) for values in (mean, variance))
    if not torch.isfinite(torch.cat([means, variances])).all():
        return None
    spread = torch.linspace(0, len(mean) - 1, _CHECKED_ROWS, device=mean.device).long()
    rows = torch.cat([spread, variance.topk(_CHECKED_ROWS).indices, mean.argmin()[None], mean.argmax()[None]])
    checked = codes[rows], mean[rows], variance[rows]
    moments = [values.to(distinct) for values in checked[1:]]
    wanted = expected_gradients(likelihood, distinct[checked[0].long()], moments[0], moments[1])
    for grid in _GRIDS:
        if 4 * len(distinct) * grid[0] * grid[1] > len(mean):
            return None
        table = TabulatedGradients(likelihood, distinct, means, variances, grid)
        pairs = zip(table(*checked), wanted, _ERRORS, strict=True)
        if all(bool((new - old).norm() <= error * old.norm()) for new, old, error in pairs):
            return table
    return None


def distinct_responses(responses: Tensor) -> tuple[Tensor, Tensor] | None:
    """The distinct values ``(K,)``, and the index of each row's value; None if there are many."""
    if not responses.is_floating_point() or not torch.isfinite(responses.sum()):
        return None
    bins = ColumnBins.from_data(responses.unsqueeze(-1), max_bins=_MAX_RESPONSES)
    if not bins.is_exact((0,)):
        return None
    return bins.values((0,)).squeeze(-1), bins.index(responses.unsqueeze(-1))[0]


def lagrange_weights(position: Tensor, nodes: Tensor) -> Tensor:
    """Weights ``(k, n)`` of polynomial interpolation at positions ``(n,)`` from values at nodes ``(k,)``."""
    distances = position - nodes.unsqueeze(-1)
    return torch.stack(list(_products(distances, nodes)))


def _products(distances: Tensor, nodes: Tensor) -> Iterator[Tensor]:
    for j in range(len(nodes)):
        others = [k for k in range(len(nodes)) if k != j]
        weight = 1.0 / (nodes[j] - nodes[others]).prod()
        for k in others:
            weight = weight * distances[k]
        yield weight
