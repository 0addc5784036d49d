"""Jumps of single components to better lengthscales and variances, from tables of bins."""

from __future__ import annotations

import pytest
import torch
from gpytorch.likelihoods import BernoulliLikelihood, GaussianLikelihood, Likelihood
from torch import Tensor

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup
from gpytorch_gam.terms import constant, smooth, tensor
from gpytorch_gam.training import fit
from gpytorch_gam.training._component_scales import places_of_components, scales_of_components
from gpytorch_gam.training._component_scan import SiteView, SumsAtRows, Trial
from gpytorch_gam.training.discretized import ColumnBins
from gpytorch_gam.training.discretized._data import DiscretizedData
from gpytorch_gam.training.discretized._problem import DiscretizedProblem
from gpytorch_gam.training.discretized._statistics import BinStatistics, SetFeatures
from gpytorch_gam.training.discretized._sums_at_bins import SumsAtBins


def make_inputs(num_rows: int) -> Tensor:
    counts = torch.tensor([12.0, 7.0, 5.0], dtype=torch.float64)
    return (torch.rand(num_rows, 3, dtype=torch.float64) * counts).round() / counts


def make_model(x: Tensor, *more: ComponentGroup) -> AdditiveGP:
    """Two effects, a surface, and a constant."""
    terms = [smooth([0, 1], x, num_inducing=5), constant(), tensor((0, 2), x), *more]
    return AdditiveGP(AdditivePredictor(*terms), "coupled").double()


class BothSums:
    """The same sums from the rows and from their tables, at several hyperparameters."""

    def __init__(self) -> None:
        x, constant_mean, self.noise = make_inputs(60), 0.3, 0.2
        model = make_model(x, smooth(0, x, names="more"))
        self.strategy = model.variational_strategy
        self.strategy._initialize_once()
        bins = ColumnBins.from_data(x, model.predictor)
        problem = DiscretizedProblem(model, BernoulliLikelihood(), bins, 60)
        data = DiscretizedData.from_batches([(x, x[:, 0])], bins, self.strategy, GaussianLikelihood())
        weights, targets = torch.rand(60).double(), torch.randn(60).double()
        self.statistics = BinStatistics(
            self.strategy, problem.terms, data.tables(weights, targets, targets.new_zeros(()))
        )
        self.places = list(places_of_components(model.predictor).values())
        self.at_bins = SumsAtBins(self.statistics.tables, constant_mean, self.noise)
        residuals = (targets - constant_mean * weights) / self.noise
        self.x, self.scales = x, list(scales_of_components(model.predictor))
        view = SiteView(*self._at_rows(), (weights / self.noise).view(1, 1, -1), residuals.unsqueeze(0))
        self.at_rows = SumsAtRows(view, self.places)

    def trials(self) -> tuple[list[Trial], list[SetFeatures]]:
        rows, bins = [], []
        for factor in (1.0, 0.3):
            for scale in self.scales:
                scale.set(factor * scale.value())
            rows.append(self._at_rows())
            bins.append(self.statistics.features())
        return rows, bins

    @torch.no_grad()
    def _at_rows(self) -> Trial:
        variances = [group.prior_variance(self.x).expand(-1, 60) for group in self.strategy.predictor.groups]
        return Trial(self.strategy.at_rows(self.x).features, torch.cat(variances))


def test_sums_at_bins_are_those_of_the_rows() -> None:
    both = BothSums()
    with torch.no_grad():
        rows, bins = both.trials()
        for columns in (slice(None), both.places[2].part):
            pairs = zip(
                both.at_rows.products(rows, rows[1], columns),
                both.at_bins.products(bins, bins[1], columns),
                strict=True,
            )
            for one, two in pairs:
                torch.testing.assert_close(two, one, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(both.at_bins.projected(bins[1]), both.at_rows.projected(rows[1]))
        torch.testing.assert_close(both.at_bins.explainable(bins[1]), both.at_rows.explainable(rows[1]))
        for place in both.places:
            torch.testing.assert_close(both.at_bins.block(bins[0], place), both.at_rows.block(rows[0], place))


@pytest.mark.parametrize("kind", ["gaussian", "labels"])
def test_terms_return_from_where_their_variance_is_tiny(kind: str) -> None:
    x = make_inputs(400)
    effects = torch.sin(6 * x[:, 0]) + x[:, 1]
    noisy, labels = effects + 0.3 * torch.randn(400).double(), torch.bernoulli(torch.special.ndtr(effects))
    bounds = []
    for factor in (1.0, 1e-5):
        model = make_model(x)
        likelihood: Likelihood = GaussianLikelihood() if kind == "gaussian" else BernoulliLikelihood()
        for scale in scales_of_components(model.predictor):
            scale.set(factor * scale.value())
        y = noisy if kind == "gaussian" else labels
        bounds.append(fit(model, likelihood.double(), (x, y), method="bins").bound)
    assert bounds[0] == pytest.approx(bounds[1], abs=0.1)
