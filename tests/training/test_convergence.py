"""Fits end at a maximum of the bound, or say that they do not."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import gpytorch
import pytest
import torch
from torch.utils.data import DataLoader, Sampler, TensorDataset

from gpytorch_gam import AdditiveGP, AdditivePredictor
from gpytorch_gam.likelihoods import StudentTLikelihood
from gpytorch_gam.mlls import CollapsedELBO
from gpytorch_gam.optim.rows.stream import Rows
from gpytorch_gam.terms import constant, smooth
from gpytorch_gam.training import _minibatch_end, fit
from gpytorch_gam.training._convergence import MeanGradient, open_gains
from gpytorch_gam.training._profile_bound import ProfileBound
from gpytorch_gam.training._settling import has_stalled
from gpytorch_gam.training.polishing import polish
from gpytorch_gam.warnings import ConvergenceWarning

NOISE = 0.02

# What the bound of these rows has its maximum at.
BEST_NOISE = 0.0220


def make_data(num_rows: int = 200) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    x = torch.rand(num_rows, 1).double()
    return x, torch.sin(6 * x[:, 0]) + NOISE**0.5 * torch.randn(num_rows).double()


def make_model(x: torch.Tensor) -> tuple[AdditiveGP, gpytorch.likelihoods.GaussianLikelihood]:
    model = AdditiveGP(AdditivePredictor(smooth(0, x, num_inducing=8, kernel="rbf"), constant()), rank=8).double()
    return model, gpytorch.likelihoods.GaussianLikelihood().double()


class Same(Sampler):
    """Rows in their order, by a sampler of somebody's own."""

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.num_rows))

    def __len__(self) -> int:
        return self.num_rows


# ------------------------------------------------------------------------------------------------- small data


def test_small_data_end_at_the_same_maximum_after_any_number_of_epochs() -> None:
    x, y = make_data()
    found = []
    for num_epochs, options in ((3, {}), (20, {}), (60, {"patience": 3})):
        model, likelihood = make_model(x)
        history = fit(model, likelihood, [(x, y)], num_epochs=num_epochs, **options).history
        assert history[-1].elbo == pytest.approx(polish(model, likelihood, [(x, y)])[0], abs=1e-6)
        found.append((history[-1].elbo, likelihood.noise.item()))
    best = max(bound for bound, _ in found)
    for bound, noise in found:
        assert bound > best - 0.5
        assert noise == pytest.approx(BEST_NOISE, rel=0.05)
    # No hyperparameters near those that were found have a higher bound.
    objective = CollapsedELBO(likelihood, model)
    parameters = [p for p in (*model.hyperparameters(), *likelihood.parameters()) if p.requires_grad]
    for parameter in parameters:
        for change in (-0.3, 0.3):
            with torch.no_grad():
                parameter += change
                assert objective.optimum(x, y).bound.item() < best + 0.5
                parameter -= change


def test_minibatches_of_small_data_end_there_as_well() -> None:
    x, y = make_data()
    model, likelihood = make_model(x)
    history = fit(model, likelihood, DataLoader(TensorDataset(x, y), 60, shuffle=True), num_epochs=2).history
    alone, noise = make_model(x)
    assert history[-1].elbo == pytest.approx(fit(alone, noise, [(x, y)], num_epochs=2).history[-1].elbo, abs=0.5)


def test_parameters_of_other_likelihoods_arrive() -> None:
    x, _ = make_data()
    y = torch.sin(6 * x[:, 0]) + 0.2 * torch.distributions.StudentT(3.0).sample((200,)).double()
    bounds = []
    for start in (2.5, 10.0):
        model, likelihood = make_model(x)[0], StudentTLikelihood().double()
        likelihood.deg_free = start
        bounds.append(fit(model, likelihood, [(x, y)], num_epochs=3).history[-1].elbo)
        assert 2.0 < likelihood.deg_free.item() < 6.0
    assert bounds[0] == pytest.approx(bounds[1], abs=0.5)


def test_hyperparameters_that_are_held_back_all_the_time_stay() -> None:
    x, y = make_data()
    model, likelihood = make_model(x)
    likelihood.noise = 0.5
    history = fit(model, likelihood, [(x, y)], num_epochs=3, num_held_back=3).history
    assert len(history) == 3
    assert likelihood.noise.item() == pytest.approx(0.5)


