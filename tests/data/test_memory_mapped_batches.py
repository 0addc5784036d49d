"""Batches from arrays on disk."""

from __future__ import annotations

import gc
import threading
import time
import tracemalloc
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import gpytorch
import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from torch import Tensor
from torch.utils.data import DataLoader

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup
from gpytorch_gam.components import regular_grid
from gpytorch_gam.data import MemoryMappedBatches
from gpytorch_gam.mlls import CollapsedELBO
from gpytorch_gam.terms import constant
from gpytorch_gam.training import fit, polish

NUM_ROWS = 1003


@pytest.fixture
def arrays() -> tuple[np.ndarray, np.ndarray]:
    """Rows that are told apart by their number: y is the number, x are multiples of it."""
    numbers = np.arange(NUM_ROWS, dtype=np.float64)
    return numbers[:, None] * np.array([1.0, 10.0, 100.0]), numbers


@pytest.fixture
def paths(arrays: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> tuple[Path, Path]:
    for name, array in zip("xy", arrays, strict=True):
        np.save(tmp_path / f"{name}.npy", array)
    return tmp_path / "x.npy", tmp_path / "y.npy"


def numbers_of(batches: object) -> list[int]:
    """Row numbers in the order in which they come; inputs are checked to be those of the row."""
    numbers: list[Tensor] = []
    for x, y in batches:  # type: ignore[attr-defined]
        assert torch.equal(x, y[:, None] * torch.tensor([1.0, 10.0, 100.0], dtype=x.dtype))
        numbers.append(y)
    return torch.cat(numbers).long().tolist()


def prefetching_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("gpytorch-gam-prefetch")]


@pytest.mark.parametrize("prefetch", [False, True])
@pytest.mark.parametrize(("buffer_rows", "chunk_rows"), [(None, None), (128, 17), (100, 500), (1, 5), (5000, 64)])
@pytest.mark.parametrize("batch_size", [64, 59, 2000])
def test_every_row_comes_once_an_epoch(
    paths: tuple[Path, Path], batch_size: int, buffer_rows: int | None, chunk_rows: int | None, prefetch: bool
) -> None:
    batches = MemoryMappedBatches(*paths, batch_size, buffer_rows=buffer_rows, chunk_rows=chunk_rows, prefetch=prefetch)
    assert batches.num_rows == batches.num_shard_rows == NUM_ROWS
    for _ in range(2):
        sizes = [len(y) for _, y in batches]
        assert len(sizes) == len(batches)
        assert set(sizes[:-1]) <= {batch_size}
        assert sorted(numbers_of(batches)) == list(range(NUM_ROWS))
    assert not prefetching_threads()


def test_orders_differ_between_epochs_and_seeds_and_are_repeated(paths: tuple[Path, Path]) -> None:
    batches, again, other = (
        MemoryMappedBatches(*paths, 50, seed=seed, buffer_rows=200, chunk_rows=20, prefetch=prefetch)
        for seed, prefetch in ((3, False), (3, True), (4, False))
    )
    orders = [numbers_of(batches) for _ in range(3)]
    assert orders[0] != orders[1] != orders[2]
    assert [numbers_of(again) for _ in range(3)] == orders
    assert numbers_of(other) != orders[0]
    batches.set_epoch(1)
    assert [numbers_of(batches) for _ in range(2)] == orders[1:]


def test_looking_at_the_iterator_spends_no_epoch(paths: tuple[Path, Path]) -> None:
    batches, again = (MemoryMappedBatches(*paths, 50) for _ in range(2))
    iter(batches)
    assert numbers_of(batches) == numbers_of(again)


