"""Levels of categorical columns: codes, labels and what is refused."""

from __future__ import annotations

import copy
import math
import pickle
import re
from fractions import Fraction
from typing import Literal

import gpytorch
import numpy as np
import pandas as pd
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup
from gpytorch_gam.components import Levels, regular_grid
from gpytorch_gam.kernels import CentredKernel, LevelKernel, OrdinalKernel
from gpytorch_gam.training.discretized import ColumnBins
from tests.problems import fit_by_bins

NAN = float("nan")


def test_strings_are_numbered_in_the_order_of_the_alphabet() -> None:
    levels = Levels.from_values(["Oslo", "Bergen", "Oslo", "Bodø"])
    assert levels.labels == ("Bergen", "Bodø", "Oslo")
    assert levels.codes == (0.0, 1.0, 2.0)
    assert len(levels) == 3
    assert levels.label(2.0) == "Oslo"
    encoded = levels.encode(["Oslo", "Bergen"])
    assert encoded.dtype == torch.float64
    assert encoded.tolist() == [2.0, 0.0]


@pytest.mark.parametrize(
    "values",
    [
        [3, -1, 3, 0],
        (3.0, -1.0, -0.0),
        np.array([3, -1, 0], dtype=np.int16),
        np.array([3, -1, 0], dtype=np.float32),
        torch.tensor([3, -1, 0]),
        torch.tensor([3.0, -1.0, 0.0], dtype=torch.bfloat16),
        torch.tensor([3.0, -1.0, 0.0], requires_grad=True),
        pd.Series([3, -1, 0], dtype="Int64"),
        {3: "a", -1: "b", 0: "c"}.keys(),
        [Fraction(3), np.int64(-1), False],
    ],
)
def test_numbers_are_their_own_codes(values: object) -> None:
    levels = Levels.from_values(values)
    assert levels.codes == (-1.0, 0.0, 3.0)
    assert levels.labels == ("-1", "0", "3")
    assert not any(math.copysign(1, code) < 0 for code in levels.codes if code == 0)


@pytest.mark.parametrize(
    "values",
    [
        ["b", "a"],
        np.array(["b", "a"]),
        np.array(["b", "a"], dtype=object),
        pd.Series(["b", "a"]),
        pd.Series(["b", "a"], dtype="category"),
        pd.Series(["b", "a"], dtype="string"),
    ],
)
def test_strings_come_from_any_container(values: object) -> None:
    levels = Levels.from_values(values)
    assert levels.labels == ("a", "b")
    assert levels.encode(values).tolist() == [1.0, 0.0]


def test_booleans_are_zero_and_one() -> None:
    for values in ([True, False], np.array([True, False]), torch.tensor([True, False])):
        levels = Levels.from_values(values)
        assert (levels.codes, levels.labels) == ((0.0, 1.0), ("False", "True"))
        assert levels.encode(values).tolist() == [1.0, 0.0]


def test_fractions_keep_their_labels_and_codes() -> None:
    levels = Levels.from_values([0.5, -2.25, 1e-3])
    assert levels.labels == ("-2.25", "0.001", "0.5")
    assert levels.encode(np.array([0.5, 0.001])).tolist() == [0.5, 0.001]


@pytest.mark.parametrize("unseen", ["error", "new"])
def test_fractions_are_one_level_in_float32_and_float64(unseen: Literal["error", "new"]) -> None:
    levels = Levels.of([0.1, -0.7])
    assert levels.encode(torch.tensor([-0.7, 0.1, NAN], dtype=torch.float32), unseen)[:2].tolist() == [-0.7, 0.1]
    rounded = Levels.from_values(torch.tensor([0.1, -0.7], dtype=torch.float32))
    assert rounded.encode([0.1, -0.7], unseen).tolist() == [rounded.codes[1], rounded.codes[0]]
    named = Levels(rounded.codes, ("-0.7", "0.1"))
    assert named.encode([0.1], unseen).tolist() == [named.codes[1]]


def test_numbers_beyond_single_precision_are_not_mistaken_for_a_level() -> None:
    for stranger in (2.0**24 + 1, 1e300, math.inf):
        with pytest.raises(ValueError, match="none of the levels"):
            Levels((2.0**24, 1.0)).encode([stranger])


def test_codes_and_labels_are_found_by_either() -> None:
    levels = Levels((2.0, 5.0), ("low", "high"))
    assert levels.encode([5, 2]).tolist() == [5.0, 2.0]
    assert levels.encode(["high", "low"]).tolist() == [5.0, 2.0]
    numeric = Levels.of([10, 20])
    assert numeric.encode(["20", "10"]).tolist() == [20.0, 10.0]


def test_a_number_that_is_another_levels_label_is_refused() -> None:
    years = Levels.from_values(["1990", "1991", "0"])  # 0 is a label, and the code of itself
    assert years.encode([0]).tolist() == [0.0]
    with pytest.raises(
        ValueError, match="the number 1990 is the label of the level with code 1: pass labels as strings"
    ):
        years.encode([1990])


