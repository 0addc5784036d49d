"""Parameters of likelihoods are found, wherever they lie."""

from __future__ import annotations

from collections.abc import Callable

import gpytorch
import pytest
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import GaussianLikelihood, Likelihood
from gpytorch.priors import GammaPrior
from linear_operator.operators import DiagLinearOperator
from torch import Tensor
from torch.distributions import Gamma, StudentT

from gpytorch_gam import AdditiveGP, AdditivePredictor
from gpytorch_gam.likelihoods import GammaLikelihood, NegativeBinomialLikelihood, SoftmaxLikelihood, StudentTLikelihood
from gpytorch_gam.optim.rows.stream import Rows
from gpytorch_gam.terms import constant, smooth
from gpytorch_gam.training import _minibatch_end, fit
from gpytorch_gam.training._likelihood_step import fit_likelihood


class Posterior(torch.nn.Module):
    """Stands in for a model."""

    def __init__(self, mean: Tensor, variance: Tensor) -> None:
        super().__init__()
        self.mean, self.variance = mean, variance

    def forward(self, x: Tensor) -> MultivariateNormal:
        return MultivariateNormal(self.mean, DiagLinearOperator(self.variance))


def gamma(shape: float) -> Callable[[Tensor], Tensor]:
    return lambda f: Gamma(shape, shape * (-f).exp()).sample()


def students(f: Tensor) -> Tensor:
    return f + 0.3 * StudentT(3.0).sample(f.shape).double()


def counts(f: Tensor) -> Tensor:
    return torch.poisson((12 + f).exp() * Gamma(5.0, 5.0).sample(f.shape))


@pytest.mark.parametrize(
    ("likelihood", "draw", "name", "value", "tolerance"),
    [
        (GammaLikelihood(), gamma(100.0), "shape", 100.0, 0.1),
        (StudentTLikelihood(), students, "deg_free", 3.0, 0.35),  # as far as the maximum is from the truth
        (NegativeBinomialLikelihood(), counts, "dispersion", 0.2, 0.25),
    ],
)
def test_a_few_epochs_of_minibatches_find_them(
    likelihood: Likelihood,
    draw: Callable[[Tensor], Tensor],
    name: str,
    value: float,
    tolerance: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # No quasi-Newton ascent at the end, nor a word on what it would gain.
    monkeypatch.setattr(_minibatch_end, "_MAX_FEATURES", 0)
    x = torch.rand(500, 1).double()
    y = draw(torch.sin(6 * x[:, 0]))
    model = AdditiveGP(AdditivePredictor(smooth(0, x, num_inducing=6, kernel="rbf"), constant()), rank=2).double()
    batches = list(zip(x.split(100), y.split(100), strict=True))
    fit(model, likelihood.double(), batches, num_data=500, num_epochs=5)
    assert getattr(likelihood, name).item() == pytest.approx(value, rel=tolerance)


def test_noise_is_the_mean_square_of_what_is_left() -> None:
    mean, variance = torch.randn(200).double(), torch.full((200,), 0.3).double()
    y = mean + 30 * torch.randn(200).double()
    likelihood = GaussianLikelihood().double()
    fit_likelihood(Posterior(mean, variance), likelihood, Rows(mean, y, {}), num_data=200)
    assert likelihood.noise.item() == pytest.approx(((y - mean).square() + variance).mean().item(), rel=0.05)


def test_priors_count_beside_all_rows() -> None:
    mean, variance = torch.zeros(200).double(), torch.full((200,), 0.01).double()
    y = torch.randn(200).double()
    prior = GammaPrior(1e4, 1e4 / 9.0)  # nine, nearly for certain
    likelihood = GaussianLikelihood(noise_prior=prior).double()
    fit_likelihood(Posterior(mean, variance), likelihood, Rows(mean, y, {}), num_data=200)
    assert likelihood.noise.item() == pytest.approx(9.0, rel=0.1)


def test_a_batch_stands_for_all_rows_beside_the_priors() -> None:
    y, found = torch.randn(20).double(), []
    for repeats in (1, 50):
        likelihood = GaussianLikelihood(noise_prior=GammaPrior(100.0, 100.0 / 9.0)).double()
        mean = torch.zeros(20 * repeats).double()
        rows = Rows(mean, y.repeat(repeats), {})
        fit_likelihood(Posterior(mean, torch.full_like(mean, 0.01)), likelihood, rows, num_data=1000)
        found.append(likelihood.noise.item())
    assert found[0] == pytest.approx(found[1], rel=1e-2)


def test_likelihoods_without_parameters_or_with_random_expectations_stay() -> None:
    rows = Rows(torch.zeros(3), torch.zeros(3), {})
    fit_likelihood(Posterior(torch.zeros(3), torch.ones(3)), SoftmaxLikelihood(3), rows, num_data=3)
    sampled = gpytorch.likelihoods.SoftmaxLikelihood(num_features=2, num_classes=3)
    before = sampled.mixing_weights.detach().clone()
    fit_likelihood(Posterior(torch.zeros(3), torch.ones(3)), sampled, rows, num_data=3)
    assert torch.equal(sampled.mixing_weights, before)
