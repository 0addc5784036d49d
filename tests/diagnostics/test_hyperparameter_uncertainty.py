"""The uncertainty of hyperparameters against derivatives of the collapsed bound, and mixtures against brute force."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from gpytorch.constraints import Interval
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import BernoulliLikelihood, GaussianLikelihood

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup
from gpytorch_gam.components import regular_grid
from gpytorch_gam.diagnostics import HyperparameterUncertainty, hyperparameter_uncertainty
from gpytorch_gam.distributions import predictive_quantiles
from gpytorch_gam.likelihoods import NegativeBinomialLikelihood
from gpytorch_gam.mlls import CollapsedELBO
from gpytorch_gam.terms import constant, smooth
from gpytorch_gam.training import fit, polish
from gpytorch_gam.training.free_hyperparameters import FreeHyperparameters
from gpytorch_gam.warnings import ConvergenceWarning
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
def test_covariance_is_that_of_the_collapsed_bound(
    family: str, rank: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, likelihood, x, y = make_problem(family, rank)
    maximise(CollapsedELBO(likelihood, model), x, y)
    objective, parameters, names = as_function_of_logarithms(model, likelihood)

    def bound(change: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(objective, parameters(change), (x, y)) * len(y)

    # GPyTorch's RBF kernel can be differentiated only once.
    gradient = torch.autograd.functional.jacobian
    steps = 1e-4 * torch.eye(len(names)).double()
    hessian = torch.stack([(gradient(bound, step) - gradient(bound, -step)) / 2e-4 for step in steps])
    covariance = torch.linalg.inv(-hessian + torch.eye(len(names)) / 4)
    for step, tolerance in ((1e-3, 1e-2), (None, 0.2)):  # the second is that of forward differences
        if step is not None:
            monkeypatch.setattr(hyperparameter_uncertainty, "_STEP", step)
        uncertainty = HyperparameterUncertainty(model, likelihood, (x, y))
        order = [names.index(name) for name in uncertainty.names]
        expected = covariance[order][:, order]
        scale = expected.diagonal().sqrt()
        error = (uncertainty.covariance - expected) / (scale.unsqueeze(-1) * scale)
        assert error.abs().max() < tolerance
        monkeypatch.undo()


def optimum_at(model: AdditiveGP, likelihood: GaussianLikelihood, change, parameters, x, y):
    """Model and noise with changed logarithms of the hyperparameters, and their collapsed bound in nats."""
    other, noise = copy.deepcopy(model), copy.deepcopy(likelihood)
    objective = CollapsedELBO(noise, other)
    with torch.no_grad():
        for name, value in parameters(change).items():
            objective.get_parameter(name).copy_(value)
    optimum = objective.optimum(x, y)
    other.variational_strategy.set_whitened_posterior(optimum.mean, optimum.precision)
    return other.eval(), noise, optimum.bound.item()


def test_results_are_those_of_a_mixture_of_optimal_models() -> None:
    model, likelihood, x, y = make_problem()
    maximise(CollapsedELBO(likelihood, model), x, y)
    uncertainty, fresh = HyperparameterUncertainty(model, likelihood, (x, y)), make_inputs(9)
    means, variances, noises, log_weights = [], [], [], []
    for member, noise in zip(uncertainty.models, uncertainty.likelihoods, strict=True):
        own = copy.deepcopy(model)
        own.load_state_dict(member.state_dict())
        optimum = CollapsedELBO(noise, own).optimum(x, y)
        own.variational_strategy.set_whitened_posterior(optimum.mean, optimum.precision)
        with torch.no_grad():
            posterior = own.eval()(fresh)
            means.append(posterior.mean)
            variances.append(posterior.variance)
            noises.append(noise.noise.squeeze())
        move = FreeHyperparameters(own, noise).position - uncertainty._free.position
        log_weights.append(optimum.bound.item() - move.square().sum().item() / 8)  # a prior of standard deviation 2
    weights = torch.softmax(torch.tensor(log_weights, dtype=torch.float64), 0)
    torch.testing.assert_close(uncertainty.weights, weights, atol=1e-6, rtol=1e-6)
    means, variances, noises = torch.stack(means), torch.stack(variances), torch.stack(noises)
    weights = uncertainty.weights
    mean = weights @ means
    variance = weights @ (variances + means.square()) - mean.square()
    found = model.predict(fresh, hyperparameters=uncertainty)
    torch.testing.assert_close(found.mean, mean, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(found.variance, variance, atol=1e-6, rtol=1e-5)
    responses = uncertainty.responses(fresh)
    torch.testing.assert_close(responses.mean, mean, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(responses.variance, variance + weights @ noises, atol=1e-6, rtol=1e-5)
    low, high = predictive_quantiles(responses, [0.025, 0.975])
    torch.testing.assert_close((high - low) / (2 * 1.96), responses.stddev, rtol=0.05, atol=0.0)


def test_moments_are_near_those_of_the_posterior_of_the_hyperparameters() -> None:
    """Importance sampling with many draws of the hyperparameters stands for the truth, up to errors of its own."""
    model, likelihood, x, y = make_problem()
    maximise(CollapsedELBO(likelihood, model), x, y)
    _, parameters, names = as_function_of_logarithms(model, likelihood)
    uncertainty, fresh = HyperparameterUncertainty(model, likelihood, (x, y)), make_inputs(9)
    order = [uncertainty.names.index(name) for name in names]
    normal = torch.distributions.MultivariateNormal(
        torch.zeros(len(names)).double(), uncertainty.covariance[order][:, order]
    )
    torch.manual_seed(0)
    means, variances, log_weights = [], [], []
    for change in normal.sample(torch.Size([120])):
        own, _, bound = optimum_at(model, likelihood, change, parameters, x, y)
        prediction = own.predict(fresh)
        means.append(prediction.mean)
        variances.append(prediction.variance)
        log_weights.append(bound - change.square().sum() / 8 - normal.log_prob(change))
    weights, means = torch.softmax(torch.stack(log_weights), 0), torch.stack(means)
    between = weights @ means.square() - (weights @ means).square()
    within = weights @ torch.stack(variances)
    found = model.predict(fresh, hyperparameters=uncertainty)
    assert ((found.mean - weights @ means).abs() / within.sqrt()).max() < 0.2
    added = found.variance - model.predict(fresh).variance
    expected = within + between - model.predict(fresh).variance
    assert added.sum().item() == pytest.approx(expected.sum().item(), rel=0.4)


def test_the_model_stays_as_it_is_and_rows_may_come_in_batches() -> None:
    model, likelihood, x, y = make_problem("block_low_rank", 6)
    fit(model, likelihood, (x, y))
    before = copy.deepcopy((model.state_dict(), likelihood.state_dict()))
    uncertainty = HyperparameterUncertainty(model, likelihood, (x, y))
    batched = HyperparameterUncertainty(model, likelihood, list(zip(x.split(40), y.split(40), strict=True)))
    for old, new in zip(before, (model.state_dict(), likelihood.state_dict()), strict=True):
        assert all(torch.equal(old[name], new[name]) for name in old)
    assert not model.training and not likelihood.training
    torch.testing.assert_close(batched.covariance, uncertainty.covariance, rtol=1e-4, atol=1e-6)
    again = model.predict(x[:5], hyperparameters=uncertainty).variance
    assert torch.equal(model.predict(x[:5], hyperparameters=uncertainty).variance, again)


def test_bands_of_centred_effects_are_wider() -> None:
    model, likelihood, x, y = make_problem()
    fit(model, likelihood, (x, y))
    uncertainty = HyperparameterUncertainty(model, likelihood, (x, y))
    plain, wider = (model.components(x[:20], hyperparameters=each).centred() for each in (None, uncertainty))
    assert wider.variance.mean() > plain.variance.mean()
    assert (wider.mean - plain.mean).abs().max() < plain.stddev.max()


def test_intervals_are_those_of_laplace_on_the_scale_of_the_values() -> None:
    model, likelihood, x, y = make_problem()
    fit(model, likelihood, (x, y))
    uncertainty = HyperparameterUncertainty(model, likelihood, (x, y))
    name = "likelihood.noise_covar.raw_noise[0]"
    low, high = uncertainty.intervals()[name]
    floor = likelihood.noise_covar.raw_noise_constraint.lower_bound.item()
    deviation = uncertainty.covariance.diagonal().sqrt()[uncertainty.names.index(name)].item()
    assert low < likelihood.noise.item() < high
    assert math.log((high - floor) / (low - floor)) == pytest.approx(2 * 1.96 * deviation, rel=1e-6)
    assert deviation == pytest.approx((2 / len(y)) ** 0.5, rel=0.3)


def test_fixed_hyperparameters_and_those_at_a_bound_are_known() -> None:
    model, likelihood, x, y = make_problem()
    kernel = model.predictor.groups[0].kernel
    kernel.base_kernel.register_constraint("raw_lengthscale", Interval(0.1, 0.5))
    kernel.base_kernel.lengthscale = torch.tensor([[[0.3]], [[0.4999]]])
    likelihood.raw_noise.requires_grad_(False)
    uncertainty = HyperparameterUncertainty(model, likelihood, [(x, y)])
    shortened = [name.rsplit(".", 1)[-1] for name in uncertainty.names]
    assert shortened == ["raw_outputscale[0]", "raw_outputscale[1]", "raw_lengthscale[0]"]
    left_out = {name.rsplit(".", 1)[-1]: reason for name, reason in uncertainty.left_out.items()}
    assert left_out == {"raw_lengthscale[1]": "it is at a bound"}
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
    uncertainty = HyperparameterUncertainty(model, likelihood, [(x, y)])
    moving = [name.rsplit(".", 1)[-1] for name in uncertainty.names if "lengthscale" in name]
    assert moving == ["raw_lengthscale[0]"]


def test_hyperparameters_of_components_that_are_off_are_known() -> None:
    model, likelihood, x, y = make_problem()
    kernel = model.predictor.groups[0].kernel
    kernel.outputscale = torch.tensor([1.5, 1e-7])
    y = torch.sin(6 * x[:, 0]) + 0.3 * torch.randn(150).double()
    fit(model, likelihood, (x, y), warm_start=True)
    kernel.outputscale = torch.tensor([kernel.outputscale[0].item(), 1e-7])
    uncertainty = HyperparameterUncertainty(model, likelihood, (x, y))
    left_out = {name.rsplit(".", 1)[-1]: reason for name, reason in uncertainty.left_out.items()}
    assert left_out == dict.fromkeys(["raw_outputscale[1]", "raw_lengthscale[1]"], "its component is switched off")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_labels_widen_bands_and_what_data_leave_open_stays_bounded(dtype: torch.dtype) -> None:
    model, _, x, y = make_problem("block_low_rank", 6)
    model, x, y = model.to(dtype), x.to(dtype), (y > 0).to(dtype)
    likelihood = BernoulliLikelihood()
    fit(model, likelihood, (x, y))
    uncertainty = HyperparameterUncertainty(model, likelihood, (x, y), prior_stddev=1.5)
    deviations = uncertainty.covariance.diagonal().sqrt()
    assert (deviations <= 1.5 + 1e-6).all() and (deviations > 0).all()
    plain, wider = model.predict(x), model.predict(x, hyperparameters=uncertainty)
    assert wider.variance.dtype == dtype and wider.variance.mean() > plain.variance.mean()
    responses = uncertainty.responses(x)
    assert ((responses.mean > 0) & (responses.mean < 1)).all()


def test_dispersion_of_counts_is_uncertain() -> None:
    torch.manual_seed(0)
    x = torch.rand(120, 1).double()
    y = torch.poisson(torch.exp(1.0 + torch.sin(6 * x[:, 0])) * torch.distributions.Gamma(4.0, 4.0).sample((120,)))
    model = AdditiveGP(AdditivePredictor(smooth(0, x, num_inducing=6), constant()), "coupled").double()
    likelihood = NegativeBinomialLikelihood().double()
    fit(model, likelihood, (x, y))
    uncertainty = HyperparameterUncertainty(model, likelihood, (x, y))
    (own,) = [name for name in uncertainty.names if name.startswith("likelihood.")]
    low, high = uncertainty.intervals()[own]
    assert 1.2 * low < high
    shapes = {next(noise.parameters()).item() for noise in uncertainty.likelihoods}
    assert len(shapes) > 1
    exposed = uncertainty.responses(x[:4], exposure=torch.full((4,), 2.0).double())
    torch.testing.assert_close(exposed.mean, 2 * uncertainty.responses(x[:4]).mean)


def test_hyperparameters_that_are_no_maximum_are_warned_of() -> None:
    model, likelihood, x, y = make_problem()
    polish(model, likelihood, [(x, y)])
    likelihood.noise = 0.5
    with pytest.warns(ConvergenceWarning, match="the bound is higher near the hyperparameters"):
        HyperparameterUncertainty(model, likelihood, (x, y))


def test_errors_name_what_is_wrong() -> None:
    model, likelihood, x, y = make_problem()
    with pytest.raises(ValueError, match="max_models must be at least 2, got 1"):
        HyperparameterUncertainty(model, likelihood, (x, y), max_models=1)
    with pytest.raises(ValueError, match="batches can be gone through only once"):
        HyperparameterUncertainty(model, likelihood, iter([(x, y)]))
    with pytest.raises(TypeError, match="needs a"):
        HyperparameterUncertainty(AdditiveGP(model.predictor, "delta").double(), likelihood, [(x, y)])


def test_models_of_negligible_weight_are_left_out() -> None:
    model, likelihood, x, y = make_problem()
    maximise(CollapsedELBO(likelihood, model), x, y)
    uncertainty = HyperparameterUncertainty(model, likelihood, (x, y))
    points = list(zip(uncertainty.models, uncertainty.likelihoods, [0.0] * len(uncertainty), strict=True))
    points = [hyperparameter_uncertainty._Point(*each) for each in points[:3]]
    weights = torch.tensor([0.7, 0.29995, 0.00005]).double()
    models, likelihoods, kept = hyperparameter_uncertainty._notable(points, weights)
    assert models == [point.model for point in points[:2]]
    assert likelihoods == [point.likelihood for point in points[:2]]
    torch.testing.assert_close(kept, weights[:2] / weights[:2].sum())
