"""A search for better lengthscales and variances of single components, where the bound has several maxima."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from gpytorch_gam.optim.processes import Processes

# Variances that are tried, as multiples of those of a trial: none at all, and five in each order of magnitude.
RATIOS = (0.0, *(10.0 ** (power / 5) for power in range(-30, 16)))
_UNCHANGED = RATIOS.index(1.0)

# What a backend knows of the components at some hyperparameters.
_T = TypeVar("_T")


class Place(NamedTuple):
    """Where a component is: its part of the inducing vector, its predictor, and its number among all components."""

    part: slice
    predictor: int
    number: int


class ScanSums(ABC, Generic[_T]):
    """Sums over the rows with the features of trials, given Lambda and t in each row, see :class:`SiteView`."""

    @abstractmethod
    def products(self, firsts: Sequence[_T], second: _T, columns: slice) -> list[Tensor]:
        """For each of the first trials its features times some of those of the second, by Lambda, ``(Q, columns)``."""

    @abstractmethod
    def block(self, trial: _T, place: Place) -> Tensor:
        """A component's features times themselves, by Lambda, ``(M, M)``."""

    @abstractmethod
    def projected(self, trial: _T) -> Tensor:
        """The features times t, ``(Q,)``."""

    @abstractmethod
    def explainable(self, trial: _T) -> Tensor:
        """The components' prior variances times the diagonal entries of Lambda, ``(C,)``."""


class Change(NamedTuple):
    """Another trial for a component, its prior variance multiplied by ``ratio``, and the nats that it gains."""

    place: Place
    trial: int
    ratio: float
    gain: float


class ComponentScan(Generic[_T]):
    r"""
    The collapsed bound as a function of the features and the variance of one component, the others being fixed.

    With the others integrated out, a component of features :math:`\sqrt r F` adds to the bound

    .. math::
        \frac12 \Big( r\, u'(I + r S)^{-1} u - \log|I + r S| - r \sum_n \lambda_n (k_n - |F_n|^2) \Big),

    where S and u are the Schur complements of its gram matrix and of its projected targets: for all r at once from the
    eigenvalues of S. So trials of all components share the products with the rows, and the bound has no local maxima
    in this search but those between components.

    :param sums: Sums over the rows.
    :param present: The hyperparameters at present.
    :param trials: Others, each for all components.
    :param places: The components that may change.
    :param log_priors: Log densities of the hyperparameters of a component, at present and in each trial, at all of
        :data:`RATIOS`, ``(T + 1, K)``, which count beside the bound. Default: they are uniform.
    """

    def __init__(
        self,
        sums: ScanSums[_T],
        present: _T,
        trials: Sequence[_T],
        places: Sequence[Place],
        log_priors: Callable[[Place], Tensor] | None = None,
    ) -> None:
        self._sums, self._trials, self._places = sums, list(trials), list(places)
        self._log_priors = log_priors
        sources = [present, *trials]  # the present one comes first, and changes
        # Products of the features of each source with the present ones, (Q, Q).
        self._crosses = sums.products(sources, present, slice(None))
        self._projections = [sums.projected(source) for source in sources]
        self._explainable = [sums.explainable(source) for source in sources]
        self._blocks = [{place.number: sums.block(source, place) for place in places} for source in sources]

    def best(self) -> list[Change]:
        """The best change of each component, that which gains most first; ``trial`` is -1 where none is better."""
        changes = [change for change in map(self.best_of, self._places) if change is not None]
        return sorted(changes, key=lambda change: -change.gain)

    def best_of(self, place: Place) -> Change | None:
        """The change of a component that gains most; None if the others have no Cholesky factor."""
        is_rest = torch.ones(len(self._crosses[0]), dtype=torch.bool, device=self._crosses[0].device)
        is_rest[place.part] = False
        rest = self._crosses[0][is_rest][:, is_rest]
        rest.diagonal().add_(1.0)
        cholesky, info = torch.linalg.cholesky_ex(rest)
        if info.any():
            return None
        number = place.number
        shared = torch.cat([cross[place.part][:, is_rest] for cross in self._crosses])  # (T M, rest)
        known = torch.cat([shared, self._projections[0][is_rest].unsqueeze(0)]).mT
        *halves, solved = torch.linalg.solve_triangular(cholesky, known, upper=False).mT.split(
            [len(cross[place.part]) for cross in self._crosses] + [1]
        )
        half = torch.stack(halves)  # (T, M, rest)
        targets = torch.stack([projected[place.part] for projected in self._projections]) - half @ solved.squeeze(0)
        gram = torch.stack([blocks[number] for blocks in self._blocks])
        explainable = torch.stack([each[number] for each in self._explainable])
        curves = Curves.of_schur_complements(gram, half, targets, explainable)
        table = curves(gram.new_tensor(RATIOS))
        if self._log_priors is not None:
            table = table + self._log_priors(place).to(table)
        trial, index = divmod(int(table.argmax()), len(RATIOS))
        present = table[0, _UNCHANGED]
        return Change(place, trial - 1, RATIOS[index], (table[trial, index] - present).item())

    def take(self, change: Change) -> None:
        """Make a change, which the next ones are made beside."""
        part, number, index = change.place.part, change.place.number, change.trial + 1
        root = change.ratio**0.5
        present, *others = self._crosses
        row = root * self._crosses[index][part]
        block = change.ratio * self._blocks[index][number]
        if index:
            columns = self._sums.products(self._trials, self._trials[change.trial], part)
            for cross, column in zip(others, columns, strict=True):
                cross[:, part] = root * column
        else:
            for cross in others:
                cross[:, part] *= root
        present[part], present[:, part] = row, row.mT
        present[part, part] = self._blocks[0][number] = block
        self._projections[0][part] = root * self._projections[index][part]
        self._explainable[0][number] = change.ratio * self._explainable[index][number]


