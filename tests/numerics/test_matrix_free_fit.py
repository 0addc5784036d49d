"""Structured fits of a precision that is known by its products: blocks stay positive, no worse than mean-field."""

from __future__ import annotations

import pytest
import torch

from gpytorch_gam.numerics.blocks import diagonal_blocks
from gpytorch_gam.numerics.capacitance import add_identity
from gpytorch_gam.numerics.matrix_free_fit import (
    fit_from_scratch,
    fit_round,
    leading_factor,
    mixed_product,
    remainder_factors,
)
from tests.problems import gap, random_excess


def fit_covariance(directions: torch.Tensor, roots: list[torch.Tensor], rank: int) -> torch.Tensor:
    blocks = torch.block_diag(*(root @ root.mT for run in roots for root in run))
    return torch.linalg.inv(add_identity(blocks + directions[:, :rank] @ directions[:, :rank].mT))


@pytest.mark.parametrize("seed", [0, 3, 6])  # the last two have a fit that would be worse than its blocks alone
def test_random_fits_are_semidefinite_and_no_worse_than_mean_field(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(40):
        sizes = torch.randint(1, 6, (int(torch.randint(1, 5, (), generator=generator)),), generator=generator).tolist()
        total = sum(sizes)
        rank = int(torch.randint(1, total + 1, (), generator=generator))
        shapes = [(1, size) for size in sizes]
        excess = random_excess(generator, sizes)
        precision, totals = add_identity(excess), diagonal_blocks(excess, shapes)
        start = torch.randn(total, min(rank + 2, total), dtype=torch.float64, generator=generator)
        fit = fit_from_scratch(lambda columns, g=excess: g @ columns, totals, start, rank, 2)
        assert_blocks_are_those_of(excess, fit, rank, shapes)
        mean_field = fit_covariance(start[:, :0], remainder_factors(totals, None), 0)
        reference = gap(precision, mean_field)
        assert gap(precision, fit_covariance(fit.directions, fit.block_factors, rank)) <= reference * (1 + 1e-8) + 1e-8

        # A step of 0.2 towards other data.
        other, factor = random_excess(generator, sizes), fit.directions[:, :rank]
        own = [0.8 * root @ root.mT for root in fit.block_factors]
        target = 0.8 * factor @ factor.mT + torch.block_diag(*(b for run in own for b in run)) + 0.2 * other
        apply = mixed_product(lambda columns, g=other: g @ columns, factor, 0.2)
        fit = fit_round(apply, own, diagonal_blocks(target, shapes), fit.directions, rank, 2)
        assert_blocks_are_those_of(target, fit, rank, shapes)


def assert_blocks_are_those_of(excess: torch.Tensor, fit: object, rank: int, shapes: list[tuple[int, int]]) -> None:
    """That E E' equals the remainder says that the remainder is positive semidefinite up to the tolerance."""
    shared = diagonal_blocks(fit.directions[:, :rank] @ fit.directions[:, :rank].mT, shapes)
    for total, inner, root in zip(diagonal_blocks(excess, shapes), shared, fit.block_factors, strict=True):
        tolerance = 1e-9 * (1 + total.diagonal(dim1=-2, dim2=-1).amax())
        assert torch.linalg.eigvalsh(total - inner).min() >= -tolerance
        assert ((root @ root.mT) - (total - inner)).abs().max() <= 1000 * tolerance


def test_a_factor_from_a_poor_subspace_leaves_a_semidefinite_remainder() -> None:
    matrix = random_excess(torch.Generator().manual_seed(3), [5, 5])
    factor, _ = leading_factor(lambda columns: matrix @ columns, torch.randn(10, 4, dtype=torch.float64), 1)
    for columns in range(5):
        remainder = matrix - factor[:, :columns] @ factor[:, :columns].mT
        assert torch.linalg.eigvalsh(remainder).min() >= -1e-10 * matrix.trace()


def test_a_precision_of_the_family_is_its_own_fit() -> None:
    factor, roots = torch.randn(10, 2, dtype=torch.float64) * 5, [torch.randn(2, 5, 5, dtype=torch.float64)]
    own = [roots[0] @ roots[0].mT]
    totals = [own[0] + torch.stack([part @ part.mT for part in factor.split(5)])]
    start = torch.cat([factor, torch.randn(10, 2, dtype=torch.float64)], dim=1)
    fit = fit_round(mixed_product(torch.zeros_like, factor, 0.0), own, totals, start, 2, 2)
    torch.testing.assert_close(fit.directions[:, :2] @ fit.directions[:, :2].mT, factor @ factor.mT)
    torch.testing.assert_close(fit.block_factors[0] @ fit.block_factors[0].mT, own[0])
