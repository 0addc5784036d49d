"""Concurvity against dense projections, and what its values say of data whose dependence is known."""

from __future__ import annotations

import math

import gpytorch
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.variational import CholeskyVariationalDistribution, IndependentMultitaskVariationalStrategy
from torch import Tensor

from gpytorch_gam import AdditiveGP, AdditivePredictor, AdditiveVariationalStrategy, ComponentGroup
from gpytorch_gam.components import regular_grid
from gpytorch_gam.diagnostics.concurvity_of_components import Concurvity, concurvity
from gpytorch_gam.kernels import ANOVAKernel, Uniform
from gpytorch_gam.mlls import CollapsedELBO
from gpytorch_gam.terms import constant
from gpytorch_gam.variational import FullAdditiveVariationalStrategy, TiedAdditiveVariationalStrategy


def make_predictor(columns: list[list[int]], centred: bool = True, lengthscale: float = 0.5) -> AdditivePredictor:
    base = RBFKernel(batch_shape=torch.Size([len(columns)]))
    base.lengthscale = lengthscale
    kernel = ANOVAKernel(base, Uniform(0.0, 1.0)) if centred else base
    group = ComponentGroup(ScaleKernel(kernel), columns, regular_grid(0.0, 1.0, 10))
    return AdditivePredictor(group, constant())


def fitted(x: Tensor, y: Tensor, centred: bool = True) -> AdditiveGP:
    model = AdditiveGP(make_predictor([[c] for c in range(x.shape[-1])], centred), "coupled").double()
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    likelihood.noise = 0.1
    optimum = CollapsedELBO(likelihood, model).optimum(x, y)
    model.variational_strategy.set_whitened_posterior(optimum.mean, optimum.precision)
    return model.eval()


def dense_measures(x: Tensor, model: AdditiveGP, component: str, others: list[str], tolerance: float) -> list[float]:
    """From singular value decompositions of the n x M features themselves, without a Gram matrix."""
    strategy = model.variational_strategy
    slices = strategy.predictor.inducing_slices
    with torch.no_grad():
        features = strategy.features(x).mT
        mean = strategy.variational_distribution.mean

    def principal(name: str) -> tuple[Tensor, Tensor]:
        left, values, _ = torch.linalg.svd(features[:, slices[name]], full_matrices=False)
        keep = values.square() >= tolerance * values.square().sum()
        return left[:, keep], values[keep].square()

    own, variances = principal(component)
    span = torch.linalg.qr(torch.cat([principal(name)[0] for name in others], dim=-1)).Q
    cosines = torch.linalg.svdvals(span.mT @ own)
    effect = features[:, slices[component]] @ mean[slices[component]]
    return [
        cosines[0].square().item(),
        ((span.mT @ effect).square().sum() / effect.square().sum()).item(),
        (((span.mT @ own).square().sum(0) * variances).sum() / variances.sum()).item(),
    ]


