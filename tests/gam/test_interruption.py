"""A fit that is interrupted leaves an estimator that predicts, and says so."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np
import pytest

from gpytorch_gam.gam import GAMRegressor
from gpytorch_gam.warnings import ConvergenceWarning

from .data import responses, table


@contextmanager
def interrupted_at(number: int, function: str) -> Iterator[None]:
    """A KeyboardInterrupt in one of the calls of a function of the training."""
    left = number

    def interrupt(frame: FrameType, event: str, _: Any) -> None:
        nonlocal left
        if event == "call" and frame.f_code.co_name == function and "gpytorch_gam/training" in frame.f_code.co_filename:
            left -= 1
            if not left:
                sys.setprofile(None)
                raise KeyboardInterrupt

    before = sys.getprofile()
    sys.setprofile(interrupt)
    try:
        yield
    finally:
        sys.setprofile(before)
    assert left <= 0


@pytest.mark.parametrize(
    ("method", "function", "number"),
    [
        ("rows", "_evaluate", 5),
        ("rows", "shortfalls", 1),  # between two numbers of inducing points
        ("bins", "_evaluate", 6),
        ("bins", "from_batches", 1),  # before anything is known
        ("minibatches", "_evaluate", 3),  # in the ascent at the end
    ],
)
def test_an_interrupted_fit_is_usable(method: str, function: str, number: int) -> None:
    x, y = table(), responses(table())
    gam = GAMRegressor("~ s(age) + f(site)", method=method, tolerance=0.5)
    with pytest.warns(ConvergenceWarning, match="the fit was interrupted") as caught, interrupted_at(number, function):
        gam.fit(x, y)
    assert any(each.filename == __file__ for each in caught)
    assert gam.result_ is None
    assert "interrupted" in str(gam.summary())
    mean, deviation = gam.predict(x, return_std=True)
    assert np.isfinite(mean).all()
    assert (deviation > 0).all()
    if function == "_evaluate":  # it is better than no effects
        assert gam.score(x, y) > 0.2
    assert len(gam.effect("s(age)")) == 100
