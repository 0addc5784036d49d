"""Rows without a response."""

from __future__ import annotations

import math

import gpytorch
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from torch.utils.data import DataLoader

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup
from gpytorch_gam.components import regular_grid
from gpytorch_gam.data import RowDataset, drop_missing

NAN = float("nan")


def test_rows_without_a_response_go_with_all_that_belongs_to_them() -> None:
    x, y = torch.arange(8.0).reshape(4, 2), torch.tensor([1.0, NAN, 3.0, NAN])
    offset, several = torch.arange(4.0), torch.arange(8.0).reshape(4, 2)
    left = drop_missing(x, y, offset=offset, weights=several, exposure=2.0, trials=torch.tensor(5))
    assert left.num_dropped == 2
    assert torch.equal(left.x, x[[0, 2]])
    assert torch.equal(left.y, torch.tensor([1.0, 3.0]))
    assert torch.equal(left.row_arguments["offset"], torch.tensor([0.0, 2.0]))
    assert torch.equal(left.row_arguments["weights"], several[[0, 2]])
    assert left.row_arguments["exposure"] == 2.0
    assert left.row_arguments["trials"] == 5
    assert torch.equal(y.isnan(), torch.tensor([False, True, False, True]))  # what was given is as it was
    x_left, y_left, parameters, num_dropped = left
    assert (len(x_left), len(y_left), len(parameters), num_dropped) == (2, 2, 4, 2)


def test_a_row_is_dropped_if_any_of_its_responses_is_missing() -> None:
    y = torch.tensor([[1.0, 2.0], [NAN, 1.0], [3.0, NAN], [4.0, 5.0]])
    left = drop_missing(torch.rand(4, 1), y)
    assert torch.equal(left.y, y[[0, 3]])
    assert left.num_dropped == 2


def test_missing_inputs_and_infinite_responses_stay() -> None:
    x, y = torch.tensor([[NAN, 1.0], [2.0, 3.0]]), torch.tensor([1.0, math.inf])
    left = drop_missing(x, y)
    assert left.num_dropped == 0
    assert left.x is x
    assert left.y is y


def test_integers_are_never_missing() -> None:
    y = torch.tensor([0, 1, 2])
    assert drop_missing(torch.rand(3, 1), y).y is y
    assert drop_missing(torch.rand(3, 1), y, offset=None).row_arguments == {"offset": None}


ERRORS = {
    "no row is left: y is missing in 3 of 3 rows": (torch.rand(3, 1), torch.full((3,), NAN)),
    r"y must have shape \(3,\) or \(3, k\) beside 3 rows of x, got \(2,\)": (torch.rand(3, 1), torch.rand(2)),
    r"beside 3 rows of x, got \(\)": (torch.rand(3, 1), torch.tensor(1.0)),
    r"beside 3 rows of x, got \(3, 1, 1\)": (torch.rand(3, 1), torch.rand(3, 1, 1)),
    r"x must have shape \(n, D\), got \(3,\)": (torch.rand(3), torch.rand(3)),
    "no row is left: x has no rows": (torch.rand(0, 1), torch.rand(0)),
}


@pytest.mark.parametrize("message", ERRORS)
def test_errors_say_what_does_not_fit(message: str) -> None:
    with pytest.raises(ValueError, match=message):
        drop_missing(*ERRORS[message])


def test_row_arguments_must_have_the_rows_of_the_data() -> None:
    with pytest.raises(ValueError, match=r"offset must have 3 rows as x has, or be a scalar, got shape \(2,\)"):
        drop_missing(torch.rand(3, 1), torch.rand(3), offset=torch.rand(2))
    with pytest.raises(TypeError, match=r"y must be a torch\.Tensor, got list"):
        drop_missing(torch.rand(3, 1), [1.0, 2.0, NAN])


def test_the_bound_is_that_of_the_rows_that_are_left() -> None:
    model = AdditiveGP(
        AdditivePredictor(ComponentGroup(ScaleKernel(RBFKernel()), [[0]], regular_grid(0.0, 1.0, 4)))
    ).double()
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    x, y = torch.rand(6, 1).double(), torch.randn(6).double()
    y[[1, 4]] = NAN
    left = drop_missing(x, y)
    with torch.no_grad():
        objective = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(left.y))
        bound = 4 * objective(model(left.x), left.y)
        rows = [0, 2, 3, 5]
        expected = (
            likelihood.expected_log_prob(y[rows], model(x[rows])).sum() - model.variational_strategy.kl_divergence()
        )
    torch.testing.assert_close(bound, expected)


def test_arguments_that_could_not_be_dropped_along_are_refused() -> None:
    x, y = torch.rand(3, 1), torch.tensor([1.0, float("nan"), 2.0])
    with pytest.raises(TypeError, match=r"w must be a torch\.Tensor or a number, got list"):
        drop_missing(x, y, w=[1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="no row is left: x has no rows"):
        drop_missing(x[:0], y[:0])
    with pytest.raises(TypeError, match=r"w must be a tensor with one row for each row of the data, got 3\.0"):
        RowDataset(x, y, w=3.0)


def test_row_datasets_make_batches_of_triples() -> None:
    x, y, exposure = torch.rand(5, 2), torch.arange(5.0), torch.arange(5.0) + 1
    loader = DataLoader(RowDataset(x, y, exposure=exposure), batch_size=3)
    (first_x, first_y, row_arguments), _ = loader
    assert torch.equal(first_x, x[:3]) and torch.equal(first_y, y[:3])
    assert torch.equal(row_arguments["exposure"], exposure[:3])
