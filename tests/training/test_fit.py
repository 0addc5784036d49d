"""The training loop."""

from __future__ import annotations

import itertools
import sys

import gpytorch
import pytest
import torch
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

from gpytorch_gam import AdditiveGP
from gpytorch_gam.mlls import CollapsedELBO
from gpytorch_gam.training import Epoch, _minibatch_end, fit, polish
from gpytorch_gam.training._minibatches import _has_diverged
from tests.problems import fit_problem


def make_loader(x: torch.Tensor, y: torch.Tensor) -> DataLoader:
    return DataLoader(TensorDataset(x, y), batch_size=100, shuffle=True)


def test_fit_learns_posterior_and_hyperparameters() -> None:
    model, likelihood, x, y = fit_problem()
    history = fit(model, likelihood, make_loader(x, y), num_epochs=10, lr=0.1).history
    assert [epoch.number for epoch in history] == list(range(1, 12))  # and the optimum of all rows
    assert history[-1].smoothed_elbo > history[0].elbo + 50
    assert not model.training
    assert not likelihood.training
    assert likelihood.noise.sqrt().item() == pytest.approx(0.2, abs=0.03)
    best = CollapsedELBO(likelihood, model).optimum(x, y).bound.item()
    mll = gpytorch.mlls.VariationalELBO(likelihood, model.train(), num_data=len(y))
    assert best - mll(model(x), y).item() * len(y) < 2.0
    assert model.variational_strategy.training_hooks is None


def test_fixed_hyperparameters_stay_and_full_batches_need_no_loader() -> None:
    model, likelihood, x, y = fit_problem()
    for parameter in (*model.hyperparameters(), *likelihood.parameters()):
        parameter.requires_grad_(False)
    before = [p.clone() for p in model.hyperparameters()]
    history = fit(model, likelihood, [(x, y)], num_data=len(y), num_epochs=3).history
    assert all(torch.equal(a, b) for a, b in zip(before, model.hyperparameters(), strict=True))
    best = CollapsedELBO(likelihood, model).optimum(x, y).bound.item()
    assert history[-1].elbo == pytest.approx(best, abs=2.0)  # what rank 4 leaves


def test_patience_stops_and_the_callback_hears_of_every_epoch() -> None:
    model, likelihood, x, y = fit_problem()
    heard: list[Epoch] = []
    history = fit(
        model, likelihood, make_loader(x, y), num_epochs=500, lr=0.1, patience=3, callback=heard.append
    ).history
    assert heard == history[:-1]
    assert 4 <= len(history) < 100


def test_a_second_fit_goes_on_from_the_first() -> None:
    model, likelihood, x, y = fit_problem()
    first = fit(model, likelihood, make_loader(x, y), num_epochs=5, lr=0.1).history
    second = fit(model, likelihood, make_loader(x, y), num_epochs=1, lr=0.01, warm_start=True).history
    assert second[0].elbo > first[-1].elbo - 10.0


def test_an_interrupted_fit_leaves_the_model_usable() -> None:
    model, likelihood, x, y = fit_problem()

    def interrupt(_: Epoch) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(model, likelihood, make_loader(x, y), callback=interrupt)
    assert not model.training
    assert model.variational_strategy.training_hooks is None
    assert fit(model, likelihood, make_loader(x, y), num_epochs=1).history


def test_errors_name_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    model, likelihood, x, y = fit_problem()
    with pytest.raises(ValueError, match="num_epochs must be at least 1, got 0"):
        fit(model, likelihood, make_loader(x, y), num_epochs=0)
    with pytest.raises(ValueError, match="batches is empty"):
        fit(model, likelihood, [], num_data=5)
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with pytest.raises(ImportError, match="progress=True needs tqdm"):
        fit(model, likelihood, make_loader(x, y), num_epochs=2, progress=True)


def bound_of(model: AdditiveGP, likelihood: gpytorch.likelihoods.Likelihood, x: torch.Tensor, y: torch.Tensor) -> float:
    mll = gpytorch.mlls.VariationalELBO(likelihood, model.train(), num_data=len(y))
    with torch.no_grad():
        return mll(model(x), y).item() * len(y)


@pytest.mark.parametrize("rank", [4, "auto"])
def test_polishing_at_the_end_is_exact_and_keeps_all_rows(rank: int | str) -> None:
    model, likelihood, x, y = fit_problem()
    model = AdditiveGP(model.predictor, "block_low_rank", rank).double()
    loader = DataLoader(TensorDataset(x, y), batch_size=110, shuffle=True, drop_last=True)  # 50 rows are dropped
    heard: list[Epoch] = []
    history = fit(model, likelihood, loader, num_epochs=4, lr=0.1, polish_passes=3, callback=heard.append).history
    assert not model.training
    assert heard == history[:-1]
    assert history[-1].number == 5
    assert history[-1].smoothed_elbo == history[-1].elbo
    assert history[-1].elbo == pytest.approx(bound_of(model, likelihood, x, y), rel=1e-8)
    best = CollapsedELBO(likelihood, model).optimum(x, y).bound.item()
    assert best - 2.0 < history[-1].elbo <= best + 1e-6  # what rank 4 leaves


