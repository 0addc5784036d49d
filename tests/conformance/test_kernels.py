"""GPyTorch's own kernel test case, on every kernel of the package."""

import math
import unittest

import gpytorch
import pytest
import torch
from gpytorch.kernels import Kernel, MaternKernel, PeriodicKernel, RBFKernel, RQKernel, ScaleKernel
from gpytorch.test.base_kernel_test_case import BaseKernelTestCase

import gpytorch_gam.kernels
from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup
from gpytorch_gam.kernels import (
    ANOVAKernel,
    CentredKernel,
    CentredLinearKernel,
    Empirical,
    LevelKernel,
    Normal,
    OrdinalKernel,
    Uniform,
)
from gpytorch_gam.projection.separable_form import separable_form


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


class KernelWithoutParametersTestCase(OneColumnKernelTestCase):
    """Such a kernel has the dtype of its inputs, whatever GPyTorch's property says."""

    def test_kernel_dtype_device(self):
        for dtype in (torch.float32, torch.float64):
            x = self.create_data_no_batch()[:, :1].to(dtype)
            self.assertEqual(self.create_kernel_no_ard()(x).to_dense().dtype, dtype)
            self.assertEqual(self.create_kernel_no_ard().to(torch.float64)(x, diag=True).dtype, dtype)


class LevelData:
    """Levels -2 to 2, and in the last rows ones that are in no list."""

    def create_data_no_batch(self):
        return torch.randint(-2, 4, (50, 10)).float()

    def create_data_single_batch(self):
        return torch.tensor([[0.0, 1.0, 0.0], [3.0, -2.0, 3.0]]).unsqueeze(-1)

    def create_data_double_batch(self):
        return torch.randint(-2, 4, (3, 2, 50, 1)).float()


class TestLevelKernel(LevelData, KernelWithoutParametersTestCase, unittest.TestCase):
    def create_kernel_no_ard(self, batch_shape=None, **kwargs):
        return LevelKernel(**kwargs)


class TestOrdinalKernel(LevelData, OneColumnKernelTestCase, unittest.TestCase):
    def create_kernel_no_ard(self, **kwargs):
        return OrdinalKernel([0.0, 2.0, -1.0, 1.0, -2.0], **kwargs)


class TestCentredKernelOfLevels(LevelData, KernelWithoutParametersTestCase, unittest.TestCase):
    def create_kernel_no_ard(self, batch_shape=None, **kwargs):
        return CentredKernel(LevelKernel(), torch.arange(-2.0, 3.0), **kwargs)


class TestCentredKernelOfOrderedLevels(LevelData, OneColumnKernelTestCase, unittest.TestCase):
    def create_kernel_no_ard(self, batch_shape=None, **kwargs):
        levels = torch.arange(-2.0, 3.0)
        return CentredKernel(
            OrdinalKernel(levels, batch_shape=batch_shape), levels, [1.0, 2.0, 0.0, 3.0, 4.0], **kwargs
        )


class TestCentredKernelMatern(OneColumnKernelTestCase, unittest.TestCase):
    def create_kernel_no_ard(self, batch_shape=None, **kwargs):
        return CentredKernel(MaternKernel(nu=1.5, batch_shape=batch_shape), [-1.0, 0.0, 0.3, 1.2], **kwargs)


class TestCentredKernelProductOfBatch(OneColumnKernelTestCase, unittest.TestCase):
    def create_kernel_no_ard(self, batch_shape=None, **kwargs):
        base = RBFKernel(batch_shape=batch_shape) * RQKernel()
        return CentredKernel(base, [-1.0, 0.0, 0.3, 1.2], normalize=False, **kwargs)


class TestCentredKernelBatchOfPoints(OneColumnKernelTestCase, unittest.TestCase):
    def create_kernel_no_ard(self, batch_shape=(), **kwargs):
        batch_shape = torch.Size(batch_shape)
        shift = torch.arange(float(batch_shape.numel())).reshape(*batch_shape, 1, 1)
        points = torch.tensor([[-1.0], [0.0], [0.3], [1.2]]) + shift
        return CentredKernel(RBFKernel(), points, [0.1, 0.2, 0.3, 0.4], **kwargs)


