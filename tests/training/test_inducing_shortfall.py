"""What more inducing points would bring, and the warning of fits whose components have too few."""

from __future__ import annotations

import warnings

import gpytorch
import pytest
import torch
from gpytorch.likelihoods import GaussianLikelihood
from torch import Tensor

from gpytorch_gam import AdditiveGP, AdditivePredictor
from gpytorch_gam.likelihoods import GaussianLocationScaleLikelihood, PoissonLikelihood
from gpytorch_gam.terms import constant, smooth
from gpytorch_gam.training import fit, inducing_shortfall
from gpytorch_gam.training.shortfall import warn_of_shortfall
from gpytorch_gam.warnings import InducingPointsWarning
from tests.problems import fit_by_bins


def data(n: int = 600) -> tuple[Tensor, Tensor]:
    """A response of four bends in the first column, and of some thirty in the second."""
    x = torch.rand(n, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = torch.stack([torch.sin(6 * x[:, 0]), torch.sin(60 * x[:, 1] ** 4)], -1)
    return x, y + 0.2 * torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def model_of(*columns: int, num_inducing: int = 16, kernel: str = "rbf", **options: object) -> AdditiveGP:
    term = smooth(list(columns), low=0.0, high=1.0, num_inducing=num_inducing, kernel=kernel, **options)
    return AdditiveGP(AdditivePredictor(term, constant()), rank=4).double()


@pytest.mark.parametrize("how", [fit, fit_by_bins])
def test_fits_warn_of_components_that_need_more_points(how: object) -> None:
    x, y = data(400)
    model, likelihood = model_of(1, num_inducing=12), GaussianLikelihood().double()
    with pytest.warns(InducingPointsWarning, match=r"more inducing points: 'x1' \(.* nats\)\. .* raise num_inducing"):
        how(model, likelihood, [(x, y[:, 1])], **({"num_epochs": 2} if how is fit else {}))


def test_overdispersion_is_no_matter_of_responses_that_are_no_counts() -> None:
    for likelihood, is_said in ((GaussianLikelihood(), False), (PoissonLikelihood(), True)):
        with pytest.warns(
            InducingPointsWarning, match=r"raise num_inducing, as in GAMRegressor\(num_inducing=30\)"
        ) as given:
            warn_of_shortfall({"x0": 9.0}, likelihood)
        assert ("overdispersion" in str(given[0].message)) == is_said


@pytest.mark.parametrize("how", [fit, fit_by_bins])
def test_fits_with_enough_points_do_not_warn(how: object) -> None:
    x, y = data(200)
    with warnings.catch_warnings():
        warnings.simplefilter("error", InducingPointsWarning)
        how(model_of(0), GaussianLikelihood().double(), [(x, y[:, 0])], **({"num_epochs": 2} if how is fit else {}))


def test_the_shortfall_falls_with_the_number_of_points_and_is_zero_with_enough() -> None:
    x, y = data(300)
    found = []
    for num_inducing in (3, 5, 16):
        model, likelihood = model_of(0, num_inducing=num_inducing), GaussianLikelihood().double()
        fit_by_bins(model, likelihood, [(x, y[:, 0])])
        found.append(inducing_shortfall(model, likelihood, [(x, y[:, 0])])["x0"])
    assert found[0] > 10 > found[1] > found[2]
    assert found[2] < 0.1


def test_it_is_the_payment_of_the_bound_and_its_derivative_in_the_lengthscale() -> None:
    x, y = data(100)
    model, likelihood = model_of(0, num_inducing=4, centred=False, kernel="matern32"), GaussianLikelihood().double()
    likelihood.noise, base = 0.04, model.predictor.groups[0].kernel.base_kernel

    def payment(lengthscale: float) -> float:
        base.lengthscale = torch.tensor(lengthscale, dtype=torch.float64)
        group = model.predictor.groups[0]
        features = group.features(x, group.inducing_cholesky(0.0))
        return ((1.0 - features.square().sum(-2)).sum() / (2 * 0.04)).item()

    step = 1e-4
    slope = (payment(0.3 * (1 + step)) - payment(0.3 * (1 - step))) / (2 * step)
    expected = payment(0.3) - slope
    # 1e-6: jitter of 1e-9, and a difference quotient
    assert inducing_shortfall(model, likelihood, [(x, y[:, 0])])["x0"] == pytest.approx(expected, rel=1e-6)
    halves = [(x[:50], y[:50, 0]), (x[50:], y[50:, 0])]
    assert inducing_shortfall(model, likelihood, halves)["x0"] == pytest.approx(expected, rel=1e-6)
    assert inducing_shortfall(model, likelihood, halves, num_data=100)["x0"] == pytest.approx(expected, rel=1e-6)
    assert inducing_shortfall(model, likelihood, halves)["constant"] == 0
    base.raw_lengthscale.requires_grad_(False)
    assert inducing_shortfall(model, likelihood, halves)["x0"] == pytest.approx(payment(0.3), rel=1e-6)


def test_curvatures_are_those_of_the_likelihood_under_the_posterior() -> None:
    x, _ = data(200)
    model = model_of(0, num_inducing=4)
    base = model.predictor.groups[0].kernel.base_kernel.base_kernel
    base.raw_lengthscale.requires_grad_(False)
    counts = torch.full((200,), 3.0, dtype=torch.float64)
    with torch.no_grad():
        moments = model(x)
        rate = (moments.mean + 0.5 * moments.variance).exp()
        group = model.predictor.groups[0]
        features = group.features(x, group.inducing_cholesky(0.0))
        expected = 0.5 * ((group.prior_variance(x)[0] - features.square().sum(-2)[0]) * rate).sum()
    found = inducing_shortfall(model, PoissonLikelihood().double(), [(x, counts)])["x0"]
    assert found == pytest.approx(expected.item(), rel=1e-4)  # the jitter in the posterior's variance
    exposed = inducing_shortfall(
        model, PoissonLikelihood().double(), [(x, counts, {"exposure": torch.full((200,), 2.0).double()})]
    )
    assert exposed["x0"] == pytest.approx(2 * found)


def test_several_predictors_have_a_number_for_each_component() -> None:
    x, y = data(60)
    groups = [smooth(0, low=0, high=1, num_inducing=4, predictor=index) for index in (0, 1)]
    model = AdditiveGP(AdditivePredictor(*groups, constant(), constant(predictor=1)), rank=4).double()
    found = inducing_shortfall(model, GaussianLocationScaleLikelihood().double(), [(x, y[:, 0])])
    assert list(found) == ["x0", "x0.1", "constant", "constant.1"] and all(value >= 0 for value in found.values())
    assert found["x0"] > 0


def test_float32_models_with_enough_points_have_no_shortfall() -> None:
    x, y = data(4000)
    model, likelihood = model_of(0).float(), GaussianLikelihood()
    likelihood.noise = 0.04
    assert inducing_shortfall(model, likelihood, [(x.float(), y[:, 0].float())])["x0"] < 0.5


def test_what_it_cannot_read_is_refused() -> None:
    x, y = data(10)
    with pytest.raises(TypeError):
        inducing_shortfall(gpytorch.means.ZeroMean(), GaussianLikelihood(), [(x, y[:, 0])])
    with pytest.raises(ValueError, match="num_data is 9"):
        inducing_shortfall(model_of(0), GaussianLikelihood().double(), [(x, y[:, 0])], num_data=9)
