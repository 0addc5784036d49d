"""Calls of a model in eval mode: moments a chunk at a time, and a covariance that is formed when it is asked for."""

import copy
import pickle
import resource
from collections import Counter
from collections.abc import Callable
from typing import Any

import gpytorch
import pytest
import torch
from gpytorch.distributions import MultivariateNormal
from torch import Tensor

from gpytorch_gam import AdditiveGP, AdditivePredictor
from gpytorch_gam.terms import constant, smooth
from gpytorch_gam.training import initialize_posterior
from gpytorch_gam.variational import (
    AdditiveVariationalStrategy,
    FullAdditiveVariationalStrategy,
    _inducing_projection,
    additive_strategy,
)
from tests.two_processes import in_new_process


def rows(n: int) -> Tensor:
    return torch.rand(n, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def make_model(num_predictors: int = 1) -> AdditiveGP:
    torch.manual_seed(0)
    groups = [smooth([0, 1], low=0.0, high=1.0, num_inducing=6), constant()]
    groups += [smooth(0, low=0.0, high=1.0, num_inducing=5, predictor=1)] if num_predictors > 1 else []
    model = AdditiveGP(AdditivePredictor(*groups, mean=gpytorch.means.ConstantMean()), rank=4).double()
    if num_predictors == 1:
        x = rows(40)
        likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
        initialize_posterior(model, likelihood, x, torch.sin(6 * x[:, 0]), num_data=400)
    return model.eval()


@pytest.fixture
def few_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(additive_strategy, "_PREDICTION_NUMBERS", 1)
    monkeypatch.setattr(additive_strategy, "_LEAST_PREDICTION_ROWS", 4)


def halve_lengthscales(model: AdditiveGP) -> None:
    """As GPyTorch's setters do, which leave no trace in the versions of tensors."""
    for module in model.predictor.groups[0].kernel.modules():
        if getattr(module, "has_lengthscale", False):
            module.lengthscale = 0.5 * module.lengthscale.detach()


def shift(model: AdditiveGP) -> None:
    """Change kernels, mean and posterior, with and without a trace in the versions of tensors."""
    halve_lengthscales(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3)


def moments(distribution: MultivariateNormal) -> list[Tensor]:
    covariance = distribution.covariance_matrix
    return [part.detach().clone() for part in (distribution.mean, distribution.variance, covariance)]


@pytest.mark.usefixtures("few_rows_at_a_time")
@pytest.mark.parametrize("num_predictors", [1, 2])
@pytest.mark.parametrize("with_gradients", [False, True])
def test_chunks_give_what_all_rows_do(
    num_predictors: int, with_gradients: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = make_model(num_predictors), rows(30)
    with torch.set_grad_enabled(with_gradients):
        found = model(x)
        monkeypatch.setattr(additive_strategy, "_LEAST_PREDICTION_ROWS", 100)
        expected = model(x)
        for left, right in zip(moments(found), moments(expected), strict=True):
            torch.testing.assert_close(left, right)
        diagonal = found.covariance_matrix.diagonal()
        variance = found.variance if num_predictors == 1 else found.variance.mT.flatten()
        torch.testing.assert_close(diagonal, variance)


@pytest.mark.usefixtures("few_rows_at_a_time")
def test_gradients_of_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    model, gradients = make_model(), []
    for least in (4, 100):
        monkeypatch.setattr(additive_strategy, "_LEAST_PREDICTION_ROWS", least)
        x = rows(30).requires_grad_()
        model.zero_grad()
        posterior = model(x)
        (posterior.mean.sin().sum() + posterior.variance.log().sum()).backward()
        gradients.append([x.grad, *(parameter.grad for parameter in model.parameters())])
    for left, right in zip(*gradients, strict=True):
        torch.testing.assert_close(left, right)


@pytest.mark.usefixtures("few_rows_at_a_time")
def test_a_gradient_needs_the_kernels_as_they_were() -> None:
    model = make_model()
    posterior = model(rows(30))
    halve_lengthscales(model)
    with pytest.raises(RuntimeError, match="kernels have changed since this prediction was made"):
        posterior.mean.sum().backward()


@pytest.mark.parametrize("num_predictors", [1, 2])
@pytest.mark.parametrize("with_gradients", [False, True])
def test_a_posterior_describes_the_model_as_it_was(num_predictors: int, with_gradients: bool) -> None:
    model, x = make_model(num_predictors), rows(8)
    with torch.set_grad_enabled(with_gradients):
        expected, posterior = moments(model(x)), model(x)
        shift(model)
        assert (model(x).mean - expected[0]).abs().max() > 0.1
        for left, right in zip(moments(posterior), expected, strict=True):
            torch.testing.assert_close(left, right)


def test_a_posterior_without_inducing_points_describes_the_model_as_it_was() -> None:
    class Model(gpytorch.models.ApproximateGP):
        def __init__(self, x: Tensor) -> None:
            super().__init__(FullAdditiveVariationalStrategy(self, make_model().predictor, x))

    x = rows(12)
    model = Model(x)
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    model.variational_strategy.fit_sites(likelihood, torch.sin(6 * x[:, 0]))
    model.eval()
    expected, posterior = moments(model(x[:5])), model(x[:5])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3)
        model.variational_strategy.inputs.add_(0.1)
    for left, right in zip(moments(posterior), expected, strict=True):
        torch.testing.assert_close(left, right)


def test_functional_parameters_are_those_of_the_covariance() -> None:
    model, x = make_model(), rows(6)
    name = next(name for name, _ in model.named_parameters() if name.endswith("raw_lengthscale"))
    other = dict(model.named_parameters())[name].detach() + 0.5
    expected = make_model()
    dict(expected.named_parameters())[name].data.copy_(other)
    value = other.clone().requires_grad_()
    posterior = torch.func.functional_call(model, {name: value}, (x,))
    torch.testing.assert_close(posterior.covariance_matrix, expected(x).covariance_matrix)
    (gradient,) = torch.autograd.grad(posterior.covariance_matrix.sum(), value)
    (reference,) = torch.autograd.grad(expected(x).covariance_matrix.sum(), dict(expected.named_parameters())[name])
    torch.testing.assert_close(gradient, reference)


@pytest.mark.parametrize(
    "use",
    [
        lambda p: p.covariance_matrix[2:5, 2:5] - p[2:5].covariance_matrix,
        lambda p: p.covariance_matrix[::2, ::2][1:, 1:] - p[::2][1:].covariance_matrix,
        lambda p: p.covariance_matrix[[1, 4]][:, [1, 4]] - p[torch.tensor([1, 4])].covariance_matrix,
        lambda p: p.covariance_matrix - p.expand(torch.Size([3])).covariance_matrix[2],
        lambda p: p.covariance_matrix @ p.mean - p.lazy_covariance_matrix @ p.mean,
        lambda p: p.covariance_matrix.float() - p.lazy_covariance_matrix.float().to_dense(),
        lambda p: p.variance.float() - p.lazy_covariance_matrix.float().diagonal(),
        lambda p: p.covariance_matrix - p.lazy_covariance_matrix.detach().to_dense(),
        lambda p: 4 * p.covariance_matrix - (p * 2).covariance_matrix,
        lambda p: 2 * p.covariance_matrix - (p + p).covariance_matrix,
        lambda p: p.variance + 0.5 - p.add_jitter(0.5).variance,
    ],
)
def test_the_covariance_is_an_ordinary_one(use: Callable[[MultivariateNormal], Tensor]) -> None:
    with torch.no_grad():
        difference = use(make_model()(rows(8)))
    torch.testing.assert_close(difference, torch.zeros_like(difference), atol=1e-6, rtol=0)


def test_draws_and_densities_are_those_of_the_covariance() -> None:
    posterior, y = make_model()(rows(5)), torch.rand(5).double()
    dense = torch.distributions.MultivariateNormal(
        posterior.mean, posterior.covariance_matrix + 0.1 * torch.eye(5).double()
    )
    torch.testing.assert_close(posterior.add_jitter(0.1).log_prob(y), dense.log_prob(y), rtol=1e-5, atol=1e-5)
    torch.manual_seed(0)
    draws = posterior.rsample(torch.Size([4000]))
    torch.testing.assert_close(draws.mT.cov(), posterior.covariance_matrix, atol=0.05, rtol=0.1)


@torch.no_grad()
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda posterior: pickle.loads(pickle.dumps(posterior))])
@pytest.mark.parametrize("num_predictors", [1, 2])
def test_predictions_are_copied_and_pickled(num_predictors: int, copied: Callable[[Any], Any]) -> None:
    posterior = make_model(num_predictors)(rows(6))
    other = copied(posterior)
    torch.testing.assert_close(other.mean, posterior.mean)
    torch.testing.assert_close(other.covariance_matrix, posterior.covariance_matrix)


