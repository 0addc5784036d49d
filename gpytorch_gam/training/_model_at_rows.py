"""A model's components at rows that stay, while its hyperparameters move."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gpytorch_gam.components.component_group import ComponentGroup, GroupRows
from gpytorch_gam.variational import AdditiveVariationalStrategy

# Groups are evaluated at the distinct values of their columns if these are at most this share of the rows.
_LARGEST_SHARE = 0.6


class RowView(NamedTuple):
    """The model at the rows, in float64."""

    features: Tensor  # Phi, (Q, n)
    variances: Tensor  # prior variances of the components, (C, n)
    prior: Tensor  # those of the predictors, (P, n)
    means: Tensor  # prior means of the predictors, (P, n)

    def detach(self) -> RowView:
        """The same without a graph."""
        return RowView(*(part.detach() for part in self))


class _Distinct(NamedTuple):
    """The distinct values of columns, of which groups of one column a component need no others."""

    inputs: Tensor  # the values of each column, repeating the first one where a column has fewer than others, (K, D)
    places: dict[int, Tensor]  # for each group, where the values of its components' columns are in each row, (C_g, n)

    def at_all(self, place: int, rows: GroupRows) -> GroupRows:
        """A group at all rows, given that at the distinct values."""
        where = self.places[place]
        size = rows.features.shape[-2]
        return GroupRows(
            rows.cholesky,
            rows.features.gather(-1, where.unsqueeze(-2).expand(-1, size, -1)),
            rows.prior_variance.expand(len(where), -1).gather(-1, where),
        )


class ModelAtRows:
    """
    A model at rows ``x``, where only trainable parameters change from one call to the next: groups of components in
    which there is nothing to train, such as factors with a fixed variance, are evaluated in the first call alone in
    which that is so, and groups whose columns have few distinct values are evaluated at these. A network before the
    components that is trained itself rules out both.
    """

    def __init__(self, strategy: AdditiveVariationalStrategy, x: Tensor) -> None:
        self._strategy, self._x = strategy, x
        self._groups = list(strategy.predictor.groups)
        self._fixed: dict[int, GroupRows] = {}
        self._distinct: _Distinct | None = None
        self._has_fixed_inputs: bool | None = None  # None before the first call

    def __call__(self) -> RowView:
        """The model at the present hyperparameters, differentiable in them."""
        self._keep_fixed()
        reading = self._strategy.read(self._x)
        inputs = reading.inputs.double()
        moving = [place for place in range(len(self._groups)) if place not in self._fixed]
        found = {**self._fixed, **self._at(moving, inputs)}
        groups = [found[place] for place in range(len(self._groups))]
        return RowView(
            torch.cat([rows.features.flatten(0, 1) for rows in groups]),
            torch.cat([rows.prior_variance.expand(-1, len(inputs)) for rows in groups]),
            self._summed([rows.prior_variance.sum(0) for rows in groups], inputs),
            reading.means.double(),
        )

    def features(self) -> Tensor:
        """Phi at the present hyperparameters, ``(Q, n)``."""
        return self().features

    def _keep_fixed(self) -> None:
        """Evaluate the groups in which there is nothing to train any more, and forget those that are trained again."""
        if self._has_fixed_inputs is None:
            with torch.enable_grad():
                inputs = self._inputs()
            self._has_fixed_inputs = not inputs.requires_grad
            if self._has_fixed_inputs:
                self._distinct = _distinct_values(self._groups, inputs.detach())
        fixed = [place for place, group in enumerate(self._groups) if not _is_trained(group)]
        if self._has_fixed_inputs and fixed != list(self._fixed):
            with torch.no_grad():
                new = self._at([place for place in fixed if place not in self._fixed], self._inputs())
            self._fixed = {place: new[place] if place in new else self._fixed[place] for place in fixed}

    def _inputs(self) -> Tensor:
        return self._strategy.read(self._x).inputs.double()

    def _at(self, places: Sequence[int], inputs: Tensor) -> dict[int, GroupRows]:
        """Some of the groups at all rows."""
        distinct = self._distinct
        few = [] if distinct is None else [place for place in places if place in distinct.places]
        many = [place for place in places if place not in few]
        found = dict(zip(many, self._strategy.groups_at_rows(many, inputs), strict=True)) if many else {}
        if distinct is not None and few:
            at_values = self._strategy.groups_at_rows(few, distinct.inputs)
            found |= {place: distinct.at_all(place, rows) for place, rows in zip(few, at_values, strict=True)}
        return found

    def _summed(self, variances: list[Tensor], inputs: Tensor) -> Tensor:
        """The prior variances of the predictors, from the sums over each group."""
        zero = inputs.new_zeros(len(inputs))
        totals = [zero for _ in range(self._strategy.predictor.num_predictors)]
        for group, variance in zip(self._groups, variances, strict=True):
            totals[group.predictor_index] = totals[group.predictor_index] + variance
        return torch.stack(totals)


def _is_trained(group: ComponentGroup) -> bool:
    return any(parameter.requires_grad for parameter in group.parameters())


def _distinct_values(groups: Sequence[ComponentGroup], inputs: Tensor) -> _Distinct | None:
    """The distinct values of the columns of groups that read one column a component; None if there are no such."""
    values: dict[int, tuple[Tensor, Tensor]] = {}
    chosen: dict[int, list[int]] = {}
    for place, group in enumerate(groups):
        if group.input_dim != 1 or group.has_multiplier or group.inducing_points.dim() != 3:
            continue
        columns = group.columns.flatten().tolist()
        for column in set(columns) - values.keys():
            values[column] = torch.unique(inputs[:, column], return_inverse=True)
        if max(len(values[column][0]) for column in columns) <= _LARGEST_SHARE * len(inputs):
            chosen[place] = columns
    if not chosen:
        return None
    used = {column for columns in chosen.values() for column in columns}
    table = inputs[:1].repeat(max(len(values[column][0]) for column in used), 1)
    for column in used:
        table[: len(values[column][0]), column] = values[column][0]
    places = {place: torch.stack([values[column][1] for column in columns]) for place, columns in chosen.items()}
    return _Distinct(table, places)
