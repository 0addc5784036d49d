"""Shares of variance: the Ishigami function's Sobol indices, and dense moments."""

from __future__ import annotations

import math
from dataclasses import replace

import gpytorch
import numpy as np
import pytest
import torch
from gpytorch.constraints import Interval
from gpytorch.kernels import RBFKernel, ScaleKernel
from torch import Tensor

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup, fit
from gpytorch_gam.components import regular_grid
from gpytorch_gam.diagnostics import ModelMixture
from gpytorch_gam.diagnostics._product_rows import Column, _nodes_of, product_rows
from gpytorch_gam.diagnostics.variance_decomposition import SobolIndices, sobol_indices
from gpytorch_gam.kernels import ANOVAKernel, Uniform
from gpytorch_gam.mlls import CollapsedELBO
from gpytorch_gam.terms import constant, smooth, tensor
from gpytorch_gam.training import Epoch
from gpytorch_gam.warnings import ConvergenceWarning

# Ishigami and Homma (1990) with a = 7, b = .1: variances of the parts of sin x0 + a sin^2 x1 + b x2^4 sin x0.
A, B = 7.0, 0.1
PARTS = {
    "x0": 0.5 * (1 + B * math.pi**4 / 5) ** 2,
    "x1": A**2 / 8,
    "x2": 0.0,
    "x0:x1": 0.0,
    "x0:x2": B**2 * math.pi**8 * 8 / 225,
    "x1:x2": 0.0,
}
INDICES = {name: variance / sum(PARTS.values()) for name, variance in PARTS.items()}


def ishigami(x: Tensor) -> Tensor:
    return torch.sin(x[:, 0]) * (1 + B * x[:, 2] ** 4) + A * torch.sin(x[:, 1]) ** 2


def anova(size: int, column: int | None = None) -> ANOVAKernel:
    base = RBFKernel(batch_shape=torch.Size([size]), lengthscale_constraint=Interval(0.3, 30.0))
    base.lengthscale = 1.5
    return ANOVAKernel(base, Uniform(-math.pi, math.pi), active_dims=None if column is None else [column])


def make_ishigami_predictor() -> AdditivePredictor:
    size = torch.Size([3])
    mains = ScaleKernel(anova(3), batch_shape=size)
    pairs = ScaleKernel(anova(3, 0) * anova(3, 1), batch_shape=size)
    corner = [math.pi, math.pi]
    return AdditivePredictor(
        ComponentGroup(mains, [[0], [1], [2]], regular_grid(-math.pi, math.pi, 12)),
        ComponentGroup(pairs, [[0, 1], [0, 2], [1, 2]], regular_grid([-math.pi, -math.pi], corner, 7)),
        constant(10.0),
    )


