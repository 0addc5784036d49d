"""Sums over rows with the features of trials, from tables of bins."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .._component_scan import Place, ScanSums
from ._data import BinTables
from ._statistics import SetFeatures, between


class SumsAtBins(ScanSums[SetFeatures]):
    """
    The sums over rows from their tables, whose weights are multiples of the rows' precisions by the ``noise``.
    ``constant`` is the mean of the predictor.
    """

    def __init__(self, tables: BinTables, constant: float = 0.0, noise: float = 1.0) -> None:
        self._tables, self._constant, self._noise = tables, constant, noise

    def products(self, firsts: Sequence[SetFeatures], second: SetFeatures, columns: slice) -> list[Tensor]:
        size = sum(len(positions) for positions in second.positions)
        wanted = torch.zeros(size, dtype=torch.bool, device=second.features[0].device)
        wanted[columns] = True
        found = [second.features[0].new_zeros(size, size) for _ in firsts]
        for other, positions in enumerate(second.positions):
            chosen = wanted[positions]
            if not chosen.any():
                continue
            phi = second.features[other][chosen].mT / self._noise
            for owner, rows in enumerate(second.positions):
                weighted = self._weighted(owner, other, phi)
                for products, each in zip(found, firsts, strict=True):
                    products[rows.unsqueeze(-1), positions[chosen]] = each.features[owner] @ weighted
        return [products[:, columns] for products in found]

    def _weighted(self, owner: int, other: int, columns: Tensor) -> Tensor:
        """Numbers at the bins of a set, ``(U_other, k)``, summed over the rows at each bin of another."""
        if owner != other:
            return between(self._tables, owner, other) @ columns
        own = self._tables.own[owner]
        return own.unsqueeze(-1) * columns if own.dim() == 1 else own @ columns

    def block(self, trial: SetFeatures, place: Place) -> Tensor:
        term, _ = trial.components[place.number]
        positions = trial.positions[term]
        phi = trial.features[term][(positions >= place.part.start) & (positions < place.part.stop)]
        return phi @ self._weighted(term, term, phi.mT) / self._noise

    def projected(self, trial: SetFeatures) -> Tensor:
        tables = self._tables
        projected = [
            phi @ (targets - self._constant * weights)
            for phi, targets, weights in zip(trial.features, tables.targets, tables.weights, strict=True)
        ]
        return torch.cat(projected)[torch.cat(trial.positions).argsort()] / self._noise

    def explainable(self, trial: SetFeatures) -> Tensor:
        weights = self._tables.weights
        return torch.stack([weights[term] @ variance for term, variance in trial.components]) / self._noise

    def excess(self, trial: SetFeatures) -> float:
        """What the features explain beyond the prior variances, relative to what they explain; negative if nothing."""
        explained = torch.stack(
            [(phi * self._weighted(term, term, phi.mT).mT).sum() for term, phi in enumerate(trial.features)]
        )
        prior = zip(self._tables.weights, trial.prior, strict=True)
        explainable = torch.stack([weights @ variance for weights, variance in prior])
        return ((explained.sum() - explainable.sum()) / explained.sum()).item()
