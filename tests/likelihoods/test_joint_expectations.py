"""Expectations of likelihoods of several predictors: values, dependence on correlation, and derivatives."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import special

from gpytorch_gam.likelihoods._joint_expectation import joint_nodes, row_cholesky, standard_nodes
from gpytorch_gam.likelihoods.student_t_location_scale_likelihood import mixing_nodes
from gpytorch_gam.numerics.student_t import expected_log1p_square

from .joint_cases import CASES, Case, dense_nodes, distribution, drawn_nodes, moments


@pytest.fixture(params=list(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture(params=["gaussian", "negative_binomial", "student", "softmax3"])
def dense_case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.mark.parametrize("is_training", [True, False])
def test_expected_log_prob_is_that_of_joint_draws(case: Case, is_training: bool) -> None:
    mean, covariance = moments(case)
    likelihood = case.make().double().train(is_training)
    expected = likelihood.expected_log_prob(case.y, distribution(mean, covariance))
    size = 200_000
    draws = case.log_prob(case.y.numpy(), drawn_nodes(mean, covariance, size))
    errors = np.abs(expected.detach().numpy() - draws.mean(0)) - case.tolerance
    assert (errors < 4 * draws.std(0) / math.sqrt(size)).all()


def test_expected_log_prob_is_that_of_dense_quadrature(dense_case: Case) -> None:
    mean, covariance = moments(dense_case)
    expected = dense_case.make().double().expected_log_prob(dense_case.y, distribution(mean, covariance))
    nodes, weights = dense_nodes(mean, covariance)
    reference = weights @ dense_case.log_prob(dense_case.y.numpy(), nodes)
    np.testing.assert_allclose(expected.detach().numpy(), reference, atol=dense_case.tolerance, rtol=0)


def test_log_marginal_is_that_of_dense_quadrature(dense_case: Case) -> None:
    mean, covariance = moments(dense_case)
    actual = dense_case.make().double().log_marginal(dense_case.y, distribution(mean, covariance))
    nodes, weights = dense_nodes(mean, covariance)
    log_probs = dense_case.log_prob(dense_case.y.numpy(), nodes)
    reference = special.logsumexp(log_probs, b=weights[:, None], axis=0)
    # The tail of the mixing variable of Student's distribution is cut off where 4e-11 of its density is left.
    np.testing.assert_allclose(actual.detach().numpy(), reference, atol=2e-5, rtol=0)


def test_covariance_between_predictors_counts_in_train_mode(case: Case) -> None:
    mean, covariance = moments(case)
    independent = torch.diag_embed(covariance.diagonal(dim1=-2, dim2=-1))
    likelihood = case.make().double().train()
    joint = likelihood.expected_log_prob(case.y, distribution(mean, covariance))
    marginal = likelihood.expected_log_prob(case.y, distribution(mean, independent))
    assert ((joint - marginal).abs() > max(5e-3, case.tolerance)).all()


def test_gradients_are_those_of_finite_differences(case: Case) -> None:
    mean, covariance = moments(case, rows=2)
    likelihood, y = case.make().double(), case.y[:2]

    def expected(mean: torch.Tensor, root: torch.Tensor) -> torch.Tensor:
        return likelihood.expected_log_prob(y, distribution(mean, root @ root.mT))

    root = torch.linalg.cholesky(covariance)
    assert torch.autograd.gradcheck(expected, (mean.requires_grad_(), root.requires_grad_()), atol=1e-6)


def test_gradient_in_the_covariance_is_half_the_expected_hessian(case: Case) -> None:
    mean, covariance = moments(case)
    likelihood = case.make().double()
    variables = mean.clone().requires_grad_(), covariance.clone().requires_grad_()
    likelihood.expected_log_prob(case.y, distribution(*variables)).sum().backward()
    # The Hessian of the log-probability itself, averaged over a dense rule or over draws.
    if mean.shape[-1] <= 3:
        nodes, weights = dense_nodes(mean, covariance)
        kept = weights > 1e-13
        nodes, weights = torch.from_numpy(nodes[kept]), torch.from_numpy(weights[kept] / weights[kept].sum())
    else:
        nodes = torch.from_numpy(drawn_nodes(mean, covariance, 50_000))
        weights = torch.full((50_000,), 1 / 50_000, dtype=torch.float64)
    points = nodes.clone().requires_grad_()
    slopes = torch.autograd.grad(likelihood(points).log_prob(case.y).sum(), points, create_graph=True)[0]
    columns = [torch.autograd.grad(slopes[..., i].sum(), points, retain_graph=True)[0] for i in range(mean.shape[-1])]
    hessian = torch.einsum("k,knij->nij", weights, torch.stack(columns, dim=-2))
    # Second derivatives integrate less accurately than values.
    tolerance = 5e-3 if mean.shape[-1] > 3 else 2e-5
    scale = hessian.abs().amax((-2, -1), keepdim=True).clamp_min(1.0)
    gradient = variables[1].grad
    assert gradient is not None and torch.equal(gradient, gradient.mT)
    assert ((gradient - hessian / 2).abs() / scale).max() < tolerance
    assert ((variables[0].grad - torch.einsum("k,kni->ni", weights, slopes.detach())).abs()).max() < 1e-2 * scale.max()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_singular_covariances_have_finite_nearly_exact_gradients(case: Case, dtype: torch.dtype) -> None:
    mean, covariance = (value.to(dtype) for value in moments(case))
    covariance[0] = 0.0  # known predictors
    covariance[1] = covariance[1, :, :1] * covariance[1, :1, :] / covariance[1, 0, 0]  # one direction
    covariance[2, -1], covariance[2, :, -1] = 0.0, 0.0  # the last known
    variables = mean.requires_grad_(), covariance.requires_grad_()
    likelihood = case.make().to(dtype)
    expected = likelihood.expected_log_prob(case.y.to(dtype), distribution(*variables))
    expected.sum().backward()
    assert expected.isfinite().all() and all(value.grad.isfinite().all() for value in variables)
    point = mean[0].detach().double()

    def log_prob(point: torch.Tensor) -> torch.Tensor:
        return case.make().double()(point.unsqueeze(0)).log_prob(case.y[:1]).squeeze()

    exact, hessian = log_prob(point), torch.autograd.functional.hessian(log_prob, point)
    torch.testing.assert_close(expected[0].double(), exact, atol=1e-5, rtol=1e-5)
    # Differences over steps of the root of the dtype's epsilon.
    tolerance = 10 * torch.finfo(dtype).eps ** 0.5
    scale = 1 + hessian.abs().max()
    assert ((variables[1].grad[0].double() - hessian / 2).abs() / scale).max() < tolerance


def test_cholesky_factors_are_those_of_torch_and_exist_for_singular_matrices() -> None:
    root = torch.randn(3, 7, 4, 4, dtype=torch.float64)
    covariance = root @ root.mT
    torch.testing.assert_close(row_cholesky(covariance), torch.linalg.cholesky(covariance), atol=1e-10, rtol=1e-10)
    thin = root[..., :1] @ root[..., :1].mT
    factor = row_cholesky(thin)
    torch.testing.assert_close(factor @ factor.mT, thin, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("dimension", [1, 2, 3, 6, 40])
def test_nodes_have_the_first_two_moments_of_a_standard_normal(dimension: int) -> None:
    nodes, log_weights = standard_nodes(dimension, torch.float64, torch.device("cpu"))
    weights = log_weights.exp()
    assert abs(float(weights.sum()) - 1) < 1e-12
    # Products of weights below 1e-12 are left out in two dimensions.
    np.testing.assert_allclose(weights @ nodes, np.zeros(dimension), atol=1e-12)
    np.testing.assert_allclose((weights * nodes.mT) @ nodes, np.eye(dimension), atol=1e-8)


def test_nodes_first_made_in_inference_mode_serve_in_training() -> None:
    standard_nodes.cache_clear()
    mean = torch.zeros(2, 2)
    with torch.inference_mode():
        joint_nodes(mean, torch.eye(2).expand(2, 2, 2))
    covariance = torch.eye(2).repeat(2, 1, 1).requires_grad_()
    joint_nodes(mean, covariance).values.square().sum().backward()
    assert covariance.grad is not None


@pytest.mark.parametrize("mean", [0.0, 0.3, 30.0])
@pytest.mark.parametrize("deviation", [0.0, 1e-3, 1.0, 50.0])
def test_expected_log_of_one_plus_a_square(mean: float, deviation: float) -> None:
    points = np.linspace(-10, 10, 200_001)
    weights = np.exp(-(points**2) / 2)
    reference = weights @ np.log1p((mean + deviation * points) ** 2) / weights.sum()
    actual = expected_log1p_square(*torch.tensor([mean**2, deviation**2], dtype=torch.float64))
    assert abs(float(actual) - reference) < 3e-6


@pytest.mark.parametrize("deg_free", [2.1, 4.0, 30.0, 1e6])
def test_mixing_nodes_make_students_distribution(deg_free: float) -> None:
    log_mixing, log_weights = mixing_nodes(torch.tensor(deg_free, dtype=torch.float64))
    x = torch.tensor([0.0, 1.0, 5.0], dtype=torch.float64)
    normal = torch.distributions.Normal(0.0, (-0.5 * log_mixing).exp())
    actual = (normal.log_prob(x.unsqueeze(-1)) + log_weights).logsumexp(-1)
    reference = torch.distributions.StudentT(torch.tensor(deg_free, dtype=torch.float64)).log_prob(x)
    # The rule's error, e^(-pi^2 / step), is largest for few degrees of freedom.
    torch.testing.assert_close(actual, reference, atol=4e-4 if deg_free < 3 else 4e-6, rtol=0)
