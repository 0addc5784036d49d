"""Discretised fits of components with `by` columns, levels and missing values against the sums over rows."""

from __future__ import annotations

import pytest
import torch
from gpytorch.likelihoods import GaussianLikelihood
from torch import Tensor

from gpytorch_gam import AdditiveGP, AdditivePredictor
from gpytorch_gam.likelihoods import PoissonLikelihood
from gpytorch_gam.mlls import CollapsedELBO
from gpytorch_gam.terms import constant, factor, factor_smooth, random_effect, smooth
from gpytorch_gam.training import polish
from gpytorch_gam.training.discretized import ColumnBins
from gpytorch_gam.training.discretized._data import DiscretizedData
from gpytorch_gam.training.discretized._problem import DiscretizedProblem
from gpytorch_gam.training.discretized._statistics import BinStatistics, interpolated
from tests.problems import fit_by_bins

NUM_LEVELS = 40


def make_model() -> AdditiveGP:
    """Smooths times a number, of each level apart, and with missing values; slopes and intercepts of many levels."""
    ends = {"low": 0.0, "high": 1.0, "num_inducing": 5}
    predictor = AdditivePredictor(
        smooth(0, **ends),
        smooth(0, by=1, **ends),
        smooth(0, by=2, levels=3, **ends),
        factor(2, 3, variance=1.0),
        factor_smooth(1, 2, 3, **ends),
        smooth([4, 5], missing="marginal", **ends),
        random_effect(3, NUM_LEVELS),
        random_effect(3, NUM_LEVELS, by=1),
        constant(),
    )
    return AdditiveGP(predictor, "coupled").double()


def make_inputs(num_rows: int, places: int | None) -> Tensor:
    """Numbers in columns 0, 1, 4 and 5, of which the last two have holes, levels in columns 2 and 3."""
    x = torch.rand(num_rows, 6, dtype=torch.float64)
    x = x if places is None else (x * places).round() / places
    x[:, 2] = torch.randint(3, (num_rows,))
    x[:, 3] = torch.arange(num_rows) % NUM_LEVELS
    x[::7, 4] = torch.nan
    x[::5, 5] = torch.nan
    return x


def truth(x: Tensor) -> Tensor:
    f = torch.sin(5 * x[:, 0]) * (1 + x[:, 1]) + x[:, 2] * x[:, 0] + torch.cos(x[:, 3])
    return f + x[:, 4].nan_to_num(0.5) ** 2


def test_bound_and_gradients_equal_those_of_the_rows() -> None:
    torch.manual_seed(0)
    model, likelihood = make_model(), GaussianLikelihood().double()
    model.variational_strategy._initialize_once()
    x = make_inputs(400, places=6)
    y = truth(x) + 0.4 * torch.randn(400).double()
    bins = ColumnBins.from_data(x, model.predictor)
    problem = DiscretizedProblem(model, likelihood, bins, 400)
    data = DiscretizedData.from_batches([(x, y)], bins, model.variational_strategy, likelihood)
    tables = data.tables(None, y, y.square().sum())._replace(num_rows=400)
    found = problem.optimum(BinStatistics(model.variational_strategy, problem.terms, tables)).bound
    expected = CollapsedELBO(likelihood, model)(x, y) * 400
    assert found.item() == pytest.approx(expected.item(), rel=1e-10)
    gradients = [torch.autograd.grad(value, problem.hyperparameters) for value in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-7)


def test_other_likelihoods_reach_the_posterior_of_the_rows() -> None:
    torch.manual_seed(0)
    x, likelihood = make_inputs(300, places=6), PoissonLikelihood()
    y = torch.poisson(truth(x).exp())
    model, other = make_model(), make_model()
    for each in (model, other):
        each.requires_grad_(False)
    history = fit_by_bins(model, likelihood, [(x[:100], y[:100]), (x[100:], y[100:])], tolerance=1e-9)
    assert history[-1] == pytest.approx(polish(other, likelihood, [(x, y)], tolerance=1e-9)[-1], rel=1e-9)
    found, expected = (each.variational_strategy.variational_distribution for each in (model, other))
    torch.testing.assert_close(found.mean, expected.mean, rtol=0.0, atol=1e-4)
    torch.testing.assert_close(found.covariance_matrix, expected.covariance_matrix, rtol=0.0, atol=1e-4)


