"""Row-wise arguments: what is accepted, what is refused, and what they do."""

from __future__ import annotations

import copy
import pickle

import gpytorch
import pytest
import torch

from gpytorch_gam.likelihoods import (
    BinomialLikelihood,
    GammaLikelihood,
    NegativeBinomialLikelihood,
    OrdinalLikelihood,
    PoissonLikelihood,
    QuantileLikelihood,
    ZeroInflatedPoissonLikelihood,
)
from gpytorch_gam.likelihoods.row_argument import EXPOSURE, OFFSET, WEIGHTS

from .one_predictor_cases import CASES, NAMES, NUM_ROWS, Case, marginals, normal

each_case = pytest.mark.parametrize("case", CASES, ids=NAMES)


def test_numbers_and_tensors_take_the_dtype_of_the_predictor() -> None:
    like = torch.zeros(2, 5)
    assert OFFSET.read(None, like) == 0.0
    assert EXPOSURE.read(None, like) == 1.0
    for value in (2, 2.0, torch.tensor(2), torch.full((5,), 2, dtype=torch.int64), torch.full((2, 1), 2.0).double()):
        row = OFFSET.read(value, like)
        assert row.dtype == torch.float32
        assert torch.equal(row.expand(2, 5), torch.full((2, 5), 2.0))


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ("1", TypeError, "exposure must be a number or a tensor"),
        (True, TypeError, "exposure must be a number or a tensor"),
        ([1.0] * 5, TypeError, "got list"),
        (torch.ones(5, dtype=torch.bool), TypeError, "torch.bool"),
        (torch.ones(5, dtype=torch.complex64), TypeError, "complex64"),
        (0.0, ValueError, "exposure must be finite and positive, got 0.0"),
        (float("nan"), ValueError, "got nan"),
        (torch.ones(4), ValueError, r"shape \(4,\), but the predictor has \(5,\)"),
        (torch.ones(5, 1), ValueError, r"shape \(5, 1\)"),
        (torch.ones(3, 5), ValueError, r"shape \(3, 5\)"),
        (torch.tensor([1.0, 0.0, -1.0, 1.0, 1.0]), ValueError, "2 of 5 entries, the first of them 0.0"),
        (torch.tensor([1.0, 1.0, float("inf"), 1.0, 1.0]), ValueError, "1 of 5 entries, the first of them inf"),
        (torch.full((5,), 1e300, dtype=torch.float64), ValueError, "5 of 5 entries"),  # not in float32
    ],
)
def test_what_does_not_fit_is_refused_by_name(value: object, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        EXPOSURE.read(value, torch.zeros(5))


def test_weights_may_be_zero_but_not_negative() -> None:
    assert torch.equal(WEIGHTS.read(torch.zeros(5), torch.zeros(5)), torch.zeros(5))
    with pytest.raises(ValueError, match="weights must be finite and not negative"):
        WEIGHTS.read(-torch.ones(5), torch.zeros(5))


def test_values_are_not_looked_at_outside_of_debug_mode() -> None:
    with gpytorch.settings.debug(False):
        assert EXPOSURE.read(-torch.ones(5), torch.zeros(5)).sum() == -5


def test_another_device_is_refused() -> None:
    with pytest.raises(ValueError, match=r"weights is on meta, but the predictor on cpu: pass weights.to\(x.device\)"):
        WEIGHTS.read(torch.ones(5, device="meta"), torch.zeros(5))


@each_case
def test_unknown_arguments_are_refused(case: Case) -> None:
    likelihood, (mean, variances) = case.make(), marginals(1.0)
    assert likelihood.row_arguments[:2] == ("offset", "weights") and {*case.rows} <= {*likelihood.row_arguments}
    known = ", ".join(likelihood.row_arguments)
    for call in (
        lambda: likelihood.expected_log_prob(torch.ones(NUM_ROWS), normal(mean, variances), wieghts=1.0),
        lambda: likelihood.log_marginal(torch.ones(NUM_ROWS), normal(mean, variances), wieghts=1.0),
        lambda: likelihood(normal(mean, variances), wieghts=1.0),
        lambda: likelihood(mean, wieghts=1.0),
    ):
        with pytest.raises(TypeError, match=f"takes the row-wise arguments {known}, but got wieghts"):
            call()


@each_case
def test_an_offset_shifts_the_mean(case: Case) -> None:
    likelihood, (mean, variances) = case.make(), marginals(1.0)
    y, offset = case.responses(mean), torch.linspace(-1.0, 1.0, NUM_ROWS, dtype=torch.float64)
    plain, shifted = normal(mean, variances), normal(mean + offset, variances)
    for method in ("expected_log_prob", "log_marginal"):
        by_offset = getattr(likelihood, method)(y, plain, offset=offset, **case.rows)
        assert torch.equal(by_offset, getattr(likelihood, method)(y, shifted, **case.rows))
    for with_offset, without in ((plain, shifted), (mean, mean + offset)):
        by_offset = likelihood(with_offset, offset=offset, weights=2.0, **case.rows)
        assert torch.equal(by_offset.log_prob(y), likelihood(without, **case.rows).log_prob(y))


@pytest.mark.parametrize("name", ["poisson", "negative binomial", "zero-inflated"])
def test_an_exposure_is_an_offset_of_its_logarithm(name: str) -> None:
    case = CASES[NAMES.index(name)]
    likelihood, (mean, variances) = case.make(), marginals(1.0)
    y, exposure = case.responses(mean), case.rows["exposure"]
    for method in ("expected_log_prob", "log_marginal"):
        evaluate = getattr(likelihood, method)
        by_offset = evaluate(y, normal(mean, variances), offset=exposure.log())
        torch.testing.assert_close(evaluate(y, normal(mean, variances), exposure=exposure), by_offset)


@each_case
def test_weights_multiply(case: Case) -> None:
    likelihood, (mean, variances) = case.make(), marginals(1.0)
    y, weights = case.responses(mean), torch.arange(NUM_ROWS)
    for method in ("expected_log_prob", "log_marginal"):
        plain = getattr(likelihood, method)(y, normal(mean, variances), **case.rows)
        by_weights = getattr(likelihood, method)(y, normal(mean, variances), weights=weights, **case.rows)
        assert torch.equal(by_weights, plain * weights)


@pytest.mark.parametrize(
    ("likelihood", "y", "message"),
    [
        (PoissonLikelihood(), [0.0, -1.0, 1.5], r"negative or fractional values in 2 of 3 rows \(PoissonLikelihood\)"),
        (NegativeBinomialLikelihood(), [0.0, -1.0, 1.0], "negative or fractional values in 1 of 3 rows"),
        (ZeroInflatedPoissonLikelihood(), [0.0, 0.5, 1.0], "negative or fractional values in 1 of 3 rows"),
        (GammaLikelihood(), [0.0, -1.0, 1.0], "zero or negative values in 2 of 3 rows"),
        (BinomialLikelihood(), [0.0, 2.0, 1.0], "more successes than trials in 1 of 3 rows.*pass trials="),
        (
            OrdinalLikelihood(3),
            [0.0, 3.0, 1.5],
            "values that are no classes in 2 of 3 rows .*: classes are the integers 0 to 2",
        ),
        (QuantileLikelihood(), [0.0, float("nan"), 1.0], "NaN in 1 of 3 rows.*gpytorch_gam.data.drop_missing"),
        (QuantileLikelihood(), [0.0, float("inf"), 1.0], "infinity in 1 of 3 rows"),
        (PoissonLikelihood(), [0.0, float("nan"), 1.0], "NaN in 1 of 3 rows.*gpytorch_gam.data.drop_missing"),
    ],
)
def test_impossible_responses_are_counted(likelihood: gpytorch.likelihoods.Likelihood, y: list, message: str) -> None:
    dist = normal(torch.zeros(3), torch.ones(3))
    for method in (likelihood.expected_log_prob, likelihood.log_marginal):
        with pytest.raises(ValueError, match=message):
            method(torch.tensor(y), dist)


@pytest.mark.parametrize("shape", [(2,), (3, 1), (), (2, 4)])
def test_responses_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="one response a row"):
        PoissonLikelihood().expected_log_prob(torch.ones(shape), normal(torch.zeros(3), torch.ones(3)))


