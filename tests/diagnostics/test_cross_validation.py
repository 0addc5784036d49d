"""Leave-one-out densities from one posterior, against posteriors of all other rows."""

from __future__ import annotations

import pytest
import torch
from gpytorch.likelihoods import GaussianLikelihood, Likelihood
from torch import Tensor

from gpytorch_gam import AdditiveGP, AdditivePredictor, fit
from gpytorch_gam.diagnostics import ModelMixture, leave_one_out
from gpytorch_gam.likelihoods import (
    BinomialLikelihood,
    GaussianLocationScaleLikelihood,
    PoissonLikelihood,
    RowwiseLikelihood,
    SoftmaxLikelihood,
    StudentTLikelihood,
)
from gpytorch_gam.likelihoods.expected_gradients import expected_gradients
from gpytorch_gam.terms import constant, linear, smooth
from gpytorch_gam.training.optimal_bound import OptimalBound

NUM_ROWS = 24


def inputs(num: int = NUM_ROWS) -> Tensor:
    return torch.rand(num, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def noise(num: int = NUM_ROWS, seed: int = 1) -> Tensor:
    return torch.randn(num, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def model_of(num_predictors: int = 1, size: int = 6) -> AdditiveGP:
    x = torch.linspace(0, 1, size, dtype=torch.float64).unsqueeze(-1)
    groups = [
        group
        for predictor in range(num_predictors)
        for group in (smooth(0, x, num_inducing=size, predictor=predictor), constant(predictor=predictor))
    ]
    return AdditiveGP(AdditivePredictor(*groups), family="coupled").double()


def settle(model: AdditiveGP, likelihood: Likelihood, x: Tensor, y: Tensor, **arguments: Tensor) -> None:
    """Set the posterior to the optimum, hyperparameters as they are."""
    data = (x, y, arguments) if arguments else (x, y)
    OptimalBound(model, likelihood, data)
    model.eval()
    likelihood.eval()


def refitted(model: AdditiveGP, likelihood: Likelihood, x: Tensor, y: Tensor, row: int, **arguments: Tensor) -> float:
    """The log density of a row under the optimal posterior of all others."""
    kept = torch.arange(len(y)) != row
    settle(model, likelihood, x[kept], y[kept], **{name: value[kept] for name, value in arguments.items()})
    own = {name: value[[row]] for name, value in arguments.items() if name != "weights"}
    with torch.no_grad():
        return likelihood.log_marginal(y[[row]], model.predict(x[[row]]).distribution, **own).item()


@pytest.mark.filterwarnings("error")
def test_rows_with_next_to_no_variance_have_the_curvature_of_others() -> None:
    y, mean, variance = torch.zeros(2), torch.full((2,), 0.1), torch.tensor([1e-3, 1e-9])
    likelihood = GaussianLikelihood()
    likelihood.noise = 0.01
    found = expected_gradients(likelihood, y, mean, variance)
    torch.testing.assert_close(found.curvatures, torch.full((2,), 100.0, dtype=torch.float64), rtol=1e-5, atol=0)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("method", ["rows", "bins"])
def test_fits_without_noise_do_not_warn_of_their_variances(method: str) -> None:
    x = torch.linspace(0, 1, 100).unsqueeze(-1)
    model = AdditiveGP(AdditivePredictor(smooth(0, x, kernel="rbf", num_inducing=12), constant()))
    assert fit(model, GaussianLikelihood(), (x, torch.sin(6 * x[:, 0])), method=method).converged


def test_gaussian_rows_are_left_out_exactly() -> None:
    x = inputs()
    y, offset = torch.sin(6 * x[:, 0]) + 0.3 * noise(), 0.5 * noise(seed=2)
    likelihood = RowwiseLikelihood(GaussianLikelihood()).double()
    likelihood.likelihood.noise = 0.1
    model = model_of()
    settle(model, likelihood, x, y, offset=offset)
    found = leave_one_out(model, likelihood, x, y, {"offset": offset})
    expected = [refitted(model, likelihood, x, y, row, offset=offset) for row in range(NUM_ROWS)]
    torch.testing.assert_close(found.log_densities, torch.tensor(expected).double(), atol=1e-6, rtol=0)
    assert found.total == pytest.approx(sum(expected), abs=1e-5)
    # The leverages are the diagonal of the matrix that leads from responses to fitted values.
    assert 2 < found.leverages.sum() < 8
    assert found.num_parameters > 0
    assert "24 rows" in str(found)


def test_a_weight_counts_a_row_that_often() -> None:
    x = inputs()
    y, counts = torch.sin(6 * x[:, 0]) + 0.3 * noise(), torch.arange(NUM_ROWS) % 3 + 1
    likelihood = RowwiseLikelihood(GaussianLikelihood()).double()
    likelihood.likelihood.noise = 0.1
    model, weights = model_of(), counts.double()
    settle(model, likelihood, x, y, weights=weights)
    weighted = leave_one_out(model, likelihood, x, y, {"weights": weights})
    repeated = leave_one_out(model, likelihood, x.repeat_interleave(counts, 0), y.repeat_interleave(counts))
    assert weighted.total == pytest.approx(repeated.total, abs=1e-8)
    assert weighted.standard_error == pytest.approx(repeated.standard_error, abs=1e-8)
    assert weighted.num_parameters == pytest.approx(repeated.num_parameters, abs=1e-8)


@pytest.mark.parametrize("kind", ["binomial", "poisson", "student_t", "location_scale", "softmax"])
def test_other_rows_are_left_out_to_second_order(kind: str) -> None:
    x = inputs(40)
    mean = torch.sin(6 * x[:, 0])
    random = torch.Generator().manual_seed(3)
    cases: dict[str, tuple[Likelihood, Tensor]] = {
        "binomial": (BinomialLikelihood(), torch.bernoulli(mean.sigmoid(), generator=random)),
        "poisson": (PoissonLikelihood(), torch.poisson(3 * mean.exp(), generator=random)),
        "student_t": (StudentTLikelihood(), mean + 0.5 * noise(40)),
        "location_scale": (GaussianLocationScaleLikelihood(), mean + (0.5 * mean).exp() * noise(40)),
        "softmax": (SoftmaxLikelihood(3), (mean + noise(40)).round().clamp(-1, 1) + 1),
    }
    likelihood, y = cases[kind]
    likelihood = likelihood.double()
    model = model_of({"location_scale": 2, "softmax": 3}.get(kind, 1), size=4)
    settle(model, likelihood, x, y)
    found = leave_one_out(model, likelihood, x, y)
    reliable = found.leverages < 0.7
    assert reliable.sum() == len(y) - found.num_unreliable >= 38
    rows = reliable.nonzero().flatten()[::3]
    expected = torch.tensor([refitted(model, likelihood, x, y, int(row)) for row in rows]).double()
    lost = (found.log_densities_within - found.log_densities)[rows]
    errors = found.log_densities[rows] - expected
    # The leverages of 40 rows are up to .3, those of scales up to .7, and errors are of second order in them.
    assert errors.abs().mean() < 0.15 * lost.abs().mean()
    assert errors.sum().abs() < 0.1 * lost.sum().abs()


def test_rows_that_determine_their_own_predictor_are_counted() -> None:
    x = torch.tensor([[0.0], [0.01], [0.02], [1.0]], dtype=torch.float64)
    y = torch.tensor([0.1, 0.0, -0.1, 1.0], dtype=torch.float64)
    likelihood = GaussianLikelihood().double()
    likelihood.noise = 0.01
    model = model_of()
    settle(model, likelihood, x, y)
    found = leave_one_out(model, likelihood, x, y)
    assert (found.leverages > 0.7).tolist() == [False, False, False, True]
    assert found.num_unreliable == 1 and found.unreliable_rows == [3]
    assert str(found).endswith("not reliable in 1 of them, with leverages above 0.7: rows 3")
    assert found.log_densities[-1].item() == pytest.approx(refitted(model, likelihood, x, y, 3), abs=1e-6)


def test_models_of_a_mixture_are_weighed_without_the_row() -> None:
    """A line, whose bound is the evidence, with two values of the noise."""
    x = inputs()
    y = x[:, 0] + 0.3 * noise()

    def members(rows: Tensor) -> tuple[list[AdditiveGP], list[Likelihood], Tensor]:
        models, likelihoods, evidence = [], [], []
        for variance in (0.05, 0.3):
            likelihood = GaussianLikelihood().double()
            likelihood.noise = variance
            model = AdditiveGP(AdditivePredictor(linear(0, x), constant()), family="coupled").double()
            objective = OptimalBound(model, likelihood, (x[rows], y[rows]))
            evidence.append(objective.evaluate(objective.free.position, gradient=False).value)
            models.append(model.eval())
            likelihoods.append(likelihood.eval())
        return models, likelihoods, torch.tensor(evidence).double().softmax(0)

    rows = torch.arange(NUM_ROWS)
    mixture = ModelMixture(*members(rows))
    found = leave_one_out(mixture.models[0], mixture.likelihoods[0], x, y, hyperparameters=mixture)
    assert mixture.weights.min() > 1e-3
    for row in (0, 7, 15):
        others = ModelMixture(*members(rows[rows != row]))
        expected = others.responses(x[[row]]).log_prob(y[[row]])
        assert found.log_densities[row].item() == pytest.approx(expected.item(), abs=1e-6)
    within = mixture.responses(x).log_prob(y)
    torch.testing.assert_close(found.log_densities_within, within)


def test_single_precision_finds_the_same() -> None:
    x = inputs()
    y = torch.sin(6 * x[:, 0]) + 0.3 * noise()
    likelihood, model = GaussianLikelihood().double(), model_of()
    settle(model, likelihood, x, y)
    expected = leave_one_out(model, likelihood, x, y)
    found = leave_one_out(model.float(), likelihood.float(), x.float(), y.float())
    torch.testing.assert_close(found.log_densities, expected.log_densities, atol=1e-3, rtol=0)


def test_what_cannot_be_left_out_is_refused() -> None:
    x, likelihood, model = inputs(), GaussianLikelihood().double(), model_of()
    y = noise()
    with pytest.raises(TypeError, match="hyperparameters must be a HyperparameterUncertainty"):
        leave_one_out(model, likelihood, x, y, hyperparameters=model)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="wrap it, RowwiseLikelihood"):
        leave_one_out(model, likelihood, x, y, {"weights": torch.ones(NUM_ROWS).double()})
    with pytest.raises(ValueError, match="y has NaN"):
        leave_one_out(model, likelihood, x, y.fill_(torch.nan))
