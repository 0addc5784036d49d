"""Kernels evaluated to plain tensors, against GPyTorch's lazy matrices."""

from __future__ import annotations

import pytest
import torch
from gpytorch.kernels import Kernel, LinearKernel, MaternKernel, RBFKernel, ScaleKernel
from torch import Tensor

from gpytorch_gam.kernels import ANOVAKernel, Uniform
from gpytorch_gam.kernels.evaluation import evaluate

BATCH = torch.Size([3])
KERNELS = {
    "scaled": ScaleKernel(ANOVAKernel(RBFKernel(batch_shape=BATCH), Uniform(0.0, 1.0)), batch_shape=BATCH),
    "some columns": ScaleKernel(MaternKernel(active_dims=[1])),
    "sum of products": RBFKernel(active_dims=[0]) * LinearKernel(active_dims=[1]) + MaternKernel(ard_num_dims=2),
}


@pytest.mark.parametrize("name", KERNELS)
def test_matrices_are_those_of_gpytorch(name: str) -> None:
    kernel = KERNELS[name]
    num_columns = 1 if name == "scaled" else 2
    left, right = torch.rand(3, 5, num_columns), torch.rand(7, num_columns)
    torch.testing.assert_close(evaluate(kernel, left, right), kernel(left, right).to_dense(), rtol=0, atol=0)
    torch.testing.assert_close(evaluate(kernel, right), kernel(right).to_dense(), rtol=0, atol=0)


class Forgetful(Kernel):
    """A kernel that drops its batch dimensions, or gives a matrix of another size."""

    has_lengthscale = False

    def __init__(self, row: slice = slice(None), **options: object) -> None:
        super().__init__(**options)
        self.row = row

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: object) -> Tensor:
        return x1[self.row] @ x2.mT


@pytest.mark.parametrize("kernel", [Forgetful(batch_shape=BATCH), Forgetful(slice(2))])
def test_a_kernel_whose_matrix_has_another_shape_is_an_error(kernel: Kernel) -> None:
    with pytest.raises(RuntimeError, match=r"Forgetful must give a matrix of shape \(.*5, 7\).* got \("):
        evaluate(kernel, torch.rand(5, 2), torch.rand(7, 2))
