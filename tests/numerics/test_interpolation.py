"""Tables of smooth functions, against their values."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from gpytorch_gam.numerics.interpolation import by_table

SCALES = torch.tensor([[0.3], [5.0]], dtype=torch.float64)


class Mixtures:
    """Gaussians with the scales of two components, which remember the numbers of points of their calls."""

    def __init__(self) -> None:
        self.places = torch.rand(2, 9, dtype=torch.float64) * 4 - 1
        self.num_points: list[int] = []

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Their mean, and the first of them with the other sign."""
        self.num_points.append(x.shape[-1])
        values = torch.exp(-0.5 * ((x.unsqueeze(-1) - self.places.unsqueeze(-2)) / SCALES.unsqueeze(-1)).square())
        return values.mean(-1), -values[..., 0]


@torch.no_grad()
@pytest.mark.parametrize("spread", [1e-9, 0.1, 1.0, 20.0])
def test_values_are_those_of_the_functions(spread: float) -> None:
    function, x = Mixtures(), spread * torch.rand(2, 20000, dtype=torch.float64)
    x[:, 0], x[:, 1] = 0.0, spread
    for value, expected in zip(by_table(function, x, SCALES), function(x), strict=True):
        torch.testing.assert_close(value, expected, rtol=0, atol=5e-15)
    cells = max(1, math.ceil(spread / 0.3 / 0.25))
    assert function.num_points == [10 * cells, 20000]


@torch.no_grad()
def test_equal_points() -> None:
    x = torch.full((2, 100), 0.7, dtype=torch.float64)
    function = Mixtures()
    for value, expected in zip(by_table(function, x, SCALES), function(x), strict=True):
        torch.testing.assert_close(value, expected, rtol=0, atol=5e-15)
    assert function.num_points == [10, 100]


def test_without_a_table() -> None:
    function, x = Mixtures(), torch.rand(2, 1000, dtype=torch.float64)
    by_table(function, x, SCALES)  # with gradients
    with torch.no_grad():
        by_table(function, x[:, :30], SCALES)
        by_table(function, 1000 * x, SCALES)
        by_table(function, torch.cat([x, torch.full((2, 1), torch.nan, dtype=torch.float64)], -1), SCALES)
        by_table(function, x[:, :0], SCALES)
    assert function.num_points == [1000, 30, 1000, 1001, 0]
