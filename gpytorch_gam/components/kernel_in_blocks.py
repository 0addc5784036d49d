"""Kernels between inducing points and rows, evaluated for a block of rows at a time, without gradients."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from gpytorch_gam import settings
from gpytorch_gam.numerics.distinct_rows import distinct_rows
from gpytorch_gam.projection.blockwise import factor_at, kernel_values
from gpytorch_gam.projection.separable_form import Factor, separable_form

from ._level_rows import LevelRows
from .component_group import ComponentGroup

# Up to this number of inducing points, a row has a covariance with each of them, and not with those of its level alone.
_MOST_DENSE_LEVELS = 128


class KernelInBlocks:
    """
    The kernel between the inducing points of a group and the rows of ``x``, ``(n, D)``. What depends on a row alone is
    computed once; what depends on a row and an inducing point, for a block of rows that fits the caches. If all
    components read the same columns, and these have few combinations of values, the kernel is evaluated at one row for
    each.

    :ivar prior_variance: The sum of the prior variances of the components, ``(n,)``, see
        :meth:`ComponentGroup.observed_variance`.
    :ivar places: For each row the number of the one for which the kernel is evaluated; None if that is the row itself.
    """

    def __init__(self, group: ComponentGroup, x: Tensor) -> None:
        columns = {(*own, by) for own, by in zip(group.columns.tolist(), group.multiplier_columns, strict=True)}
        read = sorted({column for own in columns for column in own if column is not None})
        found = distinct_rows(x, read) if len({column[:-1] for column in columns}) == 1 else None
        rows = x if found is None else x[found[0]]
        self.places = None if found is None else found[1]
        self._factors: list[tuple[Factor, Tensor | None]] | None = None
        self._values: Tensor | None = None  # (C_g, M, n), or as many columns as there are different rows
        self._multiplier = group.multiplier(rows)
        self._levels = group.level_rows(rows) if group.num_inducing > _MOST_DENSE_LEVELS else None
        variance = self._evaluate(group, rows).sum(-2).expand(len(rows))
        self.prior_variance = variance if self.places is None else variance[self.places]

    def _evaluate(self, group: ComponentGroup, rows: Tensor) -> Tensor:
        """Find the form of the kernel; its variances ``(C_g, n)``."""
        form = None
        if self._levels is None and settings.fused_projection.value() != "off":
            form = separable_form(group.kernel, group.inducing_points.to(rows.dtype), group.select(rows))
        if form is None:
            if self._levels is None:
                self._values = group.cross_covariance(rows)
            return group.observed_variance(rows)
        self._factors = [_at_distinct_points(factor) for factor in form.factors]
        if self.places is not None:
            self._values = self._of_factors(slice(None))
        return form.variance if self._multiplier is None else form.variance * self._multiplier.square()

    def _of_factors(self, rows: slice) -> Tensor:
        assert self._factors is not None
        values = []
        for factor, points in self._factors:
            value = kernel_values([factor_at(factor, rows)])
            values.append(value if points is None else value.index_select(-2, points))
        kernel = functools.reduce(Tensor.mul_, values)
        return kernel if self._multiplier is None else kernel.mul_(self._multiplier[..., rows].unsqueeze(-2))

    @property
    def is_of_levels(self) -> bool:
        """Whether a row sees few of many inducing points: there is :meth:`project` in the place of :meth:`at`."""
        return self._levels is not None

    @property
    def is_tabulated(self) -> bool:
        """Whether there is a :attr:`table`, of which :meth:`at` takes columns."""
        return self.places is not None and self._values is not None

    @property
    def table(self) -> Tensor:
        """The kernel ``(C_g, M, k)`` at the rows to which :attr:`places` point."""
        assert self._values is not None
        return self._values

    def at(self, rows: slice) -> Tensor:
        """The kernel ``(C_g, M, n)`` at some of the rows."""
        if self._values is None:
            return self._of_factors(rows)
        return self._values[..., rows] if self.places is None else self._values.index_select(-1, self.places[rows])

    def project(self, rows: slice, weights: Tensor) -> Tensor:
        """The projections ``(C_g, k, n)`` of levels at some of the rows on weights ``(C_g, M, k)``."""
        assert self._levels is not None
        chosen = rows if self.places is None else self.places[rows]
        levels = LevelRows(self._levels.level[..., chosen], self._levels.covariance[..., chosen])
        return levels.project(weights).mT


def _at_distinct_points(factor: Factor) -> tuple[Factor, Tensor | None]:
    """
    A factor of a single component at the different ones of its inducing points, as those of a grid repeat in a column,
    and the number of its own for each point; None if there is nothing to gain.
    """
    if factor.z.shape[:-1].numel() > 1:
        return factor, None
    points, number = factor.z.flatten().unique(return_inverse=True)
    if 2 * len(points) > len(number):
        return factor, None
    first = number.new_empty(len(points))
    first[number] = torch.arange(len(number), device=number.device)
    at_points = factor._replace(
        z=factor.z[..., first],
        offset_z=None if factor.offset_z is None else factor.offset_z[..., first],
        left=None if factor.left is None else factor.left[..., first, :],
    )
    return at_points, number
