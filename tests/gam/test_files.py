"""An estimator in a file predicts what it did, in another process; a damaged file is an error that says so."""

from __future__ import annotations

import functools
import json
import operator
import random
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from gpytorch_gam.gam import GAMClassifier, GAMRegressor, f, s
from gpytorch_gam.gam.families import Quantile
from gpytorch_gam.gam.files import FORMAT, FileError, _checksum
from tests.two_processes import in_new_process

from .data import TERMS, fitted, responses, table


def saved(path: Path) -> Path:
    fitted().save(path / "gam.safetensors")
    return path / "gam.safetensors"


def test_a_loaded_estimator_predicts_the_same_again_and_again(tmp_path: Path) -> None:
    x, gam = table(), fitted()
    loaded = GAMRegressor.load(saved(tmp_path))
    for _ in range(2):
        for one, other in zip(gam.predict(x, return_std=True), loaded.predict(x, return_std=True), strict=True):
            np.testing.assert_allclose(other, one, atol=1e-9)
    pd.testing.assert_frame_equal(loaded.predict_terms(x), gam.predict_terms(x))
    assert loaded.get_params() == gam.get_params()
    assert loaded.result_.bound == gam.result_.bound
    assert str(loaded.summary()) == str(gam.summary())
    assert loaded.feature_names_in_.tolist() == gam.feature_names_in_.tolist()


def predictions(path: Path, x: pd.DataFrame) -> list[np.ndarray]:
    gam = GAMRegressor.load(path)
    return [gam.predict(x) for _ in range(2)]


@pytest.mark.xdist_group("distributed")
def test_another_process_predicts_the_same(tmp_path: Path) -> None:
    x = table().head(20)
    for found in in_new_process(predictions, saved(tmp_path), x):
        np.testing.assert_allclose(found, fitted().predict(x), atol=1e-9)


def test_classes_and_options_survive(tmp_path: Path) -> None:
    x = table()
    y = np.where(x.age > 50, "old", "young")
    gam = GAMClassifier("~ s(age, k=4) + site", tolerance=0.5).fit(x, y)
    gam.save(tmp_path / "c")
    loaded = GAMClassifier.load(tmp_path / "c")
    assert (loaded.predict(x) == gam.predict(x)).all()
    np.testing.assert_allclose(loaded.predict_proba(x), gam.predict_proba(x), atol=1e-9)
    with pytest.raises(FileError, match="holds a GAMClassifier: use its load"):
        GAMRegressor.load(tmp_path / "c")
    quantile = GAMRegressor([s("age", k=4)], family=Quantile(0.3), posterior="block_low_rank").fit(x, responses(x))
    quantile.save(tmp_path / "q")
    again = GAMRegressor.load(tmp_path / "q")
    assert again.family == Quantile(0.3)
    np.testing.assert_allclose(again.predict(x), quantile.predict(x), atol=1e-9)


def test_missing_levels_and_long_tails_survive(tmp_path: Path) -> None:
    x = table()[["age", "site"]].assign(income=np.exp(3 * np.random.default_rng(0).normal(size=120)))
    x.loc[:9, "site"] = None
    gam = GAMRegressor([s("income", k=5), f("site", missing="level")]).fit(x, responses(table()))
    gam.save(tmp_path / "m")
    np.testing.assert_allclose(GAMRegressor.load(tmp_path / "m").predict(x), gam.predict(x), atol=1e-9)


def test_two_hundred_corruptions_are_clear_errors(tmp_path: Path) -> None:
    whole = saved(tmp_path).read_bytes()
    chance, path = random.Random(0), tmp_path / "damaged"
    for number in range(200):
        damaged = bytearray(whole)
        if number % 4 == 0:
            damaged = damaged[: chance.randrange(len(damaged))]
        elif number % 4 == 1:
            start = chance.randrange(len(damaged))
            damaged[start : start + 16] = bytes(chance.randrange(256) for _ in range(16))
        else:  # the header is where most can go wrong
            place = chance.randrange(len(damaged) if number % 4 == 2 else 20000)
            damaged[place] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        if bytes(damaged) != whole:
            with pytest.raises(FileError, match=r"damaged|newer version"):
                GAMRegressor.load(path)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """All places in a description."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, each in inside for found in ((*path, key), *places(each, (*path, key)))]


@pytest.mark.filterwarnings("ignore")
def test_descriptions_that_make_no_sense_are_clear_errors(tmp_path: Path) -> None:
    """Files with a right checksum, such as somebody may write: one entry is left out, or something else."""
    path, chance, x = tmp_path / "gam", random.Random(1), table().head(5)
    GAMRegressor(TERMS, tolerance=5.0).fit(table(), responses(table())).save(path)
    tensors = load_file(path)
    with safe_open(path, framework="pt") as file:
        text = file.metadata()["gam"]
    num_refused = 0
    for place in chance.sample(places(json.loads(text)), 120):
        description = json.loads(text)
        *above, last = place
        holder = functools.reduce(operator.getitem, above, description)
        new = chance.choice([None, "x", -1, 10**12, float("nan"), [], {}, [[1e300]], True])
        if chance.random() < 0.3:
            del holder[last]
        else:
            holder[last] = new
        changed = json.dumps(description)
        metadata = {"format": str(FORMAT), "gam": changed, "sha256": _checksum(tensors, changed)}
        save_file(tensors, tmp_path / "changed", metadata)
        try:
            GAMRegressor.load(tmp_path / "changed").predict(x)
        except FileError as error:
            num_refused += "cannot be understood" in str(error) or "holds a" in str(error)
        except (TypeError, ValueError, LookupError, AttributeError):
            pass  # a description of another model than that of the data
    assert num_refused > 40


def test_files_of_newer_versions_and_no_files(tmp_path: Path) -> None:
    path = saved(tmp_path)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    save_file(load_file(path), path, {**metadata, "format": str(FORMAT + 1)})
    with pytest.raises(FileError, match=f"written by a newer version \\(format {FORMAT + 1}"):
        GAMRegressor.load(path)
    with pytest.raises(FileNotFoundError, match="no file"):
        GAMRegressor.load(tmp_path / "nothing")
    (tmp_path / "text").write_text(json.dumps({"a": 1}))
    with pytest.raises(FileError, match="damaged, or no file of an estimator"):
        GAMRegressor.load(tmp_path / "text")


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = saved(tmp_path)
    fitted().save(path)
    assert [each.name for each in tmp_path.iterdir()] == ["gam.safetensors"]
