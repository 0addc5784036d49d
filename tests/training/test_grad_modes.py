"""Fits give the same inside of torch's switches: gradients off, inference, other default dtypes and devices."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager

import gpytorch
import pytest
import torch
from gpytorch.likelihoods import GaussianLikelihood
from packaging.version import Version

from gpytorch_gam import AdditiveGP
from gpytorch_gam.components import AdditivePredictor
from gpytorch_gam.diagnostics import HyperparameterUncertainty, concurvity, sobol_indices
from gpytorch_gam.mlls import CollapsedELBO
from gpytorch_gam.optim import NaturalGradient
from gpytorch_gam.terms import constant, smooth
from gpytorch_gam.training import fit, initialize_posterior, polish
from gpytorch_gam.training.discretized._data import sampled
from tests.problems import fit_by_bins

# Results without switches, against which others are held, stay in one process.
pytestmark = pytest.mark.xdist_group("grad_modes")

Problem = tuple[AdditiveGP, GaussianLikelihood, torch.Tensor, torch.Tensor]


def make_problem() -> Problem:
    torch.manual_seed(0)
    x = torch.rand(40, 2, dtype=torch.float64)
    y = torch.sin(6 * x[:, 0]) + 0.2 * torch.randn(40, dtype=torch.float64)
    model = AdditiveGP(AdditivePredictor(smooth([0, 1], x, num_inducing=6), constant()), rank=4)
    return model.double(), GaussianLikelihood().double(), x, y


class _DefaultDtype:
    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def __enter__(self) -> None:
        self._before = torch.get_default_dtype()
        torch.set_default_dtype(self._dtype)

    def __exit__(self, *error: object) -> None:
        torch.set_default_dtype(self._before)


def mean_after(train: Callable) -> Callable[..., torch.Tensor]:
    def run(model: AdditiveGP, likelihood: GaussianLikelihood, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        train(model, likelihood, x, y)
        return model.predict(x).mean

    return run


def optimum(model: AdditiveGP, likelihood: GaussianLikelihood, x: torch.Tensor, y: torch.Tensor) -> None:
    found = CollapsedELBO(likelihood, model).optimum(x, y)
    model.variational_strategy.set_whitened_posterior(found.mean, found.precision)


def uncertain_variance(
    model: AdditiveGP, likelihood: GaussianLikelihood, x: torch.Tensor, y: torch.Tensor
) -> torch.Tensor:
    model.predictor.requires_grad_(False)  # so that the noise alone is uncertain
    fit(model, likelihood, [(x, y)])
    uncertainty = HyperparameterUncertainty(model, likelihood, (x, y))
    return model.predict(x, hyperparameters=uncertainty).variance


TRAINED: dict[str, Callable[..., torch.Tensor]] = {
    "fit": mean_after(
        lambda model, likelihood, *data: fit(model, likelihood, [data], num_epochs=2, num_held_back=1).history
    ),
    "polish": mean_after(lambda model, likelihood, *data: polish(model, likelihood, [data])),
    "initialize": mean_after(initialize_posterior),
    "discretized": mean_after(lambda model, likelihood, *data: fit_by_bins(model, likelihood, [data])),
    "collapsed": mean_after(optimum),
    "uncertainty": uncertain_variance,
    "sobol": lambda model, likelihood, x, y: sobol_indices(model, x).share,
    "concurvity": lambda model, likelihood, x, y: concurvity(model, x).estimate,
}


@functools.cache
def without_switches(run: Callable[..., torch.Tensor]) -> torch.Tensor:
    return run(*make_problem())


CONTEXTS: dict[str, Callable[[], AbstractContextManager]] = {
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "float64 by default": lambda: _DefaultDtype(torch.float64),
}


# Inference mode is no_grad with more that is forbidden: one way of training suffices for the latter.
@pytest.mark.parametrize(
    ("name", "context"), [*itertools.product(TRAINED, ["inference", "float64 by default"]), ("fit", "no_grad")]
)
def test_results_do_not_depend_on_switches(name: str, context: str) -> None:
    problem, run = make_problem(), TRAINED[name]
    expected = without_switches(run)
    make_problem()  # seeds
    with CONTEXTS[context]():
        found = run(*problem)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    gpytorch.mlls.VariationalELBO(problem[1], problem[0], 40).train()(problem[0](problem[2]), problem[3]).backward()


# Where a tensor is made on the default device instead of the data's, it has no values here.
@pytest.mark.parametrize("name", ["fit", "polish", "initialize", "collapsed", "sobol", "concurvity", "uncertainty"])
def test_results_do_not_depend_on_the_default_device(name: str) -> None:
    if name == "fit" and Version(torch.__version__) < Version("2.11"):
        pytest.skip("torch's own Adam counts its steps on the default device")
    problem = make_problem()
    expected = without_switches(TRAINED[name])
    make_problem()  # seeds
    with torch.device("meta"):
        found = TRAINED[name](*problem)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_samples_of_rows_do_not_depend_on_the_default_device() -> None:
    batches = [(torch.rand(size, 1), torch.rand(size)) for size in (50, 500)]
    expected = list(sampled(batches, 0.5))
    with torch.device("meta"):
        found = list(sampled(batches, 0.5))
    assert len(found) == len(expected) == 2
    assert all(torch.equal(ours[0], theirs[0]) for ours, theirs in zip(found, expected, strict=True))


def test_data_of_inference_mode_can_be_trained_on() -> None:
    model, likelihood, x, y = make_problem()
    with torch.inference_mode():
        data = x.clone(), y.clone()
    assert data[0].is_inference()
    fit(model, likelihood, [data], num_epochs=2)
    initialize_posterior(model, likelihood, *data)
    polish(model, likelihood, [data])
    expected, fresh = make_problem()[0], make_problem()[1]
    fit(expected, fresh, [(x, y)], num_epochs=2)
    polish(expected, fresh, [(x, y)])
    torch.testing.assert_close(model.predict(x).mean, expected.predict(x).mean, atol=1e-6, rtol=1e-6)


def test_what_cannot_be_trained_is_refused() -> None:
    with torch.inference_mode():
        model = make_problem()[0]
    _, likelihood, x, y = make_problem()
    for train in (fit, polish):
        with pytest.raises(ValueError, match=r"AdditiveGP were made in torch.inference_mode\(\) and cannot be trained"):
            train(model, likelihood, [(x, y)])
    model = make_problem()[0]
    natural = NaturalGradient(model, num_data=40)
    with torch.inference_mode(), pytest.raises(RuntimeError, match="inference_mode"):
        natural.step(lambda: model(x).mean.sum())
