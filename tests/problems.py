"""Models, data and dense oracles that many tests share."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import gpytorch
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import BernoulliLikelihood, GaussianLikelihood, Likelihood, StudentTLikelihood
from gpytorch.models import ApproximateGP
from linear_operator.operators import DiagLinearOperator
from torch import Tensor

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup
from gpytorch_gam.components import regular_grid
from gpytorch_gam.likelihoods import PoissonLikelihood
from gpytorch_gam.mlls import CollapsedELBO
from gpytorch_gam.mlls.collapsed_elbo import GaussianOptimum
from gpytorch_gam.numerics.capacitance import add_identity
from gpytorch_gam.optim import NaturalGradient
from gpytorch_gam.terms import constant
from gpytorch_gam.training import FitStatistics, fit

# ------------------------------------------------------------------------------------------------------------ kernels


def scaled_rbf(*batch: int, lengthscale: float | None = None, **options: object) -> ScaleKernel:
    """An RBF kernel with hyperparameters of each component's own."""
    kernel = ScaleKernel(RBFKernel(batch_shape=torch.Size(batch), **options), batch_shape=torch.Size(batch))
    if lengthscale is not None:
        kernel.base_kernel.lengthscale = lengthscale
    return kernel


# ------------------------------------------------------------------- two smooths on a grid, another one, a constant


def make_predictor(columns: list[list[int]], size: int = 7) -> AdditivePredictor:
    """Ragged: one group of unequal size to the other, and a constant."""
    names = [f"f{index}" for index in range(len(columns))]
    kernel, grid = scaled_rbf(len(columns), lengthscale=0.4), regular_grid(0.0, 1.0, size)
    return AdditivePredictor(
        ComponentGroup(kernel, columns, grid, names=names),
        ComponentGroup(scaled_rbf(1, lengthscale=0.5), [[2]], regular_grid(0.0, 1.0, 5), names=["last"]),
        constant(variance=4.0),
    )


def make_model(
    family: str,
    rank: int | str | None = None,
    columns: list[list[int]] | None = None,
    dtype: torch.dtype = torch.float64,
) -> AdditiveGP:
    torch.manual_seed(1)
    return AdditiveGP(make_predictor(columns or [[0], [1]]), family, rank).to(dtype).train()


