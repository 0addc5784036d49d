"""Centred effects against the joint covariance of all rows, transformed densely."""

from __future__ import annotations

import math
from collections.abc import Callable

import gpytorch
import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from torch import Tensor

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup
from gpytorch_gam.components import regular_grid
from gpytorch_gam.effects import ComponentPosterior, _centring
from gpytorch_gam.kernels import ANOVAKernel, Empirical, Measure, Normal, Uniform
from gpytorch_gam.mlls import CollapsedELBO
from gpytorch_gam.models.additive_gp import FAMILIES
from gpytorch_gam.terms import constant, smooth
from gpytorch_gam.variational import FullAdditiveVariationalStrategy, TiedAdditiveVariationalStrategy


def make_predictor(batch: tuple[int, ...] = (), by: list[int | None] | None = None) -> AdditivePredictor:
    size = torch.Size([*batch, 2])
    smooth = ScaleKernel(RBFKernel(batch_shape=size), batch_shape=size)
    smooth.base_kernel.lengthscale = 0.4
    return AdditivePredictor(
        ComponentGroup(smooth, [[0], [1]], regular_grid(0.0, 1.0, 5), by=by),
        ComponentGroup(ScaleKernel(MaternKernel(1.5)), [[0, 1]], regular_grid([0.0, 0.0], [1.0, 1.0], 3)),
        constant(2.0, batch_shape=batch),
        mean=gpytorch.means.ConstantMean(),
    )


def with_random_posterior(model: AdditiveGP) -> AdditiveGP:
    for parameter in model.variational_strategy._variational_distribution.parameters():
        parameter.data.add_(0.5 * torch.randn_like(parameter))
    model.variational_strategy._mark_initialized()
    return model.eval()


def make_model(family: str = "block_low_rank", batch: tuple[int, ...] = (), by: list | None = None) -> AdditiveGP:
    predictor = make_predictor(batch, by)
    return with_random_posterior(AdditiveGP(predictor, family, 3 if "low_rank" in family else None).double())


def equal_weights(count: int) -> Tensor:
    return torch.full((count,), 1 / count, dtype=torch.float64)


def moments(parts: ComponentPosterior) -> tuple[Tensor, Tensor]:
    return parts.mean, parts.full_cross_covariance()


