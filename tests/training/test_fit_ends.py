"""What a fit leaves behind: where it is interrupted or taken up again, with few data, options, warnings and priors."""

from __future__ import annotations

import math
import pickle
import warnings
from threading import Thread
from typing import Any

import gpytorch
import pytest
import torch
from gpytorch.likelihoods import GaussianLikelihood, Likelihood
from torch import Tensor

from gpytorch_gam import AdditiveGP, AdditivePredictor, fit
from gpytorch_gam.likelihoods import PoissonLikelihood
from gpytorch_gam.terms import constant, smooth
from gpytorch_gam.training import Epoch, FitResult
from gpytorch_gam.training._ascent import Ascent
from gpytorch_gam.warnings import ConvergenceWarning, InducingPointsWarning

NUM_ROWS = 40
X = torch.rand(NUM_ROWS, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.sin(6 * X[:, 0]) + 0.1 * torch.randn(NUM_ROWS, generator=torch.Generator().manual_seed(1)).double()
ROWS, BINS, MINIBATCHES = {"method": "rows"}, {"method": "bins"}, {"method": "minibatches", "num_epochs": 4}
WAYS: list[dict[str, Any]] = [ROWS, BINS, MINIBATCHES]


def make_model(num_inducing: int = 4, missing: str = "error") -> AdditiveGP:
    terms = smooth([0, 1], low=0.0, high=1.0, num_inducing=num_inducing, kernel="rbf", missing=missing), constant()
    return AdditiveGP(AdditivePredictor(*terms), "block_low_rank", 4).double()


def bound_of(model: AdditiveGP, likelihood: Likelihood, x: Tensor, y: Tensor) -> float:
    """The bound without priors of hyperparameters."""
    mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(y), combine_terms=False)
    with torch.no_grad():
        expected, divergence, *_ = mll(model(x), y)
    return len(y) * (expected - divergence).item()


# ------------------------------------------------------------------------------------------------- interruptions


@pytest.mark.parametrize("way", WAYS)
def test_an_interrupted_fit_leaves_a_usable_model(way: dict[str, Any]) -> None:
    model, likelihood = make_model(), GaussianLikelihood().double()

    def interrupt(_: Epoch) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(model, likelihood, (X, Y), callback=interrupt, **way)
    assert not model.training and not likelihood.training
    assert math.isfinite(bound_of(model, likelihood, X, Y))
    assert fit(model, likelihood, (X, Y), **way).converged


class FailingPoisson(PoissonLikelihood):
    """Fails at its n-th expectation."""

    left = math.inf

    def expected_log_prob(self, *args: Any, **kwargs: Any) -> Tensor:
        self.left -= 1
        if self.left < 0:
            raise ArithmeticError("broken")
        return super().expected_log_prob(*args, **kwargs)


@pytest.mark.parametrize("way", [ROWS, MINIBATCHES])
def test_an_error_of_the_likelihood_comes_out_as_it_is(way: dict[str, Any]) -> None:
    counts = torch.poisson((1.0 + Y).exp())
    for number in (0, 1, 12):
        model, likelihood = make_model(), FailingPoisson()
        likelihood.left = number
        with pytest.raises(ArithmeticError, match="broken"):
            fit(model, likelihood, (X, counts), **way)
        likelihood.left = math.inf
        assert math.isfinite(bound_of(model.eval(), likelihood.eval(), X, counts))


class _Network(AdditiveGP):
    """Has a network in front of its terms."""

    def __init__(self) -> None:
        super().__init__(make_model().predictor)
        layers = torch.nn.Linear(2, 12), torch.nn.Tanh(), torch.nn.Linear(12, 2), torch.nn.Sigmoid()
        self.network = torch.nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Any:
        return super().forward(self.network(x))


