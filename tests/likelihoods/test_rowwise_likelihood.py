"""Offsets and weights for GPyTorch's own likelihoods."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import gpytorch
import pytest
import torch
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.likelihoods import Likelihood

from gpytorch_gam.likelihoods import PoissonLikelihood, RowwiseLikelihood, SoftmaxLikelihood

from .one_predictor_cases import normal

NUM_ROWS = 8
MAKERS = {
    "gaussian": gpytorch.likelihoods.GaussianLikelihood,
    "bernoulli": gpytorch.likelihoods.BernoulliLikelihood,
    "laplace": gpytorch.likelihoods.LaplaceLikelihood,
    "student": gpytorch.likelihoods.StudentTLikelihood,
    "beta": gpytorch.likelihoods.BetaLikelihood,
    "poisson": gpytorch.likelihoods.PoissonLikelihood,
    "negative binomial": gpytorch.likelihoods.NegativeBinomialLikelihood,
}
each_likelihood = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())


def responses(likelihood: Likelihood) -> torch.Tensor:
    y = likelihood(torch.linspace(-1.0, 1.0, NUM_ROWS)).sample()
    return y.clamp(0.01, 0.99) if isinstance(likelihood, gpytorch.likelihoods.BetaLikelihood) else y


def predictor(mean: torch.Tensor) -> MultivariateNormal:
    root = 0.2 * torch.eye(NUM_ROWS) + 0.1
    return MultivariateNormal(mean, root @ root)


@each_likelihood
def test_it_is_the_likelihood_without_row_arguments(make: type) -> None:
    plain, dist = make(), predictor(torch.linspace(-1.0, 1.0, NUM_ROWS))
    y, wrapped = responses(plain), RowwiseLikelihood(plain)
    assert wrapped.has_analytic_marginal == plain.has_analytic_marginal
    for method in ("expected_log_prob", "log_marginal"):
        assert torch.equal(getattr(wrapped, method)(y, dist), getattr(plain, method)(y, dist))
    marginals = []
    for likelihood in (plain, wrapped):
        torch.manual_seed(0)
        marginals.append(likelihood(dist).mean)
    assert torch.equal(*marginals)


@each_likelihood
def test_an_offset_shifts_the_mean(make: type) -> None:
    wrapped, mean = RowwiseLikelihood(make()), torch.linspace(-1.0, 1.0, NUM_ROWS)
    y, offset = responses(wrapped), torch.linspace(1.0, -0.5, NUM_ROWS)
    dist, shifted = predictor(mean), predictor(mean + offset)
    for method in ("expected_log_prob", "log_marginal"):
        by_offset = getattr(wrapped, method)(y, dist, offset=offset)
        torch.testing.assert_close(by_offset, getattr(wrapped, method)(y, shifted))
    assert torch.equal(wrapped(mean, offset=offset).log_prob(y), wrapped(mean + offset).log_prob(y))
    results = []
    for given, arguments in ((dist, {"offset": offset, "weights": 3.0}), (shifted, {})):
        torch.manual_seed(0)
        results.append(wrapped(given, **arguments).mean)
    torch.testing.assert_close(*results)


@each_likelihood
def test_weights_multiply(make: type) -> None:
    wrapped, dist, weights = RowwiseLikelihood(make()), predictor(torch.zeros(NUM_ROWS)), torch.arange(NUM_ROWS)
    y = responses(wrapped)
    for method in ("expected_log_prob", "log_marginal"):
        plain = getattr(wrapped, method)(y, dist)
        assert torch.equal(getattr(wrapped, method)(y, dist, weights=weights), plain * weights)


def test_offsets_of_several_predictors() -> None:
    wrapped = RowwiseLikelihood(gpytorch.likelihoods.SoftmaxLikelihood(num_classes=3, mixing_weights=False))
    mean, y = torch.randn(NUM_ROWS, 3), torch.arange(NUM_ROWS) % 3
    first, each = torch.randn(NUM_ROWS), torch.randn(NUM_ROWS, 3)
    moved_first = mean + torch.stack([first, torch.zeros(NUM_ROWS), torch.zeros(NUM_ROWS)], dim=-1)
    for interleaved in (True, False):
        covariance = 0.1 * torch.eye(3 * NUM_ROWS)
        dist = MultitaskMultivariateNormal(mean, covariance, interleaved=interleaved)
        for offset, moved in ((first, moved_first), (each, mean + each)):
            values = []
            for given, arguments in (
                (dist, {"offset": offset}),
                (MultitaskMultivariateNormal(moved, covariance, interleaved=interleaved), {}),
            ):
                torch.manual_seed(0)
                values.append(wrapped.expected_log_prob(y, given, **arguments))
            torch.testing.assert_close(*values)


def test_further_arguments_are_passed_on() -> None:
    wrapped = RowwiseLikelihood(gpytorch.likelihoods.FixedNoiseGaussianLikelihood(torch.full((NUM_ROWS,), 0.1)))
    dist, noise = predictor(torch.zeros(NUM_ROWS)), torch.linspace(0.1, 1.0, NUM_ROWS)
    y = torch.randn(NUM_ROWS)
    for method in ("expected_log_prob", "log_marginal"):
        passed = getattr(wrapped, method)(y, dist, noise=noise, weights=2.0)
        assert torch.equal(passed, 2 * getattr(wrapped.likelihood, method)(y, dist, noise=noise))


def test_parameters_are_the_likelihoods() -> None:
    wrapped = RowwiseLikelihood(gpytorch.likelihoods.GaussianLikelihood())
    assert [name for name, _ in wrapped.named_parameters()] == ["likelihood.noise_covar.raw_noise"]
    wrapped.expected_log_prob(torch.randn(NUM_ROWS), predictor(torch.zeros(NUM_ROWS)), weights=2.0).sum().backward()
    assert wrapped.likelihood.raw_noise.grad.abs() > 0


def test_copies_and_states() -> None:
    wrapped = RowwiseLikelihood(gpytorch.likelihoods.GaussianLikelihood())
    wrapped.likelihood.noise = 0.3
    fresh = RowwiseLikelihood(gpytorch.likelihoods.GaussianLikelihood())
    fresh.load_state_dict(wrapped.state_dict())
    for copied in (copy.deepcopy(wrapped), pickle.loads(pickle.dumps(wrapped)), fresh):
        assert torch.equal(copied.likelihood.noise, wrapped.likelihood.noise)


def test_batches_and_scalar_arguments() -> None:
    wrapped = RowwiseLikelihood(gpytorch.likelihoods.BernoulliLikelihood())
    dist = normal(torch.randn(2, 3, NUM_ROWS), torch.rand(2, 3, NUM_ROWS) + 0.1)
    y, weights = (torch.rand(NUM_ROWS) < 0.5).float(), torch.rand(3, 1)
    value = wrapped.expected_log_prob(y, dist, offset=0.5, weights=weights)
    assert value.shape == (2, 3, NUM_ROWS)
    part = wrapped.expected_log_prob(y, normal(dist.mean[1, 2] + 0.5, dist.variance[1, 2]))
    torch.testing.assert_close(value[1, 2], part * weights[2])


def test_what_takes_weights_itself_is_refused() -> None:
    rowwise = RowwiseLikelihood(gpytorch.likelihoods.GaussianLikelihood())
    for likelihood in (PoissonLikelihood(), SoftmaxLikelihood(3), rowwise):
        with pytest.raises(TypeError, match="takes offset and weights itself"):
            RowwiseLikelihood(likelihood)
    with pytest.raises(TypeError, match="must be a GPyTorch likelihood, got the class GaussianLikelihood: call it"):
        RowwiseLikelihood(gpytorch.likelihoods.GaussianLikelihood)


def test_wrong_arguments_are_refused_by_name() -> None:
    wrapped, dist = RowwiseLikelihood(gpytorch.likelihoods.GaussianLikelihood()), predictor(torch.zeros(NUM_ROWS))
    y = torch.zeros(NUM_ROWS)
    with pytest.raises(ValueError, match="weights must be finite and not negative"):
        wrapped.expected_log_prob(y, dist, weights=-1.0)
    with pytest.raises(ValueError, match=r"offset has shape \(3,\)"):
        wrapped.expected_log_prob(y, dist, offset=torch.zeros(3))
    with pytest.raises(ValueError, match=r"weights has shape \(3,\)"):
        wrapped.log_marginal(y, dist, weights=torch.zeros(3))


CALLS = {
    "expected_log_prob": lambda likelihood, dist, *args, **kwargs: likelihood.expected_log_prob(
        torch.zeros(NUM_ROWS), dist, *args, **kwargs
    ),
    "log_marginal": lambda likelihood, dist, *args, **kwargs: likelihood.log_marginal(
        torch.zeros(NUM_ROWS), dist, *args, **kwargs
    ),
    "marginal": lambda likelihood, dist, *args, **kwargs: likelihood(dist, *args, **kwargs),
    "forward": lambda likelihood, dist, *args, **kwargs: likelihood(dist.mean, *args, **kwargs),
}
each_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())


@each_call
@pytest.mark.parametrize(
    "make",
    [lambda make=make: RowwiseLikelihood(make()) for make in MAKERS.values()] + [PoissonLikelihood],
    ids=[*MAKERS, "ours"],
)
def test_a_misspelt_argument_is_refused(make: Callable[[], Likelihood], call: Callable[..., object]) -> None:
    with pytest.raises(TypeError, match=r"offset, weights.*, but got weight \(did you mean weights\?\)"):
        call(make(), predictor(torch.zeros(NUM_ROWS)), weight=torch.ones(NUM_ROWS))


@each_call
def test_arguments_by_position_are_refused(call: Callable[..., object]) -> None:
    joint = MultitaskMultivariateNormal(torch.zeros(NUM_ROWS, 3), torch.eye(3 * NUM_ROWS))
    for likelihood, dist in (
        (RowwiseLikelihood(gpytorch.likelihoods.GaussianLikelihood()), predictor(torch.zeros(NUM_ROWS))),
        (PoissonLikelihood(), predictor(torch.zeros(NUM_ROWS))),
        (SoftmaxLikelihood(3), joint),
    ):
        with pytest.raises(TypeError, match="reads no further argument by position, but got 1: pass row-wise"):
            call(likelihood, dist, torch.ones(NUM_ROWS))


class _Exposed(gpytorch.likelihoods._OneDimensionalLikelihood):
    """Somebody's own, with an argument that its signature names."""

    def forward(
        self, function_samples: torch.Tensor, exposure: float | torch.Tensor = 1.0
    ) -> torch.distributions.Poisson:
        return torch.distributions.Poisson(exposure * function_samples.exp())


