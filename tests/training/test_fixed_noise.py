"""Gaussian likelihoods whose noise is known by row: each row keeps its own, or it is an error."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, Likelihood
from torch.utils.data import DataLoader, TensorDataset

from gpytorch_gam import AdditiveGP
from gpytorch_gam.components import AdditivePredictor
from gpytorch_gam.data import RowDataset
from gpytorch_gam.diagnostics import HyperparameterUncertainty
from gpytorch_gam.likelihoods import RowwiseLikelihood
from gpytorch_gam.terms import constant, smooth
from gpytorch_gam.training import fit, initialize_posterior, polish
from tests.problems import fit_by_bins

NUM_ROWS = 60


@pytest.fixture
def data() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    x = torch.rand(NUM_ROWS, 1, dtype=torch.float64)
    noise = torch.where(torch.rand(NUM_ROWS) < 0.5, 1e-3, 1.0).double()
    return x, torch.sin(6 * x[:, 0]) + noise.sqrt() * torch.randn_like(noise), noise


def make_model(x: torch.Tensor) -> AdditiveGP:
    return AdditiveGP(AdditivePredictor(smooth(0, x, num_inducing=8), constant()), family="coupled").double()


def exact_mean(model: AdditiveGP, x: torch.Tensor, y: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Of the predictor at the rows, for the covariance that the inducing points make."""
    features = model.variational_strategy.features(x).detach()
    prior = features.mT @ features
    return prior @ torch.linalg.solve(prior + noise.diag(), y)


@pytest.mark.parametrize("make", [lambda noise: noise, lambda noise: noise.flip(0)], ids=["in order", "not the rows'"])
@pytest.mark.parametrize("wrap", [lambda likelihood: likelihood, RowwiseLikelihood], ids=["plain", "rowwise"])
def test_each_row_keeps_its_noise_in_shuffled_batches_and_chunks(
    data: tuple[torch.Tensor, ...], make: Callable, wrap: Callable
) -> None:
    x, y, noise = data
    model = make_model(x)
    loader = DataLoader(RowDataset(x, y, noise=noise), batch_size=13, shuffle=True)
    polish(model, wrap(FixedNoiseGaussianLikelihood(make(noise))), loader, chunk_size=5)
    torch.testing.assert_close(model.predict(x).mean, exact_mean(model, x, y, noise), atol=1e-5, rtol=1e-5)


def test_the_noises_of_the_likelihood_are_those_of_one_batch_in_memory(data: tuple[torch.Tensor, ...]) -> None:
    x, y, noise = data
    model, likelihood = make_model(x), FixedNoiseGaussianLikelihood(noise)
    polish(model, likelihood, [(x, y)], chunk_size=7)
    expected = exact_mean(model, x, y, noise)
    torch.testing.assert_close(model.predict(x).mean, expected, atol=1e-5, rtol=1e-5)
    structured = AdditiveGP(AdditivePredictor(smooth(0, x, num_inducing=8), constant())).double()
    initialize_posterior(structured, likelihood, x, y)
    torch.testing.assert_close(structured.predict(x).mean, expected, atol=1e-5, rtol=1e-5)
    for group in structured.predictor.groups:
        group.requires_grad_(False)
    fit(structured, likelihood, [(x, y)], num_epochs=2, polish_passes=1)
    torch.testing.assert_close(structured.predict(x).mean, expected, atol=1e-5, rtol=1e-5)


ENTRIES: dict[str, Callable[[AdditiveGP, Likelihood, object], object]] = {
    "fit": lambda model, likelihood, batches: fit(model, likelihood, batches, num_data=NUM_ROWS).history,
    "polish": polish,
    "uncertainty": HyperparameterUncertainty,
    "discretized": fit_by_bins,
}


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES.keys())
@pytest.mark.parametrize("batch_size", [NUM_ROWS, 13])
def test_batches_without_noises_are_refused(data: tuple[torch.Tensor, ...], entry: Callable, batch_size: int) -> None:
    x, y, noise = data
    model = AdditiveGP(AdditivePredictor(smooth(0, x), constant())).double()
    loader = DataLoader(TensorDataset(x, y), batch_size=batch_size, shuffle=True)
    with pytest.raises((ValueError, NotImplementedError), match=r"noise of each row with it|has a noise of each row"):
        entry(model, FixedNoiseGaussianLikelihood(noise), loader)


def test_another_number_of_noises_is_refused(data: tuple[torch.Tensor, ...]) -> None:
    x, y, noise = data
    model = AdditiveGP(AdditivePredictor(smooth(0, x), constant())).double()
    likelihood = FixedNoiseGaussianLikelihood(noise[:50])
    message = r"holds noises of shape \(50,\), but there are 60 rows"
    for run in (
        lambda: fit(model, likelihood, [(x, y)]).history,
        lambda: polish(model, likelihood, [(x, y)]),
        lambda: initialize_posterior(model, likelihood, x, y),
        lambda: HyperparameterUncertainty(model, likelihood, [(x, y)]),
    ):
        with pytest.raises(ValueError, match=message):
            run()


def test_additional_noise_is_refused(data: tuple[torch.Tensor, ...]) -> None:
    x, y, noise = data
    model = AdditiveGP(AdditivePredictor(smooth(0, x), constant())).double()
    likelihood = FixedNoiseGaussianLikelihood(noise, learn_additional_noise=True)
    for batches in ([(x, y)], DataLoader(RowDataset(x, y, noise=noise), batch_size=20)):
        with pytest.raises(NotImplementedError, match="GPyTorch counts the noise of single rows twice"):
            fit(model, likelihood, batches)
