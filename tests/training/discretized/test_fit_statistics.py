"""Sums over rows: of parts that are added, of files, through files, and what they cannot serve."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from gpytorch.likelihoods import BernoulliLikelihood, FixedNoiseGaussianLikelihood, GaussianLikelihood, Likelihood
from gpytorch.means import ConstantMean, LinearMean, Mean
from torch import Tensor

from gpytorch_gam import AdditiveGP, AdditivePredictor
from gpytorch_gam.likelihoods import RowwiseLikelihood
from gpytorch_gam.terms import constant, cyclic, factor, smooth, tensor
from gpytorch_gam.training import ColumnRanges, FitStatistics, fit, inducing_shortfall
from gpytorch_gam.training.discretized import ColumnBins, _indexed_rows, discretized_fit
from gpytorch_gam.training.discretized.bin_shortfall import shortfall_at_bins
from gpytorch_gam.warnings import InducingPointsWarning
from tests.problems import fit_by_bins

# The models have no effect of the third column alone, which their residuals show.
pytestmark = pytest.mark.filterwarnings("ignore:what these components leave")

MAX_BINS = (64, 12)


def make_data(num_rows: int = 900) -> tuple[Tensor, Tensor]:
    """Three numbers, a phase and a category."""
    x = torch.rand(num_rows, 5, dtype=torch.float64)
    x[:, 3] *= 20.0
    x[:, 4] = (3 * x[:, 4]).floor()
    f = torch.sin(5 * x[:, 0]) + x[:, 1] * x[:, 2] + torch.cos(x[:, 3]) + 0.5 * x[:, 4]
    return x, 3.0 + f + 0.3 * torch.randn(num_rows, dtype=torch.float64)


def make_predictor(x: Tensor, mean: Mean | None = None) -> AdditivePredictor:
    terms = (
        smooth([0, 1], x, num_inducing=6, kernel="rbf"),
        tensor([1, 2], x, num_inducing=4, kernel="rbf"),
        cyclic(3, 6.25),
        factor(4, [0.0, 1.0, 2.0]),
        constant(),
    )
    return AdditivePredictor(*terms, mean=mean)


def make_model(x: Tensor, mean: Mean | None = None) -> AdditiveGP:
    return AdditiveGP(make_predictor(x, mean), "coupled").double()


def parts_of(*columns: Tensor) -> Iterator[tuple[Tensor, ...]]:
    return zip(*(column.split((500, 100, 300)) for column in columns), strict=True)


def posterior_of(model: AdditiveGP) -> Tensor:
    q = model.variational_strategy.variational_distribution
    return torch.cat([q.mean.unsqueeze(-1), q.covariance_matrix], dim=-1)


@pytest.mark.parametrize("arguments", [("weights", "offset"), ("noise", "offset", "weights")])
def test_parts_add_up_to_the_fit_of_all_rows(arguments: tuple[str, ...], tmp_path: Path) -> None:
    x, y = make_data()
    values = {
        "weights": 0.5 + torch.rand(900).double(),
        "offset": x[:, 0],
        "noise": 0.05 + 0.1 * torch.rand(900).double(),
    }
    rows = {name: values[name] for name in arguments}
    whole, summed = make_model(x), make_model(x)
    likelihoods = [RowwiseLikelihood(GaussianLikelihood().double()) for _ in range(2)]
    bins = ColumnBins.from_data(x, whole.predictor, max_bins=MAX_BINS)
    expected = fit_by_bins(whole, likelihoods[0], [(x, y, rows)], bins=bins, tolerance=5.0)
    parts = []
    for number, (a, b, *some) in enumerate(parts_of(x, y, *rows.values())):
        FitStatistics.from_batches([(a, b, dict(zip(rows, some, strict=True)))], bins).save(tmp_path / f"{number}.pt")
        parts.append(FitStatistics.load(tmp_path / f"{number}.pt"))
    total = sum(parts)
    assert (total.num_rows, total.row_arguments) == (900, tuple(sorted(arguments)))
    found = fit_by_bins(summed, likelihoods[1], total, tolerance=5.0)
    assert found == pytest.approx(expected, rel=1e-9)
    torch.testing.assert_close(posterior_of(summed), posterior_of(whole), rtol=0.0, atol=1e-6)


def test_bins_of_ranges_give_the_fit_of_bins_of_rows() -> None:
    """Combinations that do not occur are left out of the tables."""
    x, y = make_data()
    x[:, 2] = 0.5 * (x[:, 1] + x[:, 2])
    one, two = make_model(x), make_model(x)
    ranges = sum(
        ColumnRanges.from_batches([part], one.predictor, max_bins=MAX_BINS) for part in x.split((500, 100, 300))
    )
    bins = ColumnBins.from_ranges(pickle.loads(pickle.dumps(ranges)))
    known = ColumnBins.from_data(x, one.predictor, max_bins=MAX_BINS)
    assert bins.terms == known.terms
    assert bins.num_bins((1, 2)) == 144 > known.num_bins((1, 2))
    for term in bins.terms:
        if len(term) == 1:
            assert torch.equal(bins.values(term), known.values(term))
    histories = [
        fit_by_bins(model, GaussianLikelihood().double(), FitStatistics.from_batches([(x, y)], each), tolerance=5.0)
        for model, each in ((one, bins), (two, known))
    ]
    assert histories[0] == pytest.approx(histories[1], rel=1e-9)


def test_ranges_add_up_with_many_few_and_missing_values() -> None:
    x = torch.rand(40, 3).double()
    x[:, 1] = (4 * x[:, 1]).round()
    x[20:, 2] = x[0, 2]
    parts = [ColumnRanges.from_batches([part], max_bins=30) for part in x.split(10)]
    for summed, exact in ((sum(parts[:2]), 3), (sum(parts), 2)):
        rows = x[: 20 if exact == 3 else 40]
        found, known = ColumnBins.from_ranges(summed), ColumnBins.from_data(rows, max_bins=30)
        assert found.difference(known) is None
        assert sum(map(known.is_exact, known.terms)) == exact
    with pytest.raises(ValueError, match="make all parts with the same terms and max_bins"):
        parts[0] + ColumnRanges.from_batches([x])
    with pytest.raises(ValueError, match="no rows"):
        ColumnRanges.from_batches([])
    with pytest.raises(TypeError):
        parts[0] + 3
    with pytest.raises(TypeError, match="ranges must be ColumnRanges"):
        ColumnBins.from_ranges(x)


def test_blocks_and_batches_of_any_size_give_the_same_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_indexed_rows, "_BLOCK_SIZE", 70)
    x, y = make_data()
    bins = ColumnBins.from_data(x, make_predictor(x), max_bins=MAX_BINS)
    expected = FitStatistics.from_batches([(x, y)], bins).sums()
    for size in (1, 64, 400):
        batches = zip(x.split(size), y.split(size), strict=True)
        for one, two in zip(FitStatistics.from_batches(batches, bins).sums(), expected, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-12)


def test_sums_hold_no_rows() -> None:
    sizes = []
    for num_rows in (900, 9000):
        x, y = make_data(num_rows)
        x[:2, :4] = torch.tensor([[0.0], [1.0]]).double()
        statistics = FitStatistics.from_batches([(x, y)], ColumnBins.from_data(x, max_bins=20))
        sizes.append(len(pickle.dumps(statistics)))
    assert sizes[0] == pytest.approx(sizes[1], rel=0.01)


def test_a_gaussian_fit_of_batches_keeps_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = make_data()
    monkeypatch.setattr(discretized_fit.DiscretizedData, "from_batches", None)
    fit_by_bins(make_model(x), GaussianLikelihood().double(), [(x[:400], y[:400]), (x[400:], y[400:])])


@pytest.mark.parametrize("fixed", [False, True])
def test_starting_values_are_moments_of_all_rows(fixed: bool) -> None:
    x, y = make_data()
    weights, offset = 0.5 + torch.rand(900).double(), x[:, 0]
    bins = ColumnBins.from_data(x, max_bins=8)
    statistics = FitStatistics.from_batches([(x, y, {"weights": weights, "offset": offset})], bins)
    inner: Likelihood = FixedNoiseGaussianLikelihood(torch.ones(900)) if fixed else GaussianLikelihood()
    null = statistics.null_model(RowwiseLikelihood(inner), 0.5)
    mean = (weights @ (y - offset)) / weights.sum()
    variance = (weights @ (y - offset - mean).square()) / weights.sum()
    assert null.mean == [pytest.approx(mean.item() - 0.5)]
    assert null.variance == [pytest.approx(variance.item())]
    assert null.parameters == ({} if fixed else {"noise": pytest.approx(0.5 * variance.item())})


def test_a_constant_mean_is_trained_and_another_kept_as_an_offset() -> None:
    x, y = make_data()
    bins = ColumnBins.from_data(x, make_model(x).predictor, max_bins=MAX_BINS)
    bounds = []
    for data in ([(x, y)], FitStatistics.from_batches([(x, y)], bins)):
        model = make_model(x, ConstantMean())
        history = fit_by_bins(model, GaussianLikelihood().double(), data, max_bins=MAX_BINS, tolerance=5.0)
        bounds.append(history[-1])
        assert model.predictor.means[0].constant.item() != 0.0
    assert bounds[0] == pytest.approx(bounds[1], rel=1e-9)
    line = LinearMean(5).double().requires_grad_(False)
    with pytest.raises(NotImplementedError, match="values as the row-wise argument offset"):
        fit_by_bins(make_model(x, line), GaussianLikelihood().double(), FitStatistics.from_batches([(x, y)], bins))


def test_few_inducing_points_are_seen_in_the_sums() -> None:
    x, y = make_data()
    y = y + torch.sin(14 * x[:, 0])
    model, likelihood = make_model(x), GaussianLikelihood().double()
    bins = ColumnBins.from_data(x, model.predictor)
    with pytest.warns(InducingPointsWarning, match="'x0'"):
        fit_by_bins(model, likelihood, FitStatistics.from_batches([(x, y)], bins))
    statistics = FitStatistics.from_batches([(x, y)], bins)
    tables = statistics.tables(torch.device("cpu"))
    found = shortfall_at_bins(model.variational_strategy, likelihood, tables, bins)
    expected = inducing_shortfall(model, likelihood, [(x, y)])  # from 512 of the rows
    assert found.keys() == expected.keys()
    assert all(found[name] == pytest.approx(nats, rel=0.2, abs=0.5) for name, nats in expected.items())


def test_float32_models_take_sums_of_float32_rows() -> None:
    x, y = (part.float() for part in make_data())
    model = AdditiveGP(make_predictor(x), rank=8)
    bins = ColumnBins.from_data(x, model.predictor, max_bins=MAX_BINS)
    fit_by_bins(model, GaussianLikelihood(), FitStatistics.from_batches([(x, y)], bins))
    assert torch.isfinite(model(x).variance).all()


@pytest.mark.parametrize(
    ("likelihood", "arguments", "options", "error", "message"),
    [
        (BernoulliLikelihood(), (), {}, NotImplementedError, "BernoulliLikelihood needs the rows in each pass"),
        (GaussianLikelihood(), ("weights",), {}, TypeError, "does not read weights: wrap it"),
        (FixedNoiseGaussianLikelihood(torch.ones(900)), (), {}, ValueError, "pass the noise of each row"),
        (GaussianLikelihood(), (), {"bins": True}, ValueError, "bins are those of the statistics"),
    ],
)
def test_what_sums_cannot_serve_is_refused(
    likelihood: Likelihood, arguments: tuple[str, ...], options: dict[str, bool], error: type[Exception], message: str
) -> None:
    x, y = make_data()
    model = make_model(x)
    bins = ColumnBins.from_data(x, model.predictor, max_bins=MAX_BINS)
    statistics = FitStatistics.from_batches([(x, y, dict.fromkeys(arguments, torch.ones(900).double()))], bins)
    with pytest.raises(error, match=message):
        fit_by_bins(model, likelihood.double(), statistics, **dict.fromkeys(options, bins))


def test_components_need_bins() -> None:
    x, y = make_data()
    with pytest.raises(ValueError, match="there are no bins for columns"):
        statistics = FitStatistics.from_batches([(x, y)], ColumnBins.from_data(x, [[0], [1]]))
        fit_by_bins(make_model(x), GaussianLikelihood().double(), statistics)


def test_parts_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    x, y = make_data()
    bins = ColumnBins.from_data(x, max_bins=8)
    one = FitStatistics.from_batches([(x, y)], bins)
    for other, message in (
        (ColumnBins.from_data(x, max_bins=9), r"8 and 9 of columns \(0,\)"),
        (ColumnBins.from_data(x[:, :2], max_bins=8), "for columns"),
        (ColumnBins.from_data(torch.cat([x, 0 * x, x + 1]), max_bins=8), "of other values"),
    ):
        with pytest.raises(ValueError, match=f"different bins, .*{message}"):
            one + FitStatistics.from_batches([(x, y)], other)
    with pytest.raises(ValueError, match="give those of some rows to all"):
        one + FitStatistics.from_batches([(x, y, {"weights": y.abs()})], bins)
    with pytest.raises(TypeError):
        one + 1
    torch.save({"sums": []}, tmp_path / "other.pt")
    with pytest.raises(ValueError, match="write it with FitStatistics"):
        FitStatistics.load(tmp_path / "other.pt")


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        ((torch.rand(3, 2), torch.rand(3, 2)), ValueError, "y must hold responses of shape"),
        ((torch.rand(3, 2), torch.tensor([1.0, float("nan"), 0.0])), ValueError, "NaN or infinity in 1 of 3 rows"),
        ((torch.rand(3, 2), torch.rand(3), {"exposure": torch.rand(3)}), TypeError, "offset, weights, noise, got"),
        ((torch.rand(3, 2), torch.rand(3), {"noise": torch.zeros(3)}), ValueError, "noise must be finite and positive"),
        ((2 + torch.rand(3, 2), torch.rand(3)), ValueError, "outside the range of column 0"),
    ],
)
def test_rows_that_cannot_be_summed_are_refused(batch: tuple, error: type[Exception], message: str) -> None:
    bins = ColumnBins.from_data(torch.cat([torch.rand(10, 2), torch.zeros(1, 2), torch.ones(1, 2)]), max_bins=4)
    with pytest.raises(error, match=message):
        FitStatistics.from_batches([batch], bins)


def test_fit_takes_sums_for_data() -> None:
    x, y = make_data()
    model, other, likelihood = make_model(x), make_model(x), GaussianLikelihood().double()
    statistics = FitStatistics.from_batches([(x, y)], ColumnBins.from_data(x, model.predictor, max_bins=MAX_BINS))
    result = fit(model, likelihood, statistics, tolerance=5.0)
    assert (result.method, result.reason) == ("bins", "the data are sums over bins")
    expected = fit(other, GaussianLikelihood().double(), (x, y), max_bins=MAX_BINS, tolerance=5.0)
    assert result.bound == pytest.approx(expected.bound, rel=1e-9)
    assert result.shortfalls.keys() == expected.shortfalls.keys()
    with pytest.raises(ValueError, match="method='rows' needs the rows"):
        fit(model, likelihood, statistics, method="rows")
    with pytest.raises(NotImplementedError, match="needs the rows in each pass"):
        fit(model, BernoulliLikelihood(), statistics)
