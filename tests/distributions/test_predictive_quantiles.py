"""Quantiles of predictive distributions of every kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from scipy import special, stats
from torch.distributions import (
    Bernoulli,
    Beta,
    Binomial,
    Categorical,
    Cauchy,
    Distribution,
    Gamma,
    Independent,
    LogNormal,
    MixtureSameFamily,
    Normal,
    Poisson,
    StudentT,
    Uniform,
)

from gpytorch_gam.distributions.quantiles import predictive_quantiles
from gpytorch_gam.distributions.weighted_mixture import WeightedMixture
from gpytorch_gam.likelihoods import (
    BinomialLikelihood,
    GammaLikelihood,
    GaussianLocationScaleLikelihood,
    NegativeBinomialLikelihood,
    NegativeBinomialMeanDispersionLikelihood,
    PoissonLikelihood,
    ZeroInflatedPoissonLikelihood,
)

LEVELS = [0.001, 0.1, 0.5, 0.9, 0.999]


def test_quantiles_of_continuous_distributions_are_exact() -> None:
    location, scale = torch.tensor([0.0, 1e4], dtype=torch.float64), torch.tensor([1.0, 1e-3], dtype=torch.float64)
    levels = torch.tensor(LEVELS, dtype=torch.float64)
    for dist in (Normal(location, scale), Cauchy(location, scale), LogNormal(location / 1e4, scale)):
        quantiles = predictive_quantiles(dist, LEVELS)
        assert quantiles.shape == (5, 2)
        torch.testing.assert_close(quantiles, dist.icdf(levels.unsqueeze(-1)), rtol=1e-9, atol=1e-9)
    gamma = predictive_quantiles(Gamma(2 * scale + 1, scale), LEVELS)
    expected = stats.gamma.ppf(levels.unsqueeze(-1).numpy(), (2 * scale + 1).numpy(), scale=(1 / scale).numpy())
    torch.testing.assert_close(gamma, torch.from_numpy(expected), rtol=1e-8, atol=1e-8)


def test_quantiles_of_a_multivariate_normal_are_those_of_its_rows() -> None:
    root = torch.randn(3, 4, 4, dtype=torch.float64)
    dist = MultivariateNormal(torch.randn(3, 4, dtype=torch.float64), root @ root.mT + torch.eye(4))
    expected = Normal(dist.mean, dist.stddev).icdf(torch.tensor(0.9, dtype=torch.float64))
    torch.testing.assert_close(predictive_quantiles(dist, 0.9), expected)


def test_quantiles_of_mixtures_invert_the_cdf() -> None:
    weights = Categorical(probs=torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64))
    location = torch.tensor([-50.0, 0.0, 1e3], dtype=torch.float64)
    dist = MixtureSameFamily(weights, Normal(location, torch.ones(3, dtype=torch.float64)))
    levels = torch.tensor(LEVELS, dtype=torch.float64)
    torch.testing.assert_close(dist.cdf(predictive_quantiles(dist, LEVELS)), levels, atol=1e-9, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_quantiles_of_counts_are_those_of_scipy(dtype: torch.dtype) -> None:
    rate = torch.tensor([0.01, 1.0, 30.0, 700.0], dtype=dtype)
    levels = torch.tensor(LEVELS).unsqueeze(-1).numpy()
    actual = predictive_quantiles(Poisson(rate), LEVELS)
    assert actual.dtype == dtype
    expected = stats.poisson.ppf(levels, rate.numpy())
    assert (actual.numpy() == expected)[:, :3].all()
    # In float32 probabilities around 700 are off by 1e-4 or so.
    assert abs(actual.numpy() - expected)[:, 3].max() <= (1 if dtype == torch.float32 else 0)
    trials = torch.tensor([1.0, 5.0, 40.0, 3.0], dtype=dtype)
    actual = predictive_quantiles(Binomial(trials, torch.full((4,), 0.3, dtype=dtype)), LEVELS)
    assert (actual.numpy() == stats.binom.ppf(levels, trials.numpy(), 0.3)).all()


def test_quantiles_of_labels_and_classes() -> None:
    probabilities = torch.tensor([0.2, 0.7])
    assert predictive_quantiles(Bernoulli(probabilities), 0.5).tolist() == [0.0, 1.0]
    assert predictive_quantiles(Categorical(probs=torch.tensor([[0.2, 0.5, 0.3]])), [0.1, 0.5, 0.9]).tolist() == [
        [0.0],
        [1.0],
        [2.0],
    ]


def test_large_counts_and_distributions_without_a_cdf_are_drawn() -> None:
    state = torch.get_rng_state()
    rate = torch.tensor([5e4, 3.0])
    counts = predictive_quantiles(Poisson(rate), [0.1, 0.9])
    assert (counts[:, 1] == torch.tensor([1.0, 5.0])).all()  # still exact
    expected = torch.from_numpy(stats.poisson.ppf([0.1, 0.9], 5e4))
    torch.testing.assert_close(counts[:, 0].double(), expected, rtol=0, atol=20)  # 0.1 standard deviations
    for dist, reference in (
        (StudentT(torch.tensor([5.0])), stats.t(5.0)),
        (Beta(torch.tensor([2.0]), torch.tensor([3.0])), stats.beta(2.0, 3.0)),
    ):
        quantiles = predictive_quantiles(dist, [0.1, 0.5, 0.9], num_samples=100_000)
        torch.testing.assert_close(
            quantiles[:, 0].double(), torch.from_numpy(reference.ppf([0.1, 0.5, 0.9])), rtol=0, atol=0.03
        )
        assert torch.equal(quantiles, predictive_quantiles(dist, [0.1, 0.5, 0.9], num_samples=100_000))
    assert torch.equal(state, torch.get_rng_state())


def test_shapes() -> None:
    dist = Normal(torch.zeros(2, 3), torch.ones(2, 3))
    assert predictive_quantiles(dist, 0.5).shape == (2, 3)
    assert predictive_quantiles(dist, [[0.5, 0.1]]).shape == (1, 2, 2, 3)
    assert predictive_quantiles(Poisson(torch.ones(())), [0.5, 0.9]).shape == (2,)
    assert predictive_quantiles(Uniform(torch.zeros(3), torch.ones(3)), 0.25).tolist() == pytest.approx([0.25] * 3)


def test_errors() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        predictive_quantiles(Normal(torch.zeros(2), torch.ones(2)), [0.0, 0.5])
    with pytest.raises(ValueError, match="one number in each row"):
        predictive_quantiles(Independent(Normal(torch.zeros(2), torch.ones(2)), 1), 0.5)


@pytest.mark.parametrize("dispersion", [None, 2e-8, 0.05, 2.0])
def test_probabilities_and_quantiles_of_predicted_counts(dispersion: float | None) -> None:
    likelihood = PoissonLikelihood() if dispersion is None else NegativeBinomialLikelihood()
    if dispersion is not None:
        likelihood.dispersion = dispersion
    likelihood = likelihood.double()
    mean = torch.tensor([-3.0, 0.5, 3.0, 7.0, 7.0]).double()
    deviation = torch.tensor([1.0, 0.5, 0.01, 0.05, 1.0]).double()
    exposure = torch.tensor([1.0, 2.0, 1.0, 1.0, 3.0]).double()
    distribution = likelihood(MultivariateNormal(mean, torch.diag(deviation.square())), exposure=exposure)
    z = np.linspace(-9, 9, 8001)  # dense enough for the narrowest of these functions
    rates = exposure.numpy() * np.exp(mean.numpy() + deviation.numpy() * z[:, None])
    weights = stats.norm.pdf(z) / stats.norm.pdf(z).sum()

    def dense_cdf(counts: np.ndarray) -> np.ndarray:
        if dispersion is None:
            return weights @ stats.poisson.cdf(counts, rates)
        return weights @ stats.nbinom.cdf(counts, 1 / dispersion, 1 / (1 + dispersion * rates))

    for counts in (np.zeros(5), np.array([1.0, 5.0, 30.0, 1100.0, 20000.0]), np.full(5, -1.0)):
        found = distribution.cdf(torch.from_numpy(counts))
        np.testing.assert_allclose(found.detach().numpy(), dense_cdf(counts), atol=1e-8)
    for level in (0.025, 0.5, 0.999):
        quantiles = predictive_quantiles(distribution, level).numpy()
        # The quadrature is off by 1e-6 where the predictor is 300 times less certain than the count, in the last row.
        assert (dense_cdf(quantiles) >= level - 5e-6).all() and (dense_cdf(quantiles - 1) < level + 5e-6).all()


Z = np.linspace(-9, 9, 8001)  # dense enough for the narrowest of these functions
WEIGHTS = stats.norm.pdf(Z) / stats.norm.pdf(Z).sum()


def assert_is_cdf(distribution: Distribution, dense: Callable[[np.ndarray], np.ndarray], counts: np.ndarray) -> None:
    """Its distribution function is the dense one, also between and below counts, and quantiles invert it."""
    for values in (counts, counts + 0.4, np.zeros_like(counts), np.full_like(counts, -1.0)):
        found = distribution.cdf(torch.from_numpy(values)).detach().numpy()
        np.testing.assert_allclose(found, dense(np.floor(values)), atol=1e-6)
    for level in (1e-3, 0.3, 0.975):
        quantiles = predictive_quantiles(distribution, level).numpy()
        assert (dense(quantiles) >= level - 5e-6).all() and (dense(quantiles - 1) < level + 5e-6).all()


def test_probabilities_and_quantiles_of_counts_with_more_zeros() -> None:
    likelihood = ZeroInflatedPoissonLikelihood().double()
    likelihood.inflation = 0.3
    mean = torch.tensor([-3.0, 0.5, 3.0, 7.0]).double()
    deviation = torch.tensor([1.0, 0.5, 0.01, 0.3]).double()
    exposure = torch.tensor([1.0, 2.0, 1.0, 3.0]).double()
    distribution = likelihood(MultivariateNormal(mean, torch.diag(deviation.square())), exposure=exposure)
    rates = exposure.numpy() * np.exp(mean.numpy() + deviation.numpy() * Z[:, None])

    def dense(counts: np.ndarray) -> np.ndarray:
        return np.where(counts < 0, 0.0, 0.3 + 0.7 * (WEIGHTS @ stats.poisson.cdf(counts, rates)))

    assert_is_cdf(distribution, dense, np.array([0.0, 3.0, 25.0, 3000.0]))


@pytest.mark.parametrize("link", ["logit", "probit"])
def test_probabilities_and_quantiles_of_successes(link: str) -> None:
    likelihood = BinomialLikelihood(link).double()
    mean = torch.tensor([0.3, -2.0, 1.0, 4.0, -0.2, 0.0]).double()
    deviation = torch.tensor([1.0, 0.5, 0.01, 1.0, 0.3, 3.0]).double()
    trials = torch.tensor([1.0, 5.0, 40.0, 40.0, 20000.0, 100.0]).double()
    distribution = likelihood(MultivariateNormal(mean, torch.diag(deviation.square())), trials=trials)
    shares = (special.expit if link == "logit" else stats.norm.cdf)(mean.numpy() + deviation.numpy() * Z[:, None])

    def dense(counts: np.ndarray) -> np.ndarray:
        return WEIGHTS @ stats.binom.cdf(counts, trials.numpy(), shares)

    assert_is_cdf(distribution, dense, np.array([1.0, 2.0, 30.0, 39.0, 9000.0, 99.0]))


def test_probabilities_and_quantiles_of_counts_with_a_predictor_of_the_dispersion() -> None:
    mean = torch.tensor([[0.5, -2.0], [3.0, 0.5], [6.0, -4.0], [1.0, -40.0]]).double()
    covariance = torch.tensor([[[0.2, 0.1], [0.1, 0.3]], [[0.01, 0.0], [0.0, 0.01]]] * 2).double()
    exposure = torch.tensor([1.0, 2.0, 1.0, 3.0]).double()
    predictors = MultitaskMultivariateNormal(mean, torch.block_diag(*covariance))
    distribution = NegativeBinomialMeanDispersionLikelihood().double()(predictors, exposure=exposure)
    z = np.linspace(-7, 7, 301)
    first, second = np.meshgrid(z, z, indexing="ij")
    weights = stats.norm.pdf(first) * stats.norm.pdf(second)
    weights /= weights.sum()

    def dense(counts: np.ndarray) -> np.ndarray:
        found = []
        for row, count in enumerate(counts):
            root = np.linalg.cholesky(covariance[row].numpy())
            rate = exposure[row].item() * np.exp(mean[row, 0].item() + root[0, 0] * first)
            dispersion = np.exp(np.clip(mean[row, 1].item() + root[1, 0] * first + root[1, 1] * second, -18.0, 30.0))
            found.append((weights * stats.nbinom.cdf(count, 1 / dispersion, 1 / (1 + dispersion * rate))).sum())
        return np.array(found)

    assert_is_cdf(distribution, dense, np.array([1.0, 30.0, 500.0, 8.0]))


def _given(family: str, first: np.ndarray, second: np.ndarray, size: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """The distribution function of responses, given predictors and what a likelihood has beside them."""
    if family == "poisson":
        return lambda y: stats.poisson.cdf(y, size * np.exp(first))
    if family == "negative binomial":
        return lambda y: stats.nbinom.cdf(y, 1 / 0.4, 1 / (1 + 0.4 * size * np.exp(first)))
    if family == "gamma":
        return lambda y: special.gammainc(2.5, 2.5 * np.maximum(y, 0) * np.exp(-first))
    return lambda y: stats.norm.cdf(y, first, np.exp(second))


def _likelihood(family: str) -> Any:
    if family == "negative binomial":
        found: Any = NegativeBinomialLikelihood()
        found.dispersion = 0.4
    elif family == "gamma":
        found = GammaLikelihood()
        found.shape = 2.5
    else:
        found = PoissonLikelihood() if family == "poisson" else GaussianLocationScaleLikelihood()
    return found.double()


@pytest.mark.parametrize("family", ["poisson", "negative binomial", "gamma", "location scale"])
def test_quantiles_of_several_models_invert_the_dense_distribution_function(family: str) -> None:
    num_rows, deviations = 12, (0.03, 0.2, 0.9)  # from few nodes to many
    means = 0.5 + torch.randn(3, num_rows, 2).double() * torch.tensor([1.5, 0.3])
    exposure = np.linspace(0.5, 40.0, num_rows)
    rows = {"exposure": torch.from_numpy(exposure)} if family in ("poisson", "negative binomial") else {}
    weights = torch.tensor([0.5, 0.2, 0.3]).double()
    z = np.linspace(-8.0, 8.0, 3001)
    parts, given = [], []
    for mean, deviation in zip(means, deviations, strict=True):
        if family == "location scale":  # whose log scale alone is integrated by nodes
            predictors: Any = MultitaskMultivariateNormal(
                mean, torch.diag(torch.tensor([1e-14, deviation**2]).double().repeat(num_rows))
            )
        else:
            predictors = MultivariateNormal(mean[:, 0], torch.eye(num_rows).double() * deviation**2)
        parts.append(_likelihood(family)(predictors, **rows))
        first, second = (each.numpy() + deviation * z[:, None] for each in mean.unbind(-1))
        given.append(_given(family, mean[:, 0].numpy() if family == "location scale" else first, second, exposure))
    normal = stats.norm.pdf(z) / stats.norm.pdf(z).sum()

    def dense(y: np.ndarray) -> np.ndarray:
        return sum(weight * (normal @ cdf(y)) for weight, cdf in zip(weights.tolist(), given, strict=True))

    mixture = WeightedMixture(parts, weights)
    for level, found in zip(LEVELS, predictive_quantiles(mixture, LEVELS).detach().numpy(), strict=True):
        if rows:
            assert (dense(found) >= level - 1e-8).all() and (dense(found - 1) < level + 1e-8).all()
        else:
            # 32 nodes in a log scale of standard deviation .9 are off by 1e-6
            np.testing.assert_allclose(dense(found), level, rtol=0, atol=1e-8 if family == "gamma" else 5e-6)
    values = torch.from_numpy(found[[3, 3, 0]])
    torch.testing.assert_close(
        mixture.cdf_in_rows(values, torch.tensor([3, 3, 0])), mixture.cdf(torch.from_numpy(found))[[3, 3, 0]]
    )