def added_memory() -> list[float]:
    """By how many MiB the memory of a process grows where many rows follow some, without and with gradients."""
    x, found = torch.rand(100_000, 2), []
    model = AdditiveGP(AdditivePredictor(smooth([0, 1], low=0.0, high=1.0), constant()), rank=8).eval()
    likelihood = gpytorch.likelihoods.GaussianLikelihood().eval()
    for with_gradients in (False, True):
        with torch.set_grad_enabled(with_gradients):
            _ = likelihood(model(x[:40_000])).variance
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            _ = likelihood(model(x)).variance, model(x).confidence_region()
        found.append((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
    return found


@pytest.mark.xdist_group("distributed")
def test_memory_hardly_grows_with_the_rows() -> None:
    without_gradients, with_gradients = in_new_process(added_memory)
    # MiB; the projections of all rows alone take 100, and the graph 500.
    assert without_gradients < 50
    if not torch.__version__.startswith("2.6."):  # whose checkpoints stay until garbage is collected
        assert with_gradients < 200


@pytest.mark.parametrize("is_training", [True, False])
def test_no_group_is_projected_twice(monkeypatch: pytest.MonkeyPatch, is_training: bool) -> None:
    model, x, counts = make_model(2).train(is_training), rows(7), Counter[str]()
    model.variational_strategy._initialize_once()

    def counted(owner: object, name: str) -> None:
        function = getattr(owner, name)

        def call(*arguments: object, **named: object) -> object:
            counts[name] += 1
            return function(*arguments, **named)

        monkeypatch.setattr(owner, name, call)

    for name in ("project_sum", "project_components"):
        counted(_inducing_projection, name)
    counted(AdditivePredictor, "check_inputs")
    counted(AdditiveVariationalStrategy, "_factors_of")
    distribution = model(x)
    assert distribution.mean.shape == distribution.variance.shape == (7, 2)
    assert counts == {"project_sum": 3, "check_inputs": 1, "_factors_of": 1}
    assert distribution.covariance_matrix.shape == (14, 14)
    assert counts["project_components"] == (0 if is_training else 3)  # the joint covariance is formed when it is read
    assert counts["project_sum"] == 3 and counts["check_inputs"] == counts["_factors_of"] == 1


def test_reading_a_model_changes_no_bit() -> None:
    model, x = make_model(2), rows(7)
    model(x)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for read in (
        lambda: model(x).variance,
        lambda: model(x).covariance_matrix,
        lambda: model.components(x).centred().sample(),
        lambda: model.predict(x),
        model.state_dict,
        lambda: copy.deepcopy(model),
        lambda: pickle.dumps(model),
    ):
        read()
        after = model.state_dict()
        assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
