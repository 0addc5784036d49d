"""The number of rows that scales the posterior is that of the data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    DataLoader,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from gpytorch_gam.mlls import CollapsedELBO
from gpytorch_gam.training import fit, initialize_posterior, polish
from gpytorch_gam.warnings import TrainingLoopWarning
from tests.problems import fit_problem

x = torch.rand(60, 2, generator=torch.Generator().manual_seed(0)).double()
y = torch.sin(6 * x[:, 0])
dataset = TensorDataset(x, y)
halves = [(x[:30], y[:30]), (x[30:], y[30:])]


class Stream:
    """Batches that do not say how many rows they have."""

    def __iter__(self) -> Iterator[Any]:
        return iter(halves)


class Half(Sampler):
    """A sampler of somebody's own."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(30))

    def __len__(self) -> int:
        return 30


def train(batches: Any, num_data: int | None = None) -> Any:
    """A fit with hyperparameters that stand still, so that the posterior is all there is to it."""
    model, likelihood, *_ = fit_problem()
    for parameter in (*model.hyperparameters(), *likelihood.parameters()):
        parameter.requires_grad_(False)
    fit(model, likelihood, batches, num_data, num_epochs=1)
    return model, likelihood


@pytest.mark.parametrize("num_data", [2, 30, 59, 61, 600])
@pytest.mark.parametrize("batches", [halves, DataLoader(dataset, 10, shuffle=True)], ids=["list", "loader"])
def test_a_number_of_rows_that_is_not_that_of_the_batches_is_refused(batches: Any, num_data: int) -> None:
    with pytest.raises(ValueError, match=f"num_data is {num_data}, but batches are of 60 rows"):
        train(batches, num_data)


def test_a_number_of_rows_below_that_of_a_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="num_data is 20, but a batch has 30 rows"):
        train(Stream(), 20)
    model, likelihood, *_ = fit_problem()
    with pytest.raises(ValueError, match="num_data is 20, but the batch has 60 rows"):
        initialize_posterior(model, likelihood, x, y, num_data=20)


def test_batches_that_do_not_say_how_many_rows_they_have_need_the_number() -> None:
    with pytest.raises(ValueError, match="pass num_data="):
        train(Stream())


@pytest.mark.parametrize("num_data", [30, 600])
def test_other_rows_in_an_epoch_of_unknown_length_are_warned_of_once(num_data: int) -> None:
    model, likelihood, *_ = fit_problem()
    with pytest.warns(TrainingLoopWarning, match=f"gave 60 rows, but num_data is {num_data}") as caught:
        fit(model, likelihood, Stream(), num_data, num_epochs=1)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    with pytest.warns(TrainingLoopWarning, match="gave 30 rows, but num_data is 60"):
        train(DataLoader(dataset, 10, sampler=Half()))


@pytest.mark.parametrize(
    ("batches", "num_data"),
    [
        (halves, None),
        (halves, 60),
        (Stream(), 60),
        (DataLoader(dataset, 25, shuffle=True, drop_last=True), None),
        (DataLoader(dataset, 25, shuffle=True, drop_last=True), 50),
        (DataLoader(dataset, 10, sampler=RandomSampler(dataset, num_samples=20)), None),
        (DataLoader(dataset, 10, sampler=WeightedRandomSampler(torch.ones(60), 120)), None),
        (DataLoader(dataset, 10, sampler=Half()), 30),
    ],
)
def test_batches_that_agree_with_their_number_are_taken(batches: Any, num_data: int | None) -> None:
    model, _ = train(batches, num_data)
    assert not model.training


def test_the_default_is_what_a_pass_gives() -> None:
    """Rows of a list, and those that a sampler keeps to: the posterior is the one in closed form."""
    subset = DataLoader(dataset, 30, sampler=SubsetRandomSampler(range(30)))
    for batches, rows in (([(x, y)], 60), (subset, 30)):
        model, likelihood = train(batches)
        found = model(x).stddev
        best = CollapsedELBO(likelihood, model).optimum(x[:rows], y[:rows])
        model.variational_strategy.set_whitened_posterior(best.mean, best.precision)
        torch.testing.assert_close(found, model(x).stddev, rtol=0.02, atol=0.0)


def test_passes_that_need_each_row_once_refuse_samplers_that_draw() -> None:
    model, likelihood, *_ = fit_problem()
    for sampler in (
        WeightedRandomSampler(torch.ones(60), 60),
        RandomSampler(dataset, replacement=True),
        RandomSampler(dataset, num_samples=20),
    ):
        loader = DataLoader(dataset, 10, sampler=sampler)
        for action in (
            lambda loader: polish(model, likelihood, loader),
            CollapsedELBO(likelihood, model).optimum_of_batches,
        ):
            with pytest.raises(ValueError, match="each row has to come once"):
                action(loader)
