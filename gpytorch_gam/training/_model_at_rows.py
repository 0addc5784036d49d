"""A model's components at rows that stay, while its hyperparameters move."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gpytorch_gam.components.component_group import ComponentGroup, GroupRows
from gpytorch_gam.variational import AdditiveVariationalStrategy


class RowView(NamedTuple):
    """The model at the rows, in float64."""

    features: Tensor  # Phi, (Q, n)
    variances: Tensor  # prior variances of the components, (C, n)
    prior: Tensor  # those of the predictors, (P, n)
    means: Tensor  # prior means of the predictors, (P, n)

    def detach(self) -> RowView:
        """The same without a graph."""
        return RowView(*(part.detach() for part in self))


class ModelAtRows:
    """
    A model at rows ``x``. Groups of components in which there is nothing to train, such as factors with a fixed
    variance, are evaluated once, in the first call: only trainable parameters may change.
    """

    def __init__(self, strategy: AdditiveVariationalStrategy, x: Tensor) -> None:
        self._strategy, self._x = strategy, x
        self._groups = list(strategy.predictor.groups)
        self._fixed: dict[int, GroupRows] | None = None

    def __call__(self) -> RowView:
        """The model at the present hyperparameters, differentiable in them."""
        reading = self._strategy.read(self._x)
        inputs = reading.inputs.double()
        if self._fixed is None:
            self._fixed = self._evaluated_once()
        moving = [place for place in range(len(self._groups)) if place not in self._fixed]
        found = {**self._fixed, **self._at(moving, inputs)}
        groups = [found[place] for place in range(len(self._groups))]
        return RowView(
            torch.cat([rows.features.flatten(0, 1) for rows in groups]),
            torch.cat([rows.prior_variance.expand(-1, len(inputs)) for rows in groups]),
            self._summed([rows.prior_variance.sum(0) for rows in groups], inputs),
            reading.means.double(),
        )

    def _at(self, places: list[int], inputs: Tensor) -> dict[int, GroupRows]:
        return dict(zip(places, self._strategy.groups_at_rows(places, inputs), strict=True)) if places else {}

    def _evaluated_once(self) -> dict[int, GroupRows]:
        with torch.enable_grad():
            inputs = self._strategy.read(self._x).inputs.double()
        if inputs.requires_grad:
            return {}
        fixed = [place for place, group in enumerate(self._groups) if not _is_trained(group)]
        with torch.no_grad():
            return self._at(fixed, inputs)

    def _summed(self, variances: list[Tensor], inputs: Tensor) -> Tensor:
        """The prior variances of the predictors, from the sums over each group."""
        zero = inputs.new_zeros(len(inputs))
        totals = [zero for _ in range(self._strategy.predictor.num_predictors)]
        for group, variance in zip(self._groups, variances, strict=True):
            totals[group.predictor_index] = totals[group.predictor_index] + variance
        return torch.stack(totals)


def _is_trained(group: ComponentGroup) -> bool:
    return any(parameter.requires_grad for parameter in group.parameters())