def test_sums_of_components_count_as_one() -> None:
    x = torch.rand(150, 3).double()
    x[:, 2] = 0.7 * x[:, 0] + 0.3 * x[:, 2]
    model = fitted(x, torch.sin(5 * x).sum(-1))
    found = concurvity(model, x, sums={"x0 and x2": ["x2", "x0"]})
    assert found.names == ("x0 and x2", "x1", "constant")
    strategy = model.variational_strategy
    slices = strategy.predictor.inducing_slices
    both = torch.cat([torch.arange(50_000)[slices[name]] for name in ("x0", "x2")])
    with torch.no_grad():
        features, mean = strategy.features(x).mT, strategy.variational_distribution.mean
    values, directions = torch.linalg.svd(features[:, both], full_matrices=False)[1::-1]
    keep = values.square() >= 1e-3 * values.square().sum()
    own, variances = directions[:, keep], values[keep].square()
    left, others, _ = torch.linalg.svd(features[:, slices["x1"]], full_matrices=False)
    basis = left[:, others.square() >= 1e-3 * others.square().sum()]
    effect = features[:, both] @ mean[both]
    shares = (basis.mT @ own).square().sum(0)
    assert found.pairwise_estimate[1, 0].item() == pytest.approx(
        (shares @ variances / variances.sum()).item(), abs=1e-7
    )
    observed = (basis.mT @ effect).square().sum() / effect.square().sum()
    assert found.pairwise_observed[1, 0].item() == pytest.approx(observed.item(), abs=1e-7)
    apart = concurvity(model, x)
    assert apart.pairwise_estimate[0, 2] > 0.5 > found.estimate[0], "what x0 and x2 share is their own"
    with pytest.raises(ValueError, match="has component 'x0' in 'a' and in 'b'"):
        concurvity(model, x, sums={"a": ["x0"], "b": ["x0", "x1"]})


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("tolerance", [1e-2, 1e-3])
@pytest.mark.parametrize("chunk_size", [None, 7])
def test_measures_are_those_of_dense_projections(centred: bool, tolerance: float, chunk_size: int | None) -> None:
    x = torch.rand(150, 3).double()
    x[:, 1] = 0.7 * x[:, 0] + 0.3 * x[:, 1]
    model = fitted(x, torch.sin(5 * x).sum(-1), centred)
    found = concurvity(model, x, chunk_size, tolerance)
    assert found.names == ("x0", "x1", "x2", "constant")
    for index, name in enumerate(found.names):
        others = [other for other in found.names if other != name]
        expected = dense_measures(x, model, name, others, tolerance)
        actual = [found.worst[index], found.observed[index], found.estimate[index]]
        # The Gram matrix of features whose directions differ by a factor of 1 / tolerance in variance.
        assert [value.item() for value in actual] == pytest.approx(expected, abs=1e-7)
        for other in others:
            row = found.names.index(other)
            expected = dense_measures(x, model, name, [other], tolerance)
            actual = [found.pairwise_worst, found.pairwise_observed, found.pairwise_estimate]
            assert [matrix[row, index].item() for matrix in actual] == pytest.approx(expected, abs=1e-7)
    for matrix in (found.pairwise_worst, found.pairwise_observed, found.pairwise_estimate):
        assert (matrix.diagonal() == 1).all()
        assert ((matrix >= 0) & (matrix <= 1)).all()


def test_nearly_equal_columns_have_it_and_independent_ones_do_not() -> None:
    x = torch.rand(2000, 3).double()
    x[:, 1] = (x[:, 0] + 0.01 * torch.randn(2000).double()).clamp(0.0, 1.0)
    found = concurvity(fitted(x, torch.sin(5 * x).sum(-1)), x)
    for values in (found.worst, found.observed, found.estimate):
        assert (values[:2] > 0.9).all() and values[2] < 0.1
    assert found.pairwise_estimate[0, 1] > 0.9 and found.pairwise_estimate[0, 2] < 0.05
    assert found.pairwise_worst[1, 0] > 0.9 and found.pairwise_worst[2, 0] < 0.05


def test_kernels_that_contain_constants_share_the_constant() -> None:
    x = torch.rand(1000, 3).double()
    y = torch.sin(5 * x).sum(-1)
    plain, centred = (concurvity(fitted(x, y, is_centred), x) for is_centred in (False, True))
    constant_index = plain.names.index("constant")
    assert (plain.worst > 0.99).all() and (centred.worst < 0.1).all()
    assert (plain.pairwise_worst[constant_index, :3] > 0.99).all()
    assert (centred.pairwise_worst[constant_index, :3] < 0.05).all()


def test_mgcv_says_the_same() -> None:
    """
    concurvity(gam(y ~ s(x0) + s(x1) + s(x2) + s(x3), method = "REML")) of mgcv 1.8-41 on these data gives worst .88
    .88 .98 .98, observed .76 .82 .97 .97, estimate .82 .78 .95 .95; its bases are others, and centred over the data.
    """
    torch.manual_seed(0)
    x = torch.rand(500, 4).double()
    x[:, 1] = 0.7 * x[:, 0] + 0.3 * x[:, 1]
    x[:, 3] = (x[:, 2] + 0.05 * torch.randn(500).double()).clamp(0, 1)
    mean = torch.sin(6 * x[:, 0]) + x[:, 1] ** 2 + torch.cos(4 * x[:, 2]) + 0.5 * x[:, 3]
    found = concurvity(fitted(x, mean + 0.3 * torch.randn(500).double()), x)
    assert found.worst[:4].tolist() == pytest.approx([0.88, 0.88, 0.98, 0.98], abs=0.03)
    assert found.observed[:4].tolist() == pytest.approx([0.76, 0.82, 0.97, 0.97], abs=0.1)
    assert found.estimate[:4].tolist() == pytest.approx([0.82, 0.78, 0.95, 0.95], abs=0.06)
    pairs = found.pairwise_worst
    assert [pairs[0, 1].item(), pairs[2, 3].item()] == pytest.approx([0.87, 0.98], abs=0.03)
    assert pairs[:2, 2:4].max() < 0.1


