"""Batches of rows as blocks of a fixed size, whose inputs are indices of bins."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from gpytorch.likelihoods import Likelihood
from torch import Tensor

from gpytorch_gam.likelihoods import RowwiseLikelihood
from gpytorch_gam.likelihoods.one_predictor_likelihood import OnePredictorLikelihood
from gpytorch_gam.likelihoods.row_argument import OFFSET, WEIGHTS, RowArgument
from gpytorch_gam.optim.processes import Processes
from gpytorch_gam.optim.rows.stream import Rows, check_finite_responses

from ._chunks import CHUNK_SIZE, chunks, in_threads, one_thread
from .column_bins import ColumnBins

# Number of rows of a block: enough for threads to share, and few beside those of a file.
_BLOCK_SIZE = 4 * CHUNK_SIZE


class IndexedRows(NamedTuple):
    """Rows as indices of bins, with n rows each."""

    codes: list[Tensor]  # each row's bin, (n,) for each set of columns
    responses: Tensor
    taken: dict[str, Tensor]  # offset and weights, in float64
    arguments: dict[str, Tensor]  # those that are left to the likelihood


class RowReader:
    """
    Reads batches of rows as indices of bins, and sums up where the rows lie: the place of a bin is the mean of its
    rows, so that sums of functions lose only terms of second order in the step, at the ends of the range too. ``taken``
    are the arguments that are split off; ``mean``, a fixed part of the predictor, is added to the offset.
    """

    def __init__(
        self,
        bins: ColumnBins,
        taken: Collection[RowArgument],
        mean: Callable[[Tensor], Tensor] | None,
        num_threads: int,
    ) -> None:
        self._bins, self._taken, self._mean, self._num_threads = bins, taken, mean, num_threads
        self.centres = {term: Centres(bins.values(term)) for term in bins.terms if not bins.is_exact(term)}

    def blocks(self, batches: Iterable[Rows]) -> Iterator[IndexedRows]:
        """The rows of all batches, in blocks."""
        for rows in _blocks(batches):
            with one_thread():
                codes = self._index(rows.x)
                self._locate(rows.x, codes)
            yield IndexedRows(codes, rows.y, *self._arguments(rows))

    def share_centres(self, processes: Processes) -> None:
        """Let the places of the bins be those of the rows that all processes have read."""
        own = [part for each in self.centres.values() for part in (each.sums, each.counts)]
        for part, total in zip(own, processes.sum(own), strict=True):
            part.copy_(total)

    def places(self, device: torch.device) -> list[Tensor]:
        """The places of the bins ``(U_t, d_t)`` for the rows read, in float64."""
        found = [self.centres[t].mean() if t in self.centres else self._bins.values(t) for t in self._bins.terms]
        return [place.to(device, torch.float64) for place in found]

    def _index(self, x: Tensor) -> list[Tensor]:
        jobs = [functools.partial(self._bins.index, x[rows]) for rows in chunks(len(x))]
        return [joined(parts) for parts in zip(*in_threads(jobs, self._num_threads), strict=True)]

    def _locate(self, x: Tensor, codes: list[Tensor]) -> None:
        def locate(position: int) -> None:
            term = self._bins.terms[position]
            for rows in chunks(len(x)):
                self.centres[term].add(codes[position][rows], self._bins.coordinates(x[rows], term))

        rounded = [position for position, term in enumerate(self._bins.terms) if term in self.centres]
        in_threads([functools.partial(locate, position) for position in rounded], self._num_threads)

    def _arguments(self, rows: Rows) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        taken: dict[str, Tensor] = {}
        arguments, like = dict(rows.row_arguments), rows.y.detach().double()
        for argument in self._taken:
            value = arguments.pop(argument.name, None)
            taken |= {} if value is None else {argument.name: argument.read(value, like).expand(like.shape)}
        if self._mean is not None:
            taken["offset"] = self._mean(rows.x).detach().double() + taken.get("offset", 0.0)
        return taken, arguments


class Centres:
    """The mean of the rows at each bin, from their sums ``(U, d)`` and numbers ``(U,)``."""

    def __init__(self, bins: Tensor) -> None:
        self._bins = bins.double()
        self.sums, self.counts = torch.zeros_like(self._bins), torch.zeros_like(self._bins[:, 0])

    def add(self, codes: Tensor, x: Tensor) -> None:
        """Add rows ``(n, d)``, given their bins ``(n,)``."""
        positions = codes.int()
        for column, sums in zip(x.unbind(-1), self.sums.unbind(-1), strict=True):
            sums.index_add_(0, positions, column.double())
        self.counts.index_add_(0, positions, torch.ones_like(x[:, 0], dtype=torch.float64))

    def mean(self) -> Tensor:
        """The means, ``(U, d)``; for bins without rows the bin itself."""
        counts = self.counts.unsqueeze(-1)
        return torch.where(counts > 0, self.sums / counts.clamp_min(1.0), self._bins)


def taken_from(likelihood: Likelihood) -> tuple[RowArgument, ...]:
    """The row-wise arguments that act alike in these likelihoods; others may mean anything by their names."""
    return (OFFSET, WEIGHTS) if isinstance(likelihood, RowwiseLikelihood | OnePredictorLikelihood) else ()


def joined(parts: Sequence[Tensor]) -> Tensor:
    """The parts in one tensor, without a copy of a single one."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def joined_by_name(parts: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The parts of each argument in one tensor."""
    return {name: joined([part[name] for part in parts]) for name in parts[0]}


def _blocks(batches: Iterable[Rows]) -> Iterator[Rows]:
    """The rows of batches of any sizes in blocks: large batches are split, and small ones are joined."""
    waiting: list[Rows] = []
    num_waiting = 0
    for part in itertools.chain.from_iterable(rows.split(_BLOCK_SIZE) for rows in _alike(batches)):
        if num_waiting + len(part.y) > _BLOCK_SIZE:
            yield _together(waiting)
            waiting, num_waiting = [], 0
        waiting.append(part)
        num_waiting += len(part.y)
    if waiting:
        yield _together(waiting)


def _together(parts: Sequence[Rows]) -> Rows:
    arguments = joined_by_name([rows.row_arguments for rows in parts])
    return Rows(joined([rows.x for rows in parts]), joined([rows.y for rows in parts]), arguments)


def _alike(batches: Iterable[Rows]) -> Iterator[Rows]:
    """The batches; a ValueError if they have different row-wise arguments, or responses that are not finite."""
    names = None
    for rows in batches:
        names = rows.row_arguments.keys() if names is None else names
        if rows.row_arguments.keys() != names:
            raise ValueError("the batches must all have the same row-wise arguments: give those of some to each")
        check_finite_responses(rows)
        yield rows
