"""Rows that are read in parts give the fit of the whole, in memory that does not grow with their number."""

from __future__ import annotations

import resource
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gpytorch_gam.gam import GAMClassifier, GAMRegressor, f, families, linear, re, s
from gpytorch_gam.gam import streams as module
from gpytorch_gam.gam.columns import LevelEncoding, NumberEncoding
from gpytorch_gam.gam.design import Design
from gpytorch_gam.gam.families import Units
from gpytorch_gam.gam.options import Options
from gpytorch_gam.gam.stream_fit import EncodedBatches, Rows
from gpytorch_gam.gam.streams import stream_of
from gpytorch_gam.gam.survey import survey
from tests.two_processes import in_new_process

from .data import responses, table

FORMULA = "y ~ s(age, k=6) + f(site)"


def rows() -> pd.DataFrame:
    x = table()[["age", "site", "hour"]]
    return x.assign(y=responses(table()), w=np.arange(len(x)) % 3, o=np.linspace(-1, 1, len(x)))


def parts(x: pd.DataFrame, size: int = 50) -> list[pd.DataFrame]:
    return [x.iloc[start : start + size] for start in range(0, len(x), size)]


class Again:
    """An iterable that begins anew each time."""

    def __init__(self, tables: list[pd.DataFrame]) -> None:
        self.tables = tables

    def __iter__(self) -> Iterator[pd.DataFrame]:
        yield from self.tables


def check_same(one: GAMRegressor, other: GAMRegressor, atol: float = 1e-6) -> None:
    x = rows()
    assert one.n_rows_ == other.n_rows_
    assert one.result_.bound == pytest.approx(other.result_.bound, abs=1e-3)
    for first, second in zip(one.predict(x, return_std=True), other.predict(x, return_std=True), strict=True):
        np.testing.assert_allclose(first, second, atol=atol)


def whole() -> GAMRegressor:
    return GAMRegressor(FORMULA, hyperparameters="point").fit(rows())


def test_lists_and_iterables_of_tables() -> None:
    expected = whole()
    for data in (parts(rows()), Again(parts(rows()))):
        found = GAMRegressor(FORMULA).fit(data)
        check_same(found, expected)
        assert found.deviance_explained_ == pytest.approx(expected.deviance_explained_)
        mean, deviation = found.predict(data, return_std=True)
        np.testing.assert_allclose(mean, found.predict(rows()))
        assert deviation.shape == (len(rows()),)
    terms = found.predict_terms(Again(parts(rows())))
    pd.testing.assert_frame_equal(terms, found.predict_terms(rows()))


def test_parquet_files_folders_and_datasets(tmp_path: Path) -> None:
    dataset = pytest.importorskip("pyarrow.dataset")
    expected = whole()
    (tmp_path / "folder").mkdir()
    rows().iloc[:70].to_parquet(tmp_path / "folder" / "1.parquet", row_group_size=30)
    rows().iloc[70:].to_parquet(tmp_path / "folder" / "2.parquet")
    opened = dataset.dataset(tmp_path / "folder")
    for data in (tmp_path / "folder", str(tmp_path / "folder"), opened):
        check_same(GAMRegressor(FORMULA).fit(data), expected)
    some = GAMRegressor(FORMULA).fit(opened.filter(dataset.field("age") < 50))
    assert some.n_rows_ == (rows().age < 50).sum()
    assert len(expected.predict(tmp_path / "folder" / "1.parquet")) == 70


def test_columns_stand_for_weights_and_offsets() -> None:
    x = rows()
    expected = GAMRegressor([s("age", k=6), f("site")], hyperparameters="point").fit(x, x.y, x.w, offset=x.o)
    named = GAMRegressor([s("age", k=6), f("site")], hyperparameters="point").fit(x, "y", "w", offset="o")
    streamed = GAMRegressor([s("age", k=6), f("site")]).fit(parts(x), "y", "w", offset="o")
    for found in (named, streamed):
        assert found.n_rows_ == (x.w > 0).sum()
        np.testing.assert_allclose(found.predict(x, offset="o"), expected.predict(x, offset=x.o), atol=1e-6)
    np.testing.assert_allclose(streamed.predict(parts(x), offset="o"), streamed.predict(x, offset=x.o))


def test_automatic_terms_leave_out_what_is_named() -> None:
    x = rows()
    for data in (x, parts(x)):
        gam = GAMRegressor(num_inducing=5, tolerance=1.0).fit(data, "y", "w", offset="o")
        assert gam.terms_ == ["s(age)", "f(site)", "s(hour)"]
        assert gam.feature_names_in_.tolist() == ["age", "site", "hour"]
        without = gam.predict(x[["age", "site", "hour"]])
        np.testing.assert_allclose(gam.predict(x, offset=0.0), without)
        np.testing.assert_allclose(gam.predict(x), without + x.o)


