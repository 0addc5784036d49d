"""Fits by bins of kernels that are not those of the terms, against fits by rows."""

from __future__ import annotations

import pytest
import torch
from gpytorch.kernels import LinearKernel, PolynomialKernel
from gpytorch.likelihoods import GaussianLikelihood

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup, fit
from gpytorch_gam.terms import constant
from gpytorch_gam.training._quasi_newton import QuasiNewton


@pytest.mark.usefixtures("double_precision")
def test_hyperparameters_that_hardly_matter_by_themselves_arrive() -> None:
    torch.manual_seed(2)
    x = (100 * torch.rand(300, 2)).round() / 100
    y = 5 + 2 * x[:, 0] + 3 * x[:, 0].square() - 1.5 * x[:, 1] + 0.3 * torch.randn(300)
    x, bounds = 10 * x, []
    points = torch.linspace(0, x.max().item(), 6).unsqueeze(-1)
    for method in ("rows", "bins"):
        model = AdditiveGP(
            AdditivePredictor(
                ComponentGroup(LinearKernel(), [[0]], points[:2], names=["line"]),
                ComponentGroup(PolynomialKernel(2), [[0]], points[:4], names=["parabola"]),
                ComponentGroup(LinearKernel(), [[1]], points[:2], names=["other"]),
                constant(),
            )
        )
        bounds.append(fit(model, GaussianLikelihood(), (x, y), method=method).bound)
    assert bounds[1] == pytest.approx(bounds[0], abs=0.05)


@pytest.mark.usefixtures("double_precision")
def test_measured_curvatures_are_those_of_the_objective() -> None:
    curvature = torch.tensor([[2.0, 0.3, 0.0], [0.3, -1.0, 0.1], [0.0, 0.1, 3.0]])
    parameter = torch.nn.Parameter(torch.tensor([0.1, 0.2, -0.3]))
    search = QuasiNewton([parameter], [5.0])
    known = search.measured(lambda: -0.5 * parameter @ curvature @ parameter, [0, 1])
    expected = curvature.clone()
    expected[2, 2] = 5.0  # that of the start
    values, vectors = torch.linalg.eigh(expected)
    assert known is not None and known.coordinates == [0, 1, 2]
    torch.testing.assert_close(known.curvature, vectors @ values.abs().diag() @ vectors.mT)
    assert parameter.tolist() == pytest.approx([0.1, 0.2, -0.3])


@pytest.mark.usefixtures("double_precision")
def test_measured_curvatures_leave_the_position_where_the_objective_ends() -> None:
    parameter = torch.nn.Parameter(torch.tensor([0.1]))
    search = QuasiNewton([parameter], [1.0])
    assert search.measured(lambda: (1e-3 - (parameter - 0.1).abs()).log().sum(), [0]) is None
    assert parameter.item() == pytest.approx(0.1)
