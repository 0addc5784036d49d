"""Features of the prior have the products that kernel matrices have."""

from __future__ import annotations

import pytest
import torch
from gpytorch.kernels import PolynomialKernel, ScaleKernel

from gpytorch_gam.components import ComponentGroup
from gpytorch_gam.effects.prior_functions import PriorFeatures
from gpytorch_gam.kernels import Empirical
from gpytorch_gam.terms import cyclic, factor_smooth, interaction, smooth, spatial, tensor

torch.manual_seed(0)
X = torch.rand(50, 3, dtype=torch.float64)
KERNELS = ("matern12", "matern32", "matern52", "rbf")


def _measure() -> Empirical:
    return Empirical.from_data(X[:, 0], num_atoms=20)


def assert_products_are_the_kernel(group: ComponentGroup, x: torch.Tensor, tolerance: float) -> None:
    group.double()
    inputs = group.select(x)
    features, expected = PriorFeatures(group), group.evaluate_kernel(inputs).detach()
    values = features.at(inputs)
    assert values.shape[-1] == features.number
    torch.testing.assert_close(values @ values.mT, expected, rtol=0.0, atol=tolerance * expected.amax().item())


@pytest.mark.parametrize("lengthscale", [0.1, 0.3, 5.0])
@pytest.mark.parametrize("kernel", KERNELS)
def test_of_a_curve_inside_and_outside_the_range(kernel: str, lengthscale: float) -> None:
    group = smooth([0, 1], X, kernel=kernel, measure=_measure(), variance=2.0)
    group.kernel.base_kernel.base_kernel.lengthscale = lengthscale
    x = torch.linspace(-1.0, 2.0, 40, dtype=torch.float64).unsqueeze(-1).repeat(1, 3)
    assert_products_are_the_kernel(group, x, 0.1 if kernel == "matern12" else 2e-3)


def test_of_a_curve_that_is_not_centred() -> None:
    x = torch.linspace(-1.0, 2.0, 40, dtype=torch.float64).unsqueeze(-1).repeat(1, 3)
    assert_products_are_the_kernel(smooth(0, X, centred=False), x, 1e-5)


@pytest.mark.parametrize("centred", [True, False])
def test_of_a_periodic_curve(centred: bool) -> None:
    group = cyclic(0, 24.0, centred=centred, variance=0.5)
    assert_products_are_the_kernel(group, 100.0 * X, 1e-7)


@pytest.mark.parametrize("kernel", KERNELS[1:])
def test_of_a_surface(kernel: str) -> None:
    group = tensor((0, 1), X, kernel=kernel, measure=_measure())
    assert_products_are_the_kernel(group, 1.4 * X - 0.2, 0.03)


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("kernel", KERNELS[1:])
def test_of_the_effect_of_a_place(kernel: str, centred: bool) -> None:
    group = spatial((0, 2), X, kernel=kernel, num_inducing=9, centred=centred)
    assert_products_are_the_kernel(group, 1.4 * X - 0.2, 0.03)


def test_of_the_effect_of_a_place_in_space() -> None:
    assert_products_are_the_kernel(spatial((0, 1, 2), X, num_inducing=9), X, 0.05)


def test_of_an_interaction_of_three_columns() -> None:
    assert_products_are_the_kernel(tensor((0, 1, 2), X, kernel="matern52", measure=_measure(), num_inducing=3), X, 0.1)


def test_of_differences_between_levels() -> None:
    x = torch.stack([X[:, 0], torch.arange(50.0, dtype=torch.float64) % 3], -1)
    assert_products_are_the_kernel(interaction(0, 1, 3, x, measure=_measure()), x, 1e-3)


def test_of_one_level_among_independent_ones() -> None:
    x = torch.stack([X[:, 0], torch.ones(50, dtype=torch.float64)], -1)
    group = factor_smooth(0, 1, 3, x)
    assert PriorFeatures(group).level_column == 1
    assert_products_are_the_kernel(group, x, 1e-5)


def test_variances_hold_everywhere() -> None:
    group = smooth(0, X, kernel="matern12", centred=False).double()
    far = group.select(torch.tensor([[-1e3], [0.1], [50.0], [1e6]], dtype=torch.float64))
    torch.testing.assert_close(
        PriorFeatures(group).at(far).square().sum(-1), group.evaluate_kernel(far, diag=True).detach()
    )


def test_other_kernels_are_refused() -> None:
    group = ComponentGroup(ScaleKernel(PolynomialKernel(2)), [[0]], torch.rand(4, 1))
    with pytest.raises(TypeError, match="PolynomialKernel cannot be drawn"):
        PriorFeatures(group)
