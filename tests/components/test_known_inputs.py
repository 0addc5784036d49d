"""Inputs that are others than those of the training, in every entry that takes inputs or data with a model."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.mlls import VariationalELBO
from torch import Tensor

from gpytorch_gam import AdditiveGP, AdditivePredictor, fit
from gpytorch_gam.diagnostics import HyperparameterUncertainty, concurvity, leave_one_out, sobol_indices
from gpytorch_gam.mlls import CollapsedELBO
from gpytorch_gam.optim import NaturalGradient
from gpytorch_gam.terms import constant, linear, smooth
from gpytorch_gam.training import (
    component_gains,
    inducing_shortfall,
    initialize_posterior,
    polish,
    start_from_responses,
)

X, Y = torch.rand(40, 2), torch.rand(40)


@functools.cache
def polished() -> tuple[AdditiveGP, GaussianLikelihood]:
    model = AdditiveGP(AdditivePredictor(smooth([0, 1], X, num_inducing=4), constant()), rank=2)
    likelihood = GaussianLikelihood()
    polish(model, likelihood, [(X, Y)])
    return model.eval(), likelihood.eval()


def fitted() -> tuple[AdditiveGP, GaussianLikelihood]:
    return copy.deepcopy(polished())


Entry = Callable[[AdditiveGP, GaussianLikelihood, Tensor, Tensor], Any]

OF_INPUTS: dict[str, Entry] = {
    "call": lambda model, _, x, __: model(x),
    "components": lambda model, _, x, __: model.components(x),
    "predict": lambda model, _, x, __: model.predict(x),
    "predict_sums": lambda model, _, x, __: model.predict_sums(x, {"all": ["x0", "x1"]}),
    "sobol_indices": lambda model, _, x, __: sobol_indices(model, x),
    "concurvity": lambda model, _, x, __: concurvity(model, x),
}
OF_DATA: dict[str, Entry] = {
    "fit": lambda model, likelihood, x, y: fit(model, likelihood, (x, y), method="rows"),
    "fit by bins": lambda model, likelihood, x, y: fit(model, likelihood, (x, y), method="bins"),
    "fit by minibatches": lambda model, likelihood, x, y: fit(model, likelihood, [(x, y)], num_epochs=1),
    "polish": lambda model, likelihood, x, y: polish(model, likelihood, [(x, y)]),
    "initialize_posterior": lambda model, likelihood, x, y: initialize_posterior(model, likelihood, x, y),
    "start_from_responses": lambda model, likelihood, x, y: start_from_responses(model, likelihood, [(x, y)]),
    "inducing_shortfall": lambda model, likelihood, x, y: inducing_shortfall(model, likelihood, [(x, y)]),
    "HyperparameterUncertainty": lambda *given: HyperparameterUncertainty(*given[:2], given[2:]),
    "leave_one_out": lambda *given: leave_one_out(*given),
    "CollapsedELBO": lambda model, likelihood, x, y: CollapsedELBO(likelihood, model)(x, y),
    "component_gains": lambda *given: component_gains(*given[:2], given[2:], [linear(0, X, names="line")]),
}
# Those that may read further columns: a group's, here.
WIDER = ("component_gains",)

WITH_NAN = X.index_fill(0, torch.tensor([3]), torch.nan)
WRONG_INPUTS = {
    "too many columns": (torch.cat([X, X], 1), "x has 4 columns, but the model was trained with 2"),
    "too few columns": (X[:, :1], "name column 1, but x has 1 columns"),
    "another dtype": (X.double(), "x has dtype torch.float64"),
    "integers": ((9 * X).long(), "x has dtype torch.int64"),
    "NaN": (WITH_NAN, "NaN"),
}
WRONG_RESPONSES = {
    "a column": (Y[:, None], r"pass y.squeeze\(-1\)"),
    "too long": (torch.cat([Y, Y]), "80"),
    "another dtype": (Y.double(), "y is torch.float64"),
    "NaN": (Y.index_fill(0, torch.tensor([2]), torch.nan), "NaN"),
}


@pytest.mark.parametrize("wrong", WRONG_INPUTS)
@pytest.mark.parametrize("entry", [*OF_INPUTS, *OF_DATA])
def test_inputs_that_are_not_those_of_the_training_are_refused(entry: str, wrong: str) -> None:
    if wrong == "too many columns" and entry in WIDER:
        pytest.skip("may read further columns")
    x, message = WRONG_INPUTS[wrong]
    with pytest.raises(ValueError, match=message):
        {**OF_INPUTS, **OF_DATA}[entry](*fitted(), x, Y.to(x) if x.is_floating_point() else Y)


@pytest.mark.parametrize("wrong", WRONG_RESPONSES)
@pytest.mark.parametrize("entry", OF_DATA)
def test_responses_that_do_not_fit_the_rows_are_refused(entry: str, wrong: str) -> None:
    y, message = WRONG_RESPONSES[wrong]
    with pytest.raises((ValueError, RuntimeError), match=message):
        OF_DATA[entry](*fitted(), X, y)


def test_a_loop_of_ones_own_is_a_training() -> None:
    model = AdditiveGP(AdditivePredictor(smooth([0, 1], X, num_inducing=4), constant()), rank=2)
    natural = NaturalGradient(model, num_data=40)
    (-VariationalELBO(GaussianLikelihood(), model, num_data=40)(model(X), Y)).backward()
    natural.step()
    with pytest.raises(ValueError, match="trained with 2"):
        model.eval()(torch.rand(3, 3))
    model.predictor.known_inputs = None
    model(torch.rand(3, 3))