def test_classes_of_all_parts() -> None:
    x = rows().assign(y=lambda x: np.where(x.y > 1.2, "high", "low")).sort_values("y", ignore_index=True)
    gam = GAMClassifier("y ~ s(age, k=5)", tolerance=0.5).fit(parts(x, 20))
    assert gam.classes_.tolist() == ["high", "low"]
    np.testing.assert_allclose(gam.predict_proba(parts(x)), gam.predict_proba(x))


def test_minibatches_have_each_row_once_in_random_order() -> None:
    x = rows()[["age", "y", "w"]].reset_index(names="number")
    pieces, _ = stream_of(parts(x, 7), {}) or (None, None)
    design = Design([[linear("number")]], ("mean",), "matern52", None, "error", (True,))
    design.learn_columns(x, np.ones(len(x)))
    example = Rows(x, x.y.to_numpy(), x.w.to_numpy(float), {})
    options = Options("minibatches", 0.05, "auto", "cpu", False, 0, "point")

    def reader(frame: pd.DataFrame) -> Rows:
        return Rows(frame, frame.y.to_numpy(), frame.w.to_numpy(float), {})

    batches = EncodedBatches(
        design, families.Gaussian(), Units(1.0, 2.0), pieces, None, len(x), reader, example, options
    )
    centre, scale = (getattr(design.encoding("number", "line"), name) for name in ("centre", "scale"))
    for source, is_shuffled in ((batches, True), (batches.every_row(), False)):
        inputs, y, arguments = next(iter(source))
        order = (inputs[:, 0] * scale + centre).round().int().tolist()
        assert sorted(order) == list(range(len(x)))
        assert (order != sorted(order)) == is_shuffled
        np.testing.assert_allclose(y, (x.y[order] - 1.0) / 2.0)
        np.testing.assert_allclose(arguments["weights"], x.w[order])


def test_large_arrays_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MANY_ROWS", 100)
    monkeypatch.setattr(module, "_ROWS_AT_A_TIME", 64)
    x = table()[["age", "hour"]].to_numpy(np.float32)
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    y, weights = responses(table()), np.arange(len(x)) % 2
    expected = GAMRegressor([s("x0", k=6)], hyperparameters="point").fit(x, y, weights, offset=0.1 * x[:, 1])
    found = GAMRegressor([s("x0", k=6)]).fit(mapped, y[:, None], pd.Series(weights), offset=0.1 * mapped[:, 1])
    np.testing.assert_allclose(found.predict(x), expected.predict(x), atol=1e-6)
    np.testing.assert_allclose(found.predict(mapped, offset=y), found.predict(x, offset=y))
    assert not hasattr(found, "feature_names_in_")
    with pytest.raises(ValueError, match=r"X has 120 rows, but y has 119"):
        GAMRegressor([s("x0", k=6)]).fit(mapped, y[1:])


# ------------------------------------------------------------------ the first look


def test_a_survey_has_every_level_range_and_hole() -> None:
    random = np.random.default_rng(0)
    x = pd.DataFrame({"a": random.standard_t(2, 4000), "g": random.integers(0, 5, 4000), "t": "usual"})
    x.loc[1234, "t"], x.loc[3999, "g"], x.loc[17, "a"] = "rare", 77, np.nan
    found = survey(parts(x, 300), {"g"}, 0, size=500)
    assert (len(found.sample), found.num_rows, found.missing) == (500, 4000, {"a": 1, "g": 0, "t": 0})
    every = NumberEncoding.of(x.a)
    sampled = NumberEncoding.of(found.frame.a, found.weights(np.ones(500)))
    assert (sampled.low, sampled.high, sampled.num_values) == (every.low, every.high, every.num_values)
    by_hand = NumberEncoding.of(found.sample.a)
    assert (sampled.centre, sampled.scale) == (by_hand.centre, by_hand.scale)  # not moved by the other rows
    assert sampled.scale == pytest.approx(every.scale, rel=0.2)
    for name in ("g", "t"):
        assert LevelEncoding.of(found.frame[name]) == LevelEncoding.of(x[name])
    assert found.frame.a.isna().any()


def test_a_sample_is_uniform() -> None:
    counts = np.zeros(60)
    for seed in range(60):
        counts[survey(parts(pd.DataFrame({"a": range(60)}), 20), (), seed, size=20).sample.a] += 1
    assert abs(counts - 20).max() < 5 * np.sqrt(60 * 2 / 9)  # five standard deviations


def test_a_small_stream_is_its_own_sample() -> None:
    x = rows()
    found = survey(parts(x), (), 0)
    pd.testing.assert_frame_equal(found.frame, x)


# ------------------------------------------------------------------ mistakes


