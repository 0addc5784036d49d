"""Structured fits of a dense precision: blocks stay positive, and nothing is worse than mean-field."""

from __future__ import annotations

import itertools
import warnings

import pytest
import torch

from gpytorch_gam import BlockLowRankPrecisionVariationalDistribution, LowRankPrecisionVariationalDistribution
from gpytorch_gam.numerics.blocks import diagonal_blocks
from gpytorch_gam.numerics.precision_fit import fit_block_low_rank, inverse_cholesky, rank_for_tolerance, truncation_gap
from gpytorch_gam.warnings import RankWarning
from tests.problems import gap, random_excess


def fitted_covariance(distribution: object, precision: torch.Tensor) -> torch.Tensor:
    distribution.double().fit_precision(precision)
    return distribution().covariance_matrix


@pytest.mark.parametrize("seed", range(3))
def test_random_problems(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(40):
        num_blocks = int(torch.randint(1, 5, (), generator=generator))
        sizes = torch.randint(1, 6, (num_blocks,), generator=generator).tolist()
        rank = int(torch.randint(0, sum(sizes) + 1, (), generator=generator))
        excess = random_excess(generator, sizes)
        precision = torch.eye(sum(sizes), dtype=torch.float64) + excess
        fitted = BlockLowRankPrecisionVariationalDistribution([(1, size) for size in sizes], rank=rank)
        covariance = fitted_covariance(fitted, precision)
        mean_field = BlockLowRankPrecisionVariationalDistribution([(1, size) for size in sizes], rank=0)
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
    block = BlockLowRankPrecisionVariationalDistribution([(2, 3), (1, 2)], rank=2, batch_shape=torch.Size([2]))
    covariance = fitted_covariance(block, precision)
    for index in range(2):
        single = BlockLowRankPrecisionVariationalDistribution([(2, 3), (1, 2)], rank=2)
        torch.testing.assert_close(covariance[index], fitted_covariance(single, precision[index]))


def test_inverse_cholesky() -> None:
    precision = torch.eye(5, dtype=torch.float64) + random_excess(torch.Generator().manual_seed(0), [5])
    root = inverse_cholesky(precision)
    assert torch.equal(root, root.tril())
    torch.testing.assert_close(root @ root.mT, torch.linalg.inv(precision))


# ---------------------------------------------------------------------------------------------------- factor analysis


def random_blocks(generator: torch.Generator) -> tuple[list[int], torch.Tensor]:
    num_blocks = int(torch.randint(2, 5, (), generator=generator))
    sizes = torch.randint(2, 6, (num_blocks,), generator=generator).tolist()
    return sizes, random_excess(generator, sizes)


def composed(roots: list[torch.Tensor], factor: torch.Tensor) -> torch.Tensor:
    """I + blockdiag(E E') + B B'."""
    blocks = torch.block_diag(*(root @ root.mT for run in roots for root in run))
    return torch.eye(len(blocks), dtype=torch.float64) + blocks + factor @ factor.mT


def directly_minimised(
    precision: torch.Tensor, roots: list[torch.Tensor], factor: torch.Tensor, generator: torch.Generator
) -> float:
    """The divergence after L-BFGS on all entries, from a perturbed copy."""

    def perturbed(tensor: torch.Tensor) -> torch.Tensor:
        noise = torch.randn(tensor.shape, dtype=tensor.dtype, generator=generator)
        return (tensor + 0.02 * noise).contiguous().requires_grad_()

    new_roots, new_factor = [perturbed(root) for root in roots], perturbed(factor)
    optimizer = torch.optim.LBFGS(
        [*new_roots, new_factor], max_iter=300, history_size=30, line_search_fn="strong_wolfe", tolerance_change=1e-9
    )

    def divergence() -> torch.Tensor:
        return gap(precision, torch.linalg.inv(composed(new_roots, new_factor)))

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = divergence()
        loss.backward()
        return loss

    optimizer.step(closure)
    return divergence().item()


def test_factor_analysis_is_close_to_direct_minimisation() -> None:
    shares = []
    for seed in range(12):
        generator = torch.Generator().manual_seed(seed)
        sizes, excess = random_blocks(generator)
        precision, shapes = torch.eye(sum(sizes), dtype=torch.float64) + excess, [(1, size) for size in sizes]
        rank = int(torch.randint(1, max(2, sum(sizes) // 2), (), generator=generator))
        roots, factor = fit_block_low_rank(excess, shapes, rank, sizes)
        lost = gap(precision, torch.linalg.inv(composed(roots, factor))).item()
        best = directly_minimised(precision, roots, factor, generator)
        alone, nothing = fit_block_low_rank(excess, shapes, 0, sizes)
        mean_field = gap(precision, torch.linalg.inv(composed(alone, nothing))).item()
        assert best <= lost + 1e-6
        shares.append((lost - best) / mean_field)
    # Rounds converge linearly and stop early: a few hundredths of what mean-field loses are left.
    assert max(shares) < 0.08
    assert sorted(shares)[6] < 0.02


@pytest.mark.parametrize("seed", range(5))
def test_factor_analysis_improves_with_the_rank(seed: int) -> None:
    sizes, excess = random_blocks(torch.Generator().manual_seed(seed))
    precision, shapes = torch.eye(sum(sizes), dtype=torch.float64) + excess, [(1, size) for size in sizes]
    lost = []
    for rank in range(sum(sizes) + 1):
        roots, factor = fit_block_low_rank(excess, shapes, rank, sizes)
        assert factor.shape == (sum(sizes), rank)
        lost.append(gap(precision, torch.linalg.inv(composed(roots, factor))).item())
    # Each rank is fitted from the start and to its own accuracy.
    assert all(after <= before + 0.02 * lost[0] for before, after in itertools.pairwise(lost))
    assert lost[-1] == pytest.approx(0.0, abs=1e-6)


def test_factor_analysis_keeps_the_diagonal_blocks_within_the_boundary() -> None:
    """A precision of the family, with large blocks: nothing pushes them to their boundary."""
    generator = torch.Generator().manual_seed(0)
    factor = torch.randn(12, 2, dtype=torch.float64, generator=generator)
    roots = [3 * torch.randn(1, 4, 4, dtype=torch.float64, generator=generator) for _ in range(3)]
    other = 0.3 * torch.randn(12, 6, dtype=torch.float64, generator=generator)
    excess = composed(roots, factor) + other @ other.mT - torch.eye(12, dtype=torch.float64)
    shapes = [(1, 4), (2, 4)]
    fitted, shared = fit_block_low_rank(excess, shapes, 2, [4, 4])
    found = composed(fitted, shared) - torch.eye(12, dtype=torch.float64)
    for actual, expected, block in zip(
        diagonal_blocks(found, shapes), diagonal_blocks(excess, shapes), fitted, strict=True
    ):
        assert torch.linalg.svdvals(block).min() > 0.01
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("tolerance", [0.1, 1.0])
def test_an_automatic_rank_keeps_its_promise(tolerance: float, seed: int) -> None:
    sizes, excess = random_blocks(torch.Generator().manual_seed(seed))
    precision, shapes = torch.eye(sum(sizes), dtype=torch.float64) + excess, [(1, size) for size in sizes]
    rank = rank_for_tolerance(excess, shapes, tolerance)
    roots, factor = fit_block_low_rank(excess, shapes, rank, sizes)
    assert gap(precision, torch.linalg.inv(composed(roots, factor))) <= tolerance + 1e-6
    rank = rank_for_tolerance(excess, None, tolerance)
    assert truncation_gap(excess, rank) <= tolerance
    assert rank == 1 or truncation_gap(excess, rank - 1) > tolerance


def test_an_automatic_rank_starts_from_the_least_one() -> None:
    sizes, excess = random_blocks(torch.Generator().manual_seed(0))
    shapes = [(1, size) for size in sizes]
    for blocks in (shapes, None):
        enough = rank_for_tolerance(excess, blocks, 1.0)
        assert rank_for_tolerance(excess, blocks, 1.0, least=enough) == enough
        assert rank_for_tolerance(excess, blocks, 1.0, least=enough + 1) == enough + 1
        assert rank_for_tolerance(excess, blocks, 1.0, least=2) >= 2
