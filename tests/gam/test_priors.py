"""The priors of hyperparameters that the estimators' terms have."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch

from gpytorch_gam.gam import GAMRegressor, f, fs, linear, re, s, te
from gpytorch_gam.gam import priors as rates
from gpytorch_gam.kernels import CentredLinearKernel
from gpytorch_gam.training.bound_gradients import log_prior_in_nats


def table(num_rows: int = 80) -> tuple[pd.DataFrame, np.ndarray]:
    generator = np.random.RandomState(0)
    frame = pd.DataFrame({"a": generator.rand(num_rows), "b": generator.rand(num_rows)})
    frame["g"] = generator.choice(list("xyz"), num_rows)
    return frame, np.sin(6 * frame["a"]).to_numpy() + 0.3 * generator.randn(num_rows)


def exponential(rate: float, value: float) -> float:
    return math.log(rate) - rate * value


def test_densities_are_exponential_in_deviations_and_roots_of_numbers_of_lengthscales() -> None:
    frame, y = table()
    gam = GAMRegressor([s("a"), linear("b"), f("g")]).fit(frame, y)
    groups = {group.names[0]: group for group in gam.model_.predictor.groups}
    deviations = {name: groups[name].kernel.outputscale.sqrt().item() for name in ("s(a)", "s(a).line", "linear(b)")}
    matern = groups["s(a)"].kernel.base_kernel.base_kernel
    noise = gam.likelihood_.likelihood.noise.sqrt().item()
    width = groups["s(a)"].inducing_points.detach()  # both ends of the range included
    expected = (
        exponential(rates._CURVE_RATE, deviations["s(a)"])
        + exponential(rates._LINE_RATE, deviations["s(a).line"])
        + exponential(rates._LINE_RATE, deviations["linear(b)"])
        + exponential(rates._LENGTHSCALE_RATE, ((width.max() - width.min()) / matern.lengthscale).sqrt().item())
        + exponential(rates._NOISE_RATE, noise)
        + math.log(rates._NOISE_RATE * noise)
    )
    assert log_prior_in_nats(gam.model_, gam.likelihood_) == pytest.approx(expected, rel=1e-6)


def test_around_which_hyperparameters_are_integrated_out_curves_have_densities_of_logarithms() -> None:
    frame, y = table()
    gam = GAMRegressor([s("a"), re("g"), linear("b")], hyperparameters="point").fit(frame, y)
    model, priors = gam.model_, dict(gam.model_.named_modules())
    values = {name: read(kernel) for name, kernel, _, read, _ in model.named_priors()}
    before = {name: priors[name].log_prob(value).item() for name, value in values.items()}
    rates.take_logarithms(model)
    for name, value in values.items():
        owner = model.get_submodule(name.rpartition(".")[0])
        rate, prior = priors[name].rate.item(), priors[name]
        is_line = isinstance(getattr(owner, "base_kernel", None), CentredLinearKernel)
        factor = 0.0 if is_line else math.log(rate * value.item())
        assert prior.log_prob(value).item() == pytest.approx(before[name] + factor, abs=1e-6)
    assert len(values) == 5


@pytest.mark.filterwarnings("ignore::gpytorch_gam.warnings.MissingLevelsWarning")
@pytest.mark.parametrize("term", [s("a", by="g"), s("a", period=1.0), te("a", "b", k=4), re("g"), fs("a", "g")])
def test_every_trained_variance_has_a_prior(term: object) -> None:
    frame, y = table()
    gam = GAMRegressor([term]).fit(frame, y)
    trained = {
        name.removesuffix("raw_outputscale")
        for name, parameter in gam.model_.named_parameters()
        if name.endswith("raw_outputscale") and parameter.requires_grad
    }
    owners = {name.removesuffix("deviation_prior") for name, *_ in gam.model_.named_priors()}
    assert trained and trained <= owners


def test_a_curve_that_the_data_do_not_need_is_smaller_than_without_priors(monkeypatch: pytest.MonkeyPatch) -> None:
    frame, _ = table(40)
    y = 2 * frame["a"].to_numpy() + np.random.RandomState(3).randn(40)

    def roughness() -> float:
        effect = GAMRegressor([s("a")]).fit(frame, y).effect("s(a)", num=50)["mean"].to_numpy()
        return float(np.abs(np.diff(effect, 2)).sum())

    mild = roughness()
    for name in ("_CURVE_RATE", "_LINE_RATE", "_LENGTHSCALE_RATE"):
        monkeypatch.setattr(rates, name, 1e-12)
    assert mild <= roughness()
    assert torch.get_default_dtype() == torch.float32


def test_levels_have_the_posterior_of_a_normal_prior_of_half_a_deviation() -> None:
    generator = np.random.RandomState(1)
    frame = pd.DataFrame({"g": ["a"] * 30 + ["b"] * 20 + ["c"] * 2})
    y = np.repeat([0.0, 1.0, 3.0], [30, 20, 2]) + 0.5 * generator.randn(52)
    gam = GAMRegressor([f("g")], hyperparameters="point").fit(frame, y)
    unit = y.std()
    levels = pd.get_dummies(frame.g).to_numpy(float)
    covariance = rates._LEVEL_VARIANCE * (1.5 * np.eye(3) - np.full((3, 3), 0.5))  # of numbers with sum zero
    prior = levels @ covariance @ levels.T + 25.0  # of the sum of the effect and the intercept
    noise = gam.likelihood_.likelihood.noise.item() * np.eye(len(y))
    expected = unit * covariance @ levels.T @ np.linalg.solve(prior + noise, (y - y.mean()) / unit)
    np.testing.assert_allclose(gam.effect("f(g)")["mean"], expected, atol=1e-3)
    assert not gam.model_.predictor.group_of("f(g)").kernel.raw_outputscale.requires_grad