def test_what_cannot_be_read_in_parts(tmp_path: Path) -> None:
    x = rows()
    gam = GAMRegressor(FORMULA)
    with pytest.raises(TypeError, match="generator, which can be gone through only once"):
        gam.fit(each for each in parts(x))
    with pytest.raises(TypeError, match=r"y must be the name of a column, as X is read in parts"):
        gam.fit(parts(x), x.y)
    with pytest.raises(ValueError, match="y is the column 'z', which X does not have"):
        gam.fit(x, "z")
    with pytest.raises(TypeError, match="X is an array: pass the values"):
        gam.fit(x[["age"]].to_numpy(), "y")
    with pytest.raises(ValueError, match=r"X lacks the columns \['z'\]"):
        GAMRegressor("z ~ s(age)").fit(parts(x))
    with pytest.raises(ValueError, match="requires y"):
        GAMRegressor().fit(parts(x))
    with pytest.raises(ValueError, match="hyperparameters must be 'auto' or 'point' where X is read in parts"):
        GAMRegressor(FORMULA, hyperparameters="integrated").fit(parts(x))
    with pytest.raises(FileNotFoundError, match="X is a path, and there is no file"):
        gam.fit(tmp_path / "nothing.parquet")
    with pytest.raises(TypeError, match="gives tables one after the other, got"):
        gam.fit(Again([1.0]))  # type: ignore[list-item]
    with pytest.raises(ValueError, match="X has no rows"):
        gam.fit([x[:0]])
    with pytest.raises(TypeError, match="X must be a table in memory here"):
        whole().check("data.parquet", x.y)
    assert stream_of(x.to_numpy().tolist(), {}) is None


def test_other_files_than_parquet(tmp_path: Path) -> None:
    dataset = pytest.importorskip("pyarrow.dataset")
    rows().to_csv(tmp_path / "x.csv", index=False)
    with pytest.raises(ValueError, match=r"is no Parquet file; of other formats give the dataset"):
        GAMRegressor(FORMULA).fit(tmp_path / "x.csv")
    check_same(GAMRegressor(FORMULA).fit(dataset.dataset(tmp_path / "x.csv", format="csv")), whole())


def test_parts_that_do_not_fit_together() -> None:
    x = rows()
    with pytest.raises(TypeError, match="'site' holds text in some tables of X and number in others"):
        GAMRegressor(FORMULA).fit([x, x.assign(site=1.0)])
    with pytest.raises(ValueError, match=r"other columns than the first: \['z'\]"):
        GAMRegressor().fit([x, x.assign(z=1.0)], "y")
    sites = [pd.CategoricalDtype(names, ordered=True) for names in (["Bergen", "Oslo", "Voss"], ["Voss", "Oslo"])]
    with pytest.raises(ValueError, match="ordered category with other categories"):
        GAMRegressor(FORMULA).fit([x.assign(site=pd.Categorical(["Oslo"] * len(x), dtype=kind)) for kind in sites])
    holes = x.assign(age=x.age.where(x.age > 30))
    with pytest.raises(ValueError, match=f"'age' has NaN in {(x.age <= 30).sum()} of 120 rows"):
        GAMRegressor(FORMULA).fit(parts(holes))
    with pytest.raises(ValueError, match="Input y contains NaN"):
        GAMRegressor(FORMULA).fit(parts(x.assign(y=x.y.where(x.age > 30))))
    with pytest.raises(ValueError, match="sample_weight must not be negative, but is in 40 rows"):
        GAMRegressor(FORMULA).fit([x.assign(w=x.w - 1)], sample_weight="w")


class Made:
    """Tables that are made when they are read."""

    def __init__(self, num_parts: int) -> None:
        self.num_parts = num_parts

    def __iter__(self) -> Iterator[pd.DataFrame]:
        for part in range(self.num_parts):
            random = np.random.default_rng(part)
            x = pd.DataFrame({name: random.normal(size=20000) for name in "abcdefgh"})
            yield x.assign(y=np.sin(x.a) + random.normal(size=20000))


def added_memory(num_parts: int) -> float:
    """By how many MiB the memory of a process grows where many parts are read after few."""
    warnings.simplefilter("ignore")
    peaks = []
    for number in (2, num_parts):
        gam = GAMRegressor("y ~ s(a, k=4)", method="bins", tolerance=1.0).fit(Made(number))
        gam.predict(Made(2))
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    assert gam.n_rows_ == 20000 * num_parts
    return peaks[1] - peaks[0]


@pytest.mark.xdist_group("distributed")
def test_memory_does_not_grow_with_the_rows() -> None:
    """300,000 rows of nine columns are 22 MB, and a single copy of them is noticed."""
    assert in_new_process(added_memory, 15) < 15


def test_unseen_levels_are_those_of_all_parts() -> None:
    x = rows().assign(group=[f"g{index % 40}" for index in range(len(rows()))])
    gam = GAMRegressor([s("age", k=5), re("group")], tolerance=1.0).fit(parts(x, 10), "y")
    assert len(gam.model_.predictor.names) == 4
    assert not gam.outside_range(parts(x)).any(axis=None)
