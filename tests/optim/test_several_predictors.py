"""Natural gradients of distributional models: dense sums, exact gradients, optima by other means."""

from __future__ import annotations

import itertools
import math

import gpytorch
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import BernoulliLikelihood, GaussianLikelihood
from torch.utils.data import DataLoader

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup
from gpytorch_gam.components import regular_grid
from gpytorch_gam.data import RowDataset
from gpytorch_gam.diagnostics import HyperparameterUncertainty
from gpytorch_gam.distributions import predictive_quantiles
from gpytorch_gam.kernels import ANOVAKernel, Uniform
from gpytorch_gam.likelihoods import (
    GaussianLocationScaleLikelihood,
    QuantileLikelihood,
    RowwiseLikelihood,
    SoftmaxLikelihood,
)
from gpytorch_gam.likelihoods.expected_gradients import curvature_of
from gpytorch_gam.optim import NaturalGradient
from gpytorch_gam.optim.rows.predictors import positive_part, predictor_segments, semidefinite_rows
from gpytorch_gam.optim.rows.stream import Rows, concatenated
from gpytorch_gam.optim.rows.sums import LONGEST_MOVE, BatchFeatures
from gpytorch_gam.terms import constant
from gpytorch_gam.training import fit, initialize_posterior, polish
from tests.problems import corrected_gradients


def smooth(predictor: int) -> ComponentGroup:
    size = torch.Size([1])
    kernel = ScaleKernel(ANOVAKernel(RBFKernel(batch_shape=size), Uniform(0.0, 6.0)), batch_shape=size)
    return ComponentGroup(kernel, [[0]], regular_grid(0.0, 6.0, 10), names=[f"s{predictor}"], predictor=predictor)


def make_model(
    family: str = "block_low_rank", rank: int | str | None = None, num_predictors: int = 2, **options: object
) -> AdditiveGP:
    torch.manual_seed(0)
    groups = [g for p in range(num_predictors) for g in (smooth(p), constant(name=f"c{p}", predictor=p))]
    return AdditiveGP(AdditivePredictor(*groups), family=family, rank=rank, **options).double()


def location_scale_problem(num_rows: int = 500) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    x = 6 * torch.rand(num_rows, 1, dtype=torch.float64)
    return x, torch.sin(x[:, 0]) + torch.exp(torch.cos(x[:, 0])) * torch.randn(num_rows, dtype=torch.float64)


def bound(model: AdditiveGP, likelihood: gpytorch.likelihoods.Likelihood, x: torch.Tensor, y: torch.Tensor) -> float:
    mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(y)).train()
    with torch.no_grad():
        return len(y) * mll(model(x), y).item()


def optimum_by_lbfgs(
    likelihood: gpytorch.likelihoods.Likelihood, x: torch.Tensor, y: torch.Tensor, num_predictors: int
) -> float:
    """Of the coupled family, without natural gradients (but from where they lead)."""
    model = make_model("coupled", num_predictors=num_predictors)
    polish(model, likelihood, [(x, y)], max_passes=6)
    mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(y)).train()
    lbfgs = torch.optim.LBFGS(
        list(model.variational_parameters()),
        max_iter=1000,
        tolerance_change=1e-6,  # nats in a step, of the hundredth that tests compare
        history_size=50,
        line_search_fn="strong_wolfe",
    )

    def closure() -> torch.Tensor:
        lbfgs.zero_grad()
        loss = -len(y) * mll(model(x), y)
        loss.backward()
        return loss

    lbfgs.step(closure)
    return bound(model, likelihood, x, y)


# --------------------------------------------------------------------------------------------------- sums over rows


def dense_rows(model: AdditiveGP, features: torch.Tensor) -> torch.Tensor:
    """Phi_n, (n, Q, P)."""
    sizes = torch.tensor(model.predictor.num_inducing_per_component)
    owner = torch.tensor(model.predictor.predictor_of).repeat_interleave(sizes)
    return torch.nn.functional.one_hot(owner).double() * features.mT.unsqueeze(-1)


