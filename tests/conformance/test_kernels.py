"""GPyTorch's own kernel test case, on every kernel of the package."""

import unittest

import pytest
import torch
from gpytorch.kernels import Kernel, MaternKernel, PeriodicKernel, RBFKernel, RQKernel, ScaleKernel
from gpytorch.test.base_kernel_test_case import BaseKernelTestCase

import gpytorch_gam.kernels
from gpytorch_gam.kernels import ANOVAKernel, Empirical, Normal, Uniform


class OneColumnKernelTestCase(BaseKernelTestCase):
    """The test case on data with one column, since these kernels have one input."""

    def create_data_no_batch(self):
        return torch.randn(50, 10)

    def create_data_single_batch(self):
        return torch.randn(2, 3, 1)

    def create_data_double_batch(self):
        return torch.randn(3, 2, 50, 1)

    def test_active_dims_list(self):
        x = self.create_data_no_batch()
        for active_dims in ([0], [6], range(3, 4)):
            covar = self.create_kernel_no_ard(active_dims=list(active_dims))(x).evaluate_kernel().to_dense()
            expected = self.create_kernel_no_ard()(x[:, list(active_dims)]).evaluate_kernel().to_dense()
            self.assertAllClose(covar, expected, rtol=1e-3, atol=1e-5)

    def test_active_dims_range(self):
        kernel = self.create_kernel_no_ard(batch_shape=torch.Size([2]), active_dims=[4])
        x = torch.randn(2, 7, 6)
        self.assertAllClose(kernel(x).to_dense()[1], kernel[1](x[1]).to_dense(), rtol=1e-3, atol=1e-5)


class TestANOVAKernelRBFUniform(OneColumnKernelTestCase, unittest.TestCase):
    def create_kernel_no_ard(self, **kwargs):
        return ANOVAKernel(RBFKernel(batch_shape=kwargs.pop("batch_shape", None)), Uniform(-2.0, 1.5), **kwargs)


class TestANOVAKernelRBFNormal(OneColumnKernelTestCase, unittest.TestCase):
    def create_kernel_no_ard(self, **kwargs):
        return ANOVAKernel(RBFKernel(**kwargs), Normal(0.2, 0.5), normalize=False)


class TestANOVAKernelRBFEmpirical(OneColumnKernelTestCase, unittest.TestCase):
    def create_kernel_no_ard(self, **kwargs):
        return ANOVAKernel(RBFKernel(**kwargs), Empirical([-1.0, 0.0, 0.3, 1.2]))


class TestANOVAKernelRBFBatchOfMeasures(OneColumnKernelTestCase, unittest.TestCase):
    def create_kernel_no_ard(self, **kwargs):
        batch_shape = kwargs.pop("batch_shape", torch.Size([]))
        high = 1.0 + torch.arange(float(batch_shape.numel())).reshape(batch_shape)
        return ANOVAKernel(RBFKernel(), Uniform(-high, high), **kwargs)


class TestANOVAKernelScaled(OneColumnKernelTestCase, unittest.TestCase):
    def create_kernel_no_ard(self, **kwargs):
        batch_shape = kwargs.pop("batch_shape", None)
        scaled = ScaleKernel(RBFKernel(batch_shape=batch_shape), batch_shape=batch_shape)
        return ANOVAKernel(scaled, Normal(0.0, 1.0), normalize=False, **kwargs)


class TestANOVAKernelMaternUniform(OneColumnKernelTestCase, unittest.TestCase):
    def create_kernel_no_ard(self, **kwargs):
        return ANOVAKernel(MaternKernel(nu=1.5, **kwargs), Uniform(-2.0, 1.5), num_quadrature_nodes=16)


class TestANOVAKernelRQNormal(OneColumnKernelTestCase, unittest.TestCase):
    def create_kernel_no_ard(self, **kwargs):
        return ANOVAKernel(RQKernel(**kwargs), Normal(0.2, 0.5), num_quadrature_nodes=16)


class TestANOVAKernelPeriodicEmpirical(OneColumnKernelTestCase, unittest.TestCase):
    def create_kernel_no_ard(self, **kwargs):
        return ANOVAKernel(PeriodicKernel(**kwargs), Empirical([-1.0, 0.0, 0.3, 1.2]))


@pytest.mark.parametrize("name", gpytorch_gam.kernels.__all__)
def test_every_kernel_has_a_conformance_test(name):
    public = getattr(gpytorch_gam.kernels, name)
    if issubclass(public, Kernel):
        tested = {type(case().create_kernel_no_ard()) for case in OneColumnKernelTestCase.__subclasses__()}
        assert public in tested
