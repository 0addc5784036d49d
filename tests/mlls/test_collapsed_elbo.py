"""The collapsed bound against the reference cases and against the ELBO of the coupled family."""

from __future__ import annotations

import gpytorch
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.variational import CholeskyVariationalDistribution
from torch.utils.data import DataLoader, TensorDataset

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup
from gpytorch_gam.components import regular_grid
from gpytorch_gam.likelihoods import RowwiseLikelihood
from gpytorch_gam.mlls import CollapsedELBO
from gpytorch_gam.mlls.collapsed_elbo import gaussian_optimum
from tests import reference


def make_objective(case: dict, chunk_size: int = 8192) -> CollapsedELBO:
    predictor = reference.make_predictor(case)
    distribution = CholeskyVariationalDistribution(predictor.num_inducing_total).double()
    model = reference.Model(predictor, distribution, jitter=case["jitter_on_Kuu"])
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    likelihood.noise = reference.tensor([case["noise"]])
    return CollapsedELBO(likelihood, model, chunk_size=chunk_size)


@pytest.mark.parametrize("case", reference.cases())
def test_bound_matches_the_reference(case: dict) -> None:
    x, y = reference.tensor(case["X"]), reference.tensor(case["y"])
    bound = make_objective(case)(x, y) * len(y)
    assert bound.item() == pytest.approx(case["expected"]["collapsed_bound"], rel=1e-8)


@pytest.mark.parametrize("case", reference.cases())
@pytest.mark.parametrize("chunk_size", [1, 4, 8192])
def test_optimum_set_into_the_coupled_family_reaches_the_bound(case: dict, chunk_size: int) -> None:
    x, y = reference.tensor(case["X"]), reference.tensor(case["y"])
    objective = make_objective(case, chunk_size)
    optimum, strategy = objective.optimum(x, y), objective.model.variational_strategy
    strategy.set_whitened_posterior(optimum.mean, optimum.precision)
    expected = case["expected"]["gaussian_optimum"]
    posterior = strategy.inducing_posterior()
    torch.testing.assert_close(posterior.mean, reference.tensor(expected["inducing_mean"]), rtol=1e-7, atol=1e-8)
    torch.testing.assert_close(
        posterior.covariance_matrix, reference.tensor(expected["inducing_covariance"]), rtol=1e-7, atol=1e-8
    )
    elbo = gpytorch.mlls.VariationalELBO(objective.likelihood, objective.model.train(), num_data=len(y))
    assert (elbo(objective.model(x), y) * len(y)).item() == pytest.approx(optimum.bound.item(), rel=1e-8)


@pytest.mark.parametrize("case", reference.cases())
@pytest.mark.parametrize("family", ["low_rank", "block_low_rank", "mean_field"])
def test_optimum_set_into_a_structured_family_is_close_to_the_bound(case: dict, family: str) -> None:
    x, y = reference.tensor(case["X"]), reference.tensor(case["y"])
    objective = make_objective(case)
    optimum = objective.optimum(x, y)
    predictor = objective.model.variational_strategy.predictor
    rank = {"low_rank": predictor.num_inducing_total, "block_low_rank": 3}.get(family)
    model = AdditiveGP(predictor, family, rank, jitter_val=case["jitter_on_Kuu"]).double()
    model.variational_strategy.set_whitened_posterior(optimum.mean, optimum.precision)
    elbo = gpytorch.mlls.VariationalELBO(objective.likelihood, model.train(), num_data=len(y))
    gap = optimum.bound.item() - elbo(model(x), y).item() * len(y)
    assert -1e-8 <= gap < {"low_rank": 1e-6, "block_low_rank": 1.0, "mean_field": 20.0}[family]


