"""Fits by rows in two processes against one with all of the rows."""

from __future__ import annotations

import pytest
import torch
from gpytorch.likelihoods import GaussianLikelihood, Likelihood
from torch import distributed

from gpytorch_gam import AdditiveGP, AdditivePredictor, fit
from gpytorch_gam.likelihoods import GaussianLocationScaleLikelihood, PoissonLikelihood, RowwiseLikelihood
from gpytorch_gam.terms import constant, smooth
from gpytorch_gam.training import FitResult
from tests.two_processes import Data, Group, Together, share

# All tests of two processes share these.
pytestmark = pytest.mark.xdist_group("distributed")

NUM_ROWS = 80


def problem(kind: str) -> tuple[AdditiveGP, Likelihood, Data]:
    """A model, its likelihood, and all rows."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(NUM_ROWS, 2, generator=generator, dtype=torch.float64)
    mean = torch.sin(6 * x[:, 0]) + x[:, 1]
    y = mean + 0.3 * torch.randn(NUM_ROWS, generator=generator, dtype=torch.float64)
    terms, arguments = [smooth([0, 1], low=0.0, high=1.0, num_inducing=6, kernel="rbf"), constant()], {}
    likelihood: Likelihood = GaussianLikelihood()
    if kind == "weights":
        likelihood, arguments = RowwiseLikelihood(likelihood), {"weights": 0.5 + x[:, 1]}
    elif kind == "counts":
        likelihood, y = PoissonLikelihood(), torch.poisson((mean + 1.0).exp(), generator=generator)
        arguments = {"exposure": 0.5 + x[:, 0]}
    elif kind == "location and scale":
        likelihood = GaussianLocationScaleLikelihood()
        terms += [smooth(1, low=0.0, high=1.0, num_inducing=5, names="spread", predictor=1), constant(predictor=1)]
    torch.manual_seed(1)
    return AdditiveGP(AdditivePredictor(*terms), "coupled").double(), likelihood.double(), (x, y, arguments)


def fitted(kind: str, counts: tuple[int, int], group: Group) -> tuple[FitResult, dict[str, torch.Tensor]]:
    model, likelihood, data = problem(kind)
    if group is not None and distributed.get_rank(group) > 0:  # these start from the first one's
        model.predictor.groups[0].kernel.outputscale = 7.0
    found = fit(model, likelihood, share(data, counts, group), method="rows", tolerance=1.0, process_group=group)
    return found, {**model.state_dict(), **likelihood.state_dict()}


@pytest.mark.parametrize(
    ("kind", "counts"),
    [
        ("Gaussian", (40, 40)),
        ("weights", (79, 1)),
        ("counts", (60, 20)),
        ("location and scale", (13, 67)),
    ],
)
def test_two_processes_equal_one(together: Together, kind: str, counts: tuple[int, int]) -> None:
    alone, expected = fitted(kind, counts, None)
    (first, one), (second, other) = together(fitted, kind, counts)
    for each, state in ((first, one), (second, other)):
        assert each.converged and each.evaluations == alone.evaluations
        assert each.bound == pytest.approx(alone.bound, rel=1e-9)
        assert [epoch.elbo for epoch in each.history] == pytest.approx(
            [epoch.elbo for epoch in alone.history], rel=1e-9
        )
        for name, value in expected.items():
            # Sums in another order; where data say little, the posterior turns on their last digits.
            torch.testing.assert_close(
                state[name], value, rtol=1e-6, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}"
            )
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, rtol=0, atol=0)
    assert (first.bound, first.gradient, first.open) == (second.bound, second.gradient, second.open)


def grown(group: Group) -> tuple[FitResult, int]:
    x = torch.rand(160, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    noise = 0.1 * torch.randn(160, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    model = AdditiveGP(AdditivePredictor(smooth(0, low=0.0, high=1.0), constant()), "coupled").double()
    data = share((x, torch.sin(40 * x[:, 0]) + noise, {}), (100, 60), group)
    found = fit(model, GaussianLikelihood().double(), data, method="rows", tolerance=1.0, process_group=group)
    return found, model.predictor.groups[0].num_inducing


def test_points_are_added_in_two_processes_as_in_one(together: Together) -> None:
    alone, number = grown(None)
    assert number > 16
    for found, each in together(grown):
        assert each == number
        assert found.bound == pytest.approx(alone.bound, abs=1e-3)


def error_of_a_share(counts: tuple[int, int], group: Group) -> str:
    model, likelihood, data = problem("counts")
    if counts[1] == 1:
        data[1][-1] = -1.0
    try:
        fit(model, likelihood, share(data, counts, group), method="rows", process_group=group)
    except (ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def test_an_error_of_one_process_is_one_of_all(together: Together) -> None:
    none, others = together(error_of_a_share, (0, NUM_ROWS))
    assert none.startswith("ValueError: x is empty")
    assert others == "RuntimeError: process 0 of process_group cannot read its rows: see its error"
    others, bad = together(error_of_a_share, (NUM_ROWS - 1, 1))
    assert bad.startswith("ValueError") and "negative" in bad
    assert others == "RuntimeError: process 1 of process_group cannot evaluate its likelihood: see its error"
