"""The joint distribution of several predictors and its moments within rows."""

from __future__ import annotations

import copy
import pickle

import gpytorch
import pytest
import torch
from gpytorch.distributions import Delta, MultitaskMultivariateNormal, MultivariateNormal
from linear_operator.operators import BlockDiagLinearOperator, DiagLinearOperator, ZeroLinearOperator

from gpytorch_gam.distributions import PredictorDistribution, row_moments
from tests import reference

BATCH_SHAPES = [(), (3,), (2, 3)]


def joint(batch_shape: tuple[int, ...], n: int = 4, p: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean ``(n, p)`` and a dense covariance over (row, predictor)."""
    root = torch.randn(*batch_shape, n * p, n * p, dtype=torch.float64)
    return torch.randn(*batch_shape, n, p, dtype=torch.float64), root @ root.mT


def blocks(covariance: torch.Tensor, n: int, p: int) -> torch.Tensor:
    return torch.stack([covariance[..., p * i : p * (i + 1), p * i : p * (i + 1)] for i in range(n)], dim=-3)


def by_predictor(covariance: torch.Tensor, n: int, p: int) -> torch.Tensor:
    """Rows over (predictor, row) from rows over (row, predictor)."""
    order = torch.arange(n * p).reshape(n, p).mT.flatten()
    return covariance[..., order, :][..., order]


def predictor_distribution(batch_shape: tuple[int, ...], interleaved: bool = False) -> PredictorDistribution:
    mean, covariance = joint(batch_shape)
    rows = blocks(covariance, 4, 3)
    order = covariance if interleaved else by_predictor(covariance, 4, 3)
    return PredictorDistribution(mean, order, interleaved=interleaved, row_covariance=rows)


@pytest.mark.parametrize("batch_shape", BATCH_SHAPES)
@pytest.mark.parametrize("n, p", [(4, 3), (1, 2), (5, 5), (3, 1)])
def test_moments_of_a_joint_covariance_in_either_order(batch_shape: tuple[int, ...], n: int, p: int) -> None:
    mean, covariance = joint(batch_shape, n, p)
    for dist in (
        MultitaskMultivariateNormal(mean, covariance, interleaved=True),
        MultitaskMultivariateNormal(mean, by_predictor(covariance, n, p), interleaved=False),
    ):
        moments = row_moments(dist)
        assert torch.equal(moments.mean, mean)
        torch.testing.assert_close(moments.covariance, blocks(covariance, n, p))


@pytest.mark.parametrize("batch_shape", BATCH_SHAPES)
def test_moments_of_independent_rows_and_of_independent_predictors(batch_shape: tuple[int, ...]) -> None:
    mean, covariance = joint(batch_shape)
    rows = blocks(covariance, 4, 3)
    independent_rows = MultitaskMultivariateNormal(mean, BlockDiagLinearOperator(rows, block_dim=-3))
    assert torch.equal(row_moments(independent_rows).covariance, rows)
    one_a_predictor = blocks(covariance, 3, 4)  # (*batch, 3, 4, 4)
    singles = [MultivariateNormal(mean[..., i], one_a_predictor[..., i, :, :]) for i in range(3)]
    variances = torch.diag_embed(one_a_predictor.diagonal(dim1=-2, dim2=-1).mT)
    for dist in (
        MultitaskMultivariateNormal.from_independent_mvns(singles),
        MultitaskMultivariateNormal.from_batch_mvn(MultivariateNormal(mean.mT, one_a_predictor)),
        MultitaskMultivariateNormal(mean, DiagLinearOperator(variances.sum(-1).flatten(-2)), interleaved=True),
        MultitaskMultivariateNormal(mean, DiagLinearOperator(variances.sum(-1).mT.flatten(-2)), interleaved=False),
    ):
        torch.testing.assert_close(row_moments(dist).covariance, variances)
        dense = MultitaskMultivariateNormal(mean, dist.covariance_matrix, interleaved=dist._interleaved)
        torch.testing.assert_close(row_moments(dense).covariance, variances)


def test_a_square_block_structure_of_the_other_kind_is_not_mistaken_for_rows() -> None:
    # n = p: blocks of rows and of predictors have one shape.
    mean, covariance = joint((), n=3, p=3)
    rows = BlockDiagLinearOperator(blocks(covariance, 3, 3), block_dim=-3)
    dist = MultitaskMultivariateNormal(mean, rows, interleaved=False)  # the blocks are predictors
    dense = MultitaskMultivariateNormal(mean, rows.to_dense(), interleaved=False)
    torch.testing.assert_close(row_moments(dist).covariance, row_moments(dense).covariance)


def test_moments_of_one_predictor_and_without_variances() -> None:
    mean, covariance = joint((2,), n=4, p=1)
    moments = row_moments(MultivariateNormal(mean.squeeze(-1), covariance))
    assert torch.equal(moments.mean, mean)
    torch.testing.assert_close(moments.covariance.flatten(1), covariance.diagonal(dim1=-2, dim2=-1))
    zero = MultitaskMultivariateNormal(mean, ZeroLinearOperator(2, 4, 4, dtype=torch.float64))
    assert torch.equal(row_moments(zero).covariance, torch.zeros(2, 4, 1, 1, dtype=torch.float64))


def test_a_covariance_without_the_batch_shape_of_the_mean_is_expanded() -> None:
    mean, covariance = joint((3,))
    dist = MultitaskMultivariateNormal(mean, BlockDiagLinearOperator(blocks(covariance[0], 4, 3), block_dim=-3))
    assert row_moments(dist).covariance.shape == (3, 4, 3, 3)


def test_other_distributions_are_an_error() -> None:
    with pytest.raises(TypeError, match="must be a gpytorch MultitaskMultivariateNormal, got Delta"):
        row_moments(Delta(torch.zeros(3)))


@pytest.mark.parametrize("batch_shape", BATCH_SHAPES)
@pytest.mark.parametrize("interleaved", [True, False])
def test_a_predictor_distribution_is_its_multitask_distribution(
    batch_shape: tuple[int, ...], interleaved: bool
) -> None:
    dist = predictor_distribution(batch_shape, interleaved)
    plain = MultitaskMultivariateNormal(dist.mean, dist.covariance_matrix, interleaved=interleaved)
    assert torch.equal(dist.mean, plain.mean) and dist.event_shape == plain.event_shape
    torch.testing.assert_close(dist.variance, plain.variance)
    assert row_moments(dist).covariance is dist.row_covariance
    value = dist.rsample()
    torch.testing.assert_close(dist.log_prob(value), plain.log_prob(value))
    torch.testing.assert_close(
        dist.to_data_independent_dist().covariance_matrix, plain.to_data_independent_dist().covariance_matrix
    )


@pytest.mark.parametrize("interleaved", [True, False])
def test_what_is_made_from_a_predictor_distribution_keeps_or_recomputes_rows(interleaved: bool) -> None:
    dist = predictor_distribution((3,), interleaved)
    for made in (dist + 1.5, dist * 2, dist / 4.0, dist.add_jitter(0.5), dist + dist, dist[1]):
        assert isinstance(made, MultitaskMultivariateNormal) and made._interleaved == interleaved
        plain = MultitaskMultivariateNormal(made.mean, made.covariance_matrix, interleaved=interleaved)
        torch.testing.assert_close(row_moments(made).covariance, row_moments(plain).covariance)
    assert torch.equal((dist + 1.5).mean, dist.mean + 1.5) and torch.equal((dist * 2).mean, 2 * dist.mean)
    expanded = dist.expand(torch.Size([2, 3]))
    assert expanded.batch_shape == (2, 3) and row_moments(expanded).covariance.shape == (2, 3, 4, 3, 3)
    with pytest.raises(ValueError, match="same interleaved"):
        dist + predictor_distribution((3,), not interleaved)
    for operation in (dist.__add__, dist.__mul__):
        with pytest.raises(TypeError, match="a number"):
            operation("a")


def test_copies_and_pickles() -> None:
    dist = predictor_distribution((2,))
    for other in (copy.deepcopy(dist), pickle.loads(pickle.dumps(dist))):
        assert torch.equal(other.row_covariance, dist.row_covariance)
        assert torch.equal(other.mean, dist.mean)


def test_variances_are_not_below_gpytorchs_least() -> None:
    rows = torch.zeros(4, 2, 2)
    dist = PredictorDistribution(torch.zeros(4, 2), BlockDiagLinearOperator(rows, block_dim=-3), row_covariance=rows)
    assert (dist.variance > 0).all()


def test_another_shape_of_the_row_covariance_is_an_error() -> None:
    mean, covariance = joint(())
    with pytest.raises(ValueError, match=r"row_covariance must be .*\(4, 3, 3\), got \(3, 4, 4\)"):
        PredictorDistribution(mean, covariance, row_covariance=blocks(covariance, 3, 4))


@pytest.mark.parametrize("family", reference.FAMILIES)
def test_rows_of_a_model_in_train_and_eval_mode(family: str) -> None:
    case = reference.cases()[0]
    model, x = reference.make_model(case, family, two_predictors=True), reference.tensor(case["X"])
    expected = case["expected"][family]["two_predictors"]["covariance"]
    for is_training in (True, False):
        moments = row_moments(model.train(is_training)(x))
        torch.testing.assert_close(moments.covariance.detach(), reference.tensor(expected), atol=1e-8, rtol=1e-8)


def test_gpytorch_makes_distributions_of_the_same_class_and_multitask_likelihoods_predict() -> None:
    distribution = predictor_distribution((), interleaved=False)
    derived = distribution.__class__(distribution.mean, distribution.lazy_covariance_matrix, interleaved=False)
    torch.testing.assert_close(derived.row_covariance, distribution.row_covariance)
    likelihood = gpytorch.likelihoods.MultitaskGaussianLikelihood(num_tasks=distribution.mean.shape[-1]).double()
    noisy = likelihood.eval()(distribution)
    assert (noisy.variance > distribution.variance).all()
