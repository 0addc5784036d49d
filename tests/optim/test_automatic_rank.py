"""Ranks that are found from the data, and the warnings about fixed ones that do not suffice."""

from __future__ import annotations

import copy
import functools
import pickle
import warnings

import pytest
import torch

from gpytorch_gam import (
    AdditiveGP,
    BlockLowRankPrecisionVariationalDistribution,
    LowRankPrecisionVariationalDistribution,
)
from gpytorch_gam.mlls import CollapsedELBO
from gpytorch_gam.numerics.capacitance import add_identity
from gpytorch_gam.optim import NaturalGradient, natural_gradient
from gpytorch_gam.optim.posterior.posterior import Posterior
from gpytorch_gam.optim.posterior.rank import _needed_columns, _with_columns, missing_nats
from gpytorch_gam.optim.posterior.step import OVERSAMPLING, Family, Step
from gpytorch_gam.training import initialize_posterior, polish
from gpytorch_gam.warnings import RankWarning
from tests.problems import (
    backward,
    elbo,
    gaussian_likelihood,
    gaussian_problem,
    make_inputs,
    make_model,
    set_to_optimum,
    train,
)

FAMILIES = ("block_low_rank", "low_rank")
each_family = pytest.mark.parametrize("family", FAMILIES)
SIX = [[0], [1], [2], [3], [4], [5]]


def q(model: AdditiveGP) -> BlockLowRankPrecisionVariationalDistribution | LowRankPrecisionVariationalDistribution:
    return model.variational_strategy._variational_distribution


def make_automatic(family: str, tolerance: float = 1.0, columns: list[list[int]] | None = None) -> AdditiveGP:
    model = make_model(family, "auto", columns)
    q(model).rank_tolerance = tolerance
    return model


def correlated_problem(num_rows: int = 1000) -> tuple[torch.Tensor, torch.Tensor]:
    """Six columns in two correlated triples."""
    x, y = gaussian_problem(num_rows, 0.95)  # seeds torch
    return torch.cat([x, make_inputs(num_rows, 0.95)], dim=1), y


def gap(model: AdditiveGP, likelihood: object, x: torch.Tensor, y: torch.Tensor) -> float:
    return CollapsedELBO(likelihood, model).optimum(x, y).bound.item() - elbo(model.train(), likelihood, x, y)


@functools.cache
def smallest_rank(family: str, tolerance: float, noise: float, correlation: float | None = None) -> int:
    """Found by trying, on the problem of six columns or the one of two."""
    x, y = correlated_problem() if correlation is None else gaussian_problem(1000, correlation)
    likelihood, columns = gaussian_likelihood(noise), SIX if correlation is None else None
    optimum = CollapsedELBO(likelihood, make_model(family, 1, columns)).optimum(x, y)
    for rank in range(1, 60):
        model = make_model(family, rank, columns)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RankWarning)
            model.variational_strategy.set_whitened_posterior(optimum.mean, optimum.precision)
        if optimum.bound.item() - elbo(model, likelihood, x, y) <= tolerance:
            return rank
    raise AssertionError("no rank suffices")


@pytest.mark.parametrize(
    ("tolerance", "noise", "how"),
    [
        *((1.0, 0.09, how) for how in ("polish", "set", "full batch", "initialize")),
        (0.1, 1e-3, "polish"),
        (10.0, 0.09, "full batch"),
    ],
)
@each_family
def test_the_rank_suffices_and_is_not_wasteful(family: str, tolerance: float, noise: float, how: str) -> None:
    x, y = correlated_problem()
    model, likelihood = make_automatic(family, tolerance, SIX), gaussian_likelihood(noise)
    if how == "polish":
        polish(model, likelihood, [(x, y)])
    elif how == "set":
        set_to_optimum(model, likelihood, x, y)
    elif how == "full batch":
        train(model, likelihood, x, y, steps=1, batch_size=len(x))
    else:
        initialize_posterior(model, likelihood, x, y)
    assert gap(model, likelihood, x, y) <= tolerance + 1e-6
    # Block + low-rank tries 4, 8, 12, 20, ..., the low-rank family knows.
    smallest = smallest_rank(family, tolerance, noise)
    assert q(model).rank <= (smallest if family == "low_rank" else max(4, 2 * smallest))


