"""Several responses in a row: one predictor for each with a multitask Gaussian likelihood, and somebody's own."""

from __future__ import annotations

from collections.abc import Callable

import gpytorch
import pytest
import torch
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood, MultitaskGaussianLikelihood
from gpytorch.variational import IndependentMultitaskVariationalStrategy, LMCVariationalStrategy
from torch import Tensor

from gpytorch_gam import AdditiveGP
from gpytorch_gam.components import AdditivePredictor
from gpytorch_gam.diagnostics import HyperparameterUncertainty, concurvity
from gpytorch_gam.likelihoods import RowwiseLikelihood
from gpytorch_gam.optim import NaturalGradient
from gpytorch_gam.terms import constant, smooth
from gpytorch_gam.training import fit, initialize_posterior, polish
from gpytorch_gam.variational import AdditiveVariationalStrategy

NUM_ROWS = 50
Data = tuple[Tensor, Tensor]


@pytest.fixture
def data() -> Data:
    torch.manual_seed(0)
    x = torch.rand(NUM_ROWS, 2, dtype=torch.float64)
    f = torch.stack([torch.sin(6 * x[:, 0]), x[:, 1] ** 2], dim=-1)
    return x, f + torch.tensor([0.1, 0.3]) * torch.randn_like(f)


def make_predictor(x: Tensor, num_tasks: int = 2) -> AdditivePredictor:
    groups = [smooth(task, x, num_inducing=6, predictor=task, names=f"f{task}") for task in range(num_tasks)]
    return AdditivePredictor(*groups, *(constant(predictor=task, name=f"c{task}") for task in range(num_tasks)))


def make_likelihood() -> MultitaskGaussianLikelihood:
    likelihood = MultitaskGaussianLikelihood(num_tasks=2).double()
    likelihood.task_noises, likelihood.noise = torch.tensor([0.01, 0.08]).double(), torch.tensor([0.02]).double()
    return likelihood


