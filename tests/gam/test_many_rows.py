"""Predictions of tables with many rows."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch

from gpytorch_gam.gam import prediction

from .data import fitted, table

_SCRIPT = """
import resource, numpy as np, pandas as pd
from gpytorch_gam.gam import GAMRegressor, f, s
random = np.random.default_rng(0)
def table(n):
    return pd.DataFrame({"a": random.normal(size=n), "b": random.normal(size=n), "c": random.integers(9, size=n)})
x = table(100)
y = np.sin(x.a) + 0.1 * random.normal(size=100)
gam = GAMRegressor([s("a", k=5), s("b", k=5), f("c")], hyperparameters="point").fit(x, y)
rows = table(400_000)
gam.predict_terms(rows[:150_000]), gam.predict_link(rows[:150_000])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
result = gam.predict_terms(rows), gam.predict_link(rows, return_std=True)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


def test_memory_grows_with_the_result_alone() -> None:
    found = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=True)
    result, inputs = 400_000 * 8 * (3 * 4 + 2) / 2**20, 400_000 * 8 * 5 / 2**20  # 43 and 15 MiB
    assert float(found.stdout) < result + 3 * inputs


def test_terms_in_chunks_are_those_of_the_joint_posterior(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction, "_ROWS_OF_TERMS", 50)
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
