"""One predictor, a block of rows at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gpytorch_gam.components import ComponentGroup
from gpytorch_gam.components.group_projection import by_component, own_directions
from gpytorch_gam.components.kernel_in_blocks import KernelInBlocks

# Parts in which coupled directions are projected, and the least number of directions in a part.
_NUM_PARTS, _LEAST_COLUMNS = 4, 32


class GroupWeights(NamedTuple):
    """The weights of the kernels of a group, by blocks as the group has them."""

    shared: Tensor  # (*batch, num_blocks, size, R + 1): columns of F, then the mean
    block: Tensor | None  # (*batch, num_blocks, size, r)


class PredictorInBlocks:
    """
    Projections of all groups of one predictor: a single matrix product serves all kernels of a block of rows, which
    are still in the cache, or a few for directions to which only the later groups contribute.

    :param groups: The groups, each with its weights, without batch dimensions.
    :param x: The inputs of the predictor ``(n, D)``.
    :ivar prior_variance: The sum of the prior variances of the components, ``(n,)``, see
        :meth:`ComponentGroup.observed_variance`.
    """

    def __init__(self, groups: Sequence[tuple[ComponentGroup, GroupWeights]], x: Tensor) -> None:
        kernels = [KernelInBlocks(group, x) for group, _ in groups]
        self._parts = [(kernel, *part) for kernel, part in zip(kernels, groups, strict=True)]
        self.prior_variance = torch.stack([kernel.prior_variance for kernel in kernels]).sum(0)
        dense = [weights.shared.flatten(0, 1) for kernel, _, weights in self._parts if not kernel.is_of_levels]
        width = groups[0][1].shared.shape[-1]
        self._dense = _CoupledWeights(torch.cat([x.new_empty(0, width, dtype=self.prior_variance.dtype), *dense]))
        self._own_squares = [
            _sum_of_squares(block, kernel.table)[kernel.places]
            for kernel, _, (_, block) in self._parts
            if block is not None and kernel.is_tabulated
        ]

    def at(self, rows: slice) -> tuple[Tensor | None, Tensor, Tensor]:
        """
        For some of the rows, the sum over the components of the squares of their own directions, ``(n,)`` (None without
        such directions), the mean ``(n,)``, and the coupled directions ``(R, n)``.
        """
        dense, of_levels, squares = [], [], [part[rows] for part in self._own_squares]
        for kernel, group, (shared, block) in self._parts:
            if kernel.is_of_levels:
                of_levels.append(kernel.project(rows, by_component(group, shared)).sum(0))
                if block is not None:
                    squares.append(kernel.project(rows, by_component(group, block)).square().sum((0, 1)))
                continue
            values = kernel.at(rows)
            dense.append(values.flatten(0, 1))
            if block is not None and not kernel.is_tabulated:
                squares.append(_sum_of_squares(block, values))
        mean, directions = self._dense.project(dense, rows.stop - rows.start)
        for part in of_levels:
            mean += part[-1]
            directions += part[:-1]
        return torch.stack(squares).sum(0) if squares else None, mean, directions


def _sum_of_squares(block: Tensor, values: Tensor) -> Tensor:
    """The sum of squares ``(n,)`` of the components' own directions, from a kernel ``(C_g, M, n)``."""
    return own_directions(block, values).square().sum((0, 1))


class _CoupledWeights:
    """
    Weights ``(M, R + 1)`` of coupled directions and the mean. Variables that have no weight in some of the directions
    take no part in the products of these, if they are the first.
    """

    def __init__(self, weights: Tensor) -> None:
        mean_first = weights.roll(1, -1)
        self._like, num_columns = weights, weights.shape[-1]
        starts = (mean_first != 0).int().argmax(0).tolist() if len(weights) else []
        size = max(_LEAST_COLUMNS, -(-num_columns // _NUM_PARTS))
        self._parts: list[tuple[slice, int, Tensor]] = []  # columns, first variable, weights
        for first in range(0, num_columns, size) if starts else []:
            columns = slice(first, min(first + size, num_columns))
            start = min(starts[columns])
            self._parts.append((columns, start, mean_first[start:, columns].mT.contiguous()))

    def project(self, kernels: Sequence[Tensor], num_rows: int) -> tuple[Tensor, Tensor]:
        """The mean ``(n,)`` and the directions ``(R, n)`` from kernels whose rows are together the M variables."""
        found = self._like.new_zeros(self._like.shape[-1], num_rows)
        if self._parts:
            stacked = torch.cat(list(kernels))
            for columns, start, weights in self._parts:
                torch.mm(weights, stacked[start:], out=found[columns])
        return found[0], found[1:]
