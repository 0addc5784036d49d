"""Likelihoods of several predictors with densities by SciPy, and dense expectations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from gpytorch.distributions import MultitaskMultivariateNormal
from linear_operator.operators import BlockDiagLinearOperator
from scipy import special, stats

from gpytorch_gam.likelihoods.gaussian_location_scale_likelihood import GaussianLocationScaleLikelihood
from gpytorch_gam.likelihoods.joint_likelihood import JointLikelihood
from gpytorch_gam.likelihoods.negative_binomial_mean_dispersion_likelihood import (
    NegativeBinomialMeanDispersionLikelihood,
)
from gpytorch_gam.likelihoods.softmax_likelihood import SoftmaxLikelihood
from gpytorch_gam.likelihoods.student_t_location_scale_likelihood import StudentTLocationScaleLikelihood


def gaussian_log_prob(y: np.ndarray, rho: np.ndarray) -> np.ndarray:
    return stats.norm.logpdf(y, rho[..., 0], np.exp(rho[..., 1]))


def negative_binomial_log_prob(y: np.ndarray, rho: np.ndarray) -> np.ndarray:
    mean, size = np.exp(rho[..., 0]), np.exp(-rho[..., 1])
    return stats.nbinom.logpmf(y, size, size / (size + mean))


def student_log_prob(y: np.ndarray, rho: np.ndarray) -> np.ndarray:
    return stats.t.logpdf(y, 7.0, rho[..., 0], np.exp(rho[..., 1]))


def softmax_log_prob(y: np.ndarray, rho: np.ndarray) -> np.ndarray:
    log_probs = special.log_softmax(rho, axis=-1)
    index = np.broadcast_to(y.astype(int), rho.shape[:-1])[..., None]
    return np.take_along_axis(log_probs, index, axis=-1)[..., 0]


@dataclass(frozen=True)
class Case:
    make: Callable[[], JointLikelihood]
    log_prob: Callable[[np.ndarray, np.ndarray], np.ndarray]
    responses: tuple[float, ...]
    tolerance: float  # of the expectation, in nats

    @property
    def y(self) -> torch.Tensor:
        return torch.tensor(self.responses, dtype=torch.float64)


def three_classes() -> SoftmaxLikelihood:
    return SoftmaxLikelihood(num_classes=3)


def five_classes() -> SoftmaxLikelihood:
    return SoftmaxLikelihood(num_classes=5)


CASES = {
    "gaussian": Case(GaussianLocationScaleLikelihood, gaussian_log_prob, (0.3, -1.0, 4.0, 0.0), 1e-9),
    "negative_binomial": Case(
        NegativeBinomialMeanDispersionLikelihood, negative_binomial_log_prob, (0.0, 2.0, 7.0, 60.0), 1e-6
    ),
    "student": Case(StudentTLocationScaleLikelihood, student_log_prob, (0.3, -1.0, 9.0, 0.0), 1e-6),
    "softmax3": Case(three_classes, softmax_log_prob, (0.0, 1.0, 2.0, 2.0), 1e-6),
    # Quasi-Monte Carlo with 512 points.
    "softmax5": Case(five_classes, softmax_log_prob, (0.0, 1.0, 4.0, 2.0), 1e-3),
}


def moments(case: Case, rows: int = 4, scale: float = 0.6, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Means ``(n, P)`` and covariances ``(n, P, P)`` with strong correlations."""
    generator = torch.Generator().manual_seed(seed)
    num_predictors = case.make().num_predictors
    options = {"dtype": torch.float64, "generator": generator}
    mean = 0.7 * torch.randn(rows, num_predictors, **options)
    root = torch.randn(rows, num_predictors, num_predictors, **options)
    covariance = root @ root.mT + 0.1 * torch.eye(num_predictors, dtype=torch.float64)
    variance = covariance.diagonal(dim1=-2, dim2=-1)
    return mean, scale**2 * covariance / (variance.unsqueeze(-1) * variance.unsqueeze(-2)).sqrt()


def distribution(mean: torch.Tensor, covariance: torch.Tensor) -> MultitaskMultivariateNormal:
    """What a model returns in train mode."""
    return MultitaskMultivariateNormal(mean, BlockDiagLinearOperator(covariance, block_dim=-3), interleaved=True)


def dense_nodes(mean: torch.Tensor, covariance: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Predictors ``(K, n, P)`` and weights: a trapezoidal rule, 200 points a dimension for two, 40 for three."""
    num_predictors = mean.shape[-1]
    size, reach = {2: (200, 9.0), 3: (40, 7.0)}[num_predictors]
    points = np.linspace(-reach, reach, size)
    weights = stats.norm.pdf(points)
    grid = np.stack(np.meshgrid(*[points] * num_predictors, indexing="ij"), axis=-1).reshape(-1, num_predictors)
    products = np.stack(np.meshgrid(*[weights] * num_predictors, indexing="ij")).prod(0).ravel()
    root = np.linalg.cholesky(covariance.numpy())
    return mean.numpy() + np.einsum("nij,kj->kni", root, grid), products / products.sum()


def drawn_nodes(mean: torch.Tensor, covariance: torch.Tensor, size: int) -> np.ndarray:
    """Joint draws of the predictors, ``(size, n, P)``."""
    noise = np.random.default_rng(3).standard_normal((size, *mean.shape))
    return mean.numpy() + np.einsum("nij,kni->knj", np.linalg.cholesky(covariance.numpy()).transpose(0, 2, 1), noise)
