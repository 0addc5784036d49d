"""What GPyTorch's MultivariateNormal asks of a covariance operator."""

import copy
import pickle

import pytest
import torch
from gpytorch.distributions import MultivariateNormal
from linear_operator.operators import IdentityLinearOperator

from .operator_cases import ALL_CASES, SIZE, Case

CLOSE = {"rtol": 1e-9, "atol": 1e-10}


@pytest.fixture(params=ALL_CASES, ids=str)
def pair(request):
    """The same Gaussian, structured in GPyTorch and dense in torch."""
    operator, dense = request.param.make()
    mean = torch.randn(*operator.shape[:-1], dtype=torch.double)
    dense = (dense + dense.mT) / 2  # torch checks symmetry to a tighter tolerance than inv leaves
    return MultivariateNormal(mean, operator), torch.distributions.MultivariateNormal(mean, dense)


def test_variance_covariance_and_confidence_region(pair):
    structured, dense = pair
    torch.testing.assert_close(structured.variance, dense.variance, **CLOSE)
    torch.testing.assert_close(structured.covariance_matrix, dense.covariance_matrix, **CLOSE)
    lower, upper = structured.confidence_region()
    torch.testing.assert_close(upper - lower, 4 * dense.stddev, **CLOSE)


@pytest.mark.parametrize("sample_shape", [(), (4,), (2, 3)])
def test_log_prob(pair, sample_shape):
    structured, dense = pair
    value = torch.randn(*sample_shape, *dense.mean.shape, dtype=torch.double)
    torch.testing.assert_close(structured.log_prob(value), dense.log_prob(value), **CLOSE)


def test_rsample_shapes_gradients_and_seed(pair):
    structured, dense = pair
    assert structured.rsample().shape == dense.mean.shape
    assert structured.rsample(torch.Size([4, 2])).shape == (4, 2, *dense.mean.shape)
    torch.manual_seed(2)
    first = structured.rsample(torch.Size([3]))
    torch.manual_seed(2)
    torch.testing.assert_close(structured.rsample(torch.Size([3])), first, rtol=0, atol=0)


def test_rsample_from_base_samples_uses_the_exact_root(pair):
    structured, dense = pair
    base_samples = structured.get_base_samples(torch.Size([3]))
    root = structured.lazy_covariance_matrix.root_decomposition().root.to_dense()
    expected = dense.mean + (root @ base_samples.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(structured.rsample(torch.Size([3]), base_samples), expected, **CLOSE)


def test_kl_divergence_from_and_to_a_standard_normal(pair):
    structured, dense = pair
    batch = structured.batch_shape
    kl, zero = torch.distributions.kl_divergence, torch.zeros(*batch, SIZE, dtype=torch.double)
    for prior_batch in {batch, torch.Size()}:
        identity = IdentityLinearOperator(SIZE, prior_batch, dtype=torch.double)
        prior = MultivariateNormal(torch.zeros(*prior_batch, SIZE, dtype=torch.double), identity)
        dense_prior = torch.distributions.MultivariateNormal(zero, torch.eye(SIZE, dtype=torch.double))
        torch.testing.assert_close(kl(structured, prior), kl(dense, dense_prior), **CLOSE)
        torch.testing.assert_close(kl(prior, structured), kl(dense_prior, dense), **CLOSE)


@pytest.mark.parametrize("other", ALL_CASES, ids=str)
def test_kl_divergence_between_any_two(other):
    operator, dense = Case("inverse", "inverse blocks", 3).make()
    other_operator, other_dense = other.make(seed=1)
    mean, other_mean = torch.randn(2, SIZE, dtype=torch.double)
    other_mean = other_mean.expand(*other.batch_shape, SIZE)
    q, p = MultivariateNormal(mean, operator), MultivariateNormal(other_mean, other_operator)

    def expected(mean_q, cov_q, mean_p, cov_p):
        precision, difference = torch.linalg.inv(cov_p), (mean_p - mean_q).unsqueeze(-1)
        quadratic = (difference.mT @ precision @ difference)[..., 0, 0]
        trace = (precision @ cov_q).diagonal(dim1=-2, dim2=-1).sum(-1)
        return 0.5 * (trace + quadratic - SIZE + torch.logdet(cov_p) - torch.logdet(cov_q))

    kl = torch.distributions.kl_divergence
    torch.testing.assert_close(kl(q, p), expected(mean, dense, other_mean, other_dense), **CLOSE)
    torch.testing.assert_close(kl(p, q), expected(other_mean, other_dense, mean, dense), **CLOSE)


def test_expand_index_scale_and_add(pair):
    structured, dense = pair
    expanded = structured.expand(torch.Size([2, *structured.batch_shape]))
    torch.testing.assert_close(expanded.variance, dense.variance.expand(expanded.variance.shape), **CLOSE)
    assert type(expanded.lazy_covariance_matrix) is type(structured.lazy_covariance_matrix)
    torch.testing.assert_close(structured[..., 1:4].variance, dense.variance[..., 1:4], **CLOSE)
    torch.testing.assert_close(
        structured[..., torch.tensor([5, 0])].covariance_matrix,
        dense.covariance_matrix[..., [5, 0], :][..., [5, 0]],
        **CLOSE,
    )
    torch.testing.assert_close((structured * 3.0).covariance_matrix, 9 * dense.covariance_matrix, **CLOSE)
    torch.testing.assert_close((structured + structured).covariance_matrix, 2 * dense.covariance_matrix, **CLOSE)
    torch.testing.assert_close(structured.add_jitter(0.5).variance, dense.variance + 0.5, **CLOSE)


def test_copying_and_pickling_a_used_distribution(pair):
    structured, dense = pair
    structured.log_prob(dense.mean)
    for twin in (copy.deepcopy(structured), pickle.loads(pickle.dumps(structured))):
        torch.testing.assert_close(twin.covariance_matrix, dense.covariance_matrix, **CLOSE)


def test_gradients_reach_mean_and_factors_through_the_elbo_terms():
    operator, _ = Case("inverse", "blocks", 3).make()
    operator = operator.detach().requires_grad_(True)
    mean = torch.randn(SIZE, dtype=torch.double, requires_grad=True)
    q = MultivariateNormal(mean, operator)
    p = MultivariateNormal(torch.zeros(SIZE, dtype=torch.double), IdentityLinearOperator(SIZE, dtype=torch.double))
    loss = torch.distributions.kl_divergence(q, p) + q.rsample().square().sum() - q.log_prob(torch.ones_like(mean))
    loss.backward()
    for tensor in (mean, *operator.representation()):
        assert torch.isfinite(tensor.grad).all() and tensor.grad.abs().sum() > 0
