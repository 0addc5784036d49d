"""The reference cases: small problems whose every quantity was computed densely in 50-digit arithmetic."""

from __future__ import annotations

import functools
import json
from itertools import groupby
from pathlib import Path

import gpytorch
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.variational import CholeskyVariationalDistribution

from gpytorch_gam import (
    AdditivePredictor,
    AdditiveVariationalStrategy,
    BlockLowRankPrecisionVariationalDistribution,
    ComponentGroup,
    LowRankPrecisionVariationalDistribution,
)

FIXTURE = Path(__file__).parent / "fixtures" / "cases.json"
# How far a quantity may be from its value in 50 digits, relative to its largest entry.
RTOL = {torch.float64: 1e-8, torch.float32: 1e-4}
FAMILIES = ("low_rank_precision", "block_low_rank_precision", "mean_field", "gaussian_optimum")


@functools.cache
def load() -> dict:
    return json.loads(FIXTURE.read_text())


def cases() -> list[dict]:
    return load()["cases"]


def tensor(values: object, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64).to(dtype)


def assert_matches(actual: torch.Tensor, expected: object) -> None:
    """Relative to the largest entry of each quantity, which is what rounding in sums of its terms scales with."""
    wanted = tensor(expected)
    assert actual.shape == wanted.shape
    error = (actual.detach().double() - wanted).abs().max() / wanted.abs().max()
    assert error <= RTOL[actual.dtype], f"relative error {error:.2e}"


def make_predictor(case: dict, dtype: torch.dtype = torch.float64, two_predictors: bool = False) -> AdditivePredictor:
    """Groups are runs of components of equal shape (and, in the second reading, equal predictor)."""
    owners = case["predictor_of"] if two_predictors else [0] * len(case["components"])

    def shape(entry: tuple[dict, int]) -> tuple[int, int, int]:
        component, owner = entry
        return len(component["dims"]), len(component["inducing_points"]), owner

    groups = []
    for (_, _, owner), run in groupby(zip(case["components"], owners, strict=True), key=shape):
        members = [component for component, _ in run]
        groups.append(_make_group(members, owner, dtype))
    return AdditivePredictor(*groups)


def _make_group(members: list[dict], owner: int, dtype: torch.dtype) -> ComponentGroup:
    size = torch.Size([len(members)])
    kernel = ScaleKernel(RBFKernel(batch_shape=size), batch_shape=size).to(dtype)
    kernel.base_kernel.lengthscale = tensor([m["lengthscale"] for m in members], dtype).reshape(-1, 1, 1)
    kernel.outputscale = tensor([m["variance"] for m in members], dtype)
    points = tensor([m["inducing_points"] for m in members], dtype).reshape(len(members), -1, len(members[0]["dims"]))
    return ComponentGroup(kernel, columns=[m["dims"] for m in members], inducing_points=points, predictor=owner)


class Model(gpytorch.models.ApproximateGP):
    def __init__(self, predictor: AdditivePredictor, distribution: object, jitter: float | None) -> None:
        super().__init__(AdditiveVariationalStrategy(self, predictor, distribution, jitter_val=jitter))

    def forward(self, x: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
        return self.variational_strategy.predictor(x)


def make_model(case: dict, family: str, dtype: torch.dtype = torch.float64, two_predictors: bool = False) -> Model:
    """The case's posterior of the given family, built through the public classes."""
    predictor = make_predictor(case, dtype, two_predictors)
    total = predictor.num_inducing_total
    if family == "gaussian_optimum":
        distribution = CholeskyVariationalDistribution(total)
    elif family == "low_rank_precision":
        distribution = LowRankPrecisionVariationalDistribution(total, rank=case["rank"])
    else:
        rank = case["rank"] if family == "block_low_rank_precision" else 0
        distribution = BlockLowRankPrecisionVariationalDistribution(predictor.group_shapes, rank=rank)
    model = Model(predictor, distribution.to(dtype), case["jitter_on_Kuu"])
    set_posterior(model, case, family, dtype)
    return model.eval()


def set_posterior(model: Model, case: dict, family: str, dtype: torch.dtype) -> None:
    strategy = model.variational_strategy
    distribution = strategy._variational_distribution
    choleskys = [chol for group in strategy.inducing_choleskys() for chol in group]
    cholesky = torch.block_diag(*choleskys)
    with torch.no_grad():
        if family == "gaussian_optimum":
            expected = case["expected"][family]
            mean, covariance = tensor(expected["inducing_mean"]), tensor(expected["inducing_covariance"])
            distribution.variational_mean.copy_(torch.linalg.solve(cholesky, mean))
            root = torch.linalg.solve(cholesky, torch.linalg.cholesky(covariance))
            distribution.chol_variational_covar.copy_(torch.linalg.cholesky(root @ root.mT))
        elif family == "mean_field":
            distribution.variational_mean.copy_(cholesky.mT @ tensor(case["alpha"]))
        else:
            strategy.set_paper_parameters(tensor(case["alpha"], dtype), tensor(case["B"], dtype))
        if family in ("block_low_rank_precision", "mean_field"):
            blocks = iter(tensor(block, dtype) for block in case["E_blocks"])
            for factor in distribution.block_factors:
                factor.copy_(torch.stack([next(blocks) for _ in range(factor.shape[0])]))
    strategy._mark_initialized()
