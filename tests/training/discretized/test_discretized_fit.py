"""Fits of discretised data against the undiscretised bound, closed form and polish."""

from __future__ import annotations

import math
from collections.abc import Callable

import gpytorch
import pytest
import torch
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import (
    BernoulliLikelihood,
    FixedNoiseGaussianLikelihood,
    GaussianLikelihood,
    LaplaceLikelihood,
    Likelihood,
    StudentTLikelihood,
)
from gpytorch.means import ConstantMean, LinearMean
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup, likelihoods
from gpytorch_gam.components import quantile_points, regular_grid
from gpytorch_gam.kernels import ANOVAKernel, Uniform
from gpytorch_gam.likelihoods import GammaLikelihood, GaussianLocationScaleLikelihood, RowwiseLikelihood
from gpytorch_gam.likelihoods.expected_gradients import expected_gradients
from gpytorch_gam.mlls import CollapsedELBO
from gpytorch_gam.terms import constant, cyclic, smooth
from gpytorch_gam.training import Epoch, polish
from gpytorch_gam.training._quasi_newton import QuasiNewton
from gpytorch_gam.training.discretized import ColumnBins, _data, discretized_fit
from gpytorch_gam.training.discretized._data import DiscretizedData, MomentTables
from gpytorch_gam.training.discretized._problem import DiscretizedProblem
from gpytorch_gam.training.discretized._site_fit import SiteFit
from gpytorch_gam.training.discretized._statistics import BinStatistics, interpolated
from gpytorch_gam.training.discretized._tabulated_gradients import TabulatedGradients, distinct_responses, tabulated
from gpytorch_gam.warnings import ConvergenceWarning, DiscretizationWarning
from tests.problems import fit_by_bins


class OwnPoissonLikelihood(gpytorch.likelihoods.PoissonLikelihood):
    """Somebody's own: with the logarithm as its link, and nothing known of its null model."""

    def forward(self, function_samples: Tensor, *args: object, **kwargs: object) -> torch.distributions.Poisson:
        return torch.distributions.Poisson(rate=function_samples.exp())


def make_predictor(mean: gpytorch.means.Mean | None = None) -> AdditivePredictor:
    """Effects with unequal numbers of bins, two on one column, an interaction and a constant."""
    smooth = ScaleKernel(ANOVAKernel(RBFKernel(), Uniform(0.0, 1.0)), batch_shape=torch.Size([3]))
    smooth.base_kernel.base_kernel.lengthscale = 0.4
    rough = ScaleKernel(MaternKernel(nu=1.5), batch_shape=torch.Size([1]))
    product = ANOVAKernel(RBFKernel(), Uniform(0.0, 1.0), active_dims=[0])
    product = product * ANOVAKernel(RBFKernel(), Uniform(0.0, 1.0), active_dims=[1])
    pair = ScaleKernel(product, batch_shape=torch.Size([1]))
    return AdditivePredictor(
        ComponentGroup(smooth, [[0], [1], [2]], regular_grid(0.0, 1.0, 6)),
        ComponentGroup(rough, [[1]], regular_grid(0.0, 1.0, 7), names=["rough"]),
        constant(),
        ComponentGroup(pair, [[0, 2]], regular_grid([0.0, 0.0], [1.0, 1.0], 3)),
        mean=mean,
    )


def truth(x: Tensor) -> Tensor:
    return torch.sin(5 * x[:, 0]) + x[:, 1] ** 2 - 0.5 + x[:, 0] * (x[:, 2] - 0.5)


def make_inputs(num_rows: int, repeated: bool) -> Tensor:
    x = torch.rand(num_rows, 4, dtype=torch.float64)
    if repeated:
        counts = torch.tensor([12.0, 7.0, 5.0, 3.0], dtype=torch.float64)
        x = (x * counts).round() / counts
    return x


def make_model(family: str = "coupled", mean: gpytorch.means.Mean | None = None) -> AdditiveGP:
    return AdditiveGP(make_predictor(mean), family).double()


def fix(*modules: torch.nn.Module) -> None:
    for module in modules:
        module.requires_grad_(False)


def respond(kind: str, predictor: Tensor) -> tuple[Tensor, Likelihood]:
    if kind == "labels":
        return torch.bernoulli(torch.special.ndtr(predictor)), BernoulliLikelihood().double()
    if kind == "counts":
        return torch.poisson(predictor.exp()), OwnPoissonLikelihood().double()
    likelihood = StudentTLikelihood().double()
    fix(likelihood)
    return predictor + torch.distributions.StudentT(5.0).sample(predictor.shape).double(), likelihood


def elbo(model: AdditiveGP, likelihood: Likelihood, x: Tensor, y: Tensor) -> Tensor:
    mll = gpytorch.mlls.VariationalELBO(likelihood, model.train(), num_data=len(y))
    return mll(model(x), y) * len(y)


# ------------------------------------------------------------------------------------------------ Gaussian likelihood


