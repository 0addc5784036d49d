"""Placement of inducing points."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gpytorch_gam.components import kmeans_points, quantile_points, regular_grid


def test_regular_grid_spans_interval_and_box() -> None:
    assert torch.equal(regular_grid(0.0, 1.0, 3), torch.tensor([[0.0], [0.5], [1.0]]))
    box = regular_grid([0.0, -1.0], [1.0, 1.0], [2, 3])
    assert box.shape == (6, 2)
    assert box.unique(dim=0).shape == (6, 2)
    assert torch.equal(box.amin(0), torch.tensor([0.0, -1.0]))
    assert torch.equal(box.amax(0), torch.tensor([1.0, 1.0]))
    assert torch.equal(regular_grid([0.0, 0.0], [1.0, 1.0], 4), regular_grid([0.0, 0.0], [1.0, 1.0], [4, 4]))


def test_quantiles_are_distinct_data_values_with_both_ends() -> None:
    values = torch.cat([torch.zeros(500), torch.randn(500)])  # half of the values are one
    points = quantile_points(values, 20)
    assert points.shape[-1] == 1
    assert 2 <= len(points) <= 20
    assert len(points.unique()) == len(points)
    assert points[0] == values.min()
    assert points[-1] == values.max()
    assert torch.isin(points, values).all()


def test_few_distinct_values_are_all_taken() -> None:
    values = torch.tensor([3, 1, 1, 2, 2, 3])
    assert torch.equal(quantile_points(values, 10), torch.tensor([[1.0], [2.0], [3.0]]))
    rows = torch.tensor([[0.0, 1.0], [0.0, 1.0], [2.0, 2.0]])
    assert torch.equal(kmeans_points(rows, 5), torch.tensor([[0.0, 1.0], [2.0, 2.0]]))


def test_kmeans_finds_separated_clusters_whatever_the_scale_of_the_columns() -> None:
    centres = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 5000.0]])
    values = (centres[:, None, :] + torch.randn(3, 100, 2) * torch.tensor([0.1, 50.0])).reshape(-1, 2)
    points = kmeans_points(values, 3)
    assert points.shape == (3, 2)
    distances = torch.cdist(points / torch.tensor([1.0, 500.0]), centres / torch.tensor([1.0, 500.0]))
    assert (distances.amin(0) < 0.2).all()


def test_kmeans_is_reproducible_and_survives_a_constant_column() -> None:
    values = torch.stack([torch.rand(200), torch.full((200,), 500.0)], dim=-1)
    first, second = kmeans_points(values, 6, seed=3), kmeans_points(values, 6, seed=3)
    assert torch.equal(first, second)
    assert torch.isfinite(first).all()
    torch.testing.assert_close(first[:, 1], torch.full_like(first[:, 1], 500.0))


def test_bounds_may_be_arrays_and_counts_must_be_integers() -> None:
    expected = regular_grid([0.0, 0.0], [1.0, 2.0], 3)
    assert torch.equal(regular_grid(np.zeros(2), torch.tensor([1.0, 2.0]), np.int64(3)), expected)
    for place in (lambda: regular_grid(0.0, 1.0, 2.5), lambda: quantile_points(torch.rand(9), True)):
        with pytest.raises(TypeError, match="num must be an integer"):
            place()


@pytest.mark.parametrize("place", [quantile_points, kmeans_points])
def test_placement_from_data_rejects_what_it_cannot_use(place: object) -> None:
    with pytest.raises(ValueError, match="NaN or infinity in 1 of 3 rows"):
        place(torch.tensor([1.0, float("nan"), 2.0]), 2)
    with pytest.raises(ValueError, match="non-empty"):
        place(torch.empty(0), 2)
    with pytest.raises(ValueError, match="num must be at least 1"):
        place(torch.rand(4), 0)


def test_grid_and_quantile_errors_name_the_arguments() -> None:
    with pytest.raises(ValueError, match="low must be below high"):
        regular_grid(1.0, 1.0, 4)
    with pytest.raises(ValueError, match="one entry a dimension"):
        regular_grid([0.0, 0.0], [1.0, 1.0], [4])
    with pytest.raises(ValueError, match="num must be at least 1"):
        regular_grid(0.0, 1.0, 0)
    with pytest.raises(ValueError, match="use kmeans_points"):
        quantile_points(torch.rand(4, 2), 2)
