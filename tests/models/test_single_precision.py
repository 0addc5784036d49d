"""Models in float32 against the same models in float64: 20000 rows determine a sum to a hundredth of the prior."""

from __future__ import annotations

import copy
from collections.abc import Callable

import gpytorch
import pytest
import torch
from gpytorch.likelihoods import GaussianLikelihood

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup
from gpytorch_gam.terms import constant, smooth, tensor
from gpytorch_gam.training import polish

pytestmark = pytest.mark.projection

NUM_ROWS = 20000
BOUNDS = {"low": 0.0, "high": 1.0}

TERMS: dict[str, Callable[[], list[ComponentGroup]]] = {
    "ANOVA": lambda: [smooth([0, 1], **BOUNDS)],
    "plain": lambda: [smooth([0, 1], centred=False, num_inducing=40, **BOUNDS)],
    "Matern": lambda: [smooth([0, 1], kernel="matern52", **BOUNDS)],
    "main effects and interaction": lambda: [
        smooth([0, 1], kernel="rbf", **BOUNDS),
        tensor((0, 1), kernel="rbf", **BOUNDS),
    ],
    "surface": lambda: [tensor((0, 1), kernel="rbf", centred=False, **BOUNDS)],
}


def polished(terms: Callable[[], list[ComponentGroup]], dtype: torch.dtype) -> AdditiveGP:
    model = AdditiveGP(AdditivePredictor(*terms(), constant()), rank=8).to(dtype)
    for name, parameter in model.named_parameters():
        if name.endswith("raw_lengthscale"):  # smooth effects, whose inducing covariances are nearly singular
            parameter.data.add_(0.7)
    likelihood = GaussianLikelihood().to(dtype)
    likelihood.noise = 0.2**2
    x = torch.rand(NUM_ROWS, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    noise = torch.randn(NUM_ROWS, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    y = torch.sin(6 * x[:, 0]) + x[:, 1] + 0.2 * noise
    polish(model, likelihood, [(x.to(dtype), y.to(dtype))], max_passes=1)
    return model.eval()


@pytest.mark.parametrize("terms", TERMS)
@torch.no_grad()
def test_bands_are_those_of_float64(terms: str) -> None:
    single, double = polished(TERMS[terms], torch.float32), polished(TERMS[terms], torch.float64)
    x = torch.rand(500, 2)
    expected, parts = double.predict(x.double()), double.components(x.double())
    assert expected.variance.mean() < 1e-3
    for found in (single.predict(x), copy.deepcopy(single).train().predict(x)):
        assert found.variance.dtype == found.component_variance.dtype == torch.float32
        ratio = found.variance.double().sqrt() / expected.variance.sqrt()
        assert (ratio - 1).abs().max() < 0.03
        assert ((found.mean - expected.mean).abs() / expected.variance.sqrt()).max() < 0.1
        ratio = found.component_variance.double().sqrt() / expected.component_variance.sqrt()
        assert (ratio - 1).abs().max() < 0.03
    called = single(x)
    assert called.mean.dtype == called.variance.dtype == torch.float32
    assert (called.variance.double().sqrt() / expected.variance.sqrt() - 1).abs().max() < 0.03
    found = single.components(x)
    assert found.mean.dtype == found.covariance().dtype == found.cross_covariance().dtype == torch.float32
    total = single.components(x).total()[1].double()
    torch.testing.assert_close(total, parts.total()[1], rtol=0.06, atol=0)
    # Training rounds in float32, and its rounding errors average out.
    mean_variance = single.train()(x).variance.double().mean()
    torch.testing.assert_close(mean_variance, expected.variance.mean(), rtol=0.1, atol=0)


def test_a_jitter_that_was_set_is_honoured() -> None:
    def jitter(dtype: torch.dtype) -> float:
        model = AdditiveGP(AdditivePredictor(smooth(0, **BOUNDS))).to(dtype)
        model(torch.rand(2, 1, dtype=dtype))
        value = model.variational_strategy.jitter_val
        with gpytorch.settings.variational_cholesky_jitter(float_value=0.5, double_value=0.5):
            assert model.variational_strategy.jitter_val == value  # from the first call on
        return value

    assert jitter(torch.float32) == jitter(torch.float64) == 1e-6
    with gpytorch.settings.variational_cholesky_jitter(float_value=1e-3):
        assert (jitter(torch.float32), jitter(torch.float64)) == (1e-3, 1e-6)
    with gpytorch.settings.variational_cholesky_jitter(double_value=1e-8):
        assert jitter(torch.float32) == jitter(torch.float64) == 1e-8
