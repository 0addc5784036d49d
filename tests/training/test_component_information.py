"""The Fisher information of components' hyperparameters, against differences of dense covariances."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from gpytorch.likelihoods import GaussianLikelihood, Likelihood
from torch import Tensor

from gpytorch_gam import AdditiveGP, AdditivePredictor
from gpytorch_gam.likelihoods import GaussianLocationScaleLikelihood, PoissonLikelihood, RowwiseLikelihood
from gpytorch_gam.optim.processes import Processes
from gpytorch_gam.optim.rows.predictors import predictor_segments
from gpytorch_gam.optim.rows.stream import Rows
from gpytorch_gam.parameters.log_scale import Coordinates
from gpytorch_gam.terms import constant, factor, smooth, tensor
from gpytorch_gam.training._hyperparameters import hyperparameters_of
from gpytorch_gam.training._information import Information
from gpytorch_gam.training._quasi_newton import Known, QuasiNewton
from gpytorch_gam.training._row_bound import RowBound

pytestmark = pytest.mark.usefixtures("double_precision")

N = 25


def problem(likelihood: Likelihood) -> tuple[AdditiveGP, RowBound, list[Tensor], Coordinates]:
    generator = torch.Generator().manual_seed(0)
    x = torch.cat([torch.rand(N, 2, generator=generator), torch.arange(N).unsqueeze(-1) % 3], dim=-1)
    groups = [constant(), smooth([0, 1], x, num_inducing=4), factor(2, 3), tensor([0, 1], x, num_inducing=3)]
    if isinstance(likelihood, GaussianLocationScaleLikelihood):
        groups += [constant(predictor=1), smooth(1, x, num_inducing=4, predictor=1)]
    model = AdditiveGP(AdditivePredictor(*groups), family="coupled")
    y = torch.poisson(torch.exp(1 + x[:, 0]), generator=generator)
    arguments = {"weights": torch.linspace(0.5, 2.0, N)} if isinstance(likelihood, RowwiseLikelihood) else {}
    parameters = hyperparameters_of(model, likelihood)
    bound = RowBound(model, likelihood, Rows(x, y, arguments), Processes(None))
    return model, bound, parameters, Coordinates(parameters, [model, likelihood])


def information(
    model: AdditiveGP, bound: RowBound, parameters: Sequence[Tensor], coordinates: Coordinates
) -> Information:
    return Information(model.variational_strategy, parameters, coordinates, bound.noise_parameter, bound.processes)


def stacked_features(model: AdditiveGP, bound: RowBound, number: int) -> Tensor:
    """Phi of the stacked predictors of all rows, ``(Q, P n)``."""
    features = bound.trial().features
    stacked = features.new_zeros(len(features), number, N)
    for owner, place in predictor_segments(model.predictor):
        stacked[place, owner] = features[place]
    return stacked.flatten(1)


LIKELIHOODS = {
    "gaussian": GaussianLikelihood,
    "poisson": PoissonLikelihood,
    "location and scale": GaussianLocationScaleLikelihood,
}


@pytest.mark.parametrize("kind", LIKELIHOODS)
def test_information_is_that_of_the_covariance_of_all_rows(kind: str) -> None:
    likelihood = LIKELIHOODS[kind]()
    model, bound, parameters, coordinates = problem(likelihood)
    known = information(model, bound, parameters, coordinates)(bound.site_rows)
    assert known is not None
    here = [position.clone() for position in coordinates.read()]
    flat, sizes = torch.cat([part.flatten() for part in here]), [part.numel() for part in here]
    num_constants = sum("constant" in name for name in model.predictor.names)
    assert len(known.coordinates) == len(flat) - num_constants  # these have variances of another kernel
    view = bound.site_view()
    assert view is not None

    number = len(view.curvatures)

    def at(position: Tensor) -> Tensor:
        """The part of the covariance that changes: all but the inverse of curvatures that are those of a likelihood."""
        coordinates.write([part.view_as(own) for part, own in zip(position.split(sizes), here, strict=True)])
        phi = stacked_features(model, bound, number)
        noise = likelihood.noise * torch.eye(N) if kind == "gaussian" else 0.0
        coordinates.write(here)
        return phi.mT @ phi + noise

    precision = torch.cat([torch.cat([row[q].diag() for q in range(number)], -1) for row in view.curvatures])
    phi = stacked_features(model, bound, number)
    seen = phi @ precision
    inverse = precision - seen.mT @ torch.linalg.solve(torch.eye(len(phi)) + seen @ phi.mT, seen)
    changes, step = [], 1e-4
    for coordinate in known.coordinates:
        move = torch.zeros_like(flat)
        move[coordinate] = step
        changes.append(inverse @ (at(flat + move) - at(flat - move)) / (2 * step))
    expected = torch.stack([torch.stack([0.5 * (a * b.mT).sum() for b in changes]) for a in changes])
    # Forward differences of features by 1e-4, and lower bounds of variances, which are not exactly exponentials.
    torch.testing.assert_close(known.curvature, expected, rtol=2e-3, atol=2e-3 * expected.abs().max().item())
    assert torch.equal(torch.cat([part.flatten() for part in coordinates.read()]), flat)


def test_weights_count_as_copies_of_rows() -> None:
    likelihood = RowwiseLikelihood(GaussianLikelihood())
    model, bound, parameters, coordinates = problem(likelihood)
    known = information(model, bound, parameters, coordinates)(bound.site_rows)
    assert known is not None
    noise = next(i for i, parameter in enumerate(parameters) if parameter is likelihood.likelihood.raw_noise)
    place = known.coordinates.index(sum(parameter.numel() for parameter in parameters[:noise]))
    curvature = known.curvature[place, place].item()
    assert 0.5 * (1.25 * N - model.predictor.num_inducing_total) < curvature < 0.5 * 1.25 * N


def test_a_search_begins_with_the_curvatures_that_are_known() -> None:
    root = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    curvature = root @ root.mT + torch.eye(4)
    start = 0.1 * torch.ones(4)
    parameter = torch.nn.Parameter(start.clone())

    def objective() -> Tensor:
        return -0.5 * parameter @ curvature @ parameter

    evaluations = []
    for known in (None, Known([2, 0, 1, 3], curvature[[2, 0, 1, 3]][:, [2, 0, 1, 3]])):
        with torch.no_grad():
            parameter.copy_(start)
        search = QuasiNewton([parameter], [1.0])
        search.forget(known)
        search.maximise(objective, 1e-6, 100)
        assert parameter.abs().max() < 1e-2
        evaluations.append(search.evaluations)
    assert evaluations[1] <= 3 < evaluations[0]


def test_information_is_that_of_the_points_that_a_model_has_now() -> None:
    likelihood = GaussianLikelihood()
    x = torch.rand(N, 2, generator=torch.Generator().manual_seed(0))
    model = AdditiveGP(AdditivePredictor(constant(), smooth([0, 1], low=0.0, high=1.0)), family="coupled")
    parameters = hyperparameters_of(model, likelihood)
    coordinates = Coordinates(parameters, [model, likelihood])
    bound = RowBound(model, likelihood, Rows(x, x.sum(-1), {}), Processes(None))
    made_before = information(model, bound, parameters, coordinates)
    model.variational_strategy.add_inducing_points()
    bound.read_components()
    before = made_before(bound.site_rows)
    after = information(model, bound, parameters, coordinates)(bound.site_rows)
    assert before is not None and after is not None
    torch.testing.assert_close(before.curvature, after.curvature)
