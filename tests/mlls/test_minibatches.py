"""Minibatch objectives are unbiased: their average over equal batches is the objective of all rows."""

from __future__ import annotations

import gpytorch
import pytest
import torch

from gpytorch_gam import AdditiveGP
from tests.problems import elbo, gaussian_likelihood, gaussian_problem, make_model, train


def trained(family: str, rank: int | None) -> tuple[AdditiveGP, torch.nn.Module, torch.Tensor, torch.Tensor]:
    x, y = gaussian_problem(120, 0.5)
    model, likelihood = make_model(family, rank), gaussian_likelihood()
    train(model, likelihood, x, y, steps=3, batch_size=40).remove()
    return model, likelihood, x, y


@pytest.mark.parametrize(("family", "rank"), [("block_low_rank", 6), ("low_rank", 20), ("mean_field", None)])
@pytest.mark.parametrize("batch_size", [4, 60])
def test_a_uniform_average_of_minibatch_bounds_is_the_bound(family: str, rank: int | None, batch_size: int) -> None:
    model, likelihood, x, y = trained(family, rank)
    mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(y))
    rows = torch.randperm(len(y)).split(batch_size)
    with torch.no_grad():
        values = torch.stack([mll(model(x[part]), y[part]) for part in rows])
    assert len(y) * values.mean().item() == pytest.approx(elbo(model, likelihood, x, y), rel=1e-10)


@pytest.mark.parametrize(("family", "rank"), [("block_low_rank", 6), ("low_rank", 20), ("mean_field", None)])
def test_the_divergence_is_counted_once(family: str, rank: int | None) -> None:
    """In nats of all rows: expected log-likelihoods of all rows, and one divergence, not one a batch or component."""
    model, likelihood, x, y = trained(family, rank)
    mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(y))
    q = model.variational_strategy.variational_distribution
    with torch.no_grad():
        expected = likelihood.expected_log_prob(y, model(x)).sum()
        covariance = q.covariance_matrix
        trace = covariance.trace() + q.mean.square().sum() - len(q.mean)
        divergence = 0.5 * (trace - torch.logdet(covariance))
        for part in torch.randperm(len(y)).split(30):
            batch = likelihood.expected_log_prob(y[part], model(x[part])).sum() * len(y) / len(part)
            value = len(y) * mll(model(x[part]), y[part])
            torch.testing.assert_close(value, batch - divergence, rtol=1e-10, atol=1e-10)
    assert elbo(model, likelihood, x, y) == pytest.approx((expected - divergence).item(), rel=1e-10)
    assert model.variational_strategy.kl_divergence().item() == pytest.approx(divergence.item(), rel=1e-10)
