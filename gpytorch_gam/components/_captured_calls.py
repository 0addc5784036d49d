"""What a predictor is given, and returns, while a model's ``forward`` runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import torch
from gpytorch.distributions import MultivariateNormal
from torch import Tensor


class PredictorCall(NamedTuple):
    """
    One call of a predictor.

    :ivar inputs: ``(*batch, n, D)``.
    :ivar means: of its mean modules there, ``(*batch, P, n)``.
    :ivar prior: what it returned.
    """

    inputs: Tensor
    means: Tensor
    prior: MultivariateNormal


class Capture(NamedTuple):
    """
    The calls of one predictor.

    :ivar predictor: the predictor whose calls are kept.
    :ivar check_finite: whether it looks for NaN and infinity in its inputs.
    :ivar calls: its calls so far.
    """

    predictor: torch.nn.Module
    check_finite: bool
    calls: list[PredictorCall]


_capture: ContextVar[Capture | None] = ContextVar("_capture", default=None)


@contextmanager
def captured_calls(predictor: torch.nn.Module, check_finite: bool) -> Iterator[list[PredictorCall]]:
    """
    Collect the calls of a predictor in this context (and thread). Their covariances are formed when asked for only.

    :param predictor: The predictor whose calls are kept.
    :param check_finite: Whether it looks for NaN and infinity in its inputs.
    """
    capture = Capture(predictor, check_finite, [])
    token = _capture.set(capture)
    try:
        yield capture.calls
    finally:
        _capture.reset(token)


def capture_of(predictor: torch.nn.Module) -> Capture | None:
    """Where the calls of a predictor are kept at present, if anywhere."""
    capture = _capture.get()
    return capture if capture is not None and capture.predictor is predictor else None