def test_bound_is_differentiable_in_every_hyperparameter() -> None:
    case = reference.cases()[2]
    objective = make_objective(case)
    named = {n: p for n, p in objective.named_parameters() if "_variational_distribution" not in n}
    x, y = reference.tensor(case["X"]), reference.tensor(case["y"])

    def bound(*values: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(objective, dict(zip(named, values, strict=True)), (x, y))

    assert torch.autograd.gradcheck(bound, tuple(p.detach().clone().requires_grad_() for p in named.values()))


def test_float32_survives_many_rows_and_little_noise() -> None:
    size = torch.Size([2])
    kernel = ScaleKernel(RBFKernel(batch_shape=size), batch_shape=size)
    kernel.base_kernel.lengthscale = 0.3
    predictor = AdditivePredictor(ComponentGroup(kernel, [[0], [1]], regular_grid(0.0, 1.0, 12)))
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    likelihood.noise = 1e-3
    x = torch.rand(50000, 2)
    objective = CollapsedELBO(likelihood, AdditiveGP(predictor))
    assert torch.isfinite(objective.optimum(x, torch.sin(6 * x).sum(-1)).bound)


def test_one_pass_over_a_loader_gives_the_same_optimum() -> None:
    case = reference.cases()[3]
    x, y, objective = reference.tensor(case["X"]), reference.tensor(case["y"]), make_objective(case)
    loader = DataLoader(TensorDataset(x, y), batch_size=3, shuffle=True)
    streamed, direct = objective.optimum_of_batches(loader), objective.optimum(x, y)
    for actual, expected in zip(streamed, direct, strict=True):
        torch.testing.assert_close(actual, expected)
    with pytest.raises(ValueError, match="batches is empty"):
        objective.optimum_of_batches([])


def test_statistics_alone_give_the_optimum() -> None:
    case = reference.cases()[3]
    x, y, objective = reference.tensor(case["X"]), reference.tensor(case["y"]), make_objective(case)
    with torch.no_grad():
        statistics = objective.statistics(x[:2], y[:2]).plus(objective.statistics(x[2:], y[2:]))
        found = gaussian_optimum(statistics, objective.likelihood.noise.squeeze(-1))
    for actual, expected in zip(found, objective.optimum(x, y), strict=True):
        torch.testing.assert_close(actual, expected)


def test_errors_name_what_is_wrong() -> None:
    case = reference.cases()[0]
    objective = make_objective(case)
    with pytest.raises(TypeError, match="must be a GaussianLikelihood, got BernoulliLikelihood"):
        CollapsedELBO(gpytorch.likelihoods.BernoulliLikelihood(), objective.model)
    x, y = reference.tensor(case["X"]), reference.tensor(case["y"])
    for call in (objective, objective.optimum):
        with pytest.raises(ValueError, match="y has 2 entries"):
            call(x, y[:2])
        for wrong in (y.numpy(), y.tolist(), None):
            with pytest.raises(TypeError, match=r"y must be a torch\.Tensor, got"):
                call(x, wrong)
            with pytest.raises(TypeError, match=r"x must be a torch\.Tensor, got"):
                call(wrong, y)
        with pytest.raises(ValueError, match=r"pass y.squeeze\(-1\)"):
            call(x, y.unsqueeze(-1))
    with pytest.raises(ValueError, match=r"batches must hold pairs \(x, y\), or triples"):
        objective.optimum_of_batches([(x, y, y)])
    with pytest.raises(ValueError, match=r"y is torch\.float32 on cpu, but x is torch\.float64"):
        objective(x, y.float())
    y[1] = float("nan")
    with pytest.raises(ValueError, match="NaN or infinity in 1 of"):
        objective(x, y)


def named_hyperparameters(objective: CollapsedELBO) -> dict[str, torch.nn.Parameter]:
    named = objective.named_parameters()
    return {name: parameter for name, parameter in named if "_variational_distribution" not in name}


@pytest.mark.parametrize("case", reference.cases())
@pytest.mark.parametrize("chunk_size", [1, 3])
def test_value_and_gradients_in_chunks_equal_whole_ones(case: dict, chunk_size: int) -> None:
    x, y = reference.tensor(case["X"]), reference.tensor(case["y"])
    values = []
    for size in (chunk_size, 8192):
        objective = make_objective(case, size)
        value = objective(x, y)
        value.backward()
        gradients = {name: parameter.grad for name, parameter in named_hyperparameters(objective).items()}
        assert all(gradient is not None for gradient in gradients.values())
        values.append((value.detach(), gradients))
    torch.testing.assert_close(values[0], values[1], rtol=1e-10, atol=1e-12)


def test_gradients_in_chunks_reach_inputs_responses_and_inducing_points() -> None:
    kernel = ScaleKernel(RBFKernel(batch_shape=torch.Size([2])), batch_shape=torch.Size([2]))
    group = ComponentGroup(kernel, [[0], [1]], regular_grid(0.0, 1.0, 5), learn_inducing_locations=True)
    model, likelihood = AdditiveGP(AdditivePredictor(group)).double(), gpytorch.likelihoods.GaussianLikelihood()
    x, y = torch.rand(11, 2).double().requires_grad_(), torch.randn(11).double().requires_grad_()
    found = []
    for size in (4, 8192):
        inputs = [x, y, group.inducing_points, likelihood.raw_noise]
        found.append(torch.autograd.grad(CollapsedELBO(likelihood.double(), model, size)(x, y), inputs))
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-12)