def test_polishing_sees_the_rows_of_a_sampler_only() -> None:
    model, likelihood, x, y = fit_problem()
    y[300:] += 100.0  # held out
    loader = DataLoader(TensorDataset(x, y), batch_size=110, sampler=SubsetRandomSampler(range(300)), drop_last=True)
    history = fit(model, likelihood, loader, num_data=300, num_epochs=4, lr=0.1, polish_passes=2).history
    assert history[-1].elbo == pytest.approx(bound_of(model, likelihood, x[:300], y[:300]), rel=1e-8)


def test_polishing_passes_are_validated_before_training() -> None:
    model, likelihood, x, y = fit_problem()
    heard: list[Epoch] = []
    with pytest.raises(ValueError, match="polish_passes must not be negative, got -1"):
        fit(model, likelihood, make_loader(x, y), polish_passes=-1, callback=heard.append)
    assert heard == []


def test_what_is_no_pair_of_rows_is_an_error_that_says_so() -> None:
    model, likelihood, x, y = fit_problem()
    with pytest.raises(ValueError, match=r"pass \[\(x, y\)\] for a single one"):
        fit(model, likelihood, [{"x": x, "y": y}], num_data=len(y))
    with pytest.raises(TypeError, match=r"y must be a torch.Tensor, got str"):
        fit(model, likelihood, (x, "y"))
    with pytest.raises(ValueError, match=r"responses of shape \(\d+,\) beside"):
        fit(model, likelihood, [(x, y.unsqueeze(-1))], num_data=len(y))
    with pytest.raises(ValueError, match="not a generator"):
        fit(model, likelihood, iter([(x, y)]), num_data=len(y))
    with pytest.raises(TypeError, match="data is a tensor: pass inputs and responses together"):
        fit(model, likelihood, x, y)
    with pytest.raises(ValueError, match="larger than the data"):
        fit(model, likelihood, DataLoader(TensorDataset(x, y), batch_size=len(y) + 1, drop_last=True), num_epochs=1)


def test_rows_count_alike_in_the_elbo_of_an_epoch() -> None:
    model, likelihood, x, y = fit_problem()
    polish(model, likelihood, [(x, y)])
    for parameter in (*model.hyperparameters(), *likelihood.parameters()):
        parameter.requires_grad_(False)
    halves = [(x[:1], y[:1]), (x[1:], y[1:])]
    expected = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(y)).train()
    with torch.no_grad():
        first = [(expected(model(part), rows) * len(rows)).item() for part, rows in halves]
    history = fit(model, likelihood, halves, num_data=len(y), num_epochs=1, warm_start=True).history
    # The second batch comes after a small step on the first.
    assert history[0].elbo == pytest.approx(sum(first), abs=0.05 * abs(sum(first)))


def test_a_fit_diverges_where_its_bound_leaves_all_proportion() -> None:
    elbos = [-1000.0, -900.0, -5e4, -1e9, -1e3, -1e9]
    epochs = [Epoch(number, elbo, elbo) for number, elbo in enumerate(elbos, start=1)]
    assert [_has_diverged(epochs[:number]) for number in range(1, 7)] == [False, False, True, True, False, True]
    assert _has_diverged([epochs[0], Epoch(2, float("nan"), 0.0)])


@pytest.mark.filterwarnings("ignore::gpytorch_gam.warnings.ConvergenceWarning")
def test_hyperparameters_move_less_and_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_minibatch_end, "_MAX_FEATURES", 0)  # no search at the end
    model, likelihood, x, y = fit_problem()
    likelihood.noise, found = 100.0, []
    fit(
        model,
        likelihood,
        [(x, y)],
        num_epochs=10,
        lr=0.05,
        num_held_back=0,
        warm_start=True,
        callback=lambda _: found.append(likelihood.noise.log().item()),
    )
    moves = [abs(after - before) for before, after in itertools.pairwise(found)]
    assert moves == sorted(moves, reverse=True) and moves[-1] < 0.1 * moves[0]


@pytest.mark.parametrize("method", ["rows", "bins"])
def test_steps_of_all_rows_are_shown_with_their_bounds(method: str, capsys: pytest.CaptureFixture[str]) -> None:
    model, likelihood, x, y = fit_problem()
    result = fit(model, likelihood, (x, y), method=method, progress=True)
    shown = capsys.readouterr()
    assert shown.out.startswith(f"fit by {method}: ")
    assert f"steps: {len(result.history)}it" in shown.err and f"bound={result.history[-1].elbo:.2f}" in shown.err
