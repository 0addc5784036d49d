"""The score test of components against the laws it is made of."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from gpytorch_gam import AdditiveGP, AdditivePredictor, fit
from gpytorch_gam.diagnostics import score_test
from gpytorch_gam.diagnostics.evidence_of_components import whitened_posterior
from gpytorch_gam.diagnostics.score_test_of_components import weighted_chi_squared_tail
from gpytorch_gam.terms import constant, smooth
from tests.problems import gaussian_likelihood


@pytest.mark.parametrize("num", [1, 3, 12])
@pytest.mark.parametrize("value", [0.3, 1.0, 2.999, 3.0, 12.0, 40.0, 300.0])
def test_equal_weights_have_a_chi_squared_tail(num: int, value: float) -> None:
    found = weighted_chi_squared_tail(5 * value, np.full(num, 5.0))
    assert found == pytest.approx(stats.chi2.sf(value, num), rel=0.17)  # one variable alone is the worst case
    assert num == 1 or found == pytest.approx(stats.chi2.sf(value, num), rel=0.06)


def test_unequal_weights_have_the_tail_of_samples() -> None:
    weights = np.array([5.0, 2.0, 1.0, 0.3, 0.01, 0.0])
    samples = (np.random.default_rng(0).chisquare(1, (400000, 6)) * weights).sum(1)
    for value in (0.5, 2.0, 8.0, 8.31, 20.0, 40.0):
        assert weighted_chi_squared_tail(value, weights) == pytest.approx((samples > value).mean(), rel=0.08)


def test_nothing_is_no_evidence() -> None:
    assert score_test(torch.zeros(3), torch.eye(3)) == 1.0
    assert score_test(torch.zeros(0), torch.zeros(0, 0)) == 1.0
    assert weighted_chi_squared_tail(1.0, np.zeros(4)) == 1.0


def test_probabilities_are_uniform_without_an_effect() -> None:
    torch.manual_seed(0)
    found = []
    for _ in range(40):
        x = torch.rand(80, 3).double()
        y = torch.sin(6 * x[:, 0]) + 0.3 * torch.randn(80).double()
        predictor = AdditivePredictor(smooth([0, 1, 2], low=0.0, high=1.0, num_inducing=8), constant())
        model, likelihood = AdditiveGP(predictor, family="coupled").double(), gaussian_likelihood()
        for parameter in [*model.hyperparameters(), *likelihood.parameters()]:
            parameter.requires_grad_(False)
        fit(model, likelihood, (x, y), method="rows")
        found.append([score_test(*whitened_posterior(model, name)) for name in ("x0", "x1", "x2")])
    probabilities = np.array(found)
    assert (probabilities[:, 0] < 1e-4).all()
    assert stats.kstest(probabilities[:, 1:].ravel(), "uniform").pvalue > 0.01


@pytest.mark.parametrize("seed", range(20))
def test_tails_of_any_weights_fall_from_one_to_zero(seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights = 10 ** rng.uniform(-rng.uniform(0, 30), 10, rng.integers(1, 60))
    values = weights.max() * np.logspace(-200, 200, 401)
    tails = np.array([weighted_chi_squared_tail(value, weights) for value in values])
    assert tails[0] == pytest.approx(1.0) and tails[-1] == 0.0
    assert (np.diff(tails) < 1e-4).all()


def test_an_interpolating_posterior_has_an_effect() -> None:
    root = torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for variance in (1e-9, 1e-18, 0.0):  # in half of the directions
        weights, vectors = torch.linalg.eigh(root @ root.mT)
        covariance = vectors @ torch.diag(torch.where(weights > weights.median(), variance, 1.0).double()) @ vectors.mT
        assert score_test(vectors[:, -1], covariance) < 1e-6