def test_fractional_trials_are_refused() -> None:
    with pytest.raises(ValueError, match="fractional trials"):
        BinomialLikelihood().expected_log_prob(torch.ones(3), normal(torch.zeros(3), torch.ones(3)), trials=2.5)


def test_integer_responses_are_taken() -> None:
    dist, y = normal(torch.zeros(3), torch.ones(3)), torch.tensor([0, 4, 2])
    likelihood = PoissonLikelihood()
    assert torch.equal(likelihood.expected_log_prob(y, dist), likelihood.expected_log_prob(y.float(), dist))


@pytest.mark.parametrize(
    "likelihood",
    [PoissonLikelihood(), BinomialLikelihood(), OrdinalLikelihood(2)],
    ids=lambda likelihood: type(likelihood).__name__,
)
def test_boolean_responses_are_zeros_and_ones(likelihood: gpytorch.likelihoods.Likelihood) -> None:
    y, predictor = torch.tensor([True, False, True]), normal(torch.zeros(3), torch.ones(3))
    by_booleans, by_numbers = (likelihood.expected_log_prob(values, predictor) for values in (y, y.float()))
    assert torch.equal(by_booleans, by_numbers)


def test_several_predictors_are_refused() -> None:
    dist = gpytorch.distributions.MultitaskMultivariateNormal(torch.zeros(3, 2), torch.eye(6))
    with pytest.raises(ValueError, match="PoissonLikelihood takes one predictor"):
        PoissonLikelihood().expected_log_prob(torch.ones(3), dist)
    with pytest.raises(ValueError, match="PoissonLikelihood takes one predictor"):
        PoissonLikelihood()(dist)


