"""Student-t densities and their logarithms under normal distributions, against panels of Gauss-Legendre rules."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gpytorch.distributions import MultivariateNormal
from linear_operator.operators import DiagLinearOperator
from scipy.special import logsumexp
from scipy.stats import norm, t

from gpytorch_gam.likelihoods import StudentTLikelihood
from gpytorch_gam.numerics.student_t import blurred_student_t_log_density

RATIOS = [1e-3, 0.1, 1.0, 3.0, 30.0, 300.0, 1e4, 1e6]  # of the standard deviation to the scale
DEGREES = [2.1, 7.0, 50.0, 1e4]


def nodes_and_log_weights(residual: float, deviation: float) -> tuple[np.ndarray, np.ndarray]:
    """Of panels that are narrow around both centres, and where the product of two normal densities is."""
    around = np.concatenate([[0.0], 10 ** np.linspace(-4, 9, 105)])
    width = (1 + deviation**-2) ** -0.5
    ends = np.concatenate(
        [residual + around, residual - around]
        + [sign * deviation * np.concatenate([np.linspace(0, 10, 41), around]) for sign in (1, -1)]
        + [residual * width**2 + width * np.linspace(-60, 60, 401)]
    )
    reach = 40 * max(1.0, deviation)
    ends = np.unique(ends[(ends >= -reach) & (ends <= residual + reach)])
    points, weights = np.polynomial.legendre.leggauss(24)
    half, middle = 0.5 * np.diff(ends)[:, None], 0.5 * (ends[1:] + ends[:-1])[:, None]
    return (middle + half * points).ravel(), np.log(half * weights).ravel()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("degrees", DEGREES)
def test_expectations_are_those_of_dense_quadrature_whatever_the_scales(degrees: float, dtype: torch.dtype) -> None:
    likelihood = StudentTLikelihood().to(dtype)
    likelihood.deg_free, likelihood.noise = degrees, 1.0
    degrees, scale = likelihood.deg_free.item(), likelihood.noise.item() ** 0.5
    digits = 1e-6 if dtype == torch.float64 else 4e-6  # of float32, relative to the value
    for deviation in RATIOS:
        residuals = [
            factor * unit for factor in (0.0, 1.0, 5.0, 10.0, 30.0) for unit in (1.0, deviation, 1 + deviation)
        ]
        y, variance = torch.tensor(residuals, dtype=dtype), torch.full((len(residuals),), deviation**2, dtype=dtype)
        rows = MultivariateNormal(torch.zeros_like(y), DiagLinearOperator(variance))
        expected = np.empty((2, len(residuals)))
        for place, residual in enumerate(y.double().tolist()):
            f, log_weights = nodes_and_log_weights(residual, deviation)
            log_weights = log_weights + norm.logpdf(f, scale=deviation)
            values = t.logpdf(residual - f, degrees, scale=scale)
            expected[:, place] = logsumexp(log_weights + values), np.exp(log_weights) @ values
        found = np.stack(
            [of(y, rows).detach().double() for of in (likelihood.log_marginal, likelihood.expected_log_prob)]
        )
        # Expected log-probabilities of wide normals grow with the degrees of freedom, and their errors do.
        np.testing.assert_allclose(found[0], expected[0], atol=digits, rtol=digits if dtype == torch.float32 else 0.0)
        assert (np.abs(found[1] - expected[1]) / (1 + np.abs(expected[1]))).max() < digits


def test_gradients_of_the_density_are_those_of_differences() -> None:
    residual, variance = torch.tensor([0.3, 4.0, 60.0]).double(), torch.tensor([0.1, 10.0, 400.0]).double()
    arguments = [residual, variance, torch.tensor(4.0).double(), torch.tensor(0.7).double()]
    assert torch.autograd.gradcheck(
        blurred_student_t_log_density, [argument.clone().requires_grad_() for argument in arguments], rtol=1e-5
    )
