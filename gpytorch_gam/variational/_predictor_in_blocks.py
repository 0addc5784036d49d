"""One predictor, a block of rows at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gpytorch_gam.components import ComponentGroup
from gpytorch_gam.components.group_projection import by_component, own_directions
from gpytorch_gam.components.kernel_in_blocks import KernelInBlocks


class GroupWeights(NamedTuple):
    """The weights of the kernels of a group, by blocks as the group has them."""

    shared: Tensor  # (*batch, num_blocks, size, R + 1): columns of F, then the mean
    block: Tensor | None  # (*batch, num_blocks, size, r)


class PredictorInBlocks:
    """
    Projections of all groups of one predictor: a single matrix product serves all kernels of a block of rows, which
    are still in the cache.

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
        self._dense = torch.cat([x.new_empty(0, width, dtype=self.prior_variance.dtype), *dense]).mT  # (R + 1, M)

    def at(self, rows: slice) -> tuple[Tensor | None, Tensor]:
        """
        For some of the rows, the sum over the components of the squares of their own directions, ``(n,)`` (None without
        such directions), and coupled directions and mean, ``(R + 1, n)``.
        """
        dense, of_levels, squares = [self._dense.new_empty(0, rows.stop - rows.start)], [], []
        for kernel, group, (shared, block) in self._parts:
            if kernel.is_of_levels:
                of_levels.append(kernel.project(rows, by_component(group, shared)).sum(0))
                own = None if block is None else kernel.project(rows, by_component(group, block))
            else:
                values = kernel.at(rows)
                dense.append(values.flatten(0, 1))
                own = None if block is None else own_directions(block, values)
            if own is not None:
                squares.append(own.square().sum((0, 1)))
        columns = self._dense @ torch.cat(dense)
        for part in of_levels:
            columns += part
        return torch.stack(squares).sum(0) if squares else None, columns
