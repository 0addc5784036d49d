"""Likelihoods of several predictors as GPyTorch objects: rows' arguments, shapes, predictions, errors, copies."""

from __future__ import annotations

import copy
import io
import math
import pickle

import gpytorch
import mpmath
import numpy as np
import pytest
import torch
from gpytorch.distributions import MultivariateNormal
from scipy import stats

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup
from gpytorch_gam.components import regular_grid
from gpytorch_gam.distributions import row_moments
from gpytorch_gam.distributions.mean_dispersion_negative_binomial import (
    MeanDispersionNegativeBinomial,
    negative_binomial_log_prob,
)
from gpytorch_gam.distributions.quantiles import predictive_quantiles
from gpytorch_gam.likelihoods.gaussian_location_scale_likelihood import GaussianLocationScaleLikelihood
from gpytorch_gam.likelihoods.negative_binomial_mean_dispersion_likelihood import (
    NegativeBinomialMeanDispersionLikelihood,
)
from gpytorch_gam.likelihoods.softmax_likelihood import SoftmaxLikelihood
from gpytorch_gam.likelihoods.student_t_location_scale_likelihood import StudentTLocationScaleLikelihood
from tests import reference

from .joint_cases import CASES, Case, distribution, drawn_nodes, moments

REAL = ["gaussian", "negative_binomial", "student"]


