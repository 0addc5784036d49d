"""Row-wise arguments reach every way of fitting from every source of batches."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gpytorch
import numpy as np
import pytest
import torch
from gpytorch.likelihoods import GaussianLikelihood, Likelihood
from torch import Tensor
from torch.utils.data import DataLoader

from gpytorch_gam import AdditiveGP, AdditivePredictor
from gpytorch_gam.data import MemoryMappedBatches, ParquetBatches, RowDataset
from gpytorch_gam.diagnostics import HyperparameterUncertainty
from gpytorch_gam.likelihoods import PoissonLikelihood, RowwiseLikelihood
from gpytorch_gam.mlls import CollapsedELBO
from gpytorch_gam.terms import constant, smooth
from gpytorch_gam.training import (
    _minibatch_end,
    fit,
    inducing_shortfall,
    initialize_posterior,
    polish,
    start_from_responses,
)
from tests.problems import fit_by_bins

# Fits without row-wise arguments, against which others are held, stay in one process.
pytestmark = pytest.mark.xdist_group("row_arguments")

NUM_ROWS = 40


class Problem(NamedTuple):
    """Data with row-wise arguments, and the same data without."""

    likelihood: Callable[[], Likelihood]
    rows: tuple[Tensor, Tensor, dict[str, Tensor]]
    plain: tuple[Tensor, Tensor]


def problem(name: str) -> Problem:
    torch.manual_seed(3)
    x = (torch.randint(0, 12, (NUM_ROWS, 2)) / 11).double()
    effect = torch.sin(5 * x[:, 0]) + x[:, 1]
    if name == "offset":
        y, offset = effect + 0.3 * torch.randn(NUM_ROWS).double(), torch.randn(NUM_ROWS).double()
        return Problem(rowwise_gaussian, (x, y + offset, {"offset": offset}), (x, y))
    weights = torch.arange(NUM_ROWS) % 3
    repeated = torch.arange(NUM_ROWS).repeat_interleave(weights)
    counts = name == "weights of counts"
    y = torch.poisson((1 + effect).exp()) if counts else effect + 0.3 * torch.randn(NUM_ROWS).double()
    likelihood = PoissonLikelihood if counts else rowwise_gaussian
    return Problem(likelihood, (x, y, {"weights": weights.double()}), (x[repeated], y[repeated]))


def rowwise_gaussian() -> Likelihood:
    return RowwiseLikelihood(GaussianLikelihood()).double()


# ------------------------------------------------------------------ where batches come from


def in_a_list(folder: Path, x: Tensor, y: Tensor, row_arguments: dict[str, Tensor]) -> Any:
    return [(x, y, row_arguments)]


def from_a_loader(folder: Path, x: Tensor, y: Tensor, row_arguments: dict[str, Tensor]) -> Any:
    return DataLoader(RowDataset(x, y, **row_arguments), batch_size=len(x))


def from_arrays(folder: Path, x: Tensor, y: Tensor, row_arguments: dict[str, Tensor]) -> Any:
    for name, values in {"x": x, "y": y, **row_arguments}.items():
        np.save(folder / f"{name}.npy", values.numpy())
    row_columns = {name: folder / f"{name}.npy" for name in row_arguments}
    paths = folder / "x.npy", folder / "y.npy"
    return MemoryMappedBatches(*paths, len(x), row_columns=row_columns, dtype=torch.float64)


def from_parquet(folder: Path, x: Tensor, y: Tensor, row_arguments: dict[str, Tensor]) -> Any:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {"a": x[:, 0], "b": x[:, 1], "y": y, **{f"its {name}": value for name, value in row_arguments.items()}}
    table = pyarrow.table({name: values.numpy() for name, values in columns.items()})
    parquet.write_table(table, folder / "rows.parquet")
    row_columns = {name: f"its {name}" for name in row_arguments}
    return ParquetBatches(folder, ["a", "b"], "y", len(x), row_columns=row_columns, dtype=torch.float64)


SOURCES = [in_a_list, from_a_loader, from_arrays, from_parquet]


# ------------------------------------------------------------------ what is done with them


def make_model() -> AdditiveGP:
    smooths = smooth([0, 1], low=0.0, high=1.0, num_inducing=5)
    return AdditiveGP(AdditivePredictor(smooths, constant()), "block_low_rank", 8).double()


def bound(model: AdditiveGP, likelihood: Likelihood, plain: tuple[Tensor, Tensor]) -> Tensor:
    """The ELBO of the data without row-wise arguments, in nats."""
    x, y = plain
    with torch.no_grad():
        return gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(y))(model(x), y) * len(y)


def fitted(model: AdditiveGP, likelihood: Likelihood, batches: Any) -> None:
    fit(model, likelihood, batches, num_epochs=6, num_held_back=2)


def polished(model: AdditiveGP, likelihood: Likelihood, batches: Any) -> None:
    polish(model, likelihood, batches, tolerance=1e-6)


def fitted_to_bins(model: AdditiveGP, likelihood: Likelihood, batches: Any) -> None:
    fit_by_bins(model, likelihood, batches, tolerance=1e-4)


def started(model: AdditiveGP, likelihood: Likelihood, batches: Any) -> None:
    start_from_responses(model, likelihood, batches)


def initialized(model: AdditiveGP, likelihood: Likelihood, batches: Any) -> None:
    x, y, *others = next(iter(batches))
    torch.manual_seed(0)  # factors of the precision begin at random, and a loader has drawn a number
    initialize_posterior(model, likelihood, x, y, **(others[0] if others else {}))


def collapsed(model: AdditiveGP, likelihood: Likelihood, batches: Any) -> None:
    optimum = CollapsedELBO(likelihood, model).optimum_of_batches(batches)
    model.variational_strategy.set_whitened_posterior(optimum.mean, optimum.precision)


# Nats by which the bounds may differ: Adam sees gradients of another size, and searches end where little is promised.
WAYS = {fitted: 0.01, polished: 1e-5, fitted_to_bins: 0.05, started: 1e-6, initialized: 1e-6, collapsed: 1e-6}

# Every way reads every source and every kind of argument; the collapsed bound is that of a Gaussian likelihood.
NAMES = ["weights", "offset", "weights of counts"]
CASES = [
    (NAMES[(number + column) % (2 if way is collapsed else 3)], way, source)
    for number, way in enumerate(WAYS)
    for column, source in enumerate(SOURCES)
]


@functools.cache
def wanted(name: str, way: Callable[..., None]) -> Tensor:
    """The bound after a fit to the data without row-wise arguments."""
    make, _, plain = problem(name)
    model, likelihood = make_model(), make()
    way(model, likelihood, [plain])
    return bound(model, likelihood, plain)


@pytest.mark.filterwarnings("ignore:the fit has not arrived")
@pytest.mark.parametrize(("name", "way", "source"), CASES)
def test_weights_are_repeated_rows_and_offsets_shift_the_predictor(
    name: str, way: Callable[..., None], source: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_minibatch_end, "_MAX_FEATURES", 0)  # the end of a fit of small data has a test of its own
    make, rows, plain = problem(name)
    model, likelihood = make_model(), make()
    way(model, likelihood, source(tmp_path, *rows))
    found = bound(model, likelihood, plain)
    torch.testing.assert_close(found, wanted(name, way), rtol=0.0, atol=WAYS[way])
    assert (found - bound(make_model(), make(), plain)).abs() > 0.5  # something was done


def test_a_fit_of_small_data_ends_where_that_of_repeated_rows_does() -> None:
    make, rows, plain = problem("weights")
    found = []
    for batches in ([rows], [plain]):
        model, likelihood = make_model(), make()
        fit(model, likelihood, batches, num_epochs=6, num_held_back=2)
        found.append(bound(model, likelihood, plain))
    torch.testing.assert_close(*found, rtol=0.0, atol=0.1)


@functools.cache
def diagnosed(name: str) -> tuple[AdditiveGP, Likelihood, Tensor, Tensor]:
    """A model and what diagnostics find without row-wise arguments."""
    make, _, plain = problem(name)
    model, likelihood = make_model(), make()
    polish(model, likelihood, [plain])
    return model, likelihood, *diagnose(model, likelihood, [plain])


def diagnose(model: AdditiveGP, likelihood: Likelihood, batches: Any) -> tuple[Tensor, Tensor]:
    shortfall = torch.tensor(list(inducing_shortfall(model, likelihood, batches).values()))
    return shortfall, HyperparameterUncertainty(model, likelihood, batches).covariance


@pytest.mark.filterwarnings("ignore:the bound is higher near")  # of a model that was not fitted
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", ["weights", "offset"])
def test_diagnostics_read_them(name: str, source: Callable[..., Any], tmp_path: Path) -> None:
    model, likelihood, *expected = diagnosed(name)
    shortfall, covariance = diagnose(model, likelihood, source(tmp_path, *problem(name).rows))
    torch.testing.assert_close(shortfall, expected[0], rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(covariance, expected[1], rtol=1e-3, atol=1e-5)
    assert shortfall.sum() > 0


@pytest.mark.parametrize("source", [from_a_loader, from_arrays, from_parquet])
def test_names_are_checked_before_rows_are_read(
    source: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y, _ = problem("weights").rows
    batches = source(tmp_path, x, y, {"expsure": torch.ones(NUM_ROWS).double()})

    def read(self: object) -> Iterator[Any]:
        raise AssertionError("rows were read")
        yield

    monkeypatch.setattr(type(batches), "__iter__", read)
    model, likelihood = make_model(), PoissonLikelihood()
    message = (
        r"PoissonLikelihood takes the row-wise arguments offset, weights, exposure, but got expsure \(did you mean"
    )
    for way in (fitted, polished, started, fitted_to_bins):
        with pytest.raises(TypeError, match=message):
            way(copy.deepcopy(model), likelihood, batches)
    for ask in (inducing_shortfall, HyperparameterUncertainty):
        with pytest.raises(TypeError, match=message):
            ask(model, likelihood, batches)
    with pytest.raises(TypeError, match=r"GaussianLikelihood does not read weights: wrap it"):
        fit(model, GaussianLikelihood(), source(tmp_path, x, y, {"weights": y.exp()}))