@pytest.mark.parametrize("mean", [None, "constant", "linear"])
def test_repeated_inputs_give_the_collapsed_optimum(mean: str | None) -> None:
    module = {"constant": ConstantMean(), "linear": LinearMean(4)}.get(mean or "")
    if module is not None:
        torch.nn.init.constant_(next(module.parameters()), 0.3)
    model, likelihood = make_model(mean=module), GaussianLikelihood().double()
    likelihood.noise = 0.2
    fix(model, likelihood)
    x = make_inputs(500, repeated=True)
    y = truth(x) + 0.4 * torch.randn(500).double()
    history = fit_by_bins(model, likelihood, [(x, y)])
    optimum = CollapsedELBO(likelihood, model).optimum(x, y)
    q = model.variational_strategy.variational_distribution
    assert history == pytest.approx([optimum.bound.item()], rel=1e-9)
    torch.testing.assert_close(q.mean, optimum.mean, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(q.covariance_matrix, optimum.precision.inverse(), rtol=1e-6, atol=1e-8)
    assert not model.training and not likelihood.training


def test_bound_and_gradients_equal_those_of_the_data() -> None:
    """All hyperparameters, the constant mean and learnt inducing points among them."""
    model, likelihood = make_model(mean=ConstantMean()), GaussianLikelihood().double()
    model.variational_strategy._initialize_once()
    group = model.predictor.groups[0]
    points = group.inducing_points.clone()
    del group.inducing_points
    group.register_parameter("inducing_points", torch.nn.Parameter(points))
    x = make_inputs(400, repeated=True)
    y = truth(x) + 1.0 + 0.4 * torch.randn(400).double()
    bins = ColumnBins.from_data(x, model.predictor)
    problem = DiscretizedProblem(model, likelihood, bins, 400)
    data = DiscretizedData.from_batches(
        [(x[:150], y[:150]), (x[150:], y[150:])], bins, model.variational_strategy, GaussianLikelihood()
    )
    statistics = BinStatistics(
        model.variational_strategy, problem.terms, data.tables(None, y, y.square().sum())._replace(num_rows=400)
    )
    expected = CollapsedELBO(likelihood, model)(x, y) * 400
    found = problem.optimum(statistics).bound
    assert found.item() == pytest.approx(expected.item(), rel=1e-10)
    assert len(problem.hyperparameters) == len([*model.hyperparameters(), *likelihood.parameters()])
    gradients = [torch.autograd.grad(value, problem.hyperparameters) for value in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-7)


def test_weighted_statistics_equal_dense_sums() -> None:
    model = make_model()
    strategy = model.variational_strategy
    strategy._initialize_once()
    x, weights, targets = make_inputs(300, repeated=True), torch.rand(300).double(), torch.randn(300).double()
    bins = ColumnBins.from_data(x, model.predictor)
    problem = DiscretizedProblem(model, BernoulliLikelihood(), bins, 300)
    data = DiscretizedData.from_batches([(x, targets)], bins, strategy, GaussianLikelihood())
    tables = data.tables(weights, targets, torch.zeros((), dtype=torch.float64))
    found = BinStatistics(strategy, problem.terms, tables)()
    features = strategy.features(x)
    torch.testing.assert_close(found.gram, (features * weights) @ features.mT)
    torch.testing.assert_close(found.projected, features @ targets)
    prior = sum(group.prior_variance(x).sum(-2) for group in model.predictor.groups)
    torch.testing.assert_close(found.unexplained, (weights * (prior - features.square().sum(0))).sum())
    halves = tables.scaled(0.625)
    torch.testing.assert_close(BinStatistics(strategy, problem.terms, halves)().gram, 0.625 * found.gram)


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32])
def test_sums_and_moments_leave_the_indices_as_they_are(dtype: torch.dtype) -> None:
    codes = [torch.randint(size, (70000,)).to(dtype) for size in (5, 4)]
    places = [torch.rand(size, 1) for size in (5, 4)]
    data = DiscretizedData(places, [code.clone() for code in codes], torch.zeros(70000))
    weights = torch.rand(70000).double()
    entries = torch.rand(5, 4).double()
    moments = MomentTables(
        [torch.zeros(5).double(), torch.arange(4.0).double()],
        [torch.zeros(5).double(), torch.zeros(4).double()],
        {(0, 1): entries},
    )
    for _ in range(2):
        table = data.tables(weights, weights, weights.sum()).pairs[0, 1]
        expected = torch.zeros(5, 4).double().index_put(tuple(c.long() for c in codes), weights, accumulate=True)
        torch.testing.assert_close(table, expected)
        mean, variance = data.moments(moments)
        assert torch.equal(mean, codes[1].double())
        torch.testing.assert_close(variance, entries[codes[0].long(), codes[1].long()])