def test_an_interrupted_search_leaves_what_training_found(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = make_data()
    model, likelihood = make_model(x)
    states: list[Any] = []

    def interrupt(*args: Any, **kwargs: Any) -> list[float]:
        states.append([p.detach().clone() for p in (*model.parameters(), *likelihood.parameters())])
        if len(states) == 4:
            raise KeyboardInterrupt
        return polish(*args, **kwargs)

    monkeypatch.setattr("gpytorch_gam.training._profile_bound.polish", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fit(model, likelihood, [(x, y)], num_epochs=3)
    after = [*model.parameters(), *likelihood.parameters()]
    assert all(torch.equal(old, new) for old, new in zip(states[0], after, strict=True))
    assert not torch.equal(states[0][-1], states[3][-1])  # the search had moved the noise
    assert not model.training


def test_every_trial_starts_from_the_best_posterior(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = make_data(60)
    model, likelihood = make_model(x)
    mean = model.variational_strategy._variational_distribution.variational_mean
    starts: list[torch.Tensor] = []

    def record(*args: Any, **kwargs: Any) -> list[float]:
        starts.append(mean.detach().clone())
        return polish(*args, **kwargs)

    monkeypatch.setattr("gpytorch_gam.training._profile_bound.polish", record)
    profile = ProfileBound(model, likelihood, [Rows(x, y, {})], len(y), list(likelihood.parameters()))
    bounds, ends = [], []
    for noise in (BEST_NOISE, 100.0, 1.0):
        likelihood.noise = noise
        bounds.append(profile().item())
        ends.append(mean.detach().clone())
    assert bounds[0] > max(bounds[1:])
    assert torch.equal(starts[1], ends[0]) and torch.equal(starts[2], ends[0])


# ------------------------------------------------------------------------------------------------- large data


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the data, they are too large to end with a search."""
    monkeypatch.setattr(_minibatch_end, "_MAX_FEATURES", 0)


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("batch_size", [200, 50])
def test_a_fit_that_is_too_short_warns_of_what_is_open(batch_size: int) -> None:
    x, y = make_data()
    model, likelihood = make_model(x)
    likelihood.noise = 0.5
    loader = DataLoader(TensorDataset(x, y), batch_size, sampler=Same(len(y)))
    with pytest.warns(ConvergenceWarning, match=r"by [0-9.]+ nats or more, most of all with noise_covar") as caught:
        fit(model, likelihood, loader, num_epochs=4, num_held_back=0)
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize(("batch_size", "num_epochs"), [(200, 60), (100, 20)])
def test_a_fit_that_is_long_enough_does_not(batch_size: int, num_epochs: int) -> None:
    x, y = make_data()
    model, likelihood = make_model(x)
    loader = DataLoader(TensorDataset(x, y), batch_size, shuffle=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(model, likelihood, loader, num_epochs=num_epochs, lr=0.2)
    assert likelihood.noise.item() == pytest.approx(BEST_NOISE, rel=0.1)


def test_open_gains_are_those_of_the_quadratic_model_within_the_constraint() -> None:
    x, _ = make_data()
    model, likelihood = make_model(x)
    likelihood.noise = 0.1
    raw = likelihood.noise_covar.raw_noise
    for change, expected in ((0.0, 0.0), (0.05, 0.0), (0.5, 12.5), (-0.5, 12.5), (3.0, 250.0)):
        gradient = MeanGradient([raw])
        # Per row, with the curvature of 200 rows.
        (slope,) = torch.autograd.grad(likelihood.noise.log().sum(), raw)
        raw.grad = -0.5 * change * slope.view_as(raw)
        gradient.add(200)
        gains = {gain.name: gain.nats for gain in open_gains(model, likelihood, gradient, 200)}
        assert gains["noise_covar.raw_noise"] == pytest.approx(expected)
    likelihood.noise_covar.register_constraint("raw_noise", gpytorch.constraints.GreaterThan(0.1))
    likelihood.noise = 0.1001
    gradient = MeanGradient([raw])
    raw.grad = torch.ones_like(raw)  # towards the bound
    gradient.add(200)
    assert open_gains(model, likelihood, gradient, 200)[0].nats == 0.0


def test_information_is_the_variance_of_the_rows_gradients() -> None:
    torch.manual_seed(0)
    parameter = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    gradient = MeanGradient([parameter])
    for rows in 3.0 + 2.0 * torch.randn(400, 50).double():
        parameter.grad = -rows.mean().view(1)
        gradient.add(50)
    assert gradient.of(parameter, 1000).item() == pytest.approx(3000.0, rel=0.05)
    assert gradient.information(parameter, 1000).item() == pytest.approx(4000.0, rel=0.2)


def test_patience_ends_on_a_plateau_and_not_in_a_dip() -> None:
    assert has_stalled([0.0, 50.0, 90.0, *[100.0] * 12], patience=5)
    assert not has_stalled([0.0, 50.0, 90.0, 100.0, 100.0], patience=5)
    assert not has_stalled([0.0, 50.0, 100.0, 95.0, 88.0, 80.0, 76.0], patience=3)
    assert not has_stalled([10.0 * number for number in range(20)], patience=5)
    torch.manual_seed(0)
    noise = 5.0 * torch.randn(60).double()
    assert any(has_stalled((100.0 + noise[:count]).tolist(), patience=5) for count in range(10, 30))
    rising = (noise + 20.0 * torch.arange(60)).tolist()
    assert not any(has_stalled(rising[:count], patience=5) for count in range(7, 60))
