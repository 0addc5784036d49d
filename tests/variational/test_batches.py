"""Batch shapes of model, posterior and inputs in combination, against each other and against single models."""

from __future__ import annotations

import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup
from gpytorch_gam.components import regular_grid
from gpytorch_gam.mlls import CollapsedELBO
from gpytorch_gam.terms import constant

pytestmark = pytest.mark.projection


def scaled_rbf(size: int, batch: tuple[int, ...]) -> ScaleKernel:
    shape = torch.Size([*batch, size])
    kernel = ScaleKernel(RBFKernel(batch_shape=shape), batch_shape=shape)
    kernel.outputscale = torch.rand(shape) + 0.5
    return kernel


def make_model(batch: tuple[int, ...], q_batch: tuple[int, ...], two_predictors: bool = False) -> AdditiveGP:
    groups = [
        ComponentGroup(scaled_rbf(2, batch), [[0], [1]], regular_grid(0.0, 1.0, 5)),
        ComponentGroup(
            scaled_rbf(1, batch), [[1]], regular_grid(0.0, 1.0, 4), names=["other"], predictor=int(two_predictors)
        ),
        constant(2.0, batch_shape=batch),
    ]
    model = AdditiveGP(AdditivePredictor(*groups), "block_low_rank", 3, batch_shape=torch.Size(q_batch)).double()
    model.variational_strategy._initialize_once()
    with torch.no_grad():
        for parameter in model.variational_parameters():
            parameter.copy_(0.5 * torch.randn_like(parameter))
    return model


def dense_moments(model: AdditiveGP, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and covariance of the sum of all components from dense matrices."""
    strategy = model.variational_strategy
    q, phi = strategy.variational_distribution, strategy.features(x)
    identity = torch.eye(phi.shape[-2], dtype=phi.dtype)
    prior = sum(group.evaluate_kernel(group.select(x)).sum(-3) for group in model.predictor.groups)
    mean = (phi.mT @ q.mean.unsqueeze(-1)).squeeze(-1)
    return mean, prior + phi.mT @ (q.covariance_matrix - identity) @ phi


@pytest.mark.parametrize("num_rows", [1, 2, 3, 7])  # as many as components, groups or models have of something
@pytest.mark.parametrize("x_batch", [(), (3,), (2, 1)])
@pytest.mark.parametrize(("batch", "q_batch"), [((), ()), ((3,), (3,)), ((), (3,)), ((3,), ()), ((1,), (3,))])
def test_marginals_and_covariances_in_every_combination(
    batch: tuple[int, ...], q_batch: tuple[int, ...], x_batch: tuple[int, ...], num_rows: int
) -> None:
    model, x = make_model(batch, q_batch), torch.rand(*x_batch, num_rows, 2).double()
    expected = torch.broadcast_shapes(batch, q_batch, x_batch)
    mean, covariance = dense_moments(model, x)
    trained, evaluated, parts = model.train()(x), model.eval()(x), model.components(x)
    for posterior in (trained, evaluated):
        assert posterior.batch_shape == expected
        torch.testing.assert_close(posterior.mean, mean.expand(posterior.mean.shape))
        torch.testing.assert_close(
            posterior.variance, covariance.diagonal(dim1=-2, dim2=-1).expand(posterior.variance.shape)
        )
    torch.testing.assert_close(evaluated.covariance_matrix, covariance.expand(*expected, num_rows, num_rows))
    assert torch.broadcast_shapes(parts.variance.shape, (*expected, 4, num_rows)) == (*expected, 4, num_rows)
    torch.testing.assert_close(parts.total()[1].expand(evaluated.variance.shape), evaluated.variance)


@pytest.mark.parametrize("index", [1, slice(1, None), slice(0, 2), [0, 2]])
def test_distributions_can_be_indexed_along_the_batch(index: object) -> None:
    x = torch.rand(3, 5, 2).double()
    for batch in ((), (3,)):
        model = make_model(batch, batch).eval()
        for distribution in (model(x), model.predictor(x)):
            part = distribution[index]
            torch.testing.assert_close(part.covariance_matrix, distribution.covariance_matrix[index])
            torch.testing.assert_close(part.variance, distribution.variance[index])


def test_prior_of_batched_kernels_at_unbatched_inputs_is_a_batch() -> None:
    predictor = AdditivePredictor(ComponentGroup(scaled_rbf(2, (3,)), [[0], [1]], regular_grid(0.0, 1.0, 5)))
    prior = predictor(torch.rand(4, 2))
    assert prior.batch_shape == (3,)
    assert prior.mean.shape == (3, 4)
    assert prior.rsample().shape == (3, 4)
    delta = AdditiveGP(make_model((), ()).predictor, "delta", batch_shape=torch.Size([3])).double().eval()
    posterior = delta(torch.rand(4, 2).double())
    torch.testing.assert_close(posterior[0].covariance_matrix, posterior.covariance_matrix[0])


@pytest.mark.parametrize("x_batch", [(), (3,)])
@pytest.mark.parametrize("batch", [(), (3,)])
def test_several_predictors_with_batches(batch: tuple[int, ...], x_batch: tuple[int, ...]) -> None:
    model, x = make_model(batch, batch, two_predictors=True), torch.rand(*x_batch, 4, 2).double()
    expected = torch.broadcast_shapes(batch, x_batch)
    trained, evaluated, prior = model.train()(x), model.eval()(x), model.predictor(x)
    assert trained.batch_shape == evaluated.batch_shape == prior.batch_shape == expected
    torch.testing.assert_close(trained.mean, evaluated.mean)
    torch.testing.assert_close(trained.variance, evaluated.variance)
    dense = evaluated.covariance_matrix
    assert dense.shape == (*expected, 8, 8)
    torch.testing.assert_close(evaluated.lazy_covariance_matrix @ torch.eye(8).double(), dense)
    torch.testing.assert_close(prior.variance.mT.flatten(-2), prior.covariance_matrix.diagonal(dim1=-2, dim2=-1))
    mean, variance = model.components(x).total()
    torch.testing.assert_close(mean.mT.expand(evaluated.mean.shape), evaluated.mean)
    torch.testing.assert_close(variance.mT.expand(evaluated.variance.shape), evaluated.variance)
    if expected:
        torch.testing.assert_close(evaluated[1].covariance_matrix, dense[1])


def test_collapsed_bound_of_a_batch_does_not_depend_on_the_chunks() -> None:
    import gpytorch

    model, x, y = make_model((3,), (3,)), torch.rand(6, 2).double(), torch.randn(6).double()
    likelihood = gpytorch.likelihoods.GaussianLikelihood(batch_shape=torch.Size([3])).double()
    bounds = [CollapsedELBO(likelihood, model, chunk_size=size).optimum(x, y).bound for size in (100, 5, 4, 2, 1)]
    for bound in bounds[1:]:
        torch.testing.assert_close(bound, bounds[0])


def test_batch_shapes_that_do_not_broadcast_are_named() -> None:
    with pytest.raises(ValueError, match="batch shapes of the groups do not broadcast"):
        AdditivePredictor(
            ComponentGroup(scaled_rbf(1, (3,)), [[0]], regular_grid(0.0, 1.0, 5)), constant(batch_shape=(2,))
        )
    with pytest.raises(ValueError, match=r"batch_shape \(2,\), which does not broadcast"):
        make_model((3,), (2,))


def test_paper_parameters_of_an_unbatched_posterior_with_batched_kernels() -> None:
    alpha, factor = make_model((3,), ()).variational_strategy.paper_parameters()
    assert alpha.shape == (3, 15)
    assert factor.shape == (3, 15, 3)
