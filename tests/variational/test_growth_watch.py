"""Structured precisions that are trained by gradients alone say when they have not arrived."""

from __future__ import annotations

import copy
import functools
import pickle
from typing import Any

import gpytorch
import pytest
import torch

from gpytorch_gam import AdditiveGP, AdditivePredictor
from gpytorch_gam.optim import NaturalGradient
from gpytorch_gam.terms import constant, smooth
from gpytorch_gam.training import initialize_posterior, polish
from gpytorch_gam.variational import _growth_watch
from gpytorch_gam.warnings import TrainingLoopWarning

# The models that are trained once stay in one process.
pytestmark = pytest.mark.xdist_group("growth_watch")

x = torch.rand(200, 2, generator=torch.Generator().manual_seed(0)).double()
y = torch.sin(6 * x[:, 0]) + x[:, 1] + 0.2 * torch.randn(200, generator=torch.Generator().manual_seed(1)).double()


@pytest.fixture(autouse=True)
def early_verdicts(monkeypatch: pytest.MonkeyPatch) -> None:
    """After half as many steps as elsewhere, or a quarter."""
    monkeypatch.setattr(_growth_watch, "_LEAST_FORWARDS", 25)
    monkeypatch.setattr(_growth_watch, "_FIRST_KEPT", 16)


def make_model(family: str = "block_low_rank", **options: Any) -> tuple[AdditiveGP, Any]:
    predictor = AdditivePredictor(smooth([0, 1], x, num_inducing=6), constant())
    return AdditiveGP(predictor, family=family, **options).double(), gpytorch.likelihoods.GaussianLikelihood().double()


def train(model: AdditiveGP, likelihood: Any, num_steps: int, lr: float = 0.01) -> None:
    """The loop of GPyTorch's tutorials."""
    mll = gpytorch.mlls.VariationalELBO(likelihood, model.train(), num_data=len(y))
    adam = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=lr)
    for _ in range(num_steps):
        adam.zero_grad()
        (-mll(model(x), y)).backward()
        adam.step()
    model.eval()


@functools.cache
def trained(family: str) -> tuple[AdditiveGP, Any]:
    model, likelihood = make_model(family)
    train(model, likelihood, 45)
    return model, likelihood


def still_growing(family: str = "block_low_rank") -> tuple[AdditiveGP, Any]:
    """A model that has not been used since its training, which is too short."""
    return copy.deepcopy(trained(family))


@pytest.mark.parametrize("family", ["block_low_rank", "low_rank", "mean_field"])
def test_a_precision_that_still_grows_is_warned_of_once(family: str) -> None:
    model, _ = still_growing(family)
    with pytest.warns(TrainingLoopWarning, match=r"grown \d\.\d-fold .* of 45 steps") as caught:
        model(x)
    assert caught[0].filename == __file__
    model(x), model.predict(x), model.components(x)  # warnings are errors


def test_copies_warn_as_well() -> None:
    model, _ = still_growing()
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        with pytest.warns(TrainingLoopWarning, match="precision"):
            copied.predict(x)


def test_a_start_from_data_is_not_warned_of() -> None:
    model, likelihood = make_model()
    initialize_posterior(model, likelihood, x, y)
    train(model, likelihood, 28)
    model(x)


def test_a_precision_that_was_set_after_the_loop_is_not_warned_of() -> None:
    for arrive in (lambda m, lik: polish(m, lik, [(x, y)]), lambda m, lik: m.load_state_dict(m.state_dict())):
        model, likelihood = still_growing()
        arrive(model, likelihood)
        model.eval()(x)


def test_natural_gradients_and_other_families_are_not_warned_of() -> None:
    model, likelihood = make_model("coupled")
    train(model, likelihood, 28)
    model(x)
    model, likelihood = make_model()
    mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(y))
    natural = NaturalGradient(model, num_data=len(y))
    for _ in range(28):
        (-mll(model(x), y)).backward()
        natural.step()
    model.eval()(x)


def test_short_training_is_not_warned_of() -> None:
    model, likelihood = make_model()
    train(model, likelihood, 22)
    model(x)


def test_a_precision_that_adam_has_brought_to_its_size_is_not_warned_of() -> None:
    model, likelihood = make_model("low_rank", rank=13)
    for parameter in (*model.hyperparameters(), *likelihood.parameters()):
        parameter.requires_grad_(False)
    likelihood.noise = 0.5
    train(model, likelihood, 150, lr=0.3)
    model(x)
