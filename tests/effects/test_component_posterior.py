"""The joint posterior of the components: moments, subsets, draws."""

from __future__ import annotations

import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from torch import Tensor

from gpytorch_gam import (
    AdditiveGP,
    AdditivePredictor,
    ComponentGroup,
)
from gpytorch_gam.components import regular_grid
from gpytorch_gam.models.additive_gp import FAMILIES
from gpytorch_gam.variational import additive_variational_strategy
from tests.problems import mixed_inputs, mixed_model


@pytest.mark.projection
@pytest.mark.parametrize("family", FAMILIES)
def test_components_add_up_to_the_predictor(family: str) -> None:
    model, x = mixed_model(family).double().eval(), mixed_inputs(12).double()
    posterior, parts = model(x), model.components(x)
    mean = parts.mean.sum(0) + model.predictor.means[0](x)
    torch.testing.assert_close(mean, posterior.mean, rtol=1e-10, atol=1e-10)
    full = parts.full_cross_covariance()
    torch.testing.assert_close(full.sum((0, 2)), posterior.covariance_matrix, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(parts.cross_covariance().sum((-2, -1)), posterior.variance, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(parts.total()[1], posterior.variance, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(full.diagonal(dim1=0, dim2=2).movedim(-1, 0), parts.covariance(), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(full.diagonal(dim1=1, dim2=3).movedim(-1, 0), parts.cross_covariance())
    torch.testing.assert_close(parts.covariance().diagonal(dim1=-2, dim2=-1), parts.variance)


@pytest.mark.parametrize("family", ["block_low_rank", "coupled"])
def test_subsets_by_name_keep_their_joint_distribution(family: str) -> None:
    model, x = mixed_model(family).double().eval(), mixed_inputs(7).double()
    names = ["constant", "x1", "x0:x1"]
    everything, some = model.components(x), model.components(x, names)
    indices = [model.predictor.names.index(name) for name in names]
    assert some.names == tuple(names)
    torch.testing.assert_close(some.mean, everything.mean[indices])
    torch.testing.assert_close(some.full_cross_covariance(), everything.full_cross_covariance()[indices][:, :, indices])
    torch.testing.assert_close(everything[names].cross_covariance(), some.cross_covariance())
    torch.testing.assert_close(some["x1"].stddev, everything.stddev[1])
    lower, upper = some.confidence_region()
    torch.testing.assert_close(upper - lower, 2 * 1.96 * some.stddev)
    with pytest.raises(ValueError, match=r"unknown components \['z'\]"):
        model.components(x, ["z"])
    with pytest.raises(ValueError, match=r"unknown components \['x0'\]; these are"):
        some["x0"]


@pytest.mark.parametrize("family", FAMILIES)
def test_samples_follow_the_joint_posterior(family: str) -> None:
    model, x = mixed_model(family).double().eval(), mixed_inputs(4).double()
    parts = model.components(x)
    draws = parts.sample(torch.Size([20000]))
    torch.testing.assert_close(draws.components.sum(-2), draws.total)
    flat = draws.components.flatten(-2)
    expected = parts.full_cross_covariance().flatten(0, 1).flatten(-2)
    scale = expected.diagonal().max()
    # Monte-Carlo error of a covariance is about scale * sqrt(2 / 20000) = 1% of the scale; five of those.
    torch.testing.assert_close(flat.mT.cov(), expected, rtol=0, atol=0.05 * scale.item())
    torch.testing.assert_close(flat.mean(0), parts.mean.flatten(), rtol=0, atol=0.05 * scale.sqrt().item())


def test_samples_of_some_components_take_their_groups_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, asked = mixed_model("coupled", None).double().eval(), mixed_inputs(4).double(), []
    draw = additive_variational_strategy.draw_given_inducing

    def counted(group: ComponentGroup, *arguments: Tensor) -> Tensor:
        asked.append(group)
        return draw(group, *arguments)

    monkeypatch.setattr(additive_variational_strategy, "draw_given_inducing", counted)
    first, last = model.predictor.groups[0], model.predictor.groups[-1]
    names = [last.names[0], first.names[-1]]
    torch.manual_seed(0)
    parts = model.components(x, names)
    draws = parts.sample(torch.Size([20000])).components
    assert asked == [first, last]
    assert ((draws.mean(0) - parts.mean) / parts.stddev).abs().max() < 5 / 20000**0.5
    scale = parts.stddev.mT.unsqueeze(-1) * parts.stddev.mT.unsqueeze(-2)
    found = torch.stack([draws[..., row].mT.cov() for row in range(4)])
    assert ((found - parts.cross_covariance()) / scale).abs().max() < 0.04  # of 20000 draws


def test_samples_have_gradients_and_shapes_with_batches() -> None:
    model = mixed_model(batch=(2,)).eval()
    draws = model.components(torch.rand(3, 1, 5, 3)).rsample(torch.Size([7]))
    assert draws.components.shape == (7, 3, 2, 5, 5)
    assert draws.total.shape == (7, 3, 2, 5)
    draws.total.sum().backward()
    assert model.variational_strategy._variational_distribution.precision_factor.grad.abs().sum() > 0


@pytest.mark.parametrize("scale", [1e-12, 1e-4, 1.0, 1e12])
def test_samples_do_not_depend_on_the_units_of_the_response(scale: float) -> None:
    kernel = ScaleKernel(RBFKernel()).double()
    group = ComponentGroup(kernel, [[0]], regular_grid(0.0, 1.0, 8).double())
    model = AdditiveGP(AdditivePredictor(group), "mean_field").double().eval()
    kernel.outputscale = torch.tensor(scale, dtype=torch.float64)
    parts = model.components(torch.linspace(0, 1, 30).double().unsqueeze(-1))
    draws = parts.sample(torch.Size([4000])).components
    torch.testing.assert_close(draws.var(0), parts.variance, rtol=0.2, atol=1e-6 * scale)


def test_standard_deviations_have_gradients_where_a_multiplier_is_zero() -> None:
    model, x = mixed_model().eval(), mixed_inputs(4)
    x[0, 2] = 0.0
    model.components(x).stddev.sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_repeated_names_are_an_error() -> None:
    model, x = mixed_model().eval(), mixed_inputs(4)
    with pytest.raises(ValueError, match=r"components \['x0'\] are named more than once"):
        model.components(x, ["x0", "x0"])
    with pytest.raises(ValueError, match=r"components \['x0'\] are named more than once"):
        model.components(x)[["x0", "x0"]]
