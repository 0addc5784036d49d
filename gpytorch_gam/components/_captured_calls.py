"""The calls of a predictor, with inputs and results, that happen while the ``forward`` of a model runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import torch
from gpytorch.distributions import MultivariateNormal
from torch import Tensor


class PredictorCall(NamedTuple):
    """One call of a predictor."""

    inputs: Tensor  # (*batch, n, D)
    means: Tensor  # values of the mean modules there, (*batch, P, n)
    prior: MultivariateNormal  # the returned distribution


class Capture(NamedTuple):
    """The calls of one predictor."""

    predictor: torch.nn.Module
    check_finite: bool  # whether the predictor looks for NaN and infinity in its inputs
    calls: list[PredictorCall]


_capture: ContextVar[Capture | None] = ContextVar("_capture", default=None)


@contextmanager
def captured_calls(predictor: torch.nn.Module, check_finite: bool) -> Iterator[list[PredictorCall]]:
    """Collect the calls of a predictor in this context (and thread); covariances are formed only if needed."""
    capture = Capture(predictor, check_finite, [])
    token = _capture.set(capture)
    try:
        yield capture.calls
    finally:
        _capture.reset(token)


def capture_of(predictor: torch.nn.Module) -> Capture | None:
    """The capture that collects the calls of a predictor at present, if there is one."""
    capture = _capture.get()
    return capture if capture is not None and capture.predictor is predictor else None
