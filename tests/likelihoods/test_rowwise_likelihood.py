"""Offsets and weights for GPyTorch's own likelihoods."""

from __future__ import annotations

import copy
import pickle

import gpytorch
import pytest
import torch
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.likelihoods import Likelihood

from gpytorch_gam.likelihoods import PoissonLikelihood, RowwiseLikelihood, SoftmaxLikelihood

from .one_predictor_cases import normal

NUM_ROWS = 8
MAKERS = {
    "gaussian": gpytorch.likelihoods.GaussianLikelihood,
    "bernoulli": gpytorch.likelihoods.BernoulliLikelihood,
    "laplace": gpytorch.likelihoods.LaplaceLikelihood,
    "student": gpytorch.likelihoods.StudentTLikelihood,
    "beta": gpytorch.likelihoods.BetaLikelihood,
    "poisson": gpytorch.likelihoods.PoissonLikelihood,
    "negative binomial": gpytorch.likelihoods.NegativeBinomialLikelihood,
}
each_likelihood = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())


def responses(likelihood: Likelihood) -> torch.Tensor:
    y = likelihood(torch.linspace(-1.0, 1.0, NUM_ROWS)).sample()
    return y.clamp(0.01, 0.99) if isinstance(likelihood, gpytorch.likelihoods.BetaLikelihood) else y


def predictor(mean: torch.Tensor) -> MultivariateNormal:
    root = 0.2 * torch.eye(NUM_ROWS) + 0.1
    return MultivariateNormal(mean, root @ root)


@each_likelihood
def test_it_is_the_likelihood_without_row_arguments(make: type) -> None:
    plain, dist = make(), predictor(torch.linspace(-1.0, 1.0, NUM_ROWS))
    y, wrapped = responses(plain), RowwiseLikelihood(plain)
    assert wrapped.has_analytic_marginal == plain.has_analytic_marginal
    for method in ("expected_log_prob", "log_marginal"):
        assert torch.equal(getattr(wrapped, method)(y, dist), getattr(plain, method)(y, dist))
    marginals = []
    for likelihood in (plain, wrapped):
        torch.manual_seed(0)
        marginals.append(likelihood(dist).mean)
    assert torch.equal(*marginals)


@each_likelihood
def test_an_offset_shifts_the_mean(make: type) -> None:
    wrapped, mean = RowwiseLikelihood(make()), torch.linspace(-1.0, 1.0, NUM_ROWS)
    y, offset = responses(wrapped), torch.linspace(1.0, -0.5, NUM_ROWS)
    dist, shifted = predictor(mean), predictor(mean + offset)
    for method in ("expected_log_prob", "log_marginal"):
        by_offset = getattr(wrapped, method)(y, dist, offset=offset)
        torch.testing.assert_close(by_offset, getattr(wrapped, method)(y, shifted))
    assert torch.equal(wrapped(mean, offset=offset).log_prob(y), wrapped(mean + offset).log_prob(y))
    results = []
    for given, arguments in ((dist, {"offset": offset, "weights": 3.0}), (shifted, {})):
        torch.manual_seed(0)
        results.append(wrapped(given, **arguments).mean)
    torch.testing.assert_close(*results)


@each_likelihood
def test_weights_multiply(make: type) -> None:
    wrapped, dist, weights = RowwiseLikelihood(make()), predictor(torch.zeros(NUM_ROWS)), torch.arange(NUM_ROWS)
    y = responses(wrapped)
    for method in ("expected_log_prob", "log_marginal"):
        plain = getattr(wrapped, method)(y, dist)
        assert torch.equal(getattr(wrapped, method)(y, dist, weights=weights), plain * weights)


def test_offsets_of_several_predictors() -> None:
    wrapped = RowwiseLikelihood(gpytorch.likelihoods.SoftmaxLikelihood(num_classes=3, mixing_weights=False))
    mean, y = torch.randn(NUM_ROWS, 3), torch.arange(NUM_ROWS) % 3
    first, each = torch.randn(NUM_ROWS), torch.randn(NUM_ROWS, 3)
    moved_first = mean + torch.stack([first, torch.zeros(NUM_ROWS), torch.zeros(NUM_ROWS)], dim=-1)
    for interleaved in (True, False):
        covariance = 0.1 * torch.eye(3 * NUM_ROWS)
        dist = MultitaskMultivariateNormal(mean, covariance, interleaved=interleaved)
        for offset, moved in ((first, moved_first), (each, mean + each)):
            values = []
            for given, arguments in (
                (dist, {"offset": offset}),
                (MultitaskMultivariateNormal(moved, covariance, interleaved=interleaved), {}),
            ):
                torch.manual_seed(0)
                values.append(wrapped.expected_log_prob(y, given, **arguments))
            torch.testing.assert_close(*values)