def test_arguments_of_constructors_are_checked() -> None:
    with pytest.raises(ValueError, match="link must be one of"):
        BinomialLikelihood("cloglog")
    with pytest.raises(ValueError, match=r"quantile must lie in \(0, 1\), got 1"):
        QuantileLikelihood(1.0)
    with pytest.raises(ValueError, match="num_classes must be at least 2"):
        OrdinalLikelihood(1)
    with pytest.raises(ValueError, match="cutpoints must be 3 numbers"):
        OrdinalLikelihood(4).cutpoints = torch.tensor([0.0, 2.0, 1.0])


def test_cutpoints_start_at_quantiles_of_equal_classes_and_can_be_set() -> None:
    likelihood = OrdinalLikelihood(4)
    torch.testing.assert_close(likelihood(torch.zeros(1)).probs, torch.full((1, 4), 0.25))
    likelihood.cutpoints = torch.tensor([-2.0, 0.5, 3.0])
    torch.testing.assert_close(likelihood.cutpoints, torch.tensor([-2.0, 0.5, 3.0]))


@pytest.mark.parametrize(
    ("saved", "other", "message"),
    [
        (QuantileLikelihood(0.1), QuantileLikelihood(0.9), "quantile=0.1, but this one has quantile=0.9"),
        (BinomialLikelihood(), BinomialLikelihood("probit"), "link='logit', but this one has link='probit'"),
    ],
)
def test_a_state_of_other_settings_is_refused(saved: torch.nn.Module, other: torch.nn.Module, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        other.load_state_dict(saved.state_dict())


@each_case
def test_copies_and_states(case: Case) -> None:
    mean, variances = marginals(1.0)
    likelihood, y = case.make(), case.responses(mean)
    dist = normal(mean, variances)
    likelihood.expected_log_prob(y, dist, **case.rows).sum()
    wanted = likelihood.log_marginal(y, dist, **case.rows)
    fresh = type(likelihood)(*_arguments(likelihood)).double()
    fresh.load_state_dict(likelihood.state_dict())
    for copied in (copy.deepcopy(likelihood), pickle.loads(pickle.dumps(likelihood)), fresh):
        assert torch.equal(copied.log_marginal(y, dist, **case.rows), wanted)


def _arguments(likelihood: gpytorch.likelihoods.Likelihood) -> tuple:
    names = {"BinomialLikelihood": "link", "OrdinalLikelihood": "num_classes", "QuantileLikelihood": "quantile"}
    name = names.get(type(likelihood).__name__)
    return () if name is None else (getattr(likelihood, name),)


def test_priors_and_constraints_are_gpytorchs() -> None:
    prior = gpytorch.priors.GammaPrior(2.0, 4.0)
    likelihood = NegativeBinomialLikelihood(dispersion_prior=prior)
    ((_, _, found, closure, setting),) = list(likelihood.named_priors())
    assert found is prior
    assert torch.equal(closure(likelihood), likelihood.dispersion)
    setting(likelihood, torch.tensor(0.7))
    torch.testing.assert_close(likelihood.dispersion, torch.tensor([0.7]))
    copied = pickle.loads(pickle.dumps(likelihood))
    assert torch.equal(copied.dispersion, likelihood.dispersion)
    bounded = NegativeBinomialLikelihood(dispersion_constraint=gpytorch.constraints.Interval(0.5, 2.0))
    assert 0.5 < bounded.dispersion.item() < 2.0
    started = GammaLikelihood(shape_constraint=gpytorch.constraints.Positive(initial_value=5.0))
    torch.testing.assert_close(started.shape, torch.tensor([5.0]))