def maximise(objective: CollapsedELBO, parameters: list[Tensor], x: Tensor, y: Tensor, iterations: int) -> None:
    optimizer = torch.optim.LBFGS(parameters, max_iter=iterations, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = -objective(x, y)
        loss.backward()
        return loss

    optimizer.step(closure)


def uniform_rows(count: int) -> Tensor:
    return math.pi * (2 * torch.quasirandom.SobolEngine(3).draw(count).double() - 1)


@pytest.fixture(scope="module")
def fitted() -> AdditiveGP:
    torch.manual_seed(0)
    x = math.pi * (2 * torch.rand(1000, 3).double() - 1)
    y = ishigami(x) + 0.2 * torch.randn(1000).double()
    model = AdditiveGP(make_ishigami_predictor(), "coupled").double()
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    objective = CollapsedELBO(likelihood, model)
    parameters = [*model.hyperparameters(), *likelihood.parameters()]
    maximise(objective, parameters, x[:400], y[:400], iterations=30)
    maximise(objective, parameters, x, y, iterations=12)
    optimum = objective.optimum(x, y)
    model.variational_strategy.set_whitened_posterior(optimum.mean, optimum.precision)
    return model.eval()


def test_indices_of_the_ishigami_function(fitted: AdditiveGP) -> None:
    found = sobol_indices(fitted, uniform_rows(1024))
    assert found.names == (*INDICES, "constant")
    for index, (name, truth) in enumerate(INDICES.items()):
        assert found.share[index].item() == pytest.approx(truth, abs=0.03), name
        assert found.covariance_share[index].item() == pytest.approx(truth, abs=0.03), name
        # Quasi-random rows leave about .001 to the moments over the inputs.
        assert found.lower[index] - 0.005 < truth < found.upper[index] + 0.005, name
        assert found.upper[index] - found.lower[index] < 0.03, name
    assert found.share[-1] == 0 and found.upper[-1] == 0  # the constant
    assert found.share.sum().item() == pytest.approx(1.0, abs=0.01)
    assert found.covariance_share.sum().item() == pytest.approx(1.0, abs=1e-10)
    assert "x0:x2" in str(found) and len(str(found).splitlines()) == 18


def test_indices_of_the_columns_of_the_ishigami_function(fitted: AdditiveGP) -> None:
    """First-order and total indices in closed form: .314, .442, 0 and .558, .442, .244."""
    found = sobol_indices(fitted, uniform_rows(1024))
    interaction = INDICES["x0:x2"]
    assert found.columns == (0, 1, 2) and found.converged is None
    for column, total in enumerate((INDICES["x0"] + interaction, INDICES["x1"], interaction)):
        first = INDICES[f"x{column}"]
        assert found.first_order[column].item() == pytest.approx(first, abs=0.01)
        assert found.first_order_lower[column] - 0.005 < first < found.first_order_upper[column] + 0.005
        assert found.total[column].item() == pytest.approx(total, abs=0.01)
        assert found.total_lower[column] - 0.005 < total < found.total_upper[column] + 0.005
        assert found.total_upper[column] - found.total_lower[column] < 0.03
    # The total index is one minus the closed index of all other columns.
    without = found.share[[1, 2, 5]].sum()
    assert found.total[0].item() == pytest.approx(1 - without.item(), abs=0.01)


def test_the_pure_interaction_integrates_to_zero_in_each_argument(fitted: AdditiveGP) -> None:
    nodes, weights = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(40))
    nodes = math.pi * nodes
    for integrated, kept in ((0, 2), (2, 0)):
        x = torch.zeros(40, 40, 3).double()  # one batch a value of the argument that is kept
        x[..., integrated], x[..., kept] = nodes, nodes.unsqueeze(-1)
        with torch.no_grad():
            mean = fitted.components(x.reshape(-1, 3), "x0:x2").mean.reshape(40, 40)
        assert (mean @ weights / 2).abs().max() < 1e-6
        assert mean.abs().max() > 5.0


# -------------------- small models, whose moments are dense


def make_model(batch: tuple[int, ...] = (), family: str = "block_low_rank") -> AdditiveGP:
    size = torch.Size([*batch, 2])
    kernel = ScaleKernel(RBFKernel(batch_shape=size), batch_shape=size)
    kernel.base_kernel.lengthscale = 0.4
    group = ComponentGroup(kernel, [[0], [1]], regular_grid(0.0, 1.0, 6))
    predictor = AdditivePredictor(group, constant(batch_shape=batch), mean=gpytorch.means.LinearMean(2))
    model = AdditiveGP(predictor, family, 3 if "low_rank" in family else None).double()
    for parameter in model.parameters():
        parameter.data.add_(0.3 * torch.randn_like(parameter))
    model.variational_strategy._mark_initialized()
    return model.eval()


def test_shares_of_a_point_posterior_are_those_of_its_mean() -> None:
    """With as many inducing points as places nothing is left to chance but the jitter."""
    model, x = make_model(family="delta"), torch.rand(30, 2).double()
    group = model.predictor.groups[0]
    group.inducing_points = x.mT.unsqueeze(-1)[:, :6].clone()
    rows = x[:6]
    with torch.no_grad():
        parts = model.components(rows).mean
        total = parts.sum(0) + model.predictor.prior_means(rows)[0]
    found = sobol_indices(model, rows, num_samples=50)
    covariance = torch.cat([parts, total.unsqueeze(0)]).cov()
    torch.testing.assert_close(found.share, covariance.diagonal()[:3] / covariance[3, 3], rtol=0.02, atol=1e-3)
    torch.testing.assert_close(found.covariance_share, covariance[:3, 3] / covariance[3, 3], rtol=0.02, atol=1e-3)


