"""Responses that GPyTorch's likelihoods cannot have, some of which they make a number of all the same."""

from __future__ import annotations

from collections.abc import Callable

import gpytorch
import pytest
import torch
from torch import Tensor

from gpytorch_gam import AdditiveGP, AdditivePredictor
from gpytorch_gam.likelihoods import RowwiseLikelihood
from gpytorch_gam.terms import constant, smooth
from gpytorch_gam.training import _minibatch_end, fit, initialize_posterior, polish, start_from_responses
from tests.problems import fit_by_bins

X = torch.linspace(0.0, 1.0, 60).double().unsqueeze(-1)

FITS: dict[str, Callable[..., object]] = {
    "fit": lambda model, likelihood, y: fit(model, likelihood, [(X, y)], num_data=60, num_epochs=1).history,
    "polish": lambda model, likelihood, y: polish(model, likelihood, [(X, y)]),
    "fit by bins": lambda model, likelihood, y: fit_by_bins(model, likelihood, [(X, y)]),
    "initialize_posterior": lambda model, likelihood, y: initialize_posterior(model, likelihood, X, y),
    "start_from_responses": lambda model, likelihood, y: start_from_responses(model, likelihood, [(X, y)]),
}


def make_model() -> AdditiveGP:
    return AdditiveGP(AdditivePredictor(smooth(0, low=0, high=1, num_inducing=4), constant()), rank=2).double()


def repeated(*values: float) -> Tensor:
    return torch.tensor(values).double().repeat(60 // len(values))


@pytest.mark.parametrize("labels", [(1.0, 2.0), (-1.0, 0.0, 1.0), (0.0, 0.5, 1.0)])
@pytest.mark.parametrize("name", list(FITS))
def test_labels_are_two(name: str, labels: tuple[float, ...]) -> None:
    likelihood = RowwiseLikelihood(gpytorch.likelihoods.BernoulliLikelihood())
    with pytest.raises(ValueError, match=r"no labels in \d+ of 60 rows \(BernoulliLikelihood\): labels are 0 and 1"):
        FITS[name](make_model(), likelihood, repeated(*labels))


@pytest.mark.filterwarnings("ignore:BernoulliLikelihood.expected_log_prob:DeprecationWarning")
@pytest.mark.parametrize("labels", [(0.0, 1.0), (-1.0, 1.0), (1.0, 1.0)])
def test_labels_of_either_kind_are_taken(labels: tuple[float, ...]) -> None:
    initialize_posterior(make_model(), gpytorch.likelihoods.BernoulliLikelihood(), X, repeated(*labels))


def test_kinds_of_labels_that_differ_between_batches_are_refused() -> None:
    batches = [(X[:30], repeated(0.0, 1.0)[:30]), (X[30:], repeated(-1.0, 1.0)[:30])]
    with pytest.raises(ValueError, match="no labels in 15 of 60 rows"):
        fit(make_model(), gpytorch.likelihoods.BernoulliLikelihood(), batches, num_data=60, num_epochs=1)


@pytest.mark.parametrize(
    ("likelihood", "values", "message"),
    [
        (gpytorch.likelihoods.BetaLikelihood(), (0.0, 0.5), r"outside of \(0, 1\) in 30 of 60 rows"),
        (gpytorch.likelihoods.BetaLikelihood(), (1.0, 0.5), r"outside of \(0, 1\) in 30 of 60 rows"),
        (gpytorch.likelihoods.PoissonLikelihood(), (1.0, 1.5), "negative or fractional values in 30 of 60 rows"),
        (gpytorch.likelihoods.NegativeBinomialLikelihood(), (1.0, -1.0), "negative or fractional values in 30"),
    ],
)
def test_other_values(likelihood: gpytorch.likelihoods.Likelihood, values: tuple[float, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit(make_model(), likelihood.double(), [(X, repeated(*values))], num_data=60, num_epochs=1)


def test_a_likelihood_of_ones_own_takes_what_it_takes() -> None:
    class Rates(gpytorch.likelihoods.PoissonLikelihood):
        def forward(
            self, function_samples: Tensor, *args: object, **kwargs: object
        ) -> torch.distributions.Distribution:
            return torch.distributions.Exponential((-function_samples).exp())

    assert fit(make_model(), Rates(), [(X, repeated(0.5, 1.5))], num_data=60, num_epochs=1).history


@pytest.mark.filterwarnings("ignore:the fit has not arrived")
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool])
@pytest.mark.parametrize("name", list(FITS))
def test_whole_numbers_are_responses_to_a_gaussian_likelihood(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_minibatch_end, "_MAX_FEATURES", 0)  # the end of a fit of small data has tests of its own
    y = (repeated(0.0, 1.0, 1.0) + 2.0 * (dtype != torch.bool)).to(dtype)
    found = []
    for responses in (y, y.double()):
        torch.manual_seed(0)
        model, likelihood = make_model(), gpytorch.likelihoods.GaussianLikelihood().double()
        FITS[name](model, likelihood, responses)
        found.append(model.eval()(X).mean)
    torch.testing.assert_close(*found)
