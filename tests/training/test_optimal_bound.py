"""The bound at the optimal posterior by rows, bins and streams: they agree, and gradients are those of the values."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from gpytorch.likelihoods import GaussianLikelihood, Likelihood
from gpytorch.priors import GammaPrior

from gpytorch_gam import AdditiveGP, AdditivePredictor
from gpytorch_gam.likelihoods import NegativeBinomialLikelihood
from gpytorch_gam.mlls import CollapsedELBO
from gpytorch_gam.terms import constant, smooth
from gpytorch_gam.training import FitStatistics, fit, optimal_bound
from gpytorch_gam.training._choice import Choice
from gpytorch_gam.training.discretized import ColumnBins
from gpytorch_gam.training.optimal_bound import OptimalBound

NUM_ROWS = 240


def data(is_count: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Columns with so few values that bins do not round them."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 16, (NUM_ROWS, 2), generator=generator).double() / 15.0
    mean = torch.sin(6.0 * x[:, 0]) + x[:, 1]
    if is_count:
        return x, torch.poisson(mean.exp(), generator=generator)
    return x, mean + 0.3 * torch.randn(NUM_ROWS, generator=generator).double()


def problem(is_count: bool) -> tuple[AdditiveGP, Likelihood, tuple[torch.Tensor, torch.Tensor]]:
    x, y = data(is_count)
    predictor = AdditivePredictor(smooth([0, 1], x, num_inducing=6), constant())
    model = AdditiveGP(predictor, family="coupled").double()
    likelihood = NegativeBinomialLikelihood().double() if is_count else GaussianLikelihood().double()
    return model, likelihood, (x, y)


@pytest.fixture(scope="module", params=[False, True], ids=["gaussian", "counts"])
def fitted(request: pytest.FixtureRequest) -> tuple[AdditiveGP, Likelihood, tuple[torch.Tensor, torch.Tensor]]:
    model, likelihood, rows = problem(request.param)
    fit(model, likelihood, rows)
    return model, likelihood, rows


@pytest.fixture
def by(monkeypatch: pytest.MonkeyPatch, fitted) -> Callable[[str], OptimalBound]:
    """The bound by a method."""

    def make(method: str) -> OptimalBound:
        monkeypatch.setattr(optimal_bound, "choose", lambda *_: Choice(method, "of the test"))
        model, likelihood, rows = deepcopy(fitted)
        return OptimalBound(model, likelihood, rows)

    return make


@pytest.mark.parametrize("method", ["bins", "minibatches"])
def test_methods_agree(by: Callable[[str], OptimalBound], method: str) -> None:
    rows, other = by("rows"), by(method)
    assert rows.free.names == other.free.names
    for change in (0.0, 0.2):
        moved = rows.free.position + change
        expected, found = rows.evaluate(moved), other.evaluate(moved)
        assert found.value == pytest.approx(expected.value, abs=2e-2)  # where passes of the posterior end
        torch.testing.assert_close(found.gradient, expected.gradient, atol=0.1, rtol=2e-2)
        torch.testing.assert_close(found.mean, expected.mean, atol=3e-2, rtol=0.0)
        assert other.evaluate(moved, gradient=False).value == pytest.approx(found.value, abs=1e-3)


@pytest.mark.parametrize("method", ["rows", "bins"])
def test_gradients_are_those_of_the_values(by: Callable[[str], OptimalBound], method: str) -> None:
    bound = by(method)
    origin = bound.free.position
    gradient = bound.evaluate(origin + 0.1).gradient
    step = 0.02
    for index in range(len(origin)):
        change = step * torch.eye(len(origin)).double()[index]
        ahead, behind = (bound.evaluate(origin + 0.1 + sign * change).value for sign in (1, -1))
        assert gradient[index].item() == pytest.approx((ahead - behind) / (2 * step), abs=0.1, rel=1e-2)


@pytest.mark.parametrize("method", ["rows", "bins"])
def test_a_bound_does_not_depend_on_where_it_was_evaluated_before(
    by: Callable[[str], OptimalBound], method: str
) -> None:
    bound = by(method)
    position = bound.free.position + 0.3
    first = bound.evaluate(position)
    bound.evaluate(bound.free.position - 1.0, gradient=False)
    second = bound.evaluate(position)
    assert second.value == pytest.approx(first.value, abs=1e-6)
    torch.testing.assert_close(second.gradient, first.gradient, atol=1e-3, rtol=0.0)


@pytest.mark.parametrize("method", ["rows", "bins"])
def test_parameters_that_pause_leave_the_other_gradients_as_they_are(
    by: Callable[[str], OptimalBound], method: str
) -> None:
    bound = by(method)
    position = bound.free.position + 0.1
    whole = bound.evaluate(position).gradient
    with bound.pausing() as pause:
        pause(bound.free.owners[:1])
        rest = bound.evaluate(position).gradient
    stays = torch.tensor([owner is bound.free.owners[0] for owner in bound.free.owners])
    assert stays.any() and not stays.all() and (method == "bins" or not rest[stays].any())
    torch.testing.assert_close(rest[~stays], whole[~stays])
    torch.testing.assert_close(bound.evaluate(position).gradient, whole)


def test_the_gaussian_bound_is_the_collapsed_one_with_the_priors(by: Callable[[str], OptimalBound]) -> None:
    model, likelihood, (x, y) = problem(False)
    likelihood.noise_covar.register_prior("noise_prior", GammaPrior(2.0, 5.0), "noise")
    fit(model, likelihood, (x, y))
    bound = OptimalBound(model, likelihood, (x, y))
    found = bound.evaluate(bound.free.position + 0.3)
    optimum = CollapsedELBO(likelihood, model).optimum(x, y)
    prior = GammaPrior(2.0, 5.0).log_prob(likelihood.noise).sum()
    assert found.value == pytest.approx((optimum.bound + prior).item(), abs=1e-8)
    torch.testing.assert_close(found.mean, optimum.mean)
    bound.write_posterior()
    torch.testing.assert_close(model.variational_strategy.variational_distribution.mean, optimum.mean)


def test_sums_over_rows_serve_as_the_rows_do() -> None:
    model, likelihood, (x, y) = problem(False)
    fit(model, likelihood, (x, y))
    sums = FitStatistics.from_batches([(x, y)], ColumnBins.from_data(x, model.predictor))
    other = OptimalBound(*deepcopy((model, likelihood)), sums)
    rows = OptimalBound(model, likelihood, (x, y))
    moved = rows.free.position + 0.1
    assert other.evaluate(moved).value == pytest.approx(rows.evaluate(moved).value, abs=1e-6)
    assert other.rows.shape[-1] == x.shape[-1]
