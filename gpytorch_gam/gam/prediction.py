"""Predictions of a fitted model in units of the response, a chunk of rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.quasirandom import SobolEngine

from gpytorch_gam.distributions.quantiles import predictive_quantiles
from gpytorch_gam.effects import Prediction, mixed_prediction
from gpytorch_gam.effects.drawing import allotted
from gpytorch_gam.numerics.distinct_rows import distinct_rows
from gpytorch_gam.numerics.triangular import safe_cholesky

from .fitted import Fitted
from .parts import Part

# Rows whose predictive distributions are in memory at a time, and those whose moments or terms are.
_ROWS_AT_A_TIME, _ROWS_OF_MOMENTS = 2**14, 2**16

# Draws of the predictors for intervals of the probabilities of classes, and rows that have them in memory at a time.
_NUM_DRAWS, _ROWS_OF_DRAWS = 2048, 256

# Row-wise arguments by name, one number a row.
Arguments = Mapping[str, Tensor]

# What each model of the mixture predicts in the same rows.
Predictions = Sequence[Prediction]


def _chunks(
    fitted: Fitted, x: Tensor, arguments: Arguments, kept: Sequence[Part]
) -> Iterator[tuple[slice, Predictions, dict[str, Tensor]]]:
    """The predictors of some rows after the other, without the terms that are left out."""
    left_out = fitted.left_out(kept)
    for start in range(0, len(x), _ROWS_OF_MOMENTS):
        stop = min(start + _ROWS_OF_MOMENTS, len(x))
        several = fitted.predictions(x[start:stop], left_out)
        for first in range(start, stop, _ROWS_AT_A_TIME):
            rows = slice(first, min(first + _ROWS_AT_A_TIME, stop))
            own = slice(rows.start - start, rows.stop - start)
            yield rows, [each.at(own) for each in several], {name: value[rows] for name, value in arguments.items()}


def in_chunks(
    fitted: Fitted,
    x: Tensor,
    arguments: Arguments,
    kept: Sequence[Part],
    function: Callable[[Predictions, dict[str, Tensor]], Tensor],
) -> np.ndarray:
    """
    What a function makes of the predictors and arguments of each row, ``(*shape, n)``.

    :param fitted: The fitted model.
    :param x: Inputs ``(n, D)``.
    :param arguments: Row-wise arguments of the likelihood, in units of the fit.
    :param kept: The terms to include.
    :param function: Called with some rows at a time; returns ``(*shape, rows)``.
    """
    result: np.ndarray | None = None
    with torch.no_grad():
        for rows, predictions, own in _chunks(fitted, x, arguments, kept):
            part = function(predictions, own)
            if result is None:
                result = np.empty((*part.shape[:-1], len(x)))
            result[..., rows] = part.cpu().numpy()
    assert result is not None
    return result


def response(fitted: Fitted, predictions: Predictions, arguments: Arguments) -> Distribution:
    """
    The distribution of new responses, in units of the fit.

    :param fitted: The fitted model.
    :param predictions: The predictors under each model.
    :param arguments: Row-wise arguments of the likelihood.
    """
    return fitted.mixture.responses_given(predictions, **arguments)


def response_moments(fitted: Fitted, x: Tensor, arguments: Arguments, kept: Sequence[Part]) -> np.ndarray:
    """
    Mean and standard deviation of new responses, ``(2, n)``.

    :param fitted: The fitted model.
    :param x: Inputs ``(n, D)``.
    :param arguments: Row-wise arguments of the likelihood, in units of the fit.
    :param kept: The terms to include.
    """

    def moments(predictions: Predictions, own: dict[str, Tensor]) -> Tensor:
        distribution = response(fitted, predictions, own)
        is_quantile = fitted.family.name == "quantile"
        mean = first_predictor(fitted, predictions, own)[0] if is_quantile else distribution.mean
        return torch.stack([mean, distribution.variance.sqrt()])

    found = in_chunks(fitted, x, arguments, kept, moments)
    return found * fitted.units.scale + np.array([[fitted.units.centre], [0.0]])


def response_quantiles(
    fitted: Fitted, x: Tensor, arguments: Arguments, kept: Sequence[Part], probabilities: Sequence[float]
) -> np.ndarray:
    """
    Quantiles of new responses, ``(K, n)``; rows that are alike are searched once.

    :param fitted: The fitted model.
    :param x: Inputs ``(n, D)``.
    :param arguments: Row-wise arguments of the likelihood, in units of the fit.
    :param kept: The terms to include.
    :param probabilities: K probabilities.
    """

    def quantiles(predictions: Predictions, own: dict[str, Tensor]) -> Tensor:
        return predictive_quantiles(response(fitted, predictions, own), list(probabilities))

    every = torch.cat([x, *(value.unsqueeze(-1).to(x) for value in arguments.values())], 1)
    distinct = distinct_rows(every, range(every.shape[1]))
    if distinct is None:
        found = in_chunks(fitted, x, arguments, kept, quantiles)
    else:
        rows, code = distinct
        own = {name: value[rows] for name, value in arguments.items()}
        found = in_chunks(fitted, x[rows], own, kept, quantiles)[:, code.cpu().numpy()]
    return found * fitted.units.scale + fitted.units.centre


def mean_quantiles(
    fitted: Fitted, x: Tensor, arguments: Arguments, kept: Sequence[Part], probabilities: Sequence[float]
) -> np.ndarray:
    """
    Posterior quantiles of the mean function, ``(K, n)``: those of the first predictor, seen through the link. If
    hyperparameters are uncertain, they are those of a normal distribution with the moments of the mixture.

    :param fitted: The fitted model.
    :param x: Inputs ``(n, D)``.
    :param arguments: Row-wise arguments of the likelihood, in units of the fit.
    :param kept: The terms to include.
    :param probabilities: K probabilities.
    """
    deviates = torch.special.ndtri(torch.tensor(list(probabilities), dtype=torch.float64)).unsqueeze(-1)

    def quantiles(predictions: Predictions, own: dict[str, Tensor]) -> Tensor:
        mean, deviation = first_predictor(fitted, predictions, own)
        return fitted.family.mean(mean + deviates.to(mean) * deviation, own, fitted.likelihood)

    return in_chunks(fitted, x, arguments, kept, quantiles) * fitted.units.scale + fitted.units.centre


def _mixed(fitted: Fitted, predictions: Predictions) -> Prediction:
    return mixed_prediction(predictions, fitted.mixture.weights)


def first_predictor(fitted: Fitted, predictions: Predictions, arguments: Arguments) -> tuple[Tensor, Tensor]:
    """
    Mean and standard deviation of the first predictor, offset included, in units of the fit.

    :param fitted: The fitted model.
    :param predictions: The predictors under each model.
    :param arguments: Row-wise arguments of the likelihood.
    """
    return _first_predictor(_mixed(fitted, predictions), arguments)


def _first_predictor(prediction: Prediction, arguments: Arguments) -> tuple[Tensor, Tensor]:
    mean, deviation = prediction.mean, prediction.stddev
    if mean.dim() > 1:
        mean, deviation = mean[..., 0], deviation[..., 0]
    return mean + arguments.get("offset", torch.zeros_like(mean)), deviation


def predictor_moments(fitted: Fitted, x: Tensor, arguments: Arguments, kept: Sequence[Part]) -> np.ndarray:
    """
    Mean and standard deviation of each predictor, ``(2, P, n)``; those of an identity link in units of the response.

    :param fitted: The fitted model.
    :param x: Inputs ``(n, D)``.
    :param arguments: Row-wise arguments of the likelihood, in units of the fit.
    :param kept: The terms to include.
    """

    def moments(predictions: Predictions, own: dict[str, Tensor]) -> Tensor:
        prediction = _mixed(fitted, predictions)
        first, _ = _first_predictor(prediction, own)
        mean, deviation = (
            part.unsqueeze(-1) if part.dim() == 1 else part.clone() for part in (prediction.mean, prediction.stddev)
        )
        mean[..., 0] = first
        return torch.stack([mean.mT, deviation.mT])

    found = in_chunks(fitted, x, arguments, kept, moments)
    for predictor in range(found.shape[1]):
        found[:, predictor] *= fitted.scale_of(predictor)
        found[0, predictor] += fitted.centre_of(predictor)
    return found


def class_probabilities(fitted: Fitted, x: Tensor, arguments: Arguments, kept: Sequence[Part]) -> np.ndarray:
    """
    Probabilities of the classes, ``(n, K)``.

    :param fitted: The fitted model.
    :param x: Inputs ``(n, D)``.
    :param arguments: Row-wise arguments of the likelihood.
    :param kept: The terms to include.
    """

    def probabilities(predictions: Predictions, own: dict[str, Tensor]) -> Tensor:
        distribution: Any = response(fitted, predictions, own)
        if fitted.family.name == "binomial":
            return torch.stack([1 - distribution.mean, distribution.mean])
        return distribution.probs.mT

    found = in_chunks(fitted, x, arguments, kept, probabilities).T
    return found / found.sum(1, keepdims=True)


def class_probability_quantiles(
    fitted: Fitted, x: Tensor, arguments: Arguments, kept: Sequence[Part], probabilities: Sequence[float]
) -> np.ndarray:
    """
    Posterior quantiles of the probability of each of several classes, ``(T, K, n)``, by draws of the predictors of a
    row: the same quasi-random ones for every row, so that they are smooth in the columns.

    :param fitted: The fitted model.
    :param x: Inputs ``(n, D)``.
    :param arguments: Row-wise arguments of the likelihood.
    :param kept: The terms to include.
    :param probabilities: T probabilities.
    """
    wanted = torch.tensor(list(probabilities), dtype=torch.float64)

    def quantiles(predictions: Predictions, own: dict[str, Tensor]) -> Tensor:
        blocks = torch.arange(len(predictions[0].mean)).split(_ROWS_OF_DRAWS)
        return torch.cat([_class_draws(fitted, predictions, own, rows).quantile(wanted, 0) for rows in blocks], 1).mT

    return in_chunks(fitted, x, arguments, kept, quantiles)


def _class_draws(fitted: Fitted, predictions: Predictions, arguments: Arguments, rows: Tensor) -> Tensor:
    """Draws ``(S, n, K)`` of the probabilities of the classes in some rows, from each model by its weight."""
    num_predictors = predictions[0].moments.mean.shape[-1]
    uniform = SobolEngine(num_predictors, scramble=True, seed=0).draw(_NUM_DRAWS, dtype=torch.float64)
    normal = torch.special.ndtri(uniform.clamp(1e-9, 1 - 1e-9))
    of_models = normal.split(allotted(fitted.mixture.weights, _NUM_DRAWS))
    own = {name: value[rows] for name, value in arguments.items()}
    found = []
    for drawn, prediction, likelihood in zip(of_models, predictions, fitted.mixture.likelihoods, strict=True):
        root = safe_cholesky(prediction.moments.covariance[rows].double())
        values = prediction.moments.mean[rows] + torch.einsum("npq,sq->snp", root, drawn)
        distribution: Any = likelihood(values if num_predictors > 1 else values.squeeze(-1), **own)
        found.append(distribution.probs)
    return torch.cat(found)


def term_moments(fitted: Fitted, x: Tensor, kept: Sequence[Part]) -> tuple[np.ndarray, np.ndarray]:
    """
    Means and standard deviations of terms, ``(K, n)`` each, in units of the predictor. A term of several components has
    the variance of their sum.

    :param fitted: The fitted model.
    :param x: Inputs ``(n, D)``.
    :param kept: The K terms.
    """
    found = np.zeros((2, len(kept), len(x)))
    for rows, mean, deviation in _terms_in_chunks(fitted, x, kept):
        found[0, :, rows], found[1, :, rows] = mean, deviation
    return found[0], found[1]


def _terms_in_chunks(fitted: Fitted, x: Tensor, kept: Sequence[Part]) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """Means and standard deviations of terms for some rows after the other."""
    sums = {part.label: part.components for part in kept if part.components}
    places = [index for index, part in enumerate(kept) if part.components]
    scales = np.array([[fitted.scale_of(kept[place].predictor)] for place in places])
    for start in range(0, len(x) if sums else 0, _ROWS_OF_MOMENTS):
        rows = slice(start, min(start + _ROWS_OF_MOMENTS, len(x)))
        found, moments = np.zeros((2, len(kept), rows.stop - start)), fitted.sums(x[rows], sums)
        found[0, places], found[1, places] = (scales * part.cpu().numpy() for part in (moments.mean, moments.stddev))
        yield rows, found[0], found[1]


def term_table(fitted: Fitted, x: Tensor, kept: Sequence[Part], level: float, index: pd.Index) -> pd.DataFrame:
    """
    The moments of terms and pointwise bands around them, as a table with two levels of columns: the term, and ``mean``,
    ``std``, ``lower`` and ``upper``. Beside it, memory does not depend on the number of rows.

    :param fitted: The fitted model.
    :param x: Inputs ``(n, D)``.
    :param kept: The terms.
    :param level: The probability of the bands.
    :param index: The index of the table.
    """
    half = float(torch.special.ndtri(torch.tensor(0.5 + level / 2, dtype=torch.float64)))
    values = np.zeros((len(kept), 4, len(x)))
    for rows, mean, deviation in _terms_in_chunks(fitted, x, kept):
        for place, each in enumerate((mean, deviation, mean - half * deviation, mean + half * deviation)):
            values[:, place, rows] = each
    columns = pd.MultiIndex.from_product(
        [[part.label for part in kept], ["mean", "std", "lower", "upper"]], names=["term", "value"]
    )
    return pd.DataFrame(values.reshape(-1, len(x)).T, index=index, columns=columns, copy=False)
