"""A search for better lengthscales and variances of single components, where the bound has several maxima."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gpytorch_gam.optim.processes import Processes

# Variances that are tried, as multiples of those of a trial: none at all, and five in each order of magnitude.
_RATIOS = (0.0, *(10.0 ** (power / 5) for power in range(-30, 16)))


class SiteView(NamedTuple):
    r"""
    A model at the rows of its data, with Gaussian factors in the place of the likelihood, in float64. A factor is
    :math:`\exp(-\frac12 f'\Lambda f + t' f)` in what its row's predictors are beyond their prior means.

    :ivar features: Phi, ``(Q, n)``.
    :ivar variances: prior variances of the components, ``(C, n)``.
    :ivar curvatures: Lambda, positive semidefinite, ``(P, P, n)``.
    :ivar targets: t, ``(P, n)``.
    """

    features: Tensor
    variances: Tensor
    curvatures: Tensor
    targets: Tensor


class Place(NamedTuple):
    """Where a component is: its part of the inducing vector, its predictor, and its number among all components."""

    part: slice
    predictor: int
    number: int


class Trial(NamedTuple):
    """Features ``(Q, n)`` and prior variances ``(C, n)`` of the components at other hyperparameters."""

    features: Tensor
    variances: Tensor


class Change(NamedTuple):
    """Another trial for a component, its prior variance multiplied by ``ratio``, and the nats that it gains."""

    place: Place
    trial: int
    ratio: float
    gain: float


class ComponentScan:
    r"""
    The collapsed bound as a function of the features and the variance of one component, the others being fixed.

    With the others integrated out, a component of features :math:`\sqrt r F` adds to the bound

    .. math::
        \frac12 \Big( r\, u'(I + r S)^{-1} u - \log|I + r S| - r \sum_n \lambda_n (k_n - |F_n|^2) \Big),

    where S and u are the Schur complements of its gram matrix and of its projected targets: for all r at once from the
    eigenvalues of S. So trials of all components share the products with the rows, and the bound has no local maxima
    in this search but those between components.

    :param view: The model at present.
    :param places: Its components, in the order of the inducing vector.
    :param trials: Other hyperparameters, each for all components.
    :param free: The components that may change. Default: all.
    :param processes: Those among which the rows are shared. Default: this one has them all.
    """

    def __init__(
        self,
        view: SiteView,
        places: Sequence[Place],
        trials: Sequence[Trial],
        free: Sequence[Place] | None = None,
        processes: Processes | None = None,
    ) -> None:
        self._view, self._free = view, list(places if free is None else free)
        self._processes = Processes(None) if processes is None else processes
        self._segments = list(_segments(places))
        self._sources = [Trial(view.features.clone(), view.variances.clone()), *trials]  # the present one comes first
        whole = slice(len(view.features))
        # Products of the features of each source with the present ones, weighted by the curvatures, (Q, Q).
        self._crosses = [self._products(source.features, whole) for source in self._sources]
        self._projections = [self._projected(source.features) for source in self._sources]
        # Sums of the weighted prior variances, (C,), for each source.
        self._explainable = [self._weighted_variances(source.variances, places) for source in self._sources]
        # Diagonal blocks of each source, weighted by the curvatures.
        self._own = [{p.number: self._block(source.features, p) for p in self._free} for source in self._sources]

    def best(self) -> Change | None:
        """The change of one component that gains most; ``trial`` is -1 where it keeps its hyperparameters."""
        changes = list(self._changes())
        return max(changes, key=lambda change: change.gain) if changes else None

    def take(self, change: Change) -> None:
        """Make a change, which the next ones are made beside."""
        part, number, index = change.place.part, change.place.number, change.trial + 1
        present, source, root = self._sources[0], self._sources[index], change.ratio**0.5
        projection = root * self._projections[index][part]
        block, explainable = change.ratio * self._own[index][number], change.ratio * self._explainable[index][number]
        present.features[part] = root * source.features[part]
        present.variances[number] = change.ratio * source.variances[number]
        self._projections[0][part], self._own[0][number] = projection, block
        self._explainable[0][number] = explainable
        for cross, each in zip(self._crosses, self._sources, strict=True):
            cross[:, part] = self._products(each.features, part)
        self._crosses[0][part] = self._crosses[0][:, part].mT

    def _changes(self) -> Iterator[Change]:
        crosses, projections = self._crosses, self._projections
        ratios = projections[0].new_tensor(_RATIOS)
        for place in self._free:
            is_rest = torch.ones(len(crosses[0]), dtype=torch.bool)
            is_rest[place.part] = False
            rest = crosses[0][is_rest][:, is_rest]
            rest.diagonal().add_(1.0)
            cholesky, info = torch.linalg.cholesky_ex(rest)
            if info.any():
                continue
            known = torch.linalg.solve_triangular(cholesky, projections[0][is_rest].unsqueeze(-1), upper=False)
            curves = []
            for index, (cross, projected) in enumerate(zip(crosses, projections, strict=True)):
                half = torch.linalg.solve_triangular(cholesky, cross[place.part][:, is_rest].mT, upper=False)
                target = projected[place.part] - (half.mT @ known).squeeze(-1)
                curves.append(self._curve(index, place, half.mT @ half, target))
            present = curves[0](torch.ones_like(ratios[:1])).item()
            table = torch.stack([curve(ratios) for curve in curves])
            trial, index = divmod(int(table.argmax()), len(_RATIOS))
            yield Change(place, trial - 1, _RATIOS[index], table[trial, index].item() - present)

    def _curve(self, index: int, place: Place, explained: Tensor, target: Tensor) -> _Curve:
        gram = self._own[index][place.number]
        unexplained = self._explainable[index][place.number] - gram.diagonal().sum()
        values, vectors = torch.linalg.eigh(gram - explained)
        return _Curve(values.clamp_min(0.0), (vectors.mT @ target).square(), unexplained.clamp_min(0.0))

    def _products(self, features: Tensor, columns: slice) -> Tensor:
        """Products of features with some of the present ones, weighted by the curvatures, ``(Q, columns)``."""
        present = self._sources[0].features
        start, stop, _ = columns.indices(len(present))
        products = features.new_zeros(len(features), stop - start)
        for other, there in self._segments:
            first, last = max(there.start, start), min(there.stop, stop)
            for owner, part in self._segments if first < last else []:
                weighted = features[part] * self._view.curvatures[owner, other]
                products[part, first - start : last - start] = weighted @ present[first:last].mT
        return self._processes.sum([products])[0]

    def _projected(self, features: Tensor) -> Tensor:
        parts = [features[part] @ self._view.targets[owner] for owner, part in self._segments]
        return self._processes.sum([torch.cat(parts)])[0]

    def _weighted_variances(self, variances: Tensor, places: Sequence[Place]) -> Tensor:
        weights = torch.stack([self._view.curvatures[place.predictor, place.predictor] for place in places])
        return self._processes.sum([(weights * variances).sum(-1)])[0]

    def _block(self, features: Tensor, place: Place) -> Tensor:
        own = features[place.part]
        return self._processes.sum([(own * self._view.curvatures[place.predictor, place.predictor]) @ own.mT])[0]


class _Curve(NamedTuple):
    """What a component adds to the bound, as a function of the ratio of its variance."""

    values: Tensor
    squares: Tensor
    unexplained: Tensor

    def __call__(self, ratios: Tensor) -> Tensor:
        scaled = ratios.unsqueeze(-1) * self.values
        fit = (ratios.unsqueeze(-1) * self.squares / (1.0 + scaled)).sum(-1)
        return 0.5 * (fit - scaled.log1p().sum(-1) - ratios * self.unexplained)


def _segments(places: Sequence[Place]) -> Iterator[tuple[int, slice]]:
    """The contiguous parts of the inducing vector that belong to one predictor, with it."""
    for predictor, members in itertools.groupby(places, lambda place: place.predictor):
        parts = [place.part for place in members]
        yield predictor, slice(parts[0].start, parts[-1].stop)
