"""States of terms: loaded into a model that was made from other rows, or none, and refused by one of other terms."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable

import pytest
import torch
from gpytorch.constraints import Interval
from gpytorch.kernels import RBFKernel, RQKernel, ScaleKernel
from torch import Tensor
from torch.optim.swa_utils import AveragedModel

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup
from gpytorch_gam.components import Levels
from gpytorch_gam.kernels import ANOVAKernel, Empirical, Uniform
from gpytorch_gam.terms import (
    constant,
    cyclic,
    factor,
    factor_smooth,
    interaction,
    linear,
    ordinal,
    random_effect,
    smooth,
    spatial,
    tensor,
)
from gpytorch_gam.variational import FullAdditiveVariationalStrategy, TiedAdditiveVariationalStrategy
from tests.terms.term_cases import SITES, TERMS, inputs

# What stands for the training inputs where there are none.
RANGE = {"low": 0.0, "high": 1.0}
WITHOUT_DATA: dict[str, Callable[[], ComponentGroup]] = {
    "smooth": lambda: smooth([0, 1, 2], **RANGE),
    "smooth, matern": lambda: smooth([0, 1], kernel="matern52", centred=False, **RANGE),
    "smooth by a number": lambda: smooth([0, 1], by=2, **RANGE),
    "smooth by levels": lambda: smooth([0, 1], by=3, levels=SITES, **RANGE),
    "smooth, learnt locations": lambda: smooth(0, learn_inducing_locations=True, **RANGE),
    "tensor, pure": lambda: tensor((0, 1), **RANGE),
    "tensor, pairs": lambda: tensor([(0, 1), (1, 2)], num_inducing=(3, 4), kernel="matern32", **RANGE),
    "tensor, full": lambda: tensor((0, 1), centred=False, **RANGE),
    "linear": lambda: linear([0, 1, 2]),
    "linear by levels": lambda: linear(0, by=3, levels=SITES),
    "cyclic": lambda: cyclic([0, 1], period=7.0),
    "cyclic by levels": lambda: cyclic(1, 2.0, by=3, levels=SITES),
    "random effect": lambda: random_effect(3, SITES),
    "random slope": lambda: random_effect(3, SITES, by=0),
    "factor": lambda: factor(3, SITES),
    "ordinal": lambda: ordinal(3, SITES),
    "factor smooth": lambda: factor_smooth(0, 3, SITES, **RANGE),
    "factor smooth, centred": lambda: factor_smooth(0, 3, SITES, centred=True, kernel="matern32", **RANGE),
    "interaction": lambda: interaction(0, 3, SITES, **RANGE),
    "spatial": lambda: spatial((0, 1), num_inducing=10, **RANGE),
    "spatial, plain": lambda: spatial((0, 1), num_inducing=10, kernel="rbf", centred=False, **RANGE),
}


def model_of(*groups: ComponentGroup) -> AdditiveGP:
    return AdditiveGP(AdditivePredictor(*groups, constant()), rank=3).double().eval()


@torch.no_grad()
def trained(model: AdditiveGP, x: Tensor) -> AdditiveGP:
    """With parameters of its own, as training leaves them."""
    model(x)
    generator = torch.Generator().manual_seed(3)
    for parameter in model.parameters():
        noise = torch.rand(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.add_(0.2 * noise if parameter.requires_grad else 0.0)
    return model


def through_a_file(model: torch.nn.Module) -> dict[str, Tensor]:
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@pytest.mark.parametrize(("source", "assign"), [("scaled rows", False), ("two rows", True), ("no rows", False)])
@pytest.mark.parametrize("term", TERMS)
def test_a_state_serves_a_model_made_from_other_rows_or_none(term: str, source: str, assign: bool) -> None:
    x = inputs(300, torch.float64)
    model = trained(model_of(TERMS[term](x)), x)
    rows = {"scaled rows": inputs(40) * 3.0 + 0.01, "two rows": inputs(2)}
    term_again = WITHOUT_DATA[term]() if source == "no rows" else TERMS[term](rows[source].double())
    loaded = model_of(term_again)
    loaded.load_state_dict(through_a_file(model), assign=assign)
    new = inputs(20, torch.float64)
    with torch.no_grad():
        assert torch.equal(loaded(new).mean, model(new).mean)
        assert torch.equal(loaded(new).covariance_matrix, model(new).covariance_matrix)


def test_measures_with_another_number_of_atoms_are_loaded() -> None:
    x = inputs(300, torch.float64)[:, :2]
    model = trained(model_of(smooth([0, 1], x, measure=Empirical.from_data(x.mT))), x)
    loaded = model_of(smooth([0, 1], x[:20], measure=Empirical.from_data(x[:20].mT)))
    loaded.load_state_dict(model.state_dict())
    assert torch.equal(loaded(x).variance, model(x).variance)


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("kernel", ["rbf", "matern32"])
def test_kernels_with_bounds_of_each_components_own_are_indexed(kernel: str, centred: bool) -> None:
    group = smooth([0, 1, 2], inputs(dtype=torch.float64), kernel=kernel, centred=centred).double()
    lazy = group.kernel(group.select(inputs(9, torch.float64)))
    for index in (1, slice(1, None), [2, 0]):
        torch.testing.assert_close(lazy[index].to_dense(), lazy.to_dense()[index])
    wide = group.kernel.expand_batch(torch.Size([2, 3]))
    points = group.select(inputs(9, torch.float64))
    torch.testing.assert_close(wide(points).to_dense()[1], lazy.to_dense())
    product = factor_smooth(0, 3, SITES, inputs(dtype=torch.float64)).double()
    points = product.select(inputs(9, torch.float64))
    torch.testing.assert_close(product.kernel(points)[0].to_dense(), product.kernel(points).to_dense()[0])


def by_hand(kernel: torch.nn.Module) -> ComponentGroup:
    return ComponentGroup(ScaleKernel(kernel), [[0]], torch.linspace(0, 1, 5).reshape(1, 5, 1))


@pytest.mark.parametrize(
    ("saved", "here", "message"),
    [
        (smooth([0, 1], **RANGE), smooth([1, 0], **RANGE), r'names: \["x0", "x1"\] in the state, \["x1", "x0"\] here'),
        (
            smooth(0, names="age", **RANGE),
            smooth(1, names="age", **RANGE),
            r"columns: \[\[0\]\] in the state, \[\[1\]\] here",
        ),
        (
            smooth(0, kernel="rbf", **RANGE),
            smooth(0, kernel="matern32", **RANGE),
            "BoundedRBFKernel in the state, BoundedMaternKernel here",
        ),
        (
            smooth(0, kernel="matern32", **RANGE),
            smooth(0, kernel="matern52", **RANGE),
            "nu of .*: 1.5 in the state, 2.5",
        ),
        (
            smooth(0, measure=Uniform(0, 1), **RANGE),
            smooth(0, measure=Empirical([0, 1]), **RANGE),
            "Uniform in the state, Emp",
        ),
        (smooth(0, **RANGE), smooth(0, centred=False, **RANGE), "ANOVAKernel in the state, BoundedMaternKernel here"),
        (smooth(0, **RANGE), smooth(0, num_inducing=9, **RANGE), "num_inducing: 16 in the state, 9 here"),
        (
            smooth(0, by=2, names="a", **RANGE),
            smooth(0, by=3, names="a", **RANGE),
            r"by: \[2\] in the state, \[3\] here",
        ),
        (factor(0, ["Bergen", "Oslo"]), factor(0, ["Oslo", "Tromso"]), 'levels: .*"Bergen".* in the state, .*"Tromso"'),
        (random_effect(0, ["Bergen", "Oslo"]), random_effect(0, ["Oslo", "Bergen"]), "levels: "),
        (
            factor_smooth(0, 1, ["Bergen", "Oslo"], **RANGE),
            factor_smooth(0, 1, ["Bergen", "Voss"], **RANGE),
            "levels: ",
        ),
        (linear(0, predictor=0, names="a"), linear(0, predictor=1, names="a"), "predictor: 0 in the state, 1 here"),
        (by_hand(RBFKernel()), by_hand(RQKernel()), "kernel.base_kernel: RBFKernel in the state, RQKernel here"),
        (
            by_hand(RBFKernel()),
            by_hand(RBFKernel(lengthscale_constraint=Interval(0.1, 2.0))),
            "constraint: Positive in the state, Interval here",
        ),
        (
            by_hand(ANOVAKernel(RBFKernel(), Uniform(0, 1))),
            by_hand(ANOVAKernel(RBFKernel(), Uniform(0, 1), normalize=False)),
            "normalize of kernel.base_kernel: true in the state, false here",
        ),
    ],
)
def test_a_state_of_other_components_is_refused_before_anything_is_loaded(
    saved: ComponentGroup, here: ComponentGroup, message: str
) -> None:
    before = copy.deepcopy(here.state_dict())
    with pytest.raises(ValueError, match=message):
        here.load_state_dict(saved.state_dict())
    assert all(torch.equal(value, before[name]) for name, value in here.state_dict().items())


def test_a_model_that_refuses_a_state_stays_as_it_was() -> None:
    x = torch.rand(30, 2, dtype=torch.float64)
    model, other = (model_of(smooth(0, x), smooth(column, x, names="last")) for column in (0, 1))
    trained(model, x)
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(ValueError, match=r"other components than .'last'.: columns"):
        other.load_state_dict(model.state_dict())
    torch.testing.assert_close(dict(other.state_dict()), dict(before), rtol=0, atol=0, equal_nan=True)


def test_a_state_without_structure_is_missing_something_unless_that_is_wanted() -> None:
    trained_group, other = smooth(0, names="a", low=2, high=5), smooth(1, names="a", low=0, high=1)
    state = {name: value for name, value in trained_group.state_dict().items() if name != "_extra_state"}
    with pytest.raises(RuntimeError, match=r"Missing key.*_extra_state"):
        other.load_state_dict(state)
    assert other.load_state_dict(state, strict=False).missing_keys == ["_extra_state"]
    assert torch.equal(other.inducing_points, trained_group.inducing_points)
    with pytest.raises(ValueError, match="leave entries whose name ends in '_extra_state' as they are"):
        other.load_state_dict({**state, "_extra_state": torch.rand(5)})


def test_states_are_tensors_that_tools_for_tensors_take() -> None:
    x = torch.rand(30, 2, dtype=torch.float64)
    x[:, 1].round_()
    model = trained(model_of(smooth(0, x), factor(1, Levels((0.0, 1.0), ("Å", "ß")))), x)
    state = model.state_dict()
    assert all(torch.is_tensor(value) for value in state.values())
    expected = model(x).mean
    torch.testing.assert_close(torch.func.functional_call(model, state, (x,)).mean, expected, rtol=0, atol=0)
    averaged = AveragedModel(model)
    averaged.update_parameters(model)
    copy.deepcopy(averaged).load_state_dict(averaged.state_dict())
    torch.testing.assert_close(averaged(x).mean, expected, rtol=0, atol=0)


def test_an_absolute_jitter_travels_with_the_posterior() -> None:
    x = torch.rand(30, 1, dtype=torch.float64)
    predictor = AdditivePredictor(smooth(0, x, kernel="matern12"), constant())
    model = trained(AdditiveGP(predictor, rank=3, jitter_val=0.05).double().eval(), x)
    loaded = AdditiveGP(copy.deepcopy(predictor), rank=3).double().eval()
    loaded.load_state_dict(model.state_dict())
    assert torch.equal(loaded(x).variance, model(x).variance)


def test_sites_of_another_posterior_are_refused() -> None:
    x = torch.rand(12, 1, dtype=torch.float64)
    model = AdditiveGP(AdditivePredictor(smooth(0, x), constant()).double())
    tied = TiedAdditiveVariationalStrategy(model, model.predictor, x)
    full = FullAdditiveVariationalStrategy(model, copy.deepcopy(model.predictor), x, jitter_val=1e-6)
    with pytest.raises(ValueError, match="posterior over sites tied to inducing variables, but FullAdditive"):
        full.load_state_dict(tied.state_dict())