@each_family
def test_minibatches_find_a_rank_that_suffices(family: str) -> None:
    x, y = gaussian_problem(1000, 0.9)
    model, likelihood = make_automatic(family), gaussian_likelihood()
    train(model, likelihood, x, y, steps=60, batch_size=100, averaging=True)
    smallest = smallest_rank(family, 1.0, 0.09, 0.9)
    assert gap(model, likelihood, x, y) < 1.5  # a nat, and what the noise of the batches leaves
    assert q(model).rank <= max(8, 2 * smallest)


@pytest.mark.parametrize(("family", "batch_size"), [("block_low_rank", 200), ("low_rank", 1000)])
def test_the_rank_grows_as_data_become_more_informative(family: str, batch_size: int) -> None:
    x, y = correlated_problem()
    model, likelihood = make_automatic(family, columns=SIX), gaussian_likelihood(100.0)
    natural, ranks = NaturalGradient(model, num_data=len(x)), []
    for noise in (100.0, 1.0, 0.01):
        likelihood.noise = noise
        for _ in range(10):
            rows = torch.randperm(len(x))[:batch_size]
            backward(model, likelihood, x[rows], y[rows], len(x))
            natural.step()
        ranks.append(q(model).rank)
    smallest = smallest_rank(family, 1.0, 0.01)
    assert ranks == sorted(ranks)
    assert ranks[0] < ranks[-1] <= 3 * smallest
    natural.remove()
    optimum = CollapsedELBO(likelihood, model).optimum(x, y)
    fixed = make_model(family, ranks[-1], SIX)
    fixed.variational_strategy.set_whitened_posterior(optimum.mean, optimum.precision)
    assert gap(fixed, likelihood, x, y) < 3.0  # what so many columns can reach