def test_further_arguments_are_passed_on() -> None:
    wrapped = RowwiseLikelihood(gpytorch.likelihoods.FixedNoiseGaussianLikelihood(torch.full((NUM_ROWS,), 0.1)))
    dist, noise = predictor(torch.zeros(NUM_ROWS)), torch.linspace(0.1, 1.0, NUM_ROWS)
    y = torch.randn(NUM_ROWS)
    for method in ("expected_log_prob", "log_marginal"):
        passed = getattr(wrapped, method)(y, dist, noise=noise, weights=2.0)
        assert torch.equal(passed, 2 * getattr(wrapped.likelihood, method)(y, dist, noise=noise))


def test_parameters_are_the_likelihoods() -> None:
    wrapped = RowwiseLikelihood(gpytorch.likelihoods.GaussianLikelihood())
    assert [name for name, _ in wrapped.named_parameters()] == ["likelihood.noise_covar.raw_noise"]
    wrapped.expected_log_prob(torch.randn(NUM_ROWS), predictor(torch.zeros(NUM_ROWS)), weights=2.0).sum().backward()
    assert wrapped.likelihood.raw_noise.grad.abs() > 0


def test_copies_and_states() -> None:
    wrapped = RowwiseLikelihood(gpytorch.likelihoods.GaussianLikelihood())
    wrapped.likelihood.noise = 0.3
    fresh = RowwiseLikelihood(gpytorch.likelihoods.GaussianLikelihood())
    fresh.load_state_dict(wrapped.state_dict())
    for copied in (copy.deepcopy(wrapped), pickle.loads(pickle.dumps(wrapped)), fresh):
        assert torch.equal(copied.likelihood.noise, wrapped.likelihood.noise)


def test_batches_and_scalar_arguments() -> None:
    wrapped = RowwiseLikelihood(gpytorch.likelihoods.BernoulliLikelihood())
    dist = normal(torch.randn(2, 3, NUM_ROWS), torch.rand(2, 3, NUM_ROWS) + 0.1)
    y, weights = (torch.rand(NUM_ROWS) < 0.5).float(), torch.rand(3, 1)
    value = wrapped.expected_log_prob(y, dist, offset=0.5, weights=weights)
    assert value.shape == (2, 3, NUM_ROWS)
    part = wrapped.expected_log_prob(y, normal(dist.mean[1, 2] + 0.5, dist.variance[1, 2]))
    torch.testing.assert_close(value[1, 2], part * weights[2])


def test_what_takes_weights_itself_is_refused() -> None:
    rowwise = RowwiseLikelihood(gpytorch.likelihoods.GaussianLikelihood())
    for likelihood in (PoissonLikelihood(), SoftmaxLikelihood(3), rowwise):
        with pytest.raises(TypeError, match="takes offset and weights itself"):
            RowwiseLikelihood(likelihood)
    with pytest.raises(TypeError, match="must be a GPyTorch likelihood, got ABCMeta"):
        RowwiseLikelihood(gpytorch.likelihoods.GaussianLikelihood)


def test_wrong_arguments_are_refused_by_name() -> None:
    wrapped, dist = RowwiseLikelihood(gpytorch.likelihoods.GaussianLikelihood()), predictor(torch.zeros(NUM_ROWS))
    y = torch.zeros(NUM_ROWS)
    with pytest.raises(ValueError, match="weights must be finite and not negative"):
        wrapped.expected_log_prob(y, dist, weights=-1.0)
    with pytest.raises(ValueError, match=r"offset has shape \(3,\)"):
        wrapped.expected_log_prob(y, dist, offset=torch.zeros(3))
    with pytest.raises(ValueError, match=r"weights has shape \(3,\)"):
        wrapped.log_marginal(y, dist, weights=torch.zeros(3))
