"""Emulators of simulators, whose responses have next to no noise."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from gpytorch_gam.gam import GAMRegressor


@pytest.mark.parametrize(("deviation", "least", "largest"), [(1e-3, 0.8e-3, 1.2e-3), (0.0, 0.0, 1e-4)])
def test_noise_far_below_a_hundredth_of_the_response_is_found(deviation: float, least: float, largest: float) -> None:
    random = np.random.default_rng(1)
    x = random.uniform(size=120)
    data = pd.DataFrame({"x": x, "y": np.sin(6 * x) + deviation * random.normal(size=120)})
    gam = GAMRegressor("y ~ s(x)", hyperparameters="point", tolerance=0.5).fit(data)
    interval = gam.observation_interval(data, level=0.6826895)
    half = 0.5 * np.median(interval[:, 1] - interval[:, 0])
    assert least < half < largest
    np.testing.assert_allclose(gam.predict(data), np.sin(6 * x), atol=max(2 * deviation, 1e-4))