class Curves(NamedTuple):
    """What trials of a component add to the bound, as functions of the ratio of its variance."""

    values: Tensor  # (T, M)
    squares: Tensor  # (T, M)
    unexplained: Tensor  # (T,)

    @classmethod
    def of_schur_complements(cls, gram: Tensor, half: Tensor, targets: Tensor, explainable: Tensor) -> Curves:
        """
        The curves of trials with gram matrices ``(T, M, M)``, their products with the features of the other components
        ``(T, M, Q)``, solved by a Cholesky factor of the others' precision, the Schur complements of their projected
        targets ``(T, M)``, and sums of their prior variances by Lambda ``(T,)``.
        """
        values, vectors = torch.linalg.eigh(gram - half @ half.mT)
        return cls(
            values.clamp_min(0.0),
            (vectors.mT @ targets.unsqueeze(-1)).squeeze(-1).square(),
            (explainable - gram.diagonal(dim1=-2, dim2=-1).sum(-1)).clamp_min(0.0),
        )

    def __call__(self, ratios: Tensor) -> Tensor:
        """The nats ``(T, K)``."""
        scaled = ratios.unsqueeze(-1) * self.values.unsqueeze(-2)  # (T, K, M)
        fit = (ratios.unsqueeze(-1) * self.squares.unsqueeze(-2) / (1.0 + scaled)).sum(-1)
        return 0.5 * (fit - scaled.log1p().sum(-1) - ratios * self.unexplained.unsqueeze(-1))


class Trial(NamedTuple):
    """Features ``(Q, n)`` and prior variances ``(C, n)`` of the components at the rows, in float64."""

    features: Tensor
    variances: Tensor


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


class SumsAtRows(ScanSums[Trial]):
    """
    The sums over rows in memory.

    :param view: The model there.
    :param places: All components, in the order of the inducing vector.
    :param processes: Those among which the rows are shared. Default: this one has them all.
    """

    def __init__(self, view: SiteView, places: Sequence[Place], processes: Processes | None = None) -> None:
        self._curvatures, self._targets, self._places = view.curvatures, view.targets, places
        self._segments = list(_segments(places))
        self._processes = Processes(None) if processes is None else processes

    def products(self, firsts: Sequence[Trial], second: Trial, columns: slice) -> list[Tensor]:
        start, stop, _ = columns.indices(len(second.features))
        found = [second.features.new_zeros(len(second.features), stop - start) for _ in firsts]
        for other, there in self._segments:
            first, last = max(there.start, start), min(there.stop, stop)
            for owner, part in self._segments if first < last else []:
                weighted = (second.features[first:last] * self._curvatures[owner, other]).mT
                for products, each in zip(found, firsts, strict=True):
                    products[part, first - start : last - start] = each.features[part] @ weighted
        return self._processes.sum(found)

    def block(self, trial: Trial, place: Place) -> Tensor:
        own = trial.features[place.part]
        return self._processes.sum([(own * self._curvatures[place.predictor, place.predictor]) @ own.mT])[0]

    def projected(self, trial: Trial) -> Tensor:
        parts = [trial.features[part] @ self._targets[owner] for owner, part in self._segments]
        return self._processes.sum([torch.cat(parts)])[0]

    def explainable(self, trial: Trial) -> Tensor:
        weights = torch.stack([self._curvatures[place.predictor, place.predictor] for place in self._places])
        return self._processes.sum([(weights * trial.variances).sum(-1)])[0]


def _segments(places: Sequence[Place]) -> Iterator[tuple[int, slice]]:
    """The contiguous parts of the inducing vector that belong to one predictor, with it."""
    for predictor, members in itertools.groupby(places, lambda place: place.predictor):
        parts = [place.part for place in members]
        yield predictor, slice(parts[0].start, parts[-1].stop)