def test_hyperparameters_are_those_of_the_undiscretised_bound() -> None:
    x = make_inputs(2000, repeated=False)
    y = truth(x) + 0.5 * torch.randn(2000).double()
    model, likelihood = make_model(), GaussianLikelihood().double()
    fit_by_bins(model, likelihood, [(x, y)], tolerance=1e-3)
    objective = CollapsedELBO(likelihood, model)
    found = objective.optimum(x, y).bound.item()
    optimizer = torch.optim.LBFGS(
        [*model.hyperparameters(), *likelihood.parameters()], max_iter=25, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = -objective(x, y) * 2000
        loss.backward()
        return loss

    optimizer.step(closure)
    # In nats of the bound of the data as they are, from which L-BFGS goes on.
    assert objective.optimum(x, y).bound.item() - found < 0.5


def test_rounded_bins_stand_at_the_means_of_their_rows() -> None:
    model, x = make_model(), make_inputs(1000, repeated=False).square()
    x[:, 1] = (4 * x[:, 1]).round() / 4
    bins = ColumnBins.from_data(x, model.predictor, max_bins=(20, 6))
    data = DiscretizedData.from_batches(
        [(x[:300], x[:300, 0]), (x[300:], x[300:, 0])], bins, model.variational_strategy, GaussianLikelihood()
    )
    for term, places, codes in zip(bins.terms, data.places, bins.index(x), strict=True):
        if bins.is_exact(term):
            assert torch.equal(places, bins.values(term).double())
            continue
        for code in codes.unique():
            torch.testing.assert_close(places[code.item()], x[codes == code][:, term].mean(0))
        empty = torch.ones(len(places), dtype=torch.bool).index_fill(0, codes.long(), False)
        assert torch.equal(places[empty], bins.values(term)[empty])


def test_rounded_inputs_give_nearly_the_posterior_of_the_data() -> None:
    x, fresh = make_inputs(4000, repeated=False), make_inputs(300, repeated=False)
    y = truth(x) + 0.5 * torch.randn(4000).double()
    model, likelihood = make_model(), GaussianLikelihood().double()
    fit_by_bins(model, likelihood, [(x, y)])
    optimum = CollapsedELBO(likelihood, model).optimum(x, y)
    exact = make_model()
    exact.load_state_dict(model.state_dict())
    exact.variational_strategy.set_whitened_posterior(optimum.mean, optimum.precision)
    found, expected = (m.variational_strategy.predictor_moments(fresh) for m in (model, exact))
    stddev = expected.covariance.flatten().sqrt()
    assert ((found.mean - expected.mean).flatten().abs() / stddev).max() < 0.05
    assert (found.covariance.flatten().sqrt() / stddev - 1).abs().max() < 0.01


def test_fewer_bins_stand_for_many() -> None:
    """The bound that the hyperparameters begin on."""
    model, likelihood = make_model(), GaussianLikelihood().double()
    model.variational_strategy._initialize_once()
    x = torch.rand(3000, 4).double()
    y = truth(x) + 0.5 * torch.randn(3000).double()
    bins = ColumnBins.from_data(x, model.predictor, max_bins=(256, 50))
    problem = DiscretizedProblem(model, likelihood, bins, 3000)
    data = DiscretizedData.from_batches([(x, y)], bins, model.variational_strategy, likelihood)
    tables = data.tables(None, y, y.square().sum())._replace(num_rows=3000)
    few = interpolated(tables, [bins.is_rounded(term) for term in bins.terms], (48, 16))
    assert [len(places) for places in few.places] == [48, 48, 48, 1, 256]
    bounds = [
        problem.optimum(BinStatistics(model.variational_strategy, problem.terms, each)).bound.item()
        for each in (tables, few)
    ]
    assert bounds[1] == pytest.approx(bounds[0], abs=0.1)  # the rough component is interpolated worst
    assert few.weights[0].sum().item() == pytest.approx(3000.0)


@pytest.mark.parametrize("family", ["block_low_rank", "low_rank", "mean_field"])
def test_structured_families_take_a_fit(family: str) -> None:
    x = make_inputs(2000, repeated=False)
    y = truth(x) + 0.5 * torch.randn(2000).double()
    model, likelihood = make_model(family), GaussianLikelihood().double()
    bound = fit_by_bins(model, likelihood, [(x, y)])[-1]
    assert bound - elbo(model, likelihood, x, y).item() < (20.0 if family == "mean_field" else 1.0)


def test_float32_models_and_loaders_are_fitted_in_float64() -> None:
    x = make_inputs(3000, repeated=True)
    y = truth(x) + 0.5 * torch.randn(3000).double()
    bounds = []
    for dtype in (torch.float32, torch.float64):
        model = AdditiveGP(make_predictor(), "coupled", jitter_val=1e-6).to(dtype)
        likelihood = GaussianLikelihood().to(dtype)
        loader = DataLoader(TensorDataset(x.to(dtype), y.to(dtype)), batch_size=700, shuffle=True, drop_last=True)
        bounds.append(fit_by_bins(model, likelihood, loader)[-1])
        assert torch.isfinite(model(x.to(dtype)).variance).all()
    assert bounds[0] == pytest.approx(bounds[1], abs=0.5)


def test_priors_of_hyperparameters_count() -> None:
    x = make_inputs(300, repeated=True)
    y = truth(x) + 0.5 * torch.randn(300).double()
    noises = []
    for prior in (None, gpytorch.priors.NormalPrior(2.0, 1e-3)):
        likelihood = GaussianLikelihood(noise_prior=prior).double()
        fit_by_bins(make_model(), likelihood, [(x, y)])
        noises.append(likelihood.noise.item())
    assert noises[0] < 0.4 and noises[1] == pytest.approx(2.0, abs=0.01)


# ---------------------------------------------------------------------------------------------------------- any other


@pytest.mark.parametrize("kind", ["labels", "counts", "heavy tails"])
def test_repeated_inputs_give_the_posterior_of_polish(kind: str) -> None:
    x = make_inputs(400, repeated=True)
    y, likelihood = respond(kind, truth(x))
    model, other = make_model(), make_model()
    fix(model, other, likelihood)
    history = fit_by_bins(model, likelihood, [(x, y)], tolerance=1e-9)
    polished = polish(other, likelihood, [(x, y)], tolerance=1e-9, max_passes=60)
    # Polish leaves what its last step gained, and heavy tails converge slowly.
    assert history[-1] == pytest.approx(polished[-1], rel=1e-9 if kind != "heavy tails" else 1e-6)
    assert elbo(model, likelihood, x, y).item() == pytest.approx(history[-1], rel=1e-9)
    found, expected = (m.variational_strategy.variational_distribution for m in (model, other))
    tolerance = 1e-4 if kind != "heavy tails" else 1e-3
    torch.testing.assert_close(found.mean, expected.mean, rtol=0.0, atol=tolerance)
    torch.testing.assert_close(found.covariance_matrix, expected.covariance_matrix, rtol=0.0, atol=tolerance)
    assert history == sorted(history)


@pytest.mark.parametrize("kind", ["labels", "counts"])
def test_hyperparameters_are_stationary_points_of_the_elbo(kind: str) -> None:
    x = make_inputs(600, repeated=True)
    y, likelihood = respond(kind, truth(x) + 0.5)
    model = make_model(mean=ConstantMean())
    seen: list[Epoch] = []
    history = fit_by_bins(model, likelihood, [(x, y)], tolerance=1e-4, callback=seen.append)
    assert [entry.elbo for entry in seen] == history
    value = elbo(model, likelihood, x, y)
    assert value.item() == pytest.approx(history[-1], rel=1e-8)
    for gradient in torch.autograd.grad(value, [p for p in model.hyperparameters() if p.requires_grad]):
        assert gradient.abs().max() < 0.1  # of nats by unit of a raw parameter


def test_many_rows_begin_with_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    x = make_inputs(2000, repeated=False)
    y, likelihood = respond("labels", truth(x))
    fitted = []
    for size in (20000, 400):
        monkeypatch.setattr(discretized_fit, "_SAMPLE_SIZE", size)
        model = make_model()
        history = fit_by_bins(model, likelihood, [(x[:700], y[:700]), (x[700:], y[700:])], tolerance=0.01)
        fitted.append((history[-1], model(x[:50]).mean))
        assert len(history) < 12
    assert fitted[0][0] == pytest.approx(fitted[1][0], abs=1.0)
    torch.testing.assert_close(fitted[0][1], fitted[1][1], rtol=0.0, atol=0.02)


def test_offsets_are_kept() -> None:
    mean = LinearMean(4)
    torch.nn.init.constant_(mean.weights, 1.0)
    x = make_inputs(300, repeated=True)
    y, likelihood = respond("counts", truth(x) + x.sum(-1))
    model, other = make_model(mean=mean), make_model(mean=mean)
    fix(model, other, likelihood)
    history = fit_by_bins(model, likelihood, [(x, y)], tolerance=1e-8)
    assert history[-1] == pytest.approx(polish(other, likelihood, [(x, y)], tolerance=1e-8)[-1], rel=1e-8)


def test_extreme_counts_are_reached_step_by_step() -> None:
    x = make_inputs(300, repeated=True)
    y, likelihood = respond("counts", truth(x) + 7.0)
    model = make_model()
    history = fit_by_bins(model, likelihood, [(x, y)])
    assert history == sorted(history)
    assert (model(x).mean - truth(x) - 7.0).abs().mean() < 0.1


def test_threads_do_not_change_the_sums() -> None:
    x = make_inputs(500, repeated=True)
    y, likelihood = respond("labels", truth(x))
    bounds = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            model = make_model()
            fix(model)
            bounds.append(fit_by_bins(model, likelihood, [(x, y)]))
    finally:
        torch.set_num_threads(1)
    assert bounds[0] == pytest.approx(bounds[1], rel=1e-12)


@pytest.mark.parametrize("kind", ["labels", "counts"])
def test_tables_of_derivatives_are_accurate(kind: str) -> None:
    mean, variance = 0.5 * torch.randn(200000).double(), 0.002 + 0.01 * torch.rand(200000).double()
    y, likelihood = respond(kind, mean)
    responses = distinct_responses(y)
    assert responses is not None
    table = tabulated(likelihood, *responses, mean, variance)
    assert isinstance(table, TabulatedGradients)
    found, expected = table(responses[1], mean, variance), expected_gradients(likelihood, y, mean, variance)
    for new, old, error in zip(found, expected, (1e-4, 1e-4, 1e-2), strict=True):
        assert (new - old).norm() < error * old.norm()
    assert found.expected.sum().item() == pytest.approx(expected.expected.sum().item(), rel=1e-6)


def test_no_table_where_responses_differ_or_rows_are_few() -> None:
    assert distinct_responses(torch.randn(1000)) is None
    y, likelihood = respond("labels", torch.zeros(2000).double())
    assert tabulated(likelihood, *distinct_responses(y), torch.zeros(2000).double(), torch.ones(2000).double()) is None


# ------------------------------------------------------------------------------------------------- the ascent, errors


def test_quasi_newton_climbs_a_curved_ridge() -> None:
    position = torch.tensor([-1.2, 1.0], dtype=torch.float64, requires_grad=True)

    def objective() -> Tensor:
        return -100 * (position[1] - position[0] ** 2) ** 2 - (1 - position[0]) ** 2

    ascent = QuasiNewton([position], [1.0])
    ascent.maximise(objective, 1e-14, 200)
    torch.testing.assert_close(position.detach(), torch.ones(2, dtype=torch.float64), rtol=0.0, atol=1e-5)
    assert position.grad is None


def test_quasi_newton_steps_back_from_where_there_is_no_value() -> None:
    position = torch.tensor([5.0], dtype=torch.float64, requires_grad=True)
    ascent = QuasiNewton([position], [0.01])
    ascent.maximise(lambda: (position.log() - position).sum(), 1e-12, 100)  # no value below 0
    assert position.item() == pytest.approx(1.0, abs=1e-4)


def test_quasi_newton_forgets_curvature_that_has_fallen() -> None:
    """A log variance that starts far too low: the curvature falls by orders of magnitude on the way."""
    position = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    residual = torch.tensor([1e7, 1e4, 1e2], dtype=torch.float64)

    def objective() -> Tensor:
        coupled = position + 0.3 * position.roll(1)
        return -0.5 * (100.0 * coupled + 100.0 * residual * (-coupled).exp()).sum()

    ascent = QuasiNewton([position], [1.0])
    assert ascent.maximise(objective, 1e-3, 200) <= 1e-3
    coupled = position + 0.3 * position.roll(1)
    torch.testing.assert_close(coupled.detach(), residual.log(), rtol=0.0, atol=0.05)


def test_quasi_newton_says_what_is_left_and_keeps_within_limits() -> None:
    position = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    ascent = QuasiNewton([position], [1.0], limits=[30.0])
    assert ascent.maximise(lambda: -0.5 * (position - 50.0).square().sum(), 1e-6, 1) > 1.0
    assert (
        ascent.maximise(lambda: -0.5 * (position - 50.0).square().sum(), 1e-6, 50) == 0.0
    )  # nothing is left where a limit holds
    assert position.item() == pytest.approx(30.0)


def two_predictors() -> AdditiveGP:
    groups = [
        ComponentGroup(RBFKernel(), [[0]], regular_grid(0.0, 1.0, 4), names=[str(p)], predictor=p) for p in (0, 1)
    ]
    return AdditiveGP(AdditivePredictor(*groups), "coupled").double()


@pytest.mark.parametrize(
    ("make", "likelihood", "error", "message"),
    [
        (two_predictors, GaussianLocationScaleLikelihood(), NotImplementedError, "2 predictors"),
        (lambda: make_model(mean=LinearMean(4)), GaussianLikelihood(), NotImplementedError, "only a ConstantMean"),
        (lambda: make_model("delta"), GaussianLikelihood(), TypeError, "DeltaVariationalDistribution"),
    ],
)
def test_what_is_not_supported_is_said(
    make: Callable[[], AdditiveGP], likelihood: Likelihood, error: type[Exception], message: str
) -> None:
    x = make_inputs(20, repeated=True)
    with pytest.raises(error, match=message):
        fit_by_bins(make(), likelihood.double(), [(x, x[:, 0])])


def test_data_that_cannot_be_read_are_refused() -> None:
    x, likelihood = make_inputs(20, repeated=True), GaussianLikelihood().double()
    y = x[:, 0].clone()
    with pytest.raises(ValueError, match="pass num_data"):
        fit_by_bins(make_model(), likelihood, iter([(x, y)]))
    y[3] = float("nan")
    for each in (likelihood, BernoulliLikelihood().double()):
        with pytest.raises(ValueError, match="y has NaN or infinity in 1 of 20 rows"):
            fit_by_bins(make_model(), each, [(x, y)])
    for options in ({"tolerance": -1.0}, {"max_bins": 0}):
        with pytest.raises(ValueError, match=next(iter(options))):
            fit_by_bins(make_model(), likelihood, [(x, y)], **options)


def test_sizes_beyond_a_dense_matrix_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    x = make_inputs(50, repeated=False)
    limits = (
        (discretized_fit, "_MAX_INDUCING", NotImplementedError, "inducing variables"),
        (_data, "_MAX_TABLE_ENTRIES", ValueError, "lower max_bins"),
    )
    for module, name, error, message in limits:
        with monkeypatch.context() as patch:
            patch.setattr(module, name, 10)
            with pytest.raises(error, match=message):
                fit_by_bins(make_model(), GaussianLikelihood().double(), [(x, x[:, 0])])


@pytest.mark.parametrize("max_bins", [128, 256])
@pytest.mark.parametrize("num_rows", [2000, 9000])
def test_columns_with_long_tails_end_near_the_optimum(num_rows: int, max_bins: int) -> None:
    x = torch.randn(num_rows, 1, dtype=torch.float64).exp()
    y = torch.sin(2 * (x[:, 0] + 0.05).log()) + 0.5 * torch.randn(num_rows, dtype=torch.float64)
    group = ComponentGroup(ScaleKernel(RBFKernel()), [[0]], quantile_points(x[:, 0], 24))
    model = AdditiveGP(AdditivePredictor(group, constant()), rank=16).double()
    likelihood = GaussianLikelihood().double()
    fit_by_bins(model, likelihood, [(x, y)], max_bins=max_bins)
    assert likelihood.noise.item() == pytest.approx(0.25, rel=0.25)


def test_moves_that_lower_the_bound_are_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = AdditiveGP(make_predictor(), rank=4).double(), torch.rand(1500, 3).double()
    likelihood, calls = GaussianLikelihood().double(), []

    def spoil(self: QuasiNewton, objective: Callable[[], Tensor], *_: object) -> float:
        if not calls:
            self._write(self._read() - 3.0)
        calls.append(objective)
        self.value = objective().item()
        return 0.0

    monkeypatch.setattr(QuasiNewton, "maximise", spoil)
    before = [parameter.detach().clone() for parameter in model.hyperparameters()]
    bins = ColumnBins.from_data(x, model.predictor, max_bins=(256, 64))
    problem = DiscretizedProblem(model, likelihood, bins, len(x))
    data = DiscretizedData.from_batches([(x, torch.sin(6 * x[:, 0]))], bins, model.variational_strategy, likelihood)
    tables = data.tables(None, data.responses, data.responses.square().sum())._replace(num_rows=len(x))
    problem.maximise(BinStatistics(model.variational_strategy, problem.terms, tables), 0.1, 5)
    assert len(calls) == 3  # on fewer bins, on all, and on all again
    for parameter, value in zip(model.hyperparameters(), before, strict=True):
        assert torch.equal(parameter, value)


# ------------------------------------------------------------------------------- far from zero, in any unit, any phase


def make_small(x: Tensor, mean: gpytorch.means.Mean | None = None) -> AdditiveGP:
    terms = smooth(list(range(x.shape[1])), x), constant()
    return AdditiveGP(AdditivePredictor(*terms, mean=mean), rank=8).double()


@pytest.mark.parametrize("mean", [None, "constant"])
def test_counts_of_any_size_are_fitted_from_the_null_model(mean: str | None) -> None:
    x = torch.rand(1000, 1).double()
    f = 9 + torch.sin(6 * x[:, 0])
    model = make_small(x, None if mean is None else ConstantMean())
    fit_by_bins(model, OwnPoissonLikelihood(), [(x, torch.poisson(f.exp()))])
    assert (model(x).mean - f).square().mean().sqrt() < 0.003  # one standard error of a count is .01


def test_hyperparameters_wait_for_the_posterior() -> None:
    x = torch.rand(1000, 1).double()
    f = torch.sin(6 * x[:, 0])
    noise = torch.distributions.Gamma(torch.tensor(4.0).double(), 4.0).sample((1000,))
    bounds = []
    for shift in (0.0, 12.0):
        likelihood = GammaLikelihood().double()
        likelihood.shape = 4.0
        fix(likelihood)
        model = make_small(x, ConstantMean())
        # In units of the mean, so that the bounds are the same.
        bounds.append(fit_by_bins(model, likelihood, [(x, noise * (f + shift).exp())])[-1] + 1000 * shift)
        assert (model(x).mean - f - shift).square().mean().sqrt() < 0.1
    assert bounds[1] == pytest.approx(bounds[0], abs=0.3)


@pytest.mark.parametrize(
    ("kind", "others"),
    [(LaplaceLikelihood, [(0.0, 1e-3)]), (StudentTLikelihood, [(1e4, 1.0), (0.0, 1e4)])],
    ids=["Laplace", "Student-t"],
)
def test_locations_of_any_size_are_fitted_from_the_null_model(
    kind: type[Likelihood], others: list[tuple[float, float]]
) -> None:
    x = torch.rand(400, 1).double()
    f = torch.sin(6 * x[:, 0])
    y = f + 0.2 * torch.distributions.StudentT(torch.tensor(4.0).double()).sample((400,))
    bounds = []
    for a, b in ((0.0, 1.0), *others):
        likelihood = kind(noise_constraint=GreaterThan(1e-12)).double()
        likelihood.noise = 0.04 * b**2
        fix(likelihood)
        model = make_small(x, ConstantMean())
        bounds.append(fit_by_bins(model, likelihood, [(x, a + b * y)])[-1] + 400 * math.log(b))
        assert (model(x).mean - a - b * f).square().mean().sqrt() < 0.06 * b
    assert bounds[1:] == pytest.approx(len(others) * [bounds[0]], abs=0.5)


@pytest.mark.parametrize(("shift", "scale"), [(0.0, 1e4), (100.0, 40.0)])
def test_responses_may_be_in_any_unit(shift: float, scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluations: list[Tensor] = []
    evaluate = QuasiNewton._evaluate

    def counted(self: QuasiNewton, objective: Callable[[], Tensor], position: Tensor) -> object:
        evaluations.append(position)
        return evaluate(self, objective, position)

    monkeypatch.setattr(QuasiNewton, "_evaluate", counted)
    x = torch.rand(600, 2).double()
    f = torch.sin(6 * x[:, 0]) + x[:, 1]
    y = f + 0.2 * torch.randn(600).double()
    bounds, counts = [], []
    for a, b in ((0.0, 1.0), (shift, scale)):
        model, likelihood = make_small(x), GaussianLikelihood().double()
        evaluations.clear()
        history = fit_by_bins(model, likelihood, [(x, a + b * y)], tolerance=0.01)
        counts.append(len(evaluations))
        bounds.append(history[-1] + 600 * math.log(b))
        prediction = model(x)
        assert (prediction.mean - a - b * f).square().mean().sqrt() < 0.05 * b
        assert ((prediction.mean - a - b * f).abs() < 1.96 * prediction.stddev).double().mean() > 0.8
        assert likelihood.noise.item() == pytest.approx(0.04 * b**2, rel=0.2)
    # A constant that is farther from zero costs its prior variance, and nothing else.
    assert bounds[1] == pytest.approx(bounds[0], abs=0.01 if shift == 0.0 else 2.0)
    assert counts[1] < 2.5 * counts[0]


def test_a_second_call_finds_little_more() -> None:
    x = torch.rand(600, 2).double()
    y = 100 + 40 * (torch.sin(6 * x[:, 0]) + x[:, 1] + 0.9 * torch.randn(600).double())
    model, likelihood = make_small(x), GaussianLikelihood().double()
    bounds = [fit_by_bins(model, likelihood, [(x, y)])[-1] for _ in range(2)]
    assert abs(bounds[1] - bounds[0]) < 0.1


def test_a_periodic_component_reads_many_periods() -> None:
    x = 731 * torch.rand(3000, 1).double()
    f = torch.sin(2 * math.pi * x[:, 0])
    model, likelihood = AdditiveGP(AdditivePredictor(cyclic(0, 1.0), constant()), rank=8), GaussianLikelihood()
    fit_by_bins(model.double(), likelihood.double(), [(x, f + 0.1 * torch.randn(3000).double())])
    assert (model(x).mean - f).square().mean().sqrt() < 0.01


@pytest.mark.filterwarnings("error")
def test_components_that_vary_within_bins_are_refused_or_said() -> None:
    x = torch.rand(500, 1).double()
    for size, error in ((1e-4, ValueError), (3e-3, DiscretizationWarning)):
        kernel = ScaleKernel(RBFKernel())
        kernel.base_kernel.lengthscale = size
        kernel.base_kernel.raw_lengthscale.requires_grad_(False)
        group = ComponentGroup(kernel, [[0]], regular_grid(0.0, 1.0, 20))
        model = AdditiveGP(AdditivePredictor(group), rank=4).double()
        with pytest.raises(error, match="vary within"):
            fit_by_bins(model, GaussianLikelihood().double(), [(x, torch.sin(6 * x[:, 0]))])


def test_what_is_left_open_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.rand(400, 1).double()
    y = torch.poisson((9 + 2 * torch.sin(6 * x[:, 0])).exp())
    monkeypatch.setattr(discretized_fit, "_MAX_PASSES", 1)
    with pytest.warns(ConvergenceWarning, match="the bound promises to rise by .* nats"):
        fit_by_bins(make_small(x), OwnPoissonLikelihood(), [(x, y)])
    monkeypatch.setattr(discretized_fit, "_GAUSSIAN_STEPS", 0)
    with pytest.warns(ConvergenceWarning, match="the bound promises to rise by .* nats"):
        fit_by_bins(make_small(x), GaussianLikelihood().double(), [(x, y.log())])


def test_no_step_that_raises_the_bound_is_an_error() -> None:
    class Descending(OwnPoissonLikelihood):
        """With values that fall where their derivatives rise."""

        def expected_log_prob(self, y: Tensor, f: gpytorch.distributions.MultivariateNormal, *_: object) -> Tensor:
            value = super().expected_log_prob(y, f)
            return value - 100 * value.detach()

    x = torch.rand(300, 1).double()
    y = torch.poisson((3 + torch.sin(6 * x[:, 0])).exp())
    with pytest.raises(RuntimeError, match="no step from the model without effects raised the bound"):
        fit_by_bins(make_small(x), Descending(), [(x, y)])


# ------------------------------------------------------------------------------------------------ row-wise arguments


def repeated(x: Tensor, y: Tensor, times: Tensor) -> list[tuple[Tensor, Tensor]]:
    return [(x.repeat_interleave(times, 0), y.repeat_interleave(times))]


@pytest.mark.parametrize("kind", ["gaussian", "labels"])
def test_weights_stand_for_repeated_rows(kind: str) -> None:
    x, times = make_inputs(300, repeated=True), torch.arange(300) % 3
    if kind == "gaussian":
        y, both = truth(x) + 0.5 * torch.randn(300).double(), [GaussianLikelihood().double() for _ in range(2)]
    else:
        y, likelihood = respond(kind, truth(x))
        both = [likelihood, likelihood]
    histories, models = [], []
    weighted = [(x[:100], y[:100], {"weights": times[:100]}), (x[100:], y[100:], {"weights": times[100:]})]
    data = [weighted, repeated(x, y, times)]
    for batches, likelihood in zip(data, (RowwiseLikelihood(both[0]), both[1]), strict=True):
        models.append(make_model())
        histories.append(fit_by_bins(models[-1], likelihood, batches, tolerance=1e-3)[-1])
    # The same number of steps of the hyperparameters, but for the rows that they start from.
    assert histories[0] == pytest.approx(histories[1], abs=0.05)
    torch.testing.assert_close(models[0](x).mean, models[1](x).mean, rtol=0.0, atol=0.02)


@pytest.mark.parametrize("kind", ["gaussian", "fixed noise", "labels", "counts"])
def test_row_wise_arguments_give_the_optimum_of_all_rows(kind: str) -> None:
    x = make_inputs(300, repeated=True)
    rows = {"offset": x.sum(-1), "weights": 0.5 + torch.rand(300).double()}
    if kind in ("gaussian", "fixed noise"):
        rows["noise"] = 0.1 + torch.rand(300).double()
        y = truth(x) + x.sum(-1) + rows["noise"].sqrt() * torch.randn(300).double()
        likelihood: Likelihood = RowwiseLikelihood(GaussianLikelihood().double())
        if kind == "fixed noise":
            likelihood = RowwiseLikelihood(FixedNoiseGaussianLikelihood(rows.pop("noise")).double())
    else:
        y, inner = respond(kind, truth(x) + x.sum(-1))
        likelihood = RowwiseLikelihood(inner)
    model, other = make_model(), make_model()
    fix(model, other, likelihood)
    history = fit_by_bins(model, likelihood, [(x, y, rows)], tolerance=1e-9)
    polished = polish(other, likelihood, [(x, y, rows)], tolerance=1e-9, max_passes=60)
    assert history[-1] == pytest.approx(polished[-1], rel=1e-9)
    found, expected = (m.variational_strategy.variational_distribution for m in (model, other))
    torch.testing.assert_close(found.mean, expected.mean, rtol=0.0, atol=1e-4)
    torch.testing.assert_close(found.covariance_matrix, expected.covariance_matrix, rtol=0.0, atol=1e-4)


def test_arguments_of_a_likelihood_of_its_own_reach_it() -> None:
    x, exposure = make_inputs(300, repeated=True), 0.5 + torch.rand(300).double()
    y = torch.poisson(exposure * truth(x).exp())
    likelihood = likelihoods.PoissonLikelihood()
    model, other = make_model(), make_model()
    fix(model, other)
    history = fit_by_bins(model, likelihood, [(x, y, {"exposure": exposure})], tolerance=1e-9)
    polished = polish(other, likelihood, [(x, y, {"exposure": exposure})], tolerance=1e-9, max_passes=60)
    assert history[-1] == pytest.approx(polished[-1], rel=1e-9)


def test_a_sample_keeps_its_arguments_and_tables_their_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    x = make_inputs(3000, repeated=True)
    rows = {"offset": x[:, 0], "weights": 0.5 + torch.rand(3000).double()}
    y, inner = respond("labels", truth(x) + rows["offset"])
    likelihood, bounds = RowwiseLikelihood(inner), []
    for size in (20000, 400):
        monkeypatch.setattr(discretized_fit, "_SAMPLE_SIZE", size)
        bounds.append(fit_by_bins(make_model(), likelihood, [(x, y, rows)], tolerance=0.01)[-1])
    assert bounds[0] == pytest.approx(bounds[1], abs=0.5)


@pytest.mark.parametrize(
    ("likelihood", "arguments", "error", "message"),
    [
        (GaussianLikelihood(), {"weights": 1.0}, TypeError, "does not read weights: wrap it"),
        (RowwiseLikelihood(GaussianLikelihood()), {"weight": 1.0}, TypeError, r"but got weight"),
        (RowwiseLikelihood(GaussianLikelihood()), {"weights": -1.0}, ValueError, "weights must be finite and not"),
        (RowwiseLikelihood(BernoulliLikelihood()), {"weights": -1.0}, ValueError, "weights must be finite and not"),
        (GaussianLikelihood(), {"noise": 0.0}, ValueError, "noise must be finite and positive"),
    ],
)
def test_row_wise_arguments_that_cannot_be_read_are_refused(
    likelihood: Likelihood, arguments: dict[str, float], error: type[Exception], message: str
) -> None:
    x = make_inputs(20, repeated=True)
    rows = {name: torch.full((20,), value).double() for name, value in arguments.items()}
    with pytest.raises(error, match=message):
        fit_by_bins(make_model(), likelihood.double(), [(x, x[:, 0].round(), rows)])


def test_batches_with_different_row_wise_arguments_are_refused() -> None:
    x, likelihood = make_inputs(20, repeated=True), RowwiseLikelihood(GaussianLikelihood().double())
    batches = [(x, x[:, 0], {"weights": x[:, 1]}), (x, x[:, 0])]
    with pytest.raises(ValueError, match="must all have the same row-wise arguments"):
        fit_by_bins(make_model(), likelihood, batches)


def test_tables_of_derivatives_are_shifted_and_weighted_by_row() -> None:
    """Offsets and weights do not keep rows from the tables of their responses."""
    x = make_inputs(20000, repeated=True)
    rows = {"offset": 0.3 * x[:, 0], "weights": 0.5 + torch.rand(20000).double()}
    y, inner = respond("labels", truth(x))
    model, likelihood = make_model(), RowwiseLikelihood(inner)
    model.variational_strategy._initialize_once()
    bins = ColumnBins.from_data(x, model.predictor)
    data = DiscretizedData.from_batches([(x, y, rows)], bins, model.variational_strategy, likelihood)
    fit = SiteFit(DiscretizedProblem(model, likelihood, bins, data.num_rows), data)
    mean, variance = 0.5 * torch.randn(20000).double(), 0.002 + 0.01 * torch.rand(20000).double()
    assert tabulated(likelihood, *distinct_responses(y), mean + rows["offset"], variance) is not None
    found = fit._derivatives(mean, variance)(slice(100, 15000))
    expected = expected_gradients(likelihood, y, mean, variance, rows)
    for new, old, error in zip(found, expected, (1e-4, 1e-4, 1e-2), strict=True):
        assert (new - old[100:15000]).norm() < error * old.norm()