def test_two_columns_that_are_equal_have_exactly_one() -> None:
    x = torch.rand(60, 1).double().repeat(1, 2)
    found = concurvity(fitted(x, torch.sin(5 * x).sum(-1)), x)
    for values in (found.worst, found.estimate):
        torch.testing.assert_close(values[:2], torch.ones(2).double(), rtol=0, atol=1e-9)
    assert (found.observed[:2] > 0.999).all()  # a part of the means lies in directions that do not count


def test_columns_that_differ_by_too_little_count_as_one() -> None:
    x = torch.rand(60, 2).double()
    y = torch.sin(5 * x).sum(-1)
    # The first two columns differ by the third, far less than what counts.
    nearly = torch.stack([x[:, 0], x[:, 0] + 1e-6 * x[:, 1], x[:, 1]], dim=-1)
    alone, twice = concurvity(fitted(x, y), x), concurvity(fitted(nearly, y), nearly)
    torch.testing.assert_close(twice.worst[2], alone.worst[1], rtol=0, atol=1e-4)
    torch.testing.assert_close(twice.estimate[2], alone.estimate[1], rtol=0, atol=1e-4)


@pytest.mark.parametrize("family", ["block_low_rank", "low_rank", "mean_field", "delta"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_family_and_dtype(family: str, dtype: torch.dtype) -> None:
    model = AdditiveGP(make_predictor([[0], [1]]), family).to(dtype)
    for parameter in model.variational_strategy._variational_distribution.parameters():
        parameter.data.normal_()
    model.variational_strategy._mark_initialized()
    x = torch.rand(200, 2, dtype=dtype)
    found = concurvity(model, x)
    expected = concurvity(model.double(), x.double())
    for name in ("worst", "observed", "estimate", "pairwise_worst", "pairwise_observed", "pairwise_estimate"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=0, atol=1e-3)


def test_predictors_do_not_explain_each_other() -> None:
    groups = [
        ComponentGroup(RBFKernel(batch_shape=torch.Size([2])), [[0], [0]], regular_grid(0.0, 1.0, 6), names=names)
        for names in (["a", "b"], ["c", "d"])
    ]
    groups[1].predictor_index = 1
    single = ComponentGroup(RBFKernel(), [[0]], regular_grid(0.0, 1.0, 6), predictor=2, names=["e"])
    model = AdditiveGP(AdditivePredictor(*groups, single), rank=2).double()
    model.variational_strategy._variational_distribution.variational_mean.data.zero_()
    model.variational_strategy._mark_initialized()
    found = concurvity(model, torch.rand(50, 1).double())
    same = torch.block_diag(torch.ones(2, 2), torch.ones(2, 2), torch.ones(1, 1)).double()
    torch.testing.assert_close(found.pairwise_worst, same, rtol=0, atol=1e-9)
    torch.testing.assert_close(found.worst, torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0]).double(), rtol=0, atol=1e-9)
    assert found.observed.tolist() == [0.0] * 5  # the posterior means are zero


def test_components_that_are_zero_at_all_rows_have_none() -> None:
    group = ComponentGroup(RBFKernel(), [[0], [0]], regular_grid(0.0, 1.0, 6), by=[None, 1])
    model = AdditiveGP(AdditivePredictor(group, constant()), rank=2).double()
    x = torch.rand(30, 2).double()
    x[:, 1] = 0.0
    found = concurvity(model, x)
    assert found.worst[1] == 0 and found.estimate[1] == 0 and found.worst[0] > 0.9
    assert all(getattr(found, name).isfinite().all() for name in ("worst", "observed", "estimate", "pairwise_worst"))


