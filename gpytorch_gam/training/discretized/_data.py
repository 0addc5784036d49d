"""Data whose inputs are indices of bins, and sums over their rows whose size does not depend on the number of rows."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from gpytorch.likelihoods import Likelihood
from torch import Tensor

from gpytorch_gam.likelihoods.expected_gradients import ExpectedGradients, expected_gradients
from gpytorch_gam.optim.processes import Processes
from gpytorch_gam.optim.rows.likelihood_check import check_row_arguments
from gpytorch_gam.optim.rows.stream import Rows, checked_rows
from gpytorch_gam.variational import AdditiveVariationalStrategy

from ._chunks import CHUNK_SIZE, chunks, in_threads
from ._indexed_rows import RowReader, joined, joined_by_name, taken_from
from .column_bins import ColumnBins

# Largest size of all tables together (2 GiB).
_MAX_TABLE_ENTRIES = 2**28


class BinTables(NamedTuple):
    """Sums over rows with weights lambda and residuals r, in float64, for T sets of columns with U_t bins each."""

    places: list[Tensor]  # the bins, (U_t, d_t) for each set t
    # Weights at each bin, (U_t,): the diagonal of the table of t with itself, or all of it if rows lie between bins.
    own: list[Tensor]
    pairs: dict[tuple[int, int], Tensor]  # weights at each pair of bins of sets s < t, (U_s, U_t)
    weights: list[Tensor]  # weights at each bin, (U_t,)
    targets: list[Tensor]  # sums of lambda r at each bin, (U_t,)
    totals: Tensor  # sums of lambda, lambda r and lambda r^2 over all rows, (3,)
    num_rows: float = 0.0  # rows (with weights their sum) whose Gaussian densities count; 0 for sites
    log_noise: Tensor | None = None  # see GaussianStatistics

    def scaled(self, factor: float) -> BinTables:
        """The sums of ``factor`` times as many rows with the same distribution."""
        own, weights, targets = ([factor * table for table in part] for part in (self.own, self.weights, self.targets))
        pairs = {key: factor * table for key, table in self.pairs.items()}
        log_noise = None if self.log_noise is None else factor * self.log_noise
        return BinTables(
            self.places, own, pairs, weights, targets, factor * self.totals, factor * self.num_rows, log_noise
        )

    def to(self, device: torch.device) -> BinTables:
        """The tables on a device."""
        places, own, weights, targets = (
            [part.to(device) for part in parts] for parts in (self.places, self.own, self.weights, self.targets)
        )
        pairs = {key: table.to(device) for key, table in self.pairs.items()}
        log_noise = None if self.log_noise is None else self.log_noise.to(device)
        return BinTables(places, own, pairs, weights, targets, self.totals.to(device), self.num_rows, log_noise)

    def without_empty_combinations(self) -> BinTables:
        """The tables without the bins of several columns at which there is no weight."""
        kept = [
            own.nonzero().squeeze(-1) if bins.shape[-1] > 1 else torch.arange(len(own), device=own.device)
            for own, bins in zip(self.own, self.places, strict=True)
        ]
        if all(len(places) == len(own) for places, own in zip(kept, self.own, strict=True)):
            return self
        places, own, weights, targets = (
            [part[index] for part, index in zip(parts, kept, strict=True)]
            for parts in (self.places, self.own, self.weights, self.targets)
        )
        pairs = {(s, t): table[kept[s]][:, kept[t]] for (s, t), table in self.pairs.items()}
        return self._replace(places=places, own=own, pairs=pairs, weights=weights, targets=targets)


class MomentTables(NamedTuple):
    """Mean and variance of the predictor as sums of entries of tables."""

    mean: list[Tensor]  # (U_t,) for each set of columns
    variance: list[Tensor]  # (U_t,) for each
    pairs: dict[tuple[int, int], Tensor]  # contributions of pairs s < t of sets to the variance, (U_s, U_t)


def check_sizes(bins: ColumnBins) -> None:
    """Raise a ValueError if the tables would be too large."""
    sizes = [bins.num_bins(term) for term in bins.terms]
    total = sum(first * second for first, second in itertools.combinations(sizes, 2))
    if total > _MAX_TABLE_ENTRIES:
        raise ValueError(
            f"the tables of pairs of bins would have {total} entries, more than {_MAX_TABLE_ENTRIES}: lower "
            f"max_bins; the numbers of bins are {dict(zip(bins.terms, sizes, strict=True))}"
        )


class TableSums:
    """The sums of :class:`BinTables` while rows are added, for sets of columns with these numbers of bins."""

    def __init__(self, sizes: Sequence[int], device: torch.device) -> None:
        self._sizes = list(sizes)
        # The constant has one bin, so its table with another set is the other set's own sums.
        pairs = [(s, t) for s, t in itertools.combinations(range(len(sizes)), 2) if min(sizes[s], sizes[t]) > 1]
        self.pairs = {(s, t): _zeros(sizes[s] * sizes[t], device) for s, t in pairs}
        self.weights, self.targets = ([_zeros(size, device) for size in sizes] for _ in range(2))
        self.totals = _zeros(3, device)

    def add(
        self, codes: Sequence[Tensor], weights: Tensor | None, targets: Tensor, squares: Tensor, num_threads: int
    ) -> None:
        r"""
        Add rows with bins ``codes``, weights :math:`\lambda_n` (None for ones) and targets :math:`\lambda_n r_n`,
        float64 ``(n,)``, and the total of :math:`\lambda_n r_n^2`, ``()``. There is one pass for each pair of sets.
        """
        values = torch.ones_like(targets[:CHUNK_SIZE]) if weights is None else weights
        pairs = [
            functools.partial(_add_rows, table, values, (codes[s], codes[t]), self._sizes[t])
            for (s, t), table in self.pairs.items()
        ]
        single = [
            functools.partial(_add_rows, table, numbers, (positions,))
            for tables, numbers in ((self.weights, values), (self.targets, targets))
            for table, positions in zip(tables, codes, strict=True)
        ]
        in_threads([*pairs, *single], num_threads)
        weight = targets.new_tensor(len(targets)) if weights is None else weights.sum()
        self.totals += torch.stack([weight, targets.sum(), squares])

    def parts(self) -> list[Tensor]:
        """All sums, which may be changed in place."""
        return [*self.pairs.values(), *self.weights, *self.targets, self.totals]

    def tables(self, places: list[Tensor]) -> BinTables:
        """The tables for bins that stand at these places."""
        sizes = self._sizes
        tables = {key: table.view(sizes[key[0]], sizes[key[1]]) for key, table in self.pairs.items()}
        for s, t in itertools.combinations(range(len(sizes)), 2):
            if (s, t) not in tables:
                tables[s, t] = self.weights[t if sizes[s] == 1 else s].view(sizes[s], sizes[t])
        return BinTables(places, self.weights, tables, self.weights, self.targets, self.totals)


def _zeros(size: int, device: torch.device) -> Tensor:
    return torch.zeros(size, dtype=torch.float64, device=device)


def _add_rows(table: Tensor, values: Tensor, codes: Sequence[Tensor], size: int = 0) -> None:
    """Add the rows' values ``(n,)``, or the same for each chunk, at the places of :func:`_position`."""
    for rows in chunks(len(codes[0])):
        part = values[rows] if len(values) == len(codes[0]) else values[: rows.stop - rows.start]
        table.index_add_(0, _position([each[rows] for each in codes], size), part)


