"""Data whose inputs are indices of bins, and sums over their rows whose size does not depend on the number of rows."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from gpytorch.likelihoods import Likelihood
from torch import Tensor

from gpytorch_gam.likelihoods import RowwiseLikelihood
from gpytorch_gam.likelihoods.expected_gradients import ExpectedGradients, expected_gradients
from gpytorch_gam.likelihoods.one_predictor_likelihood import OnePredictorLikelihood
from gpytorch_gam.likelihoods.row_argument import OFFSET, WEIGHTS
from gpytorch_gam.optim.rows.likelihood_check import check_row_arguments
from gpytorch_gam.optim.rows.stream import checked_rows
from gpytorch_gam.variational import AdditiveVariationalStrategy

from .column_bins import ColumnBins

# Number of rows processed at a time: few enough to stay in the cache, and for torch not to use several threads.
_CHUNK_SIZE = 32000


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


class MomentTables(NamedTuple):
    """Mean and variance of the predictor as sums of entries of tables."""

    mean: list[Tensor]  # (U_t,) for each set of columns
    variance: list[Tensor]  # (U_t,) for each
    pairs: dict[tuple[int, int], Tensor]  # contributions of pairs s < t of sets to the variance, (U_s, U_t)


class _Centres:
    """The mean of the rows at each bin."""

    def __init__(self, bins: Tensor) -> None:
        self._bins = bins.double()
        self._sums, self._counts = torch.zeros_like(self._bins), torch.zeros_like(self._bins[:, 0])

    def add(self, codes: Tensor, x: Tensor) -> None:
        """Add rows ``(n, d)``, given their bins ``(n,)``."""
        positions = codes.int()
        for column, sums in zip(x.unbind(-1), self._sums.unbind(-1), strict=True):
            sums.index_add_(0, positions, column.double())
        self._counts.index_add_(0, positions, torch.ones_like(x[:, 0], dtype=torch.float64))

    def mean(self) -> Tensor:
        """The means, ``(U, d)``; for bins without rows the bin itself."""
        counts = self._counts.unsqueeze(-1)
        return torch.where(counts > 0, self._sums / counts.clamp_min(1.0), self._bins)


class DiscretizedData:
    """
    Rows as indices of bins: a few bytes for each set of columns, the response and row-wise arguments. ``places`` are
    the bins ``(U_t, d_t)``, ``codes`` each row's bins ``(n,)``. Of the arguments, offset and weights, ``taken``, are
    applied here.
    """

    def __init__(
        self,
        places: list[Tensor],
        codes: list[Tensor],
        responses: Tensor,
        taken: Mapping[str, Tensor] | None = None,
        arguments: Mapping[str, Tensor] | None = None,
        num_threads: int = 1,
    ) -> None:
        self.places = [bins.double() for bins in places]
        self._codes, self.responses = codes, responses
        self._taken, self.arguments = dict(taken or {}), dict(arguments or {})
        self.offset, self.weights = self._taken.get("offset"), self._taken.get("weights")
        self._num_threads = num_threads

    @classmethod
    def from_batches(
        cls,
        batches: Iterable[Any],
        bins: ColumnBins,
        strategy: AdditiveVariationalStrategy,
        likelihood: Likelihood,
        mean: Callable[[Tensor], Tensor] | None = None,
        num_threads: int = 1,
    ) -> DiscretizedData:
        """
        Read the data in one pass; ``mean`` is a fixed part of the predictor. The place of a bin is the mean of its
        rows: then sums of functions lose only terms of second order in the step, at the ends of the range too.
        """
        parts: list[tuple[list[Tensor], Tensor, dict[str, Tensor], dict[str, Tensor]]] = []
        centres = {term: _Centres(bins.values(term)) for term in bins.terms if not bins.is_exact(term)}
        for batch in batches:
            x, y, arguments = checked_rows(strategy, None, batch)  # the values of all responses are checked later
            check_row_arguments(likelihood, arguments)
            codes = bins.index(x)
            for term, positions in zip(bins.terms, codes, strict=True):
                if term in centres:
                    centres[term].add(positions, bins.coordinates(x, term))
            taken, arguments = _taken_apart(likelihood, y, arguments, None if mean is None else mean(x).detach())
            parts.append((codes, y, taken, arguments))
        if not parts:
            raise ValueError("batches is empty: there is no data to fit, or it can be gone through only once")
        codes_of, responses_of, taken_of, arguments_of = zip(*parts, strict=True)
        responses = _joined(responses_of)
        if not torch.isfinite(responses.sum()):
            missing = int((~torch.isfinite(responses)).sum())
            raise ValueError(f"y has NaN or infinity in {missing} of {len(responses)} rows")
        places = [centres[term].mean() if term in centres else bins.values(term) for term in bins.terms]
        return cls(
            [place.to(responses.device) for place in places],
            [_joined(codes) for codes in zip(*codes_of, strict=True)],
            responses,
            _joined_by_name(taken_of),
            _joined_by_name(arguments_of),
            num_threads,
        )

    def __len__(self) -> int:
        return len(self.responses)

    @property
    def num_rows(self) -> float:
        """The number of rows, or with weights their sum."""
        return float(len(self)) if self.weights is None else self.weights.sum().item()

    def thinned(self, num_rows: int) -> DiscretizedData:
        """At most ``num_rows`` of the rows, from all parts of the data."""
        if len(self) <= num_rows:
            return self
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
        return DiscretizedData(self.places, codes, self.responses[rows], taken, arguments)

    def tables(self, weights: Tensor | None, targets: Tensor, squares: Tensor) -> BinTables:
        r"""
        Sum over the rows, with one pass for each pair of sets: weights :math:`\lambda_n` (None for ones) and targets
        :math:`\lambda_n r_n`, float64 ``(n,)``, and the total of :math:`\lambda_n r_n^2`, ``()``.
        """
        sizes = [len(places) for places in self.places]
        terms = range(len(sizes))
        rows = torch.ones(_CHUNK_SIZE, dtype=targets.dtype, device=targets.device) if weights is None else weights
        count = rows.new_tensor(len(self))
        # The constant has one bin, so its table with another set is the other set's own sums.
        pairs = [(s, t) for s, t in itertools.combinations(terms, 2) if min(sizes[s], sizes[t]) > 1]
        jobs = [
            *(functools.partial(self._sum, rows, weights is None, sizes[s] * sizes[t], s, t) for s, t in pairs),
            *(functools.partial(self._sum, rows, weights is None, sizes[t], t) for t in terms),
            *(functools.partial(self._sum, targets, False, sizes[t], t) for t in terms),
        ]
        sums = in_threads(jobs, self._num_threads)
        tables = {(s, t): table.view(sizes[s], sizes[t]) for (s, t), table in zip(pairs, sums, strict=False)}
        own, by_target = sums[len(pairs) : len(pairs) + len(sizes)], sums[len(pairs) + len(sizes) :]
        for s, t in itertools.combinations(terms, 2):
            if (s, t) not in tables:
                tables[s, t] = (own[t] if sizes[s] == 1 else own[s]).view(sizes[s], sizes[t])
        totals = torch.stack([count if weights is None else weights.sum(), targets.sum(), squares])
        return BinTables(self.places, own, tables, own, by_target, totals)

    def _sum(self, rows: Tensor, repeats: bool, size: int, *terms: int) -> Tensor:
        """Sums of the rows' numbers (a chunk's, if ``repeats``) at each bin or pair of bins."""
        total = torch.zeros(size, dtype=rows.dtype, device=rows.device)
        for start in range(0, len(self), _CHUNK_SIZE):
            stop = min(start + _CHUNK_SIZE, len(self))
            values = rows[: stop - start] if repeats else rows[start:stop]
            total.index_add_(0, self._position(slice(start, stop), *terms), values)
        return total

    def _position(self, rows: slice, first: int, second: int | None = None) -> Tensor:
        position = self._codes[first][rows].int()
        if second is None:
            return position
        return torch.add(self._codes[second][rows].int(), position, alpha=len(self.places[second]))

    def moments(self, tables: MomentTables) -> tuple[Tensor, Tensor]:
        """Mean and variance of the predictor in each row without the offset, both ``(n,)`` in float64."""
        mean, variance = torch.zeros(2, len(self), dtype=torch.float64, device=self.responses.device)

        def fill(rows: slice) -> None:
            for term, (means, variances) in enumerate(zip(tables.mean, tables.variance, strict=True)):
                position = self._position(rows, term)
                mean[rows] += means.index_select(0, position)
                variance[rows] += variances.index_select(0, position)
            for (s, t), table in tables.pairs.items():
                variance[rows] += table.view(-1).index_select(0, self._position(rows, s, t))

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

    def sum_weighted(self, values: Tensor, rows: slice) -> Tensor:
        """The sum of some rows' values, multiplied by their weights."""
        return values.sum() if self.weights is None else self.weights[rows] @ values

    def map_rows(self, function: Callable[[slice], Any]) -> list[Any]:
        """Apply a function to chunks of rows, in threads."""
        starts = range(0, len(self), _CHUNK_SIZE)
        chunks = [slice(start, min(start + _CHUNK_SIZE, len(self))) for start in starts]
        return in_threads([functools.partial(function, rows) for rows in chunks], self._num_threads)


