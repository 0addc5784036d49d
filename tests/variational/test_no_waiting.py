"""
A training step on a GPU reads nothing back. Shown without one: tensors on the meta device have no values to be read.
"""

from __future__ import annotations

from collections.abc import Callable

import gpytorch
import pytest
import torch
from gpytorch.kernels import Kernel, MaternKernel, PeriodicKernel, RBFKernel, ScaleKernel
from linear_operator.operators import DiagLinearOperator

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup
from gpytorch_gam.components import regular_grid
from gpytorch_gam.distributions.marginal_normal import MarginalNormal
from gpytorch_gam.kernels import ANOVAKernel, Empirical, Normal, Uniform
from gpytorch_gam.likelihoods import GaussianLocationScaleLikelihood, NegativeBinomialLikelihood, PoissonLikelihood
from gpytorch_gam.models.additive_gp import FAMILIES
from gpytorch_gam.settings import fused_projection
from gpytorch_gam.terms import constant, cyclic, factor, linear, ordinal, random_effect, smooth, tensor

SIZE = torch.Size([2])

KERNELS: dict[str, Callable[[], Kernel]] = {
    "rbf": lambda: RBFKernel(batch_shape=SIZE),
    "matern": lambda: MaternKernel(2.5, batch_shape=SIZE),
    "periodic": lambda: PeriodicKernel(batch_shape=SIZE),
    "anova, uniform": lambda: ANOVAKernel(RBFKernel(batch_shape=SIZE), Uniform(0.0, 1.0)),
    "anova, normal": lambda: ANOVAKernel(RBFKernel(batch_shape=SIZE), Normal(0.0, 1.0)),
    "anova, empirical": lambda: ANOVAKernel(RBFKernel(batch_shape=SIZE), Empirical(torch.rand(5).double())),
    "anova of a matern": lambda: ANOVAKernel(MaternKernel(1.5, batch_shape=SIZE), Uniform(0.0, 1.0)),
}


def make_objective(family: str, kernel: str) -> gpytorch.mlls.VariationalELBO:
    group = ComponentGroup(
        ScaleKernel(KERNELS[kernel](), batch_shape=SIZE), [[0], [1]], regular_grid(0.0, 1.0, 6), by=[None, 1]
    )
    predictor = AdditivePredictor(group, constant(), mean=gpytorch.means.ConstantMean())
    model = AdditiveGP(predictor, family, 3 if "low_rank" in family else None)
    model.variational_strategy._initialize_once()
    return gpytorch.mlls.VariationalELBO(gpytorch.likelihoods.GaussianLikelihood(), model, num_data=100)


def step(objective: gpytorch.mlls.VariationalELBO) -> torch.Tensor:
    x, y = torch.empty(20, 2, device="meta"), torch.empty(20, device="meta")
    with gpytorch.settings.debug(False):
        loss = -objective(objective.model(x), y)
    loss.backward()
    return loss


@pytest.mark.parametrize(
    ("family", "kernel"),
    [
        *(("block_low_rank", kernel) for kernel in KERNELS),
        *((family, "anova, uniform") for family in FAMILIES if family not in ("block_low_rank", "delta")),
    ],  # GPyTorch's own "delta" looks
)
def test_a_step_reads_nothing_back(family: str, kernel: str) -> None:
    objective = make_objective(family, kernel).train().to("meta")
    with fused_projection("auto"):
        loss = step(objective)
    assert loss.device.type == "meta"
    assert all(parameter.grad is not None for parameter in objective.parameters())


def test_terms_and_likelihoods_of_counts_read_nothing_back() -> None:
    bounds = {"low": 0.0, "high": 1.0}
    predictor = AdditivePredictor(
        smooth(0, **bounds, missing="marginal"),
        smooth(0, **bounds, by=2, levels=2),
        tensor((0, 1), **bounds),
        cyclic(1, period=1.0),
        linear(1, centre=0.5, scale=0.3, names="line"),
        random_effect(2, 2, name="random"),
        factor(2, 2, name="fixed"),
        ordinal(2, 2, name="ordered"),
        constant(),
    )
    model = AdditiveGP(predictor, rank=3)
    model.variational_strategy._initialize_once()
    for likelihood in (PoissonLikelihood(), NegativeBinomialLikelihood()):
        objective = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=100).train().to("meta")
        x, y, exposure = (torch.empty(*shape, device="meta") for shape in ((20, 3), (20,), (20,)))
        with gpytorch.settings.debug(False), fused_projection("auto"):
            objective(model(x), y, exposure=exposure, weights=exposure).backward()
        assert all(p.grad is not None for p in objective.parameters() if p.requires_grad)
        objective.zero_grad()


def test_several_predictors_read_nothing_back() -> None:
    groups = [smooth(0, low=0.0, high=1.0, predictor=p) for p in range(2)]
    model, likelihood = AdditiveGP(AdditivePredictor(*groups), rank=3), GaussianLocationScaleLikelihood()
    model.variational_strategy._initialize_once()
    objective = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=100).train().to("meta")
    with gpytorch.settings.debug(False), fused_projection("auto"):
        objective(model(torch.empty(20, 1, device="meta")), torch.empty(20, device="meta")).backward()
    assert all(parameter.grad is not None for parameter in objective.parameters())


def test_the_test_notices_what_reads_back() -> None:
    objective = make_objective("low_rank", "rbf").train().to("meta")
    with pytest.raises((NotImplementedError, RuntimeError)), fused_projection("off"):
        step(objective)  # GPyTorch's kernels compare their inputs


def test_variances_in_training_are_those_of_gpytorch() -> None:
    moments = torch.zeros(2), DiagLinearOperator(torch.tensor([1.0, 1e-9]))
    with pytest.warns(gpytorch.utils.warnings.NumericalWarning):
        expected = gpytorch.distributions.MultivariateNormal(*moments).variance
    assert torch.equal(MarginalNormal(*moments).variance, expected)  # without a warning, for which one has to look
