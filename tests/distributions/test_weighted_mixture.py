"""A mixture of any distributions against torch's of one family."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import Binomial, Categorical, MixtureSameFamily, Normal, Poisson, StudentT

from gpytorch_gam.distributions import predictive_quantiles
from gpytorch_gam.distributions.weighted_mixture import WeightedMixture

WEIGHTS = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
PLACES = torch.tensor([[0.0, 1.0], [0.5, 2.0], [3.0, -1.0]], dtype=torch.float64)
SCALES = torch.tensor([[1.0, 0.1], [0.3, 1.0], [2.0, 0.5]], dtype=torch.float64)


def of_normals() -> tuple[WeightedMixture, MixtureSameFamily]:
    parts = [Normal(*pair) for pair in zip(PLACES, SCALES, strict=True)]
    weights = Categorical(WEIGHTS.expand(2, 3))
    return WeightedMixture(parts, WEIGHTS), MixtureSameFamily(weights, Normal(PLACES.mT, SCALES.mT))


@pytest.mark.parametrize("attribute", ["mean", "variance", "stddev"])
def test_moments(attribute: str) -> None:
    own, other = of_normals()
    torch.testing.assert_close(getattr(own, attribute), getattr(other, attribute))


@pytest.mark.parametrize("method", ["log_prob", "cdf"])
def test_densities_and_probabilities(method: str) -> None:
    own, other = of_normals()
    values = torch.linspace(-3.0, 4.0, 11).double().unsqueeze(-1).expand(11, 2)
    torch.testing.assert_close(getattr(own, method)(values), getattr(other, method)(values))


def test_quantiles_are_those_of_the_distribution_function() -> None:
    own, _ = of_normals()
    quantiles = predictive_quantiles(own, [0.025, 0.5, 0.975])
    torch.testing.assert_close(own.cdf(quantiles), torch.tensor([[0.025], [0.5], [0.975]]).double().expand(3, 2))


def test_quantiles_of_counts_are_counts() -> None:
    own = WeightedMixture([Poisson(torch.tensor([2.0])), Poisson(torch.tensor([9.0]))], torch.tensor([0.5, 0.5]))
    found = predictive_quantiles(own, 0.4)
    counts = torch.arange(30.0).unsqueeze(-1)
    cumulated = own.log_prob(counts).exp().cumsum(0)
    assert found.item() == int((cumulated < 0.4).sum())


def test_draws_have_the_moments_and_parts_may_be_of_several_kinds() -> None:
    torch.manual_seed(0)
    own, _ = of_normals()
    draws = own.sample(torch.Size([200_000]))
    torch.testing.assert_close(draws.mean(0), own.mean, atol=0.02, rtol=0)  # five standard errors
    torch.testing.assert_close(draws.var(0), own.variance, atol=0.06, rtol=0)
    mixed = WeightedMixture([Normal(PLACES[0], SCALES[0]), StudentT(5.0, PLACES[1], SCALES[1])], WEIGHTS[:2] / 0.7)
    assert mixed.sample().shape == (2,) and torch.isfinite(mixed.log_prob(PLACES[2])).all()
    assert mixed.expand((4, 2)).mean.shape == (4, 2)


def test_quantiles_of_bounded_counts_stay_within_their_support() -> None:
    parts = [
        MixtureSameFamily(
            Categorical(torch.ones(3, 2)), Binomial(2.0, torch.full((3, 2), chance).double()), validate_args=False
        )
        for chance in (0.2, 0.9)
    ]
    mixture = WeightedMixture(parts, torch.tensor([0.5, 0.5], dtype=torch.float64))
    median, most = predictive_quantiles(mixture, [0.5, 0.999])
    cumulated = [0.5 * (0.8**2 + 0.1**2), 0.5 * (1 - 0.2**2 + 1 - 0.9**2)]
    assert cumulated[0] < 0.5 < cumulated[1] and (median == 1).all() and (most == 2).all()


def test_probabilities_of_classes_are_averaged() -> None:
    first, second = torch.tensor([[0.2, 0.8]]).double(), torch.tensor([[0.6, 0.4]]).double()
    mixture = WeightedMixture([Categorical(first), Categorical(second)], torch.tensor([0.25, 0.75]).double())
    torch.testing.assert_close(mixture.probs, 0.25 * first + 0.75 * second)