@pytest.mark.parametrize("num_predictors", [1, 2, 3])
def test_sums_over_rows_are_those_of_dense_matrices(num_predictors: int) -> None:
    model = make_model(num_predictors=num_predictors)
    x, _ = location_scale_problem(20)
    features = model.variational_strategy.features(x).detach()
    gradients = torch.randn(20, num_predictors).double()
    root = torch.randn(20, num_predictors, num_predictors).double()
    curvatures = root @ root.mT  # semidefinite, so both forms are the same
    batch = BatchFeatures(lambda rows: features, x, gradients, curvatures, 100, predictor_segments(model.predictor))
    rows = dense_rows(model, features)
    dense = (rows @ curvatures @ rows.mT).sum(0)
    gram, projected = batch.gram()
    torch.testing.assert_close(gram, dense)
    torch.testing.assert_close(projected, (rows @ gradients.unsqueeze(-1)).sum(0).squeeze(-1))
    columns = torch.randn(len(dense), 3).double()
    torch.testing.assert_close(batch.apply(columns), dense @ columns)
    blocks = [block for part in batch.totals(model.predictor.group_shapes).blocks for block in part]
    for block, place in zip(blocks, model.predictor.inducing_slices.values(), strict=True):
        torch.testing.assert_close(block, dense[place, place])
    direction = columns[:, 0]
    resistance = batch.resistance(direction)
    torch.testing.assert_close(resistance.curvature, direction @ dense @ direction)
    change = (rows.mT @ direction).abs() / rows.square().sum(1).sqrt()
    torch.testing.assert_close(resistance.reach, LONGEST_MOVE / change.max())


def test_rows_become_semidefinite_and_keep_their_diagonal() -> None:
    torch.manual_seed(0)
    matrix = torch.randn(50, 3, 3).double()
    matrix = (matrix + matrix.mT).movedim(0, -1)
    found = semidefinite_rows(matrix)
    assert torch.linalg.eigvalsh(found.movedim(-1, 0)).min() > -1e-12
    diagonal = matrix.diagonal(dim1=0, dim2=1)
    torch.testing.assert_close(found.diagonal(dim1=0, dim2=1), diagonal.clamp_min(0))
    definite = (matrix.movedim(-1, 0) @ matrix.movedim(-1, 0)).movedim(0, -1)
    torch.testing.assert_close(semidefinite_rows(definite), definite)
    assert torch.equal(semidefinite_rows(torch.zeros(2, 2, 1)), torch.zeros(2, 2, 1))
    single = torch.tensor([[[-1.0, 2.0]]])
    assert torch.equal(semidefinite_rows(single), single.clamp_min(0))


def test_the_curvature_of_location_and_log_scale_is_indefinite_but_not_its_sum() -> None:
    residual = torch.linspace(-2, 2, 41, dtype=torch.float64)
    one = torch.ones_like(residual)
    rows = torch.stack([torch.stack([one, 2 * residual]), torch.stack([2 * residual, 2 * residual.square()])])
    assert (torch.linalg.eigvalsh(rows.movedim(-1, 0))[:, 0] < -1e-3).sum() > 30
    total = semidefinite_rows(rows).sum(-1)
    torch.testing.assert_close(total, rows.sum(-1), rtol=1e-9, atol=1e-9)  # residuals are symmetric


def test_curvatures_are_symmetric_where_one_triangle_of_a_covariance_is_read() -> None:
    gradient = torch.tensor([[[1.0, 4.0], [0.0, 2.0]]])
    assert torch.equal(curvature_of(gradient, -2.0), torch.tensor([[[-2.0, -4.0], [-4.0, -4.0]]]).double())


def test_the_positive_part_has_no_negative_eigenvalue() -> None:
    matrix = torch.diag(torch.tensor([2.0, -1.0, 0.5]).double())
    torch.testing.assert_close(positive_part(matrix), torch.diag(torch.tensor([2.0, 0.0, 0.5]).double()))


# --------------------------------------------------------------------------------------------------------- gradients


