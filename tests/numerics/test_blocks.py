"""Products that are known to be symmetric, against whole ones."""

from __future__ import annotations

import pytest
import torch

from gpytorch_gam.numerics.blocks import symmetric_product


@pytest.mark.parametrize("shape", [(1, 5), (64, 9), (150, 7), (2, 70, 5)])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_symmetric_products_are_whole_ones(shape: tuple[int, ...], requires_grad: bool) -> None:
    right = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    left = (right * torch.linspace(-1.0, 2.0, shape[-1], dtype=torch.float64)).requires_grad_(requires_grad)
    found = symmetric_product(left, right)
    torch.testing.assert_close(found, left @ right.mT)
    assert found.requires_grad == requires_grad