def test_covariance_shares_sum_to_one_and_shares_do_not_with_correlated_inputs() -> None:
    model, first = make_model(), torch.rand(40, 1).double()
    model.predictor.means[0].weights.data.zero_()
    found = sobol_indices(model, torch.cat([first, first], dim=-1), num_samples=20)
    assert found.covariance_share.sum().item() == pytest.approx(1.0, abs=1e-10)
    assert abs(found.share.sum().item() - 1.0) > 0.05


def test_names_choose_what_is_reported_and_the_probability_how_wide() -> None:
    model, x = make_model(), torch.rand(20, 2).double()
    torch.manual_seed(1)
    everything = sobol_indices(model, x)
    torch.manual_seed(1)
    some = sobol_indices(model, x, names=["constant", "x1"], probability=0.5)
    assert some.names == ("constant", "x1") and some.probability == 0.5
    torch.testing.assert_close(some.share, everything.share[[2, 1]])
    assert some.upper[1] - some.lower[1] < everything.upper[1] - everything.lower[1]
    assert (everything.lower <= everything.share).all() and (everything.share <= everything.upper).all()
    assert sobol_indices(model, x, 10, names="x0").names == ("x0",)


def test_columns_gather_the_components_that_read_them() -> None:
    """Two components of one column count together; a multiplier is a column like others."""
    x = torch.rand(25, 3).double()
    size = torch.Size([2])
    groups = [
        ComponentGroup(ScaleKernel(RBFKernel(batch_shape=size), batch_shape=size), [[0], [2]], regular_grid(0.0, 1, 5)),
        ComponentGroup(ScaleKernel(RBFKernel()), [[0]], regular_grid(0.0, 1, 4), names=["again"]),
        ComponentGroup(ScaleKernel(RBFKernel()), [[0]], regular_grid(0.0, 1, 4), by=2),
        constant(),
    ]
    model = AdditiveGP(AdditivePredictor(*groups), "mean_field").double()
    for parameter in model.parameters():
        parameter.data.add_(0.3 * torch.randn_like(parameter))
    model.variational_strategy._mark_initialized()
    model.eval()
    torch.manual_seed(2)
    draws = model.components(x).sample(torch.Size([20])).components  # x0, x2, again, x0*x2, constant
    variance = draws.sum(1).var(-1)
    torch.manual_seed(2)
    found = sobol_indices(model, x, num_samples=20, independent=False)
    assert found.columns == (0, 2)
    sums = {"first_order": ([0, 2], [1]), "total": ([0, 2, 3], [1, 3])}
    for kind, members in sums.items():
        shares = torch.stack([draws[:, each].sum(1).var(-1) / variance for each in members], dim=-1)
        torch.testing.assert_close(getattr(found, kind), shares.mean(0))
        torch.testing.assert_close(getattr(found, f"{kind}_lower"), shares.quantile(0.025, dim=0))
        torch.testing.assert_close(getattr(found, f"{kind}_upper"), shares.quantile(0.975, dim=0))


def test_tables_name_columns_by_their_terms_and_have_as_many_decimals_as_intervals_need() -> None:
    x = torch.rand(25, 3).double()
    groups = [smooth([0, 1], x, names=["wind", "rain"]), tensor((0, 1), x, num_inducing=3), smooth(2, x), constant()]
    model = AdditiveGP(AdditivePredictor(*groups), "mean_field").double().eval()
    found = sobol_indices(model, x, num_samples=20)
    assert found.names == ("wind", "rain", "x0:x1", "x2", "constant") and found.column_names == ("wind", "rain", "x2")
    lines = str(found).splitlines()
    assert [line.split()[0] for line in lines[1:6]] == ["wind", "rain", "wind:rain", "x2", "constant"]
    assert [line.split()[0] for line in lines[8:11]] == ["wind", "rain", "x2"]
    assert f"{found.share[0]:.4f}  " in lines[1]
    assert "-0.0000" not in str(replace(found, covariance_share=torch.full((5,), -1e-9)))
    narrow = replace(found, upper=found.lower + 3e-5)
    assert f"{found.share[0]:.6f}  " in str(narrow).splitlines()[1]
    given = sobol_indices(model, x, num_samples=20, column_names=["a", "b", "c"])
    assert [line.split()[0] for line in str(given).splitlines()[1:5]] == ["wind", "rain", "a:b", "c"]
    with pytest.raises(ValueError, match="column_names has 2 names, but components read column 2"):
        sobol_indices(model, x, column_names=["a", "b"])