@pytest.mark.parametrize(("family", "rank"), [("block_low_rank", 4), ("low_rank", 6), ("mean_field", None)])
def test_gradients_are_those_at_a_fixed_posterior_of_the_inducing_variables(family: str, rank: int | None) -> None:
    x, y = location_scale_problem(60)
    model, likelihood = make_model(family, rank).train(), GaussianLocationScaleLikelihood()
    strategy = model.variational_strategy
    model(x[:1])
    with torch.no_grad():  # any posterior, not only the optimal one
        for parameter in strategy._variational_distribution.parameters():
            parameter.copy_(0.3 * torch.randn_like(parameter))
    found = corrected_gradients(model, likelihood, x, y, 240)

    posterior = strategy.variational_distribution
    mean, covariance = posterior.mean.detach(), posterior.covariance_matrix.detach()
    root = torch.block_diag(*[block for cholesky in strategy.inducing_choleskys() for block in cholesky])
    change = torch.linalg.solve_triangular(root, root.detach(), upper=False)
    mean, covariance = change @ mean, change @ covariance @ change.mT
    rows = dense_rows(model, strategy.features(x))  # (n, Q, P)
    prior = torch.zeros(len(x), 2, dtype=torch.float64)
    for group in model.predictor.groups:
        prior = prior + torch.nn.functional.one_hot(torch.tensor(group.predictor_index), 2) * group.prior_variance(x).mT
    identity = torch.eye(len(mean), dtype=torch.float64)
    row_covariance = torch.diag_embed(prior) + rows.mT @ (covariance - identity) @ rows
    joint = gpytorch.distributions.MultitaskMultivariateNormal(
        rows.mT @ mean,
        torch.block_diag(*row_covariance),
        interleaved=True,
    )
    divergence = 0.5 * (mean @ mean + covariance.trace() - len(mean) - torch.logdet(covariance))
    dense = 4.0 * likelihood.expected_log_prob(y, joint).sum() - divergence
    parameters = [p for p in model.predictor.parameters() if p.requires_grad]
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(-dense / 240, parameters)])
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)


# ------------------------------------------------------------------------------------------------------------ optima


def test_polish_finds_the_optimum_of_location_and_scale() -> None:
    x, y = location_scale_problem()
    likelihood = GaussianLocationScaleLikelihood()
    best = optimum_by_lbfgs(likelihood, x, y, 2)
    for family, rank, slack in (
        ("coupled", None, 1e-2),
        ("block_low_rank", 12, 1e-2),
        ("low_rank", "auto", 1.0),
        ("mean_field", None, 3.0),
    ):
        model = make_model(family, rank)
        history = polish(model, likelihood, [(x, y)], max_passes=60, tolerance=1e-3)
        assert all(after >= before - 1e-6 for before, after in itertools.pairwise(history))
        assert best - slack < history[-1] < best + 1e-2
        assert bound(model, likelihood, x, y) == pytest.approx(history[-1], abs=1e-6)


def test_streamed_passes_stay_at_the_dense_optimum_and_minibatches_come_close() -> None:
    x, y = location_scale_problem()
    likelihood = GaussianLocationScaleLikelihood()
    model = make_model(rank=12)
    best = polish(model, likelihood, [(x, y)], max_passes=60)[-1]
    assert polish(model, likelihood, [(x, y)], dense_limit=1)[-1] > best - 0.1
    model = make_model(rank=12).train()
    natural = NaturalGradient(model, num_data=len(y))
    mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(y))
    for _ in range(60):
        rows = torch.randperm(len(y))[:100]
        (-mll(model(x[rows]), y[rows])).backward()
        natural.step()
    natural.remove()
    assert bound(model, likelihood, x, y) > best - 5.0  # a noise of one nat is what the step size is held at


def test_softmax_models_are_fitted_by_natural_gradients() -> None:
    torch.manual_seed(0)
    x = 6 * torch.rand(300, 1, dtype=torch.float64)
    logits = torch.stack([2 * torch.sin(x[:, 0]), 2 * torch.cos(x[:, 0]), torch.zeros(300).double()], -1)
    y = torch.distributions.Categorical(logits=logits).sample()
    likelihood = SoftmaxLikelihood(num_classes=3).double()
    best = optimum_by_lbfgs(likelihood, x, y, 3)
    model = make_model(rank=20, num_predictors=3)
    history = polish(model, likelihood, [(x, y)], max_passes=40)
    assert best - 0.5 < history[-1] < best + 1e-2
    model.eval()
    predicted = likelihood.eval()(model(x)).probs
    assert (predicted - logits.softmax(-1)).abs().mean() < 0.1


# ------------------------------------------------------------------------------------------------- what goes with it