@each_family
def test_a_grown_model_travels(family: str) -> None:
    x, y = gaussian_problem(correlation=0.9)
    likelihood, model = gaussian_likelihood(1e-3), make_automatic(family, 0.01)
    polish(model, likelihood, [(x, y)])
    rank, state = q(model).rank, model.state_dict()
    fresh, fixed = make_automatic(family), make_model(family, rank)
    assert q(fresh).rank != rank
    for other in (fresh, fixed):
        other.load_state_dict(state)
    assert q(fresh).rank_tolerance == 1.0
    for other in (fresh, fixed, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert q(other).rank == rank
        assert elbo(other.train(), likelihood, x, y) == pytest.approx(elbo(model, likelihood, x, y), rel=1e-12)
        assert isinstance(q(other).precision_factor, torch.nn.Parameter)
    other = make_model(family, rank + 1)
    with pytest.raises(RuntimeError, match="size mismatch for variational_strategy"):
        other.load_state_dict(state)


@each_family
def test_a_rank_that_has_grown_does_not_shrink(family: str) -> None:
    model, fresh = make_automatic(family), make_automatic(family)
    size = model.predictor.num_inducing_total
    values = torch.randn(size, size).double()
    model.variational_strategy.set_whitened_posterior(torch.zeros(size), add_identity(10 * values @ values.mT))
    fresh.load_state_dict(model.state_dict())
    grown = q(model).rank
    for other in (model, fresh):
        other.variational_strategy.set_whitened_posterior(torch.zeros(size), 1.5 * torch.eye(size).double())
        assert q(other).rank == grown > 4


@each_family
def test_an_optimiser_of_a_grown_model_is_restored(family: str) -> None:
    x, y = gaussian_problem(correlation=0.9)
    likelihood, model = gaussian_likelihood(1e-3), make_automatic(family, 0.01)
    natural = train(model, likelihood, x, y, steps=8, batch_size=100)
    other = make_automatic(family, 0.01)
    restored = NaturalGradient(other, num_data=len(x))
    other.load_state_dict(model.state_dict())
    restored.load_state_dict(natural.state_dict())
    for each, optimiser in ((model, natural), (other, restored)):
        torch.manual_seed(0)
        backward(each, likelihood, x[:100], y[:100], len(x))
        optimiser.step()
    assert q(other).rank == q(model).rank
    torch.testing.assert_close(dict(other.state_dict()), dict(model.state_dict()), rtol=0, atol=0)


def test_columns_are_needed_for_all_eigenvalues_but_those_that_cost_less_than_the_tolerance() -> None:
    roots = [torch.tensor([[10.0, 7.0], [0.1, 5.0]]).sqrt().diag_embed(), torch.tensor([[[0.2]]]).sqrt()]
    assert _needed_columns(roots, tolerance=1.0) == 3
    assert _needed_columns(roots, tolerance=1e-6) == 5


def test_what_the_noise_of_batches_seems_to_miss_is_allowed_for(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed: list[float] = []

    def record(step: Step, family: Family, tolerance: float) -> Posterior:
        allowed.append(tolerance)
        return step.posterior

    monkeypatch.setattr(natural_gradient, "with_enough_columns", record)
    x, y = gaussian_problem(400)
    natural = train(make_automatic("block_low_rank", 0.1), gaussian_likelihood(), x, y, steps=10, batch_size=40)
    dimension = natural._own.effective_dimension.item()
    assert allowed[-1] == pytest.approx(0.1 + OVERSAMPLING * dimension / 40 * 0.9)


def test_missing_nats_are_the_divergence_from_the_posterior_of_more_directions() -> None:
    factor, more, roots = torch.randn(8, 2).double(), 0.3 * torch.randn(8, 1).double(), torch.randn(2, 4, 4).double()
    parts = factor.unflatten(0, (2, 4))
    shared = parts @ parts.mT
    totals = roots @ roots.mT + shared + 0.2 * torch.eye(4)
    blocks = [torch.linalg.cholesky(totals - shared)]
    zero, directions = torch.zeros(8).double(), torch.cat([factor, more], dim=-1)
    posterior = Posterior(zero, factor, blocks, directions)
    step = Step(posterior, None, [totals], torch.ones(()).double())
    narrow, wide = (
        torch.distributions.MultivariateNormal(zero, precision_matrix=dense_precision(each))
        for each in (posterior, _with_columns(step, 3))
    )
    expected = torch.distributions.kl_divergence(narrow, wide).item()
    assert missing_nats(step, Family(True, 2)) == pytest.approx(expected, rel=1e-6)


def dense_precision(posterior: Posterior) -> torch.Tensor:
    (blocks,), shared = posterior.block_factors, posterior.shared_factor
    return add_identity(torch.block_diag(*(blocks @ blocks.mT)) + shared @ shared.mT)


# ---------------------------------------------------------------------------------------------------------- warnings


@pytest.mark.parametrize("batch_size", [100, 1000], ids=["minibatches", "full batches"])
@pytest.mark.parametrize(("rank", "warns"), [(2, True), (40, False)])
def test_a_fixed_rank_of_the_low_rank_family_is_warned_of_once(rank: int, warns: bool, batch_size: int) -> None:
    x, y = correlated_problem()
    model, likelihood = make_model("low_rank", rank, SIX), gaussian_likelihood()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(model, likelihood, x, y, steps=11, batch_size=batch_size)
    assert [warning.category for warning in caught] == [RankWarning] * warns
    assert all(f"rank {rank} leaves the bound" in str(warning.message) for warning in caught)


@pytest.mark.parametrize(("rank", "warns"), [(1, True), (16, False)])
def test_a_fixed_rank_of_block_low_rank_is_warned_of_on_full_batches(rank: int, warns: bool) -> None:
    x, y = correlated_problem()
    model, likelihood = make_model("block_low_rank", rank, SIX), gaussian_likelihood(1e-3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(model, likelihood, x, y, steps=12, batch_size=len(x))
    assert (gap(model, likelihood, x, y) > 15.0) == warns
    assert [warning.category for warning in caught] == [RankWarning] * warns


def test_a_warning_points_to_the_caller() -> None:
    x, y = correlated_problem()
    model, likelihood = make_model("low_rank", 2, SIX), gaussian_likelihood()
    optimum = CollapsedELBO(likelihood, model).optimum(x, y)
    with pytest.warns(RankWarning) as caught:
        model.variational_strategy.set_whitened_posterior(optimum.mean, optimum.precision)
    assert caught[0].filename == __file__
    natural = NaturalGradient(model, num_data=len(x))
    with pytest.warns(RankWarning) as caught:
        for _ in range(5):
            backward(model, likelihood, x, y, len(x))
            natural.step()
    assert caught[0].filename == __file__


# ------------------------------------------------------------------------------------------------------------ resize


@each_family
def test_resize_keeps_the_columns(family: str) -> None:
    distribution = q(make_model(family, 6))
    old = distribution.precision_factor
    before = old.detach().clone()
    divergence = distribution.kl_divergence()
    distribution.resize(9)
    factor = distribution.precision_factor
    assert isinstance(factor, torch.nn.Parameter)
    assert (distribution.rank, factor.shape[-1], factor.dtype, factor.grad) == (9, 9, torch.float64, None)
    assert torch.equal(factor[:, :6], before)
    assert 0 < factor[:, 6:].abs().max() < 0.1
    divergence.backward()  # a graph of before is none the worse
    assert old.grad is not None
    factor.requires_grad_(False)
    distribution.resize(2)
    assert torch.equal(distribution.precision_factor, before[:, :2])
    assert not distribution.precision_factor.requires_grad
    distribution.precision_factor.requires_grad_()
    distribution.kl_divergence().backward()
    assert distribution.precision_factor.grad.shape[-1] == 2
    for rank, message in ((0, "between ranks above 0"), (21, "must lie between 0"), ("auto", "must be an integer")):
        with pytest.raises(ValueError, match=message):
            distribution.resize(rank)
    with pytest.raises(ValueError, match="between ranks above 0"):
        q(make_model("mean_field")).resize(3)


@pytest.mark.parametrize("rank", [2, 16])
@each_family
def test_a_resize_between_steps_is_respected(family: str, rank: int) -> None:
    x, y = gaussian_problem()
    model, likelihood = make_model(family, 4), gaussian_likelihood(10.0)
    natural = train(model, likelihood, x, y, steps=3, batch_size=100)
    q(model).resize(rank)
    for _ in range(3):
        backward(model, likelihood, x[:100], y[:100], len(x))
        natural.step()
    assert q(model).rank == rank
    assert q(model).precision_factor.shape[-1] == rank
    assert torch.isfinite(torch.tensor(elbo(model, likelihood, x, y)))


def test_errors_name_what_is_wrong() -> None:
    predictor = make_model("mean_field").predictor
    for make in (
        lambda **options: LowRankPrecisionVariationalDistribution(20, **options),
        lambda **options: BlockLowRankPrecisionVariationalDistribution(predictor.group_shapes, **options),
    ):
        with pytest.raises(ValueError, match="rank must be an integer or \"auto\", got 'foo'"):
            make(rank="foo")
        for tolerance in (0.0, -1.0, float("nan")):
            with pytest.raises(ValueError, match="rank_tolerance must be positive, got"):
                make(rank="auto", rank_tolerance=tolerance)
        assert make(rank=3).rank_tolerance is None
        assert make(rank="auto", rank_tolerance=0.5).rank_tolerance == 0.5
    for family in FAMILIES:
        with pytest.raises(ValueError, match="rank must be an integer or \"auto\", got 'foo'"):
            AdditiveGP(predictor, family, "foo")
    with pytest.raises(ValueError, match="family 'coupled' has no rank"):
        AdditiveGP(predictor, "coupled", "auto")
