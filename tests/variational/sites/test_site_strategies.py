"""The two posteriors that are tied to the training data: references, dense oracles, optima, and the contract."""

from __future__ import annotations

import copy
import io
import itertools
import math
import pickle
import unittest
from collections.abc import Callable
from unittest.mock import patch

import gpytorch
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import BernoulliLikelihood, GaussianLikelihood, StudentTLikelihood
from gpytorch.test.variational_test_case import VariationalTestCase

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup
from gpytorch_gam.mlls import CollapsedELBO
from gpytorch_gam.terms import constant, smooth
from gpytorch_gam.variational import (
    FullAdditiveVariationalStrategy,
    SiteVariationalDistribution,
    TiedAdditiveVariationalStrategy,
)
from tests import reference
from tests.problems import SiteModel, dense_optimum, varying_predictor
from tests.reference import RTOL, assert_matches

STRATEGIES = [FullAdditiveVariationalStrategy, TiedAdditiveVariationalStrategy]
CASES = reference.cases()
both = pytest.mark.parametrize("strategy", STRATEGIES, ids=["full", "tied"])
every_case = pytest.mark.parametrize("case", CASES, ids=[f"case{index}" for index in range(len(CASES))])


def make_inputs(n: int = 12) -> torch.Tensor:
    x = torch.rand(n, 3)
    x[:, 2] = 0.5 + x[:, 2]
    return x


def make_model(strategy: type, n: int = 12, dtype: torch.dtype = torch.float64, **kwargs: object) -> SiteModel:
    """A posterior with non-trivial sites."""
    predictor = varying_predictor(**kwargs).to(dtype)
    model = SiteModel(strategy, predictor, make_inputs(n).to(dtype))
    shape = model.variational_strategy._variational_distribution.shape()
    model.variational_strategy.set_sites(0.5 * torch.randn(shape), 0.5 + torch.rand(shape))
    with torch.no_grad():
        predictor.means[0].raw_constant.fill_(0.4)
    return model


def gaussian(noise: float = 0.1) -> GaussianLikelihood:
    likelihood = GaussianLikelihood().double()
    likelihood.noise = torch.tensor([noise], dtype=torch.float64)
    return likelihood


def responses(likelihood: object, x: torch.Tensor) -> torch.Tensor:
    effect = torch.sin(6 * x[:, 0]) + 2 * (x[:, 1] - 0.5) * x[:, 2]
    if isinstance(likelihood, BernoulliLikelihood):
        return (effect + 0.5 * torch.randn(len(x)).to(x) > 0).to(x)
    if isinstance(likelihood, gpytorch.likelihoods.PoissonLikelihood):
        return torch.poisson(torch.nn.functional.softplus(3 * effect))
    return effect + 0.3 * torch.randn(len(x)).to(x)


def elbo(model: gpytorch.models.ApproximateGP, likelihood: object, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """In nats, summed over the rows."""
    return len(y) * gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(y))(model.train()(x), y)


# -------------------- the reference cases


def reference_model(case: dict, strategy: type, dtype: torch.dtype = torch.float64, jitter: float = 1e-8) -> SiteModel:
    predictor = reference.make_predictor(case, dtype)
    return SiteModel(strategy, predictor, reference.tensor(case["X"], dtype), jitter)


