"""Expectations of the one-predictor likelihoods against dense integrals of SciPy's densities."""

from __future__ import annotations

import math
from functools import partial

import mpmath
import pytest
import torch
from gpytorch.likelihoods import StudentTLikelihood as UpstreamStudentT
from linear_operator.operators import DiagLinearOperator

from gpytorch_gam import AdditiveGP, AdditivePredictor, fit
from gpytorch_gam.distributions.marginal_normal import MarginalNormal
from gpytorch_gam.likelihoods import (
    BinomialLikelihood,
    GammaLikelihood,
    NegativeBinomialLikelihood,
    OrdinalLikelihood,
    PoissonLikelihood,
    QuantileLikelihood,
    StudentTLikelihood,
)
from gpytorch_gam.terms import constant

from .one_predictor_cases import CASES, NAMES, NUM_ROWS, Case, dense, marginals, normal

each_case = pytest.mark.parametrize("case", CASES, ids=NAMES)


def case_named(name: str) -> Case:
    return CASES[NAMES.index(name)]


@each_case
@pytest.mark.parametrize("variance", [0.01, 1.0, 4.0])
def test_expected_log_prob_is_the_dense_integral(case: Case, variance: float) -> None:
    mean, variances = marginals(variance)
    y = case.responses(mean + variances.sqrt() * torch.randn(NUM_ROWS, dtype=torch.float64))
    expected = case.make().expected_log_prob(y, normal(mean, variances), **case.rows)
    # The dense sum of a kinked function is itself right to 1e-8 only.
    torch.testing.assert_close(expected.detach(), dense(case, y, mean, variances), rtol=1e-8, atol=1e-7)


@each_case
@pytest.mark.parametrize("variance", [0.01, 1.0, 4.0])
def test_log_marginal_is_the_dense_integral(case: Case, variance: float) -> None:
    mean, variances = marginals(variance)
    y = case.responses(mean + variances.sqrt() * torch.randn(NUM_ROWS, dtype=torch.float64))
    marginal = case.make().log_marginal(y, normal(mean, variances), **case.rows)
    torch.testing.assert_close(marginal.detach(), dense(case, y, mean, variances, True), rtol=1e-8, atol=1e-7)


