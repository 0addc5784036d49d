"""Jumps of components whose hyperparameters have priors, against the bound and these densities."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from gpytorch.kernels import ScaleKernel
from gpytorch.priors import GammaPrior, LogNormalPrior, Prior
from torch import Tensor

from gpytorch_gam import AdditiveGP, AdditivePredictor
from gpytorch_gam.optim.processes import Processes
from gpytorch_gam.optim.rows.stream import Rows
from gpytorch_gam.terms import constant, smooth, tensor
from gpytorch_gam.training._component_jumps import ComponentJumps
from gpytorch_gam.training._component_priors import ComponentPriors
from gpytorch_gam.training._component_scales import places_of_components, scales_of_components
from gpytorch_gam.training._component_scan import Change, ComponentScan, SumsAtRows
from gpytorch_gam.training._row_bound import RowBound
from gpytorch_gam.training.bound_gradients import log_prior_in_nats
from tests.problems import dense_optimum, gaussian_likelihood, gaussian_problem


def with_priors(x: Tensor) -> AdditiveGP:
    """Two smooths in one group, another one and a surface; densities of deviations, variances and lengthscales."""
    torch.manual_seed(1)
    pair, single = smooth([0, 1], x, num_inducing=6), smooth(2, x, num_inducing=5)
    surface = tensor((0, 1), x, num_inducing=4)
    pair.kernel.register_prior("deviation", GammaPrior(1.0, 2.0), lambda kernel: kernel.outputscale.sqrt())
    single.kernel.register_prior("variance", LogNormalPrior(-1.0, 1.0), "outputscale")
    for group in (pair, single, surface):
        part = next(each for each in group.kernel.modules() if hasattr(each, "raw_lengthscale"))
        part.register_prior("lengthscale_prior", LogNormalPrior(0.0, 0.5), "lengthscale")
    return AdditiveGP(AdditivePredictor(pair, single, surface, constant()), "coupled").double()


def test_gains_of_jumps_are_those_of_the_bound_and_the_log_prior(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = gaussian_problem(80)
    model, likelihood, gains = with_priors(x), gaussian_likelihood(), []
    take = ComponentScan.take

    def recorded(scan: ComponentScan, change: Change) -> None:
        gains.append(change.gain)
        take(scan, change)

    monkeypatch.setattr(ComponentScan, "take", recorded)
    bound = RowBound(model, likelihood, Rows(x, y, {}), Processes(None))
    view = bound.site_view()
    assert view is not None
    sums = SumsAtRows(view, list(places_of_components(model.predictor).values()))

    def values() -> tuple[float, float]:
        return dense_optimum(model, likelihood, x, y), log_prior_in_nats(model, likelihood)

    before = values()
    assert ComponentJumps(model.predictor).jump(sums, bound.trial, 0.01)
    after = values()
    assert len(gains) > 3 and abs(after[1] - before[1]) > 0.5
    # A component that is taken away keeps a millionth of its variance.
    assert sum(after) - sum(before) == pytest.approx(sum(gains), abs=2e-3)


def test_log_densities_are_those_of_each_component() -> None:
    model = with_priors(gaussian_problem(20)[0])
    scales = list(scales_of_components(model.predictor))
    priors = ComponentPriors(scales)
    variances = torch.rand(4, 3, dtype=torch.float64) + 0.1
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = priors.of_variances(variances) + priors.of_lengthscales().unsqueeze(-1)
    assert priors.exist() and all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    for place in range(3):
        for scale, value in zip(scales, variances[:, place].tolist(), strict=True):
            scale.set(value)
        assert log_prior_in_nats(model) == pytest.approx(found[:, place].sum().item(), abs=1e-6)


class _Together(Prior):
    """A density of all values together."""

    arg_constraints: ClassVar[dict[str, object]] = {}

    def log_prob(self, values: Tensor) -> Tensor:
        return -values.square().sum()


def test_densities_of_several_components_together_are_left_out() -> None:
    x, _ = gaussian_problem(20)
    group = smooth([0, 1], x, num_inducing=6)
    assert isinstance(group.kernel, ScaleKernel)
    group.kernel.register_prior("variances", _Together(validate_args=False), "outputscale")
    priors = ComponentPriors(list(scales_of_components(AdditivePredictor(group))))
    assert not priors.of_variances(torch.rand(2, 5, dtype=torch.float64)).any()