def test_location_and_scale_are_learnt_and_intervals_cover_everywhere() -> None:
    x, y = location_scale_problem(1000)
    model, likelihood = make_model(rank=12), GaussianLocationScaleLikelihood()
    loader = DataLoader(RowDataset(x, y), batch_size=250, shuffle=True)
    history = fit(model, likelihood, loader, num_epochs=6, polish_passes=20).history
    assert math.isfinite(history[-1].elbo)

    grid = torch.linspace(0.0, 6.0, 101, dtype=torch.float64).unsqueeze(-1)
    parts = model.components(grid)  # the effects of each parameter
    assert model.predictor.names_of(1) == ("s1", "c1")
    for name, truth in (("s0", torch.sin(grid[:, 0])), ("s1", torch.cos(grid[:, 0]))):
        effect = parts[name].mean
        assert (effect - effect.mean() - (truth - truth.mean())).square().mean().sqrt() < 0.15

    torch.manual_seed(7)
    x_new = 6 * torch.rand(6000, 1, dtype=torch.float64)
    y_new = torch.sin(x_new[:, 0]) + torch.exp(torch.cos(x_new[:, 0])) * torch.randn(6000, dtype=torch.float64)
    with torch.no_grad():
        predicted = likelihood(model.predict(x_new, components=False).distribution)
        low, high = predictive_quantiles(predicted, [0.1, 0.9])
    is_inside = ((low < y_new) & (y_new < high)).double()
    decile = (x_new[:, 0] / 0.6).long().clamp(max=9)
    coverage = torch.stack([is_inside[decile == index].mean() for index in range(10)])
    assert (coverage - 0.8).abs().max() < 0.06  # 3.7 standard errors of 600 rows


@pytest.mark.filterwarnings("ignore:the bound is higher near")  # of a model that was not fitted
def test_hyperparameters_make_every_predictor_uncertain() -> None:
    x, y = location_scale_problem(200)
    model, likelihood = make_model(rank=6), GaussianLocationScaleLikelihood()
    uncertainty = HyperparameterUncertainty(model, likelihood, (x, y))
    moments = model.predict(x[:7], hyperparameters=uncertainty).moments
    parts = model.components(x[:7], hyperparameters=uncertainty)
    torch.testing.assert_close(moments.covariance, parts.predictor_moments().covariance)
    total = parts.cross_covariance()[:, 2:, 2:].sum((-2, -1))
    torch.testing.assert_close(moments.covariance[:, 1, 1], total)


def test_row_wise_arguments_reach_the_likelihood_in_fit_and_polish() -> None:
    """Integer weights are repeated rows, through every loop."""
    torch.manual_seed(0)
    x = 6 * torch.rand(80, 1, dtype=torch.float64)
    offset = torch.randn(80, dtype=torch.float64)
    y = torch.sin(x[:, 0]) + offset + 0.1 * torch.randn(80, dtype=torch.float64)
    weights = torch.randint(0, 4, (80,))
    again = torch.repeat_interleave(torch.arange(80), weights)
    found = []
    for batch in (
        (x, y, {"weights": weights.double(), "offset": offset}),
        (x[again], y[again], {"offset": offset[again]}),
    ):
        likelihood = RowwiseLikelihood(GaussianLikelihood()).double()
        model = make_model(rank=4, num_predictors=1)
        polish(model, likelihood, [batch])
        started = make_model(rank=4, num_predictors=1)
        initialize_posterior(started, likelihood, *batch[:2], **batch[2])
        torch.testing.assert_close(started(x).mean, model(x).mean, rtol=1e-6, atol=1e-6)
        found.append((polish(model, likelihood, [batch])[-1], model(x).mean, model(x).variance))
        fitted = make_model(rank=4, num_predictors=1)
        history = fit(fitted, likelihood, [batch], num_epochs=3, num_held_back=3).history
        found[-1] += (history[-1].elbo,)
    for first, second in zip(*found, strict=True):
        torch.testing.assert_close(torch.as_tensor(first), torch.as_tensor(second), rtol=1e-6, atol=1e-6)
    assert (found[0][1] - torch.sin(x[:, 0])).abs().mean() < 0.1  # the offset is not part of the components


def test_rows_that_are_joined_or_cut_keep_their_arguments() -> None:
    rows = Rows(torch.rand(7, 2), torch.rand(7), {"offset": torch.rand(7), "weights": torch.rand(7)})
    parts = list(rows.split(3))
    assert [len(part.x) for part in parts] == [3, 3, 1]
    (again,) = concatenated(parts)
    for name, value in rows.row_arguments.items():
        assert torch.equal(parts[1].row_arguments[name], value[3:6])
        assert torch.equal(again.row_arguments[name], value)


def test_bad_row_wise_arguments_are_refused() -> None:
    x, y = location_scale_problem(10)
    model, likelihood = make_model(num_predictors=1), RowwiseLikelihood(GaussianLikelihood()).double()
    for bad, error, message in (
        ([(x, y, y)], TypeError, "third entry of a batch must map names"),
        ([(x, y, {"weights": y[:5]})], ValueError, "weights must be a tensor with one entry for each of the 10 rows"),
        ([(x, y, {"weights": 2.0})], TypeError, "weights must be a tensor"),
        ([(x, y, {}, {})], ValueError, "pairs .* or triples"),
    ):
        with pytest.raises(error, match=message):
            polish(model, likelihood, bad)
    with pytest.raises(ValueError, match="exposure has 5 rows, but x has 10"):
        RowDataset(x, y, exposure=y[:5])