def _taken_apart(
    likelihood: Likelihood, y: Tensor, given: Mapping[str, Tensor], mean: Tensor | None
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Split a batch's row-wise arguments into offset (with the given mean) and weights, and the likelihood's own."""
    taken: dict[str, Tensor] = {}
    arguments, like = dict(given), y.detach().double()
    if isinstance(likelihood, RowwiseLikelihood | OnePredictorLikelihood):  # others may mean anything by these names
        for argument in (OFFSET, WEIGHTS):
            value = arguments.pop(argument.name, None)
            taken |= {} if value is None else {argument.name: argument.read(value, like).expand(y.shape)}
    if mean is not None:
        taken["offset"] = mean.double() + taken.get("offset", 0.0)
    return taken, arguments


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def _joined_by_name(parts: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    names = parts[0].keys()
    if any(part.keys() != names for part in parts):
        raise ValueError("the batches must all have the same row-wise arguments: give those of some to each")
    return {name: _joined([part[name] for part in parts]) for name in names}


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


def in_threads(jobs: Sequence[Callable[[], Any]], num_threads: int) -> list[Any]:
    """The results of independent jobs, in order; each job runs in a single thread."""
    if min(num_threads, len(jobs)) == 1:
        return [job() for job in jobs]
    with ThreadPoolExecutor(num_threads) as pool:
        return list(pool.map(lambda job: job(), jobs))