def test_columns_of_one_name_count_as_one() -> None:
    model, x = make_model(), torch.rand(20, 2).double()
    torch.manual_seed(1)
    found = sobol_indices(model, x, column_names=["a", "a"])
    assert found.columns == (0,) and found.column_names == ("a",)
    torch.testing.assert_close(found.first_order, found.total)
    torch.manual_seed(1)
    components = model.components(x).sample(torch.Size([200]))
    total = components.total + model.predictor.prior_means(x)[0]
    expected = components.components[:, :2].sum(1).var(-1) / total.var(-1)
    torch.testing.assert_close(found.total, expected.mean(0, keepdim=True))


def test_a_line_says_where_indices_are_no_shares() -> None:
    model, first = make_model(), torch.rand(40, 1).double()
    model.predictor.means[0].weights.data.zero_()
    found = sobol_indices(model, torch.cat([first, first], dim=-1), num_samples=20)
    note = str(found).splitlines()[-1]
    assert note.startswith("x0 and x1 depend on each other in these rows (correlation 1.00), ")
    assert not found.independent and "these are no Sobol indices" in note
    forced = sobol_indices(model, torch.cat([first, first], dim=-1), num_samples=20, independent=True)
    assert forced.independent and forced.first_order.sum().item() == pytest.approx(1.0, abs=1e-9)
    assert str(forced).endswith("as if each column took its values by itself")
    found = replace(found, caveat="")
    below = replace(found, first_order=torch.tensor([0.5, 0.5]), total=torch.tensor([0.6, 0.4]))
    assert "total indices are below first-order ones of x1: these" in str(below)
    fine = replace(found, first_order=torch.tensor([0.5, 0.4]), total=torch.tensor([0.6, 0.5]))
    assert "no Sobol" not in str(fine)


def test_dependence_without_correlation_is_seen_and_independent_columns_are_not_accused() -> None:
    model = make_model()
    model.predictor.means[0].weights.data.zero_()
    first = torch.linspace(-1, 1, 200).double().unsqueeze(-1)
    square = sobol_indices(model, torch.cat([first, first.square()], dim=-1), num_samples=5)
    assert square.caveat.startswith("x0 and x1 depend on each other")
    accused = [sobol_indices(model, torch.rand(50, 2).double(), num_samples=2).caveat for _ in range(20)]
    assert accused == [""] * 20


def test_independent_columns_have_the_indices_of_quadrature_whatever_the_kernels() -> None:
    """Kernels without a measure: means of components of two columns belong to the effects of each."""
    points = regular_grid(0.0, 1.0, 9)
    pairs = regular_grid([0.0, 0.0], [1.0, 1.0], 9)
    kernels = [ScaleKernel(RBFKernel()) for _ in range(3)]
    for kernel in kernels:
        kernel.base_kernel.lengthscale = 0.5
    groups = [
        ComponentGroup(kernels[0], [[0]], points),
        ComponentGroup(kernels[1], [[0, 1]], pairs),
        ComponentGroup(kernels[2], [[1]], points, by=2),
    ]
    model = AdditiveGP(AdditivePredictor(*groups), "delta").double().eval()
    for parameter in model.variational_parameters():
        parameter.data.copy_(torch.randn_like(parameter))
    model.variational_strategy._mark_initialized()
    x = torch.rand(12, 3).double() ** 2  # a distribution that no kernel knows
    grid = torch.cartesian_prod(*x.unbind(-1))
    with torch.no_grad():
        values = model.components(grid).mean.sum(0).reshape(12, 12, 12)
    variance = values.var(correction=0)
    found = sobol_indices(model, x, num_samples=200, independent=True, seed=0)
    for column in range(3):
        others = [each for each in range(3) if each != column]
        first = values.mean(others).var(correction=0) / variance
        total = values.var(column, correction=0).mean() / variance
        assert found.first_order[column].item() == pytest.approx(first.item(), abs=2e-3)
        assert found.total[column].item() == pytest.approx(total.item(), abs=2e-3)
    assert found.interactions == ("x0:x1", "x1:x2")
    assert (found.first_order.sum() + found.interaction.sum()).item() == pytest.approx(1.0, abs=1e-9)
    assert found.covariance_share.sum().item() == pytest.approx(1.0, abs=1e-9)


