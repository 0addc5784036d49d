"""Batches from Parquet files."""

from __future__ import annotations

import datetime
import decimal
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import gpytorch
import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup
from gpytorch_gam.components import regular_grid
from gpytorch_gam.data import ParquetBatches
from gpytorch_gam.mlls import CollapsedELBO
from gpytorch_gam.terms import constant
from gpytorch_gam.training import fit, polish

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

NUM_ROWS = 1003
COLOURS = ["blue", "green", "red"]


def make_table(numbers: Sequence[int]) -> Any:
    """Rows that are told apart by their number, and columns of several types that follow from it."""
    colours = pyarrow.array([COLOURS[number % 3] for number in numbers])
    return pyarrow.table(
        {
            "number": pyarrow.array(numbers, pyarrow.int64()),
            "single": pyarrow.array([10.0 * number for number in numbers], pyarrow.float32()),
            "is_odd": pyarrow.array([number % 2 == 1 for number in numbers]),
            "colour": colours.dictionary_encode(),
            "name": colours,
            "price": pyarrow.array([decimal.Decimal(number) / 4 for number in numbers], pyarrow.decimal128(10, 2)),
            "when": pyarrow.array(numbers, pyarrow.timestamp("s")),
        }
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files, with row groups of different sizes; dictionaries differ between files and row groups."""
    for name, rows, group in (("a", range(300), 64), ("b", range(300, 301), 10), ("sub/c", range(301, NUM_ROWS), 500)):
        path = tmp_path / f"{name}.parquet"
        path.parent.mkdir(exist_ok=True)
        parquet.write_table(make_table(list(rows)), path, row_group_size=group)
    (tmp_path / "readme.txt").write_text("not data")
    return tmp_path


def numbers_of(batches: ParquetBatches) -> list[int]:
    """Row numbers in the order in which they come; the inputs are checked to be those of the row."""
    numbers = []
    for x, y in batches:
        torch.testing.assert_close(x[:, 0], 10.0 * y, rtol=0.0, atol=0.0)
        numbers.append(y)
    return torch.cat(numbers).long().tolist()


@pytest.mark.parametrize("prefetch", [False, True])
@pytest.mark.parametrize(("buffer_rows", "chunk_rows"), [(None, None), (128, 17), (1, 5), (100, 2000)])
@pytest.mark.parametrize("batch_size", [64, 59, 2000])
def test_every_row_comes_once_an_epoch(
    folder: Path, batch_size: int, buffer_rows: int | None, chunk_rows: int | None, prefetch: bool
) -> None:
    batches = ParquetBatches(
        folder, ["single"], "number", batch_size, buffer_rows=buffer_rows, chunk_rows=chunk_rows, prefetch=prefetch
    )
    assert batches.num_rows == batches.num_shard_rows == NUM_ROWS
    sizes = [len(y) for _, y in batches]
    assert len(sizes) == len(batches)
    assert set(sizes[:-1]) <= {batch_size}
    orders = [numbers_of(batches) for _ in range(2)]
    assert [sorted(order) for order in orders] == [list(range(NUM_ROWS))] * 2
    assert orders[0] != orders[1]


def test_orders_are_repeated(folder: Path) -> None:
    batches, again = (
        ParquetBatches(folder, ["single"], "number", 50, seed=3, buffer_rows=200, chunk_rows=20, prefetch=prefetch)
        for prefetch in (False, True)
    )
    orders = [numbers_of(batches) for _ in range(2)]
    assert [numbers_of(again) for _ in range(2)] == orders
    batches.set_epoch(1)
    assert numbers_of(batches) == orders[1]


def test_without_shuffling_rows_come_in_order(folder: Path) -> None:
    batches = ParquetBatches(folder, ["single"], "number", 64, shuffle=False, buffer_rows=128, chunk_rows=17)
    assert numbers_of(batches) == list(range(NUM_ROWS))
    shuffled = ParquetBatches(folder, ["single"], "number", 100, drop_last=True)
    assert len(set(numbers_of(shuffled))) == 1000
    assert numbers_of(shuffled.every_row()) == list(range(NUM_ROWS))


def test_large_row_groups_are_mixed(tmp_path: Path) -> None:
    parquet.write_table(make_table(range(2000)), tmp_path / "x.parquet", row_group_size=500)
    batches = ParquetBatches(tmp_path, ["single"], "number", 100, buffer_rows=200, chunk_rows=10)
    first = next(iter(batches))[1]
    assert {int(number) // 500 for number in first} == {0, 1, 2, 3}


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
def test_shards_are_disjoint_and_complete(folder: Path, world_size: int, shuffle: bool) -> None:
    shards = [
        ParquetBatches(
            folder, ["single"], "number", 32, shuffle, shard=(rank, world_size), buffer_rows=96, chunk_rows=11
        )
        for rank in range(world_size)
    ]
    found = [numbers_of(shard) for shard in shards]
    assert sorted(chain.from_iterable(found)) == list(range(NUM_ROWS))
    assert [len(numbers) for numbers in found] == [shard.num_shard_rows for shard in shards]
    assert max(map(len, found)) - min(map(len, found)) <= 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_columns_of_every_kind_become_numbers(folder: Path, dtype: torch.dtype) -> None:
    names = ["number", "is_odd", "colour", "name", "price"]
    batches = ParquetBatches(folder, names, "is_odd", 100, dtype=dtype, device="cpu")
    assert batches.categories == {"colour": COLOURS, "name": COLOURS}
    for x, y in batches:
        assert x.dtype == y.dtype == dtype
        number = x[:, 0]
        expected = torch.stack([number, number % 2, number % 3, number % 3, number / 4], dim=-1)
        torch.testing.assert_close(x, expected, rtol=0.0, atol=0.0)
        assert torch.equal(y, number % 2)


def test_categories_can_be_given(folder: Path) -> None:
    values = ["red", "green", "blue", "white"]
    batches = ParquetBatches(folder, ["number", "colour"], "single", 100, categories={"colour": values})
    assert batches.categories == {"colour": values}
    for x, _ in batches:
        assert torch.equal(x[:, 1], 2.0 - x[:, 0] % 3)
    numbers = ParquetBatches(folder / "b.parquet", ["number"], "single", 100, categories={"number": [5, 300]})
    assert next(iter(numbers))[0].tolist() == [[1.0]]


def test_values_of_no_category_are_refused(folder: Path) -> None:
    batches = ParquetBatches(folder, ["colour"], "number", 100, categories={"colour": ["red", "green"]})
    with pytest.raises(ValueError, match=r"column colour has values in row group \d of .* none of its categories: 'bl"):
        list(batches)
    with pytest.raises(ValueError, match=r"categories are given for \['hue'\], which are not among the columns"):
        ParquetBatches(folder, ["colour"], "number", 100, categories={"hue": ["red"]})


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("number", [10.9, 20, 30.5], r"type int64\) are changed by conversion to that type: 10\.9 to 10, 30\.5 to 30$"),
        ("number", ["ten", "twenty"], r"type int64\) cannot be used: \['ten', 'twenty'\]"),
        ("number", [2**70], r"type int64\) cannot be used"),
        ("number", [True, False], r"type int64\) cannot be used"),
        ("number", [[1], [2]], r"type int64\) cannot be used"),
        ("number", [3, 4, 3.0], r"type int64\) must be distinct, got \[3, 4, 3\.0\]"),
        ("number", [3, None], r"type int64\) must not be missing or NaN: \[3, None\]"),
        ("single", [0.5, float("nan")], r"type float\) must not be missing or NaN: \[0\.5, nan\]"),
        ("single", [0.1, 0.1 + 1e-12], r"type float\) must be distinct"),
        ("single", [1.0, 1e300], r"type float\) are changed by conversion to that type: 1e\+300 to inf"),
        ("colour", [1, 2], r"type string\) cannot be used: \[1, 2\]"),
        ("colour", [b"red"], r"type string\) are changed by conversion to that type: b'red' to 'red'"),
        ("name", ["red", "green", "red"], r"type string\) must be distinct"),
        ("when", [1, 2], r"type timestamp\[ms\]\) are changed by conversion to that type: 1 to datetime"),
        ("when", [1, "noon"], r"type timestamp\[ms\]\) cannot be used"),
    ],
)
def test_categories_must_fit_their_column(folder: Path, name: str, values: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=rf"^categories of column {name} \({message}"):
        ParquetBatches(folder, [name], "number", 10, categories={name: values})


@pytest.mark.parametrize("values", ["ab", b"ab", {"red", "blue"}, {"red": 0}, 3, None, np.array("red")])
def test_categories_must_be_lists(folder: Path, values: Any) -> None:
    with pytest.raises(TypeError, match="categories of column colour must be a list, got "):
        ParquetBatches(folder, ["colour"], "number", 10, categories={"colour": values})
    with pytest.raises(TypeError, match="categories must be a mapping from names of columns to lists of values, got "):
        ParquetBatches(folder, ["colour"], "number", 10, categories=[values])


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("number", np.array([300, 7]), [300, 7]),
        ("number", [300.0, 7.0], [300, 7]),
        ("single", (3000, 0.1), None),
        ("colour", np.array(["blue", "red"]), ["blue", "red"]),
        ("name", iter(["blue", "red"]), ["blue", "red"]),
        ("price", [75, decimal.Decimal("1.25")], None),
        ("is_odd", [False, True], [False, True]),
        ("when", [datetime.datetime(1970, 1, 1, 0, 5)], None),
    ],
)
def test_categories_may_be_of_any_type(folder: Path, name: str, values: Any, expected: list[Any] | None) -> None:
    batches = ParquetBatches(folder / "b.parquet", [name], "number", 10, categories={name: values})
    assert expected is None or batches.categories == {name: expected}
    assert next(iter(batches))[0].tolist() == [[0.0]]  # row 300
    again = ParquetBatches(folder / "b.parquet", [name], "number", 10, categories=batches.categories)
    assert again.categories == batches.categories


def test_categoricals_of_pandas(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "size": pandas.Categorical([30, 10, 20], [10, 20, 30]),
            "colour": pandas.Categorical(["red", "blue", "red"]),
            "y": [0.0, 1.0, 2.0],
        }
    )
    frame.to_parquet(tmp_path / "frame.parquet")
    batches = ParquetBatches(tmp_path, frame.columns[:2], "y", 3, shuffle=False)
    assert batches.categories == {"colour": ["blue", "red"]}
    assert next(iter(batches))[0].tolist() == [[30.0, 1.0], [10.0, 0.0], [20.0, 1.0]]
    categories = {name: frame[name].cat.categories for name in ("size", "colour")}
    coded = ParquetBatches(tmp_path, frame.columns[:2], "y", 3, shuffle=False, categories=categories)
    assert coded.categories == {"size": [10, 20, 30], "colour": ["blue", "red"]}
    assert next(iter(coded))[0].tolist() == [[2.0, 1.0], [0.0, 0.0], [1.0, 1.0]]


def write(folder: Path, **columns: Any) -> None:
    """A file for each element of the columns."""
    for number, arrays in enumerate(zip(*columns.values(), strict=True)):
        parquet.write_table(pyarrow.table(dict(zip(columns, arrays, strict=True))), folder / f"{number}.parquet")


@pytest.mark.parametrize("categories", [None, {"colour": ["red", "blue"]}])
@pytest.mark.parametrize("null_first", [False, True])
def test_a_column_without_values_in_one_file_is_missing(
    tmp_path: Path, null_first: bool, categories: dict[str, list[str]] | None
) -> None:
    colours = [pyarrow.nulls(2), pyarrow.array(["red", "blue"])]
    speeds, ys = [pyarrow.nulls(2), pyarrow.array([1.0, 2.0])], [pyarrow.array([0.0, 1.0])] * 2
    step = 1 if null_first else -1
    write(tmp_path, colour=colours[::step], speed=speeds[::step], y=ys)
    batches = ParquetBatches(tmp_path, ["colour", "speed"], "y", 2, categories=categories, chunk_rows=2)
    number = 0 if null_first else 1
    with pytest.raises(ValueError, match=rf"row group 0 of .*{number}\.parquet: colour \(2\), speed \(2\); drop"):
        list(batches)
    alone = ParquetBatches(tmp_path / f"{number}.parquet", ["colour"], "y", 2, categories=categories, chunk_rows=2)
    with pytest.raises(ValueError, match=rf"row group 0 of .*{number}\.parquet: colour \(2\); drop"):
        list(alone)


def test_a_column_without_values_in_a_file_without_rows_is_read(tmp_path: Path) -> None:
    colours = [pyarrow.nulls(0), pyarrow.array(["red", "blue"])]
    write(tmp_path, colour=colours, y=[pyarrow.array([], pyarrow.float64()), pyarrow.array([0.0, 1.0])])
    x, y = next(iter(ParquetBatches(tmp_path, ["colour"], "y", 2)))
    assert torch.equal(x[:, 0], 1.0 - y)


@pytest.mark.parametrize("categories", [None, {"a": ["u", "v"]}, {"a": [1, 2]}])
@pytest.mark.parametrize("is_dictionary", [False, True])
@pytest.mark.parametrize("others", [[1, 2], [1.5, 2.5], [True, False]])
def test_types_that_do_not_go_together_are_named(
    tmp_path: Path, others: list[Any], is_dictionary: bool, categories: dict[str, list[Any]] | None
) -> None:
    strings, values = pyarrow.array(["u", "v"]), pyarrow.array(others)
    arrays = [pyarrow.nulls(2), strings.dictionary_encode() if is_dictionary else strings, strings, values]
    write(tmp_path, a=arrays, y=[pyarrow.array([0.0, 1.0])] * 4)
    expected = rf"column a has type string in .*1\.parquet, but {values.type} in .*3\.parquet; convert it to the same"
    with pytest.raises(ValueError, match=expected):
        ParquetBatches(tmp_path, ["a"], "y", 2, categories=categories)


def test_types_that_go_together_are_coded_alike(tmp_path: Path) -> None:
    strings = pyarrow.array(["v", "u"])
    names = [strings.cast(pyarrow.large_string()), strings, strings.dictionary_encode()]
    numbers = [pyarrow.array([7, 300], kind) for kind in (pyarrow.int16(), pyarrow.int64(), pyarrow.float64())]
    write(tmp_path, name=names, number=numbers, y=[pyarrow.array([0.0, 1.0])] * 3)
    batches = ParquetBatches(tmp_path, ["name", "number"], "y", 2, shuffle=False, categories={"number": [300, 7]})
    assert batches.categories == {"name": ["u", "v"], "number": [300, 7]}
    assert [x.tolist() for x, _ in batches] == [[[1.0, 1.0], [0.0, 0.0]]] * 3


def test_values_that_the_common_type_cannot_hold_are_named(tmp_path: Path) -> None:
    write(tmp_path, a=[pyarrow.array([0.5]), pyarrow.array([2**53 + 1])], y=[pyarrow.array([0.0])] * 2)
    batches = ParquetBatches(tmp_path, ["a"], "y", 1, categories={"a": [0.5, 2**53]})
    with pytest.raises(ValueError, match=r"column a cannot be converted to double in row group 0 of .*1\.parquet"):
        list(batches)


def test_columns_of_the_same_name_are_refused(tmp_path: Path) -> None:
    columns = [pyarrow.array([float(number)]) for number in range(4)]
    parquet.write_table(pyarrow.Table.from_arrays(columns, ["a", "b", "a", "y"]), tmp_path / "twice.parquet")
    with pytest.raises(ValueError, match=r"twice\.parquet has several columns of the same name \['a'\]; rename them"):
        ParquetBatches(tmp_path, ["b", "a"], "y", 1)
    assert next(iter(ParquetBatches(tmp_path, ["b"], "y", 1)))[0].tolist() == [[1.0]]


def test_names_may_be_in_any_container(folder: Path) -> None:
    pandas = pytest.importorskip("pandas")
    names = ["single", "number"]
    for container in (
        tuple(names),
        np.array(names),
        np.array(names, object),
        pandas.Index(names),
        iter(names),
        dict.fromkeys(names).keys(),
    ):
        x, y = next(iter(ParquetBatches(folder, container, np.str_("number"), 10)))
        assert torch.equal(x, torch.stack([10.0 * y, y], dim=-1))
    with pytest.raises(ValueError, match=r"has no column \['sngle'\]"):
        ParquetBatches(folder, np.array(["sngle"]), "number", 10)


def test_only_files_are_read(folder: Path) -> None:
    (folder / "empty.parquet").mkdir()
    inner = folder / "part.parquet"
    inner.mkdir()
    (folder / "sub" / "c.parquet").rename(inner / "0.parquet")
    assert sorted(numbers_of(ParquetBatches(folder, ["single"], "number", 100))) == list(range(NUM_ROWS))
    with pytest.raises(FileNotFoundError, match=r"there is no file \*\.parquet in "):
        ParquetBatches(folder / "empty.parquet", ["single"], "number", 10)


def test_more_shards_than_rows_are_refused_by_all_of_them(folder: Path) -> None:
    for rank in range(2):
        with pytest.raises(ValueError, match="the data have 1 rows, too few for the 2 shards"):
            ParquetBatches(folder / "b.parquet", ["single"], "number", 10, shard=(rank, 2))
    with pytest.raises(TypeError, match=r"shard must be \(rank, world_size\), two integers, got \(0, 2\.5\)"):
        ParquetBatches(folder, ["single"], "number", 10, shard=(0, 2.5))
    with pytest.raises(TypeError, match="batch_size must be an integer, got None"):
        ParquetBatches(folder, ["single"], "number", None)


def test_a_file_that_was_replaced_is_noticed(folder: Path) -> None:
    batches = ParquetBatches(folder, ["single"], "number", 100)
    list(batches)
    table = make_table(range(300))
    parquet.write_table(table.set_column(1, "single", table["number"]), folder / "b.parquet")
    for used in (batches, batches.every_row()):
        with pytest.raises(ValueError, match=r"b\.parquet was changed since it was opened; open the files again"):
            list(used)


def test_names_of_a_column_may_come_twice_and_in_any_order(folder: Path) -> None:
    x, y = next(iter(ParquetBatches(folder, ["single", "number", "single"], "number", 10)))
    assert torch.equal(x, torch.stack([10.0 * y, y, 10.0 * y], dim=-1))


@pytest.mark.parametrize("prefetch", [False, True])
def test_missing_values_are_counted_by_column(tmp_path: Path, prefetch: bool) -> None:
    table = pyarrow.table(
        {
            "number": pyarrow.array([1, None, 3, None]),
            "flag": pyarrow.array([True, False, None, True]),
            "speed": [1.0, float("nan"), float("inf"), None],
            "colour": pyarrow.array(["red", None, "red", "blue"]).dictionary_encode(),
            "fine": [0.5, 1.5, 2.5, 3.5],
            "response": [0.0, 1.0, None, 3.0],
        }
    )
    parquet.write_table(table, tmp_path / "gaps.parquet")
    names = ["fine", "number", "flag", "speed", "colour"]
    batches = ParquetBatches(tmp_path, names, "response", 4, chunk_rows=10, prefetch=prefetch)
    expected = (
        r"row group 0 of .*gaps\.parquet: number \(2\), flag \(1\), speed \(3\), colour \(1\), response \(1\); drop"
    )
    with pytest.raises(ValueError, match=expected):
        list(batches)
    assert len(list(ParquetBatches(tmp_path, ["fine"], "fine", 4))) == 1  # columns that are not used may be anything


def test_clear_errors(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no file or folder .*missing\.parquet"):
        ParquetBatches(tmp_path / "missing.parquet", ["single"], "number", 10)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"there is no file \*\.parquet in "):
        ParquetBatches(tmp_path / "empty", ["single"], "number", 10)
    with pytest.raises(ValueError, match=r"readme\.txt is not a Parquet file"):
        ParquetBatches(tmp_path / "readme.txt", ["single"], "number", 10)
    with pytest.raises(
        ValueError, match=r"a\.parquet has no column \['sngle', 'num'\]; its columns are \['number', 's"
    ):
        ParquetBatches(folder, ["sngle"], "num", 10)
    with pytest.raises(ValueError, match=r"columns that are not numbers: {'when': 'timestamp"):
        ParquetBatches(folder, ["when"], "number", 10)
    for names in ("single", None, 3, {"single"}, np.array("single")):
        with pytest.raises(TypeError, match="x_columns must be a list of names"):
            ParquetBatches(folder, names, "number", 10)
    for names in ([], iter([])):
        with pytest.raises(ValueError, match="x_columns must be a list of names, got an empty one"):
            ParquetBatches(folder, names, "number", 10)
    with pytest.raises(TypeError, match=r"x_columns: names of columns must be strings, got \[0, None\]"):
        ParquetBatches(folder, [0, "single", None], "number", 10)
    with pytest.raises(TypeError, match=r"y_column: names of columns must be strings, got \[\['number'\]\]"):
        ParquetBatches(folder, ["single"], ["number"], 10)
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        ParquetBatches(folder, ["single"], "number", 0)
    parquet.write_table(make_table([]), tmp_path / "nothing.parquet")
    with pytest.raises(ValueError, match="the data have no rows"):
        ParquetBatches(tmp_path / "nothing.parquet", ["single"], "number", 10)


def test_files_of_other_columns_are_named(folder: Path) -> None:
    parquet.write_table(pyarrow.table({"number": [1]}), folder / "odd.parquet")
    with pytest.raises(ValueError, match=r"odd\.parquet has no column \['single'\]; its columns are \['number'\]"):
        ParquetBatches(folder, ["single"], "number", 10)


def test_several_paths_are_read_in_their_order(folder: Path) -> None:
    batches = ParquetBatches([folder / "sub", str(folder / "b.parquet")], ["single"], "number", 100, shuffle=False)
    assert numbers_of(batches) == [*range(301, NUM_ROWS), 300]


def test_a_large_row_group_is_read_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "large.parquet"
    values = np.random.default_rng(0).standard_normal((1_000_000, 4))  # 32 MB in one row group, cannot be compressed
    table = pyarrow.table(dict(zip("abcd", values.T, strict=True)))
    parquet.write_table(table, path, row_group_size=len(values), use_dictionary=False)
    del table
    batches = ParquetBatches(path, ["a", "b", "c"], "d", 1000, buffer_rows=10_000)
    pool = pyarrow.default_memory_pool()
    before, largest, total = pool.bytes_allocated(), 0, 0.0
    for _, y in batches:
        largest = max(largest, pool.bytes_allocated() - before)
        total += y.double().sum().item()
    assert total == pytest.approx(values[:, 3].sum(), abs=0.1)
    assert largest < 8e6  # a reading buffer and a page or two for each column


def test_pyarrow_is_asked_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ImportError, match=r"pip install gpytorch-gam\[parquet\]"):
        ParquetBatches(folder, ["single"], "number", 10)


def test_models_train_on_them(tmp_path: Path) -> None:
    size = torch.Size([2])
    kernel = ScaleKernel(RBFKernel(batch_shape=size), batch_shape=size)
    group = ComponentGroup(kernel, [[0], [1]], regular_grid(0.0, 1.0, 8).double())
    model = AdditiveGP(AdditivePredictor(group, constant()), "block_low_rank", 4).double()
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    x = torch.rand(600, 2).double()
    y = torch.sin(6 * x[:, 0]) + x[:, 1] + 0.2 * torch.randn(600).double()
    table = pyarrow.table({"a": x[:, 0].numpy(), "b": x[:, 1].numpy(), "y": y.numpy()})
    parquet.write_table(table, tmp_path / "data.parquet", row_group_size=150)
    batches = ParquetBatches(tmp_path, ["a", "b"], "y", 100, dtype=torch.float64, buffer_rows=200, prefetch=True)
    history = fit(model, likelihood, batches, num_epochs=2, num_held_back=2).history
    assert history[1].elbo > history[0].elbo
    objective = CollapsedELBO(likelihood, model)
    best = objective.optimum(x, y).bound.item()
    assert objective.optimum_of_batches(batches).bound.item() == pytest.approx(best)
    assert polish(model, likelihood, batches)[-1] == pytest.approx(best, abs=1.0)


@pytest.mark.parametrize("column", ["numbers", "strings"])
def test_a_corrupt_page_is_reported_with_its_file(tmp_path: Path, column: str) -> None:
    values = np.arange(100.0)
    path = tmp_path / "rows.parquet"
    table = pyarrow.table({"a": values if column == "numbers" else values.astype(str), "y": values})
    parquet.write_table(table, path)
    content = bytearray(path.read_bytes())
    content[4:60] = b"\xff" * 56
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"rows\.parquet cannot be read.*columns \['a'"):
        list(ParquetBatches(path, ["a"], "y", batch_size=10))
