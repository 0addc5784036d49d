"""GPyTorch's own conformance tests, run on the strategy with every variational distribution."""

from __future__ import annotations

import inspect
import unittest
from typing import Any

import gpytorch
import torch
from gpytorch.test.variational_test_case import VariationalTestCase
from gpytorch.variational import (
    CholeskyVariationalDistribution,
    DeltaVariationalDistribution,
    MeanFieldVariationalDistribution,
)

import gpytorch_gam.models
import gpytorch_gam.variational
from gpytorch_gam import (
    AdditiveGP,
    AdditivePredictor,
    AdditiveVariationalStrategy,
    BlockLowRankPrecisionVariationalDistribution,
    ComponentGroup,
    LowRankPrecisionVariationalDistribution,
)
from gpytorch_gam.terms import constant
from gpytorch_gam.variational import (
    FullAdditiveVariationalStrategy,
    SiteVariationalDistribution,
    TiedAdditiveVariationalStrategy,
)


class Model(gpytorch.models.ApproximateGP):
    def __init__(self, predictor: AdditivePredictor, distribution: Any) -> None:
        super().__init__(AdditiveVariationalStrategy(self, predictor, distribution))

    def forward(self, x: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
        return self.variational_strategy.predictor(x)


def make_predictor(num_inducing: int, inducing_batch_shape: torch.Size, constant_mean: bool) -> AdditivePredictor:
    """Two one-dimensional components with 5 points each, a two-dimensional one with the rest but one, a constant."""
    size = torch.Size([2])
    univariate = ComponentGroup(
        gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(batch_shape=size), batch_shape=size),
        columns=[[0], [1]],
        inducing_points=torch.randn(2, 5, 1).repeat(*inducing_batch_shape, 1, 1, 1),
        learn_inducing_locations=True,
    )
    bivariate = ComponentGroup(
        gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel()),
        columns=[[0, 1]],
        inducing_points=torch.randn(1, num_inducing - 11, 2).repeat(*inducing_batch_shape, 1, 1, 1),
        learn_inducing_locations=True,
    )
    mean = gpytorch.means.ConstantMean() if constant_mean else None
    return AdditivePredictor(univariate, bivariate, constant(), mean=mean)


class AdditiveTestCase(VariationalTestCase):
    family: Any = None

    def _make_model_and_likelihood(
        self,
        num_inducing: int = 16,
        batch_shape: torch.Size = torch.Size([]),  # noqa: B008
        inducing_batch_shape: torch.Size = torch.Size([]),  # noqa: B008
        strategy_cls: type = AdditiveVariationalStrategy,
        distribution_cls: Any = None,
        constant_mean: bool = True,
    ) -> tuple[Any, Any]:
        torch.manual_seed(0)
        predictor = make_predictor(num_inducing, inducing_batch_shape, constant_mean)
        return self.make_model(predictor, batch_shape), self.likelihood_cls()

    def make_model(self, predictor: AdditivePredictor, batch_shape: torch.Size) -> Any:
        return Model(predictor, self.make_distribution(predictor, batch_shape))

    def make_distribution(self, predictor: AdditivePredictor, batch_shape: torch.Size) -> Any:
        return self.distribution_cls(predictor.num_inducing_total, batch_shape=batch_shape)

    @property
    def batch_shape(self) -> torch.Size:
        return torch.Size([])

    @property
    def strategy_cls(self) -> type:
        return AdditiveVariationalStrategy

    @property
    def mll_cls(self) -> type:
        return gpytorch.mlls.VariationalELBO

    def test_training_iteration(self, *args: Any, **kwargs: Any) -> None:
        cg, _, ciq = super().test_training_iteration(*args, **kwargs)
        self.assertFalse(cg.called)
        self.assertFalse(ciq.called)

    def test_eval_iteration(self, *args: Any, **kwargs: Any) -> None:
        cg, _, ciq = super().test_eval_iteration(*args, **kwargs)
        self.assertFalse(cg.called)
        self.assertFalse(ciq.called)

    def test_fantasy_call(self, *args: Any, **kwargs: Any) -> None:
        with self.assertRaises(NotImplementedError):
            super().test_fantasy_call(*args, **kwargs)


