"""Every quantity of the reference cases, for every family, through the public classes."""

from __future__ import annotations

import math

import gpytorch
import numpy as np
import pytest
import torch

from gpytorch_gam import AdditivePredictor, ComponentGroup, LowRankPrecisionVariationalDistribution
from tests import reference
from tests.reference import assert_matches

CASES = reference.cases()


@pytest.fixture(params=range(len(CASES)), ids=lambda index: f"case{index}")
def case(request: pytest.FixtureRequest) -> dict:
    return CASES[request.param]


@pytest.fixture(params=reference.FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=[torch.float64, torch.float32], ids=["float64", "float32"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


def test_posterior_of_the_inducing_variables(case: dict, family: str, dtype: torch.dtype) -> None:
    posterior = reference.make_model(case, family, dtype).variational_strategy.inducing_posterior()
    expected = case["expected"][family]
    assert_matches(posterior.mean, expected["inducing_mean"])
    assert_matches(posterior.covariance_matrix, expected["inducing_covariance"])


def test_kl_divergence(case: dict, family: str, dtype: torch.dtype) -> None:
    model = reference.make_model(case, family, dtype)
    assert_matches(model.variational_strategy.kl_divergence(), case["expected"][family]["kl"])


def test_kl_divergence_of_the_distributions_agrees(case: dict, family: str) -> None:
    # The multitask wrappers take the divergence between the two distribution objects.
    strategy = reference.make_model(case, family).variational_strategy
    generic = torch.distributions.kl_divergence(strategy.variational_distribution, strategy.prior_distribution)
    assert_matches(generic, case["expected"][family]["kl"])


@pytest.mark.projection
def test_predictor_at_training_rows(case: dict, family: str, dtype: torch.dtype) -> None:
    model = reference.make_model(case, family, dtype)
    expected, x = case["expected"][family], reference.tensor(case["X"], dtype)
    posterior = model(x)
    assert_matches(posterior.mean, expected["predictor_mean"])
    assert_matches(posterior.variance, expected["predictor_variance"])
    assert_matches(posterior.covariance_matrix, expected["predictor_covariance"])
    marginals = model.train()(x)
    assert_matches(marginals.mean, expected["predictor_mean"])
    assert_matches(marginals.variance, expected["predictor_variance"])


def test_predictor_at_test_rows(case: dict, family: str, dtype: torch.dtype) -> None:
    posterior = reference.make_model(case, family, dtype)(reference.tensor(case["X_test"], dtype))
    assert_matches(posterior.mean, case["expected"][family]["test_predictor_mean"])
    assert_matches(posterior.covariance_matrix, case["expected"][family]["test_predictor_covariance"])


@pytest.mark.projection
def test_components(case: dict, family: str, dtype: torch.dtype) -> None:
    strategy = reference.make_model(case, family, dtype).variational_strategy
    expected = case["expected"][family]
    parts = strategy.components(reference.tensor(case["X_test"], dtype))
    cross = reference.tensor(expected["test_component_cross_covariance"])  # [i, j, n, n']
    assert_matches(parts.mean, expected["test_component_mean"])
    assert_matches(parts.variance, cross.diagonal(dim1=0, dim2=1).diagonal(dim1=0, dim2=1).tolist())
    assert_matches(parts.covariance(), cross.diagonal(dim1=0, dim2=1).movedim(-1, 0).tolist())
    assert_matches(parts.cross_covariance(), cross.diagonal(dim1=-2, dim2=-1).movedim(-1, 0).tolist())
    assert_matches(parts.full_cross_covariance(), cross.permute(0, 2, 1, 3).tolist())


def test_gaussian_elbo(case: dict, family: str, dtype: torch.dtype) -> None:
    model = reference.make_model(case, family, dtype)
    likelihood = gpytorch.likelihoods.GaussianLikelihood().to(dtype)
    likelihood.noise = reference.tensor([case["noise"]], dtype)
    assert_matches(
        _elbo(model, likelihood, case, reference.tensor(case["y"], dtype)), case["expected"][family]["elbo_gaussian"]
    )


def test_bernoulli_elbo(case: dict, family: str, dtype: torch.dtype) -> None:
    # The expectation by float64 quadrature here: GPyTorch's quadrature nodes and normal cdf are good to 1e-4.
    model = reference.make_model(case, family, dtype).train()
    marginals = model(reference.tensor(case["X"], dtype))
    sign = 2 * (reference.tensor(case["y"]) > 0).double() - 1
    nodes, weights = (torch.from_numpy(a) for a in np.polynomial.hermite_e.hermegauss(160))
    rho = marginals.mean.double() + marginals.variance.double().sqrt() * nodes[:, None]
    expected_log_prob = (weights[:, None] * torch.special.log_ndtr(sign * rho)).sum() / weights.sum()
    elbo = (expected_log_prob - model.variational_strategy.kl_divergence()).to(dtype)
    assert_matches(elbo, case["expected"][family]["elbo_bernoulli_probit"])


def test_bernoulli_elbo_through_gpytorch(case: dict, family: str) -> None:
    model = reference.make_model(case, family, torch.float32)
    labels = (reference.tensor(case["y"], torch.float32) > 0).float()
    with gpytorch.settings.num_gauss_hermite_locs(60):
        elbo = _elbo(model, gpytorch.likelihoods.BernoulliLikelihood(), case, labels)
    assert_matches(elbo, case["expected"][family]["elbo_bernoulli_probit"])


def _elbo(model: reference.Model, likelihood: object, case: dict, y: torch.Tensor) -> torch.Tensor:
    mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(y))
    model.train()
    return len(y) * mll(model(reference.tensor(case["X"], y.dtype)), y)


def test_two_predictors(case: dict, family: str, dtype: torch.dtype) -> None:
    model = reference.make_model(case, family, dtype, two_predictors=True)
    expected, x = case["expected"][family]["two_predictors"], reference.tensor(case["X"], dtype)
    moments = model.variational_strategy.predictor_moments(x)
    assert_matches(moments.mean, expected["mean"])
    assert_matches(moments.covariance, expected["covariance"])
    for posterior in (model.train()(x), model.eval()(x)):
        assert_matches(posterior.mean, expected["mean"])
        assert_matches(posterior.variance, reference.tensor(expected["covariance"]).diagonal(dim1=-2, dim2=-1).tolist())
    elbo = _location_log_scale_elbo(moments, reference.tensor(case["y"], dtype))
    elbo = elbo - model.variational_strategy.kl_divergence()
    assert_matches(elbo, expected["elbo_gaussian_location_log_scale"])


def _location_log_scale_elbo(moments: object, y: torch.Tensor) -> torch.Tensor:
    """E log N(y; rho_0, exp(2 rho_1)) under the joint Gaussian of each row, closed form."""
    (location, log_scale), cov = moments.mean.unbind(-1), moments.covariance
    precision = torch.exp(-2 * log_scale + 2 * cov[:, 1, 1])
    quadratic = precision * ((y - location + 2 * cov[:, 0, 1]).square() + cov[:, 0, 0])
    return (-0.5 * math.log(2 * math.pi) - log_scale - 0.5 * quadratic).sum()


def test_additive_without_inducing_points_is_the_low_rank_family_at_the_data(case: dict) -> None:
    # Inducing points at the data, B_u = (1 (x) Lambda): the paper's section 4.1 as a member of the public family.
    expected = case["expected"]["additive_without_inducing_points"]
    x, sites = reference.tensor(case["X"]), reference.tensor(expected["sites"])
    original = reference.make_predictor(case)
    groups = []
    for group in original.groups:
        points = group.select(x)
        groups.append(ComponentGroup(group.kernel, group.columns.tolist(), points))
    predictor, n = AdditivePredictor(*groups), len(x)
    distribution = LowRankPrecisionVariationalDistribution(predictor.num_inducing_total, rank=n).double()
    model = reference.Model(predictor, distribution, jitter=1e-8)
    # Sites are precisions: lambda = Lambda^2.
    factor = torch.diag(sites).repeat(predictor.num_components, 1)
    alpha = reference.tensor(expected["alpha"]).repeat(predictor.num_components)
    model.variational_strategy.set_paper_parameters(alpha, factor)
    posterior = model.variational_strategy.inducing_posterior()
    assert_matches(posterior.mean.reshape(-1, n).sum(0), expected["predictor_mean"])
    sums = posterior.covariance_matrix.reshape(predictor.num_components, n, predictor.num_components, n).sum((0, 2))
    assert_matches(sums.diagonal(), expected["predictor_variance"])
    assert_matches(model.variational_strategy.kl_divergence(), expected["kl"])


def test_elbo_at_the_gaussian_optimum_is_the_collapsed_bound(case: dict) -> None:
    model = reference.make_model(case, "gaussian_optimum")
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    likelihood.noise = reference.tensor([case["noise"]])
    elbo = _elbo(model, likelihood, case, reference.tensor(case["y"]))
    assert_matches(elbo, case["expected"]["collapsed_bound"])
