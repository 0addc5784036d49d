"""Bins hold exact values, round others to the nearest, and state the error of that."""

from __future__ import annotations

import pytest
import torch
from gpytorch.kernels import CosineKernel, Kernel, MaternKernel, PeriodicKernel, RBFKernel, ScaleKernel
from torch.utils.data import DataLoader, TensorDataset

from gpytorch_gam import AdditivePredictor, ComponentGroup
from gpytorch_gam.components import regular_grid
from gpytorch_gam.kernels import ANOVAKernel, Uniform
from gpytorch_gam.terms import constant, cyclic, smooth
from gpytorch_gam.training.discretized import ColumnBins
from gpytorch_gam.training.discretized.column_bins import Phase


def make_predictor() -> AdditivePredictor:
    main = ScaleKernel(ANOVAKernel(RBFKernel(), Uniform(0.0, 1.0)), batch_shape=torch.Size([2]))
    main.base_kernel.base_kernel.lengthscale, main.outputscale = 0.3, torch.tensor([2.0, 0.1])
    pair = ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=2), batch_shape=torch.Size([1]))
    pair.base_kernel.lengthscale = torch.tensor([0.5, 1.0])
    return AdditivePredictor(
        constant(),
        ComponentGroup(main, [[0], [2]], regular_grid(0.0, 1.0, 5)),
        ComponentGroup(pair, [[0, 1]], regular_grid([0.0, 0.0], [1.0, 1.0], 3)),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_few_values_are_kept(dtype: torch.dtype) -> None:
    values = torch.tensor([-3.7, 0.1, 0.3, 1e6], dtype=dtype)
    x = torch.stack([values[torch.randint(4, (200,))], torch.rand(200, dtype=dtype)], dim=-1)
    bins = ColumnBins.from_data(x, max_bins=200)
    assert bins.terms == ((0,), (1,)) and [bins.num_bins(term) for term in bins.terms] == [4, 200]
    for term, codes in zip(bins.terms, bins.index(x), strict=True):
        assert bins.is_exact(term)
        assert torch.equal(bins.values(term)[codes.long()], x[:, term])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("offset", [0.0, -1000.0])
def test_others_go_to_the_nearest_of_equidistant_values(dtype: torch.dtype, offset: float) -> None:
    x = (torch.rand(5000, 1, dtype=torch.float64) * 3 + offset).to(dtype)
    bins = ColumnBins.from_data(x, max_bins=40)
    values, (codes,) = bins.values((0,)), bins.index(x)
    assert not bins.is_exact((0,)) and values.shape == (40, 1)
    assert values[0] == x.min() and values[-1] == x.max()
    half = 0.5 * (x.max() - x.min()) / 39
    rounding = 4 * torch.finfo(dtype).eps * x.abs().max()
    assert (values[codes.long()] - x).abs().max() <= half + rounding
    assert codes.dtype == torch.int16


def test_combinations_are_those_that_occur() -> None:
    x = torch.tensor([[0.0, 1.0], [0.0, 2.0], [5.0, 1.0], [0.0, 1.0]])
    bins = ColumnBins.from_data(x, [[0, 1], [1, 0], []])
    assert [bins.num_bins(term) for term in bins.terms] == [3, 3, 1]
    for term, codes in zip(bins.terms, bins.index(x), strict=True):
        assert torch.equal(bins.values(term)[codes.long()], x[:, term])
    with pytest.raises(ValueError, match=r"1 of 2 rows have combinations of columns \(0, 1\) that did not occur"):
        bins.index(torch.tensor([[0.0, 1.0], [5.0, 2.0]]))


def test_batches_give_the_bins_of_all_rows() -> None:
    x = torch.cat([torch.randint(7, (300, 1)).float(), torch.rand(300, 2)], dim=-1)
    loader = DataLoader(TensorDataset(x, torch.zeros(300)), batch_size=32)
    terms = [[0], [1], [0, 1], [1, 2]]
    whole = ColumnBins.from_data(x, terms, max_bins=(20, 6))
    streamed = ColumnBins.from_batches(loader, terms, max_bins=(20, 6))
    assert repr(whole) == repr(streamed)
    for term in whole.terms:
        assert torch.equal(whole.values(term), streamed.values(term))
    with pytest.raises(ValueError, match="only once"):
        ColumnBins.from_batches(iter(list(loader)), terms, max_bins=(20, 6))


def test_many_combinations_have_larger_integers() -> None:
    x = torch.rand(100000, 2)
    bins = ColumnBins.from_data(x, [[0, 1]], max_bins=(1000, 400))
    assert bins.num_bins((0, 1)) > 2**15
    assert bins.index(x)[0].dtype == torch.int32


def test_values_that_were_not_there_are_refused() -> None:
    x = torch.stack([torch.arange(50.0) / 49, torch.arange(50.0) % 3], dim=-1)
    bins = ColumnBins.from_data(x, max_bins=10)
    with pytest.raises(ValueError, match=r"1 of 2 entries \(the first: 1.5\) are outside the range of column 0"):
        bins.index(torch.tensor([[0.5, 1.0], [1.5, 1.0]]))
    with pytest.raises(ValueError, match=r"1 of 1 entries \(the first: 0.5\) are not among the 3 bins of column 1"):
        bins.index(torch.tensor([[0.5, 0.5]]))
    with pytest.raises(ValueError, match="outside the range"):
        bins.index(torch.tensor([[float("nan"), 1.0]]))


def test_coarser_bins_keep_exact_ones() -> None:
    x = torch.cat([torch.randint(9, (500, 1)).float(), torch.rand(500, 1)], dim=-1)
    bins = ColumnBins.from_data(x, [[0], [1], [0, 1]], max_bins=(100, 20)).coarser((8, 4))
    assert [bins.num_bins(term) for term in bins.terms] == [9, 8, 36]
    assert bins.is_exact((0,))
    codes = bins.index(x)
    assert torch.equal(bins.values((0, 1))[codes[2].long()][:, 0], x[:, 0])


def test_stated_error_bounds_the_actual_one() -> None:
    predictor, x = make_predictor(), torch.rand(2000, 3)
    x[:, 2] = (8 * x[:, 2]).round() / 8
    bins = ColumnBins.from_data(x, predictor, max_bins=(20, 8))
    stated = bins.max_error(predictor)
    assert stated["constant"] == stated["x2"] == 0.0
    for group in predictor.groups[1:]:
        for component, name in enumerate(group.names):
            term = tuple(group.columns[component].tolist())
            codes = bins.index(x)[bins.terms.index(term)]
            rounded = x.clone()
            rounded[:, term] = bins.values(term)[codes.long()]
            left, right = (group.select(rows)[component].double() for rows in (x, rounded))
            pairs = torch.stack([left, right], dim=-2).unsqueeze(-3).expand(-1, group.num_components, -1, -1)
            covariance = group.kernel(pairs).to_dense()[:, component].double()
            variance = covariance[:, 0, 0] + covariance[:, 1, 1] - 2 * covariance[:, 0, 1]
            actual = (variance.amax() / covariance[:, 1, 1].amax()).clamp_min(0).sqrt().item()
            if name == "x2":
                assert actual < 1e-6
            else:
                assert 0.7 * stated[name] < actual < 1.02 * stated[name]


def test_error_shrinks_with_the_step() -> None:
    predictor, x = make_predictor(), torch.rand(5000, 3)
    errors = [ColumnBins.from_data(x, predictor, max_bins=(n, n)).max_error(predictor)["x0"] for n in (50, 100)]
    assert errors[0] / errors[1] == pytest.approx(99 / 49, rel=0.02)


@pytest.mark.parametrize(
    ("x", "terms", "max_bins", "message"),
    [
        (torch.empty(0, 2), None, 10, "x is empty"),
        (torch.zeros(3), None, 10, r"shape \(n, D\)"),
        (torch.zeros(3, 2), [[5]], 10, "x has 2 columns"),
        (torch.zeros(3, 2), None, 0, "positive integers"),
        (torch.rand(30, 2), None, 1, "at least 2"),
        (torch.full((3, 1), float("inf")), None, 10, "column 0 of x has NaN or infinity"),
        (torch.rand(6000, 2), [[0, 1]], 10000, "lower max_bins"),
    ],
)
def test_errors_name_what_is_wrong(x: torch.Tensor, terms: object, max_bins: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ColumnBins.from_data(x, terms, max_bins=max_bins)
    with pytest.raises(ValueError, match="no rows"):
        ColumnBins.from_batches([], terms)


def test_unknown_columns_are_refused() -> None:
    with pytest.raises(ValueError, match=r"no bins for columns \(1,\)"):
        ColumnBins.from_data(torch.rand(5, 2), [[0]]).values((1,))


def test_periodic_components_read_the_phase() -> None:
    x = 1e4 * torch.rand(2000, 2).double() - 3e3
    predictor = AdditivePredictor(cyclic([0, 1], period=[24.0, 7.0]), smooth(0, x)).double()
    bins = ColumnBins.from_data(x, predictor, max_bins=100)
    (hour,), (day,), last = bins.terms
    assert hour == Phase(0, pytest.approx(24.0)) and day == Phase(1, pytest.approx(7.0)) and last == (0,)
    assert [bins.positions(group) for group in predictor.groups] == [[0, 1], [2]]
    for term, codes, period in zip(bins.terms, bins.index(x), (24.0, 7.0), strict=False):
        phase = bins.coordinates(x, term)
        torch.testing.assert_close(phase, x[:, term[0].column, None].remainder(term[0].period))
        assert (bins.values(term)[codes.long()] - phase).abs().max() <= 0.51 * period / 99
    assert max(bins.max_error(predictor).values()) < 0.1


def test_phases_of_single_precision_columns_are_exact() -> None:
    x = 1000 + torch.rand(50, 1)  # ten thousand periods
    expected = torch.remainder(x.double(), 0.1).float()
    assert torch.equal(ColumnBins.coordinates(x, [Phase(0, 0.1)]), expected)


def fixed(kernel: Kernel, period: float) -> Kernel:
    kernel.period_length = period
    kernel.raw_period_length.requires_grad_(False)
    return kernel


@pytest.mark.parametrize(
    ("kernel", "period"),
    [
        (ScaleKernel(fixed(PeriodicKernel(), 2.0)), 2.0),
        (ScaleKernel(fixed(CosineKernel(), 2.0)), 4.0),
        (fixed(PeriodicKernel(), 2.0) * RBFKernel(), None),
        (fixed(PeriodicKernel(), 2.0) + fixed(PeriodicKernel(), 3.0), None),
        (PeriodicKernel(), None),  # its period is trained
    ],
)
def test_phases_stand_for_columns_only_where_all_of_a_kernel_has_one_fixed_period(
    kernel: Kernel, period: float | None
) -> None:
    predictor = AdditivePredictor(ComponentGroup(kernel, [[0]], regular_grid(0.0, 1.0, 4)))
    ((term,),) = ColumnBins.from_data(torch.rand(500, 1) * 50, predictor, max_bins=50).terms
    assert term == 0 if period is None else (term.column == 0 and term.period == pytest.approx(period))


def test_components_of_phases_take_bins_of_columns_where_there_are_no_others() -> None:
    x = torch.rand(100, 1) * 0.9
    predictor = AdditivePredictor(cyclic(0, period=1.0))
    assert ColumnBins.from_data(x).positions(predictor.groups[0]) == [0]
    with pytest.raises(ValueError, match="no bins for columns"):
        ColumnBins.from_data(x, [[]]).positions(predictor.groups[0])
