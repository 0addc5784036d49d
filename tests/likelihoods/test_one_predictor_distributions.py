"""Conditional and marginal distributions of the one-predictor likelihoods."""

from __future__ import annotations

import pytest
import torch
from linear_operator.operators import DiagLinearOperator
from scipy import stats
from torch.distributions import Categorical, MixtureSameFamily

from gpytorch_gam.distributions import predictive_quantiles
from gpytorch_gam.distributions.marginal_normal import MarginalNormal
from gpytorch_gam.likelihoods import (
    GammaLikelihood,
    NegativeBinomialLikelihood,
    PoissonLikelihood,
    StudentTLikelihood,
)

from .one_predictor_cases import CASES, NAMES, NUM_ROWS, Case, dense, marginals, normal

each_case = pytest.mark.parametrize("case", CASES, ids=NAMES)
with_moments = pytest.mark.parametrize(
    "case",
    [case for case in CASES if case.name not in ("ordinal", "two classes")],
    ids=[name for name in NAMES if name not in ("ordinal", "two classes")],
)


@each_case
def test_conditional_log_prob_is_scipys(case: Case) -> None:
    mean, _ = marginals(1.0)
    y = case.responses(mean)
    rows = {name: value.numpy() for name, value in case.rows.items()}
    wanted = torch.tensor(case.log_density(y.numpy(), mean.numpy(), **rows))
    log_prob = case.make()(mean, **case.rows).log_prob(y)
    torch.testing.assert_close(log_prob.detach(), wanted, rtol=1e-9, atol=1e-9)


@with_moments
def test_samples_have_the_moments_of_the_conditional_distribution(case: Case) -> None:
    mean, _ = marginals(1.0)
    with torch.no_grad():
        conditional = case.make()(mean, **case.rows)
        samples = conditional.sample((40000,))
        deviation = conditional.variance.sqrt()
        # five standard errors of a mean
        assert ((samples.mean(0) - conditional.mean).abs() < 5 * deviation / 200).all()
        if case.name not in ("narrow student", "student"):  # whose squares have no variance
            torch.testing.assert_close(samples.var(0), conditional.variance, rtol=0.15, atol=0.0)


@with_moments
def test_marginal_mean_and_variance_are_those_of_the_samples(case: Case) -> None:
    mean, variances = marginals(0.3)
    with torch.no_grad():
        marginal = case.make()(normal(mean, variances), **case.rows)
        samples = marginal.sample((40000,))
        assert ((samples.mean(0) - marginal.mean).abs() < 5 * marginal.variance.sqrt() / 200).all()
        if case.name not in ("narrow student", "student"):
            torch.testing.assert_close(samples.var(0), marginal.variance, rtol=0.25, atol=0.0)


