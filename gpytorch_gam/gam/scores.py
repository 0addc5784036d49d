"""How probable a fitted model makes responses: of further rows, and of its own when each is left out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gpytorch_gam.diagnostics import LeaveOneOut, leave_one_out

from .fitted import Fitted
from .prediction import Arguments, Predictions, in_chunks, response

# Relative difference of sums over the same responses that counts as rounding.
_ROUNDING = 1e-9


class Seen(NamedTuple):
    """What tells the rows of a fit from others: sums over them; their weights are positive."""

    num_rows: int
    weight: float
    total: float
    squares: float
    arguments: float  # how much offsets, exposures and trials are others than none

    @classmethod
    def of(cls, y: np.ndarray, weights: np.ndarray, arguments: Mapping[str, np.ndarray]) -> Seen:
        """
        The sums over some rows.

        :param y: Their responses.
        :param weights: Their weights.
        :param arguments: Their row-wise arguments.
        """
        others = (weights @ (value - (0.0 if name == "offset" else 1.0)) ** 2 for name, value in arguments.items())
        return cls(len(y), float(weights.sum()), float(weights @ y), float(weights @ y**2), float(sum(others)))

    @classmethod
    def joined(cls, parts: Iterable[Seen]) -> Seen:
        """
        The sums over the rows of several parts.

        :param parts: Those of the parts.
        """
        return cls(*map(sum, zip(*parts, strict=True)))

    def has_as_many_rows(self, other: Seen) -> bool:
        """
        Whether the numbers of rows and their weights are the same.

        :param other: Those of other rows.
        """
        return self.num_rows == other.num_rows and math.isclose(self.weight, other.weight, rel_tol=_ROUNDING)

    def is_like(self, other: Seen) -> bool:
        """
        Whether the responses and weights can be the same.

        :param other: Those of other rows.
        """
        size = max(math.sqrt(self.weight * self.squares), math.sqrt(other.weight * other.squares))
        return (
            self.has_as_many_rows(other)
            and math.isclose(self.squares, other.squares, rel_tol=_ROUNDING)
            and abs(self.total - other.total) <= _ROUNDING * size
        )

    def has_arguments_of(self, other: Seen) -> bool:
        """
        Whether offsets, exposures and trials can be the same.

        :param other: Those of other rows.
        """
        rounding = _ROUNDING * max(self.weight, other.weight)
        return math.isclose(self.arguments, other.arguments, rel_tol=1e-6, abs_tol=rounding)


def log_densities(fitted: Fitted, x: Tensor, y: np.ndarray, arguments: Arguments) -> np.ndarray:
    """
    Log predictive densities of responses, of discrete ones log probabilities, in nats, ``(n,)``.

    :param fitted: The fitted model.
    :param x: Inputs ``(n, D)``.
    :param y: Responses in units of the fit, ``(n,)``; numbers of classes.
    :param arguments: Row-wise arguments, in units of the fit.
    """
    with_responses = {**arguments, "_y": torch.from_numpy(y)}

    def densities(predictions: Predictions, own: dict[str, Tensor]) -> Tensor:
        observed = own.pop("_y")
        return response(fitted, predictions, own).log_prob(observed)

    return in_chunks(fitted, x, with_responses, fitted.parts, densities) - math.log(fitted.units.scale)


def left_out(fitted: Fitted, x: Tensor, y: np.ndarray, weights: np.ndarray, arguments: Arguments) -> LeaveOneOut:
    """
    The rows of the fit, each left out: see :func:`~gpytorch_gam.diagnostics.leave_one_out`. Densities are those of
    responses in their units.

    :param fitted: The fitted model.
    :param x: Inputs ``(n, D)``.
    :param y: Responses in units of the fit, ``(n,)``.
    :param weights: Weights of the rows.
    :param arguments: Row-wise arguments, in units of the fit.
    """
    device = fitted.model.predictor.device
    rows = {name: value.to(device) for name, value in arguments.items()}
    if not np.all(weights == 1.0):
        rows["weights"] = torch.tensor(weights, device=device)
    mixture = fitted.mixture if len(fitted.mixture) > 1 else None
    observed = torch.from_numpy(y).to(device)
    found = leave_one_out(fitted.model, fitted.likelihood, x.to(device), observed, rows, hyperparameters=mixture)
    shift = math.log(fitted.units.scale)
    return replace(
        found,
        log_densities=found.log_densities - shift,
        log_densities_within=found.log_densities_within - shift,
    )