def test_rounded_multipliers_and_columns_lose_little() -> None:
    """Levels stay as they are beside columns that are rounded."""
    torch.manual_seed(0)
    x = make_inputs(3000, places=None)
    y = truth(x) + 0.4 * torch.randn(3000).double()
    model, likelihood = make_model(), GaussianLikelihood().double()
    model.requires_grad_(False)
    bins = ColumnBins.from_data(x, model.predictor, max_bins=(256, 64))
    assert bins.is_rounded((0, 2)) == (True, False) and bins.is_rounded((3, 1)) == (False, True)
    found = fit_by_bins(model, likelihood, [(x, y)], bins=bins)[-1]
    assert found == pytest.approx(CollapsedELBO(likelihood, model).optimum(x, y).bound.item(), abs=1.0)


def test_knots_keep_levels_and_missing_values() -> None:
    torch.manual_seed(0)
    model, likelihood = make_model(), GaussianLikelihood().double()
    model.variational_strategy._initialize_once()
    x = make_inputs(5000, places=None)
    y = truth(x) + 0.4 * torch.randn(5000).double()
    bins = ColumnBins.from_data(x, model.predictor, max_bins=(256, 64))
    problem = DiscretizedProblem(model, likelihood, bins, 5000)
    data = DiscretizedData.from_batches([(x, y)], bins, model.variational_strategy, likelihood)
    tables = data.tables(None, y, y.square().sum())._replace(num_rows=5000)
    few = interpolated(tables, [bins.is_rounded(term) for term in bins.terms], (32, 24))
    sizes = dict(zip(bins.terms, (len(places) for places in few.places), strict=True))
    assert sizes[(0,)] == 32 and sizes[(4,)] == 33 and sizes[(0, 1)] == 576 and sizes[(3,)] == NUM_LEVELS
    bounds = [
        problem.optimum(BinStatistics(model.variational_strategy, problem.terms, each)).bound.item()
        for each in (tables, few)
    ]
    assert bounds[1] == pytest.approx(bounds[0], abs=0.1)


def test_levels_need_no_larger_max_bins() -> None:
    torch.manual_seed(0)
    x = torch.stack([torch.arange(900).remainder(300), torch.rand(900)], dim=-1).double()
    y = torch.sin(x[:, 0]) + x[:, 1] + 0.1 * torch.randn(900).double()
    model = AdditiveGP(AdditivePredictor(random_effect(0, 300), smooth(1, x), constant()), "coupled").double()
    likelihood = GaussianLikelihood().double()
    fit_by_bins(model, likelihood, [(x, y)], max_bins=50)
    assert likelihood.noise.item() == pytest.approx(0.01, rel=0.2)


def test_values_may_be_missing_where_every_component_allows_it() -> None:
    x = torch.rand(50, 2).double()
    terms = smooth(0, x, missing="marginal"), smooth(1, x)
    bins = ColumnBins.from_data(torch.cat([x, x[:1] * x.new_tensor([torch.nan, 1.0])]), AdditivePredictor(*terms))
    assert bins.values((0,))[-1].isnan() and bins.num_bins((0,)) == 51
    assert [codes[-1].item() for codes in bins.index(x.new_tensor([[torch.nan, x[0, 1]]]))] == [50, bins.index(x)[1][0]]
    x[3] = torch.nan
    with pytest.raises(ValueError, match=r"column 1 of x has NaN or infinity in 1 of 50 rows.*missing=\"marginal\""):
        ColumnBins.from_data(x, AdditivePredictor(*terms))
    x[:, 0] = torch.nan
    with pytest.raises(ValueError, match="column 0 of x is missing in all rows"):
        ColumnBins.from_data(x, AdditivePredictor(terms[0]))


def test_missing_values_become_fewer_bins_with_the_others() -> None:
    x = torch.rand(500, 1).double()
    x[::3] = torch.nan
    bins = ColumnBins.from_data(x, AdditivePredictor(smooth(0, low=0.0, high=1.0, missing="marginal")), max_bins=100)
    few = bins.coarser(10)
    assert bins.num_bins((0,)) == 101 and few.num_bins((0,)) == 11
    assert (few.index(x)[0][::3] == 10).all() and few.values((0,))[-1].isnan()