def exact_moments(model: AdditiveGP, x: Tensor, y: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Means and variances ``(n, 2)`` at the rows by dense algebra for each task, whose components share nothing."""
    features = model.variational_strategy.features(x).detach()
    owner = torch.tensor(
        [task for group in model.predictor.groups for task in [group.predictor_index] * group.num_inducing]
    )
    means, variances = [], []
    for task in range(2):
        own = features[owner == task]
        prior = sum(g.prior_variance(x).sum(0) for g in model.predictor.groups if g.predictor_index == task)
        covariance = own.mT @ own
        gain = covariance @ torch.linalg.inv(covariance + noise[task] * torch.eye(NUM_ROWS).double())
        means.append(gain @ y[:, task])
        variances.append(prior - (gain * covariance).sum(-1))
    return torch.stack(means, -1).detach(), torch.stack(variances, -1).detach()


TRAIN: dict[str, Callable[[AdditiveGP, MultitaskGaussianLikelihood, Tensor, Tensor], object]] = {
    "polish": lambda model, likelihood, x, y: polish(model, likelihood, [(x[:20], y[:20]), (x[20:], y[20:])]),
    "initialize": initialize_posterior,
    "fit": lambda model, likelihood, x, y: fit(model, likelihood, [(x, y)], num_epochs=2, polish_passes=1).history,
}


@pytest.mark.parametrize("train", TRAIN.values(), ids=TRAIN.keys())
def test_a_predictor_for_each_task_has_the_exact_posterior(data: Data, train: Callable) -> None:
    x, y = data
    model, likelihood = AdditiveGP(make_predictor(x)).double(), make_likelihood()
    train(model, likelihood, x, y)
    found = model.predict(x)
    mean, variance = exact_moments(model, x, y, likelihood.task_noises + likelihood.noise)
    torch.testing.assert_close(found.mean, mean, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found.variance, variance, atol=1e-4, rtol=1e-4)


def test_weights_of_rows_count_for_all_tasks(data: Data) -> None:
    x, y = data
    model, repeated = AdditiveGP(make_predictor(x)).double(), AdditiveGP(make_predictor(x)).double()
    weights = torch.arange(NUM_ROWS).double() % 3
    polish(model, RowwiseLikelihood(make_likelihood()), [(x, y, {"weights": weights})])
    rows = torch.arange(NUM_ROWS).repeat_interleave(weights.long())
    polish(repeated, make_likelihood(), [(x[rows], y[rows])])
    torch.testing.assert_close(model.predict(x).mean, repeated.predict(x).mean, atol=1e-6, rtol=1e-6)


def test_own_loops_and_uncertainty_take_several_tasks(data: Data) -> None:
    x, y = data
    model, likelihood = AdditiveGP(make_predictor(x)).double(), make_likelihood()
    mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=NUM_ROWS)
    natural = NaturalGradient(model, num_data=NUM_ROWS)
    (-mll(model(x), y)).backward()
    natural.step()
    natural.remove()
    mean, _ = exact_moments(model, x, y, likelihood.task_noises + likelihood.noise)
    torch.testing.assert_close(model.predict(x).mean, mean, atol=1e-4, rtol=1e-4)
    model.predictor.requires_grad_(False)
    likelihood.raw_task_noises.requires_grad_(False)
    fit(model, likelihood, (x, y), warm_start=True)
    uncertainty = HyperparameterUncertainty(model, likelihood, (x, y))
    assert model.predict(x, hyperparameters=uncertainty).variance.shape == (NUM_ROWS, 2)


@pytest.mark.parametrize("shape", [(NUM_ROWS,), (NUM_ROWS, 1), (NUM_ROWS, 3), (2, NUM_ROWS)])
def test_responses_of_another_shape_are_refused(data: Data, shape: tuple[int, ...]) -> None:
    x, _ = data
    model, y = AdditiveGP(make_predictor(x)).double(), torch.zeros(shape).double()
    for train in (fit, polish):
        with pytest.raises(ValueError, match=r"y must hold responses of shape \(50, 2\) beside 50 rows"):
            train(model, make_likelihood(), [(x, y)])
    with pytest.raises(ValueError, match=r"responses of shape \(50, 2\)|num_data|rows"):
        initialize_posterior(model, make_likelihood(), x, y)


def test_a_column_of_responses_is_refused_with_the_remedy(data: Data) -> None:
    x, y = data
    model = AdditiveGP(AdditivePredictor(smooth(0, x), constant())).double()
    for train in (lambda *args: fit(*args).history, lambda *args: polish(*args)):
        with pytest.raises(ValueError, match=r"got \(50, 1\): pass y.squeeze\(-1\)"):
            train(model, GaussianLikelihood().double(), [(x, y[:, :1])])


def test_what_tasks_cannot_have_is_refused(data: Data) -> None:
    x, y = data
    single = AdditiveGP(AdditivePredictor(smooth(0, x), constant())).double()
    double = AdditiveGP(make_predictor(x)).double()
    for model, likelihood, message in (
        (single, make_likelihood(), "takes 2 predictors, but the model has 1: give the component groups predictor=0"),
        (
            double,
            GaussianLikelihood().double(),
            r"2 responses in a row take MultitaskGaussianLikelihood\(num_tasks=2\)",
        ),
        (double, MultitaskGaussianLikelihood(2, rank=1).double(), "covariances would not be learnt: take rank=0"),
    ):
        for train in (fit, polish):
            with pytest.raises(ValueError, match=message):
                train(model, likelihood, [(x, y)])


def wrapped(base: AdditiveVariationalStrategy, kind: str) -> gpytorch.variational._VariationalStrategy:
    if kind == "independent":
        return IndependentMultitaskVariationalStrategy(base, num_tasks=2)
    return LMCVariationalStrategy(base, num_tasks=2, num_latents=1)


@pytest.mark.parametrize("kind", ["independent", "lmc"])
def test_models_inside_the_wrappers_are_refused_with_what_takes_them(data: Data, kind: str) -> None:
    x, y = data

    class Wrapped(gpytorch.models.ApproximateGP):
        def __init__(self) -> None:
            latents = torch.Size([1]) if kind == "lmc" else None
            base = AdditiveGP(AdditivePredictor(smooth(0, x), constant()), batch_shape=latents).double()
            super().__init__(wrapped(base.variational_strategy, kind))

    model = Wrapped()
    for entry in (
        lambda: fit(model, make_likelihood(), [(x, y)]).history,
        lambda: polish(model, make_likelihood(), [(x, y)]),
        lambda: initialize_posterior(model, make_likelihood(), x, y),
        lambda: NaturalGradient(model, num_data=NUM_ROWS),
        lambda: concurvity(model, x),
    ):
        with pytest.raises(TypeError, match=r"loops of your own.* predictor=0, predictor=1, \.\.\. and take Multitask"):
            entry()


class _Measured(gpytorch.likelihoods.Likelihood):
    """Somebody's own: each row has a response and its precision."""

    def expected_log_prob(
        self, observations: Tensor, function_dist: gpytorch.distributions.MultivariateNormal
    ) -> Tensor:
        y, precision = observations.unbind(-1)
        square = (y - function_dist.mean).square() + function_dist.variance
        return 0.5 * (precision.log() - precision * square)

    def forward(self, function_samples: Tensor) -> torch.distributions.Distribution:
        raise NotImplementedError


class _Broadcasting(_Measured):
    def expected_log_prob(
        self, observations: Tensor, function_dist: gpytorch.distributions.MultivariateNormal
    ) -> Tensor:
        return -(observations - function_dist.mean).square() - function_dist.variance


def test_somebodys_own_likelihood_may_take_several_numbers_a_row(data: Data) -> None:
    x, y = data
    noise = torch.rand(NUM_ROWS).double() + 0.1
    model, other = (AdditiveGP(AdditivePredictor(smooth(0, x), constant())).double() for _ in range(2))
    polish(model, _Measured(), [(x, torch.stack([y[:, 0], 1 / noise], dim=-1))])
    polish(other, FixedNoiseGaussianLikelihood(noise), [(x, y[:, 0])])
    torch.testing.assert_close(model.predict(x).mean, other.predict(x).mean, atol=1e-6, rtol=1e-6)


def test_responses_that_are_broadcast_are_refused(data: Data) -> None:
    x, y = data
    model = AdditiveGP(AdditivePredictor(smooth(0, x), constant())).double()
    for train, message in (
        (fit, r"of _Broadcasting have shape \(50, 50\)"),
        (polish, r"of _Broadcasting have shape \(50, 50\)"),
    ):
        with pytest.raises(ValueError, match=message):
            train(model, _Broadcasting(), [(x, y[:, :1])])