def test_missing_values_stay_missing() -> None:
    levels = Levels.of(["a", "b"])
    for values in (["b", None, NAN, "a"], pd.Series(["b", None, pd.NA, "a"], dtype="string")):
        assert str(levels.encode(values).tolist()) == "[1.0, nan, nan, 0.0]"
    assert str(Levels.of(2).encode([1.0, NAN, None]).tolist()) == "[1.0, nan, nan]"
    assert str(Levels.of(2).encode(pd.Series([1, pd.NA], dtype="Int64")).tolist()) == "[1.0, nan]"
    assert str(Levels.of(2).encode([None, NAN]).tolist()) == "[nan, nan]"
    assert levels.encode([]).shape == (0,)


def test_unseen_values_are_an_error_or_new_codes() -> None:
    levels = Levels((0.0, 7.5), ("a", "b"))
    message = r"values has \['d', 'c'\] in 3 of 5 entries, none of the levels \['a', 'b'\]"
    with pytest.raises(ValueError, match=message):
        levels.encode(["d", "a", "c", None, "d"])
    assert str(levels.encode(["d", "a", "c", None, "d"], unseen="new").tolist()) == "[8.0, 0.0, 9.0, nan, 8.0]"
    assert Levels((0.0, 1.0), allows_unseen=True).encode([3, -1, 3]).tolist() == [2.0, 3.0, 2.0]
    with pytest.raises(ValueError, match=r"values has \[3\] in 1 of 1 entries, none of the levels \['0', '1'\]"):
        Levels((0.0, 1.0), allows_unseen=True).encode([3], unseen="error")
    with pytest.raises(ValueError, match="the code 16777217 is beyond"):
        Levels((2.0**24,)).encode([1], unseen="new")
    with pytest.raises(ValueError, match=r"unseen must be one of \['error', 'new'\], got 'drop'"):
        levels.encode(["a"], unseen="drop")


def test_new_codes_are_those_of_a_new_level_to_the_kernel() -> None:
    levels = Levels.from_values(["a", "b"])
    codes = levels.encode(["a", "c", "c", "d"], unseen="new")
    expected = torch.tensor([[1, 0, 0, 0], [0, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 1]]).double()
    assert torch.equal(LevelKernel()(codes[:, None]).to_dense(), expected)


@pytest.mark.parametrize(
    ("given", "codes", "labels"),
    [
        (3, (0.0, 1.0, 2.0), ("0", "1", "2")),
        (np.int64(2), (0.0, 1.0), ("0", "1")),
        (["low", "mid", "high"], (0.0, 1.0, 2.0), ("low", "mid", "high")),
        ([3.0, -1.0, 0.5], (3.0, -1.0, 0.5), ("3", "-1", "0.5")),
        (torch.tensor([4, 2]), (4.0, 2.0), ("4", "2")),
        ([False, True], (0.0, 1.0), ("False", "True")),
        (Levels((1.0,), ("one",)), (1.0,), ("one",)),
    ],
)
def test_levels_keep_the_order_in_which_they_are_given(
    given: object, codes: tuple[float, ...], labels: tuple[str, ...]
) -> None:
    levels = Levels.of(given)
    assert (levels.codes, levels.labels) == (codes, labels)


BAD_LEVELS = {
    "codes are empty": lambda: Levels(()),
    "codes must be numbers, got 'a'": lambda: Levels(("a",)),
    "codes must be finite, got inf": lambda: Levels((math.inf,)),
    r"codes must be distinct, got \[1\] more than once": lambda: Levels((1.0, 2.0, 1.0)),
    r"labels must be distinct, got \['a'\] more than once": lambda: Levels.of(["a", "b", "a"]),
    "labels has 1 entries for 2 codes": lambda: Levels((0.0, 1.0), ("a",)),
    "got the string 'ab'": lambda: Levels((0.0, 1.0), "ab"),
    r"labels must be strings, got \[1, 2\]": lambda: Levels((0.0, 1.0), (1, 2)),
    "the code 16777217 is beyond 2": lambda: Levels((2.0**24 + 1,)),
    "float32 cannot tell apart": lambda: Levels((0.1, 0.1 + 1e-12)),
    "values has 2 missing of 3 entries": lambda: Levels.from_values(["a", None, NAN]),
    "values is empty": lambda: Levels.from_values([]),
    "values has numbers beside strings": lambda: Levels.from_values([1, "a"]),
    r"values must have one dimension, got shape \(2, 1\)": lambda: Levels.from_values(np.zeros((2, 1))),
    "levels must be at least 1": lambda: Levels.of(0),
    "levels has 1 missing of 2": lambda: Levels.of([1.0, NAN]),
    r"labels must be distinct, got \['1'\]": lambda: Levels.of(["1", "1"]),
}


@pytest.mark.parametrize("message", BAD_LEVELS)
def test_values_that_are_no_levels_are_refused(message: str) -> None:
    is_type = re.search("codes must be numbers|got the string|labels must be strings", message)
    with pytest.raises(TypeError if is_type else ValueError, match=message):
        BAD_LEVELS[message]()


