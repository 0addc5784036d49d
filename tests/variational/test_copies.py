"""Copies, states and other dtypes of the strategy and its posterior."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch

from gpytorch_gam import (
    AdditiveGP,
)
from gpytorch_gam.models.additive_gp import FAMILIES
from tests.problems import gaussian_bound, mixed_inputs, mixed_model, mixed_predictor


@pytest.mark.parametrize("family", FAMILIES)
def test_deepcopy_and_pickle_after_a_forward_with_gradients(family: str) -> None:
    model, x, y = mixed_model(family), mixed_inputs(), torch.randn(30)
    (-gaussian_bound(model, x, y)).backward()
    model.eval()
    expected = model(x)
    for duplicate in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert duplicate.variational_strategy.model is duplicate
        torch.testing.assert_close(duplicate(x).mean, expected.mean)
        torch.testing.assert_close(duplicate(x).variance, expected.variance)


@pytest.mark.parametrize("family", FAMILIES)
def test_state_dict_restores_predictions_and_is_not_initialised_again(family: str) -> None:
    model, x = mixed_model(family).eval(), mixed_inputs()
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    fresh = AdditiveGP(mixed_predictor(), family, 4 if "low_rank" in family else None).eval()
    fresh.load_state_dict(torch.load(buffer))
    torch.testing.assert_close(fresh(x).mean, model(x).mean, rtol=0, atol=0)
    torch.testing.assert_close(fresh(x).variance, model(x).variance, rtol=0, atol=0)
    # A model that was never called saves that, too: the posterior is initialised at its first call.
    untouched = AdditiveGP(mixed_predictor(), family, 4 if "low_rank" in family else None)
    fresh.load_state_dict(untouched.state_dict())
    fresh(x)
    assert fresh.variational_strategy.variational_params_initialized == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_conversion_to_another_dtype_keeps_the_fit(family: str) -> None:
    # The jitter of the dtype the model was initialised in goes with it: whitened variables depend on it.
    model, x = mixed_model(family).eval(), mixed_inputs()
    expected = model(x)
    converted = copy.deepcopy(model).double()
    loaded = AdditiveGP(mixed_predictor(), family, 4 if "low_rank" in family else None).double().eval()
    loaded.load_state_dict(model.state_dict())
    for double in (converted, loaded):
        assert double.variational_strategy.jitter_val == model.variational_strategy.jitter_val == 1e-6
        torch.testing.assert_close(double(x.double()).mean.float(), expected.mean, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(double(x.double()).variance.float(), expected.variance, rtol=1e-2, atol=1e-4)


def test_a_posterior_set_by_hand_is_not_initialised_again() -> None:
    model, x = AdditiveGP(mixed_predictor(), "block_low_rank", 4), mixed_inputs(5)
    with torch.no_grad():
        for parameter in model.variational_parameters():
            parameter.fill_(0.1)
    model.variational_strategy.variational_params_initialized.fill_(1)  # GPyTorch's own way to say so
    model(x)
    assert all((parameter == 0.1).all() for parameter in model.variational_parameters())


def test_functional_call_leaves_the_parameters_alone() -> None:
    trained, x = mixed_model().eval(), mixed_inputs(5)
    expected, state = trained(x).mean, {name: value.clone() for name, value in trained.state_dict().items()}
    fresh = AdditiveGP(mixed_predictor(), "block_low_rank", 4).eval()
    torch.testing.assert_close(torch.func.functional_call(fresh, state, (x,)).mean, expected)
    assert all(torch.equal(state[name], value) for name, value in trained.state_dict().items())


@pytest.mark.parametrize("family", FAMILIES)
def test_variational_parameters_are_those_of_the_distribution(family: str) -> None:
    model = mixed_model(family)
    own = {id(p) for p in model.variational_strategy._variational_distribution.parameters()}
    assert {id(p) for p in model.variational_parameters()} == own
    assert {id(p) for p in model.hyperparameters()} == {id(p) for p in model.predictor.parameters()}