@every_case
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_full_equals_the_reference(case: dict, dtype: torch.dtype) -> None:
    expected = case["expected"]["additive_without_inducing_points"]
    model = reference_model(case, FullAdditiveVariationalStrategy, dtype)
    strategy, x = model.variational_strategy, reference.tensor(case["X"], dtype)
    alpha, scales = reference.tensor(expected["alpha"]), reference.tensor(expected["sites"])
    strategy.set_sites(alpha, scales)
    assert_matches(strategy.kl_divergence(), expected["kl"])
    # The reference's function values contain the jitter, predictions do not: here both are given it.
    assert_matches(model(x).mean + (strategy.jitter_variance() * alpha).to(dtype), expected["predictor_mean"])
    covariance = strategy.sum_covariance()
    data = torch.linalg.inv(covariance + torch.diag(scales**-2))
    assert_matches((covariance - covariance @ data @ covariance).diagonal().to(dtype), expected["predictor_variance"])
    # Without it the variance at the rows differs by about the jitter of C components, 3e-8.
    wanted = reference.tensor(expected["predictor_variance"])
    tolerance = 1e-7 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(model.eval()(x).variance.double(), wanted, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(model.train()(x).variance.double(), wanted, rtol=tolerance, atol=tolerance)


@every_case
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_tied_fit_is_the_gaussian_optimum_of_the_reference(case: dict, dtype: torch.dtype) -> None:
    expected = case["expected"]["gaussian_optimum"]
    model = reference_model(case, TiedAdditiveVariationalStrategy, dtype, case["jitter_on_Kuu"])
    strategy, y = model.variational_strategy, reference.tensor(case["y"], dtype)
    likelihood = GaussianLikelihood().to(dtype)
    likelihood.noise = reference.tensor([case["noise"]], dtype)
    history = strategy.fit_sites(likelihood, y)
    assert abs(history[1] - case["expected"]["collapsed_bound"]) <= RTOL[dtype] * abs(history[1])
    assert_matches(strategy._variational_distribution.site_scales, [case["noise"] ** -0.5] * len(y))
    posterior = strategy.inducing_posterior()
    assert_matches(posterior.mean, expected["inducing_mean"])
    assert_matches(posterior.covariance_matrix, expected["inducing_covariance"])
    assert_matches(strategy.kl_divergence(), expected["kl"])
    for inputs, prefix in (("X", "predictor"), ("X_test", "test_predictor")):
        predicted = model.eval()(reference.tensor(case[inputs], dtype))
        assert_matches(predicted.mean, expected[f"{prefix}_mean"])
        assert_matches(predicted.covariance_matrix, expected[f"{prefix}_covariance"])
    parts = strategy.components(reference.tensor(case["X_test"], dtype))
    cross = reference.tensor(expected["test_component_cross_covariance"])
    assert_matches(parts.mean, expected["test_component_mean"])
    assert_matches(parts.full_cross_covariance(), cross.permute(0, 2, 1, 3).tolist())


@every_case
def test_tied_by_hand_is_the_gaussian_optimum_of_the_reference(case: dict) -> None:
    model = reference_model(case, TiedAdditiveVariationalStrategy, jitter=case["jitter_on_Kuu"])
    strategy, y = model.variational_strategy, reference.tensor(case["y"])
    features, noise = strategy.features(reference.tensor(case["X"])), case["noise"]
    weights = torch.linalg.solve(features.mT @ features + noise * torch.eye(len(y)).double(), y)
    strategy.set_sites(weights, torch.full_like(y, noise**-0.5))
    assert_matches(strategy.inducing_posterior().mean, case["expected"]["gaussian_optimum"]["inducing_mean"])
    assert_matches(elbo(model, gaussian(noise), strategy.inputs, y), case["expected"]["collapsed_bound"])


# -------------------- dense oracles


def prior_parts(predictor: AdditivePredictor, x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    """Prior covariance of the four components of :func:`varying_predictor`, written out; (4, n, m)."""

    def rbf(kernel: ScaleKernel, column: int, index: int) -> torch.Tensor:
        distance = (x[:, None, column] - z[None, :, column]) / kernel.base_kernel.lengthscale[index]
        return kernel.outputscale[index] * torch.exp(-0.5 * distance**2)

    smooth, varying, level = (group.kernel for group in predictor.groups)
    by = x[:, None, 2] * z[None, :, 2]
    ones = torch.ones(len(x), len(z)).to(x)
    return torch.stack(
        [rbf(smooth, 0, 0), rbf(smooth, 1, 1), rbf(varying, 1, 0) * by, level.constant.reshape(()) * ones]
    )


@torch.no_grad()
def test_full_equals_conditioning_on_pseudo_observations() -> None:
    model, x = make_model(FullAdditiveVariationalStrategy), make_inputs(7).double()
    strategy, predictor = model.variational_strategy, model.predictor
    weights, scales = strategy._sites()
    data = strategy.inputs
    across, prior = prior_parts(predictor, x, data), prior_parts(predictor, x, x)
    gram = prior_parts(predictor, data, data).sum(0)
    gain = torch.linalg.inv(gram + torch.diag(scales**-2))
    cross = torch.einsum("ian,nm,jbm->iajb", across, gain, across)
    full = torch.diag_embed(prior.movedim(0, -1), dim1=0, dim2=2) - cross
    close = {"rtol": 1e-9, "atol": 1e-9}

    parts = strategy.components(x)
    torch.testing.assert_close(parts.mean, across @ weights, **close)
    torch.testing.assert_close(parts.full_cross_covariance(), full, **close)
    torch.testing.assert_close(parts.variance, full.diagonal(dim1=0, dim2=2).diagonal(dim1=0, dim2=1), **close)
    torch.testing.assert_close(parts.cross_covariance(), full.diagonal(dim1=1, dim2=3).movedim(-1, 0), **close)
    torch.testing.assert_close(parts.total()[1], full.sum((0, 2)).diagonal(), **close)
    mean, covariance = (across @ weights).sum(0) + predictor.means[0](x), full.sum((0, 2))
    for posterior in (model.eval()(x), model.train()(x, diag=False)):
        torch.testing.assert_close(posterior.mean, mean, **close)
        torch.testing.assert_close(posterior.covariance_matrix, covariance, **close)
    marginals, moments = model.train()(x), strategy.predictor_moments(x)
    torch.testing.assert_close(marginals.mean, mean, **close)
    torch.testing.assert_close(marginals.variance, covariance.diagonal(), **close)
    torch.testing.assert_close(moments.mean.squeeze(-1), mean, **close)
    torch.testing.assert_close(moments.covariance.flatten(), covariance.diagonal(), **close)
    # Divergence of N(K alpha, (K^-1 + Lambda^2)^-1) from N(0, K), by eigenvalues of the generalised problem.
    values = torch.linalg.eigvalsh(scales[:, None] * gram * scales)
    kl = 0.5 * (weights @ gram @ weights - (values / (1 + values)).sum() + values.log1p().sum())
    torch.testing.assert_close(strategy.kl_divergence(), kl, **close)
    generic = torch.distributions.kl_divergence(strategy.variational_distribution, strategy.prior_distribution)
    torch.testing.assert_close(generic, kl, rtol=1e-8, atol=0)  # its root takes a jitter of 1e-10


@pytest.mark.parametrize("n", [9, 40])  # fewer rows than the 19 inducing variables, and more
@torch.no_grad()
def test_tied_equals_the_dense_posterior(n: int) -> None:
    model, x = make_model(TiedAdditiveVariationalStrategy, n), make_inputs(7).double()
    strategy = model.variational_strategy
    weights, scales = strategy._sites()
    features, at_x = strategy.features(strategy.inputs), strategy.features(x)
    identity = torch.eye(len(features)).double()
    precision = identity + features @ torch.diag(scales**2) @ features.mT
    mean, covariance = features @ weights, torch.linalg.inv(precision)
    q = strategy.variational_distribution
    torch.testing.assert_close(q.mean, mean)
    torch.testing.assert_close(q.covariance_matrix, covariance, rtol=1e-9, atol=1e-9)
    kl = 0.5 * (mean @ mean + covariance.trace() - len(mean) + torch.logdet(precision))
    torch.testing.assert_close(strategy.kl_divergence(), kl)
    torch.testing.assert_close(torch.distributions.kl_divergence(q, strategy.prior_distribution), kl)
    assert strategy.covariance_factors().explained_shared.shape == (19, min(n, 19))
    prior = strategy(x, prior=True)
    wanted = prior.covariance_matrix + at_x.mT @ (covariance - identity) @ at_x
    posterior = model.eval()(x)
    torch.testing.assert_close(posterior.mean, prior.mean + at_x.mT @ mean)
    torch.testing.assert_close(posterior.covariance_matrix, wanted, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(model.train()(x).variance, wanted.diagonal(), rtol=1e-9, atol=1e-9)


@both
def test_prior_calls_subsets_and_settings(strategy: type) -> None:
    model, x = make_model(strategy).eval(), make_inputs(5).double()
    posterior, parts = model(x), model.variational_strategy.components(x)
    expected = prior_parts(model.predictor, x, x).sum(0)
    torch.testing.assert_close(model(x, prior=True).covariance_matrix, expected)
    some = parts[["constant", "x1"]]
    assert some.names == ("constant", "x1")
    torch.testing.assert_close(some.mean, parts.mean[[3, 1]])
    assert some.sample(torch.Size([3])).components.shape == (3, 2, 5)
    with gpytorch.settings.skip_posterior_variances():
        skipped = model(x)
    torch.testing.assert_close(skipped.mean, posterior.mean)
    assert skipped.lazy_covariance_matrix.to_dense().abs().max() == 0
    assert posterior.lazy_covariance_matrix.shape == (5, 5)


@both
@torch.no_grad()
def test_samples_follow_the_joint_posterior(strategy: type) -> None:
    model, x = make_model(strategy).eval(), make_inputs(3).double()
    parts = model.variational_strategy.components(x)
    draws = parts.sample(torch.Size([20000]))
    torch.testing.assert_close(draws.components.sum(-2), draws.total)
    expected = parts.full_cross_covariance().flatten(0, 1).flatten(-2)
    scale = expected.diagonal().max()
    # Monte-Carlo error of a covariance is about scale * sqrt(2 / 20000) = 1% of the scale; five of those.
    torch.testing.assert_close(draws.components.flatten(-2).mT.cov(), expected, rtol=0, atol=0.05 * scale.item())
    error = draws.components.mean(0) - parts.mean
    assert error.abs().max() < 0.05 * scale.sqrt()


def test_samples_of_the_full_form_at_the_data_follow_jitter_and_batches() -> None:
    predictor, inputs = varying_predictor(batch=(2,)).double(), make_inputs(6).double()
    model = SiteModel(FullAdditiveVariationalStrategy, predictor, inputs, jitter_val=0.1)
    model.variational_strategy.set_sites(torch.zeros(2, 6), torch.full((2, 6), 2.0))
    parts = model.variational_strategy.components(inputs.expand(3, 1, 6, 3))
    draws = parts.rsample(torch.Size([4000]))
    assert draws.components.shape == (4000, 3, 2, 4, 6)
    torch.testing.assert_close(draws.total.var(0), parts.total()[1], rtol=0.15, atol=0)  # 6 errors of 2.2%
    draws.total.sum().backward()
    assert model.variational_strategy._variational_distribution.site_weights.grad.abs().min() > 0
    with pytest.raises(TypeError, match=r"sample_shape must be a torch\.Size"):
        parts.sample(5)


@pytest.mark.parametrize("n", [5, 14])
@both
def test_gradients_of_the_elbo(strategy: type, n: int) -> None:
    model = make_model(strategy, n, size=3)
    x, y, likelihood = make_inputs(4).double(), torch.randn(4).double(), gaussian()
    names = [name for name, _ in model.named_parameters()]
    values = tuple(parameter.detach().clone().requires_grad_() for parameter in model.parameters())

    class Objective(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self) -> torch.Tensor:
            return elbo(self.model, likelihood, x, y)

    def function(*parameters: torch.Tensor) -> torch.Tensor:
        overrides = {f"model.{name}": value for name, value in zip(names, parameters, strict=True)}
        return torch.func.functional_call(Objective(), overrides, ())

    assert torch.autograd.gradcheck(function, values, fast_mode=True)


# -------------------- optima

LIKELIHOODS: dict[str, Callable] = {
    "gaussian": gaussian,
    "bernoulli": BernoulliLikelihood,
    "poisson": gpytorch.likelihoods.PoissonLikelihood,
}


def fitted(
    strategy: type, likelihood: object, n: int = 30, **kwargs: object
) -> tuple[SiteModel, torch.Tensor, list[float]]:
    model = make_model(strategy, n, **kwargs)
    y = responses(likelihood, model.variational_strategy.inputs)
    return model, y, model.variational_strategy.fit_sites(likelihood, y, tolerance=1e-12)


@pytest.mark.parametrize("name", LIKELIHOODS)
@both
def test_fit_is_a_stationary_point(strategy: type, name: str) -> None:
    likelihood = LIKELIHOODS[name]()
    model, y, history = fitted(strategy, likelihood)
    bound = elbo(model, likelihood, model.variational_strategy.inputs, y)
    assert history[-1] == pytest.approx(bound.item(), rel=1e-12)
    assert all(after >= before - 1e-10 for before, after in itertools.pairwise(history))
    bound.backward()
    q = model.variational_strategy._variational_distribution
    # A bound good to 1e-12 nats determines sites to the root of that.
    assert q.site_weights.grad.abs().max() < 1e-5
    assert q.site_scales.grad.abs().max() < 1e-5


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_tied_optimum_is_that_of_the_coupled_family(name: str) -> None:
    likelihood = LIKELIHOODS[name]()
    model, y, history = fitted(TiedAdditiveVariationalStrategy, likelihood)
    strategy, x = model.variational_strategy, model.variational_strategy.inputs
    with torch.no_grad():
        model.predictor.means[0].raw_constant.zero_()  # the oracle knows no mean
    history = strategy.fit_sites(likelihood, y, tolerance=1e-12)
    assert history[-1] == pytest.approx(dense_optimum(model, likelihood, x, y), abs=1e-7)
    coupled = AdditiveGP(copy.deepcopy(model.predictor), "coupled").double()
    q = strategy.variational_distribution
    coupled.variational_strategy.set_whitened_posterior(q.mean, torch.linalg.inv(q.covariance_matrix))
    bound = elbo(coupled, likelihood, x, y)
    assert bound.item() == pytest.approx(history[-1], abs=1e-8)
    bound.backward()  # concave in these parameters: no gradient, no better member of the family
    for parameter in coupled.variational_strategy._variational_distribution.parameters():
        assert parameter.grad.tril().abs().max() < 1e-4 if parameter.dim() == 2 else parameter.grad.abs().max() < 1e-4


def test_gaussian_fit_of_the_full_form_is_exact_regression() -> None:
    likelihood = gaussian(0.2)
    model, y, history = fitted(FullAdditiveVariationalStrategy, likelihood)
    strategy, x = model.variational_strategy, model.variational_strategy.inputs
    marginal = likelihood(model.predictor(x))
    exact = torch.distributions.MultivariateNormal(marginal.mean, marginal.covariance_matrix).log_prob(y)
    # One step, and one that confirms it.
    assert len(history) == 3
    assert history[1] == pytest.approx(exact.item(), rel=1e-10)
    residual = y - model.predictor.means[0](x)
    weights = torch.linalg.solve(marginal.covariance_matrix, residual)
    torch.testing.assert_close(strategy._variational_distribution.site_weights, weights, rtol=1e-8, atol=1e-8)
    scales = torch.full_like(y, 0.2**-0.5)
    torch.testing.assert_close(strategy._variational_distribution.site_scales, scales, rtol=1e-12, atol=0)


def test_gaussian_fit_of_the_tied_form_is_the_collapsed_bound() -> None:
    likelihood = gaussian(0.2)
    model, y, history = fitted(TiedAdditiveVariationalStrategy, likelihood, 60)
    optimum = CollapsedELBO(likelihood, model).optimum(model.variational_strategy.inputs, y)
    assert len(history) == 3
    assert history[1] == pytest.approx(optimum.bound.item(), rel=1e-10)
    torch.testing.assert_close(model.variational_strategy.variational_distribution.mean, optimum.mean)


@pytest.mark.parametrize("name", ["gaussian", "bernoulli"])
def test_full_form_agrees_with_inducing_points_at_the_data(name: str) -> None:
    likelihood, jitter = LIKELIHOODS[name](), 1e-9
    inputs = make_inputs(8).double()
    points = torch.stack([inputs[:, [0]], inputs[:, [1]], inputs[:, [1]]])
    predictor = varying_predictor(points=points).double()
    y = responses(likelihood, inputs)
    full = SiteModel(FullAdditiveVariationalStrategy, predictor, inputs)
    bound = full.variational_strategy.fit_sites(likelihood, y, tolerance=1e-12)[-1]
    coupled = AdditiveGP(predictor, "coupled", jitter_val=jitter).double()
    # The jitter of the inducing points costs about as much as it shifts each row's log-likelihood.
    assert bound == pytest.approx(dense_optimum(coupled, likelihood, inputs, y), abs=1e-6)
    tied = SiteModel(TiedAdditiveVariationalStrategy, predictor, inputs, jitter)
    assert bound == pytest.approx(tied.variational_strategy.fit_sites(likelihood, y, tolerance=1e-12)[-1], abs=1e-6)
    x = make_inputs(5).double()
    ours, theirs = full.variational_strategy.components(x), tied.variational_strategy.components(x)
    torch.testing.assert_close(ours.mean, theirs.mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours.full_cross_covariance(), theirs.full_cross_covariance(), rtol=1e-5, atol=1e-5)


def test_jitter_of_the_full_form_is_that_of_inducing_points_at_the_data() -> None:
    jitter, inputs, x = 1e-3, make_inputs(8).double(), make_inputs(5).double()
    points = torch.stack([inputs[:, [0]], inputs[:, [1]], inputs[:, [1]]])
    full = SiteModel(FullAdditiveVariationalStrategy, varying_predictor(points=points).double(), inputs, jitter)
    low_rank = AdditiveGP(full.predictor, "low_rank", rank=8, jitter_val=jitter).double()
    weights, scales = torch.randn(8).double(), 1 + torch.rand(8).double()
    full.variational_strategy.set_sites(weights, scales)
    # In the coordinates of the inducing variables, which come before the multiplier; the constant has one variable.
    by = inputs[:, 2]
    alpha = torch.cat([weights, weights, by * weights])
    factor = torch.cat([torch.diag(scales), torch.diag(scales), torch.diag(by * scales)])
    level = full.predictor.groups[2].features(inputs, full.predictor.groups[2].inducing_cholesky(0.0))[0]
    root = low_rank.variational_strategy.inducing_choleskys()[2][0]
    last = (
        torch.linalg.solve(root.mT, level * scales),
        torch.linalg.solve(root.mT, level @ weights[:, None]).squeeze(-1),
    )
    low_rank.variational_strategy.set_paper_parameters(torch.cat([alpha, last[1]]), torch.cat([factor, last[0]]))
    ours, theirs = full.variational_strategy, low_rank.variational_strategy
    torch.testing.assert_close(ours.kl_divergence(), theirs.kl_divergence(), rtol=1e-9, atol=0)
    torch.testing.assert_close(full.eval()(x).mean, low_rank.eval()(x).mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(full(x).covariance_matrix, low_rank(x).covariance_matrix, rtol=1e-9, atol=1e-9)


@both
def test_steps_are_shortened_where_the_bound_would_fall(strategy: type) -> None:
    class Counts(gpytorch.likelihoods.PoissonLikelihood):
        """A log link, with its expectation in closed form: full steps overshoot."""

        def expected_log_prob(self, y: torch.Tensor, output: object, **kwargs: object) -> torch.Tensor:
            return y * output.mean - (output.mean + 0.5 * output.variance).exp()

    model = make_model(strategy, 20)
    y = torch.full((20,), 400.0).double()
    model.variational_strategy.set_sites(torch.zeros(20), torch.full((20,), 0.01))
    with patch.object(strategy, "_site_gradients", autospec=True, side_effect=strategy._site_gradients) as evaluated:
        history = model.variational_strategy.fit_sites(Counts(), y, tolerance=1e-10)
    assert evaluated.call_count > len(history)
    assert all(after >= before - 1e-9 for before, after in itertools.pairwise(history))
    bound = elbo(model, Counts(), model.variational_strategy.inputs, y)
    bound.backward()
    # A bound of 4e4 nats has rounding errors of 1e-10; the gradient at the start is 4e4.
    assert model.variational_strategy._variational_distribution.site_weights.grad.abs().max() < 0.05


@both
def test_likelihoods_that_are_not_log_concave_keep_precisions_at_zero_or_more(strategy: type) -> None:
    likelihood = StudentTLikelihood().double()
    model = make_model(strategy, 20)
    y = torch.randn(20).double() * 3
    y[:3] = 40.0
    history = model.variational_strategy.fit_sites(likelihood, y, max_iterations=20, lr=0.5)
    assert all(after >= before - 1e-9 for before, after in itertools.pairwise(history))
    assert torch.isfinite(model.variational_strategy._variational_distribution.site_scales).all()
    assert history[-1] > history[0]


def test_full_bound_is_above_the_tied_one() -> None:
    likelihood = BernoulliLikelihood()
    full, y, history = fitted(FullAdditiveVariationalStrategy, likelihood)
    tied = SiteModel(TiedAdditiveVariationalStrategy, full.predictor, full.variational_strategy.inputs)
    sparse = tied.variational_strategy.fit_sites(likelihood, y)[-1]
    assert 0 < history[-1] - sparse < 5


@both
def test_batches_of_models_are_fitted_together(strategy: type) -> None:
    inputs, likelihood = make_inputs(9).double(), gaussian()
    y = torch.randn(2, 9).double()
    batched = SiteModel(strategy, varying_predictor(batch=(2,)).double(), inputs)
    total = batched.variational_strategy.fit_sites(likelihood, y)[-1]
    single = [SiteModel(strategy, varying_predictor().double(), inputs) for _ in range(2)]
    bounds = [model.variational_strategy.fit_sites(likelihood, row)[-1] for model, row in zip(single, y, strict=True)]
    assert total == pytest.approx(sum(bounds), rel=1e-10)
    x = make_inputs(4).double()
    torch.testing.assert_close(batched.eval()(x).mean, torch.stack([model.eval()(x).mean for model in single]))
    shared = SiteModel(strategy, varying_predictor(batch=(2,)).double(), inputs, batch_shape=torch.Size([]))
    with pytest.raises(NotImplementedError, match="sites of each model's own"):
        shared.variational_strategy.fit_sites(likelihood, y)


# -------------------- inside GPyTorch


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@both
def test_training_by_adam_on_minibatches(strategy: type, dtype: torch.dtype) -> None:
    inputs = make_inputs(40).to(dtype)
    model = SiteModel(strategy, varying_predictor().to(dtype), inputs)
    likelihood = GaussianLikelihood().to(dtype)
    y = responses(likelihood, inputs)
    mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=40)
    optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=0.05)
    with torch.no_grad():
        start = mll(model.train()(inputs), y)
    for _ in range(25):
        rows = torch.randperm(40)[:20]
        optimizer.zero_grad()
        (-mll(model(inputs[rows]), y[rows])).backward()
        assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters())
        optimizer.step()
    assert mll(model(inputs), y) > start + 0.3
    assert torch.isfinite(likelihood.eval()(model.eval()(inputs)).variance).all()


@both
def test_float32_agrees_with_float64(strategy: type) -> None:
    model = make_model(strategy, 60, torch.float32)
    x = make_inputs(30)
    # The default jitter of float32 in both precisions, so that both compute the same posterior.
    double = copy.deepcopy(model).double()
    for mode in (True, False):
        single, wide = model.train(mode)(x), double.train(mode)(x.double())
        torch.testing.assert_close(single.mean.double(), wide.mean, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(single.variance.double(), wide.variance, rtol=1e-2, atol=1e-5)
    kl = model.variational_strategy.kl_divergence().double()
    torch.testing.assert_close(kl, double.variational_strategy.kl_divergence(), rtol=1e-5, atol=0)


@both
def test_state_copies_and_pickles(strategy: type) -> None:
    model, x = make_model(strategy), make_inputs(5).double()
    elbo(model, gaussian(), model.variational_strategy.inputs, torch.randn(12).double()).backward()
    expected = model.eval()(x)
    other = SiteModel(strategy, varying_predictor().double(), make_inputs().double())
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    other.load_state_dict(torch.load(buffer))
    for restored in (other, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        posterior = restored.eval()(x)
        torch.testing.assert_close(posterior.mean, expected.mean, rtol=0, atol=0)
        torch.testing.assert_close(posterior.covariance_matrix, expected.covariance_matrix, rtol=0, atol=0)
    fewer = SiteModel(strategy, varying_predictor().double(), make_inputs(7).double())
    with pytest.raises(RuntimeError, match="size mismatch"):
        fewer.load_state_dict(model.state_dict())


@both
def test_training_inputs_are_copied(strategy: type) -> None:
    x = make_inputs()
    inputs, expected = SiteModel(strategy, varying_predictor(), x).variational_strategy.inputs, x.clone()
    x.add_(1.0)
    assert torch.equal(inputs, expected)


@both
def test_autocast_does_not_touch_the_posterior(strategy: type) -> None:
    model, x = make_model(strategy, dtype=torch.float32), make_inputs(5)
    expected = model.train()(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside, kl = model(x), model.variational_strategy.kl_divergence()
        parts = model.variational_strategy.components(x)
    torch.testing.assert_close(inside.variance, expected.variance, rtol=0, atol=0)
    torch.testing.assert_close(kl, model.variational_strategy.kl_divergence(), rtol=0, atol=0)
    torch.testing.assert_close(parts.variance, model.variational_strategy.components(x).variance, rtol=0, atol=0)


@both
def test_independent_multitask_wrapper(strategy: type) -> None:
    class Wrapped(gpytorch.models.ApproximateGP):
        def __init__(self, base: object) -> None:
            super().__init__(gpytorch.variational.IndependentMultitaskVariationalStrategy(base, num_tasks=2))

    base, x = make_model(strategy, batch=(2,)), make_inputs(4).double()
    wrapped = Wrapped(base.variational_strategy).eval()
    posterior, expected = wrapped(x), base.eval()(x)
    torch.testing.assert_close(posterior.mean, expected.mean.mT)
    kl = base.variational_strategy.kl_divergence().sum()
    torch.testing.assert_close(wrapped.variational_strategy.kl_divergence(), kl, rtol=1e-8, atol=0)


class _SiteTestCase(VariationalTestCase):
    """GPyTorch's own conformance tests."""

    distribution_cls = SiteVariationalDistribution
    batch_shape = torch.Size([])
    mll_cls = gpytorch.mlls.VariationalELBO

    def _make_model_and_likelihood(
        self,
        num_inducing: int = 16,
        batch_shape: torch.Size = torch.Size([]),  # noqa: B008
        inducing_batch_shape: torch.Size = torch.Size([]),  # noqa: B008
        strategy_cls: type = TiedAdditiveVariationalStrategy,
        distribution_cls: object = None,
        constant_mean: bool = True,
    ) -> tuple[SiteModel, object]:
        torch.manual_seed(0)
        size = torch.Size([2])
        univariate = ComponentGroup(
            ScaleKernel(RBFKernel(batch_shape=size), batch_shape=size),
            columns=[[0], [1]],
            inducing_points=torch.randn(2, 5, 1).repeat(*inducing_batch_shape, 1, 1, 1),
        )
        mean = gpytorch.means.ConstantMean() if constant_mean else None
        predictor = AdditivePredictor(univariate, constant(), mean=mean)
        inputs = torch.randn(*inducing_batch_shape, num_inducing, 2)
        return SiteModel(strategy_cls, predictor, inputs, batch_shape=batch_shape), self.likelihood_cls()

    def test_fantasy_call(self, *args: object, **kwargs: object) -> None:
        with self.assertRaises(NotImplementedError):
            super().test_fantasy_call(*args, **kwargs)


class TestFull(_SiteTestCase, unittest.TestCase):
    strategy_cls = FullAdditiveVariationalStrategy


class TestTied(_SiteTestCase, unittest.TestCase):
    strategy_cls = TiedAdditiveVariationalStrategy


# -------------------- errors


def test_the_distribution_starts_near_the_prior_and_has_no_forward() -> None:
    q = SiteVariationalDistribution(50, batch_shape=torch.Size([2]))
    assert q.site_weights.shape == q.site_scales.shape == (2, 50)
    assert q.num_data == 50
    assert 0 < q.site_weights.abs().max() < 0.01
    assert (q.site_scales == 0.01).all()
    with pytest.raises(NotImplementedError, match=r"use strategy\.variational_distribution"):
        q()
    with pytest.raises(ValueError, match="num_data must be at least 1, got 0"):
        SiteVariationalDistribution(0)
    with pytest.raises(ValueError, match="init_scale must be positive, got 0"):
        SiteVariationalDistribution(3, init_scale=0)


class WithoutForward(gpytorch.models.ApproximateGP):
    def __init__(self, strategy: type, *args: object, **kwargs: object) -> None:
        super().__init__(strategy(self, *args, **kwargs))


@both
def test_construction_errors(strategy: type) -> None:
    predictor, x = varying_predictor(), make_inputs(4)
    name = strategy.__name__
    for wrong, message in (
        (x.numpy(), "must be a torch.Tensor, got ndarray"),
        (x.double(), "has dtype torch.float64"),
        (x.long(), "has dtype torch.int64"),
        (x[0], "must have shape"),
        (x[:, :2], "x has 2 columns"),
        (x[:0], "x is empty"),
        (x * math.nan, "NaN or infinity in 4 of 4 rows"),
    ):
        with pytest.raises((TypeError, ValueError), match=f"inputs of {name} cannot be used: .*{message}"):
            WithoutForward(strategy, predictor, wrong)
        # What a forward of the model's own makes of the inputs is known when it runs.
        with pytest.raises((TypeError, ValueError), match=f"inputs of {name} cannot be used: "):
            SiteModel(strategy, predictor, wrong)(x)
    with pytest.raises(TypeError, match="must be an AdditivePredictor, got 'x'"):
        SiteModel(strategy, "x", x)
    with pytest.raises(ValueError, match="jitter_val must not be negative"):
        SiteModel(strategy, predictor, x, -1.0)
    with pytest.raises(ValueError, match=r"predictor's is \(2,\), that of inputs \(\), batch_shape is \(3,\)"):
        SiteModel(strategy, varying_predictor(batch=(2,)), x, batch_shape=(3,))
    with pytest.raises(ValueError, match=r"predictor's is \(2,\), that of inputs \(3,\), batch_shape is None"):
        SiteModel(strategy, varying_predictor(batch=(2,)), x.expand(3, 4, 3))
    two = AdditivePredictor(varying_predictor().groups[0], constant(predictor=1))
    with pytest.raises(NotImplementedError, match="serves one predictor; this one has 2"):
        SiteModel(strategy, two, x)
    marginal = AdditivePredictor(smooth(0, low=0.0, high=1.0, missing="marginal"))
    with pytest.raises(NotImplementedError, match=r"no components with missing=\"marginal\", as \['x0'\] have"):
        SiteModel(strategy, marginal, x)


@both
def test_call_and_fit_errors(strategy: type) -> None:
    model = make_model(strategy)
    sites, likelihood, y = model.variational_strategy, gaussian(), torch.randn(12).double()
    for arguments, message in (
        ((y[:5],), r"y has shape \(5,\), but the strategy was made for 12 rows"),
        ((y * math.nan,), "y has NaN or infinity in 12 of 12 entries"),
        ((y, -1), "max_iterations must not be negative, got -1"),
        ((y, 10, -1.0), "tolerance must not be negative"),
        ((y, 10, 1e-6, 0.0), r"lr must lie in \(0, 1\], got 0.0"),
    ):
        with pytest.raises(ValueError, match=message):
            sites.fit_sites(likelihood, *arguments)
    with pytest.raises(TypeError, match=r"y must be a torch\.Tensor, got ndarray"):
        sites.fit_sites(likelihood, y.numpy())
    with pytest.raises(ValueError, match=r"weights must have shape \(12,\), got \(3,\)"):
        sites.set_sites(y[:3], y)
    with pytest.raises(ValueError, match="scales contain NaN"):
        sites.set_sites(y, y * math.inf)
    with pytest.raises(ValueError, match=r"has dtype torch\.float32"):
        model(make_inputs(4))


def test_sites_have_no_coordinates_of_other_families() -> None:
    tied = make_model(TiedAdditiveVariationalStrategy).variational_strategy
    with pytest.raises(TypeError, match="this is a SiteVariationalDistribution"):
        tied.paper_parameters()
    with pytest.raises(TypeError, match="SiteVariationalDistribution cannot be set from a precision"):
        tied.set_whitened_posterior(torch.zeros(12), torch.eye(12))


def test_the_full_form_has_no_inducing_variables() -> None:
    model = make_model(FullAdditiveVariationalStrategy)
    strategy = model.variational_strategy
    assert strategy.inducing_points is strategy.inputs
    for name in ("inducing_choleskys", "covariance_factors", "inducing_posterior", "features"):
        assert not hasattr(strategy, name)
    with pytest.raises(NotImplementedError, match="has no inducing variables"):
        CollapsedELBO(gaussian(), model)(strategy.inputs, torch.randn(12).double())


@both
def test_no_iterations_change_nothing(strategy: type) -> None:
    model = make_model(strategy)
    before = [parameter.clone() for parameter in model.parameters()]
    history = model.variational_strategy.fit_sites(gaussian(), torch.randn(12).double(), max_iterations=0)
    assert len(history) == 1
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
