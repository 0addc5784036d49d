"""Predictions inside of ``torch.func``: marginal effects, curvatures, and derivatives in the hyperparameters."""

from collections.abc import Callable

import gpytorch
import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, vmap

from gpytorch_gam import AdditiveGP, AdditivePredictor
from gpytorch_gam.components import ComponentGroup, regular_grid
from gpytorch_gam.terms import constant, cyclic, factor, linear, random_effect, smooth, tensor

pytestmark = pytest.mark.projection


def rows() -> Tensor:
    x = torch.rand(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[:, 2] = torch.arange(5) % 2
    return x


def smooths() -> AdditivePredictor:
    return AdditivePredictor(smooth([0, 1], low=0.0, high=1.0, num_inducing=5), constant())


def terms() -> AdditivePredictor:
    x = rows()
    return AdditivePredictor(
        tensor((0, 1), low=0.0, high=1.0, num_inducing=4),
        cyclic(0, period=1.0, num_inducing=4),
        linear(1, x),
        factor(2, levels=[0, 1]),
        random_effect(2, levels=[0, 1], name="site"),
        ComponentGroup(gpytorch.kernels.RBFKernel(), [[0, 1]], torch.rand(1, 5, 2), names=["rbf"]),
        mean=gpytorch.means.LinearMean(3),
    )


def two() -> AdditivePredictor:
    return AdditivePredictor(smooth(0, low=0.0, high=1.0, num_inducing=5), constant(predictor=1))


def make_model(predictor: Callable[[], AdditivePredictor]) -> AdditiveGP:
    torch.manual_seed(0)
    model = AdditiveGP(predictor(), rank=4).double().eval()
    model(rows())
    with torch.no_grad():
        for parameter in model.variational_parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


every_predictor = pytest.mark.parametrize("predictor", [smooths, terms, two])
every_moment = pytest.mark.parametrize("moment", ["mean", "variance"])


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)


@every_predictor
@every_moment
def test_derivatives_in_the_inputs(predictor: Callable[[], AdditivePredictor], moment: str) -> None:
    model, x = make_model(predictor), rows()

    def total(x: Tensor) -> Tensor:
        return getattr(model(x), moment).sum()

    def of_row(row: Tensor) -> Tensor:
        return total(row.unsqueeze(0))

    leaf = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(total(leaf), leaf)
    for transform in (grad, jacrev, jacfwd):
        close(transform(total)(x), expected)
    close(vmap(grad(of_row))(x), expected)
    close(vmap(of_row)(x), torch.stack([of_row(row) for row in x]))
    close(hessian(of_row)(x[0]), torch.autograd.functional.hessian(of_row, x[0]))
    with torch.no_grad():
        close(vmap(of_row)(x), torch.stack([of_row(row) for row in x]))


def test_gradients_of_a_kernel_without_forward_derivatives() -> None:
    matern = gpytorch.kernels.MaternKernel(nu=2.5, batch_shape=torch.Size([1]))
    group = ComponentGroup(matern, [[0]], regular_grid(0.0, 1.0, 4), names=["matern"])
    model, leaf = make_model(lambda: AdditivePredictor(group)), rows().requires_grad_()
    (expected,) = torch.autograd.grad(model(leaf).mean.sum(), leaf)
    close(vmap(grad(lambda row: model(row.unsqueeze(0)).mean.sum()))(rows()), expected)


@pytest.mark.parametrize(("predictor", "moment"), [(smooths, "mean"), (terms, "variance"), (two, "variance")])
def test_derivatives_in_the_parameters(predictor: Callable[[], AdditivePredictor], moment: str) -> None:
    model, x = make_model(predictor), rows()
    parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}

    def total(parameters: dict[str, Tensor]) -> Tensor:
        return getattr(functional_call(model, parameters, (x,)), moment).sum()

    expected = torch.autograd.grad(
        getattr(model(x), moment).sum(), list(parameters.values()), allow_unused=True, materialize_grads=True
    )
    values = {name: value.detach() for name, value in parameters.items()}
    found = grad(total)(values)
    for name, gradient in zip(parameters, expected, strict=True):
        close(found[name], gradient)
    factors = torch.tensor([1.0, 1.1]).double()
    totals = vmap(lambda factor: total({name: value * factor for name, value in values.items()}))(factors)
    close(totals, torch.stack([total({name: value * factor for name, value in values.items()}) for factor in factors]))


def test_covariances_components_and_predictions_of_observations() -> None:
    model, x = make_model(smooths), rows()
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double().eval()
    uses: list[Callable[[Tensor], Tensor]] = [
        lambda x: model(x).covariance_matrix.sum(),
        lambda x: likelihood(model(x)).variance.sum(),
        lambda x: model.components(x)["x0"].variance.sum(),
        lambda x: model.components(x)["x1"].mean.sum(),
    ]
    for use in uses:
        leaf = x.clone().requires_grad_()
        (expected,) = torch.autograd.grad(use(leaf), leaf)
        close(grad(use)(x), expected)
        close(vmap(use)(torch.stack([x, x + 0.1])), torch.stack([use(x), use(x + 0.1)]))


def test_values_are_looked_at_where_there_are_any() -> None:
    model, x = make_model(terms), rows()
    x[1, 2] = 7
    with pytest.raises(ValueError, match="level 7"):
        grad(lambda x: model(x).mean.sum())(x)