def test_a_buffer_mixes_chunks_from_everywhere(paths: tuple[Path, Path]) -> None:
    batches = MemoryMappedBatches(*paths, 100, buffer_rows=200, chunk_rows=10)
    means = torch.stack([y.mean() for _, y in batches])
    # Twenty chunks a buffer: batch means spread like means of some twenty draws, not like those of whole runs (289).
    assert means[:-1].std() < 150
    first = next(iter(batches))[1]
    assert len({int(number) // 10 for number in first}) >= 18


def test_without_shuffling_rows_come_in_order(paths: tuple[Path, Path]) -> None:
    batches = MemoryMappedBatches(*paths, 64, shuffle=False, buffer_rows=128, chunk_rows=17)
    for _ in range(2):
        assert numbers_of(batches) == list(range(NUM_ROWS))


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
def test_shards_are_disjoint_and_complete(paths: tuple[Path, Path], world_size: int, shuffle: bool) -> None:
    shards = [
        MemoryMappedBatches(*paths, 32, shuffle, shard=(rank, world_size), buffer_rows=96, chunk_rows=11)
        for rank in range(world_size)
    ]
    found = [numbers_of(shard) for shard in shards]
    assert sorted(chain.from_iterable(found)) == list(range(NUM_ROWS))
    assert max(map(len, found)) - min(map(len, found)) <= 1
    for shard, numbers in zip(shards, found, strict=True):
        assert shard.num_rows == NUM_ROWS
        assert shard.num_shard_rows == len(numbers)
        assert len(shard) == len(list(shard)) == len(shards[0])


@pytest.mark.parametrize("buffer_rows", [50, 5000])
def test_shards_have_equally_many_batches_where_one_has_no_rest(
    arrays: tuple[np.ndarray, np.ndarray], buffer_rows: int
) -> None:
    x, y = (array[:201] for array in arrays)  # 100 and 101 rows
    shards = [MemoryMappedBatches(x, y, 50, shard=(rank, 2), buffer_rows=buffer_rows) for rank in range(2)]
    assert [[len(rows) for _, rows in shard] for shard in shards] == [[50, 49, 1], [50, 50, 1]]
    assert [len(shard) for shard in shards] == [3, 3]


def test_dropped_ends_are_equal_for_all_shards_and_other_rows_each_time(paths: tuple[Path, Path]) -> None:
    # 1003 rows in four shards: 250, 251, 251, 251
    shards = [MemoryMappedBatches(*paths, 25, drop_last=True, shard=(rank, 4), buffer_rows=75) for rank in range(4)]
    assert {len(shard) for shard in shards} == {10}
    assert all(len(y) == 25 for shard in shards for _, y in shard)
    whole = MemoryMappedBatches(*paths, 100, drop_last=True)
    epochs = [numbers_of(whole) for _ in range(2)]
    assert [len(set(numbers)) for numbers in epochs] == [1000, 1000]
    assert set(epochs[0]) != set(epochs[1])
    assert numbers_of(whole.every_row()) == list(range(NUM_ROWS))
    assert len(whole) == 10  # the object itself is left as it was


@pytest.mark.parametrize("stored", [np.float64, np.float32, ">f8", np.int16, np.uint16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, None])
def test_batches_have_the_dtype_that_is_asked_for(
    arrays: tuple[np.ndarray, np.ndarray], tmp_path: Path, stored: object, dtype: torch.dtype | None
) -> None:
    x, y = arrays
    np.save(tmp_path / "x.npy", (x[:, :1] % 30000).astype(stored))
    batches = MemoryMappedBatches(tmp_path / "x.npy", y.astype(stored), 100, dtype=dtype, device="cpu")
    for rows in batches:
        assert {part.dtype for part in rows} == {torch.float32 if dtype is None else dtype}
        assert torch.equal(rows[0][:, 0], rows[1])


def test_booleans_are_numbers(arrays: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = arrays
    labels = torch.cat([labels for _, labels in MemoryMappedBatches(x, y > 500, 100, shuffle=False)])
    assert labels.tolist() == [float(number > 500) for number in range(NUM_ROWS)]


class Sliced:
    """What h5py and zarr give: shape, dtype and slices, but no array."""

    def __init__(self, array: np.ndarray) -> None:
        self.shape, self.dtype, self._array = array.shape, array.dtype, array

    def __getitem__(self, rows: slice) -> np.ndarray:
        assert isinstance(rows, slice)
        return self._array[rows].copy()


def test_anything_with_slices_is_read(arrays: tuple[np.ndarray, np.ndarray], paths: tuple[Path, Path]) -> None:
    expected = numbers_of(MemoryMappedBatches(*paths, 50))
    x, y = arrays
    tensors = torch.from_numpy(x), torch.from_numpy(y)
    maps = [np.load(path, mmap_mode="r") for path in paths]
    for sources in ((x, y), (Sliced(x), Sliced(y)), tensors, maps, [str(path) for path in paths]):
        assert numbers_of(MemoryMappedBatches(*sources, 50)) == expected


def test_columns_that_are_stored_one_after_the_other_are_read(
    arrays: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    np.save(tmp_path / "x.npy", np.asfortranarray(arrays[0]))
    assert sorted(numbers_of(MemoryMappedBatches(tmp_path / "x.npy", arrays[1], 50))) == list(range(NUM_ROWS))


def test_batches_stay_what_they_were(paths: tuple[Path, Path]) -> None:
    kept = list(MemoryMappedBatches(*paths, 50, buffer_rows=50, prefetch=True))
    assert sorted(numbers_of(kept)) == list(range(NUM_ROWS))


@pytest.mark.parametrize("prefetch", [False, True])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, prefetch: bool) -> None:
    for name, shape in (("x", (400_000, 4)), ("y", (400_000,))):  # 16 MB
        np.save(tmp_path / f"{name}.npy", np.ones(shape))
    batches = MemoryMappedBatches(
        tmp_path / "x.npy", tmp_path / "y.npy", 1000, buffer_rows=10_000, prefetch=prefetch, dtype=torch.float64
    )
    tracemalloc.start()
    try:
        total = sum(len(y) for _, y in batches)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert total == 400_000
    buffer = 10_000 * 5 * 8  # bytes
    # The order of the chunks and of a buffer, the chunk, and what Python needs, beside the buffers.
    assert buffer <= peak < (3 if prefetch else 2) * buffer


@pytest.mark.parametrize("num_taken", [0, 1, 7])
def test_an_abandoned_iterator_leaves_no_thread(paths: tuple[Path, Path], num_taken: int) -> None:
    batches = MemoryMappedBatches(*paths, 10, buffer_rows=50, prefetch=True)
    iterator = iter(batches)
    for _ in range(num_taken):
        next(iterator)
    assert len(prefetching_threads()) == (num_taken > 0)
    del iterator
    gc.collect()
    assert not prefetching_threads()
    assert sorted(numbers_of(batches)) == list(range(NUM_ROWS))


def test_an_error_in_the_loop_ends_the_thread(paths: tuple[Path, Path]) -> None:
    def train() -> None:
        for _ in MemoryMappedBatches(*paths, 10, buffer_rows=50, prefetch=True):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train()
    gc.collect()
    assert not prefetching_threads()


class Failing(Sliced):
    """A disk that breaks after a while."""

    def __getitem__(self, rows: slice) -> np.ndarray:
        if rows.start >= 500:
            raise OSError("the disk is gone")
        return super().__getitem__(rows)


@pytest.mark.parametrize("prefetch", [False, True])
def test_errors_of_the_source_reach_the_loop(arrays: tuple[np.ndarray, np.ndarray], prefetch: bool) -> None:
    batches = MemoryMappedBatches(Failing(arrays[0]), arrays[1], 10, False, buffer_rows=50, prefetch=prefetch)
    taken = 0
    with pytest.raises(OSError, match="the disk is gone"):
        for _, y in batches:
            taken += len(y)
    assert 400 <= taken <= 500
    gc.collect()
    assert not prefetching_threads()


class Slow(Sliced):
    """Counts the slices that were read, and takes its time."""

    count = 0

    def __getitem__(self, rows: slice) -> np.ndarray:
        time.sleep(0.001)
        self.count += 1
        return super().__getitem__(rows)


@pytest.mark.parametrize(("prefetch", "num_buffers"), [(False, 1), (True, 2)])
def test_one_buffer_is_read_ahead(arrays: tuple[np.ndarray, np.ndarray], prefetch: bool, num_buffers: int) -> None:
    source = Slow(arrays[0])
    iterator = iter(MemoryMappedBatches(source, arrays[1], 50, buffer_rows=100, chunk_rows=10, prefetch=prefetch))
    next(iterator)
    time.sleep(0.2)
    assert source.count in (10 * num_buffers, 10 * num_buffers + 1)  # one more where the chunk of the odd end came
    del iterator


@pytest.mark.parametrize(
    ("bad_x", "bad_y", "message"),
    [
        (float("nan"), 0.0, r"rows \d+ to \d+: column 1 of x \(1\)"),
        (0.0, float("inf"), r"rows \d+ to \d+: y \(1\)"),
        (1e300, 0.0, r"column 1 of x \(1\)"),
    ],
)
@pytest.mark.parametrize("prefetch", [False, True])
def test_values_that_no_model_takes_are_refused(
    arrays: tuple[np.ndarray, np.ndarray], bad_x: float, bad_y: float, message: str, prefetch: bool
) -> None:
    x, y = arrays
    x[77, 1] += bad_x
    y[77] += bad_y
    with pytest.raises(ValueError, match=message):
        list(MemoryMappedBatches(x, y, 50, prefetch=prefetch))


@pytest.mark.parametrize(
    "change",
    [lambda x: x.to(torch.bfloat16), lambda x: x.to(torch.float8_e5m2), lambda x: x.to_sparse()],
)
def test_tensors_that_numpy_does_not_have_are_refused(
    arrays: tuple[np.ndarray, np.ndarray], change: Callable[[Tensor], Tensor]
) -> None:
    x, y = map(torch.from_numpy, arrays)
    with pytest.raises(ValueError, match=r"x is a tensor of dtype torch\.\w+ and layout torch\.\w+, which NumPy lacks"):
        MemoryMappedBatches(change(x), y, 10)
    with pytest.raises(ValueError, match="y is a tensor of dtype"):
        MemoryMappedBatches(x, change(y), 10)
    assert len(next(iter(MemoryMappedBatches(x.requires_grad_(), y.half(), 10)))[1]) == 10


class OtherDtype(Sliced):
    """A dtype of another library."""

    dtype = object()

    def __init__(self, array: np.ndarray) -> None:
        self.shape = array.shape


def test_dtypes_of_other_libraries_are_refused(arrays: tuple[np.ndarray, np.ndarray]) -> None:
    with pytest.raises(ValueError, match="x must hold numbers, got dtype <object object"):
        MemoryMappedBatches(OtherDtype(arrays[0]), arrays[1], 10)


def test_clear_errors(arrays: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    x, y = arrays
    for sources, message in (
        ((x, y[:-1]), "x has 1003 rows, but y has 1002 entries"),
        ((x[:, 0], y), r"x must have shape \(N, D\), got \(1003,\)"),
        ((x[:, :0], y), r"x must have shape \(N, D\), got \(1003, 0\)"),
        ((x, y[:, None]), r"y must have shape \(N,\), got \(1003, 1\)"),
        ((x.astype(object), y), "x must hold numbers, got dtype object"),
        ((x, y.astype(str)), "y must hold numbers, got dtype <U"),
        ((x.astype(complex), y), "x must hold numbers, got dtype complex128"),
        ((x[:0], y[:0]), "the data have no rows"),
    ):
        with pytest.raises(ValueError, match=message):
            MemoryMappedBatches(*sources, 10)
    with pytest.raises(TypeError, match=r"x must be the path of a \.npy file or an array .* got list"):
        MemoryMappedBatches([[1.0]], y, 10)
    with pytest.raises(FileNotFoundError, match=r"y: there is no file .*missing\.npy"):
        MemoryMappedBatches(x, tmp_path / "missing.npy", 10)
    (tmp_path / "text.npy").write_text("1, 2, 3\n")
    with pytest.raises(ValueError, match=r"x: .*text\.npy cannot be mapped"):
        MemoryMappedBatches(tmp_path / "text.npy", y, 10)
    np.save(tmp_path / "objects.npy", x.astype(object))
    with pytest.raises(ValueError, match=r"x: .*objects\.npy cannot be mapped: .*objects"):
        MemoryMappedBatches(tmp_path / "objects.npy", y, 10)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"batch_size": 10.5}, "batch_size must be an integer, got 10.5"),
        ({"batch_size": None}, "batch_size must be an integer, got None"),
        ({"batch_size": "10"}, "batch_size must be an integer, got '10'"),
        ({"batch_size": True}, "batch_size must be an integer, got True"),
        ({"seed": None}, "seed must be an integer, got None"),
        ({"chunk_rows": 2.0}, "chunk_rows must be an integer, got 2.0"),
        ({"buffer_rows": -1}, "buffer_rows must be at least 1"),
        ({"chunk_rows": 0}, "chunk_rows must be at least 1"),
        ({"seed": -1}, "seed must not be negative"),
        ({"dtype": torch.float16}, "dtype must be torch.float32 or torch.float64, got torch.float16"),
        ({"shard": (2, 2)}, r"0 <= rank < world_size, got \(2, 2\)"),
        *(
            ({"shard": shard}, r"shard must be \(rank, world_size\), two integers, got ")
            for shard in ((0, 2.5), ("0", "2"), (0, 1, 2), (0,), "02", 2, (False, True), (None, 2))
        ),
        ({"shard": [1002, 1003]}, None),
        ({"shard": (torch.tensor(0), np.int8(100)), "batch_size": np.uint8(11), "seed": np.int64(1)}, None),
        # in every process, or those with a row would wait for the others
        ({"shard": (2000, 2001)}, "the data have 1003 rows, too few for the 2001 shards"),
        ({"shard": (0, 2001)}, "the data have 1003 rows, too few for the 2001 shards"),
        ({"batch_size": 1004, "drop_last": True}, "there is no batch: .* 1003 of 1003 rows"),
    ],
)
def test_arguments_out_of_range(
    arrays: tuple[np.ndarray, np.ndarray], arguments: dict[str, object], message: str | None
) -> None:
    if message is None:
        assert len(MemoryMappedBatches(*arrays, **{"batch_size": 10, **arguments})) == 1
        return
    with pytest.raises((TypeError, ValueError), match=message):
        MemoryMappedBatches(*arrays, **{"batch_size": 10, **arguments})