class TestLowRankPrecision(AdditiveTestCase, unittest.TestCase):
    distribution_cls = LowRankPrecisionVariationalDistribution

    def make_distribution(self, predictor: AdditivePredictor, batch_shape: torch.Size) -> Any:
        return LowRankPrecisionVariationalDistribution(predictor.num_inducing_total, rank=4, batch_shape=batch_shape)


class TestLowRankPrecisionPredictiveLogLikelihood(TestLowRankPrecision):
    @property
    def mll_cls(self) -> type:
        return gpytorch.mlls.PredictiveLogLikelihood


class TestLowRankPrecisionRobust(TestLowRankPrecision):
    @property
    def mll_cls(self) -> type:
        return gpytorch.mlls.GammaRobustVariationalELBO


class TestBlockLowRankPrecision(AdditiveTestCase, unittest.TestCase):
    distribution_cls = BlockLowRankPrecisionVariationalDistribution

    def make_distribution(self, predictor: AdditivePredictor, batch_shape: torch.Size) -> Any:
        return BlockLowRankPrecisionVariationalDistribution(predictor.group_shapes, rank=3, batch_shape=batch_shape)


class TestBlockLowRankPrecisionRestrictedBlocks(AdditiveTestCase, unittest.TestCase):
    distribution_cls = BlockLowRankPrecisionVariationalDistribution

    def make_distribution(self, predictor: AdditivePredictor, batch_shape: torch.Size) -> Any:
        return BlockLowRankPrecisionVariationalDistribution(
            predictor.group_shapes, rank=3, block_rank=2, batch_shape=batch_shape
        )


class TestMeanField(AdditiveTestCase, unittest.TestCase):
    distribution_cls = BlockLowRankPrecisionVariationalDistribution

    def make_distribution(self, predictor: AdditivePredictor, batch_shape: torch.Size) -> Any:
        return BlockLowRankPrecisionVariationalDistribution(predictor.group_shapes, rank=0, batch_shape=batch_shape)


class TestCoupledCovariance(AdditiveTestCase, unittest.TestCase):
    distribution_cls = CholeskyVariationalDistribution


class TestDiagonalCovariance(AdditiveTestCase, unittest.TestCase):
    distribution_cls = MeanFieldVariationalDistribution


class TestDelta(AdditiveTestCase, unittest.TestCase):
    distribution_cls = DeltaVariationalDistribution


class TestReadyModel(AdditiveTestCase, unittest.TestCase):
    distribution_cls = BlockLowRankPrecisionVariationalDistribution

    def make_model(self, predictor: AdditivePredictor, batch_shape: torch.Size) -> Any:
        return AdditiveGP(predictor, "block_low_rank", rank=3, batch_shape=batch_shape)


def test_every_public_strategy_distribution_and_model_is_tested() -> None:
    bases = (
        gpytorch.variational._VariationalStrategy,
        gpytorch.variational._VariationalDistribution,
        gpytorch.models.ApproximateGP,
    )
    public = [
        getattr(module, name) for module in (gpytorch_gam.variational, gpytorch_gam.models) for name in module.__all__
    ]
    cases = [case for case in globals().values() if inspect.isclass(case) and issubclass(case, unittest.TestCase)]
    tested = {case.distribution_cls for case in cases} | {AdditiveVariationalStrategy, AdditiveGP}
    # tests/variational/test_site_strategies.py runs the kit on these.
    tested |= {FullAdditiveVariationalStrategy, SiteVariationalDistribution, TiedAdditiveVariationalStrategy}
    missing = {cls for cls in public if inspect.isclass(cls) and issubclass(cls, bases)} - tested
    assert not missing, f"no conformance test for {missing}"


# pytest would collect the abstract base as well
del AdditiveTestCase
