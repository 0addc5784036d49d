"""Row-wise arguments of the likelihood in batches from files."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from gpytorch_gam.data import MemoryMappedBatches, ParquetBatches, RowDataset
from gpytorch_gam.data.streamed_batches import StreamedBatches
from gpytorch_gam.data.whole_epochs import every_row

NUM_ROWS = 503
Make = Callable[..., StreamedBatches]


def columns_of(numbers: np.ndarray) -> dict[str, np.ndarray]:
    """Columns that follow from the number of the row, which is the response."""
    return {"a": 10.0 * numbers, "b": -numbers, "y": numbers, "w": numbers + 0.5, "o1": 2 * numbers, "o2": 3 * numbers}


def mapped(folder: Path, *args: Any, **options: Any) -> MemoryMappedBatches:
    parts = {name: np.load(folder / f"{name}.npy") for name in ("a", "b", "o1", "o2")}
    np.save(folder / "x.npy", np.stack([parts["a"], parts["b"]], axis=-1))
    np.save(folder / "offset.npy", np.asfortranarray(np.stack([parts["o1"], parts["o2"]], axis=-1)))
    row_columns = {"weights": folder / "w.npy", "offset": folder / "offset.npy"}
    return MemoryMappedBatches(folder / "x.npy", folder / "y.npy", *args, row_columns=row_columns, **options)


def from_parquet(folder: Path, *args: Any, **options: Any) -> ParquetBatches:
    row_columns = {"weights": "w", "offset": ["o1", "o2"]}
    return ParquetBatches(folder, ["a", "b"], "y", *args, row_columns=row_columns, **options)


@pytest.fixture(params=["memory-mapped", "parquet"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    columns = columns_of(np.arange(NUM_ROWS, dtype=np.float64))
    if request.param == "memory-mapped":
        for name, column in columns.items():
            np.save(tmp_path / f"{name}.npy", column)
        return lambda *args, **options: mapped(tmp_path, *args, **options)
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table(columns), tmp_path / "rows.parquet", row_group_size=60)
    return lambda *args, **options: from_parquet(tmp_path, *args, **options)


def numbers_of(batches: Any) -> list[int]:
    """Row numbers in the order in which they come; everything else of a row is checked to belong to its number."""
    numbers = []
    for x, y, row_arguments in batches:
        expected = columns_of(y.numpy())
        wanted = {name: torch.from_numpy(column) for name, column in expected.items()}
        assert list(row_arguments) == ["weights", "offset"]
        assert torch.equal(x, torch.stack([wanted["a"], wanted["b"]], dim=-1))
        assert torch.equal(row_arguments["weights"], wanted["w"])
        assert torch.equal(row_arguments["offset"], torch.stack([wanted["o1"], wanted["o2"]], dim=-1))
        numbers += y.long().tolist()
    return numbers


@pytest.mark.parametrize("prefetch", [False, True])
@pytest.mark.parametrize(("buffer_rows", "chunk_rows"), [(None, None), (100, 17), (1, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_row_comes_once_with_its_arguments(
    make: Make, dtype: torch.dtype, buffer_rows: int | None, chunk_rows: int | None, prefetch: bool
) -> None:
    batches = make(64, dtype=dtype, buffer_rows=buffer_rows, chunk_rows=chunk_rows, prefetch=prefetch)
    assert batches.row_arguments == ("weights", "offset")
    orders = [numbers_of(batches) for _ in range(2)]
    assert [sorted(order) for order in orders] == [list(range(NUM_ROWS))] * 2
    assert orders[0] != orders[1]
    batches.set_epoch(0)
    assert numbers_of(batches) == orders[0]
    _, _, row_arguments = next(iter(batches))
    assert {value.dtype for value in row_arguments.values()} == {dtype}


def test_shards_and_dropped_ends_are_those_of_the_rows(make: Make) -> None:
    shards = [numbers_of(make(16, shard=(rank, 3), dtype=torch.float64)) for rank in range(3)]
    assert sorted(chain.from_iterable(shards)) == list(range(NUM_ROWS))
    short = make(100, drop_last=True, dtype=torch.float64)
    assert len(numbers_of(short)) == 500
    assert numbers_of(every_row(short)) == list(range(NUM_ROWS))


def test_batches_are_those_of_a_loader(make: Make) -> None:
    columns = {name: torch.from_numpy(column) for name, column in columns_of(np.arange(float(NUM_ROWS))).items()}
    x, offset = (torch.stack([columns[name] for name in names], dim=-1) for names in (("a", "b"), ("o1", "o2")))
    loader = DataLoader(RowDataset(x, columns["y"], weights=columns["w"], offset=offset), batch_size=64)
    for ours, theirs in zip(make(64, shuffle=False, dtype=torch.float64), loader, strict=True):
        assert torch.equal(ours[0], theirs[0]) and torch.equal(ours[1], theirs[1])
        assert ours[2].keys() == theirs[2].keys()
        assert all(torch.equal(ours[2][name], value) for name, value in theirs[2].items())


def test_arguments_stay_what_they_were(make: Make) -> None:
    batches = iter(make(64, buffer_rows=64, dtype=torch.float64))
    first = next(batches)
    weights = first[2]["weights"].clone()
    next(batches)
    assert torch.equal(first[2]["weights"], weights)


def test_values_that_no_likelihood_takes_are_counted(tmp_path: Path) -> None:
    x, y, weights = np.zeros((9, 1)), np.zeros(9), np.ones(9)
    weights[:2], offset = np.nan, np.full((9, 2), [0.0, np.inf])
    batches = MemoryMappedBatches(x, y, 9, chunk_rows=9, row_columns={"weights": weights, "offset": offset})
    found = r"row_columns\['weights'\] \(2\), column 1 of row_columns\['offset'\] \(9\); drop"
    with pytest.raises(ValueError, match=found):
        list(batches)
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = {"a": x[:, 0], "y": y, "w": pyarrow.array([None, 1.0] + 7 * [2.0])}
    parquet.write_table(pyarrow.table(table), tmp_path / "rows.parquet")
    with pytest.raises(ValueError, match=r"missing, NaN or infinite values in row group 0 of .*: w \(1\); drop"):
        list(ParquetBatches(tmp_path, ["a"], "y", 9, row_columns={"weights": "w"}))


@pytest.mark.parametrize("row_columns", ["w", ["w"], {1: "w"}, 3])
def test_row_columns_map_names(row_columns: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="row_columns must map names of row-wise arguments"):
        MemoryMappedBatches(np.ones((4, 1)), np.ones(4), 2, row_columns=row_columns)
    with pytest.raises(TypeError, match="row_columns must map names of row-wise arguments"):
        ParquetBatches(tmp_path, ["a"], "y", 2, row_columns=row_columns)


def test_arrays_must_have_the_rows_of_the_data(tmp_path: Path) -> None:
    x, y = np.ones((4, 1)), np.ones(4)
    for weights, error, message in (
        (np.ones(3), ValueError, r"x has 4 rows, but row_columns\['weights'\] has 3 entries"),
        (
            np.ones((4, 1, 1)),
            ValueError,
            r"row_columns\['weights'\] must have shape \(N,\) or \(N, k\), got \(4, 1, 1\)",
        ),
        (np.array(["a"] * 4), ValueError, r"row_columns\['weights'\] must hold numbers"),
        ("missing.npy", FileNotFoundError, r"row_columns\['weights'\]: there is no file"),
        ([1.0] * 4, TypeError, r"row_columns\['weights'\] must be the path of a .npy file or an array"),
    ):
        with pytest.raises(error, match=message):
            MemoryMappedBatches(x, y, 2, row_columns={"weights": weights})
    np.save(tmp_path / "w.npy", y)
    batches = MemoryMappedBatches(x, y, 2, row_columns={"weights": tmp_path / "w.npy"})
    np.save(tmp_path / "w.npy", y[:3])
    with pytest.raises(ValueError, match=r"w\.npy was changed since it was opened"):
        list(batches)


def test_columns_of_files_are_numbers_whatever_the_inputs_are(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = {"colour": ["red", "blue", "red"], "y": [1, 2, 3], "trials": [30, 10, 20], "is_odd": [True, False, True]}
    parquet.write_table(pyarrow.table(table), tmp_path / "rows.parquet")
    options = {"shuffle": False, "dtype": torch.float64}
    with pytest.raises(ValueError, match=r"has no column \['tirals'\]"):
        ParquetBatches(tmp_path, ["colour"], "y", 3, row_columns={"trials": "tirals"})
    with pytest.raises(ValueError, match=r"columns that are not numbers: {'colour': 'string'}"):
        ParquetBatches(tmp_path, ["colour"], "y", 3, row_columns={"weights": "colour"})
    with pytest.raises(TypeError, match=r"row_columns\['offset'\] must be a list of names, got 3"):
        ParquetBatches(tmp_path, ["colour"], "y", 3, row_columns={"offset": 3})
    # Codes are those of the input; the row-wise argument is the number itself.
    batches = ParquetBatches(
        tmp_path,
        ["colour", "trials"],
        "y",
        3,
        row_columns={"trials": "trials", "weights": "is_odd"},
        categories={"trials": [10, 20, 30]},
        **options,
    )
    ((x, _, row_arguments),) = batches
    assert x.tolist() == [[1, 2], [0, 0], [1, 1]]
    assert row_arguments["trials"].tolist() == [30, 10, 20]
    assert row_arguments["weights"].tolist() == [1, 0, 1]


def test_memory_is_that_of_the_buffer(tmp_path: Path) -> None:
    size = 200_000
    for name, array in (("x", np.ones((size, 2))), ("y", np.ones(size)), ("w", np.ones(size))):
        np.save(tmp_path / f"{name}.npy", array)
    batches = MemoryMappedBatches(
        tmp_path / "x.npy", tmp_path / "y.npy", 500, row_columns={"weights": tmp_path / "w.npy"}, buffer_rows=5000
    )
    tracemalloc.start()
    for _ in batches:
        pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * 5000 * 4 * 3  # a few buffers, of 1/40 of the data
