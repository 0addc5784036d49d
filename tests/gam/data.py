"""Data frames and fits that tests of estimators share."""

from __future__ import annotations

import functools

import numpy as np
import pandas as pd

from gpytorch_gam.gam import GAMRegressor, f, re, s, ti

NUM_ROWS = 120


@functools.cache
def _table() -> pd.DataFrame:
    random = np.random.default_rng(0)
    names = np.array(["Bergen", "Oslo", "Voss"])
    return pd.DataFrame(
        {
            "age": random.uniform(20, 80, NUM_ROWS),
            "hour": random.uniform(0, 24, NUM_ROWS),
            "site": names[random.integers(3, size=NUM_ROWS)],
            "treated": random.random(NUM_ROWS) < 0.5,
            "subject": [f"p{index}" for index in random.integers(12, size=NUM_ROWS)],
            "day": pd.Timestamp("2020-01-01") + pd.to_timedelta(random.integers(0, 700, NUM_ROWS), unit="D"),
        }
    )


def table() -> pd.DataFrame:
    """Columns of several kinds."""
    return _table().copy()


def effects(x: pd.DataFrame) -> dict[str, np.ndarray]:
    """The true effects of columns."""
    return {
        "age": np.sin((x.age.to_numpy() - 20) / 10),
        "hour": np.cos(2 * np.pi * x.hour.to_numpy() / 24),
        "site": x.site.map({"Bergen": -0.5, "Oslo": 0.0, "Voss": 0.5}).to_numpy(dtype=float),
    }


def responses(x: pd.DataFrame, noise: float = 0.2, seed: int = 1) -> np.ndarray:
    """Responses that are the sum of the effects and noise."""
    return sum(effects(x).values()) + noise * np.random.default_rng(seed).normal(size=len(x))


TERMS = [s("age", k=8), s("hour", period=24, k=6), f("site"), re("subject"), ti("age", "hour", k=4)]


@functools.cache
def fitted() -> GAMRegressor:
    """A regression that tests read and do not change."""
    x = table()
    return GAMRegressor(TERMS, hyperparameters="integrated").fit(x, responses(x))
