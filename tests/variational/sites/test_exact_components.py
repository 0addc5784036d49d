"""Components of an exact Gaussian process, against dense algebra."""

import gpytorch
import pytest
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood, Likelihood
from torch import Tensor

from gpytorch_gam import AdditiveGP, AdditivePredictor
from gpytorch_gam.terms import constant, factor, smooth
from gpytorch_gam.variational import exact_components


def data(n: int = 25) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(n, 3, generator=generator, dtype=torch.float64)
    x[:, 2] = torch.arange(n) % 2
    noise = torch.randn(n, generator=generator, dtype=torch.float64)
    return x, 3 + torch.sin(6 * x[:, 0]) + x[:, 1] + 0.2 * noise


def make_predictor() -> AdditivePredictor:
    smooths = smooth([0, 1], low=0.0, high=1.0, num_inducing=5, centred=False)
    return AdditivePredictor(smooths, factor(2, levels=[0, 1]), constant()).double()


class Exact(gpytorch.models.ExactGP):
    def __init__(self, likelihood: Likelihood, predictor: AdditivePredictor | None = None) -> None:
        super().__init__(*data(), likelihood)
        self.predictor = make_predictor() if predictor is None else predictor
        self.mean_module = gpytorch.means.ConstantMean().double()
        self.mean_module.constant = 2.5

    def forward(self, x: Tensor) -> MultivariateNormal:
        return self.mean_module(x) + self.predictor(x)


def one_noise() -> Likelihood:
    likelihood = GaussianLikelihood().double()
    likelihood.noise = 0.05
    return likelihood


def noises_of_rows(**options: bool) -> Likelihood:
    return FixedNoiseGaussianLikelihood(0.02 + 0.01 * torch.arange(25).double(), **options)


LIKELIHOODS = [one_noise, noises_of_rows, lambda: noises_of_rows(learn_additional_noise=True).double()]


def dense(model: Exact, noise: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Means ``(C, n)`` and covariances ``(C, n, C, n)`` of all components."""
    (train_x,), y = model.train_inputs, model.train_targets
    n, rows = len(x), torch.cat([x, train_x])
    kernels = torch.cat([group.prior_covariance(rows).to_dense() for group in model.predictor.groups])
    inverse = torch.linalg.inv(kernels[:, n:, n:].sum(0) + noise)
    cross = kernels[:, :n, n:]
    means = cross @ inverse @ (y - 2.5)
    covariance = -torch.einsum("ina,ab,jmb->injm", cross, inverse, cross)
    for index, kernel in enumerate(kernels):
        covariance[index, :, index] += kernel[:n, :n]
    return means, covariance


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_moments_are_those_of_dense_algebra(likelihood: object) -> None:
    model, x = Exact(likelihood()).eval(), data(31)[0][25:]
    noise = model.likelihood(model.forward(*model.train_inputs)).covariance_matrix
    noise = noise - model.forward(*model.train_inputs).covariance_matrix
    means, covariance = dense(model, noise, x)
    parts = exact_components(model, x)
    torch.testing.assert_close(parts.mean, means)
    torch.testing.assert_close(parts.full_cross_covariance(), covariance)
    torch.testing.assert_close(parts.variance, covariance.diagonal(dim1=0, dim2=2).diagonal(dim1=0, dim2=1))
    torch.testing.assert_close(parts["x1"].covariance(), covariance[1, :, 1])
    posterior = model(x)
    torch.testing.assert_close(parts.distribution.mean, posterior.mean)
    torch.testing.assert_close(parts.distribution.variance, posterior.variance)
    assert exact_components(model, x, exclude="constant").names == (*parts.names[:-1],)


def test_centred_effects_and_draws() -> None:
    model, x = Exact(one_noise()).eval(), data(31)[0][25:]
    covariance = dense(model, 0.05 * torch.eye(25).double(), x)[1][0, :, 0]
    centre = torch.eye(6).double() - 1 / 6
    parts = exact_components(model, x)
    torch.testing.assert_close(parts["x0"].centred().covariance(), centre @ covariance @ centre)
    rows = exact_components(model, x).centred(over=data()[0])
    assert rows["x0"].variance.shape == (6,)
    torch.manual_seed(0)
    draws = parts.sample(torch.Size([4000]))
    torch.testing.assert_close(draws.total, draws.components.sum(-2))
    torch.testing.assert_close(draws.components.mean(0), parts.mean, atol=0.06, rtol=0)
    total = parts.full_cross_covariance().sum((0, 2))
    torch.testing.assert_close(draws.total.mT.cov(), total, atol=0.1 * total.max().item(), rtol=0)


def test_gradients_reach_the_hyperparameters() -> None:
    model = Exact(one_noise())
    exact_components(model, data(4)[0]).variance.sum().backward()
    assert model.predictor.groups[0].kernel.raw_outputscale.grad.abs().max() > 0


def test_what_is_refused() -> None:
    x = data()[0]
    with pytest.raises(TypeError, match=r"must be a gpytorch\.models\.ExactGP, got AdditiveGP"):
        exact_components(AdditiveGP(make_predictor()), x)
    model = Exact(one_noise())
    model.likelihood = gpytorch.likelihoods.BernoulliLikelihood()
    with pytest.raises(TypeError, match=r"needs a GaussianLikelihood or a FixedNoise.*, got BernoulliLikelihood"):
        exact_components(model, x)
    model = Exact(one_noise())
    model.other = make_predictor()
    with pytest.raises(ValueError, match="model has 2 AdditivePredictors"):
        exact_components(model, x)
    with pytest.raises(ValueError, match="unknown components"):
        exact_components(Exact(one_noise()), x, "misspelt")
    with pytest.raises(ValueError, match="name column 2, but x has 2 columns"):
        exact_components(Exact(one_noise()), x[:, :2])
    empty = Exact(one_noise())
    empty.train_inputs = empty.train_targets = None
    with pytest.raises(ValueError, match="model has no training data"):
        exact_components(empty, x)
    marginal = AdditivePredictor(smooth(0, low=0.0, high=1.0, missing="marginal")).double()
    with pytest.raises(NotImplementedError, match="exact_components does not serve"):
        exact_components(Exact(one_noise(), marginal), x)