def test_a_negative_epoch_is_refused(paths: tuple[Path, Path]) -> None:
    with pytest.raises(ValueError, match="epoch must not be negative, got -1"):
        MemoryMappedBatches(*paths, 10).set_epoch(-1)


def test_an_array_that_lost_rows_is_noticed(arrays: tuple[np.ndarray, np.ndarray]) -> None:
    source = Sliced(arrays[0])
    batches = MemoryMappedBatches(source, arrays[1], 10)
    source._array = source._array[:500]
    with pytest.raises(ValueError, match="x has fewer rows than when it was opened"):
        list(batches)


def test_a_file_that_lost_rows_is_noticed(arrays: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", arrays[0])
    batches = MemoryMappedBatches(tmp_path / "x.npy", arrays[1], 10)
    np.save(tmp_path / "x.npy", arrays[0][:500])
    with pytest.raises(ValueError, match=r"x\.npy was changed since it was opened: .* now it has shape \(500, 3\)"):
        list(batches)


def test_a_file_that_lost_rows_in_an_epoch_is_noticed(
    arrays: tuple[np.ndarray, np.ndarray], paths: tuple[Path, Path]
) -> None:
    batches = iter(MemoryMappedBatches(*paths, 10, shuffle=False, buffer_rows=10))
    next(batches)
    np.save(paths[0], arrays[0][:500])
    with pytest.raises(ValueError, match=r"x\.npy is shorter than when it was opened"):
        list(batches)


@pytest.mark.parametrize("prefetch", [False, True])
@pytest.mark.parametrize(
    ("name", "change", "found"),
    [
        ("x", np.asfortranarray, "dtype <f8 and order F"),
        ("x", lambda x: x.view(np.int64), "dtype <i8 and order C"),
        ("y", lambda y: y.astype(">f8"), "dtype >f8"),
        ("y", lambda y: y[:, None], r"shape \(1003, 1\)"),
    ],
)
def test_a_file_of_the_same_size_but_another_layout_is_noticed(
    paths: tuple[Path, Path], name: str, change: Callable[[np.ndarray], np.ndarray], found: str, prefetch: bool
) -> None:
    batches = MemoryMappedBatches(*paths, 10, prefetch=prefetch)
    list(batches)
    path = paths["xy".index(name)]
    size, array = path.stat().st_size, np.load(path)
    np.save(path, change(array))
    assert path.stat().st_size == size
    for used in (batches, batches.every_row()):
        with pytest.raises(ValueError, match=rf"{name}\.npy was changed since it was opened: .* now it has .*{found}"):
            list(used)
    path.write_bytes(bytes(size))
    with pytest.raises(ValueError, match=rf"{name}\.npy was changed since it was opened, and cannot be mapped"):
        list(batches)
    np.save(path, array)  # as it was
    assert len(list(batches)) == len(batches)


def test_models_train_on_them(tmp_path: Path) -> None:
    size = torch.Size([2])
    kernel = ScaleKernel(RBFKernel(batch_shape=size), batch_shape=size)
    group = ComponentGroup(kernel, [[0], [1]], regular_grid(0.0, 1.0, 8).double())
    model = AdditiveGP(AdditivePredictor(group, constant()), "block_low_rank", 4).double()
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    x = torch.rand(600, 2).double()
    y = torch.sin(6 * x[:, 0]) + x[:, 1] + 0.2 * torch.randn(600).double()
    np.save(tmp_path / "x.npy", x.numpy())
    np.save(tmp_path / "y.npy", y.numpy())
    batches = MemoryMappedBatches(
        tmp_path / "x.npy", tmp_path / "y.npy", 100, dtype=torch.float64, buffer_rows=200, prefetch=True
    )
    history = fit(model, likelihood, batches, num_epochs=2, num_held_back=2).history
    assert history[1].elbo > history[0].elbo
    objective = CollapsedELBO(likelihood, model)
    best = objective.optimum(x, y).bound.item()
    assert objective.optimum_of_batches(batches).bound.item() == pytest.approx(best)
    dropping = MemoryMappedBatches(tmp_path / "x.npy", tmp_path / "y.npy", 350, dtype=torch.float64, drop_last=True)
    assert objective.optimum_of_batches(dropping).bound.item() == pytest.approx(best)
    for all_rows in (batches, dropping):
        assert polish(model, likelihood, all_rows)[-1] == pytest.approx(best, abs=1.0)


@pytest.mark.parametrize("options", [{}, {"batch_size": None}, {"shuffle": True}])
def test_a_loader_around_the_batches_is_an_error_with_the_remedy(options: dict) -> None:
    batches = MemoryMappedBatches(np.zeros((20, 2)), np.zeros(20), batch_size=5)
    with pytest.raises(TypeError, match=r"MemoryMappedBatches makes batches itself .* in place of a DataLoader"):
        next(iter(DataLoader(batches, **options)))
