"""The forms in which a fit takes its data, and what it says of those that it does not take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gpytorch
import numpy as np
import pytest
import torch
from gpytorch.likelihoods import BernoulliLikelihood, GaussianLikelihood, Likelihood
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from gpytorch_gam import AdditiveGP, AdditivePredictor, fit
from gpytorch_gam.data import RowDataset
from gpytorch_gam.likelihoods import RowwiseLikelihood
from gpytorch_gam.terms import constant, smooth

NUM_ROWS = 40
X = torch.rand(NUM_ROWS, 2, generator=torch.Generator().manual_seed(0))
Y = torch.sin(6 * X[:, 0]) + 0.1 * torch.randn(NUM_ROWS, generator=torch.Generator().manual_seed(1))
OPTIONS: list[dict[str, Any]] = [{"method": "rows"}, {"method": "bins"}, {"num_epochs": 4}]


def make_model() -> AdditiveGP:
    terms = smooth([0, 1], low=0.0, high=1.0, num_inducing=4, kernel="rbf"), constant()
    return AdditiveGP(AdditivePredictor(*terms), "block_low_rank", 4)


def bound_of(data: Any, likelihood: Likelihood | None = None, **options: Any) -> float:
    return fit(make_model(), likelihood or GaussianLikelihood(), data, **options).bound


def with_value(values: Tensor, value: float) -> Tensor:
    """The values, the third of them replaced."""
    return torch.where(torch.arange(len(values)) == 2, value, values)


class Rows(Dataset):
    def __init__(self, as_dictionaries: bool = False) -> None:
        self.as_dictionaries = as_dictionaries

    def __len__(self) -> int:
        return NUM_ROWS

    def __getitem__(self, row: int) -> Any:
        return {"x": X[row], "y": Y[row]} if self.as_dictionaries else (X[row], Y[row])


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(zip(X, Y, strict=True))


class Frame:
    """What a data frame looks like to a function of tensors."""

    shape = (NUM_ROWS, 2)

    def to_numpy(self) -> np.ndarray:
        return X.numpy()


@pytest.fixture(scope="module")
def bound() -> float:
    """That of all rows."""
    return bound_of((X, Y))


@pytest.mark.parametrize(
    "data",
    [
        (X, Y, None),
        ((X[:30], Y[:30]), (X[30:], Y[30:])),
        list(zip(X.split(15), Y.split(15), strict=True)),
        Rows(),
        RowDataset(X, Y),
        DataLoader(Rows(), NUM_ROWS + 60),
        DataLoader(Rows(), NUM_ROWS + 60, drop_last=True),
        DataLoader(TensorDataset(X, Y), 15, shuffle=True, drop_last=True),
        DataLoader(Stream(), 15),
    ],
    ids=lambda data: type(getattr(data, "dataset", data)).__name__,
)
def test_all_rows_are_fitted_in_any_form(data: Any, bound: float) -> None:
    assert bound_of(data) == pytest.approx(bound, abs=1e-3)


@pytest.mark.parametrize(
    ("data", "kind", "message"),
    [
        ((X.numpy(), Y.numpy()), TypeError, r"x must be a torch.Tensor, got ndarray: pass torch.as_tensor\(x, dtype"),
        ((X, Y.numpy()), TypeError, "y must be a torch.Tensor, got ndarray"),
        ((Frame(), Y), TypeError, r"x must be a torch.Tensor, got Frame: pass torch.as_tensor\(x.to_numpy\(\), dtype"),
        ((X.tolist(), Y.tolist()), TypeError, "x must be a torch.Tensor, got list"),
        ([[1.0, 2.0], [3.0, 4.0]], TypeError, "x must be a torch.Tensor, got list"),
        ((X,), TypeError, r"data must be \(x, y\) or"),
        ((X, Y, torch.ones(NUM_ROWS)), TypeError, "third entry of a batch must map names"),
        ({"x": X, "y": Y}, TypeError, r"batches must be pairs \(x, y\)"),
        (None, TypeError, r"batches must be pairs \(x, y\)"),
        ((), ValueError, "there is no data to fit"),
        ((X[:0], Y[:0]), ValueError, "x is empty"),
        (DataLoader(TensorDataset(X[:0], Y[:0])), ValueError, "there is no data to fit"),
        (Rows(as_dictionaries=True), ValueError, r"batches must hold pairs \(x, y\).*got dict"),
        (Stream(), ValueError, r"single rows.*pass a DataLoader of them"),
        (TensorDataset(X, Y, Y), TypeError, "third entry of a batch must map names"),
        ((X[:, 0], Y), ValueError, r"got \(40,\): pass x.unsqueeze\(-1\) if it is one column"),
        ((X, Y.unsqueeze(-1)), ValueError, r"pass y.squeeze\(-1\)"),
        ((X, Y[:-1]), ValueError, r"responses of shape \(40,\) beside 40 rows of x, got \(39,\)"),
        ((X.double(), Y), ValueError, r"x has dtype torch.float64, but the inducing points have torch.float32"),
        ((X, Y.double()), ValueError, r"y is torch.float64 .*pass y.to\(x\)"),
        ((X.to_sparse(), Y), ValueError, r"layout torch.sparse_coo: pass x.to_dense\(\)"),
        ((X, Y + 1j), ValueError, "y must be real numbers, got torch.complex64"),
    ],
)
def test_data_of_another_form_are_an_error_that_says_what_to_do(data: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        bound_of(data)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("method", ["rows", "bins"])
def test_responses_that_are_not_finite_are_counted(method: str, value: float) -> None:
    with pytest.raises(ValueError, match=r"y has NaN or infinity in 1 of 40 rows: leave these out"):
        bound_of((X, with_value(Y, value)), method=method)


def test_integers_and_booleans_are_responses() -> None:
    assert bound_of((X, Y.round().long())) == pytest.approx(bound_of((X, Y.round())), abs=1e-3)
    labels = X[:, 1].flip(0) - 0.5 < Y
    expected = bound_of((X, labels.long()), BernoulliLikelihood())
    assert bound_of((X, labels), BernoulliLikelihood()) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("options", OPTIONS)
def test_weights_of_two_are_rows_that_are_there_twice(options: dict[str, Any]) -> None:
    weighted = X, Y, {"weights": torch.full((NUM_ROWS,), 2.0)}
    twice = torch.cat([X, X]), torch.cat([Y, Y])
    found = bound_of(weighted, RowwiseLikelihood(GaussianLikelihood()), **options)
    assert found == pytest.approx(bound_of(twice, **options), abs=0.1)


def test_a_stream_of_unknown_length_is_trained_on() -> None:
    found = fit(make_model(), GaussianLikelihood(), DataLoader(Stream(), 10), num_data=NUM_ROWS, num_epochs=5)
    assert found.method == "minibatches" and found.converged


def test_a_generator_is_for_one_epoch() -> None:
    batches = list(zip(X.split(10), Y.split(10), strict=True))
    with pytest.raises(ValueError, match="num_data is not given"):
        bound_of(iter(batches))
    with pytest.raises(ValueError, match="gone through only once: pass a DataLoader or a list"):
        bound_of(iter(batches), num_data=NUM_ROWS)
    found = fit(make_model(), GaussianLikelihood(), iter(batches), num_data=NUM_ROWS, num_epochs=1)
    assert not found.converged and np.isnan(found.open)  # hyperparameters have not moved, and nothing is known of them


@pytest.mark.parametrize("options", OPTIONS)
def test_compiled_modules_are_fitted_as_those_that_were_compiled(options: dict[str, Any], bound: float) -> None:
    model, likelihood = make_model(), GaussianLikelihood()
    compiled = [torch.compile(module, backend="eager") for module in (model, likelihood)]
    assert fit(*compiled, (X, Y), **options).bound == pytest.approx(bound, abs=0.5)
    assert not model.training


def test_a_likelihood_of_another_number_of_predictors_is_an_error() -> None:
    with pytest.raises(ValueError, match="MultitaskGaussianLikelihood takes 2 predictors, but the model has 1"):
        bound_of((X, Y), gpytorch.likelihoods.MultitaskGaussianLikelihood(num_tasks=2))
    with pytest.raises(TypeError, match=r"take gpytorch_gam.likelihoods.SoftmaxLikelihood\(num_classes\)"):
        bound_of((X, Y > 0), gpytorch.likelihoods.SoftmaxLikelihood(num_features=1, num_classes=2))