def test_arguments_that_gpytorch_would_ignore_are_refused() -> None:
    x, y = location_scale_problem(10)
    model, likelihood = make_model(num_predictors=1), GaussianLikelihood().double()
    batch = (x, y, {"weights": torch.ones(10).double()})
    message = r"GaussianLikelihood does not read weights: wrap it, RowwiseLikelihood\(GaussianLikelihood"
    for run in (
        lambda: fit(model, likelihood, [batch], num_data=10, num_epochs=1).history,
        lambda: polish(model, likelihood, [batch]),
        lambda: initialize_posterior(model, likelihood, x, y, **batch[2]),
        lambda: HyperparameterUncertainty(model, likelihood, [batch]),
    ):
        with pytest.raises(TypeError, match=message):
            run()
    with pytest.raises(
        TypeError, match=r"takes the row-wise arguments offset, weights, noise, but got weight \(did you"
    ):
        polish(model, RowwiseLikelihood(likelihood), [(x, y, {"weight": y})])
    with pytest.raises(TypeError, match="BernoulliLikelihood takes no row-wise argument, but got noise"):
        polish(model, BernoulliLikelihood().double(), [(x, (y > 0).double(), {"noise": y})])


@pytest.mark.parametrize("wrapped", [False, True])
def test_likelihoods_of_another_number_of_predictors_are_refused(wrapped: bool) -> None:
    x, y = location_scale_problem(10)
    model, single = make_model(num_predictors=2), GaussianLikelihood().double()
    single = RowwiseLikelihood(single) if wrapped else single
    for run in (
        lambda: fit(model, single, [(x, y)], num_data=10, num_epochs=1).history,
        lambda: polish(model, single, [(x, y)]),
        lambda: initialize_posterior(model, single, x, y),
    ):
        with pytest.raises(ValueError, match="GaussianLikelihood takes one predictor, but the model has 2"):
            run()
    with pytest.raises(
        ValueError, match=r"takes 2 predictors, but the model has 1: give .* predictor=0 to predictor=1"
    ):
        fit(make_model(num_predictors=1), GaussianLocationScaleLikelihood(), [(x, y)], num_data=10)
    # A failed call leaves nothing attached.
    fit(model, GaussianLocationScaleLikelihood(), [(x, y)], num_data=10, num_epochs=1, tolerance=10.0)


def test_all_rows_at_once_do_not_lead_away_from_the_optimum() -> None:
    """Newton's steps of a location and a log scale jump to where the bound is thousands of nats lower."""
    torch.manual_seed(0)
    x = torch.rand(120, 1, dtype=torch.float64) * 6
    y = torch.sin(2 * x[:, 0]) + torch.where(x[:, 0] < 1.5, 0.01, 0.5) * torch.randn(120, dtype=torch.float64)
    likelihood = GaussianLocationScaleLikelihood()
    best = polish(make_model(rank=8), likelihood, [(x, y)], max_passes=60)[-1]
    model = make_model(rank=8).train()
    natural = NaturalGradient(model, num_data=120)
    mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=120)
    for _ in range(40):
        loss = -mll(model(x), y)
        loss.backward()
        natural.step()
    natural.remove()
    assert -120 * loss.item() > best - 1.0
    fitted = make_model(rank=8)
    history = fit(fitted, likelihood, [(x, y)], num_data=120, num_epochs=40, num_held_back=40).history
    elbos = [epoch.elbo for epoch in history]
    assert elbos[-1] > best - 1.0
    assert all(after > before - 1e-3 for before, after in itertools.pairwise(elbos))


def test_all_rows_at_once_settle_with_a_likelihood_that_has_a_kink() -> None:
    torch.manual_seed(0)
    x = 6 * torch.rand(150, 1, dtype=torch.float64)
    y = torch.sin(x[:, 0]) + 0.1 * torch.randn(150, dtype=torch.float64)
    likelihood = QuantileLikelihood(0.9).double()
    likelihood.scale = 0.02
    model = make_model(rank=4, num_predictors=1)
    history = fit(model, likelihood, [(x, y)], num_data=150, num_epochs=40, num_held_back=40).history
    elbos = [epoch.elbo for epoch in history]
    assert max(elbos[-4:]) - min(elbos[-4:]) < 2.0