@pytest.mark.parametrize("values", ["abc", 3.5, None, [object()], [b"a"], np.array(["2020-01-01"], dtype="datetime64")])
def test_other_types_are_refused(values: object) -> None:
    with pytest.raises(TypeError, match="must"):
        Levels.from_values(values)
    with pytest.raises(TypeError, match="must"):
        Levels.of(values)
    with pytest.raises(TypeError, match="levels must be Levels, a number of levels, codes or labels, got True"):
        Levels.of(True)


def test_levels_are_values() -> None:
    levels = Levels((0, 1), ("a", "b"))
    assert levels == Levels((0.0, 1.0), ("a", "b"))
    assert hash(levels) == hash(Levels((0.0, 1.0), ("a", "b")))
    assert pickle.loads(pickle.dumps(levels)) == copy.deepcopy(levels) == levels


def test_a_million_values_are_encoded_at_once() -> None:
    names = [f"level {index % 1000:04d}" for index in range(100_000)]
    levels = Levels.from_values(names)
    assert torch.equal(levels.encode(names), torch.arange(100_000).remainder(1000).double())
    assert "... (1000 in all)" in levels.describe()


def mixed_group(**kwargs: object) -> ComponentGroup:
    kernel = ScaleKernel(RBFKernel(active_dims=(0,)) * LevelKernel(active_dims=(1,)))
    points = torch.cartesian_prod(torch.linspace(0, 1, 4), torch.arange(3.0))
    return ComponentGroup(kernel, [[0, 1]], points, **kwargs)


def category(kernel: object, **kwargs: object) -> ComponentGroup:
    return ComponentGroup(ScaleKernel(kernel), [[1]], torch.arange(2.0)[:, None], **kwargs)


@pytest.mark.parametrize(
    "group",
    [
        category(LevelKernel()),
        category(OrdinalKernel([0.0, 1.0, 2.0])),
        category(CentredKernel(LevelKernel(), torch.arange(3.0))),
        category(RBFKernel(), levels={1: Levels.of(100)}),
    ],
)
def test_categories_are_not_rounded_to_fewer_bins(group: ComponentGroup) -> None:
    x = torch.stack([torch.rand(100), torch.arange(100.0)], dim=-1)
    assert ColumnBins.from_data(x, AdditivePredictor(group), max_bins=20).is_exact((1,))


def test_levels_of_multipliers_are_not_rounded_beside_columns_that_are() -> None:
    x = torch.stack([torch.rand(500), torch.arange(500.0).remainder(30)], dim=-1)
    indicator = ComponentGroup(ScaleKernel(RBFKernel()), [[0]], regular_grid(0.0, 1.0, 4), by=1, by_levels=[1.0])
    for group in (mixed_group(), indicator):
        bins = ColumnBins.from_data(x, AdditivePredictor(group), max_bins=20)
        assert bins.is_rounded((0, 1)) == (True, False)


def test_discretised_fits_refuse_missing_values_early() -> None:
    x = torch.rand(50, 1)
    x[3, 0] = NAN
    model = AdditiveGP(AdditivePredictor(ComponentGroup(ScaleKernel(RBFKernel()), [[0]], regular_grid(0.0, 1.0, 4))))
    with pytest.raises(ValueError, match=r"column 0 of x has NaN or infinity in 1 of 50 rows: drop or impute these"):
        fit_by_bins(model, gpytorch.likelihoods.GaussianLikelihood(), [(x, torch.randn(50))])


def test_a_discretised_fit_of_levels_is_the_fit_of_the_data() -> None:
    torch.manual_seed(1)
    x = torch.arange(60.0).remainder(3).double()[:, None]
    y = torch.tensor([-1.0, 0.5, 1.0]).double()[x[:, 0].long()] + 0.1 * torch.randn(60).double()
    group = ComponentGroup(ScaleKernel(LevelKernel()), [[0]], torch.arange(3.0)[:, None], exact=True)
    model = AdditiveGP(AdditivePredictor(group)).double()
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    fit_by_bins(model, likelihood, [(x, y)])
    means = torch.stack([y[x[:, 0] == level].mean() for level in range(3)])
    scale, noise = group.kernel.outputscale, likelihood.noise
    torch.testing.assert_close(model(x[:3]).mean, means * scale / (scale + noise / 20), rtol=1e-6, atol=1e-6)
    assert model(torch.tensor([[9.0]]).double()).mean.abs().item() == 0


def test_repeated_levels_point_to_from_values() -> None:
    with pytest.raises(ValueError, match=r"got \[1\] more than once; .* Levels.from_values\(column\)"):
        Levels.of([1, 2, 1])


def test_fractions_in_single_precision_have_short_labels() -> None:
    levels = Levels.from_values(torch.tensor([0.1, 0.25]))
    assert levels.labels == ("0.1", "0.25")
    assert levels.encode(torch.tensor([0.25, 0.1])).tolist() == [0.25, 0.1]