@each_case
def test_responses_far_from_the_predictor(case: Case) -> None:
    mean, variances = marginals(0.3)
    y = case.responses(mean)
    mean = mean.flip(0) * 4
    likelihood, dist = case.make(), normal(mean, variances)
    expected, marginal = (of(y, dist, **case.rows) for of in (likelihood.expected_log_prob, likelihood.log_marginal))
    torch.testing.assert_close(expected.detach(), dense(case, y, mean, variances), rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(marginal.detach(), dense(case, y, mean, variances, True), rtol=1e-7, atol=1e-7)


@each_case
def test_gradients_are_those_of_the_function(case: Case) -> None:
    mean, variances = marginals(1.0)
    y, likelihood = case.responses(mean), case.make().double()
    names = [name for name, _ in likelihood.named_parameters()]

    def values(which: str, mean: torch.Tensor, variance: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        arguments = (y, normal(mean, variance)) if which != "forward" else (mean,)
        result = torch.func.functional_call(
            _Method(likelihood, which),
            {f"of.{name}": value for name, value in zip(names, parameters, strict=True)},
            arguments,
            case.rows,
        )
        return result

    inputs = [mean, variances, *(parameter.detach().clone() for parameter in likelihood.parameters())]
    inputs = [tensor.requires_grad_() for tensor in inputs]
    for which in ("expected_log_prob", "log_marginal"):
        # Nodes move with the predictor in differences, but not in derivatives: that shows the error of the rule itself.
        assert torch.autograd.gradcheck(partial(values, which), inputs, eps=1e-5, atol=1e-5)


class _Method(torch.nn.Module):
    def __init__(self, of: torch.nn.Module, name: str) -> None:
        super().__init__()
        self.of, self.name = of, name

    def forward(self, *args: object, **kwargs: object) -> torch.Tensor:
        return getattr(self.of, self.name)(*args, **kwargs)


@each_case
def test_float32_differs_by_rounding(case: Case) -> None:
    mean, variances = marginals(0.5)
    y = case.responses(mean)
    likelihood, rows = case.make().float(), {name: value.float() for name, value in case.rows.items()}
    dist = normal(mean.float(), variances.float())
    for method in ("expected_log_prob", "log_marginal"):
        single = getattr(likelihood, method)(y.float(), dist, **rows)
        double = getattr(case.make().double(), method)(y, normal(mean, variances), **case.rows)
        assert single.dtype == torch.float32
        torch.testing.assert_close(single.double(), double, rtol=1e-5, atol=1e-5)


@each_case
def test_batches_are_their_members(case: Case) -> None:
    mean, variances = marginals(0.5)
    mean = mean + torch.arange(6, dtype=torch.float64).reshape(2, 3, 1) / 6
    variances = variances.expand(2, 3, -1) * torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64).unsqueeze(-1)
    y = case.responses(mean)
    likelihood = case.make()
    for method in ("expected_log_prob", "log_marginal"):
        whole = getattr(likelihood, method)(y, normal(mean, variances), **case.rows)
        part = getattr(likelihood, method)(y[1, 2], normal(mean[1, 2], variances[1, 2]), **case.rows)
        assert whole.shape == (2, 3, NUM_ROWS)
        torch.testing.assert_close(whole[1, 2], part, rtol=1e-12, atol=1e-12)
    marginal = likelihood(normal(mean, variances), **case.rows)
    assert marginal.batch_shape == (2, 3, NUM_ROWS)
    assert marginal.sample((4,)).shape == (4, 2, 3, NUM_ROWS)
    # responses shared by a batch of models
    shared = likelihood.expected_log_prob(y[0, 0], normal(mean, variances), **case.rows)
    assert shared.shape == (2, 3, NUM_ROWS)


@pytest.mark.parametrize(
    "make",
    [
        NegativeBinomialLikelihood,
        GammaLikelihood,
        StudentTLikelihood,
        lambda batch_shape: QuantileLikelihood(0.3, batch_shape),
        lambda batch_shape: OrdinalLikelihood(4, batch_shape),
    ],
)
def test_batches_of_parameters(make: object) -> None:
    likelihood = make(batch_shape=torch.Size([3])).double()
    with torch.no_grad():
        for parameter in likelihood.parameters():
            parameter += torch.arange(3.0).reshape(3, 1) / 5
    mean, variances = marginals(0.5)
    y = torch.arange(NUM_ROWS, dtype=torch.float64) % 3 + 1
    single = make(batch_shape=torch.Size([])).double()
    single.load_state_dict(
        {name: value[1] if value.dim() > 1 else value for name, value in likelihood.state_dict().items()}
    )
    dist = normal(mean, variances)
    for method in ("expected_log_prob", "log_marginal"):
        whole, part = (getattr(each, method)(y, dist) for each in (likelihood, single))
        assert whole.shape == (3, NUM_ROWS)
        torch.testing.assert_close(whole[1], part, rtol=1e-12, atol=1e-12)
    marginal = likelihood(dist)
    assert marginal.batch_shape == (3, NUM_ROWS)
    assert marginal.sample().shape == (3, NUM_ROWS)
    torch.testing.assert_close(marginal.log_prob(y)[1], single(dist).log_prob(y), rtol=1e-10, atol=1e-10)


@each_case
@pytest.mark.parametrize("centre", [-50.0, 50.0])
def test_extreme_predictors_have_finite_values_and_gradients_in_float32(case: Case, centre: float) -> None:
    mean, variances = marginals(100.0, torch.float32)
    y = case.responses(mean.double()).float()
    likelihood, rows = case.make().float(), {name: value.float() for name, value in case.rows.items()}
    for method in ("expected_log_prob", "log_marginal"):
        inputs = [(mean + centre).requires_grad_(), variances.clone().requires_grad_()]
        value = getattr(likelihood, method)(y, normal(*inputs), **rows)
        gradients = torch.autograd.grad(value.sum(), [*inputs, *likelihood.parameters()])
        assert torch.isfinite(value).all()
        for gradient in gradients:
            assert torch.isfinite(gradient).all()
            assert torch.isfinite(gradient.square()).all()  # for Adam


@each_case
def test_nothing_waits_for_a_device(case: Case) -> None:
    """On the meta device tensors have no values to look at."""
    mean, variances = (tensor.to("meta").requires_grad_() for tensor in marginals(1.0, torch.float32))
    likelihood, rows = case.make().float().to("meta"), {name: value.to("meta") for name, value in case.rows.items()}
    dist = MarginalNormal(mean, DiagLinearOperator(variances))
    y, weights = torch.empty(NUM_ROWS, device="meta"), torch.empty(NUM_ROWS, device="meta")
    value = likelihood.expected_log_prob(y, dist, offset=0.5, weights=weights, **rows)
    value.sum().backward()
    assert value.device.type == "meta"
    assert value.shape == mean.grad.shape == (NUM_ROWS,)


@each_case
def test_one_row_and_no_rows(case: Case) -> None:
    likelihood = case.make()
    for size in (1, 0):
        rows = {name: value[:size] for name, value in case.rows.items()}
        mean, variances = (tensor[:size] for tensor in marginals(0.5))
        y = torch.ones(size, dtype=torch.float64)
        assert likelihood.expected_log_prob(y, normal(mean, variances), **rows).shape == (size,)
        assert likelihood.log_marginal(y, normal(mean, variances), **rows).shape == (size,)
        assert likelihood(normal(mean, variances), **rows).sample().shape == (size,)


@pytest.mark.parametrize("dispersion", [1e-12, 1e-9, 1e-6, 1e-3])
def test_negative_binomial_is_stable_down_to_its_poisson_limit(dispersion: float) -> None:
    likelihood = NegativeBinomialLikelihood()
    y = torch.tensor([0.0, 1.0, 30.0, 4000.0], dtype=torch.float64)
    f = torch.tensor([-2.0, 0.5, 3.0, 8.0], dtype=torch.float64)
    values = {
        "exposure": torch.ones((), dtype=torch.float64),
        "dispersion": torch.tensor(dispersion, dtype=torch.float64),
    }
    log_prob = likelihood._log_prob(y, f, values)
    with mpmath.workdps(60):
        wanted = [
            float(_exact_negative_binomial(count, mean, dispersion))
            for count, mean in zip(y.tolist(), f.tolist(), strict=True)
        ]
    # rounding of terms of the size of y
    torch.testing.assert_close(log_prob, torch.tensor(wanted, dtype=torch.float64), rtol=1e-12, atol=1e-10)
    if dispersion <= 1e-12:
        poisson = PoissonLikelihood()._log_prob(y, f, values)
        torch.testing.assert_close(log_prob, poisson, rtol=1e-8, atol=1e-8)


def _exact_negative_binomial(y: float, log_mean: float, dispersion: float) -> mpmath.mpf:
    y, mean, size = mpmath.mpf(y), mpmath.exp(mpmath.mpf(log_mean)), 1 / mpmath.mpf(dispersion)
    choices = mpmath.loggamma(y + size) - mpmath.loggamma(size) - mpmath.loggamma(y + 1)
    return choices - size * mpmath.log1p(mean / size) + y * mpmath.log(mean / (mean + size))


def test_ordinal_differences_are_stable_in_the_tails() -> None:
    likelihood = OrdinalLikelihood(4).double().initialize(cutpoints=torch.tensor([-1.0, 0.0, 0.001]))
    f = torch.tensor([-40.0, 40.0, -40.0, 30.0], dtype=torch.float64)
    y = torch.tensor([2.0, 1.0, 3.0, 2.0], dtype=torch.float64)
    cutpoints = likelihood.cutpoints.detach().tolist()
    limits = [
        (cutpoints[1], cutpoints[2]),
        (cutpoints[0], cutpoints[1]),
        (cutpoints[2], mpmath.inf),
        (cutpoints[1], cutpoints[2]),
    ]
    with mpmath.workdps(1200):
        wanted = [
            float(mpmath.log(mpmath.ncdf(mpmath.mpf(high) - mean) - mpmath.ncdf(mpmath.mpf(low) - mean)))
            for (low, high), mean in zip(limits, f.tolist(), strict=True)
        ]
    log_prob = likelihood._log_prob(y, f, {"cutpoints": likelihood.cutpoints})
    torch.testing.assert_close(log_prob.detach(), torch.tensor(wanted, dtype=torch.float64), rtol=1e-9, atol=1e-9)


def test_ordinal_marginal_is_exact() -> None:
    case = case_named("ordinal")
    mean, variances = marginals(4.0)
    marginal = case.make()(normal(mean, variances))
    assert isinstance(marginal, torch.distributions.Categorical)
    for row in range(5):
        wanted = dense(case, torch.full((NUM_ROWS,), float(row)), mean, variances, True)
        torch.testing.assert_close(marginal.log_prob(torch.tensor(row)).detach(), wanted, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(marginal.probs.sum(-1), torch.ones(NUM_ROWS, dtype=torch.float64))


def test_probit_binomial_of_one_trial_is_the_bernoulli_likelihood() -> None:
    mean, variances = marginals(2.0)
    marginal = BinomialLikelihood("probit")(normal(mean, variances))
    torch.testing.assert_close(marginal.mean, torch.special.ndtr(mean / (1 + variances).sqrt()), rtol=1e-10, atol=1e-10)


def test_quantile_likelihood_of_known_predictor_is_maximal_at_the_sample_quantile() -> None:
    likelihood = QuantileLikelihood(0.9).double()
    y = torch.randn(1001, dtype=torch.float64)
    grid = torch.linspace(-1.0, 3.0, 401, dtype=torch.float64)
    total = likelihood(grid.unsqueeze(-1)).log_prob(y).sum(-1)
    assert abs(grid[total.argmax()] - y.quantile(0.9)) < 0.011  # the spacing of the grid


@pytest.mark.parametrize("level", [0.6, 0.9, 0.99])
def test_the_normal_power_gives_the_variance_of_a_sample_quantile(level: float) -> None:
    y = torch.distributions.Normal(0.0, 1.0).icdf((torch.arange(4000, dtype=torch.float64) + 0.5) / 4000)
    model = AdditiveGP(AdditivePredictor(constant()), "coupled").double()
    likelihood = QuantileLikelihood(level, power=QuantileLikelihood.normal_power(level)).double()
    fit(model, likelihood, (torch.zeros(4000, 1, dtype=torch.float64), y), method="rows")
    found = model(torch.zeros(1, 1, dtype=torch.float64))
    place = torch.distributions.Normal(0.0, 1.0).icdf(torch.tensor(level, dtype=torch.float64))
    density = math.exp(-0.5 * place**2) / math.sqrt(2 * math.pi)
    assert found.mean.item() == pytest.approx(place.item(), abs=0.02)
    assert found.variance.item() == pytest.approx(level * (1 - level) / (4000 * density**2), rel=0.1)


def test_poisson_closed_form_keeps_large_counts_in_float32() -> None:
    y = torch.tensor([2.0e6, 5.0e4])
    mean, variance = y.log(), torch.tensor([1e-6, 1e-5])
    value = PoissonLikelihood().expected_log_prob(y, normal(mean, variance))
    wanted = PoissonLikelihood().expected_log_prob(y.double(), normal(mean.double(), variance.double()))
    # terms of 3e7 nats cancel
    torch.testing.assert_close(value.double(), wanted, rtol=1e-6, atol=1e-6)


def test_gamma_is_indifferent_to_the_units_of_the_response() -> None:
    mean, variances = marginals(1.0)
    y = case_named("gamma").responses(mean)
    likelihood, log_scale = GammaLikelihood().double(), 60.0
    plain = likelihood.expected_log_prob(y, normal(mean, variances))
    scaled = likelihood.expected_log_prob(y * math.exp(log_scale), normal(mean + log_scale, variances))
    torch.testing.assert_close(scaled, plain - log_scale, rtol=1e-12, atol=1e-12)


def test_student_t_is_accurate_where_gpytorchs_is_not() -> None:
    """Why there is a Student-t likelihood of ours."""
    case = case_named("narrow student")
    mean = torch.zeros(61, dtype=torch.float64)
    variances = torch.ones(61, dtype=torch.float64)
    y = torch.linspace(-3.0, 3.0, 61, dtype=torch.float64)
    wanted = dense(case, y, mean, variances)
    upstream = UpstreamStudentT().double().initialize(deg_free=3.0, noise=0.01)
    theirs = (upstream.expected_log_prob(y, normal(mean, variances)) - wanted).abs().max()
    ours = (case.make().expected_log_prob(y, normal(mean, variances)) - wanted).abs().max()
    assert theirs > 0.1  # nats; .22 at worst
    assert ours < 1e-6
    assert upstream(normal(mean, variances)).mean.shape == (10, 61)  # random samples
