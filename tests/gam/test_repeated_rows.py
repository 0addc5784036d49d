"""Rows that count several times, which effects follow."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from gpytorch_gam.gam import GAMRegressor
from gpytorch_gam.warnings import OverfittingWarning


def test_effects_that_go_through_repeated_rows_are_warned_of() -> None:
    random = np.random.default_rng(0)
    x = random.uniform(size=16)
    data = pd.DataFrame({"x": x, "y": np.sin(20 * x) + 0.01 * random.normal(size=16)})
    gam = GAMRegressor("y ~ s(x)", hyperparameters="point", tolerance=0.5)
    gam.fit(data)
    with pytest.warns(OverfittingWarning, match="for 16 distinct rows, which count as 64: repeated rows"):
        gam.fit(pd.concat([data] * 4))
    with pytest.warns(OverfittingWarning, match="for 16 distinct rows, which count as 64: repeated rows"):
        gam.fit(data, sample_weight=np.full(16, 4.0))