@each_case
def test_marginal_log_prob_is_log_marginal_and_deterministic(case: Case) -> None:
    mean, variances = marginals(1.0)
    y, likelihood = case.responses(mean), case.make()
    dist = normal(mean, variances)
    first, second = (likelihood(dist, **case.rows).log_prob(y) for _ in range(2))
    assert torch.equal(first, second)
    torch.testing.assert_close(first, likelihood.log_marginal(y, dist, **case.rows), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(first.detach(), dense(case, y, mean, variances, True), rtol=1e-8, atol=1e-7)


@each_case
def test_expanded_marginals_are_repeated(case: Case) -> None:
    mean, variances = marginals(1.0)
    y, marginal = case.responses(mean), case.make()(normal(mean, variances), **case.rows)
    expanded = marginal.expand(torch.Size([2, NUM_ROWS]))
    assert expanded.batch_shape == (2, NUM_ROWS)
    assert expanded.sample().shape == (2, NUM_ROWS)
    torch.testing.assert_close(expanded.log_prob(y), marginal.log_prob(y).expand(2, -1))


def test_log_link_means_are_those_of_the_log_normal_distribution() -> None:
    mean, variances = marginals(4.0)
    for likelihood in (PoissonLikelihood(), NegativeBinomialLikelihood().double()):
        marginal = likelihood(normal(mean, variances), exposure=3.0)
        assert isinstance(marginal, MixtureSameFamily)
        torch.testing.assert_close(marginal.mean, 3.0 * (mean + variances / 2).exp(), rtol=1e-9, atol=0.0)


@pytest.mark.parametrize("make", [PoissonLikelihood, NegativeBinomialLikelihood])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_doubling_the_exposure_doubles_the_mean_bit_by_bit(make: type, dtype: torch.dtype) -> None:
    mean, variances = marginals(0.7, dtype)
    likelihood, exposure = make().to(dtype), 1000 * torch.rand(NUM_ROWS, dtype=dtype)
    for predictor in (mean, normal(mean, variances)):
        once, twice = (likelihood(predictor, exposure=factor * exposure).mean for factor in (1.0, 2.0))
        assert torch.equal(twice, 2 * once)


def test_samples_of_certain_counts_are_not_lumped_at_nodes() -> None:
    mean, variances = torch.full((1,), 12.0), torch.ones(1)
    samples = PoissonLikelihood()(normal(mean, variances)).sample((1000,))
    assert samples.unique().numel() > 900


def test_categorical_of_float32_predictors_sums_to_one() -> None:
    case = CASES[NAMES.index("ordinal")]
    marginal = case.make().float()(normal(*marginals(1.0, torch.float32)))
    assert isinstance(marginal, Categorical)
    assert marginal.probs.dtype == torch.float32
    torch.testing.assert_close(marginal.probs.sum(-1), torch.ones(NUM_ROWS))


@pytest.mark.parametrize("shape", [0.5, 10.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_distribution_function_of_gamma_has_no_steps_at_nodes(shape: float, dtype: torch.dtype) -> None:
    """The response given the predictor is far more certain than the predictor."""
    likelihood = GammaLikelihood().to(dtype)
    likelihood.shape = shape
    distribution = likelihood(normal(torch.tensor([0.3], dtype=dtype), torch.tensor([2.0], dtype=dtype)))
    z = torch.linspace(-9.0, 9.0, 100001, dtype=torch.float64)
    weights = torch.softmax(-0.5 * z.square(), dim=0)
    for level, y in zip((0.01, 0.3, 0.95), predictive_quantiles(distribution, [0.01, 0.3, 0.95]), strict=True):
        rate = shape * y.double() * torch.exp(-(0.3 + 2.0**0.5 * z))
        probability = weights @ torch.special.gammainc(torch.full_like(rate, shape), rate)
        assert abs(probability - level) < 1e-5
    torch.testing.assert_close(distribution.expand((2, 1)).cdf(y), distribution.cdf(y).expand(2, 1))


@each_case
def test_distribution_functions_integrate_the_densities(case: Case) -> None:
    if case.name != "quantile":
        pytest.skip("torch's own")
    mean, variances = (tensor[:3] for tensor in marginals(1.0))
    likelihood = case.make()
    grid = torch.linspace(-30.0, 30.0, 60001, dtype=torch.float64).unsqueeze(-1)
    for distribution in (likelihood(mean), likelihood(normal(mean, variances))):
        density = distribution.log_prob(grid).exp().detach()
        summed = torch.cumulative_trapezoid(density, dx=1e-3, dim=0)
        torch.testing.assert_close(distribution.cdf(grid[1:]).detach(), summed, rtol=0.0, atol=1e-6)


@pytest.mark.parametrize("ratio", [0.1, 1.0, 300.0])
def test_quantiles_of_student_t_responses_are_not_those_of_draws(ratio: float) -> None:
    likelihood = StudentTLikelihood().double().initialize(deg_free=3.0, noise=0.25)
    covariance = DiagLinearOperator(torch.full((2,), (0.5 * ratio) ** 2, dtype=torch.float64))
    response = likelihood(MarginalNormal(torch.ones(2, dtype=torch.float64), covariance))
    nodes = torch.linspace(-9.0, 9.0, 100001, dtype=torch.float64)
    weights = (-0.5 * nodes.square()).softmax(0)
    for probability in (0.001, 0.5, 0.9):
        first, second = predictive_quantiles(response, probability).tolist()
        assert first == second
        given = stats.t.cdf((first - 1.0 - 0.5 * ratio * nodes.numpy()) / 0.5, 3.0)
        assert (weights.numpy() * given).sum() == pytest.approx(probability, abs=3e-6)