class TestCentredLinearKernel(KernelWithoutParametersTestCase, unittest.TestCase):
    def create_kernel_no_ard(self, batch_shape=(), **kwargs):
        centres = torch.arange(float(math.prod(batch_shape))).reshape(batch_shape)
        return CentredLinearKernel(centres, 1.7, **kwargs)


BATCH = torch.Size([2])
LEVELS = torch.arange(4.0)
GRID = torch.linspace(0.0, 1.0, 6)

# Kernel, inducing points (M x d), whether these determine the component.
PLAIN_KERNELS = {
    "levels": lambda: (LevelKernel(), LEVELS.unsqueeze(-1), True),
    "ordinal": lambda: (OrdinalKernel(LEVELS, batch_shape=BATCH), LEVELS.unsqueeze(-1), True),
    "factor": lambda: (CentredKernel(LevelKernel(), LEVELS), LEVELS[1:].unsqueeze(-1), True),
    "centred ordinal": lambda: (
        CentredKernel(OrdinalKernel(LEVELS, batch_shape=BATCH), LEVELS),
        LEVELS[1:].unsqueeze(-1),
        True,
    ),
    "linear": lambda: (CentredLinearKernel(torch.tensor([0.3, 1.4]), 0.4), torch.ones(1, 1), True),
    "space": lambda: (
        CentredKernel(MaternKernel(nu=1.5, batch_shape=BATCH), torch.cartesian_prod(GRID, LEVELS)),
        torch.cartesian_prod(GRID[::2], LEVELS),
        False,
    ),
    "interaction": lambda: (
        ANOVAKernel(RBFKernel(batch_shape=BATCH), Uniform(0.0, 1.0), active_dims=[0])
        * CentredKernel(LevelKernel(), LEVELS, active_dims=[1]),
        torch.cartesian_prod(GRID, LEVELS[1:]),
        False,
    ),
    "curve a level": lambda: (
        RBFKernel(batch_shape=BATCH, active_dims=[0]) * LevelKernel(active_dims=[1]),
        torch.cartesian_prod(GRID, LEVELS),
        False,
    ),
}


@pytest.fixture(params=PLAIN_KERNELS)
def plain_group(request):
    """Two components of columns 0 (and 1), and 1 (and 2), columns 1 and 2 holding levels."""
    torch.manual_seed(0)
    kernel, points, exact = PLAIN_KERNELS[request.param]()
    first = 0 if points.shape[-1] > 1 else 1
    columns = [list(range(c, c + points.shape[-1])) for c in (first, first + 1)]
    return ComponentGroup(ScaleKernel(kernel, batch_shape=BATCH), columns, points, exact=exact)


def data(dtype):
    generator = torch.Generator().manual_seed(1)
    columns = torch.randint(4, (40, 3), generator=generator).to(dtype)
    columns[:, 0] = torch.rand(40, dtype=dtype, generator=generator)
    return columns, torch.randn(40, dtype=dtype, generator=generator)


def test_kernels_of_unknown_kind_take_the_plain_path(plain_group):
    x, _ = data(torch.float32)
    assert separable_form(plain_group.kernel, plain_group.inducing_points, plain_group.select(x)) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_components_train(plain_group, dtype):
    x, y = data(dtype)
    model = AdditiveGP(AdditivePredictor(plain_group), rank=2).to(dtype)
    likelihood = gpytorch.likelihoods.GaussianLikelihood().to(dtype)
    mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(y))
    optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=0.05)
    points = plain_group.inducing_points.clone()
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        loss = -mll(model(x), y)
        loss.backward()
        assert all(torch.isfinite(p.grad).all() for p in model.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert torch.equal(plain_group.inducing_points, points)
    with torch.no_grad():
        prediction = model.eval()(x)
    assert prediction.mean.dtype == dtype
    assert torch.isfinite(prediction.mean).all() and (prediction.variance > 0).all()


@pytest.mark.parametrize("name", gpytorch_gam.kernels.__all__)
def test_every_kernel_has_a_conformance_test(name):
    public = getattr(gpytorch_gam.kernels, name)
    if issubclass(public, Kernel):
        cases = [*OneColumnKernelTestCase.__subclasses__(), *KernelWithoutParametersTestCase.__subclasses__()]
        tested = {type(case().create_kernel_no_ard()) for case in cases if issubclass(case, unittest.TestCase)}
        assert public in tested