@pytest.mark.filterwarnings("ignore:the model trains 62 parameters", "ignore:the inputs that forward gives")
@pytest.mark.parametrize(("budget", "reason"), [(30, "30 evaluations of the bound were made"), (10**6, None)])
def test_a_network_in_front_of_the_terms_ends_with_what_is_open(
    budget: int, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpytorch_gam.training._ascent._MAX_EVALUATIONS", budget)
    monkeypatch.setattr("gpytorch_gam.training._row_fit._MAX_STEPS", 15)
    torch.manual_seed(0)
    model = _Network().double()
    with pytest.warns(ConvergenceWarning, match=reason or "15 steps were taken"):
        found = fit(model, GaussianLikelihood().double(), (X, Y), **ROWS)
    bounds = [epoch.elbo for epoch in found.history]
    assert not found.converged and found.open > 0.05
    if reason is not None:
        assert budget <= found.evaluations < budget + 30  # a search in progress is finished
        assert found.open >= bounds[-1] - bounds[-21:][0] - 1e-9


# --------------------------------------------------------------------------------------------------- few or poor data


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("number", [1, 2])
def test_a_row_or_two_can_be_fitted(number: int, way: dict[str, Any]) -> None:
    model, likelihood = make_model(), GaussianLikelihood().double()
    found = fit(model, likelihood, (X[:number], Y[:number]), **way)
    assert found.bound == pytest.approx(bound_of(model, likelihood, X[:number], Y[:number]), abs=0.05)


@pytest.mark.parametrize("way", WAYS)
def test_responses_that_are_all_the_same_switch_effects_off(way: dict[str, Any]) -> None:
    model, likelihood = make_model(), GaussianLikelihood().double()
    found = fit(model, likelihood, (X, torch.full_like(Y, 3.0)), **way)
    assert found.bound > 100.0
    with torch.no_grad():
        assert (model(X).mean - 3.0).abs().max() < 0.01
    if way is not MINIBATCHES:
        assert found.switched_off == ("x0", "x1")


def test_a_column_that_is_missing_in_all_rows_is_no_obstacle() -> None:
    x = torch.stack([X[:, 0], torch.full_like(Y, torch.nan)], -1)
    found = fit(make_model(missing="marginal"), GaussianLikelihood().double(), (x, Y))
    alone = fit(make_model(), GaussianLikelihood().double(), (X, Y))
    assert found.converged and found.bound == pytest.approx(alone.bound, abs=3.0)  # x1 says nothing of the responses
    with pytest.raises(ValueError, match="column 1 of x is missing in all rows: leave out the components"):
        fit(make_model(missing="marginal"), GaussianLikelihood().double(), (x, Y), method="bins")


# ------------------------------------------------------------------------------------------------------------ options


def test_large_counts_that_say_much_of_the_predictor_are_no_obstacle() -> None:
    x = torch.rand(250, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    log_mean = 10 + 3 * (torch.sin(6 * x[:, 0]) + x[:, 1].square())
    y = torch.poisson(log_mean.exp(), generator=torch.Generator().manual_seed(3))
    model = AdditiveGP(AdditivePredictor(smooth([0, 1], x, num_inducing=8), constant()), "coupled").double()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InducingPointsWarning)
        result = fit(model, PoissonLikelihood(), (x, y), method="rows", explore=False)
    assert result.converged
    assert result.evaluations < 300  # derivatives at posteriors that are a little off lead nowhere


@pytest.mark.parametrize("method", ["rows", "bins", "minibatches"])
@pytest.mark.parametrize(
    ("option", "owner"),
    [
        ({"num_epochs": 2}, "minibatches"),
        ({"lr": 0.1}, "minibatches"),
        ({"num_held_back": 1}, "minibatches"),
        ({"patience": 2}, "minibatches"),
        ({"polish_passes": 1}, "minibatches"),
        ({"cuda_graph": False}, "minibatches"),
        ({"max_bins": 32}, "bins"),
    ],
)
def test_an_option_belongs_to_its_method(method: str, option: dict[str, Any], owner: str) -> None:
    if method == owner:
        return
    (name,) = option
    with pytest.raises(ValueError, match=f"{name} belongs to method='{owner}', but method is '{method}'"):
        fit(make_model(), GaussianLikelihood().double(), (X, Y), method=method, **option)


@pytest.mark.parametrize("way", WAYS)
def test_options_of_all_methods(way: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tqdm")
    heard: list[Epoch] = []
    options = {"tolerance": 0.5, "callback": heard.append, "progress": True, "num_data": NUM_ROWS}
    found = fit(make_model(), GaussianLikelihood().double(), (X, Y), **options, **way)
    assert found.method == way["method"] and found.open <= 0.5
    assert heard == found.history[: len(heard)] and heard
    assert f"fit by {found.method}: {found.reason}" in capsys.readouterr().out


# --------------------------------------------------------------------------------------------------- once more


@pytest.mark.parametrize("way", WAYS)
def test_a_second_fit_gains_nothing(way: dict[str, Any]) -> None:
    model, likelihood = make_model(), GaussianLikelihood().double()
    first = fit(model, likelihood, (X, Y), **way)
    second = fit(model, likelihood, (X, Y), warm_start=True, **way)
    assert abs(second.bound - first.bound) < 0.1


def test_a_result_can_be_pickled() -> None:
    found = fit(make_model(), GaussianLikelihood().double(), (X, Y))
    assert isinstance(found, FitResult)
    assert pickle.loads(pickle.dumps(found)) == found


def test_a_pickled_model_goes_on_where_it_was() -> None:
    model, likelihood = make_model(), GaussianLikelihood().double()
    first = fit(model, likelihood, (X, Y))
    model, likelihood = pickle.loads(pickle.dumps((model, likelihood)))
    second = fit(model, likelihood, (X, Y), warm_start=True)
    assert second.bound == pytest.approx(first.bound, abs=0.01) and second.evaluations < first.evaluations


@pytest.mark.parametrize("way", [ROWS, BINS])
def test_a_model_in_single_precision_ends_where_one_in_double_does(way: dict[str, Any]) -> None:
    double = fit(make_model(), GaussianLikelihood().double(), (X, Y), **way)
    single = fit(make_model().float(), GaussianLikelihood(), (X.float(), Y.float()), **way)
    assert single.converged and single.bound == pytest.approx(double.bound, abs=0.02)


def test_a_fit_needs_no_gradients_around_it_nor_the_main_thread() -> None:
    expected, found = fit(make_model(), GaussianLikelihood().double(), (X, Y)).bound, []
    with torch.no_grad():
        found.append(fit(make_model(), GaussianLikelihood().double(), (X, Y)).bound)
    thread = Thread(target=lambda: found.append(fit(make_model(), GaussianLikelihood().double(), (X, Y)).bound))
    thread.start()
    thread.join()
    assert found == pytest.approx([expected, expected], abs=1e-3)


@pytest.mark.parametrize("way", WAYS)
def test_the_bound_leaves_out_the_priors_of_hyperparameters(way: dict[str, Any]) -> None:
    model = make_model()
    kernel = model.predictor.groups[0].kernel
    kernel.register_prior("outputscale_prior", gpytorch.priors.GammaPrior(2.0, 2.0), "outputscale")
    likelihood = GaussianLikelihood(noise_prior=gpytorch.priors.LogNormalPrior(0.0, 1.0)).double()
    found = fit(model, likelihood, (X, Y), **way)
    rounding = 0.3 if way is BINS else 1e-3
    assert found.bound == pytest.approx(bound_of(model, likelihood, X, Y), abs=rounding)
    assert found.history[-1].elbo == pytest.approx(found.bound, abs=max(rounding, 0.05))


# ----------------------------------------------------------------------------------------------------------- warnings


class Chatty(PoissonLikelihood):
    """Warns at each expectation."""

    def expected_log_prob(self, *args: Any, **kwargs: Any) -> Tensor:
        warnings.warn("again", UserWarning, stacklevel=2)
        return super().expected_log_prob(*args, **kwargs)


def test_a_warning_is_given_once_and_from_where_the_fit_was_called() -> None:
    with pytest.warns(UserWarning, match="again") as caught:
        fit(make_model(), Chatty(), (X, torch.poisson((1.0 + Y).exp())))
    assert [str(warning.message) for warning in caught] == ["again"]
    assert caught[0].filename == __file__


@pytest.mark.filterwarnings("error")
def test_warnings_as_errors_come_at_the_end_and_hide_no_other_error() -> None:
    model, likelihood, counts = make_model(), Chatty(), torch.poisson((1.0 + Y).exp())
    with pytest.raises(UserWarning, match="again"):
        fit(model, likelihood, (X, counts))
    expected = fit(make_model(), PoissonLikelihood(), (X, counts)).bound
    assert not model.training and bound_of(model, PoissonLikelihood(), X, counts) == pytest.approx(expected, abs=0.01)

    def interrupt(_: Epoch) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(make_model(), Chatty(), (X, counts), callback=interrupt)


def test_a_jump_to_where_the_bound_does_not_exist_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def far_jump(ascent: Ascent, least_gain: float) -> bool:
        ascent.restore_best()
        with torch.no_grad():
            for parameter in ascent._parameters:
                parameter.fill_(800.0)  # exponentials overflow
        return True

    y = torch.poisson(Y.exp())
    likelihoods = PoissonLikelihood().double(), PoissonLikelihood().double()
    plain = fit(make_model(), likelihoods[0], (X, y), explore=False, **ROWS)
    monkeypatch.setattr(Ascent, "_jump", far_jump)
    assert fit(make_model(), likelihoods[1], (X, y), **ROWS).bound == pytest.approx(plain.bound, abs=0.05)