def _position(codes: Sequence[Tensor], size: int) -> Tensor:
    """Each row's place among a set's bins, or among the pairs of those of two sets, the second of ``size`` bins."""
    first = codes[0].int()
    return first if len(codes) == 1 else torch.add(codes[1].int(), first, alpha=size)


class DiscretizedData:
    """
    Rows as indices of bins: a few bytes for each set of columns, the response and row-wise arguments. ``places`` are
    the bins ``(U_t, d_t)``, ``codes`` each row's bins ``(n,)``. Of the arguments, offset and weights, ``taken``, are
    applied here. Each of the ``processes`` has rows of its own, and tables are sums over those of all.
    """

    def __init__(
        self,
        places: list[Tensor],
        codes: list[Tensor],
        responses: Tensor,
        taken: Mapping[str, Tensor] | None = None,
        arguments: Mapping[str, Tensor] | None = None,
        num_threads: int = 1,
        processes: Processes | None = None,
    ) -> None:
        self.processes = Processes(None) if processes is None else processes
        self.places = [bins.double() for bins in places]
        self._codes, self.responses = codes, responses
        self._taken, self.arguments = dict(taken or {}), dict(arguments or {})
        self.offset, self.weights = self._taken.get("offset"), self._taken.get("weights")
        self.num_threads = num_threads
        #: Number of rows of each process.
        self.counts = [count for (count,) in self.processes.gather([len(responses)], responses.device)]

    @classmethod
    def from_batches(
        cls,
        batches: Iterable[Any],
        bins: ColumnBins,
        strategy: AdditiveVariationalStrategy,
        likelihood: Likelihood,
        mean: Callable[[Tensor], Tensor] | None = None,
        num_threads: int = 1,
        processes: Processes | None = None,
    ) -> DiscretizedData:
        """Read the data in one pass; ``mean`` is a fixed part of the predictor."""
        processes = Processes(None) if processes is None else processes
        reader = RowReader(bins, taken_from(likelihood), mean, num_threads)
        with processes.sharing_errors("read its rows", strategy.predictor.device):
            parts = list(reader.blocks(rows_for(likelihood, strategy, batches)))
            if not parts:
                raise ValueError("batches is empty: there is no data to fit, or it can be gone through only once")
        reader.share_centres(processes)
        codes, responses, taken, arguments = zip(*parts, strict=True)
        return cls(
            reader.places(responses[0].device),
            [joined(codes_of_set) for codes_of_set in zip(*codes, strict=True)],
            joined(responses),
            joined_by_name(taken),
            joined_by_name(arguments),
            num_threads,
            processes,
        )

    def __len__(self) -> int:
        return len(self.responses)

    @property
    def num_all(self) -> int:
        """The number of rows of all processes."""
        return sum(self.counts)

    @property
    def num_rows(self) -> float:
        """The number of rows of all processes, or with weights their sum."""
        return float(self.num_all) if self.weights is None else self.processes.sum([self.weights.sum()])[0].item()

    def thinned(self, num_rows: int) -> DiscretizedData:
        """About ``num_rows`` of the rows, from all parts of the data, or all if there are no more."""
        if self.num_all <= num_rows:
            return self
        num_rows = max(1, round(num_rows * len(self) / self.num_all))
        # Random places within equal parts, not equally spaced rows: the data may be periodic in the row number.
        parts = (
            torch.arange(num_rows, dtype=torch.float64)
            + torch.rand(num_rows, generator=torch.Generator().manual_seed(0)).double()
        )
        rows = (parts * (len(self) / num_rows)).long().clamp_(max=len(self) - 1).to(self.responses.device)
        taken, arguments = (
            {name: value[rows] for name, value in each.items()} for each in (self._taken, self.arguments)
        )
        codes = [codes[rows] for codes in self._codes]
        return DiscretizedData(self.places, codes, self.responses[rows], taken, arguments, processes=self.processes)

    def tables(self, weights: Tensor | None, targets: Tensor, squares: Tensor) -> BinTables:
        r"""
        Sum over the rows, with one pass for each pair of sets: weights :math:`\lambda_n` (None for ones) and targets
        :math:`\lambda_n r_n`, float64 ``(n,)``, and the total of :math:`\lambda_n r_n^2`, ``()``.
        """
        sums = TableSums([len(places) for places in self.places], targets.device)
        sums.add(self._codes, weights, targets, squares, self.num_threads)
        if not self.processes.is_alone:
            parts = sums.parts()
            for part, total in zip(parts, self.processes.sum(parts), strict=True):
                part.copy_(total)
        return sums.tables(self.places)

    def moments(self, tables: MomentTables) -> tuple[Tensor, Tensor]:
        """Mean and variance of the predictor in each row without the offset, both ``(n,)`` in float64."""
        mean, variance = torch.zeros(2, len(self), dtype=torch.float64, device=self.responses.device)

        def fill(rows: slice) -> None:
            codes = [codes[rows] for codes in self._codes]
            for positions, means, variances in zip(codes, tables.mean, tables.variance, strict=True):
                position = positions.int()
                mean[rows] += means.index_select(0, position)
                variance[rows] += variances.index_select(0, position)
            for (s, t), table in tables.pairs.items():
                variance[rows] += table.view(-1).index_select(0, _position([codes[s], codes[t]], table.shape[-1]))

        self.map_rows(fill)
        return mean, variance.clamp_(min=torch.finfo(torch.float64).tiny)

    def gradients(
        self, likelihood: Likelihood, mean: Tensor, variance: Tensor, rows: slice, dtype: torch.dtype
    ) -> ExpectedGradients:
        """Derivatives of some rows' expected log-likelihood at moments of their predictors, computed in ``dtype``."""
        arguments = {name: value[rows] for name, value in self.arguments.items()}
        found = expected_gradients(likelihood, self.responses[rows], mean.to(dtype), variance.to(dtype), arguments)
        return self.weighted(found, rows)

    def weighted(self, found: ExpectedGradients, rows: slice) -> ExpectedGradients:
        """The derivatives of some rows, multiplied by their weights."""
        if self.weights is None:
            return found
        return ExpectedGradients(*(self.weights[rows] * part for part in found))

    def map_rows(self, function: Callable[[slice], Any]) -> list[Any]:
        """Apply a function to chunks of rows, in threads."""
        return in_threads([functools.partial(function, rows) for rows in chunks(len(self))], self.num_threads)


def rows_for(likelihood: Likelihood, strategy: AdditiveVariationalStrategy, batches: Iterable[Any]) -> Iterator[Rows]:
    """The rows of batches, with arguments that the likelihood reads."""
    for batch in batches:
        rows = checked_rows(strategy, None, batch)  # the values of all responses are checked later
        check_row_arguments(likelihood, rows.row_arguments)
        yield rows


def sampled(batches: Iterable[Any], share: float) -> Iterator[tuple[Tensor, Tensor, dict[str, Tensor]]]:
    """A random part of the rows of each batch, the same one in every call."""
    generator = torch.Generator("cpu").manual_seed(0)  # whatever the default device is
    for x, y, *rest in batches:
        if share * len(x) < 100:  # for many small batches, rows are drawn one by one
            rows = (torch.rand(len(x), generator=generator, device="cpu") < share).nonzero().squeeze(-1)
        else:
            rows = torch.randint(len(x), (round(share * len(x)),), generator=generator, device="cpu").unique()
        if len(rows):
            arguments = rest[0] if rest else {}
            chosen = {name: value[rows.to(value.device)] for name, value in arguments.items()}
            yield x[rows.to(x.device)], y[rows.to(y.device)], chosen