@pytest.fixture(params=list(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def assert_equal(actual: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(actual.detach(), expected.detach(), atol=tolerance, rtol=tolerance)


# ------------------------------------------------------------------ the reference cases


@pytest.mark.parametrize("index", range(len(reference.cases())))
@pytest.mark.parametrize("family", reference.FAMILIES)
@pytest.mark.parametrize("is_training", [True, False])
def test_reference_cases(index: int, family: str, is_training: bool) -> None:
    case = reference.cases()[index]
    expected = case["expected"][family]["two_predictors"]
    model = reference.make_model(case, family, two_predictors=True).train(is_training)
    x, y = reference.tensor(case["X"]), reference.tensor(case["y"])
    posterior = model(x)
    mean, covariance = row_moments(posterior)
    assert_equal(mean, reference.tensor(expected["mean"]), 1e-8)
    assert_equal(covariance, reference.tensor(expected["covariance"]), 1e-8)
    mll = gpytorch.mlls.VariationalELBO(GaussianLocationScaleLikelihood().train(is_training), model, num_data=len(y))
    elbo = mll(posterior, y) * len(y)
    assert_equal(elbo, reference.tensor(expected["elbo_gaussian_location_log_scale"]), 1e-8)


# ------------------------------------------------------------------ arguments of the rows


def test_integer_weights_are_repeated_rows(case: Case) -> None:
    mean, covariance = moments(case)
    likelihood, y, repeats = case.make().double(), case.y, torch.tensor([2, 0, 1, 3])
    for method in (likelihood.expected_log_prob, likelihood.log_marginal):
        weighted = method(y, distribution(mean, covariance), weights=repeats)
        rows = torch.arange(4).repeat_interleave(repeats)
        repeated = method(y[rows], distribution(mean[rows], covariance[rows]))
        assert_equal(weighted.sum(), repeated.sum())


def test_integer_weights_are_repeated_rows_in_the_bound() -> None:
    case = reference.cases()[0]
    model = reference.make_model(case, "block_low_rank_precision", two_predictors=True).train()
    x, y = reference.tensor(case["X"]), reference.tensor(case["y"])
    repeats = torch.arange(len(y)) % 3
    rows = torch.arange(len(y)).repeat_interleave(repeats)
    likelihood = GaussianLocationScaleLikelihood()
    weighted = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(y))(model(x), y, weights=repeats)
    repeated = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(rows))(model(x[rows]), y[rows])
    assert_equal(weighted * len(y), repeated * len(rows), 1e-9)


def test_an_offset_shifts_the_first_predictor_or_each(case: Case) -> None:
    mean, covariance = moments(case)
    likelihood, y = case.make().double(), case.y
    first, each = torch.randn(4, dtype=torch.float64), torch.randn_like(mean)
    shifted = mean.clone()
    shifted[:, 0] += first
    for offset, target in ((first, shifted), (each, mean + each), (0.5, mean + 0.5 * torch.eye(mean.shape[-1])[0])):
        for method in (likelihood.expected_log_prob, likelihood.log_marginal):
            actual = method(y, distribution(mean, covariance), offset=offset)
            assert_equal(actual, method(y, distribution(target, covariance)))
        assert_equal(
            likelihood(distribution(mean, covariance), offset=offset, weights=first.abs()).log_prob(y),
            likelihood(distribution(target, covariance)).log_prob(y),
        )
        assert_equal(likelihood(mean, offset=offset).log_prob(y), likelihood(target).log_prob(y))


def test_exposure_multiplies_the_mean_of_counts_exactly() -> None:
    case = CASES["negative_binomial"]
    mean, covariance = moments(case)
    likelihood, exposure = case.make().double(), torch.tensor([1.0, 2.0, 0.25, 8.0], dtype=torch.float64)
    once, more = (likelihood(distribution(mean, covariance), exposure=e) for e in (torch.ones(4), exposure))
    assert_equal(more.mean, exposure * once.mean)
    by_offset = likelihood.expected_log_prob(case.y, distribution(mean, covariance), offset=exposure.log())
    by_exposure = likelihood.expected_log_prob(case.y, distribution(mean, covariance), exposure=exposure)
    assert_equal(by_exposure, by_offset)
    assert_equal(
        likelihood.log_marginal(case.y, distribution(mean, covariance), exposure=exposure),
        more.log_prob(case.y),
    )
    assert_equal(likelihood(mean, exposure=exposure).mean, exposure * mean[:, 0].exp())


# ------------------------------------------------------------------ shapes and dtypes


def test_batches_are_independent_rows(case: Case) -> None:
    mean, covariance = moments(case, rows=12)
    y = case.y.repeat(3)
    likelihood = case.make().double()
    flat = likelihood.expected_log_prob(y, distribution(mean, covariance))
    batched = distribution(mean.reshape(3, 4, -1), covariance.reshape(3, 4, *covariance.shape[1:]))
    assert_equal(likelihood.expected_log_prob(y.reshape(3, 4), batched), flat.reshape(3, 4))
    flat_marginal = likelihood.log_marginal(y, distribution(mean, covariance))
    assert_equal(likelihood.log_marginal(y.reshape(3, 4), batched), flat_marginal.reshape(3, 4))
    # Responses broadcast, also to more batch dimensions than the distribution has.
    assert_equal(likelihood.expected_log_prob(case.y, batched), flat.reshape(3, 4))
    single = distribution(mean[:4], covariance[:4])
    assert_equal(likelihood.expected_log_prob(y.reshape(3, 4), single), flat[:4].expand(3, 4))
    weights = torch.arange(12.0).reshape(3, 4)
    assert_equal(likelihood.expected_log_prob(y.reshape(3, 4), single, weights=weights), weights * flat[:4])
    assert likelihood(batched).batch_shape == (3, 4)
    assert likelihood(batched).sample((2,)).shape == (2, 3, 4)
    assert likelihood(batched).log_prob(likelihood(batched).sample((2,))).shape == (2, 3, 4)


def test_one_row(case: Case) -> None:
    mean, covariance = moments(case)
    likelihood = case.make().double()
    one = likelihood.expected_log_prob(case.y[:1], distribution(mean[:1], covariance[:1]))
    assert_equal(one, likelihood.expected_log_prob(case.y, distribution(mean, covariance))[:1])


def test_float32_is_close_to_float64(case: Case) -> None:
    mean, covariance = moments(case)
    exact = case.make().double()
    single = case.make()
    dist, dist32 = distribution(mean, covariance), distribution(mean.float(), covariance.float())
    for name in ("expected_log_prob", "log_marginal"):
        actual = getattr(single, name)(case.y.float(), dist32)
        assert actual.dtype == torch.float32
        torch.testing.assert_close(
            actual.double().detach(), getattr(exact, name)(case.y, dist).detach(), atol=1e-5, rtol=1e-5
        )


@pytest.mark.parametrize("name", REAL)
def test_extreme_predictors_give_finite_float32_values_and_gradients(name: str) -> None:
    case = CASES[name]
    mean = torch.tensor([[0.0, -100.0], [0.0, 100.0], [60.0, 0.0], [-60.0, 5.0], [50.0, -60.0]], requires_grad=True)
    covariance = (torch.eye(2) * torch.tensor([1.0, 1.0, 1.0, 100.0, 100.0])[:, None, None]).requires_grad_()
    likelihood = case.make()
    expected = likelihood.expected_log_prob(torch.tensor([0.0, 1.0, 2.0, 3.0, 100.0]), distribution(mean, covariance))
    expected.sum().backward()
    assert expected.isfinite().all()
    assert mean.grad.isfinite().all() and covariance.grad.isfinite().all()


def test_nothing_in_a_step_reads_values(case: Case) -> None:
    # A tensor on the meta device has none: an operation that waited for a GPU would fail.
    mean, covariance = (value.to("meta").requires_grad_() for value in moments(case))
    likelihood = case.make().double().to("meta")
    weights = torch.ones(4, dtype=torch.float64, device="meta")
    y = case.y.to("meta")
    expected = likelihood.expected_log_prob(y, distribution(mean, covariance), weights=weights, offset=weights)
    expected.sum().backward()
    assert mean.grad.shape == mean.shape and covariance.grad.shape == covariance.shape


# ------------------------------------------------------------------ predictions


@pytest.mark.parametrize("name", REAL)
def test_predictions_have_the_moments_of_joint_draws(name: str) -> None:
    case = CASES[name]
    mean, covariance = moments(case)
    prediction = case.make().double()(distribution(mean, covariance))
    predictors = torch.from_numpy(drawn_nodes(mean, covariance, 200_000))
    draws = case.make().double()(predictors)
    conditional_mean = draws.mean
    errors = (prediction.mean - conditional_mean.mean(0)).abs()
    assert (errors < 4 * conditional_mean.std(0) / math.sqrt(200_000) + 1e-4).all()
    variance = draws.variance.mean(0) + conditional_mean.var(0)
    torch.testing.assert_close(prediction.variance.detach(), variance.detach(), rtol=0.05, atol=0)


@pytest.mark.parametrize("name", REAL)
def test_predictions_and_their_samples_agree(name: str) -> None:
    case = CASES[name]
    prediction = case.make().double()(distribution(*moments(case)))
    samples = prediction.sample((100_000,))
    low, median, high = predictive_quantiles(prediction, [0.1, 0.5, 0.9])
    for quantile, level in ((low, 0.1), (median, 0.5), (high, 0.9)):
        # For counts: the least one whose probability is reached.
        assert ((samples <= quantile).double().mean(0) >= level - 0.005).all()
        assert ((samples < quantile).double().mean(0) <= level + 0.005).all()


@pytest.mark.parametrize("name", ["gaussian", "student"])
def test_predictive_densities_are_the_slopes_of_their_cdf(name: str) -> None:
    prediction = CASES[name].make().double()(distribution(*moments(CASES[name])))
    y = torch.linspace(-3, 3, 13, dtype=torch.float64).unsqueeze(-1).expand(-1, 4).clone().requires_grad_()
    (slopes,) = torch.autograd.grad(prediction.cdf(y).sum(), y)
    assert_equal(prediction.log_prob(y.detach()).exp(), slopes)


def test_predicted_counts_have_probabilities_that_sum_to_one_where_predictors_are_uncertain() -> None:
    # The log mean is far less certain than the count given it, which a mixture over few nodes would show as spikes.
    mean = torch.tensor([[5.0, -8.0]], dtype=torch.float64)
    covariance = torch.tensor([[[0.5, 0.1], [0.1, 0.3]]], dtype=torch.float64)
    prediction = NegativeBinomialMeanDispersionLikelihood().double()(distribution(mean, covariance))
    counts = torch.arange(6000.0, dtype=torch.float64).unsqueeze(-1)
    log_probs = prediction.log_prob(counts)
    probabilities = log_probs.exp()
    assert abs(float(probabilities.sum()) - 1) < 1e-5
    assert_equal((counts * probabilities).sum(0), prediction.mean, 1e-3)
    # A lognormal mean with next to no Poisson noise: smooth and unimodal.
    assert int((log_probs[20:600, 0].diff().sign().diff() != 0).sum()) <= 1


def test_softmax_predicts_expected_probabilities() -> None:
    case = CASES["softmax3"]
    mean, covariance = moments(case)
    prediction = case.make().double()(distribution(mean, covariance))
    predictors = torch.from_numpy(drawn_nodes(mean, covariance, 200_000))
    probabilities = predictors.softmax(-1)
    errors = (prediction.probs - probabilities.mean(0)).abs()
    assert (errors < 4 * probabilities.std(0) / math.sqrt(200_000)).all()
    assert_equal(case.make().double().log_marginal(case.y, distribution(mean, covariance)), prediction.log_prob(case.y))


def test_softmax_sees_differences_of_predictors_alone() -> None:
    case = CASES["softmax5"]
    mean, covariance = moments(case)
    likelihood = case.make().double()
    shared = torch.randn(4, 5, 1, dtype=torch.float64)
    common = covariance + 3.0 + shared + shared.mT  # adds a common predictor that is correlated with the others
    actual = likelihood.expected_log_prob(case.y, distribution(mean + 7.0, common))
    assert_equal(actual, likelihood.expected_log_prob(case.y, distribution(mean, covariance)))


def test_mixtures_expand_and_pickle() -> None:
    for name in REAL:
        prediction = CASES[name].make().double()(distribution(*moments(CASES[name])))
        y = CASES[name].y
        expanded = prediction.expand(torch.Size([2, 4]))
        assert expanded.sample().shape == (2, 4)
        assert_equal(expanded.log_prob(y), prediction.log_prob(y).expand(2, 4))
        with torch.no_grad():
            detached = copy.deepcopy(CASES[name].make().double())(distribution(*moments(CASES[name])))
        assert_equal(pickle.loads(pickle.dumps(detached)).log_prob(y), prediction.log_prob(y))


# ------------------------------------------------------------------ distributions


@pytest.mark.parametrize("log_dispersion", [-30.0, -15.0, -2.31, -2.3, 0.0, 3.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_negative_binomial_is_exact_from_the_poisson_limit_on(log_dispersion: float, dtype: torch.dtype) -> None:
    for mean in (0.1, 5.0, 400.0):
        for count in (0, 1, 7, 350):
            with mpmath.workdps(50):
                size = mpmath.exp(-mpmath.mpf(log_dispersion))
                exact = (
                    mpmath.loggamma(count + size)
                    - mpmath.loggamma(size)
                    - mpmath.loggamma(count + 1)
                    + count * mpmath.log(mean / (mean + size))
                    - size * mpmath.log1p(mean / size)
                )
            arguments = (torch.tensor(value, dtype=dtype) for value in (count, math.log(mean), log_dispersion))
            actual = float(negative_binomial_log_prob(*arguments))
            # Terms of the size of lgamma(350) cancel.
            assert abs(actual - float(exact)) < 100 * torch.finfo(dtype).eps * max(abs(float(exact)), 350)


@pytest.mark.parametrize("count", [100.0, 1e4, 1e6, 1e8])
def test_large_counts_in_float32_differ_by_rounding(count: float) -> None:
    found = []
    for dtype in (torch.float64, torch.float32):
        mean = torch.tensor([[math.log(count), -1.0]], dtype=torch.float32).to(dtype).requires_grad_()
        covariance = (0.01 * torch.eye(2)).to(dtype).expand(1, 2, 2)
        y = torch.tensor([count], dtype=dtype)
        value = NegativeBinomialMeanDispersionLikelihood().expected_log_prob(y, distribution(mean, covariance))
        value.sum().backward()
        found.append(torch.cat([value.detach(), mean.grad.flatten()]).double())
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)


def test_negative_binomial_samples_have_its_moments() -> None:
    distribution = MeanDispersionNegativeBinomial(torch.tensor([1.0, 3.0]), torch.tensor([-1.0, -30.0]))
    samples = distribution.sample((200_000,))
    torch.testing.assert_close(samples.mean(0), distribution.mean, rtol=0.02, atol=0)
    torch.testing.assert_close(samples.var(0), distribution.variance, rtol=0.03, atol=0)


@pytest.mark.parametrize("deg_free", [2.05, 3.0, 7.0])
def test_student_predictions_have_the_variance_of_few_degrees_of_freedom(deg_free: float) -> None:
    mean = torch.tensor([[0.3, -0.5], [1.0, 0.2]], dtype=torch.float64)
    covariance = torch.tensor([[0.4, 0.2], [0.2, 0.3]], dtype=torch.float64).expand(2, 2, 2)
    likelihood = StudentTLocationScaleLikelihood().double()
    likelihood.deg_free = deg_free
    prediction = likelihood(distribution(mean, covariance))
    expected = 0.4 + torch.exp(2 * mean[:, 1] + 0.6) * deg_free / (deg_free - 2)
    assert_equal(prediction.variance, expected, 1e-6)
    assert_equal(prediction.expand((3, 2)).variance, expected.expand(3, 2), 1e-6)


def test_degrees_of_freedom_are_learnt() -> None:
    mean, covariance = moments(CASES["student"])
    likelihood = StudentTLocationScaleLikelihood().double()
    for method in (likelihood.expected_log_prob, likelihood.log_marginal):
        (gradient,) = torch.autograd.grad(
            method(CASES["student"].y, distribution(mean, covariance)).sum(), [likelihood.raw_deg_free]
        )
        step, raw = 1e-5, likelihood.raw_deg_free.detach().clone()
        values = []
        for sign in (1, -1):
            likelihood.raw_deg_free.data.copy_(raw + sign * step)
            values.append(float(method(CASES["student"].y, distribution(mean, covariance)).detach().sum()))
        likelihood.raw_deg_free.data.copy_(raw)
        # The rule over the mixing variable moves with the degrees of freedom, within its error.
        assert abs(float(gradient) - (values[0] - values[1]) / (2 * step)) < 1e-5


def test_degrees_of_freedom_have_a_prior_and_a_batch_shape() -> None:
    prior = gpytorch.priors.GammaPrior(2.0, 0.1)
    likelihood = StudentTLocationScaleLikelihood(batch_shape=torch.Size([3]), deg_free_prior=prior).double()
    likelihood.deg_free = torch.tensor([[3.0], [5.0], [50.0]])
    assert_equal(likelihood.deg_free, torch.tensor([[3.0], [5.0], [50.0]], dtype=torch.float64), 1e-6)
    mean, covariance = moments(CASES["student"])
    dist = distribution(mean.expand(3, 4, 2), covariance.expand(3, 4, 2, 2))
    y = CASES["student"].y
    single = StudentTLocationScaleLikelihood().double()
    single.deg_free = 5.0
    for name in ("expected_log_prob", "log_marginal"):
        batched = getattr(likelihood, name)(y, dist)
        assert_equal(batched[1], getattr(single, name)(y, distribution(mean, covariance)), 1e-6)
    assert len(list(likelihood.named_priors())) == 1


# ------------------------------------------------------------------ errors


def test_another_number_of_predictors_is_an_error_that_says_what_to_do(case: Case) -> None:
    likelihood = case.make()
    too_few = MultivariateNormal(torch.zeros(4), torch.eye(4))
    with pytest.raises(ValueError, match=r"predictors in each row, but got 1.*predictor=0 to predictor="):
        likelihood.expected_log_prob(torch.zeros(4), too_few)
    with pytest.raises(ValueError, match="predictors in each row, but got 7"):
        likelihood(torch.zeros(4, 7))


def test_wrong_responses_and_arguments_are_errors(case: Case) -> None:
    likelihood, dist = case.make().double(), distribution(*moments(case))
    with pytest.raises(ValueError, match=r"y has shape \(4, 1\)"):
        likelihood.expected_log_prob(case.y.unsqueeze(-1), dist)
    with pytest.raises(TypeError, match="takes the row-wise arguments offset, weights"):
        likelihood.expected_log_prob(case.y, dist, wieghts=torch.ones(4))
    with pytest.raises(ValueError, match="weights must be finite and not negative"):
        likelihood.expected_log_prob(case.y, dist, weights=-torch.ones(4))
    with pytest.raises(ValueError, match="offset has shape"):
        likelihood.expected_log_prob(case.y, dist, offset=torch.ones(3))
    with pytest.raises(ValueError, match="NaN in 1 of 4"):
        likelihood.log_marginal(torch.tensor([0.0, 1.0, float("nan"), 1.0]), dist)


def test_values_that_are_no_counts_or_classes_are_errors() -> None:
    counts = NegativeBinomialMeanDispersionLikelihood()
    dist = distribution(torch.zeros(3, 2), torch.eye(2).repeat(3, 1, 1))
    for y in (torch.tensor([0.5, 1.0, 2.0]), torch.tensor([-1, 1, 2])):
        with pytest.raises(ValueError, match="negative or fractional values in 1 of 3"):
            counts.expected_log_prob(y, dist)
    with pytest.raises(ValueError, match="exposure must be finite and positive"):
        counts.expected_log_prob(torch.ones(3), dist, exposure=torch.zeros(3))
    classes = distribution(torch.zeros(3, 4), torch.eye(4).repeat(3, 1, 1))
    for y in (torch.tensor([0, 1, 4]), torch.tensor([0.0, 1.5, 2.0]), torch.tensor([-1, 0, 0])):
        with pytest.raises(ValueError, match="no classes in 1 of 3"):
            SoftmaxLikelihood(4).expected_log_prob(y, classes)
    with pytest.raises(ValueError, match="num_classes must be at least 2, got 1"):
        SoftmaxLikelihood(1)
    for num_classes in (2.0, True):
        with pytest.raises(TypeError, match="num_classes must be an integer"):
            SoftmaxLikelihood(num_classes)


# ------------------------------------------------------------------ copies


def test_copies_pickles_and_state_dicts(case: Case) -> None:
    mean, covariance = moments(case)
    likelihood = case.make().double()
    if isinstance(likelihood, StudentTLocationScaleLikelihood):
        likelihood.deg_free = 4.0
    expected = likelihood.expected_log_prob(case.y, distribution(mean, covariance))
    restored = case.make().double()
    restored.load_state_dict(likelihood.state_dict())
    buffer = io.BytesIO()
    torch.save(likelihood, buffer)
    buffer.seek(0)
    copies = (restored, copy.deepcopy(likelihood), pickle.loads(pickle.dumps(likelihood)))
    for other in (*copies, torch.load(buffer, weights_only=False), likelihood.get_fantasy_likelihood()):
        assert_equal(other.expected_log_prob(case.y, distribution(mean, covariance)), expected)


def test_gpytorchs_generic_methods_sample_the_joint_distribution() -> None:
    case = CASES["gaussian"]
    mean, covariance = moments(case)
    likelihood = case.make().double().train()
    with gpytorch.settings.num_likelihood_samples(200_000):
        generic = gpytorch.likelihoods.Likelihood.expected_log_prob(likelihood, case.y, distribution(mean, covariance))
    exact = likelihood.expected_log_prob(case.y, distribution(mean, covariance))
    torch.testing.assert_close(generic, exact, rtol=0.02, atol=0.02)


@pytest.mark.filterwarnings("ignore:the precision of the posterior has grown")  # which is no matter here
def test_training_recovers_location_and_scale() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(300, 1, generator=generator, dtype=torch.float64) * 6
    y = torch.sin(x[:, 0]) + torch.exp(torch.cos(x[:, 0])) * torch.randn(300, generator=generator, dtype=torch.float64)
    groups = []
    for predictor in (0, 1):
        kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
        kernel.base_kernel.lengthscale = 1.5
        points = regular_grid(0.0, 6.0, 10)
        groups.append(
            ComponentGroup(kernel, columns=[[0]], inducing_points=points, predictor=predictor, names=[f"f{predictor}"])
        )
    model = AdditiveGP(AdditivePredictor(*groups), family="block_low_rank", rank=4).double()
    likelihood = GaussianLocationScaleLikelihood()
    mll = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(y))
    adam = torch.optim.Adam(model.parameters(), lr=0.05, betas=(0.9, 0.95))
    for _ in range(100):
        adam.zero_grad()
        loss = -mll(model(x), y)
        loss.backward()
        adam.step()
    model.eval(), likelihood.eval()
    with torch.no_grad():
        prediction = likelihood(model(x))
        low, high = predictive_quantiles(prediction, [0.1, 0.9])
        log_scale = row_moments(model(x)).mean[:, 1]
    coverage = ((y > low) & (y < high)).double().mean()
    assert abs(float(coverage) - 0.8) < 0.05
    assert np.corrcoef(log_scale.numpy(), x[:, 0].cos().numpy())[0, 1] > 0.95
    gaussian = stats.norm.logpdf(y.numpy(), float(y.mean()), float(y.std())).mean()
    assert float(prediction.log_prob(y).mean()) > gaussian + 0.1