def make_inputs(num_rows: int, correlation: float = 0.0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Three uniform columns."""
    shared, own = torch.randn(num_rows, 1, dtype=dtype), torch.randn(num_rows, 3, dtype=dtype)
    return torch.special.ndtr(math.sqrt(correlation) * shared + math.sqrt(1 - correlation) * own)


def effect(x: Tensor) -> Tensor:
    return torch.sin(6 * x[:, 0]) + 2 * (x[:, 1] - 0.5) ** 2 - x[:, 2]


def gaussian_problem(num_rows: int = 400, correlation: float = 0.0) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    x = make_inputs(num_rows, correlation)
    return x, effect(x) + 0.3 * torch.randn(num_rows, dtype=x.dtype)


def gaussian_likelihood(noise: float = 0.09) -> GaussianLikelihood:
    likelihood = GaussianLikelihood().double()
    likelihood.noise = noise
    return likelihood


def moderate_problem(kind: str, num_rows: int = 300) -> tuple[Tensor, Tensor, Likelihood]:
    """Responses of another distribution, not far from the prior: labels, counts or those of heavy tails."""
    torch.manual_seed(0)
    x = make_inputs(num_rows, 0.5)
    if kind == "labels":
        return x, (torch.rand(num_rows).to(x) < torch.special.ndtr(2 * effect(x))).to(x), BernoulliLikelihood()
    if kind == "counts":
        return x, torch.poisson((effect(x) + 1).exp()), PoissonLikelihood()
    likelihood = StudentTLikelihood().double()
    likelihood.noise, likelihood.deg_free = 0.04, 4.0
    return x, effect(x) + 0.2 * torch.distributions.StudentT(4.0).sample((num_rows,)).to(x), likelihood


def fit_problem() -> tuple[AdditiveGP, GaussianLikelihood, Tensor, Tensor]:
    """A model of two smooths and what it is fitted to."""
    group = ComponentGroup(scaled_rbf(2, lengthscale=0.3), [[0], [1]], regular_grid(0.0, 1.0, 8).double())
    model = AdditiveGP(AdditivePredictor(group, constant()), "block_low_rank", 4).double()
    x = torch.rand(600, 2).double()
    y = torch.sin(6 * x[:, 0]) + x[:, 1] + 0.2 * torch.randn(600).double()
    return model, GaussianLikelihood().double(), x, y


# ------------------------------------------------------------------------- smooths, a surface, a varying coefficient


def mixed_predictor(batch: tuple[int, ...] = (), learn: bool = False) -> AdditivePredictor:
    """Ragged and mixed: two smooths of six points, a surface of nine, a varying coefficient, a constant."""

    def points(grid: Tensor, size: int) -> Tensor:
        return grid.expand(*batch, size, *grid.shape)

    options = {"learn_inducing_locations": learn}
    grid = regular_grid([0.0, 0.0], [1.0, 1.0], 3)
    return AdditivePredictor(
        ComponentGroup(scaled_rbf(*batch, 2), [[0], [1]], points(regular_grid(0.0, 1.0, 6), 2), **options),
        ComponentGroup(scaled_rbf(*batch, 1, ard_num_dims=2), [[0, 1]], points(grid, 1), **options),
        ComponentGroup(scaled_rbf(*batch, 1), [[1]], points(regular_grid(0.0, 1.0, 5), 1), by=2, **options),
        constant(batch_shape=batch),
        mean=gpytorch.means.ConstantMean(batch_shape=torch.Size(batch)),
    )


def mixed_model(family: str = "block_low_rank", rank: int | None = 4, **kwargs: object) -> AdditiveGP:
    """With a posterior and a mean that are not trivial."""
    model = AdditiveGP(mixed_predictor(**kwargs), family, rank if "low_rank" in family else None)
    strategy = model.variational_strategy
    strategy._initialize_once()
    with torch.no_grad():
        for name, parameter in strategy._variational_distribution.named_parameters():
            noise = 0.3 * torch.randn_like(parameter)
            parameter.copy_(parameter + noise if name == "chol_variational_covar" else noise + (name[0] == "_") * 0.7)
        model.predictor.means[0].raw_constant.fill_(0.4)
    return model


def mixed_inputs(n: int = 30) -> Tensor:
    return torch.rand(n, 3)


def gaussian_bound(model: AdditiveGP, x: Tensor, y: Tensor, num_data: int | None = None) -> Tensor:
    """For each row, with a noise variance of log 2."""
    likelihood = GaussianLikelihood().to(x.dtype)
    return gpytorch.mlls.VariationalELBO(likelihood, model, num_data or len(y))(model.train()(x), y)


# ----------------------------------------------------------------------- two smooths, a varying coefficient, a mean


def varying_predictor(size: int = 6, batch: tuple[int, ...] = (), points: Tensor | None = None) -> AdditivePredictor:
    """Two smooths, a varying coefficient, a constant and a mean."""
    grid = regular_grid(0.0, 1.0, size).expand(*batch, 1, size, 1)
    smooths, varying = scaled_rbf(*batch, 2, lengthscale=0.3), scaled_rbf(*batch, 1, lengthscale=0.5)
    return AdditivePredictor(
        ComponentGroup(smooths, [[0], [1]], grid.expand(*batch, 2, size, 1) if points is None else points[:2]),
        ComponentGroup(varying, [[1]], grid if points is None else points[2:], by=2),
        constant(variance=2.0, batch_shape=batch),
        mean=gpytorch.means.ConstantMean(batch_shape=torch.Size(batch)),
    )


class SiteModel(ApproximateGP):
    """A strategy that is tied to its training inputs, in a model."""

    def __init__(self, strategy: type, *args: object, **kwargs: object) -> None:
        super().__init__(strategy(self, *args, **kwargs))

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return self.predictor(x)

    @property
    def predictor(self) -> AdditivePredictor:
        return self.variational_strategy.predictor


# ----------------------------------------------------------------------------------------------------------- training


def backward(model: AdditiveGP, likelihood: Likelihood, x: Tensor, y: Tensor, num_data: int) -> float:
    model.zero_grad()
    loss = -gpytorch.mlls.VariationalELBO(likelihood, model, num_data=num_data)(model(x), y)
    loss.backward()
    return loss.item()


@torch.no_grad()
def elbo(model: ApproximateGP, likelihood: Likelihood, x: Tensor, y: Tensor) -> float:
    """In nats, of all rows."""
    return gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(x))(model(x), y).item() * len(x)


def train(
    model: AdditiveGP, likelihood: Likelihood, x: Tensor, y: Tensor, steps: int, batch_size: int, **options: object
) -> NaturalGradient:
    """Natural-gradient steps on shuffled batches."""
    natural = NaturalGradient(model, num_data=len(x), **options)
    generator, done = torch.Generator().manual_seed(0), 0
    while done < steps:
        for rows in torch.randperm(len(x), generator=generator).split(batch_size):
            backward(model, likelihood, x[rows], y[rows], len(x))
            natural.step()
            done += 1
    return natural


# ------------------------------------------------------------------------------------------------ posteriors, oracles


def precision_and_mean(model: AdditiveGP) -> tuple[Tensor, Tensor]:
    distribution = model.variational_strategy.variational_distribution
    return torch.linalg.inv(distribution.covariance_matrix.detach()), distribution.mean.detach().clone()


def unknown_factors(model: AdditiveGP) -> list[Tensor]:
    """The mean square at the inducing points of each block of the prior, over that of the prior, densely."""
    roots = [root for group in model.variational_strategy.inducing_choleskys() for root in group]
    root, posterior = torch.block_diag(*roots), model.variational_strategy.variational_distribution
    second = posterior.covariance_matrix + torch.outer(posterior.mean, posterior.mean)
    parts = [
        matrix.diagonal().split([len(each) for each in roots]) for matrix in (root @ second @ root.mT, root @ root.mT)
    ]
    return [(found.mean() / prior.mean()).detach() for found, prior in zip(*parts, strict=True)]


def set_to_optimum(model: ApproximateGP, likelihood: GaussianLikelihood, x: Tensor, y: Tensor) -> GaussianOptimum:
    """Give the model the posterior that the closed form has, as far as its family holds it."""
    optimum = CollapsedELBO(likelihood, model).optimum(x, y)
    model.variational_strategy.set_whitened_posterior(optimum.mean, optimum.precision)
    return optimum


def dense_optimum(model: ApproximateGP, likelihood: Likelihood, x: Tensor, y: Tensor) -> float:
    """The bound of the best dense Gaussian, by damped natural-gradient steps on mean and precision."""
    strategy = model.variational_strategy
    with torch.no_grad():
        features = strategy.features(x)
        unexplained = sum(group.prior_variance(x).sum(-2) for group in model.predictor.groups)
        unexplained = unexplained - features.square().sum(0)
    mean, precision = torch.zeros(len(features)).to(x), torch.eye(len(features)).to(x)
    for _ in range(60):
        covariance = torch.linalg.inv(precision)
        location = (mean @ features).requires_grad_()
        variance = (unexplained + (features * (covariance @ features)).sum(0)).requires_grad_()
        output = gpytorch.distributions.MultivariateNormal(location, DiagLinearOperator(variance))
        expected = likelihood.expected_log_prob(y, output).sum()
        by_mean, by_variance = torch.autograd.grad(expected, [location, variance])
        target = add_identity((features * (-2 * by_variance)) @ features.mT)
        precision = 0.3 * precision + 0.7 * target
        mean = mean + 0.7 * torch.linalg.solve(precision, features @ by_mean - mean)
    size = len(mean)
    divergence = 0.5 * (mean @ mean + covariance.trace() - size - torch.logdet(covariance))
    return (expected - divergence).item()


def predictor_gradients(model: AdditiveGP) -> Tensor:
    parameters = [p for p in model.predictor.parameters() if p.requires_grad]
    return torch.cat([p.grad.flatten() if p.grad is not None else torch.zeros(p.numel()).to(p) for p in parameters])


def corrected_gradients(
    model: AdditiveGP, likelihood: Likelihood, x: Tensor, y: Tensor, num_data: int, **options: object
) -> Tensor:
    """Gradients of the loss after a step; the posterior is put back."""
    q = model.variational_strategy._variational_distribution
    before = {name: value.clone() for name, value in q.state_dict().items()}
    natural = NaturalGradient(model, num_data=num_data, lr=0.5, **options)
    backward(model, likelihood, x, y, num_data)
    natural.step()
    natural.remove()
    q.load_state_dict(before)
    return predictor_gradients(model)


# -------------------------------------------------------------------------------------------------- dense precisions


def random_excess(generator: torch.Generator, sizes: list[int]) -> Tensor:
    """A data precision of random rank and spread, with strong and weak directions."""
    total = sum(sizes)
    rank = int(torch.randint(1, 2 * total, (), generator=generator))
    scale = 10.0 ** torch.empty(rank, dtype=torch.float64).uniform_(-2, 3, generator=generator)
    features = torch.randn(total, rank, dtype=torch.float64, generator=generator) * scale.sqrt()
    return features @ features.mT


def gap(precision: Tensor, covariance: Tensor) -> Tensor:
    """KL in nats of the fitted Gaussian to the target of the same mean: what the ELBO loses."""
    size = precision.shape[-1]
    return 0.5 * ((precision @ covariance).diagonal().sum() - size - torch.logdet(precision) - torch.logdet(covariance))


def fit_by_bins(
    model: ApproximateGP, likelihood: Likelihood, batches: Iterable[Any] | FitStatistics, **options: Any
) -> list[float]:
    """Fit discretised data with the inducing points that there are, up to the next maximum; the bounds on the way."""
    result = fit(model, likelihood, batches, method="bins", explore=False, **options)
    return [entry.elbo for entry in result.history]
