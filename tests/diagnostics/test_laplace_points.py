"""Laplace's approximation and the points that stand for it, against dense algebra."""

from __future__ import annotations

import pytest
import torch

from gpytorch_gam.diagnostics._laplace_points import design, laplace, leading_directions, most_directions


@pytest.mark.parametrize("number", [1, 2, 3, 4, 7, 8, 15])
def test_points_have_mean_zero_and_unit_covariance(number: int) -> None:
    points = design(number)
    assert number < len(points) <= 2 * number and set(points.unique().tolist()) == {-1.0, 1.0}
    assert torch.equal(points.mean(0), torch.zeros(number).double())
    assert torch.equal(points.mT @ points / len(points), torch.eye(number).double())


def test_as_many_directions_as_points_allow() -> None:
    assert [most_directions(number) for number in (2, 3, 4, 8, 15, 16)] == [1, 1, 3, 7, 7, 15]
    assert all(len(design(most_directions(number))) <= number for number in range(2, 40))


def test_covariance_is_the_inverse_curvature_with_the_prior() -> None:
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(4, 4, generator=generator).double()
    found = laplace(root @ root.mT, 0.25)
    torch.testing.assert_close(found.covariance, torch.linalg.inv(root @ root.mT + 0.25 * torch.eye(4).double()))
    torch.testing.assert_close(found.root @ found.root.mT, found.covariance)


def test_where_the_bound_rises_the_prior_alone_counts() -> None:
    found = laplace(torch.diag(torch.tensor([3.0, -2.0])).double(), 0.25)
    torch.testing.assert_close(found.covariance, torch.diag(torch.tensor([1 / 3.25, 4.0])).double())
    assert found.least_curvature == -2.0


def test_directions_hold_nearly_all_of_the_change_and_are_those_of_the_largest() -> None:
    generator = torch.Generator().manual_seed(1)
    root = torch.randn(5, 5, generator=generator).double()
    changes = torch.randn(5, 30, generator=generator).double()
    changes[2:] *= 1e-3
    directions = leading_directions(root, changes, 5)
    assert directions.shape == (5, 2)
    total, kept = root.mT @ changes, directions.mT @ changes
    assert kept.square().sum() > 0.99 * total.square().sum()
    first = leading_directions(root, changes, 1)
    torch.testing.assert_close((first.mT @ changes).square().sum(), torch.linalg.svdvals(total)[0].square())
    white = torch.linalg.solve(root, directions)
    torch.testing.assert_close(white.mT @ white, torch.eye(2).double())


def test_quantities_that_do_not_change_leave_a_direction() -> None:
    root = torch.eye(3).double()
    assert leading_directions(root, torch.zeros(3, 8).double(), 2).shape == (3, 1)
