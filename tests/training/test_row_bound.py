"""The bound at the optimal posterior of all rows, and its derivatives, against autograd and differences."""

from __future__ import annotations

import math
from typing import Any

import gpytorch
import pytest
import torch
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood, Likelihood
from torch import Tensor

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup
from gpytorch_gam.components.component_group import GroupRows
from gpytorch_gam.likelihoods import (
    GaussianLocationScaleLikelihood,
    NegativeBinomialLikelihood,
    PoissonLikelihood,
    RowwiseLikelihood,
)
from gpytorch_gam.mlls import CollapsedELBO
from gpytorch_gam.optim.processes import Processes
from gpytorch_gam.optim.rows.stream import Rows
from gpytorch_gam.terms import constant, factor, random_effect, smooth
from gpytorch_gam.training import _row_bound
from gpytorch_gam.training._hyperparameters import hyperparameters_of
from gpytorch_gam.training._model_at_rows import ModelAtRows
from gpytorch_gam.training._row_bound import RowBound

pytestmark = pytest.mark.usefixtures("double_precision")

N = 40


def inputs() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.cat([torch.rand(N, 2, generator=generator), torch.arange(N).unsqueeze(-1) % 3], dim=-1)


def model_of(x: Tensor, num_predictors: int = 1) -> AdditiveGP:
    mean = gpytorch.means.ConstantMean()
    groups = [constant(), smooth([0, 1], x, num_inducing=5), factor(2, 3), random_effect(2, 3, name="random")]
    if num_predictors == 1:
        return AdditiveGP(AdditivePredictor(*groups, mean=mean), family="coupled")
    more = [constant(predictor=1), smooth(1, x, num_inducing=4, predictor=1)]
    return AdditiveGP(AdditivePredictor(*groups, *more, mean=[mean, None]), family="coupled")


def derivatives(bound: RowBound, parameters: list[Tensor]) -> Tensor:
    found = torch.autograd.grad(bound(), parameters, allow_unused=True)
    return torch.cat(
        [torch.zeros(p.numel()) if g is None else g.flatten() for p, g in zip(parameters, found, strict=True)]
    )


@torch.no_grad()
def differences(bound: RowBound, parameters: list[Tensor], step: float = 1e-4) -> Tensor:
    found = []
    for parameter in parameters:
        for entry in parameter.view(-1):
            middle, values = entry.item(), []
            for sign in (1, -1):
                entry.fill_(middle + sign * step)
                values.append(bound().item())
            entry.fill_(middle)
            found.append((values[0] - values[1]) / (2 * step))
    return torch.tensor(found)


GAUSSIAN = {
    "shared noise": (GaussianLikelihood, []),
    "weights and offset": (lambda: RowwiseLikelihood(GaussianLikelihood()), ["weights", "offset"]),
    "noise by row": (lambda: FixedNoiseGaussianLikelihood(torch.linspace(0.1, 0.5, N)), ["noise"]),
}


@pytest.mark.parametrize("kind", GAUSSIAN)
def test_gaussian_bound_and_derivatives_are_those_of_the_collapsed_elbo(kind: str) -> None:
    make, names = GAUSSIAN[kind]
    x, likelihood = inputs(), make()
    y, positive = torch.sin(6 * x[:, 0]) + 0.1 * x[:, 2], torch.linspace(0.1, 0.5, N)
    arguments = dict.fromkeys(names, positive)
    model = model_of(x)
    parameters = hyperparameters_of(model, likelihood)
    objective = CollapsedELBO(likelihood, model)
    expected = N * objective(x, y, **arguments)
    gradients = torch.autograd.grad(expected, parameters, allow_unused=True)
    bound = RowBound(model, likelihood, Rows(x, y, arguments), Processes(None))
    torch.testing.assert_close(bound(), expected, rtol=1e-10, atol=0)
    wanted = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, gradients, strict=True)]
    torch.testing.assert_close(
        derivatives(bound, parameters), torch.cat([g.flatten() for g in wanted]), rtol=1e-8, atol=1e-8
    )


def counts(x: Tensor) -> Tensor:
    return torch.poisson(torch.exp(1 + x[:, 0]), generator=torch.Generator().manual_seed(1))