def test_gradients_in_chunks_are_those_of_a_functional_call() -> None:
    """A second evaluation in the backward pass has to be at the parameters of the call."""
    case = reference.cases()[2]
    x, y, found = reference.tensor(case["X"]), reference.tensor(case["y"]), []
    for size in (3, 8192):
        objective = make_objective(case, size)
        named = named_hyperparameters(objective)
        others = {name: (parameter.detach() + 0.3).requires_grad_() for name, parameter in named.items()}
        value = torch.func.functional_call(objective, others, (x, y))
        found.append(torch.autograd.grad(value, list(others.values())))
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-12)


# ----------------------------------------------------------------------------------------------- row-wise arguments


@pytest.mark.parametrize("chunk_size", [2, 8192])
def test_weights_stand_for_repeated_rows(chunk_size: int) -> None:
    case = reference.cases()[3]
    x, y, objective = reference.tensor(case["X"]), reference.tensor(case["y"]), make_objective(case, chunk_size)
    times = torch.arange(len(y)) % 3  # some rows are left out
    weighted = CollapsedELBO(RowwiseLikelihood(objective.likelihood), objective.model, chunk_size)
    found, expected = (
        weighted.optimum(x, y, weights=times),
        objective.optimum(x.repeat_interleave(times, 0), y.repeat_interleave(times)),
    )
    torch.testing.assert_close(found, expected)
    assert weighted(x, y, weights=times).item() * len(y) == pytest.approx(expected.bound.item())
    batches = [(x[:2], y[:2], {"weights": times[:2]}), (x[2:], y[2:], {"weights": times[2:]})]
    torch.testing.assert_close(weighted.optimum_of_batches(batches), expected)


@pytest.mark.parametrize("chunk_size", [2, 8192])
def test_offsets_move_the_responses_and_noises_by_row_are_those_of_the_elbo(chunk_size: int) -> None:
    case = reference.cases()[3]
    x, y, objective = reference.tensor(case["X"]), reference.tensor(case["y"]), make_objective(case, chunk_size)
    rows = {"offset": torch.randn_like(y), "weights": torch.rand_like(y) + 0.5}
    likelihood = RowwiseLikelihood(objective.likelihood)
    shifted = CollapsedELBO(likelihood, objective.model, chunk_size)
    expected = shifted.optimum(x, y - rows["offset"], weights=rows["weights"])
    torch.testing.assert_close(shifted.optimum(x, y, **rows), expected)
    rows["noise"] = 0.1 + torch.rand_like(y)
    fixed = RowwiseLikelihood(gpytorch.likelihoods.FixedNoiseGaussianLikelihood(rows["noise"]).double())
    bounds = []
    for each, given in ((likelihood, rows), (fixed, {name: rows[name] for name in ("offset", "weights")})):
        optimum = CollapsedELBO(each, objective.model, chunk_size).optimum(x, y, **given)
        objective.model.variational_strategy.set_whitened_posterior(optimum.mean, optimum.precision)
        elbo = gpytorch.mlls.VariationalELBO(likelihood, objective.model.train(), num_data=len(y))
        assert (elbo(objective.model(x), y, **rows) * len(y)).item() == pytest.approx(optimum.bound.item(), rel=1e-8)
        bounds.append(optimum.bound.item())
    assert bounds[0] == pytest.approx(bounds[1], rel=1e-12)


def test_row_wise_arguments_that_cannot_be_read_are_refused() -> None:
    case = reference.cases()[3]
    x, y, objective = reference.tensor(case["X"]), reference.tensor(case["y"]), make_objective(case)
    rowwise = CollapsedELBO(RowwiseLikelihood(objective.likelihood), objective.model)
    with pytest.raises(TypeError, match="does not read weights: wrap it"):
        objective(x, y, weights=y.square())
    with pytest.raises(TypeError, match="but got weight"):
        rowwise.optimum(x, y, weight=y)
    with pytest.raises(ValueError, match="weights must be finite and not negative"):
        rowwise.optimum(x, y, weights=y - 10)
    with pytest.raises(ValueError, match="offset has shape"):
        rowwise.optimum(x, y, offset=y[:2])
    with pytest.raises(ValueError, match="some batches have the row-wise argument noise"):
        objective.optimum_of_batches([(x[:2], y[:2], {"noise": y[:2].square() + 1}), (x[2:], y[2:])])
    fixed = CollapsedELBO(gpytorch.likelihoods.FixedNoiseGaussianLikelihood(torch.ones_like(y)), objective.model)
    with pytest.raises(ValueError, match="does not know which rows a batch has"):
        fixed.optimum_of_batches([(x[:2], y[:2]), (x[2:], y[2:])])
