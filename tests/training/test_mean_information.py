"""The Fisher information of means, against dense covariances, and fits of means that components can imitate."""

from __future__ import annotations

import pytest
import torch
from gpytorch.likelihoods import GaussianLikelihood, Likelihood
from gpytorch.means import ConstantMean, LinearMean
from torch.utils.data import DataLoader, TensorDataset

from gpytorch_gam import AdditiveGP, AdditivePredictor, fit
from gpytorch_gam.likelihoods import GaussianLocationScaleLikelihood, PoissonLikelihood
from gpytorch_gam.optim.processes import Processes
from gpytorch_gam.optim.rows.predictors import predictor_segments
from gpytorch_gam.optim.rows.stream import Rows
from gpytorch_gam.parameters.log_scale import Coordinates
from gpytorch_gam.terms import smooth
from gpytorch_gam.training import _profile_bound, start_from_responses
from gpytorch_gam.training._hyperparameters import hyperparameters_of
from gpytorch_gam.training._information import Information
from gpytorch_gam.training._mean_information import MeanInformation
from gpytorch_gam.training._profile_bound import ProfileBound
from gpytorch_gam.training._row_bound import RowBound

pytestmark = pytest.mark.usefixtures("double_precision")

N = 25


@pytest.mark.parametrize("kind", [GaussianLikelihood, PoissonLikelihood, GaussianLocationScaleLikelihood])
def test_information_is_that_of_the_slopes_in_the_covariance_of_all_rows(kind: type[Likelihood]) -> None:
    torch.manual_seed(0)
    x, likelihood = torch.rand(N, 2), kind()
    groups, means = [smooth([0, 1], x, num_inducing=4)], [LinearMean(2)]
    if kind is GaussianLocationScaleLikelihood:
        groups, means = [*groups, smooth(1, x, num_inducing=4, predictor=1)], [*means, ConstantMean()]
    model = AdditiveGP(AdditivePredictor(*groups, mean=means), family="coupled")
    parameters = hyperparameters_of(model, likelihood)
    units = {id(model.predictor.means[0].weights): 3.0}
    coordinates = Coordinates(parameters, [model, likelihood], units)
    bound = RowBound(model, likelihood, Rows(x, torch.poisson(1 + x[:, 0]), {}), Processes(None))
    known = Information(model.variational_strategy, parameters, coordinates, None, Processes(None))(bound.site_rows)
    view, number = bound.site_view(), len(means)
    assert known is not None and view is not None
    of_means = known.curvature[-2 - number :, -2 - number :]  # behind that of the components

    precision = torch.cat([torch.cat([row[q].diag() for q in range(number)], -1) for row in view.curvatures])
    phi = view.features.new_zeros(len(view.features), number, N)
    for owner, place in predictor_segments(model.predictor):
        phi[place, owner] = view.features[place]
    phi = phi.flatten(1)
    seen = phi @ precision
    inverse = precision - seen.mT @ torch.linalg.solve(torch.eye(len(phi)) + seen @ phi.mT, seen)
    slopes = torch.zeros(number * N, 3 + (number == 2))
    slopes[:N, :2], slopes[:N, 2] = 3.0 * x, 1.0
    slopes[N:, 3:] = 1.0
    # The sites of the optimum come a little nearer to it each time they are asked for.
    torch.testing.assert_close(of_means, slopes.mT @ inverse @ slopes, rtol=2e-4, atol=1e-4)


@pytest.mark.parametrize("mean", [lambda: LinearMean(2), ConstantMean])
def test_a_mean_without_anything_to_train_has_no_information(mean: type[ConstantMean]) -> None:
    x = torch.rand(N, 2)
    model, likelihood = AdditiveGP(AdditivePredictor(smooth(0, x), mean=mean())), GaussianLikelihood()
    model.predictor.means[0].requires_grad_(False)
    parameters = hyperparameters_of(model, likelihood)
    coordinates = Coordinates(parameters, [model, likelihood])
    assert not MeanInformation(model.variational_strategy, parameters, coordinates).is_wanted


def test_slopes_that_components_can_imitate_arrive_from_any_start() -> None:
    torch.manual_seed(0)
    x = torch.rand(400, 3)
    y = torch.sin(6 * x[:, 0]) + x[:, 1].square() + 10 * x[:, 2] + 0.3 * torch.randn(400)
    bounds = []
    for start in (-2.0, 10.0):
        model = AdditiveGP(AdditivePredictor(smooth([0, 1, 2], x, num_inducing=12), mean=LinearMean(3)))
        torch.nn.init.constant_(model.predictor.means[0].weights, start)
        bounds.append(fit(model, GaussianLikelihood(), (x, y)).bound)
        assert model.predictor.means[0].weights[2].item() == pytest.approx(10.1, abs=0.1)
    assert bounds[0] == pytest.approx(bounds[1], abs=0.05)


def test_minibatches_end_where_rows_do() -> None:
    torch.manual_seed(0)
    x = torch.rand(200, 2)
    y = torch.sin(6 * x[:, 0]) + 10 * x[:, 1] + 0.3 * torch.randn(200)
    bounds = []
    for options in ({"method": "rows"}, {"num_epochs": 1}):
        model = AdditiveGP(AdditivePredictor(smooth([0, 1], x, num_inducing=6), mean=LinearMean(2)))
        bounds.append(fit(model, GaussianLikelihood(), DataLoader(TensorDataset(x, y), 50), **options).bound)
    assert bounds[0] == pytest.approx(bounds[1], abs=0.1)


def test_minibatches_know_of_rows_in_chunks_what_is_known_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    x, y, likelihood = torch.rand(N, 2), torch.randn(N), GaussianLikelihood()
    model = AdditiveGP(AdditivePredictor(smooth([0, 1], x, num_inducing=4), mean=LinearMean(2)), family="coupled")
    parameters, rows = hyperparameters_of(model, likelihood), Rows(x, y, {})
    coordinates, strategy = Coordinates(parameters, [model, likelihood]), model.variational_strategy
    bound = RowBound(model, likelihood, rows, Processes(None))
    expected = Information(strategy, parameters, coordinates, bound.noise_parameter, bound.processes)(bound.site_rows)
    monkeypatch.setattr(_profile_bound, "default_chunk_size", lambda strategy: 7)
    profile = ProfileBound(model, likelihood, list(rows.split(10)), N, parameters, coordinates)
    known = profile.known_curvatures()
    assert known is not None and expected is not None and known.coordinates == expected.coordinates
    torch.testing.assert_close(known.curvature, expected.curvature)


def test_the_level_of_a_line_starts_at_that_of_the_responses() -> None:
    torch.manual_seed(0)
    x = torch.rand(100, 2)
    y = 70 + x[:, 0]
    model = AdditiveGP(AdditivePredictor(smooth(0, x), mean=LinearMean(2)))
    start_from_responses(model, GaussianLikelihood(), [(x, y)])
    assert model.predictor.means[0](x).mean().item() == pytest.approx(y.mean().item())
