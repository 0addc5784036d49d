"""
A fit of data of which no machine holds all rows: Dask maps sums over partitions, and the sums determine the fit.

    pip install "dask[distributed]"
    python examples/dask_statistics.py [--partitions 3] [--rows 200000] [--kill]

The partitions are Parquet files that the script writes to a temporary folder; the workers are processes of this
machine, and would be those of a cluster with its scheduler's address given to `Client`. Each partition is read twice:
for the ranges of its columns, from which all make the same bins, and for its sums. What travels are the model's terms,
the bins and the sums, never a row. With --kill a worker dies while it sums up a partition, and Dask has another one do
it again. The bound is held against that of one process with all rows. Spark and Ray would map the same two functions.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _style import argument_parser, write_json
from gpytorch.likelihoods import GaussianLikelihood
from torch import Tensor

from gpytorch_gam import AdditiveGP, AdditivePredictor, fit
from gpytorch_gam.data import ParquetBatches
from gpytorch_gam.terms import constant, smooth, tensor
from gpytorch_gam.training import ColumnRanges, FitStatistics
from gpytorch_gam.training.discretized import ColumnBins

COLUMNS = ["x0", "x1", "x2", "x3"]
NOISE = 0.5


def truth(x: Tensor) -> Tensor:
    return torch.sin(2 * math.pi * x[:, 0]) + x[:, 1] ** 2 + 2 * (x[:, 1] - 0.5) * x[:, 2] - x[:, 3]


def write_partition(path: Path, num_rows: int, seed: int) -> None:
    import pyarrow
    from pyarrow import parquet

    rng = np.random.default_rng(seed)
    x = rng.random((num_rows, len(COLUMNS)))
    y = truth(torch.from_numpy(x)).numpy() + NOISE * rng.standard_normal(num_rows)
    parquet.write_table(pyarrow.table([*x.T, y], names=[*COLUMNS, "y"]), path)


def make_model() -> AdditiveGP:
    edges = {"low": 0.0, "high": 1.0}
    terms = smooth([0, 1, 2, 3], num_inducing=12, **edges), tensor([1, 2], num_inducing=5, **edges), constant()
    return AdditiveGP(AdditivePredictor(*terms), rank=16).double()


def batches_of(paths: Path | list[Path]) -> ParquetBatches:
    return ParquetBatches(paths, COLUMNS, "y", batch_size=50000, shuffle=False, dtype=torch.float64)


# ------------------------------------------------------------------------------------------- what the workers do


def ranges_of(path: Path, predictor: AdditivePredictor) -> ColumnRanges:
    """The ranges of the columns of a partition."""
    torch.set_num_threads(1)
    return ColumnRanges.from_batches(batches_of(path), predictor, max_bins=(256, 40))


def statistics_of(path: Path, bins: ColumnBins, deadly: Path | None = None) -> FitStatistics:
    """The sums over a partition. The first worker to find that a ``deadly`` file is there removes it, and dies."""
    torch.set_num_threads(1)
    if deadly is not None and deadly.exists():
        deadly.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return FitStatistics.from_batches(batches_of(path), bins)


# ----------------------------------------------------------------------------------------------- what maps them


@contextlib.contextmanager
def workers(number: int) -> Iterator[Any]:
    """A client of worker processes."""
    try:
        from dask.distributed import Client, LocalCluster
    except ImportError:
        raise SystemExit('this example needs Dask: pip install "dask[distributed]"') from None
    with (
        LocalCluster(n_workers=number, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        yield client


def summed(client: Any, paths: list[Path], predictor: AdditivePredictor, deadly: Path | None) -> FitStatistics:
    """The sums over all partitions."""
    bins = ColumnBins.from_ranges(sum(client.gather(client.map(ranges_of, paths, predictor=predictor))))
    return sum(client.gather(client.map(statistics_of, paths, bins=bins, deadly=deadly)))


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--partitions", type=int, default=3)
    parser.add_argument("--rows", type=int, default=200000, help="rows of all partitions together")
    parser.add_argument("--kill", action="store_true", help="have a worker die while it works")
    given = parser.parse_args()
    num_rows = 6000 if given.quick else given.rows
    model, likelihood = make_model(), GaussianLikelihood().double()
    with tempfile.TemporaryDirectory() as name, workers(2) as client:
        folder = Path(name)
        paths = [folder / f"{number}.parquet" for number in range(given.partitions)]
        for seed, path in enumerate(paths):
            write_partition(path, num_rows // given.partitions, seed)
        deadly = folder / "deadly" if given.kill else None
        if deadly is not None:
            deadly.touch()
        statistics = summed(client, paths, model.predictor, deadly)
        num_deaths = int(deadly is not None and not deadly.exists())
        result = fit(model, likelihood, statistics)
        alone = fit(
            make_model(), GaussianLikelihood().double(), FitStatistics.from_batches(batches_of(paths), statistics.bins)
        )
    fresh = torch.rand(2000, len(COLUMNS), dtype=torch.float64)
    rmse = (model(fresh).mean - truth(fresh)).square().mean().sqrt().item()
    difference = abs(result.bound - alone.bound) / abs(alone.bound)
    print(f"{statistics.num_rows} rows in {given.partitions} partitions, workers that died: {num_deaths}")
    print(f"bound {result.bound:.6f} nats, in one process {alone.bound:.6f}, relative difference {difference:.1e}")
    print(f"noise {likelihood.noise.sqrt().item():.4f} (truth {NOISE}), RMSE of the predictor {rmse:.4f}")
    numbers = {"rows": statistics.num_rows, "deaths": num_deaths, "relative_difference": difference, "rmse": rmse}
    write_json(numbers, given.json)


if __name__ == "__main__":
    main()