def dense_centred(
    components: Callable[[Tensor], ComponentPosterior], x: Tensor, rows: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean and covariance of [I, -1 w'] f for f at the rows of x and the reference rows together."""
    n = len(x)
    mean, covariance = moments(components(torch.cat([x, rows])))
    transform = torch.cat([torch.eye(n).to(x), -weights.expand(n, -1)], dim=-1)
    return mean @ transform.mT, torch.einsum("ap,cpdq,bq->cadb", transform, covariance, transform)


def assert_moments(parts: ComponentPosterior, mean: Tensor, full: Tensor, tolerance: float = 1e-8) -> None:
    options = {"rtol": tolerance, "atol": tolerance}
    torch.testing.assert_close(parts.mean, mean, **options)
    torch.testing.assert_close(parts.full_cross_covariance(), full, **options)
    own = full.diagonal(dim1=0, dim2=2).movedim(-1, 0)
    torch.testing.assert_close(parts.covariance(), own, **options)
    torch.testing.assert_close(parts.variance, own.diagonal(dim1=-2, dim2=-1), **options)
    torch.testing.assert_close(parts.stddev.square(), parts.variance)
    in_rows = full.diagonal(dim1=1, dim2=3).movedim(-1, 0)
    torch.testing.assert_close(parts.cross_covariance(), in_rows, **options)
    torch.testing.assert_close(parts.total()[0], mean.sum(0), **options)
    torch.testing.assert_close(parts.total()[1], in_rows.sum((-2, -1)), **options)
    lower, upper = parts.confidence_region()
    torch.testing.assert_close(upper - lower, 2 * 1.96 * parts.stddev)


@pytest.mark.parametrize("by", [None, [None, 2]])
@pytest.mark.parametrize("family", FAMILIES)
def test_moments_are_those_of_the_transformed_joint_covariance(family: str, by: list | None) -> None:
    model, x, rows = make_model(family, by=by), torch.rand(7, 3).double(), torch.rand(9, 3).double()
    parts = model.components(x)
    for over, reference in ((rows, rows), (None, x)):
        weights = equal_weights(len(reference))
        expected = dense_centred(model.components, x, reference, weights)
        assert_moments(parts.centred(over), *expected)


@pytest.mark.parametrize("strategy", [FullAdditiveVariationalStrategy, TiedAdditiveVariationalStrategy])
def test_posteriors_tied_to_the_data_have_centred_effects(strategy: type) -> None:
    class Model(gpytorch.models.ApproximateGP):
        def __init__(self) -> None:
            predictor = make_predictor(by=[None, 2]).double()
            super().__init__(strategy(self, predictor, torch.rand(12, 3).double()))

    posterior = Model().double().variational_strategy
    posterior.set_sites(torch.randn(12).double(), torch.rand(12).double() + 1)
    x, rows = torch.rand(5, 3).double(), torch.rand(6, 3).double()
    weights = equal_weights(6)
    centred = posterior.components(x).centred(rows)
    mean, full = dense_centred(posterior.components, x, rows, weights)
    assert_moments(centred, mean, full)
    assert_samples_follow(centred, mean, full)


@pytest.mark.parametrize("measure", [Uniform(0.0, 1.0), Normal(0.4, 0.2), Empirical([0.1, 0.4, 0.9], [1.0, 2.0, 1.0])])
def test_a_measure_is_its_quadrature_nodes(measure: Measure) -> None:
    model, x = make_model(), torch.rand(6, 3).double()
    centred = model.components(x).centred(measure)
    nodes, weights = measure.quadrature(16)
    weights = weights / weights.sum()
    line = nodes.unsqueeze(-1).expand(-1, 3)
    pairs = torch.stack(torch.meshgrid(nodes, nodes, indexing="ij"), -1).reshape(-1, 2)
    grid = torch.cat([pairs, torch.zeros_like(pairs[:, :1])], dim=-1)
    # A Matern kernel of two columns bends at its own place: another number of nodes moves its mean by so much.
    for names, rows, row_weights, tolerance in (
        (["x0", "x1", "constant"], line, weights, 1e-8),
        (["x0:x1"], grid, torch.outer(weights, weights).flatten(), 1e-4),
    ):
        expected = dense_centred(lambda at, of=names: model.components(at, of), x, rows, row_weights)
        assert_moments(centred[names], *expected, tolerance)
        assert_moments(model.components(x, names).centred(measure), *expected, tolerance)


def test_pairs_of_any_columns_have_their_own_grids_under_a_measure() -> None:
    pairs = [[0, 1], [1, 2], [0, 2], [3, 1], [2, 2]]
    kernel = ScaleKernel(RBFKernel(ard_num_dims=2))
    kernel.base_kernel.lengthscale = torch.tensor([0.3, 0.8])
    group = ComponentGroup(kernel, pairs, regular_grid([0.0, 0.0], [1.0, 1.0], 3))
    model, x = with_random_posterior(AdditiveGP(AdditivePredictor(group), rank=3).double()), torch.rand(4, 4).double()
    centred = model.components(x).centred(Uniform(0.0, 1.0))
    nodes, weights = Uniform(0.0, 1.0).quadrature(12)
    for name, columns in zip(group.names, pairs, strict=True):
        if columns == [2, 2]:
            rows, row_weights = nodes.unsqueeze(-1).expand(-1, 4), weights
        else:
            rows = torch.zeros(len(nodes) ** 2, 4).double()
            rows[:, columns] = torch.cartesian_prod(nodes, nodes)
            row_weights = torch.outer(weights, weights).flatten()
        expected = dense_centred(lambda at, of=name: model.components(at, [of]), x, rows, row_weights)
        assert_moments(centred[[name]], *expected)


@pytest.mark.parametrize("measure", [Uniform(-1.0, 2.0), Normal(0.0, 1.0), Empirical.from_data(torch.rand(500), 20)])
def test_anova_components_are_centred_over_their_measure_already(measure: Measure) -> None:
    main, pair = RBFKernel(batch_shape=torch.Size([2])), [RBFKernel(), RBFKernel()]
    main.lengthscale = torch.tensor([0.3, 1.0]).reshape(2, 1, 1)
    product = ANOVAKernel(pair[0], measure, active_dims=[0]) * ANOVAKernel(pair[1], measure, active_dims=[1])
    predictor = AdditivePredictor(
        ComponentGroup(ANOVAKernel(main, measure), [[0], [1]], regular_grid(-1.0, 2.0, 8)),
        ComponentGroup(product, [[1, 0]], regular_grid([-1.0, -1.0], [2.0, 2.0], 4)),
    ).double()
    model, x = with_random_posterior(AdditiveGP(predictor, rank=4).double()), torch.rand(8, 2).double()
    parts = model.components(x)
    assert_moments(parts.centred(measure), *moments(parts), tolerance=1e-6)


def assert_samples_follow(parts: ComponentPosterior, mean: Tensor, full: Tensor, count: int = 20000) -> None:
    draws = parts.sample(torch.Size([count]))
    torch.testing.assert_close(draws.components.sum(-2), draws.total)
    flat, covariance = draws.components.flatten(-2), full.flatten(0, 1).flatten(-2)
    scale = covariance.diagonal().max()
    # Monte-Carlo error of a covariance is about scale * sqrt(2 / 20000) = 1% of the scale; five of those.
    torch.testing.assert_close(flat.mT.cov(), covariance, rtol=0, atol=0.05 * scale.item())
    torch.testing.assert_close(flat.mean(0), mean.flatten(), rtol=0, atol=0.05 * scale.sqrt().item())


@pytest.mark.parametrize("family", FAMILIES)
def test_samples_follow_the_centred_posterior(family: str) -> None:
    model, x, rows = make_model(family, by=[2, None]), torch.rand(3, 3).double(), torch.rand(4, 3).double()
    for over in (rows, None):
        parts = model.components(x).centred(over)
        assert_samples_follow(parts, *moments(parts))
    parts = model.components(x, ["x0:x1", "x1"]).centred(Empirical([0.2, 0.3, 0.9]))
    assert_samples_follow(parts, *moments(parts))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_samples_and_means_are_zero_on_average_over_their_own_rows(dtype: torch.dtype) -> None:
    model, x = make_model().to(dtype), torch.rand(30, 3, dtype=dtype)
    parts = model.components(x).centred()
    tolerance = {"rtol": 0, "atol": 10 * torch.finfo(dtype).eps}
    torch.testing.assert_close(parts.mean.mean(-1), torch.zeros(4, dtype=dtype), **tolerance)
    draws = parts.sample(torch.Size([5])).components
    torch.testing.assert_close(draws.mean(-1), torch.zeros(5, 4, dtype=dtype), **tolerance)
    average_variance = parts.covariance().mean((-2, -1))
    torch.testing.assert_close(average_variance, torch.zeros(4, dtype=dtype), **tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("family", FAMILIES)
def test_constants_vanish_exactly(family: str, dtype: torch.dtype) -> None:
    model, x = make_model(family).to(dtype), torch.rand(50, 3, dtype=dtype)
    everything = model.components(x)
    for base, over in (
        (everything, None),
        (everything, torch.rand(300, 3, dtype=dtype)),
        (everything[["constant", "x0"]], Uniform(0.0, 1.0)),
    ):
        parts = base.centred(over)["constant"]
        assert (parts.mean == 0).all() and (parts.variance == 0).all()
        assert parts.stddev.isfinite().all() and (parts.stddev < 1e-15).all()
        assert (parts.sample(torch.Size([3])).components == 0).all()


def test_float32_agrees_with_float64() -> None:
    model, x, rows = make_model(), torch.rand(20, 3).double(), torch.rand(600, 3).double()
    expected = model.components(x).centred(rows)
    actual = model.float().components(x.float()).centred(rows.float())
    torch.testing.assert_close(actual.mean.double(), expected.mean, rtol=0, atol=1e-4)
    torch.testing.assert_close(actual.variance.double(), expected.variance, rtol=0, atol=1e-4)
    assert (actual.variance >= 0).all()


def test_the_level_that_a_component_shares_with_the_constant_is_not_in_its_band() -> None:
    kernel = ScaleKernel(RBFKernel())
    kernel.base_kernel.lengthscale, kernel.outputscale = 0.3, 4.0
    predictor = AdditivePredictor(ComponentGroup(kernel, [[0]], regular_grid(0.0, 1.0, 12)), constant(4.0))
    model, x = AdditiveGP(predictor.double(), "coupled").double(), torch.rand(300, 1).double()
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    likelihood.noise = 0.01
    optimum = CollapsedELBO(likelihood, model).optimum(x, torch.sin(6 * x[:, 0]) + 3)
    model.variational_strategy.set_whitened_posterior(optimum.mean, optimum.precision)
    parts = model.eval().components(x)
    assert parts["x0"].stddev.min() > 0.5 and parts.centred()["x0"].stddev.max() < 0.1


def test_batches_of_models_and_of_inputs() -> None:
    model = make_model(batch=(2,))
    x, rows = torch.rand(3, 1, 5, 3).double(), torch.rand(6, 3).double()
    for over in (None, rows, torch.rand(2, 6, 3).double()):
        parts = model.components(x).centred(over)
        assert parts.mean.shape == (3, 2, 4, 5)
        assert parts.cross_covariance().shape == (3, 2, 5, 4, 4)
        assert parts.sample(torch.Size([7])).components.shape == (7, 3, 2, 4, 5)
        assert parts.sample(torch.Size([7])).total.shape == (7, 3, 2, 5)
        for outer, own in ((0, 0), (2, 1)):
            reference = x[outer, 0] if over is None else over if over.dim() == 2 else over[own]
            weights = equal_weights(len(reference))

            def one_model(at: Tensor, own: int = own) -> ComponentPosterior:
                return _OfBatch(model.components(at), own)

            mean, full = dense_centred(one_model, x[outer, 0], reference, weights)
            torch.testing.assert_close(parts.mean[outer, own], mean)
            torch.testing.assert_close(parts.full_cross_covariance()[outer, own], full)
            torch.testing.assert_close(
                parts.variance[outer, own], full.diagonal(dim1=0, dim2=2).diagonal(dim1=0, dim2=1)
            )


class _OfBatch:
    """The moments of one model of a batch."""

    def __init__(self, parts: ComponentPosterior, index: int) -> None:
        self.mean, self._full = parts.mean[index], parts.full_cross_covariance()[index]

    def full_cross_covariance(self) -> Tensor:
        return self._full


def test_subsets_keep_their_joint_distribution() -> None:
    model, x = make_model("coupled"), torch.rand(6, 3).double()
    everything, names = model.components(x).centred(), ["constant", "x1", "x0:x1"]
    indices = [everything.names.index(name) for name in names]
    for some in (everything[names], model.components(x, names).centred(), model.components(x)[names].centred()):
        assert some.names == tuple(names) and len(some) == 3
        torch.testing.assert_close(some.mean, everything.mean[indices])
        torch.testing.assert_close(some.variance, everything.variance[indices])
        torch.testing.assert_close(
            some.full_cross_covariance(), everything.full_cross_covariance()[indices][:, :, indices]
        )
    assert some["x1"].sample(torch.Size([2])).components.shape == (2, 6)
    with pytest.raises(ValueError, match="unknown components"):
        some["x0"]


def test_centring_again_replaces_the_reference() -> None:
    model, x, rows = make_model(), torch.rand(6, 3).double(), torch.rand(5, 3).double()
    parts = model.components(x)
    torch.testing.assert_close(parts.centred(rows).centred().variance, parts.centred().variance, rtol=0, atol=0)
    torch.testing.assert_close(parts.centred()["x1"].centred(rows).mean, parts["x1"].centred(rows).mean)


def test_several_predictors() -> None:
    groups = [
        ComponentGroup(ScaleKernel(RBFKernel()), [[0]], regular_grid(0.0, 1.0, 5), predictor=p, names=[f"f{p}"])
        for p in range(2)
    ]
    model = with_random_posterior(AdditiveGP(AdditivePredictor(*groups), rank=4).double())
    x = torch.rand(6, 1).double()
    centred = model.components(x).centred()
    mean, variance = centred.total()
    torch.testing.assert_close(mean, centred.mean)
    torch.testing.assert_close(variance, centred.variance)
    assert centred.sample(torch.Size([3])).total.shape == (3, 2, 6)


def test_gradients_reach_every_parameter() -> None:
    model, x = make_model(), torch.rand(5, 3).double()
    parts = model.components(x).centred(torch.rand(7, 3).double())
    (parts.stddev[:3].sum() + parts.mean.sum() + parts.rsample().total.sum()).backward()
    for name, parameter in model.named_parameters():
        if "constant" in name or "mean" in name:  # what is constant is taken away
            continue
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name


def test_averages_in_chunks_are_those_in_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, rows = make_model(by=[None, 2]), torch.rand(11, 3).double(), torch.rand(13, 3).double()
    expected = [model.components(x).centred(over) for over in (rows, None)]
    monkeypatch.setattr(_centring, "_ROWS_AT_A_TIME", 3)
    monkeypatch.setattr(_centring, "_KERNEL_VALUES", 100)
    monkeypatch.setattr(_centring, "_LEAST_ROWS", 2)
    for over, whole in zip((rows, None), expected, strict=True):
        parts = model.components(x).centred(over)
        torch.testing.assert_close(parts.mean, whole.mean)
        torch.testing.assert_close(parts.variance, whole.variance)


def test_averages_over_many_rows_take_the_unexplained_part_of_the_prior_from_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = {"low": 0, "high": 1, "kernel": "rbf"}
    terms = smooth(0, centred=False, **options), smooth(1, by=2, **options)
    model = with_random_posterior(AdditiveGP(AdditivePredictor(*terms, constant()), rank=2).double())
    x, rows = torch.rand(11, 3).double(), torch.rand(400, 3).double()
    chosen = rows[torch.linspace(0, 399, 40).round().long()]
    calls = [lambda: model.components(x).centred(rows), lambda: model.components(rows).centred()]
    expected = [call() for call in calls]
    of_chosen = model.components(x).centred(chosen)
    monkeypatch.setattr(_centring, "_MOST_ROWS", 40)
    for call, whole in zip(calls, expected, strict=True):
        parts = call()
        torch.testing.assert_close(parts.mean, whole.mean)
        # 1e-5: the residual prior variance of 16 inducing points, jitter included
        torch.testing.assert_close(parts.variance, whole.variance, rtol=1e-5, atol=1e-5)
    assert (of_chosen.variance - expected[0].variance).abs().max() > 1e-3


def test_a_single_row_is_its_own_mean() -> None:
    parts = make_model().components(torch.rand(1, 3).double()).centred()
    assert (parts.mean == 0).all() and (parts.variance == 0).all()
    assert (parts.sample().components == 0).all()


def test_rows_with_missing_values_stay_independent_of_the_mean() -> None:
    kernel = ScaleKernel(RBFKernel())
    group = ComponentGroup(kernel, [[0]], regular_grid(0.0, 1.0, 5), missing="marginal")
    model = with_random_posterior(AdditiveGP(AdditivePredictor(group, constant()), rank=3).double())
    x, rows = torch.tensor([[0.2], [math.nan], [0.7]]).double(), torch.rand(6, 1).double()
    parts = model.components(x)
    expected = dense_centred(model.components, x, rows, equal_weights(6))
    assert_moments(parts.centred(rows), *expected)
    assert_samples_follow(parts.centred(rows), *expected)
    with pytest.raises(ValueError, match=r"x has NaN or infinity in 1 of 3 rows, in columns \[0\] of component 'x0'"):
        parts.centred()
    with pytest.raises(ValueError, match="over has NaN or infinity in 1 of 3 rows"):
        parts.centred(x)
    assert (parts["constant"].centred().variance == 0).all()


def test_an_indicator_of_a_level_is_a_part_of_the_component() -> None:
    kernel = ScaleKernel(RBFKernel())
    group = ComponentGroup(kernel, [[0], [0]], regular_grid(0.0, 1.0, 5), by=[1, 1], by_levels=[0.0, 1.0])
    model = with_random_posterior(AdditiveGP(AdditivePredictor(group), rank=3).double())
    x, rows = torch.rand(6, 2).double(), torch.rand(8, 2).double()
    x[:, 1], rows[:, 1] = (torch.arange(6) % 2), (torch.arange(8) % 2)
    parts = model.components(x).centred(rows)
    expected = dense_centred(model.components, x, rows, equal_weights(8))
    assert_moments(parts, *expected)
    assert_samples_follow(parts, *expected)


def test_errors_name_what_is_wrong() -> None:
    model, x = make_model(by=[None, 2]), torch.rand(5, 3).double()
    parts = model.components(x)
    with pytest.raises(
        ValueError, match=r"drawn at the reference rows as well, and 4097 are too many: centre over a part"
    ):
        parts.centred(torch.rand(4097, 3).double()).sample()
    with pytest.raises(TypeError, match=r"over must be None .* got list"):
        parts.centred([1.0])
    with pytest.raises(ValueError, match=r"over cannot be used: x has dtype torch.float32"):
        parts.centred(torch.rand(4, 3))
    with pytest.raises(ValueError, match=r"over cannot be used: .* x has 2 columns"):
        parts.centred(torch.rand(4, 2).double())
    with pytest.raises(ValueError, match=r"over cannot be used: x is empty"):
        parts.centred(torch.rand(0, 3).double())
    with pytest.raises(ValueError, match=r"over cannot be used: x has NaN"):
        parts.centred(torch.full((3, 3), math.nan).double())
    with pytest.raises(ValueError, match=r"over has batch shape \(2,\), which does not broadcast"):
        model.components(torch.rand(3, 5, 3).double()).centred(torch.rand(2, 5, 3).double())
    with pytest.raises(ValueError, match=r"component 'x1\*x2' has a multiplier"):
        parts.centred(Uniform(0.0, 1.0))
    assert parts["x0"].centred(Uniform(0.0, 1.0)).variance.isfinite().all()
    with pytest.raises(ValueError, match=r"over must be a single measure, got a Uniform with batch shape \(2,\)"):
        parts["x0"].centred(Uniform([0.0, 0.0], [1.0, 1.0]))
    with pytest.raises(ValueError, match="over has 4900 nodes for a component"):
        parts["x0:x1"].centred(Empirical(torch.rand(70)))
    group = ComponentGroup(RBFKernel(), [[0, 1, 2]], torch.rand(4, 3))
    triple = with_random_posterior(AdditiveGP(AdditivePredictor(group), rank=2).double())
    with pytest.raises(ValueError, match="component 'x0:x1:x2' reads 3 columns"):
        triple.components(x).centred(Uniform(0.0, 1.0))
