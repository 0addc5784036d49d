"""Training steps under torch's compiler: the same losses and gradients, from few graphs."""

from __future__ import annotations

import gpytorch
import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounter

from gpytorch_gam import AdditiveGP, AdditivePredictor
from gpytorch_gam.terms import constant, smooth

# Graphs of the objective around the model; there would be some forty of the model itself.
MOST_GRAPHS = 8


def make_predictor() -> AdditivePredictor:
    return AdditivePredictor(smooth([0, 1], low=0.0, high=1.0, num_inducing=6), constant())


@pytest.mark.filterwarnings(
    "ignore::UserWarning", "ignore::DeprecationWarning"
)  # of the compiler, about linear_operator
def test_a_compiled_step_leaves_the_model_alone() -> None:
    x, y = torch.rand(30, 2), torch.randn(30)
    model, likelihood = AdditiveGP(make_predictor(), rank=3), gpytorch.likelihoods.GaussianLikelihood()
    mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=30)

    def loss() -> Tensor:
        return -mll(model(x), y)

    expected = loss()
    gradients = torch.autograd.grad(expected, list(model.hyperparameters()))
    counter = CompileCounter()
    found = torch.compile(loss, backend=counter)()
    torch.testing.assert_close(found, expected)
    for each, other in zip(torch.autograd.grad(found, list(model.hyperparameters())), gradients, strict=True):
        torch.testing.assert_close(each, other)
    assert counter.frame_count <= MOST_GRAPHS


def test_a_network_in_front_is_compiled_by_itself() -> None:
    class Deep(AdditiveGP):
        def __init__(self, network: torch.nn.Module) -> None:
            super().__init__(make_predictor(), rank=3)
            self.network = network

        def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
            return self.predictor(self.network(x))

    network = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Sigmoid())
    x, counter = torch.randn(20, 3), CompileCounter()
    model = Deep(network)
    expected = model(x).variance
    names = list(model.state_dict())
    model.network = torch.compile(network, backend=counter)
    assert [name.replace("_orig_mod.", "") for name in model.state_dict()] == names
    found = model(x).variance
    torch.testing.assert_close(found, expected)
    found.sum().backward()
    assert network[0].weight.grad.abs().sum() > 0
    assert counter.frame_count == 1
