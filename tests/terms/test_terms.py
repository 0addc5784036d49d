"""Factories of terms: names, shapes, initial values, bounds, errors; fits are in test_term_fits.py."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gpytorch.constraints import Interval
from torch import Tensor

from gpytorch_gam import AdditiveGP, AdditivePredictor, ComponentGroup
from gpytorch_gam.components import Levels, quantile_points, regular_grid
from gpytorch_gam.kernels import Empirical, Normal, Uniform
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
from tests.terms.term_cases import SITES, TERMS, inputs

EXACT = {"linear", "linear by levels", "random effect", "random slope", "factor", "ordinal"}


def term_model(term: str, dtype: torch.dtype, family: str = "coupled") -> tuple[AdditiveGP, Tensor]:
    x = inputs(dtype=dtype)
    return AdditiveGP(AdditivePredictor(TERMS[term](x), constant()), family).to(dtype), x


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("term", TERMS)
def test_terms_have_hyperparameters_of_each_components_own_and_finite_gradients(term: str, dtype: torch.dtype) -> None:
    model, x = term_model(term, dtype, "mean_field")
    group = model.predictor.groups[0]
    count = group.num_components
    assert group.exact == (term in EXACT)
    for name, parameter in group.kernel.named_parameters():
        assert parameter.shape[0] == count, name
    distribution = model(x)
    assert distribution.mean.shape == (len(x),) and distribution.variance.dtype == dtype
    (distribution.mean.square().sum() + distribution.variance.log().sum()).backward()
    for name, parameter in group.kernel.named_parameters():
        if not parameter.requires_grad:
            assert name in ("raw_outputscale", "base_kernel.base_kernel.raw_period_length"), name
            continue
        assert parameter.grad is not None and bool(torch.isfinite(parameter.grad).all()), name


@pytest.mark.parametrize("term", TERMS)
def test_prior_variance_is_the_diagonal_of_a_positive_semidefinite_prior_covariance(term: str) -> None:
    model, x = term_model(term, torch.float64)
    group = model.predictor.groups[0]
    covariance = group.prior_covariance(x).to_dense()
    # 1e-9: covariances of exact groups go through a factorisation
    torch.testing.assert_close(
        covariance.diagonal(dim1=-2, dim2=-1), group.prior_variance(x), rtol=1e-9, atol=1e-9 * covariance.amax().item()
    )
    assert torch.linalg.eigvalsh(covariance).amin() > -1e-9 * covariance.amax()


@pytest.mark.parametrize("term", sorted(EXACT))
def test_inducing_variables_of_exact_terms_determine_them(term: str) -> None:
    model, x = term_model(term, torch.float64)
    group = model.predictor.groups[0]
    features = group.features(x, group.inducing_cholesky(0.0))
    torch.testing.assert_close(features.square().sum(-2), group.prior_variance(x), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("term", TERMS)
def test_terms_can_be_printed(term: str) -> None:
    group = TERMS[term](inputs())
    assert str(list(group.names)) in repr(group)


@pytest.mark.parametrize("term", TERMS)
def test_terms_survive_pickle_deepcopy_and_state_dict(term: str) -> None:
    model, x = term_model(term, torch.float64)
    model.eval()
    with torch.no_grad():
        for parameter in model.predictor.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1)
        expected = model(x).covariance_matrix
        fresh, _ = term_model(term, torch.float64)
        fresh.load_state_dict(model.state_dict())
        for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model), fresh):
            torch.testing.assert_close(other.eval()(x).covariance_matrix, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("group", "names"),
    [
        (smooth(2, low=0, high=1), ["x2"]),
        (smooth([0, 4], low=0, high=1), ["x0", "x4"]),
        (smooth([0], low=0, high=1, by=2), ["x0*x2"]),
        (smooth([0, 1], low=0, high=1, by=3, levels=["Bergen", "Oslo"]), None),
        (smooth(0, low=0, high=1, names="age"), ["age"]),
        (smooth([0, 1], low=0, high=1, predictor=1), ["x0.1", "x1.1"]),
        (tensor((0, 1), low=0, high=1), ["x0:x1"]),
        (tensor((0, 1), low=0, high=1, by=2, predictor=1), ["x0:x1*x2.1"]),
        (tensor(((0, 1), (4, 2)), low=0, high=1), ["x0:x1", "x4:x2"]),
        (linear([0, 2]), ["linear(x0)", "linear(x2)"]),
        (linear(0, by=2, predictor=1), ["linear(x0)*x2.1"]),
        (linear(0, by=3, levels=["Bergen", "Oslo"]), ["linear(x0)|x3=Bergen", "linear(x0)|x3=Oslo"]),
        (cyclic(1, 24), ["cyclic(x1)"]),
        (random_effect(3, 4), ["x3"]),
        (random_effect(3, 4, by=1, predictor=2), ["x3*x1.2"]),
        (factor(3, 4, name="site"), ["site"]),
        (ordinal(3, 4), ["x3"]),
        (factor_smooth(0, 3, 4, low=0, high=1), ["x0|x3"]),
        (factor_smooth(0, 3, 4, low=0, high=1, predictor=1), ["x0|x3.1"]),
        (interaction(0, 3, 4, low=0, high=1), ["x0:x3"]),
    ],
)
def test_default_names_say_what_a_component_reads(group: ComponentGroup, names: list[str] | None) -> None:
    assert list(group.names) == (names or ["x0|x3=Bergen", "x0|x3=Oslo", "x1|x3=Bergen", "x1|x3=Oslo"])


def test_terms_of_one_column_that_belong_together_have_names_of_their_own() -> None:
    x = inputs()
    groups = smooth(0, x), linear(0, x), cyclic(0, 0.1), random_effect(3, SITES), factor_smooth(0, 3, SITES, x)
    assert AdditivePredictor(*groups, constant()).num_components == 6
    with pytest.raises(ValueError, match=r"got \['x0'\] more than once: give .* smooth\(0, x, names='trend'\)"):
        AdditivePredictor(smooth(0, x), smooth(0, x, kernel="matern12"))


class DataFrame:
    """What components know of one: pandas is not needed to say what is wrong."""

    def to_numpy(self) -> np.ndarray:
        return np.zeros((3, 2))


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("x of smooth", lambda data: smooth(1, data)),
        ("x of tensor", lambda data: tensor((0, 1), data)),
        ("x of spatial", lambda data: spatial((0, 1), data)),
        ("x of linear", lambda data: linear(0, data)),
        ("x of factor_smooth", lambda data: factor_smooth(0, 1, 2, data)),
        ("x of interaction", lambda data: interaction(0, 1, 2, data)),
        ("low of smooth", lambda data: smooth(0, low=data, high=1)),
        ("period of cyclic", lambda data: cyclic(0, data)),
        ("values of inducing points", lambda data: quantile_points(data, 3)),
        ("low of regular_grid", lambda data: regular_grid(data, 1, 3)),
    ],
)
def test_data_frames_and_strings_are_refused_with_what_to_pass(name: str, call: Callable[[Any], object]) -> None:
    with pytest.raises(TypeError, match=rf"{name} must be a tensor or an array, got a DataFrame: .*to_numpy\(\)"):
        call(DataFrame())
    with pytest.raises(TypeError, match=rf"{name} must be a tensor or an array of numbers, got list"):
        call(["a", "b"])


def test_arrays_are_taken_like_tensors() -> None:
    x = inputs(dtype=torch.float64)
    for term in TERMS.values():
        assert torch.equal(term(x.numpy()).inducing_points, term(x).inducing_points)
    group = smooth(0, x)
    assert ComponentGroup(group.kernel, [[0]], group.inducing_points.numpy()).num_inducing == 16


def test_smooths_of_columns_are_batched_with_lengthscales_in_proportion_to_their_ranges() -> None:
    group = smooth([0, 1, 2], inputs(dtype=torch.float64), num_inducing=5)
    assert group.inducing_points.shape == (3, 5, 1)
    torch.testing.assert_close(group.inducing_points[1, ::4, 0], torch.tensor([-50.0, 50.0]))
    base = group.kernel.base_kernel.base_kernel
    torch.testing.assert_close(base.lengthscale.flatten(), torch.tensor([0.25, 25.0, 2.5]))
    constraint = base.raw_lengthscale_constraint
    torch.testing.assert_close(constraint.lower_bound.flatten(), torch.tensor([0.01, 1.0, 0.1]))
    torch.testing.assert_close(constraint.upper_bound.flatten(), torch.tensor([10.0, 1000.0, 100.0]))
    torch.testing.assert_close(group.kernel.outputscale, torch.ones(3))


def test_ranges_leave_out_nan_and_infinity_and_take_rows_of_batches_and_integers() -> None:
    x = torch.tensor([[1.0, 0.0], [math.nan, 5.0], [3.0, math.inf], [2.0, 1.0]])
    for data in (x, x.expand(2, 4, 2), x.numpy()):
        points = smooth([0, 1], data, num_inducing=2).inducing_points
        assert points.flatten().tolist() == [1.0, 3.0, 0.0, 5.0]
    assert smooth(0, torch.arange(9), num_inducing=2).inducing_points.flatten().tolist() == [0.0, 8.0]
    assert smooth(np.int64(1), x, low=-1).inducing_points.flatten()[[0, -1]].tolist() == [-1.0, 5.0]


@pytest.mark.parametrize("n", [60, 1000])
def test_columns_like_uniform_or_normal_ones_are_bulk_in_all_of_their_range(n: int) -> None:
    generator = torch.Generator().manual_seed(0)
    u = torch.rand(n, generator=generator, dtype=torch.float64)
    x = torch.stack([u, torch.special.ndtri(u), (10 * u).floor(), u.square()], -1)
    group, known = smooth([0, 1, 2, 3], x), smooth([0, 1, 2, 3], low=x.amin(0), high=x.amax(0))
    torch.testing.assert_close(dict(group.kernel.state_dict()), dict(known.kernel.state_dict()))
    torch.testing.assert_close(group.inducing_points[0], known.inducing_points[0], atol=0.05, rtol=0)


def test_points_stand_halfway_between_equal_shares_of_the_range_and_of_the_distinct_values() -> None:
    x = torch.linspace(0, 1, 401, dtype=torch.float64).square()
    points = smooth(0, torch.cat([x, x[:50]])[:, None], num_inducing=9).inducing_points.flatten().double()
    share = 0.5 * (points + points.sqrt())  # of the distribution of distinct values, a root
    torch.testing.assert_close(share, torch.linspace(0, 1, 9).double(), atol=2e-3, rtol=0)


def test_few_distinct_values_have_a_point_each() -> None:
    x = torch.tensor([[1.0, 3.0, 7.0, 14.0, 28.0, 56.0, 90.0, 90.0, 1.0]]).mT
    points = smooth(0, x, num_inducing=9).inducing_points.flatten()
    assert points.tolist() == [1.0, 3.0, 7.0, 14.0, 28.0, 42.0, 56.0, 73.0, 90.0]
    assert smooth(0, x, num_inducing=7).inducing_points.flatten().tolist() == x.unique().tolist()


@pytest.mark.parametrize("scale", [1.0, -1e3])
def test_points_of_a_column_with_an_outlier_serve_its_bulk_and_both_ends(scale: float) -> None:
    x = torch.cat([torch.linspace(0, 1, 500), torch.tensor([20.0])]).double()[:, None] * scale
    points = smooth(0, x).inducing_points.flatten().double() / scale
    assert {round(points[0].item(), 4), round(points[-1].item(), 4)} == {0.0, 20.0}
    assert ((points >= 0) & (points <= 1.0)).sum() == 8
    kernel = smooth(0, x).double().kernel.base_kernel
    base, width = kernel.base_kernel, abs(scale)
    assert base.lengthscale.item() == pytest.approx(0.25 * width, rel=0.02)
    assert base.raw_lengthscale_constraint.lower_bound.item() == pytest.approx(0.01 * width, rel=0.02)
    assert base.raw_lengthscale_constraint.upper_bound.item() == pytest.approx(200 * width, rel=1e-5)
    assert kernel.measure.standard_deviation.item() == pytest.approx(width / math.sqrt(12), rel=0.02)


def test_points_differ_and_keep_their_number_with_few_or_repeated_values() -> None:
    for column in ([0.0, 1.0], [0.0] * 90 + [1.0, 2.0, 1000.0], [3.0, 3.0, 5.0, math.nan, 1e6], range(40)):
        x = torch.tensor(column, dtype=torch.float64)[:, None]
        points = smooth(0, x).double().inducing_points.flatten()
        assert len(points) == 16 and (points.diff() > 0).all()
        assert points[0] == x.nan_to_num(1e9).amin() and points[-1] == x.nan_to_num(-1e9).amax()


def test_places_of_few_rows_get_more_points_in_any_precision() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        group = spatial((0, 1), torch.rand(70, 2))
    finally:
        torch.set_default_dtype(torch.float32)
    points = group.more_inducing_points()
    assert points is not None and points.shape == (1, 128, 2) and points.dtype == torch.float64


def test_ends_that_are_given_are_those_of_the_points_whatever_the_values() -> None:
    x = torch.cat([torch.rand(500), torch.tensor([20.0])]).double()[:, None]
    clipped = smooth(0, x, low=0.0, high=1.0)
    known = smooth(0, low=0.0, high=1.0)
    torch.testing.assert_close(dict(clipped.kernel.state_dict()), dict(known.kernel.state_dict()))
    torch.testing.assert_close(clipped.inducing_points, known.inducing_points, atol=0.05, rtol=0)


def test_ends_may_be_given_one_a_column_instead_of_data() -> None:
    points = smooth([0, 3], low=[0.0, -1.0], high=torch.tensor([1.0, 4.0]), num_inducing=2).inducing_points
    assert points.flatten().tolist() == [0.0, 1.0, -1.0, 4.0]


def test_anova_is_the_default_except_for_a_numeric_by() -> None:
    def is_centred(group: ComponentGroup) -> bool:
        return type(group.kernel.base_kernel).__name__ == "ANOVAKernel"

    assert is_centred(smooth(0, low=0, high=1)) and is_centred(smooth(0, low=0, high=1, by=1, levels=3))
    assert (
        is_centred(cyclic(0, 24)) and is_centred(cyclic(0, 24, by=1, levels=3)) and not is_centred(cyclic(0, 24, by=1))
    )
    assert not is_centred(smooth(0, low=0, high=1, by=1)) and is_centred(smooth(0, low=0, high=1, by=1, centred=True))
    assert not is_centred(smooth(0, low=0, high=1, centred=False))


def test_a_measure_may_be_one_for_all_or_one_a_column() -> None:
    both = Uniform(torch.tensor([0.0, 1.0]), torch.tensor([2.0, 3.0]))
    group = smooth([0, 1], low=0, high=3, measure=both, by=3, levels=2)
    assert group.kernel.base_kernel.measure.low.tolist() == [0.0, 0.0, 1.0, 1.0]
    assert smooth([0, 1], low=0, high=3, measure=Normal(0.0, 1.0)).kernel.batch_shape == (2,)
    atoms = Empirical(torch.tensor([0.0, 1.0, 5.0]))
    group = smooth(0, low=0, high=5, measure=atoms).double()
    values = group.evaluate_kernel(group.inducing_points, atoms.atoms.double().reshape(1, -1, 1))
    torch.testing.assert_close(values.mean(-1), torch.zeros(1, 16, dtype=torch.float64), rtol=0, atol=1e-12)


def test_by_levels_is_an_indicator_for_each_level() -> None:
    x = inputs(dtype=torch.float64)
    group = smooth([0, 1], x, by=3, levels=SITES).double()
    expected = x[:, 3] == torch.tensor(SITES.codes, dtype=torch.float64).unsqueeze(-1)
    torch.testing.assert_close(group.multiplier(x), expected.double().repeat(2, 1), rtol=0, atol=0)
    assert group.columns.flatten().tolist() == [0, 0, 0, 1, 1, 1]


def test_products_have_the_grid_times_the_levels_as_inducing_points() -> None:
    group = factor_smooth(0, 3, SITES, low=0, high=1, num_inducing=2)
    pairs = [[low, code] for code in SITES.codes for low in (0.0, 1.0)]
    assert group.columns.tolist() == [[0, 3]] and group.inducing_points[0].tolist() == pairs
    group = interaction(0, 3, SITES, low=0, high=1, num_inducing=2)  # the last level is minus the sum of the others
    assert group.inducing_points[0].tolist() == [pair for pair in pairs if pair[1] != 7.0]
    assert tensor((0, 1), low=0, high=1, num_inducing=(2, 3)).inducing_points.shape == (1, 6, 2)


def test_tensor_of_three_columns_and_ends_of_each_column() -> None:
    group = tensor([(0, 1, 2), (1, 2, 3)], low=[0, 1, 2], high=[1, 2, 4], num_inducing=3)
    assert group.inducing_points.shape == (2, 27, 3) and group.inducing_points[1].amax(0).tolist() == [1.0, 2.0, 4.0]
    assert [part.base_kernel.lengthscale.flatten().tolist() for part in group.kernel.base_kernel.kernels] == [
        pytest.approx([0.25, 0.25]),
        pytest.approx([0.25, 0.25]),
        pytest.approx([0.5, 0.5]),
    ]


def test_linear_effects_are_centred_and_scaled_by_the_data_or_as_given() -> None:
    x = inputs(dtype=torch.float64)
    group = linear([0, 1, 2], x, variance=4.0).double()
    columns = x[:, :3].mT
    standardised = (columns - columns.mean(-1, keepdim=True)) / columns.std(-1, correction=0, keepdim=True)
    expected = 4 * standardised.unsqueeze(-1) * standardised.unsqueeze(-2)
    torch.testing.assert_close(group.prior_covariance(x).to_dense(), expected, rtol=1e-6, atol=1e-6)  # 4 in float32
    plain = linear([0, 1], centre=[1.0, 2.0], scale=2.0).double()
    torch.testing.assert_close(plain.prior_variance(x), ((columns[:2].mT - torch.tensor([1, 2])) / 2).square().mT)
    torch.testing.assert_close(linear(0).double().prior_variance(x), columns[:1].square())


def test_variances_are_initial_values_and_that_of_a_factor_is_fixed() -> None:
    assert random_effect(0, 3, variance=2.5).kernel.outputscale.item() == pytest.approx(2.5)
    assert ordinal(0, 3, variance=2.5).kernel.outputscale.item() == pytest.approx(2.5)
    ends, levels = {"low": 0.0, "high": 1.0, "variance": 0.5}, {"levels": 3}
    for term in (
        smooth([0, 1], **ends),
        cyclic(0, period=1.0, variance=0.5),
        tensor((0, 1), **ends),
        spatial((0, 1), torch.rand(20, 2), num_inducing=4, variance=0.5),
        factor_smooth(0, 1, **levels, **ends),
        interaction(0, 1, **levels, **ends),
    ):
        torch.testing.assert_close(term.kernel.outputscale, torch.full((term.num_components,), 0.5))
        assert term.kernel.raw_outputscale.requires_grad
    with pytest.raises(ValueError, match="variance of smooth must be positive and finite, got 0"):
        smooth(0, low=0.0, high=1.0, variance=0)
    group = factor(0, 3, variance=7.0)
    assert group.kernel.outputscale.item() == pytest.approx(7.0) and not group.kernel.raw_outputscale.requires_grad
    codes = torch.arange(3.0).unsqueeze(-1)
    torch.testing.assert_close(group.prior_variance(codes), torch.full((1, 3), 7.0))
    default = factor(0, 3).prior_covariance(codes).to_dense()
    torch.testing.assert_close(default, 37.5 * (torch.eye(3) - 1 / 3).unsqueeze(0))


def test_two_levels_are_enough_for_terms_that_sum_to_zero() -> None:
    x = torch.tensor([[0.0], [1.0]])
    for group in (factor(0, 2), ordinal(0, 2)):
        covariance = group.prior_covariance(x).to_dense()[0]
        torch.testing.assert_close(covariance, covariance[0, 0] * torch.tensor([[1.0, -1.0], [-1.0, 1.0]]))


@pytest.mark.parametrize("lengthscale", [None, 0.3, 1900.0])
def test_many_levels_sum_to_zero_in_float32(lengthscale: float | None) -> None:
    group = factor(0, 200) if lengthscale is None else ordinal(0, 200)
    if lengthscale is not None:
        group.kernel.base_kernel.base_kernel.lengthscale = lengthscale
    levels = torch.arange(200.0).unsqueeze(-1)
    features = group.features(levels, group.inducing_cholesky(0.0))
    # Rounding of 200 numbers of the size of the prior's standard deviation, times the root of the condition number
    assert features.sum(-1).abs().amax() < 1e-3 * group.prior_variance(levels).amax().sqrt()


@pytest.mark.parametrize("steps", [1, 4, 100])
@pytest.mark.parametrize("edge", ["lower_bound", "upper_bound"])
def test_ordinal_covariances_are_well_conditioned_at_the_bounds_of_the_lengthscale(steps: int, edge: str) -> None:
    group = ordinal(0, steps + 1).double()
    base = group.kernel.base_kernel.base_kernel
    bound = getattr(base.raw_lengthscale_constraint, edge).item()
    base.lengthscale = bound * (1 + 1e-6 if edge == "lower_bound" else 1 - 1e-6)
    # Measured: ten times the square of the number of levels, as a random walk has. Factorisations are in float64.
    assert torch.linalg.cond(group.inducing_covariance()).item() < 15 * (steps + 1) ** 2


def test_ordinal_levels_are_in_the_order_given() -> None:
    group = ordinal(0, Levels((5.0, 1.0, 3.0))).double()
    correlation = group.kernel.base_kernel.base_kernel(torch.tensor([[5.0], [1.0], [3.0]])).to_dense().squeeze()
    assert correlation[0, 1] > correlation[0, 2]


def test_cyclic_points_divide_a_period_and_its_prior_repeats() -> None:
    group = cyclic(0, 24.0, start=-6.0, num_inducing=4).double()
    assert group.inducing_points.flatten().tolist() == [-6.0, 0.0, 6.0, 12.0]
    x = torch.tensor([[0.0], [24.0], [-48.0]], dtype=torch.float64)
    covariance = group.prior_covariance(x).to_dense()[0]
    torch.testing.assert_close(covariance, covariance[0, 0].expand(3, 3))
    names = [name for name, parameter in group.named_parameters() if parameter.requires_grad]
    assert sorted(name.rpartition(".")[-1] for name in names) == ["raw_lengthscale", "raw_outputscale"]


def test_lengthscales_of_cyclic_terms_are_learnt_by_their_logarithm() -> None:
    kernel = cyclic(0, 24.0).kernel.base_kernel.base_kernel
    bounds = kernel.raw_lengthscale_constraint
    raw = torch.tensor([-9.0, 0.0, 9.0], dtype=torch.float64)
    values = bounds.double().transform(raw)
    middle = (bounds.lower_bound * bounds.upper_bound).sqrt()
    expected = torch.stack([bounds.lower_bound, middle, bounds.upper_bound])
    torch.testing.assert_close(values, expected, rtol=2e-3, atol=0.0)  # sigmoid(-9) is 1.2e-4 of 11 units
    torch.testing.assert_close(bounds.inverse_transform(values), raw)
    assert bounds.check(values) and bounds.intersect(bounds).check(values)
    with pytest.raises(TypeError, match="another one only"):
        bounds.intersect(Interval(0.0, 1.0))


@pytest.mark.parametrize("edge", ["lower_bound", "upper_bound"])
def test_centred_cyclic_kernels_are_accurate_at_the_bounds_of_the_lengthscale(edge: str) -> None:
    group = cyclic(0, 24.0, num_inducing=24).double()
    base = group.kernel.base_kernel.base_kernel
    bound = getattr(base.raw_lengthscale_constraint, edge).item()
    base.lengthscale = bound * (1 + 1e-6 if edge == "lower_bound" else 1 - 1e-6)
    nodes = torch.arange(0.0, 24.0, 0.01, dtype=torch.float64).reshape(1, -1, 1)
    values = group.evaluate_kernel(group.inducing_points, nodes)
    assert values.mean(-1).abs().amax() < 1e-5 and group.prior_variance(nodes[0]).amin() > 0.9


def test_spatial_keeps_one_lengthscale_and_at_most_256_reference_rows() -> None:
    x = torch.cat([inputs(1000), torch.full((3, 4), math.nan)])
    group = spatial((1, 2), x, num_inducing=20)
    base = group.kernel.base_kernel
    assert base.points.shape == (256, 2) and group.inducing_points.shape == (1, 20, 2)
    assert base.base_kernel.lengthscale.shape == (1, 1, 1) and base.base_kernel.lengthscale.item() == pytest.approx(
        25.0
    )
    torch.testing.assert_close(base.points[0], x[0, 1:3])
    torch.testing.assert_close(base.points[-1], x[999, 1:3])


@pytest.mark.parametrize(
    "make",
    [
        lambda x, **options: smooth([0, 1], x, **options),
        lambda x, **options: smooth(0, x, by=3, levels=SITES, **options),
        lambda x, **options: tensor((2, 0), x, **options),
        lambda x, **options: linear(0, x, **options),
        lambda x, **options: cyclic(0, 1.0, **options),
        lambda x, **options: random_effect(3, SITES, **options),
        lambda x, **options: factor(3, SITES, **options),
        lambda x, **options: ordinal(3, SITES, **options),
        lambda x, **options: factor_smooth(0, 3, SITES, x, **options),
        lambda x, **options: interaction(0, 3, SITES, x, **options),
        lambda x, **options: spatial((1, 0), x, num_inducing=8, **options),
    ],
)
def test_missing_and_predictor_reach_the_group(make: Callable[..., ComponentGroup]) -> None:
    x = inputs()
    group = make(x, missing="marginal", predictor=1)
    assert group.missing == "marginal" and group.predictor_index == 1 and group.names[0].endswith(".1")
    rows = x[:3].clone()
    rows[0, group.columns[0, -1]] = math.nan
    variance = group.prior_variance(rows)[0, 0].item()
    # Two of the levels of an interaction and a grid are what its mean is taken over.
    assert variance == pytest.approx(group.kernel.outputscale[0].item(), rel=0.3)
    assert make(x).missing == "error"


def test_terms_of_all_kinds_make_one_model() -> None:
    x = inputs(dtype=torch.float64)
    groups = [
        make(x) for term, make in TERMS.items() if term in ("smooth", "tensor, pure", "factor smooth", "interaction")
    ]
    groups += [factor(3, SITES, name="site"), random_effect(3, SITES), linear([0, 1], names=["a", "b"]), constant()]
    groups += [smooth(0, x, predictor=1), factor(3, SITES, predictor=1), constant(predictor=1)]
    model = AdditiveGP(AdditivePredictor(*groups), "block_low_rank", rank=8).double().eval()
    assert model(x).mean.shape == (60, 2)
    assert model.components(x, ["x3.1", "site"]).mean.shape == (2, 60)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x: smooth(0), "smooth needs the training inputs x"),
        (lambda x: smooth(0, low=1.0), "smooth needs the training inputs x"),
        (lambda x: smooth([], x), "columns of smooth must be a column index"),
        (lambda x: smooth(-1, x), "columns of smooth must be a column index"),
        (lambda x: smooth([0, 9], x), "reads column 9, but x has 6 columns"),
        (lambda x: smooth([0, 4], x), r"column 4 of x has the value 2 in all rows: smooth"),
        (lambda x: smooth([0, 5], x), "column 5 of x has no finite value"),
        (lambda x: smooth(0, x[:0]), "one row or more"),
        (lambda x: smooth(0, x[:1]), "column 0 of x has the value 0 in all rows"),
        (lambda x: smooth(0, low=1, high=1), "low must be below high, got low=1, high=1 for column 0"),
        (lambda x: smooth([0, 1], low=[0, 0, 0], high=1), r"low of smooth must be one number, or one for each of"),
        (lambda x: smooth(0, low=math.nan, high=1), "low of smooth must be finite"),
        (lambda x: smooth(0, x, num_inducing=1), "num_inducing of smooth must be an integer of at least 2"),
        (lambda x: smooth(0, x, kernel="cubic"), r"kernel of smooth must be one of \['rbf', 'matern12'"),
        (lambda x: smooth(0, x, centred=False, measure=Uniform(0, 1)), "has a measure, but is not centred"),
        (lambda x: smooth(0, x, levels=3), "has levels but no by"),
        (lambda x: smooth(0, x, by=0, levels=3), "by of smooth is column 0, which is among its columns"),
        (lambda x: smooth(0, x, by=-1), "by of smooth must be a column index"),
        (lambda x: smooth([0, 1], x, names="a"), "names has 1 entries for 2 components"),
        (lambda x: smooth(0, x, missing="ignore"), "missing of"),
        (lambda x: tensor(0, x), "2 or more different columns"),
        (lambda x: tensor((0, 0), x), "2 or more different columns"),
        (lambda x: tensor([(0, 1), (0, 1, 2)], x), "2 or more different columns"),
        (lambda x: tensor((0, 4), x), "column 4 of x has the value 2 in all rows: tensor"),
        (lambda x: tensor((0, 1), x, num_inducing=(3, 3, 3)), "or 2 of them"),
        (
            lambda x: tensor((0, 1), x, measure=[Uniform(0, 1)]),
            "measure of tensor must be one for all 2 columns, or one each",
        ),
        (lambda x: tensor((0, 1), x, centred=False, measure=[Uniform(0, 1)] * 2), "give centred=True as well"),
        (lambda x: linear([0, 4], x), "column 4 of x has the value 2 in all rows: linear"),
        (lambda x: linear([0, 5], x), "column 5 of x has no finite value, from which linear"),
        (lambda x: linear(0, scale=0.0), "scale of linear must be positive"),
        (lambda x: linear(0, variance=-1.0), "variance of linear must be positive"),
        (lambda x: linear([0, 1], centre=[0.0, 1e9], scale=1.0), r"columns \[1\] vary too little"),
        (lambda x: smooth(0, x.double() + 1e8), "the range from 100000000 to 100000001 is too narrow .* in torch.fl"),
        (lambda x: tensor((0, 1), low=[0, 1e8], high=[1, 1e8 + 1]), "from 100000000 to 100000001 is too narrow"),
        (lambda x: cyclic([0, 1], [1.0, 24.0], start=[0.0, 1e9]), "from 1000000000 to 1000000022 is too narrow"),
        (lambda x: cyclic(0, 0.0), "period of cyclic must be positive"),
        (lambda x: cyclic([0, 1], [24.0, math.inf]), "period of cyclic must be finite"),
        (lambda x: random_effect(3, 0), "levels must be at least 1"),
        (lambda x: random_effect(3, 2, variance=math.inf), "variance of random_effect must be positive and finite"),
        (lambda x: factor(3, ["Oslo"]), r"factor of column 3 has the single level \['Oslo'\]"),
        (lambda x: ordinal(3, 1), "ordinal of column 3 has the single level"),
        (lambda x: interaction(0, 3, 1, x), "interaction of column 3 has the single level"),
        (lambda x: interaction(0, 0, 2, x), "column and by of interaction are both 0"),
        (lambda x: factor_smooth(4, 3, 2, x), "column 4 of x has the value 2 in all rows: factor_smooth"),
        (lambda x: factor_smooth(0, 3, 2, x, measure=Uniform(0, 1)), "has a measure, but is not centred"),
        (lambda x: spatial(0, x), "two different columns"),
        (lambda x: spatial((0, 0), x), "two different columns"),
        (lambda x: spatial((0, 4), x), "column 4 of x has the value 2 in all rows: spatial"),
        (lambda x: spatial((0, 5), x), "no row in which all of columns"),
    ],
)
def test_errors_name_the_argument_and_the_column(make: Callable[[Tensor], ComponentGroup], message: str) -> None:
    x = inputs()
    x = torch.cat([x, torch.full((len(x), 1), 2.0), torch.full((len(x), 1), math.nan)], -1)
    with pytest.raises(ValueError, match=message):
        make(x)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x: smooth("a", x), "columns of smooth must be a column index"),
        (lambda x: smooth(True, x), "columns of smooth must be a column index"),
        (lambda x: smooth(0, x, num_inducing=2.5), "num_inducing of smooth must be an integer"),
        (lambda x: smooth(0, x, variance="wide"), "variance of smooth must be a number"),
        (
            lambda x: factor_smooth(0, 3, 2, x, centred=True, measure="uniform"),
            "measure of factor_smooth must be a Mea",
        ),
        (lambda x: tensor((0, 1), x, measure=[Uniform(0, 1), 3]), "measure of tensor must be a Measure"),
        (lambda x: random_effect([3], 2), "column of random_effect must be a column index"),
        (lambda x: factor(3, 2, name=["site"]), "name of factor must be a string"),
        (lambda x: cyclic(0, 1.0, batch_shape=2), "batch_shape of cyclic must be a torch.Size"),
    ],
)
def test_arguments_of_a_wrong_kind_are_type_errors(make: Callable[[Tensor], ComponentGroup], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        make(inputs())


BATCHED: dict[str, Callable[..., ComponentGroup]] = {
    "smooth": lambda x, **options: smooth([0, 1], x, **options),
    "smooth by levels": lambda x, **options: smooth(0, x, by=3, levels=SITES, kernel="matern32", **options),
    "cyclic": lambda x, **options: cyclic([0, 1], [1.0, 24.0], **options),
    "linear": lambda x, **options: linear([0, 1], x, **options),
    "tensor": lambda x, **options: tensor([(0, 1), (1, 2)], x, num_inducing=3, **options),
    "spatial": lambda x, **options: spatial((0, 1), x, num_inducing=5, **options),
    "factor": lambda x, **options: factor(3, SITES, **options),
    "ordinal": lambda x, **options: ordinal(3, SITES, **options),
    "random effect": lambda x, **options: random_effect(3, SITES, by=0, **options),
    "factor smooth": lambda x, **options: factor_smooth(0, 3, SITES, x, num_inducing=4, **options),
    "interaction": lambda x, **options: interaction(0, 3, SITES, x, num_inducing=4, **options),
    "constant": lambda x, **options: constant(**options),
}


@pytest.mark.parametrize("term", BATCHED)
def test_a_batch_of_models_has_hyperparameters_of_its_own(term: str) -> None:
    x = inputs(dtype=torch.float64)
    single, batch = BATCHED[term](x).double(), BATCHED[term](x, batch_shape=(2,)).double()
    assert batch.batch_shape == (2,) and batch.names == single.names and batch.block_shape == single.block_shape
    expected = single.cross_covariance(x)
    torch.testing.assert_close(batch.cross_covariance(x), expected.expand(2, *expected.shape))
    torch.testing.assert_close(batch.prior_covariance(x).to_dense()[1], single.prior_covariance(x).to_dense())
    first, *_ = (parameter for parameter in batch.parameters() if parameter.requires_grad or term == "factor")
    with torch.no_grad():
        first[0] += 1.0  # of the first model alone
    changed = batch.cross_covariance(x)
    assert not torch.allclose(changed[0], expected) and torch.allclose(changed[1], expected)
    batch.load_state_dict(BATCHED[term](x, batch_shape=(2,)).double().state_dict())
    torch.testing.assert_close(batch.cross_covariance(x)[0], expected)