def test_one_row_and_a_column_that_does_not_vary() -> None:
    model = AdditiveGP(make_predictor([[0], [1]], centred=False), rank=2).double()
    for x in (torch.rand(1, 2).double(), torch.full((40, 2), 0.3).double()):
        found = concurvity(model, x)  # all that a component can be is a constant
        torch.testing.assert_close(found.worst, torch.ones(3).double(), rtol=0, atol=1e-9)
        torch.testing.assert_close(found.estimate, torch.ones(3).double(), rtol=0, atol=1e-9)


def test_a_table_names_the_closest_component() -> None:
    x = torch.rand(300, 2).double()
    found = concurvity(fitted(torch.cat([x, x[:, :1]], dim=-1), x.sum(-1)), torch.cat([x, x[:, :1]], dim=-1))
    lines = str(found).splitlines()
    assert len(lines) == 5 and lines[0].split()[:4] == ["component", "worst", "observed", "estimate"]
    assert lines[1].startswith("x0 ") and "x2 (1.00)" in lines[1]
    alone = AdditiveGP(AdditivePredictor(constant()), "mean_field").double()
    assert str(concurvity(alone, x)).splitlines()[1].split() == ["constant", "0.00", "0.00", "0.00", "-"]
    with pytest.raises(AttributeError):
        found.worst = found.estimate
    assert isinstance(found, Concurvity)


def test_posteriors_tied_to_the_data() -> None:
    x = torch.rand(20, 2).double()

    class Model(gpytorch.models.ApproximateGP):
        def __init__(self, strategy: type) -> None:
            super().__init__(strategy(self, make_predictor([[0], [1]]).double(), x))

    found = concurvity(Model(TiedAdditiveVariationalStrategy).double(), x)
    assert found.worst.isfinite().all() and (found.worst > 0).all()
    with pytest.raises(NotImplementedError, match="has no inducing variables"):
        concurvity(Model(FullAdditiveVariationalStrategy).double(), x)


def test_errors_name_what_is_wrong() -> None:
    model, x = AdditiveGP(make_predictor([[0], [1]]), rank=2).double(), torch.rand(5, 2).double()
    with pytest.raises(TypeError, match=r"model must be an ApproximateGP .* got GaussianLikelihood: is the model"):
        concurvity(gpytorch.likelihoods.GaussianLikelihood(), x)
    with pytest.raises(ValueError, match=r"x must be rows \(n, D\) with n >= 1, got shape \(0, 2\)"):
        concurvity(model, x[:0])
    with pytest.raises(ValueError, match=r"x must be rows"):
        concurvity(model, x.expand(2, 5, 2))
    with pytest.raises(TypeError, match=r"x must be a torch.Tensor, got list"):
        concurvity(model, [1.0])
    with pytest.raises(ValueError, match=r"x has dtype torch\.float32"):
        concurvity(model, x.float())
    with pytest.raises(ValueError, match="x has NaN"):
        concurvity(model, torch.cat([x, torch.full((1, 2), math.nan).double()]))
    with pytest.raises(TypeError, match=r"chunk_size must be an integer, got 2\.5"):
        concurvity(model, x, chunk_size=2.5)
    with pytest.raises(ValueError, match="chunk_size must be at least 1, got 0"):
        concurvity(model, x, chunk_size=0)
    for tolerance in (0.0, 1.0, math.nan):
        with pytest.raises(ValueError, match=r"tolerance must lie in \[1e-06, 1\)"):
            concurvity(model, x, tolerance=tolerance)
    batch = AdditiveGP(make_predictor([[0], [1]]), rank=2, batch_shape=torch.Size([3])).double()
    with pytest.raises(NotImplementedError, match=r"model has batch shape \(3,\)"):
        concurvity(batch, x)


def test_the_wrappers_of_several_tasks_are_refused() -> None:
    class Tasks(gpytorch.models.ApproximateGP):
        def __init__(self) -> None:
            predictor = make_predictor([[0]])
            q = CholeskyVariationalDistribution(predictor.num_inducing_total, batch_shape=torch.Size([2]))
            own = AdditiveVariationalStrategy(self, predictor, q)
            super().__init__(IndependentMultitaskVariationalStrategy(own, num_tasks=2))

    with pytest.raises(TypeError, match="got IndependentMultitaskVariationalStrategy"):
        concurvity(Tasks(), torch.rand(4, 1))
