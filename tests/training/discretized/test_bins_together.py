"""Fits by bins in two processes against one with all of the rows."""

from __future__ import annotations

import pytest
import torch
from gpytorch.likelihoods import BernoulliLikelihood, GaussianLikelihood, Likelihood
from torch import Tensor, distributed

from gpytorch_gam import AdditiveGP, AdditivePredictor, fit
from gpytorch_gam.likelihoods import NegativeBinomialLikelihood, PoissonLikelihood, RowwiseLikelihood
from gpytorch_gam.terms import constant, smooth, tensor
from gpytorch_gam.training import FitResult
from tests.two_processes import Data, Group, Together, share

# All tests of two processes share these.
pytestmark = pytest.mark.xdist_group("distributed")

NUM_ROWS = 300


def problem(kind: str) -> tuple[AdditiveGP, Likelihood, Data]:
    """A model, its likelihood, and all rows; one column has few values, two are rounded."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(NUM_ROWS, 3, generator=generator, dtype=torch.float64)
    x[:, 0] = (9 * x[:, 0]).round()
    mean = torch.sin(x[:, 0]) + x[:, 1]
    y, arguments = mean + 0.3 * torch.randn(NUM_ROWS, generator=generator, dtype=torch.float64), {}
    likelihood: Likelihood = GaussianLikelihood()
    if kind == "weights":
        likelihood, arguments = RowwiseLikelihood(likelihood), {"weights": 0.5 + x[:, 1]}
    elif kind == "labels":
        likelihood, y = BernoulliLikelihood(), (y > 0.5).double()
    elif kind == "counts":
        likelihood, y = PoissonLikelihood(), torch.poisson((mean + 1.0).exp(), generator=generator)
        arguments = {"exposure": 0.5 + x[:, 1]}
    elif kind == "dispersed counts":
        likelihood, y = NegativeBinomialLikelihood(), torch.poisson((mean + y).exp(), generator=generator)
    terms = [
        smooth(0, low=0.0, high=9.0, num_inducing=9, kernel="rbf"),
        smooth([1, 2], low=0.0, high=1.0, num_inducing=5, kernel="rbf"),
        constant(),
    ]
    terms.append(tensor((0, 1), low=[0.0, 0.0], high=[9.0, 1.0], num_inducing=3))
    torch.manual_seed(1)
    return AdditiveGP(AdditivePredictor(*terms), "coupled").double(), likelihood.double(), (x, y, arguments)


def fitted(kind: str, counts: tuple[int, int], group: Group) -> tuple[FitResult, dict[str, Tensor]]:
    model, likelihood, data = problem(kind)
    if group is not None and distributed.get_rank(group) > 0:  # these start from the first one's
        model.predictor.groups[0].kernel.outputscale = 7.0
    own = share(data, counts, group)
    found = fit(model, likelihood, own, method="bins", max_bins=(40, 8), tolerance=1.0, process_group=group)
    return found, {**model.state_dict(), **likelihood.state_dict()}


@pytest.mark.parametrize(
    ("kind", "counts"),
    [
        ("Gaussian", (150, 150)),
        ("weights", (299, 1)),
        ("labels", (120, 180)),
        ("counts", (60, 240)),
        ("dispersed counts", (200, 100)),
    ],
)
def test_two_processes_equal_one(together: Together, kind: str, counts: tuple[int, int]) -> None:
    alone, expected = fitted(kind, counts, None)
    (first, one), (second, other) = together(fitted, kind, counts)
    for found in (first, second):
        assert found.converged and found.method == "bins" and found.evaluations == alone.evaluations
        assert found.bound == pytest.approx(alone.bound, rel=1e-9)
        assert found.open == pytest.approx(alone.open, abs=1e-6) and found.stopped == alone.stopped
    for name, value in expected.items():
        torch.testing.assert_close(one[name], value, rtol=1e-5, atol=1e-6)
        assert torch.equal(one[name], other[name])


def fitted_with_an_error(kind: str, group: Group) -> str:
    """The error of a fit in which the second process has a value that cannot be."""
    model, likelihood, data = problem(kind)
    x, y, _ = share(data, (150, 150), group)
    if distributed.get_rank(group) > 0:
        y = y.clone()
        y[3] = torch.nan if kind == "Gaussian" else -1.0
    try:
        fit(model, likelihood, (x, y), method="bins", process_group=group)
    except (RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.parametrize("kind", ["Gaussian", "labels"])
def test_an_error_of_one_process_is_one_of_all(together: Together, kind: str) -> None:
    first, second = together(fitted_with_an_error, kind)
    assert first.startswith("RuntimeError: process 1 of process_group cannot")
    assert second.startswith("ValueError: y")