OTHERS = {
    "poisson": (PoissonLikelihood, 1),
    "negative binomial": (NegativeBinomialLikelihood, 1),
    "location and scale": (GaussianLocationScaleLikelihood, 2),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_derivatives_are_differences_of_bounds_at_the_optimum(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_GAIN", "_PROMISE", "_PROMISE_OF_VALUE"):
        monkeypatch.setattr(_row_bound, name, 0.0)
    make, num_predictors = OTHERS[kind]
    x = inputs()
    likelihood: Likelihood = make()
    y = counts(x) if num_predictors == 1 else torch.sin(6 * x[:, 0]) + 0.3 * torch.cos(40 * x[:, 1])
    model = model_of(x, num_predictors)
    bound = RowBound(model, likelihood, Rows(x, y, {}), Processes(None))
    parameters = hyperparameters_of(model, likelihood)
    found = derivatives(bound, parameters)
    assert found.abs().min() > 0
    # Differences of bounds that each end within 1e-12 nats, and the third derivatives in a step of 1e-4.
    torch.testing.assert_close(found, differences(bound, parameters), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", OTHERS)
def test_the_last_pass_is_left_out_where_it_promises_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, num_predictors = OTHERS[kind]
    x = inputs()
    y = counts(x) if num_predictors == 1 else torch.sin(6 * x[:, 0]) + 0.3 * torch.cos(40 * x[:, 1])
    model, likelihood = model_of(x, num_predictors), make()
    bound = RowBound(model, likelihood, Rows(x, y, {}), Processes(None))
    found, passes = derivatives(bound, hyperparameters_of(model, likelihood)), bound.passes
    monkeypatch.setattr(_row_bound, "_GAIN", 1e-12)
    monkeypatch.setattr(_row_bound, "_PROMISE", 0.0)
    exact = RowBound(model, likelihood, Rows(x, y, {}), Processes(None))
    expected = derivatives(exact, hyperparameters_of(model, likelihood))
    assert passes < exact.passes
    torch.testing.assert_close(bound(), exact(), rtol=0.0, atol=1e-5)
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=5e-4)


@torch.no_grad()
def test_what_the_next_sites_promise_is_at_least_what_they_gain() -> None:
    x, likelihood = inputs(), PoissonLikelihood()
    bound = RowBound(model_of(x), likelihood, Rows(x, counts(x), {}), Processes(None))
    view = bound._view()
    posterior = bound._first(view)
    assert posterior is not None
    promised = math.inf
    while promised > 1e-9:
        promised = bound._promised(view, posterior)
        moved = bound._moved(view, posterior, None, 1.0)
        assert moved is not None
        after, share = moved
        if share == 1.0 and promised < 1.0:  # far from the optimum the bound is no quadratic
            assert after.bound - posterior.bound <= promised + 1e-10
        posterior = after


@torch.no_grad()
def test_the_posterior_is_looked_for_again_only_where_hyperparameters_have_moved() -> None:
    x, likelihood = inputs(), NegativeBinomialLikelihood()
    model = model_of(x)
    bound = RowBound(model, likelihood, Rows(x, counts(x), {}), Processes(None))
    before, passes = bound(), bound.passes
    assert torch.equal(bound(), before)
    assert bound.passes == passes
    likelihood.dispersion = 2 * likelihood.dispersion
    assert bound() != before
    assert bound.passes > passes


@pytest.mark.parametrize("kind", ["poisson", "negative binomial"])
def test_the_promise_of_a_pass_is_the_gain_of_those_that_follow(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_GAIN", "_PROMISE"):
        monkeypatch.setattr(_row_bound, name, 1e-12)
    x = inputs()
    model, likelihood = model_of(x), OTHERS[kind][0]()
    bound = RowBound(model, likelihood, Rows(x, counts(x), {}), Processes(None))
    bound()
    sites = bound._sites
    with torch.no_grad():
        for parameter in model.predictor.parameters():
            parameter += 0.1
        view = bound._view()
        present, settled = bound._posterior(view, sites), bound._settle(1e-12)
    gain = settled.posterior.bound - present.bound
    assert gain > 1e-5 and gain == pytest.approx(bound._promised(view, present), rel=0.3)
    assert bound._promised(view, settled.posterior) < 1e-11


def test_expectations_that_are_not_smooth_do_not_hold_the_search_up(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    x, y = inputs(), torch.randn(N)
    model, likelihood = model_of(x), gpytorch.likelihoods.LaplaceLikelihood()
    bound = RowBound(model, likelihood, Rows(x, y, {}), Processes(None))
    found = bound().item()
    assert bound.passes < 100  # halvings until rounding alone is left take five hundred
    monkeypatch.setattr(_row_bound, "_MAX_IDLE", 1000)
    assert found == pytest.approx(RowBound(model, likelihood, Rows(x, y, {}), Processes(None))().item(), abs=1e-2)


def test_groups_with_nothing_to_train_are_evaluated_once_and_others_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    x = inputs()
    model = model_of(x, num_predictors=2)
    at_rows = ModelAtRows(model.variational_strategy, x)
    at_rows()
    for parameter in hyperparameters_of(model, GaussianLikelihood()):
        with torch.no_grad():
            parameter += 0.3
    evaluated: list[str] = []
    whole = ComponentGroup.at_rows

    def at_rows_of_group(group: ComponentGroup, *arguments: Any) -> GroupRows:
        evaluated.extend(group.names)
        return whole(group, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(ComponentGroup, "at_rows", at_rows_of_group)
        view = at_rows()
    groups = model.predictor.groups
    trained = [name for group in groups if any(p.requires_grad for p in group.parameters()) for name in group.names]
    assert sorted(evaluated) == sorted(trained) and len(trained) < model.predictor.num_components
    expected = model.variational_strategy.at_rows(x)
    torch.testing.assert_close(view.features, expected.features)
    torch.testing.assert_close(view.prior, expected.prior_variances)
    torch.testing.assert_close(view.variances, torch.cat([group.prior_variance(x) for group in groups]))


def test_groups_are_kept_while_there_is_nothing_to_train() -> None:
    x = inputs()
    model = model_of(x)
    at_rows, curve = ModelAtRows(model.variational_strategy, x), model.predictor.groups[1]
    assert at_rows().variances[1].requires_grad
    curve.requires_grad_(False)
    kept = at_rows().variances[1]
    with torch.no_grad():
        curve.kernel.raw_outputscale += 0.3
    assert torch.equal(at_rows().variances[1], kept)
    curve.requires_grad_(True)
    torch.testing.assert_close(at_rows().variances[1], curve.prior_variance(x)[0])


def test_no_group_is_kept_where_a_network_before_the_components_is_trained() -> None:
    class Network(AdditiveGP):
        def __init__(self, x: Tensor) -> None:
            super().__init__(AdditivePredictor(constant(), factor(2, 3)), family="coupled")
            self.scale = torch.nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
            return self.predictor(torch.cat([self.scale * x[:, :2], x[:, 2:]], dim=-1))

    x = inputs()
    at_rows = ModelAtRows(Network(x).variational_strategy, x)
    assert at_rows().features.requires_grad


def test_groups_are_evaluated_at_the_distinct_values_of_their_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    x = inputs()
    x[:, 0] = (7 * x[:, 0]).round()  # few values, and some are missing; column 1 has as many as rows
    x[::9, 0] = torch.nan
    groups = [
        constant(),
        smooth(0, x, num_inducing=4, missing="marginal"),
        smooth(1, x, num_inducing=4),
        smooth(0, x, num_inducing=4, by=1, names="product", missing="marginal"),
        random_effect(2, 3),
    ]
    model = AdditiveGP(AdditivePredictor(*groups), family="coupled")
    sizes: dict[str, int] = {}
    whole = ComponentGroup.at_rows

    def at_rows_of_group(group: ComponentGroup, rows: Tensor, *arguments: Any) -> GroupRows:
        sizes.update(dict.fromkeys(group.names, len(rows)))
        return whole(group, rows, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(ComponentGroup, "at_rows", at_rows_of_group)
        view = ModelAtRows(model.variational_strategy, x)()
    names = [group.names[0] for group in groups]
    assert [sizes[name] < N for name in names] == [False, True, False, False, True]
    expected = model.variational_strategy.at_rows(x)
    torch.testing.assert_close(view.features, expected.features)
    torch.testing.assert_close(view.prior, expected.prior_variances)
    parameters = [parameter for parameter in model.predictor.parameters() if parameter.requires_grad]
    weights = torch.randn(view.features.shape, generator=torch.Generator().manual_seed(2))
    found, wanted = (
        torch.autograd.grad((weights * features).sum() + prior.sin().sum(), parameters)
        for features, prior in ((view.features, view.prior), (expected.features, expected.prior_variances))
    )
    torch.testing.assert_close(found, wanted)


def test_first_posterior_of_location_and_scale_is_found_far_from_the_responses() -> None:
    x = inputs()
    y = 6 * x[:, 0]
    bounds = []
    for mean in (15.0, 0.0):  # from far above, and from below
        model, likelihood = model_of(x, num_predictors=2), GaussianLocationScaleLikelihood()
        strategy = model.variational_strategy
        start = torch.zeros(strategy.predictor.num_inducing_total)
        start[strategy.predictor.inducing_slices["constant"]] = mean
        strategy.set_whitened_posterior(start, torch.eye(len(start)))
        bounds.append(RowBound(model, likelihood, Rows(x, y, {}), Processes(None))().item())
    assert bounds[1] == pytest.approx(bounds[0], abs=1e-3)
