"""One-predictor likelihoods beside independent densities of SciPy, and dense integrals of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import Likelihood
from linear_operator.operators import DiagLinearOperator
from scipy import special, stats
from torch import Tensor

from gpytorch_gam.likelihoods import (
    BinomialLikelihood,
    GammaLikelihood,
    NegativeBinomialLikelihood,
    OrdinalLikelihood,
    PoissonLikelihood,
    QuantileLikelihood,
    StudentTLikelihood,
    ZeroInflatedPoissonLikelihood,
)

NUM_ROWS = 12


@dataclass(frozen=True)
class Case:
    """A likelihood with set parameters, its log-density in NumPy, and row-wise arguments."""

    name: str
    make: Callable[[], Likelihood]
    log_density: Callable[..., np.ndarray]
    rows: dict[str, Tensor] = field(default_factory=dict)

    def responses(self, f: Tensor) -> Tensor:
        torch.manual_seed(1)
        with torch.no_grad():
            return self.make()(f, **self.rows).sample().to(f.dtype)


def with_values(likelihood: Likelihood, **values: float) -> Likelihood:
    return likelihood.double().initialize(**values)


def ordinal(y: np.ndarray, f: np.ndarray, cutpoints: np.ndarray) -> np.ndarray:
    padded = np.concatenate([[-np.inf], cutpoints, [np.inf]])
    low, high = padded[y.astype(int)] - f, padded[y.astype(int) + 1] - f
    # in the tail in which both are small
    flip = low + high > 0
    low, high = np.where(flip, -high, low), np.where(flip, -low, high)
    with np.errstate(divide="ignore"):  # where the probability underflows, far out in the dense integrals
        return np.log(special.ndtr(high) - special.ndtr(low))


def asymmetric_laplace(y: np.ndarray, f: np.ndarray, scale: float, tau: float) -> np.ndarray:
    residual = y - f
    return np.log(tau * (1 - tau) / scale) - residual * (tau - (residual < 0)) / scale


def zero_inflated(y: np.ndarray, f: np.ndarray, inflation: float, exposure: np.ndarray | float = 1.0) -> np.ndarray:
    poisson = np.log1p(-inflation) + stats.poisson.logpmf(y, exposure * np.exp(f))
    return np.where(y == 0, np.logaddexp(np.log(inflation), poisson), poisson)


def negative_binomial(y: np.ndarray, f: np.ndarray, alpha: float, exposure: np.ndarray | float = 1.0) -> np.ndarray:
    return stats.nbinom.logpmf(y, 1 / alpha, 1 / (1 + alpha * exposure * np.exp(f)))


EXPOSURE = torch.logspace(-1, 1.5, NUM_ROWS, dtype=torch.float64)
TRIALS = torch.arange(1, NUM_ROWS + 1, dtype=torch.float64) * 3
CUTPOINTS = [-1.5, -0.4, 0.2, 1.8]

CASES = [
    Case(
        "poisson",
        PoissonLikelihood,
        lambda y, f, exposure: stats.poisson.logpmf(y, exposure * np.exp(f)),
        {"exposure": EXPOSURE},
    ),
    Case(
        "negative binomial",
        lambda: with_values(NegativeBinomialLikelihood(), dispersion=0.4),
        lambda y, f, exposure: negative_binomial(y, f, 0.4, exposure),
        {"exposure": EXPOSURE},
    ),
    Case(
        "negative binomial, wide",
        lambda: with_values(NegativeBinomialLikelihood(), dispersion=7.0),
        lambda y, f: negative_binomial(y, f, 7.0),
    ),
    Case(
        "logit",
        BinomialLikelihood,
        lambda y, f, trials: stats.binom.logpmf(y, trials, special.expit(f)),
        {"trials": TRIALS},
    ),
    Case(
        "probit",
        lambda: BinomialLikelihood("probit"),
        lambda y, f: np.where(y == 1, special.log_ndtr(f), special.log_ndtr(-f)),
    ),
    Case(
        "gamma",
        lambda: with_values(GammaLikelihood(), shape=2.5),
        lambda y, f: stats.gamma.logpdf(y, 2.5, scale=np.exp(f) / 2.5),
    ),
    Case(
        "ordinal",
        lambda: with_values(OrdinalLikelihood(5), cutpoints=torch.tensor(CUTPOINTS, dtype=torch.float64)),
        lambda y, f: ordinal(y, f, np.array(CUTPOINTS)),
    ),
    Case("two classes", lambda: OrdinalLikelihood(2).double(), lambda y, f: ordinal(y, f, np.zeros(1))),
    Case(
        "quantile",
        lambda: with_values(QuantileLikelihood(0.8), scale=0.4),
        lambda y, f: asymmetric_laplace(y, f, 0.4, 0.8),
    ),
    Case(
        "zero-inflated",
        lambda: with_values(ZeroInflatedPoissonLikelihood(), inflation=0.3),
        lambda y, f, exposure: zero_inflated(y, f, 0.3, exposure),
        {"exposure": EXPOSURE},
    ),
    Case(
        "hardly zero-inflated",
        lambda: with_values(ZeroInflatedPoissonLikelihood(), inflation=1e-3),
        lambda y, f: zero_inflated(y, f, 1e-3),
    ),
    Case(
        "student",
        lambda: with_values(StudentTLikelihood(), deg_free=4.0, noise=0.3),
        lambda y, f: stats.t.logpdf(y, 4.0, f, 0.3**0.5),
    ),
    Case(
        "narrow student",
        lambda: with_values(StudentTLikelihood(), deg_free=3.0, noise=0.01),
        lambda y, f: stats.t.logpdf(y, 3.0, f, 0.1),
    ),
]
NAMES = [case.name for case in CASES]


def marginals(variance: float, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Means and variances of the predictor."""
    mean = torch.linspace(-2.0, 2.0, NUM_ROWS, dtype=torch.float64)
    return mean.to(dtype), (variance * torch.linspace(0.5, 1.0, NUM_ROWS, dtype=torch.float64)).to(dtype)


def normal(mean: Tensor, variance: Tensor) -> MultivariateNormal:
    return MultivariateNormal(mean, DiagLinearOperator(variance))


def dense(case: Case, y: Tensor, mean: Tensor, variance: Tensor, marginal: bool = False) -> Tensor:
    """The expectation of the log-density, or the logarithm of that of the density, from a dense grid."""
    # the product of two densities can lie far from the mean of one
    x = np.linspace(-30, 30, 120001) if marginal else np.linspace(-11, 11, 50001)
    log_weights = stats.norm.logpdf(x) + np.log(x[1] - x[0])
    results = []
    for row in range(len(y)):
        f = mean[row].item() + variance[row].item() ** 0.5 * x
        values = {name: value[row].item() for name, value in case.rows.items()}
        log_density = case.log_density(np.full_like(f, y[row].item()), f, **values)
        value = special.logsumexp(log_weights + log_density) if marginal else np.exp(log_weights) @ log_density
        results.append(float(value))
    return torch.tensor(results, dtype=torch.float64)
