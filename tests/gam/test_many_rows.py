"""Predictions of tables with many rows."""

from __future__ import annotations

import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from gpytorch_gam.gam import GAMRegressor, f, prediction, s

from .data import fitted, table

_BYTES_OF_RESULT, _BYTES_OF_INPUTS = 8 * (3 * 4 + 2), 8 * 5  # for each row


def peaks(gam: GAMRegressor, rows: pd.DataFrame) -> tuple[int, int]:
    """The most bytes that arrays, and that tensors, take at a time while rows are predicted."""
    tracemalloc.start()
    try:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            gam.predict_terms(rows), gam.predict_link(rows, return_std=True)
        of_arrays = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    taken = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return of_arrays, int(np.cumsum(taken).max())


def test_memory_grows_with_the_result_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction, "_ROWS_AT_A_TIME", 1024)
    monkeypatch.setattr(prediction, "_ROWS_OF_MOMENTS", 2048)
    random = np.random.default_rng(0)
    rows = pd.DataFrame(
        {"a": random.normal(size=6144), "b": random.normal(size=6144), "c": random.integers(9, size=6144)}
    )
    few = rows[:100]
    gam = GAMRegressor([s("a", k=5), s("b", k=5), f("c")], hyperparameters="point").fit(few, np.sin(few.a))
    gam.predict_terms(few), gam.predict_link(few, return_std=True)  # what is imported and remembered
    (arrays, tensors), (more_arrays, more_tensors) = (peaks(gam, rows[:number]) for number in (2048, 6144))
    assert (more_arrays - arrays) / 4096 < _BYTES_OF_RESULT + 3 * _BYTES_OF_INPUTS
    assert (more_tensors - tensors) / 4096 < 2 * _BYTES_OF_INPUTS


def test_predictions_in_chunks_are_those_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    gam, x = fitted(), table()
    expected = gam.predict(x, return_std=True)
    monkeypatch.setattr(prediction, "_ROWS_OF_MOMENTS", 50)
    monkeypatch.setattr(prediction, "_ROWS_AT_A_TIME", 20)
    for found, each in zip(gam.predict(x, return_std=True), expected, strict=True):
        np.testing.assert_allclose(found, each, rtol=1e-9, atol=1e-9)


def test_terms_in_chunks_are_those_of_the_joint_posterior(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction, "_ROWS_OF_MOMENTS", 50)
    gam, x = fitted(), table()
    terms = gam.predict_terms(x)
    posterior = gam._fitted.components(gam._fitted.design.inputs(x))
    scale = gam._fitted.units.scale
    for part in gam._fitted.parts:
        mean, variance = (each.detach().numpy() for each in posterior[list(part.components)].total())
        np.testing.assert_allclose(terms[part.label]["mean"], scale * mean, atol=1e-10)
        np.testing.assert_allclose(terms[part.label]["std"], scale * np.sqrt(variance), rtol=1e-6)
    half = float(torch.special.ndtri(torch.tensor(0.975, dtype=torch.float64)))
    np.testing.assert_allclose(terms["s(age)"]["upper"] - terms["s(age)"]["mean"], half * terms["s(age)"]["std"])
    pd.testing.assert_index_equal(gam.predict_terms(x, only=[]).index, x.index)


def test_threads_predict_what_one_does() -> None:
    gam, x = fitted(), table()
    expected = gam.predict(x)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: (gam.predict(x), gam.predict_terms(x)), range(8)))
    for values, terms in found:
        np.testing.assert_array_equal(values, expected)
        pd.testing.assert_frame_equal(terms, found[0][1])
