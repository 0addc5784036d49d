"""The Laplace approximation of the hyperparameters against derivatives of the collapsed bound."""

from __future__ import annotations

import copy

import pytest
import torch
from gpytorch.constraints import Interval
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import BernoulliLikelihood, GaussianLikelihood

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup
from gpytorch_gam.components import regular_grid
from gpytorch_gam.diagnostics import HyperparameterUncertainty
from gpytorch_gam.mlls import CollapsedELBO
from gpytorch_gam.training import polish
from tests.problems import effect, make_inputs


def make_problem(family: str = "coupled", rank: int | None = None):
    torch.manual_seed(0)
    size = torch.Size([2])
    kernel = ScaleKernel(RBFKernel(batch_shape=size), batch_shape=size)
    kernel.base_kernel.lengthscale, kernel.outputscale = 0.4, 1.5
    predictor = AdditivePredictor(ComponentGroup(kernel, [[0], [1]], regular_grid(0.0, 1.0, 7)))
    model, likelihood = AdditiveGP(predictor, family, rank).double(), GaussianLikelihood().double()
    likelihood.noise = 0.1
    x = make_inputs(150)
    return model, likelihood, x, effect(x) + x[:, 2] + 0.3 * torch.randn(150).double()


def maximise(objective: CollapsedELBO, x: torch.Tensor, y: torch.Tensor) -> None:
    """Away from the optimum the curvature has no definite sign."""
    hyperparameters = [*objective.model.hyperparameters(), *objective.likelihood.parameters()]
    optimiser = torch.optim.LBFGS(hyperparameters, max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        loss = -objective(x, y)
        loss.backward()
        return loss

    optimiser.step(closure)


def as_function_of_logarithms(model: AdditiveGP, likelihood: GaussianLikelihood):
    """The collapsed bound and the optimal means as functions of changes of log hyperparameters, in torch's order."""
    objective = CollapsedELBO(likelihood, model)
    named = {
        name: (parameter.detach().clone(), objective.constraint_for_parameter_name(name))
        for name, parameter in objective.named_parameters()
        if "_variational_distribution" not in name
    }

    def parameters(change: torch.Tensor) -> dict[str, torch.Tensor]:
        values, start = {}, 0
        for name, (raw, constraint) in named.items():
            part = change[start : start + raw.numel()].view_as(raw)
            values[name] = constraint.inverse_transform(constraint.transform(raw) * part.exp())
            start += raw.numel()
        return values

    names = [f"{name}[{entry}]" for name, (raw, _) in named.items() for entry in range(raw.numel())]
    return objective, parameters, names


@pytest.mark.parametrize(("family", "rank"), [("coupled", None), ("block_low_rank", 14), ("low_rank", 14)])
def test_covariance_and_changes_agree_with_derivatives_of_the_bound(family: str, rank: int | None) -> None:
    model, likelihood, x, y = make_problem(family, rank)
    maximise(CollapsedELBO(likelihood, model), x, y)
    fresh = make_inputs(9)
    uncertainty = HyperparameterUncertainty(model, likelihood, [(x, y)], step=0.01)
    objective, parameters, names = as_function_of_logarithms(model, likelihood)

    def bound(change: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(objective, parameters(change), (x, y)) * len(y)

    order = [names.index(name) for name in uncertainty.names]
    # GPyTorch's RBF kernel can be differentiated only once.
    gradient = torch.autograd.functional.jacobian
    steps = 1e-4 * torch.eye(len(names)).double()
    hessian = torch.stack([(gradient(bound, step) - gradient(bound, -step)) / 2e-4 for step in steps])
    expected = torch.linalg.inv(-hessian + torch.eye(len(names)) / 4)[order][:, order]
    torch.testing.assert_close(uncertainty.covariance, expected, rtol=1e-2, atol=1e-4)

    def component_means(change: torch.Tensor) -> torch.Tensor:
        other, noise = copy.deepcopy(model), copy.deepcopy(likelihood)
        both = CollapsedELBO(noise, other)
        with torch.no_grad():
            for name, value in parameters(change).items():
                both.get_parameter(name).copy_(value)
        polish(other, noise, [(x, y)])
        return other.eval().components(fresh).mean.detach()

    jacobian = []
    for index in order:
        step = torch.zeros(len(names)).double()
        step[index] = 1e-4
        jacobian.append((component_means(step) - component_means(-step)) / 2e-4)
    jacobian = torch.stack(jacobian)
    covariance = torch.einsum("icn,ij,jdm->cndm", jacobian, expected, jacobian)
    changes = uncertainty.component_changes(fresh)
    found = torch.einsum("kcn,kdm->cndm", changes, changes)
    scale = covariance.abs().max().item()
    torch.testing.assert_close(found, covariance, rtol=2e-2, atol=2e-2 * scale)
    torch.testing.assert_close(uncertainty.variance(fresh), changes.sum(1).square().sum(0))
    torch.testing.assert_close(uncertainty.component_variance(fresh), changes.square().sum(0))


def test_the_model_stays_as_it_is_and_rows_may_come_in_batches() -> None:
    model, likelihood, x, y = make_problem("block_low_rank", 6)
    polish(model, likelihood, [(x, y)])
    model.eval()
    before = copy.deepcopy((model.state_dict(), likelihood.state_dict()))
    uncertainty = HyperparameterUncertainty(model, likelihood, [(x, y)])
    batched = HyperparameterUncertainty(model, likelihood, list(zip(x.split(40), y.split(40), strict=True)))
    for old, new in zip(before, (model.state_dict(), likelihood.state_dict()), strict=True):
        assert all(torch.equal(old[name], new[name]) for name in old)
    assert not model.training
    torch.testing.assert_close(batched.covariance, uncertainty.covariance, rtol=1e-5, atol=1e-7)
    again = uncertainty.variance(x[:5])
    assert torch.equal(uncertainty.variance(x[:5]), again)


def test_fixed_hyperparameters_and_those_at_a_bound_are_known() -> None:
    model, likelihood, x, y = make_problem()
    kernel = model.predictor.groups[0].kernel
    kernel.base_kernel.register_constraint("raw_lengthscale", Interval(0.1, 0.5))
    kernel.base_kernel.lengthscale = torch.tensor([[[0.3]], [[0.4999]]])
    likelihood.raw_noise.requires_grad_(False)
    uncertainty = HyperparameterUncertainty(model, likelihood, [(x, y)])
    shortened = [name.rsplit(".", 1)[-1] for name in uncertainty.names]
    assert shortened == ["raw_outputscale[0]", "raw_outputscale[1]", "raw_lengthscale[0]"]
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    with pytest.raises(ValueError, match="no hyperparameter is free to move"):
        HyperparameterUncertainty(model, likelihood, [(x, y)])


def test_every_entry_of_a_hyperparameter_has_its_own_bounds() -> None:
    model, likelihood, x, y = make_problem()
    base = model.predictor.groups[0].kernel.base_kernel
    bounds = Interval(torch.tensor([[[0.1]], [[1.0]]]), torch.tensor([[[0.5]], [[50.0]]]))
    base.register_constraint("raw_lengthscale", bounds.double())
    base.lengthscale = torch.tensor([[[0.3]], [[49.999]]])  # the first is far from its bounds, if within the second's
    uncertainty = HyperparameterUncertainty(model, likelihood, [(x, y)], max_passes=1)
    moving = [name.rsplit(".", 1)[-1] for name in uncertainty.names if "lengthscale" in name]
    assert moving == ["raw_lengthscale[0]"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_labels_widen_bands_and_what_data_leave_open_stays_bounded(dtype: torch.dtype) -> None:
    model, _, x, y = make_problem("block_low_rank", 6)
    model, x, y = model.to(dtype), x.to(dtype), (y > 0).to(dtype)
    likelihood = BernoulliLikelihood()
    uncertainty = HyperparameterUncertainty(model, likelihood, [(x, y)], prior_stddev=1.5)
    deviations = uncertainty.covariance.diagonal().sqrt()
    assert (deviations <= 1.5 + 1e-6).all() and (deviations > 0).all()
    added = uncertainty.variance(x)
    assert torch.isfinite(added).all() and (added >= 0).all() and added.dtype == dtype


def test_errors_name_what_is_wrong() -> None:
    model, likelihood, x, y = make_problem()
    with pytest.raises(ValueError, match="step must be positive, got 0"):
        HyperparameterUncertainty(model, likelihood, [(x, y)], step=0)
    with pytest.raises(ValueError, match="batches can be gone through only once"):
        HyperparameterUncertainty(model, likelihood, iter([(x, y)]))
    with pytest.raises(TypeError, match="needs a"):
        HyperparameterUncertainty(AdditiveGP(model.predictor, "delta").double(), likelihood, [(x, y)])
