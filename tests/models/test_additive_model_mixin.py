"""Model classes of one's own with the methods of an additive GP."""

from __future__ import annotations

import gpytorch
import pytest
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy
from torch import Tensor

from gpytorch_gam import (
    AdditiveGP,
    AdditiveModelMixin,
    AdditivePredictor,
    AdditiveVariationalStrategy,
    BlockLowRankPrecisionVariationalDistribution,
)
from gpytorch_gam.terms import constant, smooth


class OwnGAM(AdditiveModelMixin, gpytorch.models.ApproximateGP):
    def __init__(self, predictor: AdditivePredictor) -> None:
        q = BlockLowRankPrecisionVariationalDistribution(predictor.group_shapes, rank=4)
        super().__init__(AdditiveVariationalStrategy(self, predictor, q))

    def forward(self, x: Tensor, scale: float = 1.0) -> MultivariateNormal:
        return self.predictor(scale * x)


def make_predictor(num_columns: int = 2) -> AdditivePredictor:
    return AdditivePredictor(smooth(list(range(num_columns)), low=0.0, high=1.0), constant())


def test_methods_are_those_of_an_additive_gp() -> None:
    own, ready = OwnGAM(make_predictor()).eval(), AdditiveGP(make_predictor(), rank=4).eval()
    for parameter in own.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    own.variational_strategy._mark_initialized()
    ready.load_state_dict(own.state_dict())
    x = torch.rand(7, 2)
    with torch.no_grad():
        assert torch.equal(own.components(x, ["x1", "x0"]).mean, ready.components(x, ["x1", "x0"]).mean)
        assert torch.equal(own(x, scale=0.5).mean, ready(0.5 * x).mean)
    assert own.predictor is own.variational_strategy.predictor
    assert torch.equal(own.predict(x, scale=0.5).variance, ready.predict(0.5 * x).variance)
    sums = {"both": ["x0", "x1"]}
    assert torch.equal(own.predict_sums(x, sums).variance, ready.predict_sums(x, sums).variance)
    with pytest.raises(ValueError, match="unknown components"):
        own.predict(x, exclude="z")


def test_a_single_column_needs_no_second_dimension() -> None:
    model, x = OwnGAM(make_predictor(1)).eval(), torch.rand(5)
    with torch.no_grad():
        assert model.components(x).mean.shape == (2, 5)
    assert model.predict(x).mean.shape == (5,)
    assert model.predict_sums(x, {"x0": "x0"}).mean.shape == (1, 5)


def test_another_strategy_is_refused() -> None:
    class Stock(AdditiveModelMixin, gpytorch.models.ApproximateGP):
        def __init__(self) -> None:
            super().__init__(VariationalStrategy(self, torch.rand(3, 1), CholeskyVariationalDistribution(3)))

    with pytest.raises(TypeError, match=r"must have an AdditiveVariationalStrategy .*, got VariationalStrategy"):
        Stock().components(torch.rand(4, 1))
