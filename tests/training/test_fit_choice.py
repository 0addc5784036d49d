"""The method that a fit chooses, and what it says of its end."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from torch.utils.data import DataLoader, TensorDataset

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup, fit
from gpytorch_gam.components import regular_grid
from gpytorch_gam.likelihoods import PoissonLikelihood
from gpytorch_gam.mlls import CollapsedELBO
from gpytorch_gam.terms import constant, smooth
from gpytorch_gam.training import polish
from gpytorch_gam.training.fitting import method_of_fit

X = torch.rand(150, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
Y = torch.sin(6 * X[:, 0]) + 0.1 * torch.randn(150, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def make_model(**options: Any) -> AdditiveGP:
    terms = smooth([0, 1], X, num_inducing=6, kernel="rbf"), constant()
    return AdditiveGP(AdditivePredictor(*terms), **options).double()


@pytest.mark.parametrize(
    "data", [(X, Y), [X, Y], (X, Y, {}), TensorDataset(X, Y), [(X, Y)], DataLoader(TensorDataset(X, Y), 40)]
)
def test_small_data_are_fitted_by_rows_in_any_form(data: Any) -> None:
    model, likelihood = make_model(), GaussianLikelihood().double()
    found = fit(model, likelihood, data)
    assert found.method == "rows" and found.converged and found.open < 0.05
    assert found.switched_off == ("x1",)
    optimum = CollapsedELBO(likelihood, model).optimum(X, Y).bound.item()
    assert found.bound == pytest.approx(optimum, abs=0.1)
    assert str(found).startswith("converged")


@pytest.mark.parametrize("method", ["rows", "bins"])
def test_a_small_component_that_the_data_see_is_not_switched_off(method: str) -> None:
    model, likelihood = make_model(), GaussianLikelihood().double()
    wave = torch.sin(6 * X[:, 0])
    y = wave + 0.03 * torch.sin(6 * X[:, 1]) + 0.1 * (Y - wave)
    found = fit(model, likelihood, (X, y), method=method)
    large, small = model.predictor.groups[0].kernel.outputscale.detach()
    assert found.switched_off == () and small < 0.01 * large


def test_a_component_may_have_a_kernel_without_batch_shape() -> None:
    """Its variance is a number without dimensions."""
    group = ComponentGroup(ScaleKernel(RBFKernel(ard_num_dims=2)), [[0, 1]], regular_grid([0.0, 0.0], [1.0, 1.0], 4))
    model = AdditiveGP(AdditivePredictor(group, constant())).double()
    assert fit(model, GaussianLikelihood().double(), (X, Y)).converged


def test_a_posterior_of_counts_is_optimal_where_a_fit_by_rows_ends() -> None:
    model, likelihood, counts = make_model(family="coupled"), PoissonLikelihood(), torch.poisson((1.0 + Y).exp())
    found = fit(model, likelihood, (X, counts))
    assert polish(model, likelihood, [(X, counts)])[-1] == pytest.approx(found.bound, abs=1e-3)


def test_a_fit_says_what_the_family_of_the_posterior_loses() -> None:
    bounds, gaps, texts = [], [], []
    x = torch.stack([X[:, 0], 0.9 * X[:, 0] + 0.1 * X[:, 1]], -1)  # effects that can stand for each other
    y = Y + 2.0 * x[:, 1] ** 2
    for family in ("mean_field", "coupled"):
        model, likelihood = make_model(family=family), GaussianLikelihood().double()
        found = fit(model, likelihood, (x, y))
        optimum = CollapsedELBO(likelihood, model).optimum(x, y).bound.item()
        assert found.family_gap == pytest.approx(optimum - found.bound, abs=1e-6)
        bounds, gaps, texts = [*bounds, found.bound], [*gaps, found.family_gap], [*texts, str(found)]
    assert gaps[0] == pytest.approx(bounds[1] - bounds[0], abs=0.05) and gaps[0] > 1.0 > gaps[1]
    assert "nats below its optimum" in texts[0] and "nats below its optimum" not in texts[1]


def test_options_choose_their_method() -> None:
    assert fit(make_model(), GaussianLikelihood().double(), (X, Y), num_epochs=2).method == "minibatches"
    assert fit(make_model(), GaussianLikelihood().double(), (X, Y), max_bins=64).method == "bins"
    with pytest.raises(ValueError, match="num_epochs belongs to method='minibatches', but method is 'rows'"):
        fit(make_model(), GaussianLikelihood().double(), (X, Y), method="rows", num_epochs=2)


def test_a_method_that_cannot_be_used_names_one_that_can() -> None:
    model = make_model(family="coupled")
    with pytest.raises(NotImplementedError, match="CholeskyVariationalDistribution; use method='rows'"):
        fit(model, GaussianLikelihood().double(), (X, Y), method="minibatches")


def method_for(num_rows: int, num_inducing: int = 16, num_values: int | None = None, **options: Any) -> str:
    """The method for two smooths of columns with some number of distinct values."""
    x = torch.rand(num_rows, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = x if num_values is None else (num_values * x).floor() / num_values
    terms = smooth([0, 1], x, num_inducing=num_inducing, kernel="rbf"), constant()
    model = options.pop("kind", AdditiveGP)(AdditivePredictor(*terms), **options).double()
    return method_of_fit(model, GaussianLikelihood().double(), (x, x[:, 0]))


def test_rows_are_chosen_until_bins_are_faster() -> None:
    assert [method_for(number) for number in (1000, 10_000)] == ["rows", "bins"]
    assert method_for(10_000, num_values=20) == "rows"  # kernels are evaluated at distinct values


def test_rows_are_chosen_where_bins_would_blur() -> None:
    assert [method_for(10_000, number) for number in (20, 80)] == ["bins", "rows"]
    assert method_for(10_000, 80, num_values=200) == "bins"  # which hold the values themselves


class _Rescaled(AdditiveGP):
    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(2.0 * x)


def test_bins_are_not_chosen_for_other_inputs_than_those_of_the_rows() -> None:
    assert method_for(30_000, kind=_Rescaled) == "rows"
    with pytest.raises(NotImplementedError, match=r"_Rescaled\.forward gives its predictor other inputs than x"):
        model = _Rescaled(make_model().predictor).double()
        fit(model, GaussianLikelihood().double(), (X, Y), method="bins")