def test_nodes_of_numbers_have_the_moments_of_their_values() -> None:
    values = torch.randn(300, 1).double().exp()
    nodes, weights = _nodes_of(values, True, 7)
    for order in range(14):
        expected = values.pow(order).mean().item()
        assert (nodes.flatten().pow(order) @ weights).item() == pytest.approx(expected, rel=1e-9)
    alike = torch.tensor([0.0, 1.0, 3.0]).double().repeat(50) + 1e-15 * torch.randn(150).double()
    nodes, weights = _nodes_of(alike.unsqueeze(-1), True, 7)
    assert (nodes.flatten().square() @ weights).item() == pytest.approx(10 / 3) and weights.min() >= 0


def test_columns_that_components_read_together_take_all_combinations() -> None:
    columns = [Column((place,), True) for place in range(5)]
    together = {frozenset(each) for each in [(0, 1, 2), (1, 3), (2, 3, 4), (0, 4)]}
    rows = product_rows(torch.rand(40, 5).double(), columns, together)
    size = rows.weights.shape[1]
    for each in together:
        own = rows.nodes[sorted(each)]
        assert len(np.unique(own, axis=1).T) == size ** len(each)


def test_names_that_the_user_gave_are_kept() -> None:
    """Names that look like the default ones of other columns, as those of columns that count from one do."""
    x = torch.rand(25, 2).double()
    model = AdditiveGP(AdditivePredictor(smooth([0, 1], x, names=["x1", "x2"]), tensor((0, 1), x, num_inducing=3)))
    found = sobol_indices(model.double(), x, num_samples=5, column_names=["x1", "x2"])
    assert found.shown_names == ("x1", "x2", "x1:x2") and found.column_names == ("x1", "x2")


def test_what_has_no_decomposition_is_said() -> None:
    model, x = make_model(), torch.rand(20, 2).double()
    found = sobol_indices(model, x, num_samples=5)
    assert not found.independent and str(found).splitlines()[-1].startswith("the mean module is no constant")
    with pytest.raises(ValueError, match="independent=True is not possible, as the mean module is no constant"):
        sobol_indices(model, x, independent=True)


def test_the_uncertainty_of_hyperparameters_is_that_of_the_models_in_turn() -> None:
    """A mixture of point posteriors, means beside the components included: indices take the values of each."""
    models, x = [make_model(family="delta") for _ in range(2)], torch.rand(20, 2).double()
    likelihoods = [gpytorch.likelihoods.GaussianLikelihood() for _ in models]
    mixture = ModelMixture(models, likelihoods, torch.tensor([0.25, 0.75]).double())
    one, other = (sobol_indices(model, x, num_samples=200) for model in models)
    found = sobol_indices(models[0], x, num_samples=4000, hyperparameters=mixture)
    for kind in ("share", "covariance_share", "first_order", "total"):
        expected = 0.25 * getattr(one, kind) + 0.75 * getattr(other, kind)
        spread = (getattr(one, kind) - getattr(other, kind)).abs()
        assert ((getattr(found, kind) - expected).abs() < 0.03 * spread + 0.002).all()
    assert found.total_upper[0] >= max(one.total[0], other.total[0]) - 0.01
    assert found.total_lower[0] <= min(one.total[0], other.total[0]) + 0.01
    with pytest.raises(TypeError, match="hyperparameters must be a HyperparameterUncertainty"):
        sobol_indices(models[0], x, hyperparameters="integrated")