class _Open(_Exposed):
    """Somebody's own that may read any argument."""

    def forward(self, function_samples: torch.Tensor, **kwargs: torch.Tensor) -> torch.distributions.Poisson:
        return super().forward(function_samples, kwargs.get("hours", 1.0))


@pytest.mark.parametrize(("make", "name"), [(_Exposed, "exposure"), (_Open, "hours")])
def test_arguments_of_somebodys_own_likelihood_are_read_everywhere(make: type, name: str) -> None:
    wrapped, ours = RowwiseLikelihood(make()), PoissonLikelihood()
    y, dist, hours = torch.arange(NUM_ROWS), predictor(torch.linspace(-1.0, 1.0, NUM_ROWS)), torch.rand(NUM_ROWS) + 0.5
    for method in ("expected_log_prob", "log_marginal"):
        found = getattr(wrapped, method)(y, dist, weights=2.0, **{name: hours})
        torch.testing.assert_close(
            found, getattr(ours, method)(y, dist, weights=2.0, exposure=hours), rtol=1e-3, atol=1e-3
        )


def test_misspellings_are_found_where_any_argument_may_be_read() -> None:
    dist, y = predictor(torch.zeros(NUM_ROWS)), torch.zeros(NUM_ROWS)
    with pytest.raises(TypeError, match=r"got offsets \(did you mean offset\?\)"):
        RowwiseLikelihood(_Open()).expected_log_prob(y, dist, offsets=y)
    with pytest.raises(TypeError, match=r"got exposures \(did you mean exposure\?\)"):
        RowwiseLikelihood(_Exposed()).expected_log_prob(y, dist, exposures=y)
