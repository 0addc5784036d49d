"""Structured fits of a dense precision: blocks stay positive, and nothing is worse than mean-field."""

from __future__ import annotations

import warnings

import pytest
import torch

from gpytorch_gam import BlockLowRankPrecisionVariationalDistribution, LowRankPrecisionVariationalDistribution
from gpytorch_gam.variational._structured_fit import inverse_cholesky, truncation_gap
from gpytorch_gam.warnings import RankWarning


def random_excess(generator: torch.Generator, sizes: list[int]) -> torch.Tensor:
    """A data precision of random rank and spread, with strong and weak directions."""
    total = sum(sizes)
    rank = int(torch.randint(1, 2 * total, (), generator=generator))
    scale = 10.0 ** torch.empty(rank, dtype=torch.float64).uniform_(-2, 3, generator=generator)
    features = torch.randn(total, rank, dtype=torch.float64, generator=generator) * scale.sqrt()
    return features @ features.mT


def gap(precision: torch.Tensor, covariance: torch.Tensor) -> torch.Tensor:
    """KL in nats of the fitted Gaussian to the target of the same mean: what the ELBO loses."""
    size = precision.shape[-1]
    return 0.5 * ((precision @ covariance).diagonal().sum() - size - torch.logdet(precision) - torch.logdet(covariance))


def fitted_covariance(distribution: object, precision: torch.Tensor) -> torch.Tensor:
    distribution.double().fit_precision(precision)
    return distribution().covariance_matrix


@pytest.mark.parametrize("seed", range(10))
def test_a_thousand_random_problems(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(100):
        num_blocks = int(torch.randint(1, 5, (), generator=generator))
        sizes = torch.randint(1, 6, (num_blocks,), generator=generator).tolist()
        rank = int(torch.randint(0, sum(sizes) + 1, (), generator=generator))
        excess = random_excess(generator, sizes)
        precision = torch.eye(sum(sizes), dtype=torch.float64) + excess
        fitted = BlockLowRankPrecisionVariationalDistribution(sizes, rank=rank)
        covariance = fitted_covariance(fitted, precision)
        mean_field = BlockLowRankPrecisionVariationalDistribution(sizes, rank=0)
        reference = gap(precision, fitted_covariance(mean_field, precision))
        assert gap(precision, covariance) <= reference * (1 + 1e-8) + 1e-8
        assert (torch.linalg.eigvalsh(torch.linalg.inv(covariance)) >= 1 - 1e-6 * precision.abs().max()).all()


@pytest.mark.parametrize("rank", [0, 3, 8])
def test_low_rank_fit_loses_what_the_closed_form_says(rank: int) -> None:
    excess = random_excess(torch.Generator().manual_seed(1), [4, 4])
    precision = torch.eye(8, dtype=torch.float64) + excess
    fitted, expected = LowRankPrecisionVariationalDistribution(8, rank=rank), truncation_gap(excess, rank)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        lost = gap(precision, fitted_covariance(fitted, precision))
    torch.testing.assert_close(lost, expected, rtol=1e-7, atol=1e-7)
    messages = [str(w.message) for w in caught if w.category is RankWarning]
    assert messages == ([] if expected < 10 else messages[:1])
    assert all(f"rank {rank} leaves the bound {expected:.1f} nats below" in message for message in messages)


def test_fits_are_exact_at_full_rank_and_batched() -> None:
    excess = torch.stack([random_excess(torch.Generator().manual_seed(s), [3, 3, 2]) for s in range(2)])
    precision = torch.eye(8, dtype=torch.float64) + excess
    low_rank = LowRankPrecisionVariationalDistribution(8, rank=8, batch_shape=torch.Size([2]))
    torch.testing.assert_close(torch.linalg.inv(fitted_covariance(low_rank, precision)), precision)
    block = BlockLowRankPrecisionVariationalDistribution([3, 3, 2], rank=2, batch_shape=torch.Size([2]))
    covariance = fitted_covariance(block, precision)
    for index in range(2):
        single = BlockLowRankPrecisionVariationalDistribution([3, 3, 2], rank=2)
        torch.testing.assert_close(covariance[index], fitted_covariance(single, precision[index]))


def test_inverse_cholesky() -> None:
    precision = torch.eye(5, dtype=torch.float64) + random_excess(torch.Generator().manual_seed(0), [5])
    root = inverse_cholesky(precision)
    assert torch.equal(root, root.tril())
    torch.testing.assert_close(root @ root.mT, torch.linalg.inv(precision))