def test_a_fit_on_its_way_is_marked() -> None:
    torch.manual_seed(0)
    x = torch.rand(60, 2)
    y = torch.sin(6 * x[:, 0]) + 0.1 * torch.randn(60)
    model = AdditiveGP(AdditivePredictor(smooth([0, 1], x), constant()))
    likelihood = gpytorch.likelihoods.GaussianLikelihood()

    def interrupt(epoch: Epoch) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(model, likelihood, (x, y), callback=interrupt)
    with pytest.warns(ConvergenceWarning, match="the last fit of this model had not converged") as given:
        found = sobol_indices(model, x, num_samples=5)
    assert given[0].filename == __file__
    assert found.converged is False and str(found).startswith("NOT converged")
    assert fit(model, likelihood, (x, y), warm_start=True).converged
    found = sobol_indices(model, x, num_samples=5)
    assert found.converged is True and str(found).startswith("component")
    model.load_state_dict(model.state_dict())
    assert sobol_indices(model, x, num_samples=5).converged is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_batches_of_models(dtype: torch.dtype) -> None:
    found = sobol_indices(make_model((2,)).to(dtype), torch.rand(9, 2, dtype=dtype), num_samples=15)
    for values in (found.share, found.lower, found.upper, found.covariance_share, found.covariance_upper):
        assert values.shape == (2, 3) and values.isfinite().all()
    for values in (found.first_order, found.first_order_lower, found.total, found.total_upper):
        assert values.shape == (2, 2) and values.isfinite().all()
    assert "share=(2, 3)" in str(found)


def test_each_predictor_has_shares_of_its_own() -> None:
    groups = [
        ComponentGroup(ScaleKernel(RBFKernel()), [[p]], regular_grid(0.0, 1.0, 5), predictor=p, names=[f"f{p}"])
        for p in range(2)
    ]
    model = AdditiveGP(AdditivePredictor(*groups), rank=2).double()
    found = sobol_indices(model, torch.rand(10, 2).double(), num_samples=10)
    torch.testing.assert_close(found.share, torch.ones(2).double())
    torch.testing.assert_close(found.covariance_share, torch.ones(2).double())
    torch.testing.assert_close(found.total, torch.eye(2).double())  # of each predictor, in each column
    torch.testing.assert_close(found.first_order, torch.eye(2).double())
    assert [line.split()[0] for line in str(found).splitlines()[4:]] == ["column", "x0.0", "x1.0", "x0.1", "x1.1"]


def test_a_predictor_that_does_not_vary_gives_zero() -> None:
    model = AdditiveGP(AdditivePredictor(constant()), "mean_field").double()
    found = sobol_indices(model, torch.rand(10, 1).double(), num_samples=5)
    assert isinstance(found, SobolIndices) and found.share.tolist() == [0.0] == found.covariance_share.tolist()
    assert found.columns == () and found.total.shape == (0,) and len(str(found).splitlines()) == 2


def test_many_draws_need_no_matrix_each() -> None:
    """A copy of the factor for each of these draws would take 10 GB."""
    model = make_model()
    found = sobol_indices(model, torch.rand(300, 2).double(), num_samples=5000)
    assert found.share.isfinite().all()


def test_errors_name_what_is_wrong() -> None:
    model, x = make_model(), torch.rand(5, 2).double()
    with pytest.raises(TypeError, match=r"model must be an ApproximateGP .* got GaussianLikelihood: is the model"):
        sobol_indices(gpytorch.likelihoods.GaussianLikelihood(), x)
    with pytest.raises(TypeError, match=r"num_samples must be an integer, got 2\.5"):
        sobol_indices(model, x, num_samples=2.5)
    with pytest.raises(ValueError, match="num_samples must be at least 2, got 1"):
        sobol_indices(model, x, num_samples=1)
    with pytest.raises(ValueError, match=r"probability must lie in \(0, 1\), got 95.0"):
        sobol_indices(model, x, probability=95)
    with pytest.raises(ValueError, match=r"unknown components \['z'\]"):
        sobol_indices(model, x, names="z")
    with pytest.raises(ValueError, match="x has 1 rows"):
        sobol_indices(model, x[:1])
    with pytest.raises(TypeError, match=r"x must be a torch\.Tensor"):
        sobol_indices(model, [1.0])


def test_rows_with_missing_inputs_are_refused() -> None:
    model = AdditiveGP(AdditivePredictor(smooth(0, low=0.0, high=1.0, missing="marginal")), rank=2).eval()
    x = torch.tensor([[0.1], [float("nan")], [0.9]])
    with pytest.raises(ValueError, match="x has NaN in 1 of 3 rows"):
        sobol_indices(model, x)
