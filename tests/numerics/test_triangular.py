"""Cholesky factors that do not wait for a device."""

import pytest
import torch
from linear_operator.utils.warnings import NumericalWarning

from gpytorch_gam.numerics.triangular import cholesky, cholesky_or_nan, safe_cholesky


def test_the_factor_and_its_gradient() -> None:
    root = torch.randn(2, 4, 4).double()
    matrix = (root @ root.mT + torch.eye(4)).requires_grad_()
    for function in (cholesky, safe_cholesky, cholesky_or_nan):
        torch.testing.assert_close(function(matrix), torch.linalg.cholesky(matrix))
    assert torch.autograd.gradcheck(lambda values: cholesky_or_nan(values + values.mT), matrix)


def test_matrices_without_a_factor() -> None:
    matrices = torch.stack([torch.eye(2), torch.tensor([[1.0, 2.0], [2.0, 1.0]])]).double()
    factor = cholesky_or_nan(matrices)
    assert torch.equal(factor[0], torch.eye(2).double()) and factor[1].isnan().all()
    numbers = cholesky_or_nan(torch.tensor([[[4.0]], [[-1.0]], [[0.0]]]))
    assert numbers[0].item() == 2.0 and numbers[1:].isnan().all()
    with pytest.raises(torch.linalg.LinAlgError):
        cholesky(matrices)
    singular = torch.ones(2, 2).double()
    with pytest.warns(NumericalWarning, match="jitter"):
        assert torch.isfinite(safe_cholesky(singular)).all()
